//! Each rule holds of a good history and catches a bad one.

mod outputs;
mod rewinds;
mod schedules;
mod scopes;
mod workflows;

use std::time::Duration;

use mainspring_core::id::{JobId, NodeNo};
use mainspring_core::job::{Options, Priority, Reason, State, Status, Summary, Unique};
use mainspring_core::name::{Kind, QueueName};
use mainspring_core::store::{Abilities, Counts, Finding};
use mainspring_core::time::Timestamp;

use super::*;
use crate::history::{Actor, EndKind, EnqueueAnswer, Fact};

const EXACT: CheckTerms = CheckTerms {
    exact: true,
    settled: true,
    retention: None,
    recovery: Some(Duration::from_secs(1)),
    cut: false,
    claim: Some(1),
};

/// A history in the making: one event a second.
#[derive(Default)]
struct TestHistory {
    history: Vec<Event>,
    found: FinalState,
}

fn id(number: u8) -> JobId {
    JobId::from_bytes([number; 16])
}

fn at(second: usize) -> Timestamp {
    Timestamp::from_micros(i64::try_from(second).expect("a second") * 1_000_000)
}

impl TestHistory {
    fn see(&mut self, by: Actor, fact: Fact) -> &mut Self {
        let event = Event { at: at(self.history.len()), by, fact };
        self.history.push(event);
        self
    }

    fn stored(&mut self, job: u8) -> &mut Self {
        self.see(9, Fact::Asked { id: id(job), unique: None, delay: 0 });
        self.see(9, Fact::Acknowledged { id: id(job), told: EnqueueAnswer::Created })
    }

    fn joined(&mut self, node: u32) -> &mut Self {
        self.see(node, Fact::Joined { node: NodeNo(node.into()), lease: 2_000_000 })
    }

    fn claimed_after(&mut self, node: u32, job: u8, claim: u32, crashes: u16) -> &mut Self {
        let (node_no, now) = (NodeNo(node.into()), at(self.history.len()));
        let crashed = 60_000_000;
        self.see(
            node,
            Fact::Claimed { node: node_no, id: id(job), claim, crashes, crashed, ahead: false, now },
        );
        self.see(node, Fact::Began { id: id(job), claim })
    }

    fn claimed(&mut self, node: u32, job: u8, claim: u32) -> &mut Self {
        self.claimed_after(node, job, claim, 0)
    }

    fn ended(&mut self, node: u32, job: u8, claim: u32, how: EndKind, applied: bool) -> &mut Self {
        if how == EndKind::Succeed {
            self.see(node, Fact::Ended { id: id(job), claim });
        }
        let (node_no, id) = (NodeNo(node.into()), id(job));
        self.see(node, Fact::Stopped { id, claim });
        self.see(node, Fact::Finishing { node: node_no, id, claim, how });
        self.see(node, Fact::Finished { node: node_no, id, claim, how, applied })
    }

    fn fault(&mut self, kind: &str, on: Actor) -> &mut Self {
        self.see(0, Fact::fault(kind, Some(on), None))
    }

    fn expired(&mut self, node: u32) -> &mut Self {
        self.see(7, Fact::Expired { nodes: vec![NodeNo(node.into())] })
    }

    fn verb(&mut self, job: u8, verb: &str) -> &mut Self {
        let (id, verb) = (id(job), verb.to_owned());
        self.see(8, Fact::Ordered { id, verb: verb.clone() });
        let from = Status::plain(State::Running);
        self.see(8, Fact::Obeyed { id, verb, from, to: Some(from) })
    }

    fn found(&mut self, job: u8, status: Status, claim: u32) -> &mut Summary {
        let queue = QueueName::new("q").expect("a name");
        *self.found.counts.0.entry(queue.clone()).or_default().entry(status.state).or_default() += 1;
        self.found.jobs.push(Summary {
            id: id(job),
            kind: Kind::new("k").expect("a name"),
            queue,
            priority: Priority::default(),
            status,
            claim,
            failures: 0,
            crashes: 0,
            created_at: at(0),
            run_at: None,
            claimed_at: None,
            finished_at: status.state.is_terminal().then(|| at(1_000)),
            deadline: None,
            node: None,
            cancelling: false,
            stuck: false,
            foreign: false,
            unreadable: None,
            options: Options::default(),
        });
        self.found.jobs.last_mut().expect("just added")
    }

