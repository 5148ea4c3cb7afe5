//! `vdoctl images export`, `import` and `verify`, between two real registries.

use std::{
    fs,
    process::{Command, Output},
};

use testkit::{Registry, Workdir};

use crate::{
    connect_proxy::connect_proxy,
    registry_front::{Behaviour, Front, login},
};

const VERSION: &str = env!("CARGO_PKG_VERSION");

fn vdoctl(at: &Workdir, arguments: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_vdoctl"));
    command.arg("images").args(arguments).current_dir(at.path()).env("HOME", at.path());
    command.env_remove("KUBECONFIG").output().unwrap()
}

fn works(at: &Workdir, arguments: &[&str]) -> (String, String) {
    let output = vdoctl(at, arguments);
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let (out, side) = (text(&output.stdout), text(&output.stderr));
    assert!(output.status.success(), "{arguments:?}: {out}{side}");
    (out, side.split_whitespace().collect::<Vec<_>>().join(" "))
}

fn refused(at: &Workdir, arguments: &[&str]) -> String {
    let output = vdoctl(at, arguments);
    assert_eq!(output.status.code(), Some(1), "{arguments:?}");
    let text = String::from_utf8_lossy(&output.stderr).replace(['│', '├', '╰', '─', '▶'], " ");
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// An image of one layer.
fn push(registry: &Registry, at: &Workdir, name: &str) {
    let layer = at.write("layer.tar", format!("{name:1024}")).unwrap();
    registry.push_layer(&layer, &format!("vmware-tanzu/{name}:{VERSION}"), &[]).unwrap();
}

#[tokio::test]
async fn images_travel_in_an_archive_to_the_registry_of_a_site() {
    let at = Workdir::new("images").unwrap();
    let upstream = Registry::start().await;
    for name in ["vdo", "vdo-cloud-controller"] {
        push(&upstream, &at, name);
    }
    let from = upstream.address().to_string();
    let export =
        ["export", "--driver", "cpi", "--version", VERSION, "--plain-http", "--from", &from];
    let export =
        [&export[..], &["--include", env!("CARGO_BIN_EXE_vdoctl"), "-o", "bundle.tar"]].concat();
    let (sum, notes) = works(&at, &export);
    assert!(notes.contains("bundle.tar contains 2 images"), "{notes}");
    at.write("bundle.sha256", sum).unwrap();
    let mut check = Command::new("sha256sum");
    let checked = check.args(["--check", "bundle.sha256"]).current_dir(at.path()).output().unwrap();
    assert!(checked.status.success(), "{}", String::from_utf8_lossy(&checked.stdout));
    // vdoctl, manifest and catalog travel in the same archive.
    let script = "tar -xf bundle.tar files && chmod +x files/vdoctl && files/vdoctl version --client && cat files/install.yaml";
    let unpacked = Command::new("sh").args(["-c", script]).current_dir(at.path()).output().unwrap();
    let text = String::from_utf8_lossy(&unpacked.stdout);
    assert!(unpacked.status.success() && text.contains("kind: Deployment"), "{text}");
    assert!(fs::read_to_string(at.path().join("files/catalog.yaml")).unwrap() == catalog::EMBEDDED);

    // The first registry is gone, as behind an air gap.
    drop(upstream);
    let site = Registry::start().await;
    let target = format!("{}/team/vsphere", site.address());
    let (listed, _) = works(&at, &["verify", "bundle.tar"]);
    assert_eq!(listed.lines().count(), 2, "{listed}");
    assert!(listed.contains(&format!("ghcr.io/vmware-tanzu/vdo:{VERSION}@sha256:")), "{listed}");
    let missing = refused(&at, &["verify", "bundle.tar", "--registry", &target, "--plain-http"]);
    assert!(
        missing.contains("the tag is missing") && missing.contains("vdoctl images import"),
        "{missing}"
    );
    let (spec, notes) =
        works(&at, &["import", "bundle.tar", "--registry", &target, "--plain-http"]);
    assert_eq!(spec, format!("spec:\n  images:\n    registry: {target}\n"));
    let deploy = format!("vdoctl deploy --image {target}/vmware-tanzu/vdo:{VERSION}@sha256:");
    assert!(notes.contains(&deploy), "{notes}");
    let (_, notes) = works(&at, &["verify", "bundle.tar", "--registry", &target, "--plain-http"]);
    assert!(notes.contains("has the same 2 images"), "{notes}");

    // VDO accepts the printed settings, and the images are there.
    let spec: serde_json::Value = serde_saphyr::from_str(&spec).unwrap();
    let images: api::vdo_config::Images =
        serde_json::from_value(spec["spec"]["images"].clone()).unwrap();
    let mirrored = Command::new(env!("CARGO_BIN_EXE_vdoctl"))
        .args(["images", "--driver", "cpi", "--version", VERSION, "--mirror"])
        .arg(&images.registry.unwrap().0)
        .output()
        .unwrap();
    for line in String::from_utf8_lossy(&mirrored.stdout).lines() {
        let image = line.split(' ').next_back().unwrap();
        let crane =
            Command::new(testkit::peer("crane")).args(["digest", "--insecure", image]).output();
        assert!(crane.unwrap().status.success(), "{image}");
    }

    // A changed byte: nothing is sent.
    let path = at.path().join("bundle.tar");
    let mut bytes = fs::read(&path).unwrap();
    let middle = bytes.len() / 2;
    bytes[middle] ^= 1;
    fs::write(&path, bytes).unwrap();
    let other = Registry::start().await;
    let target = other.address().to_string();
    let text = refused(&at, &["import", "bundle.tar", "--registry", &target, "--plain-http"]);
    assert!(
        text.contains("bundle.tar is damaged") && text.contains("has another content"),
        "{text}"
    );
    assert!(text.contains("help: copy or export the archive again"), "{text}");
}

#[tokio::test]
async fn an_image_with_another_digest_than_in_the_catalog_is_refused() {
    let at = Workdir::new("forged").unwrap();
    let registry = Registry::start().await;
    push(&registry, &at, "vdo");
    // Somebody publishes an image of theirs under the name of upstream's driver.
    let name = "csi-vsphere/driver:v3.7.3";
    registry.copy(&format!("vmware-tanzu/vdo:{VERSION}"), name).unwrap();
    let from = registry.address().to_string();
    let export = |image: &str| {
        let image = format!("registry.k8s.io/{image}");
        let arguments = ["export", "--driver", "cpi", "--version", VERSION, "--image", &image];
        let more = ["--plain-http", "--from", &from, "-o", "bundle.tar"];
        push(&registry, &at, "vdo-cloud-controller");
        vdoctl(&at, &[&arguments[..], &more].concat())
    };
    assert!(export(name).status.success());
    let text = refused(&at, &["verify", "bundle.tar"]);
    assert!(
        text.contains(name) && text.contains("the catalog of vdoctl lists sha256:86f7673f"),
        "{text}"
    );
    let text = refused(&at, &["import", "bundle.tar", "--registry", &from, "--plain-http"]);
    assert!(text.contains("does not contain the publisher's image"), "{text}");
}

/// The registry of the site has a certificate of its own authority, gives tokens only to an account, and is behind a proxy.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn flags_lead_to_a_registry_with_accounts_behind_a_proxy() {
    let at = Workdir::new("site").unwrap();
    let upstream = Registry::start().await;
    for name in ["vdo", "vdo-cloud-controller"] {
        push(&upstream, &at, name);
    }
    let from = upstream.address().to_string();
    let driver = ["export", "--driver", "cpi", "--version", VERSION, "-o"];
    let (_, notes) =
        works(&at, &[&driver[..], &["bundle.tar", "--plain-http", "--from", &from]].concat());
    // One step per image, with its size.
    for name in ["vdo", "vdo-cloud-controller"] {
        let step = format!("ghcr.io/vmware-tanzu/{name}:{VERSION}");
        assert!(notes.contains(&step) && notes.contains(" MB"), "{notes}");
    }

    let site = Registry::start().await;
    let tokens = Behaviour { tokens: true, ..Behaviour::default() };
    let front = Front::with_tls(site.address(), tokens).await;
    let (proxy, targets, _tasks) = connect_proxy().await;
    at.write("authority.pem", front.authority.clone().unwrap()).unwrap();
    at.write("auth.json", login(&front.address.to_string())).unwrap();
    let target = format!("{}/team/vsphere", front.address);
    let import = ["import", "bundle.tar", "--registry", &target];
    let authority = ["--ca-file", "authority.pem"];
    let account = ["--auth-file", "auth.json"];
    let proxied = ["--proxy", proxy.as_str()];

    let text = refused(&at, &[&import[..], &account, &proxied].concat());
    assert!(text.contains("cannot be reached") && text.contains("--ca-file"), "{text}");
    let text = refused(&at, &[&import[..], &authority, &proxied].concat());
    assert!(text.contains("requires credentials") && text.contains("--auth-file"), "{text}");
    assert!(targets.lock().unwrap().iter().all(|to| *to == front.address.to_string()));

    let (spec, _) = works(&at, &[&import[..], &authority, &account, &proxied].concat());
    assert_eq!(spec, format!("spec:\n  images:\n    registry: {target}\n"));
    let verify = ["verify", "bundle.tar", "--registry", &target];
    works(&at, &[&verify[..], &authority, &account, &proxied].concat());
    // The site's registry is a source too.
    let again = [&driver[..], &["again.tar", "--from", &target]].concat();
    works(&at, &[&again[..], &authority, &account, &proxied].concat());
    let listed = |archive: &str| works(&at, &["verify", archive]).0;
    assert_eq!(listed("again.tar"), listed("bundle.tar"));
    front.requests();
    targets.lock().unwrap().clear();
    let text = refused(
        &at,
        &[&verify[..], &authority, &account, &["--proxy", "http://127.0.0.1:1"]].concat(),
    );
    assert!(text.contains("cannot be reached") && text.contains("--proxy"), "{text}");
    assert_eq!(front.requests(), Vec::<String>::new(), "not around the proxy");
}
