//! Every fire of many expressions in a dozen zones, against an oracle that knows nothing of sets of bits and of searching.
//!
//! The oracle walks minute by minute, asks the database of zones for the offset of each, reads the fields of the expression as
//! text, and writes down what it meets: every minute of the two days around each change of clocks in sixteen years, and
//! some weeks in between.

use std::collections::{BTreeMap, BTreeSet};

use jiff::civil::Date;

use crate::job::{Options, Priority};
use crate::name::{Kind, QueueName, ScheduleName};
use crate::schedule::{Definition, Missed, Rule, Schedule, Step, Template, Zone, fire_of, step};
use crate::time::Timestamp;
use crate::{Uuid, bounds};

/// Expressions with five fields that have little in common.
const EXPRESSIONS: [&str; 24] = [
    "* * * * *",
    "*/7 * * * *",
    "0 * * * *",
    "30 * * * *",
    "0 0 * * *",
    "30 0 * * *",
    "15 1 * * *",
    "30 2 * * *",
    "0,30 1-3 * * *",
    "0-59 2 * * *",
    "*/20 2 * * *",
    "59 23 * * *",
    "0 9-17/2 * * MON-FRI",
    "0 0 1 * *",
    "45 1 L * *",
    "0 3 L-2 * *",
    "30 2 15W * *",
    "0 0 LW * *",
    "30 1 * * FRI#2",
    "30 2 * 3,10 SUNL",
    "*/10 2 * 3,10 SUNL",
    "15 2 13 * FRI",
    "15 2 */2 * 0",
    "10 1,2 29 2 *",
];

/// Fires of one window, at most, that nodes are tried with.
const SELDOM: usize = 60;

/// Minutes since the epoch that are looked at, in order: two days around each change of clocks, and six weeks.
fn windows(zone: &Zone) -> Vec<(i64, i64)> {
    const DAY: i64 = 1_440;
    let second = |date: Date| date.in_tz("UTC").expect("UTC").timestamp().as_second();
    let (first, last) = (second(Date::constant(2011, 1, 1)), second(Date::constant(2027, 1, 1)));
    let start = jiff::Timestamp::from_second(first).expect("a time");
    let mut windows: Vec<_> = zone
        .inner()
        .following(start)
        .map(|change| change.timestamp().as_second())
        .take_while(|change| *change < last)
        .map(|change| (change / 60 - DAY, change / 60 + DAY))
        .collect();
    let weeks = [Date::constant(2024, 2, 20), Date::constant(2027, 12, 20)];
    windows.extend(weeks.map(|date| (second(date) / 60, second(date) / 60 + 21 * DAY)));
    windows.sort_unstable();
    // What touches is one window, so that the oracle always knows what was before.
    let mut joined: Vec<(i64, i64)> = Vec::new();
    for (from, to) in windows {
        match joined.last_mut() {
            Some((_, end)) if from <= *end => *end = to.max(*end),
            _ => joined.push((from, to)),
        }
    }
    joined
}

/// Whether a field of an expression has a value; read again from its text each time.
fn field_has(field: &str, value: i64, low: i64, high: i64, names: &[&str]) -> bool {
    let number = |text: &str| -> i64 {
        match names.iter().position(|name| *name == text) {
            Some(at) => i64::try_from(at).expect("few names") + low,
            None => text.parse().expect("a number"),
        }
    };
    field.split(',').any(|item| {
        let (base, step) = item.split_once('/').unwrap_or((item, "1"));
        let (from, to) = match (base, base.split_once('-')) {
            ("*", _) => (low, high),
            (_, Some((from, to))) => (number(from), number(to)),
            (one, None) => (number(one), number(one)),
        };
        let step: i64 = step.parse().expect("a number");
        (from..=to).contains(&value) && (value - from) % step == 0
    })
}

const MONTHS: [&str; 12] =
    ["JAN", "FEB", "MAR", "APR", "MAY", "JUN", "JUL", "AUG", "SEP", "OCT", "NOV", "DEC"];
const WEEK_DAYS: [&str; 7] = ["SUN", "MON", "TUE", "WED", "THU", "FRI", "SAT"];

