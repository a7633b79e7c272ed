//! Jobs inside an application's own transaction.

use mainspring_core::Error;
use mainspring_core::job::{Differs, State, Unique};
use mainspring_core::store::{Enlist, Nodes, Operators, Producers, Receipt};
use rusqlite::Connection;

use super::support::{Fixture, block_on, claim, job, registration};

fn ready(it: &Fixture) -> u64 {
    block_on(it.store.counts()).expect("counts").total(State::Ready)
}

#[test]
fn job_exists_if_and_only_if_the_transaction_commits() {
    let it = Fixture::new();
    let mut conn = it.raw();
    conn.execute_batch("CREATE TABLE orders (id INTEGER)").expect("a table");
    let ticket = it.store.ticket();
    let mut tx = conn.transaction().expect("a transaction");
    tx.execute("INSERT INTO orders VALUES (1)", []).expect("a row");
    assert_eq!(block_on(tx.enlist(&ticket, vec![job(&it.seams)])).expect("enlisted"), [Receipt::Created]);
    drop(tx);
    assert_eq!(ready(&it), 0, "rolled back");

    let mut tx = conn.transaction().expect("a transaction");
    tx.execute("INSERT INTO orders VALUES (1)", []).expect("a row");
    let (one, two) = (job(&it.seams), job(&it.seams));
    block_on(tx.enlist(&ticket, vec![one.clone()])).expect("enlisted");
    block_on(tx.enlist(&ticket, vec![two, one])).expect("enlisted, one of them again");
    assert_eq!(ready(&it), 0, "not yet");
    tx.commit().expect("committed");
    assert_eq!(ready(&it), 2);
    it.assert_sound();

    let node = block_on(it.store.register(registration(&it.seams))).expect("a node").no;
    assert_eq!(block_on(it.store.claim(claim(node, 1))).expect("claimed").jobs.len(), 2);
    let deltas: i64 = conn
        .query_row("SELECT count(*) FROM mainspring_count_deltas", [], |row| row.get(0))
        .expect("a count");
    assert_eq!(deltas, 0, "folded");
    it.assert_sound();
}

#[test]
fn every_option_is_stored_beside() {
    let it = Fixture::new();
    let mut conn = it.raw();
    let mut tx = conn.transaction().expect("a transaction");
    let mut new = job(&it.seams);
    new.options.unique = Some(Unique::new("key"));
    new.options.tags = vec![mainspring_core::name::Tag::new("'; drop table jobs; --").expect("a tag")];
    new.deadline = Some(mainspring_core::job::When::After(std::time::Duration::from_mins(1)));
    new.run = Some(mainspring_core::job::When::After(std::time::Duration::from_secs(10)));
    block_on(tx.enlist(&it.store.ticket(), vec![new.clone()])).expect("enlisted");
    tx.commit().expect("committed");
    it.assert_sound();
    let record = block_on(it.store.get(new.id)).expect("read").expect("a job");
    assert_eq!(record.summary.options, new.options);
    assert_eq!(record.summary.status.state, State::Scheduled);
    assert!(record.summary.deadline.is_some());
}

#[test]
fn held_key_does_not_abort_the_transaction() {
    let it = Fixture::new();
    let mut holder = job(&it.seams);
    holder.options.unique = Some(Unique::new("key"));
    block_on(it.store.enqueue(vec![holder.clone()])).expect("enqueued");
    let mut conn = it.raw();
    let mut tx = conn.transaction().expect("a transaction");
    let mut keep = job(&it.seams);
    keep.options.unique = Some(Unique::new("key"));
    let mut reject = job(&it.seams);
    reject.options.unique = Some(Unique::new("key").reject());
    let receipts = block_on(tx.enlist(&it.store.ticket(), vec![keep, job(&it.seams), reject]));
    let expected = [Receipt::Existing(holder.id), Receipt::Created, Receipt::Rejected(holder.id)];
    assert_eq!(receipts.expect("enlisted"), expected);
    tx.commit().expect("committed");
    assert_eq!(ready(&it), 2);
    it.assert_sound();
}

#[test]
fn taken_id_does_not_abort_the_transaction() {
    let it = Fixture::new();
    let holder = job(&it.seams);
    block_on(it.store.enqueue(vec![holder.clone()])).expect("enqueued");
    let mut conn = it.raw();
    let mut tx = conn.transaction().expect("a transaction");
    let mut other = holder.clone();
    other.input = b"[7]".to_vec();
    let mut keyed = other.clone();
    keyed.options.unique = Some(Unique::new("key"));
    let receipts = block_on(tx.enlist(&it.store.ticket(), vec![other, keyed, holder, job(&it.seams)]));
    let taken = Receipt::Taken(Differs::Input);
    assert_eq!(receipts.expect("enlisted"), [taken, taken, Receipt::Repeated, Receipt::Created]);
    tx.commit().expect("committed");
    assert_eq!(ready(&it), 2);
    it.assert_sound();
}

#[test]
fn transaction_on_another_database_is_refused() {
    let it = Fixture::new();
    let other = Fixture::new();
    let mut conn = other.raw();
    let mut tx = conn.transaction().expect("a transaction");
    let refused = block_on(tx.enlist(&it.store.ticket(), vec![job(&it.seams)]));
    assert!(matches!(refused, Err(Error::ForeignTransaction { .. })), "{refused:?}");
    drop(tx);
    let mut conn = Connection::open_in_memory().expect("a connection");
    let mut tx = conn.transaction().expect("a transaction");
    let refused = block_on(tx.enlist(&it.store.ticket(), vec![job(&it.seams)]));
    assert!(matches!(refused, Err(Error::ForeignTransaction { .. })), "{refused:?}");
}

#[test]
fn replacing_is_refused_in_a_transaction() {
    let it = Fixture::new();
    let mut conn = it.raw();
    let mut tx = conn.transaction().expect("a transaction");
    let mut replace = job(&it.seams);
    replace.options.unique = Some(Unique::new("key").replace());
    let refused = block_on(tx.enlist(&it.store.ticket(), vec![job(&it.seams), replace]));
    assert!(matches!(refused, Err(Error::NotInTransaction { .. })), "{refused:?}");
    tx.commit().expect("committed");
    assert_eq!(ready(&it), 0, "all or nothing");
}

#[test]
fn open_transaction_only_delays_the_engine() {
    let it = Fixture::new();
    let mut conn = it.raw();
    let mut tx = conn.transaction().expect("a transaction");
    block_on(tx.enlist(&it.store.ticket(), vec![job(&it.seams)])).expect("enlisted");
    let waiting = it.store.enqueue(vec![job(&it.seams)]);
    tx.commit().expect("committed");
    block_on(waiting).expect("enqueued after it");
    assert_eq!(ready(&it), 2);
    it.assert_sound();
}
