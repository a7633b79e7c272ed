//! Journals, inboxes and families: what makes jobs workflows.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::bounds;
use crate::id::{Claim, JobId, NodeNo, Row};
use crate::job::{Differs, Input, Reason, State, Status};
use crate::journal::{
    Child, ChildSummary, Entry, Inbox, JobEnd, Journal, Line, Message, MessageBody, OnClose, Recorded,
    Recording, Rewind, Signal, Signalled, Suspension, Timeline, Unread, Value, Wait, Writes, Written, rewind,
};
use crate::name::{Key, SignalName};
use crate::planted::{self, Defect};
use crate::store::Cancellation;
use crate::time::{Timestamp, millis};
use crate::{Error, Result};

use super::model::{Job, Model};
use super::output::JobOutput;
use super::place::Place;

/// What a job has recorded, been sent and started.
#[derive(Clone, Default)]
pub(super) struct Past {
    /// By the order of recording.
    entries: BTreeMap<u64, Written>,
    keys: BTreeMap<Key, u64>,
    last: u64,
    inbox: Vec<Posted>,
    children: Vec<(Row, OnClose)>,
    pub(super) said: JobOutput,
}

/// A message, and whether it has been read.
#[derive(Clone)]
struct Posted {
    message: Message,
    read: bool,
}

impl Past {
    /// The past that a new job has, if it is a fork.
    pub(super) fn shared(entries: Vec<Entry>, now: Timestamp) -> Option<Box<Self>> {
        if entries.is_empty() {
            return None;
        }
        let mut past = Past::default();
        past.write(Writes { entries, ..Writes::default() }, 0, now);
        Some(Box::new(past))
    }

    fn unread(&self) -> impl Iterator<Item = &Message> {
        self.inbox.iter().filter(|posted| !posted.read).map(|posted| &posted.message)
    }

    fn has(&self, mail: &MessageBody) -> bool {
        let same = |posted: &Posted| {
            posted.message.body.subject() == mail.subject() && posted.message.body.sender() == mail.sender()
        };
        self.inbox.iter().any(same)
    }

    /// Whether one of the waits is over.
    fn answers(&self, waits: &[Wait]) -> bool {
        waits.iter().any(|wait| {
            let came = self.unread().filter(|message| message.body.subject() == wait.subject).count();
            came >= usize::try_from(wait.need).unwrap_or(usize::MAX)
        })
    }

    fn write(&mut self, writes: Writes, claim: u32, now: Timestamp) {
        for key in writes.forget {
            if let Some(at) = self.keys.remove(&key) {
                self.entries.remove(&at);
            }
        }
        for entry in writes.entries {
            if self.keys.contains_key(&entry.key) {
                continue;
            }
            self.last += 1;
            self.keys.insert(entry.key.clone(), self.last);
            let written = Written {
                key: entry.key,
                kind: entry.kind,
                overlapped: entry.overlapped,
                took: entry.took.map(|took| Duration::from_millis(millis(took).unsigned_abs().into())),
                claim,
                at: now,
                value: Value::Here(entry.value),
            };
            self.entries.insert(self.last, written);
        }
        for posted in self.inbox.iter_mut().filter(|_| !planted::is(Defect::ReadTwice)) {
            posted.read |= writes.read.contains(&posted.message.no);
        }
        self.forget_readers();
        for push in writes.output {
            self.said.push(push, claim, now);
        }
    }

    /// Marks unread signals of a name as read. Returns how many.
    fn drop_signals(&mut self, about: &SignalName, by: Option<&str>) -> usize {
        let drops = |posted: &Posted| {
            let named = matches!(&posted.message.body, MessageBody::Signal { name, sender, .. }
                if name == about && by.is_none_or(|by| by == sender));
            named && !posted.read
        };
        let dropped = self.inbox.iter().filter(|posted| drops(posted)).count();
        if planted::is(Defect::DropForgotten) {
            self.inbox.retain(|posted| !drops(posted));
        }
        for posted in &mut self.inbox {
            posted.read |= drops(posted);
        }
        self.forget_readers();
        dropped
    }

