//! Races: several ways at once, and the first to end is the one that was taken.

use std::future::{Future, poll_fn};
use std::sync::Arc;
use std::task::Poll;

use mainspring_core::failure::Failure;
use mainspring_core::journal::EntryKind;
use mainspring_core::planted::{self, Defect};
use mainspring_core::seam::Pending;
use mainspring_core::{Error, Result};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use super::dropped::OpFuture;
use super::operation::{Op, OpKey, encode, keyed, lazy};
use super::scope_end::{self, Survivors};
use crate::context::Context;

/// A race between several ways. Nothing happens until you await it; see [`Context::race`].
#[must_use = "nothing is done until this is awaited"]
pub struct Race<'c, T> {
    parts: Option<Parts<'c, T>>,
    run: Option<OpFuture<'c, Result<T, Failure>>>,
}

struct Parts<'c, T> {
    op: Op<'c>,
    arms: Vec<Arm<'c, T>>,
    /// Names of arms that are gone.
    retired: Vec<String>,
}

struct Arm<'c, T> {
    name: String,
    body: Body<'c, T>,
}

type Body<'c, T> = Box<dyn FnOnce(Context) -> Pending<'c, Result<T, Failure>> + Send + 'c>;

/// What is recorded of a race.
#[derive(Serialize, Deserialize)]
struct Won<T> {
    arm: String,
    value: T,
}

impl<'c, T> Race<'c, T> {
    /// Adds one of the ways, with a scope of its own. If several end at once, the one that you added first wins.
    pub fn arm<F, Fut>(mut self, name: &str, body: F) -> Self
    where
        F: FnOnce(Context) -> Fut + Send + 'c,
        Fut: Future<Output = Result<T, Failure>> + Send + 'c,
    {
        if let Some(parts) = &mut self.parts {
            parts.arms.push(Arm { name: name.to_owned(), body: Box::new(|ctx| Box::pin(body(ctx))) });
        }
        self
    }

    /// Declares that an arm is gone from the code, so running workflows with records of it are not held for drift.
    pub fn retired(mut self, arm: &str) -> Self {
        if let Some(parts) = &mut self.parts {
            parts.retired.push(arm.to_owned());
        }
        self
    }
}

keyed!(Race<'c; T>, op);
lazy!(Race<'c; T> => Result<T, Failure>, where { T: Serialize + DeserializeOwned + Send + 'c });

impl<T: Serialize + DeserializeOwned> Parts<'_, T> {
    async fn run(self) -> Result<T, Failure> {
        let ctx = self.op.ctx;
        let (op_key, written) = self.op.enter().await?;
        let session = op_key.session();
        if let Some(written) = written {
            let won: Won<T> = session.replay(&op_key, written).await?;
            return Ok(decided(&op_key, won).await?.value);
        }
        if self.arms.is_empty() {
            return Err(Error::Invalid { what: "race", why: "it has no arms".into() }.into());
        }
        let path: Arc<str> = Arc::from(op_key.key().as_str());
        for name in &self.retired {
            session.state().replay.ignore_name(&path, name);
        }
        let mut arms = Vec::new();
        for Arm { name, body } in self.arms {
            // All keys are taken before any arm begins: what is recorded of an arm that is not there any more is drift.
            let op_key = OpKey::take(session, &path, &name, None)?;
            arms.push(Box::pin(run_arm(ctx, op_key, body)));
        }
        let (arm, result) = poll_fn(|context| {
            // All of them with the handler's own waker: that is how the engine sees what they wait for.
            let ended = arms.iter_mut().map(|arm| arm.as_mut().poll(context)).find(Poll::is_ready);
            ended.unwrap_or(Poll::Pending)
        })
        .await;
        scope_end::drop_inside(session, arms);
        let value = match result {
            Ok(value) => value,
            Err(failure) => return Err(op_key.fail(failure).into()),
        };
        let (won, json) = match encode(Won { arm, value }, session.engine.bounds().step) {
            Ok(fit) => fit,
            Err(failure) => return Err(op_key.fail(failure).into()),
        };
        if !planted::is(Defect::WinnerUnrecorded) {
            session.defer(op_key.entry(EntryKind::Value, json), &[], true);
        }
        Ok(decided(&op_key, won).await?.value)
    }
}

/// One of the ways, to its end: the name under which it is recorded, and what came of it.
async fn run_arm<'c, T>(
    ctx: &'c Context,
    mut op_key: OpKey,
    body: Body<'c, T>,
) -> (String, Result<T, Failure>) {
    if let Err(error) = op_key.fits(false).await {
        return (String::new(), Err(error.into()));
    }
    let result = body(ctx.within(Arc::from(op_key.key().as_str()))).await;
    let name = op_key.key().as_str().rsplit('/').next().unwrap_or_default();
    (name.to_owned(), result)
}

/// The race is decided, and recorded or about to be: its losers are cancelled, and nothing of its scope is kept.
async fn decided<T>(op_key: &OpKey, won: Won<T>) -> Result<Won<T>> {
    let winner = format!("{}/{}/", op_key.key(), won.arm);
    let (session, key) = (op_key.session(), op_key.key());
    scope_end::cancel_children(session, key, |child| child.as_str().starts_with(&winner)).await?;
    if !planted::is(Defect::LoserKept) {
        scope_end::collapse(session, key, None, Survivors::Reaching);
    }
    Ok(won)
}

impl Context {
    /// Runs several ways at once and takes the one that ends first, even if it ends with an error.
    ///
    /// The winner is recorded. The other arms are dropped with their scopes, and the children that they have started
    /// are cancelled. If an error must not decide, handle it inside its arm.
    ///
    /// ```
    /// # use mainspring::{Context, Job};
    /// # use std::time::Duration;
    /// # #[derive(serde::Serialize, serde::Deserialize, Job)] struct Order { id: u64 }
    /// async fn order(ctx: Context, _job: Order) -> mainspring::HandlerResult<()> {
    ///     let paid = ctx
    ///         .race("payment")
    ///         .arm("paid", async |ctx| Ok(Some(ctx.signal::<u64>("paid").await?)))
    ///         .arm("late", async |ctx| {
    ///             ctx.sleep("week", Duration::from_hours(168)).await?;
    ///             ctx.step("remind", async || Ok(())).await?;
    ///             Ok(None)
    ///         })
    ///         .await?;
    ///     # let _ = paid;
    ///     Ok(())
    /// }
    /// ```
    ///
    /// # Errors
    /// The error of the winning arm, as [`Error::Step`]; [`Error::Invalid`] without arms; [`Error::DuplicateKey`],
    /// [`Error::Nested`] and [`Error::Detached`].
    pub fn race<T>(&self, name: &str) -> Race<'_, T> {
        Race {
            parts: Some(Parts { op: Op::new(self, name), arms: Vec::new(), retired: Vec::new() }),
            run: None,
        }
    }
}
