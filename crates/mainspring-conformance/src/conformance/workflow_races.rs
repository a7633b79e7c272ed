//! Races of workflows: whoever comes second sees who came first, nobody sleeps past a message, and nothing hangs.

use mainspring_core::job::{Outcome, Reason, State, Verb};
use mainspring_core::journal::{Recorded, Signalled, Suspension};
use mainspring_core::store::{Changed, Claimed, Finish, Finished};

use super::workflow_calls::{
    recording, signal, starting, steps, suspended, until_child, until_signal, until_time, wait,
};
use crate::executor::{block_on, race};
use crate::harness::{Harness, LEASE, because, cancel, plain, succeed};

/// How often each race is run: they are short, and threads meet in many ways.
const ROUNDS: usize = 25;

type Racer<'a, T> = Box<dyn FnOnce() -> T + Send + 'a>;

/// A signal and the suspension that waits for it at once: the job is woken, whoever comes first.
pub async fn signal_and_suspension_always_wake(h: &Harness) {
    for _ in 0..ROUNDS {
        let (node, claim) = h.running().await;
        race::<()>(vec![
            Box::new(|| block_on(h.suspend(node, claim, until_signal("go")))),
            Box::new(|| block_on(h.send(claim.id, "go", "a"))),
        ]);
        assert_eq!(h.status(claim.id).await, plain(State::Ready));
        let claimed = h.take(node).await;
        assert_eq!(h.messages(claimed.claim).await.len(), 1);
        h.end(node, claimed.claim, succeed()).await;
    }
}

/// The end of a child and the suspension that waits for it at once: the parent is woken, whoever comes first.
pub async fn end_of_a_child_and_suspension_always_wake(h: &Harness) {
    for _ in 0..ROUNDS {
        let (node, claim, child) = h.parent().await;
        let other = h.node().await;
        let of_child = h.take_in(other, "q2").await.claim;
        race::<()>(vec![
            Box::new(|| block_on(h.suspend(node, claim, until_child(child)))),
            Box::new(|| block_on(h.end(other, of_child, succeed()))),
        ]);
        assert_eq!(h.status(claim.id).await, plain(State::Ready));
        let claimed = h.take(node).await;
        assert_eq!(h.messages(claimed.claim).await.len(), 1);
        h.end(node, claimed.claim, succeed()).await;
    }
}

/// Several signals at once are counted together, and wake once.
pub async fn signals_at_once_wake_once(h: &Harness) {
    for _ in 0..ROUNDS {
        let (node, id) = h.waiting(Suspension { waits: vec![wait("vote", 3)], ..until_signal("x") }).await;
        race::<()>(vec![
            Box::new(|| block_on(h.send(id, "vote", "a"))),
            Box::new(|| block_on(h.send(id, "vote", "b"))),
            Box::new(|| block_on(h.send(id, "vote", "c"))),
        ]);
        let claimed = h.take(node).await;
        assert_eq!((claimed.claim.id, h.mail(&claimed).await.len()), (id, 3));
        assert!(h.claim(node, 9).await.is_empty());
        h.end(node, claimed.claim, succeed()).await;
    }
}

