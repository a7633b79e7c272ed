//! `exec`: commands that end with their job, with their worker, and with everything they started.

use rustix::process::Signal;
use serde_json::{Value, json};

use crate::support::{Place, Running, runs, until};

fn worker(place: &Place) -> Running {
    place.work(&["--allow-exec", "--drain", "500ms"])
}

/// Enqueues a command that is tried once.
fn exec(place: &Place, input: &Value) -> String {
    place.enqueue(&["exec", &input.to_string(), "--max-attempts", "1"])
}

/// A command with a child of its own that both would run for minutes, and their process ids.
fn family(place: &Place, more: &Value) -> (String, [u32; 2]) {
    let script = "sleep 300 & echo $! > grandchild; echo $$ > child; wait";
    let mut input = json!({ "argv": ["sh", "-c", script] });
    for (name, value) in more.as_object().into_iter().flatten() {
        input[name] = value.clone();
    }
    let id = exec(place, &input);
    let pid = |name: &str| until(name, || place.read(name)?.trim().parse().ok());
    let pids = [pid("child"), pid("grandchild")];
    assert!(pids.iter().all(|pid| runs(*pid)), "both run");
    (id, pids)
}

#[track_caller]
fn gone(pids: [u32; 2]) {
    until("both to be gone", || pids.iter().all(|pid| !runs(*pid)).then_some(()));
}

#[test]
fn output_environment_directory_and_input_are_passed() {
    let place = Place::new();
    let _worker = worker(&place);
    std::fs::create_dir(place.path("here")).expect("a directory");
    let script = "pwd; echo $COLOUR; cat; echo oops >&2";
    let input = json!({
        "argv": ["sh", "-c", script], "env": { "COLOUR": "green" }, "cwd": place.path("here"), "stdin": "typed\n",
    });
    let id = exec(&place, &input);
    let result = place.job_in(&id, "succeeded")["result"].clone();
    assert_eq!(result["status"], 0);
    assert_eq!(result["signal"], json!(null));
    assert_eq!(result["truncated"], false);
    let stdout = result["stdout"].as_str().expect("text");
    assert!(stdout.ends_with("here\ngreen\ntyped\n"), "{stdout}");
    assert_eq!(result["stderr"], "oops\n");
}

#[test]
fn only_the_end_of_long_output_is_kept() {
    let place = Place::new();
    let _worker = worker(&place);
    let id = exec(&place, &json!({ "argv": ["sh", "-c", "seq 100000; echo last"] }));
    let result = place.job_in(&id, "succeeded")["result"].clone();
    let stdout = result["stdout"].as_str().expect("text");
    assert_eq!(stdout.len(), 64 << 10);
    assert!(stdout.ends_with("100000\nlast\n"));
    assert_eq!(result["truncated"], true);
}

#[test]
fn what_goes_wrong_is_told() {
    let place = Place::new();
    let _worker = worker(&place);
    let cases = [
        (json!({ "argv": ["sh", "-c", "echo no disk >&2; exit 3"] }), "`sh` exited with status 3: no disk"),
        (json!({ "argv": ["sh", "-c", "kill -9 $$"] }), "`sh` was killed by signal 9"),
        (json!({ "argv": ["no-such-program"] }), "cannot start `no-such-program`: No such file"),
        (
            json!({ "argv": ["true"], "cwd": "/no/such/place" }),
            "the directory `/no/such/place` does not exist",
        ),
        (json!({ "argv": [] }), "argv names no program"),
        (json!({ "argv": ["true"], "argh": 1 }), "unknown field `argh`"),
    ];
    let ids: Vec<String> = cases.iter().map(|(input, _)| exec(&place, input)).collect();
    for (id, (_, said)) in ids.iter().zip(&cases) {
        let job = place.job_in(id, "failed");
        let message = job["errors"][0]["message"].as_str().expect("a message");
        assert!(message.contains(said), "{message}");
    }
}

#[test]
fn a_worker_that_does_not_allow_it_leaves_it_to_one_that_does() {
    let place = Place::new();
    let _refuses = place.work(&[]);
    let id = place.enqueue(&["exec", r#"{"argv":["touch","ran"]}"#]);
    let why = place.run(&["why", &id]).ok();
    assert!(
        why.contains("no live node of its queue handles kind `exec`") && why.contains("work --allow-exec"),
        "{why}"
    );
    assert!(!place.path("ran").exists());
    let _allows = worker(&place);
    assert_eq!(place.job_in(&id, "succeeded")["failures"], 0);
    assert!(place.path("ran").exists());
}

#[test]
fn a_cancelled_command_ends_with_its_children() {
    let place = Place::new();
    let _worker = worker(&place);
    let (id, pids) = family(&place, &json!({}));
    place.run(&["job", &id, "cancel", "--why", "enough"]).ok();
    assert_eq!(place.job_in(&id, "cancelled")["note"], "enough");
    // The job ends only when they have.
    assert!(pids.iter().all(|pid| !runs(*pid)));
}

#[test]
fn a_command_that_takes_too_long_ends_with_its_children() {
    let place = Place::new();
    let _worker = worker(&place);
    let (id, pids) = family(&place, &json!({ "timeout": "300ms" }));
    let job = place.job_in(&id, "failed");
    assert_eq!(job["errors"][0]["message"], "`sh` timed out after 300ms");
    gone(pids);
}

#[test]
fn a_command_that_ignores_sigterm_is_killed() {
    let place = Place::new();
    let _worker = worker(&place);
    let script = "trap '' TERM; echo $$ > child; while :; do sleep 1; done";
    let id = exec(&place, &json!({ "argv": ["sh", "-c", script] }));
    let pid: u32 = until("its process", || place.read("child")?.trim().parse().ok());
    place.run(&["job", &id, "cancel"]).ok();
    place.job_in(&id, "cancelled");
    gone([pid, pid]);
}

#[test]
fn what_a_command_leaves_behind_ends_with_it() {
    let place = Place::new();
    let _worker = worker(&place);
    let id = exec(&place, &json!({ "argv": ["sh", "-c", "sleep 300 & echo $! > left; echo done"] }));
    assert_eq!(place.job_in(&id, "succeeded")["result"]["stdout"], "done\n");
    let pid: u32 = until("its process", || place.read("left")?.trim().parse().ok());
    gone([pid, pid]);
}

#[test]
fn a_killed_worker_takes_its_commands_with_it() {
    let place = Place::new();
    let mut worker = worker(&place);
    let (id, pids) = family(&place, &json!({}));
    worker.signal(Signal::KILL);
    worker.ended();
    gone(pids);
    assert_eq!(place.job(&id)["state"], "running", "nobody is there to rescue it");
}

#[test]
fn the_end_of_the_drain_ends_commands_and_gives_their_jobs_back() {
    let place = Place::new();
    let mut worker = worker(&place);
    let (id, pids) = family(&place, &json!({}));
    worker.signal(Signal::TERM);
    assert!(worker.ended().success());
    gone(pids);
    let job = place.job(&id);
    assert_eq!((&job["state"], &job["failures"]), (&json!("ready"), &json!(0)));
}
