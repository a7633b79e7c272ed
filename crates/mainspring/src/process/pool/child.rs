//! One child of a pool.
//!
//! It is started, says that it is ready, gets one job after the other, and ends: see the states in ADR 17.
//!
//! # Invariants
//! - A job's answer is given to its handler once the child that broke it has ended: its next attempt never runs beside it.

use std::sync::Arc;
use std::time::Duration;

use mainspring_core::bounds;
use mainspring_core::failure::{Failure, cancel, discard, throttled};
use mainspring_core::job::{Fault, FaultKind};
use mainspring_core::time::Span;
use tokio::io::AsyncWriteExt;
use tokio::net::unix::pipe;

use super::PoolShared;
use super::lines::{Lines, Next};
use super::log::{self, Stderr};
use super::protocol::{self, Answer};
use super::waiting::Request;
use crate::handler::{Broken, Payload, convert};
use crate::process::command::last_words;
use crate::process::guard::Ended;
use crate::process::guarded::{Guarded, Pipes};

/// How long an idle child may take to end once its standard input has.
const END_GRACE: Duration = Duration::from_secs(2);
/// How long a guard may take to kill a child and to say so.
const KILL_PATIENCE: Duration = Duration::from_secs(1);
/// How long to wait for what a child that has ended has written.
const LEFTOVER: Duration = Duration::from_millis(200);
/// How often the memory of a child that has a job is looked at.
const MEMORY_LOOK: Duration = Duration::from_secs(1);

/// How the life of a child ended.
pub(super) enum End {
    /// In good order.
    Retired,
    /// In another way, in words that follow "a child".
    Broken(String),
}

/// A child that is ready, has a job or is ending.
pub(super) struct Child {
    pool: Arc<PoolShared>,
    guarded: Guarded,
    /// Closed to end it in good order.
    stdin: Option<pipe::Sender>,
    lines: Lines,
    stderr: Stderr,
    pid: u32,
    born: Duration,
    jobs: u32,
    /// How it ended, once the guard has said so.
    ended: Option<String>,
}

/// Why a child stops working on a job without having answered it.
enum Break {
    /// It or its guard has ended.
    Ended,
    /// It did something that it must not do.
    Fault(String),
    /// It took too long.
    Timeout(String),
    /// It did not end a job that was cancelled.
    Cancelled,
    /// The handler is gone: its job timed out, or the node gives it back.
    Dropped,
}

impl Child {
    /// Starts a child and waits until it is ready.
    pub(super) async fn start(pool: &Arc<PoolShared>) -> Result<Child, End> {
        let clock = &pool.seams.clock;
        let mut late = std::pin::pin!(clock.sleep(pool.options.start_within));
        let started = tokio::select! {
            biased;
            () = pool.closed() => return Err(End::Retired),
            started = Guarded::start(&pool.spec) => started,
            () = &mut late => Err("its guard does not answer".into()),
        };
        let (guarded, pipes) = started.map_err(|why| End::Broken(format!("could not start: {why}")))?;
        let Pipes { stdin, stdout, stderr } = pipes;
        let pid = guarded.pid().and_then(|pid| u32::try_from(pid).ok()).unwrap_or(0);
        let mut child = Child {
            guarded,
            stdin: Some(stdin),
            lines: Lines::new(stdout, pool.result_bound + bounds::CHILD_LINE_BYTES),
            stderr: Stderr::start(stderr, &pool.seams, &pool.name, pid),
            pid,
            born: clock.monotonic(),
            jobs: 0,
            ended: None,
            pool: Arc::clone(pool),
        };
        let next = tokio::select! {
            biased;
            () = pool.closed() => return Err(child.retire().await),
            next = child.lines.next() => Some(next),
            () = late => None,
        };
        let problem = match next {
            None => format!("was not ready within {}", Span(pool.options.start_within)),
            Some(Next::Line(line)) => match protocol::ready(&line, &pool.kinds) {
                Ok(()) => return Ok(child),
                Err(why) => format!("could not start: {why}"),
            },
            Some(Next::TooLong) => "could not start: its first line has no end".to_owned(),
            Some(Next::End) => format!("{} before it was ready", child.how_it_ended().await),
        };
        Err(child.broken(problem).await)
    }

