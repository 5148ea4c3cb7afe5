//! The objects to write.

use std::path::PathBuf;

use ::catalog::manifest::Object;
use api::{VDOConfig, VsphereCloudConfig, check};
use k8s_openapi::api::core::v1::Secret;
use kube::{Api, Client, ResourceExt as _};
use operator::{followed::FollowedConfig, writing};
use plan::names;
use serde_json::{Value, json};

use crate::{
    document::{Document, File},
    failure::{Failure, Outcome, refuse},
    text::nearest,
};

#[derive(Debug, Default)]
pub(crate) struct Draft {
    pub(crate) objects: Vec<Object>,
    /// Whether they come from questions: the user has not seen the objects yet.
    pub(crate) asked: bool,
    /// Whether vdoctl has already logged in to the vCenters.
    pub(crate) proven: bool,
    /// The file of each object, for errors.
    origins: Vec<(File, Vec<usize>)>,
}

/// Address and credentials of one vCenter.
#[derive(Clone, Debug, Default)]
pub(crate) struct Access {
    pub(crate) name: String,
    pub(crate) secret: String,
    /// Whether its objects exist in the cluster. The type of an existing Secret cannot change.
    known: bool,
    /// The existing spec. Fields that are not set here stay.
    before: Option<Value>,
    pub(crate) address: String,
    pub(crate) user: String,
    pub(crate) password: driver_config::SecretText,
    pub(crate) thumbprint: Option<String>,
    pub(crate) ca: Option<String>,
    pub(crate) insecure: bool,
    pub(crate) datacenters: Vec<String>,
}

#[derive(Clone, Debug, Default)]
pub(crate) struct Drivers {
    /// Whether an existing VDOConfig keeps its other vCenters, its zones and its cloud provider.
    pub(crate) partial: bool,
    pub(crate) cloud_provider: bool,
    pub(crate) topology: Option<(String, String)>,
    /// The default StorageClass to create.
    pub(crate) class: Option<Class>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Class {
    /// The datastore of its volumes; any matching datastore if `None`.
    pub(crate) datastore: Option<String>,
}

impl Drivers {
    /// The spec of the VDOConfig. Keeps other fields of an existing one.
    fn spec(&self, vcenters: &[&str], existing: Option<&VDOConfig>) -> Value {
        let kept = existing.and_then(|config| serde_json::to_value(&config.spec).ok());
        let mut spec = kept.unwrap_or_else(|| json!({}));
        if spec["storageProvider"].is_null() {
            spec["storageProvider"] = json!({});
        }
        let partial = self.partial && existing.is_some();
        let cloud_provider = self.cloud_provider && (!partial || spec["cloudProvider"].is_object());
        if cloud_provider {
            let cloud = &mut spec["cloudProvider"];
            cloud["vsphereCloudConfigs"] = json!(among(cloud, vcenters, partial));
            if self.topology.is_some() || !partial {
                put(
                    cloud,
                    "topology",
                    self.topology
                        .as_ref()
                        .map(|(zone, region)| json!({"zone": zone, "region": region})),
                );
            }
        } else {
            put(&mut spec, "cloudProvider", None);
        }
        let storage = &mut spec["storageProvider"];
        let all = among(storage, vcenters, partial);
        let (one, several) = match all.as_slice() {
            [one] => (Some(json!(one)), None),
            several => (None, Some(json!(several))),
        };
        put(storage, "vsphereCloudConfig", one);
        put(storage, "vsphereCloudConfigs", several);
        if self.topology.is_some() || !partial {
            let own = self.topology.as_ref().filter(|_| !cloud_provider);
            put(storage, "topologyCategories", own.map(|(zone, region)| json!([region, zone])));
        }
        if let Some(class) = &self.class {
            let mut class = class.clone().object();
            class["default"] = true.into();
            storage["storageClasses"] = json!([class]);
        }
        spec
    }
}

/// The vCenters of a driver: the existing ones, if they stay, and then the new ones.
fn among(driver: &Value, named: &[&str], stay: bool) -> Vec<String> {
    let several = driver["vsphereCloudConfigs"].as_array().into_iter().flatten();
    let old = several.chain([&driver["vsphereCloudConfig"]]).filter_map(Value::as_str);
    let mut all: Vec<String> = old.filter(|_| stay).map(str::to_owned).collect();
    for name in named {
        if !all.iter().any(|known| known == name) {
            all.push((*name).to_owned());
        }
    }
    all
}

impl Class {
    fn object(self) -> Value {
        let mut class = json!({"name": "vsphere"});
        put(&mut class, "datastoreUrl", self.datastore.map(Value::from));
        class
    }
}

/// Sets or removes a field.
fn put(object: &mut Value, field: &str, value: Option<Value>) {
    match value {
        Some(value) => object[field] = value,
        None => drop(object.as_object_mut().and_then(|fields| fields.remove(field))),
    }
}

impl Draft {
    /// Refuses a VDOConfig that names a VsphereCloudConfig that is neither in the draft nor in the cluster.
    pub(crate) fn check_references(&self, existing: &[VsphereCloudConfig]) -> Outcome {
        let of_kind = |kind: &'static str| {
            self.objects.iter().filter(move |object| object.kind() == kind).map(Object::name)
        };
        let known: Vec<String> = of_kind("VsphereCloudConfig")
            .map(str::to_owned)
            .chain(existing.iter().map(kube::ResourceExt::name_any))
            .collect();
        for object in self.objects.iter().filter(|object| object.kind() == "VDOConfig") {
            let Ok(config) = serde_json::from_value::<VDOConfig>(object.0.clone()) else {
                continue;
            };
            for name in config.spec.vcenters() {
                if known.contains(&name.0) {
                    continue;
                }
                let near = nearest(&name.0, known.iter().map(String::as_str));
                return refuse(
                    format!(
                        "VDOConfig {} names VsphereCloudConfig {}, which does not exist",
                        object.name(),
                        name.0
                    ),
                    match near {
                        Some(near) => format!("did you mean {near}?"),
                        None => "put the VsphereCloudConfig into the same file, or create it first"
                            .to_owned(),
                    },
                );
            }
        }
        Ok(())
    }

