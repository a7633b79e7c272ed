//! Heads: where the jobs of each line and level begin.
//!
//! A claim deletes from the front of the index of `ready`. What it deleted stays there as dead entries until the database
//! cleans up, and for as long as some other session keeps an old snapshot; a scan from the very front would walk over all
//! of them, each time. So each handle remembers, for every pair of line and level, the last job it saw, and scans begin
//! behind it.
//!
//! A job can appear before that bound: its transaction took its time to commit, or a claimer that held it died. Who puts
//! jobs into `ready` tells where, in this process and by a notification to others, and the bound is moved back. What
//! nobody told is found by a scan of all pairs from their fronts, which runs every second or so, and never for more than a
//! twentieth of the time.
//!
//! # Invariants
//! - A pair that is not active had no job behind its bound when it was last looked at.
//! - A bound is moved forward only over jobs that a committed claim of this handle took.

use std::collections::BTreeMap;
use std::time::Duration;

use mainspring_core::time::Timestamp;

use crate::sql::At;

/// A line and a level.
pub(crate) type Pair = (i32, i16);
/// A job's place in a pair: when it entered, and its number.
pub(crate) type Spot = (Timestamp, i64);

/// What is known of a pair.
#[derive(Debug, Clone, Copy)]
struct Head {
    /// Scans begin behind this.
    bound: Spot,
    /// Whether there may be jobs behind the bound.
    active: bool,
    /// Counts what was told of the pair: a scan that began before does not know better.
    told: u64,
    /// The first job that was told of since the last claim was planned, which may not have seen it.
    news: Option<Spot>,
}

/// How often all pairs are scanned while others can tell us of their jobs: with each pulse. Where they cannot, every claim
/// looks for them.
const SCAN_EVERY: Duration = Duration::from_millis(900);
/// Scans take no more than one part in this many of the time.
const SCAN_SHARE: u32 = 20;

/// What is known of all pairs.
#[derive(Debug, Default)]
pub(crate) struct Heads {
    pairs: BTreeMap<Pair, Head>,
    told: u64,
    /// When all pairs may be scanned again, on the monotonic clock; `None`: at once.
    next_scan: Option<Duration>,
    /// How long the last scan took.
    scan_took: Duration,
}

impl Heads {
    /// There is a job here.
    pub(crate) fn tell(&mut self, pair: Pair, spot: Spot) {
        self.told += 1;
        let before = (spot.0, spot.1 - 1);
        let fresh = Head { bound: before, active: true, told: self.told, news: None };
        let head = self.pairs.entry(pair).or_insert(fresh);
        head.bound = head.bound.min(before);
        head.active = true;
        head.told = self.told;
        head.news = Some(head.news.map_or(spot, |news| news.min(spot)));
    }

    /// The pairs of a line that may have jobs, with their bounds, for a claim that begins now. One claim at a time.
    pub(crate) fn plan(&mut self, line: i32) -> impl Iterator<Item = (Pair, Spot)> {
        let pairs = self.pairs.range_mut((line, i16::MIN)..=(line, i16::MAX));
        pairs.filter(|(_, head)| head.active).map(|(pair, head)| {
            head.news = None;
            (*pair, head.bound)
        })
    }

    /// What has been told so far: to be handed to [`Heads::scanned`].
    pub(crate) fn mark(&self) -> u64 {
        self.told
    }

    /// The claim that was planned last took jobs of a pair up to this one. `empty`: it would have taken more.
    pub(crate) fn took(&mut self, pair: Pair, last: Option<Spot>, empty: bool) {
        let Some(head) = self.pairs.get_mut(&pair) else { return };
        let limit = head.news.map(|(at, no)| (at, no - 1));
        if let Some(last) = last {
            head.bound = head.bound.max(limit.map_or(last, |limit| limit.min(last)));
        }
        head.active &= !empty || head.news.is_some();
    }

    /// Whether all pairs are to be scanned, because something may have been missed or because it is time.
    pub(crate) fn scan_is_due(&self, now: Option<Duration>) -> bool {
        self.next_scan.is_none_or(|next| now.is_some_and(|now| now >= next))
    }

    /// A scan of all pairs was given up: it takes too long, so what nobody tells of must wait.
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

    /// All pairs were scanned: these have jobs, from here on. Returns those that nobody knew of. `since` is the mark of the
    /// scan's beginning, `listening` whether others can tell us of their jobs.
    pub(crate) fn scanned(
        &mut self,
        found: &[(Pair, Spot)],
        since: u64,
        (began, now): (Duration, Duration),
        listening: bool,
    ) -> Vec<Pair> {
        let every = if listening { SCAN_EVERY } else { Duration::ZERO };
        self.scan_took = now.saturating_sub(began);
        self.next_scan = Some(now + every.max(self.scan_took * (SCAN_SHARE - 1)));
        let found: BTreeMap<Pair, Spot> = found.iter().copied().collect();
        for (pair, head) in &mut self.pairs {
            if head.told <= since && !found.contains_key(pair) {
                head.active = false;
            }
        }
        let mut new = Vec::new();
        for (pair, spot) in found {
            let before = (spot.0, spot.1 - 1);
            let unknown = Head { bound: before, active: false, told: since, news: None };
            let head = self.pairs.entry(pair).or_insert(unknown);
            if !head.active || head.bound > before {
                new.push(pair);
            }
            // A scan that began before the last news may have missed an earlier job, never a later one.
            head.bound = if head.told <= since { before } else { head.bound.min(before) };
            head.active = true;
            // A claim that is on its way began at the old bound.
            head.news = Some(head.news.map_or(spot, |news| news.min(spot)));
        }
        new
    }
}

/// A bound as arguments.
pub(crate) fn bound_args(bound: Spot) -> (At, i64) {
    (At(bound.0), bound.1)
}
