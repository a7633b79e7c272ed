//! The next action: what becomes of a handler that is pending and was not woken.
//!
//! Whether a handler is suspended, keeps its slot or is set aside is decided by a pure function over a snapshot of its session.
//! It asks first whether the code fits the records, then whether the waits can end without a suspension, and last whether anything of the
//! handler is still on its way to the store.
//!
//! # Invariants
//! - A handler is suspended only if nothing but a durable wait can wake it, and nothing that it has handed in is unanswered.
//! - A run that an operation has ended is not suspended: its handler would be kept, and wait for that operation for ever.
//! - It is set aside only if nothing is under way that could yet ask for what is recorded.

use std::time::Duration;

use mainspring_core::time::Timestamp;

/// How long a handler that stays in memory relies on hints of messages before it looks by itself.
const LOOK: Duration = Duration::from_secs(1);

/// What the decision depends on.
#[expect(clippy::struct_excessive_bools, reason = "a list of facts, each true or not")]
#[derive(Debug, Clone, Copy)]
pub(super) struct Snapshot {
    pub(super) now: Timestamp,
    pub(super) fit: Fit,
    /// Whether an operation has ended the run because the lease is lost or has lapsed. It is never polled to an end.
    pub(super) lease_lost: bool,
    /// How many may wake the handler that are no durable operations.
    pub(super) wakers: usize,
    /// Bodies and calls of the store that are under way.
    pub(super) busy: usize,
    /// Operations that were dropped in an earlier run and are awaited again.
    pub(super) shelved: usize,
    /// How many records the job has.
    pub(super) records: usize,
    /// The durable waits, if at least one is open.
    pub(super) waits: Option<WaitsSnapshot>,
    /// Whether the store has more messages than were read, or may have.
    pub(super) more_messages: bool,
    /// Whether a message was hinted at, or it is time to look for one.
    pub(super) news: bool,
    /// Whether something was handed in that the store has not answered.
    pub(super) unanswered: bool,
}

/// All open waits together.
#[derive(Debug, Clone, Copy)]
pub(super) struct WaitsSnapshot {
    /// Whether a message could end one of them.
    pub(super) listens: bool,
    /// When the first of them ends by time.
    pub(super) due: Option<Timestamp>,
    /// Whether it is yet to be recorded when one of them ends.
    pub(super) end_deferred: bool,
}

/// Whether what is recorded fits what the handler asks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Fit {
    /// It does, as far as the handler has come.
    Fits,
    /// A record cannot be used: the job is set aside, whatever else there is.
    Unusable,
    /// Operations were undecided, and what they missed has been asked for meanwhile.
    Fitting,
    /// An operation is undecided, and an operator has decided about it.
    Decided,
    /// An operation is undecided.
    Undecided,
    /// A test stops the handler where its records end.
    Stopped,
}

/// What the session or its activation does next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum NextAction {
    /// The job is set aside: a record cannot be used.
    Halt,
    /// The job is set aside: its records do not fit its code.
    HoldForDrift,
    /// The job is suspended: it waits for durable operations alone.
    Suspend,
    /// Undecided operations that fit by now continue.
    PassFitting,
    /// An undecided operation continues, with a warning.
    PassUnseen,
    /// An undecided operation continues as an operator has decided.
    ApplyDecision,
    /// Operations that were dropped in an earlier run continue: there is nothing else to wait for.
    ReviveDropped,
    /// There may be more messages than the handler knows of.
    Fetch,
    /// The store has to take deferred writes, or answer earlier ones, before anything else.
    Flush,
    /// The handler keeps its slot.
    Stay(Stay),
}

/// How a handler keeps its slot.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Stay {
    /// When to look again, if it has durable waits.
    pub(crate) look: Option<Duration>,
    /// Whether nothing is due then.
    pub(crate) idle: bool,
    /// Whether it is a workflow that keeps its slot for something that is neither durable nor in a body.
    pub(crate) foreign: bool,
}

impl Snapshot {
    fn is_foreign(&self) -> bool {
        self.wakers > 0
    }

    fn is_busy(&self) -> bool {
        self.busy > 0
    }

    /// Whether something else than a durable wait can wake the handler.
    fn can_wake(&self) -> bool {
        self.is_foreign() || self.is_busy()
    }
}

