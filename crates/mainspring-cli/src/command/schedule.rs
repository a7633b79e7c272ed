//! `schedule`: see schedules, define, pause and resume them, run them by hand.

use clap::Subcommand;
use mainspring::admin::Node;
use mainspring::schedule::{Definition, Missed, NewSchedule, Overlap, Schedule};
use mainspring::time::{Span, Timestamp};
use mainspring::{Engine, Error};
use serde_json::{Value, json};

use crate::output::Out;
use crate::report::Refused;
use crate::text;
use crate::time_point::TimePoint;

/// What it takes.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(subcommand)]
    action: Action,
    /// Who makes the change, for the audit. By default the user of the operating system.
    #[arg(long = "as", value_name = "NAME", global = true)]
    who: Option<String>,
}

impl Args {
    /// Whether it sets a schedule, which it tries on a store in memory first: what is wrong with it is told before a store is
    /// created for it.
    pub(crate) async fn rehearse(&self) -> anyhow::Result<bool> {
        let Action::Set(set) = &self.action else { return Ok(false) };
        let stage = Engine::open("memory:").await?;
        stage.schedules().set(set.schedule(&stage)?).await?;
        Ok(true)
    }
}

/// What can be done with schedules.
#[derive(Debug, Subcommand)]
enum Action {
    /// List all schedules with their next fires.
    List,
    /// Show everything about a schedule, and its changes.
    Show {
        /// The schedule.
        name: String,
    },
    /// Show the one reason that a schedule is not firing now.
    Why {
        /// The schedule.
        name: String,
    },
    /// Create or replace a schedule. Code does not overwrite it.
    Set(Box<Set>),
    /// Stop a schedule from firing. Its jobs continue.
    Pause {
        /// The schedule.
        name: String,
        /// Why, for the audit and for `why`.
        #[arg(long, default_value = "")]
        note: String,
    },
    /// Let a schedule fire again, from now on. It skips the fires of the pause.
    Resume {
        /// The schedule.
        name: String,
    },
    /// Enqueue a job of a schedule now, even if the schedule is paused.
    Run {
        /// The schedule.
        name: String,
        /// Even if its last job has not ended and the schedule does not allow overlap.
        #[arg(long)]
        force: bool,
    },
    /// Enqueue a job for each fire between two times, both included: at most 1,000.
    Backfill {
        /// The schedule.
        name: String,
        /// The first time, such as 2026-11-15T08:30:00Z, or a duration ago.
        #[arg(long, value_name = "WHEN")]
        from: TimePoint,
        /// The last time, or a duration ago.
        #[arg(long, value_name = "WHEN")]
        to: TimePoint,
    },
    /// Show when a schedule fires next.
    Next {
        /// The schedule.
        name: String,
        /// How many times, at most 1,000.
        #[arg(short = 'n', long, value_name = "N", default_value_t = 10)]
        count: usize,
    },
    /// Delete a schedule. Its jobs stay. Code that names the schedule creates it again.
    Delete {
        /// The schedule.
        name: String,
    },
}

/// What a schedule does, and when.
#[derive(Debug, clap::Args)]
struct Set {
    /// The schedule.
    name: String,
    /// The kind of the jobs.
    kind: String,
    /// The input of its jobs, as JSON. In its texts, `{{fire}}` stands for the time of the fire, `{{last}}` for the time of the
    /// previous fire, `{{schedule}}` for the name.
    #[arg(default_value = "null")]
    input: String,
    /// When it fires: a cron expression of five or six fields, `@daily`, or `every 5m`. Several add up.
    #[arg(long = "at", value_name = "TIMES", required = true)]
    at: Vec<String>,
    /// When it does not fire: a day, days such as 2026-12-24..2027-01-01, or a cron expression.
    #[arg(long, value_name = "TIMES")]
    except: Vec<String>,
    /// The time zone, such as Europe/Berlin.
    #[arg(long, default_value = "UTC")]
    zone: String,
    /// The schedule does not fire before this: a time, or a duration from now.
    #[arg(long, value_name = "WHEN")]
    from: Option<TimePoint>,
    /// The schedule does not fire after this: a time, or a duration from now.
    #[arg(long, value_name = "WHEN")]
    until: Option<TimePoint>,
    /// How many jobs the schedule enqueues in all.
    #[arg(long, value_name = "N")]
    count: Option<u64>,
    /// Fire later by less than this, always by the same amount.
    #[arg(long, value_name = "SPAN")]
    jitter: Option<Span>,
    /// What the schedule does about missed fires: `skip`, `once` (one job for all), `all` or `all:N` (the latest, a job each).
    #[arg(long, default_value = "once")]
    missed: Missed,
    /// How late a fire may be before it counts as missed.
    #[arg(long, value_name = "SPAN")]
    grace: Option<Span>,
    /// What happens while the last job has not ended: `allow`, `skip` or `cancel`.
    #[arg(long, default_value = "allow")]
    overlap: Overlap,
    /// Pause once one of its jobs has failed.
    #[arg(long)]
    pause_on_failure: bool,
    /// The queue of its jobs.
    #[arg(long, value_name = "NAME", default_value = "default")]
    queue: String,
    /// The priority of its jobs, from 0 (claimed first) to 9 (last).
    #[arg(long, value_name = "N", default_value_t = 5)]
    priority: u8,
    /// A word to find its jobs by; up to 15.
    #[arg(long)]
    tag: Vec<String>,
}

