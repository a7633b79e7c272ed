//! Handles: hints, closing, several handles on the same data.

use std::sync::{Arc, Condvar, Mutex, PoisonError, Weak};
use std::time::Duration;

use mainspring_core::Error;
use mainspring_core::id::{Claim, ClaimBatchNo, NodeNo, Row};
use mainspring_core::job::{State, Verb, When};
use mainspring_core::name::QueueName;
use mainspring_core::store::{
    ClaimRequest, Filter, Finish, Finished, Hint, Listener, Page, QueueChange, Renewal, Rescue,
};
use mainspring_core::time::Timestamp;

use super::workflow_calls::{key, recording, signal, steps, until_child, until_signal, until_time};
use crate::harness::{Harness, SECOND, cancel, plain, queue, retry, succeed};

/// Collects hints, and waits for them.
#[derive(Default)]
struct HintListener {
    heard: Mutex<Vec<Hint>>,
    more: Condvar,
}

/// How long a hint may take before a test gives up on it: as long as everywhere, and this module is built elsewhere too.
const PATIENCE: Duration = Duration::from_mins(3);

impl HintListener {
    fn on(h: &Harness) -> Arc<Self> {
        let ears = Arc::new(HintListener::default());
        let listener: Arc<dyn Listener> = ears.clone();
        h.store.subscribe(Arc::downgrade(&listener));
        ears
    }

    fn wait_for(&self, what: &str, wanted: impl Fn(&Hint) -> bool) {
        let heard = self.heard.lock().unwrap_or_else(PoisonError::into_inner);
        let none = |heard: &mut Vec<Hint>| !heard.iter().any(&wanted);
        let (mut heard, timeout) =
            self.more.wait_timeout_while(heard, PATIENCE, none).unwrap_or_else(PoisonError::into_inner);
        assert!(!timeout.timed_out(), "no hint of {what} among {heard:?}");
        heard.clear();
    }

    fn wait_ready(&self, name: &QueueName) {
        self.wait_for("ready", |hint| matches!(hint, Hint::Ready(queues) if queues.contains(name)));
    }
}

impl Listener for HintListener {
    fn hint(&self, hint: &Hint) {
        self.heard.lock().unwrap_or_else(PoisonError::into_inner).push(hint.clone());
        self.more.notify_all();
    }
}

/// Everything that makes a job ready is worth a hint.
pub async fn ready_jobs_are_hinted(h: &Harness) {
    let ears = HintListener::on(h);
    let name = queue("q");
    let id = h.put_one().await;
    ears.wait_ready(&name);
    let node = h.node().await;
    let claim = h.claim_one(node).await;
    h.end(node, claim, mainspring_core::job::Outcome::Release).await;
    ears.wait_ready(&name);
    let claim = h.claim_one(node).await;
    h.end(node, claim, retry(Duration::ZERO)).await;
    h.promote().await;
    ears.wait_ready(&name);
    h.claim_one(node).await;
    h.lose(node).await;
    ears.wait_ready(&name);
    h.apply(id, Verb::Hold { why: String::new() }).await;
    h.apply(id, Verb::Resume).await;
    ears.wait_ready(&name);
    let pause = |paused| QueueChange { paused: Some(paused), ..QueueChange::default() };
    h.store.configure(name.clone(), pause(true)).await.expect("pause");
    h.store.configure(name.clone(), pause(false)).await.expect("resume");
    ears.wait_ready(&name);
}

/// A time to come is hinted: of a scheduled job, of a retry, of a deadline.
pub async fn times_to_come_are_hinted(h: &Harness) {
    let ears = HintListener::on(h);
    let at = h.now().after(SECOND * 5);
    let due = move |hint: &Hint| *hint == Hint::Due(at);
    h.put(h.job_with(|job| job.run = Some(When::At(at)))).await;
    ears.wait_for("a scheduled job", due);
    h.put(h.job_with(|job| job.deadline = Some(When::At(at)))).await;
    ears.wait_for("a deadline", due);
    let node = h.node().await;
    let claim = h.claim_one(node).await;
    h.end(node, claim, retry(SECOND * 5)).await;
    ears.wait_for("a retry", due);
}

/// The node of a flagged claim is hinted.
pub async fn cancellation_is_hinted(h: &Harness) {
    let ears = HintListener::on(h);
    let (node, claim) = h.running().await;
    h.apply(claim.id, cancel("")).await;
    ears.wait_for("a cancellation", |hint| *hint == Hint::Cancel(node));
}

/// A message to a running job is hinted, whether it is a signal or the end of a child.
pub async fn message_to_a_running_job_is_hinted(h: &Harness) {
    let ears = HintListener::on(h);
    let (node, claim, _) = h.parent().await;
    h.send(claim.id, "go", "a").await;
    ears.wait_for("a signal", |hint| *hint == Hint::Message(claim.id));
    h.end_child(node, succeed()).await;
    ears.wait_for("the end of a child", |hint| *hint == Hint::Message(claim.id));
}

