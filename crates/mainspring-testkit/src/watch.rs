//! A store that is watched: what it says to nodes is noted, and the way to it may be long and dangerous.
//!
//! [`WatchedStore`] stands between an engine and its store. Every call takes a [`Transport`]: [`Direct`] for processes that meet a
//! real store, the simulator's network otherwise. What is asked for is noted before it goes; what the store says is noted
//! next to the store, so that a call whose answer is lost on the way back has still been seen. What callers are told is
//! theirs to note.

use std::sync::{Arc, Weak};

use mainspring_core::Result;
use mainspring_core::id::{Claim, ClaimBatchNo, JobId, NodeNo};
use mainspring_core::job::{New, Outcome, Progress, Record, Verb, When};
use mainspring_core::journal::{
    Inbox, JobEnd, OnClose, Recorded, Recording, Signal, Signalled, Subject, Timeline,
};
use mainspring_core::name::{Key, QueueName, SignalName};
use mainspring_core::output::{Ask, Output};
use mainspring_core::seam::Pending;
use mainspring_core::store::{
    self, Changed, CheckPart, Checked, ClaimRequest, ClaimedBatch, Counts, Description, Filter, Finding,
    Finish, Finished, Listener, Listing, Node, Page, Queue, QueueChange, Receipt, Registered, Registration,
    Renewal, Renewed, Rescue, Rescued, Store, Swept, Ticket,
};

use crate::history::{
    Actor, EndKind, Fact, InboxMessage, JournalWrites, Line, Recorder, SignalAnswer, digest, micros,
};

/// A call on its way to a store.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Call {
    /// The method.
    pub name: &'static str,
    /// Whether it may write.
    pub writes: bool,
}

/// What does a call, as often as it is told to: a message may arrive twice.
pub type CallBody<T> = Box<dyn Fn() -> Pending<'static, Result<T>> + Send + Sync>;

/// How calls get to a store and answers back.
pub trait Transport: Send + Sync + 'static {
    /// Takes a call to the store.
    fn go<T: Send + 'static>(&self, call: Call, run: CallBody<T>) -> Pending<'static, Result<T>>;

    /// Lets hints of the store through to a listener.
    fn listen(&self, store: &Arc<dyn Store>, listener: Weak<dyn Listener>) {
        store.subscribe(listener);
    }
}

/// The way of a process to its own store: straight on.
#[derive(Debug, Clone, Copy)]
pub struct Direct;

impl Transport for Direct {
    fn go<T: Send + 'static>(&self, _call: Call, run: CallBody<T>) -> Pending<'static, Result<T>> {
        run()
    }
}

/// A store, the way to it, and who takes down what it says.
pub struct WatchedStore<W> {
    store: Arc<dyn Store>,
    way: W,
    recorder: Arc<dyn Recorder>,
    by: Actor,
}

impl<W: Transport> WatchedStore<W> {
    /// Watches a store on behalf of an actor.
    pub fn new(store: Arc<dyn Store>, way: W, recorder: Arc<dyn Recorder>, by: Actor) -> Self {
        WatchedStore { store, way, recorder, by }
    }

