//! Computes the reach of a stolen token of the operator from the manifest, and compares it with SECURITY.md.
#![allow(clippy::unwrap_used, reason = "a failed unwrap fails the test")]

mod rbac;

use std::collections::{BTreeMap, BTreeSet};

use catalog::manifest::Object;
use rbac::{Request, Rule, rules_of};

const BEGIN: &str =
    "<!-- reach: written by UPDATE_DOCS=1 cargo test -p operator --test reach -->\n";
const END: &str = "<!-- reach: end -->\n";

/// Resources whose objects run pods.
const WORKLOADS: [(&str, &str); 7] = [
    ("", "pods"),
    ("", "replicationcontrollers"),
    ("apps", "deployments"),
    ("apps", "daemonsets"),
    ("apps", "replicasets"),
    ("apps", "statefulsets"),
    ("batch", "jobs"),
];

/// The verbs with which an account makes a workload run pods. A change of the template also replaces the pods.
const RUNS_PODS: [&str; 3] = ["create", "update", "patch"];

/// The objects that rules of one resource are about.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Names {
    Any,
    Only(BTreeSet<String>),
}

impl Names {
    fn from_rules<'r>(rules: impl IntoIterator<Item = &'r Rule>) -> Self {
        let none = Self::Only(BTreeSet::new());
        rules.into_iter().fold(none, |all, rule| {
            let named = rule.names.iter().cloned().collect();
            all.and(if rule.names.is_empty() { Self::Any } else { Self::Only(named) })
        })
    }

    /// Any name next to some names is any name.
    fn and(self, more: Self) -> Self {
        match (self, more) {
            (Self::Only(some), Self::Only(more)) => {
                Self::Only(some.into_iter().chain(more).collect())
            }
            _ => Self::Any,
        }
    }

    fn with_prefix(self, resource: &str) -> Self {
        match self {
            Self::Any => Self::Any,
            Self::Only(names) => {
                Self::Only(names.iter().map(|name| format!("{resource}/{name}")).collect())
            }
        }
    }
}

/// The permissions of an account.
struct Token {
    rules: Vec<Rule>,
    objects: Vec<Object>,
}

impl Token {
    fn of_operator() -> Self {
        let objects = operator::install::objects();
        Self { rules: rules_of(&objects, api::NAMESPACE, "vdo"), objects }
    }

    /// The namespaces of the manifest's roles, and `default` for all others.
    fn namespaces(&self) -> BTreeSet<String> {
        let named = self.rules.iter().filter_map(|rule| rule.namespace.clone());
        named.chain(["default".to_owned()]).collect()
    }