/// What to do with a handler that is pending and was not woken.
pub(super) fn next_action(at: &Snapshot) -> NextAction {
    if at.lease_lost {
        return NextAction::Stay(Stay { look: None, idle: false, foreign: false });
    }
    match at.fit {
        Fit::Fits => {}
        Fit::Unusable => return NextAction::Halt,
        Fit::Fitting => return NextAction::PassFitting,
        // What runs may yet ask for what is recorded.
        Fit::Decided | Fit::Undecided if at.is_busy() => {
            return NextAction::Stay(Stay { look: None, idle: false, foreign: false });
        }
        Fit::Decided | Fit::Undecided if at.is_foreign() => return NextAction::PassUnseen,
        Fit::Decided => return NextAction::ApplyDecision,
        Fit::Stopped if at.is_busy() => {}
        // What an operator has said of it may be among the messages that were not read yet.
        Fit::Undecided | Fit::Stopped if at.more_messages => return NextAction::Fetch,
        Fit::Undecided | Fit::Stopped => return NextAction::HoldForDrift,
    }
    match at.waits {
        None => without_waits(at),
        Some(waits) => with_waits(at, waits),
    }
}

fn without_waits(at: &Snapshot) -> NextAction {
    if at.shelved > 0 && !at.can_wake() {
        return NextAction::ReviveDropped;
    }
    // Before its first record a job is no workflow: nobody expects it to give up its slot.
    let foreign = at.is_foreign() && !at.is_busy() && at.records > 0;
    NextAction::Stay(Stay { look: None, idle: false, foreign })
}