    /// Sends a call on its way: `call` makes it, `noted` takes down what it was answered.
    fn send<T: Send + 'static, Q: Clone + Send + Sync + 'static>(
        &self,
        name: Call,
        request: Q,
        call: for<'a> fn(&'a dyn Store, Q) -> Pending<'a, Result<T>>,
        noted: fn(&dyn Recorder, Actor, &Q, &Result<T>),
    ) -> Pending<'static, Result<T>> {
        let (store, recorder, by) = (Arc::clone(&self.store), Arc::clone(&self.recorder), self.by);
        let run = move || -> Pending<'static, Result<T>> {
            let (store, recorder, request) = (Arc::clone(&store), Arc::clone(&recorder), request.clone());
            Box::pin(async move {
                let answer = call(&*store, request.clone()).await;
                noted(&*recorder, by, &request, &answer);
                answer
            })
        };
        self.way.go(name, Box::new(run))
    }

    /// Notes that a job is asked for.
    fn asked(&self, job: &New) {
        let delay = match job.run {
            Some(When::After(delay)) => micros(delay),
            Some(When::At(_)) | None => 0,
        };
        let unique = job.options.unique.clone();
        self.recorder.note(self.by, Fact::Asked { id: job.id, unique, delay });
        if let Some(When::After(deadline)) = job.deadline {
            self.recorder.note(self.by, Fact::Bounded { id: job.id, deadline: micros(deadline) });
        }
        if !job.journal.is_empty() {
            let entries = job.journal.iter().map(Line::new).collect();
            let fact =
                Fact::Shares { id: job.id, writes: JournalWrites { entries, ..JournalWrites::default() } };
            self.recorder.note(self.by, fact);
        }
    }

    fn write<T: Send + 'static, Q: Clone + Send + Sync + 'static>(
        &self,
        name: &'static str,
        request: Q,
        call: for<'a> fn(&'a dyn Store, Q) -> Pending<'a, Result<T>>,
    ) -> Pending<'static, Result<T>> {
        self.send(Call { name, writes: true }, request, call, |_, _, _, _| {})
    }

    fn read<T: Send + 'static, Q: Clone + Send + Sync + 'static>(
        &self,
        name: &'static str,
        request: Q,
        call: for<'a> fn(&'a dyn Store, Q) -> Pending<'a, Result<T>>,
    ) -> Pending<'static, Result<T>> {
        self.send(Call { name, writes: false }, request, call, |_, _, _, _| {})
    }
}

fn claimed(recorder: &dyn Recorder, by: Actor, request: &ClaimRequest, answer: &Result<ClaimedBatch>) {
    let Ok(batch) = answer else { return };
    for job in &batch.jobs {
        let fact = Fact::Claimed {
            node: request.node,
            id: job.claim.id,
            claim: job.claim.number,
            crashes: job.crashes,
            crashed: u64::try_from(job.crashed_micros).unwrap_or(0),
            ahead: job.ahead,
            now: batch.now,
        };
        recorder.note(by, fact);
        if let Some(journal) = &job.journal {
            let fact = Fact::Remembers {
                id: job.claim.id,
                claim: job.claim.number,
                entries: journal.entries.iter().map(Line::old).collect(),
                inbox: journal.inbox.messages.iter().map(InboxMessage::of).collect(),
                more: journal.inbox.more,
            };
            recorder.note(by, fact);
        }
    }
}

fn recorded(
    recorder: &dyn Recorder,
    by: Actor,
    (node, recordings): &(NodeNo, Vec<Recording>),
    answer: &Result<Vec<Recorded>>,
) {
    let Ok(answers) = answer else { return };
    for (recording, answer) in recordings.iter().zip(answers) {
        let (id, claim) = (recording.claim.id, recording.claim.number);
        let (stored, writes) = (*answer == Recorded::Stored, JournalWrites::of(&recording.writes));
        recorder.note(by, Fact::Recorded { node: *node, id, claim, stored, writes });
    }
}

#[expect(clippy::ptr_arg, reason = "the shape that `send` asks for")]
fn delivered(recorder: &dyn Recorder, by: Actor, claims: &Vec<(Claim, i64)>, answer: &Result<Vec<Inbox>>) {
    let Ok(inboxes) = answer else { return };
    for ((claim, _), inbox) in claims.iter().zip(inboxes).filter(|(_, inbox)| !inbox.messages.is_empty()) {
        let inbox = inbox.messages.iter().map(InboxMessage::of).collect();
        recorder.note(by, Fact::Delivered { id: claim.id, claim: claim.number, inbox });
    }
}

#[expect(clippy::ptr_arg, reason = "the shape that `send` asks for")]
fn signalled(recorder: &dyn Recorder, by: Actor, signals: &Vec<Signal>, answer: &Result<Vec<Signalled>>) {
    let Ok(answers) = answer else { return };
    for (signal, answer) in signals.iter().zip(answers) {
        let subject = Subject::Signal(signal.name.clone()).to_string();
        let (sender, answer) = (signal.sender.clone(), SignalAnswer::of(*answer));
        recorder.note(by, Fact::Signalled { id: signal.job, subject, sender, answer });
    }
}

