//! `limit`: see limits, who holds them and who waits; change, pause and resume them.

use clap::Subcommand;
use mainspring::Engine;
use mainspring::limit::{KeyUse, Limit, LimitKey, LimitName, Rate};
use mainspring::time::Timestamp;
use serde_json::{Value, json};

use super::schedule::user;
use crate::output::Out;
use crate::report::Refused;
use crate::text;
use mainspring_wire::json as shape;

/// Keys and jobs that are shown to people.
const SHOWN: usize = 50;

/// What it takes.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(subcommand)]
    action: Action,
    /// Who makes the change: the audit remembers it. The user of the operating system if not set.
    #[arg(long = "as", value_name = "NAME", global = true)]
    who: Option<String>,
}

/// What can be done with limits.
#[derive(Debug, Subcommand)]
enum Action {
    /// List all limits, and how many jobs of which queues and kinds may run.
    List,
    /// Show a limit with its keys and what was changed about it; or one key with its holders and who waits for it.
    Show {
        #[command(flatten)]
        of: Of,
        /// Keys behind this one.
        #[arg(long, value_name = "KEY", conflicts_with = "key")]
        after: Option<String>,
    },
    /// Change a limit, or the maximum of one of its keys. What is not named stays. Code does not undo that.
    Set(Set),
    /// Let no more jobs in. Running jobs go on.
    Pause(Of),
    /// Let jobs in again.
    Resume(Of),
    /// Take a person's edit back: what code said last holds again.
    Reset {
        /// The limit.
        name: String,
    },
    /// Delete a limit. Jobs that name it are not held back by it any more, and new ones cannot name it.
    Delete {
        /// The limit.
        name: String,
    },
}

/// A limit, or one of its keys.
#[derive(Debug, clap::Args)]
struct Of {
    /// The limit.
    name: String,
    /// One of its keys; '' is the key of jobs that name none.
    key: Option<String>,
}

/// What a limit admits.
#[derive(Debug, clap::Args)]
struct Set {
    #[command(flatten)]
    of: Of,
    /// How many units at once, for each key, or for this key; `none` for any number, or for the limit's own again.
    #[arg(long, value_name = "N|none", value_parser = optional::<u32>)]
    max: Option<Setting<u32>>,
    /// How fast jobs start, for each key: `100/1m`, `5/s`; `none` for as fast as they can.
    #[arg(long, value_name = "N/SPAN|none", value_parser = optional::<Rate>, conflicts_with = "key")]
    rate: Option<Setting<Rate>>,
    /// How many may start at once after a rest.
    #[arg(long, value_name = "N", requires = "rate")]
    burst: Option<u32>,
    /// Make the limit if there is none of this name.
    #[arg(long, conflicts_with = "key")]
    create: bool,
}

/// A setting that may be taken away.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Setting<T>(pub(crate) Option<T>);

/// Reads a value, or `none`.
pub(crate) fn optional<T: std::str::FromStr>(text: &str) -> Result<Setting<T>, T::Err> {
    if text == "none" { Ok(Setting(None)) } else { text.parse().map(|value| Setting(Some(value))) }
}

pub(crate) async fn run(args: Args, engine: &Engine, out: Out) -> anyhow::Result<()> {
    let limits = || engine.limits().by(args.who.clone().unwrap_or_else(user));
    match args.action {
        Action::List => list(engine, out).await,
        Action::Show { of: Of { name, key: None }, after } => show(engine, &name, after, out).await,
        Action::Show { of: Of { name, key: Some(key) }, .. } => show_key(engine, &name, &key, out).await,
        Action::Set(set) => set.run(engine, out, args.who.unwrap_or_else(user)).await,
        Action::Pause(of) => {
            limits().pause(&of.name).key_if(of.key.as_deref()).await?;
            of.said(engine, "paused; running jobs go on", out).await
        }
        Action::Resume(of) => {
            limits().resume(&of.name).key_if(of.key.as_deref()).await?;
            of.said(engine, "resumed", out).await
        }
        Action::Reset { name } => {
            let limit = limits().reset(&name).await?;
            said(&limit, "reset to what code says", out)
        }
        Action::Delete { name } => {
            if !limits().delete(&name).await? {
                // The error names one that is nearly called so.
                limits().get(&name).await?;
            }
            let shape = || json!({ "limit": name, "deleted": true });
            out.either(shape, || format!("limit {name}: deleted"))?;
            Ok(())
        }
    }
}

