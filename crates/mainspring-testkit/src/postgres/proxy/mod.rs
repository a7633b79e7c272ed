//! A proxy that breaks connections at the moments that matter.
//!
//! It stands between clients and a server, on a TCP port of its own, and reads along: it knows where each message ends,
//! which one is a `COMMIT`, and which answer belongs to it. So a test can lose a connection just before a commit reaches
//! the server, or just after it has taken effect and before the client hears of it, or in the middle of a message full of
//! rows; end only the connections that listen; let the network fall silent, slow down, or swallow all that it is given; and
//! count what was said.
//!
//! A *batch* is what the server answers as a whole: a simple query, or all messages up to a `Sync`. A client that sends
//! `BEGIN`, statements and `COMMIT` in one write may have made of it one batch or several.
//!
//! ```no_run
//! use mainspring_testkit::postgres::{Cut, Proxy, Server};
//!
//! # fn main() -> Result<(), mainspring_testkit::postgres::Error> {
//! let database = Server::shared()?.database()?;
//! let proxy = Proxy::start(database.server())?;
//! let address = proxy.url(database.name());
//! // The client that connects to `address` next will not learn that its commit succeeded.
//! proxy.on_commit(Cut::After, 1);
//! # let _ = address;
//! # Ok(())
//! # }
//! ```
//!
//! # Invariants
//! - After [`Cut::Before`] the server has not seen the commit; after [`Cut::After`] it has answered it.
//! - What is counted is counted before the other side can see it.
//! - An encrypted connection is passed on unread: it can be held and cut, but not at a commit.
//! - A connection of which a byte was swallowed never passes another one, and is not closed: its ends must find out by
//!   themselves.

mod link;
mod plan;
mod sql;
mod stream;
mod wire;

use std::collections::BTreeMap;
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use super::endpoint::{Endpoint, SocketKind};
use super::server::Server;
use super::{Error, Result};
use link::{Link, MessageAction};
use plan::Plan;
use stream::Stream;
use wire::MessageInfo;

/// Where a connection is cut.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Cut {
    /// The server does not get the message.
    Before,
    /// The server gets the first half of the message.
    Inside,
    /// The server has answered the message, and the client does not get the answer.
    After,
    /// The message is swallowed with all that follows, in both directions, and the connection stays open.
    Lost,
}

/// What a proxy has seen and done.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Counts {
    /// Connections accepted.
    pub connections: u64,
    /// Batches seen, those that were cut included.
    pub batches: u64,
    /// Commits seen, those that were cut included.
    pub commits: u64,
    /// Connections cut.
    pub cuts: u64,
    /// Messages that a planned cut was used up by. Whether anybody notices is another matter: a client that waits for no
    /// answer does not see that its message was lost.
    pub hits: u64,
    /// How often a client spoke after the server had: without the handshakes, the times that somebody had to wait.
    pub round_trips: u64,
    /// Bytes that were swallowed.
    pub swallowed: u64,
}

/// A proxy in front of a server. All its connections are cut when it is dropped. It keeps its server alive.
#[derive(Debug)]
pub struct Proxy {
    shared: Arc<Shared>,
    address: SocketAddr,
    endpoint: Endpoint,
    accept: Option<JoinHandle<()>>,
    /// Kept alive: the one that it leads to.
    server: Mutex<Server>,
}

/// What the proxy and its threads share.
#[derive(Debug)]
struct Shared {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug)]
struct State {
    /// Where new connections lead.
    upstream: Endpoint,
    closed: bool,
    held: bool,
    swallows: bool,
    /// What clients send is late by so much.
    delay: Duration,
    /// Every kilobyte takes so long, in both directions.
    drag: Duration,
    plan: Plan,
    counts: Counts,
    live: BTreeMap<u64, Arc<Link>>,
    threads: Vec<JoinHandle<()>>,
}

/// Whether bytes may pass.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum TrafficState {
    Open,
    /// They are to be thrown away.
    Swallowed,
    /// The connection was cut.
    Closed,
}

