//! The storage driver is registered on the node, with the node's VM.

use api::finding::quoted;
use serde_json::json;

use crate::{checks::prelude::*, facts::CsiEntry, index};

pub(super) const CHECK: Check = Check {
    name: "nodes/csi_registered",
    gives: &[codes::CSI_NODE_MISSING, codes::CSI_NODE_STALE, codes::NODE_FOREIGN],
    run: CheckScope::Node(check),
};

const DRIVER: &str = "csi.vsphere.vmware.com";

/// Seconds that the registration may take.
const GRACE_PERIOD: i64 = 300;

fn check(view: &FactsView<'_>, node: &Node, sink: &mut Sink) {
    let Some(driver) = view.storage_driver() else { return };
    let question = format_args!("whether the storage driver is registered on {}", node.name);
    let Some(entry) = sink.need(&node.csi, || node_subject(node), question) else { return };
    let Some(entry) = entry else {
        sink.recheck(view, node.created, view.grace_period(GRACE_PERIOD));
        let due = node.ready && view.seconds_since(node.created) > view.grace_period(GRACE_PERIOD);
        if due && !node.is_foreign() && node.os == "linux" {
            let hit = Hit::for_node(codes::CSI_NODE_MISSING, node).driver("CSI");
            sink.raise(hit.shared("namespace", &driver.namespace));
        }
        return;
    };
    if node.is_foreign() && matches!(view.node_vm(node), NodeVm::Absent) {
        let id = node.provider_id.as_deref().unwrap_or("of another platform");
        let hit = Hit::for_node(codes::NODE_FOREIGN, node).driver("CSI");
        let reason = format!("its provider id is {id}");
        sink.raise(hit.with("reason", reason).with("patch", removal(entry)));
        return;
    }
    if let Some(reason) = stale(view, node, &entry.node_id) {
        let hit = Hit::for_node(codes::CSI_NODE_STALE, node).driver("CSI");
        let [step, otherwise] = steps(view, node, entry, &driver.namespace);
        sink.raise(
            hit.with("id", &entry.node_id)
                .with("reason", reason)
                .with("step", step)
                .with("otherwise", otherwise),
        );
    }
}

/// A JSON patch that removes only this entry of a CSINode: the drivers of other vendors stay registered. It fails if
/// the entry has changed by then.
fn removal(entry: &CsiEntry) -> String {
    let path = format!("/spec/drivers/{}", entry.index);
    let test = |field: &str, value: &str| json!({"op": "test", "path": format!("{path}/{field}"), "value": value});
    let remove = json!({"op": "remove", "path": path});
    json!([test("name", DRIVER), test("nodeID", &entry.node_id), remove]).to_string()
}

/// A node whose VM exists registers again; only a node without a VM is deleted.
fn steps(view: &FactsView<'_>, node: &Node, entry: &CsiEntry, namespace: &str) -> [String; 2] {
    let name = quoted(&node.name);
    match view.node_vm(node) {
        NodeVm::One(_) => [
            format!(
                "kubectl patch csinode {name} --type json --patch {}   removes only the registration of the vSphere driver",
                quoted(&removal(entry))
            ),
            format!(
                "kubectl delete pod --namespace {namespace} --selector app=vsphere-csi-node --field-selector \
                 spec.nodeName={name}   the new pod registers the node under its VM; volumes stay mounted"
            ),
        ],
        NodeVm::Absent => [
            format!(
                "govc find / -type m -config.uuid {}   with an administrator's account: must show no VM",
                quoted(&node.system_uuid.to_lowercase())
            ),
            format!("If the VM was deleted: kubectl delete node {name}"),
        ],
        NodeVm::Several(_) | NodeVm::Unclear { .. } => [
            format!(
                "Find out whether the VM of {name} exists: see the other findings about this node"
            ),
            String::new(),
        ],
    }
}

