//! Compares the permissions of a driver's service accounts with those that its release grants.
//!
//! Only cluster-wide permissions: ClusterRoles, and the ClusterRoleBindings that give them to the account itself, to
//! its groups or to every service account. VDO reads both from watches, so it asks the API server nothing.

use std::collections::{BTreeMap, BTreeSet};

use catalog::{
    Release,
    manifest::{self, Object, Profile},
    version::KubernetesVersion,
};
use health::facts::{DriverAccount, Permission};
use k8s_openapi::api::rbac::v1::{ClusterRole, PolicyRule};
use plan::{facts::WorkloadRole, written_names};
use serde_json::Value;

use super::provenance::{Binding, CachedRole};

/// A rule of a ClusterRole. A rule that names objects counts only for needs that name the same objects.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Rule {
    groups: Vec<String>,
    resources: Vec<String>,
    verbs: Vec<String>,
    names: Vec<String>,
}

/// The rules that a ClusterRole has about resources of the drivers.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct RoleRules(Vec<Rule>);

impl RoleRules {
    pub(crate) fn from_role(role: &ClusterRole) -> Self {
        let rules = role.rules.iter().flatten().filter(|rule| is_relevant(rule));
        let reduced = rules.map(|rule| Rule {
            groups: rule.api_groups.clone().unwrap_or_default(),
            resources: rule.resources.clone().unwrap_or_default(),
            verbs: rule.verbs.clone(),
            names: rule.resource_names.clone().unwrap_or_default(),
        });
        Self(reduced.collect())
    }

    fn grants(&self, need: &Need) -> bool {
        self.0.iter().any(|rule| {
            let has =
                |list: &[String], one: &str| list.iter().any(|item| item == "*" || item == one);
            let named = rule.names.is_empty()
                || !need.names.is_empty()
                    && need.names.iter().all(|name| rule.names.contains(name));
            let every_part = need.resource.split_once('/').map(|(_, part)| format!("*/{part}"));
            named
                && has(&rule.groups, &need.group)
                && has(&rule.verbs, &need.verb)
                && (has(&rule.resources, &need.resource)
                    || every_part.is_some_and(|every| rule.resources.contains(&every)))
        })
    }
}

/// Whether a rule is about a resource that a driver of some release uses. The others would only take memory.
fn is_relevant(rule: &PolicyRule) -> bool {
    static RESOURCES: std::sync::LazyLock<BTreeSet<String>> = std::sync::LazyLock::new(|| {
        let objects = written_names::objects_of_every_release();
        let needs = objects.iter().flat_map(|object| needs(object).into_iter());
        needs.map(|need| need.resource).collect()
    });
    rule.resources
        .iter()
        .flatten()
        .any(|resource| resource.contains('*') || RESOURCES.contains(resource))
}

/// One permission that a release grants.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Need {
    group: String,
    resource: String,
    verb: String,
    names: Vec<String>,
}

/// The permissions in a rendered ClusterRole.
fn needs(role: &Object) -> BTreeSet<Need> {
    let mut all = BTreeSet::new();
    if role.kind() != "ClusterRole" {
        return all;
    }
    let texts = |rule: &Value, part: &str| -> Vec<String> {
        let list = rule[part].as_array().into_iter().flatten();
        list.filter_map(Value::as_str).map(str::to_owned).collect()
    };
    for rule in role.0["rules"].as_array().into_iter().flatten() {
        for group in texts(rule, "apiGroups") {
            for resource in texts(rule, "resources") {
                all.extend(texts(rule, "verbs").into_iter().map(|verb| Need {
                    group: group.clone(),
                    resource: resource.clone(),
                    verb,
                    names: texts(rule, "resourceNames"),
                }));
            }
        }
    }
    all
}

/// The permissions that a release grants to one of its workloads.
#[derive(Clone, Debug, Default)]
struct Granted {
    role: String,
    needs: BTreeSet<Need>,
}