/// Whether an expression has a day.
fn has_day(expression: &str, date: Date) -> bool {
    let fields: Vec<_> = expression.split(' ').collect();
    let (month_day, month, week_day) = (fields[2], fields[3], fields[4]);
    let weekday = |date: Date| i64::from(date.weekday().to_sunday_zero_offset());
    let is_workday = |date: Date| (1..=5).contains(&weekday(date));
    let days =
        || (1..=date.days_in_month()).map(|day| Date::new(date.year(), date.month(), day).expect("a day"));
    // Of all workdays of the month the one with the smallest distance to the wanted day.
    let nearest = |wanted: i8| {
        days().filter(|day| is_workday(*day)).min_by_key(|day| (day.day() - wanted).abs()) == Some(date)
    };
    let by_month = if month_day == "L" {
        date == date.last_of_month()
    } else if month_day == "LW" {
        days().rfind(|day| is_workday(*day)) == Some(date)
    } else if let Some(back) = month_day.strip_prefix("L-") {
        date.days_in_month() - date.day() == back.parse::<i8>().expect("a number")
    } else if let Some(day) = month_day.strip_suffix('W') {
        nearest(day.parse().expect("a number"))
    } else {
        field_has(month_day, i64::from(date.day()), 1, 31, &[])
    };
    let of = |name: &str| field_has(name, weekday(date), 0, 6, &WEEK_DAYS);
    let by_week = if let Some((day, which)) = week_day.split_once('#') {
        of(day) && (date.day() - 1) / 7 + 1 == which.parse::<i8>().expect("a number")
    } else if let Some(day) = week_day.strip_suffix('L') {
        of(day) && date.day() + 7 > date.days_in_month()
    } else {
        field_has(week_day, weekday(date), 0, 6, &WEEK_DAYS)
    };
    let open = month_day.starts_with('*') || week_day.starts_with('*');
    field_has(month, i64::from(date.month()), 1, 12, &MONTHS)
        && if open { by_month && by_week } else { by_month || by_week }
}

/// What an expression says, looked up by minute, hour and day.
struct Expression {
    text: &'static str,
    minutes: Vec<bool>,
    hours: Vec<bool>,
    days: BTreeMap<i64, bool>,
    interval: bool,
}

impl Expression {
    fn new(text: &'static str) -> Self {
        let fields: Vec<_> = text.split(' ').collect();
        let (minute, hour) = (fields[0], fields[1]);
        Expression {
            text,
            minutes: (0..60).map(|value| field_has(minute, value, 0, 59, &[])).collect(),
            hours: (0..24).map(|value| field_has(hour, value, 0, 23, &[])).collect(),
            days: BTreeMap::new(),
            interval: minute.contains('*') || hour.contains('*'),
        }
    }

    /// Whether it names a local minute, counted from the local epoch.
    fn names(&mut self, local: i64) -> bool {
        let (day, of_day) = (local.div_euclid(1_440), local.rem_euclid(1_440));
        let index = |n: i64| usize::try_from(n).expect("not negative");
        if !self.minutes[index(of_day % 60)] || !self.hours[index(of_day / 60)] {
            return false;
        }
        let text = self.text;
        *self.days.entry(day).or_insert_with(|| {
            let epoch = Date::constant(1970, 1, 1);
            has_day(text, epoch.checked_add(jiff::Span::new().days(day)).expect("a day"))
        })
    }
}

/// The fires of each expression in a window, minute by minute.
fn walk(zone: &Zone, expressions: &mut [Expression], (from, to): (i64, i64)) -> Vec<Vec<i64>> {
    let local = |minute: i64| {
        let at = jiff::Timestamp::from_second(minute * 60).expect("a time");
        minute + i64::from(zone.inner().to_offset(at).seconds()) / 60
    };
    let mut fires = vec![Vec::new(); expressions.len()];
    // The latest local minute so far: what is not later comes again, what lies between was skipped.
    let mut latest = local(from - 1);
    for minute in from..to {
        let now = local(minute);
        for (expression, fires) in expressions.iter_mut().zip(&mut fires) {
            let fixed = now > latest && (latest + 1..=now).any(|local| expression.names(local));
            if if expression.interval { expression.names(now) } else { fixed } {
                fires.push(minute * 60);
            }
        }
        latest = latest.max(now);
    }
    fires
}

/// Seconds between two looks of a node: in time, late, and much too late.
const LOOKS: [i64; 6] = [61, 7, 3_600, 1, 600, 5_400];

