//! Settings of queues.

use mainspring_core::name::QueueName;
use mainspring_core::store::{Queue, QueueChange};
use mainspring_core::time::micros;
use rusqlite::params;

use crate::error::Result;
use crate::writer::Tx;

/// Primary key.
const SET: &str =
    "UPDATE mainspring_queues SET paused = ?2, backoff = ?3, retain_succeeded = ?4, retain_failed = ?5
    WHERE no = ?1";
/// Primary key: tells other processes to read the settings again.
const CHANGED: &str = "INSERT INTO mainspring_meta (key, value) VALUES ('settings', 1)
    ON CONFLICT (key) DO UPDATE SET value = value + 1";
/// The whole of a small table: rows that were passed by may be over by the new settings.
const LOOK_AGAIN: &str = "DELETE FROM mainspring_retention";

/// Changes a queue's settings, creating it if need be.
pub(crate) fn configure(tx: &mut Tx<'_>, name: &QueueName, change: &QueueChange) -> Result<Queue> {
    change.check()?;
    let no = tx.state.names.intern_queue(tx.conn, name)?;
    let mut queue = tx.state.names.queue(no)?.clone();
    let before = queue.settings.clone();
    change.apply(&mut queue.settings);
    let settings = &queue.settings;
    if *settings == before {
        return Ok(queue);
    }
    tx.conn.prepare_cached(SET)?.execute(params![
        no,
        settings.paused,
        settings.backoff.map(|backoff| backoff.to_string()),
        micros(settings.retention.succeeded.0),
        micros(settings.retention.failed.0)
    ])?;
    tx.conn.prepare_cached(CHANGED)?.execute([])?;
    if settings.retention != before.retention {
        tx.conn.prepare_cached(LOOK_AGAIN)?.execute([])?;
        tx.state.pruned.clear();
    }
    tx.state.names.refresh(tx.conn)?;
    if before.paused && !queue.settings.paused {
        tx.hints.ready(name);
    }
    Ok(queue)
}

/// Primary key of `meta`: a row that no other transaction sees, so that the commit has a page to write.
const TRY: &str = "INSERT INTO mainspring_meta (key, value) VALUES ('doctor', 0)";
const FORGET: &str = "DELETE FROM mainspring_meta WHERE key = 'doctor'";

/// Writes, and takes it back in the same transaction.
pub(crate) fn try_write(tx: &mut Tx<'_>) -> Result<()> {
    tx.conn.prepare_cached(TRY)?.execute([])?;
    tx.conn.prepare_cached(FORGET)?.execute([])?;
    Ok(())
}
