//! Lists the snapshots of volumes that are about to be deleted.
//!
//! CNS lists the snapshots of one volume or of all volumes. A single request asks for its volume. Requests that come
//! during a call wait for it. Then they share one list of all snapshots, unless this list has more pages than there are
//! requests: in that case each asks for its volume, and none waits for another.

use std::{
    sync::{Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use tokio::{sync::oneshot, time::Instant};
use vsphere::{
    Client, FaultKind,
    cns::{SnapshotEntry, SnapshotQuerySpec, VolumeId},
};

use super::Refused;

const TIMEOUT: Duration = Duration::from_mins(4);
/// CNS returns this many snapshots in a page.
const PAGE: usize = 128;
/// How long the number of snapshots is trusted.
const FRESH_FOR: Duration = Duration::from_mins(10);

/// The ids of the snapshots.
type Outcome = Result<Vec<String>, Refused>;

#[derive(Debug)]
pub struct SnapshotQueue {
    client: Client,
    /// Held during a call that others can wait for.
    turn: tokio::sync::Mutex<()>,
    waiting: Mutex<Vec<(String, oneshot::Sender<Outcome>)>>,
    /// The number of snapshots in the vCenter, and when they were listed.
    total: Mutex<Option<(usize, Instant)>>,
}

impl SnapshotQueue {
    pub fn new(client: Client) -> Self {
        Self {
            client,
            turn: tokio::sync::Mutex::default(),
            waiting: Mutex::default(),
            total: Mutex::default(),
        }
    }

    /// The snapshots that the volume has at the time of the call or later. None if the volume does not exist.
    pub async fn list(&self, volume: &str) -> Outcome {
        let (answer, mut answered) = oneshot::channel();
        self.waiting().push((volume.to_owned(), answer));
        let turn = self.turn.lock().await;
        match answered.try_recv() {
            Ok(outcome) => return outcome,
            // Each request asks for itself, or the call that took this request was abandoned.
            Err(oneshot::error::TryRecvError::Closed) => {
                drop(turn);
                return self.of_one(volume).await;
            }
            Err(oneshot::error::TryRecvError::Empty) => {}
        }
        let requests = std::mem::take(&mut *self.waiting());
        if requests.len() == 1 {
            return self.of_one(volume).await;
        }
        if self.pages() > requests.len() {
            drop((requests, turn));
            return self.of_one(volume).await;
        }
        let all = self.of_all().await;
        for (volume, answer) in requests {
            // The caller may be gone.
            let _ = answer.send(pick(&all, &volume));
        }
        pick(&all, volume)
    }

    /// The number of pages of the list of all snapshots, as far as known.
    fn pages(&self) -> usize {
        let total = *self.total.lock().unwrap_or_else(PoisonError::into_inner);
        let fresh = total.filter(|(_, listed)| listed.elapsed() < FRESH_FOR);
        fresh.map_or(1, |(total, _)| total.div_ceil(PAGE).max(1))
    }

    async fn of_one(&self, volume: &str) -> Outcome {
        let specs = [SnapshotQuerySpec { volume: VolumeId::from(volume), snapshot: None }];
        let entries = self.client.query_volume_snapshots(&specs, TIMEOUT).await;
        let all = entries.map_err(Refused::Call)?.into_iter().map(checked);
        let all: Vec<Option<(String, String)>> = all.collect::<Result<_, _>>()?;
        Ok(all.into_iter().flatten().map(|(_, snapshot)| snapshot).collect())
    }

    async fn of_all(&self) -> Result<Vec<(String, String)>, Refused> {
        let entries = self.client.query_volume_snapshots(&[], TIMEOUT).await;
        let entries = entries.map_err(Refused::Call)?;
        let total = Some((entries.len(), Instant::now()));
        *self.total.lock().unwrap_or_else(PoisonError::into_inner) = total;
        let all: Result<Vec<_>, Refused> = entries.into_iter().map(checked).collect();
        Ok(all?.into_iter().flatten().collect())
    }

    fn waiting(&self) -> MutexGuard<'_, Vec<(String, oneshot::Sender<Outcome>)>> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn pick(all: &Result<Vec<(String, String)>, Refused>, volume: &str) -> Outcome {
    let all = all.as_ref().map_err(Clone::clone)?;
    let own = all.iter().filter(|(of, _)| of == volume);
    Ok(own.map(|(_, snapshot)| snapshot.clone()).collect())
}

/// Volume and snapshot of an entry. `None` if the volume or the snapshot does not exist.
fn checked(entry: SnapshotEntry) -> Result<Option<(String, String)>, Refused> {
    match (entry.error, entry.snapshot) {
        (Some(fault), _) => match fault.kind {
            FaultKind::CnsVolumeNotFound { .. }
            | FaultKind::CnsNotRegistered { .. }
            | FaultKind::CnsSnapshotNotFound { .. }
            | FaultKind::NotFound => Ok(None),
            _ => Err(Refused::Volume(fault)),
        },
        (None, Some(snapshot)) => Ok(Some((snapshot.volume.id, snapshot.id.id))),
        (None, None) => Ok(None),
    }
}
