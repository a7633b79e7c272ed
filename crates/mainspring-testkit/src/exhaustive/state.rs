//! One state of the whole: the store's, and what each node knows.
//!
//! A node's knowledge is small: whether it is up, which claims it believes to hold, and whether its last claim was
//! answered. A finish that was sent and is not answered is in
//! nobody's hands: it may be carried out at any time, also after its node was paused, rescued or killed, and carried out
//! again.
//!
//! A pause needs no state: a node that sleeps is one that does nothing while time passes.
//!
//! # Invariants
//! - [`State::pack`] and [`State::unpack`] are inverse.

use super::call::End;
use super::view::{PAIR, SWAPS, StoreView, Swap, job_after, node_after};

/// Finishes that are under way at once, at most.
pub(super) const FLIGHTS: usize = 1;

/// What one node knows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Node {
    /// Whether it runs and believes to be a member.
    pub(super) up: bool,
    /// The claims that it believes to hold; 0 is none.
    pub(super) held: [u8; PAIR],
    /// What its last claim asked for, as bits, if that was not answered; 0 if all is known.
    pub(super) asked: u8,
}

impl Node {
    fn pack(self) -> u64 {
        let held = u64::from(self.held[0]) | u64::from(self.held[1]) << 2;
        u64::from(self.up) | held << 1 | u64::from(self.asked) << 5
    }

    fn unpack(bits: u64) -> Self {
        let part = |shift: u32| (bits >> shift & 3) as u8;
        Node { up: bits & 1 == 1, held: [part(1), part(3)], asked: part(5) }
    }

    fn swapped(self, swap: Swap) -> Self {
        let asked = if swap & 2 == 0 { self.asked } else { self.asked >> 1 | (self.asked & 1) << 1 };
        Node { held: [0, 1].map(|job| self.held[job_after(swap, job)]), asked, ..self }
    }
}

/// A finish that was sent and is not answered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct PendingFinish {
    pub(super) job: usize,
    pub(super) claim: u8,
    pub(super) end: End,
}

impl PendingFinish {
    fn pack(self) -> u64 {
        // Claims begin at one, so this is never zero.
        self.job as u64 | u64::from(self.claim) << 1 | (self.end as u64) << 3
    }

    fn unpack(bits: u64) -> Option<Self> {
        let claim = (bits >> 1 & 3) as u8;
        let end = End::ALL[(bits >> 3 & 7) as usize % End::ALL.len()];
        (claim > 0).then_some(PendingFinish { job: (bits & 1) as usize, claim, end })
    }
}

/// One state of the whole.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct State {
    /// The store's state, by its number in the world.
    pub(super) store: u32,
    pub(super) nodes: [Node; PAIR],
    pub(super) flights: [Option<PendingFinish>; FLIGHTS],
}

impl State {
    /// Everything in one number.
    pub(super) fn pack(&self) -> u64 {
        let mut key = u64::from(self.store);
        for node in self.nodes {
            key = key << 7 | node.pack();
        }
        for flight in self.flights {
            key = key << 6 | flight.map_or(0, PendingFinish::pack);
        }
        key
    }

    /// What such a number says.
    pub(super) fn unpack(mut key: u64) -> Self {
        let mut take = |bits: u32| {
            let part = key & ((1 << bits) - 1);
            key >>= bits;
            part
        };
        let mut flights = [None; FLIGHTS];
        for flight in flights.iter_mut().rev() {
            *flight = PendingFinish::unpack(take(6));
        }
        let mut nodes = [Node::default(); PAIR];
        for node in nodes.iter_mut().rev() {
            *node = Node::unpack(take(7));
        }
        let store = u32::try_from(key).expect("what is left is the store's number");
        State { store, nodes, flights }
    }

    /// The smallest number under any of these swaps, which lead to a store of this sight, and the swap that gives it.
    pub(super) fn canonical(&self, swaps: u8, sight: &StoreView) -> (u64, Swap) {
        let mut best = (u64::MAX, 0);
        for swap in (0..SWAPS).filter(|swap| swaps & 1 << swap != 0) {
            best = best.min((self.swapped(swap).stripped(sight).pack(), swap));
        }
        best
    }

    /// Without what cannot matter any more. A claim that has ended never comes back, so whatever somebody still believes
    /// or sends of it is a write that changes nothing: every state of the store is probed with all of those.
    fn stripped(mut self, sight: &StoreView) -> Self {
        for (number, node) in self.nodes.iter_mut().enumerate() {
            for (held, job) in node.held.iter_mut().zip(&sight.jobs) {
                if !job.held_by(number, *held) {
                    *held = 0;
                }
            }
            if !sight.seats[number].live {
                node.asked = 0;
            }
        }
        for flight in &mut self.flights {
            let open = |it: PendingFinish| {
                sight.jobs[it.job].holder.is_some() && sight.jobs[it.job].claim == it.claim
            };
            *flight = flight.filter(|it| open(*it));
        }
        self
    }

    fn swapped(&self, swap: Swap) -> Self {
        let nodes = [0, 1].map(|node| self.nodes[node_after(swap, node)].swapped(swap));
        let mut flights = self
            .flights
            .map(|flight| flight.map(|flight| PendingFinish { job: job_after(swap, flight.job), ..flight }));
        // Which of them was sent first is of no matter.
        flights.sort_by_key(|flight| flight.map_or(0, PendingFinish::pack));
        State { nodes, flights, ..*self }
    }
}
