//! Parses and validates a catalog.
//!
//! ```text
//!   bytes ─► text ─► document ─► schema known? ─► lines expanded ─► releases ─► consistent? ─► Catalog
//! ```
//!
//! A catalog is written in *lines*. A line states what its releases have in common. A line can extend another
//! one, and each release adds its own differences (JSON merge patch, `null` removes). Releases, steps and
//! known faults are never inherited. The steps of a line belong to its first release: every upgrade onto the
//! line crosses that release.

use std::collections::{BTreeMap, BTreeSet};

use semver::Version;
use serde::Deserialize;
use serde_json::{Map, Value};
use snafu::{OptionExt, ResultExt, Snafu, ensure};

use crate::{
    image::is_digest,
    model::{Catalog, Driver, Release},
};

/// The schema that this operator reads. A newer minor may contain unknown fields, which are ignored. Another
/// major is incompatible.
pub const SCHEMA_MAJOR: u64 = 1;

/// The schema minor whose names are all known here.
pub(crate) const SCHEMA_MINOR: u64 = 1;

/// The embedded catalog is a hundred times smaller.
pub const MAX_BYTES: usize = 4 << 20;

const MAX_RELEASES: usize = 5_000;

#[derive(Debug, Snafu)]
pub enum ReadError {
    #[snafu(display("the catalog is larger than {} MiB; VDO uses nothing of it", MAX_BYTES >> 20))]
    TooLarge,
    #[snafu(display("the catalog is not UTF-8 text; was it compressed or cut?"))]
    NotText { source: std::str::Utf8Error },
    #[snafu(display("the catalog is neither YAML nor JSON; was it cut short?"))]
    NotADocument { source: Box<serde_saphyr::Error> },
    /// A small text that expands to an enormous one.
    #[snafu(display("the catalog expands beyond all limits: its aliases repeat each other"))]
    ExpandsTooFar { source: Box<serde_saphyr::Error> },
    #[snafu(display("the document is not a catalog: it has no `schema`"))]
    NoSchema,
    #[snafu(display(
        "the catalog has schema {found}; this operator reads {SCHEMA_MAJOR}.x. Upgrade the operator, or use a catalog made for it"
    ))]
    OtherSchema { found: String },
    #[snafu(display("the catalog is malformed at {at}"))]
    Malformed {
        /// The release line or the release.
        at: String,
        source: serde_json::Error,
    },
    /// Every field is valid, but the fields contradict each other.
    #[snafu(display("the catalog is inconsistent: {what}"))]
    Inconsistent { what: String },
    #[snafu(display("the compatibility matrix cannot be used"))]
    Matrix { source: Box<dyn std::error::Error + Send + Sync> },
}

/// Parses YAML or JSON.
pub(crate) fn document(bytes: &[u8]) -> Result<Value, ReadError> {
    ensure!(bytes.len() <= MAX_BYTES, TooLargeSnafu);
    let text = std::str::from_utf8(bytes).context(NotTextSnafu)?;
    serde_saphyr::from_str(text).map_err(|error| {
        let source = Box::new(error);
        if expands_too_far(&source) {
            ReadError::ExpandsTooFar { source }
        } else {
            ReadError::NotADocument { source }
        }
    })
}

pub(crate) fn catalog(document: &Value) -> Result<Catalog, ReadError> {
    check_schema(document)?;
    let head = head(document).context(MalformedSnafu { at: "its head" })?;
    let lines = Lines::deserialize(document).context(MalformedSnafu { at: "its head" })?;
    let mut releases = Vec::new();
    for (driver, lines) in [(Driver::Cpi, lines.cpi), (Driver::Csi, lines.csi)] {
        expand(driver, lines, &mut |expanded| {
            releases.push(release(&expanded.name, expanded.fields)?);
            ensure!(
                releases.len() <= MAX_RELEASES,
                InconsistentSnafu { what: format!("it has more than {MAX_RELEASES} releases") }
            );
            Ok(())
        })?;
    }
    let found = releases.len();
    if let Some(declared) = lines.release_count {
        ensure!(
            found == declared,
            InconsistentSnafu {
                what: format!("it declares {declared} releases and has {found}; was it cut short?")
            }
        );
    }
    pin(&mut releases, &lines.digests)?;
    let mut catalog = Catalog { releases, ..head };
    catalog.sort();
    check_consistency(&catalog)?;
    Ok(catalog)
}

