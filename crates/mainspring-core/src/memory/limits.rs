//! Limits: definitions, what operators set and see. Who is let in is in `limited.rs`.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use crate::audit::{AuditEntry, Subject};
use crate::bounds;
use crate::id::{JobId, Row};
use crate::limit::{
    self, Change, Closed, KeyChange, KeyHolder, KeyState, KeyUse, Limit, LimitKey, LimitSeed, LimitUse,
    Obstacle, Total, TotalUse,
};
use crate::name::LimitName;
use crate::planted::{self, Defect};
use crate::time::Timestamp;
use crate::{Error, Result};

use super::model::{Job, Model};
use super::place::Place;

/// What one limit key is called.
pub(super) type KeyId = (LimitName, String);

/// How many of a queue or a kind run, and may.
#[derive(Clone, Copy)]
pub(super) struct TotalState {
    pub(super) max: u32,
    pub(super) in_use: u32,
}

impl Model {
    pub(super) fn seed_limits(&mut self, seeds: &[LimitSeed], now: Timestamp) -> Result<Vec<Limit>> {
        let new = seeds.iter().filter(|seed| !self.limits.contains_key(&seed.name)).count();
        self.check_count(new)?;
        for seed in seeds {
            seed.check()?;
            let before = self.limits.get(&seed.name).cloned();
            if let Some(after) = seed.apply(before.as_ref()) {
                let verb = if before.is_some() { "seed" } else { "create" };
                self.put_limit(before.as_ref(), after, verb, &format!("code {}", seed.seed.by), now);
            }
        }
        Ok(seeds.iter().filter_map(|seed| self.limits.get(&seed.name)).cloned().collect())
    }

    /// Refuses so many new limits if that would be too many.
    fn check_count(&self, new: usize) -> Result<()> {
        let size = self.limits.len() + new;
        if new > 0 && size > bounds::LIMITS {
            return Err(Error::TooLarge { what: "number of limits", size, limit: bounds::LIMITS });
        }
        Ok(())
    }

    pub(super) fn set_limit(
        &mut self,
        name: &LimitName,
        change: Change,
        who: &str,
        now: Timestamp,
    ) -> Result<Limit> {
        change.check()?;
        let before = self.limits.get(name).cloned();
        self.check_count(usize::from(before.is_none()))?;
        let after = change.apply(name, before.as_ref(), who);
        let verb = change.verb(before.as_ref());
        if before.as_ref() != Some(&after) {
            self.put_limit(before.as_ref(), after.clone(), verb, who, now);
        }
        Ok(after)
    }

    pub(super) fn reset_limit(&mut self, name: &LimitName, who: &str, now: Timestamp) -> Result<Limit> {
        let before = self.limit(name)?.clone();
        let after = before.reset()?;
        if before != after {
            self.put_limit(Some(&before), after.clone(), "reset", who, now);
        }
        Ok(after)
    }

    pub(super) fn delete_limit(&mut self, name: &LimitName, who: &str, now: Timestamp) -> bool {
        let Some(before) = self.limits.remove(name) else { return false };
        self.touch_limit(name);
        self.remember_change(before.subject(), "delete", who, (Some(&before), None), now);
        true
    }

    fn put_limit(&mut self, before: Option<&Limit>, after: Limit, verb: &str, who: &str, now: Timestamp) {
        self.touch_limit(&after.name);
        self.remember_change(after.subject(), verb, who, (before, Some(&after)), now);
        self.limits.insert(after.name.clone(), after);
    }

    fn remember_change(
        &mut self,
        subject: Subject,
        verb: &str,
        who: &str,
        (old, new): (Option<&Limit>, Option<&Limit>),
        now: Timestamp,
    ) {
        self.remember_values(
            subject,
            verb,
            who,
            (old.map(|limit| json!(limit)), new.map(|limit| json!(limit))),
            now,
        );
    }

    fn remember_values(
        &mut self,
        subject: Subject,
        verb: &str,
        who: &str,
        (old, new): (Option<Value>, Option<Value>),
        now: Timestamp,
    ) {
        let entry = AuditEntry {
            no: 0,
            at: now,
            who: who.to_owned(),
            subject,
            verb: verb.to_owned(),
            request: None,
            old,
            new,
        };
        self.remember(entry, now);
    }

