//! The status of each VsphereCloudConfig.

use std::collections::BTreeMap;

use api::{
    VsphereCloudConfig, VsphereCloudConfigStatus,
    condition::{self, Answer},
    vsphere_cloud_config::{About, MissingPrivileges, Verdict},
};
use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::{
    Api, Client,
    api::{Patch, PatchParams},
};
use plan::{
    facts::{VcenterConnection, VcenterState},
    names,
};
use serde_json::json;

use super::written::is_same;

/// Failures in which VDO does not reach the vCenter: no answer, or an answer it cannot trust.
const NOT_REACHED: [&str; 17] = [
    "BadAddress",
    "Certificate",
    "CertificateExpired",
    "CertificateName",
    "CertificateNotYetValid",
    "CertificateUntrusted",
    "Dropped",
    "Esxi",
    "NotTls",
    "NotVcenter",
    "OtherVcenter",
    "Proxy",
    "Thumbprint",
    "Timeout",
    "Unavailable",
    "Unreachable",
    "Unresolvable",
];
/// Failures that the vCenter itself reports, so VDO reaches it.
const REPORTED_BY_VCENTER: [&str; 6] =
    ["Fault", "NoSuchDatacenter", "Rest", "TooLarge", "TooOld", "Unsupported"];

/// Writes every status that changed. If the API server refuses one, the others are still written.
pub async fn report(
    client: &Client,
    vcenters: &BTreeMap<(String, String), VcenterConnection>,
    statuses: &mut super::Statuses,
) -> Result<(), kube::Error> {
    let now = Time(Timestamp::now());
    let written = &mut statuses.vcenters;
    let key = |namespace: &str, name: &str| format!("{namespace}/{name}");
    written
        .retain(|object| vcenters.keys().any(|(namespace, name)| key(namespace, name) == object));
    for ((namespace, name), vcenter) in vcenters {
        let configs = Api::<VsphereCloudConfig>::namespaced(client.clone(), namespace);
        let (object, observed) = (key(namespace, name), vcenter.status.clone().unwrap_or_default());
        let before = written.complete(&object, &observed);
        let mut after = status(&before, vcenter, &now);
        after.privileges = vcenter.privileges.clone().or(after.privileges);
        if vcenter.state != VcenterState::Untried {
            after.refused = vcenter.refused.clone();
        }
        if is_same(&before, &after) {
            continue;
        }
        let body = json!({
            "apiVersion": "vdo.vmware.com/v1alpha1",
            "kind": "VsphereCloudConfig",
            "status": after,
        });
        let parameters = PatchParams::apply(names::FIELD_MANAGER).force();
        let stored = configs.patch_status(name, &parameters, &Patch::Apply(body)).await;
        if let Some(stored) = super::unless_refused(stored, namespace, name)? {
            written.note(&object, &observed, stored.status.unwrap_or_default(), after);
        }
    }
    Ok(())
}

fn status(
    before: &VsphereCloudConfigStatus,
    vcenter: &VcenterConnection,
    now: &Time,
) -> VsphereCloudConfigStatus {
    let (state, generation) = (&vcenter.state, vcenter.generation);
    let mut after = VsphereCloudConfigStatus { observed_generation: generation, ..before.clone() };
    let ready = ready(state);
    after.config = match state {
        VcenterState::Untried => before.config,
        VcenterState::Verified { .. } => Some(Verdict::Verified),
        VcenterState::Failed { .. } => Some(Verdict::Failed),
    };
    after.message = Some(ready.message.clone());
    if let VcenterState::Verified { version, api_version, build, instance_uuid, product } = state {
        after.about = Some(About {
            product: Some(product.clone()),
            version: Some(version.clone()),
            build: Some(build.clone()),
            api_version: Some(api_version.clone()),
            instance_uuid: Some(instance_uuid.clone()),
        });
    }
    for (kind, Judgement { answer, reason, message }) in [
        (condition::READY, ready),
        (condition::REACHABLE, reachable(vcenter)),
        (condition::AUTHENTICATED, authenticated(vcenter)),
        (condition::PRIVILEGED, privileged(vcenter)),
    ] {
        condition::set(&mut after.conditions, kind, answer, &reason, message, generation, now);
    }
    after
}