/// The reason why the driver's id of a node is out of date.
fn stale(view: &FactsView<'_>, node: &Node, id: &str) -> Option<String> {
    // Releases before 2.5 used the node's name.
    let plain = id == node.name || id.eq_ignore_ascii_case(&node.system_uuid);
    if plain || index::uuids(node).iter().any(|uuid| uuid.eq_ignore_ascii_case(id)) {
        return None;
    }
    let elsewhere = view.index.vms_with_uuid(id).first().and_then(|at| view.vm(at));
    let all_seen = view.facts.vcenters.values().all(|vcenter| vcenter.inventory.get().is_some());
    match elsewhere {
        Some(found) => Some(format!("the VM {}", found.vm.path)),
        None if all_seen => Some("a VM that no vCenter knows".to_owned()),
        None => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_node_without_the_driver_is_reported() {
        shows(
            &CHECK,
            &["VDO-1221"],
            |facts| facts.node("worker-1").csi = Known::Known(None),
            |facts| facts.node("worker-1").csi = Known::unknown("VDO cannot read CSINodes"),
        );
    }

    #[test]
    fn a_registration_of_a_deleted_vm_is_reported() {
        let mut facts = healthy();
        facts.node("worker-1").csi.get_mut().unwrap().as_mut().unwrap().node_id = "gone".into();
        assert_eq!(codes_of(&CHECK, &facts), ["VDO-1222"]);
        facts.vcenter().inventory = Known::unknown("vcenter-a does not answer");
        assert_eq!(codes_of(&CHECK, &facts), [""; 0], "absence is not proven");
    }

    #[test]
    fn a_node_whose_vm_exists_is_not_to_be_deleted() {
        let fix = |facts: Facts| {
            let all = crate::Examination::run(facts).report().all();
            let finding = all.into_iter().find(|finding| finding.code == "VDO-1222").unwrap();
            finding.remedy.join("\n")
        };
        let mut facts = healthy();
        facts.node("worker-1").csi.get_mut().unwrap().as_mut().unwrap().node_id = "gone".into();
        let steps = fix(facts.clone());
        assert!(steps.starts_with("kubectl patch csinode worker-1 --type json --patch"), "{steps}");
        assert!(!steps.contains("delete node") && !steps.contains("delete csinode"), "{steps}");
        facts.inventory().vms.retain(|_, vm| vm.name != "worker-1");
        let steps = fix(facts);
        assert!(steps.contains("# If the VM was deleted: kubectl delete node worker-1"), "{steps}");
    }

    #[test]
    fn the_registrations_of_other_drivers_stay() {
        let patch = |prepare: fn(&mut Facts), code: &str| {
            let mut facts = healthy();
            let entry = facts.node("worker-1").csi.get_mut().unwrap().as_mut().unwrap();
            (entry.node_id, entry.index) = ("it's gone".into(), 2);
            prepare(&mut facts);
            let all = crate::Examination::run(facts).report().all();
            let finding = all.into_iter().find(|finding| finding.code == code).unwrap();
            finding.remedy.into_iter().find(|step| step.contains(" csinode ")).unwrap()
        };
        let expected = concat!(
            r#"kubectl patch csinode worker-1 --type json --patch '[{"op":"test","path":"/spec/drivers/2/name","#,
            r#""value":"csi.vsphere.vmware.com"},{"op":"test","path":"/spec/drivers/2/nodeID","#,
            r#""value":"it'\''s gone"},{"op":"remove","path":"/spec/drivers/2"}]'   # "#,
        );
        let stale = patch(|_| {}, "VDO-1222");
        assert!(stale.starts_with(expected), "{stale}");
        let foreign = |facts: &mut Facts| {
            let node = facts.node("worker-1");
            node.provider_id = Some("metal://rack-7".into());
            node.system_uuid = "rack-7".into();
        };
        let foreign = patch(foreign, "VDO-1223");
        assert!(foreign.starts_with(expected), "{foreign}");
    }

    #[test]
    fn the_driver_on_a_node_outside_vsphere_is_reported() {
        let mut facts = healthy();
        let node = facts.node("worker-1");
        node.provider_id = Some("metal://rack-7".into());
        node.system_uuid = "rack-7".into();
        assert_eq!(codes_of(&CHECK, &facts), ["VDO-1223"]);
        facts.node("worker-1").csi = Known::Known(None);
        assert_eq!(codes_of(&CHECK, &facts), [""; 0], "without the driver it is at home");
    }
}
