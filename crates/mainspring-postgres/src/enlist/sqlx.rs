//! Transactions of sqlx.
//!
//! Statements go through sqlx's own cache of prepared statements, which whoever uses a pooler has turned off.

use std::future::Future;

use mainspring_core::id::NodeNo;
use mainspring_core::job::New;
use mainspring_core::journal::{Recorded, Recording};
use mainspring_core::store::{Enlist, Receipt, Ticket};
use mainspring_core::{Error, Result};
use sqlx::{AssertSqlSafe, Transaction};
use uuid::Uuid;

use super::Session;
use crate::error::refusal;
use crate::op::enqueue::{Columns, Keys};
use crate::op::record::Pages;
use crate::op::same_id::Holder;

impl Enlist<crate::Postgres> for Transaction<'_, sqlx::Postgres> {
    fn enlist(&mut self, ticket: &Ticket, jobs: Vec<New>) -> impl Future<Output = Result<Vec<Receipt>>> {
        super::enlist(self, ticket, jobs)
    }

    fn enlist_recording(
        &mut self,
        ticket: &Ticket,
        node: NodeNo,
        recording: Recording,
    ) -> impl Future<Output = Result<Recorded>> {
        super::enlist_recording(self, ticket, node, recording)
    }
}

/// A row of `SAME_ID`: which job was asked for, and the columns of a [`Holder`].
type HolderRow = (i64, String, Option<String>, Option<Vec<u8>>);

/// What went wrong in terms of the store. Nothing is committed here, so nothing is unknown.
fn failed(error: sqlx::Error) -> Error {
    if let sqlx::Error::Database(db) = &error
        && let Some(code) = db.code()
    {
        return refusal(&code, db.message());
    }
    Error::Unavailable { why: "the connection to the database failed".into(), source: Some(error.into()) }
}

/// The texts are the store's own, with a schema's name in them that was checked when the store was opened.
fn safe(sql: &str) -> AssertSqlSafe<String> {
    AssertSqlSafe(sql.to_owned())
}

impl Session for Transaction<'_, sqlx::Postgres> {
    async fn identity(&mut self, table: &str) -> Result<(Option<String>, bool)> {
        sqlx::query_as(super::IDENTITY).bind(table).fetch_one(&mut **self).await.map_err(failed)
    }

    async fn lock_keys(&mut self, sql: &str, numbers: &[i64]) -> Result<()> {
        sqlx::query(safe(sql)).bind(numbers).execute(&mut **self).await.map(drop).map_err(failed)
    }

    async fn known(&mut self, sql: &str, ids: &[Uuid]) -> Result<Vec<Uuid>> {
        sqlx::query_scalar(safe(sql)).bind(ids).fetch_all(&mut **self).await.map_err(failed)
    }

    async fn holders(
        &mut self,
        sql: &str,
        kinds: &[i32],
        keys: &[String],
    ) -> Result<Vec<(i32, String, Uuid)>> {
        sqlx::query_as(safe(sql)).bind(kinds).bind(keys).fetch_all(&mut **self).await.map_err(failed)
    }

    async fn insert(&mut self, sql: &str, now: Option<i64>, jobs: &Columns<'_>) -> Result<Vec<Uuid>> {
        let query = sqlx::query_scalar(safe(sql))
            .bind(now)
            .bind(&jobs.ids)
            .bind(&jobs.lines)
            .bind(&jobs.priorities)
            .bind(&jobs.run_at)
            .bind(&jobs.run_after)
            .bind(&jobs.deadline_at)
            .bind(&jobs.deadline_after)
            .bind(&jobs.options)
            .bind(&jobs.inputs)
            .bind(&jobs.flags);
        query.fetch_all(&mut **self).await.map_err(failed)
    }

    async fn same_id(&mut self, sql: &str, ids: &[Uuid], inputs: &[&[u8]]) -> Result<Vec<(i64, Holder)>> {
        let query = sqlx::query_as(safe(sql)).bind(ids).bind(inputs);
        let rows: Vec<HolderRow> = query.fetch_all(&mut **self).await.map_err(failed)?;
        let holder = |(at, kind, options, input)| (at, Holder { kind, options, input });
        Ok(rows.into_iter().map(holder).collect())
    }

    async fn take(&mut self, sql: &str, keys: &Keys<'_>) -> Result<()> {
        let query = sqlx::query(safe(sql))
            .bind(&keys.kinds)
            .bind(&keys.names)
            .bind(&keys.ids)
            .bind(&keys.untils)
            .bind(&keys.periods);
        query.execute(&mut **self).await.map(drop).map_err(failed)
    }

    async fn insist(&mut self) -> Result<()> {
        sqlx::query(super::INSIST).execute(&mut **self).await.map(drop).map_err(failed)
    }

    async fn forget(&mut self, sql: &str, node: i32, pages: &Pages<'_>) -> Result<()> {
        let query = sqlx::query(safe(sql))
            .bind(node)
            .bind(&pages.forget.0)
            .bind(&pages.forget.1)
            .bind(&pages.forget.2);
        query.execute(&mut **self).await.map(drop).map_err(failed)
    }

    async fn record(
        &mut self,
        sql: &str,
        now: Option<i64>,
        node: i32,
        pages: &Pages<'_>,
    ) -> Result<Vec<i64>> {
        let query = sqlx::query_scalar(safe(sql))
            .bind(now)
            .bind(node)
            .bind(&pages.nos)
            .bind(&pages.claims)
            .bind(&pages.entry_nos)
            .bind(&pages.kinds)
            .bind(&pages.overlapped)
            .bind(&pages.keys)
            .bind(&pages.values);
        query.fetch_one(&mut **self).await.map_err(failed)
    }
}
