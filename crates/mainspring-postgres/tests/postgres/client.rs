//! The three clients whose transactions take jobs with them, behind one set of words.

use mainspring_core::Result;
use mainspring_core::id::NodeNo;
use mainspring_core::job::New;
use mainspring_core::journal::{Recorded, Recording};
use mainspring_core::store::{Enlist, Receipt, Store, Ticket};
use mainspring_postgres::tokio_postgres::{self, NoTls};
use sqlx::Connection as _;

/// All of them.
pub(crate) const ALL: [Kind; 3] = [Kind::Tokio, Kind::Deadpool, Kind::Sqlx];

/// Which client.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Kind {
    Tokio,
    Deadpool,
    Sqlx,
}

/// An application's connection.
pub(crate) enum Client {
    Tokio(tokio_postgres::Client),
    Deadpool(deadpool_postgres::Object),
    Sqlx(sqlx::PgConnection),
}

/// An application's transaction.
pub(crate) enum Tx<'a> {
    Tokio(tokio_postgres::Transaction<'a>),
    Deadpool(deadpool_postgres::Transaction<'a>),
    Sqlx(sqlx::Transaction<'a, sqlx::Postgres>),
}

/// A connection of tokio-postgres.
pub(crate) async fn connect(url: &str) -> tokio_postgres::Client {
    let (client, connection) = tokio_postgres::connect(url, NoTls).await.expect("a connection");
    #[expect(clippy::disallowed_methods, reason = "the application's own task")]
    tokio::spawn(connection);
    client
}

impl Client {
    pub(crate) async fn connect(kind: Kind, url: &str) -> Client {
        match kind {
            Kind::Tokio => Client::Tokio(connect(url).await),
            Kind::Deadpool => {
                let config = url.parse::<tokio_postgres::Config>().expect("an address");
                let manager = deadpool_postgres::Manager::new(config, NoTls);
                let pool = deadpool_postgres::Pool::builder(manager).max_size(1).build().expect("a pool");
                Client::Deadpool(pool.get().await.expect("a connection"))
            }
            Kind::Sqlx => Client::Sqlx(sqlx::PgConnection::connect(url).await.expect("a connection")),
        }
    }

    /// Begins a transaction.
    pub(crate) async fn begin(&mut self) -> Tx<'_> {
        match self {
            Client::Tokio(client) => Tx::Tokio(client.transaction().await.expect("begun")),
            Client::Deadpool(client) => Tx::Deadpool(client.transaction().await.expect("begun")),
            Client::Sqlx(client) => Tx::Sqlx(client.begin().await.expect("begun")),
        }
    }

    /// Begins a transaction of another isolation level.
    pub(crate) async fn begin_at(&mut self, level: &str) -> Tx<'_> {
        let mut tx = self.begin().await;
        tx.run(&format!("SET TRANSACTION ISOLATION LEVEL {level}")).await;
        tx
    }
}

impl Tx<'_> {
    /// Runs a statement of the application's own.
    pub(crate) async fn run(&mut self, sql: &str) {
        match self {
            Tx::Tokio(tx) => tx.batch_execute(sql).await.expect("done"),
            Tx::Deadpool(tx) => tx.batch_execute(sql).await.expect("done"),
            Tx::Sqlx(tx) => {
                sqlx::raw_sql(sqlx::AssertSqlSafe(sql)).execute(&mut **tx).await.expect("done");
            }
        }
    }

    /// Takes jobs along.
    pub(crate) async fn enlist(&mut self, store: &dyn Store, jobs: Vec<New>) -> Result<Vec<Receipt>> {
        let ticket = store.ticket_for(jobs.clone()).await?;
        self.enlist_with(&ticket, jobs).await
    }

    /// Takes jobs along with a ticket.
    pub(crate) async fn enlist_with(&mut self, ticket: &Ticket, jobs: Vec<New>) -> Result<Vec<Receipt>> {
        match self {
            Tx::Tokio(tx) => tx.enlist(ticket, jobs).await,
            Tx::Deadpool(tx) => tx.enlist(ticket, jobs).await,
            Tx::Sqlx(tx) => tx.enlist(ticket, jobs).await,
        }
    }

    /// Records as part of it, as a step that has begun it does.
    pub(crate) async fn record(
        &mut self,
        ticket: &Ticket,
        node: NodeNo,
        recording: Recording,
    ) -> Result<Recorded> {
        self.run("SET LOCAL mainspring.step = 'open'").await;
        match self {
            Tx::Tokio(tx) => tx.enlist_recording(ticket, node, recording).await,
            Tx::Deadpool(tx) => tx.enlist_recording(ticket, node, recording).await,
            Tx::Sqlx(tx) => tx.enlist_recording(ticket, node, recording).await,
        }
    }

    /// Takes one job along, which must go without an error.
    pub(crate) async fn put(&mut self, store: &dyn Store, job: New) -> Receipt {
        self.enlist(store, vec![job]).await.expect("enlisted")[0]
    }

    pub(crate) async fn commit(self) {
        match self {
            Tx::Tokio(tx) => tx.commit().await.expect("committed"),
            Tx::Deadpool(tx) => tx.commit().await.expect("committed"),
            Tx::Sqlx(tx) => tx.commit().await.expect("committed"),
        }
    }

    pub(crate) async fn rollback(self) {
        match self {
            Tx::Tokio(tx) => tx.rollback().await.expect("rolled back"),
            Tx::Deadpool(tx) => tx.rollback().await.expect("rolled back"),
            Tx::Sqlx(tx) => tx.rollback().await.expect("rolled back"),
        }
    }
}
