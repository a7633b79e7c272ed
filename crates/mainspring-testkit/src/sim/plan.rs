//! What a seed stands for: how many nodes, what they work on, what goes wrong and how often.

use std::time::Duration;

use mainspring_core::seam::Rng;
use serde::{Deserialize, Serialize};

use super::schedules::Calendar;
use super::world::{below, between, chance, pick};
use crate::rng::SeededRng;

/// The queues of a simulation.
pub(super) const QUEUES: [&str; 3] = ["default", "mail", "slow"];
/// What some nodes can do and some jobs need.
pub(super) const LABEL: &str = "gpu";

/// How a run is set up.
#[derive(Debug, Clone)]
#[expect(clippy::struct_excessive_bools, reason = "each is drawn by itself")]
pub(super) struct Config {
    pub(super) nodes: usize,
    pub(super) lease: Duration,
    /// How long things go wrong.
    pub(super) fault_phase: Duration,
    /// Between two things that one producer does, on average.
    pub(super) pace: Duration,
    pub(super) producers: usize,
    /// Between two verbs of the operator, on average; never if nothing.
    pub(super) verbs: Option<Duration>,
    /// What goes wrong, and how long until it does so again, on average.
    pub(super) faults: Vec<(SimFault, Duration)>,
    /// How likely one call goes wrong.
    pub(super) trouble: f64,
    /// How likely a hint is lost.
    pub(super) hint_loss: f64,
    /// Whether ended jobs are soon removed.
    pub(super) prune: bool,
    /// Whether one node at a time runs workflows: whoever loses one gets it back.
    pub(super) one_workflow_node: bool,
    /// When the code of workflows changes.
    pub(super) deploy: Duration,
    /// Whether all nodes are replaced then, as a program that is deployed does it.
    pub(super) rolls: bool,
    /// Whether nodes claim so few at once that there is more, and the next claim goes out before the last is answered.
    pub(super) few: bool,
    /// When there is very much quick work at once and the store takes no outcomes for a while: nodes have learned to claim ahead
    /// by then, and can hold no more.
    pub(super) rush: Option<Duration>,
    /// Whether there are schedules.
    pub(super) schedules: Option<Calendar>,
}

/// What can go wrong, beside single calls.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum SimFault {
    /// A node dies, and is started anew some time later.
    Crash,
    /// A node is stopped, often past its lease.
    Stop,
    /// A node does not reach the store.
    Cut,
    /// Nobody reaches the store.
    Outage,
    /// Everything takes longer.
    Slow,
    /// The disk is full.
    Full,
    /// A node's clock jumps.
    Skew,
    /// The store's clock jumps.
    Leap,
    /// A node shuts down in good order, and another comes.
    Restart,
    /// There are more nodes, or fewer.
    Scale,
    /// The row of a job is damaged, and mended later.
    Damage,
    /// The store's clock jumps by a year, for good.
    Year,
    /// The store's clock goes back by an hour, for a while.
    Back,
}

impl SimFault {
    /// All that every run may have.
    const ALL: [SimFault; 10] = [
        SimFault::Crash,
        SimFault::Stop,
        SimFault::Cut,
        SimFault::Outage,
        SimFault::Slow,
        SimFault::Full,
        SimFault::Skew,
        SimFault::Leap,
        SimFault::Restart,
        SimFault::Scale,
    ];
}

