//! Retries from a step: what was recorded from there on is gone, in the commit that runs the job again.

use mainspring_core::id::{Claim, JobId, NodeNo};
use mainspring_core::job::{Outcome, Reason, State, Status, Verb};
use mainspring_core::journal::{Entry, EntryKind, MessageBody, OnClose, Recorded, Signalled, Writes};
use mainspring_core::store::{Changed, ClaimRequest, Finished};

use super::workflow_calls::{
    key, reads, senders, starting, steps, suspended, until_child, until_signal, value, writes,
};
use crate::harness::{Harness, SECOND, because, cancel, fail, plain, queue, retry, succeed};

/// A retry from a step of a job that had this claim.
fn rewind(step: &str, claim: u32) -> Verb {
    Verb::Rewind { from: key(step), claim }
}

const READY: Status = Status::plain(State::Ready);

/// The keys of what a job has recorded.
async fn recorded(h: &Harness, id: JobId) -> Vec<String> {
    h.timeline(id).await.entries.iter().map(|entry| entry.key.to_string()).collect()
}

/// A running job that has recorded three steps.
async fn three(h: &Harness) -> (NodeNo, Claim) {
    let (node, claim) = h.running().await;
    h.record(node, claim, steps(["a", "b"])).await;
    h.record(node, claim, steps(["c"])).await;
    (node, claim)
}

/// From every state in which a job does not run and has not succeeded: it is ready, with fresh counts, and has recorded what
/// it had before the step. In the others nothing changes.
pub async fn job_runs_again_with_what_was_recorded_before_the_step(h: &Harness) {
    let ends: [(Outcome, Option<Verb>, Status); 7] = [
        (Outcome::Release, None, READY),
        (retry(SECOND), None, plain(State::Scheduled)),
        (suspended(until_signal("go")), None, because(State::Suspended, Reason::Signal)),
        (Outcome::Release, Some(Verb::Hold { why: String::new() }), because(State::Suspended, Reason::Hold)),
        (fail(), None, because(State::Failed, Reason::Exhausted)),
        (Outcome::Release, Some(cancel("no")), because(State::Cancelled, Reason::Operator)),
        (succeed(), None, plain(State::Succeeded)),
    ];
    for (outcome, verb, from) in ends {
        let (node, claim) = three(h).await;
        let id = claim.id;
        let running = h.change(id, rewind("b", 1)).await;
        assert!(matches!(running, Changed::Illegal(_)), "{running:?}");
        h.end(node, claim, outcome).await;
        if let Some(verb) = verb {
            h.apply(id, verb).await;
        }
        assert_eq!(h.status(id).await, from);
        let before = h.timeline(id).await;
        let dry = h.store.change(vec![id], rewind("b", 1), true).await.expect("change");
        assert_eq!(h.timeline(id).await, before, "a dry run");
        if from.state == State::Succeeded {
            assert!(matches!(dry[..], [Changed::Illegal(_)]), "{dry:?}");
            assert_eq!(h.change(id, rewind("b", 1)).await, dry[0]);
            assert_eq!(h.timeline(id).await, before);
        } else {
            assert_eq!(dry, [Changed::Applied { from, to: Some(READY) }]);
            assert_eq!(h.change(id, rewind("b", 1)).await, dry[0], "{from}");
            let job = h.get(id).await.summary;
            assert_eq!((job.status, job.failures, job.crashes, job.claim), (READY, 0, 0, 2), "{from}");
            let claimed = h.take(node).await;
            assert_eq!((claimed.claim.number, h.keys(&claimed).await), (3, vec!["a".to_owned()]), "{from}");
            h.record(node, claimed.claim, steps(["b"])).await;
            h.end(node, claimed.claim, succeed()).await;
            assert_eq!(recorded(h, id).await, ["a", "b"]);
        }
        h.assert_sound().await;
        h.apply(id, Verb::Delete).await;
    }
}

