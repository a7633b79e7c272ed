//! Maps: the same for each of many items, some of them at a time.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::fmt;
use std::future::{Future, poll_fn};
use std::sync::Arc;
use std::task::Poll;

use mainspring_core::failure::{Failure, discard};
use mainspring_core::journal::{EntryKind, Written};
use mainspring_core::name::{Key, StepName};
use mainspring_core::seam::Pending;
use mainspring_core::{Error, Result};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use super::dropped::OpFuture;
use super::error;
use super::operation::{Op, OpKey, encode, keyed, lazy};
use super::scope_end::{self, Survivors};
use crate::context::Context;

/// How many items are under way at a time, if nobody says.
const CONCURRENCY: usize = 16;

type Body<'c, I, R> = Box<dyn FnMut(Context, I) -> Pending<'c, Result<R, Failure>> + Send + 'c>;

/// A map over many items. Nothing happens until you await it; see [`Context::map`].
#[must_use = "nothing is done until this is awaited"]
pub struct Map<'c, I, R> {
    parts: Option<Parts<'c, I, R>>,
    run: Option<OpFuture<'c, Result<Vec<R>, Failure>>>,
}

/// A map that tolerates failed or missing items. Await it; see [`Map::tolerate`] and [`Map::at_least`].
#[must_use = "nothing is done until this is awaited"]
pub struct MapSome<'c, I, R> {
    parts: Option<SomeParts<'c, I, R>>,
    run: Option<OpFuture<'c, Result<Vec<Mapped<R>>, Failure>>>,
}

struct Parts<'c, I, R> {
    op: Op<'c>,
    items: Vec<(String, I)>,
    body: Body<'c, I, R>,
    concurrency: usize,
}

struct SomeParts<'c, I, R> {
    all: Parts<'c, I, R>,
    terms: Terms,
}

/// When a map is over.
#[derive(Clone, Copy)]
struct Terms {
    /// It has failed with one more failure than this.
    failures: usize,
    /// It ends with as many successes, and drops what is left.
    enough: usize,
}

/// The outcome of one item of a map.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Mapped<R> {
    /// The item succeeded.
    Done(R),
    /// The item failed, and the map tolerated it: the text of its error.
    Failed(String),
    /// There were enough items without it: it was dropped, or never began.
    Dropped,
}

impl<R> Mapped<R> {
    /// Returns the result, if the item succeeded.
    pub fn done(self) -> Option<R> {
        match self {
            Mapped::Done(value) => Some(value),
            Mapped::Failed(_) | Mapped::Dropped => None,
        }
    }
}

impl<'c, I, R> Map<'c, I, R> {
    /// Sets how many items run at a time. Default: 16. You may change it while workflows run.
    pub fn concurrency(mut self, items: usize) -> Self {
        if let Some(parts) = &mut self.parts {
            parts.concurrency = items.max(1);
        }
        self
    }

    /// Continues although items fail, up to this many.
    pub fn tolerate(self, failures: usize) -> MapSome<'c, I, R> {
        self.some(|_| Terms { failures, enough: usize::MAX })
    }

    /// Ends as soon as this many items are done.
    ///
    /// The others are dropped with their scopes, and the children that they have started are cancelled. The map fails
    /// when so many can no longer succeed, at once if there are fewer items.
    pub fn at_least(self, items: usize) -> MapSome<'c, I, R> {
        self.some(|all| Terms { failures: all.saturating_sub(items), enough: items })
    }

    fn some(mut self, terms: impl FnOnce(usize) -> Terms) -> MapSome<'c, I, R> {
        let parts = self.parts.take().map(|all| SomeParts { terms: terms(all.items.len()), all });
        MapSome { parts, run: None }
    }
}

keyed!(Map<'c; I, R>, op);
lazy!(Map<'c; I, R> => Result<Vec<R>, Failure>, where {
    I: Send + 'c,
    R: Serialize + DeserializeOwned + Send + 'c
});
keyed!(MapSome<'c; I, R>, all.op);
lazy!(MapSome<'c; I, R> => Result<Vec<Mapped<R>>, Failure>, where {
    I: Send + 'c,
    R: Serialize + DeserializeOwned + Send + 'c
});

impl<'c, I, R: Serialize + DeserializeOwned + Send + 'c> Parts<'c, I, R> {
    async fn run(self) -> Result<Vec<R>, Failure> {
        let (op_key, written, work) = self.begin().await?;
        let keys = work.keys();
        if let Some(written) = written {
            return Ok(in_order(&keys, op_key.session().replay(&op_key, written).await?));
        }
        let mapped = work.run(&op_key, Terms { failures: 0, enough: usize::MAX }).await?;
        let done = mapped.into_iter().filter_map(Mapped::done);
        let recorded: Vec<(String, R)> = scope_end::end(&op_key, keys.into_iter().zip(done).collect())?;
        Ok(recorded.into_iter().map(|(_, result)| result).collect())
    }
}

