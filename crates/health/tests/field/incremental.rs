//! After any change, the updated findings equal those of a complete new examination.

use health::{Examination, Touched, VmRef};
use proptest::prelude::*;

use std::collections::BTreeMap;

use crate::{
    facts::{Attachment, Drivers, Facts, Known, Node, Power},
    faults::{FAULTS, with},
    healthy,
    rows::rows,
    shortcuts::Shortcuts,
};

#[derive(Clone, Debug)]
enum FactChange {
    Vm(usize, u8),
    Node(usize, u8),
    Volume(u32, u8),
    Host(u8, bool),
    Pods(u8),
    Waiting(u32),
}

fn steps() -> impl Strategy<Value = Vec<FactChange>> {
    let step = prop_oneof![
        (0..24_usize, 0..7_u8).prop_map(|(n, what)| FactChange::Vm(n, what)),
        (1..=21_usize, 0..5_u8).prop_map(|(n, what)| FactChange::Node(n, what)),
        (0..24_u32, 0..3_u8).prop_map(|(n, what)| FactChange::Volume(n, what)),
        (1..=4_u8, any::<bool>()).prop_map(|(n, on)| FactChange::Host(n, on)),
        (0..3_u8).prop_map(FactChange::Pods),
        (0..24_u32).prop_map(FactChange::Waiting),
    ];
    prop::collection::vec(step, 1..12)
}

fn apply(examination: &mut Examination, step: &FactChange) {
    match step {
        FactChange::Vm(n, what) => {
            let id = format!("vm-{n:05}");
            let touched = Touched::Vm(VmRef { vcenter: "vcenter-a".into(), vm: id.clone() });
            examination.change(&touched, |facts| change_vm(facts, &id, *what));
        }
        FactChange::Node(n, what) => {
            let name = format!("worker-{n}");
            let touched = Touched::Node(name.clone());
            examination.change(&touched, |facts| {
                let nodes = facts.cluster.nodes.get_mut().unwrap();
                match (what, nodes.get_mut(&name)) {
                    (0, Some(node)) => node.provider_id = None,
                    (1, Some(node)) => node.ready = !node.ready,
                    (2, Some(node)) => node.system_uuid = "changed".into(),
                    (3, Some(node)) => {
                        node.taints = vec![(Node::UNINITIALIZED.into(), "NoSchedule".into())];
                    }
                    _ => {
                        nodes.remove(&name);
                    }
                }
            });
        }
        FactChange::Volume(n, what) => {
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
        FactChange::Pods(what) => examination.change(&Touched::Pods, |facts| match what {
            0 => facts.cloud_driver().workloads[0].ready = 0,
            1 => {
                let pod = &mut facts.storage_driver().workloads[0].pods[0];
                pod.unschedulable = Some("didn't match pod anti-affinity rules".into());
            }
            _ => facts.no_crds(),
        }),
        FactChange::Waiting(n) => examination.change(&Touched::Waiting, |facts| {
            facts.storage.attachments.get_mut().unwrap().push(Attachment {
                name: format!("csi-{n}"),
                volume: health::sample::handle(*n),
                node: format!("worker-{}", n % 21 + 1),
                message: "no answer".into(),
                ..Attachment::default()
            });
        }),
        FactChange::Host(n, maintenance) => {
            let host = format!("host-{n}");
            let touched = Touched::Host { vcenter: "vcenter-a".into(), host: host.clone() };
            examination.change(&touched, |facts| {
                facts.inventory().hosts.get_mut(&host).unwrap().maintenance = *maintenance;
            });
        }
    }
}

/// A cluster without zones, and with a host that mounts no datastore. A VM that moves there affects all
/// findings.
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
        let mut examination = Examination::run(without_zones());
        for step in &steps {
            apply(&mut examination, step);
        }
        let fresh = Examination::run(examination.facts().clone());
        prop_assert_eq!(examination.report().all(), fresh.report().all());
    }
}

/// The facts without those that change object by object.
fn frame(facts: &Facts) -> Facts {
    let mut facts = facts.clone();
    facts.cluster.nodes = Known::unknown("");
    facts.cluster.drivers = Drivers::default();
    facts.cluster.leases = Known::unknown("");
    facts.storage.pending = Known::unknown("");
    facts.storage.attachments = Known::unknown("");
    facts.storage.growing = Known::unknown("");
    facts.storage.snapshots = Known::unknown("");
    facts.storage.volumes = Known::unknown("");
    for vcenter in facts.vcenters.values_mut() {
        if let Some(inventory) = vcenter.inventory.get_mut() {
            inventory.vms.clear();
        }
    }
    facts
}

