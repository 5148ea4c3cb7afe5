//! The webhook that refuses unsupported requests early.
//!
//! The API server calls it for every StorageClass, volume and claim, so it must not block anything. It only
//! gets objects of this driver if the API server can tell. If it does not answer, the request passes,
//! because the driver refuses the same requests later.

use serde_json::{Value, json};

use super::{
    Expected, RenderError,
    common::{
        CSI_DRIVER, CSI_WEBHOOK, Controller, confined, disruption_budget, env, metadata,
        own_namespace, requests,
    },
    csi_controller::feature_flags,
    image,
    profile::{Profile, Webhook},
    rbac::{Subject, account, rule},
};
use crate::model::{CsiTemplate, Release};

const CERTIFICATES: &str = "vsphere-webhook-certs";
const SERVICE: &str = "vsphere-webhook-svc";
const CONFIGURATION: &str = "validation.csi.vsphere.vmware.com";

/// The key `webhook.config` of the Secret with the webhook's certificate.
pub const CONFIG: &str = concat!(
    "[WebHookConfig]\n",
    "port = \"8443\"\n",
    "cert-file = \"/run/secrets/tls/tls.crt\"\n",
    "key-file = \"/run/secrets/tls/tls.key\"\n",
);

/// The host name that the API server uses; the certificate must contain it.
pub fn host_name(namespace: &str) -> String {
    format!("{SERVICE}.{namespace}.svc")
}

/// The Secret with the webhook's certificate. The caller creates and renews it.
pub(super) fn certificate(driver_namespace: &str) -> Expected {
    Expected {
        kind: "Secret".to_owned(),
        namespace: driver_namespace.to_owned(),
        name: CERTIFICATES.to_owned(),
        keys: ["tls.crt", "tls.key", "webhook.config"].map(str::to_owned).to_vec(),
    }
}

pub(super) fn objects(
    release: &Release,
    template: &CsiTemplate,
    hook: &Webhook,
    profile: &Profile,
) -> Result<Vec<Value>, RenderError> {
    let (driver_namespace, version) = (profile.csi.namespace.as_str(), &release.version);
    let subject = Subject { account: CSI_WEBHOOK, namespace: driver_namespace, version };
    let selector = json!({ "app": CSI_WEBHOOK });
    let mut objects = vec![account(CSI_WEBHOOK, driver_namespace, version)];
    objects.extend(subject.cluster_role(
        "vsphere-csi-webhook-cluster-role",
        "vsphere-csi-webhook-cluster-role-binding",
        &[
            rule("snapshot.storage.k8s.io", &["volumesnapshots"], &["get", "list"]),
            rule("", &["persistentvolumes"], &["get"]),
        ],
    ));
    objects.extend(subject.role(
        driver_namespace,
        "vsphere-csi-webhook-role",
        "vsphere-csi-webhook-role-binding",
        &[rule("", &["configmaps"], &["get", "list", "watch"])],
    ));
    objects.push(json!({
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": metadata(SERVICE, driver_namespace, version),
        "spec": { "selector": selector, "ports": [{ "name": "https", "port": 443, "targetPort": 8443, "protocol": "TCP" }] },
    }));
    objects.push(deployment(release, template, profile)?);
    objects.push(disruption_budget(CSI_WEBHOOK, driver_namespace, version, &selector));
    objects.push(configuration(release, template, hook, profile));
    Ok(objects)
}

