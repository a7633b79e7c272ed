//! What the conformance suite cannot show: that the self-check finds damage, that the model refuses what is no
//! move and forgets what is over, whom it follows, and that nobody is told what is not so.

use std::sync::Arc;
use std::time::Duration;

use super::Memory;
use super::model::Model;
use super::place::Place;
use crate::Error;
use crate::bounds;
use crate::id::{ClaimBatchNo, JobId, NodeId, NodeNo, Row};
use crate::job::{Input, New, Options, Priority, Reason, State, Status, Unique, Until, Verb, When};
use crate::journal::{Signal, Subject, Wait};
use crate::name::{Kind, Label, QueueName, SignalName};
use crate::seam::{Clock, Pending};
use crate::store::{Abilities, ClaimRequest, Class, Hint, QueueChange, Registration, Rescue};
use crate::time::Timestamp;

const NOW: Timestamp = Timestamp::from_micros(1_000_000);

fn id(number: u8) -> JobId {
    JobId::from_bytes([number; 16])
}

fn queue() -> QueueName {
    QueueName::new("q").expect("a queue")
}

/// A job of kind `k` for queue `q`, due now.
fn job(number: u8) -> New {
    New {
        id: id(number),
        kind: Kind::new("k").expect("a kind"),
        queue: queue(),
        priority: Priority::default(),
        input: Vec::new(),
        run: None,
        deadline: None,
        options: Options::default(),
        journal: Vec::new(),
    }
}

fn job_with(number: u8, change: impl FnOnce(&mut New)) -> New {
    let mut job = job(number);
    change(&mut job);
    job
}

/// A node that runs kind `k` of queue `q`, with the longest lease.
fn registration() -> Registration {
    Registration {
        id: NodeId::from_bytes([9; 16]),
        name: "node".into(),
        version: "1".into(),
        pid: 1,
        queues: vec![(queue(), 10)],
        abilities: Abilities { kinds: vec![Kind::new("k").expect("a kind")], ..Abilities::default() },
        lease: bounds::LEASE_MAX,
    }
}

/// A model with these jobs and that node.
fn model(jobs: Vec<New>) -> (Model, NodeNo) {
    let mut model = Model::default();
    let node = model.register(registration(), NOW).no;
    model.enqueue(jobs, NOW).expect("enqueue");
    (model, node)
}

fn request(node: NodeNo, batch: u64, limit: usize) -> ClaimRequest {
    ClaimRequest {
        ahead: Vec::new(),
        node,
        batch: ClaimBatchNo(batch),
        queues: vec![(queue(), limit)],
        suspects: 0,
    }
}

/// The ids that the model claims when another store has claimed these; `None` if no store may.
fn follow(model: &mut Model, request: &ClaimRequest, claimed: &[u8]) -> Option<Vec<JobId>> {
    let claimed: Vec<JobId> = claimed.iter().map(|number| id(*number)).collect();
    match model.follow(request, &claimed, NOW) {
        Ok(batch) => Some(batch.jobs.iter().map(|job| job.claim.id).collect()),
        Err(Error::Invalid { what: "claim", .. }) => None,
        Err(error) => panic!("{error}"),
    }
}

#[test]
fn jobs_of_one_level_and_moment_may_come_in_any_order() {
    for order in [[1, 2], [2, 1], [2, 3]] {
        let (mut model, node) = model(vec![job(1), job(2), job(3)]);
        let expected = order.map(id).to_vec();
        assert_eq!(follow(&mut model, &request(node, 1, 2), &order), Some(expected));
        assert_eq!(model.held_by(node).len(), 2);
        assert!(model.check().is_empty());
    }
}

#[test]
fn a_claim_that_no_store_may_make_is_not_followed() {
    let urgent = job_with(1, |job| job.priority = Priority::HIGHEST);
    let barred = job_with(4, |job| job.options.labels = vec![Label::new("gpu").expect("a label")]);
    let (mut model, node) = model(vec![urgent, job(2), job(3), barred]);
    let wrong: [(&str, &[u8]); 8] = [
        ("the urgent one was left out", &[2, 3]),
        ("the urgent one comes first", &[2, 1]),
        ("there was another", &[1]),
        ("nothing, although there are jobs", &[]),
        ("more than was asked for", &[1, 2, 3]),
        ("one that the node cannot run", &[1, 4]),
        ("one twice", &[1, 1]),
        ("one that is not there", &[1, 2, 7]),
    ];
    for (why, claimed) in wrong {
        assert_eq!(follow(&mut model, &request(node, 1, 2), claimed), None, "{why}");
        assert!(model.held_by(node).is_empty(), "{why}");
    }
    assert_eq!(follow(&mut model, &request(node, 1, 2), &[1, 3]), Some(vec![id(1), id(3)]));
}

#[test]
fn one_of_two_equals_is_not_claimed_twice() {
    let (mut model, node) = model(vec![job(1), job(2)]);
    assert_eq!(follow(&mut model, &request(node, 1, 2), &[1, 1]), None);
}

