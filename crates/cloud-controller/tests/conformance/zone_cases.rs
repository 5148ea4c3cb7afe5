//! The Go controller's 5 zone cases, one after the other on the VMs of one host, which always has an
//! unrelated tag. Where its lookup fails, a node waits here (`--require-zones`). Two more cases show
//! when a VM's own tags count.

use k8s_openapi::api::core::v1::{Event, Node as KubeNode};
use kube::{Api, api::ListParams};
use testkit::{Cluster, Host, Inventory, Process, Vm, eventually};

use super::common::*;

const ZONE: &str = "k8s-zone";
const REGION: &str = "k8s-region";
const DATACENTER: &str = "/DC0";
const CLUSTER: &str = "/DC0/host/cluster-c";
const HOST: &str = "/DC0/host/cluster-c/esx-c1";
const FOLDER: &str = "/DC0/vm/racked";

/// Category, tag and object.
type Attached = (&'static str, &'static str, &'static str);

pub(crate) struct Row {
    pub(crate) case: &'static str,
    pub(crate) result: &'static str,
    node: &'static str,
    detached: &'static [Attached],
    attached: &'static [Attached],
    /// Zone and region, or the missing categories.
    end: Result<(&'static str, &'static str), &'static [&'static str]>,
}

/// The number of the Go controller's cases.
pub(crate) const UPSTREAM: usize = 5;

/// All cases, in order: each starts with the tags of the previous one.
pub(crate) fn all() -> Vec<Row> {
    vec![
        Row {
            case: "no tags",
            result: "waits; an event names both categories",
            node: "tagged-1",
            detached: &[],
            attached: &[("team", "storage", HOST)],
            end: Err(&[ZONE, REGION]),
        },
        Row {
            case: "a region on the host, no zone",
            result: "waits; an event names only the zone category",
            node: "tagged-1",
            detached: &[],
            attached: &[(REGION, "us", HOST)],
            end: Err(&[ZONE]),
        },
        Row {
            case: "both on the host",
            result: "initialised",
            node: "tagged-1",
            detached: &[],
            attached: &[(ZONE, "zone-c", HOST)],
            end: Ok(("zone-c", "us")),
        },
        Row {
            case: "both removed from the host, before the next node",
            result: "the next node waits; an event names both categories",
            node: "tagged-2",
            detached: &[(ZONE, "zone-c", HOST), (REGION, "us", HOST)],
            attached: &[],
            end: Err(&[ZONE, REGION]),
        },
        Row {
            case: "the region on the datacenter, the zone on the cluster",
            result: "initialised",
            node: "tagged-2",
            detached: &[],
            attached: &[(REGION, "us", DATACENTER), (ZONE, "zone-c", CLUSTER)],
            end: Ok(("zone-c", "us")),
        },
        Row {
            case: "host and cluster lead to both, the VM has its own tags",
            result: "initialised; the host's path decides alone",
            node: "tagged-3",
            detached: &[],
            attached: &[(ZONE, "zone-own", "/DC0/vm/racked/tagged-3"), (REGION, "eu", FOLDER)],
            end: Ok(("zone-c", "us")),
        },
        Row {
            case: "the host leads to no zone, folder and VM have one each",
            result: "initialised; the VM's own zone is nearer than its folder's, and the region comes from the folder",
            node: "tagged-4",
            detached: &[],
            attached: &[
                (ZONE, "zone-folder", FOLDER),
                (ZONE, "zone-own", "/DC0/vm/racked/tagged-4"),
            ],
            end: Ok(("zone-own", "eu")),
        },
    ]
}

/// Adds the clusters and the folder for the VMs of these cases.
pub(crate) fn add_places(inventory: &mut Inventory) {
    let cluster = |letter: char| Cluster {
        name: format!("cluster-{letter}"),
        hosts: vec![Host { name: format!("esx-{letter}1"), ..Host::default() }],
        ..Cluster::default()
    };
    let datacenter = &mut inventory.datacenters[0];
    datacenter.clusters.extend([cluster('c'), cluster('d')]);
    datacenter.folders.push("racked".into());
}

fn vm(name: &str) -> Vm {
    let (folder, cluster) = match name {
        "tagged-3" => ("racked", "cluster-c"),
        "tagged-4" => ("racked", "cluster-d"),
        _ => ("", "cluster-c"),
    };
    Vm { folder: folder.into(), cluster: cluster.into(), ..Vm::named(name) }
}

/// Checks one row after the other. `start` starts a controller with `--require-zones` and more flags.
pub(crate) async fn check(stage: &Stage, start: impl Fn(&[&str]) -> Process) {
    let mut ccm = None;
    let mut last = "";
    for row in all() {
        let new = row.node != last;
        last = row.node;
        if new {
            // A new controller does not know earlier tags.
            drop(ccm.take());
            stage.vcenter.add_vms("DC0", [vm(row.node)]).await;
        }
        for (category, tag, at) in row.detached {
            stage.vcenter.detach_tag(category, tag, &[at]).await;
        }
        for (category, tag, at) in row.attached {
            stage.vcenter.attach_tag(category, tag, &[at]).await;
        }
        let ccm = ccm.get_or_insert_with(|| start(&[]));
        if new {
            stage.add_nodes(&[vm(row.node)]).await;
        }
        match row.end {
            Ok((zone, region)) => {
                let node = stage.initialised(row.node, ccm).await;
                let labels = ["topology.kubernetes.io/zone", "topology.kubernetes.io/region"];
                let found = labels.map(|key| label(&node, key));
                assert_eq!(found, [Some(zone), Some(region)], "{}", row.case);
            }
            Err(missing) => {
                stage.event_about_missing(row.node, missing).await;
                assert!(has_taint(&stage.node(row.node).await, UNINITIALIZED), "{}", row.case);
            }
        }
    }
    drop(ccm);
    // A controller that did not initialise the node also follows the VM's own tags.
    let (node, at) = ("tagged-4", "/DC0/vm/racked/tagged-4");
    stage.vcenter.detach_tag(ZONE, "zone-own", &[at]).await;
    stage.vcenter.attach_tag(ZONE, "zone-new", &[at]).await;
    let _following = start(&["--refresh-labels"]);
    let is_new = |node: &KubeNode| label(node, "topology.kubernetes.io/zone") == Some("zone-new");
    let node = stage.until("the zone follows", node, is_new).await;
    assert_eq!(label(&node, "topology.kubernetes.io/region"), Some("eu"));
}

impl Stage {
    /// Waits for an event about a node that names exactly these categories.
    async fn event_about_missing(&self, node: &str, missing: &[&str]) {
        let api = Api::<Event>::namespaced(self.plane.client(), "default");
        eventually(&format!("an event about {node} names {missing:?}"), 60, async || {
            let all = api.list(&ListParams::default()).await.map_err(|e| e.to_string())?;
            let about = all.items.into_iter().filter(|event| {
                event.involved_object.name.as_deref() == Some(node)
                    && event.reason.as_deref() == Some("ZoneMissing")
            });
            let messages: Vec<String> = about.filter_map(|event| event.message).collect();
            let names = |text: &String| {
                [ZONE, REGION].iter().all(|category| {
                    text.contains(&format!("\"{category}\"")) == missing.contains(category)
                })
            };
            if messages.iter().any(names) { Ok(()) } else { Err(format!("{messages:?}")) }
        })
        .await;
    }
}
