//! Collects the support bundle: objects, events, logs, metrics and versions of everything that VDO works with, without
//! any secret.
//!
//! Three measures keep secrets out. VDO does not collect them: of a Secret, it lists only the names of the
//! keys. It empties fields, lines and flags that usually hold secrets. It searches every text for the values
//! of all Secrets in the namespaces concerned, in plain text and in the usual encodings, and replaces them.

mod metrics;

use std::collections::{BTreeMap, BTreeSet};

use futures::{StreamExt as _, stream};
use k8s_openapi::api::core::v1::{Pod, Secret};
use kube::{
    Api, Client, ResourceExt,
    api::{ApiResource, DynamicObject, GroupVersionKind, ListParams, LogParams},
};
use plan::names;
use redaction::{REDACTED, SecretValue, SecretValues, is_secret_name, redact_text};
use serde_json::{Value, json};

/// Limit of lines per log.
const LINES: i64 = 5000;
/// Limit of bytes per log.
const BYTES: i64 = 4 << 20;
/// The number of logs that VDO reads concurrently.
const AT_ONCE: usize = 16;

/// A file of the support bundle.
#[derive(Clone, Debug)]
pub struct BundleFile {
    /// Its path in the archive.
    pub path: String,
    pub text: String,
    /// True if `text` only reports why VDO could not read it. An object that does not exist counts as read.
    pub unreadable: bool,
}

/// Collects all files, redacted, with `more` of the caller. A file that cannot be read contains the reason instead, and
/// the others follow.
pub async fn collect(client: &Client, namespace: &str, more: Vec<BundleFile>) -> Vec<BundleFile> {
    let mut allowed_namespaces: BTreeSet<&str> = crate::allowed_namespaces::all().collect();
    allowed_namespaces.insert(namespace);
    let mut files = Vec::new();
    for (group, kind, plural) in KINDS {
        let gvk = GroupVersionKind::gvk(group.0, group.1, kind);
        let resource = ApiResource::from_gvk_with_plural(&gvk, plural);
        files.push(list(client, &resource, None).await);
    }
    for namespace in &allowed_namespaces {
        for (group, kind, plural) in NAMESPACED_KINDS {
            let gvk = GroupVersionKind::gvk(group.0, group.1, kind);
            let resource = ApiResource::from_gvk_with_plural(&gvk, plural);
            files.push(list(client, &resource, Some(namespace)).await);
        }
        let pods = Api::<Pod>::namespaced(client.clone(), namespace);
        if let Ok(pods) = pods.list(&ListParams::default()).await {
            let pods = || pods.items.iter().filter(|pod| is_ours(pod, namespace));
            files.extend(logs(client, namespace, pods()).await);
            files.extend(metrics::of_pods(client, namespace, pods()).await);
        }
    }
    // The configuration of a driver can point to credentials in another namespace.
    let settings = files.iter().filter(|file| file.path.ends_with("/configmaps.json"));
    let elsewhere: BTreeSet<String> = settings.flat_map(|file| named(&file.text)).collect();
    allowed_namespaces.extend(elsewhere.iter().map(String::as_str));
    let secrets = secrets(client, &allowed_namespaces).await;
    if !secrets.all_known {
        // The value of a Secret can occur anywhere in these texts, and VDO does not know all values to search
        // for.
        for file in files.iter_mut().filter(|file| !file.unreadable && is_free_text(&file.path)) {
            LEFT_OUT.clone_into(&mut file.text);
        }
    }
    files.push(secrets.listing);
    let left_out = |mut file: BundleFile| {
        if !secrets.all_known {
            LEFT_OUT.clone_into(&mut file.text);
        }
        file
    };
    files.extend(more.into_iter().map(left_out));
    for file in &mut files {
        file.text = secrets.values.redact(&file.text);
    }
    files
}

/// The namespaces that a driver's configuration names for Secrets. It finds both configuration formats, at
/// any nesting depth.
fn named(text: &str) -> impl Iterator<Item = String> {
    let keys = ["secretNamespace", "secret-namespace"];
    keys.into_iter().flat_map(|key| text.split(key).skip(1)).filter_map(|after| {
        let rest = after.trim_start_matches([' ', ':', '=', '"', '\'', '\\']);
        // Text that mentions the key is not a setting.
        let (between, is_name) = (&after[..after.len() - rest.len()], |c: char| {
            c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-'
        });
        let name = rest.split(|c| !is_name(c)).next()?;
        (between.contains([':', '=']) && !name.is_empty()).then(|| name.to_owned())
    })
}

