//! What a node says of a store that is lost and comes back.

use std::io::Write;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use mainspring::testing::TestEngine;
use mainspring::{Context, State};
use mainspring_core::memory::Memory;
use tracing::Level;
use tracing::subscriber::DefaultGuard;
use tracing_subscriber::fmt::MakeWriter;

use crate::backlog::{heavy, weighing};
use crate::faulty_store::Fault::Refuse;
use crate::faulty_store::Faulty;
use crate::support::{Gate, Work, total, work};

const SECOND: Duration = Duration::from_secs(1);

/// What was logged. Clones are the same log.
#[derive(Clone, Default)]
pub(crate) struct Log(Arc<Mutex<Vec<u8>>>);

impl Log {
    /// What everything on this thread logs from now on, down to a level.
    pub(crate) fn listen(level: Level) -> (Log, DefaultGuard) {
        let log = Log::default();
        let format = tracing_subscriber::fmt().with_writer(log.clone()).with_ansi(false).without_time();
        let guard = tracing::subscriber::set_default(format.with_max_level(level).finish());
        (log, guard)
    }

    /// Its lines so far, which it forgets.
    pub(crate) fn take(&self) -> Vec<String> {
        let bytes = std::mem::take(&mut *self.0.lock().expect("the log"));
        String::from_utf8(bytes).expect("text").lines().map(|line| line.trim().to_owned()).collect()
    }
}

impl Write for Log {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().expect("the log").write(bytes)
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

impl<'a> MakeWriter<'a> for Log {
    type Writer = Log;

    fn make_writer(&'a self) -> Log {
        self.clone()
    }
}

/// A test, its store, and what everything on this thread logs from now on.
fn rig() -> (TestEngine, Faulty, Log, DefaultGuard) {
    let (log, guard) = Log::listen(Level::INFO);
    let mut store = None;
    let test = TestEngine::on(0, |seams| {
        let faulty = Faulty::new(Memory::new(Arc::clone(&seams.clock)));
        store = Some(faulty.clone());
        Arc::new(faulty)
    });
    (test, store.expect("the store was made"), log, guard)
}

#[tokio::test]
async fn an_outage_is_told_once_and_so_is_its_end() {
    let (test, store, log, _guard) = rig();
    let gate = Gate::default();
    let passing = gate.clone();
    let handler = move |_ctx: Context, job: Work| {
        let gate = passing.clone();
        async move {
            gate.pass().await;
            mainspring::HandlerResult::Ok(job.n)
        }
    };
    test.node(|node| node.handle(handler).queue("default", 1)).await.expect("a node");
    test.enqueue_many((0..5).map(work)).await.expect("enqueued");
    test.advance(SECOND).await.expect("time passes");
    assert_eq!(log.take(), Vec::<String>::new());

    store.outage(true);
    // An outcome waits for the store too, and every other part has its turn.
    gate.open();
    test.advance(Duration::from_mins(5)).await.expect("time passes");
    let said = log.take();
    assert_eq!(said.len(), 1, "{said:#?}");
    assert!(said[0].starts_with("WARN mainspring::outage: the store does not answer"), "{said:?}");
    assert!(said[0].contains("on demand"), "with its cause: {said:?}");

    store.outage(false);
    test.advance(Duration::from_mins(1)).await.expect("time passes");
    let said = log.take();
    assert_eq!(said.len(), 1, "{said:#?}");
    assert!(said[0].starts_with("INFO mainspring::outage: the store answers again after="), "{said:?}");
    assert_eq!(total(&test, State::Succeeded).await, 5);
}

#[tokio::test]
async fn an_outage_of_one_part_is_over_when_that_part_is_answered() {
    let (test, store, log, _guard) = rig();
    let handler = async |_ctx: Context, job: Work| mainspring::HandlerResult::Ok(job.n);
    test.node(|node| node.handle(handler).queue("default", 1)).await.expect("a node");
    test.advance(SECOND).await.expect("time passes");
    store.plan("finish", &[Refuse; 4]);
    test.enqueue(work(1)).await.expect("enqueued");
    test.advance(20 * SECOND).await.expect("time passes");
    let said = log.take();
    assert_eq!(said.len(), 2, "{said:#?}");
    assert!(said[0].contains("part=\"finish\""), "{said:?}");
    // 50 + 100 + 200 + 400 ms.
    assert!(said[1].contains("answers again after=\"0.8s\""), "{said:?}");
}

#[tokio::test]
async fn an_outage_that_nobody_looks_at_any_more_is_over() {
    let (test, store, log, _guard) = rig();
    test.node(|node| weighing(node).queue("default", 1)).await.expect("a node");
    store.refuse("inputs", true);
    for _ in 0..2 {
        let job = test.enqueue(heavy(100_000)).await.expect("enqueued");
        test.advance(SECOND).await.expect("time passes");
        let told = log.take();
        assert!(matches!(&told[..], [line] if line.contains("the store does not answer")), "{told:?}");
        test.jobs().cancel(job.id).await.expect("cancelled");
        test.advance(30 * SECOND).await.expect("time passes");
        let told = log.take();
        assert!(matches!(&told[..], [line] if line.contains("the store answers again")), "{told:?}");
    }
}
