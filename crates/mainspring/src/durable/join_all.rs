//! Several futures at once, in sight of the engine.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};

/// Runs futures beside each other and returns what they return, in their order, when all have joined.
///
/// Combinators that give each of their futures a waker of its own, as `futures::future::join_all` does from 31 on and
/// `FuturesUnordered` does always, hide from the engine that a handler waits for durable operations alone: it is then not
/// suspended, and keeps its slot. This one hides nothing. `tokio::join!`, `select!` and `futures::join!` do not, either.
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

/// Several futures on their way. Await it; see [`join_all`].
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
