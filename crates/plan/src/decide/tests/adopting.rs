//! Adoption of drivers that VDO did not install.

use std::collections::BTreeSet;

use super::*;
use crate::facts::{ClusterId, RunningConfig};

/// A cluster with a storage driver from upstream's manifest. Its cluster id is the address of a vCenter, as
/// the Go VDO set it.
fn upstream() -> World {
    let mut world = World::with_spec(&json!({"storageProvider": {"vsphereCloudConfig": "vc"}}));
    let namespace = "vmware-system-csi";
    let parts = [
        ("Deployment", "vsphere-csi-controller", WorkloadRole::Controller),
        ("DaemonSet", "vsphere-csi-node", WorkloadRole::Node),
    ];
    for (kind, name, role) in parts {
        theirs(&mut world, kind, namespace, name, Driver::Csi, role);
    }
    for (id, workload) in &mut world.facts.workloads {
        workload.version = Some("3.6.3".into());
        workload.selector = BTreeMap::from([("app".to_owned(), id.name.clone())]);
    }
    let id = ClusterId { id: "10.10.10.10".into(), kept_by_driver: false };
    world.facts.cluster_id = Ok(Some(id));
    settings_are_read(&mut world);
    world
}

/// VDO finds and understands the configuration of both drivers.
fn settings_are_read(world: &mut World) {
    world.facts.in_use =
        InUse { cpi: Some(Ok(RunningConfig::default())), csi: Some(Ok(RunningConfig::default())) };
}

fn adopt(world: &mut World, adoption: &str) {
    let adoption = serde_json::from_value(json!(adoption)).unwrap();
    world.edit_spec(|config| config.spec.adoption = Some(adoption));
}

/// Approves the release that VDO proposes, as `vdoctl upgrade` does.
fn approve(world: &mut World, driver: Driver) {
    let version = world.driver(driver).target.unwrap();
    let annotation = match driver {
        Driver::Cpi => names::APPROVE_CPI,
        Driver::Csi => names::APPROVE_CSI,
    };
    world.annotate(annotation, &version);
}

/// Adopts the driver, and asks for the release that VDO proposes then.
fn adopt_and_approve(world: &mut World, driver: Driver) {
    adopt(world, "Automatic");
    world.settle();
    approve(world, driver);
}

#[test]
fn adoption_changes_nothing_until_an_admin_approves_a_release() {
    for shape in SHAPES {
        let (what, driver) = (shape.what, shape.driver);
        let mut world = shape.world();
        let before = world.facts.workloads.clone();
        adopt(&mut world, "Automatic");
        world.settle();
        assert_eq!(world.done, [format!("record {driver}")], "{what}");
        assert_eq!(world.facts.workloads, before, "{what}");
        let plan = world.driver(driver);
        assert_eq!(plan.next, Next::Nothing, "{what}: {plan:#?}");
        let held = plan.held.clone().unwrap();
        assert!(held.contains("kubectl annotate vdoconfig"), "{what}: {held}");
        let status = crate::status(&world.facts, &world.plan());
        assert!(api::condition::is_true(&status.conditions, "Ready"), "{what}: {status:#?}");
        assert_eq!(status.plan.unwrap().state, Some(api::vdo_config::PlanState::Waiting), "{what}");
        // Neither time nor another section of the spec starts the rollout.
        world.pass(SignedDuration::from_hours(24 * 30));
        world.edit_spec(|config| config.spec.remediation = None);
        world.settle();
        assert_eq!(world.done.len(), 1, "{what}: {:?}", world.done);

        approve(&mut world, driver);
        world.settle();
        assert!(world.done.iter().any(|done| done.starts_with("apply DaemonSet")), "{what}");
        assert!(world.record(driver).healthy, "{what}: {:#?}", world.plan());
    }
}

/// The request of an admin, and whether VDO then changes the driver.
type Request<'a> = (&'a str, bool, &'a dyn Fn(&mut World));

#[test]
fn a_policy_or_a_version_in_the_spec_upgrades_an_adopted_driver() {
    let upgrades = |policy: &str| {
        Some(
            serde_json::from_value::<api::vdo_config::Upgrades>(json!({"policy": policy})).unwrap(),
        )
    };
    let storage = &SHAPES[2];
    let asked: [Request<'_>; 5] = [
        ("Stable", true, &|world| world.edit_spec(|c| c.spec.upgrades = upgrades("Stable"))),
        ("Latest", true, &|world| world.edit_spec(|c| c.spec.upgrades = upgrades("Latest"))),
        ("Manual", false, &|world| world.edit_spec(|c| c.spec.upgrades = upgrades("Manual"))),
        ("another version", true, &|world| pin(world, NEWEST_CSI)),
        ("the version that runs", false, &|world| pin(world, "3.6.2")),
    ];
    for (what, changes, ask) in asked {
        let mut world = storage.world();
        adopt(&mut world, "Automatic");
        ask(&mut world);
        world.settle();
        let changed = world.done.iter().any(|done| done.starts_with("apply"));
        assert_eq!(changed, changes, "{what}: {:?}", world.done);
        assert!(world.record(Driver::Csi).healthy, "{what}");
    }
    // A policy upgrades, and does not restart pods for nothing: the newest release runs already.
    let mut world = storage.world();
    world.facts.workloads.values_mut().for_each(|w| w.version = Some(NEWEST_CSI.into()));
    adopt(&mut world, "Automatic");
    world.edit_spec(|config| config.spec.upgrades = upgrades("Stable"));
    world.settle();
    assert_eq!(world.done, ["record CSI"]);
}