/// A repeat of the call finds another claim number, whatever the job has done since; and so does one that was late.
pub async fn repeated_rewind_changes_nothing(h: &Harness) {
    let (node, claim) = three(h).await;
    h.end(node, claim, Outcome::Release).await;
    h.apply(claim.id, rewind("b", 1)).await;
    let stale = async |verb: Verb| {
        let before = (h.find(claim.id).await, h.timeline(claim.id).await);
        assert_eq!(h.change(claim.id, verb).await, Changed::Stale);
        assert_eq!((h.find(claim.id).await, h.timeline(claim.id).await), before);
    };
    stale(rewind("b", 1)).await;
    let again = h.claim_one(node).await;
    h.record(node, again, steps(["b", "c"])).await;
    h.end(node, again, Outcome::Release).await;
    stale(rewind("b", 1)).await;
    stale(rewind("b", 2)).await;
    // Nothing is recorded of it, or it is no step.
    for step in ["d", "b#until", "a/b"] {
        stale(rewind(step, 3)).await;
    }
    assert_eq!(h.change(h.id(), rewind("b", 1)).await, Changed::NotFound);
    // The old claim writes nothing.
    assert_eq!(h.try_record(node, claim, steps(["late"])).await, Recorded::LeaseLost);
    assert_eq!(h.finish(node, claim, succeed()).await, Finished::LeaseLost);
    h.apply(claim.id, rewind("a", 3)).await;
    assert_eq!(recorded(h, claim.id).await, Vec::<String>::new());
    h.assert_sound().await;
}

/// What belongs to the step goes with it, and what had begun before it keeps its end.
pub async fn records_go_and_stay_as_the_cut_says(h: &Harness) {
    let (node, claim) = h.running().await;
    let entry = |name: &str, kind| Entry { kind, ..value(name, "null") };
    let all = [
        ("nap#until", EntryKind::Until),
        ("pay#begun", EntryKind::Begun),
        ("loop#turn=3", EntryKind::Value),
        ("s/x", EntryKind::Value),
        ("s/y#until", EntryKind::Until),
        ("s/y", EntryKind::Value),
        ("pay", EntryKind::Value),
        ("s", EntryKind::Error),
        ("z", EntryKind::Value),
    ];
    h.record(node, claim, writes(all.map(|(name, kind)| entry(name, kind)))).await;
    h.end(node, claim, Outcome::Release).await;
    h.apply(claim.id, rewind("s/y", 1)).await;
    assert_eq!(recorded(h, claim.id).await, ["nap#until", "pay#begun", "loop#turn=3", "s/x", "pay"]);
    h.apply(claim.id, rewind("s", 2)).await;
    assert_eq!(recorded(h, claim.id).await, ["nap#until", "pay#begun", "loop#turn=3", "pay"]);
    h.apply(claim.id, rewind("loop", 3)).await;
    assert_eq!(recorded(h, claim.id).await, ["nap#until", "pay#begun", "pay"]);
    h.apply(claim.id, rewind("pay", 4)).await;
    assert_eq!(recorded(h, claim.id).await, ["nap#until"]);
}

