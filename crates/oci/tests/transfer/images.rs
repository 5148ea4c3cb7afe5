//! Images of two platforms, and what the real crane finds in a registry.

use std::{fs, path::Path, process::Command};

use oci::{Client, ClientOptions, Digest, Export, Reference};
use testkit::{Registry, Workdir};

/// A layer that is transferred in many pieces.
pub(crate) const LAYER: usize = 3_000_000;

/// Writes a blob into a layout; returns its descriptor.
fn blob(layout: &Path, media_type: &str, bytes: &[u8], more: &str) -> String {
    let digest = Digest::from_bytes(bytes);
    let folder = layout.join("blobs/sha256");
    fs::create_dir_all(&folder).unwrap();
    fs::write(folder.join(digest.hex()), bytes).unwrap();
    let (kind, size) = (format!("application/vnd.oci.image.{media_type}"), bytes.len());
    format!(r#"{{"mediaType": "{kind}", "digest": "{digest}", "size": {size}{more}}}"#)
}

/// Pushes an image for amd64 and arm64 as `NAME:1`. Returns its digest.
pub(crate) fn push(registry: &Registry, workdir: &Workdir, name: &str) -> Digest {
    let layout = workdir.path().join(name.replace('/', "-"));
    let mut children = Vec::new();
    for architecture in ["amd64", "arm64"] {
        // Bytes that differ from image to image.
        let seed = Digest::from_bytes(format!("{name} {architecture}").as_bytes()).to_string();
        let content: Vec<u8> = seed.bytes().cycle().take(LAYER).collect();
        let layer = blob(&layout, "layer.v1.tar", &content, "");
        let config = format!(
            r#"{{"os": "linux", "architecture": "{architecture}", "rootfs": {{"type": "layers", "diff_ids": ["{}"]}}}}"#,
            Digest::from_bytes(&content)
        );
        let config = blob(&layout, "config.v1+json", config.as_bytes(), "");
        let kind = "application/vnd.oci.image.manifest.v1+json";
        let manifest = format!(
            r#"{{"schemaVersion": 2, "mediaType": "{kind}", "config": {config}, "layers": [{layer}]}}"#
        );
        let platform =
            format!(r#", "platform": {{"os": "linux", "architecture": "{architecture}"}}"#);
        children.push(blob(&layout, "manifest.v1+json", manifest.as_bytes(), &platform));
    }
    let kind = "application/vnd.oci.image.index.v1+json";
    let index = |manifests: String| {
        format!(r#"{{"schemaVersion": 2, "mediaType": "{kind}", "manifests": [{manifests}]}}"#)
    };
    let root = blob(&layout, "index.v1+json", index(children.join(",")).as_bytes(), "");
    fs::write(layout.join("index.json"), index(root)).unwrap();
    fs::write(layout.join("oci-layout"), r#"{"imageLayoutVersion": "1.0.0"}"#).unwrap();
    let pushed = registry.push_layout(&layout, name, "1").unwrap();
    pushed.split_once('@').unwrap().1.parse().unwrap()
}

/// An export of images, as they are called on the Internet, from a registry of the test.
pub(crate) fn wanted(names: &[&str], registry: &str) -> Export {
    let pair = |name: &&str| -> (Reference, Reference) {
        let [name, source] =
            [format!("upstream.example.com/{name}:1"), format!("{registry}/{name}:1")];
        (name.parse().unwrap(), source.parse().unwrap())
    };
    Export { images: names.iter().map(pair).collect(), ..Export::default() }
}

/// A client for registries without TLS.
pub(crate) fn plain() -> Client {
    testkit::install_tls_provider();
    Client::new(ClientOptions { plain_http: true, ..ClientOptions::default() }).unwrap()
}

/// Runs the real crane on a registry of the test.
pub(crate) fn crane(arguments: &[&str]) -> String {
    let output = Command::new(testkit::peer("crane")).args(arguments).output().unwrap();
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    assert!(output.status.success(), "{arguments:?}: {}", text(&output.stderr));
    text(&output.stdout).trim().to_owned() + text(&output.stderr).trim()
}
