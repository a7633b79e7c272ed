//! Password files: `~/.pgpass`, lines of `host:port:database:user:password`.
//!
//! A field is a text or `*`; a backslash takes the next character as it is. The first line that matches counts. As with
//! libpq, a file that others can read is not used, and a missing one is nothing special.

use std::path::Path;

use super::{Host, Place, Secret};

/// The largest password file that is read.
const MAX_BYTES: u64 = 1 << 20;
/// What a Unix socket in one of the usual directories is called in a password file.
const LOCAL: &str = "localhost";

/// Finds the password for one host.
pub(super) fn find(path: &Path, host: &Host, database: Option<&str>, user: Option<&str>) -> Option<Secret> {
    let text = read(path)?;
    let name = match &host.place {
        Place::Machine { name, .. } => name,
        Place::Socket(dir) if super::settings::SOCKET_DIRS.contains(&dir.as_str()) => LOCAL,
        Place::Socket(dir) => dir,
    };
    let port = host.port.to_string();
    let wanted = [Some(name), Some(port.as_str()), database, user];
    text.lines().find_map(|line| password(line, &wanted)).map(Secret)
}

/// The file's text, if it is there and nobody else can read it.
fn read(path: &Path) -> Option<String> {
    let metadata = std::fs::metadata(path).ok()?;
    let unfit = if !metadata.is_file() {
        "it is not a plain file"
    } else if others_may_use(&metadata) {
        "group or others have access to it; its mode should be 0600"
    } else if metadata.len() > MAX_BYTES {
        "it is too large"
    } else {
        match std::fs::read_to_string(path) {
            Ok(text) => return Some(text),
            Err(_) => "it cannot be read as text",
        }
    };
    tracing::warn!(path = %path.display(), reason = unfit, "password file ignored");
    None
}

#[cfg(unix)]
fn others_may_use(metadata: &std::fs::Metadata) -> bool {
    use std::os::unix::fs::PermissionsExt;
    metadata.permissions().mode() & 0o077 != 0
}

/// Elsewhere the directory of the user's profile protects the file.
#[cfg(not(unix))]
fn others_may_use(_: &std::fs::Metadata) -> bool {
    false
}

/// The password of a line whose first four fields match.
pub(super) fn password(line: &str, wanted: &[Option<&str>; 4]) -> Option<String> {
    if line.starts_with('#') {
        return None;
    }
    let mut rest = line;
    for want in wanted {
        let (written, field, after) = field(rest)?;
        if written != "*" && Some(field.as_str()) != *want {
            return None;
        }
        rest = after;
    }
    // As with libpq, a colon that is not escaped ends the password too.
    let password = field(rest).map_or_else(|| unescaped(rest), |(_, password, _)| password);
    (!password.is_empty()).then_some(password)
}

/// The next field as it is written, what it means, and what follows its colon.
fn field(text: &str) -> Option<(&str, String, &str)> {
    let mut characters = text.char_indices();
    while let Some((index, character)) = characters.next() {
        match character {
            ':' => return Some((&text[..index], unescaped(&text[..index]), &text[index + 1..])),
            '\\' => drop(characters.next()),
            _ => {}
        }
    }
    None
}

fn unescaped(text: &str) -> String {
    let mut meaning = String::with_capacity(text.len());
    let mut characters = text.chars();
    while let Some(character) = characters.next() {
        match character {
            '\\' => meaning.extend(characters.next()),
            _ => meaning.push(character),
        }
    }
    meaning
}
