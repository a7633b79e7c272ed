//! What the rig sees of its world, and waits for.

use std::fs::File;
use std::path::Path;
use std::process::{Command, ExitStatus, Stdio};
use std::sync::Arc;

use mainspring::admin::{Filter, Summary};
use mainspring::{JobId, State};
use mainspring_core::store::{Node, NodeState};

use super::World;
use crate::checker::FinalState;
use crate::history::Actor;
use crate::torture::victim::ProbeResult;
use crate::torture::wait::{insist, wait};
use crate::torture::{Error, Result, Victim};

/// Runs that must end before a world counts as working: enough that not all of them were over before.
const SIGNS: usize = 10;

impl World {
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
            let list = async || engine.jobs().list(filter.clone()).after(after.clone()).limit(1_000).await;
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
    pub async fn look(&self) -> Result<FinalState> {
        let store = Arc::clone(self.engine()?.store());
        insist("the store can be looked through", async || FinalState::look(&*store).await).await
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
    pub async fn end_of(&self, victim: &mut Victim) -> Result<ExitStatus> {
        let what = format!("{} {} has ended", victim.role.as_str(), victim.number());
        wait(&what, async || victim.ended()).await
    }

    /// Lets a probe loose on another store, and tells what it met. What it writes down goes into that folder.
    ///
    /// # Errors
    /// [`Error::Unexpected`] if it panicked, [`Error::InVain`] if it hangs.
    pub async fn probe(&self, address: &str, folder: &Path) -> Result<ProbeResult> {
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
            Ok(ProbeResult::parse(&said))
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
}
