//! What a vCenter holds: seen once, or watched.
//!
//! ```text
//!   Selection ──► Client::collect ──────────────► Tree        once
//!        │                                          ▲ view()
//!        └──────► Client::watch ──► Watch ──► Inventory ──► Events
//!                                     │
//!                                  follower: vCenter's changes, one after the other
//!                                     │
//!                                     └── absence: what left is asked for by its reference
//! ```
//!
//! `model` and `parts` say what an object is; adding a property is one line there.

mod absence;
mod apply;
mod departures;
mod follower;
mod model;
mod parts;
mod retrieve;
mod retry_window;
mod selection;
mod tree;
mod watch;

pub use self::absence::{Absence, Departure, Gone, Standing};
pub use self::model::{
    Cluster, Datacenter, Datastore, Folder, Host, HostConnection, Network, Object, PowerState,
    ResourcePool, ToolsRunning, Vm, VmConnection,
};
pub use self::parts::{
    DatastoreHostMount, Device, DeviceDetail, Devices, Disk, ExtraConfig, GuestAddress, GuestNic,
    HostMount, OptionValue, Snapshot, SnapshotInfo,
};
pub use self::selection::Selection;
pub use self::tree::{Lookup, Presence, Tree};
pub use self::watch::{Event, Events, Inventory, Status, View, Watch};
