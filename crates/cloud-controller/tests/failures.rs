//! Failures of passwords, configurations and tags, and many nodes at once.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a failed unwrap fails the test")]

mod common;

use base64::{Engine as _, engine::general_purpose::STANDARD};
use common::*;
use futures::StreamExt as _;
use jiff::Timestamp;
use serde_json::json;
use testkit::{
    Category, ControlPlane, Inventory, Nic, Node, Port, Process, Role, Vcenter, VcenterUser, Vm,
    eventually,
};

fn vms(names: &[&str]) -> Vec<Vm> {
    names.iter().map(|name| Vm::named(name)).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_new_password_is_used_without_a_restart_and_the_old_one_is_never_retried() {
    let all = vms(&["node-1", "node-2", "node-3"]);
    let stage = Stage::with(Inventory::small().vms(all.clone())).await;
    stage.add_nodes(&all[..1]).await;
    let ccm = stage.controller("", &[]);
    stage.initialised("node-1", &ccm).await;
    stage.vcenter.forget_calls().await;
    stage.set_secret(&[("127.0.0.1", USER, "not the password")]).await;
    until_logged(&ccm, "vCenter rejects the new credentials; the old ones stay in use").await;
    assert_eq!(stage.vcenter.calls().await.count("Login"), 1, "a wrong password is tried once");
    // From here on, one login with a wrong or the old password locks the account.
    let changed = VcenterUser { lock_after: 1, ..VcenterUser::new(USER, "the-new-Passw0rd") };
    stage.vcenter.set_user(&changed).await;
    stage.set_secret(&[("127.0.0.1", USER, "the-new-Passw0rd")]).await;
    until_logged(&ccm, "the new credentials are in use").await;
    stage.vcenter.expire_sessions("").await;
    stage.add_nodes(&all[1..2]).await;
    stage.initialised("node-2", &ccm).await;
    from_files(&stage, &ccm).await;
    stage.add_nodes(&all[2..]).await;
    stage.initialised("node-3", &ccm).await;
    let users = stage.vcenter.users().await;
    let user = users.as_array().unwrap().iter().find(|u| u["name"] == USER).unwrap();
    assert_ne!(user["locked"], true, "{users}");
    for secret in ["the-new-Passw0rd", "the-third-Passw0rd", PASSWORD, "not the password"] {
        assert!(!ccm.log().contains(secret), "the log contains a password");
    }
}

/// Switches the running controller to the files of a mounted Secret, and changes that Secret.
async fn from_files(stage: &Stage, ccm: &Process) {
    let (user, password) = ("127.0.0.1.username", "127.0.0.1.password");
    let directory = stage.workdir.path().join("secrets");
    mount(&directory, "..1", &[(user, USER)]);
    let text = std::fs::read_to_string(stage.configuration("")).unwrap();
    let secret = format!("secretName: {SECRET}\n  secretNamespace: kube-system");
    assert!(text.contains(&secret), "{text}");
    let files = format!("secretsDirectory: {}", directory.display());
    stage.workdir.write(CONFIGURATION, text.replace(&secret, &files)).unwrap();
    let path = directory.display();
    until_logged(
        ccm,
        &format!("{path}/{user} exists but {path}/{password} does not: add that file"),
    )
    .await;
    mount(&directory, "..2", &[(user, USER), (password, "the-new-Passw0rd")]);
    until_logged(ccm, "the new settings are in use").await;
    let changed = VcenterUser { lock_after: 1, ..VcenterUser::new(USER, "the-third-Passw0rd") };
    stage.vcenter.set_user(&changed).await;
    mount(&directory, "..3", &[(user, USER), (password, "the-third-Passw0rd")]);
    eventually("the third password is in use", 60, async || {
        let times = ccm.log().matches("the new credentials are in use").count();
        if times == 2 { Ok(()) } else { Err(ccm.tail()) }
    })
    .await;
    stage.vcenter.expire_sessions("").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn wrong_credentials_at_the_start_are_tried_once_until_they_change() {
    let all = vms(&["node-1"]);
    let stage = Stage::with(Inventory::small().vms(all.clone())).await;
    stage.set_secret(&[("127.0.0.1", USER, "wrong")]).await;
    stage.add_nodes(&all).await;
    let ccm = stage.controller("", &[]);
    stage.event_containing("node-1", "VMNotFound", "is unavailable").await;
    assert_eq!(stage.vcenter.calls().await.count("Login"), 1, "the wrong password");
    stage.set_secret(&[("127.0.0.1", USER, PASSWORD)]).await;
    stage.initialised("node-1", &ccm).await;
    let logins = stage.vcenter.calls().await.count("Login");
    assert_eq!(logins, 2, "one attempt with each password");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_unreachable_vcenter_does_not_delay_others() {
    let mine = vms(&["node-1"]);
    let stage = Stage::with(Inventory::small().vms(mine.clone())).await;
    let role = Role::new("reader", &["System.Anonymous", "System.View", "System.Read"]);
    let other = Inventory::small().vms(vms(&["node-2"])).user(
        VcenterUser::new(USER, PASSWORD),
        &role,
        &["/"],
    );
    let other = Vcenter::start(other).await;
    let more = |port: u16| {
        format!(
            "  two:\n    server: localhost\n    port: {port}\n    insecureFlag: true\n    user: {USER}\n    password: {PASSWORD}"
        )
    };
    stage.add_nodes(&mine).await;
    stage.add_nodes(&vms(&["node-2"])).await;
    let unused = Port::reserve().unwrap();
    let ccm = stage.controller(&more(unused.number), &["--node-deletion-delay=1s"]);
    stage.initialised("node-1", &ccm).await;
    stage.vcenter.destroy_vm("/DC0/vm/node-1").await;
    stage.nodes.set_ready("node-1", false).await;
    stage.event_containing("node-1", "VMUncertain", "localhost:").await;
    // The address is corrected while the controller runs; the VM of the first node is in neither vCenter.
    stage.configuration(&more(other.address().port()));
    let node = stage.initialised("node-2", &ccm).await;
    assert!(record(&node).unwrap()["vcenter"].as_str().unwrap().starts_with("localhost:"));
    stage.until_deleted("node-1").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_changed_configuration_is_used_and_a_broken_one_is_not() {
    let inventory = two_datacenters(&vms(&["node-1"]), &vms(&["node-2"]));
    let mut stage = Stage::with(inventory).await;
    stage.add_nodes(&vms(&["node-1", "node-2"])).await;
    let ccm = stage.controller("", &["--node-deletion-delay=1s"]);
    stage.initialised("node-1", &ccm).await;
    stage.event("node-2", "VMNotFound").await;
    let path = stage.configuration("");
    let good = std::fs::read_to_string(&path).unwrap();
    stage.workdir.write(CONFIGURATION, good.replace("datacenters", "datacentres")).unwrap();
    until_logged(&ccm, "did you mean `datacenters`?").await;
    let both = good.replace("[DC0]", "[DC0, /DC1]");
    stage.workdir.write(CONFIGURATION, &both).unwrap();
    stage.initialised("node-2", &ccm).await;
    // A valid configuration with a missing Secret, and back: the old connection stays.
    stage.workdir.write(CONFIGURATION, both.replace(SECRET, "missing")).unwrap();
    eventually("the new settings are tried", 60, async || {
        let tries = ccm.log().matches("the settings changed; connecting with the new ones").count();
        if tries == 2 { Ok(()) } else { Err(format!("{tries}\n{}", ccm.tail())) }
    })
    .await;
    stage.workdir.write(CONFIGURATION, &both).unwrap();
    stage.vcenter.destroy_vm("/DC0/vm/node-1").await;
    stage.nodes.set_ready("node-1", false).await;
    stage.until_deleted("node-1").await;
    assert_eq!(ccm.log().matches("the new settings are in use").count(), 1, "{}", ccm.tail());
    replace_ca(&mut stage, &ccm).await;
}

/// Replaces the CA file: first with a CA that did not issue vCenter's certificate, which is not used; then
/// vCenter gets a certificate of a new CA, and the file contains that CA.
async fn replace_ca(stage: &mut Stage, ccm: &Process) {
    let other_vcenter = Vcenter::start(Inventory::small()).await;
    let own = stage.vcenter.ca_pem();
    stage.workdir.write("ca.pem", other_vcenter.ca_pem()).unwrap();
    eventually("the other CA is tried", 60, async || {
        let tries = ccm.log().matches("the settings changed; connecting with the new ones").count();
        if tries == 3 { Ok(()) } else { Err(format!("{tries}\n{}", ccm.tail())) }
    })
    .await;
    // The old connection is still in use.
    stage.vcenter.patch_vm("/DC1/vm/node-2", json!({"power": "off"})).await;
    stage.nodes.set_ready("node-2", false).await;
    stage.until("the node is tainted", "node-2", |node| has_taint(node, SHUTDOWN)).await;
    stage.workdir.write("ca.pem", own).unwrap();
    let inventory = two_datacenters(&[], &vms(&["node-2", "node-3"]));
    stage.vcenter.replace(readable(inventory)).await;
    stage.add_nodes(&vms(&["node-3"])).await;
    stage.workdir.write("ca.pem", stage.vcenter.ca_pem()).unwrap();
    stage.initialised("node-3", ccm).await;
    assert_eq!(ccm.log().matches("the new settings are in use").count(), 2, "{}", ccm.tail());
}

#[tokio::test(flavor = "multi_thread")]
async fn with_an_invalid_configuration_the_controller_exits_with_the_reason() {
    let stage = Stage::with(Inventory::small()).await;
    for (more, why) in [
        ("loadBalancer: {size: SMALL}", "asks for load balancers in NSX"),
        ("nodes: {internalNetworkSubnetCidr: nonsense}", "nonsense"),
        ("lables: {zone: z}", "did you mean `labels`?"),
    ] {
        let ccm = stage.controller(more, &[]);
        let ended = ccm.wait(60).await;
        assert_eq!(ended.and_then(|e| e.code()), Some(1), "{}", ccm.tail());
        assert!(ccm.log().contains(why), "{}", ccm.tail());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_restart_writes_to_no_initialised_node() {
    let all: Vec<Vm> = (1..=20).map(|n| Vm::numbered("node", n)).collect();
    let inventory = Inventory::small().vms(all.clone());
    let stage = Stage::on(ControlPlane::builder().with_audit(), inventory).await;
    stage.add_nodes(&all).await;
    let ccm = stage.controller("", &["--leader-elect=false"]);
    for vm in &all {
        stage.initialised(&vm.name, &ccm).await;
    }
    drop(ccm);
    let agent = "vsphere-cloud-controller-manager";
    eventually("the audit log has two writes per node", 60, async || {
        let before = stage.node_writes(agent);
        if before.len() >= 40 { Ok(()) } else { Err(format!("{before:?}")) }
    })
    .await;
    let then = Timestamp::now();
    let again = stage.controller("", &["--leader-elect=false"]);
    stage.settle(&again, "marker").await;
    let after = stage.node_writes_since(then, agent);
    assert!(after.iter().all(|write| write.contains("marker")), "{after:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_can_be_explained() {
    let vm = Vm::numbered("node", 1);
    let mut inventory = Inventory::small().vms([vm.clone()]);
    inventory.categories.push(Category {
        name: "rack".into(),
        cardinality: "SINGLE".into(),
        tags: vec![],
    });
    let stage = Stage::with(inventory).await;
    stage.add_nodes(&[vm]).await;
    let ccm = stage.controller("labels: {zone: rack}", &["--explain-node=node-1"]);
    let ended = ccm.wait(60).await.unwrap();
    let page = ccm.output();
    assert!(ended.success(), "{page}\n{}", ccm.tail());
    for line in [
        "Node node-1",
        "the system uuid, as BIOS uuid: 1 found",
        "It is /DC0/vm/node-1 (vm-",
        "10.0.0.1 on \"VM Network\" for InternalIP: chosen: no rule matches any address, and it is the first",
        "The node gets Hostname node-1, InternalIP 10.0.0.1, ExternalIP 10.0.0.1.",
        "! no tag of the category \"rack\"",
    ] {
        assert!(page.contains(line), "{line}\n---\n{page}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn probes_and_metrics_report_the_state_of_the_vcenters() {
    let vm = Vm::named("node-1");
    let stage = Stage::with(Inventory::small().vms([vm.clone()])).await;
    let reserved = Port::reserve().unwrap();
    let port = reserved.number;
    let flags = ["--bind-address=127.0.0.1", &format!("--secure-port={port}")];
    let user = testkit::User::service_account("kube-system", "vsphere-cloud-controller-manager");
    let arguments = [
        format!("--cloud-config={}", stage.configuration("").display()),
        format!("--kubeconfig={}", stage.plane.kubeconfig_as(&user).display()),
        "--vcenter-retry-period=1s".into(),
        flags[0].into(),
        flags[1].into(),
    ];
    let program = std::path::Path::new(env!("CARGO_BIN_EXE_vsphere-cloud-controller-manager"));
    let ccm = Process::spawn(program, "ccm", arguments, &[], &stage.workdir).unwrap();
    stage.add_nodes(&[vm]).await;
    stage.initialised("node-1", &ccm).await;
    let page = async |path: &str| {
        let response = reqwest::get(format!("http://127.0.0.1:{port}{path}"))
            .await
            .map_err(|e| e.to_string())?;
        let status = response.status().as_u16();
        Ok::<_, String>((status, response.text().await.unwrap_or_default()))
    };
    let vcenter = format!("{{vcenter=\"127.0.0.1:{}\"", stage.vcenter.address().port());
    let lines = [
        "node_controller_cloud_provider_taint_removal_delay_seconds_count 1".into(),
        "node_controller_initial_node_sync_delay_seconds_count 1".into(),
        "workqueue_depth 0".into(),
        "workqueue_retries_total ".into(),
        format!(
            "cloudprovider_vsphere_api_request_duration_seconds_count{vcenter},request=\"Login\"}} 1"
        ),
        format!("cloudprovider_vsphere_vcenter_live{vcenter}}} 1"),
        // Seconds since 1970, of this century.
        format!("cloudprovider_vsphere_vcenter_last_heard_seconds{vcenter}}} 1"),
        format!("cloudprovider_vsphere_calls_in_flight{vcenter}}} 1"),
        format!("cloudprovider_vsphere_sessions{vcenter}}} 1"),
        "cloudprovider_vsphere_node_writes_total{kind=\"initialise\"} 1".into(),
        "cloudprovider_vsphere_zones_missing 0".into(),
        "cloudprovider_vsphere_machines_gone 0".into(),
        "cloudprovider_vsphere_configuration_current 1".into(),
    ];
    eventually("everything is measured", 60, async || {
        let metrics = page("/metrics").await?.1;
        let missing: Vec<&String> = lines.iter().filter(|line| !metrics.contains(*line)).collect();
        if missing.is_empty() { Ok(()) } else { Err(format!("{missing:?}\n{metrics}")) }
    })
    .await;
    assert_eq!(page("/livez").await.unwrap().0, 200);
    stage.vcenter.fault(testkit::Fault::on("*").status(503)).await;
    stage.vcenter.expire_sessions("").await;
    eventually("the probe fails", 60, async || match page("/readyz").await? {
        (503, text) if text.contains("[-] vcenters: 127.0.0.1:") => Ok(()),
        other => Err(format!("{other:?}")),
    })
    .await;
    stage.vcenter.clear_faults().await;
    eventually("the probe passes again", 60, async || match page("/readyz").await? {
        (200, _) => Ok(()),
        other => Err(format!("{other:?}")),
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_renamed_tag_category_and_malformed_metadata_are_reported_and_block_no_node() {
    let vm = Vm {
        extra_config: [
            ("guestinfo.metadata".to_owned(), "%%%".to_owned()),
            ("guestinfo.metadata.encoding".to_owned(), "base64".to_owned()),
        ]
        .into(),
        ..Vm::named("node-1")
    };
    let inventory = Inventory::small().vms([vm.clone()]).category("k8s-zone", &[("a", &["/DC0"])]);
    let stage = Stage::with(inventory).await;
    let rename = json!({"name": "renamed"});
    stage.vcenter.lever(reqwest::Method::PATCH, "/categories?name=k8s-zone", Some(rename)).await;
    stage.nodes.add(Node::named("node-1").system_uuid(&vm.uuid).uninitialized()).await;
    let ccm = stage.controller("labels: {zone: k8s-zone}", &[]);
    stage.initialised("node-1", &ccm).await;
    stage.event("node-1", "ZoneMissing").await;
    stage.event_containing("node-1", "MetadataIgnored", "not valid base64").await;
    metadata_breaks_later(&stage, &ccm).await;
}

/// A node keeps its addresses when the metadata with their order becomes unreadable.
async fn metadata_breaks_later(stage: &Stage, ccm: &Process) {
    let card = |address: &str| Nic {
        network: "VM Network".into(),
        connected: true,
        addresses: vec![format!("{address}/16")],
    };
    let first = "network: {ethernets: {eth0: {addresses: [10.1.0.44/16]}}}";
    let vm = Vm {
        nics: vec![card("172.16.0.9"), card("10.1.0.44")],
        extra_config: [
            ("guestinfo.metadata".to_owned(), STANDARD.encode(first)),
            ("guestinfo.metadata.encoding".to_owned(), "base64".to_owned()),
        ]
        .into(),
        ..Vm::named("ordered")
    };
    stage.vcenter.add_vms("DC0", [vm.clone()]).await;
    stage.nodes.add(Node::named("ordered").system_uuid(&vm.uuid).uninitialized()).await;
    stage.initialised("ordered", ccm).await;
    let before = addresses(&stage.node("ordered").await);
    assert!(before.contains(&"InternalIP=10.1.0.44".to_owned()), "{before:?}");
    let broken = json!({"extraConfig": {"guestinfo.metadata": "%%%"}});
    stage.vcenter.patch_vm("/DC0/vm/ordered", broken).await;
    stage.event_containing("ordered", "MetadataIgnored", "stay as they are").await;
    assert_eq!(addresses(&stage.node("ordered").await), before);
    // An address that is gone is not kept.
    let left = json!({"nics": [card("172.16.0.9")]});
    stage.vcenter.patch_vm("/DC0/vm/ordered", left).await;
    let moved = |node: &k8s_openapi::api::core::v1::Node| {
        addresses(node).contains(&"InternalIP=172.16.0.9".to_owned())
    };
    stage.until("it has the address that is left", "ordered", moved).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_thousand_nodes_are_initialised_without_a_vcenter_call_per_node() {
    let all: Vec<Vm> = (1..=1000).map(|n| Vm::numbered("node", n)).collect();
    let inventory =
        Inventory::small().vms(all.clone()).category("k8s-zone", &[("zone-a", &["/DC0"])]);
    let stage = Stage::with(inventory).await;
    // Their kubelets only need to be Ready.
    stage.nodes.process().kill();
    let ccm = stage.controller("labels: {zone: k8s-zone}", &["--leader-elect=false"]);
    until_logged(&ccm, "inventory in view").await;
    let api = stage.api();
    let create = all.iter().map(|vm| {
        let node = serde_json::from_value(json!({
            "metadata": {"name": vm.name},
            "spec": {"taints": [{"key": UNINITIALIZED, "value": "true", "effect": "NoSchedule"}]},
            "status": {
                "conditions": [{"type": "Ready", "status": "True"}],
                "nodeInfo": {
                    "systemUUID": vm.uuid, "architecture": "amd64", "bootID": "", "machineID": "",
                    "containerRuntimeVersion": "", "kernelVersion": "", "kubeProxyVersion": "",
                    "kubeletVersion": "", "operatingSystem": "linux", "osImage": "",
                },
            },
        }));
        let api = api.clone();
        async move { api.create(&kube::api::PostParams::default(), &node.unwrap()).await.unwrap() }
    });
    futures::stream::iter(create).buffer_unordered(16).collect::<Vec<_>>().await;
    let nodes = eventually("all are initialised", 180, async || {
        assert!(ccm.ended().is_none(), "the controller ended:\n{}", ccm.tail());
        let nodes = api.list(&kube::api::ListParams::default()).await.map_err(|e| e.to_string())?;
        let left = nodes.items.iter().filter(|node| has_taint(node, UNINITIALIZED)).count();
        if left == 0 { Ok(nodes.items) } else { Err(format!("{left} wait")) }
    })
    .await;
    assert_eq!(nodes.len(), 1000);
    let zone = "topology.kubernetes.io/zone";
    assert!(nodes.iter().all(|node| label(node, zone) == Some("zone-a")));
    let ids: std::collections::BTreeSet<&str> = nodes.iter().map(provider_id).collect();
    assert_eq!(ids.len(), 1000, "each node has its own VM");
    // Calls to connect, to log in, to read the inventory pages and the tags, but none per node. On a slow
    // computer there are more polls of the watch.
    let calls = stage.vcenter.calls().await;
    assert!(calls.sum() - calls.count("WaitForUpdatesEx") <= 60, "{:?}", calls.total);
}
