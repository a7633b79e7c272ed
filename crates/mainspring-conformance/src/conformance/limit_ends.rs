//! Limits and the ends of claims: what was taken is given back in the same commit, once, and the next job is let in.

use std::collections::BTreeSet;

use mainspring_core::id::{ClaimBatchNo, JobId};
use mainspring_core::job::{Outcome, Reason, State, Unique, Verb, When};
use mainspring_core::journal::Suspension;
use mainspring_core::store::{Changed, Finish, Finished};

use super::limit_calls::take;
use super::workflow_calls::{suspended, until_signal, until_time};
use crate::harness::{
    Damage, Harness, LEASE, SECOND, because, cancel, claimed_ids, fail, plain, queue, retry, stopped, succeed,
};

fn keeping() -> Suspension {
    Suspension { keep: true, ..until_signal("go") }
}

/// Each outcome gives back what the claim took, and lets the next job in.
pub async fn every_outcome_gives_back(h: &Harness) {
    let later = h.now().after(SECOND * 100);
    let outcomes = [
        succeed(),
        retry(SECOND * 100),
        fail(),
        Outcome::Snooze { after: SECOND * 100 },
        stopped("enough"),
        suspended(until_signal("go")),
        suspended(until_time(later)),
        suspended(Suspension { reason: Reason::Drift, waits: Vec::new(), ..until_signal("go") }),
    ];
    for outcome in outcomes {
        let (node, claim) = h.holding().await;
        let next = h.put_limited(&[take("l")]).await;
        h.assert_full(node).await;
        h.end(node, claim, outcome.clone()).await;
        assert_eq!(h.in_use("l", "").await, 0, "{outcome:?}");
        assert_eq!(h.run_all(node).await, [next], "{outcome:?}");
    }
}

/// A released job gives back and waits again, before those that came after it.
pub async fn release_gives_back(h: &Harness) {
    let (node, claim) = h.holding().await;
    let next = h.put_limited(&[take("l")]).await;
    h.assert_full(node).await;
    h.end(node, claim, Outcome::Release).await;
    assert_eq!(h.in_use("l", "").await, 0);
    assert_eq!(h.run_all(node).await, [claim.id, next]);
}

/// A suspension whose wait is over already gives back, and the job waits for room as others.
pub async fn suspension_that_is_over_gives_back(h: &Harness) {
    let (node, claim) = h.holding().await;
    let next = h.put_limited(&[take("l")]).await;
    h.assert_full(node).await;
    h.send(claim.id, "go", "ann").await;
    h.suspend(node, claim, until_signal("go")).await;
    assert_eq!(h.status(claim.id).await, plain(State::Ready));
    assert_eq!(h.in_use("l", "").await, 0);
    assert_eq!(h.claim(node, 10).await.len(), 1);
    h.assert_full(node).await;
    let _ = next;
}

/// Disowning gives back.
pub async fn disowned_claims_give_back(h: &Harness) {
    let (node, claim) = h.holding().await;
    h.put_limited(&[take("l")]).await;
    h.assert_full(node).await;
    let settled = ClaimBatchNo(h.batch(node).0);
    assert_eq!(h.store.disown(node, settled, Vec::new()).await.expect("disown"), 1);
    assert_eq!((h.in_use("l", "").await, h.status(claim.id).await), (0, plain(State::Ready)));
    assert_eq!(h.run_all(node).await.len(), 2);
}

/// A node that retires gives back.
pub async fn retired_node_gives_back(h: &Harness) {
    let (node, claim) = h.holding().await;
    let next = h.put_limited(&[take("l")]).await;
    h.assert_full(node).await;
    assert_eq!(h.store.retire(node).await.expect("retire"), 1);
    assert_eq!(h.in_use("l", "").await, 0);
    let other = h.node().await;
    assert_eq!(h.run_all(other).await, [claim.id, next]);
}

