//! Writes objects for a user. It first compares each object with the existing one, so that the user sees the
//! changes. It then writes all objects, or rolls back.

use std::time::Duration;

use catalog::manifest::Object;
use k8s_openapi::{
    api::authorization::v1::{
        ResourceAttributes, SelfSubjectAccessReview, SelfSubjectAccessReviewSpec,
    },
    apimachinery::pkg::apis::meta::v1::ManagedFieldsEntry,
};
use kube::{
    Api, Client, ResourceExt,
    api::{
        ApiResource, DeleteParams, DynamicObject, GroupVersionKind, Patch, PatchParams, PostParams,
    },
    core::Status,
};
use plan::ObjectId;
use serde_json::{Value, json};
use snafu::{OptionExt, ResultExt, Snafu};
use tokio::time::{Instant, sleep};

use crate::kinds::KINDS;

/// The field manager of objects that `vdoctl` writes for a user.
pub const FIELD_MANAGER: &str = "vdoctl";

/// The reason why a write failed. Unless the text states otherwise, nothing was written.
#[derive(Debug, Snafu)]
#[allow(missing_docs, reason = "a field is named as in the text it stands in")]
pub enum Error {
    #[snafu(display("{object} is of a kind that VDO does not write"))]
    UnknownKind { object: ObjectId },
    #[snafu(display("{object} cannot be compared with the existing object"))]
    Compare {
        object: ObjectId,
        #[snafu(source(from(kube::Error, Box::new)))]
        source: Box<kube::Error>,
    },
    #[snafu(display("{object} was not written{}", stays(left)))]
    Write {
        object: ObjectId,
        /// Objects that were written earlier and could not be rolled back.
        left: Box<[ObjectId]>,
        #[snafu(source(from(kube::Error, Box::new)))]
        source: Box<kube::Error>,
    },
    #[snafu(display("{object} was not applied; the objects applied before it stay"))]
    Apply {
        object: ObjectId,
        #[snafu(source(from(kube::Error, Box::new)))]
        source: Box<kube::Error>,
    },
}

/// How long a rollback waits for an API server that became unreachable.
const ROLLBACK_TIMEOUT: Duration = Duration::from_secs(20);

fn stays(left: &[ObjectId]) -> String {
    if left.is_empty() {
        return String::new();
    }
    let names: Vec<String> = left.iter().map(ToString::to_string).collect();
    format!("; written before it, and not rolled back: {}", names.join(", "))
}

/// An object to write, compared with the existing one.
#[derive(Clone, Debug)]
pub struct Comparison {
    pub id: ObjectId,
    /// The object to apply.
    pub wanted: Object,
    /// The existing object, if there is one.
    pub before: Option<Value>,
    /// The object after the write.
    pub after: Value,
}

impl Comparison {
    /// Whether the object does not exist yet.
    pub fn is_new(&self) -> bool {
        self.before.is_none()
    }

    /// Whether the write would change nothing.
    pub fn is_same(&self) -> bool {
        self.before.as_ref().is_some_and(|before| *before == self.after)
    }
}

/// Compares objects with the existing ones. The API server applies each in a dry run, and so reports
/// everything that it would refuse. A dry run is impossible in a namespace that does not exist yet, so this
/// function checks instead whether the user has permission to create the object.
pub async fn compare(client: &Client, objects: Vec<Object>) -> Result<Vec<Comparison>, Error> {
    let compared = objects.into_iter().map(async |wanted| {
        let id = ObjectId::from_object(&wanted);
        let api = api_of(client, &id)?;
        let context = |id: &ObjectId| CompareSnafu { object: id.clone() };
        let before = match api.get_opt(&id.name).await {
            // Another one of the objects defines this kind.
            Err(kube::Error::Api(status)) if status.code == 404 => None,
            other => other.with_context(|_| context(&id))?,
        };
        let parameters = PatchParams::apply(FIELD_MANAGER).force().dry_run();
        let strict = PatchParams {
            field_validation: Some(kube::api::ValidationDirective::Strict),
            ..parameters
        };
        let after = match api.patch(&id.name, &strict, &Patch::Apply(&wanted.0)).await {
            Ok(after) => plain(&after),
            // The namespace or the CustomResourceDefinition does not exist yet.
            Err(kube::Error::Api(status)) if status.code == 404 && before.is_none() => {
                may_create(client, &id).await.with_context(|_| context(&id))?;
                wanted.0.clone()
            }
            other => plain(&other.with_context(|_| context(&id))?),
        };
        Ok(Comparison { id, wanted, before: before.as_ref().map(plain), after })
    });
    futures::future::try_join_all(compared).await
}

