//! Why is this job not running? One reason, for any job.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::id::JobId;
use crate::job::{Reason, Record, State, Status, Summary};
use crate::journal::Subject;
use crate::limit::Obstacle;
use crate::name::{Key, Kind, Label, QueueName, SignalName};
use crate::store::{Line, Node, NodeState, Queue, QueueActivity};
use crate::time::Timestamp;

/// The one reason that a job is not running. Or it runs, or has ended.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(tag = "why", rename_all = "snake_case")]
#[non_exhaustive]
pub enum Why {
    /// It has ended.
    Ended {
        /// How.
        status: Status,
    },
    /// It is running.
    Running {
        /// The name of its node.
        node: String,
        /// Since when.
        since: Option<Timestamp>,
        /// What keeps it, in its handler's words: the note of a progress of 0 of 0. Not told in lists.
        #[serde(skip_serializing_if = "Option::is_none")]
        note: Option<String>,
    },
    /// It is running, and its node has a request to stop it.
    Cancelling {
        /// The name of its node.
        node: String,
    },
    /// Its handler has exceeded its timeout and does not yield. It keeps its slot until it does.
    Stuck {
        /// The name of its node.
        node: String,
    },
    /// Its handler awaits something that is not durable, such as a channel, outside the body of a step. The engine
    /// cannot know when that ends, so the handler keeps its slot.
    Foreign {
        /// The name of its node.
        node: String,
        /// Its last record, and when. Lists leave it out.
        last: Option<(Key, Timestamp)>,
    },
    /// Its node has not renewed its lease. A live node will rescue it.
    NodeSilent {
        /// The name of its node.
        node: String,
        /// When the lease lapsed.
        since: Timestamp,
    },
    /// It waits for a time.
    Scheduled {
        /// Until when.
        until: Option<Timestamp>,
        /// How often it has failed: above 0, the time is that of its next attempt.
        failures: u16,
        /// How often it may fail.
        max_attempts: u16,
        /// What kept it when it ran last, in its handler's words: the note of a progress of 0 of 0. Not told in lists.
        #[serde(skip_serializing_if = "Option::is_none")]
        note: Option<String>,
    },
    /// It waits for other jobs.
    Blocked,
    /// An operator has set it aside.
    Held {
        /// Why, in the operator's words. Lists leave it out.
        note: Option<String>,
    },
    /// Too many nodes died while they ran it.
    Quarantined {
        /// How many.
        crashes: u16,
    },
    /// Its handler waits: for a time, for signals, for children, or for the first of these.
    Waiting {
        /// Until when at the latest, if time ends the wait.
        until: Option<Timestamp>,
        /// The signals that wake it, and how many of each it needs.
        signals: Vec<(SignalName, u32)>,
        /// The children whose end wakes it.
        children: Vec<JobId>,
        /// Signals for which it waits that came before and were set aside, because they do not fit.
        #[serde(skip_serializing_if = "Vec::is_empty")]
        unfit: Vec<Unfit>,
    },
    /// Its records do not fit its code.
    Drifted {
        /// What does not fit.
        note: Option<String>,
    },
    /// Its data in the store is damaged.
    Unreadable {
        /// The damage.
        what: Option<String>,
    },
    /// It is suspended for another reason.
    Suspended {
        /// Which.
        reason: Option<Reason>,
    },
    /// Its queue is paused.
    Paused {
        /// The queue.
        queue: QueueName,
    },
    /// No live node serves its queue.
    NoNode {
        /// The queue.
        queue: QueueName,
    },
    /// Live nodes serve its queue, but none handles its kind.
    NoHandler {
        /// The kind.
        kind: Kind,
    },
    /// Live nodes handle its kind, but none has all labels that it requires.
    NoLabels {
        /// The labels it requires.
        required: Vec<Label>,
    },
    /// It is pinned to a build that no live node of its queue and kind has.
    NoBuild {
        /// The build.
        build: String,
        /// The node that takes its jobs over first, and when.
        taken_over: Option<(String, Timestamp)>,
    },
    /// Live nodes can run it, but none of them claims, because the store does not accept their outcomes.
    BackedUp {
        /// The names of the nodes.
        nodes: Vec<String>,
        /// Their activity for its queue.
        activity: Vec<NodeActivity>,
    },
    /// It is a suspect: each node runs one of those at a time.
    Suspect {
        /// How many nodes were lost while they ran it.
        crashes: u16,
        /// The activity of the nodes that can run it.
        activity: Vec<NodeActivity>,
    },
    /// A limit, a total or an earlier job with the same limits is in its way. Not told in lists.
    Limited(Obstacle),
    /// It waits for a free slot of a node that can run it.
    Slot {
        /// The names of the nodes.
        nodes: Vec<String>,
        /// Their activity for its queue.
        activity: Vec<NodeActivity>,
    },
}

