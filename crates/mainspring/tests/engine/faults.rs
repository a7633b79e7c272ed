//! A store that refuses, loses answers, cuts nodes off or hangs: nothing is lost, and nothing is doubled.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use mainspring::handler::Outcome;
use mainspring::testing::TestEngine;
use mainspring::workflow::Received;
use mainspring::{Context, Error, JobId, NodeBuilder, State, StepContext, snooze};
use mainspring_core::memory::Memory;

use crate::faulty_store::Fault::{self, Break, Lose, Refuse};
use crate::faulty_store::Faulty;
use crate::support::{Gate, Ledger, Work, assert_sound, record, state, total, work};

const SECOND: Duration = Duration::from_secs(1);
const LEASE: Duration = Duration::from_secs(15);

pub(crate) fn faulty(seed: u64) -> (TestEngine, Faulty) {
    let mut store = None;
    let test = TestEngine::on(seed, |seams| {
        let faulty = Faulty::new(Memory::new(Arc::clone(&seams.clock)));
        store = Some(faulty.clone());
        Arc::new(faulty)
    });
    (test, store.expect("the store was made"))
}

fn noting(node: NodeBuilder, ledger: &Ledger) -> NodeBuilder {
    let ledger = ledger.clone();
    let handler = move |_ctx: Context, job: Work| {
        ledger.add(job.n);
        async move { mainspring::HandlerResult::Ok(job.n) }
    };
    node.handle(handler).queue("default", 2)
}

#[tokio::test]
async fn what_a_lost_answer_claimed_is_adopted() {
    let (test, store) = faulty(0);
    let ledger = Ledger::default();
    let jobs = test.enqueue_many((0..20).map(work)).await.expect("enqueued");
    store.plan("claim", &[Lose, Lose]);
    let node = test.node(|node| noting(node, &ledger)).await.expect("a node");
    test.advance(SECOND).await.expect("time passes");
    assert_eq!(ledger.sorted(), (0..20).collect::<Vec<_>>(), "each once");
    for job in &jobs {
        assert_eq!(record(&test, job.id).await.summary.claim, 1);
    }
    assert_eq!(store.calls("disown"), 1, "whatever else was claimed under that number goes back");
    assert_eq!((node.claims(), total(&test, State::Running).await), (0, 0));
}

/// Where there is plenty, two claims are on their way at once; and whichever of their answers is lost or refused, all that was
/// claimed is run, once.
#[tokio::test]
async fn what_claims_ahead_of_others_took_is_adopted() {
    let patterns: [&[Fault]; 6] = [
        &[],
        &[Lose],
        &[Lose, Lose],
        &[Refuse, Lose, Refuse, Lose],
        &[Lose, Lose, Lose, Refuse, Lose],
        &[Refuse, Refuse, Lose, Lose, Refuse, Lose, Lose, Lose],
    ];
    for (seed, faults) in (0..).zip(patterns) {
        for skipped in 0..4 {
            let (test, store) = faulty(seed);
            let ledger = Ledger::default();
            let jobs = test.enqueue_many((0..40).map(work)).await.expect("enqueued");
            store.slow("claim");
            store.skip("claim", skipped);
            store.plan("claim", faults);
            let node = test.node(|node| noting(node, &ledger).queue("default", 6).claim_at_most(2)).await;
            let node = node.expect("a node");
            test.advance(60 * SECOND).await.expect("time passes");
            assert_eq!(ledger.sorted(), (0..40).collect::<Vec<_>>(), "each once: {faults:?} after {skipped}");
            for job in &jobs {
                assert_eq!(record(&test, job.id).await.summary.claim, 1, "{faults:?} after {skipped}");
            }
            assert_eq!(store.most_at_once(), 2);
            assert_eq!((node.claims(), total(&test, State::Running).await), (0, 0));
        }
    }
}

