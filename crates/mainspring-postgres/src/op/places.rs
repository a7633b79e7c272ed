//! Places and endings: the fragments that statements which move jobs are made of.
//!
//! A statement names the jobs that it moves in a common table expression, takes them out of one place and puts them into
//! another. How each place is left and entered, what ends with a job, and how moves are counted stands here and nowhere else.
//! So a new place, a new column of a place, or something new that a job holds is one edit. `cargo xtask tidy` refuses
//! statements that write to places by themselves.
//!
//! Fragments are text, put together when the program is compiled: the database gets the same as if each statement had been
//! written out. `$jobs` is always an item of a FROM list that is called `e`, such as `d e` or `(SELECT … ) e`; it has the
//! columns that its fragment inserts. Every statement begins with [`now`](super::now).
//!
//! # Invariants
//! - What a job holds (its unique key, its deadline) is released in [`end`] and [`end_waiting`], and in [`remove`] for jobs that are deleted.
//! - What a claim holds is released in [`leave_lease`]: units of limits go to `returned_units`, from where the same transaction,
//!   or the next sweep, counts them as free.

/// The claims of a call, as a condition on `lease l`: `$2` is their node, `$3` the numbers of their jobs, `$4` the claims'
/// numbers. Numbers come sorted, so that `width_bucket` finds a job's place among the arguments by halving.
macro_rules! fence {
    () => {
        "l.no = ANY($3::bigint[]) AND l.node = $2 AND l.claim = ($4::int[])[width_bucket(l.no, $3::bigint[])]"
    };
}
pub(crate) use fence;

/// Takes claims out of `lease l`, and releases what they hold. `$columns` of them become the expression `$name`; `no` and
/// `flags` are among them. So are, without being named, `claimed_at` and `node`, which ends and errors keep, and what the claim took
/// of limits. With `but_units`, the statement itself says which units are returned.
macro_rules! leave_lease {
    ($name:literal, $claims:expr, $columns:expr) => {
        concat!(
            ", ",
            $name,
            " AS (DELETE FROM mainspring.lease l WHERE ",
            $claims,
            "
        RETURNING ",
            $columns,
            ", l.claimed_at, l.node, l.units, l.flags & {flag.keeps} <> 0 AS keeps)",
            $crate::op::places::return_units!($name, "true")
        )
    };
    ($name:literal, $claims:expr, $columns:expr, but_units) => {
        concat!(
            ", ",
            $name,
            " AS (DELETE FROM mainspring.lease l WHERE ",
            $claims,
            "
        RETURNING ",
            $columns,
            ", l.claimed_at, l.node, l.units, l.flags & {flag.keeps} <> 0 AS keeps)"
        )
    };
}
pub(crate) use leave_lease;

