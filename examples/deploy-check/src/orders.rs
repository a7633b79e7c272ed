//! The application: what runs in production, and what is checked.

use std::time::Duration;

use mainspring::{Context, Job, NodeBuilder};
use serde::{Deserialize, Serialize};

#[derive(Serialize, Deserialize, Job)]
#[job(kind = "order", signals(paid = u64))]
struct Order {
    card: String,
}

/// An edit since the first release: `reserve` was called `hold`.
async fn order(ctx: Context, job: Order) -> mainspring::HandlerResult<()> {
    let place: String =
        ctx.step("reserve", async || Ok(format!("for {}", job.card))).renamed_from("hold").await?;
    let paid = ctx.signal(Order::PAID).timeout(Duration::from_hours(72)).await?;
    if paid.is_some() {
        ctx.step("ship", async || Ok(place.clone())).await?;
    } else {
        ctx.step("release", async || Ok(())).await?;
    }
    Ok(())
}

/// Sets a node up, for production and for the check.
pub(crate) fn node(node: NodeBuilder) -> NodeBuilder {
    node.handle(order).queue("default", 10)
}