    /// Reads and validates files. Reports the first mistake with its location.
    pub(super) fn from_files(paths: &[PathBuf], namespace: &str) -> Outcome<Self> {
        let mut draft = Self::default();
        for path in paths {
            let mut file = File::open(path)?;
            let mut numbers = Vec::new();
            for document in &file.documents {
                validate(&file, document, namespace)?;
            }
            for document in &mut file.documents {
                set_namespace(&mut document.value, namespace);
                numbers.push(draft.objects.len());
                draft.objects.push(Object(document.value.clone()));
            }
            draft.origins.push((file, numbers));
        }
        if draft.objects.is_empty() {
            return refuse("the files contain no objects", "see deploy/samples for examples");
        }
        // Objects before the objects that refer to them.
        draft.objects.sort_by_key(|object| match object.kind() {
            "Namespace" => 0,
            "Secret" | "ConfigMap" => 1,
            "VsphereCloudConfig" => 2,
            _ => 3,
        });
        Ok(draft)
    }

    pub(crate) fn from_objects(objects: Vec<Object>) -> Self {
        Self { objects, ..Self::default() }
    }

    pub(crate) fn new(
        all: &[Access],
        drivers: &Drivers,
        namespace: &str,
        existing: Option<&VDOConfig>,
    ) -> Self {
        let mut objects = Vec::new();
        for access in all {
            let mut secret = json!({
                "apiVersion": "v1", "kind": "Secret",
                "metadata": {"name": access.secret, "namespace": namespace},
                "stringData": {"username": access.user, "password": access.password.expose()},
            });
            if !access.known {
                secret["type"] = "kubernetes.io/basic-auth".into();
            }
            objects.push(secret);
        }
        objects.extend(all.iter().map(|access| access.object(namespace)));
        let names: Vec<&str> = all.iter().map(|access| access.name.as_str()).collect();
        let spec = drivers.spec(&names, existing);
        let name = existing.map_or_else(|| "vdo".to_owned(), kube::ResourceExt::name_any);
        objects.push(json!({
            "apiVersion": "vdo.vmware.com/v1alpha1", "kind": "VDOConfig",
            "metadata": {"name": name, "namespace": namespace},
            "spec": spec,
        }));
        Self { objects: objects.into_iter().map(Object).collect(), ..Self::default() }
    }

