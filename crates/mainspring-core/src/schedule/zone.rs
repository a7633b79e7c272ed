//! Time zones by their IANA names, from a database that is compiled in.
//!
//! All nodes must agree on when a schedule fires, and a simulation must repeat: so the zones of the machine are never asked.

use std::fmt;
use std::str::FromStr;
use std::sync::OnceLock;

use jiff::tz::{TimeZone, TimeZoneDatabase};
use serde::{Deserialize, Serialize};

use crate::{Error, Result};

/// Names that a refusal suggests, at most.
const SUGGESTIONS: usize = 3;

/// A time zone, such as `Europe/Berlin`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Zone(TimeZone);

fn database() -> &'static TimeZoneDatabase {
    static DATABASE: OnceLock<TimeZoneDatabase> = OnceLock::new();
    DATABASE.get_or_init(TimeZoneDatabase::bundled)
}

impl Zone {
    /// Finds a zone by its name, in any case.
    ///
    /// # Errors
    /// [`Error::Invalid`] with names that are close to it.
    pub fn new(name: &str) -> Result<Self> {
        if let Ok(zone) = database().get(name)
            && zone.iana_name().is_some()
        {
            return Ok(Zone(zone));
        }
        let near = near(name);
        let hint = match near.as_slice() {
            [] => "use a name of the IANA database, such as `Europe/Berlin`".to_owned(),
            names => format!("did you mean {}?", names.join(" or ")),
        };
        Err(Error::Invalid { what: "time zone", why: format!("unknown zone `{}`; {hint}", cut(name)) })
    }

    /// The name, as the database has it.
    pub fn name(&self) -> &str {
        self.0.iana_name().unwrap_or("UTC")
    }

    pub(super) fn inner(&self) -> &TimeZone {
        &self.0
    }
}

/// So much of a name as an error shows.
fn cut(name: &str) -> String {
    name.chars().take(64).collect()
}

/// Names of the database that are close to one: those with its last part as theirs, then those that differ in few letters.
fn near(name: &str) -> Vec<String> {
    let wanted = cut(name).to_ascii_lowercase().replace(' ', "_");
    let city = |name: &str| name.rsplit('/').next().unwrap_or(name).to_owned();
    let mut found: Vec<(usize, String)> = database()
        .available()
        .filter_map(|known| {
            let lower = known.as_str().to_ascii_lowercase();
            let distance = distance(&lower, &wanted).min(1 + distance(&city(&lower), &city(&wanted)));
            // A third of the letters may be wrong.
            (distance <= 1 + wanted.len() / 3).then(|| (distance, format!("`{known}`")))
        })
        .collect();
    found.sort();
    // One letter more than the nearest: what is further off is a guess beside an answer.
    let nearest = found.first().map_or(0, |(distance, _)| *distance);
    found.retain(|(distance, _)| *distance <= nearest + 1);
    found.truncate(SUGGESTIONS);
    found.into_iter().map(|(_, name)| name).collect()
}

/// How many letters differ, are missing or too many.
fn distance(left: &str, right: &str) -> usize {
    let right: Vec<char> = right.chars().collect();
    let mut row: Vec<usize> = (0..=right.len()).collect();
    for (i, l) in left.chars().enumerate() {
        let mut diagonal = std::mem::replace(&mut row[0], i + 1);
        for (j, r) in right.iter().enumerate() {
            let replaced = diagonal + usize::from(l != *r);
            diagonal = row[j + 1];
            row[j + 1] = replaced.min(row[j] + 1).min(diagonal + 1);
        }
    }
    row[right.len()]
}

impl Default for Zone {
    /// UTC.
    fn default() -> Self {
        Zone(TimeZone::UTC)
    }
}

impl fmt::Display for Zone {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl FromStr for Zone {
    type Err = Error;

    fn from_str(name: &str) -> Result<Self> {
        Zone::new(name)
    }
}

impl TryFrom<String> for Zone {
    type Error = Error;

    fn try_from(name: String) -> Result<Self> {
        Zone::new(&name)
    }
}

impl From<Zone> for String {
    fn from(zone: Zone) -> String {
        zone.name().to_owned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn zones_are_found_in_any_case_and_keep_the_name_of_the_database() {
        assert_eq!(Zone::new("europe/BERLIN").expect("a zone").name(), "Europe/Berlin");
        assert_eq!(Zone::new("UTC").expect("a zone"), Zone::default());
        assert_eq!(Zone::default().name(), "UTC");
    }

    #[test]
    fn an_unknown_zone_is_refused_with_near_names() {
        let why = |name: &str| Zone::new(name).expect_err("no zone").to_string();
        let told = "invalid time zone: unknown zone `Europe/Berln`; did you mean `Europe/Berlin`?";
        assert_eq!(why("Europe/Berln"), told);
        assert!(why("Berlin").contains("`Europe/Berlin`"), "{}", why("Berlin"));
        assert!(why("America/New York").contains("`America/New_York`"), "{}", why("America/New York"));
        assert!(why("+02:00").contains("such as `Europe/Berlin`"), "{}", why("+02:00"));
        assert!(why(&"x".repeat(1_000)).len() < 200);
    }
}
