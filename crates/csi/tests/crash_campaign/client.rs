//! A client of the driver, as the sidecars of Kubernetes are: it repeats each call until it succeeds, and only then
//! does the next thing with that volume.

use std::time::Duration;

use csi::proto::csi::{
    CapacityRange, ControllerExpandVolumeRequest, ControllerPublishVolumeRequest,
    ControllerUnpublishVolumeRequest, CreateSnapshotRequest, CreateVolumeRequest,
    DeleteSnapshotRequest, DeleteVolumeRequest, VolumeCapability, VolumeContentSource,
    controller_client::ControllerClient,
    volume_capability::{AccessMode, AccessType, MountVolume, access_mode::Mode},
    volume_content_source::{SnapshotSource, Type, VolumeSource},
};
use testkit::SeededRandom;
use tokio::time::{Instant, sleep, timeout};
use tonic::{Code, Response, Status, transport::Channel};

use crate::{
    Tally,
    lane::{Lane, NODES, Volume, node_id},
};

/// The operations, for the statistics.
pub(crate) const OPERATIONS: [&str; 9] = [
    "create",
    "delete",
    "attach",
    "detach",
    "expand",
    "snapshot",
    "delete snapshot",
    "restore",
    "clone",
];

/// How long an operation can take with all its repetitions.
const DEADLINE: Duration = Duration::from_mins(4);
const GIB: i64 = 1 << 30;

struct Held {
    id: String,
    name: String,
    gib: i64,
    node: Option<usize>,
    /// Name and id.
    snapshots: Vec<(String, String)>,
}

pub(crate) struct Client<'a> {
    lane: &'a Lane,
    random: SeededRandom,
    tally: &'a Tally,
    /// The start of its names, which are unique in the campaign.
    prefix: String,
    names: u64,
    volumes: Vec<Held>,
    history: Vec<String>,
}

type Caller = ControllerClient<Channel>;

impl<'a> Client<'a> {
    pub(crate) fn new(lane: &'a Lane, seed: u64, number: u64, tally: &'a Tally) -> Self {
        let random = SeededRandom::new(seed.wrapping_mul(1_000).wrapping_add(number + 1));
        let prefix = format!("{seed:08x}-{number:04x}");
        Self { lane, random, tally, prefix, names: 0, volumes: Vec::new(), history: Vec::new() }
    }

    /// The volumes that vCenter must have.
    pub(crate) fn held(&self) -> Vec<(String, Volume)> {
        let volume = |held: &Held| {
            let snapshots = held.snapshots.iter().map(|(name, _)| format!("{name}-{}", held.id));
            let mut snapshots: Vec<String> = snapshots.collect();
            snapshots.sort();
            Volume {
                name: held.name.clone(),
                mib: held.gib * 1024,
                vms: held.node.map(|number| format!("node-{number}")).into_iter().collect(),
                snapshots,
            }
        };
        self.volumes.iter().map(|held| (held.id.clone(), volume(held))).collect()
    }

    pub(crate) async fn work(&mut self, operations: u64) {
        self.create(None, 0).await;
        for _ in 1..operations {
            self.operation().await;
        }
    }

    /// Deletes everything.
    pub(crate) async fn clean_up(&mut self) {
        for at in (0..self.volumes.len()).rev() {
            if self.volumes[at].node.is_some() {
                self.detach(at).await;
            }
            while !self.volumes[at].snapshots.is_empty() {
                self.delete_snapshot(at).await;
            }
            self.delete(at).await;
        }
    }

    fn below(&mut self, bound: usize) -> usize {
        usize::try_from(self.random.below(bound as u64)).unwrap()
    }

    async fn operation(&mut self) {
        if self.volumes.is_empty() {
            return self.create(None, 0).await;
        }
        let at = self.below(self.volumes.len());
        let Held { node, snapshots, .. } = &self.volumes[at];
        let (attached, snapshots) = (node.is_some(), snapshots.len());
        match self.below(10) {
            0 => self.create(None, 0).await,
            1 if !attached && snapshots == 0 => self.delete(at).await,
            3 if snapshots == 0 => self.expand(at).await,
            4 | 5 if snapshots < 2 => self.snapshot(at).await,
            6 if snapshots > 0 => self.delete_snapshot(at).await,
            6 | 7 if snapshots > 0 => {
                let snapshot_id = self.volumes[at].snapshots[0].1.clone();
                let source = Type::Snapshot(SnapshotSource { snapshot_id });
                self.create(Some(source), self.volumes[at].gib).await;
            }
            7 | 8 => {
                let volume_id = self.volumes[at].id.clone();
                let source = Type::Volume(VolumeSource { volume_id });
                self.create(Some(source), self.volumes[at].gib).await;
            }
            _ if attached => self.detach(at).await,
            _ => self.attach(at).await,
        }
    }

