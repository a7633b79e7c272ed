//! What may happen to a server and its processes: a crash of all, of one, and of some sessions.

use rustix::process::{Pid, Signal, kill_process};

use super::server::Server;
use super::{Error, Result};

impl Server {
    /// Ends all its processes at once, as if the machine had lost its power, and waits until they are gone.
    ///
    /// To kill only the first one would leave the others time to say something.
    pub fn crash(&self) -> Result<()> {
        let first = self.own()?.first_process().ok_or(Error::Stopped)?;
        self.signal(Signal::STOP)?;
        for child in children(first) {
            // One that has ended meanwhile needs no signal.
            let _gone = kill_process(child, Signal::KILL);
        }
        self.signal(Signal::KILL)?;
        self.own()?.gone()
    }

    /// The processes that serve sessions of a database which meet a condition on `pg_stat_activity a`.
    pub fn sessions(&self, database: &str, condition: &str) -> Result<Vec<i32>> {
        let sql = format!(
            "SELECT pid FROM pg_stat_activity a
            WHERE datname = current_database() AND pid <> pg_backend_pid() AND {condition}"
        );
        let rows = self.sql(database, &sql)?;
        Ok(rows.iter().filter_map(|row| row.first()?.as_deref()?.parse().ok()).collect())
    }

    /// Kills one of its processes, as the system does that has run out of memory: the server ends all sessions and recovers
    /// by itself. False if the process has ended already.
    pub fn kill_session(&self, session: i32) -> Result<bool> {
        self.own()?;
        Ok(Pid::from_raw(session).is_some_and(|pid| kill_process(pid, Signal::KILL).is_ok()))
    }

    /// Ends sessions, as an administrator does; how many there were.
    pub fn end_sessions(&self, sessions: &[i32]) -> Result<usize> {
        let list = sessions.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ");
        let sql = format!("SELECT 1 FROM unnest('{{{list}}}'::int[]) AS pid WHERE pg_terminate_backend(pid)");
        Ok(self.sql("postgres", &sql)?.len())
    }
}

/// The children of a process, which has one thread.
fn children(first: Pid) -> Vec<Pid> {
    let pid = first.as_raw_nonzero();
    let list = std::fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).unwrap_or_default();
    list.split_whitespace().filter_map(|child| Pid::from_raw(child.parse().ok()?)).collect()
}