/// Returns the error of the API server if the user lacks the permission to create an object. The API server
/// itself checks that permission only once the namespace exists.
async fn may_create(client: &Client, id: &ObjectId) -> Result<(), kube::Error> {
    let Some((resource, _)) = resource_of(id) else { return Ok(()) };
    let ApiResource { group, plural, .. } = resource;
    let attributes = ResourceAttributes {
        group: Some(group.clone()),
        resource: Some(plural.clone()),
        verb: Some("create".into()),
        namespace: Some(id.namespace.clone()).filter(|namespace| !namespace.is_empty()),
        ..ResourceAttributes::default()
    };
    let spec = SelfSubjectAccessReviewSpec {
        resource_attributes: Some(attributes),
        ..SelfSubjectAccessReviewSpec::default()
    };
    let review = SelfSubjectAccessReview { spec, ..SelfSubjectAccessReview::default() };
    let reviews = Api::<SelfSubjectAccessReview>::all(client.clone());
    let answer = reviews.create(&PostParams::default(), &review).await?;
    if answer.status.is_none_or(|status| status.allowed) {
        return Ok(());
    }
    let text = format!(
        "{id} is forbidden: you cannot create resource \"{plural}\" in API group \"{group}\""
    );
    Err(kube::Error::Api(Status::failure(&text, "Forbidden").with_code(403).boxed()))
}

/// Writes every object that differs, in order. If the API server refuses one, the earlier writes are rolled
/// back: new objects are deleted and changed ones are restored. The rollback waits for an API server that
/// becomes unreachable. The error names the objects that could not be rolled back.
pub async fn write_all(client: &Client, all: &[Comparison]) -> Result<(), Error> {
    let mut written: Vec<&Comparison> = Vec::new();
    for one in all.iter().filter(|one| !one.is_same()) {
        if let Err(source) = write(client, one).await {
            // Without an answer, the object may have been written all the same.
            if !matches!(source, kube::Error::Api(_)) {
                written.push(one);
            }
            let left = roll_back(client, written).await;
            let left = left.into_boxed_slice();
            return Err(source).context(WriteSnafu { object: one.id.clone(), left });
        }
        written.push(one);
    }
    Ok(())
}

/// Rolls back, the latest object first. Returns the objects that could not be rolled back.
async fn roll_back(client: &Client, written: Vec<&Comparison>) -> Vec<ObjectId> {
    let end = Instant::now() + ROLLBACK_TIMEOUT;
    let mut left = Vec::new();
    for one in written.into_iter().rev() {
        while let Err(error) = undo(client, one).await {
            let refused = matches!(error, kube::Error::Api(_));
            if refused || Instant::now() > end {
                left.push(one.id.clone());
                break;
            }
            sleep(Duration::from_millis(500)).await;
        }
    }
    left
}

async fn write(client: &Client, one: &Comparison) -> Result<(), kube::Error> {
    let api = api_of(client, &one.id).map_err(|e| kube::Error::Service(Box::new(e)))?;
    let parameters = PatchParams::apply(FIELD_MANAGER).force();
    api.patch(&one.id.name, &parameters, &Patch::Apply(&one.wanted.0)).await.map(drop)
}

