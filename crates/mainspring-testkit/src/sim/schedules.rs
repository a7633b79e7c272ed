//! Schedules of a simulation: who sets, pauses, edits, runs, backfills and deletes them, and how they come to rest.
//!
//! Their periods are seconds, so that much is due while things go wrong. Where the store's clock may leap by a year, others
//! fire at fixed local times of several zones, all of which are due then.

use std::time::Duration;

use mainspring::schedule::{Missed, NewSchedule, Overlap};
use mainspring_core::id::JobId;
use mainspring_core::journal::JobEnd;
use mainspring_core::schedule::Schedule;
use mainspring_core::seam::{Clock, Rng};
use mainspring_core::store::{ScheduleWrite, Written};
use mainspring_core::time::Timestamp;
use mainspring_core::{Error, bounds};

use super::actors::Participant;
use super::director::Director;
use super::plan::{End, Plan, QUEUES};
use super::process::Work;
use super::world::{below, between, chance, pick};
use crate::executor::block_on;
use crate::history::{Fact, LookedSchedule, ScheduleChange};
use crate::rng::SeededRng;

/// Schedules that people name.
const NAMES: [&str; 4] = ["a", "b", "c", "d"];
/// The schedule that code names.
const SEEDED: &str = "code";
/// Where their local times are: clocks that change, that never do, and that are half an hour off.
const ZONES: [&str; 6] =
    ["UTC", "Europe/Berlin", "America/New_York", "Asia/Kolkata", "Australia/Lord_Howe", "America/Santiago"];

/// What happens to the store's clock for the sake of schedules.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Calendar {
    /// It may leap a little, as in every run.
    Near,
    /// It may also leap by a year, or go back by an hour for a while.
    Far,
}

/// The schedule that the code of every node names; its revision is higher when the code has changed.
pub(super) fn of_code(edited: bool) -> NewSchedule {
    let (times, revision) = if edited { ("every 4s", 2) } else { ("*/5 * * * * *", 1) };
    let work = Work(Plan { millis: 50, ..Plan::default() });
    NewSchedule::of(SEEDED, &work).times(times).zone("Asia/Kolkata").revision(revision)
}

/// Some schedule.
fn some(name: &str, calendar: Calendar, rng: &SeededRng) -> NewSchedule {
    let overlap = pick(rng, &[Overlap::Allow, Overlap::Allow, Overlap::Skip, Overlap::Cancel]);
    let millis = if overlap == Overlap::Allow { rng.next_u64() % 500 } else { rng.next_u64() % 8_000 };
    let end = pick(rng, &[End::Well, End::Well, End::Listen, End::Discard]);
    let work = Work(Plan { millis, end, ..Plan::default() });
    let times = match below(rng, 6) {
        0 | 1 => format!("every {}s", 1 + below(rng, 9)),
        2 | 3 => format!("*/{} * * * * *", pick(rng, &[2, 3, 5, 10])),
        4 => "10-50/7 * * * * *".to_owned(),
        _ => "@hourly".to_owned(),
    };
    let mut schedule = NewSchedule::of(name, &work).times(&times).zone(pick(rng, &ZONES)).overlap(overlap);
    if calendar == Calendar::Far && chance(rng, 0.5) {
        let times = pick(rng, &["30 2 * * *", "15 1,3 * * SUN", "0 0 L * *", "59 23 29 2 *"]);
        schedule = NewSchedule::of(name, &work).times(times).zone(pick(rng, &ZONES)).overlap(overlap);
    }
    let all = u16::try_from(1 + below(rng, 40)).unwrap_or(1);
    schedule = match below(rng, 3) {
        0 => schedule.missed(Missed::Skip),
        1 if overlap == Overlap::Allow => schedule.missed(Missed::All(all)),
        _ => schedule.missed(Missed::Once),
    };
    if chance(rng, 0.5) {
        schedule = schedule.grace(Duration::from_millis(rng.next_u64() % 5_000));
    }
    if chance(rng, 0.3) {
        schedule = schedule.jitter(Duration::from_secs(1 + rng.next_u64() % 5));
    }
    if chance(rng, 0.1) {
        schedule = schedule.count(1 + rng.next_u64() % 6);
    }
    if chance(rng, 0.1) {
        schedule = schedule.pause_on_failure();
    }
    schedule.queue(pick(rng, &QUEUES))
}

