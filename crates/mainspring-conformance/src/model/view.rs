//! What can be seen of a store, in a form that two stores can be compared by.

use std::collections::BTreeMap;
use std::fmt::Debug;

use mainspring_core::bounds;
use mainspring_core::id::{Claim, JobId, NodeNo};
use mainspring_core::job::{Record, Summary};
use mainspring_core::journal::{JobEnd, Message, MessageBody, Timeline, Value};
use mainspring_core::output::{Ask, Output};
use mainspring_core::store::{Claimed, Counts, Filter, Node, Page, Queue, Store};

/// Which node of the model a store's node is.
pub(super) type Numbers = BTreeMap<NodeNo, NodeNo>;

/// All that a few calls show.
#[derive(Debug, PartialEq)]
pub(super) struct View {
    jobs: Vec<Summary>,
    job_ends: Vec<JobEnd>,
    counts: Counts,
    queues: Vec<Queue>,
    nodes: Vec<Node>,
}

impl View {
    /// Looks at a store; nodes are named as `numbers` says.
    pub(super) async fn of(store: &dyn Store, ids: Vec<JobId>, numbers: &Numbers) -> Result<Self, String> {
        let findings = told(store.check().await)?;
        if !findings.is_empty() {
            return Err(format!("the self-check found {findings:?}"));
        }
        let page = Page { after: None, limit: bounds::PAGE };
        let mut jobs = told(store.list(Filter::default(), page).await)?.jobs;
        for job in &mut jobs {
            rename(job, numbers);
        }
        let mut nodes = told(store.nodes().await)?;
        for node in &mut nodes {
            node.no = named(node.no, numbers);
        }
        let job_ends = told(store.job_ends(ids).await)?;
        let (counts, queues) = (told(store.counts().await)?, told(store.queues().await)?);
        Ok(View { jobs, job_ends, counts, queues, nodes })
    }

    /// Compares what each part shows, so that a failure is short.
    pub(super) fn agree(model: &View, store: &View) -> Result<(), String> {
        for (one, other) in model.jobs.iter().zip(&store.jobs) {
            same("a job", one, other)?;
        }
        same("the number of jobs", &model.jobs.len(), &store.jobs.len())?;
        same("how the jobs look to who waits", &model.job_ends, &store.job_ends)?;
        same("the counts", &model.counts, &store.counts)?;
        same("the queues", &model.queues, &store.queues)?;
        same("the nodes", &model.nodes, &store.nodes)
    }
}

/// Everything known of a job; its node is named as `numbers` says.
pub(super) async fn record(
    store: &dyn Store,
    id: JobId,
    numbers: &Numbers,
) -> Result<Option<Record>, String> {
    let mut record = told(store.get(id).await)?;
    if let Some(record) = &mut record {
        rename(&mut record.summary, numbers);
        for error in &mut record.errors {
            error.node = named(error.node, numbers);
        }
    }
    Ok(record)
}

/// What a job has recorded, been sent and started, without what is each store's own.
pub(super) async fn timeline(store: &dyn Store, id: JobId) -> Result<Option<Timeline>, String> {
    let mut timeline = told(store.timeline(id).await)?;
    if let Some(timeline) = &mut timeline {
        let messages = std::mem::take(&mut timeline.inbox.messages);
        timeline.inbox.messages = nameless(told_in_order(messages)?);
    }
    Ok(timeline)
}

/// What a job has said.
pub(super) async fn output(store: &dyn Store, id: JobId) -> Result<Vec<Option<Output>>, String> {
    told(store.output(vec![Ask { id, after: 0, limit: bounds::OUTPUT_PAGE }]).await)
}

