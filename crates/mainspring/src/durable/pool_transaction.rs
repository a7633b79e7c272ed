//! Transaction steps on an application's own pool: its rows and the record of the step, in one commit.

use mainspring_core::error::BoxError;
use mainspring_core::failure::{Failure, discard};
use mainspring_core::journal::{EntryKind, Recorded, Recording, Writes};
use mainspring_core::store::{Commit, Enlist, Transactions, Uncommitted};
use mainspring_core::{Error, Result, fault};
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::operation::{Op, OpKey, check_lease, encode};
use super::probe_hooks;
use crate::context::Context;
use crate::job_run::InTransaction;

/// What became of a transaction.
enum TransactionOutcome<T> {
    /// Committed; and whether a test lets the node die now.
    Committed(T, bool),
    /// Nothing was committed.
    Failed(Failure),
    LeaseLost,
    /// Nobody knows whether it was committed.
    Unknown(BoxError),
    /// The store refused it.
    Refused(Error),
}

impl Context {
    /// Commits your rows and the step's record together, on your own pool of connections to the Postgres database
    /// that holds the engine's store: `body` writes its rows exactly once.
    ///
    /// `pool` is a `sqlx::PgPool` (feature `sqlx`), a `deadpool_postgres::Pool` (feature `deadpool`), or an
    /// `Arc<tokio::sync::Mutex<tokio_postgres::Client>>`. The engine begins the transaction for `body`, and commits
    /// it with the record afterwards. An error of `body` rolls it back.
    ///
    /// `body` may use savepoints. It must not end the transaction, nor `RESET ALL` in it: then the step is not
    /// recorded, and the job fails for good unless the handler survives the step's error.
    ///
    /// ```
    /// # #[cfg(feature = "postgres")] mod example {
    /// # use mainspring::{Context, Job, tokio_postgres};
    /// # use std::sync::Arc;
    /// # use tokio::sync::Mutex;
    /// # #[derive(serde::Serialize, serde::Deserialize, Job)] struct Order { account: i64, cents: i64 }
    /// async fn order(ctx: Context, job: Order) -> mainspring::HandlerResult<()> {
    ///     let pool = ctx.state::<Arc<Mutex<tokio_postgres::Client>>>()?;
    ///     ctx.transaction(pool, "debit", async |tx| {
    ///         let debit = "UPDATE accounts SET cents = cents - $2 WHERE id = $1";
    ///         tx.execute(debit, &[&job.account, &job.cents]).await?;
    ///         Ok(())
    ///     })
    ///     .await?;
    ///     Ok(())
    /// }
    /// # }
    /// ```
    ///
    /// # Errors
    /// As [`step`](Self::step), also if the database refuses to commit, as for a deferred constraint: then nothing is
    /// stored. [`Error::ForeignTransaction`] if the pool is on another database than the engine's store.
    /// [`Error::OutcomeUnknown`] if the answer to the commit was lost: return it. Every later operation returns the
    /// same, and the next attempt finds out.
    pub async fn transaction<S, P, T, F>(&self, pool: &P, name: &str, body: F) -> Result<T>
    where
        P: Transactions<S>,
        T: Serialize + DeserializeOwned,
        F: for<'t, 'c> AsyncFnOnce(&'t mut P::Transaction<'c>) -> Result<T, Failure>,
    {
        let (op_key, written) = Op::new(self, name).open().await?;
        let session = op_key.session();
        if let Some(written) = written {
            return session.replay(&op_key, written).await;
        }
        session.record_deferred().await?;
        check_lease(session).await;
        op_key.begin_body();
        let ended = {
            let (_busy, _under_way) = (session.busy(), InTransaction::begin(session.run()));
            transact(self, &op_key, pool, body).await
        };
        match ended {
            TransactionOutcome::Committed(value, dies) => {
                probe_hooks::crash(session, dies).await;
                let entry = op_key.entry(EntryKind::Value, Vec::new());
                session.state().recorded_elsewhere(&entry);
                Ok(value)
            }
            TransactionOutcome::Failed(failure) => Err(op_key.fail(failure)),
            TransactionOutcome::LeaseLost => {
                // The store itself knows better than a database that may only look like it. If the claim is lost, the
                // handler ends here.
                session.confirm().await?;
                Err(Error::ForeignTransaction { why: "it does not know the claim of this job".into() })
            }
            TransactionOutcome::Unknown(cause) => {
                session.set_outcome_unknown();
                Err(Error::OutcomeUnknown { source: Some(cause) })
            }
            TransactionOutcome::Refused(refused) => Err(refused),
        }
    }
}

async fn transact<S, P, T, F>(ctx: &Context, op_key: &OpKey, pool: &P, body: F) -> TransactionOutcome<T>
where
    P: Transactions<S>,
    T: Serialize + DeserializeOwned,
    F: for<'t, 'c> AsyncFnOnce(&'t mut P::Transaction<'c>) -> Result<T, Failure>,
{
    let (engine, session) = (ctx.engine(), op_key.session());
    let mut connection = match pool.connect().await {
        Ok(connection) => connection,
        Err(error) => return TransactionOutcome::Failed(error.into()),
    };
    let mut transaction = match P::begin(&mut connection).await {
        Ok(transaction) => transaction,
        Err(error) => return TransactionOutcome::Failed(error.into()),
    };
    let value = match body(&mut transaction).await {
        Ok(value) => value,
        Err(failure) => {
            transaction.roll_back().await;
            return TransactionOutcome::Failed(failure);
        }
    };
    let run = session.run();
    let dies = match probe_hooks::ran(session.probe(), run.claim.id, op_key.key()) {
        Ok(dies) => dies,
        Err(failure) => {
            transaction.roll_back().await;
            return TransactionOutcome::Failed(failure);
        }
    };
    let (value, json) = match encode(value, engine.bounds().step) {
        Ok(encoded) => encoded,
        Err(failure) => {
            transaction.roll_back().await;
            return TransactionOutcome::Failed(failure);
        }
    };
    fault::point!("transaction.ran");
    let writes = Writes { entries: vec![op_key.entry(EntryKind::Value, json)], ..Writes::default() };
    let recording = Recording { claim: run.claim, writes, children: Vec::new() };
    let recorded = transaction.enlist_recording(&engine.store().ticket(), run.node, recording).await;
    match recorded {
        Ok(Recorded::Stored) => {}
        // It starts no children.
        Ok(Recorded::LeaseLost | Recorded::Taken { .. }) => {
            transaction.roll_back().await;
            return TransactionOutcome::LeaseLost;
        }
        Err(error) => {
            transaction.roll_back().await;
            return match error {
                error @ (Error::ForeignTransaction { .. } | Error::NotInTransaction { .. }) => {
                    TransactionOutcome::Refused(error)
                }
                // Its body has ended it. A repeat would do the same, and what the body has committed twice.
                error @ Error::Invalid { .. } => {
                    TransactionOutcome::Failed(discard(error.to_string()).into())
                }
                error if P::Transaction::is_refusal(&error) => TransactionOutcome::Failed(error.into()),
                // Also if it was recorded before, by a transaction whose end nobody heard of: the next run has its record.
                error => TransactionOutcome::Unknown(error.into()),
            };
        }
    }
    fault::point!("transaction.recorded");
    match transaction.commit().await {
        Ok(()) => TransactionOutcome::Committed(value, dies),
        Err(Uncommitted::RolledBack(error)) => TransactionOutcome::Failed(error.into()),
        Err(Uncommitted::Unknown(error)) => TransactionOutcome::Unknown(error),
    }
}
