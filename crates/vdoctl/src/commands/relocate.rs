//! `vdoctl move`

use ::catalog::manifest::Object;
use api::{VDOConfig, VsphereCloudConfig, vsphere_cloud_config::CaBundle};
use clap::Args;
use k8s_openapi::api::core::v1::{ConfigMap, Secret};
use kube::{
    Api, ResourceExt as _,
    api::{ListParams, Patch, PatchParams},
};
use operator::writing::{self, Comparison};
use plan::names;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use super::configure::{Draft, show};
use crate::{
    cluster::Cluster,
    critical,
    failure::{Doing as _, Outcome, refuse, request},
    options::Global,
    screen::Screen,
    text::{GOOD, paint},
};

/// Copy a VDOConfig from another namespace to the one that VDO follows.
///
/// vdoctl also copies the VsphereCloudConfigs that it refers to, and the ConfigMaps and Secrets with their
/// certificate authorities. It also copies the Secrets with their credentials from kube-system. vdoctl shows every
/// object first. It deletes nothing and changes no existing object.
#[derive(Args, Debug)]
pub(crate) struct Move {
    /// The namespace of the VDOConfig.
    #[arg(long, value_name = "NAMESPACE")]
    from: String,
    /// The VDOConfig, if its namespace has several.
    #[arg(long, value_name = "NAME")]
    name: Option<String>,
    /// Show the objects, and copy nothing.
    #[arg(long)]
    dry_run: bool,
}

impl Move {
    pub(crate) async fn run(&self, global: &Global, screen: &Screen) -> Outcome {
        let cluster = Cluster::connect(global).await?;
        let namespace = cluster.namespace.clone();
        if self.from == namespace {
            return request(
                format!("VDO already follows namespace {namespace}"),
                "set --from to another namespace",
            );
        }
        let found = cluster.found().await?;
        if let Some(followed) = found.config.as_ref().filter(|_| found.followed) {
            return refuse(
                format!("VDO already follows VDOConfig {namespace}/{}", followed.name_any()),
                "copy the settings you need into it with kubectl edit; nothing was copied",
            );
        }
        let config = self.config(&cluster).await?;
        let mut draft = self.draft(&cluster, &config).await?;
        draft.confirm(found.recorded.as_ref());
        let compared = writing::compare(&cluster.client, draft.objects).await;
        let compared = compared.map_err(super::deploy::written)?;
        if let Some(taken) = compared.iter().find(|one| !one.is_new() && !one.is_same()) {
            return refuse(
                format!("{} already exists and differs; nothing was copied", taken.id),
                "delete it if nothing uses it, or change it by hand",
            );
        }
        show(&compared, screen)?;
        if self.dry_run {
            screen.note("Nothing was changed.");
            return Ok(());
        }
        screen.confirm(&format!("Copy this to namespace {namespace}, and let VDO follow it?"))?;
        let new: Vec<Comparison> = compared.into_iter().filter(Comparison::is_new).collect();
        let written = critical::section(writing::write_all(&cluster.client, &new)).await;
        written.map_err(super::deploy::written)?;
        self.release(&cluster, &config).await?;
        screen.note(&format!("{} Copied to namespace {namespace}.", paint(GOOD, "✔")));
        screen.note(&format!(
            "\nNext: vdoctl status --wait\nThen: kubectl delete vdoconfig --namespace {} {}",
            self.from,
            config.name_any()
        ));
        Ok(())
    }

    async fn config(&self, cluster: &Cluster) -> Outcome<VDOConfig> {
        let configs = Api::<VDOConfig>::namespaced(cluster.client.clone(), &self.from);
        let configs = configs.list(&ListParams::default()).await.doing("listing VDOConfigs")?;
        let wanted =
            |config: &VDOConfig| self.name.as_ref().is_none_or(|name| *name == config.name_any());
        let mut found: Vec<VDOConfig> = configs.into_iter().filter(wanted).collect();
        match found.len() {
            1 => Ok(found.remove(0)),
            0 => refuse(
                format!("namespace {} has no such VDOConfig", self.from),
                "to list all: kubectl get vdoconfigs --all-namespaces",
            ),
            _ => {
                let names: Vec<String> = found.iter().map(kube::ResourceExt::name_any).collect();
                request(
                    format!("namespace {} has several VDOConfigs: {}", self.from, names.join(", ")),
                    "choose one with --name",
                )
            }
        }
    }

    /// The copies for the namespace of VDO.
    async fn draft(&self, cluster: &Cluster, config: &VDOConfig) -> Outcome<Draft> {
        let mut objects = Vec::new();
        let mut vcenters = Vec::new();
        for name in config.spec.vcenters() {
            let all = Api::<VsphereCloudConfig>::namespaced(cluster.client.clone(), &self.from);
            // A missing VsphereCloudConfig was missing before, too.
            let found = all.get_opt(&name.0).await.doing("reading a VsphereCloudConfig")?;
            let Some(vcenter) = found else { continue };
            objects.extend(credentials(cluster, &vcenter).await?);
            if let Some(bundle) = &vcenter.spec.ca_bundle {
                objects.extend(self.authorities(cluster, bundle).await?);
            }
            vcenters.push(copied(
                "VsphereCloudConfig",
                &cluster.namespace,
                &vcenter,
                &vcenter.spec,
            ));
        }
        objects.extend(vcenters);
        objects.push(copied("VDOConfig", &cluster.namespace, config, &config.spec));
        objects.dedup();
        Ok(Draft::from_objects(objects.into_iter().map(Object).collect()))
    }

