//! What the slot table asks for, takes in and gives back.

use mainspring_core::id::Row;
use mainspring_core::job::{Options, Priority};
use mainspring_core::name::Kind;
use mainspring_core::store::Claimed;
use mainspring_core::{Error, bounds};

use super::*;

const CLAIM: usize = 4;

fn slot_table() -> SlotTable {
    SlotTable::new(&[(QueueName::new("q").expect("a name"), 10)], CLAIM)
}

fn works(count: usize) -> Vec<UnstartedJob> {
    let claimed = |n: usize| Claimed {
        ahead: false,
        claim: Claim { id: JobId::from_bytes([u8::try_from(n).unwrap_or(0); 16]), row: Row(0), number: 1 },
        kind: Kind::new("k").expect("a kind"),
        queue: QueueName::new("q").expect("a name"),
        priority: Priority::default(),
        input: Value::Here(Vec::new()),
        failures: 0,
        crashes: 0,
        crashed_micros: 0,
        created_at: Timestamp::EPOCH,
        deadline: None,
        options: Options::default(),
        journal: None,
    };
    let work = |n| UnstartedJob {
        run: Arc::new(JobRun::new(
            &mut claimed(n),
            NodeNo(1),
            Arc::default(),
            Timestamp::EPOCH,
            Duration::ZERO,
        )),
        input: Value::Here(Vec::new()),
        journal: None,
        ahead: false,
    };
    (0..count).map(work).collect()
}

/// What a plan asks for: jobs and suspects.
fn asked(plan: Option<&ClaimPlan>) -> Option<(usize, usize)> {
    plan.map(|plan| (plan.queues[0].1, plan.suspects))
}

#[test]
fn a_second_claim_goes_out_only_after_a_full_one() {
    let slot_table = slot_table();
    let first = slot_table.plan(Backlog::default());
    assert_eq!(asked(first.as_ref()), Some((4, 1)));
    assert_eq!(
        asked(slot_table.plan(Backlog::default()).as_ref()),
        None,
        "nobody knows yet whether there is more"
    );
    slot_table.admit(&first.expect("a plan"), works(4), Timestamp::EPOCH);
    let second = slot_table.plan(Backlog::default());
    assert_eq!(asked(second.as_ref()), Some((4, 1)));
    let third = slot_table.plan(Backlog::default());
    assert_eq!(asked(third.as_ref()), Some((2, 0)), "no second suspect while one may be on its way");
    slot_table.admit(&second.expect("a plan"), works(4), Timestamp::EPOCH);
    slot_table.admit(&third.expect("a plan"), works(1), Timestamp::EPOCH);
    let fourth = slot_table.plan(Backlog::default());
    assert_eq!(
        asked(fourth.as_ref()),
        Some((1, 1)),
        "the second was full, and a suspect may have been passed over"
    );
    slot_table.admit(&fourth.expect("a plan"), works(0), Timestamp::EPOCH);
    assert_eq!(
        asked(slot_table.plan(Backlog::default()).as_ref()),
        None,
        "it is empty, until something says otherwise"
    );
    slot_table.expect_jobs(None);
    assert_eq!(asked(slot_table.plan(Backlog::default()).as_ref()), Some((1, 1)));
}

#[test]
fn what_exceeds_the_free_slots_is_asked_for_ahead() {
    let slot_table = SlotTable::new(&[(QueueName::new("q").expect("a name"), 2)], 4);
    let ahead = |plan: &ClaimPlan| plan.ahead.first().map_or(0, |ahead| ahead.1);
    let first = slot_table.plan(Backlog::default()).expect("a plan");
    assert_eq!((asked(Some(&first)), ahead(&first)), (Some((2, 1)), 0));
    let (started, _) = slot_table.admit(&first, works(2), Timestamp::EPOCH);
    for _ in 0..200 {
        slot_table.lock().queues[0].mean_seconds *= 0.9;
    }
    let second = slot_table.plan(Backlog::default()).expect("a plan");
    assert_eq!((asked(Some(&second)), ahead(&second)), (Some((4, 1)), 4), "no slot is free");
    let mut works = works(3);
    works[0].ahead = true;
    works[1].ahead = true;
    slot_table.admit(&second, works, Timestamp::EPOCH);
    slot_table.expect_jobs(None);
    assert_eq!(slot_table.plan(Backlog::default()), None, "one waits whose crash would count");
    let next = slot_table.next(0, Duration::from_millis(1)).expect("one waits");
    assert!(!next.ahead, "it starts before what was claimed ahead");
    let third = slot_table.plan(Backlog::default()).expect("a plan");
    assert_eq!((asked(Some(&third)).map(|asked| asked.0), ahead(&third)), (Some(4), 4));
    assert_eq!(started.len(), 2);
}

#[test]
fn what_is_not_answered_is_asked_for_again() {
    let slot_table = slot_table();
    let missed = slot_table.plan(Backlog::default()).expect("a plan");
    slot_table.claim_failed(&missed);
    assert_eq!(asked(slot_table.plan(Backlog::default()).as_ref()), None, "it waits for a hint");
    slot_table.expect_jobs(None);
    assert_eq!(asked(slot_table.plan(Backlog::default()).as_ref()), Some((4, 1)));
}

