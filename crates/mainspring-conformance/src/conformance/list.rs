//! Listing: filters, pages, and what a cursor promises.

use std::collections::BTreeSet;

use mainspring_core::job::{Fault, FaultKind, Outcome, Reason, State, Verb, When};
use mainspring_core::store::{ErrorText, Filter, Page, PagePosition};
use mainspring_core::{Error, bounds};

use crate::harness::{Harness, SECOND, cancel, fail, kind, queue, succeed, tag};

/// A job that is not there is none.
pub async fn unknown_job_is_none(h: &Harness) {
    assert_eq!(h.find(h.id()).await, None);
}

/// An empty store has one empty page.
pub async fn empty_store_lists_nothing(h: &Harness) {
    let page = Page { after: None, limit: 10 };
    let listing = h.store.list(Filter::default(), page).await.expect("list");
    assert_eq!((listing.jobs.len(), listing.next), (0, None));
}

/// The last stored is listed first, also within a batch, and looks as `get` shows it.
pub async fn newest_is_listed_first(h: &Harness) {
    let mut ids = h.put_many(3).await;
    h.advance(SECOND);
    ids.extend(h.put_many(2).await);
    ids.reverse();
    assert_eq!(h.ids(&Filter::default()).await, ids);
    for summary in h.list(&Filter::default(), 2).await {
        assert_eq!(summary, h.get(summary.id).await.summary);
    }
}

/// Pages of any size give every job once.
pub async fn pages_have_no_gap_and_no_duplicate(h: &Harness) {
    let mut ids = h.put_many(10).await;
    ids.reverse();
    for limit in [1, 2, 3, 9, 10, 11] {
        let listed: Vec<_> = h.list(&Filter::default(), limit).await.iter().map(|job| job.id).collect();
        assert_eq!(listed, ids, "pages of {limit}");
    }
}

/// Jobs that appear, move or go between two pages do not disturb the others.
pub async fn pages_are_steady_while_others_come_and_go(h: &Harness) {
    let ids = h.put_many(20).await;
    let node = h.node().await;
    let mut seen = Vec::new();
    let mut after = None;
    loop {
        let page = Page { after, limit: 3 };
        let listing = h.store.list(Filter::default(), page).await.expect("list");
        assert!(listing.jobs.len() <= 3);
        seen.extend(listing.jobs.iter().map(|job| job.id));
        h.put_many(2).await;
        let claim = h.claim_one(node).await;
        h.end(node, claim, succeed()).await;
        if let Some(newest) = listing.jobs.first() {
            h.apply(newest.id, Verb::Delete).await;
        }
        after = listing.next;
        if after.is_none() {
            break;
        }
    }
    let distinct: BTreeSet<_> = seen.iter().copied().collect();
    assert_eq!(distinct.len(), seen.len(), "no duplicate");
    assert!(ids.iter().all(|id| distinct.contains(id)), "no gap");
}

/// A page is never longer than the bound.
pub async fn page_is_capped(h: &Harness) {
    h.put_many(bounds::PAGE + 5).await;
    let page = Page { after: None, limit: usize::MAX };
    let listing = h.store.list(Filter::default(), page).await.expect("list");
    assert!(listing.jobs.len() <= bounds::PAGE);
    assert!(listing.next.is_some());
}

/// A cursor that is none is refused, and harms nothing.
pub async fn bad_cursor_is_refused(h: &Harness) {
    h.put_one().await;
    for text in ["", "x", "'; drop table jobs; --", "1 or 1=1", "99999999999999999999999999", "ä", "1\0"] {
        let page = Page { after: Some(PagePosition(text.into())), limit: 10 };
        let answer = h.store.list(Filter::default(), page).await;
        assert!(matches!(answer, Err(Error::Invalid { .. })), "{text:?}: {answer:?}");
    }
    assert_eq!(h.ids(&Filter::default()).await.len(), 1);
}

