//! The tags of one vCenter: of all objects above VMs, and of VMs on request.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use runtime::backoff::Backoff;
use tokio::{
    sync::Notify,
    time::{Instant, sleep, sleep_until},
};
use vsphere::{
    Client, MoRef,
    tags::{Attached, Tags},
};

use super::{FIRST_RETRY, MAX_RETRY, PooledVcenter, Signal};
use crate::{catalogue::TagTable, zones::Categories};

/// Pause between a request for tags and the read: many requests become one call.
const DEBOUNCE: Duration = Duration::from_millis(100);
const MIN_READ_INTERVAL: Duration = Duration::from_secs(2);

/// The tags as last read, and the VMs whose tags were requested. One lock covers both, so a sync that
/// is signalled finds the tags of its VM.
#[derive(Default)]
pub(super) struct TagCache {
    state: Mutex<State>,
    refresh: Notify,
}

#[derive(Default)]
struct State {
    /// `None` before the first read.
    table: Option<Arc<TagTable>>,
    /// VMs whose own tags were requested, and whether the table has them.
    vms: HashMap<MoRef, bool>,
    /// Why the last read failed.
    problem: Option<String>,
}

impl TagCache {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn request_refresh(&self) {
        self.refresh.notify_one();
    }

    /// The table with the tags of this VM. If it lacks them, requests them and returns `None`.
    fn table_with(&self, vm: &MoRef) -> Option<Arc<TagTable>> {
        let mut state = self.state();
        let read = *state.vms.entry(vm.clone()).or_insert_with(|| {
            self.refresh.notify_one();
            false
        });
        state.table.clone().filter(|_| read)
    }

    /// Forgets VMs that do not exist any more.
    fn requested_vms(&self, exists: impl Fn(&MoRef) -> bool) -> Vec<MoRef> {
        let mut state = self.state();
        state.vms.retain(|vm, _| exists(vm));
        state.vms.keys().cloned().collect()
    }

    /// Stores a new table, if there is one, that contains the tags of `vms`. Returns whether anything is
    /// new.
    fn store(&self, table: Option<TagTable>, vms: &[MoRef]) -> bool {
        let mut state = self.state();
        let mut new = table.is_some();
        if let Some(table) = table {
            state.table = Some(Arc::new(table));
        }
        state.problem = None;
        for vm in vms {
            if let Some(read) = state.vms.get_mut(vm) {
                new |= !std::mem::replace(read, true);
            }
        }
        new
    }
}

impl PooledVcenter {
    /// The tags as last read; `None` before the first read.
    pub fn tags(&self) -> Option<Arc<TagTable>> {
        let state = self.tags.state();
        let none = || self.shared.categories.is_empty().then(Arc::default);
        state.table.clone().or_else(none)
    }

    /// Why the last read failed.
    pub fn tags_problem(&self) -> Option<String> {
        self.tags.state().problem.clone()
    }

    /// The tags including those of this VM. If they were not read yet, requests them and returns `None`.
    pub fn tags_including(&self, vm: &MoRef) -> Option<Arc<TagTable>> {
        self.tags.table_with(vm)
    }

    /// Reads tags at the start, on request and every tag period.
    pub(super) async fn refresh_tags(self: Arc<Self>, client: Client) {
        // Tag names change less often than attachments.
        let tags = client.tags(self.shared.tag_period * 12);
        let backoff = Backoff::new(FIRST_RETRY, MAX_RETRY);
        loop {
            match self.read_tags(&tags).await {
                Ok(true) => backoff.succeeded(&()),
                Ok(false) => {
                    // The first inventory requests a refresh.
                    self.tags.refresh.notified().await;
                    continue;
                }
                Err(error) => {
                    let (vcenter, why) = (&**self.name(), error.error_chain());
                    tracing::warn!(vcenter, error = why, "cannot read the tags");
                    let before = self.tags.state().problem.replace(why);
                    if before.is_none() {
                        // Nodes that wait for tags report the reason.
                        self.signal(Signal::Resync);
                    }
                    sleep(backoff.failed(())).await;
                    continue;
                }
            }
            let read = Instant::now();
            tokio::select! {
                () = sleep(self.shared.tag_period) => {}
                () = self.tags.refresh.notified() => {
                    sleep_until((read + MIN_READ_INTERVAL).min(Instant::now() + MIN_READ_INTERVAL)).await;
                    sleep(DEBOUNCE).await;
                }
            }
        }
    }

