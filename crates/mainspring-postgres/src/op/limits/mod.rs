//! Limits: how many claims at once and how fast, over all processes.
//!
//! Limited jobs wait in a place of their own, by groups. A *turn* says that a group may have a job to claim, and a *limit key*
//! has the counters. A claim visits turns, locks the limit keys of their groups, and decides in a later statement of the same
//! transaction, which sees the newest counters. A group that lacks room at a key is *blocked* there until that key has some.
//! Whoever ends a claim returns its units, and lets blocked groups in, in the same commit. [ADR 16](../../../docs/adr) has the rules.
//!
//! # Invariants
//! - Limit keys are the last locks, in order of their numbers; no transaction that holds one waits for its client.
//! - What a key has is read and written under its lock, in a statement that begins after the lock was granted.
//! - Turns and blocked groups are inserted and deleted, and never updated.
//! - Whoever leaves a key with room lets blocked groups in.

pub(crate) mod claim;
pub(crate) mod define;
pub(crate) mod groups;
pub(crate) mod settle;
pub(crate) mod totals;

/// The newest row `x` of a limit key, by the end of its part of the primary key, and its limit `l`, which may be gone.
macro_rules! limit_key {
    ($no:literal) => {
        concat!(
            " CROSS JOIN LATERAL (SELECT * FROM mainspring.limit_keys WHERE no = ",
            $no,
            " ORDER BY generation DESC LIMIT 1) x
    LEFT JOIN LATERAL (SELECT * FROM mainspring.limits WHERE no = x.limit_no AND NOT deleted OFFSET 0) l ON true "
        )
    };
}
pub(crate) use limit_key;

/// Locks limit keys by their numbers, which `k` has in order as `limit_key`: as `locked`. The newest row is looked up first; if
/// somebody writes it meanwhile, the lock is that of the row it has become.
macro_rules! lock_keys {
    () => {
        "
    , newest AS MATERIALIZED (SELECT k.limit_key, x.generation FROM k CROSS JOIN LATERAL (
            SELECT generation FROM mainspring.limit_keys WHERE no = k.limit_key ORDER BY generation DESC LIMIT 1) x)
    , locked AS MATERIALIZED (SELECT x.no FROM newest CROSS JOIN LATERAL (
            SELECT no FROM mainspring.limit_keys
            WHERE no = newest.limit_key AND generation >= newest.generation FOR UPDATE) x)"
    };
}
pub(crate) use lock_keys;

/// When the bucket of key `x` is full again, in microseconds: not before now, nor further ahead than the last jobs can have put it.
macro_rules! full_at {
    () => {
        "least(greatest(coalesce(x.next_free, c.us), c.us), c.us + l.interval * (l.burst + {bound.units}))"
    };
}
pub(crate) use full_at;

