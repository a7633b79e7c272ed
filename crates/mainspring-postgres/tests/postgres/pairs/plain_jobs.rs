//! The pairs, by what they meet in.

use std::time::Duration;

use mainspring_core::job::{New, OnConflict, Until, Verb};
use mainspring_core::store::{Mark, QueueChange};
use mainspring_testkit::harness::{cancel, fail, priority, retry, succeed};

use super::orders::Pair;
use super::two_handles::{
    Operation, TwoHandles, change, claim, configure, delete_queue, disown, enqueue, expire, finish, job,
    keyed_job, keyed_until, later, progress, promote, prune, register, renew, rescue, rescue_by, retire,
    urgent,
};

const SECOND: Duration = Duration::from_secs(1);

fn nodes(world: &mut TwoHandles) {
    world.two_nodes();
}

/// Three jobs wait for two nodes.
fn ready(world: &mut TwoHandles) {
    nodes(world);
    world.put(vec![job(1), job(2), job(3)]);
}

/// One job waits for two nodes.
fn one_ready(world: &mut TwoHandles) {
    nodes(world);
    world.put(vec![job(1)]);
}

/// The first node holds two jobs; another one waits.
fn running(world: &mut TwoHandles) {
    nodes(world);
    world.put(vec![job(1), job(2)]);
    world.held(2);
    world.put(vec![job(3)]);
}

/// And its lease has lapsed.
fn lapsed(world: &mut TwoHandles) {
    running(world);
    world.lapse();
}

fn cancel_one() -> Operation {
    change(&[1], cancel("enough"))
}

/// Claims against whatever takes jobs or nodes away.
pub(crate) fn of_claims() -> Vec<Pair> {
    let paused = QueueChange { paused: Some(true), ..QueueChange::default() };
    let settings = |world: &mut TwoHandles| {
        world.settings();
        one_ready(world);
    };
    let due = |world: &mut TwoHandles| {
        nodes(world);
        world.put(vec![urgent(1)]);
        world.advance(SECOND);
    };
    let nothing = || claim(0, 1, 0);
    vec![
        Pair::new("claim, claim", ready, claim(0, 1, 2), claim(1, 1, 2)),
        Pair::new("claim, rescue", lapsed, claim(0, 2, 1), rescue()),
        Pair::new("rescue, claim of another", lapsed, rescue(), claim(1, 1, 3)),
        Pair::new("claim, retire", running, claim(0, 2, 1), retire(0)),
        Pair::new("claim, disown", running, claim(0, 2, 1), disown()),
        Pair::new("late claim, its repeat", ready, claim(0, 1, 2), claim(0, 1, 2)).late(),
        Pair::new("late claim, disown", ready, claim(0, 1, 2), disown()).late(),
        Pair::new("claim, renew", one_ready, claim(0, 1, 1), renew(None)),
        Pair::new("claim, cancel", one_ready, claim(0, 1, 1), cancel_one()).or_first(nothing()),
        Pair::new("claim, hold", one_ready, claim(0, 1, 1), change(&[1], Verb::Hold { why: String::new() }))
            .or_first(nothing()),
        Pair::new("claim, delete", one_ready, claim(0, 1, 1), change(&[1], Verb::Delete)).or_first(nothing()),
        Pair::new(
            "claim, set-priority",
            one_ready,
            claim(0, 1, 1),
            change(&[1], Verb::SetPriority(priority(1))),
        )
        .or_first(nothing()),
        Pair::new("claim, pause", settings, claim(0, 1, 1), configure(paused)),
        Pair::new("claim, expire", due, claim(0, 1, 1), expire(9)).or_first(nothing()).or_second(expire(0)),
        Pair::new("claim, enqueue", one_ready, claim(0, 1, 2), enqueue(vec![job(2), job(3)])),
    ]
}

/// A rescue may find a node dead, and then find its jobs ended by outcomes that were on their way. To the node that is the
/// same as if they had ended before, but that it is expired; to its jobs it is the same as if nobody had come.
pub(crate) fn found_dead(outcome: &str) -> String {
    let mut lines: Vec<String> = outcome.lines().map(str::to_owned).collect();
    for line in &mut lines {
        if line.starts_with("second: ") {
            *line = line.replace("[]", "[NodeNo(0)]");
        } else if line.starts_with("Node { no: NodeNo(0)") {
            *line = line.replace("state: Live", "state: Expired");
        }
    }
    lines.join("\n") + "\n"
}

