//! Which StorageClasses, zones and nodes a test uses.

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::api::{
    core::v1::{Node, Taint, Toleration, TopologySelectorTerm},
    storage::v1::{CSINode, StorageClass},
};
use kube::ResourceExt as _;
use plan::names::CSI_DRIVER;

/// One volume to test.
#[derive(Clone, Debug)]
pub(super) struct Target {
    pub(super) class: StorageClass,
    pub(super) zone: Zone,
    /// The node of the pod that writes.
    pub(super) first: String,
    /// The node of the pod that reads: another one, if the zone has one.
    pub(super) second: String,
}

impl Target {
    pub(super) fn moves(&self) -> bool {
        self.first != self.second
    }

    pub(super) fn nodes(&self) -> Vec<String> {
        let mut nodes = vec![self.first.clone(), self.second.clone()];
        nodes.dedup();
        nodes
    }
}

/// The driver's topology labels of a node with their values. Empty in a cluster without zones.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Zone(pub(super) BTreeMap<String, String>);

impl Zone {
    /// `region-1/zone-a`, or nothing in a cluster without zones.
    pub(super) fn name(&self) -> Option<String> {
        let values: Vec<&str> = self.0.values().map(String::as_str).collect();
        (!values.is_empty()).then(|| values.join("/"))
    }

    /// Whether a user means this zone: by its full name, or by one of its values.
    fn is_called(&self, name: &str) -> bool {
        self.name().as_deref() == Some(name) || self.0.values().any(|value| value == name)
    }
}

/// A node that can run pods with volumes of the driver.
#[derive(Clone, Debug)]
pub(super) struct Candidate {
    name: String,
    labels: BTreeMap<String, String>,
    zone: Zone,
    /// Whether ordinary pods do not run there.
    tainted: bool,
}

/// The nodes that are ready, accept pods with these tolerations and have the driver. Nodes without taints come first.
pub(super) fn candidates(
    nodes: &[Node],
    csi_nodes: &[CSINode],
    tolerations: &[Toleration],
) -> Vec<Candidate> {
    let candidate = |node: &Node| {
        let name = node.name_any();
        let csi_node = csi_nodes.iter().find(|csi_node| csi_node.name_any() == name)?;
        let driver = csi_node.spec.drivers.iter().find(|driver| driver.name == CSI_DRIVER)?;
        let spec = node.spec.clone().unwrap_or_default();
        let repels = |taint: &&Taint| taint.effect != "PreferNoSchedule";
        let taints: Vec<Taint> = spec.taints.iter().flatten().filter(repels).cloned().collect();
        let tolerated = |taint: &Taint| tolerations.iter().any(|one| tolerates(one, taint));
        let labels = node.labels().clone();
        let runs_image = labels.get("kubernetes.io/os").is_none_or(|os| os == "linux");
        let open = is_ready(node) && spec.unschedulable != Some(true) && runs_image;
        (open && taints.iter().all(tolerated)).then(|| {
            let keys = driver.topology_keys.iter().flatten();
            let zone = keys.filter_map(|key| Some((key.clone(), labels.get(key)?.clone())));
            Candidate { name, zone: Zone(zone.collect()), tainted: !taints.is_empty(), labels }
        })
    };
    let mut all: Vec<Candidate> = nodes.iter().filter_map(candidate).collect();
    all.sort_by(|a, b| (a.tainted, &a.name).cmp(&(b.tainted, &b.name)));
    all
}

fn is_ready(node: &Node) -> bool {
    let conditions = node.status.iter().flat_map(|status| status.conditions.iter().flatten());
    let ready = conditions.into_iter().any(|c| c.type_ == "Ready" && c.status == "True");
    ready && node.metadata.deletion_timestamp.is_none()
}

