//! Output: what handlers, and the bodies of their steps, push while they run.
//!
//! What the handler pushes is recorded like any operation: in each scope the frames are counted, and how many there were is
//! recorded in the commit that stores the last of them, in place of the count before. A handler that runs again is silent
//! until it comes to what it has not said. What the body of a step says is a stream: it is on its way when `push` returns,
//! and a body that runs again says all of it again, behind a reset. That a step has said something is noted in its journal,
//! beside its key, until it has a result.
//!
//! A job that has recorded nothing but output, and was not suspended, is no workflow: it begins anew, so that what its
//! handler said before is void.
//!
//! # Invariants
//! - Numbers are given, and pushes are handed in, under one lock: what is said is stored in the order of its numbers.
//! - A stream is no progress of its job: one that takes its process with it after some frames is quarantined like any other.
//! - Nothing is said for a step whose body has ended.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

use mainspring_core::journal::{Entry, Recorded, Recording, Writes, Written};
use mainspring_core::name::Key;
use mainspring_core::output::Push;
use mainspring_core::planted::{self, Defect};
use mainspring_core::seam::Pending;
use mainspring_core::{Error, Result, bounds};
use serde::Serialize;
use tokio::sync::oneshot;

use super::key::side_key;
use super::operation::mark;
use super::recorder::NodeRecording;
use super::session::{Session, SessionState};
use super::step::StepContext;
use super::{polled_code, probe_hooks};
use crate::context::Context;
use crate::job_run::JobRun;

/// Where it is is_workflow that a step has said something, and how often the handler has.
const OUTPUT: &str = "output";
/// Where it is is_workflow that the job is a workflow, if nothing else says so.
const WORKFLOW_MARK: &str = "#is_workflow";

/// What a session knows of what was said.
#[derive(Default)]
pub(crate) struct Outputs {
    /// How much the handler has said, by scope.
    scopes: BTreeMap<Arc<str>, PushCount>,
    /// Steps that have said something and have no result.
    unfinished: BTreeSet<Key>,
    /// Bodies that run.
    running_bodies: BTreeMap<Key, u64>,
    last_body: u64,
    /// The last number that was given.
    number: u32,
    /// What is on its way and nobody has looked for.
    unconfirmed: VecDeque<UnconfirmedPush>,
    unconfirmed_bytes: usize,
    /// Whether what the handler of an earlier attempt has said is void.
    void: bool,
    /// Whether something else is recorded than output.
    is_workflow: bool,
}

#[derive(Default)]
struct PushCount {
    /// What is recorded.
    recorded: u32,
    /// What was said in this run.
    said: u32,
    /// Whether a frame is on its way.
    open: bool,
}

/// A recording that was handed in.
pub(crate) struct UnconfirmedPush {
    sent: u64,
    bytes: usize,
    pub(super) answer: oneshot::Receiver<Result<Result<Recorded>>>,
}

impl Outputs {
    /// The recording of this number, if it is on its way and nobody has looked for it.
    pub(super) fn take_unconfirmed(&mut self, sent: u64) -> Option<UnconfirmedPush> {
        self.unconfirmed.pop_back_if(|push_sent| push_sent.sent == sent)
    }

    /// What a journal has of it, which is taken out. Also what is to be forgotten: counts that gave way to others.
    pub(crate) fn load(entries: &mut BTreeMap<Key, Written>) -> (Self, Vec<Key>) {
        let mut outputs = Outputs::default();
        let mut stale = Vec::new();
        let mut counts: Vec<(Key, Arc<str>, u32)> = Vec::new();
        entries.retain(|key, _| {
            let (path, label) = key.as_str().rsplit_once('/').unwrap_or(("", key.as_str()));
            if let Some(count) = label.strip_prefix("#output=").and_then(|count| count.parse().ok()) {
                counts.push((key.clone(), path.into(), count));
                return false;
            }
            if let Some(step) = key.as_str().strip_suffix("#output").and_then(|step| Key::new(step).ok()) {
                outputs.unfinished.insert(step);
                return false;
            }
            outputs.is_workflow = true;
            true
        });
        outputs.void = !outputs.is_workflow && !counts.is_empty();
        for (_, path, count) in counts.iter().filter(|_| outputs.is_workflow) {
            let known = outputs.scopes.entry(Arc::clone(path)).or_default();
            known.recorded = known.recorded.max(*count);
        }
        let lasts = |path: &Arc<str>, count: &u32| {
            outputs.scopes.get(path).is_some_and(|known| known.recorded == *count)
        };
        stale.extend(
            counts.iter().filter(|(_, path, count)| !lasts(path, count)).map(|(key, ..)| key.clone()),
        );
        (outputs, stale)
    }

