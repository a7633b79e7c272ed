//! Jobs in a caller's own transaction: they come with it or not at all, and never break it.

use std::sync::Arc;
use std::time::Duration;

use mainspring_core::Error;
use mainspring_core::job::{New, OnConflict, State, Until, When};
use mainspring_core::journal::Value;
use mainspring_core::store::{Enlist, Filter, Receipt};
use mainspring_testkit::harness::{SECOND, kind, queue, succeed, tag};

use crate::client::{ALL, Client, Kind, connect};
use crate::support::{Rig, database, empty, unique, with};

/// Runs a fact with each client, on a fresh database that has a table of the application's own.
async fn each(fact: impl AsyncFn(&Rig, &mut Client)) {
    for kind in ALL {
        let rig = Rig::new();
        rig.sql("CREATE TABLE orders (id bigint)");
        let mut client = Client::connect(kind, &rig.database.url()).await;
        fact(&rig, &mut client).await;
        rig.assert_sound().await;
    }
}

fn orders(rig: &Rig) -> usize {
    rig.sql("SELECT * FROM orders").len()
}

#[tokio::test]
async fn a_committed_job_is_there_and_runs() {
    each(async |rig, client| {
        let job = rig.job_with(|job| job.input = b"[1]".to_vec());
        let id = job.id;
        let mut tx = client.begin().await;
        tx.run("INSERT INTO orders VALUES (1)").await;
        assert_eq!(tx.put(&*rig.store, job).await, Receipt::Created);
        assert!(rig.find(id).await.is_none(), "nobody sees it before the commit");
        let node = rig.node().await;
        assert!(rig.claim(node, 1).await.is_empty());
        tx.commit().await;
        assert_eq!((orders(rig), rig.count(State::Ready).await), (1, 1));
        let claimed = rig.claim(node, 1).await.remove(0);
        assert_eq!((claimed.claim.id, claimed.input), (id, Value::Here(b"[1]".to_vec())));
        rig.end(node, claimed.claim, succeed()).await;
        assert_eq!(rig.status(id).await.state, State::Succeeded);
    })
    .await;
}

#[tokio::test]
async fn a_rolled_back_job_leaves_nothing_behind() {
    each(async |rig, client| {
        let job = rig.job_with(|job| {
            job.options.unique = Some(unique("k"));
            job.options.tags = vec![tag("a")];
            job.deadline = Some(When::After(SECOND));
        });
        let mut tx = client.begin().await;
        tx.run("INSERT INTO orders VALUES (1)").await;
        assert_eq!(tx.put(&*rig.store, job.clone()).await, Receipt::Created);
        tx.rollback().await;
        assert!(rig.find(job.id).await.is_none());
        assert_eq!((orders(rig), rig.count(State::Ready).await), (0, 0));
        for table in ["jobs", "ready", "keys", "tags", "deadlines", "count_deltas"] {
            assert!(rig.sql(&format!("SELECT * FROM mainspring.{table}")).is_empty(), "{table}");
        }
        assert_eq!(rig.enqueue(rig.keyed("k")).await, Receipt::Created, "its key is free");
    })
    .await;
}

#[tokio::test]
async fn a_held_key_spares_the_transaction_and_its_other_rows() {
    each(async |rig, client| {
        let holder = rig.put(rig.keyed("k")).await;
        let mut rejecting = rig.keyed("k");
        rejecting.options.unique.as_mut().expect("a key").on_conflict = OnConflict::Reject;
        let (other, twice) = (rig.keyed("other"), rig.keyed("other"));
        let first = other.id;
        let mut tx = client.begin().await;
        tx.run("INSERT INTO orders VALUES (1)").await;
        let receipts = tx.enlist(&*rig.store, vec![rig.keyed("k"), rejecting, other, twice, rig.job()]).await;
        let expected = [
            Receipt::Existing(holder),
            Receipt::Rejected(holder),
            Receipt::Created,
            Receipt::Existing(first),
            Receipt::Created,
        ];
        assert_eq!(receipts.expect("enlisted"), expected);
        // A key that this transaction has taken itself, in a call of its own.
        assert_eq!(tx.put(&*rig.store, rig.keyed("other")).await, Receipt::Existing(first));
        tx.run("INSERT INTO orders VALUES (2)").await;
        tx.commit().await;
        assert_eq!((orders(rig), rig.count(State::Ready).await), (2, 3));
    })
    .await;
}

