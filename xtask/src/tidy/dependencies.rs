//! Dependencies point one way: core ← stores ← mainspring ← server ← cli.
//!
//! The table is the architecture. A new crate must be entered here, so nobody adds one in passing.
//!
//! # Invariants
//! - Core has no I/O: no runtime and no database.
//! - Only a store names its database. An application of ours (an example, the benchmark) may, as a user's would.
//! - The core is not built for its tests with the suite that judges it: its unit tests would meet a second core.
//! - The suite needs the core alone, and is all that SQLite's tests need. Those of Postgres need a server: the testkit's.

use super::Finding;
use super::packages::{Dependency, Package};

const TESTKIT: &str = "mainspring-testkit";
const CONFORMANCE: &str = "mainspring-conformance";

/// Each package, and the members that it may depend on outside of its tests.
const MAY_USE: [(&str, &[&str]); 12] = [
    ("mainspring-core", &[]),
    ("mainspring-macros", &[]),
    ("mainspring-sqlite", &["mainspring-core"]),
    ("mainspring-postgres", &["mainspring-core"]),
    ("mainspring", &["mainspring-core", "mainspring-macros", "mainspring-sqlite", "mainspring-postgres"]),
    ("mainspring-wire", &["mainspring-core"]),
    ("mainspring-server", &["mainspring-core", "mainspring", "mainspring-wire"]),
    ("mainspring-cli", &["mainspring-postgres", "mainspring", "mainspring-wire", "mainspring-server"]),
    (CONFORMANCE, &["mainspring-core"]),
    (TESTKIT, &["mainspring-core", CONFORMANCE, "mainspring-sqlite", "mainspring-postgres", "mainspring"]),
    (
        "mainspring-bench",
        &[
            "mainspring-core",
            "mainspring-sqlite",
            "mainspring-postgres",
            "mainspring",
            "mainspring-server",
            TESTKIT,
        ],
    ),
    ("xtask", &[]),
];

/// A package, and the members that its tests do without.
const NOT_IN_TESTS: [(&str, &[&str]); 2] =
    [("mainspring-core", &[CONFORMANCE, TESTKIT]), ("mainspring-sqlite", &[TESTKIT])];

/// An external crate, and the only packages under `crates/` that may ship with it.
const OWNED: [(&str, &[&str]); 3] = [
    ("rusqlite", &["mainspring-sqlite"]),
    ("tokio-postgres", &["mainspring-postgres"]),
    ("deadpool-postgres", &["mainspring-postgres"]),
];

/// What the core must do without.
const NOT_IN_CORE: [&str; 6] = ["tokio", "rusqlite", "tokio-postgres", "sqlx", "rand", "getrandom"];

pub(super) fn check(packages: &[Package]) -> Vec<Finding> {
    packages.iter().flat_map(check_package).collect()
}

fn check_package(package: &Package) -> Vec<Finding> {
    let finding = |message: String| Finding { path: format!("{}/Cargo.toml", package.dir), line: 0, message };
    let may_use = if package.dir.starts_with("examples/") {
        &["mainspring"]
    } else if let Some((_, may_use)) = MAY_USE.iter().find(|(name, _)| *name == package.name) {
        *may_use
    } else {
        return vec![finding(format!(
            "`{}` is not in the table of xtask/src/tidy/dependencies.rs",
            package.name
        ))];
    };
    let faults = package.dependencies.iter().filter_map(|dependency| fault(package, may_use, dependency));
    faults.map(finding).collect()
}

