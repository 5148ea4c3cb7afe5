//! A vCenter: our simulator with an inventory, levers and counters.

mod inventory;
mod levers;

use std::{net::SocketAddr, path::Path, time::Duration};

use serde::Deserialize;

pub use self::{
    inventory::{
        Category, Cluster, Datacenter, Datastore, Host, Inventory, Nic, Permission, Role, Tag,
        VcenterUser, Vm,
    },
    levers::{Calls, Fault, SessionCalls},
};
use crate::{
    authority::{Authority, Identity},
    error::{Error, must},
    install_tls_provider,
    ports::Port,
    process::Process,
    workdir::Workdir,
};

/// A running simulator with its own certificate. It stops when dropped.
pub struct Vcenter {
    process: Process,
    address: SocketAddr,
    control: String,
    http: reqwest::Client,
    authority: Authority,
    identity: Identity,
    user: VcenterUser,
    port: Option<Port>,
    workdir: Workdir,
}

/// The options of a simulator.
#[derive(Debug)]
pub struct VcenterBuilder {
    inventory: Inventory,
    listen: Option<String>,
    names: Vec<String>,
    expired: bool,
}

#[derive(Deserialize)]
struct Ready {
    url: String,
    control: String,
}

impl VcenterBuilder {
    /// Listens on this loopback address (for example `[::1]:0`) instead of a reserved port of 127.0.0.1.
    #[must_use]
    pub fn listen(mut self, address: &str) -> Self {
        self.listen = Some(address.to_owned());
        // Its certificate is also for this address.
        let host = address.rsplit_once(':').map_or(address, |(host, _)| host);
        if !self.names.iter().any(|name| name == host) {
            self.names.push(host.to_owned());
        }
        self
    }

    /// Uses a certificate for these names instead of its address and `localhost`.
    #[must_use]
    pub fn certificate_for(mut self, names: &[&str]) -> Self {
        self.names = names.iter().map(ToString::to_string).collect();
        self
    }

    /// Uses a certificate that expired yesterday.
    #[must_use]
    pub fn with_expired_certificate(mut self) -> Self {
        self.expired = true;
        self
    }

    /// # Panics
    /// If it cannot be built or rejects the inventory, with its last log lines.
    pub async fn start(self) -> Vcenter {
        must(self.launch().await)
    }

    /// Like [`Self::start`], but returns the error.
    pub async fn launch(self) -> Result<Vcenter, Error> {
        install_tls_provider();
        let workdir = Workdir::new("vcenter")?;
        let authority = Authority::new("vcenter-authority")?;
        let names: Vec<&str> = self.names.iter().map(String::as_str).collect();
        let identity =
            if self.expired { authority.expired_server(&names) } else { authority.server(&names) }?;
        let inventory = serde_json::to_vec(&self.inventory).expect("an inventory is plain data");
        let port = self.listen.is_none().then(Port::reserve).transpose()?;
        let own = port.as_ref().map(|port| format!("127.0.0.1:{}", port.number));
        let listen = self.listen.or(own).unwrap_or_default();
        let arguments = [
            format!("-listen={listen}"),
            "-control=127.0.0.1:0".into(),
            format!("-inventory={}", workdir.write("inventory.json", inventory)?.display()),
            format!("-cert={}", workdir.write("server.crt", &identity.certificate)?.display()),
            format!("-key={}", workdir.write("server.key", &identity.key)?.display()),
        ];
        let process = Process::spawn_peer("vcsim", "vcsim", arguments, &workdir)?;
        let ready: Ready = process
            .ready(Duration::from_mins(4), async || {
                let output = process.output();
                let line = output.lines().next().unwrap_or_default();
                serde_json::from_str(line).map_err(|_| "it is not ready yet")
            })
            .await?;
        let host = ready.url.trim_start_matches("https://").trim_end_matches("/sdk");
        let user = self.inventory.users.first().cloned().unwrap_or_default();
        Ok(Vcenter {
            process,
            address: host.parse().expect("the simulator says its address"),
            control: ready.control,
            http: reqwest::Client::new(),
            authority,
            identity,
            user,
            port,
            workdir,
        })
    }
}

impl Vcenter {
    /// Starts a vCenter with this inventory.
    ///
    /// # Panics
    /// If it cannot be built or rejects the inventory, with its last log lines.
    pub async fn start(inventory: Inventory) -> Self {
        Self::builder(inventory).start().await
    }

    /// A vCenter with this inventory and more options.
    pub fn builder(inventory: Inventory) -> VcenterBuilder {
        VcenterBuilder {
            inventory,
            listen: None,
            names: vec!["localhost".into(), "127.0.0.1".into(), "::1".into()],
            expired: false,
        }
    }

    /// Replaces it by another vCenter at the same address, like a new installation.
    ///
    /// # Panics
    /// If it cannot be started, with its last log lines.
    pub async fn replace(&mut self, inventory: Inventory) {
        self.process.kill();
        let new = Self::builder(inventory).listen(&self.address.to_string()).start().await;
        let port = self.port.take();
        *self = Self { port, ..new };
    }

    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// The CA of its certificate, PEM.
    pub fn ca_pem(&self) -> String {
        self.authority.certificate()
    }

    /// The SHA-1 thumbprint of its certificate, as in vSphere.
    pub fn thumbprint_sha1(&self) -> String {
        self.identity.thumbprint_sha1()
    }

    /// The SHA-256 thumbprint of its certificate.
    pub fn thumbprint_sha256(&self) -> String {
        self.identity.thumbprint_sha256()
    }

    /// The name of the first user in its inventory; any name if there is none.
    pub fn user(&self) -> &str {
        &self.user.name
    }

    /// The password of [`Vcenter::user`].
    pub fn password(&self) -> &str {
        &self.user.password
    }

    pub fn process(&self) -> &Process {
        &self.process
    }

    pub fn folder(&self) -> &Path {
        self.workdir.path()
    }

    /// The base address of the control port.
    pub fn control_url(&self) -> &str {
        &self.control
    }
}
