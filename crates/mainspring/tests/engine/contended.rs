//! Unique keys in the hands of an open transaction, and the caller's own transaction.

use std::sync::Arc;
use std::time::Duration;

use mainspring::enqueue::{Enlist, EnlistSync};
use mainspring::testing::TestEngine;
use mainspring::{Error, State};
use mainspring_core::Result;
use mainspring_core::job::New;
use mainspring_core::memory::Memory;
use mainspring_core::store::{Receipt, Ticket};

use crate::faulty_store::Fault::{Lose, Refuse};
use crate::faulty_store::Faulty;
use crate::support::{record, total, work};

const SECOND: Duration = Duration::from_secs(1);
/// More often than anybody asks.
const FOR_EVER: usize = usize::MAX;

fn faulty() -> (TestEngine, Faulty) {
    let mut store = None;
    let test = TestEngine::on(0, |seams| {
        let faulty = Faulty::new(Memory::new(Arc::clone(&seams.clock)));
        store = Some(faulty.clone());
        Arc::new(faulty)
    });
    (test, store.expect("the store was made"))
}

#[tokio::test]
async fn a_contended_job_is_asked_for_again_until_its_key_is_free() {
    let (test, store) = faulty();
    store.contend(r#"{"n":1}"#, 4);
    let began = test.seams().clock.monotonic();
    let enqueue = async {
        let job = test.enqueue(work(1)).unique("k").await;
        (job, test.seams().clock.monotonic().saturating_sub(began))
    };
    let ((job, took), advanced) = tokio::join!(enqueue, test.advance(SECOND));
    advanced.expect("time passes");
    let job = job.expect("enqueued in the end");
    assert!(!job.existing);
    assert_eq!(record(&test, job.id).await.input, br#"{"n":1}"#);
    assert_eq!(store.calls("enqueue"), 5);
    assert_eq!(took, Duration::from_millis(5 + 10 + 20 + 40));
}

#[tokio::test]
async fn nobody_waits_for_a_contended_job_of_the_same_batch() {
    let (test, store) = faulty();
    store.contend(r#"{"n":2}"#, FOR_EVER);
    // The first is on its way to the store while the other three gather behind it.
    store.hang("enqueue", None, true);
    let mut contended = std::pin::pin!(async { test.enqueue(work(2)).unique("k").await });
    let others = async {
        tokio::join!(
            async { test.enqueue(work(0)).await },
            async { test.enqueue(work(1)).await },
            async { std::future::poll_fn(|cx| std::task::Poll::Ready(contended.as_mut().poll(cx))).await },
            async { test.enqueue(work(3)).await },
            async { store.hang("enqueue", None, false) },
        )
    };
    let (first, second, third, fourth, ()) = others.await;
    for other in [first, second, fourth] {
        assert!(!other.expect("enqueued").existing);
    }
    assert!(third.is_pending());
    assert_eq!(total(&test, State::Ready).await, 3, "without a tick of the clock");
    let (third, advanced) = tokio::join!(contended, test.advance(6 * SECOND));
    advanced.expect("time passes");
    assert!(matches!(third, Err(Error::Unavailable { .. })), "{third:?}");
}

#[tokio::test]
async fn a_key_that_stays_contended_is_told_to_the_caller_after_five_seconds() {
    let (test, store) = faulty();
    store.contend(r#"{"n":1}"#, FOR_EVER);
    let began = test.seams().clock.monotonic();
    let enqueue = async {
        let answer = test.enqueue(work(1)).unique("k").await;
        (answer, test.seams().clock.monotonic().saturating_sub(began))
    };
    let ((answer, took), advanced) = tokio::join!(enqueue, test.advance(10 * SECOND));
    advanced.expect("time passes");
    let error = answer.expect_err("its key was never free");
    assert!(error.is_retryable());
    let told = "store unavailable: an open transaction holds its unique key or its id";
    assert_eq!(error.to_string(), told);
    assert_eq!(took, 5 * SECOND);
    assert!(store.calls("enqueue") < 35, "asked {} times", store.calls("enqueue"));
    assert_eq!(total(&test, State::Ready).await, 0);
}

#[tokio::test]
async fn a_contended_job_whose_answer_is_lost_is_stored_once() {
    let (test, store) = faulty();
    store.contend(r#"{"n":1}"#, 1);
    store.skip("enqueue", 1);
    store.plan("enqueue", &[Lose, Lose]);
    let (job, advanced) =
        tokio::join!(async { test.enqueue(work(1)).unique("k").await }, test.advance(SECOND));
    advanced.expect("time passes");
    assert!(!job.expect("enqueued").existing);
    assert_eq!(total(&test, State::Ready).await, 1);
}

#[tokio::test]
async fn bulk_receipts_stay_in_order_when_some_are_contended() {
    let (test, store) = faulty();
    store.contend(r#"{"n":3}"#, 2);
    store.contend(r#"{"n":1500}"#, 3);
    let (jobs, advanced) =
        tokio::join!(async { test.enqueue_many((0..2_000).map(work)).await }, test.advance(SECOND));
    advanced.expect("time passes");
    let jobs = jobs.expect("enqueued");
    assert_eq!(jobs.len(), 2_000);
    for n in [0, 2, 3, 4, 999, 1_000, 1_499, 1_500, 1_501, 1_999_usize] {
        assert_eq!(record(&test, jobs[n].id).await.input, format!("{{\"n\":{n}}}").into_bytes());
    }
}

#[tokio::test]
async fn bulk_says_how_far_it_came_when_a_key_stays_contended() {
    let (test, store) = faulty();
    store.contend(r#"{"n":3}"#, FOR_EVER);
    store.contend(r#"{"n":5}"#, FOR_EVER);
    let began = test.seams().clock.monotonic();
    let enqueue = async {
        let answer = test.enqueue_many((0..10).map(work)).await;
        (answer, test.seams().clock.monotonic().saturating_sub(began))
    };
    let ((answer, took), advanced) = tokio::join!(enqueue, test.advance(20 * SECOND));
    advanced.expect("time passes");
    assert!(matches!(answer, Err(Error::Partial { stored: 3, .. })), "{answer:?}");
    assert_eq!(took, 5 * SECOND);
}

/// A client of the memory store: only notes what it was handed.
struct Transaction(Vec<Ticket>);

impl Enlist<Faulty> for Transaction {
    async fn enlist(&mut self, ticket: &Ticket, jobs: Vec<New>) -> Result<Vec<Receipt>> {
        self.enlist_sync(ticket, jobs)
    }
}

impl EnlistSync<Faulty> for Transaction {
    fn enlist_sync(&mut self, ticket: &Ticket, jobs: Vec<New>) -> Result<Vec<Receipt>> {
        self.0.push(ticket.clone());
        Ok(vec![Receipt::Created; jobs.len()])
    }
}

#[tokio::test]
async fn a_transaction_gets_a_ticket_for_its_job() {
    let (test, store) = faulty();
    let mut transaction = Transaction(Vec::new());
    let job = test.enqueue(work(1)).within(&mut transaction).await.expect("enlisted");
    assert_eq!((store.calls("ticket_for"), store.calls("ticket")), (1, 0));
    test.enqueue(work(2)).within_sync(&mut transaction).expect("enlisted");
    assert_eq!((store.calls("ticket_for"), store.calls("ticket")), (1, 1));
    assert_eq!(transaction.0.len(), 2);
    test.nudge(&job);
    assert_eq!(store.calls("nudge"), 1, "other processes are woken through the store");

    store.plan("ticket_for", &[Refuse]);
    let error = test.enqueue(work(3)).within(&mut transaction).await.expect_err("no ticket");
    assert!(matches!(error, Error::Unavailable { .. }), "{error}");
    assert_eq!(transaction.0.len(), 2, "the transaction is left as it was");
}