    /// Scopes have ended: what was said in them is not said again.
    pub(crate) fn end(&mut self, is_inside: impl Fn(&str) -> bool) {
        self.scopes.retain(|path, _| !is_inside(path));
        self.unfinished.retain(|key| !is_inside(key.as_str()));
    }

    /// Gives what is said its numbers.
    pub(crate) fn number(&mut self, pushes: &mut [Push]) {
        for push in pushes {
            self.number += 1;
            push.number = self.number;
        }
    }

    /// What has to be recorded with a suspension: that this is a workflow, although it may have recorded nothing else.
    pub(crate) fn suspended(&mut self) -> Option<Entry> {
        let said = self.scopes.values().any(|count| count.said > 0);
        if !said || std::mem::replace(&mut self.is_workflow, true) {
            return None;
        }
        Key::new(WORKFLOW_MARK).ok().map(mark)
    }
}

/// Where a scope's count is kept.
fn counted(path: &str, count: u32) -> Result<Key> {
    let slash = if path.is_empty() { "" } else { "/" };
    Key::new(format!("{path}{slash}#{OUTPUT}={count}"))
}

fn encode(frame: &impl Serialize) -> Result<Vec<u8>> {
    let json =
        crate::json::to_vec(frame).map_err(|error| Error::Convert { what: "frame", source: error.into() })?;
    if json.len() > bounds::FRAME_BYTES {
        return Err(Error::TooLarge { what: "frame", size: json.len(), limit: bounds::FRAME_BYTES });
    }
    Ok(json)
}

/// Hands something in that nobody waits for now.
fn hand_in(
    session: &Session,
    state: &mut SessionState,
    run: &JobRun,
    mut writes: Writes,
) -> Result<UnconfirmedPush> {
    let (bytes, sent) = (writes.bytes(), state.hand_in(&mut writes));
    let recording = Recording { claim: run.claim, writes, children: Vec::new() };
    let answer = session.recorder().post(NodeRecording { node: run.node, recording })?;
    Ok(UnconfirmedPush { sent, bytes, answer })
}

/// Waits for what was handed in.
async fn confirm_push(session: &Session, push_sent: UnconfirmedPush) -> Result<()> {
    let unknown = Err(Error::OutcomeUnknown { source: None });
    let answer = push_sent.answer.await.unwrap_or(unknown)?;
    session.state().deferred.mark_answered(push_sent.sent);
    session.take_answer(answer).await
}

/// The output of an earlier attempt is void, and nothing else is recorded: readers get a reset.
pub(super) fn begin(session: &Session, stale: Vec<Key>) {
    let void = session.state().outputs.void;
    if !void && stale.is_empty() || is_staged(session) {
        return;
    }
    let reset = void.then_some(Push { number: 0, step: None, body: None });
    let run = session.run();
    let mut state = session.state();
    state.replay.forget(&stale);
    let writes =
        Writes { forget: stale, output: reset.into_iter().collect(), idle: true, ..Writes::default() };
    // Without a recorder nothing of this run will be stored.
    if let Ok(push_sent) = hand_in(session, &mut state, &run, writes) {
        state.outputs.unconfirmed_bytes += push_sent.bytes;
        state.outputs.unconfirmed.push_back(push_sent);
    }
}

/// Whether nothing is to be done but what is recorded.
fn is_staged(session: &Session) -> bool {
    Key::new(format!("#{OUTPUT}")).is_ok_and(|key| probe_hooks::stops(session, &key))
}

/// The body of a step begins: what it said before is void.
pub(super) fn begin_body(session: &Arc<Session>, key: &Key) -> RunningBody {
    let run = session.run();
    let mut state = session.state();
    let outputs = &mut state.outputs;
    outputs.last_body += 1;
    let body = outputs.last_body;
    outputs.running_bodies.insert(key.clone(), body);
    if outputs.unfinished.contains(key) && !planted::is(Defect::ResetForgotten) {
        let reset = Push { number: 0, step: Some(key.clone()), body: None };
        let writes = Writes { output: vec![reset], idle: true, ..Writes::default() };
        if let Ok(push_sent) = hand_in(session, &mut state, &run, writes) {
            state.outputs.unconfirmed_bytes += push_sent.bytes;
            state.outputs.unconfirmed.push_back(push_sent);
        }
    }
    drop(state);
    RunningBody { session: Arc::clone(session), key: key.clone(), body }
}

