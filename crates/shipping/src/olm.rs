//! The bundle for the Operator Lifecycle Manager (OLM), in `deploy/olm`.
//!
//! ```text
//!   bundle/manifests   ClusterServiceVersion (CSV), custom resource definitions, roles that nobody has at first
//!   bundle/metadata    package and channel
//!   prerequisites.yaml what OLM cannot create: namespaces, and roles in namespaces other than the operator's
//!   catalog.yaml       package and channel of a catalog; `opm render` adds the bundle
//!   subscription.yaml  the objects with which an admin asks OLM for VDO
//! ```
//!
//! OLM creates the account, the Deployment, the ClusterRoles of `clusterPermissions`, and the Roles of `permissions` in the
//! operator's namespace. Namespaces and Roles elsewhere would have to become cluster-wide permissions: instead, an admin
//! applies them before.

mod descriptors;

use std::collections::BTreeSet;

use base64::{Engine as _, prelude::BASE64_STANDARD};
use catalog::{
    Image,
    manifest::{Object, images_to_mirror, to_yaml},
    model::Support,
};
use operator::install;
use serde_json::{Value, json};
use snafu::{OptionExt as _, ResultExt as _, ensure};

use crate::{
    error::{Error, JsonSnafu, MissingSnafu, OlmSnafu, YamlSnafu},
    file::File,
    release::{IMAGE, Release},
};

const VERSION: &str = env!("CARGO_PKG_VERSION");
const HOME: &str = env!("CARGO_PKG_REPOSITORY");
const PACKAGE: &str = "vdo";
const CHANNEL: &str = "stable";
/// The oldest Kubernetes with the rules in the custom resource definitions.
const MIN_KUBERNETES: &str = "1.25.0";
const ACCOUNT: &str = "vdo";
/// A hub demands an address. The project has no mailing list, so a publisher replaces this one.
const MAINTAINERS: &str = "vdo-maintainers@example.com";

const DESCRIPTION: &str = include_str!("olm/description.md");
const ICON: &str = include_str!("olm/icon.svg");

/// The files of the bundle.
pub(crate) fn files(release: &Release) -> Result<Vec<File>, Error> {
    // OLM's own pods need a pod network, so the cluster has one.
    let mut objects = install::objects();
    install::use_pod_network(&mut objects);
    let sorted = Sorted::from_manifest(&objects)?;
    let version = sorted.version(release)?;
    let folder = "deploy/olm/bundle";
    let mut files = vec![
        File::objects(
            &format!("{folder}/manifests/{PACKAGE}.clusterserviceversion.yaml"),
            &[Object(version)],
        )?,
        File::objects(&format!("{folder}/metadata/annotations.yaml"), &[Object(annotations())])?,
        File::yaml("deploy/olm/prerequisites.yaml", &headed(PREREQUISITES, &sorted.before)?),
        File::objects("deploy/olm/catalog.yaml", &catalog_of_channels())?,
        File::yaml("deploy/olm/subscription.yaml", &headed(SUBSCRIPTION, &subscription())?),
    ];
    for object in &sorted.in_bundle {
        let path = format!("{folder}/manifests/{}.yaml", object.name());
        files.push(File::objects(&path, std::slice::from_ref(object))?);
    }
    Ok(files)
}

/// The objects of the install manifest, by who creates them.
struct Sorted {
    deployment: Object,
    /// The rules of each ClusterRole that is bound to the operator.
    cluster_rules: Vec<Value>,
    /// The rules of each Role in the operator's namespace that is bound to the operator.
    own_rules: Vec<Value>,
    /// Definitions, and ClusterRoles that nobody has at first.
    in_bundle: Vec<Object>,
    /// Namespaces, and Roles and bindings in other namespaces.
    before: Vec<Object>,
}

impl Sorted {
    fn from_manifest(objects: &[Object]) -> Result<Self, Error> {
        let bound = |kind: &str, namespace: &str| -> BTreeSet<String> {
            let bindings =
                objects.iter().filter(|o| o.kind() == kind && o.namespace() == namespace);
            let names = bindings.filter_map(|binding| binding.0["roleRef"]["name"].as_str());
            names.map(str::to_owned).collect()
        };
        let of_cluster = bound("ClusterRoleBinding", "");
        let own = bound("RoleBinding", api::NAMESPACE);
        let (mut cluster_rules, mut own_rules) = (Vec::new(), Vec::new());
        let (mut in_bundle, mut before) = (Vec::new(), Vec::new());
        let mut deployment = None;
        for object in objects {
            let is_own = object.namespace() == api::NAMESPACE;
            let rules = || object.0["rules"].as_array().cloned().unwrap_or_default();
            match object.kind() {
                "Deployment" => deployment = Some(object.clone()),
                "ClusterRole" if of_cluster.contains(object.name()) => {
                    cluster_rules.extend(rules());
                }
                "ClusterRole" | "CustomResourceDefinition" => in_bundle.push(object.clone()),
                "Role" if is_own && own.contains(object.name()) => own_rules.extend(rules()),
                // OLM creates the account and these bindings itself.
                "ClusterRoleBinding" | "ServiceAccount" => is_accounts(object)?,
                "RoleBinding" if is_own => is_accounts(object)?,
                "Namespace" | "Role" | "RoleBinding" => before.push(object.clone()),
                kind => return OlmSnafu { object: format!("{kind} {}", object.name()) }.fail(),
            }
        }
        let deployment = deployment.context(MissingSnafu { what: "Deployment" })?;
        Ok(Self { deployment, cluster_rules, own_rules, in_bundle, before })
    }