/// What key `x` of limit `l` has when `$in_use` units are in use, as columns: free units, tokens, and what [`leave_keys`] needs.
/// `c.us` is now.
macro_rules! key_columns {
    ($in_use:literal) => {
        concat!(
            "x.no AS limit_key, x.generation, x.head, x.tail, x.blocked, x.line, l.interval, l.burst,
            CASE WHEN l.no IS NULL THEN {bound.any_units} WHEN l.paused OR x.paused THEN 0
                ELSE greatest(coalesce(x.max, l.max, {bound.any_units}) - ",
            $in_use,
            ", 0) END AS free,
            CASE WHEN l.interval IS NULL THEN {bound.any_units}
                ELSE greatest((l.interval * l.burst - (",
            $crate::op::limits::full_at!(),
            " - c.us)) / l.interval, 0) END AS tokens, ",
            $crate::op::limits::full_at!(),
            " AS full_at"
        )
    };
}
pub(crate) use key_columns;

/// Whether units of a job fit into what is left of a key, from columns of these names.
macro_rules! fits {
    ($units:expr, $free:expr, $tokens:expr, $burst:expr) => {
        concat!("(", $units, " <= ", $free, " AND least(", $units, ", ", $burst, ") <= ", $tokens, ")")
    };
}
pub(crate) use fits;

/// How many jobs of so many units each fit into what is left of a key.
macro_rules! room {
    ($units:literal, $free:literal, $tokens:literal, $burst:literal) => {
        concat!(
            "greatest(least((",
            $free,
            ") / ",
            $units,
            ", CASE WHEN ",
            $tokens,
            " < least(",
            $units,
            ", ",
            $burst,
            ") THEN 0
            ELSE (",
            $tokens,
            " - least(",
            $units,
            ", ",
            $burst,
            ")) / ",
            $units,
            " + 1 END), 0)"
        )
    };
}
pub(crate) use room;

/// Lets blocked groups in and writes what the keys of `kk` have become. `kk` has, for each key, [`key_columns`], and `taken` and
/// `given` (units), `spent` (tokens), `more` (groups that are blocked there anew) and `more_line` (their line; 0: several); `free` and
/// `tokens` are what is left. As `let_in`: the groups that have a turn again. Of each line as many as there is room for, in the order
/// in which they were blocked: a line may be one that nobody claims from now. Keys are locked, and whoever holds that lock alone
/// touches these rows.
macro_rules! leave_keys {
    () => {
        concat!(
            "
    , open AS MATERIALIZED (SELECT kk.*, y.line AS of_line FROM kk CROSS JOIN LATERAL (
            SELECT kk.line WHERE kk.line <> 0 UNION ALL SELECT w.line FROM (
                WITH RECURSIVE w AS (
                    (SELECT b.line FROM mainspring.blocked_groups b WHERE b.limit_key = kk.limit_key AND kk.line = 0
                        ORDER BY b.line LIMIT 1)
                    UNION ALL SELECT n.line FROM w CROSS JOIN LATERAL (
                        SELECT b.line FROM mainspring.blocked_groups b WHERE b.limit_key = kk.limit_key AND b.line > w.line
                        ORDER BY b.line LIMIT 1) n)
                SELECT w.line FROM w) w) y
        WHERE kk.blocked > 0 AND kk.free > 0 AND kk.tokens > 0)
    , let_in AS (DELETE FROM mainspring.blocked_groups WHERE ctid = ANY(ARRAY(
            SELECT b.tid FROM open CROSS JOIN LATERAL (
                SELECT b.ctid AS tid FROM mainspring.blocked_groups b
                WHERE b.limit_key = open.limit_key AND b.line = open.of_line AND b.seq > open.head AND ",
            $crate::op::limits::fits!("b.units", "open.free", "open.tokens", "open.burst"),
            " ORDER BY b.seq LIMIT least(open.free, open.tokens)) b))
        RETURNING limit_key, seq, line, level, limit_group)
    , heads AS MATERIALIZED (SELECT coalesce(array_agg(y.limit_key ORDER BY y.limit_key), '{}') AS keys,
            coalesce(array_agg(y.seq ORDER BY y.limit_key), '{}') AS seqs, coalesce(array_agg(y.n ORDER BY y.limit_key), '{}') AS ns
        FROM (SELECT limit_key, max(seq) AS seq, count(*) AS n FROM let_in GROUP BY limit_key) y)
    , k2 AS MATERIALIZED (SELECT kk.*, CASE WHEN h.here THEN (heads.ns)[h.at] ELSE 0 END AS entered,
            CASE WHEN h.here AND kk.line <> 0 THEN (heads.seqs)[h.at] ELSE kk.head END AS last_in
        FROM kk CROSS JOIN heads CROSS JOIN LATERAL (SELECT width_bucket(kk.limit_key, heads.keys) AS at,
            coalesce((heads.keys)[width_bucket(kk.limit_key, heads.keys)] = kk.limit_key, false) AS here) h)
    , k3 AS MATERIALIZED (SELECT k2.*, k2.blocked + k2.more - k2.entered AS now_blocked,
            CASE WHEN k2.last_in = k2.head THEN k2.head ELSE coalesce((
                SELECT min(b.seq) - 1 FROM mainspring.blocked_groups b
                WHERE b.limit_key = k2.limit_key AND b.line = k2.line AND b.seq > k2.head AND b.seq < k2.last_in AND NOT ",
            $crate::op::limits::fits!("b.units", "k2.free", "k2.tokens", "k2.burst"),
            "), k2.last_in) END AS new_head FROM k2)
    , k4 AS MATERIALIZED (SELECT k3.*, CASE WHEN k3.now_blocked > 0 AND k3.free > 0 AND k3.tokens < k3.burst
            THEN timestamptz 'epoch' + (k3.full_at + k3.interval * (k3.spent + greatest(k3.tokens, 0) + 1 - k3.burst)) * interval '1 us'
            END AS new_due,
            CASE WHEN k3.more = 0 THEN k3.line WHEN k3.blocked = k3.entered OR k3.line = k3.more_line THEN k3.more_line ELSE 0 END
                AS new_line
        FROM k3)
    , written AS (UPDATE mainspring.limit_keys x SET hits = x.hits + 1, generation = (x.hits + 1) / {bound.generation_hits},
            in_use = x.in_use + k4.taken - k4.given, tail = x.tail + k4.more, due = k4.new_due, blocked = k4.now_blocked,
            line = k4.new_line, head = CASE WHEN k4.now_blocked = 0 THEN x.tail ELSE k4.new_head END,
            next_free = CASE WHEN k4.interval IS NOT NULL AND (k4.spent > 0 OR k4.now_blocked > 0 AND x.next_free > k4.full_at)
                THEN k4.full_at + k4.interval * k4.spent ELSE x.next_free END
        FROM k4 WHERE x.no = k4.limit_key AND x.generation = k4.generation
            AND (k4.taken <> 0 OR k4.given <> 0 OR k4.more <> 0 OR k4.entered <> 0 OR k4.new_due IS DISTINCT FROM x.due
                OR k4.now_blocked > 0 AND k4.interval IS NOT NULL AND x.next_free > k4.full_at)
        RETURNING x.due)"
        )
    };
}
pub(crate) use leave_keys;
