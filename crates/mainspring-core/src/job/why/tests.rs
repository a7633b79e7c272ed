//! For each reason a job that has it, and one that only just has not.

use std::time::Duration;

use super::*;
use crate::bounds;
use crate::id::{JobId, NodeId, NodeNo};
use crate::job::{Options, Priority};
use crate::store::{Abilities, ActivityReport, LastClaim, Settings};

const NOW: Timestamp = Timestamp::from_micros(1_000_000);
const MICRO: Duration = Duration::from_micros(1);

fn kind(name: &str) -> Kind {
    Kind::new(name).expect("a kind")
}

fn queue(name: &str) -> QueueName {
    QueueName::new(name).expect("a queue")
}

fn label(name: &str) -> Label {
    Label::new(name).expect("a label")
}

/// A job of kind `k` in queue `q`.
fn job(status: Status) -> Summary {
    Summary {
        id: JobId::from_bytes([7; 16]),
        kind: kind("k"),
        queue: queue("q"),
        priority: Priority::default(),
        status,
        claim: 0,
        failures: 0,
        crashes: 0,
        created_at: Timestamp::EPOCH,
        run_at: None,
        claimed_at: None,
        finished_at: None,
        deadline: None,
        node: None,
        cancelling: false,
        stuck: false,
        foreign: false,
        unreadable: None,
        options: Options::default(),
    }
}

/// A live node that runs kind `k` of queue `q` and has the label `gpu`; its lease is about to end.
fn node(no: i64, name: &str) -> Node {
    Node {
        no: NodeNo(no),
        id: NodeId::from_bytes([9; 16]),
        name: name.into(),
        version: String::new(),
        pid: 1,
        abilities: Abilities { kinds: vec![kind("k")], labels: vec![label("gpu")], ..Abilities::default() },
        queues: vec![(queue("q"), 1)],
        state: NodeState::Live,
        started_at: Timestamp::EPOCH,
        renewed_at: Timestamp::EPOCH,
        lease_until: NOW.after(MICRO),
        claims: 0,
        backed_up: false,
        report: None,
    }
}

/// What is known of nodes that have said nothing yet.
fn unheard(names: &[&str]) -> Vec<NodeActivity> {
    let activity = |name: &&str| NodeActivity { node: (*name).into(), as_of: None, activity: None };
    names.iter().map(activity).collect()
}

fn slot(names: &[&str]) -> Why {
    Why::Slot { nodes: names.iter().map(|name| (*name).into()).collect(), activity: unheard(names) }
}

fn ready_with(change: impl FnOnce(&mut Summary)) -> Summary {
    let mut job = job(Status::plain(State::Ready));
    change(&mut job);
    job
}

fn running_with(change: impl FnOnce(&mut Summary)) -> Summary {
    let mut job = job(Status::plain(State::Running));
    (job.node, job.claimed_at) = (Some(NodeNo(2)), Some(Timestamp::EPOCH));
    change(&mut job);
    job
}

#[test]
fn ended_and_suspended_jobs_say_so_whatever_the_nodes_do() {
    let reason = |status| why_summary(&job(status), None, &[node(1, "a")], NOW);
    let failed = Status::because(State::Failed, Reason::Exhausted);
    assert_eq!(reason(failed), Why::Ended { status: failed });
    assert_eq!(reason(Status::plain(State::Blocked)), Why::Blocked);
    assert_eq!(reason(Status::because(State::Suspended, Reason::Hold)), Why::Held { note: None });
    let signal = Some(Reason::Signal);
    assert_eq!(reason(Status::because(State::Suspended, Reason::Signal)), Why::Suspended { reason: signal });
    let mut quarantined = job(Status::because(State::Suspended, Reason::Quarantine));
    quarantined.crashes = 3;
    assert_eq!(why_summary(&quarantined, None, &[], NOW), Why::Quarantined { crashes: 3 });
}

#[test]
fn a_scheduled_job_names_its_time_and_its_attempts() {
    let mut scheduled = job(Status::plain(State::Scheduled));
    (scheduled.run_at, scheduled.failures, scheduled.options.max_attempts) = (Some(NOW), 2, 7);
    let expected = Why::Scheduled { until: Some(NOW), failures: 2, max_attempts: 7, note: None };
    assert_eq!(why_summary(&scheduled, None, &[], NOW), expected);
}

