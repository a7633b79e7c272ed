//! What rules say, what is refused and where, and which fires are due.

mod oracle;

use std::time::Duration;

use super::*;
use crate::job::{Reason, State, Status};
use crate::time::{Span, Timestamp};

fn at(text: &str) -> Timestamp {
    times::point(text).expect("a time")
}

fn rule(text: &str, zone: &str) -> Rule {
    let mut rule = Rule::new(text.parse::<Times>().expect("times"));
    rule.zone = Zone::new(zone).expect("a zone");
    rule
}

/// The next fires, as text.
fn next(rule: &Rule, after: &str, n: usize) -> Vec<String> {
    let mut after = at(after);
    let mut fires = Vec::new();
    while fires.len() < n
        && let Some(fire) = rule.after(after)
    {
        fires.push(fire.to_string().replace(".000Z", "Z"));
        after = fire;
    }
    fires
}

fn refusal(text: &str) -> String {
    Cron::parse(text).expect_err("no expression").to_string()
}

#[test]
fn bad_expressions_are_refused_with_the_column_of_the_fault() {
    let refused = [
        ("", "0 fields; an expression has 5, or 6 with seconds in front"),
        ("* * * *", "4 fields; an expression has 5, or 6 with seconds in front"),
        ("0 0 0 * * * 2027", "column 13: 7 fields; an expression has 5, or 6 with seconds in front"),
        ("60 * * * *", "column 1: `60` is not a minute (0 to 59)"),
        ("0 9,24 * * *", "column 5: `24` is not a hour (0 to 23)"),
        ("  0   9-x * * *", "column 9: `x` is not a hour (0 to 23)"),
        ("0 0 0 * *", "column 5: `0` is not a day of month (1 to 31)"),
        ("0 0 * FOO *", "column 7: `FOO` is not a month (1 to 12, or JAN to DEC)"),
        ("0 0 * * MON-FRO", "column 13: `FRO` is not a day of week (0 to 7, or SUN to SAT)"),
        ("0 0 * * 8", "column 9: `8` is not a day of week (0 to 7, or SUN to SAT)"),
        ("*/0 * * * *", "column 3: `0` is not a step of a minute (1 to 59)"),
        ("*/60 * * * *", "column 3: `60` is not a step of a minute (1 to 59)"),
        ("5/15 * * * *", "column 1: a step needs a range, as in `5-59/15`"),
        ("0 22-2 * * *", "column 3: `22-2` runs backwards; write `22-23,0-2`"),
        ("0 0 * * FRI-MON", "column 9: `FRI-MON` runs backwards; write `5-6,0-1`"),
        ("0,,5 * * * *", "column 3: nothing is not a minute (0 to 59)"),
        ("+5 * * * *", "column 1: `+5` is not a minute (0 to 59)"),
        ("-5 * * * *", "column 1: nothing is not a minute (0 to 59)"),
        ("? * * * *", "column 1: `?` is not a minute (0 to 59)"),
        ("0 0 L-31 * *", "column 7: `31` is not a number of days before the last (1 to 30)"),
        ("0 0 32W * *", "column 5: `32` is not a day of month (1 to 31)"),
        ("0 0 * * FRI#6", "column 13: `6` is not which one of a month (1 to 5)"),
        ("0 0 * * L", "column 9: `L` is not a day of week (0 to 7, or SUN to SAT)"),
        ("H * * * *", "column 1: `H` is not a minute (0 to 59)"),
        ("0 0 ü * *", "column 5: `ü` is not a day of month (1 to 31)"),
        (
            "@dayly",
            "column 1: `@dayly` is not one of @yearly, @annually, @monthly, @weekly, @daily, @midnight, @hourly",
        ),
    ];
    for (text, why) in refused {
        assert_eq!(refusal(text), why, "{text}");
    }
    assert_eq!(refusal(&"*".repeat(513)), "513 bytes is more than the bound of 512");
    assert!(refusal(&"*".repeat(512)).starts_with("1 fields"));
}

