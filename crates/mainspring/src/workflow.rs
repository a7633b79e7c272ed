//! Durable operations: the types behind the methods of [`Context`](crate::Context).

pub use mainspring_core::journal::{
    ChildSummary, EntryKind, Inbox, Message, MessageBody, OnClose, Subject, Timeline, Value, Wait, Written,
};
pub use mainspring_core::store::{Commit, Transactions};

pub use crate::durable::branch::Branch;
pub use crate::durable::child::{Child, ChildResult, Spawn};
pub use crate::durable::iterate::Iterate;
pub use crate::durable::join_all::JoinAll;
pub use crate::durable::map::{Map, MapSome, Mapped};
pub use crate::durable::race::Race;
pub use crate::durable::recorded_value::RecordedValue;
pub use crate::durable::signal::{JobRef, JobType, SendSignal, SignalReceipt, SignalRef};
#[cfg(feature = "sqlite")]
pub use crate::durable::sqlite_transaction::SqliteTransaction;
pub use crate::durable::step::Step;
pub use crate::durable::token::MintToken;
pub use crate::durable::wait::{Received, Signal, Signals, Sleep, TimedSignal};
