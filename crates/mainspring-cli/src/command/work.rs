//! `work`: a node with the built-in handlers.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use mainspring::name::QueueName;
use mainspring::time::Span;
use mainspring::{Engine, Node, bounds, shutdown_signal};
use serde_json::json;
use tokio::io::AsyncReadExt;

use crate::command::pool::PoolArgs;
use crate::output::Out;
use crate::{builtin, dev, text};

/// Shown under `work --help`.
const AFTER_HELP: &str = "\
Built-in kinds and their input:
  noop   anything
  sleep  {\"ms\": 250} or {\"for\": \"2s\"}
  exec   {\"argv\": [\"sh\", \"-c\", \"echo hello\"], \"env\": {}, \"cwd\": \"/tmp\", \"timeout\": \"30s\", \"stdin\": \"\"}
         all but argv may be left out; the command and all that it starts end with the job, and with the worker;
         only with --allow-exec: without it, such jobs wait for a worker that has it

Your own kinds in any language:
  mainspring work --queue default:4 --pool \"resize:4=python3 resize.py\"
         four children take jobs of kind resize, one at a time each; no shell is involved; they read jobs on standard input, answer
         on standard output, log on standard error, and end with the worker: see the guide \"Handlers in other languages\"

SIGTERM or Ctrl-C drains; a second one gives running jobs back at once.";

/// What it takes.
#[derive(Debug, clap::Args)]
#[command(after_help = AFTER_HELP)]
pub(crate) struct Args {
    /// A queue to serve, with how many of its jobs may run at a time (10 by default). May be given several times.
    /// Also: MAINSPRING_QUEUES=default:10,mail:5.
    #[arg(long, value_name = "NAME:SLOTS")]
    queue: Vec<QueueSlots>,
    /// A capability that jobs may require. May be given several times. Also: MAINSPRING_LABELS=gpu,eu.
    #[arg(long)]
    label: Vec<String>,
    /// How long the worker may be silent before other nodes take over its jobs; 15s by default. Also: MAINSPRING_LEASE.
    #[arg(long, value_name = "SPAN")]
    lease: Option<Span>,
    /// How long running jobs may take to end when the worker shuts down.
    #[arg(long, value_name = "SPAN", default_value = "25s")]
    drain: Span,
    /// Run `exec` jobs too, that is, any command that somebody enqueues. Without this, they wait for a worker that has it.
    #[arg(long)]
    allow_exec: bool,
    #[command(flatten)]
    pools: PoolArgs,
    /// The first part of the worker's name; `mainspring` by default. Also: MAINSPRING_NODE_PREFIX.
    #[arg(long)]
    prefix: Option<String>,
    /// Also run the sample kinds of `mainspring dev`.
    #[arg(long, hide = true)]
    samples: bool,
    /// Shut down when standard input closes, because the parent process is gone.
    #[arg(long, hide = true)]
    watch_stdin: bool,
}

impl Args {
    /// Whether another process started it and watches over it.
    pub(crate) fn is_child(&self) -> bool {
        self.watch_stdin
    }
}

/// Slots of a queue that does not say how many.
const SLOTS: u32 = 10;

pub(crate) async fn run(args: Args, engine: &Engine, out: Out) -> anyhow::Result<()> {
    let node = start(&args, engine).await?;
    let samples = if args.samples { ", and the samples" } else { "" };
    let builtin = builtin::kinds(args.allow_exec);
    let kinds: Vec<&str> = builtin.iter().copied().chain(args.pools.kinds()).collect();
    let own: Vec<&str> = args.pools.kinds().collect();
    let exec = if args.allow_exec { "" } else { " (exec only with --allow-exec)" };
    out.either(
        || json!({ "event": "started", "node": node.name(), "pid": std::process::id(), "kinds": kinds }),
        || {
            let (builtin, own) = (builtin.join(", "), own.join(", "));
            let runs = if own.is_empty() {
                format!("built-in kinds only: {builtin}{samples}{exec}; link the library, or add --pool, to run your own")
            } else {
                format!("{own} in pools, and built-in kinds: {builtin}{samples}{exec}")
            };
            let location = text::plain(&engine.describe().location);
            format!("{} works on {location}\nit runs {runs}", node.name())
        },
    )?;
    node.run_until(asked_to_go(args.watch_stdin)).await;
    out.either(
        || json!({ "event": "stopped", "node": node.name() }),
        || format!("{} has stopped", node.name()),
    )?;
    Ok(())
}

async fn start(args: &Args, engine: &Engine) -> anyhow::Result<Node> {
    let mut node = builtin::register(engine.node(), args.allow_exec).version(env!("CARGO_PKG_VERSION"));
    node = args.pools.register(node);
    if args.samples {
        node = dev::samples::register(node);
    }
    // The command line is said last and wins.
    node = node.from_env().drain(args.drain.0);
    for queue in &args.queue {
        node = node.queue(queue.name.as_str(), queue.slots);
    }
    for label in &args.label {
        node = node.label(label);
    }
    if let Some(lease) = args.lease {
        node = node.lease(lease.0);
    }
    if let Some(prefix) = &args.prefix {
        node = node.prefix(prefix);
    }
    Ok(node.cancel_grace(GRACE).start().await?)
}

/// How long a job's processes may take to end when it is cancelled: more than a pool gives its children, and a guard theirs.
const GRACE: Duration = Duration::from_secs(10);

/// A queue and its slots. The number stands after the last colon, because names may have colons.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct QueueSlots {
    pub(crate) name: QueueName,
    pub(crate) slots: u32,
}

impl FromStr for QueueSlots {
    type Err = String;

    /// As the library reads MAINSPRING_QUEUES: digits that are too many are not taken for a part of the name, because
    /// nobody has such a queue.
    fn from_str(text: &str) -> Result<Self, String> {
        let number = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
        let (name, slots) = match text.rsplit_once(':').filter(|(_, slots)| number(slots)) {
            Some((name, slots)) => {
                (name, slots.parse().ok().filter(|slots| (1..=bounds::SLOTS).contains(slots)))
            }
            None => (text, Some(SLOTS)),
        };
        let name = QueueName::new(name).map_err(|error| error.to_string())?;
        let slots = slots.ok_or_else(|| {
            let said = &text[name.as_str().len() + 1..];
            format!("{said} slots are not between 1 and {}", bounds::SLOTS)
        })?;
        Ok(QueueSlots { name, slots })
    }
}

impl fmt::Display for QueueSlots {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.name, self.slots)
    }
}

/// Ends when the worker is to shut down.
async fn asked_to_go(watch_stdin: bool) {
    if watch_stdin {
        tokio::select! {
            () = shutdown_signal() => {}
            () = stdin_closed() => {}
        }
    } else {
        shutdown_signal().await;
    }
}

/// Ends when nobody can write to standard input any more.
async fn stdin_closed() {
    let mut buffer = [0_u8; 64];
    let mut stdin = tokio::io::stdin();
    while matches!(stdin.read(&mut buffer).await, Ok(read) if read > 0) {}
}
