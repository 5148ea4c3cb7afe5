//! Enumerates mutations of vCenter and of VDO's own settings.

use health::privileges::{Needs, REQUIREMENTS};
use plan::ObjectId;
use serde_json::{Value, json};

use super::{
    NAMESPACE,
    mutation::{Area, Change, Lever, Mutation, ObjectEdit},
};

/// The node whose VM, host and registration are mutated.
pub(crate) const NODE: &str = "node-2";
const ZONES: &str = "k8s-zone";
const REGIONS: &str = "k8s-region";

/// The privileges of an account with exactly those that the drivers need.
pub(crate) fn privileges() -> Vec<String> {
    let needed = REQUIREMENTS.iter().filter(|requirement| {
        matches!(requirement.needs, Needs::AnyDriver | Needs::Storage | Needs::Zones)
    });
    let mut all: Vec<String> =
        needed.flat_map(|r| r.privileges).map(|name| (*name).to_owned()).collect();
    all.extend(["System.Anonymous", "System.Read", "System.View"].map(str::to_owned));
    all.sort();
    all.dedup();
    all
}

/// The mutations of vCenter. `truth`: the simulator's inventory.
pub(crate) fn mutations(truth: &Value) -> Vec<Mutation> {
    let mut all = Vec::new();
    all.extend(vm(truth));
    all.extend(host(truth));
    all.extend(datastores(truth, &host_of(truth)));
    all.extend(tags());
    all.extend(roles());
    all
}

/// The VM of the node.
fn vm_of(truth: &Value) -> Value {
    let vms = truth["datacenters"][0]["vms"].as_array().cloned().unwrap_or_default();
    vms.into_iter().find(|vm| vm["name"] == NODE).expect("the VM of the node")
}

fn host_of(truth: &Value) -> String {
    vm_of(truth)["host"].as_str().unwrap_or_default().to_owned()
}

fn mutation(area: Area, name: String, names: &[&str], hurts: bool, change: Change) -> Mutation {
    let names = names.iter().map(|&name| name.to_owned()).collect();
    Mutation { area, name, names, hurts, change, asks: false }
}

fn vm(truth: &Value) -> Vec<Mutation> {
    let vm = vm_of(truth);
    let path = format!("/DC0/vm/{NODE}");
    // Field, value, what a report names, and whether it hurts.
    let fields: [(&str, Value, &str, bool); 10] = [
        ("diskUuid", json!(false), "disk.EnableUUID", true),
        ("version", json!("vmx-11"), "vmx-11|hardware version", true),
        ("uuid", json!("42000000-0000-4000-8000-000000000000"), "uuid|no VM", true),
        ("nics", json!([]), "address", true),
        ("tools", json!("notRunning"), "Tools", true),
        ("tools", json!("notInstalled"), "Tools", true),
        ("scsi", json!(["pvscsi", "lsilogic"]), "SCSI|lsilogic|controller", true),
        ("snapshots", json!(["backup"]), "snapshot", true),
        ("cpus", json!(7), "", false),
        ("memoryMiB", json!(12288), "", false),
    ];
    let edits = fields.into_iter().map(|(field, value, word, hurts)| {
        let before = match (&vm[field], field) {
            (Value::Null, "snapshots") => json!([]),
            (before, _) => before.clone(),
        };
        let change = Change::Vcenter(
            Lever::Vm(path.clone(), json!({field: value})),
            Lever::Vm(path.clone(), json!({field: before})),
        );
        mutation(Area::Vms, format!("VM {NODE}: {field} is {value}"), &[NODE, word], hurts, change)
    });
    let hidden = Change::Vcenter(Lever::Hide(path.clone()), Lever::Show(path.clone()));
    let hidden = Mutation {
        asks: true,
        ..mutation(Area::Privileges, format!("no access to {path}"), &[NODE], true, hidden)
    };
    edits.chain([hidden]).collect()
}

