//! Pairs of workflows: messages, suspensions, records and families.

use std::time::Duration;

use mainspring_core::id::Claim;
use mainspring_core::job::{Outcome, Reason, Verb};
use mainspring_core::journal::{
    Child, Entry, EntryKind, OnClose, Recording, Signal, Subject, Suspension, Wait, Writes,
};
use mainspring_core::name::{Key, SignalName};
use mainspring_core::seam::Clock;
use mainspring_core::store::Finish;
use mainspring_testkit::executor::block_on;
use mainspring_testkit::harness::{cancel, fail, retry, succeed};

use super::orders::Pair;
use super::two_handles::{
    Operation, TwoHandles, change, claim, disown, expire, finish, id, job, promote, rescue, retire, urgent,
};

const SECOND: Duration = Duration::from_secs(1);

/// The first node runs a job.
fn one_running(world: &mut TwoHandles) {
    world.two_nodes();
    world.put(vec![job(1)]);
    world.held(1);
}

/// And has a deadline.
fn urgent_running(world: &mut TwoHandles) {
    world.two_nodes();
    world.put(vec![urgent(1)]);
    world.held(1);
}

/// And its lease has lapsed.
fn lapsed(world: &mut TwoHandles) {
    one_running(world);
    world.lapse();
}

/// A job waits for a signal, for a second at most, which is over.
fn waiting(world: &mut TwoHandles) {
    one_running(world);
    let until = Some(Clock::now(&world.clock).after(SECOND));
    world.done(&finish([suspended(Suspension { until, ..until_signal() })]));
    world.advance(SECOND);
}

/// The first node runs a job whose child waits for a node.
fn family(world: &mut TwoHandles) {
    one_running(world);
    world.done(&start(OnClose::Cancel));
}

/// The second node runs the child.
fn both_running(world: &mut TwoHandles) {
    family(world);
    world.held_by_second(1);
}

/// The parent waits for its child, which waits for a node.
fn parent_waiting(world: &mut TwoHandles) {
    family(world);
    world.done(&finish([until_child()]));
}

/// The parent waits for its child, which the second node runs.
fn parent_waiting_for_running(world: &mut TwoHandles) {
    both_running(world);
    world.done(&finish([until_child()]));
}

/// The parent has ended and let its child go on, which runs.
fn child_alone(world: &mut TwoHandles) {
    parent_waiting_for_running(world);
    world.done(&change(&[1], cancel("enough")));
}

fn suspended(suspension: Suspension) -> Outcome {
    Outcome::Suspend(Box::new(suspension))
}

fn entry(key: &str) -> Entry {
    Entry {
        key: Key::new(key).expect("a key"),
        kind: EntryKind::Value,
        overlapped: false,
        value: b"1".to_vec(),
        took: None,
    }
}

fn until_signal() -> Suspension {
    let subject = Subject::Signal(SignalName::new("go").expect("a name"));
    Suspension {
        reason: Reason::Signal,
        waits: vec![Wait { subject, need: 1 }],
        until: None,
        keep: false,
        writes: Writes { entries: vec![entry("waits")], ..Writes::default() },
        note: None,
    }
}

fn until_child() -> Outcome {
    let waits = vec![Wait { subject: Subject::Child(id(2)), need: 1 }];
    suspended(Suspension { reason: Reason::Child, waits, ..until_signal() })
}

/// The first node suspends its job until a signal comes.
fn suspend() -> Operation {
    finish([suspended(until_signal())])
}

/// A signal to the first job.
fn signal() -> Operation {
    Operation::new(|_, store| {
        let name = SignalName::new("go").expect("a name");
        let signal = Signal { job: id(1), name, sender: "somebody".into(), body: b"2".to_vec() };
        block_on(store.signal(vec![signal]))
    })
}

/// The first node records.
fn record(key: &'static str) -> Operation {
    Operation::new(move |world, store| {
        let writes = |_: &Claim| Writes { entries: vec![entry(key)], ..Writes::default() };
        let recording =
            |claim: &Claim| Recording { claim: *claim, writes: writes(claim), children: Vec::new() };
        block_on(store.record(world.nodes[0], world.claims.iter().map(recording).collect()))
    })
}