    /// Confirms the new VDOConfig if VDO followed another one before.
    pub(crate) fn confirm(&mut self, recorded: Option<&FollowedConfig>) {
        let Some(recorded) = recorded else { return };
        let mut configs = self.objects.iter_mut().filter(|object| object.kind() == "VDOConfig");
        if let (Some(config), None) = (configs.next(), configs.next())
            && config.name() != recorded.name
        {
            config.0["metadata"]["annotations"][names::FOLLOW] = "true".into();
        }
    }

    /// Copies the type of existing Secrets, because it cannot change. If vdoctl cannot read them, writing reports
    /// the reason.
    pub(super) async fn keep_types(&mut self, client: &Client) {
        for object in self.objects.iter_mut().filter(|object| object.kind() == "Secret") {
            if !object.0["type"].is_null() {
                continue;
            }
            let secrets = Api::<Secret>::namespaced(client.clone(), object.namespace());
            if let Ok(Some(Secret { type_: Some(kind), .. })) = secrets.get_opt(object.name()).await
            {
                object.0["type"] = kind.into();
            }
        }
    }

    /// The vCenters, with the index of each object.
    pub(super) fn vcenters(&self) -> Outcome<Vec<(usize, VsphereCloudConfig)>> {
        let all = self.objects.iter().enumerate();
        let vcenters = all.filter(|(_, object)| object.kind() == "VsphereCloudConfig");
        vcenters
            .map(|(number, object)| match serde_json::from_value(object.0.clone()) {
                Ok(vcenter) => Ok((number, vcenter)),
                Err(error) => Err(Failure::Other {
                    text: format!("VsphereCloudConfig {} cannot be read", object.name()),
                    source: error.into(),
                }),
            })
            .collect()
    }

    /// A rejection by the API server, with its location in the user's file if possible.
    pub(super) fn refused(&self, error: writing::Error) -> Failure {
        let writing::Error::Compare { object: id, source } = error else {
            return super::super::deploy::written(error);
        };
        let kube::Error::Api(status) = source.as_ref() else {
            return Failure::Api { doing: format!("checking {id}"), source };
        };
        let located = self.origins.iter().find_map(|(file, _)| file.refused(&id, status));
        located.unwrap_or(Failure::Api { doing: format!("checking {id}"), source })
    }
}

impl Access {
    /// A vCenter by its address. A known vCenter keeps the names of its objects.
    pub(crate) fn named(address: &str, known: &[VsphereCloudConfig], before: usize) -> Self {
        let same = known.iter().find(|vcenter| vcenter.spec.vc_ip.0 == address);
        let taken = |name: &str| known.iter().any(|vcenter| vcenter.name_any() == name);
        let fresh = || {
            let names = (before + 1..)
                .map(|n| if n == 1 { "vcenter".into() } else { format!("vcenter-{n}") });
            names.into_iter().find(|name: &String| !taken(name)).unwrap_or_default()
        };
        let name = same.map_or_else(fresh, kube::ResourceExt::name_any);
        let secret = same.map_or_else(|| name.clone(), |same| same.spec.credentials.0.clone());
        let known = same.is_some();
        let before = same.and_then(|same| serde_json::to_value(&same.spec).ok());
        Self { name, secret, known, before, address: address.to_owned(), ..Self::default() }
    }

