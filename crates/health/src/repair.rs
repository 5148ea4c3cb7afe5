//! Repairs VDO could make: proposals, as plain data. Carrying them out is somebody else's.
//!
//! Nothing here can lose data. A repair touches only the object its finding names, and each says what
//! it would do, what is left to do by hand, and how it is taken back.

use std::collections::{BTreeMap, BTreeSet};

use api::{
    finding::codes,
    vdo_config::{Remediation, Remedy},
};
use serde::{Deserialize, Serialize};

use crate::{
    check::{Anchor, Hit},
    checks::successor_image,
    examination::Examination,
    facts::Node,
    privileges,
    view::View,
};

/// One thing VDO could do.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Repair {
    /// Set `disk.EnableUUID` on a VM.
    SetDiskUuid {
        /// Name of the vCenter's object.
        vcenter: String,
        /// Reference of the VM.
        vm: String,
        /// Its node.
        node: String,
    },
    /// Taint a node so that the cloud provider looks at it.
    TaintNode {
        /// The node.
        node: String,
    },
    /// Remove the vSphere driver's entry from a CSINode; the driver registers anew.
    RemoveCsiEntry {
        /// The node.
        node: String,
    },
    /// Take a container's image from its new home.
    ReplaceImage {
        /// Namespace of the workload.
        namespace: String,
        /// Kind and name of the workload, as `deployment/vsphere-csi-controller`.
        workload: String,
        /// The container.
        container: String,
        /// The image it has.
        from: String,
        /// The same image at its new home.
        to: String,
    },
    /// Renew the certificate of a webhook.
    RenewWebhookCertificate {
        /// Name of the webhook's configuration.
        webhook: String,
        /// Namespace of its Secret.
        namespace: String,
        /// Its Secret.
        secret: String,
    },
    /// Add the feature switches a release needs.
    SetFeatures {
        /// Namespace of the ConfigMap.
        namespace: String,
        /// The switches to set.
        features: BTreeMap<String, String>,
    },
    /// Grant privileges on one object.
    Grant {
        /// Name of the vCenter's object.
        vcenter: String,
        /// The account.
        user: String,
        /// The object.
        path: String,
        /// The role that carries them.
        role: String,
        /// All privileges the role must carry: it replaces the one the account has there.
        privileges: BTreeSet<String>,
    },
}

/// A repair, and whether to make it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Proposal {
    /// The finding it cures.
    pub code: String,
    /// What to do.
    pub repair: Repair,
    /// Whether VDO makes it by itself.
    pub automatic: bool,
    /// What it does, in one sentence.
    pub says: String,
    /// What remains to be done by hand.
    pub then: Option<String>,
    /// How it is taken back; `None` if there is nothing to take back.
    pub undo: Option<String>,
}

/// The repairs the findings allow under these rules, without doubles, in a stable order.
pub fn propose(examination: &Examination, rules: &Remediation) -> Vec<Proposal> {
    let view = examination.view();
    let mut proposals: Vec<Proposal> =
        examination.hits().filter_map(|hit| of_hit(&view, hit, rules)).collect();
    proposals.sort_by(|a, b| (&a.code, &a.repair).cmp(&(&b.code, &b.repair)));
    proposals.dedup_by(|a, b| a.repair == b.repair);
    proposals
}

/// The rule of a kind of repair; `Propose` where nothing is said.
fn rule(rules: &Remediation, kind: Option<Remedy>) -> Remedy {
    kind.or(rules.default).unwrap_or_default()
}

fn of_hit(view: &View<'_>, hit: &Hit, rules: &Remediation) -> Option<Proposal> {
    let code = hit.definition.code;
    let kind = match code {
        c if c == codes::DISK_UUID_OFF.code => rules.disk_uuid,
        c if c == codes::KUBELET_NOT_EXTERNAL.code => rules.node_taints,
        c if c == codes::CSI_NODE_STALE.code => rules.csi_nodes,
        c if c == codes::IMAGE_MOVED.code => rules.image_registry,
        c if c == codes::WEBHOOK_CERTIFICATE.code => rules.webhook_certificates,
        c if c == codes::FEATURES_STALE.code => rules.feature_states,
        c if is_privilege(c) => rules.privileges,
        _ => return None,
    };
    let rule = rule(rules, kind);
    if rule == Remedy::Off {
        return None;
    }
    let repair = match code {
        c if c == codes::DISK_UUID_OFF.code => disk_uuid(view, hit)?,
        c if c == codes::KUBELET_NOT_EXTERNAL.code => Repair::TaintNode { node: node(hit)?.into() },
        c if c == codes::CSI_NODE_STALE.code => csi_entry(view, hit)?,
        c if c == codes::IMAGE_MOVED.code => image(hit)?,
        c if c == codes::WEBHOOK_CERTIFICATE.code => Repair::RenewWebhookCertificate {
            webhook: value(hit, "webhook")?.into(),
            namespace: value(hit, "namespace")?.into(),
            secret: value(hit, "secret")?.into(),
        },
        c if c == codes::FEATURES_STALE.code => features(view)?,
        _ => grant(hit)?,
    };
    Some(describe(code, repair, rule == Remedy::Fix))
}

