use super::*;
use crate::{
    model::{Taint, UNINITIALIZED},
    testing::{addresses, interface, node, vm},
};

struct FewVms(Vec<VirtualMachine>);

impl FewVms {
    fn with(&self, fits: impl Fn(&VirtualMachine) -> bool) -> Vec<VirtualMachine> {
        self.0.iter().filter(|m| fits(m)).cloned().collect()
    }
}

impl VmLookup for FewVms {
    fn at(&self, vm_ref: &VmRef) -> Option<VirtualMachine> {
        self.with(|m| m.vm_ref == *vm_ref).pop()
    }
    fn with_bios_uuid(&self, uuid: BiosUuid) -> Vec<VirtualMachine> {
        self.with(|m| m.bios_uuid.is_some_and(|u| u == uuid || u == uuid.swapped()))
    }
    fn with_instance_uuid(&self, uuid: InstanceUuid) -> Vec<VirtualMachine> {
        self.with(|m| m.instance_uuid == Some(uuid))
    }
    fn with_dns_name(&self, name: &str) -> Vec<VirtualMachine> {
        self.with(|m| m.guest.host_name.eq_ignore_ascii_case(name))
    }
    fn with_short_name(&self, name: &str) -> Vec<VirtualMachine> {
        self.with(|m| short_name(&m.guest.host_name).eq_ignore_ascii_case(name))
    }
    fn with_address(&self, address: IpAddr) -> Vec<VirtualMachine> {
        self.with(|m| m.guest.addresses().any(|a| a == address))
    }
}

const UUID: &str = "422e4956-ad22-1139-6d72-59cc8f26bc90";
const SWAPPED: &str = "56492e42-22ad-3911-6d72-59cc8f26bc90";
const INSTANCE: &str = "502e4956-ad22-1139-6d72-59cc8f26bc90";
const OTHER: &str = "42000000-0000-0000-0000-000000000001";

/// `Found(vm-a by Rule)`, `Several(2 by Rule)`, ...
fn outcome(node: &Node, vms: &[VirtualMachine]) -> String {
    match identify(node, &FewVms(vms.to_vec())).outcome {
        Match::Found(vm, rule) => format!("{} by {rule:?}", vm.vm_ref.vm.id),
        Match::Several(vms, rule) => format!("{} by {rule:?}", vms.len()),
        other => format!("{other:?}"),
    }
}

fn waiting(name: &str) -> Node {
    let taint = Taint::new(UNINITIALIZED, Some("true"), "NoSchedule");
    Node { taints: vec![taint].into(), ..node(name) }
}

fn with_other_uuids(mut vm: VirtualMachine) -> VirtualMachine {
    vm.bios_uuid = OTHER.parse().ok();
    vm.instance_uuid = "50000000-0000-0000-0000-000000000001".parse().ok();
    vm
}

#[test]
fn provider_ids_are_parsed_in_every_notation() {
    let expected: BiosUuid = UUID.parse().unwrap();
    for text in [
        UUID,
        "vsphere://422e4956-ad22-1139-6d72-59cc8f26bc90",
        "vsphere://422E4956-AD22-1139-6D72-59CC8F26BC90",
        " vsphere://422e4956-ad22-1139-6d72-59cc8f26bc90 ",
        "422E4956-AD22-1139-6D72-59CC8F26BC90",
    ] {
        assert_eq!(provider_uuid(text), Some(expected), "{text}");
        assert!(!is_foreign(text));
    }
    for text in ["aws:///eu-west-1a/i-0123", "k3s://node-1", "kind://docker/a/b", "vsphere://"] {
        assert!(is_foreign(text), "{text}");
    }
    assert!(!is_foreign(""), "no provider id yet");
}

#[test]
fn a_node_is_found_by_its_uuid_in_either_byte_order() {
    for uuid in [UUID, SWAPPED, &UUID.to_uppercase()] {
        let by_system = Node { system_uuid: uuid.into(), ..node("n") };
        assert_eq!(outcome(&by_system, &[vm("a")]), "vm-a by SystemUuid", "{uuid}");
        let by_id = Node { provider_id: format!("vsphere://{uuid}").into(), ..node("n") };
        assert_eq!(outcome(&by_id, &[vm("a")]), "vm-a by ProviderId", "{uuid}");
    }
    let by_instance = Node { system_uuid: INSTANCE.into(), ..node("n") };
    assert_eq!(outcome(&by_instance, &[vm("a")]), "vm-a by InstanceUuid");
}