async fn undo(client: &Client, one: &Comparison) -> Result<(), kube::Error> {
    let api = api_of(client, &one.id).map_err(|e| kube::Error::Service(Box::new(e)))?;
    match &one.before {
        None => {
            let Some(found) = api.get_opt(&one.id.name).await? else { return Ok(()) };
            // Deletes only an object of this field manager: somebody else may have created it first.
            let ours = |entry: &ManagedFieldsEntry| entry.manager.as_deref() == Some(FIELD_MANAGER);
            if !found.managed_fields().iter().any(ours) {
                return Ok(());
            }
            api.delete(&one.id.name, &DeleteParams::default()).await.map(drop)
        }
        Some(before) => {
            let mut object: DynamicObject =
                serde_json::from_value(before.clone()).map_err(kube::Error::SerdeError)?;
            object.metadata.resource_version = api.get(&one.id.name).await?.resource_version();
            api.replace(&one.id.name, &PostParams::default(), &object).await.map(drop)
        }
    }
}

/// Applies one object as it is. Meant for objects that can be applied repeatedly, like the operator's
/// manifest.
pub async fn apply(client: &Client, object: &Object) -> Result<(), Error> {
    let id = ObjectId::from_object(object);
    let api = api_of(client, &id)?;
    let parameters = PatchParams::apply(FIELD_MANAGER).force();
    let applied = api.patch(&id.name, &parameters, &Patch::Apply(&object.0)).await;
    applied.map(drop).context(ApplySnafu { object: id })
}

/// The API for an object that a user can write here: one of the drivers' kinds, or one of VDO's own.
pub fn api_of(client: &Client, id: &ObjectId) -> Result<Api<DynamicObject>, Error> {
    let (resource, namespaced) =
        resource_of(id).context(UnknownKindSnafu { object: id.clone() })?;
    Ok(if namespaced {
        Api::namespaced_with(client.clone(), &id.namespace, &resource)
    } else {
        Api::all_with(client.clone(), &resource)
    })
}

fn resource_of(id: &ObjectId) -> Option<(ApiResource, bool)> {
    let known = KINDS.iter().find(|(r, _)| r.kind == id.kind && r.api_version == id.api_version);
    if let Some((resource, namespaced)) = known {
        return Some((resource.clone(), *namespaced));
    }
    let ours = api::crds().into_iter().find(|definition| {
        let kind = &definition.spec.names.kind;
        *kind == id.kind && id.api_version == format!("{}/v1alpha1", api::GROUP)
    })?;
    let gvk = GroupVersionKind::gvk(api::GROUP, "v1alpha1", &id.kind);
    Some((ApiResource::from_gvk_with_plural(&gvk, &ours.spec.names.plural), true))
}

/// Every kind that can be written here, as API version and kind.
pub fn kinds() -> Vec<(String, String)> {
    let known = KINDS.iter().map(|(r, _)| (r.api_version.clone(), r.kind.clone()));
    let ours = api::crds()
        .into_iter()
        .map(|definition| (format!("{}/v1alpha1", api::GROUP), definition.spec.names.kind));
    known.chain(ours).collect()
}

/// Whether objects of a kind are namespaced. `None` if they cannot be written here.
pub fn is_written(api_version: &str, kind: &str) -> Option<bool> {
    let id = ObjectId {
        api_version: api_version.into(),
        kind: kind.into(),
        namespace: String::new(),
        name: String::new(),
    };
    resource_of(&id).map(|(_, namespaced)| namespaced)
}

/// The user's part of an object, without the fields that the API server maintains.
fn plain(object: &DynamicObject) -> Value {
    let mut object = object.clone();
    object.managed_fields_mut().clear();
    object.metadata.resource_version = None;
    object.metadata.generation = None;
    object.metadata.uid = None;
    object.metadata.creation_timestamp = None;
    let mut value = serde_json::to_value(&object).unwrap_or_default();
    if let Some(fields) = value.as_object_mut() {
        fields.remove("status");
        if fields["metadata"]["managedFields"] == json!([]) {
            fields["metadata"].as_object_mut().map(|metadata| metadata.remove("managedFields"));
        }
    }
    value
}
