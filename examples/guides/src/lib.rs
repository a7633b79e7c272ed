//! The code of the README and the guides, compiled and run by `cargo test --doc`.
//!
//! There is nothing else here: each module is one page, and each block of Rust on it a test.

#[cfg(doctest)]
mod pages {
    #[doc = include_str!("../../../README.md")]
    mod readme {}
    #[doc = include_str!("../../../docs/guides/getting-started.md")]
    mod getting_started {}
    #[doc = include_str!("../../../docs/guides/writing-jobs.md")]
    mod writing_jobs {}
    #[doc = include_str!("../../../docs/guides/transactions.md")]
    mod transactions {}
    #[doc = include_str!("../../../docs/guides/nodes.md")]
    mod nodes {}
    #[doc = include_str!("../../../docs/guides/workflows.md")]
    mod workflows {}
    #[doc = include_str!("../../../docs/guides/branches.md")]
    mod branches {}
    #[doc = include_str!("../../../docs/guides/output.md")]
    mod output {}
    #[doc = include_str!("../../../docs/guides/schedules.md")]
    mod schedules {}
    #[doc = include_str!("../../../docs/guides/limits.md")]
    mod limits {}
    #[doc = include_str!("../../../docs/guides/changing-code.md")]
    mod changing_code {}
    #[doc = include_str!("../../../docs/guides/exactly-once.md")]
    mod exactly_once {}
    #[doc = include_str!("../../../docs/guides/testing-your-jobs.md")]
    mod testing_your_jobs {}
    #[doc = include_str!("../../../docs/guides/operating.md")]
    mod operating {}
    #[doc = include_str!("../../../docs/guides/postgres.md")]
    mod postgres {}
    #[doc = include_str!("../../../docs/guides/other-languages.md")]
    mod other_languages {}
    #[doc = include_str!("../../../docs/guides/migrating.md")]
    mod migrating {}
}
