//! Two actors whose messages to the database go out when the director says so.
//!
//! Each actor runs one operation on a handle of its own. Before each message it stops at an [`ActorGate`] of the stage. The
//! director waits until nobody moves: an actor has ended, stands at its gate, or waits for a lock, which only the server
//! knows of. Then one of those at a gate may go on.

use std::collections::BTreeSet;
use std::fmt;
use std::future::poll_fn;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::task::{Poll, Waker};
use std::time::{Duration, Instant};

use mainspring_core::seam::Pending;
use mainspring_postgres::StatementGate;
use mainspring_testkit::patience::PATIENCE;
use postgres::{Client, NoTls};

/// How long an actor moves before the server is asked whether it waits: an answer usually takes less.
const GLANCE: Duration = Duration::from_millis(1);

/// One actor, as the director sees it.
#[derive(Default)]
struct Actor {
    /// Whether it plays: otherwise its gate is open.
    on: bool,
    /// What it wants to send.
    wants: Option<String>,
    /// Whether it has begun a transaction, and what it has touched in it.
    begun: bool,
    touched: BTreeSet<String>,
    permit: bool,
    waker: Option<Waker>,
}

impl Actor {
    fn moves(&self) -> bool {
        self.on && (self.wants.is_none() || self.permit)
    }
}

/// Where two actors meet.
#[derive(Default)]
pub(crate) struct SteppedActors {
    actors: Mutex<[Actor; 2]>,
    changed: Condvar,
}

/// One actor's gate.
pub(crate) struct ActorGate {
    actors: Arc<SteppedActors>,
    actor: usize,
}

impl StatementGate for ActorGate {
    fn pass<'a>(&'a self, statement: &'a str) -> Pending<'a, ()> {
        Box::pin(poll_fn(move |context| {
            let mut actors = self.actors.lock();
            let actor = &mut actors[self.actor];
            // A beginning takes no snapshot and no lock: it cannot be told from the statement after it.
            actor.begun |= statement == "BEGIN";
            if !actor.on || statement == "BEGIN" {
                return Poll::Ready(());
            }
            if std::mem::take(&mut actor.permit) {
                actor.wants = None;
                return Poll::Ready(());
            }
            actor.wants = Some(statement.to_owned());
            actor.waker = Some(context.waker().clone());
            drop(actors);
            self.actors.changed.notify_all();
            Poll::Pending
        }))
    }
}

impl fmt::Debug for ActorGate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Side({})", self.actor)
    }
}

/// What a message does to the transactions of others.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Effect {
    /// It looks at what is committed, and nobody notices.
    Look,
    /// It takes locks; what it writes is seen by nobody yet.
    Lock,
    /// It commits: others see what was written, and get what was locked.
    End,
}

/// What a message is to others: it makes no difference which of two comes first if they have nothing to do with each
/// other.
#[derive(Debug, Clone)]
pub(crate) struct Weight {
    effect: Effect,
    /// The tables and locks that it is about; at the end of a transaction, all that were.
    subjects: BTreeSet<String>,
}

/// What ends a transaction.
const ENDS: [&str; 2] = ["COMMIT", "ROLLBACK"];

/// Whether a statement takes locks or writes.
fn touches(statement: &str) -> bool {
    let words = ["INSERT", "UPDATE", "DELETE", "FOR SHARE", "FOR KEY SHARE", "advisory", "nextval"];
    words.iter().any(|word| statement.contains(word))
}

/// The tables that a statement names, and advisory locks.
fn subjects(statement: &str) -> BTreeSet<String> {
    let names = statement.split("mainspring.").skip(1);
    let name = |rest: &str| rest.chars().take_while(|c| c.is_alphanumeric() || *c == '_').collect::<String>();
    let mut subjects: BTreeSet<String> = names.map(name).collect();
    if !subjects.contains("counts") {
        // Everybody appends to them; only who folds them looks at them.
        subjects.remove("count_deltas");
    }
    if statement.contains("advisory") {
        subjects.insert("advisory locks".to_owned());
    }
    subjects
}

impl Weight {
    /// Whether it makes a difference which of two messages comes first.
    pub(crate) fn matters_to(&self, other: &Weight) -> bool {
        let quiet = self.effect == Effect::Look && other.effect != Effect::End
            || other.effect == Effect::Look && self.effect != Effect::End;
        !quiet && !self.subjects.is_disjoint(&other.subjects)
    }
}

/// What is left to do when nobody moves.
pub(crate) enum Stalled {
    /// All have ended.
    Over,
    /// These stand at their gates; who does not has ended or waits for a lock.
    AtGates([bool; 2]),
    /// Everybody who has not ended waits for a lock.
    Deadlock,
}