/// The first node starts a child.
fn start(on_close: OnClose) -> Operation {
    Operation::new(move |world, store| {
        let children = vec![Child { job: job(2), on_close }];
        let value = serde_json::to_vec(&id(2)).expect("JSON");
        let entry = Entry { kind: EntryKind::Child, value, ..entry("child") };
        let writes = Writes { entries: vec![entry], ..Writes::default() };
        let recording = Recording { claim: world.claims[0], writes, children };
        block_on(store.record(world.nodes[0], vec![recording]))
    })
}

/// The second node ends its job.
fn child_ends(outcome: Outcome) -> Operation {
    Operation::new(move |world, store| {
        let finish = Finish { claim: world.claims_of_second[0], outcome: outcome.clone() };
        block_on(store.finish(world.nodes[1], vec![finish]))
    })
}

/// A verb says where its job was when it was looked at. A message that came just then has woken it, and it is cancelled all
/// the same: it may be said to have waited still.
fn still_waiting(outcome: &str, reason: &str) -> String {
    let suspended = format!("from: Status {{ state: Suspended, reason: Some({reason}) }}");
    outcome.replace("from: Status { state: Ready, reason: None }", &suspended)
}

fn still_waiting_for_signal(outcome: &str) -> String {
    still_waiting(outcome, "Signal")
}

/// The same where the other job was ready as well: what is said of the parent comes first.
fn parent_still_waiting(outcome: &str) -> String {
    let suspended = "from: Status { state: Suspended, reason: Some(Child) }";
    outcome.replacen("from: Status { state: Ready, reason: None }", suspended, 1)
}

fn still_waiting_for_child(outcome: &str) -> String {
    still_waiting(outcome, "Child")
}

fn cancel_parent() -> Operation {
    change(&[1], cancel("enough"))
}

/// Messages against whatever moves their jobs.
pub(crate) fn of_messages() -> Vec<Pair> {
    let ready = |world: &mut TwoHandles| {
        world.two_nodes();
        world.put(vec![job(1)]);
    };
    vec![
        Pair::new("suspend, signal", one_running, suspend(), signal()),
        Pair::new("suspend, cancel", one_running, suspend(), cancel_parent()),
        Pair::new("suspend, its repeat", one_running, suspend(), suspend()),
        Pair::new("suspend, record", one_running, suspend(), record("waits")),
        Pair::new("suspend, rescue", lapsed, suspend(), rescue()).or_as(super::plain_jobs::found_dead),
        Pair::new("suspend, retire", one_running, suspend(), retire(0)),
        Pair::new("signal, its repeat", waiting, signal(), signal()),
        Pair::new("signal, claim", ready, signal(), claim(1, 1, 1)).or_second(claim(1, 1, 0)),
        Pair::new("signal, promote", waiting, signal(), promote(9)).or_second(promote(0)),
        Pair::new("signal, hold", waiting, signal(), change(&[1], Verb::Hold { why: String::new() })),
        Pair::new("signal, resume", waiting, signal(), change(&[1], Verb::Resume)),
        Pair::new("signal, cancel", waiting, signal(), cancel_parent()).or_as(still_waiting_for_signal),
        Pair::new("signal, delete", waiting, signal(), change(&[1], Verb::Delete)),
        Pair::new("signal, finish", one_running, signal(), finish([succeed()])),
        Pair::new("promote, hold", waiting, promote(9), change(&[1], Verb::Hold { why: String::new() }))
            .or_first(promote(0)),
    ]
}

/// Records against whatever takes their claims away.
pub(crate) fn of_records() -> Vec<Pair> {
    vec![
        Pair::new("record, its repeat", one_running, record("a"), record("a")),
        Pair::new("record, rescue", lapsed, record("a"), rescue()),
        Pair::new("record, retire", one_running, record("a"), retire(0)),
        Pair::new("record, disown", one_running, record("a"), disown()),
        Pair::new("record, cancel", one_running, record("a"), cancel_parent()),
        Pair::new("record, retry", one_running, record("a"), finish([retry(SECOND)])),
        Pair::new("start, rescue", lapsed, start(OnClose::Cancel), rescue()),
        Pair::new("start, its repeat", one_running, start(OnClose::Cancel), start(OnClose::Cancel)),
        Pair::new("start, fail", urgent_running, start(OnClose::Cancel), finish([fail()])),
        Pair::new("start, expire", urgent_running, start(OnClose::Cancel), expire(9)),
    ]
}