/// The rule of the scheduler.
fn tolerates(toleration: &Toleration, taint: &Taint) -> bool {
    let same = |wanted: &Option<String>, is: &str| {
        wanted.as_deref().is_none_or(|wanted| wanted.is_empty() || wanted == is)
    };
    let value = match toleration.operator.as_deref() {
        Some("Exists") => true,
        _ => {
            toleration.value.as_deref().unwrap_or_default()
                == taint.value.as_deref().unwrap_or_default()
        }
    };
    value && same(&toleration.key, &taint.key) && same(&toleration.effect, &taint.effect)
}

/// The names of all zones.
pub(super) fn zone_names(candidates: &[Candidate]) -> BTreeSet<String> {
    candidates.iter().filter_map(|candidate| candidate.zone.name()).collect()
}

/// The zones among `wanted` that no candidate is in.
pub(super) fn unknown_zones<'a>(candidates: &[Candidate], wanted: &'a [String]) -> Vec<&'a str> {
    let known = |name: &&String| candidates.iter().any(|one| one.zone.is_called(name));
    wanted.iter().filter(|name| !known(name)).map(String::as_str).collect()
}

/// The targets of one StorageClass, one for each zone that it allows. Without `zones`, every zone counts.
pub(super) fn targets(
    class: &StorageClass,
    candidates: &[Candidate],
    zones: &[String],
) -> Vec<Target> {
    let mut by_zone: BTreeMap<&Zone, Vec<&Candidate>> = BTreeMap::new();
    let wanted =
        |zone: &Zone| zones.is_empty() || zones.iter().any(|wanted| zone.is_called(wanted));
    for candidate in candidates.iter().filter(|one| wanted(&one.zone) && allows(class, one)) {
        by_zone.entry(&candidate.zone).or_default().push(candidate);
    }
    let target = |(zone, nodes): (&Zone, Vec<&Candidate>)| {
        let first = nodes.first()?;
        let second = nodes.get(1).unwrap_or(first);
        let (first, second) = (first.name.clone(), second.name.clone());
        Some(Target { class: class.clone(), zone: zone.clone(), first, second })
    };
    by_zone.into_iter().filter_map(target).collect()
}

/// Whether the class allows volumes for a node.
fn allows(class: &StorageClass, candidate: &Candidate) -> bool {
    let terms = class.allowed_topologies.as_deref().unwrap_or_default();
    terms.is_empty() || terms.iter().any(|term| selects(term, &candidate.labels))
}

pub(super) fn selects(term: &TopologySelectorTerm, labels: &BTreeMap<String, String>) -> bool {
    let mut expressions = term.match_label_expressions.iter().flatten();
    expressions.all(|one| labels.get(&one.key).is_some_and(|value| one.values.contains(value)))
}

#[cfg(test)]
pub(super) mod tests {
    use serde_json::{Value, json};

    use super::*;

    const ZONE: &str = "topology.csi.vmware.com/k8s-zone";

    #[expect(clippy::needless_pass_by_value, reason = "json! makes values")]
    fn node(name: &str, zone: Option<&str>, spec: Value) -> Node {
        let mut labels = json!({"kubernetes.io/os": "linux"});
        if let Some(zone) = zone {
            labels[ZONE] = json!(zone);
        }
        serde_json::from_value(json!({
            "metadata": {"name": name, "labels": labels}, "spec": spec,
            "status": {"conditions": [{"type": "Ready", "status": "True"}]},
        }))
        .unwrap()
    }

    fn csi_node(name: &str, driver: &str) -> CSINode {
        let driver = json!({"name": driver, "nodeID": name, "topologyKeys": [ZONE]});
        serde_json::from_value(json!({"metadata": {"name": name}, "spec": {"drivers": [driver]}}))
            .unwrap()
    }

    pub(in super::super) fn class(more: &Value) -> StorageClass {
        let mut class = json!({"metadata": {"name": "gold"}, "provisioner": CSI_DRIVER});
        for (key, value) in more.as_object().into_iter().flatten() {
            class[key] = value.clone();
        }
        serde_json::from_value(class).unwrap()
    }

