//! Durability: a server that does not keep what it acknowledges is refused, and our sessions insist.

use std::sync::Arc;

use mainspring_core::Error;
use mainspring_core::error::OpenProblem;
use mainspring_core::store::{Producers, Store};
use mainspring_postgres::{Durability, Postgres};
use mainspring_testkit::postgres::{Bouncer, Database, Options, Server};

use crate::support::{Rig, database, options, real_seams, with};

#[tokio::test]
async fn a_server_without_fsync_is_refused_unless_that_was_asked_for() {
    let server = Server::start(&Options::new().setting("fsync", "off")).expect("a server");
    let database = server.database().expect("a database");
    let full = options(&database.url()).migrate(true);
    let error = Postgres::open(full.clone(), real_seams()).await.expect_err("not durable");
    let Error::Open { problem: OpenProblem::NotDurable { setting }, .. } = &error else {
        panic!("{error:?}")
    };
    assert_eq!(*setting, "fsync");
    assert_eq!(tables(&database), "0", "and left alone");
    let relaxed = Postgres::open(full.durability(Durability::Relaxed), real_seams()).await.expect("relaxed");
    assert!(!relaxed.describe().durable);
    assert_ne!(tables(&database), "0");
}

fn tables(database: &Database) -> String {
    let rows = database.sql("SELECT count(*) FROM pg_tables WHERE schemaname = 'mainspring'").expect("rows");
    rows[0][0].clone().expect("a count")
}

/// What our sessions commit with, seen by a trigger of the test's own.
async fn commits_with(setup: &str, durability: Durability, pooled: bool) -> String {
    let database = Arc::new(database());
    let bouncer = pooled.then(|| Bouncer::start(database.server()).expect("a pooler"));
    let pooled = bouncer.as_ref().map(|bouncer| with(&bouncer.url(database.name()), "pooler=transaction"));
    database.sql(&setup.replace("DB", database.name())).expect("set");
    database
        .sql(
            "CREATE TABLE seen (setting text);
            CREATE FUNCTION look() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
                INSERT INTO seen VALUES (current_setting('synchronous_commit')); RETURN NULL; END $$;
            CREATE TRIGGER look AFTER INSERT ON mainspring.jobs EXECUTE FUNCTION look();",
        )
        .expect("a trigger");
    let rig = Rig::new();
    let options = options(&pooled.unwrap_or_else(|| database.url())).durability(durability);
    let store = Postgres::open(options, real_seams()).await.expect("the store opens");
    store.enqueue(vec![rig.job()]).await.expect("enqueue");
    let seen = database.sql("SELECT DISTINCT setting FROM seen").expect("rows");
    seen[0][0].clone().expect("a setting")
}

#[tokio::test]
async fn our_sessions_wait_for_stable_storage_whatever_the_default_is() {
    let off = "ALTER DATABASE \"DB\" SET synchronous_commit = off";
    let apply = "ALTER DATABASE \"DB\" SET synchronous_commit = remote_apply";
    for pooled in [false, true] {
        assert_eq!(commits_with(off, Durability::Full, pooled).await, "on");
        assert_eq!(commits_with("SELECT 1", Durability::Full, pooled).await, "on");
        // What is stronger is left as it is: the operator wants it so.
        assert_eq!(commits_with(apply, Durability::Full, pooled).await, "remote_apply");
        assert_eq!(commits_with("SELECT 1", Durability::Relaxed, pooled).await, "off");
    }
}
