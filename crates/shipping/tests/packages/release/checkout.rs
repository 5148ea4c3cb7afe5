//! A checkout with the programs and images of a release.

use std::{
    fs,
    path::{Path, PathBuf},
    process::{Command, Output},
};

use serde_json::{Value, json};
use testkit::Workdir;

use crate::{run, shown};

/// The folder of the programs that cargo built for the tests.
pub(crate) fn built() -> PathBuf {
    let program = std::env::current_exe().unwrap();
    program.parent().and_then(Path::parent).unwrap().to_owned()
}

/// A clean clone of this checkout, with the scripts as they are now.
pub(crate) struct Checkout {
    pub(crate) folder: PathBuf,
    prebuilt: PathBuf,
}

impl Checkout {
    pub(crate) fn new(workdir: &Workdir) -> Self {
        let (folder, repository) = (workdir.path().join("checkout"), testkit::repository());
        run(Command::new("git")
            .args(["clone", "--quiet", "--shared"])
            .arg(repository)
            .arg(&folder));
        for file in ["scripts/release", ".gitignore"] {
            fs::copy(repository.join(file), folder.join(file)).unwrap();
        }
        let checkout = Self { folder, prebuilt: prebuilt(workdir) };
        checkout.git(&["add", "--all"]);
        checkout.git(&["commit", "--quiet", "--allow-empty", "--message", "The scripts"]);
        checkout
    }

    pub(crate) fn git(&self, arguments: &[&str]) -> String {
        let mut git = Command::new("git");
        git.current_dir(&self.folder).args(["-c", "user.name=test", "-c", "user.email=test@test"]);
        run(git.args(arguments))
    }

    /// `make release` as the page calls it, without what it compiles.
    pub(crate) fn command(&self, version: &str, keys: &str) -> Command {
        let mut command = Command::new("scripts/release");
        command.current_dir(&self.folder).args([version, "release"]);
        command.env("KEY", keys).env("PREBUILT", &self.prebuilt);
        command.env("TOOLS", built()).env("PROFILE", "dev");
        command.env("SOURCE_DATE_EPOCH", "1800000000").env("CARGO_NET_OFFLINE", "true");
        for variable in ["ALLOW_CHANGES", "COMPARE", "COSIGN_KEY", "VDO_CATALOG_KEYS"] {
            command.env_remove(variable);
        }
        command
    }

    pub(crate) fn release(&self, version: &str, keys: &str) -> Output {
        self.command(version, keys).output().unwrap()
    }

    /// The reason why a release is refused.
    pub(crate) fn refused(&self, version: &str, keys: &str) -> String {
        let output = self.release(version, keys);
        assert!(!output.status.success(), "{}", shown(&output));
        shown(&output)
    }

    pub(crate) fn generate_key(&self, file: &str) {
        let mut vdoctl = Command::new(built().join("vdoctl"));
        run(vdoctl.current_dir(&self.folder).args(["catalog", "keygen", file]));
    }

    /// From now on the shipped vdoctl trusts keys as if it had been built with the variable that the script exports. A real
    /// build would compile nearly every crate again.
    pub(crate) fn trust_keys_of_the_build(&self) {
        let script = format!(
            r#"#!/bin/sh
[ -z "${{COSIGN_PASSWORD+set}}" ] || {{ echo 'the password of cosign is for cosign only' >&2; exit 1; }}
[ -z "$VDO_CATALOG_KEYS" ] || echo "$VDO_CATALOG_KEYS" >'{variable}'
keys=$(cat '{variable}')
case $2 in
  keys) printf '%s\n' $keys ;;
  *) for key in $keys; do set -- "$@" --key "$key"; done; exec '{vdoctl}' "$@" ;;
esac
"#,
            variable = self.variable().display(),
            vdoctl = built().join("vdoctl").display(),
        );
        for architecture in ["amd64", "arm64"] {
            let program = self.prebuilt.join(format!("linux-{architecture}/vdoctl"));
            fs::write(&program, &script).unwrap();
        }
    }

    /// `scripts/publish` with the release.
    pub(crate) fn publish(&self, registry: &str) -> Command {
        let mut publish = Command::new(testkit::repository().join("scripts/publish"));
        publish.current_dir(&self.folder).args(["release", registry]);
        publish.env_remove("COSIGN_KEY").env_remove("VDO_CATALOG_KEYS");
        publish
    }

    fn variable(&self) -> PathBuf {
        self.prebuilt.join("variable")
    }

    /// `VDO_CATALOG_KEYS` during the build.
    pub(crate) fn variable_of_the_build(&self) -> String {
        fs::read_to_string(self.variable()).unwrap()
    }

    pub(crate) fn layout(&self, image: &str) -> PathBuf {
        self.prebuilt.join("images").join(image)
    }
}

