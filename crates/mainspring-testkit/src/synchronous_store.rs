//! Real stores for tests on a clock that stands still: every call is done when it is made.
//!
//! A store on a disk or behind a network answers from a thread of its own, some time. Here whoever calls waits for that on
//! the spot, so that nothing is under way while a test looks. Hints would come some time, too: in their place everybody is
//! told after each call that may have something to tell.

use std::future::ready;
use std::sync::{Arc, Mutex, PoisonError, Weak};

use mainspring_core::Result;
use mainspring_core::name::QueueName;
use mainspring_core::seam::{Clock, Pending, Seams};
use mainspring_core::store::decorator::Method;
use mainspring_core::store::{Hint, Listener, Store};
use mainspring_postgres::{Postgres, Time};
use mainspring_sqlite::{Durability, Sqlite};
use tempfile::TempDir;

use crate::clock::ManualClock;
use crate::executor::block_on;
use crate::history::{Actor, Fact, Recorder};
use crate::postgres::{Database, Server};
use crate::rng::SeededRng;
use crate::seams::{RealThreads, seams};
use crate::watch::{CallBody, Transport, WatchedStore};

/// Calls that may make jobs ready. A hint for one that finds nothing to do would only call for the next.
pub(crate) const TELLING: &[&str] =
    &["enqueue", "finish", "change", "configure", "retire", "disown", "record", "signal", "write_schedules"];

/// The queue in which sweeps may have found something.
const QUEUE: &str = "default";

/// What a store lives in. Dropped after the store is closed.
#[derive(Debug)]
pub enum StoreLocation {
    /// A directory.
    Directory(TempDir),
    /// A database.
    Database(Database),
}

/// A fresh store on SQLite, on a clock of one's own.
pub fn sqlite(clock: &Arc<dyn Clock>) -> (Arc<dyn Store>, StoreLocation) {
    let directory = crate::sim::scratch();
    let options = mainspring_sqlite::Options::new(directory.path().join("test.db"));
    let store = Sqlite::open(options.durability(Durability::Relaxed), real(clock)).expect("the store opens");
    (at_once(Arc::new(store)), StoreLocation::Directory(directory))
}

/// A fresh store on the Postgres of this run, on a clock of one's own.
pub fn postgres(clock: &Arc<dyn Clock>) -> (Arc<dyn Store>, StoreLocation) {
    let server = Server::shared().expect("a server");
    let name = format!("mainspring_v{}", mainspring_postgres::SCHEMA_VERSION);
    let template = server.template(&name, |url| {
        let options = mainspring_postgres::Options::new(url)?;
        block_on(Postgres::migrate(&options, &seams(&ManualClock::new(), 1))).map(drop)
    });
    let database = template.and_then(|template| template.database()).expect("a database");
    let options = mainspring_postgres::Options::new(&database.url()).expect("an address").time(Time::Clock);
    let store = block_on(Postgres::open(options, real(clock))).expect("the store opens");
    (at_once(Arc::new(store)), StoreLocation::Database(database))
}

fn real(clock: &Arc<dyn Clock>) -> Seams {
    let (clock, threads) = (Arc::clone(clock), Arc::new(RealThreads));
    Seams { clock, rng: Arc::new(SeededRng::new(1)), spawn: threads.clone(), threads }
}

/// A store whose calls are done when they are made.
fn at_once(store: Arc<dyn Store>) -> Arc<dyn Store> {
    Arc::new(WatchedStore::new(store, Synchronous::default(), Arc::new(NoListener), 0))
}

/// Nobody wants to know.
struct NoListener;

impl Recorder for NoListener {
    fn note(&self, _by: Actor, _fact: Fact) {}
}

#[derive(Default)]
struct Synchronous {
    ears: Mutex<Vec<Weak<dyn Listener>>>,
}

impl Transport for Synchronous {
    fn go<T: Send + 'static>(&self, method: Method, run: CallBody<T>) -> Pending<'static, Result<T>> {
        let answer = block_on(run());
        let hint = match method.name {
            name if TELLING.contains(&name) => Some(Hint::Foreign),
            // By itself: to be told that anything may have happened would call for the next sweep.
            "promote" | "rescue" => QueueName::new(QUEUE).ok().map(|queue| Hint::Ready(vec![queue])),
            _ => None,
        };
        if let Some(hint) = hint.filter(|_| answer.is_ok()) {
            let ears = self.ears.lock().unwrap_or_else(PoisonError::into_inner).clone();
            for ear in ears.iter().filter_map(Weak::upgrade) {
                ear.hint(&hint);
            }
        }
        Box::pin(ready(answer))
    }

    fn listen(&self, _store: &Arc<dyn Store>, listener: Weak<dyn Listener>) {
        self.ears.lock().unwrap_or_else(PoisonError::into_inner).push(listener);
    }
}
