//! Mainspring on PostgreSQL.
