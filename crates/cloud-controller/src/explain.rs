//! `--explain-node`: what the controller makes of a node, and why, in words.

use runtime::story::story;
use std::fmt::Write as _;

use crate::{
    fleet::Fleet,
    identity::{self, Match},
    initialise, instance_type,
    model::{Machine, Node},
    zones::{Found, Zones},
};

/// The page about a node.
pub fn page(node: &Node, fleet: &Fleet) -> String {
    let mut page = format!("Node {}\n\n", node.name);
    for (vcenter, trouble) in fleet.troubles() {
        let _ = writeln!(page, "  ! {vcenter} is not followed: {trouble}\n");
    }
    let identified = identity::identify(node, fleet);
    page.push_str("Machine\n");
    for (rule, count) in &identified.asked {
        let _ = writeln!(page, "  {rule}: {count} found");
    }
    match &identified.outcome {
        Match::Found(machine, rule) => {
            let _ = writeln!(page, "  It is {}, by {rule}.", machine.title());
            describe(&mut page, node, machine, fleet);
        }
        Match::Several(machines, rule) => {
            let _ = writeln!(
                page,
                "  {} machines answer to {rule}; it is not decided which:",
                machines.len()
            );
            for machine in machines {
                let _ = writeln!(page, "    {}", machine.title());
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

fn describe(page: &mut String, node: &Node, machine: &Machine, fleet: &Fleet) {
    let power = machine.power.map_or("of unknown power state".into(), |power| power.to_string());
    let _ = writeln!(page, "  It is {power}. Instance type {}.", instance_type::of(machine));
    if let (Some(configuration), Some(member)) =
        (fleet.configuration(), fleet.member(&machine.place.vcenter))
    {
        let families = &member.settings.families;
        let (addresses, selected) =
            initialise::addresses(node, machine, &configuration.rules, families);
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
            let _ = writeln!(page, "  ! {}", story(error));
        }
        match addresses {
            Ok(addresses) => {
                let listed: Vec<String> = addresses.iter().map(ToString::to_string).collect();
                let _ = writeln!(page, "  The node gets {}.", listed.join(", "));
            }
            Err(why) => {
                let _ = writeln!(page, "  ! {}", story(&why));
            }
        }
    }
    page.push_str("\nZone and region\n");
    match fleet.zones(machine) {
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
