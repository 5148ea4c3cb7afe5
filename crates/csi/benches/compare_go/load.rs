//! The calls of a load, and what they cost.

use std::{collections::BTreeMap, time::Duration};

use csi::proto::csi::{
    CapacityRange, ControllerPublishVolumeRequest, ControllerUnpublishVolumeRequest,
    CreateVolumeRequest, DeleteVolumeRequest, VolumeCapability,
    controller_client::ControllerClient,
    volume_capability::{AccessMode, AccessType, MountVolume, access_mode::Mode},
};
use futures::StreamExt as _;
use testkit::eventually;
use tokio::time::Instant;
use tonic::{Status, transport::Channel};

use crate::environment::{Driver, Environment, Memory, Running};

pub(crate) const STEPS: [&str; 4] = ["create", "attach", "detach", "delete"];
/// Small, so that all fit on the datastores.
const SIZE: i64 = 100 << 20;
/// A VM has slots for 60 disks.
const PER_NODE: usize = 50;

pub(crate) struct Load {
    pub(crate) volumes: usize,
    pub(crate) parallel: usize,
    /// Per answer of vCenter.
    pub(crate) latency: Duration,
    /// For each step.
    pub(crate) limit: Duration,
}

#[derive(Debug)]
pub(crate) struct Result {
    /// From the start of the process until it had created a volume.
    pub(crate) start: Duration,
    pub(crate) steps: Vec<Step>,
    pub(crate) memory: Memory,
}

/// One step for all volumes.
#[derive(Debug)]
pub(crate) struct Step {
    volumes: usize,
    done: usize,
    seconds: f64,
    /// By method of vCenter.
    calls: BTreeMap<String, u64>,
    /// Requests for operation records.
    reads: u64,
    writes: u64,
    errors: BTreeMap<String, usize>,
}

impl Step {
    pub(crate) fn cell(&self) -> String {
        let done = self.done.max(1) as f64;
        let calls: u64 = self.calls.values().sum();
        let part = if self.done < self.volumes {
            format!(" ({} of {} done)", self.done, self.volumes)
        } else {
            String::new()
        };
        format!(
            "{:.2} s{part}, {:.1} a second, {:.2} calls and {:.1} writes each",
            self.seconds,
            done / self.seconds,
            calls as f64 / done,
            self.writes as f64 / done,
        )
    }
}

#[derive(Clone)]
struct Volume {
    name: String,
    id: String,
    node: String,
}

type Client = ControllerClient<Channel>;

pub(crate) async fn run(environment: &Environment, driver: Driver, load: &Load) -> Result {
    environment.delay(load.latency).await;
    let began = Instant::now();
    let running = environment.start(driver).await;
    let client = running.connect().await;
    let prefix = format!("{driver:?}-{}", load.latency.as_millis()).to_lowercase();
    let first = first_volume(&client, &format!("pvc-{prefix}-first"), &running).await;
    let start = began.elapsed();
    delete(client.clone(), first).await.unwrap();
    // The Go driver goes on to look for its nodes.
    environment.until_quiet().await;
    let mut volumes: Vec<Volume> = (0..load.volumes)
        .map(|number| Volume {
            name: format!("pvc-{prefix}-{number:05}"),
            id: String::new(),
            node: environment.nodes[number % environment.nodes.len()].clone(),
        })
        .collect();
    let mut steps = Vec::new();
    for name in STEPS {
        let attached = volumes.len().min(PER_NODE * environment.nodes.len());
        let (some, rest) = match name {
            "attach" | "detach" => (volumes[..attached].to_vec(), volumes[attached..].to_vec()),
            _ => (volumes, Vec::new()),
        };
        let (step, done) = measure(environment, &client, load, name, some).await;
        steps.push(step);
        volumes = done.into_iter().chain(rest).collect();
    }
    Result { start, steps, memory: running.memory() }
}

async fn measure(
    environment: &Environment,
    client: &Client,
    load: &Load,
    name: &str,
    volumes: Vec<Volume>,
) -> (Step, Vec<Volume>) {
    environment.vcenter.forget_calls().await;
    let (reads, writes) = environment.record_requests();
    let mut step = Step {
        volumes: volumes.len(),
        done: 0,
        seconds: 0.0,
        calls: BTreeMap::new(),
        reads: 0,
        writes: 0,
        errors: BTreeMap::new(),
    };
    let began = Instant::now();
    let mut running = futures::stream::iter(volumes)
        .map(|volume| call(name, client.clone(), volume))
        .buffer_unordered(load.parallel);
    let mut done = Vec::new();
    let all = async {
        while let Some(result) = running.next().await {
            match result {
                Ok(volume) => done.push(volume),
                Err(status) => *step.errors.entry(status.message().to_owned()).or_default() += 1,
            }
        }
    };
    let _ = tokio::time::timeout(load.limit, all).await;
    step.seconds = began.elapsed().as_secs_f64();
    drop(running);
    step.done = done.len();
    step.calls = environment.vcenter.calls().await.total;
    // The API server writes its audit log with a small delay.
    tokio::time::sleep(Duration::from_millis(500)).await;
    let after = environment.record_requests();
    (step.reads, step.writes) = (after.0 - reads, after.1 - writes);
    (step, done)
}

async fn call(name: &str, client: Client, volume: Volume) -> std::result::Result<Volume, Status> {
    match name {
        "create" => create(client, volume).await,
        "attach" => attach(client, volume).await,
        "detach" => detach(client, volume).await,
        _ => delete(client, volume).await,
    }
}

async fn first_volume(client: &Client, name: &str, running: &Running) -> Volume {
    let volume = Volume { name: name.to_owned(), id: String::new(), node: String::new() };
    eventually("the driver creates a volume", 60, async || {
        create(client.clone(), volume.clone())
            .await
            .map_err(|status| format!("{status}\n{}", running.process.tail()))
    })
    .await
}

async fn create(mut client: Client, volume: Volume) -> std::result::Result<Volume, Status> {
    let request = CreateVolumeRequest {
        name: volume.name.clone(),
        capacity_range: Some(CapacityRange { required_bytes: SIZE, limit_bytes: 0 }),
        volume_capabilities: vec![mount()],
        ..Default::default()
    };
    let created = client.create_volume(request).await?.into_inner().volume.unwrap();
    Ok(Volume { id: created.volume_id, ..volume })
}

async fn attach(mut client: Client, volume: Volume) -> std::result::Result<Volume, Status> {
    let request = ControllerPublishVolumeRequest {
        volume_id: volume.id.clone(),
        node_id: volume.node.clone(),
        volume_capability: Some(mount()),
        ..Default::default()
    };
    client.controller_publish_volume(request).await?;
    Ok(volume)
}

async fn detach(mut client: Client, volume: Volume) -> std::result::Result<Volume, Status> {
    let request = ControllerUnpublishVolumeRequest {
        volume_id: volume.id.clone(),
        node_id: volume.node.clone(),
        ..Default::default()
    };
    client.controller_unpublish_volume(request).await?;
    Ok(volume)
}

async fn delete(mut client: Client, volume: Volume) -> std::result::Result<Volume, Status> {
    let request = DeleteVolumeRequest { volume_id: volume.id.clone(), ..Default::default() };
    client.delete_volume(request).await?;
    Ok(volume)
}

fn mount() -> VolumeCapability {
    VolumeCapability {
        access_mode: Some(AccessMode { mode: Mode::SingleNodeWriter.into() }),
        access_type: Some(AccessType::Mount(MountVolume {
            fs_type: "ext4".to_owned(),
            ..Default::default()
        })),
    }
}
