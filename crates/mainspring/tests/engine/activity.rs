//! What a node claimed, and why it claims nothing, can be seen: in the library, by `why`, in the log and in metrics.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use mainspring::admin::{LastClaim, QueueActivity, Why};
use mainspring::{Context, Engine, NodeBuilder};
use metrics::{
    Counter, CounterFn, Gauge, GaugeFn, Histogram, Key, KeyName, Metadata, Recorder, SharedString, Unit,
};
use tracing::Level;

use crate::faults::faulty;
use crate::outage::Log;
use crate::support::{Gate, Work, work};

const SECOND: Duration = Duration::from_secs(1);
/// A third of the lease: a node renews it that often, and looks for jobs.
const RENEWAL: Duration = Duration::from_secs(5);

fn waiting_at(node: NodeBuilder, gate: &Gate) -> NodeBuilder {
    let gate = gate.clone();
    let handler = move |_ctx: Context, job: Work| {
        let gate = gate.clone();
        async move {
            gate.pass().await;
            mainspring::HandlerResult::Ok(job.n)
        }
    };
    node.handle(handler).queue("default", 2).lease(3 * RENEWAL)
}

fn only(queues: &[QueueActivity]) -> &QueueActivity {
    let [queue] = queues else { panic!("one queue: {queues:?}") };
    queue
}

#[tokio::test]
async fn a_node_shows_what_it_does_for_its_queues() {
    let (test, store) = faulty(0);
    let gate = Gate::default();
    let node = test.node(|node| waiting_at(node, &gate)).await.expect("a node");
    let asked_at = test.seams().clock.now();
    test.enqueue_many((0..5).map(work)).await.expect("enqueued");
    test.advance(SECOND).await.expect("time passes");
    let queues = node.queues();
    let queue = only(&queues);
    assert_eq!((queue.queue.as_str(), queue.slots, queue.running, queue.waiting), ("default", 2, 2, 0));
    assert_eq!(queue.last_claim, Some(LastClaim { asked: 2, got: 2, at: asked_at }));
    assert!(queue.next_look <= RENEWAL, "{queue:?}");

    store.refuse("finish", true);
    gate.open();
    test.advance(SECOND).await.expect("time passes");
    let queues = node.queues();
    let queue = only(&queues);
    assert!(queue.unstored >= 2, "{queue:?}");
    store.refuse("finish", false);
    test.advance(Duration::from_mins(1)).await.expect("time passes");
    let queues = node.queues();
    let queue = only(&queues);
    assert_eq!((queue.running, queue.waiting, queue.unstored, queue.asking), (0, 0, 0, 0));
    assert_eq!(queue.last_claim.map(|claim| claim.got), Some(0), "nothing was left");
}

#[tokio::test]
async fn why_shows_the_last_claims_now_here_and_as_of_the_last_renewal_elsewhere() {
    let (test, _store) = faulty(0);
    let gate = Gate::default();
    let elsewhere = Engine::with(Arc::clone(test.store()), test.seams().clone(), *test.bounds());
    let node = test.node(|node| waiting_at(node, &gate)).await.expect("a node");
    let jobs = test.enqueue_many((0..3).map(work)).await.expect("enqueued");
    test.advance(SECOND).await.expect("time passes");
    let why = async |engine: &Engine| engine.jobs().why(jobs[2].id).await.expect("a reason");

    let here = why(&test).await;
    assert!(matches!(&here, Why::Slot { nodes, .. } if nodes == &[node.name()]), "{here:?}");
    let [shown] = here.activity() else { panic!("one node: {here:?}") };
    assert_eq!((shown.node.as_str(), shown.as_of), (node.name(), Some(test.seams().clock.now())));
    assert_eq!(shown.activity.as_ref(), node.queues().first());
    let there = why(&elsewhere).await;
    assert_eq!((there.activity()[0].as_of, &there.activity()[0].activity), (None, &None), "not yet");

    test.advance(RENEWAL).await.expect("time passes");
    let renewed = test.store().nodes().await.expect("nodes")[0].renewed_at;
    test.advance(SECOND).await.expect("time passes");
    let there = why(&elsewhere).await;
    let shown = &there.activity()[0];
    assert_eq!(shown.as_of, Some(renewed));
    let activity = shown.activity.as_ref().expect("it has renewed its lease");
    assert_eq!((activity.running, activity.slots), (2, 2));
    assert_eq!(activity.last_claim, node.queues()[0].last_claim);
    assert!(why(&test).await.activity()[0].as_of > shown.as_of);
    gate.open();
    test.run_until_idle().await.expect("idle");
}

