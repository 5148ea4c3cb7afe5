//! The gRPC server on a unix socket.

use std::path::{Path, PathBuf};

use snafu::{ResultExt as _, Snafu};
use tokio::net::UnixListener;
use tokio_stream::wrappers::UnixListenerStream;
use tokio_util::sync::CancellationToken;
use tonic::transport::server::Router;

#[derive(Debug, Snafu)]
pub enum Error {
    #[snafu(display(
        "the endpoint \"{endpoint}\" is not a unix socket; write it as unix:///csi/csi.sock"
    ))]
    Endpoint { endpoint: String },
    #[snafu(display("cannot listen on the socket {}", path.display()))]
    Listen { path: PathBuf, source: std::io::Error },
    #[snafu(display("the gRPC server on {} ended", path.display()))]
    Serve { path: PathBuf, source: tonic::transport::Error },
}

/// The path of an endpoint: `unix:///csi/csi.sock`, `unix:/csi/csi.sock` or a plain absolute path.
pub fn socket_path(endpoint: &str) -> Result<PathBuf, Error> {
    let path = endpoint
        .strip_prefix("unix://")
        .or_else(|| endpoint.strip_prefix("unix:"))
        .unwrap_or(endpoint);
    if path.starts_with('/') { Ok(path.into()) } else { EndpointSnafu { endpoint }.fail() }
}

/// A socket that is bound but not yet served.
#[derive(Debug)]
pub struct Socket {
    listener: UnixListener,
    path: PathBuf,
}

impl Socket {
    /// Binds. Replaces a socket that an earlier run left behind.
    pub fn bind(path: &Path) -> Result<Self, Error> {
        match std::fs::remove_file(path) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                return Err(error).context(ListenSnafu { path });
            }
            _ => {}
        }
        let listener = UnixListener::bind(path).context(ListenSnafu { path })?;
        Ok(Self { listener, path: path.to_owned() })
    }

    /// Serves until `stop` is cancelled, completes the calls in progress, and removes the socket.
    pub async fn serve(self, router: Router, stop: CancellationToken) -> Result<(), Error> {
        let incoming = UnixListenerStream::new(self.listener);
        let served = router.serve_with_incoming_shutdown(incoming, stop.cancelled_owned()).await;
        // It may be gone already.
        let _ = std::fs::remove_file(&self.path);
        served.context(ServeSnafu { path: self.path })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn endpoints_are_unix_sockets() {
        for endpoint in ["unix:///csi/csi.sock", "unix:/csi/csi.sock", "/csi/csi.sock"] {
            assert_eq!(socket_path(endpoint).unwrap(), Path::new("/csi/csi.sock"));
        }
        let error = socket_path("tcp://0.0.0.0:1").unwrap_err();
        assert!(error.to_string().contains("unix:///csi/csi.sock"), "{error}");
    }
}
