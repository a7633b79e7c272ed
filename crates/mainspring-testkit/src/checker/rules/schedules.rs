//! Schedules: every fire happens once, none is early, and missed ones follow their policy.
//!
//! Which times a rule names is told by the pure function of the core, which an oracle of its own holds to account. What is to
//! become of them is said here once more.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use mainspring_core::bounds;
use mainspring_core::id::JobId;
use mainspring_core::schedule::{Missed, Overlap, Rule, Schedule};
use mainspring_core::time::Timestamp;

use super::BrokenRule;
use crate::checker::evidence::{EventIndex, Evidence, JobFacts};
use crate::checker::schedule::Turn;

/// How late a schedule may be when nothing is wrong any more: a node looks every third of its lease.
const LATE: Duration = Duration::from_secs(10);

/// A change is decided on the row as it is: nobody overwrites what he has not seen.
pub(super) fn versions(evidence: &Evidence<'_>, broken: &mut Vec<BrokenRule>) {
    let facts = &evidence.schedules;
    for life in facts.lives().values() {
        for pair in life.windows(2) {
            let version = |at: usize| pair[at].what.row.as_ref().map(|row| row.version);
            if version(0) == version(1) {
                let what = format!("{} has two rows of one version", pair[1].what.name);
                broken.push(BrokenRule::other(what, vec![pair[0].at, pair[1].at]));
            }
        }
    }
    if !evidence.terms.exact {
        return;
    }
    let mut current = BTreeMap::new();
    for change in &facts.changes {
        let there = current.get(&change.what.name).copied().flatten();
        if change.what.expected != there.map(|(version, _)| version) {
            let what = format!("{} was changed as it had been before", change.what.name);
            let events = there.map(|(_, at)| at).into_iter().chain([change.at]).collect();
            broken.push(BrokenRule::other(what, events));
        }
        let row = change.what.row.as_ref().map(|row| (row.version, change.at));
        current.insert(&change.what.name, row);
    }
}

/// No fire has two jobs, none is dealt with again, and what is paused does not fire.
pub(super) fn once(evidence: &Evidence<'_>, broken: &mut Vec<BrokenRule>) {
    let turns = evidence.schedules.turns();
    let reset: BTreeSet<_> =
        turns.iter().filter(|turn| turn.is_reset()).map(|turn| turn.after.state.generation).collect();
    for turn in &turns {
        let events = || vec![turn.since, turn.change.at];
        let (before, after) = (&turn.before.state, &turn.after.state);
        let name = &turn.after.name;
        if turn.is_reset() && !may_reset(evidence, turn) {
            broken.push(BrokenRule::other(format!("{name}: its last fire went back"), events()));
        }
        // What was due while it was paused, or by another rule, does not happen.
        let anew = matches!(turn.change.what.verb.as_deref(), Some("resume" | "set"));
        let told = evidence.schedules.told(turn.change.by, Some(turn.since), turn.change.at).min();
        if anew
            && evidence.terms.exact
            && told.is_some_and(|now| after.last_fire < now.before(shift(turn.after)))
        {
            broken.push(BrokenRule::other(format!("{name} is to fire for the time before that"), events()));
        }
        if !turn.is_by_rule() {
            continue;
        }
        let jobs = &turn.change.what.jobs;
        let mut last = before.last_fire;
        for job in jobs {
            if job.fire <= last || job.fire > after.last_fire {
                let what = format!("{name}: its fire of {} was dealt with already, or is not yet", job.fire);
                broken.push(BrokenRule::job(job.id, what, events()));
            }
            last = job.fire;
            if !job.created && !reset.contains(&after.generation) {
                let what = format!("{name}: the job of its fire of {} was there already", job.fire);
                broken.push(BrokenRule::job(job.id, what, events()));
            }
        }
        if before.paused.is_some() && (!jobs.is_empty() || after.last_fire != before.last_fire) {
            broken.push(BrokenRule::other(format!("{name} fired while it was paused"), events()));
        }
        if after.fired != before.fired + jobs.len() as u64 {
            let what =
                format!("{name} counts {} jobs after {} and {} more", after.fired, before.fired, jobs.len());
            broken.push(BrokenRule::other(what, events()));
        }
    }
}

