//! A small world on a store: what pairs are made of, and what can be seen of it afterwards.
//!
//! The same world is made on Postgres and on the model. Numbers of nodes and jobs are each store's own; whatever is
//! compared names nodes by the order in which they joined.

use std::fmt::{Debug, Write as _};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use mainspring_core::id::{Claim, ClaimBatchNo, JobId, NodeId, NodeNo, Row};
use mainspring_core::job::{
    New, OnConflict, Options, Outcome, Priority, Progress, Unique, Until, Verb, When,
};
use mainspring_core::journal::Inbox;
use mainspring_core::memory::Memory;
use mainspring_core::seam::Clock;
use mainspring_core::store::{
    Abilities, ClaimRequest, Filter, Finish, Mark, Page, QueueChange, Receipt, Registration, Renewal, Rescue,
    Rescued, Store,
};
use mainspring_core::{Result, bounds};
use mainspring_testkit::clock::{ManualClock, START};
use mainspring_testkit::executor::block_on;
use mainspring_testkit::harness::{LEASE, kind, queue};

/// The id that asks, at the end, who holds a key.
const PROBE: u8 = 99;
/// The key that jobs of a pair share.
const KEY: &str = "key";

/// Two handles on one store.
pub(crate) struct TwoHandles {
    pub(crate) stores: [Arc<dyn Store>; 2],
    pub(crate) clock: ManualClock,
    pub(crate) nodes: Vec<NodeNo>,
    pub(crate) claims: Vec<Claim>,
    pub(crate) claims_of_second: Vec<Claim>,
    /// Jobs returned and quarantined, if anybody was rescued.
    rescued: Mutex<Option<(usize, usize)>>,
}

impl TwoHandles {
    /// A fresh world on the model.
    pub(crate) fn model() -> Self {
        let clock = ManualClock::new();
        let model = Memory::new(Arc::new(clock.clone()));
        let other = model.another();
        TwoHandles::on([Arc::new(model), Arc::new(other)], clock)
    }

    /// A world on a store that is empty.
    pub(crate) fn on(stores: [Arc<dyn Store>; 2], clock: ManualClock) -> Self {
        clock.set_wall(START);
        TwoHandles {
            stores,
            clock,
            nodes: Vec::new(),
            claims: Vec::new(),
            claims_of_second: Vec::new(),
            rescued: Mutex::default(),
        }
    }

    // What a pair begins with.

    /// Both handles know that nothing is paused.
    pub(crate) fn settings(&mut self) {
        let change = QueueChange {
            paused: Some(false),
            backoff: Some(None),
            retain_succeeded: Some(Duration::from_hours(1)),
            retain_failed: Some(Duration::from_hours(1)),
        };
        for store in &self.stores {
            block_on(store.configure(queue("q"), change.clone())).expect("configure");
        }
    }

    /// A node on each handle.
    pub(crate) fn two_nodes(&mut self) {
        for handle in 0..2 {
            let registration = registration(u8::try_from(handle).expect("a small number"));
            self.nodes.push(block_on(self.stores[handle].register(registration)).expect("register").no);
        }
    }

    /// Jobs that are there.
    pub(crate) fn put(&mut self, jobs: Vec<New>) {
        let receipts = block_on(self.stores[0].enqueue(jobs)).expect("enqueue");
        assert!(receipts.iter().all(|receipt| *receipt == Receipt::Created), "{receipts:?}");
    }

    /// The first node holds so many jobs, from batch 1.
    pub(crate) fn held(&mut self, limit: usize) {
        let claimed = block_on(self.stores[0].claim(self.request(0, 1, limit))).expect("claim").jobs;
        assert_eq!(claimed.len(), limit, "there are jobs to claim");
        let mut claims: Vec<Claim> = claimed.iter().map(|job| job.claim).collect();
        claims.sort_by_key(|claim| claim.id);
        self.claims.extend(claims);
    }

    /// The second node holds so many jobs, from batch 1.
    pub(crate) fn held_by_second(&mut self, limit: usize) {
        let claimed = block_on(self.stores[1].claim(self.request(1, 1, limit))).expect("claim").jobs;
        assert_eq!(claimed.len(), limit, "there are jobs to claim");
        self.claims_of_second.extend(claimed.iter().map(|job| job.claim));
    }

    /// Something is done before the pair meets.
    pub(crate) fn done(&mut self, operation: &Operation) {
        let _answer = operation.on(self, 0);
    }

    /// The same, after the pair has met.
    pub(crate) fn done_by_reference(&self, operation: &Operation) {
        let _answer = operation.on(self, 0);
    }

    pub(crate) fn advance(&mut self, duration: Duration) {
        self.clock.advance(duration);
    }

    /// The first node's lease lapses; the second one's does not.
    pub(crate) fn lapse(&mut self) {
        self.clock.advance(LEASE);
        let renewal = Renewal::new(self.nodes[1]);
        block_on(self.stores[1].renew(renewal)).expect("renew");
    }

