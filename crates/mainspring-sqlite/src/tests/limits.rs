//! Limits: what claims take, who is let in, and what a plain job pays.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use mainspring_core::Error;
use mainspring_core::id::{JobId, NodeNo};
use mainspring_core::job::{Fault, FaultKind, New, Outcome, Reason, State as JobState, Verb};
use mainspring_core::limit::{Change, LimitUse, Rate, Total};
use mainspring_core::name::{Kind, LimitName, QueueName};
use mainspring_core::store::{Changed, Claimed, Enlist, Finish, Limits, Nodes, Operators, Producers};

use rusqlite::Connection;
use rusqlite::hooks::{AuthAction, AuthContext, Authorization};

use super::support::{Fixture, block_on, claim, job, registration};
use crate::op::{self, enqueue};
use crate::writer::{State, Tx};

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
    assert_eq!(block_on(it.store.counts()).expect("counts").total(JobState::Succeeded), 5);
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

#[test]
fn limited_jobs_that_no_turn_leads_to_are_found() {
    let it = Fixture::new();
    max(&it, "gpu", 10);
    let node = node(&it);
    let put = |key: &str| {
        let new = limited(&it, &[("gpu", key, 1)]);
        let id = new.id;
        block_on(it.store.enqueue(vec![new])).expect("enqueued");
        id
    };
    let reason = |id| block_on(it.store.get(id)).expect("read").expect("a job").summary.status.reason;
    let damage = |sql: &str, id: JobId| {
        let sql = format!("{sql} (SELECT no FROM mainspring_jobs WHERE id = ?1)");
        assert_eq!(it.raw().execute(&sql, [id.as_bytes()]).expect("damage"), 1);
    };
    // A claim that comes for a job whose level is none finds it.
    let bad = put("a");
    damage("UPDATE mainspring_limited SET level = 99 WHERE no =", bad);
    assert_eq!(take(&it, node, 1).len(), 0);
    assert_eq!(reason(bad), Some(Reason::Unreadable));
    // A prune finds those whose line or group is none, and groups that have lost their turn.
    for (batch, column) in (2..).zip(["line", "limit_group"]) {
        let (bad, good) = (put("b"), put("b"));
        damage(&format!("UPDATE mainspring_limited SET {column} = 999 WHERE no ="), bad);
        let claimed = take(&it, node, batch);
        assert_eq!(claimed.iter().map(|job| job.claim.id).collect::<Vec<_>>(), [good]);
        block_on(it.store.prune(10)).expect("pruned");
        assert_eq!(reason(bad), Some(Reason::Unreadable), "{column}");
        let resumed = block_on(it.store.change(vec![bad], Verb::Resume, false)).expect("changed");
        assert!(matches!(resumed[..], [Changed::Applied { .. }]), "{resumed:?}");
        it.assert_sound();
        assert_eq!(take(&it, node, 10 * batch).len(), 1);
    }
    put("c");
    it.raw().execute("DELETE FROM mainspring_group_turns", []).expect("damage");
    let found = block_on(it.store.check()).expect("a check");
    assert!(found.iter().any(|finding| finding.what.contains("has no turn")), "{found:?}");
    assert_eq!(take(&it, node, 100).len(), 0);
    block_on(it.store.prune(10)).expect("pruned");
    assert_eq!(take(&it, node, 101).len(), 1);
}

#[test]
fn counters_that_are_wrong_are_told() {
    let it = Fixture::new();
    max(&it, "gpu", 1);
    let total = Total::Queue(QueueName::new("q").expect("a queue"));
    block_on(it.store.set_total(total, Some(5), "test".into())).expect("set");
    block_on(it.store.enqueue((0..2).map(|_| limited(&it, &[("gpu", "", 1)])).collect())).expect("enqueued");
    let node = node(&it);
    take(&it, node, 1);
    it.assert_sound();
    for (damage, mend, what) in [
        (
            "UPDATE mainspring_limit_keys SET in_use = in_use + 3",
            "UPDATE mainspring_limit_keys SET in_use = in_use - 3",
            "units in use",
        ),
        (
            "UPDATE mainspring_limit_keys SET in_use = in_use + 3",
            "UPDATE mainspring_limit_keys SET in_use = in_use - 3",
            "the total of queue `q`",
        ),
        (
            "UPDATE mainspring_limit_keys SET max = 7",
            "UPDATE mainspring_limit_keys SET max = NULL",
            "which has room for 1",
        ),
        (
            "UPDATE mainspring_limit_holders SET no = 2",
            "UPDATE mainspring_limit_holders SET no = 1",
            "neither runs nor keeps",
        ),
    ] {
        it.raw().execute(damage, []).expect("damage");
        let found = block_on(it.store.check()).expect("a check");
        assert!(found.iter().any(|finding| finding.what.contains(what)), "{what}: {found:?}");
        it.raw().execute(mend, []).expect("mended");
        it.assert_sound();
    }
}

