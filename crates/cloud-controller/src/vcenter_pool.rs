//! The vCenter pool: all configured vCenters, searched as one and connected independently.

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
    configuration::{Configuration, Vcenter},
    identity::VmLookup,
    model::{VirtualMachine, VmRef},
    pooled_vcenter::{PooledVcenter, SharedSettings},
    zones::{self, Zones},
};

/// Clones share one pool.
#[derive(Clone, Default)]
pub struct VcenterPool {
    state: Arc<RwLock<State>>,
}

#[derive(Default)]
struct State {
    configuration: Option<Arc<Configuration>>,
    /// Why the configuration on disk is not in use.
    configuration_problem: Option<String>,
    pooled_vcenters: BTreeMap<Arc<str>, PoolEntry>,
    /// Replacements of pooled vCenters, until their inventory is live.
    pending: BTreeMap<Arc<str>, PoolEntry>,
}

#[derive(Clone)]
struct PoolEntry {
    pooled: Arc<PooledVcenter>,
    stop: CancellationToken,
}

/// Runs the tasks of a vCenter pool; dropping it ends them all.
pub struct PoolSupervisor {
    pool: VcenterPool,
    tasks: JoinSet<()>,
}

impl VcenterPool {
    pub fn configuration(&self) -> Option<Arc<Configuration>> {
        self.read().configuration.clone()
    }

    pub fn configuration_problem(&self) -> Option<String> {
        self.read().configuration_problem.clone()
    }

    pub fn set_configuration_problem(&self, configuration_problem: Option<String>) {
        self.write().configuration_problem = configuration_problem;
    }

    pub fn pooled_vcenters(&self) -> Vec<Arc<PooledVcenter>> {
        self.read().pooled_vcenters.values().map(|entry| entry.pooled.clone()).collect()
    }

    pub fn pooled(&self, name: &str) -> Option<Arc<PooledVcenter>> {
        self.read().pooled_vcenters.get(name).map(|entry| entry.pooled.clone())
    }

    /// Every vCenter whose inventory is not current, with the reason.
    pub fn problems(&self) -> Vec<(Arc<str>, String)> {
        let state = self.read();
        let pending = state.pending.iter().map(|(name, entry)| {
            let why = entry.pooled.problem().unwrap_or_else(|| "they are about to be used".into());
            (name.clone(), format!("the new settings are not in use yet: {why}"))
        });
        let own = state.pooled_vcenters.values().map(|entry| &entry.pooled);
        let own = own.filter_map(|m| Some((m.name().clone(), m.problem()?)));
        let mut all: Vec<(Arc<str>, String)> = own.chain(pending).collect();
        if state.pooled_vcenters.is_empty() && all.is_empty() {
            all.push(("vCenter".into(), "none is configured".into()));
        }
        all
    }

    /// Whether a vCenter neither connected nor failed yet.
    pub fn is_starting(&self) -> bool {
        let state = self.read();
        state.configuration.is_none()
            || state.pooled_vcenters.values().any(|s| s.pooled.is_starting())
    }

    /// Zone and region of a VM; `None` until the tags that decide are read. The VM's own tags are read
    /// only if they count; the pooled vCenter then sends a signal.
    pub fn zones(&self, vm: &VirtualMachine) -> Option<Zones> {
        let configuration = self.configuration()?;
        let wanted = &configuration.categories;
        if wanted.is_empty() {
            return Some(Zones::default());
        }
        let (pooled, vm_ref) = (self.pooled(&vm.vm_ref.vcenter)?, &vm.vm_ref.vm);
        let paths_with = |tags: &TagTable| pooled.with_catalogue(|c| c.paths(vm_ref, tags));
        let mut paths = paths_with(&*pooled.tags()?)?;
        if !zones::is_decided_without_vm_tags(&paths, wanted) {
            paths = paths_with(&*pooled.tags_including(vm_ref)?)?;
        }
        Some(zones::choose(&paths, wanted))
    }

    fn search<T>(&self, find: impl Fn(&Catalogue<'_>) -> Vec<T>) -> Vec<T> {
        self.pooled_vcenters()
            .iter()
            .filter_map(|pooled| pooled.with_catalogue(&find))
            .flatten()
            .collect()
    }

    fn read(&self) -> std::sync::RwLockReadGuard<'_, State> {
        self.state.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn write(&self) -> std::sync::RwLockWriteGuard<'_, State> {
        self.state.write().unwrap_or_else(PoisonError::into_inner)
    }
}

impl VmLookup for VcenterPool {
    fn at(&self, vm_ref: &VmRef) -> Option<VirtualMachine> {
        self.pooled(&vm_ref.vcenter)?.with_catalogue(|c| c.at(&vm_ref.vm))?
    }
    fn with_bios_uuid(&self, uuid: BiosUuid) -> Vec<VirtualMachine> {
        self.search(|c| c.with_bios_uuid(uuid))
    }
    fn with_instance_uuid(&self, uuid: InstanceUuid) -> Vec<VirtualMachine> {
        self.search(|c| c.with_instance_uuid(uuid))
    }
    fn with_dns_name(&self, name: &str) -> Vec<VirtualMachine> {
        self.search(|c| c.with_dns_name(name))
    }
    fn with_short_name(&self, name: &str) -> Vec<VirtualMachine> {
        self.search(|c| c.with_short_name(name))
    }
    fn with_address(&self, address: IpAddr) -> Vec<VirtualMachine> {
        self.search(|c| c.with_address(address))
    }
}