/// Programs and images as a build for the architectures leaves them.
fn prebuilt(workdir: &Workdir) -> PathBuf {
    let folder = workdir.path().join("prebuilt");
    for architecture in ["amd64", "arm64"] {
        let programs = folder.join(format!("linux-{architecture}"));
        fs::create_dir_all(&programs).unwrap();
        for program in ["vdoctl", "kubectl-vdo"] {
            let from = built().join(program);
            assert!(from.exists(), "{} is missing: build the workspace's programs", from.display());
            run(Command::new("strip").arg("-o").arg(programs.join(program)).arg(from));
        }
    }
    for name in ["vdo", "vdo-cloud-controller", "vdo-csi"] {
        image(workdir, &folder.join("images").join(name), name);
    }
    folder
}

/// The packages that an image of the test lists: Debian's versions have an epoch, a plus and a tilde.
const PACKAGES: [(&str, &str); 2] = [("e2fsprogs", "1.47.0-2+b2"), ("mount", "1:2.38.1-5~deb12u1")];

/// Writes a blob into a layout; returns its descriptor.
fn blob(layout: &Path, kind: &str, bytes: &[u8]) -> Value {
    let digest = oci::Digest::from_bytes(bytes);
    fs::create_dir_all(layout.join("blobs/sha256")).unwrap();
    fs::write(layout.join("blobs/sha256").join(digest.hex()), bytes).unwrap();
    let media_type = format!("application/vnd.oci.image.{kind}");
    json!({"mediaType": media_type, "digest": digest.to_string(), "size": bytes.len()})
}

/// The layout of an image for both architectures. That of the storage driver has a list of packages in a layer as
/// `scripts/storage-tools` writes it.
fn image(workdir: &Workdir, layout: &Path, name: &str) {
    let mut manifests = Vec::new();
    for architecture in ["amd64", "arm64"] {
        let root = workdir.path().join(format!("{name}-{architecture}"));
        fs::create_dir_all(root.join("usr/lib")).unwrap();
        fs::write(root.join("program"), name).unwrap();
        if name == "vdo-csi" {
            let sum =
                |name: &str| oci::Digest::from_bytes((name.to_owned() + architecture).as_bytes());
            let line = |(name, version)| format!("{name} {version} {}\n", sum(name).hex());
            let list: String = PACKAGES.into_iter().map(line).collect();
            fs::write(root.join("usr/lib/storage-tools"), list).unwrap();
        }
        let archive = root.with_extension("tar");
        run(Command::new("tar").arg("-C").arg(&root).arg("-cf").arg(&archive).arg("."));
        let id = oci::Digest::from_bytes(&fs::read(&archive).unwrap()).to_string();
        run(Command::new("gzip").arg(&archive));
        let layer =
            blob(layout, "layer.v1.tar+gzip", &fs::read(root.with_extension("tar.gz")).unwrap());
        let (os, rootfs) = ("linux", json!({"type": "layers", "diff_ids": [id]}));
        let config = json!({"os": os, "architecture": architecture, "rootfs": rootfs});
        let config = blob(layout, "config.v1+json", config.to_string().as_bytes());
        let kind = "application/vnd.oci.image.manifest.v1+json";
        let manifest =
            json!({"schemaVersion": 2, "mediaType": kind, "config": config, "layers": [layer]});
        let mut manifest = blob(layout, "manifest.v1+json", manifest.to_string().as_bytes());
        manifest["platform"] = json!({"os": os, "architecture": architecture});
        manifests.push(manifest);
    }
    let kind = "application/vnd.oci.image.index.v1+json";
    let index = |manifests: &[Value]| {
        json!({"schemaVersion": 2, "mediaType": kind, "manifests": manifests}).to_string()
    };
    let root = blob(layout, "index.v1+json", index(&manifests).as_bytes());
    fs::write(layout.join("index.json"), index(&[root])).unwrap();
    fs::write(layout.join("oci-layout"), r#"{"imageLayoutVersion": "1.0.0"}"#).unwrap();
}

/// The digest of the image in a layout.
pub(crate) fn layout_digest(layout: &Path) -> String {
    let index: Value =
        serde_json::from_slice(&fs::read(layout.join("index.json")).unwrap()).unwrap();
    index["manifests"][0]["digest"].as_str().unwrap().to_owned()
}
