//! Bad input: a typed message, a hint, the right exit code, and nothing stored.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::process::Stdio;

use crate::support::Place;

/// Something wrong, and a part of what is said about it.
const WRONG: &[(&[&str], &str)] = &[
    (&["enqueue", "'; drop table"], "invalid kind"),
    (&["enqueue", ""], "invalid kind"),
    (&["enqueue", "a", "--queue", "'; drop table mainspring_jobs; --"], "invalid queue name"),
    (&["enqueue", "a", "{"], "the input is not JSON"),
    (&["enqueue", "a", "{} {}"], "the input is not JSON"),
    (&["enqueue", "a", "--input-file", "missing.json"], "cannot read missing.json"),
    (&["enqueue", "a", "--priority", "10"], "10 is not between 0"),
    (&["enqueue", "a", "--priority", "-1"], "--priority"),
    (&["enqueue", "a", "--delay", "soon"], "soon"),
    (&["enqueue", "a", "--run-at", "tomorrow"], "neither a duration"),
    (&["enqueue", "a", "--delay", "-5s"], "`-5s` is negative"),
    (&["enqueue", "a", "--for", "5s"], "--wait"),
    (&["--store", "app.db", "jobs"], "did you mean `sqlite:app.db`?"),
    (&["enqueue", "a", "--backoff", "cubic:1s"], "cubic:1s"),
    (&["enqueue", "a", "--count", "100001"], "100000"),
    (&["enqueue", "a", "--count", "0"], "0"),
    (&["enqueue", "a", "--count", "2", "--unique", "k"], "--unique"),
    (&["enqueue", "a", "--header", "novalue"], "is not a header"),
    (&["enqueue", "a", "--id", "7"], "is not a job id"),
    (&["enqueue", "a", "--unique", "k", "--unique-until", "never"], "never"),
    (&["enqueue"], "KIND"),
    (&["frobnicate"], "frobnicate"),
    (&["work", "--lease", "1"], "1"),
    (&["--store", "mysql://root:secret@host/db", "jobs"], "its address is invalid"),
    (&["completions", "tcsh"], "tcsh"),
    (&["man", "nothing"], "there is no command `nothing`"),
    (&["bench", "--jobs", "0"], "0 jobs are not between 1 and 100000"),
    (&["bench", "--jobs", "100001"], "100001 jobs are not between 1 and 100000"),
    (&["bench", "--producers", "1025"], "1025 producers are not between 1 and 1024"),
];

#[test]
fn what_is_wrong_is_refused_before_a_store_is_made() {
    let place = Place::new();
    for (args, said) in WRONG {
        let done = place.run(args);
        assert_eq!(done.code, Some(2), "{args:?}: {done:?}");
        assert!(done.stderr.contains("error: ") && done.stderr.contains(said), "{args:?}: {}", done.stderr);
        assert!(done.stderr.contains("hint: "), "{args:?}: {}", done.stderr);
        assert!(!done.stderr.contains("secret"), "{args:?}: {}", done.stderr);
    }
    assert!(!place.path("mainspring.db").exists());
}

/// Wrong in a way that is known only with a store.
const WRONG_WITH_STORE: &[(&[&str], &str)] = &[
    (&["enqueue", "a", "--delay", "4018d"], "more than ten years ahead"),
    (&["enqueue", "a", "--deadline", "2200-01-01T00:00:00Z"], "more than ten years ahead"),
    (&["enqueue", "a", "--max-attempts", "0"], "max_attempts"),
    (&["enqueue", "a", "--timeout", "0s"], "timeout"),
    (&["enqueue", "a", "--unique", ""], "unique key"),
    (&["enqueue", "a", "--tag", "\u{1b}[2J"], "tag"),
    (&["queue", "pause", "a b"], "invalid queue name"),
    (&["queue", "set", "default"], "no setting is named"),
    (&["queue", "pause", "nonesuch"], "there is no queue `nonesuch`"),
    (&["queue", "resume", "nonesuch"], "there is no queue `nonesuch`"),
    (&["queue", "set", "nonesuch", "--retain-failed", "1h"], "there is no queue `nonesuch`"),
    (&["queue", "set", "default", "--retain-failed", "1s"], "retention"),
    (&["queue", "set", "default", "--backoff", "x"], "backoff"),
    (&["jobs", "--state", "done"], "invalid state"),
    (&["jobs", "--limit", "1001"], "1001"),
    (&["jobs", "--error", ""], "invalid error text"),
    (&["watch", "--every", "99ms"], "99ms is not between 100ms and 1h"),
    (&["jobs", "--after", "nonsense"], "cursor"),
    (&["jobs", "cancel"], "no job is named"),
    (&["jobs", "cancel", "7"], "is not a job id"),
    (
        &["jobs", "delete", "01a1de98-55b8-78d4-8fb5-ccc5f0d5c11c", "--state", "failed"],
        "both ids and a filter",
    ),
    (&["why", "7"], "is not a job id"),
    (&["work"], "no queue is declared"),
    (&["work", "--queue", "a b:1"], "invalid queue name"),
    (&["work", "--queue", "default:0"], "0 slots"),
    (&["work", "--queue", "default", "--lease", "1ms"], "lease"),
    (&["dev", "--store", "memory:"], "cannot be shared"),
];

