//! Mailboxes: where a message and a suspension meet.
//!
//! Whoever adds to a job's inbox, and whoever suspends a job, first takes the job's mailbox lock, and looks at what the
//! other may have left in a *later* statement: one statement is one snapshot, and that may be older than the lock.
//!
//! # Invariants
//! - A suspended job whose wait is over does not exist: whoever comes second sees the other.
//! - Numbers of messages become visible in their order, job by job.

/// Advisory locks, in order of the jobs' numbers.
pub(crate) const LOCK: &str = "SELECT count(pg_advisory_xact_lock($1 # u.no))
    FROM (SELECT DISTINCT no FROM unnest($2::bigint[]) AS u(no) ORDER BY no) u";

/// Whether a subject of a job has as many unread messages as a wait needs. Primary key of `inbox`, by the subject: said so that
/// the index of unread messages, which knows no subjects, is never taken instead, however many there are.
macro_rules! came {
    ($no:expr, $wait:expr) => {
        concat!(
            "(SELECT count(*) FROM (SELECT 1 FROM mainspring.inbox m WHERE m.no = ",
            $no,
            " AND m.subject = ",
            $wait,
            " ->> 0 AND m.read::int = 0 LIMIT (",
            $wait,
            " ->> 1)::bigint) m) >= (",
            $wait,
            " ->> 1)::bigint"
        )
    };
}
pub(crate) use came;

/// Wakes suspended jobs that wait for a subject, of which there may be enough messages now. `$pairs` gives their numbers and
/// the subjects; `$1` is the time in tests. Primary key of `suspended`; the locks of the mailboxes are held. Returns number,
/// line, level and time.
macro_rules! wake {
    ($pairs:expr) => {
        concat!(
            "WITH ",
            $crate::op::now!(),
            ", p AS MATERIALIZED (",
            $pairs,
            "), x AS MATERIALIZED (SELECT DISTINCT p.no FROM p
                CROSS JOIN LATERAL (SELECT s.waits FROM mainspring.suspended s
                    WHERE s.no = p.no AND s.reason <= 5 OFFSET 0) s
                CROSS JOIN LATERAL jsonb_array_elements(s.waits) AS w(wait)
                WHERE w.wait ->> 0 = p.subject AND ",
            $crate::op::mailbox::came!("p.no", "w.wait"),
            " ORDER BY p.no)
            , d AS (DELETE FROM mainspring.suspended s WHERE s.no = ANY(ARRAY(SELECT x.no FROM x)) AND s.reason <= 5
                RETURNING s.no, s.line, s.priority, s.claim, s.failures, s.crashes, s.crashed, s.flags,
                    (CASE WHEN s.crashes >= 2 THEN 0 ELSE 32 END + s.priority)::smallint AS level)
            , r AS (INSERT INTO mainspring.ready
                    (no, ready_at, crashed, line, claim, level, failures, crashes, flags)
                SELECT d.no, t.now, d.crashed, d.line, d.claim, d.level, d.failures, d.crashes, d.flags FROM d, t)
            , c AS (INSERT INTO mainspring.count_deltas (line, state, n)
                SELECT g.line, s.state, g.n * s.sign
                FROM (SELECT line, count(*) AS n FROM d GROUP BY line) g, (VALUES (4, -1), (2, 1)) AS s(state, sign))
            SELECT d.no, d.line, d.level, t.now FROM d, t"
        )
    };
}
pub(crate) use wake;
