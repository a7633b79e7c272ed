//! Settings of limits: what code and people say, who wins, and what is remembered.

use mainspring_core::audit::Subject;
use mainspring_core::job::When;
use mainspring_core::journal::{Child, OnClose};
use mainspring_core::limit::{Change, Definition, KeyChange, Limit, LimitSeed, Rate, Seed};
use mainspring_core::{Error, bounds};

use super::limit_calls::{limit, take, take_key};
use super::workflow_calls::starting;
use crate::harness::{Harness, SECOND};

fn seed(name: &str, revision: u32, max: u32) -> LimitSeed {
    let definition = Definition { max: Some(max), rate: None };
    LimitSeed { name: limit(name), seed: Seed { revision, definition, by: "1.0".into() } }
}

async fn find(h: &Harness, name: &str) -> Option<Limit> {
    let limits = h.store.limits().await.expect("limits");
    limits.into_iter().find(|it| it.name == limit(name))
}

async fn verbs(h: &Harness, name: &str) -> Vec<(String, String)> {
    let entries = h.store.audit(Some(Subject::Limit(limit(name))), 1_000).await.expect("audit");
    entries.into_iter().map(|entry| (entry.verb, entry.who)).collect()
}

fn told(entries: &[(&str, &str)]) -> Vec<(String, String)> {
    entries.iter().map(|(verb, who)| ((*verb).to_owned(), (*who).to_owned())).collect()
}

/// A limit that somebody sets is there as it was set, and the limits are listed in order of their names.
pub async fn limit_is_kept_as_it_was_set(h: &Harness) {
    assert_eq!(h.store.limits().await.expect("limits"), []);
    let rate = Rate::new(100, SECOND * 60).burst(7);
    let set =
        h.change_limit("m", Change { max: Some(Some(3)), rate: Some(Some(rate)), paused: Some(true) }).await;
    assert_eq!(set.definition, Definition { max: Some(3), rate: Some(rate) });
    assert_eq!((set.paused, set.edited_by.as_deref(), set.seed.as_ref()), (true, Some("ann"), None));
    h.max("l", bounds::LIMIT_MAX).await;
    h.max("n", 0).await;
    let limits = h.store.limits().await.expect("limits");
    assert_eq!(limits.iter().map(|it| it.name.as_str()).collect::<Vec<_>>(), ["l", "m", "n"]);
    assert_eq!(limits[1], set);
    let changed = h.change_limit("m", Change { rate: Some(None), ..Change::default() }).await;
    assert_eq!(changed.definition, Definition { max: Some(3), rate: None });
    assert_eq!(find(h, "m").await, Some(changed));
}

/// Code creates what is not there; a higher revision replaces a lower one, and of one revision the first holds.
pub async fn seeds_follow_their_revision(h: &Harness) {
    let plant = async |seeds: Vec<LimitSeed>| h.store.seed_limits(seeds).await.expect("seed_limits");
    let planted = plant(vec![seed("b", 1, 3), seed("a", 1, 5)]).await;
    assert_eq!(planted.iter().map(|it| it.name.as_str()).collect::<Vec<_>>(), ["b", "a"]);
    assert_eq!(planted[0].definition.max, Some(3));
    for (revision, max, holds) in [(1, 9, 3), (0, 9, 3), (2, 4, 4), (2, 8, 4)] {
        let limits = plant(vec![seed("b", revision, max)]).await;
        assert_eq!(limits[0].definition.max, Some(holds), "revision {revision}");
        assert_eq!(find(h, "b").await.as_ref(), Some(&limits[0]));
    }
    assert_eq!(verbs(h, "b").await, told(&[("seed", "code 1.0"), ("create", "code 1.0")]));
}

/// A person's edit wins over code for ever; taken back, what code said last holds.
pub async fn seed_never_undoes_a_persons_edit(h: &Harness) {
    let plant = async |revision, max| {
        let seeds = vec![seed("l", revision, max)];
        h.store.seed_limits(seeds).await.expect("seed_limits").remove(0)
    };
    plant(1, 3).await;
    h.max("l", 7).await;
    let limit_now = plant(2, 4).await;
    assert_eq!((limit_now.definition.max, limit_now.edited_by.as_deref()), (Some(7), Some("ann")));
    let reset = h.store.reset_limit(limit("l"), "bob".into()).await.expect("reset");
    assert_eq!((reset.definition.max, reset.edited_by.as_deref()), (Some(4), None));
    assert_eq!(plant(3, 5).await.definition.max, Some(5));
    let entries = [
        ("seed", "code 1.0"),
        ("reset", "bob"),
        ("seed", "code 1.0"),
        ("set", "ann"),
        ("create", "code 1.0"),
    ];
    assert_eq!(verbs(h, "l").await, told(&entries));
    h.max("m", 1).await;
    let refused = h.store.reset_limit(limit("m"), "bob".into()).await;
    assert!(matches!(refused, Err(Error::Invalid { what: "limit", .. })), "{refused:?}");
    let unknown = h.store.reset_limit(limit("x"), "bob".into()).await;
    assert!(matches!(unknown, Err(Error::UnknownLimit { .. })), "{unknown:?}");
}

