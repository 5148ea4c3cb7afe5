//! Selects the objects and properties of a retrieval or watch.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use super::model::{Datacenter, Folder, Object};
use crate::collector::Change;
use crate::collector::spec::PropertySpec;

/// Object types, their properties, and the datacenters to search.
///
/// Each type names its properties in groups: `Selection::new().vms(&[Vm::IDENTITY, Vm::GUEST])`.
/// All folders and datacenters, and the name and parent of every object, are always included,
/// because paths need them.
#[derive(Debug, Clone, Default)]
pub struct Selection {
    kinds: BTreeMap<&'static str, Vec<&'static str>>,
    datacenters: Vec<String>,
    page: Option<i32>,
    options: Option<Vec<&'static str>>,
    gather: Duration,
}

impl Selection {
    /// Selects only folders and datacenters.
    pub fn new() -> Self {
        Self::default()
            .with("Folder", &[Folder::IDENTITY])
            .with("Datacenter", &[Datacenter::IDENTITY])
    }

    #[must_use]
    pub fn vms(self, groups: &[&[&'static str]]) -> Self {
        self.with("VirtualMachine", groups)
    }

    #[must_use]
    pub fn hosts(self, groups: &[&[&'static str]]) -> Self {
        self.with("HostSystem", groups)
    }

    /// Clusters and compute resources of standalone hosts.
    #[must_use]
    pub fn clusters(self, groups: &[&[&'static str]]) -> Self {
        self.with("ComputeResource", groups)
    }

    #[must_use]
    pub fn resource_pools(self, groups: &[&[&'static str]]) -> Self {
        self.with("ResourcePool", groups)
    }

    /// The root folders of datacenters.
    #[must_use]
    pub fn datacenter_folders(self) -> Self {
        self.with("Datacenter", &[Datacenter::FOLDERS])
    }

    #[must_use]
    pub fn datastores(self, groups: &[&[&'static str]]) -> Self {
        self.with("Datastore", groups)
    }

    #[must_use]
    pub fn networks(self, groups: &[&[&'static str]]) -> Self {
        self.with("Network", groups)
    }

    /// Limits the advanced options that a watch keeps. Without it, a watch keeps all options. They
    /// include cloud-init user data: tens of kilobytes per VM, and passwords.
    #[must_use]
    pub fn keeping_options(mut self, keys: &[&'static str]) -> Self {
        self.options = Some(keys.to_vec());
        self
    }

    /// Limits the selection to these datacenters, given by name, path (`/folder/name`) or id
    /// (`datacenter-2`).
    #[must_use]
    pub fn in_datacenters<S: Into<String>>(mut self, names: impl IntoIterator<Item = S>) -> Self {
        self.datacenters = names.into_iter().map(Into::into).collect();
        self
    }

    /// Sets the page size for [`Client::collect`](crate::Client::collect). By default vCenter
    /// chooses it.
    #[must_use]
    pub fn paged(mut self, objects: i32) -> Self {
        self.page = Some(objects);
        self
    }

    /// Lets a watch wait this long after each update set before it asks for the next one. A burst of
    /// changes then arrives in few calls. A change after a quiet time is not delayed.
    #[must_use]
    pub fn gathering(mut self, changes_for: Duration) -> Self {
        self.gather = changes_for;
        self
    }

    pub(super) fn gather(&self) -> Duration {
        self.gather
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

    /// Drops the options that the selection does not keep.
    pub(super) fn trim(&self, change: &mut Change<Object>) {
        if let (Some(keys), Change::Enter(Object::Vm(vm)) | Change::Modify(Object::Vm(vm), _)) =
            (&self.options, change)
            && vm.extra_config.is_some()
            && let Some(options) = &mut Arc::make_mut(vm).extra_config
        {
            options.retain(|key| keys.iter().any(|kept| kept.eq_ignore_ascii_case(key)));
        }
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

    /// The types for a container view. vCenter includes derived types by itself, but other servers
    /// of the API do not.
    pub(crate) fn view_types(&self) -> Vec<&'static str> {
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

    /// Whether VMs are the only selected leaf objects, so that a traversal can skip most of the
    /// tree.
    pub(crate) fn only_vms(&self) -> bool {
        self.kinds.keys().all(|kind| matches!(*kind, "VirtualMachine" | "Folder" | "Datacenter"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::inventory::ExtraConfig;
    use crate::xml::codec::from_xml;

    #[test]
    fn only_the_requested_advanced_options_are_kept() {
        let option = |key: &str| {
            format!(
                "<OptionValue><key>{key}</key><value xmlns:xsi=\"http://www.w3.org/2001/XMLSchema-instance\" \
                 xsi:type=\"xsd:string\">v</value></OptionValue>"
            )
        };
        let options = ["guestinfo.userdata", "GuestInfo.Metadata", "svga.present"].map(option);
        let read = || -> Change<Object> {
            from_xml(&format!(
                "<objectSet><kind>enter</kind><obj type=\"VirtualMachine\">vm-1</obj><changeSet>\
                 <name>config.extraConfig</name><op>assign</op><val>{}</val></changeSet></objectSet>",
                options.concat()
            ))
            .unwrap()
        };
        let kept = |selection: &Selection| -> Vec<String> {
            let mut change = read();
            selection.trim(&mut change);
            let Change::Enter(Object::Vm(vm)) = change else { return Vec::new() };
            vm.extra_config.iter().flat_map(ExtraConfig::iter).map(|o| o.key.to_string()).collect()
        };
        assert_eq!(kept(&Selection::new()).len(), 3);
        let metadata = Selection::new().keeping_options(&["guestinfo.metadata"]);
        assert_eq!(kept(&metadata), ["GuestInfo.Metadata"]);
    }
}