#[test]
fn an_expression_that_never_fires_is_refused_with_that_reason() {
    for (text, column) in [("0 0 31 2 *", 5), ("0 0 30,31 FEB ?", 5), ("0 0 0 31 4,6,9,11 *", 7)] {
        let why = format!("column {column}: it never fires: no month that it names has such a day");
        assert_eq!(refusal(text), why, "{text}");
    }
    // Rare is not never: a Monday that is a 29 February, across the year 2100.
    let mut rare = rule("0 0 29 2 *", "UTC");
    rare.except = vec!["* * * * TUE-SUN".parse().expect("an expression")];
    assert_eq!(next(&rare, "2072-02-29T00:00:00Z", 1), ["2112-02-29T00:00:00Z"]);
    assert_eq!(next(&rule("0 0 29 2 *", "UTC"), "2097-01-01T00:00:00Z", 1), ["2104-02-29T00:00:00Z"]);
    // In the local calendar it fires, but always in the gap of the clocks, where an interval does not.
    let gap = rule("*/10 2 * 3 SUNL", "Europe/Berlin");
    let why = gap.check(at("2026-01-01T00:00:00Z")).expect_err("no fire").to_string();
    assert!(why.contains("never fires"), "{why}");
}

#[test]
fn both_fields_for_days_count_as_in_cron() {
    // Both are restricted: either is enough.
    let either = rule("0 0 13 * FRI", "UTC");
    assert_eq!(
        next(&either, "2026-11-10T00:00:00Z", 3),
        ["2026-11-13T00:00:00Z", "2026-11-20T00:00:00Z", "2026-11-27T00:00:00Z"]
    );
    // One begins with a star: both must hold.
    let both = rule("0 0 */12 * FRI", "UTC");
    assert_eq!(next(&both, "2026-11-10T00:00:00Z", 2), ["2026-11-13T00:00:00Z", "2026-12-25T00:00:00Z"]);
}

#[test]
fn names_and_forms_mean_what_they_say() {
    let same = [
        ("@hourly", "0 * * * *"),
        ("@daily", "0 0 * * *"),
        ("@Midnight", "0 0 * * *"),
        ("@weekly", "0 0 * * SUN"),
        ("@monthly", "0 0 1 * ?"),
        ("@yearly", "0 0 1 jan *"),
        ("0 0 * * 7", "0 0 * * 0"),
        ("0 0 * * SAT-SUN", "0 0 * * 6,0"),
        ("0 0 * * 1-7", "0 0 * * *"),
        ("0 0 0 * * *", "0 0 * * *"),
        ("10-30/10 * * * *", "10,20,30 * * * *"),
    ];
    for (left, right) in same {
        let fires = |text| next(&rule(text, "Europe/Berlin"), "2026-10-20T00:30:10Z", 8);
        assert_eq!(fires(left), fires(right), "{left}");
    }
    let seconds = rule("*/20 59 23 31 12 *", "UTC");
    assert_eq!(
        next(&seconds, "2026-12-31T23:59:00Z", 3),
        ["2026-12-31T23:59:20Z", "2026-12-31T23:59:40Z", "2027-12-31T23:59:00Z"]
    );
}

#[test]
fn every_counts_elapsed_time() {
    let hourly = rule("every 1h", "America/New_York");
    assert_eq!(next(&hourly, "2026-03-08T06:30:00Z", 2), ["2026-03-08T07:00:00Z", "2026-03-08T08:00:00Z"]);
    let from = rule("every 90m from 2027-01-01T00:10:00Z", "UTC");
    assert_eq!(next(&from, "2026-01-01T00:00:00Z", 2), ["2027-01-01T00:10:00Z", "2027-01-01T01:40:00Z"]);
    assert_eq!(next(&from, "2027-01-01T00:10:00Z", 1), ["2027-01-01T01:40:00Z"]);
    for (text, why) in [
        ("every 999ms", "every 999ms is not between every 1s and every ten years"),
        ("every 4000d", "every 4000d is not between every 1s and every ten years"),
        ("every", "is not of the form"),
        ("every 5m from", "is not of the form"),
        ("every 5m from monday", "`monday` is not a time like"),
        ("every five", "is not a duration"),
    ] {
        let refused = text.parse::<Times>().expect_err("no times").to_string();
        assert!(refused.contains(why), "{text}: {refused}");
    }
}

