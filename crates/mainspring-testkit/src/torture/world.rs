//! The world: a store, the victims on it, and what they wrote down.

mod queries;

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use mainspring::{Engine, JobId};
use mainspring_core::seam::Rng;
use rustix::process::Signal;

use super::inject::Injection;
use super::ledger::{self, Ledger, Tail};
use super::process::{Role, Victim, VictimOptions, VictimSettings};
use super::{Error, Result, StoreUnderTest};
use crate::history::{Actor, Event, Fact, Recorder};
use crate::rng::SeededRng;
use crate::watch::{Direct, WatchedStore};

/// Workers of a world at peace.
pub(super) const WORKERS: usize = 3;

/// A store, a ledger and the victims on them.
pub struct World {
    /// The workers, from the oldest to the youngest.
    pub workers: Vec<Victim>,
    /// Who enqueues, and who gives orders.
    pub others: Vec<Victim>,
    /// Where all chance comes from.
    pub rng: SeededRng,
    /// Innocent jobs that may end under quarantine: a store that was put back in time counts some crashes twice.
    pub excused: BTreeSet<JobId>,
    under_test: Arc<dyn StoreUnderTest>,
    setting: VictimSettings,
    dir: PathBuf,
    ledger: Arc<Ledger>,
    tail: Tail,
    engine: Option<Engine>,
    traces: u32,
}

impl World {
    pub(super) async fn new(
        under_test: Arc<dyn StoreUnderTest>,
        dir: &Path,
        program: &Path,
        seed: u64,
        planted: Option<String>,
    ) -> Result<Self> {
        let path = dir.join("ledger");
        let setting = VictimSettings {
            program: program.into(),
            address: under_test.address(),
            ledger: path.clone(),
            lease: under_test.lease(),
            planted,
        };
        let mut world = World {
            workers: Vec::new(),
            others: Vec::new(),
            rng: SeededRng::new(seed),
            excused: BTreeSet::new(),
            under_test,
            setting,
            dir: dir.into(),
            ledger: Arc::new(Ledger::open(&path)?),
            tail: Tail::open(&path)?,
            engine: None,
            traces: 0,
        };
        world.open().await?;
        Ok(world)
    }

    /// The store under torture.
    pub fn under_test(&self) -> &Arc<dyn StoreUnderTest> {
        &self.under_test
    }

    /// A directory for what a fault needs; it is kept if the run fails.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// The rig's own handle on the store. What it orders is in the ledger.
    ///
    /// # Errors
    /// [`Error::Unexpected`] while it is closed.
    pub fn engine(&self) -> Result<&Engine> {
        self.engine.as_ref().ok_or_else(|| Error::Unexpected("the rig's own handle is closed".into()))
    }

    /// Opens the rig's own handle.
    ///
    /// # Errors
    /// [`Error::Store`].
    pub async fn open(&mut self) -> Result<()> {
        let engine = self.under_test.open().await.map_err(Error::store("opening the store"))?;
        let recorder: Arc<dyn Recorder> = Arc::clone(&self.ledger) as Arc<dyn Recorder>;
        self.engine = Some(watched(&engine, recorder));
        Ok(())
    }

    /// Closes the rig's own handle.
    pub async fn close(&mut self) {
        if let Some(engine) = self.engine.take() {
            engine.close().await;
        }
    }

    /// Writes something down, on behalf of the rig.
    pub fn note(&self, fact: Fact) {
        self.ledger.note(std::process::id(), fact);
    }

    /// Writes down a fault that hits one victim, or all.
    pub fn fault(&self, kind: &str, on: Option<Actor>) {
        self.note(Fact::fault(kind, on, None));
    }

    /// What was written down so far.
    ///
    /// # Errors
    /// [`Error::Io`].
    pub fn history(&self) -> Result<Vec<Event>> {
        ledger::read(&self.setting.ledger)
    }

    /// Puts another history in place of what was written down. Nobody else may be writing.
    ///
    /// # Errors
    /// [`Error::Io`].
    pub async fn rewrite(&mut self, history: &[Event]) -> Result<()> {
        self.close().await;
        ledger::rewrite(&self.setting.ledger, history)?;
        self.ledger = Arc::new(Ledger::open(&self.setting.ledger)?);
        self.tail = Tail::open(&self.setting.ledger)?;
        Ok(())
    }

    /// A number below a bound.
    pub fn below(&self, bound: u64) -> u64 {
        self.rng.next_u64() % bound.max(1)
    }

