//! The inventory objects. A new property is one line here: its name, its type and its API path.

use std::net::IpAddr;
use std::sync::Arc;

use jiff::Timestamp;

use super::property_types::{DatastoreHostMount, Devices, ExtraConfig, GuestNic, SnapshotInfo};
use crate::collector::managed::Mask;
use crate::collector::{Managed, managed};
use crate::ids::{BiosUuid, InstanceUuid};
use crate::moref::MoRef;
use crate::xml::XmlError;
use crate::xml::codec::wire_enum;
use crate::xml::reader::{Reader, Start};

managed! {
    pub struct Vm of VirtualMachine {
        /// Name, ids and place in the inventory tree.
        IDENTITY {
            name: Box<str> = "name",
            parent: MoRef = "parent",
            /// The uuid that the firmware shows to the guest. A watch keeps the last known value,
            /// because vCenter reports none while it cannot access the VM.
            bios_uuid: BiosUuid = "config.uuid",
            /// A watch keeps the last known value, as for `bios_uuid`.
            instance_uuid: InstanceUuid = "config.instanceUuid",
            /// Whether the VM is a template.
            template: bool = "config.template",
        }
        CONFIG {
            /// Such as `vmx-19`.
            hardware_version: Box<str> = "config.version",
            /// The configured guest operating system.
            guest_id: Box<str> = "config.guestId",
            cpus: i32 = "config.hardware.numCPU",
            memory_mib: i32 = "config.hardware.memoryMB",
            /// Whether the guest sees disk uuids, according to the VM's flags. The advanced option
            /// `disk.EnableUUID` has the same effect.
            disk_uuid_enabled: bool = "config.flags.diskUuidEnabled",
            path_name: Box<str> = "config.files.vmPathName",
        }
        /// Changed block tracking, for backups.
        BLOCK_TRACKING {
            tracks_blocks: bool = "config.changeTrackingEnabled",
        }
        EXTRA_CONFIG {
            extra_config: ExtraConfig = "config.extraConfig",
        }
        GUEST {
            /// The host name that the guest reports.
            host_name: Box<str> = "guest.hostName",
            /// The guest's primary address, according to VMware Tools.
            ip_address: Box<str> = "guest.ipAddress",
            nics: Box<[GuestNic]> = "guest.net",
            tools_running: ToolsRunning = "guest.toolsRunningStatus",
            /// The version status of VMware Tools, such as `guestToolsCurrent`.
            tools_version: Box<str> = "guest.toolsVersionStatus2",
        }
        RUNTIME {
            host: MoRef = "runtime.host",
            power: PowerState = "runtime.powerState",
            /// Whether vCenter can reach it.
            connection: VmConnection = "runtime.connectionState",
            /// When the VM was last powered on. Unset while it is off.
            boot_time: Timestamp = "runtime.bootTime",
        }
        PLACEMENT {
            /// Unset for a template.
            resource_pool: MoRef = "resourcePool",
            datastores: Box<[MoRef]> = "datastore",
            networks: Box<[MoRef]> = "network",
        }
        HARDWARE {
            /// Controllers, disks and network interfaces.
            devices: Devices = "config.hardware.device",
        }
        SNAPSHOTS {
            snapshots: SnapshotInfo = "snapshot",
        }
    }
}

managed! {
    pub struct Host of HostSystem {
        /// Name, ids and place in the inventory tree.
        IDENTITY {
            name: Box<str> = "name",
            /// The cluster, or the compute resource of a standalone host.
            parent: MoRef = "parent",
        }
        STATE {
            /// Whether vCenter can reach it.
            connection: HostConnection = "runtime.connectionState",
            /// Whether the host is in maintenance mode.
            in_maintenance: bool = "runtime.inMaintenanceMode",
            version: Box<str> = "summary.config.product.version",
            /// The API version, which identifies the update release.
            api_version: Box<str> = "summary.config.product.apiVersion",
            build: Box<str> = "summary.config.product.build",
        }
        STORAGE {
            datastores: Box<[MoRef]> = "datastore",
        }
    }
}

managed! {
    /// A cluster, or the compute resource of a standalone host.
    pub struct Cluster of ClusterComputeResource | ComputeResource {
        /// Name, ids and place in the inventory tree.
        IDENTITY {
            name: Box<str> = "name",
            parent: MoRef = "parent",
        }
        MEMBERS {
            hosts: Box<[MoRef]> = "host",
            resource_pool: MoRef = "resourcePool",
            /// The datastores that the hosts mount.
            datastores: Box<[MoRef]> = "datastore",
        }
    }
}

managed! {
    pub struct ResourcePool of ResourcePool | VirtualApp {
        /// Name, ids and place in the inventory tree.
        IDENTITY {
            name: Box<str> = "name",
            /// The parent pool or compute resource.
            parent: MoRef = "parent",
            /// The compute resource that the pool belongs to.
            owner: MoRef = "owner",
        }
    }
}

managed! {
    /// A folder or datastore cluster.
    pub struct Folder of Folder | StoragePod {
        /// Name, ids and place in the inventory tree.
        IDENTITY {
            name: Box<str> = "name",
            /// The parent folder or datacenter. Unset for the root folder.
            parent: MoRef = "parent",
        }
    }
}

