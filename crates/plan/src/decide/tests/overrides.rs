//! `spec.overrides`, and the options of this project's cloud controller.

use api::vdo_config::Overrides;

use super::*;

/// Installs the drivers with this spec, and returns the workloads that VDO applied last, by name.
pub(super) fn workloads(world: &mut World) -> BTreeMap<String, Value> {
    let mut found = BTreeMap::new();
    for _ in 0..200 {
        for plan in world.plan().drivers {
            if let Next::Apply(objects) = plan.next {
                let sets =
                    objects.iter().filter(|o| matches!(o.kind(), "Deployment" | "DaemonSet"));
                found.extend(sets.map(|object| (object.name().to_owned(), object.0.clone())));
            }
        }
        if !world.step() {
            return found;
        }
    }
    panic!("never comes to rest");
}

fn with_overrides(overrides: &Value) -> World {
    World::with_spec(&json!({
        "cloudProvider": {"vsphereCloudConfigs": ["vc"]},
        "storageProvider": {"vsphereCloudConfig": "vc"},
        "overrides": overrides,
    }))
}

pub(super) fn set(world: &mut World, overrides: &Value) {
    let overrides: Overrides = serde_json::from_value(overrides.clone()).unwrap();
    world.edit_spec(|config| config.spec.overrides = Some(overrides));
}

fn pod(workload: &Value) -> &Value {
    &workload["spec"]["template"]["spec"]
}

pub(super) fn container<'a>(workload: &'a Value, name: &str) -> &'a Value {
    let mut all = pod(workload)["containers"].as_array().unwrap().iter();
    all.find(|container| container["name"] == name).unwrap()
}

pub(super) fn variable<'a>(container: &'a Value, name: &str) -> Option<&'a str> {
    let mut all = container["env"].as_array()?.iter();
    all.find(|variable| variable["name"] == name)?["value"].as_str()
}

pub(super) const CONTROLLER: &str = "vsphere-csi-controller";
pub(super) const NODE: &str = "vsphere-csi-node";
pub(super) const CLOUD: &str = "vsphere-cloud-controller-manager";

#[test]
fn the_settings_of_a_workload_reach_its_pods_and_no_others() {
    let plain = workloads(&mut World::new());
    let mut world = with_overrides(&json!({
        "cloudController": {
            "logLevel": "Debug", "args": ["--concurrent-node-syncs=8"],
            "tolerations": [{"key": "dedicated", "value": "infra", "effect": "NoSchedule"}, {"key": "spare"}],
        },
        "storageController": {
            "replicas": 2, "priorityClass": "storage", "nodeSelector": {"pool": "infra"},
            "resources": {"requests": {"memory": "300Mi"}, "limits": {"memory": "1Gi"}},
            "env": [{"name": "GOMAXPROCS", "value": "2"}],
            "containers": {"csi-attacher": {"args": ["--worker-threads=20"]}},
        },
    }));
    let all = workloads(&mut world);
    let healthy = [Driver::Cpi, Driver::Csi].map(|driver| world.record(driver).healthy);
    assert_eq!(healthy, [true; 2], "{:#?}", world.plan());
    let cloud = container(&all[CLOUD], CLOUD);
    let arguments: Vec<&str> =
        cloud["args"].as_array().unwrap().iter().filter_map(Value::as_str).collect();
    assert!(arguments.contains(&"--v=4") && !arguments.contains(&"--v=2"), "{arguments:?}");
    assert!(arguments.contains(&"--concurrent-node-syncs=8"), "{arguments:?}");
    let tolerations = pod(&all[CLOUD])["tolerations"].as_array().unwrap();
    let own =
        json!({"key": "dedicated", "operator": "Equal", "value": "infra", "effect": "NoSchedule"});
    assert!(tolerations.contains(&own), "{tolerations:?}");
    assert!(tolerations.contains(&json!({"key": "spare", "operator": "Exists"})));
    let before = pod(&plain[CLOUD])["tolerations"].as_array().unwrap();
    assert!(before.iter().all(|toleration| tolerations.contains(toleration)), "VDO's own stay");

    let controller = &all[CONTROLLER];
    assert_eq!(controller["spec"]["replicas"], 2);
    assert_eq!(pod(controller)["priorityClassName"], "storage");
    assert_eq!(pod(controller)["nodeSelector"]["pool"], "infra");
    let driver = container(controller, CONTROLLER);
    let resources = &driver["resources"];
    assert_eq!(resources["requests"]["memory"], "300Mi");
    assert_eq!(resources["limits"]["memory"], "1Gi");
    let before = &container(&plain[CONTROLLER], CONTROLLER)["resources"];
    assert_eq!(resources["requests"]["cpu"], before["requests"]["cpu"], "what is not set stays");
    assert_eq!(variable(driver, "GOMAXPROCS"), Some("2"));
    let attacher = container(controller, "csi-attacher")["args"].as_array().unwrap();
    let threads = |argument: &&Value| argument.as_str().unwrap().starts_with("--worker-threads");
    let threads: Vec<&Value> = attacher.iter().filter(threads).collect();
    assert_eq!(threads, ["--worker-threads=20"], "it replaces that of the release: {attacher:?}");
    assert_eq!(all[NODE], plain[NODE], "nothing is set for the nodes");
}

