//! The objects and properties of a call.

use crate::moref::MoRef;
use crate::xml::codec::{Encode, data};
use crate::xml::writer::Writer;

data! {
    /// The properties to read from objects of a type, including derived types.
    pub(crate) struct PropertySpec {
        kind: String = "type",
        /// Whether to read all properties. Always false.
        all: Option<bool> = "all",
        paths: Vec<String> = "pathSet",
    }
}

/// An object to start from, and the traversals to follow.
#[derive(Debug, Clone)]
pub(crate) struct ObjectSpec {
    pub(crate) object: MoRef,
    /// Whether to leave out the object itself.
    pub(crate) skip: bool,
    pub(crate) select: Vec<Traversal>,
}

/// A traversal from objects of one type along one property.
#[derive(Debug, Clone)]
pub(crate) struct Traversal {
    pub(crate) name: &'static str,
    pub(crate) kind: &'static str,
    pub(crate) path: &'static str,
    /// The names of the traversals to follow next.
    pub(crate) then: &'static [&'static str],
}

#[derive(Debug, Clone)]
pub(crate) struct FilterSpec {
    pub(crate) properties: Vec<PropertySpec>,
    pub(crate) objects: Vec<ObjectSpec>,
    /// Whether to skip objects that do not exist instead of failing the call.
    pub(crate) skip_missing: bool,
}

data! {
    /// The page size of a retrieval.
    pub(crate) struct RetrieveOptions {
        max_objects: Option<i32> = "maxObjects",
    }
}

data! {
    /// The timeout and page size of a wait.
    pub(crate) struct WaitOptions {
        max_wait_seconds: Option<i32> = "maxWaitSeconds",
        max_object_updates: Option<i32> = "maxObjectUpdates",
    }
}

impl PropertySpec {
    pub(crate) fn new<'p>(kind: &str, paths: impl IntoIterator<Item = &'p str>) -> Self {
        let mut paths: Vec<String> = paths.into_iter().map(str::to_owned).collect();
        paths.sort_unstable();
        paths.dedup();
        Self { kind: kind.to_owned(), all: Some(false), paths }
    }
}

impl ObjectSpec {
    pub(crate) fn just(object: MoRef) -> Self {
        Self { object, skip: false, select: Vec::new() }
    }

    /// The objects in a view.
    pub(crate) fn view(view: MoRef, kind: &'static str) -> Self {
        let select = vec![Traversal { name: "view", kind, path: "view", then: &[] }];
        Self { object: view, skip: true, select }
    }

    /// The object and everything below it that `steps` can reach.
    pub(crate) fn below(object: MoRef, steps: &[Traversal]) -> Self {
        Self { object, skip: false, select: steps.to_vec() }
    }
}

/// From a folder to all folders and VMs below it.
pub(crate) const TO_VMS: &[Traversal] = &[
    Traversal {
        name: "folder",
        kind: "Folder",
        path: "childEntity",
        then: &["folder", "vms", "vapp", "vapps"],
    },
    Traversal { name: "vms", kind: "Datacenter", path: "vmFolder", then: &["folder"] },
    Traversal { name: "vapp", kind: "VirtualApp", path: "vm", then: &[] },
    // A nested vApp is in no folder.
    Traversal { name: "vapps", kind: "VirtualApp", path: "resourcePool", then: &["vapp", "vapps"] },
];

/// From a folder to all objects below it.
pub(crate) const TO_ALL: &[Traversal] = &[
    Traversal {
        name: "folder",
        kind: "Folder",
        path: "childEntity",
        then: &["folder", "vms", "hosts", "datastores", "networks", "pools", "members", "vapp"],
    },
    Traversal { name: "vms", kind: "Datacenter", path: "vmFolder", then: &["folder"] },
    Traversal { name: "hosts", kind: "Datacenter", path: "hostFolder", then: &["folder"] },
    Traversal {
        name: "datastores",
        kind: "Datacenter",
        path: "datastoreFolder",
        then: &["folder"],
    },
    Traversal { name: "networks", kind: "Datacenter", path: "networkFolder", then: &["folder"] },
    Traversal { name: "members", kind: "ComputeResource", path: "host", then: &[] },
    Traversal {
        name: "pools",
        kind: "ComputeResource",
        path: "resourcePool",
        then: &["pool", "vapp"],
    },
    Traversal { name: "pool", kind: "ResourcePool", path: "resourcePool", then: &["pool", "vapp"] },
    Traversal { name: "vapp", kind: "VirtualApp", path: "vm", then: &[] },
];

/// From a folder to all datacenters and datacenter folders below it.
pub(crate) const TO_DATACENTERS: &[Traversal] =
    &[Traversal { name: "folder", kind: "Folder", path: "childEntity", then: &["folder"] }];

impl Encode for Traversal {
    fn encode(&self, name: &str, writer: &mut Writer) {
        writer.open_with(name, &[("xsi:type", "TraversalSpec")]);
        writer.leaf("name", self.name);
        writer.leaf("type", self.kind);
        writer.leaf("path", self.path);
        writer.leaf("skip", "false");
        for step in self.then {
            writer.open_with("selectSet", &[("xsi:type", "SelectionSpec")]);
            writer.leaf("name", step);
            writer.close("selectSet");
        }
        writer.close(name);
    }
}

impl Encode for ObjectSpec {
    fn encode(&self, name: &str, writer: &mut Writer) {
        writer.open(name);
        self.object.encode("obj", writer);
        self.skip.encode("skip", writer);
        self.select.encode("selectSet", writer);
        writer.close(name);
    }
}

impl Encode for FilterSpec {
    fn encode(&self, name: &str, writer: &mut Writer) {
        writer.open(name);
        self.properties.encode("propSet", writer);
        self.objects.encode("objectSet", writer);
        if self.skip_missing {
            true.encode("reportMissingObjectsInResults", writer);
        }
        writer.close(name);
    }
}
