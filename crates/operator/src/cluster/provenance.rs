//! Distinguishes the workloads of a driver, or of the Go VDO, from lookalikes.
//!
//! A name, an image, a label and an owner reference are claims: a tenant who can create a Deployment in one
//! namespace can write all of them. They show which part of a driver a workload would be, not whether it is
//! one. That takes evidence which a tenant cannot forge:
//!
//! 1. **The namespace.** In the allowed namespaces (`kube-system`, `vmware-system-csi`, those an admin named
//!    with `--driver-namespace`, and those on record) a workload is what it looks like. The same holds for
//!    the Go VDO in its own namespace and in the operator's. A user who can create workloads there can also
//!    use the service accounts of the drivers or of the operator, and needs no disguise.
//! 2. **The account.** In any other namespace a workload counts only if a ClusterRoleBinding gives its
//!    service account a permission without which the driver cannot work: to change `nodes/status` (cloud
//!    provider), to change `volumeattachments` (storage driver), to create ClusterRoleBindings (the Go VDO,
//!    which installs the drivers' own). The binding names the account, or the group of all accounts in the
//!    namespace; the groups of all accounts in the cluster prove nothing. A pod runs only under an account of
//!    its own namespace, and only a cluster admin creates ClusterRoleBindings. One workload with such an
//!    account proves the other workloads of that driver in its namespace: node plugins need no permission of
//!    their own.
//!
//! So a driver that an admin installed in an unusual namespace still counts: it blocks a second driver, and
//! VDO reports it. VDO-1914 names every other lookalike. A lookalike has no effect: it blocks nothing, sets
//! no version in a status, and VDO never adopts it.
//!
//! VDO does not use two other kinds of evidence. A CSINode shows that *a* driver is registered, not which
//! workload runs it; it outlives the driver on a dead node, and the cloud provider has none. `hostPath` and
//! `hostNetwork` prove nothing where pod security is not enforced.
//!
//! While VDO cannot read the ClusterRoles or their bindings, every lookalike counts: not installing a driver
//! is the safe error, and no tenant can cause it.

use std::collections::{BTreeMap, BTreeSet};

use catalog::Driver;
use health::facts::Known;
use k8s_openapi::api::{
    apps::v1::{DaemonSet, Deployment},
    core::v1::PodTemplateSpec,
    rbac::v1::{ClusterRole, ClusterRoleBinding, PolicyRule, Subject},
};
use kube::ResourceExt;
use plan::{ObjectId, names};

use super::{Stores, driver_permissions::RoleRules, drivers::part};
use crate::allowed_namespaces;

/// The permissions of a ClusterRole that identify a driver or the Go VDO.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Permissions {
    /// To change the status of nodes.
    nodes: bool,
    /// To change VolumeAttachments.
    attachments: bool,
    /// To create ClusterRoleBindings.
    grants: bool,
}

impl Permissions {
    /// The identifying permissions of a role, if it has any.
    pub(crate) fn from_role(role: &ClusterRole) -> Option<Self> {
        let may = |group: &str, resource: &str, verbs: &[&str]| {
            let mut rules = role.rules.iter().flatten();
            rules.any(|rule| allows(rule, group, resource, verbs))
        };
        let change = ["update", "patch"];
        let storage = "storage.k8s.io";
        let found = Self {
            nodes: may("", "nodes/status", &change),
            attachments: may(storage, "volumeattachments", &change)
                || may(storage, "volumeattachments/status", &change),
            grants: may("rbac.authorization.k8s.io", "clusterrolebindings", &["create"]),
        };
        (found != Self::default()).then_some(found)
    }

    fn and(self, more: Self) -> Self {
        Self {
            nodes: self.nodes || more.nodes,
            attachments: self.attachments || more.attachments,
            grants: self.grants || more.grants,
        }
    }

    fn prove(self, driver: Driver) -> bool {
        match driver {
            Driver::Cpi => self.nodes,
            Driver::Csi => self.attachments,
        }
    }
}

