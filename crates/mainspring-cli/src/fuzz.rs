//! Fuzz targets: everything that is read from the command line.
//!
//! # Invariants
//! - No command is run: what is read is looked at, and that is all.

use clap::Parser;
use mainspring::admin::Filter;
use mainspring::time::Timestamp;

use crate::args::{Args, Command};
use crate::command::filter;
use crate::command::work::QueueSlots;
use crate::time_point::TimePoint;

/// The name of a target, and what it does with bytes.
pub type Target = (&'static str, fn(&[u8]));

/// Names, and what must not panic.
pub const TARGETS: [Target; 3] =
    [("cli_arguments", arguments), ("cli_points", points), ("cli_queues", queues)];

const NOW: Timestamp = Timestamp::from_micros(1_794_732_183_120_000);

/// Arguments, one per line.
fn arguments(bytes: &[u8]) {
    let Ok(text) = std::str::from_utf8(bytes) else { return };
    let words = std::iter::once("mainspring").chain(text.split('\n'));
    match Args::try_parse_from(words) {
        Err(error) => assert!(!error.to_string().is_empty()),
        Ok(Args { command: Command::Jobs(jobs), .. }) => {
            let conditions = jobs.conditions();
            if let Ok(filter) = conditions.filter(NOW) {
                assert_eq!(conditions.is_empty(), filter == Filter::default(), "{filter:?}");
            }
        }
        Ok(Args { command: Command::Enqueue(enqueue), .. }) => drop(enqueue.texts()),
        Ok(_) => {}
    }
    if let Ok(id) = filter::id(text) {
        assert_eq!(filter::id(&id.to_string()).ok(), Some(id));
    }
}

/// A text as a point in time.
fn points(bytes: &[u8]) {
    let Ok(text) = std::str::from_utf8(bytes) else { return };
    match text.parse::<TimePoint>() {
        Err(error) => assert!(error.starts_with(&format!("`{text}` is neither"))),
        Ok(point @ TimePoint::Away(_)) => assert!(point.back(NOW) <= NOW),
        Ok(point @ TimePoint::At(at)) => {
            assert_eq!(point.back(NOW), at);
            let shown = at.to_string();
            let micros = at.as_micros();
            // What is shown has milliseconds, and years as they are written on a command line.
            if !shown.starts_with('-') {
                let whole = Timestamp::from_micros(micros - micros.rem_euclid(1_000));
                assert_eq!(shown.parse(), Ok(TimePoint::At(whole)), "{text} {shown}");
            }
        }
    }
}

/// A text as a queue with its slots.
fn queues(bytes: &[u8]) {
    let Ok(text) = std::str::from_utf8(bytes) else { return };
    if let Ok(served) = text.parse::<QueueSlots>() {
        assert!((1..=mainspring::bounds::SLOTS).contains(&served.slots));
        assert!(text.starts_with(served.name.as_str()));
        assert_eq!(served.to_string().parse(), Ok(served));
    }
}

#[cfg(test)]
mod tests {
    use mainspring_testkit::fuzz::check;

    #[test]
    fn every_target_holds() {
        for (name, target) in super::TARGETS {
            check(name, target);
        }
    }
}
