//! Races: two things at once, on real threads, and exactly one wins.

use std::collections::BTreeSet;

use mainspring_core::job::{Outcome, Reason, State, Unique, Verb, When};
use mainspring_core::store::{Changed, Finish, Finished, QueueChange, Receipt, Rescue, Retention};
use mainspring_core::time::{Span, Timestamp};
use mainspring_core::{Error, bounds};

use crate::executor::{block_on, race};
use crate::harness::{Harness, LEASE, SECOND, because, cancel, plain, queue, succeed};

/// How often each race is run: they are short, and threads meet in many ways.
const ROUNDS: usize = 25;

type Racer<'a, T> = Box<dyn FnOnce() -> T + Send + 'a>;

/// Nodes that claim at once get different jobs, and together all of them.
pub async fn claims_at_once_are_disjoint(h: &Harness) {
    let ids: BTreeSet<_> = h.put_many(200).await.into_iter().collect();
    let mut racers: Vec<Racer<'_, Vec<_>>> = Vec::new();
    for _ in 0..4 {
        let node = h.node().await;
        let requests: Vec<_> = (0..20).map(|_| h.request(node, 7)).collect();
        racers.push(Box::new(move || {
            let claim = |request| block_on(h.claim_as(request)).into_iter().map(|job| job.claim.id);
            requests.into_iter().flat_map(claim).collect()
        }));
    }
    let claimed: Vec<_> = race(racers).into_iter().flatten().collect();
    assert_eq!(claimed.len(), ids.len(), "no job twice");
    assert_eq!(claimed.into_iter().collect::<BTreeSet<_>>(), ids);
}

/// A node that comes back in the moment of its rescue either finishes or has lost; never both, never neither.
pub async fn finish_and_rescue_have_one_winner(h: &Harness) {
    for _ in 0..ROUNDS {
        let (node, claim) = h.running().await;
        h.advance(LEASE);
        let rescuer = h.node().await;
        let answers = race::<(bool, usize)>(vec![
            Box::new(|| (block_on(h.finish(node, claim, succeed())) == Finished::Applied, 0)),
            Box::new(|| (false, block_on(h.rescue(rescuer)).returned)),
        ]);
        let (finished, returned) = (answers[0].0, answers[1].1);
        assert_eq!(usize::from(finished) + returned, 1, "{answers:?}");
        let summary = h.get(claim.id).await.summary;
        let expected = if finished { State::Succeeded } else { State::Ready };
        assert_eq!((summary.status, summary.crashes), (plain(expected), u16::from(!finished)));
        if !finished {
            h.apply(claim.id, Verb::Delete).await;
        }
    }
}

/// A renewal in the moment of expiry either saves the node or tells it that it is lost.
pub async fn renewal_and_rescue_have_one_winner(h: &Harness) {
    for _ in 0..ROUNDS {
        let (node, claim) = h.running().await;
        h.advance(LEASE);
        let rescuer = h.node().await;
        let answers = race::<bool>(vec![
            Box::new(|| block_on(h.try_renew(node)).is_ok()),
            Box::new(|| block_on(h.rescue(rescuer)).expired == [node]),
        ]);
        assert_ne!(answers[0], answers[1], "renewed: {}, expired: {}", answers[0], answers[1]);
        let finished = h.finish(node, claim, succeed()).await == Finished::Applied;
        assert_eq!(finished, answers[0]);
        if !finished {
            h.apply(claim.id, Verb::Delete).await;
        }
    }
}

