//! Claims whose answer is lost: what they took is known, or not taken.

use std::time::Duration;

use mainspring::Engine;
use mainspring_core::Error;
use mainspring_core::id::{ClaimBatchNo, NodeId, NodeNo};
use mainspring_core::name::{Kind, QueueName};
use mainspring_core::store::{Abilities, ClaimRequest, ClaimedBatch, Registration};
use mainspring_testkit::patience::{insist, wait};
use mainspring_testkit::postgres::{Cut, Database, Proxy};
use rustix::process::{Pid, Signal, kill_process};

use super::support::{
    Gate, LEASE, Step, assert_lives, backends, enqueue, node, number, open, session, shared_database,
    succeeded,
};

/// A store behind a proxy, and a node without an engine around it.
struct Rig {
    engine: Engine,
    node: NodeNo,
    proxy: Proxy,
    database: Database,
}

const JOBS: usize = 5;

impl Rig {
    async fn new() -> Self {
        let database = shared_database().await;
        let proxy = Proxy::start(database.server()).expect("a proxy");
        let engine = open(&proxy.url(database.name())).await;
        let queue = QueueName::new("default").expect("a name");
        let registration = Registration {
            id: NodeId::mint(engine.seams().clock.now(), &*engine.seams().rng),
            name: "rig".to_owned(),
            version: String::new(),
            pid: std::process::id(),
            queues: vec![(queue, 16)],
            abilities: Abilities { kinds: vec![Kind::new("step").expect("a kind")], ..Abilities::default() },
            // Calls are given up after a third of it.
            lease: Duration::from_secs(3),
        };
        let node = engine.store().register(registration).await.expect("a node").no;
        Rig { engine, node, proxy, database }
    }

    async fn enqueue(&self) {
        let steps = (0..JOBS as u64).map(|number| Step { number });
        self.engine.enqueue_many(steps).await.expect("acknowledged");
    }

    async fn claim(&self, batch: u64) -> Result<ClaimedBatch, Error> {
        let queues = vec![(QueueName::new("default").expect("a name"), JOBS)];
        let request = ClaimRequest {
            ahead: Vec::new(),
            node: self.node,
            batch: ClaimBatchNo(batch),
            queues,
            suspects: 0,
        };
        self.engine.store().claim(request).await
    }

    fn leased(&self) -> i64 {
        number(&self.database, "SELECT count(*) FROM mainspring.lease")
    }

    /// All that is leased is known: these claims and no other.
    fn assert_known(&self, claimed: &[&ClaimedBatch]) {
        let rows = self
            .database
            .sql("SELECT j.id, l.claim FROM mainspring.lease l JOIN mainspring.jobs j ON j.no = l.no ORDER BY 1")
            .expect("rows");
        let leased: Vec<_> = rows.iter().map(|row| (row[0].clone(), row[1].clone())).collect();
        let mut known: Vec<_> = claimed
            .iter()
            .flat_map(|batch| &batch.jobs)
            .map(|job| (Some(job.claim.id.to_string()), Some(job.claim.number.to_string())))
            .collect();
        known.sort();
        assert_eq!(leased, known);
    }
}

#[tokio::test]
async fn a_claim_whose_answer_was_lost_is_adopted_by_its_repeat() {
    let rig = Rig::new().await;
    // The first claim of a new queue learns its settings, and takes jobs in a second transaction.
    rig.enqueue().await;
    let first = rig.claim(1).await.expect("an answer");
    rig.enqueue().await;
    rig.proxy.on_commit(Cut::After, 1);
    let error = rig.claim(2).await.expect_err("the answer was lost");
    assert!(matches!(error, Error::OutcomeUnknown { .. }), "{error:?}");
    assert_eq!(rig.leased(), 10, "the claim was committed");
    let claimed = insist("the repeat", async || rig.claim(2).await).await;
    assert_eq!(claimed.jobs.len(), JOBS);
    assert!(claimed.jobs.iter().all(|job| job.claim.number == 1), "they were not claimed twice");
    rig.assert_known(&[&first, &claimed]);
    rig.engine.close().await;
}

#[tokio::test]
async fn a_claim_that_never_arrived_leaves_nothing_behind() {
    let rig = Rig::new().await;
    assert!(rig.claim(1).await.expect("an answer").jobs.is_empty());
    rig.enqueue().await;
    rig.proxy.on_commit(Cut::Before, 1);
    let error = rig.claim(2).await.expect_err("the connection was lost");
    assert!(matches!(error, Error::OutcomeUnknown { .. }), "{error:?}");
    let claimed = insist("the repeat", async || rig.claim(2).await).await;
    assert_eq!(claimed.jobs.len(), JOBS);
    rig.assert_known(&[&claimed]);
    rig.engine.close().await;
}

/// A process of the server that is stopped, and goes on when dropped.
struct Stopped(Pid);

impl Stopped {
    fn new(backend: i32) -> Self {
        let pid = Pid::from_raw(backend).expect("a process");
        kill_process(pid, Signal::STOP).expect("a signal");
        Stopped(pid)
    }
}

impl Drop for Stopped {
    fn drop(&mut self) {
        let _gone = kill_process(self.0, Signal::CONT);
    }
}

impl Rig {
    /// Claims for the first time; with what it took, the server's process that serves claims.
    async fn first_claim(&self) -> (ClaimedBatch, i32) {
        self.enqueue().await;
        let before = backends(&self.database, "true");
        let claimed = self.claim(1).await.expect("an answer");
        assert_eq!(claimed.jobs.len(), JOBS);
        let mut after = backends(&self.database, "true");
        after.retain(|pid| !before.contains(pid));
        let [pid] = after.as_slice() else { panic!("one more session, not {after:?}") };
        (claimed, *pid)
    }

