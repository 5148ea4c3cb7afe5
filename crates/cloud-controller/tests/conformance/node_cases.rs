//! The cases of the framework's node controller.

use k8s_openapi::api::core::v1::Taint;
use testkit::{Nic, Node, Process, Vm};

use super::{APART, common::*, until_shown};

const PROVIDED_IP: &str = "alpha.kubernetes.io/provided-node-ip";
/// How the type of every machine here begins.
const TYPE: &str = "vsphere-vm";
const NIL: &str = "00000000-0000-0000-0000-000000000000";

/// One case.
pub(crate) struct Row {
    /// What it is about.
    pub(crate) case: &'static str,
    /// What becomes of the node.
    pub(crate) means: &'static str,
    /// What node and machine are called.
    pub(crate) name: &'static str,
    /// The machine.
    pub(crate) vm: Option<Vm>,
    node: Node,
    /// The node in the end, in words.
    end: String,
    /// Reason and text of an event that tells why.
    told: Option<(&'static str, &'static str)>,
    /// Labels in the end.
    labels: &'static [(&'static str, Option<&'static str>)],
}

impl Row {
    pub(crate) fn node(&self) -> Node {
        self.node.clone()
    }

    /// Whether its machine may not be seen.
    pub(crate) fn is_hidden(&self) -> bool {
        self.vm.as_ref().is_some_and(|vm| vm.folder == APART)
    }

    /// Whether vCenter does not know the uuid of its machine.
    pub(crate) fn is_nameless(&self) -> bool {
        self.vm.as_ref().is_some_and(|vm| vm.uuid == NIL)
    }

    pub(crate) fn path(&self) -> String {
        format!("/DC0/vm/{}", self.name)
    }
}

/// A row in the making: machine and node of one name, the node waits for its cloud controller.
struct Draft {
    name: &'static str,
    vm: Vm,
    by_name: bool,
    id: String,
    zone: &'static str,
    node: Node,
}

/// A machine at 10.0.0.1 that calls itself `<name>.internal`.
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

/// Recognised by its name alone.
fn by_name(name: &'static str) -> Draft {
    draft(name, true)
}

