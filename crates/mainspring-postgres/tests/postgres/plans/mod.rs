//! How Postgres runs the store's statements when there are a million jobs.
//!
//! The calls are the store's own, on its own sessions, with real arguments; the server logs the plan of each statement and
//! what it touched. No statement may walk over a table that grows with the number of jobs, and what it touches depends on
//! how much was asked for, not on how much there is.
#![expect(clippy::print_stdout, reason = "a run tells what each call cost")]

mod fill;
mod plan;

use std::time::Duration;

use fill::Site;
use mainspring_core::Result;
use mainspring_core::id::{Claim, ClaimBatchNo, JobId};
use mainspring_core::job::{OnConflict, Outcome, Reason, State, Unique, Until};
use mainspring_core::journal::{
    Child, Entry, EntryKind, OnClose, Recorded, Recording, Signal, Subject, Suspension, Wait, Writes,
};
use mainspring_core::name::{Key, LimitName, SignalName};
use mainspring_core::store::{ClaimRequest, Filter, Finish, Page, Renewal, Rescue};
use mainspring_core::time::Timestamp;
use mainspring_postgres::statements;
use mainspring_testkit::executor::block_on;
use mainspring_testkit::harness::{cancel, fail, priority, queue, retry, succeed, tag};
use plan::{Cost, Plan};
use postgres::{Client, NoTls, SimpleQueryMessage};

/// Rows of a node of a plan: some for each job asked for. All that run may be looked at, and there are two thousand; so may
/// a part of a listing.
const ROWS: u64 = 5_000;
/// Pages for each of them: the levels of some indexes, and the rows behind them.
const PAGES_EACH: u64 = 30;
/// Jobs that a call asks for.
const SOME: usize = 100;

/// The settings of sessions that are planned once.
const HOT: &str =
    "SET plan_cache_mode = force_generic_plan; SET enable_seqscan = off; SET enable_hashjoin = off;
    SET enable_mergejoin = off; SET enable_bitmapscan = off; SET enable_material = off; SET jit = off;";

/// One call, and the indexes that serve it.
fn check<T>(site: &Site, name: &str, indexes: &[&str], call: impl FnOnce() -> Result<T>) -> T {
    let before = site.server.log().expect("a log").len();
    let answer = call().unwrap_or_else(|error| panic!("{name}: {error}"));
    let log = site.server.log().expect("a log");
    let plans = plan::read(&log[before..]);
    assert!(!plans.is_empty(), "{name}: no plan was logged");
    let cost = plans.iter().map(Plan::cost).fold(Cost::default(), Cost::max);
    println!("{name}: {} statements, {cost:?}", plans.len());
    for plan in &plans {
        assert_eq!(plan.walked(), Vec::<String>::new(), "{name} walks over a table:\n{}", plan.text());
        let cost = plan.cost();
        let pages = PAGES_EACH * cost.rows.max(SOME as u64);
        let bounded = cost.pages <= pages && cost.rows <= ROWS && cost.sorted <= ROWS;
        assert!(bounded, "{name} touches too much, {cost:?}:\n{}", plan.text());
    }
    for index in indexes {
        let used = plans.iter().any(|plan| plan.uses(index));
        let texts = || plans.iter().map(Plan::text).collect::<Vec<_>>().join("\n\n");
        assert!(used, "{name} does not use {index}:\n{}", texts());
    }
    answer
}

fn request(site: &Site, batch: u64, queues: &[&str]) -> ClaimRequest {
    let queues = queues.iter().map(|name| (queue(name), SOME)).collect();
    ClaimRequest {
        ahead: Vec::new(),
        node: site.node,
        batch: ClaimBatchNo(batch),
        queues,
        suspects: usize::MAX,
    }
}

fn claims(site: &Site) -> Vec<Claim> {
    let store = &*site.store;
    let one = || block_on(store.claim(request(site, 2, &["q2"])));
    let indexes = ["ready_claim", "jobs_pkey", "steps_pkey", "inbox_unread"];
    let claimed = check(site, "claim", &indexes, one).jobs;
    assert_eq!(claimed.len(), SOME);
    assert!(claimed.iter().any(|job| job.journal.is_some()), "some have journals");
    let both = || block_on(store.claim(request(site, 3, &["q", "q2"])));
    let merged = check(site, "claim of several lines", &["ready_claim", "jobs_pkey"], both).jobs;
    assert_eq!(merged.len(), 2 * SOME);
    check(site, "repeat of a claim", &[], || block_on(store.claim(request(site, 3, &["q", "q2"]))));
    claimed.into_iter().chain(merged).map(|job| job.claim).collect()
}

