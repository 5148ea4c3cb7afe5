//! Runs the command of the command line.

use crate::{
    arguments::{self, VdoctlCommand},
    critical::interrupted,
    failure::{Failure, Outcome},
    options::Global,
    screen::Screen,
};

/// Runs a command. Local commands do not start the async runtime.
pub(crate) fn run(global: &Global, task: VdoctlCommand, screen: &Screen) -> Outcome {
    match task {
        VdoctlCommand::Completion(task) => task.run(arguments::command(), screen),
        VdoctlCommand::Explain(task) => task.run(screen),
        VdoctlCommand::Prepare(task) => task.run(screen),
        VdoctlCommand::Catalog(task) if task.is_local() => task.local(screen),
        VdoctlCommand::Version(task) if task.is_local() => task.local(screen),
        task => {
            let runtime = tokio::runtime::Builder::new_multi_thread()
                .worker_threads(2)
                .enable_all()
                .build()
                .map_err(|source| Failure::Other {
                    text: "cannot start threads".into(),
                    source: source.into(),
                })?;
            let outcome = runtime.block_on(async {
                tokio::select! {
                    outcome = networked(global, task, screen) => outcome,
                    () = interrupted(screen) => Err(Failure::Stopped),
                }
            });
            // Do not wait for pending requests.
            runtime.shutdown_background();
            outcome
        }
    }
}

async fn networked(global: &Global, task: VdoctlCommand, screen: &Screen) -> Outcome {
    runtime::kubernetes::install_tls_provider();
    match task {
        VdoctlCommand::Deploy(task) => task.run(global, screen).await,
        VdoctlCommand::Configure(task) => task.run(global, screen).await,
        VdoctlCommand::Update(task) => task.run(global, screen).await,
        VdoctlCommand::Status(task) => task.run(global, screen).await,
        VdoctlCommand::Doctor(task) => task.run(global, screen).await,
        VdoctlCommand::Fix(task) => Box::pin(task.run(global, screen)).await,
        VdoctlCommand::StorageClass(task) => Box::pin(task.run(global, screen)).await,
        VdoctlCommand::Test(task) => Box::pin(task.run(global, screen)).await,
        VdoctlCommand::Plan(task) => task.run(global, screen).await,
        VdoctlCommand::Versions(task) => task.run(global, screen).await,
        VdoctlCommand::Upgrade(task) => Box::pin(task.run(global, screen)).await,
        VdoctlCommand::Adopt(task) => Box::pin(task.run(global, screen)).await,
        VdoctlCommand::Move(task) => Box::pin(task.run(global, screen)).await,
        VdoctlCommand::Remove(task) => Box::pin(task.run(global, screen)).await,
        VdoctlCommand::Images(task) => task.run(global, screen).await,
        VdoctlCommand::SupportBundle(task) => task.run(global, screen).await,
        VdoctlCommand::Version(task) => task.run(global, screen).await,
        VdoctlCommand::Completion(task) => task.run(arguments::command(), screen),
        VdoctlCommand::Explain(task) => task.run(screen),
        VdoctlCommand::Prepare(task) => task.run(screen),
        VdoctlCommand::Catalog(task) => task.run(global, screen).await,
    }
}