/// The ClusterRoles of the cluster and their bindings.
pub(crate) struct ClusterPermissions<'a> {
    pub(crate) roles: &'a BTreeMap<String, CachedRole>,
    pub(crate) bindings: &'a BTreeMap<String, Binding>,
}

/// A workload of a driver, and the service account of its pods.
pub(crate) struct AccountOfWorkload<'a> {
    pub(crate) role: WorkloadRole,
    pub(crate) workload: String,
    pub(crate) namespace: &'a str,
    pub(crate) account: &'a str,
    /// Whether its pods take snapshots.
    pub(crate) snapshots: bool,
}

impl ClusterPermissions<'_> {
    /// The account of a workload, and the permissions that it lacks; none if the release is unknown.
    pub(crate) fn judge(
        &self,
        release: &Release,
        kubernetes: KubernetesVersion,
        of: &AccountOfWorkload<'_>,
    ) -> Option<DriverAccount> {
        let granted = granted(release, kubernetes, of.role)?;
        let bound = self.bindings.values().filter(|b| b.binds(of.namespace, of.account));
        let bound: BTreeSet<&str> = bound.map(Binding::role).collect();
        let held = bound.iter().filter_map(|name| Some(&self.roles.get(*name)?.rules));
        let held: Vec<&RoleRules> = held.collect();
        let needed = granted.needs.iter().filter(|need| is_needed(release.driver, need, of));
        let lacks = needed.filter(|need| !held.iter().any(|role| role.grants(need)));
        let lacks = lacks.map(|need| Permission {
            verb: need.verb.clone(),
            group: need.group.clone(),
            resource: need.resource.clone(),
        });
        Some(DriverAccount {
            workload: of.workload.clone(),
            namespace: of.namespace.to_owned(),
            name: of.account.to_owned(),
            lacks: lacks.collect(),
            roles: bound
                .iter()
                .map(|name| ((*name).to_owned(), self.roles.contains_key(*name)))
                .collect(),
            release_role_exists: self.roles.contains_key(&granted.role),
            release_role: granted.role,
        })
    }
}

/// Events only inform, and snapshots are a choice. Of the cloud controller's role, only the part about nodes counts: the
/// rest serves load balancers and protected metrics, and roles that others publish for the same release lack some of it.
fn is_needed(driver: catalog::Driver, need: &Need, of: &AccountOfWorkload<'_>) -> bool {
    let about_nodes =
        need.resource == "nodes" || (need.resource == "nodes/status" && need.verb == "patch");
    (driver == catalog::Driver::Csi || about_nodes)
        && need.resource != "events"
        && need.group != "security.openshift.io"
        && (of.snapshots || !need.group.contains("snapshot.storage.k8s.io"))
}

