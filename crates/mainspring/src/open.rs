//! Opening a store by its address.
//!
//! The scheme of an address names the store; a text without one that has an `=` in it is libpq's `key=value` form.
//!
//! # Invariants
//! - An address may hold a password: no error repeats more of it than its scheme, unless it is the path of a file.

use std::sync::Arc;

use mainspring_core::error::OpenProblem;
use mainspring_core::job::PayloadBounds;
use mainspring_core::memory::Memory;
use mainspring_core::seam::Seams;
use mainspring_core::store::Store;
use mainspring_core::{Error, Result};
use tokio::runtime::Handle;

use crate::engine::Engine;

/// Options for opening a store. You get them from [`Engine::options`].
#[derive(Debug, Clone)]
pub struct OpenOptions {
    bounds: PayloadBounds,
    relaxed: bool,
    create: bool,
    migrate: bool,
}

impl Default for OpenOptions {
    fn default() -> Self {
        OpenOptions { bounds: PayloadBounds::default(), relaxed: false, create: true, migrate: false }
    }
}

impl OpenOptions {
    /// Acknowledges writes before they are on stable storage. Default: off.
    ///
    /// A power cut may then lose the last acknowledged moments; a crash of the process still loses nothing. On
    /// Postgres this is `synchronous_commit = off`, and the engine accepts a server with that setting.
    #[must_use]
    pub fn relaxed_durability(mut self) -> Self {
        self.relaxed = true;
        self
    }

    /// Opens only a store that exists, and creates nothing. Default: off.
    ///
    /// A missing file is [`OpenProblem::Missing`]. A file with other tables than a store's is
    /// [`OpenProblem::NotAStore`], and stays as it is. On Postgres this has no effect, because only
    /// [`migrate`](Self::migrate) creates anything there.
    #[must_use]
    pub fn existing_only(mut self) -> Self {
        self.create = false;
        self
    }

    /// Creates the tables if need be and brings them up to date, while opening.
    ///
    /// SQLite always does this. On Postgres it needs the rights of the schema's owner; without it, an older schema is
    /// [`OpenProblem::TooOld`]. Any number of processes may migrate at once.
    #[must_use]
    pub fn migrate(mut self) -> Self {
        self.migrate = true;
        self
    }

    /// Sets the bound of an input in bytes. Default: 1 MiB; at most 16 MiB.
    #[must_use]
    pub fn input_bytes(mut self, bytes: usize) -> Self {
        self.bounds.input = bytes;
        self
    }

    /// Sets the bound of a result in bytes. Default: 1 MiB; at most 16 MiB.
    #[must_use]
    pub fn result_bytes(mut self, bytes: usize) -> Self {
        self.bounds.result = bytes;
        self
    }

    /// Sets the bound of a step's recorded result in bytes. Default: 1 MiB; at most 16 MiB.
    #[must_use]
    pub fn step_bytes(mut self, bytes: usize) -> Self {
        self.bounds.step = bytes;
        self
    }

    /// Opens the store at an address and returns its engine; see [`Engine::open`].
    ///
    /// # Errors
    /// [`Error::Open`] with the problem; [`Error::TooLarge`] for a bound above 16 MiB.
    pub async fn open(self, address: &str) -> Result<Engine> {
        self.bounds.check()?;
        let runtime = Handle::try_current().map_err(|error| Error::Open {
            location: shown(address),
            problem: OpenProblem::Other,
            source: Some(error.into()),
        })?;
        let seams = crate::seams::system(runtime);
        let store = self.store(address, &seams).await?;
        let found = store.describe();
        if let Some(others) = found.created {
            tracing::info!(location = found.location, others, "created a new store");
        }
        Ok(Engine::with(store, seams, self.bounds))
    }

    async fn store(&self, address: &str, seams: &Seams) -> Result<Arc<dyn Store>> {
        match scheme(address) {
            ("memory", "") => Ok(Arc::new(Memory::new(Arc::clone(&seams.clock)))),
            ("sqlite", path) => self.sqlite(path, seams).await,
            ("postgres" | "postgresql", _) => self.postgres(address, seams).await,
            _ => Err(refused(address, None)),
        }
    }

