//! Tests of the pure rules of limits.

use std::time::Duration;

use proptest::prelude::*;

use super::*;
use crate::time::{Span, Timestamp};

const SECOND: Duration = Duration::from_secs(1);

fn name(text: &str) -> LimitName {
    LimitName::new(text).expect("a name")
}

fn limit(max: Option<u32>, rate: Option<Rate>) -> Limit {
    Change { max: Some(max), rate: Some(rate), paused: None }.apply(&name("l"), None, "ann")
}

fn at(micros: i64) -> Timestamp {
    Timestamp::from_micros(micros)
}

fn uses(count: usize, units: u16) -> Vec<LimitUse> {
    (0..count).map(|n| LimitUse::new(name("l")).key(format!("{n:02}")).units(units)).collect()
}

#[test]
fn limits_of_a_job_are_bounded_at_n_and_n_plus_one() {
    assert!(check_uses(&uses(bounds::JOB_LIMITS, 2)).is_ok());
    let nine = check_uses(&uses(bounds::JOB_LIMITS + 1, 1));
    assert!(matches!(nine, Err(Error::TooLarge { what: "limits", size: 9, limit: 8 })), "{nine:?}");
    assert!(check_uses(&uses(1, bounds::UNITS)).is_ok());
    assert!(matches!(check_uses(&uses(1, bounds::UNITS + 1)), Err(Error::TooLarge { what: "units", .. })));
    assert!(matches!(check_uses(&uses(6, 3)), Err(Error::TooLarge { what: "units", size: 18, .. })));
    assert!(matches!(check_uses(&uses(1, 0)), Err(Error::Invalid { what: "units", .. })));
    assert!(check_key(&"k".repeat(bounds::LIMIT_KEY_BYTES)).is_ok());
    assert!(matches!(check_key(&"k".repeat(bounds::LIMIT_KEY_BYTES + 1)), Err(Error::TooLarge { .. })));
    assert!(check_key("a\u{0}").is_err());
    assert!(check_uses(&[uses(1, 1), uses(1, 2)].concat()).is_err(), "one key twice");
    assert!(check_uses(&uses(2, 1).into_iter().rev().collect::<Vec<_>>()).is_err(), "not in order");
}

#[test]
fn definitions_are_bounded_at_n_and_n_plus_one() {
    let max = |max| Definition { max: Some(max), rate: None }.check();
    assert!(max(0).is_ok() && max(bounds::LIMIT_MAX).is_ok() && max(bounds::LIMIT_MAX + 1).is_err());
    let rate = |count, per, burst| Rate { count, per: Span(per), burst }.check();
    assert!(rate(1, SECOND, 1).is_ok() && rate(bounds::LIMIT_MAX, SECOND, bounds::LIMIT_MAX).is_ok());
    assert!(rate(0, SECOND, 1).is_err() && rate(1, SECOND, 0).is_err());
    assert!(
        rate(bounds::LIMIT_MAX + 1, SECOND, 1).is_err() && rate(1, SECOND, bounds::LIMIT_MAX + 1).is_err()
    );
    assert!(rate(1, Duration::from_nanos(999), 1).is_err() && rate(1, bounds::DELAY, 1).is_err());
    assert!(rate(1, bounds::DELAY / 2, 1).is_ok());
}

#[test]
fn rates_are_read_as_they_are_written() {
    for (text, rate) in [
        ("100/1m", Rate::new(100, SECOND * 60)),
        ("5/1s", Rate::new(5, SECOND)),
        ("3/250ms burst 10", Rate::new(3, Duration::from_millis(250)).burst(10)),
    ] {
        assert_eq!((rate.to_string().as_str(), text.parse::<Rate>().ok()), (text, Some(rate)));
    }
    assert_eq!("5/s".parse::<Rate>().ok(), Some(Rate::new(5, SECOND)));
    for bad in ["", "5", "5/", "/s", "0/s", "5/0s", "5/s burst 0", "5/s burst", "-1/s", "5/s/s"] {
        assert!(bad.parse::<Rate>().is_err(), "{bad}");
    }
}