/// The fires that have a job when a node looks at odd moments and takes what is due.
fn stepped(rule: &Rule, (from, to): (i64, i64)) -> Vec<i64> {
    let seconds = |seconds: i64| Timestamp::from_micros(seconds * 1_000_000);
    let name = ScheduleName::new("s").expect("a name");
    let template = Template {
        kind: Kind::new("k").expect("a name"),
        queue: QueueName::new("q").expect("a name"),
        priority: Priority::default(),
        input: serde_json::Value::Null,
        deadline: None,
        options: Options::default(),
    };
    let mut definition = Definition::new(rule.clone(), template);
    definition.missed = Missed::All(bounds::CATCH_UP);
    let mut row = Schedule::create(name, definition, Uuid::from_bytes([1; 16]), seconds(from * 60 - 1));
    let (mut now, end, mut fires, mut ids) = (from * 60, to * 60 - 1, Vec::new(), BTreeSet::new());
    for gap in LOOKS.into_iter().cycle() {
        now = (now + gap).min(end);
        let due = row.next_at.is_some_and(|at| at <= seconds(now));
        match step(&row, None, seconds(now)) {
            Step::Write(next, jobs) => {
                assert!(due, "a fire that nobody would look for");
                for job in jobs {
                    assert!(ids.insert(job.id), "two jobs of one id");
                    fires.push(fire_of(&job.options).expect("a fire").as_micros() / 1_000_000);
                }
                row = *next;
                assert_eq!(step(&row, None, seconds(now)), Step::Wait, "nothing is due twice");
            }
            other => assert_eq!((other, due), (Step::Wait, false)),
        }
        if now == end {
            return fires;
        }
    }
    fires
}

fn agrees_with_the_oracle(zone: &str) {
    let zone = Zone::new(zone).expect("a zone");
    let mut expressions: Vec<_> = EXPRESSIONS.iter().map(|text| Expression::new(text)).collect();
    let windows = windows(&zone);
    let mut met = 0;
    for window in windows {
        let expected = walk(&zone, &mut expressions, window);
        for (text, expected) in EXPRESSIONS.iter().zip(expected) {
            let times: crate::schedule::Times = text.parse().expect("an expression");
            let mut rule = Rule::new(times);
            rule.zone = zone.clone();
            let seconds = |seconds: i64| Timestamp::from_micros(seconds * 1_000_000);
            let (mut after, end) = (seconds(window.0 * 60 - 1), seconds(window.1 * 60));
            let mut found = Vec::new();
            while let Some(at) = rule.after(after).filter(|at| *at < end) {
                found.push(at.as_micros() / 1_000_000);
                after = at;
            }
            if found != expected {
                let wrong = found
                    .iter()
                    .find(|at| !expected.contains(at))
                    .or_else(|| expected.iter().find(|at| !found.contains(at)));
                let wrong = wrong.map(|at| seconds(*at).to_string());
                panic!("`{text}` in {zone}: not both have {wrong:?}");
            }
            met += found.len();
            // What fires often would take long, and is no different.
            if expected.len() <= SELDOM {
                assert_eq!(stepped(&rule, window), expected, "`{text}` in {zone}");
            }
            // Backwards it is the same list.
            let last: Vec<_> = expected.iter().rev().take(3).rev().map(|at| seconds(*at)).collect();
            let end = Timestamp::from_micros(end.as_micros() - 1);
            assert_eq!(rule.last_many(seconds(window.0 * 60 - 1), end, 3), last, "`{text}` in {zone}");
        }
    }
    assert!(met > 70_000, "the oracle met {met} fires alone");
}

macro_rules! zones {
    ($($test:ident: $zone:literal,)*) => {
        $(
            #[test]
            fn $test() {
                agrees_with_the_oracle($zone);
            }
        )*
    };
}

zones! {
    fires_in_a_zone_without_changes: "Asia/Kolkata",
    fires_in_berlin: "Europe/Berlin",
    fires_in_new_york: "America/New_York",
    fires_where_days_began_at_one: "America/Sao_Paulo",
    fires_where_days_begin_at_one: "Asia/Beirut",
    fires_where_clocks_change_by_half_an_hour: "Australia/Lord_Howe",
    fires_where_clocks_change_by_two_hours: "Antarctica/Troll",
    fires_where_a_day_was_skipped: "Pacific/Apia",
    fires_where_summer_is_interrupted: "Africa/Casablanca",
    fires_where_winter_is_negative: "Europe/Dublin",
    fires_where_clocks_change_at_a_quarter_to: "Pacific/Chatham",
    fires_where_clocks_change_at_the_end_of_a_day: "America/Santiago",
    fires_where_rules_change_every_year: "Asia/Gaza",
}
