//! Every manifest that a user applies: kubeconform checks it against the schemas of a real API server that has VDO's
//! definitions, and kube-score against good practice.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::Path,
    process::Command,
};

use catalog::manifest::Object;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::{Api, Client, api::PostParams};
use operator::install;
use serde_json::{Map, Value, json};
use testkit::{ControlPlane, Workdir, eventually};

use crate::{checkout, documents, olm, run, shown};

/// Kinds of other projects, which this API server does not know.
const FOREIGN: &[&str] = &[
    "ClusterServiceVersion",
    "GitRepository",
    "Kustomization",
    "OperatorGroup",
    "PrometheusRule",
    "Subscription",
];

/// A mistake in an object.
type Change = fn(&mut Value);

/// The objects that each way to install VDO applies, by way.
fn manifests(workdir: &Workdir) -> BTreeMap<String, Vec<Object>> {
    let at = |path: &str| workdir.path().join(path);
    let mut all = BTreeMap::from([("install.yaml".to_owned(), install::objects())]);
    let objects = |text: &str| -> Vec<Object> {
        let values: Vec<Value> = serde_saphyr::from_multiple(text).unwrap();
        values.into_iter().filter(|value| !value.is_null()).map(Object).collect()
    };
    // A value for everything that the chart renders only on request.
    let values = json!({
        "image": {"digest": format!("sha256:{}", "ab".repeat(32))}, "imagePullSecrets": [{"name": "registry"}],
        "proxy": {"https": "http://proxy.example.com:3128", "noProxy": "10.0.0.0/8"},
        "driverNamespaces": ["storage"], "monitoring": {"alerts": true},
    });
    fs::write(at("values.json"), values.to_string()).unwrap();
    let pod_network = ["--set", "hostNetwork=false"];
    let with_values = ["--values", "values.json"];
    for (name, more) in [
        ("chart", &[][..]),
        ("chart with values", &with_values),
        ("chart on the pod network", &pod_network),
    ] {
        let mut helm = Command::new(testkit::peer("helm"));
        helm.current_dir(workdir.path()).args(["template", "vdo", "deploy/chart"]).args(more);
        all.insert(name.to_owned(), objects(&run(&mut helm)));
    }
    for folder in ["base", "overlays/air-gap", "overlays/monitoring"] {
        let mut kubectl = Command::new(testkit::peer("kubectl"));
        let built = kubectl.arg("kustomize").arg(at("deploy/kustomize").join(folder));
        all.insert(format!("kustomize {folder}"), objects(&run(built)));
    }
    let mut bundle = documents(&at("deploy/olm/prerequisites.yaml"));
    for file in fs::read_dir(at("deploy/olm/bundle/manifests")).unwrap() {
        bundle.extend(documents(&file.unwrap().path()));
    }
    bundle.extend(documents(&at("deploy/olm/subscription.yaml")));
    let mut bundle: Vec<Object> = bundle.into_iter().map(Object).collect();
    bundle.extend(olm::created_by_olm(&olm::version(workdir)));
    all.insert("OLM".to_owned(), bundle);
    all
}

/// The samples are configuration, not a way to install.
fn samples() -> Vec<Object> {
    let folder = testkit::repository().join("deploy/samples");
    let files = fs::read_dir(folder).unwrap().map(|file| file.unwrap().path());
    files.flat_map(|file| documents(&file)).map(Object).collect()
}

/// Writes the objects into a file that the programs read.
fn write(path: &Path, objects: &[Object]) {
    let texts: Vec<String> = objects.iter().map(|object| format!("{:#}\n", object.0)).collect();
    fs::write(path, texts.join("---\n")).unwrap();
}

/// The name of a definition that contains itself. Its content stays open.
const RECURSIVE: &str = "JSONSchemaProps";

/// Turns the definitions of an OpenAPI document into the JSON schemas that kubeconform reads: without references, and
/// closed, so that an unknown field is an error.
struct Schemas<'a>(&'a Map<String, Value>);

