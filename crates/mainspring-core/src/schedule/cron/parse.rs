//! Reading cron expressions, with the column of what is wrong.

use std::fmt;

use jiff::civil::DateTime;

use super::{Cron, Days};
use crate::{Error, bounds};

/// All of 0 to 59.
pub(super) const ALL_60: u64 = (1 << 60) - 1;
/// All of 0 to 23.
pub(super) const ALL_24: u64 = (1 << 24) - 1;

/// Names that stand for an expression.
const NAMED: [(&str, &str); 7] = [
    ("@yearly", "0 0 1 1 *"),
    ("@annually", "0 0 1 1 *"),
    ("@monthly", "0 0 1 * *"),
    ("@weekly", "0 0 * * 0"),
    ("@daily", "0 0 * * *"),
    ("@midnight", "0 0 * * *"),
    ("@hourly", "0 * * * *"),
];
const MONTHS: [&str; 12] =
    ["JAN", "FEB", "MAR", "APR", "MAY", "JUN", "JUL", "AUG", "SEP", "OCT", "NOV", "DEC"];
const WEEK_DAYS: [&str; 7] = ["SUN", "MON", "TUE", "WED", "THU", "FRI", "SAT"];

/// What is wrong with an expression, and where.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Fault {
    /// The column of the first character that is wrong, from 1 on. 0: the expression as a whole.
    pub column: usize,
    /// What is wrong with it.
    pub why: String,
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.column {
            0 => f.write_str(&self.why),
            column => write!(f, "column {column}: {}", self.why),
        }
    }
}

impl From<Fault> for Error {
    fn from(fault: Fault) -> Self {
        Error::Invalid { what: "cron expression", why: fault.to_string() }
    }
}

fn fault<T>(column: usize, why: impl Into<String>) -> Result<T, Fault> {
    Err(Fault { column, why: why.into() })
}

/// A piece of the expression and the column where it begins.
#[derive(Clone, Copy)]
struct Piece<'a> {
    text: &'a str,
    column: usize,
}

impl<'a> Piece<'a> {
    /// Splits at a character; the pieces know their columns.
    fn split(self, at: char) -> impl Iterator<Item = Piece<'a>> {
        let mut column = self.column;
        self.text.split(at).map(move |text| {
            let piece = Piece { text, column };
            column += text.chars().count() + 1;
            piece
        })
    }

    fn split_once(self, at: char) -> Option<(Piece<'a>, Piece<'a>)> {
        let (left, right) = self.text.split_once(at)?;
        let column = self.column + left.chars().count() + 1;
        Some((Piece { text: left, ..self }, Piece { text: right, column }))
    }
}

/// What a field may hold.
struct Field {
    name: &'static str,
    low: i8,
    high: i8,
    names: &'static [&'static str],
}

impl Field {
    /// The last value, without Sunday's second number.
    fn last(&self) -> i8 {
        if self.high == 7 { 6 } else { self.high }
    }
}

const SECOND: Field = Field { name: "second", low: 0, high: 59, names: &[] };
const MINUTE: Field = Field { name: "minute", low: 0, high: 59, names: &[] };
const HOUR: Field = Field { name: "hour", low: 0, high: 23, names: &[] };
const DAY: Field = Field { name: "day of month", low: 1, high: 31, names: &[] };
const MONTH: Field = Field { name: "month", low: 1, high: 12, names: &MONTHS };
/// 7 is Sunday as well; it is folded into 0 at the end.
const WEEK_DAY: Field = Field { name: "day of week", low: 0, high: 7, names: &WEEK_DAYS };

