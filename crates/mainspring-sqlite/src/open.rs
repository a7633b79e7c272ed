//! Opening the file: connections, pragmas, and clear words when it cannot be done.

use std::path::Path;
use std::time::Duration;

use mainspring_core::Result;
use mainspring_core::error::OpenProblem;
use mainspring_core::seam::Clock;
use rusqlite::config::DbConfig;
use rusqlite::{Connection, ErrorCode, OpenFlags};

use crate::error::{open as sql_problem, problem_with};
use crate::migrate;
use crate::options::{Durability, Options};

/// The oldest SQLite that is known to be safe: 3.51.3 mends a race in which two connections could corrupt a WAL file.
const MIN_SQLITE: (i32, &str) = (3_051_003, "3.51.3");
/// Statements kept prepared per connection: more than all that there are.
const STATEMENTS: usize = 256;
/// Pages of WAL after which a commit copies them back: 16 MiB. Larger makes the copy rarer and cheaper per page, and
/// the pause of the one commit that does it longer.
const CHECKPOINT_PAGES: i64 = 4_000;
/// Bytes of WAL that are kept on disk after a copy.
const WAL_BYTES: i64 = 64 << 20;
/// KiB of page cache of the writer, negative as SQLite wants it. The working set of a busy queue is its tail.
const WRITER_CACHE: i64 = -32_768;
/// KiB of page cache of each reader.
const READER_CACHE: i64 = -8_192;

/// Checks the library, then that there is something to open or that it may be created.
pub(crate) fn check(options: &Options) -> Result<()> {
    let problem = |problem| Err(problem_with(&options.path, problem, None));
    if rusqlite::version_number() < MIN_SQLITE.0 {
        return problem(OpenProblem::Library {
            found: rusqlite::version().to_owned(),
            needed: MIN_SQLITE.1.to_owned(),
        });
    }
    let refused = |problem, why: &str| {
        Err(problem_with(&options.path, problem, Some(std::io::Error::other(why.to_owned()).into())))
    };
    if options.path.is_dir() {
        return refused(OpenProblem::NotAStore, "it is a directory");
    }
    if !options.path.exists() {
        if !options.create {
            return problem(OpenProblem::Missing);
        }
        let parent = options.path.parent().filter(|parent| !parent.as_os_str().is_empty());
        if parent.is_some_and(|parent| !parent.is_dir()) {
            return refused(OpenProblem::Missing, "its directory does not exist");
        }
    }
    Ok(())
}

/// Opens the connection that writes.
pub(crate) fn writer(options: &Options, clock: &dyn Clock) -> Result<Connection> {
    let path = options.path.as_path();
    let sql = |error| sql_problem(path, error);
    let mut flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    if options.create {
        flags |= OpenFlags::SQLITE_OPEN_CREATE;
    }
    let conn = Connection::open_with_flags(path, flags).map_err(sql)?;
    conn.busy_timeout(options.busy_timeout).map_err(sql)?;
    if conn.is_readonly("main").map_err(sql)? {
        return Err(problem_with(path, OpenProblem::ReadOnly, None));
    }
    if !options.create {
        must_be_store(&conn, path)?;
    }
    switch_to_wal(&conn, options, clock)?;
    let synchronous = match options.durability {
        Durability::Full => "FULL",
        Durability::Relaxed => "NORMAL",
    };
    pragma(&conn, path, "synchronous", synchronous)?;
    pragma(&conn, path, "wal_autocheckpoint", CHECKPOINT_PAGES)?;
    pragma(&conn, path, "journal_size_limit", WAL_BYTES)?;
    pragma(&conn, path, "cache_size", WRITER_CACHE)?;
    shared_pragmas(&conn, path)?;
    Ok(conn)
}

/// Refuses a file that has no store in it, and leaves it as it is: a log that its owner has left behind is not copied back by
/// closing the connection.
fn must_be_store(conn: &Connection, path: &Path) -> Result<()> {
    let sql = |error| sql_problem(path, error);
    let mut log = path.as_os_str().to_owned();
    log.push("-wal");
    let log_is_left = std::fs::metadata(log).is_ok_and(|log| log.len() > 0);
    conn.set_db_config(DbConfig::SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, log_is_left).map_err(sql)?;
    if migrate::version(conn, path)? == 0 {
        let why = "it has no tables of a store, and this call does not create one";
        return Err(problem_with(path, OpenProblem::NotAStore, Some(std::io::Error::other(why).into())));
    }
    conn.set_db_config(DbConfig::SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, false).map_err(sql)?;
    Ok(())
}

/// Opens a connection that only reads.
pub(crate) fn reader(options: &Options) -> Result<Connection> {
    let path = options.path.as_path();
    // Not read-only for the operating system: a reader of a WAL takes part in its shared index.
    let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let conn = Connection::open_with_flags(path, flags).map_err(|error| sql_problem(path, error))?;
    conn.busy_timeout(options.busy_timeout).map_err(|error| sql_problem(path, error))?;
    pragma(&conn, path, "cache_size", READER_CACHE)?;
    pragma(&conn, path, "query_only", true)?;
    // The writer's connection is the last one to be closed. Where it is not, the store is poisoned, and its log is evidence.
    conn.set_db_config(DbConfig::SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, true)
        .map_err(|error| sql_problem(path, error))?;
    shared_pragmas(&conn, path)?;
    Ok(conn)
}

fn shared_pragmas(conn: &Connection, path: &Path) -> Result<()> {
    conn.set_prepared_statement_cache_capacity(STATEMENTS);
    // Plans do not depend on the values that are bound: otherwise SQLite prepares a statement anew for each of them.
    conn.set_db_config(DbConfig::SQLITE_DBCONFIG_ENABLE_QPSG, true)
        .map_err(|error| sql_problem(path, error))?;
    pragma(conn, path, "foreign_keys", false)?;
    pragma(conn, path, "temp_store", "MEMORY")
}

fn pragma(conn: &Connection, path: &Path, name: &str, value: impl rusqlite::ToSql) -> Result<()> {
    conn.pragma_update(None, name, value).map_err(|error| sql_problem(path, error))
}

/// Turns on the write-ahead log. SQLite does not wait by itself when several processes do this at once, so this does.
fn switch_to_wal(conn: &Connection, options: &Options, clock: &dyn Clock) -> Result<()> {
    const PAUSE: Duration = Duration::from_millis(5);
    let path = options.path.as_path();
    let begin = clock.monotonic();
    let mut pauses = 0_u32;
    loop {
        let busy = match conn
            .pragma_update_and_check(None, "journal_mode", "WAL", |row| row.get::<_, String>(0))
        {
            Ok(mode) if mode == "wal" => return Ok(()),
            // SQLite answers with the old mode where a file system cannot share memory.
            Ok(mode) => {
                let why = format!("its journal cannot be changed from `{mode}` to `wal`");
                return Err(problem_with(path, OpenProblem::Other, Some(std::io::Error::other(why).into())));
            }
            Err(error) if error.sqlite_error_code() == Some(ErrorCode::DatabaseBusy) => error,
            Err(error) => return Err(sql_problem(path, error)),
        };
        pauses += 1;
        let waited = clock.monotonic().saturating_sub(begin).max(PAUSE * pauses);
        if waited >= options.busy_timeout {
            return Err(sql_problem(path, busy));
        }
        crate::sync::pause(PAUSE);
    }
}