/// Returns the units of claims that have left `lease`, and what their jobs have kept, as far as `$which`, a condition on `e`, says.
macro_rules! return_units {
    ($claims:literal, $which:literal) => {
        concat!(
            "
    , no_more AS (DELETE FROM mainspring.kept_units k WHERE k.no = ANY(ARRAY(SELECT e.no FROM ",
            $claims,
            " e WHERE e.keeps AND ",
            $which,
            ")) RETURNING k.units)
    , returned AS (INSERT INTO mainspring.returned_units (units)
        SELECT array_agg(u.limit_key) FROM (SELECT e.units FROM ",
            $claims,
            " e WHERE e.units IS NOT NULL AND ",
            $which,
            " UNION ALL SELECT units FROM no_more) y, unnest(y.units) AS u(limit_key) HAVING count(*) > 0)"
        )
    };
}
pub(crate) use return_units;

/// Takes jobs out of `ready p`, as `from_ready`.
macro_rules! leave_ready {
    ($which:expr) => {
        concat!(
            ", from_ready AS (DELETE FROM mainspring.ready p WHERE ",
            $which,
            "
        RETURNING {state.ready} AS was, p.no, p.line, p.claim,
            least(p.level & {level.priority_bits}, {priority.last})::smallint AS priority, p.failures, p.crashes, p.crashed,
            p.flags, NULL::timestamptz AS due)"
        )
    };
}
pub(crate) use leave_ready;

/// Takes jobs out of `limited p`, as `$name`.
macro_rules! leave_limited {
    ($name:literal, $which:expr, $columns:literal) => {
        concat!(
            ", ",
            $name,
            " AS (DELETE FROM mainspring.limited p WHERE ",
            $which,
            "
        RETURNING ",
            $columns,
            ")"
        )
    };
    ($which:expr) => {
        $crate::op::places::leave_limited!(
            "from_limited",
            $which,
            "{state.ready} AS was, p.no, p.line, p.claim,
            least(p.level & {level.priority_bits}, {priority.last})::smallint AS priority, p.failures, p.crashes, p.crashed,
            p.flags, NULL::timestamptz AS due"
        )
    };
}
pub(crate) use leave_limited;

/// Takes jobs out of `timers p`, as `from_timers`.
macro_rules! leave_timers {
    ($which:expr) => {
        concat!(
            ", from_timers AS (DELETE FROM mainspring.timers p WHERE ",
            $which,
            "
        RETURNING {state.scheduled} AS was, p.no, p.line, p.claim, p.priority, p.failures, p.crashes, p.crashed, p.flags,
            p.due)"
        )
    };
}
pub(crate) use leave_timers;

/// Takes jobs out of `suspended p`, as `from_suspended`. The time of one that was held comes with it; that of one that waited
/// for something else too does not.
macro_rules! leave_suspended {
    ($which:expr) => {
        concat!(
            ", from_suspended AS (DELETE FROM mainspring.suspended p WHERE ",
            $which,
            "
        RETURNING {state.suspended} AS was, p.no, p.line, p.claim, p.priority, p.failures, p.crashes, p.crashed, p.flags,
            CASE WHEN p.reason = {reason.hold} THEN p.due END AS due)"
        )
    };
}
pub(crate) use leave_suspended;

/// Takes jobs out of wherever they wait, as `w`: by the primary keys of the places, from arrays of numbers, one for all places
/// or one for each.
macro_rules! leave_waiting {
    ($nos:literal) => {
        $crate::op::places::leave_waiting!($nos, $nos, $nos, $nos)
    };
    ($of_ready:literal, $of_limited:literal, $of_timers:literal, $of_suspended:literal) => {
        concat!(
            $crate::op::places::leave_ready!(concat!("p.no = ANY(", $of_ready, ")")),
            $crate::op::places::leave_limited!(concat!("p.no = ANY(", $of_limited, ")")),
            $crate::op::places::leave_timers!(concat!("p.no = ANY(", $of_timers, ")")),
            $crate::op::places::leave_suspended!(concat!("p.no = ANY(", $of_suspended, ")")),
            ", w AS (SELECT * FROM from_ready UNION ALL SELECT * FROM from_limited UNION ALL SELECT * FROM from_timers
        UNION ALL SELECT * FROM from_suspended)"
        )
    };
}
pub(crate) use leave_waiting;

/// Takes jobs out of `done`, as `e`: those of the numbers `$2` but for those whose family is still to be told of the end. Primary
/// key.
macro_rules! leave_done {
    ($columns:literal) => {
        concat!(
            ", e AS (DELETE FROM mainspring.done p WHERE p.no = ANY($2::bigint[])
            AND (p.flags & {flags.told} = 0 OR NOT EXISTS (SELECT 1 FROM mainspring.ends x WHERE x.no = p.no))
        RETURNING ",
            $columns,
            ")"
        )
    };
}
pub(crate) use leave_done;

/// Locks jobs wherever they wait, by the primary keys of the places and in the order of `x`, which has their numbers. What was
/// locked is in `in_ready`, `in_limited`, `in_timers` and `in_suspended`.
macro_rules! lock_waiting {
    ($lock:literal) => {
        concat!(
            ", in_ready AS MATERIALIZED (SELECT p.no FROM x CROSS JOIN LATERAL (
        SELECT no FROM mainspring.ready WHERE no = x.no ",
            $lock,
            ") p)
    , in_limited AS MATERIALIZED (SELECT p.no FROM x CROSS JOIN LATERAL (
        SELECT no FROM mainspring.limited WHERE no = x.no ",
            $lock,
            ") p)
    , in_timers AS MATERIALIZED (SELECT p.no FROM x CROSS JOIN LATERAL (
        SELECT no FROM mainspring.timers WHERE no = x.no ",
            $lock,
            ") p)
    , in_suspended AS MATERIALIZED (SELECT p.no FROM x CROSS JOIN LATERAL (
        SELECT no FROM mainspring.suspended WHERE no = x.no ",
            $lock,
            ") p)"
        )
    };
}
pub(crate) use lock_waiting;

/// Whether the job of this number waits.
macro_rules! waits {
    ($no:literal) => {
        concat!(
            "(EXISTS (SELECT 1 FROM mainspring.ready p WHERE p.no = ",
            $no,
            ")
        OR EXISTS (SELECT 1 FROM mainspring.limited p WHERE p.no = ",
            $no,
            ")
        OR EXISTS (SELECT 1 FROM mainspring.timers p WHERE p.no = ",
            $no,
            ")
        OR EXISTS (SELECT 1 FROM mainspring.suspended p WHERE p.no = ",
            $no,
            "))"
        )
    };
}
pub(crate) use waits;

/// Changes jobs wherever they wait, by the primary keys of the places: those of the numbers `$nos` that meet `$which`, a
/// condition on any place `p`. `$ready` and `$other` say what is set in `ready` and `limited`, and elsewhere. As `w`: state, number, and
/// of ready jobs the line, level, time and group, which is none of jobs in `ready`.
macro_rules! update_waiting {
    ($nos:literal, $which:literal, $ready:literal, $other:literal) => {
        concat!(
            ", in_ready AS (UPDATE mainspring.ready p SET ",
            $ready,
            " WHERE p.no = ANY(",
            $nos,
            ") AND ",
            $which,
            "
        RETURNING {state.ready} AS was, p.no, p.line, p.level, p.ready_at, NULL::int AS limit_group)
    , in_limited AS (UPDATE mainspring.limited p SET ",
            $ready,
            " WHERE p.no = ANY(",
            $nos,
            ") AND ",
            $which,
            "
        RETURNING {state.ready} AS was, p.no, p.line, p.level, p.ready_at, p.limit_group)
    , in_timers AS (UPDATE mainspring.timers p SET ",
            $other,
            " WHERE p.no = ANY(",
            $nos,
            ") AND ",
            $which,
            "
        RETURNING {state.scheduled} AS was, p.no, NULL::int, NULL::smallint, NULL::timestamptz, NULL::int)
    , in_suspended AS (UPDATE mainspring.suspended p SET ",
            $other,
            " WHERE p.no = ANY(",
            $nos,
            ") AND ",
            $which,
            "
        RETURNING {state.suspended} AS was, p.no, NULL::int, NULL::smallint, NULL::timestamptz, NULL::int)
    , w AS (SELECT * FROM in_ready UNION ALL SELECT * FROM in_limited UNION ALL SELECT * FROM in_timers
        UNION ALL SELECT * FROM in_suspended)"
        )
    };
}
pub(crate) use update_waiting;

/// The level of a job that goes to `ready`, from the columns `crashes` and `priority`: a suspect's, or that of a class.
macro_rules! level {
    ($class:literal) => {
        concat!(
            "(CASE WHEN crashes >= {bound.suspect_crashes} THEN {level.suspect} ELSE {level.",
            $class,
            "} END + priority)::smallint"
        )
    };
}
pub(crate) use level;

/// Puts jobs into `ready`.
macro_rules! enter_ready {
    ($jobs:expr) => {
        concat!(
            ", to_ready AS (INSERT INTO mainspring.ready (no, ready_at, crashed, line, claim, level, failures, crashes, flags)
        SELECT e.no, (SELECT t.now FROM t), e.crashed, e.line, e.claim, e.level, e.failures, e.crashes,
            e.flags & ~{flags.of_claim}
        FROM ",
            $jobs,
            ")"
        )
    };
}
pub(crate) use enter_ready;

/// Puts jobs into `ready`; those with limits that keep nothing of them, into `limited`, each group with a turn. The group is that
/// of `limited_jobs`, by its primary key. Jobs without limits pay for it with a test of their flags.
macro_rules! enter {
    ($jobs:literal) => {
        concat!(
            $crate::op::places::enter_ready!(concat!(
                "(SELECT * FROM ", $jobs, " WHERE e.flags & ({flag.limited} | {flag.keeps}) <> {flag.limited}) e"
            )),
            $crate::op::places::enter_limited!(concat!(
                "(SELECT e.*, g.limit_group FROM ",
                $jobs,
                " CROSS JOIN LATERAL (SELECT limit_group FROM mainspring.limited_jobs WHERE no = e.no OFFSET 0) g
            WHERE e.flags & ({flag.limited} | {flag.keeps}) = {flag.limited}) e"
            ))
        )
    };
}
pub(crate) use enter;

/// Puts jobs into `limited`, and gives each of their groups a turn.
macro_rules! enter_limited {
    ($jobs:expr) => {
        concat!(
            ", to_limited AS (INSERT INTO mainspring.limited
            (no, ready_at, crashed, line, limit_group, claim, level, failures, crashes, flags)
        SELECT e.no, (SELECT t.now FROM t), e.crashed, e.line, e.limit_group, e.claim, e.level, e.failures, e.crashes,
            e.flags & ~{flags.of_claim}
        FROM ",
            $jobs,
            " RETURNING line, level, limit_group)
    , to_turns AS (INSERT INTO mainspring.group_turns (line, level, at, limit_group)
        SELECT DISTINCT z.line, z.level, (SELECT t.now FROM t), z.limit_group FROM to_limited z)"
        )
    };
}
pub(crate) use enter_limited;

/// Puts jobs into `timers`, until they are due.
macro_rules! enter_timers {
    ($jobs:expr) => {
        concat!(
            ", to_timers AS (INSERT INTO mainspring.timers (no, due, crashed, line, claim, priority, failures, crashes, flags)
        SELECT e.no, e.due, e.crashed, e.line, e.claim, e.priority, e.failures, e.crashes, e.flags & ~{flags.of_claim}
        FROM ",
            $jobs,
            ")"
        )
    };
}
pub(crate) use enter_timers;

/// Puts jobs into `suspended`, with the reason.
macro_rules! enter_suspended {
    ($jobs:expr) => {
        concat!(
            ", to_suspended AS (INSERT INTO mainspring.suspended
            (no, due, crashed, line, claim, priority, reason, failures, crashes, flags, waits, note)
        SELECT e.no, e.due, e.crashed, e.line, e.claim, e.priority, e.reason, e.failures, e.crashes,
            e.flags & ~{flags.of_claim}, e.waits, e.note
        FROM ",
            $jobs,
            ")"
        )
    };
}
pub(crate) use enter_suspended;

/// Ends jobs that have left `lease`, by the outcome of their claim: into `done`, with when and on which node the claim began, and
/// into `ends` if a family is to be told; then what they hold is released, which is looked up by arrays of numbers, only for
/// jobs whose flags say that there is something. A key whose period begins with the end gets its expiry and stays.
macro_rules! end {
    ($jobs:expr) => {
        $crate::op::places::end!($jobs, "k.until <> {until.after}", "e.claimed_at, e.node")
    };
    ($jobs:expr, $keys_go:literal, $claim:literal) => {
        concat!(
            ", to_done AS (INSERT INTO mainspring.done (no, finished_at, line, claim, state, reason, priority, failures,
            crashes, flags, bad, note, result, claimed_at, node)
        SELECT e.no, (SELECT t.now FROM t), e.line, e.claim, e.state, e.reason, e.priority, e.failures, e.crashes,
            e.flags & {flags.lasting}, e.state IN ({state.failed}, {state.cancelled}), nullif(e.note, ''), e.result, ",
            $claim,
            "
        FROM ",
            $jobs,
            ")
    , to_ends AS (INSERT INTO mainspring.ends (no, at, flags)
        SELECT e.no, (SELECT t.now FROM t), e.flags FROM ",
            $jobs,
            " WHERE e.flags & {flags.told} <> 0)
    , gone_keys AS (DELETE FROM mainspring.keys k
        WHERE k.no = ANY(ARRAY(SELECT e.no FROM ",
            $jobs,
            " WHERE e.flags & {flag.key} <> 0)) AND ",
            $keys_go,
            ")
    , last_keys AS (UPDATE mainspring.keys k SET expires_at = t.now + k.period * interval '1 us' FROM t
        WHERE k.no = ANY(ARRAY(SELECT e.no FROM ",
            $jobs,
            " WHERE e.flags & {flag.key} <> 0)) AND NOT (",
            $keys_go,
            ") AND k.expires_at IS NULL)
    , gone_deadlines AS (DELETE FROM mainspring.deadlines z
        WHERE z.no = ANY(ARRAY(SELECT e.no FROM ",
            $jobs,
            " WHERE e.flags & {flag.deadline} <> 0)))"
        )
    };
}
pub(crate) use end;

/// The same for jobs that have left the place where they waited: no claim has ended them. With `keys_go`, a key does not stay.
macro_rules! end_waiting {
    ($jobs:expr) => {
        concat!(
            $crate::op::places::end!($jobs, "k.until <> {until.after}", "NULL, NULL"),
            $crate::op::places::return_kept!($jobs)
        )
    };
    ($jobs:expr, keys_go) => {
        concat!(
            $crate::op::places::end!($jobs, "true", "NULL, NULL"),
            $crate::op::places::return_kept!($jobs)
        )
    };
}
pub(crate) use end_waiting;

/// Returns the units that waiting jobs have kept. Primary key of `kept_units`, only for jobs whose flags say so.
macro_rules! return_kept {
    ($jobs:expr) => {
        concat!(
            "
    , no_more AS (DELETE FROM mainspring.kept_units k
        WHERE k.no = ANY(ARRAY(SELECT e.no FROM ",
            $jobs,
            " WHERE e.flags & {flag.keeps} <> 0)) RETURNING k.units)
    , returned AS (INSERT INTO mainspring.returned_units (units) SELECT no_more.units FROM no_more)"
        )
    };
}
pub(crate) use return_kept;

/// Whether a job that becomes ready waits in `limited`, from the column `flags`.
macro_rules! is_limited {
    ($flags:literal) => {
        concat!($flags, " & ({flag.limited} | {flag.keeps}) = {flag.limited}")
    };
}
pub(crate) use is_limited;

/// Keeps what went wrong under claims that have left `lease`, `e`, and of each job no more than the bound. What is inserted is
/// not seen by the deletion beside it. Primary key of `errors`, from its end.
macro_rules! keep_errors {
    ($jobs:expr, $kind:expr, $message:expr) => {
        concat!(
            ", to_errors AS (INSERT INTO mainspring.errors (no, at, claimed_at, claim, node, kind, message)
        SELECT e.no, (SELECT t.now FROM t), e.claimed_at, e.claim, e.node, ",
            $kind,
            ", ",
            $message,
            " FROM ",
            $jobs,
            " ON CONFLICT (no, claim) DO NOTHING)
    , gone_errors AS (DELETE FROM mainspring.errors x WHERE x.no = ANY(ARRAY(SELECT e.no FROM ",
            $jobs,
            ")) AND x.claim <= (SELECT y.claim FROM mainspring.errors y WHERE y.no = x.no
            ORDER BY y.claim DESC OFFSET {bound.errors_kept} - 1 LIMIT 1))"
        )
    };
}
pub(crate) use keep_errors;

/// Who asked a claim to cancel that has been, from the column `flags`.
macro_rules! canceller {
    () => {
        "CASE WHEN flags & {flag.orphan} = 0 THEN {reason.operator} ELSE {reason.parent} END"
    };
}
pub(crate) use canceller;

/// Whom of a family there is to tell of the end, as flags; 0 if nobody, or if it is no end. From the columns `state` and
/// `flags` of `e`.
macro_rules! told {
    () => {
        "(CASE WHEN e.state >= {states.first_ended} THEN e.flags & {flags.told} ELSE 0 END)::smallint"
    };
}
pub(crate) use told;

/// Counts moves of jobs: from the state `was` to `state`, both of them columns; or with the first, or both, the same for all.
macro_rules! count {
    ($jobs:literal) => {
        concat!(
            ", counted AS (INSERT INTO mainspring.count_deltas (line, state, n)
        SELECT line, was, -count(*) FROM ",
            $jobs,
            " GROUP BY line, was
        UNION ALL SELECT line, state, count(*) FROM ",
            $jobs,
            " GROUP BY line, state)"
        )
    };
    ($jobs:literal, $was:literal) => {
        concat!(
            ", counted AS (INSERT INTO mainspring.count_deltas (line, state, n)
        SELECT line, {state.",
            $was,
            "}, -count(*) FROM ",
            $jobs,
            " GROUP BY line
        UNION ALL SELECT line, state, count(*) FROM ",
            $jobs,
            " GROUP BY line, state)"
        )
    };
    ($jobs:literal, $was:literal, $state:literal) => {
        concat!(
            ", counted AS (INSERT INTO mainspring.count_deltas (line, state, n)
        SELECT g.line, s.state, g.n * s.sign
        FROM (SELECT line, count(*) AS n FROM ",
            $jobs,
            " GROUP BY line) g, (VALUES ({state.",
            $was,
            "}, -1), ({state.",
            $state,
            "}, 1)) AS s(state, sign))"
        )
    };
}
pub(crate) use count;

/// Removes jobs that have left their places for good, `e`, with everything known of them; but not their keys, which can
/// outlive them. By primary keys and the indexes by number of the side tables.
macro_rules! remove {
    () => {
        "
    , gone_jobs AS (DELETE FROM mainspring.jobs x WHERE x.no = ANY(ARRAY(SELECT e.no FROM e)))
    , gone_superseded AS (DELETE FROM mainspring.superseded x WHERE x.no = ANY(ARRAY(SELECT e.no FROM e)))
    , gone_errors AS (DELETE FROM mainspring.errors x WHERE x.no = ANY(ARRAY(SELECT e.no FROM e)))
    , gone_progress AS (DELETE FROM mainspring.progress x WHERE x.no = ANY(ARRAY(SELECT e.no FROM e)))
    , gone_tags AS (DELETE FROM mainspring.tags x WHERE x.no = ANY(ARRAY(SELECT e.no FROM e)))
    , gone_deadlines AS (DELETE FROM mainspring.deadlines x WHERE x.no = ANY(ARRAY(SELECT e.no FROM e)))
    , gone_steps AS (DELETE FROM mainspring.steps x
        WHERE x.no = ANY(ARRAY(SELECT e.no FROM e WHERE e.flags & {flag.journal} <> 0)))
    , gone_output AS (DELETE FROM mainspring.output x
        WHERE x.no = ANY(ARRAY(SELECT e.no FROM e WHERE e.flags & {flag.journal} <> 0)))
    , gone_limited AS (DELETE FROM mainspring.limited_jobs x WHERE x.no = ANY(ARRAY(SELECT e.no FROM e)))
    , gone_inbox AS (DELETE FROM mainspring.inbox x WHERE x.no = ANY(ARRAY(SELECT e.no FROM e)))
    , gone_child AS (DELETE FROM mainspring.children x
        WHERE x.no = ANY(ARRAY(SELECT e.no FROM e WHERE e.flags & {flag.parent} <> 0)))
    , gone_children AS (DELETE FROM mainspring.children x
        WHERE x.parent = ANY(ARRAY(SELECT e.no FROM e WHERE e.flags & {flag.children} <> 0)))
    , counted AS (INSERT INTO mainspring.count_deltas (line, state, n)
        SELECT line, was, -count(*) FROM e GROUP BY line, was)"
    };
}
pub(crate) use remove;

/// The place of a job `j`: joins by the primary keys of all places, job by job, however many there are. Exactly one has it.
macro_rules! place {
    () => {
        "
    LEFT JOIN LATERAL (SELECT * FROM mainspring.done p WHERE p.no = j.no OFFSET 0) d ON true
    LEFT JOIN LATERAL (SELECT * FROM mainspring.ready p WHERE p.no = j.no OFFSET 0) r ON true
    LEFT JOIN LATERAL (SELECT * FROM mainspring.limited p WHERE p.no = j.no OFFSET 0) w ON true
    LEFT JOIN LATERAL (SELECT * FROM mainspring.lease p WHERE p.no = j.no OFFSET 0) l ON true
    LEFT JOIN LATERAL (SELECT * FROM mainspring.timers p WHERE p.no = j.no OFFSET 0) m ON true
    LEFT JOIN LATERAL (SELECT * FROM mainspring.suspended p WHERE p.no = j.no OFFSET 0) s ON true "
    };
}
pub(crate) use place;

/// The state that a job's [`place`] stands for; NULL if it is in none, because it is just being moved or removed.
macro_rules! state {
    () => {
        "coalesce(d.state, CASE WHEN coalesce(r.no, w.no) IS NOT NULL THEN {state.ready} WHEN l.no IS NOT NULL THEN {state.running}
            WHEN m.no IS NOT NULL THEN {state.scheduled} WHEN s.no IS NOT NULL THEN {state.suspended} END)::smallint"
    };
}
pub(crate) use state;

/// A column that all places have, from a job's [`place`].
macro_rules! of_place {
    ($column:literal) => {
        concat!(
            "coalesce(d.",
            $column,
            ", r.",
            $column,
            ", w.",
            $column,
            ", l.",
            $column,
            ", m.",
            $column,
            ", s.",
            $column,
            ")"
        )
    };
}
pub(crate) use of_place;

/// All rows of all places: number, line, flags, state, and the place's name. For the self-check.
macro_rules! all_places {
    () => {
        "(SELECT no, line, flags, {state.ready} AS state, 'ready' AS place FROM mainspring.ready
            UNION ALL SELECT no, line, flags, {state.ready}, 'limited' FROM mainspring.limited
            UNION ALL SELECT no, line, flags, {state.scheduled}, 'timers' FROM mainspring.timers
            UNION ALL SELECT no, line, flags, {state.suspended}, 'suspended' FROM mainspring.suspended
            UNION ALL SELECT no, line, flags, {state.running}, 'lease' FROM mainspring.lease
            UNION ALL SELECT no, line, flags, state, 'done' FROM mainspring.done)"
    };
}
pub(crate) use all_places;
