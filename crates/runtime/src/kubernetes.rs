//! Creates Kubernetes clients.

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

/// The cluster to connect to, from flags and environment.
#[derive(Clone, Debug, Default)]
pub struct ClusterOptions {
    /// Used instead of `KUBECONFIG`, the default kubeconfig or the pod's service account.
    pub kubeconfig: Option<PathBuf>,
    /// Used instead of the current context.
    pub context: Option<String>,
    /// The timeout of a request; by default as long as a watch lasts.
    pub request_timeout: Option<Duration>,
}

#[derive(Debug, Snafu)]
pub enum Error {
    #[snafu(display("the kubeconfig {} cannot be used", path.display()))]
    Read { path: PathBuf, source: KubeconfigError },

    #[snafu(display("the kubeconfig of this environment cannot be used"))]
    Environment { source: KubeconfigError },

    #[snafu(display("there is no context \"{context}\" in the kubeconfig"))]
    NoContext {
        context: String,
        /// The contexts in the kubeconfig.
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

const CONNECT: Duration = Duration::from_secs(10);
/// Longer than the five minutes that the API server lets a watch last.
const READ: Duration = Duration::from_secs(305);
const WRITE: Duration = Duration::from_secs(30);
/// Longer than the API server's limit of one minute for a request; a watch gets its first response at once.
const ANSWER: Duration = Duration::from_secs(70);
/// Added to the read timeout to get the timeout until the first byte of the response.
const ANSWER_MARGIN: Duration = Duration::from_secs(5);

/// The longest time a request of a [`client`] with the default timeouts takes: until the response begins, and
/// then until the connection has been silent too long.
pub const LONGEST_REQUEST: Duration = ANSWER.saturating_add(READ);

/// Returns the client with a layer that reports the end of every request to `watchdog`.
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

/// Installs the TLS provider, for code that connects to other servers than the cluster.
pub fn install_tls_provider() {
    // Fails if a provider is already installed, which is just as good.
    let _ = rustls::crypto::aws_lc_rs::default_provider().install_default();
}

/// Connects to the cluster, with timeouts everywhere and the build as user agent.
///
/// Connection timeouts are not enough: a request whose connection breaks at the wrong moment can stay without
/// response, error and silent connection. So each request has its own timeout until the response begins.
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
        options.request_timeout.map_or(ANSWER, |request_timeout| request_timeout + ANSWER_MARGIN);
    let builder = ClientBuilder::try_from(config).context(UnusableSnafu)?;
    Ok(builder.with_layer(&TimeoutLayer::new(answer)).build())
}

async fn configuration(options: &ClusterOptions) -> Result<Config, Error> {
    let Some(file) = kubeconfig(options)? else {
        // No kubeconfig is specified: use the default one, or the pod's service account.
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

/// Loads the kubeconfig from the flag or the environment. As with kubectl, `KUBECONFIG` can list several files:
/// the first value wins, and missing files are skipped. `None` if neither specifies one.
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
