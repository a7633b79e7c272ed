//! The self-check of limits: counters are the sums of claims, and no group waits for room that is there.

use std::collections::{BTreeMap, BTreeSet};

use crate::limit;
use crate::store::Finding;
use crate::time::Timestamp;

use super::limited::{Entry, key_of};
use super::limits::KeyId;
use super::model::Model;
use super::place::Place;

impl Model {
    pub(super) fn check_limits(&self) -> Vec<Finding> {
        let mut found = Vec::new();
        let mut expect = |holds: bool, what: String| {
            if !holds {
                found.push(Finding { what, hint: "this is a defect of the memory store".into() });
            }
        };
        let mut held: BTreeMap<KeyId, u32> = BTreeMap::new();
        for job in self.jobs.values() {
            let claimed = matches!(job.place, Place::Lease { .. });
            expect(!(claimed && job.keeps), format!("job {} runs and keeps units", job.id));
            for one in job.options.limits.iter().filter(|_| claimed || job.keeps) {
                *held.entry(key_of(one)).or_default() += u32::from(one.units);
            }
        }
        for (key, state) in &self.keys_of_limits {
            let holds = held.remove(key).unwrap_or(0);
            let what = format!(
                "{} units of limit `{}` of `{}` are in use, and {holds} are held",
                state.in_use, key.0, key.1
            );
            expect(state.in_use == holds, what);
        }
        expect(held.is_empty(), format!("units of limit keys without a row: {held:?}"));
        for (total, state) in &self.totals {
            let running = self.count_running(total);
            expect(state.in_use == running, format!("{total:?}: {} in use, {running} run", state.in_use));
        }
        let mut turns = 0;
        let mut blocked = 0;
        let mut passed_on: BTreeSet<(KeyId, _)> = BTreeSet::new();
        for (no, group) in &self.groups.by_no {
            expect(self.groups.head(*no, None).is_some(), format!("group {no:?} has no jobs"));
            match &group.entry {
                Entry::Turn { level, no: turn } => {
                    turns += 1;
                    let there = self.groups.turns.contains(&(group.line, *level, *turn, *no));
                    expect(there, format!("the turn of group {no:?} is lost"));
                    passed_on.extend(group.uses.iter().map(|one| (key_of(one), group.line)));
                }
                Entry::Blocked { key, units, no: came } => {
                    blocked += 1;
                    let here = self.blocked.get(key).and_then(|here| here.get(&(group.line, *units)));
                    let there = here.is_some_and(|groups| groups.contains(&(*came, *no)));
                    expect(there, format!("group {no:?} is blocked nowhere"));
                }
            }
        }
        expect(self.groups.turns.len() == turns, "turns without a group".into());
        let all: usize = self.blocked.values().flat_map(BTreeMap::values).map(BTreeSet::len).sum();
        expect(all == blocked, "blocked groups without jobs".into());
        for (key, here) in &self.blocked {
            let state = self.keys_of_limits.get(key).copied().unwrap_or_default();
            for (line, units) in here.keys() {
                // Tokens come by themselves; whether they have been passed on is a matter of the next promotion.
                let room =
                    limit::room(self.limits.get(&key.0), &state, *units, Timestamp::from_micros(i64::MIN))
                        > 0;
                let passed = passed_on.contains(&(key.clone(), *line));
                expect(
                    !room || passed,
                    format!("limit `{}` of `{}` has room, and a group waits there", key.0, key.1),
                );
            }
        }
        for (due, key) in &self.dues {
            expect(self.due_keys.get(key) == Some(due), format!("{key:?} is due twice"));
        }
        expect(self.touched.is_empty(), "room was not passed on".into());
        found
    }
}
