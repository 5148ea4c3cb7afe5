//! The Helm chart, in `deploy/chart`.
//!
//! The templates are the objects of the install manifest with template text at the places that values control. With the
//! default values, Helm renders exactly the install manifest.

mod document;
mod values;

use std::collections::{BTreeMap, BTreeSet};

use catalog::manifest::{Object, to_yaml};
use operator::install::{self, Allowed, DRIVER_NAMESPACES, LISTEN, PORT, WITHOUT_POD_NETWORK};
use serde_json::{Value, json};
use snafu::{OptionExt as _, ResultExt as _, ensure};

use crate::{
    error::{Error, JsonSnafu, MissingSnafu, OptionSnafu, TemplateSnafu, YamlSnafu},
    file::File,
    release::{IMAGE, Release},
    slots::{self, Place, Slot},
};

const VERSION: &str = env!("CARGO_PKG_VERSION");
const HOME: &str = env!("CARGO_PKG_REPOSITORY");

/// Helm never deletes an object with this annotation.
const KEEP: (&str, &str) = ("helm.sh/resource-policy", "keep");

/// A namespace name that no cluster has: it marks the objects that every additional namespace gets.
const ANY_NAMESPACE: &str = "any-driver-namespace";

/// The annotation of a chart with the digest of the operator's image. Only the charts of releases have it.
const DIGEST: &str = "vdo.vmware.com/image-digest";

const HELPERS: &str = include_str!("chart/helpers.tpl");
const NOTES: &str = include_str!("chart/notes.txt");
const README: &str = include_str!("chart/readme.md");

/// The files of the chart.
pub(crate) fn files(release: &Release) -> Result<Vec<File>, Error> {
    let objects = install::objects();
    let mut on_pod_network = objects.clone();
    install::use_pod_network(&mut on_pod_network);
    let deployment = of_kind(&objects, "Deployment").next();
    let deployment = deployment.context(MissingSnafu { what: "Deployment" })?;
    let (defaults, schema) = (values::defaults(deployment)?, values::schema());
    let schema_text =
        serde_json::to_string_pretty(&schema).context(JsonSnafu { what: "the schema" })?;
    let readme = README.replace("VALUES\n", &document::table(&schema, &defaults));
    let mut files = vec![
        File::objects("deploy/chart/Chart.yaml", &[Object(about(deployment, release))])?,
        File::yaml("deploy/chart/values.yaml", &document::values_yaml(&schema, &defaults)?),
        File::new("deploy/chart/values.schema.json", schema_text + "\n"),
        File::new("deploy/chart/README.md", readme),
        File::new("deploy/chart/templates/_helpers.tpl", helpers()),
        File::new("deploy/chart/templates/NOTES.txt", NOTES),
        File::yaml("deploy/chart/templates/crds.yaml", CRDS),
        File::yaml("deploy/chart/templates/alerts.yaml", ALERTS),
        File::objects("deploy/chart/files/alerts.yaml", &[operator::alerts::rule()])?,
    ];
    for definition in of_kind(&objects, "CustomResourceDefinition") {
        let plural = definition.0["spec"]["names"]["plural"].as_str().unwrap_or_default();
        let path = format!("deploy/chart/files/crds/{plural}.yaml");
        files.push(File::objects(&path, &[kept(definition.clone())])?);
    }
    let mut templates: BTreeMap<&str, Vec<String>> = BTreeMap::new();
    for (object, moved) in objects.iter().zip(&on_pod_network) {
        let (name, text) = match object.kind() {
            "CustomResourceDefinition" => continue,
            "Namespace" => ("namespaces", namespace(object, moved)?),
            "Deployment" => ("deployment", deployment_template(object, moved)?),
            "ServiceAccount" => ("service-account", slots::fill(object, &[])?),
            kind if is_rbac(kind) => ("rbac", slots::fill(&kept_for_drivers(object), &[])?),
            _ => ("others", slots::fill(object, &[])?),
        };
        templates.entry(name).or_default().push(text);
    }
    templates.entry("rbac").or_default().push(old_cloud_controllers(&objects)?);
    for (name, texts) in templates {
        let path = format!("deploy/chart/templates/{name}.yaml");
        files.push(File::yaml(&path, &texts.join("---\n")));
    }
    let namespaces = driver_namespaces(&objects)?;
    files.push(File::yaml("deploy/chart/templates/driver-namespaces.yaml", &namespaces));
    Ok(files)
}