#[test]
fn what_is_wrong_changes_nothing_in_a_store() {
    let place = Place::new();
    place.enqueue(&["a"]);
    let before = place.json(&["queue", "list"]);
    for (args, said) in WRONG_WITH_STORE {
        let complaint = place.run(args).refused(2);
        assert!(complaint.contains(said), "{args:?}: {complaint}");
    }
    assert_eq!(place.json(&["queue", "list"]), before);
}

#[test]
fn invalid_utf_8_and_huge_input_are_refused() {
    let place = Place::new();
    let bad = OsStr::from_bytes(b"a\xff");
    for args in [[OsStr::new("enqueue"), bad], [OsStr::new("why"), bad]] {
        assert_eq!(place.run(&args).code, Some(2));
    }
    let complaint = place.feed(&["enqueue", "a", "-"], Some(b"\"\xff\"")).refused(2);
    assert!(complaint.contains("not JSON"), "{complaint}");
    let complaint = place.feed(&["enqueue", "a", "-"], Some(b"\0")).refused(2);
    assert!(complaint.contains("not JSON"), "{complaint}");
    let huge = format!("\"{}\"", "x".repeat(1 << 20));
    let complaint = place.feed(&["enqueue", "a", "-"], Some(huge.as_bytes())).refused(2);
    assert!(complaint.contains("input is too large: 1048578 exceeds the bound of 1048576"), "{complaint}");
    let largest = &huge[2..];
    place.feed(&["enqueue", "a", "-"], Some(format!("\"{}", &largest[1..]).as_bytes())).ok();
    let endless = format!("\"{}\"", "x".repeat(17 << 20));
    place.feed(&["enqueue", "a", "-"], Some(endless.as_bytes())).refused(2);
    assert_eq!(place.json(&["jobs"])["jobs"].as_array().map(Vec::len), Some(1));
}

#[test]
fn commands_that_look_do_not_create_a_store() {
    let place = Place::new();
    let id = "01a1de98-55b8-78d4-8fb5-ccc5f0d5c11c";
    let looks: [&[&str]; 8] = [
        &["jobs"],
        &["job", id],
        &["why", id],
        &["queue", "list"],
        &["nodes"],
        &["watch"],
        &["doctor"],
        &["jobs", "cancel", id],
    ];
    for args in looks {
        let complaint = place.run(args).refused(4);
        assert!(complaint.contains("it does not exist"), "{complaint}");
    }
    assert!(!place.path("mainspring.db").exists());
}

#[test]
fn commands_that_look_leave_another_programs_database_alone() {
    let place = Place::new();
    let other = place.path("crm.db");
    let sql = "PRAGMA journal_mode = DELETE; CREATE TABLE customers (x); INSERT INTO customers VALUES (1)";
    rusqlite::Connection::open(&other).and_then(|conn| conn.execute_batch(sql)).expect("a database");
    let before = std::fs::read(&other).expect("read");
    let id = "01a1de98-55b8-78d4-8fb5-ccc5f0d5c11c";
    let looks: [&[&str]; 10] = [
        &["jobs"],
        &["job", id],
        &["why", id],
        &["queue", "list"],
        &["queue", "pause", "default"],
        &["nodes"],
        &["watch"],
        &["doctor"],
        &["jobs", "cancel", id],
        &["signal", id, "approved", "true"],
    ];
    for args in looks {
        let complaint = place.run(&[args, &["--store", "sqlite:crm.db"]].concat()).refused(4);
        assert!(
            complaint.contains("crm.db") && complaint.contains("it is not a Mainspring store"),
            "{complaint}"
        );
        assert_eq!(std::fs::read(&other).expect("read"), before, "{args:?}");
    }
    assert_eq!(std::fs::read_dir(place.path(".")).expect("a directory").count(), 1, "no file beside it");
    let done = place.run(&["enqueue", "a", "--store", "sqlite:crm.db"]);
    assert!(done.stderr.contains("created a new store at "), "{done:?}");
    assert!(done.stderr.contains("crm.db, beside another table of the same file"), "{done:?}");
    assert_eq!(place.run(&["enqueue", "a", "--store", "sqlite:crm.db"]).stderr, "");
    place.run(&["jobs", "--store", "sqlite:crm.db"]).ok();
    let done = place.run(&["enqueue", "a", "--store", "sqlite:typo.db"]);
    assert!(
        done.stderr.contains("created a new store at ") && done.stderr.ends_with("typo.db\n"),
        "{done:?}"
    );
}

