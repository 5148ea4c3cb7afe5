//! Registers the driver with the kubelet, as node-driver-registrar does.
//!
//! The kubelet watches a folder for sockets, and asks each one which plugin it belongs to.

mod authority;

use std::{
    io,
    os::unix::fs::PermissionsExt as _,
    path::{Path, PathBuf},
    time::Duration,
};

use runtime::checks::Check;
use snafu::{ResultExt as _, Snafu};
use tokio::{
    io::DuplexStream,
    net::UnixListener,
    sync::{mpsc, watch},
    task::JoinSet,
    time::sleep,
};
use tokio_stream::wrappers::ReceiverStream;
use tokio_util::sync::CancellationToken;
use tonic::{Request, Response, Status, transport::Server};

use crate::{
    DRIVER_NAME,
    proto::registration::{
        InfoRequest, PluginInfo, RegistrationStatus, RegistrationStatusResponse,
        registration_server::{Registration, RegistrationServer},
    },
};

/// How often the socket is looked for: a cleaned-up folder loses it.
const CHECK_INTERVAL: Duration = Duration::from_secs(2);
/// The pause before the kubelet gets another chance after a failed registration.
const RETRY_PAUSE: Duration = Duration::from_secs(2);

#[derive(Debug, Snafu)]
pub enum SocketError {
    #[snafu(display("cannot remove the socket {} of an earlier run", path.display()))]
    Remove { path: PathBuf, source: std::io::Error },
    #[snafu(display("cannot create the folder {}", path.display()))]
    Folder { path: PathBuf, source: std::io::Error },
    #[snafu(display("cannot listen on the socket {}: is the kubelet's folder mounted into the pod?", path.display()))]
    Listen { path: PathBuf, source: std::io::Error },
}

/// Listens on a socket that only root can use. Replaces the socket of an earlier run.
pub fn listen(path: &Path) -> Result<UnixListener, SocketError> {
    match std::fs::remove_file(path) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            return Err(error).context(RemoveSnafu { path });
        }
        _ => {}
    }
    if let Some(folder) = path.parent() {
        std::fs::create_dir_all(folder).context(FolderSnafu { path: folder })?;
    }
    let listener = UnixListener::bind(path).context(ListenSnafu { path })?;
    let private = std::fs::Permissions::from_mode(0o600);
    std::fs::set_permissions(path, private).context(ListenSnafu { path })?;
    Ok(listener)
}

/// Keeps the driver registered.
#[derive(Debug)]
pub struct Registrar {
    /// The folder that the kubelet watches.
    pub folder: PathBuf,
    /// The driver's socket, as the kubelet sees it.
    pub endpoint: PathBuf,
    /// Passes while the driver is registered.
    pub check: Check,
}

impl Registrar {
    pub fn socket(&self) -> PathBuf {
        self.folder.join(format!("{DRIVER_NAME}-reg.sock"))
    }

    /// Serves until `stop` is cancelled. The first socket must be creatable; later failures are retried.
    pub async fn run(self, first: UnixListener, stop: CancellationToken) {
        let mut listener = Some(first);
        while !stop.is_cancelled() {
            if let Some(listener) = listener.take() {
                self.serve(listener, &stop).await;
            }
            let _ = std::fs::remove_file(self.socket());
            if stop.run_until_cancelled(sleep(RETRY_PAUSE)).await.is_none() {
                break;
            }
            match listen(&self.socket()) {
                Ok(again) => listener = Some(again),
                Err(error) => {
                    let error = runtime::error_chain::error_chain(&error);
                    self.check.fail(error);
                }
            }
        }
        let _ = std::fs::remove_file(self.socket());
    }

    /// Serves one socket until the registration fails, the socket disappears, or `stop` is cancelled.
    async fn serve(&self, listener: UnixListener, stop: &CancellationToken) {
        let (answers, mut answer) = watch::channel(None);
        let service = RegistrationService { endpoint: self.endpoint.clone(), answers };
        let over = CancellationToken::new();
        let (connections, incoming) = mpsc::channel(1);
        let accepting = accept(listener, connections);
        let serving = Server::builder()
            .add_service(RegistrationServer::new(service))
            .serve_with_incoming_shutdown(ReceiverStream::new(incoming), over.cancelled());
        let watching = async {
            loop {
                tokio::select! {
                    () = stop.cancelled() => break,
                    () = sleep(CHECK_INTERVAL) => {
                        if !self.socket().exists() {
                            tracing::warn!("the registration socket disappeared; creating it again");
                            self.check.fail("the registration socket disappeared");
                            break;
                        }
                    }
                    changed = answer.changed() => {
                        if changed.is_err() {
                            break;
                        }
                        let answer = answer.borrow_and_update().clone();
                        match answer {
                            Some(Ok(())) => {
                                tracing::info!("the kubelet has registered the driver");
                                self.check.pass();
                            }
                            Some(Err(error)) => {
                                tracing::error!(error, "the kubelet could not register the driver");
                                self.check.fail(format!("the kubelet could not register the driver: {error}"));
                                break;
                            }
                            None => {}
                        }
                    }
                }
            }
            over.cancel();
        };
        let serving = async { tokio::join!(serving, watching).0 };
        let served = tokio::select! {
            served = serving => served,
            () = accepting => Ok(()),
        };
        if let Err(error) = served {
            tracing::error!(%error, "the registration server ended");
        }
    }
}

/// Hands the kubelet's connections to the server.
async fn accept(listener: UnixListener, connections: mpsc::Sender<io::Result<DuplexStream>>) {
    let mut work = JoinSet::new();
    loop {
        tokio::select! {
            accepted = listener.accept() => match accepted {
                Ok((connection, _)) => {
                    let (server, copying) = authority::rewrite(connection);
                    work.spawn(copying);
                    if connections.send(Ok(server)).await.is_err() {
                        std::future::pending::<()>().await;
                    }
                }
                Err(error) => {
                    tracing::warn!(%error, "cannot accept a connection of the kubelet");
                    sleep(RETRY_PAUSE).await;
                }
            },
            Some(_) = work.join_next() => {}
        }
    }
}

#[derive(Debug)]
struct RegistrationService {
    endpoint: PathBuf,
    answers: watch::Sender<Option<Result<(), String>>>,
}

#[tonic::async_trait]
impl Registration for RegistrationService {
    async fn get_info(
        &self,
        _request: Request<InfoRequest>,
    ) -> Result<Response<PluginInfo>, Status> {
        Ok(Response::new(PluginInfo {
            r#type: "CSIPlugin".to_owned(),
            name: DRIVER_NAME.to_owned(),
            endpoint: self.endpoint.display().to_string(),
            // The version of the CSI API that the kubelet speaks.
            supported_versions: vec!["1.0.0".to_owned()],
        }))
    }

    async fn notify_registration_status(
        &self,
        request: Request<RegistrationStatus>,
    ) -> Result<Response<RegistrationStatusResponse>, Status> {
        let status = request.into_inner();
        let answer = if status.plugin_registered { Ok(()) } else { Err(status.error) };
        self.answers.send_replace(Some(answer));
        Ok(Response::new(RegistrationStatusResponse {}))
    }
}