fn host(truth: &Value) -> Vec<Mutation> {
    let vm = vm_of(truth);
    let text = |key: &str| vm[key].as_str().unwrap_or_default().to_owned();
    let path = format!("/DC0/host/{}/{}", text("cluster"), text("host"));
    let fields: [(&str, Value, Value, &str, bool); 3] = [
        ("maintenance", json!(true), json!(false), "maintenance", true),
        ("version", json!("6.5.0"), json!("8.0.3"), "6.5.0", true),
        (
            "connection",
            json!("notResponding"),
            json!("connected"),
            "not respond|notResponding|disconnected",
            true,
        ),
    ];
    let name = text("host");
    let edits = fields.into_iter().map(|(field, bad, good, word, hurts)| {
        let change = Change::Vcenter(
            Lever::Host(path.clone(), json!({field: bad})),
            Lever::Host(path.clone(), json!({field: good})),
        );
        mutation(
            Area::Hosts,
            format!("host {name}: {field} is {bad}"),
            &[&name, word],
            hurts,
            change,
        )
    });
    edits.collect()
}

/// A datastore that no node's host mounts does not matter, and nobody has to see every datastore.
fn datastores(truth: &Value, host: &str) -> Vec<Mutation> {
    let all = truth["datacenters"][0]["datastores"].as_array().cloned().unwrap_or_default();
    let mut found = Vec::new();
    for datastore in all {
        let name = datastore["name"].as_str().unwrap_or_default().to_owned();
        let path = format!("/DC0/datastore/{name}");
        let hosts = datastore["hosts"].as_array();
        let mounted = hosts.is_none_or(|hosts| hosts.contains(&json!(host)));
        let free = match &datastore["freeGiB"] {
            Value::Null => json!(900),
            free => free.clone(),
        };
        let fields: [(&str, Value, Value, &str); 3] = [
            ("accessible", json!(false), json!(true), "accessible"),
            ("freeGiB", json!(1), free, "free|full|GiB"),
            ("maintenance", json!("inMaintenance"), json!("normal"), "maintenance"),
        ];
        found.extend(fields.into_iter().map(|(field, bad, good, word)| {
            let change = Change::Vcenter(
                Lever::Datastore(path.clone(), json!({field: bad})),
                Lever::Datastore(path.clone(), json!({field: good})),
            );
            let what = format!("datastore {name}: {field} is {bad}");
            mutation(Area::Datastores, what, &[&name, word], mounted, change)
        }));
        let hidden = Change::Vcenter(Lever::Hide(path.clone()), Lever::Show(path.clone()));
        found.push(Mutation {
            asks: true,
            ..mutation(Area::Privileges, format!("no access to {path}"), &[&name], false, hidden)
        });
    }
    found
}

fn tags() -> Vec<Mutation> {
    let attached = [
        (ZONES, "zone-a", "/DC0/host/cluster-a"),
        (ZONES, "zone-b", "/DC0/host/cluster-b"),
        (REGIONS, "region-1", "/DC0"),
    ];
    let mut all: Vec<Mutation> = Vec::new();
    for (category, tag, path) in attached {
        let path = path.to_owned();
        let change = Change::Vcenter(
            Lever::Detach(category, tag, path.clone()),
            Lever::Attach(category, tag, path.clone()),
        );
        let what = format!("tag {tag} detached from {path}");
        // No node runs in the other cluster.
        all.push(mutation(Area::Tags, what, &[category], !path.ends_with("cluster-b"), change));
    }
    let vm = format!("/DC0/vm/{NODE}");
    let more = [(ZONES, "zone-b", "/DC0/host/cluster-a".to_owned()), (ZONES, "zone-a", vm)];
    for (category, tag, path) in more {
        let change = Change::Vcenter(
            Lever::Attach(category, tag, path.clone()),
            Lever::Detach(category, tag, path.clone()),
        );
        let last = path.rsplit('/').next().unwrap_or_default().to_owned();
        let what = format!("tag {tag} also attached to {path}");
        all.push(mutation(Area::Tags, what, &[category, &last], true, change));
    }
    all.into_iter().map(|mutation| Mutation { asks: true, ..mutation }).collect()
}