/// The answer of a condition, with its reason and message.
struct Judgement {
    answer: Answer,
    reason: String,
    message: String,
}

impl Judgement {
    fn new(answer: Answer, reason: &str, message: impl Into<String>) -> Self {
        Self { answer, reason: reason.to_owned(), message: message.into() }
    }
}

fn ready(state: &VcenterState) -> Judgement {
    match state {
        VcenterState::Untried => Judgement::new(Answer::Unknown, "Connecting", "not tried yet"),
        VcenterState::Verified { version, .. } => {
            let message = format!("vCenter {version} answers, and the credentials are right");
            Judgement::new(Answer::True, "Verified", message)
        }
        VcenterState::Failed { reason, message, .. } => {
            Judgement::new(Answer::False, reason, message.as_str())
        }
    }
}

/// Whether the last connection reached the vCenter.
fn reachable(vcenter: &VcenterConnection) -> Judgement {
    let answers = || Judgement::new(Answer::True, "Answers", "vCenter answers");
    match &vcenter.state {
        VcenterState::Untried => {
            Judgement::new(Answer::Unknown, "Connecting", "VDO has not connected to vCenter yet")
        }
        VcenterState::Verified { .. } => answers(),
        // Without a refused login on record, VDO may have sent nothing.
        VcenterState::Failed { reason, .. }
            if reason == "LoginRefused" && vcenter.refused.is_some() =>
        {
            answers()
        }
        VcenterState::Failed { reason, .. } if REPORTED_BY_VCENTER.contains(&reason.as_str()) => {
            answers()
        }
        VcenterState::Failed { reason, message, .. } if NOT_REACHED.contains(&reason.as_str()) => {
            Judgement::new(Answer::False, reason, message.as_str())
        }
        VcenterState::Failed { reason, message, .. } => {
            let message = format!("VDO cannot tell whether vCenter answers: {message}");
            Judgement::new(Answer::Unknown, reason, message)
        }
    }
}

/// Whether vCenter accepted the credentials that are in the Secret now.
fn authenticated(vcenter: &VcenterConnection) -> Judgement {
    match &vcenter.state {
        _ if is_authenticated(vcenter) => Judgement::new(
            Answer::True,
            "LoginAccepted",
            "vCenter accepted the credentials in the Secret",
        ),
        VcenterState::Failed { reason, message, .. }
            if ["LoginRefused", "CredentialsMissing", "CredentialsUnusable"]
                .contains(&reason.as_str()) =>
        {
            Judgement::new(Answer::False, reason, message.as_str())
        }
        VcenterState::Failed { reason, message, .. } => {
            Judgement::new(Answer::Unknown, reason, format!("VDO could not log in: {message}"))
        }
        VcenterState::Untried | VcenterState::Verified { .. } => {
            Judgement::new(Answer::Unknown, "Connecting", "VDO has not logged in yet")
        }
    }
}

fn is_authenticated(vcenter: &VcenterConnection) -> bool {
    vcenter.accepted || matches!(vcenter.state, VcenterState::Verified { .. })
}

/// Whether the user has the privileges that the drivers need.
fn privileged(vcenter: &VcenterConnection) -> Judgement {
    let missing = match &vcenter.privileges {
        _ if !is_authenticated(vcenter) => {
            let message = "VDO checks the privileges once vCenter accepts the login";
            return Judgement::new(Answer::Unknown, "NotAuthenticated", message);
        }
        None => {
            let message = "vCenter has not reported the privileges of the user yet";
            return Judgement::new(Answer::Unknown, "NotChecked", message);
        }
        Some(privileges) => &privileges.missing,
    };
    let Some(MissingPrivileges { object, privileges }) = missing.first() else {
        let message = "the user has every privilege that the drivers need";
        return Judgement::new(Answer::True, "Sufficient", message);
    };
    let more = match missing.len() - 1 {
        0 => String::new(),
        more => format!(", and privileges on {more} more objects; see status.privileges"),
    };
    let message = format!("the user lacks {} on {object}{more}", privileges.join(", "));
    Judgement::new(Answer::False, "PrivilegesMissing", message)
}