/// Whether a rule allows one of the verbs on every object of a resource.
fn allows(rule: &PolicyRule, group: &str, resource: &str, verbs: &[&str]) -> bool {
    let any_name = rule.resource_names.as_ref().is_none_or(Vec::is_empty);
    let subresource = resource.split_once('/').map(|(_, part)| format!("*/{part}"));
    let groups = rule.api_groups.iter().flatten();
    let resources = rule.resources.iter().flatten();
    any_name
        && groups.into_iter().any(|one| one == "*" || one == group)
        && resources
            .into_iter()
            .any(|one| one == "*" || one == resource || Some(one) == subresource.as_ref())
        && rule.verbs.iter().any(|one| one == "*" || verbs.contains(&one.as_str()))
}

/// A ClusterRole, reduced to the parts that VDO compares.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct CachedRole {
    /// Its identifying permissions, if it has any.
    identifies: Option<Permissions>,
    pub(crate) rules: RoleRules,
}

impl CachedRole {
    pub(crate) fn from_role(role: &ClusterRole) -> Self {
        Self { identifies: Permissions::from_role(role), rules: RoleRules::from_role(role) }
    }
}

/// A ClusterRoleBinding: its role, and the service accounts it names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Binding {
    role: String,
    accounts: Vec<Account>,
    /// Groups that contain service accounts.
    groups: Vec<String>,
}

impl Binding {
    /// The cached part of a binding; none if it names no service account.
    pub(crate) fn from_binding(binding: &ClusterRoleBinding) -> Option<Self> {
        let subjects = binding.subjects.iter().flatten();
        let accounts: Vec<Account> = subjects.clone().filter_map(account_of).collect();
        let groups = subjects.filter(|subject| subject.kind == "Group");
        let groups = groups.map(|subject| subject.name.clone());
        let groups: Vec<String> = groups.filter(|name| has_service_accounts(name)).collect();
        let role = binding.role_ref.name.clone();
        let names_any = !accounts.is_empty() || !groups.is_empty();
        names_any.then_some(Self { role, accounts, groups })
    }

    pub(crate) fn role(&self) -> &str {
        &self.role
    }

    /// Whether it gives its role to a service account, by name or through a group.
    pub(crate) fn binds(&self, namespace: &str, account: &str) -> bool {
        let named = |(within, name): &Account| within == namespace && name == account;
        self.accounts.iter().any(named)
            || self
                .groups
                .iter()
                .any(|group| namespace_of(group).is_none_or(|within| within == namespace))
    }
}

/// The service account that a subject names, also by its user name.
fn account_of(subject: &Subject) -> Option<Account> {
    match subject.kind.as_str() {
        "ServiceAccount" => Some((subject.namespace.clone()?, subject.name.clone())),
        "User" => {
            let account = subject.name.strip_prefix("system:serviceaccount:")?;
            let (namespace, name) = account.split_once(':')?;
            Some((namespace.to_owned(), name.to_owned()))
        }
        _ => None,
    }
}

/// The namespace whose service accounts a group contains; `None` for a group of all service accounts.
fn namespace_of(group: &str) -> Option<&str> {
    group.strip_prefix("system:serviceaccounts:")
}

fn has_service_accounts(group: &str) -> bool {
    group == "system:authenticated" || group.starts_with("system:serviceaccounts")
}

/// Namespace and name of a service account.
type Account = (String, String);

/// The service accounts with identifying permissions in the whole cluster.
#[derive(Clone, Debug, Default)]
pub(crate) struct Accounts {
    named: BTreeMap<Account, Permissions>,
    /// The permissions of all service accounts in a namespace.
    of_namespaces: BTreeMap<String, Permissions>,
}

impl Accounts {
    /// Joins the permissions of ClusterRoles, by name, with all bindings.
    pub(crate) fn join<'b>(
        roles: &BTreeMap<String, Permissions>,
        bindings: impl IntoIterator<Item = &'b Binding>,
    ) -> Self {
        let mut accounts = Self::default();
        for binding in bindings {
            let Some(more) = roles.get(&binding.role) else { continue };
            for account in &binding.accounts {
                let all = accounts.named.entry(account.clone()).or_default();
                *all = all.and(*more);
            }
            for namespace in binding.groups.iter().filter_map(|group| namespace_of(group)) {
                let all = accounts.of_namespaces.entry(namespace.to_owned()).or_default();
                *all = all.and(*more);
            }
        }
        accounts
    }

    fn permissions(&self, namespace: &str, template: Option<&PodTemplateSpec>) -> Permissions {
        let spec = template.and_then(|template| template.spec.as_ref());
        let name = spec
            .and_then(|spec| spec.service_account_name.as_ref().or(spec.service_account.as_ref()));
        let name = name.filter(|name| !name.is_empty()).map_or("default", String::as_str);
        let own = self.named.get(&(namespace.to_owned(), name.to_owned())).copied();
        let of_all = self.of_namespaces.get(namespace).copied();
        own.unwrap_or_default().and(of_all.unwrap_or_default())
    }
}

