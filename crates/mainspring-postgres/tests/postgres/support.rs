//! A store on a database of its own, with a clock moved by hand or with the server's.

use std::ops::Deref;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use mainspring_core::job::{New, OnConflict, State, Unique, Until};
use mainspring_core::seam::{Clock, Pending, Seams};
use mainspring_core::store::{Receipt, Store};
use mainspring_core::time::Timestamp;
use mainspring_postgres::{Options, Postgres, SCHEMA_VERSION, Time};
use mainspring_testkit::clock::ManualClock;
use mainspring_testkit::executor::block_on;
use mainspring_testkit::harness::{Harness, queue};
use mainspring_testkit::patience::{PATIENCE, Pace};
use mainspring_testkit::postgres::{Database, Server};
use mainspring_testkit::rng::SeededRng;
use mainspring_testkit::seams::{RealThreads, seams};

/// A database with a migrated schema.
pub(crate) fn database() -> Database {
    let server = Server::shared().expect("a server");
    let template = server.template(&format!("mainspring_v{SCHEMA_VERSION}"), |url| {
        block_on(Postgres::migrate(&options(url), &real_seams())).map(drop)
    });
    template.and_then(|template| template.database()).expect("a database")
}

/// A database without anything.
pub(crate) fn empty() -> Database {
    Server::shared().and_then(|server| server.database()).expect("a database")
}

pub(crate) fn options(url: &str) -> Options {
    Options::new(url).expect("an address")
}

/// An address with one more parameter.
pub(crate) fn with(url: &str, parameter: &str) -> String {
    let separator = if url.contains('?') { '&' } else { '?' };
    format!("{url}{separator}{parameter}")
}

/// A store and its database.
pub(crate) struct Rig {
    harness: Harness,
    pub(crate) database: Arc<Database>,
}

impl Deref for Rig {
    type Target = Harness;

    fn deref(&self) -> &Harness {
        &self.harness
    }
}

impl Rig {
    /// On a fresh database.
    pub(crate) fn new() -> Self {
        let database = Arc::new(database());
        Rig::at(&database, &database.url())
    }

    /// On a database that is there, with the clock moved by hand.
    pub(crate) fn at(database: &Arc<Database>, url: &str) -> Self {
        let clock = ManualClock::new();
        let (seams, url, owner) = (seams(&clock, 1), url.to_owned(), Arc::clone(database));
        let harness = Harness::new(clock, move || -> Arc<dyn Store> {
            let _while_somebody_is_connected = &owner;
            let options = options(&url).time(Time::Clock);
            Arc::new(block_on(Postgres::open(options, seams.clone())).expect("the store opens"))
        });
        Rig { harness, database: Arc::clone(database) }
    }

    /// On a database that is there, in real time.
    pub(crate) fn real(database: &Arc<Database>, url: &str) -> Self {
        let (url, owner) = (url.to_owned(), Arc::clone(database));
        let harness = Harness::new(ManualClock::new(), move || -> Arc<dyn Store> {
            let _while_somebody_is_connected = &owner;
            Arc::new(block_on(Postgres::open(options(&url), real_seams())).expect("the store opens"))
        });
        Rig { harness, database: Arc::clone(database) }
    }

    /// Rows as text, through a connection of its own.
    pub(crate) fn sql(&self, sql: &str) -> Vec<Vec<Option<String>>> {
        self.database.sql(sql).unwrap_or_else(|error| panic!("{error}\n{sql}"))
    }

    /// A job of kind `k` for queue `q` with a unique key.
    pub(crate) fn keyed(&self, key: &str) -> New {
        self.job_with(|job| job.options.unique = Some(unique(key)))
    }

    /// How many jobs of `q` are in a state.
    pub(crate) async fn count(&self, state: State) -> u64 {
        let counts = self.counts().await;
        counts.0.get(&queue("q")).and_then(|states| states.get(&state)).copied().unwrap_or(0)
    }
}

/// A key that is held until the end of its job, and that keeps who holds it.
pub(crate) fn unique(key: &str) -> Unique {
    Unique { key: key.to_owned(), until: Until::Finished, on_conflict: OnConflict::Keep }
}

/// One store call with one job.
pub(crate) async fn put(store: &dyn Store, job: New) -> Receipt {
    store.enqueue(vec![job]).await.expect("enqueue")[0]
}

/// Seams of a real process.
pub(crate) fn real_seams() -> Seams {
    // Handles tell each other apart by what they draw.
    static SEED: AtomicU64 = AtomicU64::new(0);
    let seed = SEED.fetch_add(1, Ordering::Relaxed);
    let mut seams = seams(&ManualClock::new(), seed);
    seams.clock = Arc::new(RealClock(now()));
    seams.rng = Arc::new(SeededRng::new(seed));
    seams.threads = Arc::new(RealThreads);
    seams
}

#[expect(clippy::disallowed_methods, reason = "a server has no clock to move")]
pub(crate) fn now() -> Instant {
    Instant::now()
}

struct RealClock(Instant);

impl Clock for RealClock {
    #[expect(clippy::disallowed_methods, reason = "a server has no clock to move")]
    fn now(&self) -> Timestamp {
        std::time::SystemTime::now().into()
    }

    #[expect(clippy::disallowed_methods, reason = "a server has no clock to move")]
    fn monotonic(&self) -> Duration {
        self.0.elapsed()
    }

    fn sleep(&self, _: Duration) -> Pending<'static, ()> {
        unreachable!("the store waits on its own")
    }
}

/// Waits for a condition, and tells how long that took, as the machine goes.
pub(crate) async fn eventually(what: &str, mut condition: impl AsyncFnMut() -> bool) -> Duration {
    let (start, pace) = (now(), Pace::start());
    let mut looks = tokio::time::interval(Duration::from_millis(5));
    while !condition().await {
        assert!(now() - start < PATIENCE, "waited in vain: {what}");
        looks.tick().await;
    }
    pace.elapsed()
}

/// An answer that must come before anybody has to wait for an open transaction.
pub(crate) async fn soon<T>(what: &str, answer: impl Future<Output = T>) -> T {
    // Far below the store's own time-out, which is what somebody would wait who is stalled.
    let (limit, pace) = (Duration::from_secs(3), Pace::start());
    let answer = tokio::time::timeout(PATIENCE, answer).await.unwrap_or_else(|_| panic!("never: {what}"));
    assert!(pace.elapsed() < limit, "not soon: {what}");
    answer
}
