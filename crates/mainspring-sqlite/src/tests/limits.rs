//! Limits: what claims take, who is let in, and what a plain job pays.

use std::collections::BTreeSet;
use std::time::Duration;

use mainspring_core::Error;
use mainspring_core::id::{JobId, NodeNo};
use mainspring_core::job::{New, Outcome, State};
use mainspring_core::limit::{Change, LimitUse, Rate, Total};
use mainspring_core::name::{Kind, LimitName, QueueName};
use mainspring_core::store::{Claimed, Enlist, Finish, Limits, Nodes, Operators, Producers};

use super::support::{Fixture, block_on, claim, job, registration};

fn limit(name: &str) -> LimitName {
    LimitName::new(name).expect("a name")
}

fn max(it: &Fixture, name: &str, max: u32) {
    let change = Change { max: Some(Some(max)), ..Change::default() };
    block_on(it.store.set_limit(limit(name), change, "test".into())).expect("a limit");
}

fn limited(it: &Fixture, uses: &[(&str, &str, u16)]) -> New {
    let mut new = job(&it.seams);
    new.options.limits =
        uses.iter().map(|(name, key, units)| LimitUse::new(limit(name)).key(*key).units(*units)).collect();
    new
}

fn node(it: &Fixture) -> NodeNo {
    block_on(it.store.register(registration(&it.seams))).expect("a node").no
}

fn take(it: &Fixture, node: NodeNo, batch: u64) -> Vec<Claimed> {
    block_on(it.store.claim(claim(node, batch))).expect("a claim").jobs
}

fn succeed(it: &Fixture, node: NodeNo, jobs: &[Claimed]) {
    let finish = |job: &Claimed| Finish { claim: job.claim, outcome: Outcome::Succeed { result: None } };
    block_on(it.store.finish(node, jobs.iter().map(finish).collect())).expect("finished");
}

#[test]
fn claims_take_what_their_end_gives_back() {
    let it = Fixture::new();
    max(&it, "gpu", 2);
    let jobs: Vec<New> = (0..5).map(|_| limited(&it, &[("gpu", "", 1)])).collect();
    let ids: Vec<JobId> = jobs.iter().map(|job| job.id).collect();
    block_on(it.store.enqueue(jobs)).expect("enqueued");
    it.assert_sound();
    let node = node(&it);
    let mut seen = Vec::new();
    for batch in 1..=3 {
        let claimed = take(&it, node, 2 * batch);
        assert!(take(&it, node, 2 * batch + 1).is_empty(), "no room");
        it.assert_sound();
        seen.extend(claimed.iter().map(|job| job.claim.id));
        succeed(&it, node, &claimed);
        it.assert_sound();
    }
    assert_eq!(seen, ids, "in order");
    assert_eq!(block_on(it.store.counts()).expect("counts").total(State::Succeeded), 5);
}

#[test]
fn groups_of_many_keys_get_what_each_key_has_room_for() {
    let it = Fixture::new();
    max(&it, "tenant", 1);
    max(&it, "all", 3);
    let keys: Vec<String> = (0..6).map(|key| key.to_string()).collect();
    let jobs: Vec<New> = keys
        .iter()
        .flat_map(|key| {
            (0..3).map(|_| limited(&it, &[("all", "", 1), ("tenant", key, 1)])).collect::<Vec<_>>()
        })
        .collect();
    block_on(it.store.enqueue(jobs)).expect("enqueued");
    let node = node(&it);
    let (mut batch, mut done) = (0, 0);
    loop {
        batch += 1;
        let claimed = take(&it, node, batch);
        if claimed.is_empty() {
            break;
        }
        assert_eq!(claimed.len(), 3.min(18 - done), "as many as all of them may be, after {done}");
        let of: BTreeSet<_> = claimed.iter().map(|job| job.options.limits[1].key.clone()).collect();
        assert_eq!(of.len(), claimed.len(), "of each tenant one");
        it.assert_sound();
        done += claimed.len();
        succeed(&it, node, &claimed);
        it.assert_sound();
    }
    assert_eq!(done, 18);
}

