//! The ceiling: the same store driven straight through its seam, without the engine.

use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::Result;
use mainspring::Engine;
use mainspring_core::id::{ClaimBatchNo, NodeId, NodeNo};
use mainspring_core::job::Outcome;
use mainspring_core::name::{Kind, QueueName};
use mainspring_core::store::{Abilities, ClaimRequest, ClaimedBatch, Finish, Registration, Store};

/// A bare node: a name in the store and nothing that runs.
pub(crate) struct Bare {
    store: Arc<dyn Store>,
    node: NodeNo,
    queue: QueueName,
    batch: u64,
}

impl Bare {
    pub(crate) async fn join(engine: &Engine) -> Result<Self> {
        let seams = engine.seams();
        let queue = QueueName::new("default")?;
        let registration = Registration {
            id: NodeId::mint(seams.clock.now(), &*seams.rng),
            name: "bench".into(),
            version: "0".into(),
            pid: std::process::id(),
            queues: vec![(queue.clone(), 1)],
            abilities: Abilities { kinds: vec![Kind::new("noop")?], ..Abilities::default() },
            lease: Duration::from_hours(1),
        };
        let member = engine.store().register(registration).await?;
        Ok(Bare { store: Arc::clone(engine.store()), node: member.no, queue, batch: 0 })
    }

    pub(crate) async fn claim(&mut self, limit: usize) -> Result<ClaimedBatch> {
        self.batch += 1;
        let queues = vec![(self.queue.clone(), limit)];
        let request = ClaimRequest {
            ahead: Vec::new(),
            node: self.node,
            batch: ClaimBatchNo(self.batch),
            queues,
            suspects: 0,
        };
        Ok(self.store.claim(request).await?)
    }

    pub(crate) async fn finish(&self, claimed: &ClaimedBatch, outcome: &Outcome) -> Result<()> {
        let finish = |claim| Finish { claim, outcome: outcome.clone() };
        let finishes = claimed.jobs.iter().map(|job| finish(job.claim)).collect();
        self.store.finish(self.node, finishes).await?;
        Ok(())
    }

    pub(crate) async fn leave(self) -> Result<()> {
        self.store.retire(self.node).await?;
        Ok(())
    }
}

/// Claims and finishes everything in batches, with two batches on the way at a time so that the store never waits;
/// returns jobs per second.
pub(crate) async fn drain(engine: &Engine, batch: usize) -> Result<f64> {
    let began = Instant::now();
    let (one, other) = tokio::try_join!(work_off(engine, batch), work_off(engine, batch))?;
    Ok((one + other) as f64 / began.elapsed().as_secs_f64())
}

async fn work_off(engine: &Engine, batch: usize) -> Result<usize> {
    let mut bare = Bare::join(engine).await?;
    let (mut jobs, mut claimed) = (0, bare.claim(batch).await?);
    while !claimed.jobs.is_empty() {
        jobs += claimed.jobs.len();
        bare.finish(&claimed, &Outcome::Succeed { result: None }).await?;
        claimed = bare.claim(batch).await?;
    }
    bare.leave().await?;
    Ok(jobs)
}