fn outcomes(site: &Site, claims: &[Claim]) {
    let store = &*site.store;
    let ends = |claims: &[Claim], outcome: &Outcome| -> Vec<Finish> {
        claims.iter().map(|claim| Finish { claim: *claim, outcome: outcome.clone() }).collect()
    };
    workflows(site, &claims[5 * SOME / 2..]);
    let good = ends(&claims[..SOME], &succeed());
    check(site, "succeed", &["lease_pkey"], || block_on(store.finish(site.node, good.clone())));
    check(site, "repeat of successes", &["done_pkey"], || block_on(store.finish(site.node, good.clone())));
    let mut mixed = ends(&claims[SOME..2 * SOME], &retry(Duration::from_secs(9)));
    mixed.extend(ends(&claims[2 * SOME..9 * SOME / 4], &fail()));
    mixed.extend(ends(&claims[9 * SOME / 4..5 * SOME / 2], &succeed()));
    check(site, "other outcomes", &["lease_pkey"], || block_on(store.finish(site.node, mixed)));
}

fn entry(key: &str) -> Entry {
    let key = Key::new(key).expect("a key");
    Entry { key, kind: EntryKind::Value, overlapped: false, value: b"1".to_vec(), took: None }
}

fn writes(key: &str) -> Writes {
    Writes { entries: vec![entry(key)], ..Writes::default() }
}

fn recordings(claims: &[Claim], key: &str) -> Vec<Recording> {
    let recording = |claim: &Claim| Recording { claim: *claim, writes: writes(key), children: Vec::new() };
    claims.iter().map(recording).collect()
}

/// Journals, messages and families; of these claims, which are still held.
fn workflows(site: &Site, claims: &[Claim]) {
    let store = &*site.store;
    let record = || block_on(store.record(site.node, recordings(claims, "a")));
    check(site, "record", &["lease_pkey"], record);
    let again = || block_on(store.record(site.node, recordings(claims, "a")));
    let repeated = check(site, "repeat of records", &["lease_pkey"], again);
    assert!(repeated.iter().all(|answer| *answer == Recorded::Stored));
    let more = || block_on(store.record(site.node, recordings(claims, "b")));
    check(site, "more records", &["lease_pkey"], more);
    check(site, "values", &["steps_pkey"], || block_on(store.values(claims[0].id, vec![entry("a").key])));
    check(site, "inbox", &["inbox_unread"], || {
        block_on(store.inbox(claims.iter().map(|claim| (*claim, 0)).collect()))
    });
    let ids: Vec<JobId> = claims.iter().map(|claim| claim.id).collect();
    let signal = |job: &JobId| Signal {
        job: *job,
        name: SignalName::new("go").expect("a name"),
        sender: "a".into(),
        body: b"1".to_vec(),
    };
    let signals: Vec<Signal> = ids.iter().map(signal).collect();
    check(site, "signal", &["jobs_id_key", "inbox_pkey"], || block_on(store.signal(signals)));
    let inboxes = block_on(store.inbox(claims.iter().map(|claim| (*claim, 0)).collect())).expect("inboxes");
    let reads = claims.iter().zip(&inboxes).map(|(claim, inbox)| {
        let read = inbox.messages.iter().map(|message| message.no).collect();
        Recording { claim: *claim, writes: Writes { read, ..Writes::default() }, children: Vec::new() }
    });
    let reads: Vec<Recording> = reads.collect();
    check(site, "read", &["inbox_unread", "inbox_read"], || block_on(store.record(site.node, reads)));
    let children = site.jobs(SOME).into_iter().map(|job| Child { job, on_close: OnClose::Cancel });
    let start = Recording { claim: claims[0], writes: Writes::default(), children: children.collect() };
    check(site, "start", &["jobs_id_key"], || block_on(store.record(site.node, vec![start])));
    check(site, "timeline", &["children_parent"], || block_on(store.timeline(claims[0].id)));
    check(site, "job_ends", &["jobs_id_key", "done_pkey"], || block_on(store.job_ends(ids)));
    let wait = Wait { subject: signals_topic(), need: 1 };
    let suspend = |claim: &Claim| Finish {
        claim: *claim,
        outcome: Outcome::Suspend(Box::new(Suspension {
            reason: Reason::Signal,
            waits: vec![wait.clone()],
            until: None,
            keep: false,
            writes: writes("b"),
            note: None,
        })),
    };
    let suspended: Vec<Finish> = claims[1..].iter().map(suspend).collect();
    let finish = || block_on(store.finish(site.node, suspended));
    check(site, "suspend", &["lease_pkey", "inbox_pkey"], finish);
    let end = vec![Finish { claim: claims[0], outcome: succeed() }];
    let close = || block_on(store.finish(site.node, end));
    check(site, "end of a parent", &["children_parent", "ready_pkey", "ends_pkey"], close);
    let page = Page { after: None, limit: SOME };
    let filter = Filter { states: vec![State::Suspended], ..Filter::default() };
    let waiting = block_on(store.list(filter, page)).expect("a list").jobs;
    let signals: Vec<Signal> = waiting.iter().map(|job| signal(&job.id)).collect();
    let wakes = || block_on(store.signal(signals));
    check(site, "signals that wake", &["suspended_pkey", "inbox_pkey"], wakes);
}

