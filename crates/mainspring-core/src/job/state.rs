//! The nine states and the typed reasons that go with some of them.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::Error;

macro_rules! coded {
    ($(#[$doc:meta])* $name:ident, $what:literal, { $($(#[$vdoc:meta])* $variant:ident = $code:literal $text:literal),+ $(,)? }) => {
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
        #[serde(rename_all = "snake_case")]
        #[repr(u8)]
        pub enum $name { $($(#[$vdoc])* $variant = $code),+ }

        impl $name {
            /// All of them, in the order of their codes.
            pub const ALL: &'static [$name] = &[$($name::$variant),+];

            /// The number that stands for it in a store. Never changes.
            pub const fn code(self) -> u8 {
                self as u8
            }

            /// The one that a number stands for.
            pub fn from_code(code: u8) -> Option<Self> {
                Self::ALL.iter().copied().find(|one| one.code() == code)
            }

            /// The word for it, in the singular form that people and programs see.
            pub const fn as_str(self) -> &'static str {
                match self { $($name::$variant => $text),+ }
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.pad(self.as_str())
            }
        }

        impl FromStr for $name {
            type Err = Error;

            fn from_str(text: &str) -> Result<Self, Error> {
                Self::ALL.iter().copied().find(|one| one.as_str() == text).ok_or_else(|| Error::Invalid {
                    what: $what,
                    why: format!("`{text}` is not one of {}", [$($text),+].join(", ")),
                })
            }
        }
    };
}

coded!(
    /// The state of a job.
    State, "state", {
        /// Waits for other jobs.
        Blocked = 0 "blocked",
        /// Waits for a time.
        Scheduled = 1 "scheduled",
        /// Waits for a node.
        Ready = 2 "ready",
        /// Claimed by a node.
        Running = 3 "running",
        /// Waits for something outside; the reason says for what. Holds no slot.
        Suspended = 4 "suspended",
        /// Ended well.
        Succeeded = 5 "succeeded",
        /// Ended badly; the reason says how.
        Failed = 6 "failed",
        /// Ended because somebody said so.
        Cancelled = 7 "cancelled",
        /// Never ran, because what it waited for can never be.
        Skipped = 8 "skipped",
    }
);

coded!(
    /// The reason of a job's state, if the state has one.
    Reason, "reason", {
        /// Suspended until a time.
        Timer = 1 "timer",
        /// Suspended until a signal arrives.
        Signal = 2 "signal",
        /// Suspended until a child ends.
        Child = 3 "child",
        /// Suspended until a person approves.
        Approval = 4 "approval",
        /// Suspended until a budget allows more.
        Budget = 5 "budget",
        /// Suspended because its recorded steps do not fit its code.
        Drift = 6 "drift",
        /// Suspended because the nodes that ran it kept dying.
        Quarantine = 7 "quarantine",
        /// Suspended by an operator.
        Hold = 8 "hold",
        /// Suspended because what the store keeps of it cannot be read.
        Unreadable = 9 "unreadable",
        /// Failed after its last attempt.
        Exhausted = 16 "exhausted",
        /// Failed because its handler said that another attempt would not help.
        Discarded = 17 "discarded",
        /// Failed because its deadline passed.
        Expired = 18 "expired",
        /// Failed or cancelled by an operator.
        Operator = 19 "operator",
        /// Cancelled by its own handler.
        Handler = 20 "handler",
        /// Cancelled because another job took its unique key.
        Replaced = 21 "replaced",
        /// Cancelled because its parent ended, or goes on without it.
        Parent = 22 "parent",
    }
);

impl State {
    /// The first of those in which a job has ended; all that follow are such.
    pub const FIRST_ENDED: State = State::Succeeded;
    /// The one with the highest code.
    pub const LAST: State = State::Skipped;

    /// Whether the job has ended. A terminal job changes only by an operator's verb.
    pub const fn is_terminal(self) -> bool {
        matches!(self, State::Succeeded | State::Failed | State::Cancelled | State::Skipped)
    }
}

impl Reason {
    /// The last of those that [await](Reason::awaits); all before it do.
    pub const LAST_AWAITING: Reason = Reason::Budget;
    /// The last reason of a suspension; all before it are such.
    pub const LAST_SUSPENDED: Reason = Reason::Unreadable;
    /// The first reason of an end; all that follow are such.
    pub const FIRST_ENDED: Reason = Reason::Exhausted;
    /// The one with the highest code.
    pub const LAST: Reason = Reason::Parent;

    /// Whether a suspension for this reason ends by itself, when what the job waits for happens.
    pub const fn awaits(self) -> bool {
        matches!(self, Reason::Timer | Reason::Signal | Reason::Child | Reason::Approval | Reason::Budget)
    }

    /// Whether this reason can go with a state.
    pub const fn fits(self, state: State) -> bool {
        match state {
            State::Suspended => self.code() <= Reason::LAST_SUSPENDED.code(),
            State::Failed => {
                matches!(self, Reason::Exhausted | Reason::Discarded | Reason::Expired | Reason::Operator)
            }
            State::Cancelled => {
                matches!(self, Reason::Operator | Reason::Handler | Reason::Replaced | Reason::Parent)
            }
            State::Blocked
            | State::Scheduled
            | State::Ready
            | State::Running
            | State::Succeeded
            | State::Skipped => false,
        }
    }
}

/// A state with its reason. Suspended, failed and cancelled jobs always have one, the others never.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Status {
    /// The state.
    pub state: State,
    /// The reason, if the state has one.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub reason: Option<Reason>,
}

impl Status {
    /// A state that has no reason.
    pub const fn plain(state: State) -> Self {
        Status { state, reason: None }
    }

    /// A state with its reason.
    pub const fn because(state: State, reason: Reason) -> Self {
        Status { state, reason: Some(reason) }
    }
}

impl fmt::Display for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.reason {
            None => self.state.fmt(f),
            Some(reason) => f.pad(&format!("{} ({reason})", self.state)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_and_words_round_trip() {
        for &state in State::ALL {
            assert_eq!(State::from_code(state.code()), Some(state));
            assert_eq!(state.as_str().parse::<State>().expect("a state"), state);
        }
        for &reason in Reason::ALL {
            assert_eq!(Reason::from_code(reason.code()), Some(reason));
            assert_eq!(reason.as_str().parse::<Reason>().expect("a reason"), reason);
        }
        assert_eq!(State::from_code(9), None);
        assert!("done".parse::<State>().is_err());
    }

    /// Statements compare reasons by these ranges. From 9 to 15 there is room for suspensions, from 23 on for ends.
    #[test]
    fn reasons_keep_to_their_ranges() {
        for &reason in Reason::ALL {
            let range = match reason {
                _ if reason.awaits() => 1..=5,
                _ if reason.fits(State::Suspended) => 6..=15,
                _ => 16..=127,
            };
            assert!(range.contains(&reason.code()), "{reason} is {}", reason.code());
        }
    }

    #[test]
    fn every_reason_fits_some_state() {
        for &reason in Reason::ALL {
            assert!(State::ALL.iter().any(|&state| reason.fits(state)), "{reason}");
        }
    }
}
