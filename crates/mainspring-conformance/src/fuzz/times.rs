//! Points in time, spans and backoffs: texts that come back, and arithmetic that never leaves its bounds.

use std::time::Duration;

use mainspring_core::backoff::Backoff;
use mainspring_core::bounds;
use mainspring_core::time::{Span, Timestamp, micros};
use serde_json::{from_value, json};

use super::byte_source::{ByteSource, ConstantRng};

/// Any point in time, and any distance from it.
pub(super) fn times(bytes: &[u8]) {
    let mut draw = ByteSource::new(bytes);
    let (at, duration, other) =
        (Timestamp::from_micros(draw.any()), draw.duration(), Timestamp::from_micros(draw.any()));
    assert_eq!(Timestamp::from_micros(at.as_micros()), at);
    assert!(at.before(duration) <= at && at <= at.after(duration));
    let fits = at.as_micros().checked_add(micros(duration)).is_some();
    if fits {
        let whole = Duration::from_micros(micros(duration).unsigned_abs());
        assert_eq!(at.after(duration).since(at), whole);
        assert_eq!(at.after(duration).before(duration), at);
    }
    assert!(other.since(at).is_zero() || at < other);
    assert_eq!(from_value::<Timestamp>(json!(at)).ok(), Some(at));
    let text = at.to_string();
    assert_eq!(read(&text), Some(at.as_micros().div_euclid(1_000)), "{text}");
    if (1..=9_999).contains(&year(&text)) && (1..=9_999).contains(&year(&other.to_string())) {
        let millis = |at: Timestamp| at.as_micros().div_euclid(1_000);
        assert_eq!(text.cmp(&other.to_string()), millis(at).cmp(&millis(other)), "texts sort as times do");
    }
}

fn year(text: &str) -> i64 {
    let end = text.get(1..).and_then(|rest| rest.find('-')).map_or(0, |at| at + 1);
    text[..end].parse().unwrap_or(0)
}

/// Milliseconds since the Unix epoch, counted in another way than the one that wrote the text: year by year would take
/// too long, so by blocks of 400 years, which are all alike.
fn read(text: &str) -> Option<i64> {
    let end = text.get(1..)?.find('-')? + 1;
    let mut numbers = [0_i64; 6];
    let rest = text[end..].strip_prefix('-')?.strip_suffix('Z')?;
    for (number, piece) in numbers.iter_mut().zip(rest.split(['-', 'T', ':', '.'])) {
        *number = piece.parse().ok()?;
    }
    let ([month, day, hours, minutes, seconds, millis], year) = (numbers, text[..end].parse::<i64>().ok()?);
    let is_leap = |year: i64| year % 4 == 0 && (year % 100 != 0 || year % 400 == 0);
    let days_of = |year: i64, month: i64| match month {
        2 => 28 + i64::from(is_leap(year)),
        4 | 6 | 9 | 11 => 30,
        _ => 31,
    };
    let (blocks, of_block) = ((year - 1970).div_euclid(400), (year - 1970).rem_euclid(400));
    let years: i64 = (1970..1970 + of_block).map(|year| 365 + i64::from(is_leap(year))).sum();
    let months: i64 = (1..month).map(|month| days_of(1970 + of_block, month)).sum();
    if !(1..=12).contains(&month) || !(1..=days_of(1970 + of_block, month)).contains(&day) {
        return None;
    }
    let days = blocks * 146_097 + years + months + day - 1;
    Some((((days * 24 + hours) * 60 + minutes) * 60 + seconds) * 1_000 + millis)
}

/// A text as a span, and a span as a text.
pub(super) fn spans(bytes: &[u8]) {
    if let Ok(text) = std::str::from_utf8(bytes) {
        match text.parse::<Span>() {
            Ok(span) => {
                assert_eq!(span.to_string().parse::<Span>().ok(), Some(span));
                assert_eq!(from_value::<Span>(json!(text)).ok(), Some(span));
                assert!(text.bytes().all(|byte| byte.is_ascii_alphanumeric()), "{text}");
            }
            Err(error) => assert!(error.to_string().starts_with("invalid duration: "), "{error}"),
        }
    }
    let mut draw = ByteSource::new(bytes);
    let (span, other) = (Span(draw.duration()), Span(draw.duration()));
    assert_eq!(written(span), whole(span));
    assert_eq!(from_value::<Span>(json!(span)).ok(), Some(whole(span)));
    if span <= other {
        assert!(written(span) <= written(other), "a shorter span never becomes a longer one");
    }
}

/// A span after it was written and read.
fn written(span: Span) -> Span {
    span.to_string().parse().expect("a span reads what it writes")
}

/// What is kept of a span: whole microseconds, as far as 64 bits go.
pub(super) fn whole(span: Span) -> Span {
    Span(Duration::from_micros(u64::try_from(span.0.as_micros()).unwrap_or(u64::MAX)))
}

/// A text as a backoff; any backoff after any number of failures.
pub(super) fn backoffs(bytes: &[u8]) {
    if let Ok(text) = std::str::from_utf8(bytes)
        && let Ok(backoff) = text.parse::<Backoff>()
    {
        assert_eq!(backoff.to_string().parse::<Backoff>().ok(), Some(backoff));
        assert!(backoff.check().is_ok(), "what is read can be stored");
    }
    let mut draw = ByteSource::new(bytes);
    let backoff = backoff(&mut draw);
    let (failures, random) = (draw.any::<u16>(), ConstantRng(draw.any()));
    let delay = backoff.delay(failures, &random);
    assert!(delay <= bounds::DELAY);
    let (low, middle, high) = (
        backoff.delay(failures, &ConstantRng(0)),
        backoff.delay(failures, &ConstantRng(1 << 63)),
        backoff.delay(failures, &ConstantRng(u64::MAX)),
    );
    assert!(low <= delay && delay <= high, "{low:?} {delay:?} {high:?}");
    // A nanosecond is what rounding may cost.
    let nanosecond = Duration::from_nanos(1);
    assert!(middle.mul_f64(0.75) <= low + nanosecond && high <= middle.mul_f64(1.25) + nanosecond);
    let next = failures.saturating_add(1);
    assert!(
        middle <= backoff.delay(next, &ConstantRng(1 << 63)),
        "a delay never shrinks with another failure"
    );
    if backoff.check().is_ok() {
        let text = backoff.to_string();
        let read: Backoff = text.parse().unwrap_or_else(|error| panic!("{text}: {error}"));
        assert_eq!(read.to_string(), text);
        assert_eq!(from_value::<Backoff>(json!(backoff)).ok(), Some(read));
    }
}

/// Any backoff that code can make.
pub(super) fn backoff(draw: &mut ByteSource<'_>) -> Backoff {
    let (short, long) = (draw.duration(), draw.duration());
    match draw.any::<u8>() % 3 {
        0 => Backoff::Exponential { base: short, max: long },
        1 => Backoff::Linear { step: short, max: long },
        _ => Backoff::Fixed(short),
    }
}
