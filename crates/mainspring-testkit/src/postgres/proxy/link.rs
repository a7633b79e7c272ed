//! One connection through the proxy: a thread per direction.

use std::io;
use std::net::Shutdown;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::stream::Stream;
use super::wire::{self, Commits, MessageInfo, READY, StartupPacket};
use super::{Cut, Shared, TrafficState};

/// A client's connection and the one to the server that belongs to it.
#[derive(Debug)]
pub(super) struct Link {
    pub(super) id: u64,
    client: Stream,
    server: Stream,
    flow: Mutex<BatchOrder>,
    /// It has listened for notifications.
    listens: AtomicBool,
    /// Some of its bytes were swallowed.
    lost: AtomicBool,
}

/// Which batch is asked and which is answered.
#[derive(Debug, Default)]
struct BatchOrder {
    /// The handshake is over.
    ready: bool,
    /// Batches passed on to the server.
    asked: u64,
    /// Batches answered by the server.
    answered: u64,
    /// From this batch on the client gets no answer, counted from 1.
    silent: Option<u64>,
    /// The client spoke last.
    waits: bool,
}

/// What becomes of a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum MessageAction {
    /// It is passed on.
    Pass,
    /// It is not.
    Drop,
    /// It is passed on as the last one; the other direction will cut.
    Last,
    /// It is not, and the connection is cut.
    Cut,
    /// Its first half is, and the connection is cut.
    Half,
}

impl Link {
    pub(super) fn new(id: u64, client: Stream, server: Stream) -> Link {
        let (listens, lost) = (AtomicBool::new(false), AtomicBool::new(false));
        Link { id, client, server, flow: Mutex::default(), listens, lost }
    }

    /// Whether it has listened for notifications.
    pub(super) fn listens(&self) -> bool {
        self.listens.load(Ordering::Relaxed)
    }

    /// Whether its bytes are swallowed: from now on, if the proxy does so now.
    pub(super) fn is_lost(&self, swallows: bool) -> bool {
        self.lost.fetch_or(swallows, Ordering::Relaxed) || swallows
    }

    /// Ends both connections.
    pub(super) fn shut(&self) {
        self.client.shut(Shutdown::Both);
        self.server.shut(Shutdown::Both);
    }

    /// What becomes of a client's message, given where a plan says to cut.
    pub(super) fn judge(&self, seen: MessageInfo, cut: Option<Cut>) -> MessageAction {
        self.listens.fetch_or(seen.listens, Ordering::Relaxed);
        // Judged one by one: others of the same write may follow.
        if self.is_lost(cut == Some(Cut::Lost)) {
            return MessageAction::Drop;
        }
        let mut flow = self.flow();
        match cut {
            Some(Cut::Before) => return MessageAction::Cut,
            Some(Cut::Inside) => return MessageAction::Half,
            // From here on, not from the batch's end: the server may answer a part of a batch before it is complete.
            Some(Cut::After) => flow.silent = Some(flow.asked + 1),
            Some(Cut::Lost) | None => {}
        }
        if !seen.ends_batch {
            return MessageAction::Pass;
        }
        flow.asked += 1;
        if flow.silent.is_some() { MessageAction::Last } else { MessageAction::Pass }
    }

    /// What becomes of a server's message.
    fn judge_answer(&self, kind: u8) -> MessageAction {
        let mut flow = self.flow();
        if !flow.ready {
            flow.ready = kind == READY;
            return MessageAction::Pass;
        }
        let batch = flow.answered + 1;
        let silent = flow.silent.is_some_and(|from| batch >= from);
        if kind == READY {
            flow.answered = batch;
        }
        match (silent, kind) {
            (true, READY) => MessageAction::Cut,
            (true, _) => MessageAction::Drop,
            (false, _) => MessageAction::Pass,
        }
    }

    /// Passes a client's bytes on, and counts if the client had been answered.
    fn ask(&self, shared: &Shared, bytes: &[u8]) -> io::Result<()> {
        let mut flow = self.flow();
        let turned = flow.ready && !flow.waits;
        flow.waits = flow.ready;
        drop(flow);
        shared.lock().counts.round_trips += u64::from(turned);
        self.server.write(bytes)
    }

    /// Passes a server's bytes on.
    fn answer(&self, bytes: &[u8]) -> io::Result<()> {
        self.flow().waits = false;
        self.client.write(bytes)
    }

