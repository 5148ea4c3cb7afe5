//! Attaches and detaches volumes, in order for each VM and several in one call.
//!
//! vCenter changes the hardware of a VM one task at a time. While a task runs, further requests for that VM wait and
//! then share the next call. A single request is never delayed.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use runtime::lease::Mandate;
use tokio::{sync::oneshot, time::Instant};
use vsphere::{
    Client, Error, Fault, FaultKind, MoRef,
    cns::{AttachSpec, VolumeId, VolumeOutcome},
};

use crate::metrics::Metrics;

/// CNS limits the number of volumes in a call; the Go driver's batches in Supervisor clusters are not larger.
const MAX_BATCH: usize = 32;

/// Why CNS did not attach or detach a volume.
#[derive(Clone, Debug)]
pub enum Refused {
    /// The call or its task failed.
    Call(Error),
    /// CNS refused this volume.
    Volume(Fault),
    /// CNS was not asked: the mandate of the request ended while it waited.
    NotLeading,
}

type Outcome = Result<String, Refused>;

/// How long the inventory can lag behind an attach or detach of this process.
const VIEW_LAG: Duration = Duration::from_secs(15);

#[derive(Debug)]
pub struct AttachQueue {
    client: Client,
    metrics: Metrics,
    vms: Mutex<HashMap<MoRef, Arc<VmQueue>>>,
    /// The volumes that this process attached or detached lately, and the VM that has each.
    recent: Mutex<HashMap<String, (Instant, Option<MoRef>)>>,
}

#[derive(Debug, Default)]
struct VmQueue {
    /// Held during a call for this VM.
    turn: tokio::sync::Mutex<()>,
    waiting: Mutex<Vec<Request>>,
}

#[derive(Debug)]
struct Request {
    volume: String,
    attach: bool,
    /// The request is sent only while it holds. Requests can wait for minutes.
    mandate: Mandate,
    answer: oneshot::Sender<Outcome>,
}

impl AttachQueue {
    pub fn new(client: Client, metrics: Metrics) -> Self {
        Self { client, metrics, vms: Mutex::default(), recent: Mutex::default() }
    }

    /// Attaches a volume. Returns the disk's uuid.
    pub async fn attach(
        &self,
        vm: &MoRef,
        volume: &str,
        mandate: Mandate,
        within: Duration,
    ) -> Outcome {
        self.submit(vm, volume, true, mandate, within).await
    }

    pub async fn detach(
        &self,
        vm: &MoRef,
        volume: &str,
        mandate: Mandate,
        within: Duration,
    ) -> Result<(), Refused> {
        self.submit(vm, volume, false, mandate, within).await.map(drop)
    }

    /// The volumes that this process attached (`Some`) or detached (`None`) so lately that the inventory may not show
    /// it yet.
    pub fn recent(&self) -> HashMap<String, Option<MoRef>> {
        let mut recent = self.recent.lock().unwrap_or_else(PoisonError::into_inner);
        recent.retain(|_, (at, _)| at.elapsed() < VIEW_LAG);
        recent.iter().map(|(volume, (_, vm))| (volume.clone(), vm.clone())).collect()
    }

    fn remember(&self, volume: &str, vm: Option<&MoRef>) {
        let mut recent = self.recent.lock().unwrap_or_else(PoisonError::into_inner);
        recent.retain(|_, (at, _)| at.elapsed() < VIEW_LAG);
        recent.insert(volume.to_owned(), (Instant::now(), vm.cloned()));
    }

    async fn submit(
        &self,
        vm: &MoRef,
        volume: &str,
        attach: bool,
        mandate: Mandate,
        within: Duration,
    ) -> Outcome {
        let queue = Arc::clone(self.vms().entry(vm.clone()).or_default());
        let (answer, mut answered) = oneshot::channel();
        let _waiting = self.metrics.waiting_for_attach();
        queue.waiting().push(Request { volume: volume.to_owned(), attach, mandate, answer });
        let outcome = loop {
            let turn = queue.turn.lock().await;
            match answered.try_recv() {
                Ok(outcome) => break outcome,
                Err(oneshot::error::TryRecvError::Closed) => {
                    break Err(Refused::Volume(fault("the call for the volume was abandoned")));
                }
                Err(oneshot::error::TryRecvError::Empty) => {}
            }
            let batch = queue.next_batch();
            if !batch.is_empty() {
                self.run(vm, batch, within).await;
            }
            drop(turn);
        };
        self.forget_if_idle(vm, &queue);
        outcome
    }

