//! Corpora: the inputs that a target always gets, from `fuzz/corpus`.
//!
//! A corpus is a text file with one input per line, so that it can be read and reviewed: bytes that are not plain text
//! are written as `\n`, `\t`, `\r`, `\\`, `\'`, `\"` or `\x1b`, which is what [`slice::escape_ascii`] makes of them. A
//! line that begins with `#` says why the next ones are there. An empty input is `\` alone.

use std::path::Path;

/// The inputs of a target.
///
/// # Panics
/// If the file is not there or not of this form.
pub fn corpus(name: &str) -> Vec<Vec<u8>> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/corpus").join(format!("{name}.txt"));
    let text = std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    let lines = text.lines().filter(|line| !line.is_empty() && !line.starts_with('#'));
    lines.map(|line| decode(line).unwrap_or_else(|| panic!("{}: `{line}`", path.display()))).collect()
}

/// The bytes that a line stands for.
fn decode(line: &str) -> Option<Vec<u8>> {
    if line == "\\" {
        return Some(Vec::new());
    }
    let mut bytes = Vec::new();
    let mut rest = line.bytes();
    while let Some(byte) = rest.next() {
        bytes.push(match byte {
            b'\\' => match rest.next()? {
                b'n' => b'\n',
                b't' => b'\t',
                b'r' => b'\r',
                b'x' => {
                    let mut digit = || char::from(rest.next()?).to_digit(16);
                    u8::try_from(digit()? * 16 + digit()?).ok()?
                }
                plain @ (b'\\' | b'\'' | b'"') => plain,
                _ => return None,
            },
            plain => plain,
        });
    }
    Some(bytes)
}

#[cfg(test)]
mod tests {
    use super::decode;

    #[test]
    fn every_byte_survives_its_written_form() {
        let all: Vec<u8> = (0..=u8::MAX).collect();
        assert_eq!(decode(&all.escape_ascii().to_string()), Some(all));
        assert_eq!(decode("größe"), Some("größe".into()));
        assert_eq!(decode("\\"), Some(Vec::new()));
        for bad in ["\\q", "\\x", "\\x1", "\\xzz", "a\\"] {
            assert_eq!(decode(bad), None, "{bad}");
        }
    }
}
