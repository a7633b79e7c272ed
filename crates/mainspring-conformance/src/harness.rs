//! One store under test, its clock, and short words for what tests do all the time.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use mainspring_core::id::{Claim, ClaimBatchNo, JobId, NodeId, NodeNo};
use mainspring_core::job::{
    Fault, FaultKind, New, Options, Outcome, Priority, Reason, Record, State, Status, Summary, Verb,
};
use mainspring_core::name::{Kind, Label, QueueName, Tag};
use mainspring_core::seam::Clock;
use mainspring_core::store::{
    Abilities, Changed, ClaimRequest, Claimed, Counts, Filter, Finish, Finished, Node, NodeState, Page,
    Receipt, Registration, Renewal, Renewed, Rescue, Rescued, Store,
};
use mainspring_core::time::Timestamp;
use mainspring_core::{Result, bounds};

use crate::clock::ManualClock;
use crate::rng::SeededRng;

/// The lease of a node that a test does not set up itself.
pub const LEASE: Duration = Duration::from_secs(15);
/// One second.
pub const SECOND: Duration = Duration::from_secs(1);

/// The shortest time that a store can tell.
pub const MICRO: Duration = Duration::from_micros(1);

/// A moment less than a duration.
pub fn just_before(duration: Duration) -> Duration {
    duration.saturating_sub(MICRO)
}

/// A store under test.
///
/// Node numbers, claim batches and ids are minted here, so that a test says only what it is about. Everything that a
/// test does not expect to fail panics if it does.
pub struct Harness {
    /// The store.
    pub store: Arc<dyn Store>,
    /// Its clock.
    pub clock: ManualClock,
    rng: SeededRng,
    batches: Mutex<BTreeMap<NodeNo, u64>>,
    damage: Option<Damager>,
    // Last, because it may hold the directory that the store's files are in.
    open: Box<dyn Fn() -> Arc<dyn Store> + Send + Sync>,
}

/// What of a job is damaged, behind the store's back.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Damage {
    /// Its options, which are not even text.
    Options,
    /// Its claim number, where it waits: `ready` or `suspended`.
    Claim,
    /// What it has recorded: the kind of each entry.
    Journal,
}

impl Damage {
    /// The word for it.
    pub const fn word(self) -> &'static str {
        match self {
            Damage::Options => "options",
            Damage::Claim => "claim",
            Damage::Journal => "journal",
        }
    }
}

/// Damages something of a job, or mends it.
type Damager = Box<dyn Fn(JobId, Damage, Repair) + Send + Sync>;

/// Whether something is mended that was damaged.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Repair {
    /// It is damaged.
    No,
    /// It is mended, as somebody would who knows what it was.
    Yes,
}

impl Harness {
    /// A harness around a fresh store. `open` opens the store, and at each later call another handle on the same data;
    /// it owns whatever the data lives in.
    pub fn new(clock: ManualClock, open: impl Fn() -> Arc<dyn Store> + Send + Sync + 'static) -> Self {
        let store = open();
        Harness {
            store,
            clock,
            rng: SeededRng::new(1),
            batches: Mutex::default(),
            damage: None,
            open: Box::new(open),
        }
    }

    /// The same, whose store can be damaged.
    #[must_use]
    pub fn damaged_by(mut self, hand: impl Fn(JobId, Damage, Repair) + Send + Sync + 'static) -> Self {
        self.damage = Some(Box::new(hand));
        self
    }

    /// Damages something of a job behind the store's back.
    pub fn damage(&self, id: JobId, damage: Damage) {
        self.damage.as_ref().expect("a store that can be damaged")(id, damage, Repair::No);
    }

    /// Mends it by hand.
    pub fn mend(&self, id: JobId, damage: Damage) {
        self.damage.as_ref().expect("a store that can be damaged")(id, damage, Repair::Yes);
    }

    /// Another handle on the same data, as another process would have.
    pub fn other(&self) -> Arc<dyn Store> {
        (self.open)()
    }

    /// The store's time.
    pub fn now(&self) -> Timestamp {
        self.clock.now()
    }