/// The installations outside the allowed namespaces that count.
#[derive(Debug)]
pub(crate) struct Provenance {
    /// The drivers that are proven, each with its namespace; `None` if VDO cannot read the evidence.
    proven: Option<BTreeSet<(Driver, String)>>,
}

impl Provenance {
    /// Judges all workloads by the permissions of their accounts.
    pub(crate) fn judge<'w>(
        accounts: &Known<Accounts>,
        sets: impl IntoIterator<Item = &'w DaemonSet>,
        deployments: impl IntoIterator<Item = &'w Deployment>,
    ) -> Self {
        let Known::Known(accounts) = accounts else { return Self { proven: None } };
        let sets = sets.into_iter().filter_map(|set| {
            let template = set.spec.as_ref().map(|spec| &spec.template);
            accounts.proves("DaemonSet", set, template)
        });
        let deployments = deployments.into_iter().filter_map(|deployment| {
            let template = deployment.spec.as_ref().map(|spec| &spec.template);
            accounts.proves("Deployment", deployment, template)
        });
        Self { proven: Some(sets.chain(deployments).collect()) }
    }

    /// Whether workloads in this namespace that look like this driver's are the driver's.
    pub(crate) fn counts(&self, driver: Driver, namespace: &str) -> bool {
        let is_proven =
            |proven: &BTreeSet<(Driver, String)>| proven.contains(&(driver, namespace.to_owned()));
        allowed_namespaces::has(namespace) || self.proven.as_ref().is_none_or(is_proven)
    }
}

impl Accounts {
    /// The driver and the namespace that a workload outside the allowed namespaces proves.
    fn proves(
        &self,
        kind: &str,
        object: &impl ResourceExt,
        template: Option<&PodTemplateSpec>,
    ) -> Option<(Driver, String)> {
        let namespace = object.namespace().unwrap_or_default();
        if allowed_namespaces::has(&namespace) {
            return None;
        }
        let (driver, _) = part(kind, object, template)?;
        let proven = self.permissions(&namespace, template).prove(driver);
        proven.then_some((driver, namespace))
    }
}

impl Stores {
    /// The service accounts with identifying permissions.
    pub(crate) fn accounts(&self) -> Known<Accounts> {
        let identifying = |all: &BTreeMap<String, CachedRole>| {
            let roles =
                all.iter().filter_map(|(name, role)| Some((name.clone(), role.identifies?)));
            roles.collect::<BTreeMap<String, Permissions>>()
        };
        let roles = match self.roles.read(identifying) {
            Known::Known(roles) => roles,
            Known::Unknown { reason } => return Known::Unknown { reason },
        };
        self.bindings.read(|bindings| Accounts::join(&roles, bindings.values()))
    }

    /// The Deployment of the Go VDO, if it has replicas and is not the Deployment of this process, and the
    /// Deployments that only share its name. `own`: the operator's namespace.
    pub(crate) fn go_vdo(&self, own: &str, pod: Option<&str>) -> (Option<ObjectId>, Vec<ObjectId>) {
        let accounts = self.accounts();
        let ourselves = pod.is_some_and(|pod| pod.starts_with(names::PREDECESSOR));
        let (mut found, mut lookalikes) = (None, Vec::new());
        for deployment in self.deployments.state() {
            let namespace = deployment.namespace().unwrap_or_default();
            let replicas = deployment.spec.as_ref().map_or(1, |spec| spec.replicas.unwrap_or(1));
            if deployment.name_any() != names::PREDECESSOR
                || replicas == 0
                || ourselves && namespace == own
            {
                continue;
            }
            let counts = is_go_vdo(&accounts, own, &deployment);
            let id = ObjectId {
                api_version: "apps/v1".into(),
                kind: "Deployment".into(),
                namespace,
                name: deployment.name_any(),
            };
            if counts {
                found = Some(id);
            } else {
                lookalikes.push(id);
            }
        }
        (found, lookalikes)
    }
}

