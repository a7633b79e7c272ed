//! What must hold in every state of the store, and what nobody may do in it.
//!
//! Besides looking, a state is *probed*: everybody who is not the holder of a claim tries to end it, with every number
//! and in every way, and to report progress on it; everybody who may not judge others tries to rescue. Nothing of that may
//! change anything, so one copy of the store takes all of it. This covers writes that no node of the search would
//! send.

use std::time::Duration;

use mainspring_core::id::ClaimBatchNo;
use mainspring_core::job::{Progress, Record, State, Status};
use mainspring_core::store::{Finish, Finished, Node, Nodes, Operators, Rescue};
use mainspring_core::time::Timestamp;
use mainspring_core::{Error, bounds};

use crate::harness::{LEASE, MICRO, just_before};

use super::call::{CallPath, End, now};
use super::rules::{BrokenRule, recorded, render};
use super::store_state::{StoreState, answered};
use super::view::{PAIR, SEATS};

/// Checks one state.
pub(super) fn state(store_state: &StoreState, wire: &dyn CallPath) -> Result<(), BrokenRule> {
    look(store_state)?;
    let probed = store_state.fork();
    let before = everything(store_state)?;
    for seat in (0..=SEATS).filter(|seat| *seat == SEATS || store_state.is_taken(*seat)) {
        let who = match seat {
            0 | 1 => "a present member",
            SEATS => "nobody",
            _ => "a former member",
        };
        let untouched = |rule, by: &str| expect_untouched(&probed, &before, rule, &format!("{who} {by}"));
        let accepted = write_as_others(&probed, seat, wire)?;
        untouched("only the holder of a claim writes", "wrote to claims that it does not hold")?;
        if let Some(broken) = accepted {
            return Err(broken);
        }
        give_back_as_the_dead(&probed, seat)?;
        untouched("the dead give nothing back", "gave back what it does not hold")?;
        let judged = rescue_without_right(&probed, seat, wire);
        untouched("only a live, steady rescuer takes claims", "rescued without right")?;
        if let Some(broken) = judged {
            return Err(broken);
        }
    }
    Ok(())
}

fn look(store_state: &StoreState) -> Result<(), BrokenRule> {
    let findings = answered(now(store_state.store().check()))?;
    if let Some(finding) = findings.first() {
        return Err(BrokenRule::of("the store's own check finds nothing", None, finding.what.clone()));
    }
    let counts = answered(now(store_state.store().counts()))?;
    let sight = &store_state.sight;
    let (mut running, mut counted) = (0, 0);
    for (number, job) in sight.jobs.iter().enumerate() {
        let expect = |holds: bool, rule: &'static str| {
            if holds { Ok(()) } else { Err(BrokenRule::of(rule, Some(number), render(job))) }
        };
        running += u8::from(job.is(State::Running));
        counted += counts.total(job.status.state);
        expect(job.is(State::Running) == job.holder.is_some(), "who runs has a holder, and nobody else")?;
        let holder = job.holder.map(|seat| sight.seats.get(seat).is_some_and(|seat| seat.live));
        expect(holder != Some(false), "a holder is a living member")?;
        expect(!job.cancelling || job.is(State::Running), "a flag is on a claim")?;
        expect(u32::from(job.failures) == job.errors.count_ones(), "every failure has its error")?;
        let many = u16::from(job.crashes) >= bounds::QUARANTINE_CRASHES;
        expect(job.has_ended() || many == job.is_quarantined(), "the third crash quarantines")?;
        expect(!job.is(State::Suspended) || job.is_quarantined(), "nothing else suspends")?;
        expect(job.claim > 0 || job.crashes == 0 && job.failures == 0, "what never ran has no past")?;
    }
    let held: u8 = sight.seats.iter().map(|seat| seat.claims).sum();
    if held != running {
        return Err(BrokenRule::of(
            "a claim has one holder",
            None,
            format!("{held} claims, {running} running"),
        ));
    }
    // Each job sees itself once, or both when they are in one state.
    let both = sight.jobs[0].status.state == sight.jobs[1].status.state;
    if counted != if both { 4 } else { 2 } {
        return Err(BrokenRule::of("a job is in exactly one place", None, format!("{counts:?}")));
    }
    Ok(())
}

/// All that the store tells.
type Everything = ([Record; PAIR], Vec<Node>);