/// A node's activity for the queue of a job, as far as the store knows it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct NodeActivity {
    /// The name of the node.
    pub node: String,
    /// As of when; `None` if it has said nothing yet.
    pub as_of: Option<Timestamp>,
    /// Its activity for the queue.
    pub activity: Option<QueueActivity>,
}

impl NodeActivity {
    fn new(node: &Node, queue: &QueueName) -> Self {
        let report = node.report.as_ref();
        NodeActivity {
            node: node.name.clone(),
            as_of: report.map(|report| report.at),
            activity: report.and_then(|report| report.of(queue)).cloned(),
        }
    }
}

/// Finds the one reason that a job is not running.
///
/// `obstacle` is what [`Limits::obstacle`](crate::store::Limits::obstacle) says of the job.
pub fn why(
    record: &Record,
    queue: Option<&Queue>,
    nodes: &[Node],
    obstacle: Option<&Obstacle>,
    now: Timestamp,
) -> Why {
    let job = &record.summary;
    match (job.status.state, job.status.reason) {
        (State::Suspended, Some(Reason::Timer | Reason::Signal | Reason::Child)) => waiting(record),
        (State::Suspended, Some(Reason::Hold)) => Why::Held { note: record.note.clone() },
        (State::Suspended, Some(Reason::Drift)) => Why::Drifted { note: record.note.clone() },
        (State::Suspended, Some(Reason::Unreadable)) => {
            Why::Unreadable { what: record.note.clone().or_else(|| job.unreadable.clone()) }
        }
        _ => match why_summary(job, queue, nodes, now) {
            Why::Foreign { node, .. } => Why::Foreign { node, last: record.last.clone() },
            why @ (Why::Suspect { .. } | Why::Slot { .. }) => obstacle.cloned().map_or(why, Why::Limited),
            Why::Running { node, since, .. } => Why::Running { node, since, note: handlers_note(record) },
            Why::Scheduled { until, failures, max_attempts, .. } => {
                Why::Scheduled { until, failures, max_attempts, note: handlers_note(record) }
            }
            why => why,
        },
    }
}

/// Finds the reason from a summary. It does not name what a suspended job waits for.
pub fn why_summary(job: &Summary, queue: Option<&Queue>, nodes: &[Node], now: Timestamp) -> Why {
    match job.status.state {
        State::Succeeded | State::Failed | State::Cancelled | State::Skipped => {
            Why::Ended { status: job.status }
        }
        State::Blocked => Why::Blocked,
        State::Scheduled => Why::Scheduled {
            until: job.run_at,
            failures: job.failures,
            max_attempts: job.options.max_attempts,
            note: None,
        },
        State::Suspended => match job.status.reason {
            Some(Reason::Hold) => Why::Held { note: None },
            Some(Reason::Quarantine) => Why::Quarantined { crashes: job.crashes },
            Some(Reason::Unreadable) => Why::Unreadable { what: job.unreadable.clone() },
            reason => Why::Suspended { reason },
        },
        State::Running => running(job, nodes, now),
        // The next claim that meets it sets it aside, if one can meet it.
        State::Ready if job.unreadable.is_some() => Why::Unreadable { what: job.unreadable.clone() },
        State::Ready => ready(job, queue, nodes, now),
    }
}

/// Adds what a handler says is in the way of its job.
fn write_note(f: &mut fmt::Formatter<'_>, note: Option<&str>) -> fmt::Result {
    note.map_or(Ok(()), |note| write!(f, "; the handler says: {note}"))
}

