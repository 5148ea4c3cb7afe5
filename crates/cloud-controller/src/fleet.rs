//! All vCenters together: looked at as one, each on its own.

use std::{
    collections::BTreeMap,
    net::IpAddr,
    sync::{Arc, PoisonError, RwLock},
};

use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;
use vsphere::{BiosUuid, InstanceUuid};

use crate::{
    catalogue::Catalogue,
    configuration::Configuration,
    identity::Directory,
    member::{Common, Member},
    model::{Machine, Place},
    zones::{self, Zones},
};

/// The vCenters that are followed. Clones are one.
#[derive(Clone, Default)]
pub struct Fleet {
    state: Arc<RwLock<State>>,
}

#[derive(Default)]
struct State {
    configuration: Option<Arc<Configuration>>,
    members: BTreeMap<Arc<str>, Arc<Member>>,
    /// What is configured but not in service yet.
    coming: Vec<Arc<str>>,
}

/// The tasks behind a fleet; all end when this is dropped.
pub struct Crew {
    fleet: Fleet,
    tasks: JoinSet<()>,
    stops: BTreeMap<Arc<str>, CancellationToken>,
}

impl Fleet {
    /// The configuration in use.
    pub fn configuration(&self) -> Option<Arc<Configuration>> {
        self.read().configuration.clone()
    }

    /// The members in service.
    pub fn members(&self) -> Vec<Arc<Member>> {
        self.read().members.values().cloned().collect()
    }

    /// The member with this name.
    pub fn member(&self, name: &str) -> Option<Arc<Member>> {
        self.read().members.get(name).cloned()
    }

    /// What keeps the view from being whole: every vCenter that is not followed, with the reason.
    pub fn troubles(&self) -> Vec<(Arc<str>, String)> {
        let state = self.read();
        let coming = state.coming.iter().map(|name| (name.clone(), "not in service yet".into()));
        let own = state.members.values().filter_map(|m| Some((m.name().clone(), m.trouble()?)));
        let mut all: Vec<(Arc<str>, String)> = own.chain(coming).collect();
        if state.members.is_empty() && all.is_empty() {
            all.push(("vCenter".into(), "none is configured".into()));
        }
        all
    }

    /// Whether one is still on its way to be followed for the first time.
    pub fn is_starting(&self) -> bool {
        let state = self.read();
        state.configuration.is_none() || state.members.values().any(|member| member.is_starting())
    }

    /// Zone and region of a machine; `None` before tags were read.
    pub fn zones(&self, machine: &Machine) -> Option<Zones> {
        let configuration = self.configuration()?;
        if configuration.categories.is_empty() {
            return Some(Zones::default());
        }
        let member = self.member(&machine.place.vcenter)?;
        let tags = member.tags()?;
        let ways = member.look(|c| c.ways(&machine.place.machine, &tags))?;
        Some(zones::choose(&ways, &configuration.categories))
    }

    fn all<T>(&self, look: impl Fn(&Catalogue<'_>) -> Vec<T>) -> Vec<T> {
        self.members().iter().filter_map(|member| member.look(&look)).flatten().collect()
    }

    fn read(&self) -> std::sync::RwLockReadGuard<'_, State> {
        self.state.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn write(&self) -> std::sync::RwLockWriteGuard<'_, State> {
        self.state.write().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Directory for Fleet {
    fn at(&self, place: &Place) -> Option<Machine> {
        self.member(&place.vcenter)?.look(|c| c.at(&place.machine))?
    }
    fn with_bios_uuid(&self, uuid: BiosUuid) -> Vec<Machine> {
        self.all(|c| c.with_bios_uuid(uuid))
    }
    fn with_instance_uuid(&self, uuid: InstanceUuid) -> Vec<Machine> {
        self.all(|c| c.with_instance_uuid(uuid))
    }
    fn with_dns_name(&self, name: &str) -> Vec<Machine> {
        self.all(|c| c.with_dns_name(name))
    }
    fn with_short_name(&self, name: &str) -> Vec<Machine> {
        self.all(|c| c.with_short_name(name))
    }
    fn with_address(&self, address: IpAddr) -> Vec<Machine> {
        self.all(|c| c.with_address(address))
    }
}

impl Crew {
    /// Nobody yet.
    pub fn new(fleet: Fleet) -> Self {
        Self { fleet, tasks: JoinSet::new(), stops: BTreeMap::new() }
    }

    /// Puts a configuration into service. A vCenter whose settings did not change goes on undisturbed;
    /// one whose settings changed is replaced only once the new connection has seen its inventory;
    /// one that is not configured any more is left.
    pub fn apply(&mut self, configuration: Configuration, common: &Common) {
        let before = self.fleet.configuration();
        let same_zones = before.as_ref().is_some_and(|b| b.categories == configuration.categories);
        for settings in &configuration.vcenters {
            let name = settings.name.clone();
            let present = self.fleet.member(&name);
            if same_zones && present.as_ref().is_some_and(|member| member.settings == *settings) {
                continue;
            }
            self.start(Member::new(settings.clone(), common.clone()), present.is_some());
        }
        let wanted = |name: &Arc<str>| configuration.vcenters.iter().any(|v| v.name == *name);
        let gone: Vec<Arc<str>> = self.stops.keys().filter(|name| !wanted(name)).cloned().collect();
        for name in gone {
            self.leave(&name, common);
        }
        self.fleet.write().configuration = Some(Arc::new(configuration));
    }

    /// Waits until nobody is left; used after the token of each was cancelled.
    pub async fn stop(&mut self) {
        for stop in self.stops.values() {
            stop.cancel();
        }
        while self.tasks.join_next().await.is_some() {}
    }

    fn start(&mut self, member: Arc<Member>, replaces: bool) {
        let (name, stop) = (member.name().clone(), CancellationToken::new());
        let old = self.stops.insert(name.clone(), stop.clone());
        self.tasks.spawn(member.clone().run(stop.clone()));
        if !replaces {
            self.fleet.write().members.insert(name, member);
            return;
        }
        tracing::info!(vcenter = &*name, "its settings changed; connecting anew");
        self.fleet.write().coming.push(name.clone());
        let fleet = self.fleet.clone();
        self.tasks.spawn(async move {
            let mut live = member.liveness();
            let taken = stop.run_until_cancelled(live.wait_for(|live| *live)).await;
            let mut state = fleet.write();
            if taken.is_some_and(|taken| taken.is_ok()) {
                tracing::info!(vcenter = &*name, "the new settings are in use");
                state.members.insert(name.clone(), member);
            }
            if let Some(at) = state.coming.iter().position(|coming| *coming == name) {
                state.coming.remove(at);
            }
            drop(state);
            if let Some(old) = old {
                old.cancel();
            }
        });
    }

    fn leave(&mut self, name: &Arc<str>, common: &Common) {
        tracing::info!(vcenter = &**name, "not configured any more");
        if let Some(stop) = self.stops.remove(name) {
            stop.cancel();
        }
        self.fleet.write().members.remove(name);
        common.metrics.forget(name);
    }
}