/// Whatever wakes a job, or starts a child, is worth a hint.
pub async fn woken_jobs_and_children_are_hinted(h: &Harness) {
    let ears = HintListener::on(h);
    let name = queue("q");
    let (node, claim, child) = h.parent().await;
    ears.wait_ready(&queue("q2"));
    h.suspend(node, claim, until_child(child)).await;
    h.end_child(node, succeed()).await;
    ears.wait_ready(&name);
    let claim = h.claim_one(node).await;
    h.suspend(node, claim, until_signal("go")).await;
    h.send(claim.id, "go", "a").await;
    ears.wait_ready(&name);
    let claim = h.claim_one(node).await;
    h.suspend(node, claim, until_signal("go")).await;
    ears.wait_ready(&name);
    let claim = h.claim_one(node).await;
    let at = h.now().after(SECOND);
    h.suspend(node, claim, until_time(at)).await;
    ears.wait_for("a sleeper", |hint| *hint == Hint::Due(at));
    h.advance(SECOND);
    h.promote().await;
    ears.wait_ready(&name);
}

/// The node of a child that is to stop because its parent ended is hinted.
pub async fn cancellation_of_a_child_is_hinted(h: &Harness) {
    let ears = HintListener::on(h);
    let (node, claim, _) = h.parent().await;
    let other = h.node().await;
    h.take_in(other, "q2").await;
    h.end(node, claim, succeed()).await;
    ears.wait_for("a cancellation", |hint| *hint == Hint::Cancel(other));
}

/// A listener that is gone is no trouble.
pub async fn dropped_listener_is_no_trouble(h: &Harness) {
    drop(HintListener::on(h));
    h.store.subscribe(Weak::<HintListener>::new());
    let ears = HintListener::on(h);
    h.put_one().await;
    ears.wait_ready(&queue("q"));
}

/// A closed store refuses every call, and says so.
pub async fn closed_store_refuses_every_call(h: &Harness) {
    let id = h.put_one().await;
    let store = h.other();
    store.close().await;
    let node = NodeNo(1);
    let claim = Claim { id, row: Row(1), number: 1 };
    let request =
        ClaimRequest { ahead: Vec::new(), node, batch: ClaimBatchNo(1), queues: Vec::new(), suspects: 0 };
    let answers = [
        store.enqueue(vec![h.job()]).await.err(),
        store.register(h.registration()).await.err(),
        store.renew(Renewal::new(node)).await.err(),
        store.retire(node).await.err(),
        store.claim(request).await.err(),
        store.finish(node, Vec::<Finish>::new()).await.err(),
        store.disown(node, ClaimBatchNo(1), Vec::new()).await.err(),
        store.progress(node, Vec::new()).await.err(),
        store.record(node, vec![recording(claim, steps(["a"]))]).await.err(),
        store.values(claim.id, vec![key("a")]).await.err(),
        store.inbox(vec![(claim, 0)]).await.err(),
        store.rescue(Rescue { by: node, steady: SECOND, seen: Timestamp::MAX }).await.err(),
        store.promote(1).await.err(),
        store.expire(1).await.err(),
        store.prune(1).await.err(),
        store.signal(vec![signal(id, "go", "a")]).await.err(),
        store.job_ends(vec![id]).await.err(),
        store.get(id).await.err(),
        store.timeline(id).await.err(),
        store.list(Filter::default(), Page { after: None, limit: 1 }).await.err(),
        store.counts().await.err(),
        store.change(vec![id], Verb::Hold { why: String::new() }, false).await.err(),
        store.queues().await.err(),
        store.configure(queue("q"), QueueChange::default()).await.err(),
        store.nodes().await.err(),
        store.check().await.err(),
    ];
    for (number, answer) in answers.into_iter().enumerate() {
        assert!(matches!(answer, Some(Error::Closed)), "call {number}: {answer:?}");
    }
    store.close().await;
    assert_eq!(h.status(id).await, plain(State::Ready));
}

/// What one handle wrote, another reads and goes on with.
pub async fn handles_share_their_data(h: &Harness) {
    let id = h.put_one().await;
    let other = h.other();
    assert_eq!(other.get(id).await.expect("get"), h.find(id).await);
    let node = other.register(h.registration()).await.expect("register").no;
    let request = h.request(node, 1);
    let claim = other.claim(request.clone()).await.expect("claim").jobs[0].claim;
    assert_eq!(h.get(id).await.summary.node, Some(node));
    // The fence is the data's, not the handle's.
    assert_eq!(h.claim_as(request).await[0].claim, claim);
    h.end(node, claim, succeed()).await;
    let finish = Finish { claim, outcome: succeed() };
    assert_eq!(other.finish(node, vec![finish]).await.expect("finish"), [Finished::Applied]);
    assert_eq!(other.counts().await.expect("counts"), h.counts().await);
    h.store
        .configure(queue("q"), QueueChange { paused: Some(true), ..QueueChange::default() })
        .await
        .expect("pause");
    h.put_one().await;
    let request = h.request(node, 1);
    assert!(other.claim(request).await.expect("claim").jobs.is_empty());
    other.close().await;
}

/// A store says what it is.
pub async fn store_describes_itself(h: &Harness) {
    let description = h.store.describe();
    assert!(["memory", "sqlite", "postgres"].contains(&description.backend));
    assert!(!description.location.is_empty() && !description.version.is_empty());
    assert!(description.schema > 0);
    let ticket = h.store.ticket();
    assert_eq!(ticket.now, Some(h.now()));
    h.put_one().await;
    assert_eq!((h.store.describe(), h.store.ticket()), (description, ticket));
}
