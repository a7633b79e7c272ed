//! The URL form: `postgres://user:password@host:port,host2:port2/database?parameter=value&…`.
//!
//! It is taken apart into pairs of a name and a value, with libpq's rules: hosts and ports become lists with commas, a
//! host may be a percent-encoded directory or an IPv6 address in brackets, and `+` is a plus.
//!
//! # Invariants
//! - The host begins after the *last* `@` before the first `/` or `?`, and no `@` is accepted in the path: otherwise the
//!   tail of a password that is not encoded would be taken for a host or a database, and shown.

use std::fmt;

use super::fault::Fault;
use super::words::Parameter;

/// What an address in this form begins with.
const SCHEMES: [&str; 2] = ["postgres://", "postgresql://"];

/// What follows the scheme, if the text is a URL of ours.
pub(super) fn body(text: &str) -> Option<&str> {
    SCHEMES.iter().find_map(|scheme| text.strip_prefix(scheme))
}

/// Takes apart what follows the scheme.
pub(super) fn pairs(body: &str) -> Result<Vec<Parameter>, Fault> {
    let (authority, tail) = body.split_at(body.find(['/', '?']).unwrap_or(body.len()));
    let (path, query) = tail.split_once('?').unwrap_or((tail, ""));
    if path.contains('@') {
        return Err(Fault::Form(
            "an `@` after the host; in a password, `/` is written as %2F and `?` as %3F",
        ));
    }
    let mut pairs = Vec::new();
    let hosts = match authority.rsplit_once('@') {
        Some((credentials, hosts)) => {
            let (user, password) = credentials.split_once(':').unwrap_or((credentials, ""));
            push(&mut pairs, "user", decode(user)?);
            push(&mut pairs, "password", decode(password)?);
            hosts
        }
        None => authority,
    };
    let (names, ports) = split_hosts(hosts)?;
    push(&mut pairs, "host", names);
    push(&mut pairs, "port", ports);
    push(&mut pairs, "dbname", decode(path.strip_prefix('/').unwrap_or(path))?);
    if !query.is_empty() {
        for piece in query.split('&') {
            pairs.push(parameter(piece, query.contains('@'))?);
        }
    }
    Ok(pairs)
}

/// What is empty is left open, for the environment or a default.
fn push(pairs: &mut Vec<Parameter>, name: &str, value: String) {
    if !value.is_empty() {
        pairs.push(Parameter { name: name.to_owned(), value, may_be_secret: false });
    }
}

/// One `name=value` of the query.
fn parameter(piece: &str, may_be_secret: bool) -> Result<Parameter, Fault> {
    let (name, value) = match piece.split_once('=') {
        Some(pair) => pair,
        None if may_be_secret => return Err(Fault::unknown(piece, may_be_secret)),
        None => return Err(Fault::Form("a parameter without `=`")),
    };
    let (name, value) = (decode(name)?, decode(value)?);
    if name == "ssl" && value == "true" {
        // What URLs for Java say, which libpq reads as well.
        return Ok(Parameter { name: "sslmode".to_owned(), value: "require".to_owned(), may_be_secret });
    }
    Ok(Parameter { name, value, may_be_secret })
}

/// Splits `host:port,[::1]:port,…` into the names and the ports, each a list with commas.
pub(super) fn split_hosts(text: &str) -> Result<(String, String), Fault> {
    let (mut names, mut ports) = (Vec::new(), Vec::new());
    for part in text.split(',') {
        let (name, port) = split_port(part)?;
        names.push(decode(name)?);
        ports.push(decode(port)?);
    }
    Ok((names.join(","), ports.join(",")))
}

fn split_port(part: &str) -> Result<(&str, &str), Fault> {
    let (name, rest) = match part.strip_prefix('[') {
        Some(inner) => inner.split_once(']').ok_or(Fault::Form("an IPv6 address without its `]`"))?,
        None => part.split_at(part.find(':').unwrap_or(part.len())),
    };
    match rest.strip_prefix(':') {
        Some(port) => Ok((name, port)),
        None if rest.is_empty() => Ok((name, "")),
        None => Err(Fault::Form("something else than a port after `]`")),
    }
}

/// Replaces each `%xx` by its byte.
fn decode(text: &str) -> Result<String, Fault> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.bytes();
    while let Some(byte) = rest.next() {
        if byte != b'%' {
            bytes.push(byte);
            continue;
        }
        let mut digit = || rest.next().and_then(|byte| char::from(byte).to_digit(16));
        let (Some(high), Some(low)) = (digit(), digit()) else {
            return Err(Fault::Form(
                "a `%` that is not followed by two hexadecimal digits; `%` itself is %25",
            ));
        };
        bytes.push(u8::try_from(high * 16 + low).expect("two hexadecimal digits fit in a byte"));
    }
    String::from_utf8(bytes).map_err(|_| Fault::Form("percent-encoded bytes that are not UTF-8"))
}

/// Shows a path such that it can stand in a parameter of a URL.
pub(super) fn path(f: &mut fmt::Formatter<'_>, path: &str) -> fmt::Result {
    for (index, part) in path.split('/').enumerate() {
        let slash = if index > 0 { "/" } else { "" };
        write!(f, "{slash}{}", Encoded(part))?;
    }
    Ok(())
}

/// Shows a text such that it can stand anywhere in a URL.
pub(super) struct Encoded<'a>(pub(super) &'a str);

impl fmt::Display for Encoded<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for character in self.0.chars() {
            // A colon is kept for IPv6 addresses; letters of other alphabets are readable and harmless.
            if character.is_alphanumeric() || matches!(character, '-' | '_' | '.' | '~') {
                write!(f, "{character}")?;
            } else if character == ':' && self.0.parse::<std::net::Ipv6Addr>().is_ok() {
                f.write_str(":")?;
            } else {
                let mut buffer = [0; 4];
                for byte in character.encode_utf8(&mut buffer).bytes() {
                    write!(f, "%{byte:02X}")?;
                }
            }
        }
        Ok(())
    }
}
