//! The example of the design, compiled and run.

use mainspring::{Context, Engine, Job, discard};
use serde::{Deserialize, Serialize};

#[derive(Serialize, Deserialize, Job)]
#[job(kind = "welcome", result = String)]
struct Welcome {
    user: u64,
}

async fn welcome(_ctx: Context, job: Welcome) -> mainspring::HandlerResult<String> {
    if job.user == 0 {
        return Err(discard("no such user").into());
    }
    Ok(format!("welcome, user {}", job.user))
}

#[tokio::test]
async fn the_example_of_the_readme_runs() -> Result<(), Box<dyn std::error::Error>> {
    let engine = Engine::open("memory:").await?;
    let node = engine.node().handle(welcome).queue("default", 10).start().await?;
    let job = engine.enqueue(Welcome { user: 7 }).priority(1).await?;
    let text: String = engine.result(&job).await?;
    assert_eq!(text, "welcome, user 7");
    let nobody = engine.enqueue(Welcome { user: 0 }).await?;
    let error = engine.result(&nobody).await.expect_err("it is discarded");
    assert_eq!(error.to_string(), format!("job {} failed (discarded): no such user", nobody.id));
    node.shutdown().await;
    Ok(())
}
