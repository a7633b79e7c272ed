//! Transactions that stay open: nobody but who wants the very same key notices them.

use mainspring_core::job::{State, Verb, When};
use mainspring_core::store::{QueueChange, Receipt};
use mainspring_testkit::harness::{SECOND, fail, kind, label, queue, retry, succeed};

use crate::client::{ALL, Client, Kind};
use crate::support::{Rig, put, soon};

#[tokio::test]
async fn a_batch_is_stored_but_for_the_one_whose_key_is_in_an_open_transaction() {
    for client in ALL {
        for commits in [true, false] {
            let rig = Rig::new();
            let other = rig.other();
            let mut client = Client::connect(client, &rig.database.url()).await;
            let mut tx = client.begin().await;
            let held = rig.keyed("k");
            let holder = held.id;
            assert_eq!(tx.put(&*rig.store, held).await, Receipt::Created);

            let wanting = rig.keyed("k");
            let batch = vec![rig.job(), wanting.clone(), rig.keyed("other"), rig.job()];
            let receipts = soon("the others", other.enqueue(batch)).await.expect("enqueue");
            let expected = [Receipt::Created, Receipt::Contended, Receipt::Created, Receipt::Created];
            assert_eq!(receipts, expected);
            assert!(rig.find(wanting.id).await.is_none(), "it was set aside");
            assert_eq!(rig.count(State::Ready).await, 3);

            if commits {
                tx.commit().await;
            } else {
                tx.rollback().await;
            }
            let receipt = if commits { Receipt::Existing(holder) } else { Receipt::Created };
            assert_eq!(put(&*other, wanting).await, receipt);
            assert_eq!(rig.count(State::Ready).await, 4);
            rig.assert_sound().await;
        }
    }
}

#[tokio::test]
async fn new_names_in_an_open_transaction_stall_nobody() {
    let rig = Rig::new();
    let other = rig.other();
    let mut client = Client::connect(Kind::Sqlx, &rig.database.url()).await;
    let mut tx = client.begin().await;
    let named = |name: &str| {
        rig.job_with(|job| {
            job.queue = queue(name);
            job.kind = kind("k2");
            job.options.labels = vec![label("gpu")];
        })
    };
    tx.put(&*rig.store, named("fresh")).await;
    assert_eq!(soon("the same names", put(&*other, named("fresh"))).await, Receipt::Created);
    assert_eq!(soon("another queue", put(&*other, named("fresher"))).await, Receipt::Created);
    let known = soon("queues", other.queues()).await.expect("queues");
    assert!(known.iter().any(|known| known.name == queue("fresh")));
    let pause = QueueChange { paused: Some(true), ..QueueChange::default() };
    soon("its settings", other.configure(queue("fresh"), pause)).await.expect("configured");
    // A second transaction, with the names of the first.
    let mut second = Client::connect(Kind::Tokio, &rig.database.url()).await;
    let mut second = second.begin().await;
    soon("a second transaction", second.put(&*other, named("fresh"))).await;
    second.commit().await;
    tx.commit().await;
    let counts = rig.counts().await;
    assert_eq!(counts.0[&queue("fresh")][&State::Ready], 3);
    rig.assert_sound().await;
}

/// All that nodes and operators do goes on, also with jobs of the kind, the queue and the tags of the open transaction.
#[tokio::test]
async fn everything_goes_on_beside_an_open_transaction() {
    let rig = Rig::new();
    let mut client = Client::connect(Kind::Tokio, &rig.database.url()).await;
    let mut tx = client.begin().await;
    let doomed = rig.job_with(|job| job.deadline = Some(When::After(SECOND)));
    let delayed = rig.job_with(|job| job.run = Some(When::After(SECOND)));
    tx.enlist(&*rig.store, vec![rig.keyed("k"), rig.job(), doomed, delayed]).await.expect("enlisted");

    let life = async {
        let node = rig.node().await;
        let ids = rig.put_many(4).await;
        rig.put(rig.job_with(|job| job.run = Some(When::After(SECOND)))).await;
        rig.put(rig.job_with(|job| job.deadline = Some(When::After(SECOND)))).await;
        let claims: Vec<_> = rig.claim(node, 3).await.into_iter().map(|job| job.claim).collect();
        rig.end(node, claims[0], succeed()).await;
        rig.end(node, claims[1], fail()).await;
        rig.end(node, claims[2], retry(SECOND * 9)).await;
        rig.apply(ids[3], Verb::Cancel { why: String::new() }).await;
        rig.apply(ids[1], Verb::Retry).await;
        rig.renew(node).await;
        rig.advance(SECOND);
        assert_eq!((rig.promote().await, rig.expire().await), (1, 1));
        let running = rig.claim(node, 1).await;
        assert_eq!(running.len(), 1);
        // Fourteen days and more: what has ended is pruned, and the node is lost.
        rig.advance(SECOND * 86_400 * 100);
        let second = rig.node().await;
        rig.rescue(second).await;
        assert!(rig.prune().await >= 2, "what ended is pruned");
        rig.assert_sound().await;
    };
    soon("a whole life", life).await;
    tx.commit().await;
    let node = rig.node().await;
    assert_eq!(rig.expire().await, 1, "the committed one has missed its deadline");
    assert!(!rig.claim(node, 100).await.is_empty());
    rig.assert_sound().await;
}

