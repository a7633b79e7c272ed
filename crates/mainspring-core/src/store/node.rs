//! Nodes, leases and rescue: what goes over the seam.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::bounds;
use crate::id::{Claim, NodeId, NodeNo};
use crate::job::Reason;
use crate::name::{Kind, Label, QueueName};
use crate::store::{ActivityReport, QueueActivity};
use crate::time::Timestamp;
use crate::{Error, Result};

/// The jobs that a node can run: those of its kinds that require only its labels.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Abilities {
    /// The kinds it handles, sorted and without repeats.
    pub kinds: Vec<Kind>,
    /// Its labels, sorted and without repeats.
    pub labels: Vec<Label>,
    /// Labels that it gets at a later time.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub later: Vec<(Label, Timestamp)>,
}

impl Abilities {
    /// Returns whether the node can run a job of this kind with these required labels.
    pub fn runs(&self, kind: &Kind, required: &[Label], now: Timestamp) -> bool {
        self.kinds.binary_search(kind).is_ok() && required.iter().all(|label| self.has(label, now))
    }

    /// Returns whether the node has a label.
    pub fn has(&self, label: &Label, now: Timestamp) -> bool {
        self.labels.binary_search(label).is_ok()
            || self.later.iter().any(|(later, from)| later == label && *from <= now)
    }

    /// Returns when the node will be able to run more than now.
    pub fn grows(&self, now: Timestamp) -> Option<Timestamp> {
        self.later.iter().map(|(_, from)| *from).filter(|from| *from > now).min()
    }
}

/// A node that wants to join.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Registration {
    /// Its id, fresh at each start.
    pub id: NodeId,
    /// Its name for people.
    pub name: String,
    /// The version of the application it runs.
    pub version: String,
    /// Its process.
    pub pid: u32,
    /// What it can run.
    pub abilities: Abilities,
    /// The queues it serves and its slots for each.
    pub queues: Vec<(QueueName, u32)>,
    /// How long its lease lasts.
    pub lease: Duration,
}

impl Registration {
    /// Checks every bound.
    ///
    /// # Errors
    /// [`Error::TooLarge`] or [`Error::NodeSetup`].
    pub fn check(&self) -> Result<()> {
        let at_most = |what, size, limit| {
            if size > limit { Err(Error::TooLarge { what, size, limit }) } else { Ok(()) }
        };
        at_most("node name", self.name.len().max(self.version.len()), bounds::NODE_NAME_BYTES)?;
        at_most("labels", self.abilities.labels.len() + self.abilities.later.len(), bounds::LABELS)?;
        at_most("queues of a node", self.queues.len(), bounds::NODE_QUEUES)?;
        at_most("kinds of a node", self.abilities.kinds.len(), bounds::NODE_KINDS)?;
        let setup = |why: String| Err(Error::NodeSetup { why });
        if self.lease < bounds::LEASE_MIN || self.lease > bounds::LEASE_MAX {
            let (min, max) = (bounds::LEASE_MIN, bounds::LEASE_MAX);
            return setup(format!("a lease of {:?} is not between {min:?} and {max:?}", self.lease));
        }
        if self.name.contains('\0') || self.version.contains('\0') {
            return setup("its name or version contains NUL".into());
        }
        match self.queues.iter().find(|(_, slots)| *slots == 0 || *slots > bounds::SLOTS) {
            Some((queue, slots)) => {
                setup(format!("{slots} slots for queue `{queue}` are not between 1 and {}", bounds::SLOTS))
            }
            None => Ok(()),
        }
    }
}

/// A node that has joined.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Registered {
    /// Its number.
    pub no: NodeNo,
    /// The store's time.
    pub now: Timestamp,
}

/// A renewal of a node's lease.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Renewal {
    /// The node.
    pub node: NodeNo,
    /// What it has noticed about its claims since the last renewal. The store ignores stale claims.
    pub marks: Vec<(Claim, Mark)>,
    /// Whether it claims nothing because the store does not accept its outcomes.
    pub backed_up: bool,
    /// What it does for its queues. Those with slots are the queues that it serves from now on.
    pub queues: Vec<QueueActivity>,
}

impl Renewal {
    /// Creates a renewal without reports.
    pub const fn new(node: NodeNo) -> Self {
        Renewal { node, marks: Vec::new(), backed_up: false, queues: Vec::new() }
    }
}

/// A fact that a node notices about one of its claims.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mark {
    /// The handler outlived its time-out and does not yield.
    Stuck,
    /// A suspect has outlived the longest of its crashed claims: it counts one crash from here on.
    Cleared,
    /// The handler of a workflow awaits something that is not durable, and so keeps its slot.
    Foreign,
    /// It goes on: that is over.
    GoesOn,
}

