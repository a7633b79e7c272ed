//! One connection through the proxy: a thread per direction.

use std::io;
use std::net::Shutdown;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::stream::Stream;
use super::wire::{self, Commits, Opening, READY, Seen};
use super::{Cut, Passage, Shared};

/// A client's connection and the one to the server that belongs to it.
#[derive(Debug)]
pub(super) struct Link {
    pub(super) id: u64,
    client: Stream,
    server: Stream,
    flow: Mutex<Flow>,
    /// It has listened for notifications.
    listens: AtomicBool,
    /// Some of its bytes were swallowed.
    lost: AtomicBool,
}

/// Which batch is asked and which is answered.
#[derive(Debug, Default)]
struct Flow {
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
pub(super) enum Verdict {
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
    pub(super) fn judge(&self, seen: Seen, cut: Option<Cut>) -> Verdict {
        self.listens.fetch_or(seen.listens, Ordering::Relaxed);
        // Judged one by one: others of the same write may follow.
        if self.is_lost(cut == Some(Cut::Lost)) {
            return Verdict::Drop;
        }
        let mut flow = self.flow();
        match cut {
            Some(Cut::Before) => return Verdict::Cut,
            Some(Cut::Inside) => return Verdict::Half,
            // From here on, not from the batch's end: the server may answer a part of a batch before it is complete.
            Some(Cut::After) => flow.silent = Some(flow.asked + 1),
            Some(Cut::Lost) | None => {}
        }
        if !seen.ends_batch {
            return Verdict::Pass;
        }
        flow.asked += 1;
        if flow.silent.is_some() { Verdict::Last } else { Verdict::Pass }
    }

    /// What becomes of a server's message.
    fn judge_answer(&self, kind: u8) -> Verdict {
        let mut flow = self.flow();
        if !flow.ready {
            flow.ready = kind == READY;
            return Verdict::Pass;
        }
        let batch = flow.answered + 1;
        let silent = flow.silent.is_some_and(|from| batch >= from);
        if kind == READY {
            flow.answered = batch;
        }
        match (silent, kind) {
            (true, READY) => Verdict::Cut,
            (true, _) => Verdict::Drop,
            (false, _) => Verdict::Pass,
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

    fn flow(&self) -> MutexGuard<'_, Flow> {
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
            Passage::Open => {}
            Passage::Closed => return Ok(None),
            Passage::Swallowed => {
                swallow(shared, link)?;
                return Ok(None);
            }
        }
        link.server.write(&bytes[..length])?;
        bytes.drain(..length);
        match opening {
            Opening::Start => return Ok(Some(true)),
            Opening::Cancel => {
                // The server closes when it has done it.
                link.server.read_more(&mut Vec::new())?;
                return Ok(None);
            }
            Opening::Encrypt => {
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
        let mut end = Verdict::Pass;
        let passed = if readable {
            take(&mut bytes, &mut end, |message| shared.judge(link, commits.see(message)))
        } else {
            std::mem::take(&mut bytes)
        };
        if !passed.is_empty() {
            link.ask(shared, &passed)?;
        }
        match end {
            Verdict::Cut | Verdict::Half => drop(shared.cut(link)),
            Verdict::Last => {}
            Verdict::Pass | Verdict::Drop => {
                let before = bytes.len();
                if !link.client.read_more(&mut bytes)? {
                    // The server still gets to read what was passed on, and closes.
                    link.server.shut(Shutdown::Write);
                    return Ok(());
                }
                match shared.pass(link, bytes.len() - before, true) {
                    Passage::Open => continue,
                    Passage::Closed => {}
                    Passage::Swallowed => {
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
            Passage::Open => {}
            Passage::Closed => return Ok(()),
            Passage::Swallowed => {
                bytes.clear();
                continue;
            }
        }
        let mut end = Verdict::Pass;
        let passed = if readable {
            take(&mut bytes, &mut end, |message| link.judge_answer(message[0]))
        } else {
            std::mem::take(&mut bytes)
        };
        if !passed.is_empty() {
            link.answer(&passed)?;
        }
        if end == Verdict::Cut {
            shared.cut(link);
        }
    }
}

/// Throws away what a client says, until it has had enough.
fn swallow(shared: &Shared, link: &Link) -> io::Result<()> {
    let mut bytes = Vec::new();
    while link.client.read_more(&mut bytes)? && shared.pass(link, bytes.len(), true) == Passage::Swallowed {
        bytes.clear();
    }
    Ok(())
}

/// Takes the complete messages from the front of some bytes, up to one that ends the connection; those that pass.
fn take(bytes: &mut Vec<u8>, end: &mut Verdict, mut judge: impl FnMut(&[u8]) -> Verdict) -> Vec<u8> {
    let mut passed = Vec::new();
    let mut taken = 0;
    while let Some(message) = wire::message(&bytes[taken..]) {
        *end = judge(message);
        match end {
            Verdict::Pass | Verdict::Last => passed.extend_from_slice(message),
            Verdict::Half => passed.extend_from_slice(&message[..message.len() / 2]),
            Verdict::Drop | Verdict::Cut => {}
        }
        taken += message.len();
        if matches!(end, Verdict::Last | Verdict::Cut | Verdict::Half) {
            break;
        }
    }
    bytes.drain(..taken);
    passed
}