/// A rescue gives back, whatever becomes of the job.
pub async fn rescue_gives_back(h: &Harness) {
    h.max("l", 1).await;
    let id = h.put_limited(&[take("l")]).await;
    let next = h.put_limited(&[take("l")]).await;
    for crashes in 1..=3 {
        let node = h.node().await;
        assert_eq!(h.claim_one(node).await.id, id);
        h.assert_full(node).await;
        let rescued = h.lose(node).await;
        assert_eq!(rescued.returned + rescued.quarantined, 1, "crash {crashes}");
        assert_eq!(h.in_use("l", "").await, 0);
    }
    assert_eq!(h.status(id).await, because(State::Suspended, Reason::Quarantine));
    let node = h.node().await;
    let claim = h.claim_one(node).await;
    assert_eq!(claim.id, next);
    h.apply(next, cancel("no")).await;
    h.lose(node).await;
    assert_eq!((h.status(next).await.state, h.in_use("l", "").await), (State::Cancelled, 0));
}

/// A claim that cannot read its job gives back what it took.
pub async fn unreadable_limited_job_gives_back(h: &Harness) {
    h.max("l", 1).await;
    for damage in [Damage::Options, Damage::Claim] {
        let bad = h.put_limited(&[take("l")]).await;
        h.damage(bad, damage);
        let good = h.put_limited(&[take("l")]).await;
        let node = h.node().await;
        let mut claimed = h.claim(node, 10).await;
        claimed.extend(h.claim(node, 10).await);
        assert_eq!(claimed_ids(&claimed), [good], "{damage:?}");
        assert_eq!(h.status(bad).await, because(State::Suspended, Reason::Unreadable));
        assert_eq!(h.in_use("l", "").await, 1);
        h.end(node, claimed[0].claim, succeed()).await;
        assert_eq!(h.in_use("l", "").await, 0);
        h.mend(bad, damage);
        h.apply(bad, Verb::Resume).await;
        assert_eq!(h.run_all(node).await, [bad], "{damage:?}");
    }
}

/// What was given back is not given back again by a repeat, or by a claim that has ended.
pub async fn units_are_given_back_once(h: &Harness) {
    h.max("l", 2).await;
    let ids = h.put_all_limited(3, &[take("l")]).await;
    let node = h.node().await;
    let claimed = h.claim_all(node).await;
    assert_eq!(claimed_ids(&claimed), ids[..2]);
    let finish = |at: usize| Finish { claim: claimed[at].claim, outcome: succeed() };
    let answers = h.store.finish(node, vec![finish(0), finish(0)]).await.expect("finish");
    assert_eq!(answers, [Finished::Applied; 2]);
    h.end(node, claimed[0].claim, succeed()).await;
    assert_eq!(h.in_use("l", "").await, 1);
    let third = h.claim_one(node).await;
    h.end(node, third, Outcome::Release).await;
    assert_eq!(h.finish(node, third, succeed()).await, Finished::LeaseLost);
    assert_eq!(h.in_use("l", "").await, 1);
    h.advance(LEASE);
    let other = h.node().await;
    h.rescue(other).await;
    assert_eq!(h.finish(node, claimed[1].claim, succeed()).await, Finished::LeaseLost);
    assert_eq!(h.in_use("l", "").await, 0);
    assert_eq!(h.claim(other, 10).await.len(), 2);
}

/// Many ends in one commit give back what each claim took.
pub async fn ends_of_one_batch_give_back_together(h: &Harness) {
    h.max("l", 4).await;
    h.max("m", 9).await;
    h.put_all_limited(2, &[take("l").units(2), take("m").units(3)]).await;
    h.put_many(2).await;
    let node = h.node().await;
    let claimed = h.claim_all(node).await;
    assert_eq!((claimed.len(), h.in_use("l", "").await, h.in_use("m", "").await), (4, 4, 6));
    h.put_all_limited(4, &[take("l")]).await;
    h.assert_full(node).await;
    let outcomes = [succeed(), Outcome::Release, fail(), retry(SECOND)];
    let finishes = claimed.iter().zip(outcomes).map(|(one, outcome)| Finish { claim: one.claim, outcome });
    let answers = h.store.finish(node, finishes.collect()).await.expect("finish");
    assert_eq!(answers, [Finished::Applied; 4]);
    assert_eq!((h.in_use("l", "").await, h.in_use("m", "").await), (0, 0));
    assert!(h.claim_all(node).await.len() >= 3);
    assert_eq!(h.in_use("l", "").await, 4);
}

