//! The binary on Postgres: the same commands, what can go wrong, and a database that is lost and comes back.

use mainspring_testkit::postgres::{Bouncer, Database, Options, Server, Stop};
use rustix::process::Signal;
use serde_json::json;

use crate::support::Place;

fn database() -> Database {
    Server::shared().and_then(|server| server.database()).expect("a database")
}

/// A directory whose commands work on a database, which is migrated.
fn place(database: &Database) -> Place {
    let place = Place::at(&database.url());
    let said = place.run(&["migrate"]).ok();
    assert!(said.starts_with("postgres://") && said.ends_with(" is at schema version 1"), "{said}");
    place
}

#[test]
fn every_command_works_on_postgres() {
    let database = database();
    let place = place(&database);
    assert!(!place.path("mainspring.db").exists());
    let id = place.enqueue(&["noop", "{}", "--tag", "a", "--delay", "1h"]);
    assert_eq!(place.job(&id)["state"], "scheduled");
    let why = place.run(&["why", &id]).ok();
    assert!(why.contains("the job waits until"), "{why}");
    assert!(place.run(&["jobs", "--tag", "a"]).ok().contains("scheduled"));
    place.run(&["jobs", "cancel", "--tag", "a", "--yes"]).ok();
    assert_eq!(place.job(&id)["state"], "cancelled");

    let mut worker = place.work(&[]);
    assert_eq!(place.run(&["enqueue", "noop", "{}", "--wait"]).ok(), "null");
    assert_eq!(place.run(&["enqueue", "sleep", r#"{"ms":10}"#, "--unique", "k", "--wait"]).ok(), "null");
    place.run(&["enqueue", "noop", "--count", "500"]).ok();
    assert_eq!(place.json(&["nodes"])["nodes"].as_array().map(Vec::len), Some(1));
    place.run(&["queue", "pause", "default"]).ok();
    place.run(&["queue", "resume", "default"]).ok();
    place.run(&["enqueue", "noop", "{}", "--wait", "--priority", "9"]).ok();
    let queue = place.json(&["queue", "list"]);
    assert_eq!(queue["queues"][0]["name"], "default", "{queue}");
    let doctor = place.json(&["doctor"]);
    assert_eq!(
        (&doctor["problems"], &doctor["store"]["backend"]),
        (&json!(0), &json!("postgres")),
        "{doctor}"
    );
    let bad = place.enqueue(&["sleep", "7", "--max-attempts", "1"]);
    place.job_in(&bad, "failed");
    assert_eq!(place.json(&["jobs", "--error", "INVALID type"])["jobs"][0]["id"], json!(bad));
    let bench = place.json(&["bench", "--jobs", "100"]);
    assert!(bench["drain_per_second"].as_f64() > Some(0.0), "{bench}");
    assert_eq!(place.run(&["jobs", "--queue", "mainspring-bench"]).ok(), "no jobs match");
    worker.signal(Signal::TERM);
    assert!(worker.ended().success());
}

#[test]
fn job_in_a_line_that_is_unknown_is_found_by_doctor_and_can_be_ended() {
    let database = database();
    let place = place(&database);
    for verb in ["cancel", "delete"] {
        let bad = place.enqueue(&["noop"]);
        database.sql("UPDATE mainspring.ready SET line = 9999").expect("damage");
        let good = place.enqueue(&["noop"]);
        let found = place.run(&["doctor"]);
        assert!(found.code == Some(1) && found.stdout.contains("ready holds job number "), "{found:?}");
        let mut worker = place.work(&[]);
        place.job_in(&good, "succeeded");
        worker.signal(Signal::TERM);
        assert!(worker.ended().success());
        assert_eq!(place.job(&bad)["state"], "ready", "no node can run it");

        place.run(&["job", &bad, verb]).ok();
        if verb == "delete" {
            place.run(&["job", &bad]).refused(3);
        } else {
            assert_eq!(place.job(&bad)["state"], "cancelled");
        }
        let counts = place.json(&["queue", "list"])["queues"][0]["counts"].clone();
        assert_eq!((&counts["ready"], &counts["cancelled"]), (&json!(0), &json!(1)), "{counts}");
        assert_eq!(place.json(&["doctor"])["problems"], 0);
    }
}

#[test]
fn a_database_that_is_not_migrated_says_what_to_run() {
    let database = database();
    let place = Place::at(&database.url());
    for args in [&["jobs"][..], &["enqueue", "a"], &["work", "--queue", "default"], &["doctor"]] {
        let complaint = place.run(args).refused(4);
        assert!(complaint.contains("there is no store in it yet"), "{complaint}");
        assert!(complaint.contains("hint: run `mainspring migrate`"), "{complaint}");
    }
}

#[test]
fn the_printed_script_makes_the_schema() {
    let database = database();
    let place = Place::new();
    let address = format!("{}?schema=jobs", database.url());
    let script = place.run(&["migrate", "--print", "--store", &address]).ok();
    assert!(script.starts_with("--") && script.contains("\"jobs\".ready"), "{script}");
    database.sql(&script).expect("it runs");
    let place = Place::at(&address);
    place.enqueue(&["noop"]);
    assert_eq!(place.json(&["doctor"])["problems"], 0);
}

#[test]
fn an_address_where_nobody_answers_says_what_to_check() {
    let dir = tempfile::tempdir().expect("a directory");
    let socket = format!("host={} password=secret", dir.path().display());
    // A port that nobody listens on: discard.
    for address in ["postgres://app:secret@127.0.0.1:9/app", &socket] {
        let complaint = Place::new().run(&["jobs", "--store", address]).refused(4);
        assert!(complaint.contains("it cannot be reached"), "{complaint}");
        assert!(complaint.contains("and that the server runs"), "{complaint}");
        assert!(!complaint.contains("secret"), "{complaint}");
    }
}

#[test]
fn who_is_not_let_in_is_told_so_without_his_password() {
    let options = Options::new().tcp().access("host all app 127.0.0.1/32 scram-sha-256");
    let server = Server::start(&options).expect("a server");
    server.sql("postgres", "CREATE ROLE app LOGIN PASSWORD 'open sesame'").expect("a role");
    let port = server.port();
    let address = |login: &str, database: &str| format!("postgres://{login}@127.0.0.1:{port}/{database}");
    let wrong = [
        address("app:wrong-secret", "postgres"),
        address("app", "postgres"),
        address("postgres:wrong-secret", "missing"),
        // In, but without rights.
        address("app:open%20sesame", "postgres"),
    ];
    for address in &wrong {
        let complaint = Place::new().run(&["migrate", "--store", address]).refused(4);
        assert!(
            complaint.contains("it refuses access") || complaint.contains("it does not exist"),
            "{complaint}"
        );
        assert!(!complaint.contains("secret") && !complaint.contains("sesame"), "{complaint}");
    }
    let complaint = Place::new().run(&["migrate", "--store", &wrong[0]]).refused(4);
    assert!(complaint.contains("hint: check user, password, database and the role's rights"), "{complaint}");
    server.sql("postgres", "GRANT CREATE ON DATABASE postgres TO app").expect("a grant");
    let place = Place::at(&wrong[3]);
    let mut said = place.run(&["migrate"]).ok();
    said += &place.run(&["migrate", "--json"]).ok();
    said += &place.run(&["doctor"]).ok();
    assert!(said.contains(&format!("app@127.0.0.1:{port}/postgres")), "{said}");
    assert!(!said.contains("sesame"), "{said}");
}

#[test]
fn a_pooler_in_transaction_mode_is_enough() {
    let server = Server::shared().expect("a server");
    let database = server.database().expect("a database");
    let bouncer = Bouncer::start(&server).expect("a pooler");
    let place = Place::at(&format!("{}?pooler=transaction", bouncer.url(database.name())));
    place.run(&["migrate"]).ok();
    let mut worker = place.work(&[]);
    for _ in 0..3 {
        assert_eq!(place.run(&["enqueue", "noop", "{}", "--unique", "k", "--wait"]).ok(), "null");
    }
    assert_eq!(place.json(&["doctor"])["problems"], 0);
    worker.signal(Signal::TERM);
    assert!(worker.ended().success());
    assert_eq!(
        worker.lines().iter().filter(|line| line.contains("WARN")).count(),
        0,
        "{:#?}",
        worker.lines()
    );
}

#[test]
fn a_connection_that_cannot_be_made_secure_is_refused() {
    let server = Server::start(&Options::new().tcp()).expect("a server");
    let address = format!("{}?sslmode=require", server.tcp_url("postgres").expect("it listens"));
    let complaint = Place::new().run(&["jobs", "--store", &address]).refused(4);
    assert!(complaint.contains("the connection cannot be made secure"), "{complaint}");
    assert!(complaint.contains("hint: check `sslmode`"), "{complaint}");
}

#[test]
fn a_server_that_is_not_durable_is_accepted_only_by_name() {
    let server = Server::start(&Options::new().setting("fsync", "off")).expect("a server");
    let place = Place::at(&server.url("postgres"));
    let complaint = place.run(&["migrate"]).refused(4);
    assert!(complaint.contains("`fsync` is off"), "{complaint}");
    assert!(complaint.contains("--relaxed-durability"), "{complaint}");
    assert_eq!(place.json(&["migrate", "--relaxed-durability"])["durable"], false);
    place.run(&["enqueue", "a", "--relaxed-durability"]).ok();
}

#[test]
fn addresses_that_are_wrong_are_refused_without_repeating_them() {
    for address in [
        "postgres://app:secret@db/app?sslmod=require",
        "postgres://app:secret@db:99999/app",
        "host=db password=secret frobnicate=1",
        "host=db password='secret",
    ] {
        let complaint = Place::new().run(&["jobs", "--store", address]).refused(2);
        assert!(complaint.contains("its address is invalid"), "{complaint}");
        assert!(!complaint.contains("secret"), "{complaint}");
        let complaint = Place::new().run(&["migrate", "--print", "--store", address]).refused(2);
        assert!(!complaint.contains("secret"), "{complaint}");
    }
}

#[test]
fn a_worker_outlives_its_database_and_says_so_once() {
    let server = Server::start(&Options::new()).expect("a server");
    let place = Place::at(&server.url("postgres"));
    place.run(&["migrate"]).ok();
    let mut worker = place.work(&[]);
    assert_eq!(place.run(&["enqueue", "noop", "{}", "--wait"]).ok(), "null");
    let running = place.enqueue(&["sleep", r#"{"for":"3s"}"#]);
    place.job_in(&running, "running");

    server.stop(Stop::Immediate).expect("it stops");
    worker.says("the store does not answer");
    place.run(&["enqueue", "noop"]).refused(4);
    server.start_again().expect("it starts");
    worker.says("the store answers again");

    assert_eq!(place.run(&["enqueue", "noop", "{}", "--wait"]).ok(), "null");
    // It went on while the database was away, and its outcome was kept.
    let job = place.job_in(&running, "succeeded");
    assert_eq!((&job["claim"], &job["crashes"]), (&json!(1), &json!(0)));
    worker.signal(Signal::TERM);
    assert!(worker.ended().success());
    let outages = worker.lines().iter().filter(|line| line.contains("WARN")).count();
    assert_eq!(outages, 1, "{:#?}", worker.lines());
}

#[test]
fn dev_runs_on_postgres_and_names_it_without_secrets() {
    let options = Options::new().tcp().access("host all app 127.0.0.1/32 scram-sha-256");
    let server = Server::start(&options).expect("a server");
    server.sql("postgres", "CREATE ROLE app LOGIN SUPERUSER PASSWORD 'sesame'").expect("a role");
    let place = Place::at(&format!("postgres://app:sesame@127.0.0.1:{}/postgres", server.port()));
    let mut dev = place.start(&["dev"]);
    dev.says(" succeeded demo.mail");
    dev.signal(Signal::INT);
    assert!(dev.ended().success());
    dev.says("left in postgres://app@127.0.0.1");
    assert!(!dev.lines().join("\n").contains("sesame"), "{:#?}", dev.lines());
}
