//! Where in a line of JSON something is: `value.lines[3].price`.
//!
//! When a value does not fit its type, serde_json says how many bytes it has read. The last value among those is the one.

/// A container that has not ended, and which of its values was begun last.
enum Level<'a> {
    /// By its key, as it is written.
    Object(&'a str),
    Array(usize),
}

/// The path of the last value among the first bytes of a line that was written without spaces.
pub(super) fn find(json: &[u8], bytes: usize) -> String {
    let json = &json[..bytes.min(json.len())];
    let mut levels: Vec<Level<'_>> = Vec::new();
    let mut at = 0;
    while let Some(byte) = json.get(at) {
        match (byte, levels.last_mut()) {
            (b'{', _) => levels.push(Level::Object("")),
            (b'[', _) => levels.push(Level::Array(0)),
            (b'}' | b']', _) => drop(levels.pop()),
            (b',', Some(Level::Array(index))) => *index += 1,
            (b'"', level) => {
                let text = string(&json[at + 1..]);
                if let Some(Level::Object(key)) = level
                    && matches!(json[at - 1], b'{' | b',')
                {
                    *key = std::str::from_utf8(text).unwrap_or_default();
                }
                at += text.len() + 1;
            }
            _ => {}
        }
        at += 1;
    }
    levels.iter().fold(String::from("value"), |path, level| match level {
        Level::Object("") => path,
        Level::Object(key) => format!("{path}.{key}"),
        Level::Array(index) => format!("{path}[{index}]"),
    })
}

/// What is in a string, up to the quote that ends it.
fn string(rest: &[u8]) -> &[u8] {
    let mut at = 0;
    while let Some(byte) = rest.get(at) {
        match byte {
            b'"' => break,
            b'\\' => at += 2,
            _ => at += 1,
        }
    }
    &rest[..at.min(rest.len())]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_place_is_found_by_how_much_was_read() {
        let json = r#"{"a":1,"b":[true,{"c \"d,":"x,\\","e":{}}],"f":null}"#;
        let place = |until: &str| find(json.as_bytes(), json.find(until).expect("there") + until.len());
        assert_eq!(place("1"), "value.a");
        assert_eq!(place("true"), "value.b[0]");
        assert_eq!(place(r#""x,\\""#), r#"value.b[1].c \"d,"#);
        assert_eq!(place("{}"), "value.b[1].e");
        assert_eq!(place("{}}"), "value.b[1]");
        assert_eq!(place("{}}]"), "value.b");
        assert_eq!(place(r#""f""#), "value.f");
        assert_eq!(place("null"), "value.f");
        assert_eq!(place("null}"), "value");
        assert_eq!(find(b"[1,2", 99), "value[1]");
        assert_eq!(find(b"\"abc\\", 99), "value");
        assert_eq!(find(b"", 1), "value");
    }
}
