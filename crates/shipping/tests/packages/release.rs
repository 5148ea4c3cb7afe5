//! `scripts/release` with programs that the tests have built already: another build takes minutes. The layouts of the
//! images are made up; the tests of the images build real ones.

mod checkout;
mod publish;

use std::{
    collections::BTreeSet,
    fs,
    path::Path,
    process::{Command, Output},
};

use catalog::{
    Image, Implementation,
    trust::{CatalogStore, MAX_BUNDLE_BYTES, MEDIA_TYPE, PublicKey, Trust, built_in_keys},
};
use serde_json::Value;
use testkit::{Registry, Workdir};

use self::checkout::{Checkout, built, layout_digest};
use crate::{documents, run, shown};

const VERSION: &str = env!("CARGO_PKG_VERSION");

/// The checks of the page about releases, with the first key or another one.
fn verify(folder: &Path, number: &str) -> Output {
    let script = format!(
        "openssl pkeyutl -verify -pubin -inkey vdo{number}.pub -rawin -in SHA256SUMS -sigfile SHA256SUMS{number}.sig &&
        sha256sum --check --quiet --strict SHA256SUMS"
    );
    Command::new("sh").args(["-c", &script]).current_dir(folder).output().unwrap()
}

#[test]
fn make_passes_both_keys_on() {
    let mut make = Command::new("make");
    make.current_dir(testkit::repository()).args(["--dry-run", "release"]);
    // Those of a make that runs this test.
    make.env_remove("MAKEFLAGS").env_remove("MFLAGS");
    let recipe = run(make.args(["VERSION=1.2.3", "KEY=old.pem new.pem", "OUT=folder"]));
    assert!(
        recipe.contains("KEY=\"old.pem new.pem\" scripts/release \"1.2.3\" folder"),
        "{recipe}"
    );
}

