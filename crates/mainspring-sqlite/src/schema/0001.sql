-- Version 1. Every table is ours by its prefix: an application's own tables live beside them in the same file.
--
-- All times are microseconds since the Unix epoch. `no` is a job's row number and stands for it everywhere; numbers are
-- never reused. A job is in exactly one place: `ready`, `limited`, `timers`, `suspended`, `lease`, or `done` (its one row that
-- is not superseded). A place carries what changes (priority, claim, failures, crashes); `jobs` is never updated.
--
-- `flags` of a place: 1 the job has a unique key, 2 it has a deadline, 4 its key is released at its first claim, 8 it has
-- a journal or an inbox, 16 it has children, 32 it has a parent, 128 its claim takes room at limits, 256 it keeps that while it
-- waits. A plain job has none and touches no side table.

-- Version, lowest version that may write here, fingerprints of the migrations, the store's own id, and the highest numbers ever
-- given out.
CREATE TABLE mainspring_meta (
    key   TEXT PRIMARY KEY,
    value NOT NULL
) WITHOUT ROWID;

-- Queues that were ever named, with their settings. One that is `deleted` has none, and is there again while it has jobs;
-- its row stays, because lines refer to it.
CREATE TABLE mainspring_queues (
    no               INTEGER PRIMARY KEY,
    name             TEXT NOT NULL UNIQUE,
    paused           INTEGER NOT NULL DEFAULT 0,
    backoff          TEXT,
    retain_succeeded INTEGER NOT NULL,
    retain_failed    INTEGER NOT NULL,
    deleted          INTEGER NOT NULL DEFAULT 0
);

CREATE TABLE mainspring_kinds (
    no   INTEGER PRIMARY KEY,
    name TEXT NOT NULL UNIQUE
);

-- Jobs of one queue, one kind and one set of required labels: a node can run all of a line or nothing of it.
-- `labels` is a JSON array, sorted.
CREATE TABLE mainspring_lines (
    no     INTEGER PRIMARY KEY,
    queue  INTEGER NOT NULL,
    kind   INTEGER NOT NULL,
    labels TEXT NOT NULL,
    UNIQUE (queue, kind, labels)
);

-- What a job is: written once. `options` is JSON, NULL for the defaults.
CREATE TABLE mainspring_jobs (
    no         INTEGER PRIMARY KEY,
    id         BLOB NOT NULL UNIQUE,
    line       INTEGER NOT NULL,
    priority   INTEGER NOT NULL,
    created_at INTEGER NOT NULL,
    deadline   INTEGER,
    options    TEXT,
    input      BLOB NOT NULL
);

-- Place: waits for a node. `level` is class and priority in one number: low is claimed first.
CREATE TABLE mainspring_ready (
    no       INTEGER PRIMARY KEY,
    line     INTEGER NOT NULL,
    level    INTEGER NOT NULL,
    ready_at INTEGER NOT NULL,
    claim    INTEGER NOT NULL,
    failures INTEGER NOT NULL,
    crashes  INTEGER NOT NULL,
    crashed  INTEGER NOT NULL,
    flags    INTEGER NOT NULL
);
CREATE INDEX mainspring_ready_claim ON mainspring_ready (line, level, ready_at);

-- Place: waits for room at limits. What `ready` has, and its group.
CREATE TABLE mainspring_limited (
    no          INTEGER PRIMARY KEY,
    limit_group INTEGER NOT NULL,
    line        INTEGER NOT NULL,
    level       INTEGER NOT NULL,
    ready_at    INTEGER NOT NULL,
    claim       INTEGER NOT NULL,
    failures    INTEGER NOT NULL,
    crashes     INTEGER NOT NULL,
    crashed     INTEGER NOT NULL,
    flags       INTEGER NOT NULL
);
CREATE INDEX mainspring_limited_claim ON mainspring_limited (line, limit_group, level, ready_at);

-- Place: waits for a time.
CREATE TABLE mainspring_timers (
    no       INTEGER PRIMARY KEY,
    line     INTEGER NOT NULL,
    priority INTEGER NOT NULL,
    due      INTEGER NOT NULL,
    claim    INTEGER NOT NULL,
    failures INTEGER NOT NULL,
    crashes  INTEGER NOT NULL,
    crashed  INTEGER NOT NULL,
    flags    INTEGER NOT NULL
);
CREATE INDEX mainspring_timers_due ON mainspring_timers (due);

