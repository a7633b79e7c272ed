//! Pools: handlers in another language, and every way in which a child can misbehave.

use std::collections::{BTreeMap, BTreeSet};

use rustix::process::Signal;
use serde_json::{Value, json};

use crate::support::{Place, Running, kill, runs, until};

/// A directory with the child.
fn place() -> Place {
    let place = Place::new();
    std::fs::write(place.path("child.py"), include_str!("pool_child.py")).expect("the child");
    place
}

/// A worker with one pool of kind `k`, whose children do `what`.
fn worker(place: &Place, what: &str, children: u32, args: &[&str]) -> Running {
    let pool = format!("k:{children}=python3 child.py {what}");
    place.work(&[&["--pool", &pool, "--drain", "500ms"], args].concat())
}

fn enqueue(place: &Place, input: &Value) -> String {
    place.enqueue(&["k", &input.to_string(), "--max-attempts", "1"])
}

/// The lines of a file that children write, once there are so many.
fn lines(place: &Place, file: &str, count: usize) -> Vec<String> {
    until(file, || {
        let lines: Vec<String> = place.read(file)?.lines().map(str::to_owned).collect();
        (lines.len() >= count).then_some(lines)
    })
}

#[track_caller]
fn gone(pids: &[u32]) {
    until("all to be gone", || pids.iter().all(|pid| !runs(*pid)).then_some(()));
}

/// The processes of all children that were started.
fn starts(place: &Place) -> Vec<u32> {
    lines(place, "starts", 1).iter().map(|pid| pid.parse().expect("a number")).collect()
}

/// Runs one job in a pool whose children do `what`, and returns how it failed.
fn failure(what: &str, args: &[&str]) -> String {
    let place = place();
    let _worker = worker(&place, what, 1, args);
    let id = enqueue(&place, &json!(null));
    let job = place.job_in(&id, "failed");
    // Its child is gone before anybody hears of the failure.
    assert!(!runs(starts(&place)[0]), "the child is gone");
    until("another child", || (starts(&place).len() > 1).then_some(()));
    job["errors"][0]["message"].as_str().expect("a message").to_owned()
}

#[test]
fn a_job_reaches_a_child_with_all_that_belongs_to_it() {
    let place = place();
    let _worker = worker(&place, "tells", 1, &[]);
    // A line break between two tokens is no end of a request.
    let id = place.enqueue(&["k", "{\"a\":\n1}", "--timeout", "5m", "--max-attempts", "3"]);
    let job = place.job_in(&id, "succeeded")["result"]["job"].clone();
    let expected = json!({
        "v": 1, "id": id, "kind": "k", "queue": "default", "attempt": 1, "max_attempts": 3, "claim": 1,
        "deadline_ms": 300_000, "headers": {}, "input": { "a": 1 },
    });
    assert_eq!(job, expected);
}

#[test]
fn every_answer_is_an_outcome() {
    let place = place();
    let worker = worker(&place, "answers", 1, &[]);
    let run = |answer: Value| place.enqueue(&["k", &answer.to_string(), "--max-attempts", "3"]);
    let ok = place.job_in(&run(json!({ "ok": [1, "two"] })), "succeeded");
    assert_eq!(ok["result"], json!([1, "two"]));
    assert_eq!(ok["progress"], json!({ "done": 3, "total": 4, "note": "nearly" }));
    assert_eq!(place.job_in(&run(json!({ "ok": null })), "succeeded")["result"], json!(null));
    let failed = place.job_in(&run(json!({ "error": "no such user", "retry": false })), "failed");
    assert_eq!(failed["errors"][0]["message"], "discarded: no such user");
    let again = place.job_in(&run(json!({ "error": "try later" })), "scheduled");
    assert_eq!((&again["failures"], &again["errors"][0]["message"]), (&json!(1), &json!("try later")));
    let throttled = place.job_in(&run(json!({ "throttled": 3600 })), "scheduled");
    assert_eq!(throttled["failures"], 0);
    let cancelled = place.job_in(&run(json!({ "cancel": "not needed" })), "cancelled");
    assert_eq!(cancelled["note"], "not needed");
    assert_eq!(starts(&place).len(), 1, "one child did all of that");
    assert!(worker.says("a line for the log").contains("kind=k"));
}