/// True if parsing stopped because the text expands beyond the limits, not because of a syntax error.
fn expands_too_far(error: &serde_saphyr::Error) -> bool {
    use serde_saphyr::Error;
    match error {
        Error::WithSnippet { error, .. } | Error::AliasError { error, .. } => {
            expands_too_far(error)
        }
        Error::Budget { .. }
        | Error::AliasReplayCounterOverflow { .. }
        | Error::AliasReplayLimitExceeded { .. }
        | Error::AliasExpansionLimitExceeded { .. }
        | Error::AliasReplayStackDepthExceeded { .. } => true,
        _ => false,
    }
}

/// The fields that hold release lines.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Lines {
    #[serde(default)]
    pub(crate) cpi: Vec<Map<String, Value>>,
    #[serde(default)]
    pub(crate) csi: Vec<Map<String, Value>>,
    #[serde(default)]
    digests: BTreeMap<String, String>,
    release_count: Option<usize>,
}

/// The fields outside the release lines.
fn head(document: &Value) -> Result<Catalog, serde_json::Error> {
    let lines = ["cpi", "csi", "digests"];
    let fields = document.as_object().into_iter().flatten();
    let mut fields: Map<String, Value> = fields
        .filter(|(name, _)| !lines.contains(&name.as_str()))
        .map(|(name, value)| (name.clone(), value.clone()))
        .collect();
    fields.insert("releases".to_owned(), Value::Array(Vec::new()));
    Catalog::deserialize(Value::Object(fields))
}

fn check_schema(document: &Value) -> Result<(), ReadError> {
    let schema = document.get("schema").context(NoSchemaSnafu)?;
    let found = schema.as_str().map_or_else(|| schema.to_string(), str::to_owned);
    let major = found.split('.').next().and_then(|major| major.parse::<u64>().ok());
    ensure!(major == Some(SCHEMA_MAJOR), OtherSchemaSnafu { found });
    Ok(())
}

/// The fields that a line does not inherit from the line it extends.
const NOT_INHERITED: [&str; 6] = ["line", "extends", "releases", "before", "after", "knownBad"];

/// The fields of a line that are no fields of its releases.
pub(crate) const LINE_FIELDS: [&str; 3] = ["line", "extends", "releases"];

/// A release with the fields it inherits.
pub(crate) struct ExpandedRelease {
    /// Its line, for error messages: `CSI 3.7`.
    name: String,
    /// The index of its line.
    pub(crate) line: usize,
    /// Its index in that line.
    pub(crate) release: usize,
    /// The indexes of the lines that contribute fields, nearest first.
    pub(crate) lines: Vec<usize>,
    pub(crate) fields: Map<String, Value>,
}

