//! One life: the same operations on the store and on the model.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use mainspring_core::id::{Claim, ClaimBatchNo, JobId, NodeNo};
use mainspring_core::job::{New, Options, Progress, Unique, When};
use mainspring_core::memory::Memory;
use mainspring_core::store::{
    Cancellation, ClaimRequest, Finish, Mark, Nodes, Operators, Producers, QueueChange, Registration,
    Renewal, Rescue, Store,
};

use super::op::{ALL, ClaimRef, End, JobDraft, NAMES, NODES, Op};
use super::view::{Numbers, View, answers, claimed, named, output, record, same, timeline};
use super::workflow::entry;
use crate::harness::{Harness, kind, label, queue};

/// More than the universe holds: sweeps with a limit are the conformance suite's.
pub(super) const LIMIT: usize = 1_000;
/// The names of queues and of kinds.
pub(super) const QUEUES: [&str; NAMES] = ["q", "q2", "q3"];
pub(super) const KINDS: [&str; NAMES] = ["k", "k2", "k3"];

/// How long the lease of each slot's node lasts.
const LEASES: [Duration; NODES] = [Duration::from_secs(3), Duration::from_secs(5), Duration::from_mins(1)];

/// Two of the same: the model's and the store's.
#[derive(Clone, Copy)]
pub(super) struct Pair<T> {
    pub(super) model: T,
    pub(super) store: T,
}

/// The node in a slot.
struct Slot {
    registration: Registration,
    no: Pair<NodeNo>,
    batch: u64,
}

/// A claim that was made at some time.
pub(super) struct PastClaim {
    slot: usize,
    by: Pair<NodeNo>,
    pub(super) claim: Pair<Claim>,
}

/// A store and its model.
pub(super) struct Life<'a> {
    pub(super) harness: &'a Harness,
    pub(super) model: Memory,
    /// Two handles on the store: slots are spread over them, as nodes are over processes.
    handles: [Arc<dyn Store>; 2],
    slots: [Option<Slot>; NODES],
    made: Vec<PastClaim>,
    numbers: Numbers,
    steps: usize,
    went_back: bool,
    /// Whether jobs have limits.
    pub(super) limits: bool,
}

impl<'a> Life<'a> {
    pub(super) fn new(harness: &'a Harness, limits: bool) -> Self {
        Life {
            harness,
            model: Memory::new(Arc::new(harness.clock.clone())),
            handles: [Arc::clone(&harness.store), harness.other()],
            slots: [const { None }; NODES],
            made: Vec::new(),
            numbers: BTreeMap::new(),
            steps: 0,
            went_back: false,
            limits,
        }
    }

    /// Names all queues: whether a job that is not stored does so is a store's own affair.
    pub(super) async fn begin(&self) -> Result<(), String> {
        for name in QUEUES {
            let model = self.model.configure(queue(name), QueueChange::default()).await;
            equal("configured", model, self.any().configure(queue(name), QueueChange::default()).await)?;
        }
        if self.limits { self.define_limits().await } else { Ok(()) }
    }

    /// Does one thing to both, and compares.
    pub(super) async fn live(&mut self, op: &Op) -> Result<(), String> {
        self.steps += 1;
        self.act(op).await?;
        let ids: Vec<JobId> = (0..ALL).map(id).collect();
        let model = View::of(&self.model, ids.clone(), &own(&self.numbers)).await?;
        let store = View::of(&*self.any(), ids, &self.numbers).await?;
        View::agree(&model, &store)?;
        if self.limits { self.compare_limits().await } else { Ok(()) }
    }

    /// Compares all that is known of every job.
    pub(super) async fn end(&self) -> Result<(), String> {
        for job in 0..ALL {
            self.look(job).await?;
        }
        Ok(())
    }

    async fn look(&self, job: usize) -> Result<(), String> {
        let model = record(&self.model, id(job), &own(&self.numbers)).await?;
        let store = record(&*self.any(), id(job), &self.numbers).await?;
        same("a record", &model, &store)?;
        let (model, store) = (timeline(&self.model, id(job)).await?, timeline(&*self.any(), id(job)).await?);
        same("a timeline", &model, &store)?;
        let (model, store) = (output(&self.model, id(job)).await?, output(&*self.any(), id(job)).await?);
        same("an output", &model, &store)?;
        if self.limits { self.compare_obstacle(id(job)).await } else { Ok(()) }
    }

