//! The cloud provider chooses the address that the kubelet uses.

use std::{
    collections::BTreeSet,
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
};

use crate::{
    checks::prelude::*,
    facts::{Nic, Power, Tools, WantedCloud},
};

pub(super) const CHECK: Check = Check {
    name: "nodes/address",
    gives: &[codes::ADDRESS_WRONG, codes::ADDRESS_NONE],
    run: CheckScope::NodeVm(check),
};

fn check(view: &FactsView<'_>, node: &Node, found: &FoundVm<'_>, sink: &mut Sink) {
    let Some(cloud) = &view.facts.wanted.cloud else { return };
    if found.vm.power != Power::On || found.vm.tools != Tools::Running {
        return;
    }
    let usable = usable(&found.vm.nics, cloud);
    let Some((picked, reason)) = pick(&usable, cloud) else {
        let (addresses, reason) = if usable.is_empty() {
            ("no usable address".to_owned(), "VMware Tools reports no routable address")
        } else {
            let list = first_names(usable.iter().map(|(address, _)| address.as_str()));
            (list, "no address is in the configured network")
        };
        let hit = Hit::for_vm(codes::ADDRESS_NONE, node, found).with("addresses", addresses);
        sink.raise(hit.with("reason", reason));
        return;
    };
    // Without known settings, no address is wrong.
    let Some(wanted) = node.provided_ip.as_ref().filter(|_| !cloud.assumed) else { return };
    // If several addresses fit, VDO's own cloud controller prefers the kubelet's address.
    let asks_kubelet = view.cloud_driver().is_some_and(|driver| !driver.upstream);
    let fits = || {
        usable.iter().any(|one| {
            one.0 == *wanted
                && pick(std::slice::from_ref(one), cloud).is_some_and(|(_, by)| by == reason)
        })
    };
    if asks_kubelet && fits() {
        return;
    }
    if wanted != picked && !wanted.contains(',') {
        sink.raise(
            Hit::for_node(codes::ADDRESS_WRONG, node)
                .with("wanted", wanted)
                .with("picked", picked)
                .with("reason", reason)
                .with("step", step(view, found, wanted, cloud)),
        );
    }
}

/// Routable addresses, in the order of VMware Tools.
fn usable<'n>(nics: &'n [Nic], cloud: &WantedCloud) -> Vec<(String, &'n str)> {
    let real = nics.iter().filter(|nic| nic.real);
    let all = real.flat_map(|nic| nic.addresses.iter().map(|a| (a, nic.network.as_str())));
    let routable = |address: &str| match address.parse::<IpAddr>() {
        Ok(IpAddr::V4(v4)) => {
            cloud.ipv4 && !v4.is_loopback() && !v4.is_link_local() && !v4.is_unspecified()
        }
        Ok(IpAddr::V6(v6)) => {
            cloud.ipv6 && !v6.is_loopback() && !v6.is_unicast_link_local() && !v6.is_unspecified()
        }
        Err(_) => false,
    };
    let excluded = |address: &str| cloud.excluded_subnets.iter().any(|s| contains(s, address));
    let all = all.filter(|(a, _)| routable(a) && !excluded(a));
    all.map(|(a, network)| (a.clone(), network)).collect()
}

/// The address that the cloud provider chooses, and the rule.
fn pick<'a>(usable: &'a [(String, &str)], cloud: &WantedCloud) -> Option<(&'a str, &'static str)> {
    let in_subnet =
        |address: &str| cloud.internal_subnets.iter().any(|cidr| contains(cidr, address));
    if let Some((address, _)) = usable.iter().find(|(address, _)| in_subnet(address)) {
        return Some((address, "the first address in the configured subnets"));
    }
    let name = cloud.internal_network.as_deref();
    let on_network = |network: &str| name.is_some_and(|name| name.eq_ignore_ascii_case(network));
    if let Some((address, _)) = usable.iter().find(|(_, network)| on_network(network)) {
        return Some((address, "the first address on the configured network"));
    }
    if !cloud.internal_subnets.is_empty() || name.is_some() {
        return None;
    }
    usable
        .first()
        .map(|(address, _)| (address.as_str(), "the first address that VMware Tools reports"))
}

