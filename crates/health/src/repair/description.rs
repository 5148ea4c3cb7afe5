//! What a repair does, in words.

use super::{Proposal, Repair};
use crate::facts::Node;

/// Why nobody but the admin grants rights.
const NO_GRANTS: &str = "VDO never grants rights in vCenter by itself, not even with `Fix`: an account that \
                         could, could grant itself anything. Follow the steps of the finding";
/// Why a driver of the platform is left alone.
const PLATFORM: &str =
    "the platform installs and keeps this driver, and would take the change back: mend it there";

/// A repair in words. `owned`: the platform runs the drivers itself.
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
        Repair::SetDiskUuid { node, .. } => format!("Sets disk.EnableUUID on the VM of {node}"),
        Repair::TaintNode { node } => format!(
            "Taints {node} with {}, so that the cloud provider looks at it",
            Node::UNINITIALIZED
        ),
        Repair::RemoveCsiEntry { node, .. } => format!(
            "Removes the entry of csi.vsphere.vmware.com from CSINode {node} and restarts the driver's pod \
             there, which registers anew"
        ),
        Repair::ReplaceImages { workload, images, .. } => {
            let images: Vec<&str> = images.values().map(|image| image.to.as_str()).collect();
            format!("Lets {workload} pull {}", images.join(", "))
        }
        Repair::RenewWebhookCertificate { webhook, namespace, secret } => format!(
            "Writes a new certificate to Secret {namespace}/{secret} and its authority to {webhook}, and \
             restarts the webhook"
        ),
        Repair::SetFeatures { features, .. } => {
            let names: Vec<&str> = features.keys().map(String::as_str).collect();
            format!("Adds the feature switches {} as the release has them", names.join(", "))
        }
        Repair::Grant { user, path, role, privileges, .. } => {
            let names: Vec<&str> = privileges.iter().map(String::as_str).collect();
            format!("Grants {user} the role {role} ({}) on {path}", names.join(", "))
        }
    }
}

fn then(repair: &Repair) -> Option<String> {
    match repair {
        Repair::SetDiskUuid { node, .. } => {
            Some(format!("One power cycle of the VM of {node}, which VDO leaves to you"))
        }
        Repair::TaintNode { node } => {
            Some(format!("--cloud-provider=external in kubelet's arguments on {node}"))
        }
        _ => None,
    }
}

fn undo(repair: &Repair) -> Option<String> {
    match repair {
        Repair::SetDiskUuid { node, .. } => {
            Some(format!("Sets disk.EnableUUID of the VM of {node} to FALSE again"))
        }
        Repair::TaintNode { node } => Some(format!("Removes the taint from {node}")),
        Repair::ReplaceImages { workload, images, .. } => {
            let images: Vec<&str> = images.values().map(|image| image.from.as_str()).collect();
            Some(format!("Lets {workload} pull {} again", images.join(", ")))
        }
        Repair::SetFeatures { .. } => Some("Removes them again".to_owned()),
        // The entry named a machine that is gone, the certificate was about to end: neither is wanted back.
        Repair::RemoveCsiEntry { .. } | Repair::RenewWebhookCertificate { .. } => None,
        Repair::Grant { user, path, role, .. } => {
            Some(format!("Takes the role {role} from {user} on {path}"))
        }
    }
}