/// Replaces texts that VDO could not search for secrets.
pub const LEFT_OUT: &str =
    "(left out: not every Secret may be read, so nobody knows what to remove here)\n";

fn is_free_text(path: &str) -> bool {
    let plurals = [
        "configmaps",
        "events",
        "pods",
        "deployments",
        "daemonsets",
        "nodes",
        "persistentvolumes",
        "persistentvolumeclaims",
        "volumeattachments",
    ];
    plurals.iter().any(|plural| path.ends_with(&format!("/{plural}.json")))
        || path.contains("/logs/")
        || path.contains("/metrics/")
}

type Group = (&'static str, &'static str);

/// Cluster-wide kinds.
const KINDS: [(Group, &str, &str); 10] = [
    ((api::GROUP, "v1alpha1"), "VDOConfig", "vdoconfigs"),
    ((api::GROUP, "v1alpha1"), "VsphereCloudConfig", "vspherecloudconfigs"),
    ((api::GROUP, "v1alpha1"), "CompatibilityConfig", "compatibilityconfigs"),
    (("", "v1"), "Node", "nodes"),
    (("", "v1"), "PersistentVolume", "persistentvolumes"),
    (("", "v1"), "PersistentVolumeClaim", "persistentvolumeclaims"),
    (("storage.k8s.io", "v1"), "CSINode", "csinodes"),
    (("storage.k8s.io", "v1"), "CSIDriver", "csidrivers"),
    (("storage.k8s.io", "v1"), "StorageClass", "storageclasses"),
    (("storage.k8s.io", "v1"), "VolumeAttachment", "volumeattachments"),
];

/// Kinds in the namespaces of the operator and the drivers.
const NAMESPACED_KINDS: [(Group, &str, &str); 6] = [
    (("apps", "v1"), "Deployment", "deployments"),
    (("apps", "v1"), "DaemonSet", "daemonsets"),
    (("", "v1"), "Pod", "pods"),
    (("", "v1"), "ConfigMap", "configmaps"),
    (("events.k8s.io", "v1"), "Event", "events"),
    (("coordination.k8s.io", "v1"), "Lease", "leases"),
];

async fn list(client: &Client, resource: &ApiResource, namespace: Option<&str>) -> BundleFile {
    let (api, folder) = match namespace {
        Some(namespace) => (
            Api::<DynamicObject>::namespaced_with(client.clone(), namespace, resource),
            format!("namespaces/{namespace}"),
        ),
        None => (Api::all_with(client.clone(), resource), "cluster".to_owned()),
    };
    let path = format!("{folder}/{}.json", resource.plural);
    match api.list(&ListParams::default()).await {
        Ok(list) => {
            let items: Vec<Value> = list.items.into_iter().map(harmless).collect();
            let text = serde_json::to_string_pretty(&items).unwrap_or_default();
            BundleFile { path, text, unreadable: false }
        }
        Err(error) => {
            let absent = matches!(&error, kube::Error::Api(status) if status.code == 404);
            let text = json!({"unreadable": error.to_string()}).to_string();
            BundleFile { path, text, unreadable: !absent }
        }
    }
}

/// Removes the parts of an object that usually hold secrets, or are only long.
fn harmless(mut object: DynamicObject) -> Value {
    object.metadata.managed_fields = None;
    if let Some(annotations) = &mut object.metadata.annotations {
        annotations.remove("kubectl.kubernetes.io/last-applied-configuration");
    }
    let mut value = serde_json::to_value(&object).unwrap_or_default();
    blank(&mut value);
    value
}