/// What a later claim brought does not wait while an earlier one is repeated: its deadlines would count from too late.
#[tokio::test]
async fn what_a_later_claim_took_is_started_while_an_earlier_one_is_repeated() {
    let (test, store) = faulty(0);
    let ledger = Ledger::default();
    test.enqueue_many((0..6).map(work)).await.expect("enqueued");
    store.slow("claim");
    store.skip("claim", 1);
    store.plan("claim", &[Refuse]);
    store.skip("claim", 1);
    store.plan("claim", &[Refuse, Refuse, Refuse]);
    test.node(|node| noting(node, &ledger).queue("default", 6).claim_at_most(2)).await.expect("a node");
    test.run_until_idle().await.expect("idle");
    assert_eq!(ledger.sorted().len(), 4, "no time has passed, and one claim is still to be repeated");
    test.advance(10 * SECOND).await.expect("time passes");
    assert_eq!(ledger.sorted(), (0..6).collect::<Vec<_>>(), "each once");
}

/// It is not told that a token was used if that may have been by this very call.
#[tokio::test]
async fn a_token_whose_answer_was_lost_may_have_been_good() {
    let (test, store) = faulty(0);
    let mails: Arc<Mutex<Vec<String>>> = Arc::default();
    let sent = Arc::clone(&mails);
    let handler = move |ctx: Context, _job: Work| {
        let sent = Arc::clone(&sent);
        async move {
            ctx.step_with("ask", async |step| {
                for person in ["ada", "bob", "eve"] {
                    let token = step.token::<u64>("yes").sender(person).await?;
                    sent.lock().expect("the mails").push(token.to_string());
                }
                Ok(())
            })
            .await?;
            ctx.sleep("nap", SECOND).await?;
            let said: Vec<Received<u64>> = ctx.signal("yes").count(3).await?;
            mainspring::HandlerResult::Ok(said.iter().map(|one| one.value).sum())
        }
    };
    let node = |node: NodeBuilder| node.handle(handler).queue("default", 2);
    test.node(node).await.expect("a node");
    let job = test.enqueue(work(1)).await.expect("enqueued");
    test.run_until_idle().await.expect("idle");
    let tokens = mails.lock().expect("the mails").clone();
    let faults: [&[Fault]; 3] = [&[Lose], &[Lose, Refuse], &[Lose, Lose, Lose]];
    for ((token, value), faults) in tokens.iter().zip([1_u64, 20, 300]).zip(faults) {
        store.plan("signal", faults);
        let unknown = test.redeem(token, &value).await;
        assert!(matches!(unknown, Err(Error::OutcomeUnknown { .. })), "{faults:?}: {unknown:?}");
        assert!(matches!(test.redeem(token, &7_u64).await, Err(Error::Token)), "it is good once");
    }
    test.advance(SECOND).await.expect("idle");
    assert_eq!(test.outcome(&job).expect("it ended"), 321);
}

#[tokio::test]
async fn a_refused_claim_is_tried_again_soon() {
    let (test, store) = faulty(0);
    let ledger = Ledger::default();
    store.plan("claim", &[Refuse, Refuse, Refuse]);
    test.node(|node| noting(node, &ledger)).await.expect("a node");
    test.enqueue(work(1)).await.expect("enqueued");
    test.advance(SECOND).await.expect("time passes");
    assert_eq!(ledger.entries(), [1]);
}

#[tokio::test]
async fn an_outcome_is_kept_until_the_store_takes_it() {
    let (test, store) = faulty(0);
    let (ledger, stored) = (Ledger::default(), Ledger::default());
    let hear = stored.clone();
    test.node(|node| noting(node, &ledger).on_outcome(move |_, _| hear.add(1))).await.expect("a node");
    store.plan("finish", &[Refuse, Refuse, Lose, Refuse, Lose]);
    let job = test.enqueue(work(1)).await.expect("enqueued");
    test.advance(10 * SECOND).await.expect("time passes");
    assert_eq!(test.outcome(&job).expect("stored in the end"), 1);
    assert_eq!((ledger.entries(), stored.len()), (vec![1], 1), "one run, one outcome, one call of the hook");
    assert_eq!(record(&test, job.id).await.summary.claim, 1);
}

/// Holding the job while the lease is renewed would leave it running for ever.
#[tokio::test]
async fn a_node_whose_outcomes_are_refused_for_good_stops_and_gives_its_jobs_back() {
    let (test, store) = faulty(0);
    let ledger = Ledger::default();
    let broken = test.node(|node| noting(node, &ledger)).await.expect("a node");
    store.plan("finish", &[Break]);
    let job = test.enqueue(work(1)).await.expect("enqueued");
    test.advance(10 * SECOND).await.expect("time passes");
    assert!(broken.is_shutting_down());
    assert_eq!(state(&test, job.id).await, State::Ready);
    test.node(|node| noting(node, &ledger)).await.expect("another node");
    test.advance(SECOND).await.expect("time passes");
    assert_eq!(test.outcome(&job).expect("it ran again"), 1);
    assert_eq!(record(&test, job.id).await.summary.crashes, 0);
}

