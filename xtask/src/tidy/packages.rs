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
    /// Whether it may go to a registry.
    pub(super) published: bool,
    /// What a registry shows of a package, and this manifest does not say.
    pub(super) untold: Vec<&'static str>,
}

/// What a registry shows of a package.
const SHOWN: [&str; 6] = ["categories", "description", "keywords", "license", "readme", "rust_version"];

/// One dependency as the manifest declares it.
pub(super) struct Dependency {
    pub(super) name: String,
    /// True for tests, benches and examples alone.
    pub(super) dev: bool,
    /// False for another member of the workspace.
    pub(super) external: bool,
    /// Whether it names a version, and so stays in a package.
    pub(super) versioned: bool,
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
            versioned: dependency["req"].as_str() != Some("*"),
        })
    });
    Some(Package {
        name: package["name"].as_str()?.to_owned(),
        dir: manifest.trim_start_matches('/').trim_end_matches("/Cargo.toml").to_owned(),
        dependencies: dependencies.collect::<Option<_>>()?,
        // Cargo writes an empty list for `publish = false`, and nothing for any registry.
        published: package["publish"].is_null(),
        untold: SHOWN.into_iter().filter(|field| is_empty(&package[*field])).collect(),
    })
}

fn is_empty(value: &Value) -> bool {
    value.is_null() || value.as_array().is_some_and(Vec::is_empty) || value.as_str() == Some("")
}

/// Makes a package in a test: a leading `dev:` and `ext:` say what a dependency is, `path:` that it names no version.
#[cfg(test)]
pub(super) fn example(dir: &str, dependencies: &[&str]) -> Package {
    let name = dir.rsplit('/').next().unwrap_or(dir).to_owned();
    let dependency = |text: &&str| {
        let (dev, text) = text.strip_prefix("dev:").map_or((false, *text), |text| (true, text));
        let (external, text) = text.strip_prefix("ext:").map_or((false, text), |text| (true, text));
        let (versioned, text) = text.strip_prefix("path:").map_or((true, text), |text| (false, text));
        Dependency { name: text.to_owned(), dev, external, versioned }
    };
    let dependencies = dependencies.iter().map(dependency).collect();
    Package { name, dir: dir.to_owned(), dependencies, published: true, untold: Vec::new() }
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
                "publish": null,
                "description": "An engine.",
                "license": "MIT",
                "readme": "README.md",
                "keywords": [],
                "categories": ["database"],
                "dependencies": [
                    { "name": "mainspring-core", "source": null, "kind": null, "req": "*" },
                    { "name": "serde", "source": "registry", "kind": null, "req": "^1" },
                    { "name": "insta", "source": "registry", "kind": "dev", "req": "^1" },
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
        let versioned: Vec<_> = packages[0].dependencies.iter().map(|d| d.versioned).collect();
        assert_eq!(versioned, [false, true, true]);
        assert!(packages[0].published);
        assert_eq!(packages[0].untold, ["keywords", "rust_version"]);
    }

    #[test]
    fn unknown_form_is_no_empty_list() {
        assert!(parse(&serde_json::json!({})).is_none());
    }
}