/// Families.
pub(crate) fn of_families() -> Vec<Pair> {
    vec![
        Pair::new("suspend, child ends", both_running, finish([until_child()]), child_ends(succeed())),
        Pair::new(
            "hold of a parent, child ends",
            parent_waiting_for_running,
            change(&[1], Verb::Hold { why: String::new() }),
            child_ends(succeed()),
        ),
        Pair::new(
            "delete of a parent, child ends",
            parent_waiting_for_running,
            change(&[1], Verb::Delete),
            child_ends(succeed()),
        ),
        Pair::new("signal to a parent, child ends", parent_waiting_for_running, signal(), child_ends(fail())),
        Pair::new(
            "child ends, retry of its parent",
            child_alone,
            child_ends(succeed()),
            change(&[1], Verb::Retry),
        ),
    ]
}

/// Parents that are cancelled, and their children.
pub(crate) fn of_cancelled_parents() -> Vec<Pair> {
    vec![
        Pair::new(
            "cancel of a parent, child ends",
            parent_waiting_for_running,
            cancel_parent(),
            child_ends(succeed()),
        )
        .or_as(still_waiting_for_child),
        Pair::new(
            "cancel of a parent, child waits",
            parent_waiting_for_running,
            cancel_parent(),
            child_ends(retry(SECOND)),
        ),
        Pair::new("cancel of a parent, claim of its child", parent_waiting, cancel_parent(), claim(1, 1, 1))
            .or_second(claim(1, 1, 0)),
        Pair::new(
            "cancel of a parent, cancel of its child",
            parent_waiting,
            cancel_parent(),
            change(&[2], cancel("no")),
        )
        .or_as(parent_still_waiting),
    ]
}

/// Parents whose handler ends: a transaction of several statements, which makes for many interleavings.
pub(crate) fn of_ended_parents() -> Vec<Pair> {
    vec![
        Pair::new("end of a parent, child ends", both_running, finish([succeed()]), child_ends(succeed())),
        Pair::new("end of a parent, claim of its child", family, finish([succeed()]), claim(1, 1, 1))
            .or_second(claim(1, 1, 0)),
    ]
}

/// A job that has recorded something is ready again.
fn recorded(world: &mut TwoHandles) {
    one_running(world);
    world.done(&record("waits"));
    world.done(&finish([Outcome::Release]));
}

/// A retry of the first job from a step.
fn rewind(step: &str) -> Operation {
    change(&[1], Verb::Rewind { from: Key::new(step).expect("a key"), claim: 1 })
}

/// Retries from a step, against whatever moves their jobs and their children.
pub(crate) fn of_rewinds() -> Vec<Pair> {
    vec![
        Pair::new("rewind, signal", waiting, rewind("waits"), signal()).or_as(still_waiting_for_signal),
        Pair::new("rewind, promote", waiting, rewind("waits"), promote(9)).or_second(promote(0)),
        Pair::new("rewind, its repeat", waiting, rewind("waits"), rewind("waits")),
        Pair::new("rewind, claim", recorded, rewind("waits"), claim(1, 1, 1)).or_second(claim(1, 1, 0)),
        Pair::new("rewind, cancel", recorded, rewind("waits"), cancel_parent()),
    ]
}

/// The same where children lose their start.
pub(crate) fn of_rewound_parents() -> Vec<Pair> {
    vec![
        Pair::new("rewind, child ends", parent_waiting_for_running, rewind("child"), child_ends(succeed()))
            .or_as(still_waiting_for_child),
        Pair::new("rewind, cancel of a child", parent_waiting, rewind("child"), change(&[2], cancel("no")))
            .or_as(parent_still_waiting),
    ]
}
