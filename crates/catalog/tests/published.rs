//! Upstream's published manifests, adapted to a cluster and then adopted by VDO's templates.
//!
//! The tests read them from the published Go modules that the peers are built from; no copy is kept here.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::assigning_clones,
    reason = "a test that cannot set itself up should fall, and reads better plain"
)]

mod support;

use std::{path::PathBuf, process::Command};

use catalog::{
    Driver, Release, Rewrite,
    manifest::{Object, Profile, Rendered, from_manifest, profile::Distribution, render},
    model::Manifest,
};
use kube::{Client, api::PatchParams};
use serde_json::{Value, json};
use support::{
    cluster::{api, apply},
    full, plain, release,
};
use testkit::{ControlPlane, repository};

/// The folder of a Go module that a module under `peers/` requires.
fn module(user: &str, name: &str) -> PathBuf {
    let output = Command::new("go")
        .args(["list", "-m", "-f", "{{.Dir}}", name])
        .current_dir(repository().join("peers").join(user))
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    PathBuf::from(String::from_utf8(output.stdout).unwrap().trim())
}

fn cpi_text() -> String {
    let file = "releases/v1.36/vsphere-cloud-controller-manager.yaml";
    std::fs::read_to_string(module("", "k8s.io/cloud-provider-vsphere").join(file)).unwrap()
}

fn csi_text(file: &str) -> String {
    let module = module("csi-driver", "sigs.k8s.io/vsphere-csi-driver/v3");
    std::fs::read_to_string(module.join("manifests/vanilla").join(file)).unwrap()
}

/// A release that consists of a published manifest only.
fn published(driver: Driver, version: &str, texts: &[String]) -> Release {
    let manifest =
        Manifest { urls: vec!["https://example.com/x.yaml".to_owned()], ..Manifest::default() };
    let named = Release { manifest, images: [].into(), ..release(driver, version).clone() };
    from_manifest::fetched(&named, texts).unwrap()
}

fn cpi() -> Release {
    published(Driver::Cpi, "1.36.0", &[cpi_text()])
}

fn csi() -> Release {
    published(
        Driver::Csi,
        "3.7.0",
        &[csi_text("namespace.yaml"), csi_text("vsphere-csi-driver.yaml")],
    )
}

#[test]
fn a_release_with_manifest_urls_only_names_them_in_the_error() {
    let urls = vec!["https://example.com/a.yaml".to_owned(), "file:///b.yaml".to_owned()];
    let manifest = Manifest { urls, ..Manifest::default() };
    let named = Release { manifest, ..release(Driver::Cpi, "1.36.0").clone() };
    let error = render(&named, &plain()).unwrap_err();
    assert_eq!(
        error.to_string(),
        "the manifest of CPI 1.36.0 must be fetched first, from https://example.com/a.yaml, file:///b.yaml"
    );
}

#[test]
fn no_placeholder_of_upstream_reaches_the_cluster() {
    assert!(cpi_text().contains("ENTER_YOUR_VCENTER_PASSWORD"), "the trap is there");
    let mut profile = plain();
    profile.cpi.config_map = "cloud-config-of-ours".to_owned();
    let rendered = render(&cpi(), &profile).unwrap();
    let text = serde_json::to_string(&rendered.objects).unwrap();
    for placeholder in
        ["ENTER_YOUR", "10.0.0.1", "hrwest", "vsphere-cloud-secret", "\"vsphere-cloud-config\""]
    {
        assert!(!text.contains(placeholder), "{placeholder}");
    }
    let daemon_set = rendered.find("DaemonSet", "vsphere-cloud-controller-manager").unwrap();
    assert_eq!(
        daemon_set.0["spec"]["template"]["spec"]["volumes"],
        json!([{ "name": "vsphere-config-volume", "configMap": { "name": "cloud-config-of-ours" } }])
    );
    let [expected] = &rendered.expects[..] else { panic!() };
    assert_eq!(
        (expected.kind.as_str(), expected.name.as_str()),
        ("ConfigMap", "cloud-config-of-ours")
    );
    assert_eq!(expected.keys, ["vsphere.conf"]);
}