/// Sums of counters and the last values of gauges by name and labels. Clones share them.
#[derive(Clone, Default)]
struct Counters(Arc<Mutex<BTreeMap<String, u64>>>);

impl GaugeFn for OneCounter {
    fn increment(&self, _value: f64) {}
    fn decrement(&self, _value: f64) {}

    fn set(&self, value: f64) {
        self.0.0.lock().expect("the gauges").insert(self.1.clone(), value.to_bits());
    }
}

impl Counters {
    fn one(&self, key: &Key) -> Arc<OneCounter> {
        let labels: Vec<_> = key.labels().map(metrics::Label::value).collect();
        Arc::new(OneCounter(self.clone(), format!("{} {}", key.name(), labels.join(" "))))
    }
}

struct OneCounter(Counters, String);

impl CounterFn for OneCounter {
    fn increment(&self, value: u64) {
        *self.0.0.lock().expect("the counters").entry(self.1.clone()).or_default() += value;
    }

    fn absolute(&self, _value: u64) {}
}

impl Recorder for Counters {
    fn describe_counter(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}
    fn describe_gauge(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}
    fn describe_histogram(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}

    fn register_counter(&self, key: &Key, _: &Metadata<'_>) -> Counter {
        Counter::from_arc(self.one(key))
    }

    fn register_gauge(&self, key: &Key, _: &Metadata<'_>) -> Gauge {
        Gauge::from_arc(self.one(key))
    }

    fn register_histogram(&self, _: &Key, _: &Metadata<'_>) -> Histogram {
        Histogram::noop()
    }
}

#[tokio::test]
async fn a_claim_that_is_never_answered_leaves_a_trace() {
    let (log, _listening) = Log::listen(Level::DEBUG);
    let counters = Counters::default();
    let _counting = metrics::set_default_local_recorder(&counters);
    let (test, store) = faulty(0);
    let gate = Gate::default();
    gate.open();
    let node = test.node(|node| waiting_at(node, &gate)).await.expect("a node");
    test.enqueue(work(1)).await.expect("enqueued");
    test.run_until_idle().await.expect("idle");
    let answered = log.take().into_iter().filter(|line| line.contains("mainspring::claims: claim answered"));
    let got: Vec<_> = answered.filter(|line| line.contains("asked=2 got=1")).collect();
    assert_eq!(got.len(), 1, "{got:?}");
    let count = |name: &str| counters.0.lock().expect("the counters").get(name).copied();
    assert_eq!(count("mainspring_claimed_total default"), Some(1));
    assert!(count("mainspring_asked_total default") >= Some(2));

    store.hang("claim", None, true);
    test.enqueue(work(2)).await.expect("enqueued");
    test.advance(2 * RENEWAL).await.expect("time passes");
    let queues = node.queues();
    let queue = only(&queues);
    assert_eq!((queue.asking, queue.running, queue.waiting), (2, 0, 0));
    let lines: Vec<_> = log.take().into_iter().filter(|line| line.contains("mainspring::claims")).collect();
    let has = |what: &str| lines.iter().any(|line| line.contains(what));
    assert!(has("claim sent queue=default asked=2 ahead=0") && !has("claim answered"), "{lines:#?}");
    assert!(has("queue served queue=default running=0 waiting=0 unstored=0 asking=2"), "{lines:#?}");
    store.hang("claim", None, false);
    test.run_until_idle().await.expect("idle");
}

#[tokio::test]
async fn each_node_of_a_process_has_gauges_of_its_own() {
    let counters = Counters::default();
    let _counting = metrics::set_default_local_recorder(&counters);
    let (test, _store) = faulty(0);
    let gate = Gate::default();
    test.enqueue_many((0..3).map(work)).await.expect("enqueued");
    for _ in 0..2 {
        test.node(|node| waiting_at(node, &gate)).await.expect("a node");
    }
    test.advance(2 * RENEWAL).await.expect("time passes");
    let gauges = counters.0.lock().expect("the gauges").clone();
    let running = gauges.iter().filter(|(name, _)| name.starts_with("mainspring_running default "));
    let mut running: Vec<f64> = running.map(|(_, bits)| f64::from_bits(*bits)).collect();
    running.sort_by(f64::total_cmp);
    assert_eq!(running, [1.0, 2.0]);
    gate.open();
    test.run_until_idle().await.expect("idle");
}
