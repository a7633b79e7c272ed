//! Transactions of tokio-postgres.

use std::future::Future;

use mainspring_core::Result;
use mainspring_core::id::NodeNo;
use mainspring_core::job::New;
use mainspring_core::journal::{Recorded, Recording};
use mainspring_core::store::{Enlist, Receipt, Ticket};
use tokio_postgres::{Error, Transaction};
use uuid::Uuid;

use super::{Holders, Identity, Insert, InsertLimited, Insist, Known, LockKeys, Record, Session, Take, text};
use crate::error::into_error;
use crate::op::record::Forget;
use crate::op::same_id::{Holder, SameId, SameIdRow};
use crate::sql::{Call, Query};

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

/// The rows of a statement.
async fn rows<Q: Query>(session: &Transaction<'_>, schema: &str, call: Call<'_>) -> Result<Vec<Q::Row>> {
    let rows = session.query_typed(&text::<Q>(schema), &call.args).await.map_err(failed)?;
    Q::rows(&rows).map_err(|fault| fault.into_error(false))
}

impl Session for Transaction<'_> {
    async fn identity(&mut self, statement: Identity<'_>) -> Result<(Option<String>, bool)> {
        // It names the schema by its argument.
        let said = rows::<Identity<'_>>(self, "mainspring", statement.call()).await?;
        Ok(said.into_iter().next().map(|said| (said.store, said.marked)).unwrap_or_default())
    }

    async fn lock_keys(&mut self, schema: &str, statement: LockKeys<'_>) -> Result<()> {
        rows::<LockKeys<'_>>(self, schema, statement.call()).await.map(drop)
    }

    async fn known(&mut self, schema: &str, statement: Known<'_>) -> Result<Vec<Uuid>> {
        let known = rows::<Known<'_>>(self, schema, statement.call()).await?;
        Ok(known.into_iter().map(|job| job.id).collect())
    }

    async fn holders(&mut self, schema: &str, statement: Holders<'_>) -> Result<Vec<(i32, String, Uuid)>> {
        let holders = rows::<Holders<'_>>(self, schema, statement.call()).await?;
        Ok(holders.into_iter().map(|holder| (holder.kind, holder.key, holder.id)).collect())
    }

    async fn insert(&mut self, schema: &str, statement: Insert<'_>) -> Result<Vec<Uuid>> {
        let there = rows::<Insert<'_>>(self, schema, statement.call()).await?;
        Ok(there.into_iter().map(|job| job.id).collect())
    }

    async fn insert_limited(&mut self, schema: &str, statement: InsertLimited<'_>) -> Result<Vec<Uuid>> {
        let there = rows::<InsertLimited<'_>>(self, schema, statement.call()).await?;
        Ok(there.into_iter().map(|job| job.id).collect())
    }

    async fn same_id(&mut self, schema: &str, statement: SameId<'_>) -> Result<Vec<(i64, Holder)>> {
        let holders = rows::<SameId<'_>>(self, schema, statement.call()).await?;
        let holder =
            |row: SameIdRow| (row.index, Holder { kind: row.kind, options: row.options, input: row.input });
        Ok(holders.into_iter().map(holder).collect())
    }

    async fn take(&mut self, schema: &str, statement: Take<'_>) -> Result<()> {
        rows::<Take<'_>>(self, schema, statement.call()).await.map(drop)
    }

    async fn insist(&mut self) -> Result<()> {
        rows::<Insist>(self, "mainspring", Insist.call()).await.map(drop)
    }

    async fn forget(&mut self, schema: &str, statement: Forget<'_>) -> Result<()> {
        rows::<Forget<'_>>(self, schema, statement.call()).await.map(drop)
    }

    async fn record(&mut self, schema: &str, statement: Record<'_>) -> Result<Vec<i64>> {
        let held = rows::<Record<'_>>(self, schema, statement.call()).await?;
        Ok(held.into_iter().flat_map(|row| row.nos).collect())
    }
}