fn contains(cidr: &str, address: &str) -> bool {
    let Some((base, length)) = cidr.trim().split_once('/') else { return false };
    let bits = |text: &str| match text.parse() {
        Ok(IpAddr::V4(v4)) => Some((u128::from(u32::from(v4)) << 96, true)),
        Ok(IpAddr::V6(v6)) => Some((u128::from(v6), false)),
        Err(_) => None,
    };
    let (Some((base, four)), Some((address, also_four)), Ok(length)) =
        (bits(base), bits(address), length.parse::<u32>())
    else {
        return false;
    };
    let mask = u128::MAX.checked_shl(128 - length.min(128)).unwrap_or(0);
    four == also_four && (length == 0 || base & mask == address & mask)
}

/// In larger clusters VDO proposes no subnets: it would compare every node for every node.
const MOST_NODES: usize = 200;

/// The setting that makes the cloud provider choose the kubelet's address on every node, if there is one. No setting
/// helps if the VM does not have the address.
fn step(view: &FactsView<'_>, found: &FoundVm<'_>, wanted: &str, cloud: &WantedCloud) -> String {
    if !found.vm.nics.iter().flat_map(|nic| &nic.addresses).any(|address| address == wanted) {
        return format!(
            "The VM does not have {wanted}: correct the kubelet's --node-ip, or give the VM this address"
        );
    }
    match subnets(view, cloud) {
        Some(subnets) => format!(
            "Set the networks to use: cloudProvider.nodes.internalSubnets: [{}]",
            subnets.into_iter().collect::<Vec<_>>().join(", ")
        ),
        None => "Name the networks of the kubelets' addresses in cloudProvider.nodes.internalSubnets: the setting \
                 counts for all nodes, so it must contain the address of every kubelet and no other address of a \
                 node"
            .to_owned(),
    }
}

