//! The way to the API server.

use std::time::Duration;

use kube::{Api, Client, api::ListParams, config::Kubeconfig};
use runtime::kubernetes::{ClusterOptions, client, kubeconfig};
use snafu::ResultExt as _;

use crate::{
    BUILD,
    arguments::Global,
    failure::{ClusterSnafu, Doing as _, Failure, Outcome},
};

/// A cluster, and the namespace VDO lives in.
#[derive(Clone)]
pub(crate) struct Cluster {
    pub(crate) client: Client,
    pub(crate) namespace: String,
    /// What the kubeconfig calls it.
    pub(crate) name: Option<String>,
}

impl Cluster {
    /// The cluster the flags lead to. Nothing is asked of it yet.
    pub(crate) async fn connect(global: &Global) -> Outcome<Self> {
        let options = ClusterOptions {
            kubeconfig: global.kubeconfig.clone(),
            context: global.context.clone(),
            patience: Some(Duration::from_secs(global.request_timeout)),
        };
        let client = client(&options, BUILD).await.context(ClusterSnafu)?;
        Ok(Self { client, namespace: global.namespace.clone(), name: name(&options) })
    }

    /// The objects of one kind of ours, in all namespaces; a cluster without VDO is told as such.
    pub(crate) async fn all<K>(&self, what: &str) -> Outcome<Vec<K>>
    where
        K: kube::Resource<DynamicType = ()> + Clone + serde::de::DeserializeOwned + std::fmt::Debug,
    {
        match Api::<K>::all(self.client.clone()).list(&ListParams::default()).await {
            Ok(list) => Ok(list.items),
            Err(kube::Error::Api(status)) if status.code == 404 => Err(Failure::NotInstalled),
            error => error.map(|list| list.items).doing(&format!("listing {what}")),
        }
    }

    /// The VDOConfig the operator follows: the oldest.
    pub(crate) async fn config(&self) -> Outcome<api::VDOConfig> {
        let configs = self.all::<api::VDOConfig>("VDOConfigs").await?;
        operator::observe::first(configs).ok_or(Failure::NotConfigured)
    }
}

/// The name of the cluster in the context that is used.
fn name(options: &ClusterOptions) -> Option<String> {
    let named = kubeconfig(options).ok()?;
    let config = named.map_or_else(Kubeconfig::read, Ok).ok()?;
    let wanted = options.context.clone().or(config.current_context)?;
    let context = config.contexts.into_iter().find(|context| context.name == wanted)?;
    Some(context.context?.cluster)
}
