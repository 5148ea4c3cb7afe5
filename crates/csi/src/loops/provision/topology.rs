//! Where a volume must be accessible: the topology requirement of CreateVolume, with the rules of
//! external-provisioner.

use std::{
    cmp::Ordering,
    collections::{BTreeMap, BTreeSet},
};

use k8s_openapi::api::{
    core::v1::{
        NodeSelector, NodeSelectorRequirement, NodeSelectorTerm, TopologySelectorTerm,
        VolumeNodeAffinity,
    },
    storage::v1::StorageClass,
};

use crate::proto::csi::{Topology, TopologyRequirement};

/// One topology segment: a value for each key.
pub type Segment = BTreeMap<String, String>;

/// The topology of the nodes that the driver runs on.
pub trait NodeTopology {
    /// The keys that the driver registered on a node. `None` without a CSINode.
    fn keys(&self, node: &str) -> Option<Vec<String>>;
    /// The nodes on which the driver registered topology keys.
    fn nodes_with_keys(&self) -> Vec<(String, Vec<String>)>;
    /// The labels of a node.
    fn labels(&self, node: &str) -> Option<BTreeMap<String, String>>;
}

#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// With a selected node, only the segment of that node is requested.
    pub strict: bool,
    /// A claim that binds immediately gets all segments as its requirement.
    pub immediate: bool,
}

/// Why there is no requirement.
#[derive(Debug, PartialEq, Eq)]
pub struct Unsatisfiable {
    pub message: String,
    /// Another node can help: the scheduler must select again.
    pub reschedule: bool,
}

fn unsatisfiable(message: String) -> Unsatisfiable {
    Unsatisfiable { message, reschedule: false }
}

/// Builds the requirement for a claim. `None` requests no topology.
pub fn requirement(
    claim_name: &str,
    class: &StorageClass,
    selected_node: Option<&str>,
    nodes: &impl NodeTopology,
    options: Options,
) -> Result<Option<TopologyRequirement>, Unsatisfiable> {
    let allowed = flatten(class.allowed_topologies.as_deref().unwrap_or_default());
    let selected = selected_node.map(|node| segment_of_selected(node, nodes)).transpose()?;
    let mut requisite = match (&selected, selected_node) {
        (Some((_, segment)), Some(node)) if options.strict => {
            if !allowed.is_empty() && !allowed.iter().any(|term| is_subset(term, segment)) {
                return Err(unsatisfiable(format!(
                    "the node {node} has the topology {}, which the StorageClass does not allow: \
                     it allows {}",
                    display(segment),
                    display_all(&allowed)
                )));
            }
            vec![segment.clone()]
        }
        _ if !allowed.is_empty() => allowed,
        (None, _) if !options.immediate => return Ok(None),
        (Some((keys, _)), _) => aggregate(keys, nodes),
        (None, _) => match nodes.nodes_with_keys().first() {
            Some((_, keys)) => aggregate(keys, nodes),
            None => Vec::new(),
        },
    };
    if requisite.is_empty() {
        return Err(unsatisfiable(
            "no available topology found: on no node has the driver registered topology keys that match the \
             labels of the node"
                .into(),
        ));
    }
    requisite.sort_by(compare);
    requisite.dedup();
    let first = match &selected {
        Some((_, segment)) => requisite.iter().position(|term| is_subset(term, segment)),
        None => Some(spread(claim_name, requisite.len())),
    };
    let Some(first) = first else {
        let segment = selected.map(|(_, segment)| display(&segment)).unwrap_or_default();
        return Err(unsatisfiable(format!(
            "the node {} has the topology {segment}, which is not one of {}",
            selected_node.unwrap_or_default(),
            display_all(&requisite)
        )));
    };
    let mut preferred = requisite.clone();
    preferred.rotate_left(first);
    Ok(Some(TopologyRequirement {
        requisite: requisite.into_iter().map(topology).collect(),
        preferred: preferred.into_iter().map(topology).collect(),
    }))
}

