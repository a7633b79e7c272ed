//! Records in a caller's own transaction: they come with it or not at all.

use mainspring_core::Error;
use mainspring_core::id::Claim;
use mainspring_core::job::Outcome;
use mainspring_core::journal::{Child, Entry, EntryKind, OnClose, Recorded, Recording, Writes};
use mainspring_core::name::Key;
use mainspring_testkit::harness::succeed;

use crate::client::{ALL, Client};
use crate::support::{Rig, empty};

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

fn key(text: &str) -> Key {
    Key::new(text).expect("a key")
}

fn step(claim: Claim, text: &str) -> Recording {
    let entry =
        Entry { key: key(text), kind: EntryKind::Value, overlapped: true, value: b"7".to_vec(), took: None };
    let writes = Writes { entries: vec![entry], ..Writes::default() };
    Recording { claim, writes, children: Vec::new() }
}

async fn keys(rig: &Rig, claim: Claim) -> Vec<String> {
    let timeline = rig.store.timeline(claim.id).await.expect("timeline").expect("the job is known");
    timeline.entries.iter().map(|entry| entry.key.to_string()).collect()
}

#[tokio::test]
async fn a_record_comes_with_the_transaction_or_not_at_all() {
    each(async |rig, client| {
        let (node, claim) = rig.running().await;
        let ticket = rig.store.ticket();
        for (text, commits) in [("a", true), ("b", false)] {
            let mut tx = client.begin().await;
            tx.run("SET LOCAL synchronous_commit = off; INSERT INTO orders VALUES (1)").await;
            assert_eq!(
                tx.record(&ticket, node, step(claim, text)).await.expect("recorded"),
                Recorded::Stored
            );
            if commits {
                tx.commit().await;
            } else {
                tx.rollback().await;
            }
        }
        assert_eq!(keys(rig, claim).await, ["a"]);
        assert_eq!(rig.sql("SELECT * FROM orders").len(), 1);
        rig.end(node, claim, Outcome::Release).await;
        let claimed = rig.claim(node, 1).await.remove(0);
        assert_eq!(claimed.journal.expect("a journal").entries.len(), 1);
        rig.end(node, claimed.claim, succeed()).await;
    })
    .await;
}

/// The record locks its claim. A client that is cut off before it commits would keep that lock for as long as its server
/// believes in the connection: the job could neither end nor be rescued.
#[tokio::test]
async fn a_client_that_is_gone_before_its_commit_holds_nobody_up() {
    each(async |rig, client| {
        let (node, claim) = rig.running().await;
        let ticket = rig.store.ticket();
        for (set, bound) in [("0", "5s"), ("1h", "5s"), ("2s", "2s")] {
            let mut tx = client.begin().await;
            tx.run(&format!("SET LOCAL idle_in_transaction_session_timeout = '{set}'")).await;
            let recorded = tx.record(&ticket, node, step(claim, "a")).await.expect("recorded");
            assert_eq!(recorded, Recorded::Stored);
            let now = "current_setting('idle_in_transaction_session_timeout')";
            tx.run(&format!("DO $$ BEGIN ASSERT {now} = '{bound}', {now}; END $$")).await;
            tx.rollback().await;
        }
    })
    .await;
}

#[tokio::test]
async fn a_stale_claim_records_nothing_and_spares_the_transaction() {
    each(async |rig, client| {
        let (node, claim) = rig.running().await;
        rig.lose(node).await;
        let ticket = rig.store.ticket();
        let mut tx = client.begin().await;
        let recorded = tx.record(&ticket, node, step(claim, "a")).await.expect("an answer");
        assert_eq!(recorded, Recorded::LeaseLost);
        tx.run("INSERT INTO orders VALUES (1)").await;
        tx.rollback().await;
        assert!(keys(rig, claim).await.is_empty());
    })
    .await;
}

#[tokio::test]
async fn a_record_that_is_there_cannot_be_committed_again() {
    each(async |rig, client| {
        let (node, claim) = rig.running().await;
        let ticket = rig.store.ticket();
        rig.store.record(node, vec![step(claim, "a")]).await.expect("record");
        let mut tx = client.begin().await;
        let error = tx.record(&ticket, node, step(claim, "a")).await.expect_err("it is there");
        assert!(error.to_string().contains("stored already"), "{error}");
        tx.rollback().await;
        // What is taken back makes room.
        let mut again = step(claim, "a");
        again.writes.forget = vec![key("a")];
        let mut tx = client.begin().await;
        assert_eq!(tx.record(&ticket, node, again).await.expect("recorded"), Recorded::Stored);
        tx.commit().await;
        assert_eq!(keys(rig, claim).await, ["a"]);
    })
    .await;
}

#[tokio::test]
async fn what_cannot_be_part_of_a_transaction_is_refused() {
    each(async |rig, client| {
        let (node, claim) = rig.running().await;
        let ticket = rig.store.ticket();
        let mut child = step(claim, "a");
        child.children = vec![Child { job: rig.job(), on_close: OnClose::Cancel }];
        let mut reads = step(claim, "a");
        reads.writes.read = vec![1];
        let mut tx = client.begin().await;
        for recording in [child, reads] {
            let error = tx.record(&ticket, node, recording).await.expect_err("refused");
            assert!(matches!(error, Error::NotInTransaction { .. }), "{error}");
        }
        tx.rollback().await;
        let elsewhere = empty();
        let mut foreign = Client::connect(ALL[0], &elsewhere.url()).await;
        let mut tx = foreign.begin().await;
        let error = tx.record(&ticket, node, step(claim, "a")).await.expect_err("another store");
        assert!(matches!(error, Error::ForeignTransaction { .. }), "{error}");
        tx.rollback().await;
        assert!(keys(rig, claim).await.is_empty());
    })
    .await;
}

/// While a caller's transaction has recorded and not committed, its claim cannot be taken away; all others can.
#[tokio::test]
async fn an_open_record_holds_its_own_claim_only() {
    each(async |rig, client| {
        rig.put_many(2).await;
        let node = rig.node().await;
        let claims: Vec<Claim> = rig.claim(node, 2).await.iter().map(|job| job.claim).collect();
        let ticket = rig.store.ticket();
        let mut tx = client.begin().await;
        assert_eq!(tx.record(&ticket, node, step(claims[0], "a")).await.expect("recorded"), Recorded::Stored);
        let rescued = rig.lose(node).await;
        assert_eq!((rescued.returned, rescued.more), (1, true));
        tx.commit().await;
        let rescuer = rig.node().await;
        assert_eq!(rig.rescue(rescuer).await.returned, 1);
        assert_eq!(keys(rig, claims[0]).await, ["a"]);
    })
    .await;
}
