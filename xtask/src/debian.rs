//! What the tests need of the operating system gets installed, on a Debian machine on which we may.

use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};

/// Installs packages.
pub(crate) fn install(packages: &[&str]) -> Result<()> {
    println!("{} get installed now", packages.join(" "));
    let install = [&["install", "-y", "--no-install-recommends"][..], packages].concat();
    // A fresh container has no lists of packages.
    if apt_get(&install).is_err() {
        apt_get(&["update"])?;
        apt_get(&install)?;
    }
    Ok(())
}

/// Makes sure of the tracer by which system calls are made to fail.
pub(crate) fn ensure_strace() -> Result<()> {
    let found = || Command::new("strace").arg("-V").stdout(Stdio::null()).status().is_ok();
    if !found() {
        install(&["strace"])
            .context("`strace` is missing, and `apt-get install strace` was tried in vain")?;
    }
    Ok(())
}

/// Runs apt-get as root, which we are or can become without a password.
fn apt_get(args: &[&str]) -> Result<()> {
    let id = Command::new("id").arg("-u").output().context("`id` could not be started")?;
    let mut command = if id.stdout.trim_ascii() == b"0" {
        Command::new("apt-get")
    } else {
        let mut command = Command::new("sudo");
        command.args(["-n", "apt-get"]);
        command
    };
    command.args(args).env("DEBIAN_FRONTEND", "noninteractive").stdin(Stdio::null());
    let status = command.status().context("`apt-get` could not be started")?;
    if !status.success() {
        bail!("`apt-get {}` ended with {status}", args.join(" "));
    }
    Ok(())
}
