//! Adapts a published manifest of a driver to this cluster.
//!
//! A release that is too new for any template can be installed from upstream's own YAML. The same fields
//! change that the templates take from the profile: namespace, images, pull secrets, kubelet path,
//! tolerations, placement, replicas, topology flags, pod-security labels.
//!
//! Published manifests contain placeholder configuration (`vsphere-cloud-config`, `vsphere-cloud-secret`)
//! which their pods mount. With it, a driver would start without a vCenter. So VDO removes the placeholders,
//! points the pods to the real configuration, and lists that in [`Rendered::expects`]. Other ConfigMaps,
//! Secrets and volumes stay as they are. Webhooks that no server would answer are omitted.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Map, Value, json};
use snafu::{ResultExt, Snafu, ensure};

use super::{
    Expected, Object, Rendered, common, located, profile::Profile, rbac::Subject, unserved,
};
use crate::{
    image::{Image, ImageError},
    model::{Driver, Manifest, Release},
};

#[derive(Debug, Snafu)]
pub enum AdaptError {
    #[snafu(display("the manifest is not YAML"))]
    NotYaml { source: Box<serde_saphyr::Error> },
    #[snafu(display(
        "document {n} of the manifest is not a Kubernetes object: it lacks kind, apiVersion or a name"
    ))]
    NotAnObject {
        /// Counts from one.
        n: usize,
    },
    /// A variable that was not replaced.
    #[snafu(display(
        "{kind} {name} still holds the variable {variable}; the manifest is a template for another tool"
    ))]
    Unfilled { kind: String, name: String, variable: String },
    #[snafu(display("{kind} {name} names an image that cannot be read"))]
    BadImage { kind: String, name: String, source: ImageError },
    #[snafu(display("the manifest has no workload of the {driver} driver; is it the right file?"))]
    NoWorkload { driver: Driver },
}

/// Reads the documents of a published manifest. Skips empty documents.
pub fn parse(text: &str) -> Result<Vec<Value>, AdaptError> {
    let documents: Vec<Value> =
        serde_saphyr::from_multiple(text).map_err(Box::new).context(NotYamlSnafu)?;
    let mut objects = Vec::new();
    for (n, document) in documents.into_iter().enumerate() {
        match document {
            Value::Null => {}
            Value::Object(mut list) if list.get("kind").is_some_and(|kind| kind == "List") => {
                let items = list.remove("items");
                objects
                    .extend(items.and_then(|items| items.as_array().cloned()).unwrap_or_default());
            }
            document => {
                let object = Object(document);
                let whole = ![object.kind(), object.api_version(), object.name()].contains(&"");
                ensure!(whole, NotAnObjectSnafu { n: n + 1 });
                objects.push(object.0);
            }
        }
    }
    Ok(objects)
}

pub fn adapt(
    driver: Driver,
    objects: Vec<Value>,
    profile: &Profile,
) -> Result<Rendered, AdaptError> {
    let (driver_namespace, config) = match driver {
        Driver::Csi => (&profile.csi.namespace, Configuration::csi(profile)),
        Driver::Cpi => (&profile.cpi.namespace, Configuration::cpi(profile)),
    };
    let mut adapted = Vec::new();
    let mut workloads = 0;
    let mut has_namespace = false;
    for mut object in unserved::without(objects, profile.openshift()) {
        if Configuration::is_placeholder(&object) {
            continue;
        }
        rename_namespace(&mut object, driver_namespace, driver);
        let kind = object["kind"].as_str().unwrap_or_default().to_owned();
        if kind == "Namespace" {
            has_namespace = true;
            label_namespace(&mut object, profile);
        }
        if kind == "DaemonSet" && is_windows(&object) && !profile.windows_nodes {
            continue;
        }
        if let Some(template) = object.pointer_mut("/spec/template") {
            workloads += 1;
            let name = object_name(&kind, template);
            adapt_pod(template, &config, profile)
                .context(BadImageSnafu { kind: kind.clone(), name })?;
        }
        if kind == "Deployment" {
            fit_replicas(&mut object, profile);
        }
        check_filled(&object)?;
        adapted.push(object);
    }
    ensure!(workloads > 0, NoWorkloadSnafu { driver });
    if profile.openshift() {
        adapted.extend(constraints(&adapted));
    }
    if !has_namespace && driver_namespace != "kube-system" {
        adapted.insert(
            0,
            common::namespace(driver_namespace, &semver::Version::new(0, 0, 0), profile),
        );
        strip_version(&mut adapted[0]);
    }
    Ok(Rendered::new(adapted, vec![config.expected(driver_namespace)]))
}

