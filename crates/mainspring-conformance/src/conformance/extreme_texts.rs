//! Hostile and extreme texts and payloads: stored as data, never anything else.

use std::collections::BTreeMap;

use mainspring_core::bounds;
use mainspring_core::id::{Claim, Row};
use mainspring_core::job::{Outcome, Progress, Reason, State, Unique, Verb};
use mainspring_core::journal::Value;
use mainspring_core::store::{Cancellation, Filter, Receipt};

use crate::harness::{Harness, SECOND, cancel, fault, kind, label, queue, retry, stopped, tag};

/// Texts that have broken other systems.
pub(super) const HOSTILE: [&str; 9] = [
    "'; drop table jobs; --",
    "\" or 1=1 --",
    "a;b",
    "%_\\",
    "größe 日本語 🦀 e\u{301}",
    "\u{202E}evil\u{FEFF}",
    "{\"a\":[1,2]}",
    "?1 :name @x $y",
    " ",
];

/// Tags, headers and unique keys come back as they were, and find their own job only.
pub async fn hostile_options_are_data(h: &Harness) {
    let mut ids = Vec::new();
    for text in HOSTILE {
        let job = h.job_with(|job| {
            job.options.tags = vec![tag(text)];
            job.options.headers = BTreeMap::from([(text.to_owned(), text.to_owned())]);
            job.options.unique = Some(text.into());
        });
        let options = job.options.clone();
        let id = h.put(job).await;
        assert_eq!(h.get(id).await.summary.options, options);
        ids.push(id);
    }
    for (text, id) in HOSTILE.iter().zip(ids) {
        let filter = Filter { tag: Some(tag(text)), ..Filter::default() };
        assert_eq!(h.ids(&filter).await, [id], "{text}");
        let again = h.job_with(|job| job.options.unique = Some(Unique::new(*text)));
        assert_eq!(h.enqueue(again).await, Receipt::Existing(id), "{text}");
    }
}

/// Labels and names of nodes come back as they were, and labels match by their exact text.
pub async fn hostile_labels_and_node_names_are_data(h: &Harness) {
    for text in HOSTILE {
        let id = h.put(h.job_with(|job| job.options.labels = vec![label(text)])).await;
        let without = h.node().await;
        assert!(h.claim(without, 10).await.is_empty(), "{text}");
        let with = h
            .node_with(|node| {
                node.abilities.labels = vec![label(text)];
                node.name = text.into();
                node.version = text.into();
            })
            .await;
        let view = h.node_view(with).await;
        assert_eq!(
            (view.name.as_str(), view.version.as_str(), view.abilities.labels),
            (text, text, vec![label(text)])
        );
        let claim = h.claim_one(with).await;
        assert_eq!(claim.id, id);
        h.end(with, claim, Outcome::Succeed { result: None }).await;
    }
}

/// Errors, notes, reasons and progress come back as they were.
pub async fn hostile_words_of_handlers_and_operators_are_data(h: &Harness) {
    let node = h.node().await;
    for text in HOSTILE {
        let id = h.put_one().await;
        let claim = h.claim_one(node).await;
        let progress = Progress { done: 1, total: 2, note: text.into() };
        h.store.progress(node, vec![(claim, progress.clone())]).await.expect("progress");
        h.end(node, claim, Outcome::Retry { after: SECOND, fault: fault(text) }).await;
        h.apply(id, cancel(text)).await;
        let record = h.get(id).await;
        assert_eq!(record.errors[0].message, text);
        assert_eq!((record.note.as_deref(), record.progress), (Some(text), Some(progress)));

        h.apply(id, Verb::Retry).await;
        let claim = h.claim_one(node).await;
        h.apply(id, cancel(text)).await;
        assert_eq!(h.renew(node).await.cancel, [(claim, Cancellation::operator(text))]);
        h.end(node, claim, stopped(text)).await;
        assert_eq!(h.get(id).await.note.as_deref(), Some(text));
    }
}

/// Inputs and results of the largest size come back byte by byte.
pub async fn payload_of_a_mebibyte_survives(h: &Harness) {
    let payload: Vec<u8> = (0..bounds::INPUT_BYTES).map(|i| u8::try_from(i % 251).unwrap_or(0)).collect();
    let id = h.put(h.job_with(|job| job.input.clone_from(&payload))).await;
    let node = h.node().await;
    let claimed = h.claim(node, 1).await.remove(0);
    assert_eq!(claimed.input, Value::There(payload.len()), "too much to come with its claim");
    assert!(h.input(claimed.claim).await.as_ref() == Some(&payload));
    h.end(node, claimed.claim, Outcome::Succeed { result: Some(payload.clone().into()) }).await;
    let record = h.get(id).await;
    assert!(record.input == payload && record.result == Some(payload));
}

