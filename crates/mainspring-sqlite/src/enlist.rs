//! Jobs inside an application's own transaction on the same file.
//!
//! # Invariants
//! - Only inserts are made, and a conflict on a unique key or a repeated id leaves the transaction usable.
//! - A transaction on another file, or on an attached one, is refused before anything is written.

use std::future::{Future, ready};

use mainspring_core::job::New;
use mainspring_core::store::{self, Enlist, EnlistSync, Receipt, Ticket};
use mainspring_core::{Error, Result};
use rusqlite::{Connection, Transaction};

use crate::error::{Fault, Severity, corrupt, rolled_back, severity};
use crate::migrate;
use crate::op::enqueue;
use crate::op::row_numbers::Numbers;
use crate::writer::{State, Tx};

/// Takes the write lock and changes nothing. As the first statement of a transaction it waits for other writers; a
/// read would fix a snapshot, which a later write could find outdated.
const LOCK: &str = "DELETE FROM mainspring_count_deltas WHERE false";

impl Enlist<crate::Sqlite> for Transaction<'_> {
    fn enlist(&mut self, ticket: &Ticket, jobs: Vec<New>) -> impl Future<Output = Result<Vec<Receipt>>> {
        ready(enlist(self, ticket, &jobs))
    }
}

impl EnlistSync<crate::Sqlite> for Transaction<'_> {
    fn enlist_sync(&mut self, ticket: &Ticket, jobs: Vec<New>) -> Result<Vec<Receipt>> {
        enlist(self, ticket, &jobs)
    }
}

pub(crate) fn enlist(conn: &Connection, ticket: &Ticket, jobs: &[New]) -> Result<Vec<Receipt>> {
    store::check_enlisted(jobs)?;
    match conn.prepare_cached(LOCK).and_then(|mut lock| lock.execute([])) {
        Ok(_) => {}
        Err(error) if severity(&error) == Severity::Other => {
            return Err(Error::ForeignTransaction { why: format!("no store in its database: {error}") });
        }
        Err(error) => return Err(rolled_back(&error)),
    }
    if migrate::store_id(conn).map_err(|error| rolled_back(&error))? != Some(ticket.store) {
        return Err(Error::ForeignTransaction { why: "its database holds another store".into() });
    }
    insert(conn, ticket, jobs).map_err(|fault| match fault {
        Fault::Refused(error) => error,
        Fault::Sql(error) => rolled_back(&error),
    })
}

fn insert(conn: &Connection, ticket: &Ticket, jobs: &[New]) -> crate::error::Result<Vec<Receipt>> {
    let mut state = State { numbers: Numbers::load(conn)?, ..State::default() };
    let now = ticket.now.ok_or_else(|| corrupt("a ticket without the store's time"))?;
    let mut tx = Tx::new(conn, &mut state, now);
    let receipts = enqueue::run(&mut tx, jobs)?;
    tx.enlisted()?;
    Ok(receipts)
}
