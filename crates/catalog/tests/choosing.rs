//! Which release is chosen: a table of cases with expected outcomes, and properties that hold for every case.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::assigning_clones,
    reason = "a test that cannot set itself up should fall, and reads better plain"
)]

use std::collections::BTreeSet;

use catalog::{
    Action, Driver, Environment, Implementation, Policy, Release, Request, Rewrite, Vcenter,
    choose, embedded,
    model::{Catalog, Channel},
    version::VsphereVersion,
    why::{Notice, Reason, Standstill},
};
use proptest::prelude::*;
use semver::Version;

fn environment(kubernetes: &str, vcenters: &[&str]) -> Environment {
    let vcenter = |(n, version): (usize, &&str)| Vcenter {
        name: format!("vc-{}", n + 1),
        version: version.parse().unwrap(),
        oldest_host: None,
    };
    Environment {
        kubernetes: kubernetes.parse().unwrap(),
        vcenters: vcenters.iter().enumerate().map(vcenter).collect(),
        distribution: "vanilla".to_owned(),
        windows_nodes: false,
        topology: false,
        rewrite: Rewrite::default(),
        today: None,
    }
}

fn request(policy: Policy, installed: Option<&str>) -> Request {
    Request {
        implementation: Implementation::Upstream,
        policy,
        installed: installed.map(|version| version.parse().unwrap()),
    }
}

fn show(action: &Action) -> String {
    match action {
        Action::Install(version) => format!("install {version}"),
        Action::Change(path) => {
            let stops: Vec<_> = path.hops.iter().map(|hop| hop.to.to_string()).collect();
            format!("change {} > {}", path.from, stops.join(" > "))
        }
        Action::Keep(version) => format!("keep {version}"),
        Action::Nothing => "nothing".to_owned(),
    }
}

#[test]
fn every_case_of_the_table_has_the_expected_outcome() {
    let table = include_str!("choices.txt");
    let mut cases = BTreeSet::new();
    let mut wrong = Vec::new();
    for line in table.lines().filter(|line| !line.is_empty() && !line.starts_with('#')) {
        let cells: Vec<_> = line.split('|').map(str::trim).collect();
        let [driver, kubernetes, vcenters, installed, policy, images, expected] = cells[..] else {
            panic!("not seven cells: {line}");
        };
        let driver = match driver {
            "cpi" => Driver::Cpi,
            "csi" => Driver::Csi,
            other => panic!("no driver: {other}"),
        };
        let policy = match policy.split(' ').collect::<Vec<_>>()[..] {
            ["latest"] => Policy::Latest,
            ["stable"] => Policy::Stable,
            ["manual"] => Policy::Manual,
            ["pin", version] => {
                Policy::Pinned { version: version.parse().unwrap(), downgrade: false }
            }
            ["pin", version, "down"] => {
                Policy::Pinned { version: version.parse().unwrap(), downgrade: true }
            }
            ref other => panic!("no policy: {other:?}"),
        };
        let mut environment = environment(kubernetes, &vcenters.split('+').collect::<Vec<_>>());
        if images == "mirror" {
            environment.rewrite = Rewrite::mirror("mirror.example.com");
        }
        let installed = (installed != "-").then_some(installed);
        let decision = choose(embedded(), &environment, driver, &request(policy, installed));
        let found = show(&decision.action);
        if found != expected {
            wrong.push(format!("{line}\n    but came out as {found}; {:?}", decision.standstill));
        }
        assert!(cases.insert(cells[..6].join("|")), "twice: {line}");
    }
    assert!(wrong.is_empty(), "{} of {}:\n{}", wrong.len(), cases.len(), wrong.join("\n"));
    assert!(cases.len() >= 300, "only {} cases", cases.len());
}

fn why(decision: &catalog::Decision, version: &str) -> String {
    let version: Version = version.parse().unwrap();
    let (_, reason) = decision.others.iter().find(|(other, _)| *other == version).unwrap();
    reason.to_string()
}

#[test]
fn every_release_not_chosen_has_a_reason_in_one_sentence() {
    let decision = choose(
        embedded(),
        &environment("1.34.2", &["8.0U3"]),
        Driver::Csi,
        &request(Policy::Stable, Some("3.6.3")),
    );
    assert_eq!(show(&decision.action), "change 3.6.3 > 3.7.3");
    assert_eq!(
        why(&decision, "3.8.0"),
        "It fits, but it is not proven yet; the policy prefers 3.7.3."
    );
    assert_eq!(why(&decision, "3.7.2"), "It fits; 3.7.3 is newer and fits too.");
    assert_eq!(
        why(&decision, "3.6.0"),
        "It is older than 3.6.3, the installed version; VDO does not downgrade drivers."
    );
    assert_eq!(
        why(&decision, "3.5.1"),
        "It supports Kubernetes 1.31 to 1.33; this cluster runs 1.34.2."
    );
    let csi = embedded().releases_of(Driver::Csi, Implementation::Upstream).count();
    assert_eq!(decision.others.len(), csi - 1);
}

