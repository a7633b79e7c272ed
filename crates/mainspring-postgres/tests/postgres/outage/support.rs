//! Databases, nodes and handlers for these tests.

use std::time::{Duration, Instant};

use mainspring::admin::Summary;
use mainspring::tokio_postgres::{self, Client, NoTls};
use mainspring::{Context, Engine, Error, Job, JobId, Node, State};
use mainspring_core::store::NodeState;
use mainspring_testkit::patience::{PATIENCE, Pace, insist, wait};
use mainspring_testkit::postgres::{Database, Options, Server};
use serde::{Deserialize, Serialize};
use tokio::sync::watch;

/// Long enough for a busy machine, short enough for a test.
pub(crate) const LEASE: Duration = Duration::from_secs(2);

/// A job that waits at the [`Gate`].
#[derive(Debug, Serialize, Deserialize, Job)]
#[job(kind = "step", result = u64)]
pub(crate) struct Step {
    pub(crate) number: u64,
}

/// Where handlers wait until the test opens it. Clones are the same gate.
#[derive(Debug, Clone)]
pub(crate) struct Gate {
    open: watch::Sender<bool>,
    came: watch::Sender<usize>,
}

impl Gate {
    pub(crate) fn closed() -> Self {
        Gate { open: watch::Sender::new(false), came: watch::Sender::new(0) }
    }

    pub(crate) fn open() -> Self {
        let gate = Gate::closed();
        gate.let_pass();
        gate
    }

    pub(crate) fn let_pass(&self) {
        self.open.send_replace(true);
    }

    /// How many runs have come here so far.
    pub(crate) fn came(&self) -> usize {
        *self.came.borrow()
    }

    pub(crate) async fn reached(&self, count: usize) {
        wait("handlers have begun", async || (self.came() >= count).then_some(())).await;
    }

    async fn pass(&self) {
        self.came.send_modify(|came| *came += 1);
        drop(self.open.subscribe().wait_for(|open| *open).await);
    }
}

/// A database on a server of the test's own, migrated.
pub(crate) async fn database(options: &Options) -> Database {
    let database = Server::start(options).and_then(|server| server.database()).expect("a database");
    migrated(database).await
}

/// A database on the run's server, migrated.
pub(crate) async fn shared_database() -> Database {
    let database = Server::shared().and_then(|server| server.database()).expect("a database");
    migrated(database).await
}

async fn migrated(database: Database) -> Database {
    let engine = Engine::options().migrate().open(&database.url()).await.expect("a store");
    engine.close().await;
    database
}

pub(crate) async fn open(address: &str) -> Engine {
    Engine::open(address).await.expect("a store")
}

/// A node whose handlers wait at a gate.
pub(crate) async fn node(engine: &Engine, gate: &Gate, lease: Duration) -> Node {
    insist("a node joins", async || {
        let gate = gate.clone();
        let handler = move |_: Context, step: Step| {
            let gate = gate.clone();
            async move {
                gate.pass().await;
                Ok::<_, mainspring::Failure>(step.number)
            }
        };
        engine.node().handle(handler).queue("default", 4).lease(lease).start().await
    })
    .await
}

pub(crate) async fn enqueue(engine: &Engine, number: u64) -> JobId {
    insist("a job is acknowledged", async || engine.enqueue(Step { number }).await).await.id
}

pub(crate) async fn summary(engine: &Engine, id: JobId) -> Summary {
    insist("a job", async || engine.jobs().get(id).await).await.summary
}

/// Waits until a job has succeeded.
pub(crate) async fn succeeded(engine: &Engine, id: JobId) -> Summary {
    wait("the job has succeeded", async || {
        let job = summary(engine, id).await;
        (job.status.state == State::Succeeded).then_some(job)
    })
    .await
}

/// The node lives under the number that it has, and holds this many claims.
pub(crate) async fn assert_lives(engine: &Engine, node: &Node, claims: u64) {
    let nodes = insist("nodes", async || engine.nodes().await).await;
    let found = nodes.iter().find(|other| other.no == node.number()).expect("the node is known");
    assert_eq!((found.state, found.claims), (NodeState::Live, claims));
}

/// Waits until this much time has passed: a lease that lapses needs nothing else.
pub(crate) async fn passed(since: Instant, time: Duration) {
    wait("time has passed", async || (since.elapsed() >= time).then_some(())).await;
}

/// A call must fail, as something to be repeated, and within a time.
pub(crate) async fn fails_soon<T>(
    limit: Duration,
    call: impl Future<Output = mainspring_core::Result<T>>,
) -> Error {
    let pace = Pace::start();
    let answer = tokio::time::timeout(PATIENCE, call).await.expect("an answer");
    assert!(pace.elapsed() < limit, "an answer in time, not after {:?}", pace.elapsed());
    let Err(error) = answer else { panic!("it should not have worked") };
    assert!(error.is_retryable(), "{error:?}");
    error
}

/// A session of somebody else.
pub(crate) async fn session(database: &Database) -> Client {
    let (client, connection) = tokio_postgres::connect(&database.url(), NoTls).await.expect("a connection");
    tokio::spawn(connection);
    client
}

/// One number.
pub(crate) fn number(database: &Database, sql: &str) -> i64 {
    let rows = database.sql(sql).expect("an answer");
    rows[0][0].as_deref().expect("a value").parse().expect("a number")
}

/// The processes of the server that serve this database, but for whoever asks.
pub(crate) fn backends(database: &Database, condition: &str) -> Vec<i32> {
    let sql = format!(
        "SELECT pid FROM pg_stat_activity a WHERE datname = current_database() AND pid <> pg_backend_pid() AND {condition}"
    );
    let rows = database.sql(&sql).expect("an answer");
    rows.iter().map(|row| row[0].as_deref().expect("a value").parse().expect("a number")).collect()
}