    /// Lets time pass.
    pub fn advance(&self, duration: Duration) {
        self.clock.advance(duration);
    }

    /// A fresh job id.
    pub fn id(&self) -> JobId {
        JobId::mint(self.now(), &self.rng)
    }

    /// A job of kind `k` for queue `q`, due now.
    pub fn job(&self) -> New {
        New {
            id: self.id(),
            kind: kind("k"),
            queue: queue("q"),
            priority: Priority::default(),
            input: b"{}".to_vec(),
            run: None,
            deadline: None,
            options: Options::default(),
            journal: Vec::new(),
        }
    }

    /// That job, changed.
    pub fn job_with(&self, change: impl FnOnce(&mut New)) -> New {
        let mut job = self.job();
        change(&mut job);
        job
    }

    /// Enqueues one job.
    pub async fn enqueue(&self, job: New) -> Receipt {
        let receipts = self.enqueue_all(vec![job]).await;
        assert_eq!(receipts.len(), 1, "one receipt per job");
        receipts[0]
    }

    /// Enqueues jobs.
    pub async fn enqueue_all(&self, jobs: Vec<New>) -> Vec<Receipt> {
        self.store.enqueue(jobs).await.expect("enqueue")
    }

    /// Enqueues a job that must be new.
    pub async fn put(&self, job: New) -> JobId {
        let id = job.id;
        assert_eq!(self.enqueue(job).await, Receipt::Created);
        id
    }

    /// Enqueues [`job`](Harness::job).
    pub async fn put_one(&self) -> JobId {
        self.put(self.job()).await
    }

    /// Enqueues several of them; ids in order.
    pub async fn put_many(&self, count: usize) -> Vec<JobId> {
        let jobs: Vec<New> = (0..count).map(|_| self.job()).collect();
        let ids = jobs.iter().map(|job| job.id).collect();
        for batch in jobs.chunks(bounds::BATCH) {
            let receipts = self.enqueue_all(batch.to_vec()).await;
            assert!(receipts.iter().all(|receipt| *receipt == Receipt::Created));
        }
        ids
    }

    /// A node that handles `k`, `k2` and `k3` on `q`, `q2` and `q3`, with a lease of [`LEASE`].
    pub fn registration(&self) -> Registration {
        Registration {
            id: NodeId::mint(self.now(), &self.rng),
            name: "node".into(),
            version: "1".into(),
            pid: std::process::id(),
            queues: ["q", "q2", "q3"].map(|name| (queue(name), 100)).to_vec(),
            abilities: Abilities { kinds: ["k", "k2", "k3"].map(kind).to_vec(), ..Abilities::default() },
            lease: LEASE,
        }
    }

    /// Registers that node.
    pub async fn node(&self) -> NodeNo {
        self.node_with(|_| {}).await
    }

    /// Registers that node, changed.
    pub async fn node_with(&self, change: impl FnOnce(&mut Registration)) -> NodeNo {
        let mut registration = self.registration();
        change(&mut registration);
        self.store.register(registration).await.expect("register").no
    }

    /// The number of a node's next claim batch.
    pub fn batch(&self, node: NodeNo) -> ClaimBatchNo {
        let mut batches = self.batches.lock().unwrap_or_else(PoisonError::into_inner);
        let batch = batches.entry(node).or_default();
        *batch += 1;
        ClaimBatchNo(*batch)
    }

    /// A request for jobs of `q`, with the next batch number.
    pub fn request(&self, node: NodeNo, limit: usize) -> ClaimRequest {
        ClaimRequest {
            ahead: Vec::new(),
            node,
            batch: self.batch(node),
            queues: vec![(queue("q"), limit)],
            suspects: usize::MAX,
        }
    }

    /// Claims jobs of `q`.
    pub async fn claim(&self, node: NodeNo, limit: usize) -> Vec<Claimed> {
        let request = self.request(node, limit);
        self.claim_as(request).await
    }

    /// The input of a claimed job, such as did not come with its claim.
    pub async fn input(&self, claim: Claim) -> Option<Vec<u8>> {
        self.inputs(vec![claim]).await.remove(0)
    }