impl Proxy {
    /// Starts a proxy on a port that the operating system chooses.
    ///
    /// To stand in front of a [`Bouncer`](super::Bouncer), take [`Server::at`] with its address.
    pub fn start(server: &Server) -> Result<Proxy> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).map_err(Error::io("listening"))?;
        let address = listener.local_addr().map_err(Error::io("listening"))?;
        let shared = Arc::new(Shared::new(server.endpoint().clone()));
        let mut endpoint = server.endpoint().clone();
        endpoint.host = SocketKind::Tcp(address.ip().to_string());
        endpoint.port = address.port();
        let accepting = Arc::clone(&shared);
        let accept = std::thread::Builder::new()
            .name("proxy".to_owned())
            .spawn(move || accept(&accepting, &listener))
            .map_err(Error::io("starting a thread"))?;
        Ok(Proxy { shared, address, endpoint, accept: Some(accept), server: Mutex::new(server.clone()) })
    }

    /// Leads new connections to another server, which is kept alive instead of the one before.
    pub fn lead_to(&self, server: &Server) {
        self.shared.lock().upstream = server.endpoint().clone();
        *self.server.lock().unwrap_or_else(PoisonError::into_inner) = server.clone();
    }

    /// The port on 127.0.0.1.
    pub fn port(&self) -> u16 {
        self.address.port()
    }

    /// The address of a database through it.
    pub fn url(&self, database: &str) -> String {
        self.endpoint.url(database)
    }

    /// Cuts the connections of the next commits, so many of them; 0 for none.
    ///
    /// A commit is a statement `COMMIT`, alone or among others of a simple query. A statement without a transaction
    /// around it commits too, but does not say so: see [`Proxy::on_batch`].
    pub fn on_commit(&self, cut: Cut, count: u32) {
        self.shared.lock().plan.commits = (count > 0).then_some((cut, count));
    }

    /// Cuts the connection of one of the next batches of all connections; 1 is the next, 0 is none.
    ///
    /// [`Cut::Before`] passes on all messages of the batch but its `Sync`: without that, nothing of it is committed.
    /// Note that a client which prepares a statement first does so in a batch of its own.
    pub fn on_batch(&self, cut: Cut, nth: u32) {
        self.shared.lock().plan.batch = (nth > 0).then_some((cut, nth));
    }

    /// Cuts the connection of the next message that carries at least this many bytes of rows, in its middle: the server has
    /// begun to read the rows, and gets no more. Rows are the arguments of a statement, or copied data.
    pub fn on_rows(&self, least: usize) {
        self.shared.lock().plan.rows = Some(least);
    }

    /// Forgets cuts that are planned.
    pub fn forget_cuts(&self) {
        self.shared.lock().plan = Plan::default();
    }

    /// Cuts the connections that listen for notifications, and says how many there were.
    pub fn cut_listeners(&self) -> usize {
        self.cut_those(Link::listens)
    }

    /// Cuts all connections, and says how many there were. New ones are welcome.
    pub fn cut_all(&self) -> usize {
        self.cut_those(|_| true)
    }

    fn cut_those(&self, which: impl Fn(&Link) -> bool) -> usize {
        let links: Vec<_> = self.shared.lock().live.values().cloned().collect();
        links.iter().filter(|link| which(link) && self.shared.cut(link)).count()
    }

    /// Falls silent: bytes are taken and passed on to nobody, in both directions, until [`Proxy::resume`].
    pub fn hold(&self) {
        self.shared.lock().held = true;
    }

    /// Passes on what was held back, and goes on.
    pub fn resume(&self) {
        self.shared.lock().held = false;
        self.shared.changed.notify_all();
    }

    /// Becomes a black hole, or stops being one: whatever comes is taken and thrown away, in both directions, and nobody is
    /// told. New connections are welcome. Those that have lost something stay lost when it is over.
    pub fn swallow(&self, swallows: bool) {
        self.shared.lock().swallows = swallows;
    }

    /// Delays what clients send from now on by this much; zero for not at all.
    pub fn slow(&self, delay: Duration) {
        self.shared.lock().delay = delay;
    }

    /// Lets every kilobyte take this long, in both directions; zero for no time at all.
    pub fn drag(&self, kilobyte: Duration) {
        self.shared.lock().drag = kilobyte;
    }

    /// What it has seen and done so far.
    pub fn counts(&self) -> Counts {
        self.shared.lock().counts
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.shared.lock().closed = true;
        // Whoever waits to accept is woken by somebody to accept.
        drop(TcpStream::connect(self.address));
        drop(self.accept.take().map(JoinHandle::join));
        self.cut_all();
        // One at a time, and the lock is free meanwhile: a thread may start another one before it ends.
        while let Some(thread) = self.shared.next_thread() {
            // A thread that panicked has said so; to panic while dropping would hide it.
            drop(thread.join());
        }
    }
}

