//! Service files: named sets of parameters, `[name]` and then a `parameter=value` per line.

use std::path::PathBuf;

use super::fault::Fault;
use super::words::Parameter;

/// The largest service file that is read.
const MAX_BYTES: u64 = 1 << 20;

/// The parameters of a service, from the first file that exists and has it.
pub(super) fn pairs(service: &str, env: &dyn Fn(&str) -> Option<String>) -> Result<Vec<Parameter>, Fault> {
    for path in files(env) {
        let Ok(metadata) = std::fs::metadata(&path) else { continue };
        let read = if metadata.len() > MAX_BYTES {
            Err(std::io::Error::other("it is too large"))
        } else {
            std::fs::read_to_string(&path)
        };
        let text = read.map_err(|source| Fault::File {
            what: "service file",
            path: path.display().to_string(),
            source,
        })?;
        if let Some(pairs) = section(&text, service)? {
            return Ok(pairs);
        }
    }
    Err(Fault::NoService)
}

/// The user's file, then the system's.
fn files(env: &dyn Fn(&str) -> Option<String>) -> Vec<PathBuf> {
    let own = env("PGSERVICEFILE")
        .map(PathBuf::from)
        .or_else(|| env("HOME").map(|home| PathBuf::from(home).join(".pg_service.conf")));
    let system = env("PGSYSCONFDIR").map(|dir| PathBuf::from(dir).join("pg_service.conf"));
    own.into_iter().chain(system).collect()
}

/// The parameters under `[service]`; `None` if there is no such section.
pub(super) fn section(text: &str, service: &str) -> Result<Option<Vec<Parameter>>, Fault> {
    let mut pairs: Option<Vec<Parameter>> = None;
    for line in text.lines().map(str::trim) {
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        if let Some(name) = line.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')) {
            if pairs.is_some() {
                break;
            }
            pairs = (name == service).then(Vec::new);
        } else if let Some(pairs) = &mut pairs {
            let (name, value) =
                line.split_once('=').ok_or(Fault::Form("a line without `=` in the service file"))?;
            let pair = Parameter { name: name.to_owned(), value: value.to_owned(), may_be_secret: false };
            pairs.push(pair);
        }
    }
    Ok(pairs)
}