/// A snooze leaves nothing to know its repeat by: it is refused, and no harm is done.
#[tokio::test]
async fn a_snooze_whose_answer_is_lost_is_applied_once() {
    let (test, store) = faulty(0);
    let handler = async |ctx: Context, job: Work| {
        if ctx.info().claim == 1 { Err(snooze(5 * SECOND))? } else { mainspring::HandlerResult::Ok(job.n) }
    };
    store.plan("finish", &[Lose]);
    let node = test.node(|node| node.handle(handler).queue("default", 1)).await.expect("a node");
    let job = test.enqueue(work(1)).await.expect("enqueued");
    test.advance(SECOND).await.expect("time passes");
    assert_eq!(state(&test, job.id).await, State::Scheduled);
    assert_eq!(node.claims(), 0);
    test.advance(5 * SECOND).await.expect("time passes");
    assert_eq!(test.outcome(&job).expect("it ran again"), 1);
    assert_eq!(record(&test, job.id).await.summary.claim, 2);
}

#[tokio::test]
async fn an_enqueue_whose_answer_is_lost_is_repeated_and_stored_once() {
    let (test, store) = faulty(0);
    store.plan("enqueue", &[Lose, Lose]);
    let job = test.enqueue(work(1)).await.expect("the third answer came");
    assert!(!job.existing);
    assert_eq!(total(&test, State::Ready).await, 1);
    store.plan("enqueue", &[Lose, Lose]);
    assert_eq!(test.enqueue_many((0..3).map(work)).await.expect("enqueued").len(), 3);
    assert_eq!(total(&test, State::Ready).await, 4);
}

#[tokio::test]
async fn an_enqueue_whose_answers_are_all_lost_can_be_repeated_under_its_id() {
    let (test, store) = faulty(0);
    let id = JobId::from_bytes([5; 16]);
    store.plan("enqueue", &[Lose, Lose, Lose]);
    let error = test.enqueue(work(1)).id(id).await.expect_err("no answer");
    assert!(matches!(error, Error::OutcomeUnknown { .. }) && error.is_retryable(), "{error}");
    let same = test.enqueue(work(1)).id(id).await.expect("the same");
    assert_eq!((same.id, same.existing), (id, true));
    assert_eq!(total(&test, State::Ready).await, 1);
    // What the engine finds of its own is no job that was there before.
    let own = JobId::from_bytes([6; 16]);
    store.plan("enqueue", &[Lose]);
    assert!(!test.enqueue(work(2)).id(own).await.expect("the second answer came").existing);
    // What it finds of others is refused, however often it asks.
    store.plan("enqueue", &[Lose]);
    let error = test.enqueue(work(3)).id(id).await.expect_err("another job has it");
    assert!(matches!(error, Error::IdTaken { .. }), "{error}");
}

#[tokio::test]
async fn an_enqueue_whose_repeat_is_refused_stays_unknown() {
    let (test, store) = faulty(0);
    store.plan("enqueue", &[Lose, Refuse]);
    let error = test.enqueue(work(1)).await.expect_err("nobody knows");
    assert!(matches!(error, Error::OutcomeUnknown { .. }), "{error}");
    assert_eq!(total(&test, State::Ready).await, 1, "it was stored");
}

#[tokio::test]
async fn a_refused_enqueue_stores_nothing_and_says_so() {
    let (test, store) = faulty(0);
    store.plan("enqueue", &[Refuse]);
    let error = test.enqueue(work(1)).await.expect_err("refused");
    assert!(matches!(error, Error::Unavailable { .. }) && error.is_retryable(), "{error}");
    assert_eq!(total(&test, State::Ready).await, 0);
}

