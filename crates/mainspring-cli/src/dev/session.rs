//! One run of `dev` or `watch`: the loop around store, keys and signals and, in `dev`, a worker and samples.

use std::collections::VecDeque;
use std::time::Duration;

use mainspring::admin::{Counts, Summary};
use mainspring::{Engine, Error, State, shutdown_signal};
use tokio::sync::mpsc::{self, UnboundedReceiver};

use super::event::{Event, Tone};
use super::recovery::Recovery;
use super::sample_work::Seed;
use super::screen::{Key, Screen};
use super::watch::{TICK, Watch};
use super::worker::{DRAIN, Worker, WorkerCommand};
use super::{sample_work, summary};
use crate::output::Out;
use crate::text;

/// Events that are kept for the view.
const KEPT: usize = 500;
/// How long after its death the worker is started again.
const RESTART: Duration = Duration::from_secs(1);
/// Jobs that one press of `e` enqueues.
const BATCH: usize = 50;
/// A worker that lived no longer than this did not get to work.
const SOON: Duration = Duration::from_secs(1);
/// How long the worker may take to go once it was told to: its drain and a little more.
const FAREWELL: Duration = Duration::from_secs(DRAIN.as_secs() + 3);

/// What there is to see.
pub(super) struct Session<'a> {
    pub(super) engine: &'a Engine,
    pub(super) queue: &'a str,
    pub(super) watch: Watch,
    pub(super) events: VecDeque<Event>,
    pub(super) draining: bool,
    pub(super) worker: Option<Worker>,
    /// The worker's process.
    pub(super) pid: u32,
    /// When the worker is started again, on the monotonic clock.
    pub(super) restart: Option<Duration>,
    /// How the worker is started; without it, there is none, and nothing is done but looking.
    recipe: Option<WorkerCommand>,
    samples: bool,
    /// Between two looks.
    every: Duration,
    /// When it ends by itself, on the monotonic clock.
    until: Option<Duration>,
    /// The figures that were told last.
    figures: Option<Counts>,
    out: Out,
    screen: Option<Screen>,
    lines: (mpsc::UnboundedSender<String>, UnboundedReceiver<String>),
    beat: usize,
    next_beat: Duration,
    /// Deaths of the worker within seconds of its start.
    early: u32,
    started: Duration,
}

/// What a round of the loop waits for.
enum Woken {
    Tick,
    Key(Key),
    Line(String),
    Signal,
    WorkerEnded,
}

impl<'a> Session<'a> {
    /// A session with a worker.
    pub(super) fn new(
        engine: &'a Engine,
        recipe: WorkerCommand,
        queue: &'a str,
        samples: bool,
        out: Out,
    ) -> Self {
        Session { queue, recipe: Some(recipe), samples, ..Session::onlooker(engine, TICK, out) }
    }

    /// A session that only looks.
    pub(super) fn onlooker(engine: &'a Engine, every: Duration, out: Out) -> Self {
        Session {
            engine,
            queue: "",
            watch: Watch::default(),
            events: VecDeque::new(),
            draining: false,
            worker: None,
            pid: 0,
            restart: None,
            recipe: None,
            samples: false,
            every,
            until: None,
            figures: None,
            out,
            screen: None,
            lines: mpsc::unbounded_channel(),
            beat: 0,
            next_beat: Duration::ZERO,
            early: 0,
            started: Duration::ZERO,
        }
    }

    pub(super) async fn run(mut self, store: &str) -> anyhow::Result<()> {
        self.watch.look(self.engine, self.queue).await?;
        if self.out.is_terminal() {
            self.screen = Some(Screen::open()?);
        }
        let result = self.go().await;
        // The terminal is given back before anything is printed on it.
        self.screen = None;
        // If something went wrong, the worker is left to drain by itself.
        self.worker = None;
        result?;
        if self.recipe.is_some() {
            summary::print(&self.watch, store, self.out)?;
        }
        Ok(())
    }

    /// Whether nothing is done but looking.
    pub(super) fn only_looks(&self) -> bool {
        self.recipe.is_none()
    }

    /// Lets it end by itself after a while.
    pub(super) fn ending_after(mut self, span: Option<Duration>) -> Self {
        self.until = span.map(|span| self.monotonic() + span);
        self
    }

