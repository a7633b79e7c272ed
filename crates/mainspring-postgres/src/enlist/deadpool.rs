//! Transactions of deadpool-postgres: those of tokio-postgres in a wrapper.

use std::future::Future;

use deadpool_postgres::Transaction;
use mainspring_core::Result;
use mainspring_core::id::NodeNo;
use mainspring_core::job::New;
use mainspring_core::journal::{Recorded, Recording};
use mainspring_core::store::{Enlist, Receipt, Ticket};

impl Enlist<crate::Postgres> for Transaction<'_> {
    fn enlist(&mut self, ticket: &Ticket, jobs: Vec<New>) -> impl Future<Output = Result<Vec<Receipt>>> {
        super::enlist(&mut **self, ticket, jobs)
    }

    fn enlist_recording(
        &mut self,
        ticket: &Ticket,
        node: NodeNo,
        recording: Recording,
    ) -> impl Future<Output = Result<Recorded>> {
        super::enlist_recording(&mut **self, ticket, node, recording)
    }
}