#[test]
fn a_running_job_is_as_its_own_node_says() {
    let nodes = [node(1, "a"), node(2, "b")];
    let b = || "b".to_owned();
    let reason = |change: fn(&mut Summary)| why_summary(&running_with(change), None, &nodes, NOW);
    assert_eq!(reason(|_| {}), Why::Running { node: b(), since: Some(Timestamp::EPOCH), note: None });
    assert_eq!(reason(|job| job.cancelling = true), Why::Cancelling { node: b() });
    assert_eq!(reason(|job| (job.cancelling, job.stuck) = (true, true)), Why::Stuck { node: b() });
    assert_eq!(reason(|job| job.foreign = true), Why::Foreign { node: b(), last: None });
    assert_eq!(reason(|job| (job.cancelling, job.foreign) = (true, true)), Why::Cancelling { node: b() });
    let gone = reason(|job| job.node = Some(NodeNo(3)));
    assert_eq!(gone, Why::Running { node: "unknown".into(), since: Some(Timestamp::EPOCH), note: None });
}

#[test]
fn a_node_is_silent_once_its_lease_has_lapsed() {
    let mut nodes = [node(1, "a"), node(2, "b")];
    nodes[0].lease_until = NOW;
    let job = running_with(|job| job.stuck = true);
    assert_eq!(
        why_summary(&job, None, &nodes, NOW),
        Why::Stuck { node: "b".into() },
        "another's lease is another's"
    );
    for since in [NOW, NOW.before(MICRO)] {
        nodes[1].lease_until = since;
        assert_eq!(why_summary(&job, None, &nodes, NOW), Why::NodeSilent { node: "b".into(), since });
    }
}

#[test]
fn a_ready_job_waits_for_its_queue_first() {
    let job = ready_with(|_| {});
    let with = |paused| Queue { name: queue("q"), settings: Settings { paused, ..Settings::default() } };
    let slot = slot(&["a"]);
    assert_eq!(why_summary(&job, Some(&with(true)), &[node(1, "a")], NOW), Why::Paused { queue: queue("q") });
    assert_eq!(why_summary(&job, Some(&with(false)), &[node(1, "a")], NOW), slot);
    assert_eq!(why_summary(&job, None, &[node(1, "a")], NOW), slot);
}

#[test]
fn a_ready_job_names_what_no_node_has() {
    let job = ready_with(|job| job.options.labels = vec![label("eu"), label("gpu")]);
    let reason = |change: fn(&mut Node)| {
        let mut able = node(1, "a");
        able.abilities.labels = vec![label("eu"), label("gpu")];
        change(&mut able);
        why_summary(&job, None, &[able], NOW)
    };
    assert_eq!(reason(|_| {}), slot(&["a"]));
    let no_node = Why::NoNode { queue: queue("q") };
    assert_eq!(why_summary(&job, None, &[], NOW), no_node);
    assert_eq!(reason(|node| node.state = NodeState::Retired), no_node);
    assert_eq!(reason(|node| node.lease_until = NOW), no_node, "its lease has lapsed, as stores tell it");
    assert_eq!(reason(|node| node.queues = vec![(queue("q2"), 1)]), no_node);
    assert_eq!(reason(|node| node.abilities.kinds = vec![kind("k2")]), Why::NoHandler { kind: kind("k") });
    let required = vec![label("eu"), label("gpu")];
    assert_eq!(reason(|node| node.abilities.labels = vec![label("gpu")]), Why::NoLabels { required });
}

#[test]
fn a_pinned_job_names_its_build_and_who_takes_it_over() {
    let pin = Label::of_build("1").expect("a label");
    let job = ready_with(|job| job.options.labels = vec![pin.clone(), label("gpu")]);
    let reason = |nodes: &[Node]| why_summary(&job, None, nodes, NOW);
    let lone = Why::NoBuild { build: "1".into(), taken_over: None };
    assert_eq!(reason(&[node(1, "a")]), lone);
    assert_eq!(
        lone.to_string(),
        "the job is pinned to build `1`, and no live node that handles its kind has that build"
    );
    assert!(lone.hint().is_some_and(|hint| hint.contains("build `1`")));
    let heir = |no, name: &str, from| {
        let mut heir = node(no, name);
        heir.abilities.later = vec![(label("eu"), NOW), (pin.clone(), from)];
        heir
    };
    let later = NOW.after(MICRO);
    let heirs = [heir(2, "b", later.after(MICRO)), heir(3, "c", later)];
    let taken = Why::NoBuild { build: "1".into(), taken_over: Some(("c".into(), later)) };
    assert_eq!(reason(&heirs), taken);
    assert!(taken.to_string().ends_with("; node c takes it over at 1970-01-01T00:00:01.000Z"));
    assert_eq!(reason(&[node(1, "a"), heir(2, "b", NOW)]), slot(&["b"]));
    let mut weak = heir(2, "b", NOW);
    weak.abilities.labels = Vec::new();
    assert_eq!(reason(&[weak]), Why::NoLabels { required: vec![pin, label("gpu")] });
}