/// Each condition alone gives what it says.
pub async fn each_filter_gives_what_it_says(h: &Harness) {
    let start = h.now();
    let in_queue = h.put(h.job_with(|job| job.queue = queue("q2"))).await;
    h.advance(SECOND);
    let of_kind = h.put(h.job_with(|job| job.kind = kind("k2"))).await;
    let tagged = h.put(h.job_with(|job| job.options.tags = vec![tag("a"), tag("b")])).await;
    h.advance(SECOND);
    let scheduled = h.put(h.job_with(|job| job.run = Some(When::After(SECOND)))).await;
    let held = h.put_one().await;
    h.apply(held, Verb::Hold { why: String::new() }).await;
    let cancelled = h.put_one().await;
    h.apply(cancelled, cancel("")).await;

    let none = Filter::default;
    let cases = [
        (Filter { queue: Some(queue("q2")), ..none() }, vec![in_queue]),
        (Filter { queue: Some(queue("nobody")), ..none() }, vec![]),
        (Filter { kind: Some(kind("k2")), ..none() }, vec![of_kind]),
        (Filter { kind: Some(kind("nobody")), ..none() }, vec![]),
        (Filter { tag: Some(tag("b")), ..none() }, vec![tagged]),
        (Filter { tag: Some(tag("c")), ..none() }, vec![]),
        (Filter { states: vec![State::Scheduled], ..none() }, vec![scheduled]),
        (Filter { states: vec![State::Cancelled, State::Suspended], ..none() }, vec![cancelled, held]),
        (Filter { states: vec![State::Blocked, State::Skipped], ..none() }, vec![]),
        (Filter { reason: Some(Reason::Hold), ..none() }, vec![held]),
        (Filter { reason: Some(Reason::Operator), ..none() }, vec![cancelled]),
        (Filter { reason: Some(Reason::Replaced), ..none() }, vec![]),
        (Filter { created_before: Some(start.after(SECOND)), ..none() }, vec![in_queue]),
        (Filter { created_before: Some(start), ..none() }, vec![]),
        (Filter { created_from: Some(start.after(SECOND * 2)), ..none() }, vec![cancelled, held, scheduled]),
        (
            Filter {
                created_from: Some(start.after(SECOND)),
                created_before: Some(start.after(SECOND * 2)),
                ..none()
            },
            vec![tagged, of_kind],
        ),
        (none(), vec![cancelled, held, scheduled, tagged, of_kind, in_queue]),
    ];
    for (filter, expected) in cases {
        assert_eq!(h.ids(&filter).await, expected, "{filter:?}");
        let one_by_one: Vec<_> = h.list(&filter, 1).await.iter().map(|job| job.id).collect();
        assert_eq!(one_by_one, expected, "{filter:?}, one by one");
    }
}

/// All conditions together must hold.
pub async fn filters_combine(h: &Harness) {
    let mut expected = Vec::new();
    for index in 0..16_u8 {
        let has = |bit: u8| index & bit != 0;
        let job = h.job_with(|job| {
            job.queue = queue(if has(1) { "q2" } else { "q" });
            job.kind = kind(if has(2) { "k2" } else { "k" });
            job.options.tags = if has(4) { vec![tag("t")] } else { Vec::new() };
        });
        let id = h.put(job).await;
        if has(8) {
            h.apply(id, cancel("")).await;
        }
        if index == 15 {
            expected.push(id);
        }
    }
    let filter = Filter {
        queue: Some(queue("q2")),
        kind: Some(kind("k2")),
        states: vec![State::Cancelled],
        reason: Some(Reason::Operator),
        tag: Some(tag("t")),
        created_from: Some(h.now()),
        created_before: Some(h.now().after(SECOND)),
        ..Filter::default()
    };
    assert_eq!(h.ids(&filter).await, expected);
    let failed = Filter { states: vec![State::Failed], ..filter };
    assert!(h.ids(&failed).await.is_empty());
}

