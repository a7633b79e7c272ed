//! What the tests share: a few jobs, a ledger of effects, a gate for handlers, and waiting for conditions.

use std::future::Future;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use mainspring::admin::Record;
use mainspring::{Engine, Job, JobId, State, Status};
use serde::{Deserialize, Serialize};
use tokio::sync::watch;

/// By when a condition must hold. Far more than anything here takes, so that a busy machine fails no test.
pub(crate) use mainspring_testkit::patience::PATIENCE as DEADLINE;

/// A job that says which it is.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, Job)]
#[job(kind = "work", result = u64)]
pub(crate) struct Work {
    pub(crate) n: u64,
}

pub(crate) fn work(n: u64) -> Work {
    Work { n }
}

/// What handlers did, in order. Clones are the same ledger.
#[derive(Clone, Default)]
pub(crate) struct Ledger(Arc<Mutex<Vec<u64>>>);

impl Ledger {
    pub(crate) fn add(&self, entry: u64) {
        self.0.lock().expect("the ledger").push(entry);
    }

    pub(crate) fn entries(&self) -> Vec<u64> {
        self.0.lock().expect("the ledger").clone()
    }

    pub(crate) fn len(&self) -> usize {
        self.0.lock().expect("the ledger").len()
    }

    /// The entries as (entry, how often).
    pub(crate) fn sorted(&self) -> Vec<u64> {
        let mut entries = self.entries();
        entries.sort_unstable();
        entries
    }
}

/// A gate that handlers wait at until the test opens it. Clones are the same gate.
#[derive(Clone)]
pub(crate) struct Gate {
    open: watch::Sender<bool>,
    came: watch::Sender<usize>,
}

impl Default for Gate {
    fn default() -> Self {
        Gate { open: watch::Sender::new(false), came: watch::Sender::new(0) }
    }
}

impl Gate {
    /// Waits at the gate.
    pub(crate) async fn pass(&self) {
        self.came.send_modify(|came| *came += 1);
        drop(self.open.subscribe().wait_for(|open| *open).await);
    }

    pub(crate) fn open(&self) {
        self.open.send_replace(true);
    }

    /// How many have come to the gate so far.
    pub(crate) fn came(&self) -> usize {
        *self.came.borrow()
    }

    /// Waits until this many have come.
    pub(crate) async fn reached(&self, count: usize) {
        soon("handlers at the gate", self.came.subscribe().wait_for(|came| *came >= count))
            .await
            .expect("the gate is there");
    }
}

/// Waits for a future, but not beyond the deadline.
pub(crate) async fn soon<T>(what: &str, future: impl Future<Output = T>) -> T {
    let output = tokio::time::timeout(DEADLINE, future).await;
    output.unwrap_or_else(|_| panic!("not within {DEADLINE:?}: {what}"))
}

/// Waits until a condition holds.
pub(crate) async fn eventually<Fut: Future<Output = bool>>(what: &str, mut condition: impl FnMut() -> Fut) {
    soon(what, async {
        let mut looks = tokio::time::interval(Duration::from_millis(2));
        while !condition().await {
            looks.tick().await;
        }
    })
    .await;
}

pub(crate) async fn record(engine: &Engine, id: JobId) -> Record {
    engine.jobs().get(id).await.expect("the job is there")
}

pub(crate) async fn status(engine: &Engine, id: JobId) -> Status {
    record(engine, id).await.summary.status
}

pub(crate) async fn state(engine: &Engine, id: JobId) -> State {
    status(engine, id).await.state
}

/// Waits until a job has ended, one way or the other.
pub(crate) async fn ended(engine: &Engine, id: JobId) -> Record {
    drop(soon("the job ends", engine.result_json(id)).await);
    record(engine, id).await
}

/// How many jobs are in a state.
pub(crate) async fn total(engine: &Engine, state: State) -> u64 {
    engine.jobs().counts().await.expect("counts").total(state)
}

/// Nothing is in the store that must not be there.
pub(crate) async fn assert_sound(engine: &Engine) {
    let findings = engine.store().check().await.expect("a check");
    assert!(findings.is_empty(), "{findings:?}");
}

/// An address of a fresh SQLite store, and the directory that it lives in.
pub(crate) fn sqlite() -> (String, tempfile::TempDir) {
    let dir = tempfile::tempdir().expect("a directory");
    (format!("sqlite:{}", dir.path().join("test.db").display()), dir)
}

/// A database of a test's own on the run's Postgres, migrated.
#[cfg(feature = "postgres")]
pub(crate) fn postgres() -> mainspring_testkit::postgres::Database {
    let server = mainspring_testkit::postgres::Server::shared().expect("a server");
    let migrate = |url: &str| -> Result<(), mainspring::Error> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
        runtime.block_on(async {
            Engine::options().migrate().open(url).await?.close().await;
            Ok(())
        })
    };
    let template = server.template("mainspring_engine_v1", migrate).expect("a template");
    template.database().expect("a database")
}

/// Makes each body a test per store, in real time: on memory, on SQLite and, with the feature, on Postgres.
macro_rules! on_every_store {
    ($($(#[$meta:meta])* async fn $name:ident($engine:ident: Engine) $body:block)+) => {$(
        mod $name {
            use mainspring::Engine;

            #[tokio::test]
            async fn on_memory() {
                super::$name(Engine::open("memory:").await.expect("a store")).await;
            }

            #[tokio::test]
            async fn on_sqlite() {
                let (address, _dir) = crate::support::sqlite();
                let engine = Engine::options().relaxed_durability().open(&address).await.expect("a store");
                super::$name(engine).await;
            }

            #[cfg(feature = "postgres")]
            #[tokio::test]
            async fn on_postgres() {
                let database = crate::support::postgres();
                let options = Engine::options().relaxed_durability();
                let engine = options.open(&database.url()).await.expect("a store");
                super::$name(engine.clone()).await;
                engine.close().await;
            }
        }

        $(#[$meta])*
        async fn $name($engine: mainspring::Engine) $body
    )+};
}
pub(crate) use on_every_store;