/// A pause is no edit: what code says still holds.
pub async fn pause_of_a_limit_is_no_edit(h: &Harness) {
    let plant = async |revision, max| {
        let seeds = vec![seed("l", revision, max)];
        h.store.seed_limits(seeds).await.expect("seed_limits").remove(0)
    };
    plant(1, 3).await;
    let pause = |paused| Change { paused: Some(paused), ..Change::default() };
    assert!(h.change_limit("l", pause(true)).await.paused);
    let seeded = plant(2, 4).await;
    assert_eq!((seeded.definition.max, seeded.paused, seeded.edited_by), (Some(4), true, None));
    assert!(!h.change_limit("l", pause(false)).await.paused);
    let words: Vec<_> = verbs(h, "l").await.into_iter().map(|(verb, _)| verb).collect();
    assert_eq!(words, ["resume", "seed", "pause", "create"]);
}

/// Changes are remembered with what it was and what it is; those that change nothing are not.
pub async fn changes_of_limits_are_remembered(h: &Harness) {
    h.max("l", 3).await;
    h.max("l", 3).await;
    h.advance(SECOND);
    h.max("l", 4).await;
    h.change_key("l", "a", KeyChange { max: Some(Some(9)), ..KeyChange::default() }).await;
    h.change_key("l", "a", KeyChange { max: Some(Some(9)), ..KeyChange::default() }).await;
    h.change_key("l", "a", KeyChange { paused: Some(true), ..KeyChange::default() }).await;
    assert!(h.store.delete_limit(limit("l"), "bob".into()).await.expect("delete"));
    assert!(!h.store.delete_limit(limit("l"), "bob".into()).await.expect("delete"));
    let entries = h.store.audit(Some(Subject::Limit(limit("l"))), 1_000).await.expect("audit");
    let words: Vec<_> = entries.iter().map(|entry| entry.verb.as_str()).collect();
    assert_eq!(words, ["delete", "pause", "set", "set", "create"]);
    let max = |value: &Option<serde_json::Value>| value.as_ref().and_then(|value| value["max"].as_u64());
    assert_eq!((max(&entries[3].old), max(&entries[3].new)), (Some(3), Some(4)));
    assert_eq!(
        (max(&entries[2].new), entries[2].new.as_ref().map(|it| it["key"].clone())),
        (Some(9), Some("a".into()))
    );
    assert_eq!((entries[3].at, entries[0].new.as_ref()), (h.now(), None));
    assert_eq!(h.store.audit(None, 2).await.expect("audit"), entries[..2]);
}

/// There are so many limits and no more; whatever would exceed that is refused whole.
pub async fn limits_are_bounded(h: &Harness) {
    let seeds: Vec<_> = (0..bounds::LIMITS).map(|n| seed(&format!("l{n:04}"), 1, 1)).collect();
    assert_eq!(h.store.seed_limits(seeds).await.expect("seed_limits").len(), bounds::LIMITS);
    let change = Change { max: Some(Some(1)), ..Change::default() };
    let refused = h.store.set_limit(limit("more"), change, "ann".into()).await;
    assert!(matches!(refused, Err(Error::TooLarge { limit: bounds::LIMITS, .. })), "{refused:?}");
    let refused = h.store.seed_limits(vec![seed("l0000", 2, 9), seed("more", 1, 1)]).await;
    assert!(matches!(refused, Err(Error::TooLarge { .. })), "{refused:?}");
    assert_eq!(find(h, "l0000").await.and_then(|it| it.definition.max), Some(1), "nothing is changed");
    h.max("l0007", 3).await;
    assert!(h.store.delete_limit(limit("l0008"), "ann".into()).await.expect("delete"));
    h.max("more", 1).await;
}

/// A definition or a key beyond its bound is refused, and nothing is kept.
pub async fn bad_settings_of_limits_are_refused(h: &Harness) {
    h.max("l", 1).await;
    let zero = Rate { count: 0, ..Rate::new(1, SECOND) };
    for change in [
        Change { max: Some(Some(bounds::LIMIT_MAX + 1)), ..Change::default() },
        Change { rate: Some(Some(zero)), ..Change::default() },
        Change { rate: Some(Some(Rate::new(1, bounds::DELAY))), ..Change::default() },
    ] {
        let refused = h.store.set_limit(limit("l"), change, "ann".into()).await;
        assert!(matches!(refused, Err(Error::TooLarge { .. } | Error::Invalid { .. })), "{refused:?}");
    }
    let long = "k".repeat(bounds::LIMIT_KEY_BYTES + 1);
    for (key, max) in [(long.as_str(), 1), ("a\nb", 1), ("a", bounds::LIMIT_MAX + 1)] {
        let change = KeyChange { max: Some(Some(max)), ..KeyChange::default() };
        let refused = h.store.set_limit_key(limit("l"), key.into(), change, "ann".into()).await;
        assert!(matches!(refused, Err(Error::TooLarge { .. } | Error::Invalid { .. })), "{refused:?}");
    }
    let unknown = h.store.set_limit_key(limit("x"), "a".into(), KeyChange::default(), "ann".into()).await;
    assert!(matches!(unknown, Err(Error::UnknownLimit { .. })), "{unknown:?}");
    assert_eq!(find(h, "l").await.map(|it| it.definition), Some(Definition { max: Some(1), rate: None }));
    assert_eq!(h.store.limit_keys(limit("l"), None, 10).await.expect("keys"), []);
}

