//! Executes the next step of a plan. The process can be killed at any instant: applying an object twice has
//! the same result as once, and the record shows each step that has begun.

mod field_ownership;
pub(crate) mod nodes;
mod renew_files;
mod restart;
mod reverted;
mod shared;
pub(crate) mod terminating;

use std::collections::BTreeMap;

use api::vdo_config::Mode;
use catalog::{Driver, manifest::Object};
use k8s_openapi::{
    api::{core::v1::ConfigMap, storage::v1::VolumeAttachment},
    apimachinery::pkg::apis::meta::v1::ObjectMeta,
};
use kube::{
    Api, Client,
    api::{DeleteParams, DynamicObject, ListParams, Patch, PatchParams, Preconditions},
};
use plan::{
    DriverPlan, Finalizer, Next, ObjectId, Plan, apply_set,
    facts::{AppliedObject, Facts, RefusalCause},
    is_kept, names,
    record::{Record, record_name},
};
use serde_json::json;
use snafu::{ResultExt, Snafu};
use tokio::time::Instant;

pub use self::reverted::{FieldChange, Reverted};
use crate::{
    applied::Applied,
    cluster::is_labelled,
    kinds::{self, KINDS, UNWATCHED},
};

/// The reason why a step failed. The next round retries it.
#[derive(Debug, Snafu)]
#[allow(missing_docs, reason = "a field is named as in the text it stands in")]
pub enum Error {
    #[snafu(display(
        "{object} is of a kind VDO does not manage: the catalog is newer than this operator"
    ))]
    UnknownKind { object: ObjectId },
    #[snafu(display("the API server refused {object}"))]
    Apply {
        object: ObjectId,
        #[snafu(source(from(kube::Error, Box::new)))]
        source: Box<kube::Error>,
    },
    #[snafu(display("{object} needs CustomResourceDefinition {definition}, which does not exist"))]
    Undefined { object: ObjectId, definition: String },
    #[snafu(display("{object} exists and is not managed by VDO: {remedy}"))]
    Theirs { object: ObjectId, remedy: &'static str },
    #[snafu(display(
        "{object} was applied {times} times in a row and never stays as applied: a webhook or an \
         admission policy of this cluster changes it on the way, and has to leave alone what is labelled \
         as VDO's"
    ))]
    NeverAsApplied { object: ObjectId, times: u32 },
    #[snafu(display("volume {volume} was attached to {node} just now, so nothing is removed"))]
    Attached { volume: String, node: String },
    #[snafu(display("the API server did not list the attached volumes, so nothing is removed"))]
    Attachments {
        #[snafu(source(from(kube::Error, Box::new)))]
        source: Box<kube::Error>,
    },
    #[snafu(display("{object} cannot be restarted: VDO has never applied it"))]
    NeverApplied { object: ObjectId },
    #[snafu(display(
        "{object} does not restart with the new password: a webhook or an admission policy of this \
         cluster removes the annotation {} from its pod template, and must not change objects that are \
         labelled as VDO's",
        names::CREDENTIALS_CHANGED
    ))]
    NotRestarted { object: ObjectId },
    #[snafu(display(
        "the files of the pods of {object} cannot be renewed, so their kubelets renew them later"
    ))]
    RenewFiles {
        object: ObjectId,
        #[snafu(source(from(kube::Error, Box::new)))]
        source: Box<kube::Error>,
    },
    #[snafu(display("{object} is of a kind that is never deleted"))]
    Forbidden { object: ObjectId },
    #[snafu(display("the finalizer of the VDOConfig could not be changed"))]
    Finalizer {
        #[snafu(source(from(kube::Error, Box::new)))]
        source: Box<kube::Error>,
    },
    #[snafu(display("{object} could not be deleted"))]
    Delete {
        object: ObjectId,
        #[snafu(source(from(kube::Error, Box::new)))]
        source: Box<kube::Error>,
    },
    #[snafu(display("another instance has written the first record of {driver} meanwhile"))]
    Overtaken { driver: Driver },
    #[snafu(display("the record of {driver} could not be written, so nothing was applied"))]
    Record {
        driver: Driver,
        #[snafu(source(from(kube::Error, Box::new)))]
        source: Box<kube::Error>,
    },
}

