//! Facts about the cluster, the vCenters and the drivers. `observe` collects them and `decide` judges them.
//! `health::facts` owns the facts that checks read too: nodes, platform, conflicts, catalog. This module adds
//! the facts that only rules need.
//!
//! They are plain data: nothing here holds a client, and nothing here changes.

mod check_results;
mod workload_origin;

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use api::{VDOConfig, VsphereCloudConfigSpec};
use catalog::{
    Catalog, Driver, Implementation,
    version::{KubernetesVersion, VsphereVersion},
};
use driver_config::{
    cpi::CpiConfig,
    credentials::{Credential, SecretTexts},
    csi::CsiConfig,
};
use health::facts::{CatalogTrouble, Conflict, Node, Platform};
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::ByteString;

pub use self::{
    check_results::{Health, Paged, open},
    workload_origin::WorkloadOrigin,
};
use crate::{
    object_id::ObjectId,
    record::{Record, Records},
};

/// VDO reports a transient problem only when it lasts longer than this.
const GRACE: SignedDuration = SignedDuration::from_mins(2);

/// The complete input of `decide`.
#[derive(Clone, Debug)]
pub struct Facts {
    /// The time of the observation.
    pub now: Timestamp,
    /// The VDOConfig that VDO follows.
    pub config: Arc<VDOConfig>,
    /// Other VDOConfigs in the operator's namespace. VDO does not follow them.
    pub rivals: Vec<Rival>,
    pub cluster: TargetCluster,
    /// The vCenters by the name of their VsphereCloudConfig; only those that exist.
    pub vcenters: BTreeMap<String, VcenterConnection>,
    /// Objects that carry the label of VDO.
    pub objects: BTreeMap<ObjectId, AppliedObject>,
    /// The workloads of the drivers, no matter who installed them.
    pub workloads: BTreeMap<ObjectId, DriverWorkload>,
    /// Workloads that look like a driver or like the Go VDO, but are neither.
    pub lookalikes: Vec<ObjectId>,
    /// The cluster id in CNS that a driver uses and that no record contains yet. The error is the reason why
    /// VDO cannot determine it.
    pub cluster_id: Result<Option<ClusterId>, String>,
    /// PersistentVolumeClaims of another cluster that have volumes under that cluster id. The error is the
    /// reason why VDO does not know whether there are any.
    pub foreign_volumes: Result<Vec<String>, String>,
    /// The cluster ids under which the volumes of this cluster were created. VDO fills this only if there are
    /// several and no other source determines the cluster id.
    pub ambiguous: Vec<String>,
    /// The configuration of drivers that are not managed by VDO.
    pub in_use: InUse,
    /// Objects that the Go VDO left in the cluster.
    pub predecessor: Predecessor,
    /// Volumes that the CSI driver has attached: PersistentVolume and node.
    pub attached: Vec<(String, String)>,
    /// The records that VDO wrote before it applied the drivers.
    pub records: Records,
    /// The drivers whose record VDO cannot read, with the reason.
    pub unreadable: BTreeMap<Driver, String>,
    /// The build of the operator that decides.
    pub build: String,
    /// The catalog of releases.
    pub catalog: Arc<Catalog>,
    /// The reason why VDO does not use a newer catalog, if there is one.
    pub catalog_trouble: Option<CatalogTrouble>,
    /// The rollout timeout: the time that a new release has to become healthy before VDO rolls it back.
    pub rollout_timeout: SignedDuration,
    /// An upper limit in seconds for the grace period; see [`Facts::grace()`].
    pub grace: Option<u32>,
    /// The error of the last attempt to apply, by driver.
    pub refused: BTreeMap<Driver, ApplyFailure>,
    /// Objects of VDO that another field manager changed within the last hour.
    pub conflicts: BTreeMap<ObjectId, Conflict>,
    /// The image pull Secrets in the operator's namespace, by name.
    pub pull_secrets: BTreeMap<String, PullSecret>,
    /// The Secrets from which the drivers on record read their passwords, as they are in the cluster; only
    /// those that VDO could read.
    pub driver_secrets: BTreeMap<Driver, DriverSecret>,
    /// The drivers on record whose passwords VDO cannot read or cannot write.
    pub unusable_secrets: BTreeMap<Driver, UnusableSecret>,
    /// The drivers whose pods renewed the files of their Secret. After a restart of the operator, they do it once
    /// more.
    pub renewed_files: BTreeMap<Driver, FileRenewal>,
    /// The namespace of the operator.
    pub operator_namespace: String,
    /// The namespaces in which VDO has permission to write drivers.
    pub allowed_namespaces: BTreeSet<String>,
    /// The namespaces in which VDO adopts drivers under any name.
    pub open_namespaces: BTreeSet<String>,
    /// The time at which the operator started to observe.
    pub started: Timestamp,
    /// The results of the health checks.
    pub health: Health,
}

