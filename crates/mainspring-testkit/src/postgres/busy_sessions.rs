//! Other people's sessions: a crowd that takes all the room of a server, and somebody who locks rows and goes to lunch.
//!
//! Each has a thread, because the client must not be used inside of a runtime.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::JoinHandle;
use std::time::Duration;

use ::postgres::{Client, NoTls};

use super::server::Server;
use super::{Error, Result};

/// Between two attempts to get in, while the server is full: whoever leaves is followed at once.
const PUSH: Duration = Duration::from_millis(1);

/// A crowd that takes every session a server has to give, for as long as this lives.
#[derive(Debug)]
pub struct AllSessions {
    over: Arc<AtomicBool>,
    refused: Arc<AtomicUsize>,
    thread: Option<JoinHandle<()>>,
}

impl AllSessions {
    /// Lets it come.
    ///
    /// # Errors
    /// If there is no thread for it.
    pub fn gather(server: &Server) -> Result<AllSessions> {
        let (over, refused) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicUsize::new(0)));
        let (seen, counted) = (Arc::clone(&over), Arc::clone(&refused));
        let config = server.endpoint().config("postgres");
        let body = move || {
            let mut inside: Vec<Client> = Vec::new();
            while !seen.load(Ordering::Relaxed) {
                if let Ok(client) = config.connect(NoTls) {
                    inside.push(client);
                } else {
                    counted.fetch_add(1, Ordering::Relaxed);
                    std::thread::park_timeout(PUSH);
                }
            }
        };
        let thread = std::thread::Builder::new().name("crowd".to_owned()).spawn(body);
        let thread = Some(thread.map_err(Error::io("starting a thread"))?);
        Ok(AllSessions { over, refused, thread })
    }

    /// How often somebody of it was turned away: from the first time on, the server is full.
    pub fn refused(&self) -> usize {
        self.refused.load(Ordering::Relaxed)
    }
}

impl Drop for AllSessions {
    fn drop(&mut self) {
        self.over.store(true, Ordering::Relaxed);
        // A thread that panicked has said so.
        drop(self.thread.take().map(JoinHandle::join));
    }
}

/// A session that has begun a transaction, and leaves it open for as long as this lives.
#[derive(Debug)]
pub struct IdleTransaction {
    /// Dropped first: the thread waits for its end.
    over: Option<Sender<()>>,
    thread: Option<JoinHandle<()>>,
    /// How many rows its statements returned.
    pub rows: usize,
}

impl IdleTransaction {
    /// Runs statements in a transaction that stays open.
    ///
    /// # Errors
    /// If the server refuses a connection or a statement.
    pub fn begin(server: &Server, database: &str, sql: &str) -> Result<IdleTransaction> {
        let (config, sql) = (server.endpoint().config(database), format!("BEGIN; {sql}"));
        let (over, wait): (Sender<()>, Receiver<()>) = channel();
        let (told, began) = channel();
        let body = move || {
            let begun = config.connect(NoTls).and_then(|mut client| {
                let rows = client.simple_query(&sql)?;
                Ok((client, rows))
            });
            match begun {
                Ok((client, messages)) => {
                    let row = |message: &&_| matches!(message, ::postgres::SimpleQueryMessage::Row(_));
                    drop(told.send(Ok(messages.iter().filter(row).count())));
                    // It ends when the other side is dropped.
                    let _ended = wait.recv();
                    drop(client);
                }
                Err(error) => drop(told.send(Err(error))),
            }
        };
        let thread = std::thread::Builder::new().name("lunch".to_owned()).spawn(body);
        let thread = Some(thread.map_err(Error::io("starting a thread"))?);
        let rows = began.recv().map_err(|_| Error::Stopped)??;
        Ok(IdleTransaction { over: Some(over), thread, rows })
    }
}

impl Drop for IdleTransaction {
    fn drop(&mut self) {
        drop(self.over.take());
        drop(self.thread.take().map(JoinHandle::join));
    }
}