/// Takes connections until the proxy is dropped.
fn accept(shared: &Arc<Shared>, listener: &TcpListener) {
    for client in listener.incoming() {
        let state = shared.lock();
        if state.closed {
            return;
        }
        let upstream = state.upstream.clone();
        drop(state);
        let Ok(client) = client else { continue };
        // A server that is down refuses; so do we, by closing.
        let Ok(server) = Stream::connect(&upstream) else { continue };
        let mut state = shared.lock();
        state.counts.connections += 1;
        let link = Arc::new(Link::new(state.counts.connections, Stream::tcp(client), server));
        state.live.insert(link.id, Arc::clone(&link));
        drop(state);
        let here = Arc::clone(shared);
        shared.spawn(move || link::run(&here, &link));
    }
}

impl Shared {
    fn new(upstream: Endpoint) -> Self {
        let state = State {
            upstream,
            closed: false,
            held: false,
            swallows: false,
            delay: Duration::ZERO,
            drag: Duration::ZERO,
            plan: Plan::default(),
            counts: Counts::default(),
            live: BTreeMap::new(),
            threads: Vec::new(),
        };
        Shared { state: Mutex::new(state), changed: Condvar::new() }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Starts a thread that the proxy waits for.
    fn spawn(&self, body: impl FnOnce() + Send + 'static) {
        let thread = std::thread::Builder::new().name("proxy".to_owned()).spawn(body);
        let thread = thread.expect("the machine has a thread for a test");
        let mut state = self.lock();
        // Those that have ended need nobody to wait for them: a long test makes many connections.
        state.threads.retain(|thread| !thread.is_finished());
        state.threads.push(thread);
    }

    /// A thread to wait for.
    fn next_thread(&self) -> Option<JoinHandle<()>> {
        self.lock().threads.pop()
    }

    /// Ends a connection at once, both ways. False if it had ended already.
    fn cut(&self, link: &Link) -> bool {
        let mut state = self.lock();
        if state.live.remove(&link.id).is_none() {
            return false;
        }
        state.counts.cuts += 1;
        drop(state);
        self.changed.notify_all();
        link.shut();
        true
    }

    /// Ends a connection whose server has left.
    fn close(&self, link: &Link) {
        self.lock().live.remove(&link.id);
        self.changed.notify_all();
        link.shut();
    }

    /// Waits until bytes of a connection may pass, and tells whether they do.
    fn pass(&self, link: &Link, bytes: usize, asked: bool) -> TrafficState {
        let lives = |state: &mut State| state.live.contains_key(&link.id);
        let state = self.lock();
        let drag = state.drag.mul_f64(bytes as f64 / 1024.0);
        let delay = if asked { state.delay + drag } else { drag };
        let waited = self.changed.wait_timeout_while(state, delay, |state| lives(state));
        let (state, _) = waited.unwrap_or_else(PoisonError::into_inner);
        let waited = self.changed.wait_while(state, |state| state.held && lives(state));
        let mut state = waited.unwrap_or_else(PoisonError::into_inner);
        if !lives(&mut state) {
            return TrafficState::Closed;
        }
        if !link.is_lost(state.swallows) {
            return TrafficState::Open;
        }
        state.counts.swallowed += bytes as u64;
        TrafficState::Swallowed
    }

    /// What becomes of a client's message.
    fn judge(&self, link: &Link, seen: MessageInfo) -> MessageAction {
        let mut state = self.lock();
        let State { plan, counts, .. } = &mut *state;
        let cut = plan.judge(counts, seen);
        link.judge(seen, cut)
    }
}