impl Config {
    /// The set-up that belongs to a seed.
    pub(super) fn of(rng: &SeededRng) -> Self {
        let seconds = Duration::from_secs;
        // Some runs are about one kind of trouble, most about several: what many faults hide, few show.
        let few = chance(rng, 0.3);
        let mut faults = Vec::new();
        for fault in SimFault::ALL {
            if chance(rng, if few { 0.2 } else { 0.6 }) {
                faults.push((fault, between(rng, seconds(3), seconds(20))));
            }
        }
        // And some are short and rough: much happens at once, and messages are not to be relied upon.
        let rough = chance(rng, 0.5);
        let trouble = match (rough, chance(rng, 0.6)) {
            (true, _) => pick(rng, &[0.1, 0.2]),
            (false, true) => pick(rng, &[0.01, 0.05]),
            (false, false) => 0.0,
        };
        let hint_loss = match (rough, chance(rng, 0.5)) {
            (true, _) => pick(rng, &[0.5, 1.0]),
            (false, true) => pick(rng, &[0.1, 0.5]),
            (false, false) => 0.0,
        };
        let millis = Duration::from_millis;
        let (fault_phase, pace, verbs) = if rough {
            (
                between(rng, seconds(10), seconds(20)),
                millis(100),
                Some(between(rng, millis(100), millis(400))),
            )
        } else {
            let verbs = chance(rng, 0.7).then(|| between(rng, millis(500), seconds(3)));
            (between(rng, seconds(20), seconds(60)), between(rng, millis(200), seconds(1)), verbs)
        };
        let prune = chance(rng, 0.2);
        if prune {
            // Times at which jobs ended are noted by the rig's clock, and could not be told from the store's.
            faults.retain(|(fault, _)| *fault != SimFault::Leap);
        }
        let lease = pick(rng, &[seconds(1), seconds(2), seconds(5), seconds(15)]);
        let mut config = Config {
            nodes: if rough { 3 } else { 3 + below(rng, 5) },
            lease,
            fault_phase,
            pace,
            producers: 1 + below(rng, 2),
            verbs,
            faults,
            trouble,
            hint_loss,
            prune,
            // A handler is not kept for as long as a long lease lasts.
            one_workflow_node: chance(rng, 0.7) && lease <= seconds(2),
            deploy: between(rng, fault_phase / 5, fault_phase),
            rolls: chance(rng, 0.5),
            few: chance(rng, 0.1),
            rush: None,
            schedules: None,
        };
        if chance(rng, 0.3) {
            config.faults.push((SimFault::Damage, between(rng, seconds(1), seconds(8))));
        }
        config.rush = chance(rng, 0.1).then(|| between(rng, fault_phase / 4, fault_phase / 2));
        config.schedules = chance(rng, 0.35).then_some(Calendar::Near);
        if config.schedules.is_some() && !prune && chance(rng, 0.4) {
            config.schedules = Some(Calendar::Far);
            config.faults.push((SimFault::Year, between(rng, fault_phase / 4, fault_phase)));
            config.faults.push((SimFault::Back, between(rng, seconds(3), seconds(20))));
        }
        config
    }

    /// How many jobs a node claims at once at most, if that is less than usual.
    pub(super) fn claim(&self) -> Option<usize> {
        (self.few || self.rush.is_some()).then_some(4)
    }

    /// How long a caller waits for an answer: a store gives up before a lease is in danger.
    pub(super) fn patience(&self) -> Duration {
        (self.lease / 4).min(Duration::from_secs(5))
    }
}

/// What a job does when it runs.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub(super) struct Plan {
    /// How long it takes.
    pub(super) millis: u64,
    /// How often it fails first.
    #[serde(default)]
    pub(super) fails: u16,
    /// How often it asks to be run later first.
    #[serde(default)]
    pub(super) snoozes: u32,
    /// How often it takes its node down first.
    #[serde(default)]
    pub(super) kills: u32,
    /// How many jobs it enqueues.
    #[serde(default)]
    pub(super) children: u8,
    /// How it ends when it has done all of that.
    pub(super) end: End,
}

/// How a job ends.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum End {
    #[default]
    Well,
    /// It panics, every time.
    Panic,
    /// It says that there is no use.
    Discard,
    /// It cancels itself.
    Cancel,
    /// It does not end before its time-out.
    Hang,
    /// It waits for a cancellation, and else ends well.
    Listen,
}

impl Plan {
    /// What some job does.
    pub(super) fn of(rng: &SeededRng) -> Self {
        let millis = match below(rng, 10) {
            0 => 1_000 + rng.next_u64() % 15_000,
            1..=3 => 200 + rng.next_u64() % 2_000,
            _ => rng.next_u64() % 300,
        };
        let end = match below(rng, 30) {
            0 => End::Panic,
            1 => End::Discard,
            2 => End::Cancel,
            3 => End::Hang,
            4 | 5 => End::Listen,
            _ => End::Well,
        };
        Plan {
            millis,
            fails: if chance(rng, 0.25) { 1 + u16::try_from(below(rng, 3)).unwrap_or(0) } else { 0 },
            snoozes: u32::from(chance(rng, 0.1)),
            kills: if chance(rng, 0.03) { pick(rng, &[1, 2, 99]) } else { 0 },
            children: if chance(rng, 0.05) { 1 + u8::try_from(below(rng, 3)).unwrap_or(0) } else { 0 },
            end,
        }
    }
}