    async fn act(&mut self, op: &Op) -> Result<(), String> {
        match op {
            Op::Enqueue(drafts) => self.enqueue(drafts).await,
            Op::Start(slot) => self.start(*slot).await,
            Op::Register(slot) => self.register(*slot).await,
            Op::Renew(slot, marks) => self.renew(*slot, marks).await,
            Op::Retire(_) | Op::Disown(..) | Op::Rescue(..) | Op::Lose(_) if self.is_tangled().await? => {
                Ok(())
            }
            Op::Expire if self.late_are_related().await? => Ok(()),
            Op::Retire(slot) => {
                let Some(no) = self.node(*slot) else { return Ok(()) };
                let (model, store) =
                    (self.model.retire(no.model).await, self.of(*slot).retire(no.store).await);
                equal("released", model, store)
            }
            Op::Claim { node, queues, suspects, repeat } => {
                self.claim(*node, queues, *suspects, *repeat).await
            }
            Op::Finish(ends) => self.finish(ends).await,
            Op::Disown(slot, back, keep) => self.disown(*slot, *back, keep).await,
            Op::Progress(who, done) => self.progress(*who, *done).await,
            Op::Record(notes) => self.record(notes).await,
            Op::Signal(signals) => self.signal(signals).await,
            Op::Look(job) => self.look(*job).await,
            Op::Rescue(slot, steady, ago) => self.rescue(*slot, *steady, *ago).await,
            Op::Lose(who) => {
                let Some(slot) = self.made(*who).map(|made| made.slot) else { return Ok(()) };
                let next = (slot + 1) % NODES;
                self.harness.advance(LEASES[slot]);
                self.start(next).await?;
                self.rescue(next, LEASES[slot], Duration::ZERO).await
            }
            Op::Promote if self.limits => self.promote_with_limits().await,
            Op::SetLimit(limit, max, paused) => self.set_limit(*limit, *max, *paused).await,
            Op::SetLimitKey(limit, key, max, paused) => self.set_limit_key(*limit, *key, *max, *paused).await,
            Op::DropLimit(limit, reset) => self.drop_limit(*limit, *reset).await,
            Op::SetTotal(name, of_queue, max) => self.set_total(*name, *of_queue, *max).await,
            Op::Promote => {
                equal("promoted", self.model.promote(LIMIT).await, self.any().promote(LIMIT).await)
            }
            Op::Expire => equal("expired", self.model.expire(LIMIT).await, self.any().expire(LIMIT).await),
            // A store may remove in the order of ending, and then later than it could after the clock went back.
            Op::Prune if self.went_back => Ok(()),
            Op::Prune => equal("pruned", self.model.prune(LIMIT).await, self.any().prune(LIMIT).await),
            Op::Change(jobs, verb, dry_run) => {
                let ids: Vec<JobId> = jobs.iter().map(|job| id(*job)).collect();
                for ids in self.apart(ids, |id| *id).await? {
                    let model = self.model.change(ids.clone(), verb.clone(), *dry_run).await;
                    equal("changed", model, self.any().change(ids, verb.clone(), *dry_run).await)?;
                }
                Ok(())
            }
            Op::Configure(name, change) => {
                let model = self.model.configure(queue(QUEUES[*name]), change.clone()).await;
                let store = self.any().configure(queue(QUEUES[*name]), change.clone()).await;
                equal("configured", model, store)
            }
            Op::DeleteQueue(name) => {
                let model = self.model.delete_queue(queue(QUEUES[*name])).await;
                equal("deleted", model, self.any().delete_queue(queue(QUEUES[*name])).await)
            }
            Op::Advance(duration) => {
                self.harness.advance(*duration);
                Ok(())
            }
            Op::Back(duration) => {
                self.went_back = true;
                self.harness.clock.set_wall(self.harness.now().before(*duration));
                Ok(())
            }
        }
    }

    async fn enqueue(&self, drafts: &[JobDraft]) -> Result<(), String> {
        let jobs: Vec<New> = drafts.iter().map(new).collect();
        let model = self.model.enqueue(jobs.clone()).await;
        equal("receipts", model, self.any().enqueue(jobs).await)
    }

    async fn start(&mut self, slot: usize) -> Result<(), String> {
        let mut registration = self.harness.registration();
        // The slots differ in what they can do and in how long their leases are.
        registration.lease = LEASES[slot];
        registration.abilities.kinds = KINDS[..=slot.max(1)].iter().map(|name| kind(name)).collect();
        registration.abilities.labels = if slot == 0 { Vec::new() } else { vec![label("gpu")] };
        registration.queues = vec![(queue(QUEUES[slot]), 1)];
        let model = self.model.register(registration.clone()).await;
        let store = self.of(slot).register(registration.clone()).await;
        if let Some((model, store)) = answers(model, store)? {
            same("the time", &model.now, &store.now)?;
            self.numbers.insert(store.no, model.no);
            let no = Pair { model: model.no, store: store.no };
            self.slots[slot] = Some(Slot { registration, no, batch: 0 });
        }
        Ok(())
    }

