//! Stages, publishes, measures and grows the volumes of this node. The state is in the kernel's mount table, so a
//! restarted driver knows as much as one that never stopped.

mod expand;
mod publish;
mod stage;
mod stats;

use std::time::Duration;

pub use self::{expand::ExpandError, publish::PublishError, stage::StageError, stats::StatsError};
use super::{
    device::{Device, DeviceNumber, Devices},
    filesystem::{FileSystem, FileSystems},
    mounts::{Mount, Mounts},
    tool::Tools,
};

/// The volumes of this node.
#[derive(Clone, Debug)]
pub struct Volumes {
    pub devices: Devices,
    pub tools: Tools,
    pub file_systems: FileSystems,
    /// How long a read of a file system's usage can take.
    pub stats_timeout: Duration,
}

/// The device of a mounted file system.
fn device_of(mount: &Mount) -> Option<Device> {
    let number = mount.source_number()?;
    let same = number == mount.number || mount.number.is_anonymous();
    same.then(|| Device { path: mount.source.clone(), number })
}

fn file_system_of(mount: &Mount) -> Option<FileSystem> {
    FileSystem::parse(&mount.file_system)
}

/// The mounts of a raw block device.
fn block_targets(mounts: &Mounts, device: DeviceNumber) -> impl Iterator<Item = &Mount> {
    mounts.iter().filter(move |mount| mount.is_node_of(device))
}
