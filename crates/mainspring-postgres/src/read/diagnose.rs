//! What surrounds the store and may hurt it: settings, rights, and other users of the database.
//!
//! Most questions are statements that give one line of text per finding. What the role may not see of others, the database
//! leaves out by itself; a question that it refuses altogether becomes a finding, and the others are still asked.

use std::time::Duration;

use mainspring_core::store::Finding;
use mainspring_core::time::Timestamp;
use tokio_postgres::Row;

use crate::connection::{Conn, Use};
use crate::error::{Fault, Result, answered, words};
use crate::migrate::SCHEMA_VERSION;
use crate::op::Op;
use crate::options::{Durability, Time};
use crate::shared::Shared;
use crate::sql::{At, Call, Query, statement};

/// A statement that gives findings, and what a person can do about them.
type Question = (for<'a> fn(&'a &'a str) -> Call<'a>, &'static str);

statement! {
    pub(crate) OldServer<'a> = "diagnose.old_server", whole ("it reads the catalogue and the server's statistics"),
    (schema: &'a str) -> Found { what: String };
    "SELECT 'the server is PostgreSQL ' || current_setting('server_version') || ', older than 14'
        WHERE current_setting('server_version_num')::int < 140000"
}
statement! {
    pub(crate) Fsync<'a> = "diagnose.fsync", whole ("it reads the catalogue and the server's statistics"),
    (schema: &'a str) -> Found;
    "SELECT '`fsync` is off: a crash of the server machine can lose jobs and damage the database'
        WHERE NOT current_setting('fsync')::boolean"
}
statement! {
    pub(crate) FullPageWrites<'a> = "diagnose.full_page_writes", whole ("it reads the catalogue and the server's statistics"),
    (schema: &'a str) -> Found;
    "SELECT '`full_page_writes` is off: a crash in the middle of a write can damage the database'
        WHERE NOT current_setting('full_page_writes')::boolean"
}
statement! {
    pub(crate) VacuumOff<'a> = "diagnose.vacuum_off", whole ("it reads the catalogue and the server's statistics"),
    (schema: &'a str) -> Found;
    "SELECT '`' || name || '` is off: dead rows pile up and everything becomes slow'
        FROM pg_catalog.pg_settings WHERE name IN ('autovacuum', 'track_counts') AND setting = 'off'"
}
statement! {
    pub(crate) TableVacuumOff<'a> = "diagnose.table_vacuum_off", whole ("it reads the catalogue and the server's statistics"),
    (schema: &'a str) -> Found;
    "SELECT 'autovacuum is off for table ' || c.relname || ': dead rows pile up and everything becomes slow'
        FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
        CROSS JOIN LATERAL unnest(c.reloptions) AS o(option)
        WHERE n.nspname = $1 AND o.option LIKE 'autovacuum_enabled=%'
            AND NOT split_part(o.option, '=', 2)::boolean ORDER BY c.relname"
}
statement! {
    /// A few connections are kept back for superusers.
    pub(crate) Connections<'a> = "diagnose.connections", whole ("it reads the catalogue and the server's statistics"),
    (schema: &'a str) -> Found;
    "SELECT a.n || ' of ' || m.most || ' connections of the server are in use'
        FROM (SELECT count(*) AS n FROM pg_catalog.pg_stat_activity WHERE backend_type = 'client backend') a
        CROSS JOIN (SELECT current_setting('max_connections')::int
            - current_setting('superuser_reserved_connections')::int AS most) m
        WHERE a.n > m.most * 0.8"
}

/// Settings of the server. In all questions `$1`, where it is used, is the schema that holds the tables.
const SERVER: [Question; 6] = [
    (|schema| OldServer { schema }.call(), "upgrade the server: older ones are not tested, and get no fixes"),
    (|schema| Fsync { schema }.call(), "set `fsync = on` in postgresql.conf and reload"),
    (
        |schema| FullPageWrites { schema }.call(),
        "set `full_page_writes = on`, unless the file system writes whole pages atomically",
    ),
    (|schema| VacuumOff { schema }.call(), "set it to `on` in postgresql.conf and reload"),
    (|schema| TableVacuumOff { schema }.call(), "run `ALTER TABLE … RESET (autovacuum_enabled)`"),
    (
        |schema| Connections { schema }.call(),
        "raise `max_connections`, close idle connections, or put a pooler in between (`pooler=transaction`)",
    ),
];

statement! {
    pub(crate) SchemaRight<'a> = "diagnose.schema_right", whole ("it reads the catalogue and the server's statistics"),
    (schema: &'a str) -> Found;
    "SELECT 'role ' || current_user || ' may not use schema ' || n.nspname FROM pg_catalog.pg_namespace n
        WHERE n.nspname = $1 AND NOT has_schema_privilege(n.oid, 'USAGE')"
}
statement! {
    pub(crate) TableRights<'a> = "diagnose.table_rights", whole ("it reads the catalogue and the server's statistics"),
    (schema: &'a str) -> Found;
    "SELECT 'role ' || current_user || ' lacks ' || l.verbs || ' on ' || string_agg(l.relname, ', ' ORDER BY l.relname)
        FROM (SELECT c.relname, string_agg(p.verb, ', ' ORDER BY p.o) AS verbs
            FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
            CROSS JOIN (VALUES (1, 'SELECT'), (2, 'INSERT'), (3, 'UPDATE'), (4, 'DELETE')) AS p(o, verb)
            WHERE n.nspname = $1 AND c.relkind IN ('r', 'p') AND NOT has_table_privilege(c.oid, p.verb)
            GROUP BY c.relname) l
        GROUP BY l.verbs ORDER BY l.verbs"
}
statement! {
    pub(crate) SequenceRight<'a> = "diagnose.sequence_right", whole ("it reads the catalogue and the server's statistics"),
    (schema: &'a str) -> Found;
    "SELECT 'role ' || current_user || ' may not use sequence ' || c.relname
        FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
        WHERE n.nspname = $1 AND c.relkind = 'S' AND c.relname = 'job_numbers'
            AND NOT has_sequence_privilege(c.oid, 'USAGE')"
}
statement! {
    pub(crate) Superuser<'a> = "diagnose.superuser", whole ("it reads the catalogue and the server's statistics"),
    (schema: &'a str) -> Found;
    "SELECT 'role ' || rolname || ' is a superuser' FROM pg_catalog.pg_roles
        WHERE rolname = current_user AND rolsuper"
}

/// What the role may do.
const RIGHTS: [Question; 4] = [
    (|schema| SchemaRight { schema }.call(), "run `GRANT USAGE ON SCHEMA … TO …` as the owner of the schema"),
    (
        |schema| TableRights { schema }.call(),
        "run `GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA … TO …` as the owner of the tables",
    ),
    (
        |schema| SequenceRight { schema }.call(),
        "run `GRANT USAGE ON ALL SEQUENCES IN SCHEMA … TO …` as the owner of the sequence",
    ),
    (
        |schema| Superuser { schema }.call(),
        "let workers connect as a role that may only read and write the store's tables",
    ),
];

statement! {
    pub(crate) OldTransactions<'a> = "diagnose.old_transactions", whole ("it reads the catalogue and the server's statistics"),
    (schema: &'a str) -> Found;
    "SELECT 'session ' || pid || ' (' || coalesce(nullif(application_name, ''), 'no application name') || ', ' ||
            coalesce(state, 'state unknown') || ') has had a transaction open for ' ||
            date_trunc('second', clock_timestamp() - xact_start) || ': no row that died since can be removed'
        FROM pg_catalog.pg_stat_activity
        WHERE datname = current_database() AND backend_type = 'client backend'
            AND pid <> pg_backend_pid() AND (backend_xmin IS NOT NULL OR backend_xid IS NOT NULL)
            AND xact_start < clock_timestamp() - interval '1 minute' ORDER BY xact_start LIMIT 10"
}
statement! {
    pub(crate) PreparedTransactions<'a> = "diagnose.prepared_transactions", whole ("it reads the catalogue and the server's statistics"),
    (schema: &'a str) -> Found;
    "SELECT 'transaction `' || gid || '` of ' || owner || ' was prepared ' ||
            date_trunc('second', clock_timestamp() - prepared) || ' ago and not ended: no row that died since can be removed'
        FROM pg_catalog.pg_prepared_xacts
        WHERE database = current_database() AND prepared < clock_timestamp() - interval '1 minute'
        ORDER BY prepared LIMIT 10"
}
statement! {
    /// A slot that is in use moves on all the time; a million transactions are minutes of a busy server.
    pub(crate) Slots<'a> = "diagnose.slots", whole ("it reads the catalogue and the server's statistics"),
    (schema: &'a str) -> Found;
    "SELECT 'replication slot `' || slot_name || '` holds rows that died ' || age(xmin) || ' transactions ago' ||
            CASE WHEN active THEN '' ELSE ', and nobody uses it' END
        FROM pg_catalog.pg_replication_slots
        WHERE xmin IS NOT NULL AND (NOT active OR age(xmin) > 1000000) ORDER BY age(xmin) DESC LIMIT 10"
}
statement! {
    pub(crate) Standbys<'a> = "diagnose.standbys", whole ("it reads the catalogue and the server's statistics"),
    (schema: &'a str) -> Found;
    "SELECT 'standby `' || coalesce(nullif(application_name, ''), client_addr::text, 'unknown') ||
            '` holds rows that died ' || age(backend_xmin) || ' transactions ago'
        FROM pg_catalog.pg_stat_replication WHERE age(backend_xmin) > 1000000 LIMIT 10"
}
statement! {
    pub(crate) DeadRows<'a> = "diagnose.dead_rows", whole ("it reads the catalogue and the server's statistics"),
    (schema: &'a str) -> Found;
    "SELECT 'table ' || relname || ' has ' || n_dead_tup || ' dead rows and ' || n_live_tup || ' live ones'
        FROM pg_catalog.pg_stat_user_tables
        WHERE schemaname = $1 AND relname IN ('ready', 'lease', 'timers', 'count_deltas')
            AND n_dead_tup > 100000 AND n_dead_tup > n_live_tup ORDER BY relname"
}

/// Who keeps dead rows from being removed, and what came of it. A minute is far more than any of our calls takes.
const VACUUM: [Question; 5] = [
    (
        |schema| OldTransactions { schema }.call(),
        "end it with `SELECT pg_terminate_backend(<pid>)`, and set `idle_in_transaction_session_timeout` for its role",
    ),
    (|schema| PreparedTransactions { schema }.call(), "end it with `COMMIT PREPARED` or `ROLLBACK PREPARED`"),
    (
        |schema| Slots { schema }.call(),
        "bring its consumer back, or drop it with `SELECT pg_drop_replication_slot(<name>)`",
    ),
    (
        |schema| Standbys { schema }.call(),
        "end long queries on the standby, or turn its `hot_standby_feedback` off",
    ),
    (
        |schema| DeadRows { schema }.call(),
        "end what holds them back (old transactions, replication slots), then run `VACUUM` on the table",
    ),
];

statement! {
    pub(crate) Sequences<'a> = "diagnose.sequences", whole ("it reads the catalogue and the server's statistics"),
    (schema: &'a str) -> Found;
    "SELECT 'sequence ' || sequencename || ' has used up ' || (last_value::numeric * 100 / max_value)::int ||
        ' % of its numbers'
    FROM pg_catalog.pg_sequences
    WHERE schemaname = $1 AND last_value > max_value::numeric * 0.8 ORDER BY sequencename"
}

/// Numbers are never used twice, so they come to an end.
const NUMBERS: [Question; 1] = [(
    |schema| Sequences { schema }.call(),
    "report it; there is time to move to a new schema before the numbers are used up",
)];

statement! {
    /// Memory of the session only.
    pub(crate) CommitSettings = "diagnose.commit", whole ("it touches no table"), ()
    -> Commits { synchronous: String, standbys: String };
    "SELECT current_setting('synchronous_commit'), current_setting('synchronous_standby_names')"
}
statement! {
    /// Nothing is read.
    pub(crate) Clock = "diagnose.clock", whole ("it touches no table"), () -> ServerTime { now: At };
    "SELECT clock_timestamp()"
}
statement! {
    /// Primary key.
    pub(crate) Version = "diagnose.version", by ["meta_pkey"], () -> VersionRow { value: String };
    "SELECT value FROM mainspring.meta WHERE key = 'version'"
}
statement! {
    /// Memory of the session only; the name of the setting is an argument because it looks like that of a table.
    pub(crate) MarkSession<'a> = "diagnose.mark", whole ("it touches no table"),
    (name: String, value: String) -> Marked { pid: i32, value: Option<String> };
    "SELECT pg_backend_pid(), set_config($1, $2, false)"
}
statement! {
    pub(crate) FindMark<'a> = "diagnose.marked", whole ("it touches no table"), (name: String) -> Marked;
    "SELECT pg_backend_pid(), current_setting($1, true)"
}

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
        for (question, hint) in SERVER.iter().chain(&RIGHTS).chain(&VACUUM).chain(&NUMBERS) {
            findings.extend(ask(conn, shared, *question, hint).await?);
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

async fn ask(
    conn: &mut Conn,
    shared: &Shared,
    question: for<'a> fn(&'a &'a str) -> Call<'a>,
    hint: &str,
) -> Result<Vec<Finding>> {
    let schema: &str = &shared.schema;
    match rows(conn, shared, question(&schema)).await {
        Ok(rows) => Ok(OldServer::rows(&rows)?.into_iter().map(|found| finding(found.what, hint)).collect()),
        Err(Fault::Db(error)) if answered(&error) => {
            let what = format!("a look at the database was refused: {}", words(&error));
            Ok(vec![finding(what, "let the role read the statistics: `GRANT pg_read_all_stats TO …`")])
        }
        Err(fault) => Err(fault),
    }
}

/// Whether the tables are of the version that we write.
async fn version(conn: &mut Conn, shared: &Shared) -> Result<Vec<Finding>> {
    let found = Version::first(&rows(conn, shared, Version.call()).await?)?;
    let found = found.map_or_else(|| "none".to_owned(), |row| row.value);
    if found == SCHEMA_VERSION.to_string() {
        return Ok(Vec::new());
    }
    let what = format!("the schema is of version {found}, this program knows {SCHEMA_VERSION}");
    Ok(vec![finding(what, "bring the schema up to date with `mainspring migrate`, or this program")])
}

/// Whether a commit of ours is what it should be.
async fn commits(conn: &mut Conn, shared: &Shared) -> Result<Vec<Finding>> {
    let row = CommitSettings::first(&rows(conn, shared, CommitSettings.call()).await?)?;
    let Some(row) = row else { return Ok(Vec::new()) };
    let full = shared.options.durability == Durability::Full;
    Ok(commit_finding(&row.synchronous, &row.standbys).filter(|_| full).into_iter().collect())
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
    let rows = rows(conn, shared, Clock.call()).await?;
    let after = shared.clock.now();
    let Some(row) = Clock::first(&rows)? else { return Ok(Vec::new()) };
    let skew = skew(before, row.now.0, after);
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
    let mark = MarkSession { name: &name, value: &value }.call();
    let first = MarkSession::first(&rows(conn, shared, mark).await?)?.map(|row| row.pid);
    // A pooler with an idle session would give us the same again: somebody else takes it first.
    let Ok(Ok(mut other)) = tokio::time::timeout(PROBE, Conn::open(Use::Read, shared)).await else {
        return Ok(Vec::new());
    };
    let taken = tokio::time::timeout(PROBE, other.begin(shared, "READ ONLY", &[Clock.call()])).await;
    let marked = FindMark { name: &name }.call();
    let again = tokio::time::timeout(PROBE, rows(conn, shared, marked)).await;
    if matches!(taken, Ok(Ok(_))) {
        other.end(&[]).await?;
    }
    // Without an answer in time there is nothing to tell.
    let Ok(again) = again else { return Ok(Vec::new()) };
    let again = again?;
    let Some(row) = FindMark::first(&again)? else { return Ok(Vec::new()) };
    if first == Some(row.pid) && row.value.as_ref() == Some(&value) {
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
