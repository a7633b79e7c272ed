//! Statements: each has a name, a text, and types for what goes in and what comes out.
//!
//! [`statement`] declares one. It becomes a type whose fields are the arguments, and whose `call` is sent; what
//! comes back is read as rows with named fields. The name stands in front of the text as a comment, so the server's log and
//! `pg_stat_statements` show it, and prepared statements are known by it. Each statement says which indexes serve it, or why
//! none does.
//!
//! # Invariants
//! - Every statement is in the [`registry`](super::registry), and no two have one name.
//! - The order of fields is the order of arguments and of columns.

use tokio_postgres::Row;
use tokio_postgres::types::{FromSql, ToSql, Type};
use uuid::Uuid;

use super::{At, Present};
use crate::error::Result;

/// A statement as the database gets it, but for the name of the schema.
#[derive(Debug)]
pub(crate) struct Statement {
    pub(crate) name: &'static str,
    /// With the name in front.
    pub(crate) sql: &'static str,
    /// The types of the arguments.
    pub(crate) types: &'static [Type],
    pub(crate) columns: &'static [Column],
    pub(crate) plan: Plan,
}

/// What serves a statement.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Plan {
    /// These indexes.
    Indexes(&'static [&'static str]),
    /// None, for this reason.
    None(&'static str),
}

/// A column that a statement returns.
#[derive(Clone, Copy)]
pub(crate) struct Column {
    pub(crate) name: &'static str,
    /// Whether it is read from this type.
    pub(crate) accepts: fn(&Type) -> bool,
}

impl std::fmt::Debug for Column {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name)
    }
}

/// Arguments of one statement.
pub(crate) trait Query {
    /// What comes back.
    type Row: FromRow;

    const STATEMENT: &'static Statement;

    /// The rows of its answer.
    fn rows(rows: &[Row]) -> Result<Vec<Self::Row>> {
        rows.iter().map(Self::Row::read).collect()
    }

    /// The first row of its answer.
    fn first(rows: &[Row]) -> Result<Option<Self::Row>> {
        rows.first().map(Self::Row::read).transpose()
    }
}

/// A row with named fields.
pub(crate) trait FromRow: Sized {
    const COLUMNS: &'static [Column];

    fn read(row: &Row) -> Result<Self>;
}

/// The row of a statement whose rows nobody reads.
pub(crate) struct Nothing;

impl FromRow for Nothing {
    const COLUMNS: &'static [Column] = &[];

    fn read(_: &Row) -> Result<Self> {
        Ok(Nothing)
    }
}

/// A column's check, from the type that it is read as.
pub(crate) fn accepts<T: for<'a> FromSql<'a>>(column: &Type) -> bool {
    T::accepts(column)
}

/// What can be an argument: its type in the database.
pub(crate) trait Argument: ToSql + Sync {
    const TYPE: Type;
}

/// What arrays of can be an argument.
pub(crate) trait Element: ToSql + Sync {
    const ARRAY: Type;
}

macro_rules! arguments {
    ($($rust:ty: $type:ident $array:ident,)+) => {
        $(
            impl Argument for $rust {
                const TYPE: Type = Type::$type;
            }
            impl Element for $rust {
                const ARRAY: Type = Type::$array;
            }
        )+
    };
}

arguments! {
    bool: BOOL BOOL_ARRAY,
    i16: INT2 INT2_ARRAY,
    i32: INT4 INT4_ARRAY,
    i64: INT8 INT8_ARRAY,
    &str: TEXT TEXT_ARRAY,
    String: TEXT TEXT_ARRAY,
    &[u8]: BYTEA BYTEA_ARRAY,
    Uuid: UUID UUID_ARRAY,
    At: TIMESTAMPTZ TIMESTAMPTZ_ARRAY,
}

impl Argument for Present {
    const TYPE: Type = Type::TIMESTAMPTZ;
}

impl<T: Argument> Argument for Option<T> {
    const TYPE: Type = T::TYPE;
}

impl<T: Element> Element for Option<T> {
    const ARRAY: Type = T::ARRAY;
}

impl<T: Element> Argument for Vec<T> {
    const TYPE: Type = T::ARRAY;
}