/// The entries that are missing in `after`, and those that are new or different in it.
fn differing<T: Clone + PartialEq>(
    before: &BTreeMap<String, T>,
    after: &BTreeMap<String, T>,
) -> Vec<(String, Option<T>)> {
    let gone = before.keys().filter(|key| !after.contains_key(*key)).map(|key| (key.clone(), None));
    let other = after.iter().filter(|(key, value)| before.get(*key) != Some(value));
    gone.chain(other.map(|(key, value)| (key.clone(), Some(value.clone())))).collect()
}

fn put<T>(map: &mut BTreeMap<String, T>, key: String, value: Option<T>) {
    match value {
        Some(value) => map.insert(key, value),
        None => map.remove(&key),
    };
}

/// Updates the facts to `after` step by step. Each step touches only the object that it declares. Returns
/// false if no sequence of single steps leads to `after`.
fn bring(examination: &mut Examination, after: &Facts) -> bool {
    let before = examination.facts().clone();
    let known = |facts: &Facts| {
        let vms = facts.vcenters.values().all(|vcenter| vcenter.inventory.get().is_some());
        vms && facts.cluster.nodes.get().is_some() && facts.storage.volumes.get().is_some()
    };
    if frame(&before) != frame(after) || !known(&before) || !known(after) {
        return false;
    }
    let nodes = |facts: &Facts| facts.cluster.nodes.get().unwrap().clone();
    for (name, node) in differing(&nodes(&before), &nodes(after)) {
        let touched = Touched::Node(name.clone());
        examination.change(&touched, |f| put(f.cluster.nodes.get_mut().unwrap(), name, node));
    }
    for (vcenter, theirs) in &after.vcenters {
        let vms = |facts: &Facts| facts.vcenters[vcenter].inventory.get().unwrap().vms.clone();
        let inventory = theirs.inventory.get().unwrap();
        for (id, vm) in differing(&vms(&before), &inventory.vms) {
            let touched = Touched::Vm(VmRef { vcenter: vcenter.clone(), vm: id.clone() });
            examination.change(&touched, |facts| {
                let vcenter = facts.vcenters.get_mut(vcenter).unwrap();
                put(&mut vcenter.inventory.get_mut().unwrap().vms, id, vm);
            });
        }
    }
    let volumes = |facts: &Facts| facts.storage.volumes.get().unwrap().clone();
    for (handle, volume) in differing(&volumes(&before), &volumes(after)) {
        let touched = Touched::Volume(handle.clone());
        examination.change(&touched, |f| put(f.storage.volumes.get_mut().unwrap(), handle, volume));
    }
    examination.change(&Touched::Waiting, |facts| {
        facts.storage.pending = after.storage.pending.clone();
        facts.storage.attachments = after.storage.attachments.clone();
        facts.storage.growing = after.storage.growing.clone();
        facts.storage.snapshots = after.storage.snapshots.clone();
    });
    examination.change(&Touched::Pods, |facts| {
        facts.cluster.drivers = after.cluster.drivers.clone();
        facts.cluster.leases = after.cluster.leases.clone();
    });
    assert_eq!(examination.facts(), after);
    true
}

#[test]
fn every_fault_that_comes_and_goes_in_small_steps_is_seen_to_come_and_to_go() {
    let injected = |row: &crate::rows::Row| {
        let mut facts = healthy();
        (row.inject)(&mut facts);
        facts
    };
    let all = rows().iter().map(|row| (row.id, injected(row)));
    let mut stepped = 0;
    for (name, faulty) in all.chain(FAULTS.iter().map(|(code, make)| (*code, with(*make)))) {
        let mut examination = Examination::run(healthy());
        if !bring(&mut examination, &faulty) {
            continue;
        }
        stepped += 1;
        let fresh = Examination::run(faulty);
        assert_eq!(examination.report().all(), fresh.report().all(), "{name} comes");
        assert!(bring(&mut examination, &healthy()), "{name}");
        assert_eq!(examination.report().all(), [], "{name} goes");
    }
    assert!(stepped > 40, "only {stepped} faults are of a kind that comes in small steps");
}