/// On OpenShift: for each ServiceAccount that runs pods, the role for the constraint its pods need.
fn constraints(objects: &[Value]) -> Vec<Value> {
    let version = semver::Version::new(0, 0, 0);
    let mut all: Vec<Value> = Vec::new();
    for object in objects.iter().cloned().map(Object) {
        let Some(template) = object.pod_template() else { continue };
        let text = template.to_string();
        let constraint =
            if text.contains("\"privileged\":true") || text.contains("\"hostProcess\":true") {
                "privileged"
            } else if text.contains("\"hostNetwork\":true") {
                "hostnetwork-v2"
            } else if text.contains("\"runAsUser\"") {
                "nonroot-v2"
            } else {
                continue;
            };
        let account = template.pointer("/spec/serviceAccountName").and_then(Value::as_str);
        let (account, namespace) = (account.unwrap_or("default"), object.namespace());
        let subject = Subject { account, namespace, version: &version };
        let mut pair = subject.security_context(constraint, &format!("{account}-{constraint}"));
        pair.iter_mut().for_each(strip_version);
        if !all.contains(&pair[0]) {
            all.extend(pair);
        }
    }
    all
}

fn object_name(kind: &str, template: &Value) -> String {
    let first = template.pointer("/spec/containers/0/name").and_then(Value::as_str);
    first.unwrap_or(kind).to_owned()
}

fn strip_version(object: &mut Value) {
    if let Some(labels) = object.pointer_mut("/metadata/labels").and_then(Value::as_object_mut) {
        labels.remove("app.kubernetes.io/version");
    }
}

/// The names of a driver's configuration in published manifests.
const CONFIGURATIONS: [&str; 3] = ["vsphere-cloud-config", "cloud-config", "vsphere-config-secret"];

/// The names of the example credentials in published manifests.
const EXAMPLE_CREDENTIALS: [&str; 2] = ["vsphere-cloud-secret", "cpi-global-secret"];

/// The configuration of a driver: its name in published manifests and its name here.
struct Configuration {
    kind: &'static str,
    volume: &'static str,
    name: String,
    key: &'static str,
}

impl Configuration {
    fn csi(profile: &Profile) -> Self {
        Self {
            kind: "Secret",
            volume: "secret",
            name: profile.csi.config_secret.clone(),
            key: "csi-vsphere.conf",
        }
    }

    fn cpi(profile: &Profile) -> Self {
        Self {
            kind: "ConfigMap",
            volume: "configMap",
            name: profile.cpi.config_map.clone(),
            key: "vsphere.conf",
        }
    }

    /// True if the object is the placeholder configuration of a published manifest.
    fn is_placeholder(object: &Value) -> bool {
        let name = object.pointer("/metadata/name").and_then(Value::as_str).unwrap_or_default();
        matches!(object["kind"].as_str(), Some("ConfigMap" | "Secret"))
            && (CONFIGURATIONS.contains(&name) || EXAMPLE_CREDENTIALS.contains(&name))
    }

    fn expected(&self, driver_namespace: &str) -> Expected {
        Expected {
            kind: self.kind.to_owned(),
            namespace: driver_namespace.to_owned(),
            name: self.name.clone(),
            keys: vec![self.key.to_owned()],
        }
    }

    /// Points the configuration volumes to the real configuration: volumes with a known configuration name,
    /// and volumes mounted where the drivers read their configuration.
    fn repoint(&self, spec: &mut Value) {
        let at_config: BTreeSet<String> = ["initContainers", "containers"]
            .iter()
            .flat_map(|kind| spec[kind].as_array().into_iter().flatten())
            .flat_map(|container| container["volumeMounts"].as_array().into_iter().flatten())
            .filter(|mount| mount["mountPath"].as_str().is_some_and(is_config_path))
            .filter_map(|mount| mount["name"].as_str().map(str::to_owned))
            .collect();
        for volume in spec["volumes"].as_array_mut().into_iter().flatten() {
            let named = ["/secret/secretName", "/configMap/name"]
                .iter()
                .find_map(|pointer| volume.pointer(pointer)?.as_str());
            let Some(named) = named else { continue };
            let name = volume["name"].as_str().unwrap_or_default();
            if CONFIGURATIONS.contains(&named) || at_config.contains(name) {
                let name_key = if self.volume == "secret" { "secretName" } else { "name" };
                *volume = json!({ "name": name, self.volume: { name_key: self.name } });
            }
        }
    }
}

