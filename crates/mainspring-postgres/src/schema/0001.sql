-- Version 1. All tables live in a schema of their own; `mainspring.` stands for it, whatever it is called.
--
-- `no` is a job's number and stands for it everywhere; numbers are never reused. A job is in exactly one place: `ready`,
-- `limited`, `timers`, `suspended`, `lease` or `done`, each unique on the job's number. A place carries what changes (priority,
-- claim, failures, crashes); `jobs` is never updated. Durations are whole microseconds.
--
-- `flags` of a place: 1 the job has a unique key, 2 it has a deadline, 4 its key is released at its first claim, 8 it has
-- recorded something or been sent something, 16 it has children, 32 it has a parent, 128 it has limits, 256 it keeps what its last
-- claim took of them. A plain job has none and touches no side table.
--
-- Every table has a primary key, so that a publication for all tables of the database can replicate it.

DO $$ BEGIN
    -- IF NOT EXISTS would ask for the right to create schemas even where there is nothing to create.
    IF to_regnamespace('mainspring') IS NULL THEN CREATE SCHEMA mainspring; END IF;
END $$;

-- Version, lowest version that may write here, fingerprints of the migrations, and the store's own id.
CREATE TABLE mainspring.meta (
    key   text PRIMARY KEY,
    value text NOT NULL
);

-- Queues that were ever named, with their settings. `retain_…`: how long ended jobs are kept. One that is `deleted` has no
-- settings, and is there again while it has jobs; its row stays, because lines refer to it.
CREATE TABLE mainspring.queues (
    no               integer GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    name             text COLLATE "C" NOT NULL UNIQUE,
    paused           boolean NOT NULL DEFAULT false,
    backoff          text,
    retain_succeeded bigint NOT NULL,
    retain_failed    bigint NOT NULL,
    deleted          boolean NOT NULL DEFAULT false
);

CREATE TABLE mainspring.kinds (
    no   integer GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    name text COLLATE "C" NOT NULL UNIQUE
);

-- Jobs of one queue, one kind and one set of required labels: a node can run all of a line or nothing of it.
-- `labels` is a JSON array, sorted.
CREATE TABLE mainspring.lines (
    no     integer GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    queue  integer NOT NULL,
    kind   integer NOT NULL,
    labels text COLLATE "C" NOT NULL,
    UNIQUE (queue, kind, labels)
);

CREATE SEQUENCE mainspring.job_numbers;

-- What a job is: written once. `options` is NULL for the defaults.
CREATE TABLE mainspring.jobs (
    no         bigint PRIMARY KEY,
    id         uuid NOT NULL UNIQUE,
    created_at timestamptz NOT NULL,
    deadline   timestamptz,
    line       integer NOT NULL,
    priority   smallint NOT NULL,
    options    jsonb,
    input      bytea NOT NULL
);

-- Place: waits for a node. `level` is class and priority in one number: low is claimed first. `crashed` is the longest of
-- the job's claims that ended with the loss of a node.
CREATE TABLE mainspring.ready (
    no       bigint PRIMARY KEY,
    ready_at timestamptz NOT NULL,
    crashed  bigint NOT NULL,
    line     integer NOT NULL,
    claim    integer NOT NULL,
    level    smallint NOT NULL,
    failures smallint NOT NULL,
    crashes  smallint NOT NULL,
    flags    smallint NOT NULL
);
CREATE INDEX ready_claim ON mainspring.ready (line, level, ready_at, no);

-- Place: waits for room at its limits. What `ready` has, and its group.
CREATE TABLE mainspring.limited (
    no          bigint PRIMARY KEY,
    ready_at    timestamptz NOT NULL,
    crashed     bigint NOT NULL,
    line        integer NOT NULL,
    limit_group integer NOT NULL,
    claim       integer NOT NULL,
    level       smallint NOT NULL,
    failures    smallint NOT NULL,
    crashes     smallint NOT NULL,
    flags       smallint NOT NULL
);
CREATE INDEX limited_claim ON mainspring.limited (limit_group, level, ready_at, no);