    /// The ClusterServiceVersion.
    fn version(&self, release: &Release) -> Result<Value, Error> {
        let mut deployment = self.deployment.0["spec"].clone();
        let image = self.image(release)?;
        deployment["template"]["spec"]["containers"][0]["image"] = json!(image);
        let catalog = catalog::embedded();
        let created = release.created.clone().unwrap_or_else(|| catalog.issued.to_string());
        let examples = examples();
        let examples_text =
            serde_json::to_string_pretty(&examples).context(JsonSnafu { what: "the examples" })?;
        let namespace = self.before.iter().find(|object| object.name() == api::NAMESPACE);
        let namespace = namespace.context(MissingSnafu { what: "namespace of the operator" })?;
        let mut annotations = json!({
            "alm-examples": examples_text,
            // Upgrades of operator and drivers are tested on real and simulated nodes.
            "capabilities": "Seamless Upgrades",
            "categories": "Storage, Cloud Provider",
            "olm.skipRange": skipped(),
            "containerImage": image,
            "createdAt": created,
            "description": "Installs, checks and upgrades the vSphere drivers of a Kubernetes cluster",
            "operatorframework.io/suggested-namespace": api::NAMESPACE,
            "operatorframework.io/suggested-namespace-template": namespace.0.to_string(),
            "repository": HOME,
            "support": "The VDO maintainers",
        });
        // Every answer is required. VDO works with mirrored images, but not in the way that `disconnected` means: images
        // from variables of the Deployment.
        for feature in [
            "cnf",
            "cni",
            "disconnected",
            "fips-compliant",
            "tls-profiles",
            "token-auth-aws",
            "token-auth-azure",
            "token-auth-gcp",
        ] {
            annotations[format!("features.operators.openshift.io/{feature}")] = json!("false");
        }
        // The operator uses the proxy that OLM sets in its Deployment, and passes the cluster's proxy to the drivers.
        for feature in ["csi", "proxy-aware"] {
            annotations[format!("features.operators.openshift.io/{feature}")] = json!("true");
        }
        let permissions =
            |rules: &[Value]| json!([{"serviceAccountName": ACCOUNT, "rules": rules}]);
        Ok(json!({
            "apiVersion": "operators.coreos.com/v1alpha1",
            "kind": "ClusterServiceVersion",
            "metadata": {
                "name": format!("{PACKAGE}.v{VERSION}"),
                "namespace": api::NAMESPACE,
                "annotations": annotations,
                "labels": {
                    "operatorframework.io/arch.amd64": "supported",
                    "operatorframework.io/arch.arm64": "supported",
                    "operatorframework.io/os.linux": "supported",
                },
            },
            "spec": {
                "displayName": "vSphere Kubernetes Drivers Operator",
                "description": DESCRIPTION,
                "version": VERSION,
                "minKubeVersion": MIN_KUBERNETES,
                "maturity": "beta",
                "keywords": ["vsphere", "csi", "cpi", "storage", "cloud provider"],
                "maintainers": [{"name": "The VDO maintainers", "email": MAINTAINERS}],
                "provider": {"name": "VMware", "url": HOME},
                "links": [{"name": "Documentation", "url": format!("{HOME}/tree/main/docs")}, {"name": "Source", "url": HOME}],
                "icon": [{"base64data": BASE64_STANDARD.encode(ICON.trim_end()), "mediatype": "image/svg+xml"}],
                // The deletion of the operator leaves the user's objects and the drivers.
                "cleanup": {"enabled": false},
                // VDO follows the objects in its own namespace only.
                "installModes": [
                    {"type": "OwnNamespace", "supported": true},
                    {"type": "SingleNamespace", "supported": false},
                    {"type": "MultiNamespace", "supported": false},
                    {"type": "AllNamespaces", "supported": false},
                ],
                "install": {
                    "strategy": "deployment",
                    "spec": {
                        "clusterPermissions": permissions(&self.cluster_rules),
                        "permissions": permissions(&self.own_rules),
                        "deployments": [{
                            "name": self.deployment.name(),
                            "label": self.deployment.0["metadata"]["labels"],
                            "spec": deployment,
                        }],
                    },
                },
                "customresourcedefinitions": {"owned": descriptors::owned(&self.in_bundle, &examples)?},
                "relatedImages": related_images(release, &image),
            },
        }))
    }

