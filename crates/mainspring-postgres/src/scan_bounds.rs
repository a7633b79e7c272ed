//! Scan bounds: where the jobs of each line and level begin.
//!
//! A claim deletes from the front of the index of `ready`. What it deleted stays there as dead entries until the database
//! cleans up, and for as long as some other session keeps an old snapshot; a scan from the very front would walk over all
//! of them, each time. So each handle remembers, for every pair of line and level, the last job it saw, and scans begin
//! behind it.
//!
//! A job can appear before that bound: its transaction took its time to commit, or a claimer that held it died. Whoever
//! puts jobs into `ready` reports where, in this process and by a notification to others, and the bound is moved back. A scan
//! of all pairs from their fronts finds what nobody reported. It runs every second or so, and never for more than a twentieth
//! of the time.
//!
//! # Invariants
//! - A pair that is not active had no job behind its bound when it was last looked at.
//! - A bound is moved forward only over jobs that a committed claim of this handle took.

use std::collections::BTreeMap;
use std::time::Duration;

use mainspring_core::time::Timestamp;

use crate::sql::At;

/// A line and a level.
pub(crate) type LineLevel = (i32, i16);
/// A job's place in a pair: when it entered, and its number.
pub(crate) type Position = (Timestamp, i64);

/// What is known of a pair.
#[derive(Debug, Clone, Copy)]
struct ScanBound {
    /// Scans begin behind this.
    bound: Position,
    /// Whether there may be jobs behind the bound.
    active: bool,
    /// Grows with each report about the pair: a scan that began before does not know better.
    generation: u64,
    /// The first job that was reported since the last claim was planned, which may not have seen it.
    earliest_new: Option<Position>,
}

/// How often all pairs are scanned while others can report their jobs to us: with each idle poll. Where they cannot, every claim
/// looks for them.
const SCAN_EVERY: Duration = Duration::from_millis(900);
/// Scans take no more than one part in this many of the time.
const SCAN_SHARE: u32 = 20;

/// What is known of all pairs.
#[derive(Debug, Default)]
pub(crate) struct ScanBounds {
    pairs: BTreeMap<LineLevel, ScanBound>,
    generation: u64,
    /// When all pairs may be scanned again, on the monotonic clock; `None`: at once.
    next_scan: Option<Duration>,
    /// How long the last scan took.
    scan_took: Duration,
}

impl ScanBounds {
    /// There is a job here.
    pub(crate) fn add(&mut self, pair: LineLevel, position: Position) {
        self.generation += 1;
        let before = (position.0, position.1 - 1);
        let fresh =
            ScanBound { bound: before, active: true, generation: self.generation, earliest_new: None };
        let known = self.pairs.entry(pair).or_insert(fresh);
        known.bound = known.bound.min(before);
        known.active = true;
        known.generation = self.generation;
        known.earliest_new =
            Some(known.earliest_new.map_or(position, |earliest_new| earliest_new.min(position)));
    }

    /// The pairs of a line that may have jobs, with their bounds, for a claim that begins now. One claim at a time.
    pub(crate) fn plan(&mut self, line: i32) -> impl Iterator<Item = (LineLevel, Position)> {
        let pairs = self.pairs.range_mut((line, i16::MIN)..=(line, i16::MAX));
        pairs.filter(|(_, known)| known.active).map(|(pair, known)| {
            known.earliest_new = None;
            (*pair, known.bound)
        })
    }

    /// Whether any pair may have jobs.
    pub(crate) fn is_active(&self) -> bool {
        self.pairs.values().any(|known| known.active)
    }

    /// How many reports there were so far, for [`ScanBounds::scanned`].
    pub(crate) fn generation(&self) -> u64 {
        self.generation
    }

    /// The claim that was planned last took jobs of a pair up to this one. `empty`: it would have taken more.
    pub(crate) fn took(&mut self, pair: LineLevel, last: Option<Position>, empty: bool) {
        let Some(known) = self.pairs.get_mut(&pair) else { return };
        let limit = known.earliest_new.map(|(at, no)| (at, no - 1));
        if let Some(last) = last {
            known.bound = known.bound.max(limit.map_or(last, |limit| limit.min(last)));
        }
        known.active &= !empty || known.earliest_new.is_some();
    }

    /// Whether all pairs are to be scanned, because something may have been missed or because it is time.
    pub(crate) fn scan_is_due(&self, now: Option<Duration>) -> bool {
        self.next_scan.is_none_or(|next| now.is_some_and(|now| now >= next))
    }

    /// A scan of all pairs was given up: it takes too long, so what nobody reports must wait.
    pub(crate) fn gave_up(&mut self, (began, now): (Duration, Duration)) {
        self.scan_took = now.saturating_sub(began);
        self.next_scan = Some(now + self.scan_took * (SCAN_SHARE - 1));
    }

    /// How long the last scan of all pairs took.
    pub(crate) fn scan_took(&self) -> Duration {
        self.scan_took
    }

    /// Nobody knows what happened: all pairs are to be scanned before the next claim.
    pub(crate) fn forget(&mut self) {
        self.next_scan = None;
    }

    /// All pairs were scanned: these have jobs, from here on. Returns those that nobody knew of. `since` is the generation at the
    /// scan's beginning, `listening` whether others can tell us of their jobs.
    pub(crate) fn scanned(
        &mut self,
        found: &[(LineLevel, Position)],
        since: u64,
        (began, now): (Duration, Duration),
        listening: bool,
    ) -> Vec<LineLevel> {
        let every = if listening { SCAN_EVERY } else { Duration::ZERO };
        self.scan_took = now.saturating_sub(began);
        self.next_scan = Some(now + every.max(self.scan_took * (SCAN_SHARE - 1)));
        let found: BTreeMap<LineLevel, Position> = found.iter().copied().collect();
        for (pair, known) in &mut self.pairs {
            if known.generation <= since && !found.contains_key(pair) {
                known.active = false;
            }
        }
        let mut new = Vec::new();
        for (pair, position) in found {
            let before = (position.0, position.1 - 1);
            let unknown = ScanBound { bound: before, active: false, generation: since, earliest_new: None };
            let known = self.pairs.entry(pair).or_insert(unknown);
            if !known.active || known.bound > before {
                new.push(pair);
            }
            // A scan that began before the last news may have missed an earlier job, never a later one.
            known.bound = if known.generation <= since { before } else { known.bound.min(before) };
            known.active = true;
            // A claim that is on its way began at the old bound.
            known.earliest_new =
                Some(known.earliest_new.map_or(position, |earliest_new| earliest_new.min(position)));
        }
        new
    }
}

/// A bound as arguments.
pub(crate) fn bound_args(bound: Position) -> (At, i64) {
    (At(bound.0), bound.1)
}