#[test]
fn bucket_that_has_rested_admits_its_burst_and_then_one_per_interval() {
    let rate = Rate::new(10, SECOND).burst(3);
    let (now, mut next_free) = (at(5_000_000), None);
    for left in [3, 2, 1] {
        assert_eq!((rate.tokens(next_free, now), rate.due(next_free, 1, now)), (left, now));
        next_free = Some(rate.take(next_free, 1, now));
    }
    assert_eq!((rate.tokens(next_free, now), rate.room(next_free, 1, now)), (0, 0));
    let due = rate.due(next_free, 1, now);
    assert_eq!(due, at(5_100_000));
    assert_eq!(rate.room(next_free, 1, at(5_099_999)), 0);
    assert_eq!(rate.room(next_free, 1, due), 1);
}

#[test]
fn job_that_takes_more_than_the_bucket_holds_is_paid_for_later() {
    let rate = Rate::new(1, SECOND).burst(2);
    assert_eq!(rate.room(None, 4, at(0)), 1);
    let next_free = Some(rate.take(None, 4, at(0)));
    assert_eq!(rate.due(next_free, 1, at(0)), at(3_000_000));
    assert_eq!(rate.due(next_free, 4, at(0)), at(4_000_000));
}

#[test]
fn clock_that_went_back_delays_by_the_burst_at_most() {
    let rate = Rate::new(1, SECOND).burst(2);
    let next_free = Some(rate.take(None, 1, at(i64::MAX / 2)));
    assert_eq!(rate.due(next_free, 1, at(0)), at(17_000_000));
}

#[test]
fn key_admits_up_to_its_own_maximum_or_the_limits() {
    let limit = limit(Some(5), None);
    let key = KeyState { in_use: 2, ..KeyState::default() };
    let asked = |key: &KeyState, units| room(Some(&limit), key, units, at(0));
    assert_eq!((asked(&key, 1), asked(&key, 2), asked(&key, 3), asked(&key, 4)), (3, 1, 1, 0));
    let own = KeyState { max: Some(9), ..key };
    assert_eq!((asked(&own, 1), asked(&KeyState { max: Some(0), ..key }, 1)), (7, 0));
    assert_eq!(asked(&KeyState { in_use: 9, ..key }, 1), 0, "lowered below what is in use");
    assert_eq!(closed(Some(&limit), &key, 4, at(0)), Some(Closed::Full { max: 5 }));
    assert_eq!(asked(&KeyState { paused: true, ..key }, 1), 0);
    let paused = Limit { paused: true, ..limit.clone() };
    assert_eq!(closed(Some(&paused), &key, 1, at(0)), Some(Closed::Paused));
    assert_eq!((room(None, &own, 16, at(0)), closed(None, &own, 16, at(0))), (u32::MAX, None));
}

#[test]
fn seeds_create_and_raise_but_never_undo_a_person() {
    let seed = |revision, max| LimitSeed {
        name: name("l"),
        seed: Seed { revision, definition: Definition { max: Some(max), rate: None }, by: "1.0".into() },
    };
    let created = seed(1, 3).apply(None).expect("it is created");
    assert_eq!((created.definition.max, created.edited_by.as_deref()), (Some(3), None));
    assert_eq!(seed(1, 9).apply(Some(&created)), None, "of one revision, the first holds");
    assert_eq!(seed(0, 9).apply(Some(&created)), None, "and an older version undoes nothing");
    let raised = seed(2, 4).apply(Some(&created)).expect("a higher revision holds");
    assert_eq!(raised.definition.max, Some(4));
    let edited = Change { max: Some(Some(7)), ..Change::default() }.apply(&name("l"), Some(&raised), "ann");
    let later = seed(3, 5).apply(Some(&edited)).expect("what code says is remembered");
    assert_eq!((later.definition.max, later.edited_by.as_deref()), (Some(7), Some("ann")));
    let reset = later.reset().expect("code has named it");
    assert_eq!((reset.definition.max, reset.edited_by), (Some(5), None));
    let pause = Change { paused: Some(true), ..Change::default() };
    let paused = pause.apply(&name("l"), Some(&raised), "ann");
    assert_eq!((paused.paused, paused.edited_by), (true, None));
    assert!(limit(Some(1), None).reset().is_err());
}