    /// The rules that grant one of these verbs on a resource in a namespace, or in the whole cluster if it is empty.
    fn grants(
        &self,
        verbs: &'static [&'static str],
        group: &'static str,
        resource: &'static str,
        namespace: &str,
    ) -> impl Iterator<Item = &Rule> {
        let namespace = namespace.to_owned();
        self.rules.iter().filter(move |rule| {
            verbs.iter().any(|verb| {
                let name = rule.names.first().map(String::as_str).unwrap_or_default();
                let namespace = namespace.as_str();
                rule.allows(&Request { verb, group, resource, namespace, name })
            })
        })
    }

    /// The namespaces and object names for which the account has one of these verbs.
    fn places(
        &self,
        verbs: &'static [&'static str],
        group: &'static str,
        resource: &'static str,
    ) -> BTreeMap<String, Names> {
        let mut places = BTreeMap::new();
        for namespace in self.namespaces() {
            let rules: Vec<&Rule> = self.grants(verbs, group, resource, &namespace).collect();
            if !rules.is_empty() {
                places.insert(namespace, Names::from_rules(rules));
            }
        }
        places
    }

    /// The namespaces in which the account can run pods, and the objects that run them. A change of a running pod
    /// creates none, so the table has another row for it.
    fn pods(&self) -> BTreeMap<String, Names> {
        let mut all: BTreeMap<String, Names> = BTreeMap::new();
        for (group, resource) in WORKLOADS {
            let verbs: &[&str] = if resource == "pods" { &["create"] } else { &RUNS_PODS };
            for (namespace, names) in self.places(verbs, group, resource) {
                let names = names.with_prefix(resource);
                let names = match all.remove(&namespace) {
                    Some(known) => known.and(names),
                    None => names,
                };
                all.insert(namespace, names);
            }
        }
        all
    }

    /// Whether the account can get a token of another account in the namespace: it creates a token Secret for it and
    /// reads the Secret.
    fn takes_tokens(&self, namespace: &str) -> bool {
        let has = |verbs| self.grants(verbs, "", "secrets", namespace).next().is_some();
        (has(&["create"]) && has(&["get", "list", "watch"]))
            || self.grants(&["create"], "", "serviceaccounts/token", namespace).next().is_some()
    }

    /// The namespaces whose Secrets a pod can list that uses another account of the manifest, in a namespace where this
    /// account can run pods.
    fn through_accounts(&self) -> BTreeSet<String> {
        let pods = self.pods();
        let bindings = self.objects.iter().filter(|object| object.kind().ends_with("RoleBinding"));
        let subjects = bindings.flat_map(|b| b.0["subjects"].as_array().into_iter().flatten());
        let text = |value: &serde_json::Value| value.as_str().unwrap_or_default().to_owned();
        let accounts: BTreeSet<(String, String)> =
            subjects.map(|s| (text(&s["namespace"]), text(&s["name"]))).collect();
        let mut found = BTreeSet::new();
        for (namespace, name) in accounts.iter().filter(|(place, _)| pods.contains_key(place)) {
            let rules = rules_of(&self.objects, namespace, name);
            let other = Self { rules, objects: Vec::new() };
            let places = other.places(&["list"], "", "secrets");
            let lists = places.into_iter().filter(|(_, names)| *names == Names::Any);
            found.extend(lists.map(|(namespace, _)| namespace));
        }
        found
    }

    /// The resources that the account can write in the whole cluster, `named` or under any name. Those of `vdo.vmware.com`
    /// are its own.
    fn writes(&self, verbs: &[&str], named: bool) -> BTreeSet<String> {
        let cluster = self.rules.iter().filter(|rule| rule.namespace.is_none());
        written(cluster, verbs, named)
    }

    /// The resources that the account can write in a namespace under any name.
    fn writes_in(&self, namespace: &str) -> BTreeSet<String> {
        let own = self.rules.iter().filter(|rule| rule.namespace.as_deref() == Some(namespace));
        written(own, &["create", "update", "patch", "delete"], false)
    }

    /// The cluster-scoped resources that the account can delete.
    fn deletes(&self) -> BTreeSet<String> {
        let cluster = self.rules.iter().filter(|rule| rule.namespace.is_none());
        let deleting = cluster.filter(|rule| rule.verbs.iter().any(|verb| verb == "delete"));
        let named = |rule: &Rule| {
            let few = if rule.names.is_empty() { "" } else { " (by name)" };
            rule.resources.iter().map(move |one| format!("{one}{few}")).collect::<Vec<_>>()
        };
        deleting.flat_map(named).collect()
    }

    /// The roles that the account can bind. None if it can bind any role, or escalate.
    fn binds(&self) -> Option<BTreeSet<String>> {
        let granting = self.rules.iter().filter(|rule| {
            rule.verbs.iter().any(|verb| ["bind", "escalate", "*"].contains(&verb.as_str()))
        });
        let mut names = BTreeSet::new();
        for rule in granting {
            let escalates = rule.verbs.iter().any(|verb| verb == "escalate" || verb == "*");
            if rule.names.is_empty() || escalates {
                return None;
            }
            names.extend(rule.names.iter().cloned());
        }
        Some(names)
    }

    /// Whether the namespace allows privileged pods. `kube-system` has no limit of its own.
    fn runs_privileged(&self, namespace: &str) -> bool {
        let label = "pod-security.kubernetes.io/enforce";
        let mut own = self.objects.iter().filter(|o| o.kind() == "Namespace");
        let own = own.find(|o| o.name() == namespace);
        own.is_none_or(|own| own.0["metadata"]["labels"][label] == "privileged")
    }
}

fn written<'r>(
    rules: impl Iterator<Item = &'r Rule>,
    verbs: &[&str],
    named: bool,
) -> BTreeSet<String> {
    let writing = rules.filter(|rule| rule.names.is_empty() != named);
    let writing =
        writing.filter(|rule| rule.verbs.iter().any(|verb| verbs.contains(&verb.as_str())));
    let others = writing.filter(|rule| rule.groups.iter().all(|group| group != api::GROUP));
    others.flat_map(|rule| rule.resources.iter().cloned()).collect()
}

