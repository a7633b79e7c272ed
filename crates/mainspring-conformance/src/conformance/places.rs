//! Places: every operation on a job in every place does what the state machine says, and nothing else.

use std::time::Duration;

use mainspring_core::id::{Claim, JobId, NodeNo};
use mainspring_core::job::{Input, Outcome, Reason, State, Status, Unique, Verb, When, transition};
use mainspring_core::store::{Filter, Receipt};

use super::workflow_calls::{suspended, until_signal, until_time};
use crate::harness::{Harness, LEASE, SECOND, because, cancel, fail, queue, retry, stopped, succeed};

/// A status of each kind that a place can hold.
const STATUSES: [Status; 9] = [
    Status::plain(State::Scheduled),
    Status::plain(State::Ready),
    Status::plain(State::Running),
    Status::because(State::Suspended, Reason::Timer),
    Status::because(State::Suspended, Reason::Signal),
    Status::because(State::Suspended, Reason::Hold),
    Status::plain(State::Succeeded),
    Status::because(State::Failed, Reason::Exhausted),
    Status::because(State::Cancelled, Reason::Operator),
];

/// What happens to a job. Verbs have a test of their own.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Operation {
    Claim,
    Succeed,
    Fail,
    Retry,
    Snooze,
    Stop,
    Release,
    Suspend,
    Retire,
    Disown,
    Rescue,
    Promote,
    Expire,
    Signal,
    Replace,
    EndOfParent,
}

const OPERATIONS: [Operation; 16] = [
    Operation::Claim,
    Operation::Succeed,
    Operation::Fail,
    Operation::Retry,
    Operation::Snooze,
    Operation::Stop,
    Operation::Release,
    Operation::Suspend,
    Operation::Retire,
    Operation::Disown,
    Operation::Rescue,
    Operation::Promote,
    Operation::Expire,
    Operation::Signal,
    Operation::Replace,
    Operation::EndOfParent,
];

/// When jobs that wait for a time are due, and when all of them are too late.
const DUE: Duration = SECOND;
const DEADLINE: Duration = Duration::from_secs(2);

impl Operation {
    /// What a handler says, if it is a handler that does it.
    fn outcome(self) -> Option<Outcome> {
        Some(match self {
            Operation::Succeed => succeed(),
            Operation::Fail => fail(),
            Operation::Retry => retry(DUE),
            Operation::Snooze => Outcome::Snooze { after: DUE },
            Operation::Stop => stopped("enough"),
            Operation::Release => Outcome::Release,
            Operation::Suspend => suspended(until_signal("go")),
            _ => return None,
        })
    }

    /// What that is to the state machine; `None` if it has nothing to do with a job like that.
    fn input(self, from: Status) -> Option<Input> {
        let waits_for = |reason| from == because(State::Suspended, reason);
        match self {
            Operation::Claim => Some(Input::Claim),
            Operation::Retire | Operation::Disown => Some(Input::Release),
            Operation::Rescue => Some(Input::Crash { quarantine: false }),
            Operation::Promote if from.state == State::Scheduled => Some(Input::Due),
            Operation::Promote => waits_for(Reason::Timer).then_some(Input::Wake),
            // The node of a job that runs looks after its deadline.
            Operation::Expire => (from.state != State::Running).then_some(Input::Fail(Reason::Expired)),
            Operation::Signal => waits_for(Reason::Signal).then_some(Input::Wake),
            Operation::Replace => Some(Input::Cancel(Reason::Replaced)),
            Operation::EndOfParent => Some(Input::Cancel(Reason::Parent)),
            handler => handler.outcome().map(|outcome| outcome.input()),
        }
    }
}

/// A job of `q2` that was claimed once.
struct Placed {
    node: NodeNo,
    claim: Claim,
    /// Its unique key; children have none.
    key: Option<String>,
    /// Who has started it, if it is a child.
    parent: Option<(NodeNo, Claim)>,
}

