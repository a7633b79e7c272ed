//! Behind a PgBouncer in transaction mode: listening past it or looking around, and what happens if the address hides it.

use std::sync::Arc;
use std::time::Duration;

use mainspring_core::store::{Hint, Listener, Receipt};
use mainspring_testkit::harness::succeed;
use mainspring_testkit::postgres::{Bouncer, Database};

use crate::client::{ALL, Client, Kind};
use crate::support::{Rig, database, empty, eventually, with};

pub(crate) fn bouncer(database: &Database) -> Bouncer {
    // Sqlx asks for it at the start of each session.
    let settings = [("ignore_startup_parameters", "extra_float_digits")];
    Bouncer::start_with(database.server(), &settings).expect("a pooler")
}

/// The way past the pooler, as a parameter.
fn listen(database: &Database) -> String {
    let server = database.server();
    let dir = server.socket_dir().expect("a socket").to_string_lossy().replace('/', "%2F");
    format!("listen={dir}:{}", server.port())
}

/// Somebody who wants to hear, and does not need to: the test asks all the time.
struct IgnoringListener;

impl Listener for IgnoringListener {
    fn hint(&self, _: &Hint) {}
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
        let listener: Arc<dyn Listener> = Arc::new(IgnoringListener);
        waiter.store.subscribe(Arc::downgrade(&listener));
        let took = noticed(&waiter, &other).await;
        assert!(took < Duration::from_secs(2), "{past}: {took:?}");
        // Who is told holds a lock that lives as long as a session: behind the pooler nobody does.
        let locks = "SELECT 1 FROM pg_locks l JOIN pg_database d ON d.oid = l.database
            WHERE d.datname = current_database() AND l.locktype = 'advisory' AND l.mode = 'ShareLock'";
        assert_eq!(!waiter.sql(locks).is_empty(), past);
        waiter.assert_sound().await;
    }
}

#[tokio::test]
async fn callers_transactions_through_the_pooler_take_jobs_along() {
    for kind in ALL {
        let database = Arc::new(database());
        let bouncer = bouncer(&database);
        let url = bouncer.url(database.name());
        let rig = Rig::at(&database, &with(&url, "pooler=transaction"));
        // Sqlx gives its statements names unless it is told not to.
        let own =
            if matches!(kind, Kind::Sqlx) { with(&url, "statement-cache-capacity=0") } else { url.clone() };
        let mut client = Client::connect(kind, &own).await;
        for key in ["k", "other"] {
            let mut tx = client.begin().await;
            assert_eq!(tx.put(&*rig.store, rig.keyed(key)).await, Receipt::Created, "{kind:?}");
            // The next transaction gets another session.
            let mut second = Client::connect(Kind::Tokio, &url).await;
            let mut second = second.begin().await;
            second.run("SELECT 1").await;
            tx.commit().await;
            second.commit().await;
        }
        rig.assert_sound().await;
    }
}

#[tokio::test]
async fn a_schema_can_be_made_through_the_pooler() {
    let database = Arc::new(empty());
    let bouncer = bouncer(&database);
    let url = super::migrations::migrated(&with(&bouncer.url(database.name()), "pooler=transaction"));
    let rig = Rig::at(&database, &url);
    rig.put_one().await;
    rig.assert_sound().await;
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
