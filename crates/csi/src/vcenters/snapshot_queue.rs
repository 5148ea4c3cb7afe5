//! Lists the snapshots of volumes that are about to be deleted.
//!
//! CNS lists the snapshots of one volume or of all volumes. A single request asks for its volume. Requests that come
//! during a call wait for it and then share one list of all snapshots, as long as that list is short.

use std::{
    sync::{
        Mutex, MutexGuard, PoisonError,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use tokio::sync::oneshot;
use vsphere::{
    Client, FaultKind,
    cns::{SnapshotEntry, SnapshotQuerySpec, VolumeId},
};

use super::Refused;

const TIMEOUT: Duration = Duration::from_mins(4);
/// A few pages of CNS.
const SHORT_LIST: usize = 512;

/// The ids of the snapshots.
type Outcome = Result<Vec<String>, Refused>;

#[derive(Debug)]
pub struct SnapshotQueue {
    client: Client,
    /// Held during a call.
    turn: tokio::sync::Mutex<()>,
    waiting: Mutex<Vec<(String, oneshot::Sender<Outcome>)>>,
    /// The number of snapshots in the vCenter, as last listed.
    total: AtomicUsize,
}

impl SnapshotQueue {
    pub fn new(client: Client) -> Self {
        Self {
            client,
            turn: tokio::sync::Mutex::default(),
            waiting: Mutex::default(),
            total: AtomicUsize::new(0),
        }
    }

    /// The snapshots that the volume has at the time of the call or later. None if the volume does not exist.
    pub async fn list(&self, volume: &str) -> Outcome {
        let (answer, mut answered) = oneshot::channel();
        self.waiting().push((volume.to_owned(), answer));
        let _turn = self.turn.lock().await;
        match answered.try_recv() {
            Ok(outcome) => return outcome,
            // The call that took this request was abandoned.
            Err(oneshot::error::TryRecvError::Closed) => return self.of_one(volume).await,
            Err(oneshot::error::TryRecvError::Empty) => {}
        }
        let requests = std::mem::take(&mut *self.waiting());
        if requests.len() > 1 && self.total.load(Ordering::Relaxed) <= SHORT_LIST {
            let all = self.of_all().await;
            for (volume, answer) in requests {
                // The caller may be gone.
                let _ = answer.send(pick(&all, &volume));
            }
            pick(&all, volume)
        } else {
            for (other, answer) in requests.into_iter().filter(|(other, _)| other != volume) {
                let _ = answer.send(self.of_one(&other).await);
            }
            self.of_one(volume).await
        }
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
        self.total.store(entries.len(), Ordering::Relaxed);
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