/// A text is looked for in the last error that is kept, whatever its case, in every state, together with all else.
pub async fn error_text_is_that_of_the_last_error(h: &Harness) {
    let node = h.node().await;
    let fault = |message: &str| Fault::new(FaultKind::Error, message);
    let told = |text: &str, states: &[State]| Filter {
        error: Some(ErrorText::new(text).expect("a text")),
        states: states.to_vec(),
        ..Filter::default()
    };
    let mut failed = Vec::new();
    for message in ["Connection Refused (os error 111)", "no 100% route_to 'host'", "ÄRGER \\ %_"] {
        let tagged = h.job_with(|job| job.options.tags = vec![tag("t")]);
        failed.push(h.put(tagged).await);
        let claim = h.claim_one(node).await;
        let reason = Reason::Exhausted;
        h.end(node, claim, Outcome::Fail { reason, fault: fault(message) }).await;
    }
    // Failed with one error and then another; only the last counts.
    let twice = h.put_one().await;
    for message in ["refused", "timed out"] {
        let claim = h.claim_one(node).await;
        h.end(node, claim, Outcome::Retry { after: SECOND, fault: fault(message) }).await;
        h.advance(SECOND);
        h.store.promote(10).await.expect("promote");
    }
    // Without any error.
    h.put_one().await;
    for text in ["refused", "REFUSED (OS"] {
        assert_eq!(h.ids(&told(text, &[])).await, [failed[0]], "{text}");
    }
    assert_eq!(h.ids(&told("timed OUT", &[])).await, [twice]);
    assert_eq!(h.ids(&told("timed out", &[State::Ready, State::Running])).await, [twice]);
    assert!(h.ids(&told("timed out", &[State::Failed])).await.is_empty());
    assert_eq!(h.ids(&told("o", &[State::Failed])).await, [failed[1], failed[0]]);
    // Nothing in a text has a meaning but its letters.
    assert_eq!(h.ids(&told("100% route_to 'host'", &[])).await, [failed[1]]);
    assert_eq!(h.ids(&told("\\ %_", &[])).await, [failed[2]]);
    assert_eq!(h.ids(&told("Ärger", &[])).await, [failed[2]]);
    for nothing in ["%", "ärger", "o%r"] {
        let found = h.ids(&told(nothing, &[])).await;
        assert!(found.iter().all(|id| nothing == "%" && failed[1..].contains(id)), "{nothing}: {found:?}");
    }
    let tagged = Filter { tag: Some(tag("t")), ..told("refused", &[]) };
    assert_eq!(h.ids(&tagged).await, [failed[0]]);
    for limit in [1, 2] {
        let listed: Vec<_> = h.list(&told("o", &[]), limit).await.iter().map(|job| job.id).collect();
        assert_eq!(listed, [twice, failed[1], failed[0]], "pages of {limit}");
    }
    // A job that is run again keeps its errors.
    h.apply(failed[0], Verb::Retry).await;
    assert_eq!(h.ids(&told("refused", &[State::Ready])).await, [failed[0]]);
}

/// The listing shows what is: states follow every move.
pub async fn listing_follows_every_move(h: &Harness) {
    let (node, claim) = h.running().await;
    let in_state = async |state| h.ids(&Filter { states: vec![state], ..Filter::default() }).await;
    assert_eq!(in_state(State::Running).await, [claim.id]);
    assert!(in_state(State::Ready).await.is_empty());
    h.end(node, claim, fail()).await;
    assert!(in_state(State::Running).await.is_empty());
    assert_eq!(in_state(State::Failed).await, [claim.id]);
    h.apply(claim.id, Verb::Retry).await;
    assert!(in_state(State::Failed).await.is_empty());
    assert_eq!(in_state(State::Ready).await, [claim.id]);
}

/// One job among more than one call looks at is found, over several pages.
pub async fn rare_job_is_found_behind_many_others(h: &Harness) {
    let rare = h.put(h.job_with(|job| job.options.tags = vec![tag("rare")])).await;
    h.put_many(bounds::SCAN + 10).await;
    let filter = Filter { tag: Some(tag("rare")), ..Filter::default() };
    assert_eq!(h.ids(&filter).await, [rare]);
}