/// Whether the clock had been wrong by so much that the last fire was set back, and then to the present.
fn may_reset(evidence: &Evidence<'_>, turn: &Turn<'_>) -> bool {
    let shift = shift(turn.before);
    let mut told = evidence.schedules.told(turn.change.by, None, turn.change.at);
    told.any(|now| {
        let present = now.before(shift);
        turn.before.state.last_fire > present.after(bounds::CLOCK_AHEAD)
            && turn.after.state.last_fire == present
    })
}

/// By how much a schedule fires later than its nominal times.
fn shift(schedule: &Schedule) -> Duration {
    schedule.definition.rule.shift(schedule.name.as_str())
}

/// No job is enqueued before its fire is due, by the clock of the store.
pub(super) fn early(evidence: &Evidence<'_>, broken: &mut Vec<BrokenRule>) {
    for change in evidence.schedules.changes.iter().filter(|change| change.what.verb.is_none()) {
        let Some(row) = &change.what.row else { continue };
        let Some(now) = evidence.schedules.told(change.by, None, change.at).max() else { continue };
        for job in change.what.jobs.iter().filter(|job| job.fire.after(shift(row)) > now) {
            let what = format!("{}: its fire of {} came at {now}", row.name, job.fire);
            broken.push(BrokenRule::job(job.id, what, vec![change.at]));
        }
    }
}

/// Of what is due each fire has its job, and of what was missed those that the policy names.
pub(super) fn policy(evidence: &Evidence<'_>, broken: &mut Vec<BrokenRule>) {
    for turn in evidence.schedules.turns() {
        let (before, after) = (&turn.before.state, &turn.after.state);
        let paused = before.paused.is_some() || after.paused.is_some();
        // A note, a delay after an error, a pause: the fires are still to be dealt with.
        if !turn.is_by_rule() || turn.is_reset() || paused || before.last_fire == after.last_fire {
            continue;
        }
        let since = evidence.terms.exact.then_some(turn.since);
        let told: Vec<_> = evidence.schedules.told(turn.change.by, since, turn.change.at).collect();
        let made: Vec<_> = turn.change.what.jobs.iter().map(|job| job.fire).collect();
        let skips = turn.before.definition.overlap == Overlap::Skip && made.is_empty();
        let fits = |now: &Timestamp| {
            let (last, wanted) = fires(turn.before, now.before(shift(turn.before)));
            last == Some(after.last_fire) && (wanted == made || skips)
        };
        if !told.iter().rev().any(fits) {
            let what = format!(
                "{}, {}: after {} it dealt with all up to {} and made jobs for [{}]",
                turn.before.name,
                turn.before.definition.missed,
                before.last_fire,
                after.last_fire,
                made.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ")
            );
            broken.push(BrokenRule::other(what, vec![turn.since, turn.change.at]));
        }
    }
}

/// The last fire that is due, and those that enqueue a job.
fn fires(schedule: &Schedule, present: Timestamp) -> (Option<Timestamp>, Vec<Timestamp>) {
    let (rule, last) = (&schedule.definition.rule, schedule.state.last_fire);
    let most = match schedule.definition.missed {
        Missed::Skip | Missed::Once => 1,
        Missed::All(most) => usize::from(most),
    };
    let mut due = last_fires(rule, last, present, most);
    let latest = due.last().copied();
    if schedule.definition.missed == Missed::Skip {
        due.retain(|fire| present.since(*fire) <= schedule.definition.grace.0);
    }
    let left = rule.count.map_or(u64::MAX, |count| count.saturating_sub(schedule.state.fired));
    due.truncate(usize::try_from(left).unwrap_or(usize::MAX));
    (latest, due)
}

/// The last fires between two times, by walking through all of a window that grows until it has enough of them.
fn last_fires(rule: &Rule, after: Timestamp, until: Timestamp, most: usize) -> Vec<Timestamp> {
    let mut window = Duration::from_mins(10);
    loop {
        let start = until.before(window).max(after);
        let mut found = Vec::new();
        let mut at = start;
        while let Some(fire) = rule.after(at).filter(|fire| *fire <= until) {
            found.push(fire);
            at = fire;
        }
        if found.len() >= most || start == after {
            return found.split_off(found.len().saturating_sub(most));
        }
        window *= 8;
    }
}