impl Facts {
    /// The vCenters that the VDOConfig names. Nothing depends on the others.
    pub fn referenced_vcenters(&self) -> impl Iterator<Item = (&String, &VcenterConnection)> {
        let named: BTreeSet<&str> =
            self.config.spec.vcenters().into_iter().map(|name| name.0.as_str()).collect();
        self.vcenters.iter().filter(move |(name, _)| named.contains(name.as_str()))
    }

    /// The grace period: VDO does not report a transient problem before it is over.
    pub fn grace(&self) -> SignedDuration {
        let most = self.grace.map(|seconds| SignedDuration::from_secs(seconds.into()));
        most.map_or(GRACE, |most| GRACE.min(most))
    }

    pub fn record(&self, driver: Driver) -> &Record {
        match driver {
            Driver::Cpi => &self.records.cpi,
            Driver::Csi => &self.records.csi,
        }
    }

    /// Whether a workload belongs to VDO: it carries the label, or a record lists it.
    pub fn is_ours(&self, id: &ObjectId) -> bool {
        let recorded =
            self.records.cpi.objects.contains(id) || self.records.csi.objects.contains(id);
        recorded || self.workloads.get(id).is_some_and(|workload| workload.labelled)
    }

    /// The workloads of a driver with one role. Those that belong to VDO come first.
    pub fn workloads_of(
        &self,
        driver: Driver,
        role: WorkloadRole,
    ) -> Vec<(&ObjectId, &DriverWorkload)> {
        let mut found: Vec<_> =
            self.workloads.iter().filter(|(_, w)| w.driver == driver && w.role == role).collect();
        found.sort_by_key(|(id, _)| !self.is_ours(id));
        found
    }

    pub fn generation(&self) -> i64 {
        self.config.metadata.generation.unwrap_or(0)
    }
}

/// The error of an apply.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ApplyFailure {
    /// The reason as a sentence.
    pub text: String,
    /// Whether the API server rejected the request itself, so that a retry cannot succeed.
    pub firm: bool,
    pub cause: RefusalCause,
}

/// Who rejects an object of a driver.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum RefusalCause {
    Quota,
    /// An admission webhook or policy rejects or changes the object.
    Admission,
    PodSecurity,
    TerminatingNamespace,
    /// VDO's service account lacks a permission.
    Permission,
    /// An object of that name exists, and VDO does not manage it.
    NotManaged,
    /// The cluster has no definition of the object's kind.
    Undefined,
    /// The object is not valid in this cluster.
    Invalid,
    #[default]
    Other,
}

/// An image pull Secret.
#[derive(Clone, PartialEq)]
pub struct PullSecret {
    /// The `type` of the Secret.
    pub kind: String,
    pub data: BTreeMap<String, ByteString>,
    /// A version that changes with the data and does not reveal it.
    pub version: String,
}

impl std::fmt::Debug for PullSecret {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("PullSecret").field("version", &self.version).finish_non_exhaustive()
    }
}