fn list(all: impl IntoIterator<Item = impl AsRef<str>>) -> String {
    let all: Vec<String> = all.into_iter().map(|one| format!("`{}`", one.as_ref())).collect();
    if all.is_empty() { "none".to_owned() } else { all.join(", ") }
}

fn counted(places: &BTreeMap<String, Names>) -> String {
    let place = |(namespace, names): (&String, &Names)| match names {
        Names::Any => format!("`{namespace}`: any name"),
        Names::Only(names) => format!("`{namespace}`: {} names", names.len()),
    };
    places.iter().map(place).collect::<Vec<_>>().join("; ")
}

fn table(token: &Token) -> String {
    let pods = token.pods();
    let privileged: Vec<&String> = pods.keys().filter(|ns| token.runs_privileged(ns)).collect();
    let tokens: Vec<String> =
        token.namespaces().into_iter().filter(|ns| token.takes_tokens(ns)).collect();
    let read = token.places(&["get", "list", "watch"], "", "secrets");
    let written = token.places(&["create", "update", "patch"], "", "secrets");
    let granted = token.binds().map_or_else(|| "every role".to_owned(), list);
    let everything =
        pods.contains_key("kube-system") || tokens.iter().any(|ns| ns == "kube-system");
    let steps = [
        ("read Secrets", counted(&read)),
        (
            "read Secrets with a pod that uses the account of a driver",
            list(token.through_accounts()),
        ),
        ("write Secrets", counted(&written)),
        ("run pods", counted(&pods)),
        ("run privileged pods, so become root on every node", list(&privileged)),
        ("evict pods", list(token.places(&["create"], "", "pods/eviction").keys())),
        (
            "change running pods, also their images",
            list(token.places(&["patch", "update"], "", "pods").keys()),
        ),
        (
            "use any service account of the namespace",
            list(tokens.iter().chain(pods.keys()).collect::<BTreeSet<_>>()),
        ),
        ("grant permissions that it does not hold, with roles", granted),
        (
            "write in the whole cluster, under any name",
            list(token.writes(&["create", "update", "patch"], false)),
        ),
        (
            "write in the whole cluster, by name",
            list(token.writes(&["create", "update", "patch"], true)),
        ),
        ("write in `kube-system`, under any name", list(token.writes_in("kube-system"))),
        ("delete in the whole cluster", list(token.deletes())),
        (
            "become cluster-admin",
            if everything {
                "yes: with a pod or a token of another account of `kube-system`".to_owned()
            } else {
                "no".to_owned()
            },
        ),
    ];
    let rows = steps.iter().map(|(what, reach)| format!("| {what} | {reach} |\n"));
    format!(
        "| with a stolen token of the operator one can | where |\n|---|---|\n{}",
        rows.collect::<String>()
    )
}

#[test]
fn security_md_lists_what_a_stolen_token_reaches() {
    let table = table(&Token::of_operator());
    let path = testkit::repository().join("SECURITY.md");
    let text = std::fs::read_to_string(&path).unwrap();
    let (before, rest) = text.split_once(BEGIN).unwrap();
    let (current, after) = rest.split_once(END).unwrap();
    if std::env::var_os("UPDATE_DOCS").is_some() {
        std::fs::write(path, format!("{before}{BEGIN}{table}{END}{after}")).unwrap();
        return;
    }
    assert_eq!(current, table, "regenerate it: UPDATE_DOCS=1 cargo test -p operator --test reach");
}

#[test]
fn a_stolen_token_reaches_no_secret_and_no_pod_outside_of_the_drivers_namespaces() {
    let token = Token::of_operator();
    let drivers = BTreeSet::from(["kube-system".to_owned(), "vmware-system-csi".to_owned()]);
    assert_eq!(token.pods().into_keys().collect::<BTreeSet<_>>(), drivers);
    let secrets = token.places(&["get", "list", "watch", "create", "patch"], "", "secrets");
    let mut readable = drivers.clone();
    readable.insert(api::NAMESPACE.to_owned());
    assert_eq!(secrets.into_keys().collect::<BTreeSet<_>>(), readable);
    let evictions = token.places(&["create"], "", "pods/eviction");
    assert_eq!(evictions.into_keys().collect::<Vec<_>>(), ["vmware-system-csi"]);
    let changed = token.places(&["patch", "update"], "", "pods");
    assert_eq!(changed.into_keys().collect::<Vec<_>>(), ["vmware-system-csi"]);
    for (group, resource) in WORKLOADS {
        let written = token.places(&["create", "update", "patch", "delete"], group, resource);
        for (namespace, names) in written {
            // The operator changes pods whose names Kubernetes chose, and creates none.
            let known = resource == "pods" && namespace == "vmware-system-csi";
            assert!(known || names != Names::Any, "{resource} in {namespace}: no names");
        }
    }
    let created = token.places(&["create", "delete"], "", "pods");
    assert!(created.is_empty(), "{created:?}");
}

