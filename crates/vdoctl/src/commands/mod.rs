//! The commands, one file each.

pub(crate) mod adopt;
pub(crate) mod catalog;
pub(crate) mod completion;
pub(crate) mod configure;
pub(crate) mod deploy;
pub(crate) mod doctor;
pub(crate) mod explain;
pub(crate) mod fix;
pub(crate) mod images;
pub(crate) mod plan;
pub(crate) mod prepare;
pub(crate) mod relocate;
pub(crate) mod remove;
pub(crate) mod status;
pub(crate) mod storage_class;
pub(crate) mod support_bundle;
pub(crate) mod upgrade;
pub(crate) mod version;
pub(crate) mod versions;
pub(crate) mod volume_test;

use std::collections::BTreeSet;

use ::catalog::version::KubernetesVersion;
use ::operator::install::Allowed;
use k8s_openapi::{
    api::{apps::v1::Deployment, core::v1::Namespace},
    apimachinery::pkg::version::Info,
};
use kube::Api;
use serde::Serialize;

use crate::{
    cluster::Cluster,
    failure::{Doing as _, Failure, Outcome},
    options::OutputFormat,
};

async fn running_operator(cluster: &Cluster) -> Outcome<Option<Deployment>> {
    let deployments = Api::<Deployment>::namespaced(cluster.client.clone(), api::NAMESPACE);
    deployments.get_opt("vdo").await.doing("reading the operator's Deployment")
}

/// The additional namespaces in which the operator is allowed to adopt drivers or has adopted some.
async fn driver_namespaces(cluster: &Cluster) -> Outcome<BTreeSet<String>> {
    let operator = running_operator(cluster).await?;
    let mut all = operator.as_ref().map(operator::install::more_namespaces).unwrap_or_default();
    let recorded = operator::observe::recorded_namespaces(&cluster.client, api::NAMESPACE).await;
    let recorded = if_allowed(recorded)?.unwrap_or_default().into_iter();
    // In the default namespaces the operator has permissions for known names.
    all.extend(
        recorded.filter(|namespace| !::plan::names::USUAL_NAMESPACES.contains(&namespace.as_str())),
    );
    let namespaces = Api::<Namespace>::all(cluster.client.clone());
    let mut there = BTreeSet::new();
    for namespace in all {
        if namespaces.get_opt(&namespace).await.doing("reading a namespace")?.is_some() {
            there.insert(namespace);
        }
    }
    Ok(there)
}

/// Ignores a missing permission: a user who can deploy may not be able to read the records.
fn if_allowed<T>(recorded: Result<T, kube::Error>) -> Outcome<Option<T>> {
    match recorded {
        Err(kube::Error::Api(status)) if status.code == 403 => Ok(None),
        recorded => recorded.doing("reading the operator's records").map(Some),
    }
}

/// The additional permissions that the operator needs in this cluster.
async fn allowed(cluster: &Cluster, namespaces: BTreeSet<String>) -> Outcome<Allowed> {
    let names = operator::observe::names_in_use(&cluster.client, api::NAMESPACE).await;
    let credentials =
        operator::observe::credentials_in_kube_system(&cluster.client, api::NAMESPACE).await;
    let version = cluster.client.apiserver_version().await.doing("asking the cluster who it is")?;
    Ok(Allowed {
        namespaces,
        names: if_allowed(names)?.unwrap_or_default(),
        credentials: if_allowed(credentials)?.unwrap_or_default(),
        old_cloud_controllers: has_old_cloud_controllers(&version),
    })
}

/// Whether cloud controllers for this version of Kubernetes read Secrets in every namespace.
fn has_old_cloud_controllers(version: &Info) -> bool {
    let version = version.git_version.parse::<KubernetesVersion>();
    version.is_ok_and(|version| version < KubernetesVersion::minor(1, 32))
}

pub(crate) fn formatted(form: OutputFormat, value: &impl Serialize) -> Outcome<String> {
    let failed = |source: Box<dyn std::error::Error + Send + Sync>| Failure::Other {
        text: "cannot write the output".into(),
        source,
    };
    match form {
        OutputFormat::Json => serde_json::to_string_pretty(value)
            .map(|text| text + "\n")
            .map_err(|error| failed(error.into())),
        OutputFormat::Yaml => serde_saphyr::to_string(value).map_err(|error| failed(error.into())),
    }
}
