//! Sample work: a little of everything at the start, then a trickle, so that there is always something to see.

use std::time::Duration;

use mainspring::{Backoff, Engine, Error, Filter, JobId, State, Timestamp};

use super::samples::{Charge, Mail, Report, Video, Webhook};

/// Between two jobs of the trickle.
pub(super) const BEAT: Duration = Duration::from_millis(1_200);
/// The trickle stops while this many jobs wait, as they do when the queue is paused.
const ENOUGH: u64 = 25;
/// How long a video is left to run before somebody loses patience.
const PATIENCE: Duration = Duration::from_secs(5);
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

/// One of each: success, retries, a delay, a failure for good, one to be cancelled, and progress.
pub(super) async fn tour(engine: &Engine) -> Result<usize, Error> {
    report(engine, "2026-10", 20).await?;
    webhook(engine, 2).await?;
    charge(engine, true).await?;
    engine.enqueue(Video { minutes: 2 }).tag(TAG).max_attempts(3).await?;
    let delayed = engine.enqueue(Mail { to: PEOPLE[0].into() }).tag(TAG).delay(Duration::from_secs(8));
    delayed.await?;
    for person in PEOPLE {
        mail(engine, person).await?;
    }
    Ok(5 + PEOPLE.len())
}

/// The next of the trickle: mostly mail, and now and then something that goes wrong or takes long.
pub(super) async fn trickle(engine: &Engine, beat: usize) -> Result<(), Error> {
    if engine.jobs().counts().await?.total(State::Ready) >= ENOUGH {
        return Ok(());
    }
    match beat % 16 {
        3 => webhook(engine, 2).await,
        6 | 14 => report(engine, "2026-11", 15).await,
        9 => charge(engine, true).await,
        11 => charge(engine, false).await,
        13 if beat % 32 == 13 => {
            engine.enqueue(Video { minutes: 2 }).tag(TAG).max_attempts(3).await.map(drop)
        }
        _ => mail(engine, PEOPLE[beat % PEOPLE.len()]).await,
    }
}

/// Many at once.
pub(super) async fn batch(engine: &Engine, count: usize) -> Result<(), Error> {
    let mails = (0..count).map(|n| Mail { to: PEOPLE[n % PEOPLE.len()].into() });
    engine.enqueue_many(mails).tag(TAG).await.map(drop)
}

/// Cancels videos that have been running for a while.
pub(super) async fn lose_patience(engine: &Engine, now: Timestamp) -> Result<(), Error> {
    let running = Filter {
        kind: Some(mainspring::Kind::new("demo.video")?),
        states: vec![State::Running],
        ..Filter::default()
    };
    let videos = engine.jobs().list(running, None, 10).await?.jobs;
    let tired = |started: Option<Timestamp>| started.is_some_and(|started| now.since(started) > PATIENCE);
    let late: Vec<JobId> = videos
        .iter()
        .filter(|video| !video.cancelling && tired(video.claimed_at))
        .map(|video| video.id)
        .collect();
    if !late.is_empty() {
        engine.jobs().cancel(late).because("the viewer closed the page").await.map(drop).or_else(ended)?;
    }
    Ok(())
}

/// That it ended by itself in the meantime is no error.
fn ended(error: Error) -> Result<(), Error> {
    if matches!(error, Error::Illegal { .. } | Error::NotFound(_)) { Ok(()) } else { Err(error) }
}

async fn mail(engine: &Engine, to: &str) -> Result<(), Error> {
    engine.enqueue(Mail { to: to.into() }).tag(TAG).await.map(drop)
}

async fn report(engine: &Engine, month: &str, pages: u64) -> Result<(), Error> {
    engine.enqueue(Report { month: month.into(), pages }).tag(TAG).await.map(drop)
}

async fn charge(engine: &Engine, expired: bool) -> Result<(), Error> {
    engine.enqueue(Charge { card: "•••• 4242".into(), expired }).tag(TAG).await.map(drop)
}

async fn webhook(engine: &Engine, outages: u16) -> Result<(), Error> {
    let backoff = Backoff::Exponential { base: Duration::from_millis(1_500), max: Duration::from_secs(30) };
    let job = Webhook { url: "hooks.example.com".into(), outages };
    engine.enqueue(job).tag(TAG).backoff(backoff).await.map(drop)
}