#[test]
fn a_release_is_complete_signed_reproducible_and_every_change_is_noticed() {
    let workdir = Workdir::new("release").unwrap();
    let checkout = Checkout::new(&workdir);
    let refused = checkout.refused(VERSION, "");
    assert!(refused.contains("KEY names no private key"), "{refused}");
    let refused = checkout.refused(VERSION, "old.pem");
    assert!(refused.contains("the private key old.pem does not exist"), "{refused}");
    checkout.generate_key("old.pem");
    checkout.generate_key("new.pem");
    let refused = checkout.refused("99.0.0", "old.pem");
    assert!(refused.contains("VERSION is 99.0.0"), "{refused}");
    only_a_commit_is_released(&checkout, "old.pem");
    let refused = checkout.refused(VERSION, "old.pem new.pem");
    assert!(refused.contains("the programs of this release trust other keys: none"), "{refused}");
    only_suitable_keys_are_accepted(&checkout);

    checkout.trust_keys_of_the_build();
    let [first, second] = [workdir.path().join("first"), checkout.folder.join("release")];
    for folder in [&first, &second] {
        let output = checkout.release(VERSION, "old.pem new.pem");
        assert!(output.status.success(), "{}", shown(&output));
        if folder == &first {
            run(Command::new("cp").arg("-r").args([&second, &first]));
        }
    }
    let sums = fs::read_to_string(first.join("SHA256SUMS")).unwrap();
    assert_eq!(
        sums,
        fs::read_to_string(second.join("SHA256SUMS")).unwrap(),
        "the same bytes twice"
    );
    for signature in ["SHA256SUMS.sig", "SHA256SUMS.2.sig"] {
        let read = |folder: &Path| fs::read(folder.join(signature)).unwrap();
        assert_eq!(read(&first), read(&second));
    }
    let listed: BTreeSet<&str> =
        sums.lines().map(|line| line.split_once("  ").unwrap().1).collect();
    for wanted in [
        "vdoctl-V-linux-amd64.tar.gz",
        "vdoctl-V-linux-arm64.tar.gz",
        "kubectl-vdo-V-linux-amd64.tar.gz",
        "vdo-V.oci.tar",
        "vdo-cloud-controller-V.oci.tar",
        "vdo-csi-V.oci.tar",
        "vdo-chart-V.tgz",
        "vdo-olm-V.tar.gz",
        "vdo-krew.yaml",
        "install.yaml",
        "catalog.yaml",
        "catalog.bundle.json",
        "vdo-catalog-V.oci.tar",
        "vdoctl-V-linux-amd64.cdx.json",
        "vdo-csi-V-linux-arm64.cdx.json",
        "provenance.json",
        "RELEASE_NOTES.md",
    ] {
        let wanted = wanted.replace('V', VERSION);
        assert!(listed.contains(wanted.as_str()), "{wanted} is missing: {listed:?}");
    }
    for number in ["", ".2"] {
        let verified = verify(&first, number);
        assert!(verified.status.success(), "{}", shown(&verified));
    }

    plugin_is_found(&workdir, &first);
    bills_list_every_crate(&first);
    documents_name_the_files(&first, &sums);
    images_have_digests(&workdir, &checkout, &first);
    catalog_is_trusted(&first);
    operators_trust_both_keys(&checkout, &first);
    catalog_is_an_artifact(&workdir, &first);

    // Somebody changes a file; somebody changes a file and its checksum; somebody signs with another key.
    let install = second.join("install.yaml");
    let text = fs::read_to_string(&install).unwrap();
    fs::write(&install, text.replace("runAsNonRoot: true", "runAsNonRoot: false")).unwrap();
    assert!(!verify(&second, "").status.success());
    run(Command::new("sh").current_dir(&second).args(["-c", "find . -type f ! -name 'SHA256SUMS*' -printf '%P\\n' | LC_ALL=C sort | xargs sha256sum > SHA256SUMS"]));
    let refused = shown(&verify(&second, ""));
    assert!(refused.contains("Signature Verification Failure"), "{refused}");
    let other = workdir.path().join("other.pem");
    run(Command::new("openssl").args(["genpkey", "-algorithm", "ed25519", "-out"]).arg(&other));
    run(Command::new("openssl")
        .current_dir(&second)
        .args([
            "pkeyutl",
            "-sign",
            "-rawin",
            "-in",
            "SHA256SUMS",
            "-out",
            "SHA256SUMS.sig",
            "-inkey",
        ])
        .arg(&other));
    assert!(!verify(&second, "").status.success());

    another_build_can_be_compared(&checkout, &first);
}

/// Other files in the checkout end a release, and the private key is never asked to be committed.
fn only_a_commit_is_released(checkout: &Checkout, key: &str) {
    let file = checkout.folder.join("crates/new.rs");
    fs::write(&file, "").unwrap();
    let refused = checkout.refused(VERSION, key);
    assert!(refused.contains("?? crates/new.rs"), "{refused}");
    assert!(!refused.contains(key) && refused.contains("Never commit a private key"), "{refused}");
    fs::remove_file(&file).unwrap();

    checkout.git(&["add", "--force", key]);
    let refused = checkout.refused(VERSION, key);
    assert!(refused.contains(&format!("git tracks the private key {key}")), "{refused}");
    checkout.git(&["rm", "--quiet", "--cached", key]);

    // A folder with the files of somebody else is not deleted.
    let folder = checkout.folder.join("release");
    fs::create_dir(&folder).unwrap();
    fs::write(folder.join("thesis.md"), "").unwrap();
    let refused = checkout.refused(VERSION, key);
    assert!(refused.contains("contains other files"), "{refused}");
    fs::write(folder.join("SHA256SUMS"), format!("{}  thesis.md\n", "0".repeat(64))).unwrap();
    let refused = checkout.refused(VERSION, key);
    assert!(refused.contains("contains other files"), "{refused}");
    assert!(folder.join("thesis.md").exists());
    fs::remove_dir_all(&folder).unwrap();
}

