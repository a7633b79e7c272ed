//! Opening the store that the user means.

use mainspring::{Engine, Error};

/// Whether a command may create the store.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Open {
    /// It looks at what is there.
    Existing,
    /// It needs one, and makes it if there is none.
    Create,
}

/// Opens a store by its address.
pub(crate) async fn open(address: &str, open: Open) -> Result<Engine, Error> {
    let options = Engine::options();
    match open {
        Open::Existing => options.existing_only().open(address).await,
        Open::Create => options.open(address).await,
    }
}