    /// Inputs of claimed jobs.
    pub async fn inputs(&self, claims: Vec<Claim>) -> Vec<Option<Vec<u8>>> {
        self.store.inputs(claims).await.expect("inputs")
    }

    /// Claims as a request says.
    pub async fn claim_as(&self, request: ClaimRequest) -> Vec<Claimed> {
        self.try_claim(request).await.expect("claim")
    }

    /// Claims as a request says, or tells why not.
    pub async fn try_claim(&self, request: ClaimRequest) -> Result<Vec<Claimed>> {
        self.store.claim(request).await.map(|batch| batch.jobs)
    }

    /// Claims the one job of `q` that there must be to claim.
    pub async fn claim_one(&self, node: NodeNo) -> Claim {
        let mut claimed = self.claim(node, 1).await;
        assert_eq!(claimed.len(), 1, "there is a job to claim");
        claimed.remove(0).claim
    }

    /// Enqueues a job and claims it for a fresh node.
    pub async fn running(&self) -> (NodeNo, Claim) {
        self.put_one().await;
        let node = self.node().await;
        (node, self.claim_one(node).await)
    }

    /// Ends one claim.
    pub async fn finish(&self, node: NodeNo, claim: Claim, outcome: Outcome) -> Finished {
        let answers = self.store.finish(node, vec![Finish { claim, outcome }]).await.expect("finish");
        assert_eq!(answers.len(), 1, "one answer per finish");
        answers[0]
    }

    /// Ends one claim that must be held.
    pub async fn end(&self, node: NodeNo, claim: Claim, outcome: Outcome) {
        assert_eq!(self.finish(node, claim, outcome).await, Finished::Applied);
    }

    /// Renews a node's lease.
    pub async fn renew(&self, node: NodeNo) -> Renewed {
        self.try_renew(node).await.expect("renew")
    }

    /// Renews a node's lease, or tells why not.
    pub async fn try_renew(&self, node: NodeNo) -> Result<Renewed> {
        self.store.renew(Renewal::new(node)).await
    }

    /// Rescues, by a node that has been steady for long.
    pub async fn rescue(&self, by: NodeNo) -> Rescued {
        self.store
            .rescue(Rescue { by, steady: bounds::LEASE_MAX, seen: Timestamp::MAX })
            .await
            .expect("rescue")
    }

    /// Lets a node's lease lapse and its jobs be rescued, by a fresh node.
    pub async fn lose(&self, node: NodeNo) -> Rescued {
        self.advance(LEASE);
        let rescuer = self.node().await;
        let rescued = self.rescue(rescuer).await;
        assert_eq!(rescued.expired, [node]);
        self.store.retire(rescuer).await.expect("retire");
        rescued
    }

    /// Claims a job for a fresh node and loses that node, so often.
    pub async fn crash(&self, times: usize) {
        for _ in 0..times {
            let node = self.node().await;
            self.claim_one(node).await;
            self.lose(node).await;
        }
    }

    /// Moves all due jobs to `ready`.
    pub async fn promote(&self) -> usize {
        self.store.promote(bounds::BATCH).await.expect("promote").moved
    }

    /// Fails all waiting jobs whose deadline has passed.
    pub async fn expire(&self) -> usize {
        self.store.expire(bounds::BATCH).await.expect("expire").moved
    }

    /// Removes all ended jobs whose retention is over.
    pub async fn prune(&self) -> usize {
        self.store.prune(bounds::BATCH).await.expect("prune")
    }

    /// Everything known of a job.
    pub async fn get(&self, id: JobId) -> Record {
        self.find(id).await.expect("the job is known")
    }

    /// Everything known of a job, if it is known.
    pub async fn find(&self, id: JobId) -> Option<Record> {
        self.store.get(id).await.expect("get")
    }

    /// What a job is.
    pub async fn status(&self, id: JobId) -> Status {
        self.get(id).await.summary.status
    }

    /// Applies a verb to one job.
    pub async fn change(&self, id: JobId, verb: Verb) -> Changed {
        let answers = self.store.change(vec![id], verb, false).await.expect("change");
        assert_eq!(answers.len(), 1, "one answer per id");
        answers[0]
    }

