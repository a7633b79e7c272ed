//! Transaction steps: rows of the application and the record of the step, in one commit.

use mainspring_core::Error;
use mainspring_core::Result;
use mainspring_core::failure::Failure;
use mainspring_core::journal::{EntryKind, Recording, Writes};
use mainspring_sqlite::{Sqlite, transaction_step};
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use super::dropped::OpFuture;
use super::operation::{Op, encode, keyed, lazy};
use super::probe_hooks;
use crate::context::Context;
use crate::job_run::InTransaction;

/// A transaction step on SQLite. Nothing happens until you await it; see [`Context::sqlite_transaction`].
#[must_use = "nothing is done until this is awaited"]
pub struct SqliteTransaction<'c, T> {
    parts: Option<SqliteParts<'c, T>>,
    run: Option<OpFuture<'c, Result<T>>>,
}

type SqliteBody<T> = Box<dyn FnOnce(&mut transaction_step::Sql<'_>) -> Result<T, Failure> + Send>;

struct SqliteParts<'c, T> {
    op: Op<'c>,
    body: SqliteBody<T>,
    limit: Duration,
}

impl<T> SqliteTransaction<'_, T> {
    /// Sets how long the closure may take. Default: 5 seconds. Nobody else writes to the file meanwhile.
    pub fn timeout(mut self, limit: Duration) -> Self {
        if let Some(parts) = &mut self.parts {
            parts.limit = limit;
        }
        self
    }
}

keyed!(SqliteTransaction<'c; T>, op);
lazy!(SqliteTransaction<'c; T> => Result<T>, where { T: Serialize + DeserializeOwned + Send + 'static });

impl<T: Serialize + DeserializeOwned + Send + 'static> SqliteParts<'_, T> {
    async fn run(self) -> Result<T> {
        let SqliteParts { op, body, limit } = self;
        let engine = op.ctx.engine();
        let Some(sqlite) = engine.store().native().and_then(|store| store.downcast_ref::<Sqlite>()) else {
            return Err(Error::Invalid {
                what: "sqlite_transaction",
                why: format!("the engine's store is {}, not SQLite", engine.describe().backend),
            });
        };
        let bytes = engine.bounds().step;
        let (op_key, written) = op.open().await?;
        let (session, key) = (op_key.session(), op_key.key());
        if let Some(written) = written {
            return session.replay(&op_key, written).await;
        }
        session.record_deferred().await?;
        let run = session.run();
        // The store adds the value, and how long it took.
        let entry = op_key.entry(EntryKind::Value, Vec::new());
        op_key.begin_body();
        let request = transaction_step::Request {
            name: format!("{}/{key}", run.info.kind),
            limit,
            node: run.node,
            recording: Recording { claim: run.claim, writes: Writes::default(), children: Vec::new() },
            entry,
        };
        let dies = Arc::new(AtomicBool::new(false));
        let done = {
            let (_busy, _under_way) = (session.busy(), InTransaction::begin(Arc::clone(&run)));
            let (probe, dies, id, key) =
                (session.shared_probe(), Arc::clone(&dies), run.claim.id, key.clone());
            let body = move |sql: &mut transaction_step::Sql<'_>| {
                let value = body(sql).map_err(Failure::into_error)?;
                let crash = probe_hooks::ran(probe.as_deref(), id, &key).map_err(Failure::into_error)?;
                dies.store(crash, Ordering::SeqCst);
                encode(value, bytes).map_err(Failure::into_error)
            };
            sqlite.transact(request, body).await
        };
        probe_hooks::crash(session, dies.load(Ordering::SeqCst)).await;
        match done {
            Ok(transaction_step::Done::Now(value)) => {
                let entry = op_key.entry(EntryKind::Value, Vec::new());
                session.state().recorded_elsewhere(&entry);
                Ok(value)
            }
            Ok(transaction_step::Done::Before(value)) => serde_json::from_slice(&value)
                .map_err(|error| Error::Convert { what: "step", source: error.into() }),
            Err(transaction_step::Error::Store(Error::LeaseLost)) => session.lease_lost().await,
            Err(transaction_step::Error::Store(error)) => {
                if error.is_retryable() {
                    session.set_outcome_unknown();
                }
                Err(error)
            }
            Err(failed) => {
                let failure = match failed {
                    transaction_step::Error::Failed(cause) => Failure::from(cause),
                    other => Failure::from(other),
                };
                Err(op_key.fail(failure))
            }
        }
    }
}

impl Context {
    /// Commits your rows and the step's record together, in the SQLite file that holds the engine's store: `body`
    /// writes its rows exactly once.
    ///
    /// `body` is not asynchronous. It runs on the store's writing thread, in a transaction of its own, and nobody
    /// else writes to the file meanwhile: let it do its SQL and return. It can neither end the transaction nor touch
    /// the engine's own tables. If it returns an error, panics or takes longer than [5
    /// seconds](SqliteTransaction::timeout), everything is rolled back, and the step has failed.
    ///
    /// ```
    /// # use mainspring::{Context, Job};
    /// # #[derive(serde::Serialize, serde::Deserialize, Job)] struct Order { account: i64, cents: i64 }
    /// async fn order(ctx: Context, job: Order) -> mainspring::HandlerResult<()> {
    ///     let Order { account, cents } = job;
    ///     ctx.sqlite_transaction("debit", move |sql| {
    ///         sql.execute("UPDATE accounts SET cents = cents - ?2 WHERE id = ?1", (account, cents))?;
    ///         Ok(())
    ///     })
    ///     .await?;
    ///     Ok(())
    /// }
    /// ```
    ///
    /// # Errors
    /// As [`step`](Self::step); [`Error::Invalid`](crate::Error::Invalid) if the engine's store is not SQLite.
    pub fn sqlite_transaction<T, F>(&self, name: &str, body: F) -> SqliteTransaction<'_, T>
    where
        F: FnOnce(&mut transaction_step::Sql<'_>) -> Result<T, Failure> + Send + 'static,
    {
        let parts =
            SqliteParts { op: Op::new(self, name), body: Box::new(body), limit: transaction_step::LIMIT };
        SqliteTransaction { parts: Some(parts), run: None }
    }
}
