//! `signal`: sends something to a job whose handler waits for it, now or later.

use std::io::{self, Write};

use mainspring::admin::Why;
use mainspring::name::SignalName;
use mainspring::workflow::SignalReceipt;
use mainspring::{Engine, Error, JobId, State, bounds};
use serde_json::{Value, json};

use super::{enqueue, filter};
use crate::output::Out;
use crate::report::Refused;
use crate::text;

/// What it takes.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// The job.
    id: String,
    /// The signal's name, as the handler waits for it.
    name: String,
    /// The payload, as JSON; `-` reads it from standard input; `null` by default.
    #[arg(value_name = "JSON", allow_hyphen_values = true)]
    body: Option<String>,
    /// Who sends it, or its subject: the store drops a second signal of the same name and sender.
    #[arg(long, value_name = "KEY")]
    sender: Option<String>,
}

impl Args {
    /// Reads what is to be sent, and refuses what is wrong with it before a store is opened.
    pub(crate) fn rehearse(&self) -> anyhow::Result<Value> {
        filter::id(&self.id)?;
        SignalName::new(&self.name)?;
        let bytes = match self.body.as_deref() {
            None => return Ok(Value::Null),
            Some("-") => enqueue::read(io::stdin().lock())?,
            Some(text) => text.as_bytes().to_vec(),
        };
        if bytes.len() > bounds::PAYLOAD_BYTES_MAX {
            let (what, size, limit) = ("signal", bytes.len(), bounds::SIGNAL_BYTES);
            return Err(Error::TooLarge { what, size, limit }.into());
        }
        serde_json::from_slice(&bytes).map_err(|error| {
            let message = format!("the payload is not JSON: {error}");
            Refused::usage(message, "quote it for the shell: 'true', '\"text\"', '{\"by\": \"ada\"}'").into()
        })
    }
}

/// Sends what was rehearsed.
pub(crate) async fn run(args: &Args, body: &Value, engine: &Engine, out: Out) -> anyhow::Result<()> {
    let id = filter::id(&args.id)?;
    let mut signal = engine.signal(id, args.name.as_str(), body);
    if let Some(sender) = &args.sender {
        signal = signal.sender(sender);
    }
    // What a kind declares is not stored, but what its handler waits for is. The signal itself may change that.
    let others = match engine.jobs().why(id).await {
        Ok(Why::Waiting { signals, .. }) if signals.iter().all(|(name, _)| name.as_str() != args.name) => {
            signals
        }
        _ => Vec::new(),
    };
    let sent = match signal.await? {
        SignalReceipt::Stored => "stored",
        SignalReceipt::Repeated => "repeated",
    };
    out.either(
        || json!({ "id": id.to_string(), "signal": args.name, "sender": args.sender, "sent": sent }),
        || {
            let name = text::line(&args.name, bounds::NAME_BYTES);
            match sent {
                "stored" => format!("signal `{name}` is stored"),
                _ => format!("this sender has sent signal `{name}` before; nothing changed"),
            }
        },
    )?;
    if !others.is_empty() {
        let names: Vec<String> = others.iter().map(|(name, _)| format!("`{name}`")).collect();
        let note =
            format!("note: the job does not wait for this signal; it waits for {}", names.join(" or "));
        writeln!(io::stderr(), "{}", text::plain(&note))?;
    }
    Ok(())
}

/// Drops signals that were not read, and says what the job does now.
pub(crate) async fn drop_unread(
    id: JobId,
    name: &str,
    sender: Option<&str>,
    engine: &Engine,
    out: Out,
) -> anyhow::Result<()> {
    let jobs = engine.jobs();
    let unread = jobs.drop_signals(id, name);
    let dropped = match sender {
        Some(sender) => unread.sender(sender).await?,
        None => unread.await?,
    };
    let job = jobs.get(id).await?;
    let why = jobs.why(id).await?;
    let status = job.summary.status;
    let shown = text::line(name, bounds::NAME_BYTES);
    let by =
        sender.map(|sender| format!(" from {}", text::line(sender, bounds::KEY_BYTES))).unwrap_or_default();
    out.either(
        || {
            json!({
                "id": id.to_string(),
                "signal": name,
                "sender": sender,
                "dropped": dropped,
                "why": why.to_string(),
            })
        },
        || {
            let signals = text::count(dropped, "signal");
            format!("dropped {signals} `{shown}`{by}; the job now: {}", text::plain(&why.to_string()))
        },
    )?;
    let hint = if dropped == 0 {
        format!("hint: `mainspring job {id}` shows the signals that it has not read")
    } else if status.state == State::Running {
        "note: it runs; its handler may have read a signal before it was dropped".to_owned()
    } else {
        "note: a repeat from the same sender is not stored; send a correction with another sender, or with none"
            .to_owned()
    };
    writeln!(io::stderr(), "{}", text::plain(&hint))?;
    Ok(())
}
