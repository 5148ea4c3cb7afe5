//! The OLM bundle. OLM's controllers do not run in these tests: they cannot be built from the module proxy. The last test
//! creates the objects that OLM creates from a ClusterServiceVersion, as OLM's documentation and source describe it.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use catalog::manifest::Object;
use k8s_openapi::api::{apps::v1::Deployment, authorization::v1::SubjectAccessReview};
use kube::{
    Api,
    api::{DynamicObject, Patch, PatchParams, PostParams},
    core::GroupVersionKind,
};
use operator::install;
use serde_json::{Value, json};
use testkit::{ControlPlane, Node, Nodes, Port, Process, Workdir, eventually};

use crate::{checkout, documents, run, shown};

const VERSION: &str = concat!("vdo.v", env!("CARGO_PKG_VERSION"));

pub(crate) fn version(workdir: &Workdir) -> Value {
    let path = "deploy/olm/bundle/manifests/vdo.clusterserviceversion.yaml";
    documents(&workdir.path().join(path)).remove(0)
}

/// Warnings that stay, with their reasons.
const WARNINGS: &[&str] = &[
    // VDO installs the storage driver's definitions, by name.
    "CSV contains permissions to create CRD",
    // The check compares names of resources without their group: these are not the removed APIs.
    "this bundle is using APIs which were deprecated and removed",
];

#[test]
fn the_validators_of_operator_framework_find_no_error() {
    let workdir = checkout();
    let folder = workdir.path().join("deploy/olm/bundle");
    let check =
        || Command::new(testkit::peer("bundle-check")).arg(&folder).arg("1.36").output().unwrap();
    let output = check();
    let text = shown(&output);
    assert!(output.status.success(), "{text}");
    assert!(text.contains(&format!("bundle {VERSION} in channels [stable]")), "{text}");
    for warning in text.lines().filter(|line| line.starts_with("warning")) {
        assert!(WARNINGS.iter().any(|known| warning.contains(known)), "not explained: {warning}");
    }

    // The check can fail: a definition without its file.
    fs::remove_file(folder.join("manifests/vdoconfigs.vdo.vmware.com.yaml")).unwrap();
    let output = check();
    assert!(!output.status.success(), "{}", shown(&output));
}

/// The bundle as `opm` puts it into a catalog.
fn rendered(workdir: &Workdir) -> String {
    let bundle = workdir.path().join("deploy/olm/bundle");
    let mut opm = Command::new(testkit::peer("opm"));
    let output = opm.arg("render").arg(&bundle).args(["--output", "yaml"]).output().unwrap();
    assert!(output.status.success(), "{}", shown(&output));
    String::from_utf8(output.stdout).unwrap()
}

/// Writes a catalog with the bundle, as the page describes it. Returns its folder.
fn catalog(workdir: &Workdir, bundle: &str) -> PathBuf {
    let catalog = workdir.path().join("catalog");
    let folder = catalog.join("vdo");
    fs::create_dir_all(&folder).unwrap();
    fs::copy(workdir.path().join("deploy/olm/catalog.yaml"), folder.join("catalog.yaml")).unwrap();
    fs::write(folder.join("bundle.yaml"), bundle).unwrap();
    catalog
}

#[test]
fn opm_accepts_the_bundle_in_a_catalog() {
    let workdir = checkout();
    let rendered = rendered(&workdir);
    let blob: Value = serde_saphyr::from_str(&rendered).unwrap();
    assert_eq!(blob["schema"], "olm.bundle");
    assert_eq!(blob["name"], VERSION);
    let images: BTreeSet<&str> = blob["relatedImages"]
        .as_array()
        .unwrap()
        .iter()
        .filter_map(|image| image["image"].as_str())
        .collect();
    assert!(images.iter().any(|image| image.starts_with("registry.k8s.io/csi-vsphere/driver")));

    let catalog = catalog(&workdir, &rendered);
    let opm = testkit::peer("opm");
    run(Command::new(&opm).arg("validate").arg(&catalog));
    // The check can fail: a channel whose bundle is missing.
    fs::remove_file(catalog.join("vdo/bundle.yaml")).unwrap();
    let refused = Command::new(&opm).arg("validate").arg(&catalog).output();
    assert!(!refused.unwrap().status.success());
}

