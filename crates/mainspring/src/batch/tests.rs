//! A batcher under callers that wait, leave early and fail.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Wake, Waker};

use tokio::runtime::Handle;
use tokio::sync::Semaphore;

use super::*;

impl Weight for usize {
    fn bytes(&self) -> usize {
        1
    }
}

/// A value whose flush fails.
const FAILS: usize = usize::MAX;

/// Doubles every number once it is let through; counts flushes.
struct Rig {
    gate: Arc<Semaphore>,
    flushes: Arc<AtomicUsize>,
    batcher: Arc<Batcher<usize, usize>>,
}

fn rig(open: bool) -> Rig {
    let gate = Arc::new(Semaphore::new(if open { 1_000 } else { 0 }));
    let flushes = Arc::new(AtomicUsize::new(0));
    let (passing, counting) = (Arc::clone(&gate), Arc::clone(&flushes));
    let flush = move |values: Vec<usize>| -> Pending<'static, Result<Vec<usize>>> {
        let (gate, flushes) = (Arc::clone(&passing), Arc::clone(&counting));
        Box::pin(async move {
            flushes.fetch_add(1, Ordering::Relaxed);
            gate.acquire().await.expect("an open gate").forget();
            if values.contains(&FAILS) {
                return Err(Error::DiskFull);
            }
            Ok(values.iter().map(|value| value * 2).collect())
        })
    };
    let spawn = crate::seams::system(Handle::current()).spawn;
    Rig { gate, flushes, batcher: Arc::new(Batcher::new(spawn, flush)) }
}

/// Polls a call until its flush is on the way: all others get their turn before it is.
async fn begin(mut send: Pin<&mut impl Future>) {
    for _ in 0..2 {
        assert!(poll_fn(|cx| Poll::Ready(send.as_mut().poll(cx).is_pending())).await);
    }
}

#[tokio::test]
async fn callers_that_come_together_are_flushed_together() {
    let rig = rig(true);
    let spawn = crate::seams::system(Handle::current()).spawn;
    let done = Arc::new(Semaphore::new(0));
    for value in 0..100 {
        let (batcher, done) = (Arc::clone(&rig.batcher), Arc::clone(&done));
        spawn.spawn(Box::pin(async move {
            for _ in 0..10 {
                assert_eq!(batcher.send(value).await.expect("an answer"), value * 2);
            }
            done.add_permits(1);
        }));
    }
    done.acquire_many(100).await.expect("all are done").forget();
    let flushes = rig.flushes.load(Ordering::Relaxed);
    assert!(flushes <= 12, "{flushes} flushes for ten rounds of a hundred callers");
}

