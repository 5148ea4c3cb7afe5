//! The status stays small with any number of faults, and every finding stays accessible.

use std::collections::BTreeSet;

use api::Severity;
use health::{Examination, MAX_BYTES, MAX_FINDINGS, date};
use jiff::Timestamp;

use crate::{
    facts::{Acknowledged, Conflict, Facts, Known, Platform},
    healthy,
    shortcuts::Shortcuts,
};

/// 5,000 nodes, each with several faults, most of them with individual texts.
fn wreck() -> Facts {
    let mut facts = health::sample::sized(Platform::Kubernetes, 3, 4997, 5000);
    for (n, node) in facts.cluster.nodes.get_mut().unwrap().values_mut().enumerate() {
        node.provider_id = if n % 2 == 0 { None } else { Some(format!("k3s://{}", node.name)) };
        node.topology_error = Some(format!("the syncer met {}", "trouble ".repeat(200))).into();
        node.csi = Known::Known(None);
    }
    for (n, vm) in facts.inventory().vms.values_mut().enumerate() {
        vm.disk_uuid = false.into();
        vm.disk_uuid_set = false;
        vm.hardware = 10;
        vm.snapshots = vec!["s".repeat(500)];
        vm.datacenter = format!("DC-{n}");
        vm.nics.clear();
    }
    facts
}

#[test]
fn five_thousand_broken_nodes_fit_into_the_status() {
    let examination = Examination::run(wreck());
    let report = examination.report();
    assert!(report.all().len() > MAX_FINDINGS, "the wreck is not bad enough to show anything");
    let findings = report.findings();
    let bytes = serde_json::to_string(&findings).unwrap().len();
    assert!(findings.len() <= MAX_FINDINGS && bytes < 256 * 1024, "{} in {bytes}", findings.len());
    assert!(bytes <= MAX_BYTES + 4096);
    let last = findings.last().unwrap();
    assert_eq!(last.code, "VDO-1802", "the last finding reports that others are left out");
    let off = findings.iter().find(|finding| finding.code == "VDO-1203").unwrap();
    assert_eq!((off.count, off.objects.len()), (5000, 10));
}

#[test]
fn long_texts_do_not_make_the_status_too_large() {
    let mut facts = healthy();
    let conflict = |n: u32| Conflict {
        kind: "Deployment".into(),
        object: format!("vmware-system-csi/{n}-{}", "x".repeat(900)),
        manager: format!("{n}-{}", "y".repeat(900)),
        times: 9,
        ..Conflict::default()
    };
    facts.operator.conflicts = (0..90).map(conflict).collect::<Vec<_>>().into();
    let findings = Examination::run(facts).report().findings();
    let bytes = serde_json::to_string(&findings).unwrap().len();
    assert!(bytes <= MAX_BYTES + 4096, "{bytes}");
    assert_eq!(findings.last().unwrap().code, "VDO-1802", "some had to be left out");
}

#[test]
fn every_object_of_a_finding_is_reached_page_by_page() {
    let examination = Examination::run(wreck());
    let report = examination.report();
    let mut names = BTreeSet::new();
    loop {
        let page = report.page("VDO-1203", names.len(), 700);
        assert_eq!(page.total, 5000);
        if page.entries.is_empty() {
            break;
        }
        names.extend(page.entries.into_iter().map(|entry| entry.subject.name));
    }
    assert_eq!(names.len(), 5000, "each once");
}

#[test]
fn one_fault_of_many_nodes_is_one_finding_with_steps_for_the_first() {
    let mut facts = healthy();
    for name in ["worker-1", "worker-2", "worker-3", "worker-4", "worker-5"] {
        facts.vm(name).disk_uuid = false.into();
        facts.vm(name).disk_uuid_set = false;
    }
    let findings = Examination::run(facts).report().findings();
    assert_eq!(findings.len(), 1, "{findings:#?}");
    let finding = &findings[0];
    assert_eq!(finding.count, 5);
    assert!(finding.seen.as_ref().unwrap().ends_with("and 2 more"));
    let last = finding.remedy.last().unwrap();
    assert!(last.contains("likewise for 4 more"), "{:#?}", finding.remedy);
    assert!(last.contains("vdoctl doctor --only VDO-1203 --each"), "{last}");
}

type Fault = fn(&mut Facts, &str);

