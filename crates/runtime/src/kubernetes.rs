//! The one way a Kubernetes client is made.

use std::{path::PathBuf, time::Duration};

use http::{HeaderValue, header::USER_AGENT};
use kube::{
    Client, Config,
    client::ClientBuilder,
    config::{InferConfigError, KubeConfigOptions, Kubeconfig, KubeconfigError},
};
use snafu::{ResultExt, Snafu};
use tower::timeout::TimeoutLayer;

use crate::{build::BuildInfo, checks::Watchdog};

/// Where the cluster is, as flags and environment say it.
#[derive(Clone, Debug, Default)]
pub struct ClusterOptions {
    /// A kubeconfig to use instead of `KUBECONFIG`, the default one, or the pod's service account.
    pub kubeconfig: Option<PathBuf>,
    /// The context to use instead of the current one.
    pub context: Option<String>,
    /// How long an answer may take; by default as long as a watch lasts.
    pub request_timeout: Option<Duration>,
}

/// Why no client could be made.
#[derive(Debug, Snafu)]
#[allow(missing_docs, reason = "a field is named as in the text it stands in")]
pub enum Error {
    #[snafu(display("the kubeconfig {} cannot be used", path.display()))]
    Read { path: PathBuf, source: KubeconfigError },

    #[snafu(display("the kubeconfig of this environment cannot be used"))]
    Environment { source: KubeconfigError },

    #[snafu(display("there is no context \"{context}\" in the kubeconfig"))]
    NoContext {
        context: String,
        /// Those there are.
        known: Vec<String>,
    },

    #[snafu(display(
        "no file that KUBECONFIG names exists: {}",
        paths.iter().map(|path| path.display().to_string()).collect::<Vec<_>>().join(", ")
    ))]
    Missing { paths: Vec<PathBuf> },

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
/// Longer than the minute an API server gives any request; a watch begins to answer at once.
const ANSWER: Duration = Duration::from_secs(70);
/// How much longer than a connection may be silent an answer may take to begin.
const BESIDES: Duration = Duration::from_secs(5);

/// After this long a request of a [`client`] with the usual timeouts has ended: its answer has begun, and its
/// connection has not been silent.
pub const LONGEST_REQUEST: Duration = ANSWER.saturating_add(READ);

/// The same client, that reports the end of every request to `watchdog`.
pub fn watched(client: &Client, watchdog: &Watchdog) -> Client {
    let (inner, watchdog) = (client.clone(), watchdog.clone());
    let service = tower::service_fn(move |request| {
        let (inner, watchdog) = (inner.clone(), watchdog.clone());
        async move {
            let answer = inner.send(request).await;
            watchdog.step();
            answer
        }
    });
    Client::new(service, client.default_namespace())
}

/// Chooses the one implementation of TLS, for whoever makes connections without a cluster.
pub fn install_tls_provider() {
    // Fails when a provider is installed already, which serves as well.
    let _ = rustls::crypto::aws_lc_rs::default_provider().install_default();
}

/// A client for the cluster, with timeouts on everything and our name as the user agent.
///
/// Connections have their own. A request has one too, until its answer begins: one whose connection was
/// lost at the wrong moment may be left without an answer, an error and a connection that could be silent.
pub async fn client(options: &ClusterOptions, build: BuildInfo) -> Result<Client, Error> {
    install_tls_provider();
    let mut config = configuration(options).await?;
    config.connect_timeout = Some(CONNECT);
    config.read_timeout = Some(options.request_timeout.unwrap_or(READ));
    config.write_timeout = Some(WRITE);
    if let Ok(agent) = HeaderValue::from_str(&build.user_agent()) {
        config.headers.push((USER_AGENT, agent));
    }
    let answer =
        options.request_timeout.map_or(ANSWER, |request_timeout| request_timeout + BESIDES);
    let builder = ClientBuilder::try_from(config).context(UnusableSnafu)?;
    Ok(builder.with_layer(&TimeoutLayer::new(answer)).build())
}

async fn configuration(options: &ClusterOptions) -> Result<Config, Error> {
    let Some(file) = kubeconfig(options)? else {
        // No kubeconfig was named: the default one, or else the service account of the pod.
        return Config::infer().await.context(NowhereSnafu);
    };
    let context = options.context.clone().or_else(|| file.current_context.clone());
    let known: Vec<String> = file.contexts.iter().map(|known| known.name.clone()).collect();
    if let Some(context) = context.filter(|context| !known.contains(context)) {
        return NoContextSnafu { context, known }.fail();
    }
    let choice =
        KubeConfigOptions { context: options.context.clone(), ..KubeConfigOptions::default() };
    let made = Config::from_custom_kubeconfig(file, &choice).await;
    match &options.kubeconfig {
        Some(path) => made.context(ReadSnafu { path }),
        None => made.context(EnvironmentSnafu),
    }
}

/// The kubeconfig that is named by a flag or by the environment, or that a context has to be in. As
/// kubectl does it, `KUBECONFIG` may list several files, the first to say something wins, and files
/// that do not exist are left out. None where nothing is named.
pub fn kubeconfig(options: &ClusterOptions) -> Result<Option<Kubeconfig>, Error> {
    if let Some(path) = &options.kubeconfig {
        return Kubeconfig::read_from(path).context(ReadSnafu { path }).map(Some);
    }
    let listed = std::env::var_os("KUBECONFIG").unwrap_or_default();
    let listed = std::env::split_paths(&listed).filter(|path| !path.as_os_str().is_empty());
    let paths: Vec<PathBuf> = listed.collect();
    if paths.is_empty() {
        return match options.context {
            Some(_) => Kubeconfig::read().context(EnvironmentSnafu).map(Some),
            None => Ok(None),
        };
    }
    let mut merged: Option<Kubeconfig> = None;
    for path in paths.iter().filter(|path| path.exists()) {
        let next = Kubeconfig::read_from(path).context(ReadSnafu { path })?;
        merged = Some(match merged {
            Some(merged) => merged.merge(next).context(ReadSnafu { path })?,
            None => next,
        });
    }
    merged.map_or_else(|| MissingSnafu { paths }.fail(), |merged| Ok(Some(merged)))
}
