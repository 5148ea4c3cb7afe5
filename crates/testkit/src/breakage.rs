//! Faults from the field that can be injected and reverted: one list for tests and the sandbox.

mod site;

pub use self::site::Site;

/// A fault, and the finding that must report it.
#[derive(Clone, Copy, Debug)]
pub struct Breakage {
    /// A short name for the command line.
    pub name: &'static str,
    /// The fault in a few words.
    pub what: &'static str,
    /// The code of the finding.
    pub code: &'static str,
    /// How the fault is injected.
    pub how: &'static str,
    /// vCenter does not notify about the fault: VDO reports it at once only if a check is requested.
    pub asks: bool,
    /// A running cloud controller fixes the fault before VDO reports it.
    pub settles: bool,
    /// The number of the symptom in the benchmark; empty if it is not in the benchmark.
    pub row: &'static str,
    kind: Kind,
}

/// How the fault is injected and reverted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    DiskUuid,
    Hardware,
    Snapshot,
    Tools,
    Maintenance,
    OldHost,
    PowerOff,
    NoVm,
    Copy,
    OtherAddress,
    NoAddress,
    OldKubelet,
    Registration,
    VcenterUnreachable,
    Certificate,
    Password,
    Datacenter,
    VolumeService,
    Privileges,
    NoDatastore,
    NoPolicy,
    Parameter,
    DatastoreUnavailable,
    DatastoreFull,
    FileService,
    LostVolume,
    ImagePull,
    Crash,
    NoTag,
    TagOnVm,
    Moved,
    Labels,
}

impl Breakage {
    pub const ALL: &'static [Self] = ALL;

    pub fn named(name: &str) -> Option<&'static Self> {
        ALL.iter().find(|breakage| breakage.name == name)
    }

    const fn asking(mut self) -> Self {
        self.asks = true;
        self
    }

    const fn row(mut self, row: &'static str) -> Self {
        self.row = row;
        self
    }

    const fn settling(mut self) -> Self {
        self.settles = true;
        self
    }
}

const fn breakage(
    name: &'static str,
    code: &'static str,
    what: &'static str,
    how: &'static str,
    kind: Kind,
) -> Breakage {
    Breakage { name, what, code, how, asks: false, settles: false, row: "", kind }
}

