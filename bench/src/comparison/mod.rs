//! Other job queues, on the same machine and the same server, in the same run: `bench queue --peers`.
//!
//! Each is a program of its own below `bench/peers`, because its database crates are not ours; `queue.rs` there says what
//! it is asked and answers. Ours is asked the same way, in a process of its own. A round is: fill an empty database and
//! drain it; on Postgres, drain a copy of it while another session holds a snapshot; then, on a new database, enqueue one
//! job at a time. Rounds go through all systems before the next begins, and every second one backwards, so that whatever
//! else the machine does meets them all.
//!
//! # Invariants
//! - A figure counts only if the jobs that it speaks of have ended by the tables of the system itself.
//! - A peer that does not build, does not end or answers wrong is reported as such.
//! - All are compared at the same durability; who asks for less is shown, and compared with nobody.

mod chart;
mod goals;
pub(crate) mod ours;
mod page;
mod results;
mod systems;

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context as _, Result, bail, ensure};
use serde_json::json;

use crate::database::{Database, Place};
use crate::program;
use crate::queue::Options;
use results::{DRAIN, HELD, Results, Row, Run};
use systems::{SYSTEMS, Setting, System};

/// Jobs of one latency measurement.
const SAMPLES: usize = 100;

/// What a program may take beyond its limit to fill up what it did not manage in time.
const REST: Duration = Duration::from_mins(2);

/// What any program may take beyond its limit, to start and to count.
const GRACE: Duration = Duration::from_secs(45);

pub(crate) fn run(options: &Options) -> Result<()> {
    let mut results = match &options.from {
        Some(path) => serde_json::from_str(&std::fs::read_to_string(path)?)?,
        None => Results::default(),
    };
    if options.from.is_none() {
        let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
        for store in options.stores() {
            let run = runtime.block_on(measure(store, options))?;
            results.stores.insert(store.to_owned(), run);
        }
    }
    if options.json {
        tell_lines(&results);
    } else {
        print!("{}", page::text(&results));
    }
    if options.write {
        page::write(results)?;
    }
    Ok(())
}

/// A system whose program is there, or why it is not.
struct Built {
    system: &'static System,
    /// Its name and version.
    shown: String,
    program: Result<PathBuf, String>,
}

fn built(system: &'static System) -> Result<Built> {
    let (version, program) = match system.folder {
        Some(folder) => (program::version(folder, system.name)?, program::build(folder, &[])?),
        None => (env!("CARGO_PKG_VERSION").to_owned(), Ok(std::env::current_exe()?)),
    };
    Ok(Built { system, shown: format!("{} {version}", system.name), program })
}

/// All rounds on one store.
async fn measure(store: &str, options: &Options) -> Result<Run> {
    let wanted = |system: &&System| {
        let named = |only: &str| system.folder.is_none() || system.name.contains(only);
        system.store == store && options.only.as_deref().is_none_or(named)
    };
    let systems: Vec<Built> = SYSTEMS.iter().filter(wanted).map(built).collect::<Result<_>>()?;
    let place = Place::new(store, options.dir.as_deref())?;
    let turns: Vec<(&Built, &Setting)> = systems
        .iter()
        .flat_map(|built| built.system.settings.iter().map(move |setting| (built, setting)))
        .collect();
    let mut rows: Vec<Row> = turns.iter().map(|(built, setting)| row(built, setting)).collect();
    for round in 0..options.rounds {
        let mut order: Vec<usize> = (0..turns.len()).collect();
        if round % 2 == 1 {
            order.reverse();
        }
        for at in order {
            let (built, setting) = turns[at];
            eprintln!(
                "{store}, round {} of {}: {} ({})",
                round + 1,
                options.rounds,
                built.shown,
                setting.name
            );
            Turn { built, setting, place: &place, options, row: &mut rows[at] }.take().await;
        }
    }
    Ok(Run {
        server: server(&place)?,
        machine: machine()?,
        jobs: options.jobs,
        rounds: options.rounds,
        limit: options.limit,
        rows,
    })
}

fn row(built: &Built, setting: &Setting) -> Row {
    Row {
        system: built.shown.clone(),
        ours: built.system.folder.is_none(),
        setting: setting.name.to_owned(),
        shown: setting.shown.to_owned(),
        note: built.system.note.to_owned(),
        relaxed: setting.relaxed,
        figures: std::collections::BTreeMap::new(),
    }
}

/// One system in one setting in one round.
struct Turn<'a> {
    built: &'a Built,
    setting: &'a Setting,
    place: &'a Place,
    options: &'a Options,
    row: &'a mut Row,
}