    fn succeeded(&mut self, job: u8, claim: u32) -> &mut Summary {
        self.found(job, Status::plain(State::Succeeded), claim)
    }

    fn rules(&self, terms: CheckTerms) -> Vec<&'static str> {
        let mut broken: Vec<_> =
            check(&self.history, &self.found, terms).violations.into_iter().map(|one| one.rule).collect();
        broken.dedup();
        broken
    }

    /// This rule is broken, beside others that may be.
    fn breaks_too(&self, rule: &str) {
        assert!(self.rules(EXACT).contains(&rule), "{:?}", self.rules(EXACT));
    }

    /// This rule is broken, before all others that may be.
    fn breaks(&self, rule: &str) {
        assert_eq!(self.rules(EXACT).first(), Some(&rule));
    }
}

/// A job that is enqueued, claimed and done.
fn done() -> TestHistory {
    let mut case = TestHistory::default();
    case.joined(1).stored(1).claimed(1, 1, 1).ended(1, 1, 1, EndKind::Succeed, true);
    case
}

#[test]
fn a_good_history_breaks_nothing() {
    let mut case = done();
    case.succeeded(1, 1);
    assert!(case.rules(EXACT).is_empty());
    let figures = check(&case.history, &case.found, EXACT).figures;
    assert_eq!((figures.asked, figures.acknowledged, figures.claims, figures.accepted), (1, 1, 1, 1));
}

#[test]
fn acknowledged_jobs_are_there() {
    done().breaks("nothing acknowledged is lost");
    let mut deleted = done();
    deleted.verb(1, "delete");
    assert!(deleted.rules(EXACT).is_empty());
}

#[test]
fn after_a_cut_only_the_last_may_be_gone() {
    let mut case = TestHistory::default();
    case.stored(1).stored(2).stored(3);
    case.found(1, Status::plain(State::Ready), 0);
    let cut = CheckTerms { cut: true, ..CheckTerms::default() };
    assert!(case.rules(cut).is_empty());
    case.found(3, Status::plain(State::Ready), 0);
    assert_eq!(case.rules(cut), ["nothing acknowledged is lost"]);
}

#[test]
fn jobs_come_from_somewhere() {
    let mut case = TestHistory::default();
    case.found(1, Status::because(State::Suspended, Reason::Quarantine), 0).crashes = 0;
    let relaxed = CheckTerms::default();
    assert_eq!(case.rules(relaxed), ["nothing comes from nowhere"]);
    let mut refused = TestHistory::default();
    refused.see(9, Fact::Asked { id: id(1), unique: None, delay: 0 }).see(9, Fact::Refused { id: id(1) });
    refused.found(1, Status::plain(State::Ready), 0);
    assert_eq!(refused.rules(relaxed), ["nothing comes from nowhere"]);
}

#[test]
fn stores_agree_with_themselves() {
    let mut case = done();
    case.succeeded(1, 1);
    case.found.counts = Counts::default();
    case.breaks("a job is in one place");
    let mut finding = done();
    finding.succeeded(1, 1);
    finding.found.findings.push(Finding { what: "two places".into(), hint: String::new() });
    finding.breaks("a job is in one place");
}

#[test]
fn nothing_is_left_undone() {
    let mut case = TestHistory::default();
    case.stored(1);
    case.found(1, Status::plain(State::Ready), 0);
    case.breaks("everything ends once faults are over");
    let mut held = TestHistory::default();
    held.stored(1).verb(1, "hold");
    held.found(1, Status::because(State::Suspended, Reason::Hold), 0);
    assert!(held.rules(EXACT).is_empty());
}

#[test]
fn delays_are_kept() {
    let mut case = TestHistory::default();
    case.joined(1).see(9, Fact::Asked { id: id(1), unique: None, delay: 60_000_000 });
    case.claimed(1, 1, 1).ended(1, 1, 1, EndKind::Succeed, true);
    case.succeeded(1, 1);
    case.breaks("no job starts before its time");
}

#[test]
fn one_number_has_one_owner() {
    let mut case = TestHistory::default();
    case.joined(1).joined(2).stored(1).claimed(1, 1, 1);
    let (node, now) = (NodeNo(2), at(9));
    case.see(2, Fact::Claimed { node, id: id(1), claim: 1, crashes: 0, crashed: 0, ahead: false, now });
    case.ended(1, 1, 1, EndKind::Succeed, true);
    case.succeeded(1, 1);
    case.breaks("claim numbers grow");
}

