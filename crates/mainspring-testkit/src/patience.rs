//! Waiting for what others do: for tests with a real database or real processes, where time is real too.
//!
//! No test depends on how fast the machine is. Whoever waits for something waits for [`PATIENCE`], which is there for what
//! hangs. Whoever has to tell a promise of real time from its breach (woken at once, or found by chance a second later)
//! reads a [`Pace`], a clock that goes as the machine goes.
//!
//! # Invariants
//! - Nothing waits for ever: [`wait`] has a deadline.

#![expect(
    clippy::disallowed_methods,
    reason = "a real database lives on the real clock and the real executor"
)]

use std::hint::black_box;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// How long anything may take before a test gives up. Nothing here takes a tenth of it on a small machine that does nothing
/// else: only what hangs costs it.
pub const PATIENCE: Duration = Duration::from_mins(3);

/// Waits for a condition, with a deadline.
pub async fn wait<T>(what: &str, mut condition: impl AsyncFnMut() -> Option<T>) -> T {
    let began = Instant::now();
    loop {
        if let Some(value) = condition().await {
            return value;
        }
        assert!(began.elapsed() < PATIENCE, "waited in vain until {what}");
        pause().await;
    }
}

/// Asks a store that may be away at the moment, until it answers.
pub async fn insist<T>(what: &str, mut call: impl AsyncFnMut() -> mainspring_core::Result<T>) -> T {
    wait(what, async || match call().await {
        Ok(answer) => Some(answer),
        Err(error) if error.is_retryable() => None,
        Err(error) => panic!("{what}: {error:?}"),
    })
    .await
}

/// Between two looks, without a thread of the executor.
async fn pause() {
    let look = || std::thread::park_timeout(Duration::from_millis(5));
    tokio::task::spawn_blocking(look).await.expect("a pause");
}

/// A clock that goes as the machine goes: a thread of its own takes turns of some work and some rest, and what has passed is
/// the number of its turns. On a quiet machine a turn takes `TURN`; on one that is slow, or busy with others, longer, and
/// then everything else takes longer too.
#[derive(Debug)]
pub struct Pace {
    turns: Arc<AtomicU32>,
    over: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
    began: Instant,
}

/// One turn.
const TURN: Duration = Duration::from_millis(10);
/// The work of a turn: not quite half of it, in an unoptimised build on a small machine of 2024.
const WORK: u32 = 400_000;

impl Pace {
    /// A clock that begins now.
    pub fn start() -> Self {
        let (turns, over) = (Arc::new(AtomicU32::new(0)), Arc::new(AtomicBool::new(false)));
        let (count, end) = (Arc::clone(&turns), Arc::clone(&over));
        let thread = std::thread::spawn(move || {
            while !end.load(Ordering::Relaxed) {
                let next = Instant::now() + TURN;
                let mut number = 1_u32;
                for _ in 0..WORK {
                    number = black_box(number.wrapping_mul(3));
                }
                count.fetch_add(1, Ordering::Relaxed);
                std::thread::sleep(next.saturating_duration_since(Instant::now()));
            }
        });
        Pace { turns, over, thread: Some(thread), began: Instant::now() }
    }

    /// How much time has passed, as the machine goes; never more than on the wall.
    pub fn elapsed(&self) -> Duration {
        (TURN * self.turns.load(Ordering::Relaxed)).min(self.began.elapsed())
    }

    /// Whether the machine has kept pace so far, about.
    pub fn is_steady(&self) -> bool {
        self.elapsed() * 3 > self.began.elapsed() * 2
    }
}

impl Drop for Pace {
    fn drop(&mut self) {
        self.over.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            // It only counts.
            drop(thread.join());
        }
    }
}
