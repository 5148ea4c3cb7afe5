//! Maps the checks of other tools and the requirements of the drivers' documentation to the findings of VDO.

/// A check of another tool, and its counterpart in VDO.
pub(crate) struct Covered {
    /// The other tool or document.
    pub(crate) by: &'static str,
    /// The name of the check there.
    pub(crate) name: &'static str,
    /// The findings of VDO.
    pub(crate) codes: &'static [&'static str],
    /// The reason why VDO has no finding for it.
    pub(crate) note: &'static str,
}

const fn covered(by: &'static str, name: &'static str, codes: &'static [&'static str]) -> Covered {
    Covered { by, name, codes, note: "" }
}

const fn not_needed(by: &'static str, name: &'static str, note: &'static str) -> Covered {
    Covered { by, name, codes: &[], note }
}

const DETECTOR: &str = "vsphere-problem-detector";
const OPERATOR: &str = "vmware-vsphere-csi-driver-operator";
const PREREQUISITE: &str = "prerequisites of the storage driver";

pub(crate) const COVERAGE: &[Covered] = &[
    covered(DETECTOR, "CheckTaskPermissions", &["VDO-1406"]),
    covered(DETECTOR, "ClusterInfo", &["VDO-1310", "VDO-1311"]),
    not_needed(
        DETECTOR,
        "CheckFolderPermissions",
        "browses the folder of a driver Kubernetes no longer has; the drivers of today do not browse datastores",
    ),
    covered(DETECTOR, "CheckDefaultDatastore", &["VDO-1402", "VDO-1508"]),
    covered(DETECTOR, "CheckStorageClasses", &["VDO-1402", "VDO-1503", "VDO-1505", "VDO-1506"]),
    not_needed(DETECTOR, "CountVolumeTypes", "a statistic, not a check"),
    covered(DETECTOR, "CheckAccountPermissions", &["VDO-1401", "VDO-1402", "VDO-1403", "VDO-1404"]),
    covered(DETECTOR, "CheckZoneTags", &["VDO-1701", "VDO-1702"]),
    covered(DETECTOR, "CheckHostGroups", &["VDO-1708"]),
    covered(DETECTOR, "CheckInfraConfig", &["VDO-1807"]),
    covered(DETECTOR, "CheckDatacenterConsistency", &["VDO-1315", "VDO-1807"]),
    covered(DETECTOR, "node's VM by uuid", &["VDO-1201", "VDO-1202"]),
    covered(DETECTOR, "CheckNodeDiskUUID", &["VDO-1203", "VDO-1231"]),
    covered(DETECTOR, "CheckNodeProviderID", &["VDO-1216", "VDO-1217"]),
    covered(DETECTOR, "CollectNodeHWVersion", &["VDO-1204"]),
    covered(DETECTOR, "CollectNodeESXiVersion", &["VDO-1212"]),
    not_needed(
        DETECTOR,
        "CheckNodePerf",
        "not done: vCenter's statistics have to be polled, and slow disks of control plane nodes hurt etcd, not the drivers",
    ),
    covered(DETECTOR, "CheckComputeClusterPermissions", &["VDO-1404", "VDO-1405"]),
    not_needed(DETECTOR, "CheckResourcePoolPermissions", "for making VMs; the drivers make none"),
    covered(DETECTOR, "CollectNodeCBT", &["VDO-1229"]),
    covered(DETECTOR, "SyncError, InvalidCredentials", &["VDO-1301", "VDO-1305"]),
    covered(DETECTOR, "UsernameWithNewLine, PasswordWithNewLine", &["VDO-1005"]),
    covered(DETECTOR, "UsernameWithoutDomain", &["VDO-1307"]),
    covered(OPERATOR, "existing_driver_found", &["VDO-1617"]),
    covered(OPERATOR, "check_deprecated_vcenter", &["VDO-1310", "VDO-1311"]),
    covered(OPERATOR, "check_deprecated_hw_version", &["VDO-1204"]),
    covered(OPERATOR, "check_deprecated_esxi_version, block_volume_limit_error", &["VDO-1212"]),
    covered(OPERATOR, "non_vsphere_node", &["VDO-1223"]),
    covered(OPERATOR, "vsphere_connection_failed", &["VDO-1301", "VDO-1302", "VDO-1305"]),
    covered(OPERATOR, "vcenter_api_error", &["VDO-1201", "VDO-1313"]),
    covered(OPERATOR, "openshift_api_error", &["VDO-1803"]),
    covered(
        PREREQUISITE,
        "hardware version 15, disk.EnableUUID, VMware Tools",
        &["VDO-1203", "VDO-1204", "VDO-1208"],
    ),
    covered(PREREQUISITE, "paravirtual SCSI, no snapshots of node VMs", &["VDO-1206", "VDO-1207"]),
    covered(PREREQUISITE, "a shared datastore", &["VDO-1501", "VDO-1502"]),
    covered(
        PREREQUISITE,
        "the five roles",
        &["VDO-1401", "VDO-1402", "VDO-1403", "VDO-1404", "VDO-1405"],
    ),
    covered(
        PREREQUISITE,
        "kubelet --cloud-provider=external, the taint",
        &["VDO-1216", "VDO-1217"],
    ),
    covered(PREREQUISITE, "labels of the control plane", &["VDO-1601"]),
    covered(PREREQUISITE, "tag categories and tags", &["VDO-1701", "VDO-1702", "VDO-1704"]),
    covered(PREREQUISITE, "vSAN file service", &["VDO-1405", "VDO-1511"]),
    covered(PREREQUISITE, "vCenter reachable on 443", &["VDO-1301"]),
];