#[cfg(test)]
mod tests {
    use api::vsphere_cloud_config::{Privileges, RefusedLogin};

    use super::*;

    fn vcenter(state: VcenterState) -> VcenterConnection {
        let accepted = matches!(state, VcenterState::Verified { .. });
        VcenterConnection {
            spec: api::VsphereCloudConfigSpec::default(),
            secret: String::new(),
            state,
            credentials: None,
            credentials_version: String::new(),
            accepted,
            ca_bundle: None,
            oldest_host: None,
            since: Timestamp::UNIX_EPOCH,
            privileges: None,
            refused: None,
            generation: Some(3),
            status: None,
        }
    }

    fn verified() -> VcenterState {
        VcenterState::Verified {
            version: "8.0.3".into(),
            api_version: "8.0.3.0".into(),
            build: "24022515".into(),
            instance_uuid: "u".into(),
            product: "VMware vCenter Server".into(),
        }
    }

    fn failed(reason: &str) -> VcenterState {
        VcenterState::Failed { reason: reason.into(), message: "because".into(), transient: false }
    }

    /// Ready, Reachable, Authenticated, Privileged: the first letter of each answer.
    fn answers(vcenter: &VcenterConnection) -> String {
        let now = Time(Timestamp::UNIX_EPOCH);
        let status = status(&VsphereCloudConfigStatus::default(), vcenter, &now);
        assert_eq!(status.conditions.len(), 4);
        ["Ready", "Reachable", "Authenticated", "Privileged"]
            .map(|kind| {
                let condition = condition::get(&status.conditions, kind).unwrap();
                assert_eq!(condition.observed_generation, Some(3));
                assert!(!condition.reason.is_empty() && !condition.message.is_empty());
                condition.status[..1].to_owned()
            })
            .concat()
    }

    #[test]
    fn conditions_follow_the_state_of_the_connection() {
        for (state, expected) in [
            (VcenterState::Untried, "UUUU"),
            (verified(), "TTTU"),
            (failed("Unreachable"), "FFUU"),
            (failed("CertificateUntrusted"), "FFUU"),
            (failed("NoSuchDatacenter"), "FTUU"),
            (failed("CredentialsMissing"), "FUFU"),
            (failed("CertificatesMissing"), "FUUU"),
            // The user name is empty, for example: VDO sent nothing.
            (failed("LoginRefused"), "FUFU"),
        ] {
            assert_eq!(answers(&vcenter(state.clone())), expected, "{state:?}");
        }
    }

    #[test]
    fn a_refused_login_shows_that_vcenter_answers() {
        let refused = Some(RefusedLogin::default());
        let refused = VcenterConnection { refused, ..vcenter(failed("LoginRefused")) };
        assert_eq!(answers(&refused), "FTFU");
        let unreachable = VcenterConnection { state: failed("Timeout"), ..refused };
        assert_eq!(answers(&unreachable), "FFUU");
    }

    #[test]
    fn accepted_credentials_stay_accepted_while_vcenter_is_unreachable() {
        let lost = VcenterConnection { accepted: true, ..vcenter(failed("Timeout")) };
        assert_eq!(answers(&lost), "FFTU");
    }

    #[test]
    fn missing_privileges_are_named() {
        let missing = |object: &str| MissingPrivileges {
            object: object.into(),
            privileges: vec!["Datastore.FileManagement".into(), "System.Read".into()],
        };
        let with = |missing| VcenterConnection {
            privileges: Some(Privileges { checked_at: None, missing }),
            ..vcenter(verified())
        };
        assert_eq!(answers(&with(Vec::new())), "TTTT");
        let lacking = with(vec![missing("/DC0/datastore/a"), missing("/DC0/datastore/b")]);
        assert_eq!(answers(&lacking), "TTTF");
        assert_eq!(
            privileged(&lacking).message,
            "the user lacks Datastore.FileManagement, System.Read on /DC0/datastore/a, \
             and privileges on 1 more objects; see status.privileges"
        );
    }
}
