//! What does not come back from JSON: refused where it is written, and not found out when it is read.

use mainspring::testing::TestEngine;
use mainspring::{Context, Error, Job};
use serde::{Deserialize, Serialize};

/// What is measured; the handler divides it by zero in one of its places.
#[derive(Debug, Clone, Serialize, Deserialize, Job)]
#[job(kind = "measure", result = f64, max_attempts = 1)]
struct Measure {
    values: Vec<f64>,
    place: u8,
}

async fn measure(ctx: Context, job: Measure) -> mainspring::HandlerResult<f64> {
    let ratio = job.values.iter().sum::<f64>() / 0.0;
    match job.place {
        0 => ctx.step("ratio", async || Ok(ratio)).await.map_err(Into::into),
        // It would come back as `None`, without an error.
        1 => Ok(ctx.step("maybe", async || Ok((1, Some(ratio)))).await?.0.into()),
        2 => Ok(ctx.branch("scope", async |_| Ok(vec![ratio])).await?[0]),
        _ => Ok(ratio),
    }
}

async fn engine() -> TestEngine {
    let test = TestEngine::new();
    test.node(|node| node.handle(measure).queue("default", 1)).await.expect("a node");
    test
}

#[tokio::test]
async fn a_result_that_json_cannot_hold_is_told_by_its_field() {
    let test = engine().await;
    for (place, said) in [
        (0, "step `ratio` failed: discarded: its result cannot be written as JSON: value is inf"),
        (1, "step `maybe` failed: discarded: its result cannot be written as JSON: value[1] is inf"),
        (2, "value[0] is inf, which JSON cannot hold"),
        (3, "cannot encode the result: value is inf, which JSON cannot hold"),
    ] {
        let failed = test.run(Measure { values: vec![1.0], place }).await.expect_err("refused").to_string();
        assert!(failed.contains(said), "{place}: {failed}");
    }
}

#[tokio::test]
async fn an_input_that_json_cannot_hold_is_refused() {
    let test = engine().await;
    let convert = |refused: Error| match refused {
        Error::Convert { source, .. } => source.to_string(),
        other => panic!("{other:?}"),
    };
    let refused = test.enqueue(Measure { values: vec![0.5, f64::NAN], place: 0 }).await.expect_err("refused");
    assert_eq!(convert(refused), "value.values[1] is NaN, which JSON cannot hold");
    let many = [1.0, f64::NEG_INFINITY].map(|value| Measure { values: vec![value], place: 0 });
    let refused = test.enqueue_many(many).await.expect_err("refused");
    assert_eq!(convert(refused), "value.values[0] is -inf, which JSON cannot hold");
}

/// Something that is not always written as it is read.
#[derive(Debug, Clone, Serialize, Deserialize, Job)]
#[job(kind = "ship")]
struct Ship {
    lines: Vec<Line>,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
struct Line {
    #[serde(serialize_with = "as_words")]
    count: u32,
    #[serde(skip_serializing_if = "String::is_empty")]
    to: String,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "so serde calls it")]
fn as_words<S: serde::Serializer>(count: &u32, serializer: S) -> Result<S::Ok, S::Error> {
    if *count == 1 { serializer.serialize_str("one") } else { serializer.serialize_u32(*count) }
}

/// In production nobody reads an input twice; the job would fail in each of its attempts.
#[tokio::test]
async fn a_test_refuses_an_input_that_its_type_cannot_read() {
    let line = |count, to: &str| Line { count, to: to.into() };
    let test = TestEngine::new();
    let said = |refused: Error| match refused {
        Error::Convert { what: "input", source } => source.to_string(),
        other => panic!("{other:?}"),
    };
    let words = Ship { lines: vec![line(2, "here"), line(1, "there")] };
    let refused = said(test.enqueue(words.clone()).await.expect_err("refused"));
    assert!(
        refused.starts_with("value.lines[1].count cannot be read as it is written: invalid type: string"),
        "{refused}"
    );
    let nowhere = Ship { lines: vec![line(3, "")] };
    let refused = said(test.enqueue_many([nowhere.clone()]).await.expect_err("refused"));
    assert!(
        refused.starts_with("value.lines[0] cannot be read as it is written: missing field `to`"),
        "{refused}"
    );
    assert!(test.enqueued::<Ship>().is_empty());

    let engine = mainspring::Engine::open("memory:").await.expect("open");
    engine.enqueue(nowhere).await.expect("nobody looks");
}
