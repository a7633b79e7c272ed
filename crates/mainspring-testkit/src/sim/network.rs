//! The way of a simulated process to its store: every call may be slow, refused, swallowed, applied without an answer, or
//! applied twice.
//!
//! A call that was sent belongs to the network: it arrives even if its sender dies meanwhile.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use mainspring_core::id::JobId;
use mainspring_core::seam::{Clock, Pending};
use mainspring_core::store::decorator::Method;
use mainspring_core::store::{Hint, Listener, Store};
use mainspring_core::{Error, Result};
use tokio::sync::oneshot;

use super::world::{NOBODY, StoreAbsence, World, between, chance, lock, pick};
use crate::executor::block_on;
use crate::history::Actor;
use crate::synchronous_store::TELLING;
use crate::watch::{CallBody, Transport};

/// How long a message takes at most when nothing is wrong.
const LATENCY: Duration = Duration::from_millis(2);

/// Calls that change nothing if they are applied once more later: they carry numbers that make them harmless. A claim is
/// none of them; its late original is barred by the stores themselves, beneath the seam.
const REPEATABLE: &[&str] = &[
    "enqueue",
    "register",
    "renew",
    "finish",
    "disown",
    "progress",
    "record",
    "signal",
    "drop_signals",
    "rescue",
    "promote",
    "expire",
    "prune",
    "write_schedules",
];

/// Leases within which the latest message has arrived.
const LATEST: u32 = 9;
/// Calls that may be done when their sender has given up, once: nothing bars them.
const BELATED: &[&str] = &["change", "retire"];

pub(super) struct Network {
    world: Arc<World>,
    actor: Actor,
    /// The relay between the store's hints and the process.
    relay: std::sync::Mutex<Vec<Arc<HintRelay>>>,
}

/// What happens to one call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Fate {
    Arrives,
    /// Refused before anything was done.
    Refused,
    /// Done, and the answer is lost.
    AnswerLost,
    /// The sender gives up, and then it is done.
    Late,
    /// Done once more later.
    Twice,
}

impl Network {
    pub(super) fn new(world: &Arc<World>, actor: Actor) -> Self {
        Network { world: Arc::clone(world), actor, relay: std::sync::Mutex::default() }
    }

    /// Decides what happens to a call.
    fn fate(&self, method: Method) -> Fate {
        let (world, mut net) = (&self.world, self.world.net());
        let trouble = chance(&world.fate, net.trouble);
        let spared = method.name == "renew" && !trouble_allowed(&mut net.spared, self.actor, trouble);
        drop(net);
        if !trouble || spared {
            return Fate::Arrives;
        }
        let fate = if !method.writes {
            Fate::Refused
        } else if REPEATABLE.contains(&method.name) {
            pick(&world.fate, &[Fate::Refused, Fate::AnswerLost, Fate::AnswerLost, Fate::Late, Fate::Twice])
        } else if BELATED.contains(&method.name) {
            pick(&world.fate, &[Fate::Refused, Fate::AnswerLost, Fate::Late])
        } else {
            pick(&world.fate, &[Fate::Refused, Fate::AnswerLost])
        };
        let kind = match fate {
            Fate::Arrives => return fate,
            Fate::Refused => "call refused",
            Fate::AnswerLost => "answer lost",
            Fate::Late => "call late",
            Fate::Twice => "call repeated",
        };
        // What is late may come when its sender has long been dead, and renew his lease.
        let late = matches!(fate, Fate::Late | Fate::Twice);
        let lasts = if late { world.config.lease * LATEST } else { Duration::ZERO };
        world.fault(kind, Some(self.actor), lasts);
        fate
    }

    /// How long a message takes now.
    fn latency(&self) -> Duration {
        let slow = self.world.net().slow;
        between(&self.world.fate, Duration::from_micros(50), LATENCY + slow)
    }
}

/// Of two renewals of one node in a row, one gets through.
fn trouble_allowed(spared: &mut std::collections::BTreeSet<Actor>, actor: Actor, trouble: bool) -> bool {
    if trouble { spared.insert(actor) } else { !spared.remove(&actor) }
}

impl Transport for Network {
    fn go<T: Send + 'static>(&self, method: Method, run: CallBody<T>) -> Pending<'static, Result<T>> {
        let world = Arc::clone(&self.world);
        // Whoever is dead already sends nothing; whoever dies later has sent it.
        if world.executor.is_gone(self.actor) {
            return Box::pin(std::future::pending());
        }
        let fate = self.fate(method);
        let (sender, receiver) = oneshot::channel();
        let given_up = Arc::new(AtomicBool::new(false));
        let (there, back) = (self.latency(), self.latency());
        let patience = world.config.patience();
        let job = match method.name {
            "record" => world.log.recording(self.actor),
            // Also while the job waits an end may come once more.
            "finish" if chance(&world.fate, 0.7) => world.log.giving_back(self.actor),
            _ => None,
        };
        let message =
            Message { world: Arc::clone(&world), actor: self.actor, method, job, fate, there, back };
        world.executor.spawn(NOBODY, Box::pin(message.travel(run, sender, Arc::clone(&given_up))));
        let timeout = world.time.sleep(patience);
        Box::pin(async move {
            let answer = tokio::select! {
                biased;
                answer = receiver => answer.ok(),
                () = timeout => None,
            };
            given_up.store(true, Ordering::SeqCst);
            match answer {
                Some(answer) => answer,
                None if method.writes => Err(Error::OutcomeUnknown { source: None }),
                None => Err(Error::unavailable("no answer")),
            }
        })
    }

