//! What can be seen of a store: two jobs and the seats of those who may hold them.
//!
//! A [`StoreView`] is read through the store's public calls alone. Absolute times and node numbers are gone from it: a lease
//! is so many ticks from lapsing, a node is a *seat*. Seats 0 and 1 are the present memberships of the two nodes, seats 2
//! and 3 former ones that still hold claims. [`StoreView::canonical`] turns it into one number; nodes are alike and so are
//! jobs, and the number is the same whichever way round they are.
//!
//! # Invariants
//! - Two stores with the same number answer every call alike, up to the names of nodes and jobs.

use mainspring_core::job::{Reason, State, Status};

/// How many nodes, and how many jobs.
pub(super) const PAIR: usize = 2;
/// Seats: two present, two former.
pub(super) const SEATS: usize = 4;
/// A lease is so many ticks: half a lease is the other time that the rules of rescue know.
pub(super) const LEASE_TICKS: u8 = 2;

/// A way to swap names: bit 0 the nodes, bit 1 the jobs.
pub(super) type Swap = u8;
/// All ways.
pub(super) const SWAPS: Swap = 4;

/// The node that goes by this number after a swap, or went by it before.
pub(super) const fn node_after(swap: Swap, node: usize) -> usize {
    node ^ (swap & 1) as usize
}

/// The job that goes by this number after a swap, or went by it before.
pub(super) const fn job_after(swap: Swap, job: usize) -> usize {
    job ^ (swap >> 1) as usize
}

/// One job.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Job {
    pub(super) status: Status,
    /// Its last claim.
    pub(super) claim: u8,
    pub(super) failures: u16,
    pub(super) crashes: u8,
    /// Who runs it; [`SEATS`] is somebody who has no seat.
    pub(super) holder: Option<usize>,
    /// Whether it was claimed under the batch that its node has not settled.
    pub(super) unsettled: bool,
    pub(super) cancelling: bool,
    /// The claims whose errors are kept, as bits.
    pub(super) errors: u8,
}

impl Job {
    pub(super) fn is(&self, state: State) -> bool {
        self.status.state == state
    }

    pub(super) fn has_ended(&self) -> bool {
        self.status.state.is_terminal()
    }

    pub(super) fn is_quarantined(&self) -> bool {
        self.status == Status::because(State::Suspended, Reason::Quarantine)
    }

    /// Whether somebody holds it under this claim.
    pub(super) fn held_by(&self, seat: usize, claim: u8) -> bool {
        self.holder == Some(seat) && self.claim == claim
    }

    /// Everything that later answers depend on, in fourteen bits.
    fn pack(&self, label: impl Fn(usize) -> usize) -> u64 {
        let state = match (self.status.state, self.status.reason) {
            (State::Ready, _) => 0,
            (State::Scheduled, _) => 1,
            (State::Suspended, _) => 2,
            (State::Running, _) => 3,
            (State::Succeeded, _) => 4,
            (State::Failed, _) => 5,
            (State::Cancelled, _) => 6,
            (State::Blocked | State::Skipped, _) => 7,
        };
        // Nobody asks an ended job for its crashes.
        let crashes = if self.has_ended() { 0 } else { self.crashes.min(3) };
        let held = self.holder.map_or(0, |seat| {
            label(seat) as u64 | u64::from(self.unsettled) << 2 | u64::from(self.cancelling) << 3
        });
        let counts = u64::from(self.claim & 3) | u64::from(crashes) << 2 | u64::from(self.errors & 7) << 4;
        state | counts << 3 | held << 10
    }
}

/// One seat.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Seat {
    /// Whether the store takes calls from it.
    pub(super) live: bool,
    /// Ticks until its lease lapses.
    pub(super) left: u8,
    pub(super) claims: u8,
}

impl Seat {
    /// A lease matters only to who holds claims: whoever claims next has a full one.
    fn pack(self) -> u64 {
        match (self.live, self.claims) {
            (false, _) => 0,
            (true, 0) => 1,
            (true, _) => 2 + u64::from(self.left),
        }
    }
}

/// What can be seen of a store.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct StoreView {
    pub(super) jobs: [Job; PAIR],
    pub(super) seats: [Seat; SEATS],
}

impl StoreView {
    /// Its number, and the swaps that lead to it as bits of a set.
    pub(super) fn canonical(&self) -> (u64, u8) {
        let mut best = (u64::MAX, 0);
        for swap in 0..SWAPS {
            let key = self.pack(swap);
            if key < best.0 {
                best = (key, 1 << swap);
            } else if key == best.0 {
                best.1 |= 1 << swap;
            }
        }
        best
    }

    /// What former seats are called after a swap: they are numbered in the order of the jobs that they hold.
    pub(super) fn former(&self, swap: Swap) -> [Option<usize>; PAIR] {
        let mut former = [None; PAIR];
        for job in 0..PAIR {
            let holder = self.jobs[job_after(swap, job)].holder.filter(|seat| (PAIR..SEATS).contains(seat));
            if holder.is_some() && !former.contains(&holder) {
                former[usize::from(former[0].is_some())] = holder;
            }
        }
        former
    }

    fn pack(&self, swap: Swap) -> u64 {
        let former = self.former(swap);
        let label = |seat: usize| match seat {
            0 | 1 => node_after(swap, seat),
            _ => PAIR + usize::from(former[0] != Some(seat)),
        };
        let mut key = 0;
        for job in 0..PAIR {
            key = key << 14 | self.jobs[job_after(swap, job)].pack(label);
        }
        for node in 0..PAIR {
            key = key << 3 | self.seats[node_after(swap, node)].pack();
        }
        for seat in former {
            key = key << 3 | seat.map_or(0, |seat| self.seats[seat].pack());
        }
        key
    }
}
