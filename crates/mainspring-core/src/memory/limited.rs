//! The place `limited`: groups, their turns, and how room at a limit key is passed on.
//!
//! Jobs of one line with the same limits form a group. A group with jobs has either a *turn*, and the next claim of its
//! line may visit it, or it is *blocked* at a limit key that had no room for it. Each call notes the limit keys that it
//! has touched; at its end, [`Model::pass_on`] gives turns to groups that are blocked there, as far as there is room.
//!
//! # Invariants
//! - A group has jobs, and one entry: a turn or a block.
//! - If a key has room for a group that is blocked there, another group of the same line has a turn and needs that key.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;

use crate::id::{JobId, Row};
use crate::limit::{self, Closed, LimitUse, Total};
use crate::name::QueueName;
use crate::planted::{self, Defect};
use crate::store::{ClaimRequest, Class, Level};
use crate::time::Timestamp;

use super::limits::KeyId;
use super::model::{Job, LineNo, Model};
use super::place::Place;

/// The number of a group; never used twice.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct GroupNo(u64);

/// Jobs of one line with the same limits.
#[derive(Clone)]
pub(super) struct Group {
    pub(super) line: LineNo,
    pub(super) queue: QueueName,
    pub(super) uses: Vec<LimitUse>,
    pub(super) entry: Entry,
}

/// Where a group stands.
#[derive(Clone)]
pub(super) enum Entry {
    /// It may have a job of this level or a later one. Turns of one level are in the order of their numbers.
    Turn { level: Level, no: u64 },
    /// It waits for room at this key.
    Blocked { key: KeyId, units: u16, no: u64 },
}

/// A job of a group, in the order of claims.
pub(super) type GroupJob = (Level, Timestamp, Row);

/// Groups that are blocked at one key, by their line and the units that they need, in the order in which they came.
pub(super) type Blocked = BTreeMap<(LineNo, u16), BTreeSet<(u64, GroupNo)>>;

/// All groups.
#[derive(Clone, Default)]
pub(super) struct Groups {
    numbers: BTreeMap<(LineNo, Vec<LimitUse>), GroupNo>,
    pub(super) by_no: BTreeMap<GroupNo, Group>,
    pub(super) jobs: BTreeSet<(GroupNo, Level, Timestamp, Row)>,
    pub(super) turns: BTreeSet<(LineNo, Level, u64, GroupNo)>,
    last: u64,
}

/// What a claim has chosen, and what it has seen of groups.
#[derive(Default)]
pub(super) struct Choice {
    /// The jobs, in order.
    pub(super) rows: Vec<Row>,
    /// Whether a queue gives none, although it was asked.
    pub(super) without_jobs: bool,
    /// How many suspects may still be chosen.
    pub(super) suspects: usize,
    /// Units that the chosen jobs take.
    taken: BTreeMap<KeyId, u32>,
    /// How many of them count in each total.
    totals: BTreeMap<Total, u32>,
    /// The groups that were visited, in order of their last visit.
    visits: Vec<(GroupNo, Visit)>,
    /// The last chosen job of each group.
    last: BTreeMap<GroupNo, GroupJob>,
}

/// What came of a visit.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Visit {
    /// It gave a job.
    Gave,
    /// It had none for this request.
    Skipped,
    /// A key had no room.
    Blocked(LimitUse),
}

impl Choice {
    pub(super) fn new(suspects: usize) -> Self {
        Choice { suspects, ..Choice::default() }
    }

    /// Whether a queue gives none, and groups were met without room that were not met before.
    pub(super) fn leaves_a_queue_without(&self, seen: &mut BTreeSet<GroupNo>) -> bool {
        let blocked = self.visits.iter().filter(|(_, visit)| matches!(visit, Visit::Blocked(_)));
        let new = blocked.filter(|(no, _)| seen.insert(*no)).count();
        self.without_jobs && new > 0
    }

    /// Counts the units of a job that is chosen.
    pub(super) fn take(&mut self, uses: &[LimitUse]) {
        for one in uses {
            *self.taken.entry(key_of(one)).or_default() += u32::from(one.units);
        }
    }
}