pub(crate) fn expand(
    driver: Driver,
    lines: Vec<Map<String, Value>>,
    each: &mut dyn FnMut(ExpandedRelease) -> Result<(), ReadError>,
) -> Result<(), ReadError> {
    let mut known: BTreeMap<String, (Map<String, Value>, Vec<usize>)> = BTreeMap::new();
    for (number, line) in lines.into_iter().enumerate() {
        let name = line
            .get("line")
            .and_then(Value::as_str)
            .with_context(|| InconsistentSnafu {
                what: format!("a line of {driver} has no name in `line`"),
            })?
            .to_owned();
        let at = format!("{driver} {name}");
        let (mut whole, mut above) = match line.get("extends").and_then(Value::as_str) {
            None => Default::default(),
            // A line can extend only earlier lines, which also rules out cycles.
            Some(other) => known.get(other).cloned().with_context(|| InconsistentSnafu {
                what: format!("{at} extends {other}, which is not defined above it"),
            })?,
        };
        above.insert(0, number);
        merge(&mut whole, &line);
        let own: Vec<_> = ["before", "after", "knownBad"]
            .iter()
            .filter_map(|&key| line.get(key).map(|value| (key, value.clone())))
            .collect();
        for key in NOT_INHERITED {
            whole.remove(key);
        }
        let entries = line.get("releases").and_then(Value::as_array);
        for (n, entry) in entries.into_iter().flatten().enumerate() {
            let mut fields = whole.clone();
            fields.insert("driver".to_owned(), serde_json::to_value(driver).unwrap_or_default());
            for (key, value) in &own {
                if n == 0 || *key == "knownBad" {
                    fields.insert((*key).to_owned(), value.clone());
                }
            }
            let entry = entry.as_object().with_context(|| InconsistentSnafu {
                what: format!("release {} of {at} is not an object", n + 1),
            })?;
            merge(&mut fields, entry);
            name_images(&mut fields);
            let name = at.clone();
            each(ExpandedRelease { name, line: number, release: n, lines: above.clone(), fields })?;
        }
        known.insert(name, (whole, above));
    }
    Ok(())
}

fn release(at: &str, fields: Map<String, Value>) -> Result<Release, ReadError> {
    let version = fields.get("version").and_then(Value::as_str).unwrap_or_default();
    let at = format!("{at}, release {version}");
    Release::deserialize(Value::Object(fields)).context(MalformedSnafu { at })
}

/// Replaces `{version}` in image names.
fn name_images(fields: &mut Map<String, Value>) {
    let version = fields.get("version").and_then(Value::as_str).unwrap_or_default().to_owned();
    if let Some(Value::Object(images)) = fields.get_mut("images") {
        for image in images.values_mut() {
            if let Value::String(name) = image {
                *name = name.replace("{version}", &version);
            }
        }
    }
}

/// RFC 7386: objects are merged, `null` removes, anything else replaces.
fn merge(onto: &mut Map<String, Value>, patch: &Map<String, Value>) {
    for (key, value) in patch {
        match value {
            Value::Null => drop(onto.remove(key)),
            Value::Object(patch) => {
                let inner = onto.entry(key.clone()).or_insert_with(|| Value::Object(Map::new()));
                if !inner.is_object() {
                    *inner = Value::Object(Map::new());
                }
                if let Value::Object(inner) = inner {
                    merge(inner, patch);
                }
            }
            other => drop(onto.insert(key.clone(), other.clone())),
        }
    }
}

/// Adds digests to the images of releases that have none.
pub(crate) fn pin(
    releases: &mut [Release],
    digests: &BTreeMap<String, String>,
) -> Result<(), ReadError> {
    for (name, digest) in digests {
        ensure!(
            is_digest(digest),
            InconsistentSnafu {
                what: format!("the digest of {name} is not sha256 and 64 hex digits")
            }
        );
    }
    for release in releases {
        for image in release.images.values_mut().filter(|image| image.digest.is_none()) {
            image.digest = digests.get(&image.tagged()).cloned();
        }
        for object in &mut release.manifest.objects {
            pin_containers(object, digests);
        }
    }
    Ok(())
}

/// Does the same for the containers of a published manifest in the catalog.
fn pin_containers(object: &mut Value, digests: &BTreeMap<String, String>) {
    for list in ["/spec/template/spec/containers", "/spec/template/spec/initContainers"] {
        let containers = object.pointer_mut(list).and_then(Value::as_array_mut);
        for container in containers.into_iter().flatten() {
            let image = container.get_mut("image");
            if let Some(Value::String(image)) = image
                && let Some(digest) = digests.get(image.as_str())
            {
                *image = format!("{image}@{digest}");
            }
        }
    }
}