impl Mark {
    /// The number that stores keep for a claim without a mark.
    pub const NONE: u8 = 0;
    /// The number that stores keep for a claim whose handler is [`Stuck`](Mark::Stuck).
    pub const BLOCKED: u8 = 1;
    /// The number that stores keep for a claim whose handler awaits something [`Foreign`](Mark::Foreign); 0 once it
    /// continues.
    pub const FOREIGN: u8 = 2;
}

/// The answer of a store to a renewal.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Renewed {
    /// The store's time.
    pub now: Timestamp,
    /// Claims of this node to cancel, and why. The store repeats them until they end.
    pub cancel: Vec<(Claim, Cancellation)>,
}

/// A request to stop a running job.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Cancellation {
    /// Who asks: [`Operator`](Reason::Operator) or [`Parent`](Reason::Parent).
    pub reason: Reason,
    /// Their reason, in words.
    pub why: String,
}

impl Cancellation {
    /// Creates a request of an operator.
    pub fn operator(why: impl Into<String>) -> Self {
        Cancellation { reason: Reason::Operator, why: why.into() }
    }

    /// Creates a request of the job's parent, which no longer needs it.
    pub fn parent(why: impl Into<String>) -> Self {
        Cancellation { reason: Reason::Parent, why: why.into() }
    }

    /// Creates the request for a job whose parent has ended.
    pub fn orphan() -> Self {
        Cancellation::parent("its parent ended")
    }
}

/// A request to expire dead nodes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Rescue {
    /// The node that asks.
    pub by: NodeNo,
    /// How long the store has answered that node without a break.
    pub steady: Duration,
    /// When the store last answered that node, by the store's time. If this is longer ago than half of another node's
    /// lease, the other may have missed its renewal for the same reason, so its lease proves nothing.
    pub seen: Timestamp,
}

/// The result of a rescue.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rescued {
    /// The store's time.
    pub now: Timestamp,
    /// The nodes that this call expired.
    pub expired: Vec<NodeNo>,
    /// Jobs that went back to `ready`.
    pub returned: usize,
    /// Jobs that went into quarantine.
    pub quarantined: usize,
    /// Whether there is more to rescue.
    pub more: bool,
    /// The shortest lease of all live nodes.
    pub shortest_lease: Duration,
}

/// A node as operators see it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Node {
    /// Its number.
    pub no: NodeNo,
    /// Its id.
    pub id: NodeId,
    /// Its name for people.
    pub name: String,
    /// The version of the application it runs.
    pub version: String,
    /// The id of its process.
    pub pid: u32,
    /// The jobs that it can run.
    #[serde(flatten)]
    pub abilities: Abilities,
    /// The queues it serves and its slots for each, as of its last report.
    pub queues: Vec<(QueueName, u32)>,
    /// Whether it is live.
    pub state: NodeState,
    /// When it joined.
    pub started_at: Timestamp,
    /// When it last renewed its lease.
    pub renewed_at: Timestamp,
    /// When its lease ends.
    pub lease_until: Timestamp,
    /// How many claims it holds.
    pub claims: u64,
    /// Whether it claims nothing because the store does not accept its outcomes, as of its last renewal.
    pub backed_up: bool,
    /// Its report about its queues. `None`: it has not renewed its lease yet.
    pub report: Option<ActivityReport>,
}

/// The state of a node.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
#[repr(u8)]
pub enum NodeState {
    /// It may claim.
    Live = 0,
    /// It went in good order.
    Retired = 1,
    /// It was found dead.
    Expired = 2,
}

impl NodeState {
    /// Returns the number that stores keep for it.
    pub const fn code(self) -> u8 {
        self as u8
    }

    /// Returns the state of a number; `None` if there is none.
    pub const fn from_code(code: u8) -> Option<Self> {
        match code {
            0 => Some(NodeState::Live),
            1 => Some(NodeState::Retired),
            2 => Some(NodeState::Expired),
            _ => None,
        }
    }