/// Wakes a thread.
struct Unpark(std::thread::Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

/// Blocks this thread until a future is ready, as executors do that know nothing of tokio.
fn block_on<F: Future>(future: F) -> F::Output {
    let waker = Waker::from(Arc::new(Unpark(std::thread::current())));
    let mut future = std::pin::pin!(future);
    loop {
        if let Poll::Ready(output) = future.as_mut().poll(&mut Context::from_waker(&waker)) {
            return output;
        }
        std::thread::park();
    }
}

#[tokio::test]
async fn who_blocks_a_thread_of_the_executor_is_answered() {
    let rig = rig(true);
    assert_eq!(block_on(rig.batcher.send(1)).expect("an answer"), 2);
    assert_eq!(block_on(rig.batcher.send(2)).expect("an answer"), 4);
}

#[tokio::test]
async fn what_gathers_behind_a_flush_is_flushed_together() {
    let rig = rig(false);
    let mut sends: Vec<_> = (0..100).map(|value| Box::pin(rig.batcher.send(value))).collect();
    // The first is being flushed, all others wait behind it.
    begin(sends[0].as_mut()).await;
    for send in &mut sends[1..] {
        assert!(poll_fn(|cx| Poll::Ready(send.as_mut().poll(cx).is_pending())).await);
    }
    rig.gate.add_permits(1_000);
    for (value, send) in sends.into_iter().enumerate() {
        assert_eq!(send.await.expect("an answer"), value * 2);
    }
    assert_eq!(rig.flushes.load(Ordering::Relaxed), 2, "one to begin with, and the rest together");
}

#[tokio::test]
async fn a_caller_that_leaves_in_the_middle_holds_nobody_up() {
    let rig = rig(false);
    let (leader, follower) = (Arc::clone(&rig.batcher), Arc::clone(&rig.batcher));
    {
        let mut leading = std::pin::pin!(leader.send(1));
        begin(leading.as_mut()).await;
    }
    let mut following = std::pin::pin!(follower.send(2));
    assert!(poll_fn(|cx| Poll::Ready(following.as_mut().poll(cx).is_pending())).await);
    rig.gate.add_permits(1_000);
    assert_eq!(following.await.expect("an answer"), 4);
    assert_eq!(rig.batcher.send(3).await.expect("an answer"), 6);
    assert_eq!(rig.flushes.load(Ordering::Relaxed), 3, "what was handed in is flushed, wanted or not");
}

#[tokio::test]
async fn a_caller_that_is_not_polled_holds_nobody_up() {
    let rig = rig(false);
    let mut leading = std::pin::pin!(rig.batcher.send(1));
    begin(leading.as_mut()).await;
    rig.gate.add_permits(1_000);
    // The same task waits for this one first, as in the body of a loop over futures.
    assert_eq!(rig.batcher.send(2).await.expect("an answer"), 4);
    assert_eq!(leading.await.expect("an answer"), 2);
    assert_eq!(rig.batcher.send(3).await.expect("an answer"), 6);
}

#[test]
fn a_flush_that_is_dropped_with_its_executor_leaves_the_batcher_idle() {
    let runtime = || tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    let first = runtime();
    let rig = first.block_on(async { rig(false) });
    let second = runtime();
    second.block_on(async {
        let mut leading = std::pin::pin!(rig.batcher.send(1));
        let mut following = std::pin::pin!(rig.batcher.send(2));
        begin(leading.as_mut()).await;
        assert!(poll_fn(|cx| Poll::Ready(following.as_mut().poll(cx).is_pending())).await);
        first.shutdown_background();
        assert!(matches!(leading.await, Err(Error::OutcomeUnknown { .. })), "its flush was on the way");
        assert!(matches!(following.await, Err(Error::Closed)), "nothing was done for it");
        rig.gate.add_permits(1_000);
        assert_eq!(rig.batcher.send(3).await.expect("an answer"), 6);
    });
}

#[tokio::test]
async fn a_failed_flush_is_told_to_everybody_in_it_and_to_nobody_else() {
    let rig = rig(true);
    assert!(matches!(rig.batcher.send(FAILS).await, Err(Error::DiskFull)));
    assert_eq!(rig.batcher.send(1).await.expect("an answer"), 2);
}

#[test]
fn a_batch_is_bounded_in_number_and_bytes() {
    struct Heavy;
    impl Weight for Heavy {
        fn bytes(&self) -> usize {
            bounds::BATCH_BYTES / 2 + 1
        }
    }
    let mut light: VecDeque<QueuedValue<usize, ()>> =
        (0..=bounds::BATCH).map(|value| QueuedValue { value, answer: oneshot::channel().0 }).collect();
    assert_eq!(take(&mut light).0.len(), bounds::BATCH);
    assert_eq!(take(&mut light).0.len(), 1);
    let mut heavy: VecDeque<QueuedValue<Heavy, ()>> =
        (0..2).map(|_| QueuedValue { value: Heavy, answer: oneshot::channel().0 }).collect();
    assert_eq!(take(&mut heavy).0.len(), 1);
    assert_eq!(heavy.len(), 1);
}

#[test]
fn a_flush_grows_again_whatever_a_commit_takes() {
    let (quick, commit, slow) =
        (Duration::from_millis(10), Duration::from_millis(1_500), Duration::from_secs(3));
    for (took, flushes) in [(quick, 10), (commit, 40)] {
        let size = FlushSize::default();
        size.failed(1);
        assert_eq!(size.get(), 1);
        for _ in 0..flushes {
            size.stored(took);
        }
        assert_eq!(size.get(), bounds::BATCH, "after commits of {took:?}");
    }
    let size = FlushSize::default();
    size.failed(100);
    size.stored(slow);
    assert_eq!(size.get(), 50, "more might not come through in the time of a call");
    size.stored(commit);
    assert_eq!(size.get(), 63);
}

/// A value of a order_key.
struct Ordered(i64, u32);

impl Weight for Ordered {
    fn bytes(&self) -> usize {
        1
    }

    fn order_key(&self) -> i64 {
        self.0
    }
}

#[test]
fn what_is_handed_back_waits_behind_others_and_keeps_the_order_of_its_lane() {
    let queued = |value| QueuedValue { value, answer: oneshot::channel::<Result<()>>().0 };
    let mut waiting: VecDeque<_> =
        [(2, 1), (1, 2), (3, 1), (2, 2)].map(|(order_key, n)| queued(Ordered(order_key, n))).into();
    put_back(&mut waiting, vec![queued(Ordered(1, 1))]);
    let order: Vec<_> = waiting.iter().map(|QueuedValue { value, .. }| (value.0, value.1)).collect();
    assert_eq!(order, [(2, 1), (3, 1), (2, 2), (1, 1), (1, 2)]);
}
