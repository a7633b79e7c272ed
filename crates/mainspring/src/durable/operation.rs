//! Operations: what all durable operations have in common, each of which has a file of its own.
//!
//! An operation takes its key when it is built ([`Op`]). It begins when it is first polled ([`Op::open`]): it is refused where it may
//! not be, it looks up what is recorded under its key, and if nothing is, the drift guard says whether it fits. From then on it holds
//! its key ([`OpKey`]) until it ends.
//!
//! # Invariants
//! - A key is taken when an operation is built, and freed if it is dropped without having been polled.
//! - Nothing is done before `open` or `enter` has returned.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use mainspring_core::failure::{Failure, discard};
use mainspring_core::journal::{Entry, EntryKind, Written};
use mainspring_core::name::{Key, StepName};
use mainspring_core::planted::{self, Defect};
use mainspring_core::{Error, Result};
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::drift::{RENAMED, wait_for_verdict};
use super::dropped::DropMark;
use super::key::side_key;
use super::session::Session;
use super::{error, polled_code, probe_hooks};
use crate::context::Context;

/// The beginning of every operation: its name, and the key that it takes.
pub(crate) struct Op<'c> {
    pub(crate) ctx: &'c Context,
    name: String,
    taken_key: Result<OpKey>,
    former: Option<String>,
    added: bool,
}

impl<'c> Op<'c> {
    pub(crate) fn new(ctx: &'c Context, name: &str) -> Self {
        let taken_key = OpKey::take(ctx.session(), ctx.path(), name, None);
        Op { ctx, name: name.to_owned(), taken_key, former: None, added: false }
    }

    /// Takes another key instead.
    pub(crate) fn key(&mut self, given: &str) {
        // The first one is let go before.
        self.taken_key = Err(Error::Closed);
        self.taken_key = OpKey::take(self.ctx.session(), self.ctx.path(), &self.name, Some(given));
        if let Some(former) = self.former.take() {
            self.renamed(former);
        }
    }

    /// It was called otherwise before.
    pub(crate) fn renamed(&mut self, former: String) {
        if let Ok(op_key) = &mut self.taken_key
            && let Err(error) = op_key.rename(&former)
        {
            self.taken_key = Err(error);
        }
        self.former = Some(former);
    }

    /// It was not there before.
    pub(crate) fn added(&mut self) {
        self.added = true;
    }

    /// Records it if the operation is dropped before its end.
    pub(crate) fn drop_mark(&self) -> Option<DropMark> {
        self.taken_key.as_ref().ok().map(|op_key| DropMark::new(op_key.session(), op_key.key()))
    }

    /// As [`enter`](Self::enter), for what is recorded itself and has no scope.
    pub(crate) async fn open(self) -> Result<(OpKey, Option<Written>)> {
        let (op_key, written) = self.enter().await?;
        if written.is_some() {
            return Ok((op_key, written));
        }
        let (session, key) = (op_key.session(), op_key.key());
        if session.state().replay.was_scope(key) {
            return session
                .halt(format!("`{key}` was a scope, and the code asks for none of its records"))
                .await;
        }
        probe_hooks::stop(session, key).await;
        Ok((op_key, written))
    }

    /// The operation begins: what is recorded of it, if anything is. If nothing is, and what is recorded does not fit, it
    /// does not come back.
    pub(crate) async fn enter(self) -> Result<(OpKey, Option<Written>)> {
        let mut op_key = self.taken_key?;
        op_key.begin()?;
        let session = Arc::clone(op_key.session());
        let mut written = session.find(op_key.key());
        if written.is_none() && op_key.fits(self.added).await? {
            written = session.find(op_key.key());
        }
        Ok((op_key, written))
    }
}

/// The key that an operation holds.
pub(crate) struct OpKey {
    session: Arc<Session>,
    path: Arc<str>,
    label: Arc<str>,
    key: Key,
    used: bool,
    /// When its body began, in microseconds of monotonic time; [`u64::MAX`] if it has none.
    body_began: AtomicU64,
}