/// Empties values whose name marks them as secret, at any depth: fields, environment variables, arguments
/// after such a flag, and values next to such a name within a text.
fn blank(value: &mut Value) {
    match value {
        Value::Object(fields) => {
            let named = fields.get("name").and_then(Value::as_str).is_some_and(is_secret_name);
            if named && fields.get("value").is_some_and(Value::is_string) {
                fields.insert("value".into(), REDACTED.into());
            }
            for (name, value) in fields.iter_mut() {
                if is_secret_name(name) && value.is_string() {
                    *value = REDACTED.into();
                } else {
                    blank(value);
                }
            }
        }
        Value::Array(items) => {
            let mut after_flag = false;
            for item in items {
                let text = item.as_str().unwrap_or_default();
                let flag = text.starts_with('-');
                let telling = flag && !text.contains(['=', ' ']) && is_secret_name(text);
                if std::mem::replace(&mut after_flag, telling) && item.is_string() && !flag {
                    *item = REDACTED.into();
                }
                blank(item);
            }
        }
        Value::String(text) => *text = redact_text(text),
        _ => {}
    }
}

async fn logs<'a>(
    client: &Client,
    namespace: &str,
    pods: impl Iterator<Item = &'a Pod>,
) -> Vec<BundleFile> {
    let api = Api::<Pod>::namespaced(client.clone(), namespace);
    let mut wanted = Vec::new();
    for pod in pods {
        for container in pod.spec.iter().flat_map(|spec| &spec.containers) {
            wanted.push((pod.name_any(), container.name.clone(), false));
            wanted.push((pod.name_any(), container.name.clone(), true));
        }
    }
    let api = &api;
    // Thousands of nodes have thousands of pods, so VDO reads the logs concurrently.
    let read = stream::iter(wanted).map(|(pod, container, previous)| async move {
        let (text, unreadable) = log(api, &pod, &container, previous).await?;
        let which = if previous { ".previous" } else { "" };
        let path = format!("namespaces/{namespace}/logs/{pod}/{container}{which}.log");
        Some(BundleFile { path, text, unreadable })
    });
    read.buffered(AT_ONCE).filter_map(async |file| file).collect().await
}

/// The end of a log with `false`, or the reason why it is unreadable with `true`. None if the container has
/// no previous instance.
async fn log(api: &Api<Pod>, pod: &str, container: &str, previous: bool) -> Option<(String, bool)> {
    let parameters = LogParams {
        container: Some(container.to_owned()),
        tail_lines: Some(LINES),
        limit_bytes: Some(BYTES),
        previous,
        ..LogParams::default()
    };
    match api.logs(pod, &parameters).await {
        // A log can contain a password that is no longer in any Secret.
        Ok(text) => Some((redact_text(whole_lines(&text)), false)),
        // Most containers never restarted.
        Err(_) if previous => None,
        Err(error) => Some((format!("(unreadable: {error})\n"), true)),
    }
}

/// Drops a line that the size limit cut off: the redaction would not find half of a secret.
fn whole_lines(text: &str) -> &str {
    let is_cut = i64::try_from(text.len()).is_ok_and(|length| length >= BYTES);
    if is_cut { text.rfind('\n').map_or("", |end| &text[..=end]) } else { text }
}

/// `kube-system` contains many pods that have nothing to do with VDO.
fn is_ours(pod: &Pod, namespace: &str) -> bool {
    namespace != names::KUBE_SYSTEM
        || pod.labels().get(names::PART_OF_LABEL).is_some_and(|part| part == names::PART_OF)
        || pod.name_any().contains("vsphere")
}

struct Secrets {
    /// Whether VDO could read all of them.
    all_known: bool,
    listing: BundleFile,
    values: SecretValues,
}