-- Place: waits for something outside; `reason` says for what. `due` wakes a job that waits for itself (reasons 1 to 5); of
-- one that was held it is the time that it was scheduled for. `waits` is JSON: subjects, and how many unread messages of each
-- wake the job.
CREATE TABLE mainspring_suspended (
    no       INTEGER PRIMARY KEY,
    line     INTEGER NOT NULL,
    priority INTEGER NOT NULL,
    reason   INTEGER NOT NULL,
    due      INTEGER,
    claim    INTEGER NOT NULL,
    failures INTEGER NOT NULL,
    crashes  INTEGER NOT NULL,
    crashed  INTEGER NOT NULL,
    flags    INTEGER NOT NULL,
    waits    TEXT,
    note     TEXT
);
CREATE INDEX mainspring_suspended_due ON mainspring_suspended (due) WHERE due IS NOT NULL AND reason <= 5;

-- Place: claimed by a node. `cancel` is set while its node is asked to stop it, and says why. `stuck`: 1 its handler does not
-- yield, 2 it awaits something that is not durable.
CREATE TABLE mainspring_lease (
    no         INTEGER PRIMARY KEY,
    claim      INTEGER NOT NULL,
    node       INTEGER NOT NULL,
    batch      INTEGER NOT NULL,
    claimed_at INTEGER NOT NULL,
    line       INTEGER NOT NULL,
    priority   INTEGER NOT NULL,
    failures   INTEGER NOT NULL,
    crashes    INTEGER NOT NULL,
    crashed    INTEGER NOT NULL,
    flags      INTEGER NOT NULL,
    stuck      INTEGER NOT NULL DEFAULT 0,
    cancel     TEXT
);
-- Renewals look for flagged claims only; there is no index on `node` alone, because every claim would pay for it.
CREATE INDEX mainspring_lease_cancel ON mainspring_lease (node) WHERE cancel IS NOT NULL;

-- Place: has ended. Appended in the order of ending; a job that an operator runs again leaves a superseded row. `flags` are
-- those that outlive the end: 8, 16 and 32. `claimed_at` and `node`: when the claim that ended it began, and whose it was; NULL
-- if the job ended while it waited.
CREATE TABLE mainspring_done (
    seq         INTEGER PRIMARY KEY,
    no          INTEGER NOT NULL,
    claim       INTEGER NOT NULL,
    state       INTEGER NOT NULL,
    reason      INTEGER,
    finished_at INTEGER NOT NULL,
    priority    INTEGER NOT NULL,
    failures    INTEGER NOT NULL,
    crashes     INTEGER NOT NULL,
    superseded  INTEGER NOT NULL DEFAULT 0,
    flags       INTEGER NOT NULL DEFAULT 0,
    claimed_at  INTEGER,
    node        INTEGER,
    note        TEXT,
    result      BLOB
);
CREATE INDEX mainspring_done_no ON mainspring_done (no);
-- Jobs that did not end well are rare and asked for often (5 is `succeeded`).
CREATE INDEX mainspring_done_rare ON mainspring_done (state, no) WHERE state <> 5 AND superseded = 0;

-- What went wrong, per claim, which began at `claimed_at` on `node`: failures, and losses of nodes (kind 5). Bounded per job.
CREATE TABLE mainspring_errors (
    no         INTEGER NOT NULL,
    claim      INTEGER NOT NULL,
    claimed_at INTEGER NOT NULL,
    node       INTEGER NOT NULL,
    at         INTEGER NOT NULL,
    kind       INTEGER NOT NULL,
    message    TEXT NOT NULL,
    PRIMARY KEY (no, claim)
) WITHOUT ROWID;

-- Journals: what jobs have recorded, appended in the order of recording. (With the job in front, each commit would write a
-- page per job.) `took`: how long the operation's body ran, in milliseconds; NULL if it has none.
CREATE TABLE mainspring_steps (
    seq        INTEGER PRIMARY KEY,
    no         INTEGER NOT NULL,
    key        TEXT NOT NULL,
    kind       INTEGER NOT NULL,
    overlapped INTEGER NOT NULL,
    claim      INTEGER NOT NULL,
    at         INTEGER NOT NULL,
    took       INTEGER,
    value      BLOB NOT NULL
);
CREATE UNIQUE INDEX mainspring_steps_key ON mainspring_steps (no, key);

-- Inboxes: signals, and the ends of children. `subject` is `s:` and a signal's name, or `c:` and a child's id. `state`,
-- `reason` and `note` are a child's. `read`: 0 no, 1 a signal that was read, 2 an end of a child that was read. What was
-- read stays without its body, so that it is not taken twice; of signals, the last ones.
CREATE TABLE mainspring_inbox (
    seq    INTEGER PRIMARY KEY,
    no     INTEGER NOT NULL,
    subject  TEXT NOT NULL,
    sender TEXT NOT NULL,
    at     INTEGER NOT NULL,
    read   INTEGER NOT NULL DEFAULT 0,
    state  INTEGER,
    reason INTEGER,
    note   TEXT,
    body   BLOB
);
CREATE UNIQUE INDEX mainspring_inbox_subject ON mainspring_inbox (no, subject, sender);
CREATE INDEX mainspring_inbox_read ON mainspring_inbox (no, read);

