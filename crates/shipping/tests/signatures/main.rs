//! Signatures of cosign: of a release, and of its images in a registry. `make test-signatures` runs this test.
#![allow(clippy::unwrap_used, reason = "a failed unwrap fails the test")]

#[allow(dead_code, reason = "the tests of the packages use all of it")]
#[path = "../packages/release/checkout.rs"]
mod checkout;
#[path = "../packages/commands.rs"]
mod commands;

use std::{
    fs,
    path::Path,
    process::{Command, Output},
};

use base64::{Engine as _, prelude::BASE64_STANDARD};
use serde_json::Value;
use testkit::{Registry, Workdir};

use self::{
    checkout::{Checkout, layout_digest},
    commands::{run, shown},
};

const VERSION: &str = env!("CARGO_PKG_VERSION");

const PASSWORD: &str = "the password of the key";

fn cosign() -> Command {
    let mut cosign = Command::new(testkit::peer("cosign"));
    cosign.env("COSIGN_PASSWORD", PASSWORD);
    cosign
}

/// A check of the page about releases.
fn verify(release: &Path, command: &str, arguments: &[&str]) -> Output {
    let mut cosign = cosign();
    cosign.current_dir(release).args([command, "--key", "cosign.pub"]);
    cosign.arg("--insecure-ignore-tlog=true").args(arguments).output().unwrap()
}

fn publish(checkout: &Checkout, registry: &str, key: &Path) -> Output {
    let mut publish = checkout.publish(registry);
    publish.env("COSIGN_KEY", key).env("COSIGN_PASSWORD", PASSWORD).output().unwrap()
}

#[tokio::test]
async fn signatures_of_cosign_cover_the_files_and_the_images_of_a_release() {
    let workdir = Workdir::new("signatures").unwrap();
    let checkout = Checkout::new(&workdir);
    checkout.generate_key("key.pem");
    checkout.trust_keys_of_the_build();
    for name in ["cosign", "other"] {
        run(cosign().current_dir(workdir.path()).args([
            "generate-key-pair",
            "--output-key-prefix",
            name,
        ]));
    }
    let [key, other] = ["cosign.key", "other.key"].map(|name| workdir.path().join(name));
    let mut command = checkout.command(VERSION, "key.pem");
    run(command.env("COSIGN_KEY", &key).env("COSIGN_PASSWORD", PASSWORD));
    let release = checkout.folder.join("release");

    // The files.
    let bundle = ["--bundle", "SHA256SUMS.sigstore.json"];
    let sums = verify(&release, "verify-blob", &[bundle[0], bundle[1], "SHA256SUMS"]);
    assert!(sums.status.success(), "{}", shown(&sums));
    let text = fs::read_to_string(release.join("SHA256SUMS")).unwrap();
    assert!(text.contains("  cosign.pub\n"), "{text}");
    fs::write(workdir.path().join("SHA256SUMS"), text.replacen('a', "b", 1)).unwrap();
    let tampered = workdir.path().join("SHA256SUMS").display().to_string();
    let refused = verify(&release, "verify-blob", &[bundle[0], bundle[1], &tampered]);
    assert!(!refused.status.success(), "{}", shown(&refused));

    // The images.
    let registry = Registry::start().await;
    let site = format!("{}/vmware-tanzu", registry.address());
    let refused = publish(&checkout, &site, &other);
    assert!(shown(&refused).contains("is not the key with which the release was signed"));
    let published = publish(&checkout, &site, &key);
    assert!(published.status.success(), "{}", shown(&published));
    let printed = String::from_utf8_lossy(&published.stdout).into_owned();
    for name in ["vdo", "vdo-cloud-controller", "vdo-csi"] {
        let digest = layout_digest(&checkout.layout(name));
        assert!(printed.contains(&format!("{site}/{name}@{digest}\n")), "{printed}");
        image_is_signed(&release, &format!("{site}/{name}"), &digest);
    }
    for tag in [VERSION, "1"] {
        let catalog = format!("{site}/vdo-catalog:{tag}");
        let verified = verify(&release, "verify", &[&catalog]);
        assert!(verified.status.success(), "{}", shown(&verified));
    }

    // Somebody replaces an image in the registry; somebody changes a file of the release.
    let image = format!("{site}/vdo:{VERSION}");
    let other = format!("{site}/vdo-csi:{VERSION}");
    run(Command::new(testkit::peer("crane")).args(["copy", &other, &image]));
    let refused = verify(&release, "verify", &[&image]);
    assert!(!refused.status.success(), "{}", shown(&refused));
    fs::write(release.join(format!("vdo-{VERSION}.oci.tar")), "another image").unwrap();
    let refused = publish(&checkout, &site, &key);
    assert!(shown(&refused).contains("differs from its checksums"), "{}", shown(&refused));
}

/// The index and each of its platforms have a signature, the index the provenance, each platform its bill of materials.
fn image_is_signed(release: &Path, repository: &str, digest: &str) {
    let image = format!("{repository}@{digest}");
    let statement = |kind: &str, image: &str| -> Value {
        let output = verify(release, "verify-attestation", &["--type", kind, image]);
        assert!(output.status.success(), "{image}: {}", shown(&output));
        let line = String::from_utf8_lossy(&output.stdout).lines().next().unwrap().to_owned();
        let envelope: Value = serde_json::from_str(&line).unwrap();
        let payload = BASE64_STANDARD.decode(envelope["payload"].as_str().unwrap()).unwrap();
        serde_json::from_slice(&payload).unwrap()
    };
    let provenance = statement("slsaprovenance1", &image);
    assert_eq!(provenance["subject"][0]["digest"]["sha256"], digest.replace("sha256:", ""));
    let version = &provenance["predicate"]["buildDefinition"]["externalParameters"]["version"];
    assert_eq!(version, VERSION);
    for architecture in ["amd64", "arm64"] {
        let platform = format!("linux/{architecture}");
        let mut crane = Command::new(testkit::peer("crane"));
        let digest = run(crane.args(["digest", "--platform", &platform, &image]));
        let image = format!("{repository}@{}", digest.trim());
        let verified = verify(release, "verify", &[&image]);
        assert!(verified.status.success(), "{}", shown(&verified));
        let bill = statement("cyclonedx", &image);
        assert!(bill["predicate"]["components"].as_array().unwrap().len() > 50, "{image}");
    }
}