const ALL: &[Breakage] = &[
    breakage(
        "disk-uuid",
        "VDO-1203",
        "disk ids hidden",
        "disk.EnableUUID is turned off on the VM of a node",
        Kind::DiskUuid,
    )
    .row("18"),
    breakage(
        "hardware",
        "VDO-1204",
        "old hardware",
        "the VM of a node is of hardware version 11",
        Kind::Hardware,
    )
    .row("19"),
    breakage(
        "snapshot",
        "VDO-1207",
        "VM snapshot",
        "a backup tool leaves a snapshot on the VM of a node",
        Kind::Snapshot,
    )
    .row("25"),
    breakage(
        "tools",
        "VDO-1208",
        "tools not running",
        "VMware Tools stop in the VM of a node",
        Kind::Tools,
    ),
    breakage(
        "maintenance",
        "VDO-1213",
        "host in maintenance",
        "the ESXi host of a node enters maintenance mode",
        Kind::Maintenance,
    ),
    breakage(
        "old-host",
        "VDO-1212",
        "old host",
        "the ESXi host of a node is a 6.5 that was never upgraded",
        Kind::OldHost,
    ),
    breakage(
        "power-off",
        "VDO-1230",
        "VM off",
        "the VM of a node is powered off in vCenter",
        Kind::PowerOff,
    ),
    breakage(
        "no-vm",
        "VDO-1201",
        "VM not found",
        "the VM of a node gets another BIOS uuid",
        Kind::NoVm,
    )
    .row("3"),
    breakage(
        "copy",
        "VDO-1202",
        "VM copied",
        "the VM of a node is copied with its uuid",
        Kind::Copy,
    ),
    breakage(
        "other-address",
        "VDO-1218",
        "other address",
        "a kubelet is started with a --node-ip its VM does not have",
        Kind::OtherAddress,
    )
    .row("CPI-4"),
    breakage(
        "no-address",
        "VDO-1219",
        "no address",
        "the VM of a node loses its network cards",
        Kind::NoAddress,
    ),
    breakage("kubelet", "VDO-1220", "old kubelet", "a node runs kubelet 1.20", Kind::OldKubelet),
    breakage(
        "registration",
        "VDO-1222",
        "stale registration",
        "the storage driver of a node is registered under the uuid of another VM",
        Kind::Registration,
    ),
    breakage(
        "vcenter-unreachable",
        "VDO-1301",
        "vCenter unreachable",
        "a firewall cuts every connection to vCenter",
        Kind::VcenterUnreachable,
    ),
    breakage(
        "certificate",
        "VDO-1302",
        "other certificate",
        "the thumbprint in the VsphereCloudConfig is not that of vCenter",
        Kind::Certificate,
    ),
    breakage(
        "password",
        "VDO-1305",
        "wrong password",
        "the Secret holds a password that vCenter refuses",
        Kind::Password,
    )
    .row("13"),
    breakage(
        "datacenter",
        "VDO-1315",
        "no such datacenter",
        "the VsphereCloudConfig names a datacenter that does not exist",
        Kind::Datacenter,
    ),
    breakage(
        "volume-service",
        "VDO-1313",
        "volume service down",
        "vCenter's volume service (CNS) fails every query",
        Kind::VolumeService,
    )
    .asking()
    .row("39"),
    breakage(
        "privileges",
        "VDO-1401",
        "privileges taken away",
        "an admin gives VDO's account a read-only role",
        Kind::Privileges,
    )
    .asking()
    .row("37"),
    breakage(
        "no-datastore",
        "VDO-1503",
        "class names no datastore",
        "a StorageClass names a datastore that does not exist",
        Kind::NoDatastore,
    ),
    breakage(
        "no-policy",
        "VDO-1505",
        "class names no policy",
        "a StorageClass names a storage policy that does not exist",
        Kind::NoPolicy,
    ),
    breakage(
        "parameter",
        "VDO-1507",
        "class with odd parameter",
        "a StorageClass has a parameter the driver does not know",
        Kind::Parameter,
    ),
    breakage(
        "datastore-unavailable",
        "VDO-1508",
        "datastore unavailable",
        "a datastore is no longer accessible",
        Kind::DatastoreUnavailable,
    ),
    breakage(
        "datastore-full",
        "VDO-1509",
        "datastore full",
        "a datastore has 1 GiB left",
        Kind::DatastoreFull,
    ),
    breakage(
        "file-service",
        "VDO-1511",
        "no file service",
        "a claim requests ReadWriteMany without a vSAN file service",
        Kind::FileService,
    )
    .row("38"),
    breakage(
        "lost-volume",
        "VDO-1515",
        "volume unknown to vcenter",
        "a PersistentVolume refers to a disk that vCenter does not know",
        Kind::LostVolume,
    )
    .asking(),
    breakage(
        "image-pull",
        "VDO-1603",
        "image not pulled",
        "the image of the storage controller cannot be pulled",
        Kind::ImagePull,
    ),
    breakage("crash", "VDO-1604", "driver crashes", "the storage controller crashes", Kind::Crash),
    breakage(
        "no-tag",
        "VDO-1702",
        "tag missing",
        "the zone tag is removed from a cluster of hosts",
        Kind::NoTag,
    )
    .asking()
    .row("33"),
    breakage(
        "tag-on-vm",
        "VDO-1704",
        "tag on a VM",
        "a zone tag is attached to the VM of a node",
        Kind::TagOnVm,
    )
    .asking(),
    breakage(
        "moved",
        "VDO-1705",
        "VM moved to another zone",
        "a node has the label of another zone than its VM",
        Kind::Moved,
    )
    .settling(),
    breakage(
        "labels",
        "VDO-1706",
        "labels contradict",
        "the old and the new region label of a node differ",
        Kind::Labels,
    )
    .settling()
    .row("34"),
];

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn every_breakage_has_a_unique_name_and_fault() {
        let names: BTreeSet<&str> = ALL.iter().map(|breakage| breakage.name).collect();
        let kinds: BTreeSet<String> = ALL.iter().map(|b| format!("{:?}", b.kind)).collect();
        assert_eq!((names.len(), kinds.len()), (ALL.len(), ALL.len()));
        assert!(ALL.len() >= 25);
        assert!(Breakage::named("disk-uuid").is_some() && Breakage::named("disk").is_none());
    }
}
