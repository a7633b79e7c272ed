//! Migrations: by many at once, killed in the middle, refused, and by hand.

use std::sync::Arc;

use mainspring_core::Error;
use mainspring_core::error::OpenProblem;
use mainspring_core::store::Receipt;
use mainspring_postgres::{Postgres, SCHEMA_VERSION, script};
use mainspring_testkit::executor::{block_on, race};
use mainspring_testkit::postgres::Database;

use crate::client::connect;
use crate::support::{Rig, empty, options, real_seams, with};

/// Migrates the schema of an address, and gives the address back.
pub(crate) fn migrated(url: &str) -> String {
    block_on(Postgres::migrate(&options(url), &real_seams())).expect("it migrates");
    url.to_owned()
}

fn try_migrate(url: &str) -> Result<u32, Error> {
    block_on(Postgres::migrate(&options(url), &real_seams()))
}

/// The schema's tables, columns, defaults, settings and indexes.
fn layout(database: &Database, schema: &str) -> Vec<Vec<Option<String>>> {
    let sql = "
        SELECT c.relname, c.relkind, c.reloptions::text, a.attnum, a.attname, format_type(a.atttypid, a.atttypmod),
            a.attnotnull, a.attidentity, a.attcollation::regcollation, a.attstorage, pg_get_expr(d.adbin, d.adrelid)
        FROM pg_class c LEFT JOIN pg_attribute a ON a.attrelid = c.oid AND a.attnum > 0
            LEFT JOIN pg_attrdef d ON d.adrelid = c.oid AND d.adnum = a.attnum
        WHERE c.relnamespace = 'SCHEMA'::regnamespace ORDER BY c.relname, a.attnum;
        SELECT indexname, replace(indexdef, 'SCHEMA.', '') FROM pg_indexes WHERE schemaname = 'SCHEMA' ORDER BY 1;
        SELECT conname, conrelid::regclass::text, pg_get_constraintdef(oid) FROM pg_constraint
        WHERE connamespace = 'SCHEMA'::regnamespace ORDER BY 1, 2;
        SELECT key FROM SCHEMA.meta ORDER BY key;
        SELECT obj_description('SCHEMA.meta'::regclass) = 'Mainspring store ' || value FROM SCHEMA.meta WHERE key = 'store'";
    let rows = database.sql(&sql.replace("SCHEMA", schema)).expect("the layout");
    let plain = |text: String| text.replace(&format!("{schema}."), "");
    rows.into_iter().map(|row| row.into_iter().map(|value| value.map(plain)).collect()).collect()
}

#[test]
fn five_at_once_make_one_schema() {
    let database = empty();
    let url = database.url();
    let racers = (0..5)
        .map(|_| Box::new(|| try_migrate(&url)) as Box<dyn FnOnce() -> Result<u32, Error> + Send>)
        .collect();
    let found: Vec<u32> = race(racers).into_iter().map(|answer| answer.expect("it migrates")).collect();
    assert!(found.iter().all(|version| [0, SCHEMA_VERSION].contains(version)), "{found:?}");
    let rows = database.sql("SELECT value FROM mainspring.meta WHERE key = 'version'").expect("rows");
    assert_eq!(rows, [[Some(SCHEMA_VERSION.to_string())]]);
    assert_eq!(try_migrate(&url).expect("nothing to do"), SCHEMA_VERSION);
}

#[test]
fn five_that_open_at_once_all_get_the_same_store() {
    let database = Arc::new(empty());
    let url = database.url();
    let open = || {
        let store = block_on(Postgres::open(options(&url).migrate(true), real_seams())).expect("it opens");
        block_on(mainspring_core::store::Store::close(&store));
    };
    race((0..5).map(|_| Box::new(open) as Box<dyn FnOnce() + Send>).collect());
    let rig = Rig::at(&database, &url);
    assert_eq!(block_on(rig.enqueue(rig.job())), Receipt::Created);
}

