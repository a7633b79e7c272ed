//! Journals of real workflows against the code of today.

use std::sync::{Arc, Mutex, PoisonError};

use mainspring_core::bounds;
use mainspring_core::id::JobId;
use mainspring_core::job::{Reason, State};
use mainspring_core::journal::{Ended, EntryKind, Inbox, Journal, Value, Written};
use mainspring_core::name::Key;
use serde::{Deserialize, Deserializer};
use serde_json::value::RawValue;

use super::probe::{Probe, ProbeVerdict};
use super::{Error, Result, TestEngine};
use crate::durable::drift::STOPPED;
use crate::node::NodeBuilder;

/// A job as `mainspring job ID --json` shows it, as far as it matters here.
#[derive(Deserialize)]
struct Exported {
    id: JobId,
    kind: String,
    queue: String,
    input: serde_json::Value,
    journal: Vec<JournalLine>,
    journal_more: bool,
}

#[derive(Deserialize)]
struct JournalLine {
    key: Key,
    kind: EntryKind,
    claim: u32,
    overlapped: bool,
    /// Not printed if it is long; `null` is a value.
    #[serde(default, deserialize_with = "printed")]
    value: Option<Box<RawValue>>,
}

fn printed<'de, D: Deserializer<'de>>(value: D) -> std::result::Result<Option<Box<RawValue>>, D::Error> {
    Box::<RawValue>::deserialize(value).map(Some)
}

/// The answer of [`verify_journal`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Verified {
    /// The operations that the handler would run next, in the order in which it asked for them. Empty: the handler
    /// has come to its end.
    pub next: Vec<String>,
}

/// Hands out the journal, and stops what goes beyond it.
struct JournalProbe {
    job: JobId,
    journal: Mutex<Option<Journal>>,
    next: Mutex<Vec<String>>,
}

impl Probe for JournalProbe {
    fn ran(&self, _job: JobId, _key: &Key) -> ProbeVerdict {
        ProbeVerdict::Keep
    }

    fn crash(&self) {}

    fn journal(&self, job: JobId) -> Option<Journal> {
        let mut journal = self.journal.lock().unwrap_or_else(PoisonError::into_inner);
        if job == self.job { journal.take() } else { None }
    }

    fn stops(&self, job: JobId, key: &Key) -> bool {
        // What has no name is no operation: the output asks whether it is to be silent.
        if job == self.job && !key.as_str().starts_with('#') {
            self.next.lock().unwrap_or_else(PoisonError::into_inner).push(key.to_string());
        }
        job == self.job
    }
}

/// Checks whether the records of a workflow still fit the code: for a test that keeps journals of real workflows and
/// runs before each deploy.
///
/// `json` is the output of `mainspring job ID --json`; `setup` sets up a node as in production. The handler runs on
/// the records. No body of a step runs: the check stops the handler where the records end, and returns the operations
/// that come next.
///
/// ```
/// use mainspring::testing::verify_journal;
/// use mainspring::{Context, Job};
/// use serde::{Deserialize, Serialize};
///
/// #[derive(Serialize, Deserialize, Job)]
/// #[job(kind = "order")]
/// struct Order { card: String }
///
/// async fn order(ctx: Context, _job: Order) -> mainspring::HandlerResult<()> {
///     let receipt: u64 = ctx.step("charge", async || Ok(7)).await?;
///     ctx.step("ship", async || Ok(receipt)).await?;
///     Ok(())
/// }
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let kept = br#"{ "id": "01a1de98-55b8-78d4-8fb5-ccc5f0d5c11c", "kind": "order", "queue": "default",
///     "input": { "card": "4711" }, "journal_more": false, "journal": [
///     { "key": "charge", "kind": "value", "claim": 1, "overlapped": false, "value": 7 } ] }"#;
/// let verified = verify_journal(kept, |node| node.handle(order).queue("default", 1)).await?;
/// assert_eq!(verified.next, ["ship"]);
/// # Ok(())
/// # }
/// ```
///
/// # Errors
/// [`Error::Drifted`] if the records do not fit, or the handler fails on them; [`Error::Engine`] if `json` is not
/// such a job, or misses values (those of more than 4 KiB are missing).
pub async fn verify_journal(json: &[u8], setup: impl FnOnce(NodeBuilder) -> NodeBuilder) -> Result<Verified> {
    let broken = |why: String| mainspring_core::Error::Invalid { what: "journal", why };
    let exported: Exported = serde_json::from_slice(json).map_err(|error| broken(error.to_string()))?;
    if exported.journal_more {
        Err(broken(format!("it has more than {} records; not all were printed", bounds::TIMELINE)))?;
    }
    let test = TestEngine::new();
    let now = test.now();
    let ended = Ended::of(exported.journal.iter().map(|line| (line.key.as_str(), line.kind)));
    let mut entries = Vec::new();
    // Nobody asks for what is inside of a scope that has ended.
    for line in exported.journal.iter().filter(|line| !ended.has(line.key.as_str())) {
        let missing = || broken(format!("the value of `{}` was not printed", line.key));
        let value = line.value.as_ref().ok_or_else(missing)?;
        let (key, kind, claim, overlapped) = (line.key.clone(), line.kind, line.claim, line.overlapped);
        let value = Value::Here(value.get().as_bytes().to_vec());
        entries.push(Written { key, kind, overlapped, claim, at: now, value, took: None });
    }
    let journal = Journal { entries, inbox: Inbox::default() };
    let id = exported.id;
    let (journal, next) = (Mutex::new(Some(journal)), Mutex::default());
    let stage = Arc::new(JournalProbe { job: id, journal, next });
    let probe: Arc<dyn Probe> = Arc::<JournalProbe>::clone(&stage);
    test.enqueue_json(&exported.kind, &exported.input).id(id).queue(&exported.queue).await?;
    test.node(|node| setup(node).cached_handlers(0).probe(probe)).await?;
    test.run_until_idle().await?;
    let record = test.jobs().get(id).await?;
    let next = std::mem::take(&mut *stage.next.lock().unwrap_or_else(PoisonError::into_inner));
    let status = record.summary.status;
    match (status.state, status.reason) {
        (State::Suspended, Some(Reason::Drift)) if record.note.as_deref() != Some(STOPPED) => {
            Err(Error::Drifted { id, why: record.note.unwrap_or_default() })
        }
        (State::Suspended | State::Succeeded, _) => Ok(Verified { next }),
        _ => {
            let error =
                record.errors.last().map_or_else(|| status.to_string(), |error| error.message.clone());
            Err(Error::Drifted { id, why: format!("the handler did not come to the end of it: {error}") })
        }
    }
}
