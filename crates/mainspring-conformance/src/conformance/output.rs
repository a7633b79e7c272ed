//! Output: what jobs say is read in its order, once, and as far as it is kept.

use mainspring_core::bounds;
use mainspring_core::id::{Claim, JobId, NodeNo};
use mainspring_core::job::{Outcome, Progress, State, Verb};
use mainspring_core::journal::{Recorded, Writes};
use mainspring_core::output::{Ask, Output, OutputItem, Push, What};
use mainspring_core::store::Retention;

use super::workflow_calls::{key, recording, steps, suspended, until_signal};
use crate::harness::{Harness, SECOND, plain, succeed};

fn frame(number: u32, step: Option<&str>, body: impl Into<Vec<u8>>) -> Push {
    Push { number, step: step.map(key), body: Some(body.into()) }
}

fn reset(number: u32, step: Option<&str>) -> Push {
    Push { number, step: step.map(key), body: None }
}

fn says(output: impl IntoIterator<Item = Push>) -> Writes {
    Writes { output: output.into_iter().collect(), ..Writes::default() }
}

async fn output(h: &Harness, id: JobId, after: u64, limit: usize) -> Option<Output> {
    let mut outputs = h.store.output(vec![Ask { id, after, limit }]).await.expect("output");
    assert_eq!(outputs.len(), 1, "one answer per question");
    outputs.remove(0)
}

async fn known(h: &Harness, id: JobId, after: u64) -> Output {
    output(h, id, after, 1_000).await.expect("the job is known")
}

/// Position, claim, step and body (or where a reset begins) of each item.
async fn told(h: &Harness, id: JobId) -> Vec<String> {
    known(h, id, 0).await.items.iter().map(shown).collect()
}

fn shown(item: &OutputItem) -> String {
    let what = match &item.what {
        What::Frame(body) => String::from_utf8_lossy(body).into_owned(),
        What::Reset { from } => format!("<{from}"),
    };
    let step = item.step.as_ref().map_or("-", |step| step.as_str());
    format!("{} {} {step} {what}", item.position, item.claim)
}

/// What is said is read in the order in which it was said, with who said it, and when.
pub async fn output_is_read_in_its_order(h: &Harness) {
    let (node, claim) = h.running().await;
    h.record(node, claim, says([frame(1, None, "a"), frame(2, Some("s"), "b")])).await;
    let at = h.now();
    h.advance(SECOND);
    h.record(node, claim, Writes { output: vec![frame(3, None, "c")], ..steps(["done"]) }).await;
    assert_eq!(told(h, claim.id).await, ["1 1 - a", "2 1 s b", "3 1 - c"]);
    let output = known(h, claim.id, 0).await;
    assert_eq!((output.first, output.last, output.ended), (1, 3, None));
    assert_eq!((output.items[1].at, output.items[2].at), (at, h.now()));
    h.end(node, claim, Outcome::Release).await;
    let claimed = h.take(node).await;
    assert_eq!(h.keys(&claimed).await, ["done"]);
    h.record(node, claimed.claim, says([frame(1, None, "d")])).await;
    assert_eq!(told(h, claim.id).await.last().expect("an item"), "4 2 - d");
}

/// A job that has said nothing has an empty output; one that is not there has none.
pub async fn output_of_silent_and_unknown_jobs(h: &Harness) {
    let (node, claim) = h.running().await;
    assert_eq!(known(h, claim.id, 0).await, Output::default());
    h.record(node, claim, says([frame(1, None, "a")])).await;
    let (silent, unknown) = (h.put_one().await, h.id());
    let ask = |id| Ask { id, after: 0, limit: 10 };
    let asks = vec![ask(unknown), ask(claim.id), ask(silent), ask(claim.id)];
    let outputs = h.store.output(asks).await.expect("output");
    let lasts: Vec<_> = outputs.iter().map(|output| output.as_ref().map(|output| output.last)).collect();
    assert_eq!(lasts, [None, Some(1), Some(0), Some(1)], "in the order of the questions");
    assert_eq!(h.store.output(Vec::new()).await.expect("output"), []);
}