#[test]
fn unknown_limit_is_told_with_the_name_that_was_meant() {
    let known = [name("gpu"), name("tenant")];
    let told = |text: &str| match unknown(&name(text), known.iter()) {
        Error::UnknownLimit { similar, .. } => similar,
        other => panic!("{other}"),
    };
    assert_eq!((told("gpus"), told("tennant")), (Some(name("gpu")), Some(name("tenant"))));
    assert_eq!(told("mail"), None);
}

#[test]
fn obstacles_are_told_in_words() {
    let limit = Obstacle::Limit {
        limit: name("gpu"),
        key: "a".into(),
        units: 2,
        in_use: 3,
        max: 4,
        holders: vec![crate::id::JobId::from_bytes([7; 16])],
    };
    let text = limit.to_string();
    assert!(
        text.starts_with("limit `gpu` of `a` is full: 3 of 4 in use, and it takes 2; held by "),
        "{text}"
    );
    assert!(limit.hint().is_some_and(|hint| hint.contains("limit show gpu 'a'")));
    let total = Obstacle::Total {
        total: Total::Kind(crate::name::Kind::new("k").expect("a kind")),
        in_use: 2,
        max: 2,
    };
    assert_eq!(total.to_string(), "2 of at most 2 jobs of kind `k` run");
}

fn rates() -> impl Strategy<Value = Rate> {
    (1_u32..50, 1_u64..3_000_000, 1_u32..8)
        .prop_map(|(count, per, burst)| Rate::new(count, Duration::from_micros(per)).burst(burst))
}

proptest! {
    /// Whatever is asked when, no window of time has more starts than the rate allows, and who waits until `due` is let
    /// in.
    #[test]
    fn starts_in_any_window_are_within_rate_and_burst(
        rate in rates(),
        asks in proptest::collection::vec((0_i64..2_000_000, 1_u16..=3), 1..60),
    ) {
        let (mut now, mut next_free) = (1_000_000_i64, None);
        let mut starts: Vec<(i64, i64)> = Vec::new();
        for (wait, units) in asks {
            now += wait;
            let (room, due) = (rate.room(next_free, units, at(now)), rate.due(next_free, units, at(now)));
            prop_assert_eq!(room > 0, due == at(now));
            if room == 0 {
                prop_assert_eq!(rate.room(next_free, units, at(due.as_micros() - 1)), 0);
                prop_assert!(rate.room(next_free, units, due) > 0);
                now = due.as_micros();
            }
            let state = next_free;
            next_free = Some(rate.take(next_free, u32::from(units), at(now)));
            prop_assert!(state.is_none_or(|state| Some(state) <= next_free));
            starts.push((now, i64::from(units)));
        }
        for (from, (start, _)) in starts.iter().enumerate() {
            let mut units = 0;
            for (end, more) in &starts[from..] {
                units += more;
                // The last job of a window may take more than the bucket holds.
                let allowed = (end - start) / rate.interval() + i64::from(rate.burst) + more - 1;
                prop_assert!(units <= allowed.max(*more), "{units} units from {start} to {end}");
            }
        }
    }

    /// So many jobs fit as `room` says, whether they are taken at once or one by one.
    #[test]
    fn room_is_what_fits_one_by_one(
        rate in proptest::option::of(rates()),
        max in proptest::option::of(0_u32..20),
        in_use in 0_u32..20,
        spent in 0_u32..20,
        units in 1_u16..=4,
    ) {
        let now = at(1_000_000);
        let limit = limit(max, rate);
        let start = KeyState { in_use, next_free: rate.map(|rate| rate.take(None, spent, now)), ..KeyState::default() };
        let said = room(Some(&limit), &start, units, now).min(100);
        let (mut key, mut fitted) = (start, 0);
        while fitted < 100 && room(Some(&limit), &key, units, now) > 0 {
            key = key.take(Some(&limit), u32::from(units), now);
            fitted += 1;
        }
        prop_assert_eq!(said, fitted);
        prop_assert_eq!(said == 0, closed(Some(&limit), &start, units, now).is_some());
        if fitted == 0 {
            return Ok(());
        }
        let at_once = start.take(Some(&limit), u32::from(units) * fitted, now);
        prop_assert_eq!(at_once, key);
        prop_assert_eq!(at_once.give_back(u32::from(units) * fitted).in_use, in_use);
    }
}
