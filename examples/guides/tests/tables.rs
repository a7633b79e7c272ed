//! The page on the tables of a SQLite store is complete, and its queries run.

use mainspring::{Context, Engine, Job};
use rusqlite::{Connection, OpenFlags};
use serde::{Deserialize, Serialize};

const PAGE: &str = include_str!("../../../docs/tables-sqlite.md");

#[derive(Serialize, Deserialize, Job)]
#[job(max_attempts = 2)]
struct Sample {
    fails: bool,
}

async fn sample(_ctx: Context, job: Sample) -> mainspring::HandlerResult<()> {
    if job.fails { Err("it was to fail".into()) } else { Ok(()) }
}

/// A store with jobs that succeeded, that wait for a node, and that wait for another attempt.
async fn filled(path: &str) -> Result<Engine, mainspring::Error> {
    let engine = Engine::open(&format!("sqlite:{path}")).await?;
    let node = engine.node().handle(sample).queue("default", 2).start().await?;
    let job = engine.enqueue(Sample { fails: false }).tag("a").unique("k").await?;
    engine.enqueue(Sample { fails: true }).await?;
    engine.enqueue(Sample { fails: false }).queue("nobody").await?;
    engine.result(&job).await?;
    node.shutdown().await;
    Ok(engine)
}

fn blocks(page: &str) -> Vec<&str> {
    page.split("```sql\n").skip(1).filter_map(|rest| rest.split("```").next()).collect()
}

#[tokio::test]
async fn every_query_of_the_page_runs() {
    let dir = tempfile::tempdir().expect("a directory");
    let path = dir.path().join("tables.db");
    let path = path.to_str().expect("a path");
    let engine = filled(path).await.expect("a store");
    let db = Connection::open_with_flags(path, OpenFlags::SQLITE_OPEN_READ_ONLY).expect("a connection");
    let blocks = blocks(PAGE);
    assert!(blocks.len() > 5, "the page has queries");
    for query in blocks {
        let mut statement = db.prepare(query).unwrap_or_else(|error| panic!("{error}\n{query}"));
        let mut rows = statement.query([]).expect("a query without parameters");
        while rows.next().unwrap_or_else(|error| panic!("{error}\n{query}")).is_some() {}
    }
    engine.close().await;
}

#[tokio::test]
async fn every_table_and_column_is_on_the_page() {
    let dir = tempfile::tempdir().expect("a directory");
    let path = dir.path().join("tables.db");
    let path = path.to_str().expect("a path");
    let engine = filled(path).await.expect("a store");
    let db = Connection::open_with_flags(path, OpenFlags::SQLITE_OPEN_READ_ONLY).expect("a connection");
    let columns = "SELECT t.name, c.name FROM pragma_table_list t JOIN pragma_table_info(t.name) c
        WHERE t.name LIKE 'mainspring!_%' ESCAPE '!' AND t.type = 'table'";
    let mut statement = db.prepare(columns).expect("a statement");
    let rows = statement.query_map([], |row| Ok((row.get::<_, String>(0)?, row.get::<_, String>(1)?)));
    let mut found = 0;
    for row in rows.expect("rows") {
        let (table, column) = row.expect("a row");
        assert!(PAGE.contains(&format!("**`{table}`**")), "table {table}");
        assert!(PAGE.contains(&format!("`{column}`")), "column {column} of {table}");
        found += 1;
    }
    assert!(found > 50, "{found} columns");
    engine.close().await;
}
