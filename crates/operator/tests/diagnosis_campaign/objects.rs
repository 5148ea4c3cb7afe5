//! Enumerates mutations of Kubernetes objects from the objects themselves: whatever a release renders is mutated,
//! no list names its fields.

use plan::ObjectId;
use serde_json::{Value, json};

use super::mutation::{Area, Change, Mutation, ObjectEdit};

/// Flags that only tune or log: without them a driver works as before.
const TUNING: [&str; 12] = [
    "--v",
    "--http-endpoint",
    "--timeout",
    "--kube-api-qps",
    "--kube-api-burst",
    "--worker-threads",
    "--workers",
    "--retry-interval",
    "--logtostderr",
    "--health-port",
    "--metrics-address",
    "--leader-election-",
];

/// Variables that only tune or log.
const TUNING_VARIABLES: [&str; 6] = [
    "LOGGER_LEVEL",
    "X_CSI_LOG_LEVEL",
    "X_CSI_DEBUG",
    "INCLUSTER_CLIENT_QPS",
    "INCLUSTER_CLIENT_BURST",
    "GODEBUG",
];

/// The mutations of one object, as it is in the cluster.
pub(crate) fn mutations(id: &ObjectId, object: &Value) -> Vec<Mutation> {
    let mut all = Enumeration { id, object, found: Vec::new() };
    match id.kind.as_str() {
        "Deployment" | "DaemonSet" => all.workload(),
        "ClusterRole" | "Role" => all.role(),
        "ClusterRoleBinding" | "RoleBinding" => all.binding(),
        "Secret" | "ConfigMap" => all.data(),
        "CustomResourceDefinition" => all.definition(),
        "StorageClass" => all.class(),
        "Namespace" => all.namespace(),
        _ => {}
    }
    // A namespace takes everything in it along, also what VDO does not own.
    if id.kind != "Namespace" {
        all.deleted();
    }
    all.found
}

struct Enumeration<'a> {
    id: &'a ObjectId,
    object: &'a Value,
    found: Vec<Mutation>,
}