    /// Whether a job was finished in it: in whatever way, but in good order.
    pub(super) fn has_finished_jobs(&self) -> bool {
        self.jobs > 0
    }

    /// Why it is to be replaced before it gets another job.
    pub(super) fn is_worn_out(&self) -> Option<&'static str> {
        let options = &self.pool.options;
        if options.max_jobs.is_some_and(|jobs| self.jobs >= jobs) {
            Some("it has run its jobs")
        } else if self.age_left().is_some_and(|left| left.is_zero()) {
            Some("it is old")
        } else if self.jobs > 0 && options.max_memory.is_some_and(|bound| self.memory() > bound) {
            Some("it uses too much memory")
        } else {
            None
        }
    }

    /// How long it may still get jobs, if that is bounded.
    pub(super) fn age_left(&self) -> Option<Duration> {
        let age = self.pool.seams.clock.monotonic().saturating_sub(self.born);
        self.pool.options.max_age.map(|bound| bound.saturating_sub(age))
    }

    fn memory(&self) -> u64 {
        resident(self.pid).unwrap_or(0)
    }

    /// Waits until a child that has no job does something. It has nothing to say, so whatever it does ends it.
    pub(super) async fn idle(&mut self) -> String {
        tokio::select! {
            biased;
            next = self.lines.next() => match next {
                Next::Line(line) => format!("wrote `{}` although it had no job", protocol::quoted(&line)),
                Next::TooLong => "wrote although it had no job".into(),
                Next::End => format!("{} while it had no job", self.how_it_ended().await),
            },
            ended = self.guarded.ended() => {
                format!("{} while it had no job", self.note_end(ended))
            }
        }
    }

    /// Runs a job. An error is the end of the child.
    pub(super) async fn work(&mut self, mut request: Request) -> Result<(), End> {
        if !request.hold.take(self.guarded.switch()) {
            return Ok(());
        }
        if request.hold.take_note() {
            request.ctx.progress(0, 0, "");
        }
        self.stderr.forget();
        let (mut written, mut spoke) = (0, false);
        let broken = match self.converse(&mut request, &mut written, &mut spoke).await {
            Ok(answer) => {
                self.jobs += 1;
                request.hold.answered();
                // Fails only if the handler is gone.
                drop(request.reply.send(settle(answer, self.pool.result_bound)));
                return Ok(());
            }
            Err(broken) => broken,
        };
        let what = match &broken {
            Break::Ended => format!("{} while it had a job", self.how_it_ended().await),
            Break::Fault(why) | Break::Timeout(why) => why.clone(),
            Break::Cancelled => "did not end a job that was cancelled".to_owned(),
            Break::Dropped => "was killed with the job that it had".to_owned(),
        };
        self.kill().await;
        if !spoke && matches!(broken, Break::Ended) && self.is_unread(written) {
            self.pool.waiting.put_back(request);
            return Err(End::Broken(self.told(what).await));
        }
        let what = self.told(what).await;
        let message = format!("the child of pool `{}` {what}", self.pool.name);
        let failure = match broken {
            Break::Timeout(_) => Broken::Fault(Fault::new(FaultKind::Timeout, message)),
            Break::Cancelled => {
                Broken::Failure(Failure::from(cancel("it was cancelled, and its child killed")))
            }
            Break::Ended | Break::Fault(_) | Break::Dropped => Broken::Failure(message.into()),
        };
        request.hold.answered();
        drop(request.reply.send(Err(failure)));
        // What somebody wanted says nothing about the child.
        Err(if matches!(broken, Break::Dropped | Break::Cancelled) {
            End::Retired
        } else {
            End::Broken(what)
        })
    }

    /// Sends a job and hears what the child says of it, up to its answer.
    async fn converse(
        &mut self,
        request: &mut Request,
        written: &mut usize,
        spoke: &mut bool,
    ) -> Result<Answer, Break> {
        let (clock, options) = (Arc::clone(&self.pool.seams.clock), self.pool.options);
        let ctx = Arc::clone(&request.ctx);
        let id = ctx.id().to_string();
        let mut outgoing = request.line.clone();
        let began = clock.monotonic();
        let (mut heard, mut looked, mut asked, mut ended) = (began, began, None, None);
        let mut is_writable = true;
        loop {
            let due = Due {
                timeout: options.timeout.map(|timeout| began + timeout),
                silence: options.silence.map(|silence| heard + silence),
                cancel: asked.map(|asked: Duration| asked + options.cancel_grace),
                memory: options.max_memory.map(|_| looked + MEMORY_LOOK),
                leftover: ended.map(|ended: Duration| ended + LEFTOVER),
            };
            let wait = due.first().map(|due| clock.sleep(due.saturating_sub(clock.monotonic())));
            let stdin = self.stdin.as_mut().filter(|_| is_writable && *written < outgoing.len());
            tokio::select! {
                biased;
                next = self.lines.next() => match next {
                    Next::Line(line) => {
                        (heard, *spoke) = (clock.monotonic(), true);
                        match protocol::answer(&line, &id).map_err(Break::Fault)? {
                            Answer::Progress { done, total, note } => ctx.progress(done, total, note),
                            Answer::Log(level, text) => log::job(ctx.info(), level, &text),
                            answer => return Ok(answer),
                        }
                    }
                    Next::TooLong => {
                        let bound = self.pool.result_bound + bounds::CHILD_LINE_BYTES;
                        return Err(Break::Fault(format!("wrote a line of more than {bound} bytes")));
                    }
                    Next::End => return Err(Break::Ended),
                },
                () = request.reply.closed() => return Err(Break::Dropped),
                how = self.guarded.ended(), if self.ended.is_none() => {
                    // What it has written before may still be in the pipe.
                    self.note_end(how);
                    ended = Some(clock.monotonic());
                }
                result = write(stdin, &outgoing, *written) => match result {
                    Ok(bytes) => *written += bytes,
                    // A child that does not read may still answer.
                    Err(_) => is_writable = false,
                },
                () = ctx.cancelled(), if asked.is_none() => {
                    outgoing.extend(protocol::cancel(ctx.info()).map_err(Break::Fault)?);
                    asked = Some(clock.monotonic());
                }
                () = sleep(wait) => {
                    let now = clock.monotonic();
                    if due.leftover.is_some_and(|at| at <= now) {
                        return Err(Break::Ended);
                    }
                    if due.cancel.is_some_and(|at| at <= now) {
                        return Err(Break::Cancelled);
                    }
                    due.check(now, &options)?;
                    looked = now;
                    if let Some(bound) = options.max_memory.filter(|bound| self.memory() > bound.saturating_mul(2)) {
                        return Err(Break::Fault(format!("used more than twice {bound} bytes of memory")));
                    }
                }
            }
        }
    }

    /// Whether the child read nothing of what was written. It must have ended.
    fn is_unread(&self, written: usize) -> bool {
        let unread = self.stdin.as_ref().and_then(|stdin| rustix::io::ioctl_fionread(stdin).ok());
        unread == u64::try_from(written).ok()
    }

    /// Says how it ended, if it ends now.
    async fn how_it_ended(&mut self) -> String {
        if let Some(how) = &self.ended {
            return how.clone();
        }
        tokio::select! {
            biased;
            ended = self.guarded.ended() => self.note_end(ended),
            () = self.pool.seams.clock.sleep(KILL_PATIENCE) => "closed its standard output".into(),
        }
    }

    fn note_end(&mut self, ended: Result<Ended, String>) -> String {
        self.ended.insert(ended.map_or_else(|why| why, |ended| ended.to_string())).clone()
    }

    /// Ends it because of what it did.
    pub(super) async fn broken(&mut self, what: String) -> End {
        self.kill().await;
        End::Broken(self.told(what).await)
    }

    /// What happened, with the end of its standard error.
    async fn told(&mut self, what: String) -> String {
        format!("{what}{}", last_words(&self.stderr.finish(&*self.pool.seams.clock, LEFTOVER).await))
    }

    /// Lets it end, and ends it if it does not.
    pub(super) async fn retire(&mut self) -> End {
        self.stdin = None;
        if self.ended.is_none() {
            tokio::select! {
                biased;
                ended = self.guarded.ended() => drop(self.note_end(ended)),
                () = self.pool.seams.clock.sleep(END_GRACE) => {}
            }
        }
        self.kill().await;
        End::Retired
    }

    /// Ends it and its group now.
    async fn kill(&mut self) {
        self.guarded.stop();
        if self.ended.is_some() {
            return;
        }
        tokio::select! {
            biased;
            ended = self.guarded.ended() => drop(self.note_end(ended)),
            () = self.pool.seams.clock.sleep(KILL_PATIENCE) => self.guarded.kill(),
        }
    }
}

