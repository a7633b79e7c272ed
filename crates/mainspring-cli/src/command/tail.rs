//! `job tail`: what a job says, as it says it.

use mainspring::tail::{Tail, TailEvent};
use mainspring::time::Span;
use mainspring::{Engine, JobId, shutdown_signal};
use serde_json::{Value, json};

use crate::output::Out;
use crate::text;
use mainspring_wire::json;

/// What it takes.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Begin after this position.
    #[arg(long, value_name = "POSITION", default_value_t = 0)]
    after: u64,
    /// Print the output so far, and do not wait for more.
    #[arg(long)]
    no_follow: bool,
    /// End after this long, even if the job has not ended.
    #[arg(long = "for", value_name = "SPAN", conflicts_with = "no_follow")]
    span: Option<Span>,
}

/// `job tail ID` is `job ID tail`.
pub(crate) fn in_order(mut args: Vec<std::ffi::OsString>) -> Vec<std::ffi::OsString> {
    let at = args.windows(3).position(|words| {
        words[0] == "job" && words[1] == "tail" && !words[2].as_encoded_bytes().starts_with(b"-")
    });
    if let Some(at) = at {
        args.swap(at + 1, at + 2);
    }
    args
}

pub(crate) async fn run(args: &Args, id: JobId, engine: &Engine, out: Out) -> anyhow::Result<()> {
    let mut tail = engine.tail(id).after(args.after).follow(!args.no_follow);
    tokio::select! {
        shown = show(&mut tail, out) => shown,
        () = passed(engine, args.span) => Ok(()),
        // Where to go on from is the last position that was shown.
        () = shutdown_signal() => Ok(()),
    }
}

/// Waits for a time to pass; for ever, if none is given.
pub(crate) async fn passed(engine: &Engine, span: Option<Span>) {
    match span {
        Some(span) => engine.seams().clock.sleep(span.0).await,
        None => std::future::pending().await,
    }
}

async fn show(tail: &mut Tail, out: Out) -> anyhow::Result<()> {
    while let Some(message) = tail.next().await? {
        if out.is_json() {
            out.line(to_programs(&message).to_string())?;
        } else {
            out.line(to_people(&message))?;
        }
    }
    if let (Some(ended), false) = (tail.ended(), out.is_json()) {
        out.line(format!("-- the job has ended: {ended}"))?;
    }
    Ok(())
}

fn to_people(message: &TailEvent) -> String {
    match message {
        TailEvent::Frame(frame) => frame.text().lines().map(text::plain).collect::<Vec<_>>().join("\n"),
        TailEvent::Reset { step: Some(step), .. } => {
            format!("-- the output of `{}` is void: it runs again", text::plain(step.as_str()))
        }
        TailEvent::Reset { step: None, .. } => "-- the output so far is void: the job runs again".to_owned(),
        TailEvent::Gap { from, to } => format!("-- frames {from} to {to} are no longer kept"),
        TailEvent::Progress(progress) => {
            let note = text::line(&progress.note, 200);
            format!("-- {}/{} {note}", progress.done, progress.total).trim_end().to_owned()
        }
        other => format!("-- {}", text::plain(&format!("{other:?}"))),
    }
}

fn to_programs(message: &TailEvent) -> Value {
    match message {
        TailEvent::Frame(frame) => json!({
            "position": frame.position, "at": frame.at.to_string(), "claim": frame.claim, "step": frame.step,
            "frame": json::payload(&frame.body),
        }),
        TailEvent::Reset { position, step, from } => {
            json!({ "position": position, "step": step, "reset": { "from": from } })
        }
        TailEvent::Gap { from, to } => json!({ "gap": { "from": from, "to": to } }),
        TailEvent::Progress(progress) => json!({ "progress": progress }),
        other => json!({ "other": format!("{other:?}") }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_orders_are_the_same() {
        let order = |words: &[&str]| in_order(words.iter().map(Into::into).collect());
        assert_eq!(
            order(&["m", "--json", "job", "tail", "7", "--after", "3"]),
            ["m", "--json", "job", "7", "tail", "--after", "3"]
        );
        assert_eq!(order(&["m", "job", "7", "tail"]), ["m", "job", "7", "tail"]);
        assert_eq!(order(&["m", "job", "tail", "--help"]), ["m", "job", "tail", "--help"]);
    }
}
