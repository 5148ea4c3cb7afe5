//! The objects of an inventory. Adding a property is one line here: its name, its type, where
//! vCenter keeps it.

use std::net::IpAddr;
use std::sync::Arc;

use jiff::Timestamp;

use super::parts::{DatastoreHostMount, Devices, ExtraConfig, GuestNic, SnapshotInfo};
use crate::collector::managed::Mask;
use crate::collector::{Managed, managed};
use crate::ids::{BiosUuid, InstanceUuid};
use crate::moref::MoRef;
use crate::xml::XmlError;
use crate::xml::codec::wire_enum;
use crate::xml::reader::{Reader, Start};

managed! {
    /// A virtual machine.
    pub struct Vm of VirtualMachine {
        /// Who it is and where it stands in the tree.
        IDENTITY {
            /// The name in the inventory.
            name: Box<str> = "name",
            /// The folder.
            parent: MoRef = "parent",
            /// What the guest sees as its hardware's uuid. A watch keeps the last one known: vCenter
            /// loses it while the machine is out of its sight.
            bios_uuid: BiosUuid = "config.uuid",
            /// What vCenter tells it apart by; kept likewise.
            instance_uuid: InstanceUuid = "config.instanceUuid",
            /// Whether it is only a pattern for others.
            template: bool = "config.template",
        }
        /// How it is built.
        CONFIG {
            /// The hardware version, `vmx-19`.
            hardware_version: Box<str> = "config.version",
            /// The guest's operating system, as configured.
            guest_id: Box<str> = "config.guestId",
            /// Virtual processors.
            cpus: i32 = "config.hardware.numCPU",
            /// Memory.
            memory_mib: i32 = "config.hardware.memoryMB",
            /// Whether the guest can see the ids of its disks, as its flags say. `disk.EnableUUID`
            /// in the extra configuration says the same.
            disk_uuid_enabled: bool = "config.flags.diskUuidEnabled",
            /// Where its files are.
            path_name: Box<str> = "config.files.vmPathName",
        }
        /// Whether backups may ask for what changed.
        BLOCK_TRACKING {
            /// Whether changed blocks are tracked.
            tracks_blocks: bool = "config.changeTrackingEnabled",
        }
        /// The advanced options.
        EXTRA_CONFIG {
            /// Key and value, as set.
            extra_config: ExtraConfig = "config.extraConfig",
        }
        /// What its guest reports.
        GUEST {
            /// The guest's own name.
            host_name: Box<str> = "guest.hostName",
            /// The address that VMware Tools consider the main one.
            ip_address: Box<str> = "guest.ipAddress",
            /// Its interfaces.
            nics: Box<[GuestNic]> = "guest.net",
            /// Whether VMware Tools run.
            tools_running: ToolsRunning = "guest.toolsRunningStatus",
            /// Which VMware Tools, in vCenter's word.
            tools_version: Box<str> = "guest.toolsVersionStatus2",
        }
        /// How it runs.
        RUNTIME {
            /// The host it is on.
            host: MoRef = "runtime.host",
            /// Whether it is on.
            power: PowerState = "runtime.powerState",
            /// Whether vCenter has sight of it.
            connection: VmConnection = "runtime.connectionState",
            /// When it was powered on last; none while it is off.
            boot_time: Timestamp = "runtime.bootTime",
        }
        /// What it uses.
        PLACEMENT {
            /// The resource pool; a template has none.
            resource_pool: MoRef = "resourcePool",
            /// The datastores its files are on.
            datastores: Box<[MoRef]> = "datastore",
            /// Its networks.
            networks: Box<[MoRef]> = "network",
        }
        /// Its virtual devices.
        HARDWARE {
            /// Controllers, disks and interfaces.
            devices: Devices = "config.hardware.device",
        }
        /// Its snapshots.
        SNAPSHOTS {
            /// None, unless there are any.
            snapshots: SnapshotInfo = "snapshot",
        }
    }
}

managed! {
    /// A host.
    pub struct Host of HostSystem {
        /// Who it is and where it stands in the tree.
        IDENTITY {
            /// The name in the inventory.
            name: Box<str> = "name",
            /// The cluster, or the compute resource of a single host.
            parent: MoRef = "parent",
        }
        /// How it is.
        STATE {
            /// Whether vCenter has sight of it.
            connection: HostConnection = "runtime.connectionState",
            /// Whether it takes no machines at present.
            in_maintenance: bool = "runtime.inMaintenanceMode",
            /// ESXi's version.
            version: Box<str> = "summary.config.product.version",
            /// The version of its API, which tells the update.
            api_version: Box<str> = "summary.config.product.apiVersion",
            /// ESXi's build.
            build: Box<str> = "summary.config.product.build",
        }
        /// What it mounts.
        STORAGE {
            /// The datastores.
            datastores: Box<[MoRef]> = "datastore",
        }
    }
}

