//! What must hold: of every call, of its repeat, and of every state of the store.
//!
//! The rules say who may change what, not how: they are written from the promises and the words of the
//! [`Store`](mainspring_core::store::Store) trait, and compare what could be seen before a call with what can be seen
//! after it. [`step`] is inductive where a promise spans many calls: a flag that was acknowledged stays until the job
//! ends, an end stays for ever, numbers only grow.

use mainspring_core::job::{Reason, State, Status};

use super::call::{Answer, Call, End};
use super::view::{Job, LEASE_TICKS, PAIR, SEATS, StoreView, Swap, job_after};

pub(super) use super::probe::state;

/// A rule that does not hold.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct BrokenRule {
    /// The rule.
    pub(super) rule: &'static str,
    /// The job that it is about.
    pub(super) job: Option<usize>,
    /// What was seen instead.
    pub(super) what: String,
}

impl BrokenRule {
    pub(super) fn of(rule: &'static str, job: Option<usize>, what: impl Into<String>) -> Self {
        BrokenRule { rule, job, what: what.into() }
    }

    /// The same, in the names from before a swap.
    pub(super) fn before(self, swap: Swap) -> Self {
        BrokenRule { job: self.job.map(|job| job_after(swap, job)), ..self }
    }
}

const CANCELLED: Status = Status::because(State::Cancelled, Reason::Operator);

/// What one call may have done.
pub(super) fn step(
    call: Call,
    before: &StoreView,
    after: &StoreView,
    answer: Answer,
) -> Result<(), BrokenRule> {
    for job in 0..PAIR {
        let (was, is) = (&before.jobs[job], &after.jobs[job]);
        let expect = |holds: bool, rule: &'static str| {
            if holds {
                Ok(())
            } else {
                Err(BrokenRule::of(rule, Some(job), format!("{}, then {}", render(was), render(is))))
            }
        };
        let touched = !same(call, was, is);
        expect(is.claim >= was.claim, "claim numbers only grow")?;
        expect(!(was.has_ended() && touched), "a job ends once")?;
        expect(!touched || may_touch(call, job, before), forbidden(call))?;
        let flag_kept = is.has_ended() || is.cancelling && is.claim == was.claim;
        expect(!was.cancelling || flag_kept, "an acknowledged cancellation is never lost")?;
        let crashed = is.crashes > was.crashes;
        let rescued = matches!(call, Call::Rescue { .. }) && touched;
        expect(crashed == (rescued && !was.cancelling), "crashes count the claims that rescue took")?;
        expect(!crashed || is.crashes == was.crashes + 1, "a lost claim is one crash")?;
        expect(is.claim == was.claim || is.claim == was.claim + 1, "a claim is one number higher")?;
        one(call, job, before, after, answer)
            .map_err(|(rule, what)| BrokenRule::of(rule, Some(job), what))?;
    }
    seats(call, before, after, answer)
}

/// The same, whatever batch the claim is of. Who vacates a seat takes his claims along.
fn same(call: Call, was: &Job, is: &Job) -> bool {
    let moved = matches!(call, Call::Vacate { .. }) && was.holder.is_some() && is.holder.is_some();
    let holder = if moved { is.holder } else { was.holder };
    Job { unsettled: is.unsettled, holder, ..*was } == *is
}

/// Who may change a job by this call.
fn may_touch(call: Call, job: usize, before: &StoreView) -> bool {
    let it = &before.jobs[job];
    match call {
        Call::Finish { seat, job: of, claim, .. } => of == job && it.held_by(seat, claim),
        Call::Disown { seat, keep } => it.holder == Some(seat) && keep[job] != it.claim,
        Call::Retire { seat } => it.holder == Some(seat),
        Call::Rescue { seat, steady } => {
            let lapsed = it.holder.filter(|holder| *holder < SEATS && *holder != seat);
            let lapsed = lapsed.is_some_and(|holder| before.seats[holder].left == 0);
            lapsed && steady && before.seats[seat].live
        }
        Call::Claim { seat, set, .. } => {
            before.seats[seat].live && set & 1 << job != 0 && it.is(State::Ready) && !repeats(before, seat)
        }
        Call::Cancel { job: of } => of == job,
        Call::Promote => it.is(State::Scheduled),
        Call::Register { .. } | Call::Renew { .. } | Call::Vacate { .. } | Call::Tick => false,
    }
}

/// Whether a claim of this node would be a repeat: it holds claims under the number that it asks with.
fn repeats(before: &StoreView, seat: usize) -> bool {
    before.jobs.iter().any(|job| job.holder == Some(seat) && job.unsettled)
}

fn forbidden(call: Call) -> &'static str {
    match call {
        Call::Finish { .. } => "only the holder of a claim writes",
        Call::Rescue { .. } => "only a live, steady rescuer takes claims, and only from a lapsed lease",
        Call::Claim { .. } => "only a live node claims, and only what is ready",
        Call::Disown { .. } => "a node disowns its own claims, and none that it knows",
        _ => "a call changes only what it is about",
    }
}

