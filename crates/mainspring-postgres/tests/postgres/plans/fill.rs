//! A million jobs in all places, by plain SQL.

use std::sync::Arc;
use std::time::Duration;

use mainspring_core::id::NodeNo;
use mainspring_core::job::{New, Unique};
use mainspring_core::limit::LimitUse;
use mainspring_core::name::LimitName;
use mainspring_core::store::{Registration, Store};
use mainspring_postgres::{Durability, Options, Postgres};
use mainspring_testkit::clock::ManualClock;
use mainspring_testkit::executor::block_on;
use mainspring_testkit::harness::{Harness, kind, queue};
use mainspring_testkit::postgres::{Database, Server};
use mainspring_testkit::seams::seams;

/// Of ten jobs four are ready, two wait for their time, one for a signal, and three have ended; two thousand run. Half of the timers and of
/// the deadlines have come. Few have failed. One ready job in eight has recorded twenty steps and got a message; those that
/// have ended are children of others. `1` to `3` are the lines.
const FILL: &str = "
    CREATE TEMP TABLE f AS SELECT i AS no, md5(i::text)::uuid AS id, now() - (1001000 - i) * interval '1 ms' AS at,
        now() + (i - 501000) * interval '1 ms' AS due, i % 3 + 1 AS line,
        CASE WHEN i % 10 = 3 AND i < 21000 THEN 3 WHEN i % 10 < 4 THEN 2 WHEN i % 10 < 6 THEN 1
            WHEN i % 10 = 6 THEN 4 ELSE 5 END AS place,
        (CASE WHEN i % 50 = 0 THEN 1 ELSE 0 END + CASE WHEN i % 20 IN (0, 4) THEN 2 ELSE 0 END)::smallint AS flags
        FROM generate_series(1001, 1001000) AS i;
    UPDATE f SET flags = flags | 8 WHERE place = 2 AND no % 8 = 0 OR place = 4;
    INSERT INTO mainspring.jobs (no, id, created_at, deadline, line, priority, options, input)
        SELECT no, id, at, CASE WHEN flags & 2 <> 0 THEN due END, line, 5,
            CASE WHEN no % 100 = 0 THEN '{\"tags\": [\"tag\"]}'::jsonb END, '{}' FROM f;
    INSERT INTO mainspring.ready SELECT no, at, 0, line, 0, 37, 0, 0, flags FROM f WHERE place = 2;
    INSERT INTO mainspring.timers SELECT no, due, 0, line, 0, 5, 0, 0, flags FROM f WHERE place = 1;
    INSERT INTO mainspring.lease (no, claimed_at, batch, crashed, line, claim, node, priority, failures, crashes, flags,
            cancel)
        SELECT no, at, 1, 0, line, 1, 1, 5, 0, 0, 0, CASE WHEN no % 100 = 3 THEN 'enough' END FROM f WHERE place = 3;
    INSERT INTO mainspring.done (no, finished_at, claimed_at, node, line, claim, state, priority, failures, crashes, bad)
        SELECT no, at - interval '20 days', at - interval '20 days', 1, line, 1, CASE WHEN no % 1000 = 9 THEN 6 ELSE 5 END, 5, 0, 0, no % 1000 = 9
        FROM f WHERE place = 5;
    INSERT INTO mainspring.suspended SELECT no, due, 0, line, 1, 5, 2, 0, 0, flags, '[[\"s:go\", 1]]' FROM f
        WHERE place = 4;
    INSERT INTO mainspring.steps (no, at, claim, kind, overlapped, key, value)
        SELECT no, at, 1, 0, false, 'step ' || k, '1' FROM f, generate_series(1, 20) AS k WHERE place = 2 AND no % 8 = 0;
    INSERT INTO mainspring.inbox (no, at, subject, sender, body)
        SELECT no, at, 's:come', 'a', '1' FROM f WHERE place = 2 AND no % 8 = 0;
    INSERT INTO mainspring.children SELECT no, no - 4, 1 FROM f WHERE place = 5;
    INSERT INTO mainspring.deadlines SELECT no, due FROM f WHERE flags & 2 <> 0 AND place IN (1, 2);
    INSERT INTO mainspring.keys (kind, key, no, period, id, until)
        SELECT 1, 'key ' || no, no, 0, id, 1 FROM f WHERE flags & 1 <> 0 AND place IN (1, 2);
    INSERT INTO mainspring.errors SELECT no, at, at, 1, 1, 1, 'no' FROM f WHERE no % 10 = 9;
    INSERT INTO mainspring.tags SELECT 'tag', no FROM f WHERE no % 100 = 0;
    INSERT INTO mainspring.counts SELECT line, place, count(*) FROM f GROUP BY line, place;
    SELECT setval('mainspring.job_numbers', 2000000);";

