//! Known faults of releases: VDO never chooses a release in an environment where it is known to fail, and
//! `docs/known-issues.md` lists the faults and the choices.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "a test that cannot set itself up should fall, and reads better plain"
)]

use std::{collections::BTreeMap, fmt::Write as _, fs, path::PathBuf};

use catalog::{
    Action, Driver, Environment, Implementation, Policy, Request, Rewrite, Vcenter, choose,
    embedded,
    model::{Condition, KnownBad, Severity},
    version::KubernetesVersion,
    why::{Notice, Reason, Standstill},
};
use semver::Version;

/// The vCenters of the choice table with the oldest of their hosts.
const VCENTERS: [(&str, &str, &str); 5] = [
    ("7.0 U3", "7.0U3", "7.0U3"),
    ("8.0", "8.0U3", "8.0U3"),
    ("9.0", "9.0", "9.0"),
    ("9.1, hosts 9.0", "9.1", "9.0"),
    ("9.1", "9.1", "9.1"),
];

/// Storage driver releases that fail, by vCenter and oldest host: the facts, independent of the catalog's
/// conditions.
fn fails(vcenter: &str, host: &str, release: &Version) -> bool {
    let [v361, v370] = [Version::new(3, 6, 1), Version::new(3, 7, 0)];
    match (vcenter, host) {
        // Built with Go 1.25 or newer and crypto/tls/fipsonly.
        ("7.0U3", _) => *release >= v361,
        ("9.1", "9.0") => *release >= v370,
        _ => false,
    }
}

fn environment(kubernetes: KubernetesVersion, vcenter: &str, host: Option<&str>) -> Environment {
    let vcenter = Vcenter {
        name: "vc".into(),
        version: vcenter.parse().unwrap(),
        oldest_host: host.map(|host| host.parse().unwrap()),
    };
    Environment {
        kubernetes,
        vcenters: vec![vcenter],
        distribution: "vanilla".into(),
        windows_nodes: false,
        topology: false,
        rewrite: Rewrite::default(),
        today: None,
    }
}

/// Every Kubernetes minor that a release with available images supports.
fn kubernetes() -> Vec<KubernetesVersion> {
    let newest = embedded().newest_kubernetes(Driver::Csi, Implementation::Upstream).unwrap();
    (26..=newest.minor).map(|minor| KubernetesVersion::minor(1, minor)).collect()
}

fn upstream(policy: Policy, installed: Option<&Version>) -> Request {
    Request { implementation: Implementation::Upstream, policy, installed: installed.cloned() }
}

#[test]
fn no_release_is_chosen_where_it_is_known_to_fail() {
    let all: Vec<&Version> = embedded()
        .releases_of(Driver::Csi, Implementation::Upstream)
        .map(|release| &release.version)
        .collect();
    let installed = std::iter::once(None).chain(all.iter().copied().map(Some));
    let installed: Vec<_> = installed.collect();
    let mut avoided = 0;
    for (_, vcenter, host) in VCENTERS {
        for kubernetes in kubernetes() {
            let environment = environment(kubernetes, vcenter, Some(host));
            for &installed in &installed {
                for policy in [Policy::Latest, Policy::Stable, Policy::Manual] {
                    let request = upstream(policy, installed);
                    let decision = choose(embedded(), &environment, Driver::Csi, &request);
                    let new: Vec<&Version> = match &decision.action {
                        Action::Install(version) => vec![version],
                        Action::Change(path) => path.hops.iter().map(|hop| &hop.to).collect(),
                        Action::Keep(_) | Action::Nothing => Vec::new(),
                    };
                    for version in new {
                        assert!(
                            !fails(vcenter, host, version),
                            "Kubernetes {kubernetes}, vCenter {vcenter}, hosts {host}: {version}"
                        );
                    }
                }
            }
            for version in all.iter().filter(|version| fails(vcenter, host, version)) {
                let pin = Policy::Pinned { version: (*version).clone(), downgrade: true };
                let decision = choose(embedded(), &environment, Driver::Csi, &upstream(pin, None));
                let refused = matches!(decision.standstill, Some(Standstill::PinRefused { .. }));
                assert!(refused, "{version} on {vcenter}, {host}: {:?}", decision.standstill);
                avoided += 1;
            }
        }
    }
    assert!(avoided > 100, "only {avoided}");
}

