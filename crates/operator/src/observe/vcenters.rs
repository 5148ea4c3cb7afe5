//! The VsphereCloudConfigs: those that VDO logs in for, their credentials, and the problems of the others.
//!
//! The credentials are Secrets in the operator's namespace. VDO also reads a Secret in `kube-system`, where the Go
//! VDO kept them, if it has permission to read that Secret. The author of a VsphereCloudConfig decides where VDO
//! sends the credentials, so VDO uses only VsphereCloudConfigs in the operator's namespace.

use std::collections::BTreeMap;

use api::{VsphereCloudConfig, vsphere_cloud_config::KeyRef};
use driver_config::credentials::{Credential, Credentials};
use health::facts::Known;
use jiff::Timestamp;
use k8s_openapi::{
    api::core::v1::{ConfigMap, Secret},
    apimachinery::pkg::apis::meta::v1::ObjectMeta,
};
use kube::{Api, Client, ResourceExt};
use plan::{
    facts::{VcenterConnection, VcenterState},
    names,
};
use runtime::error_chain::error_chain;
use vsphere::BiosUuid;

use crate::{
    cluster::{Stores, access, nodes::CachedNode},
    vcenters::{
        ConnectionInputs, Vcenters,
        refusal::{self, Refused},
    },
};

/// The reason of a vCenter whose Secret does not exist.
pub(crate) const CREDENTIALS_MISSING: &str = "CredentialsMissing";
/// The reason of a vCenter whose Secret has no usable credentials.
pub(crate) const CREDENTIALS_UNUSABLE: &str = "CredentialsUnusable";

/// The reason why VDO does not even try to connect to a vCenter.
pub(crate) struct Problem {
    reason: &'static str,
    message: String,
    /// Whether the problem can pass without a change to any watched object.
    may_pass: bool,
    /// Whether a session with the credentials that VDO read before continues.
    keeps_session: bool,
    /// Whether the problem is likely to pass soon.
    transient: bool,
}

impl Problem {
    fn lasting(reason: &'static str, message: String) -> Self {
        Self { reason, message, may_pass: false, keeps_session: false, transient: false }
    }

    /// Whether VDO must check again although no watch reports a change.
    pub(super) fn may_pass(&self) -> bool {
        self.may_pass
    }

    fn state(&self) -> VcenterState {
        VcenterState::Failed {
            reason: self.reason.into(),
            message: self.message.clone(),
            transient: self.transient,
        }
    }
}

/// The connections to the vCenters that the VsphereCloudConfigs name, and the problems of those that VDO
/// cannot even try to connect to. A problem of one does not stop the others.
pub(crate) async fn connection_inputs(
    client: &Client,
    stores: &Stores,
    vcenters: &Vcenters,
) -> (BTreeMap<String, ConnectionInputs>, BTreeMap<String, Problem>) {
    let mut inputs = BTreeMap::new();
    let mut problems = BTreeMap::new();
    for config in stores.vcenter_configs() {
        let name = key(&config);
        match inputs_of(client, stores, vcenters, &config).await {
            Ok(one) => {
                inputs.insert(name, one);
            }
            Err(problem) => {
                // VDO cannot read the credentials now but has read them before: the session continues with
                // those.
                let before = vcenters.inputs(&name).filter(|before| before.spec == config.spec);
                if let Some(before) = before.filter(|_| problem.keeps_session) {
                    inputs.insert(name.clone(), before.clone());
                }
                problems.insert(name, problem);
            }
        }
    }
    (inputs, problems)
}

fn key(config: &VsphereCloudConfig) -> String {
    format!("{}/{}", config.namespace().unwrap_or_default(), config.name_any())
}

