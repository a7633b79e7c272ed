//! Hints: what a transaction has to tell once it is committed, to this process and to others.
//!
//! Others are told by a notification of their own, after the commit: a notification inside a transaction makes all
//! commits of the database wait for each other. It is sent only if somebody waits: whoever waits for a queue holds a shared
//! advisory lock, and a notification goes out with a statement that tries to take that lock for itself.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;

use mainspring_core::id::{JobId, NodeNo};
use mainspring_core::name::QueueName;
use mainspring_core::store::Hint;
use mainspring_core::time::Timestamp;

use crate::connection::Conn;
use crate::idle_poll;
use crate::scan_bounds::{LineLevel, Position};
use crate::shared::Shared;
use crate::sql::statement;

/// Pairs that one notification names at most: its text is bounded by the database.
const PAIRS: usize = 64;

statement! {
    /// Only locks in memory. Whoever waits holds the lock; if it can be had, nobody does.
    pub(crate) Notify<'a> = "hint.notify", whole ("it touches no table"),
    (channel: String, text: String, class: i32, queue: i32);
    "SELECT pg_notify($1, $2) WHERE NOT pg_try_advisory_xact_lock($3, $4)"
}

/// The number that stands for "anybody at all" among the queues.
pub(crate) const ANYBODY: i32 = 0;

/// What one transaction has to tell.
#[derive(Debug, Default, PartialEq)]
pub(crate) struct Hints {
    ready: BTreeMap<LineLevel, Position>,
    /// Groups that have a turn since then, by the lines and levels of the turns.
    turns: BTreeMap<LineLevel, Timestamp>,
    /// Queues in which something may be claimed again.
    queues: BTreeSet<i32>,
    due: Option<Timestamp>,
    cancel: BTreeSet<NodeNo>,
    /// Claimed jobs that got a message.
    messages: BTreeSet<JobId>,
}

impl Hints {
    /// A job became ready here.
    pub(crate) fn ready(&mut self, pair: LineLevel, position: Position) {
        let first = self.ready.entry(pair).or_insert(position);
        *first = position.min(*first);
    }

    /// A group has a turn here.
    pub(crate) fn turn(&mut self, pair: LineLevel, at: Timestamp) {
        let first = self.turns.entry(pair).or_insert(at);
        *first = at.min(*first);
    }

    /// A job became ready here: by itself, or with a turn of its group.
    pub(crate) fn enter(&mut self, limited: bool, pair: LineLevel, position: Position) {
        if limited { self.turn(pair, position.0) } else { self.ready(pair, position) }
    }

    /// A queue gives jobs again.
    pub(crate) fn queue(&mut self, no: i32) {
        self.queues.insert(no);
    }

    /// A job becomes due, or meets its deadline, at this time.
    pub(crate) fn due(&mut self, at: Timestamp) {
        self.due = Some(self.due.map_or(at, |due| due.min(at)));
    }

    /// A claim of this node was flagged.
    pub(crate) fn cancel(&mut self, node: NodeNo) {
        self.cancel.insert(node);
    }

    /// A claimed job got a message.
    pub(crate) fn message(&mut self, job: JobId) {
        self.messages.insert(job);
    }

    /// The lines that it names.
    pub(crate) fn lines(&self) -> Vec<i32> {
        self.ready.keys().chain(self.turns.keys()).map(|(line, _)| *line).collect()
    }

    /// Tells this process.
    pub(crate) fn send_here(&self, shared: &Shared) {
        {
            let mut scan_bounds = shared.scan_bounds();
            for (pair, position) in &self.ready {
                scan_bounds.add(*pair, *position);
            }
        }
        if !self.turns.is_empty() {
            let mut turn_bounds = shared.turn_bounds();
            for (pair, at) in &self.turns {
                // Turns are numbered from one on.
                turn_bounds.add(*pair, (*at, 0));
            }
        }
        let queues = self.queue_names(shared);
        if !queues.is_empty() {
            shared.tell(&Hint::Ready(queues.into_values().collect()));
        }
        if let Some(due) = self.due {
            idle_poll::forget_due(shared);
            shared.tell(&Hint::Due(due));
        }
        for node in &self.cancel {
            shared.tell(&Hint::Cancel(*node));
        }
        for job in &self.messages {
            shared.tell(&Hint::Message(*job));
        }
    }