fn awkward() -> Profile {
    let mut profile = full();
    profile.windows_nodes = false;
    profile.kubelet_path = "/var/lib/k0s/kubelet".to_owned();
    profile.csi.namespace = "vsphere-storage".to_owned();
    profile.cpi.namespace = "vsphere-cloud".to_owned();
    profile.placement.nodes = 1;
    profile.placement.labels = vec!["example.com/control-plane".to_owned()];
    profile.placement.taints[0].key = "example.com/control-plane".to_owned();
    profile.images.rewrite = Rewrite::mirror("mirror.example.com");
    profile.images.pull_secrets = vec!["mirror".to_owned()];
    profile
}

#[test]
fn upstreams_storage_manifest_is_adapted_like_our_own() {
    let rendered = render(&csi(), &awkward()).unwrap();
    for image in &rendered.images {
        assert!(image.starts_with("mirror.example.com/"), "{image}");
    }
    let node = rendered.find("DaemonSet", "vsphere-csi-node").unwrap().0.to_string();
    assert_eq!(node.matches("/var/lib/k0s/kubelet").count(), 6);
    assert!(!node.contains("\"/var/lib/kubelet"));
    assert!(rendered.find("DaemonSet", "vsphere-csi-node-windows").is_none(), "no Windows here");
    let controller = &rendered.find("Deployment", "vsphere-csi-controller").unwrap().0;
    assert_eq!(controller["spec"]["replicas"], 1);
    let pod = &controller["spec"]["template"]["spec"];
    assert_eq!(pod["imagePullSecrets"], json!([{ "name": "mirror" }]));
    assert!(pod["affinity"]["nodeAffinity"].to_string().contains("example.com/control-plane"));
    assert!(!pod["affinity"]["nodeAffinity"].to_string().contains("node-role"));
    assert!(pod["tolerations"].to_string().contains("example.com/control-plane"));
    let provisioner = pod["containers"]
        .as_array()
        .unwrap()
        .iter()
        .find(|it| it["name"] == "csi-provisioner")
        .unwrap();
    assert!(provisioner["args"].to_string().contains("--feature-gates=Topology=true"));
    for object in &rendered.objects {
        assert_ne!(object.namespace(), "vmware-system-csi", "{} {}", object.kind(), object.name());
        for subject in object.0["subjects"].as_array().into_iter().flatten() {
            assert_eq!(subject["namespace"], "vsphere-storage");
        }
    }
    let labels = &rendered.find("Namespace", "vsphere-storage").unwrap().0["metadata"]["labels"];
    assert_eq!(labels["pod-security.kubernetes.io/enforce"], "privileged");
    assert!(rendered.find("ConfigMap", "internal-feature-states.csi.vsphere.vmware.com").is_some());
}

#[test]
fn on_openshift_upstreams_pods_get_the_constraints_they_need() {
    let mut profile = awkward();
    profile.distribution = Distribution::OpenShift;
    let mut found: Vec<_> = [cpi(), csi()]
        .iter()
        .flat_map(|release| render(release, &profile).unwrap().objects)
        .filter(|object| object.0["rules"].to_string().contains("securitycontextconstraints"))
        .map(|object| object.name().to_owned())
        .collect();
    found.sort();
    assert_eq!(
        found,
        [
            "cloud-controller-manager-hostnetwork-v2",
            "vsphere-csi-controller-nonroot-v2",
            "vsphere-csi-node-privileged"
        ]
    );
}

