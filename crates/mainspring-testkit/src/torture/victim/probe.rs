//! The probe: goes through everything that a store can do, and tells what it met.
//!
//! For stores that were damaged: whatever is wrong must come out as an error that says so.

use std::error::Error as StdError;
use std::io::Write;
use std::sync::Arc;
use std::time::Duration;

use mainspring::{Context, Engine, Error};
use mainspring_core::id::{ClaimBatchNo, NodeId};
use mainspring_core::job::Outcome;
use mainspring_core::name::QueueName;
use mainspring_core::store::{Abilities, ClaimRequest, Finish, Registration, Renewal, Rescue};

use super::jobs::{QUEUES, Work};
use super::{VictimContext, worker};
use crate::checker::FinalState;

/// How long a node is let loose on the store.
const WORKING: Duration = Duration::from_millis(200);

/// What a probe met.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ProbeResult {
    /// Nothing wrong.
    Clean,
    /// Damage, and it was called that.
    Damage(String),
    /// Something else.
    Other(String),
}

impl ProbeResult {
    /// What a probe said in its last line.
    pub fn parse(line: &str) -> ProbeResult {
        match line.trim().split_once(": ") {
            Some(("damage", what)) => ProbeResult::Damage(what.into()),
            _ if line.trim() == "clean" => ProbeResult::Clean,
            _ => ProbeResult::Other(line.trim().into()),
        }
    }

    fn of(error: &Error) -> ProbeResult {
        match error {
            // A node whose row is gone is nobody's: what it sends is refused.
            Error::Corrupt { .. } | Error::Open { .. } | Error::LeaseLost => {
                ProbeResult::Damage(format!("{error}"))
            }
            other => ProbeResult::Other(format!("{other:?}")),
        }
    }
}

impl std::fmt::Display for ProbeResult {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            ProbeResult::Clean => f.write_str("clean"),
            ProbeResult::Damage(what) => write!(f, "damage: {what}"),
            ProbeResult::Other(what) => write!(f, "other: {what}"),
        }
    }
}

pub(super) async fn run(life: VictimContext) -> Result<(), Box<dyn StdError>> {
    let seen = match life.open().await {
        Ok(engine) => {
            let mut met = probe(&engine, life.lease).await;
            met.extend(work(&life, &engine).await.err());
            engine.close().await;
            let seen: Vec<ProbeResult> = met.iter().map(ProbeResult::of).collect();
            let other = seen.iter().find(|seen| matches!(seen, ProbeResult::Other(_)));
            other.or(seen.first()).cloned().unwrap_or(ProbeResult::Clean)
        }
        Err(error) => ProbeResult::of(&error),
    };
    // One line, whatever an error's text holds.
    writeln!(std::io::stdout(), "{}", seen.to_string().replace('\n', " "))?;
    Ok(())
}

/// Goes through the store's own calls; returns what they failed with.
async fn probe(engine: &Engine, lease: Duration) -> Vec<Error> {
    let store = engine.store();
    let mut met = Vec::new();
    met.extend(FinalState::look(&**store).await.err());
    met.extend(store.queues().await.err());
    met.extend(store.nodes().await.err());
    met.extend(store.diagnose().await.err());
    for number in 0..20 {
        met.extend(engine.enqueue(Work { number, ..Work::default() }).await.err());
    }
    let (clock, rng) = (&engine.seams().clock, &engine.seams().rng);
    let registration = Registration {
        id: NodeId::mint(clock.now(), &**rng),
        name: "probe".into(),
        version: String::new(),
        pid: std::process::id(),
        queues: QUEUES.iter().filter_map(|queue| Some((QueueName::new(*queue).ok()?, 100))).collect(),
        abilities: Abilities {
            kinds: ["work"].iter().filter_map(|kind| mainspring::name::Kind::new(*kind).ok()).collect(),
            ..Abilities::default()
        },
        lease,
    };
    match store.register(registration.clone()).await {
        Ok(member) => {
            let queues = registration.queues.iter().map(|(queue, _)| (queue.clone(), 100)).collect();
            let request = ClaimRequest {
                ahead: Vec::new(),
                node: member.no,
                batch: ClaimBatchNo(1),
                queues,
                suspects: 1,
            };
            match store.claim(request).await {
                Ok(batch) => {
                    let end = |claim| Finish { claim, outcome: Outcome::Release };
                    let finishes = batch.jobs.iter().map(|job| end(job.claim)).collect();
                    met.extend(store.finish(member.no, finishes).await.err());
                }
                Err(error) => met.push(error),
            }
            met.extend(store.renew(Renewal::new(member.no)).await.err());
            let rescue = Rescue { by: member.no, steady: lease * 2, seen: member.now };
            met.extend(store.rescue(rescue).await.err());
            met.extend(store.retire(member.no).await.err());
        }
        Err(error) => met.push(error),
    }
    met.extend(store.promote(1_000).await.err());
    met.extend(store.expire(1_000).await.err());
    met.extend(store.prune(1_000).await.err());
    met
}

/// Lets a node loose on the store for a moment.
async fn work(life: &VictimContext, engine: &Engine) -> Result<(), Error> {
    let ledger = Arc::clone(&life.ledger);
    let by = life.by;
    let mut node = engine.node().lease(life.lease).drain(WORKING).handle(move |ctx: Context, job: Work| {
        let ledger = Arc::clone(&ledger);
        async move { worker::work(&ctx, &job, &ledger, by).await }
    });
    for queue in QUEUES {
        node = node.queue(queue, 4);
    }
    let node = node.start().await?;
    engine.seams().clock.sleep(WORKING).await;
    node.shutdown().await;
    Ok(())
}
