//! Statements: what is declared of them is what the database says, and their names can be seen where they run.

use std::sync::Arc;

use mainspring_postgres::statements;
use mainspring_testkit::harness::succeed;
use mainspring_testkit::postgres::{Options, Server};
use postgres::{Client, NoTls};

use super::migrations::migrated;
use crate::support::{Rig, database};

/// Types of arguments and of columns fit, and the printed form is one that `psql` takes.
#[test]
fn every_statement_is_what_it_is_declared_to_be() {
    let database = database();
    let mut client = Client::connect(&database.url(), NoTls).expect("a connection");
    let mut wrong = Vec::new();
    for text in statements("mainspring") {
        match client.prepare_typed(&text.sql, text.types()) {
            Ok(prepared) => {
                let columns: Vec<_> =
                    prepared.columns().iter().map(|column| column.type_().clone()).collect();
                wrong.extend(text.mismatch(&columns).map(|why| format!("{}: {why}", text.name)));
            }
            Err(error) => wrong.push(format!("{}: {error:?}", text.name)),
        }
        if text.is_preparable()
            && let Err(error) = client.batch_execute(&text.to_string())
        {
            wrong.push(format!("{error:?}\n{text}"));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[expect(clippy::disallowed_methods, reason = "what blocks a thread must not block one of the executor")]
#[tokio::test]
async fn names_of_statements_are_in_the_servers_statistics_and_log() {
    let settings = Options::new()
        .setting("shared_preload_libraries", "pg_stat_statements")
        .setting("log_min_duration_statement", "0");
    let server = Server::start(&settings).expect("a server");
    let database = Arc::new(server.database().expect("a database"));
    database.sql("CREATE EXTENSION pg_stat_statements").expect("statistics");
    let url = database.url();
    let url = std::thread::spawn(move || migrated(&url)).join().expect("a schema");
    let rig = Rig::at(&database, &url);
    rig.put_one().await;
    let node = rig.node().await;
    let claim = rig.claim_one(node).await;
    rig.end(node, claim, succeed()).await;
    let log = server.log().expect("a log");
    for name in ["enqueue.insert_plain", "node.register", "claim.one_queue", "finish.succeed"] {
        let counted = format!("SELECT sum(calls) FROM pg_stat_statements WHERE query LIKE '/* {name} */%'");
        let rows = database.sql(&counted).expect("statistics");
        assert_eq!(rows[0][0].as_deref(), Some("1"), "{name}");
        assert!(log.contains(&format!("/* {name} */")), "{name}");
    }
}
