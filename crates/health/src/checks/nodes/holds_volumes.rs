//! No volume stays attached to a node that is down.

use api::finding::quoted;

use crate::{checks::prelude::*, facts::Power};

pub(super) const CHECK: Check = Check {
    name: "nodes/holds_volumes",
    gives: &[codes::NODE_HOLDS_VOLUMES],
    run: CheckScope::Cluster(&[Part::Nodes, Part::Vms, Part::Volumes], check),
};

/// Kubernetes evicts the pods of an unreachable node after five minutes, and detaches its volumes after six
/// if it can.
const GRACE_PERIOD: i64 = 360;

fn check(view: &FactsView<'_>, sink: &mut Sink) {
    let question = "whether volumes are attached to nodes that are down";
    let Some(volumes) = sink.need(&view.facts.storage.volumes, cluster_subject, question) else {
        return;
    };
    let question = "whether pods wait for volumes of nodes that are down";
    let contested = sink.need(&view.facts.storage.contested, cluster_subject, question);
    for node in view.nodes() {
        if node.ready || node.has_taint(Node::OUT_OF_SERVICE) {
            continue;
        }
        sink.recheck(view, node.ready_since, view.grace_period(GRACE_PERIOD));
        if view.seconds_since(node.ready_since) < view.grace_period(GRACE_PERIOD) {
            continue;
        }
        let handles = view.index.volumes_on_node(&node.name);
        if handles.is_empty() {
            continue;
        }
        let attached = || handles.iter().filter_map(|handle| volumes.get(handle));
        let names: Vec<&str> = attached().map(|volume| volume.name.as_str()).collect();
        let mut waiting = contested.into_iter().flat_map(|all| {
            let waits = |volume: &Volume| all.get(&volume.name).filter(|pod| can_use(pod, volume));
            attached().filter_map(move |volume| Some((volume.name.as_str(), waits(volume)?)))
        });
        // Without a waiting pod, nobody may need the volumes at present.
        let (severity, waits) = match waiting.next() {
            Some((volume, pod)) => (Severity::Error, format!("; {pod} waits for {volume}")),
            None => (Severity::Warning, String::new()),
        };
        let [power, taint] = steps(view, node);
        let count = handles.len();
        let mut hit = Hit::for_node(codes::NODE_HOLDS_VOLUMES, node)
            .with("since", moment(node.ready_since))
            .with("count", format!("{count} volume{}", if count == 1 { "" } else { "s" }))
            .with("volumes", first_names(names))
            .with("waits", waits)
            .severity(severity)
            .with("power", power)
            .with("taint", taint);
        for handle in handles {
            hit = hit.at(Anchor::Volume, handle);
        }
        sink.raise(hit);
    }
}

/// The taint makes Kubernetes detach the volumes at once. A VM that still runs would lose its disks while it writes.
fn steps(view: &FactsView<'_>, node: &Node) -> [String; 2] {
    let name = quoted(&node.name);
    let taint =
        format!("kubectl taint node {name} {}=nodeshutdown:NoExecute", Node::OUT_OF_SERVICE);
    match view.only_vm(node) {
        Some(found) if found.vm.power == Power::Off => [
            String::new(),
            format!(
                "{taint}   makes Kubernetes detach its volumes; vCenter reports that its VM is off"
            ),
        ],
        // With -force, govc would report success although the VM still runs.
        Some(found) => [
            format!(
                "govc vm.power -off {} && {taint}   makes Kubernetes detach its volumes, but only if the VM powers off",
                quoted(&found.vm.path)
            ),
            String::new(),
        ],
        None => [
            format!(
                "VDO does not know the VM of {name}. Make sure that {name} is powered off: with the taint, a node that \
                 still runs loses its disks while it writes"
            ),
            format!("Then: {taint}   makes Kubernetes detach its volumes"),
        ],
    }
}

