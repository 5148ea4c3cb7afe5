//! Runs the upstream storage driver with the rendered flags, variables, feature switches and permissions.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::assigning_clones,
    reason = "a test that cannot set itself up should fall, and reads better plain"
)]

mod support;

use catalog::{
    Driver,
    manifest::{Rendered, render},
};
use serde_json::Value;
use support::{
    cluster::{apply, as_operator},
    plain, release,
};
use testkit::{
    ControlPlane, Inventory, Node, Nodes, Process, User, Vcenter, Workdir, eventually, peer,
};
use tokio::net::UnixStream;

/// The driver container in the controller's pod.
fn container(rendered: &Rendered) -> &Value {
    let deployment = rendered.find("Deployment", "vsphere-csi-controller").unwrap();
    let containers = deployment.0.pointer("/spec/template/spec/containers").unwrap();
    let named = |it: &&Value| it["name"] == "vsphere-csi-controller";
    containers.as_array().unwrap().iter().find(named).unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn the_upstream_storage_controller_starts_with_the_rendered_objects() {
    let plane = ControlPlane::builder().with_controllers().with_audit().start().await;
    let vcenter = Vcenter::start(Inventory::with_vms(1).version("8.0.3")).await;
    let nodes = Nodes::start(&plane).await;
    nodes.add(Node::named("node-1")).await;
    let (client, files) = (plane.client(), Workdir::new("upstream-csi").unwrap());
    let rendered = render(release(Driver::Csi, "3.7.0"), &plain()).unwrap();
    for object in &rendered.objects {
        apply(&client, object, &as_operator()).await.unwrap();
    }

    let authority = files.write("ca.pem", vcenter.ca_pem()).unwrap();
    let config = format!(
        "[Global]\ncluster-id = \"catalog-test\"\n\n[VirtualCenter \"{}\"]\nuser = \"{}\"\npassword = \"{}\"\n\
         port = \"{}\"\nca-file = \"{}\"\ndatacenters = \"DC0\"\n",
        vcenter.address().ip(),
        vcenter.user(),
        vcenter.password(),
        vcenter.address().port(),
        authority.display()
    );
    // Alone in its folder, as in the pod: the driver loads it again after each change of any file next to it.
    let secret = Workdir::new("upstream-csi-secret").unwrap();
    let config = secret.write("csi-vsphere.conf", config).unwrap().display().to_string();
    let socket = files.path().join("csi.sock");

    // The rendered variables and flags, with local files and the pod's namespace filled in.
    let account = User::service_account("vmware-system-csi", "vsphere-csi-controller");
    let kubeconfig = plane.kubeconfig_as(&account).display().to_string();
    let local = |text: &str| {
        text.replace("/etc/cloud/csi-vsphere.conf", &config)
            .replace("/csi/csi.sock", &socket.display().to_string())
            .replace("$(CSI_NAMESPACE)", "vmware-system-csi")
    };
    let driver = container(&rendered);
    let mut variables: Vec<(String, String)> = vec![
        ("KUBECONFIG".to_owned(), kubeconfig),
        ("CSI_NAMESPACE".to_owned(), "vmware-system-csi".to_owned()),
    ];
    for variable in driver["env"].as_array().unwrap() {
        if let Some(value) = variable["value"].as_str() {
            variables.push((variable["name"].as_str().unwrap().to_owned(), local(value)));
        }
    }
    let variables: Vec<_> =
        variables.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect();
    let flags: Vec<_> = driver["args"]
        .as_array()
        .unwrap()
        .iter()
        .map(|flag| local(flag.as_str().unwrap()))
        .collect();
    let process = Process::spawn(&peer("vsphere-csi"), "csi", flags, &variables, &files).unwrap();

    eventually("the driver answers on its socket", 120, async || {
        assert!(process.ended().is_none(), "{}", process.tail());
        UnixStream::connect(&socket)
            .await
            .map(drop)
            .map_err(|error| format!("{error}\n{}", process.tail()))
    })
    .await;

    let name = "system:serviceaccount:vmware-system-csi:vsphere-csi-controller";
    let own = eventually("its requests are in the audit log", 30, async || {
        let mut own = plane.audit();
        own.retain(|entry| entry["impersonatedUser"]["username"] == name);
        if own.len() > 5 { Ok(own) } else { Err(format!("only {}", own.len())) }
    })
    .await;
    let refused: Vec<_> = own
        .iter()
        .filter(|entry| entry["responseStatus"]["code"] == 403)
        .map(|entry| format!("{} {}", entry["verb"], entry["requestURI"]))
        .collect();
    assert!(refused.is_empty(), "{refused:#?}");
}