impl Job {
    /// Whether it waits in `limited`.
    pub(super) fn is_limited(&self) -> bool {
        matches!(self.place, Place::Ready { .. }) && !self.options.limits.is_empty() && !self.keeps
    }

    pub(super) fn totals(&self) -> [Total; 2] {
        [Total::Queue(self.queue.clone()), Total::Kind(self.kind.clone())]
    }
}

impl Groups {
    fn next(&mut self) -> u64 {
        self.last += 1;
        self.last
    }

    /// The first job of a group, or the first after another.
    pub(super) fn head(&self, group: GroupNo, after: Option<GroupJob>) -> Option<GroupJob> {
        const FIRST: GroupJob = (
            Level::new(Class::Suspect, crate::job::Priority::HIGHEST),
            Timestamp::from_micros(i64::MIN),
            Row(i64::MIN),
        );
        let from = match after {
            None => Bound::Included((group, FIRST.0, FIRST.1, FIRST.2)),
            Some((level, since, row)) => Bound::Excluded((group, level, since, row)),
        };
        let &(found, level, since, row) = self.jobs.range((from, Bound::Unbounded)).next()?;
        (found == group).then_some((level, since, row))
    }

    /// The first turn of a line, or the first after another.
    fn turn(&self, line: LineNo, after: Option<(Level, u64, GroupNo)>) -> Option<(Level, u64, GroupNo)> {
        const FIRST: Level = Level::new(Class::Suspect, crate::job::Priority::HIGHEST);
        let from = match after {
            None => Bound::Included((line, FIRST, 0, GroupNo(0))),
            Some((level, no, group)) => Bound::Excluded((line, level, no, group)),
        };
        let &(found, level, no, group) = self.turns.range((from, Bound::Unbounded)).next()?;
        (found == line).then_some((level, no, group))
    }

    /// Who has a turn, in order, and where the others wait.
    pub(super) fn shown(&self) -> String {
        let mut entries: Vec<_> = self.by_no.values().collect();
        entries.sort_by_key(|group| match group.entry {
            Entry::Turn { no, .. } | Entry::Blocked { no, .. } => no,
        });
        let shown = entries.iter().map(|group| match &group.entry {
            Entry::Turn { level, .. } => format!("{:?} {:?} {level:?}", group.line, group.uses),
            Entry::Blocked { key, .. } => format!("{:?} {:?} at {key:?}", group.line, group.uses),
        });
        shown.collect::<Vec<_>>().join("; ")
    }

    /// Whether a line has limited jobs.
    pub(super) fn has(&self, line: LineNo) -> bool {
        let first = self.numbers.range((line, Vec::new())..).next();
        first.is_some_and(|((found, _), _)| *found == line)
    }
}

impl Model {
    /// Puts a job into its group, which has a turn or waits for one.
    pub(super) fn enter_limited(&mut self, row: Row) {
        let Some(job) = self.jobs.get(&row) else { return };
        let Place::Ready { class, since } = job.place else { return };
        let level = Level::new(class, job.priority);
        let (line, queue, uses) = (job.line, job.queue.clone(), job.options.limits.clone());
        let groups = &mut self.groups;
        let found = groups.numbers.get(&(line, uses.clone())).copied();
        let group = found.unwrap_or_else(|| {
            let no = groups.next();
            groups.numbers.insert((line, uses.clone()), GroupNo(no));
            let entry = Entry::Turn { level, no };
            groups.by_no.insert(GroupNo(no), Group { line, queue, uses, entry });
            groups.turns.insert((line, level, no, GroupNo(no)));
            GroupNo(no)
        });
        groups.jobs.insert((group, level, since, row));
        let entry = groups.by_no.get(&group).map(|group| group.entry.clone());
        if let Some(Entry::Turn { level: before, .. }) = entry
            && level < before
        {
            self.give_turn(group);
        }
    }

