//! A compatibility matrix of the Go VDO as a catalog: its manifests run here, and VDO does not guess what it
//! lacks.

#![allow(
    clippy::unwrap_used,
    clippy::assigning_clones,
    reason = "a test that cannot set itself up should fall, and reads better plain"
)]

mod support;

use catalog::{
    Action, Catalog, Driver, Environment, Implementation, Policy, Release, Request, Rewrite,
    Vcenter,
    choose::{can_be_pulled, choose},
    manifest::{Profile, Rendered, from_manifest::fetched, profile::Distribution, render},
    why::{Reason, Standstill},
};
use serde_json::json;
use support::plain;

const CSI: &str = include_str!("fixtures/go-matrix-csi.yaml");
const CPI: &str = include_str!("fixtures/go-matrix-cpi.yaml");

fn matrix() -> Catalog {
    let matrix = json!({
        "CSI": { "2.7.0": { "vSphere": {"min": "6.7.1", "max": "8.0.1"}, "k8s": {"min": "1.23", "max": "1.25"},
                            "deploymentPath": ["https://example.com/csi.yaml"] } },
        "CPI": { "1.26.0": { "vSphere": {"min": "6.7.1", "max": "8.0.1"}, "k8s": {"skewVersion": "1.26"},
                             "deploymentPath": ["https://example.com/cpi.yaml"] } }
    });
    catalog::read(matrix.to_string().as_bytes()).unwrap()
}

fn release(driver: Driver, text: &str) -> Release {
    let matrix = matrix();
    let named = matrix.releases_of(driver, Implementation::Upstream).next().unwrap();
    fetched(named, &[text.to_owned()]).unwrap()
}

fn rendered(driver: Driver, text: &str, profile: &Profile) -> Rendered {
    render(&release(driver, text), profile).unwrap()
}

fn environment(kubernetes: &str, vcenter: &str) -> Environment {
    Environment {
        kubernetes: kubernetes.parse().unwrap(),
        vcenters: vec![Vcenter {
            name: "vc".to_owned(),
            version: vcenter.parse().unwrap(),
            oldest_host: None,
        }],
        distribution: "vanilla".to_owned(),
        windows_nodes: false,
        topology: false,
        rewrite: Rewrite::default(),
        today: None,
    }
}

fn volumes(rendered: &Rendered, kind: &str, name: &str) -> serde_json::Value {
    rendered.find(kind, name).unwrap().0["spec"]["template"]["spec"]["volumes"].clone()
}

#[test]
fn a_webhook_without_a_server_is_removed_with_its_objects() {
    let rendered = rendered(Driver::Csi, CSI, &plain());
    for (kind, name) in [
        ("ValidatingWebhookConfiguration", "validation.csi.vsphere.vmware.com"),
        ("Service", "vsphere-webhook-svc"),
        ("Deployment", "vsphere-csi-webhook"),
        ("ConfigMap", "vsphere-webhook-config"),
    ] {
        assert!(rendered.find(kind, name).is_none(), "{kind} {name}");
    }
    assert!(rendered.find("ConfigMap", "internal-feature-states.csi.vsphere.vmware.com").is_some());
}

#[test]
fn on_openshift_the_platform_completes_the_webhook_and_its_volumes_stay() {
    let mut profile = plain();
    profile.distribution = Distribution::OpenShift;
    let rendered = rendered(Driver::Csi, CSI, &profile);
    assert!(
        rendered
            .find("ValidatingWebhookConfiguration", "validation.csi.vsphere.vmware.com")
            .is_some()
    );
    assert!(rendered.find("ConfigMap", "vsphere-webhook-config").is_some());
    assert_eq!(
        volumes(&rendered, "Deployment", "vsphere-csi-webhook"),
        json!([
            { "name": "webhook-certs", "secret": { "secretName": "vsphere-webhook-certs" } },
            { "name": "webhook-config", "configMap": { "name": "vsphere-webhook-config" } },
        ])
    );
}

#[test]
fn only_the_configuration_volumes_change() {
    let csi = rendered(Driver::Csi, CSI, &plain());
    assert_eq!(
        volumes(&csi, "Deployment", "vsphere-csi-controller"),
        json!([
            { "name": "conf", "secret": { "secretName": "vsphere-config-secret" } },
            { "name": "proxy-config", "configMap": { "name": "proxy-config" } },
        ]),
        "only the volume mounted at /etc/cloud"
    );
    assert!(csi.find("ConfigMap", "proxy-config").is_some());
    let mut profile = plain();
    profile.cpi.config_map = "ours".to_owned();
    let cpi = rendered(Driver::Cpi, CPI, &profile);
    assert_eq!(
        volumes(&cpi, "DaemonSet", "vsphere-cloud-controller-manager"),
        json!([{ "name": "settings", "configMap": { "name": "ours" } }]),
        "every volume with the name of a configuration"
    );
    assert!(cpi.find("ConfigMap", "cloud-config").is_none(), "the example is not applied");
}

#[test]
fn an_unavailable_image_is_detected_once_the_manifest_is_fetched() {
    let release = release(Driver::Csi, CSI);
    let refused = can_be_pulled(&matrix(), &Rewrite::default(), &release).unwrap_err();
    assert!(matches!(refused, Reason::ImagesGone { .. }), "{refused:?}");
    let mirror = Rewrite::mirror("mirror.example.com");
    assert!(can_be_pulled(&matrix(), &mirror, &release).is_ok(), "a mirror has it");
}

#[test]
fn the_ranges_of_a_matrix_are_not_extended_to_newer_clusters() {
    let request = Request {
        implementation: Implementation::Upstream,
        policy: Policy::Latest,
        installed: None,
    };
    let action = |kubernetes: &str, vcenter: &str| {
        choose(&matrix(), &environment(kubernetes, vcenter), Driver::Csi, &request)
    };
    assert_eq!(
        action("1.25.3", "8.0.1").action,
        Action::Install(semver::Version::new(2, 7, 0)),
        "inside its ranges it is followed"
    );
    for (kubernetes, vcenter) in [("1.30.0", "8.0.1"), ("1.25.3", "9.0.0")] {
        let decision = action(kubernetes, vcenter);
        assert_eq!(decision.action, Action::Nothing, "{kubernetes}, {vcenter}");
        assert_eq!(decision.standstill, Some(Standstill::NothingFits));
    }
}