fn signals_topic() -> Subject {
    Subject::Signal(SignalName::new("go").expect("a name"))
}

fn enqueues(site: &Site) {
    let store = &*site.store;
    check(site, "enqueue", &[], || block_on(store.enqueue(site.jobs(SOME))));
    let unique = |on_conflict| move |key| Unique { key, until: Until::Finished, on_conflict };
    let held: Vec<_> =
        (200..210).map(|no| site.keyed(&format!("key {}", no * 500), unique(OnConflict::Keep))).collect();
    check(site, "enqueue with keys", &["keys_pkey", "jobs_id_key"], || block_on(store.enqueue(held)));
    let held: Vec<_> =
        (300..310).map(|no| site.keyed(&format!("key {}", no * 500), unique(OnConflict::Replace))).collect();
    check(site, "replace", &["keys_pkey", "ready_pkey"], || block_on(store.enqueue(held)));
}

fn sweeps(site: &Site) {
    let store = &*site.store;
    let promote = || block_on(store.promote(SOME));
    let promoted = check(site, "promote", &["timers_due", "suspended_due"], promote);
    assert_eq!(promoted.moved, SOME);
    let expired = check(site, "expire", &["deadlines_at"], || block_on(store.expire(SOME)));
    assert_eq!(expired.moved, SOME);
    let pruned = check(site, "prune", &["done_kept", "jobs_pkey"], || block_on(store.prune(SOME)));
    assert_eq!(pruned, SOME);
    let renewal = Renewal::new(site.node);
    let renewed = check(site, "renew", &["nodes_pkey", "lease_cancel"], || block_on(store.renew(renewal)));
    assert!(!renewed.cancel.is_empty(), "some claims are flagged");
    let rescue = Rescue { by: site.node, steady: Duration::from_hours(1), seen: Timestamp::MAX };
    check(site, "rescue", &[], || block_on(store.rescue(rescue)));
}

