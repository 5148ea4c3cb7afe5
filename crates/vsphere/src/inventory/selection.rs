//! What to look at.

use std::collections::BTreeMap;

use super::model::{Datacenter, Folder};
use crate::collector::spec::PropertySpec;

/// Types and properties to look at, and where.
///
/// Properties are named by the groups of their type: `Selection::new().vms(&[Vm::IDENTITY,
/// Vm::GUEST])`. The name and parent of every object, and all folders and datacenters, are always
/// included: without them no object has a path.
#[derive(Debug, Clone, Default)]
pub struct Selection {
    kinds: BTreeMap<&'static str, Vec<&'static str>>,
    datacenters: Vec<String>,
    page: Option<i32>,
}

impl Selection {
    /// Nothing but the tree of folders and datacenters.
    pub fn new() -> Self {
        Self::default()
            .with("Folder", &[Folder::IDENTITY])
            .with("Datacenter", &[Datacenter::IDENTITY])
    }

    /// Virtual machines.
    #[must_use]
    pub fn vms(self, groups: &[&[&'static str]]) -> Self {
        self.with("VirtualMachine", groups)
    }

    /// Hosts.
    #[must_use]
    pub fn hosts(self, groups: &[&[&'static str]]) -> Self {
        self.with("HostSystem", groups)
    }

    /// Clusters and single hosts' compute resources.
    #[must_use]
    pub fn clusters(self, groups: &[&[&'static str]]) -> Self {
        self.with("ComputeResource", groups)
    }

    /// Resource pools and vApps.
    #[must_use]
    pub fn resource_pools(self, groups: &[&[&'static str]]) -> Self {
        self.with("ResourcePool", groups)
    }

    /// Datacenters, beyond their names.
    #[must_use]
    pub fn datacenter_folders(self) -> Self {
        self.with("Datacenter", &[Datacenter::FOLDERS])
    }

    /// Datastores.
    #[must_use]
    pub fn datastores(self, groups: &[&[&'static str]]) -> Self {
        self.with("Datastore", groups)
    }

    /// Networks.
    #[must_use]
    pub fn networks(self, groups: &[&[&'static str]]) -> Self {
        self.with("Network", groups)
    }

    /// Only what is in these datacenters, by name, by path (`/folder/name`) or by id
    /// (`datacenter-2`).
    #[must_use]
    pub fn in_datacenters<S: Into<String>>(mut self, names: impl IntoIterator<Item = S>) -> Self {
        self.datacenters = names.into_iter().map(Into::into).collect();
        self
    }

    /// For [`Client::collect`](crate::Client::collect): objects per reply. Without it vCenter
    /// decides.
    #[must_use]
    pub fn paged(mut self, objects: i32) -> Self {
        self.page = Some(objects);
        self
    }

    fn with(mut self, kind: &'static str, groups: &[&[&'static str]]) -> Self {
        let paths = self.kinds.entry(kind).or_default();
        paths.extend(["name", "parent"]);
        paths.extend(groups.iter().copied().flatten());
        self
    }

    pub(crate) fn wanted_datacenters(&self) -> &[String] {
        &self.datacenters
    }

    pub(crate) fn page(&self) -> Option<i32> {
        self.page
    }

    pub(crate) fn properties(&self) -> Vec<PropertySpec> {
        self.kinds
            .iter()
            .map(|(kind, paths)| PropertySpec::new(kind, paths.iter().copied()))
            .collect()
    }

    /// The types a view must hold. vCenter includes derived types by itself; naming them does no
    /// harm, and not every server of the API does.
    pub(crate) fn viewed(&self) -> Vec<&'static str> {
        let derived = |kind: &&'static str| -> &'static [&'static str] {
            match *kind {
                "ComputeResource" => &["ComputeResource", "ClusterComputeResource"],
                "ResourcePool" => &["ResourcePool", "VirtualApp"],
                "Folder" => &["Folder", "StoragePod"],
                "Network" => &["Network", "DistributedVirtualPortgroup", "OpaqueNetwork"],
                "VirtualMachine" => &["VirtualMachine"],
                "HostSystem" => &["HostSystem"],
                "Datacenter" => &["Datacenter"],
                _ => &["Datastore"],
            }
        };
        self.kinds.keys().flat_map(derived).copied().collect()
    }

    /// Whether machines are the only leaves of the tree that are wanted: then most of it need not
    /// be walked.
    pub(crate) fn only_vms(&self) -> bool {
        self.kinds.keys().all(|kind| matches!(*kind, "VirtualMachine" | "Folder" | "Datacenter"))
    }
}
