//! Fires schedules: enqueues the jobs of those that are due.
//!
//! It sleeps until a promotion, which looks at what is due anyhow, finds a schedule among that. Then it reads what is due,
//! decides by [`step`], and hands rows and jobs in. A row that another node has written first is refused, and read again.
//!
//! # Invariants
//! - Nothing here stops a schedule: an error is noted on it, and the fire is tried again.
//! - Without schedules there is no statement.

use std::collections::BTreeMap;
use std::sync::atomic::Ordering;
use std::time::Duration;

use mainspring_core::fault;
use mainspring_core::id::JobId;
use mainspring_core::job::{Status, Verb};
use mainspring_core::journal::JobEnd;
use mainspring_core::planted::{self, Defect};
use mainspring_core::schedule::{Overlap, Schedule, Step, step};
use mainspring_core::seam::Pending;
use mainspring_core::store::{Receipt, ScheduleWrite, Store, Written};
use mainspring_core::time::Timestamp;
use mainspring_core::{Error, Result, bounds};
use tokio::sync::Notify;

use super::Reconciler;
use crate::node::NodeShared;

/// While nobody says that something is due.
const LONG: Duration = Duration::from_hours(24);
/// Before a look at what could not be fired: a job that is asked to stop, a key in an open transaction.
const SOON: Duration = Duration::from_millis(250);

/// Before a look at what is due and came to nothing.
const PATIENT: Duration = Duration::from_secs(1);

/// What came of a look at schedules.
enum Done {
    /// All that is to be done now is done.
    All,
    /// Some of it is to be tried again.
    Some,
    /// There was nothing to do.
    Nothing,
}

#[derive(Default)]
pub(super) struct Fire {
    /// Whether it was woken: the first tick is nobody's call.
    woken: bool,
}

impl Reconciler for Fire {
    const NAME: &'static str = "fire";

    fn tick<'a>(&'a mut self, shared: &'a NodeShared) -> Pending<'a, Result<Duration>> {
        Box::pin(async {
            if !std::mem::replace(&mut self.woken, true) {
                return Ok(LONG);
            }
            let (store, all) = (shared.store(), &shared.hint_router.all_schedules);
            let due = store.due_schedules(bounds::BATCH).await?;
            let done = fire(store, due.schedules, due.now).await?;
            // After what is due, which a row that nobody can read must not hold up.
            if all.swap(false, Ordering::Relaxed)
                && let Err(error) = look_over(store, due.now).await
            {
                if error.is_retryable() {
                    all.store(true, Ordering::Relaxed);
                    return Err(error);
                }
                tracing::warn!(%error, "not all schedules could be looked at");
            }
            let next = due.next.map_or(LONG, |next| next.since(due.now)).min(LONG);
            Ok(match done {
                // What is due and cannot be read, or decided on, must not keep this busy.
                Done::Nothing if next.is_zero() => PATIENT,
                Done::All | Done::Nothing => next,
                Done::Some => SOON,
            })
        })
    }

    fn wake(shared: &NodeShared) -> Option<&Notify> {
        Some(&shared.hint_router.fire)
    }
}

/// Looks at every schedule: another version of the time zones, or a clock that was wrong, moves it.
async fn look_over(store: &dyn Store, now: Timestamp) -> Result<()> {
    let mut after = None;
    loop {
        let page = store.list_schedules(after, bounds::PAGE).await?;
        let done = page.len() < bounds::PAGE;
        after = page.last().map(|schedule| schedule.name.clone());
        let moved = |schedule: &Schedule| match step(schedule, None, now) {
            Step::Write(row, jobs) if jobs.is_empty() && schedule.next_at.is_some_and(|at| at > now) => {
                Some(write(schedule, *row))
            }
            _ => None,
        };
        let moved: Vec<_> = page.iter().filter_map(moved).collect();
        if !moved.is_empty() {
            store.write_schedules(moved).await?;
        }
        if done {
            return Ok(());
        }
    }
}

fn write(read: &Schedule, row: Schedule) -> ScheduleWrite {
    let (name, expected) = (read.name.clone(), Some(read.version));
    ScheduleWrite { name, expected, row: Some(row), jobs: Vec::new(), audit: None }
}