#[test]
fn an_adopted_driver_of_which_a_workload_is_deleted_is_installed_again() {
    let mut world = upstream();
    adopt(&mut world, "Automatic");
    world.settle();
    assert_eq!(world.done, ["record CSI"]);
    world.facts.workloads.retain(|id, _| id.kind != "Deployment");
    world.settle();
    assert!(world.done.contains(&"apply Deployment vsphere-csi-controller".into()));
    let record = world.record(Driver::Csi);
    assert_eq!(record.version.as_deref(), Some("3.6.3"), "nobody asked for another release");
    assert_eq!(record.cluster_id.as_deref(), Some("10.10.10.10"));
    let others = "apply DaemonSet vsphere-csi-node".to_owned();
    assert!(!world.done.contains(&others), "the rest stays as it was: {:?}", world.done);
    approve(&mut world, Driver::Csi);
    world.settle();
    assert_eq!(world.record(Driver::Csi).version.as_deref(), Some(NEWEST_CSI));
    assert!(world.done.contains(&others), "{:?}", world.done);
}

#[test]
fn an_adopted_cloud_controller_stays_of_its_implementation() {
    let shape = &SHAPES[4];
    let mut world = shape.world();
    let ours = catalog::embedded()
        .releases_of(Driver::Cpi, Implementation::Rust)
        .map(|release| release.version.to_string())
        .next()
        .unwrap();
    for workload in world.facts.workloads.values_mut() {
        workload.version = Some(ours.clone());
        workload.implementation = Some(Implementation::Rust);
    }
    adopt(&mut world, "Automatic");
    world.settle();
    assert_eq!(world.done, ["record CPI"]);
    approve(&mut world, Driver::Cpi);
    world.settle();
    assert_eq!(world.record(Driver::Cpi).implementation, Implementation::Rust);
}

#[test]
fn adoption_is_proposed_and_nothing_is_done_unasked() {
    let mut world = upstream();
    world.settle();
    assert_eq!(world.done, Vec::<String>::new());
    let plan = world.driver(Driver::Csi);
    let proposal = plan.steps[0].message.as_deref().unwrap();
    assert!(proposal.contains("adoption: Automatic"), "{proposal}");
    assert!(world.codes().contains(&"VDO-1902".into()));
}

#[test]
fn a_known_release_is_adopted_with_its_identity_and_then_upgraded() {
    let mut world = upstream();
    adopt_and_approve(&mut world, Driver::Csi);
    world.settle();
    assert_eq!(world.done[0], "record CSI", "first it is written down");
    assert_eq!(world.done.iter().filter(|done| done.starts_with("delete")).count(), 0);
    let record = world.record(Driver::Csi);
    assert_eq!(record.version.as_deref(), Some(NEWEST_CSI));
    assert_eq!(record.cluster_id.as_deref(), Some("10.10.10.10"));
    assert!(record.healthy);
    assert_eq!(world.codes(), Vec::<String>::new());
}

#[test]
fn a_driver_of_no_known_release_is_never_overwritten() {
    let spoil: [fn(&mut World); 4] = [
        |world| adopt(world, "Never"),
        |world| world.facts.workloads.values_mut().for_each(|w| w.version = Some("0.1.0".into())),
        |world| world.facts.workloads.values_mut().for_each(|w| w.selector.clear()),
        |world| {
            let moved = std::mem::take(&mut world.facts.workloads).into_iter();
            let moved = moved.map(|(id, w)| (ObjectId { namespace: "elsewhere".into(), ..id }, w));
            world.facts.workloads = moved.collect();
        },
    ];
    for (number, spoil) in spoil.into_iter().enumerate() {
        let mut world = upstream();
        adopt(&mut world, "Automatic");
        spoil(&mut world);
        world.settle();
        assert_eq!(world.done, Vec::<String>::new(), "case {number}");
        assert_eq!(world.driver(Driver::Csi).next, Next::Blocked);
        let code = if number == 1 { "VDO-1922" } else { "VDO-1902" };
        assert!(world.codes().contains(&code.into()), "case {number}: {:?}", world.codes());
    }
}

