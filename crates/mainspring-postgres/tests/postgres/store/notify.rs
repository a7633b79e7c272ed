//! Notifications: only when somebody waits, one per queue and flush, and never in a caller's transaction.

use std::sync::{Arc, Mutex};

use mainspring_core::store::Store;
use mainspring_postgres::tokio_postgres::{self, AsyncMessage, NoTls};
use mainspring_testkit::harness::{kind, queue};

use crate::client::{ALL, Client};
use crate::support::{Rig, database, eventually};

/// A session that hears every notification of a store, and holds none of the locks of those who wait.
struct Tap {
    client: tokio_postgres::Client,
    heard: Arc<Mutex<Vec<String>>>,
}

impl Tap {
    async fn new(url: &str) -> Tap {
        let (client, mut connection) = tokio_postgres::connect(url, NoTls).await.expect("a connection");
        let heard = Arc::new(Mutex::new(Vec::new()));
        let sink = Arc::clone(&heard);
        let driver = async move {
            while let Some(Ok(message)) =
                std::future::poll_fn(|context| connection.poll_message(context)).await
            {
                if let AsyncMessage::Notification(notification) = message {
                    sink.lock().expect("no panic").push(notification.payload().to_owned());
                }
            }
        };
        #[expect(clippy::disallowed_methods, reason = "the test's own connection")]
        tokio::spawn(driver);
        let sql = "SELECT substr(replace(value, '-', ''), 1, 16) FROM mainspring.meta WHERE key = 'store'";
        let row = client.query_one(sql, &[]).await.expect("the store's id");
        let listen = format!("LISTEN mainspring_{}; LISTEN test_mark", row.get::<_, &str>(0));
        client.batch_execute(&listen).await.expect("listening");
        Tap { client, heard }
    }

    /// All that was sent up to now: notifications come in the order of their commits, so a mark comes last.
    async fn take(&self) -> Vec<String> {
        self.client.batch_execute("NOTIFY test_mark, 'mark'").await.expect("a mark");
        let marked = || self.heard.lock().expect("no panic").iter().any(|text| text == "mark");
        eventually("the mark", async || marked()).await;
        let mut heard = std::mem::take(&mut *self.heard.lock().expect("no panic"));
        heard.retain(|text| text != "mark");
        heard
    }
}

/// Whether this many sessions wait for queues, besides for anything at all.
async fn waiting(tap: &Tap, count: i64) {
    let sql = "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND mode = 'ShareLock' AND granted
        AND database = (SELECT oid FROM pg_database WHERE datname = current_database()) AND objid > 0";
    eventually("somebody waits", async || {
        tap.client.query_one(sql, &[]).await.expect("locks").get::<_, i64>(0) == count
    })
    .await;
}

/// A call whose answer comes after everything that the last enqueue of this store has sent.
async fn settle(rig: &Rig, store: &dyn Store) {
    let job = rig.job_with(|job| job.queue = queue("settle"));
    store.enqueue(vec![job]).await.expect("enqueue");
}

#[tokio::test]
async fn nobody_is_notified_while_nobody_waits() {
    let database = Arc::new(database());
    let rig = Rig::real(&database, &database.url());
    let tap = Tap::new(&database.url()).await;
    for _ in 0..10 {
        rig.put_one().await;
    }
    settle(&rig, &*rig.store).await;
    assert_eq!(tap.take().await, [""; 0]);
}

#[tokio::test]
async fn who_waits_is_told_once_per_queue_and_flush() {
    let database = Arc::new(database());
    let rig = Rig::real(&database, &database.url());
    let tap = Tap::new(&database.url()).await;
    let waiter = Rig::real(&database, &database.url());
    let _listener = super::late_commits::subscribe(&waiter).await;
    // Both queues are known before somebody waits for them.
    rig.put_one().await;
    rig.put(rig.job_with(|job| job.queue = queue("q2"))).await;
    let node = waiter.node().await;
    let mut claimed = 0;
    eventually("both jobs", async || {
        let mut request = waiter.request(node, 100);
        request.queues.push((queue("q2"), 100));
        claimed += waiter.claim_as(request).await.len();
        claimed == 2
    })
    .await;
    waiting(&tap, 2).await;
    drop(tap.take().await);

    // 300 jobs of two queues, in several lines, at once.
    let jobs = (0..300).map(|n| {
        rig.job_with(|job| {
            job.queue = queue(["q", "q2", "q3"][n % 3]);
            job.kind = kind(["k", "k2"][n % 2]);
        })
    });
    rig.enqueue_all(jobs.collect()).await;
    settle(&rig, &*rig.store).await;
    let heard = tap.take().await;
    assert_eq!(heard.len(), 2, "one for each queue that somebody waits for: {heard:?}");

    // Who gets all that it asks for does not wait any more.
    eventually("all are claimed", async || waiter.claim(node, 1).await.is_empty()).await;
}

#[tokio::test]
async fn a_callers_transaction_notifies_nobody() {
    for kind in ALL {
        let database = Arc::new(database());
        let rig = Rig::real(&database, &database.url());
        let tap = Tap::new(&database.url()).await;
        let waiter = Rig::real(&database, &database.url());
        let _listener = super::late_commits::subscribe(&waiter).await;
        rig.put_one().await;
        let node = waiter.node().await;
        eventually("the first job", async || waiter.claim(node, 100).await.len() == 1).await;
        waiting(&tap, 1).await;
        drop(tap.take().await);

        let mut client = Client::connect(kind, &database.url()).await;
        let mut tx = client.begin().await;
        let job = rig.keyed("k");
        let id = job.id;
        tx.put(&*rig.store, job).await;
        tx.commit().await;
        assert_eq!(tap.take().await, [""; 0], "{kind:?}");
        // Only who asks for it has the others told.
        rig.store.nudge(id);
        settle(&rig, &*rig.store).await;
        assert_eq!(tap.take().await.len(), 1, "{kind:?}");
    }
}
