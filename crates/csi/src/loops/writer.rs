//! Writes to the API server: only while this process leads, and never from an outdated view of an object.

use std::{
    collections::HashMap,
    fmt::Debug,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use kube::{
    Api, Client, Resource,
    api::{DeleteParams, Patch, PatchParams, PostParams, Preconditions},
    core::NamespaceResourceScope,
};
use runtime::lease::Mandate;
use serde::{Serialize, de::DeserializeOwned};
use serde_json::{Value, json};

use super::{model::Metadata, queue::Next};

/// A dead connection does not block a worker.
const TIMEOUT: Duration = Duration::from_secs(30);
const FIELD_MANAGER: &str = "vsphere-csi";

/// An object that a loop writes.
pub trait Object: Resource<DynamicType = ()> + Clone + Debug + DeserializeOwned {}
impl<K: Resource<DynamicType = ()> + Clone + Debug + DeserializeOwned> Object for K {}

/// An object of a namespace that a loop writes.
pub trait NamespacedObject: Object + Resource<Scope = NamespaceResourceScope> {}
impl<K: Object + Resource<Scope = NamespaceResourceScope>> NamespacedObject for K {}

/// Clones share one memory of the written versions.
#[derive(Clone)]
pub struct Writer {
    client: Client,
    mandate: Mandate,
    /// The version of each object that a loop wrote, by uid, until the object is gone.
    written: Arc<Mutex<HashMap<String, u64>>>,
}

impl Writer {
    pub fn new(client: Client, mandate: Mandate) -> Self {
        Self { client, mandate, written: Arc::default() }
    }

    pub fn client(&self) -> Client {
        self.client.clone()
    }

    /// Whether an object from a watch contains our last write to it. If it does not, the watch delivers a newer one
    /// soon, and a loop that worked on this one would repeat itself.
    pub fn is_current<K: Resource>(&self, object: &K) -> bool {
        self.known_version(object) <= object.revision()
    }

    /// The newest version of the object that we have seen or written.
    pub fn known_version<K: Resource>(&self, object: &K) -> u64 {
        let written = self.written.lock().unwrap_or_else(PoisonError::into_inner);
        written.get(object.uid()).copied().unwrap_or_default().max(object.revision())
    }

    /// Forgets an object that is gone.
    pub fn forget(&self, uid: &str) {
        self.written.lock().unwrap_or_else(PoisonError::into_inner).remove(uid);
    }

    fn remember<K: Resource>(&self, object: &K) {
        let mut written = self.written.lock().unwrap_or_else(PoisonError::into_inner);
        let newest = written.entry(object.uid().into()).or_default();
        *newest = object.revision().max(*newest);
    }

    pub async fn create<K: Object + Serialize>(&self, object: &K) -> Result<K, kube::Error> {
        let api = Api::<K>::all(self.client.clone());
        let parameters =
            PostParams { field_manager: Some(FIELD_MANAGER.into()), ..PostParams::default() };
        self.write(api.create(&parameters, object)).await
    }

    /// Deletes a cluster-scoped object, if it is still the same.
    pub async fn delete<K: Object>(&self, object: &K) -> Result<(), kube::Error> {
        let api = Api::<K>::all(self.client.clone());
        self.delete_with(&api, object).await
    }

    pub async fn delete_with<K>(&self, api: &Api<K>, object: &K) -> Result<(), kube::Error>
    where
        K: Resource + Clone + Debug + DeserializeOwned,
    {
        let preconditions =
            Preconditions { uid: Some(object.uid().into()), ..Preconditions::default() };
        let parameters =
            DeleteParams { preconditions: Some(preconditions), ..DeleteParams::default() };
        self.write(api.delete(object.name(), &parameters)).await.map(drop)
    }

    /// Changes a cluster-scoped object, if it is still the same.
    pub async fn patch<K: Object>(&self, object: &K, patch: Value) -> Result<K, kube::Error> {
        let api = Api::<K>::all(self.client.clone());
        self.patch_with(&api, object, Patch::Strategic(with_uid(object, patch))).await
    }

    /// Changes the status of a cluster-scoped object, if it is still the same.
    pub async fn patch_status<K: Object>(
        &self,
        object: &K,
        patch: Value,
    ) -> Result<K, kube::Error> {
        let api = Api::<K>::all(self.client.clone());
        self.patch_status_with(&api, object, Patch::Merge(with_uid(object, patch))).await
    }

    /// Changes annotations of a cluster-scoped custom resource, if it is still the same.
    pub async fn annotate<K: Object>(
        &self,
        object: &K,
        annotations: Value,
    ) -> Result<K, kube::Error> {
        let api = Api::<K>::all(self.client.clone());
        let patch = with_uid(object, json!({"metadata": {"annotations": annotations}}));
        self.patch_with(&api, object, Patch::Merge(patch)).await
    }

    /// Changes a cluster-scoped custom resource, if nobody has changed it since.
    pub async fn replace_fields_of<K: Object>(
        &self,
        object: &K,
        patch: Value,
    ) -> Result<K, kube::Error> {
        let api = Api::<K>::all(self.client.clone());
        self.patch_with(&api, object, Patch::Merge(with_version(object, patch))).await
    }

    /// Changes a namespaced object, if it is still the same.
    pub async fn patch_namespaced<K: NamespacedObject>(
        &self,
        object: &K,
        patch: Value,
    ) -> Result<K, kube::Error> {
        let api = self.namespaced::<K>(object);
        self.patch_with(&api, object, Patch::Strategic(with_uid(object, patch))).await
    }

    /// Changes a namespaced object, if nobody has changed it since.
    pub async fn replace_fields<K: NamespacedObject>(
        &self,
        object: &K,
        patch: Value,
    ) -> Result<K, kube::Error> {
        let api = self.namespaced::<K>(object);
        self.patch_with(&api, object, Patch::Merge(with_version(object, patch))).await
    }

    /// Changes the status of a namespaced object, if nobody has changed the object since.
    pub async fn replace_status<K: NamespacedObject>(
        &self,
        object: &K,
        patch: Value,
    ) -> Result<K, kube::Error> {
        let api = self.namespaced::<K>(object);
        self.patch_status_with(&api, object, Patch::Merge(with_version(object, patch))).await
    }

    pub async fn patch_with<K>(
        &self,
        api: &Api<K>,
        object: &K,
        patch: Patch<Value>,
    ) -> Result<K, kube::Error>
    where
        K: Resource + Clone + Debug + DeserializeOwned,
    {
        let written = self.write(api.patch(object.name(), &parameters(), &patch)).await?;
        self.remember(&written);
        Ok(written)
    }

    pub async fn patch_status_with<K>(
        &self,
        api: &Api<K>,
        object: &K,
        patch: Patch<Value>,
    ) -> Result<K, kube::Error>
    where
        K: Resource + Clone + Debug + DeserializeOwned,
    {
        let written = self.write(api.patch_status(object.name(), &parameters(), &patch)).await?;
        self.remember(&written);
        Ok(written)
    }

    fn namespaced<K: NamespacedObject>(&self, object: &K) -> Api<K> {
        let namespace = object.meta().namespace.as_deref().unwrap_or_default();
        Api::namespaced(self.client.clone(), namespace)
    }

    /// Sends a write only while this process leads. A process that was frozen while another became the leader must
    /// not send its pending writes.
    pub async fn write<T>(
        &self,
        call: impl Future<Output = Result<T, kube::Error>>,
    ) -> Result<T, kube::Error> {
        let late = || kube::Error::Service(format!("no answer within {TIMEOUT:?}").into());
        let limited =
            async { tokio::time::timeout(TIMEOUT, call).await.unwrap_or_else(|_| Err(late())) };
        let written = self.mandate.while_it_holds(limited).await;
        written.unwrap_or_else(|| {
            Err(kube::Error::Service("this instance is no longer the leader".into()))
        })
    }
}

fn parameters() -> PatchParams {
    PatchParams { field_manager: Some(FIELD_MANAGER.into()), ..PatchParams::default() }
}

/// The API server rejects a patch for an object that was deleted and created again.
fn with_uid<K: Resource>(object: &K, mut patch: Value) -> Value {
    patch["metadata"]["uid"] = object.uid().into();
    patch
}

/// The API server rejects a patch for an object that has changed.
pub fn with_version<K: Resource>(object: &K, patch: Value) -> Value {
    let mut patch = with_uid(object, patch);
    patch["metadata"]["resourceVersion"] =
        object.meta().resource_version.clone().unwrap_or_default().into();
    patch
}

/// A strategic merge patch that adds a finalizer and leaves all others alone, even ones that this process has not
/// seen yet.
pub fn add_finalizer(finalizer: &str) -> Value {
    json!({"metadata": {"finalizers": [finalizer]}})
}

/// The opposite of [`add_finalizer`].
pub fn remove_finalizers(finalizers: &[&str]) -> Value {
    json!({"metadata": {"$deleteFromPrimitiveList/finalizers": finalizers}})
}

/// The next step after a failed write.
pub fn after_failure(error: &kube::Error) -> Next {
    match error {
        kube::Error::Api(status) if status.code == 409 => Next::Conflict,
        // The watch reports the deletion.
        kube::Error::Api(status) if status.code == 404 => Next::OnChange,
        _ => {
            tracing::warn!(%error, "a write to the API server failed; it is repeated");
            Next::Retry
        }
    }
}

pub fn is_not_found(error: &kube::Error) -> bool {
    matches!(error, kube::Error::Api(status) if status.code == 404)
}

pub fn already_exists(error: &kube::Error) -> bool {
    matches!(error, kube::Error::Api(status) if status.code == 409 && status.reason == "AlreadyExists")
}
