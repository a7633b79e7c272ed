//! Text from a store made harmless, and numbers with their nouns.

/// Escapes every control character of a text except line breaks. So a job's error cannot move the cursor, change colors
/// or hide the text beside it.
pub fn plain(text: &str) -> String {
    text.chars().fold(String::with_capacity(text.len()), |mut plain, c| {
        if c != '\n' && is_hostile(c) {
            plain.extend(c.escape_unicode());
        } else {
            plain.push(c);
        }
        plain
    })
}

/// Does the same as [`plain`], in one line and cut to a number of characters.
pub fn line(text: &str, limit: usize) -> String {
    let mut line = String::new();
    for (count, c) in text.trim().chars().enumerate() {
        if count >= limit {
            line.push('…');
            break;
        }
        match c {
            '\n' | '\r' | '\t' => line.push(' '),
            c if is_hostile(c) => line.extend(c.escape_unicode()),
            c => line.push(c),
        }
    }
    line
}

/// Control characters, and those that change the direction or order of what is shown.
fn is_hostile(c: char) -> bool {
    c.is_control()
        || matches!(c, '\u{200B}'..='\u{200F}' | '\u{2028}'..='\u{202E}' | '\u{2060}'..='\u{2069}' | '\u{FEFF}')
}

/// Returns a number with its noun: "1 job", "2 jobs".
pub fn count(number: usize, noun: &str) -> String {
    if number == 1 { format!("1 {noun}") } else { format!("{number} {noun}s") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn control_characters_are_written_out() {
        assert_eq!(plain("a\u{1b}[2Jb\nc"), "a\\u{1b}[2Jb\nc");
        assert_eq!(plain("\u{202e}evil\u{7}\u{9b}"), "\\u{202e}evil\\u{7}\\u{9b}");
        assert_eq!(plain("ünïcode ✓"), "ünïcode ✓");
    }

    #[test]
    fn a_line_is_one_line_and_ends_in_time() {
        assert_eq!(line("first\nsecond\u{1b}", 40), "first second\\u{1b}");
        assert_eq!(line("abcdef", 3), "abc…");
        assert_eq!(line("abc", 3), "abc");
    }
}
