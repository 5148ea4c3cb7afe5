//! The connection to the API server.

use std::time::Duration;

use k8s_openapi::{NamespaceResourceScope, api::apps::v1::Deployment};
use kube::{Api, Client, ResourceExt as _, api::ListParams, config::Kubeconfig};
use operator::followed::{self, FollowedConfig};
use runtime::kubernetes::{ClusterOptions, client, kubeconfig};
use snafu::ResultExt as _;

use crate::{
    BUILD,
    failure::{ClusterSnafu, Doing as _, Failure, Outcome},
    options::Global,
};

/// A cluster and the namespace of VDO.
#[derive(Clone)]
pub(crate) struct Cluster {
    pub(crate) client: Client,
    pub(crate) namespace: String,
    /// Its name in the kubeconfig.
    pub(crate) name: Option<String>,
}

pub(crate) struct ConfigLookup {
    /// The VDOConfig that the operator follows, or else the first one.
    pub(crate) config: Option<api::VDOConfig>,
    pub(crate) followed: bool,
    /// The VDOConfig that the operator has recorded. It may not exist any more.
    pub(crate) recorded: Option<FollowedConfig>,
}

impl Cluster {
    /// Creates a client for the cluster. Sends no request yet.
    pub(crate) async fn connect(global: &Global) -> Outcome<Self> {
        let options = ClusterOptions {
            kubeconfig: global.kubeconfig.clone(),
            context: global.context.clone(),
            request_timeout: Some(Duration::from_secs(global.request_timeout)),
        };
        let client = client(&options, BUILD).await.context(ClusterSnafu)?;
        Ok(Self { client, namespace: global.namespace.clone(), name: name(&options) })
    }

    /// Lists custom resources of VDO in its namespace. Fails with `NotInstalled` if the CRD does not exist.
    pub(crate) async fn own<K>(&self, what: &str) -> Outcome<Vec<K>>
    where
        K: kube::Resource<DynamicType = (), Scope = NamespaceResourceScope>
            + Clone
            + serde::de::DeserializeOwned
            + std::fmt::Debug,
    {
        let objects = Api::<K>::namespaced(self.client.clone(), &self.namespace);
        match objects.list(&ListParams::default()).await {
            Ok(list) => Ok(list.items),
            Err(kube::Error::Api(status)) if status.code == 404 => Err(Failure::NotInstalled),
            error => error.map(|list| list.items).doing(&format!("listing {what}")),
        }
    }

    /// The VDOConfig the operator follows, or else the first that waits for a confirmation.
    pub(crate) async fn config(&self) -> Outcome<api::VDOConfig> {
        match self.found().await?.config {
            Some(config) => Ok(config),
            None => Err(self.not_configured().await),
        }
    }

    pub(crate) async fn found(&self) -> Outcome<ConfigLookup> {
        let configs = self.own::<api::VDOConfig>("VDOConfigs").await?;
        let recorded = followed::recorded_if_readable(&self.client, &self.namespace).await;
        let recorded = recorded.doing("reading which VDOConfig is followed")?;
        let chosen = followed::chosen(&configs, recorded.as_ref()).cloned();
        let followed = chosen.is_some();
        let config = chosen.or_else(|| configs.into_iter().next());
        Ok(ConfigLookup { config, followed, recorded })
    }

    /// Names a VDOConfig that VDO does not follow because of its namespace, if there is one.
    async fn not_configured(&self) -> Failure {
        let configs = Api::<api::VDOConfig>::all(self.client.clone());
        let others = ListParams::default().limit(1);
        let others = others.fields(&format!("metadata.namespace!={}", self.namespace));
        let first =
            configs.list_metadata(&others).await.ok().and_then(|all| all.items.into_iter().next());
        let Some(other) = first else { return Failure::NotConfigured };
        let (namespace, name) = (other.namespace().unwrap_or_default(), other.name_any());
        let runs = async |namespace: &str| {
            let deployments = Api::<Deployment>::namespaced(self.client.clone(), namespace);
            matches!(deployments.get_metadata_opt("vdo").await, Ok(Some(_)))
        };
        if !runs(&self.namespace).await && runs(&namespace).await {
            return Failure::InstalledElsewhere { asked: self.namespace.clone(), namespace };
        }
        Failure::ConfiguredElsewhere { namespace, name }
    }
}

fn name(options: &ClusterOptions) -> Option<String> {
    let named = kubeconfig(options).ok()?;
    let config = named.map_or_else(Kubeconfig::read, Ok).ok()?;
    let wanted = options.context.clone().or(config.current_context)?;
    let context = config.contexts.into_iter().find(|context| context.name == wanted)?;
    Some(context.context?.cluster)
}