#[test]
fn a_claim_is_handed_over() {
    let mut case = TestHistory::default();
    case.joined(1).joined(2).stored(1).claimed(1, 1, 1).claimed(2, 1, 2);
    case.ended(1, 1, 1, EndKind::Succeed, false).ended(2, 1, 2, EndKind::Succeed, true);
    case.succeeded(1, 2);
    case.breaks("a claim is over before the next begins");
}

#[test]
fn stale_writes_are_refused() {
    let lost = |applied: bool| {
        let mut case = TestHistory::default();
        case.joined(1).joined(2).stored(1).claimed(1, 1, 1).fault("stop", 1).expired(1);
        case.claimed_after(2, 1, 2, 1);
        case.ended(1, 1, 1, EndKind::Retry, applied).ended(2, 1, 2, EndKind::Succeed, true);
        case.succeeded(1, 2).failures = u16::from(applied);
        case
    };
    assert!(lost(false).rules(EXACT).is_empty());
    assert_eq!(check(&lost(false).history, &lost(false).found, EXACT).figures.stale, 1);
    lost(true).breaks("only the owner can write");
}

#[test]
fn what_somebody_else_brought_about_may_be_told_as_accepted() {
    let told = |expired: bool| {
        let mut case = TestHistory::default();
        case.joined(1).joined(2).stored(1).claimed(1, 1, 1).fault("stop", 1);
        if expired {
            case.expired(1);
        }
        let (id, from) = (id(1), Status::because(State::Cancelled, Reason::Operator));
        case.verb(1, "cancel").see(8, Fact::Ordered { id, verb: "retry".into() });
        let to = Some(Status::plain(State::Ready));
        case.see(8, Fact::Obeyed { id, verb: "retry".into(), from, to });
        case.claimed(2, 1, 2).ended(1, 1, 1, EndKind::Cancel, true).ended(2, 1, 2, EndKind::Succeed, true);
        case.succeeded(1, 2);
        case.rules(EXACT)
    };
    assert!(!told(true).contains(&"only the owner can write"), "{:?}", told(true));
    assert!(told(false).contains(&"only the owner can write"));
}

#[test]
fn an_end_is_an_end() {
    let mut case = done();
    case.claimed(1, 1, 2).ended(1, 1, 2, EndKind::Succeed, true);
    case.succeeded(1, 2);
    assert_eq!(case.rules(EXACT), ["one outcome", "what has ended stays ended"]);
    let retried = |how| {
        let mut case = TestHistory::default();
        case.joined(1).stored(1).claimed(1, 1, 1).ended(1, 1, 1, how, true);
        case.verb(1, "retry").claimed(1, 1, 2).ended(1, 1, 2, EndKind::Succeed, true);
        case.succeeded(1, 2);
        case
    };
    assert!(retried(EndKind::Cancel).rules(EXACT).is_empty());
    retried(EndKind::Succeed).breaks("what has ended stays ended");
}

#[test]
fn what_is_found_is_what_was_accepted() {
    let mut case = done();
    case.found(1, Status::because(State::Failed, Reason::Exhausted), 1);
    case.breaks("the store tells what was accepted");
    let mut without_effect = TestHistory::default();
    without_effect.joined(1).stored(1).claimed(1, 1, 1);
    without_effect.succeeded(1, 1);
    without_effect.breaks("the store tells what was accepted");
}

#[test]
fn crashes_burn_no_retry() {
    let mut case = done();
    case.succeeded(1, 1).failures = 1;
    case.breaks("only failures count as failures");
}

#[test]
fn a_claim_is_started_once() {
    let mut case = TestHistory::default();
    case.joined(1).stored(1).claimed(1, 1, 1).see(1, Fact::Began { id: id(1), claim: 1 });
    case.ended(1, 1, 1, EndKind::Succeed, true);
    case.succeeded(1, 1);
    case.breaks("a claim runs once");
}

#[test]
fn cancellations_hold() {
    let mut case = TestHistory::default();
    case.joined(1).stored(1).claimed(1, 1, 1).verb(1, "cancel").ended(1, 1, 1, EndKind::Retry, true);
    case.claimed(1, 1, 2).ended(1, 1, 2, EndKind::Succeed, true);
    case.succeeded(1, 2).failures = 1;
    case.breaks("cancellations are not lost");
}

