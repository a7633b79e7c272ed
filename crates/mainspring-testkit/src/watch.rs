//! A store that is watched: what it says to nodes is noted, and the way to it may be long and dangerous.
//!
//! [`WatchedStore`] stands between an engine and its store. Every call takes a [`Transport`]: [`Direct`] for processes that meet a
//! real store, the simulator's network otherwise. What is asked for is noted before it goes; what the store says is noted
//! next to the store, so that a call whose answer is lost on the way back has still been seen. What callers are told is
//! theirs to note.

use std::sync::{Arc, Weak};

use mainspring_core::Result;
use mainspring_core::id::{Claim, ClaimBatchNo, JobId, NodeNo};
use mainspring_core::job::{New, Outcome, Verb, When};
use mainspring_core::journal::{Inbox, OnClose, Recorded, Recording, Signal, Signalled, Subject};
use mainspring_core::name::{QueueName, SignalName};
use mainspring_core::seam::Pending;
use mainspring_core::store::decorator::{
    Call, ChangeCall, ClaimCall, ConfigureCall, Decorator, DeleteQueueCall, DisownCall, DropSignalsCall,
    DueSchedulesCall, EnqueueCall, FinishCall, InboxCall, Method, RecordCall, RegisterCall, RescueCall,
    RetireCall, SignalCall, WriteSchedulesCall,
};
use mainspring_core::store::{
    Changed, ClaimRequest, ClaimedBatch, DueSchedules, Finish, Finished, Listener, Queue, QueueChange,
    Receipt, Registered, Registration, Rescue, Rescued, ScheduleWrite, Store, Written,
};

use crate::history::{
    Actor, EndKind, EnqueueAnswer, Fact, InboxMessage, JournalWrites, Line, Recorder, ScheduleChange,
    SignalAnswer, digest, micros,
};

/// What does a call, as often as it is told to: a message may arrive twice.
pub type CallBody<T> = Box<dyn Fn() -> Pending<'static, Result<T>> + Send + Sync>;

/// How calls get to a store and answers back.
pub trait Transport: Send + Sync + 'static {
    /// Takes a call to the store.
    fn go<T: Send + 'static>(&self, method: Method, run: CallBody<T>) -> Pending<'static, Result<T>>;

    /// Lets hints of the store through to a listener.
    fn listen(&self, store: &Arc<dyn Store>, listener: Weak<dyn Listener>) {
        store.subscribe(listener);
    }
}

/// The way of a process to its own store: straight on.
#[derive(Debug, Clone, Copy)]
pub struct Direct;

impl Transport for Direct {
    fn go<T: Send + 'static>(&self, _method: Method, run: CallBody<T>) -> Pending<'static, Result<T>> {
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

    /// Sends a call on its way; `noted` takes down what it was answered.
    fn send<C: Call>(
        &self,
        call: C,
        noted: fn(&dyn Recorder, Actor, &C, &Result<C::Answer>),
    ) -> Pending<'static, Result<C::Answer>> {
        let (store, recorder, by) = (Arc::clone(&self.store), Arc::clone(&self.recorder), self.by);
        let run = move || -> Pending<'static, Result<C::Answer>> {
            let (store, recorder, call) = (Arc::clone(&store), Arc::clone(&recorder), call.clone());
            Box::pin(async move {
                let answer = call.clone().make(&*store).await;
                noted(&*recorder, by, &call, &answer);
                answer
            })
        };
        self.way.go(C::METHOD, Box::new(run))
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
}

fn claimed(
    recorder: &dyn Recorder,
    by: Actor,
    ClaimCall(request): &ClaimCall,
    answer: &Result<ClaimedBatch>,
) {
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
    RecordCall(node, recordings): &RecordCall,
    answer: &Result<Vec<Recorded>>,
) {
    let Ok(answers) = answer else { return };
    for (recording, answer) in recordings.iter().zip(answers) {
        let (id, claim) = (recording.claim.id, recording.claim.number);
        let (stored, writes) = (*answer == Recorded::Stored, JournalWrites::of(&recording.writes));
        recorder.note(by, Fact::Recorded { node: *node, id, claim, stored, writes });
    }
}

fn delivered(recorder: &dyn Recorder, by: Actor, InboxCall(claims): &InboxCall, answer: &Result<Vec<Inbox>>) {
    let Ok(inboxes) = answer else { return };
    for ((claim, _), inbox) in claims.iter().zip(inboxes).filter(|(_, inbox)| !inbox.messages.is_empty()) {
        let inbox = inbox.messages.iter().map(InboxMessage::of).collect();
        recorder.note(by, Fact::Delivered { id: claim.id, claim: claim.number, inbox });
    }
}