    async fn register(&mut self, slot: usize) -> Result<(), String> {
        let Some(known) = &self.slots[slot] else { return Ok(()) };
        let (was, registration) = (known.no, known.registration.clone());
        let model = self.model.register(registration.clone()).await;
        let store = self.of(slot).register(registration.clone()).await;
        let Some((model, store)) = answers(model, store)? else { return Ok(()) };
        same("the time", &model.now, &store.now)?;
        same("whether the node is known", &(model.no == was.model), &(store.no == was.store))?;
        if model.no != was.model {
            // It was pruned meanwhile, and is a new one for both.
            self.numbers.insert(store.no, model.no);
            let no = Pair { model: model.no, store: store.no };
            self.slots[slot] = Some(Slot { registration, no, batch: 0 });
        }
        Ok(())
    }

    async fn renew(&self, slot: usize, marks: &[(ClaimRef, Mark)]) -> Result<(), String> {
        let Some(no) = self.node(slot) else { return Ok(()) };
        let marks: Vec<_> =
            marks.iter().filter_map(|(who, mark)| Some((self.made(*who)?.claim, *mark))).collect();
        let of_model = marks.iter().map(|(claim, mark)| (claim.model, *mark)).collect();
        let of_store = marks.iter().map(|(claim, mark)| (claim.store, *mark)).collect();
        // Some say so and some do not; and whoever has said so takes it back.
        let backed_up = marks.len() % 2 == 1;
        let model = self.model.renew(Renewal { marks: of_model, backed_up, ..Renewal::new(no.model) }).await;
        let store =
            self.of(slot).renew(Renewal { marks: of_store, backed_up, ..Renewal::new(no.store) }).await;
        let Some((model, store)) = answers(model, store)? else { return Ok(()) };
        same("the time", &model.now, &store.now)?;
        let flagged = |cancel: Vec<(Claim, Cancellation)>| {
            let mut flagged: Vec<_> =
                cancel.into_iter().map(|(claim, why)| (claim.id, claim.number, why)).collect();
            flagged.sort();
            flagged
        };
        same("cancellations", &flagged(model.cancel), &flagged(store.cancel))
    }

    async fn claim(
        &mut self,
        slot: usize,
        queues: &[(usize, usize)],
        suspects: usize,
        repeat: bool,
    ) -> Result<(), String> {
        let Some(known) = &mut self.slots[slot] else { return Ok(()) };
        known.batch += u64::from(!repeat || known.batch == 0);
        let (no, batch) = (known.no, ClaimBatchNo(known.batch));
        let queues: Vec<_> = queues.iter().map(|(name, limit)| (queue(QUEUES[*name]), *limit)).collect();
        // Every second claim is made by a node whose slots are half busy.
        let busy = queues.iter().filter(|_| batch.0 % 2 == 0);
        let ahead: Vec<_> = busy.map(|(name, limit)| (name.clone(), limit / 2)).collect();
        let request =
            |node| ClaimRequest { node, batch, queues: queues.clone(), ahead: ahead.clone(), suspects };
        let store = self.of(slot).claim(request(no.store)).await;
        // The store chooses and the model follows, if the choice was legal.
        let chosen = store.as_ref().map(|batch| batch.jobs.iter().map(|job| job.claim.id).collect());
        let model = self.model.follow(request(no.model), chosen.unwrap_or_default()).await;
        let Some((model, store)) = answers(model, store)? else { return Ok(()) };
        same("the time", &model.now, &store.now)?;
        let own = claimed(&self.model, &model.jobs).await?;
        same("claimed", &own, &claimed(&*self.of(slot), &store.jobs).await?)?;
        for (one, other) in model.jobs.iter().zip(&store.jobs) {
            let claim = Pair { model: one.claim, store: other.claim };
            self.made.push(PastClaim { slot, by: no, claim });
        }
        Ok(())
    }

    async fn finish(&self, ends: &[(ClaimRef, End)]) -> Result<(), String> {
        let Some(first) = ends.first().and_then(|(who, _)| self.made(*who).map(|made| (who, made))) else {
            return Ok(());
        };
        let (slot, node) = self.speaker(*first.0, first.1);
        let made: Vec<_> = ends.iter().filter_map(|(who, end)| Some((self.made(*who)?, end))).collect();
        for ends in self.apart(made, |(made, _)| made.claim.model.id).await? {
            let (mut of_model, mut of_store) = (Vec::new(), Vec::new());
            for (made, end) in ends {
                let Pair { model, store } = self.outcome(made, end).await?;
                of_model.push(Finish { claim: made.claim.model, outcome: model });
                of_store.push(Finish { claim: made.claim.store, outcome: store });
            }
            let model = self.model.finish(node.model, of_model).await;
            equal("finished", model, self.of(slot).finish(node.store, of_store).await)?;
        }
        Ok(())
    }