/// One signal at once from many threads is stored once.
pub async fn one_signal_at_once_is_stored_once(h: &Harness) {
    for _ in 0..ROUNDS {
        let id = h.put_one().await;
        let racers: Vec<Racer<'_, Signalled>> =
            (0..3).map(|_| -> Racer<'_, _> { Box::new(|| block_on(h.signal(id, "go", "a"))) }).collect();
        let answers = race(racers);
        assert_eq!(answers.iter().filter(|answer| **answer == Signalled::Stored).count(), 1, "{answers:?}");
        assert!(answers.iter().all(|answer| matches!(answer, Signalled::Stored | Signalled::Repeated)));
        assert_eq!(h.timeline(id).await.inbox.messages.len(), 1);
    }
}

/// Signals to the same jobs in opposite orders do not hold each other up.
pub async fn signals_in_opposite_orders_all_arrive(h: &Harness) {
    for _ in 0..ROUNDS {
        let mut ids = Vec::new();
        for _ in 0..5 {
            ids.push(h.waiting(until_signal("go")).await.1);
        }
        let there: Vec<_> = ids.iter().map(|id| signal(*id, "go", "there")).collect();
        let back: Vec<_> = ids.iter().rev().map(|id| signal(*id, "go", "back")).collect();
        let answers = race::<Vec<Signalled>>(vec![
            Box::new(|| block_on(h.signal_all(there))),
            Box::new(|| block_on(h.signal_all(back))),
        ]);
        assert!(answers.concat().iter().all(|answer| *answer == Signalled::Stored), "{answers:?}");
        assert_eq!(h.counts().await.total(State::Ready), 5);
        for id in ids {
            assert_eq!(h.timeline(id).await.inbox.messages.len(), 2);
            h.apply(id, Verb::Delete).await;
        }
    }
}

/// A signal and a claim at once: the message is in the inbox, and a suspension does not sleep past it.
pub async fn signal_and_claim_lose_no_message(h: &Harness) {
    let node = h.node().await;
    for _ in 0..ROUNDS {
        let id = h.put_one().await;
        let request = h.request(node, 1);
        let mut answers = race::<Vec<Claimed>>(vec![
            Box::new(|| block_on(h.claim_as(request))),
            Box::new(|| {
                block_on(h.send(id, "go", "a"));
                Vec::new()
            }),
        ]);
        // A claim may step over a job that is marked at this moment, and is told of it again.
        let claim = match answers.remove(0).pop() {
            Some(claimed) => claimed.claim,
            None => h.take(node).await.claim,
        };
        assert_eq!(h.messages(claim).await.len(), 1);
        h.suspend(node, claim, until_signal("go")).await;
        let claimed = h.take(node).await;
        assert_eq!((claimed.claim.id, h.messages(claimed.claim).await.len()), (id, 1));
        h.end(node, claimed.claim, succeed()).await;
    }
}

/// A signal and the time at once wake a job once.
pub async fn signal_and_time_wake_once(h: &Harness) {
    for _ in 0..ROUNDS {
        let until = h.now().after(LEASE);
        let (node, id) = h.waiting(Suspension { until: Some(until), ..until_signal("go") }).await;
        h.advance(LEASE);
        race::<()>(vec![
            Box::new(|| assert!(block_on(h.promote()) <= 1)),
            Box::new(|| block_on(h.send(id, "go", "a"))),
        ]);
        let claimed = h.take(node).await;
        assert_eq!((claimed.claim.number, h.messages(claimed.claim).await.len()), (2, 1));
        assert!(h.claim(node, 9).await.is_empty());
        h.end(node, claimed.claim, succeed()).await;
    }
}

/// A hold and a signal at once: the job is held, and has its message.
pub async fn hold_and_signal_always_hold(h: &Harness) {
    for _ in 0..ROUNDS {
        let (_, id) = h.waiting(until_signal("go")).await;
        race::<()>(vec![
            Box::new(|| block_on(h.apply(id, Verb::Hold { why: String::new() }))),
            Box::new(|| block_on(h.send(id, "go", "a"))),
        ]);
        let record = h.get(id).await;
        assert_eq!(record.summary.status, because(State::Suspended, Reason::Hold));
        assert_eq!((record.waits.len(), h.timeline(id).await.inbox.messages.len()), (0, 1));
    }
}

/// A cancellation and a suspension at once: the job is cancelled, whoever comes first.
pub async fn suspension_and_cancel_always_cancel(h: &Harness) {
    for suspension in [until_signal("go"), until_time(h.now())] {
        for _ in 0..ROUNDS {
            let (node, claim) = h.running().await;
            let outcome = suspended(suspension.clone());
            race::<()>(vec![
                Box::new(|| block_on(h.end(node, claim, outcome))),
                Box::new(|| block_on(h.apply(claim.id, cancel("enough")))),
            ]);
            let record = h.get(claim.id).await;
            assert_eq!(record.summary.status, because(State::Cancelled, Reason::Operator));
            assert_eq!(record.note.as_deref(), Some("enough"));
        }
    }
}

/// A node that comes back in the moment of its rescue either records or has lost; what it was told is true.
pub async fn record_and_rescue_agree(h: &Harness) {
    for _ in 0..ROUNDS {
        let (node, claim) = h.running().await;
        h.advance(LEASE);
        let rescuer = h.node().await;
        let child = h.child();
        let id = child.job.id;
        let batch = vec![starting(claim, vec![child])];
        let answers = race::<Vec<Recorded>>(vec![
            Box::new(|| block_on(h.record_all(node, batch))),
            Box::new(|| {
                // What is just being written to may be left for the next call.
                let rescued = block_on(h.rescue(rescuer));
                assert!(rescued.more || rescued.returned == 1, "{rescued:?}");
                Vec::new()
            }),
        ]);
        while h.rescue(rescuer).await.more {}
        let stored = answers[0] == [Recorded::Stored];
        assert_eq!(h.timeline(claim.id).await.entries.len(), usize::from(stored));
        assert_eq!(h.find(id).await.is_some(), stored);
        assert_eq!(h.get(claim.id).await.summary.crashes, 1);
        h.apply(claim.id, Verb::Delete).await;
    }
}

/// One claim that records from two threads at once loses nothing, and keeps one entry per key.
pub async fn records_at_once_are_all_stored(h: &Harness) {
    for _ in 0..ROUNDS {
        let (node, claim) = h.running().await;
        let record = |keys| move || block_on(h.record_all(node, vec![recording(claim, steps(keys))]));
        let answers =
            race::<Vec<Recorded>>(vec![Box::new(record(["a", "both"])), Box::new(record(["both", "b"]))]);
        assert_eq!(answers.concat(), [Recorded::Stored; 2]);
        let mut keys: Vec<_> =
            h.timeline(claim.id).await.entries.into_iter().map(|entry| entry.key.to_string()).collect();
        keys.sort();
        assert_eq!(keys, ["a", "b", "both"]);
        h.end(node, claim, succeed()).await;
    }
}

/// A parent and its running child that end at once both end, and nothing hangs.
pub async fn parent_and_running_child_end_at_once(h: &Harness) {
    for _ in 0..ROUNDS {
        let (node, claim, child) = h.parent().await;
        let other = h.node().await;
        let of_child = h.take_in(other, "q2").await.claim;
        race::<()>(vec![
            Box::new(|| block_on(h.end(node, claim, succeed()))),
            Box::new(|| block_on(h.end(other, of_child, Outcome::Release))),
        ]);
        // Flagged before it was given back, or cancelled after.
        let reasons = [Reason::Operator, Reason::Parent].map(|reason| because(State::Cancelled, reason));
        assert_eq!(h.status(claim.id).await, plain(State::Succeeded));
        assert!(reasons.contains(&h.status(child).await), "{}", h.status(child).await);
    }
}

/// A parent that ends while an operator cancels its waiting child: the child is cancelled once.
pub async fn parent_and_waiting_child_end_at_once(h: &Harness) {
    for _ in 0..ROUNDS {
        let (node, claim, child) = h.parent().await;
        race::<()>(vec![
            Box::new(|| block_on(h.end(node, claim, succeed()))),
            Box::new(|| assert_ne!(block_on(h.change(child, cancel(""))), Changed::NotFound)),
        ]);
        assert_eq!(h.status(claim.id).await, plain(State::Succeeded));
        assert_eq!(h.status(child).await.state, State::Cancelled);
    }
}

/// A child that starts while its parent is ended by somebody else does not outlive it.
pub async fn child_that_starts_as_its_parent_ends_does_not_outlive_it(h: &Harness) {
    for _ in 0..ROUNDS {
        let (node, claim) = h.running().await;
        h.apply(claim.id, cancel("")).await;
        let child = h.child();
        let id = child.job.id;
        let batch = vec![starting(claim, vec![child])];
        let answers = race::<Vec<Recorded>>(vec![
            Box::new(|| block_on(h.record_all(node, batch))),
            Box::new(|| {
                block_on(h.store.retire(node)).expect("retire");
                Vec::new()
            }),
        ]);
        let expected = match answers[0][0] {
            Recorded::Stored => Some(because(State::Cancelled, Reason::Parent)),
            Recorded::LeaseLost | Recorded::Taken { .. } => None,
        };
        assert_eq!(h.find(id).await.map(|job| job.summary.status), expected);
        assert_eq!(h.status(claim.id).await, because(State::Cancelled, Reason::Operator));
    }
}

/// Children of the same parents that end in opposite orders do not hold each other up, and all are told.
pub async fn children_that_end_in_opposite_orders_all_tell(h: &Harness) {
    for _ in 0..ROUNDS {
        let (first, second) = (h.node().await, h.node().await);
        h.put_many(2).await;
        let parents: Vec<_> = h.claim(first, 2).await.into_iter().map(|job| job.claim).collect();
        let mut batches = Vec::new();
        for (node, order) in [(first, [0, 1]), (second, [1, 0])] {
            let mut batch = Vec::new();
            for parent in order {
                h.start(first, parents[parent], h.child()).await;
                let claim = h.take_in(node, "q2").await.claim;
                batch.push(Finish { claim, outcome: succeed() });
            }
            batches.push((node, batch));
        }
        let racers = batches.into_iter().map(|(node, batch)| -> Racer<'_, Vec<Finished>> {
            Box::new(move || block_on(h.store.finish(node, batch)).expect("finish"))
        });
        assert_eq!(race(racers.collect()).concat(), [Finished::Applied; 4]);
        for parent in parents {
            assert_eq!(h.messages(parent).await.len(), 2);
            h.end(first, parent, succeed()).await;
        }
    }
}
