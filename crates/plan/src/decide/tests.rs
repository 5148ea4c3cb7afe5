//! One test for each rule, in a simulated cluster that carries out the plan.

mod adopting;
mod changing;
mod credentials;
mod kept_releases;
mod losing;
mod non_vsphere_nodes;
mod overrides;
mod placement;
mod privileges;
mod proxy;
mod refusing;
mod rendering;
mod reporting;
mod safety;
mod shared_vcenters;
mod switching;
mod timeouts;
mod unasked;
mod unknown_versions;
mod zones;

use std::{collections::BTreeMap, sync::Arc};

use api::{VDOConfig, VsphereCloudConfigSpec};
use catalog::{Driver, Implementation};
use driver_config::credentials::{Credential, Format};
use health::facts::{Node, Platform};
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, Time};
use serde_json::{Value, json};

use super::decide;
use crate::{
    facts::{
        AppliedObject, DriverSecret, DriverWorkload, Facts, FileRenewal, InUse, NodePlacement,
        NodeVm, Predecessor, RestartStrategy, TargetCluster, VcenterConnection, VcenterState,
        WorkloadOrigin, WorkloadRole,
    },
    names,
    object_id::ObjectId,
    plan::{DriverPlan, Finalizer, Next, Plan},
    record::{Record, Records},
};

const NEWEST_CSI: &str = "3.7.3";

/// A simulated cluster of three nodes and one vCenter that carries out the plan.
#[derive(Clone)]
struct World {
    facts: Facts,
    /// Releases whose pods crash.
    broken: Vec<String>,
    /// The actions in order: `record`, `apply KIND NAME`, `delete KIND NAME`.
    done: Vec<String>,
}

impl World {
    /// The spec asks for both drivers, and the cluster is empty.
    fn new() -> Self {
        Self::with_spec(&json!({
            "cloudProvider": {"vsphereCloudConfigs": ["vc"]},
            "storageProvider": {"vsphereCloudConfig": "vc"},
        }))
    }

    fn with_spec(spec: &Value) -> Self {
        let facts = Facts {
            now: "2026-11-14T12:00:00Z".parse().unwrap(),
            config: Arc::new(config(spec)),
            rivals: Vec::new(),
            cluster: cluster(),
            vcenters: BTreeMap::from([("vc".to_owned(), vcenter("vc.example.com", "first"))]),
            objects: BTreeMap::new(),
            workloads: BTreeMap::new(),
            lookalikes: Vec::new(),
            cluster_id: Ok(None),
            foreign_volumes: Ok(Vec::new()),
            ambiguous: Vec::new(),
            in_use: InUse::default(),
            predecessor: Predecessor::default(),
            attached: Vec::new(),
            records: Records::default(),
            unreadable: BTreeMap::new(),
            catalog: Arc::new(catalog::embedded().clone()),
            build: "0.7.0 (first)".into(),
            catalog_trouble: None,
            rollout_timeout: SignedDuration::from_mins(15),
            grace: None,
            refused: BTreeMap::new(),
            renewed_files: BTreeMap::new(),
            conflicts: BTreeMap::new(),
            pull_secrets: BTreeMap::new(),
            driver_secrets: BTreeMap::new(),
            unusable_secrets: BTreeMap::new(),
            operator_namespace: api::NAMESPACE.into(),
            allowed_namespaces: names::USUAL_NAMESPACES.map(str::to_owned).into(),
            // Drivers can have any name here; one test removes this permission.
            open_namespaces: names::USUAL_NAMESPACES.map(str::to_owned).into(),
            started: jiff::Timestamp::UNIX_EPOCH,
            health: crate::facts::Health { tags_are_known: true, ..Default::default() },
        };
        Self { facts, broken: Vec::new(), done: Vec::new() }
    }

    /// Both drivers run.
    fn installed() -> Self {
        let mut world = Self::new();
        world.settle();
        for driver in [Driver::Cpi, Driver::Csi] {
            assert!(world.record(driver).healthy, "{:#?}", world.plan());
        }
        world.done.clear();
        world
    }

    fn plan(&self) -> Plan {
        decide(&self.facts)
    }

    fn driver(&self, driver: Driver) -> DriverPlan {
        self.plan().drivers.into_iter().find(|plan| plan.driver == driver).unwrap()
    }

    fn record(&self, driver: Driver) -> &Record {
        self.facts.record(driver)
    }

