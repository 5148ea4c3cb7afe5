//! The cases of the framework's node controller.

use k8s_openapi::api::core::v1::Taint;
use testkit::{Nic, Node, Process, Vm};

use super::{APART, common::*, until_described};

const PROVIDED_IP: &str = "alpha.kubernetes.io/provided-node-ip";
/// Prefix of every instance type here.
const TYPE: &str = "vsphere-vm";
const NIL: &str = "00000000-0000-0000-0000-000000000000";

pub(crate) struct Row {
    pub(crate) case: &'static str,
    pub(crate) result: &'static str,
    pub(crate) name: &'static str,
    pub(crate) vm: Option<Vm>,
    node: Node,
    /// The expected node, as text.
    end: String,
    /// Reason and text of the expected event.
    event: Option<(&'static str, &'static str)>,
    /// Expected labels.
    labels: &'static [(&'static str, Option<&'static str>)],
}

impl Row {
    pub(crate) fn node(&self) -> Node {
        self.node.clone()
    }

    pub(crate) fn is_hidden(&self) -> bool {
        self.vm.as_ref().is_some_and(|vm| vm.folder == APART)
    }

    pub(crate) fn is_without_uuid(&self) -> bool {
        self.vm.as_ref().is_some_and(|vm| vm.uuid == NIL)
    }

    pub(crate) fn path(&self) -> String {
        format!("/DC0/vm/{}", self.name)
    }
}

/// Builds a row: VM and node have the same name, and the node is uninitialised.
struct Draft {
    name: &'static str,
    vm: Vm,
    by_name: bool,
    id: String,
    zone: &'static str,
    node: Node,
}

/// A VM at 10.0.0.1 with the host name `<name>.internal`.
fn draft(name: &'static str, by_name: bool) -> Draft {
    let vm = Vm {
        host_name: format!("{name}.internal"),
        cluster: "cluster-a".into(),
        nics: vec![Nic::with_address("10.0.0.1/24")],
        ..Vm::named(name)
    };
    let node = Node::named(name).uninitialized();
    let node = if by_name { node } else { node.system_uuid(&vm.uuid) };
    Draft { name, id: format!("vsphere://{}", vm.uuid), vm, by_name, zone: "", node }
}

fn by_name(name: &'static str) -> Draft {
    draft(name, true)
}

fn by_uuid(name: &'static str) -> Draft {
    draft(name, false)
}

impl Draft {
    fn vm(mut self, change: impl FnOnce(&mut Vm)) -> Self {
        change(&mut self.vm);
        self
    }

    fn kubelet(mut self, change: impl FnOnce(Node) -> Node) -> Self {
        self.node = change(self.node);
        self
    }

    fn in_zone(self) -> Self {
        let draft = self.vm(|vm| vm.cluster = "cluster-b".into());
        Self { zone: " zone-b eu", ..draft }
    }

    /// The node has a provider id: in upper case, or as the controller writes it.
    fn with_id(mut self) -> Self {
        if self.by_name {
            self.id = self.id.replace("vsphere://", "VSPHERE://").to_uppercase();
        }
        let id = self.id.clone();
        self.kubelet(|node| node.provider_id(&id))
    }

    /// The node is initialised; `taints` are the remaining ones.
    fn initialised(self, case: &'static str, result: &'static str, taints: &str) -> Row {
        let addresses =
            format!("Hostname={}.internal InternalIP=10.0.0.1 ExternalIP=10.0.0.1", self.name);
        let end = format!("written {}{taints}{} {TYPE} {addresses}", self.id, self.zone);
        self.row(case, result, end)
    }

    /// The node waits, with the kubelet's taint and addresses.
    fn waits(
        self,
        case: &'static str,
        result: &'static str,
        taints: &str,
        event: (&'static str, &'static str),
    ) -> Row {
        let end = format!("untouched{taints} !uninitialized Hostname={}", self.name);
        Row { event: Some(event), ..self.row(case, result, end) }
    }

