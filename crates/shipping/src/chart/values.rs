//! The values of the chart: their types, their defaults from the install manifest, and their JSON schema.
#![allow(
    clippy::struct_field_names,
    reason = "the names are those of Kubernetes and of environment variables"
)]

use std::collections::BTreeMap;

use catalog::manifest::Object;
use schemars::{JsonSchema, generate::SchemaSettings};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};
use snafu::{OptionExt as _, ResultExt as _};

use crate::error::{Error, ImageSnafu, JsonSnafu, MissingSnafu};

/// The values of the VDO chart
#[derive(Clone, Debug, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(crate) struct Values {
    /// The affinity of the operator's pods. The default prefers control-plane nodes and places the pods on different nodes
    /// where possible. Yours is merged with the default; to remove a part of the default, set it to `null`.
    affinity: Map<String, Value>,
    crds: Crds,
    /// Namespaces in which VDO can adopt drivers, in addition to `kube-system` and `vmware-system-csi`. The chart grants
    /// the permissions there. The namespaces must exist.
    #[schemars(extend("uniqueItems" = true, "items" = {
        "type": "string",
        "pattern": "^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?$",
        "not": {"enum": ["kube-system", "vmware-system-csi"]},
    }))]
    driver_namespaces: Vec<String>,
    /// More arguments of the operator, such as `--log=debug`.
    extra_args: Vec<String>,
    /// More environment variables of the operator. Those that the chart sets have values of their own.
    extra_env: Vec<Variable>,
    /// Values that a parent chart shares with all its subcharts. This chart ignores them.
    global: Map<String, Value>,
    /// Whether the operator uses the host network, with which it starts before the cluster has a network. If it is
    /// false, the operator uses the pod network, and its namespace can enforce the pod security level `restricted`.
    host_network: bool,
    image: Image,
    /// The Secrets in `vmware-system-vdo` with which the kubelet pulls the operator's image.
    image_pull_secrets: Vec<PullSecret>,
    monitoring: Monitoring,
    /// Labels that a node must have to run the operator. Yours are merged with the default.
    node_selector: BTreeMap<String, String>,
    /// More annotations of the operator's pods.
    pod_annotations: BTreeMap<String, String>,
    /// More labels of the operator's pods. The chart sets `app.kubernetes.io/name` and `app.kubernetes.io/version`.
    #[schemars(extend("propertyNames" = {
        "not": {"enum": ["app.kubernetes.io/name", "app.kubernetes.io/version"]},
    }))]
    pod_labels: BTreeMap<String, String>,
    /// The port of the operator's metrics. On the host network, only the node itself reaches it, and another program of the
    /// node can need the default port.
    #[schemars(range(min = 1024))]
    port: u16,
    /// The priority class of the operator's pods. The default keeps the operator on a full node.
    priority_class_name: String,
    proxy: Proxy,
    /// The number of the operator's pods. One of them leads; the others replace it if it fails.
    #[schemars(range(min = 1, max = 5))]
    replicas: u32,
    resources: Resources,
    /// The tolerations of the operator's pods. The default lets the operator start on nodes that wait for their cloud
    /// controller and have no network yet. A list of yours replaces the default.
    tolerations: Vec<Toleration>,
}

/// The custom resource definitions
#[derive(Clone, Debug, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Crds {
    /// Installs and upgrades the definitions with the chart. Helm never deletes them: the deletion of a definition
    /// deletes every object of its kind.
    install: bool,
}

/// The image of the operator
#[derive(Clone, Debug, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Image {
    /// The registry, with a path prefix if it has one. Without internet access, the registry of your site.
    #[schemars(length(min = 1))]
    registry: String,
    #[schemars(length(min = 1))]
    /// The repository below the registry.
    repository: String,
    /// The tag. The default is the version of the chart.
    tag: String,
    /// The digest, such as `sha256:…`. The kubelet then ignores the tag. Without a tag, the chart of a release uses the
    /// digest of its image.
    #[schemars(regex(pattern = r"^(sha256:[0-9a-f]{64})?$"))]
    digest: String,
    /// The pull policy. Kubernetes chooses one if it is empty.
    #[schemars(extend("enum" = ["", "Always", "IfNotPresent", "Never"]))]
    pull_policy: String,
}

/// A Secret with the credentials of a registry
#[derive(Clone, Debug, Serialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct PullSecret {
    name: String,
}

/// Alerts for the Prometheus operator
#[derive(Clone, Debug, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Monitoring {
    /// Installs a PrometheusRule with one alert for each finding. The cluster must have the Prometheus operator.
    alerts: bool,
    /// More labels of the PrometheusRule, for a Prometheus that selects rules by label.
    labels: BTreeMap<String, String>,
}