/// The block of the page with the entries of a catalog that keeps an earlier release.
#[test]
fn opm_accepts_a_catalog_that_keeps_an_earlier_release() {
    const EARLIER: &str = "0.0.9";
    let workdir = checkout();
    let rendered = rendered(&workdir);
    let catalog = catalog(&workdir, &rendered);
    let current = env!("CARGO_PKG_VERSION");
    let file = catalog.join("vdo/earlier.yaml");
    fs::write(file, rendered.replace(current, EARLIER)).unwrap();

    let blocks = PAGE.split("```yaml\n").skip(1).map(|block| block.split_once("```").unwrap().0);
    let channel = blocks.into_iter().find(|block| block.contains("schema: olm.channel")).unwrap();
    let channel = channel.replace("0.7.0", EARLIER).replace("0.7.1", current);
    let package = fs::read_to_string(catalog.join("vdo/catalog.yaml")).unwrap();
    let package = package.split("---\n").find(|text| text.contains("olm.package")).unwrap();
    let write = |channel: &str| {
        fs::write(catalog.join("vdo/catalog.yaml"), format!("{package}---\n{channel}")).unwrap();
        Command::new(testkit::peer("opm")).arg("validate").arg(&catalog).output().unwrap()
    };
    let accepted = write(&channel);
    assert!(accepted.status.success(), "{channel}: {}", shown(&accepted));
    // Two versions without an order.
    let replaces = format!(", replaces: vdo.v{EARLIER}");
    assert!(channel.contains(&replaces), "{channel}");
    let refused = write(&channel.replace(&replaces, ""));
    assert!(shown(&refused).contains("multiple channel heads"), "{}", shown(&refused));
}

/// Go writes 5.0 as 5.
fn with_whole_numbers(value: Value) -> Value {
    match value {
        Value::Object(fields) => {
            fields.into_iter().map(|(name, field)| (name, with_whole_numbers(field))).collect()
        }
        Value::Array(list) => list.into_iter().map(with_whole_numbers).collect(),
        Value::Number(number) => {
            let whole = format!("{:.0}", number.as_f64().unwrap()).parse::<i64>().unwrap();
            let is_whole = number.as_f64().is_some_and(|number| number.fract() == 0.0);
            if is_whole { json!(whole) } else { Value::Number(number) }
        }
        other => other,
    }
}

