//! What surrounds the store and may hurt it: settings, rights, and other users of the database.
//!
//! Most questions are statements that give one line of text per finding. What the role may not see of others, the database
//! leaves out by itself; a question that it refuses altogether becomes a finding, and the others are still asked.

use std::time::Duration;

use mainspring_core::store::Finding;
use mainspring_core::time::Timestamp;
use tokio_postgres::Row;
use tokio_postgres::types::Type;

use crate::connection::{Conn, Use};
use crate::error::{Fault, Result, answered, words};
use crate::migrate::SCHEMA_VERSION;
use crate::op::Op;
use crate::options::{Durability, Time};
use crate::shared::Shared;
use crate::sql::{At, Call};

/// A statement that gives findings, and what a person can do about them.
type Question = (&'static str, &'static str);

/// Settings of the server. In all questions `$1`, where it is used, is the schema that holds the tables.
const SERVER: [Question; 6] = [
    (
        "SELECT 'the server is PostgreSQL ' || current_setting('server_version') || ', older than 14'
        WHERE current_setting('server_version_num')::int < 140000",
        "upgrade the server: older ones are not tested, and get no fixes",
    ),
    (
        "SELECT '`fsync` is off: a crash of the server machine can lose jobs and damage the database'
        WHERE NOT current_setting('fsync')::boolean",
        "set `fsync = on` in postgresql.conf and reload",
    ),
    (
        "SELECT '`full_page_writes` is off: a crash in the middle of a write can damage the database'
        WHERE NOT current_setting('full_page_writes')::boolean",
        "set `full_page_writes = on`, unless the file system promises that pages are written whole",
    ),
    (
        "SELECT '`' || name || '` is off: dead rows pile up and everything becomes slow'
        FROM pg_catalog.pg_settings WHERE name IN ('autovacuum', 'track_counts') AND setting = 'off'",
        "set it to `on` in postgresql.conf and reload",
    ),
    (
        "SELECT 'autovacuum is off for table ' || c.relname || ': dead rows pile up and everything becomes slow'
        FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
        CROSS JOIN LATERAL unnest(c.reloptions) AS o(option)
        WHERE n.nspname = $1 AND o.option LIKE 'autovacuum_enabled=%'
            AND NOT split_part(o.option, '=', 2)::boolean ORDER BY c.relname",
        "run `ALTER TABLE … RESET (autovacuum_enabled)`",
    ),
    // A few connections are kept back for superusers.
    (
        "SELECT a.n || ' of ' || m.most || ' connections of the server are in use'
        FROM (SELECT count(*) AS n FROM pg_catalog.pg_stat_activity WHERE backend_type = 'client backend') a
        CROSS JOIN (SELECT current_setting('max_connections')::int
            - current_setting('superuser_reserved_connections')::int AS most) m
        WHERE a.n > m.most * 0.8",
        "raise `max_connections`, close idle connections, or put a pooler in between (`pooler=transaction`)",
    ),
];

/// What the role may do.
const RIGHTS: [Question; 4] = [
    (
        "SELECT 'role ' || current_user || ' may not use schema ' || n.nspname FROM pg_catalog.pg_namespace n
        WHERE n.nspname = $1 AND NOT has_schema_privilege(n.oid, 'USAGE')",
        "run `GRANT USAGE ON SCHEMA … TO …` as the owner of the schema",
    ),
    (
        "SELECT 'role ' || current_user || ' lacks ' || l.verbs || ' on ' || string_agg(l.relname, ', ' ORDER BY l.relname)
        FROM (SELECT c.relname, string_agg(p.verb, ', ' ORDER BY p.o) AS verbs
            FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
            CROSS JOIN (VALUES (1, 'SELECT'), (2, 'INSERT'), (3, 'UPDATE'), (4, 'DELETE')) AS p(o, verb)
            WHERE n.nspname = $1 AND c.relkind IN ('r', 'p') AND NOT has_table_privilege(c.oid, p.verb)
            GROUP BY c.relname) l
        GROUP BY l.verbs ORDER BY l.verbs",
        "run `GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA … TO …` as the owner of the tables",
    ),
    (
        "SELECT 'role ' || current_user || ' may not use sequence ' || c.relname
        FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
        WHERE n.nspname = $1 AND c.relkind = 'S' AND c.relname = 'job_numbers'
            AND NOT has_sequence_privilege(c.oid, 'USAGE')",
        "run `GRANT USAGE ON ALL SEQUENCES IN SCHEMA … TO …` as the owner of the sequence",
    ),
    (
        "SELECT 'role ' || rolname || ' is a superuser' FROM pg_catalog.pg_roles
        WHERE rolname = current_user AND rolsuper",
        "let workers connect as a role that may do no more than read and write the tables of the store",
    ),
];