/// Declares a statement: a type for its arguments, and one for its rows unless there is one already or nobody reads them.
///
/// ```text
/// statement! {
///     /// Primary key. Why two nodes may run it at once, and what it locks.
///     pub(crate) Find<'a> = "signal.find", by ["jobs_id_key"],
///     (id: Uuid) -> Found { no: i64 }
///     "SELECT no FROM mainspring.jobs WHERE id = $1"
/// }
/// ```
macro_rules! statement {
    // Without arguments.
    (
        $(#[$doc:meta])* $vis:vis $Name:ident = $name:literal, $how:ident $served:tt,
        () $(-> $Row:ident $({ $($row:tt)* })?)? ; $sql:expr
    ) => {
        $($(
            $crate::sql::statement::row! { $vis $Row { $($row)* } }
        )?)?
        $(#[$doc])*
        $vis struct $Name;
        impl $crate::sql::statement::Query for $Name {
            type Row = $crate::sql::statement::row_type!($($Row)?);
            const STATEMENT: &'static $crate::sql::statement::Statement = &$crate::sql::statement::Statement {
                name: $name,
                sql: ::mainspring_core::named!(concat!("/* ", $name, " */ ", $sql)),
                types: &[],
                columns: <$crate::sql::statement::row_type!($($Row)?) as $crate::sql::statement::FromRow>::COLUMNS,
                plan: $crate::sql::statement::plan!($how $served),
            };
        }
        impl $Name {
            /// The statement with its arguments.
            $vis fn call(&self) -> $crate::sql::Call<'static> {
                $crate::sql::Call::of::<$Name>(Vec::new())
            }
        }
    };
    (
        $(#[$doc:meta])* $vis:vis $Name:ident<$life:lifetime> = $name:literal, $how:ident $served:tt,
        ($($arg:ident: $type:ty),+ $(,)?) $(-> $Row:ident $({ $($row:tt)* })?)? ; $sql:expr
    ) => {
        $($(
            $crate::sql::statement::row! { $vis $Row { $($row)* } }
        )?)?
        $(#[$doc])*
        $vis struct $Name<$life> {
            $($vis $arg: &$life $type),+
        }
        impl<$life> $crate::sql::statement::Query for $Name<$life> {
            type Row = $crate::sql::statement::row_type!($($Row)?);
            const STATEMENT: &'static $crate::sql::statement::Statement = &$crate::sql::statement::Statement {
                name: $name,
                sql: ::mainspring_core::named!(concat!("/* ", $name, " */ ", $sql)),
                types: &[$(<$type as $crate::sql::statement::Argument>::TYPE),+],
                columns: <$crate::sql::statement::row_type!($($Row)?) as $crate::sql::statement::FromRow>::COLUMNS,
                plan: $crate::sql::statement::plan!($how $served),
            };
        }
        impl<$life> $Name<$life> {
            /// The statement with its arguments.
            $vis fn call(&self) -> $crate::sql::Call<$life> {
                $crate::sql::Call::of::<$Name<'_>>(vec![$((
                    self.$arg as &(dyn ::tokio_postgres::types::ToSql + Sync),
                    <$type as $crate::sql::statement::Argument>::TYPE,
                )),+])
            }
        }
    };
}
pub(crate) use statement;

/// The columns of a row and of what stands before it.
pub(crate) const fn joined<const COUNT: usize>(before: &[Column], own: &[Column]) -> [Column; COUNT] {
    const fn never(_: &Type) -> bool {
        false
    }
    let mut all = [Column { name: "", accepts: never }; COUNT];
    let mut at = 0;
    while at < COUNT {
        all[at] = if at < before.len() { before[at] } else { own[at - before.len()] };
        at += 1;
    }
    all
}

/// The rows of a statement. `after`: the columns of another row come first, as `base`.
macro_rules! row {
    ($(#[$doc:meta])* $vis:vis $Row:ident after $Base:ident { $($column:ident: $type:ty),+ $(,)? }) => {
        $(#[$doc])*
        #[derive(Debug)]
        $vis struct $Row {
            $vis base: $Base,
            $($vis $column: $type),+
        }
        impl $Row {
            const OWN: &'static [$crate::sql::statement::Column] = &[$(
                $crate::sql::statement::Column {
                    name: stringify!($column),
                    accepts: $crate::sql::statement::accepts::<$type>,
                }
            ),+];
        }
        impl $crate::sql::statement::FromRow for $Row {
            const COLUMNS: &'static [$crate::sql::statement::Column] =
                &$crate::sql::statement::joined::<
                    { <$Base as $crate::sql::statement::FromRow>::COLUMNS.len() + $Row::OWN.len() },
                >(<$Base as $crate::sql::statement::FromRow>::COLUMNS, $Row::OWN);

            fn read(row: &::tokio_postgres::Row) -> $crate::error::Result<Self> {
                let mut columns = <$Base as $crate::sql::statement::FromRow>::COLUMNS.len()..;
                let mut next = || columns.next().unwrap_or_default();
                Ok($Row {
                    base: <$Base as $crate::sql::statement::FromRow>::read(row)?,
                    $($column: row.try_get::<usize, $type>(next())?),+
                })
            }
        }
    };
    ($(#[$doc:meta])* $vis:vis $Row:ident { $($column:ident: $type:ty),+ $(,)? }) => {
        $(#[$doc])*
        #[derive(Debug)]
        $vis struct $Row {
            $($vis $column: $type),+
        }
        impl $crate::sql::statement::FromRow for $Row {
            const COLUMNS: &'static [$crate::sql::statement::Column] = &[$(
                $crate::sql::statement::Column {
                    name: stringify!($column),
                    accepts: $crate::sql::statement::accepts::<$type>,
                }
            ),+];

            fn read(row: &::tokio_postgres::Row) -> $crate::error::Result<Self> {
                let mut columns = 0..;
                let mut next = || columns.next().unwrap_or_default();
                Ok($Row { $($column: row.try_get::<usize, $type>(next())?),+ })
            }
        }
    };
}
pub(crate) use row;

macro_rules! row_type {
    () => {
        $crate::sql::statement::Nothing
    };
    ($Row:ident) => {
        $Row
    };
}
pub(crate) use row_type;

macro_rules! plan {
    (by [$($index:literal),+ $(,)?]) => { $crate::sql::statement::Plan::Indexes(&[$($index),+]) };
    (whole ($why:literal)) => { $crate::sql::statement::Plan::None($why) };
}
pub(crate) use plan;
