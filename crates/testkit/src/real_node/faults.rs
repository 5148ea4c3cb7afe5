//! The bad days of a node: no network, no power, and an administrator who drains it.

use std::{
    fs::File,
    net::IpAddr,
    path::{Path, PathBuf},
};

use k8s_openapi::{
    api::core::v1::{Node, Pod},
    jiff::Timestamp,
};
use kube::{
    Api, ResourceExt as _,
    api::{EvictParams, ListParams},
};
use rustix::fs::FallocateFlags;
use snafu::ResultExt as _;
use tokio::task::JoinSet;

use super::{HIERARCHIES, RealNode, boot, is_ready, prepare_cgroups, remove_groups};
use crate::{
    control_plane::ControlPlane,
    error::{Error, FilesSnafu, RealNodeSnafu, must},
    eventually::eventually,
};

impl RealNode {
    /// Closes every connection out of the node, also new ones. Its pods go on.
    pub fn cut(&self) {
        self.connected.send_replace(false);
    }

    /// Connects the node again.
    pub fn heal(&self) {
        self.connected.send_replace(true);
    }

    /// Fills the disk of a node that has one of its own. Its kubelet notices within seconds.
    ///
    /// # Panics
    /// If the file cannot be written.
    pub fn fill_disk(&self) {
        must(self.write_filler());
    }

    fn write_filler(&self) -> Result<(), Error> {
        let path = self.filler();
        let filled = File::create(&path).and_then(|file| {
            let free = rustix::fs::fstatvfs(&file)?;
            // The file system needs some blocks to keep track of the others.
            let bytes = free.f_bavail * free.f_frsize / 100 * 99;
            rustix::fs::fallocate(&file, FallocateFlags::empty(), 0, bytes)?;
            Ok(())
        });
        filled.context(FilesSnafu { path })
    }

    /// Gives the disk its space back.
    pub fn free_disk(&self) {
        let _ = std::fs::remove_file(self.filler());
    }

    fn filler(&self) -> PathBuf {
        PathBuf::from(format!("/proc/{}/root/var/lib/kubelet/filler", self.inner))
    }

    /// Ends everything on the node at once, as a power failure of its VM does.
    pub fn power_off(&mut self) {
        self.stop();
    }

    /// Starts the node again and waits until it is Ready. Its disk is as before; its memory, mounts and device nodes
    /// are not: [`Disks::add_vm`](crate::Disks::add_vm) needs its new [`Self::dev`].
    ///
    /// # Panics
    /// If it does not become Ready, with the reason and the last log lines.
    pub async fn power_on(&mut self, plane: &ControlPlane) {
        must(self.start_again(plane).await);
    }

    async fn start_again(&mut self, plane: &ControlPlane) -> Result<(), Error> {
        let began = Timestamp::now();
        let IpAddr::V4(address) = self.address else {
            return RealNodeSnafu { name: &self.name, text: "it has no IPv4 address" }.fail();
        };
        // A computer keeps these in memory.
        let folder = self.workdir.path();
        let run = folder.join("run");
        std::fs::remove_dir_all(&run).context(FilesSnafu { path: &run })?;
        for program in ["kubelet", "containerd"] {
            let _ = std::fs::remove_file(folder.join(program).with_extension("pid"));
        }
        prepare_cgroups(&self.cgroup)?;
        (self.init, self.inner) = boot(&self.workdir, &self.name, address, &self.hardware).await?;
        for (address, target) in self.routes.clone() {
            self.open_route(address, target)?;
        }
        plane.add_node(self.address, self.inner);
        let nodes = Api::<Node>::all(plane.client());
        // Until the kubelet reports, the API server may still have its last report from before.
        eventually("the kubelet reports that the node is Ready", 60, async || {
            let node = nodes.get(&self.name).await.map_err(|error| error.to_string())?;
            let conditions = node.status.iter().flat_map(|s| s.conditions.iter().flatten());
            let mut times = conditions.filter_map(|c| Some(c.last_heartbeat_time.as_ref()?.0));
            let is_new = times.any(|time| time > began);
            if is_new && is_ready(&node) { Ok(()) } else { Err(format!("{:?}", node.status)) }
        })
        .await;
        Ok(())
    }

    pub(super) fn stop(&mut self) {
        // Dropped tasks let go of the ports in the network namespace of the node.
        self.relays = JoinSet::new();
        self.init.kill();
        for hierarchy in HIERARCHIES {
            remove_groups(&Path::new("/sys/fs/cgroup").join(hierarchy).join(&self.cgroup));
        }
    }

    /// Cordons the node and evicts its pods, as `kubectl drain --ignore-daemonsets` does. Returns when they are gone.
    ///
    /// # Panics
    /// If a pod is not gone in time, for example because a PodDisruptionBudget does not allow it.
    pub async fn drain(&self, plane: &ControlPlane) {
        let nodes = Api::<Node>::all(plane.client());
        nodes.cordon(&self.name).await.expect("the API server cordons the node");
        let on_node = ListParams::default().fields(&format!("spec.nodeName={}", self.name));
        let all = Api::<Pod>::all(plane.client());
        eventually("the node is drained", 60, async || {
            let mut pods = all.list(&on_node).await.map_err(|error| error.to_string())?.items;
            pods.retain(|pod| pod.owner_references().iter().all(|owner| owner.kind != "DaemonSet"));
            let mut left = Vec::new();
            for pod in &pods {
                let name = pod.name_any();
                let evicting = if pod.metadata.deletion_timestamp.is_none() {
                    let namespace = pod.namespace().unwrap_or_default();
                    let pods = Api::<Pod>::namespaced(plane.client(), &namespace);
                    // 429 while a budget does not allow it.
                    let evicted = pods.evict(&name, &EvictParams::default()).await;
                    evicted.err().map(|error| error.to_string())
                } else {
                    None
                };
                left.push(format!("{name}: {}", evicting.unwrap_or("terminates".into())));
            }
            if left.is_empty() { Ok(()) } else { Err(left.join("; ")) }
        })
        .await;
    }

    /// Lets the node take pods again.
    ///
    /// # Panics
    /// If the API server refuses.
    pub async fn uncordon(&self, plane: &ControlPlane) {
        let nodes = Api::<Node>::all(plane.client());
        nodes.uncordon(&self.name).await.expect("the API server uncordons the node");
    }
}
