//! What people see of limit keys: who holds them, who waits, and what keeps a job from being claimed.

use std::fmt;

use serde::Serialize;

use super::{KeyState, Total};
use crate::id::JobId;
use crate::name::LimitName;
use crate::time::Timestamp;

/// A limit key, as operators see it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct LimitKey {
    /// The limit.
    pub limit: LimitName,
    /// The key; empty if the limit is not divided.
    pub key: String,
    /// Units in use.
    pub in_use: u32,
    /// A maximum of its own, instead of the limit's.
    pub max: Option<u32>,
    /// Whether it lets nobody in.
    pub paused: bool,
    /// When its bucket of tokens is full again, if that is not now.
    pub next_free: Option<Timestamp>,
}

impl LimitKey {
    /// A key with its state.
    pub fn new(limit: &LimitName, key: &str, state: &KeyState) -> Self {
        let KeyState { in_use, max, paused, next_free } = *state;
        LimitKey { limit: limit.clone(), key: key.to_owned(), in_use, max, paused, next_free }
    }
}

/// Who uses a limit key.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct KeyUse {
    /// The key.
    #[serde(flatten)]
    pub key: LimitKey,
    /// Jobs that hold units of it, at most [`LIMIT_JOBS`](crate::bounds::LIMIT_JOBS), the first enqueued first.
    pub holders: Vec<KeyHolder>,
    /// How many jobs wait in `limited` that need it, counted up to [`LIMIT_WAITING`](crate::bounds::LIMIT_WAITING).
    pub waiting: u64,
    /// Some of those, at most [`LIMIT_JOBS`](crate::bounds::LIMIT_JOBS).
    pub waiters: Vec<JobId>,
}

/// A job that holds units of a limit key.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct KeyHolder {
    /// The job.
    pub job: JobId,
    /// How many.
    pub units: u16,
    /// Whether it waits, and keeps them meanwhile.
    pub keeps: bool,
}

/// What keeps a ready job from being claimed, besides nodes and its queue.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(tag = "obstacle", rename_all = "snake_case")]
#[non_exhaustive]
pub enum Obstacle {
    /// As many jobs of its queue or its kind run as may.
    Total {
        /// Of which.
        total: Total,
        /// So many run.
        in_use: u32,
        /// So many may.
        max: u32,
    },
    /// A limit key has no room for its units.
    Limit {
        /// The limit.
        limit: LimitName,
        /// The key.
        key: String,
        /// How many units the job takes.
        units: u16,
        /// Units in use.
        in_use: u32,
        /// The maximum.
        max: u32,
        /// Some of the jobs that hold it, at most three.
        holders: Vec<JobId>,
    },
    /// A limit key admits jobs at a rate.
    Rate {
        /// The limit.
        limit: LimitName,
        /// The key.
        key: String,
        /// When it admits the next one.
        until: Timestamp,
    },
    /// A limit or a limit key is paused.
    Paused {
        /// The limit.
        limit: LimitName,
        /// The key that is paused; `None` if the whole limit is.
        key: Option<String>,
    },
    /// An earlier job with the same limits comes first.
    Behind {
        /// That job.
        job: JobId,
    },
}

impl Obstacle {
    /// How many holders of a limit key it names.
    pub const HOLDERS: usize = 3;
}

/// "limit `gpu`", or "limit `tenant` of `acme`".
pub(crate) fn named(limit: &LimitName, key: &str) -> String {
    if key.is_empty() { format!("limit `{limit}`") } else { format!("limit `{limit}` of `{key}`") }
}

impl fmt::Display for Obstacle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Obstacle::Total { total, in_use, max } => {
                let (what, name) = match total {
                    Total::Queue(queue) => ("queue", queue.as_str()),
                    Total::Kind(kind) => ("kind", kind.as_str()),
                };
                write!(f, "{in_use} of at most {max} jobs of {what} `{name}` run")
            }
            Obstacle::Limit { limit, key, units, in_use, max, holders } => {
                write!(f, "{} is full: {in_use} of {max} in use", named(limit, key))?;
                if *units > 1 {
                    write!(f, ", and it takes {units}")?;
                }
                if holders.is_empty() {
                    return Ok(());
                }
                let names: Vec<_> = holders.iter().map(ToString::to_string).collect();
                write!(f, "; held by {}", names.join(", "))
            }
            Obstacle::Rate { limit, key, until } => {
                write!(f, "{} admits the next job at {until}", named(limit, key))
            }
            Obstacle::Paused { limit, key: Some(key) } => {
                write!(f, "key `{key}` of limit `{limit}` is paused")
            }
            Obstacle::Paused { limit, key: None } => write!(f, "limit `{limit}` is paused"),
            Obstacle::Behind { job } => write!(f, "job {job} has the same limits and comes first"),
        }
    }
}

impl Obstacle {
    /// What a person can do about it, if there is something to do.
    pub fn hint(&self) -> Option<String> {
        let key = |key: &str| if key.is_empty() { String::new() } else { format!(" '{key}'") };
        match self {
            Obstacle::Total { total: Total::Queue(queue), .. } => {
                Some(format!("`mainspring queue set {queue} --max-running N` changes that"))
            }
            Obstacle::Total { .. } => None,
            Obstacle::Limit { limit, key: of, .. } => Some(format!(
                "`mainspring limit show {limit}{}` lists who holds it; `mainspring limit set {limit} --max N` changes it",
                key(of)
            )),
            Obstacle::Rate { limit, .. } => {
                Some(format!("`mainspring limit set {limit} --rate N/1m` changes it"))
            }
            Obstacle::Paused { limit, key: of } => Some(format!(
                "`mainspring limit resume {limit}{}` lets jobs in again",
                of.as_deref().map(key).unwrap_or_default()
            )),
            Obstacle::Behind { job } => {
                Some(format!("`mainspring job {job} why` tells what that one waits for"))
            }
        }
    }
}
