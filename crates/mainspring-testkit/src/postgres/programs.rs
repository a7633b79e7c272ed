//! Finding the programs of PostgreSQL and PgBouncer.
//!
//! Distributions keep several versions side by side and none of them on the path, so the usual places are searched too.
//! The variable comes first and is final: who names a directory wants that one, or an error.

use std::path::{Path, PathBuf};
use std::process::Command;

use super::{Error, Result};

/// The variable that names the directory of the server's programs.
pub const BIN_VARIABLE: &str = "MAINSPRING_POSTGRES_BIN";

/// The oldest version that is tested against.
pub const OLDEST: u32 = 14;

const HINT: &str = "install PostgreSQL 14 or newer (Debian and Ubuntu: `apt-get install postgresql`, \
    Fedora: `dnf install postgresql-server`, macOS: `brew install postgresql@17`) \
    or set MAINSPRING_POSTGRES_BIN to the directory of `postgres` and `initdb`";

const BOUNCER_HINT: &str = "install PgBouncer (Debian and Ubuntu: `apt-get install pgbouncer`, \
    Fedora: `dnf install pgbouncer`, macOS: `brew install pgbouncer`)";

/// Where systems keep versions side by side: a directory, the start of a name in it, and what follows below that.
const PLACES: [(&str, &str, &str); 9] = [
    ("/usr/lib/postgresql", "", "bin"),                      // Debian, Ubuntu
    ("/usr", "pgsql-", "bin"), // the project's own packages for Fedora and its kin
    ("/usr/libexec", "postgresql", ""), // Alpine
    ("/opt/homebrew/opt", "postgresql", "bin"), // Homebrew on Apple silicon
    ("/usr/local/opt", "postgresql", "bin"), // Homebrew on Intel
    ("/home/linuxbrew/.linuxbrew/opt", "postgresql", "bin"), // Homebrew on Linux
    ("/Applications/Postgres.app/Contents/Versions", "", "bin"), // Postgres.app
    ("/opt/local/lib", "postgresql", "bin"), // MacPorts
    ("/usr/local", "pgsql", "bin"), // built from source
];

/// A server's programs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Programs {
    /// The directory with `postgres` and `initdb`.
    pub(super) bin: PathBuf,
    /// The major version.
    pub(super) version: u32,
}

/// Says whether the server's programs and PgBouncer are installed, and what to do about the first one that is not.
pub fn available() -> Result<()> {
    Programs::find()?;
    bouncer().map(drop)
}

impl Programs {
    /// The first directory with a version that is new enough.
    pub(super) fn find() -> Result<Programs> {
        let what = format!("PostgreSQL {OLDEST} or newer");
        if let Some(bin) = std::env::var_os(BIN_VARIABLE) {
            let what = format!("{what} in {BIN_VARIABLE}={}", bin.display());
            return Programs::at(Path::new(&bin)).ok_or(Error::Missing { what, hint: HINT.to_owned() });
        }
        let mut places = path();
        places.extend(configured());
        places.extend(PLACES.iter().flat_map(|(dir, start, below)| versions(Path::new(dir), start, below)));
        places.iter().find_map(|bin| Programs::at(bin)).ok_or(Error::Missing { what, hint: HINT.to_owned() })
    }

    /// The programs in a directory, if they are there and new enough.
    fn at(bin: &Path) -> Option<Programs> {
        // A link on the path leads to where all the programs are.
        let postgres = bin.join("postgres").canonicalize().ok()?;
        let bin = postgres.parent()?.to_owned();
        let output =
            bin.join("initdb").is_file().then(|| Command::new(&postgres).arg("--version").output())?;
        let version = major(&String::from_utf8_lossy(&output.ok()?.stdout))?;
        (version >= OLDEST).then_some(Programs { bin, version })
    }
}

/// The program `pgbouncer`. Debian keeps it where only root looks.
pub(super) fn bouncer() -> Result<PathBuf> {
    let usual = ["/usr/sbin", "/usr/local/sbin", "/usr/local/bin", "/opt/homebrew/bin", "/opt/local/bin"];
    let places = path().into_iter().chain(usual.map(PathBuf::from));
    places
        .map(|place| place.join("pgbouncer"))
        .find(|program| program.is_file())
        .ok_or_else(|| Error::Missing { what: "PgBouncer".to_owned(), hint: BOUNCER_HINT.to_owned() })
}

fn path() -> Vec<PathBuf> {
    std::env::split_paths(&std::env::var_os("PATH").unwrap_or_default()).collect()
}

/// What `pg_config` names, which may be there without the server.
fn configured() -> Option<PathBuf> {
    let output = Command::new("pg_config").arg("--bindir").output().ok()?;
    Some(PathBuf::from(String::from_utf8(output.stdout).ok()?.trim()))
}

/// The directories of several versions, the newest first.
fn versions(dir: &Path, start: &str, below: &str) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(dir).into_iter().flatten().flatten();
    let mut found: Vec<(u32, PathBuf)> = entries
        .filter_map(|entry| {
            let name = entry.file_name().into_string().ok()?;
            let rest = name.strip_prefix(start)?.trim_start_matches(['@', '-']);
            // Without a number it is whatever version the system takes for the current one.
            let version = rest.split('.').next().and_then(|number| number.parse().ok()).unwrap_or_default();
            Some((version, entry.path().join(below)))
        })
        .collect();
    found.sort_by(|a, b| b.cmp(a));
    found.into_iter().map(|(_, path)| path).collect()
}

/// The major version in the likes of "postgres (PostgreSQL) 15.13 (Debian 15.13-0+deb12u1)" or "18beta1".
fn major(text: &str) -> Option<u32> {
    let word = text.split_once("(PostgreSQL) ")?.1;
    let digits = word.find(|c: char| !c.is_ascii_digit()).unwrap_or(word.len());
    word[..digits].parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_read_as_distributions_write_them() {
        assert_eq!(major("postgres (PostgreSQL) 15.13 (Debian 15.13-0+deb12u1)\n"), Some(15));
        assert_eq!(major("postgres (PostgreSQL) 18beta1"), Some(18));
        assert_eq!(major("postgres (PostgreSQL) 9"), Some(9));
        assert_eq!(major("something else"), None);
    }

    #[test]
    fn newest_version_is_looked_at_first() {
        let dir = tempfile::tempdir().expect("a directory");
        for name in ["postgresql@9.6", "postgresql@17", "postgresql@14", "postgresql", "other"] {
            std::fs::create_dir(dir.path().join(name)).expect("a directory");
        }
        let names = ["postgresql@17/bin", "postgresql@14/bin", "postgresql@9.6/bin", "postgresql/bin"];
        assert_eq!(versions(dir.path(), "postgresql", "bin"), names.map(|name| dir.path().join(name)));
    }
}