#[tokio::test]
async fn a_bulk_enqueue_that_fails_in_the_middle_says_how_much_is_stored() {
    let (test, store) = faulty(0);
    let before = store.calls("enqueue");
    test.enqueue_many((0..2_500).map(work)).await.expect("enqueued");
    assert_eq!(store.calls("enqueue") - before, 3, "batches of a thousand");
    store.skip("enqueue", 2);
    store.plan("enqueue", &[Refuse]);
    let error = test.enqueue_many((0..2_500).map(work)).await.expect_err("the third part is refused");
    assert!(matches!(error, Error::Partial { stored: 2_000, .. }) && !error.is_retryable(), "{error}");
    assert_eq!(total(&test, State::Ready).await, 4_500);
}

#[tokio::test]
async fn a_store_outage_longer_than_the_lease_expires_nobody() {
    let (test, store) = faulty(0);
    let gate = Gate::default();
    let mut nodes = Vec::new();
    for _ in 0..3 {
        let gate = gate.clone();
        let handler = move |_ctx: Context, job: Work| {
            let gate = gate.clone();
            async move {
                gate.pass().await;
                mainspring::HandlerResult::Ok(job.n)
            }
        };
        nodes.push(test.node(|node| node.handle(handler).queue("default", 1)).await.expect("a node"));
    }
    let jobs = test.enqueue_many((0..3).map(work)).await.expect("enqueued");
    test.advance(2 * LEASE).await.expect("time passes");
    let before: Vec<_> = nodes.iter().map(mainspring::Node::number).collect();
    for _ in 0..3 {
        store.outage(true);
        test.advance(Duration::from_secs(100)).await.expect("time passes");
        store.outage(false);
        test.advance(2 * LEASE).await.expect("time passes");
    }
    assert_eq!(before, nodes.iter().map(mainspring::Node::number).collect::<Vec<_>>());
    gate.open();
    test.run_until_idle().await.expect("idle");
    for job in &jobs {
        assert_eq!(record(&test, job.id).await.summary.claim, 1, "nothing ran twice");
    }
}

#[tokio::test]
async fn a_dead_nodes_jobs_run_within_a_lease_and_a_second_of_the_stores_return() {
    // Wherever between two tries of the survivor the store comes back.
    for outage in 60..72 {
        let (test, store) = faulty(0);
        let handler = |ctx: Context, job: Work| async move {
            if ctx.info().claim == 1 {
                std::future::pending::<()>().await;
            }
            mainspring::HandlerResult::Ok(job.n)
        };
        let dies = test.node(|node| node.handle(handler).queue("default", 1)).await.expect("a node");
        let job = test.enqueue(work(7)).await.expect("enqueued");
        test.advance(SECOND).await.expect("time passes");
        test.node(|node| node.handle(handler).queue("default", 1)).await.expect("another node");
        store.outage(true);
        test.crash_node(&dies).await.expect("it dies");
        test.advance(outage * SECOND).await.expect("time passes");
        store.outage(false);
        test.advance(LEASE + SECOND).await.expect("time passes");
        assert_eq!(state(&test, job.id).await, State::Succeeded, "after an outage of {outage} s");
    }
}

/// A node that hears nothing looks by itself, however busy its other queues keep it.
#[tokio::test]
async fn a_queue_whose_hint_is_lost_is_served_beside_a_busy_one() {
    let (test, store) = faulty(0);
    store.mute();
    let clock = Arc::clone(&test.seams().clock);
    let handler = move |_ctx: Context, job: Work| {
        let clock = Arc::clone(&clock);
        async move {
            clock.sleep(SECOND).await;
            mainspring::HandlerResult::Ok(job.n)
        }
    };
    test.enqueue_many((0..100).map(work)).await.expect("enqueued");
    test.node(|node| node.handle(handler).queue("default", 2).queue("rare", 1)).await.expect("a node");
    test.advance(SECOND).await.expect("time passes");
    let rare = test.enqueue(work(100)).queue("rare").await.expect("enqueued");
    test.advance(LEASE / 3 + 2 * SECOND).await.expect("time passes");
    assert_eq!(state(&test, rare.id).await, State::Succeeded);
}