    /// Changes the spec, as an admin does.
    fn edit_spec(&mut self, change: impl FnOnce(&mut VDOConfig)) {
        let config = Arc::make_mut(&mut self.facts.config);
        change(config);
        config.metadata.generation = config.metadata.generation.map(|generation| generation + 1);
    }

    fn annotate(&mut self, key: &str, value: &str) {
        let metadata = &mut Arc::make_mut(&mut self.facts.config).metadata;
        metadata.annotations.get_or_insert_default().insert(key.into(), value.into());
    }

    fn vcenter(&mut self) -> &mut VcenterConnection {
        self.facts.vcenters.get_mut("vc").unwrap()
    }

    fn pass(&mut self, time: SignedDuration) {
        self.facts.now += time;
    }

    /// Carries out the plan until it has no further action.
    fn settle(&mut self) {
        for _ in 0..200 {
            if !self.step() {
                return;
            }
        }
        panic!("never comes to rest: {:#?}", self.done);
    }

    /// Carries out one action of each driver. Returns whether there was one.
    fn step(&mut self) -> bool {
        let plan = self.plan();
        let mut something = false;
        for driver in plan.drivers {
            something |= !matches!(driver.next, Next::Nothing | Next::Wait | Next::Blocked);
            match driver.next {
                Next::Nothing | Next::Wait | Next::Blocked => {}
                Next::Record(record) => {
                    self.done.push(format!("record {}", driver.driver));
                    match driver.driver {
                        Driver::Cpi => self.facts.records.cpi = *record,
                        Driver::Csi => self.facts.records.csi = *record,
                    }
                }
                Next::Apply(objects) => {
                    for object in objects {
                        self.apply(driver.driver, &object);
                    }
                }
                Next::Restart { workload, changed, .. } => {
                    self.done.push(format!("restart {} {}", workload.kind, workload.name));
                    let workload = self.facts.workloads.get_mut(&workload).unwrap();
                    workload.origin.credentials_changed = Some(changed);
                    if workload.restart == RestartStrategy::RollingWithRaisedLimit {
                        workload.restart = RestartStrategy::Rolling;
                    }
                }
                Next::RenewFiles { workloads, changed, .. } => {
                    let names: Vec<&str> = workloads.iter().map(|id| id.name.as_str()).collect();
                    self.done.push(format!("renew files of {}", names.join(", ")));
                    let before = self.facts.renewed_files.remove(&driver.driver);
                    let before = before.filter(|before| before.changed == changed);
                    let times = before.map_or(0, |before| before.times) + 1;
                    let renewal = FileRenewal { changed, times, last: self.facts.now };
                    self.facts.renewed_files.insert(driver.driver, renewal);
                }
                Next::Delete(ids) => {
                    for id in ids {
                        self.done.push(format!("delete {} {}", id.kind, id.name));
                        self.facts.objects.remove(&id);
                        self.facts.workloads.remove(&id);
                    }
                }
            }
        }
        something
    }

    fn apply(&mut self, driver: Driver, object: &catalog::manifest::Object) {
        let id = ObjectId::from_object(object);
        self.done.push(format!("apply {} {}", id.kind, id.name));
        let digest = object.0["metadata"]["annotations"][names::DIGEST].as_str().map(str::to_owned);
        let mark = self.done.len().to_string();
        let seen = AppliedObject { digest, settled: true, terminating: false, mark: mark.clone() };
        self.facts.objects.insert(id.clone(), seen);
        self.keep_secret(driver, object);
        if matches!(id.kind.as_str(), "DaemonSet" | "Deployment") {
            let version = object.0["metadata"]["labels"][names::VERSION_LABEL].as_str();
            let broken = self.broken.iter().any(|broken| version == Some(broken.as_str()));
            let before = self.facts.workloads.get(&id);
            let (wanted, unreachable) = before.map_or((1, 0), |w| (w.wanted, w.unreachable));
            let workload = DriverWorkload {
                driver,
                role: before.map_or_else(|| role(&id.name), |w| w.role),
                labelled: true,
                selector: selector(object),
                version: version.map(str::to_owned),
                implementation: Some(implementation_of(object)),
                mark,
                wanted,
                unreachable,
                orphaned: 0,
                suspect: 0,
                unready: 0,
                failing: 0,
                logins: BTreeMap::new(),
                available: if broken { 0 } else { wanted - unreachable },
                ready: if broken { 0 } else { wanted - unreachable },
                updated: if broken { 0 } else { wanted - unreachable },
                current: true,
                rolled_out: true,
                trouble: broken.then(|| "CrashLoopBackOff (driver: it crashes)".into()),
                restart: RestartStrategy::Rolling,
                origin: origin_of(object),
            };
            self.facts.workloads.insert(id, workload);
        }
    }

