//! Pairs that meet at limit keys. Stores may claim jobs of groups in any order, so the outcome is not held against the model: what must
//! hold after every interleaving is asked instead. Nobody is beyond the maximum, counters are what claims hold, and
//! repeated claims run every job.

use std::time::Duration;

use mainspring_core::id::{ClaimBatchNo, NodeNo};
use mainspring_core::job::{New, Options, State};
use mainspring_core::limit::{Change, KeyChange, LimitUse, Rate, Total};
use mainspring_core::name::LimitName;
use mainspring_core::store::{ClaimRequest, Filter, Finish, Page, Renewal};
use mainspring_testkit::executor::block_on;
use mainspring_testkit::harness::{cancel, queue, retry, succeed};

use super::orders::{Pair, PairDatabase};
use super::two_handles::{
    Operation, TwoHandles, change, claim, disown, enqueue, finish, job, promote, register_third, rescue,
    retire,
};
use crate::support::database;

/// A pair, and how many claims at once each limit may have at the end of it.
struct LimitPair(Pair, u32);

fn name(limit: &str) -> LimitName {
    LimitName::new(limit).expect("a name")
}

fn set(limit: &'static str, max: Option<u32>) -> Operation {
    let change = Change { max: Some(max), rate: Some(None), paused: Some(false) };
    Operation::new(move |_, store| block_on(store.set_limit(name(limit), change, "tester".into())))
}

fn set_rate(limit: &'static str) -> Operation {
    let rate = Rate::new(1, Duration::from_secs(1));
    let change = Change { max: Some(None), rate: Some(Some(rate)), paused: Some(false) };
    Operation::new(move |_, store| block_on(store.set_limit(name(limit), change, "tester".into())))
}

fn set_key(paused: bool) -> Operation {
    let change = KeyChange { max: None, paused: Some(paused) };
    Operation::new(move |_, store| {
        block_on(store.set_limit_key(name("a"), String::new(), change, "tester".into()))
    })
}

fn total(max: Option<u32>) -> Operation {
    Operation::new(move |_, store| block_on(store.set_total(Total::Queue(queue("q")), max, "tester".into())))
}

/// A job that takes a unit of each of these limits.
fn limited(number: u8, limits: &[&str]) -> New {
    let limits = limits.iter().map(|limit| LimitUse::new(name(limit))).collect();
    New { options: Options { limits, ..Options::default() }, ..job(number) }
}

fn limits(world: &mut TwoHandles, max: u32) {
    for limit in ["a", "b"] {
        world.done(&set(limit, Some(max)));
    }
    world.done(&total(None));
    world.done(&set_key(false));
    world.two_nodes();
}

/// Two jobs, one place.
fn open(world: &mut TwoHandles) {
    limits(world, 1);
    world.put(vec![limited(1, &["a"]), limited(2, &["a"])]);
}

/// The first node has the place; two jobs wait, and it is known that they do.
fn full(world: &mut TwoHandles) {
    limits(world, 1);
    world.put(vec![limited(1, &["a"]), limited(2, &["a"]), limited(3, &["a"])]);
    world.held(1);
    world.done(&claim(0, 2, 2));
}

/// The same, and nobody has looked at those that wait.
fn full_and_unseen(world: &mut TwoHandles) {
    limits(world, 1);
    world.put(vec![limited(1, &["a"])]);
    world.held(1);
    world.put(vec![limited(2, &["a"])]);
}

/// The first node's lease has lapsed.
fn lapsed(world: &mut TwoHandles) {
    full(world);
    world.lapse();
}

/// Groups of either key, and one of both.
fn two_keys(world: &mut TwoHandles) {
    limits(world, 1);
    world.put(vec![limited(1, &["a", "b"]), limited(2, &["b"]), limited(3, &["a"])]);
}

/// The group of both has its job running; the others wait.
fn two_keys_full(world: &mut TwoHandles) {
    limits(world, 1);
    world.put(vec![limited(1, &["a", "b"])]);
    world.held(1);
    world.put(vec![limited(2, &["b"]), limited(3, &["a"]), limited(4, &["a", "b"])]);
    world.done(&claim(0, 2, 9));
}

/// Each node has one place of two; others wait.
fn two_holders(world: &mut TwoHandles) {
    limits(world, 2);
    world.put(vec![limited(1, &["a"]), limited(2, &["a"])]);
    world.held(1);
    world.held_by_second(1);
    world.put(vec![limited(3, &["a"]), limited(4, &["a"])]);
    world.done(&claim(0, 2, 9));
}

/// A token has been spent, and the next one is due.
fn due(world: &mut TwoHandles) {
    limits(world, 1);
    world.done(&set_rate("a"));
    world.put(vec![limited(1, &["a"]), limited(2, &["a"]), limited(3, &["a"])]);
    world.held(1);
    world.done(&claim(0, 2, 9));
    world.advance(Duration::from_secs(1));
    for handle in 0..2 {
        block_on(world.stores[handle].renew(Renewal::new(world.nodes[handle]))).expect("renewed");
    }
}

/// Plain jobs run, and others wait.
fn plain(world: &mut TwoHandles) {
    limits(world, 1);
    world.put(vec![job(1), job(2)]);
    world.held(1);
    world.put(vec![job(3)]);
}

