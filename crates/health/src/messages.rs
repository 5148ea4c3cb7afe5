//! Log and error messages of the drivers, with their meaning and the findings behind them.
//!
//! A driver's message often names a consequence, sometimes something unrelated. This table maps each
//! message to its cause; the index by message in the documentation comes from it.

use aho_corasick::AhoCorasick;
use api::finding::{Definition, codes};

#[derive(Debug)]
pub struct Message {
    /// The text to match. `...` matches any text in between.
    pub words: &'static str,
    /// One sentence that starts in lower case and has no full stop.
    pub meaning: &'static str,
    /// The likeliest finding comes first.
    pub findings: &'static [&'static Definition],
}

impl Message {
    pub fn is_in(&self, line: &str) -> bool {
        let mut rest = line;
        self.parts()
            .all(|part| rest.find(part).inspect(|at| rest = &rest[at + part.len()..]).is_some())
    }

    /// The texts between the `...`.
    fn parts(&self) -> impl Iterator<Item = &'static str> {
        self.words.split("...").map(str::trim).filter(|part| !part.is_empty())
    }
}

/// Finds messages in many lines, each in one pass.
#[derive(Debug)]
pub(crate) struct Matcher {
    /// One text of each message, in the order of the table. Without it, every message is compared.
    texts: Option<AhoCorasick>,
}

impl Matcher {
    pub(crate) fn new() -> Self {
        let longest =
            |message: &Message| message.parts().max_by_key(|part| part.len()).unwrap_or_default();
        Self { texts: AhoCorasick::new(MESSAGES.iter().map(longest)).ok() }
    }

    /// The messages in a line, specific ones first.
    pub(crate) fn find(&self, line: &str) -> impl Iterator<Item = &'static Message> {
        let mut candidates: Vec<usize> = match &self.texts {
            Some(texts) => {
                texts.find_overlapping_iter(line).map(|found| found.pattern().as_usize()).collect()
            }
            None => (0..MESSAGES.len()).collect(),
        };
        candidates.sort_unstable();
        candidates.dedup();
        candidates.into_iter().map(|at| &MESSAGES[at]).filter(move |message| message.is_in(line))
    }
}

macro_rules! messages {
    ($($words:literal means $meaning:literal, see $($code:ident),+;)+) => {
        /// The first match wins, so specific messages come before vague ones.
        pub const MESSAGES: &[Message] = &[$(Message {
            words: $words,
            meaning: $meaning,
            findings: &[$(codes::$code),+],
        }),+];
    };
}