    /// Keeps the Secret from which the driver reads its passwords.
    fn keep_secret(&mut self, driver: Driver, object: &catalog::manifest::Object) {
        let own = match driver {
            Driver::Cpi => names::CPI_SECRET,
            Driver::Csi => {
                let names = self.record(driver).names.as_ref();
                names.and_then(|names| names.settings.as_deref()).unwrap_or(names::CSI_SECRET)
            }
        };
        if object.kind() != "Secret" || object.name() != own {
            return;
        }
        let secret: k8s_openapi::api::core::v1::Secret =
            serde_json::from_value(object.0.clone()).unwrap();
        let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap().into();
        let data = secret.data.unwrap_or_default().into_iter();
        let annotations = secret.metadata.annotations.unwrap_or_default();
        let kept = DriverSecret {
            id: ObjectId::from_object(object),
            kind: secret.type_.unwrap(),
            data: data.map(|(key, bytes)| (key, text(bytes.0))).collect(),
            changed: annotations.get(names::CREDENTIALS_CHANGED).cloned(),
        };
        self.facts.driver_secrets.insert(driver, kept);
    }

    /// Whether a driver's Secret contains this password.
    fn has_password(&self, driver: Driver, password: &str) -> bool {
        let secret = &self.facts.driver_secrets[&driver];
        secret.data.values().any(|text| text.expose().contains(password))
    }

    /// Sets a new password of the same user, which vCenter accepts.
    fn rotate(&mut self, vcenter: &str, password: &str) {
        self.pass(SignedDuration::from_secs(1));
        let vcenter = self.facts.vcenters.get_mut(vcenter).unwrap();
        vcenter.credentials = Some(credential(password));
        vcenter.credentials_version = format!("stands for {password}").replace("password", "one");
    }

    fn codes(&self) -> Vec<String> {
        self.plan().findings.into_iter().map(|finding| finding.code).collect()
    }

    /// The content of the Secrets and ConfigMaps that VDO applies next, as text.
    fn rendered(&self) -> String {
        let plan = self.plan();
        let applied = plan.drivers.into_iter().filter_map(|driver| match driver.next {
            Next::Apply(objects) => Some(objects),
            _ => None,
        });
        applied.flatten().map(|object| text_of(&object)).collect()
    }
}

/// The labels of a workload's pod selector.
fn selector(workload: &catalog::manifest::Object) -> BTreeMap<String, String> {
    serde_json::from_value(workload.0["spec"]["selector"]["matchLabels"].clone()).unwrap()
}

fn origin_of(workload: &catalog::manifest::Object) -> WorkloadOrigin {
    let template = serde_json::from_value(workload.0["spec"]["template"].clone()).unwrap();
    WorkloadOrigin::read(&ObjectMeta::default(), Some(&template))
}

/// The implementation that a workload runs.
fn implementation_of(workload: &catalog::manifest::Object) -> Implementation {
    let image = workload.0.pointer("/spec/template/spec/containers/0/image");
    let image: catalog::Image = image.unwrap().as_str().unwrap().parse().unwrap();
    Implementation::of_image(&image.name)
}

/// An object as text, with base64 data decoded.
fn text_of(object: &catalog::manifest::Object) -> String {
    let mut text = object.0.to_string();
    if object.kind() == "Secret" {
        let secret: k8s_openapi::api::core::v1::Secret =
            serde_json::from_value(object.0.clone()).unwrap();
        for (key, value) in secret.data.unwrap_or_default() {
            text.extend(["\n", &key, ": ", &String::from_utf8(value.0).unwrap()]);
        }
    }
    text
}

fn role(name: &str) -> WorkloadRole {
    match name {
        "vsphere-cloud-controller-manager" | "vsphere-csi-controller" => WorkloadRole::Controller,
        name if name.starts_with("vsphere-csi-node") => WorkloadRole::Node,
        _ => WorkloadRole::Helper,
    }
}

fn config(spec: &Value) -> VDOConfig {
    serde_json::from_value(json!({
        "metadata": {"name": "vdo", "namespace": "vmware-system-vdo", "generation": 1},
        "spec": spec,
    }))
    .unwrap()
}

