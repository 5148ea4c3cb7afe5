//! Generates `docs/health-benchmark.md`: the 54 symptoms, each with the injected fault, the expected findings
//! and the actual findings.

use api::{Severity, finding::Definition};

use crate::{
    coverage::{COVERAGE, Covered},
    facts::Platform,
    found, healthy,
    rows::rows,
};

#[test]
fn there_are_45_symptoms_of_the_storage_driver_and_9_of_the_cloud_provider() {
    let cloud = rows().iter().filter(|row| row.id.starts_with("CPI-")).count();
    assert_eq!((rows().len() - cloud, cloud), (45, 9));
}

#[test]
fn every_symptom_of_the_field_is_named_with_its_cause() {
    for row in rows() {
        let mut facts = healthy();
        (row.inject)(&mut facts);
        let mut found = found(facts);
        for code in row.roots {
            let given = found.remove(*code).unwrap_or_else(|| panic!("row {}: no {code}", row.id));
            for finding in given {
                assert_eq!(finding.consequence_of, None, "row {}: {code} is a cause", row.id);
            }
        }
        for code in row.derived {
            let given = found.remove(*code).unwrap_or_else(|| panic!("row {}: no {code}", row.id));
            for finding in given {
                let cause = finding.consequence_of.as_deref();
                assert!(
                    cause.is_some_and(|c| row.roots.contains(&c)),
                    "row {}: {finding:#?}",
                    row.id
                );
            }
        }
        assert!(found.is_empty(), "row {} also gives {found:#?}", row.id);
    }
}

#[test]
fn a_healthy_cluster_gives_no_finding_on_any_platform() {
    for (platform, facts) in health::sample::platforms() {
        let mut broken = facts.clone();
        let vms =
            &mut broken.vcenters.values_mut().next().unwrap().inventory.get_mut().unwrap().vms;
        let vm = vms.values_mut().next().unwrap();
        (vm.disk_uuid, vm.disk_uuid_set) = (false.into(), false);
        assert!(crate::found(broken).contains_key("VDO-1203"), "{platform}: it is looked at");
        let found = found(facts);
        assert!(found.is_empty(), "{platform}: {found:#?}");
    }
    for platform in Platform::ALL {
        let found = found(health::sample::cluster(platform));
        assert!(found.is_empty(), "{platform:?}: {found:#?}");
    }
}

#[test]
fn a_healthy_cluster_with_the_cloud_controller_of_vdo_gives_no_finding() {
    let mut facts = healthy();
    let driver = facts.cluster.drivers.cloud.get_mut().unwrap().as_mut().unwrap();
    driver.upstream = false;
    driver.version = Some("0.7.0".parse().unwrap());
    for pod in &mut driver.workloads[0].pods {
        pod.containers[0].image = "ghcr.io/vmware-tanzu/vdo-cloud-controller:0.7.0".into();
    }
    let found = found(facts);
    assert!(found.is_empty(), "{found:#?}");
}

#[test]
fn a_healthy_cluster_with_one_driver_only_gives_no_finding() {
    let mut facts = healthy();
    facts.wanted.storage = None;
    facts.cluster.drivers.storage = health::facts::Known::Known(None);
    let above_info = |facts| {
        let findings = found(facts).into_values().flatten();
        findings.filter(|finding| finding.severity > Severity::Info).collect::<Vec<_>>()
    };
    assert_eq!(above_info(facts), []);
    let mut facts = healthy();
    facts.wanted.cloud = None;
    facts.cluster.drivers.cloud = health::facts::Known::Known(None);
    assert_eq!(above_info(facts), []);
}

#[test]
fn the_committed_benchmark_is_the_one_these_tests_give() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/health-benchmark.md");
    let fresh = document();
    if std::env::var_os("UPDATE_DOCS").is_some() {
        std::fs::write(path, &fresh).unwrap();
    }
    let committed = std::fs::read_to_string(path).unwrap_or_default();
    assert!(committed == fresh, "run UPDATE_DOCS=1 cargo test -p health --test field");
}