#[tokio::test]
async fn a_node_whose_answer_is_lost_when_it_joins_anew_joins_once() {
    let (test, store) = faulty(0);
    let node = test.node(|node| noting(node, &Ledger::default())).await.expect("a node");
    test.advance(SECOND).await.expect("time passes");
    test.store().retire(node.number()).await.expect("retired");
    store.plan("register", &[Lose, Refuse, Lose]);
    test.advance(2 * LEASE).await.expect("time passes");
    let nodes = test.nodes().await.expect("the nodes");
    assert_eq!(nodes.len(), 2, "the old one and the new one: {nodes:?}");
    assert_eq!(nodes[0].no, node.number());
}

#[tokio::test]
async fn a_node_that_shuts_down_while_it_joins_anew_leaves_under_both_numbers() {
    let (test, store) = faulty(0);
    let node = test.node(|node| noting(node, &Ledger::default())).await.expect("a node");
    test.advance(SECOND).await.expect("time passes");
    // As if another had expired it, it is told so at its next renewal.
    test.store().retire(node.number()).await.expect("retired");
    store.hang("register", None, true);
    test.advance(LEASE).await.expect("time passes");
    test.advance(SECOND).await.expect("time passes");
    let mut shutdown = std::pin::pin!(node.shutdown());
    tokio::select! {
        biased;
        () = &mut shutdown => {}
        passed = test.advance(LEASE) => passed.expect("time passes"),
    }
    store.hang("register", None, false);
    test.advance(LEASE).await.expect("time passes");
    let nodes = test.nodes().await.expect("the nodes");
    assert!(nodes.iter().all(|node| node.state != mainspring_core::store::NodeState::Live), "{nodes:?}");
}

/// A node that was cut off for longer than its lease: its jobs run elsewhere, what it says afterwards is refused, and it
/// joins anew.
#[tokio::test]
async fn a_node_that_was_cut_off_writes_nothing_and_joins_anew() {
    let (test, store) = faulty(0);
    let (gate, outcomes) = (Gate::default(), Ledger::default());
    let (door, hear) = (gate.clone(), outcomes.clone());
    let slow = move |_ctx: Context, _job: Work| {
        let gate = door.clone();
        async move {
            gate.pass().await;
            mainspring::HandlerResult::Ok(1)
        }
    };
    let partitioned = test
        .node(|node| {
            node.handle(slow).queue("default", 2).on_outcome(move |_, outcome| {
                hear.add(u64::from(matches!(outcome, Outcome::Succeed { .. })));
            })
        })
        .await
        .expect("a node");
    let jobs = test.enqueue_many((0..2).map(work)).await.expect("enqueued");
    test.advance(Duration::ZERO).await.expect("it settles");
    let old = partitioned.number();
    store.cut_off(old, true);
    let quick = async |_ctx: Context, _job: Work| mainspring::HandlerResult::Ok(2);
    let other = test.node(|node| node.handle(quick).queue("default", 2)).await.expect("another node");
    test.advance(LEASE + 2 * SECOND).await.expect("time passes");
    for job in &jobs {
        assert_eq!(test.outcome(job).expect("it ran elsewhere"), 2);
    }
    // The handlers come to their ends while the node is cut off: nobody hears of it.
    gate.open();
    test.advance(SECOND).await.expect("time passes");
    store.cut_off(old, false);
    test.advance(LEASE).await.expect("time passes");
    for job in &jobs {
        assert_eq!(test.outcome(job).expect("still"), 2, "exactly one outcome");
        assert_eq!(record(&test, job.id).await.summary.claim, 2);
    }
    assert_eq!(outcomes.len(), 0, "no hook for what was refused");
    assert!(partitioned.number().0 > old.0, "a fresh number");
    assert_eq!(partitioned.claims(), 0);
    // It is a full member again.
    other.shutdown().await;
    let job = test.enqueue(work(3)).await.expect("enqueued");
    test.run_until_idle().await.expect("idle");
    assert_eq!(test.outcome(&job).expect("it ran"), 1);
    assert_sound(&test).await;
}

