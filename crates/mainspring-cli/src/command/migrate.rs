//! `migrate`: create the store or bring it to this version's schema. Opening it does the work.

use mainspring::Engine;

use crate::output::Out;
use crate::store::Target;
use crate::text;
use mainspring_wire::json;

/// What it takes.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Print the SQL instead of running it. Needs no connection.
    #[arg(long)]
    pub(crate) print: bool,
    /// Print the statements that the store sends, each with its name and its indexes, instead of changing anything. You can
    /// paste one into `psql` and explain it. Needs no connection.
    #[arg(long, conflicts_with = "print")]
    pub(crate) print_statements: bool,
}

pub(crate) fn run(engine: &Engine, out: Out) -> anyhow::Result<()> {
    let store = engine.describe();
    out.either(
        || json::store(&store),
        || format!("{} is at schema version {}", text::plain(&store.location), store.schema),
    )?;
    Ok(())
}

/// Prints what would be run, for those who run it by themselves.
pub(crate) fn print(target: Target<'_>, out: Out) -> anyhow::Result<()> {
    let script = target.script()?;
    let nothing = "-- nothing to run: opening a store on SQLite migrates it";
    out.either(
        || serde_json::json!({ "script": script }),
        || script.as_deref().map_or(nothing, str::trim_end).to_owned(),
    )?;
    Ok(())
}

/// Prints what the store sends, for those who want to know how the database runs it.
pub(crate) fn print_statements(target: Target<'_>, out: Out) -> anyhow::Result<()> {
    let statements = target.statements()?;
    let shown = statements.iter().flatten().map(|statement| {
        serde_json::json!({
            "name": statement.name,
            "sql": statement.sql,
            "arguments": statement.arguments,
            "indexes": statement.indexes,
            "without_index": statement.without_index,
        })
    });
    let nothing = "-- only the store on Postgres names its statements";
    out.either(
        || serde_json::json!({ "statements": shown.collect::<Vec<_>>() }),
        || match &statements {
            None => nothing.to_owned(),
            Some(all) => all.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n\n"),
        },
    )?;
    Ok(())
}
