//! Translates the desired state of the drivers into facts for the checks.

use std::collections::BTreeSet;

use api::{
    VDOConfigSpec,
    vdo_config::{IpFamily, Mode, NodeDeletion, Remedy, Repair},
};
use health::facts::{Acknowledged, Wanted, WantedCloud, WantedStorage};

/// The storage driver's default limit of snapshots per volume.
const SNAPSHOTS_PER_VOLUME: u32 = 3;

/// Reads the desired state from a VDOConfig. `kubelet_path` is the directory where the platform keeps the
/// kubelet's files.
pub fn wanted(spec: &VDOConfigSpec, kubelet_path: &str) -> Wanted {
    Wanted {
        read: ().into(),
        cloud: cloud(spec),
        storage: storage(spec, kubelet_path),
        sets_disk_uuid: spec.remedy(Repair::DiskUuid) == Remedy::Fix,
    }
}

/// Asks for both drivers with default settings, for a cluster without a VDOConfig. The checks know that no
/// VDOConfig exists, and judge no setting by these defaults.
pub fn both(vcenters: &BTreeSet<String>, kubelet_path: &str) -> Wanted {
    let cloud = WantedCloud {
        vcenters: vcenters.clone(),
        ipv4: true,
        ipv6: true,
        assumed: true,
        ..WantedCloud::default()
    };
    let storage = WantedStorage {
        vcenters: vcenters.clone(),
        snapshots_per_volume: SNAPSHOTS_PER_VOLUME,
        kubelet_path: kubelet_path.to_owned(),
        assumed: true,
        ..WantedStorage::default()
    };
    Wanted { read: ().into(), cloud: Some(cloud), storage: Some(storage), sets_disk_uuid: false }
}

fn cloud(spec: &VDOConfigSpec) -> Option<WantedCloud> {
    let cloud = spec.cloud_provider.as_ref().filter(|cloud| cloud.mode != Some(Mode::Removed))?;
    let vcenters: BTreeSet<String> =
        cloud.vsphere_cloud_configs.iter().map(|name| name.0.clone()).collect();
    if vcenters.is_empty() && cloud.mode.is_none() {
        return None;
    }
    let topology = cloud.topology.as_ref().filter(|topology| topology.is_set());
    let category = |name: &str| (!name.is_empty()).then(|| name.to_owned());
    let nodes = cloud.nodes.as_ref();
    let families = nodes.map(|nodes| nodes.ip_families.as_slice()).unwrap_or_default();
    Some(WantedCloud {
        vcenters,
        zone: topology.and_then(|topology| category(&topology.zone)),
        region: topology.and_then(|topology| category(&topology.region)),
        internal_subnets: nodes
            .iter()
            .flat_map(|nodes| &nodes.internal_subnets)
            .map(|subnet| subnet.0.clone())
            .collect(),
        excluded_subnets: nodes
            .iter()
            .flat_map(|nodes| &nodes.exclude_internal_subnets)
            .map(|subnet| subnet.0.clone())
            .collect(),
        ipv4: families.is_empty() || families.contains(&IpFamily::IPv4),
        ipv6: families.contains(&IpFamily::IPv6),
        internal_network: nodes.and_then(|nodes| nodes.internal_network.clone()),
        keeps_nodes: cloud.node_deletion == Some(NodeDeletion::Never),
        assumed: false,
    })
}

fn storage(spec: &VDOConfigSpec, kubelet_path: &str) -> Option<WantedStorage> {
    let storage =
        spec.storage_provider.as_ref().filter(|storage| storage.mode != Some(Mode::Removed))?;
    let number = |number: Option<i32>| number.and_then(|number| u32::try_from(number).ok());
    let snapshots = storage.snapshots.as_ref();
    let most = snapshots.and_then(|snapshots| number(snapshots.max_per_volume));
    let custom = storage.custom_kubelet_path.as_ref().map(|path| path.0.clone());
    Some(WantedStorage {
        vcenters: storage.vcenters().into_iter().map(|name| name.0.clone()).collect(),
        categories: spec.topology_categories().into_iter().map(str::to_owned).collect(),
        file_volumes: storage.file_volumes.is_some(),
        snapshots: snapshots.is_some(),
        snapshots_per_volume: most.unwrap_or(SNAPSHOTS_PER_VOLUME),
        volumes_per_node: number(storage.max_volumes_per_node),
        kubelet_path: custom.unwrap_or_else(|| kubelet_path.to_owned()),
        assumed: false,
    })
}

/// The findings that an admin acknowledged.
pub fn acknowledged(spec: &VDOConfigSpec) -> Vec<Acknowledged> {
    let all = spec.acknowledgements.iter();
    all.map(|one| Acknowledged {
        code: one.code.clone(),
        object: one.object.clone(),
        reason: one.reason.clone(),
        until: one.until.as_ref().map(|until| until.0),
    })
    .collect()
}
