//! Repairs that VDO can make, as plain data. The operator and `vdoctl fix` carry them out.
//!
//! No repair can lose data. A repair changes only the object of its finding, and describes its effect, the
//! remaining manual steps and the undo.

use std::collections::{BTreeMap, BTreeSet};

use api::{
    finding::codes,
    vdo_config::{Remediation, Remedy, Repair as Kind},
};
use serde::{Deserialize, Serialize};

use crate::{
    check::{Anchor, Hit},
    checks::successor_image,
    examination::Examination,
    facts::{Known, Platform},
    privileges,
    report::acknowledgement,
    view::FactsView,
};

mod description;

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Repair {
    /// Set `disk.EnableUUID` on a VM.
    SetDiskUuid {
        /// Name of the VsphereCloudConfig.
        vcenter: String,
        /// Managed object id of the VM.
        vm: String,
        node: String,
    },
    /// Power a VM off and on.
    PowerCycle { vcenter: String, vm: String, node: String },
    /// Upgrade the hardware of a VM.
    UpgradeHardware { vcenter: String, vm: String, node: String, version: u32 },
    /// Replace the SCSI controllers without disks that volumes cannot use.
    ReplaceControllers { vcenter: String, vm: String, node: String },
    /// Turn changed block tracking of a VM on or off.
    SetBlockTracking { vcenter: String, vm: String, node: String, on: bool },
    /// Taint a node so that the cloud provider initialises it.
    TaintNode { node: String },
    /// Remove the vSphere driver's entry from a CSINode and restart the driver's pod on that node, which
    /// registers the node again. An entry is immutable.
    RemoveCsiEntry {
        node: String,
        /// Remove only an entry with this id.
        id: String,
        /// Namespace of the driver.
        namespace: String,
    },
    /// Pull a workload's images from the new registry.
    ReplaceImages {
        /// Namespace of the workload.
        namespace: String,
        /// Kind and name of the workload, as `deployment/vsphere-csi-controller`.
        workload: String,
        /// By container.
        images: BTreeMap<String, Moved>,
    },
    /// Renew the certificate of a webhook.
    RenewWebhookCertificate {
        /// Name of the webhook's configuration.
        webhook: String,
        /// Namespace of its Secret.
        namespace: String,
        secret: String,
    },
    /// Add the feature switches that a release needs.
    SetFeatures {
        /// Namespace of the ConfigMap.
        namespace: String,
        features: BTreeMap<String, String>,
    },
    /// Grant privileges on one object.
    Grant {
        /// Name of the VsphereCloudConfig.
        vcenter: String,
        user: String,
        path: String,
        role: String,
        /// All privileges of the role: it replaces the account's current role on the object.
        privileges: BTreeSet<String>,
    },
}

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Moved {
    pub from: String,
    /// The same image in the new registry.
    pub to: String,
}

impl Repair {
    /// The rule of `spec.remediation` for this repair. `None` if the operator never makes it.
    pub fn kind(&self) -> Option<Kind> {
        Some(match self {
            Self::PowerCycle { .. }
            | Self::UpgradeHardware { .. }
            | Self::ReplaceControllers { .. }
            | Self::SetBlockTracking { .. } => return None,
            Self::SetDiskUuid { .. } => Kind::DiskUuid,
            Self::TaintNode { .. } => Kind::NodeTaints,
            Self::RemoveCsiEntry { .. } => Kind::CsiNodes,
            Self::ReplaceImages { .. } => Kind::ImageRegistry,
            Self::RenewWebhookCertificate { .. } => Kind::WebhookCertificates,
            Self::SetFeatures { .. } => Kind::FeatureStates,
            Self::Grant { .. } => Kind::Privileges,
        })
    }

    /// The node whose VM must be off for this repair.
    pub fn drained_node(&self) -> Option<&str> {
        match self {
            Self::PowerCycle { node, .. }
            | Self::UpgradeHardware { node, .. }
            | Self::ReplaceControllers { node, .. }
            | Self::SetBlockTracking { node, .. } => Some(node),
            _ => None,
        }
    }