/// What a call did to a job that it may touch.
fn one(
    call: Call,
    job: usize,
    before: &StoreView,
    after: &StoreView,
    answer: Answer,
) -> Result<(), (&'static str, String)> {
    let (was, is) = (&before.jobs[job], &after.jobs[job]);
    let expect = |holds: bool, rule: &'static str| {
        if holds { Ok(()) } else { Err((rule, format!("{}, then {}; {answer}", render(was), render(is)))) }
    };
    let mine = may_touch(call, job, before);
    match call {
        Call::Finish { seat, job: of, claim, end } if of == job => {
            if was.held_by(seat, claim) {
                expect(!answer.lost, "the holder's outcome is accepted")?;
                expect(is.status == ended(was, end), "an outcome is stored as it is")?;
                let failed = matches!(end, End::Retry | End::Fail);
                expect(is.failures == was.failures + u16::from(failed), "failures count failures")
            } else {
                expect(answer.lost || recorded(was, claim, end), "an outcome is accepted once")
            }
        }
        Call::Disown { .. } | Call::Retire { .. } if mine => {
            expect(is.status == ended(was, End::Release), "what is given back is ready, or cancelled")?;
            expect(is.failures == was.failures, "giving back counts nothing")
        }
        Call::Rescue { .. } if mine => {
            let quarantine = Status::because(State::Suspended, Reason::Quarantine);
            let to = match was.crashes {
                _ if was.cancelling => CANCELLED,
                0 | 1 => Status::plain(State::Ready),
                _ => quarantine,
            };
            expect(is.status == to, "rescue gives back, and quarantines at the third crash")
        }
        Call::Claim { seat, .. } => {
            let told = answer.claims[job];
            let new = is.claim > was.claim;
            expect(new == mine, "a claim takes what is ready")?;
            expect(!new || is.holder == Some(seat) && told == is.claim, "a claim is the node's that asked")?;
            let repeated = was.holder == Some(seat) && was.unsettled && before.seats[seat].live;
            expect(new || told == if repeated { was.claim } else { 0 }, "a repeated claim tells what it took")
        }
        Call::Cancel { job: of } if of == job => {
            let taken = if was.is(State::Running) { is.cancelling } else { is.status == CANCELLED };
            expect(answer.lost == was.has_ended(), "a job that has not ended can be cancelled")?;
            expect(answer.lost || taken, "an acknowledged cancellation is never lost")
        }
        Call::Renew { seat } if before.seats[seat].live => {
            let flagged = was.holder == Some(seat) && was.cancelling;
            expect(
                answer.claims[job] == if flagged { was.claim } else { 0 },
                "a renewal tells what to cancel",
            )
        }
        _ => Ok(()),
    }
}

/// What a running job becomes when its claim ends so.
fn ended(was: &Job, end: End) -> Status {
    match end.status() {
        Some(status) => status,
        None if was.cancelling => CANCELLED,
        None if end == End::Retry => Status::plain(State::Scheduled),
        None => Status::plain(State::Ready),
    }
}

/// Whether this very outcome is on record under this claim.
pub(super) fn recorded(job: &Job, claim: u8, end: End) -> bool {
    match end {
        End::Retry => job.errors & 1 << (claim - 1) != 0,
        End::Release => false,
        End::Succeed | End::Fail | End::Cancel => job.claim == claim && end.status() == Some(job.status),
    }
}

/// What a call did to those who sit.
fn seats(call: Call, before: &StoreView, after: &StoreView, answer: Answer) -> Result<(), BrokenRule> {
    let expect = |holds: bool, rule: &'static str| {
        let seen = || format!("{:?}, then {:?}; {answer}", before.seats, after.seats);
        if holds { Ok(()) } else { Err(BrokenRule::of(rule, None, seen())) }
    };
    if let Call::Vacate { .. } = call {
        return Ok(());
    }
    for (seat, (was, is)) in before.seats.iter().zip(&after.seats).enumerate() {
        let rescued = matches!(call, Call::Rescue { steady: true, seat: by } if by != seat && was.left == 0);
        let leaves = matches!(call, Call::Retire { seat: of } if of == seat) || rescued;
        expect(!was.live || is.live || leaves, "a node dies of a rescue after its lease, or goes by itself")?;
        let joins = matches!(call, Call::Register { seat: of } if of == seat);
        expect(was.live || !is.live || joins, "the dead stay dead")?;
    }
    match call {
        Call::Renew { seat } | Call::Claim { seat, .. } => {
            let live = before.seats[seat].live;
            expect(answer.lost != live, "the living are answered, and nobody else")?;
            let held = after.seats[seat].claims > 0 || matches!(call, Call::Renew { .. });
            expect(
                !live || !held || after.seats[seat].left == LEASE_TICKS,
                "who is answered has a full lease",
            )
        }
        Call::Rescue { seat, .. } => expect(answer.lost != before.seats[seat].live, "only the living rescue"),
        Call::Register { seat } => expect(after.seats[seat].live, "who joins lives"),
        Call::Retire { seat } => expect(!after.seats[seat].live, "who retires is gone"),
        _ => Ok(()),
    }
}

/// What the repeat of a call may do: nothing more, and say the same.
pub(super) fn repeat(
    call: Call,
    first: &StoreView,
    second: &StoreView,
    told: Answer,
    again: Answer,
) -> Result<(), BrokenRule> {
    const RULE: &str = "a repeated call changes nothing more";
    if first != second {
        let job = (0..PAIR).find(|job| first.jobs[*job] != second.jobs[*job]);
        return Err(BrokenRule::of(RULE, job, format!("{first:?}, then {second:?}")));
    }
    let same = match call {
        Call::Claim { .. } | Call::Renew { .. } => told == again,
        // A release leaves nothing to know it by.
        Call::Finish { end, .. } => told == again || end == End::Release,
        _ => true,
    };
    if same { Ok(()) } else { Err(BrokenRule::of(RULE, None, format!("{told}, then {again}"))) }
}

/// A job in words.
pub(super) fn render(job: &Job) -> String {
    let holder = match job.holder {
        Some(seat) if seat < PAIR => ", held".to_owned(),
        Some(_) => ", held by a former member".to_owned(),
        None => String::new(),
    };
    let flag = if job.cancelling { ", to be cancelled" } else { "" };
    let Job { status, claim, failures, crashes, .. } = job;
    format!("{status} under claim {claim} with {failures} failures and {crashes} crashes{holder}{flag}")
}