impl<'c, I, R: Serialize + DeserializeOwned + Send + 'c> SomeParts<'c, I, R> {
    async fn run(self) -> Result<Vec<Mapped<R>>, Failure> {
        let (op_key, written, work) = self.all.begin().await?;
        let session = op_key.session();
        let keys = work.keys();
        if let Some(written) = written {
            let recorded = session.replay(&op_key, written).await?;
            return Ok(in_order(&keys, decided(&op_key, recorded).await?));
        }
        let Terms { enough, .. } = self.terms;
        if enough != usize::MAX && enough > keys.len() {
            let why = format!("at least {enough} items are to be done, and there are {}", keys.len());
            return Err(op_key.fail(discard(why).into()).into());
        }
        let mapped = work.run(&op_key, self.terms).await?;
        let recorded: Vec<(String, Mapped<R>)> = keys.iter().cloned().zip(mapped).collect();
        match encode(recorded, session.engine.bounds().step) {
            Ok((recorded, json)) => {
                session.defer(op_key.entry(EntryKind::Value, json), &[], true);
                Ok(in_order(&keys, decided(&op_key, recorded).await?))
            }
            Err(failure) => Err(op_key.fail(failure).into()),
        }
    }
}

/// What is to be done without some of the items is decided, and recorded or about to be: what was dropped is cancelled,
/// and nothing of the scope is kept.
async fn decided<R>(op_key: &OpKey, recorded: Vec<(String, Mapped<R>)>) -> Result<Vec<(String, Mapped<R>)>> {
    let dropped = recorded.iter().filter(|(_, item)| matches!(item, Mapped::Dropped));
    let dropped: BTreeSet<&str> = dropped.map(|(key, _)| key.as_str()).collect();
    let item_of = |child: &Key| {
        let inside =
            child.as_str().strip_prefix(op_key.key().as_str()).and_then(|rest| rest.strip_prefix('/'));
        inside.and_then(|inside| inside.split('/').next()).map(str::to_owned)
    };
    let keep = |child: &Key| item_of(child).is_none_or(|item| !dropped.contains(item.as_str()));
    scope_end::cancel_children(op_key.session(), op_key.key(), keep).await?;
    scope_end::collapse(op_key.session(), op_key.key(), None, Survivors::Reaching);
    Ok(recorded)
}

/// What was recorded of items, in the order in which they are asked for now. If they are not the same items any more, in
/// the order in which it was recorded.
fn in_order<V>(keys: &[String], recorded: Vec<(String, V)>) -> Vec<V> {
    let places: BTreeMap<&str, usize> = keys.iter().enumerate().map(|(at, key)| (key.as_str(), at)).collect();
    let same =
        recorded.len() == keys.len() && recorded.iter().all(|(key, _)| places.contains_key(key.as_str()));
    let place = |at: usize, key: &str| if same { places.get(key).copied().unwrap_or(at) } else { at };
    let mut placed: Vec<(usize, V)> =
        recorded.into_iter().enumerate().map(|(at, (key, value))| (place(at, &key), value)).collect();
    placed.sort_by_key(|(at, _)| *at);
    placed.into_iter().map(|(_, value)| value).collect()
}

/// A map that has begun.
struct MapRun<'c, I, R> {
    ctx: &'c Context,
    items: VecDeque<(String, I)>,
    body: Body<'c, I, R>,
    concurrency: usize,
}

impl<'c, I, R> Parts<'c, I, R> {
    async fn begin(self) -> Result<(OpKey, Option<Written>, MapRun<'c, I, R>)> {
        let Parts { op, items, body, concurrency } = self;
        let ctx = op.ctx;
        let (op_key, written) = op.enter().await?;
        // Before anything is done: an item that cannot have its key would be met in the middle.
        items.iter().try_for_each(|(key, _)| StepName::new(key).map(drop))?;
        let mut keys = BTreeSet::new();
        if let Some((twice, _)) = items.iter().find(|(key, _)| !keys.insert(key)) {
            return Err(Error::DuplicateKey { key: Key::new(format!("{}/{twice}", op_key.key()))? });
        }
        Ok((op_key, written, MapRun { ctx, items: items.into(), body, concurrency }))
    }
}

/// An item that is under way.
struct Running<'c, R> {
    at: usize,
    op_key: OpKey,
    run: Pending<'c, Result<R, Failure>>,
}

impl<I, R> MapRun<'_, I, R> {
    /// The keys of all items.
    fn keys(&self) -> Vec<String> {
        self.items.iter().map(|(key, _)| key.clone()).collect()
    }
}

