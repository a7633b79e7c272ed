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

/// A number of attempts, at least 1.
pub(crate) fn max_attempts(literal: &LitInt) -> Result<u16> {
    match literal.base10_parse::<u16>() {
        Ok(attempts) if attempts >= 1 => Ok(attempts),
        _ => Err(Error::new(literal.span(), format!("max_attempts is 1 to {}, not {literal}", u16::MAX))),
    }
}

/// A time-out such as `10ms`, `30s`, `5m`, `2h` or `1d`, longer than nothing.
pub(crate) fn timeout(literal: &LitStr) -> Result<Duration> {
    let text = literal.value();
    match parse_duration(&text) {
        Some(duration) if !duration.is_zero() => Ok(duration),
        _ => Err(Error::new(
            literal.span(),
            format!(
                "timeout {text:?} is not a positive whole number with a unit: write 10ms, 30s, 5m, 2h or 1d"
            ),
        )),
    }
}

fn parse_duration(text: &str) -> Option<Duration> {
    let unit_at = text.find(|c: char| !c.is_ascii_digit())?;
    let (count, unit) = text.split_at(unit_at);
    let unit_ms: u64 = match unit {
        "ms" => 1,
        "s" => 1_000,
        "m" => 60 * 1_000,
        "h" => 60 * 60 * 1_000,
        "d" => 24 * 60 * 60 * 1_000,
        _ => return None,
    };
    let count: u64 = count.parse().ok()?;
    Some(Duration::from_millis(count.checked_mul(unit_ms)?))
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
    fn durations_have_one_unit() {
        let ms = |text| parse_duration(text).map(|duration| duration.as_millis());
        assert_eq!(ms("10ms"), Some(10));
        assert_eq!(ms("30s"), Some(30_000));
        assert_eq!(ms("5m"), Some(300_000));
        assert_eq!(ms("2h"), Some(7_200_000));
        assert_eq!(ms("1d"), Some(86_400_000));
        for text in [
            "",
            "s",
            "30",
            "30 s",
            "1.5s",
            "-1s",
            "+1s",
            "1h30m",
            "1w",
            "99999999999999999999s",
            "18446744073709551615d",
        ] {
            assert_eq!(ms(text), None, "{text:?}");
        }
    }
}