async fn inputs_of(
    client: &Client,
    stores: &Stores,
    vcenters: &Vcenters,
    config: &VsphereCloudConfig,
) -> Result<ConnectionInputs, Problem> {
    let name = config.spec.credentials.0.as_str();
    let found = match stores.credentials(name) {
        Known::Known(Some(metadata)) => Some(metadata),
        Known::Known(None) => return Err(missing(config)),
        // An account that cannot list Secrets can have permission to read this one.
        Known::Unknown { .. } => None,
    };
    let revision = found.as_ref().and_then(revision);
    let ca_bundle = certificates(client, config)
        .await
        .map_err(|error| unread("spec.caBundle", &error))?
        .map_err(|message| Problem::lasting("CertificatesMissing", message))?;
    let before = vcenters.inputs(&key(config));
    let unchanged =
        |b: &&ConnectionInputs| Some(&b.revision) == revision.as_ref() && b.spec == config.spec;
    if let Some(before) = before.filter(unchanged) {
        return Ok(ConnectionInputs { ca_bundle, ..before.clone() });
    }
    let place = found.and_then(|metadata| metadata.namespace);
    let secret =
        read(client, config, place).await.map_err(|error| unread("spec.credentials", &error))?;
    let secret = secret.ok_or_else(|| missing(config))?;
    // The Secret may be newer than the one in the store.
    let read_at = self::revision(&secret.metadata).unwrap_or_default();
    let data = secret.data.unwrap_or_default().into_iter();
    let data = data.map(|(key, value)| (key, value.0)).collect();
    let read = Credentials::read(&data);
    let read = read.and_then(|all| all.for_server(&config.spec.vc_ip.0).cloned());
    let credential =
        read.map_err(|error| Problem::lasting(CREDENTIALS_UNUSABLE, error.to_string()))?;
    let version = version(before, &credential, &read_at);
    let revision = revision.unwrap_or(read_at);
    let refused = config.status.as_ref().and_then(|status| status.refused.as_ref());
    let refused =
        refused.filter(|was| was.secret == revision && was.address == config.spec.vc_ip.0);
    let refused = refused.and_then(|was| {
        let reason = refusal::named(&was.reason)?;
        // Earlier releases recorded no time.
        let at = was.attempted_at.as_ref().map_or_else(Timestamp::now, |at| at.0);
        Some(Refused { reason, at })
    });
    Ok(ConnectionInputs {
        spec: config.spec.clone(),
        ca_bundle,
        credential,
        version,
        revision,
        refused,
    })
}

/// Reads the Secret with the credentials of a vCenter, from the namespace in which a watch has shown it. Without a
/// watch, VDO looks in the operator's namespace first, then in `kube-system`.
async fn read(
    client: &Client,
    config: &VsphereCloudConfig,
    place: Option<String>,
) -> Result<Option<Secret>, kube::Error> {
    let name = config.spec.credentials.0.as_str();
    if let Some(place) = place {
        return Api::<Secret>::namespaced(client.clone(), &place).get_opt(name).await;
    }
    let own = config.namespace().unwrap_or_default();
    let secret = Api::<Secret>::namespaced(client.clone(), &own).get_opt(name).await?;
    if secret.is_some() || !access::can_read_secret(client, names::KUBE_SYSTEM, name).await? {
        return Ok(secret);
    }
    Api::<Secret>::namespaced(client.clone(), names::KUBE_SYSTEM).get_opt(name).await
}

fn missing(config: &VsphereCloudConfig) -> Problem {
    let (name, namespace) = (&config.spec.credentials.0, config.namespace().unwrap_or_default());
    let message = format!(
        "the Secret {name} does not exist in namespace {namespace}: create it with the keys username and password. If \
         it is in namespace {}, run vdoctl deploy: it lets VDO read the Secret there",
        names::KUBE_SYSTEM
    );
    // No watch reports a Secret in `kube-system` that VDO has no permission to read.
    Problem { may_pass: true, ..Problem::lasting(CREDENTIALS_MISSING, message) }
}

/// The version of a Secret.
fn revision(metadata: &ObjectMeta) -> Option<String> {
    Some(format!("{}/{}", metadata.uid.as_deref()?, metadata.resource_version.as_deref()?))
}

/// VDO could not read the object that a field names: the API server was unavailable, or VDO lacks the
/// permission.
fn unread(field: &str, error: &kube::Error) -> Problem {
    let message = format!("what {field} names cannot be read: {}", error_chain(error));
    let transient = !matches!(error, kube::Error::Api(status) if status.code < 500);
    Problem { reason: "Unreadable", message, may_pass: true, keeps_session: true, transient }
}

/// Stands for a credential in digests that many users have permission to read. It is the revision of the
/// Secret that contained the credential. Nothing derives from the password: VDO could not publish even a slow
/// hash of it, since passwords can be guessed. A later revision with the same credential changes nothing: for
/// example, after an annotation or the rotation of another vCenter's login.
fn version(before: Option<&ConnectionInputs>, credential: &Credential, revision: &str) -> String {
    let same = before.filter(|before| before.credential == *credential);
    same.map_or(revision, |before| &before.version).to_owned()
}