messages! {
    // Messages of VDO's own cloud controller and of the vCenter client it shares with VDO.
    "no VM in the configured vCenters and datacenters has the node's uuid, name or address" means
        "the account sees no VM of this node in the configured vCenters and datacenters",
        see VM_NOT_FOUND, VM_OUT_OF_SIGHT, DATACENTER_MISSING;
    "VMs match ...; give each VM its own uuid" means
        "several VMs have the same uuid, name or address, for example copies",
        see VM_AMBIGUOUS;
    "its guest reports no host name: are VMware Tools running?" means
        "VMware Tools is not running in the VM",
        see TOOLS_NOT_RUNNING;
    "its guest reports no network interface: are VMware Tools running?" means
        "VMware Tools is not running in the VM, or the VM is off",
        see TOOLS_NOT_RUNNING, VM_OFF;
    "neither network ... is among its networks" means
        "the VM has no adapter on the configured networks",
        see ADDRESS_NONE;
    "all its addresses are local ones" means
        "none of the VM's addresses is reachable from other hosts",
        see ADDRESS_NONE;
    "it has no usable ... address among" means
        "none of the VM's addresses is in the configured network or of the configured family",
        see ADDRESS_NONE, ADDRESS_WRONG;
    "the kubelet's --node-ip ... is none of the addresses chosen for the VM" means
        "the kubelet's address is not one of those that the cloud controller chooses",
        see ADDRESS_WRONG;
    "no tag of the category ... : attach one" means
        "no object above the node's VM has a tag of that category, or the account lacks the privilege to read it",
        see TAG_MISSING, CATEGORY_MISSING, PRIVILEGE_READ;
    "so there is no proof that it is gone" means
        "the cloud controller does not see the VM of this node, and deletes no Node without proof",
        see VM_NOT_FOUND, VM_OUT_OF_SIGHT;
    "nodes are gone at once, which is probably an accident" means
        "many VMs disappeared at once, so the cloud controller deletes no Node without a confirmation",
        see VM_NOT_FOUND, VM_OUT_OF_SIGHT;
    "in NSX, which this controller does not support" means
        "load balancers and routes in NSX need the upstream cloud controller",
        see UPSTREAM_NEEDED;
    "does not let ... log in: the user name or password is wrong" means
        "the password in the Secret is wrong, or the account is locked",
        see LOGIN_REFUSED, ACCOUNT_LOCKED;
    "does not let ... log in: the account is locked" means
        "vCenter has locked the account",
        see ACCOUNT_LOCKED;
    "does not let ... log in" means
        "vCenter does not accept the account",
        see LOGIN_REFUSED;
    "the name of ... cannot be resolved" means
        "the driver's DNS cannot resolve the vCenter's name",
        see NAME_UNRESOLVED, VCENTER_UNREACHABLE;
    "nothing answers at ...; check address and port" means
        "nothing listens at that address, or a firewall drops the packets",
        see VCENTER_UNREACHABLE;
    "the certificate of ... is not accepted" means
        "the certificate does not match the thumbprint or the CA configured for this vCenter",
        see CERTIFICATE_DISTRUSTED;
    "has no datacenter ...; this user sees" means
        "the datacenter has another name, or the account lacks the privilege to see it",
        see DATACENTER_MISSING;
    "Address already in use (os error 98)" means
        "another program on the host uses the port",
        see PORT_IN_USE;
    // Order of installation.
    r#"no matches for kind "CSINodeTopology" in version "cns.vmware.com/v1alpha1""# means
        "the controller, which creates this kind, is not running yet; the node pods are not the cause",
        see CRD_MISSING, CONTROLLER_PENDING;
    r"timed out while waiting for topology labels to be updated in ... CSINodeTopology instance" means
        "the syncer, inside the controller, could not find this node's VM or zone",
        see TOPOLOGY_NOT_SET, TAG_MISSING, VM_NOT_FOUND;
    "failed to retrieve nodeVM ... virtual machine wasn't found" means
        "vCenter shows no VM with this node's uuid to the driver's account",
        see VM_NOT_FOUND, VM_OUT_OF_SIGHT, VM_AMBIGUOUS;
    "csiNodeAdd: failed for node" means
        "one node is registered with a VM that vCenter does not know, and the controller exits because of it",
        see CSI_NODE_STALE, NODE_FOREIGN;
    "didn't match Pod's node affinity/selector" means
        "no node has the label that the controller requires, usually node-role.kubernetes.io/control-plane",
        see CONTROLLER_PENDING;
    "didn't match pod anti-affinity rules" means
        "there are fewer control plane nodes than the controller has replicas",
        see CONTROLLER_PENDING;
    // Datastores and privileges.
    "failed to get shared datastores in kubernetes cluster" means
        "no datastore is mounted on the hosts of all nodes, or no node is registered",
        see NO_SHARED_DATASTORE, HOST_UNUSABLE, PRIVILEGE_DATASTORE;
    "no shared datastores found" means
        "no datastore is mounted on the hosts of all nodes",
        see NO_SHARED_DATASTORE, PRIVILEGE_DATASTORE;
    "empty List of Node VMs returned" means
        "the driver has no registered nodes",
        see CSI_NODE_MISSING, VM_NOT_FOUND;
    "specified in the storage class is not accessible to all nodes" means
        "the account lacks privileges on that datastore, its URL is not exact, or not every host mounts it",
        see PRIVILEGE_DATASTORE, CLASS_DATASTORE_UNKNOWN, CLASS_DATASTORE_UNREACHABLE, ACCOUNT_UNQUALIFIED;
    "createSpecs.datastores is empty" means
        "the account has privileges on none of the candidate datastores",
        see PRIVILEGE_DATASTORE, ACCOUNT_UNQUALIFIED;
    "auth service: no shared datastore found for block volume provisioning" means
        "the account has privileges on none of the shared datastores",
        see PRIVILEGE_DATASTORE, ACCOUNT_UNQUALIFIED;
    "No compatible datastores found for accessibility requirements" means
        "no datastore is mounted on every host of the requested zone",
        see ZONE_WITHOUT_DATASTORE, HOST_UNUSABLE, CLASS_POLICY_FITS_NOTHING;
    "Request missing value for required parameter 'profileIds' to method 'PbmRetrieveContent'" means
        "the account sees no storage policies, because it lacks StorageProfile.View on the root",
        see PRIVILEGE_ROOT, CLASS_POLICY_UNKNOWN;
    "no datastores found to create file volume, vSAN file service may be disabled" means
        "the claim requests ReadWriteMany, which only vSAN file shares support",
        see FILE_SERVICE_MISSING, PRIVILEGE_FILE;
    "NoPermission" means
        "the vCenter account lacks a privilege; the message does not name it",
        see PRIVILEGE_READ, PRIVILEGE_VM, PRIVILEGE_DATASTORE;
    // Identity of the cluster.
    "Cluster ID is present in vSphere Config Secret as well as in vsphere-csi-cluster-id ConfigMap" means
        "the cluster id is set in two places, and the driver accepts only one",
        see CLUSTER_ID_TWICE;
    "existing volume not found by cns" means
        "the volume was created under another cluster id",
        see CLUSTER_ID_CHANGED, VOLUME_NOT_IN_CNS;
    "failed to detach ... not found in QueryVolume" means
        "vCenter no longer knows the volume, so the driver cannot detach it",
        see DETACH_STUCK, VOLUME_NOT_IN_CNS;
    "not found in QueryVolume" means
        "vCenter no longer knows the volume",
        see VOLUME_NOT_IN_CNS, CLUSTER_ID_SHARED;
    "not a CNS volume" means
        "vCenter has the disk, but not as a container volume",
        see VOLUME_NOT_IN_CNS, CLUSTER_ID_SHARED;
    "difference between number of K8s volumes and CNS volumes is greater than threshold" means
        "so many volumes are missing in vCenter that the driver rejects its answer",
        see VOLUMES_BEYOND_THRESHOLD, CLUSTER_ID_SHARED;
    "Duplicated entity for each entity type in one cluster is found" means
        "vCenter still has an entry of a re-created claim or pod; this is harmless",
        see METADATA_DOUBLE;
    // Credentials and configuration.
    "username is invalid, make sure it is a fully qualified domain username" means
        "the user name must include its domain, as in user@vsphere.local",
        see ACCOUNT_UNQUALIFIED;
    r"unquoted '\' must be followed by new line or double quote" means
        "a backslash in the configuration is not escaped",
        see CONFIG_ESCAPES;
    "unknown escape sequence" means
        "a backslash in the configuration is not escaped",
        see CONFIG_ESCAPES;
    "Cannot complete login due to an incorrect user name or password" means
        "the password in the Secret is wrong, or the account is locked",
        see LOGIN_REFUSED, ACCOUNT_LOCKED, CONFIG_ESCAPES;
    "no Virtual Center hosts defined" means
        "the configuration has no vcenter section at its top level",
        see CPI_CONFIG_SHAPE;
    "No Virtual Center hosts defined" means
        "the configuration has no vcenter section at its top level",
        see CPI_CONFIG_SHAPE;
    "x509: certificate signed by unknown authority" means
        "the driver does not trust the authority that signed the certificate",
        see CERTIFICATE_DISTRUSTED, WEBHOOK_CERTIFICATE;
    "topology category names not specified in the vsphere config secret" means
        "the provisioner passes zones, but the driver has no topology categories configured",
        see TOPOLOGY_UNCONFIGURED;
    "does not have labels for the following categories" means
        "no object above the node's VM has a tag of that category, or the account lacks the privilege to read it",
        see TAG_MISSING, CATEGORY_MISSING, PRIVILEGE_READ, TAG_ON_VM;
    "found conflicting topology labels" means
        "the node's old and new zone labels contradict each other",
        see ZONE_LABELS_DISAGREE;
    "Could not find the ... feature state" means
        "the ConfigMap with the feature switches belongs to another release than the driver",
        see FEATURES_STALE;
    // Releases and images.
    "Project cloud-provider-vsphere has been deleted" means
        "the registry of this image was shut down; the image is in a new registry",
        see IMAGE_MOVED;
    "gcr.io/cloud-provider-vsphere" means
        "the registry of this image was shut down; the image is in a new registry",
        see IMAGE_MOVED;
    "failed to pull ... authorization failed" means
        "the registry requires credentials, and the pull secrets of the pod contain none for it or wrong ones",
        see IMAGE_NOT_PULLED;
    "failed to pull ... 401 Unauthorized" means
        "the registry requires credentials, and the pull secrets of the pod contain none for it or wrong ones",
        see IMAGE_NOT_PULLED;
    "failed to pull ... 403 Forbidden" means
        "the registry does not let the account in the pull secret read the image",
        see IMAGE_NOT_PULLED;
    "no match for platform" means
        "the image has no variant for the architecture of the node",
        see IMAGE_NOT_PULLED;
    "failed to pull ... no space left on device" means
        "the disk of the node is full",
        see IMAGE_NOT_PULLED;
    "unexpected commit digest" means
        "the registry serves other content than the digest in the image's name",
        see IMAGE_NOT_PULLED;
    "failed to pull ... 404 Not Found" means
        "the registry does not have the image",
        see IMAGE_NOT_PULLED, IMAGE_MOVED;
    "failed to pull ... : not found" means
        "the registry does not have the image",
        see IMAGE_NOT_PULLED, IMAGE_MOVED;
    "failed to pull ... no such host" means
        "the node cannot resolve the name of the registry",
        see IMAGE_NOT_PULLED;
    "failed to pull ... i/o timeout" means
        "the node cannot reach the registry",
        see IMAGE_NOT_PULLED;
    "failed to pull ... connection refused" means
        "the node cannot reach the registry",
        see IMAGE_NOT_PULLED;
    "failed to pull ... connection reset by peer" means
        "the node cannot reach the registry",
        see IMAGE_NOT_PULLED;
    "failed to pull ... EOF" means
        "the node cannot reach the registry",
        see IMAGE_NOT_PULLED;
    "ErrImagePull" means
        "the registry does not serve the image",
        see IMAGE_NOT_PULLED, IMAGE_MOVED;
    "exec format error" means
        "the program in the image is built for another architecture than that of the node",
        see POD_CRASHES;
    "no space left on device" means
        "the disk of the node is full",
        see POD_CRASHES;
    "vSAN file service is not supported in one or more vCenter(s)" means
        "the vCenter is older than 7.0, which this driver no longer supports; vSAN is not the cause",
        see VCENTER_TOO_OLD;
    // Attaching.
    "MountVolume.MountDevice failed ... disk: ... not attached to node" means
        "the node does not see the disk by its id: disk.EnableUUID is off, or the VM was not power cycled",
        see DISK_UUID_OFF, DISK_UUID_WAITS;
    "DeviceUnsupportedForVmVersion" means
        "the VM's hardware version is too old for this disk",
        see HARDWARE_TOO_OLD;
    "vmodl.fault.NotSupported" means
        "the ESXi host or the VM's hardware version is too old",
        see HOST_TOO_OLD, HARDWARE_TOO_OLD;
    "Failed to attach disk because missing SCSI controller" means
        "all slots on the VM's SCSI controllers are in use, or it has no paravirtual controller",
        see SCSI_SLOTS, SCSI_KIND;
    "Multi-Attach error for volume ... already exclusively attached" means
        "the volume is still attached to an unreachable node",
        see NODE_HOLDS_VOLUMES;
    "The operation is not allowed in the current state" means
        "the disk is still attached to another VM",
        see DISK_HELD_ELSEWHERE;
    "vim.fault.InvalidState" means
        "the disk is still attached to another VM",
        see DISK_HELD_ELSEWHERE;
    "Failed to retrieve datastore for vol ... vim.fault.NotFound" means
        "the disk is not on the datastore that vCenter expects",
        see VOLUME_DISK_LOST, DATASTORE_IN_POD;
    "Invalid configuration for device '0'" means
        "a snapshot of the VM holds the disk",
        see VM_SNAPSHOTS;
    "The resource 'volume' is in use" means
        "a snapshot of the VM holds the disk",
        see VM_SNAPSHOTS, DISK_HELD_ELSEWHERE;
    "with existing snapshots ... cannot be expanded" means
        "the volume has snapshots, possibly some that only vCenter knows",
        see SNAPSHOTS_HINDER_GROWTH, SNAPSHOTS_ORPHANED;
    "the number of snapshots on the source volume ... reaches the configured maximum" means
        "the volume has reached its snapshot limit",
        see SNAPSHOT_LIMIT, SNAPSHOTS_ORPHANED;
    "/dev/dm- ... no such file or directory" means
        "multipathd has claimed the disk",
        see MULTIPATH;
    // Webhook, kubelet, host.
    "failed calling webhook ... validation.csi.vsphere.vmware.com ... x509" means
        "the webhook's certificate has expired, or the API server does not trust it",
        see WEBHOOK_CERTIFICATE;
    "failed calling webhook ... validation.csi.vsphere.vmware.com" means
        "no pod serves the webhook",
        see WEBHOOK_UNANSWERED, WEBHOOK_CERTIFICATE;
    "globalmount not pre-created" means
        "the driver mounts outside the kubelet's directory",
        see KUBELET_PATH_WRONG;
    "plugins_registry is not a directory" means
        "the kubelet uses another directory on this platform",
        see KUBELET_PATH_WRONG;
    "violates PodSecurity" means
        "the namespace does not allow privileged pods",
        see POD_REFUSED;
    "unable to validate against any security context constraint" means
        "the service account lacks the permission to use the privileged SCC",
        see POD_REFUSED;
    "address already in use" means
        "another program on the host uses the port",
        see PORT_IN_USE;
    "POST \"/vsanHealth\": 503 Service Unavailable" means
        "vCenter's vsan-health service, which manages all container volumes, is down",
        see SERVICE_DOWN;
    "Failed to get vsan cluster partition status" means
        "vCenter's vsan-health service does not work",
        see SERVICE_DOWN;
    "503 Service Unavailable" means
        "vCenter is overloaded, often because its sessions have run out",
        see SESSIONS_MANY, SERVICE_DOWN;
    // Cloud provider.
    "Multiple VMs found" means
        "several VMs report the host name of the node",
        see GUEST_NAME_SHARED;
    "VM Guest hostname is empty" means
        "VMware Tools is not running in the VM",
        see TOOLS_NOT_RUNNING;
    "VM GuestNicInfo is empty" means
        "VMware Tools is not running in the VM, or the VM is off",
        see TOOLS_NOT_RUNNING, VM_OFF;
    "but CACHE missed for node" means
        "the guest's host name differs from the node's name",
        see GUEST_NAME_DIFFERS;
    "Unable to find VM by UUID" means
        "vCenter shows no VM with this node's uuid to the account",
        see VM_NOT_FOUND, VM_OUT_OF_SIGHT;
    "No VM found" means
        "vCenter shows no VM with this node's name or uuid to the account",
        see VM_NOT_FOUND, GUEST_NAME_DIFFERS, VM_OUT_OF_SIGHT;
    "unable to find suitable IP address for node" means
        "none of the VM's addresses is in the configured network",
        see ADDRESS_NONE, ADDRESS_WRONG;
    "provided node ip for node ... is not valid" means
        "the kubelet's address is not the one that the cloud provider chose",
        see ADDRESS_WRONG;
    "because it does not exist in the cloud provider" means
        "the cloud provider did not find the VM and deleted the Node",
        see NODE_DELETION_RISK, VM_NOT_FOUND;
    "node updates may not change providerID except from" means
        "another cloud provider has set the node's provider id",
        see PROVIDER_ID_FOREIGN;
    "no such host" means
        "the driver's DNS cannot resolve the vCenter's name",
        see NAME_UNRESOLVED, VCENTER_UNREACHABLE;
    "i/o timeout" means
        "a firewall between the driver and vCenter drops the packets",
        see VCENTER_UNREACHABLE;
    "connection refused" means
        "nothing listens at that address",
        see VCENTER_UNREACHABLE;
}

