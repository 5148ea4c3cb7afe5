//! A cluster as the Go VDO leaves it.

use super::*;

const GO_VDO: &str = "vdo-controller-manager";

/// The objects of the Go VDO in `kube-system` and in the storage driver's namespace. The Go VDO creates them under the
/// name of its program; it does not apply them.
async fn go_vdo_objects(testbed: &Testbed, host: &str) {
    let manager = "manager";
    // The Go VDO does not replace the placeholders in the manifest's settings.
    let (image, theirs) = (
        "registry.k8s.io/cloud-pv-vsphere/cloud-provider-vsphere:v1.36.0",
        "gcr.io/cloud-provider-vsphere/cpi/release/manager:v1.2.1",
    );
    testbed.create(manager, of_release(upstream_cpi(), image, theirs)).await;
    let (user, password) = (testbed.vcenter.user(), testbed.vcenter.password());
    let conf = format!(
        "vcenter:\n    {host}:\n        server: {host}\n        datacenters:\n            - DC0\n        \
         secretName: cpi-global-secret\n        secretNamespace: kube-system\n        port: 443\n        \
         insecureFlag: true\n"
    );
    let storage = format!(
        "[Global]\ncluster-id = \"{host}\"\n\n[VirtualCenter \"{host}\"]\ninsecure-flag = \"true\"\n\
         user = \"{user}\"\npassword = \"{password}\"\ndatacenters = \"DC0\"\n"
    );
    let settings = [
        json!({
            "apiVersion": "v1", "kind": "Secret",
            "metadata": {"name": "cpi-global-secret", "namespace": "kube-system"},
            "stringData": {format!("{host}.username"): user, format!("{host}.password"): password},
        }),
        json!({
            "apiVersion": "v1", "kind": "ConfigMap",
            "metadata": {"name": "cloud-config", "namespace": "kube-system"},
            "data": {"vsphere.conf": conf},
        }),
        storage_secret(CSI, &storage),
        json!({
            "apiVersion": "v1", "kind": "ConfigMap",
            "metadata": {"name": "compat-matrix-config", "namespace": NAMESPACE},
            "data": {"versionConfigURL": "https://example.com/compatibility.yaml", "auto-upgrade": "disabled"},
        }),
    ];
    testbed.create(manager, settings).await;
    // The release that its newest matrix calls 3.0.0 is a candidate of a release that never appeared.
    testbed.create(manager, of_release(upstream_csi(), "v3.7.0", "v3.0.4-rc.1")).await;
}

/// The objects of its users, with the status that it wrote.
async fn go_vdo_configs(testbed: &Testbed) {
    let kind = |kind: &str| {
        let gvk = GroupVersionKind::gvk("vdo.vmware.com", "v1alpha1", kind);
        let resource = kube::api::ApiResource::from_gvk(&gvk);
        Api::<DynamicObject>::namespaced_with(testbed.client(), NAMESPACE, &resource)
    };
    let apply = PatchParams::apply("vdoctl").force();
    for purpose in ["cpi", "csi"] {
        let name = format!("10.10.10.10-creds-{purpose}");
        let secret = json!({
            "apiVersion": "v1", "kind": "Secret", "type": "kubernetes.io/basic-auth",
            "metadata": {"name": name, "namespace": "kube-system"},
            "stringData": {"username": testbed.vcenter.user(), "password": testbed.vcenter.password()},
        });
        testbed.create("vdoctl", [secret]).await;
        let vcenter = json!({
            "apiVersion": "vdo.vmware.com/v1alpha1", "kind": "VsphereCloudConfig",
            "metadata": {"name": format!("10.10.10.10-{purpose}"), "namespace": NAMESPACE},
            "spec": {
                "vcIp": testbed.vcenter.address().to_string(), "insecure": true,
                "credentials": name, "datacenters": ["DC0"],
            },
        });
        let vcenters = kind("VsphereCloudConfig");
        let name = format!("10.10.10.10-{purpose}");
        vcenters.patch(&name, &apply, &Patch::Apply(&vcenter)).await.unwrap();
        let status = json!({"status": {"config": "verified"}});
        let by = PatchParams { field_manager: Some("manager".into()), ..Default::default() };
        vcenters.patch_status(&name, &by, &Patch::Merge(&status)).await.unwrap();
    }
    let config = json!({
        "apiVersion": "vdo.vmware.com/v1alpha1", "kind": "VDOConfig",
        "metadata": {"name": "vdo-config", "namespace": NAMESPACE},
        "spec": {
            "cloudProvider": {"vsphereCloudConfigs": ["10.10.10.10-cpi"]},
            "storageProvider": {
                "vsphereCloudConfig": "10.10.10.10-csi", "clusterDistribution": "OpenShift",
            },
        },
    });
    let configs = kind("VDOConfig");
    configs.patch("vdo-config", &apply, &Patch::Apply(&config)).await.unwrap();
    let status = json!({"status": {
        "cpi": {"phase": "Configured", "nodeStatus ": {"node-1": "ready", "node-2": "ready"}},
        "csi": {"phase": "Deployed"},
    }});
    let by = PatchParams { field_manager: Some("manager".into()), ..Default::default() };
    configs.patch_status("vdo-config", &by, &Patch::Merge(&status)).await.unwrap();
}