impl Error {
    /// Whether the API server understood the request and refused it.
    pub fn is_firm(&self) -> bool {
        let source = match self {
            Self::Apply { source, .. } => source,
            other => {
                return matches!(
                    other,
                    Self::Undefined { .. }
                        | Self::Theirs { .. }
                        | Self::NeverAsApplied { .. }
                        | Self::NotRestarted { .. }
                );
            }
        };
        // Excludes the client errors that disappear without a change to the request.
        matches!(&**source, kube::Error::Api(status)
            if (400..500).contains(&status.code) && ![401, 404, 408, 409, 429].contains(&status.code))
    }

    /// Who rejects the object.
    pub fn cause(&self) -> RefusalCause {
        if self.lacks_a_permission() || self.lacks_a_permission_to_grant() {
            return RefusalCause::Permission;
        }
        let status = match self {
            Self::Undefined { .. } => return RefusalCause::Undefined,
            Self::Theirs { .. } => return RefusalCause::NotManaged,
            Self::NeverAsApplied { .. } | Self::NotRestarted { .. } => {
                return RefusalCause::Admission;
            }
            Self::Apply { source, .. } => match &**source {
                kube::Error::Api(status) => status,
                _ => return RefusalCause::Other,
            },
            _ => return RefusalCause::Other,
        };
        let message = status.message.as_str();
        match status.code {
            _ if message.contains("exceeded quota") => RefusalCause::Quota,
            _ if message.contains("is being terminated") => RefusalCause::TerminatingNamespace,
            _ if message.contains("violates PodSecurity") => RefusalCause::PodSecurity,
            _ if message.contains("webhook") || message.contains("ValidatingAdmissionPolicy") => {
                RefusalCause::Admission
            }
            422 => RefusalCause::Invalid,
            _ => RefusalCause::Other,
        }
    }

    /// Whether the operator itself lacks a permission, for example because somebody deleted the namespace of
    /// a driver and the Roles in it.
    pub fn lacks_a_permission(&self) -> bool {
        let (Self::Apply { source, .. }
        | Self::Delete { source, .. }
        | Self::RenewFiles { source, .. }
        | Self::Record { source, .. }) = self
        else {
            return false;
        };
        // Quotas, policies and webhooks word their refusals differently.
        matches!(&**source, kube::Error::Api(status)
            if status.code == 403 && status.message.contains("is forbidden: User \""))
    }

    /// Whether an object would grant permissions that the operator does not hold. This happens when the
    /// release comes from a catalog that is newer than the permissions of this operator.
    pub fn lacks_a_permission_to_grant(&self) -> bool {
        matches!(self, Self::Apply { source, .. } if matches!(&**source, kube::Error::Api(status)
            if status.code == 403 && status.message.contains("RBAC permissions not currently held")))
    }
}

/// The result of one call of [`act`].
#[derive(Debug, Default)]
pub struct ActOutcome {
    /// Whether the step did something, so that the next round should start at once.
    pub something: bool,
    /// The earliest time at which a delayed apply may run. An apply is delayed after it had no lasting
    /// effect.
    pub due: Option<Instant>,
    /// Errors by driver. An error of one driver does not stop the other.
    pub failed: BTreeMap<Driver, Error>,
    /// Objects that somebody had changed or deleted.
    pub restored: Vec<Reverted>,
}

