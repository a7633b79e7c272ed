//! Two stores in two schemas of one database: neither notices the other.

use std::sync::Arc;
use std::time::Duration;

use mainspring_core::job::State;
use mainspring_core::store::Receipt;
use mainspring_testkit::harness::{LEASE, succeed};

use crate::client::connect;
use crate::support::{Rig, empty, soon, with};

fn two() -> (Rig, Rig) {
    let database = Arc::new(empty());
    let url = |name: &str| super::migrations::migrated(&with(&database.url(), &format!("schema={name}")));
    (Rig::at(&database, &url("one")), Rig::at(&database, &url("two")))
}

#[tokio::test]
async fn stores_in_two_schemas_do_not_see_each_other() {
    let (one, two) = two();
    // The same id and the same key, in both.
    let job = one.keyed("k");
    assert_eq!(one.enqueue(job.clone()).await, Receipt::Created);
    assert_eq!(two.enqueue(job.clone()).await, Receipt::Created);
    let (first, second) = (one.node().await, two.node().await);
    assert_eq!(first, second, "numbers are the same, and mean something else");
    let claim = one.claim_one(first).await;
    assert_eq!(two.count(State::Ready).await, 1);
    one.end(first, claim, succeed()).await;
    assert_eq!(
        (one.status(job.id).await.state, two.status(job.id).await.state),
        (State::Succeeded, State::Ready)
    );
    // The loss of a node of the one costs nothing of the other.
    let claim = two.claim_one(second).await;
    one.put_one().await;
    one.claim_one(first).await;
    one.advance(LEASE);
    let rescuer = one.node().await;
    assert_eq!(one.rescue(rescuer).await.expired, [first]);
    two.end(second, claim, succeed()).await;
    one.assert_sound().await;
    two.assert_sound().await;
}

#[tokio::test]
async fn locks_of_one_store_stop_nobody_of_the_other() {
    let (one, two) = two();
    let (first, second) = (one.node().await, two.node().await);
    one.put_one().await;
    two.put_one().await;
    // As if somebody took all claims of this node away and did not come to an end.
    let holder = connect(&one.database.url()).await;
    let lock = format!(
        "SELECT pg_advisory_lock(('x' || substr(value, 1, 8))::bit(32)::int, {first}) FROM one.meta WHERE key = 'store'"
    );
    holder.batch_execute(&lock).await.expect("the lock");
    soon("a claim of the other store", two.claim_one(second)).await;
    let stopped = one.claim_one(first);
    tokio::pin!(stopped);
    let early = tokio::time::timeout(Duration::from_millis(200), &mut stopped).await;
    assert!(early.is_err(), "it was the node's lock");
    holder.batch_execute("SELECT pg_advisory_unlock_all()").await.expect("unlocked");
    soon("the claim", stopped).await;
    // A key in an open transaction of the one is free in the other.
    let mut client = crate::client::Client::connect(crate::client::Kind::Tokio, &one.database.url()).await;
    let mut tx = client.begin().await;
    tx.put(&*one.store, one.keyed("k")).await;
    assert_eq!(one.enqueue(one.keyed("k")).await, Receipt::Contended);
    assert_eq!(two.enqueue(two.keyed("k")).await, Receipt::Created);
    tx.rollback().await;
}