/// What its handler says is in its way: a note without any progress.
fn handlers_note(record: &Record) -> Option<String> {
    let progress = record.progress.as_ref()?;
    let is_note = progress.done == 0 && progress.total == 0 && !progress.note.is_empty();
    is_note.then(|| progress.note.clone())
}

fn waiting(record: &Record) -> Why {
    let (mut signals, mut children) = (Vec::new(), Vec::new());
    for wait in &record.waits {
        match &wait.subject {
            Subject::Signal(name) => signals.push((name.clone(), wait.need)),
            Subject::Child(id) => children.push(*id),
        }
    }
    Why::Waiting { until: record.summary.run_at, signals, children, unfit: Vec::new() }
}

fn running(job: &Summary, nodes: &[Node], now: Timestamp) -> Why {
    let owner = nodes.iter().find(|node| Some(node.no) == job.node);
    let node = owner.map_or_else(|| "unknown".to_owned(), |node| node.name.clone());
    match owner {
        Some(owner) if owner.lease_until <= now => Why::NodeSilent { node, since: owner.lease_until },
        _ if job.stuck => Why::Stuck { node },
        _ if job.foreign && !job.cancelling => Why::Foreign { node, last: None },
        _ if job.cancelling => Why::Cancelling { node },
        _ => Why::Running { node, since: job.claimed_at, note: None },
    }
}

fn ready(job: &Summary, queue: Option<&Queue>, nodes: &[Node], now: Timestamp) -> Why {
    if queue.is_some_and(|queue| queue.settings.paused) {
        return Why::Paused { queue: job.queue.clone() };
    }
    let able = match able(&job.queue, &job.kind, &job.options.labels, nodes, now) {
        Ok(able) => able,
        Err(why) => return why,
    };
    let (backed_up, claiming): (Vec<_>, Vec<_>) = able.into_iter().partition(|node| node.backed_up);
    let names = |nodes: &[&Node]| nodes.iter().map(|node| node.name.clone()).collect();
    let activity = |nodes: &[&Node]| nodes.iter().map(|node| NodeActivity::new(node, &job.queue)).collect();
    if claiming.is_empty() {
        Why::BackedUp { nodes: names(&backed_up), activity: activity(&backed_up) }
    } else if job.crashes >= crate::bounds::SUSPECT_CRASHES {
        Why::Suspect { crashes: job.crashes, activity: activity(&claiming) }
    } else {
        Why::Slot { nodes: names(&claiming), activity: activity(&claiming) }
    }
}

/// Returns why no live node can run the jobs of a line; `None` if one can.
pub fn stranded(line: &Line, nodes: &[Node], now: Timestamp) -> Option<Why> {
    able(&line.queue, &line.kind, &line.labels, nodes, now).err()
}

/// The live nodes that can run such a job, or what they lack.
fn able<'n>(
    queue: &QueueName,
    kind: &Kind,
    required: &[Label],
    nodes: &'n [Node],
    now: Timestamp,
) -> Result<Vec<&'n Node>, Why> {
    // A node that does not renew its lease serves nobody, even if nobody has had a reason to expire it yet.
    let live = |node: &&Node| node.state == NodeState::Live && node.lease_until > now;
    let mut able: Vec<_> = nodes.iter().filter(live).collect();
    able.retain(|node| node.queues.iter().any(|(one, _)| one == queue));
    if able.is_empty() {
        return Err(Why::NoNode { queue: queue.clone() });
    }
    able.retain(|node| node.abilities.kinds.contains(kind));
    if able.is_empty() {
        return Err(Why::NoHandler { kind: kind.clone() });
    }
    let pin = required.iter().find(|label| label.build().is_some());
    if let Some(pin) = pin.filter(|pin| !able.iter().any(|node| node.abilities.has(pin, now))) {
        return Err(no_build(pin, &able));
    }
    able.retain(|node| required.iter().all(|label| node.abilities.has(label, now)));
    if able.is_empty() {
        return Err(Why::NoLabels { required: required.to_vec() });
    }
    Ok(able)
}

