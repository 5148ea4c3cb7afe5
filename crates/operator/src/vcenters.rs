//! The vCenters: for each VsphereCloudConfig one session and one inventory watch.
//!
//! A connection lives as long as its object and its Secret do not change. Credentials are tried once
//! for each version of the Secret: a wrong password is never tried again until somebody changes it.
//! What may pass (a vCenter that restarts, a right that is given later) is tried again with growing
//! pauses, on the same session where there is one.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use api::VsphereCloudConfigSpec;
use driver_config::credentials::Credential;
use jiff::Timestamp;
use runtime::{backoff::Backoff, build::BuildInfo};
use tokio::{sync::watch, task::JoinSet};
use vsphere::{
    Client, Credentials, Trust,
    inventory::{Inventory, Lookup, Selection, Status, Vm},
};

use crate::facts::{Machine, VcenterState};

/// What a connection is made from. Two that are equal lead to the same connection.
#[derive(Clone, Debug)]
pub struct Wanted {
    /// How to reach it.
    pub spec: VsphereCloudConfigSpec,
    /// Certificates to trust, if the spec names a bundle.
    pub ca_bundle: Option<String>,
    /// Whom to log in as.
    pub credential: Credential,
    /// Stands for the credential: equal if and only if it is.
    pub version: String,
    /// The revision of the Secret it was read from.
    pub revision: String,
}

impl PartialEq for Wanted {
    fn eq(&self, other: &Self) -> bool {
        let same_credential = self.version == other.version;
        same_credential && self.spec == other.spec && self.ca_bundle == other.ca_bundle
    }
}

/// What is known of a vCenter at present.
#[derive(Clone, Debug)]
pub struct Known {
    /// What came of trying.
    pub state: VcenterState,
    /// Since when.
    pub since: Timestamp,
    /// The credential that was proven last, and its version.
    pub proven: Option<(Credential, String)>,
    /// The inventory, while there is one.
    pub inventory: Option<Inventory>,
}

/// All vCenters.
#[derive(Debug)]
pub struct Vcenters {
    build: BuildInfo,
    connections: BTreeMap<String, Connection>,
    /// Told when anything about any vCenter changed.
    changed: Arc<watch::Sender<()>>,
}

#[derive(Debug)]
struct Connection {
    wanted: Wanted,
    known: watch::Sender<Known>,
    _task: JoinSet<()>,
}

impl Vcenters {
    /// None yet.
    pub fn new(build: BuildInfo, changed: Arc<watch::Sender<()>>) -> Self {
        Self { build, connections: BTreeMap::new(), changed }
    }

    /// Connects to what is wanted and not connected, and lets go of what is not wanted any more.
    pub fn follow(&mut self, wanted: BTreeMap<String, Wanted>) {
        self.connections.retain(|name, _| wanted.contains_key(name));
        for (name, wanted) in wanted {
            let before = self.connections.get_mut(&name);
            if let Some(same) = before.filter(|connection| connection.wanted == wanted) {
                same.wanted.revision = wanted.revision;
                continue;
            }
            let before = self.connections.get(&name);
            // What was proven before stays with the drivers until the new is proven too.
            let proven = before.and_then(|connection| connection.known.borrow().proven.clone());
            let known = watch::Sender::new(Known {
                state: VcenterState::Untried,
                since: Timestamp::now(),
                proven,
                inventory: None,
            });
            let mut task = JoinSet::new();
            task.spawn(keep(wanted.clone(), self.build, known.clone(), self.changed.clone()));
            self.connections.insert(name, Connection { wanted, known, _task: task });
        }
    }

    /// What is known of one.
    pub fn known(&self, name: &str) -> Option<Known> {
        self.connections.get(name).map(|connection| connection.known.borrow().clone())
    }

    /// What one was made from.
    pub fn wanted(&self, name: &str) -> Option<&Wanted> {
        self.connections.get(name).map(|connection| &connection.wanted)
    }

    /// Where the machine with this firmware uuid is.
    pub fn machine(&self, system_uuid: &str) -> Machine {
        let Ok(uuid) = system_uuid.parse() else {
            return Machine::Unknown("the node does not say its system uuid".into());
        };
        let mut doubt = None;
        for (name, connection) in &self.connections {
            let known = connection.known.borrow();
            let Some(inventory) = &known.inventory else {
                doubt = Some(format!("{name} is not connected"));
                continue;
            };
            match inventory.view().vm_by_bios_uuid(uuid) {
                Lookup::Found(_) | Lookup::Several(_) => return Machine::Found(name.clone()),
                Lookup::Departed(_) => doubt = Some(format!("it left the view of {name}")),
                Lookup::Unseen => {}
            }
            if !matches!(inventory.status(), Status::Live) {
                doubt = Some(format!("{name} is away"));
            }
        }
        doubt.map_or(Machine::Missing, Machine::Unknown)
    }

    /// Ends all sessions.
    pub fn forget_all(&mut self) {
        self.connections.clear();
    }
}

