//! Objects of VDO's kinds outside the operator's namespace. VDO does not follow them, and their status
//! reports that.
//!
//! Anybody may have created them, so they cost little. VDO lists them in small pages, one page at a time, and keeps
//! only the [`Identity`] of each: the author decides how large an object is. They start no round of
//! the operator, and reach neither the findings nor the metrics of the admin's VDOConfig. VDO writes the
//! status of each once while the operator runs, at most one per kind and [`PACE`]. If an author changes the
//! status back, VDO does not write it again. The text depends on the object alone, so a restart changes
//! nothing.

use std::{borrow::Cow, collections::HashSet, fmt::Debug, marker::PhantomData, time::Duration};

use api::{
    CompatibilityConfig, VDOConfig, VsphereCloudConfig,
    condition::{self, Answer},
    finding::{Finding, Severity, Subject, codes},
    vsphere_cloud_config::Verdict,
};
use futures::StreamExt;
use k8s_openapi::{
    NamespaceResourceScope,
    apimachinery::pkg::apis::meta::v1::{Condition, ObjectMeta, Time},
};
use kube::{
    Api, Client, Resource,
    api::{Patch, PatchParams},
    runtime::{
        WatchStreamExt,
        watcher::{self, Event, watcher},
    },
};
use plan::names;
use runtime::{error_chain::error_chain, lease::Mandate};
use serde::{Deserialize, Deserializer};
use serde_json::{Value, json};
use tokio::sync::Mutex;

use crate::{cluster::pages::SMALL_PAGE, followed::NOT_FOLLOWED};

/// The pause between two writes for objects of one kind.
const PACE: Duration = Duration::from_secs(1);

/// Writes the status of these objects until the mandate ends.
pub async fn report(client: Client, operator_namespace: String, mandate: Mandate) {
    let list = Mutex::new(());
    let all = async {
        tokio::join!(
            follow::<VDOConfig>(&client, &operator_namespace, &list, config_status),
            follow::<VsphereCloudConfig>(&client, &operator_namespace, &list, vcenter_status),
            follow::<CompatibilityConfig>(&client, &operator_namespace, &list, catalog_status),
        )
    };
    mandate.while_it_holds(Box::pin(all)).await;
}

/// The part of an object that VDO reads. It drops labels, finalizers and managed fields while it parses an answer,
/// because parsed they take several times the size of their text.
#[derive(Clone, Debug, Deserialize)]
#[serde(bound = "")]
struct Identity<K> {
    #[serde(deserialize_with = "identifying")]
    metadata: ObjectMeta,
    #[serde(skip)]
    kind: PhantomData<K>,
}

fn identifying<'de, D: Deserializer<'de>>(deserializer: D) -> Result<ObjectMeta, D::Error> {
    #[derive(Deserialize)]
    #[serde(rename_all = "camelCase")]
    struct Identifying {
        name: Option<String>,
        namespace: Option<String>,
        uid: Option<String>,
        resource_version: Option<String>,
        creation_timestamp: Option<Time>,
    }
    let Identifying { name, namespace, uid, resource_version, creation_timestamp } =
        Identifying::deserialize(deserializer)?;
    Ok(ObjectMeta {
        name,
        namespace,
        uid,
        resource_version,
        creation_timestamp,
        ..ObjectMeta::default()
    })
}

impl<K: Resource<DynamicType = ()>> Resource for Identity<K> {
    type DynamicType = ();
    type Scope = K::Scope;

    fn kind((): &()) -> Cow<'_, str> {
        K::kind(&())
    }

    fn group((): &()) -> Cow<'_, str> {
        K::group(&())
    }

    fn version((): &()) -> Cow<'_, str> {
        K::version(&())
    }

    fn plural((): &()) -> Cow<'_, str> {
        K::plural(&())
    }

    /// The API server does not send the rest of the object.
    fn metadata_api() -> bool {
        true
    }

    fn meta(&self) -> &ObjectMeta {
        &self.metadata
    }

    fn meta_mut(&mut self) -> &mut ObjectMeta {
        &mut self.metadata
    }
}