    async fn disown(&self, slot: usize, back: u64, keep: &[ClaimRef]) -> Result<(), String> {
        let Some(known) = &self.slots[slot] else { return Ok(()) };
        let settled = ClaimBatchNo(known.batch.saturating_sub(back));
        let keep: Vec<_> = keep.iter().filter_map(|who| Some(self.made(*who)?.claim)).collect();
        let of_model = keep.iter().map(|claim| claim.model).collect();
        let of_store = keep.iter().map(|claim| claim.store).collect();
        let model = self.model.disown(known.no.model, settled, of_model).await;
        equal("disowned", model, self.of(slot).disown(known.no.store, settled, of_store).await)
    }

    async fn progress(&self, who: ClaimRef, done: u64) -> Result<(), String> {
        let Some(made) = self.made(who) else { return Ok(()) };
        let (slot, node) = self.speaker(who, made);
        let progress = Progress { done, total: 7, note: "on its way".into() };
        let model = self.model.progress(node.model, vec![(made.claim.model, progress.clone())]).await;
        let store = self.of(slot).progress(node.store, vec![(made.claim.store, progress)]).await;
        equal("progress", model, store)
    }

    async fn rescue(&self, slot: usize, steady: Duration, ago: Duration) -> Result<(), String> {
        let Some(no) = self.node(slot) else { return Ok(()) };
        let seen = self.harness.now().before(ago);
        let model = self.model.rescue(Rescue { by: no.model, steady, seen }).await;
        let store = self.of(slot).rescue(Rescue { by: no.store, steady, seen }).await;
        let Some((mut model, mut store)) = answers(model, store)? else { return Ok(()) };
        store.expired.iter_mut().for_each(|node| *node = named(*node, &self.numbers));
        model.expired.sort();
        store.expired.sort();
        same("rescued", &model, &store)
    }

    fn node(&self, slot: usize) -> Option<Pair<NodeNo>> {
        self.slots[slot].as_ref().map(|slot| slot.no)
    }

    /// A claim that was made before; `None` if there was none at all.
    pub(super) fn made(&self, who: ClaimRef) -> Option<&PastClaim> {
        self.made.iter().rev().nth(who.back % self.made.len().max(1))
    }

    /// Who speaks of a claim: the node that made it, or a stranger, if there is one.
    pub(super) fn speaker(&self, who: ClaimRef, made: &PastClaim) -> (usize, Pair<NodeNo>) {
        let other = (made.slot + 1) % NODES;
        match self.node(other).filter(|_| who.stranger) {
            Some(stranger) => (other, stranger),
            None => (made.slot, made.by),
        }
    }

    /// The handle that a slot's node uses.
    pub(super) fn of(&self, slot: usize) -> Arc<dyn Store> {
        Arc::clone(&self.handles[slot % 2])
    }

    /// One handle or the other: what is no node's comes from anywhere.
    pub(super) fn any(&self) -> Arc<dyn Store> {
        Arc::clone(&self.handles[self.steps / 3 % 2])
    }
}

/// The model's own numbers, which stay as they are.
fn own(numbers: &Numbers) -> Numbers {
    numbers.values().map(|no| (*no, *no)).collect()
}

pub(super) fn equal<T: std::fmt::Debug + PartialEq>(
    what: &str,
    model: mainspring_core::Result<T>,
    store: mainspring_core::Result<T>,
) -> Result<(), String> {
    answers(model, store)?.map_or(Ok(()), |(model, store)| same(what, &model, &store))
}

pub(super) fn id(job: usize) -> JobId {
    let number = u8::try_from(job).expect("the universe is small");
    JobId::from_bytes([number; 16])
}

pub(super) fn new(draft: &JobDraft) -> New {
    let unique = draft.unique.map(|(key, until, on_conflict)| Unique {
        key: format!("key {key}"),
        until,
        on_conflict,
    });
    let labels = if draft.labelled { vec![label("gpu")] } else { Vec::new() };
    New {
        id: id(draft.job),
        kind: kind(KINDS[draft.kind]),
        queue: queue(QUEUES[draft.queue]),
        priority: draft.priority,
        input: vec![u8::try_from(draft.job).unwrap_or(0)],
        run: draft.run.map(When::After),
        deadline: draft.deadline.map(When::After),
        options: Options { unique, labels, limits: super::limits::uses(&draft.limits), ..Options::default() },
        journal: draft.shares.iter().map(|step| entry(*step, 0, false)).collect(),
    }
}
