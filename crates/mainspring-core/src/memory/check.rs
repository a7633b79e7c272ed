//! The self-check: every index agrees with the jobs.

use std::collections::BTreeSet;

use crate::store::{Counts, Finding, NodeState};

use super::model::Model;
use super::place::Place;

impl Model {
    pub(super) fn check(&self) -> Vec<Finding> {
        let mut found = Vec::new();
        let mut expect = |holds: bool, what: String| {
            if !holds {
                found.push(Finding { what, hint: "this is a defect of the memory store".into() });
            }
        };
        let mut counts = Counts::default();
        let (mut ready, mut limited, mut timers, mut leases, mut ended, mut deadlines) = (0, 0, 0, 0, 0, 0);
        for (row, job) in &self.jobs {
            let id = job.id;
            expect(self.ids.get(&id) == Some(row), format!("job {id} is not found by its id"));
            let states = counts.0.entry(job.queue.clone()).or_default();
            *states.entry(job.place.status().state).or_default() += 1;
            match &job.place {
                Place::Ready { .. } if job.is_limited() => limited += 1,
                Place::Ready { .. } => ready += 1,
                Place::Timers { .. } | Place::Suspended { .. } => {}
                Place::Lease { node, .. } => {
                    leases += 1;
                    expect(self.leases.contains(&(*node, *row)), format!("job {id} has no lease"));
                    let owner = self.members.get(node).map(|member| member.state);
                    let owned = matches!(owner, Some(NodeState::Live | NodeState::Expired));
                    expect(owned, format!("job {id} is claimed by node {node}, which is gone"));
                }
                Place::Done { .. } => ended += 1,
            }
            if let Some(due) = job.place.wakes() {
                timers += 1;
                expect(self.timers.contains(&(due, *row)), format!("job {id} has no timer"));
            }
            if let Some(damage) = &job.damage {
                expect(false, format!("job {id}: {damage} cannot be read"));
            }
            expect(!job.is_overslept(), format!("job {id} waits for what it has been sent"));
            if let Some(deadline) = job.deadline.filter(|_| job.place.is_waiting()) {
                deadlines += 1;
                let kept = self.deadlines.contains(&(deadline, *row));
                expect(kept, format!("job {id} has lost its deadline"));
            }
        }
        expect(self.ids.len() == self.jobs.len(), "ids without a job".into());
        expect(self.ready.len() == ready, "`ready` does not agree with the jobs".into());
        expect(self.groups.jobs.len() == limited, "`limited` does not agree with the jobs".into());
        expect(self.timers.len() == timers, "`timers` does not agree with the jobs".into());
        expect(self.leases.len() == leases, "`lease` does not agree with the jobs".into());
        expect(
            self.ended.values().map(BTreeSet::len).sum::<usize>() == ended,
            "`done` does not agree".into(),
        );
        expect(self.deadlines.len() == deadlines, "deadlines without a waiting job".into());
        expect(self.counts == counts, "the counts do not agree with the jobs".into());
        for ((kind, key), held) in &self.keys {
            let job = self.ids.get(&held.holder).and_then(|row| self.jobs.get(row));
            let open = job.is_some_and(|job| !job.place.status().state.is_terminal());
            expect(open || held.until.is_some(), format!("key `{key}` of `{kind}` is held by no open job"));
        }
        found.extend(self.check_limits());
        found
    }
}
