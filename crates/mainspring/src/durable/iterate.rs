//! Loops without an end in sight: of all turns only the last state is kept.

use std::future::Future;
use std::ops::{Bound, ControlFlow};
use std::sync::Arc;

use mainspring_core::Result;
use mainspring_core::failure::Failure;
use mainspring_core::journal::{EntryKind, TURN, Written};
use mainspring_core::name::Key;
use mainspring_core::planted::{self, Defect};
use mainspring_core::seam::Pending;
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::dropped::OpFuture;
use super::operation::{Op, encode, keyed, lazy, side_entry};
use super::scope_end::{self, Survivors};
use super::session::Session;
use crate::context::Context;

type LoopBody<'c, S, T> =
    Box<dyn FnMut(Context, S) -> Pending<'c, Result<ControlFlow<T, S>, Failure>> + Send + 'c>;

/// A loop. Nothing happens until you await it; see [`Context::iterate`].
#[must_use = "nothing is done until this is awaited"]
pub struct Iterate<'c, S, T> {
    parts: Option<Parts<'c, S, T>>,
    run: Option<OpFuture<'c, Result<T, Failure>>>,
}

struct Parts<'c, S, T> {
    op: Op<'c>,
    state: S,
    turn: LoopBody<'c, S, T>,
}

keyed!(Iterate<'c; S, T>, op);
lazy!(Iterate<'c; S, T> => Result<T, Failure>, where {
    S: Serialize + DeserializeOwned + Send + 'c,
    T: Serialize + DeserializeOwned + Send + 'c
});

impl<S, T> Parts<'_, S, T>
where
    S: Serialize + DeserializeOwned,
    T: Serialize + DeserializeOwned,
{
    async fn run(self) -> Result<T, Failure> {
        let Parts { op, mut state, mut turn } = self;
        let ctx = op.ctx;
        let (op_key, written) = op.enter().await?;
        let session = op_key.session();
        if let Some(written) = written {
            return Ok(session.replay(&op_key, written).await?);
        }
        let (mut done, kept) = last_turn(session, op_key.key());
        if let Some(written) = kept {
            state = session.decoded(written).await?;
        }
        loop {
            let scope = Key::new(format!("{}/{}", op_key.key(), done + 1))?;
            let inner = ctx.within(Arc::from(scope.as_str()));
            if planted::is(Defect::TurnEarly) {
                let (same, json) = encode(state, session.engine.bounds().step)?;
                end_turn(session, op_key.key(), done, json)?;
                state = same;
            }
            match turn(inner, state).await? {
                ControlFlow::Continue(next) => {
                    let (next, json) = encode(next, session.engine.bounds().step)?;
                    end_turn(session, op_key.key(), done, json)?;
                    (state, done) = (next, done + 1);
                    scope_end::collapse(session, &scope, None, Survivors::Children);
                    if done.is_multiple_of(LOOK) {
                        scope_end::forget_ended_children(session, op_key.key()).await;
                    }
                }
                ControlFlow::Break(value) => {
                    let (value, json) = encode(value, session.engine.bounds().step)?;
                    forget_turn(session, op_key.key(), done)?;
                    let entry = op_key.entry(EntryKind::Value, json);
                    scope_end::collapse(session, op_key.key(), Some(entry), Survivors::Children);
                    return Ok(value);
                }
            }
        }
    }
}

/// After so many turns a loop looks whether children that it has not waited for have ended.
const LOOK: u64 = 256;

/// Where the state after so many turns is kept.
fn after(key: &Key, turns: u64) -> Result<Key> {
    Key::new(format!("{key}{TURN}{turns}"))
}

/// How many turns of a loop are done, and the state after them. Earlier states can be there if a record came twice.
fn last_turn(session: &Session, key: &Key) -> (u64, Option<Written>) {
    let prefix = format!("{key}{TURN}");
    let mut state = session.state();
    let behind = (Bound::Included(prefix.as_str()), Bound::Unbounded);
    let entries = state.replay.entries.range::<str, _>(behind);
    let turns = entries.map_while(|(key, _)| key.as_str().strip_prefix(&prefix));
    let mut turns: Vec<u64> = turns.filter_map(|turn| turn.parse().ok()).collect();
    turns.sort_unstable();
    let Some(last) = turns.pop() else { return (0, None) };
    for turn in turns {
        if let Ok(stale) = after(key, turn) {
            state.replay.find(&stale);
            state.remove(vec![stale]);
        }
    }
    (last, after(key, last).ok().and_then(|key| state.replay.find(&key)))
}

/// Another turn is done: its state takes the place of the one before.
fn end_turn(session: &Session, key: &Key, before: u64, state: Vec<u8>) -> Result<()> {
    let entry = side_entry(after(key, before + 1)?, EntryKind::Value, state);
    forget_turn(session, key, before)?;
    session.defer(entry, &[], false);
    Ok(())
}

/// The state after so many turns is of no more use. Before the first one there is none.
fn forget_turn(session: &Session, key: &Key, turns: u64) -> Result<()> {
    if turns > 0 {
        session.state().retract(after(key, turns)?);
    }
    Ok(())
}

impl Context {
    /// Repeats `turn` until it returns [`Break`](std::ops::ControlFlow::Break): each turn gets the state of the turn
    /// before, and returns the next state or the result.
    ///
    /// The commit that keeps a state removes the records of the turn and the state before. So a loop of any length
    /// costs no more than one turn, in the store, in memory, and when the handler runs again.
    ///
    /// ```
    /// # use mainspring::{Context, Job};
    /// # use std::ops::{Bound, ControlFlow};
    /// # #[derive(serde::Serialize, serde::Deserialize, Job)] struct Poll { url: String }
    /// # async fn fetch(_page: u32) -> Result<Vec<String>, std::io::Error> { Ok(Vec::new()) }
    /// async fn poll(ctx: Context, _job: Poll) -> mainspring::HandlerResult<()> {
    ///     let pages = ctx
    ///         .iterate("pages", 0, async |ctx, page| {
    ///             let found = ctx.step("fetch", async || Ok(fetch(page).await?.len())).await?;
    ///             Ok(if found == 0 { ControlFlow::Break(page) } else { ControlFlow::Continue(page + 1) })
    ///         })
    ///         .await?;
    ///     # let _: u32 = pages;
    ///     Ok(())
    /// }
    /// ```
    ///
    /// # Errors
    /// The error of a turn; the next attempt begins with that turn, and keeps its records.
    /// [`DuplicateKey`](crate::Error::DuplicateKey), [`Nested`](crate::Error::Nested) and
    /// [`Detached`](crate::Error::Detached).
    pub fn iterate<'c, S, T, F, Fut>(&'c self, name: &str, state: S, mut turn: F) -> Iterate<'c, S, T>
    where
        F: FnMut(Context, S) -> Fut + Send + 'c,
        Fut: Future<Output = Result<ControlFlow<T, S>, Failure>> + Send + 'c,
    {
        let turn: LoopBody<'c, S, T> = Box::new(move |ctx, state| Box::pin(turn(ctx, state)));
        Iterate { parts: Some(Parts { op: Op::new(self, name), state, turn }), run: None }
    }
}
