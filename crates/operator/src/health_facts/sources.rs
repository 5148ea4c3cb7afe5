//! The sources of the health facts: the same for the operator, which looks continuously, and for a one-shot
//! check.

use std::{collections::BTreeMap, sync::Arc};

use api::{VDOConfigSpec, VsphereCloudConfigSpec};
use catalog::{Catalog, Driver};
use health::facts::{CatalogState, CatalogTrouble, Known, Operator, Platform, Wanted};
use jiff::{SignedDuration, Timestamp};
use kube::ResourceExt;
use plan::{
    ObjectId,
    facts::{self, VcenterState},
    names,
    record::{Record, Records},
};
use vsphere::inventory::Inventory;

use super::wanted::{acknowledged, wanted};
use crate::{audit::Audit, cluster::Stores, observe::Timeouts, vcenters::Vcenters};

/// The storage driver's default limit of missing volumes when it lists volumes.
const LIST_THRESHOLD: u32 = 50;

/// Everything that the facts come from.
#[derive(Clone, Copy)]
pub(super) struct Sources<'a> {
    pub(super) settings: &'a CollectorSettings,
    /// The caches of the cluster; `None` if only vCenters are checked.
    pub(super) stores: Option<&'a Stores>,
    /// The workloads of the drivers.
    pub(super) workloads: &'a BTreeMap<ObjectId, facts::DriverWorkload>,
    pub(super) vcenters: &'a Vcenters,
}

/// The desired state and the state of VDO itself.
#[derive(Clone, Debug)]
pub(super) struct CollectorSettings {
    pub(super) now: Timestamp,
    /// The namespace of the VsphereCloudConfigs, which the keys of the vCenter pool start with.
    pub(super) namespace: String,
    pub(super) platform: Platform,
    /// The version of Kubernetes, as the API server reports it.
    pub(super) version: Known<String>,
    pub(super) wanted: Wanted,
    pub(super) operator: Operator,
    /// How many missing volumes the storage driver tolerates when it lists volumes.
    pub(super) list_threshold: u32,
    pub(super) records: Records,
    /// The cluster id in the configuration of a storage driver that is not on record.
    pub(super) cluster_id: Option<String>,
    pub(super) catalog: Arc<Catalog>,
    /// The time that a new release has to become healthy.
    pub(super) rollout_timeout: SignedDuration,
    /// By the name of their VsphereCloudConfig.
    pub(super) vcenters: BTreeMap<String, ConfiguredVcenter>,
    /// The value of the annotation that requests an audit.
    pub(super) asked: String,
}

/// A vCenter as its VsphereCloudConfig describes it, and the result of the last connection attempt.
#[derive(Clone, Debug)]
pub(super) struct ConfiguredVcenter {
    pub(super) spec: VsphereCloudConfigSpec,
    /// The Secret with its credentials, as `namespace/name`; empty if there is none.
    pub(super) secret: String,
    pub(super) state: VcenterState,
    pub(super) since: Timestamp,
}

impl ConfiguredVcenter {
    pub(super) fn new(vcenter: &facts::VcenterConnection) -> Self {
        Self {
            spec: vcenter.spec.clone(),
            secret: vcenter.secret.clone(),
            state: vcenter.state.clone(),
            since: vcenter.since,
        }
    }
}

impl Sources<'_> {
    /// The key of a vCenter in the pool.
    pub(super) fn key(&self, vcenter: &str) -> String {
        format!("{}/{vcenter}", self.settings.namespace)
    }

    /// The inventory of a vCenter, while it is known.
    pub(super) fn inventory(&self, vcenter: &str) -> Option<Inventory> {
        self.vcenters.known(&self.key(vcenter))?.inventory
    }

    /// The last audit of each vCenter.
    pub(super) fn audits(&self) -> BTreeMap<String, Arc<Audit>> {
        let audit = |name: &String| self.vcenters.known(&self.key(name))?.audit;
        let names = self.settings.vcenters.keys();
        names.filter_map(|name| Some((name.clone(), audit(name)?))).collect()
    }

    /// Whether a vCenter that accepted the login has not been audited yet.
    pub(super) fn is_audit_pending(&self) -> bool {
        self.settings.vcenters.iter().any(|(name, vcenter)| {
            let verified = matches!(vcenter.state, VcenterState::Verified { .. });
            let known = self.vcenters.known(&self.key(name));
            verified && known.is_some_and(|known| known.audit.is_none())
        })
    }
}

