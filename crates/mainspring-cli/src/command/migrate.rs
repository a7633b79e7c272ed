//! `migrate`: create the store or bring it to this version's schema. Opening it does the work.

use mainspring::Engine;

use crate::output::Out;
use crate::{json, text};

pub(crate) fn run(engine: &Engine, out: Out) -> anyhow::Result<()> {
    let store = engine.describe();
    out.either(
        || json::store(&store),
        || format!("{} is at schema version {}", text::plain(&store.location), store.schema),
    )?;
    Ok(())
}
