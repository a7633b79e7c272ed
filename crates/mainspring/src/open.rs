//! Opening a store by its address.

use std::sync::Arc;

use mainspring_core::error::OpenProblem;
use mainspring_core::job::Limits;
use mainspring_core::memory::Memory;
use mainspring_core::seam::Seams;
use mainspring_core::store::Store;
use mainspring_core::{Error, Result};
use tokio::runtime::Handle;

use crate::engine::Engine;

/// Options for opening a store; made by [`Engine::options`].
#[derive(Debug, Clone)]
pub struct OpenOptions {
    limits: Limits,
    relaxed: bool,
    create: bool,
}

impl Default for OpenOptions {
    fn default() -> Self {
        OpenOptions { limits: Limits::default(), relaxed: false, create: true }
    }
}

impl OpenOptions {
    /// Acknowledges before data is on stable storage: a power cut may lose what was acknowledged in the last moments.
    /// A crash of the process loses nothing. Off unless this is called.
    #[must_use]
    pub fn relaxed_durability(mut self) -> Self {
        self.relaxed = true;
        self
    }

    /// Refuses to open a store that does not exist, instead of creating it.
    #[must_use]
    pub fn existing_only(mut self) -> Self {
        self.create = false;
        self
    }

    /// The largest input in bytes: 1 MiB unless set, at most 16 MiB.
    #[must_use]
    pub fn input_bytes(mut self, bytes: usize) -> Self {
        self.limits.input = bytes;
        self
    }

    /// The largest output in bytes: 1 MiB unless set, at most 16 MiB.
    #[must_use]
    pub fn output_bytes(mut self, bytes: usize) -> Self {
        self.limits.output = bytes;
        self
    }

    /// Opens the store; see [`Engine::open`].
    ///
    /// # Errors
    /// [`Error::Open`] with the reason; [`Error::TooLarge`] for a bound above what a store can hold.
    pub async fn open(self, address: &str) -> Result<Engine> {
        self.limits.check()?;
        let runtime = Handle::try_current().map_err(|error| Error::Open {
            location: address.to_owned(),
            problem: OpenProblem::Other,
            source: Some(error.into()),
        })?;
        let seams = crate::seams::system(runtime);
        let store = self.store(address, &seams).await?;
        Ok(Engine::with(store, seams, self.limits))
    }

    async fn store(&self, address: &str, seams: &Seams) -> Result<Arc<dyn Store>> {
        match address.split_once(':') {
            Some(("memory", "")) => Ok(Arc::new(Memory::new(Arc::clone(&seams.clock)))),
            #[cfg(feature = "sqlite")]
            Some(("sqlite", path)) => self.sqlite(path, seams).await,
            _ => Err(unknown(address)),
        }
    }

    #[cfg(feature = "sqlite")]
    async fn sqlite(&self, path: &str, seams: &Seams) -> Result<Arc<dyn Store>> {
        use mainspring_sqlite::{Durability, Options, Sqlite};

        // `sqlite:app.db`, `sqlite:/var/app.db` and `sqlite:///var/app.db` are all common.
        let path = path.strip_prefix("//").unwrap_or(path);
        if path.is_empty() {
            return Err(unknown("sqlite:"));
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
}

fn unknown(address: &str) -> Error {
    // Whatever it is, it may hold a password: only what stands before the first colon is repeated. Without one it is most
    // likely a path.
    let location = match address.split_once(':') {
        Some((scheme, _)) => format!("`{scheme}:…`"),
        None => format!("`{address}`"),
    };
    Error::Open { location, problem: OpenProblem::Address, source: None }
}