/// Executes the next step of each driver.
pub async fn act(
    client: &Client,
    namespace: &str,
    facts: &Facts,
    plan: &Plan,
    applied: &Applied,
) -> ActOutcome {
    let mut done = ActOutcome::default();
    for driver in &plan.drivers {
        match step(client, namespace, facts, driver, applied).await {
            Ok(Stepped { something, due, restored }) => {
                done.something |= something;
                done.due = done.due.into_iter().chain(due).min();
                done.restored.extend(restored);
            }
            Err(error) => {
                done.failed.insert(driver.driver, error);
            }
        }
    }
    match finalize(client, facts, plan.finalizer).await {
        Ok(something) => done.something |= something,
        Err(error) => {
            done.failed.entry(Driver::Csi).or_insert(error);
        }
    }
    done
}

/// Whether a step did something, and if not, when it can continue.
struct Stepped {
    something: bool,
    due: Option<Instant>,
    restored: Vec<Reverted>,
}

async fn step(
    client: &Client,
    namespace: &str,
    facts: &Facts,
    driver: &DriverPlan,
    applied: &Applied,
) -> Result<Stepped, Error> {
    let (next, failed) = match &driver.next {
        Next::Restart { workload, changed, passed, otherwise } => {
            match restart::restart(client, facts, workload, changed, *passed).await {
                Ok(true) => {
                    return Ok(Stepped { something: true, due: None, restored: Vec::new() });
                }
                // The rest of the plan does not wait for the restart, and may fix what delays it.
                Ok(false) => (&**otherwise, None),
                Err(error) => (&**otherwise, Some(error)),
            }
        }
        Next::RenewFiles { workloads, changed, otherwise } => {
            match renew_files::renew(client, facts, workloads).await {
                Ok(()) => {
                    applied.note_renewed(driver.driver, changed);
                    return Ok(Stepped { something: true, due: None, restored: Vec::new() });
                }
                Err(error) => (&**otherwise, Some(error)),
            }
        }
        next => (next, None),
    };
    let mut stepped = Stepped { something: true, due: None, restored: Vec::new() };
    match next {
        Next::Nothing
        | Next::Wait
        | Next::Blocked
        | Next::Restart { .. }
        | Next::RenewFiles { .. } => stepped.something = false,
        Next::Record(record) => {
            let version = facts.records.versions.get(&driver.driver).map(String::as_str);
            let cluster = Some(facts.cluster.uid.clone());
            let record = Record { cluster, ..(**record).clone() };
            write_record(client, namespace, driver.driver, &record, version).await?;
        }
        Next::Apply(objects) => {
            stepped.something = false;
            for object in objects {
                let id = ObjectId::from_object(object);
                if applied.may_apply(&id, object) {
                    let seen = facts.objects.get(&id);
                    stepped.restored.extend(apply(client, object, seen, applied).await?);
                    stepped.something = true;
                }
            }
            let ineffective = applied.ineffective(objects);
            if let Some((object, times)) = ineffective.reported {
                return NeverAsAppliedSnafu { object, times }.fail();
            }
            stepped.due = ineffective.due;
        }
        Next::Delete(objects) => {
            if driver.driver == Driver::Csi && driver.mode == Mode::Removed {
                nothing_is_attached(client).await?;
            }
            for object in objects {
                let gone = delete(client, object).await?;
                if let Some(seen) = facts.objects.get(object).filter(|_| gone) {
                    applied.note_gone(object, &seen.mark);
                }
                applied.forget(object);
            }
        }
    }
    // Returned only when nothing else was left to do, because an error delays the next round.
    match failed.filter(|_| !stepped.something) {
        Some(error) => Err(error),
        None => Ok(stepped),
    }
}