/// A job that is enqueued in the moment of its queue's deletion is there, and so is its queue, whoever comes first.
pub async fn job_beside_the_deletion_of_its_queue_is_kept(h: &Harness) {
    let change = QueueChange { retain_succeeded: Some(bounds::DELAY), ..QueueChange::default() };
    for _ in 0..ROUNDS {
        h.store.configure(queue("q"), change.clone()).await.expect("configure");
        let job = h.job();
        let id = job.id;
        let answers = race::<Option<bool>>(vec![
            Box::new(|| {
                block_on(h.put(job));
                None
            }),
            Box::new(|| match block_on(h.store.delete_queue(queue("q"))) {
                Err(Error::QueueNotEmpty { waiting: 1, running: 0, ended: 0, .. }) => Some(false),
                answer => Some(answer.expect("an answer")),
            }),
        ]);
        let deleted = answers[1].expect("the second deletes");
        let retention = if deleted { Retention::default().succeeded } else { Span(bounds::DELAY) };
        let queues = h.store.queues().await.expect("queues");
        assert_eq!(queues.len(), 1, "it is there: {queues:?}");
        assert_eq!(queues[0].settings.retention.succeeded, retention, "deleted: {deleted}");
        assert_eq!(h.get(id).await.summary.status, plain(State::Ready));
        h.apply(id, Verb::Delete).await;
    }
}

/// Two rescuers at once rescue once.
pub async fn two_rescuers_rescue_once(h: &Harness) {
    for _ in 0..ROUNDS {
        let (node, claim) = h.running().await;
        h.advance(LEASE);
        let mut racers: Vec<Racer<'_, _>> = Vec::new();
        for _ in 0..2 {
            let by = h.node().await;
            racers.push(Box::new(move || {
                block_on(h.store.rescue(Rescue { by, steady: LEASE, seen: Timestamp::MAX })).expect("rescue")
            }));
        }
        let answers = race(racers);
        let expired: Vec<_> = answers.iter().flat_map(|answer| answer.expired.clone()).collect();
        assert_eq!(expired, [node]);
        assert_eq!(answers.iter().map(|answer| answer.returned).sum::<usize>(), 1);
        assert_eq!(h.get(claim.id).await.summary.crashes, 1);
        h.apply(claim.id, Verb::Delete).await;
    }
}

/// A cancellation and a success at once: the job succeeds, or the cancellation finds it ended; nothing hangs.
pub async fn finish_and_cancel_leave_one_outcome(h: &Harness) {
    for _ in 0..ROUNDS {
        let (node, claim) = h.running().await;
        let answers = race::<bool>(vec![
            Box::new(|| block_on(h.finish(node, claim, succeed())) == Finished::Applied),
            Box::new(|| {
                let answer = block_on(h.change(claim.id, cancel("")));
                assert!(!matches!(answer, Changed::NotFound));
                true
            }),
        ]);
        assert!(answers[0], "a terminal outcome wins over a flag");
        let summary = h.get(claim.id).await.summary;
        assert_eq!((summary.status, summary.cancelling), (plain(State::Succeeded), false));
    }
}

/// A release and a cancellation at once end in a cancelled job, whoever is first.
pub async fn release_and_cancel_always_cancel(h: &Harness) {
    for _ in 0..ROUNDS {
        let (node, claim) = h.running().await;
        race::<()>(vec![
            Box::new(|| {
                block_on(h.finish(node, claim, Outcome::Release));
            }),
            Box::new(|| block_on(h.apply(claim.id, cancel("")))),
        ]);
        assert_eq!(h.status(claim.id).await, because(State::Cancelled, Reason::Operator));
    }
}

/// Eight callers with one key make one job, and all hear of the same.
pub async fn one_key_at_once_makes_one_job(h: &Harness) {
    for round in 0..ROUNDS {
        let key = format!("key {round}");
        let racers: Vec<Racer<'_, _>> = (0..8)
            .map(|_| {
                let job = h.job_with(|job| job.options.unique = Some(Unique::new(key.clone())));
                let racer: Racer<'_, _> = Box::new(move || (job.id, block_on(h.enqueue(job))));
                racer
            })
            .collect();
        let answers = race(racers);
        let created: Vec<_> =
            answers.iter().filter(|(_, receipt)| *receipt == Receipt::Created).map(|(id, _)| *id).collect();
        assert_eq!(created.len(), 1, "{answers:?}");
        let others = answers.iter().filter(|(id, _)| *id != created[0]);
        assert!(others.into_iter().all(|(_, receipt)| *receipt == Receipt::Existing(created[0])));
    }
    assert_eq!(h.counts().await.total(State::Ready), ROUNDS as u64);
}