fn is_privilege(code: &str) -> bool {
    privileges::REQUIREMENTS.iter().any(|requirement| requirement.finding.code == code)
}

fn node(hit: &Hit) -> Option<&str> {
    let anchor = hit.anchors.iter().find(|(anchor, _)| *anchor == Anchor::Node);
    anchor.map(|(_, name)| name.as_str())
}

fn value<'h>(hit: &'h Hit, name: &str) -> Option<&'h str> {
    let mut values = hit.own.iter().chain(&hit.shared);
    values.find(|(known, _)| *known == name).map(|(_, value)| value.as_str())
}

fn disk_uuid(view: &View<'_>, hit: &Hit) -> Option<Repair> {
    let node = view.node(node(hit)?)?;
    let found = view.only_machine(node)?;
    Some(Repair::SetDiskUuid {
        vcenter: found.vcenter.name.clone(),
        vm: found.id.to_owned(),
        node: node.name.clone(),
    })
}

/// Not while volumes are attached to the node: they are detached under the name it has now.
fn csi_entry(view: &View<'_>, hit: &Hit) -> Option<Repair> {
    let name = node(hit)?;
    let volumes = view.facts.storage.volumes.get()?;
    let holds = volumes.values().any(|volume| volume.node.as_deref() == Some(name));
    (!holds).then(|| Repair::RemoveCsiEntry { node: name.to_owned() })
}

fn image(hit: &Hit) -> Option<Repair> {
    let from = value(hit, "image")?;
    Some(Repair::ReplaceImage {
        namespace: value(hit, "namespace")?.into(),
        workload: value(hit, "workload")?.into(),
        container: value(hit, "container")?.into(),
        from: from.to_owned(),
        to: successor_image(from)?,
    })
}

fn features(view: &View<'_>) -> Option<Repair> {
    let driver = view.storage_driver()?;
    let actual = driver.features.get()?;
    let lacking = |(name, value): &(&String, &String)| match actual.get(*name) {
        None => true,
        Some(actual) => *value == "true" && actual != "true",
    };
    let features = driver.release_features.iter().filter(lacking);
    Some(Repair::SetFeatures {
        namespace: driver.namespace.clone(),
        features: features.map(|(name, value)| (name.clone(), value.clone())).collect(),
    })
}

fn grant(hit: &Hit) -> Option<Repair> {
    let names: BTreeSet<String> =
        value(hit, "list")?.split(' ').filter(|name| !name.is_empty()).map(str::to_owned).collect();
    let vcenter = hit.anchors.iter().find(|(anchor, _)| *anchor == Anchor::Vcenter)?;
    Some(Repair::Grant {
        vcenter: vcenter.1.clone(),
        user: value(hit, "user")?.into(),
        path: value(hit, "path").unwrap_or("/").into(),
        role: value(hit, "role")?.into(),
        privileges: names,
    })
}

