//! Reads the output of jobs, live or later; see [`Engine::tail`](crate::Engine::tail).
//!
//! However many readers there are, one task asks the store for all of them. It asks at once for new readers and for jobs of
//! which a node of this process reports output, and a few times a second for all, because jobs run elsewhere.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::fmt;
use std::sync::{Arc, PoisonError};
use std::time::Duration;

use mainspring_core::id::JobId;
use mainspring_core::job::{Progress, Status};
use mainspring_core::name::Key;
use mainspring_core::output::{Ask, Output, OutputItem, What};
use mainspring_core::seam::Clock;
use mainspring_core::store::Store;
use mainspring_core::time::Timestamp;
use mainspring_core::{Error, Result, bounds};
use serde::de::DeserializeOwned;
use tokio::sync::{Notify, oneshot};

use crate::batch::meaning;
use crate::engine::Engine;
use crate::sync::{Mutex, MutexGuard};

/// How long the task relies on being woken before it looks by itself.
const LOOK: Duration = Duration::from_millis(250);
/// How many jobs are asked for at once: each answer may have a page.
const TOGETHER: usize = 64;

/// One event of a job's output, as [`Tail::next`] returns it.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum TailEvent {
    /// The job has emitted a frame.
    Frame(Frame),
    /// A body runs again: the frames that its step has emitted before this position are void.
    Reset {
        /// Where this is.
        position: u64,
        /// The step; `None`: the handler itself, all of which runs again.
        step: Option<Key>,
        /// The first frame of it that was still kept.
        from: u64,
    },
    /// The store no longer has these positions; see [`bounds::FRAMES`].
    Gap {
        /// The first.
        from: u64,
        /// The last.
        to: u64,
    },
    /// The latest progress of the job; see [`Context::progress`](crate::Context::progress). Earlier values may be
    /// skipped.
    Progress(Progress),
}

/// One frame of a job's output.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Frame {
    /// Where it is. Positions count from 1 on.
    pub position: u64,
    /// When the store got it.
    pub at: Timestamp,
    /// The claim that emitted it.
    pub claim: u32,
    /// The step whose body said it; `None`: the handler itself.
    pub step: Option<Key>,
    /// The frame as JSON.
    pub body: Vec<u8>,
}

impl Frame {
    /// Returns the frame as a type.
    ///
    /// # Errors
    /// [`Error::Convert`] if it does not fit the type.
    pub fn json<T: DeserializeOwned>(&self) -> Result<T> {
        serde_json::from_slice(&self.body)
            .map_err(|error| Error::Convert { what: "frame", source: error.into() })
    }

    /// Returns the frame for people: a text as it is, everything else as JSON.
    pub fn text(&self) -> String {
        self.json().unwrap_or_else(|_| String::from_utf8_lossy(&self.body).into_owned())
    }
}

/// Reads the output of one job, live or later; see [`Engine::tail`].
pub struct Tail {
    engine: Engine,
    id: JobId,
    position: u64,
    follow: bool,
    ready: VecDeque<TailEvent>,
    progress: Option<Progress>,
    /// How far it is to be read, once that is known: to the end of a job that has ended, or of what is there.
    until: Option<u64>,
    ended: Option<Status>,
}

impl Tail {
    /// Begins behind a position, such as the last one that you have read. Default: the first frame that is still
    /// kept.
    #[must_use]
    pub fn after(mut self, position: u64) -> Self {
        self.position = position;
        self
    }

    /// Sets whether to wait for later frames. Default: true. With `false`, the tail ends behind the frames that are
    /// there at the first read.
    #[must_use]
    pub fn follow(mut self, follow: bool) -> Self {
        self.follow = follow;
        self
    }

    /// Returns the last position that you have read: pass it to [`after`](Self::after) to resume.
    pub fn position(&self) -> u64 {
        self.position
    }

    /// Returns how the job has ended, once the tail has come to its end.
    pub fn ended(&self) -> Option<Status> {
        self.ended
    }

