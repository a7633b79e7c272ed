//! Notifications: hears of other processes' commits, and looks around by itself.
//!
//! A connection of its own listens for notifications. Once a second, on the same connection, a round trip looks for jobs
//! that nobody told of (a caller's own transaction has committed; a notification was lost) and tells what becomes due
//! next; it is also how a connection that is dead without saying so is noticed. Where nobody can listen, behind a pooler,
//! that look alone has to do.
//!
//! # Invariants
//! - Nothing depends on what is heard here but how soon it is noticed.
//! - Whoever waits for a queue holds its lock, and looks once more after it has got it.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use mainspring_core::Error;
use mainspring_core::name::QueueName;
use mainspring_core::store::Hint;
use tokio::sync::{Notify, mpsc};

use crate::connection::{Conn, Use};
use crate::error::Result;
use crate::hint::{ANYBODY, Hints};
use crate::idle_poll::PollInFlight;
use crate::names;
use crate::op::{Op, counts};
use crate::shared::{Shared, lock};
use crate::sql::statement;
use crate::store::Connections;

/// Timers are not exact.
const SLACK: Duration = Duration::from_millis(5);
/// Pauses after a failed attempt to listen: first and longest.
const BACKOFF: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(5));
/// What the network may add to the time that the database gives a statement.
const GRACE: Duration = Duration::from_millis(500);
/// How often deltas of counts are folded, if there are any.
const FOLD_EVERY: u32 = 5;

statement! {
    /// Only locks in memory, held by the session.
    pub(crate) WaitFor<'a> = "listen.wait", whole ("it touches no table"), (class: i32, queue: i32);
    "SELECT pg_advisory_lock_shared($1, $2)"
}
statement! {
    pub(crate) StopWaiting<'a> = "listen.leave", whole ("it touches no table"), (class: i32, queue: i32);
    "SELECT pg_advisory_unlock_shared($1, $2)"
}

/// How long a queue is still waited for when claims give all that is asked for: a queue that is now empty, now full need not
/// be left and taken again each time.
const LINGER: Duration = Duration::from_secs(5);

/// Which queues this process waits for.
#[derive(Default)]
pub(crate) struct Waiting {
    queues: Mutex<BTreeMap<i32, Wait>>,
    changed: Notify,
}

/// What claims of a queue gave.
struct Wait {
    /// Whether the last one gave less than was asked for.
    short: bool,
    /// When one last did, on the monotonic clock.
    since: Duration,
}

impl Wait {
    fn lasts(&self, now: Duration) -> bool {
        self.short || now.saturating_sub(self.since) <= LINGER
    }
}

impl Waiting {
    /// Claims gave less than was asked for in these queues, or not.
    pub(crate) fn note(&self, queues: &[(i32, bool)], now: Duration) {
        let mut known = lock(&self.queues);
        let mut changed = false;
        for (queue, short) in queues {
            if *short {
                let before = known.insert(*queue, Wait { short: true, since: now });
                changed |= before.is_none_or(|before| !before.lasts(now));
            } else if let Some(wait) = known.get_mut(queue) {
                wait.short = false;
            }
        }
        drop(known);
        if changed {
            self.changed.notify_one();
        }
    }

    fn wanted(&self, now: Duration) -> BTreeSet<i32> {
        let mut known = lock(&self.queues);
        known.retain(|_, wait| wait.lasts(now));
        known.keys().copied().collect()
    }
}

/// Listens until the store is closed.
pub(crate) async fn run(shared: Arc<Shared>, connections: Arc<Connections>) {
    let mut pause = BACKOFF.0;
    let mut notification_loop = NotificationLoop::default();
    loop {
        let ended = match shared.options.address.for_listening() {
            Some(address) => {
                let (sender, mut notifications) = mpsc::unbounded_channel();
                match Conn::open_at(Use::Hot, &shared, &address, None, Some(sender)).await {
                    Ok(mut conn) => {
                        pause = BACKOFF.0;
                        let ended =
                            notification_loop.listen(&shared, &mut conn, &mut notifications).await.err();
                        shared.set_listening(false);
                        ended
                    }
                    Err(error) => {
                        tracing::debug!(%error, "cannot listen for notifications; polling meanwhile");
                        None
                    }
                }
            }
            None => notification_loop.poll(&shared, &connections).await.err(),
        };
        if let Some(fault) = ended {
            tracing::debug!(?fault, "connection for notifications lost");
        }
        // Whoever waited elsewhere may have been told something meanwhile; all pairs are looked at when it is back.
        shared.scan_bounds().forget();
        let wait = pause.mul_f64(0.5 + shared.rng.next_unit() / 2.0);
        tokio::select! {
            biased;
            () = shared.closing() => return,
            () = wait_for(wait) => {}
        }
        pause = (pause * 2).min(BACKOFF.1);
        if shared.is_closing() {
            return;
        }
    }
}