#[test]
fn keys_are_unique() {
    let mut case = TestHistory::default();
    case.stored(1).stored(2);
    let options = || Options { unique: Some(Unique::new("key")), ..Options::default() };
    for job in [1, 2] {
        let job = case.found(job, Status::because(State::Failed, Reason::Operator), 0);
        (job.options, job.created_at) = (options(), at(job.id.to_string().len()));
    }
    case.breaks("unique keys hold");
    case.found.jobs[0].finished_at = Some(case.found.jobs[0].created_at);
    assert!(case.rules(EXACT).is_empty());
}

#[test]
fn only_the_dead_are_expired() {
    let mut case = done();
    case.succeeded(1, 1);
    case.expired(1);
    case.breaks("nobody living is expired");
    let mut outage = done();
    outage.succeeded(1, 1);
    outage.see(0, Fact::fault("outage", None, None)).expired(1);
    outage.breaks("nobody living is expired");
    let mut stopped = done();
    stopped.succeeded(1, 1);
    stopped.fault("stop", 1).expired(1);
    assert!(stopped.rules(EXACT).is_empty());
}

#[test]
fn suspects_are_alone() {
    let mut case = TestHistory::default();
    case.joined(1).stored(1).stored(2).claimed_after(1, 1, 1, 2).claimed_after(1, 2, 1, 2);
    case.ended(1, 1, 1, EndKind::Succeed, true).ended(1, 2, 1, EndKind::Succeed, true);
    case.succeeded(1, 1);
    case.succeeded(2, 1);
    case.breaks("suspects run alone");
}

#[test]
fn innocents_are_not_quarantined() {
    let mut case = TestHistory::default();
    case.joined(1).stored(1).claimed(1, 1, 1).fault("kill", 1).expired(1);
    case.found(1, Status::because(State::Suspended, Reason::Quarantine), 1).crashes = 1;
    case.breaks("only what crashes is quarantined");
}

#[test]
fn what_was_claimed_ahead_is_not_blamed_even_where_not_all_is_seen() {
    let told = |ahead: bool, crashes: u16| {
        let mut case = TestHistory::default();
        let (id, now) = (id(1), at(3));
        case.joined(1).joined(2).stored(1);
        case.see(1, Fact::Claimed { node: NodeNo(1), id, claim: 1, crashes: 0, crashed: 1, ahead, now });
        case.fault("kill", 1).expired(1).claimed_after(2, 1, 2, crashes).ended(
            2,
            1,
            2,
            EndKind::Succeed,
            true,
        );
        case.succeeded(1, 2);
        case.rules(CheckTerms { exact: false, ..EXACT })
    };
    let rule = "only what crashes is quarantined";
    assert!(told(true, 1).contains(&rule));
    assert!(told(false, 2).contains(&rule));
    assert!(!told(true, 0).contains(&rule) && !told(false, 1).contains(&rule));
}

#[test]
fn what_was_lost_is_for_a_free_slot() {
    let lost = |between: fn(&mut TestHistory), ahead: bool| {
        let mut case = TestHistory::default();
        case.joined(1).joined(2).stored(1).claimed(1, 1, 1);
        between(&mut case);
        let now = at(case.history.len());
        let (node, id) = (NodeNo(2), id(1));
        case.see(2, Fact::Claimed { node, id, claim: 2, crashes: 1, crashed: 1, ahead, now });
        case.see(2, Fact::Began { id, claim: 2 }).ended(2, 1, 2, EndKind::Succeed, true);
        case.succeeded(1, 2);
        case
    };
    let rule = "what was lost is claimed for a free slot";
    let dies = |case: &mut TestHistory| {
        case.fault("kill", 1).expired(1);
    };
    lost(dies, true).breaks(rule);
    assert!(!lost(dies, false).rules(EXACT).contains(&rule));
    let given_back = |case: &mut TestHistory| {
        case.ended(1, 1, 1, EndKind::Release, true);
    };
    assert!(!lost(given_back, true).rules(EXACT).contains(&rule));
    let held = |case: &mut TestHistory| {
        case.fault("kill", 1).expired(1).verb(1, "hold");
    };
    assert!(!lost(held, true).rules(EXACT).contains(&rule));
}