    /// Takes a job out of its group. One without jobs is forgotten.
    pub(super) fn leave_limited(&mut self, row: Row) {
        let Some(job) = self.jobs.get(&row) else { return };
        let Place::Ready { class, since } = job.place else { return };
        let level = Level::new(class, job.priority);
        let Some(&group) = self.groups.numbers.get(&(job.line, job.options.limits.clone())) else { return };
        self.groups.jobs.remove(&(group, level, since, row));
        if self.groups.head(group, None).is_none() {
            self.clear_entry(group);
            if let Some(gone) = self.groups.by_no.remove(&group) {
                // Room that its turn was for may be for others.
                self.touched.extend(gone.uses.iter().map(key_of));
                self.groups.numbers.remove(&(gone.line, gone.uses));
            }
        }
    }

    fn clear_entry(&mut self, no: GroupNo) {
        let Some(group) = self.groups.by_no.get(&no) else { return };
        match &group.entry {
            Entry::Turn { level, no: turn } => {
                self.groups.turns.remove(&(group.line, *level, *turn, no));
            }
            Entry::Blocked { key, units, no: came } => {
                let Some(here) = self.blocked.get_mut(key) else { return };
                let place = (group.line, *units);
                if let Some(groups) = here.get_mut(&place) {
                    groups.remove(&(*came, no));
                    if groups.is_empty() {
                        here.remove(&place);
                    }
                }
                if here.is_empty() {
                    self.blocked.remove(key);
                }
            }
        }
    }

    /// Gives a group with jobs a turn behind those of its level.
    fn give_turn(&mut self, no: GroupNo) {
        let Some((level, ..)) = self.groups.head(no, None) else { return };
        self.clear_entry(no);
        let turn = self.groups.next();
        let Some(group) = self.groups.by_no.get_mut(&no) else { return };
        group.entry = Entry::Turn { level, no: turn };
        let (line, queue) = (group.line, group.queue.clone());
        self.groups.turns.insert((line, level, turn, no));
        self.hint_ready(&queue);
    }

    /// Lets a group wait for room at a key.
    fn block(&mut self, no: GroupNo, at: &LimitUse) {
        self.clear_entry(no);
        let came = self.groups.next();
        let Some(group) = self.groups.by_no.get_mut(&no) else { return };
        let key = key_of(at);
        group.entry = Entry::Blocked { key: key.clone(), units: at.units, no: came };
        let place = (group.line, at.units);
        self.blocked.entry(key).or_default().entry(place).or_default().insert((came, no));
    }