/// Who keeps dead rows from being removed, and what came of it. A minute is far more than any of our calls takes.
const VACUUM: [Question; 5] = [
    (
        "SELECT 'session ' || pid || ' (' || coalesce(nullif(application_name, ''), 'no application name') || ', ' ||
            coalesce(state, 'state unknown') || ') has had a transaction open for ' ||
            date_trunc('second', clock_timestamp() - xact_start) || ': no row that died since can be removed'
        FROM pg_catalog.pg_stat_activity
        WHERE datname = current_database() AND backend_type = 'client backend'
            AND pid <> pg_backend_pid() AND (backend_xmin IS NOT NULL OR backend_xid IS NOT NULL)
            AND xact_start < clock_timestamp() - interval '1 minute' ORDER BY xact_start LIMIT 10",
        "end it with `SELECT pg_terminate_backend(<pid>)`, and set `idle_in_transaction_session_timeout` for its role",
    ),
    (
        "SELECT 'transaction `' || gid || '` of ' || owner || ' was prepared ' ||
            date_trunc('second', clock_timestamp() - prepared) || ' ago and not ended: no row that died since can be removed'
        FROM pg_catalog.pg_prepared_xacts
        WHERE database = current_database() AND prepared < clock_timestamp() - interval '1 minute'
        ORDER BY prepared LIMIT 10",
        "end it with `COMMIT PREPARED` or `ROLLBACK PREPARED`",
    ),
    // A slot that is in use moves on all the time; a million transactions are minutes of a busy server.
    (
        "SELECT 'replication slot `' || slot_name || '` holds rows that died ' || age(xmin) || ' transactions ago' ||
            CASE WHEN active THEN '' ELSE ', and nobody uses it' END
        FROM pg_catalog.pg_replication_slots
        WHERE xmin IS NOT NULL AND (NOT active OR age(xmin) > 1000000) ORDER BY age(xmin) DESC LIMIT 10",
        "bring its consumer back, or drop it with `SELECT pg_drop_replication_slot(<name>)`",
    ),
    (
        "SELECT 'standby `' || coalesce(nullif(application_name, ''), client_addr::text, 'unknown') ||
            '` holds rows that died ' || age(backend_xmin) || ' transactions ago'
        FROM pg_catalog.pg_stat_replication WHERE age(backend_xmin) > 1000000 LIMIT 10",
        "end long queries on the standby, or turn its `hot_standby_feedback` off",
    ),
    (
        "SELECT 'table ' || relname || ' has ' || n_dead_tup || ' dead rows and ' || n_live_tup || ' live ones'
        FROM pg_catalog.pg_stat_user_tables
        WHERE schemaname = $1 AND relname IN ('ready', 'lease', 'timers', 'count_deltas')
            AND n_dead_tup > 100000 AND n_dead_tup > n_live_tup ORDER BY relname",
        "end what holds them (old transactions, replication slots), then run `VACUUM` on the table",
    ),
];

/// Numbers are never used twice, so they come to an end.
const NUMBERS: [Question; 1] = [(
    "SELECT 'sequence ' || sequencename || ' has used up ' || (last_value::numeric * 100 / max_value)::int ||
        ' % of its numbers'
    FROM pg_catalog.pg_sequences
    WHERE schemaname = $1 AND last_value > max_value::numeric * 0.8 ORDER BY sequencename",
    "report it; there is time to move to a new schema before the numbers are used up",
)];