    async fn go(&mut self) -> anyhow::Result<()> {
        self.greet()?;
        self.tell_figures()?;
        self.draw()?;
        self.start_worker()?;
        if self.samples {
            let jobs = self.seed().tour().await?;
            self.say(Tone::Plain, "seeded", format!("{jobs} sample jobs; more keep coming"))?;
        }
        self.next_beat = self.monotonic() + sample_work::BEAT;
        let mut signals = std::pin::pin!(shutdown_signal());
        let mut farewell = None;
        loop {
            let woken = self.wait(signals.as_mut()).await;
            match woken {
                Woken::Tick => self.tick().await?,
                Woken::Key(key) => self.press(key).await?,
                Woken::Line(line) => self.say(Tone::Plain, "worker", line)?,
                Woken::WorkerEnded => {
                    if self.draining {
                        self.worker = None;
                        self.look().await?;
                        return Ok(());
                    }
                    self.bury().await?;
                }
                Woken::Signal => {
                    // The next one has to be waited for anew.
                    signals.set(shutdown_signal());
                    self.quit()?;
                }
            }
            if self.draining {
                let now = self.monotonic();
                let until = *farewell.get_or_insert(now + FAREWELL);
                match &mut self.worker {
                    Some(worker) if now >= until => worker.kill(),
                    Some(_) => {}
                    None => return Ok(()),
                }
            }
            self.draw()?;
        }
    }

    async fn wait(&mut self, signals: std::pin::Pin<&mut impl Future<Output = ()>>) -> Woken {
        let left = self.until.map(|until| until.saturating_sub(self.engine.seams().clock.monotonic()));
        let tick = self.engine.seams().clock.sleep(left.map_or(self.every, |left| left.min(self.every)));
        let key = async {
            match &mut self.screen {
                Some(screen) => screen.key().await,
                None => std::future::pending().await,
            }
        };
        let ended = async {
            match &mut self.worker {
                Some(worker) => worker.ended().await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            biased;
            () = signals => Woken::Signal,
            key = key => Woken::Key(key),
            _ = ended => Woken::WorkerEnded,
            Some(line) = self.lines.1.recv() => Woken::Line(line),
            () = tick => Woken::Tick,
        }
    }

    fn seed(&self) -> Seed<'a> {
        Seed { engine: self.engine, queue: self.queue }
    }

    fn monotonic(&self) -> Duration {
        self.engine.seams().clock.monotonic()
    }

    /// Whether a job runs on our worker, which is dead.
    pub(super) fn is_orphan(&self, job: &Summary) -> bool {
        let node = self.watch.nodes.iter().find(|node| Some(node.no) == job.node);
        self.worker.is_none()
            && job.status.state == State::Running
            && node.is_some_and(|node| node.pid == self.pid)
    }

    /// Says where it is and what was left from before.
    fn greet(&mut self) -> anyhow::Result<()> {
        let store = self.engine.describe();
        let durable = if store.durable { "durable" } else { "not durable" };
        let detail = format!("{} ({} {}, {durable})", store.location, store.backend, store.version);
        self.say(Tone::Plain, "store", detail)?;
        let left = usize::try_from(self.watch.unfinished()).unwrap_or(usize::MAX);
        if left > 0 && !self.only_looks() {
            let jobs = text::count(left, "job");
            self.say(Tone::Loud, "found", format!("{jobs} left from the last run; continuing with them"))?;
        }
        Ok(())
    }

    fn start_worker(&mut self) -> anyhow::Result<()> {
        let Some(recipe) = &self.recipe else { return Ok(()) };
        let worker = recipe.start(self.lines.0.clone())?;
        let pid = worker.pid().unwrap_or_default();
        self.pid = pid;
        self.worker = Some(worker);
        self.restart = None;
        self.started = self.monotonic();
        self.say(Tone::Plain, "worker", format!("started as process {pid}"))
    }

    /// The worker died without having been asked to go.
    async fn bury(&mut self) -> anyhow::Result<()> {
        let died = self.monotonic();
        let pid = self.pid;
        self.worker = None;
        // A worker that cannot even start would be started for ever.
        self.early = if died.saturating_sub(self.started) < SOON { self.early + 1 } else { 0 };
        if self.early >= 3 {
            anyhow::bail!("the worker ends as soon as it is started: {}", self.last_words());
        }
        if let Some(recovery) = Recovery::begin(self.engine, pid, died).await? {
            let jobs = text::count(recovery.jobs, "job");
            self.say(Tone::Loud, "died", format!("process {pid}, while it ran {jobs}; restarting in 1 s"))?;
            self.watch.recovery = Some(recovery);
        } else {
            self.say(Tone::Loud, "died", format!("process {pid}, while it ran no job; restarting in 1 s"))?;
        }
        self.restart = Some(died + RESTART);
        Ok(())
    }

    fn last_words(&self) -> String {
        let words = self.events.iter().rev().find(|event| event.word == "worker");
        words.map_or_else(|| "it said nothing".to_owned(), |event| event.detail.clone())
    }