/// When something has to happen to a child that has a job.
struct Due {
    timeout: Option<Duration>,
    silence: Option<Duration>,
    cancel: Option<Duration>,
    memory: Option<Duration>,
    leftover: Option<Duration>,
}

impl Due {
    fn first(&self) -> Option<Duration> {
        [self.timeout, self.silence, self.cancel, self.memory, self.leftover].into_iter().flatten().min()
    }

    fn check(&self, now: Duration, options: &super::Options) -> Result<(), Break> {
        let passed = |due: Option<Duration>| due.is_some_and(|due| due <= now);
        let span = |span: Option<Duration>| Span(span.unwrap_or_default());
        if passed(self.timeout) {
            return Err(Break::Timeout(format!("timed out after {}", span(options.timeout))));
        }
        if passed(self.silence) {
            return Err(Break::Timeout(format!("said nothing for {}", span(options.silence))));
        }
        Ok(())
    }
}

/// Writes some of what is outgoing; never ends without a pipe.
async fn write(stdin: Option<&mut pipe::Sender>, outgoing: &[u8], written: usize) -> std::io::Result<usize> {
    match stdin {
        Some(stdin) => stdin.write(&outgoing[written..]).await,
        None => std::future::pending().await,
    }
}

async fn sleep(wait: Option<impl Future<Output = ()>>) {
    match wait {
        Some(wait) => wait.await,
        None => std::future::pending().await,
    }
}

/// What a child's answer is to the engine.
fn settle(answer: Answer, bound: usize) -> Result<Payload, Broken> {
    let control = match answer {
        Answer::Ok(result) if result.get().len() > bound => {
            let bytes = result.get().len();
            return Err(convert(format!("the result has {bytes} bytes, the bound is {bound}")));
        }
        Answer::Ok(result) if result.get() == "null" => return Ok(None),
        Answer::Ok(result) => return Ok(Some(result.get().as_bytes().to_vec())),
        Answer::Error { why, retry: true } => return Err(Broken::Failure(why.into())),
        Answer::Error { why, retry: false } => discard(why),
        Answer::Throttled(after) => throttled(after.map(Duration::from_secs_f64)),
        Answer::Cancel(why) => cancel(why),
        Answer::Progress { .. } | Answer::Log(..) => unreachable!("the caller handles what is no end"),
    };
    Err(Broken::Failure(Failure::from(control)))
}

/// The bytes of memory that a process uses, if the system says so.
pub(super) fn resident(pid: u32) -> Option<u64> {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;
    line.trim().strip_suffix(" kB")?.parse::<u64>().ok().map(|kib| kib << 10)
}
