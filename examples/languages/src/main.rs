//! Languages: jobs whose handlers are written in Python and in shell.
//!
//! Each pool keeps warm child processes. They read jobs as lines of JSON and answer the same way; see `worker.py` and `worker.sh`.

#![expect(clippy::print_stdout, reason = "an example shows what it does")]

use mainspring::Engine;
use mainspring::process::{self, Pool};
use serde_json::json;

#[tokio::main]
async fn main() -> Result<(), mainspring::Error> {
    // First: this program is also the guard that ends the children with it.
    process::guard();

    let here = env!("CARGO_MANIFEST_DIR");
    let python = Pool::new(["python3", "worker.py"]).cwd(here).kind("word-count").kind("flaky").children(2);
    let shell = Pool::new(["sh", "worker.sh"]).cwd(here).kind("greet").children(1);

    let engine = Engine::open("sqlite:languages.db").await?;
    let node = engine.node().pool(python).pool(shell).queue("default", 3).start().await?;

    let count = engine.enqueue_json("word-count", &json!({ "text": "to be or not to be" })).await?;
    let greet = engine.enqueue_json("greet", &json!(null)).await?;
    println!("{}", engine.result_json(count.id).await?);
    println!("{}", engine.result_json(greet.id).await?);

    node.shutdown().await; // the children end, too
    engine.close().await;
    Ok(())
}
