//! Signals: how they are named, and how they are sent.

use std::fmt;
use std::future::IntoFuture;
use std::marker::PhantomData;
use std::sync::Arc;

use mainspring_core::id::JobId;
use mainspring_core::journal::{Signal, Signalled};
use mainspring_core::name::SignalName;
use mainspring_core::seam::Pending;
use mainspring_core::store::Store;
use mainspring_core::{Error, Result, bounds};
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::drift;
use crate::batch::Weight;
use crate::engine::Engine;
use crate::enqueue::{Enqueued, Json};
use crate::job::Job;

/// The name of a signal and the type of its payload: one constant for both ends.
///
/// ```
/// use mainspring::SignalType;
///
/// const APPROVED: SignalType<bool> = SignalType::new("approved");
/// ```
pub struct SignalType<T> {
    name: &'static str,
    sent: PhantomData<fn() -> T>,
}

impl<T> SignalType<T> {
    /// A signal of this name.
    pub const fn new(name: &'static str) -> Self {
        SignalType { name, sent: PhantomData }
    }

    /// Its name.
    pub const fn name(&self) -> &'static str {
        self.name
    }
}

impl<T: DeserializeOwned> SignalType<T> {
    /// Checks that a payload is of this type. `body` is JSON.
    ///
    /// # Errors
    /// [`Error::Invalid`] if `body` does not deserialize.
    pub fn check(&self, body: &[u8]) -> Result<()> {
        serde_json::from_slice::<T>(body).map(drop).map_err(|error| {
            let why = format!("`{}` is declared as `{}`: {error}", self.name, std::any::type_name::<T>());
            Error::Invalid { what: "signal", why }
        })
    }
}

impl<T> Clone for SignalType<T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for SignalType<T> {}

impl<T> fmt::Debug for SignalType<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("SignalType").field(&self.name).finish()
    }
}

/// Names a signal: a [`SignalType`], or text if the type is known otherwise.
pub trait SignalRef<T> {
    /// The name.
    fn name(&self) -> &str;
}

impl<T> SignalRef<T> for SignalType<T> {
    fn name(&self) -> &str {
        self.name
    }
}

impl<T> SignalRef<T> for &str {
    fn name(&self) -> &str {
        self
    }
}

/// Names a job: its id, or the return value of its enqueue.
pub trait JobRef {
    /// Its id.
    fn job_id(&self) -> JobId;