/// Reading goes on behind a position, in pages of a number and a size.
pub async fn output_is_read_in_pages(h: &Harness) {
    let (node, claim) = h.running().await;
    h.record(node, claim, says((1..=5).map(|n| frame(n, None, n.to_string())))).await;
    let positions = |output: Output| output.items.iter().map(|item| item.position).collect::<Vec<_>>();
    assert_eq!(positions(known(h, claim.id, 3).await), [4, 5]);
    assert_eq!(positions(known(h, claim.id, 5).await), [0; 0]);
    assert_eq!(positions(known(h, claim.id, 99).await), [0; 0]);
    assert_eq!(positions(output(h, claim.id, 1, 2).await.expect("it is known")), [2, 3]);
    let head = output(h, claim.id, 0, 0).await.expect("it is known");
    assert_eq!((head.items.len(), head.first, head.last), (0, 1, 5));
    let large = || vec![b'x'; bounds::FRAME_BYTES];
    h.record(node, claim, says((6..=15).map(|n| frame(n, None, large())))).await;
    let page = known(h, claim.id, 5).await;
    assert_eq!(page.items.len(), bounds::PREFETCH_BYTES / bounds::FRAME_BYTES);
    assert_eq!(page.last, 15);
}

/// What was said under a claim and a number is not said again, also if the rest of it is new.
pub async fn repeated_output_is_said_once(h: &Harness) {
    let (node, claim) = h.running().await;
    let first = says([frame(1, None, "a"), frame(2, None, "b")]);
    for _ in 0..3 {
        h.record(node, claim, first.clone()).await;
    }
    let rest = says([frame(2, None, "b"), frame(3, None, "c")]);
    let batch = vec![recording(claim, first), recording(claim, rest.clone()), recording(claim, rest)];
    assert_eq!(h.record_all(node, batch).await, [Recorded::Stored; 3]);
    assert_eq!(told(h, claim.id).await, ["1 1 - a", "2 1 - b", "3 1 - c"]);
}

/// Who does not hold the claim says nothing.
pub async fn stale_claim_says_nothing(h: &Harness) {
    let (node, claim) = h.running().await;
    h.record(node, claim, says([frame(1, None, "a")])).await;
    h.end(node, claim, Outcome::Release).await;
    let new = h.claim_one(node).await;
    let both =
        vec![recording(claim, says([frame(2, None, "stale")])), recording(new, says([frame(1, None, "b")]))];
    assert_eq!(h.record_all(node, both).await, [Recorded::LeaseLost, Recorded::Stored]);
    let other = h.node().await;
    let foreign = recording(new, says([frame(2, None, "foreign")]));
    assert_eq!(h.record_all(other, vec![foreign]).await, [Recorded::LeaseLost]);
    assert_eq!(told(h, claim.id).await, ["1 1 - a", "2 2 - b"]);
}

/// A reset names the first frame of its step that is kept, or itself.
pub async fn reset_tells_where_its_step_began(h: &Harness) {
    let (node, claim) = h.running().await;
    let first = [frame(1, None, "a"), frame(2, Some("s"), "b"), frame(3, Some("t"), "c")];
    h.record(node, claim, says(first)).await;
    let second = [reset(4, Some("s")), frame(5, Some("u"), "d"), reset(6, Some("u")), reset(7, Some("v"))];
    h.record(node, claim, says(second)).await;
    h.record(node, claim, says([reset(8, None)])).await;
    let items = told(h, claim.id).await;
    assert_eq!(items[3..], ["4 1 s <2", "5 1 u d", "6 1 u <5", "7 1 v <7", "8 1 - <1"]);
}

/// What is said without progress leaves crashes as they are; a record does not.
pub async fn idle_output_resets_no_crashes(h: &Harness) {
    let id = h.put_one().await;
    h.crash(2).await;
    let node = h.node().await;
    let claim = h.claim_one(node).await;
    h.record(node, claim, Writes { idle: true, ..says([frame(1, Some("s"), "a")]) }).await;
    assert_eq!(h.get(id).await.summary.crashes, 2);
    let idle = Writes { idle: true, ..says([frame(2, Some("s"), "b")]) };
    let both = vec![recording(claim, idle), recording(claim, steps(["s"]))];
    assert_eq!(h.record_all(node, both).await, [Recorded::Stored; 2]);
    assert_eq!(h.get(id).await.summary.crashes, 0);
    assert_eq!(told(h, id).await, ["1 3 s a", "2 3 s b"]);
}

