//! Writing objects for a user: each is compared to what is there first, so that the user sees what
//! will change; then all are written, or none stays changed.

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

/// Under which what a user has written by us is known to the API server.
pub const FIELD_MANAGER: &str = "vdoctl";

/// Why something was not written. Unless the text says otherwise, nothing was.
#[derive(Debug, Snafu)]
#[allow(missing_docs, reason = "a field is named as in the text it stands in")]
pub enum Error {
    #[snafu(display("{object} is of a kind that is not written here"))]
    UnknownKind { object: ObjectId },
    #[snafu(display("{object} cannot be compared to what is there"))]
    Compare {
        object: ObjectId,
        #[snafu(source(from(kube::Error, Box::new)))]
        source: Box<kube::Error>,
    },
    #[snafu(display("{object} was not written{}", stays(left)))]
    Write {
        object: ObjectId,
        /// What was written before it and could not be taken back.
        left: Box<[ObjectId]>,
        #[snafu(source(from(kube::Error, Box::new)))]
        source: Box<kube::Error>,
    },
    #[snafu(display("{object} was not applied; what was applied before it stays"))]
    Apply {
        object: ObjectId,
        #[snafu(source(from(kube::Error, Box::new)))]
        source: Box<kube::Error>,
    },
}

/// How long an API server that went away in the middle is waited for, to take back what was written.
const TAKING_BACK: Duration = Duration::from_secs(20);

fn stays(left: &[ObjectId]) -> String {
    if left.is_empty() {
        return String::new();
    }
    let names: Vec<String> = left.iter().map(ToString::to_string).collect();
    format!("; written before it, and not taken back: {}", names.join(", "))
}

/// An object to be written, beside what is there.
#[derive(Clone, Debug)]
pub struct Comparison {
    /// Which.
    pub id: ObjectId,
    /// As it is to be.
    pub wanted: Object,
    /// As it is, if it is.
    pub before: Option<Value>,
    /// As it would be.
    pub after: Value,
}

impl Comparison {
    /// Whether it does not exist yet.
    pub fn is_new(&self) -> bool {
        self.before.is_none()
    }

    /// Whether writing it changes nothing.
    pub fn is_same(&self) -> bool {
        self.before.as_ref().is_some_and(|before| *before == self.after)
    }
}

/// Compares objects to what is there: the API server applies each without keeping it, and so says
/// all that it would refuse. What is in a namespace that does not exist yet cannot be tried; whether
/// the user may create it is asked instead.
pub async fn compare(client: &Client, objects: Vec<Object>) -> Result<Vec<Comparison>, Error> {
    let compared = objects.into_iter().map(async |wanted| {
        let id = ObjectId::of(&wanted);
        let api = api_of(client, &id)?;
        let context = |id: &ObjectId| CompareSnafu { object: id.clone() };
        let before = match api.get_opt(&id.name).await {
            // Its kind is defined by another of the objects.
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
            // No namespace yet, or no definition.
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

/// Refuses as the API server would where the user may not create an object: it asks for that right only
/// once there is a namespace to create it in.
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

/// Writes everything that differs, in order. Where one is refused, what was written before it is taken
/// back: new objects are deleted, changed ones are put back. Should the API server go away meanwhile,
/// it is waited for; what could not be taken back even then is named.
pub async fn write_all(client: &Client, all: &[Comparison]) -> Result<(), Error> {
    let mut written: Vec<&Comparison> = Vec::new();
    for one in all.iter().filter(|one| !one.is_same()) {
        if let Err(source) = write(client, one).await {
            // Without an answer it may have been written all the same.
            if !matches!(source, kube::Error::Api(_)) {
                written.push(one);
            }
            let left = take_back(client, written).await;
            let left = left.into_boxed_slice();
            return Err(source).context(WriteSnafu { object: one.id.clone(), left });
        }
        written.push(one);
    }
    Ok(())
}

/// Takes back, the latest first; returns what could not be.
async fn take_back(client: &Client, written: Vec<&Comparison>) -> Vec<ObjectId> {
    let end = Instant::now() + TAKING_BACK;
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
            // Only what we made: somebody else may have been quicker.
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

/// Applies one object as it is; for what may be applied again and again, as the operator's manifest.
pub async fn apply(client: &Client, object: &Object) -> Result<(), Error> {
    let id = ObjectId::of(object);
    let api = api_of(client, &id)?;
    let parameters = PatchParams::apply(FIELD_MANAGER).force();
    let applied = api.patch(&id.name, &parameters, &Patch::Apply(&object.0)).await;
    applied.map(drop).context(ApplySnafu { object: id })
}

/// The API of an object a user may have written here: one the drivers are made of, or one of ours.
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

/// Every kind that is written here, each after its version.
pub fn kinds() -> Vec<(String, String)> {
    let known = KINDS.iter().map(|(r, _)| (r.api_version.clone(), r.kind.clone()));
    let ours = api::crds()
        .into_iter()
        .map(|definition| (format!("{}/v1alpha1", api::GROUP), definition.spec.names.kind));
    known.chain(ours).collect()
}

/// Whether objects of a kind may be written here.
pub fn is_written(api_version: &str, kind: &str) -> Option<bool> {
    let id = ObjectId {
        api_version: api_version.into(),
        kind: kind.into(),
        namespace: String::new(),
        name: String::new(),
    };
    resource_of(&id).map(|(_, namespaced)| namespaced)
}

/// What a user wrote of an object: without what the API server keeps for itself.
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
