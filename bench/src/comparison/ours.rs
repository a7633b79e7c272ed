//! Our own program beside those of the others: the same tasks, in a process of its own, by the same clock.

#[path = "../../peers/queue.rs"]
mod shared;

use std::sync::Mutex;

use mainspring::{Context, Engine, Node};
use mainspring_postgres::tokio_postgres::NoTls;
use mainspring_sqlite::rusqlite::{Connection, OpenFlags};
use shared::{Asked, Queue, Result};

use crate::queue::Noop;

fn noop() -> Noop {
    Noop { sent: 0, text: shared::text() }
}

struct Ours {
    engine: Engine,
    address: String,
    slots: u32,
    node: Mutex<Option<Node>>,
}

/// Answers as the programs below `bench/peers` do.
pub(crate) fn run(args: &[String]) -> Result<()> {
    let asked = Asked::read(args.iter().cloned())?;
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    runtime.block_on(async {
        let slots = if asked.as_started()? { 10 } else { 64 };
        let engine = Engine::options().migrate().open(&asked.address).await?;
        let ours = Ours { engine, address: asked.address.clone(), slots, node: Mutex::default() };
        shared::answer(&asked, &ours).await?;
        let node = ours.node.lock().ok().and_then(|mut node| node.take());
        if let Some(node) = node {
            node.shutdown().await;
        }
        ours.engine.close().await;
        Ok(())
    })
}

impl Queue for Ours {
    async fn fill(&self, jobs: usize) -> Result<()> {
        self.engine.enqueue_many((0..jobs).map(|_| noop())).await?;
        Ok(())
    }

    async fn enqueue(&self) -> Result<()> {
        self.engine.enqueue(noop()).await?;
        Ok(())
    }

    async fn work(&self) -> Result<()> {
        let node = self
            .engine
            .node()
            .handle(|_: Context, _: Noop| async {
                shared::seen();
                mainspring::HandlerResult::Ok(())
            })
            .queue("default", self.slots)
            .start()
            .await?;
        *self.node.lock().map_err(|_| "a panic")? = Some(node);
        Ok(())
    }

    async fn left(&self, statement: &'static str) -> Result<usize> {
        let value: i64 = if let Some(path) = self.address.strip_prefix("sqlite:") {
            let file = Connection::open_with_flags(path, OpenFlags::SQLITE_OPEN_READ_ONLY)?;
            file.query_row(statement, [], |row| row.get(0))?
        } else {
            let (client, connection) =
                mainspring_postgres::tokio_postgres::connect(&self.address, NoTls).await?;
            tokio::spawn(connection);
            client.query_one(statement, &[]).await?.try_get(0)?
        };
        Ok(usize::try_from(value)?)
    }
}