    fn request(&self, node: usize, batch: u64, limit: usize) -> ClaimRequest {
        ClaimRequest {
            ahead: Vec::new(),
            node: self.nodes[node],
            batch: ClaimBatchNo(batch),
            queues: vec![(queue("q"), limit)],
            suspects: usize::MAX,
        }
    }

    fn rescue(&self, store: &dyn Store, node: usize) -> Result<Rescued> {
        let now = Clock::now(&self.clock);
        let rescue = Rescue { by: self.nodes[node], steady: bounds::LEASE_MAX, seen: now };
        let rescued = block_on(store.rescue(rescue))?;
        let mut total = self.rescued.lock().unwrap_or_else(PoisonError::into_inner);
        let (returned, quarantined) = total.unwrap_or_default();
        *total = Some((returned + rescued.returned, quarantined + rescued.quarantined));
        Ok(rescued)
    }

    /// Goes on until there is nothing left to rescue.
    fn rescue_the_rest(&self) -> Option<(usize, usize)> {
        let total = || *self.rescued.lock().unwrap_or_else(PoisonError::into_inner);
        total()?;
        // The rescuer may have retired meanwhile; then somebody else does it.
        while self.rescue(&*self.stores[1], 1).is_ok_and(|rescued| rescued.more) {}
        total()
    }

    // What is seen afterwards.

    /// All that can be seen, as text. `keyed`: who holds the key as well, which takes an enqueue to see.
    pub(crate) fn view(&self, keyed: bool) -> String {
        let store = &*self.stores[0];
        let rescued = self.rescue_the_rest();
        let findings = block_on(store.check()).expect("check");
        assert!(findings.is_empty(), "the self-check found {findings:?}");
        let mut view = format!("returned and quarantined: {rescued:?}\n");
        let page = Page { after: None, limit: bounds::PAGE };
        for mut job in block_on(store.list(Filter::default(), page)).expect("list").jobs {
            job.node = job.node.map(|node| self.named(node));
            let mut record = block_on(store.get(job.id)).expect("get").expect("what is listed is there");
            record.summary.node = record.summary.node.map(|node| self.named(node));
            for error in &mut record.errors {
                error.node = self.named(error.node);
            }
            assert_eq!(record.summary, job, "a job is listed as it is");
            let _ = writeln!(view, "{record:?}");
            let mut timeline =
                block_on(store.timeline(job.id)).expect("timeline").expect("what is listed is there");
            unnumbered(&mut timeline.inbox);
            let _ = writeln!(view, "{timeline:?}");
        }
        let _ = writeln!(view, "{:?}", block_on(store.counts()).expect("counts"));
        let queues = block_on(store.queues()).expect("queues");
        for one in queues.iter().filter(|one| one.name == queue("q")) {
            let _ = writeln!(view, "{one:?}");
        }
        for mut node in block_on(store.nodes()).expect("nodes") {
            node.no = self.named(node.no);
            let _ = writeln!(view, "{node:?}");
        }
        if keyed {
            let probe = block_on(store.enqueue(vec![keyed_job(PROBE, OnConflict::Keep)])).expect("enqueue");
            let _ = writeln!(view, "the key: {probe:?}");
        }
        view
    }

    /// A node by the order of joining; one that joined later is the next.
    fn named(&self, node: NodeNo) -> NodeNo {
        let place = self.nodes.iter().position(|one| *one == node).unwrap_or(self.nodes.len());
        NodeNo(i64::try_from(place).expect("few nodes"))
    }
}

/// Numbers of messages are each store's own.
fn unnumbered(inbox: &mut Inbox) {
    for message in &mut inbox.messages {
        message.no = 0;
    }
}

type OperationBody = dyn Fn(&TwoHandles, &dyn Store) -> String + Send + Sync;

/// One operation of a pair, as it is done on one of the handles, and its answer as text.
#[derive(Clone)]
pub(crate) struct Operation(Arc<OperationBody>);

impl Operation {
    pub(crate) fn new<T: Debug>(
        operation: impl Fn(&TwoHandles, &dyn Store) -> Result<T> + Send + Sync + 'static,
    ) -> Self {
        Operation(Arc::new(move |world, store| match operation(world, store) {
            Ok(answer) => format!("{answer:?}"),
            Err(error) => format!("error: {error}"),
        }))
    }

    /// Answers that it did nothing, and does nothing: what a store may do that another transaction stands in the way of.
    pub(crate) fn answers(answer: &'static str) -> Self {
        Operation(Arc::new(move |_, _| answer.to_owned()))
    }

    pub(crate) fn on(&self, world: &TwoHandles, handle: usize) -> String {
        (self.0)(world, &*world.stores[handle])
    }
}

/// Claims for a node.
pub(crate) fn claim(node: usize, batch: u64, limit: usize) -> Operation {
    Operation::new(move |world, store| {
        let mut claimed = block_on(store.claim(world.request(node, batch, limit)))?.jobs;
        for job in &mut claimed {
            job.claim.row = Row(0);
            if let Some(journal) = &mut job.journal {
                unnumbered(&mut journal.inbox);
            }
        }
        claimed.sort_by_key(|job| job.claim.id);
        Ok(claimed)
    })
}