    /// The ConfigMap or Secret with the certificate authorities of a vCenter.
    async fn authorities(&self, cluster: &Cluster, bundle: &CaBundle) -> Outcome<Option<Value>> {
        let namespace = &cluster.namespace;
        if let Some(of) = &bundle.config_map {
            let map: Option<ConfigMap> = self.get(cluster, &of.name.0).await?;
            return Ok(map.map(|map| {
                json!({
                    "apiVersion": "v1", "kind": "ConfigMap", "data": map.data,
                    "metadata": {"name": of.name.0, "namespace": namespace},
                })
            }));
        }
        let Some(of) = &bundle.secret else { return Ok(None) };
        let secret: Option<Secret> = self.get(cluster, &of.name.0).await?;
        Ok(secret.map(|secret| {
            json!({
                "apiVersion": "v1", "kind": "Secret", "type": secret.type_, "data": secret.data,
                "metadata": {"name": of.name.0, "namespace": namespace},
            })
        }))
    }

    async fn get<K>(&self, cluster: &Cluster, name: &str) -> Outcome<Option<K>>
    where
        K: kube::Resource<DynamicType = (), Scope = k8s_openapi::NamespaceResourceScope>
            + Clone
            + DeserializeOwned
            + std::fmt::Debug,
    {
        let all = Api::<K>::namespaced(cluster.client.clone(), &self.from);
        all.get_opt(name).await.doing("reading the certificate authorities")
    }

    /// Removes VDO's finalizer from the original, because VDO no longer follows it.
    async fn release(&self, cluster: &Cluster, config: &VDOConfig) -> Outcome {
        if !config.finalizers().iter().any(|name| name == names::FINALIZER) {
            return Ok(());
        }
        let others = config.finalizers().iter().filter(|name| *name != names::FINALIZER);
        let patch = json!({"metadata": {
            "finalizers": others.collect::<Vec<_>>(),
            "resourceVersion": config.metadata.resource_version,
        }});
        let configs = Api::<VDOConfig>::namespaced(cluster.client.clone(), &self.from);
        let by = PatchParams {
            field_manager: Some(writing::FIELD_MANAGER.into()),
            ..PatchParams::default()
        };
        let patched = configs.patch(&config.name_any(), &by, &Patch::Merge(patch)).await;
        patched.map(drop).doing("releasing the original VDOConfig")
    }
}

/// A copy of the Secret with the credentials of a vCenter, unless the namespace of VDO already has it.
async fn credentials(cluster: &Cluster, vcenter: &VsphereCloudConfig) -> Outcome<Option<Value>> {
    let (name, namespace) = (vcenter.spec.credentials.0.as_str(), &cluster.namespace);
    let at = |namespace: &str| Api::<Secret>::namespaced(cluster.client.clone(), namespace);
    let doing = "reading the credentials of a vCenter";
    if at(namespace).get_metadata_opt(name).await.doing(doing)?.is_some() {
        return Ok(None);
    }
    let original = at(names::KUBE_SYSTEM).get_opt(name).await.doing(doing)?;
    Ok(original.map(|secret| {
        let mut copy = json!({
            "apiVersion": "v1", "kind": "Secret", "type": secret.type_, "data": secret.data,
            "metadata": {"name": name, "namespace": namespace},
        });
        let annotations = secret.metadata.annotations.unwrap_or_default();
        if let Some(expires) = annotations.get(names::PASSWORD_EXPIRES) {
            copy["metadata"]["annotations"][names::PASSWORD_EXPIRES] = expires.as_str().into();
        }
        copy
    }))
}

/// A copy of a custom resource of VDO, with the annotations that VDO reads.
fn copied<K: kube::ResourceExt>(
    kind: &str,
    namespace: &str,
    object: &K,
    spec: &impl serde::Serialize,
) -> Value {
    let annotations = object.annotations().iter();
    let annotations: serde_json::Map<String, Value> = annotations
        .filter(|(name, _)| name.starts_with("vdo.vmware.com/") && *name != names::FOLLOW)
        .map(|(name, value)| (name.clone(), value.as_str().into()))
        .collect();
    let mut copy = json!({
        "apiVersion": "vdo.vmware.com/v1alpha1", "kind": kind,
        "metadata": {"name": object.name_any(), "namespace": namespace},
        "spec": spec,
    });
    if !annotations.is_empty() {
        copy["metadata"]["annotations"] = annotations.into();
    }
    copy
}