/// The Go VDO always installed this release of the cloud provider, which no catalog has.
#[test]
fn the_cloud_provider_of_the_go_vdo_is_replaced_with_one_command() {
    let mut world = World::with_spec(&json!({
        "cloudProvider": {"vsphereCloudConfigs": ["vc"]}, "adoption": "Automatic",
    }));
    let name = "vsphere-cloud-controller-manager";
    theirs(&mut world, "DaemonSet", "kube-system", name, Driver::Cpi, WorkloadRole::Controller);
    for workload in world.facts.workloads.values_mut() {
        workload.version = Some("1.2.1".into());
        workload.selector = BTreeMap::from([("k8s-app".to_owned(), name.to_owned())]);
    }
    settings_are_read(&mut world);
    world.settle();
    assert_eq!(world.done, Vec::<String>::new(), "VDO leaves it alone");
    let findings = world.plan().findings;
    let codes: Vec<&str> = findings.iter().map(|finding| finding.code.as_str()).collect();
    assert!(!codes.contains(&"VDO-1902"), "adopting it would fail: {codes:?}");
    let finding = findings.iter().find(|finding| finding.code == "VDO-1922").unwrap();
    let delete = format!("kubectl delete daemonset --namespace kube-system {name}");
    assert!(finding.remedy[0].starts_with(&delete), "{:?}", finding.remedy);
    // The admin runs it.
    world.facts.workloads.clear();
    world.settle();
    assert!(world.record(Driver::Cpi).healthy, "{:#?}", world.plan());
}

#[test]
fn the_cloud_controller_is_not_adopted_into_a_configuration_that_hides_a_vm() {
    let mut world = World::with_spec(&json!({
        "cloudProvider": {"vsphereCloudConfigs": ["vc"]}, "adoption": "Automatic",
    }));
    let name = "vsphere-cloud-controller-manager";
    theirs(&mut world, "DaemonSet", "kube-system", name, Driver::Cpi, WorkloadRole::Controller);
    for workload in world.facts.workloads.values_mut() {
        workload.version = Some("1.34.0".into());
        workload.selector = BTreeMap::from([("name".to_owned(), name.to_owned())]);
    }
    settings_are_read(&mut world);
    world.facts.cluster.nodes[0].vm = NodeVm::Missing;
    adopt_and_approve(&mut world, Driver::Cpi);
    world.settle();
    assert!(!world.done.iter().any(|done| done.starts_with("apply")), "{:?}", world.done);
    world.facts.cluster.nodes[0].vm = found_by("vmware-system-vdo/vc");
    world.settle();
    assert!(world.record(Driver::Cpi).healthy);
    assert!(world.done.iter().any(|done| done.starts_with("apply DaemonSet")));
}

#[test]
fn a_driver_whose_settings_are_not_found_or_not_understood_is_never_overwritten() {
    let ways: [fn(&mut World); 2] = [
        |world| world.facts.in_use = InUse::default(),
        |world| {
            let why = "ConfigMap kube-system/x cannot be read: line 3";
            world.facts.in_use = InUse { cpi: Some(Err(why.into())), csi: Some(Err(why.into())) };
        },
    ];
    for spoil in ways {
        for shape in SHAPES {
            let mut world = shape.world();
            adopt(&mut world, "Automatic");
            spoil(&mut world);
            world.settle();
            assert_eq!(world.done, Vec::<String>::new(), "{}", shape.what);
            let plan = world.driver(shape.driver);
            let text = plan.steps[0].message.clone().unwrap();
            assert!(text.contains("settings") || text.contains("line 3"), "{text}");
        }
    }
}

#[test]
fn no_secret_of_the_cloud_controllers_settings_is_in_the_proposal() {
    let shape = &SHAPES[0];
    let mut world = shape.world();
    let theirs = "[Global]\nport = \"443\"\n[VirtualCenter \"vc.example.com\"]\n\
                  user = \"u\"\npassword = \"pw-of-vcenter\"\ndatacenters = \"DC0\"\n\
                  [NSXT]\nuser = \"admin\"\npassword = \"pw-of-nsx\"\nhost = \"nsx.example.com\"\n\
                  vmcAccessToken = \"a-token\"\n";
    let config = driver_config::cpi::CpiConfig::read(theirs).unwrap().config;
    world.facts.in_use.cpi = Some(Ok(RunningConfig { config, unknown: Vec::new() }));
    let proposal = world.driver(Driver::Cpi).steps[0].message.clone().unwrap();
    assert!(proposal.contains("nsx.example.com"), "{proposal}");
    for secret in ["pw-of-vcenter", "pw-of-nsx", "a-token"] {
        assert!(!proposal.contains(secret), "{proposal}");
    }
}

