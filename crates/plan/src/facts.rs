//! What was seen: plain data about cluster, vCenters and drivers, gathered by `observe` and judged
//! by `decide`. Nothing here holds a client, and nothing here changes.

mod catalog_trouble;
mod check_results;
mod make;

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use api::{VDOConfig, VsphereCloudConfigSpec};
use catalog::{Catalog, Driver, Implementation, version::KubernetesVersion};
use driver_config::{
    cpi::CpiConfig,
    credentials::{Credential, SecretTexts},
    csi::CsiConfig,
};
use health::facts::Platform;
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::ByteString;

pub use self::{
    catalog_trouble::{CatalogTrouble, CatalogTroubleKind},
    check_results::{Health, Paged, open},
    make::Make,
};
use crate::{
    object_id::ObjectId,
    record::{Record, Records},
};

/// A trouble that may pass by itself is none before this time is over.
const GRACE: SignedDuration = SignedDuration::from_mins(2);

/// Everything `decide` looks at.
#[derive(Clone, Debug)]
pub struct Facts {
    /// When this was seen.
    pub now: Timestamp,
    /// The VDOConfig that is followed.
    pub config: Arc<VDOConfig>,
    /// Other VDOConfigs in the operator's namespace, which are not.
    pub rivals: Vec<Rival>,
    /// The cluster.
    pub cluster: Cluster,
    /// By the name of their VsphereCloudConfig; only those that exist.
    pub vcenters: BTreeMap<String, Vcenter>,
    /// Objects that carry our label.
    pub objects: BTreeMap<ObjectId, Seen>,
    /// The drivers' workloads, by whoever installed them.
    pub workloads: BTreeMap<ObjectId, Workload>,
    /// Workloads that look like a driver's or like the Go VDO and are neither.
    pub lookalikes: Vec<ObjectId>,
    /// The identity of this cluster in CNS that a driver uses and that is not on record yet; an
    /// error says why it cannot be told.
    pub cluster_id: Result<Option<ClusterId>, String>,
    /// Claims of another cluster that have volumes under that identity; an error says why it is not
    /// known whether there are any.
    pub foreign_volumes: Result<Vec<String>, String>,
    /// The identities the volumes of this cluster were made under, where nothing else tells one and they
    /// are several.
    pub ambiguous: Vec<String>,
    /// What drivers by other hands are told.
    pub in_use: InUse,
    /// What the Go VDO left.
    pub predecessor: Predecessor,
    /// Volumes that are attached by the CSI driver: persistent volume and node.
    pub attached: Vec<(String, String)>,
    /// What we wrote down about what we applied.
    pub records: Records,
    /// What we wrote down and cannot read any more, and why.
    pub unreadable: BTreeMap<Driver, String>,
    /// Which build of the operator decides.
    pub build: String,
    /// The releases there are.
    pub catalog: Arc<Catalog>,
    /// Why a newer catalog is not in use, if one was offered.
    pub catalog_trouble: Option<CatalogTrouble>,
    /// How long a new release may take to become healthy before the one before it is put back.
    pub timeouts: SignedDuration,
    /// How many seconds anything else may take, where that shall be less than usual.
    pub grace: Option<u32>,
    /// What the API server refused when it was last tried, by driver.
    pub refused: BTreeMap<Driver, Refusal>,
    /// Objects of ours that somebody else changed within the hour.
    pub conflicts: BTreeMap<ObjectId, Conflict>,
    /// The Secrets to pull images with that are beside the operator, by name.
    pub pull_secrets: BTreeMap<String, PullSecret>,
    /// The Secrets from which the drivers on record read their passwords, as they are in the cluster;
    /// only those that could be read.
    pub driver_secrets: BTreeMap<Driver, DriverSecret>,
    /// The namespace of the operator.
    pub home: String,
    /// The namespaces in which drivers may be.
    pub allowed_namespaces: BTreeSet<String>,
    /// The namespaces in which drivers may be adopted whatever their names.
    pub open_namespaces: BTreeSet<String>,
    /// When the operator began to look.
    pub started: Timestamp,
    /// What the checks found.
    pub health: Health,
}

impl Facts {
    /// How long what may pass by itself is no trouble.
    pub fn grace(&self) -> SignedDuration {
        let most = self.grace.map(|seconds| SignedDuration::from_secs(seconds.into()));
        most.map_or(GRACE, |most| GRACE.min(most))
    }

    /// What was written down about a driver.
    pub fn record(&self, driver: Driver) -> &Record {
        match driver {
            Driver::Cpi => &self.records.cpi,
            Driver::Csi => &self.records.csi,
        }
    }

    /// Whether a workload is ours: it says so, or we wrote down that we would apply it.
    pub fn is_ours(&self, id: &ObjectId) -> bool {
        let recorded =
            self.records.cpi.objects.contains(id) || self.records.csi.objects.contains(id);
        recorded || self.workloads.get(id).is_some_and(|workload| workload.labelled)
    }