impl OpKey {
    /// Takes a key for an operation that is being built.
    pub(crate) fn take(
        session: &Arc<Session>,
        path: &Arc<str>,
        name: &str,
        given: Option<&str>,
    ) -> Result<OpKey> {
        let name = StepName::new(name)?;
        let label: Arc<str> = match given {
            None => name.as_str().into(),
            Some(given) => format!("{name}#={}", StepName::new(given)?).into(),
        };
        let key = session.state().replay.scopes.take(path, &label, given.is_some())?;
        Ok(OpKey {
            session: Arc::clone(session),
            path: Arc::clone(path),
            label,
            key,
            used: false,
            body_began: AtomicU64::new(u64::MAX),
        })
    }

    pub(crate) fn key(&self) -> &Key {
        &self.key
    }

    pub(crate) fn session(&self) -> &Arc<Session> {
        &self.session
    }

    /// The scope that it is in.
    pub(crate) fn path(&self) -> &Arc<str> {
        &self.path
    }

    /// The name, with the key that was given to it.
    pub(crate) fn label(&self) -> &str {
        &self.label
    }

    /// The operation begins: it is where it may be, and its key is used up.
    pub(crate) fn begin(&mut self) -> Result<()> {
        polled_code::check(&self.session, &self.key)?;
        self.session.begin_operation()?;
        self.used = true;
        Ok(())
    }

    /// Waits until it is clear that what is asked for under this key fits what is recorded. Whether it was called otherwise
    /// before: then the key is another. `added`: it is said to be new.
    pub(crate) async fn fits(&mut self, added: bool) -> Result<bool> {
        let session = Arc::clone(self.session());
        let former = match session.find(&side_key(self.key(), RENAMED)?) {
            Some(written) => Some(Box::pin(session.decoded::<String>(written)).await?),
            None if added => None,
            None => Box::pin(wait_for_verdict(self)).await,
        };
        if let Some(former) = &former {
            self.rename(former)?;
        }
        Ok(former.is_some())
    }

    /// The operation was called otherwise before: it goes on under that name if anything is recorded there, and nothing
    /// under its own.
    fn rename(&mut self, former: &str) -> Result<()> {
        let former = StepName::new(former)?;
        let mut state = self.session.state();
        state.replay.ignore_name(&self.path, former.as_str());
        let name = self.label.find('#').unwrap_or(self.label.len());
        let (scope, own) =
            self.key.as_str().split_at(if self.path.is_empty() { 0 } else { self.path.len() + 1 });
        let key = Key::new(format!("{scope}{former}{}", &own[name..]))?;
        if state.replay.knows(key.as_str()) && !state.replay.knows(self.key.as_str()) {
            self.key = key;
        }
        Ok(())
    }

    /// Whether the operation was open together with another.
    pub(crate) fn overlapped(&self) -> bool {
        self.session.state().replay.scopes.overlapped(&self.path, &self.label)
    }

    /// Notes that its record says so.
    pub(crate) fn overlap(&self) {
        self.session.state().replay.scopes.overlap(&self.path, &self.label);
    }

    /// The operation's body begins: its record will say how long it took.
    pub(crate) fn begin_body(&self) {
        let now = self.session.engine.seams().clock.monotonic().as_micros();
        self.body_began.store(u64::try_from(now).unwrap_or(u64::MAX), Ordering::Relaxed);
    }

    /// How long ago the body began.
    fn took(&self) -> Option<Duration> {
        let began = Some(self.body_began.load(Ordering::Relaxed)).filter(|began| *began != u64::MAX)?;
        Some(self.session.engine.seams().clock.monotonic().saturating_sub(Duration::from_micros(began)))
    }

    /// Something to be recorded under this key.
    pub(crate) fn entry(&self, kind: EntryKind, value: Vec<u8>) -> Entry {
        Entry { key: self.key.clone(), kind, overlapped: self.overlapped(), took: self.took(), value }
    }

    /// The operation has failed: its error is recorded with the next one, if the handler survives it. A later run then meets the same
    /// error. If the handler returns it instead, the record is taken back.
    pub(crate) fn fail(&self, failure: Failure) -> Error {
        self.session.defer(self.entry(EntryKind::Error, error::encode(&failure)), &[], true);
        error::failed(&self.key, failure.into_error())
    }
}

impl Drop for OpKey {
    fn drop(&mut self) {
        self.session.state().replay.scopes.free(&self.path, &self.label, self.used);
    }
}

/// Something to be recorded beside an operation's result.
pub(super) fn side_entry(key: Key, kind: EntryKind, value: Vec<u8>) -> Entry {
    Entry { key, kind, overlapped: false, took: None, value }
}

