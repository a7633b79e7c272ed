//! Tenants: customers share eight units of a GPU. Each may use two at a time, and one of them pays for more.
//!
//! A render takes units of two limits: of the GPU, which all share, and of its tenant. It takes all of them together or waits.

#![expect(clippy::print_stdout, reason = "an example shows what it does")]

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use mainspring::{Context, Engine, Job};
use serde::{Deserialize, Serialize};

/// One scene of a tenant. Scenes in 4k take two units of the GPU: see the enqueue.
#[derive(Serialize, Deserialize, Job)]
#[job(kind = "render", limit(gpu, max = 8), limit(tenant, key = self.tenant, max = 2))]
struct Render {
    tenant: String,
}

/// How many of each tenant render now, and the most that did.
#[derive(Clone, Default)]
struct Screen(Arc<Mutex<BTreeMap<String, (usize, usize)>>>);

impl Screen {
    fn change(&self, tenant: &str, change: impl FnOnce(&mut (usize, usize))) {
        change(self.0.lock().unwrap_or_else(PoisonError::into_inner).entry(tenant.to_owned()).or_default());
    }

    fn most(&self, tenant: &str) -> usize {
        let screen = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        screen.get(tenant).map_or(0, |(_, most)| *most)
    }
}

#[expect(clippy::disallowed_methods, reason = "an example waits as an application does")]
async fn render(ctx: Context, job: Render) -> mainspring::HandlerResult<()> {
    let screen = ctx.state::<Screen>()?;
    screen.change(&job.tenant, |(now, most)| {
        *now += 1;
        *most = (*most).max(*now);
    });
    tokio::time::sleep(Duration::from_millis(20)).await;
    screen.change(&job.tenant, |(now, _)| *now -= 1);
    Ok(())
}

#[tokio::main]
async fn main() -> Result<(), mainspring::Error> {
    let engine = Engine::open("sqlite:tenants.db").await?;
    let screen = Screen::default();
    let node = engine.node().state(screen.clone()).handle(render).queue("default", 50).start().await?;

    // Acme pays for four. `mainspring limit set tenant acme --max 4` does the same, and no deploy takes it back.
    engine.limits().by("sales").set_key("tenant", "acme").max(4).await?;

    let mut jobs = Vec::new();
    for scene in 0..15 {
        for tenant in ["acme", "zoo", "pop"] {
            let render = engine.enqueue(Render { tenant: tenant.into() });
            let is_4k = scene % 5 == 0;
            jobs.push(if is_4k { render.limit("gpu").units(2).await? } else { render.await? });
        }
    }
    for job in &jobs {
        engine.result(job).await?;
    }
    for tenant in ["acme", "zoo", "pop"] {
        println!("{tenant}: at most {} at a time", screen.most(tenant));
    }
    let gpu = engine.limits().key("gpu", "").await?;
    println!("units of the GPU in use at the end: {}", gpu.key.in_use);

    node.shutdown().await;
    engine.close().await;
    Ok(())
}