-- Output: what handlers say while they run. `position` counts per job, `number` per claim; `before` is how many bytes the
-- job had said before. Without a body it is a reset: what that step (NULL: the handler itself) had said is void, from
-- `void_from` on. The last rows of a job are kept.
CREATE TABLE mainspring_output (
    seq       INTEGER PRIMARY KEY,
    no        INTEGER NOT NULL,
    position  INTEGER NOT NULL,
    claim     INTEGER NOT NULL,
    number    INTEGER NOT NULL,
    at        INTEGER NOT NULL,
    before    INTEGER NOT NULL,
    void_from INTEGER,
    step      TEXT,
    body      BLOB
);
CREATE UNIQUE INDEX mainspring_output_position ON mainspring_output (no, position);

-- Families. `on_close`, when the parent ends first: 0 the child is cancelled, 1 it goes on.
CREATE TABLE mainspring_children (
    no       INTEGER PRIMARY KEY,
    parent   INTEGER NOT NULL,
    on_close INTEGER NOT NULL
);
CREATE INDEX mainspring_children_parent ON mainspring_children (parent);

-- Limits. `scope`: 0 a limit that jobs name, 1 the total of a queue, 2 of a kind, each by its name. `definition` is JSON; NULL if
-- nobody defines it: then it holds nobody back.
CREATE TABLE mainspring_limits (
    no         INTEGER PRIMARY KEY,
    scope      INTEGER NOT NULL,
    name       TEXT NOT NULL,
    definition TEXT,
    UNIQUE (scope, name)
);

-- Keys of limits, each with its counters: the units that are held, and when its bucket of tokens is full again. `max` and `paused`
-- are this key's own. `due`: when it is to be looked at, because time alone is in the way of those that wait for it, or because it
-- was changed. A total has one key, the empty one.
CREATE TABLE mainspring_limit_keys (
    no        INTEGER PRIMARY KEY,
    limit_no  INTEGER NOT NULL,
    key       TEXT NOT NULL,
    in_use    INTEGER NOT NULL DEFAULT 0,
    max       INTEGER,
    paused    INTEGER NOT NULL DEFAULT 0,
    next_free INTEGER,
    due       INTEGER,
    UNIQUE (limit_no, key)
);
CREATE INDEX mainspring_limit_keys_due ON mainspring_limit_keys (due) WHERE due IS NOT NULL;

-- Limited jobs of one line that take the same units of the same keys. `uses` is JSON: numbers of keys, in order, and units.
CREATE TABLE mainspring_limit_groups (
    no   INTEGER PRIMARY KEY,
    line INTEGER NOT NULL,
    uses TEXT NOT NULL,
    UNIQUE (line, uses)
);
-- The groups that name a key.
CREATE TABLE mainspring_limit_key_groups (
    limit_key   INTEGER NOT NULL,
    limit_group INTEGER NOT NULL,
    PRIMARY KEY (limit_key, limit_group)
) WITHOUT ROWID;

-- Jobs that hold the units of their group: while they are claimed, and while they wait and keep them.
CREATE TABLE mainspring_limit_holders (
    no          INTEGER PRIMARY KEY,
    limit_group INTEGER NOT NULL
);

-- Turns: a group may have a job of this level to claim. `at` is since when it waits: after a claim took jobs of it, anew.
CREATE TABLE mainspring_group_turns (
    line        INTEGER NOT NULL,
    level       INTEGER NOT NULL,
    at          INTEGER NOT NULL,
    limit_group INTEGER NOT NULL,
    PRIMARY KEY (line, level, at, limit_group)
) WITHOUT ROWID;
CREATE UNIQUE INDEX mainspring_group_turns_group ON mainspring_group_turns (limit_group, level);

-- Groups that would have a turn if their key had room for `units` more.
CREATE TABLE mainspring_blocked_groups (
    limit_key   INTEGER NOT NULL,
    line        INTEGER NOT NULL,
    level       INTEGER NOT NULL,
    units       INTEGER NOT NULL,
    at          INTEGER NOT NULL,
    limit_group INTEGER NOT NULL,
    PRIMARY KEY (limit_key, line, level, units, at, limit_group)
) WITHOUT ROWID;
CREATE UNIQUE INDEX mainspring_blocked_groups_group ON mainspring_blocked_groups (limit_group, level);

