//! The running pods that use claims. Pods without claims cost no memory.

use std::{
    collections::{BTreeSet, HashMap},
    pin::pin,
    sync::{Mutex, MutexGuard, PoisonError},
};

use futures::TryStreamExt as _;
use k8s_openapi::{api::core::v1::Pod as KubePod, apimachinery::pkg::apis::meta::v1::ObjectMeta};
use kube::{
    Api, Client, Resource,
    runtime::{WatchStreamExt as _, watcher},
};
use serde::Deserialize;

use crate::loops::model::Metadata as _;

/// A Pod: its volumes.
#[derive(Resource, Clone, Debug, Default, Deserialize)]
#[resource(inherit = KubePod)]
pub(super) struct Pod {
    metadata: ObjectMeta,
    #[serde(default)]
    spec: PodSpec,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
struct PodSpec {
    volumes: Vec<PodVolume>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct PodVolume {
    name: String,
    persistent_volume_claim: Option<ClaimSource>,
    ephemeral: Option<serde::de::IgnoredAny>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct ClaimSource {
    claim_name: String,
}

impl Pod {
    /// The paths of its claims, `namespace/name`.
    fn claims(&self) -> Vec<String> {
        let namespace = self.metadata.namespace.as_deref().unwrap_or_default();
        let claim = |volume: &PodVolume| match (&volume.persistent_volume_claim, &volume.ephemeral)
        {
            (Some(source), _) => Some(format!("{namespace}/{}", source.claim_name)),
            // Kubernetes names the claim of an ephemeral volume so.
            (None, Some(_)) => Some(format!("{namespace}/{}-{}", self.name(), volume.name)),
            (None, None) => None,
        };
        self.spec.volumes.iter().filter_map(claim).collect()
    }

    fn path(&self) -> String {
        format!("{}/{}", self.metadata.namespace.as_deref().unwrap_or_default(), self.name())
    }
}

/// Which running pods use which claim.
#[derive(Debug, Default)]
pub(super) struct PodIndex {
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    /// The claims of each pod, by path.
    claims: HashMap<String, Vec<String>>,
    /// The names of the pods of each claim.
    pods: HashMap<String, BTreeSet<String>>,
}

impl State {
    /// Returns the claims that this concerns.
    fn set(&mut self, pod: &Pod) -> Vec<String> {
        let claims = pod.claims();
        if self.claims.get(&pod.path()) == Some(&claims) {
            return Vec::new();
        }
        let mut changed = self.remove(pod);
        if claims.is_empty() {
            return changed;
        }
        for claim in &claims {
            self.pods.entry(claim.clone()).or_default().insert(pod.name().to_owned());
        }
        changed.extend(claims.iter().cloned());
        self.claims.insert(pod.path(), claims);
        changed
    }

    fn remove(&mut self, pod: &Pod) -> Vec<String> {
        let claims = self.claims.remove(&pod.path()).unwrap_or_default();
        for claim in &claims {
            if let Some(pods) = self.pods.get_mut(claim) {
                pods.remove(pod.name());
                if pods.is_empty() {
                    self.pods.remove(claim);
                }
            }
        }
        claims
    }
}

impl PodIndex {
    pub(super) fn names(&self, claim: &str) -> Vec<String> {
        self.state().pods.get(claim).into_iter().flatten().cloned().collect()
    }

    /// Watches the running pods for as long as the process leads, and reports the claims whose pods changed. `ready`
    /// is called after each complete list.
    pub(super) async fn follow(&self, client: Client, changed: impl Fn(&str), ready: impl Fn()) {
        // A pod that ends leaves the selection, which the watch reports as a deletion.
        let config = watcher::Config::default().fields("status.phase=Running").page_size(500);
        let events = watcher(Api::<Pod>::all(client), config).default_backoff();
        let mut events = pin!(events);
        let mut listing = State::default();
        loop {
            let claims = match events.try_next().await {
                Ok(Some(watcher::Event::Init)) => {
                    listing = State::default();
                    continue;
                }
                Ok(Some(watcher::Event::InitApply(pod))) => {
                    listing.set(&pod);
                    continue;
                }
                Ok(Some(watcher::Event::InitDone)) => {
                    let before =
                        std::mem::replace(&mut *self.state(), std::mem::take(&mut listing));
                    ready();
                    let state = self.state();
                    let all = before.pods.keys().chain(state.pods.keys());
                    let differs =
                        |claim: &&String| before.pods.get(*claim) != state.pods.get(*claim);
                    all.filter(differs).cloned().collect()
                }
                Ok(Some(watcher::Event::Apply(pod))) => self.state().set(&pod),
                Ok(Some(watcher::Event::Delete(pod))) => self.state().remove(&pod),
                Ok(None) => return,
                Err(error) => {
                    let error = runtime::error_chain::error_chain(&error);
                    tracing::warn!(error, "cannot watch the pods");
                    continue;
                }
            };
            for claim in &claims {
                changed(claim);
            }
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn pod(name: &str, volumes: &serde_json::Value) -> Pod {
        let pod =
            json!({"metadata": {"namespace": "shop", "name": name}, "spec": {"volumes": volumes}});
        serde_json::from_value(pod).unwrap()
    }

    #[test]
    fn the_index_knows_the_pods_of_a_claim() {
        let index = PodIndex::default();
        let data = json!([{"name": "d", "persistentVolumeClaim": {"claimName": "data"}}]);
        let (one, two) = (pod("one", &data), pod("two", &data));
        assert_eq!(index.state().set(&one), ["shop/data"]);
        assert!(index.state().set(&one).is_empty(), "nothing changed");
        index.state().set(&two);
        assert_eq!(index.names("shop/data"), ["one", "two"]);
        assert_eq!(index.state().remove(&one), ["shop/data"]);
        assert_eq!(index.names("shop/data"), ["two"]);
        index.state().remove(&two);
        assert!(index.state().pods.is_empty() && index.state().claims.is_empty());
    }

    #[test]
    fn an_ephemeral_volume_has_a_claim_and_other_volumes_have_none() {
        let volumes =
            json!([{"name": "scratch", "ephemeral": {"x": 1}}, {"name": "c", "configMap": {}}]);
        assert_eq!(pod("app", &volumes).claims(), ["shop/app-scratch"]);
    }
}