    /// The name of the changed object.
    fn object(&self) -> String {
        match self {
            Self::SetDiskUuid { vcenter, vm, .. }
            | Self::PowerCycle { vcenter, vm, .. }
            | Self::UpgradeHardware { vcenter, vm, .. }
            | Self::ReplaceControllers { vcenter, vm, .. }
            | Self::SetBlockTracking { vcenter, vm, .. } => format!("{vcenter}.{vm}"),
            Self::TaintNode { node } | Self::RemoveCsiEntry { node, .. } => node.clone(),
            Self::ReplaceImages { namespace, workload, .. } => {
                format!("{namespace}.{}", workload.replace('/', "."))
            }
            Self::RenewWebhookCertificate { webhook, .. } => webhook.clone(),
            Self::SetFeatures { namespace, .. } => namespace.clone(),
            Self::Grant { vcenter, path, role, .. } => format!("{vcenter}.{path}.{role}"),
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Proposal {
    /// The finding that it fixes.
    pub code: String,
    pub repair: Repair,
    /// Whether VDO makes the repair automatically.
    pub automatic: bool,
    /// The effect, in one sentence.
    pub says: String,
    /// The remaining manual step.
    pub then: Option<String>,
    /// The effect of an undo; `None` if there is none.
    pub undo: Option<String>,
    /// Why VDO never makes this repair, regardless of the rules.
    #[serde(default)]
    pub refused: Option<String>,
}

impl Proposal {
    /// Code and object, for example `VDO-1217.worker-3`. The same fault of the same object always has the
    /// same name.
    pub fn id(&self) -> String {
        format!("{}.{}", self.code, self.repair.object())
    }
}

/// The possible repairs under these rules, without duplicates, in a stable order.
pub fn propose(examination: &Examination, rules: &Remediation) -> Vec<Proposal> {
    let view = examination.view();
    let mut proposals: Vec<Proposal> =
        examination.hits().flat_map(|hit| proposals_for(&view, hit, rules)).collect();
    proposals.sort_by(|a, b| (&a.code, &a.repair).cmp(&(&b.code, &b.repair)));
    proposals.dedup_by(|later, first| {
        later.repair == first.repair || is_joined(&mut first.repair, &later.repair)
    });
    let platform = &view.facts.cluster.openshift;
    for proposal in &mut proposals {
        let (repair, fix) = (proposal.repair.clone(), proposal.automatic);
        let owned = match platform {
            Known::Known(Some(platform)) => platform.runs_storage || platform.runs_cloud,
            Known::Known(None) => false,
            // It is unknown who manages the drivers, so VDO does not change them.
            Known::Unknown { .. } => view.facts.cluster.platform == Platform::OpenShift,
        };
        let refused = denied(&view, &proposal.code, &repair).or_else(|| by_hand(&view, &repair));
        *proposal = description::describe(&proposal.code, repair, owned);
        proposal.refused = proposal.refused.take().or(refused);
        proposal.automatic = fix && proposal.refused.is_none();
    }
    proposals
}

/// Merges the images of one workload into one repair, so that it rolls out once.
fn is_joined(first: &mut Repair, later: &Repair) -> bool {
    let Repair::ReplaceImages { namespace, workload, images } = first else { return false };
    match later {
        Repair::ReplaceImages { namespace: n, workload: w, images: more }
            if n == namespace && w == workload =>
        {
            images.extend(more.clone());
            true
        }
        _ => false,
    }
}

fn proposals_for(view: &FactsView<'_>, hit: &Hit, rules: &Remediation) -> Vec<Proposal> {
    let code = hit.definition.code;
    let repairs = match code {
        c if c == codes::CBT_MIXED.code => block_tracking(view, hit),
        _ => repair_for(view, hit).into_iter().collect(),
    };
    let proposal = |repair: Repair| {
        let rule = match repair.kind() {
            Some(kind) => rules.remedy(kind),
            // Only on request.
            None if rules.default == Some(Remedy::Off) => Remedy::Off,
            None => Remedy::Propose,
        };
        // VDO does not repair acknowledged findings.
        let automatic = rule == Remedy::Fix && acknowledgement(hit, view.facts).is_none();
        (rule != Remedy::Off)
            .then(|| Proposal { automatic, ..description::describe(code, repair, false) })
    };
    repairs.into_iter().filter_map(proposal).collect()
}

fn repair_for(view: &FactsView<'_>, hit: &Hit) -> Option<Repair> {
    Some(match hit.definition.code {
        c if c == codes::DISK_UUID_OFF.code => {
            let (vcenter, vm, node) = vm_of(view, node(hit)?)?;
            Repair::SetDiskUuid { vcenter, vm, node }
        }
        c if c == codes::DISK_UUID_WAITS.code => {
            let (vcenter, vm, node) = vm_of(view, node(hit)?)?;
            Repair::PowerCycle { vcenter, vm, node }
        }
        c if c == codes::HARDWARE_TOO_OLD.code => {
            let (vcenter, vm, node) = vm_of(view, node(hit)?)?;
            let version = value(hit, "needed")?.parse().ok()?;
            Repair::UpgradeHardware { vcenter, vm, node, version }
        }
        c if c == codes::SCSI_KIND.code => {
            let (vcenter, vm, node) = vm_of(view, node(hit)?)?;
            Repair::ReplaceControllers { vcenter, vm, node }
        }
        c if c == codes::KUBELET_NOT_EXTERNAL.code => Repair::TaintNode { node: node(hit)?.into() },
        c if c == codes::CSI_NODE_STALE.code => csi_entry(view, hit)?,
        c if c == codes::IMAGE_MOVED.code => images(hit)?,
        c if c == codes::WEBHOOK_CERTIFICATE.code => Repair::RenewWebhookCertificate {
            webhook: value(hit, "webhook")?.into(),
            namespace: value(hit, "namespace")?.into(),
            secret: value(hit, "secret")?.into(),
        },
        c if c == codes::FEATURES_STALE.code => features(view)?,
        c if is_privilege(c) => grant(hit)?,
        _ => return None,
    })
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

/// Why VDO cannot change a VM, if the account lacks a privilege for it.
fn denied(view: &FactsView<'_>, code: &str, repair: &Repair) -> Option<String> {
    let node = match repair {
        Repair::SetDiskUuid { node, .. } => node,
        other => other.drained_node()?,
    };
    let found = view.only_vm(view.node(node)?)?;
    let (vcenter, path) = (found.vcenter, &found.vm.path);
    let needed = privileges::of_repair(code);
    let lacks = vcenter.grants.get()?.lacks(path, &needed);
    (!lacks.is_empty()).then(|| {
        format!(
            "VDO needs {} on {path}, and {} lacks {}. Grant that, or follow the steps of the finding",
            listed(&needed),
            vcenter.account(),
            listed(&lacks)
        )
    })
}

/// `A, B and C`.
fn listed(names: &[&str]) -> String {
    match names {
        [] => String::new(),
        [only] => (*only).to_owned(),
        [all @ .., last] => format!("{} and {last}", all.join(", ")),
    }
}

/// Why VDO does not make a change that vCenter would reject, or that could stop the guest from starting.
fn by_hand(view: &FactsView<'_>, repair: &Repair) -> Option<String> {
    let found = view.only_vm(view.node(repair.drained_node()?)?)?;
    if !found.vm.snapshots.is_empty() && !matches!(repair, Repair::PowerCycle { .. }) {
        return Some(format!(
            "{} has snapshots, and vCenter does not change such a VM: fix VDO-1207 first",
            found.vm.path
        ));
    }
    let Repair::ReplaceControllers { node, .. } = repair else { return None };
    let empty = found.vm.scsi.iter().any(|c| !c.paravirtual && c.disks == 0);
    (!empty).then(|| {
        format!(
            "the VM of {node} has disks on its other SCSI controllers. A guest without the driver vmw_pvscsi in \
             its initial RAM disk does not start from a paravirtual one, so change the type yourself"
        )
    })
}

/// Whether a repair changes the VM of its node. Anybody who can annotate a node can record another VM there.
pub fn is_of_its_node(examination: &Examination, repair: &Repair) -> bool {
    let view = examination.view();
    let (Repair::PowerCycle { vcenter, vm, node }
    | Repair::UpgradeHardware { vcenter, vm, node, .. }
    | Repair::ReplaceControllers { vcenter, vm, node }
    | Repair::SetBlockTracking { vcenter, vm, node, .. }) = repair
    else {
        return false;
    };
    vm_of(&view, node).is_some_and(|found| (&found.0, &found.1, &found.2) == (vcenter, vm, node))
}

/// The vCenter, the VM and the name of a node.
fn vm_of(view: &FactsView<'_>, node: &str) -> Option<(String, String, String)> {
    let node = view.node(node)?;
    let found = view.only_vm(node)?;
    Some((found.vcenter.name.clone(), found.id.to_owned(), node.name.clone()))
}

/// Makes the fewer VMs like the others.
fn block_tracking(view: &FactsView<'_>, hit: &Hit) -> Vec<Repair> {
    let census = view.index.census();
    let on = value(hit, "value") == Some("TRUE");
    let fewer = if on { &census.untracked } else { &census.tracked };
    let all = fewer.iter().filter_map(|node| vm_of(view, node));
    all.map(|(vcenter, vm, node)| Repair::SetBlockTracking { vcenter, vm, node, on }).collect()
}

/// `None` while volumes are attached to the node: the driver detaches them by the current id.
fn csi_entry(view: &FactsView<'_>, hit: &Hit) -> Option<Repair> {
    let name = node(hit)?;
    let volumes = view.facts.storage.volumes.get()?;
    let attachments = view.facts.storage.attachments.get()?;
    let holds = volumes.values().any(|volume| volume.node.as_deref() == Some(name))
        || attachments.iter().any(|attachment| attachment.node == name);
    (!holds).then(|| Repair::RemoveCsiEntry {
        node: name.to_owned(),
        id: value(hit, "id").unwrap_or_default().to_owned(),
        namespace: view.storage_driver().map(|driver| driver.namespace.clone()).unwrap_or_default(),
    })
}

fn images(hit: &Hit) -> Option<Repair> {
    let from = value(hit, "image")?.to_owned();
    let to = successor_image(&from)?;
    Some(Repair::ReplaceImages {
        namespace: value(hit, "namespace")?.into(),
        workload: value(hit, "workload")?.into(),
        images: [(value(hit, "container")?.to_owned(), Moved { from, to })].into(),
    })
}

/// Only missing switches: VDO keeps every value that somebody has set.
fn features(view: &FactsView<'_>) -> Option<Repair> {
    let driver = view.storage_driver()?;
    let actual = driver.features.get()?;
    let missing = driver.release_features.iter().filter(|(name, _)| !actual.contains_key(*name));
    let features: BTreeMap<String, String> =
        missing.map(|(name, value)| (name.clone(), value.clone())).collect();
    let namespace = driver.namespace.clone();
    (!features.is_empty()).then_some(Repair::SetFeatures { namespace, features })
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{facts::Facts, shortcuts::Shortcuts, testing::healthy};

    fn proposals(facts: Facts, rules: &Remediation) -> Vec<Proposal> {
        propose(&Examination::run(facts), rules)
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
    fn the_spec_decides_whether_vdo_reports_or_repairs() {
        let rules = |remedy| Remediation { disk_uuid: Some(remedy), ..Remediation::default() };
        let proposed = proposals(without_disk_uuid(), &Remediation::default());
        assert!(!proposed[0].automatic && proposed[0].then.is_some(), "{proposed:#?}");
        assert!(proposals(without_disk_uuid(), &rules(Remedy::Fix))[0].automatic);
        assert_eq!(proposals(without_disk_uuid(), &rules(Remedy::Off)), []);
        let off = Remediation { default: Some(Remedy::Off), ..Remediation::default() };
        assert_eq!(proposals(without_disk_uuid(), &off), [], "the default counts for all kinds");
        let mut accepted = without_disk_uuid();
        accepted.operator.acknowledged.push(crate::facts::Acknowledged {
            code: "VDO-1203".into(),
            reason: "next week".into(),
            ..Default::default()
        });
        let accepted = proposals(accepted, &rules(Remedy::Fix));
        assert!(!accepted[0].automatic, "what somebody lives with is left alone");
    }

    #[test]
    fn a_repair_that_the_account_has_no_privilege_for_is_not_offered() {
        let mut facts = without_disk_uuid();
        let path = facts.vm("worker-1").path.clone();
        let is_fixable = |facts: &Facts| {
            let all = Examination::run(facts.clone()).report().all();
            all.iter().find(|finding| finding.code == "VDO-1203").unwrap().fixable
        };
        assert!(is_fixable(&facts));
        let lacking = "VirtualMachine.Config.AdvancedConfig".to_owned();
        let denied = &mut facts.vcenter().grants.get_mut().unwrap().repairs_denied;
        denied.insert(lacking, [path].into());
        assert!(!is_fixable(&facts), "no screen recommends vdoctl fix");
        let rules = Remediation { disk_uuid: Some(Remedy::Fix), ..Remediation::default() };
        let proposed = proposals(facts, &rules);
        let reason = proposed[0].refused.as_deref().unwrap();
        assert!(reason.contains("VirtualMachine.Config.AdvancedConfig"), "{reason}");
        assert!(!proposed[0].automatic, "{proposed:#?}");
    }

    #[test]
    fn a_vm_that_must_be_off_is_changed_only_on_request() {
        let mut facts = healthy();
        facts.vm("worker-1").hardware = 13;
        facts.vm("worker-1").scsi[1].paravirtual = false;
        facts.vm("worker-1").scsi[1].disks = 0;
        facts.vm("worker-2").cbt = Some(true);
        let rules = Remediation { default: Some(Remedy::Fix), ..Remediation::default() };
        let proposed = proposals(facts.clone(), &rules);
        let codes: Vec<&str> = proposed.iter().map(|p| p.code.as_str()).collect();
        assert_eq!(codes, ["VDO-1204", "VDO-1206", "VDO-1229"], "{proposed:#?}");
        assert!(proposed.iter().all(|p| !p.automatic && p.refused.is_none()), "{proposed:#?}");
        let nodes: Vec<_> = proposed.iter().filter_map(|p| p.repair.drained_node()).collect();
        assert_eq!(nodes, ["worker-1", "worker-1", "worker-2"]);
        let off = Remediation { default: Some(Remedy::Off), ..Remediation::default() };
        assert_eq!(proposals(facts.clone(), &off), []);
        let path = facts.vm("worker-1").path.clone();
        let denied = &mut facts.vcenter().grants.get_mut().unwrap().repairs_denied;
        denied.insert("VirtualMachine.Interact.PowerOff".into(), [path].into());
        let proposed = proposals(facts.clone(), &rules);
        let refused: Vec<bool> = proposed.iter().map(|p| p.refused.is_some()).collect();
        assert_eq!(refused, [true, true, false], "{proposed:#?}");
        let all = Examination::run(facts).report().all();
        let fixable = |code: &str| all.iter().find(|f| f.code == code).unwrap().fixable;
        assert_eq!(["VDO-1204", "VDO-1206", "VDO-1229"].map(fixable), [false, false, true]);
    }

    #[test]
    fn a_vm_with_snapshots_is_not_changed() {
        let mut facts = healthy();
        facts.vm("worker-1").hardware = 13;
        facts.vm("worker-1").snapshots = vec!["nightly".into()];
        let proposed = proposals(facts, &Remediation::default());
        let refused = proposed.iter().find(|p| p.code == "VDO-1204").unwrap().refused.clone();
        assert!(refused.is_some_and(|reason| reason.contains("VDO-1207")), "{proposed:#?}");
    }

    #[test]
    fn a_recorded_repair_of_another_vm_is_recognized() {
        let mut facts = healthy();
        facts.vm("worker-1").hardware = 13;
        let examination = Examination::run(facts);
        let own = propose(&examination, &Remediation::default())[0].repair.clone();
        assert!(is_of_its_node(&examination, &own));
        let Repair::UpgradeHardware { vcenter, vm, node, version } = own else { unreachable!() };
        let forged = |vm: &str, node: &str| {
            let (vcenter, vm, node) = (vcenter.clone(), vm.to_owned(), node.to_owned());
            Repair::UpgradeHardware { vcenter, vm, node, version }
        };
        assert!(is_of_its_node(&examination, &forged(&vm, &node)));
        assert!(!is_of_its_node(&examination, &forged("vm-of-somebody-else", &node)));
        assert!(!is_of_its_node(&examination, &forged(&vm, "worker-2")));
        assert!(!is_of_its_node(&examination, &Repair::TaintNode { node }));
    }

    #[test]
    fn a_controller_with_disks_is_not_replaced() {
        let mut facts = healthy();
        facts.vm("worker-1").scsi[0].paravirtual = false;
        facts.vm("worker-1").scsi[0].disks = 1;
        let proposed = proposals(facts, &Remediation::default());
        let reason = proposed[0].refused.as_deref().unwrap();
        assert!(reason.contains("vmw_pvscsi"), "{reason}");
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
        assert_eq!(repairs[0].id(), "VDO-1222.worker-1");
        facts.storage.volumes = Known::unknown("VDO cannot list PersistentVolumes");
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
        let proposed = proposals(facts.clone(), &Remediation::default());
        assert_eq!(proposed.len(), 1);
        let workload = &mut facts.storage_driver().workloads[0];
        let mut second = workload.pods[0].containers[0].clone();
        second.name = "vsphere-syncer".into();
        second.image = "gcr.io/cloud-provider-vsphere/csi/release/syncer:v3.3.1".into();
        workload.pods[0].containers.push(second);
        let both = proposals(facts, &Remediation::default());
        let Repair::ReplaceImages { images, .. } = &both[0].repair else { unreachable!() };
        assert_eq!((both.len(), images.len()), (1, 2), "one workload is rolled out once");
        assert_eq!(both[0].id(), proposed[0].id());
    }

    #[test]
    fn a_switch_somebody_set_is_theirs_and_the_missing_ones_are_added() {
        let mut facts = healthy();
        let driver = facts.storage_driver();
        let release: Vec<String> = driver.release_features.keys().cloned().collect();
        for name in &release {
            driver.release_features.insert(name.clone(), "true".into());
        }
        let features = driver.features.get_mut().unwrap();
        features.clear();
        features.insert(release[0].clone(), "false".into());
        let repairs = proposals(facts.clone(), &Remediation::default());
        let Repair::SetFeatures { features, .. } = &repairs[0].repair else { unreachable!() };
        assert!(!features.contains_key(&release[0]) && features.len() == release.len() - 1);
        let driver = facts.storage_driver();
        let off = release.iter().map(|name| (name.clone(), "false".to_owned()));
        driver.features = off.collect::<BTreeMap<_, _>>().into();
        assert_eq!(proposals(facts, &Remediation::default()), [], "nothing is missing");
    }

    #[test]
    fn privileges_are_proposed_and_never_granted() {
        let mut facts = healthy();
        let entities = &mut facts.vcenter().grants.get_mut().unwrap().entities;
        let vm = entities.iter_mut().find(|entity| entity.name == "worker-1").unwrap();
        vm.privileges.get_mut().unwrap().remove("VirtualMachine.Config.AddRemoveDevice");
        let rules = Remediation { default: Some(Remedy::Fix), ..Remediation::default() };
        let proposed = proposals(facts, &rules);
        assert!(!proposed[0].automatic && proposed[0].refused.is_some(), "{proposed:#?}");
    }

    #[test]
    fn objects_of_the_platform_are_not_repaired() {
        let mut facts = without_disk_uuid();
        facts.storage_driver().features.get_mut().unwrap().clear();
        facts.cluster.openshift =
            Some(crate::facts::OpenShift { runs_storage: true, ..Default::default() }).into();
        let rules = Remediation { default: Some(Remedy::Fix), ..Remediation::default() };
        let made: BTreeMap<String, bool> =
            proposals(facts, &rules).into_iter().map(|p| (p.code, p.automatic)).collect();
        assert!(!made["VDO-1609"], "its ConfigMap is the platform's");
        assert!(made["VDO-1203"], "the VM is not");
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
        facts.vm("worker-2").hardware = 13;
        facts.vm("worker-2").scsi[1] = crate::facts::ScsiController::default();
        facts.vm("worker-2").cbt = Some(true);
        facts.vm("worker-3").disk_uuid = false.into();
        facts.vm("worker-3").disk_uuid_set = true;
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
        let ours = api::finding::CATALOGUE.iter().filter(|d| d.theme.is_checked());
        let promised = ours.filter(|d| d.fixable).map(|d| d.code);
        assert_eq!(repaired, promised.collect());
    }
}