/// Ends of claims against whatever else ends them.
pub(crate) fn of_outcomes() -> Vec<Pair> {
    let good = || finish([succeed(), succeed()]);
    let bad = || finish([retry(SECOND), fail()]);
    vec![
        Pair::new("finish, its repeat", running, good(), good()),
        Pair::new("retry, its repeat", running, bad(), bad()),
        Pair::new("succeed, another outcome", running, good(), bad()),
        Pair::new("succeed, rescue", lapsed, good(), rescue()).or_as(found_dead),
        Pair::new("retry, rescue", lapsed, bad(), rescue()).or_as(found_dead),
        Pair::new("succeed, cancel", running, good(), cancel_one()),
        Pair::new("retry, cancel", running, bad(), cancel_one()),
        Pair::new("succeed, retire", running, good(), retire(0)),
        Pair::new("retry, retire", running, bad(), retire(0)),
        Pair::new("succeed, disown", running, good(), disown()),
        Pair::new("retry, disown", running, bad(), disown()),
        Pair::new("retry, progress", running, bad(), progress(3)),
        Pair::new("progress, progress", running, progress(2), progress(3)),
        Pair::new("progress, rescue", lapsed, progress(3), rescue()),
        Pair::new("retry, mark", running, bad(), renew(Some(Mark::Stuck))),
        Pair::new("retry, promote", running, finish([retry(Duration::ZERO)]), promote(9))
            .or_second(promote(0)),
        Pair::new("retry, delete", running, bad(), change(&[1, 2], Verb::Delete)),
    ]
}

/// Nodes against those who judge them.
pub(crate) fn of_nodes() -> Vec<Pair> {
    vec![
        Pair::new("renew, rescue", lapsed, renew(None), rescue()),
        Pair::new("mark, rescue", lapsed, renew(Some(Mark::Stuck)), rescue()),
        Pair::new("renew, retire", running, renew(None), retire(0)),
        Pair::new("renew, cancel", running, renew(None), cancel_one()),
        Pair::new("rescue, rescue", lapsed, rescue_by(1), rescue_by(1)),
        Pair::new("rescue, retire of the dead", lapsed, rescue_by(1), retire(0)),
        Pair::new("rescue, retire of the rescuer", lapsed, rescue_by(1), retire(1)),
        Pair::new("rescue, cancel", lapsed, rescue_by(1), cancel_one()),
        Pair::new("rescue, disown", lapsed, rescue_by(1), disown()),
        Pair::new("rescue, register", lapsed, rescue_by(1), register()),
        Pair::new("retire, retire", running, retire(0), retire(0)),
        Pair::new("retire, cancel", running, retire(0), cancel_one()),
        Pair::new("retire, disown", running, retire(0), disown()),
        Pair::new("disown, cancel", running, disown(), cancel_one()),
        Pair::new("register, its repeat", nodes, register(), register()),
    ]
}

/// A job with another key than the pair's.
fn other_key(number: u8, on_conflict: OnConflict) -> New {
    let mut job = keyed_job(number, on_conflict);
    if let Some(unique) = &mut job.options.unique {
        unique.key = String::from("other");
    }
    job
}

fn key_two_held(world: &mut TwoHandles) {
    world.put(vec![keyed_job(1, OnConflict::Keep), other_key(2, OnConflict::Keep)]);
}

fn key_held(world: &mut TwoHandles) {
    nodes(world);
    world.put(vec![keyed_job(1, OnConflict::Keep)]);
}

fn key_held_later(world: &mut TwoHandles) {
    nodes(world);
    let mut waits = later(1);
    waits.options = keyed_job(1, OnConflict::Keep).options;
    world.put(vec![waits]);
    world.advance(SECOND);
}

fn key_held_urgent(world: &mut TwoHandles) {
    nodes(world);
    let mut waits = urgent(1);
    waits.options = keyed_job(1, OnConflict::Keep).options;
    world.put(vec![waits]);
    world.advance(SECOND);
}

fn key_held_until_started(world: &mut TwoHandles) {
    nodes(world);
    world.put(vec![keyed_until(1, OnConflict::Keep, Until::Started)]);
}

fn key_held_running(world: &mut TwoHandles) {
    key_held(world);
    world.held(1);
}

fn key_held_for_a_while(world: &mut TwoHandles) {
    nodes(world);
    world.put(vec![keyed_until(1, OnConflict::Keep, Until::after(Duration::from_mins(1)))]);
    world.held(1);
}

fn key_over(world: &mut TwoHandles) {
    key_held_for_a_while(world);
    world.done(&finish([succeed()]));
    world.advance(Duration::from_mins(1));
}