    /// Applies a verb to one job, to which it must apply.
    pub async fn apply(&self, id: JobId, verb: Verb) {
        let answer = self.change(id, verb.clone()).await;
        assert!(matches!(answer, Changed::Applied { .. }), "{verb}: {answer:?}");
    }

    /// How many jobs are in each state.
    pub async fn counts(&self) -> Counts {
        self.store.counts().await.expect("counts")
    }

    /// A node as operators see it.
    pub async fn node_view(&self, node: NodeNo) -> Node {
        let nodes = self.store.nodes().await.expect("nodes");
        nodes.into_iter().find(|one| one.no == node).expect("the node is known")
    }

    /// Whether a node lives.
    pub async fn node_state(&self, node: NodeNo) -> NodeState {
        self.node_view(node).await.state
    }

    /// All jobs that match, over all pages of a size.
    pub async fn list(&self, filter: &Filter, limit: usize) -> Vec<Summary> {
        let mut jobs = Vec::new();
        let mut after = None;
        loop {
            let page = Page { after: after.clone(), limit };
            let listing = self.store.list(filter.clone(), page).await.expect("list");
            jobs.extend(listing.jobs);
            let Some(next) = listing.next else { return jobs };
            assert_ne!(Some(&next), after.as_ref(), "a cursor leads to itself");
            after = Some(next);
        }
    }

    /// The ids of all jobs that match.
    pub async fn ids(&self, filter: &Filter) -> Vec<JobId> {
        self.list(filter, bounds::PAGE).await.into_iter().map(|job| job.id).collect()
    }

    /// Asserts what must hold at all times: the self-check finds nothing, and the counts are those of the listing.
    pub async fn assert_sound(&self) {
        let findings = self.store.check().await.expect("check");
        assert!(findings.is_empty(), "the self-check found {findings:?}");
        let mut counts = Counts::default();
        for job in self.list(&Filter::default(), bounds::PAGE).await {
            *counts.0.entry(job.queue).or_default().entry(job.status.state).or_default() += 1;
        }
        assert_eq!(self.counts().await, counts, "counts are exact");
    }
}

impl fmt::Debug for Harness {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Harness").field("clock", &self.clock).finish_non_exhaustive()
    }
}

/// A queue name.
pub fn queue(name: &str) -> QueueName {
    QueueName::new(name).expect("a queue name")
}

/// A kind.
pub fn kind(name: &str) -> Kind {
    Kind::new(name).expect("a kind")
}

/// A tag.
pub fn tag(text: &str) -> Tag {
    Tag::new(text).expect("a tag")
}

/// A label.
pub fn label(text: &str) -> Label {
    Label::new(text).expect("a label")
}

/// A priority.
pub fn priority(priority: u8) -> Priority {
    Priority::new(priority).expect("a priority")
}

/// Success without result.
pub fn succeed() -> Outcome {
    Outcome::Succeed { result: None }
}

/// A failure that is retried after a delay.
pub fn retry(after: Duration) -> Outcome {
    Outcome::Retry { after, fault: fault("no") }
}

/// The last failure.
pub fn fail() -> Outcome {
    Outcome::Fail { reason: Reason::Exhausted, fault: fault("no") }
}

/// A cancellation by an operator, as the node confirms it.
pub fn stopped(why: &str) -> Outcome {
    Outcome::Cancel { reason: Reason::Operator, why: why.into() }
}

/// An operator's wish to cancel.
pub fn cancel(why: &str) -> Verb {
    Verb::Cancel { why: why.into() }
}

/// Something that went wrong.
pub fn fault(message: &str) -> Fault {
    Fault::new(FaultKind::Error, message)
}

/// A state without a reason.
pub fn plain(state: State) -> Status {
    Status::plain(state)
}

/// A state with its reason.
pub fn because(state: State, reason: Reason) -> Status {
    Status::because(state, reason)
}

/// The ids of what was claimed, in order.
pub fn claimed_ids(claimed: &[Claimed]) -> Vec<JobId> {
    claimed.iter().map(|job| job.claim.id).collect()
}
