//! The least that a role needs: exactly the rights of the guide, and a whole life under them.

use std::sync::Arc;

use mainspring_core::Error;
use mainspring_core::error::OpenProblem;
use mainspring_core::job::{State, Verb, When};
use mainspring_core::store::{QueueChange, Receipt};
use mainspring_postgres::{Postgres, Time};
use mainspring_testkit::executor::block_on;
use mainspring_testkit::harness::{SECOND, fail, queue, retry, succeed, tag};
use mainspring_testkit::postgres::{Database, Options, Server};

use crate::client::{ALL, Client};
use crate::support::{Rig, options, real_seams};

const GUIDE: &str = include_str!("../../../../../docs/guides/postgres.md");

/// The rights that the guide gives to an engine's role.
fn grants() -> String {
    let blocks = GUIDE.split("```sql\n").skip(1).filter_map(|rest| rest.split("```").next());
    let grants = blocks.filter(|block| block.contains("TO mainspring_app")).collect::<String>();
    // Roles below are other ones; what later versions bring is not part of this.
    grants.split("ALTER DEFAULT").next().expect("grants").to_owned()
}

/// A database whose schema belongs to somebody else than the role that we are.
fn rig() -> (Rig, String) {
    // Roles belong to a server, so this test has one of its own.
    let server = Server::start(&Options::new()).expect("a server");
    let database = Arc::new(server.database().expect("a database"));
    let url = super::migrations::migrated(&database.url());
    let grants = grants();
    assert_eq!(grants.matches("GRANT").count(), 3, "{grants}");
    run(&database, "CREATE ROLE mainspring_app LOGIN");
    run(&database, &grants);
    let app = url.replace("//postgres@", "//mainspring_app@");
    assert_ne!(app, url);
    (Rig::at(&database, &app), app)
}

fn run(database: &Database, sql: &str) {
    database.sql(sql).unwrap_or_else(|error| panic!("{error}\n{sql}"));
}

#[tokio::test]
async fn the_rights_of_the_guide_are_enough_for_a_whole_life() {
    let (rig, app) = rig();
    let node = rig.node().await;
    let sessions = "SELECT 1 FROM pg_stat_activity WHERE application_name = 'mainspring' AND usename <> 'mainspring_app'";
    assert!(rig.sql(sessions).is_empty(), "nobody is anybody else");
    let ids = rig.put_many(4).await;
    let keyed = rig.put(rig.keyed("k")).await;
    let doomed = rig.job_with(|job| {
        job.deadline = Some(When::After(SECOND));
        job.options.tags = vec![tag("a")];
        job.run = Some(When::After(SECOND * 2));
    });
    rig.put(doomed).await;
    let mut replacing = rig.keyed("k");
    replacing.options.unique.as_mut().expect("a key").on_conflict = mainspring_core::job::OnConflict::Replace;
    rig.put(replacing).await;
    assert_eq!(rig.status(keyed).await.state, State::Cancelled);

    let claims: Vec<_> = rig.claim(node, 3).await.into_iter().map(|job| job.claim).collect();
    rig.end(node, claims[0], succeed()).await;
    rig.end(node, claims[1], fail()).await;
    rig.end(node, claims[2], retry(SECOND)).await;
    rig.apply(ids[1], Verb::Retry).await;
    rig.apply(ids[3], Verb::Cancel { why: String::new() }).await;
    rig.renew(node).await;
    rig.advance(SECOND);
    assert_eq!((rig.promote().await, rig.expire().await), (1, 1));
    let pause = QueueChange { paused: Some(true), ..QueueChange::default() };
    rig.store.configure(queue("q"), pause).await.expect("configured");
    let resume = QueueChange { paused: Some(false), ..QueueChange::default() };
    rig.store.configure(queue("q"), resume).await.expect("configured");
    rig.claim_one(node).await;
    rig.lose(node).await;
    rig.advance(SECOND * 86_400 * 400);
    assert!(rig.prune().await > 0);
    rig.store.diagnose().await.expect("a diagnosis");
    rig.assert_sound().await;

    for client in ALL {
        let mut client = Client::connect(client, &app).await;
        let mut tx = client.begin().await;
        let job = rig.keyed("mine");
        let receipt = tx.put(&*rig.store, job).await;
        assert!(matches!(receipt, Receipt::Created | Receipt::Existing(_)), "{receipt:?}");
        tx.commit().await;
    }
    rig.assert_sound().await;
}

#[tokio::test]
async fn the_role_can_open_what_is_up_to_date_and_change_no_table() {
    let (rig, app) = rig();
    let up_to_date = options(&app).migrate(true).time(Time::Clock);
    drop(Postgres::open(up_to_date, real_seams()).await.expect("nothing to do"));
    let client = crate::client::connect(&app).await;
    for ddl in [
        "DROP TABLE mainspring.jobs",
        "ALTER TABLE mainspring.jobs ADD COLUMN more int",
        "CREATE TABLE mainspring.more (a int)",
        "TRUNCATE mainspring.jobs",
        "CREATE SCHEMA more",
        "DROP SCHEMA mainspring CASCADE",
    ] {
        let error = client.batch_execute(ddl).await.expect_err(ddl);
        let code = error.code().map(|code| code.code().to_owned());
        assert_eq!(code.as_deref(), Some("42501"), "{ddl}: {error:?}");
    }
    // To migrate takes rights that it does not have, and that is what it is told.
    rig.sql("DROP SCHEMA mainspring CASCADE");
    let error = block_on(Postgres::migrate(&options(&app), &real_seams())).expect_err("no rights");
    assert!(matches!(error, Error::Open { problem: OpenProblem::Refused, .. }), "{error:?}");
}

#[test]
fn the_owner_of_a_schema_that_was_made_for_it_can_migrate() {
    let server = Server::start(&Options::new()).expect("a server");
    let database = Arc::new(server.database().expect("a database"));
    run(&database, "CREATE ROLE tenant LOGIN");
    run(&database, "CREATE SCHEMA mainspring AUTHORIZATION tenant");
    run(&database, "REVOKE CREATE ON DATABASE \"{}\" FROM PUBLIC".replace("{}", database.name()).as_str());
    super::migrations::migrated(&database.url().replace("//postgres@", "//tenant@"));
}