/// Whether a pod can use a volume: their namespaces are the same. A tenant can write an Event about his own pods that
/// names the volume of another tenant.
fn can_use(pod: &str, volume: &Volume) -> bool {
    let namespace = |name: &str| name.split_once('/').map(|(namespace, _)| namespace.to_owned());
    let claim = volume.claim.as_deref().and_then(namespace);
    claim.is_some() && claim == namespace(pod)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    fn power_cut(facts: &mut Facts) {
        facts.node("worker-1").ready = false;
    }

    fn severities(facts: &Facts) -> Vec<Severity> {
        let examination = crate::Examination::run(facts.clone());
        let found = examination.report().all().into_iter();
        found.filter(|f| f.code == "VDO-1225").map(|finding| finding.severity).collect()
    }

    #[test]
    fn it_is_an_error_when_a_pod_waits_for_one_of_its_volumes() {
        let mut facts = healthy();
        power_cut(&mut facts);
        assert_eq!(severities(&facts), [Severity::Warning]);
        let held = facts.storage.volumes.get().unwrap().values();
        let held = held.clone().find(|volume| volume.node.as_deref() == Some("worker-1"));
        let held = held.unwrap();
        let namespace = held.claim.as_deref().unwrap().split_once('/').unwrap().0;
        let (held, pod) = (held.name.clone(), format!("{namespace}/web-1"));
        facts.storage.contested = BTreeMap::from([("elsewhere".to_owned(), pod.clone())]).into();
        assert_eq!(severities(&facts), [Severity::Warning], "another volume");
        let tenant = "tenant/web-1".to_owned();
        facts.storage.contested = BTreeMap::from([(held.clone(), tenant)]).into();
        assert_eq!(severities(&facts), [Severity::Warning], "a pod of another namespace");
        facts.storage.contested = BTreeMap::from([(held, pod)]).into();
        assert_eq!(severities(&facts), [Severity::Error]);
    }

    #[test]
    fn kubernetes_detaches_volumes_only_from_a_vm_that_is_off() {
        const TAINT: &str = "kubectl taint node worker-1 node.kubernetes.io/out-of-service=";
        let steps = |prepare: fn(&mut Facts)| {
            let mut facts = healthy();
            power_cut(&mut facts);
            prepare(&mut facts);
            let all = crate::Examination::run(facts).report().all();
            all.into_iter().find(|finding| finding.code == "VDO-1225").unwrap().remedy
        };
        let pasted = |steps: Vec<String>| -> Vec<String> {
            steps.into_iter().filter(|step| !step.starts_with('#')).collect()
        };
        let on = pasted(steps(|_| {}));
        let [step] = &on[..] else { panic!("one command, which stops if it fails: {on:?}") };
        assert!(step.starts_with("govc vm.power -off /DC0/vm/k8s/worker-1 && kubectl"), "{step}");
        assert!(step.contains(TAINT) && !step.contains("-force"), "{step}");
        let suspended = pasted(steps(|facts| facts.vm("worker-1").power = Power::Suspended));
        assert_eq!(suspended, on, "it can resume");
        let off = pasted(steps(|facts| facts.vm("worker-1").power = Power::Off));
        let [step] = &off[..] else { panic!("{off:?}") };
        assert!(step.starts_with(TAINT), "{step}");
        let unknown = steps(|facts| facts.inventory().vms.retain(|_, vm| vm.name != "worker-1"));
        assert_eq!(pasted(unknown.clone()), [""; 0], "nobody knows whether it still writes");
        let off = unknown.iter().position(|step| step.contains("worker-1 is powered off"));
        let taint = unknown.iter().position(|step| step.contains(TAINT));
        assert!(off.is_some() && off < taint, "{unknown:?}");
    }

    #[test]
    fn a_dead_node_with_volumes_is_reported() {
        shows(&CHECK, &["VDO-1225"], power_cut, |facts| {
            facts.storage.volumes = Known::unknown("VDO cannot list PersistentVolumes");
        });
    }

    #[test]
    fn a_node_that_just_went_down_has_a_grace_period() {
        let mut facts = healthy();
        power_cut(&mut facts);
        facts.node("worker-1").ready_since =
            jiff::Timestamp::from_second(facts.now.as_second() - 300).unwrap();
        assert_eq!(codes_of(&CHECK, &facts), [""; 0]);
    }

    #[test]
    fn a_dead_node_without_volumes_holds_none() {
        let mut facts = healthy();
        power_cut(&mut facts);
        for volume in facts.storage.volumes.get_mut().unwrap().values_mut() {
            volume.node = None;
        }
        assert_eq!(codes_of(&CHECK, &facts), [""; 0]);
    }

    #[test]
    fn the_out_of_service_taint_fixes_it() {
        let mut facts = healthy();
        power_cut(&mut facts);
        facts.node("worker-1").taints = vec![(Node::OUT_OF_SERVICE.into(), "NoSchedule".into())];
        assert_eq!(codes_of(&CHECK, &facts), [""; 0]);
    }
}