fn no_build(pin: &Label, nodes: &[&Node]) -> Why {
    let later = nodes
        .iter()
        .flat_map(|node| node.abilities.later.iter().map(move |(label, from)| (label, from, node)));
    let first = later.filter(|(label, ..)| *label == pin).min_by_key(|(_, from, _)| **from);
    Why::NoBuild {
        build: pin.build().unwrap_or_default().to_owned(),
        taken_over: first.map(|(_, from, node)| (node.name.clone(), *from)),
    }
}

impl fmt::Display for Why {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Why::Ended { status } => write!(f, "the job has ended: {status}"),
            Why::Running { node, since, note } => {
                match since {
                    Some(since) => write!(f, "node {node} has been running the job since {since}")?,
                    None => write!(f, "node {node} is running the job")?,
                }
                write_note(f, note.as_deref())
            }
            Why::Cancelling { node } => {
                write!(f, "node {node} is running the job and has been asked to stop it")
            }
            Why::Stuck { node } => {
                write!(
                    f,
                    "the handler on node {node} exceeded its timeout and does not yield; it keeps its slot"
                )
            }
            Why::Foreign { node, last } => {
                write!(
                    f,
                    "the handler on node {node} awaits something that is not durable, so it keeps its slot"
                )?;
                match last {
                    Some((key, at)) => write!(f, "; it last recorded `{key}`, at {at}"),
                    None => Ok(()),
                }
            }
            Why::NodeSilent { node, since } => {
                write!(
                    f,
                    "node {node} claimed the job, and its lease expired at {since}; a live node will rescue the job"
                )
            }
            Why::Scheduled { until, failures, max_attempts, note } => {
                match until {
                    Some(until) => write!(f, "the job waits until {until}")?,
                    None => f.write_str("the job waits for its time")?,
                }
                if *failures > 0 {
                    write!(f, " for attempt {} of {max_attempts}", failures + 1)?;
                }
                write_note(f, note.as_deref())
            }
            Why::Blocked => f.write_str("the job waits for other jobs"),
            Why::Held { note: Some(note) } => write!(f, "an operator holds the job: {note}"),
            Why::Held { note: None } => f.write_str("an operator holds the job"),
            Why::Quarantined { crashes } => {
                write!(f, "the job is in quarantine: {crashes} nodes died while they ran it")
            }
            Why::Waiting { until, signals, children, unfit } => {
                tell_waits(f, *until, signals, children)?;
                match unfit.last() {
                    Some(last) => write!(f, "; {last}"),
                    None => Ok(()),
                }
            }
            Why::Drifted { note: Some(note) } => {
                write!(f, "the job's records do not fit its code: {note}")
            }
            Why::Drifted { note: None } => f.write_str("the job's records do not fit its code"),
            Why::Unreadable { what: Some(what) } => write!(f, "the store cannot read the job: {what}"),
            Why::Unreadable { what: None } => f.write_str("the store cannot read the job"),
            Why::Suspended { reason: Some(reason) } => write!(f, "the job is suspended: {reason}"),
            Why::Suspended { reason: None } => f.write_str("the job is suspended"),
            Why::Paused { queue } => write!(f, "queue `{queue}` is paused"),
            Why::NoNode { queue } => write!(f, "no live node serves queue `{queue}`"),
            Why::NoHandler { kind } => write!(f, "no live node of its queue handles kind `{kind}`"),
            Why::NoLabels { required } => {
                let labels: Vec<_> = required.iter().map(|label| format!("`{label}`")).collect();
                write!(f, "no live node that handles its kind has all its labels: {}", labels.join(", "))
            }
            Why::NoBuild { build, taken_over } => {
                write!(
                    f,
                    "the job is pinned to build `{build}`, and no live node that handles its kind has that build"
                )?;
                match taken_over {
                    Some((node, from)) => write!(f, "; node {node} takes it over at {from}"),
                    None => Ok(()),
                }
            }
            Why::BackedUp { nodes, .. } => {
                write!(
                    f,
                    "the store does not accept outcomes from {}; they claim nothing until it does",
                    nodes.join(", ")
                )
            }
            Why::Suspect { crashes, .. } => {
                write!(
                    f,
                    "{crashes} nodes died while they ran the job, so it waits for a node that runs no other suspect"
                )
            }
            Why::Limited(obstacle) => write!(f, "the job waits: {obstacle}"),
            Why::Slot { nodes, .. } => write!(f, "the job waits for a free slot on {}", nodes.join(", ")),
        }
    }
}