    /// Tells this process and, if somebody there waits, others. A failure is not worth a word: others look around by
    /// themselves.
    pub(crate) async fn send(self, conn: &mut Conn, shared: &Shared) {
        self.send_here(shared);
        let channel = shared.channel();
        for (queue, text) in self.messages(shared) {
            let class = shared.waiting_class();
            let notify = Notify { channel: &channel, text: &text, class: &class, queue: &queue };
            if conn.send_unanswered(&notify.call()).await.is_err() {
                return;
            }
        }
    }

    fn queue_names(&self, shared: &Shared) -> BTreeMap<i32, QueueName> {
        let names = shared.names();
        let of_pairs =
            self.ready.keys().chain(self.turns.keys()).filter_map(|(line, _)| names.line(*line).ok());
        let mut queues: BTreeMap<_, _> = of_pairs.map(|line| (line.queue, line.queue_name.clone())).collect();
        let named = self.queues.iter().filter_map(|no| Some((*no, names.queue(*no).ok()?.name.clone())));
        queues.extend(named);
        queues
    }

    /// One message per queue, and one for the rest, with the queue that somebody must wait for.
    fn messages(&self, shared: &Shared) -> Vec<(i32, String)> {
        let mut messages = Vec::new();
        for queue in self.queue_names(shared).keys() {
            let mut text = format!("{};q{queue}", shared.handle());
            let names = shared.names();
            let here = |line: i32| names.line(line).is_ok_and(|line| line.queue == *queue);
            for ((line, level), (at, no)) in
                self.ready.iter().filter(|((line, _), _)| here(*line)).take(PAIRS)
            {
                let _ = write!(text, ";r{line},{level},{},{no}", at.as_micros());
            }
            for ((line, level), at) in self.turns.iter().filter(|((line, _), _)| here(*line)).take(PAIRS) {
                let _ = write!(text, ";t{line},{level},{}", at.as_micros());
            }
            messages.push((*queue, text));
        }
        if self.due.is_some() || !self.cancel.is_empty() || !self.messages.is_empty() {
            let mut text = shared.handle().to_string();
            if let Some(due) = self.due {
                let _ = write!(text, ";d{}", due.as_micros());
            }
            for node in self.cancel.iter().take(PAIRS) {
                let _ = write!(text, ";c{node}");
            }
            for job in self.messages.iter().take(PAIRS) {
                let _ = write!(text, ";m{job}");
            }
            messages.push((ANYBODY, text));
        }
        messages
    }

    /// Reads what another process tells; `None` if it is our own message.
    pub(crate) fn read(text: &str, handle: u64) -> Option<Hints> {
        let mut parts = text.split(';');
        if parts.next()?.parse() == Ok(handle) {
            return None;
        }
        let mut hints = Hints::default();
        for part in parts {
            // Whatever we do not understand comes from a newer version, and is a hint at most.
            hints.read_part(part);
        }
        Some(hints)
    }

    fn read_part(&mut self, part: &str) -> Option<()> {
        let mut letters = part.chars();
        let kind = letters.next()?;
        let rest = letters.as_str();
        match kind {
            'q' => self.queue(rest.parse().ok()?),
            'd' => self.due(Timestamp::from_micros(rest.parse().ok()?)),
            'c' => self.cancel(NodeNo(rest.parse().ok()?)),
            'm' => self.message(rest.parse().ok()?),
            't' => {
                let mut numbers = rest.split(',');
                let line = numbers.next()?.parse().ok()?;
                let level = numbers.next()?.parse().ok()?;
                self.turn((line, level), Timestamp::from_micros(numbers.next()?.parse().ok()?));
            }
            'r' => {
                let mut numbers = rest.split(',');
                let line = numbers.next()?.parse().ok()?;
                let level = numbers.next()?.parse().ok()?;
                let at = Timestamp::from_micros(numbers.next()?.parse().ok()?);
                self.ready((line, level), (at, numbers.next()?.parse().ok()?));
            }
            _ => {}
        }
        Some(())
    }
}
