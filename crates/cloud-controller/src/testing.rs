//! Nodes and VMs for unit tests.

use std::net::IpAddr;

use vsphere::MoRef;

use crate::model::{Address, AddressKind, Guest, Interface, Node, Power, VirtualMachine, VmRef};

/// A running VM with one address, in `vc.test`.
pub(crate) fn vm(name: &str) -> VirtualMachine {
    VirtualMachine {
        vm_ref: VmRef {
            vcenter: "vc.test".into(),
            vm: MoRef::new("VirtualMachine", format!("vm-{name}")),
        },
        path: format!("/DC0/vm/{name}"),
        vcenter_uuid: "uuid-of-vc".into(),
        folder: Some(MoRef::new("Folder", "group-v1")),
        bios_uuid: "422e4956-ad22-1139-6d72-59cc8f26bc90".parse().ok(),
        instance_uuid: "502e4956-ad22-1139-6d72-59cc8f26bc90".parse().ok(),
        template: false,
        power: Some(Power::On),
        cpus: 2,
        memory_mib: 4096,
        guest_id: "ubuntu64Guest".into(),
        guest: Guest {
            host_name: name.into(),
            interfaces: vec![interface("VM Network", &["10.0.0.1"])],
            metadata: None,
        },
        placement: None,
    }
}

pub(crate) fn interface(network: &str, addresses: &[&str]) -> Interface {
    let addresses = addresses.iter().map(|a| a.parse::<IpAddr>().unwrap()).collect();
    Interface { network: network.into(), device: 4000, addresses }
}

/// A Ready node with no other fields set.
pub(crate) fn node(name: &str) -> Node {
    Node { name: name.into(), uid: format!("uid-{name}").into(), ready: true, ..Node::default() }
}

/// Addresses from `Hostname a`, `InternalIP b`, ...
pub(crate) fn addresses(texts: &[&str]) -> Vec<Address> {
    texts
        .iter()
        .map(|text| {
            let (kind, address) = text.split_once(' ').unwrap();
            let kind = match kind {
                "Hostname" => AddressKind::Hostname,
                "InternalIP" => AddressKind::InternalIP,
                "ExternalIP" => AddressKind::ExternalIP,
                "InternalDNS" => AddressKind::InternalDNS,
                other => panic!("{other}"),
            };
            Address::new(kind, address)
        })
        .collect()
}
