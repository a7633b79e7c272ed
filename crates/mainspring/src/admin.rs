//! Looks at jobs, queues and nodes, and changes them: the operators' side.
//!
//! [`Engine::jobs`](crate::Engine::jobs), [`Engine::queues`](crate::Engine::queues) and
//! [`Engine::nodes`](crate::Engine::nodes) lead here.

pub use mainspring_core::audit::{AuditEntry, Subject};
pub use mainspring_core::id::{NodeId, NodeNo};
pub use mainspring_core::job::{ErrorEntry, NodeActivity, Progress, Record, Summary, Unfit, Verb, Why};
pub use mainspring_core::store::{
    Abilities, ActivityReport, Counts, Description, ErrorText, Filter, Finding, LastClaim, Listing, Mark,
    Node, NodeState, PagePosition, Queue, QueueActivity, QueueChange, Retention, Settings,
};

pub use crate::diagnose::{CheckProgress, Diagnose, Diagnosis};
pub use crate::fork::{Fork, Forked};
pub use crate::jobs::{Change, ChangeReport, DropSignals, Jobs, List, LostChild, Target};
pub use crate::kinds::Kinds;
pub use crate::queues::{ChangeQueue, Queues};
pub use crate::rewind::{Retried, RetryFrom};