/// `Chart.yaml`.
fn about(deployment: &Object, release: &Release) -> Value {
    let mut about = json!({
        "apiVersion": "v2",
        "name": "vdo",
        "type": "application",
        "version": VERSION,
        "appVersion": VERSION,
        "description": "VDO installs, checks and upgrades the vSphere drivers of a Kubernetes cluster",
        // The rules in the custom resource definitions need it.
        "kubeVersion": ">=1.25.0-0",
        "home": HOME,
        "sources": [HOME],
        "keywords": ["vsphere", "csi", "cpi", "storage", "operator"],
        "maintainers": [{"name": "The VDO maintainers", "url": HOME}],
    });
    let image = deployment.0.pointer(IMAGE).and_then(Value::as_str).unwrap_or_default();
    if let Some(digest) = release.digests.get(image) {
        about["annotations"][DIGEST] = json!(digest);
    }
    about
}

/// Helm installs a folder `crds` once and never upgrades it, so the definitions are files that a template includes.
const CRDS: &str = r#"{{- if .Values.crds.install }}
{{- range $path, $_ := .Files.Glob "files/crds/*.yaml" }}
---
{{ $.Files.Get $path }}
{{- end }}
{{- end }}
"#;

/// The alerts contain the templates of Prometheus, so they are a file that Helm does not evaluate.
const ALERTS: &str = r#"{{- if .Values.monitoring.alerts }}
{{- $rule := .Files.Get "files/alerts.yaml" | fromYaml }}
{{- with .Values.monitoring.labels }}
{{- $_ := set $rule.metadata "labels" (merge (deepCopy .) $rule.metadata.labels) }}
{{- end }}
{{ toYaml $rule }}
{{- end }}
"#;

fn of_kind<'a>(objects: &'a [Object], kind: &'a str) -> impl Iterator<Item = &'a Object> {
    objects.iter().filter(move |object| object.kind() == kind)
}

fn is_rbac(kind: &str) -> bool {
    ["ClusterRole", "ClusterRoleBinding", "Role", "RoleBinding"].contains(&kind)
}

fn kept(mut object: Object) -> Object {
    let (name, value) = KEEP;
    object.0["metadata"]["annotations"][name] = json!(value);
    object
}

/// Helm keeps the objects that the drivers need after the operator is uninstalled.
fn kept_for_drivers(object: &Object) -> Object {
    let needed = install::is_needed_by_drivers(object.name());
    if needed { kept(object.clone()) } else { object.clone() }
}

/// The helpers, with the names that the operator defines.
fn helpers() -> String {
    let taints: Vec<String> = WITHOUT_POD_NETWORK.iter().map(|key| format!("\"{key}\"")).collect();
    HELPERS.replace("TAINTS", &taints.join(" ")).replace("DIGEST", DIGEST)
}