-- Place: waits for a time.
CREATE TABLE mainspring.timers (
    no       bigint PRIMARY KEY,
    due      timestamptz NOT NULL,
    crashed  bigint NOT NULL,
    line     integer NOT NULL,
    claim    integer NOT NULL,
    priority smallint NOT NULL,
    failures smallint NOT NULL,
    crashes  smallint NOT NULL,
    flags    smallint NOT NULL
);
CREATE INDEX timers_due ON mainspring.timers (due, no);

-- Place: waits for something outside; `reason` says for what, and up to 5 what it waits for wakes it. `due` is the time
-- that wakes it, or, of a job that was held, the time that it waited for before. `waits`: the messages that wake it, as
-- pairs of a subject and how many unread ones are needed.
CREATE TABLE mainspring.suspended (
    no       bigint PRIMARY KEY,
    due      timestamptz,
    crashed  bigint NOT NULL,
    line     integer NOT NULL,
    claim    integer NOT NULL,
    priority smallint NOT NULL,
    reason   smallint NOT NULL,
    failures smallint NOT NULL,
    crashes  smallint NOT NULL,
    flags    smallint NOT NULL,
    waits    jsonb,
    note     text
);
CREATE INDEX suspended_due ON mainspring.suspended (due, no) WHERE reason <= 5 AND due IS NOT NULL;

-- Place: claimed by a node. `cancel` is set while its node is asked to stop it, and says why. `stuck`: 1 its handler does not
-- yield, 2 it awaits something that is not durable. `units`: the limit keys of which the claim has taken, each as often as units;
-- NULL if none.
CREATE TABLE mainspring.lease (
    no         bigint PRIMARY KEY,
    claimed_at timestamptz NOT NULL,
    batch      bigint NOT NULL,
    crashed    bigint NOT NULL,
    line       integer NOT NULL,
    claim      integer NOT NULL,
    node       integer NOT NULL,
    priority   smallint NOT NULL,
    failures   smallint NOT NULL,
    crashes    smallint NOT NULL,
    flags      smallint NOT NULL,
    stuck      smallint NOT NULL DEFAULT 0,
    cancel     text,
    units      bigint[]
);
-- Renewals look for flagged claims only; there is no index on `node` alone, because every claim would pay for it.
CREATE INDEX lease_cancel ON mainspring.lease (node) WHERE cancel IS NOT NULL;

-- Place: has ended. `bad` says which retention applies; of the flags only those above 4 are kept. `claimed_at` and `node`: when the
-- claim that ended it began, and whose it was; NULL if the job ended while it waited.
CREATE TABLE mainspring.done (
    no          bigint PRIMARY KEY,
    finished_at timestamptz NOT NULL,
    claimed_at  timestamptz,
    line        integer NOT NULL,
    claim       integer NOT NULL,
    node        integer,
    state       smallint NOT NULL,
    reason      smallint,
    priority    smallint NOT NULL,
    failures    smallint NOT NULL,
    crashes     smallint NOT NULL,
    flags       smallint NOT NULL DEFAULT 0,
    bad         boolean NOT NULL,
    note        text,
    result      bytea
);
CREATE INDEX done_kept ON mainspring.done (line, bad, finished_at);
-- Jobs that did not end well are rare and asked for often (5 is `succeeded`).
CREATE INDEX done_rare ON mainspring.done (state, no) WHERE state <> 5;

-- Ends of jobs that an operator ran again: a repeated outcome is known by them.
CREATE TABLE mainspring.superseded (
    no          bigint NOT NULL,
    seq         bigint GENERATED ALWAYS AS IDENTITY,
    finished_at timestamptz NOT NULL,
    claimed_at  timestamptz,
    claim       integer NOT NULL,
    node        integer,
    state       smallint NOT NULL,
    reason      smallint,
    PRIMARY KEY (no, seq)
);

-- What went wrong, per claim, which began at `claimed_at` on `node`: failures, and losses of nodes (kind 5). Bounded per job.
CREATE TABLE mainspring.errors (
    no         bigint NOT NULL,
    at         timestamptz NOT NULL,
    claimed_at timestamptz NOT NULL,
    claim      integer NOT NULL,
    node       integer NOT NULL,
    kind       smallint NOT NULL,
    message    text NOT NULL,
    PRIMARY KEY (no, claim)
);

