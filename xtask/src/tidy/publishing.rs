//! What goes to a registry is complete: `cargo package` takes it, and a reader of its page knows what it is.
//!
//! # Invariants
//! - A published package has a description, a license with its texts, a readme, keywords, categories and a Rust version.
//! - It ships with published packages alone, and names their versions.
//! - Its tests use other members by path alone. Cargo leaves those out of the package; with a version, a package would need one
//!   that is published after it, or never.

use super::Finding;
use super::packages::{Dependency, Package};

/// The texts of the license. Links to those of the repository will do: Cargo follows them.
const LICENSES: [&str; 2] = ["LICENSE-APACHE", "LICENSE-MIT"];

/// `paths`: every file of the repository.
pub(super) fn check(packages: &[Package], paths: &[String]) -> Vec<Finding> {
    let published = packages.iter().filter(|package| package.published);
    published.flat_map(|package| check_package(package, packages, paths)).collect()
}

fn check_package(package: &Package, packages: &[Package], paths: &[String]) -> Vec<Finding> {
    let untold = package.untold.iter().map(|field| format!("a published package says its `{field}`"));
    let has = |file: &str| paths.iter().any(|path| *path == format!("{}/{file}", package.dir));
    let licenses = LICENSES.iter().filter(|file| !has(file));
    let licenses =
        licenses.map(|file| format!("a published package has a `{file}`: link it to the repository's"));
    let members = package.dependencies.iter().filter(|dependency| !dependency.external);
    let faults = members.filter_map(|dependency| fault(dependency, packages));
    let messages = untold.chain(licenses).chain(faults);
    messages
        .map(|message| Finding { path: format!("{}/Cargo.toml", package.dir), line: 0, message })
        .collect()
}

/// Why a published package may not name another member so.
fn fault(dependency: &Dependency, packages: &[Package]) -> Option<String> {
    let used = dependency.name.as_str();
    if dependency.dev {
        return dependency
            .versioned
            .then(|| format!("tests of a published package use `{used}` by path, without a version"));
    }
    if !packages.iter().any(|package| package.name == used && package.published) {
        return Some(format!("a published package must not depend on `{used}`, which is not published"));
    }
    (!dependency.versioned).then(|| format!("a published package says which version of `{used}` it needs"))
}

#[cfg(test)]
mod tests {
    use super::super::packages::example;
    use super::*;

    fn messages(package: Package, licenses: &[&str]) -> Vec<String> {
        let core = example("crates/core", &[]);
        let kit = Package { published: false, ..example("crates/kit", &[]) };
        let paths: Vec<_> = licenses.iter().map(|file| format!("crates/a/{file}")).collect();
        let all = |name: &str| LICENSES.map(|file| format!("crates/{name}/{file}"));
        let paths = [paths, all("core").into(), all("kit").into()].concat();
        check(&[package, core, kit], &paths).into_iter().map(|finding| finding.message).collect()
    }

    #[test]
    fn complete_package_passes() {
        let package = example("crates/a", &["core", "ext:serde", "dev:path:kit", "dev:ext:insta"]);
        assert!(messages(package, &LICENSES).is_empty());
    }

    #[test]
    fn missing_field_and_license_are_named() {
        let package = Package { untold: vec!["readme"], ..example("crates/a", &[]) };
        let found = messages(package, &["LICENSE-MIT"]);
        assert_eq!(found[0], "a published package says its `readme`");
        assert!(found[1].contains("`LICENSE-APACHE`") && found.len() == 2, "{found:?}");
    }

    #[test]
    fn members_are_named_so_that_a_registry_finds_them() {
        let found = messages(example("crates/a", &["kit", "path:core", "dev:core"]), &LICENSES);
        let expected = [
            "a published package must not depend on `kit`, which is not published",
            "a published package says which version of `core` it needs",
            "tests of a published package use `core` by path, without a version",
        ];
        assert_eq!(found, expected);
    }

    #[test]
    fn what_stays_here_may_lack_everything() {
        let package = Package { published: false, untold: vec!["readme"], ..example("crates/a", &["kit"]) };
        assert!(messages(package, &[]).is_empty());
    }
}
