//! All vCenters together: looked at as one, each on its own.

use std::{
    collections::{BTreeMap, btree_map::Entry},
    net::IpAddr,
    sync::{Arc, PoisonError, RwLock},
};

use tokio::{sync::watch, task::JoinSet};
use tokio_util::sync::CancellationToken;
use vsphere::{BiosUuid, InstanceUuid};

use crate::{
    catalogue::{Catalogue, TagTable},
    configuration::Configuration,
    identity::Directory,
    model::{Place, VirtualMachine},
    pooled_vcenter::{Common, PooledVcenter},
    zones::{self, Zones},
};

/// The vCenters that are followed. Clones are one.
#[derive(Clone, Default)]
pub struct VcenterPool {
    state: Arc<RwLock<State>>,
}

#[derive(Default)]
struct State {
    configuration: Option<Arc<Configuration>>,
    /// Why the configuration that should be in use is not.
    unusable: Option<String>,
    pooled_vcenters: BTreeMap<Arc<str>, Serving>,
    /// Whom members give way to once it is followed.
    coming: BTreeMap<Arc<str>, Serving>,
}

/// A member and what ends it.
#[derive(Clone)]
struct Serving {
    pooled: Arc<PooledVcenter>,
    stop: CancellationToken,
}

/// The tasks behind a fleet; all end when this is dropped.
pub struct PoolSupervisor {
    pool: VcenterPool,
    tasks: JoinSet<()>,
}

impl VcenterPool {
    /// The configuration in use.
    pub fn configuration(&self) -> Option<Arc<Configuration>> {
        self.read().configuration.clone()
    }

    /// Why the configuration on disk is not the one in use, if it is not.
    pub fn unusable(&self) -> Option<String> {
        self.read().unusable.clone()
    }

    /// Notes whether the configuration on disk can be used.
    pub fn note_configuration(&self, unusable: Option<String>) {
        self.write().unusable = unusable;
    }

    /// The members in service.
    pub fn pooled_vcenters(&self) -> Vec<Arc<PooledVcenter>> {
        self.read().pooled_vcenters.values().map(|serving| serving.pooled.clone()).collect()
    }

    /// The member with this name.
    pub fn pooled(&self, name: &str) -> Option<Arc<PooledVcenter>> {
        self.read().pooled_vcenters.get(name).map(|serving| serving.pooled.clone())
    }

    /// What keeps the view from being whole: every vCenter that is not followed, with the reason.
    pub fn troubles(&self) -> Vec<(Arc<str>, String)> {
        let state = self.read();
        let coming = state.coming.iter().map(|(name, serving)| {
            let why = serving.pooled.trouble().unwrap_or_else(|| "about to be".into());
            (name.clone(), format!("its new settings are not in use yet: {why}"))
        });
        let own = state.pooled_vcenters.values().map(|serving| &serving.pooled);
        let own = own.filter_map(|m| Some((m.name().clone(), m.trouble()?)));
        let mut all: Vec<(Arc<str>, String)> = own.chain(coming).collect();
        if state.pooled_vcenters.is_empty() && all.is_empty() {
            all.push(("vCenter".into(), "none is configured".into()));
        }
        all
    }

    /// Whether one is still on its way to be followed for the first time.
    pub fn is_starting(&self) -> bool {
        let state = self.read();
        state.configuration.is_none()
            || state.pooled_vcenters.values().any(|s| s.pooled.is_starting())
    }

    /// Zone and region of a machine; `None` before the tags that decide were read. The machine's own are asked
    /// for only where they count; who waits for them is told by the member's signal.
    pub fn zones(&self, vm: &VirtualMachine) -> Option<Zones> {
        let configuration = self.configuration()?;
        let wanted = &configuration.categories;
        if wanted.is_empty() {
            return Some(Zones::default());
        }
        let (pooled, place) = (self.pooled(&vm.place.vcenter)?, &vm.place.vm);
        let ways_by = |tags: &TagTable| pooled.look(|c| c.ways(place, tags));
        let mut ways = ways_by(&*pooled.tags()?)?;
        if !zones::is_decided_above(&ways, wanted) {
            ways = ways_by(&*pooled.tags_with(place)?)?;
        }
        Some(zones::choose(&ways, wanted))
    }