    fn row(self, case: &'static str, result: &'static str, end: String) -> Row {
        let Self { name, vm, node, .. } = self;
        Row { case, result, name, vm: Some(vm), node, end, event: None, labels: &[] }
    }
}

fn other_taint(node: Node) -> Node {
    node.taint(Taint {
        key: "dedicated".into(),
        value: Some("gpu".into()),
        effect: "NoSchedule".into(),
        ..Taint::default()
    })
}

/// A node without the taint.
fn untainted(name: &'static str, by_name: bool, case: &'static str) -> Row {
    let mut draft = draft(name, by_name);
    let node = Node::named(name);
    draft.node = if by_name { node } else { node.system_uuid(&draft.vm.uuid) };
    if by_name {
        let end = format!("untouched Hostname={name}");
        return draft.row(case, "ignored: a name alone does not identify a VM", end);
    }
    let end = format!("written Hostname={name}.internal InternalIP=10.0.0.1 ExternalIP=10.0.0.1");
    draft.row(case, "not initialised: neither id nor labels; its addresses follow the VM, as in the framework's \
                     status loop", end)
}

/// The kubelet's `--node-ip` is the second address of the VM.
fn with_node_ip(draft: Draft, case: &'static str) -> Row {
    let name = draft.name;
    let draft = draft
        .vm(|vm| vm.nics[0].addresses.insert(0, "10.0.0.9/24".into()))
        .kubelet(|node| node.annotation(PROVIDED_IP, "10.0.0.1"));
    let end = format!(
        "written {} {TYPE} InternalIP=10.0.0.1 ExternalIP=10.0.0.1 Hostname={name}.internal",
        draft.id
    );
    draft.row(case, "initialised; that address is chosen and comes first", end)
}

const INITIALISED: &str = "initialised";
const KEPT: &str = "initialised; the provider id does not change";

/// All cases, in the framework's order.
pub(crate) fn all() -> Vec<Row> {
    let mut all = identified_by_name();
    all.extend(identified_by_uuid());
    all
}

fn identified_by_name() -> Vec<Row> {
    let foreign = by_uuid("foreign").kubelet(|node| other_taint(node.provider_id("aws:///eu/i-1")));
    let foreign_end =
        "untouched aws:///eu/i-1 !dedicated !uninitialized Hostname=foreign".to_owned();
    vec![
        by_name("named").initialised(
            "the kubelet set a host name, the guest reports another",
            "initialised; the guest's host name replaces it",
            "",
        ),
        by_name("nameless-guest")
            // So the node is identified by its address.
            .vm(|vm| {
                vm.host_name = String::new();
                vm.nics[0].addresses = vec!["10.7.7.7/24".into()];
            })
            .kubelet(|node| node.internal_ip("10.7.7.7"))
            .row(
                "the kubelet set a host name, the guest reports none",
                "waits, as with the Go controller: VMware Tools is not running yet; the kubelet's name is kept",
                "untouched !uninitialized Hostname=nameless-guest InternalIP=10.7.7.7".into(),
            )
            .event("NotInitialized", "no host name"),
        by_name("plain").initialised("a new node, identified by its name", INITIALISED, ""),
        untainted("untainted", true, "no taint, identified by its name"),
        by_name("zoned").in_zone().initialised(
            "zone and region, identified by its name",
            "initialised; both names of both labels",
            "",
        ),
        by_name("dedicated").kubelet(other_taint).initialised(
            "another taint next to ours, identified by its name",
            "initialised; the other taint stays",
            " !dedicated",
        ),
        foreign.row(
            "the provider does not know the node",
            "unchanged: its provider id belongs to another provider",
            foreign_end,
        ),
        with_node_ip(by_name("node-ip"), "the kubelet's `--node-ip`, identified by its name"),
        by_name("no-address").kubelet(|node| other_taint(node.annotation(PROVIDED_IP, "soon"))).waits(
            "a `--node-ip` that is not an address",
            "waits; an event reports why",
            " !dedicated",
            ("NotInitialized", "--node-ip"),
        ),
        by_name("not-its-own").kubelet(|node| other_taint(node.annotation(PROVIDED_IP, "10.0.0.2"))).waits(
            "a `--node-ip` that the VM does not have",
            "waits; an event reports why",
            " !dedicated",
            ("NotInitialized", "--node-ip 10.0.0.2 is none of the addresses"),
        ),
        by_name("with-id").with_id().kubelet(other_taint).initialised(
            "an existing provider id, in upper case",
            KEPT,
            " !dedicated",
        ),
        by_name("no-uuid").vm(|vm| vm.uuid = NIL.into()).waits(
            "no provider id can be set, identified by its name",
            "waits; an event reports why. The framework initialises such a node without an id, so it cannot be identified later",
            "",
            ("NotInitialized", "does not know the BIOS uuid"),
        ),
    ]
}

