//! Limits: how many jobs run at once and how fast they start, over all nodes.
//!
//! ```
//! use mainspring::{Context, Engine, Job};
//! use serde::{Deserialize, Serialize};
//!
//! /// At most three renders of a tenant run at once, on however many nodes.
//! #[derive(Serialize, Deserialize, Job)]
//! #[job(limit(tenant, key = self.tenant, max = 3))]
//! struct Render { tenant: String, scene: u32 }
//!
//! async fn render(_ctx: Context, job: Render) -> mainspring::HandlerResult<()> {
//!     println!("{} renders scene {}", job.tenant, job.scene);
//!     Ok(())
//! }
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), mainspring::Error> {
//! let engine = Engine::open("memory:").await?;
//! let node = engine.node().handle(render).queue("default", 20).start().await?;
//! engine.enqueue(Render { tenant: "acme".into(), scene: 1 }).await?;
//!
//! // An operator gives one tenant more. No deploy takes that back.
//! engine.limits().by("ann").set_key("tenant", "acme").max(10).await?;
//! # node.shutdown().await;
//! # Ok(())
//! # }
//! ```
//!
//! A limit counts claims. A job over its limit waits in the store and costs nothing meanwhile.

mod new;
pub(crate) mod seed;
mod verbs;

pub use mainspring_core::limit::{
    Definition, KeyHolder, KeyUse, Limit, LimitKey, LimitUse, Obstacle, Rate, Seed, Total, TotalUse,
};
pub use mainspring_core::name::LimitName;

pub use new::NewLimit;
pub use verbs::{Keys, Limits, Pausing, SetKey, SetLimit};
