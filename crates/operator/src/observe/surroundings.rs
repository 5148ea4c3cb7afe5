//! Facts about the cluster and the operator's own process that hold for as long as the process runs.

use std::collections::BTreeSet;

use health::facts::Platform;
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::Namespace;
use kube::{Api, Client};
use plan::names;

use super::{choose, platform};
use crate::{cluster::Stores, followed::FollowedConfig, version::Believed};

/// Facts that hold for as long as the process runs.
#[derive(Clone, Debug)]
pub struct Surroundings {
    /// The namespace of the operator and of its records.
    pub namespace: String,
    /// The API server's version.
    pub version: Believed,
    pub platform: Platform,
    /// Whether the platform itself installs the vSphere drivers.
    pub owns_drivers: bool,
    /// The uid of `kube-system`.
    pub uid: String,
    pub timeouts: Timeouts,
    /// The namespaces in which an admin lets VDO adopt drivers with any object names.
    pub open_namespaces: BTreeSet<String>,
    /// The pod of this process, if it runs in one.
    pub pod: Option<String>,
    /// When the operator started to observe.
    pub started: Timestamp,
    /// The build of the operator.
    pub build: String,
}

/// How long VDO waits before it treats something as broken.
#[derive(Clone, Copy, Debug)]
pub struct Timeouts {
    /// Timeout for a new release to become healthy.
    pub rollout: SignedDuration,
    /// An upper limit for all other grace periods, in seconds.
    pub grace: Option<u32>,
    /// VDO accepts a newer minor version only after no API server has answered with an older one for this
    /// long.
    pub settled: SignedDuration,
}

impl Default for Timeouts {
    /// The defaults of the operator's flags.
    fn default() -> Self {
        SignedDuration::from_mins(15).into()
    }
}

impl From<SignedDuration> for Timeouts {
    fn from(rollout: SignedDuration) -> Self {
        Self { rollout, grace: None, settled: crate::version::SETTLED }
    }
}

impl Surroundings {
    /// Combines a new reading with the previous one. An incomplete answer of one API server does not revert a
    /// detected platform while the process runs. The version is not simply that of the API server that
    /// happened to answer.
    pub(crate) fn after(mut self, before: &Self, now: Timestamp) -> Self {
        self.started = before.started;
        self.open_namespaces.clone_from(&before.open_namespaces);
        self.version = before.version.clone().answered(&self.version, now, self.timeouts.settled);
        if self.platform == Platform::Kubernetes {
            (self.platform, self.owns_drivers) = (before.platform, before.owns_drivers);
        }
        self
    }

    /// Restores the version that an earlier operator accepted, from the status.
    pub(crate) fn remembered(
        mut self,
        stores: &Stores,
        recorded: Option<&FollowedConfig>,
        now: Timestamp,
    ) -> Self {
        let (chosen, _) = choose(stores, recorded);
        let config = chosen.as_ref().and_then(|config| config.0.as_ref().ok());
        let versions = config.and_then(|config| config.status.as_ref()?.versions.as_ref());
        if let Some(before) = versions.and_then(|versions| versions.kubernetes.as_deref()) {
            self.version = self.version.after(before, now);
        }
        self
    }

    /// The platform: from the API server, otherwise from most of the nodes.
    pub(crate) fn platform(&self, stores: &Stores) -> Platform {
        stores.platform(self.platform)
    }
}

/// Reads the surroundings.
pub(crate) async fn surroundings(
    client: &Client,
    namespace: &str,
    timeouts: Timeouts,
    build: &str,
) -> Result<Surroundings, kube::Error> {
    let version = client.apiserver_version().await?;
    let kube_system = Api::<Namespace>::all(client.clone()).get(names::KUBE_SYSTEM).await?;
    let parsed = version.git_version.parse().map_err(|error| {
        let text = format!("the API server says a version that is none: {error}");
        kube::Error::Service(text.into())
    })?;
    let (platform, owns_drivers) = platform::from_api_server(client, &version.git_version).await?;
    Ok(Surroundings {
        namespace: namespace.into(),
        platform,
        owns_drivers,
        version: Believed::first(parsed, version.git_version),
        build: build.into(),
        uid: kube_system.metadata.uid.unwrap_or_default(),
        timeouts,
        open_namespaces: BTreeSet::new(),
        pod: std::env::var("POD_NAME").ok(),
        started: Timestamp::now(),
    })
}