fn operators(site: &Site) {
    let store = &*site.store;
    let page = || Page { after: None, limit: SOME };
    let list = |name: &str, index: &str, filter: Filter| {
        let listed = check(site, name, &[index], || block_on(store.list(filter, page())));
        assert!(!listed.jobs.is_empty(), "{name} finds jobs");
        listed.jobs.into_iter().map(|job| job.id).collect::<Vec<JobId>>()
    };
    let states = |state| Filter { states: vec![state], ..Filter::default() };
    list("list all", "jobs_pkey", Filter::default());
    let ready = list("list ready", "ready_pkey", states(State::Ready));
    let timers = list("list scheduled", "timers_pkey", states(State::Scheduled));
    list("list running", "lease_pkey", states(State::Running));
    let failed = list("list failed", "done_rare", states(State::Failed));
    list("list succeeded", "jobs_pkey", states(State::Succeeded));
    list("list by tag", "tags_pkey", Filter { tag: Some(tag("tag")), ..Filter::default() });
    check(site, "get", &["jobs_id_key"], || block_on(store.get(ready[0])));
    check(site, "counts", &[], || block_on(store.counts()));
    let verb = |name: &str, index: &str, ids: Vec<JobId>, verb| {
        check(site, name, &["jobs_id_key", index], || block_on(store.change(ids, verb, false)));
    };
    verb("cancel", "ready_pkey", ready, cancel("enough"));
    let set_priority = mainspring_core::job::Verb::SetPriority(priority(1));
    verb("set-priority", "timers_pkey", timers, set_priority);
    verb("retry", "done_pkey", failed, mainspring_core::job::Verb::Retry);
}

fn limits(site: &Site) {
    let store = &*site.store;
    let request = || ClaimRequest {
        node: site.node,
        batch: ClaimBatchNo(100),
        queues: vec![(queue("q4"), SOME)],
        ahead: Vec::new(),
        suspects: 0,
    };
    let indexes = ["group_turns_pkey", "limit_groups_pkey", "limited_claim", "limit_keys_pkey"];
    let claimed = check(site, "claim of limited jobs", &indexes, || block_on(store.claim(request())));
    assert_eq!(claimed.jobs.len(), SOME);
    let ends: Vec<Finish> =
        claimed.jobs.iter().map(|job| Finish { claim: job.claim, outcome: succeed() }).collect();
    check(site, "ends of limited jobs", &["lease_pkey", "returned_units_pkey", "limit_keys_pkey"], || {
        block_on(store.finish(site.node, ends))
    });
    check(site, "enqueue of limited jobs", &[], || block_on(store.enqueue(site.limited(1..=SOME))));
    check(site, "limited jobs of new keys", &["limit_keys_limit_no_key_key"], || {
        block_on(store.enqueue(site.limited(200_000..200_000 + SOME)))
    });
    let limit = LimitName::new("tenant").expect("a name");
    check(site, "keys", &["limit_keys_limit_no_key_key"], || block_on(store.limit_keys(limit, None, SOME)));
}

/// What each statement says of its plan is so: its indexes serve it, and without one it walks over no table that grows with
/// the number of jobs. As hot sessions plan it, for any arguments.
fn declared(site: &Site) {
    let mut client = Client::connect(&site.database.url(), NoTls).expect("a connection");
    client.batch_execute(HOT).expect("settings");
    let mut wrong = Vec::new();
    for text in statements("mainspring").iter().filter(|text| text.is_preparable()) {
        client.batch_execute(&text.to_string()).unwrap_or_else(|error| panic!("{}: {error}", text.name));
        let nulls = vec!["NULL"; text.arguments.len()].join(", ");
        let nulls = if nulls.is_empty() { nulls } else { format!("({nulls})") };
        let explained = client.simple_query(&format!("EXPLAIN EXECUTE \"{}\"{nulls}", text.name));
        let lines = explained.unwrap_or_else(|error| panic!("{}: {error}", text.name));
        let lines = lines.iter().filter_map(|message| match message {
            SimpleQueryMessage::Row(row) => row.get(0),
            _ => None,
        });
        let plan = Plan::new(lines.collect::<Vec<_>>().join("\n"));
        for index in text.indexes.iter().filter(|index| !plan.uses(index)) {
            wrong.push(format!("{} does not use {index}:\n{}", text.name, plan.text()));
        }
        // The self-check says that it does.
        let whole = text.without_index.is_some_and(|why| why.contains("walks whole tables"));
        let walked = if whole { Vec::new() } else { plan.walked_but_leases() };
        if !walked.is_empty() {
            wrong.push(format!("{} walks over a table:\n{}", text.name, plan.text()));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n\n"));
}

#[test]
fn no_statement_walks_over_a_million_jobs() {
    let site = Site::new();
    declared(&site);
    let claims = claims(&site);
    outcomes(&site, &claims);
    enqueues(&site);
    sweeps(&site);
    operators(&site);
    limits(&site);
}
