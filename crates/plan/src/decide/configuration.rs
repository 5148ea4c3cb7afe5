//! The configuration: from the spec to all objects that VDO applies for one release of one driver.

use std::collections::BTreeSet;

use api::finding::{Finding, Subject, codes};
use catalog::{
    Driver, Release,
    manifest::{self, Object},
};
use serde_json::{Value, json};

use super::{
    credentials,
    desired::DesiredDriver,
    naming, overrides, profile, proxy, rendering,
    settings::{self, PasswordRendering},
    zones,
};
use crate::{
    apply_set,
    facts::{ClusterId, Facts},
    names,
    object_id::ObjectId,
    record::{Build, Origin, Record, record_name},
    written_names,
};

/// All objects that VDO applies for one release.
pub(super) struct RenderedDriver {
    pub(super) driver: Driver,
    /// The release that VDO rendered.
    pub(super) release: Release,
    /// The objects, each annotated with its own digest.
    pub(super) objects: Vec<Object>,
    /// The digest of all objects, with the users but without their passwords and without the login of the cluster's
    /// proxy: a new password is not a new configuration.
    pub(super) digest: String,
    pub(super) cluster_id: Option<ClusterId>,
    pub(super) origin: Origin,
    /// The user of the driver for each vCenter.
    pub(super) users: BTreeSet<String>,
}

impl RenderedDriver {
    /// Renders the configuration, or reports the error in the spec. The result contains the driver's Secrets
    /// and ConfigMaps only with [`PasswordRendering::Real`], so that VDO never writes unverified settings.
    pub(super) fn render(
        facts: &Facts,
        desired: &DesiredDriver<'_>,
        record: &Record,
        build: &Build,
        passwords: PasswordRendering,
    ) -> Result<Self, Box<Finding>> {
        let refused = |problem: String| Box::new(refusal(facts, desired, problem));
        let Build { implementation, version } = build;
        let release = facts
            .catalog
            .find(desired.driver, *implementation, version)
            .or_else(|| record.release(desired.driver, build))
            .ok_or_else(|| refused(format!("the catalog does not know {version} any more")))?;
        let mut profile = profile::from_facts(facts);
        if let Some(kept) = &record.names {
            naming::settle(&mut profile, desired.driver, kept);
        }
        let cluster_id = (desired.driver == Driver::Csi).then(|| cluster_id(facts, record));
        let unreadable = |why: String| Box::new(unreadable_cluster_id(facts, &why));
        let cluster_id = cluster_id.transpose().map_err(unreadable)?;
        let render =
            |passwords| settings::render(facts, desired, &profile, cluster_id.as_ref(), passwords);
        let mut real = render(passwords).map_err(|error| refused(error.to_string()))?;
        let mut masked =
            render(PasswordRendering::Masked).map_err(|error| refused(error.to_string()))?;
        let mut named =
            render(PasswordRendering::Named).map_err(|error| refused(error.to_string()))?;
        let reads_once = credentials::reads_once(desired.driver, *implementation);
        let restarts =
            if reads_once { PasswordRendering::Named } else { PasswordRendering::Hidden };
        let restarts = render(restarts).map_err(|error| refused(error.to_string()))?;
        let namespace = match desired.driver {
            Driver::Cpi => profile.cpi.namespace.clone(),
            Driver::Csi => profile.csi.namespace.clone(),
        };
        real.extend(settings::pull_secrets(facts, &namespace, passwords));
        masked.extend(settings::pull_secrets(facts, &namespace, PasswordRendering::Masked));
        named.extend(settings::pull_secrets(facts, &namespace, PasswordRendering::Named));
        let restarts = digest(&Value::Array(restarts));
        profile.config_digest = Some(restarts.clone());
        let rendered =
            manifest::render(release, &profile).map_err(|error| refused(error.to_string()))?;
        let mut rendered = rendered.objects;
        rendered.retain(|object| {
            !written_names::is_granted_by_installation(object.kind(), object.name())
        });
        let (overrides, proxy) = (facts.config.spec.overrides.as_ref(), proxy::applicable(facts));
        overrides::apply(&mut rendered, overrides, proxy.as_ref(), desired.driver)
            .map_err(|problem| Box::new(overrides::refusal(facts, desired, problem)))?;
        let rendered = match &record.names {
            Some(kept) => naming::rename(rendered, kept),
            None => rendered,
        };
        let set = apply_set::id(record_name(desired.driver), &facts.operator_namespace);
        let extras = super::storage_classes::render(facts, desired).into_iter().map(Object);
        let mut rendered: Vec<Object> = rendered.into_iter().chain(extras).collect();
        if desired.driver == Driver::Csi {
            zones::mark(&mut rendered, &zones::desired(facts, desired.driver));
        }
        if let Some(taken) = credentials_among(facts, &real) {
            return Err(refused(format!(
                "Secret {taken} holds the credentials of a VsphereCloudConfig and would be \
                 overwritten; keep them under another name"
            )));
        }
        let settings = real
            .into_iter()
            .zip(&masked)
            .map(|(value, masked)| stamped(value, &digest(masked), &set));
        let settings: Vec<Object> = settings.collect();
        let named: Vec<String> = named.iter().map(digest).collect();
        let (mut objects, digest) = digested(facts, rendered, &named, &set);
        objects.extend(settings.into_iter().filter(|_| passwords == PasswordRendering::Real));
        credentials::mark(facts, desired.driver, *implementation, &mut objects);
        let origin = rendering::origin(facts, desired, restarts);
        let users = users(facts, desired);
        let release = release.clone();
        Ok(Self { driver: desired.driver, release, objects, digest, cluster_id, origin, users })
    }