/// A flagged claim that is released ends as cancelled and gives back.
pub async fn cancelled_claim_gives_back(h: &Harness) {
    for outcome in [Outcome::Release, retry(SECOND), suspended(keeping())] {
        let (node, claim) = h.holding().await;
        let next = h.put_limited(&[take("l")]).await;
        h.assert_full(node).await;
        h.apply(claim.id, cancel("no")).await;
        h.end(node, claim, outcome.clone()).await;
        assert_eq!(h.status(claim.id).await, because(State::Cancelled, Reason::Operator), "{outcome:?}");
        assert_eq!(h.in_use("l", "").await, 0);
        assert_eq!(h.run_all(node).await, [next]);
    }
}

/// A job that keeps its units while it waits holds up others; its next claim takes nothing twice, and its end gives
/// back.
pub async fn suspended_job_can_keep_its_units(h: &Harness) {
    let (node, claim) = h.holding().await;
    let next = h.put_limited(&[take("l")]).await;
    h.suspend(node, claim, keeping()).await;
    assert_eq!(h.status(claim.id).await, because(State::Suspended, Reason::Signal));
    assert_eq!(h.in_use("l", "").await, 1);
    h.assert_full(node).await;
    let held = h.key_use("l", "").await.holders;
    assert_eq!(held.iter().map(|it| (it.job, it.units, it.keeps)).collect::<Vec<_>>(), [(claim.id, 1, true)]);
    h.send(claim.id, "go", "ann").await;
    assert_eq!(h.obstacle(claim.id).await, None);
    let again = h.claim(node, 10).await;
    assert_eq!(claimed_ids(&again), [claim.id]);
    assert_eq!(h.in_use("l", "").await, 1);
    h.assert_full(node).await;
    h.end(node, again[0].claim, succeed()).await;
    assert_eq!((h.in_use("l", "").await, h.run_all(node).await), (0, vec![next]));
}

/// A keeper whose wait is over at once goes on with its units.
pub async fn keeper_whose_wait_is_over_goes_on(h: &Harness) {
    let (node, claim) = h.holding().await;
    h.put_limited(&[take("l")]).await;
    h.send(claim.id, "go", "ann").await;
    h.suspend(node, claim, keeping()).await;
    assert_eq!(h.in_use("l", "").await, 1);
    let again = h.claim(node, 10).await;
    assert_eq!((claimed_ids(&again), h.in_use("l", "").await), (vec![claim.id], 1));
    h.end(node, again[0].claim, Outcome::Release).await;
    assert_eq!(h.in_use("l", "").await, 0);
    assert_eq!(h.run_all(node).await.len(), 2);
}

/// A keeper that is claimed again and lost gives back what it kept.
pub async fn keeper_that_is_lost_gives_back(h: &Harness) {
    let (node, claim) = h.holding().await;
    h.suspend(node, claim, keeping()).await;
    h.send(claim.id, "go", "ann").await;
    assert_eq!(h.claim_one(node).await.id, claim.id);
    h.lose(node).await;
    assert_eq!(h.in_use("l", "").await, 0);
}

/// Whatever ends or removes a waiting keeper gives back; whatever only moves it does not.
pub async fn waiting_keeper_holds_until_it_ends(h: &Harness) {
    let (node, claim) = h.holding().await;
    h.suspend(node, claim, keeping()).await;
    for verb in [Verb::Hold { why: String::new() }, Verb::Resume, Verb::Hold { why: String::new() }] {
        h.apply(claim.id, verb.clone()).await;
        assert_eq!(h.in_use("l", "").await, 1, "{verb:?}");
    }
    h.apply(claim.id, cancel("no")).await;
    assert_eq!(h.in_use("l", "").await, 0);
    for verb in [cancel("no"), Verb::Delete, Verb::Fail { why: String::new() }] {
        let (node, claim) = h.holding().await;
        let next = h.put_limited(&[take("l")]).await;
        h.suspend(node, claim, keeping()).await;
        h.assert_full(node).await;
        h.apply(claim.id, verb.clone()).await;
        assert_eq!((h.in_use("l", "").await, h.run_all(node).await), (0, vec![next]), "{verb:?}");
    }
}

