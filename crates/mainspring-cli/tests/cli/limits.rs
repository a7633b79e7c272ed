//! `limit`, `kind` and totals of queues: limits by hand.

use serde_json::json;

use crate::support::Place;

fn place() -> Place {
    let place = Place::new();
    place.run(&["migrate"]).ok();
    place
}

#[test]
fn a_limit_lives_on_the_command_line() {
    let place = place();
    assert!(place.run(&["limit", "list"]).ok().starts_with("no limits yet"));
    let told = place.run(&["limit", "set", "gpu", "--max", "4"]).refused(2);
    assert!(told.contains("there is no limit `gpu`") && told.contains("`--create` makes it"), "{told}");
    let told = place.run(&["limit", "set", "gpu", "--create", "--max", "4", "--as", "ann"]).ok();
    assert!(
        told.starts_with("limit gpu: set") && told.contains("each key admits at most 4 at once"),
        "{told}"
    );
    let told = place.run(&["limit", "set", "gpv", "--max", "4"]).refused(2);
    assert!(told.contains("did you mean `gpu`?"), "{told}");
    let rate = ["--rate", "100/1m", "--burst", "10"];
    place.run(&[&["limit", "set", "gpu"], &rate[..]].concat()).ok();
    let listed = place.json(&["limit", "list"]);
    assert_eq!(listed["limits"][0]["max"], 4);
    assert_eq!(listed["limits"][0]["rate"], "100/1m burst 10");
    assert_eq!(listed["totals"], json!([]));
    assert!(place.run(&["limit", "list"]).ok().contains("gpu"));

    place.run(&["limit", "set", "gpu", "acme", "--max", "9"]).ok();
    place.run(&["limit", "pause", "gpu", "acme"]).ok();
    let shown = place.json(&["limit", "show", "gpu"]);
    assert_eq!((&shown["keys"][0]["key"], &shown["keys"][0]["max"]), (&json!("acme"), &json!(9)));
    assert_eq!(shown["keys"][0]["paused"], true);
    let verbs: Vec<_> =
        shown["audit"].as_array().into_iter().flatten().map(|it| it["verb"].clone()).collect();
    assert_eq!(verbs, ["pause", "set", "set", "create"].map(|verb| json!(verb)));
    assert_eq!(shown["audit"][3]["who"], "ann");
    let key = place.run(&["limit", "show", "gpu", "acme"]).ok();
    assert!(
        key.starts_with("limit gpu of `acme`: 0 of 9 in use, paused") && key.contains("0 waiting"),
        "{key}"
    );
    assert!(place.run(&["limit", "show", "gpu"]).ok().contains("acme"));

    place.run(&["limit", "resume", "gpu", "acme"]).ok();
    place.run(&["limit", "set", "gpu", "acme", "--max", "none"]).ok();
    place.run(&["limit", "set", "gpu", "--rate", "none"]).ok();
    assert_eq!(place.json(&["limit", "show", "gpu"])["rate"], json!(null));
    let told = place.run(&["limit", "reset", "gpu"]).refused(2);
    assert!(told.contains("no code defines `gpu`"), "{told}");
    place.run(&["limit", "delete", "gpu"]).ok();
    place.run(&["limit", "delete", "gpu"]).refused(2);
    place.run(&["limit", "show", "gpu"]).refused(2);
}

#[test]
fn bad_limits_are_refused_with_what_is_wrong() {
    let place = place();
    place.run(&["limit", "set", "gpu", "--create", "--max", "1"]).ok();
    assert!(place.run(&["limit", "set", "gpu"]).refused(2).contains("name at least one of --max and --rate"));
    assert!(place.run(&["limit", "set", "gpu", "--rate", "often"]).refused(2).contains("is not a rate like"));
    assert!(
        place.run(&["limit", "set", "gpu", "--max", "2000000"]).refused(2).contains("maximum of a limit")
    );
    place.run(&["limit", "set", "gpu", "--burst", "2"]).refused(2);
    place.run(&["limit", "set", "gpu", "acme", "--rate", "1/s"]).refused(2);
    place.run(&["limit", "set", "a b", "--create", "--max", "1"]).refused(2);
    let told = place.run(&["enqueue", "noop", "--limit", "gpv"]).refused(2);
    assert!(told.contains("unknown limit `gpv`") && told.contains("did you mean `gpu`?"), "{told}");
    let told = place.run(&["enqueue", "noop", "--limit", "gpu*many"]).refused(2);
    assert!(told.contains("`gpu*many` is not a limit"), "{told}");
    assert_eq!(place.json(&["jobs"])["jobs"], json!([]));
}

#[test]
fn jobs_wait_for_a_limit_and_say_so() {
    let place = place();
    place.run(&["limit", "set", "gpu", "--create", "--max", "0"]).ok();
    let job = place.enqueue(&["noop", "null", "--limit", "gpu*2=acme"]);
    assert_eq!(place.job(&job)["limits"], json!([{ "limit": "gpu", "key": "acme", "units": 2 }]));
    let worker = place.work(&[]);
    crate::support::until("it waits for the limit", || {
        let why = place.json(&["why", &job]);
        (why["why"] == "limited").then_some(())
    });
    let why = place.run(&["why", &job]).ok();
    assert!(why.contains("limit `gpu` of `acme` is full: 0 of 0 in use, and it takes 2"), "{why}");
    assert!(why.contains("mainspring limit show gpu 'acme'"), "{why}");
    let shown = place.json(&["limit", "show", "gpu", "acme"]);
    assert_eq!((&shown["waiting"], &shown["waiters"][0]), (&json!(1), &json!(job)));
    let doctor = place.run(&["doctor"]).ok();
    assert!(doctor.contains("limit gpu admits nobody: its maximum is 0"), "{doctor}");
    place.run(&["limit", "set", "gpu", "--max", "2"]).ok();
    crate::support::until("it runs", || (place.job(&job)["state"] == "succeeded").then_some(()));
    drop(worker);
}

#[test]
fn totals_of_queues_and_kinds_are_set_and_listed() {
    let place = place();
    place.enqueue(&["noop"]);
    let told = place.run(&["queue", "set", "default", "--max-running", "5"]).ok();
    assert!(told.contains("runs at most 5 jobs at once"), "{told}");
    assert_eq!(place.json(&["queue", "list"])["queues"][0]["max_running"], 5);
    place.run(&["kind", "set", "noop", "--max-running", "2", "--as", "bob"]).ok();
    let kinds = place.json(&["kind", "list"]);
    assert_eq!(kinds["kinds"], json!([{ "queue": null, "kind": "noop", "max_running": 2, "running": 0 }]));
    let listed = place.run(&["limit", "list"]).ok();
    assert!(listed.contains("queue default: 0 of at most 5 jobs run"), "{listed}");
    assert!(listed.contains("kind noop: 0 of at most 2 jobs run"), "{listed}");
    place.run(&["queue", "set", "default", "--max-running", "none"]).ok();
    place.run(&["kind", "set", "noop", "--max-running", "none"]).ok();
    assert!(place.run(&["kind", "list"]).ok().starts_with("no kind has a maximum"));
    assert_eq!(place.json(&["queue", "list"])["queues"][0]["max_running"], json!(null));
    place.run(&["kind", "set", "noop"]).refused(2);
}
