//! Hints for people about errors.

use super::{Error, OpenProblem};
use crate::id::JobId;
use crate::job::State;

/// How Postgres's complaint about a missing right ends: its SQLSTATE.
const NO_RIGHT: &str = "(42501)";

/// How stores are named.
const ADDRESS: &str = "a store is named `sqlite:PATH`, `postgres://USER@HOST/DATABASE` (or libpq's `key=value` words) or `memory:`";

impl Error {
    /// Returns a hint what a person can do, if there is one: one line, often with the command that does it.
    ///
    /// Programs branch on the variant. The text is for people and changes.
    pub fn hint(&self) -> Option<String> {
        let hint = match self {
            Error::Conflict { existing } => {
                return Some(format!(
                    "see it with `mainspring job {existing}`, or let the new job keep or replace it"
                ));
            }
            Error::IdTaken { id, .. } => {
                return Some(format!("see it with `mainspring job {id}`, or use another id"));
            }
            Error::Illegal { id, verb: "signal", .. } => {
                return Some(format!(
                    "the job has ended, and nobody would read the signal; `mainspring job {id}` shows how it ended"
                ));
            }
            Error::Illegal { id, status, .. } => return Some(illegal(*id, status.state)),
            Error::QueueNotEmpty { queue, .. } => {
                return Some(format!(
                    "`mainspring jobs --queue {queue}` lists the jobs; `mainspring jobs delete --queue {queue}` removes those that do not run, and the store removes ended jobs after their retention"
                ));
            }
            Error::Ended { id, .. } => {
                return Some(format!(
                    "`mainspring job {id}` shows every error; `mainspring job {id} retry` runs it again"
                ));
            }
            Error::Open { problem: OpenProblem::Address, location, .. } if is_path(location) => {
                return Some(format!("did you mean `sqlite:{}`?", location.trim_matches('`')));
            }
            Error::Open { problem, location, .. } => problem.hint(location.starts_with("postgres:")),
            Error::NotFound(_) => {
                "list jobs with `mainspring jobs`; the store removes ended jobs after their retention"
            }
            Error::NoSchedule(_) => "list schedules with `mainspring schedule list`",
            Error::ScheduleHeld { name, job } => {
                return Some(format!(
                    "wait for `mainspring job {job}`, or use `mainspring schedule run {name} --force`"
                ));
            }
            Error::UnknownLimit { limit, similar } => {
                let meant = similar.as_ref().map(|name| format!("did you mean `{name}`? otherwise "));
                return Some(format!(
                    "{}define it: `mainspring limit set {limit} --create --max N`, or a maximum or a rate where the job is declared",
                    meant.unwrap_or_default()
                ));
            }
            Error::TooLarge { what, .. } => too_large(what)?,
            Error::Invalid { what, .. } => invalid(what)?,
            Error::Unavailable { source: Some(source), .. } if source.to_string().ends_with(NO_RIGHT) => {
                "grant it to the role; the guide \"Running on Postgres\" lists the rights that an engine needs"
            }
            Error::Unavailable { .. } => {
                "try again; if it persists, check that the database runs and that no program holds the file"
            }
            Error::DiskFull => "free some space and try again; no acknowledged data is lost",
            Error::OutcomeUnknown { .. } => {
                "repeat the call: the same id is the same job, and the same sender the same signal"
            }
            Error::Partial { source, .. } => return source.hint(),
            Error::Corrupt { .. } => "keep a copy of the store, then run `mainspring doctor`",
            Error::LeaseLost
            | Error::Convert { .. }
            | Error::Poisoned { .. }
            | Error::Closed
            | Error::ForeignTransaction { .. }
            | Error::NotInTransaction { .. }
            | Error::Step { .. }
            | Error::DuplicateKey { .. }
            | Error::Nested { .. }
            | Error::Detached { .. }
            | Error::Interrupted { .. }
            | Error::Token
            | Error::NodeSetup { .. } => return None,
        };
        Some(hint.to_owned())
    }
}

fn too_large(what: &str) -> Option<&'static str> {
    match what {
        "input" => Some("store the data elsewhere and enqueue a reference to it"),
        "signal" => Some("store the data elsewhere and send a reference to it"),
        Error::INBOX => Some("the handler reads none of them; `mainspring job ID` shows the unread signals"),
        _ => None,
    }
}

fn invalid(what: &str) -> Option<&'static str> {
    match what {
        "queue name" | "kind" | "limit name" => {
            Some("names are 1 to 128 of the characters A-Z a-z 0-9 . _ : -")
        }
        "signal name" => Some("names are 1 to 128 bytes without control characters, `/` and `#`"),
        "sender" => Some("a sender has 1 to 256 bytes; leave it out to send each call as a new signal"),
        "schedule name" => Some("names are 1 to 100 of the characters A-Z a-z 0-9 . _ : -"),
        "cron expression" => {
            Some("five fields: minute, hour, day of month, month, day of week; or six, with seconds in front")
        }
        "time zone" => Some("use a name of the IANA database, such as `Europe/Berlin`"),
        "priority" => Some("0 is claimed first, 9 last; 5 is the default"),
        "run_at" | "deadline" => Some("choose a time at most ten years ahead"),
        "job id" => Some("copy the whole id, as `mainspring jobs` prints it"),
        _ => None,
    }
}

/// For a job to which a verb does not apply.
fn illegal(id: JobId, state: State) -> String {
    match state {
        State::Succeeded | State::Skipped => {
            format!("its end is final; `mainspring job {id} fork` runs it again as a new job")
        }
        State::Failed | State::Cancelled => {
            format!("it has ended; `mainspring job {id} retry` runs it again")
        }
        State::Running => format!("the job is running; `mainspring job {id} cancel` asks it to stop"),
        State::Blocked | State::Scheduled | State::Ready | State::Suspended => {
            format!("`mainspring why {id}` says why it is not running")
        }
    }
}