#[test]
fn a_node_without_a_vm_uuid_is_found_by_name_then_address() {
    let vm = |host: &str| {
        let mut vm = with_other_uuids(vm("a"));
        vm.guest.host_name = host.into();
        vm
    };
    let node = waiting;
    for (name, host, rule) in [
        ("worker-1", "worker-1", "vm-a by DnsName"),
        ("worker-1", "WORKER-1", "vm-a by DnsName"),
        ("win-node", "WIN-NODE.corp.example.com", "vm-a by ShortName"),
        ("worker-1.example.com", "worker-1", "vm-a by ShortName"),
        ("worker-1.a.example", "worker-1.b.example", "vm-a by ShortName"),
        ("worker-2", "worker-1", "NotFound"),
    ] {
        assert_eq!(outcome(&node(name), &[vm(host)]), rule, "{name} and {host}");
    }
    let mut by_address = node("worker-9");
    by_address.addresses = addresses(&["InternalIP 10.0.0.1"]).into();
    assert_eq!(outcome(&by_address, &[vm("x")]), "vm-a by Address");
    let by_provided_ip = Node { provided_ip: Some("10.0.0.1".into()), ..node("worker-9") };
    assert_eq!(outcome(&by_provided_ip, &[vm("x")]), "vm-a by Address");
    // A kubelet that cannot read the firmware reports the machine-id.
    let machine_id = Node { system_uuid: "0b3e7e6f7b1b4e0a9d1f5c6a7e8f9a0b".into(), ..node("a") };
    assert_eq!(outcome(&machine_id, &[vm("a")]), "vm-a by DnsName");
}

#[test]
fn a_node_without_the_taint_is_not_found_by_name_or_address() {
    // A physical server, a kubelet that reports a machine-id, and one that reports nothing.
    for reported in ["4c4c4544-0043-4b10-8050-b4c04f4d3732", "0b3e7e6f7b1b4e0a9d1f5c6a7e8f9a0b", ""]
    {
        for name in ["a", "A", "a.example", "elsewhere"] {
            let mut server = Node { system_uuid: reported.into(), ..node(name) };
            server.addresses = addresses(&["InternalIP 10.0.0.1"]).into();
            assert_eq!(outcome(&server, &[vm("a")]), "NotFound", "{name} reporting {reported:?}");
        }
    }
    // A record from an earlier sync does not change that.
    let record = Some(Record::for_vm(&vm("a")).to_text().into());
    let system_uuid = "4c4c4544-0043-4b10-8050-b4c04f4d3732".into();
    let noted = Node { record, system_uuid, ..node("a") };
    assert_eq!(outcome(&noted, &[vm("a")]), "NotFound");
    let own = Node { system_uuid: UUID.into(), ..noted };
    assert_eq!(outcome(&own, &[vm("a")]), "vm-a by Record");
}

#[test]
fn a_node_is_another_computer_only_if_its_uuid_is_none_of_the_vms_uuids() {
    let no_uuids = VirtualMachine { bios_uuid: None, instance_uuid: None, ..vm("a") };
    let no_bios = VirtualMachine { bios_uuid: None, ..vm("a") };
    for (reported, vm, expected) in [
        (UUID, vm("a"), false),
        (SWAPPED, vm("a"), false),
        (INSTANCE, vm("a"), false),
        ("56492e50-22ad-3911-6d72-59cc8f26bc90", vm("a"), false),
        (OTHER, vm("a"), true),
        ("4c4c4544-0043-4b10-8050-b4c04f4d3732", vm("a"), true),
        ("0b3e7e6f7b1b4e0a9d1f5c6a7e8f9a0b", vm("a"), true),
        ("", vm("a"), false),
        ("not a uuid", vm("a"), false),
        ("00000000-0000-0000-0000-000000000000", vm("a"), false),
        (OTHER, no_uuids, false),
        (OTHER, no_bios.clone(), false),
        ("4c4c4544-0043-4b10-8050-b4c04f4d3732", no_bios, true),
    ] {
        let node = Node { system_uuid: reported.into(), ..node("a") };
        assert_eq!(reports_other_computer(&node, &vm), expected, "{reported:?} and {vm:?}");
    }
}

