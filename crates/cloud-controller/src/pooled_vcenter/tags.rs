//! The tags of one vCenter: those of all that stands above machines, and those of machines that are asked for.

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

use super::{FIRST, LONGEST, PooledVcenter, Signal};
use crate::{catalogue::TagTable, zones::Categories};

/// After a change of what carries tags, or a wish for them, they are read this much later: many
/// wishes become one call.
const GATHER: Duration = Duration::from_millis(100);
/// Tags are not read more often than this, however many nodes wait for them.
const NOT_SOONER: Duration = Duration::from_secs(2);

/// The tags as last read, and whose were asked for. Both change at once: who is told that a machine's tags
/// were read finds them.
#[derive(Default)]
pub(super) struct TagBoard {
    state: Mutex<State>,
    wanted: Notify,
}

#[derive(Default)]
struct State {
    /// `None` before they were read.
    table: Option<Arc<TagTable>>,
    /// Machines whose own tags are wanted, and whether the table has them.
    vms: HashMap<MoRef, bool>,
    /// Why they could not be read the last time.
    trouble: Option<String>,
}

impl TagBoard {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Asks for tags to be read again.
    pub(super) fn want_all(&self) {
        self.wanted.notify_one();
    }

    /// The table with the tags of this machine; if it lacks them, they are asked for.
    fn with(&self, vm: &MoRef) -> Option<Arc<TagTable>> {
        let mut state = self.state();
        let read = *state.vms.entry(vm.clone()).or_insert_with(|| {
            self.wanted.notify_one();
            false
        });
        state.table.clone().filter(|_| read)
    }

    /// The machines that are asked for, without those that are no more.
    fn asked_for(&self, is_there: impl Fn(&MoRef) -> bool) -> Vec<MoRef> {
        let mut state = self.state();
        state.vms.retain(|vm, _| is_there(vm));
        state.vms.keys().cloned().collect()
    }

    /// Keeps what was read, a new table if there is one, with the tags of these machines in it; whether that
    /// tells anything new.
    fn keep(&self, table: Option<TagTable>, of: &[MoRef]) -> bool {
        let mut state = self.state();
        let mut new = table.is_some();
        if let Some(table) = table {
            state.table = Some(Arc::new(table));
        }
        state.trouble = None;
        for vm in of {
            if let Some(read) = state.vms.get_mut(vm) {
                new |= !std::mem::replace(read, true);
            }
        }
        new
    }
}

impl PooledVcenter {
    /// The tags, as last read; `None` before they were.
    pub fn tags(&self) -> Option<Arc<TagTable>> {
        let state = self.tags.state();
        let none = || self.common.categories.is_empty().then(Arc::default);
        state.table.clone().or_else(none)
    }

    /// Why tags could not be read the last time, if so.
    pub fn tags_trouble(&self) -> Option<String> {
        self.tags.state().trouble.clone()
    }

    /// The tags, with those of this machine itself. `None` if these were not read yet: they are from here on.
    pub fn tags_with(&self, vm: &MoRef) -> Option<Arc<TagTable>> {
        self.tags.with(vm)
    }

    /// Reads tags: at first, when something wants them, and now and then.
    pub(super) async fn follow_tags(self: Arc<Self>, client: Client) {
        // Names of tags change less often than where they are attached.
        let tags = client.tags(self.common.tag_period * 12);
        let backoff = Backoff::new(FIRST, LONGEST);
        loop {
            match self.read_tags(&tags).await {
                Ok(true) => backoff.succeeded(&()),
                Ok(false) => {
                    // Told when the inventory is in view.
                    self.tags.wanted.notified().await;
                    continue;
                }
                Err(error) => {
                    let (vcenter, why) = (&**self.name(), error.error_chain());
                    tracing::warn!(vcenter, error = why, "the tags cannot be read");
                    let before = self.tags.state().trouble.replace(why);
                    if before.is_none() {
                        // Who waits for them says so.
                        self.tell(Signal::Anything);
                    }
                    sleep(backoff.failed(())).await;
                    continue;
                }
            }
            let read = Instant::now();
            tokio::select! {
                () = sleep(self.common.tag_period) => {}
                () = self.tags.wanted.notified() => {
                    sleep_until((read + NOT_SOONER).min(Instant::now() + NOT_SOONER)).await;
                    sleep(GATHER).await;
                }
            }
        }
    }

    /// Reads the tags of everything that can carry them; `false` if nothing is in view yet.
    async fn read_tags(&self, tags: &Tags) -> Result<bool, vsphere::Error> {
        let carriers = self.look(|catalogue| {
            let above = catalogue.tree.objects().filter(|o| o.as_vm().is_none());
            above.map(|o| o.reference().clone()).collect::<Vec<_>>()
        });
        let Some(mut objects) = carriers.filter(|objects| !objects.is_empty()) else {
            return Ok(false);
        };
        let vms = self.tags.asked_for(|m| self.look(|c| c.tree.get(m).is_some()) == Some(true));
        objects.extend(vms.iter().cloned());
        objects.sort_unstable();
        let changed = tags.changed(&objects).await?;
        if self.tags.keep(changed.map(|attached| self.table(attached)), &vms) {
            self.tell(Signal::Anything);
        }
        Ok(true)
    }

    /// What zones are read from, out of all that is attached.
    fn table(&self, attached: Attached) -> TagTable {
        let Categories { zone, region } = &self.common.categories;
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

    fn table(of: &[&MoRef]) -> TagTable {
        of.iter().map(|m| ((*m).clone(), vec![("zone".into(), m.id.to_string())])).collect()
    }

    #[test]
    fn who_is_told_that_the_tags_of_a_machine_were_read_finds_them() {
        let board = TagBoard::default();
        let (first, late, gone) = (vm("vm-1"), vm("vm-2"), vm("vm-3"));
        for vm in [&first, &gone] {
            assert!(board.with(vm).is_none(), "nobody asked before");
        }
        let asked = board.asked_for(|vm| *vm != gone);
        assert_eq!(asked, std::slice::from_ref(&first));
        // Asked for while the answer is on its way, which does not know of it.
        assert!(board.with(&late).is_none());
        assert!(board.keep(Some(table(&[&first])), &asked));
        assert!(board.with(&first).unwrap().contains_key(&first));
        assert!(board.with(&late).is_none(), "its tags were not asked for yet");
        let asked = board.asked_for(|_| true);
        assert!(board.keep(None, &asked), "that it has none of its own is news");
        assert!(board.with(&late).is_some());
        assert!(!board.keep(None, &asked), "nothing new");
    }

    #[test]
    fn however_reading_and_asking_meet_none_hears_of_tags_that_are_not_there() {
        let vms: Vec<MoRef> = (0..2000).map(|n| vm(&format!("vm-{n}"))).collect();
        let board = TagBoard::default();
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while board.asked_for(|_| true).len() < vms.len() {
                    let asked = board.asked_for(|_| true);
                    board.keep(Some(table(&asked.iter().collect::<Vec<_>>())), &asked);
                }
            });
            for vm in &vms {
                if let Some(table) = board.with(vm).or_else(|| board.with(vm)) {
                    assert!(table.contains_key(vm), "{vm:?}");
                }
            }
        });
    }
}
