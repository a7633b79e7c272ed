//! Tells of jobs that are ready and that no live node can run: nobody serves their queue, handles their kind, has their
//! labels or is of the build that they are pinned to.
//!
//! The gauge `mainspring_stranded` is 1 for each such line (`queue`, `kind`, `labels`) and 0 when that is over; a log line
//! says it once.

use std::collections::BTreeSet;
use std::time::Duration;

use mainspring_core::Result;
use mainspring_core::job::stranded;
use mainspring_core::seam::Pending;
use mainspring_core::store::Line;
use tokio::sync::Notify;

use super::Reconciler;
use crate::node::NodeShared;

/// Deploys take minutes.
const EVERY: Duration = Duration::from_mins(1);

#[derive(Default)]
pub(super) struct Stranded {
    reported: BTreeSet<Line>,
}

impl Reconciler for Stranded {
    const NAME: &'static str = "stranded";

    fn tick<'a>(&'a mut self, shared: &'a NodeShared) -> Pending<'a, Result<Duration>> {
        Box::pin(async {
            let (me, now) = (&shared.registration, shared.clock().now());
            let mut lines = shared.store().lines().await?;
            lines.retain(|line| {
                let serves = me.queues.iter().any(|(queue, _)| *queue == line.queue);
                !(serves && me.abilities.runs(&line.kind, &line.labels, now))
            });
            let mut found = BTreeSet::new();
            if !lines.is_empty() {
                let nodes = shared.store().nodes().await?;
                for line in lines {
                    let Some(why) = stranded(&line, &nodes, now) else { continue };
                    if !self.reported.contains(&line) {
                        let (queue, kind) = (&line.queue, &line.kind);
                        tracing::warn!(%queue, %kind, %why, "no live node can run these ready jobs");
                    }
                    found.insert(line);
                }
            }
            for over in self.reported.difference(&found) {
                set_gauge(over, 0.0);
            }
            for line in &found {
                set_gauge(line, 1.0);
            }
            self.reported = found;
            Ok(EVERY)
        })
    }

    fn wake(_shared: &NodeShared) -> Option<&Notify> {
        None
    }
}

fn set_gauge(line: &Line, value: f64) {
    let labels: Vec<&str> = line.labels.iter().map(AsRef::as_ref).collect();
    let (queue, kind, labels) = (line.queue.to_string(), line.kind.to_string(), labels.join(","));
    metrics::gauge!("mainspring_stranded", "queue" => queue, "kind" => kind, "labels" => labels).set(value);
}
