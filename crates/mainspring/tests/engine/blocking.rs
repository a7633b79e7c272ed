//! A handler that blocks its executor's thread is named.

use std::sync::mpsc::channel;
use std::sync::{Arc, Mutex};

use mainspring::{Context, Engine};
use mainspring_testkit::patience::{PATIENCE, wait};
use tracing::Level;

use crate::outage::Log;
use crate::support::{Work, work};

#[test]
fn a_handler_that_blocks_its_thread_is_named() {
    let log = Log::default();
    let format =
        tracing_subscriber::fmt().with_writer(log.clone()).with_ansi(false).with_max_level(Level::INFO);
    // The keeper has a thread of its own.
    tracing::subscriber::set_global_default(format.finish()).expect("the only one of this process");
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
    let runtime = runtime.expect("a runtime");
    runtime.block_on(async {
        let engine = Engine::open("memory:").await.expect("a store");
        let (go_on, gate) = channel::<()>();
        let gate = Arc::new(Mutex::new(gate));
        let blocks = move |_: Context, job: Work| {
            let gate = Arc::clone(&gate);
            async move {
                gate.lock().expect("the gate").recv_timeout(PATIENCE).expect("it is opened");
                mainspring::HandlerResult::Ok(job.n)
            }
        };
        let node = engine.node().handle(blocks).queue("default", 1).start().await.expect("a node");
        let job = engine.enqueue(work(7)).await.expect("enqueued");
        let mut lines: Vec<String> = Vec::new();
        wait("it is named", async || {
            lines.extend(log.take());
            lines.iter().any(|line| line.contains("blocks its executor's thread")).then_some(())
        })
        .await;
        let named: Vec<_> =
            lines.iter().filter(|line| line.contains("blocks its executor's thread")).collect();
        assert_eq!(named.len(), 1, "{lines:?}");
        let words = [format!("job={}", job.id), "kind=".into(), "for_at_least=".into(), "WARN".into()];
        assert!(words.iter().all(|word| named[0].contains(word)), "{lines:?}");
        go_on.send(()).expect("it waits");
        assert_eq!(engine.result(&job).await.expect("it succeeds"), 7);
        node.shutdown().await;
    });
}