-- Unique keys that are held. `until`: 0 first claim, 1 end, 2 `period` after the end. `expires_at` is set at the end.
-- A key can outlive its job's rows, so it names the job by id as well.
CREATE TABLE mainspring_keys (
    kind       INTEGER NOT NULL,
    key        TEXT NOT NULL,
    no         INTEGER NOT NULL,
    id         BLOB NOT NULL,
    until      INTEGER NOT NULL,
    period     INTEGER NOT NULL,
    expires_at INTEGER,
    UNIQUE (kind, key)
);
CREATE INDEX mainspring_keys_no ON mainspring_keys (no);
CREATE INDEX mainspring_keys_expiry ON mainspring_keys (expires_at) WHERE expires_at IS NOT NULL;

-- Deadlines of jobs that have not ended.
CREATE TABLE mainspring_deadlines (
    no INTEGER PRIMARY KEY,
    at INTEGER NOT NULL
);
CREATE INDEX mainspring_deadlines_at ON mainspring_deadlines (at);

CREATE TABLE mainspring_tags (
    tag TEXT NOT NULL,
    no  INTEGER NOT NULL,
    PRIMARY KEY (tag, no)
) WITHOUT ROWID;

-- What handlers last said of their progress.
CREATE TABLE mainspring_progress (
    no    INTEGER PRIMARY KEY,
    claim INTEGER NOT NULL,
    done  INTEGER NOT NULL,
    total INTEGER NOT NULL,
    note  TEXT NOT NULL
);

-- Nodes. `state`: 0 live, 1 retired, 2 expired. `drained` is 0 while an expired node's claims are still to be moved.
-- `lock` is the name of the file that its process keeps locked while it lives; it ends with the file's device and inode.
-- `abilities` (kinds and labels), `queues` and `activity` (what the node said of its queues at `reported_at`) are JSON.
CREATE TABLE mainspring_nodes (
    no          INTEGER PRIMARY KEY AUTOINCREMENT,
    id          BLOB NOT NULL UNIQUE,
    name        TEXT NOT NULL,
    version     TEXT NOT NULL,
    pid         INTEGER NOT NULL,
    lock        TEXT NOT NULL,
    abilities   TEXT NOT NULL,
    queues      TEXT NOT NULL,
    lease       INTEGER NOT NULL,
    started_at  INTEGER NOT NULL,
    renewed_at  INTEGER NOT NULL,
    lease_until INTEGER NOT NULL,
    state       INTEGER NOT NULL,
    drained     INTEGER NOT NULL DEFAULT 1,
    backed_up   INTEGER NOT NULL DEFAULT 0,
    reported_at INTEGER,
    activity    TEXT
);
CREATE INDEX mainspring_nodes_live ON mainspring_nodes (no) WHERE state = 0 OR drained = 0;

-- Jobs per queue and state: the sum of both tables. A caller's own transaction only appends to the second.
CREATE TABLE mainspring_counts (
    queue INTEGER NOT NULL,
    state INTEGER NOT NULL,
    n     INTEGER NOT NULL,
    PRIMARY KEY (queue, state)
) WITHOUT ROWID;
CREATE TABLE mainspring_count_deltas (
    no    INTEGER PRIMARY KEY,
    queue INTEGER NOT NULL,
    state INTEGER NOT NULL,
    n     INTEGER NOT NULL
);

-- Rules that enqueue jobs in time. Every write increments `version` and names the one that it was decided on. `next_at`: when
-- to look at it; NULL while it is paused, and once it has ended. `definition` and `state` are JSON.
CREATE TABLE mainspring_schedules (
    name       TEXT PRIMARY KEY,
    version    INTEGER NOT NULL,
    next_at    INTEGER,
    definition TEXT NOT NULL,
    state      TEXT NOT NULL
) WITHOUT ROWID;
CREATE INDEX mainspring_schedules_next ON mainspring_schedules (next_at, name) WHERE next_at IS NOT NULL;

-- Changes that people and programs made to schedules. `old` and `new` are JSON.
CREATE TABLE mainspring_audit (
    no   INTEGER PRIMARY KEY,
    at   INTEGER NOT NULL,
    who  TEXT NOT NULL,
    subject TEXT NOT NULL,
    verb TEXT NOT NULL,
    -- Who has lost the answer to a change finds it by this.
    request BLOB,
    old  TEXT,
    new  TEXT
);
CREATE INDEX mainspring_audit_subject ON mainspring_audit (subject, no);

-- How far `done` has been looked through for each distinct retention.
CREATE TABLE mainspring_retention (
    period   INTEGER PRIMARY KEY,
    position INTEGER NOT NULL
);