/// A schedule that does not overlap skips a fire only beside a job that has not ended, and fires beside none.
pub(super) fn overlap(evidence: &Evidence<'_>, broken: &mut Vec<BrokenRule>) {
    for turn in evidence.schedules.turns() {
        let (before, after) = (&turn.before.state, &turn.after.state);
        let overlap = turn.before.definition.overlap;
        let held = before.paused.is_some() || after.paused.is_some() || before.last_fire == after.last_fire;
        let Some(job) = before.last_job.filter(|_| overlap != Overlap::Allow && !held) else { continue };
        let Some(facts) = evidence.job_facts.get(&job).filter(|_| turn.is_by_rule()) else { continue };
        let (made, name) = (!turn.change.what.jobs.is_empty(), &turn.after.name);
        // Elsewhere, whoever was stopped may note late what he was given long before.
        if made && evidence.terms.exact && runs_on(facts, turn.change.at) {
            let what = format!("{name} fired, and its job before went on");
            broken.push(BrokenRule::job(job, what, vec![turn.change.at]));
        }
        let ended = facts.ends().first().is_some_and(|end| end.at < turn.since);
        let skipped = overlap == Overlap::Skip && !made && turn.before.definition.missed != Missed::Skip;
        if skipped && evidence.terms.exact && ended && !facts.was_brought_back() {
            let what = format!("{name} skipped a fire, and its job before had ended");
            broken.push(BrokenRule::job(job, what, vec![turn.since, turn.change.at]));
        }
    }
}

/// Whether a job was claimed after this, though nobody brought it back.
fn runs_on(facts: &JobFacts<'_>, after: EventIndex) -> bool {
    !facts.was_brought_back()
        && !facts.may_have_returned()
        && facts.first_claims().any(|claim| claim.at > after)
}

/// A node changes nothing but how far a schedule has come, and code does not undo what a person said.
pub(super) fn owners(evidence: &Evidence<'_>, broken: &mut Vec<BrokenRule>) {
    for turn in evidence.schedules.turns() {
        let (before, after) = (&turn.before.state, &turn.after.state);
        let redefined = turn.before.definition != turn.after.definition;
        let paused = after.paused.is_some() && turn.before.definition.pause_on_failure;
        let other_pause = before.paused != after.paused && !(before.paused.is_none() && paused);
        let edited = before.edited_by != after.edited_by;
        let wrong = match turn.change.what.verb.as_deref() {
            None => redefined || other_pause || edited,
            Some("seed") => before.paused != after.paused || redefined && before.edited_by.is_some(),
            Some(_) => false,
        };
        if wrong {
            let what = format!("{} is another one, and no person said so", turn.after.name);
            broken.push(BrokenRule::other(what, vec![turn.since, turn.change.at]));
        }
    }
}

/// A request that is repeated, because its answer was lost, is noted once.
pub(super) fn requests(evidence: &Evidence<'_>, broken: &mut Vec<BrokenRule>) {
    let mut asked: BTreeMap<JobId, EventIndex> = BTreeMap::new();
    for change in evidence.schedules.changes.iter().filter(|change| change.what.verb.is_some()) {
        for job in &change.what.jobs {
            if let Some(first) = asked.insert(job.id, change.at) {
                let what = format!("{}: a repeat was taken for another request", change.what.name);
                broken.push(BrokenRule::job(job.id, what, vec![first, change.at]));
            }
        }
    }
}

/// When nothing is wrong any more, what is due fires.
pub(super) fn liveness(evidence: &Evidence<'_>, broken: &mut Vec<BrokenRule>) {
    for (at, looked) in &evidence.schedules.looked {
        let row = &looked.row;
        let over = row.definition.rule.count.is_some_and(|count| row.state.fired >= count);
        // It waits for the job before it to stop.
        let waits = looked.open && row.definition.overlap == Overlap::Cancel;
        if row.state.paused.is_some() || over || waits {
            continue;
        }
        let present = looked.now.before(shift(row));
        let due = row.definition.rule.after(row.state.last_fire).filter(|fire| fire.after(LATE) < present);
        if let Some(fire) = due {
            broken.push(BrokenRule::other(format!("{} has not fired since {fire}", row.name), vec![*at]));
        }
    }
}