    fn listen(&self, store: &Arc<dyn Store>, listener: Weak<dyn Listener>) {
        self.world.net().ears.push((self.actor, listener.clone()));
        if self.world.backend.tells() {
            let relay =
                Arc::new(HintRelay { world: Arc::downgrade(&self.world), actor: self.actor, ear: listener });
            let ear: Arc<dyn Listener> = relay.clone();
            store.subscribe(Arc::downgrade(&ear));
            lock(&self.relay).push(relay);
        }
    }
}

/// A call on its way.
struct Message {
    world: Arc<World>,
    actor: Actor,
    method: Method,
    /// The job for which something is recorded, or which was given back.
    job: Option<JobId>,
    fate: Fate,
    there: Duration,
    back: Duration,
}

impl Message {
    async fn travel<T: Send + 'static>(
        self,
        run: CallBody<T>,
        sender: oneshot::Sender<Result<T>>,
        given_up: Arc<AtomicBool>,
    ) {
        let Message { world, actor, method, job, fate, there, back } = self;
        world.time.sleep(there).await;
        let away = {
            let net = world.net();
            net.away.or_else(|| net.cut.get(&actor).copied())
        };
        match away {
            // Its sender waits until he has enough.
            Some(StoreAbsence::Silent) => {
                let _kept = (sender, world.time.sleep(world.config.patience() * 2).await);
                return;
            }
            Some(StoreAbsence::Refusing) => {
                drop(sender.send(Err(Error::unavailable("away"))));
                return;
            }
            None => {}
        }
        if method.writes && world.net().full {
            drop(sender.send(Err(Error::DiskFull)));
            return;
        }
        if method.name == "finish" && world.net().jammed {
            drop(sender.send(Err(Error::unavailable("outcomes cannot be stored"))));
            return;
        }
        let longest =
            pick(&world.fate, &[Duration::from_millis(100), Duration::from_secs(1), world.config.lease * 2]);
        let late = between(&world.fate, Duration::from_millis(1), longest);
        match fate {
            Fate::Refused => drop(sender.send(Err(Error::unavailable("trouble on the way")))),
            Fate::Late => {
                drop(sender);
                worst_moment(&world, actor, method, job, late).await;
                // What comes after the fault phase would undo what everybody waits for.
                if method.name != "change" || world.time.monotonic() < world.config.fault_phase {
                    drop(apply(&world, actor, method, &run));
                }
            }
            // A claim that arrives when its sender has given up is not done: stores bar it.
            Fate::Arrives | Fate::Twice | Fate::AnswerLost
                if given_up.load(Ordering::SeqCst) && !REPEATABLE.contains(&method.name) => {}
            Fate::AnswerLost => {
                drop(apply(&world, actor, method, &run));
                drop(sender);
            }
            Fate::Arrives | Fate::Twice => {
                let answer = apply(&world, actor, method, &run);
                world.time.sleep(back).await;
                drop(sender.send(answer));
                if fate == Fate::Twice {
                    worst_moment(&world, actor, method, job, late).await;
                    drop(apply(&world, actor, method, &run));
                }
            }
        }
    }
}

/// Waits for the moment at which a late message does the most harm.
async fn worst_moment(world: &World, actor: Actor, method: Method, job: Option<JobId>, a_while: Duration) {
    match job {
        // An end is taken for that of a later claim most easily if the same node has it.
        Some(job) => world.claimed_again(job, (method.name == "finish").then_some(actor)).await,
        None => world.worst_moment(actor, a_while).await,
    }
}

/// Does a call, at this very moment.
fn apply<T>(world: &Arc<World>, actor: Actor, method: Method, run: &CallBody<T>) -> Result<T> {
    let answer = block_on(run());
    if method.name == "claim" {
        world.claimed(actor);
    }
    if answer.is_ok() && !world.backend.tells() && TELLING.contains(&method.name) {
        world.tell_all();
    }
    answer
}

/// Passes the hints of a store on.
struct HintRelay {
    world: Weak<World>,
    actor: Actor,
    ear: Weak<dyn Listener>,
}

impl Listener for HintRelay {
    fn hint(&self, hint: &Hint) {
        if let Some(world) = self.world.upgrade() {
            world.pass(self.actor, self.ear.clone(), hint.clone());
        }
    }
}

#[cfg(test)]
mod tests {
    use mainspring_core::store::decorator::METHODS;

    use super::*;

    #[test]
    fn only_methods_that_exist_are_listed() {
        for name in [REPEATABLE, BELATED, TELLING].concat() {
            assert!(METHODS.iter().any(|method| method.name == name), "no method is called `{name}`");
        }
    }
}