/// Whether a Deployment with the name of the Go VDO is the Go VDO. `own`: the operator's namespace.
fn is_go_vdo(accounts: &Known<Accounts>, own: &str, deployment: &Deployment) -> bool {
    let namespace = deployment.namespace().unwrap_or_default();
    let template = deployment.spec.as_ref().map(|spec| &spec.template);
    match accounts {
        _ if namespace == own || namespace == api::NAMESPACE => true,
        Known::Known(accounts) => accounts.permissions(&namespace, template).grants,
        Known::Unknown { .. } => true,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    const CSI_IMAGE: &str = "registry.k8s.io/csi-vsphere/driver:v3.7.0";
    const CPI_IMAGE: &str = "registry.k8s.io/cloud-pv-vsphere/cloud-provider-vsphere:v1.36.0";

    fn role(rules: &Value) -> ClusterRole {
        serde_json::from_value(json!({"metadata": {"name": "role"}, "rules": rules})).unwrap()
    }

    /// The accounts after a cluster admin bound a role with these rules to this account.
    fn bound(rules: &Value, namespace: &str, account: &str) -> Known<Accounts> {
        bound_to(rules, &json!({"kind": "ServiceAccount", "namespace": namespace, "name": account}))
    }

    fn bound_to(rules: &Value, subject: &Value) -> Known<Accounts> {
        let binding: ClusterRoleBinding = serde_json::from_value(json!({
            "metadata": {"name": "binding"},
            "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "role"},
            "subjects": [{"kind": "User", "name": "somebody"}, subject],
        }))
        .unwrap();
        let permissions =
            Permissions::from_role(&role(rules)).map(|found| ("role".to_owned(), found));
        Known::Known(Accounts::join(
            &permissions.into_iter().collect(),
            &Binding::from_binding(&binding),
        ))
    }

    fn nobody() -> Known<Accounts> {
        Known::Known(Accounts::default())
    }

    fn workload<K: serde::de::DeserializeOwned>(
        namespace: &str,
        name: &str,
        account: Option<&str>,
        image: &str,
    ) -> K {
        let labels = json!({plan::names::MANAGED_BY_LABEL: plan::names::MANAGED_BY});
        serde_json::from_value(json!({
            "metadata": {
                "name": name, "namespace": namespace, "labels": labels,
                "ownerReferences": [{
                    "apiVersion": "vdo.vmware.com/v1alpha1", "kind": "VDOConfig",
                    "name": "vdo-config", "uid": "u", "controller": true,
                }],
            },
            "spec": {"selector": {}, "template": {"spec": {
                "serviceAccountName": account, "hostNetwork": true,
                "containers": [{"name": "driver", "image": image}],
            }}},
        }))
        .unwrap()
    }

    fn attachments() -> Value {
        json!([{"apiGroups": ["storage.k8s.io"], "resources": ["volumeattachments"], "verbs": ["get", "patch"]}])
    }

    #[test]
    fn a_workload_of_a_tenant_is_no_driver_whatever_it_claims() {
        let set = workload::<DaemonSet>("tenant", "vsphere-csi-node", Some("driver"), CSI_IMAGE);
        let name = "vsphere-csi-controller";
        let controller = workload::<Deployment>("tenant", name, Some("driver"), CSI_IMAGE);
        let cloud = workload::<Deployment>("tenant", "cloud", None, CPI_IMAGE);
        // None of these proves the driver: no binding, an account in another namespace or of another name,
        // too few permissions.
        let reads =
            json!([{"apiGroups": ["*"], "resources": ["*"], "verbs": ["get", "list", "watch"]}]);
        let named = json!([{
            "apiGroups": [""], "resources": ["nodes/status"], "verbs": ["*"], "resourceNames": ["node-1"],
        }]);
        for accounts in [
            nobody(),
            bound(&attachments(), "vmware-system-csi", "driver"),
            bound(&attachments(), "tenant", "other"),
            bound(&reads, "tenant", "driver"),
            bound(&named, "tenant", "default"),
        ] {
            let provenance = Provenance::judge(&accounts, [&set], [&controller, &cloud]);
            for driver in [Driver::Cpi, Driver::Csi] {
                assert!(!provenance.counts(driver, "tenant"), "{driver} {accounts:?}");
            }
        }
    }

    #[test]
    fn a_driver_in_an_unusual_namespace_is_known_by_the_permissions_of_its_account() {
        let name = "vsphere-csi-controller";
        let controller = workload::<Deployment>("storage", name, Some("driver"), CSI_IMAGE);
        let accounts = bound(&attachments(), "storage", "driver");
        let provenance = Provenance::judge(&accounts, [], [&controller]);
        assert!(provenance.counts(Driver::Csi, "storage"), "the node plugin with its controller");
        assert!(!provenance.counts(Driver::Cpi, "storage"), "the other driver is not proven");
        assert!(!provenance.counts(Driver::Csi, "tenant"));

        let cloud = workload::<DaemonSet>("cloud", "cpi", None, CPI_IMAGE);
        let status =
            json!([{"apiGroups": [""], "resources": ["nodes/status"], "verbs": ["patch"]}]);
        let accounts = bound(&status, "cloud", "default");
        assert!(Provenance::judge(&accounts, [&cloud], []).counts(Driver::Cpi, "cloud"));
    }

    #[test]
    fn a_binding_can_name_the_account_as_a_user_or_all_accounts_of_the_namespace() {
        let name = "vsphere-csi-controller";
        let controller = workload::<Deployment>("storage", name, Some("driver"), CSI_IMAGE);
        let proven_by = |kind: &str, subject: &str| {
            let accounts = bound_to(&attachments(), &json!({"kind": kind, "name": subject}));
            Provenance::judge(&accounts, [], [&controller]).counts(Driver::Csi, "storage")
        };
        assert!(proven_by("User", "system:serviceaccount:storage:driver"));
        assert!(proven_by("Group", "system:serviceaccounts:storage"));
        assert!(!proven_by("User", "system:serviceaccount:storage:other"));
        assert!(!proven_by("Group", "system:serviceaccounts:other"));
        // A permission of everybody distinguishes nobody.
        assert!(!proven_by("Group", "system:serviceaccounts"));
        assert!(!proven_by("Group", "system:authenticated"));
    }

    #[test]
    fn in_the_allowed_namespaces_a_workload_is_what_it_looks_like() {
        let provenance = Provenance::judge(&nobody(), [], []);
        assert!(provenance.counts(Driver::Cpi, "kube-system"));
        assert!(provenance.counts(Driver::Csi, "vmware-system-csi"));
    }

    #[test]
    fn a_second_driver_is_not_risked_while_the_permissions_cannot_be_read() {
        let provenance = Provenance::judge(&Known::unknown("forbidden"), [], []);
        assert!(provenance.counts(Driver::Csi, "storage"));
    }

    #[test]
    fn the_go_vdo_is_known_by_its_namespace_or_by_the_permissions_it_can_grant() {
        let go_vdo = |namespace: &str, account: Option<&str>| {
            workload::<Deployment>(
                namespace,
                plan::names::PREDECESSOR,
                account,
                "vmware.com/vdo:0.2.0",
            )
        };
        let is = |accounts: &Known<Accounts>, deployment: &Deployment| {
            is_go_vdo(accounts, "operators", deployment)
        };
        assert!(is(&nobody(), &go_vdo("vmware-system-vdo", None)));
        assert!(is(&nobody(), &go_vdo("operators", None)));
        assert!(!is(&nobody(), &go_vdo("tenant", Some("vdo-controller-manager"))));
        let group = "rbac.authorization.k8s.io";
        let all =
            json!([{"apiGroups": [group], "resources": ["clusterrolebindings"], "verbs": ["*"]}]);
        let accounts = bound(&all, "openshift-operators", "default");
        assert!(is(&accounts, &go_vdo("openshift-operators", None)), "as OLM installs it");
        assert!(!is(&accounts, &go_vdo("tenant", None)));
    }
}
