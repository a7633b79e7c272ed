//! Migrations: embedded, forward only, each in one transaction with its version.
//!
//! # Invariants
//! - The version is read again inside the transaction that changes the schema, so any number of processes may open an
//!   old file at once; one does the work and the others find it done.
//! - A process that dies in the middle leaves the version before or the one after.
//! - A schema whose lowest version is above ours is never touched, nor one that was made by other statements than ours.

use mainspring_core::error::OpenProblem;
use mainspring_core::seam::Rng;
use mainspring_core::store::fingerprint;
use mainspring_core::{Result, fault};
use rusqlite::{Connection, OptionalExtension, TransactionBehavior};

use crate::error;
use std::path::Path;

/// One step: what to run, and the lowest version of a program that can still work with the result.
struct Migration {
    sql: &'static str,
    min_version: u32,
}

/// From version `n` to `n + 1`, for each `n` from 0. Entries are never changed once released.
const MIGRATIONS: &[Migration] = &[Migration { sql: include_str!("schema/0001.sql"), min_version: 1 }];

/// The schema version that this crate reads and writes.
#[expect(clippy::cast_possible_truncation, reason = "there are few migrations")]
pub const SCHEMA_VERSION: u32 = MIGRATIONS.len() as u32;

/// Automatic index of `sqlite_schema`'s few rows: whether our tables are there at all.
const HAS_META: &str = "SELECT 1 FROM sqlite_schema WHERE type = 'table' AND name = 'mainspring_meta'";
/// The few rows of `sqlite_schema`: tables of others.
const TABLES: &str =
    "SELECT count(*) FROM sqlite_schema WHERE type = 'table' AND name NOT LIKE 'sqlite\\_%' ESCAPE '\\'";
/// Primary key.
const META: &str = "SELECT value FROM mainspring_meta WHERE key = ?1";
/// Primary key; inside the migration's transaction.
const SET_META: &str = "INSERT INTO mainspring_meta (key, value) VALUES (?1, ?2)
    ON CONFLICT (key) DO UPDATE SET value = excluded.value";

/// What a migration found and did.
pub(crate) struct Migrated {
    /// The version that was found.
    pub(crate) found: u32,
    /// Whether it has created the store: how many tables of others the file has.
    pub(crate) created: Option<u32>,
}

/// Brings the schema to [`SCHEMA_VERSION`], or refuses to touch it.
pub(crate) fn run(conn: &mut Connection, path: &Path, rng: &dyn Rng) -> Result<Migrated> {
    let sql = |error| error::open(path, error);
    let found = version(conn, path)?;
    let mut version_now = found;
    let mut created = None;
    while version_now < SCHEMA_VERSION {
        let tx = conn.transaction_with_behavior(TransactionBehavior::Immediate).map_err(sql)?;
        version_now = version(&tx, path)?;
        if let Some(migration) = MIGRATIONS.get(version_now as usize) {
            if version_now == 0 {
                created = Some(tx.query_row(TABLES, [], |row| row.get(0)).map_err(sql)?);
            }
            tx.execute_batch(migration.sql).map_err(sql)?;
            fault::point!("sqlite.migrate.changed");
            version_now += 1;
            tx.execute(SET_META, ("version", version_now)).map_err(sql)?;
            tx.execute(SET_META, ("min_version", migration.min_version)).map_err(sql)?;
            let made_by = (schema_key(version_now), fingerprint(migration.sql));
            tx.execute(SET_META, made_by).map_err(sql)?;
            if version_now == 1 {
                let mut store = [0; 16];
                store[..8].copy_from_slice(&rng.next_u64().to_be_bytes());
                store[8..].copy_from_slice(&rng.next_u64().to_be_bytes());
                tx.execute(SET_META, ("store", store)).map_err(sql)?;
            }
        }
        fault::point!("sqlite.migrate.committing");
        tx.commit().map_err(sql)?;
        fault::point!("sqlite.migrate.committed");
    }
    Ok(Migrated { found, created })
}

/// The version of the schema in a file: 0 if there is none.
pub(crate) fn version(conn: &Connection, path: &Path) -> Result<u32> {
    let sql = |error| error::open(path, error);
    if conn.query_row(HAS_META, [], |_| Ok(())).optional().map_err(sql)?.is_none() {
        return Ok(0);
    }
    let meta = |key: &str| -> Result<u32> {
        let value: Option<u32> = conn.query_row(META, [key], |row| row.get(0)).optional().map_err(sql)?;
        value.ok_or_else(|| error::problem_with(path, OpenProblem::NotAStore, None))
    };
    let needed = meta("min_version")?;
    if needed > SCHEMA_VERSION {
        let problem = OpenProblem::TooNew { needed, known: SCHEMA_VERSION };
        return Err(error::problem_with(path, problem, None));
    }
    let version = meta("version")?;
    for (number, migration) in (1..=version).zip(MIGRATIONS) {
        let made_by: Option<String> =
            conn.query_row(META, [schema_key(number)], |row| row.get(0)).optional().map_err(sql)?;
        if made_by.is_none_or(|made_by| made_by != fingerprint(migration.sql)) {
            return Err(error::problem_with(path, OpenProblem::DevelopmentBuild { version: number }, None));
        }
    }
    Ok(version)
}

/// The key of a migration's fingerprint.
fn schema_key(version: u32) -> String {
    format!("schema_{version}")
}

/// The id of a store.
pub(crate) fn store_id(conn: &Connection) -> rusqlite::Result<Option<[u8; 16]>> {
    conn.query_row(META, ["store"], |row| row.get(0)).optional()
}