/// The uids of the objects whose status VDO has written.
#[derive(Debug, Default)]
struct Written {
    uids: HashSet<String>,
    /// The objects that the list in progress has shown.
    listed: HashSet<String>,
}

impl Written {
    /// The object of a watch event if its status must be written.
    fn next<K>(&mut self, event: Event<Identity<K>>) -> Option<ObjectMeta> {
        let uid = |metadata: &ObjectMeta| metadata.uid.clone().unwrap_or_default();
        match event {
            Event::Init => self.listed.clear(),
            Event::InitDone => self.uids.retain(|uid| self.listed.contains(uid)),
            Event::Delete(object) => drop(self.uids.remove(&uid(&object.metadata))),
            Event::InitApply(object) => {
                self.listed.insert(uid(&object.metadata));
                return self.uids.insert(uid(&object.metadata)).then_some(object.metadata);
            }
            Event::Apply(object) => {
                return self.uids.insert(uid(&object.metadata)).then_some(object.metadata);
            }
        }
        None
    }
}

/// Watches the objects of a kind. It requests a page of a list only while it holds `list`.
async fn follow<K>(
    client: &Client,
    operator_namespace: &str,
    list: &Mutex<()>,
    status: fn(&str, &ObjectMeta) -> Value,
) where
    K: Resource<DynamicType = (), Scope = NamespaceResourceScope> + Clone + Debug + Send + 'static,
{
    let others = watcher::Config::default().page_size(SMALL_PAGE);
    let others = others.fields(&format!("metadata.namespace!={operator_namespace}"));
    let all = Api::<Identity<K>>::all(client.clone());
    let events = watcher(all, others).default_backoff();
    let mut events = std::pin::pin!(events);
    let mut written = Written::default();
    let mut is_listing = false;
    loop {
        let page = if is_listing { Some(list.lock().await) } else { None };
        let Some(event) = events.next().await else { break };
        drop(page);
        is_listing = matches!(event, Ok(Event::Init | Event::InitApply(_)));
        match event {
            Ok(event) => {
                let Some(metadata) = written.next(event) else { continue };
                write::<K>(client, &metadata, &status(operator_namespace, &metadata)).await;
                tokio::time::sleep(PACE).await;
            }
            Err(error) => tracing::debug!(kind = %K::kind(&()), %error, "a watch was interrupted"),
        }
    }
}

async fn write<K>(client: &Client, metadata: &ObjectMeta, status: &Value)
where
    K: Resource<DynamicType = (), Scope = NamespaceResourceScope> + Clone + Debug,
{
    let (kind, name) = (K::kind(&()), metadata.name.as_deref().unwrap_or_default());
    let namespace = metadata.namespace.as_deref().unwrap_or_default();
    // The author controls the content of these objects. It can be anything, and VDO needs none of it.
    let objects = Api::<Identity<K>>::namespaced(client.clone(), namespace);
    let body = json!({"apiVersion": K::api_version(&()), "kind": kind, "status": status});
    let parameters = PatchParams::apply(names::FIELD_MANAGER).force();
    if let Err(error) = objects.patch_status(name, &parameters, &Patch::Apply(body)).await {
        tracing::debug!(%kind, namespace, name, error = error_chain(&error), "its status was refused");
    }
}

fn finding<K: Resource<DynamicType = ()>>(
    operator_namespace: &str,
    metadata: &ObjectMeta,
) -> Finding {
    let (kind, name) = (K::kind(&()), metadata.name.as_deref().unwrap_or_default());
    let namespace = metadata.namespace.as_deref().unwrap_or_default();
    codes::ELSEWHERE
        .found()
        .with("kind", kind.as_ref())
        .with("namespace", namespace)
        .with("name", name)
        .with("operatornamespace", operator_namespace)
        .severity(Severity::Warning)
        .about(Subject::kubernetes(&kind, Some(namespace), name))
        .build()
}

/// The cause and the fix in one text, because the status of other kinds has no findings.
fn sentence(finding: &Finding, fix: &str) -> String {
    format!("{}: {}. {fix}", finding.code, finding.seen.as_deref().unwrap_or(&finding.title))
}