/// A driver in the shape that some installer leaves.
struct Shape {
    what: &'static str,
    driver: Driver,
    namespace: &'static str,
    /// Kind, name and pod selector label.
    parts: &'static [(&'static str, &'static str, (&'static str, &'static str))],
    version: &'static str,
    settings: &'static str,
    helm: Option<&'static str>,
}

const SHAPES: [Shape; 5] = [
    Shape {
        what: "upstream's chart of the cloud provider",
        driver: Driver::Cpi,
        namespace: "kube-system",
        parts: &[("DaemonSet", "vsphere-cpi", ("app", "vsphere-cpi"))],
        version: "1.34.0",
        settings: "vsphere-cloud-config",
        helm: Some("vsphere-cpi"),
    },
    Shape {
        what: "Rancher's chart of the cloud provider",
        driver: Driver::Cpi,
        namespace: "kube-system",
        parts: &[(
            "DaemonSet",
            "rancher-vsphere-cpi-cloud-controller-manager",
            ("component", "rancher-vsphere-cpi-cloud-controller-manager"),
        )],
        version: "1.34.0-rancher1",
        settings: "rancher-vsphere-cpi-cloud-config",
        helm: Some("rancher-vsphere-cpi"),
    },
    Shape {
        what: "Rancher's chart of the storage driver",
        driver: Driver::Csi,
        namespace: "kube-system",
        parts: &[
            ("Deployment", "vsphere-csi-controller", ("app", "vsphere-csi-controller")),
            ("DaemonSet", "vsphere-csi-node", ("app", "vsphere-csi-node")),
        ],
        version: "3.6.2-rancher4",
        settings: "vsphere-config-secret",
        helm: Some("rancher-vsphere-csi"),
    },
    Shape {
        what: "a community chart of the storage driver",
        driver: Driver::Csi,
        namespace: "vmware-system-csi",
        parts: &[
            (
                "Deployment",
                "storage-vsphere-csi-controller",
                ("app.kubernetes.io/component", "controller"),
            ),
            ("DaemonSet", "storage-vsphere-csi-node", ("app.kubernetes.io/component", "node")),
        ],
        version: "3.5.1",
        settings: "storage-vsphere-csi-config",
        helm: Some("storage"),
    },
    Shape {
        what: "the older manifest of the cloud provider",
        driver: Driver::Cpi,
        namespace: "kube-system",
        parts: &[(
            "DaemonSet",
            "vsphere-cloud-controller-manager",
            ("k8s-app", "vsphere-cloud-controller-manager"),
        )],
        version: "1.33.0",
        settings: "cloud-config",
        helm: None,
    },
];

impl Shape {
    fn world(&self) -> World {
        let spec = match self.driver {
            Driver::Cpi => json!({"cloudProvider": {"vsphereCloudConfigs": ["vc"]}}),
            Driver::Csi => json!({"storageProvider": {"vsphereCloudConfig": "vc"}}),
        };
        let mut world = World::with_spec(&spec);
        settings_are_read(&mut world);
        for (kind, name, (key, value)) in self.parts {
            let node = self.driver == Driver::Csi && *kind == "DaemonSet";
            let role = if node { WorkloadRole::Node } else { WorkloadRole::Controller };
            theirs(&mut world, kind, self.namespace, name, self.driver, role);
            let id = self.id(kind, name);
            let workload = world.facts.workloads.get_mut(&id).unwrap();
            workload.version = Some(self.version.into());
            workload.selector = BTreeMap::from([((*key).into(), (*value).into())]);
            workload.origin = WorkloadOrigin {
                settings: Some(self.settings.into()),
                field_managers: BTreeSet::from(["helm".to_owned()]),
                helm: self.helm.map(str::to_owned),
                ..WorkloadOrigin::default()
            };
        }
        world
    }

    fn id(&self, kind: &str, name: &str) -> ObjectId {
        ObjectId {
            api_version: "apps/v1".into(),
            kind: kind.into(),
            namespace: self.namespace.into(),
            name: name.into(),
        }
    }
}

#[test]
fn a_driver_by_any_chart_is_adopted_under_its_own_names_and_upgraded() {
    for shape in SHAPES {
        let what = shape.what;
        let mut world = shape.world();
        world.settle();
        assert_eq!(world.done, Vec::<String>::new(), "{what}: proposed, not done");
        let proposal = world.driver(shape.driver).steps[0].message.clone().unwrap();
        if let Some(release) = shape.helm {
            let leaves = format!("leaves the Helm release {release}");
            assert!(proposal.contains(&leaves), "{what}: {proposal}");
        }

        let before: BTreeSet<ObjectId> = world.facts.workloads.keys().cloned().collect();
        adopt_and_approve(&mut world, shape.driver);
        world.settle();
        let record = world.record(shape.driver);
        assert!(record.healthy, "{what}: {:#?}", world.plan());
        let newest = if shape.driver == Driver::Csi { NEWEST_CSI } else { "1.34.0" };
        assert_eq!(record.version.as_deref(), Some(newest), "{what}");
        let after: BTreeSet<ObjectId> = world.facts.workloads.keys().cloned().collect();
        assert_eq!(after, before, "{what}: nothing next to it");
        let deleted = world.done.iter().filter(|done| done.starts_with("delete"));
        assert_eq!(deleted.count(), 0, "{what}");
        assert!(
            world.facts.objects.keys().any(|id| id.name == shape.settings),
            "{what}: its settings are written where it reads them"
        );
        assert!(
            !world
                .facts
                .objects
                .keys()
                .any(|id| id.kind == "Namespace" && id.name == "kube-system")
        );
    }
}