    /// The workloads of a driver with one task, ours first.
    pub fn workloads_of(&self, driver: Driver, task: Task) -> Vec<(&ObjectId, &Workload)> {
        let mut found: Vec<_> =
            self.workloads.iter().filter(|(_, w)| w.driver == driver && w.task == task).collect();
        found.sort_by_key(|(id, _)| !self.is_ours(id));
        found
    }

    /// The generation of the VDOConfig.
    pub fn generation(&self) -> i64 {
        self.config.metadata.generation.unwrap_or(0)
    }
}

/// A step that could not be done.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// The reason in words.
    pub text: String,
    /// Whether the API server understood and said no, so that trying again does not help.
    pub firm: bool,
}

/// Somebody else changed an object of ours, and it was put right.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Conflict {
    /// Who: a field manager.
    pub manager: String,
    /// How often within the hour.
    pub times: u32,
    /// When it was put right last.
    pub last: Timestamp,
}

/// A Secret to pull images with.
#[derive(Clone, PartialEq)]
pub struct PullSecret {
    /// Its type.
    pub kind: String,
    /// What is in it.
    pub data: BTreeMap<String, ByteString>,
    /// Stands for what is in it.
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
    /// Its identity.
    pub id: ObjectId,
    /// Its type.
    pub kind: String,
    /// Its content.
    pub data: SecretTexts,
    /// When VDO last changed a login in it; see [`crate::names::CREDENTIALS_CHANGED`].
    pub changed: Option<String>,
}

impl std::fmt::Debug for DriverSecret {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("DriverSecret").field("id", &self.id).finish_non_exhaustive()
    }
}

/// A VDOConfig that is not followed.
#[derive(Clone, Debug, PartialEq)]
pub struct Rival {
    /// Its namespace.
    pub namespace: String,
    /// Its name.
    pub name: String,
    /// Its generation.
    pub generation: Option<i64>,
    /// What its status says so far; none where it cannot be read.
    pub status: Option<api::VDOConfigStatus>,
}

/// An identity in CNS that a driver uses.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClusterId {
    /// The identity.
    pub id: String,
    /// Whether the driver made it and keeps it in a ConfigMap of its own: it then refuses to start
    /// when its configuration names one too.
    pub kept_by_driver: bool,
}

/// The cluster.
#[derive(Clone, Debug)]
pub struct Cluster {
    /// The API server's version.
    pub version: KubernetesVersion,
    /// As the API server says it: `v1.36.4+rke2r1`.
    pub version_text: String,
    pub platform: Platform,
    /// Whether the platform itself installs the vSphere drivers, as OpenShift on vSphere does.
    pub owns_drivers: bool,
    /// The uid of `kube-system`: as unique as a cluster can be.
    pub uid: String,
    /// Its nodes.
    pub nodes: Vec<Node>,
}

/// A node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Node {
    /// Its name.
    pub name: String,
    /// The label that makes it one of the control plane, if it is.
    pub control_plane: Option<String>,
    /// Its taints: key and effect.
    pub taints: Vec<(String, String)>,
    /// Whether it runs Windows.
    pub windows: bool,
    /// `spec.providerID`.
    pub provider_id: String,
    /// Whether its labels say that it runs on something that is not vSphere.
    pub told_foreign: bool,
    /// What is said of it with the label `vdo.vmware.com/vsphere`.
    pub said: Option<String>,
    /// Whether it was VDO itself who said so.
    pub left_out: bool,
    /// Where its virtual machine is.
    pub vm: NodeVm,
}

impl Node {
    /// Whether a cloud controller has seen it.
    pub fn is_initialized(&self) -> bool {
        !self.taints.iter().any(|(key, _)| key == crate::names::UNINITIALIZED)
    }

    /// Whether it runs on something that is not vSphere and is none of our business.
    pub fn is_foreign(&self) -> bool {
        self.told_foreign || health::facts::is_foreign_id(&self.provider_id)
    }
}

/// Where the virtual machine of a node is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NodeVm {
    /// Seen through these VsphereCloudConfigs, each with the user and the datacenters it names.
    Found(Vec<String>),
    /// In none of those that were asked, and all answered.
    Missing,
    /// Not known, for this reason.
    Unknown(String),
}

