//! Volumes are made where their pods can run.

use serde_json::json;
use testkit::eventually;
use tonic::Status;

use crate::stage::{Stage, ZONE};

/// The zones of the node affinity of a volume.
fn zones(volume: &k8s_openapi::api::core::v1::PersistentVolume) -> Vec<String> {
    let affinity = volume.spec.as_ref().unwrap().node_affinity.as_ref().unwrap();
    let terms = &affinity.required.as_ref().unwrap().node_selector_terms;
    let expressions = terms.iter().flat_map(|term| term.match_expressions.iter().flatten());
    expressions.flat_map(|e| e.values.clone().unwrap_or_default()).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_delayed_claim_gets_its_volume_in_the_zone_of_its_pod() {
    let stage = Stage::start().await;
    let _run = stage.run();
    stage.claim("data", "delayed").await;
    stage.pod("app", "data", json!({ZONE: "b"})).await;
    let volume = stage.bound("data").await;
    assert_eq!(zones(&volume), ["b"]);
    let name = volume.metadata.name.unwrap();
    let requirement = stage.driver.volumes()[&name].request.accessibility_requirements.clone();
    let requirement = requirement.unwrap();
    assert_eq!(requirement.requisite.len(), 1, "{requirement:?}");
    assert_eq!(requirement.requisite, requirement.preferred);
    assert_eq!(stage.attached(&name).await.spec.node_name, "n-b");

    // Claims of a StatefulSet that bind at once are spread over all zones.
    let mut used = std::collections::BTreeSet::new();
    for replica in 0..3 {
        let claim = format!("data-db-{replica}");
        stage.claim(&claim, "immediate").await;
        let volume = stage.bound(&claim).await;
        let name = volume.metadata.name.as_ref().unwrap();
        let requirement = stage.driver.volumes()[name].request.accessibility_requirements.clone();
        assert_eq!(requirement.unwrap().requisite.len(), 3);
        used.extend(zones(&volume));
    }
    assert_eq!(used.len(), 3, "{used:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_claim_that_does_not_fit_is_rescheduled() {
    let stage = Stage::start().await;
    let _run = stage.run();
    let full = "no datastore of the zone has 1Gi of free space";
    stage.driver.fail("create", [Status::resource_exhausted(full)]);
    stage.claim("data", "delayed").await;
    stage.pod("app", "data", json!({})).await;
    stage.bound("data").await;
    assert_eq!(stage.driver.calls("create"), 2);
    let text = stage.until_event("data", "ProvisioningFailed").await;
    assert!(text.ends_with(full), "{text}");
    eventually("the write is in the audit log", 60, async || {
        let writes = stage.writes();
        let removed = writes.get("patch persistentvolumeclaims").copied();
        if removed == Some(1) { Ok(()) } else { Err(format!("{writes:?}")) }
    })
    .await;
}