/// Several control plane nodes that are off at the same time stop etcd.
#[test]
fn steps_pasted_as_a_block_take_down_one_node_at_most() {
    let names = ["worker-1", "worker-2", "worker-3"];
    let foreign = |facts: &mut Facts, name: &str| {
        facts.node(name).provider_id = Some(format!("k3s://{name}"));
    };
    let wrong = |facts: &mut Facts, name: &str| {
        facts.node(name).provider_id = Some("vsphere://not-its-uuid".into());
    };
    let hidden = |facts: &mut Facts, name: &str| {
        facts.vm(name).disk_uuid = false.into();
        facts.vm(name).disk_uuid_set = false;
    };
    let waiting = |facts: &mut Facts, name: &str| facts.vm(name).disk_uuid = false.into();
    let old = |facts: &mut Facts, name: &str| facts.vm(name).hardware = 9;
    let down = |facts: &mut Facts, name: &str| facts.node(name).ready = false;
    let faults: [(&str, Fault); 6] = [
        ("VDO-1203", hidden),
        ("VDO-1204", old),
        ("VDO-1214", foreign),
        ("VDO-1215", wrong),
        ("VDO-1225", down),
        ("VDO-1231", waiting),
    ];
    for (code, fault) in faults {
        let mut facts = healthy();
        for name in names {
            fault(&mut facts, name);
        }
        let findings = Examination::run(facts).report().findings();
        let finding = findings.iter().find(|finding| finding.code == code).unwrap();
        assert_eq!(finding.count, 3, "{code}");
        let steps = &finding.remedy;
        let down = |step: &&String| {
            ["kubectl drain ", "vm.power -off ", "kubectl delete node "]
                .iter()
                .any(|command| step.contains(command))
        };
        let of = |name: &&&str| steps.iter().filter(down).any(|step| step.contains(**name));
        assert_eq!(names.iter().filter(of).count(), 1, "{code}: {steps:#?}");
        assert!(steps.last().unwrap().contains("likewise for 2 more"), "{code}: {steps:#?}");
        let deletes = |step: &&String| step.starts_with("kubectl delete node");
        assert_eq!(steps.iter().find(deletes), None, "{code}: an admin must act before");
    }
}

/// After a failed drain, pods still run on the node. After the VM is on again, the node needs minutes to be ready.
#[test]
fn a_vm_is_powered_off_only_after_its_drain_and_released_when_its_node_is_ready() {
    let mut facts = healthy();
    facts.vm("worker-1").disk_uuid = false.into();
    facts.vm("worker-1").disk_uuid_set = false;
    let steps = Examination::run(facts).report().findings().remove(0).remedy;
    let step = |start: &str| steps.iter().find(|step| step.starts_with(start)).unwrap();
    let drain = step("kubectl drain worker-1 ");
    assert!(drain.contains(" && govc vm.power -off /DC0/vm/k8s/worker-1 && "), "{drain}");
    // Kubernetes still calls the node ready for a while after its VM is off.
    assert!(drain.contains("kubectl wait --for=condition=Ready=Unknown node/worker-1"), "{drain}");
    let ready = step("kubectl wait --for=condition=Ready node/worker-1 ");
    assert!(ready.ends_with(" && kubectl uncordon worker-1"), "{ready}");
    assert_eq!(steps.last(), Some(ready), "{steps:#?}");
}

#[test]
fn a_command_is_never_cut() {
    let mut facts = healthy();
    let added = (0..40)
        .map(|n| ("kubectl-edit".to_owned(), format!("securityContext.field{n:02}OfSomebody")));
    facts.storage_driver().workloads[0].added_fields = added.collect();
    let findings = Examination::run(facts).report().findings();
    let finding = findings.iter().find(|finding| finding.code == "VDO-1624").unwrap();
    for step in finding.remedy.iter().filter(|step| !step.starts_with('#')) {
        assert!(!step.contains(" ..."), "{step}");
        assert_eq!(step.matches('\'').count() % 2, 0, "an open quote: {step}");
    }
    assert!(finding.remedy[0].starts_with("kubectl edit deployment"), "{:?}", finding.remedy);
}

#[test]
fn an_object_with_more_steps_than_the_first_loses_none() {
    let mut facts = healthy();
    for name in ["worker-1", "worker-2"] {
        facts.node(name).csi.get_mut().unwrap().as_mut().unwrap().node_id = "gone".into();
    }
    // Of the first node, VDO cannot tell whether its VM exists: one step. The second node has two.
    let mut copy = facts.vm("worker-1").clone();
    copy.path = "/DC0/vm/restore/worker-1".into();
    copy.volumes.clear();
    facts.inventory().vms.insert("vm-copied".into(), copy);
    let findings = Examination::run(facts).report().findings();
    let finding = findings.iter().find(|finding| finding.code == "VDO-1222").unwrap();
    let steps = &finding.remedy;
    assert_eq!(finding.count, 2, "{finding:#?}");
    assert!(steps[0].starts_with("# Find out whether the VM of worker-1"), "{steps:#?}");
    assert!(steps[1].contains("csinode worker-2"), "{steps:#?}");
    assert!(steps[2].contains("spec.nodeName=worker-2"), "{steps:#?}");
    assert_eq!(steps.len(), 3, "{steps:#?}");
}