/// One id at once is one job, acknowledged to all; one of them is told that he stored it.
pub async fn one_id_at_once_makes_one_job(h: &Harness) {
    for _ in 0..ROUNDS {
        let job = h.job();
        let racers: Vec<Racer<'_, _>> = (0..4)
            .map(|_| {
                let job = job.clone();
                let racer: Racer<'_, _> = Box::new(move || block_on(h.enqueue(job)));
                racer
            })
            .collect();
        let receipts = race(racers);
        let created = receipts.iter().filter(|receipt| **receipt == Receipt::Created).count();
        let repeated = receipts.iter().filter(|receipt| **receipt == Receipt::Repeated).count();
        assert_eq!((created, repeated), (1, 3), "{receipts:?}");
    }
    assert_eq!(h.counts().await.total(State::Ready), ROUNDS as u64);
}

/// A job that becomes due while it is cancelled is cancelled, and stays so.
pub async fn promotion_and_cancel_always_cancel(h: &Harness) {
    for _ in 0..ROUNDS {
        let id = h.put(h.job_with(|job| job.run = Some(When::After(SECOND)))).await;
        h.advance(SECOND);
        race::<()>(vec![
            Box::new(|| {
                block_on(h.promote());
            }),
            Box::new(|| block_on(h.apply(id, cancel("")))),
        ]);
        assert_eq!(h.status(id).await, because(State::Cancelled, Reason::Operator));
    }
    let node = h.node().await;
    assert!(h.claim(node, 10).await.is_empty());
}

/// A claim and a deletion at once: the job runs, or it is gone.
pub async fn claim_and_delete_have_one_winner(h: &Harness) {
    let node = h.node().await;
    for _ in 0..ROUNDS {
        let id = h.put_one().await;
        let answers = race::<bool>(vec![
            Box::new(|| block_on(h.claim(node, 1)).len() == 1),
            Box::new(|| matches!(block_on(h.change(id, Verb::Delete)), Changed::Applied { .. })),
        ]);
        assert_ne!(answers[0], answers[1], "claimed: {}, deleted: {}", answers[0], answers[1]);
        assert_eq!(h.find(id).await.is_some(), answers[0]);
    }
}

/// The same finish at once is one outcome, acknowledged to both.
pub async fn one_finish_at_once_is_applied_once(h: &Harness) {
    for _ in 0..ROUNDS {
        let (node, claim) = h.running().await;
        let finish = || {
            let outcome = crate::harness::fail();
            block_on(h.store.finish(node, vec![Finish { claim, outcome }])).expect("finish")
        };
        let answers = race::<Vec<Finished>>(vec![Box::new(finish), Box::new(finish)]);
        assert_eq!(answers, [[Finished::Applied], [Finished::Applied]]);
        assert_eq!(h.get(claim.id).await.summary.failures, 1);
    }
}

/// Two handles on the same data race like two threads on one.
pub async fn handles_claim_disjointly(h: &Harness) {
    let ids: BTreeSet<_> = h.put_many(100).await.into_iter().collect();
    let handles = [h.other(), h.other()];
    let mut racers: Vec<Racer<'_, Vec<_>>> = Vec::new();
    for handle in &handles {
        let node = handle.register(h.registration()).await.expect("register").no;
        let requests: Vec<_> = (0..20).map(|_| h.request(node, 5)).collect();
        racers.push(Box::new(move || {
            let claim = |request| block_on(handle.claim(request)).expect("claim").jobs;
            requests.into_iter().flat_map(claim).map(|job| job.claim.id).collect()
        }));
    }
    let claimed: Vec<_> = race(racers).into_iter().flatten().collect();
    assert_eq!((claimed.len(), claimed.into_iter().collect::<BTreeSet<_>>()), (ids.len(), ids));
    // Before the harness looks at the store: a handle that goes away is a process that ends.
    for handle in handles {
        handle.close().await;
    }
}
