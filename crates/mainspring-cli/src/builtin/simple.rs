//! `noop` and `sleep`: for trying things out and for measuring.

use std::time::Duration;

use mainspring::time::Span;
use mainspring::{Context, Job, discard};
use serde::{Deserialize, Serialize};
use serde_json::Value;

/// Does nothing. Takes any input.
#[derive(Debug, Serialize, Deserialize)]
#[serde(transparent)]
pub(crate) struct Noop(Value);

impl Job for Noop {
    type Result = ();
    const KIND: &'static str = "noop";
}

pub(crate) async fn noop(_ctx: Context, _job: Noop) -> mainspring::HandlerResult<()> {
    Ok(())
}

/// Takes its time: `{"ms": 250}` or `{"for": "2s"}`.
#[derive(Debug, Serialize, Deserialize, Job)]
#[job(kind = "sleep")]
#[serde(deny_unknown_fields)]
pub(crate) struct Sleep {
    #[serde(default)]
    ms: Option<u64>,
    #[serde(default, rename = "for")]
    span: Option<Span>,
}

/// How often it says how far it has come.
const STEP: Duration = Duration::from_millis(250);

pub(crate) async fn sleep(ctx: Context, job: Sleep) -> mainspring::HandlerResult<()> {
    let total = match (job.ms, job.span) {
        (Some(ms), None) => Duration::from_millis(ms),
        (None, Some(span)) => span.0,
        _ => return Err(discard(r#"say {"ms": 250} or {"for": "2s"}"#).into()),
    };
    let clock = ctx.engine().seams().clock.clone();
    let millis = |duration: Duration| u64::try_from(duration.as_millis()).unwrap_or(u64::MAX);
    let mut slept = Duration::ZERO;
    while slept < total {
        let step = STEP.min(total.saturating_sub(slept));
        clock.sleep(step).await;
        slept += step;
        ctx.progress(millis(slept), millis(total), "ms");
    }
    Ok(())
}