/// The keys and the segment of the node that the scheduler selected.
fn segment_of_selected(
    node: &str,
    nodes: &impl NodeTopology,
) -> Result<(Vec<String>, Segment), Unsatisfiable> {
    let Some(keys) = nodes.keys(node) else {
        let message = format!("the node {node} has no CSINode: the driver does not run there");
        return Err(Unsatisfiable { message, reschedule: true });
    };
    if keys.is_empty() {
        return Err(unsatisfiable(format!(
            "no topology key found for node {node}: the driver on that node has not registered its topology"
        )));
    }
    let labels = nodes
        .labels(node)
        .ok_or_else(|| unsatisfiable(format!("the selected node {node} does not exist")))?;
    let segment = segment(&keys, &labels).ok_or_else(|| {
        unsatisfiable(format!(
            "the node {node} lacks one of the topology labels {}",
            keys.join(", ")
        ))
    })?;
    Ok((keys, segment))
}

/// `None` if a label is missing.
fn segment(keys: &[String], labels: &BTreeMap<String, String>) -> Option<Segment> {
    keys.iter().map(|key| Some((key.clone(), labels.get(key)?.clone()))).collect()
}

/// The segments of all nodes on which the driver registered exactly these keys.
fn aggregate(keys: &[String], nodes: &impl NodeTopology) -> Vec<Segment> {
    let wanted: BTreeSet<&String> = keys.iter().collect();
    let same = nodes.nodes_with_keys().into_iter().filter(|(_, keys)| {
        let keys: BTreeSet<&String> = keys.iter().collect();
        keys == wanted
    });
    same.filter_map(|(node, _)| segment(keys, &nodes.labels(&node)?)).collect()
}

/// The product of the values within a term, and the union of the terms.
fn flatten(allowed: &[TopologySelectorTerm]) -> Vec<Segment> {
    let mut all = Vec::new();
    for term in allowed {
        let mut segments = vec![Segment::new()];
        for expression in term.match_label_expressions.iter().flatten() {
            let extended = segments.iter().flat_map(|segment| {
                expression.values.iter().map(|value| {
                    let mut segment = segment.clone();
                    segment.insert(expression.key.clone(), value.clone());
                    segment
                })
            });
            segments = extended.collect();
        }
        all.extend(segments.into_iter().filter(|segment| !segment.is_empty()));
    }
    all
}

fn is_subset(part: &Segment, whole: &Segment) -> bool {
    part.iter().all(|(key, value)| whole.get(key) == Some(value))
}

fn compare(a: &Segment, b: &Segment) -> Ordering {
    a.len().cmp(&b.len()).then_with(|| a.cmp(b))
}

/// The preferred segment of a claim that binds immediately. Claims of the same StatefulSet replica prefer the same
/// segment, and its replicas are spread.
fn spread(claim_name: &str, segments: usize) -> usize {
    let (mut hashed, mut index) = (claim_name, 0);
    if let Some((prefix, number)) = claim_name.rsplit_once('-')
        && let Ok(number) = number.parse::<u32>()
    {
        index = number;
        hashed = prefix.rsplit_once('-').map_or(prefix, |(_, stateful_set)| stateful_set);
    }
    let sum = fnv1(hashed).wrapping_add(index);
    usize::try_from(sum).unwrap_or_default() % segments.max(1)
}

/// FNV-1 with 32 bits, not FNV-1a.
fn fnv1(text: &str) -> u32 {
    text.bytes()
        .fold(2_166_136_261, |hash: u32, byte| hash.wrapping_mul(16_777_619) ^ u32::from(byte))
}

fn topology(segment: Segment) -> Topology {
    Topology { segments: segment.into_iter().collect() }
}

fn display(segment: &Segment) -> String {
    segment.iter().map(|(key, value)| format!("{key}={value}")).collect::<Vec<_>>().join(",")
}

fn display_all(segments: &[Segment]) -> String {
    segments.iter().map(display).collect::<Vec<_>>().join("; ")
}