/// A keeper whose deadline passes, that is replaced, or whose parent ends, gives back.
pub async fn keeper_that_others_end_gives_back(h: &Harness) {
    h.max("l", 1).await;
    let node = h.node().await;
    let keep = async |id: JobId| {
        let claim = h.claim_one(node).await;
        assert_eq!(claim.id, id);
        h.suspend(node, claim, keeping()).await;
        assert_eq!(h.in_use("l", "").await, 1);
    };
    let mut late = h.limited(&[take("l")]);
    late.deadline = Some(When::After(SECOND));
    keep(h.put(late).await).await;
    h.advance(SECOND);
    assert_eq!((h.expire().await, h.in_use("l", "").await), (1, 0));
    let mut unique = h.limited(&[take("l")]);
    unique.options.unique = Some(Unique::new("u").replace());
    keep(h.put(unique.clone()).await).await;
    unique.id = h.id();
    h.put(unique.clone()).await;
    assert_eq!(h.in_use("l", "").await, 0);
    h.apply(unique.id, Verb::Delete).await;
    let (parent_node, parent) = h.running().await;
    let child = h.start(parent_node, parent, h.child_with(|job| job.options.limits = vec![take("l")])).await;
    let claim = h.take_in(node, "q2").await.claim;
    assert_eq!(claim.id, child);
    h.suspend(node, claim, keeping()).await;
    assert_eq!(h.in_use("l", "").await, 1);
    h.end(parent_node, parent, succeed()).await;
    assert_eq!((h.status(child).await.state, h.in_use("l", "").await), (State::Cancelled, 0));
}

/// Limited jobs that only wait hold nothing: whatever ends or removes them gives nothing back, and the next ones have
/// their turn.
pub async fn waiting_limited_job_holds_nothing(h: &Harness) {
    let (node, claim) = h.holding().await;
    let ids = h.put_all_limited(5, &[take("l")]).await;
    let mut unique = h.limited(&[take("l")]);
    unique.options.unique = Some(Unique::new("u").replace());
    let replaced = h.put(unique.clone()).await;
    let mut late = h.limited(&[take("l")]);
    late.deadline = Some(When::After(SECOND));
    let late = h.put(late).await;
    h.assert_full(node).await;
    h.apply(ids[0], cancel("no")).await;
    h.apply(ids[1], Verb::Delete).await;
    h.apply(ids[2], Verb::Hold { why: String::new() }).await;
    assert!(matches!(h.change(ids[3], Verb::Retry).await, Changed::Illegal(_)));
    unique.id = h.id();
    h.put(unique.clone()).await;
    h.advance(SECOND);
    assert_eq!(h.expire().await, 1);
    assert_eq!(h.status(late).await, because(State::Failed, Reason::Expired));
    assert_eq!(h.status(replaced).await, because(State::Cancelled, Reason::Replaced));
    assert_eq!(h.in_use("l", "").await, 1);
    h.assert_full(node).await;
    h.end(node, claim, succeed()).await;
    let ran: BTreeSet<_> = h.run_all(node).await.into_iter().collect();
    assert_eq!(ran, BTreeSet::from([ids[3], ids[4], unique.id]));
}

/// The last job of a group that goes away passes its turn on.
pub async fn turn_of_a_job_that_goes_away_is_passed_on(h: &Harness) {
    h.max("m", 9).await;
    let (node, claim) = h.holding().await;
    let first = h.put_limited(&[take("l"), take("m")]).await;
    let second = h.put_limited(&[take("l")]).await;
    h.assert_full(node).await;
    h.end(node, claim, succeed()).await;
    // The room was passed on to the first group.
    h.apply(first, Verb::Delete).await;
    assert_eq!(h.run_all(node).await, [second]);
}

/// A limited parent gives back when it waits for its child, so the child may need the same limit.
pub async fn child_gets_the_room_of_its_waiting_parent(h: &Harness) {
    let (node, claim) = h.holding().await;
    let child = h
        .start(
            node,
            claim,
            h.child_with(|job| {
                job.queue = queue("q");
                job.options.limits = vec![take("l")];
            }),
        )
        .await;
    h.assert_full(node).await;
    h.suspend(node, claim, super::workflow_calls::until_child(child)).await;
    assert_eq!(h.run_all(node).await, [child, claim.id]);
}
