//! What happened to schedules, in the order of their versions.

use std::collections::BTreeMap;

use mainspring_core::Uuid;
use mainspring_core::schedule::Schedule;
use mainspring_core::time::Timestamp;

use super::evidence::EventIndex;
use crate::history::{Actor, Fact, LookedSchedule, ScheduleChange};

/// All that is known of schedules.
#[derive(Default)]
pub(super) struct ScheduleFacts<'a> {
    /// When which actor was told what time it is for schedules.
    pub(super) looks: Vec<(EventIndex, Actor, Timestamp)>,
    /// All changes, in the order of the history.
    pub(super) changes: Vec<Change<'a>>,
    /// What was found when all that was due had had time enough.
    pub(super) looked: Vec<(EventIndex, &'a LookedSchedule)>,
}

/// A change of a schedule.
#[derive(Clone, Copy)]
pub(super) struct Change<'a> {
    pub(super) at: EventIndex,
    pub(super) by: Actor,
    pub(super) what: &'a ScheduleChange,
}

/// A change, with the row before it and the row after it.
#[derive(Clone, Copy)]
pub(super) struct Turn<'a> {
    pub(super) change: Change<'a>,
    /// When the row before it was written.
    pub(super) since: EventIndex,
    pub(super) before: &'a Schedule,
    pub(super) after: &'a Schedule,
}

impl Turn<'_> {
    /// Whether a node changed it by itself.
    pub(super) fn is_by_rule(&self) -> bool {
        self.change.what.verb.is_none()
    }

    /// Whether a node moved its last fire back, because the clock had been wrong.
    pub(super) fn is_reset(&self) -> bool {
        self.is_by_rule() && self.after.state.last_fire < self.before.state.last_fire
    }
}

impl<'a> ScheduleFacts<'a> {
    pub(super) fn add(&mut self, at: EventIndex, by: Actor, fact: &'a Fact) {
        match fact {
            Fact::AskedWhatIsDue { now } => self.looks.push((at, by, *now)),
            Fact::Scheduled(what) => self.changes.push(Change { at, by, what }),
            Fact::LookedAtSchedule(looked) => self.looked.push((at, looked)),
            _ => {}
        }
    }

    /// Changes of rows, by the generation of their schedule, in the order of their versions.
    pub(super) fn lives(&self) -> BTreeMap<Uuid, Vec<Change<'a>>> {
        let mut lives: BTreeMap<Uuid, Vec<Change<'a>>> = BTreeMap::new();
        for change in &self.changes {
            if let Some(row) = &change.what.row {
                lives.entry(row.state.generation).or_default().push(*change);
            }
        }
        for life in lives.values_mut() {
            life.sort_by_key(|change| change.what.row.as_ref().map(|row| row.version));
        }
        lives
    }

    /// Each change whose row before it is known.
    pub(super) fn turns(&self) -> Vec<Turn<'a>> {
        let turn = |pair: &[Change<'a>]| {
            let (before, after) = (pair[0].what.row.as_deref()?, pair[1].what.row.as_deref()?);
            let follows = after.version == before.version + 1;
            follows.then_some(Turn { change: pair[1], since: pair[0].at, before, after })
        };
        self.lives().values().flat_map(|life| life.windows(2).filter_map(turn).collect::<Vec<_>>()).collect()
    }

    /// What time an actor was told between two events.
    pub(super) fn told(
        &self,
        by: Actor,
        after: Option<EventIndex>,
        before: EventIndex,
    ) -> impl Iterator<Item = Timestamp> {
        let wanted = move |(at, actor, _): &&(EventIndex, Actor, Timestamp)| {
            *actor == by && *at < before && after.is_none_or(|after| *at > after)
        };
        self.looks.iter().filter(wanted).map(|(_, _, now)| *now)
    }
}
