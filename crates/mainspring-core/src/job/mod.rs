//! The job: one durable unit of work.
//!
//! [`New`] is what a caller enqueues, [`Record`] what a store knows of it later. [`Status`] and [`transition`] are
//! the state machine; [`settle`] turns what a handler did into what a store writes; [`why`](fn@why) explains a job
//! that is not running.

mod id_conflict;
mod new;
mod outcome;
mod record;
mod state;
mod transition;
mod unique;
mod why;

pub use id_conflict::Differs;
pub use new::{New, Options, Origin, PayloadBounds, Priority, When};
pub use outcome::{Ended, Fault, FaultKind, Outcome, Standing, cut, settle};
pub use record::{ErrorEntry, Progress, Record, Summary, Unreadable};
pub use state::{Reason, State, Status};
pub use transition::{Illegal, Input, Verb, transition};
pub use unique::{OnConflict, Unique, Until};
pub use why::{NodeActivity, Unfit, Why, stranded, why, why_summary};
