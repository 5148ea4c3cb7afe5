//! After any change, what is known is the same as if everything had been examined anew.

use health::{Examination, Touched, VmRef};
use proptest::prelude::*;

use crate::{
    facts::{Attachment, Facts, Node, Power},
    healthy,
    shortcuts::Shortcuts,
};

#[derive(Clone, Debug)]
enum Step {
    Vm(usize, u8),
    Node(usize, u8),
    Volume(u32, u8),
    Host(u8, bool),
    Pods(u8),
    Waiting(u32),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        (0..24_usize, 0..7_u8).prop_map(|(n, what)| Step::Vm(n, what)),
        (1..=21_usize, 0..5_u8).prop_map(|(n, what)| Step::Node(n, what)),
        (0..24_u32, 0..3_u8).prop_map(|(n, what)| Step::Volume(n, what)),
        (1..=4_u8, any::<bool>()).prop_map(|(n, on)| Step::Host(n, on)),
        (0..3_u8).prop_map(Step::Pods),
        (0..24_u32).prop_map(Step::Waiting),
    ];
    prop::collection::vec(step, 1..12)
}

fn apply(examination: &mut Examination, step: &Step) {
    match step {
        Step::Vm(n, what) => {
            let id = format!("vm-{n:05}");
            let touched = Touched::Vm(VmRef { vcenter: "vcenter-a".into(), vm: id.clone() });
            examination.change(&touched, |facts| change_vm(facts, &id, *what));
        }
        Step::Node(n, what) => {
            let name = format!("worker-{n}");
            let touched = Touched::Node(name.clone());
            examination.change(&touched, |facts| {
                let nodes = facts.cluster.nodes.get_mut().unwrap();
                match (what, nodes.get_mut(&name)) {
                    (0, Some(node)) => node.provider_id = None,
                    (1, Some(node)) => node.ready = !node.ready,
                    (2, Some(node)) => node.system_uuid = "changed".into(),
                    (3, Some(node)) => node.taints = vec![Node::UNINITIALIZED.into()],
                    _ => {
                        nodes.remove(&name);
                    }
                }
            });
        }
        Step::Volume(n, what) => {
            let handle = health::sample::handle(*n);
            examination.change(&Touched::Volume(handle.clone()), |facts| {
                let volumes = facts.storage.volumes.get_mut().unwrap();
                match (what, volumes.get_mut(&handle)) {
                    (0, Some(volume)) => volume.node = Some("worker-1".into()),
                    (1, Some(volume)) => volume.created = facts.now,
                    _ => {
                        facts.storage.cns.get_mut().unwrap().remove(&handle);
                    }
                }
            });
        }
        Step::Pods(what) => examination.change(&Touched::Pods, |facts| match what {
            0 => facts.cloud_driver().workloads[0].ready = 0,
            1 => {
                let pod = &mut facts.storage_driver().workloads[0].pods[0];
                pod.unschedulable = Some("didn't match pod anti-affinity rules".into());
            }
            _ => facts.no_crds(),
        }),
        Step::Waiting(n) => examination.change(&Touched::Waiting, |facts| {
            facts.storage.attachments.get_mut().unwrap().push(Attachment {
                name: format!("csi-{n}"),
                volume: health::sample::handle(*n),
                node: format!("worker-{}", n % 21 + 1),
                message: "no answer".into(),
                ..Attachment::default()
            });
        }),
        Step::Host(n, maintenance) => {
            let host = format!("host-{n}");
            let touched = Touched::Host { vcenter: "vcenter-a".into(), host: host.clone() };
            examination.change(&touched, |facts| {
                facts.inventory().hosts.get_mut(&host).unwrap().maintenance = *maintenance;
            });
        }
    }
}

/// Without zones, and with a host that mounts no datastore: a VM that moves there matters to all.
fn without_zones() -> Facts {
    let mut facts = healthy();
    facts.wanted.storage.as_mut().unwrap().categories.clear();
    facts.storage_driver().provisioner_topology = Some(false);
    let mut host = facts.inventory().hosts["host-1"].clone();
    host.datastores.clear();
    facts.inventory().hosts.insert("host-6".into(), host);
    facts
}

fn change_vm(facts: &mut Facts, id: &str, what: u8) {
    let vms = &mut facts.inventory().vms;
    let Some(vm) = vms.get_mut(id) else { return };
    match what {
        0 => vm.disk_uuid = false.into(),
        1 => vm.power = Power::Off,
        2 => vm.guest_name = "worker-1".into(),
        3 => vm.bios_uuid = health::sample::uuid(5),
        4 => vm.host = "host-6".into(),
        5 => vm.cbt = Some(true),
        _ => {
            vms.remove(id);
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn a_change_leads_to_what_a_fresh_look_would_find(steps in steps()) {
        let mut examination = Examination::of(without_zones());
        for step in &steps {
            apply(&mut examination, step);
        }
        let fresh = Examination::of(examination.facts().clone());
        prop_assert_eq!(examination.report().all(), fresh.report().all());
    }
}
