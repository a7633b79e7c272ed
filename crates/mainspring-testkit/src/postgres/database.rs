//! A database per test, copied from a template that is made once per server.
//!
//! Tests run in processes of their own, all at once, and all want the same template first. One of them makes it, under
//! an advisory lock, and the others wait. It is made under another name and renamed when it is complete: a name that is
//! there is a template that is whole, whatever became of the process that made it.
//!
//! # Invariants
//! - Nobody is connected to a template: it does not let anybody in, so it can be copied at any time.

use std::error::Error as StdError;

use ::postgres::Client;

use super::server::Server;
use super::{Error, Result, Signal, client};

/// The database that is always there; from here others are made and removed.
const MAINTENANCE: &str = "postgres";

/// The advisory lock under which templates are made: "mainspri" in ASCII, so that it is no number of anybody else's.
const LOCK: i64 = 0x6d61_696e_7370_7269;

impl Server {
    /// A new, empty database.
    pub fn database(&self) -> Result<Database> {
        Database::copy(self, "template0")
    }

    /// The template of this name; `prepare` makes it, given the address of an empty database, if it is not there yet.
    ///
    /// `prepare` runs on a thread of its own, where it may start a runtime, and once per server, however many processes
    /// ask. The name must change with what it makes: a server may live longer than a run.
    pub fn template<E>(
        &self,
        name: &str,
        prepare: impl FnOnce(&str) -> Result<(), E> + Send,
    ) -> Result<Template>
    where
        E: Into<Box<dyn StdError + Send + Sync>>,
    {
        client::visit(self.endpoint(), MAINTENANCE, |client| {
            client.execute("SELECT pg_advisory_lock($1)", &[&LOCK])?;
            let made = client.query_opt("SELECT 1 FROM pg_database WHERE datname = $1", &[&name])?;
            if made.is_none() {
                self.make_template(client, name, prepare)?;
            }
            // The lock ends with the connection, however that ends.
            Ok(())
        })?;
        Ok(Template { server: self.clone(), name: name.to_owned() })
    }

    fn make_template<E>(
        &self,
        client: &mut Client,
        name: &str,
        prepare: impl FnOnce(&str) -> Result<(), E> + Send,
    ) -> Result<()>
    where
        E: Into<Box<dyn StdError + Send + Sync>>,
    {
        let draft = format!("{name} in the making");
        // Somebody may have died over it.
        client.batch_execute(&drop_sql(&draft))?;
        client.batch_execute(&copy_sql(&draft, "template0"))?;
        let url = self.url(&draft);
        let failed = |source: E| Error::Prepare { name: name.to_owned(), source: source.into() };
        client::apart(move || prepare(&url).map_err(failed))?;
        let draft = quote(&draft);
        client.batch_execute(&format!("ALTER DATABASE {draft} ALLOW_CONNECTIONS false"))?;
        // With a timeout, because a connection that `prepare` has just closed may take a moment to end.
        client.execute(
            "SELECT pg_terminate_backend(pid, 10000) FROM pg_stat_activity WHERE datname = $1",
            &[&format!("{name} in the making")],
        )?;
        client.batch_execute(&format!("ALTER DATABASE {draft} RENAME TO {}", quote(name)))?;
        Ok(())
    }
}

/// A database to be copied, to which nobody can connect.
#[derive(Debug, Clone)]
pub struct Template {
    server: Server,
    name: String,
}

impl Template {
    /// A new database with all that is in the template.
    pub fn database(&self) -> Result<Database> {
        Database::copy(&self.server, &self.name)
    }
}

/// A database of one test. It is removed when dropped, whoever is still connected.
#[derive(Debug)]
pub struct Database {
    server: Server,
    name: String,
}

impl Database {
    fn copy(server: &Server, template: &str) -> Result<Database> {
        client::visit(server.endpoint(), MAINTENANCE, |client| {
            // The server draws the name: processes of one run, and of two on one server, must not meet.
            let row = client.query_one("SELECT 'test_' || replace(gen_random_uuid()::text, '-', '')", &[])?;
            let name: String = row.try_get(0)?;
            client.batch_execute(&copy_sql(&name, template))?;
            Ok(Database { server: server.clone(), name })
        })
    }

    /// A new database with all that is in this one, to which nobody may be connected meanwhile.
    pub fn twin(&self) -> Result<Database> {
        Database::copy(&self.server, &self.name)
    }

    /// Its address.
    pub fn url(&self) -> String {
        self.server.url(&self.name)
    }

    /// Its name, for addresses through a [`Proxy`](super::Proxy) or a [`Bouncer`](super::Bouncer).
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The server that it is on.
    pub fn server(&self) -> &Server {
        &self.server
    }

    /// Runs statements without arguments; the rows of all of them, as text.
    pub fn sql(&self, sql: &str) -> Result<Vec<Vec<Option<String>>>> {
        self.server.sql(&self.name, sql)
    }
}

impl Drop for Database {
    fn drop(&mut self) {
        if self.server.ends_with_this_handle() {
            return;
        }
        // A server that a test has frozen, and then failed, would let us wait for ever.
        let _woken = self.server.signal(Signal::CONT);
        // One that a test has stopped takes its databases with it.
        let _dropped = client::visit(self.server.endpoint(), MAINTENANCE, |client| {
            Ok(client.batch_execute(&drop_sql(&self.name))?)
        });
    }
}

fn copy_sql(name: &str, template: &str) -> String {
    format!("CREATE DATABASE {} TEMPLATE {}", quote(name), quote(template))
}

fn drop_sql(name: &str) -> String {
    format!("DROP DATABASE IF EXISTS {} WITH (FORCE)", quote(name))
}

/// A name as SQL writes it.
fn quote(name: &str) -> String {
    format!("\"{}\"", name.replace('"', "\"\""))
}