/// Unique keys: who takes them and who lets them go.
pub(crate) fn of_keys() -> Vec<Pair> {
    use OnConflict::{Keep, Reject, Replace};
    let one = |number, on_conflict| enqueue(vec![keyed_job(number, on_conflict)]);
    let contended = || Operation::answers("[Contended]");
    let both = |name, setup: fn(&mut TwoHandles), first, second| {
        Pair::new(name, setup, first, second).keyed().or_first(contended()).or_second(contended())
    };
    let nothing = || claim(0, 1, 0);
    vec![
        Pair::new(
            "replace of two, cancel of both",
            key_two_held,
            enqueue(vec![other_key(3, Replace), keyed_job(4, Replace)]),
            change(&[1, 2], cancel("enough")),
        ),
        both("keep, keep", nodes, one(1, Keep), one(2, Keep)),
        both("reject, reject", nodes, one(1, Reject), one(2, Reject)),
        both("replace, replace", nodes, one(1, Replace), one(2, Replace)),
        both("replace, replace of one that waits", key_held, one(2, Replace), one(3, Replace)),
        both("enqueue, its repeat", nodes, one(1, Keep), one(1, Keep)),
        Pair::new(
            "plain enqueue, its repeat",
            nodes,
            enqueue(vec![job(1), job(2)]),
            enqueue(vec![job(2), job(1)]),
        ),
        Pair::new("replace, claim", key_held, one(2, Replace), claim(1, 1, 2))
            .keyed()
            .or_second(claim(1, 1, 0)),
        Pair::new("replace, cancel", key_held, one(2, Replace), cancel_one()).keyed(),
        Pair::new("replace, delete", key_held, one(2, Replace), change(&[1], Verb::Delete)).keyed(),
        Pair::new(
            "replace, hold",
            key_held,
            one(2, Replace),
            change(&[1], Verb::Hold { why: String::new() }),
        )
        .keyed(),
        Pair::new("replace, promote", key_held_later, one(2, Replace), promote(9))
            .keyed()
            .or_second(promote(0)),
        Pair::new("replace, expire", key_held_urgent, one(2, Replace), expire(9))
            .keyed()
            .or_second(expire(0)),
        Pair::new("replace, succeed", key_held_running, one(2, Replace), finish([succeed()])).keyed(),
        Pair::new("replace, retry", key_held_running, one(2, Replace), finish([retry(SECOND)])).keyed(),
        Pair::new("keep, succeed", key_held_running, one(2, Keep), finish([succeed()])).keyed(),
        Pair::new("keep, fail", key_held_running, one(2, Keep), finish([fail()])).keyed(),
        Pair::new("keep, cancel", key_held, one(2, Keep), cancel_one()).keyed(),
        Pair::new("keep, delete", key_held, one(2, Keep), change(&[1], Verb::Delete)).keyed(),
        Pair::new("keep, claim that lets the key go", key_held_until_started, one(2, Keep), claim(1, 1, 2))
            .keyed(),
        Pair::new("keep, succeed with a period", key_held_for_a_while, one(2, Keep), finish([succeed()]))
            .keyed(),
        both("keep, keep after a period", key_over, one(2, Keep), one(3, Keep)),
        Pair::new("keep, prune after a period", key_over, one(2, Keep), prune(9)).keyed(),
        Pair::new("claim, replace", key_held, claim(0, 1, 1), one(2, Replace)).keyed().or_first(nothing()),
    ]
}