    async fn create(&mut self, source: Option<Type>, at_least: i64) {
        self.names += 1;
        let name = format!("pvc-{}-4000-8000-{:012x}", self.prefix, self.names);
        let what = match &source {
            None => "create",
            Some(Type::Snapshot(_)) => "restore",
            Some(Type::Volume(_)) => "clone",
        };
        let gib = at_least + i64::from(at_least == 0 || self.random.one_in(2));
        let request = CreateVolumeRequest {
            name: name.clone(),
            capacity_range: Some(CapacityRange { required_bytes: gib * GIB, limit_bytes: 0 }),
            volume_capabilities: vec![mount()],
            volume_content_source: source
                .map(|source| VolumeContentSource { r#type: Some(source) }),
            ..Default::default()
        };
        let created = self
            .until_done(what, &name, async |mut driver: Caller| {
                driver.create_volume(request.clone()).await
            })
            .await;
        let id = created.volume.unwrap().volume_id;
        self.volumes.push(Held { id, name, gib, node: None, snapshots: Vec::new() });
    }

    async fn delete(&mut self, at: usize) {
        let volume_id = self.volumes[at].id.clone();
        let request = DeleteVolumeRequest { volume_id: volume_id.clone(), ..Default::default() };
        self.until_done("delete", &volume_id, async |mut driver: Caller| {
            driver.delete_volume(request.clone()).await
        })
        .await;
        self.volumes.remove(at);
    }

    async fn attach(&mut self, at: usize) {
        let number = 1 + self.below(NODES);
        let volume_id = self.volumes[at].id.clone();
        let request = ControllerPublishVolumeRequest {
            volume_id: volume_id.clone(),
            node_id: node_id(number),
            volume_capability: Some(mount()),
            ..Default::default()
        };
        let attached = self
            .until_done("attach", &volume_id, async |mut driver: Caller| {
                driver.controller_publish_volume(request.clone()).await
            })
            .await;
        assert!(attached.publish_context.contains_key("diskUUID"), "{attached:?}");
        self.volumes[at].node = Some(number);
    }

    async fn detach(&mut self, at: usize) {
        let Held { id, node, .. } = &self.volumes[at];
        let request = ControllerUnpublishVolumeRequest {
            volume_id: id.clone(),
            node_id: node_id(node.unwrap()),
            ..Default::default()
        };
        self.until_done("detach", &request.volume_id, async |mut driver: Caller| {
            driver.controller_unpublish_volume(request.clone()).await
        })
        .await;
        self.volumes[at].node = None;
    }

    async fn expand(&mut self, at: usize) {
        let gib = self.volumes[at].gib + 1;
        let request = ControllerExpandVolumeRequest {
            volume_id: self.volumes[at].id.clone(),
            capacity_range: Some(CapacityRange { required_bytes: gib * GIB, limit_bytes: 0 }),
            volume_capability: Some(mount()),
            ..Default::default()
        };
        self.until_done("expand", &request.volume_id, async |mut driver: Caller| {
            driver.controller_expand_volume(request.clone()).await
        })
        .await;
        self.volumes[at].gib = gib;
    }

    async fn snapshot(&mut self, at: usize) {
        self.names += 1;
        let name = format!("snapshot-{}-4000-8000-{:012x}", self.prefix, self.names);
        let request = CreateSnapshotRequest {
            source_volume_id: self.volumes[at].id.clone(),
            name: name.clone(),
            ..Default::default()
        };
        let taken = self
            .until_done("snapshot", &name, async |mut driver: Caller| {
                driver.create_snapshot(request.clone()).await
            })
            .await;
        self.volumes[at].snapshots.push((name, taken.snapshot.unwrap().snapshot_id));
    }

    async fn delete_snapshot(&mut self, at: usize) {
        let snapshot_id = self.volumes[at].snapshots[0].1.clone();
        let request = DeleteSnapshotRequest { snapshot_id, ..Default::default() };
        self.until_done("delete snapshot", &request.snapshot_id, async |mut driver: Caller| {
            driver.delete_snapshot(request.clone()).await
        })
        .await;
        self.volumes[at].snapshots.remove(0);
    }

    /// Calls until the call succeeds. Other codes than "try again" are bugs: the client does nothing wrong.
    async fn until_done<T>(
        &mut self,
        what: &'static str,
        object: &str,
        call: impl AsyncFn(Caller) -> Result<Response<T>, Status>,
    ) -> T {
        self.tally.count(what);
        self.history.push(format!("{what} {object}"));
        let began = Instant::now();
        loop {
            // Some callers give up early.
            let limit = if self.random.one_in(4) { 20 + self.random.below(400) } else { 60_000 };
            let attempt = async { call(self.lane.connect().await?).await };
            let gave_up = Status::deadline_exceeded("the client gave up");
            let limit = Duration::from_millis(limit);
            let status = match timeout(limit, attempt).await.unwrap_or(Err(gave_up)) {
                Ok(answer) => return answer.into_inner(),
                Err(status) => status,
            };
            self.history.push(format!("  {:?} {}", status.code(), status.message()));
            let is_temporary = matches!(
                status.code(),
                Code::Unavailable
                    | Code::Aborted
                    | Code::DeadlineExceeded
                    | Code::Internal
                    | Code::Unknown
                    | Code::Cancelled
            );
            assert!(
                is_temporary && began.elapsed() < DEADLINE,
                "{}: {what} {object} failed after {:?}:\n{}\n{}",
                self.prefix,
                began.elapsed(),
                self.history.join("\n"),
                self.lane.log()
            );
            sleep(Duration::from_millis(20 + self.random.below(100))).await;
        }
    }
}

fn mount() -> VolumeCapability {
    VolumeCapability {
        access_mode: Some(AccessMode { mode: Mode::SingleNodeWriter.into() }),
        access_type: Some(AccessType::Mount(MountVolume::default())),
    }
}
