//! Short words for what behaviours of workflows do all the time.

use mainspring_core::bounds;
use mainspring_core::id::{Claim, JobId, NodeNo};
use mainspring_core::job::{New, Outcome, Reason};
use mainspring_core::journal::{
    Child, Entry, EntryKind, Message, MessageBody, OnClose, Recorded, Recording, Signal, Signalled, Subject,
    Suspension, Timeline, Value, Wait, Writes, Written,
};
use mainspring_core::name::{Key, SignalName};
use mainspring_core::store::Claimed;
use mainspring_core::time::Timestamp;

use crate::harness::{Harness, queue};

impl Harness {
    /// Asks to record. One answer per recording.
    pub(super) async fn record_all(&self, node: NodeNo, recordings: Vec<Recording>) -> Vec<Recorded> {
        let count = recordings.len();
        let answers = self.store.record(node, recordings).await.expect("record");
        assert_eq!(answers.len(), count, "one answer per recording");
        answers
    }

    /// Asks to record something without children.
    pub(super) async fn try_record(&self, node: NodeNo, claim: Claim, writes: Writes) -> Recorded {
        self.record_all(node, vec![recording(claim, writes)]).await[0]
    }

    /// Records, with a claim that must be held.
    pub(super) async fn record(&self, node: NodeNo, claim: Claim, writes: Writes) {
        assert_eq!(self.try_record(node, claim, writes).await, Recorded::Stored);
    }

    /// A child for queue `q2`, so that claims of `q` do not meet it, that is cancelled with its parent.
    pub(super) fn child(&self) -> Child {
        self.child_with(|_| {})
    }

    /// That child, changed.
    pub(super) fn child_with(&self, change: impl FnOnce(&mut New)) -> Child {
        let mut job = self.job_with(|job| job.queue = queue("q2"));
        change(&mut job);
        Child { job, on_close: OnClose::Cancel }
    }

    /// Records that a child starts, as handlers do.
    pub(super) async fn start(&self, node: NodeNo, claim: Claim, child: Child) -> JobId {
        let id = child.job.id;
        assert_eq!(self.record_all(node, vec![starting(claim, vec![child])]).await, [Recorded::Stored]);
        id
    }

    /// A claimed job of `q` with one child in `q2`.
    pub(super) async fn parent(&self) -> (NodeNo, Claim, JobId) {
        let (node, claim) = self.running().await;
        let child = self.start(node, claim, self.child()).await;
        (node, claim, child)
    }

    /// Suspends a claim that must be held.
    pub(super) async fn suspend(&self, node: NodeNo, claim: Claim, suspension: Suspension) {
        self.end(node, claim, suspended(suspension)).await;
    }

    /// A job that a node has claimed and suspended.
    pub(super) async fn waiting(&self, suspension: Suspension) -> (NodeNo, JobId) {
        let (node, claim) = self.running().await;
        self.suspend(node, claim, suspension).await;
        (node, claim.id)
    }

    /// Claims the one job of a queue that there must be to claim, with its past.
    pub(super) async fn take_in(&self, node: NodeNo, name: &str) -> Claimed {
        let mut request = self.request(node, 1);
        request.queues = vec![(queue(name), 1)];
        let mut claimed = self.claim_as(request).await;
        assert_eq!(claimed.len(), 1, "there is a job in `{name}` to claim");
        claimed.remove(0)
    }

    /// The same of `q`.
    pub(super) async fn take(&self, node: NodeNo) -> Claimed {
        self.take_in(node, "q").await
    }

    /// Claims the child that must be ready in `q2`, and ends it.
    pub(super) async fn end_child(&self, node: NodeNo, outcome: Outcome) {
        let child = self.take_in(node, "q2").await;
        self.end(node, child.claim, outcome).await;
    }

    /// Sends one signal.
    pub(super) async fn signal(&self, job: JobId, name: &str, sender: &str) -> Signalled {
        self.signal_all(vec![signal(job, name, sender)]).await[0]
    }

    /// Sends one signal that must be stored.
    pub(super) async fn send(&self, job: JobId, name: &str, sender: &str) {
        assert_eq!(self.signal(job, name, sender).await, Signalled::Stored);
    }

    /// Sends signals. One answer per signal.
    pub(super) async fn signal_all(&self, signals: Vec<Signal>) -> Vec<Signalled> {
        let count = signals.len();
        let answers = self.store.signal(signals).await.expect("signal");
        assert_eq!(answers.len(), count, "one answer per signal");
        answers
    }

    /// What came with a claim of what was recorded, with all values. Those that did not come are read.
    pub(super) async fn entries(&self, claimed: &Claimed) -> Vec<Written> {
        let mut entries = claimed.journal.as_ref().map(|past| past.entries.clone()).unwrap_or_default();
        for entry in &mut entries {
            if let Value::There(bytes) = entry.value {
                let values = self.values(claimed.claim, vec![entry.key.clone()]).await;
                let value = values.into_iter().next().flatten().expect("a value that was promised");
                assert_eq!(value.len(), bytes, "it is as long as it was said to be");
                entry.value = Value::Here(value);
            }
        }
        entries
    }

    /// The keys of what came with a claim, in order.
    pub(super) async fn keys(&self, claimed: &Claimed) -> Vec<String> {
        self.entries(claimed).await.into_iter().map(|entry| entry.key.to_string()).collect()
    }