fn document() -> String {
    let link = |code: &&str| {
        format!("[{code}](findings/{code}.md) {}", Definition::find(code).unwrap().title)
    };
    let mut met = 0;
    let mut table = String::new();
    for row in rows() {
        let mut facts = healthy();
        (row.inject)(&mut facts);
        let found = found(facts);
        let roots: Vec<&str> = found
            .values()
            .flatten()
            .filter(|finding| finding.consequence_of.is_none())
            .map(|finding| finding.code.as_str())
            .collect();
        let given = row.roots.iter().all(|code| roots.contains(code));
        met += usize::from(given);
        let expected: Vec<String> = row.roots.iter().map(link).collect();
        let mut actual: Vec<&str> = roots;
        actual.dedup();
        table.extend([format!(
            "| {} | {} | {} | {} | {} | {} | {} |\n",
            row.id,
            row.symptom.replace('|', "\\|").replace('<', "&lt;"),
            row.fault,
            expected.join("; "),
            actual.join(", "),
            if seconds_of(row.id).is_some() { "facts, cluster" } else { "facts" },
            seconds_of(row.id).unwrap_or("-"),
        )]);
    }
    format!(
        "# The benchmark of the field\n\n\
         Problems that users of the vSphere drivers reported, and the findings of VDO for them. The test\n\
         `field` of the crate `health` generates this page with `UPDATE_DOCS=1`, and fails if a row is not met.\n\n\
         **VDO names the cause of {met} of {}**, and reports nothing for a healthy cluster of each of these\n\
         platforms: {platforms}.\n\
         The test injects each fault into the facts that the checks read. Other tests inject {both} of them\n\
         into a running cluster as well and measure the seconds until VDO reports them.\n\
         Not injected there: {not_made}.\n\
         [Below](#on-a-running-cluster) are all {made} faults of a running cluster.\n\n\
         | # | symptom | fault produced | finding expected | cause given | made in | seconds |\n\
         |---|---|---|---|---|---|---|\n{table}\n\
         ## On a running cluster\n\n\
         These faults are injected with a real API server and a vCenter simulator. The seconds count from the\n\
         fault until the status of the VDOConfig shows the finding, and from the fix until it no longer does.\n\
         `make health-seconds` measures them.\n\n\
         - *as installed* ({installed} faults): the operator runs with the default settings.\n\
         - *grace 1* ({grace} faults): the operator runs with `--grace=1`, and paused, because it would fix\n\
           most of the faults. Several faults are injected at the same time. By default, nodes, attachments,\n\
           claims and webhooks have a grace period of two to six minutes: add it to these seconds.\n\
         - *asked for*: VDO does not watch this. It asks vCenter about once an hour, when a dependency\n\
           changes, and when the annotation `vdo.vmware.com/check-now` gets a new value. These seconds count\n\
           from the new value.\n\n\
         Pods, nodes and kubelets are simulated. The last lines of a container come from its status or, for\n\
         rows 12 and CPI-6, from its log.\n\n\
         | finding | fault made | operator | appeared | cleared |\n|---|---|---|---|---|\n{seconds}\n\
         ## What others check\n\n\
         | by | check | here |\n|---|---|---|\n{coverage}",
        rows().len(),
        platforms = health::sample::platforms().iter().map(|(name, _)| *name).collect::<Vec<_>>().join("; "),
        coverage = coverage(),
        made = measured().len(),
        installed = measured().iter().filter(|[.., grace]| grace.is_empty()).count(),
        grace = measured().iter().filter(|[.., grace]| !grace.is_empty()).count(),
        both = rows().iter().filter(|row| seconds_of(row.id).is_some()).count(),
        not_made = NOT_MADE
            .iter()
            .map(|(row, reason)| format!("{row} ({reason})"))
            .collect::<Vec<_>>()
            .join(", "),
        seconds = measured()
            .iter()
            .map(|[code, fault, appeared, cleared, _, grace]| {
                let operator = if grace.is_empty() { "as installed" } else { "grace 1" };
                format!(
                    "| [{code}](findings/{code}.md) | {fault} | {operator} | {appeared} s | {cleared} s |\n"
                )
            })
            .collect::<String>(),
    )
}

/// The measurements of `make health-seconds`: finding, fault, seconds until VDO reported and cleared it, the
/// number of the symptom (empty for other faults), and whether the operator ran with `--grace=1` (empty if
/// not).
fn measured() -> Vec<[&'static str; 6]> {
    let lines = include_str!("seconds.tsv").lines();
    let fields = |line: &'static str| {
        let fields: Vec<&str> = line.split('\t').collect();
        <[&str; 6]>::try_from(fields).unwrap()
    };
    lines.map(fields).collect()
}

/// Seconds until VDO reported the fault of a row on a running cluster, if a test injects it there.
fn seconds_of(row: &str) -> Option<&'static str> {
    measured().into_iter().find(|[.., id, _]| *id == row).map(|[_, _, appeared, ..]| appeared)
}

#[test]
fn nearly_all_symptoms_are_made_on_a_running_cluster() {
    let ids: Vec<&str> = rows().iter().map(|row| row.id).collect();
    let made: Vec<&str> = measured().into_iter().map(|[.., row, _]| row).collect();
    let strange = made.iter().find(|row| !row.is_empty() && !ids.contains(*row));
    assert_eq!(strange, None, "no such symptom");
    let missing = ids.iter().filter(|row| !made.contains(*row)).copied();
    let missing: Vec<&str> = missing.collect();
    assert_eq!(missing, NOT_MADE.map(|(row, _)| row));
}

/// Symptoms that no test injects on a cluster, with the reason.
const NOT_MADE: [(&str, &str); 2] = [
    ("15", "the simulator stays at the release it was started as"),
    ("CPI-5", "the inventory that is watched ends where the listed datacenters end"),
];

fn coverage() -> String {
    let row = |covered: &Covered| {
        let links: Vec<String> =
            covered.codes.iter().map(|code| format!("[{code}](findings/{code}.md)")).collect();
        let here = if links.is_empty() { covered.note.to_owned() } else { links.join(", ") };
        format!("| {} | {} | {here} |\n", covered.by, covered.name)
    };
    COVERAGE.iter().map(row).collect()
}

#[test]
fn what_others_check_is_checked_here_or_there_is_a_reason() {
    for covered in COVERAGE {
        for code in covered.codes {
            assert!(Definition::find(code).is_some(), "{}: {code}", covered.name);
        }
        assert_ne!(covered.codes.is_empty(), covered.note.is_empty(), "{}", covered.name);
    }
}

#[test]
fn at_least_25_faults_were_reported_and_cleared_within_10_seconds_on_a_running_cluster() {
    let within = |text: &str| text.parse::<f64>().is_ok_and(|seconds| seconds <= 10.0);
    let quick = measured();
    let slow: Vec<_> = quick
        .iter()
        .filter(|[_, _, appeared, cleared, ..]| !within(appeared) || !within(cleared))
        .collect();
    assert!(slow.is_empty(), "{slow:?}");
    assert!(quick.len() >= 25, "{} were measured", quick.len());
}
