//! From a type's tokens to its `impl ::mainspring::Job`.
//!
//! Paths are absolute, so that nothing in the user's scope changes their meaning.

use std::time::Duration;

use proc_macro2::TokenStream;
use quote::{quote, quote_spanned};
use syn::ext::IdentExt;
use syn::{Data, DeriveInput, Error, Ident, Result};

use crate::attribute::{self, Attributes};
use crate::limit::Limit;
use crate::value::{self, Backoff};

/// Expands `#[derive(Job)]` on `input`.
pub(crate) fn job(input: TokenStream) -> Result<TokenStream> {
    let input: DeriveInput = syn::parse2(input)?;
    if !input.generics.params.is_empty() {
        return Err(Error::new_spanned(
            &input.generics,
            "a job's kind names one type; derive Job on a concrete type",
        ));
    }
    let attributes = attribute::read(&input.attrs)?;
    let kind = kind(&input.ident, &attributes)?;
    let result = attributes.result.as_ref().map_or_else(|| quote!(()), |result| quote!(#result));
    let aliases = aliases(&kind, &attributes)?;
    let queue = attributes.queue.as_ref().map(|queue| quote!(const QUEUE: &'static str = #queue;));
    let options = options(&attributes);
    let schedule = schedule(&input.data, &attributes)?;
    let name = &input.ident;
    let limits = limits(&attributes);
    let (declared, constants) = signals(&kind, name, &attributes);
    Ok(quote! {
        #constants

        #[automatically_derived]
        impl ::mainspring::Job for #name {
            type Result = #result;
            const KIND: &'static str = #kind;
            #aliases
            #queue
            #declared
            #schedule
            #limits
            #options
        }
    })
}

/// The names that a kind declares, and a typed constant for each.
fn signals(kind: &str, name: &Ident, attributes: &Attributes) -> (Option<TokenStream>, Option<TokenStream>) {
    if attributes.signals.is_empty() {
        return (None, None);
    }
    let names: Vec<String> = attributes.signals.iter().map(|(name, _)| name.unraw().to_string()).collect();
    let constants = attributes.signals.iter().zip(&names).map(|((ident, sent), name)| {
        let constant = Ident::new(&name.to_uppercase(), ident.span());
        let doc = format!("The signal `{name}` of jobs of kind `{kind}`.");
        quote! {
            #[doc = #doc]
            pub const #constant: ::mainspring::SignalType<#sent> = ::mainspring::SignalType::new(#name);
        }
    });
    let constants = quote! {
        #[automatically_derived]
        impl #name { #(#constants)* }
    };
    let checks =
        attributes.signals.iter().zip(&names).map(
            |((_, sent), name)| quote!(#name => ::mainspring::SignalType::<#sent>::new(#name).check(body),),
        );
    let declared = quote! {
        const SIGNALS: &'static [&'static str] = &[#(#names),*];

        fn check_signal(name: &str, body: &[u8]) -> ::core::result::Result<(), ::mainspring::Error> {
            match name {
                #(#checks)*
                _ => ::core::result::Result::Ok(()),
            }
        }
    };
    (Some(declared), Some(constants))
}

fn kind(name: &Ident, attributes: &Attributes) -> Result<String> {
    if let Some(kind) = &attributes.kind {
        return Ok(kind.clone());
    }
    let kind = name.unraw().to_string();
    match value::name_fault(&kind) {
        None => Ok(kind),
        Some(fault) => Err(Error::new(
            name.span(),
            format!("the type's name cannot be its kind: it {fault}; add #[job(kind = \"…\")]"),
        )),
    }
}

fn aliases(kind: &str, attributes: &Attributes) -> Result<Option<TokenStream>> {
    let aliases = &attributes.aliases;
    if let Some(alias) = aliases.iter().find(|alias| alias.value() == kind) {
        return Err(Error::new(alias.span(), format!("alias {kind:?} is the kind itself")));
    }
    Ok((!aliases.is_empty()).then(|| quote!(const ALIASES: &'static [&'static str] = &[#(#aliases),*];)))
}

/// Each fire enqueues the job without fields, if it has none, and otherwise its default.
fn schedule(data: &Data, attributes: &Attributes) -> Result<Option<TokenStream>> {
    let Some(times) = &attributes.schedule else {
        return match &attributes.zone {
            Some(zone) => Err(Error::new(zone.span(), "a zone needs a schedule")),
            None => Ok(None),
        };
    };
    let zone = attributes.zone.as_ref().map(|zone| quote!(.zone(#zone)));
    let bare = matches!(data, Data::Struct(data) if data.fields.is_empty());
    // At the attribute, which is what asks for it.
    let job = if bare {
        quote!(Self {})
    } else {
        quote_spanned!(times.span()=> ::mainspring::schedule::scheduled_default::<Self>())
    };
    Ok(Some(quote! {
        fn schedule() -> ::core::option::Option<::mainspring::schedule::NewSchedule> {
            let job = #job;
            let schedule = ::mainspring::schedule::NewSchedule::of(<Self as ::mainspring::Job>::KIND, &job);
            ::core::option::Option::Some(schedule.times(#times) #zone)
        }
    }))
}

fn limits(attributes: &Attributes) -> Option<TokenStream> {
    if attributes.limits.is_empty() {
        return None;
    }
    let taken = attributes.limits.iter().map(Limit::taken);
    let seeds: Vec<_> = attributes.limits.iter().filter_map(Limit::seed).collect();
    let seeds = (!seeds.is_empty()).then(|| {
        quote! {
            fn limit_seeds() -> ::std::vec::Vec<::mainspring::limit::NewLimit> {
                ::std::vec![#(#seeds),*]
            }
        }
    });
    Some(quote! {
        fn limits(
            &self,
        ) -> ::core::result::Result<::std::vec::Vec<::mainspring::limit::LimitUse>, ::mainspring::Error> {
            ::core::result::Result::Ok(::std::vec![#(#taken),*])
        }
        #seeds
    })
}

fn options(attributes: &Attributes) -> Option<TokenStream> {
    let priority = attributes.priority.map(|priority| quote!(.priority(#priority)));
    let max_attempts = attributes.max_attempts.map(|attempts| quote!(.max_attempts(#attempts)));
    let timeout = attributes.timeout.map(|timeout| {
        let timeout = duration(timeout);
        quote!(.timeout(#timeout))
    });
    let backoff = attributes.backoff.map(backoff);
    if priority.is_none() && max_attempts.is_none() && timeout.is_none() && backoff.is_none() {
        return None;
    }
    Some(quote! {
        fn options() -> ::mainspring::JobOptions {
            <::mainspring::JobOptions as ::core::default::Default>::default() #priority #max_attempts #timeout
                #backoff
        }
    })
}

fn backoff(backoff: Backoff) -> TokenStream {
    match backoff {
        Backoff::Exponential(base, max) => {
            let (base, max) = (duration(base), duration(max));
            quote!(.backoff(::mainspring::Backoff::Exponential { base: #base, max: #max }))
        }
        Backoff::Linear(step, max) => {
            let (step, max) = (duration(step), duration(max));
            quote!(.backoff(::mainspring::Backoff::Linear { step: #step, max: #max }))
        }
        Backoff::Fixed(delay) => {
            let delay = duration(delay);
            quote!(.backoff(::mainspring::Backoff::Fixed(#delay)))
        }
    }
}

pub(crate) fn duration(duration: Duration) -> TokenStream {
    let (secs, nanos) = (duration.as_secs(), duration.subsec_nanos());
    quote!(::core::time::Duration::new(#secs, #nanos))
}

#[cfg(test)]
mod tests;
