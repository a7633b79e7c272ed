//! The messages of PostgreSQL's protocol, version 3, as far as a proxy must understand them.
//!
//! After the first packet each message is one byte that names its kind, four bytes of length, which count themselves,
//! and a body. A statement is parsed under a name, bound to a portal and executed by the portal's name, so which
//! `Execute` is a commit takes remembering both.

use std::collections::BTreeSet;

use super::sql;

/// What a client's first packet is: a length, which counts itself, and a code in place of a version.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum StartupPacket {
    /// A question whether the connection can be encrypted, by TLS or by GSSAPI; the answer is one byte.
    Encrypt,
    /// A request to cancel another connection's statement; there is no answer.
    Cancel,
    /// The start of a session.
    Start,
}

/// What of a client's message matters here.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct MessageInfo {
    /// It commits a transaction.
    pub(super) commit: bool,
    /// It ends a batch: the server will answer it with `ReadyForQuery`.
    pub(super) ends_batch: bool,
    /// It listens for notifications.
    pub(super) listens: bool,
    /// How many bytes of rows it carries: those of a `Bind` or of copied data.
    pub(super) bulk: usize,
}

/// The kind of the server's message that ends its answer to a batch.
pub(super) const READY: u8 = b'Z';

/// The first packet of a client and its length, once it is complete.
pub(super) fn opening(bytes: &[u8]) -> Option<(StartupPacket, usize)> {
    let length = usize::try_from(number(bytes, 0)?).ok()?.max(8);
    let opening = match number(bytes, 4)? {
        80_877_103 | 80_877_104 => StartupPacket::Encrypt,
        80_877_102 => StartupPacket::Cancel,
        _ => StartupPacket::Start,
    };
    (bytes.len() >= length).then_some((opening, length))
}

/// The first message of some bytes, once it is complete.
pub(super) fn message(bytes: &[u8]) -> Option<&[u8]> {
    let length = usize::try_from(number(bytes, 1)?).ok()?.max(4);
    bytes.get(..length + 1)
}

fn number(bytes: &[u8], at: usize) -> Option<u32> {
    let bytes: [u8; 4] = bytes.get(at..at + 4)?.try_into().ok()?;
    Some(u32::from_be_bytes(bytes))
}

/// Which of a connection's statements and portals are commits.
#[derive(Debug, Default)]
pub(super) struct Commits {
    statements: BTreeSet<Vec<u8>>,
    portals: BTreeSet<Vec<u8>>,
}

impl Commits {
    /// Looks at a client's message and remembers what it names.
    pub(super) fn see(&mut self, message: &[u8]) -> MessageInfo {
        let (kind, body) = (message[0], &message[5..]);
        let mut strings = body.split(|byte| *byte == 0);
        let mut next = || strings.next().unwrap_or_default();
        let mut seen =
            MessageInfo { ends_batch: matches!(kind, b'S' | b'Q' | b'F'), ..MessageInfo::default() };
        match kind {
            b'Q' => {
                let text = next();
                (seen.commit, seen.listens) = (sql::commits(text), sql::listens(text));
            }
            b'P' => {
                let (name, text) = (next(), next());
                set(&mut self.statements, name, sql::commits(text));
                seen.listens = sql::listens(text);
            }
            b'd' => seen.bulk = message.len(),
            b'B' => {
                let (portal, statement) = (next(), next());
                set(&mut self.portals, portal, self.statements.contains(statement));
                seen.bulk = message.len();
            }
            b'E' => seen.commit = self.portals.contains(next()),
            b'C' => match next().split_first() {
                Some((b'S', name)) => set(&mut self.statements, name, false),
                Some((_, name)) => set(&mut self.portals, name, false),
                None => {}
            },
            _ => {}
        }
        seen
    }
}

/// Puts a name into a set, or takes it out.
fn set(names: &mut BTreeSet<Vec<u8>>, name: &[u8], member: bool) {
    if member {
        names.insert(name.to_owned());
    } else {
        names.remove(name);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(kind: u8, body: &str) -> Vec<u8> {
        let length = u32::try_from(body.len() + 4).expect("short").to_be_bytes();
        [&[kind][..], &length, body.as_bytes()].concat()
    }

    #[test]
    fn message_is_found_once_it_is_complete() {
        let bytes = [text(b'Q', "SELECT 1\0"), text(b'X', "")].concat();
        assert_eq!(message(&bytes), Some(&text(b'Q', "SELECT 1\0")[..]));
        for length in 0..14 {
            assert_eq!(message(&bytes[..length]), None, "{length}");
        }
    }

    #[test]
    fn opening_is_told_by_its_code() {
        let packet = |code: u32| [8_u32.to_be_bytes(), code.to_be_bytes()].concat();
        assert_eq!(opening(&packet(80_877_103)), Some((StartupPacket::Encrypt, 8)));
        assert_eq!(opening(&packet(80_877_102)), Some((StartupPacket::Cancel, 8)));
        assert_eq!(opening(&packet(196_608)), Some((StartupPacket::Start, 8)));
        assert_eq!(opening(&packet(196_608)[..7]), None);
    }

    #[test]
    fn execute_commits_if_its_statement_does() {
        let mut commits = Commits::default();
        let mut commit = |kind, body| commits.see(&text(kind, body)).commit;
        assert!(!commit(b'P', "s1\0COMMIT\0\0\0"));
        assert!(!commit(b'P', "\0SELECT 1\0\0\0"));
        assert!(!commit(b'B', "\0s1\0\0\0"));
        assert!(commit(b'E', "\0\0\0\0\0"));
        assert!(!commit(b'B', "\0\0\0\0"));
        assert!(!commit(b'E', "\0\0\0\0\0"));
        assert!(!commit(b'C', "Ss1\0"));
        assert!(!commit(b'B', "p\0s1\0\0\0"));
        assert!(!commit(b'E', "p\0\0\0\0\0"));
    }

    #[test]
    fn simple_query_and_sync_end_a_batch() {
        let mut commits = Commits::default();
        let seen = commits.see(&text(b'Q', "BEGIN; SELECT 1; commit\0"));
        assert_eq!(seen, MessageInfo { commit: true, ends_batch: true, ..MessageInfo::default() });
        let sync = MessageInfo { ends_batch: true, ..MessageInfo::default() };
        assert_eq!(commits.see(&text(b'S', "")), sync);
        assert_eq!(commits.see(&text(b'H', "")), MessageInfo::default());
    }

    #[test]
    fn listening_and_rows_are_recognised() {
        let mut commits = Commits::default();
        assert!(commits.see(&text(b'Q', "LISTEN here\0")).listens);
        assert!(commits.see(&text(b'P', "\0listen here\0\0\0")).listens);
        assert!(!commits.see(&text(b'Q', "UNLISTEN here\0")).listens);
        let sizes = [(b'B', "\0s1\0rows"), (b'd', "rows"), (b'Q', "rows\0")]
            .map(|(kind, body)| commits.see(&text(kind, body)).bulk);
        assert_eq!(sizes, [13, 9, 0]);
    }
}