#[test]
fn the_windows_driver_is_kept_only_with_windows_nodes() {
    let mut profile = awkward();
    profile.windows_nodes = true;
    let rendered = render(&csi(), &profile).unwrap();
    let windows = rendered.find("DaemonSet", "vsphere-csi-node-windows").unwrap().0.to_string();
    assert!(windows.contains(r"C:\\var\\lib\\kubelet"), "its paths are left to it");
}

#[test]
fn upstreams_webhook_that_needs_a_script_is_removed() {
    let texts = [csi_text("vsphere-csi-driver.yaml"), csi_text("validatingwebhook.yaml")];
    assert!(texts[1].contains("${CA_BUNDLE}"), "the trap is there");
    let rendered = render(&published(Driver::Csi, "3.7.0", &texts), &plain()).unwrap();
    let webhook = [
        "ValidatingWebhookConfiguration validation.csi.vsphere.vmware.com",
        "Deployment vsphere-csi-webhook",
    ];
    for object in &rendered.objects {
        let name = format!("{} {}", object.kind(), object.name());
        assert!(!webhook.contains(&name.as_str()), "{name}");
    }
    assert!(rendered.find("Deployment", "vsphere-csi-controller").is_some());
}

#[test]
fn a_manifest_with_unreplaced_variables_is_refused() {
    let text = csi_text("vsphere-csi-driver.yaml").replace("\"PRODUCTION\"", "${LEVEL}");
    let error = render(&published(Driver::Csi, "3.7.0", &[text]), &plain()).unwrap_err();
    let text = snafu::Report::from_error(error).to_string();
    assert!(
        text.contains("Deployment vsphere-csi-controller still holds the variable ${LEVEL}"),
        "{text}"
    );
}

#[test]
fn an_invalid_manifest_is_refused_with_the_reason() {
    let refused = |texts: &[&str]| {
        let texts: Vec<_> = texts.iter().map(ToString::to_string).collect();
        from_manifest::fetched(release(Driver::Cpi, "1.36.0"), &texts).unwrap_err().to_string()
    };
    assert_eq!(refused(&["a: [b"]), "the manifest is not YAML");
    assert!(
        refused(&["kind: Pod\n---\nname: x"])
            .starts_with("document 1 of the manifest is not a Kubernetes object")
    );
    assert!(
        refused(&["404: Not Found"])
            .starts_with("document 1 of the manifest is not a Kubernetes object")
    );
    let config = "apiVersion: v1\nkind: ConfigMap\nmetadata: { name: x }";
    assert_eq!(
        refused(&[config]),
        "the manifest has no workload of the CPI driver; is it the right file?"
    );
}

/// Applies everything as one field manager, and panics at the first object that the API server refuses.
async fn apply_all(client: &Client, rendered: &Rendered, manager: &str) {
    let params = PatchParams::apply(manager).force().validation_strict();
    for object in &rendered.objects {
        apply(client, object, &params).await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_published_manifest_is_accepted_and_then_adopted_in_place_by_the_template() {
    let plane = ControlPlane::start().await;
    let client = plane.client();
    let mut profile = full();
    profile.placement.nodes = 3;
    for (theirs, version) in [(cpi(), "1.36.0"), (csi(), "3.7.0")] {
        apply_all(&client, &render(&theirs, &profile).unwrap(), "somebody").await;
        // The same objects and names, with the immutable selectors.
        apply_all(&client, &render(release(theirs.driver, version), &profile).unwrap(), "vdo")
            .await;
    }
    let name = "vsphere-cloud-controller-manager";
    let object = Object(json!({
        "apiVersion": "apps/v1", "kind": "DaemonSet", "metadata": { "name": name, "namespace": "kube-system" },
    }));
    let taken: Value =
        serde_json::to_value(api(&client, &object).get(name).await.unwrap()).unwrap();
    let container = &taken["spec"]["template"]["spec"]["containers"][0];
    assert!(container["livenessProbe"].is_object(), "ours has probes");
    assert!(container["image"].as_str().unwrap().contains("@sha256:"), "and pinned images");
}
