//! The world: a store, the victims on it, and what they wrote down.

use std::collections::BTreeSet;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;

use mainspring::{Engine, Filter, JobId, State, Summary};
use mainspring_core::seam::Rng;
use mainspring_core::store::{Node, NodeState};
use rustix::process::Signal;

use super::inject::Injection;
use super::ledger::{self, Ledger, Tail};
use super::process::{Orders, Role, Setting, Victim};
use super::victim::Seen;
use super::wait::{insist, wait};
use super::{Error, Result, Stage};
use crate::checker::Found;
use crate::history::{Actor, Event, Fact, Recorder};
use crate::rng::SeededRng;
use crate::watch::{Direct, Watched};

/// Workers of a world at peace.
pub(super) const WORKERS: usize = 3;
/// Runs that must end before a world counts as working: enough that not all of them were over before.
const SIGNS: usize = 10;

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
    stage: Arc<dyn Stage>,
    setting: Setting,
    dir: PathBuf,
    ledger: Arc<Ledger>,
    tail: Tail,
    engine: Option<Engine>,
    traces: u32,
}

impl World {
    pub(super) async fn new(
        stage: Arc<dyn Stage>,
        dir: &Path,
        program: &Path,
        seed: u64,
        planted: Option<String>,
    ) -> Result<Self> {
        let path = dir.join("ledger");
        let setting = Setting {
            program: program.into(),
            address: stage.address(),
            ledger: path.clone(),
            lease: stage.lease(),
            planted,
        };
        let mut world = World {
            workers: Vec::new(),
            others: Vec::new(),
            rng: SeededRng::new(seed),
            excused: BTreeSet::new(),
            stage,
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
    pub fn stage(&self) -> &Arc<dyn Stage> {
        &self.stage
    }

    /// A directory for what a blow needs; it is kept if the run fails.
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
        let engine = self.stage.open().await.map_err(Error::store("opening the store"))?;
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
                let victim = self.start(role, &Orders::default())?;
                self.others.push(victim);
            }
        }
        while self.workers.len() < WORKERS {
            let worker = self.start(Role::Worker, &Orders::default())?;
            self.workers.push(worker);
        }
        Ok(())
    }

    /// Starts a victim, which is the caller's from then on.
    ///
    /// # Errors
    /// [`Error::Io`].
    pub fn start(&self, role: Role, orders: &Orders) -> Result<Victim> {
        Victim::start(&self.setting, role, self.rng.next_u64(), orders)
    }

    /// Starts a victim that has another way to the store.
    ///
    /// # Errors
    /// [`Error::Io`].
    pub fn start_on(&self, address: String, role: Role, orders: &Orders) -> Result<Victim> {
        let setting = Setting { address, ..self.setting.clone() };
        Victim::start(&setting, role, self.rng.next_u64(), orders)
    }

    /// Starts a victim on a store that is none of this world's. What it does there is written down elsewhere: its nodes and
    /// jobs would be taken for others of the same number.
    ///
    /// # Errors
    /// [`Error::Io`].
    pub fn start_elsewhere(&self, address: String, role: Role, orders: &Orders) -> Result<Victim> {
        let setting = Setting { address, ledger: self.dir.join("elsewhere"), ..self.setting.clone() };
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
    /// [`Error::Unexpected`] if one ended by itself: those that belong to the world die by a blow or not at all.
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

    /// All nodes, as soon as the store tells.
    ///
    /// # Errors
    /// [`Error::InVain`], [`Error::Store`].
    pub async fn nodes(&self) -> Result<Vec<Node>> {
        let engine = self.engine()?;
        insist("the store tells of its nodes", async || engine.nodes().await).await
    }

    /// The live node of a process.
    ///
    /// # Errors
    /// As [`nodes`](Self::nodes).
    pub async fn node(&self, process: Actor) -> Result<Option<Node>> {
        let live = |node: &Node| node.pid == process && node.state == NodeState::Live;
        Ok(self.nodes().await?.into_iter().find(live))
    }

    /// All jobs in one of these states, or all.
    ///
    /// # Errors
    /// As [`nodes`](Self::nodes).
    pub async fn jobs(&self, states: &[State]) -> Result<Vec<Summary>> {
        let engine = self.engine()?;
        let filter = Filter { states: states.to_vec(), ..Filter::default() };
        let (mut jobs, mut after) = (Vec::new(), None);
        loop {
            let list = async || engine.jobs().list(filter.clone(), after.clone(), 1_000).await;
            let page = insist("the store lists its jobs", list).await?;
            jobs.extend(page.jobs);
            after = page.next;
            if after.is_none() {
                return Ok(jobs);
            }
        }
    }

    /// Looks through the whole store.
    ///
    /// # Errors
    /// As [`nodes`](Self::nodes).
    pub async fn look(&self) -> Result<Found> {
        let store = Arc::clone(self.engine()?.store());
        insist("the store can be looked through", async || Found::look(&*store).await).await
    }

    /// Waits until all three workers are members and two of them hold jobs, the dead hold none any more, and no job has
    /// crashed twice: one crash more would put an innocent job under quarantine.
    ///
    /// # Errors
    /// As [`nodes`](Self::nodes).
    pub async fn busy(&mut self) -> Result<()> {
        wait("workers are busy, and the dead are found", async || {
            self.replace_dead()?;
            let numbers: Vec<Actor> = self.workers.iter().map(Victim::number).collect();
            let mut nodes = self.nodes().await?;
            nodes.retain(|node| node.state == NodeState::Live);
            let (mine, others): (Vec<_>, Vec<_>) = nodes.iter().partition(|node| numbers.contains(&node.pid));
            let holding = mine.iter().filter(|node| node.claims > 0).count();
            if mine.len() < numbers.len() || holding < 2 || others.iter().any(|node| node.claims > 0) {
                return Ok(None);
            }
            let open = self.jobs(&[State::Ready, State::Scheduled, State::Running]).await?;
            Ok(open.iter().all(|job| job.crashes < 2).then_some(()))
        })
        .await
    }

    /// Waits until the world is seen to work: runs come to their end.
    ///
    /// # Errors
    /// [`Error::InVain`].
    pub async fn goes_on(&mut self) -> Result<()> {
        self.tail.follow()?;
        let wanted = self.tail.ended + SIGNS;
        wait("work goes on", async || {
            self.tail.follow()?;
            Ok((self.tail.ended >= wanted).then_some(()))
        })
        .await
    }

    /// Waits for a victim to end by itself.
    ///
    /// # Errors
    /// [`Error::InVain`].
    pub async fn end_of(&self, victim: &mut Victim) -> Result<std::process::ExitStatus> {
        let what = format!("{} {} has ended", victim.role.as_str(), victim.number());
        wait(&what, async || victim.ended()).await
    }

    /// Lets a probe loose on another store, and tells what it met. What it writes down goes into that folder.
    ///
    /// # Errors
    /// [`Error::Unexpected`] if it panicked, [`Error::InVain`] if it hangs.
    pub async fn probe(&self, address: &str, folder: &Path) -> Result<Seen> {
        let said = folder.join("said");
        let file = File::create(&said).map_err(Error::io("making a file"))?;
        let lease = format!("{}ms", self.setting.lease.as_millis());
        let mut process = Command::new(&self.setting.program)
            .args(["probe", address])
            .arg(folder.join("ledger"))
            .args([lease.as_str(), "1"])
            .stdin(Stdio::null())
            .stdout(file)
            .stderr(File::create(folder.join("errors")).map_err(Error::io("making a file"))?)
            .spawn()
            .map_err(Error::io("starting a probe"))?;
        let ended = wait("a probe has ended", async || {
            process.try_wait().map_err(Error::io("asking for a probe's end"))
        })
        .await;
        // It may have ended; one that hangs must not outlive this.
        drop(process.kill());
        drop(process.wait());
        let status = ended?;
        let said = std::fs::read_to_string(said).map_err(Error::io("reading what a probe said"))?;
        if status.success() {
            Ok(Seen::parse(&said))
        } else {
            Err(Error::Unexpected(format!("a probe ended with {status}")))
        }
    }

    /// Asks for a job's record.
    ///
    /// # Errors
    /// As [`nodes`](Self::nodes).
    pub async fn job(&self, id: JobId) -> Result<Summary> {
        let engine = self.engine()?;
        Ok(insist("the store tells of a job", async || engine.jobs().get(id).await).await?.summary)
    }

    /// An injection into a victim that is still to be started.
    pub fn injection(&mut self, call: &'static str, harm: super::inject::Harm, index: u32) -> Injection {
        Injection::new(&self.stage.calls(), call, harm, index, self.trace())
    }
}

/// An engine whose store is watched by this process.
pub(super) fn watched(engine: &Engine, recorder: Arc<dyn Recorder>) -> Engine {
    let store = Watched::new(Arc::clone(engine.store()), Direct, recorder, std::process::id());
    Engine::with(Arc::new(store), engine.seams().clone(), *engine.limits())
}