    /// Forgets the oldest signals that have been read, beyond those whose senders are remembered.
    fn forget_readers(&mut self) {
        let old = |posted: &Posted| posted.read && matches!(posted.message.body, MessageBody::Signal { .. });
        let surplus =
            self.inbox.iter().filter(|posted| old(posted)).count().saturating_sub(bounds::INBOX_READ);
        let mut left = surplus;
        self.inbox.retain(|posted| {
            let goes = left > 0 && old(posted);
            left -= usize::from(goes);
            !goes
        });
    }

    /// A page of messages: no more than fit, and the first also if it is larger, up to `first`.
    fn inbox(&self, after: i64, first: usize) -> Inbox {
        let mut inbox = Inbox::default();
        let mut bytes = 0;
        for message in self.unread().filter(|message| message.no > after) {
            bytes += message.body.bytes();
            let room = if inbox.messages.is_empty() { first } else { first.min(bounds::PREFETCH_BYTES) };
            inbox.more = inbox.messages.len() == bounds::INBOX_PAGE || bytes > room;
            if inbox.more {
                break;
            }
            inbox.messages.push(message.clone());
        }
        inbox
    }
}

impl Job {
    /// Whether it sleeps past what it waits for, which must not be.
    pub(super) fn is_overslept(&self) -> bool {
        let Place::Suspended { reason, waits, .. } = &self.place else { return false };
        reason.awaits() && self.past.as_deref().is_some_and(|past| past.answers(waits))
    }

    /// What it recorded last, and when.
    pub(super) fn last_record(&self) -> Option<(Key, Timestamp)> {
        let (_, written) = self.past.as_deref()?.entries.last_key_value()?;
        Some((written.key.clone(), written.at))
    }

    /// What comes with a claim, of which so many bytes are left for messages.
    pub(super) fn journal(&self, left: &mut usize) -> Option<Box<Journal>> {
        let past = self.past.as_deref()?;
        let inbox = past.inbox(0, *left);
        let bytes: usize = inbox.messages.iter().map(|message| message.body.bytes()).sum();
        *left = left.saturating_sub(bytes);
        Some(Box::new(Journal { entries: past.entries.values().cloned().collect(), inbox }))
    }

    /// What a retry from a step takes back.
    pub(super) fn rewind(&self, from: &Key) -> Option<Rewind> {
        let line = |written: &Written| {
            let value = match &written.value {
                Value::Here(value) => Some(value.clone()),
                Value::There(_) => None,
            };
            (written.key.clone(), written.kind, value)
        };
        let lines: Vec<Line> = self.past.as_deref()?.entries.values().map(line).collect();
        let mut rewind = rewind(&lines, from)?;
        if planted::is(Defect::RewindKept) {
            rewind.forget.retain(|key| key != from);
        }
        Some(rewind)
    }

    /// Takes it back; what is unread again of senders that are not known any more.
    pub(super) fn take_back(&mut self, rewind: &Rewind) -> Vec<MessageBody> {
        let past = self.past();
        for key in &rewind.forget {
            if let Some(at) = past.keys.remove(key) {
                past.entries.remove(&at);
            }
        }
        let mut forgotten = Vec::new();
        for Unread { name, sender, body } in &rewind.unread {
            let mail = MessageBody::Signal { name: name.clone(), sender: sender.clone(), body: body.clone() };
            let same = |posted: &&mut Posted| {
                let said = &posted.message.body;
                said.subject() == mail.subject() && said.sender() == mail.sender()
            };
            match past.inbox.iter_mut().find(same) {
                None => forgotten.push(mail),
                Some(posted) if posted.read => {
                    posted.read = false;
                    posted.message.body = mail;
                }
                // What it has sent since.
                Some(_) => {}
            }
        }
        forgotten
    }

    /// Whether the end of this job cancels that child.
    pub(super) fn cancels(&self, child: Row) -> bool {
        let children = self.past.iter().flat_map(|past| &past.children);
        children.into_iter().any(|(row, on_close)| *row == child && *on_close == OnClose::Cancel)
    }