    /// Waits for the next event and returns it, or `None` if the job has ended and you have read everything.
    ///
    /// You may drop the future at any time without losing an event.
    ///
    /// # Errors
    /// [`Error::NotFound`] if there is no such job, or its retention is over.
    pub async fn next(&mut self) -> Result<Option<TailEvent>> {
        loop {
            if let Some(told) = self.ready.pop_front() {
                match &told {
                    TailEvent::Frame(Frame { position, .. })
                    | TailEvent::Reset { position, .. }
                    | TailEvent::Gap { to: position, .. } => self.position = *position,
                    TailEvent::Progress(_) => {}
                }
                return Ok(Some(told));
            }
            if self.until.is_some_and(|until| self.position >= until) {
                return Ok(None);
            }
            let asked = ReadRequest {
                ask: Ask { id: self.id, after: self.position, limit: bounds::OUTPUT_PAGE },
                progress: self.progress.clone(),
                wait: self.follow,
            };
            let output = self.engine.waiters().tails().ask(&self.engine, asked).await?;
            self.take(output.ok_or(Error::NotFound(self.id))?);
        }
    }

    fn take(&mut self, output: Output) {
        let Output { items, first, last, ended, progress } = output;
        // What is there is the end of it, or it is read on.
        if ended.is_some() || !self.follow {
            self.until.get_or_insert(last);
            self.ended = ended;
        }
        let next = items.first().map_or(first, |item| item.position);
        if next > self.position + 1 {
            self.ready.push_back(TailEvent::Gap { from: self.position + 1, to: next - 1 });
        }
        self.ready.extend(items.into_iter().map(told));
        if progress != self.progress {
            self.ready.extend(progress.clone().map(TailEvent::Progress));
            self.progress = progress;
        }
    }
}

fn told(item: OutputItem) -> TailEvent {
    let OutputItem { position, at, claim, step, what } = item;
    match what {
        What::Frame(body) => TailEvent::Frame(Frame { position, at, claim, step, body }),
        What::Reset { from } => TailEvent::Reset { position, step, from },
    }
}

impl fmt::Debug for Tail {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut shown = f.debug_struct("Tail");
        shown.field("id", &self.id).field("position", &self.position).finish_non_exhaustive()
    }
}

impl Engine {
    /// Reads what a job [emits](crate::Context::emit), from its first frame on, and live.
    ///
    /// The tail works from any process. Frames of the same process arrive at once, others within a quarter of a
    /// second.
    ///
    /// ```
    /// # use mainspring::tail::TailEvent;
    /// # use mainspring::{Engine, JobId};
    /// # async fn shown(engine: &Engine, id: JobId) -> Result<(), mainspring::Error> {
    /// let mut tail = engine.tail(id);
    /// while let Some(event) = tail.next().await? {
    ///     match event {
    ///         TailEvent::Frame(frame) => println!("{}", frame.text()),
    ///         TailEvent::Reset { step, .. } => println!("(again: {step:?})"),
    ///         _ => {}
    ///     }
    /// }
    /// # Ok(())
    /// # }
    /// ```
    pub fn tail(&self, id: JobId) -> Tail {
        Tail {
            engine: self.clone(),
            id,
            position: 0,
            follow: true,
            ready: VecDeque::new(),
            progress: None,
            until: None,
            ended: None,
        }
    }
}

/// TailReaders that wait.
#[derive(Default)]
pub(crate) struct Tails {
    watched: Mutex<TailReaders>,
    wake: Notify,
}

#[derive(Default)]
struct TailReaders {
    readers: BTreeMap<u64, Reader>,
    last: u64,
    /// Those to be looked for now.
    now: BTreeSet<u64>,
    all: bool,
    /// Whether the task is there.
    busy: bool,
}

struct Reader {
    asked: ReadRequest,
    answer: oneshot::Sender<Result<Option<Output>>>,
}

/// What a reader wants to know.
#[derive(Clone)]
struct ReadRequest {
    ask: Ask,
    /// What he knows.
    progress: Option<Progress>,
    /// Whether he waits for news.
    wait: bool,
}

impl ReadRequest {
    fn is_answered(&self, output: Option<&Output>) -> bool {
        output.is_none_or(|output| {
            let news = !output.items.is_empty() || output.first > self.ask.after + 1;
            !self.wait || news || output.ended.is_some() || output.progress != self.progress
        })
    }
}

