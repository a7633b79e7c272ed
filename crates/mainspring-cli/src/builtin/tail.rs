//! The end of a stream, in bounded memory.

use std::io::Read;

/// Bytes of standard output and standard error that are kept, each.
pub(super) const KEPT: usize = 64 << 10;

/// The last bytes of a stream.
#[derive(Debug, Default)]
pub(super) struct Tail {
    bytes: Vec<u8>,
    truncated: bool,
}

impl Tail {
    /// Adds what came next.
    pub(super) fn push(&mut self, bytes: &[u8]) {
        self.bytes.extend_from_slice(bytes);
        // Cut in large steps, so that a byte is moved once on average.
        if self.bytes.len() > 2 * KEPT {
            self.cut();
        }
    }

    fn cut(&mut self) {
        if self.bytes.len() > KEPT {
            self.bytes.drain(..self.bytes.len() - KEPT);
            self.truncated = true;
        }
    }

    /// The text, and whether something before it was dropped.
    pub(super) fn finish(mut self) -> (String, bool) {
        self.cut();
        let mut bytes = self.bytes.as_slice();
        if self.truncated {
            // The cut may have gone through a character, which has at most three more bytes.
            let torn = bytes.iter().take(3).take_while(|byte| **byte & 0xC0 == 0x80).count();
            bytes = &bytes[torn..];
        }
        (String::from_utf8_lossy(bytes).into_owned(), self.truncated)
    }

    /// Reads a stream to its end.
    pub(super) fn read(mut stream: impl Read, mut add: impl FnMut(&[u8])) {
        let mut buffer = [0_u8; 8 << 10];
        while let Ok(read @ 1..) = stream.read(&mut buffer) {
            add(&buffer[..read]);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keeps_the_end_and_says_so() {
        let mut tail = Tail::default();
        tail.push(b"first");
        for _ in 0..5 {
            tail.push(&vec![b'x'; KEPT]);
        }
        tail.push(b"last");
        let (text, truncated) = tail.finish();
        assert!(truncated);
        assert_eq!(text.len(), KEPT);
        assert!(text.ends_with("xlast"));
    }

    #[test]
    fn exactly_the_bound_is_kept_whole() {
        let mut tail = Tail::default();
        tail.push(&vec![b'x'; KEPT]);
        assert_eq!(tail.finish(), ("x".repeat(KEPT), false));
    }

    #[test]
    fn a_torn_character_is_left_out() {
        let mut tail = Tail::default();
        tail.push("ä".as_bytes());
        tail.push(&vec![b'x'; KEPT - 1]);
        let (text, truncated) = tail.finish();
        assert!(truncated);
        assert_eq!(text, "x".repeat(KEPT - 1));
    }
}
