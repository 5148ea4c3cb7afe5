//! Nodes and the VMs they run on.

mod address;
mod block_tracking;
mod csi_registered;
mod deletion_risk;
mod disk_latency;
mod disk_uuid;
mod guest_name;
mod hardware;
mod holds_volumes;
mod host;
mod initialised;
mod kubelet_version;
mod listed;
mod multipath;
mod power;
mod provider_id;
mod scsi;
mod tools;
mod topology_set;
mod vm_found;
mod vm_location;
mod vm_snapshots;
mod volume_limit;

use crate::{
    check::Check,
    facts::{InstalledDriver, Workload},
};

pub(super) const CHECKS: &[&Check] = &[
    &listed::CHECK,
    &vm_found::CHECK,
    &vm_location::CHECK,
    &disk_uuid::CHECK,
    &hardware::CHECK,
    &scsi::CHECK,
    &vm_snapshots::CHECK,
    &tools::CHECK,
    &guest_name::CHECK,
    &host::CHECK,
    &provider_id::CHECK,
    &initialised::CHECK,
    &address::CHECK,
    &kubelet_version::CHECK,
    &csi_registered::CHECK,
    &topology_set::CHECK,
    &multipath::CHECK,
    &holds_volumes::CHECK,
    &volume_limit::CHECK,
    &deletion_risk::CHECK,
    &disk_latency::CHECK,
    &block_tracking::CHECK,
    &power::CHECK,
];

/// The workload of the cloud provider as kubectl takes it. Charts give it other names than upstream.
fn cloud_workload(driver: Option<&InstalledDriver>) -> String {
    let workload = driver.and_then(|driver| driver.workloads.first());
    workload
        .map_or_else(|| "daemonset/vsphere-cloud-controller-manager".to_owned(), Workload::argument)
}
