//! Restarts and changes of the leader.

use std::time::Duration;

use k8s_openapi::api::coordination::v1::Lease;
use kube::{
    Api,
    api::{ListParams, Patch, PatchParams},
};
use runtime::lease::{Contender, Mandate, Terms};
use serde_json::json;
use testkit::eventually;

use crate::stage::Stage;

const CLAIMS: usize = 20;

#[tokio::test(flavor = "multi_thread")]
async fn a_restart_in_the_middle_loses_and_doubles_nothing() {
    let stage = Stage::start().await;
    let run = stage.run();
    let names: Vec<String> = (0..CLAIMS).map(|n| format!("data-{n}")).collect();
    for name in &names[..CLAIMS / 2] {
        stage.claim(name, "immediate").await;
    }
    stage.bound(&names[0]).await;
    stage.driver.hold("create");
    for name in &names[CLAIMS / 2..] {
        stage.claim(name, "immediate").await;
    }
    let before = stage.driver.calls("create");
    eventually("volumes are being made", 60, async || {
        if stage.driver.calls("create") > before { Ok(()) } else { Err("no call") }
    })
    .await;
    drop(run);
    stage.driver.release("create");
    let run = stage.run();
    let mut volumes = std::collections::BTreeSet::new();
    for name in &names {
        volumes.insert(stage.bound(name).await.metadata.name.unwrap());
    }
    assert_eq!(volumes.len(), CLAIMS);
    assert_eq!(stage.driver.volumes().len(), CLAIMS);
    assert_eq!(stage.volumes().list(&ListParams::default()).await.unwrap().items.len(), CLAIMS);

    // Attachments: the answer of the call is lost with the process.
    stage.driver.hold("publish");
    for (name, pod) in names[..5].iter().zip(["a", "b", "c", "d", "e"]) {
        stage.pod(pod, name, json!({})).await;
    }
    eventually("volumes are being attached", 60, async || {
        if stage.driver.calls("publish") == 5 { Ok(()) } else { Err("fewer calls") }
    })
    .await;
    drop(run);
    stage.driver.release("publish");
    let _run = stage.run();
    for name in &names[..5] {
        let volume = stage.bound(name).await.metadata.name.unwrap();
        stage.attached(&volume).await;
        assert_eq!(stage.driver.volumes()[&volume].nodes.len(), 1);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_former_leader_writes_nothing() {
    let stage = Stage::start().await;
    let terms = Terms {
        lease_duration: Duration::from_secs(15),
        renew_deadline: Duration::from_secs(10),
        retry_period: Duration::from_secs(1),
    };
    let contender =
        Contender::new(stage.client(), "kube-system", "csi-vsphere-vmware-com", "first", terms);
    let leadership = contender.unwrap().lead().await;
    let former = stage.run_with(Stage::settings(), leadership.mandate());
    stage.claim("before", "immediate").await;
    stage.bound("before").await;
    let leases = Api::<Lease>::namespaced(stage.client(), "kube-system");
    let taken = Patch::Merge(json!({"spec": {"holderIdentity": "second"}}));
    leases.patch("csi-vsphere-vmware-com", &PatchParams::default(), &taken).await.unwrap();
    let mandate = leadership.mandate();
    eventually("the leadership is lost", 60, async || {
        if mandate.holds() { Err("still leading") } else { Ok(()) }
    })
    .await;
    // The former leader still watches: it does not know that it lost the lease.
    stage.claim("after", "immediate").await;
    stage.until_event("after", "ExternalProvisioning").await;
    let calls = stage.driver.calls("create");
    assert_eq!(calls, 1);
    let before = stage.writes();
    let second = stage.run_with(Stage::settings(), Mandate::unlimited());
    stage.bound("after").await;
    assert_eq!(stage.driver.calls("create"), 2, "only the second leader makes the volume");
    second.stop().await;
    former.stop().await;
    let after = stage.writes();
    let created = |writes: &std::collections::BTreeMap<String, usize>| {
        writes.get("create persistentvolumes").copied().unwrap_or_default()
    };
    assert_eq!((created(&before), created(&after)), (1, 2), "{after:?}");
}