/// Memory of the session only.
const COMMIT: &str =
    "SELECT current_setting('synchronous_commit'), current_setting('synchronous_standby_names')";
/// Nothing is read.
const CLOCK: &str = "SELECT clock_timestamp()";
/// Primary key.
const VERSION: &str = "SELECT value FROM mainspring.meta WHERE key = 'version'";
/// Memory of the session only; the name of the setting is an argument because it looks like that of a table.
const MARK: &str = "SELECT pg_backend_pid(), set_config($1, $2, false)";
const MARKED: &str = "SELECT pg_backend_pid(), current_setting($1, true)";

/// Clocks that differ by less are good enough: nothing depends on ours, people compare times.
const SKEW: Duration = Duration::from_secs(1);
/// How long a second session may take while ours waits: a pooler may have no more than one.
const PROBE: Duration = Duration::from_secs(1);

/// Looks at what surrounds the store.
pub(crate) struct Diagnose;

impl Op for Diagnose {
    type Answer = Vec<Finding>;

    const WRITES: bool = false;

    async fn run(&self, conn: &mut Conn, shared: &Shared) -> Result<Vec<Finding>> {
        let mut findings = version(conn, shared).await?;
        for (sql, hint) in SERVER.iter().chain(&RIGHTS).chain(&VACUUM).chain(&NUMBERS) {
            findings.extend(ask(conn, shared, sql, hint).await?);
        }
        findings.extend(commits(conn, shared).await?);
        if shared.options.time == Time::Server {
            findings.extend(clocks(conn, shared).await?);
        }
        if !shared.options.is_pooled() {
            findings.extend(pooler(conn, shared).await?);
        }
        Ok(findings)
    }
}

fn finding(what: impl Into<String>, hint: &str) -> Finding {
    Finding { what: what.into(), hint: hint.to_owned() }
}

/// The rows of one statement.
async fn rows(conn: &mut Conn, shared: &Shared, call: Call<'_>) -> Result<Vec<Row>> {
    Ok(conn.commit(shared, &[call]).await?.pop().unwrap_or_default())
}

async fn ask(conn: &mut Conn, shared: &Shared, sql: &'static str, hint: &str) -> Result<Vec<Finding>> {
    let schema: &str = &shared.schema;
    match rows(conn, shared, Call::new(sql, vec![(&schema, Type::TEXT)])).await {
        Ok(rows) => Ok(rows.iter().map(|row| finding(row.get::<_, String>(0), hint)).collect()),
        Err(Fault::Db(error)) if answered(&error) => {
            let what = format!("a look at the database was refused: {}", words(&error));
            Ok(vec![finding(what, "let the role read the statistics: `GRANT pg_read_all_stats TO …`")])
        }
        Err(fault) => Err(fault),
    }
}

/// Whether the tables are of the version that we write.
async fn version(conn: &mut Conn, shared: &Shared) -> Result<Vec<Finding>> {
    let rows = rows(conn, shared, Call::new(VERSION, Vec::new())).await?;
    let found: Option<String> = rows.first().map(|row| row.get(0));
    let found = found.unwrap_or_else(|| "none".to_owned());
    if found == SCHEMA_VERSION.to_string() {
        return Ok(Vec::new());
    }
    let what = format!("the schema is of version {found}, this program knows {SCHEMA_VERSION}");
    Ok(vec![finding(what, "bring the schema up to date with `mainspring migrate`, or this program")])
}

/// Whether a commit of ours is what it should be.
async fn commits(conn: &mut Conn, shared: &Shared) -> Result<Vec<Finding>> {
    let rows = rows(conn, shared, Call::new(COMMIT, Vec::new())).await?;
    let Some(row) = rows.first() else { return Ok(Vec::new()) };
    let full = shared.options.durability == Durability::Full;
    Ok(commit_finding(row.get(0), row.get(1)).filter(|_| full).into_iter().collect())
}

