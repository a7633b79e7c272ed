//! Mailboxes: where a message and a suspension meet.
//!
//! Whoever adds to a job's inbox, and whoever suspends a job, first takes the job's mailbox lock, and looks at what the
//! other may have left in a *later* statement: one statement is one snapshot, and that may be older than the lock.
//!
//! # Invariants
//! - A suspended job whose wait is over does not exist: whoever comes second sees the other.
//! - Numbers of messages become visible in their order, job by job.

use crate::sql::statement;

statement! {
    /// Advisory locks, in order of the jobs' numbers.
    pub(crate) Lock<'a> = "mailbox.lock", whole ("it touches no table"), (mailbox: i64, nos: Vec<i64>);
    "SELECT count(pg_advisory_xact_lock($1 # u.no))
    FROM (SELECT DISTINCT no FROM unnest($2::bigint[]) AS u(no) ORDER BY no) u"
}

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
                    WHERE s.no = p.no AND s.reason <= {reasons.last_awaiting} OFFSET 0) s
                CROSS JOIN LATERAL jsonb_array_elements(s.waits) AS w(wait)
                WHERE w.wait ->> 0 = p.subject AND ",
            $crate::op::mailbox::came!("p.no", "w.wait"),
            " ORDER BY p.no)",
            $crate::op::places::leave_suspended!(
                "p.no = ANY(ARRAY(SELECT x.no FROM x)) AND p.reason <= {reasons.last_awaiting}"
            ),
            "
    , e AS (SELECT s.*, ",
            $crate::op::places::level!("returned"),
            " AS level FROM from_suspended s)",
            $crate::op::places::enter!("e"),
            $crate::op::places::count!("e", "suspended", "ready"),
            " SELECT e.no, e.line, e.level, t.now, ",
            $crate::op::places::is_limited!("e.flags"),
            " FROM e, t"
        )
    };
}
pub(crate) use wake;