/// The certificate authorities that a VsphereCloudConfig names, inline or in another object.
async fn certificates(
    client: &Client,
    config: &VsphereCloudConfig,
) -> Result<Result<Option<String>, String>, kube::Error> {
    let Some(bundle) = &config.spec.ca_bundle else { return Ok(Ok(None)) };
    let namespace = config.namespace().unwrap_or_default();
    let missing = |kind: &str, of: &KeyRef| {
        format!("spec.caBundle: {kind} {namespace}/{} has no key {}", of.name.0, of.key())
    };
    if let Some(of) = &bundle.config_map {
        let maps = Api::<ConfigMap>::namespaced(client.clone(), &namespace);
        let map = maps.get_opt(&of.name.0).await?;
        let text = map.and_then(|map| map.data?.remove(of.key()));
        return Ok(text.map(Some).ok_or_else(|| missing("ConfigMap", of)));
    }
    if let Some(of) = &bundle.secret {
        let secrets = Api::<Secret>::namespaced(client.clone(), &namespace);
        let secret = secrets.get_opt(&of.name.0).await?;
        let text = secret.and_then(|secret| secret.data?.remove(of.key()));
        let text = text.and_then(|bytes| String::from_utf8(bytes.0).ok());
        return Ok(text.map(Some).ok_or_else(|| missing("Secret", of)));
    }
    Ok(Ok(bundle.inline.clone()))
}

/// All vCenters, and the facts about each.
pub(crate) fn connections(
    stores: &Stores,
    vcenters: &Vcenters,
    problems: &BTreeMap<String, Problem>,
) -> BTreeMap<(String, String), VcenterConnection> {
    let uuids = |nodes: &BTreeMap<String, CachedNode>| {
        nodes
            .values()
            .filter_map(|node| node.system_uuid.parse::<BiosUuid>().ok())
            .collect::<Vec<_>>()
    };
    let uuids = stores.nodes(uuids);
    let all = stores.vcenter_configs().into_iter();
    all.map(|vcc| {
        let known = vcenters.known(&key(&vcc));
        let refused = vcenters.refused(&key(&vcc));
        let inputs = vcenters.inputs(&key(&vcc));
        let ca_bundle = inputs.and_then(|inputs| inputs.ca_bundle.clone());
        let proven = known.as_ref().and_then(|known| known.proven.clone());
        let since = known.as_ref().map_or_else(Timestamp::now, |known| known.since);
        let audit = known.as_ref().and_then(|known| known.audit.as_ref());
        let privileges = audit.and_then(|audit| audit.missing_privileges.clone());
        let accepted = known.as_ref().is_some_and(|known| known.accepted);
        let state = known.map(|known| known.state);
        let state = state.or_else(|| problems.get(&key(&vcc)).map(Problem::state));
        let (credentials, credentials_version) = proven.unzip();
        let name = vcc.spec.credentials.0.as_str();
        let found = stores.credentials(name).get().cloned().flatten();
        let place = found.and_then(|metadata| metadata.namespace).or_else(|| vcc.namespace());
        let secret = format!("{}/{name}", place.unwrap_or_default());
        let vcenter = VcenterConnection {
            spec: vcc.spec.clone(),
            secret,
            state: state.unwrap_or(VcenterState::Untried),
            credentials,
            credentials_version: credentials_version.unwrap_or_default(),
            accepted,
            ca_bundle,
            oldest_host: vcenters.oldest_host(&key(&vcc), &uuids),
            since,
            privileges,
            refused,
            generation: vcc.metadata.generation,
            status: vcc.status.clone(),
        };
        ((vcc.namespace().unwrap_or_default(), vcc.name_any()), vcenter)
    })
    .collect()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    fn credential(user: &str, password: &str) -> Credential {
        let data = [("username", user), ("password", password)];
        let data: BTreeMap<String, Vec<u8>> =
            data.iter().map(|(key, text)| ((*key).to_owned(), text.as_bytes().to_vec())).collect();
        Credentials::read(&data).unwrap().for_server("vc.example.com").unwrap().clone()
    }

    fn inputs(password: &str, version: &str) -> ConnectionInputs {
        let spec = serde_json::json!({"vcIp": "vc.example.com", "credentials": "s"});
        ConnectionInputs {
            spec: serde_json::from_value(spec).unwrap(),
            ca_bundle: None,
            credential: credential("user", password),
            version: version.into(),
            revision: String::new(),
            refused: None,
        }
    }

    #[test]
    fn the_version_of_a_credential_reveals_nothing_about_the_password() {
        let passwords = ["a", "b", "correct horse", "Tr0ub4dor&3", "user", "uid/7"];
        for password in passwords {
            assert_eq!(version(None, &credential("user", password), "uid/7"), "uid/7");
            for another in passwords {
                // A rotation creates another revision of the Secret. A new revision alone is not a rotation.
                let before = inputs(password, "uid/7");
                let after = version(Some(&before), &credential("user", another), "uid/9");
                assert_eq!(after, if password == another { "uid/7" } else { "uid/9" });
            }
        }
    }
}