    fn past(&mut self) -> &mut Past {
        self.past.get_or_insert_default()
    }
}

impl Model {
    pub(super) fn record(
        &mut self,
        node: NodeNo,
        recordings: Vec<Recording>,
        now: Timestamp,
    ) -> Result<Vec<Recorded>> {
        self.check_children(&recordings)?;
        let mut answers = Vec::with_capacity(recordings.len());
        for recording in recordings {
            let lost = planted::is(Defect::RecordLost) && !answers.is_empty();
            answers.push(if lost { Recorded::Stored } else { self.record_one(node, recording, now)? });
        }
        Ok(answers)
    }

    /// All before any: a call that fails has no effect.
    fn check_children(&self, recordings: &[Recording]) -> Result<()> {
        let children: Vec<_> = recordings
            .iter()
            .flat_map(|recording| &recording.children)
            .map(|child| child.job.clone())
            .collect();
        if children.iter().any(|child| child.options.unique.is_some()) {
            return Err(Error::Invalid { what: "child", why: "it has a unique key".into() });
        }
        if children.iter().any(|child| !child.journal.is_empty()) {
            return Err(Error::Invalid { what: "child", why: "it has a journal".into() });
        }
        self.check_uses(children.iter().flat_map(|child| &child.options.limits))?;
        self.check_lines(&children)
    }

    fn record_one(&mut self, node: NodeNo, recording: Recording, now: Timestamp) -> Result<Recorded> {
        let held = self.held(node, &recording.claim);
        #[cfg(feature = "planted")]
        let held = held.or_else(|| self.recorded_wrongly(&recording.claim));
        let Some(row) = held else { return Ok(Recorded::LeaseLost) };
        for child in &recording.children {
            if let Some(differs) = self.is_taken(row, &recording, child)? {
                return Ok(Recorded::Taken { child: child.job.id, differs });
            }
        }
        let Recording { claim, writes, children } = recording;
        let job = self.job_mut(row)?;
        if !writes.idle {
            job.clear_crashes();
        }
        job.past().write(writes, claim.number, now);
        for child in children {
            self.start(row, claim.id, child, now)?;
        }
        Ok(Recorded::Stored)
    }

    /// In what the job that has a child's id differs from it, if there is one and this is no repeat.
    fn is_taken(&self, parent: Row, recording: &Recording, child: &Child) -> Result<Option<Differs>> {
        let Some(&row) = self.ids.get(&child.job.id) else { return Ok(None) };
        let there = self.job(row)?;
        let mut job = child.job.clone();
        job.options.parent = Some(recording.claim.id);
        let differs = job.differs(there.kind.as_str(), &there.options, &there.input);
        let past = self.job(parent)?.past.as_deref();
        let started = |key| past.is_some_and(|past| past.keys.contains_key(key));
        let again = recording.start_of(job.id).is_none_or(started);
        Ok(differs.or((!again).then_some(Differs::Step)))
    }

    fn start(&mut self, parent: Row, id: JobId, child: Child, now: Timestamp) -> Result<()> {
        let Child { mut job, on_close } = child;
        if self.ids.contains_key(&job.id) {
            return Ok(());
        }
        job.options.parent = Some(id);
        let row = self.add(job, now);
        self.job_mut(row)?.parent = Some(parent);
        self.job_mut(parent)?.past().children.push((row, on_close));
        Ok(())
    }

    /// Sets a claimed job aside, or wakes it at once if what it waits for is there.
    pub(super) fn suspend(&mut self, row: Row, suspension: Suspension, now: Timestamp) -> Result<()> {
        let Suspension { reason, waits, until, keep, writes, note } = suspension;
        let job = self.job_mut(row)?;
        job.clear_crashes();
        let claim = job.claim;
        job.past().write(writes, claim, now);
        job.keeps = keep && !job.options.limits.is_empty();
        let there = job.past().answers(&waits) && !planted::is(Defect::SuspendBlind);
        let over = there || until.is_some_and(|until| until <= now);
        let place = Place::Suspended { reason, due: until, waits, note };
        if planted::is(Defect::SuspendUncancelled) {
            self.go(row, Input::Suspend(reason), place)?;
        } else {
            self.go_on(row, Input::Suspend(reason), place, now)?;
        }
        if over { self.wake(row, now) } else { Ok(()) }
    }

