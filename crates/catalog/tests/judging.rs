//! Each rule for releases in isolation: without the rule, one of these tests fails.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "a test that cannot set itself up should fall, and reads better plain"
)]

use std::cmp::Ordering;

use catalog::{
    Action, Catalog, Driver, Environment, Implementation, Policy, Request, Rewrite, Vcenter,
    choose, embedded,
    version::VsphereVersion,
    why::{Notice, Standstill},
};
use proptest::prelude::*;
use semver::Version;
use serde_json::json;

/// A catalog in which each kind of limit alone excludes some release.
fn limits() -> Catalog {
    let text = r#"
schema: "1.0"
serial: 1
issued: 2026-01-01T00:00:00Z
newestVsphere: "9.1"
csi:
  - line: all
    kubernetes: { min: "1.30", max: "1.36" }
    vsphere: { min: "7.0" }
    manifest: { urls: [https://example.com/x.yaml] }
    releases:
      - { version: 1.0.0 }
      - { version: 1.1.0, vsphere: { max: "8.0U2" } }
      - { version: 1.2.0, vsphere: { hosts: "7.0U3" }, knownBad: [
          { id: windows, severity: refuse, when: { windows: true }, reason: r, remedy: x }] }
      - { version: 1.3.0, vsphere: { max: "8.0" }, before: [
          { id: on-windows, when: { windows: true }, text: t }, { id: always, text: t }] }
      - { version: 1.4.0-rc.1 }
"#;
    catalog::read(text.as_bytes()).unwrap()
}

fn environment(vcenters: &[(&str, Option<&str>)]) -> Environment {
    let vcenter = |(version, host): &(&str, Option<&str>)| Vcenter {
        name: "vc".to_owned(),
        version: version.parse().unwrap(),
        oldest_host: host.map(|host| host.parse().unwrap()),
    };
    Environment {
        kubernetes: "1.34.1".parse().unwrap(),
        vcenters: vcenters.iter().map(vcenter).collect(),
        distribution: "vanilla".to_owned(),
        windows_nodes: false,
        topology: false,
        rewrite: Rewrite::default(),
        today: None,
    }
}

fn latest(installed: Option<&str>) -> Request {
    let installed = installed.map(|version| version.parse().unwrap());
    Request { implementation: Implementation::Upstream, policy: Policy::Latest, installed }
}

fn chosen(environment: &Environment) -> Option<String> {
    let action = choose(&limits(), environment, Driver::Csi, &latest(None)).action;
    action.version().map(ToString::to_string)
}

#[test]
fn the_newest_supported_vcenter_is_a_limit() {
    assert_eq!(chosen(&environment(&[("8.0.3", None)])).unwrap(), "1.3.0", "8.0 means all of 8.0");
    assert_eq!(chosen(&environment(&[("9.0.0", Some("8.0.3"))])).unwrap(), "1.2.0");
    assert_eq!(
        chosen(&environment(&[("8.0.3", None), ("9.0.0", Some("7.0.0"))])).unwrap(),
        "1.0.0"
    );
}

#[test]
fn a_prerelease_is_chosen_only_if_it_is_pinned() {
    let environment = environment(&[("8.0.3", None)]);
    let pin = Policy::Pinned { version: "1.4.0-rc.1".parse().unwrap(), downgrade: false };
    let decision =
        choose(&limits(), &environment, Driver::Csi, &Request { policy: pin, ..latest(None) });
    assert_eq!(decision.action.version().unwrap().to_string(), "1.4.0-rc.1");
    assert_eq!(chosen(&environment).unwrap(), "1.3.0");
}

#[test]
fn an_upgrade_step_is_listed_only_if_its_condition_holds() {
    let steps = |windows_nodes| {
        let environment = Environment { windows_nodes, ..environment(&[("8.0.3", None)]) };
        let decision = choose(&limits(), &environment, Driver::Csi, &latest(Some("1.0.0")));
        let Action::Change(path) = decision.action else { panic!("{:?}", decision.action) };
        path.hops[0].before.iter().map(|step| step.id.clone()).collect::<Vec<_>>()
    };
    assert_eq!(steps(false), ["always"]);
    assert_eq!(steps(true), ["on-windows", "always"]);
}

#[test]
fn without_a_vcenter_nothing_is_installed_or_changed() {
    let nowhere = environment(&[]);
    for (installed, action) in
        [(None, Action::Nothing), (Some("1.0.0"), Action::Keep(Version::new(1, 0, 0)))]
    {
        let decision = choose(&limits(), &nowhere, Driver::Csi, &latest(installed));
        assert_eq!(decision.action, action);
        assert_eq!(decision.standstill, Some(Standstill::NothingFits));
        assert_eq!(decision.notices, [Notice::NoVcenter]);
    }
}

#[test]
fn a_release_without_digests_has_a_notice() {
    let notice = |policy: Policy| {
        let request = Request { policy, ..latest(None) };
        let decision = choose(embedded(), &environment(&[("8.0.3", None)]), Driver::Csi, &request);
        let found = decision.notices.iter().find(|it| matches!(it, Notice::NotPinned { .. }));
        (decision.action.version().unwrap().to_string(), found.map(ToString::to_string))
    };
    let (version, text) = notice(Policy::Latest);
    assert_eq!(version, "3.8.0");
    let text = text.unwrap();
    assert!(text.starts_with("The catalog has no digest for registry.k8s.io/"), "{text}");
    assert_eq!(notice(Policy::Stable), ("3.7.3".to_owned(), None));
}

#[test]
fn hosts_in_maintenance_are_a_known_fault_of_every_release_before_the_fix() {
    let struck: Vec<_> = embedded()
        .releases_of(Driver::Csi, Implementation::Upstream)
        .filter(|release| release.known_bad.iter().any(|fault| fault.id == "maintenance-hosts"))
        .map(|release| release.version.to_string())
        .collect();
    assert_eq!(struck, ["3.3.0", "3.3.1", "3.4.0", "3.5.0", "3.6.0", "3.6.1", "3.7.0"]);
    let release =
        embedded().find(Driver::Csi, Implementation::Upstream, &Version::new(3, 4, 0)).unwrap();
    let fault = release.known_bad.iter().find(|fault| fault.id == "maintenance-hosts").unwrap();
    assert_eq!(fault.remedy, "use 3.5.1, 3.6.2, 3.7.1 or newer");
}

fn any_vsphere() -> impl Strategy<Value = VsphereVersion> {
    let known = [(6, 7), (7, 0), (8, 0), (9, 0), (9, 1), (10, 0)];
    (proptest::sample::select(known.to_vec()), 0u32..4)
        .prop_map(|((major, minor), update)| VsphereVersion::new(major, minor, update))
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1_000))]

    #[test]
    fn a_chosen_release_is_inside_every_limit(
        vcenters in proptest::collection::vec((any_vsphere(), proptest::option::of(any_vsphere())), 1..4),
        windows_nodes: bool,
    ) {
        let catalog = limits();
        let mut environment = Environment { windows_nodes, ..environment(&[]) };
        environment.vcenters = vcenters
            .into_iter()
            .map(|(version, oldest_host)| Vcenter { name: "vc".to_owned(), version, oldest_host })
            .collect();
        let decision = choose(&catalog, &environment, Driver::Csi, &latest(None));
        if let Some(version) = decision.action.version() {
            let release = catalog.find(Driver::Csi, Implementation::Upstream, version).unwrap();
            let range = &release.vsphere;
            for vcenter in &environment.vcenters {
                prop_assert_ne!(range.min.compare(vcenter.version), Ordering::Less);
                if let Some(max) = range.max {
                    prop_assert_ne!(max.compare(vcenter.version), Ordering::Greater, "{}", version);
                }
                if let (Some(hosts), Some(host)) = (range.hosts, vcenter.oldest_host) {
                    prop_assert_ne!(hosts.compare(host), Ordering::Less, "{}", version);
                }
            }
            prop_assert!(release.version.pre.is_empty());
            prop_assert!(!windows_nodes || release.known_bad.is_empty(), "{}", version);
        }
    }
}

