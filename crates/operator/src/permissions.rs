//! Checks that the operator's account has the permissions it cannot work without.
//!
//! A user who changes only the image of an earlier VDO keeps its account. With that account some watches
//! would never start, and the operator would wait without reporting why. So the operator asks the API server
//! for its permissions before anything else. While one is missing, the operator changes nothing. It reports
//! the missing permissions on every VDOConfig in its namespace, as an event and in the log.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use api::{
    VDOConfig,
    finding::{Finding, Subject, codes},
};
use jiff::Timestamp;
use k8s_openapi::{
    api::{
        authorization::v1::{
            ResourceRule, SelfSubjectRulesReview, SelfSubjectRulesReviewSpec,
            SubjectRulesReviewStatus,
        },
        core::v1::Event,
    },
    apimachinery::pkg::apis::meta::v1::Time,
};
use kube::{
    Api, Client, Resource, ResourceExt,
    api::{ListParams, Patch, PatchParams, PostParams},
};
use plan::{names, written_names};
use runtime::{checks::Check, error_chain::error_chain};
use serde_json::json;

use crate::{allowed_namespaces, kinds};

/// How often the operator checks the permissions again.
const AGAIN: Duration = Duration::from_secs(15);

/// The verbs that a cache needs.
const WATCH: [&str; 2] = ["list", "watch"];

/// A permission that the operator cannot work without.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Permission {
    group: String,
    resource: String,
    verb: &'static str,
    /// Empty for the whole cluster.
    namespace: String,
    /// The name of the single object that needs it. Empty for all objects.
    name: String,
}

impl std::fmt::Display for Permission {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { group, resource, verb, namespace, name } = self;
        let dot = if group.is_empty() { "" } else { "." };
        write!(f, "{verb} {resource}{dot}{group}")?;
        if !name.is_empty() {
            write!(f, " {name}")?;
        }
        if namespace.is_empty() { Ok(()) } else { write!(f, " in namespace {namespace}") }
    }
}

/// The permissions to start the watches of the first round, and to report.
fn needed(namespace: &str, more_namespaces: &BTreeSet<String>) -> Vec<Permission> {
    let mut all = Vec::new();
    let mut need = |group: &str, resource: &str, verbs: &[&'static str], namespace: &str| {
        all.extend(verbs.iter().map(|verb| Permission {
            group: group.to_owned(),
            resource: resource.to_owned(),
            verb,
            namespace: namespace.to_owned(),
            name: String::new(),
        }));
    };
    for kind in ["vdoconfigs", "vspherecloudconfigs", "compatibilityconfigs"] {
        need("vdo.vmware.com", kind, &WATCH, "");
    }
    need("vdo.vmware.com", "vdoconfigs/status", &["patch"], "");
    for (group, kind) in
        [("", "nodes"), ("", "pods"), ("apps", "daemonsets"), ("apps", "deployments")]
    {
        need(group, kind, &WATCH, "");
    }
    need("storage.k8s.io", "volumeattachments", &WATCH, "");
    for (resource, namespaced) in kinds::KINDS.iter() {
        let mut places: Vec<&str> =
            if *namespaced { allowed_namespaces::all().collect() } else { vec![""] };
        places.extend(more_namespaces.iter().filter(|_| *namespaced).map(String::as_str));
        places.retain(|place| resource.kind != "Secret" || *place != names::KUBE_SYSTEM);
        for place in places {
            need(&resource.group, &resource.plural, &WATCH, place);
        }
    }
    need("", "secrets", &["get", "list", "watch"], namespace);
    need("", "configmaps", &["list", "watch", "patch"], namespace);
    need("coordination.k8s.io", "leases", &["get", "create", "update"], namespace);
    need("coordination.k8s.io", "leases", &["create"], names::KUBE_SYSTEM);
    let in_kube_system = |group: &str, resource: &str, verb, name: &str| Permission {
        group: group.to_owned(),
        resource: resource.to_owned(),
        verb,
        namespace: names::KUBE_SYSTEM.into(),
        name: name.to_owned(),
    };
    all.extend(
        ["get", "watch", "update"].map(|verb| {
            in_kube_system("coordination.k8s.io", "leases", verb, names::CLUSTER_LEASE)
        }),
    );
    for name in written_names::settings_and_secrets("Secret") {
        all.extend(WATCH.map(|verb| in_kube_system("", "secrets", verb, &name)));
    }
    all.sort();
    all.dedup();
    all
}