fn is_config_path(path: &str) -> bool {
    path.trim_end_matches('/') == "/etc/cloud"
}

/// Moves an object, and the accounts in its bindings, into the driver's namespace.
///
/// `kube-system` stays where upstream uses it for an object of the API server.
fn rename_namespace(object: &mut Value, driver_namespace: &str, driver: Driver) {
    let usual = match driver {
        Driver::Csi => "vmware-system-csi",
        Driver::Cpi => "kube-system",
    };
    if usual == driver_namespace {
        return;
    }
    let reads_api_server = object
        .pointer("/roleRef/name")
        .is_some_and(|role| role == "extension-apiserver-authentication-reader");
    if object["kind"] == "Namespace"
        && object.pointer("/metadata/name").is_some_and(|name| name == usual)
    {
        object["metadata"]["name"] = json!(driver_namespace);
    }
    let mut moved = vec!["/webhooks/0/clientConfig/service/namespace".to_owned()];
    if !reads_api_server {
        moved.push("/metadata/namespace".to_owned());
    }
    let subjects = object["subjects"].as_array().map_or(0, Vec::len);
    moved.extend((0..subjects).map(|n| format!("/subjects/{n}/namespace")));
    for pointer in moved {
        if let Some(place) = object.pointer_mut(&pointer)
            && place == usual
        {
            *place = json!(driver_namespace);
        }
    }
}

fn label_namespace(object: &mut Value, profile: &Profile) {
    let name =
        object.pointer("/metadata/name").and_then(Value::as_str).unwrap_or_default().to_owned();
    let ours = common::namespace(&name, &semver::Version::new(0, 0, 0), profile);
    for part in ["labels", "annotations"] {
        let Some(more) = ours.pointer(&format!("/metadata/{part}")).and_then(Value::as_object)
        else {
            continue;
        };
        let mut all = object
            .pointer(&format!("/metadata/{part}"))
            .and_then(Value::as_object)
            .cloned()
            .unwrap_or_default();
        all.extend(more.clone());
        object["metadata"][part] = Value::Object(all);
    }
    strip_version(object);
}

fn is_windows(object: &Value) -> bool {
    object
        .pointer("/spec/template/spec/nodeSelector/kubernetes.io~1os")
        .is_some_and(|os| os == "windows")
}

fn fit_replicas(object: &mut Value, profile: &Profile) {
    let wanted = object.pointer("/spec/replicas").and_then(Value::as_u64).unwrap_or(1);
    let most = u32::try_from(wanted).unwrap_or(u32::MAX).max(1);
    object["spec"]["replicas"] = json!(profile.replicas(most));
}

fn adapt_pod(
    template: &mut Value,
    config: &Configuration,
    profile: &Profile,
) -> Result<(), ImageError> {
    let windows =
        template.pointer("/spec/nodeSelector/kubernetes.io~1os").is_some_and(|os| os == "windows");
    if let Some(digest) = &profile.config_digest {
        template["metadata"]["annotations"]["vdo.vmware.com/config-digest"] = json!(digest);
    }
    let spec = &mut template["spec"];
    common::pull_secrets(spec, profile);
    if spec.pointer("/affinity/nodeAffinity").is_some() || names_control_plane(spec) {
        place(spec, profile);
    }
    config.repoint(spec);
    for kind in ["initContainers", "containers"] {
        for container in spec.get_mut(kind).and_then(Value::as_array_mut).into_iter().flatten() {
            adapt_container(container, profile)?;
        }
    }
    if !windows {
        move_kubelet(spec, &profile.kubelet_path);
    }
    Ok(())
}

/// True if a plain node selector assigns the pod to the control plane.
fn names_control_plane(spec: &Value) -> bool {
    let selector = spec["nodeSelector"].as_object();
    selector
        .is_some_and(|labels| labels.keys().any(|key| key.starts_with("node-role.kubernetes.io/")))
}