/// Recognised by its uuid.
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

    /// The node comes with a provider id: in upper case, or as we write it.
    fn with_id(mut self) -> Self {
        if self.by_name {
            self.id = self.id.replace("vsphere://", "VSPHERE://").to_uppercase();
        }
        let id = self.id.clone();
        self.kubelet(|node| node.provider_id(&id))
    }

    /// As it is when all went well: `taints` are those of others.
    fn initialised(self, case: &'static str, means: &'static str, taints: &str) -> Row {
        let addresses =
            format!("Hostname={}.internal InternalIP=10.0.0.1 ExternalIP=10.0.0.1", self.name);
        let end = format!("written {}{taints}{} {TYPE} {addresses}", self.id, self.zone);
        self.row(case, means, end)
    }

    /// As it is while it waits: the kubelet's taint, the kubelet's address.
    fn waits(
        self,
        case: &'static str,
        means: &'static str,
        taints: &str,
        told: (&'static str, &'static str),
    ) -> Row {
        let end = format!("untouched{taints} !uninitialized Hostname={}", self.name);
        Row { told: Some(told), ..self.row(case, means, end) }
    }

    fn row(self, case: &'static str, means: &'static str, end: String) -> Row {
        let Self { name, vm, node, .. } = self;
        Row { case, means, name, vm: Some(vm), node, end, told: None, labels: &[] }
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

/// A node that nobody tainted.
fn ignored(name: &'static str, by_name: bool, case: &'static str) -> Row {
    let mut draft = draft(name, by_name);
    let node = Node::named(name);
    draft.node = if by_name { node } else { node.system_uuid(&draft.vm.uuid) };
    if by_name {
        let end = format!("untouched Hostname={name}");
        return draft.row(case, "left alone: a name alone makes no node a machine", end);
    }
    let end = format!("written Hostname={name}.internal InternalIP=10.0.0.1 ExternalIP=10.0.0.1");
    draft.row(case, "not initialised: neither id nor labels; its addresses follow the machine, as in the framework's \
                     status loop", end)
}

/// A kubelet that was told its address, which is the second of the machine's.
fn wished(draft: Draft, case: &'static str) -> Row {
    let name = draft.name;
    let draft = draft
        .vm(|vm| vm.nics[0].addresses.insert(0, "10.0.0.9/24".into()))
        .kubelet(|node| node.annotation(PROVIDED_IP, "10.0.0.1"));
    let end = format!(
        "written {} {TYPE} InternalIP=10.0.0.1 ExternalIP=10.0.0.1 Hostname={name}.internal",
        draft.id
    );
    draft.row(case, "initialised; that address is taken, and comes first", end)
}

const INITIALISED: &str = "initialised";
const KEPT: &str = "initialised; the provider id stays as it was written";

/// All cases, in the framework's order.
pub(crate) fn all() -> Vec<Row> {
    let mut all = first_interface();
    all.extend(second_interface());
    all
}

fn first_interface() -> Vec<Row> {
    let nobodys = by_uuid("foreign").kubelet(|node| other_taint(node.provider_id("aws:///eu/i-1")));
    let nobodys_end =
        "untouched aws:///eu/i-1 !dedicated !uninitialized Hostname=foreign".to_owned();
    vec![
        by_name("named").initialised(
            "the kubelet gave a host name, the machine has another",
            "initialised; the machine's takes its place",
            "",
        ),
        by_name("nameless-guest")
            // It is recognised by its address then.
            .vm(|vm| {
                vm.host_name = String::new();
                vm.nics[0].addresses = vec!["10.7.7.7/24".into()];
            })
            .kubelet(|node| node.internal_ip("10.7.7.7"))
            .row(
                "the kubelet gave a host name, the machine tells none",
                "waits, as with the Go controller: a guest without a name is one whose tools are not up yet; the \
                 kubelet's name is kept",
                "untouched !uninitialized Hostname=nameless-guest InternalIP=10.7.7.7".into(),
            )
            .told("NotInitialized", "no host name"),
        by_name("plain").initialised("a fresh node, recognised by its name", INITIALISED, ""),
        ignored("tainted-by-nobody", true, "no taint, recognised by its name"),
        by_name("zoned").in_zone().initialised(
            "zone and region, recognised by its name",
            "initialised; both names of both labels",
            "",
        ),
        by_name("dedicated").kubelet(other_taint).initialised(
            "another taint beside ours, recognised by its name",
            "initialised; the other taint stays",
            " !dedicated",
        ),
        nobodys.row(
            "the provider knows nothing of the node and says so",
            "untouched: its provider id is another provider's",
            nobodys_end,
        ),
        wished(by_name("wish"), "the kubelet's `--node-ip`, recognised by its name"),
        by_name("no-address").kubelet(|node| other_taint(node.annotation(PROVIDED_IP, "soon"))).waits(
            "a `--node-ip` that is no address",
            "waits, and is told",
            " !dedicated",
            ("NotInitialized", "--node-ip"),
        ),
        by_name("not-its-own").kubelet(|node| other_taint(node.annotation(PROVIDED_IP, "10.0.0.2"))).waits(
            "a `--node-ip` that the machine does not have",
            "waits, and is told",
            " !dedicated",
            ("NotInitialized", "--node-ip 10.0.0.2 is none of the addresses"),
        ),
        by_name("with-id").with_id().kubelet(other_taint).initialised(
            "a provider id that is there, in upper case",
            KEPT,
            " !dedicated",
        ),
        by_name("no-uuid").vm(|vm| vm.uuid = NIL.into()).waits(
            "no provider id can be given, recognised by its name",
            "waits, and is told: the framework lets such a node go without an id, which nobody could find again",
            "",
            ("NotInitialized", "does not know the BIOS uuid"),
        ),
    ]
}

fn second_interface() -> Vec<Row> {
    let by_instance = |node: Node| {
        let instance = Vm::named("no-uuid-2").instance_uuid;
        node.system_uuid(&instance)
    };
    vec![
        by_uuid("plain-2").initialised("a fresh node, recognised by its uuid", INITIALISED, ""),
        ignored("tainted-by-nobody-2", false, "no taint, recognised by its uuid"),
        by_uuid("zoned-2").in_zone().initialised(
            "zone and region, recognised by its uuid",
            "initialised; both names of both labels",
            "",
        ),
        by_uuid("dedicated-2").kubelet(other_taint).initialised(
            "another taint beside ours, recognised by its uuid",
            "initialised; the other taint stays",
            " !dedicated",
        ),
        wished(by_uuid("wish-2"), "the kubelet's `--node-ip`, recognised by its uuid"),
        Row {
            labels: &[("example.com/rack", Some("r1")), ("example.com/site", Some("lab"))],
            ..by_uuid("labelled").in_zone().initialised(
                "labels of the admin's",
                "initialised; they are set",
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
                    "labels of the admin's, some of which are there or are Kubernetes' own",
                    "initialised; what is there stays, what is Kubernetes' own is left out",
                    "",
                )
        },
        by_uuid("with-id-2").with_id().kubelet(other_taint).initialised(
            "a provider id that is there",
            KEPT,
            " !dedicated",
        ),
        by_name("no-uuid-2").vm(|vm| vm.uuid = NIL.into()).kubelet(by_instance).waits(
            "no provider id can be given, recognised by its instance uuid",
            "waits, and is told",
            "",
            ("NotInitialized", "does not know the BIOS uuid"),
        ),
        by_uuid("hidden").vm(|vm| vm.folder = APART.into()).waits(
            "the provider cannot tell of the node",
            "waits, and is told: the machine may not be seen",
            "",
            ("MachineNotFound", "no virtual machine"),
        ),
    ]
}

impl Row {
    fn told(self, reason: &'static str, text: &'static str) -> Self {
        Self { told: Some((reason, text)), ..self }
    }
}

/// Waits until each node has ended as it should; then nothing more is under way.
pub(crate) async fn check(stage: &Stage, rows: &[Row], ccm: &Process) {
    for row in rows {
        if let Some((reason, text)) = row.told {
            stage.event_saying(row.name, reason, text).await;
        }
        until_shown(stage, row.case, row.name, ccm, &row.end).await;
    }
    // Whoever is left alone has been looked at by now.
    stage.settle(ccm, "node-marker").await;
    for row in rows {
        until_shown(stage, row.case, row.name, ccm, &row.end).await;
        let node = stage.node(row.name).await;
        for (key, value) in row.labels {
            assert_eq!(label(&node, key), *value, "{}: {key}", row.case);
        }
    }
}