    fn control_plane() -> Vec<Toleration> {
        let key = "node-role.kubernetes.io/control-plane";
        serde_json::from_value(json!([{"key": key, "operator": "Exists"}])).unwrap()
    }

    fn found(nodes: &[Node]) -> Vec<Candidate> {
        let csi_nodes: Vec<CSINode> =
            nodes.iter().map(|node| csi_node(&node.name_any(), CSI_DRIVER)).collect();
        candidates(nodes, &csi_nodes, &control_plane())
    }

    fn names(candidates: &[Candidate]) -> Vec<&str> {
        candidates.iter().map(|one| one.name.as_str()).collect()
    }

    #[test]
    fn only_nodes_that_can_run_the_pods_count_and_workers_come_first() {
        let taint = |key: &str| json!({"taints": [{"key": key, "effect": "NoSchedule"}]});
        let mut nodes = vec![
            node("a-control-plane", None, taint("node-role.kubernetes.io/control-plane")),
            node("worker-2", None, json!({})),
            node("worker-1", None, json!({})),
            node("cordoned", None, json!({"unschedulable": true})),
            node("reserved", None, taint("gpu")),
            node("unready", None, json!({})),
            node("windows", None, json!({})),
        ];
        nodes[5].status = None;
        nodes[6].labels_mut().insert("kubernetes.io/os".into(), "windows".into());
        assert_eq!(names(&found(&nodes)), ["worker-1", "worker-2", "a-control-plane"]);
        let other_driver = [csi_node("worker-1", "nfs.csi.k8s.io")];
        assert!(candidates(&nodes, &other_driver, &[]).is_empty(), "it has another driver");
        let all = [csi_node("a-control-plane", CSI_DRIVER)];
        assert!(candidates(&nodes, &all, &[]).is_empty(), "nothing tolerates the taint");
    }

    #[test]
    fn a_class_is_tested_in_every_zone_with_two_nodes_if_there_are_two() {
        let nodes = [
            node("a-1", Some("zone-a"), json!({})),
            node("a-2", Some("zone-a"), json!({})),
            node("b-1", Some("zone-b"), json!({})),
        ];
        let all = found(&nodes);
        let shown = |targets: &[Target]| -> Vec<String> {
            let one = |t: &Target| {
                format!("{} {} {}", t.zone.name().unwrap_or_default(), t.first, t.second)
            };
            targets.iter().map(one).collect()
        };
        let every = targets(&class(&json!({})), &all, &[]);
        assert_eq!(shown(&every), ["zone-a a-1 a-2", "zone-b b-1 b-1"]);
        assert!(every[0].moves() && !every[1].moves());
        let one = targets(&class(&json!({})), &all, &["zone-b".into()]);
        assert_eq!(shown(&one), ["zone-b b-1 b-1"]);
        let allowed = json!({"allowedTopologies": [
            {"matchLabelExpressions": [{"key": ZONE, "values": ["zone-a", "zone-c"]}]},
        ]});
        assert_eq!(shown(&targets(&class(&allowed), &all, &[])), ["zone-a a-1 a-2"]);
        let nowhere = json!({"allowedTopologies": [
            {"matchLabelExpressions": [{"key": ZONE, "values": ["zone-c"]}]},
        ]});
        assert!(targets(&class(&nowhere), &all, &[]).is_empty());
        assert_eq!(unknown_zones(&all, &["zone-a".into(), "zone-x".into()]), ["zone-x"]);
    }

    #[test]
    fn without_zones_a_class_is_tested_once() {
        let nodes = [node("n-1", None, json!({})), node("n-2", None, json!({}))];
        let all = targets(&class(&json!({})), &found(&nodes), &[]);
        assert_eq!(all.len(), 1);
        assert_eq!((all[0].zone.name(), all[0].nodes()), (None, vec!["n-1".into(), "n-2".into()]));
    }
}
