//! The workspace's packages and what each depends on, from `cargo metadata`.

use anyhow::{Context, Result, bail};
use serde_json::Value;

use crate::cargo;

/// One member of the workspace.
pub(super) struct Package {
    pub(super) name: String,
    /// Its directory, relative to the root.
    pub(super) dir: String,
    pub(super) dependencies: Vec<Dependency>,
}

/// One dependency as the manifest declares it.
pub(super) struct Dependency {
    pub(super) name: String,
    /// True for tests, benches and examples alone.
    pub(super) dev: bool,
    /// False for another member of the workspace.
    pub(super) external: bool,
}

/// All members, as cargo sees them now.
pub(super) fn read() -> Result<Vec<Package>> {
    let output = cargo::command().args(["metadata", "--no-deps", "--format-version", "1"]).output()?;
    if !output.status.success() {
        bail!("cargo metadata failed: {}", String::from_utf8_lossy(&output.stderr).trim());
    }
    parse(&serde_json::from_slice(&output.stdout)?).context("cargo metadata has another form than expected")
}

fn parse(metadata: &Value) -> Option<Vec<Package>> {
    let root = metadata["workspace_root"].as_str()?;
    metadata["packages"].as_array()?.iter().map(|package| parse_package(root, package)).collect()
}

fn parse_package(root: &str, package: &Value) -> Option<Package> {
    let manifest = package["manifest_path"].as_str()?.strip_prefix(root)?;
    let dependencies = package["dependencies"].as_array()?.iter().map(|dependency| {
        Some(Dependency {
            name: dependency["name"].as_str()?.to_owned(),
            // A build script's dependency shapes what ships, so only "dev" is set apart.
            dev: dependency["kind"].as_str() == Some("dev"),
            external: !dependency["source"].is_null(),
        })
    });
    Some(Package {
        name: package["name"].as_str()?.to_owned(),
        dir: manifest.trim_start_matches('/').trim_end_matches("/Cargo.toml").to_owned(),
        dependencies: dependencies.collect::<Option<_>>()?,
    })
}

/// Makes a package in a test: a leading `dev:` and `ext:` say what a dependency is.
#[cfg(test)]
pub(super) fn example(dir: &str, dependencies: &[&str]) -> Package {
    let name = dir.rsplit('/').next().unwrap_or(dir).to_owned();
    let dependency = |text: &&str| {
        let (dev, text) = text.strip_prefix("dev:").map_or((false, *text), |text| (true, text));
        let (external, text) = text.strip_prefix("ext:").map_or((false, text), |text| (true, text));
        Dependency { name: text.to_owned(), dev, external }
    };
    Package { name, dir: dir.to_owned(), dependencies: dependencies.iter().map(dependency).collect() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn metadata_becomes_packages() {
        let metadata = serde_json::json!({
            "workspace_root": "/repo",
            "packages": [{
                "name": "mainspring",
                "manifest_path": "/repo/crates/mainspring/Cargo.toml",
                "dependencies": [
                    { "name": "mainspring-core", "source": null, "kind": null },
                    { "name": "serde", "source": "registry", "kind": null },
                    { "name": "insta", "source": "registry", "kind": "dev" },
                ],
            }],
        });
        let packages = parse(&metadata).expect("the form is known");
        assert_eq!(
            (packages[0].name.as_str(), packages[0].dir.as_str()),
            ("mainspring", "crates/mainspring")
        );
        let flags: Vec<_> = packages[0].dependencies.iter().map(|d| (d.dev, d.external)).collect();
        assert_eq!(flags, [(false, false), (false, true), (true, true)]);
    }

    #[test]
    fn unknown_form_is_no_empty_list() {
        assert!(parse(&serde_json::json!({})).is_none());
    }
}