#[test]
fn an_old_vcenter_is_named_with_the_problem_it_would_cause() {
    let decision = choose(
        embedded(),
        &environment("1.29", &["8.0U3", "6.7U3"]),
        Driver::Csi,
        &request(Policy::Latest, None),
    );
    assert_eq!(decision.action, Action::Nothing);
    assert_eq!(
        decision.standstill.unwrap().to_string(),
        "No release in the catalog fits this cluster."
    );
    let (_, reason) = decision.others.iter().find(|(v, _)| *v == Version::new(3, 2, 0)).unwrap();
    assert_eq!(
        reason.to_string(),
        "It needs vCenter 7.0; vc-2 runs 6.7U3: from 3.2 on the controller exits on a 6.7 vCenter, saying \
         that vSAN file service is not supported."
    );
}

#[test]
fn a_host_that_is_too_old_is_named() {
    let mut environment = environment("1.34", &["8.0U3"]);
    environment.vcenters[0].oldest_host = Some("6.5U3".parse().unwrap());
    let decision = choose(embedded(), &environment, Driver::Csi, &request(Policy::Latest, None));
    assert_eq!(why(&decision, "3.8.0"), "It needs ESXi 6.7U3; a host of vc-1 runs 6.5U3.");
}

#[test]
fn unavailable_images_exclude_a_release_unless_a_mirror_has_them() {
    let mut environment = environment("1.25", &["7.0U3"]);
    let decision = choose(embedded(), &environment, Driver::Cpi, &request(Policy::Latest, None));
    assert_eq!(
        why(&decision, "1.25.3"),
        "gcr.io/cloud-provider-vsphere/cpi/release/manager:v1.25.3 cannot be pulled: its images were only ever \
         at gcr.io/cloud-provider-vsphere, which was deleted in September 2024. If a mirror has it, set \
         spec.images.registry."
    );
    let pair =
        ("gcr.io/cloud-provider-vsphere".to_owned(), "mirror.example.com/vsphere".to_owned());
    environment.rewrite = Rewrite::new([pair]);
    let decision = choose(embedded(), &environment, Driver::Cpi, &request(Policy::Latest, None));
    assert_eq!(show(&decision.action), "install 1.25.3");
}

#[test]
fn platforms_newer_than_the_catalog_get_the_newest_release_and_a_notice() {
    for driver in [Driver::Cpi, Driver::Csi] {
        let decision = choose(
            embedded(),
            &environment("1.39.1", &["11.0"]),
            driver,
            &request(Policy::Latest, None),
        );
        assert!(matches!(decision.action, Action::Install(_)), "{driver}");
        let notices: Vec<_> = decision.notices.iter().map(ToString::to_string).collect();
        assert!(notices[0].starts_with(
            "Kubernetes 1.39.1 is newer than any driver release in the catalog supports (1.36)"
        ));
        assert!(
            notices[1]
                .starts_with("vc-1 runs vSphere 11.0, newer than 9.1, the newest in the catalog")
        );
    }
}

#[test]
fn an_installed_release_that_no_longer_fits_stays_with_a_notice() {
    let decision = choose(
        embedded(),
        &environment("1.33", &["6.7U3"]),
        Driver::Csi,
        &request(Policy::Latest, Some("3.1.2")),
    );
    assert_eq!(show(&decision.action), "keep 3.1.2");
    assert_eq!(decision.standstill, Some(Standstill::NothingFits));
    let notice = decision.notices.last().unwrap().to_string();
    assert_eq!(
        notice,
        "3.1.2 keeps running although it does not fit: It supports Kubernetes 1.26 to 1.28; this cluster runs 1.33.0."
    );
}