    /// Its kind and the signals that it declares, where its type is known.
    fn declared(&self) -> Option<(&'static str, &'static [&'static str])> {
        None
    }

    /// Refuses a signal that is not of the type that is declared for it, where the job's type is known. `body` is JSON.
    ///
    /// # Errors
    /// [`Error::Invalid`].
    fn check_signal(&self, name: &str, body: &[u8]) -> Result<()> {
        let _ = (name, body);
        Ok(())
    }
}

/// What is known of a job by its type.
pub trait JobType {
    /// Its kind and the signals that it declares.
    const DECLARED: Option<(&'static str, &'static [&'static str])>;

    /// See [`JobRef::check_signal`].
    ///
    /// # Errors
    /// [`Error::Invalid`].
    fn check_signal(name: &str, body: &[u8]) -> Result<()>;
}

impl<J: Job> JobType for J {
    const DECLARED: Option<(&'static str, &'static [&'static str])> = Some((J::KIND, J::SIGNALS));

    fn check_signal(name: &str, body: &[u8]) -> Result<()> {
        <J as Job>::check_signal(name, body)
    }
}

impl JobType for Json {
    const DECLARED: Option<(&'static str, &'static [&'static str])> = None;

    fn check_signal(_name: &str, _body: &[u8]) -> Result<()> {
        Ok(())
    }
}

impl JobRef for JobId {
    fn job_id(&self) -> JobId {
        *self
    }
}

impl<J: JobType> JobRef for Enqueued<J> {
    fn job_id(&self) -> JobId {
        self.id
    }

    fn declared(&self) -> Option<(&'static str, &'static [&'static str])> {
        J::DECLARED
    }

    fn check_signal(&self, name: &str, body: &[u8]) -> Result<()> {
        <J as JobType>::check_signal(name, body)
    }
}

impl<R: JobRef> JobRef for &R {
    fn job_id(&self) -> JobId {
        (*self).job_id()
    }

    fn declared(&self) -> Option<(&'static str, &'static [&'static str])> {
        (*self).declared()
    }

    fn check_signal(&self, name: &str, body: &[u8]) -> Result<()> {
        (*self).check_signal(name, body)
    }
}

impl Weight for Signal {
    fn bytes(&self) -> usize {
        self.body.len()
    }
}

/// A signal to send. Nothing happens until you await it.
#[must_use = "nothing is sent until this is awaited"]
pub struct SendSignal<'a> {
    engine: &'a Engine,
    signal: Result<Signal>,
}

impl SendSignal<'_> {
    /// Names the sender, or the subject. A second signal with this name and sender to the same job is a repeat of the
    /// first, and is not stored. Without a sender, each call is a signal of its own.
    pub fn sender(mut self, sender: impl Into<String>) -> Self {
        if let Ok(signal) = &mut self.signal {
            signal.sender = sender.into();
        }
        self
    }
}

/// The answer to a sent signal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SignalReceipt {
    /// The signal is stored.
    Stored,
    /// One with the same name and sender was stored before.
    Repeated,
}

impl<'a> IntoFuture for SendSignal<'a> {
    type Output = Result<SignalReceipt>;
    type IntoFuture = Pending<'a, Self::Output>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(async move { Ok(self.send().await?.0) })
    }
}

impl SendSignal<'_> {
    /// Sends it; also whether it was tried before with an answer that was lost, so that a repeat may be its own.
    pub(crate) async fn send(self) -> Result<(SignalReceipt, bool)> {
        let signal = self.signal?;
        signal.check()?;
        let id = signal.job;
        let Answer { signalled, answer_lost } = self.engine.signals().send(signal).await?;
        match signalled {
            Signalled::Stored => Ok((SignalReceipt::Stored, answer_lost)),
            Signalled::Repeated => Ok((SignalReceipt::Repeated, answer_lost)),
            Signalled::NotFound => Err(Error::NotFound(id)),
            Signalled::Ended(status) => Err(Error::Illegal { id, verb: "signal", status }),
            Signalled::Full => {
                Err(Error::TooLarge { what: Error::INBOX, size: bounds::INBOX + 1, limit: bounds::INBOX })
            }
        }
    }
}

impl Engine {
    /// Sends a signal to a job, which may wait for it now or later, with [`Context::signal`](crate::Context::signal).
    ///
    /// A [`SignalType`] names the signal together with its type, so a value of another type does not compile:
    ///
    /// ```compile_fail
    /// # async fn example(engine: &mainspring::Engine, job: mainspring::JobId) {
    /// const APPROVED: mainspring::SignalType<bool> = mainspring::SignalType::new("approved");
    /// let _ = engine.signal(job, APPROVED, &"yes").await;
    /// # }
    /// ```
    ///
    /// # Errors
    /// [`Error::Invalid`] if the type of `job` is known and declares signals, but not this one, or with another type.
    /// [`Error::NotFound`] if there is no such job; [`Error::Illegal`] if it has ended; [`Error::TooLarge`] if it has
    /// 10,000 unread signals, or this one has more than 64 KiB. Nothing is stored then.
    #[expect(clippy::needless_pass_by_value, reason = "a constant or text: `&APPROVED` would be noise")]
    pub fn signal<T: Serialize>(
        &self,
        job: impl JobRef,
        name: impl SignalRef<T>,
        value: &T,
    ) -> SendSignal<'_> {
        let name = SignalName::new(name.name()).and_then(|name| {
            check_declared(&job, &name)?;
            if name.as_str() == drift::DRIFT_SIGNAL {
                return Err(Error::Invalid { what: "signal", why: format!("the engine reserves `{name}`") });
            }
            Ok(name)
        });
        let mut sent = self.send(job.job_id(), name, value);
        if let Ok(signal) = &sent.signal
            && let Err(error) = job.check_signal(signal.name.as_str(), &signal.body)
        {
            sent.signal = Err(error);
        }
        sent
    }

    /// Tells a job's drift guard something.
    pub(crate) fn send_drift_decision(&self, job: JobId, decision: &drift::Decision) -> SendSignal<'_> {
        self.send(job, SignalName::new(drift::DRIFT_SIGNAL), decision)
    }

    pub(crate) fn send<T: Serialize>(
        &self,
        job: JobId,
        name: Result<SignalName>,
        value: &T,
    ) -> SendSignal<'_> {
        let seams = self.seams();
        let signal = name.and_then(|name| {
            let body = crate::json::to_vec(value)
                .map_err(|error| Error::Convert { what: "signal", source: error.into() })?;
            let sender = format!("~{}", JobId::mint(seams.clock.now(), &*seams.rng));
            Ok(Signal { job, name, sender, body })
        });
        SendSignal { engine: self, signal }
    }
}

/// Refuses a signal that a job of this type does not take.
fn check_declared(job: &impl JobRef, name: &SignalName) -> Result<()> {
    match job.declared() {
        Some((kind, declared)) if !declared.is_empty() && !declared.contains(&name.as_str()) => {
            let why = format!("kind `{kind}` declares no signal `{name}`, only: {}", declared.join(", "));
            Err(Error::Invalid { what: "signal", why })
        }
        _ => Ok(()),
    }
}

/// How often signals whose answer was lost are tried again, before the senders get the error.
const REPEATS: usize = 2;

/// What a store said to a signal.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Answer {
    signalled: Signalled,
    /// Whether an earlier answer was lost.
    answer_lost: bool,
}

/// Stores signals of different callers. The sender's key makes a repeat harmless; the store
/// then answers that it is a repeat, which is as good.
pub(crate) async fn flush(store: Arc<dyn Store>, signals: Vec<Signal>) -> Result<Vec<Answer>> {
    let mut lost = 0;
    loop {
        match store.signal(signals.clone()).await {
            Err(Error::OutcomeUnknown { .. }) if lost < REPEATS => lost += 1,
            // What became of the first try is as unknown as before.
            Err(error) if lost > 0 && error.is_retryable() => {
                return Err(Error::OutcomeUnknown { source: None });
            }
            answer => {
                let answered = |signalled| Answer { signalled, answer_lost: lost > 0 };
                return answer.map(|answers| answers.into_iter().map(answered).collect());
            }
        }
    }
}