    fn flow(&self) -> MutexGuard<'_, BatchOrder> {
        self.flow.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Serves a connection until the client has nothing more to say. The way back has a thread of its own.
pub(super) fn run(shared: &Arc<Shared>, link: &Arc<Link>) {
    let mut bytes = Vec::new();
    // A connection that breaks is what a proxy is for; there is nobody to tell.
    let Ok(Some(readable)) = open(shared, link, &mut bytes) else { return shared.close(link) };
    let (there, back) = (Arc::clone(shared), Arc::clone(link));
    shared.spawn(move || {
        let _broken = answers(&there, &back, readable);
        there.close(&back);
    });
    if requests(shared, link, bytes, readable).is_err() {
        shared.close(link);
    }
}

/// Passes the handshake's beginning on. `None` if there is no session to follow, otherwise whether it can be read.
fn open(shared: &Shared, link: &Link, bytes: &mut Vec<u8>) -> io::Result<Option<bool>> {
    loop {
        let Some((opening, length)) = wire::opening(bytes) else {
            if !link.client.read_more(bytes)? {
                return Ok(None);
            }
            continue;
        };
        match shared.pass(link, length, true) {
            TrafficState::Open => {}
            TrafficState::Closed => return Ok(None),
            TrafficState::Swallowed => {
                swallow(shared, link)?;
                return Ok(None);
            }
        }
        link.server.write(&bytes[..length])?;
        bytes.drain(..length);
        match opening {
            StartupPacket::Start => return Ok(Some(true)),
            StartupPacket::Cancel => {
                // The server closes when it has done it.
                link.server.read_more(&mut Vec::new())?;
                return Ok(None);
            }
            StartupPacket::Encrypt => {
                let mut answer = Vec::new();
                link.server.read_more(&mut answer)?;
                link.client.write(&answer)?;
                // `N` is a no, after which the client may go on in the clear.
                if answer != b"N" {
                    return Ok(Some(false));
                }
            }
        }
    }
}

/// From the client to the server. Ends without an error if the way back is to close the connection.
fn requests(shared: &Shared, link: &Link, mut bytes: Vec<u8>, readable: bool) -> io::Result<()> {
    let mut commits = Commits::default();
    loop {
        let mut end = MessageAction::Pass;
        let passed = if readable {
            take(&mut bytes, &mut end, |message| shared.judge(link, commits.see(message)))
        } else {
            std::mem::take(&mut bytes)
        };
        if !passed.is_empty() {
            link.ask(shared, &passed)?;
        }
        match end {
            MessageAction::Cut | MessageAction::Half => drop(shared.cut(link)),
            MessageAction::Last => {}
            MessageAction::Pass | MessageAction::Drop => {
                let before = bytes.len();
                if !link.client.read_more(&mut bytes)? {
                    // The server still gets to read what was passed on, and closes.
                    link.server.shut(Shutdown::Write);
                    return Ok(());
                }
                match shared.pass(link, bytes.len() - before, true) {
                    TrafficState::Open => continue,
                    TrafficState::Closed => {}
                    TrafficState::Swallowed => {
                        swallow(shared, link)?;
                        shared.close(link);
                    }
                }
            }
        }
        return Ok(());
    }
}

/// From the server to the client.
fn answers(shared: &Shared, link: &Link, readable: bool) -> io::Result<()> {
    let mut bytes = Vec::new();
    loop {
        let before = bytes.len();
        let more = link.server.read_more(&mut bytes);
        if link.is_lost(false) && !matches!(more, Ok(true)) {
            // Nobody is told that the other side has left.
            return swallow(shared, link);
        }
        if !more? {
            return Ok(());
        }
        match shared.pass(link, bytes.len() - before, false) {
            TrafficState::Open => {}
            TrafficState::Closed => return Ok(()),
            TrafficState::Swallowed => {
                bytes.clear();
                continue;
            }
        }
        let mut end = MessageAction::Pass;
        let passed = if readable {
            take(&mut bytes, &mut end, |message| link.judge_answer(message[0]))
        } else {
            std::mem::take(&mut bytes)
        };
        if !passed.is_empty() {
            link.answer(&passed)?;
        }
        if end == MessageAction::Cut {
            shared.cut(link);
        }
    }
}

/// Throws away what a client says, until it has had enough.
fn swallow(shared: &Shared, link: &Link) -> io::Result<()> {
    let mut bytes = Vec::new();
    while link.client.read_more(&mut bytes)?
        && shared.pass(link, bytes.len(), true) == TrafficState::Swallowed
    {
        bytes.clear();
    }
    Ok(())
}

/// Takes the complete messages from the front of some bytes, up to one that ends the connection; those that pass.
fn take(
    bytes: &mut Vec<u8>,
    end: &mut MessageAction,
    mut judge: impl FnMut(&[u8]) -> MessageAction,
) -> Vec<u8> {
    let mut passed = Vec::new();
    let mut taken = 0;
    while let Some(message) = wire::message(&bytes[taken..]) {
        *end = judge(message);
        match end {
            MessageAction::Pass | MessageAction::Last => passed.extend_from_slice(message),
            MessageAction::Half => passed.extend_from_slice(&message[..message.len() / 2]),
            MessageAction::Drop | MessageAction::Cut => {}
        }
        taken += message.len();
        if matches!(end, MessageAction::Last | MessageAction::Cut | MessageAction::Half) {
            break;
        }
    }
    bytes.drain(..taken);
    passed
}
