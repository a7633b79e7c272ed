//! Names: of queues and kinds, tags and labels, steps and signals.
//!
//! Queue and kind names are restricted to `[A-Za-z0-9._:-]`, so that they can stand in a URL, a metric, a shell
//! command or a log line without quoting. Tags and labels are any text without control characters.

use std::borrow::Borrow;
use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::bounds;
use crate::{Error, Result};

macro_rules! name {
    ($(#[$doc:meta])* $name:ident, $what:literal, $check:path) => {
        $(#[$doc])*
        #[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
        #[serde(try_from = "String", into = "String")]
        pub struct $name(Arc<str>);

        impl $name {
            /// Checks and takes a name.
            ///
            /// # Errors
            /// [`Error::Invalid`] if it is empty, too long, or has a character that is not allowed.
            pub fn new(text: impl AsRef<str>) -> Result<Self> {
                let text = text.as_ref();
                $check($what, text)?;
                Ok($name(text.into()))
            }

            /// The name as text.
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.pad(&self.0)
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                fmt::Debug::fmt(&*self.0, f)
            }
        }

        impl Borrow<str> for $name {
            fn borrow(&self) -> &str {
                &self.0
            }
        }

        impl AsRef<str> for $name {
            fn as_ref(&self) -> &str {
                &self.0
            }
        }

        impl FromStr for $name {
            type Err = Error;

            fn from_str(text: &str) -> Result<Self> {
                $name::new(text)
            }
        }

        impl TryFrom<String> for $name {
            type Error = Error;

            fn try_from(text: String) -> Result<Self> {
                $name::new(text)
            }
        }

        impl From<$name> for String {
            fn from(name: $name) -> String {
                name.0.as_ref().into()
            }
        }
    };
}

name!(
    /// The name of a queue.
    QueueName,
    "queue name",
    plain
);
name!(
    /// The name of a kind of job.
    Kind,
    "kind",
    plain
);
name!(
    /// The name of a limit.
    LimitName,
    "limit name",
    plain
);
name!(
    /// A word that a job carries so that people and programs can find it.
    Tag,
    "tag",
    text
);
name!(
    /// A capability that a node has and a job may require.
    Label,
    "label",
    text
);

name!(
    /// The name of a schedule.
    ScheduleName,
    "schedule name",
    schedule
);

/// What the label of a build begins with.
const BUILD: &str = "build=";

impl Label {
    /// The label that nodes of a build have, and that jobs which are pinned to it require.
    ///
    /// # Errors
    /// [`Error::Invalid`] if the build's name is empty or makes no label.
    pub fn of_build(build: &str) -> Result<Self> {
        if build.is_empty() {
            return Err(Error::Invalid { what: "build", why: "empty".into() });
        }
        Label::new(format!("{BUILD}{build}"))
    }

    /// The build whose label it is.
    pub fn build(&self) -> Option<&str> {
        self.as_str().strip_prefix(BUILD)
    }
}

name!(
    /// The name that code gives to one of its durable operations, or to a scope of several.
    StepName,
    "step name",
    word
);
name!(
    /// The name of a signal.
    SignalName,
    "signal name",
    word
);
name!(
    /// The key of a recorded operation within its job: the names of its scopes and its own, with what tells repeats apart.
    Key,
    "step key",
    path
);

/// Checks a queue or kind name: 1–128 bytes of `[A-Za-z0-9._:-]`.
fn plain(what: &'static str, name: &str) -> Result<()> {
    length(what, name, bounds::NAME_BYTES)?;
    let bad = name.chars().find(|c| !(c.is_ascii_alphanumeric() || "._:-".contains(*c)));
    match bad {
        None => Ok(()),
        Some(c) => Err(Error::Invalid {
            what,
            why: format!("{c:?} is not allowed; use letters, digits, `.`, `_`, `:` and `-`"),
        }),
    }
}

/// Checks the name of a schedule: 1–100 bytes of what names of queues are made of. A tag is made of it.
fn schedule(what: &'static str, name: &str) -> Result<()> {
    length(what, name, bounds::SCHEDULE_NAME_BYTES)?;
    plain(what, name)
}

/// Checks a tag or label: 1–128 bytes without control characters.
fn text(what: &'static str, name: &str) -> Result<()> {
    length(what, name, bounds::TAG_BYTES)?;
    match name.chars().find(|c| c.is_control()) {
        None => Ok(()),
        Some(c) => Err(Error::Invalid { what, why: format!("control character {c:?} is not allowed") }),
    }
}

/// Checks the name of a step or a signal: 1–128 bytes without control characters, `/` or `#`, which make up keys.
fn word(what: &'static str, name: &str) -> Result<()> {
    length(what, name, bounds::NAME_BYTES)?;
    match name.chars().find(|c| c.is_control() || matches!(c, '/' | '#')) {
        None => Ok(()),
        Some(c) => Err(Error::Invalid { what, why: format!("{c:?} is not allowed") }),
    }
}

/// Checks the key of a recorded operation: 1–1,024 bytes without control characters.
fn path(what: &'static str, key: &str) -> Result<()> {
    length(what, key, bounds::STEP_KEY_BYTES)?;
    match key.chars().find(|c| c.is_control()) {
        None => Ok(()),
        Some(c) => Err(Error::Invalid { what, why: format!("control character {c:?} is not allowed") }),
    }
}

fn length(what: &'static str, text: &str, limit: usize) -> Result<()> {
    if text.is_empty() {
        return Err(Error::Invalid { what, why: "empty".into() });
    }
    if text.len() > limit {
        return Err(Error::TooLarge { what, size: text.len(), limit });
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn queue_names_are_bounded_at_128_bytes() {
        assert!(QueueName::new("q".repeat(128)).is_ok());
        assert!(matches!(
            QueueName::new("q".repeat(129)),
            Err(Error::TooLarge { size: 129, limit: 128, .. })
        ));
        assert!(matches!(QueueName::new(""), Err(Error::Invalid { .. })));
    }

    #[test]
    fn schedule_names_are_bounded_at_100_bytes() {
        assert!(ScheduleName::new("s".repeat(100)).is_ok());
        assert!(matches!(ScheduleName::new("s".repeat(101)), Err(Error::TooLarge { limit: 100, .. })));
        assert!(ScheduleName::new("a b").is_err());
    }

    #[test]
    fn hostile_queue_names_are_refused() {
        for bad in ["'; drop table", "a b", "a\0b", "ä", "a/b", "a\"b", "a;b", "a\nb"] {
            assert!(matches!(QueueName::new(bad), Err(Error::Invalid { .. })), "{bad:?}");
        }
        assert!(QueueName::new("mail.v2:eu-west_1").is_ok());
    }

    #[test]
    fn step_names_take_any_text_that_cannot_be_mistaken_for_a_key() {
        assert!(StepName::new("charge the card [größe]").is_ok());
        assert!(StepName::new("x".repeat(128)).is_ok());
        assert!(matches!(StepName::new("x".repeat(129)), Err(Error::TooLarge { .. })));
        for bad in ["", "a/b", "a#b", "a\tb", "a\0b"] {
            assert!(matches!(StepName::new(bad), Err(Error::Invalid { .. })), "{bad:?}");
            assert!(matches!(SignalName::new(bad), Err(Error::Invalid { .. })), "{bad:?}");
        }
        assert!(Key::new("left/charge#=7#2").is_ok());
        assert!(Key::new("k".repeat(1_024)).is_ok());
        assert!(matches!(Key::new("k".repeat(1_025)), Err(Error::TooLarge { .. })));
        assert!(Key::new("a\0b").is_err());
    }

    #[test]
    fn the_label_of_a_build_is_told_from_others() {
        let pin = Label::of_build("1.2").expect("a label");
        assert_eq!((pin.as_str(), pin.build()), ("build=1.2", Some("1.2")));
        assert_eq!(Label::new("gpu").expect("a label").build(), None);
        assert!(matches!(Label::of_build(""), Err(Error::Invalid { .. })));
        assert!(Label::of_build("a\0").is_err());
    }

    #[test]
    fn tags_take_any_text_without_control_characters() {
        assert!(Tag::new("'; drop table jobs; --").is_ok());
        assert!(Tag::new("größe").is_ok());
        assert!(Tag::new("a\0b").is_err());
        assert!(Tag::new("x".repeat(128)).is_ok());
        assert!(Tag::new("x".repeat(129)).is_err());
    }
}
