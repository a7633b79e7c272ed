//! A store that fails on demand: it refuses calls, loses answers, cuts nodes off, or does not answer at all.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, Weak};

use mainspring::admin::{NodeNo, Progress};
use mainspring::seam::{Pending, Rng};
use mainspring::{Error, JobId};
use mainspring_core::Result;
use mainspring_core::id::{Claim, ClaimBatchNo};
use mainspring_core::job::New;
use mainspring_core::journal::{Recorded, Recording, Value};
use mainspring_core::memory::Memory;
use mainspring_core::store::decorator::{Call, Decorator, METHODS};
use mainspring_core::store::{
    ClaimRequest, ClaimedBatch, Finish, Finished, Journals, Listener, Nodes, Producers, Receipt, Renewal,
    Renewed, Rescue, Rescued, Store, Swept, Ticket,
};
use tokio::sync::watch;

/// What happens to a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Fault {
    /// It is refused, and nothing happens.
    Refuse,
    /// It happens, and its answer is lost.
    Lose,
    /// It is refused for good, and nothing happens.
    Break,
    /// Its caller panics.
    Panic,
}

/// A memory store that fails on demand. Clones are the same store.
#[derive(Clone)]
pub(crate) struct Faulty {
    memory: Memory,
    state: Arc<Mutex<State>>,
    /// Calls that do not come back until they are let go.
    hung: watch::Sender<BTreeSet<(&'static str, Option<NodeNo>)>>,
}

#[derive(Default)]
struct State {
    planned: BTreeMap<&'static str, VecDeque<Option<Fault>>>,
    outage: bool,
    cut_off: BTreeSet<NodeNo>,
    refused: BTreeSet<&'static str>,
    /// How many bytes a call can carry, if that is bounded, and the most that any ever did.
    narrow: Option<usize>,
    most_bytes: usize,
    /// The most bytes of inputs that any answer brought.
    most_brought: usize,
    storm: Option<(Arc<dyn Rng>, f64)>,
    mute: bool,
    /// How often jobs with these inputs are still contended.
    contended: BTreeMap<Vec<u8>, usize>,
    calls: BTreeMap<&'static str, usize>,
    /// Jobs whose inputs cannot be read.
    damaged: BTreeSet<JobId>,
    /// Calls that take a while.
    slow: BTreeSet<&'static str>,
    /// How many slow calls are under way, and the most that ever were.
    under_way: (usize, usize),
}

impl Faulty {
    pub(crate) fn new(memory: Memory) -> Self {
        Faulty { memory, state: Arc::default(), hung: watch::Sender::default() }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("the faults")
    }

    /// The next calls of an operation meet these faults.
    pub(crate) fn plan(&self, operation: &'static str, faults: &[Fault]) {
        check_name(operation);
        self.state().planned.entry(operation).or_default().extend(faults.iter().copied().map(Some));
    }

    /// The next calls of an operation go through, before those that are planned after this.
    pub(crate) fn skip(&self, operation: &'static str, calls: usize) {
        check_name(operation);
        self.state().planned.entry(operation).or_default().extend(std::iter::repeat_n(None, calls));
    }

    /// All calls are refused, or not any more.
    pub(crate) fn outage(&self, outage: bool) {
        self.state().outage = outage;
    }

    /// All calls of an operation are refused, or not any more.
    pub(crate) fn refuse(&self, operation: &'static str, refuse: bool) {
        check_name(operation);
        let mut state = self.state();
        if refuse {
            state.refused.insert(operation)
        } else {
            state.refused.remove(operation)
        };
    }

    /// Outcomes and records beyond so many bytes do not come through in the time of a call.
    pub(crate) fn narrow(&self, bytes: Option<usize>) {
        self.state().narrow = bytes;
    }

    /// The most bytes of outcomes or records that came in one call.
    pub(crate) fn most_bytes(&self) -> usize {
        self.state().most_bytes
    }

    /// The most bytes of inputs that came in one answer.
    pub(crate) fn most_brought(&self) -> usize {
        self.state().most_brought
    }

    /// An answer that brings inputs.
    fn bring<'a, T: Send + 'a>(
        &'a self,
        call: Pending<'a, Result<T>>,
        bytes: fn(&T) -> usize,
    ) -> Pending<'a, Result<T>> {
        Box::pin(async move {
            let answer = call.await?;
            let mut state = self.state();
            state.most_brought = state.most_brought.max(bytes(&answer));
            drop(state);
            Ok(answer)
        })
    }

    /// The input of this job cannot be read.
    pub(crate) fn damage(&self, job: JobId) {
        self.state().damaged.insert(job);
    }