/// Finds contradictions between fields.
pub(crate) fn check_consistency(catalog: &Catalog) -> Result<(), ReadError> {
    let fail = |what: String| InconsistentSnafu { what }.fail();
    if catalog.releases.is_empty() {
        return fail("it has no releases".to_owned());
    }
    if catalog.expires.is_some_and(|expires| expires <= catalog.issued) {
        return fail("it expires before it was issued".to_owned());
    }
    let mut seen: BTreeSet<(Driver, crate::model::Implementation, &Version)> = BTreeSet::new();
    for release in &catalog.releases {
        let name = format!("{} {}", release.driver, release.version);
        if !seen.insert((release.driver, release.implementation, &release.version)) {
            return fail(format!("{name} is in it twice"));
        }
        if release.kubernetes.min > release.kubernetes.max {
            return fail(format!(
                "{name} supports Kubernetes {}, which is not a range",
                release.kubernetes
            ));
        }
        if let Some(max) = release.vsphere.max
            && max.version() < release.vsphere.min.version()
        {
            return fail(format!(
                "{name} supports vSphere {} to {max}, which is not a range",
                release.vsphere.min
            ));
        }
        if release.upgrade_from.as_ref().is_some_and(|from| *from > release.version) {
            return fail(format!("{name} can only be upgraded from a newer version"));
        }
        let manifest = &release.manifest;
        let wrong = match release.driver {
            Driver::Cpi => manifest.csi.is_some() || manifest.storage_driver.is_some(),
            Driver::Csi => manifest.cpi.is_some() || manifest.cloud_controller.is_some(),
        };
        if wrong {
            return fail(format!("{name} carries the template of the other driver"));
        }
        let sources = [
            manifest.csi.is_some() || manifest.cpi.is_some(),
            manifest.cloud_controller.is_some() || manifest.storage_driver.is_some(),
            !manifest.objects.is_empty(),
            !manifest.urls.is_empty(),
        ];
        if sources.into_iter().filter(|set| *set).count() > 1 {
            return fail(format!("{name} has more than one source for its objects"));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use crate::read;
    use proptest::prelude::*;
    use std::fmt::Write as _;

    const SMALL: &str = r#"
schema: "1.7"
serial: 3
issued: 2026-01-01T00:00:00Z
newestVsphere: "9.1"
colour: green
csi:
  - line: "3.6"
    kubernetes: { min: "1.32", max: "1.34" }
    vsphere: { min: "7.0" }
    images: { driver: "example.com/driver:v{version}", old: "example.com/old:1" }
    before: [{ id: mind, text: Mind this. }]
    manifest: { csi: { controllerProbe: { delay: 1, timeout: 1, period: 1 }, smell: none } }
    releases:
      - { version: 3.6.0 }
      - { version: 3.6.1, images: { driver: "example.com/patched:v{version}" } }
  - line: "3.10"
    extends: "3.6"
    kubernetes: { max: "1.38" }
    images: { old: null }
    releases: [{ version: 3.10.0, channel: weekly }]
digests:
  example.com/driver:v3.6.0: sha256:86f7673fd46484b456c16eed0d4f6c4372fdf1b66c8c513b85c76c54ee3af966
"#;

    fn refused(text: &str) -> String {
        let error = read(text.as_bytes()).unwrap_err();
        snafu::Report::from_error(error).to_string()
    }

    #[test]
    fn lines_expand_into_releases() {
        let catalog = read(SMALL.as_bytes()).unwrap();
        let versions: Vec<_> = catalog.releases.iter().map(|r| r.version.to_string()).collect();
        assert_eq!(versions, ["3.6.0", "3.6.1", "3.10.0"], "oldest first, by number");
        let [a, b, c] = &catalog.releases[..] else { panic!() };
        assert!(a.images["driver"].digest.is_some());
        assert_eq!(b.images["driver"].to_string(), "example.com/patched:v3.6.1");
        assert_eq!(c.images["driver"].to_string(), "example.com/driver:v3.10.0");
        assert!(!c.images.contains_key("old"), "null removes");
        assert_eq!(
            (a.before.len(), b.before.len(), c.before.len()),
            (1, 0, 0),
            "steps are not inherited"
        );
        assert_eq!(c.kubernetes.to_string(), "1.32 to 1.38");
    }

    #[test]
    fn a_newer_minor_with_unknown_fields_and_values_is_understood() {
        let catalog = read(SMALL.as_bytes()).unwrap();
        assert_eq!(catalog.releases[2].channel, crate::model::Channel::Candidate);
    }

    #[test]
    fn a_newer_major_is_refused_with_what_to_do() {
        let text = refused(&SMALL.replace("\"1.7\"", "\"2.0\""));
        assert!(
            text.contains("schema 2.0; this operator reads 1.x. Upgrade the operator"),
            "{text}"
        );
    }

    #[test]
    fn a_version_without_quotes_is_refused_and_not_read_as_a_number() {
        let text = refused(&SMALL.replace("min: \"1.32\"", "min: 1.30"));
        assert!(text.contains("CSI 3.6, release 3.6.0"), "{text}");
    }

    #[test]
    fn contradictions_are_refused() {
        for (from, to, sentence) in [
            ("min: \"1.32\"", "min: \"1.35\"", "which is not a range"),
            ("version: 3.6.1", "version: 3.6.0", "CSI 3.6.0 is in it twice"),
            ("extends: \"3.6\"", "extends: \"4.0\"", "is not defined above it"),
            ("sha256:86f7", "sha256:86f", "is not sha256 and 64 hex digits"),
            ("line: \"3.10\"", "name: x", "has no name in `line`"),
            ("manifest: { csi", "manifest: { urls: [x], csi", "more than one source"),
        ] {
            let text = refused(&SMALL.replacen(from, to, 1));
            assert!(text.contains(sentence), "{from} -> {to}: {text}");
        }
    }

    #[test]
    fn a_truncated_catalog_is_never_accepted() {
        let whole = crate::embedded::TEXT;
        for cut in (0..whole.len()).step_by(257).chain([whole.len() / 2]) {
            let Some(text) = whole.get(..cut) else {
                continue;
            };
            // Only the final newline may be missing.
            assert!(
                read(text.as_bytes()).is_err() || text.trim_end() == whole.trim_end(),
                "cut at {cut}"
            );
        }
    }

    #[test]
    fn nested_aliases_do_not_exhaust_the_memory() {
        let mut bomb = String::from("schema: \"1.0\"\na0: &a0 [x, x, x, x, x, x, x, x, x, x]\n");
        for n in 1..12 {
            let last = n - 1;
            let refs = vec![format!("*a{last}"); 10].join(", ");
            writeln!(bomb, "a{n}: &a{n} [{refs}]").unwrap();
        }
        let sentence = read(bomb.as_bytes()).unwrap_err().to_string();
        assert!(sentence.starts_with("the catalog expands beyond all limits"), "{sentence}");
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(200))]

        #[test]
        fn no_bytes_make_the_parser_panic(bytes in proptest::collection::vec(any::<u8>(), 0..400)) {
            let _ = read(&bytes);
        }

        #[test]
        fn no_damage_to_a_real_catalog_makes_the_parser_panic(at in 0usize..30_000, with in "\\PC{0,6}", length in 0usize..40) {
            let mut text = crate::embedded::TEXT.to_owned();
            let end = (at + length).min(text.len());
            if text.is_char_boundary(at) && text.is_char_boundary(end) && at <= end {
                text.replace_range(at..end, &with);
                let _ = read(text.as_bytes());
            }
        }
    }
}
