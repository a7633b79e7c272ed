//! The page on JSON and the program say the same, field by field.

use std::collections::BTreeMap;

use rustix::process::Signal;
use serde_json::Value;

use crate::support::Place;

const PAGE: &str = include_str!("../../../../docs/json.md");

/// The fields of one part of the page, with their types.
fn fields(part: &str) -> BTreeMap<&'static str, &'static str> {
    let mut parts = PAGE.split("\n#").skip(1);
    let part = parts.find(|text| text.trim_start_matches('#').trim_start().starts_with(&format!("{part}\n")));
    let rows = part.expect("a part of the page").lines().filter_map(|line| line.strip_prefix("| `"));
    rows.map(|row| {
        let (name, rest) = row.split_once('`').expect("a name");
        (name, rest.trim_start_matches(" | ").split(" |").next().expect("a type"))
    })
    .collect()
}

/// Whether a value is of a type as the page writes it.
fn is_a(value: &Value, kind: &str) -> bool {
    kind.split(" or ").any(|kind| match kind {
        "any" => true,
        "string" => value.is_string(),
        "number" => value.is_number(),
        "boolean" => value.is_boolean(),
        "array" => value.is_array(),
        "object" => value.is_object(),
        "null" => value.is_null(),
        other => panic!("the page has a type `{other}`"),
    })
}

/// Holds an object against parts of the page: no field is missing, none is unknown, each has its type.
#[track_caller]
fn as_documented(value: &Value, parts: &[&str]) {
    let documented: BTreeMap<_, _> = parts.iter().flat_map(|part| fields(part)).collect();
    assert!(!documented.is_empty(), "{parts:?}");
    let object = value.as_object().unwrap_or_else(|| panic!("{parts:?}: {value}"));
    for (name, kind) in &documented {
        let (kind, optional) = kind.strip_suffix(", optional").map_or((*kind, false), |kind| (kind, true));
        match object.get(*name) {
            None => assert!(optional, "{parts:?}: `{name}` is documented and not there: {value}"),
            Some(value) => assert!(is_a(value, kind), "{parts:?}: `{name}` is no {kind}: {value}"),
        }
    }
    for name in object.keys() {
        assert!(documented.contains_key(name.as_str()), "{parts:?}: `{name}` is not documented: {value}");
    }
}

#[test]
fn json_of_jobs_is_as_documented() {
    let place = Place::new();
    let options = [
        "--timeout",
        "30s",
        "--backoff",
        "fixed:1s",
        "--unique",
        "k",
        "--tag",
        "t",
        "--label",
        "gpu",
        "--header",
        "a=b",
        "--deadline",
        "1h",
        "--limit",
        "gpu*2=a",
    ];
    place.run(&["migrate"]).ok();
    place.run(&["limit", "set", "gpu", "--create", "--max", "2"]).ok();
    let rich = place.enqueue(&[&["noop", "{}"], &options[..]].concat());
    as_documented(&place.json(&["enqueue", "noop"]), &["Enqueued"]);
    let list = place.json(&["jobs"]);
    assert_eq!(list.as_object().map(serde_json::Map::len), Some(2), "{list}");
    for job in list["jobs"].as_array().expect("jobs") {
        as_documented(job, &["A job in a list"]);
    }
    let optional = fields("A job in a list").values().filter(|kind| kind.ends_with("optional")).count();
    // A parent and an origin are what is not given on a command line.
    let given = fields("A job in a list").keys().filter(|name| list["jobs"][1].get(**name).is_some()).count();
    assert_eq!(given, fields("A job in a list").len() - 2, "{optional} are optional: {list}");
    as_documented(&place.job(&rich), &["A job in a list", "A job by itself"]);
    as_documented(&place.json(&["jobs", "hold", "--kind", "noop", "--dry-run"]), &["Verbs"]);
    as_documented(&place.json(&["job", &rich, "hold", "--why", "for now"]), &["Verbs"]);
    let mut why = place.json(&["why", &rich]);
    let note = why.as_object_mut().and_then(|why| why.remove("note"));
    assert_eq!(note, Some("for now".into()), "a field of its own");
    as_documented(&why, &["Why"]);
    let plain = list["jobs"][0]["id"].as_str().expect("an id");
    let mut why = place.json(&["why", plain]);
    assert!(why.as_object_mut().is_some_and(|why| why.remove("queue").is_some()), "a field of its own");
    as_documented(&why, &["Why"]);
    let later = place.enqueue(&["noop", "--delay", "1h"]);
    let why = place.json(&["why", &later]);
    assert_eq!(why["why"], "scheduled");
    assert_eq!(why["until"], place.job(&later)["run_at"], "a time is a time everywhere");
    as_documented(&place.json(&["signal", &rich, "go", "1", "--sender", "me"]), &["Signal"]);
    let message = &place.job(&rich)["inbox"][0];
    let names: Vec<&str> = message.as_object().expect("a message").keys().map(String::as_str).collect();
    assert_eq!(names, ["at", "body", "sender", "signal"]);
}

