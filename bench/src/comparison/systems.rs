//! The queues that are measured, what a reader must know of each, and how each is set up.

/// A queue on one store.
pub(crate) struct System {
    /// The folder of its program below `bench/peers`; none for ours, whose program is this one.
    pub(crate) folder: Option<&'static str>,
    /// The crate whose version is shown.
    pub(crate) name: &'static str,
    pub(crate) store: &'static str,
    /// Counts the jobs that have not ended.
    pub(crate) left: &'static str,
    /// What it does more or less than others.
    pub(crate) note: &'static str,
    pub(crate) settings: &'static [Setting],
}

/// How a queue is set up.
pub(crate) struct Setting {
    /// What its program calls it.
    pub(crate) name: &'static str,
    /// What a reader needs to know.
    pub(crate) shown: &'static str,
    /// Whether a power cut may take what was acknowledged.
    pub(crate) relaxed: bool,
}

/// As the documentation starts a new user.
const fn start(shown: &'static str) -> Setting {
    Setting { name: "start", shown, relaxed: false }
}

/// As well as we could set it up.
const fn tuned(shown: &'static str) -> Setting {
    Setting { name: "tuned", shown, relaxed: false }
}

/// The same, where that loses what was acknowledged in a power cut.
const fn relaxed_start(shown: &'static str) -> Setting {
    Setting { name: "start", shown, relaxed: true }
}

pub(crate) static SYSTEMS: [System; 10] = [
    System {
        folder: None,
        name: "mainspring",
        store: "postgres",
        left: "SELECT (SELECT count(*) FROM mainspring.jobs) - (SELECT count(*) FROM mainspring.done WHERE state = 5)",
        note: "keeps ended jobs with their outcome; fenced claims, counts and hooks are on",
        settings: &[start("10 slots"), tuned("64 slots")],
    },
    System {
        folder: Some("riverqueue"),
        name: "riverqueue",
        store: "postgres",
        left: "SELECT count(*) FROM river_job WHERE state <> 'completed'",
        note: "keeps ended jobs for a day; inserts row by row inside one transaction per call",
        settings: &[
            start("10 workers, pool of 10, fetch cool-down 100 ms, polls every second"),
            tuned(
                "5,000 workers, pool of 16, fetch cool-down 1 ms, polls every 5 ms (20 ms when idle), 8 inserting calls of 1,000 at once",
            ),
        ],
    },
    System {
        folder: Some("graphile-worker"),
        name: "graphile_worker",
        store: "postgres",
        left: "SELECT count(*) FROM graphile_worker._private_jobs",
        note: "deletes ended jobs: no history, no result; a batch of outcomes that is being collected is lost with its process, and its jobs run again",
        settings: &[
            start("concurrency 5, pool of 10, polls every second, 1,000 jobs per call"),
            tuned(
                "concurrency 64, pool of 16, 4 local queues of 500 (none when idle), outcomes collected for 2 ms, polls every 50 ms, 5,000 jobs per call",
            ),
        ],
    },
    System {
        folder: Some("apalis"),
        name: "apalis-postgres",
        store: "postgres",
        left: "SELECT count(*) FROM apalis.jobs WHERE status <> 'Done'",
        note: "keeps ended jobs; stores outcomes in batches; without a strategy of its own a worker that has nothing to do looks every 30 s",
        settings: &[
            start("batch of 10, pool of 10"),
            tuned("batch of 500, handlers in tasks, no lock of its own per job, told by NOTIFY, pool of 16"),
        ],
    },
    System {
        folder: Some("forge-jobs"),
        name: "forge-jobs",
        store: "postgres",
        left: "SELECT count(*) FROM sync_queue WHERE status <> 'done'",
        note: "keeps ended jobs, their events and figures per minute; inserts row by row inside one transaction per call",
        settings: &[start("2 workers, pool of 30"), tuned("32 workers, pool of 40")],
    },
    System {
        folder: Some("awa"),
        name: "awa",
        store: "postgres",
        // Rows of `ready_entries` stay until their whole partition has ended and goes.
        left: "SELECT (SELECT count(*) FROM awa.ready_entries) - (SELECT count(*) FROM awa.done_entries)
            - (SELECT coalesce(sum(cardinality(job_ids)), 0)::bigint FROM awa.receipt_completion_batches)",
        note: "keeps ended jobs in partitions that rotate, outcomes in arrays",
        settings: &[
            start("50 workers, pool of 10, polls every 200 ms, 500 jobs per inserting call"),
            tuned(
                "2,048 workers, 2 claimers, pool of 16, no deadline, polls every 5 ms (50 ms when idle), COPY of 5,000 jobs",
            ),
        ],
    },
    System {
        folder: None,
        name: "mainspring",
        store: "sqlite",
        left: "SELECT (SELECT count(*) FROM mainspring_jobs) - (SELECT count(*) FROM mainspring_done WHERE state = 5)",
        note: "keeps ended jobs with their outcome; fenced claims, counts and hooks are on",
        settings: &[start("10 slots, synchronous FULL"), tuned("64 slots, synchronous FULL")],
    },
    System {
        folder: Some("riverqueue"),
        name: "riverqueue",
        store: "sqlite",
        left: "SELECT count(*) FROM river_job WHERE state <> 'completed'",
        note: "keeps ended jobs for a day",
        settings: &[
            start("4 workers, pool of 5, fetch cool-down 100 ms, polls every second, WAL, synchronous FULL"),
            tuned(
                "5,000 workers, pool of 2, fetch cool-down 1 ms, polls every 5 ms (20 ms when idle), WAL, synchronous FULL",
            ),
        ],
    },
    System {
        folder: Some("apalis"),
        name: "apalis-sqlite",
        store: "sqlite",
        left: "SELECT count(*) FROM Jobs WHERE status <> 'Done'",
        note: "as on Postgres; its set-up turns `synchronous` off on the connection that it gets",
        settings: &[
            relaxed_start(
                "batch of 10, pool of 10, WAL, synchronous OFF on one connection and FULL on the others",
            ),
            tuned(
                "batch of 500, handlers in tasks, no lock of its own per job, told by its hook, looks every 5 ms, \
                pool of 10, WAL, synchronous FULL",
            ),
        ],
    },
    System {
        folder: Some("forge-jobs"),
        name: "forge-jobs",
        store: "sqlite",
        left: "SELECT count(*) FROM sync_queue WHERE status <> 'done'",
        note: "keeps ended jobs, their events and figures per minute; sets up its connections itself",
        settings: &[start("2 workers, WAL, synchronous FULL"), tuned("8 workers, WAL, synchronous FULL")],
    },
];