/// Connects and stays connected until dropped.
async fn keep(
    wanted: Wanted,
    build: BuildInfo,
    known: watch::Sender<Known>,
    changed: Arc<watch::Sender<()>>,
) {
    let tell = |state: VcenterState, inventory: Option<Inventory>, proven: bool| {
        known.send_modify(|now| {
            if std::mem::discriminant(&now.state) != std::mem::discriminant(&state) {
                now.since = Timestamp::now();
            }
            now.state = state;
            now.inventory = inventory;
            if proven {
                now.proven = Some((wanted.credential.clone(), wanted.version.clone()));
            }
        });
        changed.send_replace(());
    };
    let backoff = Backoff::new(Duration::from_secs(2), Duration::from_mins(2));
    loop {
        let failed = match connect(&wanted, build).await {
            Ok(client) => stay(&client, &wanted, &backoff, &tell).await,
            Err(error) => error,
        };
        tell(failure(&failed), None, false);
        tracing::warn!(vcenter = %wanted.spec.vc_ip, error = failed.story(), "vCenter not verified");
        if may_log_in(&failed) {
            return std::future::pending().await;
        }
        tokio::time::sleep(backoff.failed(())).await;
    }
}

/// Whether another attempt to connect would log in with what was refused already. What fails before
/// a login (no answer, a certificate, something that is no vCenter) may be tried as often as one
/// likes, and is found mended without anybody telling.
fn may_log_in(failed: &vsphere::Error) -> bool {
    use vsphere::Error;
    let before = matches!(
        failed,
        Error::Certificate { .. } | Error::NotTls { .. } | Error::NotVcenter { .. }
    );
    !(failed.is_transient() || before)
}

/// Follows the inventory on one session, through everything but a refused login: what a user may see
/// changes, datacenters come and go, and none of it needs another session.
async fn stay(
    client: &Client,
    wanted: &Wanted,
    backoff: &Backoff<()>,
    tell: &impl Fn(VcenterState, Option<Inventory>, bool),
) -> Arc<vsphere::Error> {
    loop {
        if let Err(failed) = follow(client, wanted, tell).await {
            if matches!(*failed, vsphere::Error::LoginRefused { .. }) {
                return failed;
            }
            tell(failure(&failed), None, false);
        }
        tokio::time::sleep(backoff.failed(())).await;
    }
}

async fn connect(wanted: &Wanted, build: BuildInfo) -> Result<Client, Arc<vsphere::Error>> {
    let trust = match (&wanted.spec.thumbprint, &wanted.ca_bundle) {
        _ if wanted.spec.insecure => Trust::Insecure,
        (Some(thumbprint), _) => match thumbprint.0.parse() {
            Ok(thumbprint) => Trust::Thumbprint(thumbprint),
            Err(_) => Trust::System,
        },
        (None, Some(bundle)) => Trust::CaBundle(bundle.clone()),
        (None, None) => Trust::System,
    };
    let credentials = Credentials::new(
        wanted.credential.username.as_str(),
        wanted.credential.password.expose().to_owned(),
    );
    Client::builder(wanted.spec.vc_ip.0.as_str())
        .trust(trust)
        .credentials(credentials)
        .user_agent(build.user_agent())
        .connect()
        .await
        .map_err(Arc::new)
}

/// Watches the inventory and tells what becomes of it.
async fn follow(
    client: &Client,
    wanted: &Wanted,
    tell: &impl Fn(VcenterState, Option<Inventory>, bool),
) -> Result<(), Arc<vsphere::Error>> {
    let selection =
        Selection::new().vms(&[Vm::IDENTITY]).in_datacenters(wanted.spec.datacenter_names());
    let watch = client.watch(selection);
    let inventory = watch.inventory().clone();
    let mut events = inventory.events();
    inventory.ready().await?;
    let about = client.about().map_err(Arc::new)?;
    let verified = VcenterState::Verified {
        version: about.version.clone(),
        api_version: about.api_version.clone(),
        build: about.build.clone(),
        instance_uuid: about.instance_uuid.unwrap_or_default(),
        product: about.full_name.clone(),
    };
    tell(verified.clone(), Some(inventory.clone()), true);
    while let Some(_event) = events.next().await {
        let state = match inventory.status() {
            Status::Unreachable(error) if !error.is_transient() => return Err(error),
            Status::Unreachable(error) => failure(&error),
            Status::Live | Status::Starting => verified.clone(),
            Status::Ended => break,
        };
        tell(state, Some(inventory.clone()), false);
    }
    Ok(())
}

fn failure(error: &vsphere::Error) -> VcenterState {
    VcenterState::Failed {
        reason: camel(error.kind()),
        message: error.story(),
        transient: error.is_transient(),
    }
}

/// `login_refused` as a condition's reason: `LoginRefused`.
fn camel(kind: &str) -> String {
    kind.split('_')
        .map(|word| {
            let mut letters = word.chars();
            letters.next().map(|first| first.to_uppercase().collect::<String>() + letters.as_str())
        })
        .map(Option::unwrap_or_default)
        .collect()
}