#[tokio::test]
async fn replacing_is_refused_and_the_transaction_goes_on() {
    each(async |rig, client| {
        let mut job = rig.keyed("k");
        job.options.unique.as_mut().expect("a key").on_conflict = OnConflict::Replace;
        let mut tx = client.begin().await;
        tx.run("INSERT INTO orders VALUES (1)").await;
        let error = tx.enlist(&*rig.store, vec![job]).await.expect_err("not in a transaction");
        assert!(matches!(error, Error::NotInTransaction { .. }), "{error}");
        assert_eq!(tx.put(&*rig.store, rig.keyed("k")).await, Receipt::Created);
        tx.commit().await;
        assert_eq!((orders(rig), rig.count(State::Ready).await), (1, 1));
    })
    .await;
}

#[tokio::test]
async fn a_repeated_id_is_stored_once() {
    each(async |rig, client| {
        let (stored, keyed, new) = (rig.job(), rig.keyed("k"), rig.job());
        rig.put(stored.clone()).await;
        rig.put(keyed.clone()).await;
        let mut tx = client.begin().await;
        // With and without keys, because these are two ways through the code; and one id twice in a batch.
        let (created, repeated) = (Receipt::Created, Receipt::Repeated);
        for (jobs, expected) in [
            (vec![stored.clone(), new.clone(), new.clone()], [repeated, created, repeated]),
            (vec![keyed.clone(), stored, new], [repeated; 3]),
        ] {
            let receipts = tx.enlist(&*rig.store, jobs).await.expect("enlisted");
            assert_eq!(receipts, expected);
        }
        tx.commit().await;
        assert_eq!(rig.count(State::Ready).await, 3);
    })
    .await;
}

#[tokio::test]
async fn delays_deadlines_tags_and_priorities_come_along() {
    each(async |rig, client| {
        let late = rig.job_with(|job| job.run = Some(When::After(SECOND * 10)));
        let dated = rig.job_with(|job| job.run = Some(When::At(rig.now().after(SECOND * 20))));
        let past = rig.job_with(|job| job.run = Some(When::At(rig.now().before(SECOND))));
        let doomed = rig.job_with(|job| {
            job.deadline = Some(When::After(SECOND * 5));
            job.options.tags = vec![tag("a"), tag("b")];
            job.queue = queue("q2");
            job.kind = kind("k2");
        });
        let ids = [&late, &dated, &past, &doomed].map(|job: &New| job.id);
        let mut tx = client.begin().await;
        tx.enlist(&*rig.store, vec![late, dated, past, doomed]).await.expect("enlisted");
        tx.commit().await;
        let mut states = Vec::new();
        for id in ids {
            states.push(rig.status(id).await.state);
        }
        assert_eq!(states, [State::Scheduled, State::Scheduled, State::Ready, State::Ready]);
        let tagged = Filter { tag: Some(tag("b")), ..Filter::default() };
        assert_eq!(rig.ids(&tagged).await, [ids[3]]);
        assert_eq!(rig.get(ids[3]).await.summary.deadline, Some(rig.now().after(SECOND * 5)));
        rig.advance(SECOND * 10);
        assert_eq!((rig.promote().await, rig.expire().await), (1, 1));
        assert_eq!(rig.status(ids[3]).await.state, State::Failed);
        rig.advance(SECOND * 10);
        assert_eq!(rig.promote().await, 1);
    })
    .await;
}

#[tokio::test]
async fn a_key_whose_period_has_ended_is_free() {
    each(async |rig, client| {
        let mut job = rig.keyed("k");
        job.options.unique.as_mut().expect("a key").until = Until::after(SECOND * 60);
        let id = rig.put(job).await;
        let node = rig.node().await;
        let claim = rig.claim_one(node).await;
        rig.end(node, claim, succeed()).await;
        let mut tx = client.begin().await;
        assert_eq!(tx.put(&*rig.store, rig.keyed("k")).await, Receipt::Existing(id));
        tx.commit().await;
        rig.advance(SECOND * 60);
        let mut tx = client.begin().await;
        assert_eq!(tx.put(&*rig.store, rig.keyed("k")).await, Receipt::Created);
        tx.commit().await;
    })
    .await;
}

