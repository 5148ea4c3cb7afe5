//! The objects a user wants, before the cluster has seen them.

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

/// The objects, in the order in which they are written.
#[derive(Debug, Default)]
pub(crate) struct Draft {
    pub(crate) objects: Vec<Object>,
    /// Whether they come from a dialogue: then the user has not seen them yet.
    pub(crate) asked: bool,
    /// Whether its vCenters were logged in to already.
    pub(crate) proven: bool,
    /// Where each came from, for errors.
    origins: Vec<(File, Vec<usize>)>,
}

/// One vCenter and how it is reached.
#[derive(Clone, Debug, Default)]
pub(crate) struct Access {
    pub(crate) name: String,
    pub(crate) secret: String,
    /// Whether its objects are in the cluster: the type of a Secret cannot be changed.
    known: bool,
    /// What the cluster says about it so far: what is not said here stays.
    before: Option<Value>,
    pub(crate) address: String,
    pub(crate) user: String,
    pub(crate) password: driver_config::SecretText,
    pub(crate) thumbprint: Option<String>,
    pub(crate) ca: Option<String>,
    pub(crate) insecure: bool,
    pub(crate) datacenters: Vec<String>,
}

/// What the drivers should do.
#[derive(Clone, Debug, Default)]
pub(crate) struct Drivers {
    /// Whether what is not said stays as it is in a VDOConfig that is there: its other vCenters, its
    /// zones, and whether there is a cloud provider, unless it is said that there is none.
    pub(crate) partial: bool,
    pub(crate) cloud_provider: bool,
    pub(crate) topology: Option<(String, String)>,
    /// A StorageClass to make the default one, if one is wanted.
    pub(crate) class: Option<Class>,
}

/// A StorageClass.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Class {
    /// The datastore of its volumes; any that fits if none is named.
    pub(crate) datastore: Option<String>,
}

impl Drivers {
    /// As the spec of a VDOConfig. What an existing one says beyond what is asked here stays.
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

/// The vCenters of a driver: those that are named, after those it has where these stay.
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

/// Sets a field, or takes it away.
fn put(object: &mut Value, field: &str, value: Option<Value>) {
    match value {
        Some(value) => object[field] = value,
        None => drop(object.as_object_mut().and_then(|fields| fields.remove(field))),
    }
}

impl Draft {
    /// Reads files, all of them checked: the first mistake is told with its place.
    pub(super) fn from_files(paths: &[PathBuf], namespace: &str) -> Outcome<Self> {
        let mut draft = Self::default();
        for path in paths {
            let mut file = File::open(path)?;
            let mut numbers = Vec::new();
            for document in &file.documents {
                checked(&file, document, namespace)?;
            }
            for document in &mut file.documents {
                settle(&mut document.value, namespace);
                numbers.push(draft.objects.len());
                draft.objects.push(Object(document.value.clone()));
            }
            draft.origins.push((file, numbers));
        }
        if draft.objects.is_empty() {
            return refuse("the files hold no objects", "deploy/samples shows what they look like");
        }
        // Names before what names them.
        draft.objects.sort_by_key(|object| match object.kind() {
            "Namespace" => 0,
            "Secret" | "ConfigMap" => 1,
            "VsphereCloudConfig" => 2,
            _ => 3,
        });
        Ok(draft)
    }

    /// Objects that were in the cluster before.
    pub(crate) fn of_objects(objects: Vec<Object>) -> Self {
        Self { objects, ..Self::default() }
    }

    /// Objects for vCenters and drivers.
    pub(crate) fn of(
        all: &[Access],
        drivers: &Drivers,
        namespace: &str,
        existing: Option<&VDOConfig>,
    ) -> Self {
        let mut objects = Vec::new();
        for access in all {
            let mut secret = json!({
                "apiVersion": "v1", "kind": "Secret",
                "metadata": {"name": access.secret, "namespace": api::CREDENTIALS_NAMESPACE},
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

    /// Confirms its VDOConfig, where VDO has followed another one before that is gone: to write it here is to
    /// ask for it.
    pub(crate) fn confirm(&mut self, recorded: Option<&FollowedConfig>) {
        let Some(recorded) = recorded else { return };
        let mut configs = self.objects.iter_mut().filter(|object| object.kind() == "VDOConfig");
        if let (Some(config), None) = (configs.next(), configs.next())
            && config.name() != recorded.name
        {
            config.0["metadata"]["annotations"][names::FOLLOW] = "true".into();
        }
    }

    /// Gives Secrets that say no type the one they have in the cluster: it cannot be changed, and not to
    /// say it again would be a change. Where that cannot be read, writing tells why.
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

    /// The vCenters in it, with the place of each among the objects.
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

    /// A refusal of the API server, at its place in the user's file where that can be told.
    pub(super) fn refused(&self, error: writing::Error) -> Failure {
        let writing::Error::Compare { object: id, source } = error else {
            return super::super::deploy::written(error);
        };
        let kube::Error::Api(status) = source.as_ref() else {
            return Failure::Api { doing: format!("checking {id}"), source };
        };
        let told = self.origins.iter().find_map(|(file, _)| file.refused(&id, status));
        told.unwrap_or(Failure::Api { doing: format!("checking {id}"), source })
    }
}

impl Access {
    /// A vCenter by its address: one the cluster knows keeps its names.
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
            // One way to trust it takes the place of another.
            for way in ["thumbprint", "caBundle"] {
                put(&mut spec, way, None);
            }
            // Said, not only left out: another hand may have set it.
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

    /// The same as a typed object.
    pub(crate) fn config(&self, namespace: &str) -> Outcome<VsphereCloudConfig> {
        serde_json::from_value(self.object(namespace)).map_err(|error| Failure::Other {
            text: format!("\"{}\" cannot be used", self.address),
            source: error.into(),
        })
    }
}

/// Whether a document is an object that is written here and makes sense.
fn checked(file: &File, document: &Document, namespace: &str) -> Outcome {
    let (version, kind) = (&document.value["apiVersion"], &document.value["kind"]);
    let at = |field: &str| [field.to_owned()];
    let Some(kind) = kind.as_str() else {
        return Err(file.wrong(
            document,
            &at("kind"),
            true,
            "this object does not say its kind",
            "add kind, as in kind: VDOConfig",
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
                "here go Secret, ConfigMap, VsphereCloudConfig, CompatibilityConfig and VDOConfig"
                    .into(),
            ),
        };
        let text = format!("{kind} is not configured here");
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
        let help = format!("VDO follows its objects in namespace {namespace}: leave this line out");
        return Err(file.wrong(document, &path, false, &text, &help));
    }
    match check::check(&document.value).first() {
        Some(mistake) => Err(file.mistake(document, mistake)),
        None => Ok(()),
    }
}

/// Puts an object into the namespace it belongs to, where the file does not say.
fn settle(object: &mut Value, namespace: &str) {
    let kind = object["kind"].as_str().unwrap_or_default();
    let version = object["apiVersion"].as_str().unwrap_or_default();
    let home = if kind == "Secret" { api::CREDENTIALS_NAMESPACE } else { namespace };
    if writing::is_written(version, kind) == Some(true) && object["metadata"]["namespace"].is_null()
    {
        object["metadata"]["namespace"] = home.into();
    }
}