/// Reads an expression.
pub(super) fn cron(text: &str) -> Result<Cron, Fault> {
    if text.len() > bounds::CRON_BYTES {
        return fault(0, format!("{} bytes is more than the bound of {}", text.len(), bounds::CRON_BYTES));
    }
    let given = text.trim();
    if given.starts_with('@') {
        let column = 1 + text.chars().take_while(|c| c.is_whitespace()).count();
        let Some((_, stands_for)) = NAMED.iter().find(|(name, _)| name.eq_ignore_ascii_case(given)) else {
            let names: Vec<_> = NAMED.iter().map(|(name, _)| *name).collect();
            return fault(column, format!("`{given}` is not one of {}", names.join(", ")));
        };
        return Ok(Cron { text: given.into(), ..fields(stands_for)? });
    }
    Ok(Cron { text: given.into(), ..fields(text)? })
}

fn fields(text: &str) -> Result<Cron, Fault> {
    let pieces = words(text);
    let (second, rest) = match pieces.len() {
        5 => (None, &pieces[..]),
        6 => (Some(pieces[0]), &pieces[1..]),
        n => {
            let column = pieces.get(6).map_or(0, |piece| piece.column);
            return fault(column, format!("{n} fields; an expression has 5, or 6 with seconds in front"));
        }
    };
    let seconds = second.map_or(Ok(1), |piece| set(piece, &SECOND))?;
    let (minutes, hours) = (set(rest[0], &MINUTE)?, set(rest[1], &HOUR)?);
    let (mut days, months) = (Days::default(), set(rest[3], &MONTH)?);
    month_days(rest[2], &mut days)?;
    week_days(rest[4], &mut days)?;
    let open = |piece: Piece<'_>| piece.text.starts_with(['*', '?']);
    (days.month_is_open, days.week_is_open) = (open(rest[2]), open(rest[4]));
    let interval = second.iter().chain(&rest[..2]).any(|piece| piece.text.contains('*'));
    let cron = Cron { text: text.into(), seconds, minutes, hours, months, days, interval };
    if never(&cron) {
        return fault(rest[2].column, "it never fires: no month that it names has such a day");
    }
    Ok(cron)
}

/// The words between white space, with their columns.
fn words(text: &str) -> Vec<Piece<'_>> {
    let (mut pieces, mut start) = (Vec::new(), None);
    for (column, (at, c)) in text.char_indices().enumerate() {
        match (c.is_whitespace(), start) {
            (false, None) => start = Some((at, column + 1)),
            (true, Some((from, column))) => {
                pieces.push(Piece { text: &text[from..at], column });
                start = None;
            }
            _ => {}
        }
    }
    if let Some((from, column)) = start {
        pieces.push(Piece { text: &text[from..], column });
    }
    pieces
}

/// The Gregorian calendar repeats after 400 years, days of the week included: looking through them decides it.
fn never(cron: &Cron) -> bool {
    const REPEATS: i16 = 400;
    let first = DateTime::constant(2000, 1, 1, 0, 0, 0, 0);
    let last = DateTime::constant(2000 + REPEATS, 1, 1, 0, 0, 0, 0);
    cron.next_local(first, last).is_none()
}

/// One field as a set: numbers, names, ranges, steps and lists of these.
fn set(piece: Piece<'_>, field: &Field) -> Result<u64, Fault> {
    piece.split(',').try_fold(0, |set, item| Ok(set | range(item, field)?))
}

/// `*`, `5`, `1-5`, `*/10`, `10-50/10`.
fn range(item: Piece<'_>, field: &Field) -> Result<u64, Fault> {
    let (base, step) = match item.split_once('/') {
        Some((base, step)) => (base, Some(step)),
        None => (item, None),
    };
    let day = matches!(field.name, "day of month" | "day of week");
    let (low, high) = if base.text == "*" || (base.text == "?" && day) {
        (field.low, field.last())
    } else if let Some((low, high)) = base.split_once('-') {
        let (from, mut to) = (number(low, field)?, number(high, field)?);
        if field.high == 7 && to == 0 && from > 0 {
            // Sunday ends a week as well: `SAT-SUN`.
            to = 7;
        }
        if from > to {
            let (whole, low, high) = (base.text, field.low, field.last());
            return fault(base.column, format!("`{whole}` runs backwards; write `{from}-{high},{low}-{to}`"));
        }
        (from, to)
    } else {
        let at = number(base, field)?;
        if step.is_some() {
            let (from, high) = (base.text, field.last());
            return fault(
                base.column,
                format!("a step needs a range, as in `{from}-{high}/{}`", step.map_or("2", |step| step.text)),
            );
        }
        (at, at)
    };
    let step = step.map_or(Ok(1), |step| steps(step, field))?;
    let bits = (low..=high).step_by(step).fold(0_u64, |set, n| set | 1 << n);
    Ok(if field.high == 7 { bits & 0x7f | bits >> 7 & 1 } else { bits })
}