/// The account without one of its privileges.
fn roles() -> Vec<Mutation> {
    let all = privileges();
    let needed = all.iter().filter(|name| !name.starts_with("System."));
    let without = needed.map(|lost| {
        let rest = all.iter().filter(|name| *name != lost).cloned().collect();
        let change = Change::Vcenter(Lever::Role(rest), Lever::Role(all.clone()));
        let what = format!("the account without {lost}");
        Mutation { asks: true, ..mutation(Area::Privileges, what, &[lost], true, change) }
    });
    without.collect()
}

/// The mutations of VDO's own objects.
pub(crate) fn settings() -> Vec<Mutation> {
    let own = |kind: &str, name: &str| ObjectId {
        api_version: "vdo.vmware.com/v1alpha1".into(),
        kind: kind.into(),
        namespace: NAMESPACE.into(),
        name: name.into(),
    };
    let secret = ObjectId {
        api_version: "v1".into(),
        kind: "Secret".into(),
        namespace: NAMESPACE.into(),
        name: "vc-credentials".into(),
    };
    let vcenter = || own("VsphereCloudConfig", "vc");
    let config = || own("VDOConfig", "vdo-config");
    let set = |pointer: &str, value: Value| ObjectEdit::Set(pointer.into(), value);
    let remove = |pointer: &str| ObjectEdit::Remove(pointer.into());
    let thumbprint = "00:".repeat(19) + "00";
    let edits: [(ObjectId, ObjectEdit, &str, &[&str]); 10] = [
        (secret.clone(), remove("/data/username"), "without username", &["vc-credentials", "user"]),
        (
            secret.clone(),
            remove("/data/password"),
            "without password",
            &["vc-credentials", "password"],
        ),
        (secret, ObjectEdit::Delete, "deleted", &["vc-credentials"]),
        (vcenter(), set("/spec/vcIp", json!("127.0.0.1:1")), "another address", &["127.0.0.1:1"]),
        (
            vcenter(),
            set("/spec/thumbprint", json!(thumbprint)),
            "another thumbprint",
            &["thumbprint"],
        ),
        (vcenter(), set("/spec/datacenters", json!(["DC9"])), "another datacenter", &["DC9"]),
        (vcenter(), set("/spec/credentials", json!("none-such")), "another Secret", &["none-such"]),
        (vcenter(), ObjectEdit::Delete, "deleted", &["vc", "VsphereCloudConfig"]),
        (
            config(),
            set("/spec/cloudProvider/topology/zone", json!("no-such-zone")),
            "another category for zones",
            &["no-such-zone"],
        ),
        (
            config(),
            set("/spec/storageProvider/vsphereCloudConfig", json!("no-such-vcenter")),
            "another vCenter",
            &["no-such-vcenter"],
        ),
    ];
    let edits = edits.into_iter().map(|(id, edit, what, names)| {
        let name = format!("{id}: {what}");
        mutation(Area::Settings, name, names, true, Change::Object(id, edit))
    });
    edits.collect()
}

/// The mutations of a Node.
pub(crate) fn node() -> Vec<Mutation> {
    let id = ObjectId {
        api_version: "v1".into(),
        kind: "Node".into(),
        namespace: String::new(),
        name: NODE.into(),
    };
    let label = |name: &str| format!("/metadata/labels/{}", name.replace('/', "~1"));
    let zone = ObjectEdit::Set(label("topology.kubernetes.io/zone"), json!("zone-x"));
    let taint = json!([{"key": "example.com/none", "effect": "NoSchedule"}]);
    let edits: [(ObjectEdit, &str, &[&str], bool); 3] = [
        (zone, "another zone", &[NODE, "zone-x"], true),
        (
            ObjectEdit::Set(
                "/metadata/annotations/alpha.kubernetes.io~1provided-node-ip".into(),
                json!("10.99.99.99"),
            ),
            "another --node-ip",
            &[NODE, "10.99.99.99"],
            true,
        ),
        (ObjectEdit::Set("/spec/taints".into(), taint), "a taint of an admin", &[NODE], false),
    ];
    let edits = edits.into_iter().map(|(edit, what, names, hurts)| {
        let name = format!("{id}: {what}");
        mutation(Area::Nodes, name, names, hurts, Change::Object(id.clone(), edit))
    });
    edits.collect()
}
