//! Several futures at once, in sight of the engine.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};

/// Runs futures beside each other, and returns their results in order when all have ended.
///
/// Use it for durable operations instead of `futures::future::join_all` with more than 30 futures, and instead of
/// `FuturesUnordered`. Those use wakers of their own, so the engine cannot see that the handler waits for durable
/// operations only: it cannot suspend the handler, which keeps its slot. `tokio::join!`, `select!` and
/// `futures::join!` are fine.
///
/// ```
/// # use mainspring::{Context, Job};
/// # #[derive(serde::Serialize, serde::Deserialize, Job)] struct Order { lines: Vec<u32> }
/// async fn order(ctx: Context, job: Order) -> mainspring::HandlerResult<()> {
///     let packed = job.lines.iter().map(|line| ctx.step("pack", async || Ok(*line)).key(line));
///     for line in mainspring::join_all(packed).await {
///         line?;
///     }
///     Ok(())
/// }
/// ```
pub fn join_all<I>(futures: I) -> JoinAll<I::Item>
where
    I: IntoIterator,
    I::Item: Future,
{
    JoinAll(futures.into_iter().map(|future| Joined::Open(Box::pin(future))).collect())
}

/// Several futures. Await it; see [`join_all`].
#[must_use = "nothing is done until this is awaited"]
pub struct JoinAll<F: Future>(Vec<Joined<F>>);

enum Joined<F: Future> {
    Open(Pin<Box<F>>),
    Done(Option<F::Output>),
}

// Nothing is pinned in it: the futures are where their boxes are.
impl<F: Future> Unpin for JoinAll<F> {}

impl<F: Future> Future for JoinAll<F> {
    type Output = Vec<F::Output>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let mut open = false;
        for joined in &mut self.0 {
            if let Joined::Open(future) = joined {
                match future.as_mut().poll(context) {
                    Poll::Ready(output) => *joined = Joined::Done(Some(output)),
                    Poll::Pending => open = true,
                }
            }
        }
        if open {
            return Poll::Pending;
        }
        let outputs = self.0.iter_mut().filter_map(|joined| match joined {
            Joined::Done(output) => output.take(),
            Joined::Open(_) => None,
        });
        Poll::Ready(outputs.collect())
    }
}