fn describe(code: &str, repair: Repair, automatic: bool) -> Proposal {
    let (says, then, undo) = match &repair {
        Repair::SetDiskUuid { node, .. } => (
            format!("Sets disk.EnableUUID on the VM of {node}"),
            Some(format!("One power cycle of the VM of {node}, which VDO leaves to you")),
            Some(format!("Removes disk.EnableUUID from the VM of {node} again")),
        ),
        Repair::TaintNode { node } => (
            format!(
                "Taints {node} with {}, so that the cloud provider looks at it",
                Node::UNINITIALIZED
            ),
            Some(format!("--cloud-provider=external in kubelet's arguments on {node}")),
            Some(format!("Removes the taint from {node}")),
        ),
        Repair::RemoveCsiEntry { node } => (
            format!(
                "Removes the entry of csi.vsphere.vmware.com from CSINode {node}; the driver registers anew"
            ),
            None,
            None,
        ),
        Repair::ReplaceImage { workload, to, from, .. } => (
            format!("Lets {workload} pull {to}"),
            None,
            Some(format!("Lets {workload} pull {from} again")),
        ),
        Repair::RenewWebhookCertificate { webhook, namespace, secret } => (
            format!(
                "Writes a new certificate to Secret {namespace}/{secret} and its authority to {webhook}"
            ),
            None,
            None,
        ),
        Repair::SetFeatures { features, .. } => {
            let names: Vec<&str> = features.keys().map(String::as_str).collect();
            (
                format!("Sets the feature switches {} as the release has them", names.join(", ")),
                None,
                Some("Removes them again".to_owned()),
            )
        }
        Repair::Grant { user, path, role, privileges, .. } => {
            let names: Vec<&str> = privileges.iter().map(String::as_str).collect();
            (
                format!("Grants {user} the role {role} ({}) on {path}", names.join(", ")),
                None,
                Some(format!("Takes the role {role} from {user} on {path}")),
            )
        }
    };
    Proposal { code: code.to_owned(), repair, automatic, says, then, undo }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        facts::{Facts, Known},
        shortcuts::Shortcuts,
        testing::healthy,
    };

    fn proposals(facts: Facts, rules: &Remediation) -> Vec<Proposal> {
        propose(&Examination::of(facts), rules)
    }

    fn without_disk_uuid() -> Facts {
        let mut facts = healthy();
        facts.vm("worker-1").disk_uuid = false.into();
        facts.vm("worker-1").disk_uuid_set = false;
        facts
    }

    #[test]
    fn a_healthy_cluster_needs_no_repair() {
        assert_eq!(proposals(healthy(), &Remediation::default()), []);
    }

    #[test]
    fn the_rules_decide_between_saying_and_doing() {
        let rules = |remedy| Remediation { disk_uuid: Some(remedy), ..Remediation::default() };
        let proposed = proposals(without_disk_uuid(), &Remediation::default());
        assert!(!proposed[0].automatic && proposed[0].then.is_some(), "{proposed:#?}");
        assert!(proposals(without_disk_uuid(), &rules(Remedy::Fix))[0].automatic);
        assert_eq!(proposals(without_disk_uuid(), &rules(Remedy::Off)), []);
        let off = Remediation { default: Some(Remedy::Off), ..Remediation::default() };
        assert_eq!(proposals(without_disk_uuid(), &off), [], "the default counts for all kinds");
    }

    #[test]
    fn a_node_with_volumes_keeps_its_registration() {
        let mut facts = healthy();
        facts.node("worker-1").csi.get_mut().unwrap().as_mut().unwrap().node_id = "gone".into();
        assert_eq!(proposals(facts.clone(), &Remediation::default()), [], "volumes are attached");
        facts
            .storage
            .volumes
            .get_mut()
            .unwrap()
            .retain(|_, v| v.node.as_deref() != Some("worker-1"));
        let repairs = proposals(facts.clone(), &Remediation::default());
        assert_eq!(repairs[0].repair, Repair::RemoveCsiEntry { node: "worker-1".into() });
        facts.storage.volumes = Known::unknown("VDO may not list PersistentVolumes");
        assert_eq!(
            proposals(facts, &Remediation::default()),
            [],
            "nobody knows whether there are any"
        );
    }

    #[test]
    fn an_image_without_a_successor_is_not_replaced() {
        let mut facts = healthy();
        let container = &mut facts.storage_driver().workloads[0].pods[0].containers[0];
        container.image = "gcr.io/cloud-provider-vsphere/csi/release/driver:v2.7.3".into();
        assert_eq!(proposals(facts.clone(), &Remediation::default()), []);
        let container = &mut facts.storage_driver().workloads[0].pods[0].containers[0];
        container.image = "gcr.io/cloud-provider-vsphere/csi/release/driver:v3.3.1".into();
        assert_eq!(proposals(facts, &Remediation::default()).len(), 1);
    }

    #[test]
    fn the_role_that_is_granted_carries_all_that_is_needed_there() {
        let mut facts = healthy();
        let entities = &mut facts.vcenter().grants.get_mut().unwrap().entities;
        let vm = entities.iter_mut().find(|entity| entity.name == "worker-1").unwrap();
        vm.privileges.get_mut().unwrap().remove("VirtualMachine.Config.AddRemoveDevice");
        let repairs = proposals(facts, &Remediation::default());
        let expected = Repair::Grant {
            vcenter: "vcenter-a".into(),
            user: "k8s@vsphere.local".into(),
            path: "/DC0/vm/k8s/worker-1".into(),
            role: "CNS-VM".into(),
            privileges: [
                "VirtualMachine.Config.AddExistingDisk".to_owned(),
                "VirtualMachine.Config.AddRemoveDevice".to_owned(),
            ]
            .into(),
        };
        assert_eq!(repairs.into_iter().map(|p| p.repair).collect::<Vec<_>>(), [expected]);
    }

    #[test]
    fn every_finding_that_promises_a_repair_has_one() {
        let mut facts = without_disk_uuid();
        facts.node("worker-2").provider_id = None;
        facts.node("worker-3").csi.get_mut().unwrap().as_mut().unwrap().node_id = "gone".into();
        facts.storage.volumes.get_mut().unwrap().clear();
        let driver = facts.storage_driver();
        driver.features.get_mut().unwrap().clear();
        driver.workloads[0].pods[0].containers[0].image =
            "gcr.io/cloud-provider-vsphere/csi/release/driver:v3.3.1".into();
        let webhook = &mut facts.cluster.webhooks.get_mut().unwrap()[0];
        webhook.certificate.get_mut().unwrap().trusted = false;
        let repairs = proposals(facts, &Remediation::default());
        let repaired: BTreeSet<&str> = repairs.iter().map(|p| p.code.as_str()).collect();
        let ours =
            api::finding::CATALOGUE.iter().filter(|d| ("VDO-12".."VDO-19").contains(&d.code));
        let promised = ours.filter(|d| d.fixable).map(|d| d.code);
        assert_eq!(repaired, promised.collect());
    }
}
