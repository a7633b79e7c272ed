//! What happens to a server: restarts, crashes, sessions that are ended, no room, and rows and tables that somebody has locked.

use std::sync::Arc;
use std::time::Duration;

use super::cluster::Cluster;
use super::{failed, now, outage};
use crate::history::Fact;
use crate::postgres::{AllSessions, IdleTransaction, Server, Stop};
use crate::torture::wait::{wait, within};
use crate::torture::{Fault, FaultFuture, Result, World};

/// Sessions of engines: those of victims, and the rig's own.
const ENGINES: &str = "application_name = 'mainspring' AND backend_type = 'client backend'";
/// How long a server is away that is started again, about.
const RESTART: Duration = Duration::from_secs(3);
/// A process of the server that no recovery leaves alive.
const CHECKPOINTER: &str = "SELECT pid FROM pg_stat_activity WHERE backend_type = 'checkpointer'";
/// Some rows of the places that jobs are in. Whoever holds one already is left in peace.
const LOCK: &str = "SELECT no FROM mainspring.lease LIMIT 4 FOR UPDATE SKIP LOCKED;
    SELECT no FROM mainspring.ready LIMIT 4 FOR UPDATE SKIP LOCKED";

/// What a plain `CREATE INDEX` takes: claims go on, and no outcome can be stored.
const LOCK_DONE: &str = "LOCK TABLE mainspring.done IN SHARE MODE; SELECT 1";

pub(super) fn all(cluster: &Arc<Cluster>, database: &str, locked: Duration) -> Vec<Box<dyn Fault>> {
    let kinds = [
        Kind::Restart(Stop::Fast),
        Kind::Restart(Stop::Immediate),
        Kind::Power,
        Kind::Sessions,
        Kind::Killed,
        Kind::Crowd,
        Kind::Lock,
        Kind::Done(locked),
    ];
    let harm = |kind| Harm { kind, cluster: Arc::clone(cluster), database: database.to_owned() };
    kinds.map(|kind| Box::new(harm(kind)) as Box<dyn Fault>).into()
}

/// What happens.
#[derive(Debug, Clone, Copy)]
enum Kind {
    /// It is stopped, and started again.
    Restart(Stop),
    /// All its processes are killed at once, and it is started again.
    Power,
    /// Somebody ends about half of the sessions.
    Sessions,
    /// The process of a session is killed, and the server recovers by itself.
    Killed,
    /// Others take all the room; sessions that end are not followed by ours.
    Crowd,
    /// Somebody locks rows of jobs and leaves his transaction open, for longer than a lease.
    Lock,
    /// Somebody locks the table of outcomes against writers, for this long.
    Done(Duration),
}

struct Harm {
    kind: Kind,
    cluster: Arc<Cluster>,
    database: String,
}

impl Harm {
    async fn answers(&self, server: &Server) -> Result<()> {
        wait("the server answers", async || Ok(server.sql(&self.database, "SELECT 1").ok().map(drop))).await
    }

    fn sessions(&self, server: &Server, condition: &str) -> Result<Vec<i32>> {
        let sessions = server.sessions(&self.database, &format!("{ENGINES} AND {condition}"));
        sessions.map_err(failed("asking for sessions"))
    }

    async fn killed(&self, world: &World, server: &Server) -> Result<bool> {
        let sessions = self.sessions(server, "true")?;
        let chosen = usize::try_from(world.below(sessions.len() as u64)).unwrap_or(0);
        let Some(session) = sessions.get(chosen) else { return Ok(false) };
        let helper = || server.sql("postgres", CHECKPOINTER);
        let before = helper().map_err(failed("asking for the checkpointer"))?;
        let killed = server.kill_session(*session).map_err(failed("killing a session"))?;
        // It may be back before anybody could see that it was away.
        wait("the server has recovered", async || {
            Ok(helper().is_ok_and(|after| !after.is_empty() && after != before).then_some(()))
        })
        .await?;
        Ok(killed)
    }

    async fn no_session_left(&self, world: &World, server: &Server) -> Result<bool> {
        let sessions = self.sessions(server, "random() < 0.5")?;
        let others = AllSessions::gather(server).map_err(failed("gathering a crowd"))?;
        wait("the server is full", async || Ok((others.refused() > 0).then_some(()))).await?;
        // Whose sessions are ended is cut off, and others are not: no outage, but so many misfortunes.
        let over = now().after(world.under_test().lease() * 3);
        for worker in &world.workers {
            world.note(Fact::fault("cut", Some(worker.number()), Some(over)));
        }
        // Nobody can ask the server for it any more; a session that is asked to end does so by itself.
        let ended = sessions.iter().filter(|session| terminate(**session)).count();
        within(world.under_test().lease(), async || Ok(None::<()>)).await?;
        drop(others);
        self.answers(server).await?;
        Ok(ended > 0)
    }

    async fn lock(&self, server: &Server, sql: &str, lasts: Duration) -> Result<bool> {
        let idle = wait("there are rows to lock", async || {
            let idle = IdleTransaction::begin(server, &self.database, sql).map_err(failed("locking rows"))?;
            Ok((idle.rows > 0).then_some(idle))
        })
        .await?;
        within(lasts, async || Ok(None::<()>)).await?;
        drop(idle);
        Ok(true)
    }
}

/// Asks a session to end, as `pg_terminate_backend` does.
fn terminate(session: i32) -> bool {
    use rustix::process::{Pid, Signal, kill_process};
    Pid::from_raw(session).is_some_and(|pid| kill_process(pid, Signal::TERM).is_ok())
}

impl Fault for Harm {
    fn name(&self) -> String {
        match self.kind {
            Kind::Restart(Stop::Fast) => "restart fast",
            Kind::Restart(Stop::Immediate) => "restart immediate",
            Kind::Power => "power cut",
            Kind::Sessions => "sessions ended",
            Kind::Killed => "session killed",
            Kind::Crowd => "crowd",
            Kind::Lock => "lock",
            Kind::Done(_) => "lock done",
        }
        .into()
    }

    fn inject<'a>(&'a mut self, world: &'a mut World) -> FaultFuture<'a> {
        Box::pin(async move {
            let server = self.cluster.primary();
            let lasts = match self.kind {
                Kind::Sessions => Duration::ZERO,
                Kind::Crowd | Kind::Lock => world.under_test().lease() * 3 / 2,
                Kind::Done(locked) => locked,
                _ => RESTART,
            };
            outage(world, &self.name(), lasts);
            match self.kind {
                Kind::Restart(how) => {
                    server.restart(how).map_err(failed("restarting a server"))?;
                    Ok(true)
                }
                Kind::Power => {
                    server.crash().map_err(failed("crashing a server"))?;
                    server.start_again().map_err(failed("starting a server again"))?;
                    Ok(true)
                }
                Kind::Sessions => {
                    let sessions = self.sessions(&server, "random() < 0.5")?;
                    Ok(server.end_sessions(&sessions).map_err(failed("ending sessions"))? > 0)
                }
                Kind::Killed => self.killed(world, &server).await,
                Kind::Crowd => self.no_session_left(world, &server).await,
                Kind::Lock => self.lock(&server, LOCK, lasts).await,
                Kind::Done(_) => self.lock(&server, LOCK_DONE, lasts).await,
            }
        })
    }
}