/// A record that says all by being there.
pub(super) fn mark(key: Key) -> Entry {
    side_entry(key, EntryKind::Value, b"null".to_vec())
}

/// A result as it is recorded, and as it will be read again: that is what the handler sees, so that it sees the same in
/// every run, whatever JSON makes of it. One that cannot be recorded will not be any better the next time.
pub(crate) fn encode<T: Serialize + DeserializeOwned>(
    value: T,
    limit: usize,
) -> Result<(T, Vec<u8>), Failure> {
    let json = crate::json::to_vec(&value)
        .map_err(|error| Failure::from(discard(format!("its result cannot be written as JSON: {error}"))))?;
    if json.len() > limit {
        let why = format!("its result has {} bytes, more than the bound of {limit}", json.len());
        return Err(discard(why).into());
    }
    drop(value);
    let value = serde_json::from_slice(&json)
        .map_err(|error| Failure::from(discard(format!("its result cannot be read again: {error}"))))?;
    Ok((value, json))
}

/// Before a body begins: if the claim has lapsed while the process was stopped, the run ends here and gives the job back, which a
/// store accepts if nobody else has it by now.
pub(super) async fn check_lease(session: &Session) {
    let run = session.run();
    if run.is_lapsed(session.engine.seams().clock.monotonic()) && !planted::is(Defect::LeaseUnchecked) {
        tracing::warn!(
            job_id = %run.info.id, kind = %run.info.kind,
            "step not started: the process was paused for longer than its lease"
        );
        session.lease_lost::<()>().await;
    }
}

/// Makes a builder a future: lazy, and done by the `async fn` that it names. Nothing is pinned in the builder itself, so
/// that it may be moved until it is polled, and its parts may be anything.
macro_rules! lazy {
    ($name:ident < $($lifetime:lifetime),* ; $($param:ident),* > => $output:ty, where { $($bounds:tt)* }) => {
        impl<$($lifetime,)* $($param),*> Unpin for $name<$($lifetime,)* $($param),*> {}

        impl<$($lifetime,)* $($param),*> std::future::Future for $name<$($lifetime,)* $($param),*>
        where
            $($bounds)*
        {
            type Output = $output;

            fn poll(
                self: std::pin::Pin<&mut Self>,
                context: &mut std::task::Context<'_>,
            ) -> std::task::Poll<Self::Output> {
                let this = self.get_mut();
                let mark = this.drop_mark();
                if let Some(parts) = this.parts.take() {
                    this.run = Some($crate::durable::dropped::OpFuture::new(mark, Box::pin(parts.run())));
                }
                match &mut this.run {
                    Some(run) => std::pin::Pin::new(run).poll(context),
                    // Polled again after its end, against the rules: there is nothing left to say.
                    None => std::task::Poll::Pending,
                }
            }
        }
    };
}
pub(crate) use lazy;

/// Gives a builder its `key`; `$op` is where its operation is among its parts.
macro_rules! keyed {
    ($name:ident < $($lifetime:lifetime),* ; $($param:ident),* >, $($op:ident).+) => {
        impl<$($lifetime,)* $($param),*> $name<$($lifetime,)* $($param),*> {
            /// Sets a key that tells this operation from others with the same name, such as the id of its subject.
            /// Use it in loops whose order may change, and for operations that run beside each other.
            pub fn key(mut self, key: impl ToString) -> Self {
                if let Some(parts) = &mut self.parts {
                    parts.$($op).+.key(&key.to_string());
                }
                self
            }

            /// Marks this operation as newly added, so running workflows that already passed this point are not held
            /// for drift.
            pub fn added(mut self) -> Self {
                if let Some(parts) = &mut self.parts {
                    parts.$($op).+.added();
                }
                self
            }

            /// Names the earlier name of this operation, so running workflows find the record under it. While such
            /// workflows run, nothing else in this scope may have the old name.
            pub fn renamed_from(mut self, name: &str) -> Self {
                if let Some(parts) = &mut self.parts {
                    parts.$($op).+.renamed(name.to_owned());
                }
                self
            }

            /// Records it if this is dropped before its end.
            fn drop_mark(&self) -> Option<$crate::durable::dropped::DropMark> {
                self.parts.as_ref().and_then(|parts| parts.$($op).+.drop_mark())
            }
        }
    };
}
pub(crate) use keyed;