/// Adds or removes the finalizer. The patch applies only to the version of the VDOConfig that the plan is
/// based on.
async fn finalize(client: &Client, facts: &Facts, what: Finalizer) -> Result<bool, Error> {
    let metadata = &facts.config.metadata;
    let others = metadata.finalizers.iter().flatten().filter(|name| *name != names::FINALIZER);
    let mut finalizers: Vec<&str> = others.map(String::as_str).collect();
    match what {
        Finalizer::Stay => return Ok(false),
        Finalizer::Set => finalizers.push(names::FINALIZER),
        Finalizer::Clear => {}
    }
    let namespace = metadata.namespace.as_deref().unwrap_or_default();
    let configs = Api::<api::VDOConfig>::namespaced(client.clone(), namespace);
    let patch = json!({"metadata": {
        "finalizers": finalizers,
        "resourceVersion": metadata.resource_version,
    }});
    let parameters =
        PatchParams { field_manager: Some(names::FIELD_MANAGER.into()), ..PatchParams::default() };
    let name = metadata.name.as_deref().unwrap_or_default();
    configs
        .patch_metadata(name, &parameters, &Patch::Merge(patch))
        .await
        .context(FinalizerSnafu)?;
    Ok(true)
}

/// The API for an object of a kind that VDO manages.
pub fn api_of(client: &Client, id: &ObjectId) -> Result<Api<DynamicObject>, Error> {
    let mut kinds = KINDS.iter().chain(UNWATCHED.iter());
    let known = kinds.find(|(r, _)| r.kind == id.kind && r.api_version == id.api_version);
    let Some((resource, namespaced)) = known else {
        return UnknownKindSnafu { object: id.clone() }.fail();
    };
    Ok(if *namespaced {
        Api::namespaced_with(client.clone(), &id.namespace, resource)
    } else {
        Api::all_with(client.clone(), resource)
    })
}

/// Applies an object. Returns the change of another manager that this reverted. `seen`: the object as a watch shows it.
async fn apply(
    client: &Client,
    object: &Object,
    seen: Option<&AppliedObject>,
    applied: &Applied,
) -> Result<Option<Reverted>, Error> {
    let id = ObjectId::from_object(object);
    let api = api_of(client, &id)?;
    let failed = |error| match (error, kinds::definition(&id)) {
        // The definition can come later, so VDO must not count the object as applied.
        (kube::Error::Api(status), Some(definition)) if status.code == 404 => {
            Error::Undefined { object: id.clone(), definition }
        }
        (error, _) => Error::Apply { object: id.clone(), source: Box::new(error) },
    };
    if seen.is_none() {
        let standing = shared::standing(&api, object).await.map_err(failed)?;
        match standing {
            shared::Standing::Open => {}
            shared::Standing::Settled => {
                applied.note(id, object, None, &ObjectMeta::default());
                return Ok(None);
            }
            shared::Standing::Theirs(remedy) => return TheirsSnafu { object: id, remedy }.fail(),
        }
        field_ownership::adopt_fields(&api, &id.name).await.map_err(failed)?;
    }
    // If VDO applies the same state again, somebody may have changed the object, perhaps while no operator ran.
    let again = applied.left_as(&id, object) || seen.is_some_and(|seen| seen.has_digest_of(object));
    let before = if again { api.get_opt(&id.name).await.ok() } else { None };
    // Forced: VDO owns the fields of its objects, and a manual edit is drift.
    let parameters = PatchParams::apply(names::FIELD_MANAGER).force();
    let patch = Patch::Apply(&object.0);
    let written = api.patch(&id.name, &parameters, &patch).await.map_err(failed)?;
    tracing::debug!(object = %id, "applied");
    let metadata = before.as_ref().and_then(Option::as_ref).map(|before| before.metadata.clone());
    let manager = applied.note(id.clone(), object, metadata, &written.metadata);
    Ok(before.and_then(|before| {
        let fields =
            before.map(|before| reverted::differences(&id.kind, &json!(before), &json!(written)));
        let changed = fields.as_ref().is_none_or(|fields| !fields.is_empty());
        changed.then_some(Reverted { object: id, manager, fields })
    }))
}