impl PoolSupervisor {
    pub fn new(pool: VcenterPool) -> Self {
        Self { pool, tasks: JoinSet::new() }
    }

    /// Applies a configuration. A vCenter with unchanged settings stays connected. A vCenter with
    /// changed settings is replaced after the new connection has read the inventory. A vCenter that
    /// is no longer configured is disconnected. A pending replacement from an earlier configuration
    /// that does not match this one is cancelled.
    pub fn apply(&mut self, configuration: Configuration, shared: &SharedSettings) {
        while self.tasks.try_join_next().is_some() {}
        for settings in &configuration.vcenters {
            self.apply_settings(settings, shared);
        }
        self.activate(configuration, shared);
    }

    fn apply_settings(&mut self, settings: &Vcenter, shared: &SharedSettings) {
        let name = &settings.name;
        let has_settings = |entry: &PoolEntry| entry.pooled.has_settings(settings, shared);
        let mut state = self.pool.write();
        if state.pending.get(name).is_some_and(has_settings) {
            return;
        }
        let cancelled = state.pending.remove(name);
        if let Some(pending) = &cancelled {
            tracing::info!(
                vcenter = &**name,
                "the settings changed again before the new ones were in use"
            );
            pending.stop.cancel();
        }
        let current = state.pooled_vcenters.get(name).filter(|entry| has_settings(entry));
        if let Some(current) = current {
            if cancelled.is_some() {
                shared.metrics.vcenters.set_live(name, current.pooled.problem().is_none());
            }
            return;
        }
        drop(state);
        self.start(PooledVcenter::new(settings.clone(), shared.clone()));
    }

    /// Removes vCenters that are no longer configured, and sets the configuration, under one lock.
    fn activate(&self, configuration: Configuration, shared: &SharedSettings) {
        let is_configured =
            |name: &Arc<str>| configuration.vcenters.iter().any(|v| v.name == *name);
        let mut state = self.pool.write();
        let State { pooled_vcenters, pending, .. } = &mut *state;
        pooled_vcenters.retain(|name, entry| {
            if is_configured(name) {
                return true;
            }
            tracing::info!(vcenter = &**name, "no longer configured");
            entry.stop.cancel();
            if let Some(replacement) = pending.remove(name) {
                replacement.stop.cancel();
            }
            shared.metrics.forget(name);
            false
        });
        state.configuration = Some(Arc::new(configuration));
    }

    /// Stops all vCenters and waits for their tasks.
    pub async fn stop(&mut self) {
        {
            let state = self.pool.read();
            state
                .pooled_vcenters
                .values()
                .chain(state.pending.values())
                .for_each(|s| s.stop.cancel());
        }
        while self.tasks.join_next().await.is_some() {}
    }

    fn start(&mut self, pooled: Arc<PooledVcenter>) {
        let entry = PoolEntry { pooled, stop: CancellationToken::new() };
        let PoolEntry { pooled, stop } = entry.clone();
        let name = pooled.name().clone();
        let live = pooled.liveness();
        self.tasks.spawn(pooled.run(stop));
        let mut state = self.pool.write();
        let State { pooled_vcenters, pending, .. } = &mut *state;
        match pooled_vcenters.entry(name.clone()) {
            Entry::Vacant(vacant) => {
                vacant.insert(entry);
            }
            Entry::Occupied(_) => {
                tracing::info!(
                    vcenter = &*name,
                    "the settings changed; connecting with the new ones"
                );
                pending.insert(name, entry.clone());
                self.tasks.spawn(activate_when_live(self.pool.clone(), entry, live));
            }
        }
    }
}

/// Replaces the pooled vCenter of the same name when the new one's inventory is live, unless the
/// replacement was cancelled.
async fn activate_when_live(pool: VcenterPool, entry: PoolEntry, mut live: watch::Receiver<bool>) {
    let went_live = entry.stop.run_until_cancelled(live.wait_for(|live| *live)).await;
    if !matches!(went_live, Some(Ok(_))) {
        return;
    }
    let name = entry.pooled.name();
    let mut state = pool.write();
    let is_this = |pending: &PoolEntry| Arc::ptr_eq(&pending.pooled, &entry.pooled);
    // Checked under the lock: it can have been cancelled just now.
    if !state.pending.get(name).is_some_and(is_this) {
        return;
    }
    state.pending.remove(name);
    tracing::info!(vcenter = &**name, "the new settings are in use");
    if let Some(old) = state.pooled_vcenters.insert(name.clone(), entry.clone()) {
        old.stop.cancel();
    }
    drop(state);
    // Its earlier signals came before it was in the pool.
    entry.pooled.notify_resync();
}
