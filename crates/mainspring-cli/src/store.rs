//! The store that the user means.

use mainspring::{Engine, Error};

/// Whether a command may create the store.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Open {
    /// It looks at what is there.
    Existing,
    /// It needs one, and makes the file if there is none.
    Create,
    /// It needs one, and brings the schema up to date wherever it is.
    Migrate,
}

/// What the command line says of the store. The address may hold a password and is never printed.
#[derive(Clone, Copy)]
pub(crate) struct Target<'a> {
    pub(crate) address: &'a str,
    pub(crate) relaxed: bool,
}

impl Target<'_> {
    /// Opens it.
    pub(crate) async fn open(self, open: Open) -> Result<Engine, Error> {
        let mut options = Engine::options();
        if self.relaxed {
            options = options.relaxed_durability();
        }
        options = match open {
            Open::Existing => options.existing_only(),
            Open::Create => options,
            Open::Migrate => options.migrate(),
        };
        options.open(self.address).await
    }

    /// The SQL that makes its schema; `None` where opening it is all that it takes.
    pub(crate) fn script(self) -> Result<Option<String>, Error> {
        if ["sqlite:", "memory:"].iter().any(|scheme| self.address.starts_with(scheme)) {
            return Ok(None);
        }
        let options = mainspring_postgres::Options::new(self.address)?;
        Ok(Some(mainspring_postgres::script(options.schema())))
    }

    /// The statements that it sends; `None` where they are not to be printed.
    pub(crate) fn statements(self) -> Result<Option<Vec<mainspring_postgres::StatementText>>, Error> {
        if ["sqlite:", "memory:"].iter().any(|scheme| self.address.starts_with(scheme)) {
            return Ok(None);
        }
        let options = mainspring_postgres::Options::new(self.address)?;
        Ok(Some(mainspring_postgres::statements(options.schema())))
    }
}