#[test]
fn what_is_no_store_is_refused_and_left_alone() {
    let place = Place::new();
    std::fs::write(
        place.path("mainspring.db"),
        "not a database, but long enough to have a header of its own".repeat(20),
    )
    .expect("a file");
    let before = std::fs::read(place.path("mainspring.db")).expect("the file");
    for args in [&["jobs"][..], &["enqueue", "a"], &["migrate"], &["doctor"]] {
        let complaint = place.run(args).refused(4);
        assert!(complaint.contains("it is not a Mainspring store"), "{complaint}");
    }
    assert_eq!(std::fs::read(place.path("mainspring.db")).expect("the file"), before);
    place.run(&["jobs", "--store", "sqlite:."]).refused(4);
    place.run(&["enqueue", "a", "--store", "sqlite:missing/directory.db"]).refused(4);
}

#[test]
fn a_store_that_cannot_be_written_is_told_as_such() {
    use std::os::unix::fs::PermissionsExt;
    use std::os::unix::process::CommandExt;

    let place = Place::new();
    place.run(&["migrate"]).ok();
    // A superuser may write anyway, so the command runs as somebody who may not, from a place that he can reach.
    let binary = place.path("mainspring");
    std::fs::copy(env!("CARGO_BIN_EXE_mainspring"), &binary).expect("a copy");
    let mut command = std::process::Command::new(&binary);
    if rustix::process::geteuid().is_root() {
        command.uid(65_534).gid(65_534);
    }
    let mode = |name: &str, mode: u32| {
        std::fs::set_permissions(place.path(name), std::fs::Permissions::from_mode(mode)).expect("a mode");
    };
    mode("mainspring.db", 0o444);
    mode("", 0o555);
    let output = command.current_dir(place.path("")).args(["enqueue", "a"]).output().expect("its output");
    mode("", 0o755);
    let complaint = String::from_utf8(output.stderr).expect("UTF-8");
    assert_eq!(output.status.code(), Some(4), "{complaint}");
    assert!(complaint.contains("it is read-only"), "{complaint}");
    assert!(complaint.contains("hint: its file and its directory must be writable"), "{complaint}");
}

#[test]
fn hostile_text_does_not_reach_the_terminal() {
    let place = Place::new();
    let evil = "\u{1b}[2J\u{1b}]0;owned\u{7}\u{202e}";
    let id = place.enqueue(&["a", &format!("{:?}", "x"), "--unique", evil, "--header", &format!("h={evil}")]);
    place.run(&["job", &id, "cancel", "--why", evil]).ok();
    for args in [&["job", &id][..], &["why", &id], &["jobs"]] {
        let shown = place.run(args).ok();
        assert!(!shown.contains(['\u{1b}', '\u{7}', '\u{202e}']), "{shown:?}");
    }
    assert!(place.run(&["job", &id]).ok().contains("\\u{1b}[2J"));
    assert_eq!(place.job(&id)["note"], evil);
}

#[test]
fn a_closed_pipe_ends_quietly() {
    let place = Place::new();
    place.enqueue(&["a", "--count", "1000"]);
    for args in
        [&["jobs", "--limit", "1000"][..], &["jobs", "--limit", "1000", "--json"], &["completions", "bash"]]
    {
        let mut command = place.command();
        let mut child =
            command.args(args).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("the binary");
        drop(child.stdout.take());
        let output = child.wait_with_output().expect("its end");
        assert_eq!(output.status.code(), Some(0), "{args:?}");
        assert_eq!(String::from_utf8_lossy(&output.stderr), "", "{args:?}");
    }
}