/// Brings a fresh job into a status. No other job of `q2` may be ready.
async fn place(h: &Harness, status: Status, as_child: bool) -> Placed {
    let (mut key, mut parent) = (None, None);
    if as_child {
        let (node, claim) = h.running().await;
        h.start(node, claim, h.child_with(|job| job.deadline = Some(When::After(DEADLINE)))).await;
        parent = Some((node, claim));
    } else {
        let job = h.job_with(|job| {
            key = Some(job.id.to_string());
            job.queue = queue("q2");
            job.deadline = Some(When::After(DEADLINE));
            job.options.unique = Some(job.id.to_string().into());
        });
        h.put(job).await;
    }
    let node = h.node().await;
    let claim = h.take_in(node, "q2").await.claim;
    let outcome = match (status.state, status.reason) {
        (State::Scheduled, _) => Some(Outcome::Snooze { after: DUE }),
        (State::Running, _) => None,
        (_, Some(Reason::Timer)) => Some(suspended(until_time(h.now().after(DUE)))),
        (_, Some(Reason::Signal)) => Some(suspended(until_signal("go"))),
        (State::Succeeded, _) => Some(succeed()),
        (State::Failed, _) => Some(fail()),
        _ => Some(Outcome::Release),
    };
    if let Some(outcome) = outcome {
        h.end(node, claim, outcome).await;
    }
    match status.reason {
        Some(Reason::Hold) => h.apply(claim.id, Verb::Hold { why: String::new() }).await,
        Some(Reason::Operator) => h.apply(claim.id, cancel("no")).await,
        _ => {}
    }
    assert_eq!(h.status(claim.id).await, status);
    Placed { node, claim, key, parent }
}

async fn perform(h: &Harness, operation: Operation, placed: &Placed) {
    let Placed { node, claim, .. } = *placed;
    if let Some(outcome) = operation.outcome() {
        h.finish(node, claim, outcome).await;
        return;
    }
    match operation {
        Operation::Claim => {
            let mut request = h.request(h.node().await, 1);
            request.queues = vec![(queue("q2"), 1)];
            h.claim_as(request).await;
        }
        Operation::Retire => drop(h.store.retire(node).await.expect("retire")),
        Operation::Disown => {
            let settled = h.batch(node);
            h.store.disown(node, settled, Vec::new()).await.expect("disown");
        }
        Operation::Rescue => {
            h.advance(LEASE);
            let rescuer = h.node().await;
            h.rescue(rescuer).await;
            h.store.retire(rescuer).await.expect("retire");
        }
        Operation::Promote => {
            h.advance(DUE);
            h.promote().await;
        }
        Operation::Expire => {
            h.advance(DEADLINE);
            h.expire().await;
        }
        Operation::Signal => drop(h.signal(claim.id, "go", "somebody").await),
        Operation::Replace => {
            let unique = Unique::new(placed.key.clone().expect("it has a key")).replace();
            h.enqueue(h.job_with(|job| job.options.unique = Some(unique))).await;
        }
        _ => {
            let (node, claim) = placed.parent.expect("it has a parent");
            h.end(node, claim, succeed()).await;
        }
    }
}

/// Whoever ends has let its key go, and nobody else has.
async fn assert_key_held(h: &Harness, id: JobId, key: &str, held: bool) {
    let other = h.job_with(|job| job.options.unique = Some(key.to_owned().into()));
    let (other_id, receipt) = (other.id, h.enqueue(other).await);
    let expected = if held { Receipt::Existing(id) } else { Receipt::Created };
    assert_eq!(receipt, expected);
    if receipt == Receipt::Created {
        h.apply(other_id, Verb::Delete).await;
    }
}

/// Every operation takes a job from every place to where the state machine says, or leaves it alone; and what a job holds is
/// released by its end, in whatever way it ends.
pub async fn every_operation_on_every_place_is_as_the_machine_says(h: &Harness) {
    for from in STATUSES {
        for operation in OPERATIONS {
            let placed = place(h, from, operation == Operation::EndOfParent).await;
            let before = h.get(placed.claim.id).await;
            perform(h, operation, &placed).await;
            let to = operation.input(from).and_then(|input| transition(from, input).ok());
            let after = h.get(placed.claim.id).await;
            let status = after.summary.status;
            assert_eq!(status, to.unwrap_or(from), "{operation:?} of a job that is {from}");
            if to.is_none() {
                assert_eq!(after, before, "{operation:?} of a job that is {from} changed it");
            }
            if let Some(key) = placed.key.as_deref().filter(|_| operation != Operation::Replace) {
                assert_key_held(h, placed.claim.id, key, !status.state.is_terminal()).await;
            }
            clear(h).await;
        }
    }
}

/// Takes away what could meet the next job. What has ended stays, for the check at the end.
async fn clear(h: &Harness) {
    for node in h.store.nodes().await.expect("nodes") {
        h.store.retire(node.no).await.expect("retire");
    }
    let open = State::ALL.iter().copied().filter(|state| !state.is_terminal()).collect();
    for id in h.ids(&Filter { states: open, ..Filter::default() }).await {
        h.apply(id, Verb::Delete).await;
    }
}