/// Pausing a key, if one is named.
trait KeyIf {
    fn key_if(self, key: Option<&str>) -> Self;
}

impl KeyIf for mainspring::limit::Pausing<'_> {
    fn key_if(self, key: Option<&str>) -> Self {
        match key {
            Some(key) => self.key(key),
            None => self,
        }
    }
}

impl Of {
    /// What was done to it.
    async fn said(&self, engine: &Engine, what: &str, out: Out) -> anyhow::Result<()> {
        match &self.key {
            None => said(&engine.limits().get(&self.name).await?, what, out),
            Some(key) => said_of_key(&engine.limits().key(&self.name, key).await?.key, what, out),
        }
    }
}

fn said(limit: &Limit, what: &str, out: Out) -> anyhow::Result<()> {
    let line = || format!("limit {}: {what}\n  {}", limit.name, admits(limit));
    out.either(|| shape::limit(limit), line)?;
    Ok(())
}

fn said_of_key(key: &LimitKey, what: &str, out: Out) -> anyhow::Result<()> {
    let line = || text::plain(&format!("limit {} of `{}`: {what}", key.limit, key.key));
    out.either(|| shape::limit_key(key), line)?;
    Ok(())
}

impl Set {
    async fn run(self, engine: &Engine, out: Out, who: String) -> anyhow::Result<()> {
        let (limits, name) = (engine.limits().by(who), &self.of.name);
        if let Some(key) = &self.of.key {
            let Some(Setting(max)) = self.max else {
                return Err(Refused::usage("no setting is named", "name --max").into());
            };
            let change = limits.set_key(name, key);
            let key = match max {
                Some(max) => change.max(max),
                None => change.default_max(),
            };
            return said_of_key(&key.await?, "set", out);
        }
        if self.max.is_none() && self.rate.is_none() {
            return Err(Refused::usage("no setting is named", "name at least one of --max and --rate").into());
        }
        LimitName::new(name)?;
        if !self.create
            && let Err(error) = limits.get(name).await
        {
            // A misspelt name must not become a limit.
            let mainspring::Error::UnknownLimit { similar, .. } = &error else { return Err(error.into()) };
            let meant = similar.as_ref().map(|name| format!("did you mean `{name}`? "));
            let hint = format!("{}`--create` makes it", meant.unwrap_or_default());
            return Err(Refused::usage(format!("there is no limit `{name}`"), hint).into());
        }
        let mut change = limits.set(name);
        change = match self.max {
            None => change,
            Some(Setting(None)) => change.no_max(),
            Some(Setting(Some(max))) => change.max(max),
        };
        change = match self.rate {
            None => change,
            Some(Setting(None)) => change.no_rate(),
            Some(Setting(Some(rate))) => change.rate(self.burst.map_or(rate, |burst| rate.burst(burst))),
        };
        said(&change.await?, "set", out)
    }
}

/// What a limit lets in.
fn admits(limit: &Limit) -> String {
    let mut parts: Vec<String> = Vec::new();
    if let Some(max) = limit.definition.max {
        parts.push(format!("at most {max} at once"));
    }
    if let Some(rate) = limit.definition.rate {
        parts.push(format!("at most {rate}"));
    }
    if parts.is_empty() {
        parts.push("everything".to_owned());
    }
    format!("each key admits {}", parts.join(", "))
}

fn defined(limit: &Limit) -> String {
    match (&limit.edited_by, &limit.seed) {
        (Some(who), _) => who.clone(),
        (None, Some(seed)) => format!("code {}, revision {}", seed.by, seed.revision),
        (None, None) => String::new(),
    }
}

async fn list(engine: &Engine, out: Out) -> anyhow::Result<()> {
    let (limits, totals) = (engine.limits().list().await?, engine.limits().totals().await?);
    if out.is_json() {
        let limits: Vec<Value> = limits.iter().map(shape::limit).collect();
        let totals: Vec<Value> = totals.iter().map(shape::total).collect();
        out.value(&json!({ "limits": limits, "totals": totals }))?;
        return Ok(());
    }
    if limits.is_empty() && totals.is_empty() {
        out.line("no limits yet: code names them, and so does `mainspring limit set NAME --create --max N`")?;
        return Ok(());
    }
    let none = || "-".to_owned();
    if !limits.is_empty() {
        let rows = limits.iter().map(|limit| {
            vec![
                limit.name.to_string(),
                if limit.paused { "paused" } else { "open" }.to_owned(),
                limit.definition.max.map_or_else(none, |max| max.to_string()),
                limit.definition.rate.map_or_else(none, |rate| rate.to_string()),
                text::line(&defined(limit), 60),
            ]
        });
        let headers = ["LIMIT", "", "MAX", "RATE", "DEFINED BY"];
        out.line(out.table(&headers, &rows.collect::<Vec<_>>()))?;
    }
    for total in &totals {
        out.line(text::plain(&super::kind::running(total)))?;
    }
    Ok(())
}