fn finished(
    recorder: &dyn Recorder,
    by: Actor,
    (node, finishes): &(NodeNo, Vec<Finish>),
    answer: &Result<Vec<Finished>>,
) {
    let Ok(answers) = answer else { return };
    for (finish, answer) in finishes.iter().zip(answers) {
        let (claim, how) = (finish.claim, EndKind::of(&finish.outcome));
        recorder.note(by, Fact::finished(*node, claim.id, claim.number, how, *answer));
    }
}

fn changed(
    recorder: &dyn Recorder,
    by: Actor,
    (ids, verb, dry_run): &(Vec<JobId>, Verb, bool),
    answer: &Result<Vec<Changed>>,
) {
    let Some(answers) = answer.as_ref().ok().filter(|_| !dry_run) else { return };
    for (id, answer) in ids.iter().zip(answers) {
        if let Changed::Applied { from, to } = *answer {
            recorder.note(by, Fact::Obeyed { id: *id, verb: verb.name().into(), from, to });
            if let Verb::Rewind { from, claim } = verb {
                recorder.note(by, Fact::Rewound { id: *id, from: from.clone(), claim: *claim });
            }
        }
    }
}

impl<W: Transport> Store for WatchedStore<W> {
    fn describe(&self) -> Description {
        self.store.describe()
    }