/// "it waits for signal `approved` until 12:00, or for child 7".
fn tell_waits(
    f: &mut fmt::Formatter<'_>,
    until: Option<Timestamp>,
    signals: &[(SignalName, u32)],
    children: &[JobId],
) -> fmt::Result {
    /// Enough to see what is going on.
    const SHOWN: usize = 5;
    let signals = signals.iter().map(|(name, need)| match need {
        0 | 1 => format!("signal `{name}`"),
        need => format!("{need} signals `{name}`"),
    });
    let mut waits: Vec<String> = signals.chain(children.iter().map(|id| format!("child {id}"))).collect();
    if waits.len() > SHOWN {
        let more = waits.len() - SHOWN;
        waits.truncate(SHOWN);
        waits.push(format!("{more} more"));
    }
    match (waits.is_empty(), until) {
        (true, Some(until)) => write!(f, "the handler sleeps until {until}"),
        (true, None) => f.write_str("the handler waits"),
        (false, Some(until)) => write!(f, "the handler waits for {}, until {until}", waits.join(" or ")),
        (false, None) => write!(f, "the handler waits for {}", waits.join(" or ")),
    }
}

/// A signal that was set aside: its payload does not deserialize into what the handler waits for.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Unfit {
    /// The name of the signal.
    pub name: String,
    /// Who sent it, or what the engine called that.
    pub sender: String,
    /// The payload, as JSON; cut if it is long.
    pub body: String,
    /// Why it does not fit.
    pub why: String,
}

impl fmt::Display for Unfit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "a signal `{}`", self.name)?;
        // What begins so was made up by the engine.
        if !self.sender.starts_with('~') {
            write!(f, " from {}", self.sender)?;
        }
        write!(f, " was set aside because it does not fit: {}", self.why)
    }
}

impl Why {
    /// Returns the activity of the nodes that could run the job, if it waits for one of them.
    pub fn activity(&self) -> &[NodeActivity] {
        match self {
            Why::BackedUp { activity, .. } | Why::Suspect { activity, .. } | Why::Slot { activity, .. } => {
                activity
            }
            _ => &[],
        }
    }

    /// Returns a hint what a person can do, if there is one.
    pub fn hint(&self) -> Option<String> {
        match self {
            Why::Held { .. } => Some("resume the job".into()),
            Why::Waiting { signals, .. } => {
                signals.first().map(|(name, _)| format!("send it the signal `{name}`"))
            }
            Why::Drifted { .. } => Some(
                "deploy code that fits, then resume the job; accept the drift if the step is new; rename the step if it had another name; fork or retry the job from an earlier step; or fail it"
                    .into(),
            ),
            Why::Quarantined { .. } => Some("look at the job's input, then resume or fail it".into()),
            Why::Unreadable { .. } => Some(
                "`mainspring doctor` names the damage: restore the data by hand and resume the job, or cancel or delete it".into(),
            ),
            Why::Limited(obstacle) => obstacle.hint(),
            Why::Paused { queue } => Some(format!("resume queue `{queue}`")),
            Why::NoNode { queue } => Some(format!("start a node that serves queue `{queue}`")),
            Why::NoHandler { kind } => Some(format!("start a node that handles kind `{kind}`")),
            Why::NoLabels { .. } => Some("start a node with these labels".into()),
            Why::NoBuild { build, .. } => {
                Some(format!("start a node of build `{build}`, or one that takes it over"))
            }
            Why::BackedUp { .. } => Some(
                "the node's log names the error; check who locks the tables or the file, what the user may write, and how many connections it has"
                    .into(),
            ),
            Why::Foreign { .. } => Some("await it in the body of a step, or let the other side send a signal".into()),
            Why::Stuck { .. } => {
                Some("fix the handler: it must await, or move blocking work off the executor".into())
            }
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests;
