//! Finds configurations that the cloud controller refuses or fails on.

use std::net::IpAddr;

use super::{CpiConfig, Global, VirtualCenter};
use crate::problem::Problem;

pub(super) fn find(config: &CpiConfig) -> Vec<Problem> {
    let mut problems = Vec::new();
    if config.vcenters.is_empty() && config.global.server.is_empty() {
        problems
            .push(Problem::refused("vcenter", "no vCenter is specified: add one with its server"));
    }
    for (name, vcenter) in &config.vcenters {
        if name.is_empty() {
            problems.push(Problem::refused("vcenter", "a vCenter has an empty name: specify one"));
        }
        credentials(&format!("vcenter.{name}"), &config.global, vcenter, &mut problems);
        families(&format!("vcenter.{name}.ipFamily"), &vcenter.ip_family, &mut problems);
    }
    let global = &config.global;
    if !global.server.is_empty() && !config.vcenters.contains_key(&global.server) {
        let implicit = VirtualCenter {
            secret_name: global.secret_name.clone(),
            secret_namespace: global.secret_namespace.clone(),
            ..VirtualCenter::default()
        };
        credentials("global", global, &implicit, &mut problems);
    }
    families("global.ipFamily", &config.global.ip_family, &mut problems);
    labels(config, &mut problems);
    subnets(config, &mut problems);
    problems
}

fn credentials(path: &str, global: &Global, own: &VirtualCenter, problems: &mut Vec<Problem>) {
    let secret = !global.secret_name.is_empty() && !global.secret_namespace.is_empty();
    let half = global.secret_name.is_empty() != global.secret_namespace.is_empty();
    let directory = !global.secrets_directory.is_empty();
    let own_secret = !own.secret_name.is_empty() && !own.secret_namespace.is_empty();
    if own_secret || (secret != directory && !half) {
        return;
    }
    let mut missing = |key: &str| {
        let text = if secret && directory {
            "secretName and secretsDirectory are both set in global, so the driver uses neither: \
             keep one"
        } else {
            "no credentials: set secretName and secretNamespace, or user and password"
        };
        problems.push(Problem::refused(format!("{path}.{key}"), text));
    };
    if own.user.is_empty() && global.user.is_empty() {
        missing("user");
    } else if own.password.is_empty() && global.password.is_empty() {
        missing("password");
    }
}

fn families(path: &str, families: &[String], problems: &mut Vec<Problem>) {
    if families.iter().any(|family| family != "ipv4" && family != "ipv6") {
        let text = "only ipv4 and ipv6, in lower case, match any address";
        problems.push(Problem::later(path, text));
    }
}

fn labels(config: &CpiConfig, problems: &mut Vec<Problem>) {
    if config.labels.zone.is_empty() != config.labels.region.is_empty() {
        let text = "zones need both zone and region; with only one of them the driver silently disables zones";
        problems.push(Problem::later("labels", text));
    }
}

fn subnets(config: &CpiConfig, problems: &mut Vec<Problem>) {
    let nodes = &config.nodes;
    let lists = [
        ("internalNetworkSubnetCidr", &nodes.internal_network_subnet_cidr),
        ("externalNetworkSubnetCidr", &nodes.external_network_subnet_cidr),
        ("excludeInternalNetworkSubnetCidr", &nodes.exclude_internal_network_subnet_cidr),
        ("excludeExternalNetworkSubnetCidr", &nodes.exclude_external_network_subnet_cidr),
    ];
    for (key, list) in lists {
        if let Some(bad) = list.iter().find(|subnet| !is_cidr(subnet)) {
            let text = format!("{bad} is not a subnet: write for example 10.0.0.0/16 or fd00::/64");
            problems.push(Problem::later(format!("nodes.{key}"), text));
        }
    }
}

fn is_cidr(text: &str) -> bool {
    let Some((address, length)) = text.split_once('/') else {
        return false;
    };
    let Ok(address) = address.parse::<IpAddr>() else {
        return false;
    };
    let longest = if address.is_ipv4() { 32 } else { 128 };
    length.bytes().all(|b| b.is_ascii_digit()) && length.parse::<u8>().is_ok_and(|n| n <= longest)
}
