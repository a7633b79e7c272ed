//! Telling whether a text of SQL commits, or listens.

/// Whether one of the statements of a text begins with `COMMIT`.
pub(super) fn commits(sql: &[u8]) -> bool {
    has_statement(sql, b"commit")
}

/// Whether one of the statements of a text begins with `LISTEN`.
pub(super) fn listens(sql: &[u8]) -> bool {
    has_statement(sql, b"listen")
}

/// Whether one of the statements of a text begins with a word.
///
/// Strings, quoted names, dollar-quoted bodies and comments are skipped: the body of a function may say anything.
fn has_statement(sql: &[u8], wanted: &[u8]) -> bool {
    let mut rest = sql;
    let mut begins = true;
    while let Some(&first) = rest.first() {
        let length = token(rest);
        let (token, after) = rest.split_at(length);
        match first {
            b';' => begins = true,
            _ if first.is_ascii_whitespace() || token.starts_with(b"--") || token.starts_with(b"/*") => {}
            _ if begins && token.eq_ignore_ascii_case(wanted) => return true,
            _ => begins = false,
        }
        rest = after;
    }
    false
}

/// The length of what a text begins with: a comment, something quoted, a word, or any other character.
fn token(text: &[u8]) -> usize {
    match text {
        [b'-', b'-', ..] => through(text, 2, b"\n"),
        [b'/', b'*', ..] => through(text, 2, b"*/"),
        [quote @ (b'\'' | b'"'), ..] => through(text, 1, &[*quote]),
        [b'$', ..] => {
            let word = word(&text[1..]);
            match text.get(word + 1) {
                Some(b'$') => through(text, word + 2, &text[..word + 2]),
                _ => word + 1,
            }
        }
        _ => word(text).max(1),
    }
}

/// The length of a text up to and with a mark that is looked for from somewhere on; all of it if there is none.
fn through(text: &[u8], from: usize, mark: &[u8]) -> usize {
    let found = text[from..].windows(mark.len()).position(|window| window == mark);
    found.map_or(text.len(), |at| from + at + mark.len())
}

fn word(text: &[u8]) -> usize {
    text.iter().take_while(|byte| byte.is_ascii_alphanumeric() || **byte == b'_').count()
}

#[cfg(test)]
mod tests {
    use super::commits;

    #[test]
    fn commit_is_found_where_a_statement_begins() {
        for sql in [
            "COMMIT",
            " commit ; ",
            "BEGIN; INSERT INTO t VALUES (';'); Commit",
            "/* done */ COMMIT AND CHAIN",
            "SELECT $1; -- it's\nCOMMIT",
            "SELECT $a$ x; $a$; COMMIT",
        ] {
            assert!(commits(sql.as_bytes()), "{sql}");
        }
    }

    #[test]
    fn word_elsewhere_is_no_commit() {
        for sql in [
            "",
            "SELECT commit FROM t",
            "SELECT '; COMMIT;'",
            "SELECT \"; COMMIT\"",
            "-- COMMIT",
            "/* ; COMMIT",
            "DO $$ BEGIN; COMMIT; END $$",
            "DO $body$ $$; COMMIT; $$ $body$",
            "committed",
            "SELECT 'it''s; COMMIT'",
        ] {
            assert!(!commits(sql.as_bytes()), "{sql}");
        }
    }
}