impl<'c, I, R: Serialize + DeserializeOwned + Send + 'c> MapRun<'c, I, R> {
    async fn run(mut self, op_key: &OpKey, terms: Terms) -> Result<Vec<Mapped<R>>, Failure> {
        let path: Arc<str> = Arc::from(op_key.key().as_str());
        let mut mapped: Vec<Mapped<R>> = self.items.iter().map(|_| Mapped::Dropped).collect();
        let (mut running, mut failed, mut done, mut next) = (Vec::new(), Vec::new(), 0, 0);
        while done < terms.enough {
            while running.len() < self.concurrency
                && let Some((key, item)) = self.items.pop_front()
            {
                running.push(self.start(&path, next, &key, item)?);
                next += 1;
            }
            if running.is_empty() {
                break;
            }
            let (Running { at, op_key: item, .. }, result) = first(&mut running).await;
            match result {
                Ok(value) => {
                    mapped[at] = Mapped::Done(scope_end::end(&item, value)?);
                    done += 1;
                }
                Err(failure) => {
                    mapped[at] = Mapped::Failed(failure.message());
                    failed.push(failure.into_error());
                    if failed.len() > terms.failures {
                        scope_end::drop_inside(op_key.session(), running);
                        return Err(op_key.fail(error::Several::new(failed, mapped.len()).into()).into());
                    }
                }
            }
        }
        Ok(mapped)
    }

    fn start(&mut self, path: &Arc<str>, at: usize, key: &str, item: I) -> Result<Running<'c, R>> {
        let mut op_key = OpKey::take(self.ctx.session(), path, key, None)?;
        op_key.begin()?;
        let session = Arc::clone(op_key.session());
        let run: Pending<'c, _> = match session.find(op_key.key()) {
            Some(written) => Box::pin(async move { Ok(session.decoded(written).await?) }),
            None => (self.body)(self.ctx.within(Arc::from(op_key.key().as_str())), item),
        };
        Ok(Running { at, op_key, run })
    }
}

/// The first that ends, taken out of those that are under way. All are polled with the handler's own waker: that is how
/// the engine sees what they wait for.
async fn first<'c, R>(running: &mut Vec<Running<'c, R>>) -> (Running<'c, R>, Result<R, Failure>) {
    poll_fn(|context| {
        for at in 0..running.len() {
            if let Poll::Ready(result) = running[at].run.as_mut().poll(context) {
                return Poll::Ready((running.remove(at), result));
            }
        }
        Poll::Pending
    })
    .await
}

impl Context {
    /// Runs the same body for each of many items, some of them at a time, each in a scope of its own under its key.
    ///
    /// The result of an item is recorded in place of the records inside. The list of all results takes their place in
    /// turn, unless it is too large for one record. **Inside `body`, use the context that it gets, never the outer
    /// one.**
    ///
    /// Keys tell items apart when the handler runs again, so their order may change. Use ids of the things
    /// themselves, not their places in a list.
    ///
    /// ```
    /// # use mainspring::{Context, Job};
    /// # #[derive(serde::Serialize, serde::Deserialize, Job)] struct Album { photos: Vec<u64> }
    /// # async fn resize(_photo: u64) -> Result<u64, std::io::Error> { Ok(1) }
    /// async fn album(ctx: Context, job: Album) -> mainspring::HandlerResult<()> {
    ///     let sizes: Vec<u64> = ctx
    ///         .map("photo", job.photos, |id| *id, async |ctx, id| {
    ///             let size = ctx.step("resize", async || Ok(resize(id).await?)).retry(3).await?;
    ///             ctx.step("publish", async || Ok(())).await?;
    ///             Ok(size)
    ///         })
    ///         .concurrency(8)
    ///         .await?;
    ///     # let _ = sizes;
    ///     Ok(())
    /// }
    /// ```
    ///
    /// # Errors
    /// [`Error::Step`] with the error of the first item that fails: the others are dropped, and the next attempt
    /// resumes with their records; see [`Map::tolerate`] and [`Map::at_least`]. [`Error::DuplicateKey`] if two items
    /// have the same key; [`Error::Nested`] and [`Error::Detached`].
    pub fn map<'c, I, K, R, F, Fut>(
        &'c self,
        name: &str,
        items: impl IntoIterator<Item = I>,
        key: impl Fn(&I) -> K,
        mut body: F,
    ) -> Map<'c, I, R>
    where
        K: fmt::Display,
        F: FnMut(Context, I) -> Fut + Send + 'c,
        Fut: Future<Output = Result<R, Failure>> + Send + 'c,
    {
        let items = items.into_iter().map(|item| (key(&item).to_string(), item)).collect();
        let body: Body<'c, I, R> = Box::new(move |ctx, item| Box::pin(body(ctx, item)));
        let parts = Parts { op: Op::new(self, name), items, body, concurrency: CONCURRENCY };
        Map { parts: Some(parts), run: None }
    }
}