/// Every image that can still be pulled has a digest, except those whose digest is not published yet.
#[test]
fn the_images_of_the_embedded_catalog_have_digests() {
    let mut without: Vec<String> = embedded()
        .releases
        .iter()
        .flat_map(|release| release.images.values())
        .filter(|image| image.digest.is_none() && embedded().why_unavailable(image).is_none())
        .map(catalog::Image::tagged)
        .collect();
    without.sort();
    without.dedup();
    assert_eq!(
        without,
        [
            "ghcr.io/vmware-tanzu/vdo-cloud-controller:0.7.0",
            "ghcr.io/vmware-tanzu/vdo-csi:0.7.0",
            "registry.k8s.io/csi-vsphere/driver:v3.8.0",
            "registry.k8s.io/csi-vsphere/syncer:v3.8.0",
        ]
    );
}

#[test]
fn a_published_manifest_uses_the_digests_of_its_catalog_and_a_mirror_keeps_them() {
    let digest = format!("sha256:{}", "a1".repeat(32));
    let image = "registry.k8s.io/csi-vsphere/driver:v9.9.9";
    let deployment = json!({
        "apiVersion": "apps/v1", "kind": "Deployment",
        "metadata": {"name": "vsphere-csi-controller", "namespace": "vmware-system-csi"},
        "spec": {"template": {"spec": {
            "initContainers": [{"name": "first", "image": image}],
            "containers": [{"name": "driver", "image": image}],
        }}},
    });
    let document = json!({
        "schema": "1.0", "serial": 2, "issued": "2026-11-15T00:00:00Z", "newestVsphere": "9.1",
        "digests": {image: digest},
        "csi": [{
            "line": "9.9", "kubernetes": {"min": "1.33", "max": "1.36"}, "vsphere": {"min": "7.0"},
            "manifest": {"objects": [deployment]}, "releases": [{"version": "9.9.9"}],
        }],
    });
    let mut catalog = catalog::read(document.to_string().as_bytes()).unwrap();
    catalog.signed = true;
    let release = &catalog.releases[0];
    assert_eq!(catalog::choose::is_covered(&catalog, release), Ok(()));
    let mut profile = catalog::manifest::Profile::new("v1.36.1".parse().unwrap());
    profile.images.rewrite = catalog::Rewrite::mirror("mirror.example.com:5000");
    let rendered = catalog::manifest::render(release, &profile).unwrap();
    let expected = format!("mirror.example.com:5000/csi-vsphere/driver:v9.9.9@{digest}");
    assert_eq!(rendered.images.into_iter().collect::<Vec<_>>(), [expected]);

    let unpinned =
        document.to_string().replace(&format!("{image}\":\"sha256"), "other:1\":\"sha256");
    let mut catalog = catalog::read(unpinned.as_bytes()).unwrap();
    assert_eq!(catalog::choose::is_covered(&catalog, &catalog.releases[0]), Ok(()), "by hand");
    catalog.signed = true;
    let refused = catalog::choose::is_covered(&catalog, &catalog.releases[0]).unwrap_err();
    assert!(refused.to_string().contains("driver:v9.9.9 has no digest"), "{refused}");
}