    fn object(&self, namespace: &str) -> Value {
        let mut spec = self.before.clone().unwrap_or_else(|| json!({}));
        spec["vcIp"] = self.address.as_str().into();
        spec["credentials"] = self.secret.as_str().into();
        let thumbprint = self.thumbprint.as_deref();
        let another = thumbprint.is_some_and(|seen| spec["thumbprint"] != seen);
        if self.insecure || self.ca.is_some() || another {
            // One kind of trust replaces the other.
            for way in ["thumbprint", "caBundle"] {
                put(&mut spec, way, None);
            }
            // Explicitly false: another field manager may have set it.
            put(&mut spec, "insecure", self.before.as_ref().map(|_| false.into()));
        }
        if self.insecure {
            spec["insecure"] = true.into();
        }
        if let Some(thumbprint) = &self.thumbprint {
            spec["thumbprint"] = thumbprint.as_str().into();
        }
        if let Some(ca) = &self.ca {
            spec["caBundle"] = json!({"inline": ca});
        }
        if !self.datacenters.is_empty() {
            spec["datacenters"] = json!(self.datacenters);
        }
        json!({
            "apiVersion": "vdo.vmware.com/v1alpha1", "kind": "VsphereCloudConfig",
            "metadata": {"name": self.name, "namespace": namespace},
            "spec": spec,
        })
    }

    pub(crate) fn config(&self, namespace: &str) -> Outcome<VsphereCloudConfig> {
        serde_json::from_value(self.object(namespace)).map_err(|error| Failure::Other {
            text: format!("\"{}\" cannot be used", self.address),
            source: error.into(),
        })
    }
}

/// Validates an object.
fn validate(file: &File, document: &Document, namespace: &str) -> Outcome {
    let (version, kind) = (&document.value["apiVersion"], &document.value["kind"]);
    let at = |field: &str| [field.to_owned()];
    let Some(kind) = kind.as_str() else {
        return Err(file.wrong(
            document,
            &at("kind"),
            true,
            "this object has no kind",
            "add kind, for example kind: VDOConfig",
        ));
    };
    if writing::is_written(version.as_str().unwrap_or_default(), kind).is_none() {
        let near = nearest(kind, check::kinds().chain(["Secret", "ConfigMap"]));
        let (field, help) = match near {
            Some(near) if near == kind => {
                let version = if check::kinds().any(|ours| ours == kind) {
                    "vdo.vmware.com/v1alpha1"
                } else {
                    "v1"
                };
                ("apiVersion", format!("its apiVersion is {version}"))
            }
            Some(near) => ("kind", format!("did you mean {near}?")),
            None => (
                "kind",
                "use Secret, ConfigMap, VsphereCloudConfig, CompatibilityConfig or VDOConfig"
                    .into(),
            ),
        };
        let text = format!("vdoctl configure does not write objects of kind {kind}");
        return Err(file.wrong(document, &at(field), false, &text, &help));
    }
    if !document.value["metadata"]["name"].is_string() {
        let path = ["metadata".to_owned(), "name".to_owned()];
        return Err(file.wrong(
            document,
            &path,
            true,
            "this object has no name",
            "add metadata.name",
        ));
    }
    let named = document.value["metadata"]["namespace"].as_str();
    let ours = check::kinds().any(|ours| ours == kind);
    if let Some(other) = named.filter(|named| ours && *named != namespace) {
        let path = ["metadata".to_owned(), "namespace".to_owned()];
        let text = format!("VDO does not follow namespace {other}");
        let help = format!("VDO follows objects in namespace {namespace}: omit this line");
        return Err(file.wrong(document, &path, false, &text, &help));
    }
    match check::check(&document.value).first() {
        Some(mistake) => Err(file.mistake(document, mistake)),
        None => Ok(()),
    }
}

/// Sets the namespace of an object without one.
fn set_namespace(object: &mut Value, namespace: &str) {
    let kind = object["kind"].as_str().unwrap_or_default();
    let version = object["apiVersion"].as_str().unwrap_or_default();
    if writing::is_written(version, kind) == Some(true) && object["metadata"]["namespace"].is_null()
    {
        object["metadata"]["namespace"] = namespace.into();
    }
}
