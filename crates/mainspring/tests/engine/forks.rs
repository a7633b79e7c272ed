//! Forks of a workflow that goes on meanwhile.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex};

use mainspring::{Context, JobId};

use crate::support::{Work, assert_sound, on_every_store, soon, work};

const STEPS: u64 = 60;

on_every_store! {
    /// Each fork is one that could have been made while nothing moved: it shares the first records, runs each of the others
    /// once, and comes to the same.
    async fn a_fork_can_be_made_while_its_source_records(engine: Engine) {
        let done: Arc<Mutex<BTreeMap<JobId, Vec<String>>>> = Arc::default();
        let noted = Arc::clone(&done);
        let handler = move |ctx: Context, _job: Work| {
            let noted = Arc::clone(&noted);
            async move {
                let mut sum = 0;
                for n in 0..STEPS {
                    // Every third in a scope, whose record gives way while somebody may read it.
                    let body = || async {
                        noted.lock().expect("what was done").entry(ctx.id()).or_default().push(n.to_string());
                        Ok(n)
                    };
                    sum += match n % 3 {
                        0 => ctx.branch(&n.to_string(), async |ctx| Ok(ctx.step("inner", body).await?)).await?,
                        _ => ctx.step(&n.to_string(), body).await?,
                    };
                }
                mainspring::HandlerResult::Ok(sum)
            }
        };
        let node = engine.node().handle(handler).queue("default", 16).start().await.expect("a node");
        let source = engine.enqueue(work(1)).await.expect("enqueued");
        let forks = async {
            let mut forks = Vec::new();
            for _ in 0..12 {
                forks.push(engine.jobs().fork(source.id).await.expect("forked"));
            }
            forks
        };
        let (forks, sum) = soon("it ends", async { tokio::join!(forks, engine.result(&source)) }).await;
        let sum = sum.expect("it succeeded");
        assert_eq!(sum, (0..STEPS).sum::<u64>());
        for fork in &forks {
            let result = soon("the fork ends", engine.result_of::<Work>(fork.id)).await;
            assert_eq!(result.expect("it succeeded"), sum);
            let shared: BTreeSet<&str> = fork.shared.iter().map(mainspring::name::Key::as_str).collect();
            let whole = |n: &u64| !shared.contains(n.to_string().as_str());
            // The last one shared may be that inside of a scope without a result yet.
            let inside = |n: &u64| shared.contains(format!("{n}/inner").as_str());
            let rest: Vec<String> = (0..STEPS).filter(whole).filter(|n| !inside(n)).map(|n| n.to_string()).collect();
            let ran = done.lock().expect("what was done").get(&fork.id).cloned().unwrap_or_default();
            assert_eq!(ran, rest, "shared {shared:?}");
        }
        assert!(!done.lock().expect("what was done").is_empty());
        soon("it drains", node.shutdown()).await;
        assert_sound(&engine).await;
    }
}