#[test]
fn a_stolen_token_reads_secrets_of_kube_system_only_by_name() {
    let token = Token::of_operator();
    let read = token.places(&["get", "list", "watch"], "", "secrets");
    let known = plan::written_names::readable_secrets();
    assert_eq!(read["kube-system"], Names::Only(known), "and no rule without names");
    assert_eq!(token.binds(), Some(BTreeSet::new()), "no role brings it the others");
}

#[test]
fn a_stolen_token_grants_only_what_the_operator_holds() {
    let token = Token::of_operator();
    let bound = token.binds().expect("no permission to bind any role, and none to escalate");
    assert_eq!(
        bound,
        BTreeSet::new(),
        "Kubernetes then compares a role with the token's own rules"
    );
    let patches = token.grants(&["patch", "update"], "storage.k8s.io", "csinodes", "");
    assert_eq!(patches.count(), 0, "an admin grants this for the remediation");
}

#[test]
fn permissions_that_a_role_grants_indirectly_are_found() {
    let rule = |namespace: Option<&str>, resource: &str, verb: &str, names: &[&str]| Rule {
        role: "x".into(),
        namespace: namespace.map(str::to_owned),
        groups: vec![String::new(), "apps".into(), "rbac.authorization.k8s.io".into()],
        resources: vec![resource.into()],
        verbs: vec![verb.into()],
        names: names.iter().map(|&name| name.to_owned()).collect(),
    };
    let token = |rules: Vec<Rule>| Token { rules, objects: Vec::new() };
    let everywhere = token(vec![rule(None, "deployments", "create", &[])]);
    assert!(
        everywhere.pods().contains_key("default"),
        "a cluster-wide rule applies in every namespace"
    );
    let named = token(vec![rule(Some("a"), "daemonsets", "patch", &["driver"])]);
    let driver = BTreeSet::from(["daemonsets/driver".to_owned()]);
    assert_eq!(named.pods()["a"], Names::Only(driver));
    let mixed = |unnamed: &str| {
        let named = rule(Some("a"), "daemonsets", "patch", &["driver"]);
        token(vec![named, rule(Some("a"), unnamed, "create", &[])])
    };
    for unnamed in ["daemonsets", "deployments", "pods"] {
        let pods = mixed(unnamed).pods();
        assert_eq!(pods["a"], Names::Any, "an unnamed rule next to a named one: {unnamed}");
    }
    let changes = token(vec![rule(Some("a"), "pods", "patch", &[])]);
    assert!(changes.pods().is_empty(), "a change of a running pod creates none");
    let tokens = token(vec![
        rule(Some("a"), "secrets", "create", &["s"]),
        rule(Some("a"), "secrets", "list", &[]),
    ]);
    assert!(tokens.takes_tokens("a") && !tokens.takes_tokens("default"));
    assert_eq!(token(vec![rule(None, "clusterroles", "escalate", &["r"])]).binds(), None);
    assert_eq!(token(vec![rule(None, "clusterroles", "bind", &[])]).binds(), None);
}

#[test]
fn no_rule_of_the_operator_leads_to_other_identities_or_into_running_pods() {
    let verbs = ["impersonate", "escalate", "bind", "approve", "sign", "*"];
    let resources = [
        "*",
        "cronjobs",
        "ephemeralcontainers",
        "nodes/proxy",
        "pods/attach",
        "pods/ephemeralcontainers",
        "pods/exec",
        "pods/portforward",
        "pods/proxy",
        "serviceaccounts/token",
        "services/proxy",
    ];
    for rule in Token::of_operator().rules {
        assert!(!rule.verbs.iter().any(|verb| verbs.contains(&verb.as_str())), "{rule:?}");
        assert!(!rule.resources.iter().any(|one| resources.contains(&one.as_str())), "{rule:?}");
    }
}
