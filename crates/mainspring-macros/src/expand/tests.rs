//! Each attribute's expansion, and each mistake's message.

use proc_macro2::TokenStream;
use quote::quote;

/// Compares as text, which leaves spans out.
fn assert_expands(input: TokenStream, expected: &TokenStream) {
    let actual = super::job(input).expect("the input is valid");
    assert_eq!(actual.to_string(), expected.to_string());
}

/// Every message of the expansion's error, in order.
fn errors(input: TokenStream) -> Vec<String> {
    match super::job(input) {
        Ok(expansion) => panic!("expected an error, got {expansion}"),
        Err(error) => error.into_iter().map(|error| error.to_string()).collect(),
    }
}

#[test]
fn bare_type_takes_its_name_and_no_output() {
    assert_expands(
        quote! { struct Welcome { user: u64, } },
        &quote! {
            #[automatically_derived]
            impl ::mainspring::Job for Welcome {
                type Result = ();
                const KIND: &'static str = "Welcome";
            }
        },
    );
}

#[test]
fn every_attribute_has_its_place() {
    assert_expands(
        quote! {
            #[derive(Debug)]
            #[job(kind = "welcome", result = Vec<String>, queue = "mail", priority = 3, max_attempts = 5)]
            #[job(aliases = ["greet", "hello.v1"], timeout = "1500ms")]
            enum Welcome { Mail, Letter }
        },
        &quote! {
            #[automatically_derived]
            impl ::mainspring::Job for Welcome {
                type Result = Vec<String>;
                const KIND: &'static str = "welcome";
                const ALIASES: &'static [&'static str] = &["greet", "hello.v1"];
                const QUEUE: &'static str = "mail";
                fn options() -> ::mainspring::JobOptions {
                    <::mainspring::JobOptions as ::core::default::Default>::default()
                        .priority(3u8)
                        .max_attempts(5u16)
                        .timeout(::core::time::Duration::new(1u64, 500000000u32))
                }
            }
        },
    );
}

