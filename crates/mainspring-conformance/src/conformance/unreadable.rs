//! Jobs whose rows are damaged: set aside alone, ended by anybody, resumed once they can be read again.

use mainspring_core::id::JobId;
use mainspring_core::job::{Outcome, Reason, State, Status, Verb, Why, why};
use mainspring_core::store::{Changed, Filter};

use super::workflow_calls::steps;
use crate::harness::{Damage, Harness, cancel, claimed_ids, plain, priority, succeed};

const UNREADABLE: Status = Status::because(State::Suspended, Reason::Unreadable);

/// A job in `ready` that has recorded something, and something of which is damaged.
async fn damaged(h: &Harness, damage: Damage) -> JobId {
    let id = h.put_one().await;
    if damage == Damage::Journal {
        let node = h.node().await;
        let claim = h.claim_one(node).await;
        h.record(node, claim, steps(["a"])).await;
        h.end(node, claim, Outcome::Release).await;
    }
    h.damage(id, damage);
    id
}

/// A claim that meets a damaged job sets it aside, counts nothing, and gives the others.
pub async fn unreadable_job_is_set_aside_alone(h: &Harness) {
    for damage in [Damage::Options, Damage::Claim, Damage::Journal] {
        let bad = damaged(h, damage).await;
        let good = [h.put_one().await, h.put_one().await];
        let node = h.node().await;
        let claimed = h.claim(node, 10).await;
        assert_eq!(claimed_ids(&claimed), good, "{damage:?}");
        let record = h.get(bad).await;
        assert_eq!(record.summary.status, UNREADABLE, "{damage:?}");
        assert_eq!((record.summary.failures, record.summary.crashes), (0, 0));
        assert!(record.note.as_deref().is_some_and(|note| !note.is_empty()), "{damage:?}: {record:?}");
        for one in claimed {
            h.end(node, one.claim, succeed()).await;
        }
        assert!(h.claim(node, 10).await.is_empty());
        assert_eq!(h.counts().await.total(State::Suspended), 1);
        let filter = Filter { reason: Some(Reason::Unreadable), ..Filter::default() };
        assert_eq!(h.ids(&filter).await, [bad]);
        assert_eq!(h.list(&Filter::default(), 2).await.len(), 1 + good.len());
        h.apply(bad, Verb::Delete).await;
        for id in good {
            h.apply(id, Verb::Delete).await;
        }
    }
}

/// Those behind it have their turn at once, however few were asked for.
pub async fn unreadable_job_holds_up_nobody(h: &Harness) {
    let mut bad = Vec::new();
    for _ in 0..3 {
        bad.push(damaged(h, Damage::Options).await);
    }
    let good = h.put_one().await;
    let node = h.node().await;
    let mut claimed = Vec::new();
    for _ in 0..=bad.len() {
        claimed.extend(h.claim(node, 1).await);
    }
    assert_eq!(claimed_ids(&claimed), [good]);
    for id in bad {
        assert_eq!(h.status(id).await, UNREADABLE);
        h.apply(id, Verb::Delete).await;
    }
}

/// People are told what it is, before a claim meets it and after.
pub async fn unreadable_job_says_so(h: &Harness) {
    let id = damaged(h, Damage::Options).await;
    let told = async || why(&h.get(id).await, None, &[], None, h.now());
    assert!(matches!(told().await, Why::Unreadable { what: Some(_) }), "{:?}", told().await);
    let node = h.node().await;
    assert!(h.claim(node, 1).await.is_empty());
    assert!(matches!(told().await, Why::Unreadable { what: Some(_) }), "{:?}", told().await);
    let listed = h.list(&Filter::default(), 1).await;
    assert!(listed[0].unreadable.as_ref().is_some_and(|what| what.contains("options")), "{listed:?}");
    h.apply(id, Verb::Delete).await;
}

/// What a damaged job leaves free goes to the others of its level, not to those that are less urgent.
pub async fn unreadable_job_does_not_let_the_less_urgent_pass(h: &Harness) {
    let bad = damaged(h, Damage::Options).await;
    let urgent = [h.put_one().await, h.put_one().await];
    let later = h.put(h.job_with(|job| job.priority = priority(8))).await;
    let node = h.node().await;
    let mut claimed = claimed_ids(&h.claim(node, 2).await);
    assert!(!claimed.contains(&later), "a less urgent job has passed others");
    // A store may give fewer than there are.
    for _ in claimed.len()..urgent.len() {
        claimed.extend(claimed_ids(&h.claim(node, 1).await));
    }
    assert_eq!(claimed, urgent);
    h.apply(bad, Verb::Delete).await;
}

