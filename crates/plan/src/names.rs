//! Names that must not change between two releases: objects in clusters carry them.

/// The one field manager under which everything is applied.
pub const FIELD_MANAGER: &str = "vdo";
/// The label every object of ours carries, with [`MANAGED_BY`].
pub const MANAGED_BY_LABEL: &str = "app.kubernetes.io/managed-by";
/// See [`MANAGED_BY_LABEL`].
pub const MANAGED_BY: &str = "vdo";
/// The label of the drivers' pods, with [`PART_OF`].
pub const PART_OF_LABEL: &str = "app.kubernetes.io/part-of";
/// See [`PART_OF_LABEL`].
pub const PART_OF: &str = "vsphere-kubernetes-drivers";
/// The version of the driver an object belongs to.
pub const VERSION_LABEL: &str = "app.kubernetes.io/version";
/// The digest of an object as it was last applied.
pub const DIGEST: &str = "vdo.vmware.com/digest";
/// On the Secret of a driver that reads it only when it starts, and on that driver's pods: when VDO last
/// changed a login in it. The pods restart when it differs. A point in time tells nothing of a password.
pub const CREDENTIALS_CHANGED: &str = "vdo.vmware.com/credentials-changed";
/// On the storage driver's pods: the tag categories of zones they were registered with.
pub const ZONES: &str = "vdo.vmware.com/zones";
/// Present on a VDOConfig: VDO observes and reports, and changes nothing.
pub const PAUSED: &str = "vdo.vmware.com/paused";
/// On a VDOConfig: each new value makes VDO check everything at once, what is asked slowly included.
pub const CHECK_NOW: &str = "vdo.vmware.com/check-now";
/// On a VDOConfig, as `true`: an admin confirms that VDO follows it instead of one that is gone.
pub const FOLLOW: &str = "vdo.vmware.com/follow";
/// The ConfigMap in the operator's namespace that records which VDOConfig is followed.
pub const FOLLOWED: &str = "vdo-followed";
/// The Lease in the operator's namespace that elects one pod of an installation.
pub const LEASE: &str = "vdo";
/// The Lease in `kube-system` that belongs to one installation of VDO.
pub const CLUSTER_LEASE: &str = "vdo-leader";
/// On the Secret with a vCenter's credentials: when the password expires, as `2027-01-31` or with a time.
/// vCenter tells no ordinary account; whoever sets the password knows.
pub const PASSWORD_EXPIRES: &str = "vdo.vmware.com/password-expires";
/// The ConfigMap beside the operator that lists every object of every finding.
pub const FINDINGS: &str = "vdo-findings";
/// On a node that VDO has labelled as no machine of vSphere: it takes that back if it is one after all.
pub const LEFT_OUT: &str = "vdo.vmware.com/left-out";
/// On a VDOConfig: repairs to take back, and not to make while they are named here; codes or ids.
pub const UNDO: &str = "vdo.vmware.com/undo";
/// The ConfigMap beside the operator that says what it repaired, when, and what was before.
pub const REPAIRS: &str = "vdo-repairs";
/// On a VDOConfig whose policy is Manual: the release of the cloud provider that may be installed.
pub const APPROVE_CPI: &str = "vdo.vmware.com/approve-cpi";
/// The same for the storage driver.
pub const APPROVE_CSI: &str = "vdo.vmware.com/approve-csi";
/// On a VDOConfig with `deletionPolicy: Remove`: VDO takes the drivers away before it goes.
pub const FINALIZER: &str = "vdo.vmware.com/drivers";

/// Where the storage driver lives.
pub const CSI_NAMESPACE: &str = "vmware-system-csi";
/// Where credentials of vCenters are, and where the cloud controller lives.
pub const KUBE_SYSTEM: &str = "kube-system";
/// The namespaces in which every installation lets VDO write the drivers' objects.
pub const USUAL_NAMESPACES: [&str; 2] = [KUBE_SYSTEM, CSI_NAMESPACE];
/// The Secret the cloud controller reads its credentials from.
pub const CPI_SECRET: &str = "cpi-global-secret";
/// The Secret the storage driver reads its configuration from.
pub const CSI_SECRET: &str = "vsphere-config-secret";
/// The Secret with the certificate of the storage driver's webhook.
pub const WEBHOOK_SECRET: &str = "vsphere-webhook-certs";
/// The ConfigMap in which the storage driver keeps an identity it made itself.
pub const CSI_CLUSTER_ID: &str = "vsphere-csi-cluster-id";
/// The ConfigMap with the storage driver's feature switches.
pub const CSI_FEATURES: &str = "internal-feature-states.csi.vsphere.vmware.com";
/// The CSI driver's name in VolumeAttachments and CSINodes.
pub const CSI_DRIVER: &str = "csi.vsphere.vmware.com";
/// The VolumeSnapshotClass, where snapshots are asked for.
pub const SNAPSHOT_CLASS: &str = "vsphere-csi";
/// The Deployment of the Go VDO.
pub const PREDECESSOR: &str = "vdo-controller-manager";
/// The field manager of the Go VDO: its program's name.
pub const PREDECESSOR_MANAGER: &str = "manager";
/// The taint of a node that waits for its cloud controller.
pub const UNINITIALIZED: &str = "node.cloudprovider.kubernetes.io/uninitialized";
