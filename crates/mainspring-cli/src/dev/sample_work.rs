//! Sample work: a little of everything at the start, then a trickle, so that there is always something to see.

use std::time::Duration;

use mainspring::admin::Filter;
use mainspring::schedule::{NewSchedule, Overlap};
use mainspring::time::Timestamp;
use mainspring::{Backoff, Engine, Error, State};

use super::samples::{Charge, Mail, Order, Report, Video, Webhook};

/// Between two jobs of the trickle.
pub(super) const BEAT: Duration = Duration::from_millis(1_200);
/// The trickle stops while this many jobs wait, as they do when the queue is paused.
const ENOUGH: u64 = 25;
/// How long a video is left to run before somebody loses patience.
const PATIENCE: Duration = Duration::from_secs(5);
/// The schedule of the samples, and how long it fires.
const SCHEDULE: &str = "sample-report";
const SHOWN: Duration = Duration::from_hours(1);
/// What the samples can be found by.
const TAG: &str = "sample";

const PEOPLE: [&str; 6] = [
    "ada@example.com",
    "grace@example.com",
    "linus@example.com",
    "barbara@example.com",
    "ken@example.com",
    "edsger@example.com",
];

/// Where sample work goes.
#[derive(Debug, Clone, Copy)]
pub(super) struct Seed<'a> {
    pub(super) engine: &'a Engine,
    pub(super) queue: &'a str,
}

impl Seed<'_> {
    /// One of each: success, retries, a delay, a failure for good, one to be cancelled, progress, and a workflow.
    pub(super) async fn tour(&self) -> Result<usize, Error> {
        self.report("2026-10", 20).await?;
        self.webhook().await?;
        self.order(0).await?;
        self.charge(true).await?;
        self.video().await?;
        let mail = Mail { to: PEOPLE[0].into() };
        self.engine.enqueue(mail).queue(self.queue).tag(TAG).delay(Duration::from_secs(8)).await?;
        for person in PEOPLE {
            self.mail(person).await?;
        }
        self.schedule().await?;
        Ok(6 + PEOPLE.len())
    }

    /// The next of the trickle: mostly mail, and now and then something that goes wrong or takes long.
    pub(super) async fn trickle(&self, beat: usize) -> Result<(), Error> {
        if self.engine.jobs().counts().await?.total(State::Ready) >= ENOUGH {
            return Ok(());
        }
        match beat % 32 {
            1 | 12 | 23 => self.order(beat).await,
            3 | 19 => self.webhook().await,
            6 | 14 | 22 | 30 => self.report("2026-11", 15).await,
            9 | 25 => self.charge(true).await,
            11 | 27 => self.charge(false).await,
            13 => self.video().await,
            _ => self.mail(PEOPLE[beat % PEOPLE.len()]).await,
        }
    }

    /// Many at once.
    pub(super) async fn batch(&self, count: usize) -> Result<(), Error> {
        let mails = (0..count).map(|n| Mail { to: PEOPLE[n % PEOPLE.len()].into() });
        self.engine.enqueue_many(mails).queue(self.queue).tag(TAG).await.map(drop)
    }

    /// Cancels videos that have been running for a while.
    pub(super) async fn lose_patience(&self, now: Timestamp) -> Result<(), Error> {
        let running = Filter {
            kind: Some(mainspring::name::Kind::new("demo.video")?),
            states: vec![State::Running],
            ..Filter::default()
        };
        let videos = self.engine.jobs().list(running).limit(10).await?.jobs;
        let tired = |started: Option<Timestamp>| started.is_some_and(|started| now.since(started) > PATIENCE);
        let late = videos.iter().filter(|video| !video.cancelling && tired(video.claimed_at));
        for video in late {
            let cancelled = self.engine.jobs().cancel(video.id).because("the viewer closed the page").await;
            match cancelled {
                // That it ended by itself in the meantime is no error.
                Ok(_) | Err(Error::Illegal { .. } | Error::NotFound(_)) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// A report every quarter of a minute, for an hour: `mainspring schedule list` shows it.
    async fn schedule(&self) -> Result<(), Error> {
        let job = Report { month: "the schedule".into(), pages: 5 };
        let until = self.engine.seams().clock.now().after(SHOWN);
        let schedule = NewSchedule::of(SCHEDULE, &job).times("*/15 * * * * *").until(until);
        let schedule = schedule.overlap(Overlap::Skip).queue(self.queue).tag(TAG);
        self.engine.schedules().by("dev").set(schedule).await.map(drop)
    }

    async fn mail(&self, to: &str) -> Result<(), Error> {
        self.engine.enqueue(Mail { to: to.into() }).queue(self.queue).tag(TAG).await.map(drop)
    }

    async fn report(&self, month: &str, pages: u64) -> Result<(), Error> {
        let job = Report { month: month.into(), pages };
        self.engine.enqueue(job).queue(self.queue).tag(TAG).await.map(drop)
    }

    async fn order(&self, beat: usize) -> Result<(), Error> {
        let item = ["a lamp", "a chair", "a piano"][beat % 3];
        let job = Order { item: item.into(), to: PEOPLE[beat % PEOPLE.len()].into() };
        self.engine.enqueue(job).queue(self.queue).tag(TAG).await.map(drop)
    }

    async fn charge(&self, expired: bool) -> Result<(), Error> {
        let job = Charge { card: "•••• 4242".into(), expired };
        self.engine.enqueue(job).queue(self.queue).tag(TAG).await.map(drop)
    }

    async fn video(&self) -> Result<(), Error> {
        self.engine.enqueue(Video { minutes: 2 }).queue(self.queue).tag(TAG).await.map(drop)
    }

    async fn webhook(&self) -> Result<(), Error> {
        let job = Webhook { url: "hooks.example.com".into(), outages: 2 };
        let backoff =
            Backoff::Exponential { base: Duration::from_millis(1_500), max: Duration::from_secs(30) };
        self.engine.enqueue(job).queue(self.queue).tag(TAG).backoff(backoff).await.map(drop)
    }
}
