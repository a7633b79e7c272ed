//! `schedule`: schedules by hand.

use serde_json::json;

use crate::support::Place;

fn place() -> Place {
    let place = Place::new();
    place.run(&["migrate"]).ok();
    place
}

#[test]
fn a_schedule_lives_on_the_command_line() {
    let place = place();
    assert!(place.run(&["schedule", "list"]).ok().starts_with("no schedules yet"));
    let set = [
        "schedule",
        "set",
        "nightly",
        "noop",
        r#"{"day":"{{fire}}"}"#,
        "--at",
        "30 2 * * *",
        "--at",
        "every 1h",
    ];
    let told = place
        .run(&[&set[..], &["--zone", "Europe/Berlin", "--overlap", "skip", "--as", "ann"]].concat())
        .ok();
    assert!(told.starts_with("schedule nightly: set; it fires next at "), "{told}");
    assert!(told.contains("at 02:30; every 1h (Europe/Berlin)"), "{told}");
    let listed = place.json(&["schedule", "list"]);
    assert_eq!(listed["schedules"][0]["state"], "active");
    assert_eq!(listed["schedules"][0]["definition"]["rule"]["zone"], "Europe/Berlin");
    let next = place.json(&["schedule", "next", "nightly", "-n", "3"]);
    assert_eq!(next["next"].as_array().map(Vec::len), Some(3));

    place.run(&["schedule", "pause", "nightly", "--note", "the mail server moves", "--as", "bob"]).ok();
    let why = place.run(&["schedule", "why", "nightly"]).ok();
    assert!(why.starts_with("bob paused it at ") && why.ends_with(": the mail server moves"), "{why}");
    let job = place.run(&["schedule", "run", "nightly"]).ok();
    assert_eq!(place.json(&["job", &job])["headers"]["schedule"], "nightly");
    // It does not overlap, and that job waits.
    let told = place.run(&["schedule", "run", "nightly"]).refused(1);
    assert!(told.contains(&format!("its job {job} has not ended")) && told.contains("--force"), "{told}");
    place.run(&["schedule", "run", "nightly", "--force"]).ok();
    place.run(&["schedule", "resume", "nightly"]).ok();
    let from = ["--from", "2026-01-01T00:00:00Z", "--to", "2026-01-01T02:00:00Z"];
    let made = place.json(&[&["schedule", "backfill", "nightly"], &from[..]].concat());
    assert_eq!(made["jobs"].as_array().map(Vec::len), Some(4), "three hours, and 02:30 in Berlin");
    assert_eq!(place.json(&["jobs", "--tag", "schedule=nightly"])["jobs"].as_array().map(Vec::len), Some(6));

    let shown = place.json(&["schedule", "show", "nightly"]);
    let verbs: Vec<_> =
        shown["audit"].as_array().into_iter().flatten().map(|it| it["verb"].clone()).collect();
    assert_eq!(verbs, ["backfill", "resume", "run", "run", "pause", "set"].map(|verb| json!(verb)));
    assert_eq!(shown["audit"][5]["who"], "ann");
    place.run(&["schedule", "delete", "nightly"]).ok();
    place.run(&["schedule", "delete", "nightly"]).refused(3);
    place.run(&["schedule", "show", "nightly"]).refused(3);
}

#[test]
fn the_first_schedule_makes_the_store_and_a_bad_one_does_not() {
    let place = Place::new();
    place.run(&["schedule", "set", "s", "noop", "--at", "0 25 * * *"]).refused(2);
    place.run(&["schedule", "list"]).refused(4);
    place.run(&["schedule", "set", "s", "noop", "--at", "@daily"]).ok();
    assert!(place.run(&["schedule", "list"]).ok().contains("noop"));
}

#[test]
fn bad_schedules_are_refused_with_what_is_wrong() {
    let place = place();
    let refused =
        |args: &[&str]| place.run(&[&["schedule", "set", "s", "noop", "null"], args].concat()).refused(2);
    let told = refused(&["--at", "0 25 * * *"]);
    assert!(told.contains("column 3: `25` is not a hour (0 to 23)"), "{told}");
    assert!(refused(&["--at", "0 0 31 2 *"]).contains("it never fires"));
    let told = refused(&["--at", "@daily", "--zone", "Europe/Berln"]);
    assert!(told.contains("did you mean `Europe/Berlin`?"), "{told}");
    assert!(
        refused(&["--at", "@daily", "--missed", "all:2", "--overlap", "skip"]).contains("overlap = allow")
    );
    place.run(&["schedule", "set", "a b", "noop", "--at", "@daily"]).refused(2);
    place.run(&["schedule", "set", "s", "noop", "{", "--at", "@daily"]).refused(2);
    assert_eq!(place.json(&["schedule", "list"])["schedules"], json!([]));
}

#[test]
fn a_worker_fires_what_is_due() {
    let place = place();
    place.run(&["schedule", "set", "tick", "noop", "--at", "* * * * * *", "--count", "2"]).ok();
    let worker = place.work(&[]);
    crate::support::until("two fires", || {
        let shown = place.json(&["schedule", "show", "tick"]);
        (shown["fired"] == 2 && shown["state"] == "ended").then_some(())
    });
    drop(worker);
    assert_eq!(place.json(&["jobs", "--tag", "schedule=tick"])["jobs"].as_array().map(Vec::len), Some(2));
}