/// The Deployment of the Go VDO. Its image is not available, and nothing runs it here.
fn go_vdo_deployment() -> Value {
    let labels = json!({"control-plane": "controller-manager"});
    json!({
        "apiVersion": "apps/v1", "kind": "Deployment",
        "metadata": {"name": "vdo-controller-manager", "namespace": NAMESPACE},
        "spec": {
            "selector": {"matchLabels": labels},
            "template": {
                "metadata": {"labels": labels},
                "spec": {"containers": [{"name": "manager", "image": "vmware.com/vdo:0.2.0"}]},
            },
        },
    })
}

/// The CRD of its VDOConfig, and its account and permissions.
async fn go_vdo_rbac_and_crd(testbed: &Testbed) {
    let driver = json!({"type": "object", "properties": {
        "phase": {"type": "string"},
        "statusMsg": {"type": "string"},
        "nodeStatus ": {"type": "object", "additionalProperties": {"type": "string"}},
    }});
    let anything = json!({"type": "object", "x-kubernetes-preserve-unknown-fields": true});
    let schema = json!({"openAPIV3Schema": {"type": "object", "properties": {
        "spec": anything,
        "status": {"type": "object", "properties": {"cpi": driver, "csi": driver}},
    }}});
    let schema: CustomResourceValidation = serde_json::from_value(schema).unwrap();
    testbed
        .change_crd("vdoconfigs.vdo.vmware.com", |definition| {
            definition.spec.versions[0].schema = Some(schema.clone());
            definition.spec.versions[0].additional_printer_columns = None;
        })
        .await;
    let rule = |groups: &[&str], resources: &[&str], verbs: &[&str]| json!({"apiGroups": groups, "resources": resources, "verbs": verbs});
    let all = ["create", "delete", "get", "list", "patch", "update", "watch"];
    let rbac = "rbac.authorization.k8s.io";
    let account = json!([{"kind": "ServiceAccount", "name": GO_VDO, "namespace": NAMESPACE}]);
    let named = |name: &str| json!({"name": name});
    let in_namespace = |name: &str| json!({"name": name, "namespace": NAMESPACE});
    let of_role = |kind: &str, name: &str| json!({"apiGroup": rbac, "kind": kind, "name": name});
    let rules = json!([
        rule(
            &[""],
            &["configmaps", "secrets", "serviceaccounts", "services", "nodes", "pods"],
            &all
        ),
        rule(&["apps"], &["deployments", "daemonsets"], &all),
        rule(&["*"], &["namespaces"], &all),
        rule(&["storage.k8s.io"], &["csidrivers", "csinodes"], &all),
        rule(&["admissionregistration.k8s.io"], &["validatingwebhookconfigurations"], &all),
        rule(&[rbac], &["roles", "rolebindings", "clusterroles", "clusterrolebindings"], &["*"]),
        rule(
            &["vdo.vmware.com"],
            &["vdoconfigs", "vspherecloudconfigs", "compatibilityconfigs"],
            &all
        ),
        rule(
            &["vdo.vmware.com"],
            &["vdoconfigs/status", "vspherecloudconfigs/status"],
            &["get", "patch", "update"]
        ),
    ]);
    let election = json!([
        rule(&["", "coordination.k8s.io"], &["configmaps", "leases"], &all),
        rule(&[""], &["events"], &["create", "patch"]),
    ]);
    let version = "rbac.authorization.k8s.io/v1";
    let made = [
        json!({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": in_namespace(GO_VDO)}),
        json!({"apiVersion": version, "kind": "ClusterRole", "metadata": named("vdo-manager-role"), "rules": rules}),
        json!({
            "apiVersion": version, "kind": "ClusterRoleBinding", "metadata": named("vdo-manager-rolebinding"),
            "roleRef": of_role("ClusterRole", "vdo-manager-role"), "subjects": account,
        }),
        json!({"apiVersion": version, "kind": "Role", "metadata": in_namespace("vdo-leader-election-role"), "rules": election}),
        json!({
            "apiVersion": version, "kind": "RoleBinding", "metadata": in_namespace("vdo-leader-election-rolebinding"),
            "roleRef": of_role("Role", "vdo-leader-election-role"), "subjects": account,
        }),
    ];
    testbed.create("kubectl", made).await;
}

/// Our program in place of the Go VDO, with its account, permissions, CRDs and arguments. It reports the missing
/// permissions, and changes nothing.
async fn only_the_image_is_changed(testbed: &Testbed) -> Process {
    let identity = User::service_account(NAMESPACE, GO_VDO);
    let arguments = [
        format!("--kubeconfig={}", testbed.plane.kubeconfig_as(&identity).display()),
        "--health-probe-bind-address=127.0.0.1:0".into(),
        "--metrics-bind-address=127.0.0.1:0".into(),
        "--leader-elect".into(),
        "-v=4".into(),
    ];
    let program = std::path::Path::new(env!("CARGO_BIN_EXE_vdo"));
    let variables = [("VDO_NAMESPACE", NAMESPACE), ("AUTO_UPGRADE", "disabled")];
    let swapped =
        Process::spawn(program, "swapped", arguments, &variables, &testbed.workdir).unwrap();
    let texts = ["VDO-1912", "install.yaml", "no permission to list"];
    let status = testbed
        .status("the status names the missing permissions", 60, |status| {
            assert!(swapped.ended().is_none(), "{}", swapped.tail());
            let csi = status.csi.clone().unwrap_or_default();
            csi.status_msg.is_some_and(|text| texts.iter().all(|expected| text.contains(expected)))
        })
        .await;
    let csi = status.csi.unwrap();
    assert_eq!(
        csi.phase,
        Some(api::vdo_config::Phase::Deployed),
        "the running driver is not reported as broken"
    );
    let events = Api::<Event>::namespaced(testbed.client(), NAMESPACE);
    eventually("the event exists", 30, async || {
        let all = events.list(&ListParams::default()).await.unwrap();
        let reported = all.iter().any(|event| event.reason.as_deref() == Some("RightsMissing"));
        if reported { Ok(()) } else { Err(format!("{} others", all.items.len())) }
    })
    .await;
    swapped
}

#[tokio::test]
async fn a_cluster_of_the_go_vdo_is_adopted_unchanged_and_upgraded_on_approval() {
    let testbed = Testbed::with_nodes(1).await;
    let host = testbed.vcenter.address().ip().to_string();
    go_vdo_rbac_and_crd(&testbed).await;
    go_vdo_objects(&testbed, &host).await;
    go_vdo_configs(&testbed).await;
    testbed.create("kubectl", [go_vdo_deployment()]).await;
    let swapped = only_the_image_is_changed(&testbed).await;
    // The manifest of this release.
    testbed.install().await;
    let (vsphere, theirs) = volume_under(&testbed, &host).await;
    for number in 0..20 {
        testbed.attach(&format!("pv-{number}"), "node-1").await;
    }
    let parts =
        [("Deployment", CSI, "vsphere-csi-controller"), ("DaemonSet", CSI, "vsphere-csi-node")];
    let mut before = Vec::new();
    for (kind, home, name) in parts {
        before.push(testbed.uid(kind, home, name).await);
    }

    // A fault that VDO can repair.
    let vm = "/DC0/vm/node-2";
    testbed.vcenter.patch_vm(vm, json!({"diskUuid": false})).await;
    testbed.change(json!({"spec": {"remediation": {"diskUuid": "Fix"}}})).await;
    let operator = testbed.operator();
    let finding = testbed.finding("VDO-1908", 30).await;
    assert!(finding.remedy[0].contains("delete deployment"), "{finding:?}");
    // Another cluster has the same id.
    testbed.finding_about("VDO-1512", 60, &["shop/orders"]).await;
    testbed
        .status("a repair is due", 60, |status| {
            let repairs = status.health.iter().flat_map(|health| &health.repairs);
            repairs.into_iter().any(|repair| repair.code == "VDO-1203" && repair.automatic)
        })
        .await;
    testbed.check_now("next-to-the-go-vdo").await;
    assert_eq!(testbed.writes(), Vec::<String>::new(), "two operators must never write in turn");
    let deployments = Api::<Deployment>::namespaced(testbed.client(), NAMESPACE);
    deployments.delete("vdo-controller-manager", &DeleteParams::background()).await.unwrap();

    testbed.event("Repaired", "VDO-1203").await;
    // No catalog has the cloud provider of the Go VDO. The admin runs the command that replaces it.
    let finding = testbed.finding("VDO-1922", 60).await;
    let name = "vsphere-cloud-controller-manager";
    let command = format!("kubectl delete daemonset --namespace kube-system {name}");
    assert!(finding.remedy[0].starts_with(&command), "{finding:?}");
    let writes = testbed.writes_after_two_rounds(&operator, Timestamp::MIN).await;
    let to_drivers = writes.iter().filter(|write| write.contains("/apis/apps/"));
    assert_eq!(to_drivers.count(), 0, "{writes:?}");
    let sets = Api::<DaemonSet>::namespaced(testbed.client(), "kube-system");
    sets.delete(name, &DeleteParams::background()).await.unwrap();
    // Only the other cluster blocks: VDO does not touch the storage driver because of it.
    testbed
        .status("VDO manages the cloud controller", 60, |status| {
            api::condition::is_true(&status.conditions, "CloudProviderReady")
        })
        .await;
    let mut writes = testbed.writes_after_two_rounds(&operator, Timestamp::MIN).await;
    writes.retain(|write| write.contains(CSI) || write.contains("vdo-record-csi"));
    assert_eq!(writes, Vec::<String>::new(), "two clusters must never share an id");
    let gone = vsphere.delete_volumes(&[theirs], true).await.unwrap();
    gone.wait(Duration::from_mins(1)).await.unwrap();
    // VDO queries CNS less and less often: the admin who cleaned up requests a check.
    let check = json!({"vdo.vmware.com/check-now": "the-other-cluster-is-gone"});
    testbed.change(json!({"metadata": {"annotations": check}})).await;
    for power in ["off", "on"] {
        testbed.vcenter.patch_vm(vm, json!({"power": power})).await;
    }
    let status = testbed
        .status("the storage driver is adopted", 120, |status| {
            let plan = status.plan.clone().unwrap_or_default();
            let csi = status.csi.clone().unwrap_or_default();
            assert!(operator.ended().is_none(), "{}", operator.tail());
            let adopted = "CSI: Adopt the existing driver";
            plan.steps.iter().any(|step| step.title == adopted && step.state == StepState::Done)
                && plan.state == Some(PlanState::Waiting)
                && csi.phase == Some(api::vdo_config::Phase::Deployed)
        })
        .await;
    let csi = status.csi.clone().unwrap();
    assert_eq!(csi.version.as_deref(), Some("3.0.4-rc.1"), "it runs as the Go VDO installed it");
    assert_eq!(status.cluster_id.as_deref(), Some(host.as_str()), "the volumes have this id");
    let mut writes = testbed.writes_after_two_rounds(&operator, Timestamp::MIN).await;
    writes.retain(|write| write.contains(CSI));
    assert_eq!(writes, Vec::<String>::new(), "its upgrades were disabled");
    let approval = json!({"vdo.vmware.com/approve-csi": csi.target.unwrap()});
    testbed.change(json!({"metadata": {"annotations": approval}})).await;
    let status = testbed
        .status("VDO manages both drivers, and they are up to date and ready", 240, |status| {
            let ready = |kind| api::condition::is_true(&status.conditions, kind);
            let csi = status.csi.clone().unwrap_or_default();
            let new = csi.version.as_deref().is_some_and(|version| !version.starts_with("3.0"));
            assert!(operator.ended().is_none(), "{}", operator.tail());
            let drivers = ready("CloudProviderReady") && ready("StorageReady");
            ready("Ready") && drivers && new && csi.target.is_none()
        })
        .await;
    assert_eq!(status.cluster_id.as_deref(), Some(host.as_str()), "the volumes have this id");
    let codes: Vec<&str> = status.findings.iter().map(|finding| finding.code.as_str()).collect();
    assert!(codes.contains(&"VDO-1907"), "the risk is reported: {codes:?}");
    let doubled = ["VDO-1202", "VDO-1211", "VDO-1314"];
    let doubled = doubled.iter().any(|code| codes.contains(code));
    assert!(!doubled, "one vCenter with two names is one vCenter: {codes:?}");
    assert!(codes.contains(&"VDO-1101"), "VDO does not use an unsigned catalog: {codes:?}");
    assert_eq!(status.cpi.unwrap().version.as_deref(), Some("1.36.0"));
    let version = status.csi.unwrap().version.unwrap();
    assert!(version.starts_with("3.7") || version.starts_with("3.8"), "{version}");
    let mut after = Vec::new();
    for (kind, home, name) in parts {
        after.push(testbed.uid(kind, home, name).await);
    }
    assert_eq!(after, before, "no workload is re-created");
    assert_eq!(testbed.deletions(), Vec::<String>::new(), "VDO must delete nothing");

    // Fields that the new release lacks are gone from the objects.
    let controller = testbed.controller().await;
    let text = serde_json::to_string(&controller.spec).unwrap();
    assert!(!text.contains("X_CSI_SERIAL_VOL_ACCESS_TIMEOUT"), "{text}");
    let conf = testbed.secret(CSI, "vsphere-config-secret", "csi-vsphere.conf").await;
    assert!(conf.contains(&format!("cluster-id = \"{host}\"")), "{conf}");
    let maps = Api::<ConfigMap>::namespaced(testbed.client(), "kube-system");
    let map = maps.get("vsphere-cloud-config").await.unwrap().data.unwrap();
    assert!(map["vsphere.conf"].contains(&host), "the placeholder is replaced: {map:?}");
    assert_eq!(testbed.denied_requests(), Vec::<String>::new());
    assert!(swapped.ended().is_none(), "{}", swapped.tail());
    assert_eq!(
        testbed.writes_of(GO_VDO),
        Vec::<String>::new(),
        "with its permissions VDO must change nothing"
    );
}