/// What goes with a suspension is said as well.
pub async fn output_is_stored_with_a_suspension(h: &Harness) {
    let (node, claim) = h.running().await;
    h.record(node, claim, says([frame(1, None, "a")])).await;
    let mut suspension = until_signal("go");
    suspension.writes = says([frame(2, None, "b")]);
    h.end(node, claim, suspended(suspension)).await;
    assert_eq!(told(h, claim.id).await, ["1 1 - a", "2 1 - b"]);
}

/// The last items are kept, and no more than so many bytes of them.
pub async fn oldest_output_is_gone(h: &Harness) {
    let (node, claim) = h.running().await;
    let frames = u32::try_from(bounds::FRAMES).expect("a small number");
    h.record(node, claim, says((1..=frames + 300).map(|n| frame(n, Some("s"), "1")))).await;
    let output = known(h, claim.id, 0).await;
    assert_eq!((output.first, output.last), (301, u64::from(frames) + 300));
    assert_eq!(output.items[0].position, 301);
    h.record(node, claim, says([reset(frames + 301, Some("s"))])).await;
    let output = known(h, claim.id, u64::from(frames) + 300).await;
    assert_eq!((output.first, &output.items[0].what), (302, &What::Reset { from: 301 }));
    let large = || vec![b'x'; bounds::FRAME_BYTES];
    let fit = u32::try_from(bounds::FRAMES_BYTES / bounds::FRAME_BYTES).expect("a small number");
    let numbers = frames + 302..frames + 302 + fit;
    for number in numbers.clone() {
        h.record(node, claim, says([frame(number, None, large())])).await;
    }
    let output = known(h, claim.id, 0).await;
    // The reset before them takes no room.
    assert_eq!((output.first, output.last), (u64::from(numbers.start) - 1, u64::from(numbers.end) - 1));
    h.record(node, claim, says([frame(numbers.end, None, "1")])).await;
    assert_eq!(known(h, claim.id, 0).await.first, u64::from(numbers.start) + 1);
}

/// How a job has ended, and what it said of its progress, is seen together with its output.
pub async fn output_tells_progress_and_the_end(h: &Harness) {
    let (node, claim) = h.running().await;
    let progress = Progress { done: 1, total: 2, note: "half".into() };
    h.store.progress(node, vec![(claim, progress.clone())]).await.expect("progress");
    h.record(node, claim, says([frame(1, None, "a")])).await;
    assert_eq!(known(h, claim.id, 0).await.progress, Some(progress));
    h.end(node, claim, succeed()).await;
    let output = known(h, claim.id, 0).await;
    assert_eq!((output.ended, output.items.len()), (Some(plain(State::Succeeded)), 1));
}

async fn begins_anew(h: &Harness, node: NodeNo, old: Claim) {
    assert_eq!(output(h, old.id, 0, 10).await, None);
    h.put(h.job_with(|job| job.id = old.id)).await;
    assert_eq!(known(h, old.id, 0).await, Output::default());
    let claim = h.claim_one(node).await;
    h.record(node, claim, says([frame(1, None, "new")])).await;
    assert_eq!(told(h, old.id).await, ["1 1 - new"]);
}

/// A deleted job takes what it said with it.
pub async fn output_is_gone_with_a_deleted_job(h: &Harness) {
    let (node, claim) = h.running().await;
    h.record(node, claim, Writes { idle: true, ..says([frame(1, None, "a")]) }).await;
    h.end(node, claim, Outcome::Release).await;
    h.apply(claim.id, Verb::Delete).await;
    begins_anew(h, node, claim).await;
}

/// So does one that is pruned.
pub async fn output_is_gone_with_a_pruned_job(h: &Harness) {
    let (node, claim) = h.running().await;
    h.record(node, claim, Writes { idle: true, ..says([frame(1, None, "a")]) }).await;
    h.end(node, claim, succeed()).await;
    h.advance(Retention::default().succeeded.0);
    assert_eq!(h.prune().await, 1);
    begins_anew(h, node, claim).await;
}