/// Operators, and what time does.
pub(crate) fn of_waiting() -> Vec<Pair> {
    let timed: fn(&mut TwoHandles) = |world| {
        world.put(vec![later(1)]);
        world.advance(SECOND);
    };
    let dying: fn(&mut TwoHandles) = |world| {
        world.put(vec![urgent(1), urgent(2)]);
        world.advance(SECOND);
    };
    let held_dying: fn(&mut TwoHandles) = |world| {
        world.put(vec![urgent(1)]);
        world.done(&change(&[1], Verb::Hold { why: String::new() }));
        world.advance(SECOND);
    };
    let waiting: fn(&mut TwoHandles) = |world| world.put(vec![job(1), job(2)]);
    let held: fn(&mut TwoHandles) = |world| {
        world.put(vec![job(1)]);
        world.done(&change(&[1], Verb::Hold { why: String::new() }));
    };
    let ended: fn(&mut TwoHandles) = |world| {
        world.settings();
        world.put(vec![job(1), job(2)]);
        world.done(&change(&[1, 2], cancel("enough")));
        world.advance(Duration::from_hours(1));
    };
    // A queue with settings and a line, and without jobs.
    let nothing: fn(&mut TwoHandles) = |world| {
        world.settings();
        world.put(vec![job(1)]);
        world.done(&change(&[1], Verb::Delete));
    };
    let last: fn(&mut TwoHandles) = |world| {
        world.settings();
        world.put(vec![job(1)]);
    };
    let keep_longer = QueueChange { retain_failed: Some(Duration::from_hours(2)), ..QueueChange::default() };
    let keep_good = QueueChange { retain_succeeded: Some(Duration::from_hours(3)), ..QueueChange::default() };
    let verb = |verb| change(&[1, 2], verb);
    let reversed = |verb| change(&[2, 1], verb);
    vec![
        Pair::new("promote, promote", timed, promote(9), promote(9))
            .or_first(promote(0))
            .or_second(promote(0)),
        Pair::new("promote, cancel", timed, promote(9), cancel_one()).or_first(promote(0)),
        Pair::new("promote, set-priority", timed, promote(9), change(&[1], Verb::SetPriority(priority(1))))
            .or_first(promote(0)),
        Pair::new("promote, retry", timed, promote(9), change(&[1], Verb::Retry)).or_first(promote(0)),
        Pair::new("promote, delete", timed, promote(9), change(&[1], Verb::Delete)).or_first(promote(0)),
        Pair::new("promote, hold", timed, promote(9), change(&[1], Verb::Hold { why: String::new() }))
            .or_first(promote(0)),
        Pair::new("expire, expire", dying, expire(9), expire(9)).or_first(expire(0)).or_second(expire(0)),
        Pair::new("expire, cancel", dying, expire(9), verb(cancel("enough"))).or_first(expire(0)),
        Pair::new("expire, delete", dying, expire(9), verb(Verb::Delete)).or_first(expire(0)),
        Pair::new("expire, hold", dying, expire(9), verb(Verb::Hold { why: String::new() }))
            .or_first(expire(0)),
        Pair::new("expire, resume", held_dying, expire(9), change(&[1], Verb::Resume)).or_first(expire(0)),
        Pair::new("cancel, cancel", waiting, verb(cancel("enough")), reversed(cancel("too much"))),
        Pair::new(
            "cancel, hold",
            waiting,
            verb(cancel("enough")),
            reversed(Verb::Hold { why: String::new() }),
        ),
        Pair::new("cancel, delete", waiting, verb(cancel("enough")), reversed(Verb::Delete)),
        Pair::new(
            "hold, set-priority",
            waiting,
            verb(Verb::Hold { why: String::new() }),
            reversed(Verb::SetPriority(priority(1))),
        ),
        Pair::new("resume, resume", held, change(&[1], Verb::Resume), change(&[1], Verb::Resume)),
        Pair::new(
            "resume, fail",
            held,
            change(&[1], Verb::Resume),
            change(&[1], Verb::Fail { why: "no".into() }),
        ),
        Pair::new("retry, retry", ended, verb(Verb::Retry), reversed(Verb::Retry)),
        Pair::new("retry, delete", ended, verb(Verb::Retry), reversed(Verb::Delete)),
        Pair::new("retry, prune", ended, verb(Verb::Retry), prune(9)).or_second(prune(0)),
        Pair::new("delete, prune", ended, verb(Verb::Delete), prune(9)).or_second(prune(0)),
        Pair::new("prune, prune", ended, prune(9), prune(9)).or_first(prune(0)).or_second(prune(0)),
        Pair::new("prune, keep longer", ended, prune(9), configure(keep_longer.clone())),
        Pair::new("configure, configure", ended, configure(keep_longer), configure(keep_good.clone())),
        Pair::new(
            "delete a queue, enqueue",
            nothing,
            delete_queue(),
            enqueue(vec![job(1), keyed_job(2, OnConflict::Keep)]),
        ),
        Pair::new("delete a queue, delete it", nothing, delete_queue(), delete_queue()),
        Pair::new("delete a queue, configure", nothing, delete_queue(), configure(keep_good.clone())),
        Pair::new("delete a queue, node joins", nothing, delete_queue(), register()),
        Pair::new("delete a queue, delete its last job", last, delete_queue(), change(&[1], Verb::Delete)),
        Pair::new("delete, enqueue of the same", waiting, change(&[1], Verb::Delete), enqueue(vec![job(1)])),
    ]
}