#[test]
fn a_vm_with_other_uuids_is_not_found_by_name_alone() {
    let elsewhere = with_other_uuids(vm("node-1"));
    let system = Node { system_uuid: UUID.into(), ..waiting("node-1") };
    assert_eq!(outcome(&system, std::slice::from_ref(&elsewhere)), "NotFound");
    let initialised = Node { provider_id: format!("vsphere://{UUID}").into(), ..node("node-1") };
    assert_eq!(outcome(&initialised, &[elsewhere]), "NotFound");
}

#[test]
fn nodes_of_other_providers_are_ignored() {
    let foreign =
        Node { provider_id: "aws:///a/i-1".into(), system_uuid: UUID.into(), ..node("node-1") };
    assert_eq!(outcome(&foreign, &[vm("node-1")]), "Foreign");
}

#[test]
fn copies_are_distinguished_or_reported_never_guessed() {
    let copy = |name: &str, address: &str| {
        let mut copy = vm(name);
        copy.guest.interfaces = vec![interface("n", &[address])];
        copy.instance_uuid = None;
        copy
    };
    let (a, b) = (copy("a", "10.0.0.1"), copy("b", "10.0.0.2"));
    let by_uuid = |name: &str| Node { system_uuid: UUID.into(), ..node(name) };
    let both = [a.clone(), b.clone()];
    assert_eq!(outcome(&by_uuid("b.example"), &both), "vm-b by SystemUuid", "by name");
    let mut addressed = by_uuid("c");
    addressed.addresses = addresses(&["InternalIP 10.0.0.1"]).into();
    assert_eq!(outcome(&addressed, &both), "vm-a by SystemUuid", "by address");
    assert_eq!(outcome(&by_uuid("c"), &both), "2 by SystemUuid", "reported");
    let template = VirtualMachine { template: true, ..a };
    assert_eq!(
        outcome(&by_uuid("c"), &[template, b]),
        "vm-b by SystemUuid",
        "a template does not count"
    );
    let mut first = vm("same");
    first.vm_ref.vcenter = "vc-1".into();
    let twins = [first, vm("same")];
    assert_eq!(outcome(&by_uuid("same"), &twins), "2 by SystemUuid", "in two vCenters");
}

#[test]
fn the_record_takes_precedence_over_all_other_rules() {
    let mut renamed = vm("a");
    renamed.bios_uuid = OTHER.parse().ok();
    let recorded = Node {
        record: Some(Record::for_vm(&vm("a")).to_text().into()),
        provider_id: format!("vsphere://{UUID}").into(),
        ..node("a")
    };
    assert_eq!(outcome(&recorded, &[vm("a"), vm("b")]), "vm-a by Record", "of two copies");
    assert_eq!(outcome(&recorded, &[renamed]), "vm-a by Record", "its BIOS uuid was changed");
    let mut inaccessible = vm("a");
    (inaccessible.bios_uuid, inaccessible.instance_uuid) = (None, None);
    assert_eq!(outcome(&recorded, &[inaccessible]), "vm-a by Record", "vCenter lost its uuids");
    let mut reregistered = vm("a");
    reregistered.vm_ref = vm("new").vm_ref;
    assert_eq!(outcome(&recorded, &[reregistered]), "vm-new by ProviderId", "a new reference");
    assert_eq!(
        outcome(&recorded, &[with_other_uuids(vm("a"))]),
        "NotFound",
        "the reference was reused"
    );
}

#[test]
fn the_applied_rules_are_listed() {
    let lost = Node {
        provider_id: format!("vsphere://{UUID}").into(),
        system_uuid: OTHER.into(),
        ..node("n")
    };
    let identified = identify(&lost, &FewVms(vec![]));
    assert_eq!(
        identified.attempts,
        [(Rule::ProviderId, 0), (Rule::SystemUuid, 0), (Rule::InstanceUuid, 0)]
    );
}