    /// A call that carries so many bytes.
    fn carry<'a, T: Send + 'a>(
        &'a self,
        operation: &'static str,
        node: NodeNo,
        bytes: usize,
        call: Pending<'a, Result<T>>,
    ) -> Pending<'a, Result<T>> {
        let passes = {
            let mut state = self.state();
            state.most_bytes = state.most_bytes.max(bytes);
            state.narrow.is_none_or(|narrow| bytes <= narrow)
        };
        let late = Box::pin(async { Err(Error::unavailable("not in time")) });
        self.call(operation, Some(node), if passes { call } else { late })
    }

    /// All calls of a node are refused, or not any more.
    pub(crate) fn cut_off(&self, node: NodeNo, cut_off: bool) {
        let mut state = self.state();
        if cut_off {
            state.cut_off.insert(node)
        } else {
            state.cut_off.remove(&node)
        };
    }

    /// From now on, calls meet a fault with this probability.
    pub(crate) fn storm(&self, rng: Arc<dyn Rng>, probability: f64) {
        self.state().storm = Some((rng, probability));
    }

    /// A job with this input is contended this often, as if an open transaction had its key.
    pub(crate) fn contend(&self, input: &str, times: usize) {
        self.state().contended.insert(input.as_bytes().to_vec(), times);
    }

    /// Whether a job is contended this time.
    fn is_contended(&self, job: &New) -> bool {
        let mut state = self.state();
        let left = state.contended.get_mut(&job.input).filter(|left| **left > 0);
        left.map(|left| *left -= 1).is_some()
    }

    /// Stores what is not contended.
    async fn store(&self, jobs: Vec<New>) -> Result<Vec<Receipt>> {
        let contended: Vec<bool> = jobs.iter().map(|job| self.is_contended(job)).collect();
        let free = jobs.into_iter().zip(&contended).filter(|(_, contended)| !**contended);
        let mut stored = self.memory.enqueue(free.map(|(job, _)| job).collect()).await?.into_iter();
        let receipts = contended.iter().map(|contended| {
            if *contended { Receipt::Contended } else { stored.next().expect("one receipt per job") }
        });
        Ok(receipts.collect())
    }

    /// Whoever subscribes from now on hears no hints.
    pub(crate) fn mute(&self) {
        self.state().mute = true;
    }

    pub(crate) fn calm(&self) {
        self.state().storm = None;
    }

    /// Calls of an operation by a node (or by anybody) do not come back, until they are let go.
    pub(crate) fn hang(&self, operation: &'static str, node: Option<NodeNo>, hang: bool) {
        check_name(operation);
        self.hung.send_modify(|hung| {
            if hang {
                hung.insert((operation, node))
            } else {
                hung.remove(&(operation, node))
            };
        });
    }

    /// Lets calls take a while from now on, in which others get their turn.
    pub(crate) fn slow(&self, operation: &'static str) {
        check_name(operation);
        self.state().slow.insert(operation);
    }

    /// The most slow calls that were under way at once.
    pub(crate) fn most_at_once(&self) -> usize {
        self.state().under_way.1
    }

    async fn take_a_while(&self, operation: &'static str) {
        if !self.state().slow.contains(operation) {
            return;
        }
        {
            let (now, most) = &mut self.state().under_way;
            *now += 1;
            *most = (*most).max(*now);
        }
        for _ in 0..20 {
            tokio::task::yield_now().await;
        }
        self.state().under_way.0 -= 1;
    }

    pub(crate) fn calls(&self, operation: &'static str) -> usize {
        self.state().calls.get(operation).copied().unwrap_or(0)
    }

    fn fault(&self, operation: &'static str, node: Option<NodeNo>) -> Option<Fault> {
        let mut state = self.state();
        *state.calls.entry(operation).or_default() += 1;
        let refused = state.outage || state.refused.contains(operation);
        if refused || node.is_some_and(|node| state.cut_off.contains(&node)) {
            return Some(Fault::Refuse);
        }
        if let Some(fault) = state.planned.get_mut(operation).and_then(VecDeque::pop_front) {
            return fault;
        }
        let (rng, probability) = state.storm.as_ref()?;
        (rng.next_unit() < *probability)
            .then(|| if rng.next_unit() < 0.5 { Fault::Refuse } else { Fault::Lose })
    }

    fn call<'a, T: Send + 'a>(
        &'a self,
        operation: &'static str,
        node: Option<NodeNo>,
        call: Pending<'a, Result<T>>,
    ) -> Pending<'a, Result<T>> {
        Box::pin(async move {
            let free =
                |hung: &BTreeSet<_>| !hung.contains(&(operation, node)) && !hung.contains(&(operation, None));
            drop(self.hung.subscribe().wait_for(free).await);
            self.take_a_while(operation).await;
            match self.fault(operation, node) {
                None => call.await,
                Some(Fault::Refuse) => Err(Error::unavailable("on demand")),
                Some(Fault::Panic) => std::panic::panic_any("on demand"),
                Some(Fault::Break) => Err(Error::Corrupt { why: "on demand".into() }),
                Some(Fault::Lose) => {
                    call.await?;
                    Err(Error::OutcomeUnknown { source: None })
                }
            }
        })
    }
}

