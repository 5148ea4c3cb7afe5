//! The definition of our driver for the suite: its abilities.

use serde_json::{Value, json};
use testkit::Workdir;

use crate::cluster::ZONES;

const DRIVER: &str = "csi.vsphere.vmware.com";
/// Fewer than a VM can have, so that the spec that fills a node ends soon.
pub(super) const VOLUMES_PER_NODE: u32 = 24;

/// Writes three definitions: `default`, `xfs` (the file system of volumes that ask for none) and `zones`. With zones,
/// the suite skips the specs that move a pod to another node, because each zone has one node. Our volumes are on a
/// datastore of all zones, so the other definitions do not name them.
pub(super) fn write(workdir: &Workdir) {
    for name in ["default", "xfs", "zones"] {
        let parameters = match name {
            "xfs" => json!({"csi.storage.k8s.io/fstype": "xfs"}),
            _ => json!({}),
        };
        // The scheduler reads free space only for classes that wait for it, so the driver publishes it only for these.
        let binding = if name == "zones" { "WaitForFirstConsumer" } else { "Immediate" };
        let class = json!({
            "apiVersion": "storage.k8s.io/v1", "kind": "StorageClass", "metadata": {"name": "vsphere"},
            "provisioner": DRIVER, "allowVolumeExpansion": true, "parameters": parameters,
            "volumeBindingMode": binding,
        });
        let class = workdir.write(&format!("class-{name}.json"), class.to_string()).unwrap();
        let attributes = json!({
            "apiVersion": "storage.k8s.io/v1", "kind": "VolumeAttributesClass",
            "metadata": {"name": "policy"}, "driverName": DRIVER,
            "parameters": {"storagePolicyName": "vSAN Default Storage Policy"},
        });
        let attributes = workdir.write("attributes.json", attributes.to_string()).unwrap();
        let definition = json!({
            "StorageClass": {"FromFile": class},
            "SnapshotClass": {"FromName": true},
            "VolumeAttributesClass": {"FromFile": attributes},
            "DriverInfo": driver(name == "zones"),
        });
        workdir.write(&format!("driver-{name}.json"), definition.to_string()).unwrap();
    }
}

fn driver(zones: bool) -> Value {
    let keys = if zones { vec![format!("topology.csi.vmware.com/{ZONES}")] } else { Vec::new() };
    json!({
        "Name": DRIVER,
        "SupportedSizeRange": {"Min": "1Gi"},
        "SupportedFsType": {"": {}, "ext3": {}, "ext4": {}, "xfs": {}},
        "SupportedMountOption": {"noatime": {}},
        "RequiredAccessModes": ["ReadWriteOnce"],
        "TopologyKeys": keys,
        "StressTestOptions": {"NumPods": 5, "NumRestarts": 2},
        "VolumeSnapshotStressTestOptions": {"NumPods": 3, "NumSnapshots": 2},
        "VolumeModifyStressTestOptions": {"NumPods": 3},
        "Capabilities": {
            "persistence": true, "block": true, "fsGroup": true, "exec": true, "multipods": true,
            "readWriteOncePod": true, "multiplePVsSameID": true,
            "controllerExpansion": true, "nodeExpansion": true,
            "onlineExpansion": true, "offlineExpansion": true,
            "snapshotDataSource": true, "pvcDataSource": true,
            "volumeLimits": true, "capacity": true, "topology": zones,
            // One disk is attached to one VM at a time.
            "RWX": false, "capReadOnlyMany": false,
        },
    })
}
