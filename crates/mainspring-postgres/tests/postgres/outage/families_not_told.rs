//! Ends whose families could not be told: the connection is lost right after the commit.

use std::time::Duration;

use mainspring::Engine;
use mainspring_core::id::{Claim, ClaimBatchNo, JobId, NodeId, NodeNo};
use mainspring_core::job::{New, Outcome, Priority, Reason, State, Status};
use mainspring_core::journal::{
    Child, Entry, EntryKind, OnClose, Recording, Subject, Suspension, Wait, Writes,
};
use mainspring_core::name::{Key, Kind, QueueName};
use mainspring_core::store::{Abilities, ClaimRequest, Finish, Registration};
use mainspring_testkit::patience::wait;
use mainspring_testkit::postgres::{Cut, Database, Proxy};

use super::support::{enqueue, number, open, shared_database};

/// A store behind a proxy, one that goes straight to the database, and a node without an engine around it.
struct Rig {
    engine: Engine,
    other: Engine,
    node: NodeNo,
    proxy: Proxy,
    database: Database,
}

impl Rig {
    async fn new() -> Self {
        let database = shared_database().await;
        let proxy = Proxy::start(database.server()).expect("a proxy");
        let engine = open(&proxy.url(database.name())).await;
        let other = open(&database.url()).await;
        let registration = Registration {
            id: NodeId::mint(engine.seams().clock.now(), &*engine.seams().rng),
            name: "rig".to_owned(),
            version: String::new(),
            pid: std::process::id(),
            queues: vec![(QueueName::new("default").expect("a name"), 16)],
            abilities: Abilities { kinds: vec![Kind::new("step").expect("a kind")], ..Abilities::default() },
            lease: Duration::from_mins(1),
        };
        let node = engine.store().register(registration).await.expect("a node").no;
        Rig { engine, other, node, proxy, database }
    }

    async fn claim(&self, batch: u64) -> Claim {
        let queues = vec![(QueueName::new("default").expect("a name"), 1)];
        let request = ClaimRequest {
            ahead: Vec::new(),
            node: self.node,
            batch: ClaimBatchNo(batch),
            queues,
            suspects: 0,
        };
        self.engine.store().claim(request).await.expect("an answer").jobs.pop().expect("a job").claim
    }

    /// Starts a child of a claimed job.
    async fn start(&self, claim: Claim) -> JobId {
        let seams = self.engine.seams();
        let id = JobId::mint(seams.clock.now(), &*seams.rng);
        let job = New {
            id,
            kind: Kind::new("step").expect("a kind"),
            queue: QueueName::new("default").expect("a name"),
            priority: Priority::default(),
            input: br#"{"number":1}"#.to_vec(),
            run: None,
            deadline: None,
            options: mainspring_core::job::Options::default(),
            journal: Vec::new(),
        };
        let value = serde_json::to_vec(&id).expect("JSON");
        let key = Key::new("child").expect("a key");
        let entry = Entry { key, kind: EntryKind::Child, overlapped: false, value, took: None };
        let writes = Writes { entries: vec![entry], ..Writes::default() };
        let children = vec![Child { job, on_close: OnClose::Cancel }];
        let recording = Recording { claim, writes, children };
        self.engine.store().record(self.node, vec![recording]).await.expect("recorded");
        id
    }

    async fn finish(&self, claim: Claim, outcome: Outcome) -> mainspring_core::Result<()> {
        self.engine.store().finish(self.node, vec![Finish { claim, outcome }]).await.map(drop)
    }

    async fn status(&self, id: JobId) -> Status {
        self.other.jobs().get(id).await.expect("a job").summary.status
    }

    fn untold(&self) -> i64 {
        number(&self.database, "SELECT count(*) FROM mainspring.ends")
    }

    /// Sweeps until all ends are told.
    async fn sweep(&self) {
        wait("all ends are told", async || {
            self.other.store().promote(10).await.expect("a sweep");
            (self.untold() == 0).then_some(())
        })
        .await;
    }
}

#[tokio::test]
async fn a_waiting_child_is_cancelled_by_the_commit_that_ends_its_parent() {
    let rig = Rig::new().await;
    enqueue(&rig.engine, 0).await;
    let parent = rig.claim(1).await;
    let child = rig.start(parent).await;
    rig.proxy.on_commit(Cut::After, 1);
    rig.finish(parent, Outcome::Succeed { result: None }).await.expect_err("the answer was lost");
    assert_eq!(rig.status(parent.id).await, Status::plain(State::Succeeded));
    assert_eq!(rig.status(child).await, Status::because(State::Cancelled, Reason::Parent));
    assert_eq!(rig.untold(), 2, "nobody has had the time to tell");
    rig.sweep().await;
    let timeline = rig.other.jobs().timeline(parent.id).await.expect("a timeline");
    assert_eq!(timeline.inbox.messages.len(), 1, "the child's end is told as well");
    assert!(rig.other.store().check().await.expect("a look").is_empty());
    rig.engine.close().await;
}

#[tokio::test]
async fn a_sweep_wakes_a_parent_that_was_not_told_of_an_end() {
    let rig = Rig::new().await;
    enqueue(&rig.engine, 0).await;
    let parent = rig.claim(1).await;
    let child = rig.start(parent).await;
    let suspension = Suspension {
        reason: Reason::Child,
        waits: vec![Wait { subject: Subject::Child(child), need: 1 }],
        until: None,
        keep: false,
        writes: Writes::default(),
        note: None,
    };
    rig.finish(parent, Outcome::Suspend(Box::new(suspension))).await.expect("suspended");
    let claim = rig.claim(2).await;
    assert_eq!(claim.id, child);
    // The end itself is one statement: what commits next is its telling.
    rig.proxy.on_commit(Cut::Before, 1);
    rig.finish(claim, Outcome::Succeed { result: None }).await.expect("it is stored");
    assert_eq!(rig.status(child).await, Status::plain(State::Succeeded));
    assert_eq!(rig.status(parent.id).await, Status::because(State::Suspended, Reason::Child));
    rig.sweep().await;
    assert_eq!(rig.status(parent.id).await, Status::plain(State::Ready));
    rig.engine.close().await;
}