#[test]
fn a_pinned_version_that_does_not_fit_is_refused_with_the_reason() {
    let pin =
        |version: &str| Policy::Pinned { version: version.parse().unwrap(), downgrade: false };
    let refused = |pinned: &str, installed: Option<&str>| {
        let decision = choose(
            embedded(),
            &environment("1.34", &["8.0"]),
            Driver::Csi,
            &request(pin(pinned), installed),
        );
        decision.standstill.unwrap().to_string()
    };
    assert_eq!(
        refused("3.4.0", None),
        "Version 3.4.0 is pinned, but cannot be installed: It supports Kubernetes 1.30 to 1.32; this cluster runs 1.34.0."
    );
    assert!(
        refused("3.7.9", None)
            .starts_with("Version 3.7.9 is pinned, but the catalog does not contain it")
    );
    assert!(refused("3.6.0", Some("3.7.3")).ends_with("VDO does not downgrade drivers."));
    assert!(refused("3.7.3", Some("2.1.0")).ends_with("remove 2.1.0 with its own manifest first."));
}

#[test]
fn an_upgrade_from_2_to_3_collects_the_steps_of_every_crossed_release() {
    let mut environment = environment("1.35", &["9.1"]);
    environment.windows_nodes = true;
    let decision =
        choose(embedded(), &environment, Driver::Csi, &request(Policy::Stable, Some("2.7.3")));
    let Action::Change(path) = decision.action else { panic!("{:?}", decision.action) };
    let [hop] = &path.hops[..] else { panic!("{path:?}") };
    let ids = |steps: &[catalog::model::UpgradeTask]| {
        steps.iter().map(|step| step.id.clone()).collect::<Vec<_>>()
    };
    assert_eq!(
        ids(&hop.before),
        [
            "one-cluster-id",
            "qualified-user",
            "own-feature-states",
            "modern-certificates",
            "windows-host-process",
            "keep-volume-prefix",
            "volumes-per-node"
        ]
    );
    assert_eq!(ids(&hop.after), ["drop-snapshot-webhook"]);

    environment.windows_nodes = false;
    let decision =
        choose(embedded(), &environment, Driver::Csi, &request(Policy::Stable, Some("3.7.2")));
    let Action::Change(path) = decision.action else { panic!() };
    assert!(path.hops[0].before.is_empty(), "a patch within the line crosses nothing");
}

