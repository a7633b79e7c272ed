//! The derive macro of Mainspring: `#[derive(Job)]`.
//!
//! A job type names its kind, its result and its defaults once, beside its fields. The derive turns that into an
//! implementation of `mainspring::Job` and refuses at compile time what the engine would refuse at run time. Use it
//! through the `mainspring` crate, which re-exports it; the generated code names `::mainspring`.
//!
//! # Invariants
//! - What compiles is valid: names, priority, attempts, timeout and limits are within the engine's bounds. (The engine reads
//!   a schedule when a node starts.)
//! - An attribute that is absent generates nothing, so the trait's own default decides.
//! - Every mistake in one attribute is reported in one compilation, at the value that is wrong.

mod attribute;
mod expand;
mod limit;
mod value;

/// Implements `mainspring::Job` for a struct or an enum that is `Serialize` and `Deserialize`.
///
/// ```text
/// #[derive(Serialize, Deserialize, Job)]
/// #[job(kind = "welcome", result = String, queue = "mail", max_attempts = 5, timeout = "30s")]
/// struct Welcome {
///     user: u64,
/// }
/// ```
///
/// All attributes are optional:
///
/// | attribute | meaning | default |
/// |---|---|---|
/// | `kind = "welcome"` | the stored name, by which nodes find the handler | the type's name as written |
/// | `result = String` | the type that the handler returns | `()` |
/// | `queue = "mail"` | the queue when the caller names none | `"default"` |
/// | `priority = 3` | 0 (first) to 9 (last) | the engine's |
/// | `max_attempts = 5` | attempts before the job fails for good, 1 to 10,000 | the engine's |
/// | `timeout = "30s"` | time one attempt may run, in `ms`, `s`, `m`, `h` and `d` | for ever |
/// | `backoff = "exponential:1s..1h"` | the delay between attempts; also `linear:10s..5m`, `fixed:30s` | the queue's |
/// | `aliases = ["greet"]` | kinds of jobs stored under earlier names | none |
/// | `schedule = "0 4 * * *"` | when the engine enqueues a job of the kind; the type implements `Default` | never |
/// | `zone = "Europe/Berlin"` | the time zone of the schedule | `"UTC"` |
/// | `limit(tenant, key = self.tenant, max = 3)` | a limit that its jobs take part in; also `units = 4`, `rate = "10/s"`, `burst = 5`, `revision = 2`; up to eight | none |
/// | `signals(approved = bool)` | signals it takes, each with a typed constant: `Welcome::APPROVED` | any |
///
/// Kinds, aliases and queues are 1 to 128 bytes of `[A-Za-z0-9._:-]`. A generic type does not compile, because one kind
/// names one type.
#[proc_macro_derive(Job, attributes(job))]
pub fn derive_job(input: proc_macro::TokenStream) -> proc_macro::TokenStream {
    expand::job(input.into()).unwrap_or_else(|error| error.to_compile_error()).into()
}
