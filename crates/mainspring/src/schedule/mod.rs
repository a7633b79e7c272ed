//! Schedules: rules that enqueue jobs in time.
//!
//! ```
//! use mainspring::schedule::{NewSchedule, Overlap};
//! use mainspring::{Context, Engine, Job};
//! use serde::{Deserialize, Serialize};
//!
//! #[derive(Serialize, Deserialize, Job)]
//! #[job(kind = "report")]
//! struct Report { day: String }
//!
//! async fn report(_ctx: Context, job: Report) -> mainspring::HandlerResult<()> {
//!     println!("the report of {}", job.day);
//!     Ok(())
//! }
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let engine = Engine::open("memory:").await?;
//! let nightly = NewSchedule::of("nightly", &Report { day: "{{fire}}".into() })
//!     .times("30 2 * * *")
//!     .zone("Europe/Berlin")
//!     .overlap(Overlap::Skip);
//! let node = engine.node().handle(report).schedule(nightly).queue("default", 1).start().await?;
//!
//! let next = engine.schedules().next("nightly", 3).await?;
//! assert_eq!(next.len(), 3);
//! engine.schedules().by("ann").pause("nightly", "the database moves").await?;
//! # node.shutdown().await;
//! # Ok(())
//! # }
//! ```
//!
//! Any node fires: no leader is needed. Each fire enqueues one job, over all nodes, whatever dies meanwhile.

mod derived;
mod new;
pub(crate) mod seed;
mod verbs;

pub use mainspring_core::audit::AuditEntry;
pub use mainspring_core::name::ScheduleName;
pub use mainspring_core::schedule::{
    Cause, Cron, Definition, Due, Except, Fault, HEADER_FIRE, HEADER_SCHEDULE, HORIZON_YEARS, Hold, Missed,
    Note, Overlap, Pause, Rule, Schedule, ScheduleState, ScheduleWhy, Seed, Template, Times, Trouble, Zone,
    due, tag,
};

#[doc(hidden)]
pub use derived::{HasDefault, scheduled_default};
pub use new::NewSchedule;
pub use verbs::Schedules;
