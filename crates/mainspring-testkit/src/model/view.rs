//! What can be seen of a store, in a form that two stores can be compared by.

use std::collections::BTreeMap;
use std::fmt::Debug;

use mainspring_core::bounds;
use mainspring_core::id::{JobId, NodeNo};
use mainspring_core::job::{Record, Summary};
use mainspring_core::store::{Claimed, Counts, Filter, Node, Page, Queue, Store};

/// Which node of the model a store's node is.
pub(super) type Numbers = BTreeMap<NodeNo, NodeNo>;

/// All that a few calls show.
#[derive(Debug, PartialEq)]
pub(super) struct View {
    jobs: Vec<Summary>,
    counts: Counts,
    queues: Vec<Queue>,
    nodes: Vec<Node>,
}

impl View {
    /// Looks at a store; nodes are named as `numbers` says.
    pub(super) async fn of(store: &dyn Store, numbers: &Numbers) -> Result<Self, String> {
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
        Ok(View { jobs, counts: told(store.counts().await)?, queues: told(store.queues().await)?, nodes })
    }

    /// Compares what each part shows, so that a failure is short.
    pub(super) fn agree(model: &View, store: &View) -> Result<(), String> {
        for (one, other) in model.jobs.iter().zip(&store.jobs) {
            same("a job", one, other)?;
        }
        same("the number of jobs", &model.jobs.len(), &store.jobs.len())?;
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
    }
    Ok(record)
}

/// Claimed jobs without what is each store's own, sorted.
pub(super) fn claimed(jobs: &[Claimed]) -> Vec<String> {
    let mut jobs: Vec<String> = jobs
        .iter()
        .map(|job| {
            let mut job = job.clone();
            job.claim.row = mainspring_core::id::Row(0);
            format!("{job:?}")
        })
        .collect();
    jobs.sort();
    jobs
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