/// A catalog whose versions cannot be skipped.
fn ladder() -> Catalog {
    let text = r#"
schema: "1.0"
serial: 1
issued: 2026-01-01T00:00:00Z
newestVsphere: "9.0"
csi:
  - line: all
    kubernetes: { min: "1.30", max: "1.36" }
    vsphere: { min: "7.0" }
    manifest: { urls: [https://example.com/x.yaml] }
    releases:
      - { version: 1.9.0 }
      - { version: 1.10.0, upgradeFrom: 1.9.0, before: [{ id: ten, text: ten }] }
      - { version: 2.0.0, upgradeFrom: 1.10.0, kubernetes: { max: "1.33" } }
      - { version: 2.1.0, upgradeFrom: 1.10.0, after: [{ id: two-one, text: two-one }] }
      - { version: 3.0.0, upgradeFrom: 2.0.0 }
"#;
    catalog::read(text.as_bytes()).unwrap()
}

#[test]
fn releases_that_must_not_be_skipped_are_visited() {
    let decision = choose(
        &ladder(),
        &environment("1.35", &["8.0"]),
        Driver::Csi,
        &request(Policy::Latest, Some("1.9.0")),
    );
    assert_eq!(
        show(&decision.action),
        "change 1.9.0 > 1.10.0 > 2.1.0 > 3.0.0",
        "2.0.0 cannot run on 1.35"
    );
    let Action::Change(path) = decision.action else { panic!() };
    assert_eq!(path.hops[0].before[0].id, "ten");
    assert_eq!(path.hops[1].after[0].id, "two-one");
    let stuck = choose(
        &ladder(),
        &environment("1.35", &["8.0"]),
        Driver::Csi,
        &request(Policy::Latest, Some("1.8.0")),
    );
    assert_eq!(show(&stuck.action), "change 1.8.0 > 1.9.0 > 1.10.0 > 2.1.0 > 3.0.0");
}

#[test]
fn a_host_in_maintenance_causes_a_warning_only_with_zones() {
    let faults = |topology: bool| {
        let environment = Environment { topology, ..environment("1.33", &["8.0"]) };
        let pin = Policy::Pinned { version: Version::new(3, 7, 0), downgrade: false };
        let decision = choose(embedded(), &environment, Driver::Csi, &request(pin, None));
        decision.notices.iter().filter(|notice| matches!(notice, Notice::KnownBad { .. })).count()
    };
    assert_eq!((faults(true), faults(false)), (1, 0));
}

#[test]
fn stable_waits_for_a_proven_release_and_names_the_way_out() {
    let mut catalog = embedded().clone();
    catalog.releases.retain(|release| release.version != Version::new(3, 7, 3));
    for release in &mut catalog.releases {
        release.kubernetes.tolerates = None;
    }
    let chosen = |policy, installed| {
        let environment = environment("1.36", &["8.0U3"]);
        choose(&catalog, &environment, Driver::Csi, &request(policy, installed))
    };
    let decision = chosen(Policy::Stable, None);
    assert_eq!(decision.action, Action::Nothing, "3.8.0 is young and has no digests");
    let standstill = decision.standstill.unwrap().to_string();
    assert!(standstill.contains("3.8.0") && standstill.contains("policy: Latest"), "{standstill}");
    for installed in ["3.6.3", "3.7.2", "3.8.0"] {
        let decision = chosen(Policy::Stable, Some(installed));
        assert_eq!(show(&decision.action), format!("keep {installed}"));
        assert_eq!(decision.standstill, None);
    }
    assert_eq!(show(&chosen(Policy::Latest, None).action), "install 3.8.0");
}

#[test]
fn releases_of_this_project_and_of_upstream_stay_separate() {
    let ours =
        Request { implementation: Implementation::Rust, policy: Policy::Latest, installed: None };
    let decision = choose(embedded(), &environment("1.36", &["8.0"]), Driver::Csi, &ours);
    assert_eq!(decision.action, Action::Install(env!("CARGO_PKG_VERSION").parse().unwrap()));
    assert!(decision.others.is_empty(), "no release of upstream's is considered");
}

#[test]
fn our_cloud_controller_supports_many_kubernetes_minors() {
    let own = Version::parse(env!("CARGO_PKG_VERSION")).unwrap();
    let ours = |policy, kubernetes: &str, vsphere: &str| {
        let request = Request { implementation: Implementation::Rust, policy, installed: None };
        choose(embedded(), &environment(kubernetes, &[vsphere]), Driver::Cpi, &request)
    };
    for kubernetes in ["1.24", "1.29", "1.33", "1.36", "1.37", "1.40"] {
        for vsphere in ["6.7U3", "7.0", "8.0U3", "9.0", "9.1"] {
            for policy in [Policy::Latest, Policy::Stable, Policy::Manual] {
                let decision = ours(policy, kubernetes, vsphere);
                let wanted = Action::Install(own.clone());
                assert_eq!(decision.action, wanted, "{kubernetes} {vsphere}: {decision:#?}");
            }
        }
    }
    for (kubernetes, vsphere, why) in [
        ("1.23", "8.0", "It supports Kubernetes 1.24 to 1.36; this cluster runs 1.23"),
        ("1.36", "6.5", "It needs vCenter 6.7U3"),
    ] {
        let decision = ours(Policy::Latest, kubernetes, vsphere);
        assert_eq!(decision.action, Action::Nothing);
        let [(version, reason)] = &decision.others[..] else { panic!("{decision:#?}") };
        assert_eq!(*version, own);
        assert!(reason.to_string().starts_with(why), "{reason}");
    }
}

fn any_policy() -> impl Strategy<Value = Policy> {
    prop_oneof![
        Just(Policy::Latest),
        Just(Policy::Stable),
        Just(Policy::Manual),
        any_version().prop_map(|version| Policy::Pinned { version, downgrade: false }),
    ]
}

fn any_version() -> impl Strategy<Value = Version> {
    let known: Vec<_> = embedded().releases.iter().map(|release| release.version.clone()).collect();
    prop_oneof![
        4 => proptest::sample::select(known),
        1 => (0u64..5, 0u64..40, 0u64..9).prop_map(|(a, b, c)| Version::new(a, b, c)),
    ]
}

fn any_vsphere() -> impl Strategy<Value = VsphereVersion> {
    (
        prop_oneof![
            Just((6, 7)),
            Just((7, 0)),
            Just((8, 0)),
            Just((9, 0)),
            Just((9, 1)),
            Just((10, 0))
        ],
        0u32..4,
    )
        .prop_map(|((major, minor), update)| VsphereVersion::new(major, minor, update))
}

fn any_environment() -> impl Strategy<Value = Environment> {
    let vcenters =
        proptest::collection::vec((any_vsphere(), proptest::option::of(any_vsphere())), 1..4);
    (20u32..42, 0u32..9, vcenters, any::<[bool; 3]>()).prop_map(
        |(minor, patch, vcenters, flags)| {
            let mut environment = environment("1.0", &[]);
            environment.kubernetes = format!("1.{minor}.{patch}").parse().unwrap();
            environment.vcenters = vcenters
                .into_iter()
                .enumerate()
                .map(|(n, (version, oldest_host))| Vcenter {
                    name: format!("vc-{n}"),
                    version,
                    oldest_host,
                })
                .collect();
            [environment.windows_nodes, environment.topology] = [flags[0], flags[1]];
            if flags[2] {
                environment.rewrite = Rewrite::mirror("mirror.example.com");
            }
            environment
        },
    )
}

fn inside(release: &Release, environment: &Environment) -> bool {
    let newest = embedded().newest_kubernetes(release.driver, Implementation::Upstream).unwrap();
    let minor = environment.kubernetes.as_minor().min(newest);
    let range = release.kubernetes;
    minor >= range.min
        && minor <= range.tolerates.unwrap_or(range.max).max(range.max)
        && environment
            .vcenters
            .iter()
            .all(|vcenter| vcenter.version >= release.vsphere.min.version())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2_000))]

    #[test]
    fn every_decision_keeps_the_guarantees(
        environment in any_environment(),
        policy in any_policy(),
        installed in proptest::option::of(any_version()),
        driver in prop_oneof![Just(Driver::Cpi), Just(Driver::Csi)],
    ) {
        let wanted = Request { implementation: Implementation::Upstream, policy, installed };
        let decision = choose(embedded(), &environment, driver, &wanted);

        // The same input gives the same decision.
        prop_assert_eq!(&decision, &choose(embedded(), &environment, driver, &wanted));

        // An installed release is never replaced by an older one, and never removed.
        if let Some(installed) = &wanted.installed {
            let after = decision.action.version();
            prop_assert!(after.is_some_and(|after| after >= installed), "{:?}", decision.action);
        }

        // Every new release exists, and every range holds at every stop.
        let mut at = wanted.installed.clone();
        let stops: Vec<_> = match &decision.action {
            Action::Install(version) => vec![version.clone()],
            Action::Change(path) => path.hops.iter().map(|hop| hop.to.clone()).collect(),
            _ => Vec::new(),
        };
        for stop in &stops {
            let release = embedded().find(driver, Implementation::Upstream, stop);
            prop_assert!(release.is_some_and(|release| inside(release, &environment)), "{stop}");
            let release = release.unwrap();
            prop_assert!(at.as_ref().is_none_or(|at| stop > at), "the way goes up");
            if let (Some(at), Some(from)) = (&at, &release.upgrade_from) {
                prop_assert!(at >= from, "{at} to {stop} is forbidden");
            }
            at = Some(stop.clone());
            // Stable means proven.
            if wanted.policy == Policy::Stable {
                let pinned = release.images.values().all(|image| image.digest.is_some());
                prop_assert!(release.channel == Channel::Stable && pinned, "{stop}");
            }
        }

        // Manual never changes an installed release.
        if wanted.policy == Policy::Manual && wanted.installed.is_some() {
            prop_assert!(matches!(decision.action, Action::Keep(_)));
        }

        // Every other release has a reason, and only one.
        let explained: BTreeSet<_> = decision.others.iter().map(|(version, _)| version.clone()).collect();
        prop_assert_eq!(explained.len(), decision.others.len());
        if let Some(version) = decision.action.version() {
            prop_assert!(!explained.contains(version));
            for release in embedded().releases_of(driver, Implementation::Upstream) {
                prop_assert!(release.version == *version || explained.contains(&release.version));
            }
        }
        for (_, reason) in &decision.others {
            let text = reason.to_string();
            prop_assert!(text.ends_with('.') && !text.contains('\n'), "{text}");
        }
    }

    #[test]
    fn latest_never_skips_a_newer_release_that_fits(environment in any_environment(), driver in prop_oneof![Just(Driver::Cpi), Just(Driver::Csi)]) {
        let decision = choose(embedded(), &environment, driver, &request(Policy::Latest, None));
        if let Some(chosen) = decision.action.version() {
            for (version, reason) in &decision.others {
                prop_assert!(version < chosen || !reason.fits_here(), "{version} over {chosen}: {reason}");
            }
        } else {
            prop_assert!(decision.others.iter().all(|(_, reason)| !reason.fits_here()));
        }
    }
}

