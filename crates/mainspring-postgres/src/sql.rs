//! Statements and their arguments.
//!
//! Statements are written for a schema called `mainspring`; the name of the real one is put in when a connection first
//! meets a statement. Every argument carries its type, so that a statement can also be sent without being prepared.

pub(crate) mod registry;
pub(crate) mod statement;

use mainspring_core::time::Timestamp;
use tokio_postgres::types::{ToSql, Type};

pub(crate) use self::statement::{Query, statement};

/// What stands for the schema in a statement.
const STANDARD: &str = "mainspring.";

/// A statement for the schema of a store.
pub(crate) fn in_schema(sql: &str, schema: &str) -> String {
    sql.replace(STANDARD, &format!("{}.", name(schema)))
}

/// The name of a schema as SQL writes it: in quotes, because it may be a word that means something there.
pub(crate) fn name(schema: &str) -> String {
    if STANDARD.strip_suffix('.') == Some(schema) { schema.to_owned() } else { format!("\"{schema}\"") }
}

/// One argument and its type.
pub(crate) type Arg<'a> = (&'a (dyn ToSql + Sync), Type);

/// A statement with its arguments.
pub(crate) struct Call<'a> {
    /// What its prepared form is known by.
    pub(crate) name: &'static str,
    pub(crate) sql: &'static str,
    pub(crate) args: Vec<Arg<'a>>,
}

impl<'a> Call<'a> {
    pub(crate) fn of<Q: Query>(args: Vec<Arg<'a>>) -> Self {
        Call { name: Q::STATEMENT.name, sql: Q::STATEMENT.sql, args }
    }

    /// Whether it calls this statement.
    pub(crate) fn is<Q: Query>(&self) -> bool {
        self.name == Q::STATEMENT.name
    }
}

/// A bound as an argument.
#[expect(clippy::cast_possible_wrap, reason = "bounds are far below")]
pub(crate) const fn bound(number: usize) -> i64 {
    number as i64
}

/// A point in time as the database has it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct At(pub(crate) Timestamp);

/// Microseconds from the Unix epoch to that of Postgres, the year 2000.
const EPOCH: i64 = 946_684_800_000_000;
/// The first and the last point in time that Postgres has, by its own epoch.
const RANGE: (i64, i64) = (-211_813_488_000_000_000, 9_223_371_331_199_999_999);

impl ToSql for At {
    fn to_sql(
        &self,
        _: &Type,
        out: &mut bytes::BytesMut,
    ) -> Result<tokio_postgres::types::IsNull, Box<dyn std::error::Error + Sync + Send>> {
        let micros = self.0.as_micros().saturating_sub(EPOCH).clamp(RANGE.0, RANGE.1);
        out.extend_from_slice(&micros.to_be_bytes());
        Ok(tokio_postgres::types::IsNull::No)
    }

    tokio_postgres::types::accepts!(TIMESTAMPTZ);
    tokio_postgres::types::to_sql_checked!();
}

impl<'a> tokio_postgres::types::FromSql<'a> for At {
    fn from_sql(_: &Type, raw: &'a [u8]) -> Result<Self, Box<dyn std::error::Error + Sync + Send>> {
        let micros = i64::from_be_bytes(raw.try_into()?);
        Ok(At(Timestamp::from_micros(micros.saturating_add(EPOCH))))
    }

    tokio_postgres::types::accepts!(TIMESTAMPTZ);
}

/// What time it is, as an argument: nothing where the database tells it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Present(pub(crate) Option<At>);

impl ToSql for Present {
    fn to_sql(
        &self,
        kind: &Type,
        out: &mut bytes::BytesMut,
    ) -> Result<tokio_postgres::types::IsNull, Box<dyn std::error::Error + Sync + Send>> {
        self.0.to_sql(kind, out)
    }

    tokio_postgres::types::accepts!(TIMESTAMPTZ);
    tokio_postgres::types::to_sql_checked!();
}
