//! What was observed, as plain data.
//!
//! ```text
//!   Facts ─┬─ wanted     what the drivers are asked to do
//!          ├─ cluster    platform, nodes, drivers' pods, leases, webhooks, rights
//!          ├─ storage    StorageClasses, volumes, attachments, CNS
//!          ├─ vcenters   each with its answers, its privileges and its inventory
//!          └─ operator   catalog, pause, fights, acknowledgements
//! ```
//!
//! Whoever observes fills this in; the checks read it and nothing else. What could not be observed is
//! [`Known::Unknown`] with the reason, so that a check can say "cannot tell" and never "fine".

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

pub use cluster::{AccessReview, Certificate, Cluster, Lease, Network, OpenShift, Webhook};
pub use driver::{Container, Driver, Drivers, Event, Pod, Waiting, Workload};
pub use inventory::{
    Datacenter, Datastore, Host, HostGroup, Inventory, Nic, Policy, Power, ScsiController, Tag,
    Tags, Tools, Vm,
};
pub use known::Known;
pub use node::{
    CsiEntry, Node, PLATFORM_LABEL, VSPHERE_LABEL, is_embedded_id, is_foreign_id, is_told_foreign,
};
pub use operator::{Acknowledged, CatalogState, Conflict, Operator};
pub use platform::Platform;
pub use storage::{
    Attachment, Claim, ClusterId, CnsVolume, Orphans, Snapshots, Storage, StorageClass, Volume,
};
pub use vcenter::{
    About, Entity, EntityKind, Grants, Login, Reach, Service, ServiceState, Sessions, Tls, Vcenter,
};
pub use version::Version;
pub use wanted::{Wanted, WantedCloud, WantedStorage};

/// Everything the checks look at.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Facts {
    /// When this was true. The checks know no other clock.
    pub now: Timestamp,
    /// What the drivers are asked to do.
    pub wanted: Wanted,
    /// The Kubernetes side.
    pub cluster: Cluster,
    /// Volumes, as Kubernetes and as CNS see them.
    pub storage: Storage,
    /// Every configured vCenter, by the name of its object.
    pub vcenters: BTreeMap<String, Vcenter>,
    /// The operator itself.
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