fn steps(step: Piece<'_>, field: &Field) -> Result<usize, Fault> {
    let most = usize::try_from(field.last() - field.low).expect("fields run upwards");
    match step.text.parse::<usize>() {
        Ok(n) if (1..=most).contains(&n) && plain(step.text) => Ok(n),
        _ => fault(step.column, format!("`{}` is not a step of a {} (1 to {most})", step.text, field.name)),
    }
}

/// A number or a name of a field.
fn number(piece: Piece<'_>, field: &Field) -> Result<i8, Fault> {
    let Piece { text, column } = piece;
    if let Some(at) = field.names.iter().position(|name| name.eq_ignore_ascii_case(text)) {
        return Ok(field.low + i8::try_from(at).expect("at most twelve names"));
    }
    match text.parse::<i8>() {
        Ok(n) if (field.low..=field.high).contains(&n) && plain(text) => Ok(n),
        _ => {
            let (name, low, high) = (field.name, field.low, field.high);
            let names = match (field.names.first(), field.names.last()) {
                (Some(first), Some(last)) => format!(", or {first} to {last}"),
                _ => String::new(),
            };
            let text = if text.is_empty() { "nothing".to_owned() } else { format!("`{text}`") };
            fault(column, format!("{text} is not a {name} ({low} to {high}{names})"))
        }
    }
}

/// Digits alone: `parse` would take `+5`.
fn plain(text: &str) -> bool {
    text.bytes().all(|b| b.is_ascii_digit())
}

/// The day of month: what every field takes, and `L`, `L-3`, `15W`, `LW`.
fn month_days(piece: Piece<'_>, days: &mut Days) -> Result<(), Fault> {
    for item in piece.split(',') {
        let text = item.text.to_ascii_uppercase();
        if text == "L" {
            days.before_last |= 1;
        } else if text == "LW" {
            days.last_weekday = true;
        } else if let Some(back) = text.strip_prefix("L-") {
            match back.parse::<u32>() {
                Ok(back @ 1..=30) if plain(&text[2..]) => days.before_last |= 1 << back,
                _ => {
                    return fault(
                        item.column + 2,
                        format!("`{back}` is not a number of days before the last (1 to 30)"),
                    );
                }
            }
        } else if let Some(day) = text.strip_suffix('W') {
            days.nearest_weekday |= 1 << number(Piece { text: day, ..item }, &DAY)?;
        } else {
            days.of_month |= range(item, &DAY)?;
        }
    }
    Ok(())
}

/// The day of week: what every field takes, and `FRI#2`, `FRIL`.
fn week_days(piece: Piece<'_>, days: &mut Days) -> Result<(), Fault> {
    for item in piece.split(',') {
        if let Some((day, which)) = item.split_once('#') {
            let day = number(day, &WEEK_DAY)? % 7;
            match which.text.parse::<usize>() {
                Ok(n @ 1..=5) if plain(which.text) => days.nth_of_week[n - 1] |= 1 << day,
                _ => {
                    return fault(
                        which.column,
                        format!("`{}` is not which one of a month (1 to 5)", which.text),
                    );
                }
            }
        } else if let Some(day) = item.text.strip_suffix(['L', 'l']).filter(|day| !day.is_empty()) {
            days.last_of_week |= 1 << (number(Piece { text: day, ..item }, &WEEK_DAY)? % 7);
        } else {
            days.of_week |= range(item, &WEEK_DAY)?;
        }
    }
    Ok(())
}