fn name(text: &str) -> QueueName {
    QueueName::new(text).expect("a name")
}

/// Runs two of four jobs, and two wait that were claimed ahead.
fn busy() -> SlotTable {
    let slot_table = SlotTable::new(&[(name("q"), 2), (name("other"), 1)], CLAIM);
    let first = slot_table.plan(Backlog::default()).expect("a plan");
    let mut works = works(4);
    works[2].ahead = true;
    works[3].ahead = true;
    let (started, _) = slot_table.admit(&first, works, Timestamp::EPOCH);
    assert_eq!(started.len(), 2);
    slot_table
}

fn ids(works: &[UnstartedJob]) -> Vec<u8> {
    works.iter().map(|work| work.run.info.id.as_bytes()[0]).collect()
}

#[test]
fn new_slots_take_jobs_that_wait_and_ask_for_more() {
    let slot_table = busy();
    let resized = slot_table.set_slots(&name("q"), 3).expect("set");
    let started: Vec<_> = resized.start.into_iter().map(|(_, work)| work).collect();
    assert_eq!(
        (ids(&started), ids(&resized.release)),
        (vec![2], vec![3]),
        "nobody knows how quick it is now"
    );
    slot_table.set_slots(&name("q"), 8).expect("set");
    let plan = slot_table.plan(Backlog::default()).expect("a plan");
    let q = plan.queues.iter().find(|(queue, _)| *queue == name("q")).expect("it is asked for");
    assert_eq!(q.1, CLAIM - plan.queues.iter().filter(|(queue, _)| *queue != name("q")).count());
}

#[test]
fn fewer_slots_give_back_what_was_claimed_ahead_and_let_running_jobs_end() {
    let slot_table = busy();
    let resized = slot_table.set_slots(&name("q"), 1).expect("set");
    assert!(resized.start.is_empty());
    assert_eq!(ids(&resized.release), [3, 2]);
    assert_eq!(slot_table.serving()[0], (name("q"), 1));
    // The first that ends gives its slot up, the second goes on with the next job.
    assert!(slot_table.next(0, Duration::from_millis(1)).is_none());
    assert_eq!(slot_table.activity(Duration::ZERO)[0].running, 1);
    assert!(slot_table.next(0, Duration::from_millis(1)).is_none());
    let asked = slot_table.plan(Backlog::default()).expect("a plan").queues;
    assert!(asked.contains(&(name("q"), 1)), "{asked:?}");
}

#[test]
fn a_removed_queue_drains_and_its_entry_is_reused_when_nothing_is_left() {
    let slot_table = busy();
    let resized = slot_table.set_slots(&name("q"), 0).expect("set");
    assert_eq!(ids(&resized.release), [3, 2]);
    assert_eq!(slot_table.serving(), [(name("other"), 1)]);
    slot_table.expect_jobs(None);
    let asked = slot_table.plan(Backlog::default()).map(|plan| plan.queues);
    assert!(asked.iter().flatten().all(|(queue, _)| *queue == name("other")), "{asked:?}");
    // While a job of it runs, a new queue has an entry of its own.
    slot_table.set_slots(&name("new"), 1).expect("set");
    assert_eq!(slot_table.lock().queues.len(), 3);
    assert!(slot_table.next(0, Duration::ZERO).is_none());
    assert_eq!(slot_table.activity(Duration::ZERO)[0].slots, 0, "one still runs");
    assert!(slot_table.next(0, Duration::ZERO).is_none());
    let served: Vec<_> = slot_table.activity(Duration::ZERO).into_iter().map(|one| one.queue).collect();
    assert_eq!(served, [name("other"), name("new")]);
    slot_table.set_slots(&name("newer"), 1).expect("set");
    assert_eq!(slot_table.lock().queues.len(), 3, "its entry is reused");
}

#[test]
fn jobs_that_come_for_a_removed_queue_are_given_back() {
    let slot_table = SlotTable::new(&[(name("q"), 2), (name("other"), 1)], CLAIM);
    let plan = slot_table.plan(Backlog::default()).expect("a plan");
    slot_table.set_slots(&name("q"), 0).expect("set");
    // Its entry is not given to another queue while the claim is on its way.
    slot_table.set_slots(&name("new"), 1).expect("set");
    let (started, refused) = slot_table.admit(&plan, works(2), Timestamp::EPOCH);
    assert!(started.is_empty());
    assert_eq!(ids(&refused), [0, 1]);
}

#[test]
fn the_last_queue_stays_and_a_node_has_no_more_queues_than_it_may() {
    let slot_table = slot_table();
    assert!(matches!(slot_table.set_slots(&name("q"), 0), Err(Error::Invalid { what: "queue", .. })));
    for n in 1..bounds::NODE_QUEUES {
        slot_table.set_slots(&name(&format!("q{n}")), 1).expect("set");
    }
    let error = slot_table.set_slots(&name("more"), 1).expect_err("one too many");
    assert!(matches!(error, Error::TooLarge { what: "queues of a node", .. }), "{error}");
    slot_table.set_slots(&name("q"), 5).expect("one that is served is no new one");
}