#[test]
fn texts_are_read_back_as_they_are_written() {
    for text in ["every 5m", "every 1h30m from 2027-01-31T09:00:00.000001Z", "@daily", "*/5 9-17 * * MON-FRI"]
    {
        assert_eq!(text.parse::<Times>().expect("times").to_string(), text);
    }
    for text in ["2026-12-25", "2026-12-24..2027-01-01", "* * 25 12 *"] {
        assert_eq!(text.parse::<Except>().expect("an exception").to_string(), text);
    }
    for text in ["skip", "once", "all:7"] {
        assert_eq!(text.parse::<Missed>().expect("a policy").to_string(), text);
    }
    for text in ["allow", "skip", "cancel"] {
        assert_eq!(text.parse::<Overlap>().expect("a policy").to_string(), text);
    }
    let mut whole = rule("@hourly", "Europe/Berlin");
    whole.except = vec!["2026-12-25".parse().expect("an exception")];
    whole.until = Some(at("2027-01-01T00:00:00Z"));
    whole.jitter = Some(Span(Duration::from_secs(30)));
    let json = serde_json::to_string(&whole).expect("json");
    assert_eq!(serde_json::from_str::<Rule>(&json).expect("a rule"), whole);
    assert!(
        json.starts_with(r#"{"times":["@hourly"],"except":["2026-12-25"],"zone":"Europe/Berlin","until":"#),
        "{json}"
    );
    assert!(serde_json::from_str::<Rule>(r#"{"times":["61 * * * *"]}"#).is_err());
}

#[test]
fn several_times_and_exceptions_make_one_rule() {
    let mut office = rule("0 9 * * MON-FRI", "Europe/Berlin");
    office.times.push("0 11 * * SAT".parse().expect("times"));
    office.times.push("0 9 * * MON".parse().expect("times"));
    office.except =
        vec!["2026-12-24..2026-12-27".parse().expect("days"), "* * 1 1 *".parse().expect("an expression")];
    assert_eq!(
        next(&office, "2026-12-23T07:00:00Z", 6),
        [
            "2026-12-23T08:00:00Z",
            "2026-12-28T08:00:00Z",
            "2026-12-29T08:00:00Z",
            "2026-12-30T08:00:00Z",
            "2026-12-31T08:00:00Z",
            "2027-01-02T10:00:00Z"
        ]
    );
    for bad in ["2026-12-27..2026-12-24", "2026-13-01", "tomorrow"] {
        assert!(bad.parse::<Except>().is_err(), "{bad}");
    }
}

#[test]
fn excepted_hours_hold_where_clocks_change() {
    // Lord Howe repeats half an hour: 01:30 to 02:00 comes twice, and is excepted both times.
    let mut rule = rule("*/10 * * * *", "Australia/Lord_Howe");
    rule.except = vec!["30-59 1 * * *".parse().expect("an expression")];
    assert_eq!(
        next(&rule, "2026-04-04T14:15:00Z", 3),
        ["2026-04-04T14:20:00Z", "2026-04-04T15:30:00Z", "2026-04-04T15:40:00Z"]
    );
}

#[test]
fn a_rule_is_narrowed_by_its_first_and_last_time() {
    let mut daily = rule("@daily", "UTC");
    daily.from = Some(at("2027-01-01T00:00:00Z"));
    daily.until = Some(at("2027-01-02T00:00:00Z"));
    let both = ["2027-01-01T00:00:00Z", "2027-01-02T00:00:00Z"];
    assert_eq!(next(&daily, "2026-01-01T00:00:00Z", 9), both);
    let refused = |rule: &Rule, now| rule.check(at(now)).expect_err("refused").to_string();
    assert_eq!(refused(&daily, "2027-01-02T00:00:00Z"), "invalid schedule: it never fires: it has ended");
    daily.until = Some(at("2026-01-02T00:00:00Z"));
    assert_eq!(refused(&daily, "2026-01-01T00:00:00Z"), "invalid schedule: it ends before it begins");
    daily.until = None;
    daily.count = Some(0);
    assert_eq!(refused(&daily, "2026-01-01T00:00:00Z"), "invalid schedule: it fires no times at all");
}

#[test]
fn a_rule_has_bounds() {
    let now = at("2026-01-01T00:00:00Z");
    let mut rule = rule("@daily", "UTC");
    rule.times = vec![rule.times[0].clone(); 16];
    rule.except = vec!["2026-12-25".parse().expect("a day"); 64];
    rule.jitter = Some(Span(Duration::from_hours(24)));
    rule.check(now).expect("within its bounds");
    let mut many = rule.clone();
    many.times.push(rule.times[0].clone());
    assert!(matches!(many.check(now), Err(crate::Error::TooLarge { size: 17, limit: 16, .. })));
    let mut many = rule.clone();
    many.except.push(rule.except[0].clone());
    assert!(matches!(many.check(now), Err(crate::Error::TooLarge { size: 65, limit: 64, .. })));
    rule.jitter = Some(Span(Duration::from_hours(25)));
    assert!(rule.check(now).is_err());
    rule.times.clear();
    assert!(rule.check(now).is_err());
}

#[test]
fn exceptions_that_leave_nothing_are_refused_after_a_bounded_search() {
    let mut never = rule("* * * * *", "UTC");
    never.except = vec!["* * * * *".parse().expect("an expression")];
    assert_eq!(never.after(at("2026-01-01T00:00:00Z")), None);
    assert!(never.check(at("2026-01-01T00:00:00Z")).is_err());
}

#[test]
fn jitter_moves_all_fires_of_a_schedule_by_the_same_amount() {
    let mut rule = rule("@hourly", "UTC");
    assert_eq!(rule.shift("report"), Duration::ZERO);
    rule.jitter = Some(Span(Duration::from_mins(10)));
    let shifts: Vec<_> = (0..1_000).map(|n| rule.shift(&format!("report-{n}")).as_secs() / 60).collect();
    for minute in 0..10 {
        let share = shifts.iter().filter(|shift| **shift == minute).count();
        assert!((60..=140).contains(&share), "{share} of 1,000 are {minute} minutes late");
    }
    assert_eq!(rule.shift("report"), rule.shift("report"));
}

const GRACE: Duration = Duration::from_mins(1);

/// Fires that are due, as `day hour:minute`.
fn fires_due(missed: Missed, last: &str, now: &str) -> (Vec<String>, Option<[String; 2]>, Option<String>) {
    let short = |at: Timestamp| at.to_string()[8..16].replace('T', " ");
    let due = due(&rule("0 */6 * * *", "UTC"), missed, GRACE, at(last), at(now));
    let fires = due.fires.into_iter().map(short).collect();
    (fires, due.missed.map(|(first, last)| [short(first), short(last)]), due.next.map(short))
}

#[test]
fn a_fire_in_time_is_due_under_every_policy() {
    for missed in [Missed::Skip, Missed::Once, Missed::All(5)] {
        let due = fires_due(missed, "2026-11-10T00:00:00Z", "2026-11-10T06:00:59Z");
        assert_eq!(due, (vec!["10 06:00".to_owned()], None, Some("10 12:00".to_owned())));
        // Not a microsecond early, and not twice.
        let none = (Vec::new(), None, Some("10 06:00".to_owned()));
        assert_eq!(fires_due(missed, "2026-11-10T00:00:00Z", "2026-11-10T05:59:59.999999Z"), none);
        let none = (Vec::new(), None, Some("10 12:00".to_owned()));
        assert_eq!(fires_due(missed, "2026-11-10T06:00:00Z", "2026-11-10T06:00:00Z"), none);
    }
}

#[test]
fn missed_fires_follow_their_policy() {
    let due = |missed| fires_due(missed, "2026-11-10T00:00:00Z", "2026-11-11T01:00:00Z");
    let missed = |first: &str, last: &str| Some([first.to_owned(), last.to_owned()]);
    let (fires, left_out, next) = due(Missed::Skip);
    assert_eq!((fires.len(), left_out), (0, missed("10 06:00", "11 00:00")));
    assert_eq!(next.as_deref(), Some("11 06:00"));
    let (fires, left_out, _) = due(Missed::Once);
    assert_eq!((fires, left_out), (vec!["11 00:00".to_owned()], missed("10 06:00", "10 18:00")));
    let (fires, left_out, _) = due(Missed::All(2));
    assert_eq!(
        (fires, left_out),
        (vec!["10 18:00".into(), "11 00:00".into()], missed("10 06:00", "10 12:00"))
    );
    let (fires, left_out, _) = due(Missed::All(100));
    assert_eq!((fires.len(), left_out), (4, None));
    // The latest is within its grace: it is not missed, but those before it are.
    let (fires, left_out, _) = fires_due(Missed::Skip, "2026-11-10T00:00:00Z", "2026-11-10T12:00:30Z");
    assert_eq!((fires, left_out), (vec!["10 12:00".to_owned()], missed("10 06:00", "10 06:00")));
}

#[test]
fn a_clock_that_leaps_a_year_ahead_catches_up_within_the_bound() {
    let secondly = rule("* * * * * *", "UTC");
    let (last, now) = (at("2026-11-10T00:00:00Z"), at("2027-11-10T00:00:00.500Z"));
    let due = due(&secondly, Missed::All(crate::bounds::CATCH_UP), GRACE, last, now);
    assert_eq!(due.fires.len(), 100);
    assert_eq!(due.fires.last(), Some(&at("2027-11-10T00:00:00Z")));
    assert_eq!(due.fires.first(), Some(&at("2027-11-09T23:58:21Z")));
    assert_eq!(due.missed, Some((at("2026-11-10T00:00:01Z"), at("2027-11-09T23:58:20Z"))));
}

#[test]
fn a_clock_that_goes_back_fires_nothing_again() {
    let due = fires_due(Missed::Once, "2026-11-10T12:00:00Z", "2026-11-10T11:00:00Z");
    assert_eq!(due, (Vec::new(), None, Some("10 18:00".to_owned())));
}

#[test]
fn catching_up_has_a_bound() {
    assert!("all:100".parse::<Missed>().is_ok());
    assert!("all:101".parse::<Missed>().is_err());
    assert!("all:0".parse::<Missed>().is_err());
    assert!("some".parse::<Missed>().is_err());
    assert!("queue".parse::<Overlap>().is_err());
}

#[test]
fn a_job_that_is_not_done_holds_up_what_its_policy_says() {
    let running = Some(Status::plain(State::Running));
    let set_aside = Some(Status::because(State::Suspended, Reason::Quarantine));
    let failed = Some(Status::because(State::Failed, Reason::Exhausted));
    let done = Some(Status::plain(State::Succeeded));
    for open in [running, set_aside] {
        assert_eq!(Overlap::Allow.hold(false, open), Hold::Fire);
        assert_eq!(Overlap::Skip.hold(false, open), Hold::Skip);
        assert_eq!(Overlap::Cancel.hold(false, open), Hold::Cancel);
    }
    for overlap in [Overlap::Allow, Overlap::Skip, Overlap::Cancel] {
        for ended in [None, done, failed] {
            assert_eq!(overlap.hold(false, ended), Hold::Fire);
        }
        assert_eq!(overlap.hold(true, failed), Hold::Pause);
        assert_eq!(overlap.hold(true, done), Hold::Fire);
    }
}

#[test]
fn rules_are_told_in_words() {
    let told = [
        ("0 9 * * MON-FRI", "at 09:00, on Monday to Friday"),
        ("30 8,17 * * *", "at 08:30 and 17:30"),
        ("*/5 * * * *", "every 5 minutes"),
        ("* * * * *", "every minute"),
        ("*/15 9-17 * * *", "every 15 minutes of hour 9 to 17"),
        ("0 * * * *", "every hour"),
        ("0 */6 * * *", "every 6 hours"),
        ("20 * * * *", "at minute 20 of every hour"),
        ("*/10 * * * * *", "every 10 seconds"),
        ("30 0 12 * * *", "at second 30 of minute 0 of hour 12"),
        ("0 0 1 1 *", "at 00:00, on day 1 of the month, in January"),
        ("0 0 L * *", "at 00:00, on the last day of the month"),
        ("0 0 15W,LW * *", "at 00:00, on the weekday nearest to day 15 and the last weekday of the month"),
        ("0 0 * * FRI#2,MONL", "at 00:00, on the second Friday and the last Monday"),
        ("0 0 13 * FRI", "at 00:00, on day 13 of the month or on Friday"),
        (
            "0 0 1-7 * */2",
            "at 00:00, on day 1 to 7 of the month if it is Tuesday, Thursday, Saturday and Sunday",
        ),
        ("0 0 * 6-8 SAT,SUN", "at 00:00, on Saturday and Sunday, in June to August"),
        ("*/7 * * * *", "at minute 0, 7, 14, 21, 28, 35, 42, 49 and 56 of every hour"),
    ];
    for (text, words) in told {
        assert_eq!(text.parse::<Cron>().expect("an expression").describe(), words, "{text}");
    }
    let mut whole = rule("0 9 * * *", "Europe/Berlin");
    whole.times.push("every 1d".parse().expect("times"));
    whole.except = vec!["2026-12-25".parse().expect("a day")];
    (whole.count, whole.jitter) = (Some(3), Some(Span(Duration::from_secs(30))));
    assert_eq!(
        whole.describe(),
        "at 09:00; every 1d (Europe/Berlin), except on 2026-12-25, 3 times, up to 30s later"
    );
}
