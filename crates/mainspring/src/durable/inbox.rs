//! The inbox: messages that were sent to a job, and that its handler has not taken yet.
//!
//! The store keeps all messages until a recording says that they were read. A handler knows of those that came with its claim, and of
//! what later looks into the inbox have brought; there may be more in the store.
//!
//! # Invariants
//! - Messages are taken in the order of their numbers.
//! - A wait whose time is up takes its messages only after a look that has reached the inbox's end: what came in time counts.

use mainspring_core::journal::{Inbox, Message, Subject};

/// Messages that the handler knows of.
#[derive(Default)]
pub(crate) struct SessionInbox {
    messages: Vec<Message>,
    /// The number of the last that came.
    last: i64,
    /// Whether the store has more messages than these, or may have.
    more: bool,
    /// How often the inbox was looked into.
    looks: u64,
}

impl SessionInbox {
    /// Starts with the messages that came with a claim. The suspension has recorded those that were taken before; the others come again.
    pub(super) fn begin(&mut self, inbox: Inbox) {
        self.messages.clear();
        self.last = 0;
        self.receive(inbox);
    }

    /// Adds what another look has brought.
    pub(super) fn looked(&mut self, inbox: Inbox) {
        self.looks += 1;
        self.receive(inbox);
    }

    fn receive(&mut self, inbox: Inbox) {
        self.more = inbox.more;
        for message in inbox.messages {
            if message.no > self.last {
                self.last = message.no;
                self.messages.push(message);
            }
        }
    }

    /// Behind which message the next look begins.
    pub(super) fn last(&self) -> i64 {
        self.last
    }

    /// Whether the store has more messages, or may have.
    pub(super) fn has_more(&self) -> bool {
        self.more
    }

    /// Whether the inbox was looked into, to its end, since a wait asked first; asks for that if it was not. The wait
    /// keeps `since`. `came`: the claim itself brought all that was there when the wait's time had come.
    pub(super) fn has_looked(&mut self, came: bool, since: &mut Option<u64>) -> bool {
        let looked = *since.get_or_insert(self.looks) < self.looks;
        // Behind the messages that are here there may be one that came in time.
        if !self.more && (came || looked) {
            return true;
        }
        self.more = true;
        false
    }

    /// Takes messages of a subject, if as many are there; with `fewer`, what is there.
    pub(super) fn take(&mut self, subject: &Subject, need: u32, fewer: bool) -> Option<Vec<Message>> {
        let need = usize::try_from(need).unwrap_or(usize::MAX);
        let fits = |message: &Message| message.body.subject() == *subject;
        let there = self.messages.iter().filter(|message| fits(message)).count();
        if there < need && !fewer {
            return None;
        }
        let mut left = need;
        let taken = self.messages.extract_if(.., |message| {
            let takes = left > 0 && fits(message);
            left -= usize::from(takes);
            takes
        });
        Some(taken.collect())
    }

    /// Gives messages back that were taken and are not read: the next wait finds them, in their order.
    pub(super) fn put_back(&mut self, messages: Vec<Message>) {
        self.messages.extend(messages);
        self.messages.sort_by_key(|message| message.no);
    }

    /// The first message that says this, if there is one.
    pub(super) fn find<T>(&self, says: impl Fn(&Message) -> Option<T>) -> Option<(usize, T)> {
        self.messages.iter().enumerate().find_map(|(at, message)| Some((at, says(message)?)))
    }

    /// Takes the message at a place that [`find`](Self::find) has returned.
    pub(super) fn take_at(&mut self, at: usize) -> Message {
        self.messages.remove(at)
    }

    /// Takes all messages of a sort; their numbers.
    pub(super) fn take_all(&mut self, is_taken: impl Fn(&Message) -> bool) -> Vec<i64> {
        self.messages.extract_if(.., |message| is_taken(message)).map(|message| message.no).collect()
    }
}
