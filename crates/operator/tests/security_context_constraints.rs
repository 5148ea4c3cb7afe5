//! The pods of the operator and of every driver release under the rules of OpenShift's SecurityContextConstraints.
//!
//! No OpenShift runs here. A ValidatingAdmissionPolicy on a real API server reproduces, by hand, the rules of
//! `restricted-v2`, `hostnetwork-v2` and `privileged`, and the check that the pod's account has permission to use the
//! constraints that it requires. It reproduces only what OpenShift refuses, not the defaults that it sets.
#![allow(clippy::unwrap_used, reason = "a failed unwrap fails the test")]

use catalog::manifest::{Object, Profile, profile::Distribution, render};
use k8s_openapi::api::core::v1::{Event, Node, Pod};
use kube::{
    Api, Client, ResourceExt,
    api::{ApiResource, DynamicObject, ListParams, Patch, PatchParams, PostParams},
    core::GroupVersionKind,
};
use serde_json::{Value, json};
use testkit::{ControlPlane, eventually};

/// The annotation that selects the constraints of a pod.
const REQUIRED: &str = "openshift.io/required-scc";
/// The user ids of every namespace in this test. OpenShift gives each namespace a range of its own.
const FIRST_USER: i64 = 1_000_650_000;
const USERS: i64 = 10_000;

fn policy() -> [Object; 2] {
    let in_range = |value: &str| {
        let end = FIRST_USER + USERS;
        format!("({value} >= {FIRST_USER} && {value} < {end})")
    };
    let user = |context: &str| in_range(&format!("{context}.?runAsUser.orValue({FIRST_USER})"));
    let group = |context: &str| in_range(&format!("{context}.?fsGroup.orValue({FIRST_USER})"));
    let (pod, container) = ("object.spec.?securityContext", "c.?securityContext");
    let each = |rule: &str| format!("variables.containers.all(c, {rule})");
    let seccomp = "?seccompProfile.?type.orValue('RuntimeDefault') == 'RuntimeDefault'";
    let volumes = ["configMap", "csi", "downwardAPI", "emptyDir", "ephemeral"];
    let volumes = volumes.iter().chain(&["persistentVolumeClaim", "projected", "secret"]);
    let volumes: Vec<String> = volumes.map(|kind| format!("has(v.{kind})")).collect();
    let network = "variables.scc == 'hostnetwork-v2'";
    let confined = [
        (format!("{network} || !object.spec.?hostNetwork.orValue(false)"), "host network"),
        (
            format!(
                "{network} || {}",
                each("c.?ports.orValue([]).all(p, p.?hostPort.orValue(0) == 0)")
            ),
            "host ports",
        ),
        ("!object.spec.?hostPID.orValue(false)".into(), "host processes"),
        ("!object.spec.?hostIPC.orValue(false)".into(), "host IPC"),
        (format!("object.spec.?volumes.orValue([]).all(v, {})", volumes.join(" || ")), "volumes"),
        (each(&format!("!{container}.?privileged.orValue(false)")), "privileged containers"),
        (
            each(&format!("!{container}.?allowPrivilegeEscalation.orValue(false)")),
            "privilege escalation",
        ),
        (
            each(&format!(
                "{container}.?capabilities.?add.orValue([]).all(a, a == 'NET_BIND_SERVICE')"
            )),
            "capabilities",
        ),
        (format!("{} && {}", user(pod), each(&user(container))), "user ids outside the range"),
        (group(pod), "fsGroup outside the range"),
        (format!("{pod}.{seccomp} && {}", each(&format!("{container}.{seccomp}"))), "seccomp"),
        (format!("!has({0}.seLinuxOptions)", "object.spec.securityContext"), "SELinux options"),
    ];
    let mut validations: Vec<Value> = confined
        .into_iter()
        .map(|(rule, what)| {
            let rule = format!("variables.scc == 'privileged' || {rule}");
            json!({"expression": rule, "messageExpression": format!("variables.scc + ' forbids: {what}'")})
        })
        .collect();
    validations.push(json!({
        "expression": "variables.scc in ['restricted-v2', 'hostnetwork-v2', 'privileged']",
        "messageExpression": "'unknown constraints: ' + variables.scc",
    }));
    validations.push(json!({
        "expression": "authorizer.serviceAccount(request.namespace, variables.account)\
            .group('security.openshift.io').resource('securitycontextconstraints')\
            .namespace(request.namespace).name(variables.scc).check('use').allowed()",
        "messageExpression": "variables.account + ' lacks permission to use ' + variables.scc",
    }));
    let policy = json!({
        "apiVersion": "admissionregistration.k8s.io/v1", "kind": "ValidatingAdmissionPolicy",
        "metadata": {"name": "reproduced-scc"},
        "spec": {
            "failurePolicy": "Fail",
            "matchConstraints": {"resourceRules": [{
                "apiGroups": [""], "apiVersions": ["v1"], "resources": ["pods"], "operations": ["CREATE"],
            }]},
            "variables": [
                {"name": "scc", "expression": format!("object.metadata.?annotations[?'{REQUIRED}'].orValue('')")},
                {"name": "account", "expression": "object.spec.?serviceAccountName.orValue('default')"},
                {"name": "containers", "expression":
                    "object.spec.containers + object.spec.?initContainers.orValue([])"},
            ],
            "validations": validations,
        },
    });
    let binding = json!({
        "apiVersion": "admissionregistration.k8s.io/v1", "kind": "ValidatingAdmissionPolicyBinding",
        "metadata": {"name": "reproduced-scc"},
        "spec": {"policyName": "reproduced-scc", "validationActions": ["Deny"]},
    });
    [Object(policy), Object(binding)]
}

