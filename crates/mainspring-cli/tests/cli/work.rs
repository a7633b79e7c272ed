//! `work`: a node of the binary's own.

use rustix::process::Signal;
use serde_json::json;

use crate::support::{Place, until};

/// The label that every node of this version has.
const BUILD: &str = concat!("build=", env!("CARGO_PKG_VERSION"));

#[test]
fn it_says_what_it_runs_and_runs_it() {
    let place = Place::new();
    let worker = place.work(&["--label", "gpu", "--prefix", "test"]);
    worker.says("created a new store at ");
    assert!(worker.says("works on").starts_with("test-worker-"));
    worker.says("it runs built-in kinds only: noop, sleep (exec only with --allow-exec)");
    assert_eq!(place.run(&["enqueue", "noop", r#"{"any":1}"#, "--wait"]).ok(), "null");
    let slept = place.json(&["enqueue", "sleep", r#"{"for":"300ms"}"#, "--label", "gpu", "--wait"]);
    assert_eq!(slept["result"], json!(null));
    let id = slept["id"].as_str().expect("an id");
    assert_eq!(place.job(id)["progress"], json!({ "done": 300, "total": 300, "note": "ms" }));
    let failed = place.run(&["enqueue", "sleep", r#"{"ms":1,"for":"1s"}"#, "--wait"]).refused(1);
    assert!(failed.contains("failed (discarded)"), "{failed}");
    let nodes = place.json(&["nodes"]);
    assert_eq!(nodes["nodes"][0]["labels"], json!([BUILD, "gpu"]));
    assert_eq!(nodes["nodes"][0]["queues"], json!({ "default": 8 }));
    assert!(place.run(&["nodes"]).ok().contains("live, lease for"));
}

#[test]
fn why_and_nodes_show_what_a_node_claimed_last() {
    let place = Place::new();
    let worker = place.start(&["work", "--queue", "default:1", "--prefix", "test", "--lease", "1500ms"]);
    worker.says("works on");
    let busy = place.enqueue(&["sleep", r#"{"for":"1h"}"#]);
    place.job_in(&busy, "running");
    let id = place.enqueue(&["noop"]);
    let says = |what: &str, args: &[&str], words: &str| {
        until(what, || Some(place.run(args).ok()).filter(|said| said.contains(words)))
    };
    let why = says("a report", &["why", &id], "1 of 1 slots busy; last claim ");
    let lines: Vec<&str> = why.lines().collect();
    assert!(lines[0].starts_with("the job waits for a free slot on test-worker-"), "{why}");
    assert!(lines[1].contains("asked for 1, got 1; next look ") && lines[1].contains(" (as of "), "{why}");
    assert!(place.run(&["nodes"]).ok().contains("default 1 of 1, "));
    let json = place.json(&["why", &id]);
    let activity = &json["activity"][0];
    assert_eq!((&activity["running"], &activity["last_claim"]["got"]), (&json!(1), &json!(1)));
    assert_eq!(activity.as_object().map(serde_json::Map::len), Some(10), "with its node, and as of when");
}

#[test]
fn waiting_for_a_job_says_what_is_in_its_way() {
    let place = Place::new();
    let mut waiting = place.start(&["enqueue", "noop", "{}", "--wait"]);
    waiting.says("waiting: no live node serves queue `default`; start a node that serves queue `default`");
    let _worker = place.work(&[]);
    assert!(waiting.ended().success());
    waiting.says("null");
}

#[test]
fn doctor_names_kinds_that_wait_in_vain() {
    let place = Place::new();
    let _worker = place.work(&[]);
    place.enqueue(&["resize", "{}"]);
    let doctor = place.run(&["doctor"]).ok();
    let note = "jobs of kind resize wait in queue default: no live node of its queue handles kind `resize`";
    assert!(doctor.contains(note), "{doctor}");
}

#[test]
fn the_environment_sets_it_up() {
    let place = Place::new();
    let mut command = place.command();
    command.env("MAINSPRING_QUEUES", "mail:3").env("MAINSPRING_LABELS", "eu").env("MAINSPRING_LEASE", "7s");
    let mut child = command.arg("work").spawn().expect("the binary");
    let node = until("a node", || {
        let nodes = place.run(&["nodes", "--json"]);
        let nodes: serde_json::Value = serde_json::from_str(&nodes.stdout).ok()?;
        nodes["nodes"].get(0).cloned()
    });
    child.kill().expect("it runs");
    child.wait().expect("it ended");
    assert_eq!((&node["queues"], &node["labels"]), (&json!({ "mail": 3 }), &json!([BUILD, "eu"])));
}

#[test]
fn sigterm_lets_running_jobs_end() {
    let place = Place::new();
    let mut worker = place.work(&[]);
    let id = place.enqueue(&["sleep", r#"{"ms":800}"#]);
    place.job_in(&id, "running");
    worker.signal(Signal::TERM);
    assert!(worker.ended().success());
    assert_eq!(place.job(&id)["state"], "succeeded");
    assert_eq!(place.json(&["nodes"])["nodes"][0]["state"], "retired");
    worker.says("has stopped");
}

#[test]
fn a_second_signal_gives_running_jobs_back() {
    let place = Place::new();
    let mut worker = place.work(&[]);
    let id = place.enqueue(&["sleep", r#"{"for":"1h"}"#]);
    place.job_in(&id, "running");
    worker.signal(Signal::TERM);
    until("the end", || {
        // The first is taken in its own time.
        worker.signal_if_running(Signal::INT).then_some(())
    });
    assert!(worker.ended().success());
    let job = place.job(&id);
    assert_eq!((&job["state"], &job["failures"], &job["crashes"]), (&json!("ready"), &json!(0), &json!(0)));
}

#[test]
fn doctor_finds_a_node_that_is_silent_with_jobs() {
    let place = Place::new();
    let mut worker = place.work(&["--lease", "500ms"]);
    let id = place.enqueue(&["sleep", r#"{"for":"1h"}"#]);
    place.job_in(&id, "running");
    worker.signal(Signal::KILL);
    worker.ended();
    let found =
        until("the lease to lapse", || Some(place.run(&["doctor"])).filter(|done| done.code == Some(1)));
    assert!(found.stdout.contains("has been silent since"), "{found:?}");
    assert!(found.stdout.ends_with("1 problem\n"), "{found:?}");
    let found = place.run(&["doctor", "--json"]);
    assert!(found.code == Some(1) && found.stdout.contains("\"problems\":1"), "{found:?}");
    let why = place.run(&["why", &id]).ok();
    assert!(why.contains("a live node will rescue the job"), "{why}");
}

#[test]
fn jobs_of_a_killed_worker_run_on_the_next() {
    let place = Place::new();
    let mut worker = place.work(&["--lease", "1h"]);
    let id = place.enqueue(&["sleep", r#"{"ms":1500}"#]);
    place.job_in(&id, "running");
    worker.signal(Signal::KILL);
    worker.ended();
    let _next = place.work(&[]);
    let job = place.job_in(&id, "succeeded");
    assert_eq!(job["claim"], 2, "rescued by the lock that died with the process, not by the lease");
}