#[test]
fn an_answer_for_another_job_fails_this_one() {
    let message = failure("wrong-id", &[]);
    assert_eq!(message, "the child of pool `k` answered for `8`, which is not the job it has");
}

#[test]
fn what_is_no_json_fails_the_job() {
    let message = failure("bad-json", &[]);
    assert!(message.contains("broke the protocol with `Traceback, or so`: expected value"), "{message}");
}

#[test]
fn an_answer_that_says_two_things_fails_the_job() {
    let message = failure("two-things", &[]);
    assert!(message.contains("it takes one of `progress`, `log`, `ok`"), "{message}");
}

#[test]
fn a_line_without_an_end_fails_the_job() {
    assert!(failure("long", &[]).contains("wrote a line of more than 1114112 bytes"));
}

#[test]
fn a_result_beyond_its_bound_fails_the_job_and_keeps_the_child() {
    let place = place();
    let _worker = worker(&place, "large", 1, &[]);
    let id = enqueue(&place, &json!(null));
    let message = place.job_in(&id, "failed")["errors"][0]["message"].clone();
    assert_eq!(message, "the result has 1048578 bytes, the bound is 1048576");
    assert!(runs(starts(&place)[0]));
}

#[test]
fn a_child_that_ends_fails_its_job_with_its_last_words() {
    let message = failure("ends", &[]);
    assert_eq!(message, "the child of pool `k` exited with status 3 while it had a job: out of luck");
}

#[test]
fn a_child_that_closes_its_output_fails_its_job() {
    assert!(failure("closes", &[]).contains("closed its standard output while it had a job"));
}

#[test]
fn a_silent_child_fails_its_job() {
    let message = failure("sleeps", &["--child-silence", "300ms"]);
    assert_eq!(message, "the child of pool `k` said nothing for 300ms: so tired");
}

#[test]
fn a_slow_child_fails_its_job() {
    let message = failure("sleeps", &["--child-timeout", "300ms"]);
    assert_eq!(message, "the child of pool `k` timed out after 300ms: so tired");
}

#[test]
fn a_job_that_times_out_ends_its_child() {
    let place = place();
    let _worker = worker(&place, "forks", 1, &[]);
    let id = place.enqueue(&["k", "--max-attempts", "1", "--timeout", "2s"]);
    let family = family(&place);
    let job = place.job_in(&id, "failed");
    assert_eq!(job["errors"][0]["message"], "timed out after 2s");
    gone(&family);
}

/// A child, its child, and one of its children that has left the group.
fn family(place: &Place) -> Vec<u32> {
    let line = lines(place, "family", 1).remove(0);
    let family: Vec<u32> = line.split(' ').map(|pid| pid.parse().expect("a number")).collect();
    assert!(family.len() == 3 && family.iter().all(|pid| runs(*pid)), "{line}");
    family
}

#[test]
fn grandchildren_end_with_a_cancelled_job() {
    let place = place();
    let _worker = worker(&place, "forks", 1, &[]);
    let id = enqueue(&place, &json!(null));
    let family = family(&place);
    place.run(&["job", &id, "cancel", "--why", "enough"]).ok();
    assert_eq!(place.job_in(&id, "cancelled")["note"], "enough");
    assert!(family.iter().all(|pid| !runs(*pid)), "the job ends only when they have");
}

#[test]
fn a_child_that_agrees_to_a_cancellation_is_kept() {
    let place = place();
    let _worker = worker(&place, "cancels", 1, &[]);
    let id = enqueue(&place, &json!(null));
    until("it to run", || (place.job(&id)["progress"]["note"] == "half way").then_some(()));
    place.run(&["job", &id, "cancel"]).ok();
    place.job_in(&id, "cancelled");
    assert!(runs(starts(&place)[0]));
    assert_eq!(starts(&place).len(), 1);
}

