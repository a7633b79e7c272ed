//! The values an attribute may hold, checked where they are written.
//!
//! Each function takes a literal and returns the checked value or an error that points at that literal. The bounds are
//! those of `mainspring-core`; they are repeated here because a derive macro that built the core first would slow down
//! every user's build. The engine checks the same bounds again when a job is stored.

use std::time::Duration;

use syn::{Error, LitInt, LitStr, Result};

/// Longest kind, alias or queue name, in bytes.
pub(crate) const NAME_BYTES_MAX: usize = 128;
/// The last priority; 0 is the first.
pub(crate) const PRIORITY_MAX: u8 = 9;
/// The most attempts a job can have.
pub(crate) const ATTEMPTS_MAX: u16 = 10_000;

/// Says why `text` cannot be a kind, alias or queue name; `None` if it can.
pub(crate) fn name_fault(text: &str) -> Option<String> {
    if text.is_empty() {
        return Some("is empty".to_owned());
    }
    if text.len() > NAME_BYTES_MAX {
        return Some(format!("is {} bytes long, at most {NAME_BYTES_MAX} are allowed", text.len()));
    }
    let stranger =
        text.chars().find(|c| !(c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | ':' | '-')))?;
    Some(format!("contains {stranger:?}, only [A-Za-z0-9._:-] is allowed"))
}

/// A kind, alias or queue name; `what` says which of them in the error.
pub(crate) fn name(what: &str, literal: &LitStr) -> Result<String> {
    let text = literal.value();
    match name_fault(&text) {
        None => Ok(text),
        Some(fault) => Err(Error::new(literal.span(), format!("{what} {text:?} {fault}"))),
    }
}

/// A priority, 0 to 9.
pub(crate) fn priority(literal: &LitInt) -> Result<u8> {
    match literal.base10_parse::<u8>() {
        Ok(priority) if priority <= PRIORITY_MAX => Ok(priority),
        _ => Err(Error::new(
            literal.span(),
            format!("priority is 0 (first) to {PRIORITY_MAX} (last), not {literal}"),
        )),
    }
}

/// A number of attempts, 1 to 10,000.
pub(crate) fn max_attempts(literal: &LitInt) -> Result<u16> {
    match literal.base10_parse::<u16>() {
        Ok(attempts) if (1..=ATTEMPTS_MAX).contains(&attempts) => Ok(attempts),
        _ => Err(Error::new(literal.span(), format!("max_attempts is 1 to {ATTEMPTS_MAX}, not {literal}"))),
    }
}

/// A time-out such as `10ms`, `30s`, `5m`, `2h`, `1d` or `1h30m`, longer than nothing.
pub(crate) fn timeout(literal: &LitStr) -> Result<Duration> {
    let text = literal.value();
    match parse_duration(&text) {
        Some(duration) if !duration.is_zero() => Ok(duration),
        _ => Err(Error::new(
            literal.span(),
            format!("timeout {text:?} is not a positive duration: write 10ms, 30s, 5m, 2h, 1d or 1h30m"),
        )),
    }
}

/// How the delay between attempts grows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Backoff {
    Exponential(Duration, Duration),
    Linear(Duration, Duration),
    Fixed(Duration),
}

/// A backoff such as `exponential:1s..1h`, `linear:10s..5m` or `fixed:30s`.
pub(crate) fn backoff(literal: &LitStr) -> Result<Backoff> {
    let text = literal.value();
    parse_backoff(&text).ok_or_else(|| {
        let why = "is not of the form exponential:1s..1h, linear:10s..5m or fixed:30s";
        Error::new(literal.span(), format!("backoff {text:?} {why}"))
    })
}

fn parse_backoff(text: &str) -> Option<Backoff> {
    let (shape, rest) = text.split_once(':')?;
    let range = || {
        let (from, to) = rest.split_once("..")?;
        let (from, to) = (parse_duration(from)?, parse_duration(to)?);
        (from <= to).then_some((from, to))
    };
    match shape {
        "exponential" => range().map(|(base, max)| Backoff::Exponential(base, max)),
        "linear" => range().map(|(step, max)| Backoff::Linear(step, max)),
        "fixed" => parse_duration(rest).map(Backoff::Fixed),
        _ => None,
    }
}

pub(crate) fn parse_duration(text: &str) -> Option<Duration> {
    let (mut total, mut rest) = (Duration::ZERO, text);
    if rest.is_empty() {
        return None;
    }
    while !rest.is_empty() {
        let unit_at = rest.find(|c: char| !c.is_ascii_digit())?;
        let (count, tail) = rest.split_at(unit_at);
        let (unit, tail) = tail.split_at(tail.find(|c: char| c.is_ascii_digit()).unwrap_or(tail.len()));
        let unit_ms: u64 = match unit {
            "ms" => 1,
            "s" => 1_000,
            "m" => 60 * 1_000,
            "h" => 60 * 60 * 1_000,
            "d" => 24 * 60 * 60 * 1_000,
            _ => return None,
        };
        let count: u64 = count.parse().ok()?;
        total = total.checked_add(Duration::from_millis(count.checked_mul(unit_ms)?))?;
        rest = tail;
    }
    Some(total)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn name_is_bounded_at_128_bytes() {
        assert_eq!(name_fault(&"a".repeat(128)), None);
        assert_eq!(
            name_fault(&"a".repeat(129)).as_deref(),
            Some("is 129 bytes long, at most 128 are allowed")
        );
        assert_eq!(name_fault("").as_deref(), Some("is empty"));
    }

    #[test]
    fn name_takes_its_alphabet_and_nothing_else() {
        assert_eq!(name_fault("AZaz09._:-"), None);
        for stranger in [' ', '/', '\'', '"', ';', '\0', '\n', 'é', '@'] {
            let fault = name_fault(&format!("a{stranger}b")).expect("a stranger is a fault");
            assert!(fault.contains(&format!("{stranger:?}")), "{fault}");
        }
    }

    #[test]
    fn backoffs_are_read_as_the_engine_reads_them() {
        let (second, hour) = (Duration::from_secs(1), Duration::from_hours(1));
        assert_eq!(parse_backoff("exponential:1s..1h"), Some(Backoff::Exponential(second, hour)));
        assert_eq!(parse_backoff("linear:1s..1h"), Some(Backoff::Linear(second, hour)));
        assert_eq!(parse_backoff("fixed:1h"), Some(Backoff::Fixed(hour)));
        for text in ["", "fixed", "fixed:", "fixed:5", "exponential:5s", "linear:1h..1s", "cubic:1s"] {
            assert_eq!(parse_backoff(text), None, "{text:?}");
        }
    }

    #[test]
    fn durations_have_units() {
        let ms = |text| parse_duration(text).map(|duration| duration.as_millis());
        assert_eq!(ms("10ms"), Some(10));
        assert_eq!(ms("30s"), Some(30_000));
        assert_eq!(ms("5m"), Some(300_000));
        assert_eq!(ms("2h"), Some(7_200_000));
        assert_eq!(ms("1d"), Some(86_400_000));
        assert_eq!(ms("1h30m"), Some(5_400_000));
        for text in [
            "",
            "s",
            "30",
            "30 s",
            "1.5s",
            "-1s",
            "+1s",
            "1w",
            "99999999999999999999s",
            "18446744073709551615d",
        ] {
            assert_eq!(ms(text), None, "{text:?}");
        }
    }
}