#[test]
fn a_sentence_about_all_objects_appears_once() {
    let mut facts = healthy();
    for name in ["worker-1", "worker-2", "worker-3", "worker-4", "worker-5"] {
        facts.node(name).provider_id = Some(format!("k3s://{name}"));
    }
    let findings = Examination::run(facts).report().findings();
    let steps = &findings.iter().find(|finding| finding.code == "VDO-1214").unwrap().remedy;
    let count = |start: &str| steps.iter().filter(|step| step.starts_with(start)).count();
    assert_eq!(count("# Disable the other cloud provider"), 1, "{steps:#?}");
    let last = steps.last().unwrap();
    assert!(last.contains("vdoctl doctor --only VDO-1214 --each"), "{steps:#?}");
}

#[test]
fn a_finding_somebody_accepted_is_shown_as_such_until_it_runs_out() {
    let mut facts = healthy();
    facts.vcenter().user = "k8s".into();
    let later = Timestamp::from_second(facts.now.as_second() + 3600).unwrap();
    facts.operator.acknowledged = vec![Acknowledged {
        code: "VDO-1307".into(),
        object: None,
        reason: "moves to the new domain on Monday".into(),
        until: Some(later),
    }];
    let examination = Examination::run(facts.clone());
    let report = examination.report();
    assert_eq!(report.worst(), None, "nobody is woken for it");
    assert!(report.blockers().is_empty(), "and nothing waits for it");
    let shown = report.findings().remove(0).acknowledged.unwrap();
    assert_eq!(shown.reason, "moves to the new domain on Monday");
    facts.now = later;
    let examination = Examination::run(facts);
    assert_eq!(examination.report().worst(), Some(Severity::Blocker));
    assert_eq!(examination.report().blockers().len(), 1);
}

#[test]
fn what_follows_from_a_lesser_fault_can_still_block() {
    let mut facts = healthy();
    facts.node("worker-1").ready = false;
    facts.vm("worker-1").datacenter = "DC9".into();
    let blockers = Examination::run(facts).report().blockers();
    assert_eq!(blockers.len(), 1, "{blockers:#?}");
    assert_eq!(blockers[0].code, "VDO-1227", "rolling the cloud provider could cost the node");
    assert_eq!(blockers[0].consequence_of.as_deref(), Some("VDO-1211"));
}

#[test]
fn since_when_is_kept_from_one_look_to_the_next() {
    let mut facts = healthy();
    facts.vm("worker-1").disk_uuid = false.into();
    facts.vm("worker-1").disk_uuid_set = false;
    let mut first = Examination::run(facts.clone()).report().findings();
    let begin = Timestamp::from_second(1000).unwrap();
    date(&mut first, &[], begin);
    facts.vm("worker-2").disk_uuid = false.into();
    facts.vm("worker-2").disk_uuid_set = false;
    facts.vm("worker-2").hardware = 9;
    let mut second = Examination::run(facts).report().findings();
    date(&mut second, &first, Timestamp::from_second(2000).unwrap());
    let since = |code: &str| {
        let finding = second.iter().find(|finding| finding.code == code).unwrap();
        finding.since.as_ref().unwrap().0.as_second()
    };
    assert_eq!((since("VDO-1203"), since("VDO-1204")), (1000, 2000));
}

#[test]
fn an_unreachable_vcenter_is_one_alarm_and_nothing_is_called_fine() {
    let mut facts = healthy();
    let reason = "vcenter-a does not answer";
    let vcenter = facts.vcenter();
    vcenter.reach = health::facts::Reach::NoAnswer { reason: "connection timed out".into() }.into();
    vcenter.tls = Known::unknown(reason);
    vcenter.login = Known::unknown(reason);
    vcenter.about = Known::unknown(reason);
    vcenter.clock_ahead = Known::unknown(reason);
    vcenter.grants = Known::unknown(reason);
    vcenter.tasks = Known::unknown(reason);
    vcenter.inventory = Known::unknown(reason);
    vcenter.services.values_mut().for_each(|state| *state = Known::unknown(reason));
    let findings = Examination::run(facts).report().findings();
    let roots: Vec<&str> =
        findings.iter().filter(|f| f.consequence_of.is_none()).map(|f| f.code.as_str()).collect();
    assert_eq!(roots, ["VDO-1301"], "{findings:#?}");
    let unknown = findings.iter().find(|finding| finding.code == "VDO-1801").unwrap();
    assert!(unknown.count > 24, "every node's VM is unknown: {unknown:#?}");
}

#[test]
fn an_empty_world_is_unknown_and_does_not_panic() {
    let findings = Examination::run(Facts::default()).report().findings();
    assert!(findings.iter().any(|finding| finding.code == "VDO-1801"), "{findings:#?}");
}
