//! The search can fail: each defect is planted on the way to the store and told by its shortest story.

use mainspring_core::id::{Claim, ClaimBatchNo, JobId, NodeNo};
use mainspring_core::job::{Outcome, Reason, State, Status, Verb};
use mainspring_core::memory::Memory;
use mainspring_core::store::{
    Changed, ClaimRequest, ClaimedBatch, Filter, Finish, Finished, Nodes, Operators, Page, Rescue, Rescued,
};
use mainspring_core::time::Timestamp;
use mainspring_core::{Result, bounds};

use crate::harness::LEASE;

use super::call::{CallPath, DirectPath, now};
use super::step::Scope;
use super::{DEEP, search};

/// One claim has leases that lapse, answers that are lost and former members; each comparison is dozens of calls.
const DOUBTED: u8 = 1;

/// Two claims are enough for most defects, and quick.
const SMALL: Scope = Scope { claims: 2, ..DEEP };

/// Asserts the rule that breaks, and how: the story's lines after its beginning.
fn assert_found(scope: Scope, wire: &dyn CallPath, rule: &str, trace: &[&str]) {
    let violation = search::run(scope, wire).violations.pop().expect("the defect is found");
    assert_eq!(violation.rule, rule, "{violation}");
    assert_eq!(violation.trace[1..], *trace, "{violation}");
}

/// The claim and node that a job is held under, if it runs.
fn holder(store: &Memory, id: JobId) -> Option<(NodeNo, u32)> {
    let job = now(store.get(id)).expect("get").expect("a known job").summary;
    job.node.map(|node| (node, job.claim))
}

fn status(store: &Memory, id: JobId) -> Status {
    now(store.get(id)).expect("get").expect("a known job").summary.status
}

/// A finish is accepted under the present claim, whatever number it was sent with.
struct ClaimIgnored;

impl CallPath for ClaimIgnored {
    fn finish(&self, store: &Memory, node: NodeNo, finishes: Vec<Finish>) -> Result<Vec<Finished>> {
        let rewrite = |finish: Finish| match holder(store, finish.claim.id) {
            Some((holder, number)) if holder == node && finish.claim.number < number => {
                Finish { claim: Claim { number, ..finish.claim }, ..finish }
            }
            _ => finish,
        };
        let one = |finish: Finish| now(store.finish(node, vec![rewrite(finish)])).map(|answers| answers[0]);
        finishes.into_iter().map(one).collect()
    }
}

/// A finish is accepted whichever node sends it.
struct NodeIgnored;

impl CallPath for NodeIgnored {
    fn finish(&self, store: &Memory, node: NodeNo, finishes: Vec<Finish>) -> Result<Vec<Finished>> {
        let one = |finish: Finish| {
            let node = holder(store, finish.claim.id).map_or(node, |(holder, _)| holder);
            now(store.finish(node, vec![finish])).map(|answers| answers[0])
        };
        finishes.into_iter().map(one).collect()
    }
}

/// A rescuer says that it was steady and answered, whether it was or not.
struct BlindRescue;

impl CallPath for BlindRescue {
    fn rescue(&self, store: &Memory, rescue: Rescue) -> Result<Rescued> {
        now(store.rescue(Rescue { steady: bounds::LEASE_MAX, seen: Timestamp::MAX, ..rescue }))
    }
}

/// A rescue takes the claims of nodes that have half of their lease left.
struct EarlyRescue;

impl CallPath for EarlyRescue {
    fn rescue(&self, store: &Memory, rescue: Rescue) -> Result<Rescued> {
        let present = now(store.rescue(rescue))?;
        for node in now(store.nodes())? {
            let soon = node.lease_until.since(present.now) <= LEASE / 2;
            let fit = rescue.steady >= LEASE && rescue.seen >= present.now.before(LEASE / 2);
            if node.no != rescue.by && soon && fit {
                now(store.retire(node.no))?;
            }
        }
        Ok(present)
    }
}

/// A claim whose answer is lost is neither repeated nor disowned.
struct ClaimForgotten;

impl CallPath for ClaimForgotten {
    fn settles_lost_claims(&self) -> bool {
        false
    }
}

/// A claim that is repeated carries a new batch number each time.
struct RepeatUnderANewNumber(std::sync::atomic::AtomicU64);

impl CallPath for RepeatUnderANewNumber {
    fn claim(&self, store: &Memory, request: ClaimRequest) -> Result<ClaimedBatch> {
        let batch = ClaimBatchNo(self.0.fetch_add(1, std::sync::atomic::Ordering::Relaxed));
        now(store.claim(ClaimRequest { batch, ..request }))
    }
}

/// A cancellation is forgotten if the claim is released at the same time.
struct CancelLost;

impl CallPath for CancelLost {
    fn finish(&self, store: &Memory, node: NodeNo, finishes: Vec<Finish>) -> Result<Vec<Finished>> {
        let released: Vec<_> = finishes
            .iter()
            .filter(|finish| finish.outcome == Outcome::Release)
            .map(|finish| finish.claim.id)
            .collect();
        let open: Vec<_> = released.into_iter().filter(|id| holder(store, *id).is_some()).collect();
        let answers = now(store.finish(node, finishes))?;
        let lost = open
            .into_iter()
            .filter(|id| status(store, *id) == Status::because(State::Cancelled, Reason::Operator));
        now(store.change(lost.collect(), Verb::Retry, false))?;
        Ok(answers)
    }
}