/// The Secret from which a driver reads its passwords.
#[derive(Clone, PartialEq)]
pub struct DriverSecret {
    pub id: ObjectId,
    /// The `type` of the Secret.
    pub kind: String,
    pub data: SecretTexts,
    /// The time at which VDO last changed a login in the Secret; see [`crate::names::CREDENTIALS_CHANGED`].
    pub changed: Option<String>,
}

impl std::fmt::Debug for DriverSecret {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("DriverSecret").field("id", &self.id).finish_non_exhaustive()
    }
}

/// The reason why VDO cannot pass a password to a driver.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnusableSecret {
    /// The Secret, or the ConfigMap, from which the driver reads its password.
    pub id: ObjectId,
    /// The reason, without the content of the Secret.
    pub reason: String,
    /// The time at which VDO first saw the problem.
    pub since: Timestamp,
}

/// A VDOConfig that VDO does not follow.
#[derive(Clone, Debug, PartialEq)]
pub struct Rival {
    pub namespace: String,
    pub name: String,
    pub uid: String,
    pub generation: Option<i64>,
    /// The current status; none if VDO cannot read it.
    pub status: Option<api::VDOConfigStatus>,
}

/// A cluster id in CNS that a driver uses. `health::facts::ClusterIds` compares all sources of the id.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClusterId {
    pub id: String,
    /// Whether the driver created the cluster id and keeps it in its own ConfigMap. Such a driver refuses to
    /// start if its configuration contains a cluster id too.
    pub kept_by_driver: bool,
}

/// The cluster that the drivers are for: the properties that select a release and its manifest. The checks
/// know it as `health::facts::Cluster`, with everything that can be wrong in it.
#[derive(Clone, Debug)]
pub struct TargetCluster {
    /// The version of the API server.
    pub version: KubernetesVersion,
    /// The version as the API server reports it: `v1.36.4+rke2r1`.
    pub version_text: String,
    pub platform: Platform,
    /// Whether the platform itself installs the vSphere drivers, as OpenShift on vSphere does.
    pub owns_drivers: bool,
    /// The uid of the namespace `kube-system`. It identifies the cluster.
    pub uid: String,
    pub nodes: Vec<NodePlacement>,
    /// The proxy that the platform configures for the whole cluster, as OpenShift does. The error is the reason why
    /// VDO does not know whether there is one.
    pub proxy: Result<Option<ClusterProxy>, String>,
}

impl TargetCluster {
    pub fn nodes(&self) -> impl Iterator<Item = &Node> {
        self.nodes.iter().map(|placement| &placement.node)
    }
}

/// The proxy of the whole cluster, as the platform publishes it to its components. The URLs can contain a password.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct ClusterProxy {
    /// The URL of the proxy for HTTP; empty if there is none.
    pub http: String,
    /// The URL of the proxy for HTTPS; empty if there is none.
    pub https: String,
    /// The hosts and networks to reach without the proxy, separated by commas.
    pub except: String,
    /// The version of the object, which is another one after each change of a URL.
    pub version: String,
}

impl std::fmt::Debug for ClusterProxy {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ClusterProxy").field("except", &self.except).finish_non_exhaustive()
    }
}

/// A node, and the location of its VM.
#[derive(Clone, Debug, PartialEq)]
pub struct NodePlacement {
    pub node: Node,
    pub vm: NodeVm,
}

/// The location of a node's VM.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NodeVm {
    /// These VsphereCloudConfigs see the VM, each with its own user and its own datacenters.
    Found(Vec<String>),
    /// No VsphereCloudConfig sees the VM, and every vCenter answered.
    Missing,
    /// VDO does not know, for this reason.
    Unknown(String),
}

