//! A few statements to a server, from any thread.
//!
//! The client runs a small runtime of its own, which must not happen inside of another one: so each visit has a thread.

use ::postgres::{Client, NoTls, SimpleQueryMessage};

use super::endpoint::Endpoint;
use super::{Error, Result};

/// Connects, does some work, and is disconnected when this returns.
pub(super) fn visit<T: Send>(
    endpoint: &Endpoint,
    database: &str,
    work: impl FnOnce(&mut Client) -> Result<T> + Send,
) -> Result<T> {
    let config = endpoint.config(database);
    apart(move || {
        let mut client = config.connect(NoTls)?;
        let done = work(&mut client);
        // Says good-bye: to be dropped is to be noticed by the server some time later.
        let closed = client.close();
        let done = done?;
        closed?;
        Ok(done)
    })
}

/// Runs statements without arguments and returns the rows as text.
pub(super) fn sql(client: &mut Client, sql: &str) -> Result<Vec<Vec<Option<String>>>> {
    let mut rows = Vec::new();
    for message in client.simple_query(sql)? {
        if let SimpleQueryMessage::Row(row) = message {
            rows.push((0..row.len()).map(|column| row.get(column).map(str::to_owned)).collect());
        }
    }
    Ok(rows)
}

/// Runs something on a thread of its own and waits for it.
pub(super) fn apart<T: Send>(work: impl FnOnce() -> Result<T> + Send) -> Result<T> {
    std::thread::scope(|scope| {
        let thread = std::thread::Builder::new().name("postgres".to_owned());
        let thread = thread.spawn_scoped(scope, work).map_err(Error::io("starting a thread"))?;
        thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    })
}
