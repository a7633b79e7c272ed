//! Faults that a test asks for, as a layer around every handler.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use mainspring_core::failure::{Failure, snooze};

use crate::context::Info;
use crate::job::Job;
use crate::layer::{Inner, Layer};

/// Which kinds meet which faults. Clones are the same.
#[derive(Clone, Default)]
pub(super) struct Faults(Arc<Mutex<Kinds>>);

#[derive(Default)]
struct Kinds {
    fail_once: Vec<&'static str>,
    run_twice: Vec<&'static str>,
}

fn kinds_of<J: Job>() -> impl Iterator<Item = &'static str> {
    std::iter::once(J::KIND).chain(J::ALIASES.iter().copied())
}

impl Faults {
    pub(super) fn fail_once<J: Job>(&self) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).fail_once.extend(kinds_of::<J>());
    }

    pub(super) fn run_twice<J: Job>(&self) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).run_twice.extend(kinds_of::<J>());
    }

    /// What a run that succeeded is to end in instead.
    fn of(&self, job: &Info) -> Option<Failure> {
        let kinds = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let meets = |kinds: &[&str]| kinds.contains(&job.kind.as_str());
        if job.claim == 1 && meets(&kinds.run_twice) {
            return Some(snooze(Duration::ZERO).into());
        }
        (job.attempt == 1 && meets(&kinds.fail_once))
            .then(|| Failure::from("the test fails the first attempt of each job of this kind"))
    }
}

impl Layer for Faults {
    fn wrap(&self, job: Arc<Info>, inner: Inner) -> Inner {
        let faults = self.clone();
        Box::pin(async move {
            let output = inner.await?;
            match faults.of(&job) {
                Some(failure) => Err(failure),
                None => Ok(output),
            }
        })
    }
}