    /// Returns `false` if there is no inventory yet.
    async fn read_tags(&self, tags: &Tags) -> Result<bool, vsphere::Error> {
        let carriers = self.with_catalogue(|catalogue| {
            let above = catalogue.tree.objects().filter(|o| o.as_vm().is_none());
            above.map(|o| o.reference().clone()).collect::<Vec<_>>()
        });
        let Some(mut objects) = carriers.filter(|objects| !objects.is_empty()) else {
            return Ok(false);
        };
        let vms = self
            .tags
            .requested_vms(|m| self.with_catalogue(|c| c.tree.get(m).is_some()) == Some(true));
        objects.extend(vms.iter().cloned());
        objects.sort_unstable();
        let changed = tags.changed(&objects).await?;
        if self.tags.store(changed.map(|attached| self.table(attached)), &vms) {
            self.signal(Signal::Resync);
        }
        Ok(true)
    }

    /// Keeps only the tags of the zone and region categories.
    fn table(&self, attached: Attached) -> TagTable {
        let Categories { zone, region } = &self.shared.categories;
        let named = attached.into_iter().filter_map(|(object, tags)| {
            let tags =
                tags.into_iter().filter(|t| *t.category == **zone || *t.category == **region);
            let tags: Vec<_> = tags.map(|t| (t.category.to_string(), t.name.to_string())).collect();
            (!tags.is_empty()).then_some((object, tags))
        });
        named.collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn vm(id: &str) -> MoRef {
        MoRef::new("VirtualMachine", id)
    }

    fn table(vms: &[&MoRef]) -> TagTable {
        vms.iter().map(|m| ((*m).clone(), vec![("zone".into(), m.id.to_string())])).collect()
    }

    #[test]
    fn after_a_signal_the_requested_tags_are_present() {
        let cache = TagCache::default();
        let (first, late, gone) = (vm("vm-1"), vm("vm-2"), vm("vm-3"));
        for vm in [&first, &gone] {
            assert!(cache.table_with(vm).is_none(), "not requested before");
        }
        let asked = cache.requested_vms(|vm| *vm != gone);
        assert_eq!(asked, std::slice::from_ref(&first));
        // Requested during a read that does not include it.
        assert!(cache.table_with(&late).is_none());
        assert!(cache.store(Some(table(&[&first])), &asked));
        assert!(cache.table_with(&first).unwrap().contains_key(&first));
        assert!(cache.table_with(&late).is_none(), "its tags are not read yet");
        let asked = cache.requested_vms(|_| true);
        assert!(cache.store(None, &asked), "it is news that the VM has no tags");
        assert!(cache.table_with(&late).is_some());
        assert!(!cache.store(None, &asked), "nothing new");
    }

    #[test]
    fn concurrent_reads_and_requests_never_announce_missing_tags() {
        let vms: Vec<MoRef> = (0..2000).map(|n| vm(&format!("vm-{n}"))).collect();
        let cache = TagCache::default();
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while cache.requested_vms(|_| true).len() < vms.len() {
                    let asked = cache.requested_vms(|_| true);
                    cache.store(Some(table(&asked.iter().collect::<Vec<_>>())), &asked);
                }
            });
            for vm in &vms {
                if let Some(table) = cache.table_with(vm).or_else(|| cache.table_with(vm)) {
                    assert!(table.contains_key(vm), "{vm:?}");
                }
            }
        });
    }
}
