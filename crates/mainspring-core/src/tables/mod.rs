//! Tables: what stores that keep jobs in the tables of a database have in common.
//!
//! A database's own crate has its statements and its connections. What it reads, what it makes of that and what it
//! writes as text is the same for all of them, and stands here.

pub mod listing;
pub mod names;
pub mod options;