    /// Reads values of a job.
    pub(super) async fn values(&self, claim: Claim, keys: Vec<Key>) -> Vec<Option<Vec<u8>>> {
        self.store.values(claim.id, keys).await.expect("values")
    }

    /// All unread messages of a job, from behind a message on, over all pages.
    pub(super) async fn messages_after(&self, claim: Claim, mut after: i64) -> Vec<Message> {
        let mut messages = Vec::new();
        loop {
            let mut inboxes = self.store.inbox(vec![(claim, after)]).await.expect("inbox");
            assert_eq!(inboxes.len(), 1, "one inbox per claim");
            let page = inboxes.remove(0);
            assert!(page.messages.len() <= bounds::INBOX_PAGE, "a page is bounded");
            messages.extend(page.messages);
            if !page.more {
                return messages;
            }
            let last = messages.last().map_or(after, |message| message.no);
            assert!(last > after, "a page with more behind it is not empty");
            after = last;
        }
    }

    /// All unread messages of a job.
    pub(super) async fn messages(&self, claim: Claim) -> Vec<Message> {
        self.messages_after(claim, 0).await
    }

    /// All unread messages of a claimed job: those that came with it, and the rest. They are what its inbox holds.
    pub(super) async fn mail(&self, claimed: &Claimed) -> Vec<Message> {
        let inbox = claimed.journal.as_ref().map(|past| past.inbox.clone()).unwrap_or_default();
        let (mut messages, more) = (inbox.messages, inbox.more);
        if more {
            let last = messages.last().map_or(0, |message| message.no);
            messages.extend(self.messages_after(claimed.claim, last).await);
        }
        assert_eq!(messages, self.messages(claimed.claim).await, "what came with the claim is in the inbox");
        messages
    }

    /// What people see of a job's past.
    pub(super) async fn timeline(&self, id: JobId) -> Timeline {
        self.store.timeline(id).await.expect("timeline").expect("the job is known")
    }
}

/// A recording without children.
pub(super) fn recording(claim: Claim, writes: Writes) -> Recording {
    Recording { claim, writes, children: Vec::new() }
}

/// A recording of the start of children, each under its id.
pub(super) fn starting(claim: Claim, children: Vec<Child>) -> Recording {
    let entries = children.iter().map(|child| {
        let id = child.job.id.to_string();
        Entry {
            key: key(&id),
            kind: EntryKind::Child,
            overlapped: false,
            value: format!("\"{id}\"").into_bytes(),
            took: None,
        }
    });
    Recording { claim, writes: writes(entries), children }
}

/// The key of an operation.
pub(super) fn key(text: &str) -> Key {
    Key::new(text).expect("a key")
}

/// The name of a signal.
pub(super) fn name(text: &str) -> SignalName {
    SignalName::new(text).expect("a signal name")
}

/// A result under a key.
pub(super) fn value(name: &str, value: impl Into<Vec<u8>>) -> Entry {
    Entry { key: key(name), kind: EntryKind::Value, overlapped: false, value: value.into(), took: None }
}

/// Entries to write.
pub(super) fn writes(entries: impl IntoIterator<Item = Entry>) -> Writes {
    Writes { entries: entries.into_iter().collect(), ..Writes::default() }
}

/// Results under these keys to write.
pub(super) fn steps<const N: usize>(keys: [&str; N]) -> Writes {
    writes(keys.map(|key| value(key, key)))
}

/// Messages to mark as read.
pub(super) fn reads<'a>(messages: impl IntoIterator<Item = &'a Message>) -> Writes {
    Writes { read: messages.into_iter().map(|message| message.no).collect(), ..Writes::default() }
}

/// Keys to forget.
pub(super) fn forgets<const N: usize>(keys: [&str; N]) -> Writes {
    Writes { forget: keys.map(key).to_vec(), ..Writes::default() }
}

/// A signal.
pub(super) fn signal(job: JobId, about: &str, sender: &str) -> Signal {
    Signal { job, name: name(about), sender: sender.into(), body: b"1".to_vec() }
}

/// A wait for signals of a name.
pub(super) fn wait(about: &str, need: u32) -> Wait {
    Wait { subject: Subject::Signal(name(about)), need }
}

/// A suspension until a signal of this name comes.
pub(super) fn until_signal(about: &str) -> Suspension {
    Suspension {
        reason: Reason::Signal,
        waits: vec![wait(about, 1)],
        until: None,
        keep: false,
        writes: Writes::default(),
        note: None,
    }
}

/// A suspension until a child ends.
pub(super) fn until_child(child: JobId) -> Suspension {
    let waits = vec![Wait { subject: Subject::Child(child), need: 1 }];
    Suspension { reason: Reason::Child, waits, ..until_signal("x") }
}

/// A suspension until a time.
pub(super) fn until_time(at: Timestamp) -> Suspension {
    Suspension { reason: Reason::Timer, waits: Vec::new(), until: Some(at), ..until_signal("x") }
}

/// A suspension as an outcome.
pub(super) fn suspended(suspension: Suspension) -> Outcome {
    Outcome::Suspend(Box::new(suspension))
}

/// Who sent messages that are signals, in order.
pub(super) fn senders(messages: &[Message]) -> Vec<&str> {
    messages.iter().map(|message| message.body.sender()).collect()
}

/// What messages say.
pub(super) fn mails(messages: Vec<Message>) -> Vec<MessageBody> {
    messages.into_iter().map(|message| message.body).collect()
}