#[test]
fn json_of_stores_is_as_documented() {
    let place = Place::new();
    as_documented(&place.json(&["migrate"]), &["A store"]);
    assert_eq!(place.json(&["migrate", "--print"])["script"], Value::Null);
    place.enqueue(&["noop"]);
    for queue in place.json(&["queue", "list"])["queues"].as_array().expect("queues") {
        as_documented(queue, &["A queue"]);
    }
    as_documented(&place.json(&["queue", "pause", "default"]), &["A queue"]);
    as_documented(&place.json(&["schedule", "set", "s", "noop", "--at", "@daily"]), &["A schedule"]);
    as_documented(&place.json(&["schedule", "pause", "s", "--note", "why"]), &["A schedule"]);
    as_documented(&place.json(&["schedule", "show", "s"]), &["A schedule"]);
    as_documented(&place.json(&["limit", "set", "gpu", "--create", "--max", "1"]), &["A limit"]);
    as_documented(&place.json(&["limit", "set", "gpu", "a", "--max", "2"]), &["A limit key"]);
    as_documented(&place.json(&["limit", "show", "gpu"]), &["A limit"]);
    as_documented(&place.json(&["limit", "show", "gpu", "a"]), &["A limit key"]);
    place.run(&["queue", "set", "default", "--max-running", "9"]).ok();
    let listed = place.json(&["limit", "list"]);
    as_documented(&listed["limits"][0], &["A limit"]);
    as_documented(&listed["totals"][0], &["A total"]);
    let doctor = place.json(&["doctor"]);
    as_documented(&doctor, &["Doctor"]);
    as_documented(&doctor["store"], &["A store"]);
    let finding = doctor["findings"][0].as_object().expect("a finding").keys().cloned().collect::<Vec<_>>();
    assert_eq!(finding, ["hint", "problem", "what"]);
    let mut worker = place.start(&["work", "--queue", "default:8", "--label", "gpu", "--json"]);
    worker.says("started");
    for node in place.json(&["nodes"])["nodes"].as_array().expect("nodes") {
        as_documented(node, &["A node"]);
        for queue in node["activity"].as_array().expect("activity") {
            as_documented(queue, &["Activity"]);
        }
    }
    worker.signal(Signal::TERM);
    assert!(worker.ended().success());
    let events: Vec<Value> =
        worker.lines().iter().filter_map(|line| serde_json::from_str(line).ok()).collect();
    assert_eq!((&events[0]["event"], &events[1]["event"]), (&"started".into(), &"stopped".into()));
}

#[test]
fn json_of_watch_and_bench_is_as_documented() {
    let place = Place::new();
    place.enqueue(&["noop"]);
    let said = place.run(&["watch", "--for", "100ms", "--json"]).ok();
    let lines: Vec<Value> = said.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect();
    assert_eq!(lines.len(), 2, "{said}");
    as_documented(&lines[0], &["Events"]);
    as_documented(&lines[1], &["Figures"]);
    assert_eq!(lines[1]["counts"]["ready"], 1);
    let bench = place.json(&["bench", "--jobs", "50"]);
    as_documented(&bench, &["Bench"]);
    as_documented(&bench["store"], &["A store"]);
}

#[test]
fn json_of_scripts_and_pages_is_as_documented() {
    let place = Place::new();
    let names = |value: Value| value.as_object().expect("an object").keys().cloned().collect::<Vec<_>>();
    assert_eq!(names(place.json(&["completions", "bash"])), ["script", "shell"]);
    assert_eq!(names(place.json(&["man", "jobs"])), ["name", "page"]);
}