impl SteppedActors {
    pub(crate) fn side(self: &Arc<Self>, actor: usize) -> Arc<ActorGate> {
        Arc::new(ActorGate { actors: Arc::clone(self), actor })
    }

    /// An actor comes on, or has ended.
    pub(crate) fn set_on(&self, actor: usize, on: bool) {
        let mut actors = self.lock();
        actors[actor] = Actor { on, ..Actor::default() };
        drop(actors);
        self.changed.notify_all();
    }

    /// Lets an actor go on without being asked again.
    pub(crate) fn open(&self, actor: usize) {
        let mut actors = self.lock();
        let actor = &mut actors[actor];
        actor.on = false;
        if let Some(waker) = actor.waker.take() {
            waker.wake();
        }
    }

    /// Lets an actor send what it wants to send.
    pub(crate) fn permit(&self, actor: usize) {
        let mut actors = self.lock();
        let actor = &mut actors[actor];
        actor.permit = true;
        if let Some(statement) = actor.wants.as_deref() {
            let ends = ENDS.contains(&statement);
            actor.begun &= !ends;
            if ends {
                actor.touched.clear();
            } else if actor.begun && touches(statement) {
                actor.touched.extend(subjects(statement));
            }
        }
        if let Some(waker) = actor.waker.take() {
            waker.wake();
        }
    }

    /// What an actor wants to send, and what that is to others; nothing if it is not at its gate.
    pub(crate) fn wants(&self, actor: usize) -> Option<(String, Weight)> {
        let actors = self.lock();
        let actor = &actors[actor];
        let text = actor.wants.clone().filter(|_| !actor.permit)?;
        let ends = ENDS.contains(&text.as_str());
        let effect = match (ends, touches(&text)) {
            (true, _) if !actor.touched.is_empty() => Effect::End,
            (true, _) | (false, false) => Effect::Look,
            (false, true) if actor.begun => Effect::Lock,
            (false, true) => Effect::End,
        };
        let subjects = if ends { actor.touched.clone() } else { subjects(&text) };
        let weight = Weight { effect, subjects };
        Some((text, weight))
    }

    /// Waits until nobody moves. `waiting` is how many were seen to wait for a lock before.
    #[expect(clippy::disallowed_methods, reason = "waits for real threads and a real server")]
    pub(crate) fn still(&self, locks: &mut Locks, waiting: usize) -> (Stalled, usize) {
        let end = Instant::now() + PATIENCE;
        loop {
            let actors = self.lock();
            let busy =
                |actors: &mut [Actor; 2]| actors.iter().filter(|actor| actor.moves()).count() > waiting;
            let (actors, _) =
                self.changed.wait_timeout_while(actors, GLANCE, busy).unwrap_or_else(PoisonError::into_inner);
            let moving = actors.iter().filter(|actor| actor.moves()).count();
            let before = actors.each_ref().map(Actor::moves);
            drop(actors);
            // Whoever waits for a lock goes on waiting until another actor has moved: what the server says holds if
            // nobody has moved while it was asked.
            let waiting = if moving == 0 { 0 } else { locks.waiting() };
            let actors = self.lock();
            if moving == waiting && actors.each_ref().map(Actor::moves) == before {
                let at_gates = [0, 1].map(|it| actors[it].on && !actors[it].moves());
                let still = match (at_gates, waiting) {
                    ([false, false], 0) => Stalled::Over,
                    ([false, false], _) => Stalled::Deadlock,
                    _ => Stalled::AtGates(at_gates),
                };
                return (still, waiting);
            }
            assert!(Instant::now() < end, "an actor neither stops nor waits");
        }
    }

    fn lock(&self) -> MutexGuard<'_, [Actor; 2]> {
        self.actors.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Who waits for a lock, as the server knows it.
pub(crate) struct Locks {
    pub(crate) client: Client,
    waiting: postgres::Statement,
}

impl Locks {
    pub(crate) fn new(url: &str) -> Self {
        let mut client = Client::connect(url, NoTls).expect("a connection");
        let waiting = client
            .prepare(
                "SELECT count(*) FROM pg_locks l JOIN pg_stat_activity a USING (pid)
                WHERE NOT l.granted AND a.datname = current_database()",
            )
            .expect("a statement");
        Locks { client, waiting }
    }

    fn waiting(&mut self) -> usize {
        let row = self.client.query_one(&self.waiting, &[]).expect("the locks");
        usize::try_from(row.get::<_, i64>(0)).expect("a count")
    }
}
