//! The `key=value` form: words with blanks between them, as libpq reads them.
//!
//! A value ends at a blank unless it stands in single quotes; a backslash takes the next character as it is, inside
//! quotes and outside. Two single quotes inside quotes are one, which libpq refuses and SQL has taught everybody.

use std::iter::Peekable;
use std::str::Chars;

use super::fault::Fault;

/// A parameter as it was written.
pub(super) struct Parameter {
    pub(super) name: String,
    pub(super) value: String,
    /// The name may be a piece of a password, so no error may show it.
    pub(super) may_be_secret: bool,
}

/// Takes apart the words.
pub(super) fn pairs(text: &str) -> Result<Vec<Parameter>, Fault> {
    let mut rest = text.chars().peekable();
    let mut pairs = Vec::new();
    // `password=two words=bad`: what follows a password without quotes may belong to it.
    let mut may_be_secret = false;
    loop {
        skip_blanks(&mut rest);
        if rest.peek().is_none() {
            return Ok(pairs);
        }
        let name = name(&mut rest);
        skip_blanks(&mut rest);
        if rest.next() != Some('=') {
            return Err(Fault::Form("a word without `=`; a value with blanks is written in single quotes"));
        }
        skip_blanks(&mut rest);
        let quoted = rest.next_if_eq(&'\'').is_some();
        let value = if quoted { quoted_value(&mut rest)? } else { plain_value(&mut rest) };
        let is_password = name == "password";
        pairs.push(Parameter { name, value, may_be_secret });
        may_be_secret = is_password && !quoted;
    }
}

fn skip_blanks(rest: &mut Peekable<Chars<'_>>) {
    while rest.next_if(char::is_ascii_whitespace).is_some() {}
}

fn name(rest: &mut Peekable<Chars<'_>>) -> String {
    let mut name = String::new();
    while let Some(character) = rest.next_if(|c| *c != '=' && !c.is_ascii_whitespace()) {
        name.push(character);
    }
    name
}

fn plain_value(rest: &mut Peekable<Chars<'_>>) -> String {
    let mut value = String::new();
    while let Some(character) = rest.next_if(|c| !c.is_ascii_whitespace()) {
        match character {
            '\\' => value.extend(rest.next()),
            _ => value.push(character),
        }
    }
    value
}

/// Reads up to the closing quote.
fn quoted_value(rest: &mut Peekable<Chars<'_>>) -> Result<String, Fault> {
    let mut value = String::new();
    loop {
        match rest.next() {
            None => return Err(Fault::Form("a quote that is not closed")),
            Some('\\') => value.extend(rest.next()),
            Some('\'') if rest.next_if_eq(&'\'').is_some() => value.push('\''),
            Some('\'') => return Ok(value),
            Some(character) => value.push(character),
        }
    }
}