#[tokio::test]
async fn a_foreign_transaction_is_refused_and_stays_usable() {
    let rig = Rig::new();
    let (bare, other) = (empty(), Arc::new(database()));
    // The other database was copied from the same template, and so would be the same store: it gets one of its own.
    other.sql("DROP SCHEMA mainspring CASCADE").expect("dropped");
    let _other_store = Rig::at(&other, &super::migrations::migrated(&other.url()));
    for kind in ALL {
        for database in [&bare, &*other] {
            database.sql("DROP TABLE IF EXISTS orders; CREATE TABLE orders (id bigint)").expect("a table");
            let mut client = Client::connect(kind, &database.url()).await;
            let mut tx = client.begin().await;
            let error = tx.enlist(&*rig.store, vec![rig.keyed("k")]).await.expect_err("another database");
            assert!(matches!(error, Error::ForeignTransaction { .. }), "{kind:?}: {error}");
            tx.run("INSERT INTO orders VALUES (1)").await;
            tx.commit().await;
            assert_eq!(database.sql("SELECT * FROM orders").expect("rows").len(), 1);
        }
    }
    assert!(other.sql("SELECT * FROM mainspring.jobs").expect("rows").is_empty());
}

#[tokio::test]
async fn another_schema_of_the_same_database_is_no_foreign_transaction() {
    let rig = Rig::new();
    let url = super::migrations::migrated(&with(&rig.database.url(), "schema=second"));
    let second = Rig::at(&rig.database, &url);
    for kind in ALL {
        let mut client = Client::connect(kind, &rig.database.url()).await;
        let mut tx = client.begin().await;
        // One transaction may take jobs for both, and the same key twice, once in each.
        let (one, two) = (rig.keyed(&format!("{kind:?}")), second.keyed(&format!("{kind:?}")));
        assert_eq!(tx.put(&*rig.store, one).await, Receipt::Created);
        assert_eq!(tx.put(&*second.store, two).await, Receipt::Created);
        // A ticket with the name of one schema and the id of the other store is a mistake.
        let job = rig.job();
        let mut ticket = rig.store.ticket_for(vec![job.clone()]).await.expect("a ticket");
        "second".clone_into(&mut ticket.schema);
        let error = tx.enlist_with(&ticket, vec![job]).await.expect_err("another store");
        assert!(matches!(error, Error::ForeignTransaction { .. }), "{error}");
        tx.commit().await;
    }
    assert_eq!((rig.count(State::Ready).await, second.count(State::Ready).await), (3, 3));
}

/// Handlers and web frameworks move their futures between threads.
#[tokio::test(flavor = "multi_thread")]
async fn every_clients_transaction_can_be_used_in_a_task() {
    for kind in ALL {
        let rig = Rig::new();
        let (store, job, url) = (Arc::clone(&rig.store), rig.keyed("k"), rig.database.url());
        let ticket = store.ticket_for(vec![job.clone()]).await.expect("a ticket");
        let task = async move {
            let mut client = Client::connect(kind, &url).await;
            match &mut client {
                Client::Tokio(client) => {
                    let mut tx = client.transaction().await.expect("begun");
                    tx.enlist(&ticket, vec![job]).await.expect("enlisted");
                    tx.commit().await.expect("committed");
                }
                Client::Deadpool(client) => {
                    let mut tx = client.transaction().await.expect("begun");
                    tx.enlist(&ticket, vec![job]).await.expect("enlisted");
                    tx.commit().await.expect("committed");
                }
                Client::Sqlx(client) => {
                    let mut tx = sqlx::Connection::begin(client).await.expect("begun");
                    tx.enlist(&ticket, vec![job]).await.expect("enlisted");
                    tx.commit().await.expect("committed");
                }
            }
        };
        #[expect(clippy::disallowed_methods, reason = "the application's own task")]
        tokio::spawn(task).await.expect("it ended");
        assert_eq!(rig.count(State::Ready).await, 1, "{kind:?}");
    }
}