/// The pod of a CatalogSource runs `opm serve`, and OLM asks it over gRPC. Here the real `opm` answers the client of
/// OLM's controllers, and an installation needs nothing else: the objects are in the answer.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn opm_serves_the_catalog_to_the_client_of_olm() {
    let workdir = checkout();
    let catalog = catalog(&workdir, &rendered(&workdir));
    let port = Port::reserve().unwrap();
    let arguments = ["serve", &catalog.display().to_string(), "--port", &port.number.to_string()]
        .map(str::to_owned);
    // No profiles on a fixed port, and no file of a container.
    let log = workdir.path().join("termination.log").display().to_string();
    let more = ["--pprof-addr".to_owned(), String::new(), "--termination-log".to_owned(), log];
    let arguments = arguments.into_iter().chain(more);
    let environment = [("HOME", workdir.path().to_str().unwrap())];
    let opm = testkit::peer("opm");
    let served = Process::spawn(&opm, "opm", arguments, &environment, &workdir).unwrap();
    let ask = |package: &'static str| {
        let mut client = Command::new(testkit::peer("catalog-client"));
        client.arg(format!("127.0.0.1:{}", port.number)).arg(package);
        async move { tokio::task::spawn_blocking(move || client.output()).await.unwrap().unwrap() }
    };
    let answer = eventually("opm serves the catalog", 60, async || {
        let output = ask("vdo").await;
        assert_eq!(served.ended(), None, "{}", served.log());
        if output.status.success() { Ok(output.stdout) } else { Err(shown(&output)) }
    })
    .await;
    let answer: Value = serde_json::from_slice(&answer).unwrap();
    assert_eq!(answer["package"]["name"], "vdo");
    assert_eq!(answer["package"]["defaultChannelName"], "stable");
    assert_eq!(answer["package"]["channels"], json!([{"name": "stable", "csvName": VERSION}]));

    let bundles = answer["bundles"].as_array().unwrap();
    assert_eq!(bundles.len(), 1, "{bundles:?}");
    let bundle = &bundles[0];
    let version = version(&workdir);
    for (field, expected) in [
        ("csvName", VERSION),
        ("packageName", "vdo"),
        ("channelName", "stable"),
        ("version", env!("CARGO_PKG_VERSION")),
        // Every earlier version can be upgraded to this one.
        ("skipRange", concat!("<", env!("CARGO_PKG_VERSION"))),
    ] {
        assert_eq!(bundle[field], expected, "{field}");
    }
    let served_version: Value = serde_json::from_str(bundle["csvJson"].as_str().unwrap()).unwrap();
    assert_eq!(served_version["spec"], version["spec"]);
    let provided: BTreeSet<&str> = bundle["providedApis"]
        .as_array()
        .unwrap()
        .iter()
        .filter_map(|kind| kind["kind"].as_str())
        .collect();
    let kinds: BTreeSet<String> = api::crds().into_iter().map(|crd| crd.spec.names.kind).collect();
    assert_eq!(provided, kinds.iter().map(String::as_str).collect());

    // The objects that OLM applies are those of the bundle.
    let identity = |object: &Value| format!("{} {}", object["kind"], object["metadata"]["name"]);
    let objects: BTreeMap<String, Value> = bundle["object"]
        .as_array()
        .unwrap()
        .iter()
        .map(|text| serde_json::from_str::<Value>(text.as_str().unwrap()).unwrap())
        .map(|object| (identity(&object), object))
        .collect();
    let files = fs::read_dir(workdir.path().join("deploy/olm/bundle/manifests")).unwrap();
    let expected: BTreeMap<String, Value> = files
        .map(|file| documents(&file.unwrap().path()).remove(0))
        .map(|object| (identity(&object), with_whole_numbers(object)))
        .collect();
    let differs = objects.iter().find(|(name, object)| expected.get(*name) != Some(*object));
    assert_eq!(differs.map(|(name, _)| name), None);
    assert!(objects.keys().eq(expected.keys()), "{:?}", objects.keys());

    // The client can fail: a package that the catalog lacks.
    let refused = ask("another").await;
    assert!(!refused.status.success(), "{}", shown(&refused));
}

/// The fields for hubs and for OpenShift's catalogs. Some are left out on purpose:
/// - `replaces`, `skips`: the skip range covers every earlier version;
/// - `nativeAPIs`: VDO needs only APIs that every Kubernetes has;
/// - `operatorframework.io/cluster-monitoring`: the bundle contains no ServiceMonitor;
/// - `operators.openshift.io/valid-subscription`: VDO needs no subscription.
#[test]
fn the_version_has_the_fields_that_hubs_require() {
    let version = version(&checkout());
    let annotations = version["metadata"]["annotations"].as_object().unwrap();
    for name in [
        "alm-examples",
        "capabilities",
        "categories",
        "containerImage",
        "createdAt",
        "description",
        "repository",
        "support",
        "olm.skipRange",
        "operatorframework.io/suggested-namespace",
    ] {
        assert!(annotations[name].as_str().is_some_and(|text| !text.is_empty()), "{name}");
    }
    let features =
        annotations.iter().filter(|(name, _)| name.starts_with("features.operators.openshift.io/"));
    assert!(features.clone().count() >= 7);
    assert!(features.clone().all(|(_, value)| value == "true" || value == "false"));
    let spec = &version["spec"];
    for name in [
        "cleanup",
        "description",
        "displayName",
        "icon",
        "keywords",
        "links",
        "maintainers",
        "maturity",
        "minKubeVersion",
        "provider",
        "relatedImages",
        "version",
    ] {
        assert!(!spec[name].is_null(), "{name}");
    }
    // Every field of every example is described, and every kind has an example.
    let examples: Vec<Value> =
        serde_json::from_str(annotations["alm-examples"].as_str().unwrap()).unwrap();
    let owned = spec["customresourcedefinitions"]["owned"].as_array().unwrap();
    assert_eq!(owned.len(), api::crds().len());
    for kind in owned {
        let example = examples.iter().find(|example| example["kind"] == kind["kind"]).unwrap();
        let described: BTreeSet<&str> = kind["specDescriptors"]
            .as_array()
            .unwrap()
            .iter()
            .filter_map(|field| field["path"].as_str())
            .collect();
        for field in example["spec"].as_object().unwrap().keys() {
            assert!(described.contains(field.as_str()), "{} {field}", kind["kind"]);
        }
        assert!(!kind["resources"].as_array().unwrap().is_empty());
        assert!(!kind["statusDescriptors"].as_array().unwrap().is_empty());
        assert!(kind["description"].as_str().is_some_and(|text| text.len() > 20), "{kind}");
    }
    // Upstream's images have digests; ours get them in a release.
    for image in spec["relatedImages"].as_array().unwrap() {
        let image = image["image"].as_str().unwrap();
        assert!(
            image.contains("@sha256:") || image.starts_with("ghcr.io/vmware-tanzu/"),
            "{image}"
        );
    }
}