managed! {
    /// A cluster, or the compute resource around a single host.
    pub struct Cluster of ClusterComputeResource | ComputeResource {
        /// Who it is and where it stands in the tree.
        IDENTITY {
            /// The name in the inventory.
            name: Box<str> = "name",
            /// The folder.
            parent: MoRef = "parent",
        }
        /// What belongs to it.
        MEMBERS {
            /// Its hosts.
            hosts: Box<[MoRef]> = "host",
            /// Its root resource pool.
            resource_pool: MoRef = "resourcePool",
            /// The datastores its hosts mount.
            datastores: Box<[MoRef]> = "datastore",
        }
    }
}

managed! {
    /// A resource pool or vApp.
    pub struct ResourcePool of ResourcePool | VirtualApp {
        /// Who it is and where it stands in the tree.
        IDENTITY {
            /// The name in the inventory.
            name: Box<str> = "name",
            /// The pool or compute resource above it.
            parent: MoRef = "parent",
            /// The compute resource it divides.
            owner: MoRef = "owner",
        }
    }
}

managed! {
    /// A folder, or a cluster of datastores.
    pub struct Folder of Folder | StoragePod {
        /// Who it is and where it stands in the tree.
        IDENTITY {
            /// The name in the inventory.
            name: Box<str> = "name",
            /// The folder or datacenter above it; the root has none.
            parent: MoRef = "parent",
        }
    }
}

managed! {
    /// A datacenter.
    pub struct Datacenter of Datacenter {
        /// Who it is and where it stands in the tree.
        IDENTITY {
            /// The name in the inventory.
            name: Box<str> = "name",
            /// The folder.
            parent: MoRef = "parent",
        }
        /// The roots of its four trees.
        FOLDERS {
            /// Of machines.
            vm_folder: MoRef = "vmFolder",
            /// Of hosts and clusters.
            host_folder: MoRef = "hostFolder",
            /// Of datastores.
            datastore_folder: MoRef = "datastoreFolder",
            /// Of networks.
            network_folder: MoRef = "networkFolder",
        }
    }
}

managed! {
    /// A datastore.
    pub struct Datastore of Datastore {
        /// Who it is and where it stands in the tree.
        IDENTITY {
            /// The name in the inventory.
            name: Box<str> = "name",
            /// The folder.
            parent: MoRef = "parent",
            /// Tells it apart, across datacenters too.
            url: Box<str> = "summary.url",
            /// `VMFS`, `NFS`, `NFS41`, `vsan`, `VVOL`.
            kind: Box<str> = "summary.type",
        }
        /// How it is.
        STATE {
            /// Bytes in all.
            capacity: i64 = "summary.capacity",
            /// Bytes free.
            free_space: i64 = "summary.freeSpace",
            /// Whether any host reaches it.
            accessible: bool = "summary.accessible",
            /// Whether several hosts mount it.
            multiple_host_access: bool = "summary.multipleHostAccess",
            /// `normal`, `enteringMaintenance`, `inMaintenance`.
            maintenance: Box<str> = "summary.maintenanceMode",
        }
        /// Who mounts it.
        HOSTS {
            /// Each host, and how.
            hosts: Box<[DatastoreHostMount]> = "host",
        }
    }
}

managed! {
    /// A network or distributed port group.
    pub struct Network of Network | DistributedVirtualPortgroup | OpaqueNetwork {
        /// Who it is and where it stands in the tree.
        IDENTITY {
            /// The name in the inventory.
            name: Box<str> = "name",
            /// The folder.
            parent: MoRef = "parent",
        }
    }
}

wire_enum! {
    /// Whether a machine is on.
    pub enum PowerState {
        /// On.
        On = "poweredOn",
        /// Off.
        Off = "poweredOff",
        /// Asleep.
        Suspended = "suspended",
    }
}

wire_enum! {
    /// Whether VMware Tools run.
    pub enum ToolsRunning {
        /// They run.
        Running = "guestToolsRunning",
        /// They do not, or are not installed.
        NotRunning = "guestToolsNotRunning",
        /// Scripts run.
        ExecutingScripts = "guestToolsExecutingScripts",
    }
}

wire_enum! {
    /// Whether vCenter has sight of a machine.
    pub enum VmConnection {
        /// It has.
        Connected = "connected",
        /// Its host is out of sight.
        Disconnected = "disconnected",
        /// Its host is in sight but does not know it.
        Orphaned = "orphaned",
        /// Its files are out of reach. vCenter does not know its uuid then.
        Inaccessible = "inaccessible",
        /// Its files cannot be read.
        Invalid = "invalid",
    }
}

wire_enum! {
    /// Whether vCenter has sight of a host.
    pub enum HostConnection {
        /// It has.
        Connected = "connected",
        /// An administrator disconnected it.
        Disconnected = "disconnected",
        /// It does not answer.
        NotResponding = "notResponding",
    }
}