/// A fault of a method that does not exist would never be met.
fn check_name(operation: &str) {
    assert!(METHODS.iter().any(|method| method.name == operation), "no method is called `{operation}`");
}

/// What tests look at never fails.
const UNHARMED: &[&str] = &[
    "timeline",
    "get",
    "list",
    "counts",
    "change",
    "lines",
    "queues",
    "configure",
    "delete_queue",
    "nodes",
    "check_part",
    "try_write",
    "diagnose",
];

impl Decorator for Faulty {
    fn inner(&self) -> &dyn Store {
        &self.memory
    }

    fn around<C: Call>(&self, call: C) -> Pending<'_, Result<C::Answer>> {
        let answer = call.make(&self.memory);
        let name = C::METHOD.name;
        if UNHARMED.contains(&name) { answer } else { self.call(name, None, answer) }
    }

    fn enqueue(&self, jobs: Vec<New>) -> Pending<'_, Result<Vec<Receipt>>> {
        self.call("enqueue", None, Box::pin(self.store(jobs)))
    }

    fn nudge(&self, id: JobId) {
        *self.state().calls.entry("nudge").or_default() += 1;
        self.memory.nudge(id);
    }

    fn ticket(&self) -> Ticket {
        *self.state().calls.entry("ticket").or_default() += 1;
        self.memory.ticket()
    }

    fn renew(&self, renewal: Renewal) -> Pending<'_, Result<Renewed>> {
        self.call("renew", Some(renewal.node), self.memory.renew(renewal))
    }

    fn retire(&self, node: NodeNo) -> Pending<'_, Result<usize>> {
        self.call("retire", Some(node), self.memory.retire(node))
    }

    fn claim(&self, request: ClaimRequest) -> Pending<'_, Result<ClaimedBatch>> {
        let node = request.node;
        let here = |batch: &ClaimedBatch| {
            let bytes = |input: &Value| if let Value::Here(input) = input { input.len() } else { 0 };
            batch.jobs.iter().map(|job| bytes(&job.input)).sum()
        };
        self.call("claim", Some(node), self.bring(self.memory.claim(request), here))
    }

    fn finish(&self, node: NodeNo, finishes: Vec<Finish>) -> Pending<'_, Result<Vec<Finished>>> {
        let bytes = finishes.iter().map(|finish| finish.outcome.bytes()).sum();
        self.carry("finish", node, bytes, self.memory.finish(node, finishes))
    }

    fn disown(&self, node: NodeNo, settled: ClaimBatchNo, keep: Vec<Claim>) -> Pending<'_, Result<usize>> {
        self.call("disown", Some(node), self.memory.disown(node, settled, keep))
    }

    fn progress(&self, node: NodeNo, progress: Vec<(Claim, Progress)>) -> Pending<'_, Result<()>> {
        self.call("progress", Some(node), self.memory.progress(node, progress))
    }

    fn record(&self, node: NodeNo, recordings: Vec<Recording>) -> Pending<'_, Result<Vec<Recorded>>> {
        let bytes = recordings.iter().map(|recording| recording.writes.bytes()).sum();
        self.carry("record", node, bytes, self.memory.record(node, recordings))
    }

    fn inputs(&self, claims: Vec<Claim>) -> Pending<'_, Result<Vec<Option<Vec<u8>>>>> {
        let damaged = claims.iter().any(|claim| self.state().damaged.contains(&claim.id));
        let corrupt = Box::pin(async { Err(Error::Corrupt { why: "on demand".into() }) });
        let all = |inputs: &Vec<Option<Vec<u8>>>| inputs.iter().flatten().map(Vec::len).sum();
        let read = self.bring(self.memory.inputs(claims), all);
        self.call("inputs", None, if damaged { corrupt } else { read })
    }

    fn rescue(&self, rescue: Rescue) -> Pending<'_, Result<Rescued>> {
        self.call("rescue", Some(rescue.by), self.memory.rescue(rescue))
    }

    fn promote(&self, limit: usize) -> Pending<'_, Result<Swept>> {
        // A sweep of nothing is the test's own look at what is due.
        if limit == 0 {
            self.memory.promote(0)
        } else {
            self.call("promote", None, self.memory.promote(limit))
        }
    }

    fn expire(&self, limit: usize) -> Pending<'_, Result<Swept>> {
        if limit == 0 { self.memory.expire(0) } else { self.call("expire", None, self.memory.expire(limit)) }
    }

    fn subscribe(&self, listener: Weak<dyn Listener>) {
        if !self.state().mute {
            self.memory.subscribe(listener);
        }
    }
}
