//! Each command in both forms: for people and for programs.

use serde_json::json;

use crate::support::Place;

#[test]
fn a_job_is_enqueued_listed_shown_and_explained() {
    let place = Place::new();
    let id =
        place.enqueue(&["mail", r#"{"to":"ada"}"#, "--queue", "mail", "--priority", "2", "--tag", "vip"]);
    let list = place.run(&["jobs"]).ok();
    assert!(list.contains(&id) && list.contains("mail") && list.contains("ready"), "{list}");
    let listed = place.json(&["jobs", "--queue", "mail", "--state", "ready,running", "--tag", "vip"]);
    assert_eq!(listed["jobs"][0]["id"], json!(id));
    assert_eq!(listed["jobs"][0]["priority"], 2);
    assert_eq!(listed["next"], json!(null));
    assert_eq!(place.run(&["jobs", "--kind", "other"]).ok(), "no jobs match");
    let shown = place.run(&["job", &id]).ok();
    for part in ["mail", "ready", "priority 2", "vip", "enqueued", "\"to\": \"ada\""] {
        assert!(shown.contains(part), "{part} is missing: {shown}");
    }
    assert_eq!(place.job(&id)["input"], json!({ "to": "ada" }));
    let why = place.run(&["why", &id]).ok();
    assert!(why.starts_with("no live node serves queue `mail`\nhint: "), "{why}");
    assert!(why.contains("mainspring work --queue mail:10"), "{why}");
    let why = place.json(&["why", &id]);
    assert_eq!((&why["why"], &why["queue"]), (&json!("no_node"), &json!("mail")));
}

#[test]
fn every_option_reaches_the_store() {
    let place = Place::new();
    let id = place.enqueue(&[
        "mail",
        "--run-at",
        "2035-01-01T00:00:00Z",
        "--deadline",
        "2036-01-01T00:00:00Z",
        "--max-attempts",
        "3",
        "--backoff",
        "linear:10s..5m",
        "--timeout",
        "30s",
        "--unique",
        "k",
        "--unique-until",
        "10m",
        "--label",
        "gpu",
        "--header",
        "trace=a=b",
    ]);
    let job = place.job(&id);
    assert_eq!(job["state"], "scheduled");
    assert_eq!(job["run_at"], "2035-01-01T00:00:00.000Z");
    assert_eq!(job["deadline"], "2036-01-01T00:00:00.000Z");
    assert_eq!(job["max_attempts"], 3);
    assert_eq!(job["backoff"], "linear:10s..5m");
    assert_eq!(job["timeout"], "30s");
    assert_eq!(job["labels"], json!(["gpu"]));
    assert_eq!(job["headers"], json!({ "trace": "a=b" }));
    assert_eq!(job["unique"]["key"], "k");
    assert_eq!(job["unique"]["until"], json!({ "after": "10m" }));
}

#[test]
fn input_comes_from_a_file_or_standard_input() {
    let place = Place::new();
    std::fs::write(place.path("input.json"), "[1, 2]").expect("a file");
    let id = place.enqueue(&["a", "--input-file", "input.json"]);
    assert_eq!(place.job(&id)["input"], json!([1, 2]));
    let id = place.feed(&["enqueue", "a", "-"], Some(b"{\"x\": null}")).ok();
    assert_eq!(place.job(&id)["input"], json!({ "x": null }));
}

#[test]
fn the_same_id_twice_is_the_same_job() {
    let place = Place::new();
    let id = "01a1de98-55b8-78d4-8fb5-ccc5f0d5c11c";
    assert_eq!(place.enqueue(&["a", "--id", id]), id);
    assert_eq!(place.enqueue(&["a", "--id", id]), format!("{id} existing"));
    let other = place.run(&["enqueue", "b", "--id", id]).refused(1);
    assert!(other.contains(id), "{other}");
    assert_eq!(place.json(&["jobs"])["jobs"].as_array().map(Vec::len), Some(1));
}

#[test]
fn unique_keys_keep_reject_and_replace() {
    let place = Place::new();
    let first = place.enqueue(&["a", "--unique", "k"]);
    assert_eq!(place.enqueue(&["a", "--unique", "k"]), format!("{first} existing"));
    assert_eq!(place.json(&["enqueue", "a", "--unique", "k"]), json!({ "id": first, "existing": true }));
    let refused = place.run(&["enqueue", "a", "--unique", "k", "--on-conflict", "reject"]).refused(1);
    assert!(refused.contains(&first), "{refused}");
    let second = place.enqueue(&["a", "--unique", "k", "--on-conflict", "replace"]);
    assert_ne!(first, second);
    assert_eq!(place.job(&first)["reason"], "replaced");
}

#[test]
fn many_are_enqueued_at_once_and_listed_in_pages() {
    let place = Place::new();
    assert_eq!(place.run(&["enqueue", "a", "--count", "2500"]).ok(), "enqueued 2500 jobs of kind a");
    assert_eq!(place.json(&["enqueue", "b", "--count", "2"])["ids"].as_array().map(Vec::len), Some(2));
    let mut seen = std::collections::BTreeSet::new();
    let mut after: Option<String> = None;
    loop {
        let mut args = vec!["jobs", "--kind", "a", "--limit", "1000"];
        if let Some(after) = &after {
            args.extend(["--after", after]);
        }
        let page = place.json(&args);
        for job in page["jobs"].as_array().expect("jobs") {
            assert!(seen.insert(job["id"].to_string()), "listed twice");
        }
        match page["next"].as_str() {
            Some(next) => after = Some(next.to_owned()),
            None => break,
        }
    }
    assert_eq!(seen.len(), 2_500);
    let first = place.run(&["jobs", "--limit", "1"]).ok();
    assert!(first.contains("\nmore: --after "), "{first}");
}

#[test]
fn verbs_change_one_job() {
    let place = Place::new();
    let id = place.enqueue(&["a"]);
    let verb = |args: &[&str]| place.run(&[&["job", &id], args].concat()).ok();
    assert_eq!(verb(&["hold", "--why", "wrong price"]), "hold: 1 job");
    assert_eq!((&place.job(&id)["reason"], &place.job(&id)["note"]), (&json!("hold"), &json!("wrong price")));
    assert!(verb(&["why"]).starts_with("an operator holds the job: wrong price\n"));
    assert!(verb(&[]).contains("an operator holds the job: wrong price\n"));
    assert_eq!(verb(&["resume"]), "resume: 1 job");
    assert_eq!(place.job(&id)["note"], json!(null));
    verb(&["set-priority", "0"]);
    assert_eq!(place.job(&id)["priority"], 0);
    verb(&["cancel", "--why", "not needed"]);
    assert_eq!(
        (&place.job(&id)["state"], &place.job(&id)["note"]),
        (&json!("cancelled"), &json!("not needed"))
    );
    let again = place.run(&["job", &id, "cancel"]).refused(1);
    assert!(again.contains("it is cancelled"), "{again}");
    verb(&["retry"]);
    assert_eq!(place.job(&id)["state"], "ready");
    verb(&["hold"]);
    verb(&["fail", "--why", "broken"]);
    assert_eq!(place.job(&id)["state"], "failed");
    verb(&["delete"]);
    place.run(&["job", &id]).refused(3);
}

#[test]
fn verbs_change_all_that_match_after_a_dry_run() {
    let place = Place::new();
    place.enqueue(&["a", "--count", "30"]);
    place.enqueue(&["b"]);
    assert_eq!(place.run(&["jobs", "cancel", "--kind", "a", "--dry-run"]).ok(), "would cancel 30 jobs");
    let refused = place.run(&["jobs", "cancel", "--kind", "a"]).refused(2);
    assert!(refused.contains("would cancel 30 jobs") && refused.contains("--yes"), "{refused}");
    assert_eq!(place.json(&["queue", "list"])["queues"][0]["counts"]["ready"], 31);
    let done = place.json(&["jobs", "cancel", "--kind", "a", "--yes", "--why", "x"]);
    assert_eq!((&done["changed"], &done["refused"]), (&json!(30), &json!(0)));
    assert_eq!(place.run(&["jobs", "retry", "--state", "cancelled", "-y"]).ok(), "retry: 30 jobs");
    assert_eq!(
        place.run(&["jobs", "set-priority", "--to", "1", "--kind", "a", "-y"]).ok(),
        "set-priority: 30 jobs"
    );
    let ids: Vec<String> = (0..2).map(|_| place.enqueue(&["c"])).collect();
    assert_eq!(place.run(&["jobs", "hold", "--why", "audit", &ids[0], &ids[1]]).ok(), "hold: 2 jobs");
    assert_eq!(place.job(&ids[1])["note"], "audit");
    assert_eq!(place.run(&["jobs", "resume", "--state", "suspended", "-y"]).ok(), "resume: 2 jobs");
    assert_eq!(place.run(&["jobs", "delete", "--since", "1h", "-y"]).ok(), "delete: 33 jobs");
}

#[test]
fn queues_are_paused_resumed_and_set() {
    let place = Place::new();
    place.enqueue(&["a"]);
    assert!(place.run(&["queue", "pause", "default"]).ok().starts_with("queue default: paused"));
    assert!(place.run(&["queue", "list"]).ok().contains("paused"));
    assert_eq!(place.json(&["queue", "resume", "default"])["paused"], false);
    let args = [
        "queue",
        "set",
        "default",
        "--backoff",
        "fixed:5s",
        "--retain-succeeded",
        "2h",
        "--retain-failed",
        "3d",
    ];
    let set = place.json(&args);
    assert_eq!((&set["backoff"], &set["retain_succeeded"]), (&json!("fixed:5s"), &json!("2h")));
    assert_eq!(place.json(&["queue", "set", "default", "--backoff", "default"])["backoff"], json!(null));
    let listed = place.json(&["queue", "list"]);
    assert_eq!(listed["queues"][0]["retain_failed"], "3d");
    assert_eq!(listed["queues"][0]["counts"]["ready"], 1);
}

#[test]
fn migrate_creates_and_doctor_looks() {
    let place = Place::new();
    assert!(place.run(&["migrate"]).ok().contains("is at schema version "));
    assert!(place.json(&["migrate"])["schema"].as_u64().is_some_and(|version| version >= 1));
    assert!(place.run(&["nodes"]).ok().starts_with("no nodes"));
    let doctor = place.run(&["doctor"]).ok();
    assert!(doctor.ends_with("all is well"), "{doctor}");
    place.enqueue(&["a"]);
    let doctor = place.json(&["doctor"]);
    assert_eq!(doctor["problems"], 0);
    let what = doctor["findings"][0]["what"].as_str().expect("a note");
    assert!(what.starts_with("no live node serves queue default"), "{what}");
}

#[test]
fn the_store_is_named_by_flag_or_environment() {
    let place = Place::new();
    place.run(&["enqueue", "a", "--store", "sqlite:other.db"]).ok();
    assert!(place.path("other.db").exists() && !place.path("mainspring.db").exists());
    let mut command = place.command();
    let output = command.args(["jobs"]).env("MAINSPRING_STORE", "sqlite:other.db").output().expect("output");
    assert!(String::from_utf8_lossy(&output.stdout).contains("ready"));
    place.run(&["enqueue", "a", "--store", "memory:"]).ok();
}

/// The environment may hold a password.
#[test]
fn help_does_not_show_what_is_in_the_environment() {
    let place = Place::new();
    for args in [&["--help"][..], &["work", "--help"], &["enqueue", "-h"], &["frobnicate"]] {
        let mut command = place.command();
        command.args(args).env("MAINSPRING_STORE", "postgres://app:secret@db/app");
        let output = command.output().expect("output");
        for text in [output.stdout, output.stderr] {
            assert!(!String::from_utf8_lossy(&text).contains("secret"), "{args:?}");
        }
    }
}

#[test]
fn there_is_no_script_for_a_store_that_migrates_when_it_is_opened() {
    let place = Place::new();
    let said = place.run(&["migrate", "--print"]).ok();
    assert!(said.starts_with("-- nothing to run"), "{said}");
    assert!(!place.path("mainspring.db").exists());
}

#[test]
fn relaxed_durability_is_taken_by_name_and_told() {
    let place = Place::new();
    assert_eq!(place.json(&["migrate"])["durable"], true);
    assert_eq!(place.json(&["migrate", "--relaxed-durability"])["durable"], false);
}

#[test]
fn completions_are_made_for_every_shell() {
    let place = Place::new();
    for shell in ["bash", "elvish", "fish", "powershell", "zsh"] {
        let script = place.run(&["completions", shell]).ok();
        assert!(script.contains("mainspring") && script.contains("set-priority"), "{shell}");
        assert!(!script.contains("exec-guard"), "{shell} offers what is hidden");
    }
    assert!(!place.path("mainspring.db").exists());
}

#[test]
fn manual_pages_are_made_for_every_command() {
    let place = Place::new();
    let page = place.run(&["man"]).ok();
    assert!(page.contains(".TH mainspring 1") && page.contains("Exit codes"), "{page}");
    assert!(place.run(&["man", "jobs"]).ok().contains("error"));
    let complaint = place.run(&["man", "--dir", "missing"]).refused(1);
    assert!(complaint.contains("cannot write to missing"), "{complaint}");
    std::fs::create_dir(place.path("man1")).expect("a directory");
    place.run(&["man", "--dir", "man1"]).ok();
    for name in ["mainspring.1", "mainspring-jobs.1", "mainspring-jobs-retry.1", "mainspring-watch.1"] {
        assert!(place.path("man1").join(name).exists(), "{name}");
    }
    assert!(!place.path("mainspring.db").exists());
}

#[test]
fn jobs_are_found_by_the_text_of_their_last_error() {
    let place = Place::new();
    let worker = place.work(&[]);
    let broken = place.enqueue(&["sleep", r#"{"ms":1,"for":"1s"}"#, "--max-attempts", "1"]);
    let odd = place.enqueue(&["sleep", "7", "--max-attempts", "1"]);
    place.job_in(&broken, "failed");
    let text =
        place.job_in(&odd, "failed")["errors"][0]["message"].as_str().expect("an error").to_uppercase();
    drop(worker);
    let found = place.json(&["jobs", "--error", &text]);
    assert_eq!(found["jobs"].as_array().map(Vec::len), Some(1), "{found}");
    assert_eq!(found["jobs"][0]["id"], json!(odd));
    assert_eq!(place.run(&["jobs", "--error", "no such text"]).ok(), "no jobs match");
    assert_eq!(place.run(&["jobs", "retry", "--error", &text, "--dry-run"]).ok(), "would retry 1 job");
    assert_eq!(place.run(&["jobs", "delete", "--error", &text, "--yes"]).ok(), "delete: 1 job");
    place.run(&["job", &odd]).refused(3);
    assert_eq!(place.job(&broken)["state"], "failed");
}

#[test]
fn a_measurement_leaves_nothing_behind() {
    let place = Place::new();
    let id = place.enqueue(&["noop"]);
    let before = std::fs::read_dir(place.path("")).expect("a directory").count();
    let told = place.run(&["bench", "--jobs", "200", "--producers", "8"]).ok();
    for part in
        ["beside mainspring.db (sqlite", "200 JOBS OF 100 BYTES", "enqueue, 8 at a time", "jobs/s", "ms p50"]
    {
        assert!(told.contains(part), "{part}: {told}");
    }
    assert_eq!(std::fs::read_dir(place.path("")).expect("a directory").count(), before);
    assert_eq!(place.json(&["jobs"])["jobs"].as_array().map(Vec::len), Some(1));
    assert_eq!(place.job(&id)["state"], "ready");
}

#[test]
fn help_is_as_reviewed() {
    let place = Place::new();
    insta::assert_snapshot!("help", place.run(&["--help"]).ok());
    insta::assert_snapshot!("help_enqueue", place.run(&["enqueue", "--help"]).ok());
    insta::assert_snapshot!("help_jobs", place.run(&["jobs", "--help"]).ok());
}