    /// The jobs of one queue that a node gets of the lines that are open to it, plain ones and limited ones by level.
    /// Within a level they alternate, beginning with the one or the other from claim to claim.
    pub(super) fn choose_limited(
        &self,
        open: &[LineNo],
        request: &ClaimRequest,
        (queue, limit): (&QueueName, usize),
        now: Timestamp,
        choice: &mut Choice,
    ) {
        let mut lost = request.lost(queue);
        let mut turns: BTreeSet<(Level, u64, GroupNo, bool)> = BTreeSet::new();
        let first =
            |line: &LineNo| self.groups.turn(*line, None).map(|(level, no, group)| (level, no, group, true));
        turns.extend(open.iter().filter_map(first));
        let mut heads: BTreeSet<_> = open.iter().filter_map(|line| self.head(*line, None)).collect();
        let before = choice.rows.len();
        let mut again = u64::MAX / 2;
        while choice.rows.len() - before < limit {
            let chosen = choice.rows.len() - before;
            let turn = turns.first().filter(|_| chosen < request.limited(queue)).copied();
            let takes_turn = match (heads.first(), turn) {
                (None, None) => break,
                (head, turn) => {
                    is_before(turn.map(|it| it.0), head.map(|it| it.0), request.batch.0 + chosen as u64)
                }
            };
            if !takes_turn {
                let Some(head) = heads.pop_first() else { break };
                let (level, _, row, line) = head;
                if level.class() == Class::Suspect && choice.suspects == 0 {
                    heads.extend(self.head_of_class(line, Class::Lost));
                } else if level.class() == Class::Lost && lost == 0 {
                    heads.extend(self.head_of_class(line, Class::Returned));
                } else if self.count_in_totals(row, choice) {
                    bounded(level, &mut choice.suspects, &mut lost);
                    choice.rows.push(row);
                    heads.extend(self.head(line, Some(head)));
                }
                continue;
            }
            let Some((level, no, group, stored)) = turns.pop_first() else { break };
            let Some(line) = self.groups.by_no.get(&group).map(|group| group.line) else { continue };
            let Some(job) = self.next_of_group(group, choice, lost) else {
                choice.visits.push((group, Visit::Skipped));
                turns.extend(self.turn_behind(line, (level, no, group), stored));
                continue;
            };
            if job.0 > level {
                turns.extend(self.turn_behind(line, (level, no, group), stored));
                turns.insert((job.0, no, group, false));
                continue;
            }
            if let Some(closed) = self.closed_to(group, choice, now) {
                choice.visits.push((group, Visit::Blocked(closed)));
                turns.extend(self.turn_behind(line, (level, no, group), stored));
                continue;
            }
            if !self.count_in_totals(job.2, choice) {
                // No job of this line can be claimed.
                continue;
            }
            turns.extend(self.turn_behind(line, (level, no, group), stored));
            bounded(job.0, &mut choice.suspects, &mut lost);
            self.count_units(group, choice);
            choice.rows.push(job.2);
            choice.last.insert(group, job);
            choice.visits.push((group, Visit::Gave));
            again += 1;
            turns.insert((job.0, again, group, false));
        }
    }

    /// The next turn of a line, if this one is as it is stored.
    fn turn_behind(
        &self,
        line: LineNo,
        turn: (Level, u64, GroupNo),
        stored: bool,
    ) -> Option<(Level, u64, GroupNo, bool)> {
        let next = self.groups.turn(line, Some(turn)).filter(|_| stored);
        next.map(|(level, no, group)| (level, no, group, true))
    }

    /// The next job of a group that the request may be given.
    fn next_of_group(&self, group: GroupNo, choice: &Choice, lost: usize) -> Option<GroupJob> {
        let mut after = choice.last.get(&group).copied();
        loop {
            let job = self.groups.head(group, after)?;
            let refused = match job.0.class() {
                Class::Suspect => choice.suspects == 0,
                Class::Lost => lost == 0,
                Class::Returned | Class::Fresh => false,
            };
            if !refused {
                return Some(job);
            }
            after = Some(job);
        }
    }

    /// The first limit key that has no room for a job of a group, beside those that were chosen.
    fn closed_to(&self, group: GroupNo, choice: &Choice, now: Timestamp) -> Option<LimitUse> {
        let uses = &self.groups.by_no.get(&group)?.uses;
        uses.iter().find(|one| !self.has_room(one, choice, now)).cloned()
    }

    pub(super) fn has_room(&self, one: &LimitUse, choice: &Choice, now: Timestamp) -> bool {
        let taken = choice.taken.get(&key_of(one)).copied().unwrap_or(0);
        let found = self.limits.get(&one.limit);
        let state = self.key_state(one);
        let state = if taken == 0 { state } else { state.take(found, taken, now) };
        limit::room(found, &state, one.units, now) > 0
    }

    fn count_units(&self, group: GroupNo, choice: &mut Choice) {
        if let Some(group) = self.groups.by_no.get(&group) {
            choice.take(&group.uses);
        }
    }

    /// Whether the totals of a job have room beside the jobs that were chosen.
    pub(super) fn has_room_in_totals(&self, row: Row, choice: &Choice) -> bool {
        let room = |total: &Total| {
            let chosen = choice.totals.get(total).copied().unwrap_or(0);
            self.totals.get(total).is_none_or(|state| state.in_use + chosen < state.max)
        };
        self.totals.is_empty() || self.jobs.get(&row).is_some_and(|job| job.totals().iter().all(room))
    }

