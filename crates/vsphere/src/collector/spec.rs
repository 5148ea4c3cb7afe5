//! Which objects and properties a call is about.

use crate::moref::MoRef;
use crate::xml::codec::{Encode, data};
use crate::xml::writer::Writer;

data! {
    /// Properties of all objects of a type, derived types included.
    pub(crate) struct PropertySpec {
        /// The type.
        kind: String = "type",
        /// All properties; never wanted.
        all: Option<bool> = "all",
        /// The properties.
        paths: Vec<String> = "pathSet",
    }
}

/// Where to start, and where to go from there.
#[derive(Debug, Clone)]
pub(crate) struct ObjectSpec {
    pub(crate) object: MoRef,
    /// Whether the object itself is only a starting point.
    pub(crate) skip: bool,
    pub(crate) select: Vec<Traversal>,
}

/// One step from an object to others.
#[derive(Debug, Clone)]
pub(crate) struct Traversal {
    pub(crate) name: &'static str,
    pub(crate) kind: &'static str,
    pub(crate) path: &'static str,
    /// Names of the steps to try from there.
    pub(crate) then: &'static [&'static str],
}

/// Objects and their properties.
#[derive(Debug, Clone)]
pub(crate) struct FilterSpec {
    pub(crate) properties: Vec<PropertySpec>,
    pub(crate) objects: Vec<ObjectSpec>,
    /// Whether an object that does not exist is passed over instead of failing the call.
    pub(crate) missing_is_fine: bool,
}

data! {
    /// How much of a long answer to give at once.
    pub(crate) struct RetrieveOptions {
        /// Objects.
        max_objects: Option<i32> = "maxObjects",
    }
}

data! {
    /// How long to wait, and how much to give at once.
    pub(crate) struct WaitOptions {
        /// Seconds.
        max_wait_seconds: Option<i32> = "maxWaitSeconds",
        /// Objects.
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
    /// The object itself.
    pub(crate) fn just(object: MoRef) -> Self {
        Self { object, skip: false, select: Vec::new() }
    }

    /// What is in a view.
    pub(crate) fn view(view: MoRef, kind: &'static str) -> Self {
        let select = vec![Traversal { name: "view", kind, path: "view", then: &[] }];
        Self { object: view, skip: true, select }
    }

    /// Everything below a folder or datacenter, and it itself. Which steps are tried limits what is
    /// found.
    pub(crate) fn below(object: MoRef, steps: &[Traversal]) -> Self {
        Self { object, skip: false, select: steps.to_vec() }
    }
}

/// From a folder to the folders and virtual machines below it.
pub(crate) const TO_VMS: &[Traversal] = &[
    Traversal {
        name: "folder",
        kind: "Folder",
        path: "childEntity",
        then: &["folder", "vms", "vapp", "vapps"],
    },
    Traversal { name: "vms", kind: "Datacenter", path: "vmFolder", then: &["folder"] },
    Traversal { name: "vapp", kind: "VirtualApp", path: "vm", then: &[] },
    // Those in another stand in no folder.
    Traversal { name: "vapps", kind: "VirtualApp", path: "resourcePool", then: &["vapp", "vapps"] },
];

/// From a folder to everything below it.
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

/// From a folder to the datacenters and folders of datacenters below it.
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
        if self.missing_is_fine {
            true.encode("reportMissingObjectsInResults", writer);
        }
        writer.close(name);
    }
}
