//! The space of each zone, for the scheduler.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use csi::{
    loops::{CapacitySettings, Settings},
    proto::csi::{GetCapacityRequest, Topology, controller_server::Controller as _},
};
use k8s_openapi::api::storage::v1::CSIStorageCapacity;
use kube::{Api, api::ListParams};
use runtime::lease::Mandate;
use serde_json::json;
use testkit::{Inventory, Vm, eventually};
use tonic::Request;

use crate::{
    common::{Stage as Driver, node},
    stage::{NAMESPACE, Stage, ZONE},
};

#[tokio::test(flavor = "multi_thread")]
async fn the_scheduler_learns_the_space_of_each_zone() {
    let stage = Stage::start().await;
    let capacity = CapacitySettings {
        namespace: NAMESPACE.into(),
        owner: None,
        interval: Duration::from_mins(1),
    };
    let settings = Settings { capacity: Some(capacity), ..Stage::settings() };
    let run = stage.run_with(settings.clone(), Mandate::unlimited());
    let api = Api::<CSIStorageCapacity>::namespaced(stage.client(), NAMESPACE);
    let published = async || {
        let all = api.list(&ListParams::default()).await.unwrap();
        let one = |object: CSIStorageCapacity| {
            let zone = object.node_topology.unwrap().match_labels.unwrap()[ZONE].clone();
            let sizes = (object.capacity.unwrap().0, object.maximum_volume_size.unwrap().0);
            ((object.storage_class_name, zone), sizes)
        };
        all.into_iter().map(one).collect::<BTreeMap<_, _>>()
    };
    let entry = |zone: &str, size: &str, largest: &str| {
        (("delayed".to_owned(), zone.to_owned()), (size.to_owned(), largest.to_owned()))
    };
    let expected = BTreeMap::from([
        entry("a", "10Gi", "5Gi"),
        entry("b", "20Gi", "10Gi"),
        entry("c", "30Gi", "15Gi"),
    ]);
    eventually("the space is published", 60, async || {
        let found = published().await;
        if found == expected { Ok(()) } else { Err(format!("{found:?}")) }
    })
    .await;
    // A restart changes nothing.
    run.stop().await;
    let before = stage.driver.calls("capacity");
    let _run = stage.run_with(settings, Mandate::unlimited());
    eventually("the capacity is read again", 60, async || {
        if stage.driver.calls("capacity") >= before + 3 { Ok(()) } else { Err("not yet") }
    })
    .await;
    assert_eq!(api.list(&ListParams::default()).await.unwrap().items.len(), 3);
    assert_eq!(published().await, expected);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_space_of_each_zone_is_that_of_its_datastores_in_vcenter() {
    const KEY: &str = "topology.csi.vmware.com/k8s-zone";
    let zones: &[(&str, &[&str])] =
        &[("zone-a", &["/DC0/host/cluster-a"]), ("zone-b", &["/DC0/host/cluster-b"])];
    let vms = [
        Vm { cluster: "cluster-a".into(), ..Vm::numbered("node", 1) },
        Vm { cluster: "cluster-b".into(), ..Vm::numbered("node", 2) },
    ];
    let inventory = Inventory::small().vms(vms).category("k8s-zone", zones);
    let (stage, driver) =
        tokio::join!(Stage::without_nodes(), Driver::with_categories(inventory, &["k8s-zone"]));
    stage.register("node-1", KEY, "zone-a", &node(1)).await;
    stage.register("node-2", KEY, "zone-b", &node(2)).await;
    // A class that cannot work does not hide the others.
    let broken = json!({
        "volumeBindingMode": "WaitForFirstConsumer", "parameters": {"storagepolicyname": "no-such-policy"},
    });
    stage.class("a-broken-class", broken).await;
    let interval = Duration::from_mins(1);
    let capacity = CapacitySettings { namespace: NAMESPACE.into(), owner: None, interval };
    let settings = Settings { capacity: Some(capacity), ..Stage::settings() };
    let service = Arc::new(driver.service.clone());
    let _run = stage.run_on(service.clone(), settings, Mandate::unlimited());
    let mut expected = BTreeMap::new();
    for zone in ["zone-a", "zone-b"] {
        let segments = [(KEY.to_owned(), zone.to_owned())].into();
        let accessible_topology = Some(Topology { segments });
        let request = GetCapacityRequest { accessible_topology, ..Default::default() };
        let answer = service.get_capacity(Request::new(request)).await.unwrap().into_inner();
        assert!(answer.available_capacity > 0, "{zone}");
        expected.insert(zone.to_owned(), answer.available_capacity);
    }
    let api = Api::<CSIStorageCapacity>::namespaced(stage.client(), NAMESPACE);
    eventually("the space is published", 60, async || {
        let all = api.list(&ListParams::default()).await.unwrap();
        let one = |object: CSIStorageCapacity| {
            let zone = object.node_topology.unwrap().match_labels.unwrap()[KEY].clone();
            let bytes = csi::loops::quantity::Bytes::parse(&object.capacity.unwrap().0);
            (zone, bytes.unwrap().0)
        };
        let found: BTreeMap<String, i64> = all.into_iter().map(one).collect();
        if found == expected { Ok(()) } else { Err(format!("{found:?} {expected:?}")) }
    })
    .await;
}
