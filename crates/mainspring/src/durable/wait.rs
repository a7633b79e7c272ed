//! Waits: for a time, for signals.
//!
//! When a wait ends is recorded when it begins, so that a crash does not make it longer. Its outcome is recorded with
//! the next operation.

use std::future::poll_fn;
use std::marker::PhantomData;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use mainspring_core::failure::{Failure, discard};
use mainspring_core::job::{Unfit, When, cut};
use mainspring_core::journal::{Entry, EntryKind, Message, MessageBody, Subject};
use mainspring_core::name::{Key, SignalName};
use mainspring_core::planted::{self, Defect};
use mainspring_core::time::Timestamp;
use mainspring_core::{Error, Result, bounds};
use serde::de::DeserializeOwned;

use super::dropped::OpFuture;
use super::keep::{keeping, keeps_until};
use super::key::side_key;
use super::open_waits::OpenWait;
use super::operation::{Op, OpKey, keyed, lazy, side_entry};
use super::session::Session;
use super::signal::SignalRef;
use super::{error, token};
use crate::context::Context;

/// Waits until as many messages of a subject are there, or the time has come: then with what is there, if that will do.
pub(crate) async fn wait_for_messages(
    session: &Arc<Session>,
    key: &Key,
    subject: Option<(Subject, u32)>,
    due: Option<Timestamp>,
    fewer: bool,
    keeps_until: Option<Timestamp>,
) -> Vec<Message> {
    let mut open_wait = OpenWaitGuard { session, at: None };
    let mut looked = None;
    poll_fn(|context| {
        if let Some((subject, need)) = &subject
            && let Some(messages) = session.state().inbox.take(subject, *need, false)
        {
            return Poll::Ready(messages);
        }
        // A message that came in time counts, also if its hint was lost.
        if due.is_some_and(|due| {
            due <= session.now() && (subject.is_none() || has_looked(session, due, &mut looked))
        }) {
            let there = subject
                .as_ref()
                .filter(|_| fewer)
                .and_then(|(subject, need)| session.state().inbox.take(subject, *need, true));
            return Poll::Ready(there.unwrap_or_default());
        }
        let own = context.waker().will_wake(&session.waker);
        let waker = (!own).then(|| context.waker().clone());
        let wait = OpenWait { key: key.clone(), subject: subject.clone(), until: due, keeps_until, waker };
        session.state().waits.open(&mut open_wait.at, wait);
        Poll::Pending
    })
    .await
}

/// Whether the inbox was looked into, to its end, since a point in time that is past.
fn has_looked(session: &Session, due: Timestamp, since: &mut Option<u64>) -> bool {
    let came = session.run().claimed_at() > due;
    session.state().inbox.has_looked(came, since)
}

/// A wait that is open, until it is dropped.
struct OpenWaitGuard<'a> {
    session: &'a Arc<Session>,
    at: Option<u64>,
}

impl Drop for OpenWaitGuard<'_> {
    fn drop(&mut self) {
        if let Some(at) = self.at {
            let mut state = self.session.state();
            state.waits.close(at);
            state.under_way.moved();
        }
    }
}

/// When a wait ends: as was recorded when it began, or as it is reckoned now.
async fn due(op_key: &OpKey, when: When) -> Result<Timestamp> {
    let session = op_key.session();
    let key = side_key(op_key.key(), "until")?;
    if let Some(written) = session.find(&key) {
        return Ok(Timestamp::from_micros(session.decoded(written).await?));
    }
    let now = session.now();
    let due = when.resolve(now);
    if due > now.after(bounds::DELAY) {
        return Err(Error::Invalid { what: "wait", why: "more than ten years ahead".into() });
    }
    let value = due.as_micros().to_string().into_bytes();
    session.defer(side_entry(key, EntryKind::Until, value), &[], false);
    Ok(due)
}

/// A sleep. Await it; see [`Context::sleep`].
#[must_use = "nothing is waited for until this is awaited"]
pub struct Sleep<'c> {
    parts: Option<SleepParts<'c>>,
    run: Option<OpFuture<'c, Result<()>>>,
}

