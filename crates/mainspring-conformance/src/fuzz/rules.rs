//! Rules of schedules: cron expressions, periods, exceptions and zones.

use mainspring_core::schedule::{Cron, Except, Rule, Times, Zone};
use mainspring_core::time::Timestamp;

/// Fires of one rule that are walked through.
const FIRES: usize = 12;

/// When the walk begins: a while before clocks change in much of the world.
const START: Timestamp = Timestamp::from_micros(1_774_000_000_000_000);

/// Lines of text: times, a zone, and exceptions.
pub(super) fn rules(bytes: &[u8]) {
    let Ok(text) = std::str::from_utf8(bytes) else { return };
    let mut lines = text.split('\n');
    let (times, zone) = (lines.next().unwrap_or(""), lines.next().unwrap_or("UTC"));
    if let Err(fault) = Cron::parse(times) {
        let told = fault.to_string();
        let column =
            told.strip_prefix("column ").and_then(|rest| rest.split(':').next()?.parse::<usize>().ok());
        assert!(column.is_none_or(|column| column <= times.chars().count() + 1), "{times:?}: {told}");
    }
    let (Ok(times), Ok(zone)) = (times.parse::<Times>(), Zone::new(zone)) else { return };
    assert_eq!(times.to_string().parse::<Times>().ok().as_ref(), Some(&times));
    assert_eq!(Zone::new(zone.name()).ok().as_ref(), Some(&zone));
    assert!(!times.describe().is_empty());
    let mut rule = Rule::new(times);
    rule.zone = zone;
    for line in lines.take(2) {
        let Ok(except) = line.parse::<Except>() else { continue };
        assert_eq!(except.to_string().parse::<Except>().ok().as_ref(), Some(&except));
        rule.except.push(except);
    }
    let json = serde_json::to_string(&rule).expect("a rule is JSON");
    assert_eq!(serde_json::from_str::<Rule>(&json).ok().as_ref(), Some(&rule), "{json}");
    let fits = rule.check(START).is_ok();
    let (mut fires, mut after) = (Vec::new(), START);
    while fires.len() < FIRES
        && let Some(fire) = rule.after(after)
    {
        assert!(fire > after, "{fire} is not after {after}");
        fires.push(fire);
        after = fire;
    }
    assert_eq!(fits, !fires.is_empty(), "what can be stored fires");
    // Backwards they are the same ones, and between two there is none.
    if let Some(last) = fires.last() {
        assert_eq!(rule.last_many(START, *last, FIRES), fires);
        let between = Timestamp::from_micros(last.as_micros() - 1);
        let before = fires.len().checked_sub(2).map(|before| fires[before]);
        assert_eq!(rule.last(START, between), before);
    }
}