/// Resuming it reads it first. Mended by hand, it runs.
pub async fn unreadable_job_is_resumed_once_it_is_mended(h: &Harness) {
    for damage in [Damage::Options, Damage::Claim, Damage::Journal] {
        let id = damaged(h, damage).await;
        let node = h.node().await;
        assert!(h.claim(node, 1).await.is_empty());
        let answer = h.change(id, Verb::Resume).await;
        assert!(matches!(answer, Changed::Illegal(_)), "{damage:?}: {answer:?}");
        assert_eq!(h.status(id).await, UNREADABLE);
        h.mend(id, damage);
        h.apply(id, Verb::Resume).await;
        assert_eq!(h.status(id).await, plain(State::Ready));
        let claim = h.claim_one(node).await;
        assert_eq!(claim.id, id);
        h.end(node, claim, succeed()).await;
    }
}

/// A job that waits for something else, and that no claim has met since it was damaged, is not resumed either.
pub async fn damaged_job_is_not_resumed_unseen(h: &Harness) {
    let id = h.put_one().await;
    h.apply(id, Verb::Hold { why: String::new() }).await;
    h.damage(id, Damage::Options);
    let held = h.status(id).await;
    let answer = h.change(id, Verb::Resume).await;
    assert!(matches!(answer, Changed::Illegal(_)), "{answer:?}");
    assert_eq!(h.status(id).await, held);
    h.mend(id, Damage::Options);
    h.apply(id, Verb::Resume).await;
    assert_eq!(h.status(id).await, plain(State::Ready));
}

/// Whoever ends or removes it need not read it, wherever it is.
pub async fn unreadable_job_can_be_ended(h: &Harness) {
    for damage in [Damage::Options, Damage::Claim, Damage::Journal] {
        for met in [false, true] {
            for verb in [cancel("damaged"), Verb::Fail { why: String::new() }, Verb::Delete] {
                if !met && matches!(verb, Verb::Fail { .. }) {
                    continue;
                }
                let id = damaged(h, damage).await;
                if met {
                    let node = h.node().await;
                    assert!(h.claim(node, 1).await.is_empty());
                }
                h.apply(id, verb.clone()).await;
                if verb != Verb::Delete {
                    assert!(h.status(id).await.state.is_terminal(), "{damage:?} {verb}");
                    h.apply(id, Verb::Delete).await;
                }
                assert!(h.find(id).await.is_none(), "{damage:?} {verb}");
            }
        }
    }
}

/// What lets a job wait in another way is refused while it cannot be read.
pub async fn unreadable_job_is_not_held(h: &Harness) {
    let id = damaged(h, Damage::Claim).await;
    let answer = h.change(id, Verb::Hold { why: String::new() }).await;
    assert!(matches!(answer, Changed::Illegal(_)), "{answer:?}");
    h.apply(id, Verb::Delete).await;
}

/// A job that is damaged while it runs ends as ever; and if its node is lost, the next claim finds it.
pub async fn job_that_is_damaged_while_it_runs_is_found_by_the_next_claim(h: &Harness) {
    let (node, claim) = h.running().await;
    h.damage(claim.id, Damage::Options);
    h.end(node, claim, succeed()).await;
    assert_eq!(h.status(claim.id).await, plain(State::Succeeded));
    h.apply(claim.id, Verb::Delete).await;

    let (node, claim) = h.running().await;
    h.damage(claim.id, Damage::Options);
    h.lose(node).await;
    let node = h.node().await;
    assert!(h.claim(node, 1).await.is_empty());
    assert_eq!(h.status(claim.id).await, UNREADABLE);
    h.apply(claim.id, Verb::Delete).await;
}

/// A repeated claim adopts what was read, and sets aside what was not.
pub async fn repeated_claim_sets_unreadable_jobs_aside(h: &Harness) {
    let ids = h.put_many(2).await;
    let node = h.node().await;
    let request = h.request(node, 2);
    assert_eq!(h.claim_as(request.clone()).await.len(), 2);
    h.damage(ids[0], Damage::Options);
    let again = h.claim_as(request).await;
    assert!(again.iter().any(|one| one.claim.id == ids[1]));
    for one in again {
        h.end(node, one.claim, succeed()).await;
    }
    h.apply(ids[0], Verb::Delete).await;
}