#[test]
fn a_child_that_ignores_a_cancellation_is_killed() {
    let place = place();
    let _worker = worker(&place, "stubborn", 1, &[]);
    let id = enqueue(&place, &json!(null));
    lines(&place, "begun", 1);
    place.run(&["job", &id, "cancel"]).ok();
    place.job_in(&id, "cancelled");
    assert!(!runs(starts(&place)[0]));
}

#[test]
fn a_killed_worker_takes_children_and_grandchildren_with_it() {
    let place = place();
    let mut worker = worker(&place, "forks", 3, &[]);
    enqueue(&place, &json!(null));
    let (family, children) = (family(&place), lines(&place, "starts", 3));
    worker.signal(Signal::KILL);
    worker.ended();
    gone(&family);
    gone(&children.iter().map(|pid| pid.parse().expect("a number")).collect::<Vec<u32>>());
}

/// The guard of a child that runs.
fn guard(child: u32) -> Option<u32> {
    let stat = std::fs::read_to_string(format!("/proc/{child}/stat")).ok()?;
    let parent: u32 = stat.rsplit(") ").next()?.split(' ').nth(1)?.parse().ok()?;
    let command = std::fs::read_to_string(format!("/proc/{parent}/cmdline")).ok()?;
    command.contains("mainspring-guard").then_some(parent)
}

#[test]
fn a_killed_guard_takes_its_child_with_it_and_fails_one_job() {
    let place = place();
    let _worker = worker(&place, "sleeps", 1, &[]);
    let id = enqueue(&place, &json!(null));
    lines(&place, "begun", 1);
    let child = starts(&place)[0];
    kill(guard(child).expect("its guard"), Signal::KILL);
    let message = place.job_in(&id, "failed")["errors"][0]["message"].clone();
    assert_eq!(message, "the child of pool `k` lost its guard while it had a job: so tired");
    gone(&[child]);
}

#[test]
fn worker_and_guards_killed_at_once_leave_no_child() {
    let place = place();
    let mut worker = worker(&place, "sleeps", 2, &[]);
    let children: Vec<u32> =
        lines(&place, "starts", 2).iter().map(|pid| pid.parse().expect("a number")).collect();
    enqueue(&place, &json!(null));
    lines(&place, "begun", 1);
    let guards: Vec<u32> = children.iter().filter_map(|pid| guard(*pid)).collect();
    assert_eq!(guards.len(), 2);
    // Stopped, the worker cannot notice that its guards are gone.
    worker.signal(Signal::STOP);
    for guard in guards {
        kill(guard, Signal::KILL);
    }
    gone(&children);
    worker.signal(Signal::KILL);
    worker.ended();
}

#[test]
fn the_end_of_the_drain_ends_children_and_gives_their_jobs_back() {
    let place = place();
    let mut worker = worker(&place, "forks", 2, &[]);
    let id = enqueue(&place, &json!(null));
    let (family, children) = (family(&place), lines(&place, "starts", 2));
    worker.signal(Signal::TERM);
    assert!(worker.ended().success());
    // The worker waits for its children.
    assert!(children.iter().all(|pid| !runs(pid.parse().expect("a number"))));
    gone(&family);
    let job = place.job(&id);
    assert_eq!((&job["state"], &job["failures"], &job["crashes"]), (&json!("ready"), &json!(0), &json!(0)));
}

#[test]
fn a_drain_lets_a_child_end_its_job() {
    let place = place();
    let mut worker = place.work(&["--pool", "k:2=python3 child.py works"]);
    let id = enqueue(&place, &json!(1));
    lines(&place, "begun", 1);
    worker.signal(Signal::TERM);
    assert!(worker.ended().success());
    assert_eq!(place.job(&id)["state"], "succeeded");
    assert!(starts(&place).iter().all(|pid| !runs(*pid)));
}

