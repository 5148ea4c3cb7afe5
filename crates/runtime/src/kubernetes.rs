//! The one way a Kubernetes client is made.

use std::{path::PathBuf, time::Duration};

use http::{HeaderValue, header::USER_AGENT};
use kube::{
    Client, Config,
    config::{InferConfigError, KubeConfigOptions, Kubeconfig, KubeconfigError},
};
use snafu::{ResultExt, Snafu};

use crate::build::BuildInfo;

/// Where the cluster is, as flags and environment say it.
#[derive(Clone, Debug, Default)]
pub struct ClusterOptions {
    /// A kubeconfig to use instead of `KUBECONFIG`, the default one, or the pod's service account.
    pub kubeconfig: Option<PathBuf>,
    /// The context to use instead of the current one.
    pub context: Option<String>,
}

/// Why no client could be made.
#[derive(Debug, Snafu)]
#[allow(missing_docs, reason = "a field is named as in the text it stands in")]
pub enum Error {
    #[snafu(display("the kubeconfig {} cannot be used", path.display()))]
    Read { path: PathBuf, source: KubeconfigError },

    #[snafu(display("the kubeconfig cannot be used: does the context exist?"))]
    Context { source: KubeconfigError },

    #[snafu(display(
        "no cluster is known: set KUBECONFIG or --kubeconfig, or run in a pod with a service account"
    ))]
    Nowhere {
        #[snafu(source(from(InferConfigError, Box::new)))]
        source: Box<InferConfigError>,
    },

    #[snafu(display("the cluster's address or certificates in the kubeconfig cannot be used"))]
    Unusable {
        #[snafu(source(from(kube::Error, Box::new)))]
        source: Box<kube::Error>,
    },
}

/// A connection that is not there after this long is not coming.
const CONNECT: Duration = Duration::from_secs(10);
/// Longer than the five minutes the API server lets a watch last.
const READ: Duration = Duration::from_secs(305);
const WRITE: Duration = Duration::from_secs(30);

/// Chooses the one implementation of TLS, for whoever makes connections without a cluster.
pub fn install_tls_provider() {
    // Fails when a provider is installed already, which serves as well.
    let _ = rustls::crypto::aws_lc_rs::default_provider().install_default();
}

/// A client for the cluster, with timeouts on everything and our name as the user agent.
pub async fn client(options: &ClusterOptions, build: BuildInfo) -> Result<Client, Error> {
    install_tls_provider();
    let mut config = configuration(options).await?;
    config.connect_timeout = Some(CONNECT);
    config.read_timeout = Some(READ);
    config.write_timeout = Some(WRITE);
    if let Ok(agent) = HeaderValue::from_str(&build.user_agent()) {
        config.headers.push((USER_AGENT, agent));
    }
    Client::try_from(config).context(UnusableSnafu)
}

async fn configuration(options: &ClusterOptions) -> Result<Config, Error> {
    let choice =
        KubeConfigOptions { context: options.context.clone(), ..KubeConfigOptions::default() };
    match &options.kubeconfig {
        Some(path) => {
            let file = Kubeconfig::read_from(path).context(ReadSnafu { path })?;
            Config::from_custom_kubeconfig(file, &choice).await.context(ReadSnafu { path })
        }
        None if options.context.is_some() => {
            Config::from_kubeconfig(&choice).await.context(ContextSnafu)
        }
        None => Config::infer().await.context(NowhereSnafu),
    }
}
