//! One change to a healthy installation.

use plan::ObjectId;
use serde_json::Value;

/// A change, and the texts that its report must contain.
#[derive(Clone, Debug)]
pub(crate) struct Mutation {
    pub(crate) area: Area,
    /// The change in words. It identifies the mutation.
    pub(crate) name: String,
    /// A finding or an event must contain all of these texts: the mutated object and field. `a|b`: one of them.
    pub(crate) names: Vec<String>,
    /// Whether a driver, a volume or a node stops working, or would at the next restart or upgrade.
    pub(crate) hurts: bool,
    pub(crate) change: Change,
    /// vCenter does not notify about the change: it becomes observable with a requested check.
    pub(crate) asks: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Area {
    Workloads,
    Permissions,
    Configuration,
    Registrations,
    Settings,
    Vms,
    Hosts,
    Datastores,
    Tags,
    Privileges,
    Nodes,
}

impl Area {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Workloads => "Deployments and DaemonSets of the drivers",
            Self::Permissions => "Service accounts, roles and bindings of the drivers",
            Self::Configuration => "Secrets and ConfigMaps of the drivers",
            Self::Registrations => "CSIDriver, CRDs, StorageClass, namespaces, services",
            Self::Settings => "VDOConfig, VsphereCloudConfig and its Secret",
            Self::Vms => "VMs of nodes",
            Self::Hosts => "ESXi hosts",
            Self::Datastores => "Datastores",
            Self::Tags => "Tags for zones and regions",
            Self::Privileges => "vCenter privileges",
            Self::Nodes => "Nodes and their registration",
        }
    }
}

#[derive(Clone, Debug)]
pub(crate) enum Change {
    Object(ObjectId, ObjectEdit),
    /// The change and how to revert it.
    Vcenter(Lever, Lever),
}

#[derive(Clone, Debug)]
pub(crate) enum ObjectEdit {
    /// Sets the field at a JSON pointer.
    Set(String, Value),
    Remove(String),
    Delete,
}

/// A change in the simulator.
#[derive(Clone, Debug)]
pub(crate) enum Lever {
    Vm(String, Value),
    Host(String, Value),
    Datastore(String, Value),
    /// Category, tag and path.
    Attach(&'static str, &'static str, String),
    Detach(&'static str, &'static str, String),
    /// The privileges of the account's role.
    Role(Vec<String>),
    /// The account has no access to this object.
    Hide(String),
    Show(String),
}

impl ObjectEdit {
    /// Changes an object in memory.
    pub(crate) fn edit(&self, object: &mut Value) {
        let (pointer, value) = match self {
            Self::Set(pointer, value) => (pointer, Some(value.clone())),
            Self::Remove(pointer) => (pointer, None),
            Self::Delete => return,
        };
        let (parent, last) = pointer.rsplit_once('/').expect("a pointer begins with /");
        let key = last.replace("~1", "/").replace("~0", "~");
        let parent = object.pointer_mut(parent).expect("the parent of the field exists");
        match (parent, value) {
            (Value::Object(map), Some(value)) => drop(map.insert(key, value)),
            (Value::Object(map), None) => drop(map.remove(&key)),
            (Value::Array(items), None) => drop(items.remove(key.parse().expect("an index"))),
            (Value::Array(items), Some(value)) => {
                items[key.parse::<usize>().expect("an index")] = value;
            }
            (other, _) => panic!("{pointer}: {other}"),
        }
    }
}