impl Enumeration<'_> {
    fn area(&self) -> Area {
        match self.id.kind.as_str() {
            "Deployment" | "DaemonSet" => Area::Workloads,
            "ClusterRole" | "ClusterRoleBinding" | "Role" | "RoleBinding" | "ServiceAccount" => {
                Area::Permissions
            }
            "Secret" | "ConfigMap" => Area::Configuration,
            _ => Area::Registrations,
        }
    }

    fn add(&mut self, what: &str, names: &[&str], hurts: bool, edit: ObjectEdit) {
        let mut names: Vec<String> = names.iter().map(|&name| name.to_owned()).collect();
        names.push(self.id.name.clone());
        self.found.push(Mutation {
            area: self.area(),
            name: format!("{}: {what}", self.id),
            names,
            hurts,
            change: Change::Object(self.id.clone(), edit),
            asks: false,
        });
    }

    fn set(&mut self, pointer: &str, value: Value, what: &str, names: &[&str], hurts: bool) {
        self.add(what, names, hurts, ObjectEdit::Set(pointer.into(), value));
    }

    fn remove(&mut self, pointer: &str, what: &str, names: &[&str], hurts: bool) {
        self.add(what, names, hurts, ObjectEdit::Remove(pointer.into()));
    }

    fn list(&self, pointer: &str) -> Vec<Value> {
        self.object.pointer(pointer).and_then(Value::as_array).cloned().unwrap_or_default()
    }

    fn deleted(&mut self) {
        // A metrics Service and a budget serve no volume and no node.
        let hurts = !matches!(self.id.kind.as_str(), "Service" | "PodDisruptionBudget");
        let kind = self.id.kind.clone();
        self.add("deleted", &[&kind], hurts, ObjectEdit::Delete);
    }

    fn workload(&mut self) {
        let pod = "/spec/template/spec";
        if self.id.kind == "Deployment" {
            self.set("/spec/replicas", json!(0), "no replicas", &["replicas"], true);
        }
        let account = format!("{pod}/serviceAccountName");
        self.set(&account, json!("default"), "another account", &["serviceAccount"], true);
        let selector = format!("{pod}/nodeSelector");
        let nowhere = json!({"example.com/disk": "none"});
        self.set(&selector, nowhere, "a node selector that no node has", &["nodeSelector"], true);
        if !self.list(&format!("{pod}/tolerations")).is_empty() {
            let pointer = format!("{pod}/tolerations");
            self.set(&pointer, json!([]), "no tolerations", &["tolerations"], true);
        }
        let containers = self.list(&format!("{pod}/containers"));
        for (number, container) in containers.iter().enumerate() {
            let at = format!("{pod}/containers/{number}");
            let name = container["name"].as_str().unwrap_or_default();
            if containers.len() > 1 {
                self.remove(&at, &format!("container {name} removed"), &[name], true);
            }
            self.container(&at, name, container);
        }
        for (number, volume) in self.list(&format!("{pod}/volumes")).iter().enumerate() {
            self.volume(&format!("{pod}/volumes/{number}"), volume);
        }
    }

    fn container(&mut self, at: &str, name: &str, container: &Value) {
        let image = json!("registry.invalid/none:v0");
        let names = [name, "image"];
        self.set(&format!("{at}/image"), image, &format!("{name}: another image"), &names, true);
        for (number, argument) in self.list(&format!("{at}/args")).iter().enumerate() {
            let argument = argument.as_str().unwrap_or_default();
            let flag = argument.split('=').next().unwrap_or(argument);
            let hurts = !TUNING
                .iter()
                .any(|tuning| flag == *tuning || tuning.ends_with('-') && flag.starts_with(tuning));
            let what = format!("{name}: without {argument}");
            self.remove(&format!("{at}/args/{number}"), &what, &[name, "args", flag], hurts);
        }
        for (number, variable) in self.list(&format!("{at}/env")).iter().enumerate() {
            let variable = variable["name"].as_str().unwrap_or_default();
            let hurts = !TUNING_VARIABLES.contains(&variable);
            let what = format!("{name}: without the variable {variable}");
            self.remove(&format!("{at}/env/{number}"), &what, &[name, variable], hurts);
        }
        for (number, mount) in self.list(&format!("{at}/volumeMounts")).iter().enumerate() {
            let path = mount["mountPath"].as_str().unwrap_or_default();
            let what = format!("{name}: without the mount {path}");
            let names = [name, "volumeMounts"];
            self.remove(&format!("{at}/volumeMounts/{number}"), &what, &names, true);
        }
        if container["livenessProbe"].is_object() {
            let what = format!("{name}: without its liveness probe");
            self.remove(&format!("{at}/livenessProbe"), &what, &[name, "livenessProbe"], false);
        }
    }

    fn volume(&mut self, at: &str, volume: &Value) {
        let name = volume["name"].as_str().unwrap_or_default();
        let what = format!("volume {name} from another place");
        if volume["hostPath"].is_object() {
            let pointer = format!("{at}/hostPath/path");
            self.set(&pointer, json!("/nowhere"), &what, &[name, "hostPath"], true);
        } else if volume["secret"].is_object() {
            let pointer = format!("{at}/secret/secretName");
            self.set(&pointer, json!("no-such-secret"), &what, &[name, "secret"], true);
        } else if volume["configMap"].is_object() {
            let pointer = format!("{at}/configMap/name");
            self.set(&pointer, json!("no-such-map"), &what, &[name, "configMap"], true);
        }
    }

    fn role(&mut self) {
        for (number, rule) in self.list("/rules").iter().enumerate() {
            let texts = |part: &str| -> Vec<String> {
                let list = rule[part].as_array().into_iter().flatten();
                list.filter_map(Value::as_str).map(str::to_owned).collect()
            };
            let (resources, verbs) = (texts("resources"), texts("verbs"));
            let Some(resource) = resources.first() else { continue };
            // Events only inform.
            let hurts = resources.iter().any(|resource| resource != "events");
            let all = format!("{} (rule {number})", resources.join(", "));
            self.remove(
                &format!("/rules/{number}"),
                &format!("no rule for {all}"),
                &[resource],
                hurts,
            );
            for (place, verb) in verbs.iter().enumerate().filter(|_| verbs.len() > 1) {
                let pointer = format!("/rules/{number}/verbs/{place}");
                self.remove(&pointer, &format!("{all} without {verb}"), &[verb], hurts);
            }
        }
    }

    fn binding(&mut self) {
        self.set("/subjects", json!([]), "no subjects", &["subjects"], true);
    }

    fn data(&mut self) {
        let data = self.object["data"].as_object().cloned().unwrap_or_default();
        for key in data.keys() {
            let pointer = format!("/data/{}", key.replace('~', "~0").replace('/', "~1"));
            self.remove(&pointer, &format!("without the key {key}"), &[key], true);
            // Base64 of an unreadable text, which is as unreadable in a ConfigMap.
            let nonsense = json!("JSUlIG5vbnNlbnNl");
            self.set(&pointer, nonsense, &format!("another value of {key}"), &[key], true);
        }
    }

    fn definition(&mut self) {
        let versions = self.list("/spec/versions");
        if let Some(number) = versions.iter().position(|version| version["storage"] == true) {
            let pointer = format!("/spec/versions/{number}/served");
            self.set(&pointer, json!(false), "not served", &["served"], true);
        }
    }

    fn class(&mut self) {
        if self.object["allowVolumeExpansion"] == true {
            let names = ["allowVolumeExpansion"];
            self.set("/allowVolumeExpansion", json!(false), "volumes cannot grow", &names, true);
        }
    }

    fn namespace(&mut self) {
        let labels = self.object["metadata"]["labels"].as_object().cloned().unwrap_or_default();
        let enforce = "pod-security.kubernetes.io/enforce";
        if labels.contains_key(enforce) {
            let pointer = "/metadata/labels/pod-security.kubernetes.io~1enforce";
            let names = [enforce];
            self.set(pointer, json!("restricted"), "pod security restricted", &names, true);
        }
    }
}
