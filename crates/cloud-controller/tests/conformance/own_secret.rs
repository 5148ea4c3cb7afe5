//! A vCenter with its own Secret needs exactly the Role in docs/cloud-controller.md.

use std::collections::BTreeMap;

use catalog::manifest::Object;
use k8s_openapi::{
    ByteString,
    api::core::v1::{Namespace, Secret},
};
use kube::{Api, api::PostParams};
use testkit::{Process, Vm};

use super::common::*;

const PAGE: &str = include_str!("../../../../docs/cloud-controller.md");

/// The Role and its binding from the page.
fn documented_objects() -> Vec<Object> {
    let (_, below) =
        PAGE.split_once("a test of the cloud controller applies it -->\n```yaml\n").unwrap();
    let text = below.split("```").next().unwrap();
    text.split("---\n").map(|one| Object(serde_saphyr::from_str(one).unwrap())).collect()
}

/// Starts without permission for the Secret, and grants it after the controller reported that.
pub(crate) async fn check(stage: &Stage, start: impl Fn() -> Process) {
    let client = stage.plane.client();
    let mut namespace = Namespace::default();
    namespace.metadata.name = Some("vcenters".into());
    Api::all(client.clone()).create(&PostParams::default(), &namespace).await.unwrap();
    let pair = [("127.0.0.1.username", USER), ("127.0.0.1.password", PASSWORD)];
    let data: BTreeMap<_, _> =
        pair.map(|(key, value)| (key.to_owned(), ByteString(value.as_bytes().to_vec()))).into();
    let mut secret = Secret { data: Some(data), ..Secret::default() };
    secret.metadata.name = Some("vienna".into());
    let secrets = Api::<Secret>::namespaced(client.clone(), "vcenters");
    secrets.create(&PostParams::default(), &secret).await.unwrap();
    let ccm = start();
    until_logged(&ccm, "the Secret vcenters/vienna cannot be read").await;
    until_logged(&ccm, "grant this account get, list and watch on that Secret").await;
    let objects = documented_objects();
    assert_eq!(objects.len(), 2);
    for object in &objects {
        apply(&client, object).await.unwrap();
    }
    // This cluster has a zone and a region.
    let vm = Vm { cluster: "cluster-b".into(), ..Vm::named("granted") };
    stage.vcenter.add_vms("DC0", [vm.clone()]).await;
    stage.add_nodes(&[vm]).await;
    stage.initialised("granted", &ccm).await;
}
