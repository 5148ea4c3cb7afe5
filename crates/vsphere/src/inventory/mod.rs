//! The inventory of a vCenter, read once or watched.
//!
//! ```text
//!   Selection ──► Client::collect ──────────────► Tree        once
//!        │                                          ▲ view()
//!        └──────► Client::watch ──► Watch ──► Inventory ──► Events
//!                                     │
//!                                  watch_task: applies vCenter's changes in order
//!                                     │
//!                                     └── absence: checks each object that left
//! ```
//!
//! `model` and `property_types` define the objects. A new property is one line there.

mod absence;
mod apply;
mod departures;
mod model;
mod property_types;
mod retrieve;
mod retry_window;
mod selection;
mod tree;
mod watch;
mod watch_task;

pub use self::absence::{Absence, Departure, Gone, Standing};
pub use self::model::{
    Cluster, Datacenter, Datastore, Folder, Host, HostConnection, Network, Object, PowerState,
    ResourcePool, ToolsRunning, Vm, VmConnection,
};
pub use self::property_types::{
    DatastoreHostMount, Device, DeviceDetail, Devices, Disk, ExtraConfig, GuestAddress, GuestNic,
    HostMount, OptionValue, Snapshot, SnapshotInfo,
};
pub use self::selection::Selection;
pub use self::tree::{Lookup, Presence, Tree};
pub use self::watch::{Event, Events, Inventory, Status, View, Watch};
