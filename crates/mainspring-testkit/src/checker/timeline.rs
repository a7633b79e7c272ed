//! A violation as a story: who did what to the job, and when.

use std::collections::BTreeSet;

use mainspring_core::id::{JobId, NodeNo};
use mainspring_core::time::Timestamp;

use super::evidence::{EventIndex, Evidence};
use super::rules::BrokenRule;
use crate::history::{
    EnqueueAnswer, Event, Fact, InboxMessage, JournalWrites, LookedSchedule, ScheduleChange,
};

/// Lines of a story beyond which only what shows the violation is told.
const LONG: usize = 24;
/// Events told before and after one that shows the violation, in a long story.
const AROUND: usize = 2;

/// Tells how a violation came about.
pub(super) fn render(evidence: &Evidence<'_>, broken: &BrokenRule) -> Vec<String> {
    let events = concerned(evidence, broken);
    let events = if events.len() > LONG { shortened(&events, &broken.events) } else { events };
    let start = evidence.history.first().map_or(Timestamp::EPOCH, |event| event.at);
    let mut lines: Vec<String> = events.iter().map(|at| line(start, &evidence.history[*at])).collect();
    if let Some(id) = broken.job {
        let found = evidence.job_facts.get(&id).and_then(|facts| facts.found);
        lines.push(match found {
            Some(job) => format!(
                "in the end: {} by claim {}, {} failures, {} crashes",
                job.status, job.claim, job.failures, job.crashes
            ),
            None => "in the end: not there".into(),
        });
    }
    lines
}

/// The events of the job, and what happened to the nodes that held it.
fn concerned(evidence: &Evidence<'_>, broken: &BrokenRule) -> Vec<EventIndex> {
    let mut events: BTreeSet<EventIndex> = broken.events.iter().copied().collect();
    let facts = broken.job.and_then(|id| evidence.job_facts.get(&id));
    let holders: BTreeSet<NodeNo> =
        facts.iter().flat_map(|facts| &facts.claims).map(|claim| claim.node).collect();
    let actors: BTreeSet<_> =
        holders.iter().filter_map(|node| evidence.nodes.get(node)).map(|member| member.actor).collect();
    for (at, event) in evidence.history.iter().enumerate() {
        let about = match &event.fact {
            Fact::Expired { nodes } => nodes.iter().any(|node| holders.contains(node)),
            Fact::Left { node } | Fact::Joined { node, .. } => holders.contains(node),
            // What hit a single message is told by what came of it.
            Fact::Fault { on: Some(actor), kind, .. } => {
                actors.contains(actor) && !["call", "answer", "hint"].iter().any(|of| kind.starts_with(of))
            }
            fact => broken.job.is_some() && fact.job() == broken.job,
        };
        if about {
            events.insert(at);
        }
    }
    events.into_iter().collect()
}

fn shortened(events: &[EventIndex], shown: &[EventIndex]) -> Vec<EventIndex> {
    let near = |index: usize| {
        let (from, to) = (index.saturating_sub(AROUND), (index + AROUND).min(events.len() - 1));
        events[from..=to].iter().any(|at| shown.contains(at))
    };
    let kept = events.iter().enumerate();
    let last = events.len().saturating_sub(AROUND);
    kept.filter(|(index, _)| *index < AROUND || *index >= last || near(*index)).map(|(_, at)| *at).collect()
}

/// One event as a sentence.
pub(super) fn line(start: Timestamp, event: &Event) -> String {
    let at = event.at.since(start).as_secs_f64();
    format!("{at:>10.3} s  {:<10} {}", format!("actor {}", event.by), sentence(&event.fact))
}

