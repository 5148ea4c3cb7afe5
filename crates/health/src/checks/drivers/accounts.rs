//! The service accounts of drivers that VDO does not apply have the permissions of their release.

use std::collections::BTreeSet;

use crate::{
    checks::prelude::*,
    facts::{DriverAccount, InstalledDriver, Permission},
};

pub(super) const CHECK: Check = Check {
    name: "drivers/accounts",
    gives: &[codes::ACCOUNT_LACKS_PERMISSIONS],
    run: CheckScope::Cluster(&[Part::Pods], check),
};

/// How many permissions the finding names.
const NAMED: usize = 6;

fn check(view: &FactsView<'_>, sink: &mut Sink) {
    for driver in view.drivers() {
        let question = format!("which permissions the accounts of {} have", driver.name);
        let Some(accounts) = sink.need(&driver.accounts, cluster_subject, question) else {
            continue;
        };
        for account in accounts.iter().filter(|account| !account.lacks.is_empty()) {
            sink.raise(hit(driver, account));
        }
    }
}

fn hit(driver: &InstalledDriver, account: &DriverAccount) -> Hit {
    let DriverAccount { namespace, name, lacks, .. } = account;
    let (create, bind) = steps(account);
    let first = lacks.first().cloned().unwrap_or_default();
    Hit::new(
        codes::ACCOUNT_LACKS_PERMISSIONS,
        Subject::kubernetes("ServiceAccount", Some(namespace), name),
    )
    .with("account", format!("ServiceAccount {namespace}/{name}"))
    .with("workload", &account.workload)
    .with("permissions", permissions(lacks))
    .with("roles", roles(account))
    .with("create", create)
    .with("bind", bind)
    .with("verb", &first.verb)
    .with("resource", first.qualified_resource())
    .with("user", format!("system:serviceaccount:{namespace}:{name}"))
    .driver(&driver.name)
}

fn permissions(lacks: &[Permission]) -> String {
    let named = lacks.iter().take(NAMED);
    let named = named.map(|one| format!("{} {}", one.verb, one.qualified_resource()));
    let named = named.collect::<Vec<_>>().join(", ");
    match lacks.len().saturating_sub(NAMED) {
        0 => named,
        more => format!("{named} and {more} more permissions"),
    }
}

fn roles(account: &DriverAccount) -> String {
    let missing = account.roles.iter().filter(|(_, exists)| !**exists).map(|(name, _)| name);
    let missing: Vec<&str> = missing.map(String::as_str).collect();
    let bound: Vec<&str> = account.roles.keys().map(String::as_str).collect();
    let role = &account.release_role;
    match () {
        () if !missing.is_empty() => {
            format!(
                "a ClusterRoleBinding names ClusterRole {}, which does not exist",
                missing.join(", ")
            )
        }
        () if !bound.contains(&role.as_str()) => {
            format!("no ClusterRoleBinding gives it ClusterRole {role}")
        }
        () => format!("ClusterRole {} does not grant them", bound.join(", ")),
    }
}

/// The commands that grant the permissions: a ClusterRole, if there is none to bind, and its binding.
fn steps(account: &DriverAccount) -> (String, String) {
    let DriverAccount { namespace, name, lacks, release_role, .. } = account;
    let bind = |role: &str| {
        format!(
            "kubectl create clusterrolebinding {namespace}-{role} --clusterrole {role} \
             --serviceaccount {namespace}:{name}"
        )
    };
    if account.release_role_exists && !account.roles.contains_key(release_role) {
        return (String::new(), bind(release_role));
    }
    let resources: BTreeSet<String> = lacks.iter().map(Permission::qualified_resource).collect();
    let verbs: BTreeSet<&str> = lacks.iter().map(|one| one.verb.as_str()).collect();
    // One command grants every verb on every resource: it must not grant more than the account lacks.
    if resources.len() * verbs.len() != lacks.len() {
        let step = format!("Apply the ClusterRole {release_role} of the driver's release again");
        return (step, String::new());
    }
    let (resources, verbs): (Vec<String>, Vec<&str>) =
        (resources.into_iter().collect(), verbs.into_iter().collect());
    // The name tells what the role is for, and another lack gets another role.
    let role = format!("{name}-{}-{}", verbs.join("-"), resources.join("-").replace('/', "-"));
    let role: String = role.chars().take(200).collect();
    let create = format!(
        "kubectl create clusterrole {role} --verb {} --resource {}",
        verbs.join(","),
        resources.join(",")
    );
    (create, bind(&role))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn account(lacks: &[(&str, &str)], bound: bool) -> DriverAccount {
        let role = "vsphere-csi-controller-role".to_owned();
        let permission = |(verb, resource): &(&str, &str)| Permission {
            verb: (*verb).into(),
            group: "storage.k8s.io".into(),
            resource: (*resource).into(),
        };
        DriverAccount {
            workload: "Deployment vsphere-csi-controller".into(),
            namespace: "vmware-system-csi".into(),
            name: "vsphere-csi-controller".into(),
            lacks: lacks.iter().map(permission).collect(),
            roles: bound.then(|| (role.clone(), true)).into_iter().collect(),
            release_role: role,
            release_role_exists: true,
        }
    }

    #[test]
    fn a_lost_verb_is_reported_with_the_role_and_the_commands_that_grant_it() {
        shows(
            &CHECK,
            &["VDO-1623"],
            |facts| {
                let lost = account(&[("patch", "volumeattachments")], true);
                facts.storage_driver().accounts = vec![lost].into();
            },
            |facts| {
                facts.storage_driver().accounts = Known::unknown("VDO cannot list ClusterRoles");
            },
        );
        let lost = account(&[("patch", "volumeattachments/status")], true);
        assert_eq!(
            steps(&lost).0,
            "kubectl create clusterrole vsphere-csi-controller-patch-volumeattachments.storage.k8s.io-status \
             --verb patch --resource volumeattachments.storage.k8s.io/status"
        );
        assert!(roles(&lost).contains("ClusterRole vsphere-csi-controller-role does not grant"));
        let several = account(&[("patch", "volumeattachments"), ("get", "csinodes")], true);
        assert!(steps(&several).0.starts_with("Apply the ClusterRole"), "no more than is lacked");
    }

    #[test]
    fn an_unbound_account_gets_its_binding_back() {
        let unbound = account(&[("patch", "volumeattachments")], false);
        let (create, bind) = steps(&unbound);
        assert_eq!(create, "");
        assert!(
            bind.contains("--clusterrole vsphere-csi-controller-role --serviceaccount"),
            "{bind}"
        );
        assert!(roles(&unbound).starts_with("no ClusterRoleBinding gives it"));
    }

    #[test]
    fn a_complete_account_is_fine() {
        let mut facts = healthy();
        facts.storage_driver().accounts = vec![account(&[], true)].into();
        assert_eq!(codes_of(&CHECK, &facts), [""; 0]);
    }
}