/// Pools without any child: their jobs wait, and nothing counts against them.
fn waits(what: &str, said: &str) {
    let place = place();
    let worker = worker(&place, what, 1, &[]);
    worker.says(said);
    let id = enqueue(&place, &json!(null));
    let why = until("why to tell", || {
        Some(place.run(&["why", &id]).ok()).filter(|why| why.contains("pool `k` has no child"))
    });
    assert!(why.contains(said), "{why}");
    let job = place.job(&id);
    assert_eq!((&job["failures"], &job["crashes"]), (&json!(0), &json!(0)));
    assert!(starts(&place).len() < 10, "children are not started in a tight loop");
}

#[test]
fn a_child_that_cannot_start_burns_nothing() {
    waits("dies", "exited with status 1 before it was ready: no license");
}

#[test]
fn noise_before_the_ready_line_is_no_start() {
    waits("noise", "its first line is not `{\"ready\":1}`, but `Loading model…`");
}

#[test]
fn another_version_is_no_start() {
    waits("version", "it speaks version 2 of the protocol, not 1");
}

#[test]
fn a_child_without_the_kind_is_no_start() {
    waits("kinds", "its ready line does not name kind `k`");
}

#[test]
fn a_silent_start_is_no_start() {
    waits("mute", "was not ready within 10s");
}

#[test]
fn a_child_that_is_gone_before_it_read_its_job_burns_nothing() {
    waits("quits", "exited with status 0");
}

#[test]
fn a_program_that_is_not_there_is_no_start() {
    let place = place();
    let worker = place.work(&["--pool", "k=no-such-program"]);
    worker.says("could not start: cannot start `no-such-program`: No such file or directory");
}

#[test]
fn a_job_without_a_child_is_left_to_another_node() {
    let place = place();
    let broken = worker(&place, "dies", 1, &[]);
    broken.says("no license");
    let id = enqueue(&place, &json!(null));
    until("the note", || place.run(&["why", &id]).ok().contains("has no child").then_some(()));
    let _works = worker(&place, "tells", 1, &[]);
    let job = place.job_in(&id, "succeeded");
    assert_eq!((&job["failures"], &job["crashes"]), (&json!(0), &json!(0)));
    assert!(!place.run(&["why", &id]).ok().contains("has no child"));
}

#[test]
fn a_child_that_speaks_without_a_job_is_replaced_and_no_job_fails() {
    let place = place();
    let worker = worker(&place, "chats", 1, &[]);
    worker.says("wrote `still loading` although it had no job");
    until("another child", || (starts(&place).len() > 1).then_some(()));
}

#[test]
fn a_child_may_end_after_each_job() {
    let place = place();
    let _worker = worker(&place, "once", 1, &[]);
    let ids: Vec<String> = (0..5).map(|_| enqueue(&place, &json!(null))).collect();
    let pids: Vec<Value> = ids.iter().map(|id| place.job_in(id, "succeeded")["result"].clone()).collect();
    assert!(pids.windows(2).all(|pair| pair[0] != pair[1]), "{pids:?}");
}

#[test]
fn children_are_replaced_after_their_jobs() {
    let place = place();
    let _worker = worker(&place, "tells", 1, &["--child-max-jobs", "2"]);
    let ids: Vec<String> = (0..4).map(|_| enqueue(&place, &json!(null))).collect();
    let pids: Vec<Value> =
        ids.iter().map(|id| place.job_in(id, "succeeded")["result"]["pid"].clone()).collect();
    let different: BTreeSet<String> = pids.iter().map(ToString::to_string).collect();
    assert_eq!(different.len(), 2, "{pids:?}");
}

#[test]
fn an_old_child_is_replaced_without_a_job() {
    let place = place();
    let _worker = worker(&place, "tells", 1, &["--child-max-age", "300ms"]);
    let starts = lines(&place, "starts", 3);
    gone(&[starts[0].parse().expect("a number")]);
}

