//! Tokens: good for one signal, and for nothing else.

use std::sync::{Arc, Mutex};

use mainspring::testing::TestEngine;
use mainspring::workflow::Received;
use mainspring::{Context, Error, SignalType};

use crate::support::{Flow, HOUR, On, SECOND, flow, keys, on_every_store};

const APPROVED: SignalType<u64> = SignalType::new("approved");

/// Tokens that were sent somewhere.
type Mails = Arc<Mutex<Vec<String>>>;

/// A workflow that mails tokens to so many people, and waits for all of them.
async fn asks(on: &On, cached: usize, people: u64, mails: &Mails) -> TestEngine {
    let mails = Arc::clone(mails);
    on.engine(cached, move |ctx: Context, _job: Flow| {
        let mails = Arc::clone(&mails);
        async move {
            ctx.step_with("ask", async |step| {
                for person in 0..people {
                    let token = step.token(APPROVED).sender(person.to_string()).expires_in(HOUR).await?;
                    assert!(!format!("{token:?}").contains(&token.as_str()[40..]));
                    mails.lock().expect("the mails").push(token.to_string());
                }
                if step.attempt() == 1 && people == 1 {
                    Err("the answer was lost")?;
                }
                Ok(())
            })
            .retry(1)
            .await?;
            let count = u32::try_from(people).expect("a few");
            let answers: Vec<Received<u64>> = ctx.signal(APPROVED).count(count).timeout(HOUR * 5).await?;
            ctx.sleep("rest", SECOND).await?;
            let mut answers: Vec<u64> = answers.into_iter().map(|answer| answer.value).collect();
            answers.sort_unstable();
            Ok(format!("{answers:?}"))
        }
    })
    .await
}

on_every_store! {
    async fn a_token_is_good_once_and_nothing_is_kept_of_it(on: &On) {
        for &cached in on.cache_sizes() {
            let mails = Mails::default();
            let test = asks(on, cached, 2, &mails).await;
            let job = test.enqueue(flow(0)).await.expect("enqueued");
            test.run_until_idle().await.expect("idle");
            let [first, second] = <[String; 2]>::try_from(mails.lock().expect("the mails").clone()).expect("two");
            let recorded = format!("{:?}", test.store().timeline(job.id).await.expect("a timeline"));
            assert!(!recorded.contains(&first[40..]), "the secret is nowhere");
            let (one, other) = tokio::join!(test.redeem(&first, &1_u64), test.redeem(&first, &7_u64));
            assert!(one.is_ok() != other.is_ok(), "{one:?} {other:?}");
            for bad in [
                "",
                "mst",
                &first[..first.len() - 1],
                &first.replace(&first[40..44], "0000"),
                &second.to_uppercase(),
            ] {
                assert!(matches!(test.redeem(bad, &1_u64).await, Err(Error::Token)), "{bad}");
            }
            test.redeem(&second, &2_u64).await.expect("good");
            test.advance(SECOND).await.expect("idle");
            let ended = test.outcome(&job).expect("it ended");
            assert!(["[1, 2]", "[2, 7]"].contains(&ended.as_str()), "{ended}");
            assert!(keys(&test, &job).await.iter().all(|key| !key.contains("token")), "nothing is kept");
            assert!(matches!(test.redeem(&first, &1_u64).await, Err(Error::Token)));
        }
    }

    async fn nothing_is_kept_of_a_token_in_a_large_journal(on: &On) {
        let mails = Mails::default();
        let ours = Arc::clone(&mails);
        let test = on.engine(0, move |ctx: Context, _job: Flow| {
            let mails = Arc::clone(&ours);
            async move {
                for _ in 0..2 {
                    ctx.step("large", async || Ok("x".repeat(200 << 10))).await?;
                }
                ctx.step_with("ask", async |step| {
                    let token = step.token(APPROVED).await?.to_string();
                    mails.lock().expect("the mails").push(token);
                    Ok(())
                })
                .await?;
                let answer = ctx.signal(APPROVED).await?;
                ctx.sleep("rest", HOUR).await?;
                Ok(answer.to_string())
            }
        });
        let test = test.await;
        let job = test.enqueue(flow(0)).await.expect("enqueued");
        test.run_until_idle().await.expect("idle");
        let token = mails.lock().expect("the mails").first().cloned().expect("a token");
        test.redeem(&token, &7_u64).await.expect("good");
        test.run_until_idle().await.expect("idle");
        assert_eq!(keys(&test, &job).await, ["large", "large#2", "ask", "approved", "rest#until"]);
    }

    async fn tokens_of_a_body_that_ran_twice_are_one_and_expire(on: &On) {
        let mails = Mails::default();
        let test = asks(on, 0, 1, &mails).await;
        let job = test.enqueue(flow(0)).await.expect("enqueued");
        test.advance(HOUR / 2).await.expect("idle");
        let [first, second] = <[String; 2]>::try_from(mails.lock().expect("the mails").clone()).expect("two");
        test.advance(HOUR).await.expect("idle");
        assert!(matches!(test.redeem(&first, &1_u64).await, Err(Error::Token)), "it has expired");
        let again = test.enqueue(flow(0)).await.expect("enqueued");
        test.advance(HOUR / 2).await.expect("idle");
        let [_, _, first, other] =
            <[String; 4]>::try_from(mails.lock().expect("the mails").clone()).expect("four");
        assert_ne!(first, second);
        test.redeem(&first, &1_u64).await.expect("good");
        assert!(matches!(test.redeem(&other, &1_u64).await, Err(Error::Token)), "both are one");
        test.advance(HOUR * 5).await.expect("idle");
        assert_eq!(test.outcome(&again).expect("it ended"), "[1]");
        assert_eq!(test.outcome(&job).expect("it ended"), "[]");
    }
}