#[test]
fn the_refusal_names_the_fault_and_the_fix() {
    let reason = |vcenter, host, release: Version| {
        let environment = environment(KubernetesVersion::minor(1, 34), vcenter, Some(host));
        let request = upstream(Policy::Latest, None);
        let decision = choose(embedded(), &environment, Driver::Csi, &request);
        let found = decision.others.into_iter().find(|(version, _)| *version == release);
        let (_, reason) = found.unwrap();
        assert!(matches!(reason, Reason::KnownBad { .. }), "{reason:?}");
        reason.to_string()
    };
    let tls = reason("7.0U3", "7.0U3", Version::new(3, 7, 2));
    assert!(tls.contains("Extended Master Secret") && tls.contains("3.6.0"), "{tls}");
    let hosts = reason("9.1", "9.0", Version::new(3, 7, 3));
    assert!(hosts.contains("volumeId") && hosts.contains("upgrade the ESXi hosts"), "{hosts}");
}

#[test]
fn a_fault_that_depends_on_unknown_hosts_is_a_notice_and_excludes_nothing() {
    let chosen = |host| {
        let environment = environment(KubernetesVersion::minor(1, 35), "9.1", host);
        choose(embedded(), &environment, Driver::Csi, &upstream(Policy::Stable, None))
    };
    let faults = |notices: &[Notice]| {
        notices.iter().filter(|notice| matches!(notice, Notice::KnownBad { .. })).count()
    };
    let unknown = chosen(None);
    assert_eq!(unknown.action, Action::Install(Version::new(3, 7, 3)));
    assert_eq!(faults(&unknown.notices), 1, "{:?}", unknown.notices);
    let current = chosen(Some("9.1"));
    assert_eq!(current.action, Action::Install(Version::new(3, 7, 3)));
    assert_eq!(faults(&current.notices), 0, "{:?}", current.notices);
    assert_eq!(chosen(Some("9.0")).action, Action::Nothing);
}

/// A vCenter and its hosts meet a condition together: the hosts of another vCenter do not count.
#[test]
fn the_hosts_of_one_vcenter_do_not_count_for_another() {
    let mut environment = environment(KubernetesVersion::minor(1, 35), "9.1", Some("9.1"));
    let old = Vcenter {
        name: "old".into(),
        version: "8.0U3".parse().unwrap(),
        oldest_host: Some("8.0U3".parse().unwrap()),
    };
    environment.vcenters.push(old);
    let decision = choose(embedded(), &environment, Driver::Csi, &upstream(Policy::Stable, None));
    assert_eq!(decision.action, Action::Install(Version::new(3, 7, 3)));
}