/// A claim brings inputs up to a bound, and the sizes of those beyond it.
pub async fn inputs_beyond_a_bound_are_read_by_themselves(h: &Harness) {
    let bound = bounds::CLAIM_INPUT_BYTES;
    let sizes = [bound, bound + 1, 3, 2 * bound];
    for size in sizes {
        h.put(h.job_with(|job| job.input = vec![b'7'; size])).await;
    }
    let node = h.node().await;
    let claimed = h.claim(node, sizes.len()).await;
    let told = claimed.iter().map(|claimed| claimed.input.clone());
    let expected = sizes.map(|size| match size {
        size if size <= bound => Value::Here(vec![b'7'; size]),
        size => Value::There(size),
    });
    assert_eq!(told.collect::<Vec<_>>(), expected);
    let mut claims: Vec<Claim> = claimed.iter().map(|claimed| claimed.claim).collect();
    // One that is not there.
    claims[0].row = Row(i64::MAX);
    let inputs = h.inputs(claims).await;
    let found: Vec<_> = inputs.iter().map(|input| input.as_ref().map(Vec::len)).collect();
    assert_eq!(found, [None, Some(bound + 1), Some(3), Some(2 * bound)]);
}

/// An empty payload is empty, not absent.
pub async fn empty_payload_survives(h: &Harness) {
    let id = h.put(h.job_with(|job| job.input = Vec::new())).await;
    let node = h.node().await;
    let claimed = h.claim(node, 1).await.remove(0);
    assert_eq!(claimed.input, Value::Here(Vec::new()));
    h.end(node, claimed.claim, Outcome::Succeed { result: Some(Vec::new().into()) }).await;
    let record = h.get(id).await;
    assert_eq!((record.input, record.result), (Vec::new(), Some(Vec::new())));
}

/// Payloads are bytes: NUL and what is not UTF-8 come back.
pub async fn payload_that_is_not_text_survives(h: &Harness) {
    let bytes = vec![0, 0xFF, 0xFE, 0xC3, 0x28, 0, b'\''];
    let id = h.put(h.job_with(|job| job.input.clone_from(&bytes))).await;
    let node = h.node().await;
    let claimed = h.claim(node, 1).await.remove(0);
    assert_eq!(claimed.input, Value::Here(bytes.clone()));
    h.end(node, claimed.claim, Outcome::Succeed { result: Some(bytes.clone().into()) }).await;
    assert_eq!(h.get(id).await.result, Some(bytes));
}

/// Names, keys, tags and error texts of the largest size fit.
pub async fn longest_texts_survive(h: &Harness) {
    let (name, text) = ("n".repeat(bounds::NAME_BYTES), "t".repeat(bounds::TAG_BYTES));
    let job = h.job_with(|job| {
        job.kind = kind(&name);
        job.queue = queue(&name);
        job.options.tags = (0..bounds::TAGS).map(|i| tag(&format!("{i:02}{}", &text[2..]))).collect();
        job.options.unique = Some("k".repeat(bounds::KEY_BYTES).into());
        job.options.headers = BTreeMap::from([("h".into(), "v".repeat(bounds::HEADER_BYTES - 1))]);
    });
    let id = h.put(job.clone()).await;
    assert_eq!(h.get(id).await.summary.options, job.options);
    let node = h.node_with(|node| node.abilities.kinds = vec![kind(&name)]).await;
    let mut request = h.request(node, 1);
    request.queues = vec![(queue(&name), 1)];
    let claim = h.claim_as(request).await.remove(0).claim;
    let message = "e".repeat(bounds::ERROR_BYTES);
    h.end(node, claim, Outcome::Retry { after: SECOND, fault: fault(&message) }).await;
    assert_eq!(h.get(id).await.errors[0].message, message);
    h.apply(id, cancel(&"w".repeat(bounds::WHY_BYTES))).await;
    assert_eq!(h.get(id).await.note.map(|note| note.len()), Some(bounds::WHY_BYTES));
}

/// One large neighbour does not keep others from being claimed and finished with it.
pub async fn large_and_small_jobs_share_a_batch(h: &Harness) {
    let large = h.job_with(|job| job.input = vec![b' '; bounds::INPUT_BYTES]);
    let receipts = h.enqueue_all(vec![h.job(), large, h.job()]).await;
    assert_eq!(receipts, [Receipt::Created; 3]);
    let node = h.node().await;
    for claimed in h.claim(node, 3).await {
        h.end(node, claimed.claim, retry(SECOND)).await;
    }
    assert_eq!(h.counts().await.total(State::Scheduled), 3);
    h.advance(SECOND);
    h.promote().await;
    for claimed in h.claim(node, 3).await {
        h.end(node, claimed.claim, Outcome::Cancel { reason: Reason::Handler, why: String::new() }).await;
    }
    assert_eq!(h.counts().await.total(State::Cancelled), 3);
}
