//! Records through the store: what they cost, and that what is quick is as right as what is thorough.

use std::sync::Arc;

use mainspring_core::id::{Claim, NodeNo};
use mainspring_core::job::Outcome;
use mainspring_core::journal::{Entry, EntryKind, Recorded, Recording, Writes};
use mainspring_core::name::Key;
use mainspring_testkit::harness::succeed;
use mainspring_testkit::postgres::{Counts, Proxy};

use crate::support::{Rig, database};

const FEW: usize = 8;
const MANY: usize = 40;

fn step(claim: Claim, text: &str) -> Recording {
    let key = Key::new(text).expect("a key");
    let entry = Entry { key, kind: EntryKind::Value, overlapped: false, value: b"7".to_vec(), took: None };
    Recording { claim, writes: Writes { entries: vec![entry], ..Writes::default() }, children: Vec::new() }
}

fn steps(claims: &[Claim], text: &str) -> Vec<Recording> {
    claims.iter().map(|claim| step(*claim, text)).collect()
}

async fn claims(rig: &Rig, count: usize) -> (NodeNo, Vec<Claim>) {
    let node = rig.node().await;
    rig.put_many(count).await;
    let mut claims: Vec<Claim> = rig.claim(node, count).await.iter().map(|claimed| claimed.claim).collect();
    // In no order that a store could count on.
    claims.sort_by_key(|claim| (claim.row.0 % 7, claim.row));
    (node, claims)
}

async fn record(rig: &Rig, node: NodeNo, recordings: Vec<Recording>) -> Vec<Recorded> {
    rig.store.record(node, recordings).await.expect("recorded")
}

async fn keys(rig: &Rig, claim: Claim) -> Vec<String> {
    let timeline = rig.store.timeline(claim.id).await.expect("timeline").expect("the job is known");
    timeline.entries.iter().map(|entry| entry.key.to_string()).collect()
}

#[tokio::test]
async fn a_flush_of_records_is_one_statement_and_nothing_is_read() {
    let database = Arc::new(database());
    let proxy = Proxy::start(database.server()).expect("a proxy");
    let rig = Rig::at(&database, &proxy.url(database.name()));
    for count in [1, FEW, MANY] {
        let (node, claims) = claims(&rig, count).await;
        for text in ["first", "second"] {
            // These may have statements to prepare.
            assert_eq!(record(&rig, node, steps(&claims, text)).await, vec![Recorded::Stored; count]);
        }
        let before = proxy.counts();
        for text in ["a", "b", "c"] {
            assert_eq!(record(&rig, node, steps(&claims, text)).await, vec![Recorded::Stored; count]);
        }
        let expected = Counts {
            batches: before.batches + 3,
            round_trips: before.round_trips + 3,
            // A statement by itself is a transaction.
            ..before
        };
        assert_eq!(proxy.counts(), expected, "{count} records");
        for claim in claims {
            assert_eq!(keys(&rig, claim).await, ["first", "second", "a", "b", "c"]);
            rig.end(node, claim, succeed()).await;
        }
        rig.store.retire(node).await.expect("retired");
    }
}

/// A claim that has recorded, and has ended since, takes none of its neighbours with it.
#[tokio::test]
async fn of_claims_that_have_recorded_each_gets_its_own_answer() {
    for count in [FEW, MANY] {
        let rig = Rig::new();
        let (node, mut claims) = claims(&rig, count).await;
        record(&rig, node, steps(&claims, "a")).await;
        let lost = [claims[1], claims[count - 2]];
        for claim in lost {
            rig.end(node, claim, Outcome::Release).await;
        }
        let answer = |claim: &Claim| {
            if lost.contains(claim) { Recorded::LeaseLost } else { Recorded::Stored }
        };
        let expected: Vec<Recorded> = claims.iter().map(answer).collect();
        assert_eq!(record(&rig, node, steps(&claims, "b")).await, expected);
        // The next claim of the same job: its number is another, and it has recorded nothing yet.
        let again: Vec<Claim> = rig.claim(node, 2).await.iter().map(|claimed| claimed.claim).collect();
        claims.retain(|claim| !lost.contains(claim));
        claims.extend(again);
        assert_eq!(record(&rig, node, steps(&claims, "c")).await, vec![Recorded::Stored; count]);
        // A repeat of some, with something new.
        let mut mixed = steps(&claims[..count / 2], "c");
        mixed.extend(steps(&claims[count / 2..], "d"));
        assert_eq!(record(&rig, node, mixed).await, vec![Recorded::Stored; count]);
        for (index, claim) in claims.iter().enumerate() {
            let lost = lost.iter().any(|lost| lost.id == claim.id);
            let mut expected = if lost { vec!["a", "c"] } else { vec!["a", "b", "c"] };
            expected.extend((index >= count / 2).then_some("d"));
            assert_eq!(keys(&rig, *claim).await, expected);
        }
        rig.assert_sound().await;
    }
}

/// Whoever crashed and records again has crashes no longer, also if an earlier claim of it recorded here.
#[tokio::test]
async fn a_record_after_a_crash_is_seen_by_the_next_rescue() {
    let rig = Rig::new();
    rig.put_one().await;
    for round in 0..4 {
        let node = rig.node().await;
        let claim = rig.claim_one(node).await;
        for step_no in 0..3 {
            let text = format!("{round} {step_no}");
            assert_eq!(record(&rig, node, vec![step(claim, &text)]).await, [Recorded::Stored]);
        }
        // Three crashes without a record would set it aside.
        rig.lose(node).await;
    }
    let node = rig.node().await;
    let claimed = rig.claim(node, 1).await.remove(0);
    assert_eq!(claimed.crashes, 1);
    assert_eq!(claimed.journal.expect("a journal").entries.len(), 12);
}