-- Journals: what handlers have recorded and do not do again, in the order of `seq`. An entry never changes. `took`: how long the
-- operation's body ran, in milliseconds; NULL if it has none.
CREATE TABLE mainspring.steps (
    no         bigint NOT NULL,
    seq        bigint GENERATED ALWAYS AS IDENTITY,
    at         timestamptz NOT NULL,
    claim      integer NOT NULL,
    took       integer,
    kind       smallint NOT NULL,
    overlapped boolean NOT NULL,
    key        text COLLATE "C" NOT NULL,
    value      bytea NOT NULL,
    PRIMARY KEY (no, key)
);

-- Messages to jobs: signals (`s:name`, with a sender), and the ends of children (`c:id`), which have a state. Whoever adds
-- one holds the job's mailbox lock, so `seq` becomes visible in its order. One that has been read stays, so that it is
-- known if it is sent again.
CREATE TABLE mainspring.inbox (
    no     bigint NOT NULL,
    seq    bigint GENERATED ALWAYS AS IDENTITY,
    at     timestamptz NOT NULL,
    state  smallint,
    reason smallint,
    read   boolean NOT NULL DEFAULT false,
    subject  text COLLATE "C" NOT NULL,
    sender text COLLATE "C" NOT NULL,
    note   text,
    body   bytea,
    PRIMARY KEY (no, subject, sender)
);
CREATE INDEX inbox_unread ON mainspring.inbox (no, seq) WHERE NOT read;
CREATE INDEX inbox_read ON mainspring.inbox (no, seq) WHERE read AND state IS NULL;

-- Output: what handlers say while they run. `position` counts per job, `number` per claim; `before` is how many bytes the
-- job had said before. Without a body it is a reset: what that step (NULL: the handler itself) had said is void, from
-- `void_from` on. The last rows of a job are kept.
CREATE TABLE mainspring.output (
    no        bigint NOT NULL,
    position  bigint NOT NULL,
    at        timestamptz NOT NULL,
    before    bigint NOT NULL,
    void_from bigint,
    number    bigint NOT NULL,
    claim     integer NOT NULL,
    step      text COLLATE "C",
    body      bytea,
    PRIMARY KEY (no, position)
);

-- Jobs that were started by others. `on_close`: 0 it is cancelled when its parent ends, 1 it goes on.
CREATE TABLE mainspring.children (
    no       bigint PRIMARY KEY,
    parent   bigint NOT NULL,
    on_close smallint NOT NULL
);
CREATE INDEX children_parent ON mainspring.children (parent, no);

-- Jobs of families that have ended, and whose families have not been told yet: rows live for milliseconds.
CREATE TABLE mainspring.ends (
    no    bigint PRIMARY KEY,
    at    timestamptz NOT NULL,
    flags smallint NOT NULL
);

-- Unique keys that are held. `until`: 0 first claim, 1 end, 2 `period` after the end. `expires_at` is set at the end.
-- A key can outlive its job's rows, so it names the job by id as well.
CREATE TABLE mainspring.keys (
    kind       integer NOT NULL,
    key        text COLLATE "C" NOT NULL,
    no         bigint NOT NULL,
    period     bigint NOT NULL,
    expires_at timestamptz,
    id         uuid NOT NULL,
    until      smallint NOT NULL,
    PRIMARY KEY (kind, key)
);
CREATE INDEX keys_no ON mainspring.keys (no);
CREATE INDEX keys_expiry ON mainspring.keys (expires_at) WHERE expires_at IS NOT NULL;

-- Deadlines of jobs that have not ended.
CREATE TABLE mainspring.deadlines (
    no bigint PRIMARY KEY,
    at timestamptz NOT NULL
);
CREATE INDEX deadlines_at ON mainspring.deadlines (at, no);

CREATE TABLE mainspring.tags (
    tag text COLLATE "C" NOT NULL,
    no  bigint NOT NULL,
    PRIMARY KEY (tag, no)
);
CREATE INDEX tags_no ON mainspring.tags (no);

-- What handlers last said of their progress.
CREATE TABLE mainspring.progress (
    no    bigint PRIMARY KEY,
    done  bigint NOT NULL,
    total bigint NOT NULL,
    claim integer NOT NULL,
    note  text NOT NULL
);