fn deployment(
    release: &Release,
    template: &CsiTemplate,
    profile: &Profile,
) -> Result<Value, RenderError> {
    let mut arguments = vec!["--operation-mode=WEBHOOK_SERVER".to_owned()];
    arguments.extend(feature_flags());
    let container = json!({
        "name": "vsphere-webhook",
        "image": image(release, profile, "syncer")?,
        "imagePullPolicy": "IfNotPresent",
        "args": arguments,
        "env": [
            env("WEBHOOK_CONFIG_PATH", "/run/secrets/tls/webhook.config"),
            env("LOGGER_LEVEL", "PRODUCTION"),
            own_namespace(),
        ],
        "ports": [{ "name": "webhook", "containerPort": 8443, "protocol": "TCP" }],
        "readinessProbe": { "tcpSocket": { "port": "webhook" }, "periodSeconds": 10 },
        "livenessProbe": {
            "tcpSocket": { "port": "webhook" },
            "initialDelaySeconds": 30,
            "periodSeconds": 30,
            "failureThreshold": 5,
        },
        "resources": requests("10m", "64Mi"),
        "securityContext": confined(template.run_as_user, profile),
        "volumeMounts": [{ "name": "webhook-certs", "mountPath": "/run/secrets/tls", "readOnly": true }],
    });
    let mode = if template.run_as_user.is_some() { 0o440 } else { 0o400 };
    let controller = Controller {
        name: CSI_WEBHOOK,
        namespace: &profile.csi.namespace,
        version: &release.version,
        selector: json!({ "app": CSI_WEBHOOK }),
        role: CSI_WEBHOOK,
        account: CSI_WEBHOOK,
        replicas: profile.replicas(2),
        priority: "system-cluster-critical",
        user: template.run_as_user,
        reads_config: false,
        containers: vec![container],
        volumes: json!([{ "name": "webhook-certs", "secret": { "secretName": CERTIFICATES, "defaultMode": mode } }]),
    };
    Ok(controller.build(profile))
}

fn configuration(
    release: &Release,
    template: &CsiTemplate,
    hook: &Webhook,
    profile: &Profile,
) -> Value {
    let rule = |group: &str, operations: &[&str], resource: &str, scope: &str| {
        json!({
            "apiGroups": [group],
            "apiVersions": ["v1"],
            "operations": operations,
            "resources": [resource],
            "scope": scope,
        })
    };
    let mut rules =
        vec![rule("storage.k8s.io", &["CREATE", "UPDATE"], "storageclasses", "Cluster")];
    if template.webhook_checks_volumes {
        rules.push(rule("", &["CREATE"], "persistentvolumes", "Cluster"));
    }
    rules.push(rule("", &["UPDATE", "DELETE"], "persistentvolumeclaims", "Namespaced"));
    let mut webhook = json!({
        "name": CONFIGURATION,
        "clientConfig": {
            "service": { "name": SERVICE, "namespace": profile.csi.namespace, "path": "/validate", "port": 443 },
            "caBundle": hook.ca_bundle,
        },
        "rules": rules,
        "sideEffects": "None",
        "admissionReviewVersions": ["v1"],
        "failurePolicy": "Ignore",
        "matchPolicy": "Equivalent",
        "timeoutSeconds": 5,
    });
    // Enabled by default since 1.28.
    if (profile.kubernetes.major, profile.kubernetes.minor) >= (1, 28) {
        webhook["matchConditions"] =
            json!([{ "name": "of-this-driver", "expression": of_this_driver() }]);
    }
    json!({
        "apiVersion": "admissionregistration.k8s.io/v1",
        "kind": "ValidatingWebhookConfiguration",
        "metadata": metadata(CONFIGURATION, "", &release.version),
        "webhooks": [webhook],
    })
}

/// Excludes objects of other drivers. A claim names its driver only after provisioning; until then the
/// webhook gets it.
fn of_this_driver() -> String {
    let claim = "volume.kubernetes.io/storage-provisioner";
    format!(
        "request.resource.resource == 'storageclasses' ? object.provisioner == '{CSI_DRIVER}' : \
         request.resource.resource == 'persistentvolumes' ? \
         has(object.spec.csi) && object.spec.csi.driver == '{CSI_DRIVER}' : \
         !has(oldObject.metadata.annotations) || !('{claim}' in oldObject.metadata.annotations) || \
         oldObject.metadata.annotations['{claim}'] == '{CSI_DRIVER}'"
    )
}
