//! The space of each zone, for the scheduler.

use std::{collections::BTreeMap, time::Duration};

use csi::loops::{CapacitySettings, Settings};
use k8s_openapi::api::storage::v1::CSIStorageCapacity;
use kube::{Api, api::ListParams};
use runtime::lease::Mandate;
use testkit::eventually;

use crate::stage::{NAMESPACE, Stage, ZONE};

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