/// Keys of another kind, and keys with a passphrase, of which nobody could give it.
fn only_suitable_keys_are_accepted(checkout: &Checkout) {
    let openssl = |arguments: &[&str]| {
        run(Command::new("openssl").current_dir(&checkout.folder).args(arguments));
    };
    let curve = "ec_paramgen_curve:P-256";
    openssl(&["genpkey", "-algorithm", "EC", "-pkeyopt", curve, "-out", "ec.pem"]);
    openssl(&["pkey", "-in", "ec.pem", "-pubout", "-out", "ec.pub.pem"]);
    let locked = "pkey -in old.pem -aes256 -passout pass:secret -out locked.pem";
    openssl(&locked.split(' ').collect::<Vec<_>>());
    for key in ["ec.pem", "ec.pub.pem", "locked.pem"] {
        let refused = checkout.refused(VERSION, &format!("old.pem {key}"));
        let expected = format!("{key} is not an ed25519 private key in PEM");
        assert!(refused.contains(&expected), "{refused}");
    }
    for key in ["ec.pub.pem", "old.pem", "no-such.pub"] {
        let output = checkout.command(VERSION, "old.pem").env("COMPARE", key).output().unwrap();
        let expected = format!("COMPARE: {key} is not an ed25519 public key");
        assert!(shown(&output).contains(&expected), "{}", shown(&output));
    }
}

/// Somebody builds the release again, with a key of their own: only the files that depend on the key differ.
fn another_build_can_be_compared(checkout: &Checkout, first: &Path) {
    let key = checkout.folder.join("release/key.pem");
    fs::copy(checkout.folder.join("new.pem"), &key).unwrap();
    let refused = checkout.refused(VERSION, "release/key.pem");
    assert!(refused.contains("contains other files"), "{refused}");
    assert!(key.exists(), "it would have been deleted with the release before");
    fs::remove_file(key).unwrap();

    checkout.generate_key("own.pem");
    let [old, new] = ["vdo.pub", "vdo.2.pub"].map(|name| first.join(name).display().to_string());
    let mut command = checkout.command(VERSION, "own.pem");
    run(command.env("COMPARE", format!("{old} {new}")));
    let trusted = built_in_keys("", &checkout.variable_of_the_build()).unwrap();
    let trusted: Vec<String> = trusted.iter().map(PublicKey::to_pem).collect();
    assert_eq!(trusted, [old, new].map(|path| fs::read_to_string(path).unwrap()));
    let files = |folder: &Path| {
        let sums = fs::read_to_string(folder.join("SHA256SUMS")).unwrap();
        let lines = sums.lines().map(|line| line.split_once("  ").unwrap());
        lines.map(|(sum, name)| (name.to_owned(), sum.to_owned())).collect::<BTreeSet<_>>()
    };
    let [theirs, ours] = [files(first), files(&checkout.folder.join("release"))];
    let differing: BTreeSet<&str> =
        theirs.symmetric_difference(&ours).map(|(name, _)| name.as_str()).collect();
    let catalog = format!("vdo-catalog-{VERSION}.oci.tar");
    let expected = ["catalog.bundle.json", "provenance.json", &catalog, "vdo.2.pub", "vdo.pub"];
    assert_eq!(differing.into_iter().collect::<Vec<_>>(), expected);

    let refused = checkout.publish("registry.example.com/vdo").output().unwrap();
    let expected = "the programs of this release do not accept its catalog";
    assert!(shown(&refused).contains(expected), "{}", shown(&refused));
}

