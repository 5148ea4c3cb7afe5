//! VDOConfigs in the operator's namespace that VDO does not follow: the status of each reports that and the
//! reason.

use api::{
    condition::{self, Answer},
    finding::{Finding, Subject, codes},
};
use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::{
    Api, Client,
    api::{Patch, PatchParams},
};
use plan::{facts::Rival, names};
use serde_json::json;

use super::written::is_same;
use crate::followed::{AWAITS_CONFIRMATION, NOT_FOLLOWED};

/// Writes each status that is not up to date. `followed` is the VDOConfig that VDO follows instead. If there
/// is none, each of the others waits for a confirmation. A VDOConfig that cannot be parsed, or whose status
/// the API server refuses, stops nothing.
pub async fn report(
    client: &Client,
    rivals: &[Rival],
    followed: Option<&str>,
    statuses: &mut super::Statuses,
) -> Result<(), kube::Error> {
    let now = Timestamp::now();
    let written = &mut statuses.rivals;
    written.retain(|object| rivals.iter().any(|rival| rival.uid == object));
    for rival in rivals {
        let Some(observed) = &rival.status else { continue };
        let before = written.complete(&rival.uid, observed);
        let after = status(rival, &before, followed, now);
        if is_same(&before, &after) {
            continue;
        }
        let configs = Api::<api::VDOConfig>::namespaced(client.clone(), &rival.namespace);
        let body =
            json!({"apiVersion": "vdo.vmware.com/v1alpha1", "kind": "VDOConfig", "status": after});
        let parameters = PatchParams::apply(names::FIELD_MANAGER).force();
        let stored = configs.patch_status(&rival.name, &parameters, &Patch::Apply(body)).await;
        if let Some(stored) = super::unless_refused(stored, &rival.namespace, &rival.name)? {
            written.note(&rival.uid, observed, stored.status.unwrap_or_default(), after);
        }
    }
    Ok(())
}

/// The finding about a VDOConfig that waits for a confirmation.
pub fn unconfirmed(rival: &Rival) -> Finding {
    let Rival { namespace, name, .. } = rival;
    codes::UNCONFIRMED_CONFIG
        .found()
        .with("namespace", namespace)
        .with("name", name)
        .about(Subject::kubernetes("VDOConfig", Some(namespace), name))
        .build()
}

fn status(
    rival: &Rival,
    before: &api::VDOConfigStatus,
    followed: Option<&str>,
    now: Timestamp,
) -> api::VDOConfigStatus {
    let namespace = &rival.namespace;
    let kept = [condition::READY, condition::FOLLOWED].into_iter();
    let kept = kept.filter_map(|kind| condition::get(&before.conditions, kind).cloned());
    let mut after = api::VDOConfigStatus {
        observed_generation: rival.generation,
        conditions: kept.collect(),
        ..api::VDOConfigStatus::default()
    };
    let (reason, message) = if let Some(followed) = followed {
        let message = format!(
            "a cluster has one VDOConfig: VDO follows {namespace}/{followed}; this one changes nothing"
        );
        (NOT_FOLLOWED, message)
    } else {
        let finding = unconfirmed(rival);
        let message = format!("{}: {}", finding.code, finding.title);
        after.findings.push(finding);
        health::date(&mut after.findings, &before.findings, now);
        (AWAITS_CONFIRMATION, message)
    };
    let (generation, now) = (rival.generation, Time(now));
    for kind in [condition::READY, condition::FOLLOWED] {
        let (conditions, message) = (&mut after.conditions, message.clone());
        condition::set(conditions, kind, Answer::False, reason, message, generation, &now);
    }
    after
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{fake_api::answering, report::Statuses};

    #[tokio::test]
    async fn a_status_is_written_once_even_if_an_older_crd_drops_its_fields() {
        let stored = json!({
            "apiVersion": "vdo.vmware.com/v1alpha1", "kind": "VDOConfig",
            "metadata": {"name": "other", "namespace": "vdo"},
            "spec": {"storageProvider": {"vsphereCloudConfig": "vc"}},
        });
        let (client, api_server) = answering(200, &stored).await;
        let rival = Rival {
            namespace: "vdo".into(),
            name: "other".into(),
            uid: "1".into(),
            generation: Some(1),
            status: Some(api::VDOConfigStatus::default()),
        };
        let (rivals, mut statuses) = ([rival], Statuses::default());
        report(&client, &rivals, Some("first"), &mut statuses).await.unwrap();
        // From now on, every request fails.
        drop(api_server);
        report(&client, &rivals, Some("first"), &mut statuses).await.unwrap();
        report(&client, &rivals, Some("second"), &mut statuses).await.unwrap_err();
        let created_again = rivals.map(|rival| Rival { uid: "2".into(), ..rival });
        report(&client, &created_again, Some("first"), &mut statuses).await.unwrap_err();
    }
}