struct SleepParts<'c> {
    op: Op<'c>,
    when: When,
    keep: Option<Duration>,
}

impl Sleep<'_> {
    keeping!(keep);
}

keyed!(Sleep<'c; >, op);
lazy!(Sleep<'c; > => Result<()>, where {});

impl SleepParts<'_> {
    async fn run(self) -> Result<()> {
        let (op_key, written) = self.op.open().await?;
        let session = op_key.session();
        if let Some(written) = written {
            return session.replay(&op_key, written).await;
        }
        let due = due(&op_key, self.when).await?;
        let keep = keeps_until(session, op_key.key(), self.keep).await?;
        wait_for_messages(session, op_key.key(), None, Some(due), false, keep).await;
        // It would come out the same way again: the time is recorded.
        session.defer(op_key.entry(EntryKind::Value, b"null".to_vec()), &[], false);
        Ok(())
    }
}

/// A signal, with its sender.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Received<T> {
    /// The sender's key, or one that the engine made if there was none.
    pub sender: String,
    /// The payload.
    pub value: T,
}

/// What all waits for signals have in common.
struct SignalParts<'c> {
    op: Op<'c>,
    name: Result<SignalName>,
    count: u32,
    timeout: Option<When>,
    keep: Option<Duration>,
}

impl SignalParts<'_> {
    /// The signals, or fewer if the time is up before. What is recorded is a list of senders and bodies.
    async fn receive<T: DeserializeOwned>(self) -> Result<Vec<Received<T>>> {
        let name = self.name?;
        let (op_key, written) = self.op.open().await?;
        let session = op_key.session();
        if let Some(written) = written {
            let signals: Vec<(String, T)> = session.replay(&op_key, written).await?;
            return Ok(signals.into_iter().map(|(sender, value)| Received { sender, value }).collect());
        }
        Box::pin(token::know_all(session)).await?;
        let due = match self.timeout {
            None => None,
            Some(when) => Some(due(&op_key, when).await?),
        };
        let keep = keeps_until(session, op_key.key(), self.keep).await?;
        let messages = wait_for_messages(
            session,
            op_key.key(),
            Some((Subject::Signal(name), self.count)),
            due,
            self.count > 1,
            keep,
        )
        .await;
        let signals: Vec<(&str, &serde_json::value::RawValue)> =
            messages.iter().filter_map(sender_and_body).collect();
        let value = serde_json::to_vec(&signals).map_err(convert)?;
        let (key, overlapped) = (op_key.key().clone(), op_key.overlapped());
        let limit = session.engine.bounds().step;
        let read = if value.len() > limit {
            let why =
                format!("its signals have {} bytes together, more than the bound of {limit}", value.len());
            Err(Failure::from(discard(why)))
        } else {
            serde_json::from_slice(&value).map_err(|error| Failure::from(convert(error)))
        };
        let received: Vec<(String, T)> = match read {
            Ok(received) => received,
            Err(failure) => {
                // As the error of a step. Were it not read by a handler that goes on, it would be met by the next wait.
                let value = error::encode(&failure);
                let entry = Entry { key: key.clone(), kind: EntryKind::Error, overlapped, took: None, value };
                let (unfit, fit): (Vec<_>, Vec<_>) =
                    messages.into_iter().partition(|message| misfit::<T>(message).is_some());
                if unfit.is_empty() {
                    session.defer(entry, &fit, true);
                } else {
                    session.state().inbox.put_back(fit);
                    let read: &[Message] = if planted::is(Defect::UnfitKept) { &[] } else { &unfit };
                    session.defer(entry, read, true);
                    let notes = unfit.iter().filter_map(misfit::<T>).collect();
                    Box::pin(set_aside(session, &key, notes)).await?;
                }
                return Err(error::failed(&key, failure.into_error()));
            }
        };
        session.defer(
            Entry { key, kind: EntryKind::Received, overlapped, took: None, value },
            &messages,
            true,
        );
        Ok(received.into_iter().map(|(sender, value)| Received { sender, value }).collect())
    }
}

