//! The functions that do not work while a vCenter is unreachable, although every driver runs.

use api::vdo_config::StorageProvider;

use crate::facts::{Facts, VcenterState};

/// The reason of the conditions while a vCenter is unreachable for less than the grace period.
pub(super) const REASON: &str = "VcenterNotVerified";

/// The vCenters that VDO cannot verify, and what does not work without them. `None` if there is no such vCenter.
pub(super) fn while_unreachable(facts: &Facts) -> Option<String> {
    let failed = facts
        .referenced_vcenters()
        .filter(|(_, vcenter)| matches!(vcenter.state, VcenterState::Failed { .. }));
    let failed: Vec<&str> = failed.map(|(name, _)| name.as_str()).collect();
    let (vcenters, they_are) = match failed.as_slice() {
        [] => return None,
        [_] => ("vCenter", "it is"),
        _ => ("vCenters", "they are"),
    };
    let spec = &facts.config.spec;
    let mut of_storage = spec.storage_provider.iter().flat_map(StorageProvider::vcenters);
    let mut of_cloud = spec.cloud_provider.iter().flat_map(|cloud| &cloud.vsphere_cloud_configs);
    let storage = of_storage.any(|name| failed.contains(&name.0.as_str()));
    let cloud = of_cloud.any(|name| failed.contains(&name.0.as_str()));
    let effects = [
        storage.then_some("volumes are not created, attached or detached"),
        cloud.then_some("new nodes are not initialized"),
    ];
    let effects: Vec<&str> = effects.into_iter().flatten().collect();
    Some(format!(
        "VDO cannot verify the {vcenters} {}. While {they_are} unreachable, {}. The drivers keep running.",
        failed.join(", "),
        effects.join(", and ")
    ))
}
