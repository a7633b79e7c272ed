//! Unread signals that an operator drops: nobody reads them, and their senders stay known.

use mainspring_core::bounds;
use mainspring_core::id::JobId;
use mainspring_core::job::{Outcome, Reason, State, Verb};
use mainspring_core::journal::{Signalled, Suspension};

use super::workflow_calls::{name, reads, senders, signal, until_signal, wait};
use crate::harness::{Harness, because, plain, succeed};

async fn dropped(h: &Harness, id: JobId, about: &str, sender: Option<&str>) -> Option<usize> {
    h.store.drop_signals(id, name(about), sender.map(str::to_owned)).await.expect("drop_signals")
}

/// Unread signals of a name are dropped, all or those of one sender, and no others.
pub async fn unread_signals_are_dropped_by_name_and_sender(h: &Harness) {
    let (node, claim) = h.running().await;
    let other = h.put_one().await;
    for (about, sender) in [("go", "a"), ("go", "b"), ("go", "c"), ("GO", "a"), ("stop", "a")] {
        h.send(claim.id, about, sender).await;
        h.send(other, about, sender).await;
    }
    h.end(node, claim, Outcome::Release).await;
    assert_eq!(dropped(h, claim.id, "go", Some("b")).await, Some(1));
    assert_eq!(dropped(h, claim.id, "go", Some("b")).await, Some(0));
    assert_eq!(dropped(h, claim.id, "go", Some("B")).await, Some(0));
    assert_eq!(dropped(h, claim.id, "none", None).await, Some(0));
    assert_eq!(h.timeline(claim.id).await.inbox.messages.len(), 4);
    assert_eq!(dropped(h, claim.id, "go", None).await, Some(2));
    assert_eq!(senders(&h.timeline(claim.id).await.inbox.messages), ["a", "a"]);
    assert_eq!(h.timeline(other).await.inbox.messages.len(), 5);
    assert_eq!(dropped(h, h.id(), "go", None).await, None);
}

/// A dropped signal's sender is known as that of one that was read, up to the same bound.
pub async fn senders_of_dropped_signals_are_remembered(h: &Harness) {
    let (node, claim) = h.running().await;
    h.send(claim.id, "go", "read").await;
    h.record(node, claim, reads(&h.messages(claim).await)).await;
    h.send(claim.id, "go", "dropped").await;
    assert_eq!(dropped(h, claim.id, "go", None).await, Some(1), "only what is unread");
    assert_eq!(h.signal(claim.id, "go", "dropped").await, Signalled::Repeated);
    assert!(h.messages(claim).await.is_empty());
    let many: Vec<_> = (0..bounds::INBOX_READ).map(|number| number.to_string()).collect();
    for batch in many.chunks(bounds::BATCH) {
        h.signal_all(batch.iter().map(|sender| signal(claim.id, "go", sender)).collect()).await;
    }
    assert_eq!(dropped(h, claim.id, "go", None).await, Some(bounds::INBOX_READ));
    assert_eq!(h.signal(claim.id, "go", "0").await, Signalled::Repeated);
    assert_eq!(h.signal(claim.id, "go", "dropped").await, Signalled::Stored);
}

/// A job that a dropped signal has woken finds nothing, and suspends again until one comes that is not dropped.
pub async fn job_woken_by_a_dropped_signal_suspends_again(h: &Harness) {
    let (node, id) = h.waiting(until_signal("go")).await;
    h.send(id, "go", "a").await;
    assert_eq!(h.status(id).await, plain(State::Ready));
    assert_eq!(dropped(h, id, "go", None).await, Some(1));
    assert_eq!(h.status(id).await, plain(State::Ready));
    let claimed = h.take(node).await;
    assert!(h.mail(&claimed).await.is_empty());
    h.suspend(node, claimed.claim, until_signal("go")).await;
    assert_eq!(h.status(id).await, because(State::Suspended, Reason::Signal));
    h.send(id, "go", "b").await;
    assert_eq!(h.status(id).await, plain(State::Ready));
    let claimed = h.take(node).await;
    assert_eq!(senders(&h.mail(&claimed).await), ["b"]);
    // One that runs: what is dropped before it suspends does not wake it.
    h.send(id, "go", "c").await;
    assert_eq!(dropped(h, id, "go", None).await, Some(2));
    h.suspend(node, claimed.claim, until_signal("go")).await;
    assert_eq!(h.status(id).await, because(State::Suspended, Reason::Signal));
}

/// What was dropped does not count for a wait that needs several.
pub async fn dropped_signal_does_not_count_for_a_wait(h: &Harness) {
    let waits = vec![wait("vote", 2)];
    let (_, id) = h.waiting(Suspension { waits, ..until_signal("x") }).await;
    h.send(id, "vote", "a").await;
    assert_eq!(dropped(h, id, "vote", Some("a")).await, Some(1));
    h.send(id, "vote", "b").await;
    assert_eq!(h.status(id).await, because(State::Suspended, Reason::Signal));
    h.send(id, "vote", "c").await;
    assert_eq!(h.status(id).await, plain(State::Ready));
}

/// A claim that was given a signal before it was dropped may read it, once.
pub async fn claim_may_read_what_was_dropped_meanwhile(h: &Harness) {
    let (node, claim) = h.running().await;
    h.send(claim.id, "go", "a").await;
    let messages = h.messages(claim).await;
    assert_eq!(dropped(h, claim.id, "go", None).await, Some(1));
    h.record(node, claim, reads(&messages)).await;
    assert!(h.messages(claim).await.is_empty());
    assert_eq!(h.signal(claim.id, "go", "a").await, Signalled::Repeated);
    h.end(node, claim, succeed()).await;
}

/// Signals of a job that is held or has ended are dropped too: it may be run again.
pub async fn signals_of_any_job_are_dropped(h: &Harness) {
    let held = h.put_one().await;
    h.send(held, "go", "a").await;
    h.apply(held, Verb::Hold { why: String::new() }).await;
    assert_eq!(dropped(h, held, "go", None).await, Some(1));
    assert_eq!(h.status(held).await, because(State::Suspended, Reason::Hold));
    let (node, claim) = h.running().await;
    h.send(claim.id, "go", "a").await;
    h.end(node, claim, succeed()).await;
    assert_eq!(dropped(h, claim.id, "go", None).await, Some(1));
    assert!(h.timeline(claim.id).await.inbox.messages.is_empty());
    assert_eq!(h.status(claim.id).await, plain(State::Succeeded));
}
