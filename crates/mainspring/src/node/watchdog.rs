//! The watchdog: names a handler that blocks its executor's thread.
//!
//! A poll of a handler is meant to take microseconds. One that computes for seconds, or calls something that blocks, holds up
//! everything else that its thread would run. Each run counts the beginnings and the ends of its polls, without a look at a clock:
//! while the count is odd, a poll is under way. The lease keeper, whose thread no handler can block, looks at the counts: the same
//! odd number at two looks that are a second apart is one poll.
//!
//! # Invariants
//! - A block is named once, however long it lasts.
//! - Nothing but reports depends on it.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use mainspring_core::id::Claim;

use crate::job_run::JobRun;

/// How long a poll has been seen to last before it is named.
const BLOCKED_AFTER: Duration = Duration::from_secs(1);

/// What the watchdog has seen.
#[derive(Debug, Default)]
pub(super) struct Watchdog {
    /// Runs that were in a poll at the last look.
    polls: BTreeMap<Claim, Poll>,
}

/// A poll that was under way at the last look.
#[derive(Debug, Clone, Copy)]
struct Poll {
    count: u64,
    /// When it was seen first: it began before.
    since: Duration,
    /// When it was seen last: it ended after.
    seen: Duration,
    is_named: bool,
}

/// What a look finds.
#[derive(Debug, Default)]
struct Found {
    /// Runs whose block is new, and how long it has lasted at least.
    blocking: Vec<(Arc<JobRun>, Duration)>,
    /// Blocks that have ended, and how long they lasted at least.
    ended: Vec<(Claim, Duration)>,
}

impl Watchdog {
    /// Looks at all runs of the node, and reports those that block.
    pub(super) fn look(&mut self, runs: &[Arc<JobRun>], now: Duration) {
        let found = self.find(runs, now);
        if found.blocking.is_empty() && found.ended.is_empty() {
            return;
        }
        for (run, lasts) in found.blocking {
            tracing::warn!(
                job = %run.info.id, kind = %run.info.kind, queue = %run.info.queue, for_at_least = ?lasts,
                "a handler blocks its executor's thread: nothing else runs on it; move the work to `spawn_blocking`"
            );
            metrics::counter!("mainspring_blocks", "kind" => run.info.kind.to_string()).increment(1);
        }
        for (claim, lasted) in found.ended {
            tracing::info!(job = %claim.id, for_at_least = ?lasted, "a handler that blocked its executor's thread yields again");
        }
        let blocking = self.polls.values().filter(|poll| poll.is_named).count();
        metrics::gauge!("mainspring_blocking_handlers").set(blocking as f64);
    }

    fn find(&mut self, runs: &[Arc<JobRun>], now: Duration) -> Found {
        let mut found = Found::default();
        let mut before = std::mem::take(&mut self.polls);
        for run in runs {
            let Some(count) = run.poll_under_way() else { continue };
            let mut poll = match before.remove(&run.claim) {
                Some(same) if same.count == count => Poll { seen: now, ..same },
                other => {
                    before.extend(other.map(|other| (run.claim, other)));
                    Poll { count, since: now, seen: now, is_named: false }
                }
            };
            let lasts = poll.seen.saturating_sub(poll.since);
            if !poll.is_named && lasts >= BLOCKED_AFTER {
                poll.is_named = true;
                found.blocking.push((Arc::clone(run), lasts));
            }
            self.polls.insert(run.claim, poll);
        }
        let ended = before.into_iter().filter(|(_, poll)| poll.is_named);
        found.ended.extend(ended.map(|(claim, poll)| (claim, poll.seen.saturating_sub(poll.since))));
        found
    }
}

#[cfg(all(test, not(feature = "shuttle")))]
mod tests {
    use super::*;
    use crate::job_run::tests::claimed;

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn a_block_is_named_once_and_so_is_its_end() {
        let (run, mut watchdog) = (claimed(1), Watchdog::default());
        let runs = [Arc::clone(&run)];
        let mut look = |seconds: u32| {
            let found = watchdog.find(&runs, seconds * SECOND);
            (found.blocking.len(), found.ended)
        };
        assert_eq!(look(0), (0, vec![]), "it is not polled");
        let poll = run.in_poll();
        assert_eq!(look(1), (0, vec![]), "it may have begun just now");
        assert_eq!(look(2), (1, vec![]));
        assert_eq!(look(3), (0, vec![]), "named once");
        assert_eq!(look(60), (0, vec![]));
        drop(poll);
        assert_eq!(look(61), (0, vec![(run.claim, 59 * SECOND)]));
        assert_eq!(look(62), (0, vec![]));
        let poll = run.in_poll();
        look(63);
        assert_eq!(look(65), (1, vec![]), "another block");
        drop(poll);
        let poll = run.in_poll();
        assert_eq!(look(66), (0, vec![(run.claim, 2 * SECOND)]), "another poll");
        assert_eq!(look(67), (1, vec![]));
        drop(poll);
    }

    #[test]
    fn a_handler_that_is_polled_often_blocks_nobody() {
        let (run, mut watchdog) = (claimed(1), Watchdog::default());
        for second in 0..100 {
            let poll = run.in_poll();
            assert!(watchdog.find(&[Arc::clone(&run)], second * SECOND).blocking.is_empty());
            drop(poll);
        }
    }

    #[test]
    fn two_looks_in_quick_succession_name_nobody() {
        let (run, mut watchdog) = (claimed(1), Watchdog::default());
        let _poll = run.in_poll();
        let mut look = |millis| {
            watchdog
                .find(&[Arc::clone(&run)], Duration::from_millis(millis))
                .blocking
                .into_iter()
                .map(|(_, lasts)| lasts)
                .next()
        };
        assert_eq!((look(0), look(1), look(999)), (None, None, None));
        assert_eq!(look(1_000), Some(SECOND));
    }

    #[test]
    fn runs_that_are_gone_are_forgotten() {
        let mut watchdog = Watchdog::default();
        let run = claimed(1);
        let _poll = run.in_poll();
        watchdog.find(&[Arc::clone(&run)], Duration::ZERO);
        watchdog.find(&[], SECOND);
        assert!(watchdog.polls.is_empty());
    }
}
