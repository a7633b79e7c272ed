//! Branches: a scope of its own for several steps.

use std::future::Future;
use std::sync::Arc;

use mainspring_core::Result;
use mainspring_core::failure::Failure;
use mainspring_core::seam::Pending;
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::dropped::OpFuture;
use super::operation::{Op, keyed, lazy};
use super::scope_end;
use crate::context::Context;

/// A branch. Nothing happens until you await it; see [`Context::branch`].
#[must_use = "nothing is done until this is awaited"]
pub struct Branch<'c, T> {
    parts: Option<Parts<'c, T>>,
    run: Option<OpFuture<'c, Result<T, Failure>>>,
}

struct Parts<'c, T> {
    op: Op<'c>,
    body: Box<dyn FnOnce(Context) -> Pending<'c, Result<T, Failure>> + Send + 'c>,
}

keyed!(Branch<'c; T>, op);
lazy!(Branch<'c; T> => Result<T, Failure>, where { T: Serialize + DeserializeOwned + Send + 'c });

impl<T: Serialize + DeserializeOwned> Parts<'_, T> {
    async fn run(self) -> Result<T, Failure> {
        let ctx = self.op.ctx;
        // Held until the branch ends: two of one name beside each other would share their records.
        let (op_key, written) = self.op.enter().await?;
        if let Some(written) = written {
            return Ok(op_key.session().replay(&op_key, written).await?);
        }
        let inner = ctx.within(Arc::from(op_key.key().as_str()));
        let value = (self.body)(inner).await?;
        Ok(scope_end::end(&op_key, value)?)
    }
}

impl Context {
    /// Runs several operations in a scope of their own, so branches can run beside each other under `join!` without a
    /// collision of names.
    ///
    /// **Inside `body`, use the context that it gets, never the outer one.** When the branch ends, its result is
    /// recorded in place of the records inside. An error is not recorded.
    ///
    /// ```
    /// # use mainspring::{Context, Job};
    /// # #[derive(serde::Serialize, serde::Deserialize, Job)] struct Order { id: u64 }
    /// # async fn pack() -> mainspring::HandlerResult<u32> { Ok(1) }
    /// async fn order(ctx: Context, _job: Order) -> mainspring::HandlerResult<()> {
    ///     let goods = ctx.branch("goods", async |ctx| {
    ///         let parcel = ctx.step("pack", pack).await?;
    ///         ctx.step("send", async || Ok(parcel)).await?;
    ///         Ok(parcel)
    ///     });
    ///     let bill = ctx.branch("bill", async |ctx| Ok(ctx.step("send", async || Ok(7)).await?));
    ///     let (goods, bill) = tokio::join!(goods, bill);
    ///     # let _ = (goods?, bill?);
    ///     Ok(())
    /// }
    /// ```
    ///
    /// # Errors
    /// The error of `body`; [`DuplicateKey`](crate::Error::DuplicateKey), [`Nested`](crate::Error::Nested) and
    /// [`Detached`](crate::Error::Detached).
    pub fn branch<'c, T, F, Fut>(&'c self, name: &str, body: F) -> Branch<'c, T>
    where
        F: FnOnce(Context) -> Fut + Send + 'c,
        Fut: Future<Output = Result<T, Failure>> + Send + 'c,
    {
        let parts = Parts { op: Op::new(self, name), body: Box::new(|ctx| Box::pin(body(ctx))) };
        Branch { parts: Some(parts), run: None }
    }
}
