//! Signals that are not what their wait asks for, and such as an operator drops: nobody meets them again.

use mainspring::admin::Why;
use mainspring::workflow::SignalReceipt;
use mainspring::{Context, Error as EngineError, Reason, SignalType, State, Status};

use crate::support::{Flow, HOUR, engine, flow, on_every_store, status};

const APPROVED: SignalType<bool> = SignalType::new("approved");

async fn approval(ctx: Context, _job: Flow) -> mainspring::HandlerResult<String> {
    Ok(match ctx.signal(APPROVED).timeout(24 * HOUR).await? {
        Some(true) => "approved",
        Some(false) => "refused",
        None => "forgotten",
    }
    .to_owned())
}

on_every_store! {
    async fn a_signal_that_does_not_fit_is_set_aside_once_and_for_all(on: &On) {
        for &cached in on.cache_sizes() {
            let test = on.engine(cached, approval).await;
            let job = test.enqueue(flow(0)).await.expect("enqueued");
            test.run_until_idle().await.expect("it waits");
            test.signal(job.id, "approved", &"yes").sender("ada").await.expect("sent");
            test.run_until_idle().await.expect("the attempt fails");
            assert_eq!(test.jobs().get(job.id).await.expect("there").summary.failures, 1);
            test.advance(HOUR).await.expect("the next one waits");
            assert_eq!(status(&test, job.id).await, Status::because(State::Suspended, Reason::Signal));
            let why = test.jobs().why(job.id).await.expect("why");
            let Why::Waiting { unfit, .. } = &why else { panic!("{why}") };
            assert_eq!((unfit.len(), &*unfit[0].sender, &*unfit[0].body), (1, "ada", "\"yes\""), "{why}");
            assert!(why.to_string().contains("a signal `approved` from ada was set aside"), "{why}");
            assert!(test.jobs().timeline(job.id).await.expect("a timeline").inbox.messages.is_empty());
            // A second one is noted beside the first.
            test.signal(job.id, "approved", &3).await.expect("sent");
            test.advance(HOUR).await.expect("the third one waits");
            let why = test.jobs().why(job.id).await.expect("why");
            assert!(matches!(&why, Why::Waiting { unfit, .. } if unfit.len() == 2), "{why}");
            test.signal(job.id, "approved", &true).await.expect("sent");
            test.run_until_idle().await.expect("idle");
            assert_eq!(test.outcome(&job).expect("it ended"), "approved");
        }
    }

    async fn of_several_signals_only_those_that_do_not_fit_are_set_aside(on: &On) {
        for &cached in on.cache_sizes() {
            let handler = async |ctx: Context, _job: Flow| {
                let votes = ctx.signal::<u32>("vote").count(2).await?;
                Ok(votes.iter().map(|vote| vote.value.to_string()).collect::<Vec<_>>().join("+"))
            };
            let test = on.engine(cached, handler).await;
            let job = test.enqueue(flow(0)).await.expect("enqueued");
            test.signal(job.id, "vote", &1).await.expect("sent");
            test.signal(job.id, "vote", &"two").await.expect("sent");
            test.advance(HOUR).await.expect("it waits for one more");
            assert_eq!(status(&test, job.id).await, Status::because(State::Suspended, Reason::Signal));
            test.signal(job.id, "vote", &3).await.expect("sent");
            test.run_until_idle().await.expect("idle");
            assert_eq!(test.outcome(&job).expect("it ended"), "1+3");
        }
    }

    async fn a_job_that_a_dropped_signal_has_woken_waits_again(on: &On) {
        for &cached in on.cache_sizes() {
            let test = on.engine(cached, approval).await;
            let job = test.enqueue(flow(0)).await.expect("enqueued");
            test.run_until_idle().await.expect("it waits");
            test.queues().pause("default").await.expect("paused");
            test.signal(job.id, APPROVED, &false).sender("ada").await.expect("sent");
            assert_eq!(status(&test, job.id).await.state, State::Ready);
            assert_eq!(test.jobs().drop_signals(job.id, "approved").sender("bob").await.expect("none"), 0);
            assert_eq!(test.jobs().drop_signals(job.id, "approved").sender("ada").await.expect("one"), 1);
            test.queues().resume("default").await.expect("resumed");
            test.run_until_idle().await.expect("it waits again");
            assert_eq!(status(&test, job.id).await, Status::because(State::Suspended, Reason::Signal));
            let again = test.signal(job.id, APPROVED, &false).sender("ada").await.expect("known");
            assert_eq!(again, SignalReceipt::Repeated);
            test.run_until_idle().await.expect("it waits on");
            assert_eq!(status(&test, job.id).await.state, State::Suspended);
            test.signal(job.id, APPROVED, &true).await.expect("sent");
            test.run_until_idle().await.expect("idle");
            assert_eq!(test.outcome(&job).expect("it ended"), "approved");
        }
    }
}

#[tokio::test]
async fn only_signals_of_people_are_dropped_and_of_jobs_that_are_there() {
    let test = engine(0, approval).await;
    let job = test.enqueue(flow(0)).await.expect("enqueued");
    let error = test.jobs().drop_signals(job.id, "a/b").await.expect_err("no name");
    assert!(matches!(error, EngineError::Invalid { what: "signal name", .. }), "{error}");
    test.jobs().delete(job.id).await.expect("deleted");
    let error = test.jobs().drop_signals(job.id, "approved").await.expect_err("no job");
    assert!(matches!(error, EngineError::NotFound(id) if id == job.id), "{error}");
}
