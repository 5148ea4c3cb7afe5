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
pub(crate) mod relocate;
pub(crate) mod remove;
pub(crate) mod status;
pub(crate) mod support_bundle;
pub(crate) mod upgrade;
pub(crate) mod version;
pub(crate) mod versions;

use std::collections::BTreeSet;

use k8s_openapi::api::{apps::v1::Deployment, core::v1::Namespace};
use kube::Api;
use serde::Serialize;

use crate::{
    arguments::{Form, Global, Task},
    cluster::Cluster,
    failure::{Doing as _, Failure, Outcome},
    screen::Screen,
};

/// The namespaces beside the usual ones in which the operator that is there may adopt drivers, or one that
/// was there has adopted some.
async fn driver_namespaces(cluster: &Cluster) -> Outcome<BTreeSet<String>> {
    let deployments = Api::<Deployment>::namespaced(cluster.client.clone(), api::NAMESPACE);
    let operator = deployments.get_opt("vdo").await.doing("reading the operator's Deployment")?;
    let mut all = operator.as_ref().map(operator::install::more_homes).unwrap_or_default();
    let recorded = operator::observe::recorded_homes(&cluster.client, api::NAMESPACE).await;
    match recorded {
        // Whoever may deploy need not be let into what is written down.
        Err(kube::Error::Api(status)) if status.code == 403 => {}
        recorded => all.extend(recorded.doing("reading what the operator has written down")?),
    }
    all.retain(|namespace| !operator::homes::has(namespace));
    let namespaces = Api::<Namespace>::all(cluster.client.clone());
    let mut there = BTreeSet::new();
    for namespace in all {
        if namespaces.get_opt(&namespace).await.doing("reading a namespace")?.is_some() {
            there.insert(namespace);
        }
    }
    Ok(there)
}

/// Runs a command. Those that need no network start none of it.
pub(crate) fn run(global: &Global, task: Task, screen: &Screen) -> Outcome {
    match task {
        Task::Completion(task) => task.run(screen),
        Task::Explain(task) => task.run(screen),
        Task::Catalog(task) if task.is_local() => task.local(screen),
        Task::Version(task) if task.is_local() => task.local(screen),
        task => {
            let runtime = tokio::runtime::Builder::new_multi_thread()
                .worker_threads(2)
                .enable_all()
                .build()
                .map_err(|source| Failure::Other {
                    text: "no threads can be started".into(),
                    source: source.into(),
                })?;
            let outcome = runtime.block_on(async {
                tokio::select! {
                    outcome = networked(global, task, screen) => outcome,
                    () = crate::critical::interrupted(screen) => Err(Failure::Stopped),
                }
            });
            // Whoever still waits for a network that is away is not waited for.
            runtime.shutdown_background();
            outcome
        }
    }
}

async fn networked(global: &Global, task: Task, screen: &Screen) -> Outcome {
    runtime::kubernetes::install_tls_provider();
    match task {
        Task::Deploy(task) => task.run(global, screen).await,
        Task::Configure(task) => task.run(global, screen).await,
        Task::Update(task) => task.run(global, screen).await,
        Task::Status(task) => task.run(global, screen).await,
        Task::Doctor(task) => task.run(global, screen).await,
        Task::Fix(task) => task.run(global, screen).await,
        Task::Plan(task) => task.run(global, screen).await,
        Task::Versions(task) => task.run(global, screen).await,
        Task::Upgrade(task) => Box::pin(task.run(global, screen)).await,
        Task::Adopt(task) => Box::pin(task.run(global, screen)).await,
        Task::Move(task) => Box::pin(task.run(global, screen)).await,
        Task::Remove(task) => Box::pin(task.run(global, screen)).await,
        Task::Images(task) => task.run(global, screen).await,
        Task::SupportBundle(task) => task.run(global, screen).await,
        Task::Version(task) => task.run(global, screen).await,
        Task::Completion(task) => task.run(screen),
        Task::Explain(task) => task.run(screen),
        Task::Catalog(task) => task.run(global, screen).await,
    }
}

/// A value in a form for programs.
pub(crate) fn formatted(form: Form, value: &impl Serialize) -> Outcome<String> {
    let failed = |source: Box<dyn std::error::Error + Send + Sync>| Failure::Other {
        text: "the answer cannot be written".into(),
        source,
    };
    match form {
        Form::Json => serde_json::to_string_pretty(value)
            .map(|text| text + "\n")
            .map_err(|error| failed(error.into())),
        Form::Yaml => serde_saphyr::to_string(value).map_err(|error| failed(error.into())),
    }
}