/// The first node ends its claims, each so.
pub(crate) fn finish(outcomes: impl Into<Vec<Outcome>>) -> Operation {
    let outcomes = outcomes.into();
    Operation::new(move |world, store| {
        let ends = world.claims.iter().zip(&outcomes);
        let ends = ends.map(|(claim, outcome)| Finish { claim: *claim, outcome: outcome.clone() });
        block_on(store.finish(world.nodes[0], ends.collect()))
    })
}

pub(crate) fn enqueue(jobs: Vec<New>) -> Operation {
    Operation::new(move |_, store| block_on(store.enqueue(jobs.clone())))
}

/// A verb on jobs.
pub(crate) fn change(jobs: &'static [u8], verb: Verb) -> Operation {
    Operation::new(move |_, store| {
        block_on(store.change(jobs.iter().map(|job| id(*job)).collect(), verb.clone(), false))
    })
}

/// The second node rescues.
pub(crate) fn rescue() -> Operation {
    rescue_by(1)
}

/// A node rescues. It may leave what others hold for the next call, so jobs are counted when all calls are over.
pub(crate) fn rescue_by(node: usize) -> Operation {
    Operation::new(move |world, store| {
        let mut rescued = world.rescue(store, node)?;
        for node in &mut rescued.expired {
            *node = world.named(*node);
        }
        Ok((rescued.now, rescued.expired, rescued.shortest_lease))
    })
}

pub(crate) fn retire(node: usize) -> Operation {
    Operation::new(move |world, store| block_on(store.retire(world.nodes[node])))
}

/// The first node disowns all that came from batch 1.
pub(crate) fn disown() -> Operation {
    Operation::new(|world, store| block_on(store.disown(world.nodes[0], ClaimBatchNo(1), Vec::new())))
}

/// The first node renews, with a mark on each claim.
pub(crate) fn renew(mark: Option<Mark>) -> Operation {
    Operation::new(move |world, store| {
        let marks = world.claims.iter().filter_map(|claim| Some((*claim, mark?))).collect();
        let renewed = block_on(store.renew(Renewal { marks, ..Renewal::new(world.nodes[0]) }))?;
        let mut cancel: Vec<_> =
            renewed.cancel.into_iter().map(|(claim, why)| (claim.id, claim.number, why)).collect();
        cancel.sort();
        Ok((renewed.now, cancel))
    })
}

pub(crate) fn progress(done: u64) -> Operation {
    Operation::new(move |world, store| {
        let said = |claim: &Claim| (*claim, Progress { done, total: 9, note: "so far".into() });
        block_on(store.progress(world.nodes[0], world.claims.iter().map(said).collect()))
    })
}

pub(crate) fn promote(limit: usize) -> Operation {
    Operation::new(move |_, store| block_on(store.promote(limit)))
}

pub(crate) fn expire(limit: usize) -> Operation {
    Operation::new(move |_, store| block_on(store.expire(limit)))
}

pub(crate) fn prune(limit: usize) -> Operation {
    Operation::new(move |_, store| block_on(store.prune(limit)))
}

pub(crate) fn configure(change: QueueChange) -> Operation {
    Operation::new(move |_, store| block_on(store.configure(queue("q"), change.clone())))
}

pub(crate) fn delete_queue() -> Operation {
    Operation::new(|_, store| block_on(store.delete_queue(queue("q"))))
}

/// A third node joins.
pub(crate) fn register() -> Operation {
    Operation::new(|world, store| {
        let member = block_on(store.register(registration(2)))?;
        Ok((world.named(member.no), member.now))
    })
}

/// A third node, for what comes after a pair.
pub(crate) fn register_third(world: &TwoHandles) -> NodeNo {
    block_on(world.stores[0].register(registration(3))).expect("register").no
}

pub(crate) fn id(job: u8) -> JobId {
    JobId::from_bytes([job; 16])
}

/// A job that is due now.
pub(crate) fn job(number: u8) -> New {
    New {
        id: id(number),
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

/// A job that is due in a second.
pub(crate) fn later(number: u8) -> New {
    New { run: Some(When::After(Duration::from_secs(1))), ..job(number) }
}

/// A job whose deadline is in a second.
pub(crate) fn urgent(number: u8) -> New {
    New { deadline: Some(When::After(Duration::from_secs(1))), ..job(number) }
}

/// A job with the pair's key.
pub(crate) fn keyed_job(number: u8, on_conflict: OnConflict) -> New {
    keyed_until(number, on_conflict, Until::Finished)
}

pub(crate) fn keyed_until(number: u8, on_conflict: OnConflict, until: Until) -> New {
    let unique = Unique { key: KEY.into(), until, on_conflict };
    New { options: Options { unique: Some(unique), ..Options::default() }, ..job(number) }
}

fn registration(number: u8) -> Registration {
    Registration {
        id: NodeId::from_bytes([number; 16]),
        name: format!("node {number}"),
        version: "1".into(),
        pid: 1,
        queues: vec![(queue("q"), 10)],
        abilities: Abilities { kinds: vec![kind("k")], ..Abilities::default() },
        lease: LEASE,
    }
}