fn signalled(
    recorder: &dyn Recorder,
    by: Actor,
    SignalCall(signals): &SignalCall,
    answer: &Result<Vec<Signalled>>,
) {
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
    FinishCall(node, finishes): &FinishCall,
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
    ChangeCall(ids, verb, dry_run): &ChangeCall,
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

/// Notes changes of schedules, and their jobs: those are nobody else's to acknowledge.
fn scheduled(
    recorder: &dyn Recorder,
    by: Actor,
    WriteSchedulesCall(writes): &WriteSchedulesCall,
    answer: &Result<Vec<Written>>,
) {
    let Ok(answers) = answer else { return };
    for (write, answer) in writes.iter().zip(answers) {
        let Written::Stored(receipts) = answer else { continue };
        for (job, receipt) in write.jobs.iter().zip(receipts) {
            if let Some(told) = EnqueueAnswer::of(*receipt) {
                recorder.note(by, Fact::Acknowledged { id: job.id, told });
            }
        }
        recorder.note(by, Fact::Scheduled(ScheduleChange::of(write, receipts)));
    }
}

impl<W: Transport> Decorator for WatchedStore<W> {
    fn inner(&self) -> &dyn Store {
        &*self.store
    }

    fn around<C: Call>(&self, call: C) -> Pending<'_, Result<C::Answer>> {
        self.send(call, |_, _, _, _| {})
    }

    fn enqueue(&self, jobs: Vec<New>) -> Pending<'_, Result<Vec<Receipt>>> {
        for job in &jobs {
            self.asked(job);
        }
        self.around(EnqueueCall(jobs))
    }

    fn register(&self, node: Registration) -> Pending<'_, Result<Registered>> {
        self.send(RegisterCall(node), |recorder, by, RegisterCall(node), answer| {
            if let Ok(member) = answer {
                recorder.note(by, Fact::Joined { node: member.no, lease: micros(node.lease) });
                let (queues, abilities) = (node.queues.clone(), node.abilities.clone());
                recorder.note(by, Fact::Abilities { node: member.no, queues, abilities });
            }
        })
    }

    fn retire(&self, node: NodeNo) -> Pending<'_, Result<usize>> {
        self.send(RetireCall(node), |recorder, by, RetireCall(node), answer| {
            if answer.is_ok() {
                recorder.note(by, Fact::Left { node: *node });
            }
        })
    }

    fn claim(&self, request: ClaimRequest) -> Pending<'_, Result<ClaimedBatch>> {
        self.send(ClaimCall(request), claimed)
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
        self.send(FinishCall(node, finishes), finished)
    }

    fn disown(&self, node: NodeNo, settled: ClaimBatchNo, keep: Vec<Claim>) -> Pending<'_, Result<usize>> {
        self.send(DisownCall(node, settled, keep), |recorder, by, DisownCall(node, _, _), answer| {
            if answer.as_ref().is_ok_and(|released| *released > 0) {
                recorder.note(by, Fact::Disowned { node: *node });
            }
        })
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
        self.send(RecordCall(node, recordings), recorded)
    }

    fn inbox(&self, claims: Vec<(Claim, i64)>) -> Pending<'_, Result<Vec<Inbox>>> {
        self.send(InboxCall(claims), delivered)
    }

    fn signal(&self, signals: Vec<Signal>) -> Pending<'_, Result<Vec<Signalled>>> {
        self.send(SignalCall(signals), signalled)
    }

    fn drop_signals(
        &self,
        id: JobId,
        name: SignalName,
        sender: Option<String>,
    ) -> Pending<'_, Result<Option<usize>>> {
        self.send(
            DropSignalsCall(id, name, sender),
            |recorder, by, DropSignalsCall(id, name, sender), answer| {
                if let Ok(Some(count)) = *answer {
                    let subject = Subject::Signal(name.clone()).to_string();
                    recorder.note(by, Fact::Dropped { id: *id, subject, sender: sender.clone(), count });
                }
            },
        )
    }

    fn rescue(&self, rescue: Rescue) -> Pending<'_, Result<Rescued>> {
        self.send(RescueCall(rescue), |recorder, by, _, answer| match answer {
            Ok(rescued) if !rescued.expired.is_empty() => {
                recorder.note(by, Fact::Expired { nodes: rescued.expired.clone() });
            }
            _ => {}
        })
    }

    fn change(&self, ids: Vec<JobId>, verb: Verb, dry_run: bool) -> Pending<'_, Result<Vec<Changed>>> {
        if !dry_run {
            for id in &ids {
                self.recorder.note(self.by, Fact::Ordered { id: *id, verb: verb.name().into() });
            }
        }
        self.send(ChangeCall(ids, verb, dry_run), changed)
    }

    fn configure(&self, queue: QueueName, change: QueueChange) -> Pending<'_, Result<Queue>> {
        self.send(ConfigureCall(queue, change), |recorder, by, ConfigureCall(queue, change), answer| {
            if let (Some(paused), Ok(_)) = (change.paused, answer) {
                recorder.note(by, Fact::Paused { queue: queue.clone(), paused });
            }
        })
    }

    fn delete_queue(&self, queue: QueueName) -> Pending<'_, Result<bool>> {
        self.send(DeleteQueueCall(queue), |recorder, by, DeleteQueueCall(queue), answer| {
            // Who names it again gets one that is not paused.
            if let Ok(true) = answer {
                recorder.note(by, Fact::Paused { queue: queue.clone(), paused: false });
            }
        })
    }

    fn due_schedules(&self, limit: usize) -> Pending<'_, Result<DueSchedules>> {
        self.send(DueSchedulesCall(limit), |recorder, by, _, answer| {
            if let Ok(due) = answer {
                recorder.note(by, Fact::AskedWhatIsDue { now: due.now });
            }
        })
    }

    fn write_schedules(&self, writes: Vec<ScheduleWrite>) -> Pending<'_, Result<Vec<Written>>> {
        for job in writes.iter().flat_map(|write| &write.jobs) {
            self.asked(job);
        }
        self.send(WriteSchedulesCall(writes), scheduled)
    }

    fn subscribe(&self, listener: Weak<dyn Listener>) {
        self.way.listen(&self.store, listener);
    }
}