/// Fires schedules.
async fn fire(store: &dyn Store, schedules: Vec<Schedule>, now: Timestamp) -> Result<Done> {
    let before = jobs_before(store, &schedules).await?;
    let (mut writes, mut cancelled, mut jobs) = (Vec::new(), Vec::new(), 0);
    let (mut all, mut nothing) = (true, true);
    for schedule in schedules {
        let status = schedule.state.last_job.and_then(|job| before.get(&job).copied());
        match step(&schedule, status, now) {
            Step::Wait => {}
            Step::Cancel(job) => cancelled.push(job),
            Step::Write(row, made) => {
                nothing = false;
                if jobs + made.len() > bounds::BATCH {
                    all &= store_all(store, std::mem::take(&mut writes), now).await?;
                    jobs = 0;
                }
                jobs += made.len();
                writes.push(ScheduleWrite { jobs: made, ..write(&schedule, *row) });
            }
        }
    }
    if !writes.is_empty() {
        all &= store_all(store, writes, now).await?;
    }
    if !cancelled.is_empty() {
        let why = "its schedule fires again".to_owned();
        store.change(cancelled, Verb::Cancel { why }, false).await?;
        return Ok(Done::Some);
    }
    Ok(match (all, nothing) {
        (true, true) => Done::Nothing,
        (true, false) => Done::All,
        (false, _) => Done::Some,
    })
}

/// How the jobs of the fires before are, for schedules that care.
async fn jobs_before(store: &dyn Store, schedules: &[Schedule]) -> Result<BTreeMap<JobId, Status>> {
    let cares = |it: &&Schedule| it.definition.overlap != Overlap::Allow || it.definition.pause_on_failure;
    let ids: Vec<JobId> = schedules.iter().filter(cares).filter_map(|it| it.state.last_job).collect();
    if ids.is_empty() {
        return Ok(BTreeMap::new());
    }
    let ends = store.job_ends(ids.clone()).await?;
    let status = |(id, end)| match end {
        JobEnd::Missing => None,
        JobEnd::Open => Some((id, Status::plain(mainspring_core::job::State::Running))),
        JobEnd::Ended { status, .. } => Some((id, status)),
    };
    Ok(ids.into_iter().zip(ends).filter_map(status).collect())
}

/// Hands rows and jobs in; one by one, if the store refuses them together. Whether all are done with.
async fn store_all(store: &dyn Store, writes: Vec<ScheduleWrite>, now: Timestamp) -> Result<bool> {
    if planted::is(Defect::FireTorn) {
        let rows = writes.iter().map(|write| ScheduleWrite { jobs: Vec::new(), ..write.clone() });
        store.write_schedules(rows.collect()).await?;
        store.enqueue(writes.into_iter().flat_map(|write| write.jobs).collect()).await?;
        return Ok(true);
    }
    fault::point!("schedule.firing");
    match store.write_schedules(writes.clone()).await {
        Ok(answers) => {
            fault::point!("schedule.fired");
            settle(store, writes, answers, now).await
        }
        Err(error) if error.is_retryable() => Err(error),
        Err(_) => {
            for one in writes {
                match store.write_schedules(vec![one.clone()]).await {
                    Ok(answers) => drop(settle(store, vec![one], answers, now).await?),
                    Err(error) if error.is_retryable() => return Err(error),
                    Err(error) => trouble(store, &one, &error, now).await?,
                }
            }
            Ok(false)
        }
    }
}

/// Notes jobs that were refused. Whether nothing is left to do.
async fn settle(
    store: &dyn Store,
    writes: Vec<ScheduleWrite>,
    answers: Vec<Written>,
    now: Timestamp,
) -> Result<bool> {
    let mut all = true;
    for (write, answer) in writes.into_iter().zip(answers) {
        let Written::Stored(receipts) = answer else {
            // Another node was faster, or somebody edits it.
            all = false;
            continue;
        };
        let refused = receipts.iter().find_map(|receipt| match receipt {
            Receipt::Existing(holder) | Receipt::Rejected(holder) => {
                Some(format!("its job was not enqueued: job {holder} holds the unique key"))
            }
            Receipt::Taken(_) => Some("its job was not enqueued: another job has its id".to_owned()),
            Receipt::Created | Receipt::Repeated | Receipt::Contended => None,
        });
        if let (Some(text), Some(row)) = (refused, &write.row) {
            let version = write.version();
            let row = Schedule { version, ..row.clone() };
            // Somebody who writes first has a newer word.
            store.write_schedules(vec![self::write(&row, row.clone().noted(text, now))]).await?;
        }
    }
    Ok(all)
}

/// Notes on a schedule why its fire could not be stored, and when it is tried again.
async fn trouble(store: &dyn Store, refused: &ScheduleWrite, error: &Error, now: Timestamp) -> Result<()> {
    tracing::warn!(schedule = %refused.name, %error, "schedule cannot fire; trying again later");
    let found = store.find_schedules(vec![refused.name.clone()]).await?.pop().flatten();
    if let Some(found) = found.filter(|found| Some(found.version) == refused.expected) {
        store.write_schedules(vec![write(&found, found.troubled(&error.to_string(), now))]).await?;
    }
    Ok(())
}