/// An operator is told that a job was cancelled, and it was not.
struct CancelNotStored;

impl CallPath for CancelNotStored {
    fn cancel(&self, store: &Memory, id: JobId, why: String) -> Result<Vec<Changed>> {
        now(store.change(vec![id], Verb::Cancel { why }, true))
    }
}

/// A quarantined job goes on as if nothing had happened.
struct QuarantineIgnored;

impl CallPath for QuarantineIgnored {
    fn rescue(&self, store: &Memory, rescue: Rescue) -> Result<Rescued> {
        let rescued = now(store.rescue(rescue))?;
        let quarantined = Filter { states: vec![State::Suspended], ..Filter::default() };
        let jobs = now(store.list(quarantined, Page { after: None, limit: 2 }))?.jobs;
        now(store.change(jobs.into_iter().map(|job| job.id).collect(), Verb::Resume, false))?;
        Ok(rescued)
    }
}

/// A finish of a job that has ended is answered as if it had been stored.
struct LateFinishAccepted;

impl CallPath for LateFinishAccepted {
    fn finish(&self, store: &Memory, node: NodeNo, finishes: Vec<Finish>) -> Result<Vec<Finished>> {
        let ended: Vec<_> =
            finishes.iter().map(|finish| status(store, finish.claim.id).state.is_terminal()).collect();
        let answers = now(store.finish(node, finishes))?;
        let praise = |(answer, ended)| if ended { Finished::Applied } else { answer };
        Ok(answers.into_iter().zip(ended).map(praise).collect())
    }
}

#[test]
fn states_that_count_as_one_are_alike() {
    let report = search::run(Scope { claims: DOUBTED, doubts: true, ..DEEP }, &DirectPath);
    assert!(report.violations.is_empty(), "{report}");
}

#[test]
fn finish_under_an_old_claim_is_found() {
    assert_found(
        SMALL,
        &ClaimIgnored,
        "only the holder of a claim writes",
        &["A joins", "A claims job 1", "A ends claim 1 of job 1: release", "A claims job 1"],
    );
}

#[test]
fn finish_by_another_node_is_found() {
    assert_found(SMALL, &NodeIgnored, "only the holder of a claim writes", &["A joins", "A claims job 1"]);
}

#[test]
fn rescue_by_a_blind_node_is_found() {
    assert_found(
        SMALL,
        &BlindRescue,
        "only a live, steady rescuer takes claims",
        &[
            "A joins",
            "B joins",
            "B claims job 1",
            "half a lease goes by",
            "half a lease goes by, and not everybody renews",
        ],
    );
}

#[test]
fn rescue_before_the_lease_lapses_is_found() {
    assert_found(
        SMALL,
        &EarlyRescue,
        "only a live, steady rescuer takes claims, and only from a lapsed lease",
        &["A joins", "B joins", "B claims job 1", "half a lease goes by", "A rescues"],
    );
}

#[test]
fn claim_that_nobody_knows_of_is_found() {
    assert_found(
        SMALL,
        &ClaimForgotten,
        "once faults stop, every job can come to its end",
        &["A joins", "A claims job 1; the answer is lost"],
    );
}

#[test]
fn claim_repeated_under_a_new_number_is_found() {
    assert_found(
        SMALL,
        &RepeatUnderANewNumber(1.into()),
        "a repeated call changes nothing more",
        &["A joins", "A claims job 1"],
    );
}

#[test]
fn cancellation_that_a_release_swallows_is_found() {
    assert_found(
        SMALL,
        &CancelLost,
        "an acknowledged cancellation is never lost",
        &["A joins", "A claims job 1", "an operator cancels job 1", "A ends claim 1 of job 1: release"],
    );
}

#[test]
fn cancellation_that_was_only_acknowledged_is_found() {
    assert_found(
        SMALL,
        &CancelNotStored,
        "an acknowledged cancellation is never lost",
        &["an operator cancels job 1"],
    );
}

#[test]
fn second_accepted_outcome_is_found() {
    let trace = ["an operator cancels job 1"];
    assert_found(SMALL, &LateFinishAccepted, "an outcome is accepted once", &trace);
}

#[test]
fn third_crash_without_quarantine_is_found() {
    assert_found(
        DEEP,
        &QuarantineIgnored,
        "crashes count the claims that rescue took",
        &[
            "A joins",
            "B joins",
            "B claims job 1",
            "B crashes",
            "B joins",
            "half a lease goes by",
            "half a lease goes by",
            "B rescues",
            "B claims job 1",
            "B crashes",
            "B joins",
            "half a lease goes by",
            "half a lease goes by",
            "B rescues",
            "B claims job 1",
            "half a lease goes by",
            "half a lease goes by, and not everybody renews",
            "A rescues",
        ],
    );
}
