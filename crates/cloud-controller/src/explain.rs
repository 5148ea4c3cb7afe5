//! `--explain-node`: which VM, addresses and zone a node gets, and why.

use runtime::error_chain::error_chain;
use std::fmt::Write as _;

use crate::{
    identity::{self, Match},
    initialise, instance_type,
    model::{Node, VirtualMachine},
    vcenter_pool::VcenterPool,
    zones::{ZoneTag, Zones},
};

pub fn explain(node: &Node, pool: &VcenterPool) -> String {
    let mut text = format!("Node {}\n\n", node.name);
    for (vcenter, problem) in pool.problems() {
        let _ = writeln!(text, "  ! {vcenter} is unavailable: {problem}\n");
    }
    let identified = identity::identify(node, pool);
    text.push_str("VM\n");
    for (rule, count) in &identified.attempts {
        let _ = writeln!(text, "  {rule}: {count} found");
    }
    match &identified.outcome {
        Match::Found(vm, rule) => {
            let _ = writeln!(text, "  It is {}, by {rule}.", vm.title());
            describe(&mut text, node, vm, pool);
        }
        Match::Several(vms, rule) => {
            let _ = writeln!(text, "  {} VMs match {rule}, so the VM is ambiguous:", vms.len());
            for vm in vms {
                let _ = writeln!(text, "    {}", vm.title());
            }
        }
        Match::NotFound => text.push_str("  No visible VM.\n"),
        Match::Foreign => {
            let _ = writeln!(
                text,
                "  The provider id {} belongs to another provider: the controller ignores the node.",
                node.provider_id
            );
        }
    }
    text
}

fn describe(text: &mut String, node: &Node, vm: &VirtualMachine, pool: &VcenterPool) {
    let power = vm.power.map_or("in an unknown power state".into(), |power| power.to_string());
    let _ = writeln!(text, "  It is {power}. Instance type {}.", instance_type::for_vm(vm));
    describe_addresses(text, node, vm, pool);
    text.push_str("\nZone and region\n");
    match pool.zones(vm) {
        None => text.push_str("  ! the tags could not be read\n"),
        Some(zones) => describe_zones(text, &zones),
    }
}

fn describe_addresses(text: &mut String, node: &Node, vm: &VirtualMachine, pool: &VcenterPool) {
    let Some(configuration) = pool.configuration() else { return };
    let Some(pooled) = pool.pooled(&vm.vm_ref.vcenter) else { return };
    let families = &pooled.settings.families;
    let (addresses, selected) = initialise::addresses(node, vm, &configuration.rules, families);
    text.push_str("\nAddresses\n");
    for reason in &selected.reasons {
        let side = reason.side.as_ref().map_or(String::new(), |side| format!(" for {side:?}"));
        let (address, network, verdict) = (reason.address, &reason.network, &reason.verdict);
        let _ = writeln!(text, "  {address} on \"{network}\"{side}: {verdict}");
    }
    if let Some(error) = &selected.metadata_error {
        let _ = writeln!(text, "  ! {}", error_chain(error));
    }
    let _ = match addresses {
        Ok(addresses) => {
            let listed: Vec<String> = addresses.iter().map(ToString::to_string).collect();
            writeln!(text, "  The node gets {}.", listed.join(", "))
        }
        Err(why) => writeln!(text, "  ! {}", error_chain(&why)),
    };
}

fn describe_zones(text: &mut String, zones: &Zones) {
    let line = |text: &mut String, what: &str, found: &Option<ZoneTag>| {
        if let Some(found) = found {
            let _ = writeln!(text, "  {what} {}, from the tag on {}", found.value, found.at);
        }
    };
    line(text, "zone", &zones.zone);
    line(text, "region", &zones.region);
    for missing in &zones.missing {
        let _ = writeln!(text, "  ! {missing}");
    }
    if zones.zone.is_none() && zones.region.is_none() && zones.missing.is_empty() {
        text.push_str("  not configured\n");
    }
}
