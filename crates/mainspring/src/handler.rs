//! Handlers and layers: their types, and the way from your function to a handler that a node calls by kind.

use std::collections::BTreeMap;
use std::future::Future;
use std::sync::Arc;

use mainspring_core::failure::Failure;
use mainspring_core::name::Kind;
use mainspring_core::seam::Pending;
use mainspring_core::{Error, Result};

pub use mainspring_core::failure::Control;
pub use mainspring_core::job::{Fault, FaultKind, Outcome};

pub use crate::context::Info;
pub use crate::layer::{Inner, Layer};

use crate::context::Context;
use crate::job::Job;

/// What a handler returned, as JSON; `None` stands for `null`.
pub type Payload = Option<Vec<u8>>;

/// Why a run has no result.
#[derive(Debug)]
pub(crate) enum Broken {
    /// The handler returned this.
    Failure(Failure),
    /// The handler was not reached, or what it returned could not be kept.
    Fault(Fault),
}

/// A handler of one kind, with its types erased.
pub(crate) trait Handler: Send + Sync {
    fn call(&self, ctx: Context, input: Vec<u8>) -> Pending<'static, Result<Payload, Broken>>;
}

struct Function<J, F> {
    function: F,
    job: std::marker::PhantomData<fn() -> J>,
}

impl<J, F, Fut, E> Handler for Function<J, F>
where
    J: Job,
    F: Fn(Context, J) -> Fut + Send + Sync + 'static,
    Fut: Future<Output = Result<J::Result, E>> + Send + 'static,
    E: Into<Failure>,
{
    fn call(&self, ctx: Context, input: Vec<u8>) -> Pending<'static, Result<Payload, Broken>> {
        let limit = ctx.output_bound();
        let job = match serde_json::from_slice::<J>(&input) {
            Ok(job) => job,
            Err(error) => {
                let message = format!("cannot decode the input as {}: {error}", std::any::type_name::<J>());
                return Box::pin(std::future::ready(Err(convert(message))));
            }
        };
        // In a place of its own: what is captured by a future and awaited in it takes its room twice.
        let run = Box::pin((self.function)(ctx, job));
        Box::pin(async move {
            let result = run.await.map_err(|error| Broken::Failure(error.into()))?;
            let result = crate::json::to_vec(&result)
                .map_err(|error| convert(format!("cannot encode the result: {error}")))?;
            if result.len() > limit {
                return Err(convert(format!(
                    "the result has {} bytes, more than the bound of {limit}",
                    result.len()
                )));
            }
            Ok(if result == b"null" { None } else { Some(result) })
        })
    }
}

pub(crate) fn convert(message: String) -> Broken {
    Broken::Fault(Fault::new(FaultKind::Convert, message))
}

/// All handlers of a node, by kind.
#[derive(Default)]
pub(crate) struct Handlers(BTreeMap<Kind, Arc<dyn Handler>>);

impl Handlers {
    /// Adds a handler under its kind and all aliases.
    pub(crate) fn add<J, F, Fut, E>(&mut self, function: F) -> Result<()>
    where
        J: Job,
        F: Fn(Context, J) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Result<J::Result, E>> + Send + 'static,
        E: Into<Failure> + 'static,
    {
        let handler: Arc<dyn Handler> = Arc::new(Function { function, job: std::marker::PhantomData });
        for name in std::iter::once(&J::KIND).chain(J::ALIASES) {
            let kind = Kind::new(name)?;
            if self.0.insert(kind, Arc::clone(&handler)).is_some() {
                return Err(Error::NodeSetup { why: format!("kind `{name}` has two handlers") });
            }
        }
        Ok(())
    }

    /// Adds the handler of one kind of a pool.
    #[cfg(all(unix, feature = "process"))]
    pub(crate) fn add_pool(&mut self, kind: Kind, handler: crate::process::PoolHandler) -> Result<()> {
        let why = format!("kind `{kind}` has two handlers");
        match self.0.insert(kind, Arc::new(handler)) {
            Some(_) => Err(Error::NodeSetup { why }),
            None => Ok(()),
        }
    }

    pub(crate) fn get(&self, kind: &Kind) -> Option<&Arc<dyn Handler>> {
        self.0.get(kind)
    }

    /// All kinds, sorted.
    pub(crate) fn kinds(&self) -> Vec<Kind> {
        self.0.keys().cloned().collect()
    }
}