fn cluster() -> TargetCluster {
    let node = |name: &str| NodePlacement {
        node: Node {
            name: name.into(),
            provider_id: Some("vsphere://4210".into()),
            ..Node::default()
        },
        vm: found_by("vmware-system-vdo/vc"),
    };
    TargetCluster {
        version: "v1.34.2".parse().unwrap(),
        version_text: "v1.34.2".into(),
        platform: Platform::Kubernetes,
        owns_drivers: false,
        uid: "0c9c1f5e".into(),
        nodes: vec![node("node-1"), node("node-2"), node("node-3")],
        proxy: Ok(None),
    }
}

fn found_by(name: &str) -> NodeVm {
    NodeVm::Found(vec![name.into()])
}

fn vcenter(address: &str, password: &str) -> VcenterConnection {
    let spec: VsphereCloudConfigSpec = serde_json::from_value(json!({
        "vcIp": address, "credentials": "vc-credentials", "datacenters": ["DC0"],
    }))
    .unwrap();
    VcenterConnection {
        spec,
        secret: "vmware-system-vdo/vc-credentials".into(),
        state: verified(),
        credentials: Some(credential(password)),
        credentials_version: format!("stands for {}", password.len()),
        accepted: true,
        ca_bundle: None,
        oldest_host: None,
        since: Timestamp::UNIX_EPOCH,
        privileges: None,
        refused: None,
        generation: Some(1),
        status: None,
    }
}

fn verified() -> VcenterState {
    VcenterState::Verified {
        version: "8.0.3".into(),
        api_version: "8.0.3.0".into(),
        build: "24022515".into(),
        instance_uuid: "u".into(),
        product: "VMware vCenter Server".into(),
    }
}

fn unreachable_vcenter(transient: bool) -> VcenterState {
    let message = "nobody answers".to_owned();
    VcenterState::Failed { reason: "Unreachable".into(), message, transient }
}

fn credential(password: &str) -> Credential {
    Credential {
        server: None,
        username: "k8s@vsphere.local".into(),
        password: password.to_owned().into(),
        format: Format::BasicAuth,
        key: "password".into(),
        trimmed: false,
    }
}

/// Adds a workload that is not managed by VDO.
fn theirs(
    world: &mut World,
    kind: &str,
    namespace: &str,
    name: &str,
    driver: Driver,
    role: WorkloadRole,
) {
    let id = ObjectId {
        api_version: "apps/v1".into(),
        kind: kind.into(),
        namespace: namespace.into(),
        name: name.into(),
    };
    let workload = DriverWorkload {
        driver,
        role,
        labelled: false,
        selector: BTreeMap::new(),
        version: Some("2.7.0".into()),
        implementation: Some(Implementation::Upstream),
        mark: String::new(),
        wanted: 1,
        unreachable: 0,
        orphaned: 0,
        suspect: 0,
        unready: 0,
        failing: 0,
        logins: BTreeMap::new(),
        available: 1,
        ready: 1,
        updated: 1,
        current: true,
        rolled_out: true,
        trouble: None,
        restart: RestartStrategy::Rolling,
        origin: WorkloadOrigin::default(),
    };
    world.facts.workloads.insert(id, workload);
}

fn pin(world: &mut World, version: &str) {
    let version = api::text::ReleaseVersion(version.into());
    world.edit_spec(|config| {
        config.spec.storage_provider.as_mut().unwrap().version = Some(version);
    });
}

fn running(world: &World) -> Option<&str> {
    world.record(Driver::Csi).version.as_deref()
}

/// A cluster in which this older release runs.
fn older(version: &str) -> World {
    let mut world = World::new();
    pin(&mut world, version);
    world.settle();
    assert_eq!(running(&world), Some(version), "{:#?}", world.plan());
    assert!(world.record(Driver::Csi).healthy);
    world.done.clear();
    world
}

/// Asks for the removal of the storage driver.
fn remove_storage(world: &mut World) {
    let removed = json!({"mode": "Removed"});
    world.edit_spec(|config| {
        config.spec.storage_provider = serde_json::from_value(removed).unwrap();
    });
}

fn deleted(world: &mut World) {
    let now = Time(world.facts.now);
    Arc::make_mut(&mut world.facts.config).metadata.deletion_timestamp = Some(now);
}

fn finalizer_of(world: &World) -> Finalizer {
    world.plan().finalizer
}