/// A step has its result: what it said stays. What is to be forgotten with that.
pub(super) fn end_step(session: &Session, key: &Key) -> Vec<Key> {
    let mut state = session.state();
    if !state.outputs.unfinished.remove(key) {
        return Vec::new();
    }
    let keys: Vec<Key> = side_key(key, OUTPUT).into_iter().collect();
    state.replay.forget(&keys);
    keys
}

/// The body of a step says something.
async fn push_from_body(session: &Session, key: &Key, body: u64, frame: Vec<u8>) -> Result<()> {
    let run = session.run();
    let mut frame = Some(frame);
    loop {
        let oldest = {
            let mut state = session.state();
            if state.outputs.running_bodies.get(key) != Some(&body) {
                return Err(Error::Detached { key: key.clone() });
            }
            let outputs = &mut state.outputs;
            let full = outputs.unconfirmed.len() >= bounds::FRAMES_FLYING
                || outputs.unconfirmed_bytes >= bounds::FRAMES_FLYING_BYTES;
            if let Some(oldest) = outputs.unconfirmed.pop_front_if(|_| full) {
                outputs.unconfirmed_bytes -= oldest.bytes;
                oldest
            } else {
                let push = Push { number: 0, step: Some(key.clone()), body: frame.take() };
                let first = outputs.unfinished.insert(key.clone());
                let entries = first.then(|| side_key(key, OUTPUT)).transpose()?.map(mark);
                let entries = entries.into_iter().collect();
                let writes = Writes { entries, output: vec![push], idle: true, ..Writes::default() };
                let push_sent = hand_in(session, &mut state, &run, writes)?;
                state.outputs.unconfirmed_bytes += push_sent.bytes;
                state.outputs.unconfirmed.push_back(push_sent);
                return Ok(());
            }
        };
        confirm_push(session, oldest).await?;
    }
}

/// The handler says something.
async fn push_from_handler(session: &Arc<Session>, path: &Arc<str>, frame: Vec<u8>) -> Result<()> {
    let key = counted(path, 0)?;
    polled_code::check(session, &key)?;
    session.begin_operation()?;
    let staged = is_staged(session);
    let said = {
        let mut state = session.state();
        let count = state.outputs.scopes.entry(Arc::clone(path)).or_default();
        if count.open {
            return Err(Error::DuplicateKey { key });
        }
        count.said += 1;
        if staged || count.said <= count.recorded {
            return Ok(());
        }
        count.open = true;
        count.said
    };
    let _open = OpenFrame { session, path };
    let mut writes = Writes {
        entries: vec![mark(counted(path, said)?)],
        output: vec![Push { number: 0, step: None, body: Some(frame) }],
        ..Writes::default()
    };
    if planted::is(Defect::PushUncounted) {
        writes.entries.clear();
    } else if said > 1 {
        writes.forget.push(counted(path, said - 1)?);
        session.state().replay.forget(&writes.forget);
    }
    session.record_all(writes, Vec::new()).await
}

/// A frame of the handler is on its way, until this is dropped.
struct OpenFrame<'a> {
    session: &'a Session,
    path: &'a Arc<str>,
}

impl Drop for OpenFrame<'_> {
    fn drop(&mut self) {
        if let Some(count) = self.session.state().outputs.scopes.get_mut(self.path) {
            count.open = false;
        }
    }
}

/// A body that runs, and may say something.
pub(crate) struct RunningBody {
    session: Arc<Session>,
    key: Key,
    body: u64,
}

impl RunningBody {
    pub(crate) fn body(&self) -> u64 {
        self.body
    }
}

impl Drop for RunningBody {
    fn drop(&mut self) {
        let running_bodies = &mut self.session.state().outputs.running_bodies;
        if running_bodies.get(&self.key) == Some(&self.body) {
            running_bodies.remove(&self.key);
        }
    }
}