    #[cfg(feature = "sqlite")]
    async fn sqlite(&self, path: &str, seams: &Seams) -> Result<Arc<dyn Store>> {
        use mainspring_sqlite::{Durability, Options, Sqlite};

        // `sqlite:app.db`, `sqlite:/var/app.db` and `sqlite:///var/app.db` are all common.
        let path = path.strip_prefix("//").unwrap_or(path);
        if path.is_empty() {
            return Err(refused("sqlite:", None));
        }
        let mut options = Options::new(path);
        options.create = self.create;
        if self.relaxed {
            options.durability = Durability::Relaxed;
        }
        let (answer, opened) = tokio::sync::oneshot::channel();
        let opening = seams.clone();
        // Opening waits for locks and disks: not on the executor's threads.
        let started = seams
            .threads
            .spawn("mainspring-open", Box::new(move || drop(answer.send(Sqlite::open(options, opening)))));
        started.map_err(|error| Error::Unavailable {
            why: "no thread to be had".into(),
            source: Some(error.into()),
        })?;
        let store = opened.await.map_err(|_| Error::Closed)??;
        Ok(Arc::new(store))
    }

    #[cfg(feature = "postgres")]
    async fn postgres(&self, address: &str, seams: &Seams) -> Result<Arc<dyn Store>> {
        use mainspring_postgres::{Durability, Options, Postgres};

        let mut options = Options::new(address)?.migrate(self.migrate);
        if self.relaxed {
            options = options.durability(Durability::Relaxed);
        }
        Ok(Arc::new(Postgres::open(options, seams.clone()).await?))
    }

    #[cfg(not(feature = "sqlite"))]
    #[expect(clippy::unused_async, reason = "as with the feature")]
    async fn sqlite(&self, _path: &str, _seams: &Seams) -> Result<Arc<dyn Store>> {
        let why = "this program was built without the feature `sqlite` of the crate `mainspring`";
        Err(refused("sqlite:", Some(why)))
    }

    #[cfg(not(feature = "postgres"))]
    #[expect(clippy::unused_async, reason = "as with the feature")]
    async fn postgres(&self, address: &str, _seams: &Seams) -> Result<Arc<dyn Store>> {
        let why = "this program was built without the feature `postgres` of the crate `mainspring`";
        Err(refused(address, Some(why)))
    }
}

/// What an address names, and the rest of it. libpq's other form counts as `postgres`.
pub(crate) fn scheme(address: &str) -> (&str, &str) {
    match address.split_once(':') {
        Some((scheme, rest)) if !scheme.contains('=') => (scheme, rest),
        _ if address.contains('=') => ("postgres", address),
        _ => ("", address),
    }
}

/// What may be repeated of an address: whatever it is, it may hold a password. Without a scheme and without settings it is
/// most likely a path.
pub(crate) fn shown(address: &str) -> String {
    match scheme(address) {
        // With a colon it is no plain path: `://user:password@host` has lost its scheme.
        ("", path) if !address.contains(':') => format!("`{path}`"),
        (scheme, _) => format!("`{scheme}:…`"),
    }
}

fn refused(address: &str, why: Option<&'static str>) -> Error {
    Error::Open { location: shown(address), problem: OpenProblem::Address, source: why.map(Into::into) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_names_its_store() {
        assert_eq!(scheme("memory:").0, "memory");
        assert_eq!(scheme("sqlite:a=b.db"), ("sqlite", "a=b.db"));
        assert_eq!(scheme("postgres://db/app").0, "postgres");
        assert_eq!(scheme("postgresql://db/app?sslmode=require").0, "postgresql");
        assert_eq!(scheme("host=/run/postgresql dbname=app").0, "postgres");
        assert_eq!(scheme("host=::1 password=a:b").0, "postgres");
        assert_eq!(scheme("app.db").0, "");
    }

    #[test]
    fn no_more_than_the_scheme_is_shown() {
        assert_eq!(shown("postgres://app:secret@db/app"), "`postgres:…`");
        assert_eq!(shown("host=db password=secret"), "`postgres:…`");
        assert_eq!(shown("mysql://root:secret@host/db"), "`mysql:…`");
        assert_eq!(shown("app.db"), "`app.db`");
        assert_eq!(shown("://app:secret@db/app"), "`:…`");
    }

    #[cfg(not(feature = "postgres"))]
    #[tokio::test]
    async fn a_store_that_was_left_out_says_which_feature_brings_it() {
        for address in ["postgres://app:secret@db/app", "host=db password=secret"] {
            let error = Engine::open(address).await.expect_err("not built in");
            let cause = std::error::Error::source(&error).expect("a cause").to_string();
            assert!(cause.contains("the feature `postgres`"), "{cause}");
            assert!(!format!("{error} {error:?}").contains("secret"));
        }
    }
}