    /// Counts a job in the totals of its queue and its kind. False if one is reached: then it counts in none.
    pub(super) fn count_in_totals(&self, row: Row, choice: &mut Choice) -> bool {
        let room = self.has_room_in_totals(row, choice);
        if let Some(job) = self.jobs.get(&row).filter(|_| room && !self.totals.is_empty()) {
            for total in job.totals() {
                *choice.totals.entry(total).or_default() += 1;
            }
        }
        room
    }

    /// Blocks the groups that a claim has met without room, before it takes anything.
    pub(super) fn keep_blocks(&mut self, choice: &Choice) {
        for (no, visit) in &choice.visits {
            let Visit::Blocked(at) = visit else { continue };
            let Some(group) = self.groups.by_no.get(no) else { continue };
            let keys: Vec<KeyId> = group.uses.iter().map(key_of).collect();
            if !planted::is(Defect::RoomNotPassedOn) {
                self.touched.extend(keys);
            }
            self.block(*no, at);
        }
    }

    /// Keeps what a claim has seen of groups, once its jobs have left them.
    pub(super) fn keep_visits(&mut self, choice: Choice) {
        for (no, visit) in choice.visits {
            let Some(group) = self.groups.by_no.get(&no) else { continue };
            let keys: Vec<KeyId> = group.uses.iter().map(key_of).collect();
            if !planted::is(Defect::RoomNotPassedOn) {
                self.touched.extend(keys);
            }
            match visit {
                Visit::Gave if planted::is(Defect::TurnDropped) => self.clear_entry(no),
                Visit::Gave => self.give_turn(no),
                Visit::Skipped => {}
                Visit::Blocked(at) => self.block(no, &at),
            }
        }
    }

    /// Takes the units of a job that was claimed.
    pub(super) fn take_units(&mut self, row: Row, now: Timestamp) {
        let uses = self.jobs.get(&row).map(|job| job.options.limits.clone()).unwrap_or_default();
        for one in uses {
            let state = self.key_state(&one).take(self.limits.get(&one.limit), u32::from(one.units), now);
            self.keys_of_limits.insert(key_of(&one), state);
        }
    }

    /// Gives back what a claim or a job held.
    pub(super) fn give_back(&mut self, uses: &[LimitUse]) {
        for one in uses {
            let state = self.key_state(one).give_back(u32::from(one.units));
            self.keys_of_limits.insert(key_of(one), state);
            self.touched.insert(key_of(one));
        }
    }

    /// A job was claimed, or a claim ended: it counts in the totals of its queue and its kind.
    pub(super) fn count_claim(&mut self, totals: &[Total], more: bool) {
        for total in totals {
            let Some(state) = self.totals.get_mut(total) else { continue };
            let was_full = state.in_use >= state.max;
            state.in_use = if more { state.in_use + 1 } else { state.in_use.saturating_sub(1) };
            if was_full && state.in_use < state.max {
                self.hint_total(total);
            }
        }
    }

    /// Wakes whoever may claim jobs that a total has held back.
    pub(super) fn hint_total(&mut self, total: &Total) {
        match total {
            Total::Queue(queue) => self.hint_ready(queue),
            Total::Kind(kind) => {
                let has = |lines: &BTreeMap<super::model::Line, LineNo>| {
                    lines.keys().any(|line| line.kind == *kind)
                };
                let queues: Vec<_> = self
                    .lines
                    .iter()
                    .filter(|(_, lines)| has(lines))
                    .map(|(queue, _)| queue.clone())
                    .collect();
                for queue in queues {
                    self.hint_ready(&queue);
                }
            }
        }
    }

    /// The definition of a limit has changed: so has the room at all of its keys.
    pub(super) fn touch_limit(&mut self, name: &crate::name::LimitName) {
        let from = (name.clone(), String::new());
        let keys = self.blocked.range(from..).take_while(|((limit, _), _)| limit == name);
        let keys: Vec<KeyId> = keys.map(|(key, _)| key.clone()).collect();
        self.touched.extend(keys);
    }