    /// The operator's image, with its digest in a release.
    fn image(&self, release: &Release) -> Result<String, Error> {
        let image = self.deployment.0.pointer(IMAGE);
        let image = image.and_then(Value::as_str).context(MissingSnafu { what: "image" })?;
        Ok(release.pinned(image))
    }
}

/// Refuses a binding of another account than the operator's.
fn is_accounts(object: &Object) -> Result<(), Error> {
    let subjects = object.0["subjects"].as_array();
    let accounts = subjects.into_iter().flatten().map(|subject| &subject["name"]);
    let is_account = object.kind() != "ServiceAccount" || object.name() == ACCOUNT;
    let only_ours = is_account && accounts.into_iter().all(|name| name == ACCOUNT);
    ensure!(only_ours, OlmSnafu { object: format!("{} {}", object.kind(), object.name()) });
    Ok(())
}

/// The operator's image, and the images of every driver release that is maintained. Upstream's images without a digest are
/// left out: hubs require digests.
fn related_images(release: &Release, operator: &str) -> Vec<Value> {
    let releases = catalog::embedded().releases.iter();
    let maintained = releases.filter(|release| release.support == Support::Maintained);
    let images: BTreeSet<Image> = maintained.flat_map(images_to_mirror).collect();
    let mut related = vec![json!({"name": PACKAGE, "image": operator})];
    let is_ours = |image: &Image| image.name.starts_with("ghcr.io/vmware-tanzu/");
    for image in images.into_iter().filter(|image| image.digest.is_some() || is_ours(image)) {
        let (_, path) = image.name.split_once('/').unwrap_or(("", &image.name));
        let name = format!("{path}-{}", image.tag.as_deref().unwrap_or_default());
        let name = name.replace(['/', '.', '_'], "-").to_lowercase();
        let image = release.pinned(&image.to_string());
        related.push(json!({"name": name, "image": image}));
    }
    related
}

/// One object of each kind. OpenShift's console offers them as a start.
fn examples() -> Vec<Value> {
    let samples = api::samples::samples();
    let objects = || samples.iter().flat_map(|sample| &sample.objects);
    let kinds = ["VDOConfig", "VsphereCloudConfig", "CompatibilityConfig"];
    let first = |kind: &str| objects().find(|object| object["kind"] == kind).cloned();
    kinds.into_iter().filter_map(first).collect()
}

/// The versions that this one replaces: every earlier one.
fn skipped() -> String {
    format!("<{VERSION}")
}

fn annotations() -> Value {
    let bundle = |name: &str| format!("operators.operatorframework.io.bundle.{name}");
    let mut annotations = serde_json::Map::new();
    for (name, value) in [
        ("mediatype.v1", "registry+v1"),
        ("manifests.v1", "manifests/"),
        ("metadata.v1", "metadata/"),
        ("package.v1", PACKAGE),
        ("channels.v1", CHANNEL),
        ("channel.default.v1", CHANNEL),
    ] {
        annotations.insert(bundle(name), json!(value));
    }
    json!({ "annotations": annotations })
}

const PREREQUISITES: &str = "\
# Apply this before OLM installs VDO: OLM creates neither namespaces nor permissions in namespaces other than the
# operator's. The permissions are those of deploy/install.yaml.
";

const SUBSCRIPTION: &str = "\
# Asks OLM for VDO, after prerequisites.yaml. Replace `source` and `sourceNamespace` with the CatalogSource of your site.
";

fn headed(head: &str, objects: &[Object]) -> Result<String, Error> {
    let text = to_yaml(objects).context(YamlSnafu { what: "deploy/olm" })?;
    Ok(format!("{head}{text}"))
}

/// A catalog without its bundle. Users of every earlier version are offered this one.
fn catalog_of_channels() -> Vec<Object> {
    let name = format!("{PACKAGE}.v{VERSION}");
    let entry = json!({"name": name, "skipRange": skipped()});
    vec![
        Object(json!({"schema": "olm.package", "name": PACKAGE, "defaultChannel": CHANNEL})),
        Object(
            json!({"schema": "olm.channel", "package": PACKAGE, "name": CHANNEL, "entries": [entry]}),
        ),
    ]
}

fn subscription() -> Vec<Object> {
    let metadata = json!({"name": PACKAGE, "namespace": api::NAMESPACE});
    vec![
        Object(json!({
            "apiVersion": "operators.coreos.com/v1", "kind": "OperatorGroup", "metadata": metadata,
            "spec": {"targetNamespaces": [api::NAMESPACE]},
        })),
        Object(json!({
            "apiVersion": "operators.coreos.com/v1alpha1", "kind": "Subscription", "metadata": metadata,
            "spec": {
                "channel": CHANNEL, "name": PACKAGE, "source": PACKAGE, "sourceNamespace": api::NAMESPACE,
                "installPlanApproval": "Automatic",
            },
        })),
    ]
}