async fn show(engine: &Engine, name: &str, after: Option<String>, out: Out) -> anyhow::Result<()> {
    let limits = engine.limits();
    let (limit, audit) = (limits.get(name).await?, limits.audit(name).await?);
    let mut keys = limits.keys(name).at_most(if out.is_json() { usize::MAX } else { SHOWN });
    if let Some(after) = after {
        keys = keys.after(after);
    }
    let keys = keys.await?;
    if out.is_json() {
        let mut value = shape::limit(&limit);
        value["keys"] = keys.iter().map(shape::limit_key).collect();
        let changes = audit.iter().map(|it| {
            json!({ "at": it.at.to_string(), "who": it.who, "verb": it.verb, "old": it.old, "new": it.new })
        });
        value["audit"] = changes.collect::<Vec<_>>().into();
        out.value(&value)?;
        return Ok(());
    }
    let state = if limit.paused { "paused" } else { "open" };
    let mut lines = vec![format!("limit {name}: {state}"), format!("  {}", admits(&limit))];
    if !defined(&limit).is_empty() {
        lines.push(format!("  defined by {}", defined(&limit)));
    }
    lines.extend(audit.iter().take(10).map(|it| format!("  {} {} by {}", it.at, it.verb, it.who)));
    out.line(text::plain(&lines.join("\n")))?;
    if keys.is_empty() {
        out.line("no key is in use")?;
        return Ok(());
    }
    let now = engine.seams().clock.now();
    let rows: Vec<_> = keys.iter().map(|key| row(&limit, key, now)).collect();
    out.line(out.table(&["KEY", "", "IN USE", "MAX", "TOKENS BACK"], &rows))?;
    if keys.len() == SHOWN {
        let last = keys.last().map_or("", |key| key.key.as_str());
        out.line(text::plain(&format!("more with `--after '{last}'`, all with `--json`")))?;
    }
    Ok(())
}

fn row(limit: &Limit, key: &LimitKey, now: Timestamp) -> Vec<String> {
    let none = || "-".to_owned();
    vec![
        if key.key.is_empty() { "''".to_owned() } else { text::line(&key.key, 60) },
        if key.paused { "paused" } else { "open" }.to_owned(),
        key.in_use.to_string(),
        key.max.or(limit.definition.max).map_or_else(none, |max| max.to_string()),
        key.next_free.filter(|at| *at > now).map_or_else(none, |at| text::relative(at, now)),
    ]
}

async fn show_key(engine: &Engine, name: &str, key: &str, out: Out) -> anyhow::Result<()> {
    let limits = engine.limits();
    let (limit, uses) = (limits.get(name).await?, limits.key(name, key).await?);
    if out.is_json() {
        out.value(&shape::key_use(&uses))?;
        return Ok(());
    }
    let KeyUse { key: of, holders, waiting, waiters } = &uses;
    let max = of.max.or(limit.definition.max).map_or_else(|| "any number".to_owned(), |max| max.to_string());
    let state = if limit.paused || of.paused { ", paused" } else { "" };
    let mut lines = vec![format!("limit {name} of `{key}`: {} of {max} in use{state}", of.in_use)];
    let now = engine.seams().clock.now();
    if let Some(at) = of.next_free.filter(|at| *at > now) {
        lines.push(format!("  its tokens are back {}", text::relative(at, now)));
    }
    lines.extend(holders.iter().take(SHOWN).map(|it| {
        let units = if it.units == 1 { "1 unit".to_owned() } else { format!("{} units", it.units) };
        let keeps = if it.keeps { ", kept while it waits" } else { "" };
        format!("  held by {}: {units}{keeps}", it.job)
    }));
    lines.push(format!("  {waiting} waiting"));
    lines.extend(waiters.iter().take(SHOWN).map(|job| format!("  waiting {job}")));
    out.line(text::plain(&lines.join("\n")))?;
    Ok(())
}
