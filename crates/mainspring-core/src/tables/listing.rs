//! Listings: which tables can give the jobs that a filter allows.
//!
//! Every such table has the job's number as (the end of) its key, so each gives numbers from high to low; several are
//! merged. Each number is then looked up and held against the filter, which alone decides.

use std::collections::BTreeSet;

use super::names::Line;
use crate::job::State;
use crate::name::Tag;
use crate::store::Filter;

/// A table that gives numbers of jobs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Source<'f> {
    /// The places of ready jobs, `ready` and `limited`.
    Ready,
    /// The place `timers`.
    Timers,
    /// The place `lease`.
    Lease,
    /// The place `suspended`.
    Suspended,
    /// All jobs.
    Jobs,
    /// Those in `done` that ended in this state, which is not `succeeded`: few.
    Rare(State),
    /// Those that have a tag.
    Tagged(&'f Tag),
    /// Those that keep errors. A job comes as often as it keeps some.
    Faulty,
}

/// The tables that together hold every job that can match, and as few others as possible.
pub fn sources(filter: &Filter) -> Vec<Source<'_>> {
    if let Some(tag) = &filter.tag {
        return vec![Source::Tagged(tag)];
    }
    let states = states(filter);
    let ended_badly = |state: &State| matches!(state, State::Failed | State::Cancelled | State::Skipped);
    if filter.error.is_some() && !states.iter().all(ended_badly) {
        return vec![Source::Faulty];
    }
    if states.contains(&State::Succeeded) {
        return vec![Source::Jobs];
    }
    let source = |state: &State| match state {
        State::Ready => Some(Source::Ready),
        State::Scheduled => Some(Source::Timers),
        State::Running => Some(Source::Lease),
        State::Suspended => Some(Source::Suspended),
        State::Failed | State::Cancelled | State::Skipped => Some(Source::Rare(*state)),
        // Nothing is blocked yet; and what succeeded is nearly everything.
        State::Blocked | State::Succeeded => None,
    };
    states.iter().filter_map(source).collect()
}

/// The states that the filter allows, once each.
fn states(filter: &Filter) -> BTreeSet<State> {
    let named = if filter.states.is_empty() { State::ALL } else { &filter.states };
    let fits = |state: &State| filter.reason.is_none_or(|reason| reason.fits(*state));
    named.iter().copied().filter(fits).collect()
}

/// The lines that the filter allows; `None` if any.
pub fn wanted_lines<'l, N: Ord + 'l>(
    lines: impl Iterator<Item = (N, &'l Line<N>)>,
    filter: &Filter,
) -> Option<BTreeSet<N>> {
    if filter.queue.is_none() && filter.kind.is_none() {
        return None;
    }
    let fits = |line: &Line<N>| {
        filter.queue.as_ref().is_none_or(|queue| *queue == line.queue_name)
            && filter.kind.as_ref().is_none_or(|kind| *kind == line.kind_name)
    };
    Some(lines.filter(|(_, line)| fits(line)).map(|(no, _)| no).collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::job::Reason;
    use crate::store::ErrorText;

    #[test]
    fn most_selective_sources_are_chosen() {
        let none = Filter::default;
        let states = |states: &[State]| Filter { states: states.to_vec(), ..none() };
        assert_eq!(sources(&none()), [Source::Jobs]);
        assert_eq!(sources(&states(&[State::Succeeded, State::Ready])), [Source::Jobs]);
        assert_eq!(sources(&states(&[State::Ready, State::Ready])), [Source::Ready]);
        assert_eq!(sources(&states(&[State::Blocked])), []);
        assert_eq!(sources(&Filter { reason: Some(Reason::Hold), ..none() }), [Source::Suspended]);
        let tag = Tag::new("t").expect("a tag");
        let tagged = Filter { tag: Some(tag.clone()), ..states(&[State::Failed]) };
        assert_eq!(sources(&tagged), [Source::Tagged(&tag)]);
        let error = ErrorText::new("x").ok();
        assert_eq!(sources(&Filter { error: error.clone(), ..none() }), [Source::Faulty]);
        let ready = Filter { error: error.clone(), ..states(&[State::Ready]) };
        assert_eq!(sources(&ready), [Source::Faulty]);
        let failed = Filter { error, ..states(&[State::Failed]) };
        assert_eq!(sources(&failed), [Source::Rare(State::Failed)]);
        let rare = states(&[State::Failed, State::Cancelled]);
        assert_eq!(sources(&rare), [Source::Rare(State::Failed), Source::Rare(State::Cancelled)]);
    }
}
