//! The calls that the search makes, and the wire that they go over.
//!
//! A [`Call`] names seats and jobs, not node numbers and ids; the [`store_graph`](super::store_graph) fills those in. [`CallPath`] is
//! where a test plants a defect: whatever goes to the store goes through it, and an honest one changes nothing.

use std::fmt;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use mainspring_core::Result;
use mainspring_core::id::{JobId, NodeNo};
use mainspring_core::job::{Outcome, Reason, State, Status, Verb};
use mainspring_core::memory::Memory;
use mainspring_core::seam::Pending;
use mainspring_core::store::{
    Changed, ClaimRequest, ClaimedBatch, Finish, Finished, Nodes, Operators, Rescue, Rescued,
};

use crate::harness::{fail, retry, stopped, succeed};

use super::view::{PAIR, SEATS, StoreView};

/// How a claim ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum End {
    Succeed,
    Fail,
    Retry,
    Release,
    Cancel,
}

impl End {
    pub(super) const ALL: [End; 5] = [End::Succeed, End::Fail, End::Retry, End::Release, End::Cancel];

    pub(super) fn outcome(self) -> Outcome {
        match self {
            End::Succeed => succeed(),
            End::Fail => fail(),
            End::Retry => retry(Duration::ZERO),
            End::Release => Outcome::Release,
            End::Cancel => stopped("enough"),
        }
    }

    /// The status of a job that ended so, if that is an end of the job.
    pub(super) fn status(self) -> Option<Status> {
        match self {
            End::Succeed => Some(Status::plain(State::Succeeded)),
            End::Fail => Some(Status::because(State::Failed, Reason::Exhausted)),
            End::Cancel => Some(Status::because(State::Cancelled, Reason::Operator)),
            End::Retry | End::Release => None,
        }
    }
}

impl fmt::Display for End {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            End::Succeed => "success",
            End::Fail => "failure",
            End::Retry => "retry",
            End::Release => "release",
            End::Cancel => "cancelled",
        })
    }
}

/// One call to the store, or something that happens to it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Call {
    Register {
        seat: usize,
    },
    Renew {
        seat: usize,
    },
    Retire {
        seat: usize,
    },
    /// The node is gone without a word; what it holds stays with its former membership.
    Vacate {
        seat: usize,
    },
    Claim {
        seat: usize,
        /// The jobs that are asked for, as bits: each has a queue of its own.
        set: u8,
        /// Whether the node hears the answer: its next claim then has a new batch number.
        settled: bool,
    },
    Disown {
        seat: usize,
        /// The claims that the node knows; 0 is none.
        keep: [u8; PAIR],
    },
    Finish {
        /// [`SEATS`] is a node that has no seat any more.
        seat: usize,
        job: usize,
        claim: u8,
        end: End,
    },
    Rescue {
        seat: usize,
        /// Whether the rescuer has been steady for a lease, and was answered lately.
        steady: bool,
    },
    Promote,
    Cancel {
        job: usize,
    },
    Tick,
}

impl Call {
    /// Every call that may change something in a store that looks like this.
    pub(super) fn every(sight: &StoreView) -> Vec<Call> {
        let mut calls = vec![Call::Promote, Call::Tick];
        for seat in 0..PAIR {
            calls.extend([
                Call::Register { seat },
                Call::Renew { seat },
                Call::Retire { seat },
                Call::Vacate { seat },
                Call::Rescue { seat, steady: true },
                Call::Rescue { seat, steady: false },
                Call::Disown { seat, keep: [0; PAIR] },
            ]);
            calls.extend((1..=3).map(|set| Call::Claim { seat, set, settled: false }));
        }
        for job in 0..PAIR {
            calls.push(Call::Cancel { job });
            let (holder, claim) = (sight.jobs[job].holder.unwrap_or(SEATS), sight.jobs[job].claim.max(1));
            calls.extend(End::ALL.map(|end| Call::Finish { seat: holder, job, claim, end }));
        }
        calls
    }

    /// A number of its own, below 512.
    pub(super) fn code(self) -> u64 {
        let code = match self {
            Call::Register { seat } => seat,
            Call::Renew { seat } => 2 + seat,
            Call::Retire { seat } => 4 + seat,
            Call::Vacate { seat } => 6 + seat,
            Call::Rescue { seat, steady } => 8 + seat * 2 + usize::from(steady),
            Call::Promote => 12,
            Call::Tick => 13,
            Call::Cancel { job } => 14 + job,
            Call::Claim { seat, set, settled } => 16 + seat * 8 + usize::from(set) * 2 + usize::from(settled),
            Call::Disown { seat, keep: [one, two] } => {
                32 + seat * 16 + usize::from(one) * 4 + usize::from(two)
            }
            Call::Finish { seat, job, claim, end } => {
                64 + (((seat * PAIR + job) * 4 + usize::from(claim)) * End::ALL.len() + end as usize)
            }
        };
        debug_assert!(code < 64 + (SEATS + 1) * PAIR * 4 * End::ALL.len());
        code as u64
    }
}

/// What came back.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Answer {
    /// Whether the store took the caller for gone, or the claim.
    pub(super) lost: bool,
    /// The claims that the call told of; 0 is none.
    pub(super) claims: [u8; PAIR],
}

impl fmt::Display for Answer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.lost, self.claims) {
            (true, _) => f.write_str("refused"),
            (false, [0, 0]) => f.write_str("accepted"),
            (false, claims) => write!(f, "told of claims {claims:?}"),
        }
    }
}

/// The way to the store. Defects are planted here.
pub(super) trait CallPath {
    fn claim(&self, store: &Memory, request: ClaimRequest) -> Result<ClaimedBatch> {
        now(store.claim(request))
    }

    fn finish(&self, store: &Memory, node: NodeNo, finishes: Vec<Finish>) -> Result<Vec<Finished>> {
        now(store.finish(node, finishes))
    }

    fn rescue(&self, store: &Memory, rescue: Rescue) -> Result<Rescued> {
        now(store.rescue(rescue))
    }

    fn cancel(&self, store: &Memory, id: JobId, why: String) -> Result<Vec<Changed>> {
        now(store.change(vec![id], Verb::Cancel { why }, false))
    }

    /// Whether a node whose claim was not answered repeats or disowns it.
    fn settles_lost_claims(&self) -> bool {
        true
    }
}

/// A wire that changes nothing.
pub(super) struct DirectPath;

impl CallPath for DirectPath {}

/// The answer of a store that never waits.
pub(super) fn now<T>(mut pending: Pending<'_, T>) -> T {
    match pending.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(answer) => answer,
        Poll::Pending => unreachable!("the memory store answers at once"),
    }
}
