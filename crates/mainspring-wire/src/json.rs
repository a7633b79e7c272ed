//! JSON for programs: the shapes of jobs, nodes, queues and stores. Times are ISO 8601 in UTC.

use mainspring_core::id::JobId;
use mainspring_core::job::{NodeActivity, Reason, Record, Summary, Why};
use mainspring_core::journal::{Message, MessageBody, Subject, Timeline, Value as Recorded, Wait, Written};
use mainspring_core::limit::{KeyUse, Limit, LimitKey, Obstacle, Rate, Seed, Total, TotalUse};
use mainspring_core::store::{ActivityReport, Description, LastClaim, Node, Queue, QueueActivity};
use mainspring_core::time::{Span, Timestamp};
use serde_json::{Value, json};

fn time(at: Option<Timestamp>) -> Value {
    at.map_or(Value::Null, |at| at.to_string().into())
}

/// Returns a job without its payloads.
pub fn summary(job: &Summary) -> Value {
    let mut value = json!({
        "id": job.id.to_string(),
        "kind": job.kind,
        "queue": job.queue,
        "priority": job.priority,
        "state": job.status.state.as_str(),
        "reason": job.status.reason.map(Reason::as_str),
        "attempt": job.attempt(),
        "max_attempts": job.options.max_attempts,
        "failures": job.failures,
        "crashes": job.crashes,
        "claim": job.claim,
        "created_at": time(Some(job.created_at)),
        "run_at": time(job.run_at),
        "claimed_at": time(job.claimed_at),
        "finished_at": time(job.finished_at),
        "deadline": time(job.deadline),
        "node": job.node.map(|node| node.0),
        "cancelling": job.cancelling,
        "stuck": job.stuck,
        "foreign": job.foreign,
        "unreadable": job.unreadable,
    });
    // Options that are not set are left out, as in the store.
    if let (Value::Object(value), Ok(Value::Object(options))) =
        (&mut value, serde_json::to_value(&job.options))
    {
        for (name, option) in options {
            value.entry(name).or_insert(option);
        }
    }
    value
}

/// Returns everything about a job.
pub fn record(job: &Record) -> Value {
    let mut value = summary(&job.summary);
    let errors: Vec<Value> = job
        .errors
        .iter()
        .map(|error| {
            json!({
                "claim": error.claim,
                "claimed_at": error.claimed_at.to_string(),
                "node": error.node.0,
                "at": error.at.to_string(),
                "kind": error.kind.as_str(),
                "message": error.message,
            })
        })
        .collect();
    value["input"] = payload(&job.input);
    value["result"] = job.result.as_deref().map_or(Value::Null, payload);
    value["note"] = job.note.clone().into();
    value["errors"] = errors.into();
    value["progress"] = json!(job.progress);
    value["waits"] = job.waits.iter().map(wait).collect();
    value
}

/// Adds the handler's records, messages and children. Omits a long value; `bytes` has its length.
pub fn add_timeline(job: &mut Value, timeline: &Timeline) {
    let journal: Vec<Value> = timeline.entries.iter().map(entry).collect();
    let inbox: Vec<Value> = timeline.inbox.messages.iter().map(message).collect();
    let children: Vec<Value> = timeline
        .children
        .iter()
        .map(|kin| {
            json!({
                "id": kin.id.to_string(),
                "state": kin.status.state.as_str(),
                "reason": kin.status.reason.map(Reason::as_str),
                "on_close": kin.on_close,
            })
        })
        .collect();
    job["journal"] = journal.into();
    job["journal_more"] = timeline.more.into();
    job["inbox"] = inbox.into();
    job["inbox_more"] = timeline.inbox.more.into();
    job["children"] = children.into();
}

fn entry(entry: &Written) -> Value {
    let mut value = json!({
        "key": entry.key,
        "kind": entry.kind,
        "claim": entry.claim,
        "at": entry.at.to_string(),
        "took": entry.took.map(|took| Span(took).to_string()),
        "overlapped": entry.overlapped,
    });
    match &entry.value {
        Recorded::Here(bytes) => {
            value["bytes"] = bytes.len().into();
            value["value"] = payload(bytes);
        }
        Recorded::There(bytes) => value["bytes"] = (*bytes).into(),
    }
    value
}

fn message(message: &Message) -> Value {
    match &message.body {
        MessageBody::Signal { name, sender, body } => json!({
            "at": message.at.to_string(),
            "signal": name,
            "sender": sender,
            "body": payload(body),
        }),
        MessageBody::Ended { child, status, result, message: said } => json!({
            "at": message.at.to_string(),
            "child": child.to_string(),
            "state": status.state.as_str(),
            "reason": status.reason.map(Reason::as_str),
            "result": result.as_deref().map_or(Value::Null, payload),
            "message": said,
        }),
    }
}

/// What a suspended job waits for.
fn wait(wait: &Wait) -> Value {
    match &wait.subject {
        Subject::Signal(name) => json!({ "signal": name, "need": wait.need }),
        Subject::Child(id) => json!({ "child": id.to_string() }),
    }
}

/// Returns a payload as JSON, or as text if it is not JSON, which only another program can have written.
pub fn payload(bytes: &[u8]) -> Value {
    serde_json::from_slice(bytes).unwrap_or_else(|_| String::from_utf8_lossy(bytes).into_owned().into())
}

