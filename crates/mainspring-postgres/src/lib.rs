//! Mainspring on PostgreSQL.

mod address;
mod tls;

pub use self::address::Address;
