//! The volumes of this cluster in one vCenter, as CNS last listed them and as this process changed them since.
//!
//! The index answers "is there a volume with this name" without a call. CNS does not enforce unique names, so the
//! answer must be right: the index is read at every connection, and again before it is trusted if another process
//! (another replica) has written operation records since.

use std::{
    collections::{BTreeMap, HashMap},
    sync::{
        Arc, Mutex, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard,
        atomic::{AtomicU64, Ordering},
    },
};

use vsphere::{
    Client, Error,
    cns::{QueryFilter, Volume},
};

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KnownVolume {
    pub id: Box<str>,
    pub name: Box<str>,
    pub capacity_mib: i64,
    pub datastore_url: Box<str>,
    /// Why the volume is not healthy.
    pub problem: Option<Box<str>>,
    pub is_block: bool,
}

impl From<Volume> for KnownVolume {
    fn from(volume: Volume) -> Self {
        let problem = problem(&volume);
        Self {
            id: volume.id.id.into(),
            name: volume.name.unwrap_or_default().into(),
            capacity_mib: volume.backing.map_or(0, |backing| backing.capacity_mib()),
            datastore_url: volume.datastore_url.unwrap_or_default().into(),
            problem,
            is_block: volume.kind.as_deref() != Some("FILE"),
        }
    }
}

/// CNS calls a healthy volume `green`. Older releases report nothing, which is no problem.
fn problem(volume: &Volume) -> Option<Box<str>> {
    if let Some(access) = volume.accessibility.as_deref()
        && access.eq_ignore_ascii_case("notAccessible")
    {
        return Some("its datastore is not accessible".into());
    }
    match volume.health.as_deref() {
        Some("red") => Some("vCenter reports the health red".into()),
        _ => None,
    }
}

#[derive(Debug, Default)]
pub struct VolumeIndex {
    state: RwLock<State>,
    /// Changes since a refresh began; applied again to its result. `None` without a refresh.
    journal: Mutex<Option<Vec<Change>>>,
    /// One refresh at a time.
    refreshing: tokio::sync::Mutex<()>,
    /// The count of foreign changes that the index covers.
    covers: AtomicU64,
}

#[derive(Debug, Default)]
struct State {
    by_id: BTreeMap<Box<str>, Arc<KnownVolume>>,
    by_name: HashMap<Box<str>, Box<str>>,
}

#[derive(Clone, Debug)]
enum Change {
    Set(Arc<KnownVolume>),
    Remove(Box<str>),
}

impl State {
    fn apply(&mut self, change: Change) {
        match change {
            Change::Set(volume) => {
                self.by_name.insert(volume.name.clone(), volume.id.clone());
                self.by_id.insert(volume.id.clone(), volume);
            }
            Change::Remove(id) => {
                if let Some(volume) = self.by_id.remove(&id)
                    && self.by_name.get(&volume.name) == Some(&id)
                {
                    self.by_name.remove(&volume.name);
                }
            }
        }
    }
}

impl VolumeIndex {
    /// Reads the volumes again if other processes changed them: `changes` counts their changes.
    pub async fn cover(
        &self,
        changes: u64,
        client: &Client,
        cluster_id: &str,
    ) -> Result<(), Error> {
        if self.covers.load(Ordering::Acquire) < changes {
            self.refresh(client, cluster_id).await?;
            self.covers.fetch_max(changes, Ordering::Release);
        }
        Ok(())
    }

    /// Reads all volumes of the cluster.
    pub async fn refresh(&self, client: &Client, cluster_id: &str) -> Result<(), Error> {
        let _one = self.refreshing.lock().await;
        *self.journal() = Some(Vec::new());
        let clusters = vec![cluster_id.to_owned()];
        let filter = QueryFilter { clusters, ..QueryFilter::default() };
        let listed = client.query_volumes(&filter).await;
        // Held until the new state is in place: no change is lost in between.
        let mut journal = self.journal();
        let changes = journal.take().unwrap_or_default();
        let mut state = State::default();
        for volume in listed? {
            state.apply(Change::Set(Arc::new(volume.into())));
        }
        for change in changes {
            state.apply(change);
        }
        *self.write() = state;
        Ok(())
    }

    pub fn get(&self, id: &str) -> Option<Arc<KnownVolume>> {
        self.read().by_id.get(id).cloned()
    }

    pub fn named(&self, name: &str) -> Option<Arc<KnownVolume>> {
        let state = self.read();
        state.by_id.get(state.by_name.get(name)?).cloned()
    }

    /// All volumes, sorted by id.
    pub fn all(&self) -> Vec<Arc<KnownVolume>> {
        self.read().by_id.values().cloned().collect()
    }

    pub fn set(&self, volume: KnownVolume) -> Arc<KnownVolume> {
        let volume = Arc::new(volume);
        self.change(Change::Set(Arc::clone(&volume)));
        volume
    }

    pub fn remove(&self, id: &str) {
        self.change(Change::Remove(id.into()));
    }

    fn change(&self, change: Change) {
        let mut journal = self.journal();
        if let Some(journal) = &mut *journal {
            journal.push(change.clone());
        }
        self.write().apply(change);
    }

    fn journal(&self) -> std::sync::MutexGuard<'_, Option<Vec<Change>>> {
        self.journal.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn read(&self) -> RwLockReadGuard<'_, State> {
        self.state.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn write(&self) -> RwLockWriteGuard<'_, State> {
        self.state.write().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn volume(id: &str, name: &str) -> KnownVolume {
        KnownVolume {
            id: id.into(),
            name: name.into(),
            capacity_mib: 1,
            datastore_url: "".into(),
            problem: None,
            is_block: true,
        }
    }

    #[test]
    fn a_removed_volume_does_not_hide_its_successor_of_the_same_name() {
        let index = VolumeIndex::default();
        index.set(volume("1", "pvc-a"));
        index.set(volume("2", "pvc-a"));
        index.remove("1");
        assert_eq!(index.named("pvc-a").unwrap().id, "2".into());
        index.remove("2");
        assert!(index.named("pvc-a").is_none());
    }
}
