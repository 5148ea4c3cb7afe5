//! The facts that the checks read, as plain data.
//!
//! ```text
//!   Facts ─┬─ wanted     the desired state of the drivers
//!          ├─ cluster    platform, nodes, drivers' pods, leases, webhooks, permissions
//!          ├─ storage    StorageClasses, volumes, attachments, CNS
//!          ├─ vcenters   each with its state, privileges and inventory
//!          └─ operator   catalog, conflicts, acknowledgements
//! ```
//!
//! The operator and `vdoctl doctor` collect these facts; the checks read nothing else, and the rules in
//! `plan` read the same nodes. A fact that they could not collect is [`Known::Unknown`] with the reason, so
//! that no check takes it for fine.

mod cluster;
mod driver;
mod inventory;
mod known;
mod node;
mod operator;
mod platform;
mod storage;
mod vcenter;
mod version;
mod wanted;

use std::collections::BTreeMap;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

pub use cluster::{AccessReview, Certificate, Cluster, Lease, NetworkPlugin, OpenShift, Webhook};
pub use driver::{
    Container, DriverAccount, Drivers, Event, InstalledDriver, Permission, Pod, Waiting, Workload,
};
pub use inventory::{
    Datacenter, Datastore, Host, HostGroup, Inventory, Nic, Power, ScsiController, StoragePolicy,
    Tag, Tags, Tools, Vm,
};
pub use known::Known;
pub use node::{
    CsiEntry, MICROK8S_CONTROL_PLANE, MountFailure, Node, PLATFORM_LABEL, VSPHERE_LABEL,
    control_plane, is_embedded_id, is_foreign_id, is_labelled_foreign,
};
pub use operator::{
    Acknowledged, CatalogState, CatalogTrouble, CatalogTroubleKind, Conflict, Operator,
};
pub use platform::Platform;
pub use storage::{
    Attachment, Claim, ClusterIds, CnsVolume, Orphans, Storage, StorageClass, Volume,
    VolumeSnapshots,
};
pub use vcenter::{
    About, CredentialState, Entity, EntityKind, Grants, Login, Reach, Service, ServiceState,
    Sessions, Tls, Vcenter,
};
pub use version::Version;
pub use wanted::{Wanted, WantedCloud, WantedStorage};

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Facts {
    /// The time of the facts. The checks use no other clock.
    pub now: Timestamp,
    pub wanted: Wanted,
    pub cluster: Cluster,
    pub storage: Storage,
    /// Every configured vCenter, by the name of its VsphereCloudConfig.
    pub vcenters: BTreeMap<String, Vcenter>,
    pub operator: Operator,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn facts_survive_being_written_and_read() {
        for platform in Platform::ALL {
            let facts = crate::sample::cluster(platform);
            let text = serde_json::to_string(&facts).unwrap();
            assert_eq!(serde_json::from_str::<Facts>(&text).unwrap(), facts);
        }
        assert_eq!(serde_json::from_str::<Facts>("{}").unwrap(), Facts::default());
    }
}