impl Vm {
    /// Keeps the uuids that an earlier state had and this one has lost. A machine whose host or
    /// files are out of reach has none in vCenter's eyes, but it is still the same machine.
    pub(crate) fn keep_identity(&mut self, earlier: &Self) {
        if self.bios_uuid.is_none_or(BiosUuid::is_nil) {
            self.bios_uuid = earlier.bios_uuid;
        }
        if self.instance_uuid.is_none_or(InstanceUuid::is_nil) {
            self.instance_uuid = earlier.instance_uuid;
        }
    }

    /// All addresses the guest reports, in the order of its interfaces, the main one last if it is
    /// not among them.
    pub fn addresses(&self) -> impl Iterator<Item = IpAddr> + '_ {
        let nics =
            self.nics.iter().flatten().flat_map(|nic| nic.addresses.iter().map(|a| a.address));
        let main = self.ip_address.as_deref().and_then(|text| text.parse().ok());
        nics.chain(main.filter(|main| {
            !self.nics.iter().flatten().any(|n| n.addresses.iter().any(|a| a.address == *main))
        }))
    }

    /// Whether the guest can see the ids of its disks: by flag or by option.
    pub fn shows_disk_uuids(&self) -> bool {
        let option = self.extra_config.as_ref().and_then(|config| config.get("disk.EnableUUID"));
        self.disk_uuid_enabled == Some(true)
            || option
                .and_then(crate::Value::to_text)
                .is_some_and(|text| matches!(text.to_ascii_lowercase().as_str(), "true" | "1"))
    }
}

impl Object {
    /// See [`Vm::keep_identity`].
    pub(crate) fn keep_identity(&mut self, earlier: &Self) {
        if let (Self::Vm(now), Self::Vm(earlier)) = (self, earlier)
            && (now.bios_uuid != earlier.bios_uuid || now.instance_uuid != earlier.instance_uuid)
        {
            Arc::make_mut(now).keep_identity(earlier);
        }
    }
}

macro_rules! objects {
    ($($variant:ident = $with:ident),*) => {
        /// Any object of an inventory. Cheap to clone.
        #[derive(Debug, Clone, PartialEq)]
        pub enum Object {
            $(
                #[doc = concat!("A [`", stringify!($variant), "`](super::", stringify!($variant), ").")]
                $variant(Arc<$variant>),
            )*
        }

        impl Object {
            /// What vCenter calls it.
            pub fn reference(&self) -> &MoRef {
                match self { $(Self::$variant(object) => &object.reference,)* }
            }

            /// Its name in the inventory, if it may be seen.
            pub fn name(&self) -> Option<&str> {
                match self { $(Self::$variant(object) => object.name.as_deref(),)* }
            }

            /// What it stands below.
            pub fn parent(&self) -> Option<&MoRef> {
                match self { $(Self::$variant(object) => object.parent.as_ref(),)* }
            }

            /// Takes over the properties in `mask`. Both are of the same object.
            pub(crate) fn merge(&mut self, from: Self, mask: Mask) {
                match (self, from) {
                    $((Self::$variant(into), Self::$variant(from)) => {
                        Arc::make_mut(into).merge(Arc::unwrap_or_clone(from), mask);
                    })*
                    (into, from) => *into = from,
                }
            }
        }

        impl Managed for Object {
            fn empty(reference: MoRef) -> Option<Self> {
                $(if let Some(object) = <$variant as Managed>::empty(reference.clone()) {
                    return Some(Self::$variant(Arc::new(object)));
                })*
                None
            }

            fn assign(&mut self, path: &str, start: &Start<'_>, reader: &mut Reader<'_>) -> Result<Mask, XmlError> {
                match self { $(Self::$variant(object) => Arc::make_mut(object).assign(path, start, reader),)* }
            }

            fn clear(&mut self, path: &str) -> Mask {
                match self { $(Self::$variant(object) => Arc::make_mut(object).clear(path),)* }
            }
        }

        $(
            impl From<$variant> for Object {
                fn from(object: $variant) -> Self { Self::$variant(Arc::new(object)) }
            }

            impl Object {
                #[doc = concat!("The object, if it is a [`", stringify!($variant), "`](super::", stringify!($variant), ").")]
                pub fn $with(&self) -> Option<&Arc<$variant>> {
                    match self {
                        Self::$variant(object) => Some(object),
                        _ => None,
                    }
                }
            }
        )*
    };
}
objects!(
    Vm = as_vm,
    Host = as_host,
    Cluster = as_cluster,
    ResourcePool = as_resource_pool,
    Folder = as_folder,
    Datacenter = as_datacenter,
    Datastore = as_datastore,
    Network = as_network
);
