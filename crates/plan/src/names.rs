//! Names that must not change between two releases of VDO, because objects in clusters carry them.

/// The field manager of every apply.
pub const FIELD_MANAGER: &str = "vdo";
/// The label of every object of VDO, with the value [`MANAGED_BY`].
pub const MANAGED_BY_LABEL: &str = "app.kubernetes.io/managed-by";
/// See [`MANAGED_BY_LABEL`].
pub const MANAGED_BY: &str = "vdo";
/// The label of the drivers' pods, with the value [`PART_OF`].
pub const PART_OF_LABEL: &str = "app.kubernetes.io/part-of";
/// See [`PART_OF_LABEL`].
pub const PART_OF: &str = "vsphere-kubernetes-drivers";
/// The version of the driver that an object belongs to.
pub const VERSION_LABEL: &str = "app.kubernetes.io/version";
/// The digest of an object when VDO last applied it.
pub const DIGEST: &str = "vdo.vmware.com/digest";
/// The time at which VDO last changed a login, on the Secret of a driver, and on the pods of a driver that reads its
/// login only at start. VDO restarts these pods when the two differ. A time reveals nothing about a password.
pub const CREDENTIALS_CHANGED: &str = "vdo.vmware.com/credentials-changed";
/// On the pods of a driver that reads its login from a file: when VDO last let the kubelet renew that file. The
/// kubelet does it when the pod changes, otherwise up to 90 seconds later.
pub const FILES_RENEWED: &str = "vdo.vmware.com/files-renewed";
/// On an adopted DaemonSet that restarts with a new password: the limit of pods that restart at a time, before and
/// after VDO raised it, as JSON. VDO raises it to pass pods that do not run, and restores it after the restart.
pub const FORMER_LIMIT: &str = "vdo.vmware.com/former-limit";
/// On the storage driver's pods: the tag categories for zones that they registered with.
pub const ZONES: &str = "vdo.vmware.com/zones";
/// On a VDOConfig: VDO observes and reports, and changes nothing.
pub const PAUSED: &str = "vdo.vmware.com/paused";
/// On a VDOConfig: with each new value, VDO runs all checks at once, including those with a long interval.
pub const CHECK_NOW: &str = "vdo.vmware.com/check-now";
/// On a VDOConfig, with the value `true`: an admin confirms that VDO follows it instead of a deleted one.
pub const FOLLOW: &str = "vdo.vmware.com/follow";
/// The ConfigMap in the operator's namespace that records which VDOConfig VDO follows.
pub const FOLLOWED: &str = "vdo-followed";
/// The Lease in the operator's namespace that elects one pod of an installation.
pub const LEASE: &str = "vdo";
/// The Lease in `kube-system` that admits only one installation of VDO to the cluster.
pub const CLUSTER_LEASE: &str = "vdo-leader";
/// On the Secret with a vCenter's credentials: when the password expires, as `2027-01-31` or with a time.
/// vCenter does not report this to an ordinary account, so the person who sets the password adds it.
pub const PASSWORD_EXPIRES: &str = "vdo.vmware.com/password-expires";
/// The ConfigMap in the operator's namespace that lists every object of every finding.
pub const FINDINGS: &str = "vdo-findings";
/// On a node that VDO labelled as not running on vSphere. VDO removes the label if it finds the VM of the
/// node.
pub const LEFT_OUT: &str = "vdo.vmware.com/left-out";
/// On a node while `vdoctl fix` changes its VM: what it changes, so that another run can finish the work.
pub const MAINTENANCE: &str = "vdo.vmware.com/maintenance";
/// On a VDOConfig: codes or ids of repairs. VDO rolls them back, and does not make them while they are
/// listed.
pub const UNDO: &str = "vdo.vmware.com/undo";
/// The ConfigMap in the operator's namespace that lists the operator's repairs, with their time and the
/// previous values.
pub const REPAIRS: &str = "vdo-repairs";
/// On a VDOConfig with the upgrade policy Manual: the approved release of the cloud provider.
pub const APPROVE_CPI: &str = "vdo.vmware.com/approve-cpi";
/// The approved release of the storage driver; see [`APPROVE_CPI`].
pub const APPROVE_CSI: &str = "vdo.vmware.com/approve-csi";
/// On a VDOConfig with `deletionPolicy: Remove`: VDO removes the drivers before Kubernetes deletes the
/// VDOConfig.
pub const FINALIZER: &str = "vdo.vmware.com/drivers";
/// On every object of `vdoctl test`: the id of the test. `vdoctl` deletes only test objects that have it, and VDO does not
/// check StorageClasses that have it.
pub const VOLUME_TEST: &str = "vdo.vmware.com/volume-test";

/// The namespace of the storage driver.
pub const CSI_NAMESPACE: &str = "vmware-system-csi";
/// The namespace of the cloud controller. The Go VDO kept the vCenter credentials here too.
pub const KUBE_SYSTEM: &str = "kube-system";
/// The namespaces in which every installation permits VDO to write the drivers' objects.
pub const USUAL_NAMESPACES: [&str; 2] = [KUBE_SYSTEM, CSI_NAMESPACE];
/// The Secret from which the cloud controller reads its credentials.
pub const CPI_SECRET: &str = "cpi-global-secret";
/// The Role in the installation manifest that lets upstream's cloud controller list the Secrets in
/// `kube-system`.
pub const CPI_CREDENTIALS_ROLE: &str = "vdo-cloud-provider-credentials";
/// The Secret from which the storage driver reads its configuration.
pub const CSI_SECRET: &str = "vsphere-config-secret";
/// The Secret with the certificate of the storage driver's webhook.
pub const WEBHOOK_SECRET: &str = "vsphere-webhook-certs";
/// The ConfigMap in which the storage driver keeps a cluster id that it created itself.
pub const CSI_CLUSTER_ID: &str = "vsphere-csi-cluster-id";
/// The ConfigMap with the storage driver's feature switches.
pub const CSI_FEATURES: &str = "internal-feature-states.csi.vsphere.vmware.com";
/// The CSI driver's name in VolumeAttachments and CSINodes.
pub const CSI_DRIVER: &str = "csi.vsphere.vmware.com";
/// The VolumeSnapshotClass that VDO creates if the spec asks for snapshots.
pub const SNAPSHOT_CLASS: &str = "vsphere-csi";
pub const PREDECESSOR: &str = "vdo-controller-manager";
/// The field manager of the Go VDO: the name of its binary.
pub const PREDECESSOR_MANAGER: &str = "manager";
/// The taint of a node that waits for its cloud controller.
pub const UNINITIALIZED: &str = health::facts::Node::UNINITIALIZED;