/// Lists the Secrets by name and keys, and collects the values that must not occur in any text.
async fn secrets(client: &Client, allowed_namespaces: &BTreeSet<&str>) -> Secrets {
    let mut listing: BTreeMap<String, Value> = BTreeMap::new();
    let (mut hidden, mut all_known, mut unreadable) = (Vec::new(), true, true);
    for namespace in allowed_namespaces {
        let api = Api::<Secret>::namespaced(client.clone(), namespace);
        match api.list(&ListParams::default()).await {
            Err(error) => {
                all_known = false;
                listing.insert((*namespace).to_owned(), json!({"unreadable": error.to_string()}));
            }
            Ok(list) => {
                unreadable = false;
                for secret in list.items {
                    let data = secret.data.clone().unwrap_or_default();
                    let keys: Vec<&String> = data.keys().collect();
                    let described = json!({"type": secret.type_, "keys": keys});
                    listing.insert(format!("{namespace}/{}", secret.name_any()), described);
                    hidden.extend(data.into_iter().map(|(key, v)| SecretValue { key, value: v.0 }));
                }
            }
        }
    }
    let text = serde_json::to_string_pretty(&listing).unwrap_or_default();
    let listing = BundleFile { path: "secrets-by-name.json".into(), text, unreadable };
    Secrets { all_known, listing, values: SecretValues::new(hidden) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_namespaces_that_settings_name_are_found_in_both_formats() {
        let maps = json!({"items": [
            {"data": {"vsphere.conf": "global:\n  secretNamespace: vcenters\n  secretName: x\n"}},
            {"data": {"vsphere.conf": "[Global]\nsecret-namespace = \"far-away\"\n"}},
            {"data": {"readme": "set secretNamespace to where the Secret is"}},
        ]});
        let found: BTreeSet<String> = named(&maps.to_string()).collect();
        assert_eq!(found, ["far-away", "vcenters"].map(str::to_owned).into());
    }

    #[test]
    fn fields_with_secret_names_are_emptied() {
        let mut value = json!({
            "env": [{"name": "VC_PASSWORD", "value": "geheim"}, {"name": "MODE", "value": "x"}],
            "spec": {"credentials": "vcenter-a", "bearerToken": "abc"},
        });
        blank(&mut value);
        assert_eq!(value["env"][0]["value"], REDACTED);
        assert_eq!(value["env"][1]["value"], "x");
        assert_eq!(value["spec"]["credentials"], "vcenter-a", "the name of a Secret");
        assert_eq!(value["spec"]["bearerToken"], REDACTED);
    }

    #[test]
    fn passwords_outside_secrets_are_found_in_texts_arguments_and_variables() {
        let mut value = json!({
            "data": {
                "vsphere.conf": "[Global]\nuser = \"u\"\npassword = \"hand-made-1\"\nport = \"443\"\n",
                "passphrase": "hand-made-2",
            },
            "args": ["--user=u", "--password=hand-made-3", "--token", "hand-made-4", "--v", "4"],
            "command": ["sh", "-c", "login --password hand-made-5 --port 443"],
            "env": [
                {"name": "CLIENT_SECRET", "value": "hand-made-6"},
                {"name": "KEY_PASSPHRASE", "value": "hand-made-7"},
                {"name": "OPTIONS", "value": "password=hand-made-8"},
                {"name": "VC", "valueFrom": {"secretKeyRef": {"name": "vc", "key": "password"}}},
            ],
            "volumes": [{"secret": {"secretName": "vc"}}],
        });
        blank(&mut value);
        let text = value.to_string();
        assert!(!text.contains("hand-made"), "{text}");
        assert_eq!(
            value["args"],
            json!(["--user=u", "--password=(redacted)", "--token", REDACTED, "--v", "4"])
        );
        assert!(
            value["data"]["vsphere.conf"].as_str().is_some_and(|t| t.contains("port = \"443\""))
        );
        assert_eq!(value["env"][3]["valueFrom"]["secretKeyRef"]["key"], "password");
        assert_eq!(value["volumes"][0]["secret"]["secretName"], "vc");
    }

    #[test]
    fn a_line_that_was_cut_off_is_left_out() {
        let limit = usize::try_from(BYTES).unwrap_or_default();
        let cut = format!("{}\nthe password is gehe", "x".repeat(limit));
        assert_eq!(whole_lines(&cut), format!("{}\n", "x".repeat(limit)));
        assert_eq!(whole_lines("a\nno line end"), "a\nno line end");
    }

    #[test]
    fn files_with_free_text_are_omitted_while_secrets_are_unknown() {
        for plural in ["configmaps", "events", "pods", "deployments", "daemonsets"] {
            assert!(is_free_text(&format!("namespaces/kube-system/{plural}.json")), "{plural}");
        }
        assert!(
            is_free_text("cluster/nodes.json") && is_free_text("cluster/volumeattachments.json")
        );
        assert!(!is_free_text("cluster/vdoconfigs.json"));
    }
}