/// Where a wait notes the signals that it has set aside, beside its result.
pub(crate) const UNFIT: &str = "unfit";
/// Signals of one wait that stay noted, and bytes of each that are kept.
const NOTED: (usize, usize) = (16, 1_024);

/// Notes signals that are not what their wait asks for, together with all deferred writes: that they were read. It is recorded
/// at once, whatever becomes of the attempt, or every later attempt would meet them again.
async fn set_aside(session: &Arc<Session>, key: &Key, notes: Vec<Unfit>) -> Result<()> {
    let mark = side_key(key, UNFIT)?;
    let mut noted: Vec<Unfit> = match session.find(&mark) {
        Some(written) => {
            session.state().retract(mark.clone());
            session.decoded(written).await?
        }
        None => Vec::new(),
    };
    noted.extend(notes);
    noted.drain(..noted.len().saturating_sub(NOTED.0));
    let value = serde_json::to_vec(&noted).map_err(convert)?;
    session.record(vec![side_entry(mark, EntryKind::Value, value)], Vec::new()).await
}

/// What there is to note of a signal that is not a `T`; `None` if it is one.
fn misfit<T: DeserializeOwned>(message: &Message) -> Option<Unfit> {
    let MessageBody::Signal { name, sender, body } = &message.body else { return None };
    let why = serde_json::from_slice::<T>(body).err()?.to_string();
    Some(Unfit {
        name: name.to_string(),
        sender: sender.clone(),
        body: cut(String::from_utf8_lossy(body).into_owned(), NOTED.1),
        why: cut(why, NOTED.1),
    })
}

fn convert(error: serde_json::Error) -> Error {
    Error::Convert { what: "signal", source: error.into() }
}

fn sender_and_body(message: &Message) -> Option<(&str, &serde_json::value::RawValue)> {
    match &message.body {
        MessageBody::Signal { sender, body, .. } => Some((sender, serde_json::from_slice(body).ok()?)),
        MessageBody::Ended { .. } => None,
    }
}

macro_rules! signals {
    ($(#[$doc:meta])* $name:ident => $output:ty, $run:expr) => {
        $(#[$doc])*
        #[must_use = "nothing is waited for until this is awaited"]
        pub struct $name<'c, T> {
            parts: Option<TypedWait<'c, T, $name<'c, ()>>>,
            run: Option<OpFuture<'c, Result<$output>>>,
        }

        impl<'c, T> $name<'c, T> {
            fn of(parts: SignalParts<'c>) -> Self {
                $name { parts: Some(TypedWait { parts, value: PhantomData }), run: None }
            }

            keeping!(parts.keep);
        }

        impl<'c, T: DeserializeOwned + Send + 'c> TypedWait<'c, T, $name<'c, ()>> {
            async fn run(self) -> Result<$output> {
                let received: Vec<Received<T>> = self.parts.receive().await?;
                $run(received)
            }
        }

        keyed!($name<'c; T>, parts.op);
        lazy!($name<'c; T> => Result<$output>, where { T: DeserializeOwned + Send + 'c });
    };
}

/// A wait, and the type of its signals.
struct TypedWait<'c, T, W> {
    parts: SignalParts<'c>,
    value: PhantomData<fn() -> (T, W)>,
}

signals!(
    /// A wait for a signal. Await it; see [`Context::signal`].
    Signal => T,
    |received: Vec<Received<T>>| {
        let first = received.into_iter().next().map(|received| received.value);
        first.ok_or_else(|| Error::Corrupt { why: "a wait for a signal ended without one".into() })
    }
);

signals!(
    /// A wait for a signal that ends when the time is up. Await it; see [`Signal::timeout`].
    TimedSignal => Option<T>,
    |received: Vec<Received<T>>| Ok(received.into_iter().next().map(|received| received.value))
);

signals!(
    /// A wait for several signals of one name. Await it; see [`Signal::count`].
    Signals => Vec<Received<T>>,
    Ok
);

