//! Migrations: embedded, forward only, each in one transaction with its version.
//!
//! # Invariants
//! - One process at a time migrates: the others wait for its lock, and find the work done.
//! - The database rolls back what a process that dies in the middle has begun: it leaves the version before or the one
//!   after.
//! - A schema whose lowest version is above ours is never touched, nor one that was made by other statements than ours.

use mainspring_core::error::OpenProblem;
use mainspring_core::store::fingerprint;
use mainspring_core::{Result, fault};
use tokio_postgres::error::SqlState;

use crate::connect::{self, problem};
use crate::connection::Conn;
use crate::shared::Shared;
use crate::sql::{Query, in_schema, name, statement};

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

/// The oldest database that we know to work.
pub(crate) const MIN_SERVER: (i32, &str) = (140_000, "14");

/// Returns all migrations as one script for `psql`, for people who change their schema only by hand.
/// The script is one transaction. It fails if the schema exists.
pub fn script(schema: &str) -> String {
    let mut text = format!(
        "-- Mainspring, schema version {SCHEMA_VERSION}, for a new store in schema `{schema}`.\nBEGIN;\n\n"
    );
    for (version, migration) in (1_u32..).zip(MIGRATIONS) {
        text.push_str(&in_schema(&step(version, migration), schema));
        text.push('\n');
    }
    text.push_str("COMMIT;\n");
    in_schema_names(&text, schema)
}

/// The statements of one migration, with its version. The store's own id is drawn by the database.
fn step(version: u32, migration: &Migration) -> String {
    let set = |key: &str, value: &str| {
        format!(
            "INSERT INTO mainspring.meta (key, value) VALUES ('{key}', {value})
    ON CONFLICT (key) DO UPDATE SET value = excluded.value;\n"
        )
    };
    let mut text = migration.sql.to_owned();
    text.push('\n');
    text.push_str(&set("version", &format!("'{version}'")));
    text.push_str(&set("min_version", &format!("'{}'", migration.min_version)));
    text.push_str(&set(&schema_key(version), &format!("'{}'", fingerprint(migration.sql))));
    if version == 1 {
        text.push_str(IDENTITY);
    }
    text
}

/// The store's own id, drawn by the database. It is also a remark on the table: a caller's transaction can look for that
/// without failing where there is no such table.
const IDENTITY: &str = "INSERT INTO mainspring.meta (key, value)
    VALUES ('store', gen_random_uuid()::text), ('settings', '0');
DO $$ BEGIN
    EXECUTE format('COMMENT ON TABLE mainspring.meta IS %L',
        'Mainspring store ' || (SELECT value FROM mainspring.meta WHERE key = 'store'));
END $$;
";

/// The one statement that names the schema itself.
fn in_schema_names(text: &str, schema: &str) -> String {
    let schema = name(schema);
    text.replace("to_regnamespace('mainspring')", &format!("to_regnamespace('{schema}')"))
        .replace("CREATE SCHEMA mainspring;", &format!("CREATE SCHEMA {schema};"))
}

/// What was found in the database.
pub(crate) struct Found {
    /// The version of the schema; 0 if there is none.
    pub(crate) version: u32,
    /// The store's own id.
    pub(crate) store: [u8; 16],
}

statement! {
    /// The tables of the catalogue, not `to_regclass`: that may answer from what the session remembers, and would not
    /// see what was committed while we waited for the lock.
    pub(crate) FindMeta<'a> = "open.find_meta", whole ("it reads the catalogue"), (schema: &'a str);
    "SELECT 1 FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
    WHERE n.nspname = $1 AND c.relname = 'meta'"
}
statement! {
    /// A handful of rows.
    pub(crate) AllMeta = "open.meta", whole ("`meta` has a handful of rows"), () -> MetaRow { key: String, value: String };
    "SELECT key, value FROM mainspring.meta"
}

/// The version of the schema, which is refused if it is too new for us.
pub(crate) async fn look(conn: &Conn, shared: &Shared) -> Result<Found> {
    let failed = |error: tokio_postgres::Error| connect::failed(shared, OpenProblem::Refused, &error);
    let schema: &str = &shared.schema;
    let rows = conn.ask(&FindMeta { schema: &schema }.call()).await.map_err(failed)?;
    if rows.is_empty() {
        return Ok(Found { version: 0, store: [0; 16] });
    }
    let rows = conn.ask(&AllMeta.call()).await.map_err(|error| match error.code() {
        Some(&SqlState::UNDEFINED_COLUMN) => problem(shared, OpenProblem::NotAStore, None),
        _ => failed(error),
    })?;
    let rows = AllMeta::rows(&rows).map_err(|fault| fault.into_error(false))?;
    let value = |key: &str| rows.iter().find(|row| row.key == key).map(|row| row.value.clone());
    let number = |key: &str| value(key).and_then(|text| text.parse::<u32>().ok());
    let not_ours = || problem(shared, OpenProblem::NotAStore, None);
    let needed = number("min_version").ok_or_else(not_ours)?;
    if needed > SCHEMA_VERSION {
        return Err(problem(shared, OpenProblem::TooNew { needed, known: SCHEMA_VERSION }, None));
    }
    let store = value("store").and_then(|text| text.parse::<uuid::Uuid>().ok()).ok_or_else(not_ours)?;
    let version = number("version").ok_or_else(not_ours)?;
    for (number, migration) in (1..=version).zip(MIGRATIONS) {
        if value(&schema_key(number)) != Some(fingerprint(migration.sql)) {
            return Err(problem(shared, OpenProblem::DevelopmentBuild { version: number }, None));
        }
    }
    Ok(Found { version, store: store.into_bytes() })
}

/// The key of a migration's fingerprint.
fn schema_key(version: u32) -> String {
    format!("schema_{version}")
}

/// Removes the schema with everything in it.
pub(crate) async fn remove(conn: &Conn, shared: &Shared) -> Result<()> {
    let sql = format!("DROP SCHEMA IF EXISTS {} CASCADE", name(&shared.schema));
    conn.client
        .batch_execute(&sql)
        .await
        .map_err(|error| connect::failed(shared, OpenProblem::Refused, &error))
}

/// Brings the schema to [`SCHEMA_VERSION`], or refuses to touch it. Returns the version that was found.
pub(crate) async fn run(conn: &mut Conn, shared: &Shared) -> Result<u32> {
    let found = look(conn, shared).await?.version;
    let mut version = found;
    while version < SCHEMA_VERSION {
        let failed = |error: tokio_postgres::Error| connect::failed(shared, OpenProblem::Refused, &error);
        // A migration may take longer than an ordinary call; and others wait for it.
        let begin = format!(
            "BEGIN; SET LOCAL statement_timeout = 0; SET LOCAL lock_timeout = 0;
            SELECT pg_advisory_xact_lock(hashtextextended('mainspring migration {}', 0));",
            shared.schema
        );
        conn.client.batch_execute(&begin).await.map_err(failed)?;
        version = look(conn, shared).await?.version;
        if let Some(migration) = MIGRATIONS.get(version as usize) {
            let text =
                in_schema_names(&in_schema(&step(version + 1, migration), &shared.schema), &shared.schema);
            conn.client.batch_execute(&text).await.map_err(failed)?;
            fault::point!("postgres.migrate.changed");
            version += 1;
        }
        conn.client.batch_execute("COMMIT").await.map_err(failed)?;
        fault::point!("postgres.migrate.committed");
    }
    Ok(found)
}
