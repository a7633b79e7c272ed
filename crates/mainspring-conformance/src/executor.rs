//! The smallest executor there is: one future, one thread.

use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};
use std::thread::Thread;

/// Runs a future to its end on this thread, which sleeps while the future waits.
pub fn block_on<T>(future: impl Future<Output = T>) -> T {
    let waker = Waker::from(Arc::new(Unpark(std::thread::current())));
    let mut context = Context::from_waker(&waker);
    let mut future = pin!(future);
    loop {
        match future.as_mut().poll(&mut context) {
            Poll::Ready(value) => return value,
            Poll::Pending => std::thread::park(),
        }
    }
}

struct Unpark(Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

/// Runs all of these at once, each on a thread of its own that starts when all are there. Answers come in order.
pub fn race<T: Send>(racers: Vec<Box<dyn FnOnce() -> T + Send + '_>>) -> Vec<T> {
    let start = std::sync::Barrier::new(racers.len());
    std::thread::scope(|scope| {
        let start = &start;
        let running: Vec<_> = racers
            .into_iter()
            .map(|racer| {
                scope.spawn(move || {
                    start.wait();
                    racer()
                })
            })
            .collect();
        running.into_iter().map(|thread| thread.join().expect("a racer panicked")).collect()
    })
}