/// A VsphereCloudConfig, the result of the connection that it describes, and the credentials that drivers get.
/// `health::facts::Vcenter` describes the vCenter itself, and contains no credentials.
#[derive(Clone, Debug)]
pub struct VcenterConnection {
    pub spec: VsphereCloudConfigSpec,
    /// The Secret with its credentials, as `namespace/name`.
    pub secret: String,
    /// The result of the last connection attempt.
    pub state: VcenterState,
    /// The verified credentials. Drivers get these.
    pub credentials: Option<Credential>,
    /// A version that changes with the credentials and does not reveal them.
    pub credentials_version: String,
    /// Whether vCenter accepted a login with the credentials that are in the Secret now. They are then the
    /// verified ones, even if another problem keeps this vCenter from being verified.
    pub accepted: bool,
    /// The certificates to trust, if the spec names a bundle.
    pub ca_bundle: Option<String>,
    /// The oldest ESXi host in the clusters that run nodes; none if VDO does not see the versions of its hosts.
    pub oldest_host: Option<VsphereVersion>,
    /// The time of the last change of `state`.
    pub since: Timestamp,
    /// The privileges that the account lacks, as vCenter last reported them.
    pub privileges: Option<api::vsphere_cloud_config::Privileges>,
    /// The last login, if vCenter refused it. VDO repeats it rarely.
    pub refused: Option<api::vsphere_cloud_config::RefusedLogin>,
    /// The generation of the VsphereCloudConfig that belongs to [`VcenterConnection::status`].
    pub generation: Option<i64>,
    /// The current status of the VsphereCloudConfig.
    pub status: Option<api::VsphereCloudConfigStatus>,
}

/// The result of a connection to a vCenter.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum VcenterState {
    /// VDO has not tried to connect yet.
    Untried,
    /// vCenter answered, it accepted the credentials, and the datacenters exist.
    Verified {
        /// `8.0.3`.
        version: String,
        /// `8.0.3.0`.
        api_version: String,
        /// `24022515`.
        build: String,
        /// The uuid of the vCenter instance.
        instance_uuid: String,
        /// The product name that vCenter reports.
        product: String,
    },
    /// At least one of these checks failed.
    Failed {
        /// The reason of the condition, in one word.
        reason: String,
        /// The message for people, in one sentence.
        message: String,
        /// Whether the problem can pass by itself.
        transient: bool,
    },
}

/// An object of VDO as it is in the cluster.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AppliedObject {
    /// The digest of the object when VDO last applied it.
    pub digest: Option<String>,
    /// Whether the object is unchanged since VDO last applied it. This is false after another change and
    /// after a restart of the operator. VDO then applies the object again, which changes nothing if the
    /// object is equal.
    pub settled: bool,
    /// Whether the object has a deletion timestamp.
    pub terminating: bool,
    /// The identity of the object and the version of its spec; see [`DriverWorkload::mark`].
    pub mark: String,
}

impl AppliedObject {
    /// Whether VDO last applied this very state, as far as the digest of the object shows.
    pub fn has_digest_of(&self, object: &catalog::manifest::Object) -> bool {
        let digest = object.0["metadata"]["annotations"][crate::names::DIGEST].as_str();
        digest.is_some() && self.digest.as_deref() == digest
    }
}