fn commit_finding(synchronous: &str, standbys: &str) -> Option<Finding> {
    let hint = "set `synchronous_commit = on` for the role: `ALTER ROLE … SET synchronous_commit = on`";
    match synchronous {
        "off" => {
            Some(finding("`synchronous_commit` is off: a crash of the server loses the latest commits", hint))
        }
        // Without standbys to wait for, it says the same as `on`.
        "local" if !standbys.is_empty() => {
            let what = "`synchronous_commit` is local: a failover to a standby can lose the latest commits";
            Some(finding(what, hint))
        }
        _ => None,
    }
}

/// Whether this machine and the server agree on the time.
async fn clocks(conn: &mut Conn, shared: &Shared) -> Result<Vec<Finding>> {
    let before = shared.clock.now();
    let rows = rows(conn, shared, Call::new(CLOCK, Vec::new())).await?;
    let after = shared.clock.now();
    let Some(row) = rows.first() else { return Ok(Vec::new()) };
    let skew = skew(before, row.get::<_, At>(0).0, after);
    if skew <= SKEW {
        return Ok(Vec::new());
    }
    let what = format!("the clocks of this machine and of the server differ by {:.1} s", skew.as_secs_f64());
    let hint = "let both follow a time server (NTP); jobs run by the server's clock";
    Ok(vec![finding(what, hint)])
}

/// How far a time is outside of the span in which it was taken.
fn skew(before: Timestamp, server: Timestamp, after: Timestamp) -> Duration {
    before.since(server).max(server.since(after))
}

/// Whether sessions are handed around although the address does not say so.
async fn pooler(conn: &mut Conn, shared: &Shared) -> Result<Vec<Finding>> {
    let (name, value) = ("mainspring_probe.mark".to_owned(), shared.rng.next_u64().to_string());
    let mark = Call::new(MARK, vec![(&name, Type::TEXT), (&value, Type::TEXT)]);
    let first: Option<i32> = rows(conn, shared, mark).await?.first().map(|row| row.get(0));
    // A pooler with an idle session would give us the same again: somebody else takes it first.
    let Ok(Ok(mut other)) = tokio::time::timeout(PROBE, Conn::open(Use::Read, shared)).await else {
        return Ok(Vec::new());
    };
    let taken =
        tokio::time::timeout(PROBE, other.begin(shared, "READ ONLY", &[Call::new(CLOCK, Vec::new())])).await;
    let marked = Call::new(MARKED, vec![(&name, Type::TEXT)]);
    let again = tokio::time::timeout(PROBE, rows(conn, shared, marked)).await;
    if matches!(taken, Ok(Ok(_))) {
        other.end(&[]).await?;
    }
    // Without an answer in time there is nothing to tell.
    let Ok(again) = again else { return Ok(Vec::new()) };
    let again = again?;
    let Some(row) = again.first() else { return Ok(Vec::new()) };
    if first == Some(row.get(0)) && row.get::<_, Option<String>>(1).as_ref() == Some(&value) {
        return Ok(Vec::new());
    }
    let what =
        "the address leads to a pooler that gives each transaction another session, and does not say so";
    let hint = "add `pooler=transaction` to the address, and `listen=<host>` for a way past the pooler";
    Ok(vec![finding(what, hint)])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn skew_is_what_the_round_trip_does_not_explain() {
        let at = |seconds: i64| Timestamp::from_micros(seconds * 1_000_000);
        let seconds = Duration::from_secs;
        assert_eq!(skew(at(10), at(10), at(10)), seconds(0));
        assert_eq!(skew(at(10), at(15), at(20)), seconds(0));
        assert_eq!(skew(at(10), at(7), at(20)), seconds(3));
        assert_eq!(skew(at(10), at(25), at(20)), seconds(5));
    }

    #[test]
    fn only_commits_that_can_be_lost_are_found() {
        for (synchronous, standbys, found) in [
            ("on", "", false),
            ("on", "a", false),
            ("local", "", false),
            ("local", "a", true),
            ("off", "", true),
        ] {
            assert_eq!(commit_finding(synchronous, standbys).is_some(), found, "{synchronous} {standbys}");
        }
    }
}