const CATALOG: &str = r#"
schema: "1.9"
serial: 1
issued: 2026-01-01T00:00:00Z
newestVsphere: "9.1"
csi:
  - line: all
    kubernetes: { min: "1.30", max: "1.36" }
    vsphere: { min: "7.0" }
    manifest: { urls: [https://example.com/x.yaml] }
    releases:
      - version: 1.0.0
      - version: 2.0.0
        knownBad:
          - id: new-condition
            severity: refuse
            when: { vsphereMin: "9.1", moonPhase: full }
            reason: it fails at full moon
            remedy: wait
"#;

/// docs/catalog.md promises this about a catalog that is newer than the operator.
#[test]
fn a_condition_with_an_unknown_field_holds_as_if_it_did_not_have_the_field() {
    let catalog = catalog::read(CATALOG.as_bytes()).unwrap();
    let chosen = |vcenter| {
        let environment = environment(KubernetesVersion::minor(1, 35), vcenter, None);
        choose(&catalog, &environment, Driver::Csi, &upstream(Policy::Latest, None)).action
    };
    assert_eq!(chosen("9.1"), Action::Install(Version::new(1, 0, 0)));
    assert_eq!(chosen("9.0"), Action::Install(Version::new(2, 0, 0)));
}

#[test]
fn every_refused_combination_has_a_source() {
    for release in &embedded().releases {
        for fault in release.known_bad.iter().filter(|fault| fault.severity == Severity::Refuse) {
            // A missing feature is in the release notes; a bug needs a report.
            let sourced = fault.sources.iter().all(|source| source.starts_with("https://"));
            assert!(sourced, "{}", fault.id);
            assert!(fault.id == "one-vcenter" || !fault.sources.is_empty(), "{}", fault.id);
        }
    }
}

/// The condition in words.
fn when(condition: &Condition) -> String {
    let Condition {
        vsphere_min,
        vsphere_max,
        hosts_max,
        kubernetes_min,
        kubernetes_max,
        distributions,
        windows,
        topology,
        several_vcenters,
    } = condition;
    let yes = |value: &Option<bool>, text: &str| match value {
        None => None,
        Some(true) => Some(text.to_owned()),
        Some(false) => Some(format!("no {text}")),
    };
    let all = [
        vsphere_min.map(|min| format!("vCenter {min} or newer")),
        vsphere_max.map(|max| format!("vCenter {max} or older")),
        hosts_max.map(|max| format!("an ESXi host {max} or older")),
        kubernetes_min.map(|min| format!("Kubernetes {min} or newer")),
        kubernetes_max.map(|max| format!("Kubernetes {max} or older")),
        (!distributions.is_empty()).then(|| distributions.join(" or ")),
        yes(windows, "Windows nodes"),
        yes(topology, "zones"),
        yes(several_vcenters, "several vCenters"),
    ];
    let all: Vec<String> = all.into_iter().flatten().collect();
    if all.is_empty() { "always".into() } else { all.join(" and ") }
}

/// Neighbouring releases as ranges.
fn ranges(all: &[&Version], some: &[&Version]) -> String {
    let mut found: Vec<(usize, usize)> = Vec::new();
    for version in some {
        let at = all.iter().position(|other| other == version).unwrap();
        match found.last_mut() {
            Some((_, last)) if *last + 1 == at => *last = at,
            _ => found.push((at, at)),
        }
    }
    let range = |(first, last): (usize, usize)| match last - first {
        0 => all[first].to_string(),
        1 => format!("{}, {}", all[first], all[last]),
        _ => format!("{} to {}", all[first], all[last]),
    };
    found.into_iter().map(range).collect::<Vec<_>>().join(", ")
}

fn short(source: &str) -> String {
    let parts: Vec<&str> = source.trim_start_matches("https://github.com/").split('/').collect();
    let [_, repository, _, number] = parts[..] else { panic!("not an issue: {source}") };
    format!("[{repository}#{number}]({source})")
}

fn faults(driver: Driver) -> String {
    let releases = embedded().releases_of(driver, Implementation::Upstream);
    let all: Vec<&Version> = releases.clone().map(|release| &release.version).collect();
    let mut by_id: BTreeMap<&str, (&KnownBad, Vec<&Version>)> = BTreeMap::new();
    for release in releases {
        for fault in &release.known_bad {
            by_id.entry(&fault.id).or_insert((fault, Vec::new())).1.push(&release.version);
        }
    }
    if by_id.is_empty() {
        return "The catalog records no known issues of these releases.\n".into();
    }
    let mut rows: Vec<_> = by_id.into_values().collect();
    rows.sort_by_key(|(fault, versions)| {
        (fault.severity == Severity::Warn, std::cmp::Reverse(versions.last().copied().cloned()))
    });
    let mut text = String::from(
        "| Releases | When | Issue | Effect | Fix | Sources |\n|---|---|---|---|---|---|\n",
    );
    for (fault, versions) in rows {
        let effect = match fault.severity {
            Severity::Refuse => "refused",
            Severity::Warn => "warning",
        };
        let sources: Vec<String> = fault.sources.iter().map(|source| short(source)).collect();
        writeln!(
            text,
            "| {} | {} | {} | {effect} | {} | {} |",
            ranges(&all, &versions),
            when(&fault.when),
            fault.reason,
            fault.remedy,
            sources.join(", ")
        )
        .unwrap();
    }
    text
}

fn choices() -> String {
    let mut text = String::from("| Kubernetes |");
    for (name, ..) in VCENTERS {
        write!(text, " vCenter {name} |").unwrap();
    }
    text.push_str("\n|---|---|---|---|---|---|\n");
    for kubernetes in kubernetes() {
        write!(text, "| {} |", kubernetes.as_minor()).unwrap();
        for (_, vcenter, host) in VCENTERS {
            let environment = environment(kubernetes, vcenter, Some(host));
            let choice = |driver| {
                let request = upstream(Policy::Stable, None);
                let decision = choose(embedded(), &environment, driver, &request);
                decision.action.version().map_or("none".into(), ToString::to_string)
            };
            write!(text, " {}, {} |", choice(Driver::Cpi), choice(Driver::Csi)).unwrap();
        }
        text.push('\n');
    }
    text
}

#[test]
fn the_page_of_known_issues_is_current() {
    let page = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../docs/known-issues.md");
    let text = fs::read_to_string(&page).unwrap();
    let parts = [
        ("storage", faults(Driver::Csi)),
        ("cloud-provider", faults(Driver::Cpi)),
        ("choices", choices()),
    ];
    let mut new = text.clone();
    for (name, part) in parts {
        let (begin, end) = (format!("<!-- {name} -->\n\n"), format!("\n<!-- /{name} -->"));
        let start = new.find(&begin).unwrap() + begin.len();
        let stop = start + new[start..].find(&end).unwrap();
        new.replace_range(start..stop, &part);
    }
    if std::env::var_os("UPDATE_DOCS").is_some() {
        fs::write(&page, new).unwrap();
        return;
    }
    assert!(text == new, "regenerate it: UPDATE_DOCS=1 cargo test -p catalog --test known_issues");
}