#[test]
fn releases_sort_by_number_and_not_by_text() {
    for driver in [Driver::Cpi, Driver::Csi] {
        let versions: Vec<_> = embedded()
            .releases_of(driver, Implementation::Upstream)
            .map(|release| &release.version)
            .collect();
        assert!(versions.is_sorted(), "{versions:?}");
    }
    assert!(Version::new(3, 10, 0) > Version::new(3, 9, 0));
    let decision = choose(
        &ladder(),
        &environment("1.33", &["8.0"]),
        Driver::Csi,
        &request(Policy::Latest, Some("1.9.0")),
    );
    assert!(
        decision.others.iter().any(|(v, r)| *v == Version::new(1, 10, 0)
            && !matches!(r, Reason::OlderThanInstalled { .. }))
    );
}

#[test]
fn the_embedded_catalog_contains_every_maintained_release() {
    let versions = |driver| {
        embedded()
            .releases_of(driver, Implementation::Upstream)
            .map(|r| r.version.to_string())
            .collect::<Vec<_>>()
            .join(" ")
    };
    assert_eq!(
        versions(Driver::Csi),
        "2.7.0 2.7.1 2.7.2 2.7.3 3.0.0 3.0.1 3.0.2 3.0.3 3.1.0 3.1.1 3.1.2 3.2.0 3.3.0 3.3.1 3.4.0 3.5.0 3.5.1 \
         3.6.0 3.6.1 3.6.2 3.6.3 3.7.0 3.7.1 3.7.2 3.7.3 3.8.0"
    );
    assert_eq!(
        versions(Driver::Cpi),
        "1.24.0 1.24.1 1.24.2 1.24.3 1.24.4 1.24.5 1.24.6 1.25.0 1.25.1 1.25.2 1.25.3 1.26.0 1.26.1 1.26.2 1.27.0 \
         1.28.0 1.28.1 1.29.0 1.29.1 1.29.2 1.30.0 1.30.1 1.30.2 1.31.0 1.31.1 1.32.1 1.32.2 1.32.3 1.33.0 1.33.1 \
         1.34.0 1.35.0 1.35.1 1.36.0"
    );
    let young: Vec<_> =
        embedded().releases.iter().filter(|r| r.channel != Channel::Stable).collect();
    let young: Vec<_> = young.iter().map(|r| r.version.to_string()).collect();
    let ours = env!("CARGO_PKG_VERSION");
    assert_eq!(young, [ours, "3.8.0", ours]);
}

