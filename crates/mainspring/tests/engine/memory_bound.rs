//! A node's memory is bounded by its slots: by the inputs and the results of the handlers that it runs at once.

use mainspring::{Context, Engine, Job};
use serde::{Deserialize, Serialize};

use crate::support::{Gate, eventually, soon, sqlite, total};

const MEGABYTE: usize = 1_000_000;
const SLOTS: u16 = 50;
/// More than all slots take at once, so that more is claimed while results wait to be stored.
const JOBS: usize = 120;
/// What a node needs beside inputs and results.
const BESIDE: usize = 64 << 20;

/// A job whose input and result are large.
#[derive(Serialize, Deserialize, Job)]
#[job(kind = "both", result = String)]
struct Both {
    text: String,
}

/// A number of kilobytes that the kernel tells of this process, in bytes.
fn told(name: &str) -> usize {
    let status = std::fs::read_to_string("/proc/self/status").expect("the status of this process");
    let line = status.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
    let kilobytes = line.and_then(|line| line.trim().strip_suffix(" kB")).expect("a line in kB");
    kilobytes.parse::<usize>().expect("a number") << 10
}

/// What this process needs at most from now on is measured anew. Each test is a process of its own.
fn forget_peak() {
    std::fs::write("/proc/self/clear_refs", "5").expect("the peak is forgotten");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn inputs_and_results_of_all_slots_bound_what_a_node_needs() {
    let (address, _dir) = sqlite();
    let engine = Engine::options().relaxed_durability().open(&address).await.expect("a store");
    for _ in 0..JOBS / 10 {
        let few = (0..10).map(|_| Both { text: "x".repeat(MEGABYTE) });
        engine.enqueue_many(few).await.expect("enqueued");
    }
    forget_peak();
    let before = told("VmRSS");
    let gate = Gate::default();
    let passing = gate.clone();
    let handler = move |_ctx: Context, job: Both| {
        let gate = passing.clone();
        async move {
            gate.pass().await;
            mainspring::HandlerResult::Ok("y".repeat(job.text.len()))
        }
    };
    let node = engine.node().handle(handler).queue("default", SLOTS.into()).start().await.expect("a node");
    gate.reached(SLOTS.into()).await;
    // All end at one moment, and those that follow end at once.
    gate.open();
    let all = async || total(&engine, mainspring::State::Succeeded).await == JOBS as u64;
    eventually("all are done", all).await;
    let needed = told("VmHWM").saturating_sub(before);
    soon("it drains", node.shutdown()).await;
    let inputs = usize::from(SLOTS) * MEGABYTE;
    let bound = 2 * inputs + BESIDE;
    assert!(needed <= bound, "{needed} bytes of at most {bound}");
    assert!(needed >= inputs, "{needed} bytes: the inputs alone are more");
}