    fn all<T>(&self, look: impl Fn(&Catalogue<'_>) -> Vec<T>) -> Vec<T> {
        self.pooled_vcenters().iter().filter_map(|pooled| pooled.look(&look)).flatten().collect()
    }

    fn read(&self) -> std::sync::RwLockReadGuard<'_, State> {
        self.state.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn write(&self) -> std::sync::RwLockWriteGuard<'_, State> {
        self.state.write().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Directory for VcenterPool {
    fn at(&self, place: &Place) -> Option<VirtualMachine> {
        self.pooled(&place.vcenter)?.look(|c| c.at(&place.vm))?
    }
    fn with_bios_uuid(&self, uuid: BiosUuid) -> Vec<VirtualMachine> {
        self.all(|c| c.with_bios_uuid(uuid))
    }
    fn with_instance_uuid(&self, uuid: InstanceUuid) -> Vec<VirtualMachine> {
        self.all(|c| c.with_instance_uuid(uuid))
    }
    fn with_dns_name(&self, name: &str) -> Vec<VirtualMachine> {
        self.all(|c| c.with_dns_name(name))
    }
    fn with_short_name(&self, name: &str) -> Vec<VirtualMachine> {
        self.all(|c| c.with_short_name(name))
    }
    fn with_address(&self, address: IpAddr) -> Vec<VirtualMachine> {
        self.all(|c| c.with_address(address))
    }
}

impl PoolSupervisor {
    /// Nobody yet.
    pub fn new(pool: VcenterPool) -> Self {
        Self { pool, tasks: JoinSet::new() }
    }

    /// Puts a configuration into service. A vCenter whose settings did not change goes on undisturbed;
    /// one whose settings changed is replaced only once the new connection has seen its inventory;
    /// one that is not configured any more is left. Whoever was on the way to replace it by an
    /// earlier configuration, and is not wanted by this one, never does.
    pub fn apply(&mut self, configuration: Configuration, common: &Common) {
        while self.tasks.try_join_next().is_some() {}
        for settings in &configuration.vcenters {
            let name = &settings.name;
            let fits = |serving: &Serving| serving.pooled.is_as(settings, common);
            let mut state = self.pool.write();
            if state.coming.get(name).is_some_and(fits) {
                continue;
            }
            let cancelled = state.coming.remove(name);
            if let Some(coming) = &cancelled {
                tracing::info!(vcenter = &**name, "its settings changed before they were in use");
                coming.stop.cancel();
            }
            if let Some(present) = state.pooled_vcenters.get(name).filter(|present| fits(present)) {
                if cancelled.is_some() {
                    common.metrics.vcenter(name, present.pooled.trouble().is_none());
                }
                continue;
            }
            drop(state);
            self.start(PooledVcenter::new(settings.clone(), common.clone()));
        }
        let wanted = |name: &Arc<str>| configuration.vcenters.iter().any(|v| v.name == *name);
        let mut state = self.pool.write();
        let gone: Vec<Arc<str>> =
            state.pooled_vcenters.keys().filter(|name| !wanted(name)).cloned().collect();
        for name in gone {
            tracing::info!(vcenter = &*name, "not configured any more");
            let State { pooled_vcenters, coming, .. } = &mut *state;
            for serving in pooled_vcenters.remove(&name).into_iter().chain(coming.remove(&name)) {
                serving.stop.cancel();
            }
            common.metrics.forget(&name);
        }
        state.configuration = Some(Arc::new(configuration));
    }

    /// Ends all and waits until nobody is left.
    pub async fn stop(&mut self) {
        {
            let state = self.pool.read();
            state
                .pooled_vcenters
                .values()
                .chain(state.coming.values())
                .for_each(|s| s.stop.cancel());
        }
        while self.tasks.join_next().await.is_some() {}
    }

    fn start(&mut self, pooled: Arc<PooledVcenter>) {
        let serving = Serving { pooled, stop: CancellationToken::new() };
        let Serving { pooled, stop } = serving.clone();
        let name = pooled.name().clone();
        let live = pooled.liveness();
        self.tasks.spawn(pooled.run(stop));
        let mut state = self.pool.write();
        let State { pooled_vcenters, coming, .. } = &mut *state;
        match pooled_vcenters.entry(name.clone()) {
            Entry::Vacant(place) => {
                place.insert(serving);
            }
            Entry::Occupied(_) => {
                tracing::info!(vcenter = &*name, "its settings changed; connecting anew");
                coming.insert(name, serving.clone());
                self.tasks.spawn(take_over(self.pool.clone(), serving, live));
            }
        }
    }
}

/// Puts a member into the place of the one with its name once it is followed; unless it is not
/// wanted any more by then.
async fn take_over(pool: VcenterPool, serving: Serving, mut live: watch::Receiver<bool>) {
    let followed = serving.stop.run_until_cancelled(live.wait_for(|live| *live)).await;
    if !matches!(followed, Some(Ok(_))) {
        return;
    }
    let name = serving.pooled.name();
    let mut state = pool.write();
    let is_this = |coming: &Serving| Arc::ptr_eq(&coming.pooled, &serving.pooled);
    // Looked at under the lock: it may have been cancelled a moment ago.
    if !state.coming.get(name).is_some_and(is_this) {
        return;
    }
    state.coming.remove(name);
    tracing::info!(vcenter = &**name, "the new settings are in use");
    if let Some(old) = state.pooled_vcenters.insert(name.clone(), serving.clone()) {
        old.stop.cancel();
    }
    drop(state);
    // What it said of itself until now was said while another stood in its place.
    serving.pooled.announce();
}