#[test]
fn the_embedded_catalog_is_small() {
    assert!(catalog::EMBEDDED.len() < 1 << 20, "{} bytes", catalog::EMBEDDED.len());
}

#[test]
fn a_driver_not_managed_by_vdo_is_recognised_by_its_image() {
    let recognised = |driver, image: &str| {
        let release = embedded().recognise(driver, &image.parse().unwrap());
        release.map(|release| release.version.to_string())
    };
    let driver = "registry.k8s.io/csi-vsphere/driver";
    assert_eq!(recognised(Driver::Csi, &format!("{driver}:v3.7.3")).unwrap(), "3.7.3");
    let mirrored = "harbor.example.com:8443/mirror/driver:v3.0.2";
    assert_eq!(recognised(Driver::Csi, mirrored).unwrap(), "3.0.2");
    let digest = "sha256:86f7673fd46484b456c16eed0d4f6c4372fdf1b66c8c513b85c76c54ee3af966";
    assert_eq!(
        recognised(Driver::Csi, &format!("mirror.example.com/x@{digest}")).unwrap(),
        "3.7.3"
    );
    // The old image name of the cloud controller, and the new one.
    let old = "gcr.io/cloud-provider-vsphere/cpi/release/manager:v1.28.0";
    assert_eq!(recognised(Driver::Cpi, old).unwrap(), "1.28.0");
    let new = "mirror.example.com/cloud-provider-vsphere:v1.36.0";
    assert_eq!(recognised(Driver::Cpi, new).unwrap(), "1.36.0");
    for unknown in ["mirror.example.com/driver:v9.9.9", "example.com/other:v3.7.3"] {
        assert_eq!(recognised(Driver::Csi, unknown), None);
    }
}

#[test]
fn the_catalog_shown_in_the_documentation_can_be_read() {
    let page = include_str!("../../../docs/catalog.md");
    let shown = page.split("```yaml\n").nth(1).unwrap().split("```").next().unwrap();
    let catalog = catalog::read(shown.as_bytes()).unwrap();
    assert_eq!(catalog.releases.len(), 2);
    assert_eq!(catalog.releases[1].before[0].id, "mind-this");
}