#[test]
fn a_line_is_stranded_if_no_node_can_run_it() {
    let line = Line { queue: queue("q"), kind: kind("k"), labels: vec![label("gpu")] };
    assert_eq!(stranded(&line, &[node(1, "a")], NOW), None);
    assert_eq!(stranded(&line, &[], NOW), Some(Why::NoNode { queue: queue("q") }));
}

#[test]
fn only_nodes_that_can_run_it_are_named() {
    let job = ready_with(|job| job.options.labels = vec![label("gpu")]);
    let mut other = node(1, "other");
    other.abilities.labels = Vec::new();
    let nodes = [other, node(2, "a"), node(3, "b")];
    assert_eq!(why_summary(&job, None, &nodes, NOW), slot(&["a", "b"]));
}

#[test]
fn a_suspect_is_one_from_the_bound_on() {
    let with = |crashes| why_summary(&ready_with(|job| job.crashes = crashes), None, &[node(1, "a")], NOW);
    assert_eq!(with(bounds::SUSPECT_CRASHES - 1), slot(&["a"]));
    assert_eq!(
        with(bounds::SUSPECT_CRASHES),
        Why::Suspect { crashes: bounds::SUSPECT_CRASHES, activity: unheard(&["a"]) }
    );
}

#[test]
fn a_ready_job_waits_for_slots_of_nodes_whose_outcomes_are_stored() {
    let reason = |backed_up: [bool; 2], crashes| {
        let mut nodes = [node(1, "a"), node(2, "b")];
        (nodes[0].backed_up, nodes[1].backed_up) = (backed_up[0], backed_up[1]);
        why_summary(&ready_with(|job| job.crashes = crashes), None, &nodes, NOW)
    };
    assert_eq!(reason([false, true], 0), slot(&["a"]));
    let both = Why::BackedUp { nodes: vec!["a".into(), "b".into()], activity: unheard(&["a", "b"]) };
    assert_eq!(reason([true, true], 0), both);
    assert_eq!(reason([true, true], bounds::SUSPECT_CRASHES), both);
    let suspect = Why::Suspect { crashes: bounds::SUSPECT_CRASHES, activity: unheard(&["b"]) };
    assert_eq!(reason([true, false], bounds::SUSPECT_CRASHES), suspect);
    let told = "the store does not accept outcomes from a, b; they claim nothing until it does";
    assert_eq!(both.to_string(), told);
    assert!(both.hint().is_some_and(|hint| hint.contains("log")));
}

#[test]
fn a_ready_job_shows_what_its_nodes_do_for_its_queue() {
    let activity = |name: &str, running| QueueActivity {
        queue: queue(name),
        slots: 3,
        running,
        waiting: 0,
        unstored: 0,
        asking: 0,
        last_claim: Some(LastClaim { asked: 3, got: 0, at: Timestamp::EPOCH }),
        next_look: MICRO,
    };
    let mut nodes = [node(1, "a"), node(2, "b"), node(3, "c"), node(4, "d")];
    nodes[0].report = Some(ActivityReport { at: NOW, queues: vec![activity("other", 1), activity("q", 2)] });
    nodes[1].report = Some(ActivityReport { at: NOW, queues: Vec::new() });
    nodes[2].abilities.kinds = Vec::new();
    let why = why_summary(&ready_with(|_| {}), None, &nodes, NOW);
    let expected = [
        NodeActivity { node: "a".into(), as_of: Some(NOW), activity: Some(activity("q", 2)) },
        NodeActivity { node: "b".into(), as_of: Some(NOW), activity: None },
        NodeActivity { node: "d".into(), as_of: None, activity: None },
    ];
    assert_eq!(why.activity(), expected, "of the nodes that can run it");
    assert_eq!(Why::Blocked.activity(), []);
}