/// The proxy through which the operator connects to vCenters and downloads catalogs
#[derive(Clone, Debug, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Proxy {
    /// The value of `HTTP_PROXY`.
    http: String,
    /// The value of `HTTPS_PROXY`.
    https: String,
    /// The value of `NO_PROXY`: hosts to which the operator connects without the proxy.
    no_proxy: String,
}

/// The compute resources of the operator's container
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct Resources {
    #[serde(default)]
    limits: BTreeMap<String, Quantity>,
    #[serde(default)]
    requests: BTreeMap<String, Quantity>,
}

/// A quantity, such as `128Mi`
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(untagged)]
enum Quantity {
    Text(String),
    Number(f64),
}

/// A toleration
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Toleration {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    key: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(extend("enum" = ["Exists", "Equal", null]))]
    operator: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    value: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(extend("enum" = ["NoSchedule", "PreferNoSchedule", "NoExecute", null]))]
    effect: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    toleration_seconds: Option<i64>,
}

/// An environment variable
#[derive(Clone, Debug, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Variable {
    #[schemars(length(min = 1), extend("not" = {"enum": [
        "POD_NAME", "VDO_NAMESPACE", "VDO_SOCKET", "VDO_LISTEN", "VDO_DRIVER_NAMESPACES", "HTTP_PROXY", "HTTPS_PROXY",
        "NO_PROXY",
    ]}))]
    name: String,
    #[serde(default)]
    value: Option<String>,
    #[serde(default)]
    value_from: Option<Map<String, Value>>,
}

/// The values with which the chart renders the install manifest.
pub(crate) fn defaults(deployment: &Object) -> Result<Value, Error> {
    let pod = "/spec/template/spec";
    let field = |pointer: &str| {
        let value = deployment.0.pointer(pointer).cloned();
        value.context(MissingSnafu { what: format!("{pointer} of the Deployment") })
    };
    let json = |what: &str| JsonSnafu { what: what.to_owned() };
    let image = field(&format!("{pod}/containers/0/image"))?;
    let values = Values {
        affinity: serde_json::from_value(field(&format!("{pod}/affinity"))?)
            .context(json("affinity"))?,
        crds: Crds { install: true },
        driver_namespaces: Vec::new(),
        extra_args: Vec::new(),
        extra_env: Vec::new(),
        global: Map::new(),
        host_network: serde_json::from_value(field(&format!("{pod}/hostNetwork"))?)
            .context(json("hostNetwork"))?,
        image: Image::parse(image.as_str().unwrap_or_default())?,
        image_pull_secrets: Vec::new(),
        monitoring: Monitoring { alerts: false, labels: BTreeMap::new() },
        node_selector: serde_json::from_value(field(&format!("{pod}/nodeSelector"))?)
            .context(json("nodeSelector"))?,
        pod_annotations: BTreeMap::new(),
        pod_labels: BTreeMap::new(),
        port: operator::install::PORT,
        priority_class_name: serde_json::from_value(field(&format!("{pod}/priorityClassName"))?)
            .context(json("priorityClassName"))?,
        proxy: Proxy { http: String::new(), https: String::new(), no_proxy: String::new() },
        replicas: serde_json::from_value(field("/spec/replicas")?).context(json("replicas"))?,
        resources: serde_json::from_value(field(&format!("{pod}/containers/0/resources"))?)
            .context(json("resources"))?,
        tolerations: serde_json::from_value(field(&format!("{pod}/tolerations"))?)
            .context(json("tolerations"))?,
    };
    serde_json::to_value(values).context(json("the values"))
}

impl Image {
    /// The image of the install manifest, whose tag is the version.
    fn parse(image: &str) -> Result<Self, Error> {
        let version = env!("CARGO_PKG_VERSION");
        let parts = image.rsplit_once(':').filter(|(_, tag)| *tag == version);
        let parts = parts.and_then(|(name, _)| name.split_once('/'));
        let (registry, repository) = parts.context(ImageSnafu { image, version })?;
        let [registry, repository] = [registry, repository].map(str::to_owned);
        let [tag, digest, pull_policy] = [const { String::new() }; 3];
        Ok(Self { registry, repository, tag, digest, pull_policy })
    }
}

/// The JSON schema of the values. Helm refuses values that do not fit.
pub(crate) fn schema() -> Value {
    let mut settings = SchemaSettings::draft07();
    settings.inline_subschemas = true;
    let mut schema = settings.into_generator().into_root_schema_for::<Values>().to_value();
    // Helm adds the defaults, and a user can set a default to null.
    schema["required"] = json!([]);
    let properties = schema["properties"].as_object_mut();
    for property in
        properties.into_iter().flat_map(Map::values_mut).filter_map(Value::as_object_mut)
    {
        property.remove("required");
    }
    schema
}
