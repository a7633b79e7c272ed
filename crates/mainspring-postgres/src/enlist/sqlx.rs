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

use super::{Holders, Identity, Insert, InsertLimited, Insist, Known, LockKeys, Record, Session, Take, text};
use crate::error::refusal;
use crate::op::record::Forget;
use crate::op::same_id::{Holder, SameId};
use crate::sql::Query;

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

/// A row of [`SameId`]: which job was asked for, and the columns of a [`Holder`].
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
fn safe<Q: Query>(schema: &str) -> AssertSqlSafe<String> {
    AssertSqlSafe(text::<Q>(schema))
}

impl Session for Transaction<'_, sqlx::Postgres> {
    async fn identity(&mut self, statement: Identity<'_>) -> Result<(Option<String>, bool)> {
        // It names the schema by its argument.
        let query = sqlx::query_as(safe::<Identity<'_>>("mainspring")).bind(*statement.table);
        query.fetch_one(&mut **self).await.map_err(failed)
    }

    async fn lock_keys(&mut self, schema: &str, statement: LockKeys<'_>) -> Result<()> {
        let query = sqlx::query(safe::<LockKeys<'_>>(schema)).bind(statement.numbers);
        query.execute(&mut **self).await.map(drop).map_err(failed)
    }

    async fn known(&mut self, schema: &str, statement: Known<'_>) -> Result<Vec<Uuid>> {
        let query = sqlx::query_scalar(safe::<Known<'_>>(schema)).bind(statement.ids);
        query.fetch_all(&mut **self).await.map_err(failed)
    }

    async fn holders(&mut self, schema: &str, statement: Holders<'_>) -> Result<Vec<(i32, String, Uuid)>> {
        let query = sqlx::query_as(safe::<Holders<'_>>(schema)).bind(statement.kinds).bind(statement.keys);
        query.fetch_all(&mut **self).await.map_err(failed)
    }

    async fn insert(&mut self, schema: &str, statement: Insert<'_>) -> Result<Vec<Uuid>> {
        let query = sqlx::query_scalar(safe::<Insert<'_>>(schema))
            .bind(*statement.at)
            .bind(statement.ids)
            .bind(statement.lines)
            .bind(statement.priorities)
            .bind(statement.run_at)
            .bind(statement.run_after)
            .bind(statement.deadline_at)
            .bind(statement.deadline_after)
            .bind(statement.options)
            .bind(statement.inputs)
            .bind(statement.flags);
        query.fetch_all(&mut **self).await.map_err(failed)
    }

    async fn insert_limited(&mut self, schema: &str, statement: InsertLimited<'_>) -> Result<Vec<Uuid>> {
        let query = sqlx::query_scalar(safe::<InsertLimited<'_>>(schema))
            .bind(*statement.at)
            .bind(statement.ids)
            .bind(statement.lines)
            .bind(statement.priorities)
            .bind(statement.run_at)
            .bind(statement.run_after)
            .bind(statement.deadline_at)
            .bind(statement.deadline_after)
            .bind(statement.options)
            .bind(statement.inputs)
            .bind(statement.flags)
            .bind(statement.groups);
        query.fetch_all(&mut **self).await.map_err(failed)
    }

    async fn same_id(&mut self, schema: &str, statement: SameId<'_>) -> Result<Vec<(i64, Holder)>> {
        let query = sqlx::query_as(safe::<SameId<'_>>(schema)).bind(statement.ids).bind(statement.inputs);
        let rows: Vec<HolderRow> = query.fetch_all(&mut **self).await.map_err(failed)?;
        let holder = |(at, kind, options, input)| (at, Holder { kind, options, input });
        Ok(rows.into_iter().map(holder).collect())
    }

    async fn take(&mut self, schema: &str, statement: Take<'_>) -> Result<()> {
        let query = sqlx::query(safe::<Take<'_>>(schema))
            .bind(statement.kinds)
            .bind(statement.names)
            .bind(statement.ids)
            .bind(statement.untils)
            .bind(statement.periods);
        query.execute(&mut **self).await.map(drop).map_err(failed)
    }

    async fn insist(&mut self) -> Result<()> {
        sqlx::query(Insist::STATEMENT.sql).execute(&mut **self).await.map(drop).map_err(failed)
    }

    async fn forget(&mut self, schema: &str, statement: Forget<'_>) -> Result<()> {
        let query = sqlx::query(safe::<Forget<'_>>(schema))
            .bind(*statement.node)
            .bind(statement.nos)
            .bind(statement.claims)
            .bind(statement.keys);
        query.execute(&mut **self).await.map(drop).map_err(failed)
    }

    async fn record(&mut self, schema: &str, statement: Record<'_>) -> Result<Vec<i64>> {
        let query = sqlx::query_scalar(safe::<Record<'_>>(schema))
            .bind(*statement.at)
            .bind(*statement.node)
            .bind(statement.nos)
            .bind(statement.claims)
            .bind(statement.entry_nos)
            .bind(statement.kinds)
            .bind(statement.overlapped)
            .bind(statement.took)
            .bind(statement.keys)
            .bind(statement.values);
        query.fetch_one(&mut **self).await.map_err(failed)
    }
}