#[expect(clippy::too_many_lines, reason = "one arm per fact")]
fn sentence(fact: &Fact) -> String {
    match fact {
        Fact::Asked { id, unique, delay } => {
            let key = unique.as_ref().map(|unique| format!(" with key `{}`", unique.key)).unwrap_or_default();
            let delay = if *delay > 0 { format!(" in {:.3} s", *delay as f64 / 1e6) } else { String::new() };
            format!("asks for {}{key}{delay}", short(*id))
        }
        Fact::Bounded { id, deadline } => {
            format!("wants {} to end within {:.3} s", short(*id), *deadline as f64 / 1e6)
        }
        Fact::Reused { id, same, stored } => {
            let what = if *same { "the same" } else { "another job" };
            let told = if *stored { "it is stored" } else { "it belongs to another" };
            format!("asks for {} again, as {what}, and is told that {told}", short(*id))
        }
        Fact::Awaits { id } => format!("waits for the end of {}", short(*id)),
        Fact::Answered { id, status: Some(status) } => format!("is told that {} is {status}", short(*id)),
        Fact::Answered { id, status: None } => format!("waits no longer for {}", short(*id)),
        Fact::Paused { queue, paused: true } => format!("`{queue}` is paused"),
        Fact::Paused { queue, paused: false } => format!("`{queue}` goes on"),
        Fact::Abilities { node, queues, abilities } => {
            let queues: Vec<_> = queues.iter().map(|(queue, slots)| format!("{queue}: {slots}")).collect();
            let (kinds, labels) = (abilities.kinds.iter(), abilities.labels.iter());
            let words: Vec<_> =
                kinds.map(ToString::to_string).chain(labels.map(ToString::to_string)).collect();
            format!("can do {} in {} as node {node}", words.join(", "), queues.join(", "))
        }
        Fact::Deferred { id, claim, after } => {
            format!("wants {} to wait {:.3} s after claim {claim}", short(*id), *after as f64 / 1e6)
        }
        Fact::Acknowledged { id, told: EnqueueAnswer::Created } => {
            format!("is told that {} is stored", short(*id))
        }
        Fact::Acknowledged { id, told: EnqueueAnswer::Existing(holder) } => {
            format!("is told that {} exists as {}", short(*id), short(*holder))
        }
        Fact::Refused { id } => format!("is refused {}", short(*id)),
        Fact::Unknown { id } => format!("does not know what became of {}", short(*id)),
        Fact::Ordered { id, verb } => format!("orders: {verb} {}", short(*id)),
        Fact::Obeyed { id, verb, from, to } => {
            let to = to.map_or_else(|| "gone".into(), |to| to.to_string());
            format!("is told: {verb} {} from {from} to {to}", short(*id))
        }
        Fact::Rewound { id, from, claim } => {
            format!("what {} recorded from `{from}` on is taken back after claim {claim}", short(*id))
        }
        Fact::Shares { id, writes } => format!("{} is to share {}", short(*id), wrote(writes)),
        Fact::Began { id, claim } => format!("begins {} claim {claim}", short(*id)),
        Fact::Ended { id, claim } => format!("does the work of {} claim {claim}", short(*id)),
        Fact::Stopped { id, claim } => format!("is done with {} claim {claim}", short(*id)),
        Fact::Joined { node, lease } => format!("joins as node {node}, lease {:.1} s", *lease as f64 / 1e6),
        Fact::Left { node } => format!("leaves as node {node}"),
        Fact::Disowned { node } => format!("gives back what it did not know of as node {node}"),
        Fact::Expired { nodes } => {
            let nodes: Vec<_> = nodes.iter().map(ToString::to_string).collect();
            format!("expires node {}", nodes.join(", "))
        }
        Fact::Claimed { node, id, claim, crashes, ahead, .. } => {
            let ahead = if *ahead { ", ahead" } else { "" };
            let crashes = if *crashes > 0 { format!(", crashed {crashes} times") } else { String::new() };
            format!("claims {} as {claim} for node {node}{ahead}{crashes}", short(*id))
        }
        Fact::Finishing { node, id, claim, how } => {
            format!("ends {} claim {claim} for node {node}: {how:?}", short(*id))
        }
        Fact::Finished { node, id, claim, how, applied } => {
            let answer = if *applied { "accepted" } else { "refused as stale" };
            format!("end of {} claim {claim} for node {node}, {how:?}, is {answer}", short(*id))
        }
        Fact::Recording { .. }
        | Fact::Recorded { .. }
        | Fact::Belongs { .. }
        | Fact::Suspending { .. }
        | Fact::Remembers { .. }
        | Fact::Delivered { .. }
        | Fact::Signalled { .. }
        | Fact::Dropped { .. }
        | Fact::Unfit { .. }
        | Fact::Entered { .. }
        | Fact::Ran { .. }
        | Fact::Saw { .. }
        | Fact::Expects { .. }
        | Fact::Says { .. }
        | Fact::Decided { .. }
        | Fact::Renamed { .. }
        | Fact::Redeemed { .. }
        | Fact::Returns { .. } => workflow(fact),
        Fact::AskedWhatIsDue { now } => format!("asks which schedules are due, and is told that it is {now}"),
        Fact::Scheduled(change) => scheduled(change),
        Fact::LookedAtSchedule(LookedSchedule { now, row, .. }) => {
            format!("finds {} at {now}, last fire {}", row.name, row.state.last_fire)
        }
        Fact::Damaged { id, claim } => format!("DAMAGED {} after claim {claim}", short(*id)),
        Fact::Mended { id } => format!("mends {}", short(*id)),
        Fact::Looked { id, status, claim, crashes } => {
            format!("finds {} {status} after claim {claim}, with {crashes} crashes", short(*id))
        }
        Fact::Fault { kind, on, until } => {
            let on = on.map_or_else(|| "everybody".into(), |on| format!("actor {on}"));
            let until = until.map(|until| format!(" until {until}")).unwrap_or_default();
            format!("FAULT {kind} on {on}{until}")
        }
        Fact::Calm => "CALM: no more faults".into(),
    }
}

