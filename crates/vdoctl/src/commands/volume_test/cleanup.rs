//! Deletes the objects of tests: those with the label of a test, and nothing else.
//!
//! vdoctl never deletes a PersistentVolume. It deletes the claim, and the driver then deletes the volume that it made for
//! the claim. See `ownership` for what must hold before that.

use std::{collections::BTreeMap, fmt::Debug, time::Duration};

use k8s_openapi::api::{
    core::v1::{PersistentVolume, PersistentVolumeClaim, Pod},
    storage::v1::StorageClass,
};
use kube::{
    Api, Resource, ResourceExt as _,
    api::{DeleteParams, ListParams, Preconditions},
};
use plan::names::VOLUME_TEST;
use serde::de::DeserializeOwned;
use tokio::time::{Instant, sleep};

use super::{
    evidence,
    observation::{Observation, handle},
    ownership,
};
use crate::{
    cluster::Cluster,
    failure::{Doing as _, Outcome},
};

const PACE: Duration = Duration::from_millis(250);

/// The objects of all tests in the cluster, by the id of their test.
pub(super) async fn labelled(cluster: &Cluster) -> Outcome<BTreeMap<String, Vec<String>>> {
    let every = ListParams::default().labels(VOLUME_TEST);
    let (pods, claims, classes) = apis(cluster);
    let mut all: BTreeMap<String, Vec<String>> = BTreeMap::new();
    let mut add = |id: Option<&String>, object: String| {
        all.entry(id.cloned().unwrap_or_default()).or_default().push(object);
    };
    for pod in pods.list(&every).await.doing("listing pods")? {
        add(pod.labels().get(VOLUME_TEST), described(&pod));
    }
    for claim in claims.list(&every).await.doing("listing claims")? {
        add(claim.labels().get(VOLUME_TEST), described(&claim));
    }
    for class in classes.list(&every).await.doing("listing the StorageClasses")? {
        add(class.labels().get(VOLUME_TEST), described(&class));
    }
    Ok(all)
}

/// `Pod vmware-system-vdo/vdo-test-1-write`
fn described<K: Resource<DynamicType = ()>>(object: &K) -> String {
    let namespace = object.namespace().map(|namespace| namespace + "/").unwrap_or_default();
    format!("{} {namespace}{}", K::kind(&()), object.name_any())
}

type Apis = (Api<Pod>, Api<PersistentVolumeClaim>, Api<StorageClass>);

fn apis(cluster: &Cluster) -> Apis {
    let client = || cluster.client.clone();
    let namespace = &cluster.namespace;
    (Api::namespaced(client(), namespace), Api::namespaced(client(), namespace), Api::all(client()))
}

/// Deletes the objects of one test.
pub(super) struct Cleanup<'a> {
    pub(super) cluster: &'a Cluster,
    pub(super) id: &'a str,
    /// How long to wait for each kind of object to be gone.
    pub(super) timeout: Duration,
}