#[test]
fn tokens_let_in_on_time() {
    let it = Fixture::new();
    let rate = Rate::new(1, Duration::from_secs(10));
    let change = Change { rate: Some(Some(rate)), ..Change::default() };
    block_on(it.store.set_limit(limit("api"), change, "test".into())).expect("a limit");
    block_on(it.store.enqueue((0..3).map(|_| limited(&it, &[("api", "", 1)])).collect())).expect("enqueued");
    let node = node(&it);
    assert_eq!(take(&it, node, 1).len(), 1);
    assert_eq!(take(&it, node, 2).len(), 0);
    it.assert_sound();
    for batch in 2..4 {
        let swept = block_on(it.store.promote(100)).expect("promoted");
        let wait = swept.next.expect("a time").since(swept.now);
        assert_eq!(wait, Duration::from_secs(10));
        it.clock.advance(wait);
        block_on(it.store.promote(100)).expect("promoted");
        assert_eq!(take(&it, node, 2 * batch).len(), 1);
        assert_eq!(take(&it, node, 2 * batch + 1).len(), 0);
        it.assert_sound();
    }
    assert_eq!(block_on(it.store.promote(100)).expect("promoted").next, None);
}

#[test]
fn a_total_counts_claims_that_were_there_before() {
    let it = Fixture::new();
    block_on(it.store.enqueue((0..6).map(|_| job(&it.seams)).collect())).expect("enqueued");
    let node = node(&it);
    let mut request = claim(node, 1);
    request.queues[0].1 = 2;
    let first = block_on(it.store.claim(request)).expect("a claim").jobs;
    for total in
        [Total::Queue(QueueName::new("q").expect("a queue")), Total::Kind(Kind::new("k").expect("a kind"))]
    {
        block_on(it.store.set_total(total, Some(3), "test".into())).expect("set");
    }
    it.assert_sound();
    let second = take(&it, node, 2);
    assert_eq!(second.len(), 1);
    it.assert_sound();
    succeed(&it, node, &first);
    it.assert_sound();
    assert_eq!(take(&it, node, 3).len(), 2);
    let uses: Vec<_> =
        block_on(it.store.totals()).expect("totals").iter().map(|total| (total.max, total.in_use)).collect();
    assert_eq!(uses, [(3, 3), (3, 3)]);
    let queue = Total::Queue(QueueName::new("q").expect("a queue"));
    block_on(it.store.set_total(queue, None, "test".into())).expect("set");
    it.assert_sound();
    let kind = Total::Kind(Kind::new("k").expect("a kind"));
    block_on(it.store.set_total(kind, None, "test".into())).expect("set");
    assert_eq!(take(&it, node, 4).len(), 1);
    it.assert_sound();
}

#[test]
fn limited_jobs_come_with_an_applications_transaction() {
    let it = Fixture::new();
    max(&it, "gpu", 1);
    let mut conn = it.raw();
    let mut tx = conn.transaction().expect("a transaction");
    let jobs = vec![limited(&it, &[("gpu", "a", 1)]), limited(&it, &[("gpu", "b", 1)]), job(&it.seams)];
    block_on(tx.enlist(&it.store.ticket(), jobs)).expect("enlisted");
    let refused =
        block_on(tx.enlist(&it.store.ticket(), vec![job(&it.seams), limited(&it, &[("cpu", "", 1)])]));
    assert!(matches!(refused, Err(Error::UnknownLimit { .. })), "{refused:?}");
    tx.commit().expect("committed");
    it.assert_sound();
    let node = node(&it);
    assert_eq!(take(&it, node, 1).len(), 3);
    it.assert_sound();
}

#[test]
fn what_nobody_names_is_removed() {
    let it = Fixture::new();
    max(&it, "tenant", 1);
    let jobs = (0..20).map(|key| limited(&it, &[("tenant", &key.to_string(), 1)])).collect();
    block_on(it.store.enqueue(jobs)).expect("enqueued");
    let rows = || {
        let count = |table: &str| -> i64 {
            let sql = format!("SELECT count(*) FROM mainspring_{table}");
            it.raw().query_row(&sql, [], |row| row.get(0)).expect("a count")
        };
        (count("limit_groups"), count("limit_key_groups"), count("limit_keys"))
    };
    block_on(it.store.prune(10)).expect("pruned");
    assert_eq!(rows(), (20, 20, 20));
    let node = node(&it);
    let claimed = take(&it, node, 1);
    block_on(it.store.prune(10)).expect("pruned");
    assert_eq!(rows(), (20, 20, 20));
    succeed(&it, node, &claimed);
    block_on(it.store.prune(10)).expect("pruned");
    assert_eq!(rows(), (10, 10, 10));
    block_on(it.store.enqueue(vec![limited(&it, &[("tenant", "0", 1)])])).expect("enqueued again");
    it.assert_sound();
    assert_eq!(take(&it, node, 2).len() + take(&it, node, 3).len(), 11);
    it.assert_sound();
}
