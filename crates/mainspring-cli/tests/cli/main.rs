//! The binary, run as a user runs it: real processes, real files.

mod cluster;
mod commands;
mod damage;
mod dev;
mod documents;
mod everyday;
mod exec;
mod limits;
mod pools;
mod postgres;
mod refusals;
mod schedules;
mod support;
mod terminal;
mod work;
mod workflows;
