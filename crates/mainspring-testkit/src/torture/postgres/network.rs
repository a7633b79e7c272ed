//! What a network does: it loses connections at the worst moments, swallows, delays and falls silent.

use std::sync::Arc;
use std::time::Duration;

use mainspring_core::seam::Rng;

use super::cluster::Cluster;
use super::outage;
use crate::postgres::Cut;
use crate::torture::wait::{wait, within};
use crate::torture::{Fault, FaultFuture, Result, World};

/// Rows that are worth cutting through: more than the arguments of a statement without any.
const ROWS: usize = 512;
/// How many commits or batches of all victims one fault chooses from.
const CHOICE: u64 = 20;
/// What a bad connection adds to every message, and to every kilobyte.
const DELAY: (Duration, Duration) = (Duration::from_millis(15), Duration::from_millis(5));

pub(super) fn all(cluster: &Arc<Cluster>) -> Vec<Box<dyn Fault>> {
    let kinds = [
        Kind::Commit(Cut::Before),
        Kind::Commit(Cut::Inside),
        Kind::Commit(Cut::After),
        Kind::Commit(Cut::Lost),
        Kind::Batch,
        Kind::Rows,
        Kind::Listeners,
        Kind::All,
        Kind::Hole,
        Kind::Silence,
        Kind::Slow,
    ];
    let fault = |kind| Box::new(NetworkFault { kind, cluster: Arc::clone(cluster) }) as Box<dyn Fault>;
    kinds.map(fault).into()
}

/// What goes wrong.
#[derive(Debug, Clone, Copy)]
enum Kind {
    /// A connection is lost around a commit.
    Commit(Cut),
    /// A connection is lost around any batch.
    Batch,
    /// A connection is lost in the middle of a message full of rows.
    Rows,
    /// Those that listen are lost.
    Listeners,
    /// All connections are lost.
    All,
    /// All that is sent is swallowed, for longer than a lease.
    Hole,
    /// Nothing is passed on for longer than a lease, and then everything.
    Silence,
    /// Everything takes its time.
    Slow,
}

struct NetworkFault {
    kind: Kind,
    cluster: Arc<Cluster>,
}

impl NetworkFault {
    async fn cut(&self, world: &World) -> Result<bool> {
        let proxies = &self.cluster.victim_proxies;
        let way = &proxies.by_server[self.cluster.primary_place()];
        let before = proxies.hits();
        let nth = 1 + u32::try_from(world.below(CHOICE)).unwrap_or(0);
        match self.kind {
            Kind::Commit(cut) => way.on_commit(cut, 1),
            Kind::Batch => {
                let cut = [Cut::Before, Cut::Inside, Cut::After, Cut::Lost];
                way.on_batch(cut[usize::try_from(world.rng.next_u64() >> 62).unwrap_or(0)], nth);
            }
            Kind::Rows => way.on_rows(ROWS),
            Kind::Listeners => {
                let listen = async || Ok((way.cut_listeners() > 0).then_some(true));
                return wait("somebody listens", listen).await;
            }
            _ => return Ok(way.cut_all() > 0),
        }
        wait("somebody meets what is laid out", async || Ok((proxies.hits() > before).then_some(true))).await
    }

    async fn last(&self, world: &mut World) -> Result<bool> {
        let proxies = &self.cluster.victim_proxies;
        let outage = world.under_test().lease() * 3 / 2;
        let swallowed = proxies.swallowed();
        let set = |on: bool| {
            for way in &proxies.by_server {
                match self.kind {
                    Kind::Hole => way.swallow(on),
                    Kind::Silence if on => way.hold(),
                    Kind::Silence => way.resume(),
                    _ => {
                        way.slow(if on { DELAY.0 } else { Duration::ZERO });
                        way.drag(if on { DELAY.1 } else { Duration::ZERO });
                    }
                }
            }
        };
        set(true);
        let lasted = match self.kind {
            // A world that is slow goes on all the same.
            Kind::Slow => world.goes_on().await,
            _ => within(outage, async || Ok(None::<()>)).await.map(drop),
        };
        set(false);
        lasted?;
        Ok(!matches!(self.kind, Kind::Hole) || proxies.swallowed() > swallowed)
    }
}

impl Fault for NetworkFault {
    fn name(&self) -> String {
        match self.kind {
            Kind::Commit(cut) => format!("cut commit {}", format!("{cut:?}").to_lowercase()),
            Kind::Batch => "cut batch".into(),
            Kind::Rows => "cut rows".into(),
            Kind::Listeners => "cut listeners".into(),
            Kind::All => "cut all".into(),
            Kind::Hole => "black hole".into(),
            Kind::Silence => "silence".into(),
            Kind::Slow => "slow".into(),
        }
    }

    fn inject<'a>(&'a mut self, world: &'a mut World) -> FaultFuture<'a> {
        Box::pin(async move {
            let lasts = match self.kind {
                Kind::Hole | Kind::Silence => world.under_test().lease() * 3 / 2,
                _ => Duration::ZERO,
            };
            outage(world, &self.name(), lasts);
            match self.kind {
                Kind::Hole | Kind::Silence | Kind::Slow => self.last(world).await,
                _ => self.cut(world).await,
            }
        })
    }
}
