//! Finds configurations that the CSI driver refuses or fails on.

use super::{CsiConfig, MAX_CLUSTER_ID, MAX_TOPOLOGY_CATEGORIES, MAX_VCENTERS};
use crate::problem::Problem;

/// The allowed domains of a topology label.
const LABEL_DOMAINS: [&str; 3] =
    ["failure-domain.beta.kubernetes.io", "topology.kubernetes.io", "topology.csi.vmware.com"];

pub(super) fn find(config: &CsiConfig) -> Vec<Problem> {
    let mut problems = Vec::new();
    global(config, &mut problems);
    vcenters(config, &mut problems);
    topology(config, &mut problems);
    for (name, rule) in &config.net_permissions {
        if !matches!(rule.permissions.as_str(), "" | "READ_WRITE" | "READ_ONLY" | "NO_ACCESS") {
            let path = format!("[NetPermissions \"{name}\"] permissions");
            let text = "must be READ_WRITE, READ_ONLY or NO_ACCESS";
            problems.push(Problem::refused(path, text));
        }
    }
    problems
}

fn global(config: &CsiConfig, problems: &mut Vec<Problem>) {
    let ids = [
        ("[Global] cluster-id", &config.global.cluster_id),
        ("[Global] supervisor-id", &config.global.supervisor_id),
    ];
    for (path, id) in ids {
        if id.len() > MAX_CLUSTER_ID {
            let text = format!("has {} bytes; at most {MAX_CLUSTER_ID} are allowed", id.len());
            problems.push(Problem::refused(path, text));
        }
    }
    if config.global.cluster_distribution.len() > 128 {
        let text = "has more than 128 bytes, which leaves every claim pending: shorten it";
        problems.push(Problem::later("[Global] cluster-distribution", text));
    }
}

fn vcenters(config: &CsiConfig, problems: &mut Vec<Problem>) {
    let named = config.vcenters.len();
    let implicit = !config.global.vcenter_ip.is_empty()
        && !config.vcenters.contains_key(&config.global.vcenter_ip);
    let count = named + usize::from(implicit);
    if count == 0 {
        let text = "no vCenter is specified: add a section [VirtualCenter \"address\"]";
        problems.push(Problem::refused("[VirtualCenter]", text));
    }
    if count > MAX_VCENTERS {
        let text = format!("{count} vCenters are specified; the driver supports {MAX_VCENTERS}");
        problems.push(Problem::refused("[VirtualCenter]", text));
    }
    if count > 1 && config.labels.topology_categories.is_empty() {
        let text = "is required with more than one vCenter: specify the tag categories";
        problems.push(Problem::refused("[Labels] topology-categories", text));
    }
    for (name, vcenter) in &config.vcenters {
        let (user, password) = config.login(vcenter);
        login(&format!("[VirtualCenter \"{name}\"]"), user, password.is_empty(), problems);
    }
    if implicit {
        let no_password = config.global.password.is_empty();
        login("[Global]", &config.global.user, no_password, problems);
    }
}

fn login(section: &str, user: &str, no_password: bool, problems: &mut Vec<Problem>) {
    if user.is_empty() {
        problems.push(Problem::refused(format!("{section} user"), "is missing: specify the user"));
    } else if !is_qualified(user) {
        let text = "must be fully qualified: name@domain or domain\\name, letters, digits, . _ -";
        problems.push(Problem::refused(format!("{section} user"), text));
    }
    if no_password {
        problems.push(Problem::refused(format!("{section} password"), "is missing"));
    }
}

/// True if the driver accepts a user name: `name@domain` or `domain\name` with a restricted character set.
pub(crate) fn is_qualified(user: &str) -> bool {
    let name = |text: &str| {
        !text.is_empty() && text.bytes().all(|b| b.is_ascii_alphanumeric() || b"._-".contains(&b))
    };
    let domain = |text: &str| name(text) && !text.contains('_');
    match (user.split_once('\\'), user.split_once('@')) {
        (Some((before, after)), _) => domain(before) && name(after),
        (None, Some((before, after))) => name(before) && domain(after),
        (None, None) => false,
    }
}

fn topology(config: &CsiConfig, problems: &mut Vec<Problem>) {
    let labels = &config.labels;
    let categories = labels.topology_categories.len();
    let either = !labels.zone.trim().is_empty() || !labels.region.trim().is_empty();
    if categories > 0 && either {
        let text = "excludes zone and region: remove those two";
        problems.push(Problem::refused("[Labels] topology-categories", text));
    }
    if categories > MAX_TOPOLOGY_CATEGORIES {
        let text = format!("has {categories} items; at most {MAX_TOPOLOGY_CATEGORIES} are allowed");
        problems.push(Problem::refused("[Labels] topology-categories", text));
    }
    if labels.zone.is_empty() != labels.region.is_empty() {
        let text = "zone and region must be set together: set both, or topology-categories";
        problems.push(Problem::later("[Labels]", text));
    }
    for (name, category) in &config.topology_categories {
        let domain = category.label.split('/').next().unwrap_or_default();
        if !LABEL_DOMAINS.contains(&domain) {
            let path = format!("[TopologyCategory \"{name}\"] label");
            let text = "must begin with topology.kubernetes.io/, topology.csi.vmware.com/ or \
                        failure-domain.beta.kubernetes.io/";
            problems.push(Problem::refused(path, text));
        }
    }
}