#[test]
fn a_child_that_has_grown_is_replaced_after_its_job() {
    let place = place();
    let _worker = worker(&place, "grows", 1, &["--child-max-memory", "60M"]);
    let pid =
        |megabytes: u32| place.job_in(&enqueue(&place, &json!(megabytes)), "succeeded")["result"].clone();
    let (small, large, next) = (pid(1), pid(80), pid(1));
    assert_eq!(small, large);
    assert_ne!(large, next);
    let id = enqueue(&place, &json!(200));
    let message = place.job_in(&id, "failed")["errors"][0]["message"].clone();
    assert_eq!(message, "the child of pool `k` used more than twice 62914560 bytes of memory");
}

#[test]
fn standard_error_is_the_log() {
    let place = place();
    let worker = worker(&place, "ends", 1, &[]);
    enqueue(&place, &json!(null));
    let line = worker.says("out of luck");
    assert!(line.contains("INFO") && line.contains("mainspring::child") && line.contains("pool="), "{line}");
}

#[test]
fn a_worker_says_which_kinds_its_pools_run() {
    let place = place();
    let worker = place.work(&["--pool", "a,b:1=python3 child.py kinds"]);
    worker.says("it runs a, b in pools, and built-in kinds: noop, sleep");
    let refused = place.run(&["work", "--pool", "a:1=x", "--pool", "a=y"]).refused(2);
    assert!(refused.contains("kind `a` has two handlers"), "{refused}");
}

/// Jobs of the storm.
const JOBS: usize = 40;
/// What is killed in turn: so many times in all.
const KILLS: usize = 16;

#[test]
fn a_storm_of_kills_leaves_no_orphan_and_loses_or_doubles_no_job() {
    let place = place();
    // Of two workers, one lives at any time, so that the jobs of the other are rescued.
    let start = || worker(&place, "works", 2, &["--lease", "2s"]);
    let mut workers = [start(), start()];
    let ids: Vec<String> = (0..JOBS).map(|_| place.enqueue(&["k", "0.1", "--max-attempts", "100"])).collect();
    for turn in 0..KILLS {
        // Something has happened since the last kill.
        let begun = lines(&place, "begun", turn * 2 + 1);
        let child = begun.last().and_then(|line| line.rsplit(' ').next()?.parse().ok()).expect("a child");
        match turn % 4 {
            0 => kill_if_running(Some(child)),
            1 => kill_if_running(guard(child)),
            2 => {
                let worker = &mut workers[turn / 4 % 2];
                worker.signal(Signal::KILL);
                worker.ended();
                *worker = start();
            }
            _ => {}
        }
    }
    let jobs: BTreeMap<String, Value> = until("all jobs to succeed", || {
        let jobs: BTreeMap<_, _> = ids.iter().map(|id| (id.clone(), place.job(id))).collect();
        for (id, _) in jobs.iter().filter(|(_, job)| job["state"] == "suspended") {
            // Three of its workers were killed: a person looks at it.
            place.run(&["job", id, "resume"]).ok();
        }
        jobs.values().all(|job| job["state"] == "succeeded").then_some(jobs)
    });
    for worker in &mut workers {
        worker.signal(Signal::TERM);
        worker.ended();
    }
    let pairs = |file: &str| -> Vec<String> {
        let lines = lines(&place, file, JOBS);
        lines.iter().map(|line| line.splitn(3, ' ').take(2).collect::<Vec<_>>().join(" ")).collect()
    };
    let (begun, ended) = (pairs("begun"), pairs("ended"));
    assert_eq!(begun.iter().collect::<BTreeSet<_>>().len(), begun.len(), "no claim begins twice: {begun:#?}");
    for (id, job) in &jobs {
        let accepted = format!("{id} {}", job["claim"]);
        assert_eq!(
            ended.iter().filter(|pair| **pair == accepted).count(),
            1,
            "{id} ended once under its claim"
        );
    }
    gone(&starts(&place));
}

/// Kills a process that may end meanwhile.
fn kill_if_running(pid: Option<u32>) {
    let pid = pid.filter(|pid| runs(*pid)).and_then(|pid| i32::try_from(pid).ok());
    if let Some(pid) = pid.and_then(rustix::process::Pid::from_raw) {
        // Fails only if it has ended.
        let _ = rustix::process::kill_process(pid, Signal::KILL);
    }
}
