//! `vdoctl catalog` for authors of catalogs.

use std::process::{Command, Output};

use catalog::trust::PublicKey;
use testkit::{Registry, Workdir};

/// Runs vdoctl in a directory.
fn tool(at: &Workdir, arguments: &[&str]) -> Output {
    let program = env!("CARGO_BIN_EXE_vdoctl");
    Command::new(program).arg("catalog").args(arguments).current_dir(at.path()).output().unwrap()
}

fn output(at: &Workdir, arguments: &[&str]) -> String {
    let output = tool(at, arguments);
    assert!(output.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

fn refused(at: &Workdir, arguments: &[&str]) -> String {
    let output = tool(at, arguments);
    assert!(!output.status.success(), "{arguments:?}");
    let text = String::from_utf8(output.stderr).unwrap();
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

#[test]
fn a_catalog_is_built_signed_and_checked() {
    let at = Workdir::new("tool").unwrap();
    let keys = output(&at, &["keygen", "key.pem"]);
    let pem = keys.trim();
    assert!(pem.starts_with("-----BEGIN PUBLIC KEY-----\n"), "{pem}");
    assert!(pem.ends_with("-----END PUBLIC KEY-----"), "one form of the key: {pem}");
    let key = pem.parse::<PublicKey>().unwrap().to_string();
    let key = key.as_str();
    assert!(
        refused(&at, &["keygen", "key.pem"]).contains("key.pem cannot be created"),
        "no key is lost"
    );
    at.write("two.json", output(&at, &["build", "embedded", "--serial", "2"])).unwrap();
    at.write("bundle.json", output(&at, &["sign", "two.json", "--key", "key.pem"])).unwrap();
    let checked = output(&at, &["check", "bundle.json", "--key", key]);
    assert!(checked.starts_with("serial 2, "), "{checked}");
    assert!(checked.contains("CSI: 26 releases, 2.7.0 to 3.8.0"), "{checked}");
    let ours = format!("CPI: 1 release by this project, {}\n", env!("CARGO_PKG_VERSION"));
    assert!(checked.contains(&ours), "{checked}");
    // From a signed catalog nothing runs that its signature does not cover.
    let (_, uncovered) = checked.split_once("cannot be installed, images lack a digest: ").unwrap();
    assert!(uncovered.contains("CSI 3.8.0") && !uncovered.contains("3.7.3"), "{checked}");
    assert!(!output(&at, &["check", "two.json"]).contains("not installed"));

    let text = std::fs::read_to_string(at.path().join("bundle.json")).unwrap();
    at.write("forged.json", text.replacen("Ii", "Ij", 1)).unwrap();
    let sentence = refused(&at, &["check", "forged.json", "--key", key]);
    assert!(sentence.contains("was changed after it was signed"), "{sentence}");
    let sentence = refused(&at, &["check", "bundle.json"]);
    assert!(
        sentence.contains("is a signed bundle; check it with `verify --key KEY`"),
        "{sentence}"
    );
    let sentence = refused(&at, &["check", "two.json", "--key", key]);
    assert!(sentence.contains("the catalog is not signed"), "{sentence}");
}

#[test]
fn an_unknown_field_is_located() {
    let at = Workdir::new("tool").unwrap();
    let wrong: [(&str, &str, &[&str]); 5] = [
        (
            "expires:",
            "expiers:",
            &["a catalog has no field expiers", "[typo.yaml:12:1]", "did you mean expires?"],
        ),
        ("serial: 1", "serial: one", &["serial is invalid", "[typo.yaml:10:9]"]),
        (
            "channel: latest",
            "channel: latset",
            &["channel cannot be \"latset\"", "[typo.yaml:LINE:36]", "did you mean latest?"],
        ),
        ("serial: 1\n", "", &["missing field `serial`"]),
        ("serial: 1\n", "serial: [1\n", &["this is not valid YAML"]),
    ];
    for (from, to, words) in wrong {
        let text = catalog::EMBEDDED.replacen(from, to, 1);
        assert_ne!(text, catalog::EMBEDDED, "{from}");
        // The first release that is on this channel is on another line in the next catalog.
        let line = text.lines().position(|line| line.contains(to)).map_or(0, |at| at + 1);
        at.write("typo.yaml", text).unwrap();
        // Also before publishing and without a cluster.
        for command in ["verify", "build", "import"] {
            let output = refused(&at, &[command, "typo.yaml"]);
            for word in words {
                let word = word.replace("LINE", &line.to_string());
                assert!(output.contains(&word), "{command} {to}: {word}: {output}");
            }
        }
    }
    output(&at, &["verify", "embedded"]);
}

#[test]
fn a_catalog_with_unknown_fields_is_readable_but_not_signed() {
    let at = Workdir::new("tool").unwrap();
    output(&at, &["keygen", "key.pem"]);
    at.write("typo.yaml", catalog::EMBEDDED.replacen("expires:", "expiers:", 1)).unwrap();
    let sentence = refused(&at, &["sign", "typo.yaml", "--key", "key.pem"]);
    assert!(sentence.contains("did you mean expires?"), "{sentence}");
    // A catalog of another author may be newer than vdoctl.
    output(&at, &["list", "typo.yaml"]);
    at.write("typo.yaml", catalog::EMBEDDED.replacen("serial: 1", "serial: one", 1)).unwrap();
    let sentence = refused(&at, &["list", "typo.yaml"]);
    assert!(sentence.contains("[typo.yaml:10:9]"), "{sentence}");
}

#[test]
fn an_invalid_catalog_is_not_signed() {
    let at = Workdir::new("tool").unwrap();
    output(&at, &["keygen", "key.pem"]);
    at.write("bad.yaml", "schema: \"9.0\"").unwrap();
    let sentence = refused(&at, &["sign", "bad.yaml", "--key", "key.pem"]);
    assert!(sentence.contains("VDO would refuse the catalog, so it is not signed"), "{sentence}");
    assert!(sentence.contains("the catalog has schema 9.0"), "{sentence}");
    let endless = catalog::EMBEDDED.replacen("expires: 2027-11-15T00:00:00Z\n", "", 1);
    at.write("endless.yaml", endless).unwrap();
    let sentence = refused(&at, &["sign", "endless.yaml", "--key", "key.pem"]);
    assert!(sentence.contains("endless.yaml has no expiry"), "{sentence}");
    let expires = ["build", "endless.yaml", "--expires", "2099-01-01T00:00:00Z"];
    at.write("ending.json", output(&at, &expires)).unwrap();
    output(&at, &["sign", "ending.json", "--key", "key.pem"]);
}

#[test]
fn a_release_is_added_from_a_published_manifest_without_a_new_operator() {
    let at = Workdir::new("tool").unwrap();
    let manifest = "apiVersion: apps/v1\nkind: DaemonSet\nmetadata: { name: d, namespace: kube-system }\n\
                    spec: { template: { spec: { containers: [{ name: c, image: \"example.com/cpi:v1.37.0\" }] } } }\n";
    at.write("cpi.yaml", manifest).unwrap();
    let add = [
        "from-manifest",
        "--driver",
        "cpi",
        "--version",
        "1.37.0",
        "--kubernetes-min",
        "1.37",
        "--kubernetes-max",
        "1.37",
        "--vsphere-min",
        "7.0",
        "cpi.yaml",
    ];
    at.write("new.json", output(&at, &add)).unwrap();
    assert_eq!(output(&at, &["diff", "embedded", "new.json"]), "+ CPI 1.37.0\n");
    let images = output(&at, &["images", "new.json", "--driver", "cpi", "--version", "1.37.0"]);
    assert_eq!(images, "example.com/cpi:v1.37.0\n");
    let ask =
        ["explain", "new.json", "--driver", "cpi", "--kubernetes", "1.37.1", "--vsphere", "8.0U3"];
    let answer = output(&at, &ask);
    assert!(answer.starts_with("Install 1.37.0\n"), "{answer}");
    let rendered = output(
        &at,
        &[
            "render",
            "new.json",
            "--driver",
            "cpi",
            "--version",
            "1.37.0",
            "--kubernetes",
            "1.37",
            "--mirror",
            "mirror.example.com",
        ],
    );
    assert!(rendered.contains("mirror.example.com/cpi:v1.37.0"), "{rendered}");
}

#[test]
fn storage_is_rendered_for_zones_and_for_as_many_nodes_as_there_are() {
    let at = Workdir::new("tool").unwrap();
    let plain = ["render", "--driver", "csi", "--version", "3.8.0", "--kubernetes", "1.36"];
    let rendered = output(&at, &plain);
    assert!(rendered.contains("replicas: 3\n"), "{rendered}");
    assert!(!rendered.contains("--strict-topology"), "{rendered}");
    let fitted = [&plain[..], &["--zones", "--control-plane-nodes", "1"]].concat();
    let rendered = output(&at, &fitted);
    assert!(rendered.contains("replicas: 1\n"), "{rendered}");
    assert!(rendered.contains("--strict-topology"), "{rendered}");
}

#[test]
fn the_cloud_controller_of_this_project_is_explained_listed_and_rendered() {
    let at = Workdir::new("tool").unwrap();
    let ours = ["--driver", "cpi", "--implementation", "rust"];
    let version = env!("CARGO_PKG_VERSION");
    let ask = |with: &[&str]| output(&at, &[with, &ours].concat());
    let answer = ask(&["explain", "--kubernetes", "1.29.4", "--vsphere", "9.0"]);
    assert!(answer.starts_with(&format!("Install {version}\n")), "{answer}");
    let answer = ask(&["explain", "--kubernetes", "1.21.4", "--vsphere", "8.0"]);
    assert!(
        answer.contains(&format!("{version}    It supports Kubernetes 1.24 to 1.36")),
        "{answer}"
    );
    let image = format!("ghcr.io/vmware-tanzu/vdo-cloud-controller:{version}");
    assert_eq!(ask(&["images"]), format!("{image}\n"));
    let rendered = ask(&["render", "--version", version, "--kubernetes", "1.36"]);
    assert!(rendered.contains(&image), "{rendered}");
}

#[test]
fn a_closed_pipe_is_not_an_error() {
    let at = Workdir::new("tool").unwrap();
    let line =
        format!("set -o pipefail; {} catalog images | head -1", env!("CARGO_BIN_EXE_vdoctl"));
    let output = Command::new("bash").args(["-c", &line]).current_dir(at.path()).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

#[tokio::test]
async fn a_signed_catalog_is_put_into_a_registry() {
    let at = Workdir::new("push").unwrap();
    let registry = Registry::start().await;
    let url = format!("oci://{}/vdo/catalog:1", registry.address());
    output(&at, &["keygen", "key.pem"]);
    at.write("two.json", output(&at, &["build", "embedded", "--serial", "2"])).unwrap();
    let refusal = refused(&at, &["push", "two.json", &url, "--plain-http"]);
    assert!(refusal.contains("two.json is not signed"), "{refusal}");
    at.write("bundle.json", output(&at, &["sign", "two.json", "--key", "key.pem"])).unwrap();
    let refusal = refused(&at, &["push", "bundle.json", "registry/vdo/catalog:1"]);
    assert!(refusal.contains("does not name an image"), "{refusal}");
    // Twice: a publisher can repeat it.
    let pushed = output(&at, &["push", "bundle.json", &url, "--plain-http"]);
    assert_eq!(output(&at, &["push", "bundle.json", &url, "--plain-http"]), pushed);

    // Other tools find the same: the artifact by its digest, and the file in its only layer.
    let crane = |arguments: &[&str]| {
        let mut crane = Command::new(testkit::peer("crane"));
        let output = crane.args(arguments).arg("--insecure").output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap()
    };
    let name = url.trim_start_matches("oci://");
    let digest = crane(&["digest", name]);
    assert_eq!(pushed, format!("matrixURL: {url}\ndigest: {digest}"));
    let manifest: serde_json::Value = serde_json::from_str(&crane(&["manifest", name])).unwrap();
    assert_eq!(manifest["artifactType"], catalog::trust::MEDIA_TYPE);
    let layer = manifest["layers"][0]["digest"].as_str().unwrap();
    let repository = name.rsplit_once(':').unwrap().0;
    let bundle = crane(&["blob", &format!("{repository}@{layer}")]);
    assert!(bundle == std::fs::read_to_string(at.path().join("bundle.json")).unwrap());
}