/// The condition holds since the creation of the object, so its text never changes.
fn not_ready(metadata: &ObjectMeta, message: String) -> Vec<Condition> {
    let mut conditions = Vec::new();
    let since = metadata.creation_timestamp.clone().unwrap_or(Time(jiff::Timestamp::UNIX_EPOCH));
    let answer = Answer::False;
    condition::set(&mut conditions, condition::READY, answer, NOT_FOLLOWED, message, None, &since);
    conditions
}

fn config_status(operator_namespace: &str, metadata: &ObjectMeta) -> Value {
    let mut finding = finding::<VDOConfig>(operator_namespace, metadata);
    finding.since.clone_from(&metadata.creation_timestamp);
    let conditions = not_ready(metadata, sentence(&finding, &finding.remedy[0]));
    let findings = vec![finding];
    json!(api::VDOConfigStatus { conditions, findings, ..api::VDOConfigStatus::default() })
}

fn vcenter_status(operator_namespace: &str, metadata: &ObjectMeta) -> Value {
    let namespace = metadata.namespace.as_deref().unwrap_or_default();
    let fix = format!(
        "VDO sends nothing to the address it names. vdoctl move --from {namespace}   copies a VDOConfig \
         of this namespace and the VsphereCloudConfigs it names"
    );
    let message = sentence(&finding::<VsphereCloudConfig>(operator_namespace, metadata), &fix);
    json!(api::VsphereCloudConfigStatus {
        config: Some(Verdict::Failed),
        message: Some(message.clone()),
        conditions: not_ready(metadata, message),
        ..api::VsphereCloudConfigStatus::default()
    })
}

fn catalog_status(operator_namespace: &str, metadata: &ObjectMeta) -> Value {
    let fix = format!("Create it in namespace {operator_namespace}");
    let message = sentence(&finding::<CompatibilityConfig>(operator_namespace, metadata), &fix);
    json!(api::CompatibilityConfigStatus {
        conditions: not_ready(metadata, message),
        ..api::CompatibilityConfigStatus::default()
    })
}

#[cfg(test)]
mod tests {
    use std::{
        collections::BTreeSet,
        sync::{Arc, PoisonError},
    };

    use super::*;
    use crate::fake_api::serving;

    fn object(name: &str, uid: &str) -> Identity<VDOConfig> {
        let metadata = json!({
            "name": name, "namespace": "team-a", "uid": uid,
            "creationTimestamp": "2026-01-01T00:00:00Z",
        });
        serde_json::from_value(json!({"metadata": metadata})).unwrap()
    }

    #[test]
    fn of_a_tenants_huge_object_only_its_identity_is_kept() {
        let long = "x".repeat(1000);
        let identity = json!({
            "name": "vdo-config", "namespace": "team-a", "uid": "1", "resourceVersion": "7",
            "creationTimestamp": "2026-01-01T00:00:00Z",
        });
        let mut metadata = identity.clone();
        metadata["labels"] = json!({"label": long});
        metadata["annotations"] = json!({"annotation": long});
        metadata["finalizers"] = json!([long]);
        metadata["managedFields"] = json!([{"manager": "m", "fieldsV1": {"f:metadata": {}}}]);
        let whole = json!({"metadata": metadata, "spec": {"long": long}});
        let kept: Identity<VDOConfig> = serde_json::from_value(whole).unwrap();
        assert_eq!(json!(kept.metadata), identity);
    }

    /// The list requests that an API server received, and those that it has not answered yet.
    #[derive(Debug, Default)]
    struct Lists {
        requests: Vec<String>,
        in_progress: usize,
        most: usize,
    }

