//! The end of a stream, in bounded memory.

use tokio::io::{AsyncRead, AsyncReadExt};

/// The last bytes of a stream.
#[derive(Debug)]
pub(super) struct Tail {
    bytes: Vec<u8>,
    kept: usize,
    truncated: bool,
}

impl Tail {
    /// Keeps this many bytes.
    pub(super) fn new(kept: usize) -> Self {
        Tail { bytes: Vec::new(), kept, truncated: false }
    }

    /// Adds what came next.
    pub(super) fn push(&mut self, bytes: &[u8]) {
        self.bytes.extend_from_slice(bytes);
        // Cut in large steps, so that a byte is moved once on average.
        if self.bytes.len() > 2 * self.kept {
            self.cut();
        }
    }

    fn cut(&mut self) {
        if self.bytes.len() > self.kept {
            self.bytes.drain(..self.bytes.len() - self.kept);
            self.truncated = true;
        }
    }

    /// The text, and whether something before it was dropped. Begins anew.
    pub(super) fn take(&mut self) -> (String, bool) {
        self.cut();
        let taken = std::mem::replace(self, Tail::new(self.kept));
        let mut bytes = taken.bytes.as_slice();
        if taken.truncated {
            // The cut may have gone through a character, which has at most three more bytes.
            let torn = bytes.iter().take(3).take_while(|byte| **byte & 0xC0 == 0x80).count();
            bytes = &bytes[torn..];
        }
        (String::from_utf8_lossy(bytes).into_owned(), taken.truncated)
    }

    /// Reads a stream to its end. May be given up: what was read until then is kept.
    pub(super) async fn read(&mut self, mut stream: impl AsyncRead + Unpin) {
        let mut buffer = [0_u8; 8 << 10];
        while let Ok(read @ 1..) = stream.read(&mut buffer).await {
            self.push(&buffer[..read]);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const KEPT: usize = 64;

    #[test]
    fn keeps_the_end_and_says_so() {
        let mut tail = Tail::new(KEPT);
        tail.push(b"first");
        for _ in 0..5 {
            tail.push(&[b'x'; KEPT]);
        }
        tail.push(b"last");
        let (text, truncated) = tail.take();
        assert!(truncated);
        assert_eq!(text.len(), KEPT);
        assert!(text.ends_with("xlast"));
        assert_eq!(tail.take(), (String::new(), false), "it began anew");
    }

    #[test]
    fn exactly_the_bound_is_kept_whole() {
        let mut tail = Tail::new(KEPT);
        tail.push(&[b'x'; KEPT]);
        assert_eq!(tail.take(), ("x".repeat(KEPT), false));
    }

    #[test]
    fn a_torn_character_is_left_out() {
        let mut tail = Tail::new(KEPT);
        tail.push("ä".as_bytes());
        tail.push(&[b'x'; KEPT - 1]);
        let (text, truncated) = tail.take();
        assert!(truncated);
        assert_eq!(text, "x".repeat(KEPT - 1));
    }
}