/// Two callers who take two keys in opposite order: one of them is told to begin anew, and nobody waits for ever.
#[tokio::test]
async fn callers_who_want_each_others_keys_do_not_wait_for_ever() {
    let rig = Rig::new();
    let url = rig.database.url();
    let (mut one, mut two) =
        (Client::connect(Kind::Tokio, &url).await, Client::connect(Kind::Sqlx, &url).await);
    let (mut one, mut two) = (one.begin().await, two.begin().await);
    one.put(&*rig.store, rig.keyed("a")).await;
    two.put(&*rig.store, rig.keyed("b")).await;
    let first = async {
        let answer = one.enlist(&*rig.store, vec![rig.keyed("b")]).await;
        if answer.is_ok() {
            one.commit().await;
        } else {
            one.rollback().await;
        }
        answer
    };
    let second = async {
        let answer = two.enlist(&*rig.store, vec![rig.keyed("a")]).await;
        if answer.is_ok() {
            two.commit().await;
        } else {
            two.rollback().await;
        }
        answer
    };
    let answers = tokio::join!(first, second);
    let failed: Vec<_> = [answers.0, answers.1].into_iter().filter_map(Result::err).collect();
    assert_eq!(failed.len(), 1, "{failed:?}");
    assert!(failed[0].is_retryable() && format!("{:?}", failed[0]).contains("40P01"), "{failed:?}");
    assert_eq!(rig.count(State::Ready).await, 2);
    rig.assert_sound().await;
}

/// What a savepoint takes back is gone, with its key; what comes after it is kept.
#[tokio::test]
async fn a_savepoint_that_is_rolled_back_takes_its_jobs_along() {
    for client in ALL {
        let rig = Rig::new();
        let mut client = Client::connect(client, &rig.database.url()).await;
        let mut tx = client.begin().await;
        let (gone, kept) = (rig.keyed("gone"), rig.keyed("kept"));
        let ids = [gone.id, kept.id];
        tx.run("SAVEPOINT one").await;
        assert_eq!(tx.put(&*rig.store, gone).await, Receipt::Created);
        tx.run("ROLLBACK TO one").await;
        assert_eq!(tx.put(&*rig.store, kept).await, Receipt::Created);
        assert_eq!(rig.enqueue(rig.keyed("gone")).await, Receipt::Created, "it is free before the end");
        tx.commit().await;
        assert!(rig.find(ids[0]).await.is_none());
        assert_eq!(rig.status(ids[1]).await.state, State::Ready);
        rig.assert_sound().await;
    }
}

/// An id that is enqueued again while the transaction that brings it is still open: a request that was repeated.
#[tokio::test]
async fn a_repeated_id_of_an_open_transaction_is_set_aside() {
    for commits in [true, false] {
        let rig = Rig::new();
        let mut client = Client::connect(Kind::Tokio, &rig.database.url()).await;
        let mut tx = client.begin().await;
        let (plain, keyed) = (rig.job(), rig.keyed("k"));
        tx.enlist(&*rig.store, vec![plain.clone(), keyed.clone()]).await.expect("enlisted");
        let batch = vec![rig.job(), plain.clone(), rig.keyed("other")];
        let receipts = soon("the others", rig.store.enqueue(batch)).await.expect("enqueue");
        assert_eq!(receipts, [Receipt::Created, Receipt::Contended, Receipt::Created]);
        // It is asked for again and again, and holds nobody up any more.
        let again = async {
            for _ in 0..20 {
                assert_eq!(rig.enqueue(plain.clone()).await, Receipt::Contended);
                assert_eq!(rig.enqueue(keyed.clone()).await, Receipt::Contended);
                assert_eq!(rig.enqueue(rig.job()).await, Receipt::Created);
            }
        };
        soon("all of them", again).await;
        if commits {
            tx.commit().await;
        } else {
            tx.rollback().await;
        }
        let told = if commits { Receipt::Repeated } else { Receipt::Created };
        assert_eq!(rig.enqueue_all(vec![plain, keyed]).await, [told; 2]);
        assert_eq!(rig.count(State::Ready).await, 24);
        rig.assert_sound().await;
    }
}