impl Schemas<'_> {
    fn closed(&self, schema: &Value) -> Value {
        match schema {
            Value::Object(fields) => {
                if let Some(target) = fields.get("$ref").and_then(Value::as_str) {
                    let name = target.rsplit('/').next().unwrap_or_default();
                    let is_open = name.contains(RECURSIVE);
                    return if is_open { json!({}) } else { self.closed(&self.0[name]) };
                }
                let mut closed: Map<String, Value> =
                    fields.iter().map(|(key, value)| (key.clone(), self.closed(value))).collect();
                let is_true = |key: &str| fields.get(key) == Some(&json!(true));
                if is_true("x-kubernetes-int-or-string")
                    || fields.get("format") == Some(&json!("int-or-string"))
                {
                    closed.remove("type");
                    closed.remove("format");
                    closed.insert("oneOf".into(), json!([{"type": "string"}, {"type": "integer"}]));
                }
                if fields.get("properties").is_some_and(Value::is_object)
                    && !fields.contains_key("additionalProperties")
                    && !is_true("x-kubernetes-preserve-unknown-fields")
                {
                    closed.insert("additionalProperties".into(), json!(false));
                }
                Value::Object(closed)
            }
            Value::Array(list) => list.iter().map(|one| self.closed(one)).collect(),
            other => other.clone(),
        }
    }

    /// Writes one file for each kind, with the names that kubeconform looks for.
    fn write(&self, folder: &Path) {
        fs::create_dir_all(folder).unwrap();
        for (name, definition) in self.0.iter().filter(|(name, _)| !name.contains(RECURSIVE)) {
            let kinds = definition["x-kubernetes-group-version-kind"].as_array();
            // Options of a request belong to every group; they are no objects.
            for kind in kinds.into_iter().flatten().filter(|_| !name.ends_with("Options")) {
                let text = |key: &str| kind[key].as_str().unwrap_or_default().to_lowercase();
                let group = text("group").split('.').next().unwrap_or_default().to_owned();
                let parts = [text("kind"), group, text("version")];
                let parts: Vec<String> =
                    parts.into_iter().filter(|part| !part.is_empty()).collect();
                let path = folder.join(parts.join("-") + ".json");
                fs::write(path, self.closed(definition).to_string()).unwrap();
            }
        }
    }
}

/// The OpenAPI document of the API server, once it knows VDO's definitions.
async fn open_api(client: &Client) -> Value {
    let definitions = Api::<CustomResourceDefinition>::all(client.clone());
    for definition in api::crds() {
        definitions.create(&PostParams::default(), &definition).await.unwrap();
    }
    eventually("the API server publishes VDO's definitions", 60, async || {
        let document: Value = client.request(request("/openapi/v2")).await.unwrap();
        let found = document["definitions"].as_object().unwrap();
        let missing = api::crds().into_iter().map(|crd| crd.spec.names.kind);
        let missing =
            missing.filter(|kind| !found.keys().any(|name| name.ends_with(&format!(".{kind}"))));
        let missing: Vec<String> = missing.collect();
        if missing.is_empty() { Ok(document) } else { Err(format!("without {missing:?}")) }
    })
    .await
}

