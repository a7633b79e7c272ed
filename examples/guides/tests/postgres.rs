//! The pages on Postgres are complete, and what they tell people to run works: rights first, then a store under these
//! rights, then the queries.

use mainspring::{Context, Engine, Job};
use mainspring_testkit::postgres::{Database, Options, Server};
use serde::{Deserialize, Serialize};

const GUIDE: &str = include_str!("../../../docs/guides/postgres.md");
const TABLES: &str = include_str!("../../../docs/tables-postgres.md");

#[derive(Serialize, Deserialize, Job)]
#[job(max_attempts = 2)]
struct Sample {
    fails: bool,
}

async fn sample(_ctx: Context, job: Sample) -> mainspring::HandlerResult<()> {
    if job.fails { Err("it was to fail".into()) } else { Ok(()) }
}

/// The blocks of SQL on a page, in order.
fn blocks(page: &str) -> Vec<&str> {
    page.split("```sql\n").skip(1).filter_map(|rest| rest.split("```").next()).collect()
}

/// Runs statements as the guide says, and says which of them did not work.
fn run(database: &Database, sql: &str) {
    database.sql(sql).unwrap_or_else(|error| panic!("{error}\n{sql}"));
}

/// The address of a database for another role than the one who made it.
fn address(database: &Database, role: &str) -> String {
    database.url().replace("//postgres@", &format!("//{role}@"))
}

/// A store with jobs that succeeded, that wait for a node, and that wait for another attempt.
async fn filled(address: &str) -> Result<Engine, mainspring::Error> {
    let engine = Engine::open(address).await?;
    let node = engine.node().handle(sample).queue("default", 2).start().await?;
    let job = engine.enqueue(Sample { fails: false }).tag("a").unique("k").await?;
    engine.enqueue(Sample { fails: true }).await?;
    engine.enqueue(Sample { fails: false }).queue("nobody").await?;
    engine.result(&job).await?;
    engine.queues().pause("nobody").await?;
    engine.jobs().cancel(mainspring::admin::Target::All).await?;
    node.shutdown().await;
    Ok(engine)
}

#[tokio::test]
async fn the_rights_of_the_guide_are_enough_and_its_queries_run() {
    // Roles belong to a server, so this test has one of its own.
    let server = Server::start(&Options::new()).expect("a server");
    let database = server.database().expect("a database");
    let blocks = blocks(GUIDE);
    let (roles, rest) = blocks.split_first().expect("the guide has SQL");
    run(&database, roles);
    run(&database, &format!("GRANT CREATE ON DATABASE {} TO mainspring_owner", database.name()));
    let owner = address(&database, "mainspring_owner");
    Engine::options().migrate().open(&owner).await.expect("the owner migrates").close().await;

    let app = address(&database, "mainspring_app");
    let refused = Engine::open(&app).await.expect_err("it has no rights yet");
    assert!(refused.to_string().contains("it refuses access"), "{refused}");
    let (grants, queries) = rest.split_first().expect("the guide has grants");
    run(&database, &format!("SET ROLE mainspring_owner; {grants}"));
    let engine = filled(&app).await.expect("the rights are enough");
    assert_eq!(engine.store().check().await.expect("a check"), []);
    engine.store().diagnose().await.expect("a diagnosis");
    engine.close().await;

    assert!(queries.len() > 7, "the guide has queries");
    for query in queries {
        run(&database, query);
    }
    // Who watches sees no payloads.
    run(&database, "SET ROLE mainspring_watch; SELECT count(*) FROM mainspring.ready");
    for table in ["jobs", "done", "errors"] {
        let look = format!("SET ROLE mainspring_watch; SELECT count(*) FROM mainspring.{table}");
        database.sql(&look).expect_err(table);
    }
}

#[tokio::test]
async fn every_table_and_column_is_on_the_page() {
    let database = Server::shared().and_then(|server| server.database()).expect("a database");
    Engine::options().migrate().open(&database.url()).await.expect("a store").close().await;
    let columns =
        "SELECT table_name, column_name FROM information_schema.columns WHERE table_schema = 'mainspring'";
    let rows = database.sql(columns).expect("rows");
    for row in &rows {
        let [Some(table), Some(column)] = row.as_slice() else { panic!("{row:?}") };
        assert!(TABLES.contains(&format!("**`{table}`**")), "table {table}");
        assert!(TABLES.contains(&format!("`{column}`")), "column {column} of {table}");
    }
    assert!(rows.len() > 50, "{} columns", rows.len());
}