/// The permissions that a release grants to the service account of its controller or node pods.
fn granted(
    release: &Release,
    kubernetes: KubernetesVersion,
    role: WorkloadRole,
) -> Option<Granted> {
    let rendered = manifest::render(release, &Profile::new(kubernetes)).ok()?;
    let workload = rendered.objects.iter().find(|object| match role {
        WorkloadRole::Controller if release.driver == catalog::Driver::Csi => {
            object.kind() == "Deployment" && object.name().ends_with("controller")
        }
        WorkloadRole::Controller => matches!(object.kind(), "DaemonSet" | "Deployment"),
        WorkloadRole::Node => object.kind() == "DaemonSet",
        WorkloadRole::Helper => false,
    })?;
    let account = workload.pod_template()?["spec"]["serviceAccountName"].as_str()?;
    let mut granted = Granted::default();
    for binding in rendered.objects.iter().filter(|o| o.kind() == "ClusterRoleBinding") {
        let subjects = binding.0["subjects"].as_array().into_iter().flatten();
        if !subjects.into_iter().any(|subject| subject["name"].as_str() == Some(account)) {
            continue;
        }
        let name = binding.0["roleRef"]["name"].as_str().unwrap_or_default();
        if let Some(role) = rendered.find("ClusterRole", name) {
            name.clone_into(&mut granted.role);
            granted.needs.extend(needs(role));
        }
    }
    Some(granted)
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::rbac::v1::ClusterRoleBinding;
    use serde_json::json;

    use super::*;

    const NAMESPACE: &str = "vmware-system-csi";
    const ACCOUNT: &str = "vsphere-csi-controller";

    fn release() -> &'static Release {
        let releases = catalog::embedded();
        let mut all = releases.releases_of(catalog::Driver::Csi, catalog::Implementation::Upstream);
        all.find(|release| release.version.to_string() == "3.7.3").unwrap()
    }

    fn kubernetes() -> KubernetesVersion {
        KubernetesVersion::minor(1, 36)
    }

    /// The roles and the bindings of the release, as in a cluster, after a change.
    fn lacks(change: impl Fn(&mut Value)) -> DriverAccount {
        let rendered = manifest::render(release(), &Profile::new(kubernetes())).unwrap();
        let (mut roles, mut bindings) = (BTreeMap::new(), BTreeMap::new());
        for object in rendered.objects {
            let (name, mut value) = (object.name().to_owned(), object.0.clone());
            change(&mut value);
            match object.kind() {
                "ClusterRole" => {
                    let role: ClusterRole = serde_json::from_value(value).unwrap();
                    roles.insert(name, CachedRole::from_role(&role));
                }
                "ClusterRoleBinding" => {
                    let binding: ClusterRoleBinding = serde_json::from_value(value).unwrap();
                    bindings.extend(Binding::from_binding(&binding).map(|found| (name, found)));
                }
                _ => {}
            }
        }
        let permissions = ClusterPermissions { roles: &roles, bindings: &bindings };
        let of = AccountOfWorkload {
            role: WorkloadRole::Controller,
            workload: "Deployment vsphere-csi-controller".into(),
            namespace: NAMESPACE,
            account: ACCOUNT,
            snapshots: false,
        };
        permissions.judge(release(), kubernetes(), &of).unwrap()
    }

    #[test]
    fn the_account_of_a_complete_installation_lacks_nothing() {
        assert_eq!(lacks(|_| ()).lacks, []);
        let admin = json!([{"apiGroups": ["*"], "resources": ["*"], "verbs": ["*"]}]);
        let everything = lacks(|object| {
            if object["kind"] == "ClusterRole" {
                object["rules"] = admin.clone();
            }
        });
        assert_eq!(everything.lacks, [], "an admin holds everything");
    }

    #[test]
    fn every_lost_verb_is_found() {
        let account = lacks(|object| {
            for rule in object["rules"].as_array_mut().into_iter().flatten() {
                let about = rule["resources"].as_array().cloned().unwrap_or_default();
                if about.contains(&json!("volumeattachments")) {
                    let verbs = rule["verbs"].as_array_mut().unwrap();
                    verbs.retain(|verb| *verb != "patch");
                }
            }
        });
        let lost = Permission {
            verb: "patch".into(),
            group: "storage.k8s.io".into(),
            resource: "volumeattachments".into(),
        };
        assert_eq!(account.lacks, [lost]);
        assert!(account.release_role_exists);
    }

    #[test]
    fn an_account_without_a_binding_lacks_everything() {
        let unbound = lacks(|object| {
            if object["kind"] == "ClusterRoleBinding" {
                object["subjects"] = json!([]);
            }
        });
        assert!(unbound.lacks.len() > 20 && unbound.roles.is_empty(), "{unbound:?}");
        let group = json!([{"kind": "Group", "name": "system:serviceaccounts:vmware-system-csi"}]);
        let by_group = lacks(|object| {
            if object["kind"] == "ClusterRoleBinding" {
                object["subjects"] = group.clone();
            }
        });
        assert_eq!(by_group.lacks, [], "a group of all accounts of the namespace counts too");
    }
}
