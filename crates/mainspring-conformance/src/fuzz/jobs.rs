//! What is enqueued and what a store reads back: whatever is accepted comes back as it was.

use std::collections::BTreeMap;

use mainspring_core::id::JobId;
use mainspring_core::job::{
    FaultKind, New, OnConflict, Options, PayloadBounds, Priority, Reason, State, Unique, Until, When,
};
use mainspring_core::limit::LimitUse;
use mainspring_core::name::{Kind, Label, LimitName, QueueName, Tag};
use mainspring_core::store::{Level, NodeState};
use mainspring_core::time::{Span, Timestamp};
use mainspring_core::{Error, bounds};
use serde_json::{from_slice, from_str, to_string};

use super::byte_source::ByteSource;
use super::times::{backoff, whole};

/// Two texts with a line break between them, as unique keys.
pub(super) fn keys(bytes: &[u8]) {
    let text = String::from_utf8_lossy(bytes);
    let (one, other) = text.split_once('\n').unwrap_or((&text, ""));
    let is_key = |key: &str| (1..=bounds::KEY_BYTES).contains(&key.len()) && !key.contains('\0');
    let [first, second] = [one, other].map(|key| Unique::new(key).reject());
    assert_eq!(accepted(&first).is_ok(), is_key(one), "{one:?}");
    assert_eq!(accepted(&second).is_ok(), is_key(other), "{other:?}");
    // Stores keep the key itself in a unique index, and the rest as JSON.
    let [stored, beside] = [&first, &second].map(|unique| to_string(unique).expect("a key is plain text"));
    assert_eq!(from_str::<Unique>(&stored).ok().as_ref(), Some(&first));
    assert_eq!(stored == beside, one == other, "equal keys, and only those, are stored alike");
    if let Ok(unique) = from_slice::<Unique>(bytes) {
        let text = to_string(&unique).expect("a key is plain text");
        assert_eq!(from_str::<Unique>(&text).ok(), Some(unique));
    }
}

fn accepted(unique: &Unique) -> Result<(), Error> {
    let options = Options { unique: Some(unique.clone()), ..Options::default() };
    job(options).check(&PayloadBounds::default(), Timestamp::EPOCH)
}

fn job(options: Options) -> New {
    New {
        id: JobId::from_bytes([1; 16]),
        kind: Kind::new("k").expect("a kind"),
        queue: QueueName::new("q").expect("a queue"),
        priority: Priority::default(),
        input: Vec::new(),
        run: None,
        deadline: None,
        options,
        journal: Vec::new(),
    }
}

/// Bytes as the stored options of a job: an error, or options that are stored in one way.
pub(super) fn options(bytes: &[u8]) {
    match from_slice::<Options>(bytes) {
        Ok(options) => assert_eq!(stored(&options), options),
        Err(error) => assert!(error.line() <= bytes.len() + 1),
    }
}

/// Options after they were stored and read.
fn stored(options: &Options) -> Options {
    let text = to_string(options).expect("options are plain text");
    from_str(&text).unwrap_or_else(|error| panic!("stored and not read: {text}: {error}"))
}

/// A job made by code: what passes its check can be stored, read and run.
pub(super) fn jobs(bytes: &[u8]) {
    let mut draw = ByteSource::new(bytes);
    let new = New {
        input: vec![b' '; usize::from(draw.any::<u16>()) * 32],
        run: draw.perhaps(when),
        deadline: draw.perhaps(when),
        ..job(drawn(&mut draw))
    };
    let (now, bounds) = (Timestamp::from_micros(draw.any()), PayloadBounds::default());
    if let Err(error) = new.check(&bounds, now) {
        assert!(matches!(error, Error::Invalid { .. } | Error::TooLarge { .. }), "{error:?}");
        return;
    }
    assert!(new.input.len() <= bounds.input);
    for at in [new.run, new.deadline].into_iter().flatten() {
        assert!(at.resolve(now) <= now.after(bounds::DELAY));
    }
    let read = stored(&new.options);
    assert_eq!(read, whole_options(&new.options), "what is accepted comes back");
    let again = New { options: read, ..new };
    assert!(again.check(&bounds, now).is_ok(), "and is accepted again");
}

/// What is kept of options: durations are whole microseconds.
fn whole_options(options: &Options) -> Options {
    let mut kept = options.clone();
    kept.timeout = kept.timeout.map(whole);
    kept.backoff = kept.backoff.map(|backoff| backoff.to_string().parse().expect("a backoff"));
    if let Some(Unique { until: Until::After(period), .. }) = &mut kept.unique {
        *period = whole(Span(*period)).0;
    }
    kept
}

fn when(draw: &mut ByteSource<'_>) -> When {
    if draw.any::<bool>() {
        When::After(draw.duration())
    } else {
        When::At(Timestamp::from_micros(draw.any()))
    }
}

fn drawn(draw: &mut ByteSource<'_>) -> Options {
    let mut options = Options {
        limits: Vec::new(),
        max_attempts: draw.any(),
        backoff: draw.perhaps(backoff),
        timeout: draw.perhaps(|draw| Span(draw.duration())),
        unique: draw.perhaps(|draw| Unique {
            key: draw.text(),
            until: match draw.any::<u8>() % 3 {
                0 => Until::Started,
                1 => Until::Finished,
                _ => Until::after(draw.duration()),
            },
            on_conflict: draw.one(&[OnConflict::Keep, OnConflict::Replace, OnConflict::Reject]),
        }),
        tags: draw.many(20, |draw| Tag::new(draw.any::<&str>())).into_iter().flatten().collect(),
        labels: draw.many(20, |draw| Label::new(draw.any::<&str>())).into_iter().flatten().collect(),
        headers: BTreeMap::new(),
        parent: None,
        forked: None,
    };
    if draw.any::<bool>() {
        options.labels.sort();
        options.labels.dedup();
    }
    options.headers.extend(draw.many(20, |draw| (draw.any::<String>(), draw.text())));
    let limit = |draw: &mut ByteSource<'_>| {
        let limit = LimitName::new(draw.any::<&str>()).ok()?;
        Some(LimitUse { limit, key: draw.any(), units: draw.any() })
    };
    options.limits = draw.many(10, limit).into_iter().flatten().collect();
    if draw.any::<bool>() {
        options.limits.sort();
        options.limits.dedup_by(|a, b| a.is_same_key(b));
    }
    options
}

/// Numbers as codes of states, reasons, faults, levels and nodes; texts as their words.
pub(super) fn codes(bytes: &[u8]) {
    let code = bytes.first().copied().unwrap_or_default();
    assert!(State::from_code(code).is_none_or(|state| state.code() == code));
    assert!(Reason::from_code(code).is_none_or(|reason| reason.code() == code));
    assert!(FaultKind::from_code(code).is_none_or(|kind| kind.code() == code));
    assert!(NodeState::from_code(code).is_none_or(|state| state.code() == code));
    assert_eq!(Priority::new(code).is_ok(), code <= bounds::PRIORITY_MAX);
    if let Some(level) = Level::from_code(code) {
        assert_eq!((level.code(), Level::new(level.class(), level.priority())), (code, level));
        assert!(code < Level::COUNT);
    }
    let Ok(text) = std::str::from_utf8(bytes) else { return };
    if let Ok(state) = text.parse::<State>() {
        assert_eq!(state.as_str(), text);
    }
    if let Ok(reason) = text.parse::<Reason>() {
        assert_eq!(reason.as_str(), text);
    }
}
