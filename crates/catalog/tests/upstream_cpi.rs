//! Runs the upstream cloud controller with the rendered flags, configuration and permissions.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::assigning_clones,
    reason = "a test that cannot set itself up should fall, and reads better plain"
)]

mod support;

use catalog::{
    Driver,
    manifest::{Object, Profile, Rendered, render},
};
use kube::Client;
use serde_json::{Value, json};
use support::{
    cluster::{api, apply, as_operator},
    plain, release,
};
use testkit::{
    ControlPlane, Inventory, Node, Nodes, Port, Process, User, Vcenter, Workdir, eventually, peer,
};

/// The Node in the API server; `None` if it is deleted.
async fn node(client: &Client, name: &str) -> Option<Value> {
    let object =
        Object(json!({ "apiVersion": "v1", "kind": "Node", "metadata": { "name": name } }));
    let found = api(client, &object).get_opt(name).await.unwrap();
    found.map(|node| serde_json::to_value(node).unwrap())
}

/// The configuration and its credentials, as the operator creates them.
async fn configure(client: &Client, vcenter: &Vcenter, files: &Workdir) -> String {
    let server = vcenter.address().ip().to_string();
    let secret = Object(json!({
        "apiVersion": "v1", "kind": "Secret",
        "metadata": { "name": "vsphere-cloud-credentials", "namespace": "kube-system" },
        "stringData": {
            format!("{server}.username"): vcenter.user(),
            format!("{server}.password"): vcenter.password(),
        },
    }));
    apply(client, &secret, &as_operator()).await.unwrap();
    let authority = files.write("ca.pem", vcenter.ca_pem()).unwrap();
    let config = json!({
        "global": {
            "port": vcenter.address().port(),
            "caFile": authority,
            "secretName": "vsphere-cloud-credentials",
            "secretNamespace": "kube-system",
        },
        "vcenter": { "vc": { "server": server } },
    });
    files.write("vsphere.conf", config.to_string()).unwrap().display().to_string()
}

/// The rendered container's flags, with a local configuration file and a kubeconfig of its account.
fn arguments(rendered: &Rendered, config: &str, kubeconfig: &str) -> Vec<String> {
    let daemon_set = rendered.find("DaemonSet", "vsphere-cloud-controller-manager").unwrap();
    let flags = daemon_set.0.pointer("/spec/template/spec/containers/0/args").unwrap();
    let mut flags: Vec<_> = flags
        .as_array()
        .unwrap()
        .iter()
        .map(|flag| flag.as_str().unwrap().replace("/etc/cloud/vsphere.conf", config))
        .collect();
    for flag in ["kubeconfig", "authentication-kubeconfig", "authorization-kubeconfig"] {
        flags.push(format!("--{flag}={kubeconfig}"));
    }
    flags
}

fn profile(port: u16) -> Profile {
    let mut profile = plain();
    profile.cpi.port = port;
    profile.cpi.node_labels = [("example.com/platform".to_owned(), "vsphere".to_owned())].into();
    profile
}

#[tokio::test(flavor = "multi_thread")]
async fn the_upstream_cloud_controller_works_with_the_rendered_objects() {
    let plane = ControlPlane::builder().with_controllers().with_audit().start().await;
    let vcenter = Vcenter::start(Inventory::with_vms(2)).await;
    let nodes = Nodes::start(&plane).await;
    let (client, files) = (plane.client(), Workdir::new("upstream-cpi").unwrap());
    for name in ["node-1", "node-2"] {
        nodes.add(Node::named(name).uninitialized()).await;
    }
    let port = Port::reserve().unwrap();
    let rendered = render(release(Driver::Cpi, "1.36.0"), &profile(port.number)).unwrap();
    for object in &rendered.objects {
        apply(&client, object, &as_operator()).await.unwrap();
    }
    let config = configure(&client, &vcenter, &files).await;
    let account = User::service_account("kube-system", "cloud-controller-manager");
    let kubeconfig = plane.kubeconfig_as(&account).display().to_string();
    let flags = arguments(&rendered, &config, &kubeconfig);
    let program = peer("vsphere-cloud-controller-manager");
    let process = Process::spawn(&program, "cpi", flags, &[], &files).unwrap();

    for name in ["node-1", "node-2"] {
        eventually("the node is initialised", 90, async || {
            assert!(process.ended().is_none(), "{}", process.tail());
            let node = node(&client, name).await.ok_or("it is gone")?;
            let initialised =
                node["spec"]["providerID"].as_str().is_some_and(|id| id.starts_with("vsphere://"))
                    && !node["spec"]["taints"].to_string().contains("uninitialized")
                    && node["metadata"]["labels"]["example.com/platform"] == "vsphere";
            let seen = || format!("{} {}", node["metadata"]["labels"], node["spec"]);
            if initialised { Ok(()) } else { Err(format!("{}\n{}", seen(), process.tail())) }
        })
        .await;
    }

    // A VM that no longer exists: now the controller has to delete the Node.
    vcenter.destroy_vm("/DC0/vm/node-2").await;
    nodes.set_ready("node-2", false).await;
    eventually("the Node of the deleted VM is removed", 90, async || {
        match node(&client, "node-2").await {
            None => Ok(()),
            Some(node) => Err(format!("{}\n{}", node["spec"], process.tail())),
        }
    })
    .await;

    // The API server refused none of its requests.
    let name = "system:serviceaccount:kube-system:cloud-controller-manager";
    let audit = plane.audit();
    let own: Vec<_> =
        audit.iter().filter(|entry| entry["impersonatedUser"]["username"] == name).collect();
    assert!(own.len() > 10, "only {} requests are in the audit log", own.len());
    let refused: Vec<_> = own
        .iter()
        .filter(|entry| entry["responseStatus"]["code"] == 403)
        .map(|entry| format!("{} {}", entry["verb"], entry["requestURI"]))
        .collect();
    assert!(refused.is_empty(), "{refused:#?}");
}