    fn forget_if_idle(&self, vm: &MoRef, queue: &Arc<VmQueue>) {
        let mut vms = self.vms();
        // The map and this call have the only references: nobody waits.
        if Arc::strong_count(queue) <= 2 && queue.waiting().is_empty() {
            vms.remove(vm);
        }
    }

    async fn run(&self, vm: &MoRef, batch: Vec<Request>, within: Duration) {
        let (batch, late): (Vec<_>, Vec<_>) =
            batch.into_iter().partition(|request| request.mandate.holds());
        for request in late {
            let _ = request.answer.send(Err(Refused::NotLeading));
        }
        if batch.is_empty() {
            return;
        }
        let specs: Vec<AttachSpec> = batch
            .iter()
            .map(|request| AttachSpec {
                volume: VolumeId::from(request.volume.as_str()),
                vm: vm.clone(),
            })
            .collect();
        let attach = batch.first().is_some_and(|request| request.attach);
        let mut outcomes = self.call(attach, &specs, within).await;
        if specs.len() > 1 && fails_as_a_whole(&outcomes) {
            outcomes = Vec::new();
            for (request, spec) in batch.iter().zip(&specs) {
                if request.mandate.holds() {
                    outcomes.extend(self.call(attach, std::slice::from_ref(spec), within).await);
                } else {
                    outcomes.push(Err(Refused::NotLeading));
                }
            }
        }
        for (request, outcome) in batch.into_iter().zip(outcomes) {
            if outcome.is_ok() {
                self.remember(&request.volume, attach.then_some(vm));
            }
            // The caller may be gone.
            let _ = request.answer.send(outcome);
        }
    }

    /// One outcome for each spec.
    async fn call(&self, attach: bool, specs: &[AttachSpec], within: Duration) -> Vec<Outcome> {
        let answer = async {
            if attach {
                let outcomes = self.client.attach_volumes(specs).await?.wait(within).await?;
                let uuid = |o: VolumeOutcome<vsphere::cns::Attached>| {
                    (o.volume, o.result.map(|attached| attached.disk_uuid))
                };
                Ok(outcomes.into_iter().map(uuid).collect::<Vec<_>>())
            } else {
                let outcomes = self.client.detach_volumes(specs).await?.wait(within).await?;
                let done = |o: VolumeOutcome<vsphere::cns::Done>| {
                    (o.volume, o.result.map(|_| String::new()))
                };
                Ok(outcomes.into_iter().map(done).collect::<Vec<_>>())
            }
        };
        let since = Instant::now();
        let answer = answer.await;
        let optype = if attach { "attach-volume" } else { "detach-volume" };
        self.metrics.task_ended(optype, since, answer.is_err());
        match answer {
            Ok(outcomes) => by_spec(specs, outcomes),
            Err(error) => specs.iter().map(|_| Err(Refused::Call(Error::clone(&error)))).collect(),
        }
    }