#[test]
fn nothing_begins_when_a_lease_has_lapsed() {
    let rule = "no body begins when its lease has lapsed";
    let stopped = |seconds: usize, late: i64| {
        let mut case = TestHistory::default();
        case.joined(1).stored(1).claimed(1, 1, 1);
        let over = at(case.history.len() + seconds);
        case.see(0, Fact::fault("stop", Some(1), Some(over))).entered(1, 1, "a");
        if let Some(event) = case.history.last_mut() {
            event.at = Timestamp::from_micros(over.as_micros() + late);
        }
        case
    };
    // Its lease is two seconds.
    stopped(3, 0).breaks_too(rule);
    assert!(!stopped(2, 0).rules(EXACT).contains(&rule), "not for longer than its lease");
    assert!(!stopped(3, 100).rules(EXACT).contains(&rule), "it may have been answered");
    let mut twice = stopped(3, 0);
    let first = Fact::fault("stop", Some(1), Some(at(7)));
    twice.history.insert(5, Event { at: at(5), by: 0, fact: first });
    assert!(!twice.rules(EXACT).contains(&rule), "it went on earlier");
    let mut claimed_since = stopped(3, 0);
    claimed_since.history.swap(3, 5);
    assert!(!claimed_since.rules(EXACT).contains(&rule));
}

#[test]
fn the_dead_are_found_in_time() {
    let mut case = TestHistory::default();
    case.joined(1).joined(2).stored(1).stored(2).claimed(1, 1, 1).fault("kill", 1);
    // Somebody is there to notice, and goes on for a while.
    case.claimed(2, 2, 1).ended(2, 2, 1, EndKind::Succeed, true).expired(1);
    case.claimed(2, 1, 2).ended(2, 1, 2, EndKind::Succeed, true);
    case.succeeded(1, 2);
    case.succeeded(2, 1);
    case.breaks("the dead are found in time");
}

fn able(case: &mut TestHistory, node: u32, queue: &str, slots: u32) {
    let queues = vec![(QueueName::new(queue).expect("a name"), slots)];
    let abilities = Abilities { kinds: vec![Kind::new("k").expect("a name")], ..Abilities::default() };
    case.see(node, Fact::Abilities { node: NodeNo(node.into()), queues, abilities });
}

#[test]
fn a_node_is_given_what_it_can_do() {
    let mut case = TestHistory::default();
    case.joined(1);
    able(&mut case, 1, "other", 1);
    case.stored(1).claimed(1, 1, 1).ended(1, 1, 1, EndKind::Succeed, true);
    case.succeeded(1, 1);
    case.breaks("a node is given what it can do");
}

#[test]
fn paused_queues_rest() {
    let queue = || QueueName::new("q").expect("a name");
    let mut case = TestHistory::default();
    case.joined(1).stored(1).see(8, Fact::Paused { queue: queue(), paused: true });
    let mut resumed = TestHistory { history: case.history.clone(), found: FinalState::default() };
    resumed.see(8, Fact::Paused { queue: queue(), paused: false });
    for case in [&mut case, &mut resumed] {
        case.claimed(1, 1, 1).ended(1, 1, 1, EndKind::Succeed, true);
        case.succeeded(1, 1);
    }
    case.breaks("paused queues rest");
    assert!(resumed.rules(EXACT).is_empty());
}

#[test]
fn no_more_run_than_there_are_slots() {
    let mut case = TestHistory::default();
    case.joined(1);
    able(&mut case, 1, "q", 1);
    case.stored(1).stored(2).claimed(1, 1, 1).claimed(1, 2, 1);
    case.ended(1, 1, 1, EndKind::Succeed, true).ended(1, 2, 1, EndKind::Succeed, true);
    case.succeeded(1, 1);
    case.succeeded(2, 1);
    case.breaks("no more run than there are slots");
}

#[test]
fn a_node_holds_no_more_than_it_has_room_for() {
    let rule = "a node holds no more than it has room for";
    // One slot and two claims of one job behind it, twice.
    let held = |count: u8, ended: u8| {
        let mut case = TestHistory::default();
        case.joined(1);
        able(&mut case, 1, "q", 1);
        for job in 1..=count {
            case.stored(job);
            case.see(
                1,
                Fact::Claimed {
                    node: NodeNo(1),
                    id: id(job),
                    claim: 1,
                    crashes: 0,
                    crashed: 0,
                    ahead: false,
                    now: at(0),
                },
            );
            if job <= ended {
                case.ended(1, job, 1, EndKind::Succeed, true);
            }
            case.succeeded(job, 1);
        }
        case.rules(EXACT).contains(&rule)
    };
    assert!(held(7, 0) && !held(6, 0) && !held(20, 14));
}