    /// Whether the Secret of the driver would change. A Secret that does not belong to VDO yet, as that of a
    /// driver not managed by VDO, counts as changed unless VDO knows that it names the same users. VDO only
    /// restores a Secret that it rolled out before and that is gone.
    pub(super) fn changes_settings(&self, facts: &Facts, record: &Record) -> bool {
        let foreign = record.configuration.is_none() && record.users != self.users;
        let present = facts.driver_secrets.get(&self.driver);
        self.objects.iter().filter(|object| object.kind() == "Secret").any(|object| {
            if present.is_some_and(|present| credentials::is_same(present, object)) {
                return false;
            }
            let digest = object.0["metadata"]["annotations"][names::DIGEST].as_str();
            let seen = facts.objects.get(&ObjectId::from_object(object));
            seen.map_or(foreign, |seen| seen.digest.as_deref() != digest)
        })
    }

    pub(super) fn identities(&self) -> impl Iterator<Item = ObjectId> + '_ {
        self.objects.iter().map(ObjectId::from_object)
    }
}

/// The rendered objects, each with its digest, and the digest of all objects and settings.
fn digested(
    facts: &Facts,
    rendered: Vec<Object>,
    settings: &[String],
    set: &str,
) -> (Vec<Object>, String) {
    let mut digests = Vec::new();
    let one = |object: Object| {
        let digest = digest(&proxy::for_digest(facts, &object));
        let object = stamped(object.0, &digest, set);
        digests.push(json!(digest));
        object
    };
    let objects = rendered.into_iter().map(one).collect();
    digests.extend(settings.iter().map(|sum| json!(sum)));
    (objects, digest(&Value::Array(digests)))
}

/// A Secret with the admin's vCenter credentials that these settings would overwrite.
fn credentials_among(facts: &Facts, settings: &[Value]) -> Option<String> {
    let secrets = settings.iter().filter(|value| value["kind"] == "Secret");
    let mut places = secrets.map(|value| {
        let text = |key: &str| value["metadata"][key].as_str().unwrap_or_default();
        format!("{}/{}", text("namespace"), text("name"))
    });
    places.find(|place| facts.vcenters.values().any(|vcenter| vcenter.secret == *place))
}

fn users(facts: &Facts, desired: &DesiredDriver<'_>) -> BTreeSet<String> {
    let user = |name: &&str| {
        let credentials = facts.vcenters.get(*name)?.credentials.as_ref()?;
        Some(format!("{name} {}", credentials.username))
    };
    desired.vcenters.iter().filter_map(user).collect()
}

fn refusal(facts: &Facts, desired: &DesiredDriver<'_>, problem: String) -> Finding {
    let field = match desired.driver {
        Driver::Cpi => "spec.cloudProvider",
        Driver::Csi => "spec.storageProvider",
    };
    codes::DRIVER_CONFIG_REFUSED
        .found()
        .with("driver", desired.driver.to_string())
        .with("problem", problem)
        .with("field", field)
        .with("config", facts.config.metadata.name.as_deref().unwrap_or_default())
        .about(super::myself(facts))
        .build()
}

/// The record has no cluster id, and VDO cannot read the one in use.
pub(super) fn unreadable_cluster_id(facts: &Facts, why: &str) -> Finding {
    let (namespace, record) = (&facts.operator_namespace, record_name(Driver::Csi));
    codes::RECORD_DOUBTFUL
        .found()
        .with("driver", Driver::Csi.to_string())
        .with("reason", why)
        .with(
            "step",
            "vdoctl deploy   grants VDO the permission again, if a missing one is the reason",
        )
        .with(
            "otherwise",
            "Otherwise correct the object that the reason names; VDO continues automatically",
        )
        .about(Subject::kubernetes("ConfigMap", Some(namespace), record))
        .build()
}

/// The cluster id in CNS: the recorded one, else the one in use, else a new one that no other cluster can
/// have.
fn cluster_id(facts: &Facts, record: &Record) -> Result<ClusterId, String> {
    if let Some(id) = &record.cluster_id {
        let kept_by_driver = record.cluster_id_kept_by_driver;
        return Ok(ClusterId { id: id.clone(), kept_by_driver });
    }
    if let Some(in_use) = facts.cluster_id.as_ref().map_err(Clone::clone)? {
        return Ok(in_use.clone());
    }
    let reported = facts.config.status.as_ref().and_then(|status| status.cluster_id.clone());
    let id = reported.unwrap_or_else(|| format!("vdo-{}", facts.cluster.uid));
    Ok(ClusterId { id, kept_by_driver: false })
}

/// Writes the digest, the label of VDO and the ApplySet into the metadata of an object.
pub(super) fn stamped(mut value: Value, digest: &str, set: &str) -> Object {
    let metadata = &mut value["metadata"];
    metadata["labels"][names::MANAGED_BY_LABEL] = json!(names::MANAGED_BY);
    metadata["labels"][apply_set::PART_OF] = json!(set);
    metadata["annotations"][names::DIGEST] = json!(digest);
    Object(value)
}

pub(super) fn digest(value: &Value) -> String {
    let text = value.to_string();
    let digest = aws_lc_rs::digest::digest(&aws_lc_rs::digest::SHA256, text.as_bytes());
    digest.as_ref()[..16].iter().map(|byte| format!("{byte:02x}")).collect()
}