/// Why a package may not have this dependency.
fn fault(package: &Package, may_use: &[&str], dependency: &Dependency) -> Option<String> {
    let (user, used) = (package.name.as_str(), dependency.name.as_str());
    if dependency.dev {
        let not_in_tests = NOT_IN_TESTS.iter().any(|(name, not)| *name == user && not.contains(&used));
        return not_in_tests.then(|| format!("`{user}` must not use `{used}`, not even in its tests"));
    }
    if !dependency.external {
        return (!may_use.contains(&used)).then(|| format!("`{user}` must not depend on `{used}`"));
    }
    if user == "mainspring-core" && NOT_IN_CORE.contains(&used) {
        return Some(format!("the core does without `{used}`"));
    }
    let owners = OWNED.iter().find(|(name, _)| *name == used).map(|(_, owners)| *owners)?;
    let ships = package.dir.starts_with("crates/");
    (ships && !owners.contains(&user)).then(|| format!("`{used}` belongs to {} alone", owners.join(", ")))
}

#[cfg(test)]
mod tests {
    use super::super::packages::example;
    use super::*;

    fn messages(dir: &str, dependencies: &[&str]) -> Vec<String> {
        check(&[example(dir, dependencies)]).into_iter().map(|finding| finding.message).collect()
    }

    #[test]
    fn intended_graph_is_in_order() {
        assert!(messages("crates/mainspring-core", &["ext:serde", "dev:ext:tokio"]).is_empty());
        assert!(messages("crates/mainspring-sqlite", &["mainspring-core", "ext:rusqlite"]).is_empty());
        assert!(
            messages(
                "crates/mainspring",
                &["mainspring-sqlite", "dev:ext:rusqlite", "dev:mainspring-testkit"]
            )
            .is_empty()
        );
        assert!(messages("crates/mainspring-cli", &["mainspring", "dev:mainspring-testkit"]).is_empty());
        assert!(messages("examples/transaction", &["mainspring", "ext:rusqlite"]).is_empty());
    }

    #[test]
    fn core_does_no_io() {
        for name in NOT_IN_CORE {
            let found = messages("crates/mainspring-core", &[&format!("ext:{name}")]);
            assert_eq!(found, [format!("the core does without `{name}`")]);
        }
        assert_eq!(
            messages("crates/mainspring-core", &["mainspring-macros"]),
            ["`mainspring-core` must not depend on `mainspring-macros`"]
        );
    }

    #[test]
    fn arrows_are_not_turned_round() {
        assert_eq!(
            messages("crates/mainspring-sqlite", &["mainspring"]),
            ["`mainspring-sqlite` must not depend on `mainspring`"]
        );
        assert_eq!(
            messages("crates/mainspring", &["mainspring-cli"]),
            ["`mainspring` must not depend on `mainspring-cli`"]
        );
    }

    #[test]
    fn suites_ship_with_nobody_and_stay_out_of_the_core() {
        assert_eq!(messages("crates/mainspring-cli", &[TESTKIT]).len(), 1);
        assert_eq!(messages("examples/hello", &[TESTKIT]).len(), 1);
        assert_eq!(messages("crates/mainspring-sqlite", &[CONFORMANCE]).len(), 1);
        for suite in ["dev:mainspring-conformance", "dev:mainspring-testkit"] {
            assert_eq!(messages("crates/mainspring-core", &[suite]).len(), 1, "{suite}");
        }
        assert_eq!(messages("crates/mainspring-sqlite", &["dev:mainspring-testkit"]).len(), 1);
        assert!(messages("crates/mainspring-sqlite", &["dev:mainspring-conformance"]).is_empty());
        assert!(messages("crates/mainspring-postgres", &["dev:mainspring-testkit"]).is_empty());
    }

    #[test]
    fn databases_belong_to_their_store() {
        assert_eq!(
            messages("crates/mainspring", &["ext:rusqlite"]),
            ["`rusqlite` belongs to mainspring-sqlite alone"]
        );
        assert_eq!(messages("crates/mainspring-sqlite", &["ext:tokio-postgres"]).len(), 1);
    }

    #[test]
    fn new_crate_is_entered_in_the_table() {
        assert_eq!(
            messages("crates/mainspring-utils", &[]),
            ["`mainspring-utils` is not in the table of xtask/src/tidy/dependencies.rs"]
        );
    }
}
