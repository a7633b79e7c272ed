//! Cron expressions in words.
//!
//! The usual shapes have a phrase of their own ("at 09:00", "every 5 minutes"); what is left names its fields one by one. It is for
//! people who check what they wrote, so it says too much rather than something wrong.

use super::parse::{ALL_24, ALL_60};
use super::{Cron, has};

const MONTHS: [&str; 12] = [
    "January",
    "February",
    "March",
    "April",
    "May",
    "June",
    "July",
    "August",
    "September",
    "October",
    "November",
    "December",
];
const WEEK_DAYS: [&str; 7] = ["Sunday", "Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday"];
const ALL_MONTHS: u64 = 0x1ffe;
const ALL_WEEK_DAYS: u64 = 0x7f;
const ALL_MONTH_DAYS: u64 = 0xffff_fffe;

/// "at 09:00, on Monday to Friday, in January".
pub(super) fn describe(cron: &Cron) -> String {
    let mut parts = vec![time(cron)];
    parts.extend(days(cron));
    if cron.months != ALL_MONTHS {
        let names = list(cron.months, 1..=12, |month| MONTHS[usize::from(month) - 1].to_owned());
        parts.push(format!("in {names}"));
    }
    parts.join(", ")
}

fn time(cron: &Cron) -> String {
    let Cron { seconds, minutes, hours, .. } = *cron;
    let each = |hours: u64| match step(hours, 24) {
        Some(1) => String::new(),
        Some(n) => format!(" of every {} hour", ordinal(n)),
        None => format!(" of hour {}", list(hours, 0..=23, |hour| hour.to_string())),
    };
    if seconds == 1 {
        return match (step(minutes, 60), minutes.count_ones(), hours.count_ones()) {
            (Some(n), ..) if hours == ALL_24 => every(n, "minute"),
            (Some(n), ..) => format!("{}{}", every(n, "minute"), each(hours)),
            (None, 1, _) if hours == ALL_24 && minutes == 1 => "every hour".to_owned(),
            (None, 1, _) if minutes == 1 && step(hours, 24).is_some_and(|n| n > 1) => {
                every(step(hours, 24).unwrap_or(1), "hour")
            }
            // Few enough to be told as times of day.
            (None, m, h) if m * h <= 6 => format!("at {}", times(minutes, hours)),
            _ => format!("at minute {}{}", list(minutes, 0..=59, |minute| minute.to_string()), hour(hours)),
        };
    }
    let second = match step(seconds, 60) {
        Some(n) => every(n, "second"),
        None => format!("at second {}", list(seconds, 0..=59, |second| second.to_string())),
    };
    match (minutes == ALL_60, hours == ALL_24) {
        (true, true) => second,
        (true, false) => format!("{second}{}", each(hours)),
        (false, _) => format!(
            "{second} of minute {}{}",
            list(minutes, 0..=59, |minute| minute.to_string()),
            hour(hours)
        ),
    }
}

/// " of every hour", " of hour 9 to 17".
fn hour(hours: u64) -> String {
    match step(hours, 24) {
        Some(1) => " of every hour".to_owned(),
        Some(n) => format!(" of every {} hour", ordinal(n)),
        None => format!(" of hour {}", list(hours, 0..=23, |hour| hour.to_string())),
    }
}

/// "09:00 and 17:30".
fn times(minutes: u64, hours: u64) -> String {
    let mut times = Vec::new();
    for hour in (0..24).filter(|hour| has(hours, *hour)) {
        for minute in (0..60).filter(|minute| has(minutes, *minute)) {
            times.push(format!("{hour:02}:{minute:02}"));
        }
    }
    join(&times)
}

fn days(cron: &Cron) -> Option<String> {
    let days = &cron.days;
    let mut month = Vec::new();
    if days.of_month & ALL_MONTH_DAYS != ALL_MONTH_DAYS && days.of_month != 0 {
        month.push(format!("day {}", list(days.of_month, 1..=31, |day| day.to_string())));
    }
    for back in (0..31).filter(|back| has(days.before_last, *back)) {
        month.push(match back {
            0 => "the last day".to_owned(),
            1 => "the day before the last".to_owned(),
            n => format!("{n} days before the last"),
        });
    }
    let nearest = (1..=31).filter(|day| has(days.nearest_weekday, *day));
    month.extend(nearest.map(|day| format!("the weekday nearest to day {day}")));
    if days.last_weekday {
        month.push("the last weekday".to_owned());
    }
    let name = |day: u8| WEEK_DAYS[usize::from(day)].to_owned();
    let mut week = Vec::new();
    if days.of_week & ALL_WEEK_DAYS != ALL_WEEK_DAYS && days.of_week != 0 {
        // A week begins on Monday, so that Saturday and Sunday are neighbours.
        let from_monday = days.of_week >> 1 | (days.of_week & 1) << 6;
        week.push(list(from_monday, 0..=6, |day| name((day + 1) % 7)));
    }
    for (which, set) in ["first", "second", "third", "fourth", "fifth"].iter().zip(days.nth_of_week) {
        week.extend(
            (0..7)
                .filter(|day| has(set, *day))
                .map(|day| format!("the {which} {}", name(day.unsigned_abs()))),
        );
    }
    let last = (0..7).filter(|day| has(days.last_of_week, *day));
    week.extend(last.map(|day| format!("the last {}", name(day.unsigned_abs()))));
    let either = if days.month_is_open || days.week_is_open { " if it is " } else { " or on " };
    match (month.is_empty(), week.is_empty()) {
        (true, true) => None,
        (false, true) => Some(format!("on {} of the month", join(&month))),
        (true, false) => Some(format!("on {}", join(&week))),
        (false, false) => Some(format!("on {} of the month{either}{}", join(&month), join(&week))),
    }
}

/// The distance between neighbours, if a set is every nth of a whole, from 0 on.
fn step(set: u64, whole: u64) -> Option<u64> {
    (1..=whole / 2).find(|n| {
        whole.is_multiple_of(*n)
            && set == (0..whole).step_by(usize::try_from(*n).unwrap_or(1)).fold(0, |set, bit| set | 1 << bit)
    })
}

fn every(n: u64, unit: &str) -> String {
    if n == 1 { format!("every {unit}") } else { format!("every {n} {unit}s") }
}

fn ordinal(n: u64) -> String {
    let end = match (n % 10, n % 100) {
        (1, n) if n != 11 => "st",
        (2, n) if n != 12 => "nd",
        (3, n) if n != 13 => "rd",
        _ => "th",
    };
    format!("{n}{end}")
}

/// The members of a set, with three and more neighbours as a range: "1, 5 and 9 to 17".
fn list(set: u64, within: std::ops::RangeInclusive<u8>, name: impl Fn(u8) -> String) -> String {
    let mut parts = Vec::new();
    let mut members = within.filter(|n| set >> n & 1 == 1).peekable();
    while let Some(first) = members.next() {
        let mut last = first;
        while members.peek() == Some(&(last + 1)) {
            last += 1;
            members.next();
        }
        match last - first {
            0 => parts.push(name(first)),
            1 => parts.extend([name(first), name(last)]),
            _ => parts.push(format!("{} to {}", name(first), name(last))),
        }
    }
    join(&parts)
}

/// "a, b and c".
fn join(parts: &[String]) -> String {
    match parts {
        [] => String::new(),
        [one] => one.clone(),
        [first @ .., last] => format!("{} and {last}", first.join(", ")),
    }
}