/// krew itself cannot be had here: the fields and the checksum are checked, the archive is unpacked as krew does it,
/// and kubectl finds the plugin.
fn plugin_is_found(workdir: &Workdir, release: &Path) {
    let manifest = &documents(&release.join("vdo-krew.yaml"))[0];
    assert_eq!(manifest["apiVersion"], "krew.googlecontainertools.github.com/v1alpha2");
    assert_eq!(manifest["kind"], "Plugin");
    let spec = &manifest["spec"];
    assert_eq!(spec["version"], format!("v{VERSION}"));
    let short = spec["shortDescription"].as_str().unwrap();
    assert!(short.len() <= 50 && !short.ends_with('.'), "{short}");
    let platforms = spec["platforms"].as_array().unwrap();
    assert_eq!(platforms.len(), 2);
    let store = workdir.path().join("plugins");
    fs::create_dir(&store).unwrap();
    for platform in platforms {
        let labels = &platform["selector"]["matchLabels"];
        assert_eq!(labels["os"], "linux");
        let name = platform["uri"].as_str().unwrap().rsplit('/').next().unwrap();
        let archive = release.join(name);
        let sum = oci::Digest::from_bytes(&fs::read(&archive).unwrap());
        assert_eq!(platform["sha256"], sum.hex(), "{name}");
        // krew unpacks folders and regular files only.
        let listed = run(Command::new("tar").args(["-tvzf"]).arg(&archive));
        assert!(listed.lines().all(|line| line.starts_with('-')), "{listed}");
        for file in platform["files"].as_array().unwrap() {
            let from = file["from"].as_str().unwrap();
            assert!(
                listed.lines().any(|line| line.ends_with(&format!(" {from}"))),
                "{from}: {listed}"
            );
        }
        assert_eq!(platform["bin"], "kubectl-vdo");
        if labels["arch"] == if cfg!(target_arch = "aarch64") { "arm64" } else { "amd64" } {
            run(Command::new("tar").arg("-xzf").arg(&archive).arg("-C").arg(&store));
        }
    }
    let kubectl = |arguments: &[&str]| {
        let path = format!("{}:/usr/bin:/bin", store.display());
        run(Command::new(testkit::peer("kubectl")).args(arguments).env("PATH", path))
    };
    assert!(kubectl(&["plugin", "list"]).contains("kubectl-vdo"));
    assert!(kubectl(&["vdo", "version", "--client"]).contains(VERSION));
}

/// Compares with what cargo's own list says.
fn bills_list_every_crate(release: &Path) {
    let target = "x86_64-unknown-linux-musl";
    for (artefact, package) in [
        ("vdoctl", "vdoctl"),
        ("vdo", "operator"),
        ("vdo-cloud-controller", "cloud-controller"),
        ("vdo-csi", "csi"),
    ] {
        let bill =
            fs::read(release.join(format!("{artefact}-{VERSION}-linux-amd64.cdx.json"))).unwrap();
        let bill: Value = serde_json::from_slice(&bill).unwrap();
        assert_eq!(bill["bomFormat"], "CycloneDX");
        assert_eq!(bill["metadata"]["component"]["name"], package);
        let components = bill["components"].as_array().unwrap();
        let found: BTreeSet<String> = components
            .iter()
            .map(|one| {
                format!("{} v{}", one["name"].as_str().unwrap(), one["version"].as_str().unwrap())
            })
            .collect();
        let mut tree = Command::new(env!("CARGO"));
        tree.current_dir(testkit::repository()).args([
            "tree",
            // No line about another cargo that uses the cache of packages.
            "--quiet",
            "--locked",
            "--offline",
            "--prefix",
            "none",
        ]);
        let tree = run(tree.args([
            "--edges",
            // Macros run on the computer that compiles, so they are no part of the program.
            "normal,no-proc-macro",
            "--package",
            package,
            "--target",
            target,
            "--format",
            "{p}",
        ]));
        let listed = tree.lines().map(|line| line.split(' ').take(2).collect::<Vec<_>>().join(" "));
        let listed: BTreeSet<String> =
            listed.filter(|one| *one != format!("{package} v{VERSION}")).collect();
        let missing: Vec<&String> = listed.difference(&found).collect();
        assert!(
            missing.is_empty() && listed.len() > 50,
            "{artefact} lacks {missing:?} of {}",
            listed.len()
        );
        for component in components {
            // Only the crates of this project have no checksum.
            let is_known = !component["hashes"].is_null() || component["version"] == VERSION;
            assert!(is_known, "{component}");
            let is_crate = component["purl"].as_str().unwrap().starts_with("pkg:cargo/");
            let has_license = component["licenses"][0]["expression"].is_string();
            assert_eq!(is_crate, has_license, "{component}");
        }
        packages_are_listed(artefact, &bill);
    }
}