/// As before, but the handlers are still running when the node finds out.
#[tokio::test]
async fn handlers_of_a_node_that_lost_its_lease_are_dropped() {
    struct Note(Ledger);
    impl Drop for Note {
        fn drop(&mut self) {
            self.0.add(1);
        }
    }

    let (test, store) = faulty(0);
    let (dropped, endless) = (Ledger::default(), Gate::default());
    let (notes, gate) = (dropped.clone(), endless.clone());
    let slow = move |_ctx: Context, job: Work| {
        let (notes, gate) = (notes.clone(), gate.clone());
        async move {
            let _note = Note(notes);
            gate.pass().await;
            mainspring::HandlerResult::Ok(job.n)
        }
    };
    let node = test.node(|node| node.handle(slow).queue("default", 3)).await.expect("a node");
    test.enqueue_many((0..3).map(work)).await.expect("enqueued");
    test.advance(Duration::ZERO).await.expect("it settles");
    assert_eq!(endless.came(), 3);
    store.cut_off(node.number(), true);
    let quick = async |_ctx: Context, job: Work| mainspring::HandlerResult::Ok(job.n);
    test.node(|node| node.handle(quick).queue("default", 3)).await.expect("another node");
    test.advance(LEASE + 2 * SECOND).await.expect("time passes");
    store.cut_off(node.number(), false);
    test.advance(2 * SECOND).await.expect("time passes");
    assert_eq!(dropped.len(), 3);
    assert_eq!(total(&test, State::Succeeded).await, 3);
    assert_eq!(node.claims(), 0);
}

#[tokio::test]
async fn short_failures_of_renewal_cost_nothing() {
    let (test, store) = faulty(0);
    let gate = Gate::default();
    let door = gate.clone();
    let handler = move |_ctx: Context, job: Work| {
        let gate = door.clone();
        async move {
            gate.pass().await;
            mainspring::HandlerResult::Ok(job.n)
        }
    };
    let node = test.node(|node| node.handle(handler).queue("default", 1)).await.expect("a node");
    let quick = async |_ctx: Context, job: Work| mainspring::HandlerResult::Ok(job.n);
    test.node(|node| node.handle(quick).queue("other", 1)).await.expect("a node that would rescue");
    let number = node.number();
    let job = test.enqueue(work(1)).await.expect("enqueued");
    for _ in 0..10 {
        store.plan("renew", &[Refuse, Lose, Refuse, Refuse]);
        test.advance(LEASE).await.expect("time passes");
    }
    assert_eq!(node.number(), number);
    gate.open();
    test.run_until_idle().await.expect("idle");
    assert_eq!(record(&test, job.id).await.summary.claim, 1);
}

#[tokio::test]
async fn progress_that_hangs_does_not_cost_the_lease() {
    let (test, store) = faulty(0);
    let talks = async |ctx: Context, _job: Work| -> mainspring::HandlerResult<u64> {
        ctx.progress(1, 3, "one");
        std::future::pending().await
    };
    let node = test.node(|node| node.handle(talks).queue("default", 1)).await.expect("a node");
    let quick = async |_ctx: Context, job: Work| mainspring::HandlerResult::Ok(job.n);
    test.node(|node| node.handle(quick).queue("other", 1)).await.expect("a node that would rescue");
    let number = node.number();
    store.hang("progress", Some(number), true);
    let job = test.enqueue(work(1)).await.expect("enqueued");
    test.advance(3 * LEASE).await.expect("time passes");
    assert_eq!(record(&test, job.id).await.summary.crashes, 0);
    assert_eq!(node.number(), number);
    store.hang("progress", Some(number), false);
    test.advance(5 * SECOND).await.expect("time passes");
    assert_eq!(record(&test, job.id).await.progress.expect("progress").note, "one");
}

#[tokio::test]
async fn progress_that_could_not_be_stored_is_not_forgotten() {
    let (test, store) = faulty(0);
    let talks = async |ctx: Context, _job: Work| -> mainspring::HandlerResult<u64> {
        ctx.progress(1, 3, "one");
        std::future::pending().await
    };
    store.plan("progress", &[Refuse, Refuse]);
    test.node(|node| node.handle(talks).queue("default", 1)).await.expect("a node");
    let job = test.enqueue(work(1)).await.expect("enqueued");
    test.advance(5 * SECOND).await.expect("time passes");
    assert_eq!(record(&test, job.id).await.progress.expect("progress").note, "one");
}