impl Tails {
    fn lock(&self) -> MutexGuard<'_, TailReaders> {
        self.watched.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Tells readers of a job that there is something to be read, or that it has ended.
    pub(crate) fn has_output(&self, id: JobId) {
        let watched = &mut *self.lock();
        let its = watched.readers.iter().filter(|(_, reader)| reader.asked.ask.id == id);
        let its: Vec<u64> = its.map(|(number, _)| *number).collect();
        if !its.is_empty() {
            watched.now.extend(its);
            self.wake.notify_one();
        }
    }

    /// Lets all readers look again.
    pub(crate) fn wake_all(&self) {
        let mut watched = self.lock();
        if !watched.readers.is_empty() {
            watched.all = true;
            self.wake.notify_one();
        }
    }

    async fn ask(&self, engine: &Engine, asked: ReadRequest) -> Result<Option<Output>> {
        let (answer, answered) = oneshot::channel();
        let first = {
            let mut watched = self.lock();
            watched.last += 1;
            let number = watched.last;
            watched.readers.insert(number, Reader { asked, answer });
            watched.now.insert(number);
            self.wake.notify_one();
            !std::mem::replace(&mut watched.busy, true)
        };
        if first {
            let (store, clock) = (Arc::clone(engine.store()), Arc::clone(&engine.seams().clock));
            // Made before the task is: an executor that is gone drops it without having polled it.
            let guard = TailTask { waiters: Arc::clone(engine.waiters()), over: false };
            let task = async move {
                let mut guard = guard;
                watch(guard.waiters.tails(), &*store, &*clock).await;
                guard.over = true;
            };
            engine.seams().spawn.spawn(Box::pin(task));
        }
        // Without an answer, the task is gone with its executor.
        answered.await.unwrap_or(Err(Error::Closed))
    }

    /// Whom to ask for now; `None`, and the task ends, if nobody reads any more.
    fn next(&self) -> Option<Vec<(u64, ReadRequest)>> {
        let mut watched = self.lock();
        watched.readers.retain(|_, reader| !reader.answer.is_closed());
        if watched.readers.is_empty() {
            watched.now.clear();
            (watched.all, watched.busy) = (false, false);
            return None;
        }
        let now = std::mem::take(&mut watched.now);
        let all = std::mem::take(&mut watched.all);
        let wanted = watched.readers.iter().filter(|(number, _)| all || now.contains(number));
        Some(wanted.map(|(number, reader)| (*number, reader.asked.clone())).collect())
    }

    fn answer(&self, number: u64, answer: Result<Option<Output>>) {
        if let Some(reader) = self.lock().readers.remove(&number) {
            drop(reader.answer.send(answer));
        }
    }
}

/// Asks the store on behalf of all who read, until nobody does.
async fn watch(tails: &Tails, store: &dyn Store, clock: &dyn Clock) {
    while let Some(wanted) = tails.next() {
        for wanted in wanted.chunks(TOGETHER) {
            let asks = wanted.iter().map(|(_, asked)| asked.ask.clone()).collect();
            match store.output(asks).await {
                Ok(outputs) => {
                    for ((number, asked), output) in wanted.iter().zip(outputs) {
                        if asked.is_answered(output.as_ref()) {
                            tails.answer(*number, Ok(output));
                        }
                    }
                }
                // The next look will tell.
                Err(error) if error.is_retryable() => tracing::debug!(%error, "cannot read output"),
                Err(error) => {
                    for (number, _) in wanted {
                        tails.answer(*number, Err(meaning(&error)));
                    }
                }
            }
        }
        tokio::select! {
            biased;
            () = tails.wake.notified() => {}
            () = clock.idle(LOOK) => tails.lock().all = true,
        }
    }
}

/// Leaves the place to the next task if this one is dropped or panics.
struct TailTask {
    waiters: Arc<crate::waiters::Waiters>,
    /// Whether it has ended in good order, and left already.
    over: bool,
}

impl Drop for TailTask {
    fn drop(&mut self) {
        if !self.over {
            *self.waiters.tails().lock() = TailReaders::default();
        }
    }
}