/// The image of the storage driver contains packages of Debian, and the others do not.
fn packages_are_listed(artefact: &str, bill: &Value) {
    let components = bill["components"].as_array().unwrap();
    let urls = components.iter().filter_map(|one| one["purl"].as_str());
    let urls: Vec<&str> = urls.filter(|url| url.starts_with("pkg:deb/")).collect();
    let expected: &[&str] = match artefact {
        "vdo-csi" => &[
            "pkg:deb/debian/e2fsprogs@1.47.0-2%2Bb2?arch=amd64",
            "pkg:deb/debian/mount@1%3A2.38.1-5~deb12u1?arch=amd64",
        ],
        _ => &[],
    };
    assert_eq!(urls, expected, "{artefact}");
    let root = bill["metadata"]["component"]["bom-ref"].as_str();
    let dependencies = bill["dependencies"].as_array().unwrap();
    let own = dependencies.iter().find(|one| one["ref"].as_str() == root).unwrap();
    let own = own["dependsOn"].as_array().unwrap();
    assert!(expected.iter().all(|url| own.iter().any(|one| one == url)), "{own:?}");
}

fn documents_name_the_files(release: &Path, sums: &str) {
    let provenance = fs::read(release.join("provenance.json")).unwrap();
    let provenance: Value = serde_json::from_slice(&provenance).unwrap();
    let subjects = provenance["subject"].as_array().unwrap();
    assert_eq!(subjects.len() + 1, sums.lines().count(), "every file but the statement itself");
    for subject in subjects {
        let line = format!(
            "{}  {}",
            subject["digest"]["sha256"].as_str().unwrap(),
            subject["name"].as_str().unwrap()
        );
        assert!(sums.lines().any(|known| known == line), "{line}");
    }
    let notes = fs::read_to_string(release.join("RELEASE_NOTES.md")).unwrap();
    assert!(notes.contains("### For cluster admins") && !notes.contains("\n## "), "{notes}");
}

/// The install manifest, the chart, the OLM bundle and the catalog name the images by the digests of the release.
fn images_have_digests(workdir: &Workdir, checkout: &Checkout, release: &Path) {
    let digest = layout_digest(&checkout.layout("vdo"));
    let image = format!("ghcr.io/vmware-tanzu/vdo:{VERSION}");
    let pinned = format!("{image}@{digest}");
    let archive = release.join(format!("vdo-olm-{VERSION}.tar.gz"));
    let path = "olm/bundle/manifests/vdo.clusterserviceversion.yaml";
    let text = run(Command::new("tar").arg("-xzOf").arg(archive).arg(path));
    assert!(text.contains(&pinned), "{path}");
    let objects = documents(&release.join("install.yaml"));
    let of_operator = "/spec/template/spec/containers/0/image";
    let images: Vec<&Value> = objects.iter().filter_map(|one| one.pointer(of_operator)).collect();
    assert_eq!(images, [&pinned]);

    // Another tag is another image, so it does not get the digest of this one.
    let chart = release.join(format!("vdo-chart-{VERSION}.tgz"));
    let other = digest.replace("sha256:", "").chars().rev().collect::<String>();
    let with = |flags: &[&str]| {
        let mut helm = Command::new(testkit::peer("helm"));
        helm.args(["template", "vdo", "--show-only", "templates/deployment.yaml"]).arg(&chart);
        let file = workdir.path().join("deployment.yaml");
        fs::write(&file, run(helm.args(flags))).unwrap();
        documents(&file)[0].pointer(of_operator).unwrap().as_str().unwrap().to_owned()
    };
    assert_eq!(with(&[]), pinned);
    let mirror = with(&["--set", "image.registry=registry.example.com"]);
    assert_eq!(mirror, format!("registry.example.com/vmware-tanzu/vdo:{VERSION}@{digest}"));
    assert_eq!(with(&["--set", "image.tag=test"]), image.replace(VERSION, "test"));
    let chosen = with(&["--set", &format!("image.digest=sha256:{other}")]);
    assert_eq!(chosen, format!("{image}@sha256:{other}"));

    let text = fs::read(release.join("catalog.yaml")).unwrap();
    let catalog = catalog::read(&text).unwrap();
    assert_eq!(
        catalog.serial,
        catalog::embedded().serial + 1,
        "the embedded one lacks the digests"
    );
    let ours = catalog.releases.iter().filter(|one| one.implementation == Implementation::Rust);
    let images: Vec<&Image> = ours.flat_map(|one| one.images.values()).collect();
    assert_eq!(images.len(), 3, "two drivers and the snapshot controller: {images:?}");
    assert!(images.iter().all(|image| image.digest.is_some()), "{images:?}");
    let manager = layout_digest(&checkout.layout("vdo-cloud-controller"));
    assert!(images.iter().any(|image| image.digest.as_ref() == Some(&manager)), "{images:?}");
}

