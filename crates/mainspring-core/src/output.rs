//! Output: what handlers say while they run.
//!
//! A job's output is a row of frames, each with a position: they are counted from 1 on, per job, by the store. Whoever
//! reads names the last position that he has. A frame belongs to the handler, or to the body of a step. A body that
//! runs again says everything again: a *reset* goes before, and voids what that step has said so far.
//!
//! # Invariants
//! - Frames are written by the owner of a claim only, in the order of their numbers, and never change.
//! - A position is given once. Of all frames the last are kept, as far as [`OutputExtent`] says; older ones are gone
//!   for every reader from the same commit on.

use crate::bounds;
use crate::id::JobId;
use crate::job::{Progress, Status};
use crate::name::Key;
use crate::time::Timestamp;

/// A frame, or a reset, on its way into a store.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Push {
    /// Counts what is pushed under one claim, from 1 on and without a gap. That is how a repeat is known.
    pub number: u32,
    /// The step whose body says it; `None`: the handler itself.
    pub step: Option<Key>,
    /// As JSON; `None`: a reset, which voids all frames of that step before it.
    pub body: Option<Vec<u8>>,
}

impl Push {
    /// Bytes of payload.
    pub fn bytes(&self) -> usize {
        self.body.as_deref().map_or(0, <[u8]>::len)
    }
}

/// One position of a job's output.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OutputItem {
    /// Where it is.
    pub position: u64,
    /// When it was stored.
    pub at: Timestamp,
    /// The claim that emitted it.
    pub claim: u32,
    /// The step whose body said it; `None`: the handler itself.
    pub step: Option<Key>,
    /// What it is.
    pub what: What,
}

/// The content at a position.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum What {
    /// A frame, as JSON.
    Frame(Vec<u8>),
    /// All frames of that step before this position are void: its body runs again.
    Reset {
        /// The first of those that were kept at that time; the reset's own position if there was none.
        from: u64,
    },
}

/// A question for a job's output.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ask {
    /// The job.
    pub id: JobId,
    /// The position behind which to begin; 0: with the first.
    pub after: u64,
    /// How many items at most; 0: only how far it goes.
    pub limit: usize,
}

/// A part of a job's output.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Output {
    /// The next items, in the order of their positions: up to the limit that was asked for and
    /// [`bounds::OUTPUT_PAGE`]; they also end where they would exceed [`bounds::PREFETCH_BYTES`], but not before the first.
    pub items: Vec<OutputItem>,
    /// The first position that is kept; 0 if there is none.
    pub first: u64,
    /// The last position; 0 if there is none.
    pub last: u64,
    /// How the job has ended, if it has. Then the items are all that there will be.
    pub ended: Option<Status>,
    /// What the handler last said of its progress.
    pub progress: Option<Progress>,
}

/// How far the output of a job goes, and what is kept of it: the last [`bounds::FRAMES`] items, and of these no more than
/// [`bounds::FRAMES_BYTES`].
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct OutputExtent {
    /// The last position.
    pub last: u64,
    /// Bytes that were ever pushed.
    pub total: u64,
}

impl OutputExtent {
    /// The last position that is gone because of the number of items.
    pub fn gone(self) -> u64 {
        self.last.saturating_sub(bounds::FRAMES as u64)
    }

    /// What was pushed when so many bytes had been pushed before it is gone if that is less than this.
    pub fn gone_bytes(self) -> u64 {
        self.total.saturating_sub(bounds::FRAMES_BYTES as u64)
    }

    /// Whether an item is kept that was pushed when `before` bytes had been pushed.
    pub fn keeps(self, position: u64, before: u64) -> bool {
        position > self.gone() && before >= self.gone_bytes()
    }

    /// Whether a store that removes what is gone from time to time should do so, now that this has become `after`.
    pub fn is_time(self, after: OutputExtent) -> bool {
        let rounds = |kept: OutputExtent| (kept.gone() / SWEEP_ITEMS, kept.gone_bytes() / SWEEP_BYTES);
        rounds(self) != rounds(after)
    }
}

/// A store removes what is gone when it is this many items, or this many bytes: each sweep has to look for the edge.
const SWEEP_ITEMS: u64 = 256;
const SWEEP_BYTES: u64 = 1 << 20;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reset_weighs_nothing() {
        let push = |body| Push { number: 1, step: None, body };
        assert_eq!((push(Some(vec![b' '; 7])).bytes(), push(None).bytes()), (7, 0));
    }

    #[test]
    fn the_last_items_are_kept() {
        let frames = bounds::FRAMES as u64;
        let kept = OutputExtent { last: frames + 5, total: 10 };
        assert!(kept.keeps(6, 0) && !kept.keeps(5, 0));
        assert!(OutputExtent { last: frames, total: 0 }.keeps(1, 0));
    }

    #[test]
    fn no_more_bytes_are_kept_than_the_bound() {
        let bytes = bounds::FRAMES_BYTES as u64;
        let kept = OutputExtent { last: 9, total: bytes + 100 };
        assert!(kept.keeps(1, 100) && !kept.keeps(1, 99));
    }

    #[test]
    fn what_is_gone_is_swept_from_time_to_time() {
        let frames = bounds::FRAMES as u64;
        let at = |last| OutputExtent { last, total: 0 };
        assert!(!at(0).is_time(at(frames)), "nothing is gone");
        let times = (frames..frames + 10 * SWEEP_ITEMS).filter(|&last| at(last).is_time(at(last + 1)));
        assert_eq!(times.count(), 10);
        let full = bounds::FRAMES_BYTES as u64;
        let bytes = |total| OutputExtent { last: 9, total };
        assert!(!bytes(full).is_time(bytes(full + 5)) && bytes(full).is_time(bytes(full + SWEEP_BYTES)));
    }
}
