//! Times at which a rule does not fire: days, and whatever a cron expression names.

use std::fmt;
use std::str::FromStr;

use jiff::ToSpan as _;
use jiff::civil::{Date, DateTime};
use serde::{Deserialize, Serialize};

use super::Cron;
use crate::{Error, Result};

/// Local times that are left out.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Except(Kind);

#[derive(Debug, Clone, PartialEq, Eq)]
enum Kind {
    /// Every time that the expression names; all seconds of a minute, if it has five fields.
    Cron(Cron),
    /// Whole days, both included.
    Days(Date, Date),
}

impl Except {
    /// If it leaves this local time out: a later one, up to which it leaves out all.
    pub(super) fn until(&self, local: DateTime) -> Option<DateTime> {
        match &self.0 {
            Kind::Cron(cron) => cron.named_until(local),
            Kind::Days(first, last) => {
                let out = (*first..=*last).contains(&local.date());
                out.then(|| last.at(0, 0, 0, 0).checked_add(1.day()).ok()).flatten()
            }
        }
    }

    /// What it says, in words.
    pub fn describe(&self) -> String {
        match &self.0 {
            Kind::Cron(cron) => cron.describe(),
            Kind::Days(..) => format!("on {self}"),
        }
    }
}

impl fmt::Display for Except {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0 {
            Kind::Cron(cron) => cron.fmt(f),
            Kind::Days(first, last) if first == last => write!(f, "{first}"),
            Kind::Days(first, last) => write!(f, "{first}..{last}"),
        }
    }
}

impl FromStr for Except {
    type Err = Error;

    /// `2026-12-25`, `2026-12-24..2027-01-01`, or a cron expression such as `* * 25 12 *` (all of each 25 December).
    fn from_str(text: &str) -> Result<Self> {
        let text = text.trim();
        let (first, last) = text.split_once("..").unwrap_or((text, text));
        match (first.parse::<Date>(), last.parse::<Date>()) {
            (Ok(first), Ok(last))
                if text.starts_with(|c: char| c.is_ascii_digit())
                    && text.contains('-')
                    && !text.contains(' ') =>
            {
                if last < first {
                    let why = format!("`{text}` ends before it begins");
                    return Err(Error::Invalid { what: "exception", why });
                }
                Ok(Except(Kind::Days(first, last)))
            }
            _ => Ok(Except(Kind::Cron(text.parse::<Cron>()?.of_whole_minutes()))),
        }
    }
}

impl TryFrom<String> for Except {
    type Error = Error;

    fn try_from(text: String) -> Result<Self> {
        text.parse()
    }
}

impl From<Except> for String {
    fn from(except: Except) -> String {
        except.to_string()
    }
}