/// On OpenShift every account has permission to use these constraints. It grants this to `system:authenticated`, a group
/// that the policy's check of a service account does not know.
fn everybody_is_restricted() -> [Object; 2] {
    let name = "system:openshift:scc:restricted-v2";
    let rule = json!({
        "apiGroups": ["security.openshift.io"], "resources": ["securitycontextconstraints"],
        "resourceNames": ["restricted-v2"], "verbs": ["use"],
    });
    let group = "rbac.authorization.k8s.io";
    [
        Object(json!({
            "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole",
            "metadata": {"name": name}, "rules": [rule],
        })),
        Object(json!({
            "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRoleBinding",
            "metadata": {"name": name},
            "roleRef": {"apiGroup": group, "kind": "ClusterRole", "name": name},
            "subjects": [{"apiGroup": group, "kind": "Group", "name": "system:serviceaccounts"}],
        })),
    ]
}

/// The API for objects of this kind and namespace.
fn api_of(client: &Client, object: &Object) -> Api<DynamicObject> {
    let (group, version) =
        object.api_version().split_once('/').unwrap_or(("", object.api_version()));
    let resource = ApiResource::from_gvk(&GroupVersionKind::gvk(group, version, object.kind()));
    match object.namespace() {
        "" => Api::all_with(client.clone(), &resource),
        namespace => Api::namespaced_with(client.clone(), namespace, &resource),
    }
}

async fn apply(client: &Client, objects: &[Object]) {
    let apply = PatchParams::apply("test").force();
    for object in objects {
        let (api, change) = (api_of(client, object), Patch::Apply(&object.0));
        let written = api.patch(object.name(), &apply, &change).await.map(drop);
        assert!(written.is_ok(), "{} {}: {written:?}", object.kind(), object.name());
    }
}

/// The answer to a dry run of one pod.
async fn dry_run(client: &Client, namespace: &str, template: &Value) -> Result<(), String> {
    let mut pod = template.clone();
    pod["metadata"]["generateName"] = json!("pod-");
    let pods = Api::<Pod>::namespaced(client.clone(), namespace);
    let dry = PostParams { dry_run: true, ..PostParams::default() };
    let made = pods.create(&dry, &serde_json::from_value(pod).unwrap()).await;
    made.map(drop).map_err(|error| error.to_string())
}

fn template_of<'a>(objects: &'a [Object], name: &str) -> &'a Value {
    objects
        .iter()
        .find(|o| o.name() == name && o.pod_template().is_some())
        .unwrap()
        .pod_template()
        .unwrap()
}

/// A cluster with the reproduced rules, as soon as they are in force.
async fn cluster_with_constraints() -> (ControlPlane, Client) {
    let plane = ControlPlane::builder().with_controllers().start().await;
    let client = plane.client();
    apply(&client, &everybody_is_restricted()).await;
    apply(&client, &policy()).await;
    eventually("a pod without constraints is refused", 60, async || {
        let pod = json!({"metadata": {}, "spec": {"containers": [{"name": "x", "image": "x"}]}});
        let refused = dry_run(&client, "default", &pod).await.err().unwrap_or_default();
        if refused.contains("unknown constraints") { Ok(()) } else { Err(refused) }
    })
    .await;
    (plane, client)
}