/// The node affinity of a volume that is accessible from these segments.
pub fn node_affinity(accessible: &[Topology]) -> Option<VolumeNodeAffinity> {
    let terms: Vec<NodeSelectorTerm> = accessible
        .iter()
        .filter(|topology| !topology.segments.is_empty())
        .map(|topology| {
            let sorted: BTreeMap<_, _> = topology.segments.iter().collect();
            let expressions = sorted.into_iter().map(|(key, value)| NodeSelectorRequirement {
                key: key.clone(),
                operator: "In".into(),
                values: Some(vec![value.clone()]),
            });
            NodeSelectorTerm {
                match_expressions: Some(expressions.collect()),
                ..NodeSelectorTerm::default()
            }
        })
        .collect();
    (!terms.is_empty()).then_some(VolumeNodeAffinity {
        required: Some(NodeSelector { node_selector_terms: terms }),
    })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    const ZONE: &str = "topology.csi.vmware.com/zone";
    const REGION: &str = "topology.csi.vmware.com/region";

    /// A name, its keys and its labels.
    type TestNode = (&'static str, Vec<&'static str>, Vec<(&'static str, &'static str)>);

    struct Nodes(Vec<TestNode>);

    impl Nodes {
        fn find(&self, node: &str) -> Option<&TestNode> {
            self.0.iter().find(|(name, ..)| *name == node)
        }
    }

    impl NodeTopology for Nodes {
        fn keys(&self, node: &str) -> Option<Vec<String>> {
            Some(self.find(node)?.1.iter().map(ToString::to_string).collect())
        }

        fn nodes_with_keys(&self) -> Vec<(String, Vec<String>)> {
            let all = self.0.iter().filter(|(_, keys, _)| !keys.is_empty());
            all.map(|(name, ..)| ((*name).into(), self.keys(name).unwrap())).collect()
        }

        fn labels(&self, node: &str) -> Option<BTreeMap<String, String>> {
            let labels = self.find(node)?.2.iter();
            Some(labels.map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect())
        }
    }

    fn three_zones() -> Nodes {
        Nodes(vec![
            ("n1", vec![ZONE], vec![(ZONE, "a"), ("other", "x")]),
            ("n2", vec![ZONE], vec![(ZONE, "b")]),
            ("n3", vec![ZONE], vec![(ZONE, "c")]),
            ("n4", vec![ZONE], vec![(ZONE, "b")]),
            ("unlabelled", vec![ZONE], vec![]),
            ("unregistered", vec![], vec![(ZONE, "z")]),
        ])
    }

    fn class(allowed: &serde_json::Value) -> StorageClass {
        serde_json::from_value(json!({
            "metadata": {"name": "fast"}, "provisioner": "csi.vsphere.vmware.com", "allowedTopologies": allowed,
        }))
        .unwrap()
    }

    fn zones(values: &[&str]) -> serde_json::Value {
        json!([{"matchLabelExpressions": [{"key": ZONE, "values": values}]}])
    }

    /// The zones of requisite and preferred, or the message.
    fn wanted(
        name: &str,
        class: &StorageClass,
        node: Option<&str>,
        strict: bool,
    ) -> Result<(String, String), Unsatisfiable> {
        let options = Options { strict, immediate: true };
        let found = requirement(name, class, node, &three_zones(), options)?.unwrap();
        let list =
            |all: &[Topology]| all.iter().map(|t| t.segments[ZONE].clone()).collect::<String>();
        Ok((list(&found.requisite), list(&found.preferred)))
    }

    #[test]
    fn a_selected_node_decides_with_strict_topology() {
        let (any, ab) = (class(&json!(null)), class(&zones(&["a", "b"])));
        assert_eq!(wanted("x", &any, Some("n2"), true), Ok(("b".into(), "b".into())));
        assert_eq!(wanted("x", &ab, Some("n2"), true), Ok(("b".into(), "b".into())));
        let refused = wanted("x", &ab, Some("n3"), true).unwrap_err();
        assert!(refused.message.contains("which the StorageClass does not allow"), "{refused:?}");
        assert!(!refused.reschedule);
    }

    #[test]
    fn without_strict_topology_the_segment_of_the_selected_node_comes_first() {
        let (any, cb) = (class(&json!(null)), class(&zones(&["c", "b"])));
        assert_eq!(wanted("x", &any, Some("n2"), false), Ok(("abc".into(), "bca".into())));
        assert_eq!(wanted("x", &cb, Some("n3"), false), Ok(("bc".into(), "cb".into())));
        let refused = wanted("x", &cb, Some("n1"), false).unwrap_err();
        assert!(refused.message.contains("not one of"), "{refused:?}");
    }

    #[test]
    fn replicas_of_a_stateful_set_are_spread_and_their_claims_stay_together() {
        let any = class(&json!(null));
        let first = |name: &str| wanted(name, &any, None, true).unwrap().1[..1].to_owned();
        let spread: BTreeSet<_> =
            (0..3).map(|replica| first(&format!("data-db-{replica}"))).collect();
        assert_eq!(spread.len(), 3);
        for replica in 0..3 {
            let (data, logs) = (format!("data-db-{replica}"), format!("logs-db-{replica}"));
            assert_eq!(first(&data), first(&logs));
        }
        assert_eq!(wanted("x", &any, None, true).unwrap().0, "abc", "sorted, each once");
    }

    #[test]
    fn the_hash_is_that_of_external_provisioner() {
        // From Go's hash/fnv New32.
        assert_eq!(fnv1(""), 0x811c_9dc5);
        assert_eq!(fnv1("a"), 0x050c_5d7e);
        assert_eq!(fnv1("foobar"), 0x31f0_b262);
    }

    #[test]
    fn immediate_binding_without_topology_requests_none() {
        let options = Options { strict: true, immediate: false };
        let none = requirement("x", &class(&json!(null)), None, &three_zones(), options);
        assert_eq!(none, Ok(None));
    }

    #[test]
    fn a_node_without_the_driver_is_not_selected_again() {
        let missing = wanted("x", &class(&json!(null)), Some("gone"), true).unwrap_err();
        assert!(missing.reschedule && missing.message.contains("has no CSINode"), "{missing:?}");
        let waiting = wanted("x", &class(&json!(null)), Some("unregistered"), true).unwrap_err();
        assert!(!waiting.reschedule);
        assert!(waiting.message.starts_with("no topology key found for node unregistered"));
        let unlabelled = wanted("x", &class(&json!(null)), Some("unlabelled"), true).unwrap_err();
        assert!(!unlabelled.reschedule && unlabelled.message.contains(ZONE), "{unlabelled:?}");
    }

    #[test]
    fn a_driver_that_runs_nowhere_provisions_nothing() {
        let options = Options { strict: true, immediate: true };
        let none = requirement("x", &class(&json!(null)), None, &Nodes(vec![]), options);
        assert!(none.unwrap_err().message.starts_with("no available topology found"));
    }

    #[test]
    fn allowed_topologies_are_multiplied_within_a_term_and_added_across_terms() {
        let terms: Vec<TopologySelectorTerm> = serde_json::from_value(json!([
            {"matchLabelExpressions": [{"key": ZONE, "values": ["a", "b"]}, {"key": REGION, "values": ["r", "s"]}]},
            {"matchLabelExpressions": [{"key": ZONE, "values": ["c"]}]},
        ]))
        .unwrap();
        let all: Vec<String> = flatten(&terms).iter().map(display).collect();
        assert_eq!(all.len(), 5);
        assert!(all.contains(&format!("{REGION}=s,{ZONE}=a")), "{all:?}");
        assert!(all.contains(&format!("{ZONE}=c")), "{all:?}");
    }

    #[test]
    fn each_accessible_segment_is_a_term_of_the_node_affinity() {
        let segment = |zone: &str| Topology {
            segments: [(ZONE.into(), zone.into()), (REGION.into(), "r".into())].into(),
        };
        let affinity = node_affinity(&[segment("a"), segment("b")]).unwrap();
        let terms = affinity.required.unwrap().node_selector_terms;
        assert_eq!(terms.len(), 2);
        let expressions = terms[0].match_expressions.as_ref().unwrap();
        let keys: Vec<&str> = expressions.iter().map(|e| e.key.as_str()).collect();
        assert_eq!(keys, [REGION, ZONE]);
        assert_eq!(node_affinity(&[]), None);
    }
}