    async fn tick(&mut self) -> anyhow::Result<()> {
        let now = self.monotonic();
        if self.until.is_some_and(|until| now >= until) {
            self.quit()?;
        }
        if self.restart.is_some_and(|at| now >= at) && !self.draining {
            self.start_worker()?;
        }
        if self.samples && !self.draining && now >= self.next_beat {
            self.next_beat = now + sample_work::BEAT;
            self.beat += 1;
            let wall = self.engine.seams().clock.now();
            let sown = match self.seed().trickle(self.beat).await {
                Ok(()) => self.seed().lose_patience(wall).await,
                Err(error) => Err(error),
            };
            self.tolerate(sown)?;
        }
        self.look().await
    }

    async fn look(&mut self) -> anyhow::Result<()> {
        match self.watch.look(self.engine, self.queue).await {
            Ok(events) => {
                for event in events {
                    self.record_event(event)?;
                }
                self.tell_figures()
            }
            Err(error) => self.tolerate(Err(error)),
        }
    }

    /// Without a terminal, whoever only looks is told the figures whenever they have changed.
    fn tell_figures(&mut self) -> anyhow::Result<()> {
        let counts = &self.watch.counts;
        if !self.only_looks() || self.screen.is_some() || self.figures.as_ref() == Some(counts) {
            return Ok(());
        }
        let rate = self.watch.per_second();
        let of = |state: State| (state.as_str(), counts.total(state));
        self.out.either(
            || {
                let counts: serde_json::Map<String, serde_json::Value> =
                    State::ALL.iter().map(|state| of(*state)).map(|(word, n)| (word.into(), n.into())).collect();
                let at = self.watch.now.to_string();
                serde_json::json!({ "at": at, "event": "figures", "counts": counts, "ended_per_second": rate })
            },
            || {
                let shown = State::ALL.iter().map(|state| of(*state)).filter(|(_, count)| *count > 0);
                let shown: Vec<String> = shown.map(|(word, count)| format!("{count} {word}")).collect();
                let shown = if shown.is_empty() { "no jobs".to_owned() } else { shown.join(", ") };
                format!("{} figures   {shown}; {rate:.1} jobs/s", text::clock(self.watch.now))
            },
        )?;
        self.figures = Some(counts.clone());
        Ok(())
    }

    /// A store that is busy or full for a moment is told about, and looked at again.
    fn tolerate(&mut self, result: Result<(), Error>) -> anyhow::Result<()> {
        match result {
            Ok(()) => Ok(()),
            Err(error) if error.is_retryable() => self.say(Tone::Bad, "store", error.to_string()),
            Err(error) => Err(error.into()),
        }
    }

    async fn press(&mut self, key: Key) -> anyhow::Result<()> {
        match key {
            Key::Kill | Key::Pause | Key::Enqueue if self.only_looks() => {}
            Key::Kill => {
                if let Some(worker) = &mut self.worker {
                    let pid = self.pid;
                    worker.kill();
                    self.watch.tally.kills += 1;
                    self.say(Tone::Loud, "killed", format!("process {pid} with SIGKILL"))?;
                }
            }
            Key::Pause => {
                let queues = self.engine.queues();
                let paused = self.watch.paused;
                let change =
                    if paused { queues.resume(self.queue).await } else { queues.pause(self.queue).await };
                self.tolerate(change.map(drop))?;
                let word = if paused { "resumed" } else { "paused" };
                self.say(Tone::Loud, word, format!("queue {}", self.queue))?;
                self.look().await?;
            }
            Key::Enqueue => {
                let enqueued = self.seed().batch(BATCH).await;
                self.tolerate(enqueued)?;
                self.say(Tone::Plain, "enqueued", format!("{BATCH} of demo.mail"))?;
            }
            Key::Quit => self.quit()?,
            Key::Redraw => {}
        }
        Ok(())
    }

    /// Lets the worker drain; asked a second time, kills it.
    fn quit(&mut self) -> anyhow::Result<()> {
        let again = std::mem::replace(&mut self.draining, true);
        match &mut self.worker {
            Some(worker) if again => worker.kill(),
            Some(worker) => {
                worker.drain();
                let limit = text::duration(DRAIN);
                self.say(
                    Tone::Loud,
                    "draining",
                    format!("running jobs may end within {limit}; again to stop now"),
                )?;
            }
            None => {}
        }
        Ok(())
    }

    fn say(&mut self, tone: Tone, word: &'static str, detail: impl Into<String>) -> anyhow::Result<()> {
        let at = self.engine.seams().clock.now();
        self.record_event(Event { at, tone, word, job: None, detail: detail.into() })
    }

    fn record_event(&mut self, event: Event) -> anyhow::Result<()> {
        if self.screen.is_none() {
            self.out.either(|| event.json(), || event.line())?;
        }
        self.events.push_back(event);
        if self.events.len() > KEPT {
            self.events.pop_front();
        }
        Ok(())
    }

    fn draw(&mut self) -> anyhow::Result<()> {
        if let Some(mut screen) = self.screen.take() {
            screen.draw(self)?;
            self.screen = Some(screen);
        }
        Ok(())
    }
}