/// A job that names a limit that nobody has defined is refused with its batch, whoever enqueues it; the error names the
/// limit that was meant.
pub async fn job_with_an_unknown_limit_is_refused(h: &Harness) {
    h.max("tenant", 1).await;
    let jobs = vec![h.job(), h.limited(&[take_key("tennant", "a")])];
    let refused = h.store.enqueue(jobs).await;
    let meant = limit("tenant");
    assert!(
        matches!(&refused, Err(Error::UnknownLimit { limit: it, similar: Some(similar) }) if *it == limit("tennant") && *similar == meant),
        "{refused:?}"
    );
    assert_eq!(h.counts().await, mainspring_core::store::Counts::default(), "nothing is stored");
    let (node, claim) = h.running().await;
    let child = Child { job: h.limited(&[take("x")]), on_close: OnClose::Cancel };
    let refused = h.store.record(node, vec![starting(claim, vec![child])]).await;
    assert!(matches!(refused, Err(Error::UnknownLimit { .. })), "{refused:?}");
    let known = Child { job: h.limited(&[take_key("tenant", "a")]), on_close: OnClose::Cancel };
    h.start(node, claim, known).await;
}

/// Jobs with as many limits, units and bytes of keys as there may be come back as they were.
pub async fn limits_of_jobs_survive(h: &Harness) {
    let key = "ä'; --".repeat(bounds::LIMIT_KEY_BYTES / 7);
    let mut uses = Vec::new();
    for n in 0..bounds::JOB_LIMITS {
        h.max(&format!("l{n}"), 2).await;
        uses.push(take_key(&format!("l{n}"), &key).units(2));
    }
    let mut job = h.limited(&uses);
    job.check(&mainspring_core::job::PayloadBounds::default(), h.now()).expect("it is within bounds");
    job.run = Some(When::After(SECOND));
    let id = h.put(job).await;
    assert_eq!(h.get(id).await.summary.options.limits, uses);
    h.advance(SECOND);
    h.promote().await;
    let node = h.node().await;
    let claimed = h.claim(node, 1).await;
    assert_eq!(claimed[0].options.limits, uses);
    assert_eq!(h.in_use("l7", &key).await, 2);
}

/// A limit that was deleted holds back nobody; new jobs cannot name it. Defined again, it counts what still runs.
pub async fn deleted_limit_holds_back_nobody(h: &Harness) {
    h.max("l", 1).await;
    h.put_all_limited(3, &[take("l")]).await;
    let node = h.node().await;
    assert_eq!(h.claim_all(node).await.len(), 1);
    assert!(h.store.delete_limit(limit("l"), "ann".into()).await.expect("delete"));
    assert_eq!(h.store.limits().await.expect("limits"), []);
    assert_eq!(h.claim_all(node).await.len(), 2);
    let refused = h.store.enqueue(vec![h.limited(&[take("l")])]).await;
    assert!(matches!(refused, Err(Error::UnknownLimit { .. })), "{refused:?}");
    let refused = h.store.limit_key(limit("l"), String::new()).await;
    assert!(matches!(refused, Err(Error::UnknownLimit { .. })), "{refused:?}");
    h.max("l", 4).await;
    assert_eq!(h.in_use("l", "").await, 3);
    h.put_all_limited(2, &[take("l")]).await;
    assert_eq!(h.claim_all(node).await.len(), 1);
}

/// Keys with something to tell are listed in order, in pages.
pub async fn limit_keys_are_listed_in_pages(h: &Harness) {
    h.max("l", 2).await;
    h.max("m", 2).await;
    h.put_limited(&[take_key("m", "c")]).await;
    for key in ["b", "", "ä", "a"] {
        h.put_limited(&[take_key("l", key)]).await;
    }
    let node = h.node().await;
    assert_eq!(h.claim_all(node).await.len(), 5);
    h.change_key("l", "c", KeyChange { max: Some(Some(9)), paused: Some(true) }).await;
    let page = async |after: Option<&str>, size| {
        h.store.limit_keys(limit("l"), after.map(str::to_owned), size).await.expect("keys")
    };
    let all = page(None, 10).await;
    let shown: Vec<_> = all.iter().map(|key| (key.key.as_str(), key.in_use)).collect();
    assert_eq!(shown, [("", 1), ("a", 1), ("b", 1), ("c", 0), ("ä", 1)]);
    assert_eq!((all[3].max, all[3].paused, all[0].max), (Some(9), true, None));
    assert_eq!(page(None, 2).await, all[..2]);
    assert_eq!(page(Some("a"), 2).await, all[2..4]);
    assert_eq!(page(Some("ä"), 2).await, []);
}
