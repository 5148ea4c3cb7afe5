//! Annotations, finalizers and labels that Kubernetes, the upstream sidecars and the Go driver also use.

pub const STORAGE_PROVISIONER: &str = "volume.kubernetes.io/storage-provisioner";
pub const BETA_STORAGE_PROVISIONER: &str = "volume.beta.kubernetes.io/storage-provisioner";
pub const SELECTED_NODE: &str = "volume.kubernetes.io/selected-node";
pub const PROVISIONED_BY: &str = "pv.kubernetes.io/provisioned-by";
pub const PROVISIONER_FINALIZER: &str = "external-provisioner.volume.kubernetes.io/finalizer";
pub const DELETION_SECRET_NAME: &str = "volume.kubernetes.io/provisioner-deletion-secret-name";
pub const DELETION_SECRET_NAMESPACE: &str =
    "volume.kubernetes.io/provisioner-deletion-secret-namespace";
pub const MODIFY_SECRET_NAME: &str = "volume.kubernetes.io/controller-modify-secret-name";
pub const MODIFY_SECRET_NAMESPACE: &str = "volume.kubernetes.io/controller-modify-secret-namespace";
/// The Go driver's syncer recognises dynamically provisioned volumes by this attribute.
pub const PROVISIONER_IDENTITY: &str = "storage.kubernetes.io/csiProvisionerIdentity";

pub const CLONING_PROTECTION: &str = "provisioner.storage.kubernetes.io/cloning-protection";
pub const SNAPSHOT_SOURCE_PROTECTION: &str =
    "provisioner.storage.kubernetes.io/volumesnapshot-as-source-protection";
pub const ALLOW_MODE_CHANGE: &str = "snapshot.storage.kubernetes.io/allow-volume-mode-change";

pub const ATTACHER_FINALIZER: &str = "external-attacher/csi-vsphere-vmware-com";
pub const NODE_ID: &str = "csi.alpha.kubernetes.io/node-id";

pub const NODE_EXPANSION_NOT_REQUIRED: &str = "volume.kubernetes.io/node-expansion-not-required";

pub const SNAPSHOT_BEING_CREATED: &str =
    "snapshot.storage.kubernetes.io/volumesnapshot-being-created";
pub const SNAPSHOT_BEING_DELETED: &str =
    "snapshot.storage.kubernetes.io/volumesnapshot-being-deleted";
pub const CONTENT_PROTECTION: &str =
    "snapshot.storage.kubernetes.io/volumesnapshotcontent-bound-protection";
pub const GROUP_SNAPSHOT_HANDLE: &str = "groupsnapshot.storage.k8s.io/volumeGroupSnapshotHandle";

/// The prefix of class parameters for Kubernetes, not for the driver.
pub const RESERVED_PREFIX: &str = "csi.storage.k8s.io/";

pub const CAPACITY_DRIVER: &str = "csi.storage.k8s.io/drivername";
pub const CAPACITY_MANAGED_BY: &str = "csi.storage.k8s.io/managed-by";