impl Context {
    /// Emits a frame to everybody who [tails](crate::Engine::tail) the job: anything that you can write as JSON, up
    /// to [64 KiB](bounds::FRAME_BYTES). The store has it when this returns.
    ///
    /// When the handler runs again, it does not emit the frame again, if the job has recorded a step or was
    /// suspended. A job that has recorded nothing else begins from the start in a retry, and a reset comes first.
    ///
    /// Only its number in its scope tells a frame from others. So emit side by side in [branches](Self::branch) of
    /// their own.
    ///
    /// ```
    /// # use mainspring::{Context, Job};
    /// # #[derive(serde::Serialize, serde::Deserialize, Job)] struct Report { pages: u32 }
    /// # async fn render(_page: u32) -> Result<u32, std::io::Error> { Ok(1) }
    /// async fn report(ctx: Context, job: Report) -> mainspring::HandlerResult<()> {
    ///     for page in 1..=job.pages {
    ///         ctx.step("render", async || Ok(render(page).await?)).await?;
    ///         ctx.emit(format!("page {page} is done")).await?;
    ///     }
    ///     Ok(())
    /// }
    /// ```
    ///
    /// # Errors
    /// [`Error::TooLarge`] and [`Error::Convert`] for an invalid frame; [`Error::DuplicateKey`] if another frame of
    /// the same scope is on its way; [`Error::Nested`] inside a step's body, which has a [stream of its
    /// own](StepContext::emit), and [`Error::Detached`].
    pub fn emit(&self, frame: impl Serialize) -> Pending<'_, Result<()>> {
        let frame = encode(&frame);
        Box::pin(async move { push_from_handler(self.session(), self.path(), frame?).await })
    }
}

impl StepContext {
    /// Emits a frame while the body runs, such as a token of a model: anything that you can write as JSON, up to [64
    /// KiB](bounds::FRAME_BYTES).
    ///
    /// The frame is on its way when this returns, before all later frames and records. If too many are on their way
    /// already, this waits. If the body runs again, because it failed or its process died, readers get a reset, which
    /// voids the earlier frames of this step.
    ///
    /// ```
    /// # use mainspring::{Context, Job};
    /// # #[derive(serde::Serialize, serde::Deserialize, Job)] struct Chat { prompt: String }
    /// async fn chat(ctx: Context, job: Chat) -> mainspring::HandlerResult<String> {
    ///     let answer = ctx.step_with("model", async |step| {
    ///         let mut answer = String::new();
    ///         for token in job.prompt.split_whitespace() {
    ///             step.emit(token).await?;
    ///             answer.push_str(token);
    ///         }
    ///         Ok(answer)
    ///     });
    ///     Ok(answer.await?)
    /// }
    /// ```
    ///
    /// # Errors
    /// [`Error::TooLarge`] and [`Error::Convert`] for an invalid frame; [`Error::Detached`] if the body has ended.
    pub fn emit(&self, frame: impl Serialize) -> Pending<'_, Result<()>> {
        let frame = encode(&frame);
        Box::pin(async move { push_from_body(self.session(), self.key(), self.body(), frame?).await })
    }
}

#[cfg(test)]
mod tests {
    use mainspring_core::journal::{EntryKind, Value};
    use mainspring_core::time::Timestamp;

    use super::*;

    fn entries(keys: &[&str]) -> BTreeMap<Key, Written> {
        let written = |key: &&str| {
            let key = Key::new(key).expect("a key");
            let written = Written {
                key: key.clone(),
                kind: EntryKind::Value,
                overlapped: false,
                took: None,
                claim: 1,
                at: Timestamp::from_micros(1),
                value: Value::Here(b"null".to_vec()),
            };
            (key, written)
        };
        keys.iter().map(written).collect()
    }

    #[test]
    fn counts_and_marks_are_found_and_everything_else_is_left() {
        let mut journal = entries(&["#output=3", "#output=2", "a/#output=1", "b#2#output", "b", "c#=output"]);
        let (outputs, stale) = Outputs::load(&mut journal);
        let left: Vec<String> = journal.keys().map(ToString::to_string).collect();
        assert_eq!(left, ["b", "c#=output"]);
        assert_eq!(stale.iter().map(Key::as_str).collect::<Vec<_>>(), ["#output=2"]);
        assert_eq!(outputs.scopes.get("").map(|count| count.recorded), Some(3));
        assert_eq!(outputs.scopes.get("a").map(|count| count.recorded), Some(1));
        assert_eq!(outputs.unfinished.iter().map(Key::as_str).collect::<Vec<_>>(), ["b#2"]);
        assert!(!outputs.void);
    }

    #[test]
    fn what_a_job_said_is_void_if_it_has_recorded_nothing_else() {
        let (outputs, stale) = Outputs::load(&mut entries(&["#output=3", "a/#output=1", "b#output"]));
        assert!(outputs.void && outputs.scopes.is_empty());
        assert_eq!(stale.len(), 2);
        assert!(!Outputs::load(&mut entries(&["#output=3", WORKFLOW_MARK])).0.void);
        assert!(!Outputs::load(&mut entries(&["b#output"])).0.void, "nothing was said by the handler");
        assert!(!Outputs::load(&mut entries(&[])).0.void);
    }
}
