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
use mainspring_core::id::{Batch, Claim, JobId};
use mainspring_core::job::{OnConflict, Outcome, State, Unique, Until};
use mainspring_core::store::{ClaimRequest, Filter, Finish, Page, Renewal, Rescue};
use mainspring_core::time::Timestamp;
use mainspring_testkit::executor::block_on;
use mainspring_testkit::harness::{cancel, fail, priority, queue, retry, succeed, tag};
use plan::{Cost, Plan};

/// Rows of a node of a plan: some for each job asked for. All that run may be looked at, and there are two thousand; so may
/// a part of a listing.
const ROWS: u64 = 5_000;
/// Pages for each of them: the levels of some indexes, and the rows behind them.
const PAGES_EACH: u64 = 25;
/// Jobs that a call asks for.
const SOME: usize = 100;

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
    ClaimRequest { node: site.node, batch: Batch(batch), queues, suspects: usize::MAX }
}

fn claims(site: &Site) -> Vec<Claim> {
    let store = &*site.store;
    let one = || block_on(store.claim(request(site, 2, &["q2"])));
    let claimed = check(site, "claim", &["ready_claim", "jobs_pkey"], one).jobs;
    assert_eq!(claimed.len(), SOME);
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
    let good = ends(&claims[..SOME], &succeed());
    check(site, "succeed", &["lease_pkey"], || block_on(store.finish(site.node, good.clone())));
    check(site, "repeat of successes", &["done_pkey"], || block_on(store.finish(site.node, good.clone())));
    let mut mixed = ends(&claims[SOME..2 * SOME], &retry(Duration::from_secs(9)));
    mixed.extend(ends(&claims[2 * SOME..5 * SOME / 2], &fail()));
    mixed.extend(ends(&claims[5 * SOME / 2..], &succeed()));
    check(site, "other outcomes", &["lease_pkey"], || block_on(store.finish(site.node, mixed)));
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
    let promoted = check(site, "promote", &["timers_due"], || block_on(store.promote(SOME)));
    assert_eq!(promoted.moved, SOME);
    let expired = check(site, "expire", &["deadlines_at"], || block_on(store.expire(SOME)));
    assert_eq!(expired.moved, SOME);
    let pruned = check(site, "prune", &["done_kept", "jobs_pkey"], || block_on(store.prune(SOME)));
    assert_eq!(pruned, SOME);
    let renewal = Renewal { node: site.node, marks: Vec::new() };
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
    let reprioritise = mainspring_core::job::Verb::Reprioritise(priority(1));
    verb("reprioritise", "timers_pkey", timers, reprioritise);
    verb("retry", "done_pkey", failed, mainspring_core::job::Verb::Retry);
}

#[test]
fn no_statement_walks_over_a_million_jobs() {
    let site = Site::new();
    let claims = claims(&site);
    outcomes(&site, &claims);
    enqueues(&site);
    sweeps(&site);
    operators(&site);
}
