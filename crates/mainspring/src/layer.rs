//! Layers and hooks: what runs around every handler of a node.

use std::future::Future;
use std::sync::Arc;

use mainspring_core::failure::Failure;
use mainspring_core::job::Outcome;
use mainspring_core::seam::Pending;

use crate::context::Info;
use crate::handler::Payload;

/// The rest of a run: the handler, with the layers inside this one. It does nothing until you await it.
pub type Inner = Pending<'static, Result<Payload, Failure>>;

/// Wraps every handler of a node, for tracing, metrics, a transaction or a circuit breaker.
///
/// A closure will do:
///
/// ```
/// # use mainspring::handler::{Info, Inner};
/// # use std::sync::Arc;
/// let timing = |job: Arc<Info>, inner: Inner| async move {
///     println!("{} begins", job.kind);
///     let result = inner.await;
///     println!("{} ends", job.kind);
///     result
/// };
/// # fn is_layer(_: impl mainspring::handler::Layer) {}
/// # is_layer(timing);
/// ```
pub trait Layer: Send + Sync + 'static {
    /// Wraps a run. Dropped when the run is stopped, like the handler itself.
    fn wrap(&self, job: Arc<Info>, inner: Inner) -> Inner;
}

impl<F, Fut> Layer for F
where
    F: Fn(Arc<Info>, Inner) -> Fut + Send + Sync + 'static,
    Fut: Future<Output = Result<Payload, Failure>> + Send + 'static,
{
    fn wrap(&self, job: Arc<Info>, inner: Inner) -> Inner {
        Box::pin(self(job, inner))
    }
}

type OnStart = Box<dyn Fn(&Info) + Send + Sync>;
type OnOutcome = Box<dyn Fn(&Info, &Outcome) + Send + Sync>;

/// What a node calls when jobs start and when their outcomes are stored.
#[derive(Default)]
pub(crate) struct Hooks {
    pub(crate) start: Vec<OnStart>,
    pub(crate) outcome: Vec<OnOutcome>,
}

impl Hooks {
    pub(crate) fn started(&self, info: &Info) {
        for hook in &self.start {
            guarded(info, || hook(info));
        }
    }

    pub(crate) fn stored(&self, info: &Info, outcome: &Outcome) {
        for hook in &self.outcome {
            guarded(info, || hook(info, outcome));
        }
    }
}

/// A hook that panics harms neither the job nor the node.
fn guarded(info: &Info, hook: impl FnOnce()) {
    if std::panic::catch_unwind(std::panic::AssertUnwindSafe(hook)).is_err() {
        tracing::error!(job_id = %info.id, kind = %info.kind, "hook panicked");
    }
}