impl Cleanup<'_> {
    /// Returns what is left, and why. `show` gets what it waits for.
    pub(super) async fn run(&self, mut show: impl FnMut(&str)) -> Vec<String> {
        match Box::pin(self.delete_all(&mut show)).await {
            Ok(left) => left,
            Err(failure) => {
                let why = runtime::error_chain::error_chain(&failure);
                vec![
                    evidence::clean(&why),
                    "To delete what is left: vdoctl test --clean".to_owned(),
                ]
            }
        }
    }

    async fn delete_all(&self, show: &mut impl FnMut(&str)) -> Outcome<Vec<String>> {
        let (pods, claims, classes) = apis(self.cluster);
        let mut left = Vec::new();
        show("waits until the pods are gone");
        for pod in self.of_test(&pods, "listing pods").await? {
            delete(&pods, &pod, false).await.doing("deleting a pod of the test")?;
        }
        for pod in self.until_gone(&pods, "listing pods").await? {
            let node = pod.spec.as_ref().and_then(|spec| spec.node_name.clone());
            let node = node.map(|node| format!(" on {node}")).unwrap_or_default();
            left.push(format!("{} does not end{node}", described(&pod)));
        }
        show("waits until the claim and its volume are gone");
        let mut volumes = Vec::new();
        for claim in self.of_test(&claims, "listing claims").await? {
            match self.delete_claim(&claims, &classes, &claim).await? {
                Ok(own) => volumes.extend(own),
                Err(why) => left.push(format!(
                    "{} stays, and so does its volume: {why}. vdoctl deletes only volumes that the test made",
                    described(&claim)
                )),
            }
        }
        if left.is_empty() {
            let waiting = self.until_gone(&claims, "listing claims").await?;
            left.extend(
                waiting.iter().map(|claim| format!("{} is not gone yet", described(claim))),
            );
        }
        left.extend(Box::pin(self.remaining(volumes)).await?);
        // A class that a claim still uses shows that the claim belongs to the test.
        let in_use = self.of_test(&claims, "listing claims").await?;
        for class in self.of_test(&classes, "listing the StorageClasses").await? {
            let name = class.name_any();
            let uses = |claim: &PersistentVolumeClaim| {
                claim.spec.as_ref().and_then(|spec| spec.storage_class_name.as_ref()) == Some(&name)
            };
            if in_use.iter().any(uses) {
                left.push(format!("{} stays with the claim", described(&class)));
            } else {
                delete(&classes, &class, false).await.doing("deleting the copy of the class")?;
            }
        }
        Ok(left)
    }

    async fn of_test<K>(&self, api: &Api<K>, doing: &str) -> Outcome<Vec<K>>
    where
        K: Resource + Clone + DeserializeOwned + Debug,
    {
        let own = ListParams::default().labels(&format!("{VOLUME_TEST}={}", self.id));
        api.list(&own).await.map(|list| list.items).doing(doing)
    }

    /// The objects of the test that are left after the timeout.
    async fn until_gone<K>(&self, api: &Api<K>, doing: &str) -> Outcome<Vec<K>>
    where
        K: Resource + Clone + DeserializeOwned + Debug,
    {
        let began = Instant::now();
        loop {
            let left = self.of_test(api, doing).await?;
            if left.is_empty() || began.elapsed() > self.timeout {
                return Ok(left);
            }
            sleep(PACE).await;
        }
    }

    /// Deletes a claim, and returns its volumes. If one of them was not made by the test, the claim stays.
    async fn delete_claim(
        &self,
        claims: &Api<PersistentVolumeClaim>,
        classes: &Api<StorageClass>,
        claim: &PersistentVolumeClaim,
    ) -> Outcome<Result<Vec<PersistentVolume>, String>> {
        let all = Api::<PersistentVolume>::all(self.cluster.client.clone());
        let mut claim = claim.clone();
        loop {
            let copies = self.of_test(classes, "listing the StorageClasses").await?;
            let volumes = all.list(&ListParams::default()).await.doing("listing volumes")?.items;
            if let Some(why) = ownership::objection(&claim, &volumes, &copies) {
                return Ok(Err(why));
            }
            let own = |volume: &PersistentVolume| ownership::is_bound_to(volume, &claim);
            let own: Vec<PersistentVolume> = volumes.iter().filter(|v| own(v)).cloned().collect();
            match delete(claims, &claim, true).await {
                // It changed after this check, for example because it was bound: check again.
                Err(kube::Error::Api(status)) if status.code == 409 => {
                    let now = claims.get_opt(&claim.name_any()).await.doing("reading the claim")?;
                    match now.filter(|now| now.metadata.uid == claim.metadata.uid) {
                        Some(now) => claim = now,
                        None => return Ok(Ok(own)),
                    }
                }
                other => return other.doing("deleting the claim of the test").map(|()| Ok(own)),
            }
        }
    }

    /// Waits until the driver has deleted the volumes, and describes those that are left.
    async fn remaining(&self, volumes: Vec<PersistentVolume>) -> Outcome<Vec<String>> {
        let all = Api::<PersistentVolume>::all(self.cluster.client.clone());
        let began = Instant::now();
        let mut left = Vec::new();
        for volume in volumes {
            let name = volume.name_any();
            loop {
                let now = all.get_opt(&name).await.doing("reading a volume")?;
                let Some(now) = now.filter(|now| now.uid() == volume.uid()) else { break };
                if began.elapsed() > self.timeout {
                    left.extend(self.undeleted(now).await);
                    break;
                }
                sleep(PACE).await;
            }
        }
        Ok(left)
    }

    async fn undeleted(&self, volume: PersistentVolume) -> Vec<String> {
        let name = volume.name_any();
        let handle = handle(&volume).unwrap_or_default().to_owned();
        let mut text =
            vec![format!("PersistentVolume {name} (volume {handle}) is not deleted yet")];
        let seen = Observation { volume: Some(volume), ..Observation::default() };
        text.extend(Box::pin(evidence::reasons(self.cluster, &seen)).await);
        text.push(format!("The driver tries again. To look: kubectl describe pv {name}"));
        text.push("and: kubectl get volumeattachments".to_owned());
        text
    }
}

/// Deletes exactly this object: not one of the same name that somebody made later. With `unchanged`, also only if it is
/// still as it was read.
async fn delete<K>(api: &Api<K>, object: &K, unchanged: bool) -> Result<(), kube::Error>
where
    K: Resource + Clone + DeserializeOwned + Debug,
{
    let preconditions = Preconditions {
        uid: object.meta().uid.clone(),
        resource_version: object.meta().resource_version.clone().filter(|_| unchanged),
    };
    let parameters = DeleteParams { preconditions: Some(preconditions), ..DeleteParams::default() };
    match api.delete(&object.name_any(), &parameters).await {
        Err(kube::Error::Api(status)) if status.code == 404 => Ok(()),
        // The object is gone, and another one has its name.
        Err(kube::Error::Api(status)) if status.code == 409 && !unchanged => Ok(()),
        other => other.map(drop),
    }
}