/// Returns a node.
pub fn node(node: &Node) -> Value {
    let queues: serde_json::Map<String, Value> =
        node.queues.iter().map(|(name, slots)| (name.to_string(), (*slots).into())).collect();
    let later: serde_json::Map<String, Value> = node
        .abilities
        .later
        .iter()
        .map(|(label, from)| (label.to_string(), from.to_string().into()))
        .collect();
    let said = |report: &ActivityReport| {
        report.queues.iter().map(|queue| activity(queue, report.at)).collect::<Vec<_>>()
    };
    json!({
        "no": node.no.0,
        "id": node.id.to_string(),
        "name": node.name,
        "version": node.version,
        "pid": node.pid,
        "state": node.state.as_str(),
        "labels": node.abilities.labels,
        "later_labels": later,
        "queues": queues,
        "kinds": node.abilities.kinds,
        "claims": node.claims,
        "backed_up": node.backed_up,
        "reported_at": time(node.report.as_ref().map(|report| report.at)),
        "activity": node.report.as_ref().map_or_else(Vec::new, said),
        "started_at": node.started_at.to_string(),
        "renewed_at": node.renewed_at.to_string(),
        "lease_until": node.lease_until.to_string(),
    })
}

/// Returns a node's activity for a queue, with the time of its report.
pub fn activity(activity: &QueueActivity, as_of: Timestamp) -> Value {
    let claim =
        |claim: &LastClaim| json!({ "asked": claim.asked, "got": claim.got, "at": claim.at.to_string() });
    json!({
        "queue": activity.queue,
        "slots": activity.slots,
        "running": activity.running,
        "waiting": activity.waiting,
        "unstored": activity.unstored,
        "asking": activity.asking,
        "last_claim": activity.last_claim.as_ref().map(claim),
        "next_look": as_of.after(activity.next_look).to_string(),
    })
}

/// Returns the activity of the nodes that could run a job.
pub fn activities(nodes: &[NodeActivity]) -> Value {
    let one = |node: &NodeActivity| {
        let said = node.activity.as_ref().zip(node.as_of);
        let mut value = said.map_or_else(|| json!({}), |(said, as_of)| activity(said, as_of));
        value["node"] = node.node.clone().into();
        value["as_of"] = time(node.as_of);
        value
    };
    nodes.iter().map(one).collect()
}

/// Returns a queue with its settings.
pub fn queue(queue: &Queue) -> Value {
    json!({
        "name": queue.name,
        "paused": queue.settings.paused,
        "backoff": queue.settings.backoff,
        "retain_succeeded": queue.settings.retention.succeeded,
        "retain_failed": queue.settings.retention.failed,
    })
}

/// A limit with what it admits.
pub fn limit(limit: &Limit) -> Value {
    let rate = |rate: Option<Rate>| rate.map(|rate| rate.to_string());
    let code = |seed: &Seed| {
        json!({
            "revision": seed.revision,
            "by": seed.by,
            "max": seed.definition.max,
            "rate": rate(seed.definition.rate),
        })
    };
    json!({
        "limit": limit.name,
        "max": limit.definition.max,
        "rate": rate(limit.definition.rate),
        "paused": limit.paused,
        "edited_by": limit.edited_by,
        "code": limit.seed.as_ref().map(code),
    })
}

/// A key of a limit with its counters.
pub fn limit_key(key: &LimitKey) -> Value {
    json!({
        "limit": key.limit,
        "key": key.key,
        "in_use": key.in_use,
        "max": key.max,
        "paused": key.paused,
        "next_free": time(key.next_free),
    })
}

/// A key of a limit, with who holds it and who waits for it.
pub fn key_use(uses: &KeyUse) -> Value {
    let holders = uses
        .holders
        .iter()
        .map(|holder| json!({ "job": holder.job.to_string(), "units": holder.units, "keeps": holder.keeps }));
    let waiters: Vec<String> = uses.waiters.iter().map(ToString::to_string).collect();
    let mut value = limit_key(&uses.key);
    value["holders"] = holders.collect();
    value["waiting"] = uses.waiting.into();
    value["waiters"] = waiters.into();
    value
}

/// How many jobs of a queue or a kind run, and how many may.
pub fn total(total: &TotalUse) -> Value {
    let (queue, kind) = match &total.total {
        Total::Queue(queue) => (Some(queue), None),
        Total::Kind(kind) => (None, Some(kind)),
    };
    json!({ "queue": queue, "kind": kind, "max_running": total.max, "running": total.in_use })
}

/// Returns the description of a store.
pub fn store(store: &Description) -> Value {
    json!({
        "backend": store.backend,
        "location": store.location,
        "version": store.version,
        "schema": store.schema,
        "durable": store.durable,
    })
}

/// Returns the one reason that a job is not running, with a hint for people.
pub fn why(id: JobId, why: &Why) -> Value {
    let mut value = json!(why);
    match why {
        Why::Running { since, .. } => value["since"] = time(*since),
        Why::NodeSilent { since, .. } => value["since"] = time(Some(*since)),
        Why::Scheduled { until, .. } | Why::Waiting { until, .. } => value["until"] = time(*until),
        Why::Limited(Obstacle::Rate { until, .. }) => value["until"] = time(Some(*until)),
        Why::Foreign { last: Some((key, at)), .. } => {
            value["last"] = json!({ "key": key, "at": at.to_string() });
        }
        Why::NoBuild { taken_over: Some((node, at)), .. } => {
            value["taken_over"] = json!({ "node": node, "at": at.to_string() });
        }
        _ => {}
    }
    if !why.activity().is_empty() {
        value["activity"] = activities(why.activity());
    }
    value["id"] = id.to_string().into();
    value["text"] = why.to_string().into();
    value["hint"] = crate::why::hint(why, id).into();
    value
}