managed! {
    pub struct Datacenter of Datacenter {
        /// Name, ids and place in the inventory tree.
        IDENTITY {
            name: Box<str> = "name",
            parent: MoRef = "parent",
        }
        /// The four root folders of the datacenter.
        FOLDERS {
            vm_folder: MoRef = "vmFolder",
            host_folder: MoRef = "hostFolder",
            datastore_folder: MoRef = "datastoreFolder",
            network_folder: MoRef = "networkFolder",
        }
    }
}

managed! {
    pub struct Datastore of Datastore {
        /// Name, ids and place in the inventory tree.
        IDENTITY {
            name: Box<str> = "name",
            parent: MoRef = "parent",
            /// Unique across datacenters.
            url: Box<str> = "summary.url",
            /// `VMFS`, `NFS`, `NFS41`, `vsan`, `VVOL`.
            kind: Box<str> = "summary.type",
        }
        STATE {
            capacity: i64 = "summary.capacity",
            free_space: i64 = "summary.freeSpace",
            /// Whether any host can access it.
            accessible: bool = "summary.accessible",
            /// Whether more than one host mounts it.
            multiple_host_access: bool = "summary.multipleHostAccess",
            /// `normal`, `enteringMaintenance`, `inMaintenance`.
            maintenance: Box<str> = "summary.maintenanceMode",
        }
        HOSTS {
            hosts: Box<[DatastoreHostMount]> = "host",
        }
    }
}

managed! {
    /// A network or distributed port group.
    pub struct Network of Network | DistributedVirtualPortgroup | OpaqueNetwork {
        /// Name, ids and place in the inventory tree.
        IDENTITY {
            name: Box<str> = "name",
            parent: MoRef = "parent",
        }
    }
}

wire_enum! {
    pub enum PowerState {
        On = "poweredOn",
        Off = "poweredOff",
        Suspended = "suspended",
    }
}

wire_enum! {
    pub enum ToolsRunning {
        Running = "guestToolsRunning",
        /// VMware Tools do not run or are not installed.
        NotRunning = "guestToolsNotRunning",
        ExecutingScripts = "guestToolsExecutingScripts",
    }
}

wire_enum! {
    /// Whether vCenter can reach a VM.
    pub enum VmConnection {
        Connected = "connected",
        /// vCenter cannot reach the VM's host.
        Disconnected = "disconnected",
        /// The host does not know the VM.
        Orphaned = "orphaned",
        /// The host cannot access the VM's files. vCenter reports no uuid.
        Inaccessible = "inaccessible",
        /// The VM's files are invalid.
        Invalid = "invalid",
    }
}

wire_enum! {
    /// Whether vCenter can reach a host.
    pub enum HostConnection {
        Connected = "connected",
        /// An administrator disconnected the host.
        Disconnected = "disconnected",
        NotResponding = "notResponding",
    }
}

impl Vm {
    /// Keeps uuids of the earlier state that this one lacks. vCenter reports no uuid for a VM whose
    /// host or files are inaccessible, but it is still the same VM.
    pub(crate) fn keep_identity(&mut self, earlier: &Self) {
        if self.bios_uuid.is_none_or(BiosUuid::is_nil) {
            self.bios_uuid = earlier.bios_uuid;
        }
        if self.instance_uuid.is_none_or(InstanceUuid::is_nil) {
            self.instance_uuid = earlier.instance_uuid;
        }
    }

    /// All addresses of the guest, in the order of its interfaces. The primary address comes last
    /// if no interface has it.
    pub fn addresses(&self) -> impl Iterator<Item = IpAddr> + '_ {
        let nics =
            self.nics.iter().flatten().flat_map(|nic| nic.addresses.iter().map(|a| a.address));
        let main = self.ip_address.as_deref().and_then(|text| text.parse().ok());
        nics.chain(main.filter(|main| {
            !self.nics.iter().flatten().any(|n| n.addresses.iter().any(|a| a.address == *main))
        }))
    }

    /// Whether the guest sees disk uuids, through the flag or the advanced option.
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
        /// An inventory object of any type. Cheap to clone.
        #[derive(Debug, Clone, PartialEq)]
        pub enum Object {
            $(
                #[doc = concat!("A [`", stringify!($variant), "`](super::", stringify!($variant), ").")]
                $variant(Arc<$variant>),
            )*
        }

        impl Object {
            /// vCenter's reference to the object.
            pub fn reference(&self) -> &MoRef {
                match self { $(Self::$variant(object) => &object.reference,)* }
            }

            /// The inventory name, if the user has permission to see it.
            pub fn name(&self) -> Option<&str> {
                match self { $(Self::$variant(object) => object.name.as_deref(),)* }
            }

            /// The parent in the inventory tree.
            pub fn parent(&self) -> Option<&MoRef> {
                match self { $(Self::$variant(object) => object.parent.as_ref(),)* }
            }

            /// Copies the properties in `mask`. Both values are of the same object.
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
