//! The part of a life that workflows have: journals, signals, suspensions, families.

use std::collections::{BTreeMap, BTreeSet};

use mainspring_core::bounds;
use mainspring_core::id::JobId;
use mainspring_core::job::{Outcome, Reason, State, Summary};
use mainspring_core::journal::{
    Child, Entry, EntryKind, OnClose, Recording, Signal, Subject, Suspension, Wait, Writes,
};
use mainspring_core::name::{Key, SignalName};
use mainspring_core::output::Push;
use mainspring_core::store::{Filter, Journals, Operators, Page, Producers};

use super::life::{Life, Pair, PastClaim, equal, id, new};
use super::op::{ALL, End, HandlerWork, JOBS, JournalNote, MessageSubject, Pause};
use super::view::{nameless, same, told, unread};
use crate::harness::fault;

/// Two of these are more than comes with a claim.
const LARGE: usize = bounds::PREFETCH_BYTES / 2 + 1;
const NAMES: [&str; 3] = ["go", "stop", "c:x"];
const SENDERS: [&str; 3] = ["ada", "bob", "Ada"];

impl Life<'_> {
    pub(super) async fn record(&self, deeds: &[HandlerWork]) -> Result<(), String> {
        let first = deeds.first().map(|deed| deed.who);
        let Some((who, made)) = first.and_then(|who| Some((who, self.made(who)?))) else { return Ok(()) };
        let (slot, node) = self.speaker(who, made);
        let (mut of_model, mut of_store) = (Vec::new(), Vec::new());
        for HandlerWork { who, note, children } in deeds {
            let Some(made) = self.made(*who) else { continue };
            let Pair { model, store } = self.writes(made, note).await?;
            let children: Vec<Child> = children
                .iter()
                .map(|(draft, abandoned)| Child {
                    job: new(draft),
                    on_close: if *abandoned { OnClose::Abandon } else { OnClose::Cancel },
                })
                .collect();
            let recording = |claim, writes| Recording { claim, writes, children: children.clone() };
            of_model.push(recording(made.claim.model, model));
            of_store.push(recording(made.claim.store, store));
        }
        let model = self.model.record(node.model, of_model).await;
        equal("recorded", model, self.of(slot).record(node.store, of_store).await)
    }

    pub(super) async fn signal(&self, signals: &[(usize, usize, usize)]) -> Result<(), String> {
        let signals: Vec<Signal> = signals
            .iter()
            .map(|(job, about, sender)| Signal {
                job: id(*job),
                name: name(*about),
                sender: SENDERS[*sender].into(),
                body: vec![u8::try_from(*sender).unwrap_or(0)],
            })
            .collect();
        let model = self.model.signal(signals.clone()).await;
        equal("signalled", model, self.any().signal(signals).await)
    }

    /// How a claim ends: the same for both but for the numbers of messages.
    pub(super) async fn outcome(&self, made: &PastClaim, end: &End) -> Result<Pair<Outcome>, String> {
        let outcome = match end {
            End::Succeed => Outcome::Succeed { result: Some(b"1".as_slice().into()) },
            End::Retry(after) => Outcome::Retry { after: *after, fault: fault("again") },
            End::Fail => Outcome::Fail { reason: Reason::Discarded, fault: fault("never") },
            End::Snooze(after) => Outcome::Snooze { after: *after },
            End::Release => Outcome::Release,
            End::Cancel => Outcome::Cancel { reason: Reason::Handler, why: "own".into() },
            End::Stop => Outcome::Cancel { reason: Reason::Operator, why: "enough".into() },
            End::Suspend(pause) => return self.pause(made, pause).await,
        };
        Ok(Pair { model: outcome.clone(), store: outcome })
    }

    async fn pause(&self, made: &PastClaim, pause: &Pause) -> Result<Pair<Outcome>, String> {
        let timeline = told(self.model.timeline(made.claim.model.id).await)?.unwrap_or_default();
        let children: Vec<JobId> = timeline.children.into_iter().map(|kin| kin.id).collect();
        let subject = |about: &MessageSubject| match about {
            MessageSubject::Signal(about) => Subject::Signal(name(*about)),
            MessageSubject::Child(child) => {
                Subject::Child(children.get(*child % children.len().max(1)).copied().unwrap_or(id(*child)))
            }
        };
        let waits: Vec<_> =
            pause.waits.iter().map(|(about, need)| Wait { subject: subject(about), need: *need }).collect();
        let until = pause.until.map(|until| self.harness.now().after(until));
        let suspend = |writes| {
            let (waits, note) = (waits.clone(), (!waits.is_empty()).then(|| "waits".to_owned()));
            Outcome::Suspend(Box::new(Suspension {
                reason: pause.reason,
                waits,
                until,
                keep: pause.keep,
                writes,
                note,
            }))
        };
        let Pair { model, store } = self.writes(made, &pause.note).await?;
        Ok(Pair { model: suspend(model), store: suspend(store) })
    }

    /// What is written, with each store's own numbers of the messages that are read.
    async fn writes(&self, made: &PastClaim, note: &JournalNote) -> Result<Pair<Writes>, String> {
        let number = made.claim.model.number;
        let entries = note.entries.iter().map(|(step, large)| entry(*step, number, *large));
        let writes = Writes {
            entries: entries.collect(),
            read: Vec::new(),
            forget: note.forget.iter().map(|step| key(*step)).collect(),
            output: note.said.iter().map(|said| push(made.claim.model.number, *said)).collect(),
            idle: note.idle,
        };
        let mut both = Pair { model: writes.clone(), store: writes };
        if !note.read.is_empty() {
            let model = unread(&self.model, made.claim.model).await?;
            let store = unread(&*self.any(), made.claim.store).await?;
            same("unread messages", &nameless(model.clone()), &nameless(store.clone()))?;
            for index in &note.read {
                both.model.read.extend(model.get(*index).map(|message| message.no));
                both.store.read.extend(store.get(*index).map(|message| message.no));
            }
        }
        Ok(both)
    }

    /// Splits what one call would do to jobs of one family into calls of their own: whether the first of them reaches its
    /// family before the second is moved is a store's own affair.
    pub(super) async fn apart<T>(
        &self,
        all: Vec<T>,
        job: impl Fn(&T) -> JobId,
    ) -> Result<Vec<Vec<T>>, String> {
        let ids: Vec<JobId> = all.iter().map(&job).collect();
        let related = self.families().await?.has_relatives(&ids);
        Ok(if related { all.into_iter().map(|one| vec![one]).collect() } else { vec![all] })
    }

    /// Whether one call that gives claims back would end a job and move another of its family.
    pub(super) async fn is_tangled(&self) -> Result<bool, String> {
        let families = self.families().await?;
        let running = |job: &&Summary| job.status.state == State::Running;
        let ids: Vec<JobId> = families.jobs.iter().filter(running).map(|job| job.id).collect();
        Ok(families.jobs.iter().any(|job| job.cancelling) && families.has_relatives(&ids))
    }

    /// Whether one sweep of deadlines would end two jobs of one family.
    pub(super) async fn late_are_related(&self) -> Result<bool, String> {
        let families = self.families().await?;
        let now = self.harness.now();
        let late = |job: &&Summary| {
            job.status.state != State::Running && job.deadline.is_some_and(|deadline| deadline <= now)
        };
        let ids: Vec<JobId> = families.jobs.iter().filter(late).map(|job| job.id).collect();
        Ok(families.has_relatives(&ids))
    }

    async fn families(&self) -> Result<Families, String> {
        let page = Page { after: None, limit: bounds::PAGE };
        Ok(Families { jobs: told(self.model.list(Filter::default(), page).await)?.jobs })
    }
}

