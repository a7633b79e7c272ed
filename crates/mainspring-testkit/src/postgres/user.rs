//! Whom to run a server as: PostgreSQL refuses root, which is who tests run as in many containers.

use std::path::Path;
use std::process::Command;

use std::os::unix::process::CommandExt;

use super::{Error, Result};

/// In this order: the one that a package of PostgreSQL made, and the one that every system has.
const NAMES: [&str; 2] = ["postgres", "nobody"];

/// A user without privileges.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct User {
    uid: u32,
    gid: u32,
}

impl User {
    /// Whom to become, if this process is root; `None` when it may run a server as itself.
    pub(super) fn unprivileged() -> Result<Option<User>> {
        if !rustix::process::geteuid().is_root() {
            return Ok(None);
        }
        let users = std::fs::read_to_string("/etc/passwd").map_err(Error::io("reading /etc/passwd"))?;
        find(&users).map(Some).ok_or(Error::NoUser)
    }

    /// Gives a file or directory to this user.
    pub(super) fn own(self, path: &Path) -> Result<()> {
        std::os::unix::fs::chown(path, Some(self.uid), Some(self.gid)).map_err(Error::io(format!(
            "giving {} to user {}",
            path.display(),
            self.uid
        )))
    }

    /// Lets a command run as this user.
    pub(super) fn run(self, command: &mut Command) {
        command.uid(self.uid).gid(self.gid);
    }
}

/// The first of [`NAMES`] in the lines of a password file.
fn find(users: &str) -> Option<User> {
    let entries: Vec<Vec<&str>> = users.lines().map(|line| line.split(':').collect()).collect();
    NAMES.iter().find_map(|name| {
        let entry = entries.iter().find(|entry| entry.first() == Some(name))?;
        let (uid, gid) = (entry.get(2)?.parse().ok()?, entry.get(3)?.parse().ok()?);
        (uid != 0).then_some(User { uid, gid })
    })
}

#[cfg(test)]
mod tests {
    use super::{User, find};

    #[test]
    fn servers_own_user_comes_before_nobody() {
        let nobody = "root:x:0:0:root:/root:/bin/sh\nnobody:x:65534:65533::/:/bin/false\n";
        assert_eq!(find(nobody), Some(User { uid: 65534, gid: 65533 }));
        let both = format!("{nobody}postgres:x:101:104:,,,:/var/lib/postgresql:/bin/bash\n");
        assert_eq!(find(&both), Some(User { uid: 101, gid: 104 }));
    }

    #[test]
    fn root_under_another_name_is_not_taken() {
        assert_eq!(find("postgres:x:0:0::/:/bin/sh\n"), None);
        assert_eq!(find("postgres:x\n"), None);
    }
}
