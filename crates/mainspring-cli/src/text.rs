//! Text for people: what comes from a store made harmless, times and durations made readable.

use std::time::Duration;

use mainspring::admin::QueueActivity;
use mainspring::time::{Span, Timestamp};
pub(crate) use mainspring_wire::text::{count, line, plain};

/// A duration in the one or two units that matter: `0.4s`, `12s`, `3m 5s`, `2d 4h`.
pub(crate) fn duration(duration: Duration) -> String {
    let seconds = duration.as_secs();
    let parts = [(86_400, "d"), (3_600, "h"), (60, "m"), (1, "s")];
    if seconds < 10 {
        return format!("{:.1}s", duration.as_secs_f64());
    }
    let first = parts.iter().position(|(size, _)| seconds >= *size).unwrap_or(parts.len() - 1);
    let mut rest = seconds;
    let mut words = Vec::new();
    for (size, unit) in parts.iter().skip(first).take(2) {
        let count = rest / size;
        rest %= size;
        if count > 0 {
            words.push(format!("{count}{unit}"));
        }
    }
    words.join(" ")
}

/// How long ago or how far ahead a point in time is.
pub(crate) fn relative(at: Timestamp, now: Timestamp) -> String {
    if at > now {
        format!("in {}", duration(at.since(now)))
    } else {
        format!("{} ago", duration(now.since(at)))
    }
}

/// What a node does for a queue: what it is busy with, its last claim, and when it looks for jobs again.
pub(crate) fn activity(activity: &QueueActivity, as_of: Timestamp, now: Timestamp) -> String {
    let mut slots = vec![format!("{} of {} slots busy", activity.running, activity.slots)];
    for (count, what) in [(activity.waiting, "claimed ahead"), (activity.unstored, "not stored yet")] {
        slots.extend((count > 0).then(|| format!("{count} {what}")));
    }
    let mut parts = vec![slots.join(", ")];
    parts.push(match &activity.last_claim {
        Some(claim) => {
            format!("last claim {}: asked for {}, got {}", relative(claim.at, now), claim.asked, claim.got)
        }
        None => "no claim answered yet".to_owned(),
    });
    if activity.asking > 0 {
        parts.push(format!("a claim for {} is not answered yet", activity.asking));
    }
    parts.push(format!("next look {}", relative(as_of.after(activity.next_look), now)));
    parts.join("; ")
}

/// The time of day where the user is.
pub(crate) fn clock(at: Timestamp) -> String {
    let time = jiff::Timestamp::from_microsecond(at.as_micros()).unwrap_or_default();
    time.to_zoned(jiff::tz::TimeZone::system()).strftime("%H:%M:%S").to_string()
}

/// A setting as people wrote it.
pub(crate) fn span(span: Span) -> String {
    span.to_string()
}

/// "1 crash", "2 crashes".
pub(crate) fn crashes(number: u16) -> String {
    if number == 1 { "1 crash".to_owned() } else { format!("{number} crashes") }
}

/// How many letters have to be put in, left out, replaced or swapped with their neighbour to make one word of the other.
pub(crate) fn distance(one: &str, other: &str) -> usize {
    let (one, other): (Vec<char>, Vec<char>) = (one.chars().collect(), other.chars().collect());
    // Rows of the usual table: the one before the last, the last, and this.
    let mut before: Vec<usize> = Vec::new();
    let mut last: Vec<usize> = (0..=other.len()).collect();
    for (i, letter) in one.iter().enumerate() {
        let mut row = vec![i + 1];
        for (j, with) in other.iter().enumerate() {
            let replaced = last[j] + usize::from(letter != with);
            let mut least = replaced.min(last[j + 1] + 1).min(row[j] + 1);
            if i > 0 && j > 0 && *letter == other[j - 1] && one[i - 1] == *with {
                least = least.min(before[j - 1] + 1);
            }
            row.push(least);
        }
        before = std::mem::replace(&mut last, row);
    }
    last.last().copied().unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slip_of_the_finger_is_a_short_way() {
        assert_eq!(distance("default", "default"), 0);
        assert_eq!(distance("default", "defualt"), 1);
        assert_eq!(distance("default", "defaut"), 1);
        assert_eq!(distance("default", "defaults"), 1);
        assert_eq!(distance("mail", "nail"), 1);
        assert_eq!(distance("mail", ""), 4);
        assert_eq!(distance("", "mail"), 4);
        assert_eq!(distance("mail", "images"), 4);
    }

    #[test]
    fn durations_show_two_units_at_most() {
        let of = |seconds| duration(Duration::from_secs(seconds));
        assert_eq!(of(0), "0.0s");
        assert_eq!(of(12), "12s");
        assert_eq!(of(185), "3m 5s");
        assert_eq!(of(3_600), "1h");
        assert_eq!(of(86_400 * 2 + 3_600 * 4 + 59), "2d 4h");
        assert_eq!(duration(Duration::from_millis(420)), "0.4s");
    }
}
