//! Behind a PgBouncer in transaction mode: listening past it or looking around, and what happens if the address hides it.

use std::sync::Arc;
use std::time::Duration;

use mainspring_core::store::Receipt;
use mainspring_testkit::harness::succeed;
use mainspring_testkit::postgres::{Bouncer, Database};

use crate::client::{ALL, Client, Kind};
use crate::support::{Rig, database, eventually, with};

fn bouncer(database: &Database) -> Bouncer {
    Bouncer::start(database.server()).expect("a pooler")
}

/// The way past the pooler, as a parameter.
fn listen(database: &Database) -> String {
    let server = database.server();
    let dir = server.socket_dir().expect("a socket").to_string_lossy().replace('/', "%2F");
    format!("listen={dir}:{}", server.port())
}

/// How long it takes until a handle that waits finds a job of another handle, which says nothing to it in this process.
async fn noticed(waiter: &Rig, other: &Rig) -> Duration {
    let node = waiter.node().await;
    other.put_one().await;
    eventually("the first job", async || !waiter.claim(node, 1).await.is_empty()).await;
    let mut shortest = Duration::MAX;
    for _ in 0..3 {
        assert!(waiter.claim(node, 1).await.is_empty());
        other.put_one().await;
        let took = eventually("a job", async || match waiter.claim(node, 1).await.as_slice() {
            [] => false,
            [job] => {
                waiter.end(node, job.claim, succeed()).await;
                true
            }
            _ => unreachable!("one at most"),
        });
        shortest = shortest.min(took.await);
    }
    shortest
}

#[tokio::test]
async fn jobs_are_found_behind_a_pooler_with_a_way_past_it_and_without() {
    for past in [true, false] {
        let database = Arc::new(database());
        let bouncer = bouncer(&database);
        let mut url = with(&bouncer.url(database.name()), "pooler=transaction");
        if past {
            url = with(&url, &listen(&database));
        }
        let (waiter, other) = (Rig::real(&database, &url), Rig::real(&database, &url));
        let _listener = if past { Some(crate::late::subscribe(&waiter).await) } else { None };
        let took = noticed(&waiter, &other).await;
        assert!(took < Duration::from_secs(2), "{past}: {took:?}");
        waiter.assert_sound().await;
    }
}

#[tokio::test]
async fn callers_transactions_through_the_pooler_take_jobs_along() {
    for kind in ALL {
        // Sqlx gives its statements names unless its users tell it not to, which its address cannot say.
        if matches!(kind, Kind::Sqlx) {
            continue;
        }
        let database = Arc::new(database());
        let bouncer = bouncer(&database);
        let url = bouncer.url(database.name());
        let rig = Rig::at(&database, &with(&url, "pooler=transaction"));
        let mut client = Client::connect(kind, &url).await;
        let mut tx = client.begin().await;
        assert_eq!(tx.put(&*rig.store, rig.keyed("k")).await, Receipt::Created);
        tx.commit().await;
        rig.assert_sound().await;
    }
}

/// An address that leads to a pooler and does not say so.
#[tokio::test]
async fn a_pooler_that_the_address_hides_is_named() {
    let database = Arc::new(database());
    let bouncer = bouncer(&database);
    let url = bouncer.url(database.name());
    let rig = Rig::real(&database, &url);
    rig.put_one().await;
    // Somebody else gets the session on which our statements are prepared.
    let mut other = Client::connect(Kind::Tokio, &url).await;
    let mut tx = other.begin().await;
    tx.run("SELECT 1").await;
    let error = rig.store.enqueue(vec![rig.job()]).await.expect_err("there is no such statement");
    assert!(error.to_string().contains("add `pooler=transaction`"), "{error:?}");
    tx.commit().await;
    let findings = rig.store.diagnose().await.expect("a diagnosis");
    assert!(findings.iter().any(|finding| finding.what.contains("a pooler")), "{findings:?}");
}