#[test]
fn a_driver_outside_the_allowed_names_is_adopted_once_an_admin_permits_it() {
    let shape = &SHAPES[3];
    for known in SHAPES.iter().filter(|known| known.what != shape.what) {
        let mut world = known.world();
        world.facts.open_namespaces.clear();
        adopt(&mut world, "Automatic");
        world.settle();
        assert!(world.record(known.driver).healthy, "{}: {:#?}", known.what, world.plan());
    }
    let mut world = shape.world();
    world.facts.open_namespaces.clear();
    adopt(&mut world, "Automatic");
    world.settle();
    assert_eq!(world.done, Vec::<String>::new());
    let plan = format!("{:?}", world.plan());
    let namespace = &world.facts.workloads.keys().next().unwrap().namespace.clone();
    assert!(plan.contains(&format!("vdoctl deploy --driver-namespace {namespace}")), "{plan}");

    world.facts.open_namespaces.insert(namespace.clone());
    world.settle();
    assert!(world.record(shape.driver).healthy, "{:#?}", world.plan());
}

#[test]
fn pods_are_selected_by_the_labels_they_had_wherever_they_are_selected() {
    let shape = &SHAPES[3];
    let mut world = shape.world();
    adopt_and_approve(&mut world, Driver::Csi);
    let mut seen = 0;
    while let Some(objects) = {
        let next = world.driver(Driver::Csi).next;
        let objects = if let Next::Apply(objects) = next { Some(objects) } else { None };
        let more = world.step();
        objects.or_else(|| more.then(Vec::new))
    } {
        for object in objects {
            let text = object.0.to_string();
            let other = [r#"{"app":"vsphere-csi-controller"}"#, r#"{"app":"vsphere-csi-node"}"#];
            assert!(!other.iter().any(|other| text.contains(other)), "{text}");
            if matches!(object.kind(), "Deployment" | "DaemonSet") {
                let labels = &object.0["spec"]["template"]["metadata"]["labels"];
                for (key, value) in object.0["spec"]["selector"]["matchLabels"].as_object().unwrap()
                {
                    assert_eq!(labels[key], *value);
                }
                seen += 1;
            }
        }
    }
    assert!(seen >= 2);
}

/// The state that the Go VDO leaves: both drivers installed by it, its Secret, and a vCenter address as the
/// cluster id.
fn go_vdo() -> World {
    // Its own matrices never installed this cloud provider, but a matrix of a user can.
    go_vdo_with("vmware-system-csi", "3.0.4-rc.1", "1.34.0")
}

/// The same with these drivers.
fn go_vdo_with(csi_namespace: &str, csi: &str, cpi: &str) -> World {
    let mut world = World::new();
    let parts = [
        ("DaemonSet", "kube-system", "vsphere-cloud-controller-manager", Driver::Cpi),
        ("Deployment", csi_namespace, "vsphere-csi-controller", Driver::Csi),
        ("DaemonSet", csi_namespace, "vsphere-csi-node", Driver::Csi),
    ];
    for (kind, namespace, name, driver) in parts {
        theirs(&mut world, kind, namespace, name, driver, role(name));
    }
    for (id, workload) in &mut world.facts.workloads {
        let cloud = workload.driver == Driver::Cpi;
        workload.version = Some(if cloud { cpi } else { csi }.into());
        let key = if cloud { "k8s-app" } else { "app" };
        workload.selector = BTreeMap::from([(key.to_owned(), id.name.clone())]);
        workload.origin.field_managers = BTreeSet::from([names::PREDECESSOR_MANAGER.to_owned()]);
    }
    world.facts.predecessor.cloud_secret = true;
    settings_are_read(&mut world);
    let id = ClusterId { id: "vc.example.com".into(), kept_by_driver: false };
    world.facts.cluster_id = Ok(Some(id));
    world
}

#[test]
fn drivers_of_the_go_vdo_are_adopted_with_their_cluster_id_and_upgraded_on_approval() {
    let mut world = go_vdo();
    world.settle();
    assert_eq!(world.done, ["record CPI", "record CSI"], "their upgrades were disabled");
    approve(&mut world, Driver::Cpi);
    approve(&mut world, Driver::Csi);
    world.settle();
    let record = world.record(Driver::Csi);
    assert!(record.healthy && world.record(Driver::Cpi).healthy, "{:#?}", world.plan());
    assert_eq!(record.cluster_id.as_deref(), Some("vc.example.com"));
    assert_eq!(record.version.as_deref(), Some(NEWEST_CSI));
    assert_eq!(world.done.iter().filter(|done| done.starts_with("delete")).count(), 0);
    assert_eq!(world.codes(), ["VDO-1907"], "and its danger is reported");
}

/// A storage driver of a matrix of the Go VDO: the version of its image, its namespace, and the newest Kubernetes
/// version that the matrix allows. Before 2.3, the driver was in `kube-system`.
type MatrixEntry = (&'static str, &'static str, &'static str);

const MATRICES_UNTIL_0_6: &[MatrixEntry] = &[
    ("2.2.0", "kube-system", "1.20"),
    ("2.2.1", "kube-system", "1.20"),
    ("2.2.2", "kube-system", "1.20"),
    ("2.3.0", "vmware-system-csi", "1.21"),
    ("2.4.0", "vmware-system-csi", "1.22"),
    ("2.5.1", "vmware-system-csi", "1.23"),
];

/// All matrices of the Go VDO. Each entry of the cloud provider installs image 1.2.1, and the storage driver that the
/// newest two call 3.0.0 has image 3.0.4-rc.1.
const MATRICES: [(&str, &[MatrixEntry]); 5] = [
    ("0.2.1", MATRICES_UNTIL_0_6),
    ("0.3.1", MATRICES_UNTIL_0_6),
    ("0.6.0", MATRICES_UNTIL_0_6),
    (
        "0.7.0",
        &[
            ("2.5.1", "vmware-system-csi", "1.23"),
            ("2.6.2", "vmware-system-csi", "1.24"),
            ("2.7.0", "vmware-system-csi", "1.30"),
            ("3.0.4-rc.1", "vmware-system-csi", "1.27"),
        ],
    ),
    (
        "1.0.0",
        &[
            ("2.5.1", "vmware-system-csi", "1.23"),
            ("2.6.2", "vmware-system-csi", "1.24"),
            ("2.7.0", "vmware-system-csi", "1.25"),
            ("3.0.4-rc.1", "vmware-system-csi", "1.27"),
        ],
    ),
];

/// On Kubernetes of the matrix, if VDO runs on it, and after upgrades of Kubernetes.
#[test]
fn drivers_of_every_matrix_of_the_go_vdo_reach_ready_with_two_commands() {
    let mut cases = 0;
    for (matrix, entries) in MATRICES {
        for (csi, namespace, newest) in entries {
            let minor = |text: &str| text[2..].parse::<u8>().unwrap();
            for kubernetes in [*newest, "1.34"].into_iter().filter(|text| minor(text) >= 25) {
                let what = format!("matrix {matrix}, storage {csi}, Kubernetes {kubernetes}");
                let mut world = go_vdo_with(namespace, csi, "1.2.1");
                world.facts.cluster.version_text = format!("v{kubernetes}.0");
                world.facts.cluster.version = world.facts.cluster.version_text.parse().unwrap();
                reaches_ready_with_two_commands(&mut world, csi, &what, minor(kubernetes));
                cases += 1;
            }
        }
    }
    assert_eq!(cases, 30);
}

fn reaches_ready_with_two_commands(world: &mut World, csi: &str, what: &str, minor: u8) {
    let before = world.facts.workloads.clone();
    world.settle();
    assert_eq!(world.done, ["record CSI"], "{what}: {:#?}", world.plan());
    assert_eq!(world.facts.workloads, before, "{what}");
    assert_eq!(world.driver(Driver::Csi).installed.as_deref(), Some(csi), "{what}: as it runs");

    // The cloud provider is replaced only if there is another one to install. The images for Kubernetes up to 1.27
    // were deleted.
    let name = "vsphere-cloud-controller-manager";
    let delete = format!("kubectl delete daemonset --namespace kube-system {name}");
    let remedy = |world: &World| {
        let findings = world.plan().findings;
        let finding = findings.iter().find(|finding| finding.code == "VDO-1922");
        finding.unwrap_or_else(|| panic!("{what}: {findings:#?}")).remedy[0].clone()
    };
    if minor < 28 {
        let text = remedy(world);
        assert!(
            text.contains("Do not delete") && text.contains("spec.images.registry"),
            "{what}: {text}"
        );
        let mut other = world.clone();
        other.edit_spec(|config| {
            let cloud = config.spec.cloud_provider.as_mut().unwrap();
            cloud.implementation = Some(api::vdo_config::Implementation::Rust);
        });
        assert!(remedy(&other).starts_with(&delete), "{what}: {}", remedy(&other));
        // Nor is a release of the storage driver left, so that one stays.
        *world = other;
    }
    assert!(remedy(world).starts_with(&delete), "{what}: {}", remedy(world));
    world.facts.workloads.retain(|_, workload| workload.driver != Driver::Cpi);
    world.settle();
    assert!(world.record(Driver::Cpi).healthy, "{what}: {:#?}", world.plan());
    let adopted: Vec<_> = before.iter().filter(|(_, w)| w.driver == Driver::Csi).collect();
    for (id, workload) in adopted {
        assert_eq!(world.facts.workloads.get(id), Some(workload), "{what}: nobody approved it");
    }

    if minor >= 28 {
        approve(world, Driver::Csi);
        world.settle();
    }
    let record = world.record(Driver::Csi);
    assert!(record.healthy, "{what}: {:#?}", world.plan());
    assert_eq!(record.cluster_id.as_deref(), Some("vc.example.com"), "{what}");
    if minor == 34 {
        assert_eq!(record.version.as_deref(), Some(NEWEST_CSI), "{what}");
    }
    assert_eq!(world.done.iter().filter(|done| done.starts_with("delete")).count(), 0, "{what}");
    let status = crate::status(&world.facts, &world.plan());
    let kinds: &[&str] =
        if minor >= 28 { &["Ready"] } else { &["CloudProviderReady", "StorageReady"] };
    for kind in kinds {
        assert!(api::condition::is_true(&status.conditions, kind), "{what}: {status:#?}");
    }
}

#[test]
fn the_phase_of_a_foreign_driver_shows_whether_that_driver_runs() {
    let mut world = go_vdo_with("vmware-system-csi", "3.0.4-rc.1", "1.2.1");
    let seen = |world: &World| {
        let status = crate::status(&world.facts, &world.plan());
        let ready = api::condition::is_true(&status.conditions, "CloudProviderReady");
        (status.cpi.unwrap().phase, ready)
    };
    world.settle();
    assert_eq!(world.driver(Driver::Cpi).next, Next::Blocked, "VDO only proposes to replace it");
    assert_eq!(seen(&world), (Some(api::vdo_config::Phase::Configured), false));
    let cloud = |workload: &&mut DriverWorkload| workload.driver == Driver::Cpi;
    world.facts.workloads.values_mut().filter(cloud).for_each(|workload| workload.available = 0);
    assert_eq!(seen(&world), (Some(api::vdo_config::Phase::Failed), false));
    world.facts.workloads.retain(|_, workload| workload.driver != Driver::Cpi);
    world.vcenter().state = unreachable_vcenter(false);
    assert_eq!(seen(&world), (Some(api::vdo_config::Phase::Failed), false), "no driver runs");
}

#[test]
fn a_wrong_pin_is_the_reason_to_keep_a_cloud_provider_that_a_release_could_replace() {
    let mut world = go_vdo_with("vmware-system-csi", "3.0.4-rc.1", "1.2.1");
    world.edit_spec(|config| {
        config.spec.cloud_provider.as_mut().unwrap().version = Some("1.99.0".into());
    });
    let findings = world.plan().findings;
    let finding = findings.iter().find(|finding| finding.code == "VDO-1922").unwrap();
    let text = &finding.remedy[0];
    assert!(text.contains("Do not delete") && text.contains("1.99.0 is pinned"), "{text}");
    assert!(!text.contains("Upgrade Kubernetes"), "{text}");
}

#[test]
fn a_storage_driver_that_is_older_than_the_catalog_is_adopted_only_from_the_go_vdo() {
    let mut world = go_vdo_with("vmware-system-csi", "2.5.1", "1.34.0");
    adopt(&mut world, "Automatic");
    for workload in world.facts.workloads.values_mut() {
        workload.origin.field_managers.insert("kubectl-client-side-apply".into());
    }
    world.settle();
    assert_eq!(world.driver(Driver::Csi).next, Next::Blocked);
    assert!(world.codes().contains(&"VDO-1922".into()), "{:?}", world.codes());
}

#[test]
fn only_certain_drivers_of_the_go_vdo_are_adopted_without_approval() {
    let spoil: [fn(&mut World); 4] = [
        |world| adopt(world, "Propose"),
        |world| {
            for workload in world.facts.workloads.values_mut() {
                workload.origin.field_managers.insert("kubectl-client-side-apply".into());
            }
        },
        |world| {
            let id = ClusterId { id: "prod".into(), kept_by_driver: false };
            world.facts.cluster_id = Ok(Some(id));
            world.facts.predecessor.cloud_secret = false;
        },
        |world| world.facts.workloads.values_mut().for_each(|w| w.origin.helm = Some("x".into())),
    ];
    for (number, spoil) in spoil.into_iter().enumerate() {
        let mut world = go_vdo();
        spoil(&mut world);
        world.settle();
        assert_eq!(world.done, Vec::<String>::new(), "case {number}");
        assert!(world.codes().contains(&"VDO-1902".into()));
    }
}

#[test]
fn nothing_is_done_while_the_go_vdo_itself_still_runs() {
    for mut world in [go_vdo(), World::installed()] {
        let id = SHAPES[3].id("Deployment", names::PREDECESSOR);
        world.facts.predecessor.runs = Some(id);
        world.settle();
        assert_eq!(world.done, Vec::<String>::new());
        assert!(world.codes().contains(&"VDO-1908".into()));
    }
}

#[test]
fn the_changes_of_an_adoption_are_listed_before_it_happens_without_passwords() {
    let mut world = upstream();
    for workload in world.facts.workloads.values_mut() {
        let old = ("example.com/csi-attacher:v1".to_owned(), vec!["--timeout=1s".to_owned()]);
        let driver = ("example.com/driver:v1".to_owned(), Vec::new());
        let name = "vsphere-csi-controller".to_owned();
        workload.origin.containers =
            BTreeMap::from([("csi-attacher".to_owned(), old), (name, driver)]);
    }
    let url = "http://user:secret@proxy.example.com:3128".to_owned();
    let proxy = crate::facts::ClusterProxy { https: url, ..Default::default() };
    world.facts.cluster.proxy = Ok(Some(proxy));
    let theirs = "[Global]\ncluster-id = \"10.10.10.10\"\n[VirtualCenter \"vc.example.com\"]\n\
                  insecure-flag = \"true\"\nuser = \"them@vsphere.local\"\ndatacenters = \"DC0\"\n";
    let config = driver_config::csi::CsiConfig::read(theirs).unwrap().config;
    let unknown = vec!["`[Global] old-switch`".to_owned()];
    world.facts.in_use.csi = Some(Ok(RunningConfig { config, unknown }));
    let proposal = world.driver(Driver::Csi).steps[0].message.clone().unwrap();
    let expected = [
        "loses --timeout=1s",
        "instead of example.com/csi-attacher:v1",
        "the container vsphere-syncer comes",
        "insecure-flag",
        "them@vsphere.local",
        "old-switch",
        "uses the proxy in HTTPS_PROXY",
    ];
    for text in expected {
        assert!(proposal.contains(text), "{text} is missing: {proposal}");
    }
    assert!(!proposal.contains("cluster-id:"), "it stays: {proposal}");
    assert!(!proposal.contains("first") && !proposal.contains("stands for"), "{proposal}");
}

/// Configures the storage driver that VDO does not manage: one vCenter, and this user.
fn set_user(world: &mut World, user: &str) {
    let text = format!(
        "[Global]\ncluster-id = \"10.10.10.10\"\n[VirtualCenter \"vc.example.com\"]\n\
         user = \"{user}\"\npassword = \"p\"\nport = \"443\"\ndatacenters = \"DC0\"\n"
    );
    let config = driver_config::csi::CsiConfig::read(&text).unwrap().config;
    world.facts.in_use.csi = Some(Ok(RunningConfig { config, unknown: Vec::new() }));
}

#[test]
fn an_adopted_driver_gets_no_user_that_sees_less_or_may_do_less() {
    const SECRET: &str = "apply Secret vsphere-config-secret";
    type Change = fn(&mut World);
    let doubts: [(Change, Change); 2] = [
        (
            |world| world.facts.cluster.nodes[1].vm = NodeVm::Missing,
            |world| world.facts.cluster.nodes[1].vm = found_by("vmware-system-vdo/vc"),
        ),
        (
            |world| {
                let lacks = api::finding::codes::PRIVILEGE_ROOT.found();
                let lacks = lacks.severity(api::Severity::Error).build();
                world.facts.health.findings.push(lacks);
            },
            |world| world.facts.health.findings.clear(),
        ),
    ];
    for (number, (doubt, fix)) in doubts.into_iter().enumerate() {
        let mut world = upstream();
        set_user(&mut world, "administrator@vsphere.local");
        adopt_and_approve(&mut world, Driver::Csi);
        doubt(&mut world);
        world.settle();
        assert!(!world.done.contains(&SECRET.into()), "case {number}: {:?}", world.done);
        assert_eq!(world.driver(Driver::Csi).next, Next::Blocked, "case {number}");
        fix(&mut world);
        world.settle();
        assert!(world.done.contains(&SECRET.into()), "case {number}: {:?}", world.done);

        // The user that the driver already has does not have fewer privileges than before.
        let mut world = upstream();
        set_user(&mut world, "k8s@vsphere.local");
        adopt_and_approve(&mut world, Driver::Csi);
        doubt(&mut world);
        world.settle();
        assert!(world.done.contains(&SECRET.into()), "case {number}: {:?}", world.done);
    }
}