/// The second node ends what it holds.
fn finish_of_second() -> Operation {
    Operation::new(|world, store| {
        let ends = world.claims_of_second.iter().map(|claim| Finish { claim: *claim, outcome: succeed() });
        block_on(store.finish(world.nodes[1], ends.collect()))
    })
}

fn pairs() -> Vec<LimitPair> {
    let good = || finish([succeed()]);
    let mine = || claim(0, 3, 2);
    let other = || claim(1, 2, 2);
    let pair = |name, setup, first, second| LimitPair(Pair::new(name, setup, first, second), 1);
    vec![
        pair("claim, claim", open, mine(), other()),
        pair("claim, claim at two keys", two_keys, mine(), other()),
        pair("claim, finish", full, other(), good()),
        pair("claim that blocks, finish", full_and_unseen, other(), good()),
        pair("claim, finish at two keys", two_keys_full, other(), good()),
        pair("claim, retry", full_and_unseen, other(), finish([retry(Duration::ZERO)])),
        pair("claim that blocks, rescue", lapsed, other(), rescue()),
        pair("claim, retire", full_and_unseen, other(), retire(0)),
        pair("claim, disown", full_and_unseen, other(), disown()),
        pair("claim, cancel", open, mine(), change(&[1, 2], cancel("enough"))),
        pair("claim, enqueue", open, mine(), enqueue(vec![limited(5, &["a"]), limited(6, &["b"])])),
        pair("claim, pause of the key", open, mine(), set_key(true)),
        LimitPair(Pair::new("claim that blocks, raise", full_and_unseen, other(), set("a", Some(2))), 2),
        pair("claim, lower", open, mine(), set("a", Some(0))),
        LimitPair(Pair::new("claim, promote", due, other(), promote(9)), 9),
        LimitPair(Pair::new("finish, promote", due, good(), promote(9)), 9),
        LimitPair(Pair::new("finish, finish", two_holders, good(), finish_of_second()), 2),
        LimitPair(Pair::new("finish, raise", two_holders, good(), set("a", Some(3))), 3),
        pair("finish, rescue", lapsed, good(), rescue()),
        LimitPair(Pair::new("claim, total", plain, other(), total(Some(1))), 9),
        LimitPair(Pair::new("finish, total", plain, good(), total(Some(1))), 9),
    ]
}

/// The third node claims all that it gets.
fn claimed(world: &TwoHandles, node: NodeNo, batch: u64) -> Vec<Finish> {
    let request = ClaimRequest {
        ahead: Vec::new(),
        node,
        batch: ClaimBatchNo(batch),
        queues: vec![(queue("q"), 10)],
        suspects: usize::MAX,
    };
    let jobs = block_on(world.stores[0].claim(request)).expect("claim").jobs;
    jobs.iter().map(|job| Finish { claim: job.claim, outcome: succeed() }).collect()
}

fn sound(world: &TwoHandles, most: u32) -> Result<(), String> {
    let store = &*world.stores[0];
    let findings = block_on(store.check()).expect("check");
    if !findings.is_empty() {
        return Err(format!("the self-check found {findings:?}"));
    }
    bounded(world, most)
}

/// Nobody is beyond the maximum.
fn bounded(world: &TwoHandles, most: u32) -> Result<(), String> {
    for limit in ["a", "b"] {
        let used = block_on(world.stores[0].limit_key(name(limit), String::new())).expect("a key");
        if used.key.in_use > most {
            return Err(format!("limit {limit} has {} of {most}", used.key.in_use));
        }
    }
    Ok(())
}

fn waiting(world: &TwoHandles, state: State) -> usize {
    let filter = Filter { states: vec![state], ..Filter::default() };
    block_on(world.stores[0].list(filter, Page { after: None, limit: 50 })).expect("list").jobs.len()
}

/// What must hold after an interleaving.
fn judge(world: &TwoHandles, most: u32) -> Result<(), String> {
    let store = &*world.stores[0];
    sound(world, most)?;
    for node in &world.nodes {
        block_on(store.retire(*node)).expect("retired");
    }
    world.done_by_reference(&set_key(false));
    for limit in ["a", "b"] {
        world.done_by_reference(&set(limit, Some(1)));
    }
    let node = register_third(world);
    for batch in 1..20 {
        let ends = claimed(world, node, batch);
        bounded(world, most)?;
        if ends.is_empty() {
            if waiting(world, State::Ready) > 0 {
                return Err("jobs wait, and none is claimed".into());
            }
            if waiting(world, State::Scheduled) == 0 {
                return sound(world, most);
            }
            block_on(store.promote(9)).expect("promoted");
        }
        block_on(store.finish(node, ends)).expect("finish");
    }
    Err("there is no end of jobs".into())
}

/// Of the interleavings of a pair, a run tries one in so many: all of them take ten minutes.
const SAMPLE: usize = 6;

/// Runs a part of the interleavings of all pairs.
pub(super) fn run((number, of): (usize, usize)) {
    let mut database = PairDatabase::new(database());
    let mut wrong = Vec::new();
    for LimitPair(pair, most) in pairs() {
        let pair = pair.part(number, of * SAMPLE);
        match database
            .run_judged(&pair, &|world, _, trace| judge(world, most).map_err(|why| format!("{trace}\n{why}")))
        {
            Ok(count) => println!("limits: {}: {count} interleavings", pair.name),
            Err(why) => wrong.push(format!("=== {}\n{why}", pair.name)),
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n\n"));
}
