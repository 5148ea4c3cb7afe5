//! Reads the inventory once.

use super::model::Object;
use super::selection::Selection;
use super::tree::Tree;
use crate::client::Client;
use crate::collector::calls::walk;
use crate::collector::retrieve;
use crate::collector::spec::{FilterSpec, ObjectSpec, TO_ALL, TO_DATACENTERS, TO_VMS};
use crate::error::Error;
use crate::ids::BiosUuid;
use crate::inventory::model::Vm;
use crate::moref::MoRef;

impl Client {
    /// Reads the inventory once, for tools that do not watch. Makes one call unless vCenter splits
    /// the reply into pages.
    pub async fn collect(&self, selection: &Selection) -> Result<Tree, Error> {
        let steps = if selection.only_vms() { TO_VMS } else { TO_ALL };
        let root = self.root_folder()?;
        let spec = if selection.wanted_datacenters().is_empty() {
            walk(root, steps, selection.properties())
        } else {
            let scope = self.scope(selection).await?;
            let ancestors = scope.ancestors.into_iter().map(ObjectSpec::just);
            let below = scope
                .datacenters
                .into_iter()
                .map(|datacenter| ObjectSpec::below(datacenter, steps));
            let objects = ancestors.chain(below).collect();
            FilterSpec { properties: selection.properties(), objects, skip_missing: true }
        };
        let found = retrieve::<Object>(self, &spec, selection.page()).await?;
        let mut tree = Tree::default();
        for found in found {
            if let Some(object) = found.value {
                tree.insert(object);
            }
        }
        Ok(tree)
    }

    /// Reads the identity of all VMs in one call. The tree then answers any number of lookups.
    pub async fn find_vms(&self) -> Result<Tree, Error> {
        self.collect(&Selection::new().vms(&[Vm::IDENTITY])).await
    }

    /// Finds VMs by BIOS uuid in one call, in the order of `uuids`. `None` is not a proof that the
    /// VM does not exist.
    pub async fn find_by_bios_uuid(
        &self,
        uuids: &[BiosUuid],
    ) -> Result<Vec<Option<std::sync::Arc<Vm>>>, Error> {
        let tree = self.find_vms().await?;
        Ok(uuids.iter().map(|uuid| tree.vms_by_bios_uuid(*uuid).into_iter().next()).collect())
    }

    /// Finds the datacenters that a selection names.
    pub(crate) async fn scope(&self, selection: &Selection) -> Result<Scope, Error> {
        let spec = walk(self.root_folder()?, TO_DATACENTERS, Selection::new().properties());
        let mut tree = Tree::default();
        for found in retrieve::<Object>(self, &spec, None).await? {
            if let Some(object) = found.value {
                tree.insert(object);
            }
        }
        let mut scope = Scope::default();
        for wanted in selection.wanted_datacenters() {
            let datacenters = tree.datacenters();
            let fits = |reference: &MoRef, name: Option<&str>| {
                name == Some(wanted)
                    || &*reference.id == wanted
                    || tree.path_of(reference).as_deref() == Some(wanted)
            };
            let Some(found) = datacenters.iter().find(|dc| fits(&dc.reference, dc.name.as_deref()))
            else {
                let existing =
                    datacenters.iter().filter_map(|dc| tree.path_of(&dc.reference)).collect();
                return Err(Error::NoSuchDatacenter {
                    address: self.address().to_owned(),
                    wanted: wanted.clone(),
                    existing,
                });
            };
            let ancestors = tree
                .ancestors(&found.reference)
                .into_iter()
                .map(|object| object.reference().clone());
            scope.ancestors.extend(ancestors);
            scope.datacenters.push(found.reference.clone());
        }
        scope.ancestors.sort_unstable();
        scope.ancestors.dedup();
        scope.datacenters.sort_unstable();
        scope.datacenters.dedup();
        Ok(scope)
    }
}

#[derive(Debug, Default)]
pub(crate) struct Scope {
    /// Folders above the datacenters.
    pub(crate) ancestors: Vec<MoRef>,
    pub(crate) datacenters: Vec<MoRef>,
}