#[test]
fn a_repeated_batch_is_followed_only_to_what_is_held() {
    let (mut model, node) = model(vec![job(1), job(2), job(3)]);
    let first = request(node, 1, 2);
    assert_eq!(follow(&mut model, &first, &[1, 2]), Some(vec![id(1), id(2)]));
    assert_eq!(follow(&mut model, &first, &[2, 1]), Some(vec![id(2), id(1)]));
    for wrong in [&[1][..], &[1, 3], &[1, 2, 3], &[1, 2, 2], &[]] {
        assert_eq!(follow(&mut model, &first, wrong), None, "{wrong:?}");
    }
    assert_eq!(model.held_by(node).len(), 2);
    assert_eq!(follow(&mut model, &request(node, 2, 2), &[3]), Some(vec![id(3)]));
}

/// A model that has a job in every place: 1 is ready, 2 waits for a time, 3 has a deadline and a unique key, 4 is held,
/// 5 is claimed and 6 is cancelled.
fn full() -> (Model, NodeNo) {
    let second = Duration::from_secs(1);
    let urgent = job_with(5, |job| job.priority = Priority::HIGHEST);
    let (mut model, node) = model(vec![
        job(1),
        job_with(2, |job| job.run = Some(When::After(second))),
        job_with(3, |job| {
            job.deadline = Some(When::After(second));
            job.options.unique = Some(Unique::new("key"));
        }),
        job(4),
        urgent,
        job(6),
    ]);
    model.claim(&request(node, 1, 1), NOW).expect("claim");
    model.change(&[id(4)], &Verb::Hold { why: String::new() }, false, NOW).expect("hold");
    model.change(&[id(6)], &Verb::Cancel { why: String::new() }, false, NOW).expect("cancel");
    (model, node)
}

#[test]
fn a_job_goes_nowhere_but_where_the_state_machine_leads() {
    let (mut model, _) = full();
    let scheduled = model.ids[&id(2)];
    let ready = || Place::Ready { class: Class::Fresh, since: NOW };
    let wrong = [(Input::Due, Place::Timers { due: NOW }), (Input::Succeed, ready())];
    for (input, place) in wrong {
        let answer = model.go(scheduled, input, place);
        assert!(matches!(answer, Err(Error::Corrupt { .. })), "{input:?}: {answer:?}");
        assert_eq!(model.job(scheduled).expect("a job").place.status(), Status::plain(State::Scheduled));
    }
    assert!(model.check().is_empty(), "what was refused has left no trace");
    model.go(scheduled, Input::Due, ready()).expect("its time has come");
    assert!(model.check().is_empty());
}

#[test]
fn keys_whose_period_is_over_take_no_room() {
    let second = Duration::from_secs(1);
    let unique = Unique::new("key").until(Until::after(second));
    let (mut model, _) = model(vec![job_with(1, |job| job.options.unique = Some(unique))]);
    model.change(&[id(1)], &Verb::Cancel { why: String::new() }, false, NOW).expect("cancel");
    for (now, kept) in [(NOW, 1), (NOW.after(second), 0)] {
        model.prune(bounds::BATCH, now);
        assert_eq!((model.keys.len(), model.periods.len()), (kept, kept));
    }
}

#[test]
fn a_claim_renews_the_lease_of_a_node_whose_clock_went_back() {
    // Otherwise a node that dies now would be missed for as long as the clock went back.
    let (mut model, node) = model(Vec::new());
    let earlier = NOW.before(Duration::from_micros(1));
    model.claim(&request(node, 1, 1), earlier).expect("claim");
    let member = &model.members[&node];
    assert_eq!((member.renewed_at, member.lease_until), (earlier, earlier.after(bounds::LEASE_MAX)));
}

#[test]
fn a_claim_renews_a_lease_of_which_more_than_a_third_has_passed() {
    let third = bounds::LEASE_MAX / 3;
    for (passed, renewed) in [(third, false), (third + Duration::from_micros(1), true)] {
        let (mut model, node) = model(Vec::new());
        let later = NOW.after(passed);
        model.claim(&request(node, 1, 1), later).expect("claim");
        assert_eq!(model.members[&node].renewed_at, if renewed { later } else { NOW });
    }
}

#[test]
fn who_runs_a_job_is_told_of_its_messages_and_of_its_cancellation() {
    let (mut model, node) = full();
    model.take_hints();
    let name = SignalName::new("go").expect("a name");
    let signal = Signal { job: id(5), name, sender: "ada".into(), body: b"1".to_vec() };
    model.signal(vec![signal], NOW).expect("signal");
    assert_eq!(model.take_hints(), [Hint::Message(id(5))]);
    model.change(&[id(5)], &Verb::Cancel { why: String::new() }, false, NOW).expect("cancel");
    assert_eq!(model.take_hints(), [Hint::Cancel(node)]);
}