-- Nodes. `state`: 0 live, 1 retired, 2 expired. `drained` is false while an expired node's claims are still to be moved.
-- `settlements` counts how often the lost answer to a claim was settled: a claim that was sent before that claims nothing.
-- `activity` is what the node said of its queues at `reported_at`.
CREATE TABLE mainspring.nodes (
    no          integer GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    id          uuid NOT NULL UNIQUE,
    started_at  timestamptz NOT NULL,
    renewed_at  timestamptz NOT NULL,
    lease_until timestamptz NOT NULL,
    lease       bigint NOT NULL,
    pid         bigint NOT NULL,
    settlements integer NOT NULL DEFAULT 0,
    state       smallint NOT NULL DEFAULT 0,
    drained     boolean NOT NULL DEFAULT true,
    backed_up   boolean NOT NULL DEFAULT false,
    name        text NOT NULL,
    version     text NOT NULL,
    abilities   jsonb NOT NULL,
    queues      jsonb NOT NULL,
    reported_at timestamptz,
    activity    jsonb
) WITH (fillfactor = 50);

-- Jobs per line and state: the sum of both tables. Whoever moves jobs only appends to the second, so that nobody waits
-- for anybody; from time to time it is folded into the first.
CREATE TABLE mainspring.counts (
    line  integer NOT NULL,
    state smallint NOT NULL,
    n     bigint NOT NULL,
    PRIMARY KEY (line, state)
);
CREATE TABLE mainspring.count_deltas (
    no    bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    n     bigint NOT NULL,
    line  integer NOT NULL,
    state smallint NOT NULL
);

-- Rules that enqueue jobs in time. Every write increments `version` and names the one that it was decided on. `next_at`: when
-- to look at it; NULL while it is paused, and once it has ended.
CREATE TABLE mainspring.schedules (
    name       text COLLATE "C" PRIMARY KEY,
    version    bigint NOT NULL,
    next_at    timestamptz,
    definition json NOT NULL,
    state      json NOT NULL
) WITH (fillfactor = 50);
CREATE INDEX schedules_next ON mainspring.schedules (next_at, name) WHERE next_at IS NOT NULL;

-- Changes that people and programs made to schedules.
CREATE TABLE mainspring.audit (
    no   bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    at   timestamptz NOT NULL,
    who  text NOT NULL,
    subject text COLLATE "C" NOT NULL,
    verb text NOT NULL,
    -- Who has lost the answer to a change finds it by this.
    request uuid,
    old  json,
    new  json
);
CREATE INDEX audit_subject ON mainspring.audit (subject, no);

-- Limits: how many claims at once (`max`, NULL: any number), and how fast (a token each `interval` microseconds, `burst` of them
-- at once; NULL: as fast as it goes). `scope`: 0 a limit that jobs name, 1 the total of a queue, 2 of a kind, each by its name.
-- `definition` is JSON, and what the other columns are read from. `swept` is false while blocked groups have not heard of a change
-- yet. One that is `deleted` admits everybody; its row stays, because keys refer to it.
CREATE TABLE mainspring.limits (
    no       integer GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    scope    smallint NOT NULL,
    max      integer,
    interval bigint,
    burst    integer,
    paused   boolean NOT NULL DEFAULT false,
    deleted  boolean NOT NULL DEFAULT false,
    swept    boolean NOT NULL DEFAULT true,
    name     text COLLATE "C" NOT NULL,
    definition json,
    UNIQUE (scope, name)
);
CREATE INDEX limits_unswept ON mainspring.limits (no) WHERE NOT swept;

-- Keys of limits, each with its counters: `in_use` units, and when its bucket of tokens is full again (`next_free`, microseconds).
-- `max` and `paused` are this key's own. `due`: only time is missing to some of those that are blocked here, up to then. So many
-- groups are `blocked` here, all of one `line` or (0) of several, between `head` and `tail`. Every write increments `hits`, and `generation` is one in so many of those: the newest
-- row is found from the end, so that old versions, which somebody's old snapshot may keep, are not walked over.
CREATE TABLE mainspring.limit_keys (
    no         bigint GENERATED ALWAYS AS IDENTITY,
    generation bigint NOT NULL DEFAULT 0,
    hits       bigint NOT NULL DEFAULT 0,
    head       bigint NOT NULL DEFAULT 0,
    tail       bigint NOT NULL DEFAULT 0,
    next_free  bigint,
    due        timestamptz,
    used_at    timestamptz NOT NULL,
    limit_no   integer NOT NULL,
    in_use     integer NOT NULL DEFAULT 0,
    blocked    integer NOT NULL DEFAULT 0,
    line       integer NOT NULL DEFAULT 0,
    max        integer,
    paused     boolean NOT NULL DEFAULT false,
    key        text COLLATE "C" NOT NULL,
    PRIMARY KEY (no, generation),
    UNIQUE (limit_no, key)
) WITH (fillfactor = 60);
CREATE INDEX limit_keys_due ON mainspring.limit_keys (due, no) WHERE due IS NOT NULL;