/// Two hundred thousand limited jobs of line `4`, two of each key; every second key is full, and its group is blocked. Their
/// numbers are below zero, because listings begin with the newest jobs.
const FILL_LIMITS: &str = "
    CREATE TEMP TABLE f AS SELECT -i AS no, md5('l' || i)::uuid AS id, now() - (201000 - i) * interval '1 ms' AS at,
        (i - 1) / 2 + 1 AS key FROM generate_series(1, 200000) AS i;
    INSERT INTO mainspring.limits (scope, name, max, definition) VALUES (0, 'tenant', 3, '{\"name\": \"tenant\", \"max\": 3}');
    INSERT INTO mainspring.limit_keys (limit_no, key, used_at, in_use, blocked, line, tail)
        SELECT 1, 'key ' || k, now(), k % 2 * 3, k % 2, k % 2 * 4, k % 2 FROM generate_series(1, 100000) AS k;
    INSERT INTO mainspring.limit_groups (line, units, used_at) SELECT 4, ARRAY[k]::bigint[], now() FROM generate_series(1, 100000) AS k;
    INSERT INTO mainspring.jobs (no, id, created_at, line, priority, options, input) SELECT no, id, at, 4, 5,
        jsonb_build_object('limits', jsonb_build_array(jsonb_build_object('limit', 'tenant', 'key', 'key ' || key))), '{}' FROM f;
    INSERT INTO mainspring.limited_jobs SELECT no, key FROM f;
    INSERT INTO mainspring.limited (no, ready_at, crashed, line, limit_group, claim, level, failures, crashes, flags)
        SELECT no, at, 0, 4, key, 0, 53, 0, 0, 128 FROM f;
    INSERT INTO mainspring.group_turns (line, level, at, limit_group)
        SELECT 4, 53, min(at), key FROM f WHERE key % 2 = 0 GROUP BY key;
    INSERT INTO mainspring.blocked_groups (limit_key, seq, line, limit_group, level, units)
        SELECT k, 1, 4, k, 53, 1 FROM generate_series(1, 99999, 2) AS k;
    INSERT INTO mainspring.counts VALUES (4, 2, 200000) ON CONFLICT (line, state) DO UPDATE SET n = counts.n + excluded.n;
    DROP TABLE f;";

/// Statistics and visibility as they are after a while.
const SETTLE: &str = "VACUUM ANALYZE";

/// A server that tells how it ran each statement, with a million jobs.
pub(crate) struct Site {
    pub(crate) store: Arc<dyn Store>,
    pub(crate) node: NodeNo,
    pub(crate) server: Server,
    harness: Harness,
    pub(crate) database: Database,
}

impl Site {
    pub(crate) fn new() -> Self {
        let options = mainspring_testkit::postgres::Options::new()
            .setting("session_preload_libraries", "auto_explain")
            .setting("auto_explain.log_analyze", "on")
            .setting("auto_explain.log_buffers", "on")
            .setting("auto_explain.log_timing", "off")
            // What is filled in here is thrown away.
            .setting("fsync", "off")
            .setting("max_wal_size", "4GB")
            .setting("autovacuum", "off");
        let server = Server::start(&options).expect("a server");
        let database = server.database().expect("a database");
        let open = |url: &str| -> Arc<dyn Store> {
            let options =
                Options::new(url).expect("an address").migrate(true).durability(Durability::Relaxed);
            Arc::new(
                block_on(Postgres::open(options, seams(&ManualClock::new(), 1))).expect("the store opens"),
            )
        };
        let first = open(&database.url());
        let harness = Harness::new(ManualClock::new(), move || Arc::clone(&first));
        let node = block_on(harness.store.register(registration(&harness))).expect("a node").no;
        // A job of each line, so that the lines are known.
        for (queue_name, kind_name) in [("q", "k"), ("q", "k2"), ("q2", "k"), ("q4", "k")] {
            let job = harness.job_with(|job| (job.queue, job.kind) = (queue(queue_name), kind(kind_name)));
            block_on(harness.store.enqueue(vec![job])).expect("enqueue");
        }
        server.sql(database.name(), FILL).expect("a million jobs");
        server.sql(database.name(), FILL_LIMITS).expect("limited jobs");
        server.sql(database.name(), SETTLE).expect("statistics");
        let explain = format!("ALTER DATABASE \"{}\" SET auto_explain.log_min_duration = 0", database.name());
        server.sql("postgres", &explain).expect("a setting");
        // A handle whose sessions begin now.
        let store = open(&database.url());
        Site { store, node, server, harness, database }
    }

    pub(crate) fn jobs(&self, count: usize) -> Vec<New> {
        (0..count).map(|_| self.harness.job()).collect()
    }

    /// Jobs of the queue `q4` that take a unit of the limit `tenant`, each of a key of its own.
    pub(crate) fn limited(&self, keys: impl Iterator<Item = usize>) -> Vec<New> {
        let limit = LimitName::new("tenant").expect("a name");
        let one = |key: usize| {
            self.harness.job_with(|job| {
                job.queue = queue("q4");
                job.options.limits = vec![LimitUse::new(limit.clone()).key(format!("key {key}"))];
            })
        };
        keys.map(one).collect()
    }

    pub(crate) fn keyed(&self, key: &str, unique: impl Fn(String) -> Unique) -> New {
        self.harness.job_with(|job| job.options.unique = Some(unique(key.to_owned())))
    }
}

fn registration(harness: &Harness) -> Registration {
    Registration { lease: Duration::from_mins(10), ..harness.registration() }
}