    /// Wakes a job, if it is suspended and waits.
    pub(super) fn wake(&mut self, row: Row, now: Timestamp) -> Result<()> {
        let job = self.job(row)?;
        if !job.place.status().reason.is_some_and(Reason::awaits) {
            return Ok(());
        }
        let place = job.returned(now);
        self.go(row, Input::Wake, place)
    }

    pub(super) fn signal(&mut self, signals: Vec<Signal>, now: Timestamp) -> Result<Vec<Signalled>> {
        signals.into_iter().map(|signal| self.signal_one(signal, now)).collect()
    }

    fn signal_one(&mut self, signal: Signal, now: Timestamp) -> Result<Signalled> {
        let Signal { job, name, sender, body } = signal;
        let Some(&row) = self.ids.get(&job) else { return Ok(Signalled::NotFound) };
        let job = self.job_mut(row)?;
        let mail = MessageBody::Signal { name, sender, body };
        if job.past.as_deref().is_some_and(|past| past.has(&mail)) {
            return Ok(Signalled::Repeated);
        }
        let status = job.place.status();
        if status.state.is_terminal() {
            return Ok(Signalled::Ended(status));
        }
        let signals = |message: &&Message| matches!(message.body, MessageBody::Signal { .. });
        let unread = job.past.as_deref().map_or(0, |past| past.unread().filter(signals).count());
        if unread >= bounds::INBOX {
            return Ok(Signalled::Full);
        }
        self.post(row, mail, now)?;
        Ok(Signalled::Stored)
    }

    /// Drops unread signals of a name, all or those of one sender.
    pub(super) fn drop_signals(
        &mut self,
        id: JobId,
        name: &SignalName,
        sender: Option<&str>,
    ) -> Result<Option<usize>> {
        let Some(&row) = self.ids.get(&id) else { return Ok(None) };
        Ok(Some(self.job_mut(row)?.past.as_deref_mut().map_or(0, |past| past.drop_signals(name, sender))))
    }

    /// Puts a message into an inbox, and wakes the job if that is what it waits for.
    pub(super) fn post(&mut self, row: Row, mail: MessageBody, now: Timestamp) -> Result<()> {
        self.last_message += 1;
        let no = self.last_message;
        let job = self.job_mut(row)?;
        let id = job.id;
        job.past().inbox.push(Posted { message: Message { no, at: now, body: mail }, read: false });
        match &job.place {
            Place::Suspended { waits, .. } => {
                let waits = waits.clone();
                if job.past().answers(&waits) {
                    self.wake(row, now)?;
                }
            }
            Place::Lease { .. } => self.hint_message(id),
            Place::Ready { .. } | Place::Timers { .. } | Place::Done { .. } => {}
        }
        Ok(())
    }

    /// Tells the family of a job that it has ended, as `status`.
    pub(super) fn close(&mut self, row: Row, status: Status, now: Timestamp) -> Result<()> {
        self.tell_parent(row, status, now)?;
        let children = self.job(row)?.past.as_deref().map(|past| past.children.clone()).unwrap_or_default();
        for (child, _) in children.into_iter().filter(|(_, on_close)| *on_close == OnClose::Cancel) {
            self.cancel_child(child, now)?;
        }
        Ok(())
    }

