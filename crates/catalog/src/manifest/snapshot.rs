//! The snapshot components that a cluster shares between all its drivers, for clusters that lack them.
//!
//! They are in `kube-system` under the usual names, as in distributions that include them, so that other tools
//! find the snapshot controller.

use serde_json::{Value, json};

use super::{
    RenderError,
    common::{Controller, confined, disruption_budget, requests},
    crds, image,
    profile::{Profile, Snapshots},
    rbac::{Subject, account, named, rule},
};
use crate::model::Release;

const NAME: &str = "snapshot-controller";
const NAMESPACE: &str = "kube-system";
const USER: i64 = 65532;

pub(super) fn objects(
    release: &Release,
    wanted: Snapshots,
    profile: &Profile,
) -> Result<Vec<Value>, RenderError> {
    let mut objects = Vec::new();
    if wanted.crds {
        objects.extend(crds::snapshots());
    }
    if wanted.controller {
        objects.extend(controller(release, profile)?);
    }
    Ok(objects)
}

fn controller(release: &Release, profile: &Profile) -> Result<Vec<Value>, RenderError> {
    let version = &release.version;
    let subject = Subject { account: NAME, namespace: NAMESPACE, version };
    let group = "snapshot.storage.k8s.io";
    let rules = [
        rule("", &["persistentvolumes"], &["get", "list", "watch"]),
        rule("", &["persistentvolumeclaims"], &["get", "list", "watch", "update"]),
        rule("", &["events"], &["list", "watch", "create", "update", "patch"]),
        rule(group, &["volumesnapshotclasses"], &["get", "list", "watch"]),
        rule(
            group,
            &["volumesnapshotcontents"],
            &["create", "get", "list", "watch", "update", "delete", "patch"],
        ),
        rule(group, &["volumesnapshotcontents/status"], &["patch"]),
        rule(
            group,
            &["volumesnapshots"],
            &["create", "get", "list", "watch", "update", "patch", "delete"],
        ),
        rule(group, &["volumesnapshots/status"], &["update", "patch"]),
    ];
    let lease = [
        // RBAC cannot restrict `create` by name.
        rule("coordination.k8s.io", &["leases"], &["create"]),
        named(
            "coordination.k8s.io",
            &["leases"],
            &["snapshot-controller-leader"],
            &["get", "list", "watch", "update", "delete", "patch"],
        ),
    ];
    let mut objects = vec![account(NAME, NAMESPACE, version)];
    objects.extend(subject.cluster_role(
        "snapshot-controller-runner",
        "snapshot-controller-role",
        &rules,
    ));
    objects.extend(subject.role(
        NAMESPACE,
        "snapshot-controller-leaderelection",
        "snapshot-controller-leaderelection",
        &lease,
    ));
    let selector = json!({ "app.kubernetes.io/name": NAME });
    let container = json!({
        "name": NAME,
        "image": image(release, profile, NAME)?,
        "imagePullPolicy": "IfNotPresent",
        "args": ["--v=4", "--leader-election=true", "--http-endpoint=:8095"],
        "ports": [{ "name": "diag", "containerPort": 8095, "protocol": "TCP" }],
        "livenessProbe": {
            "httpGet": { "path": "/healthz/leader-election", "port": "diag" },
            "initialDelaySeconds": 30,
            "periodSeconds": 60,
            "timeoutSeconds": 10,
            "failureThreshold": 3,
        },
        "resources": requests("10m", "48Mi"),
        "securityContext": confined(Some(USER), profile),
    });
    let deployment = Controller {
        name: NAME,
        namespace: NAMESPACE,
        version,
        selector: selector.clone(),
        role: NAME,
        account: NAME,
        replicas: profile.replicas(2),
        priority: "system-cluster-critical",
        user: Some(USER),
        reads_config: false,
        containers: vec![container],
        volumes: json!([]),
    };
    objects.push(deployment.build(profile));
    objects.push(disruption_budget(NAME, NAMESPACE, version, &selector));
    Ok(objects)
}