    async fn gone(&self, backend: i32) {
        wait("the late session has ended", async || {
            (!backends(&self.database, "true").contains(&backend)).then_some(())
        })
        .await;
    }
}

#[tokio::test]
async fn a_claim_that_arrives_after_its_repeat_takes_nothing() {
    let rig = Rig::new().await;
    let (first, backend) = rig.first_claim().await;
    rig.enqueue().await;
    let stopped = Stopped::new(backend);
    let error = rig.claim(2).await.expect_err("nobody answers");
    assert!(matches!(error, Error::OutcomeUnknown { .. }), "{error:?}");
    let claimed = insist("the repeat", async || rig.claim(2).await).await;
    assert_eq!(claimed.jobs.len(), JOBS);
    // There is something to take for the one that comes late.
    rig.enqueue().await;
    drop(stopped);
    rig.gone(backend).await;
    rig.assert_known(&[&first, &claimed]);
    assert_eq!(number(&rig.database, "SELECT count(*) FROM mainspring.ready"), 5);
    rig.engine.close().await;
}

#[tokio::test]
async fn a_repeat_waits_for_the_claim_that_is_in_the_middle_of_it() {
    let rig = Rig::new().await;
    let (first, backend) = rig.first_claim().await;
    rig.enqueue().await;
    let mut other = session(&rig.database).await;
    let lock = other.transaction().await.expect("a transaction");
    lock.batch_execute("LOCK TABLE mainspring.count_deltas IN ACCESS EXCLUSIVE MODE").await.expect("a lock");
    // The claim has the node's lock and waits for that of a table that only its move needs, and is stopped there.
    let (lost, stopped) = tokio::join!(rig.claim(2), async {
        wait("the claim waits", async || {
            backends(&rig.database, "wait_event_type = 'Lock'").contains(&backend).then_some(())
        })
        .await;
        Stopped::new(backend)
    });
    let error = lost.expect_err("nobody answers");
    assert!(matches!(error, Error::OutcomeUnknown { .. }), "{error:?}");
    lock.rollback().await.expect("unlocked");
    let error = rig.claim(2).await.expect_err("the first may still take something");
    assert!(error.is_retryable(), "{error:?}");
    rig.assert_known(&[&first]);
    drop(stopped);
    let claimed = insist("the repeat", async || rig.claim(2).await).await;
    rig.gone(backend).await;
    assert_eq!(claimed.jobs.len(), JOBS);
    rig.assert_known(&[&first, &claimed]);
    rig.engine.close().await;
}

#[tokio::test]
async fn a_claim_in_several_rounds_tells_the_time_of_the_last() {
    let rig = Rig::new().await;
    let steps = |from: u64| (from..from + JOBS as u64).map(|number| Step { number });
    rig.engine.enqueue_many(steps(0)).priority(0).await.expect("acknowledged");
    rig.engine.enqueue_many(steps(10)).priority(9).await.expect("acknowledged");
    rig.engine.enqueue(Step { number: 20 }).queue("side").await.expect("acknowledged");
    let mut other = session(&rig.database).await;
    let lock = other.transaction().await.expect("a transaction");
    // Those that come first are somebody else's, so the claim goes on to those behind them.
    let first = "SELECT no FROM mainspring.ready ORDER BY level LIMIT 5 FOR UPDATE";
    assert_eq!(lock.query(first, &[]).await.expect("a lock").len(), JOBS);
    let queues =
        [("default", JOBS), ("side", 1)].map(|(name, limit)| (QueueName::new(name).expect("a name"), limit));
    let request = ClaimRequest {
        ahead: Vec::new(),
        node: rig.node,
        batch: ClaimBatchNo(1),
        queues: queues.into(),
        suspects: 0,
    };
    let claimed = rig.engine.store().claim(request).await.expect("an answer");
    assert_eq!(claimed.jobs.len(), JOBS + 1);
    let sql = "SELECT (extract(epoch FROM max(claimed_at)) * 1000000)::bigint FROM mainspring.lease";
    assert_eq!(claimed.now.as_micros(), number(&rig.database, sql));
    lock.rollback().await.expect("unlocked");
    rig.engine.close().await;
}

#[tokio::test]
async fn a_node_runs_once_what_it_claimed_or_finished_when_an_answer_was_lost() {
    const TURNS: u64 = 10;
    let database = shared_database().await;
    let proxy = Proxy::start(database.server()).expect("a proxy");
    let (far, near) = (open(&proxy.url(database.name())).await, open(&database.url()).await);
    let gate = Gate::open();
    let node = node(&far, &gate, LEASE).await;
    for turn in 0..TURNS {
        // The commit of the claim, of the outcome, or of a look around, whichever comes first.
        proxy.on_commit(if turn % 2 == 0 { Cut::After } else { Cut::Before }, 1);
        let job = enqueue(&near, turn).await;
        let job = succeeded(&near, job).await;
        assert_eq!((job.claim, job.crashes), (1, 0));
        wait("a connection was cut", async || (proxy.counts().cuts > turn).then_some(())).await;
    }
    wait("the node holds nothing", async || (node.claims() == 0).then_some(())).await;
    assert_eq!(gate.came() as u64, TURNS, "each ran once");
    assert_eq!(number(&database, "SELECT count(*) FROM mainspring.lease"), 0);
    assert_lives(&near, &node, 0).await;
    node.shutdown().await;
    far.close().await;
    near.close().await;
}