fn identified_by_uuid() -> Vec<Row> {
    let by_instance = |node: Node| {
        let instance = Vm::named("no-uuid-2").instance_uuid;
        node.system_uuid(&instance)
    };
    vec![
        by_uuid("plain-2").initialised("a new node, identified by its uuid", INITIALISED, ""),
        untainted("untainted-2", false, "no taint, identified by its uuid"),
        by_uuid("zoned-2").in_zone().initialised(
            "zone and region, identified by its uuid",
            "initialised; both names of both labels",
            "",
        ),
        by_uuid("dedicated-2").kubelet(other_taint).initialised(
            "another taint next to ours, identified by its uuid",
            "initialised; the other taint stays",
            " !dedicated",
        ),
        with_node_ip(by_uuid("node-ip-2"), "the kubelet's `--node-ip`, identified by its uuid"),
        Row {
            labels: &[("example.com/rack", Some("r1")), ("example.com/site", Some("lab"))],
            ..by_uuid("labelled").in_zone().initialised(
                "extra labels",
                "initialised; the labels are set",
                "",
            )
        },
        Row {
            labels: &[
                ("example.com/rack", Some("own")),
                ("example.com/site", Some("lab")),
                ("app.k8snio/a", Some("b")),
                ("node.kubernetes.io/site", None),
                ("topology.k8s.io/region", None),
                ("kubernetes.io/region", None),
                ("k8s.io/region", None),
            ],
            ..by_uuid("labelled-2")
                .in_zone()
                .kubelet(|node| {
                    node.label("example.com/rack", "own").label("example.com/site", "lab")
                })
                .initialised(
                    "extra labels, some of which exist already or belong to Kubernetes domains",
                    "initialised; existing labels stay, labels of Kubernetes domains are not set",
                    "",
                )
        },
        by_uuid("with-id-2").with_id().kubelet(other_taint).initialised(
            "an existing provider id",
            KEPT,
            " !dedicated",
        ),
        by_name("no-uuid-2").vm(|vm| vm.uuid = NIL.into()).kubelet(by_instance).waits(
            "no provider id can be set, identified by its instance uuid",
            "waits; an event reports why",
            "",
            ("NotInitialized", "does not know the BIOS uuid"),
        ),
        by_uuid("hidden").vm(|vm| vm.folder = APART.into()).waits(
            "the provider cannot answer for the node",
            "waits; an event reports that no VM is visible",
            "",
            ("VMNotFound", "no VM"),
        ),
    ]
}

impl Row {
    fn event(self, reason: &'static str, text: &'static str) -> Self {
        Self { event: Some((reason, text)), ..self }
    }
}

/// Waits until each node has its expected result, and checks that it does not change afterwards.
pub(crate) async fn check(stage: &Stage, rows: &[Row], ccm: &Process) {
    for row in rows {
        if let Some((reason, text)) = row.event {
            stage.event_containing(row.name, reason, text).await;
        }
        until_described(stage, row.case, row.name, ccm, &row.end).await;
    }
    // By now the controller has synced ignored nodes too.
    stage.settle(ccm, "node-marker").await;
    for row in rows {
        until_described(stage, row.case, row.name, ccm, &row.end).await;
        let node = stage.node(row.name).await;
        for (key, value) in row.labels {
            assert_eq!(label(&node, key), *value, "{}: {key}", row.case);
        }
    }
}
