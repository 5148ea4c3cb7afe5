//! `scripts/publish`, with a real registry. The signatures of cosign have a test of their own.

use std::{
    fs,
    path::Path,
    process::{Command, Output},
};

use testkit::{Registry, Workdir};

use super::{
    VERSION,
    checkout::{Checkout, built, layout_digest},
};
use crate::{run, shown};

fn digest(image: &str) -> Output {
    Command::new(testkit::peer("crane")).args(["digest", image]).output().unwrap()
}

/// Writes the checksum of a changed file.
fn sum_again(release: &Path, file: &str) {
    let line = run(Command::new("sha256sum").current_dir(release).arg(file));
    let sums = fs::read_to_string(release.join("SHA256SUMS")).unwrap();
    let changed = sums.lines().map(|old| {
        if old.ends_with(&format!("  {file}")) { line.trim_end() } else { old }.to_owned() + "\n"
    });
    fs::write(release.join("SHA256SUMS"), changed.collect::<String>()).unwrap();
    let sign =
        ["-sign", "-rawin", "-inkey", "../key.pem", "-in", "SHA256SUMS", "-out", "SHA256SUMS.sig"];
    run(Command::new("openssl").current_dir(release).arg("pkeyutl").args(sign));
}

#[tokio::test]
async fn a_published_release_is_complete_before_clusters_follow_its_catalog() {
    let workdir = Workdir::new("publish").unwrap();
    let checkout = Checkout::new(&workdir);
    checkout.generate_key("key.pem");
    checkout.trust_keys_of_the_build();
    let output = checkout.release(VERSION, "key.pem");
    assert!(output.status.success(), "{}", shown(&output));
    let release = checkout.folder.join("release");
    let registry = Registry::start().await;
    let site = format!("{}/vmware-tanzu", registry.address());
    let catalog = |tag: &str| digest(&format!("{site}/vdo-catalog:{tag}"));
    let refused = |expected: &str| {
        let output = checkout.publish(&site).output().unwrap();
        assert!(!output.status.success(), "{}", shown(&output));
        assert!(shown(&output).contains(expected), "{}", shown(&output));
    };

    // Somebody changed the checksums.
    let sums = fs::read(release.join("SHA256SUMS")).unwrap();
    fs::write(release.join("SHA256SUMS"), [&sums[..], b"\n"].concat()).unwrap();
    refused("SHA256SUMS.sig is no signature of SHA256SUMS by vdo.pub: nothing was pushed");
    fs::write(release.join("SHA256SUMS"), sums).unwrap();

    // The image of a driver cannot be pushed.
    let name = format!("vdo-csi-{VERSION}.oci.tar");
    let archive = release.join(&name);
    let image = fs::read(&archive).unwrap();
    fs::write(&archive, "no archive").unwrap();
    refused("differs from its checksums: nothing was pushed");
    assert!(!catalog(VERSION).status.success());
    sum_again(&release, &name);
    refused("");
    assert!(!catalog("1").status.success(), "clusters follow a catalog without its images");
    fs::write(&archive, image).unwrap();
    sum_again(&release, &name);

    // A file that is not part of the release.
    fs::copy(&archive, release.join(format!("other-{VERSION}.oci.tar"))).unwrap();
    let output = checkout.publish(&site).output().unwrap();
    assert!(output.status.success(), "{}", shown(&output));
    let printed = String::from_utf8_lossy(&output.stdout).into_owned();
    assert_eq!(printed.lines().count(), 4, "three images and the catalog: {printed}");
    for name in ["vdo", "vdo-cloud-controller", "vdo-csi"] {
        let expected = layout_digest(&checkout.layout(name));
        assert!(printed.contains(&format!("{site}/{name}@{expected}\n")), "{printed}");
        let pushed = digest(&format!("{site}/{name}:{VERSION}"));
        assert_eq!(shown(&pushed).trim(), expected);
    }
    assert_eq!(shown(&catalog("1")), shown(&catalog(VERSION)));
    assert!(printed.contains(shown(&catalog("1")).trim()), "{printed}");

    // A release of an earlier line has an older catalog. Clusters keep the newer one.
    let followed = shown(&catalog("1"));
    let newer = Registry::start().await;
    let other = format!("{}/vmware-tanzu", newer.address());
    let follow = |serial: u32| {
        let text = fs::read_to_string(release.join("catalog.yaml")).unwrap();
        let own = text.lines().find(|line| line.starts_with("  \"serial\": ")).unwrap();
        let text = text.replace(own, &format!("  \"serial\": {serial},"));
        let catalog = workdir.write("catalog.yaml", text);
        let mut vdoctl = Command::new(built().join("vdoctl"));
        vdoctl.current_dir(&checkout.folder).args(["catalog", "sign", "--key=key.pem"]);
        let artifact = oci::Artifact {
            title: "catalog.bundle.json".into(),
            media_type: "application/json".into(),
            content: run(vdoctl.arg(catalog.unwrap())).into_bytes(),
        };
        let layout = workdir.path().join(format!("followed-{serial}"));
        for (path, content) in artifact.layout().unwrap() {
            let path = layout.join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, content).unwrap();
        }
        let tag = format!("{other}/vdo-catalog:1");
        run(Command::new(testkit::peer("crane")).arg("push").arg(layout).arg(&tag));
        shown(&digest(&tag))
    };
    let kept = follow(99);
    let output = checkout.publish(&other).output().unwrap();
    assert!(output.status.success(), "{}", shown(&output));
    let message = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(message.contains("clusters keep the catalog with the serial 99"), "{message}");
    assert_eq!(shown(&digest(&format!("{other}/vdo-catalog:1"))), kept);
    assert_eq!(shown(&digest(&format!("{other}/vdo-catalog:{VERSION}"))), followed);
    follow(2);
    let output = checkout.publish(&other).output().unwrap();
    assert!(shown(&output).contains("another catalog with the serial 2"), "{}", shown(&output));
    follow(1);
    let output = checkout.publish(&other).output().unwrap();
    assert!(output.status.success(), "{}", shown(&output));
    assert_eq!(shown(&digest(&format!("{other}/vdo-catalog:1"))), followed);

    // A published version stays as it is.
    let image = format!("{site}/vdo:{VERSION}");
    let published = shown(&digest(&image));
    let crane = || Command::new(testkit::peer("crane"));
    run(crane().args(["copy", &format!("{site}/vdo-csi:{VERSION}"), &image]));
    let moved = shown(&digest(&image));
    assert_ne!(moved, published);
    refused("is published already, with other contents");
    assert_eq!(shown(&digest(&image)), moved, "nothing was pushed");
    run(crane().args(["copy", &format!("{site}/vdo@{}", published.trim()), &image]));

    let mut unsigned = checkout.publish(&site);
    let unsigned = unsigned.env("COSIGN_KEY", "cosign.key").output().unwrap();
    assert!(shown(&unsigned).contains("was not signed with cosign"), "{}", shown(&unsigned));
    fs::write(release.join("cosign.pub"), "").unwrap();
    refused("the release was signed with cosign: set COSIGN_KEY");
}