#[test]
fn numbers_of_nodes_grow() {
    let (mut model, node) = model(Vec::new());
    let next = model.register(Registration { id: NodeId::from_bytes([8; 16]), ..registration() }, NOW).no;
    assert!(next > node && node > NodeNo(0));
}

#[test]
fn a_rescue_of_exactly_a_batch_asks_for_no_other() {
    for (claims, more) in [(bounds::BATCH, false), (bounds::BATCH + 1, true)] {
        let jobs = (0..claims).map(|number| {
            let mut bytes = [0; 16];
            bytes[..8].copy_from_slice(&(number as u64).to_be_bytes());
            job_with(1, |job| job.id = JobId::from_bytes(bytes))
        });
        let (mut model, dead) = model(jobs.collect());
        model.claim(&request(dead, 1, claims), NOW).expect("claim");
        let later = NOW.after(bounds::LEASE_MAX);
        let rescuer = Registration { id: NodeId::from_bytes([8; 16]), ..registration() };
        let by = model.register(rescuer, later).no;
        let steady = bounds::LEASE_MAX;
        let rescued = model.rescue(Rescue { by, steady, seen: later }, later).expect("rescue");
        assert_eq!((rescued.returned, rescued.more), (bounds::BATCH, more));
    }
}

#[test]
fn only_a_queue_that_goes_on_is_hinted_at() {
    let (mut model, _) = model(Vec::new());
    model.take_hints();
    let mut set = |paused| {
        model.configure(queue(), &QueueChange { paused, ..QueueChange::default() }).expect("configure");
        model.take_hints()
    };
    for paused in [None, Some(false), Some(true), None, Some(true)] {
        assert_eq!(set(paused), [], "{paused:?}");
    }
    assert_eq!(set(Some(false)), [Hint::Ready(vec![queue()])]);
}

struct Still;

impl Clock for Still {
    fn now(&self) -> Timestamp {
        NOW
    }

    fn monotonic(&self) -> Duration {
        Duration::ZERO
    }

    fn sleep(&self, _: Duration) -> Pending<'static, ()> {
        Box::pin(std::future::pending())
    }
}

#[test]
fn memory_store_prints_no_jobs() {
    assert_eq!(format!("{:?}", Memory::new(Arc::new(Still))), "Memory { .. }");
}

/// Sends a signal to the job that is held, which then waits for it.
fn oversleep(model: &mut Model, need: u32) {
    let name = SignalName::new("go").expect("a name");
    let signal = Signal { job: id(4), name: name.clone(), sender: "ada".into(), body: b"1".to_vec() };
    model.signal(vec![signal], NOW).expect("signal");
    let row = model.ids[&id(4)];
    let waits = vec![Wait { subject: Subject::Signal(name), need }];
    model.job_mut(row).expect("a job").place =
        Place::Suspended { reason: Reason::Signal, due: None, waits, note: None };
}

#[test]
fn a_job_that_waits_for_more_than_it_was_sent_is_no_damage() {
    let (mut model, _) = full();
    oversleep(&mut model, 2);
    assert!(model.check().is_empty());
}

/// Something that no call of a store does.
type Damage = fn(&mut Model, NodeNo);

#[test]
fn the_self_check_finds_every_damage() {
    assert!(full().0.check().is_empty());
    let damages: [(&str, Damage); 16] = [
        ("waits for what it has been sent", |model, _| oversleep(model, 1)),
        ("is not found by its id", |model, _| model.ids.retain(|one, _| *one != id(1))),
        ("ids without a job", |model, _| model.ids.extend([(id(7), Row(99))])),
        ("`ready` does not agree", |model, _| model.ready.clear()),
        ("has no timer", |model, _| model.timers.clear()),
        ("`timers` does not agree", |model, _| model.timers.extend([(NOW, Row(99))])),
        ("has no lease", |model, _| model.leases.clear()),
        ("`lease` does not agree", |model, node| model.leases.extend([(node, Row(99))])),
        ("which is gone", |model, _| model.members.clear()),
        ("`done` does not agree", |model, _| model.ended.clear()),
        ("has lost its deadline", |model, _| model.deadlines.clear()),
        ("deadlines without a waiting job", |model, _| model.deadlines.extend([(NOW, Row(99))])),
        ("the counts do not agree", |model, _| model.counts.0.clear()),
        ("the counts do not agree", |model, _| {
            let states = model.counts.0.get_mut(&queue()).expect("a queue");
            *states.get_mut(&State::Ready).expect("ready jobs") += 1;
        }),
        ("key `key` of `k` is held by no open job", |model, _| {
            model.keys.values_mut().for_each(|key| key.holder = id(6));
        }),
        ("`ready` does not agree", |model, _| {
            let row = model.ids[&id(4)];
            let class = Class::Fresh;
            model.job_mut(row).expect("a job").place = Place::Ready { class, since: NOW };
        }),
    ];
    for (what, damage) in damages {
        let (mut model, node) = full();
        damage(&mut model, node);
        let found = model.check();
        assert!(found.iter().any(|finding| finding.what.contains(what)), "{what}: {found:?}");
    }
}