/// A node that runs plain jobs, as its row.
const NODE: &str = r#"INSERT INTO mainspring_nodes
    (no, id, name, version, pid, lock, abilities, queues, lease, started_at, renewed_at, lease_until, state)
    VALUES (1, zeroblob(16), 'n', 'v', 7, '', '{"kinds":["k"],"labels":[]}', '[["q",10]]', 15000000, 1, 1, 9000000000000000, 0)"#;

/// What statements name, that were prepared since: tables that they read, and tables that they write.
type TablesNamed = Arc<Mutex<(BTreeSet<String>, BTreeSet<String>)>>;

fn listen(conn: &Connection) -> TablesNamed {
    let named = TablesNamed::default();
    let heard = Arc::clone(&named);
    conn.authorizer(Some(move |context: AuthContext<'_>| {
        let mut heard = heard.lock().expect("nobody panics here");
        match context.action {
            AuthAction::Read { table_name, .. } => drop(heard.0.insert(table_name.to_owned())),
            AuthAction::Insert { table_name }
            | AuthAction::Update { table_name, .. }
            | AuthAction::Delete { table_name } => drop(heard.1.insert(table_name.to_owned())),
            _ => {}
        }
        Authorization::Allow
    }))
    .expect("an authorizer");
    named
}

#[test]
fn plain_jobs_look_for_turns_and_touch_nothing_else_of_limits() {
    let conn = Connection::open_in_memory().expect("a connection");
    conn.execute_batch(include_str!("../schema/0001.sql")).expect("the schema");
    conn.execute_batch(NODE).expect("a node");
    let it = Fixture::new();
    let named = listen(&conn);
    let mut state = State::default();
    let mut tx = Tx::new(&conn, &mut state, it.seams.clock.now());
    let jobs: Vec<New> = (0..10).map(|_| job(&it.seams)).collect();
    enqueue::run(&mut tx, &jobs).expect("enqueued");
    let claimed = op::claim::run(&mut tx, &claim(NodeNo(1), 1)).expect("claimed").jobs;
    assert_eq!(claimed.len(), 10);
    let outcomes = [
        Outcome::Succeed { result: None },
        Outcome::Release,
        Outcome::Snooze { after: Duration::from_secs(1) },
        Outcome::Retry { after: Duration::from_secs(1), fault: Fault::new(FaultKind::Error, "no route") },
        Outcome::Fail { fault: Fault::new(FaultKind::Error, "no route"), reason: Reason::Exhausted },
    ];
    let finish = |(job, outcome): (&Claimed, Outcome)| Finish { claim: job.claim, outcome };
    let finishes: Vec<Finish> = claimed.iter().zip(outcomes.into_iter().cycle()).map(finish).collect();
    op::finish::run(&mut tx, NodeNo(1), &finishes).expect("finished");
    tx.enlisted().expect("counted");
    let (read, written) = named.lock().expect("nobody panics here").clone();
    let of_limits = |tables: &BTreeSet<String>| -> Vec<String> {
        let of_limits = |table: &&String| table.contains("limit") || table.contains("group");
        tables.iter().filter(of_limits).cloned().collect()
    };
    assert!(
        read.contains("mainspring_ready") && written.contains("mainspring_lease"),
        "{read:?} {written:?}"
    );
    assert_eq!(of_limits(&read), ["mainspring_group_turns"]);
    assert_eq!(of_limits(&written), Vec::<String>::new());
}