#[test]
fn a_release_names_its_images_by_digest() {
    let image = concat!("ghcr.io/vmware-tanzu/vdo:", env!("CARGO_PKG_VERSION"));
    let digest = format!("sha256:{}", "ab".repeat(32));
    let digests = BTreeMap::from([(image.to_owned(), digest.clone())]);
    let release = shipping::Release { digests, created: Some("2030-01-01T00:00:00Z".into()) };
    let files = shipping::files_of(&release).unwrap();
    let file = files.iter().find(|file| file.path.ends_with("clusterserviceversion.yaml")).unwrap();
    let version: Value = serde_saphyr::from_str(&file.text).unwrap();
    let pinned = format!("{image}@{digest}");
    assert_eq!(version["metadata"]["annotations"]["containerImage"], pinned);
    assert_eq!(version["metadata"]["annotations"]["createdAt"], "2030-01-01T00:00:00Z");
    assert_eq!(version["spec"]["relatedImages"][0]["image"], pinned);
    let deployment = &version["spec"]["install"]["spec"]["deployments"][0]["spec"];
    assert_eq!(deployment["template"]["spec"]["containers"][0]["image"], pinned);
}

/// The rules that a set of objects gives the operator, by namespace; `""` is the whole cluster.
fn permissions(objects: &[Object]) -> BTreeMap<String, BTreeSet<String>> {
    let mut found: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for binding in objects.iter().filter(|object| object.kind().ends_with("RoleBinding")) {
        let is_ours = binding.0["subjects"]
            .as_array()
            .unwrap()
            .iter()
            .any(|subject| subject["name"] == "vdo");
        let (kind, name) = (&binding.0["roleRef"]["kind"], &binding.0["roleRef"]["name"]);
        let role = objects.iter().find(|object| {
            object.kind() == kind
                && object.name() == name
                && (kind == "ClusterRole" || object.namespace() == binding.namespace())
        });
        let rules = role.unwrap().0["rules"].as_array().unwrap().iter().map(Value::to_string);
        if is_ours {
            found.entry(binding.namespace().to_owned()).or_default().extend(rules);
        }
    }
    found
}