/// Subnets in which the cloud provider finds the kubelet's address on every node.
fn subnets(view: &FactsView<'_>, cloud: &WantedCloud) -> Option<BTreeSet<String>> {
    let nodes: Vec<&Node> = view.nodes().take(MOST_NODES + 1).collect();
    if nodes.len() > MOST_NODES {
        return None;
    }
    let nodes: Option<Vec<(FoundVm<'_>, &str)>> = nodes
        .into_iter()
        .filter(|node| !node.is_foreign())
        .map(|node| Some((view.only_vm(node)?, node.provided_ip.as_deref()?)))
        .collect();
    let nodes = nodes?;
    let found: Option<BTreeSet<String>> =
        nodes.iter().map(|(_, wanted)| subnet_of(wanted)).collect();
    let found = found?;
    let internal_subnets = found.iter().cloned().collect();
    let cloud = WantedCloud { internal_subnets, internal_network: None, ..cloud.clone() };
    let fits = |(vm, wanted): &(FoundVm<'_>, &str)| {
        let usable = usable(&vm.vm.nics, &cloud);
        pick(&usable, &cloud).is_some_and(|(picked, _)| picked == *wanted)
    };
    nodes.iter().all(fits).then_some(found)
}

/// The network of an address: /24 or /64.
fn subnet_of(address: &str) -> Option<String> {
    match address.parse().ok()? {
        IpAddr::V4(v4) => {
            let network = u32::from(v4) & 0xffff_ff00;
            Some(format!("{}/24", Ipv4Addr::from(network)))
        }
        IpAddr::V6(v6) => {
            let network = u128::from(v6) & !u128::from(u64::MAX);
            Some(format!("{}/64", Ipv6Addr::from(network)))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn nic(address: &str) -> Nic {
        Nic { network: "VM Network".into(), addresses: vec![address.into()], real: true }
    }

    #[test]
    fn a_virtual_address_that_tools_list_first_is_reported() {
        shows_of_vms(&CHECK, &["VDO-1218"], |facts| {
            facts.vm("worker-1").nics.insert(0, nic("10.0.99.1"));
        });
    }

    #[test]
    fn the_cloud_controller_of_vdo_takes_the_address_kubelet_was_given_where_it_fits() {
        let mut facts = healthy();
        facts.cloud_driver().upstream = false;
        facts.vm("worker-1").nics.insert(0, nic("10.0.99.1"));
        assert_eq!(codes_of(&CHECK, &facts), [""; 0]);
        facts.wanted.cloud.as_mut().unwrap().internal_subnets = vec!["10.0.99.0/24".into()];
        let codes = codes_of(&CHECK, &facts);
        assert!(codes.contains(&"VDO-1218"), "it must be in the subnet all the same: {codes:?}");
    }

    #[test]
    fn a_subnet_is_proposed_only_if_it_fits_every_node() {
        let step = |facts: Facts| {
            let all = crate::Examination::run(facts).report().all();
            let finding = all.into_iter().find(|finding| finding.code == "VDO-1218").unwrap();
            finding.remedy[0].clone()
        };
        let mut facts = healthy();
        facts.vm("worker-1").nics.insert(0, nic("192.168.99.1"));
        let proposed = step(facts.clone());
        assert!(proposed.contains("internalSubnets: [10."), "{proposed}");
        // Another node has a second address in the subnet, before the kubelet's.
        let address = facts.node("worker-2").provided_ip.clone().unwrap();
        let (network, _) = address.rsplit_once('.').unwrap();
        facts.vm("worker-2").nics.insert(0, nic(&format!("{network}.250")));
        let proposed = step(facts);
        assert!(!proposed.contains('['), "{proposed}");
    }

    #[test]
    fn no_setting_is_proposed_for_an_address_that_the_vm_does_not_have() {
        let mut facts = healthy();
        facts.node("worker-1").provided_ip = Some("10.99.99.99".into());
        let all = crate::Examination::run(facts).report().all();
        let finding = all.into_iter().find(|finding| finding.code == "VDO-1218").unwrap();
        assert!(finding.remedy[0].contains("correct the kubelet's --node-ip"), "{finding:?}");
    }

    #[test]
    fn a_subnet_settles_which_address_counts() {
        let mut facts = healthy();
        facts.vm("worker-1").nics.insert(0, nic("192.168.99.1"));
        facts.wanted.cloud.as_mut().unwrap().internal_subnets = vec!["10.0.0.0/16".into()];
        assert_eq!(codes_of(&CHECK, &facts), [""; 0]);
    }

    #[test]
    fn an_excluded_address_is_not_picked() {
        let mut facts = healthy();
        facts.vm("worker-1").nics.insert(0, nic("10.0.99.1"));
        let cloud = facts.wanted.cloud.as_mut().unwrap();
        cloud.excluded_subnets = vec!["10.0.99.1/32".into()];
        assert_eq!(codes_of(&CHECK, &facts), [""; 0]);
    }

    #[test]
    fn no_address_is_wrong_if_the_settings_are_unknown() {
        let mut facts = healthy();
        facts.vm("worker-1").nics.insert(0, nic("10.0.99.1"));
        facts.wanted.cloud.as_mut().unwrap().assumed = true;
        assert_eq!(codes_of(&CHECK, &facts), [""; 0]);
    }

    #[test]
    fn interfaces_of_the_network_plugin_and_link_local_addresses_do_not_count() {
        let mut facts = healthy();
        facts.vm("worker-1").nics.insert(0, nic("169.254.1.1"));
        facts.vm("worker-1").nics.insert(0, Nic { real: false, ..nic("10.244.0.1") });
        assert_eq!(codes_of(&CHECK, &facts), [""; 0]);
    }

    #[test]
    fn a_vm_outside_the_configured_network_is_reported() {
        shows_of_vms(&CHECK, &["VDO-1219"], |facts| {
            facts.vm("worker-1").nics = vec![nic("192.168.99.1")];
            facts.wanted.cloud.as_mut().unwrap().internal_subnets = vec!["10.0.0.0/16".into()];
        });
    }

    #[test]
    fn an_ipv6_only_cluster_has_no_finding() {
        let mut facts = healthy();
        let cloud = facts.wanted.cloud.as_mut().unwrap();
        (cloud.ipv4, cloud.ipv6) = (false, true);
        for vm in facts.inventory().vms.values_mut() {
            vm.nics = vec![nic("fe80::1"), nic("fd00:10::1")];
        }
        for node in facts.cluster.nodes.get_mut().unwrap().values_mut() {
            node.provided_ip = Some("fd00:10::1".into());
        }
        assert_eq!(codes_of(&CHECK, &facts), [""; 0]);
    }

    #[test]
    fn subnets_are_compared_bit_by_bit() {
        assert!(contains("10.0.0.0/23", "10.0.1.255") && !contains("10.0.0.0/23", "10.0.2.0"));
        assert!(contains("fd00::/64", "fd00::1") && !contains("fd00::/64", "10.0.0.1"));
        assert!(contains("0.0.0.0/0", "8.8.8.8") && !contains("nonsense", "8.8.8.8"));
    }
}
