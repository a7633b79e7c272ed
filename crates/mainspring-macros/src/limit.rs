//! `limit(tenant, key = self.tenant, max = 3)`: a limit that the jobs of a type take part in.

use std::time::Duration;

use proc_macro2::{Span, TokenStream};
use quote::quote;
use syn::ext::IdentExt;
use syn::meta::ParseNestedMeta;
use syn::spanned::Spanned;
use syn::{Error, Expr, Ident, LitInt, LitStr, Result, Token, parenthesized};

use crate::expand::duration;
use crate::value;

/// The most limits that one job names.
pub(crate) const LIMITS_MAX: usize = 8;
/// The most units that one job takes.
const UNITS_MAX: u16 = 16;
/// The highest maximum, count and burst.
const NUMBER_MAX: u32 = 1_000_000;

const KNOWN: &str = "`key`, `units`, `max`, `rate`, `burst`, `revision`";

/// A limit as it is written.
pub(crate) struct Limit {
    pub(crate) name: String,
    pub(crate) span: Span,
    pub(crate) key: Option<Expr>,
    units: Option<u16>,
    max: Option<u32>,
    rate: Option<(u32, Duration)>,
    burst: Option<u32>,
    revision: Option<u32>,
}

impl Limit {
    /// Whether it says how much the limit admits.
    pub(crate) fn is_defined(&self) -> bool {
        self.max.is_some() || self.rate.is_some()
    }

    /// What one job takes of it.
    pub(crate) fn taken(&self) -> TokenStream {
        let name = &self.name;
        let key = self.key.as_ref().map(|key| quote!(.key(::std::string::ToString::to_string(&(#key)))));
        let units = self.units.map(|units| quote!(.units(#units)));
        quote!(::mainspring::limit::LimitUse::new(::mainspring::limit::LimitName::new(#name)?) #key #units)
    }

    /// What code says of it, if it says something.
    pub(crate) fn seed(&self) -> Option<TokenStream> {
        if !self.is_defined() {
            return None;
        }
        let name = &self.name;
        let max = self.max.map(|max| quote!(.max(#max)));
        let rate = self.rate.map(|(count, per)| {
            let per = duration(per);
            let burst = self.burst.map(|burst| quote!(.burst(#burst)));
            quote!(.rate(::mainspring::limit::Rate::new(#count, #per) #burst))
        });
        let revision = self.revision.map(|revision| quote!(.revision(#revision)));
        Some(quote!(::mainspring::limit::NewLimit::new(#name) #max #rate #revision))
    }
}

/// Reads what stands in the parentheses. Wrong values are given to `remember`, and there is no limit then.
pub(crate) fn read(pair: &ParseNestedMeta<'_>, remember: &mut dyn FnMut(Error)) -> Result<Option<Limit>> {
    let content;
    parenthesized!(content in pair.input);
    if content.is_empty() {
        let fault = "a limit needs its name first: limit(gpu, max = 4)";
        return Err(Error::new(pair.path.span(), fault));
    }
    let (name, span) = if content.peek(LitStr) {
        let name: LitStr = content.parse()?;
        (name.value(), name.span())
    } else {
        let name = content.call(Ident::parse_any)?;
        if content.peek(Token![=]) {
            let fault = format!("a limit needs its name first: limit(gpu, {name} = …)");
            return Err(Error::new(name.span(), fault));
        }
        (name.unraw().to_string(), name.span())
    };
    let mut limit =
        Limit { name, span, key: None, units: None, max: None, rate: None, burst: None, revision: None };
    let mut faults = Vec::new();
    if let Some(fault) = value::name_fault(&limit.name) {
        faults.push(Error::new(span, format!("limit {:?} {fault}", limit.name)));
    }
    let (mut seen, mut needs) = (Vec::new(), Vec::new());
    while !content.is_empty() {
        content.parse::<Token![,]>()?;
        if content.is_empty() {
            break;
        }
        let word = content.call(Ident::parse_any)?;
        let what = word.to_string();
        if seen.contains(&what) {
            return Err(Error::new(word.span(), format!("`{what}` is given twice")));
        }
        if !["key", "units", "max", "rate", "burst", "revision"].contains(&what.as_str()) {
            return Err(Error::new(word.span(), format!("unknown part of a limit, known are {KNOWN}")));
        }
        content.parse::<Token![=]>()?;
        match what.as_str() {
            "key" => limit.key = Some(content.parse()?),
            "rate" => match rate(&content.parse()?) {
                Ok(rate) => limit.rate = Some(rate),
                Err(fault) => faults.push(fault),
            },
            "units" => match number(&what, &content.parse()?, u32::from(UNITS_MAX)) {
                Ok(units) => limit.units = u16::try_from(units).ok(),
                Err(fault) => faults.push(fault),
            },
            _ => {
                let most = if what == "revision" { u32::MAX } else { NUMBER_MAX };
                match (what.as_str(), number(&what, &content.parse()?, most)) {
                    ("max", Ok(number)) => limit.max = Some(number),
                    ("burst", Ok(number)) => limit.burst = Some(number),
                    (_, Ok(number)) => limit.revision = Some(number),
                    (_, Err(fault)) => faults.push(fault),
                }
                needs.push((what.clone(), word.span()));
            }
        }
        seen.push(what);
    }
    let has = |what: &str| seen.iter().any(|seen| seen == what);
    for (what, span) in needs {
        let fault = match what.as_str() {
            "burst" if !has("rate") => "a burst needs a rate: rate = \"10/s\", burst = 5",
            "revision" if !has("rate") && !has("max") => {
                "a revision needs what it is the revision of: `max` or `rate`"
            }
            _ => continue,
        };
        faults.push(Error::new(span, fault));
    }
    if let (Some(units), Some(max)) = (limit.units, limit.max)
        && u32::from(units) > max
    {
        let fault = format!("a job that takes {units} units never fits into a max of {max}");
        faults.push(Error::new(limit.span, fault));
    }
    let sound = faults.is_empty();
    faults.into_iter().for_each(remember);
    Ok(sound.then_some(limit))
}

fn number(what: &str, literal: &Expr, most: u32) -> Result<u32> {
    let number = match literal {
        Expr::Lit(lit) => match &lit.lit {
            syn::Lit::Int(number) => parse(number),
            _ => None,
        },
        _ => None,
    };
    number.filter(|number| (1..=most).contains(number)).ok_or_else(|| {
        Error::new(literal.span(), format!("{what} is a number from 1 to {most}, not {}", quote!(#literal)))
    })
}

fn parse(literal: &LitInt) -> Option<u32> {
    literal.base10_parse().ok()
}

/// A rate such as `10/s` or `100/5m`.
fn rate(literal: &LitStr) -> Result<(u32, Duration)> {
    let text = literal.value();
    let read = || {
        let (count, per) = text.split_once('/')?;
        let count: u32 = count.trim().parse().ok().filter(|count| (1..=NUMBER_MAX).contains(count))?;
        let per = per.trim();
        let per = if per.starts_with(|c: char| c.is_ascii_digit()) { per.into() } else { format!("1{per}") };
        value::parse_duration(&per).filter(|per| !per.is_zero()).map(|per| (count, per))
    };
    read().ok_or_else(|| {
        Error::new(literal.span(), format!("rate {text:?} is not of the form 10/s, 100/1m or 5/2h"))
    })
}