    fn tell_parent(&mut self, row: Row, status: Status, now: Timestamp) -> Result<()> {
        let job = self.job(row)?;
        let Some(parent) = job.parent.filter(|parent| self.jobs.contains_key(parent)) else { return Ok(()) };
        let (child, (result, message)) = (job.id, job.ending());
        let mail = MessageBody::Ended { child, status, result, message };
        let awake = self.job(parent)?.place.status().state != State::Suspended;
        if planted::is(Defect::ChildForgotten) && awake {
            return Ok(());
        }
        if self.job_mut(parent)?.past().has(&mail) {
            return Ok(());
        }
        self.post(parent, mail, now)
    }

    pub(super) fn cancel_child(&mut self, row: Row, now: Timestamp) -> Result<()> {
        let Some(job) = self.jobs.get(&row) else { return Ok(()) };
        if matches!(job.place, Place::Lease { .. }) {
            return self.flag(row, Cancellation::orphan());
        }
        if !job.place.is_waiting() {
            return Ok(());
        }
        let status = Status::because(State::Cancelled, Reason::Parent);
        self.go(row, Input::Cancel(Reason::Parent), Place::done(status, now, ""))
    }

    pub(super) fn values(&self, id: JobId, keys: &[Key]) -> Vec<Option<Vec<u8>>> {
        let past = self.ids.get(&id).and_then(|row| self.jobs.get(row)).and_then(|job| job.past.as_deref());
        let value = |key: &Key| {
            let past = past?;
            match &past.entries.get(past.keys.get(key)?)?.value {
                Value::Here(value) => Some(value.clone()),
                Value::There(_) => None,
            }
        };
        keys.iter().map(value).collect()
    }

    pub(super) fn inboxes(&self, claims: &[(Claim, i64)]) -> Vec<Inbox> {
        let inbox = |(claim, after): &(Claim, i64)| {
            let job = self.jobs.get(&claim.row).filter(|job| job.id == claim.id)?;
            Some(job.past.as_deref()?.inbox(*after, usize::MAX))
        };
        claims.iter().map(|ask| inbox(ask).unwrap_or_default()).collect()
    }

    pub(super) fn job_ends(&self, ids: &[JobId]) -> Vec<JobEnd> {
        let job_end = |id: &JobId| {
            let Some(job) = self.ids.get(id).and_then(|row| self.jobs.get(row)) else {
                return JobEnd::Missing;
            };
            let status = job.place.status();
            if !status.state.is_terminal() {
                return JobEnd::Open;
            }
            let (result, message) = job.ending();
            JobEnd::Ended { status, result, message }
        };
        ids.iter().map(job_end).collect()
    }

    pub(super) fn timeline(&self, id: JobId) -> Option<Timeline> {
        let job = self.ids.get(&id).and_then(|row| self.jobs.get(row))?;
        let Some(past) = job.past.as_deref() else { return Some(Timeline::default()) };
        let kin = |(row, on_close): &(Row, OnClose)| {
            let job = self.jobs.get(row)?;
            Some(ChildSummary { id: job.id, status: job.place.status(), on_close: *on_close })
        };
        Some(Timeline {
            entries: past.entries.values().take(bounds::TIMELINE).cloned().map(shortened).collect(),
            more: past.entries.len() > bounds::TIMELINE,
            inbox: past.inbox(0, usize::MAX),
            children: past.children.iter().filter_map(kin).collect(),
        })
    }
}

fn shortened(entry: Written) -> Written {
    match entry.value {
        Value::Here(value) if value.len() > bounds::TIMELINE_VALUE_BYTES => {
            Written { value: Value::There(value.len()), ..entry }
        }
        value => Written { value, ..entry },
    }
}

impl Job {
    /// What it returned, and what it or somebody else had to say to its end.
    fn ending(&self) -> (Option<Vec<u8>>, Option<String>) {
        let (result, note) = match &self.place {
            Place::Done { result, note, .. } => (result.clone(), note.clone()),
            Place::Ready { .. } | Place::Timers { .. } | Place::Suspended { .. } | Place::Lease { .. } => {
                (None, None)
            }
        };
        let message = note.or_else(|| self.last_failure().map(|error| error.message.clone()));
        let failed = self.place.status().state != State::Succeeded;
        (result, message.filter(|_| failed))
    }
}
