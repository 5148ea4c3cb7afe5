//! A cluster in the state the Go VDO leaves behind.

use super::*;

/// The account of the Go VDO.
const GO_VDO: &str = "vdo-controller-manager";

/// What the Go VDO leaves in `kube-system` and in the storage driver's namespace. All of it is
/// created, not applied, under the name of its program.
async fn go_vdo_objects(stage: &Stage, host: &str) {
    let manager = "manager";
    // The manifest's own settings are placeholders, which the Go VDO does not fill in.
    stage.create(manager, of_release(upstream_cpi(), "v1.36.0", "v1.26.0")).await;
    let (user, password) = (stage.vcenter.user(), stage.vcenter.password());
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
    stage.create(manager, settings).await;
    // What its newest matrix calls 3.0.0 is a candidate of a release that never came.
    stage.create(manager, of_release(upstream_csi(), "v3.7.0", "v3.0.4-rc.1")).await;
}

/// The objects its users write, and the status it wrote into them.
async fn go_vdo_wishes(stage: &Stage) {
    let kind = |kind: &str| {
        let gvk = GroupVersionKind::gvk("vdo.vmware.com", "v1alpha1", kind);
        let resource = kube::api::ApiResource::from_gvk(&gvk);
        Api::<DynamicObject>::namespaced_with(stage.client(), NAMESPACE, &resource)
    };
    let apply = PatchParams::apply("vdoctl").force();
    for purpose in ["cpi", "csi"] {
        let name = format!("10.10.10.10-creds-{purpose}");
        let secret = json!({
            "apiVersion": "v1", "kind": "Secret", "type": "kubernetes.io/basic-auth",
            "metadata": {"name": name, "namespace": "kube-system"},
            "stringData": {"username": stage.vcenter.user(), "password": stage.vcenter.password()},
        });
        stage.create("vdoctl", [secret]).await;
        let vcenter = json!({
            "apiVersion": "vdo.vmware.com/v1alpha1", "kind": "VsphereCloudConfig",
            "metadata": {"name": format!("10.10.10.10-{purpose}"), "namespace": NAMESPACE},
            "spec": {
                "vcIp": stage.vcenter.address().to_string(), "insecure": true,
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

/// The Deployment of the Go VDO itself. Its image cannot be had, and nobody here runs it.
fn go_vdo_itself() -> Value {
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

/// The definition of its VDOConfig, and the account and rights it runs under.
async fn go_vdo_surroundings(stage: &Stage) {
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
    stage
        .redefine("vdoconfigs.vdo.vmware.com", |definition| {
            definition.spec.versions[0].schema = Some(schema.clone());
            definition.spec.versions[0].additional_printer_columns = None;
        })
        .await;
    let rule = |groups: &[&str], resources: &[&str], verbs: &[&str]| json!({"apiGroups": groups, "resources": resources, "verbs": verbs});
    let all = ["create", "delete", "get", "list", "patch", "update", "watch"];
    let rbac = "rbac.authorization.k8s.io";
    let account = json!([{"kind": "ServiceAccount", "name": GO_VDO, "namespace": NAMESPACE}]);
    let named = |name: &str| json!({"name": name});
    let beside = |name: &str| json!({"name": name, "namespace": NAMESPACE});
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
        json!({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": beside(GO_VDO)}),
        json!({"apiVersion": version, "kind": "ClusterRole", "metadata": named("vdo-manager-role"), "rules": rules}),
        json!({
            "apiVersion": version, "kind": "ClusterRoleBinding", "metadata": named("vdo-manager-rolebinding"),
            "roleRef": of_role("ClusterRole", "vdo-manager-role"), "subjects": account,
        }),
        json!({"apiVersion": version, "kind": "Role", "metadata": beside("vdo-leader-election-role"), "rules": election}),
        json!({
            "apiVersion": version, "kind": "RoleBinding", "metadata": beside("vdo-leader-election-rolebinding"),
            "roleRef": of_role("Role", "vdo-leader-election-role"), "subjects": account,
        }),
    ];
    stage.create("kubectl", made).await;
}

/// Our program in the Go VDO's place: its account, its rights, its definitions, its arguments. It says
/// what is missing, and changes nothing.
async fn only_the_image_is_changed(stage: &Stage) -> Process {
    let identity = User::service_account(NAMESPACE, GO_VDO);
    let arguments = [
        format!("--kubeconfig={}", stage.plane.kubeconfig_as(&identity).display()),
        "--health-probe-bind-address=127.0.0.1:0".into(),
        "--metrics-bind-address=127.0.0.1:0".into(),
        "--leader-elect".into(),
        "-v=4".into(),
    ];
    let program = std::path::Path::new(env!("CARGO_BIN_EXE_vdo"));
    let variables = [("VDO_NAMESPACE", NAMESPACE), ("AUTO_UPGRADE", "disabled")];
    let swapped =
        Process::spawn(program, "swapped", arguments, &variables, &stage.workdir).unwrap();
    let words = ["VDO-1912", "install.yaml", "may not list"];
    let status = stage
        .status("it is said which rights are missing", 60, |status| {
            assert!(swapped.ended().is_none(), "{}", swapped.tail());
            let csi = status.csi.clone().unwrap_or_default();
            csi.status_msg.is_some_and(|text| words.iter().all(|word| text.contains(word)))
        })
        .await;
    let csi = status.csi.unwrap();
    assert_eq!(csi.phase, Some(api::vdo_config::Phase::Deployed), "what runs is not called broken");
    let events = Api::<Event>::namespaced(stage.client(), NAMESPACE);
    eventually("there is an event", 30, async || {
        let all = events.list(&ListParams::default()).await.unwrap();
        let told = all.iter().any(|event| event.reason.as_deref() == Some("RightsMissing"));
        if told { Ok(()) } else { Err(format!("{} others", all.items.len())) }
    })
    .await;
    swapped
}

#[tokio::test]
async fn a_cluster_of_the_go_vdo_is_taken_over_as_it_is_and_upgraded() {
    let stage = Stage::of(1, false).await;
    let host = stage.vcenter.address().ip().to_string();
    go_vdo_surroundings(&stage).await;
    go_vdo_objects(&stage, &host).await;
    go_vdo_wishes(&stage).await;
    stage.create("kubectl", [go_vdo_itself()]).await;
    let swapped = only_the_image_is_changed(&stage).await;
    // What it asks for: the manifest of this release.
    stage.install().await;
    let (vsphere, theirs) = volume_under(&stage, &host).await;
    for number in 0..20 {
        stage.attach(&format!("pv-{number}"), "node-1").await;
    }
    let parts = [
        ("DaemonSet", "kube-system", "vsphere-cloud-controller-manager"),
        ("Deployment", CSI, "vsphere-csi-controller"),
        ("DaemonSet", CSI, "vsphere-csi-node"),
    ];
    let mut before = Vec::new();
    for (kind, home, name) in parts {
        before.push(stage.uid(kind, home, name).await);
    }

    // Something VDO may repair.
    let vm = "/DC0/vm/node-2";
    stage.vcenter.patch_vm(vm, json!({"diskUuid": false})).await;
    stage.change(json!({"spec": {"remediation": {"diskUuid": "Fix"}}})).await;
    let operator = stage.operator();
    let finding = stage.finding("VDO-1908", 30).await;
    assert!(finding.remedy[0].contains("delete deployment"), "{finding:?}");
    // Another cluster has the same id.
    stage.finding_about("VDO-1512", 60, &["shop/orders"]).await;
    stage
        .status("a repair is due", 60, |status| {
            let repairs = status.health.iter().flat_map(|health| &health.repairs);
            repairs.into_iter().any(|repair| repair.code == "VDO-1203" && repair.automatic)
        })
        .await;
    stage.check_now("beside-the-go-vdo").await;
    assert_eq!(stage.writes(), Vec::<String>::new(), "two operators never write in turn");
    let deployments = Api::<Deployment>::namespaced(stage.client(), NAMESPACE);
    deployments.delete("vdo-controller-manager", &DeleteParams::background()).await.unwrap();

    stage.event("Repaired", "VDO-1203").await;
    // Nothing is in the way but the other cluster: the storage driver is not touched for its sake.
    stage
        .status("the cloud controller is ours", 60, |status| {
            api::condition::is_true(&status.conditions, "CloudProviderReady")
        })
        .await;
    let mut writes = stage.writes_in_the_end(&operator, Timestamp::MIN).await;
    writes.retain(|write| write.contains(CSI) || write.contains("vdo-record-csi"));
    assert_eq!(writes, Vec::<String>::new(), "two clusters never share an id");
    let gone = vsphere.delete_volumes(&[theirs], true).await.unwrap();
    gone.wait(Duration::from_mins(1)).await.unwrap();
    // The pauses between two questions to CNS have grown: whoever cleaned up asks for it now.
    let asked = json!({"vdo.vmware.com/check-now": "the-other-cluster-is-gone"});
    stage.change(json!({"metadata": {"annotations": asked}})).await;
    for power in ["off", "on"] {
        stage.vcenter.patch_vm(vm, json!({"power": power})).await;
    }
    let status = stage
        .status("both drivers are ours, up to date and ready", 240, |status| {
            let ready = |kind| api::condition::is_true(&status.conditions, kind);
            let csi = status.csi.clone().unwrap_or_default();
            let new = csi.version.as_deref().is_some_and(|version| !version.starts_with("3.0"));
            assert!(operator.ended().is_none(), "{}", operator.tail());
            let drivers = ready("CloudProviderReady") && ready("StorageReady");
            ready("Ready") && drivers && new && csi.target.is_none()
        })
        .await;
    assert_eq!(status.cluster_id.as_deref(), Some(host.as_str()), "volumes are known by it");
    let codes: Vec<&str> = status.findings.iter().map(|finding| finding.code.as_str()).collect();
    assert!(codes.contains(&"VDO-1907"), "its danger is said: {codes:?}");
    let doubled = ["VDO-1202", "VDO-1211", "VDO-1314"];
    let doubled = doubled.iter().any(|code| codes.contains(code));
    assert!(!doubled, "one vCenter by two names is one vCenter: {codes:?}");
    assert!(codes.contains(&"VDO-1101"), "an unsigned address is not followed: {codes:?}");
    assert_eq!(status.cpi.unwrap().version.as_deref(), Some("1.36.0"));
    let version = status.csi.unwrap().version.unwrap();
    assert!(version.starts_with("3.7") || version.starts_with("3.8"), "{version}");
    let mut after = Vec::new();
    for (kind, home, name) in parts {
        after.push(stage.uid(kind, home, name).await);
    }
    assert_eq!(after, before, "nothing is made anew");
    assert_eq!(stage.deletions(), Vec::<String>::new(), "nothing is deleted");

    // What the old release had and the new one has not is gone from the objects.
    let controller = stage.controller().await;
    let text = serde_json::to_string(&controller.spec).unwrap();
    assert!(!text.contains("X_CSI_SERIAL_VOL_ACCESS_TIMEOUT"), "{text}");
    let conf = stage.secret(CSI, "vsphere-config-secret", "csi-vsphere.conf").await;
    assert!(conf.contains(&format!("cluster-id = \"{host}\"")), "{conf}");
    let maps = Api::<ConfigMap>::namespaced(stage.client(), "kube-system");
    let map = maps.get("vsphere-cloud-config").await.unwrap().data.unwrap();
    assert!(map["vsphere.conf"].contains(&host), "no placeholder any more: {map:?}");
    assert_eq!(stage.refusals(), Vec::<String>::new());
    assert!(swapped.ended().is_none(), "{}", swapped.tail());
    assert_eq!(stage.writes_of(GO_VDO), Vec::<String>::new(), "with its rights nothing is changed");
}