#[test]
fn one_option_alone_is_enough_for_options() {
    let expansion = super::job(quote! { #[job(priority = 0)] struct A; }).expect("valid").to_string();
    let options = quote!(<::mainspring::JobOptions as ::core::default::Default>::default().priority(0u8));
    assert!(expansion.contains(&options.to_string()), "{expansion}");
}

#[test]
fn raw_identifier_names_its_kind_without_the_mark() {
    assert_expands(
        quote! { struct r#Move; },
        &quote! {
            #[automatically_derived]
            impl ::mainspring::Job for r#Move {
                type Result = ();
                const KIND: &'static str = "Move";
            }
        },
    );
}

#[test]
fn generic_types_are_refused() {
    let message = ["a job's kind names one type; derive Job on a concrete type"];
    assert_eq!(errors(quote! { struct Wrap<T>(T); }), message);
    assert_eq!(errors(quote! { struct Borrowed<'a>(&'a str); }), message);
    assert_eq!(errors(quote! { struct Sized<const N: usize>; }), message);
}

#[test]
fn unknown_attribute_lists_the_known_ones() {
    let known = "unknown attribute; the known ones are `kind`, `result`, `queue`, `priority`, `max_attempts`, `timeout`, `backoff`, `aliases`, \
                 `signals`, `limit`, `schedule`, `zone`";
    assert_eq!(errors(quote! { #[job(retries = 3)] struct A; }), [known]);
    assert_eq!(errors(quote! { #[job(job::kind = "a")] struct A; }), [known]);
}

#[test]
fn a_zone_needs_a_schedule() {
    assert_eq!(errors(quote! { #[job(zone = "UTC")] struct A; }), ["a zone needs a schedule"]);
    assert!(super::job(quote! { #[job(schedule = "@daily", zone = "UTC")] struct A; }).is_ok());
}

#[test]
fn attribute_is_given_once() {
    assert_eq!(errors(quote! { #[job(kind = "a", kind = "b")] struct A; }), ["`kind` is given twice"]);
    assert_eq!(
        errors(quote! { #[job(priority = 1)] #[job(priority = 2)] struct A; }),
        ["`priority` is given twice"]
    );
}

#[test]
fn names_outside_their_bounds_are_refused() {
    let long = "q".repeat(129);
    assert_eq!(errors(quote! { #[job(kind = "")] struct A; }), [r#"kind "" is empty"#]);
    assert_eq!(
        errors(quote! { #[job(queue = "'; drop table")] struct A; }),
        [r#"queue "'; drop table" contains '\'', only [A-Za-z0-9._:-] is allowed"#]
    );
    assert_eq!(
        errors(quote! { #[job(queue = #long)] struct A; }),
        [format!("queue {long:?} is 129 bytes long, at most 128 are allowed")]
    );
    assert_eq!(
        errors(quote! { #[job(aliases = ["old name"])] struct A; }),
        [r#"alias "old name" contains ' ', only [A-Za-z0-9._:-] is allowed"#]
    );
}

#[test]
fn type_name_that_is_no_kind_asks_for_one() {
    assert_eq!(
        errors(quote! { struct Größe; }),
        ["the type's name cannot be its kind: it contains 'ö', only [A-Za-z0-9._:-] is allowed; \
             add #[job(kind = \"…\")]"]
    );
    assert!(super::job(quote! { #[job(kind = "size")] struct Größe; }).is_ok());
}

#[test]
fn aliases_differ_from_the_kind_and_from_each_other() {
    assert_eq!(errors(quote! { #[job(aliases = ["A"])] struct A; }), [r#"alias "A" is the kind itself"#]);
    assert_eq!(errors(quote! { #[job(aliases = ["b", "b"])] struct A; }), [r#"alias "b" is given twice"#]);
}

#[test]
fn numbers_outside_their_bounds_are_refused() {
    assert!(super::job(quote! { #[job(priority = 9, max_attempts = 1)] struct A; }).is_ok());
    assert!(super::job(quote! { #[job(max_attempts = 10000)] struct A; }).is_ok());
    assert_eq!(
        errors(quote! { #[job(priority = 10)] struct A; }),
        ["priority is 0 (first) to 9 (last), not 10"]
    );
    assert_eq!(
        errors(quote! { #[job(priority = -1)] struct A; }),
        ["priority is 0 (first) to 9 (last), not -1"]
    );
    assert_eq!(errors(quote! { #[job(max_attempts = 0)] struct A; }), ["max_attempts is 1 to 10000, not 0"]);
    assert_eq!(
        errors(quote! { #[job(max_attempts = 10001)] struct A; }),
        ["max_attempts is 1 to 10000, not 10001"]
    );
}

#[test]
fn backoff_becomes_a_value() {
    let code =
        super::job(quote! { #[job(backoff = "linear:10s..5m")] struct A; }).expect("a job").to_string();
    let value = quote!(.backoff(::mainspring::Backoff::Linear {
        step: ::core::time::Duration::new(10u64, 0u32), max: ::core::time::Duration::new(300u64, 0u32)
    }));
    assert!(code.contains(&value.to_string()), "{code}");
    assert_eq!(
        errors(quote! { #[job(backoff = "often")] struct A; }),
        ["backoff \"often\" is not of the form exponential:1s..1h, linear:10s..5m or fixed:30s"]
    );
}

#[test]
fn timeout_needs_a_positive_number_and_a_unit() {
    for text in ["30", "0s", "half a day", "1h30"] {
        assert_eq!(
            errors(quote! { #[job(timeout = #text)] struct A; }),
            [format!("timeout {text:?} is not a positive duration: write 10ms, 30s, 5m, 2h, 1d or 1h30m")]
        );
    }
}

#[test]
fn all_wrong_values_are_reported_at_once() {
    let errors =
        errors(quote! { #[job(kind = "", priority = 10, timeout = "soon", aliases = ["", "a"])] struct A; });
    assert_eq!(errors.len(), 4, "{errors:?}");
}

#[test]
fn wrong_type_of_value_is_refused_by_the_parser() {
    assert_eq!(errors(quote! { #[job(kind = welcome)] struct A; }), ["expected string literal"]);
    assert_eq!(errors(quote! { #[job(priority = "high")] struct A; }), ["expected integer literal"]);
    assert_eq!(errors(quote! { #[job(kind)] struct A; }), ["expected `=`"]);
}

#[test]
fn signals_are_declared_and_have_typed_constants() {
    let expanded = super::job(
        quote! { #[job(kind = "order", signals(approved = bool, vote = Vec<u32>))] struct Order; },
    )
    .expect("it expands")
    .to_string();
    for part in [
        "pub const APPROVED : :: mainspring :: SignalType < bool > = :: mainspring :: SignalType :: new (\"approved\")",
        "pub const VOTE : :: mainspring :: SignalType < Vec < u32 > >",
        "const SIGNALS : & 'static [& 'static str] = & [\"approved\" , \"vote\"]",
        "\"vote\" => :: mainspring :: SignalType :: < Vec < u32 > > :: new (\"vote\") . check (body) ,",
    ] {
        assert!(expanded.contains(part), "{part} is not in {expanded}");
    }
    let twice = errors(quote! { #[job(signals(a = u8, a = u8))] struct A; });
    assert_eq!(twice, ["signal `a` is given twice"]);
}

#[test]
fn limits_say_what_a_job_takes_and_what_code_says_of_them() {
    assert_expands(
        quote! {
            #[job(limit(tenant, key = self.tenant, max = 3, revision = 2), limit("gpu.a", units = 4))]
            #[job(limit(bank, rate = "100/1m", burst = 10))]
            struct Render { tenant: String }
        },
        &quote! {
            #[automatically_derived]
            impl ::mainspring::Job for Render {
                type Result = ();
                const KIND: &'static str = "Render";
                fn limits(
                    &self,
                ) -> ::core::result::Result<::std::vec::Vec<::mainspring::limit::LimitUse>, ::mainspring::Error> {
                    ::core::result::Result::Ok(::std::vec![
                        ::mainspring::limit::LimitUse::new(::mainspring::limit::LimitName::new("tenant")?)
                            .key(::std::string::ToString::to_string(&(self.tenant))),
                        ::mainspring::limit::LimitUse::new(::mainspring::limit::LimitName::new("gpu.a")?)
                            .units(4u16),
                        ::mainspring::limit::LimitUse::new(::mainspring::limit::LimitName::new("bank")?)
                    ])
                }
                fn limit_seeds() -> ::std::vec::Vec<::mainspring::limit::NewLimit> {
                    ::std::vec![
                        ::mainspring::limit::NewLimit::new("tenant").max(3u32).revision(2u32),
                        ::mainspring::limit::NewLimit::new("bank").rate(
                            ::mainspring::limit::Rate::new(100u32, ::core::time::Duration::new(60u64, 0u32))
                                .burst(10u32)
                        )
                    ]
                }
            }
        },
    );
}

#[test]
fn a_job_may_take_two_keys_of_one_limit() {
    let two = quote! {
        #[job(limit(account, key = self.from, max = 1), limit(account, key = self.to))]
        struct Transfer { from: u64, to: u64 }
    };
    assert!(super::job(two).is_ok());
    assert_eq!(
        errors(quote! { #[job(limit(a, max = 1), limit(a))] struct A; }),
        ["limit `a` is named twice, and not with a key each time"]
    );
    assert_eq!(
        errors(quote! { #[job(limit(a, key = 1, max = 1), limit(a, key = 2, max = 2))] struct A; }),
        ["limit `a` is defined twice: give `max` and `rate` once"]
    );
}

#[test]
fn mistakes_in_limits_are_named() {
    let known = "unknown part of a limit, known are `key`, `units`, `max`, `rate`, `burst`, `revision`";
    assert_eq!(errors(quote! { #[job(limit(a, most = 3))] struct A; }), [known]);
    let named = "a limit needs its name first: limit(gpu, max = …)";
    assert_eq!(errors(quote! { #[job(limit(max = 3))] struct A; }), [named]);
    assert_eq!(
        errors(quote! { #[job(limit())] struct A; }),
        ["a limit needs its name first: limit(gpu, max = 4)"]
    );
    assert_eq!(errors(quote! { #[job(limit(a, max = 1, max = 2))] struct A; }), ["`max` is given twice"]);
    assert_eq!(
        errors(quote! { #[job(limit("a b", max = 1))] struct A; }),
        [r#"limit "a b" contains ' ', only [A-Za-z0-9._:-] is allowed"#]
    );
    assert_eq!(
        errors(quote! { #[job(limit(a, burst = 5))] struct A; }),
        ["a burst needs a rate: rate = \"10/s\", burst = 5"]
    );
    assert_eq!(
        errors(quote! { #[job(limit(a, revision = 5))] struct A; }),
        ["a revision needs what it is the revision of: `max` or `rate`"]
    );
    assert_eq!(
        errors(quote! { #[job(limit(a, units = 4, max = 3))] struct A; }),
        ["a job that takes 4 units never fits into a max of 3"]
    );
    for rate in ["10", "10/", "0/s", "x/s", "10/fortnight", "10/0s", "2000000/s"] {
        assert_eq!(
            errors(quote! { #[job(limit(a, rate = #rate))] struct A; }),
            [format!("rate {rate:?} is not of the form 10/s, 100/1m or 5/2h")]
        );
    }
    // All at once.
    assert_eq!(
        errors(quote! { #[job(limit(a, units = 17, max = 0, rate = "often"))] struct A; }),
        [
            "units is a number from 1 to 16, not 17",
            "max is a number from 1 to 1000000, not 0",
            "rate \"often\" is not of the form 10/s, 100/1m or 5/2h",
        ]
    );
    let nine: Vec<_> = (0..9).map(|n| format!("l{n}")).collect();
    assert_eq!(errors(quote! { #[job(#(limit(#nine)),*)] struct A; }), ["a job names at most 8 limits"]);
}
