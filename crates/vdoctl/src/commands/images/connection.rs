//! How to reach a registry.

use std::{fs, path::PathBuf};

use clap::Args;
use oci::{Client, ClientOptions, Credentials};

use crate::failure::{Failure, Outcome};

/// The connection to a registry.
#[derive(Args, Debug)]
pub(crate) struct Connection {
    /// The file with the credentials of registries, as docker login and skopeo login write it. The default is the
    /// file of these programs.
    #[arg(long, value_name = "FILE")]
    auth_file: Option<PathBuf>,
    /// A file with certificate authorities in PEM to trust in addition to those of the system.
    #[arg(long, value_name = "FILE")]
    ca_file: Option<PathBuf>,
    /// The proxy, instead of the one in the variables HTTPS_PROXY and HTTP_PROXY.
    #[arg(long, value_name = "URL")]
    proxy: Option<String>,
    /// Connect without TLS: neither content nor credentials are protected on their way.
    #[arg(long)]
    plain_http: bool,
}

impl Connection {
    pub(crate) fn client(&self) -> Outcome<Client> {
        let credentials = match &self.auth_file {
            Some(file) => Credentials::read(file),
            None => Credentials::usual(),
        };
        let credentials = credentials.map_err(failed("reading credentials"))?;
        let authorities = self.ca_file.as_ref().map(|path| {
            fs::read(path).map_err(|source| Failure::File {
                path: path.clone(),
                deed: "read",
                source,
            })
        });
        let authorities = authorities.transpose()?;
        let (proxy, plain_http) = (self.proxy.clone(), self.plain_http);
        let options = ClientOptions { credentials, authorities, proxy, plain_http };
        Client::new(options).map_err(failed("preparing the connection"))
    }
}

/// Adds the failed action to an error of a transfer.
pub(crate) fn failed(doing: &'static str) -> impl Fn(oci::Error) -> Failure {
    move |source| Failure::Images { doing, source: Box::new(source) }
}