-- Limited jobs of one line that take the same units of the same limit keys: `units` has each key as often as units, in order.
CREATE TABLE mainspring.limit_groups (
    no      integer GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    used_at timestamptz NOT NULL,
    line    integer NOT NULL,
    units   bigint[] NOT NULL,
    UNIQUE (line, units)
);
CREATE INDEX limit_groups_units ON mainspring.limit_groups USING gin (units);

-- The groups of limited jobs, wherever those are.
CREATE TABLE mainspring.limited_jobs (
    no          bigint PRIMARY KEY,
    limit_group integer NOT NULL
);
CREATE INDEX limited_jobs_group ON mainspring.limited_jobs (limit_group);

-- Turns: a group may have a job of this level, or of a lower one of the same class, to claim. Rows are inserted and deleted.
CREATE TABLE mainspring.group_turns (
    line        integer NOT NULL,
    level       smallint NOT NULL,
    at          timestamptz NOT NULL,
    no          bigint GENERATED ALWAYS AS IDENTITY,
    limit_group integer NOT NULL,
    PRIMARY KEY (line, level, at, no)
);
-- Turns that wait at a limit key until it has room for `units`.
CREATE TABLE mainspring.blocked_groups (
    limit_key   bigint NOT NULL,
    seq         bigint NOT NULL,
    line        integer NOT NULL,
    limit_group integer NOT NULL,
    level       smallint NOT NULL,
    units       smallint NOT NULL,
    PRIMARY KEY (limit_key, line, seq)
);

-- Units that suspended jobs keep, and those of ended claims and jobs that are not counted as free yet: such a row seldom
-- outlives its transaction.
CREATE TABLE mainspring.kept_units (
    no    bigint PRIMARY KEY,
    units bigint[] NOT NULL
);
CREATE INDEX kept_units_units ON mainspring.kept_units USING gin (units);
CREATE TABLE mainspring.returned_units (
    no    bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    units bigint[] NOT NULL
);

-- Rows of these tables live for seconds. The server's defaults would let as many dead rows gather as there are live jobs.
ALTER TABLE mainspring.ready SET (autovacuum_vacuum_scale_factor = 0.01, autovacuum_vacuum_threshold = 10000);
ALTER TABLE mainspring.lease SET (autovacuum_vacuum_scale_factor = 0.01, autovacuum_vacuum_threshold = 10000);
ALTER TABLE mainspring.timers SET (autovacuum_vacuum_scale_factor = 0.01, autovacuum_vacuum_threshold = 10000);
ALTER TABLE mainspring.suspended SET (autovacuum_vacuum_scale_factor = 0.01, autovacuum_vacuum_threshold = 10000);
ALTER TABLE mainspring.ends SET (autovacuum_vacuum_scale_factor = 0.01, autovacuum_vacuum_threshold = 1000);
ALTER TABLE mainspring.count_deltas SET (autovacuum_vacuum_scale_factor = 0.01, autovacuum_vacuum_threshold = 10000);
ALTER TABLE mainspring.limited SET (autovacuum_vacuum_scale_factor = 0.01, autovacuum_vacuum_threshold = 10000);
ALTER TABLE mainspring.group_turns SET (autovacuum_vacuum_scale_factor = 0.01, autovacuum_vacuum_threshold = 10000);
ALTER TABLE mainspring.blocked_groups SET (autovacuum_vacuum_scale_factor = 0.01, autovacuum_vacuum_threshold = 10000);
ALTER TABLE mainspring.returned_units SET (autovacuum_vacuum_scale_factor = 0.01, autovacuum_vacuum_threshold = 1000);