fn everything(store_state: &StoreState) -> Result<Everything, BrokenRule> {
    Ok(([store_state.record(0)?, store_state.record(1)?], answered(now(store_state.store().nodes()))?))
}

fn expect_untouched(
    store_state: &StoreState,
    before: &Everything,
    rule: &'static str,
    by: &str,
) -> Result<(), BrokenRule> {
    let after = everything(store_state)?;
    let job = (0..PAIR).find(|job| after.0[*job] != before.0[*job]);
    let status = |record: &Record| record.summary.status;
    match job {
        _ if after == *before => Ok(()),
        Some(job) => {
            let (was, is): (Status, Status) = (status(&before.0[job]), status(&after.0[job]));
            Err(BrokenRule::of(rule, Some(job), format!("{was}, then {is} after {by}")))
        }
        None => Err(BrokenRule::of(rule, None, format!("a node changed after {by}"))),
    }
}

/// Ends every claim that is not this seat's, in every way. Tells what was accepted of that.
fn write_as_others(
    store_state: &StoreState,
    seat: usize,
    wire: &dyn CallPath,
) -> Result<Option<BrokenRule>, BrokenRule> {
    let (mut finishes, mut expected, mut progress) = (Vec::new(), Vec::new(), Vec::new());
    for (number, job) in store_state.sight.jobs.iter().enumerate() {
        // One more than there is: a number from the future is nobody's either.
        for claim in (1..=job.claim + 1).filter(|claim| !job.held_by(seat, *claim)) {
            let said = Progress { done: 1, total: 2, note: "not mine".into() };
            progress.push((store_state.claim(number, claim), said));
            for end in End::ALL {
                finishes.push(Finish { claim: store_state.claim(number, claim), outcome: end.outcome() });
                expected.push((number, claim, end));
            }
        }
    }
    let node = store_state.node(seat);
    let answers = answered(wire.finish(store_state.store(), node, finishes))?;
    answered(now(store_state.store().progress(node, progress)))?;
    let wrong = answers.into_iter().zip(expected).find(|(answer, (job, claim, end))| {
        (*answer == Finished::Applied) != recorded(&store_state.sight.jobs[*job], *claim, *end)
    });
    Ok(wrong.map(|(answer, (job, claim, end))| {
        let told = if answer == Finished::Applied { "accepted" } else { "refused" };
        let what =
            format!("`{end}` under claim {claim} was {told}; it is {}", render(&store_state.sight.jobs[job]));
        BrokenRule::of("an outcome is accepted once", Some(job), what)
    }))
}

/// Disowns and retires as somebody who is not there any more.
fn give_back_as_the_dead(store_state: &StoreState, seat: usize) -> Result<(), BrokenRule> {
    if store_state.sight.seats.get(seat).is_some_and(|seat| seat.live) {
        return Ok(());
    }
    answered(now(store_state.store().disown(store_state.node(seat), ClaimBatchNo(u64::MAX), Vec::new())))?;
    answered(now(store_state.store().retire(store_state.node(seat)))).map(drop)
}

/// Rescues as somebody who is not steady, was not answered for long, or is not there. Tells whether others were judged.
fn rescue_without_right(store_state: &StoreState, seat: usize, wire: &dyn CallPath) -> Option<BrokenRule> {
    let live = store_state.sight.seats.get(seat).is_some_and(|seat| seat.live);
    let now = store_state.now();
    let long_ago = now.before(LEASE / 2).before(MICRO);
    let mut claimed = vec![(just_before(LEASE), now), (bounds::LEASE_MAX, long_ago)];
    if !live {
        claimed.push((bounds::LEASE_MAX, Timestamp::MAX));
    }
    let fits = |(steady, seen): &(Duration, Timestamp)| match wire
        .rescue(store_state.store(), Rescue { by: store_state.node(seat), steady: *steady, seen: *seen })
    {
        Ok(rescued) => live && rescued.expired.is_empty(),
        Err(Error::LeaseLost) => !live,
        Err(_) => false,
    };
    let (steady, seen) = claimed.into_iter().find(|one| !fits(one))?;
    let what =
        format!("a rescuer that was steady for {steady:?} and answered {:?} ago does", now.since(seen));
    Some(BrokenRule::of("only a live, steady rescuer judges others", None, what))
}