impl Turn<'_> {
    /// Whatever goes wrong is a result.
    async fn take(&mut self) {
        // What did not work is not tried again: a hang costs its whole limit.
        if self.row.figures.values().all(|figures| figures.error.is_none())
            && let Err(why) = self.fill_and_drain().await
        {
            self.fail("everything", &why);
        }
        if !self.row.figures.contains_key("everything")
            && self.row.figures.get(results::P50).is_none_or(|figures| figures.error.is_none())
            && let Err(why) = self.idle().await
        {
            self.fail(results::P50, &why);
        }
    }

    async fn fill_and_drain(&mut self) -> Result<()> {
        let database = self.place.database("peer")?;
        if let Err(why) = self.ask("enqueue", results::ENQUEUE, &database, self.options.jobs).await {
            self.fail(results::ENQUEUE, &why);
            return Ok(());
        }
        let waiting = database.number(self.built.system.left)?;
        ensure!(
            waiting.total_cmp(&(self.options.jobs as f64)).is_eq(),
            "{waiting} jobs are in its database instead of {}",
            self.options.jobs
        );
        database.settle()?;
        let copy = database.copy()?;
        if let Err(why) = self.drain(DRAIN, &database).await {
            self.fail(DRAIN, &why);
        }
        drop(database);
        let Some(copy) = copy else { return Ok(()) };
        let holder = copy.hold().await?;
        if let Err(why) = self.drain(HELD, &copy).await {
            self.fail(HELD, &why);
        }
        drop(holder);
        Ok(())
    }

    async fn drain(&mut self, metric: &str, database: &Database) -> Result<()> {
        let ended = self.ask("drain", metric, database, self.options.jobs).await?;
        let left = database.number(self.built.system.left)?;
        if !ended.is_some_and(|ended| ended > 0.0 && ended <= self.options.jobs as f64 - left) {
            // What the tables do not confirm is no figure.
            if let Some(figures) = self.row.figures.get_mut(metric) {
                figures.values.pop();
            }
            bail!("{left} of {} jobs have not ended by its tables", self.options.jobs);
        }
        Ok(())
    }

    async fn idle(&mut self) -> Result<()> {
        let database = self.place.database("peer-idle")?;
        self.ask("idle", results::P50, &database, SAMPLES).await?;
        Ok(())
    }

    /// Asks for one task, and notes the figures; how many jobs ended, if it says so.
    async fn ask(
        &mut self,
        task: &str,
        metric: &str,
        database: &Database,
        jobs: usize,
    ) -> Result<Option<f64>> {
        let program = self.built.program.as_ref().map_err(|why| anyhow::anyhow!("{why}"))?;
        let mut args: Vec<String> = Vec::new();
        if self.built.system.folder.is_none() {
            args.push("ours".to_owned());
        }
        args.extend([
            database.address(),
            self.setting.name.to_owned(),
            task.to_owned(),
            jobs.to_string(),
            self.options.limit.to_string(),
            self.built.system.left.to_owned(),
        ]);
        let rest = if task == "enqueue" { REST } else { Duration::ZERO };
        let limit = Duration::from_secs(self.options.limit) + GRACE + rest;
        let mut ended = None;
        let mut figures = program::ask(program, &args, limit).await?;
        figures.retain(|figure| {
            let count = figure.metric == "ended";
            if count {
                ended = Some(figure.value);
            }
            !count
        });
        ensure!(!figures.is_empty(), "answers nothing");
        for figure in figures {
            // A drain is known by what it was measured under.
            let name = if task == "drain" { metric.to_owned() } else { figure.metric };
            let all = self.row.figures.entry(name).or_default();
            all.unit = figure.unit;
            all.values.push(figure.value);
        }
        Ok(ended)
    }

    fn fail(&mut self, metric: &str, why: &anyhow::Error) {
        let text = format!("{why:#}");
        eprintln!("  {metric}: {text}");
        self.row.figures.entry(metric.to_owned()).or_default().error = Some(text);
    }
}

/// The database in words.
fn server(place: &Place) -> Result<String> {
    let Some(server) = place.server() else {
        return Ok(format!("SQLite {} for ours", mainspring_sqlite::rusqlite::version()));
    };
    let setting = |name: &str| -> Result<String> {
        let rows = server.sql("postgres", &format!("SHOW {name}"))?;
        rows.first().and_then(|row| row.first()?.clone()).context("a setting")
    };
    let words: Vec<String> =
        ["fsync", "synchronous_commit", "shared_buffers", "max_wal_size", "checkpoint_timeout"]
            .iter()
            .map(|name| Ok(format!("{name} {}", setting(name)?)))
            .collect::<Result<_>>()?;
    Ok(format!("PostgreSQL {}, {}", setting("server_version")?, words.join(", ")))
}

/// The machine in words, and how busy it was.
fn machine() -> Result<String> {
    let read = |path: &str| std::fs::read_to_string(path);
    let cpu = read("/proc/cpuinfo")?;
    let model = cpu
        .lines()
        .find_map(|line| line.strip_prefix("model name")?.split_once(':').map(|(_, it)| it.trim()));
    let memory = read("/proc/meminfo")?;
    let kib = memory
        .lines()
        .find_map(|line| line.strip_prefix("MemTotal:")?.split_whitespace().next()?.parse::<u64>().ok());
    let load = read("/proc/loadavg")?;
    Ok(format!(
        "{} cores ({}), {} GiB, load {} at the end",
        std::thread::available_parallelism()?,
        model.unwrap_or("unknown"),
        kib.unwrap_or(0) / (1 << 20),
        load.split_whitespace().next().unwrap_or("unknown"),
    ))
}

/// Everything, one JSON line per figure and per goal.
fn tell_lines(results: &Results) {
    for (store, run) in &results.stores {
        println!(
            "{}",
            json!({
                "bench": "queue", "store": store, "server": run.server, "machine": run.machine,
                "jobs": run.jobs, "rounds": run.rounds, "limit": run.limit,
            })
        );
        for row in &run.rows {
            for (metric, figures) in &row.figures {
                println!(
                    "{}",
                    json!({
                        "bench": "queue", "store": store, "system": row.system, "setting": row.setting,
                        "shown": row.shown, "note": row.note, "relaxed": row.relaxed, "metric": metric,
                        "value": figures.median(), "unit": figures.unit, "values": figures.values,
                        "least": figures.spread().map(|it| it.0), "most": figures.spread().map(|it| it.1),
                        "error": figures.error,
                    })
                );
            }
        }
    }
    for goal in goals::goals(results) {
        let best = goal.figures.as_ref();
        println!(
            "{}",
            json!({
                "bench": "queue", "goal": goal.name, "wanted": goal.wanted, "ratio": goal.ratio(), "holds": goal.holds(),
                "ours": best.map(|it| it.0), "theirs": best.map(|it| it.1), "best": best.map(|it| &it.2),
            })
        );
    }
}