/// Lets the statement with a number wait for a lock that the test holds: event triggers run inside of the migration.
const STOPS: &str = "
    CREATE SEQUENCE ddl; CREATE TABLE stop_at (n bigint);
    CREATE FUNCTION stop() RETURNS event_trigger LANGUAGE plpgsql AS $$ BEGIN
        IF nextval('public.ddl') = (SELECT n FROM public.stop_at) THEN PERFORM pg_advisory_xact_lock(7); END IF;
    END $$;
    CREATE EVENT TRIGGER stop ON ddl_command_end EXECUTE FUNCTION stop();";

#[tokio::test]
async fn a_migration_that_is_killed_in_the_middle_leaves_nothing_and_the_next_one_succeeds() {
    let database = empty();
    let url = database.url();
    // How many statements there are.
    database.sql(STOPS).expect("an event trigger");
    migrated(&with(&url, "schema=trial"));
    let last: i64 = database.sql("SELECT last_value FROM ddl").expect("a number")[0][0]
        .as_deref()
        .and_then(|text| text.parse().ok())
        .expect("a number");
    assert!(last > 20, "{last} statements");
    let holder = connect(&url).await;
    holder.batch_execute("SELECT pg_advisory_lock(7)").await.expect("the lock");

    for stop in [1, 2, last / 2, last - 1, last] {
        let set = format!(
            "DELETE FROM stop_at; INSERT INTO stop_at VALUES ({stop}); SELECT setval('ddl', 1, false);"
        );
        database.sql(&set).expect("set");
        let racers = 3;
        let answers = std::thread::scope(|scope| {
            let threads: Vec<_> = (0..racers).map(|_| scope.spawn(|| try_migrate(&url))).collect();
            kill_who_waits(&database);
            threads.into_iter().map(|thread| thread.join().expect("no panic")).collect::<Vec<_>>()
        });
        let refused = answers.iter().filter(|answer| answer.is_err()).count();
        assert_eq!(refused, 1, "one was killed, the others went on: {answers:?}");
        assert_eq!(try_migrate(&url).expect("nothing to do"), SCHEMA_VERSION);
        assert_eq!(layout(&database, "mainspring"), layout(&database, "trial"), "stopped at {stop}");
        database.sql("DROP SCHEMA mainspring CASCADE").expect("dropped");
    }
    drop(holder);
}

/// Ends the session that waits for the lock of the test, and waits until it is gone.
fn kill_who_waits(database: &Database) {
    let waiting = "SELECT pid FROM pg_locks WHERE locktype = 'advisory' AND objid = 7 AND NOT granted
        AND database = (SELECT oid FROM pg_database WHERE datname = current_database())";
    let start = crate::support::now();
    loop {
        let rows = database.sql(waiting).expect("locks");
        if let [row] = rows.as_slice() {
            let schema = database.sql("SELECT to_regnamespace('mainspring')").expect("a schema");
            assert_eq!(schema, [[None]], "nothing is to be seen of a migration in the middle");
            let pid = row[0].as_deref().expect("a process");
            database.sql(&format!("SELECT pg_terminate_backend({pid}, 10000)")).expect("terminated");
            return;
        }
        assert!(crate::support::now() - start < mainspring_testkit::patience::PATIENCE, "nobody waits");
    }
}