#[test]
fn reasons_are_told_in_words() {
    let scheduled =
        |until, failures| Why::Scheduled { until, failures, max_attempts: 10, note: None }.to_string();
    let at = "1970-01-01T00:00:01.000Z";
    assert_eq!(scheduled(Some(NOW), 0), format!("the job waits until {at}"));
    assert_eq!(scheduled(Some(NOW), 1), format!("the job waits until {at} for attempt 2 of 10"));
    assert_eq!(scheduled(None, 0), "the job waits for its time");
    let running = |since| Why::Running { node: "a".into(), since, note: None }.to_string();
    assert_eq!(running(Some(NOW)), format!("node a has been running the job since {at}"));
    assert_eq!(running(None), "node a is running the job");
    let noted = Why::Running { node: "a".into(), since: None, note: Some("no child".into()) };
    assert_eq!(noted.to_string(), "node a is running the job; the handler says: no child");
    let required = vec![label("eu"), label("gpu")];
    assert!(Why::NoLabels { required }.to_string().ends_with("all its labels: `eu`, `gpu`"));
    assert_eq!(Why::Suspended { reason: Some(Reason::Drift) }.to_string(), "the job is suspended: drift");
    assert_eq!(Why::Held { note: None }.to_string(), "an operator holds the job");
    assert_eq!(
        Why::Held { note: Some("wrong price".into()) }.to_string(),
        "an operator holds the job: wrong price"
    );
}

#[test]
fn a_person_is_told_what_to_do_where_there_is_something_to_do() {
    let hint = |why: Why| why.hint().unwrap_or_default();
    assert_eq!(hint(Why::Held { note: None }), "resume the job");
    assert_eq!(hint(Why::Paused { queue: queue("q") }), "resume queue `q`");
    assert_eq!(hint(Why::NoNode { queue: queue("q") }), "start a node that serves queue `q`");
    assert_eq!(hint(Why::NoHandler { kind: kind("k") }), "start a node that handles kind `k`");
    let waiting = |signals| Why::Waiting { until: None, signals, children: Vec::new(), unfit: Vec::new() };
    let name = |name: &str| SignalName::new(name).expect("a name");
    let both = vec![(name("approved"), 1), (name("vote"), 3)];
    assert_eq!(hint(waiting(both)), "send it the signal `approved`");
    assert_eq!(waiting(Vec::new()).hint(), None);
    assert!(hint(Why::NoLabels { required: Vec::new() }).contains("labels"));
    assert!(hint(Why::Quarantined { crashes: 3 }).contains("input"));
    assert!(hint(Why::Stuck { node: "a".into() }).contains("await"));
    assert!(hint(Why::Foreign { node: "a".into(), last: None }).contains("signal"));
    assert_eq!(Why::Blocked.hint(), None);
    assert_eq!(slot(&[]).hint(), None);
}

#[test]
fn what_a_workflow_waits_for_is_told() {
    use crate::journal::{Subject, Wait};
    use crate::name::SignalName;

    let (child, until) = (JobId::from_bytes([3; 16]), Timestamp::from_micros(90_000_000));
    let record = |reason, run_at, waits, note: Option<&str>| Record {
        summary: Summary { run_at, ..job(Status::because(State::Suspended, reason)) },
        input: Vec::new(),
        result: None,
        note: note.map(str::to_owned),
        errors: Vec::new(),
        progress: None,
        waits,
        last: None,
    };
    let signal =
        |name: &str, need| Wait { subject: Subject::Signal(SignalName::new(name).expect("a name")), need };
    let told = |record: &Record| why(record, None, &[], None, NOW).to_string();
    assert_eq!(
        told(&record(Reason::Timer, Some(until), vec![], None)),
        format!("the handler sleeps until {until}")
    );
    let waits =
        vec![signal("approved", 1), signal("vote", 3), Wait { subject: Subject::Child(child), need: 1 }];
    assert_eq!(
        told(&record(Reason::Signal, Some(until), waits, None)),
        format!(
            "the handler waits for signal `approved` or 3 signals `vote` or child {child}, until {until}"
        )
    );
    let five = (0..5).map(|n| signal(&format!("s{n}"), 1)).collect();
    assert!(told(&record(Reason::Signal, None, five, None)).ends_with("or signal `s3` or signal `s4`"));
    let many = (0..8).map(|n| signal(&format!("s{n}"), 1)).collect();
    assert!(told(&record(Reason::Signal, None, many, None)).ends_with("signal `s4` or 3 more"));
    let drifted = why(&record(Reason::Drift, None, vec![], Some("no")), None, &[], None, NOW);
    assert_eq!(drifted.to_string(), "the job's records do not fit its code: no");
    assert!(drifted.hint().is_some());
    let mut foreign = record(Reason::Timer, None, vec![], None);
    foreign.summary = running_with(|job| job.foreign = true);
    foreign.last = Some((Key::new("charge").expect("a key"), until));
    assert_eq!(
        why(&foreign, None, &[node(2, "b")], None, NOW).to_string(),
        format!(
            "the handler on node b awaits something that is not durable, so it keeps its slot; \
             it last recorded `charge`, at {until}"
        )
    );
}