#[tokio::test]
async fn shutting_down_never_hangs_whatever_the_store_does() {
    for hangs in [true, false] {
        let (test, store) = faulty(0);
        let ledger = Ledger::default();
        let node = test.node(|node| noting(node, &ledger)).await.expect("a node");
        test.run_until_idle().await.expect("idle");
        for operation in ["claim", "finish", "retire", "renew", "rescue"] {
            store.hang(operation, None, hangs);
        }
        store.outage(!hangs);
        drop(test.enqueue(work(1)).await);
        let ((), advanced) = tokio::join!(node.shutdown(), test.advance(Duration::from_secs(40)));
        advanced.expect("time passes");
        assert!(node.is_shutting_down());
    }
}

#[tokio::test]
async fn a_node_that_cannot_join_does_not_start() {
    let (test, store) = faulty(0);
    let ledger = Ledger::default();
    store.plan("register", &[Refuse]);
    let error = test.node(|node| noting(node, &ledger)).await.expect_err("refused");
    assert!(matches!(error, Error::Unavailable { .. }), "{error}");
}

/// Everything fails at random, and nodes die. When the storm is over, each job has exactly one outcome.
#[tokio::test]
async fn after_a_storm_each_job_has_one_outcome() {
    for seed in 0..8 {
        let (test, store) = faulty(seed);
        let (ledger, outcomes) = (Ledger::default(), Ledger::default());
        let handler = {
            let ledger = ledger.clone();
            move |ctx: Context, job: Work| {
                let ledger = ledger.clone();
                async move {
                    ctx.engine().seams().clock.sleep(Duration::from_millis(job.n % 7)).await;
                    ledger.add(job.n);
                    if ctx.attempt() == 1 && job.n.is_multiple_of(5) {
                        Err("first")?
                    } else {
                        mainspring::HandlerResult::Ok(job.n)
                    }
                }
            }
        };
        let start = async || {
            let (handler, outcomes) = (handler.clone(), outcomes.clone());
            let setup = move |node: NodeBuilder| {
                node.handle(handler).queue("default", 3).on_outcome(move |info, outcome| {
                    if matches!(outcome, Outcome::Succeed { .. }) {
                        outcomes.add(u64::from(info.claim));
                    }
                })
            };
            drop(test.node(setup).await);
        };
        for _ in 0..3 {
            start().await;
        }
        store.storm(Arc::clone(&test.seams().rng), 0.3);
        let mut acknowledged = Vec::new();
        for n in 0..120 {
            if let Ok(job) = test.enqueue(work(n)).await {
                acknowledged.push((n, job));
            }
            if n % 40 == 39 {
                test.advance(3 * SECOND).await.expect("time passes");
            }
            if n == 60 {
                test.crash().await.expect("they die");
                store.calm();
                for _ in 0..3 {
                    start().await;
                }
                store.storm(Arc::clone(&test.seams().rng), 0.3);
            }
        }
        store.calm();
        test.advance(Duration::from_mins(5)).await.expect("time passes");
        for (n, job) in &acknowledged {
            let summary = record(&test, job.id).await.summary;
            assert_eq!(summary.status.state, State::Succeeded, "seed {seed}: {summary:?}");
            assert_eq!(test.outcome(job).expect("it succeeded"), *n);
            assert!(ledger.entries().contains(n));
        }
        let stored = total(&test, State::Succeeded).await;
        assert!(stored >= acknowledged.len() as u64);
        assert!(outcomes.len() as u64 <= stored, "seed {seed}: a hook for each outcome at most");
        for state in [State::Running, State::Ready, State::Scheduled] {
            assert_eq!(total(&test, state).await, 0, "seed {seed}");
        }
        assert_sound(&test).await;
    }
}
/// The outage takes another form: calls are not refused, they do not come back, and then all at once.
#[tokio::test]
async fn a_store_that_hangs_longer_than_the_lease_expires_nobody() {
    let (test, store) = faulty(0);
    let gate = Gate::default();
    let mut nodes = Vec::new();
    for _ in 0..2 {
        let gate = gate.clone();
        let handler = move |_ctx: Context, job: Work| {
            let gate = gate.clone();
            async move {
                gate.pass().await;
                mainspring::HandlerResult::Ok(job.n)
            }
        };
        nodes.push(test.node(|node| node.handle(handler).queue("default", 1)).await.expect("a node"));
    }
    test.enqueue_many((0..2).map(work)).await.expect("enqueued");
    test.advance(2 * LEASE).await.expect("time passes");
    let before: Vec<_> = nodes.iter().map(mainspring::Node::number).collect();
    for operation in ["renew", "rescue", "claim"] {
        store.hang(operation, None, true);
    }
    test.advance(2 * LEASE).await.expect("time passes");
    // The worst order: those who judge come first.
    for operation in ["rescue", "renew", "claim"] {
        store.hang(operation, None, false);
        test.advance(Duration::ZERO).await.expect("it settles");
    }
    test.advance(2 * LEASE).await.expect("time passes");
    assert_eq!(before, nodes.iter().map(mainspring::Node::number).collect::<Vec<_>>());
}