/// Deletes an object that VDO manages. Returns whether it is already gone.
async fn delete(client: &Client, id: &ObjectId) -> Result<bool, Error> {
    // No plan deletes such an object. This check stops a faulty one.
    snafu::ensure!(!is_kept(&id.kind), ForbiddenSnafu { object: id.clone() });
    let api = api_of(client, id)?;
    let there = api.get_metadata_opt(&id.name).await.context(DeleteSnafu { object: id.clone() })?;
    let Some(there) = there else { return Ok(true) };
    // Somebody may have replaced the object meanwhile. The replacement is not VDO's to delete.
    if !there.metadata.labels.as_ref().is_some_and(is_labelled) {
        tracing::warn!(object = %id, "is not deleted: it is not VDO's any more");
        return Ok(false);
    }
    let this = Preconditions { uid: there.metadata.uid, ..Preconditions::default() };
    let parameters = DeleteParams::background().preconditions(this);
    match api.delete(&id.name, &parameters).await {
        Ok(_) => tracing::info!(object = %id, "deleted"),
        Err(kube::Error::Api(status)) if status.code == 404 => return Ok(true),
        Err(error) => return Err(error).context(DeleteSnafu { object: id.clone() }),
    }
    Ok(false)
}

/// Asks the API server again, because a watch may lag behind an attachment.
async fn nothing_is_attached(client: &Client) -> Result<(), Error> {
    let attachments = Api::<VolumeAttachment>::all(client.clone());
    let all = attachments.list(&ListParams::default()).await.context(AttachmentsSnafu)?;
    let ours = all.items.into_iter().find(|one| one.spec.attacher == names::CSI_DRIVER);
    let Some(VolumeAttachment { spec, .. }) = ours else { return Ok(()) };
    let volume = spec.source.persistent_volume_name.unwrap_or_default();
    AttachedSnafu { volume, node: spec.node_name }.fail()
}

/// Replaces the record of a driver if it still has this version, or writes the first one. If the record has
/// changed, another instance leads or did, so its record stays.
///
/// # Errors
/// If the record has changed, or the API server refuses the write.
pub async fn write_record(
    client: &Client,
    namespace: &str,
    driver: Driver,
    record: &Record,
    version: Option<&str>,
) -> Result<(), Error> {
    let name = record_name(driver);
    let text = serde_json::to_string_pretty(record).unwrap_or_default();
    let mut map = json!({
        "apiVersion": "v1", "kind": "ConfigMap",
        "metadata": apply_set::parent(name, namespace, record),
        "data": {"record.json": text},
    });
    let maps = Api::<ConfigMap>::namespaced(client.clone(), namespace);
    if let Some(version) = version {
        map["metadata"]["resourceVersion"] = json!(version);
    } else {
        // Server-side apply has no "create only" mode.
        let there = maps.get_metadata_opt(name).await.context(RecordSnafu { driver })?;
        snafu::ensure!(there.is_none(), OvertakenSnafu { driver });
    }
    let parameters = PatchParams::apply(names::FIELD_MANAGER).force();
    maps.patch(name, &parameters, &Patch::Apply(map)).await.context(RecordSnafu { driver })?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fake_api;

    #[tokio::test]
    async fn an_object_of_a_kind_that_the_cluster_lacks_stays_to_be_applied() {
        // The API server answers with a plain text if it has no such kind.
        let (client, _api) = fake_api::answering(404, &json!("404 page not found")).await;
        let class = Object(json!({
            "apiVersion": "snapshot.storage.k8s.io/v1", "kind": "VolumeSnapshotClass",
            "metadata": {"name": "vsphere-csi"},
        }));
        let applied = Applied::default();
        let error = apply(&client, &class, None, &applied).await.unwrap_err();
        assert_eq!(
            error.to_string(),
            "VolumeSnapshotClass vsphere-csi needs CustomResourceDefinition \
             volumesnapshotclasses.snapshot.storage.k8s.io, which does not exist"
        );
        assert!(error.is_firm(), "the status reports it");
        assert_eq!(error.cause(), RefusalCause::Undefined);
        assert!(applied.unwatched().is_empty(), "the next round applies it again");
    }
}
