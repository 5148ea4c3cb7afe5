//! What is chosen: a table of cases with the expected outcome, and properties that hold for all of them.

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

fn seen(kubernetes: &str, vcenters: &[&str]) -> Environment {
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
fn every_case_of_the_table_comes_out_as_written() {
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
        let mut seen = seen(kubernetes, &vcenters.split('+').collect::<Vec<_>>());
        if images == "mirror" {
            seen.rewrite = Rewrite::mirror("mirror.example.com");
        }
        let installed = (installed != "-").then_some(installed);
        let decision = choose(embedded(), &seen, driver, &request(policy, installed));
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
fn every_release_not_chosen_says_why_in_one_sentence() {
    let decision = choose(
        embedded(),
        &seen("1.34.2", &["8.0U3"]),
        Driver::Csi,
        &request(Policy::Stable, Some("3.6.3")),
    );
    assert_eq!(show(&decision.action), "change 3.6.3 > 3.7.3");
    assert_eq!(why(&decision, "3.8.0"), "It fits, but it is young, and the policy prefers 3.7.3.");
    assert_eq!(why(&decision, "3.7.2"), "It fits; 3.7.3 is newer and fits too.");
    assert_eq!(
        why(&decision, "3.6.0"),
        "It is older than 3.6.3, which runs here; drivers are not downgraded."
    );
    assert_eq!(
        why(&decision, "3.5.1"),
        "It supports Kubernetes 1.31 to 1.33; this cluster runs 1.34.2."
    );
    let csi = embedded().of(Driver::Csi, Implementation::Upstream).count();
    assert_eq!(decision.others.len(), csi - 1);
}

#[test]
fn an_old_vcenter_is_named_together_with_what_would_happen() {
    let decision = choose(
        embedded(),
        &seen("1.29", &["8.0U3", "6.7U3"]),
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
fn a_host_too_old_for_disks_to_be_attached_is_named() {
    let mut seen = seen("1.34", &["8.0U3"]);
    seen.vcenters[0].oldest_host = Some("6.5U3".parse().unwrap());
    let decision = choose(embedded(), &seen, Driver::Csi, &request(Policy::Latest, None));
    assert_eq!(why(&decision, "3.8.0"), "It needs ESXi 6.7U3; a host of vc-1 runs 6.5U3.");
}

#[test]
fn images_that_are_gone_are_said_to_be_gone_and_a_mirror_brings_them_back() {
    let mut seen = seen("1.25", &["7.0U3"]);
    let decision = choose(embedded(), &seen, Driver::Cpi, &request(Policy::Latest, None));
    assert_eq!(
        why(&decision, "1.25.3"),
        "gcr.io/cloud-provider-vsphere/cpi/release/manager:v1.25.3 cannot be pulled: its images were only ever \
         at gcr.io/cloud-provider-vsphere, which was deleted in September 2024. Where a mirror has it, say so \
         in spec.images.registry."
    );
    let pair =
        ("gcr.io/cloud-provider-vsphere".to_owned(), "mirror.example.com/vsphere".to_owned());
    seen.rewrite = Rewrite::new([pair]);
    let decision = choose(embedded(), &seen, Driver::Cpi, &request(Policy::Latest, None));
    assert_eq!(show(&decision.action), "install 1.25.3");
}

#[test]
fn a_world_newer_than_the_catalog_gets_the_newest_release_and_a_notice() {
    for driver in [Driver::Cpi, Driver::Csi] {
        let decision =
            choose(embedded(), &seen("1.39.1", &["11.0"]), driver, &request(Policy::Latest, None));
        assert!(matches!(decision.action, Action::Install(_)), "{driver}");
        let notices: Vec<_> = decision.notices.iter().map(ToString::to_string).collect();
        assert!(
            notices[0].starts_with(
                "Kubernetes 1.39.1 is newer than any driver release known here (1.36)"
            )
        );
        assert!(
            notices[1].starts_with("vc-1 runs vSphere 11.0, newer than the 9.1 this catalog knows")
        );
    }
}

#[test]
fn what_runs_but_no_longer_fits_stays_and_says_so() {
    let decision = choose(
        embedded(),
        &seen("1.33", &["6.7U3"]),
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
fn a_version_asked_for_that_does_not_go_is_refused_with_the_reason() {
    let pin =
        |version: &str| Policy::Pinned { version: version.parse().unwrap(), downgrade: false };
    let refused = |pinned: &str, installed: Option<&str>| {
        let decision = choose(
            embedded(),
            &seen("1.34", &["8.0"]),
            Driver::Csi,
            &request(pin(pinned), installed),
        );
        decision.standstill.unwrap().to_string()
    };
    assert_eq!(
        refused("3.4.0", None),
        "Version 3.4.0 is asked for and not installed: It supports Kubernetes 1.30 to 1.32; this cluster runs 1.34.0."
    );
    assert!(refused("3.7.9", None).starts_with("Version 3.7.9 is asked for and is in no catalog"));
    assert!(refused("3.6.0", Some("3.7.3")).ends_with("drivers are not downgraded."));
    assert!(
        refused("3.7.3", Some("2.1.0"))
            .ends_with("2.1.0 has to be removed with its own manifest first.")
    );
}

#[test]
fn everything_to_mind_between_two_and_three_is_collected_on_the_way() {
    let mut seen = seen("1.35", &["9.1"]);
    seen.windows_nodes = true;
    let decision = choose(embedded(), &seen, Driver::Csi, &request(Policy::Stable, Some("2.7.3")));
    let Action::Change(path) = decision.action else { panic!("{:?}", decision.action) };
    let [hop] = &path.hops[..] else { panic!("{path:?}") };
    let ids = |steps: &[catalog::model::Step]| {
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

    seen.windows_nodes = false;
    let decision = choose(embedded(), &seen, Driver::Csi, &request(Policy::Stable, Some("3.7.2")));
    let Action::Change(path) = decision.action else { panic!() };
    assert!(path.hops[0].before.is_empty(), "a patch within the line crosses nothing");
}

/// A catalog in which versions must be visited one after the other.
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
        &seen("1.35", &["8.0"]),
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
        &seen("1.35", &["8.0"]),
        Driver::Csi,
        &request(Policy::Latest, Some("1.8.0")),
    );
    assert_eq!(show(&stuck.action), "change 1.8.0 > 1.9.0 > 1.10.0 > 2.1.0 > 3.0.0");
}

#[test]
fn a_zone_with_a_host_in_maintenance_is_warned_about_only_where_zones_are_used() {
    let faults = |topology: bool| {
        let seen = Environment { topology, ..seen("1.33", &["8.0"]) };
        let pin = Policy::Pinned { version: Version::new(3, 7, 0), downgrade: false };
        let decision = choose(embedded(), &seen, Driver::Csi, &request(pin, None));
        decision.notices.iter().filter(|notice| matches!(notice, Notice::KnownBad { .. })).count()
    };
    assert_eq!((faults(true), faults(false)), (1, 0));
}

#[test]
fn the_drivers_of_this_project_are_not_mixed_up_with_upstreams() {
    let ours =
        Request { implementation: Implementation::Rust, policy: Policy::Latest, installed: None };
    let decision = choose(embedded(), &seen("1.36", &["8.0"]), Driver::Csi, &ours);
    assert_eq!(decision.action, Action::Nothing);
    assert!(decision.others.is_empty());
}

#[test]
fn the_cloud_controller_of_this_project_has_its_version_and_follows_no_minor() {
    let own = Version::parse(env!("CARGO_PKG_VERSION")).unwrap();
    let ours = |policy, kubernetes: &str, vsphere: &str| {
        let wish = Request { implementation: Implementation::Rust, policy, installed: None };
        choose(embedded(), &seen(kubernetes, &[vsphere]), Driver::Cpi, &wish)
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

fn any_seen() -> impl Strategy<Value = Environment> {
    let vcenters =
        proptest::collection::vec((any_vsphere(), proptest::option::of(any_vsphere())), 1..4);
    (20u32..42, 0u32..9, vcenters, any::<[bool; 3]>()).prop_map(
        |(minor, patch, vcenters, flags)| {
            let mut seen = seen("1.0", &[]);
            seen.kubernetes = format!("1.{minor}.{patch}").parse().unwrap();
            seen.vcenters = vcenters
                .into_iter()
                .enumerate()
                .map(|(n, (version, oldest_host))| Vcenter {
                    name: format!("vc-{n}"),
                    version,
                    oldest_host,
                })
                .collect();
            [seen.windows_nodes, seen.topology] = [flags[0], flags[1]];
            if flags[2] {
                seen.rewrite = Rewrite::mirror("mirror.example.com");
            }
            seen
        },
    )
}

fn inside(release: &Release, seen: &Environment) -> bool {
    let newest = embedded().newest_kubernetes(release.driver, Implementation::Upstream).unwrap();
    let minor = seen.kubernetes.as_minor().min(newest);
    let range = release.kubernetes;
    minor >= range.min
        && minor <= range.tolerates.unwrap_or(range.max).max(range.max)
        && seen.vcenters.iter().all(|vcenter| vcenter.version >= release.vsphere.min.version())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2_000))]

    #[test]
    fn the_choice_keeps_its_promises(
        seen in any_seen(),
        policy in any_policy(),
        installed in proptest::option::of(any_version()),
        driver in prop_oneof![Just(Driver::Cpi), Just(Driver::Csi)],
    ) {
        let wish = Request { implementation: Implementation::Upstream, policy, installed };
        let decision = choose(embedded(), &seen, driver, &wish);

        // The same question has the same answer.
        prop_assert_eq!(&decision, &choose(embedded(), &seen, driver, &wish));

        // What runs is never replaced by something older, and never by nothing.
        if let Some(installed) = &wish.installed {
            let after = decision.action.version();
            prop_assert!(after.is_some_and(|after| after >= installed), "{:?}", decision.action);
        }

        // Whatever is newly installed exists, and every range holds at every stop.
        let mut at = wish.installed.clone();
        let stops: Vec<_> = match &decision.action {
            Action::Install(version) => vec![version.clone()],
            Action::Change(path) => path.hops.iter().map(|hop| hop.to.clone()).collect(),
            _ => Vec::new(),
        };
        for stop in &stops {
            let release = embedded().find(driver, Implementation::Upstream, stop);
            prop_assert!(release.is_some_and(|release| inside(release, &seen)), "{stop}");
            let release = release.unwrap();
            prop_assert!(at.as_ref().is_none_or(|at| stop > at), "the way goes up");
            if let (Some(at), Some(from)) = (&at, &release.upgrade_from) {
                prop_assert!(at >= from, "{at} to {stop} is forbidden");
            }
            at = Some(stop.clone());
        }

        // Manual never moves what runs.
        if wish.policy == Policy::Manual && wish.installed.is_some() {
            prop_assert!(matches!(decision.action, Action::Keep(_)));
        }

        // Everything else has a reason, and only once.
        let told: BTreeSet<_> = decision.others.iter().map(|(version, _)| version.clone()).collect();
        prop_assert_eq!(told.len(), decision.others.len());
        if let Some(version) = decision.action.version() {
            prop_assert!(!told.contains(version));
            for release in embedded().of(driver, Implementation::Upstream) {
                prop_assert!(release.version == *version || told.contains(&release.version));
            }
        }
        for (_, reason) in &decision.others {
            let text = reason.to_string();
            prop_assert!(text.ends_with('.') && !text.contains('\n'), "{text}");
        }
    }

    #[test]
    fn nothing_newer_that_fits_is_passed_over_by_latest(seen in any_seen(), driver in prop_oneof![Just(Driver::Cpi), Just(Driver::Csi)]) {
        let decision = choose(embedded(), &seen, driver, &request(Policy::Latest, None));
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
fn releases_are_ordered_by_number_and_never_by_letter() {
    for driver in [Driver::Cpi, Driver::Csi] {
        let versions: Vec<_> = embedded()
            .of(driver, Implementation::Upstream)
            .map(|release| &release.version)
            .collect();
        assert!(versions.is_sorted(), "{versions:?}");
    }
    assert!(Version::new(3, 10, 0) > Version::new(3, 9, 0));
    let decision = choose(
        &ladder(),
        &seen("1.33", &["8.0"]),
        Driver::Csi,
        &request(Policy::Latest, Some("1.9.0")),
    );
    assert!(
        decision.others.iter().any(|(v, r)| *v == Version::new(1, 10, 0)
            && !matches!(r, Reason::OlderThanInstalled { .. }))
    );
}

#[test]
fn the_embedded_catalog_holds_every_living_release() {
    let versions = |driver| {
        embedded()
            .of(driver, Implementation::Upstream)
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
    assert_eq!(young, [env!("CARGO_PKG_VERSION"), "3.8.0"]);
}

#[test]
fn the_embedded_catalog_is_small() {
    assert!(catalog::EMBEDDED.len() < 1 << 20, "{} bytes", catalog::EMBEDDED.len());
}

#[test]
fn a_driver_installed_by_other_hands_is_recognised_by_its_image() {
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
    // What a tag once meant: the old name of the cloud controller's image, and the new one.
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