/// Begins a step once the gate is open, and notes by which claim.
fn stepping(node: NodeBuilder, gate: &Gate, ledger: &Ledger) -> NodeBuilder {
    let (door, effects) = (gate.clone(), ledger.clone());
    let handler = move |ctx: Context, job: Work| {
        let (door, effects) = (door.clone(), effects.clone());
        async move {
            door.pass().await;
            let claim = ctx.step_with("effect", |step: StepContext| {
                effects.add(u64::from(step.claim()));
                async { Ok(()) }
            });
            claim.await?;
            mainspring::HandlerResult::Ok(job.n)
        }
    };
    node.handle(handler).queue("default", 1)
}

/// A process that is stopped past its lease and continued: its keeper has not been answered yet when a handler goes on.
#[tokio::test]
async fn nothing_is_begun_under_a_lease_that_lapsed_while_nobody_kept_it() {
    let (test, store) = faulty(0);
    let (gate, ledger) = (Gate::default(), Ledger::default());
    test.node(|node| stepping(node, &gate, &ledger)).await.expect("a node");
    let job = test.enqueue(work(1)).await.expect("enqueued");
    gate.reached(1).await;
    // The connection is closed meanwhile, too.
    store.refuse("renew", true);
    test.leap(LEASE + 2 * SECOND).await.expect("it is stopped");
    test.advance(SECOND).await.expect("time passes");
    gate.open();
    test.advance(SECOND).await.expect("time passes");
    store.refuse("renew", false);
    test.advance(SECOND).await.expect("time passes");
    test.run_until_idle().await.expect("idle");
    assert_eq!(ledger.sorted(), [2], "the first claim was given back, and not used");
    assert_eq!(record(&test, job.id).await.summary.status.state, State::Succeeded);
}

/// A process that runs knows of its outage: its jobs go on, whether a renewal is refused or takes longer than a lease.
#[tokio::test]
async fn an_outage_ends_no_run() {
    for hangs in [false, true] {
        let (test, store) = faulty(0);
        let (gate, ledger) = (Gate::default(), Ledger::default());
        test.node(|node| stepping(node, &gate, &ledger)).await.expect("a node");
        let job = test.enqueue(work(1)).await.expect("enqueued");
        gate.reached(1).await;
        let block =
            |block| if hangs { store.hang("renew", None, block) } else { store.refuse("renew", block) };
        block(true);
        test.advance(3 * LEASE).await.expect("time passes");
        gate.open();
        test.advance(SECOND).await.expect("time passes");
        assert_eq!(ledger.sorted(), [1], "it hangs: {hangs}");
        block(false);
        test.run_until_idle().await.expect("idle");
        assert_eq!(state(&test, job.id).await, State::Succeeded, "it hangs: {hangs}");
    }
}

/// Without its finisher a node would hold its jobs for as long as it renews its lease.
#[tokio::test]
async fn a_node_whose_finisher_panics_stops_and_gives_its_jobs_back() {
    let (test, store) = faulty(0);
    let ledger = Ledger::default();
    store.plan("finish", &[Fault::Panic]);
    test.enqueue_many((0..3).map(work)).await.expect("enqueued");
    test.node(|node| noting(node, &ledger).queue("default", 1)).await.expect("a node");
    test.advance(Duration::from_secs(20)).await.expect("time passes");
    assert_eq!((total(&test, State::Running).await, total(&test, State::Ready).await), (0, 3));
    test.node(|node| noting(node, &ledger).queue("default", 1)).await.expect("another node");
    test.advance(SECOND).await.expect("time passes");
    assert_eq!(total(&test, State::Succeeded).await, 3);
}