/// Places a controller on this cluster's control plane.
fn place(spec: &mut Value, profile: &Profile) {
    if let Some(labels) = spec["nodeSelector"].as_object_mut() {
        labels.retain(|key, _| !key.starts_with("node-role.kubernetes.io/"));
    }
    if profile.placement.labels.is_empty() {
        if let Some(affinity) = spec["affinity"].as_object_mut() {
            affinity.remove("nodeAffinity");
        }
    } else {
        let mut affinity = spec["affinity"].as_object().cloned().unwrap_or_else(Map::new);
        affinity.insert("nodeAffinity".to_owned(), common::control_plane_nodes(profile));
        spec["affinity"] = Value::Object(affinity);
    }
    let seen = common::tolerations(&[], profile);
    let mut all = spec["tolerations"].as_array().cloned().unwrap_or_default();
    for toleration in seen.as_array().into_iter().flatten() {
        let has = |other: &Value| {
            other["key"] == toleration["key"] && other["effect"] == toleration["effect"]
        };
        if !all.iter().any(has) {
            all.push(toleration.clone());
        }
    }
    spec["tolerations"] = Value::Array(all);
}

fn adapt_container(container: &mut Value, profile: &Profile) -> Result<(), ImageError> {
    let image: Image = container["image"].as_str().unwrap_or_default().parse()?;
    container["image"] = json!(located(&image, profile));
    container["imagePullPolicy"] = json!("IfNotPresent");
    if container["name"] == "csi-provisioner" {
        let mut flags = container["args"].as_array().cloned().unwrap_or_default();
        flags.retain(|flag| {
            let flag = flag.as_str().unwrap_or_default();
            !flag.starts_with("--feature-gates=Topology") && flag != "--strict-topology"
        });
        if profile.topology {
            flags.extend([json!("--feature-gates=Topology=true"), json!("--strict-topology")]);
        } else {
            flags.push(json!("--feature-gates=Topology=false"));
        }
        container["args"] = Value::Array(flags);
    }
    Ok(())
}

/// Replaces the default kubelet directory wherever a path begins with it: volumes, mounts, flags, variables.
fn move_kubelet(value: &mut Value, path: &str) {
    const USUAL: &str = "/var/lib/kubelet";
    let path = path.trim_end_matches('/');
    if path == USUAL {
        return;
    }
    match value {
        Value::String(text) => {
            let whole = text.match_indices(USUAL).any(|(at, _)| {
                let (before, after) = (&text[..at], &text[at + USUAL.len()..]);
                let begins =
                    before.is_empty() || before.ends_with(['=', ':']) || before.ends_with("://");
                begins && (after.is_empty() || after.starts_with('/'))
            });
            if whole {
                *text = text.replacen(USUAL, path, 1);
            }
        }
        Value::Array(items) => items.iter_mut().for_each(|item| move_kubelet(item, path)),
        Value::Object(fields) => fields.values_mut().for_each(|field| move_kubelet(field, path)),
        _ => {}
    }
}

/// `${CA_BUNDLE}` and similar were meant for a script that did not run. `$(NAME)` is Kubernetes syntax.
fn check_filled(object: &Value) -> Result<(), AdaptError> {
    let text = object.to_string();
    let Some(start) = text.find("${") else { return Ok(()) };
    let variable: String = text[start..].chars().take_while(|c| *c != '}').chain(['}']).collect();
    let named = Object(object.clone());
    UnfilledSnafu { kind: named.kind(), name: named.name(), variable }.fail()
}

/// Adds a fetched manifest, one text per file, to a release that only had its URLs.
///
/// The images come from the manifest, so that the catalog's statements about images (unavailable, mirrored)
/// apply to them too.
pub fn fetched(release: &Release, texts: &[String]) -> Result<Release, AdaptError> {
    let mut objects = Vec::new();
    for text in texts {
        objects.extend(parse(text)?);
    }
    let driver = release.driver;
    let mut images = BTreeMap::new();
    for object in objects.iter().cloned().map(Object) {
        for name in object.pod_template().map(super::images_of).unwrap_or_default() {
            let (kind, object_name) = (object.kind().to_owned(), object.name().to_owned());
            let image: Image = name.parse().context(BadImageSnafu { kind, name: object_name })?;
            let part = image.name.rsplit('/').next().unwrap_or_default().to_owned();
            images.insert(part, image);
        }
    }
    ensure!(!images.is_empty(), NoWorkloadSnafu { driver });
    let manifest = Manifest { objects, ..Manifest::default() };
    Ok(Release { images, manifest, ..release.clone() })
}