#[test]
fn overrides_survive_an_upgrade_and_reach_only_the_driver_that_they_name() {
    let mut world = older("3.6.3");
    let driver = container(&workloads(&mut World::new())[NODE], NODE).clone();
    assert_eq!(variable(&driver, "LOGGER_LEVEL"), Some("PRODUCTION"));
    set(&mut world, &json!({"storageNode": {"logLevel": "Trace"}}));
    let changed = workloads(&mut world);
    assert!(!changed.contains_key(CLOUD), "the cloud controller does not restart: {changed:?}");
    let level = |all: &BTreeMap<String, Value>| {
        variable(container(&all[NODE], NODE), "LOGGER_LEVEL").map(str::to_owned)
    };
    assert_eq!(level(&changed).as_deref(), Some("DEVELOPMENT"));
    world.edit_spec(|config| config.spec.storage_provider.as_mut().unwrap().version = None);
    let upgraded = workloads(&mut world);
    assert_eq!(running(&world), Some(NEWEST_CSI));
    assert_eq!(level(&upgraded).as_deref(), Some("DEVELOPMENT"));
}

#[test]
fn the_proxy_reaches_the_containers_that_connect_to_vcenter() {
    let mut world = with_overrides(&json!({
        "proxy": {"url": "http://proxy.example.com:3128", "except": ["10.0.0.0/8"]},
    }));
    let all = workloads(&mut world);
    let users = [(CLOUD, CLOUD), (CONTROLLER, CONTROLLER), (CONTROLLER, "vsphere-syncer")];
    for (workload, name) in users {
        let container = container(&all[workload], name);
        assert_eq!(variable(container, "HTTPS_PROXY"), Some("http://proxy.example.com:3128"));
        let except = variable(container, "NO_PROXY").unwrap();
        assert!(except.contains("10.0.0.0/8") && except.contains("$(KUBERNETES_SERVICE_HOST)"));
    }
    for (workload, name) in [(CONTROLLER, "csi-attacher"), (NODE, NODE)] {
        assert_eq!(variable(container(&all[workload], name), "HTTPS_PROXY"), None, "{name}");
    }
}

#[test]
fn overrides_that_the_release_does_not_accept_change_nothing_and_are_reported() {
    let wrong = [
        (json!({"containers": {"sidecar": {"args": ["--v=1"]}}}), "no container sidecar, but"),
        (json!({"args": ["--fss-name=x"]}), "VDO sets --fss-name itself"),
        (json!({"args": ["fast"]}), "fast is not an option"),
        (json!({"env": [{"name": "X_CSI_MODE", "value": "node"}]}), "VDO sets X_CSI_MODE itself"),
        (json!({"nodeSelector": {"kubernetes.io/os": "windows"}}), "kubernetes.io/os"),
    ];
    for (settings, text) in wrong {
        let mut world = World::installed();
        set(&mut world, &json!({"storageController": settings}));
        world.settle();
        assert_eq!(world.done, Vec::<String>::new(), "{text}");
        assert_eq!(world.driver(Driver::Csi).next, Next::Blocked, "{text}");
        let findings = world.plan().findings;
        let finding = findings.iter().find(|finding| finding.code == "VDO-1006");
        let finding = finding.unwrap_or_else(|| panic!("{text}: {findings:?}"));
        let seen = finding.seen.as_deref().unwrap();
        assert!(seen.contains(text) && seen.contains("spec.overrides.storageController"), "{seen}");
        assert_eq!(world.driver(Driver::Cpi).next, Next::Nothing, "{text}");
    }
}

#[test]
fn every_option_of_this_projects_cloud_controller_reaches_its_arguments() {
    let mut world = World::with_spec(&json!({"cloudProvider": {
        "vsphereCloudConfigs": ["vc"], "implementation": "Rust",
        "hostLabels": true, "refreshLabels": true, "requireZones": true, "outOfServiceTaint": true,
        "nodeLabels": {"site": "berlin"}, "vmFolders": ["/DC0/vm/k8s", "/DC1/vm/k8s"],
        "vmClusters": ["/DC0/host/a"], "tagRefreshPeriod": "1h30m",
        "nodeDeletionLimits": {"delay": "5m", "count": 3, "window": "1d", "share": 10},
    }}));
    let all = workloads(&mut world);
    let arguments = container(&all[CLOUD], CLOUD)["args"].as_array().unwrap();
    let expected = [
        "--host-labels",
        "--refresh-labels",
        "--require-zones",
        "--out-of-service-taint",
        "--node-labels=site=berlin",
        "--vm-folders=/DC0/vm/k8s,/DC1/vm/k8s",
        "--vm-clusters=/DC0/host/a",
        "--tag-refresh-period=5400s",
        "--node-deletion-delay=300s",
        "--node-deletion-limit=3",
        "--node-deletion-window=86400s",
        "--node-deletion-share=10",
    ];
    for argument in expected {
        assert!(arguments.contains(&json!(argument)), "{argument}: {arguments:?}");
    }
}
