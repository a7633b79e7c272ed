//! Late committers: jobs that appear behind those that were claimed since.

use std::sync::Arc;
use std::time::Duration;

use mainspring_core::bounds;
use mainspring_core::id::JobId;
use mainspring_core::store::{Finish, Hint, Listener};
use mainspring_testkit::harness::succeed;
use tokio::sync::Notify;

use crate::client::{Client, Kind};
use crate::support::{Rig, database, eventually};

/// Somebody who wants to hear.
pub(crate) struct HintListener(Notify);

impl Listener for HintListener {
    fn hint(&self, _: &Hint) {
        self.0.notify_one();
    }
}

/// Subscribes to a store and waits until it listens: the first thing it then tells is that anything may have happened.
pub(crate) async fn subscribe(rig: &Rig) -> Arc<dyn Listener> {
    let ears = Arc::new(HintListener(Notify::new()));
    let listener: Arc<dyn Listener> = ears.clone();
    rig.store.subscribe(Arc::downgrade(&listener));
    tokio::time::timeout(mainspring_testkit::patience::PATIENCE, ears.0.notified())
        .await
        .expect("it listens");
    listener
}

/// Claims until this job comes, and tells how long that took.
async fn found(rig: &Rig, node: mainspring_core::id::NodeNo, id: JobId) -> Duration {
    let mut others = 0;
    let took = eventually("the late committer", async || {
        let claimed = rig.claim(node, 10).await;
        others += claimed.iter().filter(|job| job.claim.id != id).count();
        claimed.iter().any(|job| job.claim.id == id)
    });
    let took = took.await;
    assert_eq!(others, 0, "nobody else is there");
    took
}

/// Enqueues and ends so many jobs.
async fn drain(rig: &Rig, node: mainspring_core::id::NodeNo, count: usize) {
    rig.put_many(count).await;
    let mut left = count;
    while left > 0 {
        let claimed = rig.claim(node, bounds::BATCH.min(1000)).await;
        assert!(!claimed.is_empty(), "{left} jobs are left");
        left -= claimed.len();
        let finishes =
            claimed.into_iter().map(|job| Finish { claim: job.claim, outcome: succeed() }).collect();
        rig.store.finish(node, finishes).await.expect("finish");
    }
}

#[tokio::test]
async fn a_job_that_is_committed_late_is_found_behind_those_claimed_since() {
    let database = Arc::new(database());
    let rig = Rig::real(&database, &database.url());
    let _listener = subscribe(&rig).await;
    let node = rig.node().await;
    let mut client = Client::connect(Kind::Tokio, &database.url()).await;
    for _ in 0..3 {
        let job = rig.job();
        let id = job.id;
        let mut tx = client.begin().await;
        tx.put(&*rig.store, job).await;
        drain(&rig, node, 50).await;
        tx.commit().await;
        let took = found(&rig, node, id).await;
        assert!(took < Duration::from_secs(3), "{took:?}");
    }
    rig.assert_sound().await;
}

/// While somebody keeps an old snapshot, what was claimed and ended cannot be cleaned away, and a look from the front of
/// the index walks over all of it.
#[tokio::test]
async fn a_late_committer_is_found_under_a_held_snapshot() {
    let database = Arc::new(database());
    let rig = Rig::real(&database, &database.url());
    let _listener = subscribe(&rig).await;
    let node = rig.node().await;
    let mut reader = Client::connect(Kind::Tokio, &database.url()).await;
    let mut snapshot = reader.begin_at("REPEATABLE READ").await;
    snapshot.run("SELECT count(*) FROM mainspring.jobs").await;

    let mut client = Client::connect(Kind::Sqlx, &database.url()).await;
    let job = rig.job();
    let id = job.id;
    let mut tx = client.begin().await;
    tx.put(&*rig.store, job).await;
    drain(&rig, node, 20_000).await;
    tx.commit().await;
    let took = found(&rig, node, id).await;
    assert!(took < Duration::from_secs(3), "{took:?}");
    snapshot.commit().await;
}
