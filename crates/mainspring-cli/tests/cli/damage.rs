//! Stores that are damaged, or that nobody can write to: what `doctor` says, and that the rest runs on.

use mainspring::rusqlite::Connection;

use super::support::{Place, until};

fn file(place: &Place) -> Connection {
    Connection::open(place.path("mainspring.db")).expect("the store's file")
}

#[test]
fn unreadable_job_is_named_and_the_others_run() {
    let place = Place::new();
    let bad = place.enqueue(&["noop"]);
    let sql = "UPDATE mainspring_jobs SET options = CAST(x'FF' AS TEXT)";
    assert_eq!(file(&place).execute(sql, []).expect("damage"), 1);
    let good = place.enqueue(&["noop"]);
    let found = place.run(&["doctor"]);
    assert!(found.code == Some(1) && found.stdout.contains(&format!("job {bad}: options")), "{found:?}");

    let _worker = place.work(&[]);
    place.job_in(&good, "succeeded");
    let job = place.job_in(&bad, "suspended");
    assert_eq!(job["reason"], "unreadable");
    assert!(place.run(&["why", &bad]).ok().contains("the store cannot read the job"));
    assert!(place.run(&["jobs"]).ok().contains("suspended (unreadable)"));
    assert_eq!(place.run(&["job", &bad, "resume"]).code, Some(1), "it cannot be read yet");
    place.run(&["job", &bad, "delete"]).ok();
    assert_eq!(place.json(&["doctor"])["problems"], 0);
}

#[test]
fn doctor_tells_that_nobody_can_write() {
    let place = Place::new();
    place.enqueue(&["noop"]);
    let other = file(&place);
    other.execute_batch("BEGIN IMMEDIATE").expect("the lock");
    let found = place.run(&["doctor"]);
    assert!(found.code == Some(1) && found.stdout.contains("the store accepts no writes"), "{found:?}");
    assert!(found.stdout.contains("another process keeps the database locked"), "{found:?}");
    other.execute_batch("ROLLBACK").expect("the lock is let go");
    assert_eq!(place.json(&["doctor"])["problems"], 0);
}

#[test]
fn doctor_says_how_far_it_got() {
    let place = Place::new();
    place.enqueue(&["noop"]);
    let found = place.run(&["doctor", "--within", "0s"]);
    assert!(
        found.code == Some(1) && found.stdout.contains("did not finish within 0s: it had read no job yet"),
        "{found:?}"
    );
}

#[test]
fn silent_node_that_holds_nothing_is_not_called_live() {
    let place = Place::new();
    let worker = place.work(&["--lease", "500ms"]);
    drop(worker);
    let sql = "UPDATE mainspring_nodes SET state = 0, lease_until = 1";
    until("the node is there", || (file(&place).execute(sql, []).ok()? == 1).then_some(()));
    let found = place.run(&["doctor"]).ok();
    assert!(found.contains("1 node, 0 live") && found.contains("it holds no jobs"), "{found}");
}