/// Claimed jobs with their pasts, without what is each store's own, sorted. How much of a past comes with the claim is the
/// store's own affair too: the rest is read.
pub(super) async fn claimed(store: &dyn Store, jobs: &[Claimed]) -> Result<Vec<String>, String> {
    let mut claimed = Vec::new();
    for job in jobs {
        let mut job = job.clone();
        let past = job.journal.take().unwrap_or_default();
        let mut entries = past.entries;
        for entry in &mut entries {
            if let Value::There(bytes) = entry.value {
                let mut values = told(store.values(job.claim.id, vec![entry.key.clone()]).await)?;
                let value = values.pop().flatten().filter(|value| value.len() == bytes);
                entry.value = Value::Here(value.ok_or_else(|| format!("{} promises too much", entry.key))?);
            }
            // Shorter, so that a failure can be read.
            if let Value::Here(value) = &entry.value {
                entry.value = Value::There(value.iter().map(|byte| usize::from(*byte)).sum());
            }
        }
        let mut messages = past.inbox.messages;
        if past.inbox.more {
            let last = messages.last().map_or(0, |message| message.no);
            messages.extend(unread_after(store, job.claim, last).await?);
        }
        let messages = nameless(told_in_order(messages)?);
        job.claim.row = mainspring_core::id::Row(0);
        claimed.push(format!("{job:?} {entries:?} {messages:?}"));
    }
    claimed.sort();
    Ok(claimed)
}

/// The unread messages of a job: signals in their order, then ends of children. Those of one call come in any order.
pub(super) async fn unread(store: &dyn Store, claim: Claim) -> Result<Vec<Message>, String> {
    told_in_order(unread_after(store, claim, 0).await?)
}

async fn unread_after(store: &dyn Store, claim: Claim, after: i64) -> Result<Vec<Message>, String> {
    let inbox = told(store.inbox(vec![(claim, after)]).await)?.pop().unwrap_or_default();
    // The universe has fewer messages than a page.
    if inbox.more { Err("there is more in an inbox than was sent".into()) } else { Ok(inbox.messages) }
}

fn told_in_order(messages: Vec<Message>) -> Result<Vec<Message>, String> {
    if !messages.is_sorted_by(|one, next| one.no < next.no) {
        return Err(format!("messages are not in the order of their numbers: {messages:?}"));
    }
    let (signals, mut ends): (Vec<_>, Vec<_>) =
        messages.into_iter().partition(|message| matches!(message.body, MessageBody::Signal { .. }));
    ends.sort_by_key(|end| (end.at, end.body.subject()));
    Ok(signals.into_iter().chain(ends).collect())
}

/// Without their numbers, which are each store's own.
pub(super) fn nameless(messages: Vec<Message>) -> Vec<Message> {
    messages.into_iter().map(|message| Message { no: 0, ..message }).collect()
}

fn rename(job: &mut Summary, numbers: &Numbers) {
    job.node = job.node.map(|node| named(node, numbers));
}

/// A node that is not known keeps its number, and so fails the comparison.
pub(super) fn named(node: NodeNo, numbers: &Numbers) -> NodeNo {
    numbers.get(&node).copied().unwrap_or(node)
}

/// An answer, or what went wrong.
pub(super) fn told<T>(answer: mainspring_core::Result<T>) -> Result<T, String> {
    answer.map_err(|error| format!("unexpected error: {error:?}"))
}

/// Two answers, of which errors are compared by their text.
pub(super) fn answers<T>(
    model: mainspring_core::Result<T>,
    store: mainspring_core::Result<T>,
) -> Result<Option<(T, T)>, String> {
    match (model, store) {
        (Ok(model), Ok(store)) => Ok(Some((model, store))),
        (Err(model), Err(store)) => {
            same("the error", &model.to_string(), &store.to_string())?;
            Ok(None)
        }
        (Ok(_), Err(store)) => Err(format!("the model accepts what the store refuses: {store:?}")),
        (Err(model), Ok(_)) => Err(format!("the store accepts what the model refuses: {model:?}")),
    }
}

/// Compares what both say.
pub(super) fn same<T: Debug + PartialEq>(what: &str, model: &T, store: &T) -> Result<(), String> {
    if model == store {
        return Ok(());
    }
    Err(format!("{what} differs\n  model: {model:?}\n  store: {store:?}"))
}