/// A vCenter.
#[derive(Clone, Debug)]
pub struct Vcenter {
    /// How to reach it.
    pub spec: VsphereCloudConfigSpec,
    /// What came of trying.
    pub state: VcenterState,
    /// The credentials that were proven, which are what drivers get.
    pub credentials: Option<Credential>,
    /// Stands for them where they must not be seen.
    pub credentials_version: String,
    /// Whether vCenter accepted a login with the credentials that are in the Secret now. They are then
    /// the proven ones, whatever else keeps this vCenter from being verified.
    pub accepted: bool,
    /// The certificates to trust, if the spec names a bundle.
    pub ca_bundle: Option<String>,
    /// Since when its state is what it is.
    pub since: Timestamp,
    /// What its account lacks, as vCenter said last.
    pub privileges: Option<api::vsphere_cloud_config::Privileges>,
    /// The login that was refused, while it is not tried again.
    pub refused: Option<api::vsphere_cloud_config::RefusedLogin>,
    /// The generation of its object, and what its status says so far.
    pub generation: Option<i64>,
    /// See [`Vcenter::generation`].
    pub status: Option<api::VsphereCloudConfigStatus>,
}

/// What came of reaching a vCenter.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum VcenterState {
    /// Not tried yet.
    Untried,
    /// It answered, the credentials are right, the datacenters are there.
    Verified {
        /// `8.0.3`.
        version: String,
        /// `8.0.3.0`.
        api_version: String,
        /// `24022515`.
        build: String,
        /// Its own uuid.
        instance_uuid: String,
        /// What it calls itself.
        product: String,
    },
    /// It was not so.
    Failed {
        /// One word for conditions.
        reason: String,
        /// One sentence for people.
        message: String,
        /// Whether it may pass by itself.
        transient: bool,
    },
}

/// An object of ours as it stands in the cluster.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Seen {
    /// The digest it was last applied with.
    pub digest: Option<String>,
    /// Whether it is still as our last apply left it. False after somebody touched it, and after a
    /// restart of ours: then it is applied again, which changes nothing if nothing changed.
    pub settled: bool,
    /// Whether it is being deleted already.
    pub leaving: bool,
    /// Which object, and which version of what is asked of it: see [`Workload::mark`].
    pub mark: String,
}

/// A Deployment or DaemonSet of a driver.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Workload {
    /// Whose part it is.
    pub driver: Driver,
    /// Which part.
    pub task: Task,
    /// Whether it carries our label.
    pub labelled: bool,
    /// The labels by which it knows its pods.
    pub selector: BTreeMap<String, String>,
    /// The version of the driver: from our label, else from its image.
    pub version: Option<String>,
    /// Whose driver its image is; none if it has no image of a driver.
    pub implementation: Option<Implementation>,
    /// Which object, and which version of what is asked of it. It and [`Seen`] come from two watches:
    /// what is judged must be what was applied, not what stood there before.
    pub mark: String,
    /// Pods it wants.
    pub wanted: i32,
    /// Of these, pods that cannot run because their node does not: no fault of the driver, and none of
    /// the others waits for them.
    pub unreachable: i32,
    /// Of those, pods whose node went down soon after they came: it may be their fault.
    pub suspect: i32,
    /// Pods that are up to date and available.
    pub available: i32,
    /// Whether its controller has seen its latest change.
    pub current: bool,
    /// Whether every pod that can run is made after its latest change.
    pub rolled_out: bool,
    /// What keeps a pod of it from running, in words.
    pub trouble: Option<String>,
    /// How it was made.
    pub make: Make,
}

/// The configuration that drivers by other hands read, without passwords; an error says why it
/// cannot be read.
#[derive(Clone, Debug, Default)]
pub struct InUse {
    /// The cloud controller's.
    pub cpi: Option<Result<Told<CpiConfig>, String>>,
    /// The storage driver's.
    pub csi: Option<Result<Told<CsiConfig>, String>>,
}

/// What a driver by other hands is told.
#[derive(Clone, Debug, Default)]
pub struct Told<T> {
    /// As far as it is understood.
    pub config: T,
    /// Keys that no driver is known to read, each with where it stands.
    pub unknown: Vec<String>,
}

/// What the Go VDO left in the cluster.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Predecessor {
    /// Its Deployment, while it still wants pods.
    pub runs: Option<ObjectId>,
    /// Whether the Secret it writes for the cloud controller is there.
    pub cloud_secret: bool,
}

/// What a workload of a driver does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Task {
    /// It is the driver's controller; of the cloud provider there is nothing else.
    Controller,
    /// It runs on every node.
    Node,
    /// Something beside them: a webhook, a snapshot controller.
    Helper,
}

impl Workload {
    /// Pods that should run and do not, those of nodes that are down aside.
    pub fn lacks(&self) -> i32 {
        (self.wanted - self.unreachable - self.available).max(0)
    }

    /// The suspects, if they are as many as are rolled out at a time: fewer nodes may go down by chance.
    pub fn suspects(&self) -> i32 {
        if self.suspect * 10 >= self.wanted { self.suspect } else { 0 }
    }

    /// Whether all of it runs as it should. A controller of which nobody wants a pod does not.
    pub fn is_healthy(&self) -> bool {
        let least = i32::from(self.wanted > 0 || self.task == Task::Controller);
        self.current && self.available >= (self.wanted - self.unreachable).max(least)
    }
}
