//! What a test asks of limits.

use std::fmt::Write;

use super::{Result, TestEngine};

impl TestEngine {
    /// Asserts how many units of a limit key are in use. The empty key is that of jobs that name none.
    ///
    /// ```
    /// # use mainspring::testing::TestEngine;
    /// # use mainspring::{Context, Job};
    /// # use std::time::Duration;
    /// #[derive(serde::Serialize, serde::Deserialize, Job)]
    /// #[job(limit(gpu, key = self.tenant, units = 2, max = 4))]
    /// struct Render { tenant: String }
    ///
    /// async fn render(ctx: Context, _job: Render) -> mainspring::HandlerResult<()> {
    ///     ctx.sleep("frames", Duration::from_secs(60)).keep_limits_for(Duration::from_secs(60)).await?;
    ///     Ok(())
    /// }
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let test = TestEngine::new();
    /// test.node(|node| node.handle(render).queue("default", 10)).await?;
    /// test.enqueue_many(["acme", "acme", "acme"].map(|tenant| Render { tenant: tenant.into() })).await?;
    /// test.advance(Duration::from_secs(1)).await?;
    /// test.assert_in_use("gpu", "acme", 4).await;
    /// test.assert_in_use("gpu", "zoo", 0).await;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Panics
    /// If it is another number; lists the jobs that hold some. Also if there is no such limit.
    pub async fn assert_in_use(&self, limit: &str, key: &str, units: u32) {
        let uses = match self.limits().key(limit, key).await {
            Ok(uses) => uses,
            Err(error) => panic!("limit `{limit}`: {error}"),
        };
        let mut held = String::new();
        for holder in &uses.holders {
            let keeps = if holder.keeps { ", which it keeps while it waits" } else { "" };
            // Writing to a text does not fail.
            let _written = write!(held, "\n  {} holds {}{keeps}", holder.job, holder.units);
        }
        assert_eq!(
            uses.key.in_use, units,
            "units of limit `{limit}` in use under key `{key}`; {} jobs wait{held}",
            uses.waiting
        );
    }

    /// Moves the clock to the time at which the rate of a limit key admits the next job of one unit, and runs everything that
    /// becomes due on the way. If it admits one now, the clock stays.
    ///
    /// # Errors
    /// As [`advance`](Self::advance), and [`mainspring::Error::UnknownLimit`](crate::Error::UnknownLimit).
    pub async fn advance_to_token(&self, limit: &str, key: &str) -> Result<()> {
        let (limit, uses) = (self.limits().get(limit).await?, self.limits().key(limit, key).await?);
        let now = self.now();
        let wait = limit.definition.rate.map_or(now, |rate| rate.due(uses.key.next_free, 1, now)).since(now);
        if wait.is_zero() { self.run_until_idle().await } else { self.advance(wait).await }
    }
}