impl<'c, T> Signal<'c, T> {
    fn into_parts(mut self) -> Option<SignalParts<'c>> {
        self.parts.take().map(|waiting| waiting.parts)
    }

    /// How long to wait: `None` is returned when the time is up.
    pub fn timeout(self, timeout: Duration) -> TimedSignal<'c, T> {
        match self.into_parts() {
            Some(parts) => TimedSignal::of(SignalParts { timeout: Some(When::After(timeout)), ..parts }),
            None => TimedSignal { parts: None, run: None },
        }
    }

    /// Waits until a point in time at the latest, and returns `None` then.
    pub fn until(self, time: Timestamp) -> TimedSignal<'c, T> {
        match self.into_parts() {
            Some(parts) => TimedSignal::of(SignalParts { timeout: Some(When::At(time)), ..parts }),
            None => TimedSignal { parts: None, run: None },
        }
    }

    /// Waits for this many signals; if senders are named, from different ones. Together they are one record, with the
    /// bound of a step's result: beyond it, [`Error::Step`].
    pub fn count(self, count: u32) -> Signals<'c, T> {
        match self.into_parts() {
            Some(parts) => Signals::of(SignalParts { count: count.max(1), ..parts }),
            None => Signals { parts: None, run: None },
        }
    }
}

impl<T> Signals<'_, T> {
    /// How long to wait: what has come is returned when the time is up.
    pub fn timeout(mut self, timeout: Duration) -> Self {
        if let Some(waiting) = &mut self.parts {
            waiting.parts.timeout = Some(When::After(timeout));
        }
        self
    }
}

impl Context {
    /// Waits for a time. The handler is suspended meanwhile: it holds no slot, no task and no connection, for months
    /// if need be.
    ///
    /// The store records when the wait began, so a crash or a deploy does not make it longer.
    ///
    /// # Errors
    /// [`Error::Invalid`] for more than ten years; [`Error::DuplicateKey`], [`Error::Nested`] and
    /// [`Error::Detached`].
    pub fn sleep(&self, name: &str, duration: Duration) -> Sleep<'_> {
        self.sleep_for(name, When::After(duration))
    }

    /// Waits until a point in time; otherwise as [`sleep`](Self::sleep).
    pub fn sleep_until(&self, name: &str, time: impl Into<Timestamp>) -> Sleep<'_> {
        self.sleep_for(name, When::At(time.into()))
    }

    fn sleep_for(&self, name: &str, when: When) -> Sleep<'_> {
        Sleep { parts: Some(SleepParts { op: Op::new(self, name), when, keep: None }), run: None }
    }

    /// Waits for a signal that somebody sends to this job with [`Engine::signal`](crate::Engine::signal).
    ///
    /// A signal that came before the wait is kept for it; one wait reads each signal, the oldest first. The handler
    /// is suspended meanwhile, as in [`sleep`](Self::sleep).
    ///
    /// ```
    /// # use mainspring::{Context, Job, SignalType};
    /// # use std::time::Duration;
    /// # #[derive(serde::Serialize, serde::Deserialize, Job)] struct Order { id: u64 }
    /// /// One constant for both ends: the payload under this name is a `bool`.
    /// const APPROVED: SignalType<bool> = SignalType::new("approved");
    ///
    /// async fn order(ctx: Context, job: Order) -> mainspring::HandlerResult<()> {
    ///     let approved = ctx.signal(APPROVED).timeout(Duration::from_hours(168)).await?;
    ///     # let _ = (approved, job.id);
    ///     Ok(())
    /// }
    /// ```
    ///
    /// # Errors
    /// [`Error::Step`] if the payload is not a `T`. The engine sets that signal aside, so no later wait and no later
    /// attempt meets it. [`Error::DuplicateKey`], [`Error::Nested`] and [`Error::Detached`].
    #[expect(clippy::needless_pass_by_value, reason = "a constant or text: `&APPROVED` would be noise")]
    pub fn signal<T>(&self, name: impl SignalRef<T>) -> Signal<'_, T> {
        let name = name.name();
        let parts = SignalParts {
            op: Op::new(self, name),
            name: SignalName::new(name),
            count: 1,
            timeout: None,
            keep: None,
        };
        Signal::of(parts)
    }
}
