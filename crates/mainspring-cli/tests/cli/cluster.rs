//! Five real worker processes that join, leave, die and freeze: at no moment more jobs of a key run than its limit allows.
//!
//! Each job notes its start and its end in a file, and the file is the judge. Its lines are in the order of events: a job begins after
//! its claim and ends before its outcome. The test notes there what it is about to do to a worker. The runs of a worker end with that note for
//! the judge: a killed one takes them along, and a frozen one loses its claims, whatever it still does when it continues.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::OpenOptions;
use std::io::Write;

use mainspring_testkit::postgres::Server;
use rustix::process::Signal;

use crate::support::{Place, Running, until};

/// How many jobs of a key may run at once.
const MAX: usize = 2;
const KEYS: usize = 3;
/// Jobs of each key.
const JOBS: usize = 24;
/// The lease of the workers: long for a busy machine, short for a test.
const LEASE: &str = "4s";

/// What a job does. Its worker is the parent of the guard that is its own parent.
const SCRIPT: &str = r#"w=$(cut -d' ' -f4 /proc/$PPID/stat); echo "start $1 $w $$" >> ledger; sleep 0.05; echo "end $1 $w $$" >> ledger"#;

#[test]
fn a_limit_holds_at_each_moment_on_sqlite() {
    let place = Place::new();
    place.run(&["migrate"]).ok();
    storm(&place);
}

#[test]
fn a_limit_holds_at_each_moment_on_postgres() {
    let database = Server::shared().and_then(|server| server.database()).expect("a database");
    let place = Place::at(&database.url());
    place.run(&["migrate"]).ok();
    storm(&place);
}

fn note(place: &Place, line: &str) {
    let file = OpenOptions::new().create(true).append(true).open(place.path("ledger"));
    writeln!(file.expect("the ledger"), "{line}").expect("noted");
}

fn worker(place: &Place) -> Running {
    place.work(&["--allow-exec", "--lease", LEASE])
}

/// How many runs have ended.
fn ended(place: &Place) -> usize {
    place.read("ledger").map_or(0, |ledger| ledger.lines().filter(|line| line.starts_with("end ")).count())
}

fn storm(place: &Place) {
    place.run(&["limit", "set", "device", "--create", "--max", &MAX.to_string()]).ok();
    for key in 0..KEYS {
        let input = serde_json::json!({ "argv": ["sh", "-c", SCRIPT, "sh", key.to_string()] }).to_string();
        let (limit, count) = (format!("device={key}"), JOBS.to_string());
        place.run(&["enqueue", "exec", &input, "--limit", &limit, "--count", &count]).ok();
    }
    let mut workers: Vec<Running> = (0..5).map(|_| worker(place)).collect();
    let all = KEYS * JOBS;
    let come = |part: usize| until("jobs to end", || (ended(place) >= all * part / 8).then_some(()));

    come(1);
    let killed = workers.remove(0);
    note(place, &format!("gone {}", killed.pid()));
    killed.signal(Signal::KILL);
    workers.push(worker(place));

    come(2);
    let mut leaving = workers.remove(0);
    leaving.signal(Signal::TERM);
    assert!(leaving.ended().success());

    come(3);
    let frozen = workers.remove(0);
    note(place, &format!("gone {}", frozen.pid()));
    frozen.signal(Signal::STOP);
    until("the frozen one to hold nothing", || {
        let nodes = place.json(&["nodes"]);
        let its = nodes["nodes"].as_array()?.iter().find(|node| node["pid"] == frozen.pid())?;
        (its["claims"] == 0).then_some(())
    });
    frozen.signal(Signal::CONT);
    workers.push(worker(place));

    until("all jobs to succeed", || {
        let jobs = place.json(&["jobs", "--kind", "exec", "--state", "succeeded", "--limit", "1000"]);
        (jobs["jobs"].as_array()?.len() == all).then_some(())
    });
    drop((killed, frozen, workers));
    judge(&place.read("ledger").expect("a ledger"));
    for key in 0..KEYS {
        let key = place.json(&["limit", "show", "device", &key.to_string()]);
        assert_eq!(key["in_use"], 0, "{key}");
    }
}

fn judge(ledger: &str) {
    let mut running: BTreeMap<&str, BTreeSet<(&str, &str)>> = BTreeMap::new();
    let mut gone = BTreeSet::new();
    let mut most = 0;
    for (at, line) in ledger.lines().enumerate() {
        let words: Vec<&str> = line.split(' ').collect();
        match words.as_slice() {
            ["gone", worker] => {
                gone.insert(*worker);
                for runs in running.values_mut() {
                    runs.retain(|(by, _)| by != worker);
                }
            }
            ["start", key, worker, run] if !gone.contains(worker) => {
                let runs = running.entry(key).or_default();
                runs.insert((worker, run));
                most = most.max(runs.len());
                assert!(runs.len() <= MAX, "line {at}: {} runs of key {key}: {runs:?}\n{ledger}", runs.len());
            }
            ["end", key, worker, run] => {
                running.entry(key).or_default().remove(&(*worker, *run));
            }
            ["start", ..] => {}
            other => panic!("line {at}: {other:?}"),
        }
    }
    assert_eq!(most, MAX, "the limit was never reached, so it was not tried");
}