/// A Deployment or DaemonSet of a driver: its origin and the progress of its rollout. The operator makes the
/// `health::facts::Workload` of the checks from it, and adds its unhealthy pods.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DriverWorkload {
    pub driver: Driver,
    pub role: WorkloadRole,
    /// Whether it carries the label of VDO.
    pub labelled: bool,
    /// The labels of its pod selector.
    pub selector: BTreeMap<String, String>,
    /// The version of the driver: from the label of VDO, else from its image.
    pub version: Option<String>,
    /// The implementation that its image contains; none if it has no image of a driver.
    pub implementation: Option<Implementation>,
    /// The identity of the object and the version of its spec. `DriverWorkload` and [`AppliedObject`] come from two watches.
    /// With this mark VDO judges the health of the applied object and not of an earlier version.
    pub mark: String,
    /// The number of desired pods.
    pub wanted: i32,
    /// The number of desired pods that cannot run because their node is down. The driver is not at fault, and
    /// the other pods do not wait for them.
    pub unreachable: i32,
    /// The number of pods that Kubernetes does not want any more and has not deleted yet: their Node was deleted, or is down
    /// and repels them. They count towards the limit of pods that restart at a time, like the unreachable ones.
    pub orphaned: i32,
    /// The number of pods on nodes that went down soon after the pod started: the pod can be the cause.
    pub suspect: i32,
    /// Of a DaemonSet: the number of nodes that are up and whose pods are all unready or terminating, and of pods that
    /// Kubernetes cannot schedule.
    pub unready: i32,
    /// The part of these for which Kubernetes reports an error. A pod that restarts is unready, and has none.
    pub failing: i32,
    /// The number of ready pods on nodes that are up, by the time of the logins that they use; see
    /// [`crate::names::CREDENTIALS_CHANGED`]. Pods that are terminating do not count.
    pub logins: BTreeMap<Option<String>, i32>,
    /// The number of pods that are up to date and available.
    pub available: i32,
    /// The number of ready pods, also of those that are not up to date.
    pub ready: i32,
    /// The number of pods that are up to date, also of those on nodes that are down.
    pub updated: i32,
    /// Whether its controller has observed the latest generation.
    pub current: bool,
    /// Whether every pod that can run was created after the latest change.
    pub rolled_out: bool,
    /// The reason why one of its pods does not run, as a sentence.
    pub trouble: Option<String>,
    /// Of a DaemonSet: how its pods restart.
    pub restart: RestartStrategy,
    /// Its origin and its pod template.
    pub origin: WorkloadOrigin,
}

/// The renewal of the files that the pods of a driver mount from its Secret.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FileRenewal {
    /// The time of the change in the Secret; see [`crate::names::CREDENTIALS_CHANGED`].
    pub changed: String,
    pub times: u32,
    pub last: Timestamp,
}

/// How the pods of a workload restart after a change of its pod template.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum RestartStrategy {
    /// The controllers of Kubernetes replace them.
    #[default]
    Rolling,
    /// The same. VDO raised the limit of pods that restart at a time, and has to restore it.
    RollingWithRaisedLimit,
    /// Somebody has to delete them.
    OnDelete,
}

/// The configuration, without passwords, of drivers that are not managed by VDO. The error is the reason why
/// VDO cannot read it.
#[derive(Clone, Debug, Default)]
pub struct InUse {
    pub cpi: Option<Result<RunningConfig<CpiConfig>, String>>,
    pub csi: Option<Result<RunningConfig<CsiConfig>, String>>,
}

/// The configuration with which a driver runs that is not managed by VDO.
#[derive(Clone, Debug, Default)]
pub struct RunningConfig<T> {
    /// The part that VDO understands.
    pub config: T,
    /// Keys that no known driver reads, each with its section.
    pub unknown: Vec<String>,
}

/// Objects that the Go VDO left in the cluster.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Predecessor {
    /// Its Deployment, while the desired number of pods is not zero.
    pub runs: Option<ObjectId>,
    /// Whether the Secret exists that the Go VDO writes for the cloud controller.
    pub cloud_secret: bool,
}

/// The role of a workload in its driver.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum WorkloadRole {
    /// The controller of the driver. The cloud provider has no other workload.
    Controller,
    /// A pod on every node.
    Node,
    /// An additional workload: a webhook or a snapshot controller.
    Helper,
}

impl DriverWorkload {
    /// The number of desired pods that do not run, without those on nodes that are down.
    pub fn lacks(&self) -> i32 {
        (self.wanted - self.unreachable - self.available).max(0)
    }

    /// The number of suspect pods, if it reaches the share that is rolled out at a time. Fewer nodes can go
    /// down by chance.
    pub fn suspects(&self) -> i32 {
        if self.suspect * 10 >= self.wanted { self.suspect } else { 0 }
    }

    /// Whether all desired pods run. A controller with zero desired pods is not healthy.
    pub fn is_healthy(&self) -> bool {
        let least = i32::from(self.wanted > 0 || self.role == WorkloadRole::Controller);
        self.current && self.available >= (self.wanted - self.unreachable).max(least)
    }
}