#[test]
fn only_what_is_damaged_is_set_aside_for_it() {
    let rule = "only what is damaged is set aside for it";
    let aside = Status::because(State::Suspended, Reason::Unreadable);
    let mut innocent = TestHistory::default();
    innocent.joined(1).stored(1).found(1, aside, 0);
    innocent.breaks_too(rule);
    let mut mended = TestHistory::default();
    mended.joined(1).stored(1).see(9, Fact::Damaged { id: id(1), claim: 0 });
    mended.see(9, Fact::Mended { id: id(1) }).found(1, aside, 1);
    mended.breaks_too(rule);
}

#[test]
fn what_is_damaged_does_not_run() {
    let rule = "what is damaged does not run";
    let mut case = TestHistory::default();
    case.joined(1).stored(1).see(9, Fact::Damaged { id: id(1), claim: 0 });
    let mut mended = TestHistory { history: case.history.clone(), found: FinalState::default() };
    mended.see(9, Fact::Mended { id: id(1) });
    for (case, number) in [(&mut case, 1), (&mut mended, 2)] {
        case.claimed(1, 1, number).ended(1, 1, number, EndKind::Succeed, true);
        case.succeeded(1, number);
    }
    case.breaks_too(rule);
    assert!(mended.rules(EXACT).is_empty());
    let mut resumed = TestHistory::default();
    resumed.joined(1).stored(1).see(9, Fact::Damaged { id: id(1), claim: 0 }).verb(1, "resume");
    resumed.breaks_too(rule);
}

#[test]
fn what_is_damaged_counts_no_crash() {
    let rule = "what is damaged counts no crash";
    let status = Status::because(State::Suspended, Reason::Unreadable);
    let looked = |crashes: u16| {
        let mut case = TestHistory::default();
        case.joined(1).stored(1).claimed(1, 1, 1).fault("crash", 1).expired(1);
        case.see(9, Fact::Damaged { id: id(1), claim: 1 });
        case.see(9, Fact::Looked { id: id(1), status, claim: 2, crashes });
        case.rules(EXACT).contains(&rule)
    };
    assert!(looked(0) && !looked(1) && looked(2));
}

#[test]
fn what_is_damaged_holds_up_nobody() {
    let looked = |state: State, calm: bool| {
        let mut case = TestHistory::default();
        case.joined(1).stored(1).see(9, Fact::Damaged { id: id(2), claim: 0 });
        if calm {
            case.see(0, Fact::Calm);
        }
        case.see(9, Fact::Looked { id: id(1), status: Status::plain(state), claim: 0, crashes: 0 });
        case.rules(EXACT).contains(&"what is damaged holds up nobody")
    };
    assert!(looked(State::Ready, true) && looked(State::Running, true));
    assert!(!looked(State::Succeeded, true) && !looked(State::Ready, false));
}

#[test]
fn the_urgent_come_first() {
    let mut case = TestHistory::default();
    case.joined(1).stored(1).stored(2);
    case.claimed(1, 1, 1).ended(1, 1, 1, EndKind::Succeed, true);
    case.claimed(1, 2, 1).ended(1, 2, 1, EndKind::Succeed, true);
    case.succeeded(1, 1);
    case.succeeded(2, 1).priority = Priority::HIGHEST;
    case.breaks("the urgent come first");
}

#[test]
fn deadlines_hold() {
    let mut case = TestHistory::default();
    case.joined(1).stored(1).see(9, Fact::Bounded { id: id(1), deadline: 1_000_000 });
    case.claimed(1, 1, 1).ended(1, 1, 1, EndKind::Succeed, true);
    case.succeeded(1, 1);
    case.breaks("deadlines hold");
    // Who waits to be suspended does nothing any more, also if he is dropped before that; who still ran something did.
    for (late, dropped, holds) in
        [(false, false, true), (false, true, true), (true, false, false), (true, true, false)]
    {
        let mut case = TestHistory::default();
        case.joined(1).stored(1).see(9, Fact::Bounded { id: id(1), deadline: 10_000_000 });
        case.claimed(1, 1, 1).ran(1, 1, "a");
        for _ in 0..8 {
            case.fault("hint lost", 1);
        }
        if late {
            case.see(1, Fact::Ran { id: id(1), claim: 1, key: "a".into() });
        }
        if dropped {
            case.see(1, Fact::Stopped { id: id(1), claim: 1 });
        }
        let (node, how) = (NodeNo(1), EndKind::Suspend);
        case.see(1, Fact::Finishing { node, id: id(1), claim: 1, how });
        case.see(1, Fact::Finished { node, id: id(1), claim: 1, how, applied: false });
        case.found(1, Status::because(State::Failed, Reason::Expired), 1);
        assert_eq!(!case.rules(EXACT).contains(&"deadlines hold"), holds, "{late} {dropped}");
    }
}