    fn enqueue(&self, jobs: Vec<New>) -> Pending<'_, Result<Vec<Receipt>>> {
        for job in &jobs {
            self.asked(job);
        }
        self.write("enqueue", jobs, |store, jobs| store.enqueue(jobs))
    }

    fn ticket(&self) -> Ticket {
        self.store.ticket()
    }

    fn ticket_for<'a>(&'a self, jobs: &'a [New]) -> Pending<'a, Result<Ticket>> {
        self.write("ticket_for", jobs.to_vec(), |store, jobs| {
            Box::pin(async move { store.ticket_for(&jobs).await })
        })
    }

    fn nudge(&self, id: JobId) {
        self.store.nudge(id);
    }

    fn register(&self, node: Registration) -> Pending<'_, Result<Registered>> {
        let call = Call { name: "register", writes: true };
        self.send(
            call,
            node,
            |store, node| store.register(node),
            |recorder, by, node, answer| {
                if let Ok(member) = answer {
                    recorder.note(by, Fact::Joined { node: member.no, lease: micros(node.lease) });
                    let (queues, abilities) = (node.queues.clone(), node.abilities.clone());
                    recorder.note(by, Fact::Abilities { node: member.no, queues, abilities });
                }
            },
        )
    }

    fn renew(&self, renewal: Renewal) -> Pending<'_, Result<Renewed>> {
        self.write("renew", renewal, |store, renewal| store.renew(renewal))
    }

    fn retire(&self, node: NodeNo) -> Pending<'_, Result<usize>> {
        let call = Call { name: "retire", writes: true };
        self.send(
            call,
            node,
            |store, node| store.retire(node),
            |recorder, by, node, answer| {
                if answer.is_ok() {
                    recorder.note(by, Fact::Left { node: *node });
                }
            },
        )
    }

    fn claim(&self, request: ClaimRequest) -> Pending<'_, Result<ClaimedBatch>> {
        let call = Call { name: "claim", writes: true };
        self.send(call, request, |store, request| store.claim(request), claimed)
    }

    fn finish(&self, node: NodeNo, finishes: Vec<Finish>) -> Pending<'_, Result<Vec<Finished>>> {
        for finish in &finishes {
            let how = EndKind::of(&finish.outcome);
            let (id, claim) = (finish.claim.id, finish.claim.number);
            self.recorder.note(self.by, Fact::Finishing { node, id, claim, how });
            if let Outcome::Retry { after, .. } | Outcome::Snooze { after } = finish.outcome {
                self.recorder.note(self.by, Fact::Deferred { id, claim, after: micros(after) });
            }
            match &finish.outcome {
                Outcome::Suspend(suspension) => {
                    let waits = suspension.waits.iter().map(|wait| (wait.subject.to_string(), wait.need));
                    let (waits, writes) = (waits.collect(), JournalWrites::of(&suspension.writes));
                    let fact = Fact::Suspending { id, claim, waits, until: suspension.until, writes };
                    self.recorder.note(self.by, fact);
                }
                Outcome::Succeed { result: Some(result) } => {
                    self.recorder.note(self.by, Fact::Returns { id, claim, result: digest(result) });
                }
                _ => {}
            }
        }
        let call = Call { name: "finish", writes: true };
        self.send(call, (node, finishes), |store, (node, finishes)| store.finish(node, finishes), finished)
    }

    fn disown(&self, node: NodeNo, settled: ClaimBatchNo, keep: Vec<Claim>) -> Pending<'_, Result<usize>> {
        let call = Call { name: "disown", writes: true };
        self.send(
            call,
            (node, settled, keep),
            |store, (node, settled, keep)| store.disown(node, settled, keep),
            |recorder, by, (node, _, _), answer| {
                if answer.as_ref().is_ok_and(|released| *released > 0) {
                    recorder.note(by, Fact::Disowned { node: *node });
                }
            },
        )
    }

    fn progress(&self, node: NodeNo, progress: Vec<(Claim, Progress)>) -> Pending<'_, Result<()>> {
        self.write("progress", (node, progress), |store, (node, progress)| store.progress(node, progress))
    }

    fn record(&self, node: NodeNo, recordings: Vec<Recording>) -> Pending<'_, Result<Vec<Recorded>>> {
        for recording in &recordings {
            let (id, claim) = (recording.claim.id, recording.claim.number);
            self.recorder.note(self.by, Fact::Recording { node, id, claim });
            for child in &recording.children {
                self.asked(&child.job);
                let abandoned = child.on_close == OnClose::Abandon;
                self.recorder.note(self.by, Fact::Belongs { id: child.job.id, parent: id, abandoned });
            }
        }
        let call = Call { name: "record", writes: true };
        let request = (node, recordings);
        self.send(call, request, |store, (node, recordings)| store.record(node, recordings), recorded)
    }

    fn values(&self, id: JobId, keys: Vec<Key>) -> Pending<'_, Result<Vec<Option<Vec<u8>>>>> {
        self.read("values", (id, keys), |store, (id, keys)| store.values(id, keys))
    }

    fn inputs(&self, claims: Vec<Claim>) -> Pending<'_, Result<Vec<Option<Vec<u8>>>>> {
        self.read("inputs", claims, |store, claims| store.inputs(claims))
    }

    fn inbox(&self, claims: Vec<(Claim, i64)>) -> Pending<'_, Result<Vec<Inbox>>> {
        let call = Call { name: "inbox", writes: false };
        self.send(call, claims, |store, claims| store.inbox(claims), delivered)
    }

    fn signal(&self, signals: Vec<Signal>) -> Pending<'_, Result<Vec<Signalled>>> {
        let call = Call { name: "signal", writes: true };
        self.send(call, signals, |store, signals| store.signal(signals), signalled)
    }

    fn drop_signals(
        &self,
        id: JobId,
        name: SignalName,
        sender: Option<String>,
    ) -> Pending<'_, Result<Option<usize>>> {
        let call = Call { name: "drop_signals", writes: true };
        self.send(
            call,
            (id, name, sender),
            |store, (id, name, sender)| store.drop_signals(id, name, sender),
            |recorder, by, (id, name, sender), answer| {
                if let Ok(Some(count)) = *answer {
                    let subject = Subject::Signal(name.clone()).to_string();
                    recorder.note(by, Fact::Dropped { id: *id, subject, sender: sender.clone(), count });
                }
            },
        )
    }

    fn job_ends(&self, ids: Vec<JobId>) -> Pending<'_, Result<Vec<JobEnd>>> {
        self.read("job_ends", ids, |store, ids| store.job_ends(ids))
    }

    fn output(&self, asks: Vec<Ask>) -> Pending<'_, Result<Vec<Option<Output>>>> {
        self.read("output", asks, |store, asks| store.output(asks))
    }

    fn timeline(&self, id: JobId) -> Pending<'_, Result<Option<Timeline>>> {
        self.read("timeline", id, |store, id| store.timeline(id))
    }

    fn rescue(&self, rescue: Rescue) -> Pending<'_, Result<Rescued>> {
        let call = Call { name: "rescue", writes: true };
        self.send(
            call,
            rescue,
            |store, rescue| store.rescue(rescue),
            |recorder, by, _, answer| match answer {
                Ok(rescued) if !rescued.expired.is_empty() => {
                    recorder.note(by, Fact::Expired { nodes: rescued.expired.clone() });
                }
                _ => {}
            },
        )
    }

    fn promote(&self, limit: usize) -> Pending<'_, Result<Swept>> {
        self.write("promote", limit, |store, limit| store.promote(limit))
    }

    fn expire(&self, limit: usize) -> Pending<'_, Result<Swept>> {
        self.write("expire", limit, |store, limit| store.expire(limit))
    }

    fn prune(&self, limit: usize) -> Pending<'_, Result<usize>> {
        self.write("prune", limit, |store, limit| store.prune(limit))
    }

    fn get(&self, id: JobId) -> Pending<'_, Result<Option<Record>>> {
        self.read("get", id, |store, id| store.get(id))
    }

    fn list(&self, filter: Filter, page: Page) -> Pending<'_, Result<Listing>> {
        self.read("list", (filter, page), |store, (filter, page)| store.list(filter, page))
    }

    fn counts(&self) -> Pending<'_, Result<Counts>> {
        self.read("counts", (), |store, ()| store.counts())
    }

    fn change(&self, ids: Vec<JobId>, verb: Verb, dry_run: bool) -> Pending<'_, Result<Vec<Changed>>> {
        if !dry_run {
            for id in &ids {
                self.recorder.note(self.by, Fact::Ordered { id: *id, verb: verb.name().into() });
            }
        }
        let call = Call { name: "change", writes: true };
        let request = (ids, verb, dry_run);
        self.send(call, request, |store, (ids, verb, dry_run)| store.change(ids, verb, dry_run), changed)
    }

    fn lines(&self) -> Pending<'_, Result<Vec<store::Line>>> {
        self.read("lines", (), |store, ()| store.lines())
    }

    fn queues(&self) -> Pending<'_, Result<Vec<Queue>>> {
        self.read("queues", (), |store, ()| store.queues())
    }

    fn configure(&self, queue: QueueName, change: QueueChange) -> Pending<'_, Result<Queue>> {
        let call = Call { name: "configure", writes: true };
        self.send(
            call,
            (queue, change),
            |store, (queue, change)| store.configure(queue, change),
            |recorder, by, (queue, change), answer| {
                if let (Some(paused), Ok(_)) = (change.paused, answer) {
                    recorder.note(by, Fact::Paused { queue: queue.clone(), paused });
                }
            },
        )
    }

    fn delete_queue(&self, queue: QueueName) -> Pending<'_, Result<bool>> {
        let call = Call { name: "delete_queue", writes: true };
        self.send(
            call,
            queue,
            |store, queue| store.delete_queue(queue),
            |recorder, by, queue, answer| {
                // Who names it again gets one that is not paused.
                if let Ok(true) = answer {
                    recorder.note(by, Fact::Paused { queue: queue.clone(), paused: false });
                }
            },
        )
    }

    fn nodes(&self) -> Pending<'_, Result<Vec<Node>>> {
        self.read("nodes", (), |store, ()| store.nodes())
    }

    fn check_part(&self, part: CheckPart) -> Pending<'_, Result<Checked>> {
        self.read("check", part, |store, part| store.check_part(part))
    }

    fn try_write(&self) -> Pending<'_, Result<()>> {
        self.write("try", (), |store, ()| store.try_write())
    }

    fn diagnose(&self) -> Pending<'_, Result<Vec<Finding>>> {
        self.read("diagnose", (), |store, ()| store.diagnose())
    }

    fn native(&self) -> Option<&(dyn std::any::Any + Send + Sync)> {
        self.store.native()
    }

    fn subscribe(&self, listener: Weak<dyn Listener>) {
        self.way.listen(&self.store, listener);
    }

    fn close(&self) -> Pending<'_, ()> {
        self.store.close()
    }
}