impl Participant {
    /// Sets schedules and does what people do with them, until the fault phase is over.
    pub(super) async fn keep_schedules(self, calendar: Calendar) {
        for name in NAMES {
            // Who is refused has one schedule fewer, for now.
            drop(self.engine.schedules().set(some(name, calendar, &self.rng)).await);
        }
        while !self.is_over() {
            self.pause(Duration::from_secs(1)).await;
            drop(self.change_schedules(calendar).await);
        }
    }

    async fn change_schedules(&self, calendar: Calendar) -> Result<(), Error> {
        let (rng, schedules) = (&self.rng, self.engine.schedules().by("ann"));
        let name = if chance(rng, 0.1) { SEEDED } else { pick(rng, &NAMES) };
        match below(rng, 16) {
            0..=2 => schedules.set(some(name, calendar, rng)).await.map(drop),
            3 | 4 => {
                schedules.pause(name, "for a while").await?;
                self.pause(Duration::from_secs(3)).await;
                schedules.resume(name).await.map(drop)
            }
            5 => schedules.pause(name, "").await.map(drop),
            6 => schedules.resume(name).await.map(drop),
            7..=9 => schedules.run(name).await.map(|id| self.tell(id)),
            10 => schedules.run_forced(name).await.map(|id| self.tell(id)),
            11 | 12 => {
                let now = schedules.get(name).await?.state.last_fire;
                let from = now.before(between(rng, Duration::ZERO, Duration::from_secs(30)));
                schedules.backfill(name, from, now).await.map(drop)
            }
            13 => schedules.delete(name).await.map(drop),
            14 => schedules.why(name).await.map(drop),
            _ => schedules.list().await.map(drop),
        }
    }
}

impl Director {
    /// When all that is due has had time enough: looks at all schedules, and then pauses them, so that the run can end.
    pub(super) fn look_at_schedules(&self) {
        for (row, now) in self.schedules() {
            let open = row.state.last_job.is_some_and(|job| self.is_open(job));
            let looked = LookedSchedule { now, open, row: Box::new(row) };
            self.world.note(Fact::LookedAtSchedule(looked));
        }
        self.pause_schedules();
    }

    /// Pauses what is not paused: a message of the fault phase may still have set it going.
    pub(super) fn pause_schedules(&self) {
        for (row, now) in self.schedules() {
            if row.state.paused.is_some() {
                continue;
            }
            let paused = row.paused("director", "the run is over", now);
            let audit = mainspring_core::audit::AuditEntry {
                no: 0,
                at: now,
                who: "director".to_owned(),
                subject: mainspring_core::audit::Subject::Schedule(row.name.clone()),
                verb: "pause".to_owned(),
                request: None,
                old: None,
                new: None,
            };
            let (name, expected) = (row.name.clone(), Some(row.version));
            let write =
                ScheduleWrite { name, expected, row: Some(paused), jobs: Vec::new(), audit: Some(audit) };
            // Nobody comes in between: this is one moment of the simulation.
            let answers = block_on(self.store.write_schedules(vec![write.clone()])).expect("it is written");
            if answers == [Written::Stored(Vec::new())] {
                self.world.note(Fact::Scheduled(ScheduleChange::of(&write, &[])));
            }
        }
    }

    fn schedules(&self) -> Vec<(Schedule, Timestamp)> {
        let now = self.world.store_time.now();
        let rows = block_on(self.store.list_schedules(None, bounds::PAGE)).unwrap_or_default();
        rows.into_iter().map(|row| (row, now)).collect()
    }

    fn is_open(&self, job: JobId) -> bool {
        matches!(block_on(self.store.job_ends(vec![job])).as_deref(), Ok([JobEnd::Open]))
    }
}