/// A namespace that Helm creates if nobody else did. Helm itself creates the namespace of the release on request, without
/// labels, and would then refuse a template of it.
fn namespace(object: &Object, on_pod_network: &Object) -> Result<String, Error> {
    let text = slots::fill(&kept(object.clone()), &[])?;
    let text = if object == on_pod_network {
        text
    } else {
        let other = slots::fill(&kept(on_pod_network.clone()), &[])?;
        format!("{{{{- if .Values.hostNetwork }}}}\n{text}{{{{- else }}}}\n{other}{{{{- end }}}}\n")
    };
    let condition = format!(r#"include "vdo.ownsNamespace" (list $ "{}")"#, object.name());
    Ok(format!("{{{{- if {condition} }}}}\n---\n{text}{{{{- end }}}}\n"))
}

fn deployment_template(deployment: &Object, on_pod_network: &Object) -> Result<String, Error> {
    let mut slots = deployment_slots(deployment);
    slots.extend(network_slots(deployment, on_pod_network)?);
    let text = slots::fill(deployment, &slots)?;
    Ok(format!("{{{{- include \"vdo.checkPodSecurity\" . }}}}\n{text}"))
}

/// The places in which the Deployment differs between the two networks.
fn network_slots(deployment: &Object, on_pod_network: &Object) -> Result<Vec<Slot>, Error> {
    let template = "/spec/template";
    let variables = deployment.0.pointer(&format!("{template}/spec/containers/0/env"));
    let mut variables = variables.and_then(Value::as_array).into_iter().flatten();
    let listen = variables.position(|variable| variable["name"] == LISTEN);
    let listen = listen.context(MissingSnafu { what: LISTEN })?;
    let text = |pointer: &str| -> Result<Slot, Error> {
        let of = |object: &Object| object.0.pointer(pointer)?.as_str().map(str::to_owned);
        let both = of(deployment).zip(of(on_pod_network));
        let (host, pod) = both.context(MissingSnafu { what: pointer })?;
        let key = pointer.rsplit('/').next().unwrap_or_default().replace("~1", "/");
        let value =
            format!("{{{{ if .Values.hostNetwork }}}}{host}{{{{ else }}}}{pod}{{{{ end }}}}");
        let port = format!(":{{{{ default {PORT} .Values.port }}}}");
        let value = value.replace(&format!(":{PORT}"), &port);
        // Without quotes, YAML would read `[::]` as a list.
        Ok(Slot::new(Place::Replace, pointer, &format!("{key}: \"{value}\"")))
    };
    Ok(vec![
        text(&format!("{template}/metadata/annotations/openshift.io~1required-scc"))?,
        text(&format!("{template}/spec/containers/0/env/{listen}/value"))?,
        Slot::new(
            Place::Replace,
            &format!("{template}/spec/hostNetwork"),
            "hostNetwork: {{ default false .Values.hostNetwork }}",
        ),
        Slot::value(
            Place::Replace,
            &format!("{template}/spec/tolerations"),
            r#"(include "vdo.tolerations" . | fromYamlArray)"#,
        ),
    ])
}

fn deployment_slots(deployment: &Object) -> Vec<Slot> {
    let pod = |field: &str| format!("/spec/template/spec/{field}");
    let container = |field: &str| format!("/spec/template/spec/containers/0/{field}");
    let text = |place, pointer: &str, lines: &str| Slot::new(place, pointer, lines);
    vec![
        text(Place::Replace, "/spec/replicas", "replicas: {{ .Values.replicas }}"),
        Slot::entries(deployment, "/spec/template/metadata/labels", ".Values.podLabels"),
        Slot::entries(deployment, "/spec/template/metadata/annotations", ".Values.podAnnotations"),
        text(
            Place::Replace,
            &pod("priorityClassName"),
            "{{- with .Values.priorityClassName }}\npriorityClassName: {{ . | quote }}\n{{- end }}",
        ),
        Slot::value(Place::Add, &pod("imagePullSecrets"), ".Values.imagePullSecrets"),
        Slot::value(Place::Replace, &pod("nodeSelector"), ".Values.nodeSelector"),
        Slot::value(Place::Replace, &pod("affinity"), ".Values.affinity"),
        Slot::value(Place::Replace, &container("resources"), ".Values.resources"),
        Slot::value(Place::Add, &container("args"), ".Values.extraArgs"),
        text(Place::Replace, &container("image"), r#"image: {{ include "vdo.image" . | quote }}"#),
        text(
            Place::Add,
            &container("imagePullPolicy"),
            "{{- with .Values.image.pullPolicy }}\nimagePullPolicy: {{ . }}\n{{- end }}",
        ),
        text(Place::Append, &container("env"), &variables()),
    ]
}

/// More environment variables: of the additional namespaces, of the proxy, and of the user.
fn variables() -> String {
    let variable = |name: &str, condition: &str, value: &str| {
        format!(
            "{{{{- with {condition} }}}}\n- name: {name}\n  value: {{{{ {value} | quote }}}}\n{{{{- end }}}}\n"
        )
    };
    let mut lines = variable(DRIVER_NAMESPACES, ".Values.driverNamespaces", "join \",\" .");
    let proxy = [("HTTP_PROXY", "http"), ("HTTPS_PROXY", "https"), ("NO_PROXY", "noProxy")];
    for (name, value) in proxy {
        lines += &variable(name, &format!(".Values.proxy.{value}"), ".");
    }
    lines + "{{- with .Values.extraEnv }}\n{{- toYaml . | nindent SAME }}\n{{- end }}"
}

/// The objects of an installation with options that the default installation does not have, without the Deployment.
fn added(objects: &[Object], allowed: &Allowed) -> Result<Vec<Object>, Error> {
    let mut added = install::objects_for(allowed);
    added.retain(|object| object.kind() != "Deployment" && !objects.contains(object));
    for object in &added {
        let same = |known: &&Object| {
            known.kind() == object.kind()
                && known.name() == object.name()
                && known.namespace() == object.namespace()
        };
        let is_new = !objects.iter().any(|known| same(&known));
        ensure!(is_new, OptionSnafu { object: format!("{} {}", object.kind(), object.name()) });
    }
    Ok(added)
}

/// Cloud controllers before 1.32 read Secrets in every namespace. Like `vdoctl deploy`, the chart lets the operator grant
/// it only in such a cluster.
fn old_cloud_controllers(objects: &[Object]) -> Result<String, Error> {
    let allowed = Allowed { old_cloud_controllers: true, ..Allowed::default() };
    let added = added(objects, &allowed)?;
    ensure!(!added.is_empty(), MissingSnafu { what: "binding for old cloud controllers" });
    let text = to_yaml(&added).context(YamlSnafu { what: "rbac.yaml" })?;
    ensure!(!text.contains("{{"), TemplateSnafu { what: "rbac.yaml" });
    let condition = r#"semverCompare "<1.32-0" .Capabilities.KubeVersion.Version"#;
    Ok(format!("{{{{- if {condition} }}}}\n{text}{{{{- end }}}}\n"))
}

/// The permissions in every additional namespace of drivers.
fn driver_namespaces(objects: &[Object]) -> Result<String, Error> {
    let namespaces = BTreeSet::from([ANY_NAMESPACE.to_owned()]);
    let added = added(objects, &Allowed { namespaces, ..Allowed::default() })?;
    ensure!(!added.is_empty(), MissingSnafu { what: "role in additional namespaces" });
    let mut text = String::new();
    for object in &added {
        let slots = if object.namespace() == ANY_NAMESPACE {
            vec![Slot::new(Place::Replace, "/metadata/namespace", "namespace: {{ . }}")]
        } else {
            // A binding in another namespace, for an account in this one.
            let name = object.name().strip_suffix(ANY_NAMESPACE);
            let name = name.with_context(|| OptionSnafu {
                object: format!("{} {}", object.kind(), object.name()),
            })?;
            vec![
                Slot::new(Place::Replace, "/metadata/name", &format!("name: {name}{{{{ . }}}}")),
                Slot::new(Place::Replace, "/subjects/0/namespace", "namespace: {{ . }}"),
            ]
        };
        text += "---\n";
        text += &slots::fill(&kept_for_drivers(object), &slots)?;
    }
    ensure!(!text.contains(ANY_NAMESPACE), OptionSnafu { object: "a name" });
    Ok(format!("{{{{- range .Values.driverNamespaces }}}}\n{text}{{{{- end }}}}\n"))
}