#[test]
fn olm_runs_the_operator_on_the_pod_network_in_a_restricted_namespace() {
    let workdir = checkout();
    let version = version(&workdir);
    let pod = &version["spec"]["install"]["spec"]["deployments"][0]["spec"]["template"];
    assert_eq!(pod["spec"]["hostNetwork"], false);
    let mut expected = install::objects();
    install::use_pod_network(&mut expected);
    let deployment = expected.iter().find(|object| object.kind() == "Deployment").unwrap();
    assert_eq!(
        pod["metadata"]["annotations"],
        deployment.0["spec"]["template"]["metadata"]["annotations"]
    );
    for field in ["hostNetwork", "tolerations", "securityContext"] {
        assert_eq!(pod["spec"][field], deployment.0["spec"]["template"]["spec"][field], "{field}");
    }
    let variables = pod["spec"]["containers"][0]["env"].as_array().unwrap();
    let listen = json!({"name": "VDO_LISTEN", "value": "[::]:8089"});
    assert!(variables.contains(&listen), "{variables:?}");

    let before = documents(&workdir.path().join("deploy/olm/prerequisites.yaml"));
    let annotations = &version["metadata"]["annotations"];
    let suggested = annotations["operatorframework.io/suggested-namespace-template"].as_str();
    let suggested: Value = serde_json::from_str(suggested.unwrap()).unwrap();
    let is_namespace = |object: &&Value| {
        object["kind"] == "Namespace" && object["metadata"]["name"] == api::NAMESPACE
    };
    for namespace in [before.iter().find(is_namespace).unwrap(), &suggested] {
        let level = &namespace["metadata"]["labels"]["pod-security.kubernetes.io/enforce"];
        assert_eq!(level, "restricted", "{namespace}");
    }
}

/// The objects that OLM creates from a ClusterServiceVersion, for an OperatorGroup of the operator's own namespace.
pub(crate) fn created_by_olm(version: &Value) -> Vec<Object> {
    testkit::created_by_olm(version).into_iter().map(Object).collect()
}

#[test]
fn with_the_prerequisites_the_operator_has_exactly_the_permissions_of_the_install_manifest() {
    let workdir = checkout();
    let before = documents(&workdir.path().join("deploy/olm/prerequisites.yaml"));
    let mut objects: Vec<Object> = before.into_iter().map(Object).collect();
    objects.extend(created_by_olm(&version(&workdir)));
    assert_eq!(permissions(&objects), permissions(&install::objects()));
}

async fn api_of(plane: &ControlPlane, object: &Object) -> Api<DynamicObject> {
    let (group, version) =
        object.0["apiVersion"].as_str().unwrap().split_once('/').unwrap_or(("", "v1"));
    let gvk = GroupVersionKind::gvk(group, version, object.kind());
    let (resource, _) = kube::discovery::pinned_kind(&plane.client(), &gvk).await.unwrap();
    let client = plane.client();
    match object.namespace() {
        "" => Api::all_with(client, &resource),
        namespace => Api::namespaced_with(client, namespace, &resource),
    }
}

async fn apply(plane: &ControlPlane, object: &Object) {
    let by = PatchParams::apply("olm").force();
    let api = api_of(plane, object).await;
    api.patch(object.name(), &by, &Patch::Apply(&object.0)).await.unwrap();
}

async fn get(plane: &ControlPlane, object: &Object) -> DynamicObject {
    api_of(plane, object).await.get(object.name()).await.unwrap()
}

const PAGE: &str = include_str!("../../../../docs/install-olm.md");

/// Runs the block of the page that contains a command.
fn run_block(plane: &ControlPlane, workdir: &Workdir, command: &str) {
    let blocks = PAGE.split("```sh\n").skip(1).map(|block| block.split_once("```").unwrap().0);
    let found = blocks.into_iter().find(|block| block.contains(command));
    let script = found.unwrap_or_else(|| panic!("the page has no `{command}`"));
    in_shell(plane, workdir, script);
}

fn in_shell(plane: &ControlPlane, workdir: &Workdir, script: &str) {
    let folders = [testkit::peer("helm"), testkit::peer("kubectl")];
    let folders = folders.iter().filter_map(|program| program.parent()).map(Path::to_owned);
    let path = std::env::var_os("PATH").unwrap_or_default();
    let path = std::env::join_paths(folders.chain(std::env::split_paths(&path))).unwrap();
    let mut shell = Command::new("bash");
    shell.args(["-euo", "pipefail", "-c", script]).current_dir(workdir.path()).env("PATH", path);
    run(shell.env("HOME", workdir.path()).env("KUBECONFIG", plane.kubeconfig()));
}

