//! The software bill of materials (SBOM) of a binary, in the format CycloneDX: its crates, from cargo's metadata, and the
//! packages of the distribution in its image.

use std::collections::{BTreeMap, BTreeSet};

use serde::Deserialize;
use serde_json::{Value, json};
use snafu::{OptionExt as _, ResultExt as _};

use crate::error::{Error, JsonSnafu, MetadataSnafu};

#[derive(Deserialize)]
struct Metadata {
    packages: Vec<Package>,
    resolve: Resolve,
}

#[derive(Deserialize)]
struct Package {
    id: String,
    name: String,
    version: String,
    license: Option<String>,
    description: Option<String>,
    source: Option<String>,
}

#[derive(Deserialize)]
struct Resolve {
    nodes: Vec<Node>,
}

#[derive(Deserialize)]
struct Node {
    id: String,
    deps: Vec<Dependency>,
}

#[derive(Deserialize)]
struct Dependency {
    pkg: String,
    dep_kinds: Vec<DependencyKind>,
}

#[derive(Deserialize)]
struct DependencyKind {
    /// `None` is a dependency of the program itself; the others are of its build and its tests.
    kind: Option<String>,
}

/// A package of Debian in an image.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SystemPackage {
    pub name: String,
    pub version: String,
    pub sha256: String,
    /// As Debian calls it, such as `amd64`.
    pub architecture: String,
}

impl SystemPackage {
    /// Reads a list with name, version and SHA-256, one package per line.
    ///
    /// # Errors
    /// If a line has another form.
    pub fn list(text: &str, architecture: &str) -> Result<Vec<Self>, Error> {
        let parse = |line: &str| match line.split_whitespace().collect::<Vec<_>>()[..] {
            [name, version, sha256] if sha256.len() == 64 => Ok(Self {
                name: name.to_owned(),
                version: version.to_owned(),
                sha256: sha256.to_owned(),
                architecture: architecture.to_owned(),
            }),
            _ => MetadataSnafu { why: format!("{line:?} is not NAME VERSION SHA256") }.fail(),
        };
        text.lines().map(parse).collect()
    }

    fn url(&self) -> String {
        // A package URL escapes these characters of a version.
        let version = self.version.replace('+', "%2B").replace(':', "%3A");
        format!("pkg:deb/debian/{}@{version}?arch={}", self.name, self.architecture)
    }

    fn component(&self) -> Value {
        json!({
            "type": "library", "bom-ref": self.url(), "purl": self.url(),
            "name": self.name, "version": self.version,
            "hashes": [{"alg": "SHA-256", "content": self.sha256}],
        })
    }
}

/// The checksums of `Cargo.lock`, by name and version.
type Checksums = BTreeMap<(String, String), String>;

/// The bill of materials of a workspace package, as JSON.
///
/// `metadata` is the output of `cargo metadata --format-version 1 --filter-platform TARGET`, `lock` the text of
/// `Cargo.lock`, and `system` the packages of the distribution that its image contains. The same input gives the same bytes. Cargo unites the features that the workspace's packages ask for, so the
/// list can contain a crate that only another program of the workspace uses.
///
/// # Errors
/// If the metadata cannot be read or does not contain the package.
pub fn bill_of_materials(
    package: &str,
    metadata: &[u8],
    lock: &str,
    system: &[SystemPackage],
) -> Result<String, Error> {
    let failed = |why: String| MetadataSnafu { why }.build();
    let metadata: Metadata =
        serde_json::from_slice(metadata).map_err(|error| failed(error.to_string()))?;
    let packages: BTreeMap<&str, &Package> =
        metadata.packages.iter().map(|package| (package.id.as_str(), package)).collect();
    let nodes: BTreeMap<&str, &Node> =
        metadata.resolve.nodes.iter().map(|node| (node.id.as_str(), node)).collect();
    let is_root = |known: &&&Package| known.name == package && known.source.is_none();
    let root = packages.values().find(is_root);
    let root =
        root.with_context(|| MetadataSnafu { why: format!("it has no package {package}") })?;
    let checksums = checksums(lock);

    let mut pending = vec![root.id.as_str()];
    let mut seen = BTreeSet::new();
    let mut edges: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    while let Some(id) = pending.pop() {
        let Some((known, node)) = packages.get(id).zip(nodes.get(id)).filter(|_| seen.insert(id))
        else {
            continue;
        };
        let edges = edges.entry(url(known)).or_default();
        let is_normal =
            |dependency: &&Dependency| dependency.dep_kinds.iter().any(|kind| kind.kind.is_none());
        for dependency in node.deps.iter().filter(is_normal) {
            let target = packages.get(dependency.pkg.as_str());
            edges.extend(target.map(|package| url(package)));
            pending.push(&dependency.pkg);
        }
    }
    let mut components: Vec<Value> = seen
        .iter()
        .filter(|id| **id != root.id)
        .filter_map(|id| packages.get(id))
        .map(|package| component("library", package, &checksums))
        .chain(system.iter().map(SystemPackage::component))
        .collect();
    components.sort_by_key(|component| component["bom-ref"].to_string());
    // The program runs programs of these packages.
    edges.entry(url(root)).or_default().extend(system.iter().map(SystemPackage::url));
    let dependencies: Vec<Value> =
        edges.into_iter().map(|(from, to)| json!({"ref": from, "dependsOn": to})).collect();
    let document = json!({
        "bomFormat": "CycloneDX",
        "specVersion": "1.5",
        "version": 1,
        "metadata": {"component": component("application", root, &checksums)},
        "components": components,
        "dependencies": dependencies,
    });
    let text = serde_json::to_string_pretty(&document).context(JsonSnafu { what: "the SBOM" })?;
    Ok(text + "\n")
}

fn component(kind: &str, package: &Package, checksums: &Checksums) -> Value {
    let mut component = json!({
        "type": kind,
        "bom-ref": url(package),
        "name": package.name,
        "version": package.version,
        "purl": url(package),
    });
    if let Some(description) = &package.description {
        component["description"] =
            json!(description.split_whitespace().collect::<Vec<_>>().join(" "));
    }
    if let Some(license) = &package.license {
        // Old packages separate alternatives with a slash.
        component["licenses"] = json!([{"expression": license.replace('/', " OR ")}]);
    }
    if let Some(sum) = checksums.get(&(package.name.clone(), package.version.clone())) {
        component["hashes"] = json!([{"alg": "SHA-256", "content": sum}]);
    }
    component
}

fn url(package: &Package) -> String {
    format!("pkg:cargo/{}@{}", package.name, package.version)
}

/// Reads the three fields of each package; the format is as cargo writes it.
fn checksums(lock: &str) -> Checksums {
    let mut found = Checksums::new();
    for package in lock.split("[[package]]").skip(1) {
        let field = |name: &str| {
            let value =
                package.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(" = \""));
            value.map(|value| value.trim_end_matches('"').to_owned())
        };
        if let (Some(name), Some(version), Some(sum)) =
            (field("name"), field("version"), field("checksum"))
        {
            found.insert((name, version), sum);
        }
    }
    found
}
