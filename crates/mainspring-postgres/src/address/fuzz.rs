//! A fuzz target over the files beside an address: password files and service files.

use super::{passfile, service};

/// A text as a service file, and each of its lines as one of a password file.
pub(crate) fn files(bytes: &[u8]) {
    let Ok(text) = std::str::from_utf8(bytes) else { return };
    if let Ok(Some(pairs)) = service::section(text, "app") {
        assert!(text.lines().any(|line| line.trim() == "[app]"), "only a section that is there is read");
        assert!(pairs.len() < text.lines().count());
    }
    let wanted = [Some("db"), Some("5432"), None, Some("app")];
    for line in text.lines() {
        if let Some(password) = passfile::password(line, &wanted) {
            assert!(!password.is_empty() && !line.starts_with('#'));
        }
    }
    // What is written as the format asks for comes back.
    let secret: String = text.chars().filter(|c| !matches!(c, '\n' | '\r')).collect();
    let escaped = secret.replace('\\', "\\\\").replace(':', "\\:");
    let line = format!("*:5432:*:app:{escaped}");
    assert_eq!(passfile::password(&line, &wanted).unwrap_or_default(), secret);
}