fn with_waits(at: &Snapshot, waits: WaitsSnapshot) -> NextAction {
    if waits.listens && (at.more_messages || at.news) {
        return NextAction::Fetch;
    }
    if !at.can_wake() {
        // Handed in by an operation that was dropped: it must not come after the suspension.
        return if at.unanswered { NextAction::Flush } else { NextAction::Suspend };
    }
    // The waits continue in memory; after a crash they must end when they would have ended now.
    if waits.end_deferred {
        return NextAction::Flush;
    }
    let due = waits.due.map(|due| due.since(at.now));
    let look = due.into_iter().chain(waits.listens.then_some(LOOK)).min().unwrap_or(LOOK);
    let idle = due.is_none_or(|due| look < due);
    NextAction::Stay(Stay { look: Some(look), idle, foreign: at.is_foreign() && !at.is_busy() })
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: Timestamp = Timestamp::from_micros(1_000_000_000);

    /// A workflow that is pending, with nothing open and nothing under way.
    const PENDING: Snapshot = Snapshot {
        now: NOW,
        fit: Fit::Fits,
        lease_lost: false,
        wakers: 0,
        busy: 0,
        shelved: 0,
        records: 1,
        waits: None,
        more_messages: false,
        news: false,
        unanswered: false,
    };

    const TIMER: WaitsSnapshot =
        WaitsSnapshot { listens: false, due: Some(in_seconds(60)), end_deferred: false };
    const SIGNAL: WaitsSnapshot = WaitsSnapshot { listens: true, due: None, end_deferred: false };

    /// It waits for a minute.
    const SLEEPS: Snapshot = Snapshot { waits: Some(TIMER), ..PENDING };
    /// It waits for a signal.
    const LISTENS: Snapshot = Snapshot { waits: Some(SIGNAL), ..PENDING };
    /// An operation may not fit what is recorded.
    const DRIFTS: Snapshot = Snapshot { fit: Fit::Undecided, ..PENDING };

    const fn in_seconds(seconds: i64) -> Timestamp {
        Timestamp::from_micros(NOW.as_micros() + seconds * 1_000_000)
    }

    /// It keeps its slot, and there is nothing to look for.
    const STAY: NextAction = NextAction::Stay(Stay { look: None, idle: false, foreign: false });
    /// The same, and somebody should know of it.
    const STAY_FOREIGN: NextAction = NextAction::Stay(Stay { look: None, idle: false, foreign: true });

    /// It keeps its slot, and looks again after some seconds.
    const fn look(seconds: u64, idle: bool, foreign: bool) -> NextAction {
        NextAction::Stay(Stay { look: Some(Duration::from_secs(seconds)), idle, foreign })
    }

    fn check(rows: &[(&str, Snapshot, NextAction)]) {
        for (what, at, expected) in rows {
            assert_eq!(next_action(at), *expected, "{what}");
        }
    }

    #[test]
    fn a_handler_is_suspended_only_if_durable_waits_alone_can_wake_it() {
        use NextAction::{Fetch, Flush, Suspend};
        let deferred = |waits| Some(WaitsSnapshot { end_deferred: true, ..waits });
        check(&[
            ("it waits for a time", SLEEPS, Suspend),
            ("it waits for a signal", LISTENS, Suspend),
            (
                "its end of the wait goes with the suspension",
                Snapshot { waits: deferred(TIMER), ..SLEEPS },
                Suspend,
            ),
            ("its wait is the first thing that is recorded", Snapshot { records: 0, ..SLEEPS }, Suspend),
            ("it awaits a dropped operation as well", Snapshot { shelved: 1, ..SLEEPS }, Suspend),
            ("a time needs no message", Snapshot { more_messages: true, news: true, ..SLEEPS }, Suspend),
            ("its message may be in the store", Snapshot { more_messages: true, ..LISTENS }, Fetch),
            ("its message was hinted at", Snapshot { news: true, ..LISTENS }, Fetch),
            ("a recording is on its way", Snapshot { unanswered: true, ..SLEEPS }, Flush),
            ("a message comes before that", Snapshot { unanswered: true, news: true, ..LISTENS }, Fetch),
        ]);
    }

    #[test]
    fn a_handler_that_something_else_can_wake_keeps_its_slot() {
        use NextAction::{Fetch, Flush, ReviveDropped};
        let soon = |waits| Some(WaitsSnapshot { due: Some(NOW), ..waits });
        let deferred = |waits| Some(WaitsSnapshot { end_deferred: true, ..waits });
        let timed = Some(WaitsSnapshot { due: Some(in_seconds(60)), ..SIGNAL });
        check(&[
            ("nothing is known of what it awaits", PENDING, STAY),
            ("a body runs", Snapshot { busy: 1, wakers: 1, ..PENDING }, STAY),
            ("it awaits something foreign", Snapshot { wakers: 1, ..PENDING }, STAY_FOREIGN),
            ("it is no workflow yet", Snapshot { wakers: 1, records: 0, ..PENDING }, STAY),
            ("a body runs beside a sleep", Snapshot { busy: 1, ..SLEEPS }, look(60, false, false)),
            ("something foreign beside a sleep", Snapshot { wakers: 1, ..SLEEPS }, look(60, false, true)),
            ("an operation has lost the lease", Snapshot { lease_lost: true, ..SLEEPS }, STAY),
            ("its time has come", Snapshot { busy: 1, waits: soon(TIMER), ..PENDING }, look(0, false, false)),
            ("a body runs beside a signal", Snapshot { busy: 1, ..LISTENS }, look(1, true, false)),
            ("a signal with a time", Snapshot { busy: 1, waits: timed, ..PENDING }, look(1, true, false)),
            ("its message was hinted at", Snapshot { busy: 1, news: true, ..LISTENS }, Fetch),
            (
                "the end of its wait is deferred",
                Snapshot { busy: 1, waits: deferred(TIMER), ..SLEEPS },
                Flush,
            ),
            (
                "answers come while it runs",
                Snapshot { busy: 1, unanswered: true, ..SLEEPS },
                look(60, false, false),
            ),
            ("only dropped operations are left", Snapshot { shelved: 1, ..PENDING }, ReviveDropped),
            ("a body runs beside them", Snapshot { shelved: 1, busy: 1, ..PENDING }, STAY),
            ("something foreign beside them", Snapshot { shelved: 1, wakers: 1, ..PENDING }, STAY_FOREIGN),
        ]);
    }

    #[test]
    fn a_handler_that_does_not_fit_its_records_is_held_when_nothing_else_is_left() {
        use NextAction::{ApplyDecision, Fetch, Halt, HoldForDrift, PassFitting, PassUnseen, Suspend};
        let fit = |fit, at| Snapshot { fit, ..at };
        check(&[
            ("a record cannot be used", fit(Fit::Unusable, PENDING), Halt),
            ("whatever else runs", fit(Fit::Unusable, Snapshot { busy: 1, wakers: 2, ..SLEEPS }), Halt),
            ("what it missed was asked for", fit(Fit::Fitting, Snapshot { busy: 1, ..PENDING }), PassFitting),
            ("an operation does not fit", DRIFTS, HoldForDrift),
            ("a wait is open as well", fit(Fit::Undecided, SLEEPS), HoldForDrift),
            ("a body may ask for what is recorded", Snapshot { busy: 1, ..DRIFTS }, STAY),
            ("a body runs beside something foreign", Snapshot { busy: 1, wakers: 2, ..DRIFTS }, STAY),
            ("something foreign may wake it", Snapshot { wakers: 1, ..DRIFTS }, PassUnseen),
            ("a decision may be in the store", Snapshot { more_messages: true, ..DRIFTS }, Fetch),
            ("an operator has decided", fit(Fit::Decided, PENDING), ApplyDecision),
            (
                "with more in the store",
                fit(Fit::Decided, Snapshot { more_messages: true, ..PENDING }),
                ApplyDecision,
            ),
            ("a body runs beside a decision", fit(Fit::Decided, Snapshot { busy: 1, ..PENDING }), STAY),
            ("everything recorded was asked for", fit(Fit::Stopped, PENDING), HoldForDrift),
            ("a body may ask for more", fit(Fit::Stopped, Snapshot { busy: 1, ..PENDING }), STAY),
            ("a decision about it", fit(Fit::Stopped, Snapshot { more_messages: true, ..PENDING }), Fetch),
            ("it fits", fit(Fit::Fits, SLEEPS), Suspend),
        ]);
    }
}