pub fn explain(line: &str) -> Option<&'static Message> {
    MESSAGES.iter().find(|message| message.is_in(line))
}

/// Explains the newest line that the table knows.
pub fn explain_last(lines: &[String]) -> Option<(&str, &'static Message)> {
    lines.iter().rev().find_map(|line| Some((line.as_str(), explain(line)?)))
}

/// The messages that a finding can cause.
pub fn behind(code: &str) -> impl Iterator<Item = &'static Message> {
    MESSAGES.iter().filter(move |m| m.findings.iter().any(|definition| definition.code == code))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_pass_finds_the_messages_that_each_comparison_finds() {
        let matcher = Matcher::new();
        assert!(matcher.texts.is_some());
        // Every message alone, with gaps, in reverse order, and all of them in one line.
        let alone = MESSAGES.iter().map(|message| message.words.to_owned());
        let gaps = MESSAGES.iter().map(|message| message.words.replace("...", "x y"));
        let reverse =
            MESSAGES.iter().map(|m| m.parts().collect::<Vec<_>>().into_iter().rev().collect());
        let all = MESSAGES.iter().map(|message| message.words).collect::<Vec<_>>().join("; ");
        for line in alone.chain(gaps).chain(reverse).chain([all, String::new(), "fine".into()]) {
            let compared = MESSAGES.iter().filter(|message| message.is_in(&line));
            let compared: Vec<_> = compared.map(|message| message.words).collect();
            let found: Vec<_> = matcher.find(&line).map(|message| message.words).collect();
            assert_eq!(found, compared, "{line}");
        }
    }

    #[test]
    fn real_lines_lead_to_their_cause() {
        for (line, code) in [
            (
                "MountVolume.MountDevice failed for volume \"pvc-1\" : rpc error: code = Internal \
                 desc = error occurred disk: 6000c29e9b1a not attached to node",
                codes::DISK_UUID_OFF,
            ),
            (
                "failed to get CSINodeTopology: no matches for kind \"CSINodeTopology\" in version \
                 \"cns.vmware.com/v1alpha1\"",
                codes::CRD_MISSING,
            ),
            ("failed to fetch: POST \"/vsanHealth\": 503 Service Unavailable", codes::SERVICE_DOWN),
            ("Post \"https://vc/sdk\": 503 Service Unavailable", codes::SESSIONS_MANY),
            (
                "failed to pull and unpack image \"r.example.com/vdo:1\": dial tcp: connection refused",
                codes::IMAGE_NOT_PULLED,
            ),
            ("exec /usr/bin/vdo: exec format error", codes::POD_CRASHES),
        ] {
            assert_eq!(explain(line).map(|m| m.findings[0].code), Some(code.code), "{line}");
        }
        assert!(explain("all is well").is_none());
    }

    #[test]
    fn every_message_is_found_by_its_own_words() {
        for message in MESSAGES {
            let line = message.words.replace("...", "xyz");
            let found = explain(&line).map(|found| found.findings[0].code);
            assert_eq!(found, Some(message.findings[0].code), "{}", message.words);
        }
    }
}