    fn limit(&self, name: &LimitName) -> Result<&Limit> {
        self.limits.get(name).ok_or_else(|| limit::unknown(name, self.limits.keys()))
    }

    /// Refuses jobs that name a limit that nobody has defined.
    pub(super) fn check_uses<'u>(&self, uses: impl Iterator<Item = &'u LimitUse>) -> Result<()> {
        for one in uses {
            self.limit(&one.limit)?;
        }
        Ok(())
    }

    pub(super) fn set_limit_key(
        &mut self,
        name: &LimitName,
        key: &str,
        change: KeyChange,
        who: &str,
        now: Timestamp,
    ) -> Result<LimitKey> {
        limit::check_key(key)?;
        change.check()?;
        self.limit(name)?;
        let id = (name.clone(), key.to_owned());
        let before = self.keys_of_limits.get(&id).copied().unwrap_or_default();
        let mut after = before;
        change.apply(&mut after);
        if before != after {
            self.keys_of_limits.insert(id.clone(), after);
            self.touched.insert(id);
            let value =
                |state: &KeyState| Some(json!({ "key": key, "max": state.max, "paused": state.paused }));
            let values = (value(&before), value(&after));
            self.remember_values(Subject::Limit(name.clone()), change.verb(), who, values, now);
        }
        Ok(LimitKey::new(name, key, &after))
    }

    pub(super) fn list_limit_keys(
        &self,
        name: &LimitName,
        after: Option<&str>,
        limit: usize,
        now: Timestamp,
    ) -> Vec<LimitKey> {
        let from = (name.clone(), String::new());
        let of_limit = self.keys_of_limits.range(from..).take_while(|((limit, _), _)| limit == name);
        let behind = of_limit.filter(|((_, key), _)| after.is_none_or(|after| key.as_str() > after));
        let shown = behind.map(|((limit, key), state)| LimitKey::new(limit, key, &rested(*state, now)));
        shown.take(limit.min(bounds::LIMIT_KEYS_PAGE)).collect()
    }

    pub(super) fn limit_key(&self, name: &LimitName, key: &str, now: Timestamp) -> Result<KeyUse> {
        self.limit(name)?;
        let units = |job: &Job| {
            let uses = job.options.limits.iter();
            uses.filter(|one| one.limit == *name && one.key == key).map(|one| one.units).next()
        };
        let state = self.keys_of_limits.get(&(name.clone(), key.to_owned())).copied().unwrap_or_default();
        let mut found = KeyUse {
            key: LimitKey::new(name, key, &rested(state, now)),
            holders: Vec::new(),
            waiting: 0,
            waiters: Vec::new(),
        };
        for job in self.jobs.values() {
            let Some(units) = units(job) else { continue };
            let runs = matches!(job.place, Place::Lease { .. });
            if (runs || job.keeps) && found.holders.len() < bounds::LIMIT_JOBS {
                found.holders.push(KeyHolder { job: job.id, units, keeps: !runs });
            }
            if job.is_limited() && found.waiting < bounds::LIMIT_WAITING as u64 {
                found.waiting += 1;
                if found.waiters.len() < bounds::LIMIT_JOBS {
                    found.waiters.push(job.id);
                }
            }
        }
        Ok(found)
    }

    pub(super) fn obstacle(&self, id: JobId, now: Timestamp) -> Option<Obstacle> {
        let row = *self.ids.get(&id)?;
        let job = self.jobs.get(&row)?;
        if !matches!(job.place, Place::Ready { .. }) {
            return None;
        }
        let totals = [Total::Queue(job.queue.clone()), Total::Kind(job.kind.clone())];
        let reached = totals.into_iter().find_map(|total| {
            let TotalState { max, in_use } = *self.totals.get(&total)?;
            (in_use >= max).then_some(Obstacle::Total { total, in_use, max })
        });
        if reached.is_some() || !job.is_limited() {
            return reached;
        }
        let full = job.options.limits.iter().find_map(|one| self.obstacle_at(one, now));
        full.or_else(|| self.first_of_group(row, job).map(|job| Obstacle::Behind { job }))
    }

    fn obstacle_at(&self, one: &LimitUse, now: Timestamp) -> Option<Obstacle> {
        let LimitUse { limit, key, units } = one.clone();
        let state = self.key_state(one);
        let found = self.limits.get(&limit);
        Some(match limit::closed(found, &state, units, now)? {
            Closed::Paused => {
                let key = (!found.is_some_and(|limit| limit.paused) && !key.is_empty()).then_some(key);
                Obstacle::Paused { limit, key }
            }
            Closed::Full { max } => {
                let holds = |job: &&Job| {
                    (job.keeps || matches!(job.place, Place::Lease { .. }))
                        && job.options.limits.iter().any(|other| other.is_same_key(one))
                };
                let holders = self.jobs.values().filter(holds).map(|job| job.id);
                let holders = holders.take(Obstacle::HOLDERS).collect();
                Obstacle::Limit { limit, key, units, in_use: state.in_use, max, holders }
            }
            Closed::Rate { until } => Obstacle::Rate { limit, key, until },
        })
    }

    pub(super) fn set_total(
        &mut self,
        total: &Total,
        max: Option<u32>,
        who: &str,
        now: Timestamp,
    ) -> Result<()> {
        Total::check(max)?;
        let before = self.totals.get(total).map(|state| state.max);
        if before == max {
            return Ok(());
        }
        if let Total::Queue(queue) = total {
            self.name_queue(queue);
            self.deleted.remove(queue);
        }
        match max {
            None => drop(self.totals.remove(total)),
            Some(max) => {
                let in_use = if planted::is(Defect::TotalUncounted) { 0 } else { self.count_running(total) };
                self.totals.insert(total.clone(), TotalState { max, in_use });
            }
        }
        self.hint_total(total);
        let value = |max: Option<u32>| max.map(|max| json!({ "max_running": max }));
        self.remember_values(total.subject(), "set", who, (value(before), value(max)), now);
        Ok(())
    }

    /// How many jobs of a queue or a kind are claimed.
    pub(super) fn count_running(&self, total: &Total) -> u32 {
        let counts = |row: &Row| {
            self.jobs.get(row).is_some_and(|job| match total {
                Total::Queue(queue) => job.queue == *queue,
                Total::Kind(kind) => job.kind == *kind,
            })
        };
        u32::try_from(self.leases.iter().filter(|(_, row)| counts(row)).count()).unwrap_or(u32::MAX)
    }

    pub(super) fn list_totals(&self) -> Vec<TotalUse> {
        let shown = |(total, state): (&Total, &TotalState)| TotalUse {
            total: total.clone(),
            max: state.max,
            in_use: state.in_use,
        };
        self.totals.iter().map(shown).collect()
    }

    pub(super) fn key_state(&self, one: &LimitUse) -> KeyState {
        // A copy of the names is the price of a map by pairs; the reference store can pay it.
        self.keys_of_limits.get(&(one.limit.clone(), one.key.clone())).copied().unwrap_or_default()
    }

    /// Forgets keys that nobody holds or waits for, and of which nothing was set, once their tokens are back.
    pub(super) fn prune_limit_keys(&mut self, limit: usize, now: Timestamp) {
        let idle = |state: &KeyState| KeyState { next_free: None, ..*state } == KeyState::default();
        let rests = |state: &KeyState| state.next_free.is_none_or(|at| at <= now);
        let gone: Vec<KeyId> = self
            .keys_of_limits
            .iter()
            .filter(|(id, state)| idle(state) && rests(state) && !self.blocked.contains_key(*id))
            .map(|(id, _)| id.clone())
            .take(limit)
            .collect();
        for id in gone {
            self.keys_of_limits.remove(&id);
        }
    }
}

/// As people see it: a bucket that is full again is not worth telling.
fn rested(state: KeyState, now: Timestamp) -> KeyState {
    KeyState { next_free: state.next_free.filter(|at| *at > now), ..state }
}

/// Keys of limits by their names.
pub(super) type Keys = BTreeMap<KeyId, KeyState>;
