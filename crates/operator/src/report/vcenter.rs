//! The status of each VsphereCloudConfig.

use std::collections::BTreeMap;

use api::{
    VsphereCloudConfig, VsphereCloudConfigStatus,
    condition::{self, Answer},
    vsphere_cloud_config::{About, Verdict},
};
use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::{
    Api, Client,
    api::{Patch, PatchParams},
};
use plan::{
    facts::{Vcenter, VcenterState},
    names,
};
use serde_json::json;

/// Writes the status of those whose state changed. One whose status is refused stops nothing.
pub async fn report(
    client: &Client,
    vcenters: &BTreeMap<(String, String), Vcenter>,
) -> Result<(), kube::Error> {
    let now = Time(Timestamp::now());
    for ((namespace, name), vcenter) in vcenters {
        let configs = Api::<VsphereCloudConfig>::namespaced(client.clone(), namespace);
        let before = vcenter.status.clone().unwrap_or_default();
        let mut after = status(&before, &vcenter.state, vcenter.generation, &now);
        after.privileges = vcenter.privileges.clone().or(after.privileges);
        if vcenter.state != VcenterState::Untried {
            after.refused = vcenter.refused.clone();
        }
        if before == after {
            continue;
        }
        let body = json!({
            "apiVersion": "vdo.vmware.com/v1alpha1",
            "kind": "VsphereCloudConfig",
            "status": after,
        });
        let parameters = PatchParams::apply(names::FIELD_MANAGER).force();
        let written = configs.patch_status(name, &parameters, &Patch::Apply(body)).await;
        super::unless_refused(written, namespace, name)?;
    }
    Ok(())
}

fn status(
    before: &VsphereCloudConfigStatus,
    state: &VcenterState,
    generation: Option<i64>,
    now: &Time,
) -> VsphereCloudConfigStatus {
    let mut after = VsphereCloudConfigStatus { observed_generation: generation, ..before.clone() };
    let (answer, reason, message) = match state {
        VcenterState::Untried => (Answer::Unknown, "Connecting", "not tried yet".to_owned()),
        VcenterState::Verified { version, .. } => {
            let message = format!("vCenter {version} answers, and the credentials are right");
            (Answer::True, "Verified", message)
        }
        VcenterState::Failed { reason, message, .. } => {
            (Answer::False, reason.as_str(), message.clone())
        }
    };
    after.config = match state {
        VcenterState::Untried => before.config,
        VcenterState::Verified { .. } => Some(Verdict::Verified),
        VcenterState::Failed { .. } => Some(Verdict::Failed),
    };
    after.message = Some(message.clone());
    if let VcenterState::Verified { version, api_version, build, instance_uuid, product } = state {
        after.about = Some(About {
            product: Some(product.clone()),
            version: Some(version.clone()),
            build: Some(build.clone()),
            api_version: Some(api_version.clone()),
            instance_uuid: Some(instance_uuid.clone()),
        });
    }
    condition::set(
        &mut after.conditions,
        condition::READY,
        answer,
        reason,
        message,
        generation,
        now,
    );
    after
}
