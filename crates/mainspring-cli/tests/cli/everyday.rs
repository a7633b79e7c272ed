//! Slips of the finger, and hints that fit the state of a job.

use serde_json::json;

use crate::support::Place;

#[test]
fn a_misspelt_queue_is_not_made() {
    let place = Place::new();
    place.run(&["enqueue", "noop"]).ok();
    for args in [&["pause"][..], &["resume"], &["set", "--retain-failed", "2h"]] {
        let mut words = vec!["queue", args[0], "defualt"];
        words.extend(&args[1..]);
        let told = place.run(&words).refused(2);
        assert!(told.contains("there is no queue `defualt`\nhint: did you mean `default`? "), "{told}");
    }
    let told = place.run(&["queue", "pause", "images"]).refused(2);
    assert!(told.contains("hint: `mainspring queue list` shows the queues; `--create` makes it"), "{told}");
    assert_eq!(place.json(&["queue", "list"])["queues"].as_array().map(Vec::len), Some(1));

    let listed = place.run(&["jobs", "--queue", "defualt"]).ok();
    assert_eq!(listed, "no jobs match: there is no queue `defualt`\nhint: did you mean `default`?");
    place.run(&["queue", "pause", "images", "--create"]).ok();
    assert_eq!(place.run(&["jobs", "--queue", "images"]).ok(), "no jobs match");
}

#[test]
fn hints_fit_the_state() {
    let place = Place::new();
    let id = place.run(&["enqueue", "noop"]).ok();
    let why = place.run(&["why", &id]).ok();
    assert_eq!(place.run(&["job", &id, "why"]).ok(), why);
    assert_eq!(place.json(&["job", &id, "why"]), place.json(&["why", &id]));

    let worker = place.work(&[]);
    place.job_in(&id, "succeeded");
    drop(worker);
    for verb in ["retry", "cancel", "hold"] {
        let told = place.run(&["job", &id, verb]).refused(1);
        assert!(told.contains(&format!("cannot {verb} job {id}: it has succeeded\n")), "{told}");
        assert!(told.contains(&format!("hint: its end is final; `mainspring job {id} fork`")), "{told}");
    }
    let cancelled = place.run(&["enqueue", "noop"]).ok();
    place.run(&["job", &cancelled, "cancel"]).ok();
    let told = place.run(&["job", &cancelled, "hold"]).refused(1);
    assert!(told.contains(&format!("hint: it has ended; `mainspring job {cancelled} retry`")), "{told}");
}

#[test]
fn waits_can_be_given_a_limit() {
    let place = Place::new();
    let told = place.run(&["enqueue", "noop", "--wait", "--for", "100ms"]).refused(1);
    assert!(told.contains(" has not ended after 100ms: "), "{told}");
    assert!(told.contains("hint: the job continues; `mainspring job "), "{told}");
    let jobs = place.json(&["jobs"]);
    assert_eq!(jobs["jobs"][0]["state"], json!("ready"), "it is stored");
    let id = jobs["jobs"][0]["id"].as_str().expect("an id").to_owned();
    assert_eq!(place.run(&["job", "tail", &id, "--for", "100ms"]).ok(), "");
}

/// The address from the environment is not an option that is missing.
#[test]
fn usage_does_not_ask_for_what_the_environment_has() {
    let place = Place::at("sqlite:elsewhere.db");
    let done = place.run(&["job"]);
    assert!(done.stderr.contains("Usage: mainspring job "), "{done:?}");
    assert!(!done.stderr.contains("--store"), "{done:?}");
    place.run(&["enqueue", "noop"]).ok();
    assert!(place.path("elsewhere.db").exists());
    let help = place.run(&["--help"]).ok();
    assert!(help.contains("[env: MAINSPRING_STORE]") && !help.contains("elsewhere"), "{help}");
}

#[test]
fn empty_queue_is_deleted_and_one_with_jobs_says_what_is_in_it() {
    let place = Place::new();
    let id = place.enqueue(&["noop", "--queue", "mail"]);
    place.enqueue(&["noop", "--queue", "other"]);
    let told = place.run(&["queue", "delete", "mail"]).refused(1);
    assert!(told.contains("queue `mail` is not empty: 1 job waits"), "{told}");
    assert!(told.contains("`mainspring jobs delete --queue mail`"), "{told}");
    place.run(&["job", &id, "cancel"]).ok();
    let told = place.run(&["queue", "delete", "mail"]).refused(1);
    assert!(told.contains("1 job has ended") && told.contains("retention"), "{told}");
    place.run(&["jobs", "delete", "--queue", "mail", "--yes"]).ok();

    place.run(&["queue", "pause", "mail"]).ok();
    assert_eq!(place.run(&["queue", "delete", "mail"]).ok(), "queue mail: deleted");
    let listed = place.run(&["queue", "list"]).ok();
    assert!(!listed.contains("mail") && listed.contains("other"), "{listed}");
    let told = place.run(&["queue", "delete", "mail"]).refused(2);
    assert!(told.contains("there is no queue `mail`"), "{told}");
    let told = place.run(&["queue", "delete", "othr"]).refused(2);
    assert!(told.contains("did you mean `other`?"), "{told}");

    place.enqueue(&["noop", "--queue", "mail"]);
    let again = place.json(&["queue", "list"])["queues"][0].clone();
    assert_eq!((&again["name"], &again["paused"]), (&"mail".into(), &false.into()), "{again}");
    place.run(&["jobs", "delete", "--queue", "other", "--yes"]).ok();
    let said = place.json(&["queue", "delete", "other"]);
    assert_eq!(said, json!({ "queue": "other", "deleted": true }));
}
