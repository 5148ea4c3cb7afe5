//! `--explain-node`: what the controller makes of a node, and why, in words.

use runtime::error_chain::error_chain;
use std::fmt::Write as _;

use crate::{
    identity::{self, Match},
    initialise, instance_type,
    model::{Node, VirtualMachine},
    vcenter_pool::VcenterPool,
    zones::{Found, Zones},
};

/// The page about a node.
pub fn page(node: &Node, pool: &VcenterPool) -> String {
    let mut page = format!("Node {}\n\n", node.name);
    for (vcenter, trouble) in pool.troubles() {
        let _ = writeln!(page, "  ! {vcenter} is not followed: {trouble}\n");
    }
    let identified = identity::identify(node, pool);
    page.push_str("Machine\n");
    for (rule, count) in &identified.asked {
        let _ = writeln!(page, "  {rule}: {count} found");
    }
    match &identified.outcome {
        Match::Found(vm, rule) => {
            let _ = writeln!(page, "  It is {}, by {rule}.", vm.title());
            describe(&mut page, node, vm, pool);
        }
        Match::Several(vms, rule) => {
            let _ = writeln!(
                page,
                "  {} machines answer to {rule}; it is not decided which:",
                vms.len()
            );
            for vm in vms {
                let _ = writeln!(page, "    {}", vm.title());
            }
        }
        Match::NotFound => page.push_str("  No machine in view.\n"),
        Match::Foreign => {
            let _ = writeln!(
                page,
                "  The provider id {} is another provider's: left alone.",
                node.provider_id
            );
        }
    }
    page
}

fn describe(page: &mut String, node: &Node, vm: &VirtualMachine, pool: &VcenterPool) {
    let power = vm.power.map_or("of unknown power state".into(), |power| power.to_string());
    let _ = writeln!(page, "  It is {power}. Instance type {}.", instance_type::of(vm));
    if let (Some(configuration), Some(pooled)) =
        (pool.configuration(), pool.pooled(&vm.place.vcenter))
    {
        let families = &pooled.settings.families;
        let (addresses, selected) = initialise::addresses(node, vm, &configuration.rules, families);
        page.push_str("\nAddresses\n");
        for reason in &selected.reasons {
            let side = reason.side.as_ref().map_or(String::new(), |side| format!(" for {side:?}"));
            let _ = writeln!(
                page,
                "  {} on \"{}\"{side}: {}",
                reason.address, reason.network, reason.verdict
            );
        }
        if let Some(error) = &selected.metadata {
            let _ = writeln!(page, "  ! {}", error_chain(error));
        }
        match addresses {
            Ok(addresses) => {
                let listed: Vec<String> = addresses.iter().map(ToString::to_string).collect();
                let _ = writeln!(page, "  The node gets {}.", listed.join(", "));
            }
            Err(why) => {
                let _ = writeln!(page, "  ! {}", error_chain(&why));
            }
        }
    }
    page.push_str("\nZone and region\n");
    match pool.zones(vm) {
        None => page.push_str("  ! the tags could not be read\n"),
        Some(zones) => tags(page, &zones),
    }
}

fn tags(page: &mut String, zones: &Zones) {
    let line = |page: &mut String, what: &str, found: &Option<Found>| {
        if let Some(found) = found {
            let _ = writeln!(page, "  {what} {}, from the tag on {}", found.value, found.at);
        }
    };
    line(page, "zone", &zones.zone);
    line(page, "region", &zones.region);
    for missing in &zones.missing {
        let _ = writeln!(page, "  ! {missing}");
    }
    if zones.zone.is_none() && zones.region.is_none() && zones.missing.is_empty() {
        page.push_str("  not configured\n");
    }
}
