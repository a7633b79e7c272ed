//! `#[job(…)]`: what a job type says about itself.
//!
//! Parsing and checking are one pass over `key = value` pairs. A wrong value is remembered and parsing goes on, so one
//! compilation reports every mistake; only broken syntax stops it.

use std::time::Duration;

use syn::meta::ParseNestedMeta;
use syn::punctuated::Punctuated;
use syn::{Attribute, Error, Ident, LitStr, Result, Token, Type, bracketed};

use crate::limit::{self, Limit};
use crate::value;

/// The keys in the order of the documentation; an unknown key's error lists them.
const KNOWN: [&str; 12] = [
    "kind",
    "result",
    "queue",
    "priority",
    "max_attempts",
    "timeout",
    "backoff",
    "aliases",
    "signals",
    "limit",
    "schedule",
    "zone",
];

/// The checked attributes of one type. What is `None` or empty was not written.
#[derive(Default)]
pub(crate) struct Attributes {
    pub(crate) kind: Option<String>,
    pub(crate) result: Option<Type>,
    pub(crate) queue: Option<String>,
    pub(crate) priority: Option<u8>,
    pub(crate) max_attempts: Option<u16>,
    pub(crate) timeout: Option<Duration>,
    pub(crate) backoff: Option<value::Backoff>,
    pub(crate) aliases: Vec<LitStr>,
    pub(crate) signals: Vec<(Ident, Type)>,
    pub(crate) limits: Vec<Limit>,
    pub(crate) schedule: Option<LitStr>,
    pub(crate) zone: Option<LitStr>,
}

/// Reads all `#[job(…)]` attributes of a type; several add up.
pub(crate) fn read(attributes: &[Attribute]) -> Result<Attributes> {
    let mut reader = Reader::default();
    for attribute in attributes.iter().filter(|attribute| attribute.path().is_ident("job")) {
        attribute.parse_nested_meta(|pair| reader.pair(&pair))?;
    }
    match reader.fault {
        None => Ok(reader.read),
        Some(fault) => Err(fault),
    }
}

#[derive(Default)]
struct Reader {
    read: Attributes,
    seen: Vec<String>,
    fault: Option<Error>,
}

impl Reader {
    fn pair(&mut self, pair: &ParseNestedMeta<'_>) -> Result<()> {
        let key = pair.path.get_ident().map(ToString::to_string).unwrap_or_default();
        if self.seen.contains(&key) {
            return Err(pair.error(format!("`{key}` is given twice")));
        }
        let unknown = || format!("unknown attribute; the known ones are `{}`", KNOWN.join("`, `"));
        match key.as_str() {
            "kind" => self.read.kind = self.checked(value::name("kind", &pair.value()?.parse()?)),
            "result" => self.read.result = Some(pair.value()?.parse()?),
            "queue" => self.read.queue = self.checked(value::name("queue", &pair.value()?.parse()?)),
            "priority" => self.read.priority = self.checked(value::priority(&pair.value()?.parse()?)),
            "max_attempts" => {
                self.read.max_attempts = self.checked(value::max_attempts(&pair.value()?.parse()?));
            }
            "timeout" => self.read.timeout = self.checked(value::timeout(&pair.value()?.parse()?)),
            "backoff" => self.read.backoff = self.checked(value::backoff(&pair.value()?.parse()?)),
            "aliases" => self.aliases(pair)?,
            "signals" => self.signals(pair)?,
            // One job may name several.
            "limit" => {
                let limit = limit::read(pair, &mut |fault| self.remember(fault))?;
                self.limit(limit);
                return Ok(());
            }
            // The engine reads both when a node starts: it knows cron and the zones.
            "schedule" => self.read.schedule = Some(pair.value()?.parse()?),
            "zone" => self.read.zone = Some(pair.value()?.parse()?),
            _ => return Err(pair.error(unknown())),
        }
        self.seen.push(key);
        Ok(())
    }

    fn aliases(&mut self, pair: &ParseNestedMeta<'_>) -> Result<()> {
        let list;
        let value = pair.value()?;
        bracketed!(list in value);
        for alias in Punctuated::<LitStr, Token![,]>::parse_terminated(&list)? {
            if self.read.aliases.iter().any(|other| other.value() == alias.value()) {
                self.remember(Error::new(alias.span(), format!("alias {:?} is given twice", alias.value())));
            } else if self.checked(value::name("alias", &alias)).is_some() {
                self.read.aliases.push(alias);
            }
        }
        Ok(())
    }

    fn signals(&mut self, pair: &ParseNestedMeta<'_>) -> Result<()> {
        pair.parse_nested_meta(|signal| {
            let Some(name) = signal.path.get_ident() else {
                return Err(signal.error("a signal's name is one identifier"));
            };
            if self.read.signals.iter().any(|(other, _)| other == name) {
                return Err(signal.error(format!("signal `{name}` is given twice")));
            }
            self.read.signals.push((name.clone(), signal.value()?.parse()?));
            Ok(())
        })
    }

    /// Two of one name are two keys of one limit, which one of them defines.
    fn limit(&mut self, limit: Option<Limit>) {
        let Some(limit) = limit else { return };
        if self.read.limits.len() == limit::LIMITS_MAX {
            let fault = format!("a job names at most {} limits", limit::LIMITS_MAX);
            return self.remember(Error::new(limit.span, fault));
        }
        let same = || self.read.limits.iter().filter(|other| other.name == limit.name);
        if same().any(|other| other.key.is_none() || limit.key.is_none()) {
            let fault = format!("limit `{}` is named twice, and not with a key each time", limit.name);
            return self.remember(Error::new(limit.span, fault));
        }
        if limit.is_defined() && same().any(Limit::is_defined) {
            let fault = format!("limit `{}` is defined twice: give `max` and `rate` once", limit.name);
            return self.remember(Error::new(limit.span, fault));
        }
        self.read.limits.push(limit);
    }

    fn checked<T>(&mut self, value: Result<T>) -> Option<T> {
        value.map_err(|fault| self.remember(fault)).ok()
    }

    fn remember(&mut self, fault: Error) {
        match &mut self.fault {
            None => self.fault = Some(fault),
            Some(faults) => faults.combine(fault),
        }
    }
}