pub(crate) async fn run(args: Args, engine: &Engine, out: Out) -> anyhow::Result<()> {
    let schedules = || engine.schedules().by(args.who.clone().unwrap_or_else(user));
    let (schedule, what) = match args.action {
        Action::List => return list(engine, out).await,
        Action::Show { name } => return show(engine, &name, out).await,
        Action::Why { name } => {
            let why = schedules().why(&name).await?;
            let shape = || {
                let mut value = json!(why);
                value["schedule"] = name.clone().into();
                value["text"] = why.to_string().into();
                value
            };
            out.either(shape, || text::plain(&why.to_string()))?;
            return Ok(());
        }
        Action::Next { name, count } => {
            let fires = schedules().next(&name, count).await?;
            let texts: Vec<String> = fires.iter().map(ToString::to_string).collect();
            let none =
                || if texts.is_empty() { "it does not fire any more".to_owned() } else { texts.join("\n") };
            out.either(|| json!({ "schedule": name, "next": texts }), none)?;
            return Ok(());
        }
        Action::Run { name, force } => {
            let job =
                if force { schedules().run_forced(&name).await? } else { schedules().run(&name).await? };
            let shape = || json!({ "schedule": name, "jobs": [job.to_string()] });
            out.either(shape, || job.to_string())?;
            return Ok(());
        }
        Action::Backfill { name, from, to } => {
            let now = engine.seams().clock.now();
            let jobs = schedules().backfill(&name, from.back(now), to.back(now)).await?;
            let ids: Vec<String> = jobs.iter().map(ToString::to_string).collect();
            let shape = || json!({ "schedule": name, "jobs": ids });
            out.either(shape, || format!("schedule {name}: {} jobs enqueued", ids.len()))?;
            return Ok(());
        }
        Action::Delete { name } => {
            if !schedules().delete(&name).await? {
                return Err(Error::NoSchedule(name.parse()?).into());
            }
            let shape = || json!({ "schedule": name, "deleted": true });
            out.either(shape, || format!("schedule {name}: deleted"))?;
            return Ok(());
        }
        Action::Pause { name, note } => (schedules().pause(&name, &note).await?, "paused; its jobs continue"),
        Action::Resume { name } => (schedules().resume(&name).await?, "resumed"),
        Action::Set(set) => (schedules().set(set.schedule(engine)?).await?, "set"),
    };
    let next = schedule.next_at.map_or_else(String::new, |at| format!("; it fires next at {at}"));
    let line =
        || format!("schedule {}: {what}{next}\n  {}", schedule.name, schedule.definition.rule.describe());
    out.either(|| shape(&schedule, &[]), line)?;
    Ok(())
}

/// The user of the operating system.
pub(super) fn user() -> String {
    let named = ["USER", "LOGNAME"].iter().find_map(|name| std::env::var(name).ok());
    named.filter(|name| !name.is_empty()).unwrap_or_else(|| "command line".to_owned())
}

impl Set {
    fn schedule(&self, engine: &Engine) -> anyhow::Result<NewSchedule> {
        let now = engine.seams().clock.now();
        let input: Value = serde_json::from_str(&self.input).map_err(|error| {
            Refused::usage(
                format!("the input is not JSON: {error}"),
                "quote it for the shell: '{\"day\":\"{{fire}}\"}'",
            )
        })?;
        let mut schedule = NewSchedule::json(&self.name, &self.kind, input)
            .zone(&self.zone)
            .missed(self.missed)
            .overlap(self.overlap)
            .queue(&self.queue)
            .priority(self.priority);
        for times in &self.at {
            schedule = schedule.times(times);
        }
        for except in &self.except {
            schedule = schedule.except(except);
        }
        for tag in &self.tag {
            schedule = schedule.tag(tag);
        }
        if let Some(from) = self.from {
            schedule = schedule.from(from.ahead().resolve(now));
        }
        if let Some(until) = self.until {
            schedule = schedule.until(until.ahead().resolve(now));
        }
        if let Some(count) = self.count {
            schedule = schedule.count(count);
        }
        if let Some(jitter) = self.jitter {
            schedule = schedule.jitter(jitter.0);
        }
        if let Some(grace) = self.grace {
            schedule = schedule.grace(grace.0);
        }
        Ok(if self.pause_on_failure { schedule.pause_on_failure() } else { schedule })
    }
}