/// Above READ COMMITTED a transaction does not see who took the key after it began. It must not take it as well.
#[tokio::test]
async fn a_key_taken_since_the_snapshot_is_a_serialization_failure() {
    for kind in ALL {
        for level in ["REPEATABLE READ", "SERIALIZABLE"] {
            let rig = Rig::new();
            let mut client = Client::connect(kind, &rig.database.url()).await;
            let mut tx = client.begin_at(level).await;
            tx.run("SELECT 1 FROM pg_class LIMIT 1").await;
            let holder = rig.put(rig.keyed("k")).await;
            let error = tx.enlist(&*rig.store, vec![rig.keyed("k")]).await.expect_err("not serializable");
            assert!(
                matches!(error, Error::Unavailable { .. }) && error.is_retryable(),
                "{kind:?}: {error:?}"
            );
            assert!(format!("{error:?}").contains("40001"), "{error:?}");
            tx.rollback().await;
            let mut tx = client.begin_at(level).await;
            assert_eq!(tx.put(&*rig.store, rig.keyed("k")).await, Receipt::Existing(holder));
            assert_eq!(tx.put(&*rig.store, rig.keyed("other")).await, Receipt::Created);
            tx.commit().await;
            assert_eq!(rig.count(State::Ready).await, 2);
            rig.assert_sound().await;
        }
    }
}

/// Two transactions that want one key at once: one of them gets it, at every level, whatever the other is told.
#[tokio::test]
async fn two_open_transactions_never_get_the_same_key() {
    for level in ["READ COMMITTED", "REPEATABLE READ", "SERIALIZABLE"] {
        let rig = Rig::new();
        let url = rig.database.url();
        let (mut one, mut two) =
            (Client::connect(Kind::Tokio, &url).await, Client::connect(Kind::Sqlx, &url).await);
        let mut first = one.begin_at(level).await;
        let (a, b) = (rig.keyed("k"), rig.keyed("k"));
        let holder = a.id;
        assert_eq!(first.put(&*rig.store, a).await, Receipt::Created);
        let watch = connect(&url).await;
        let waits = async {
            let waiting = "SELECT 1 FROM pg_locks WHERE locktype = 'advisory' AND NOT granted";
            crate::support::eventually("the second waits for the key", async || {
                !watch.query(waiting, &[]).await.expect("locks").is_empty()
            })
            .await;
            first.commit().await;
        };
        let second = async {
            let mut tx = two.begin_at(level).await;
            let receipt = tx.enlist(&*rig.store, vec![b]).await;
            if receipt.is_ok() {
                tx.commit().await;
            } else {
                tx.rollback().await;
            }
            receipt
        };
        let (receipt, ()) = tokio::join!(second, waits);
        match receipt {
            Ok(receipts) => assert_eq!(receipts, [Receipt::Existing(holder)], "{level}"),
            Err(error) => assert!(level != "READ COMMITTED" && error.is_retryable(), "{level}: {error:?}"),
        }
        assert_eq!(rig.count(State::Ready).await, 1);
        rig.assert_sound().await;
    }
}

#[tokio::test]
async fn a_committed_job_is_found_at_once_after_a_nudge_and_within_a_second_without() {
    for kind in ALL {
        let database = Arc::new(database());
        let rig = Rig::real(&database, &database.url());
        let listener = super::late_commits::subscribe(&rig).await;
        let mut client = Client::connect(kind, &database.url()).await;
        let node = rig.node().await;
        // The node waits for work in this queue, which is known.
        rig.put_one().await;
        crate::support::eventually("a first job", async || rig.claim(node, 10).await.len() == 1).await;
        let mut shortest = Duration::MAX;
        for nudge in [false, true, true, true] {
            let job = rig.job();
            let id = job.id;
            let mut tx = client.begin().await;
            tx.put(&*rig.store, job).await;
            tx.commit().await;
            if nudge {
                rig.store.nudge(id);
            }
            let found = crate::support::eventually("the job", async || !rig.claim(node, 1).await.is_empty());
            let took = found.await;
            assert!(took < Duration::from_secs(3), "{kind:?}: {took:?}");
            if nudge {
                shortest = shortest.min(took);
            }
        }
        // The best of three, because the machine may be busy.
        assert!(shortest < Duration::from_millis(300), "{kind:?}: {shortest:?}");
        drop(listener);
    }
}