// Simulated kubelets of this process make the pods ready.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn olm_replaces_a_release_of_helm_and_nothing_of_it_is_left() {
    let plane = ControlPlane::builder().with_controllers().start().await;
    let nodes = Nodes::start(&plane).await;
    for name in ["node-1", "node-2"] {
        nodes.add(Node::named(name)).await;
    }
    let workdir = checkout();
    let install = "helm install vdo deploy/chart --namespace vmware-system-vdo --create-namespace --wait --timeout 5m";
    in_shell(&plane, &workdir, install);
    let deployments = Api::<Deployment>::namespaced(plane.client(), api::NAMESPACE);
    let installed = deployments.get("vdo").await.unwrap();
    let version = version(&workdir);
    // The examples that OpenShift's console offers are valid. They must survive.
    let examples = version["metadata"]["annotations"]["alm-examples"].as_str().unwrap();
    let examples: Vec<Object> =
        serde_json::from_str::<Vec<Value>>(examples).unwrap().into_iter().map(Object).collect();
    for example in &examples {
        apply(&plane, example).await;
    }

    run_block(&plane, &workdir, "--selector owner=helm");
    run_block(&plane, &workdir, "deploy/olm/prerequisites.yaml");
    let manifests = workdir.path().join("deploy/olm/bundle/manifests");
    for file in fs::read_dir(manifests).unwrap() {
        let object = documents(&file.unwrap().path()).remove(0);
        if object["kind"] != "ClusterServiceVersion" {
            apply(&plane, &Object(object)).await;
        }
    }
    for object in created_by_olm(&version) {
        apply(&plane, &object).await;
    }
    eventually("the pods of the new Deployment are ready", 60, async || {
        let found = deployments.get("vdo").await.unwrap();
        let (generation, status) = (found.metadata.generation, found.status.unwrap_or_default());
        let is_new = status.observed_generation == generation && status.updated_replicas == Some(2);
        let is_ready = is_new && status.ready_replicas == Some(2) && status.replicas == Some(2);
        if is_ready { Ok(()) } else { Err(format!("{status:?}")) }
    })
    .await;
    run_block(&plane, &workdir, "kubectl delete clusterrolebinding");
    let adopted = deployments.get("vdo").await.unwrap();
    assert_eq!(adopted.metadata.uid, installed.metadata.uid, "the same Deployment");
    assert_ne!(adopted.metadata.generation, installed.metadata.generation, "OLM changed it");
    let helm = run(Command::new(testkit::peer("helm"))
        .args(["list", "--all-namespaces", "--all", "--short"])
        .env("KUBECONFIG", plane.kubeconfig()));
    assert_eq!(helm.trim(), "", "Helm has forgotten the release");
    for example in &examples {
        let found = get(&plane, example).await;
        assert_eq!(found.metadata.deletion_timestamp, None, "{}", example.kind());
    }

    // The API server lets the account do what the install manifest lets it do, and no more.
    let reviews = Api::<SubjectAccessReview>::all(plane.client());
    let cases = [
        ("", "nodes", "list", "", "", true),
        ("", "secrets", "list", "default", "", false),
        ("", "secrets", "get", "default", "registry", false),
        ("apps", "deployments", "patch", "vmware-system-csi", "vsphere-csi-controller", true),
        ("apps", "deployments", "patch", "default", "vsphere-csi-controller", false),
        ("vdo.vmware.com", "vdoconfigs", "list", api::NAMESPACE, "", true),
        ("rbac.authorization.k8s.io", "clusterroles", "escalate", "", "", false),
    ];
    for (group, resource, verb, namespace, name, expected) in cases {
        let review = json!({"metadata": {}, "spec": {
            "user": format!("system:serviceaccount:{}:vdo", api::NAMESPACE),
            "resourceAttributes": {
                "group": group, "resource": resource, "verb": verb, "namespace": namespace, "name": name,
            },
        }});
        let review: SubjectAccessReview = serde_json::from_value(review).unwrap();
        let answer = reviews.create(&PostParams::default(), &review).await.unwrap();
        assert_eq!(
            answer.status.unwrap().allowed,
            expected,
            "{verb} {resource} {name} in {namespace:?}"
        );
    }
}