/// What happens in workflows.
fn workflow(fact: &Fact) -> String {
    match fact {
        Fact::Recording { node, id, claim } => {
            format!("records for {} claim {claim}, node {node}", short(*id))
        }
        Fact::Recorded { node, id, claim, stored, writes } => {
            let answer = if *stored { "stored" } else { "refused as stale" };
            format!("record of {} claim {claim} for node {node}, {}, is {answer}", short(*id), wrote(writes))
        }
        Fact::Belongs { id, parent, abandoned } => {
            let how = if *abandoned { ", and goes on without it" } else { "" };
            format!("starts {} as a child of {}{how}", short(*id), short(*parent))
        }
        Fact::Suspending { id, claim, waits, until, writes } => {
            let waits: Vec<_> = waits.iter().map(|(subject, need)| format!("{need} of {subject}")).collect();
            let until = until.map(|until| format!(" or {until}")).unwrap_or_default();
            let (id, waits, writes) = (short(*id), waits.join(", "), wrote(writes));
            format!("{id} claim {claim} is to wait for {waits}{until}, with {writes}")
        }
        Fact::Remembers { id, claim, entries, inbox, .. } => {
            let keys: Vec<_> = entries.iter().map(|line| line.key.as_str()).collect();
            format!("{} claim {claim} is given [{}] and {}", short(*id), keys.join(", "), letters(inbox))
        }
        Fact::Delivered { id, claim, inbox } => {
            format!("{} claim {claim} is given {}", short(*id), letters(inbox))
        }
        Fact::Signalled { id, subject, sender, answer } => {
            format!("{subject} of {sender} for {} is {answer:?}", short(*id))
        }
        Fact::Dropped { id, subject, sender, count } => {
            let of = sender.as_ref().map(|sender| format!(" of {sender}")).unwrap_or_default();
            format!("drops {count} of {subject}{of} for {}", short(*id))
        }
        Fact::Unfit { id, since, key } => {
            format!("{}, begun by claim {since}, is told that what came for `{key}` does not fit", short(*id))
        }
        Fact::Entered { id, claim, key, .. } => format!("begins `{key}` of {} claim {claim}", short(*id)),
        Fact::Ran { id, claim, key } => format!("has done `{key}` of {} claim {claim}", short(*id)),
        Fact::Saw { id, since, key, digest, .. } => {
            format!(
                "{}, begun by claim {since}, goes on with `{key}`: {:016x}",
                short(*id),
                digest.unwrap_or(0)
            )
        }
        Fact::Expects { id, results } => {
            format!("expects one of {} results of {}", results.len(), short(*id))
        }
        Fact::Says { id, words } => format!("expects {} frames of {}", words.len(), short(*id)),
        Fact::Decided { id, claim, key, digest } => {
            format!("{} claim {claim} goes the way of `{key}`: {digest:016x}", short(*id))
        }
        Fact::Renamed { id, from, to, declared } => {
            let how = if *declared { "" } else { ", and the code does not say so" };
            format!("`{from}` of {} will be called `{to}`{how}", short(*id))
        }
        Fact::Redeemed { id, key, good } => {
            let good = if *good { "good" } else { "not good" };
            format!("the token of `{key}` of {} is {good}", short(*id))
        }
        Fact::Returns { id, claim, result } => format!("{} claim {claim} returns {result:016x}", short(*id)),
        _ => String::new(),
    }
}

fn wrote(writes: &JournalWrites) -> String {
    let mut words: Vec<String> = writes
        .entries
        .iter()
        .map(|line| format!("{} = {:?} {:016x}", line.key, line.kind, line.digest.unwrap_or(0)))
        .collect();
    words.extend(writes.read.iter().map(|no| format!("message {no} read")));
    words.extend(writes.forget.iter().map(|key| format!("{key} taken back")));
    format!("[{}]", words.join(", "))
}

fn letters(inbox: &[InboxMessage]) -> String {
    let words: Vec<_> =
        inbox.iter().map(|letter| format!("{} {} of {}", letter.no, letter.subject, letter.sender)).collect();
    format!("messages [{}]", words.join(", "))
}

/// The end of an id, which is its random part.
fn short(id: JobId) -> String {
    let id = id.to_string();
    format!("…{}", &id[id.len().saturating_sub(6)..])
}

fn scheduled(change: &ScheduleChange) -> String {
    let (name, verb) = (&change.name, change.verb.as_deref().unwrap_or("fires"));
    let Some(row) = &change.row else { return format!("{verb}: {name} is removed") };
    let jobs: Vec<_> = change.jobs.iter().map(|job| format!("{} for {}", short(job.id), job.fire)).collect();
    let paused = if row.state.paused.is_some() { ", paused" } else { "" };
    let last = row.state.last_fire;
    format!("{verb}: {name} is version {}, last fire {last}{paused}, with [{}]", row.version, jobs.join(", "))
}