fn request(path: &str) -> http::Request<Vec<u8>> {
    http::Request::get(path).body(Vec::new()).unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_manifest_matches_the_schemas_of_the_api_server() {
    let plane = ControlPlane::builder().start().await;
    let document = open_api(&plane.client()).await;
    let workdir = checkout();
    let schemas = workdir.path().join("schemas");
    Schemas(document["definitions"].as_object().unwrap()).write(&schemas);
    let check = |name: &str, objects: &[Object]| {
        let path = workdir.path().join("checked.yaml");
        write(&path, objects);
        let mut command = Command::new(testkit::peer("kubeconform"));
        let location = schemas.join("{{.ResourceKind}}{{.KindSuffix}}.json");
        command.args(["-strict", "-summary", "-output", "json", "-skip", &FOREIGN.join(",")]);
        let output = command.arg("-schema-location").arg(location).arg(path).output().unwrap();
        let summary: Value = serde_json::from_slice(&output.stdout)
            .unwrap_or_else(|error| panic!("{name}: {error}: {}", shown(&output)));
        (output.status.success(), summary)
    };
    let mut all = manifests(&workdir);
    all.insert("samples".to_owned(), samples());
    for (name, objects) in &all {
        let (succeeded, found) = check(name, objects);
        assert!(succeeded, "{name}: {found:#}");
        let is_foreign = |object: &&Object| FOREIGN.contains(&object.kind());
        let foreign = objects.iter().filter(is_foreign).count();
        assert_eq!(found["summary"]["valid"], objects.len() - foreign, "{name}: {found:#}");
        assert_eq!(found["summary"]["skipped"], foreign, "{name}: {found:#}");
    }

    // The check can fail: a wrong type, an unknown field, an unknown kind, a wrong field of an object of VDO.
    let mistakes: [(&str, Change); 4] = [
        ("Deployment", |object| object["spec"]["replicas"] = json!("two")),
        ("Deployment", |object| object["spec"]["template"]["spec"]["hostnetwork"] = json!(true)),
        ("Deployment", |object| object["kind"] = json!("Deploymnet")),
        ("VDOConfig", |object| object["spec"]["storageProvider"]["file_volumes"] = json!({})),
    ];
    let objects: Vec<Object> = install::objects().into_iter().chain(samples()).collect();
    for (kind, change) in mistakes {
        let mut object = objects.iter().find(|object| object.kind() == kind).unwrap().clone();
        change(&mut object.0);
        let (succeeded, found) = check(kind, std::slice::from_ref(&object));
        assert!(!succeeded, "{object:?} is accepted: {found:#}");
    }
}

/// The checks of kube-score that the manifests disable with an annotation, from the table of the page with the reasons.
fn explained() -> BTreeSet<String> {
    let page = fs::read_to_string(testkit::repository().join("docs/install.md")).unwrap();
    let (_, table) = page.split_once("| Check of kube-score |").unwrap();
    let rows = table.lines().skip(2).take_while(|line| line.starts_with('|'));
    rows.map(|row| row.split('`').nth(1).unwrap().to_owned()).collect()
}

/// Runs kube-score, and returns whether it succeeded, and the failed checks with their comments.
fn score(path: &Path, flags: &[&str]) -> (bool, BTreeMap<String, String>) {
    let mut command = Command::new(testkit::peer("kube-score"));
    command.args(["score", "--kubernetes-version", "v1.36", "--exit-one-on-warning"]);
    command.args(["--output-format", "json"]).args(flags);
    let output = command.arg(path).output().unwrap();
    let objects: Vec<Value> = serde_json::from_slice(&output.stdout)
        .unwrap_or_else(|error| panic!("{error}: {}", shown(&output)));
    let mut failed = BTreeMap::new();
    for object in &objects {
        for check in object["checks"].as_array().into_iter().flatten() {
            // 10 is the best grade.
            if check["skipped"] == false && check["grade"].as_u64().unwrap() < 10 {
                let id = check["check"]["id"].as_str().unwrap().to_owned();
                failed.insert(id, format!("{} {}", object["object_name"], check["comments"]));
            }
        }
    }
    (output.status.success(), failed)
}

/// A ClusterServiceVersion has no place for annotations of a Deployment, only for those of its pods. So the annotation
/// for the check of Deployments gets lost on the way through OLM.
const IGNORED_WITH_OLM: &[&str] = &["--ignore-test", "deployment-has-poddisruptionbudget"];

#[test]
fn kube_score_finds_no_error_and_no_warning() {
    let workdir = checkout();
    let path = workdir.path().join("scored.yaml");
    let explained = explained();
    let mut needed = BTreeSet::new();
    for (name, objects) in manifests(&workdir) {
        write(&path, &objects);
        let flags = if name == "OLM" { IGNORED_WITH_OLM } else { &[] };
        let (is_clean, failed) = score(&path, flags);
        assert!(is_clean && failed.is_empty(), "{name}: {failed:?}");

        // Without the annotations, only the checks fail that the page explains.
        let all = "--disable-ignore-checks-annotations";
        let (_, failed) = score(&path, &[all]);
        for (check, comment) in &failed {
            assert!(explained.contains(check), "{name}: {check} is not explained: {comment}");
        }
        needed.extend(failed.into_keys());
        // Of the resources, only the limit of the CPU is missing.
        let (_, failed) = score(&path, &[all, "--ignore-container-cpu-limit"]);
        assert_eq!(failed.get("container-resources"), None, "{name}");
    }
    assert_eq!(needed, explained, "an explanation that nothing needs any more");

    // The check can fail.
    let mut deployment =
        install::objects().into_iter().find(|object| object.kind() == "Deployment").unwrap();
    let container = &mut deployment.0["spec"]["template"]["spec"]["containers"][0];
    container["securityContext"]["readOnlyRootFilesystem"] = json!(false);
    write(&path, &[deployment]);
    let (is_clean, failed) = score(&path, &[]);
    assert!(!is_clean, "{failed:?}");
    assert!(failed.contains_key("container-security-context-readonlyrootfilesystem"), "{failed:?}");
}