    /// Gives turns to groups that are blocked at the keys that this call has touched, as far as there is room: to those
    /// of each line, because a line may be one that nobody claims from now.
    pub(super) fn pass_on(&mut self, now: Timestamp) {
        for key in std::mem::take(&mut self.touched) {
            let lines: BTreeSet<LineNo> =
                self.blocked.get(&key).into_iter().flat_map(BTreeMap::keys).map(|(line, _)| *line).collect();
            for line in lines {
                self.pass_on_in_line(&key, line, now);
            }
            self.set_due(key, now);
        }
    }

    fn pass_on_in_line(&mut self, key: &KeyId, line: LineNo, now: Timestamp) {
        let found = self.limits.get(&key.0).cloned();
        let mut state = self.keys_of_limits.get(key).copied().unwrap_or_default();
        loop {
            let Some(here) = self.blocked.get(key) else { return };
            let of_line = here.range((line, 0)..=(line, u16::MAX));
            let fits = of_line.filter(|((_, units), _)| limit::room(found.as_ref(), &state, *units, now) > 0);
            let next = fits.filter_map(|((_, units), groups)| Some((*groups.first()?, *units))).min();
            let Some(((_, group), units)) = next else { return };
            state = state.take(found.as_ref(), u32::from(units), now);
            self.give_turn(group);
        }
    }

    /// Notes when time alone lets the next group in that is blocked at a key.
    fn set_due(&mut self, key: KeyId, now: Timestamp) {
        if let Some(at) = self.due_keys.remove(&key) {
            self.dues.remove(&(at, key.clone()));
        }
        if !self.blocked.contains_key(&key) {
            return;
        }
        let found = self.limits.get(&key.0);
        let state = self.keys_of_limits.get(&key).copied().unwrap_or_default().waited_for(found, now);
        self.keys_of_limits.insert(key.clone(), state);
        let until = |units: u16| match limit::closed(found, &state, units, now) {
            Some(Closed::Rate { until }) => Some(until),
            _ => None,
        };
        let units = self.blocked.get(&key).into_iter().flat_map(BTreeMap::keys).map(|(_, units)| *units);
        let Some(due) = units.filter_map(until).min() else { return };
        self.dues.insert((due, key.clone()));
        self.due_keys.insert(key, due);
        self.hint_due(due);
    }

    /// Passes on what time has brought, for so many keys.
    pub(super) fn promote_keys(&mut self, limit: usize, now: Timestamp) {
        let due = self.dues.iter().take_while(|(at, _)| *at <= now).take(limit);
        let keys: Vec<KeyId> = due.map(|(_, key)| key.clone()).collect();
        if planted::is(Defect::TokensTwice) {
            for key in &keys {
                self.keys_of_limits.entry(key.clone()).and_modify(|state| state.next_free = None);
            }
        }
        self.touched.extend(keys);
        self.pass_on(now);
    }

    /// The first job of a job's group, if that is another one.
    pub(super) fn first_of_group(&self, row: Row, job: &Job) -> Option<JobId> {
        let group = self.groups.numbers.get(&(job.line, job.options.limits.clone()))?;
        let (_, _, first) = self.groups.head(*group, None)?;
        (first != row).then(|| self.jobs.get(&first).map(|job| job.id)).flatten()
    }
}

/// What a limit key is called.
pub(super) fn key_of(one: &LimitUse) -> KeyId {
    (one.limit.clone(), one.key.clone())
}

/// Whether a turn comes before a plain job.
fn is_before(turn: Option<Level>, plain: Option<Level>, number: u64) -> bool {
    match (turn, plain) {
        (None, _) => false,
        (Some(_), None) => true,
        (Some(turn), Some(plain)) => turn < plain || turn == plain && number.is_multiple_of(2),
    }
}

/// Counts a job of a class that is bounded.
fn bounded(level: Level, suspects: &mut usize, lost: &mut usize) {
    match level.class() {
        Class::Suspect => *suspects -= 1,
        Class::Lost => *lost -= 1,
        Class::Returned | Class::Fresh => {}
    }
}