    /// Returns its name.
    pub const fn as_str(self) -> &'static str {
        match self {
            NodeState::Live => "live",
            NodeState::Retired => "retired",
            NodeState::Expired => "expired",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(change: impl FnOnce(&mut Registration)) -> Result<()> {
        let mut registration = Registration {
            id: NodeId::from_bytes([7; 16]),
            name: "node".into(),
            version: "1".into(),
            pid: 1,
            queues: vec![(QueueName::new("q").expect("a queue"), 1)],
            abilities: Abilities::default(),
            lease: bounds::LEASE_MIN,
        };
        change(&mut registration);
        registration.check()
    }

    #[test]
    fn every_bound_of_a_node_holds_at_n_and_refuses_n_plus_one() {
        const TICK: Duration = Duration::from_nanos(1);
        assert!(check(|_| {}).is_ok());
        let text = |bytes: usize| "n".repeat(bytes);
        assert!(check(|node| node.name = text(bounds::NODE_NAME_BYTES)).is_ok());
        assert!(check(|node| node.name = text(bounds::NODE_NAME_BYTES + 1)).is_err());
        assert!(check(|node| node.version = text(bounds::NODE_NAME_BYTES)).is_ok());
        assert!(check(|node| node.version = text(bounds::NODE_NAME_BYTES + 1)).is_err());
        let label = |i: usize| Label::new(format!("l{i:02}")).expect("a label");
        let labels = |n: usize| (0..n).map(label).collect::<Vec<_>>();
        assert!(check(|node| node.abilities.labels = labels(bounds::LABELS)).is_ok());
        assert!(check(|node| node.abilities.labels = labels(bounds::LABELS + 1)).is_err());
        // Those that it has later count as well.
        let with_later = |now: usize, later: usize| {
            check(|node| {
                node.abilities.labels = labels(now);
                node.abilities.later =
                    labels(later).into_iter().map(|label| (label, Timestamp::EPOCH)).collect();
            })
        };
        assert!(with_later(bounds::LABELS - 1, 1).is_ok());
        assert!(with_later(bounds::LABELS, 1).is_err());
        assert!(with_later(0, bounds::LABELS + 1).is_err());
        let queue = |i: usize| QueueName::new(format!("q{i}")).expect("a queue");
        let queues = |n: usize| (0..n).map(|i| (queue(i), 1)).collect();
        assert!(check(|node| node.queues = queues(bounds::NODE_QUEUES)).is_ok());
        assert!(check(|node| node.queues = queues(bounds::NODE_QUEUES + 1)).is_err());
        let kinds = |n: usize| (0..n).map(|i| Kind::new(format!("k{i:04}")).expect("a kind")).collect();
        assert!(check(|node| node.abilities.kinds = kinds(bounds::NODE_KINDS)).is_ok());
        assert!(check(|node| node.abilities.kinds = kinds(bounds::NODE_KINDS + 1)).is_err());
        assert!(check(|node| node.lease = bounds::LEASE_MIN.saturating_sub(TICK)).is_err());
        assert!(check(|node| node.lease = bounds::LEASE_MAX).is_ok());
        assert!(check(|node| node.lease = bounds::LEASE_MAX + TICK).is_err());
        assert!(check(|node| node.queues[0].1 = bounds::SLOTS).is_ok());
        assert!(check(|node| node.queues[0].1 = bounds::SLOTS + 1).is_err());
        assert!(check(|node| node.queues[0].1 = 0).is_err());
    }

    #[test]
    fn a_node_is_called_by_what_every_store_can_hold() {
        assert!(matches!(check(|node| node.name = "a\0".into()), Err(Error::NodeSetup { .. })));
        assert!(matches!(check(|node| node.version = "a\0".into()), Err(Error::NodeSetup { .. })));
    }

    #[test]
    fn a_cancellation_names_who_wants_it() {
        let operator = Cancellation { reason: Reason::Operator, why: "no need".into() };
        assert_eq!(Cancellation::operator("no need"), operator);
        let parent = Cancellation { reason: Reason::Parent, why: "its parent ended".into() };
        assert_eq!(Cancellation::orphan(), parent);
    }

    #[test]
    fn states_of_nodes_are_stored_and_told_as_ever() {
        let known = [
            (0, "live", NodeState::Live),
            (1, "retired", NodeState::Retired),
            (2, "expired", NodeState::Expired),
        ];
        for (code, word, state) in known {
            assert_eq!((state.code(), state.as_str()), (code, word));
            assert_eq!(NodeState::from_code(code), Some(state));
            assert_eq!(serde_json::to_string(&state).expect("json"), format!("\"{word}\""));
        }
        assert_eq!(NodeState::from_code(3), None);
    }

    #[test]
    fn a_node_can_run_what_it_handles_and_has_the_labels_for() {
        let name = |text: &str| Label::new(text).expect("a label");
        let kind = |text: &str| Kind::new(text).expect("a kind");
        let at = Timestamp::from_micros;
        let able = Abilities {
            kinds: vec![kind("a"), kind("b")],
            labels: vec![name("eu"), name("gpu")],
            later: vec![(name("late"), at(20)), (name("soon"), at(10))],
        };
        assert!(able.runs(&kind("b"), &[], at(0)) && !able.runs(&kind("c"), &[], at(0)));
        assert!(able.runs(&kind("a"), &[name("eu"), name("gpu")], at(0)));
        assert!(!able.runs(&kind("a"), &[name("eu"), name("us")], at(0)));
        assert!(!able.has(&name("soon"), at(9)) && able.has(&name("soon"), at(10)));
        assert_eq!(
            [0, 9, 10, 20].map(|now| able.grows(at(now))),
            [Some(at(10)), Some(at(10)), Some(at(20)), None]
        );
    }
}
