//! On a terminal: colours, a bar for what takes long, the live view. And nothing of that elsewhere.

use std::fs::File;
use std::io::Read;
use std::process::Stdio;

use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use rustix::termios::{Winsize, tcsetwinsize};

use crate::support::Place;

/// All that a command shows on a terminal of its own, of 120 columns and 40 rows.
fn shown(place: &Place, args: &[&str], env: &[(&str, &str)]) -> String {
    let master = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY).expect("a terminal");
    grantpt(&master).expect("it is ours");
    unlockpt(&master).expect("it is open");
    let size = Winsize { ws_row: 40, ws_col: 120, ws_xpixel: 0, ws_ypixel: 0 };
    tcsetwinsize(&master, size).expect("a size");
    let name = ptsname(&master, Vec::new()).expect("a name").into_string().expect("text");
    let slave = || Stdio::from(File::options().read(true).write(true).open(&name).expect("the other end"));
    let mut command = place.command();
    command.args(args).stdin(slave()).stdout(slave()).stderr(slave());
    command.env_remove("NO_COLOR").env("TERM", "xterm-256color").envs(env.iter().copied());
    let mut child = command.spawn().expect("the binary");
    // Only the child holds the other end from here on: what is read ends when the child does.
    drop(command);
    let mut shown = Vec::new();
    let mut master = File::from(master);
    let mut buffer = [0; 4_096];
    // An error tells that nobody is left at the other end.
    while let Ok(read @ 1..) = master.read(&mut buffer) {
        shown.extend_from_slice(&buffer[..read]);
    }
    assert!(child.wait().expect("its end").success(), "{args:?}: {}", String::from_utf8_lossy(&shown));
    String::from_utf8(shown).expect("UTF-8")
}

#[test]
fn states_have_colours_on_a_terminal_and_nowhere_else() {
    let place = Place::new();
    let id = place.enqueue(&["noop"]);
    place.run(&["job", &id, "cancel"]).ok();
    for args in [&["jobs"][..], &["job", &id]] {
        let on = shown(&place, args, &[]);
        assert!(on.contains("\u{1b}[35mcancelled (operator)\u{1b}[0m"), "{on:?}");
        for env in [("NO_COLOR", "1"), ("TERM", "dumb")] {
            let off = shown(&place, args, &[env]);
            assert!(off.contains("cancelled (operator)") && !off.contains('\u{1b}'), "{env:?}: {off:?}");
        }
        assert!(!place.run(args).ok().contains('\u{1b}'));
    }
    let json = shown(&place, &["jobs", "--json"], &[]);
    assert!(!json.contains('\u{1b}'), "{json:?}");
}

#[test]
fn bulk_work_has_a_bar_on_a_terminal_and_nowhere_else() {
    let place = Place::new();
    place.enqueue(&["noop", "--count", "3000"]);
    let on = shown(&place, &["jobs", "hold", "--kind", "noop", "--yes"], &[]);
    assert!(on.contains("hold █████") && on.contains("1000 of 3000"), "{on:?}");
    assert!(on.ends_with("\r\u{1b}[2Khold: 3000 jobs\r\n"), "{on:?}");
    let off = place.run(&["jobs", "resume", "--kind", "noop", "--yes"]);
    assert_eq!((off.stderr.as_str(), off.stdout.as_str()), ("", "resume: 3000 jobs\n"));
}

#[test]
fn doctor_shows_what_it_looks_at_on_a_terminal_and_nowhere_else() {
    let place = Place::new();
    place.enqueue(&["noop", "--count", "3000"]);
    let on = shown(&place, &["doctor"], &[]);
    let bar = format!("checking jobs {} 3000 of 3000", "█".repeat(24));
    for part in ["checking tables: 0", &bar, "checking what all jobs have in common: 1"] {
        assert!(on.contains(part), "{part}: {on:?}");
    }
    assert!(on.contains("\r\u{1b}[2K") && on.ends_with("no problems, 1 note\r\n"), "{on:?}");
    let off = place.run(&["doctor"]);
    assert!(off.stderr.is_empty() && !off.stdout.contains("checking"), "{off:?}");
}

#[test]
fn watch_fills_a_terminal_and_gives_it_back() {
    let place = Place::new();
    place.enqueue(&["noop"]);
    let view = shown(&place, &["watch", "--for", "300ms"], &[]);
    let (enter, leave) = (view.find("\u{1b}[?1049h"), view.rfind("\u{1b}[?1049l"));
    assert!(enter.is_some() && leave > enter, "{view:?}");
    for part in ["Mainspring", "no node is live", "noop", "quit"] {
        assert!(view.contains(part), "{part}: {view:?}");
    }
    let lines = place.run(&["watch", "--for", "100ms"]).ok();
    assert!(!lines.contains('\u{1b}') && lines.contains("figures   1 ready; 0.0 jobs/s"), "{lines}");
}