/// A control plane node, for the pods of DaemonSets. No kubelet runs there.
async fn add_node(client: &Client) {
    let node = json!({"metadata": {"name": "node-1", "labels": {
        "kubernetes.io/os": "linux", "node-role.kubernetes.io/control-plane": "",
        "node-role.kubernetes.io/master": "",
    }}});
    let node: Node = serde_json::from_value(node).unwrap();
    Api::all(client.clone()).create(&PostParams::default(), &node).await.unwrap();
}

/// Waits until the controllers have created a pod of each workload.
async fn pods_exist(client: &Client, objects: &[Object]) {
    for workload in objects.iter().filter(|object| object.pod_template().is_some()) {
        let pods = Api::<Pod>::namespaced(client.clone(), workload.namespace());
        let events = Api::<Event>::namespaced(client.clone(), workload.namespace());
        let name = workload.name();
        eventually(&format!("a pod of {} {name} is created", workload.kind()), 60, async || {
            let all = pods.list(&ListParams::default()).await.unwrap().items;
            if all.iter().any(|pod| pod.name_any().starts_with(&format!("{name}-"))) {
                return Ok(());
            }
            let failed = ListParams::default().fields("reason=FailedCreate");
            let failed = events.list(&failed).await.unwrap().items;
            Err(failed.into_iter().filter_map(|event| event.message).collect::<Vec<_>>().join("\n"))
        })
        .await;
    }
}

fn openshift() -> Profile {
    let mut profile = Profile::new("1.36.4".parse().unwrap());
    profile.distribution = Distribution::OpenShift;
    profile
}

#[tokio::test]
async fn openshift_admits_the_pods_of_the_operator_and_of_every_driver_release() {
    let (_plane, client) = cluster_with_constraints().await;
    add_node(&client).await;
    let operator = operator::install::objects();
    apply(&client, &operator).await;
    pods_exist(&client, &operator).await;

    let own = catalog::embedded().releases.iter();
    let own = own.filter(|release| release.implementation == catalog::Implementation::Rust);
    for release in own {
        let objects = render(release, &openshift()).unwrap().objects;
        apply(&client, &objects).await;
        pods_exist(&client, &objects).await;
    }
    let mut admitted = 0;
    for release in &catalog::embedded().releases {
        let Ok(rendered) = render(release, &openshift()) else { continue };
        let access = ["ServiceAccount", "ClusterRole", "ClusterRoleBinding"];
        let access = rendered.objects.iter().filter(|o| access.contains(&o.kind())).cloned();
        apply(&client, &access.collect::<Vec<_>>()).await;
        for workload in &rendered.objects {
            let Some(template) = workload.pod_template() else { continue };
            let answer = dry_run(&client, workload.namespace(), template).await;
            assert_eq!(answer, Ok(()), "{} {}", release.version, workload.name());
            admitted += 1;
        }
    }
    assert!(admitted > 20, "{admitted} pods");
}

#[tokio::test]
async fn openshift_refuses_a_fixed_user_id_and_constraints_without_permission() {
    let (_plane, client) = cluster_with_constraints().await;
    let objects = operator::install::objects();
    apply(&client, &objects).await;
    let template = template_of(&objects, "vdo");
    let dry_run = async |change: &dyn Fn(&mut Value)| {
        let mut changed = template.clone();
        change(&mut changed);
        dry_run(&client, api::NAMESPACE, &changed).await.err().unwrap_or_default()
    };
    assert_eq!(dry_run(&|_| {}).await, "");
    let user = dry_run(&|pod| pod["spec"]["securityContext"]["runAsUser"] = json!(65532)).await;
    assert!(user.contains("hostnetwork-v2 forbids: user ids outside the range"), "{user}");
    let allowed =
        dry_run(&|pod| pod["spec"]["securityContext"]["runAsUser"] = json!(FIRST_USER + 7)).await;
    assert_eq!(allowed, "");
    let network =
        dry_run(&|pod| pod["metadata"]["annotations"][REQUIRED] = json!("restricted-v2")).await;
    assert!(network.contains("restricted-v2 forbids: host network"), "{network}");
    let mut on_pod_network = objects.clone();
    operator::install::use_pod_network(&mut on_pod_network);
    let pod = template_of(&on_pod_network, "vdo").clone();
    assert_eq!(pod["metadata"]["annotations"][REQUIRED], "restricted-v2");
    assert_eq!(dry_run(&|changed| *changed = pod.clone()).await, "");
    let account = dry_run(&|pod| pod["spec"]["serviceAccountName"] = json!("default")).await;
    assert!(account.contains("default lacks permission to use hostnetwork-v2"), "{account}");
}