/// Signals that were read by a wait that goes are unread again, and are still known by their senders; others stay read. That of a
/// sender that was forgotten since comes anew, unless he has sent another, which stays as it is.
pub async fn signals_that_were_read_after_the_step_are_unread_again(h: &Harness) {
    let (node, claim) = h.running().await;
    for sender in ["ada", "bob", "eve", "new"] {
        h.send(claim.id, "go", sender).await;
    }
    let mail = h.messages(claim).await;
    let received = |name: &str, told: &str| Entry { kind: EntryKind::Received, ..value(name, told) };
    let later = r#"[["bob",{"go":[1]}],["old",2],["old",3],["new",4]]"#;
    for (index, name, told) in [(0, "go", r#"[["ada",1]]"#), (1, "in/go#2", later)] {
        let read = Writes { entries: vec![received(name, told)], ..reads(&mail[index..=index]) };
        h.record(node, claim, read).await;
        h.record(node, claim, steps([["between", "after"][index]])).await;
    }
    h.end(node, claim, suspended(until_signal("more"))).await;
    h.apply(claim.id, rewind("between", 1)).await;
    let claimed = h.take(node).await;
    let mail = h.mail(&claimed).await;
    assert_eq!(senders(&mail), ["bob", "eve", "new", "old"]);
    for (at, told) in [(0, r#"{"go":[1]}"#), (2, "1"), (3, "2")] {
        assert!(
            matches!(&mail[at].body, MessageBody::Signal { body, .. } if body == told.as_bytes()),
            "{mail:?}"
        );
    }
    assert_eq!(h.keys(&claimed).await, ["go"]);
    for sender in ["ada", "bob", "old"] {
        assert_eq!(h.signal(claim.id, "go", sender).await, Signalled::Repeated);
    }
    h.assert_sound().await;
}

/// Children whose start goes are cancelled with their own children: those that wait at once, those that run by a flag. The
/// others are left alone.
pub async fn children_that_lost_their_start_are_cancelled(h: &Harness) {
    let (node, claim) = h.running().await;
    let start = async |name: &str, on_close: OnClose| {
        let mut child = h.child();
        child.on_close = on_close;
        let id = child.job.id;
        let mut recording = starting(claim, vec![child]);
        let told = serde_json::to_vec(&id).expect("JSON");
        recording.writes = writes([Entry { kind: EntryKind::Child, ..value(name, told) }]);
        assert_eq!(h.record_all(node, vec![recording]).await, [Recorded::Stored]);
        id
    };
    let kept = start("kept", OnClose::Cancel).await;
    let running = start("s/running", OnClose::Cancel).await;
    let waiting = start("s/waiting", OnClose::Cancel).await;
    let ended = start("s/ended", OnClose::Cancel).await;
    let abandoned = start("s/abandoned", OnClose::Abandon).await;
    h.record(node, claim, steps(["after"])).await;
    h.end(node, claim, suspended(until_child(waiting))).await;
    let mut held = None;
    let request = ClaimRequest { queues: vec![(queue("q2"), 9)], ..h.request(node, 9) };
    for child in h.claim_as(request).await {
        let child = child.claim;
        match child.id {
            id if id == running => held = Some(child),
            id if id == ended => h.end(node, child, succeed()).await,
            id if id == waiting => {
                let grand = h.start(node, child, h.child()).await;
                h.end(node, child, suspended(until_signal("go"))).await;
                assert_eq!(h.status(grand).await, READY);
            }
            _ => h.end(node, child, Outcome::Release).await,
        }
    }
    h.apply(claim.id, rewind("s", 1)).await;
    let by_parent = because(State::Cancelled, Reason::Parent);
    assert_eq!((h.status(kept).await, h.status(abandoned).await), (READY, READY));
    assert_eq!((h.status(waiting).await, h.status(ended).await), (by_parent, plain(State::Succeeded)));
    let job = h.get(running).await.summary;
    assert!(job.cancelling && job.status.state == State::Running);
    assert_eq!(h.timeline(waiting).await.children[0].status, by_parent);
    h.end(node, held.expect("it runs"), retry(SECOND)).await;
    assert_eq!(h.status(running).await, by_parent);
    assert_eq!((h.status(claim.id).await, recorded(h, claim.id).await), (READY, vec!["kept".to_owned()]));
    h.assert_sound().await;
}

/// A job whose records are gone can be forked, deleted and pruned as any other, and its own end tells its parent.
pub async fn rewound_child_still_belongs_to_its_parent(h: &Harness) {
    let (node, parent, child) = h.parent().await;
    let claim = h.take_in(node, "q2").await.claim;
    assert_eq!(claim.id, child);
    h.record(node, claim, steps(["a"])).await;
    h.end(node, claim, fail()).await;
    h.apply(child, rewind("a", 1)).await;
    let claim = h.take_in(node, "q2").await.claim;
    h.end(node, claim, succeed()).await;
    // Told once, of the first end.
    assert_eq!(h.messages(parent).await.len(), 1);
    h.end(node, parent, succeed()).await;
    for id in [child, parent.id] {
        h.apply(id, Verb::Delete).await;
    }
    h.assert_sound().await;
}
