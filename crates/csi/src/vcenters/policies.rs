//! The storage policies of one vCenter, cached.

use std::{
    collections::{HashMap, HashSet},
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use snafu::{ResultExt as _, Snafu};
use tokio::time::Instant;
use vsphere::{Client, MoRef};

use super::{Connection, Intervals, Purpose};

/// An unknown name is looked up at most this often for a new volume.
const MIN_AGE: Duration = Duration::from_secs(5);

#[derive(Debug, Snafu)]
pub enum PolicyError {
    #[snafu(display(
        "there is no storage policy \"{name}\" in the vCenter {vcenter}; known policies: {known}. Create it, or give the vSphere user the privilege StorageProfile.View on the vCenter (VDO-1505)"
    ))]
    Unknown { vcenter: String, name: String, known: String },
    #[snafu(display("cannot read the storage policies"))]
    Read { source: vsphere::Error },
}

/// The datastores of each vCenter that satisfy a policy; `None` without a policy. A vCenter without the policy has none,
/// unless all lack it.
pub async fn compatible_with(
    connections: &[Connection],
    policy: Option<&str>,
    purpose: Purpose,
) -> Result<Vec<Option<HashSet<MoRef>>>, PolicyError> {
    let Some(policy) = policy else { return Ok(vec![None; connections.len()]) };
    let (mut all, mut unknown, mut is_known) = (Vec::new(), None, false);
    for connection in connections {
        let datastores = match connection.policies.id(policy, purpose).await {
            Ok(id) => {
                is_known = true;
                HashSet::clone(&*connection.policies.datastores(&id, purpose).await?)
            }
            Err(error @ PolicyError::Unknown { .. }) => {
                unknown = Some(error);
                HashSet::new()
            }
            Err(error) => return Err(error),
        };
        all.push(Some(datastores));
    }
    match unknown {
        Some(error) if !is_known => Err(error),
        _ => Ok(all),
    }
}

/// The datastores that satisfy each policy, and when this was checked.
type Compatible = HashMap<String, (Instant, Arc<HashSet<MoRef>>)>;

#[derive(Debug)]
pub struct Policies {
    client: Client,
    intervals: Intervals,
    names: tokio::sync::Mutex<Names>,
    compatible: Mutex<Compatible>,
}

#[derive(Debug, Default)]
struct Names {
    read: Option<Instant>,
    ids: HashMap<String, String>,
}

impl Policies {
    pub fn new(client: Client, intervals: Intervals) -> Self {
        let (names, compatible) = (tokio::sync::Mutex::default(), Mutex::default());
        Self { client, intervals, names, compatible }
    }

    /// The id of a policy. Also accepts an id. A name that is not in the cache is looked up again soon.
    pub async fn id(&self, name: &str, purpose: Purpose) -> Result<String, PolicyError> {
        let fresh_for = self.intervals.fresh_for(purpose);
        let unknown_for = match purpose {
            Purpose::Placement => MIN_AGE,
            Purpose::Estimate => self.intervals.placement,
        };
        let mut names = self.names.lock().await;
        let age = names.read.map(|read| read.elapsed());
        let known = names.ids.contains_key(name);
        if age.is_none_or(|age| age >= fresh_for || (!known && age >= unknown_for)) {
            let policies = self.client.storage_policies().await.context(ReadSnafu)?;
            names.ids = policies.into_iter().map(|policy| (policy.name, policy.id)).collect();
            names.read = Some(Instant::now());
        }
        if let Some(id) = names.ids.get(name) {
            return Ok(id.clone());
        }
        if names.ids.values().any(|id| id == name) {
            return Ok(name.to_owned());
        }
        let mut known: Vec<&str> = names.ids.keys().map(String::as_str).collect();
        known.sort_unstable();
        let known = if known.is_empty() { "none".to_owned() } else { known.join(", ") };
        UnknownSnafu { vcenter: self.client.address(), name, known }.fail()
    }

    /// The datastores that satisfy a policy.
    pub async fn datastores(
        &self,
        policy: &str,
        purpose: Purpose,
    ) -> Result<Arc<HashSet<MoRef>>, PolicyError> {
        if let Some((read, known)) = self.compatible().get(policy)
            && read.elapsed() < self.intervals.fresh_for(purpose)
        {
            return Ok(Arc::clone(known));
        }
        let checked = self.client.compatible_datastores(policy, &[]).await.context(ReadSnafu)?;
        let compatible = checked.into_iter().filter(vsphere::pbm::Compatibility::is_compatible);
        let compatible: Arc<HashSet<MoRef>> = Arc::new(compatible.map(|c| c.datastore).collect());
        self.compatible().insert(policy.to_owned(), (Instant::now(), Arc::clone(&compatible)));
        Ok(compatible)
    }

    /// Forgets what is known about compatibility, after CNS contradicted it.
    pub fn forget(&self) {
        self.compatible().clear();
    }

    fn compatible(&self) -> std::sync::MutexGuard<'_, Compatible> {
        self.compatible.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