/// All jobs, and who started whom.
struct Families {
    jobs: Vec<Summary>,
}

impl Families {
    /// Whether two of these belong to one family.
    fn has_relatives(&self, ids: &[JobId]) -> bool {
        let parents: BTreeMap<JobId, JobId> =
            self.jobs.iter().filter_map(|job| Some((job.id, job.options.parent?))).collect();
        let root = |id: &JobId| {
            // An id may be used again, so that a child can seem to be its own ancestor.
            let mut ancestors = BTreeSet::from([*id]);
            let mut last = *id;
            while let Some(parent) = parents.get(&last).filter(|parent| ancestors.insert(**parent)) {
                last = *parent;
            }
            last
        };
        let distinct: BTreeSet<JobId> = ids.iter().copied().collect();
        distinct.iter().map(root).collect::<BTreeSet<_>>().len() < distinct.len()
    }
}

/// Names of steps: some are of one scope, and one is that of signals.
const STEPS: [&str; 6] = ["step", "scope/in", "scope", "scope/deep#until", "child", "go"];

pub(super) fn key(step: usize) -> Key {
    Key::new(STEPS[step]).expect("a key")
}

/// What is recorded of a step under a claim.
pub(super) fn entry(step: usize, number: u32, large: bool) -> Entry {
    let kind = EntryKind::ALL[step % EntryKind::ALL.len()];
    let value = match kind {
        _ if large => vec![u8::try_from(step).unwrap_or(0); LARGE],
        // One that may or may not have been started.
        EntryKind::Child => {
            let child = JOBS + usize::try_from(number).unwrap_or(0) % (ALL - JOBS);
            serde_json::to_vec(&id(child)).expect("JSON")
        }
        EntryKind::Received => br#"[["ada",1],["bob",{"a": [2]}]]"#.to_vec(),
        _ => number.to_le_bytes().to_vec(),
    };
    Entry { key: key(step), kind, overlapped: number.is_multiple_of(2), value, took: None }
}

fn push(claim: u32, (number, step, reset): (u32, usize, bool)) -> Push {
    // Nobody says it: the handler.
    let step = (step > 0).then(|| key(step));
    Push { number, step, body: (!reset).then(|| format!("[{claim},{number}]").into_bytes()) }
}

fn name(about: usize) -> SignalName {
    SignalName::new(NAMES[about]).expect("a name")
}
