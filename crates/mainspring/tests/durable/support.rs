//! What the tests share: a job, a ledger of effects, and an engine that keeps suspended handlers or does not.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use mainspring::testing::TestEngine;
use mainspring::{Context, Enqueued, Job, JobId, Status};
use mainspring_core::store::Store;
use mainspring_testkit::executor::block_on;
use mainspring_testkit::synchronous_store::{self, StoreLocation};
use serde::{Deserialize, Serialize};

pub(crate) const SECOND: Duration = Duration::from_secs(1);
pub(crate) const HOUR: Duration = Duration::from_hours(1);

/// A workflow.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, Job)]
#[job(kind = "flow", result = String)]
pub(crate) struct Flow {
    pub(crate) n: u64,
}

pub(crate) fn flow(n: u64) -> Flow {
    Flow { n }
}

/// What bodies did, in order. Clones are the same ledger.
#[derive(Clone, Default)]
pub(crate) struct Ledger(Arc<Mutex<Vec<String>>>);

impl Ledger {
    pub(crate) fn add(&self, entry: impl Into<String>) {
        self.0.lock().expect("the ledger").push(entry.into());
    }

    pub(crate) fn entries(&self) -> Vec<String> {
        self.0.lock().expect("the ledger").clone()
    }

    pub(crate) fn count(&self, entry: &str) -> usize {
        self.entries().iter().filter(|one| *one == entry).count()
    }
}

/// An engine with one node that runs a handler; suspended handlers are kept in memory, or not.
pub(crate) async fn engine<F, Fut>(cached: usize, handler: F) -> TestEngine
where
    F: Fn(Context, Flow) -> Fut + Send + Sync + 'static,
    Fut: Future<Output = mainspring::HandlerResult<String>> + Send + 'static,
{
    let test = TestEngine::new();
    test.node(|node| node.handle(handler).queue("default", 4).cached_handlers(cached)).await.expect("a node");
    test
}

/// A kind of store, on which tests make engines.
pub(crate) struct On {
    place: Place,
    /// What was opened, and what it lives in.
    opened: Mutex<Vec<(Arc<dyn Store>, StoreLocation)>>,
}

pub(crate) enum Place {
    Memory,
    Sqlite,
    Postgres,
}

impl On {
    pub(crate) fn new(place: Place) -> Self {
        On { place, opened: Mutex::default() }
    }

    /// An engine on a fresh store.
    pub(crate) fn test(&self, seed: u64) -> TestEngine {
        let open = match self.place {
            Place::Memory => return TestEngine::seeded(seed),
            Place::Sqlite => synchronous_store::sqlite,
            Place::Postgres => synchronous_store::postgres,
        };
        TestEngine::on(seed, |seams| {
            let (store, home) = open(&seams.clock);
            self.opened.lock().expect("what was opened").push((Arc::clone(&store), home));
            store
        })
    }

    /// As [`engine`].
    pub(crate) async fn engine<F, Fut>(&self, cached: usize, handler: F) -> TestEngine
    where
        F: Fn(Context, Flow) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = mainspring::HandlerResult<String>> + Send + 'static,
    {
        let test = self.test(0);
        test.node(|node| node.handle(handler).queue("default", 4).cached_handlers(cached))
            .await
            .expect("a node");
        test
    }

    /// With the handler cache and without; on a real store only without.
    pub(crate) fn cache_sizes(&self) -> &'static [usize] {
        if matches!(self.place, Place::Memory) { &CACHE_SIZES } else { &CACHE_SIZES[1..] }
    }

    /// So many on memory, a few on SQLite, and fewer where every call takes a while.
    pub(crate) fn some<T>(&self, many: T, few: T, fewer: T) -> T {
        match self.place {
            Place::Memory => many,
            Place::Sqlite => few,
            Place::Postgres => fewer,
        }
    }
}

impl Drop for On {
    fn drop(&mut self) {
        let opened = self.opened.get_mut().map(std::mem::take).unwrap_or_default();
        for (store, _home) in opened {
            block_on(store.close());
        }
    }
}

/// Makes each body a test per store that is named.
macro_rules! on_stores {
    (@each $name:ident [$($test:ident $place:ident),+]) => {
        mod $name {
            use crate::support::{On, Place};
            $(
                #[tokio::test]
                async fn $test() {
                    super::$name(&On::new(Place::$place)).await;
                }
            )+
        }
    };
    ($stores:tt $($(#[$meta:meta])* async fn $name:ident($on:ident: &On) $body:block)+) => {$(
        crate::support::on_stores!(@each $name $stores);

        $(#[$meta])*
        async fn $name($on: &crate::support::On) $body
    )+};
}
pub(crate) use on_stores;

/// On memory, on SQLite and on Postgres.
macro_rules! on_every_store {
    ($($tests:tt)+) => {
        crate::support::on_stores! { [on_memory Memory, on_sqlite Sqlite, on_postgres Postgres] $($tests)+ }
    };
}
pub(crate) use on_every_store;

/// The same without Postgres, for what walks through hours step by step: thousands of calls that have nothing to tell.
macro_rules! on_memory_and_sqlite {
    ($($tests:tt)+) => {
        crate::support::on_stores! { [on_memory Memory, on_sqlite Sqlite] $($tests)+ }
    };
}
pub(crate) use on_memory_and_sqlite;

/// With the handler cache, and without.
pub(crate) const CACHE_SIZES: [usize; 2] = [1_000, 0];

pub(crate) async fn status(test: &TestEngine, id: JobId) -> Status {
    test.jobs().get(id).await.expect("the job is there").summary.status
}

/// The keys of all records of a job, in order.
pub(crate) async fn keys(test: &TestEngine, job: &Enqueued<Flow>) -> Vec<String> {
    let timeline = test.store().timeline(job.id).await.expect("a timeline").expect("the job is there");
    timeline.entries.iter().map(|entry| entry.key.to_string()).collect()
}