/// Whether what was named as a store looks like a file: its location is shown only if it has no scheme.
fn is_path(location: &str) -> bool {
    let path = location.trim_matches('`');
    !path.contains(':') && path.contains(['/', '.'])
}

impl OpenProblem {
    /// `postgres`: whether the store is on Postgres.
    fn hint(&self, postgres: bool) -> &'static str {
        match self {
            OpenProblem::Address => ADDRESS,
            OpenProblem::Missing if postgres => {
                "create the database first, with `createdb` or CREATE DATABASE"
            }
            OpenProblem::Missing => {
                "name it as `sqlite:PATH` or `postgres://…`; `mainspring migrate` creates the file, not its directory"
            }
            OpenProblem::ReadOnly if postgres => "the server is a standby or read-only: name the primary",
            OpenProblem::ReadOnly => {
                "its file and its directory must be writable: SQLite keeps a log beside it"
            }
            OpenProblem::Locked => "close the program that holds it, and try again",
            OpenProblem::NotAStore if postgres => "name another schema with `schema=NAME` in the address",
            OpenProblem::NotAStore => {
                "name another file, `sqlite:PATH`; `mainspring migrate` adds a store to a file that has other tables"
            }
            OpenProblem::TooNew { .. } => "install the version of mainspring that wrote it",
            OpenProblem::DevelopmentBuild { .. } if postgres => {
                "open it with the build that made it, or name another schema with `schema=NAME` in the address"
            }
            OpenProblem::DevelopmentBuild { .. } => {
                "open it with the build that made it, or name another file, `sqlite:PATH`"
            }
            OpenProblem::TooOld { found: 0, .. } if postgres => {
                "run `mainspring migrate` with the same `--store`, as the role that will own the schema; if you did, check the database and `schema=` in the address"
            }
            OpenProblem::TooOld { .. } => {
                "run `mainspring migrate` with the same `--store`, as the role that owns the schema"
            }
            OpenProblem::Library { .. } => "build the program with a newer database library",
            OpenProblem::Database { .. } => "upgrade the database server",
            OpenProblem::Unreachable => {
                "check host, port or socket directory, and that the server runs: `pg_isready` asks it"
            }
            OpenProblem::Refused => {
                "check user, password, database and the role's rights; the guide \"Running on Postgres\" has the grants"
            }
            OpenProblem::Insecure => {
                "check `sslmode` and `sslrootcert` in the address, and the server's certificate"
            }
            OpenProblem::NotDurable { .. } => {
                "turn it on, or accept the loss by name with `--relaxed-durability`"
            }
            OpenProblem::Other => "`mainspring doctor` may know more",
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::job::{New, Options, PayloadBounds, Priority, When};
    use crate::journal::Signal;
    use crate::name::{Kind, QueueName, SignalName};
    use crate::time::Timestamp;

    fn hint(result: crate::Result<impl Sized>) -> String {
        let error = result.err().expect("it is refused");
        error.hint().unwrap_or_else(|| panic!("there is no hint for: {error}"))
    }

    const NEVER: When = When::After(Duration::MAX);

    /// The hints go by what an error says is wrong: these are the places that say it.
    #[test]
    fn what_is_refused_has_a_hint_of_its_own() {
        let names = "A-Z a-z 0-9";
        assert!(hint(QueueName::new("a b")).contains(names));
        assert!(hint(Kind::new("a b")).contains(names));
        assert!(hint(SignalName::new("a/b")).contains("control characters"));
        assert!(hint(Priority::new(10)).contains("9 last"));
        assert!(hint("none".parse::<JobId>()).contains("whole id"));
        let id = JobId::from_uuid(crate::Uuid::nil());
        let check = |change: fn(&mut New)| {
            let kind = Kind::new("kind").expect("a kind");
            let queue = QueueName::new("default").expect("a name");
            let (priority, options) = (Priority::default(), Options::default());
            let (run, deadline, journal) = (None, None, Vec::new());
            let input = b"1".to_vec();
            let mut job = New { id, kind, queue, priority, input, run, deadline, options, journal };
            change(&mut job);
            job.check(&PayloadBounds::default(), Timestamp::EPOCH)
        };
        let late = "ten years";
        assert!(hint(check(|job| job.run = Some(NEVER))).contains(late));
        assert!(hint(check(|job| job.deadline = Some(NEVER))).contains(late));
        assert!(hint(check(|job| job.input = vec![b' '; 64 << 20])).contains("enqueue a reference"));
        let signal = |sender: &str, body: Vec<u8>| {
            let name = SignalName::new("name").expect("a name");
            Signal { job: id, name, sender: sender.to_owned(), body }.check()
        };
        assert!(hint(signal("", b"1".to_vec())).contains("leave it out"));
        assert!(hint(signal("ada", vec![b' '; 64 << 20])).contains("send a reference"));
        let full = Error::TooLarge { what: Error::INBOX, size: 2, limit: 1 };
        assert!(full.hint().is_some() && !full.is_bad_input());
    }

    #[test]
    fn a_path_is_told_from_a_typo() {
        let open = |location: &str| {
            let (location, problem) = (location.to_owned(), OpenProblem::Address);
            Error::Open { location, problem, source: None }.hint().expect("a hint")
        };
        assert_eq!(open("`data/app.db`"), "did you mean `sqlite:data/app.db`?");
        assert_eq!(open("mysql:a.b"), ADDRESS);
    }
}
