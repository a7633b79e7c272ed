//! `dev` without a terminal: lines, recovery, a summary; and nothing lost when everything is killed.

use std::collections::BTreeSet;

use rustix::process::Signal;
use serde_json::Value;

use crate::support::{Place, Running, kill, runs, until};

/// Starts `dev` and waits until its worker runs something.
fn dev(place: &Place, args: &[&str]) -> (Running, u32) {
    let dev = place.start(&[&["dev"], args].concat());
    dev.says("joined");
    let worker = until("the worker's process", || place.live_pid());
    (dev, worker)
}

fn ids(place: &Place) -> BTreeSet<String> {
    let jobs = place.json(&["jobs", "--limit", "1000"]);
    jobs["jobs"].as_array().expect("jobs").iter().map(|job| job["id"].to_string()).collect()
}

#[test]
fn a_killed_worker_comes_back_and_so_do_its_jobs() {
    let place = Place::new();
    let (mut dev, worker) = dev(&place, &[]);
    dev.says(" succeeded demo.mail");
    dev.says(" retry     demo.webhook");
    dev.says(" failed    demo.charge");
    until("a report to run", || {
        let running = place.json(&["jobs", "--state", "running", "--kind", "demo.report"]);
        running["jobs"].get(0).cloned()
    });
    kill(worker, Signal::KILL);
    dev.says(" died ");
    dev.says(" rescued   demo.report");
    dev.says(" recovered demo.report");
    let recovery = dev.says("after the worker died; nothing was lost");
    assert!(recovery.contains("came back"), "{recovery}");
    dev.says(" cancelled demo.video");
    dev.signal(Signal::INT);
    assert!(dev.ended().success());
    dev.says("left in sqlite:mainspring.db: ");
    let summary = dev.lines().join("\n");
    for part in ["  succeeded ", "  failed ", "  retried ", "  recovered ", "nothing is lost", "next:"] {
        assert!(summary.contains(part), "{part}: {summary}");
    }
    assert_eq!(place.json(&["doctor"])["problems"], 0);
}

#[test]
fn everything_killed_and_started_again_loses_nothing() {
    let place = Place::new();
    let (mut first, worker) = dev(&place, &[]);
    first.says(" succeeded demo.mail");
    place.enqueue(&["sleep", r#"{"ms":100}"#, "--count", "40"]);
    first.signal(Signal::KILL);
    kill(worker, Signal::KILL);
    first.ended();
    until("the worker to be gone", || (!runs(worker)).then_some(()));
    let before = ids(&place);
    let (mut second, _) = dev(&place, &["--no-samples", "--json"]);
    second.says("left from the last run");
    until("all sleeps to succeed", || {
        let left = place.json(&["jobs", "--kind", "sleep", "--state", "ready,running,scheduled"]);
        left["jobs"].as_array().is_some_and(Vec::is_empty).then_some(())
    });
    assert_eq!(ids(&place), before, "nothing lost, and no samples added");
    second.signal(Signal::TERM);
    assert!(second.ended().success());
    for line in second.lines() {
        let event: Value = serde_json::from_str(&line).expect("each line is JSON");
        assert!(event["event"].is_string(), "{event}");
    }
    second.says("\"event\":\"summary\"");
    assert_eq!(place.json(&["doctor"])["problems"], 0);
}

#[test]
fn the_worker_goes_when_dev_is_killed() {
    let place = Place::new();
    let (mut dev, worker) = dev(&place, &["--no-samples"]);
    dev.signal(Signal::KILL);
    dev.ended();
    until("the worker to go", || (!runs(worker)).then_some(()));
    assert_eq!(place.json(&["nodes"])["nodes"][0]["state"], "retired", "it left in good order");
}
