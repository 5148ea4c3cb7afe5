//! Short ways to the parts of a sample that tests change.

use crate::facts::{Facts, InstalledDriver, Inventory, Node, Vcenter, Vm};

pub(crate) trait Shortcuts {
    /// The first vCenter.
    fn vcenter(&mut self) -> &mut Vcenter;
    /// Its inventory.
    fn inventory(&mut self) -> &mut Inventory;
    /// The VM of a node.
    fn vm(&mut self, node: &str) -> &mut Vm;
    /// A node.
    fn node(&mut self, name: &str) -> &mut Node;
    /// The storage driver.
    fn storage_driver(&mut self) -> &mut InstalledDriver;
    /// Removes the definitions that the storage driver needs.
    fn no_crds(&mut self);
    /// The cloud provider.
    fn cloud_driver(&mut self) -> &mut InstalledDriver;
}

impl Shortcuts for Facts {
    fn vcenter(&mut self) -> &mut Vcenter {
        self.vcenters.get_mut("vcenter-a").unwrap()
    }

    fn inventory(&mut self) -> &mut Inventory {
        self.vcenter().inventory.get_mut().unwrap()
    }

    fn vm(&mut self, node: &str) -> &mut Vm {
        self.inventory().vms.values_mut().find(|vm| vm.name == node).unwrap()
    }

    fn node(&mut self, name: &str) -> &mut Node {
        self.cluster.nodes.get_mut().unwrap().get_mut(name).unwrap()
    }

    fn storage_driver(&mut self) -> &mut InstalledDriver {
        self.cluster.drivers.storage.get_mut().unwrap().as_mut().unwrap()
    }

    fn no_crds(&mut self) {
        let crds = self.storage_driver().crds.get_mut().unwrap();
        for exists in crds.values_mut() {
            *exists = false;
        }
    }

    fn cloud_driver(&mut self) -> &mut InstalledDriver {
        self.cluster.drivers.cloud.get_mut().unwrap().as_mut().unwrap()
    }
}