    #[tokio::test]
    async fn the_objects_of_tenants_are_listed_in_small_pages_and_one_page_at_a_time() {
        let lists = Arc::new(std::sync::Mutex::new(Lists::default()));
        let seen = lists.clone();
        let (client, _api_server) = serving(move |request: String| {
            let lists = seen.clone();
            let request = request.lines().next().unwrap_or_default().to_owned();
            async move {
                if !request.starts_with("GET") {
                    return (200, json!({"metadata": {}}));
                }
                if request.contains("watch=") {
                    std::future::pending::<()>().await;
                }
                {
                    let mut lists = lists.lock().unwrap_or_else(PoisonError::into_inner);
                    lists.requests.push(request.clone());
                    lists.in_progress += 1;
                    lists.most = lists.most.max(lists.in_progress);
                }
                tokio::time::sleep(Duration::from_millis(100)).await;
                lists.lock().unwrap_or_else(PoisonError::into_inner).in_progress -= 1;
                let more = !request.contains("continue=");
                let metadata = json!({"name": "a", "namespace": "team-a", "uid": request});
                (
                    200,
                    json!({
                        "kind": "PartialObjectMetadataList", "apiVersion": "meta.k8s.io/v1",
                        "metadata": {"resourceVersion": "1", "continue": if more { "2" } else { "" }},
                        "items": [{"metadata": metadata}],
                    }),
                )
            }
        })
        .await;
        let reports = report(client, "vmware-system-vdo".into(), Mandate::unlimited());
        // Each kind has two pages, and VDO waits after each object.
        let all_listed = async {
            while lists.lock().unwrap_or_else(PoisonError::into_inner).requests.len() < 6 {
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
        };
        let ended = async { tokio::select!(() = reports => {}, () = all_listed => {}) };
        tokio::time::timeout(Duration::from_mins(1), ended).await.unwrap();
        let lists = lists.lock().unwrap_or_else(PoisonError::into_inner);
        let path = |request: &String| request.split('?').next().unwrap_or_default().to_owned();
        let kinds: BTreeSet<String> = lists.requests.iter().map(path).collect();
        assert_eq!((kinds.len(), lists.requests.len()), (3, 6), "{lists:?}");
        assert_eq!(lists.most, 1, "{lists:?}");
        let limit = |request: &String| {
            let (_, rest) = request.split_once("limit=")?;
            rest.split(['&', ' ']).next()?.parse::<u32>().ok()
        };
        let small = lists.requests.iter().all(|request| limit(request).is_some_and(|n| n <= 3));
        assert!(small, "{lists:?}");
    }

    #[test]
    fn each_object_is_written_once_however_often_its_author_changes_it() {
        let mut written = Written::default();
        assert_eq!(written.next::<VDOConfig>(Event::Init), None);
        assert!(written.next(Event::InitApply(object("a", "1"))).is_some());
        assert_eq!(written.next::<VDOConfig>(Event::InitDone), None);
        assert_eq!(written.next(Event::Apply(object("a", "1"))), None);
        assert!(written.next(Event::Apply(object("b", "2"))).is_some());
        // A re-created object is another object. VDO forgets the objects that are gone.
        assert_eq!(written.next(Event::Delete(object("b", "2"))), None);
        assert!(written.next(Event::Apply(object("b", "3"))).is_some());
        assert_eq!(written.next::<VDOConfig>(Event::Init), None);
        assert_eq!(
            written.next(Event::InitApply(object("a", "1"))),
            None,
            "a new list of the same"
        );
        assert_eq!(written.next::<VDOConfig>(Event::InitDone), None);
        assert_eq!(written.uids.len(), 1, "{written:?}");
    }

    #[test]
    fn the_status_names_the_command_and_is_the_same_after_a_restart() {
        let metadata = object("vdo-config", "1").metadata;
        let status = config_status("vmware-system-vdo", &metadata);
        assert_eq!(status, config_status("vmware-system-vdo", &metadata));
        let finding = &status["findings"][0];
        assert_eq!(
            (&finding["code"], &finding["severity"]),
            (&json!("VDO-1009"), &json!("Warning"))
        );
        let command = "vdoctl move --from team-a --name vdo-config";
        let remedy = finding["remedy"][0].as_str().unwrap_or_default();
        assert!(remedy.starts_with(command), "{remedy}");
        let ready = &status["conditions"][0];
        assert_eq!((&ready["status"], &ready["reason"]), (&json!("False"), &json!("NotFollowed")));
        assert!(ready["message"].as_str().is_some_and(|message| message.contains(command)));
        for text in [
            vcenter_status("vmware-system-vdo", &metadata).to_string(),
            catalog_status("vmware-system-vdo", &metadata).to_string(),
        ] {
            assert!(text.contains("VDO-1009") && text.contains("vmware-system-vdo"), "{text}");
        }
    }
}