fn catalog_is_trusted(release: &Path) {
    let key = fs::read_to_string(release.join("vdo.pub")).unwrap();
    let vdoctl = || {
        let mut command = Command::new(built().join("vdoctl"));
        command.current_dir(release).args(["catalog", "verify", "catalog.bundle.json", "--key"]);
        command
    };
    run(vdoctl().arg(&key));
    let other = "AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA=";
    let refused = vdoctl().arg(other).output().unwrap();
    assert!(!refused.status.success(), "{}", shown(&refused));
}

/// The programs were built with the keys of the release. An operator with either key accepts the catalog without a key in the
/// CompatibilityConfig; an operator of another build does not.
fn operators_trust_both_keys(checkout: &Checkout, release: &Path) {
    let bundle = fs::read(release.join("catalog.bundle.json")).unwrap();
    let keys = built_in_keys("", &checkout.variable_of_the_build()).unwrap();
    assert_eq!(keys.len(), 2);
    let now = catalog::embedded().issued;
    for (key, name) in keys.iter().zip(["vdo.pub", "vdo.2.pub"]) {
        assert_eq!(key.to_pem(), fs::read_to_string(release.join(name)).unwrap());
        let trust = Trust { keys: std::slice::from_ref(key), unsigned: false };
        assert!(CatalogStore::embedded().offer(&bundle, trust, now).unwrap());
    }
    let trust = Trust { keys: &catalog::trust::build_keys().unwrap(), unsigned: false };
    CatalogStore::embedded().offer(&bundle, trust, now).unwrap_err();
}

/// The real crane pushes the artifact into a real registry, and the client of the operator fetches it.
fn catalog_is_an_artifact(workdir: &Workdir, release: &Path) {
    let layout = workdir.path().join("catalog");
    fs::create_dir(&layout).unwrap();
    let archive = release.join(format!("vdo-catalog-{VERSION}.oci.tar"));
    run(Command::new("tar").arg("-xf").arg(archive).arg("-C").arg(&layout));
    testkit::install_tls_provider();
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let fetched = runtime.block_on(async {
        let registry = Registry::start().await;
        registry.push_layout(&layout, "vdo-catalog", VERSION).unwrap();
        let options = oci::ClientOptions { plain_http: true, ..oci::ClientOptions::default() };
        let name = format!("{}/vdo-catalog:{VERSION}", registry.address()).parse().unwrap();
        let client = oci::Client::new(options).unwrap();
        client.fetch_artifact(&name, MEDIA_TYPE, MAX_BUNDLE_BYTES as u64).await.unwrap()
    });
    assert!(fetched == fs::read(release.join("catalog.bundle.json")).unwrap(), "other bytes");
}