#[test]
fn what_is_to_wait_waits() {
    let mut case = TestHistory::default();
    case.joined(1).stored(1).claimed(1, 1, 1);
    case.see(1, Fact::Deferred { id: id(1), claim: 1, after: 60_000_000 });
    case.ended(1, 1, 1, EndKind::Retry, true).claimed(1, 1, 2).ended(1, 1, 2, EndKind::Succeed, true);
    case.succeeded(1, 2).failures = 1;
    case.breaks("what is to wait waits");
}

#[test]
fn who_has_his_claim_is_not_refused() {
    let mut case = TestHistory::default();
    case.joined(1).stored(1).claimed(1, 1, 1).ended(1, 1, 1, EndKind::Retry, false);
    case.found(1, Status::because(State::Failed, Reason::Expired), 1);
    case.breaks("who has his claim is not refused");
}

#[test]
fn what_is_reported_has_happened() {
    let mut case = TestHistory::default();
    let node = NodeNo(1);
    case.joined(1).stored(1);
    case.see(
        1,
        Fact::Claimed { node, id: id(1), claim: 1, crashes: 0, crashed: 0, ahead: false, now: at(3) },
    );
    case.ended(1, 1, 1, EndKind::Retry, true).claimed(1, 1, 2).ended(1, 1, 2, EndKind::Succeed, true);
    case.succeeded(1, 2).failures = 1;
    case.breaks("what is reported has happened");
}

#[test]
fn as_many_attempts_as_were_given() {
    let mut case = TestHistory::default();
    case.joined(1).stored(1).claimed(1, 1, 1).ended(1, 1, 1, EndKind::Fail, true);
    let job = case.found(1, Status::because(State::Failed, Reason::Exhausted), 1);
    (job.failures, job.options.max_attempts) = (1, 3);
    case.breaks("as many attempts as were given");
}

#[test]
fn crashes_are_counted() {
    let mut case = TestHistory::default();
    case.joined(1).joined(2).stored(1).claimed(1, 1, 1).fault("kill", 1).expired(1);
    case.claimed_after(2, 1, 2, 2).ended(2, 1, 2, EndKind::Succeed, true);
    case.succeeded(1, 2);
    case.breaks("crashes are counted");

    let mut case = TestHistory::default();
    case.joined(1).joined(2).stored(1).claimed(1, 1, 1).fault("kill", 1).expired(1);
    case.claimed_after(2, 1, 2, 1).ended(2, 1, 2, EndKind::Succeed, true);
    case.succeeded(1, 2);
    for seen in &mut case.history {
        if let Fact::Claimed { claim: 1, ahead, .. } = &mut seen.fact {
            *ahead = true;
        }
    }
    case.breaks("crashes are counted");
}

#[test]
fn who_waits_is_told_and_not_before() {
    let mut case = TestHistory::default();
    case.joined(1).stored(1).see(9, Fact::Awaits { id: id(1) });
    case.see(9, Fact::Answered { id: id(1), status: Some(Status::plain(State::Succeeded)) });
    case.claimed(1, 1, 1).ended(1, 1, 1, EndKind::Succeed, true);
    case.succeeded(1, 1);
    case.breaks("who waits is told");
}

#[test]
fn stories_are_short_and_tell_what_matters() {
    let mut case = done();
    for claim in 2..40 {
        case.claimed(1, 1, claim).ended(1, 1, claim, EndKind::Retry, true);
    }
    case.succeeded(1, 1);
    let report = check(&case.history, &case.found, EXACT);
    let violation =
        report.violations.iter().find(|one| one.rule == "what has ended stays ended").expect("seen");
    let timeline = violation.to_string();
    assert!(timeline.contains("claims …010101 as 2 for node 1"), "{timeline}");
    assert!(timeline.contains("in the end: succeeded by claim 1"), "{timeline}");
    assert!(violation.timeline.len() < 20, "{timeline}");
}