    fn vms(&self) -> MutexGuard<'_, HashMap<MoRef, Arc<VmQueue>>> {
        self.vms.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl VmQueue {
    fn waiting(&self) -> MutexGuard<'_, Vec<Request>> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The first requests that are of one kind, in their order.
    fn next_batch(&self) -> Vec<Request> {
        let mut waiting = self.waiting();
        let kind = waiting.first().map(|request| request.attach);
        let same = waiting.iter().take_while(|request| Some(request.attach) == kind).count();
        waiting.drain(..same.min(MAX_BATCH)).collect()
    }
}

fn fault(message: &str) -> Fault {
    let (type_name, message) = ("".into(), message.into());
    Fault { kind: FaultKind::Other, type_name, message, details: Vec::new(), cause: None }
}

/// CNS names the volume of an outcome, except in some faults; then the order of the request counts. It also counts for
/// a fault with a name that nobody asked for: XML cannot represent some ids, so the fault names another one.
fn by_spec(
    specs: &[AttachSpec],
    outcomes: Vec<(Option<VolumeId>, Result<String, Fault>)>,
) -> Vec<Outcome> {
    let ordered = outcomes.len() == specs.len();
    let mut outcomes: Vec<_> = outcomes.into_iter().map(Some).collect();
    let mut found = Vec::with_capacity(specs.len());
    for (position, spec) in specs.iter().enumerate() {
        let named = outcomes.iter().position(|outcome| {
            outcome.as_ref().is_some_and(|(volume, _)| volume.as_ref() == Some(&spec.volume))
        });
        let is_asked_for = |id: &VolumeId| specs.iter().any(|spec| spec.volume == *id);
        let is_unnamed = |at: &usize| match outcomes.get(*at) {
            Some(Some((None, _))) => true,
            Some(Some((Some(other), Err(_)))) => !is_asked_for(other),
            _ => false,
        };
        let at = named.or_else(|| Some(position).filter(|at| ordered && is_unnamed(at)));
        let outcome = at.and_then(|at| outcomes.get_mut(at)?.take());
        found.push(match outcome {
            Some((_, result)) => result.map_err(Refused::Volume),
            None => Err(Refused::Volume(fault("CNS returned no result for the volume"))),
        });
    }
    found
}

/// Whether vCenter failed the whole call instead of single volumes: it takes only one volume in a call, or one volume,
/// such as one that is attached already, makes the task fail.
fn fails_as_a_whole(outcomes: &[Outcome]) -> bool {
    outcomes.iter().all(|outcome| match outcome {
        Err(Refused::Call(Error::TaskFailed { .. })) => true,
        Err(Refused::Call(error)) => error.fault().is_some_and(|fault| {
            fault.chain().any(|fault| {
                matches!(
                    fault.kind,
                    FaultKind::InvalidArgument { .. }
                        | FaultKind::NotSupported
                        | FaultKind::ResourceInUse { .. }
                )
            })
        }),
        _ => false,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spec(volume: &str) -> AttachSpec {
        AttachSpec { volume: VolumeId::from(volume), vm: MoRef::new("VirtualMachine", "vm-1") }
    }

    #[test]
    fn a_volume_never_gets_the_disk_of_another() {
        let specs = [spec("a"), spec("b")];
        let outcomes = vec![
            (Some(VolumeId::from("b")), Ok("disk-of-b".to_owned())),
            (None, Err(fault("no free slot"))),
        ];
        let found = by_spec(&specs, outcomes);
        assert!(found[0].is_err());
        assert!(matches!(&found[1], Ok(disk) if disk == "disk-of-b"));
    }

    #[test]
    fn a_fault_with_a_name_that_nobody_asked_for_counts_by_its_order() {
        // XML cannot represent the first character.
        let specs = [spec("\u{5}d2e0fc"), spec("b")];
        let unrepresentable = || Some(VolumeId::from("\u{FFFD}d2e0fc"));
        let outcomes = vec![
            (unrepresentable(), Err(fault("no such volume"))),
            (Some(VolumeId::from("b")), Ok("disk-of-b".to_owned())),
        ];
        let found = by_spec(&specs, outcomes);
        let message = |outcome: &Outcome| match outcome {
            Err(Refused::Volume(fault)) => fault.message.to_string(),
            other => panic!("{other:?}"),
        };
        assert_eq!(message(&found[0]), "no such volume");
        assert!(matches!(&found[1], Ok(disk) if disk == "disk-of-b"));
        // A disk never counts by its order.
        let disk = by_spec(&specs[..1], vec![(unrepresentable(), Ok("disk".to_owned()))]);
        assert_eq!(message(&disk[0]), "CNS returned no result for the volume");
    }

    #[test]
    fn each_volume_gets_its_own_outcome_in_any_order() {
        let specs = [spec("a"), spec("b"), spec("c")];
        let outcomes = vec![
            (Some(VolumeId::from("c")), Ok("uuid-c".to_owned())),
            (Some(VolumeId::from("a")), Ok("uuid-a".to_owned())),
        ];
        let found = by_spec(&specs, outcomes);
        assert_eq!(found[0].as_deref().ok(), Some("uuid-a"));
        assert!(matches!(&found[1], Err(Refused::Volume(_))), "no outcome is a failure");
        assert_eq!(found[2].as_deref().ok(), Some("uuid-c"));
    }

    #[test]
    fn attaches_and_detaches_are_not_mixed_and_keep_their_order() {
        let queue = VmQueue::default();
        for (volume, attach) in [("a", true), ("b", true), ("b", false), ("c", true)] {
            let (answer, _) = oneshot::channel();
            let mandate = Mandate::unlimited();
            queue.waiting().push(Request { volume: volume.into(), attach, mandate, answer });
        }
        let batch = |queue: &VmQueue| {
            queue.next_batch().into_iter().map(|r| r.volume).collect::<Vec<_>>().join(" ")
        };
        assert_eq!(batch(&queue), "a b");
        assert_eq!(batch(&queue), "b");
        assert_eq!(batch(&queue), "c");
    }
}
