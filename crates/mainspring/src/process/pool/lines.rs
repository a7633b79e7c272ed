//! Lines of a child, in bounded memory.

use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::net::unix::pipe;

/// What comes next on a child's standard output.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Next {
    /// A line, without its end.
    Line(Vec<u8>),
    /// More bytes than a line may have.
    TooLong,
    /// Nothing more.
    End,
}

/// Reads lines.
#[derive(Debug)]
pub(super) struct Lines {
    stream: BufReader<pipe::Receiver>,
    /// What has come of a line: kept here, because waiting for the rest may be given up and taken up again.
    line: Vec<u8>,
    bound: usize,
}

impl Lines {
    pub(super) fn new(stream: pipe::Receiver, bound: usize) -> Self {
        Lines { stream: BufReader::new(stream), line: Vec::new(), bound }
    }

    /// The next line. What comes after the last line break is none. May be given up and called again.
    pub(super) async fn next(&mut self) -> Next {
        loop {
            let Ok(bytes @ [_, ..]) = self.stream.fill_buf().await else { return Next::End };
            let (part, ends) = match bytes.iter().position(|byte| *byte == b'\n') {
                Some(end) => (&bytes[..end], true),
                None => (bytes, false),
            };
            if self.line.len() + part.len() > self.bound {
                return Next::TooLong;
            }
            self.line.extend_from_slice(part);
            let used = part.len() + usize::from(ends);
            self.stream.consume(used);
            if ends {
                let mut line = std::mem::take(&mut self.line);
                if line.last() == Some(&b'\r') {
                    line.pop();
                }
                return Next::Line(line);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::io::AsyncWriteExt;

    #[tokio::test]
    async fn lines_are_bounded_and_the_last_one_needs_its_end() {
        let (mut sender, receiver) = pipe::pipe().expect("a pipe");
        let mut lines = Lines::new(receiver, 4);
        sender.write_all(b"ab\n\n1234\r\n1234\nrest").await.expect("it is written");
        drop(sender);
        let mut all = Vec::new();
        loop {
            match lines.next().await {
                Next::Line(line) => all.push(String::from_utf8(line).expect("text")),
                end => {
                    assert_eq!(end, Next::TooLong, "the carriage return counts");
                    break;
                }
            }
        }
        assert_eq!(all, ["ab", ""]);

        let (mut sender, receiver) = pipe::pipe().expect("a pipe");
        let mut lines = Lines::new(receiver, 4);
        sender.write_all(b"1234\n12").await.expect("it is written");
        assert_eq!(lines.next().await, Next::Line(b"1234".to_vec()));
        drop(sender);
        assert_eq!(lines.next().await, Next::End, "a torn line is none");
    }
}