fn allows(rules: &[ResourceRule], permission: &Permission) -> bool {
    let has = |all: Option<&Vec<String>>, wanted: &str| {
        all.is_some_and(|all| all.iter().any(|one| one == wanted || one == "*"))
    };
    rules.iter().any(|rule| {
        let names = rule.resource_names.as_deref().unwrap_or_default();
        (names.is_empty() || names.contains(&permission.name))
            && has(rule.api_groups.as_ref(), &permission.group)
            && has(rule.resources.as_ref(), &permission.resource)
            && has(Some(&rule.verbs), permission.verb)
    })
}

/// The permissions that this account lacks. Empty if the API server cannot list all rules: the watches then
/// show what is missing.
async fn missing(
    client: &Client,
    namespace: &str,
    more_namespaces: &BTreeSet<String>,
) -> Result<Vec<Permission>, kube::Error> {
    let reviews = Api::<SelfSubjectRulesReview>::all(client.clone());
    let mut rules: BTreeMap<String, SubjectRulesReviewStatus> = BTreeMap::new();
    let mut missing = Vec::new();
    for permission in needed(namespace, more_namespaces) {
        // A permission in the whole cluster holds in every namespace.
        let place = if permission.namespace.is_empty() { namespace } else { &permission.namespace };
        if !rules.contains_key(place) {
            let review = SelfSubjectRulesReview {
                spec: SelfSubjectRulesReviewSpec { namespace: Some(place.to_owned()) },
                ..SelfSubjectRulesReview::default()
            };
            let reviewed = reviews.create(&PostParams::default(), &review).await?;
            rules.insert(place.to_owned(), reviewed.status.unwrap_or_default());
        }
        let Some(reviewed) = rules.get(place) else { continue };
        if reviewed.incomplete {
            return Ok(Vec::new());
        }
        if !allows(&reviewed.resource_rules, &permission) {
            missing.push(permission);
        }
    }
    Ok(missing)
}

/// Returns once the account has the permissions that the operator cannot work without. Until then it reports
/// the missing ones wherever it can, and changes nothing. `more_namespaces` can contain drivers, in addition
/// to the usual namespaces.
pub async fn wait(
    client: &Client,
    namespace: &str,
    more_namespaces: &BTreeSet<String>,
    working: &Check,
) {
    let mut reported: Vec<Permission> = Vec::new();
    loop {
        match missing(client, namespace, more_namespaces).await {
            Ok(missing) if missing.is_empty() => return,
            Ok(missing) => {
                let finding = finding(namespace, &missing);
                let only_in_more_namespaces = missing
                    .iter()
                    .all(|permission| more_namespaces.contains(&permission.namespace));
                let text = sentence(&finding, only_in_more_namespaces);
                working.fail(text.clone());
                let news = reported != missing;
                if news {
                    let all: Vec<String> = missing.iter().map(Permission::to_string).collect();
                    tracing::error!(missing = all.join(", "), "{text}");
                    reported = missing;
                }
                if let Err(error) = report(client, namespace, &finding, &text, news).await {
                    tracing::warn!(error = error_chain(&error), "the VDOConfig could not be set");
                }
            }
            // A policy may forbid the review. The watches then show what is missing.
            Err(kube::Error::Api(status)) if status.code == 403 => return,
            Err(error) => {
                working.fail(error_chain(&error));
                tracing::warn!(
                    error = error_chain(&error),
                    "the permissions of this account are unknown"
                );
            }
        }
        tokio::time::sleep(AGAIN).await;
    }
}

fn finding(namespace: &str, missing: &[Permission]) -> Finding {
    let first = missing.first().map(Permission::to_string).unwrap_or_default();
    codes::ACCOUNT_OF_PREDECESSOR
        .found()
        .with("first", first)
        .with("count", missing.len().to_string())
        .with("namespace", namespace)
        .with("deployment", names::PREDECESSOR)
        .about(Subject::kubernetes("Namespace", None, namespace))
        .build()
}

/// The cause and the fix in one sentence. `only_in_more_namespaces`: permissions are missing only in namespaces of adopted
/// drivers.
fn sentence(finding: &Finding, only_in_more_namespaces: bool) -> String {
    let seen = finding.seen.as_deref().unwrap_or(&finding.title);
    let remedy = if only_in_more_namespaces {
        "run vdoctl deploy, which gives them back"
    } else {
        &finding.remedy[0]
    };
    format!("{}: {seen}; nothing is changed until you {remedy}", finding.code)
}