/// What a store says when it cannot be opened.
async fn problem(url: &str, migrate: bool) -> OpenProblem {
    let opened = Postgres::open(options(url).migrate(migrate), real_seams()).await;
    match opened.expect_err("it does not open") {
        Error::Open { problem, .. } => problem,
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn a_schema_that_is_too_new_is_refused_and_left_alone() {
    let database = empty();
    let url = migrated(&database.url());
    let newer = "UPDATE mainspring.meta SET value = '99' WHERE key = 'version'";
    database.sql(newer).expect("updated");
    // A newer program says that ours may still work here.
    let opened = Postgres::open(options(&url), real_seams()).await;
    drop(opened.expect("newer, but not too new"));
    database.sql("UPDATE mainspring.meta SET value = '98' WHERE key = 'min_version'").expect("updated");
    let before = database.sql("SELECT * FROM mainspring.meta ORDER BY key").expect("rows");
    for migrate in [false, true] {
        let problem = problem(&url, migrate).await;
        assert!(
            matches!(problem, OpenProblem::TooNew { needed: 98, known } if known == SCHEMA_VERSION),
            "{problem:?}"
        );
    }
    assert!(matches!(try_migrate(&url), Err(Error::Open { problem: OpenProblem::TooNew { .. }, .. })));
    assert_eq!(database.sql("SELECT * FROM mainspring.meta ORDER BY key").expect("rows"), before);
}

#[tokio::test]
async fn a_schema_of_a_development_build_is_refused_and_left_alone() {
    let meta = "SELECT * FROM mainspring.meta ORDER BY key";
    let made_by = [
        "UPDATE mainspring.meta SET value = 'x' WHERE key = 'schema_1'",
        "DELETE FROM mainspring.meta WHERE key = 'schema_1'",
    ];
    let database = empty();
    let url = migrated(&database.url());
    for other in made_by {
        database.sql(other).expect("changed");
        let before = database.sql(meta).expect("rows");
        for migrate in [false, true] {
            let problem = problem(&url, migrate).await;
            assert!(matches!(problem, OpenProblem::DevelopmentBuild { version: 1 }), "{other}: {problem:?}");
        }
        assert_eq!(database.sql(meta).expect("rows"), before, "{other}");
    }
}

#[tokio::test]
async fn a_database_that_is_not_migrated_is_too_old_and_left_alone() {
    let database = empty();
    let problem = problem(&database.url(), false).await;
    assert!(
        matches!(problem, OpenProblem::TooOld { found: 0, needed } if needed == SCHEMA_VERSION),
        "{problem:?}"
    );
    let schema = database.sql("SELECT to_regnamespace('mainspring')").expect("a row");
    assert_eq!(schema, [[None]]);
}

#[tokio::test]
async fn a_schema_of_somebody_else_is_not_touched() {
    let database = empty();
    database
        .sql("CREATE SCHEMA mainspring; CREATE TABLE mainspring.meta (key text, value text)")
        .expect("made");
    for migrate in [false, true] {
        let problem = problem(&database.url(), migrate).await;
        assert!(matches!(problem, OpenProblem::NotAStore), "{problem:?}");
    }
    database.sql("DROP TABLE mainspring.meta; CREATE TABLE mainspring.meta (a int)").expect("made");
    let problem = problem(&database.url(), true).await;
    assert!(matches!(problem, OpenProblem::NotAStore), "{problem:?}");
}

#[test]
fn the_script_makes_what_a_migration_makes() {
    let database = empty();
    let url = migrated(&with(&database.url(), "schema=one"));
    for (schema, prepare) in [("two", ""), ("mainspring", ""), ("three", "CREATE SCHEMA three;")] {
        database.sql(prepare).expect("prepared");
        database.sql(&script(schema)).expect("the script runs");
        assert_eq!(layout(&database, schema), layout(&database, "one"), "{schema}");
        // Not twice, and nothing is changed by the attempt.
        let before = database.sql(&format!("SELECT * FROM {schema}.meta ORDER BY key")).expect("rows");
        database.sql(&script(schema)).expect_err("it is there");
        let after = database.sql(&format!("SELECT * FROM {schema}.meta ORDER BY key")).expect("rows");
        assert_eq!(before, after);
        let url = with(&database.url(), &format!("schema={schema}"));
        assert_eq!(try_migrate(&url).expect("nothing to do"), SCHEMA_VERSION);
    }
    assert_eq!(try_migrate(&url).expect("nothing to do"), SCHEMA_VERSION);
}

/// Whatever is accepted as the name of a schema must work as one.
#[tokio::test]
async fn a_name_that_means_something_in_sql_is_no_trouble() {
    let database = Arc::new(empty());
    for name in ["user", "select", "a", "a_1", "mainspring_2"] {
        let url = with(&database.url(), &format!("schema={name}"));
        let Ok(options) = mainspring_postgres::Options::new(&url) else { continue };
        Postgres::migrate(&options, &real_seams()).await.unwrap_or_else(|error| panic!("{name}: {error:?}"));
        let rig = Rig::at(&database, &url);
        rig.put_one().await;
        let node = rig.node().await;
        rig.claim_one(node).await;
        rig.assert_sound().await;
    }
}