/// A connection that does not answer is as good as none.
async fn in_time<T>(shared: &Shared, work: impl Future<Output = Result<T>>) -> Result<T> {
    // The database gives up first, if it is only slow.
    let done = tokio::time::timeout(shared.timeout() + GRACE, work).await;
    done.unwrap_or_else(|_| Err(Error::unavailable("the database did not answer in time").into()))
}

/// Real time passes here, also in tests that move the store's clock by hand: this is about sockets.
#[expect(clippy::disallowed_methods, reason = "the network knows only real time")]
async fn wait_for(duration: Duration) {
    tokio::time::sleep(duration).await;
}

#[derive(Default)]
struct NotificationLoop {
    held: BTreeSet<i32>,
    looks: u32,
}

impl NotificationLoop {
    /// Listens until the connection is lost.
    async fn listen(
        &mut self,
        shared: &Shared,
        conn: &mut Conn,
        notifications: &mut mpsc::UnboundedReceiver<String>,
    ) -> Result<()> {
        in_time(shared, self.begin(shared, conn)).await?;
        shared.set_listening(true);
        // What was committed before that was not told.
        shared.scan_bounds().forget();
        shared.tell(&Hint::Foreign);
        loop {
            in_time(shared, self.sync(shared, conn)).await?;
            tokio::select! {
                biased;
                () = shared.closing() => return Ok(()),
                text = notifications.recv() => match text {
                    Some(text) => in_time(shared, self.receive(shared, conn, &text)).await?,
                    None => return Ok(()),
                },
                () = shared.waiting.changed.notified() => {}
                () = wait_for(until_next(shared)) => {
                    // A renewal may have taken it along meanwhile.
                    if until_next(shared) > SLACK {
                        continue;
                    }
                    in_time(shared, self.look(shared, conn)).await?;
                }
            }
        }
    }

    async fn begin(&mut self, shared: &Shared, conn: &mut Conn) -> Result<()> {
        conn.client.batch_execute(&format!("LISTEN {}", shared.channel())).await?;
        self.held.clear();
        conn.send(&WaitFor { class: &shared.waiting_class(), queue: &ANYBODY }.call()).await?;
        Ok(())
    }

    /// Looks around every second on a connection of the pooler.
    async fn poll(&mut self, shared: &Shared, connections: &Connections) -> Result<()> {
        loop {
            tokio::select! {
                biased;
                () = shared.closing() => return Ok(()),
                () = wait_for(until_next(shared)) => {}
            }
            if until_next(shared) > SLACK {
                continue;
            }
            let mut checkout = connections.sweep.check_out(shared).await?;
            if let Some(conn) = checkout.conn() {
                in_time(shared, self.look(shared, conn)).await?;
            }
            checkout.check_in();
        }
    }

    /// Takes and leaves the locks of queues.
    async fn sync(&mut self, shared: &Shared, conn: &mut Conn) -> Result<()> {
        let (wanted, class) = (shared.waiting.wanted(shared.monotonic()), shared.waiting_class());
        let leave: Vec<i32> = self.held.difference(&wanted).copied().collect();
        for queue in leave {
            conn.send(&StopWaiting { class: &class, queue: &queue }.call()).await?;
            self.held.remove(&queue);
        }
        let take: Vec<i32> = wanted.difference(&self.held).copied().collect();
        for queue in take {
            conn.send(&WaitFor { class: &class, queue: &queue }.call()).await?;
            self.held.insert(queue);
            // What was committed between the last claim and the lock was not told.
            shared.scan_bounds().forget();
            let name: Option<QueueName> = shared.names().queue(queue).ok().map(|queue| queue.name.clone());
            if let Some(name) = name {
                shared.tell(&Hint::Ready(vec![name]));
            }
        }
        Ok(())
    }

    /// Passes on what another process tells.
    async fn receive(&self, shared: &Shared, conn: &mut Conn, text: &str) -> Result<()> {
        if let Some(hints) = Hints::read(text, shared.handle()) {
            let settings = shared.names().settings().to_owned();
            names::learn(conn, shared, hints.lines(), &settings).await?;
            hints.send_here(shared);
        }
        Ok(())
    }

    /// One idle poll, unless a renewal has just taken it along.
    async fn look(&mut self, shared: &Shared, conn: &mut Conn) -> Result<()> {
        let poll = PollInFlight::new(shared, false);
        match conn.commit(shared, &poll.calls()).await {
            Ok(rows) => poll.apply(conn, shared, &rows).await?,
            // The next poll does without what took so long.
            Err(fault) if fault.is_timeout() && poll.scans() => poll.gave_up(shared),
            Err(fault) => return Err(fault),
        }
        self.looks += 1;
        if self.looks >= FOLD_EVERY && shared.take_moved() {
            self.looks = 0;
            counts::Fold.run(conn, shared).await?;
        }
        Ok(())
    }
}

/// How long until the next poll.
fn until_next(shared: &Shared) -> Duration {
    let next = shared.idle_poll().as_ref().map_or(Duration::ZERO, |poll| poll.next_in(shared));
    next.max(Duration::from_millis(1))
}