impl CollectorSettings {
    /// The settings that a VDOConfig and a catalog determine. The default spec stands for no VDOConfig.
    pub(super) fn new(
        spec: &VDOConfigSpec,
        platform: Platform,
        catalog: Arc<Catalog>,
        trouble: Option<&CatalogTrouble>,
    ) -> Self {
        Self {
            now: Timestamp::now(),
            namespace: String::new(),
            platform,
            version: Known::unknown("no cluster was looked at"),
            wanted: wanted(spec, platform.kubelet_path()),
            operator: Operator {
                catalog: catalog_state(&catalog, trouble).into(),
                // Only a running operator conflicts with other field managers.
                conflicts: Vec::new().into(),
                acknowledged: acknowledged(spec),
                grace: None,
            },
            list_threshold: list_threshold(spec),
            records: Records::default(),
            cluster_id: None,
            catalog,
            rollout_timeout: Timeouts::default().rollout,
            vcenters: BTreeMap::new(),
            asked: String::new(),
        }
    }

    /// The settings of the running operator.
    pub(super) fn from_facts(facts: &facts::Facts) -> Self {
        let trouble = facts.catalog_trouble.as_ref();
        let (spec, platform) = (&facts.config.spec, facts.cluster.platform);
        let settings = Self::new(spec, platform, facts.catalog.clone(), trouble);
        let in_use = facts.cluster_id.as_ref().ok().and_then(Option::as_ref);
        let vcenters = facts.referenced_vcenters();
        Self {
            now: facts.now,
            namespace: facts.config.namespace().unwrap_or_default(),
            version: facts.cluster.version_text.clone().into(),
            operator: Operator {
                conflicts: facts.conflicts.values().cloned().collect::<Vec<_>>().into(),
                grace: facts.grace,
                ..settings.operator
            },
            records: facts.records.clone(),
            cluster_id: in_use.filter(|id| !id.kept_by_driver).map(|id| id.id.clone()),
            rollout_timeout: facts.rollout_timeout,
            vcenters: vcenters.map(|(name, v)| (name.clone(), ConfiguredVcenter::new(v))).collect(),
            asked: facts.config.annotations().get(names::CHECK_NOW).cloned().unwrap_or_default(),
            ..settings
        }
    }

    fn record(&self, driver: Driver) -> &Record {
        match driver {
            Driver::Cpi => &self.records.cpi,
            Driver::Csi => &self.records.csi,
        }
    }

    /// Whether a record lists this workload.
    pub(super) fn is_recorded(&self, id: &ObjectId) -> bool {
        self.records.cpi.objects.contains(id) || self.records.csi.objects.contains(id)
    }

    /// Whether a driver's release is being rolled out and has not reached its timeout.
    pub(super) fn is_changing(&self, driver: Driver) -> bool {
        let record = self.record(driver);
        let age = record.since.map(|since| self.now.duration_since(since));
        record.version.is_some()
            && !record.healthy
            && age.is_some_and(|age| age < self.rollout_timeout)
    }
}

fn list_threshold(spec: &VDOConfigSpec) -> u32 {
    let tuning = spec.storage_provider.as_ref().and_then(|storage| storage.tuning.as_ref());
    let desired = tuning.and_then(|tuning| tuning.list_volume_threshold);
    desired.and_then(|number| u32::try_from(number).ok()).unwrap_or(LIST_THRESHOLD)
}

fn catalog_state(catalog: &Catalog, trouble: Option<&CatalogTrouble>) -> CatalogState {
    CatalogState {
        serial: i64::try_from(catalog.serial).unwrap_or(i64::MAX),
        expires: catalog.expires,
        trouble: trouble.cloned(),
    }
}