/// In one word, how a schedule is.
fn word(schedule: &Schedule, nodes: &[Node]) -> &'static str {
    if schedule.state.paused.is_some() {
        "paused"
    } else if schedule.has_ended() {
        "ended"
    } else if schedule.state.error.is_some() {
        "failing"
    } else if schedule.is_orphan(nodes) {
        "orphan"
    } else {
        "active"
    }
}

fn shape(schedule: &Schedule, nodes: &[Node]) -> Value {
    let time = |at: Option<Timestamp>| at.map(|at| at.to_string());
    let state = &schedule.state;
    json!({
        "schedule": schedule.name,
        "state": word(schedule, nodes),
        "text": schedule.definition.rule.describe(),
        "next_at": time(schedule.next_at),
        "last_fire": time((state.fired > 0).then_some(state.last_fire)),
        "last_job": state.last_job.map(|job| job.to_string()),
        "fired": state.fired,
        "definition": json!(schedule.definition),
        "paused": state.paused.as_ref().map(|it| json!({ "at": it.at.to_string(), "by": it.by, "note": it.note })),
        "note": state.note.as_ref().map(|it| json!({ "at": it.at.to_string(), "text": it.text })),
        "error": state.error.as_ref().map(|it| json!({ "at": it.at.to_string(), "text": it.text, "times": it.times })),
        "code": state.seed.as_ref().map(|it| json!({ "revision": it.revision, "by": it.by, "seen": it.seen.to_string() })),
        "edited_by": state.edited_by,
    })
}

async fn list(engine: &Engine, out: Out) -> anyhow::Result<()> {
    let (schedules, nodes) = (engine.schedules().list().await?, engine.nodes().await?);
    if out.is_json() {
        let schedules: Vec<Value> = schedules.iter().map(|schedule| shape(schedule, &nodes)).collect();
        out.value(&json!({ "schedules": schedules }))?;
        return Ok(());
    }
    if schedules.is_empty() {
        out.line("no schedules yet: `mainspring schedule set` makes one, and so does code")?;
        return Ok(());
    }
    let now = engine.seams().clock.now();
    let rows = schedules.iter().map(|schedule| {
        let next = schedule.next_at.map_or_else(String::new, |at| text::relative(at, now));
        vec![
            schedule.name.to_string(),
            word(schedule, &nodes).to_owned(),
            next,
            schedule.state.fired.to_string(),
            schedule.definition.job.kind.to_string(),
            text::line(&schedule.definition.rule.describe(), 80),
        ]
    });
    let headers = ["SCHEDULE", "", "NEXT", "FIRED", "KIND", "RULE"];
    out.line(out.table(&headers, &rows.collect::<Vec<_>>()))?;
    Ok(())
}

async fn show(engine: &Engine, name: &str, out: Out) -> anyhow::Result<()> {
    let schedule = engine.schedules().get(name).await?;
    let (nodes, audit) = (engine.nodes().await?, engine.schedules().audit(name).await?);
    if out.is_json() {
        let mut value = shape(&schedule, &nodes);
        let changes = audit.iter().map(|it| {
            json!({ "at": it.at.to_string(), "who": it.who, "verb": it.verb, "old": it.old, "new": it.new })
        });
        value["audit"] = changes.collect::<Vec<_>>().into();
        out.value(&value)?;
        return Ok(());
    }
    let why = schedule.why(&nodes, engine.seams().clock.now());
    let Definition { rule, job, missed, overlap, .. } = &schedule.definition;
    let mut lines = vec![
        format!("schedule {name}: {}", word(&schedule, &nodes)),
        format!("  {}", rule.describe()),
        format!("  {why}"),
        format!("  enqueues {} to {}, missed fires: {missed}, overlap: {overlap}", job.kind, job.queue),
        format!("  jobs so far: {}", schedule.state.fired),
    ];
    if let Some(job) = schedule.state.last_job {
        lines.push(format!("  last job {job}, for its fire of {}", schedule.state.last_fire));
    }
    match (&schedule.state.seed, &schedule.state.edited_by) {
        (Some(seed), None) => {
            lines.push(format!("  defined by code {}, revision {}", seed.by, seed.revision));
        }
        (_, Some(who)) => lines.push(format!("  defined by {who}")),
        (None, None) => {}
    }
    lines.extend(audit.iter().take(10).map(|it| format!("  {} {} by {}", it.at, it.verb, it.who)));
    out.line(text::plain(&lines.join("\n")))?;
    Ok(())
}
