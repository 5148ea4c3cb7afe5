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
    VcenterAway,
    Certificate,
    Password,
    Datacenter,
    VolumeService,
    Privileges,
    NoDatastore,
    NoPolicy,
    Parameter,
    DatastoreAway,
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

const fn of(
    name: &'static str,
    code: &'static str,
    what: &'static str,
    how: &'static str,
    kind: Kind,
) -> Breakage {
    Breakage { name, what, code, how, asks: false, settles: false, row: "", kind }
}

const ALL: &[Breakage] = &[
    of(
        "disk-uuid",
        "VDO-1203",
        "disk ids hidden",
        "disk.EnableUUID is turned off on the VM of a node",
        Kind::DiskUuid,
    )
    .row("18"),
    of(
        "hardware",
        "VDO-1204",
        "old hardware",
        "the VM of a node is of hardware version 11",
        Kind::Hardware,
    )
    .row("19"),
    of(
        "snapshot",
        "VDO-1207",
        "machine snapshot",
        "a backup tool leaves a snapshot on the VM of a node",
        Kind::Snapshot,
    )
    .row("25"),
    of(
        "tools",
        "VDO-1208",
        "tools not running",
        "VMware Tools stop in the VM of a node",
        Kind::Tools,
    ),
    of(
        "maintenance",
        "VDO-1213",
        "host in maintenance",
        "the ESXi host of a node enters maintenance mode",
        Kind::Maintenance,
    ),
    of(
        "old-host",
        "VDO-1212",
        "old host",
        "the ESXi host of a node is a 6.5 that was never upgraded",
        Kind::OldHost,
    ),
    of(
        "power-off",
        "VDO-1230",
        "machine off",
        "the VM of a node is powered off in vCenter",
        Kind::PowerOff,
    ),
    of(
        "no-machine",
        "VDO-1201",
        "machine not found",
        "the VM of a node gets another BIOS uuid",
        Kind::NoVm,
    )
    .row("3"),
    of(
        "copy",
        "VDO-1202",
        "machine copied",
        "the VM of a node is copied with its uuid",
        Kind::Copy,
    ),
    of(
        "other-address",
        "VDO-1218",
        "other address",
        "a kubelet is started with a --node-ip its VM does not have",
        Kind::OtherAddress,
    )
    .row("CPI-4"),
    of(
        "no-address",
        "VDO-1219",
        "no address",
        "the VM of a node loses its network cards",
        Kind::NoAddress,
    ),
    of("kubelet", "VDO-1220", "old kubelet", "a node runs kubelet 1.20", Kind::OldKubelet),
    of(
        "registration",
        "VDO-1222",
        "stale registration",
        "the storage driver of a node is registered under the uuid of another VM",
        Kind::Registration,
    ),
    of(
        "vcenter-away",
        "VDO-1301",
        "vcenter away",
        "a firewall cuts every connection to vCenter",
        Kind::VcenterAway,
    ),
    of(
        "certificate",
        "VDO-1302",
        "other certificate",
        "the thumbprint in the VsphereCloudConfig is not that of vCenter",
        Kind::Certificate,
    ),
    of(
        "password",
        "VDO-1305",
        "wrong password",
        "the Secret holds a password that vCenter refuses",
        Kind::Password,
    )
    .row("13"),
    of(
        "datacenter",
        "VDO-1315",
        "no such datacenter",
        "the VsphereCloudConfig names a datacenter that does not exist",
        Kind::Datacenter,
    ),
    of(
        "volume-service",
        "VDO-1313",
        "volume service down",
        "vCenter's volume service (CNS) fails every query",
        Kind::VolumeService,
    )
    .asking()
    .row("39"),
    of(
        "privileges",
        "VDO-1401",
        "privileges taken away",
        "an admin gives VDO's account a read-only role",
        Kind::Privileges,
    )
    .asking()
    .row("37"),
    of(
        "no-datastore",
        "VDO-1503",
        "class names no datastore",
        "a StorageClass names a datastore that does not exist",
        Kind::NoDatastore,
    ),
    of(
        "no-policy",
        "VDO-1505",
        "class names no policy",
        "a StorageClass names a storage policy that does not exist",
        Kind::NoPolicy,
    ),
    of(
        "parameter",
        "VDO-1507",
        "class with odd parameter",
        "a StorageClass has a parameter the driver does not know",
        Kind::Parameter,
    ),
    of(
        "datastore-away",
        "VDO-1508",
        "datastore away",
        "a datastore is no longer accessible",
        Kind::DatastoreAway,
    ),
    of(
        "datastore-full",
        "VDO-1509",
        "datastore full",
        "a datastore has 1 GiB left",
        Kind::DatastoreFull,
    ),
    of(
        "file-service",
        "VDO-1511",
        "no file service",
        "a claim requests ReadWriteMany without a vSAN file service",
        Kind::FileService,
    )
    .row("38"),
    of(
        "lost-volume",
        "VDO-1515",
        "volume unknown to vcenter",
        "a PersistentVolume refers to a disk that vCenter does not know",
        Kind::LostVolume,
    )
    .asking(),
    of(
        "image-pull",
        "VDO-1603",
        "image not pulled",
        "the image of the storage controller cannot be pulled",
        Kind::ImagePull,
    ),
    of("crash", "VDO-1604", "driver crashes", "the storage controller crashes", Kind::Crash),
    of(
        "no-tag",
        "VDO-1702",
        "tag missing",
        "the zone tag is removed from a cluster of hosts",
        Kind::NoTag,
    )
    .asking()
    .row("33"),
    of(
        "tag-on-machine",
        "VDO-1704",
        "tag on a machine",
        "a zone tag is attached to the VM of a node",
        Kind::TagOnVm,
    )
    .asking(),
    of(
        "moved",
        "VDO-1705",
        "machine moved to another zone",
        "a node has the label of another zone than its VM",
        Kind::Moved,
    )
    .settling(),
    of(
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