    /// Any of the workers.
    pub fn any_worker(&self) -> usize {
        usize::try_from(self.below(self.workers.len() as u64)).unwrap_or(0)
    }

    /// Starts whoever is missing of three workers, a producer and an operator.
    ///
    /// # Errors
    /// [`Error::Io`].
    pub fn populate(&mut self) -> Result<()> {
        for role in [Role::Producer, Role::Operator] {
            if !self.others.iter().any(|victim| victim.role == role) {
                let victim = self.start(role, &VictimOptions::default())?;
                self.others.push(victim);
            }
        }
        while self.workers.len() < WORKERS {
            let worker = self.start(Role::Worker, &VictimOptions::default())?;
            self.workers.push(worker);
        }
        Ok(())
    }

    /// Starts a victim, which is the caller's from then on.
    ///
    /// # Errors
    /// [`Error::Io`].
    pub fn start(&self, role: Role, orders: &VictimOptions) -> Result<Victim> {
        Victim::start(&self.setting, role, self.rng.next_u64(), orders)
    }

    /// Starts a victim that has another way to the store.
    ///
    /// # Errors
    /// [`Error::Io`].
    pub fn start_on(&self, address: String, role: Role, orders: &VictimOptions) -> Result<Victim> {
        let setting = VictimSettings { address, ..self.setting.clone() };
        Victim::start(&setting, role, self.rng.next_u64(), orders)
    }

    /// Starts a victim on a store that is none of this world's. What it does there is written down elsewhere: its nodes and
    /// jobs would be taken for others of the same number.
    ///
    /// # Errors
    /// [`Error::Io`].
    pub fn start_elsewhere(&self, address: String, role: Role, orders: &VictimOptions) -> Result<Victim> {
        let setting = VictimSettings { address, ledger: self.dir.join("elsewhere"), ..self.setting.clone() };
        Victim::start(&setting, role, self.rng.next_u64(), orders)
    }

    /// A fresh file for the trace of an [`Injection`].
    pub fn trace(&mut self) -> PathBuf {
        self.traces += 1;
        self.dir.join(format!("trace-{}", self.traces))
    }

    /// Starts victims in place of those that have died.
    ///
    /// # Errors
    /// [`Error::Unexpected`] if one ended by itself: those that belong to the world die by a fault or not at all.
    pub fn replace_dead(&mut self) -> Result<()> {
        for victims in [&mut self.workers, &mut self.others] {
            let mut index = 0;
            while index < victims.len() {
                match victims[index].ended()? {
                    Some(status) if status.code().is_some() => {
                        let (role, number) = (victims[index].role.as_str(), victims[index].number());
                        let what = format!("{role} {number} ended by itself, with {status}");
                        return Err(Error::Unexpected(what));
                    }
                    Some(_) => drop(victims.remove(index)),
                    None => index += 1,
                }
            }
        }
        self.populate()
    }

    /// Kills a victim, wherever it is, and writes that down.
    ///
    /// # Errors
    /// [`Error::Io`].
    pub fn kill(&self, victim: Victim) -> Result<()> {
        self.fault("kill", Some(victim.number()));
        victim.signal(Signal::KILL)?;
        drop(victim);
        Ok(())
    }

    /// Closes the rig's own handle and kills everybody at once: nobody has the store open any more, and nobody closed it in
    /// good order.
    ///
    /// # Errors
    /// [`Error::Io`].
    pub async fn kill_all(&mut self) -> Result<()> {
        self.close().await;
        let mut victims = std::mem::take(&mut self.workers);
        victims.append(&mut self.others);
        for victim in &victims {
            self.fault("kill", Some(victim.number()));
        }
        victims.iter().try_for_each(|victim| victim.signal(Signal::KILL))
    }

    /// An injection into a victim that is still to be started.
    pub fn injection(
        &mut self,
        call: &'static str,
        harm: super::inject::SyscallFault,
        index: u32,
    ) -> Injection {
        Injection::new(&self.under_test.calls(), call, harm, index, self.trace())
    }
}

/// An engine whose store is watched by this process.
pub(super) fn watched(engine: &Engine, recorder: Arc<dyn Recorder>) -> Engine {
    let store = WatchedStore::new(Arc::clone(engine.store()), Direct, recorder, std::process::id());
    Engine::with(Arc::new(store), engine.seams().clone(), *engine.bounds())
}
