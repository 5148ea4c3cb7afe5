//! Texts that describe a repair.

use api::finding::codes;

use super::{Proposal, Repair};
use crate::{facts::Node, privileges};

const NO_GRANTS: &str = "VDO never grants privileges in vCenter, not even with `Fix`: an account with that \
                         permission could grant itself every privilege. Follow the steps of the finding";
const PLATFORM: &str = "the platform manages this driver and would revert the change: fix it there";

/// `owned`: the platform manages the drivers.
pub(super) fn describe(code: &str, repair: Repair, owned: bool) -> Proposal {
    let driver = matches!(
        repair,
        Repair::ReplaceImages { .. }
            | Repair::RenewWebhookCertificate { .. }
            | Repair::SetFeatures { .. }
    );
    let refused = match &repair {
        Repair::Grant { .. } => Some(NO_GRANTS),
        _ if driver && owned => Some(PLATFORM),
        _ => None,
    };
    Proposal {
        code: code.to_owned(),
        automatic: false,
        says: says(&repair),
        then: then(&repair),
        undo: undo(&repair),
        refused: refused.map(str::to_owned),
        repair,
    }
}

fn says(repair: &Repair) -> String {
    match repair {
        Repair::SetDiskUuid { node, .. } => format!(
            "Sets disk.EnableUUID on the VM of {node}; needs {} there",
            privileges::DISK_UUID.join(" and ")
        ),
        Repair::PowerCycle { node, .. } => {
            format!("Powers the VM of {node} off and on; needs {}", needs(repair))
        }
        Repair::UpgradeHardware { node, version, .. } => format!(
            "Upgrades the VM of {node} to hardware version {version} while it is off; needs {}",
            needs(repair)
        ),
        Repair::ReplaceControllers { node, .. } => format!(
            "Replaces the SCSI controllers without disks of the VM of {node} by paravirtual ones while it is off; \
             needs {}",
            needs(repair)
        ),
        Repair::SetBlockTracking { node, on, .. } => format!(
            "Turns changed block tracking {} on the VM of {node} while it is off; needs {}",
            if *on { "on" } else { "off" },
            needs(repair)
        ),
        Repair::TaintNode { node } => format!(
            "Taints {node} with {}, so that the cloud provider initialises it",
            Node::UNINITIALIZED
        ),
        Repair::RemoveCsiEntry { node, .. } => format!(
            "Removes the entry of csi.vsphere.vmware.com from CSINode {node} and restarts the driver's pod \
             there, which registers the node again"
        ),
        Repair::ReplaceImages { workload, images, .. } => {
            let images: Vec<&str> = images.values().map(|image| image.to.as_str()).collect();
            format!("Sets the images of {workload} to {}", images.join(", "))
        }
        Repair::RenewWebhookCertificate { webhook, namespace, secret } => format!(
            "Writes a new certificate to Secret {namespace}/{secret} and its CA to {webhook}, and \
             restarts the webhook"
        ),
        Repair::SetFeatures { features, .. } => {
            let names: Vec<&str> = features.keys().map(String::as_str).collect();
            format!("Sets the feature switches {} to the values of the release", names.join(", "))
        }
        Repair::Grant { user, path, role, privileges, .. } => {
            let names: Vec<&str> = privileges.iter().map(String::as_str).collect();
            format!("Grants {user} the role {role} ({}) on {path}", names.join(", "))
        }
    }
}

/// The privileges on the VM that the repair needs.
fn needs(repair: &Repair) -> String {
    let definition = match repair {
        Repair::UpgradeHardware { .. } => codes::HARDWARE_TOO_OLD,
        Repair::ReplaceControllers { .. } => codes::SCSI_KIND,
        Repair::SetBlockTracking { .. } => codes::CBT_MIXED,
        _ => codes::DISK_UUID_WAITS,
    };
    super::listed(&privileges::of_repair(definition.code))
}

fn then(repair: &Repair) -> Option<String> {
    match repair {
        Repair::SetDiskUuid { node, .. } => {
            Some(format!("Power-cycle the VM of {node}: vdoctl fix VDO-1231 drains it first"))
        }
        Repair::TaintNode { node } => {
            Some(format!("Add --cloud-provider=external to the kubelet's arguments on {node}"))
        }
        _ => None,
    }
}

fn undo(repair: &Repair) -> Option<String> {
    match repair {
        Repair::SetDiskUuid { node, .. } => Some(format!(
            "Restores the previous disk.EnableUUID of the VM of {node}, unless somebody changed it since"
        )),
        Repair::TaintNode { node } => Some(format!("Removes the taint from {node}")),
        Repair::ReplaceImages { workload, images, .. } => {
            let images: Vec<&str> = images.values().map(|image| image.from.as_str()).collect();
            Some(format!("Sets the images of {workload} back to {}", images.join(", ")))
        }
        Repair::SetFeatures { .. } => Some("Removes the feature switches again".to_owned()),
        // The entry named a deleted VM, the certificate was about to expire, and vCenter cannot downgrade hardware: an
        // undo would restore the fault.
        Repair::RemoveCsiEntry { .. }
        | Repair::RenewWebhookCertificate { .. }
        | Repair::PowerCycle { .. }
        | Repair::UpgradeHardware { .. }
        | Repair::ReplaceControllers { .. }
        | Repair::SetBlockTracking { .. } => None,
        Repair::Grant { user, path, role, .. } => {
            Some(format!("Removes the role {role} of {user} on {path}"))
        }
    }
}
