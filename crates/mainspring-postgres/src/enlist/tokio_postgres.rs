//! Transactions of tokio-postgres.

use std::future::Future;

use mainspring_core::Result;
use mainspring_core::id::NodeNo;
use mainspring_core::job::New;
use mainspring_core::journal::{Recorded, Recording};
use mainspring_core::store::{Enlist, Receipt, Ticket};
use tokio_postgres::types::Type;
use tokio_postgres::{Error, Transaction};
use uuid::Uuid;

use super::Session;
use crate::error::into_error;
use crate::op::enqueue::{Columns, Keys};
use crate::op::record::Pages;
use crate::op::same_id::Holder;

impl Enlist<crate::Postgres> for Transaction<'_> {
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

fn failed(error: Error) -> mainspring_core::Error {
    into_error(error, false)
}

impl Session for Transaction<'_> {
    async fn identity(&mut self, table: &str) -> Result<(Option<String>, bool)> {
        let rows = self.query_typed(super::IDENTITY, &[(&table, Type::TEXT)]).await.map_err(failed)?;
        Ok(rows.first().map(|row| (row.get(0), row.get(1))).unwrap_or_default())
    }

    async fn lock_keys(&mut self, sql: &str, numbers: &[i64]) -> Result<()> {
        self.query_typed(sql, &[(&numbers, Type::INT8_ARRAY)]).await.map(drop).map_err(failed)
    }

    async fn known(&mut self, sql: &str, ids: &[Uuid]) -> Result<Vec<Uuid>> {
        let rows = self.query_typed(sql, &[(&ids, Type::UUID_ARRAY)]).await.map_err(failed)?;
        Ok(rows.iter().map(|row| row.get(0)).collect())
    }

    async fn holders(
        &mut self,
        sql: &str,
        kinds: &[i32],
        keys: &[String],
    ) -> Result<Vec<(i32, String, Uuid)>> {
        let args: [(&(dyn tokio_postgres::types::ToSql + Sync), Type); 2] =
            [(&kinds, Type::INT4_ARRAY), (&keys, Type::TEXT_ARRAY)];
        let rows = self.query_typed(sql, &args).await.map_err(failed)?;
        Ok(rows.iter().map(|row| (row.get(0), row.get(1), row.get(2))).collect())
    }

    async fn insert(&mut self, sql: &str, now: Option<i64>, jobs: &Columns<'_>) -> Result<Vec<Uuid>> {
        let args: [(&(dyn tokio_postgres::types::ToSql + Sync), Type); 11] = [
            (&now, Type::INT8),
            (&jobs.ids, Type::UUID_ARRAY),
            (&jobs.lines, Type::INT4_ARRAY),
            (&jobs.priorities, Type::INT2_ARRAY),
            (&jobs.run_at, Type::INT8_ARRAY),
            (&jobs.run_after, Type::INT8_ARRAY),
            (&jobs.deadline_at, Type::INT8_ARRAY),
            (&jobs.deadline_after, Type::INT8_ARRAY),
            (&jobs.options, Type::TEXT_ARRAY),
            (&jobs.inputs, Type::BYTEA_ARRAY),
            (&jobs.flags, Type::INT2_ARRAY),
        ];
        let rows = self.query_typed(sql, &args).await.map_err(failed)?;
        Ok(rows.iter().map(|row| row.get(0)).collect())
    }

    async fn same_id(&mut self, sql: &str, ids: &[Uuid], inputs: &[&[u8]]) -> Result<Vec<(i64, Holder)>> {
        let args: [(&(dyn tokio_postgres::types::ToSql + Sync), Type); 2] =
            [(&ids, Type::UUID_ARRAY), (&inputs, Type::BYTEA_ARRAY)];
        let rows = self.query_typed(sql, &args).await.map_err(failed)?;
        let holder =
            |row: &tokio_postgres::Row| Holder { kind: row.get(1), options: row.get(2), input: row.get(3) };
        Ok(rows.iter().map(|row| (row.get(0), holder(row))).collect())
    }

    async fn take(&mut self, sql: &str, keys: &Keys<'_>) -> Result<()> {
        let args: [(&(dyn tokio_postgres::types::ToSql + Sync), Type); 5] = [
            (&keys.kinds, Type::INT4_ARRAY),
            (&keys.names, Type::TEXT_ARRAY),
            (&keys.ids, Type::UUID_ARRAY),
            (&keys.untils, Type::INT2_ARRAY),
            (&keys.periods, Type::INT8_ARRAY),
        ];
        self.query_typed(sql, &args).await.map(drop).map_err(failed)
    }

    async fn insist(&mut self) -> Result<()> {
        self.query_typed(super::INSIST, &[]).await.map(drop).map_err(failed)
    }

    async fn forget(&mut self, sql: &str, node: i32, pages: &Pages<'_>) -> Result<()> {
        let args: [(&(dyn tokio_postgres::types::ToSql + Sync), Type); 4] = [
            (&node, Type::INT4),
            (&pages.forget.0, Type::INT8_ARRAY),
            (&pages.forget.1, Type::INT4_ARRAY),
            (&pages.forget.2, Type::TEXT_ARRAY),
        ];
        self.query_typed(sql, &args).await.map(drop).map_err(failed)
    }

    async fn record(
        &mut self,
        sql: &str,
        now: Option<i64>,
        node: i32,
        pages: &Pages<'_>,
    ) -> Result<Vec<i64>> {
        let args: [(&(dyn tokio_postgres::types::ToSql + Sync), Type); 9] = [
            (&now, Type::INT8),
            (&node, Type::INT4),
            (&pages.nos, Type::INT8_ARRAY),
            (&pages.claims, Type::INT4_ARRAY),
            (&pages.entry_nos, Type::INT8_ARRAY),
            (&pages.kinds, Type::INT2_ARRAY),
            (&pages.overlapped, Type::BOOL_ARRAY),
            (&pages.keys, Type::TEXT_ARRAY),
            (&pages.values, Type::BYTEA_ARRAY),
        ];
        let rows = self.query_typed(sql, &args).await.map_err(failed)?;
        Ok(rows.first().map(|row| row.get(0)).unwrap_or_default())
    }
}