/// Writes the finding where an admin looks. The API server drops fields that an older
/// CustomResourceDefinition does not have, but every version has the message of each driver.
async fn report(
    client: &Client,
    namespace: &str,
    finding: &Finding,
    text: &str,
    news: bool,
) -> Result<(), kube::Error> {
    let own = Api::<VDOConfig>::namespaced(client.clone(), namespace);
    for config in own.list(&ListParams::default()).await? {
        let status = config.status.clone().unwrap_or_default();
        let has_text = |driver: Option<&api::vdo_config::DriverStatus>| {
            driver.and_then(|driver| driver.status_msg.as_deref()) == Some(text)
        };
        if has_text(status.csi.as_ref()) || has_text(status.cpi.as_ref()) {
            continue;
        }
        let ready = json!({
            "type": "Ready", "status": "False", "reason": "RightsMissing", "message": text,
            "lastTransitionTime": Time(Timestamp::now()),
        });
        let mut body = json!({
            "csi": {"statusMsg": text}, "conditions": [ready], "findings": [finding],
        });
        if config.spec.cloud_provider.is_some() {
            body["cpi"] = json!({"statusMsg": text});
        }
        let by = PatchParams {
            field_manager: Some(names::FIELD_MANAGER.into()),
            ..PatchParams::default()
        };
        let patch = Patch::Merge(json!({"status": body}));
        own.patch_status(&config.name_any(), &by, &patch).await?;
        if news {
            event(client, &config, namespace, text).await;
        }
    }
    Ok(())
}

/// Publishes a core/v1 event: the account of an earlier VDO lacks the permission to write newer ones.
async fn event(client: &Client, config: &VDOConfig, namespace: &str, text: &str) {
    let now = Time(Timestamp::now());
    let event = Event {
        metadata: kube::api::ObjectMeta {
            generate_name: Some(format!("{}-", config.name_any())),
            ..Default::default()
        },
        involved_object: config.object_ref(&()),
        type_: Some("Warning".into()),
        reason: Some("RightsMissing".into()),
        message: Some(text.to_owned()),
        first_timestamp: Some(now.clone()),
        last_timestamp: Some(now),
        count: Some(1),
        ..Event::default()
    };
    let events = Api::<Event>::namespaced(client.clone(), namespace);
    if let Err(error) = events.create(&PostParams::default(), &event).await {
        tracing::debug!(error = error_chain(&error), "no event could be written");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rules(groups: &[&str], resources: &[&str], verbs: &[&str]) -> ResourceRule {
        let owned = |all: &[&str]| all.iter().map(|one| (*one).to_owned()).collect::<Vec<_>>();
        ResourceRule {
            api_groups: Some(owned(groups)),
            resources: Some(owned(resources)),
            resource_names: None,
            verbs: owned(verbs),
        }
    }

    fn permission(group: &str, resource: &str, verb: &'static str) -> Permission {
        let (group, resource) = (group.to_owned(), resource.to_owned());
        Permission { group, resource, verb, namespace: String::new(), name: String::new() }
    }

    #[test]
    fn a_permission_is_granted_by_name_or_by_wildcard_and_not_for_some_objects_alone() {
        let nodes = permission("", "nodes", "watch");
        assert!(allows(&[rules(&[""], &["nodes"], &["list", "watch"])], &nodes));
        assert!(allows(&[rules(&["*"], &["*"], &["*"])], &nodes));
        assert!(!allows(&[rules(&["apps"], &["nodes"], &["watch"])], &nodes));
        assert!(!allows(&[rules(&[""], &["nodes"], &["get"])], &nodes));
        let mut some = rules(&[""], &["nodes"], &["watch"]);
        some.resource_names = Some(vec!["node-1".into()]);
        assert!(!allows(&[some.clone()], &nodes));
        assert!(allows(&[some.clone()], &Permission { name: "node-1".into(), ..nodes.clone() }));
        assert!(!allows(&[some], &Permission { name: "node-2".into(), ..nodes }));
    }

    #[test]
    fn the_shipped_manifest_grants_every_needed_permission() {
        let mut granted: BTreeMap<String, Vec<ResourceRule>> = BTreeMap::new();
        for object in crate::install::objects() {
            if matches!(object.kind(), "Role" | "ClusterRole") {
                let rules: Vec<ResourceRule> =
                    serde_json::from_value(object.0["rules"].clone()).unwrap();
                granted.entry(object.namespace().to_owned()).or_default().extend(rules);
            }
        }
        for permission in needed(api::NAMESPACE, &BTreeSet::new()) {
            let everywhere = allows(&granted[""], &permission);
            let there =
                granted.get(&permission.namespace).is_some_and(|rules| allows(rules, &permission));
            assert!(everywhere || there, "{permission}");
        }
    }

    #[test]
    fn missing_permissions_are_named_in_one_sentence_with_the_fix() {
        let text = sentence(
            &finding("vdo-system", &[permission("storage.k8s.io", "volumeattachments", "list")]),
            false,
        );
        assert!(text.contains("list volumeattachments.storage.k8s.io"), "{text}");
        assert!(text.contains("kubectl apply") && text.contains("install.yaml"), "{text}");
        assert!(!text.contains('{'), "{text}");
    }
}
