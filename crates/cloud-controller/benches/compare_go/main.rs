//! Compares our controller with the Go controller: same control plane, same simulator, 20 ms to vCenter.
//!
//! `make bench ARGS=cloud-controller`, or
//! `cargo bench -p cloud-controller --bench compare_go -- 50 500 5000 --go-seconds=900 --quiet-seconds=600`;
//! `-- ./vsphere-cloud-controller-manager` measures an existing binary.
//!
//! The Go controller runs twice: with its default flags, and with higher limits for its requests to the API
//! server. With its default flags it needs an hour for 5,000 nodes and about eight minutes for 500. With up to
//! 500 nodes it runs until it finishes or for `--go-seconds` (default 15 minutes). With more nodes it runs for
//! two minutes and the rest is extrapolated (≈): the time from its pace, the calls from its calls per node at
//! the largest size it finished. The output ends with the tables for docs/benchmarks.md.
#![allow(clippy::unwrap_used, clippy::panic, clippy::print_stdout, reason = "a bench prints")]
#![allow(clippy::cast_precision_loss, reason = "figures for people")]

mod page;

use std::{collections::BTreeMap, path::PathBuf, sync::LazyLock, time::Duration};

use cloud_controller::nodes::{LabelFilter, Nodes};
use futures::StreamExt as _;
use k8s_openapi::api::{coordination::v1::Lease, core::v1::Node as KubeNode};
use kube::{
    Api,
    api::{DeleteParams, Patch, PatchParams, PostParams},
};
use page::{MORE_THAN, Measured, Page, Size, memory, seconds, thousands};
use runtime::lease::Mandate;
use serde_json::json;
use testkit::{
    CloudController, ControlPlane, FaultProxy, Inventory, Process, Vcenter, Vm, Workdir,
};
use tokio::{task::JoinSet, time::Instant};

const UNINITIALIZED: &str = "node.cloudprovider.kubernetes.io/uninitialized";
const SHUTDOWN: &str = "node.cloudprovider.kubernetes.io/shutdown";
/// Latency in each direction: 20 ms per answer.
const ONE_WAY: Duration = Duration::from_millis(10);
/// Time before the memory of the Go controller is measured.
const GO_SETTLES: Duration = Duration::from_mins(3);
/// With more nodes than this, the Go controller runs only for [`PART`].
const TO_THE_END: usize = 500;
const PART: Duration = Duration::from_mins(2);
/// Limits for requests to the API server that never make the Go controller wait. Its default is 20 a second, in bursts
/// of 30.
const RAISED_LIMITS: [(&str, &str); 2] = [("kube-api-qps", "1000"), ("kube-api-burst", "2000")];
/// Nodes powered off at once.
const STOPPED: usize = 200;

/// Our controller as shipped.
static PROGRAM: LazyLock<PathBuf> =
    LazyLock::new(|| testkit::shipped("cloud-controller", "vsphere-cloud-controller-manager"));

struct Options {
    sizes: Vec<usize>,
    go: Duration,
    quiet: Duration,
}

fn options() -> Options {
    let mut options =
        Options { sizes: Vec::new(), go: Duration::from_mins(15), quiet: Duration::from_mins(10) };
    for argument in std::env::args().skip(1) {
        let seconds = |text: &str| Duration::from_secs(text.parse().unwrap());
        if let Some(text) = argument.strip_prefix("--go-seconds=") {
            options.go = seconds(text);
        } else if let Some(text) = argument.strip_prefix("--quiet-seconds=") {
            options.quiet = seconds(text);
        } else if let Ok(size) = argument.parse() {
            options.sizes.push(size);
        }
    }
    if options.sizes.is_empty() {
        options.sizes = vec![50, 500, 5000];
    }
    options
}

/// The environment of the controllers.
struct Environment {
    plane: ControlPlane,
    vcenter: Vcenter,
    proxy: FaultProxy,
    workdir: Workdir,
    nodes: Nodes,
    vms: Vec<Vm>,
    _following: JoinSet<()>,
}

impl Environment {
    async fn of_size(size: usize) -> Self {
        let vms: Vec<Vm> = (1..=size).map(|n| Vm::numbered("node", n)).collect();
        let clusters: &[&str] = &["/DC0/host/cluster-a", "/DC0/host/cluster-b"];
        let inventory = Inventory::small()
            .vms(vms.clone())
            .category("k8s-zone", &[("zone-a", &clusters[..1]), ("zone-b", &clusters[1..])])
            .category("k8s-region", &[("eu", &["/DC0"])]);
        let (plane, vcenter) = tokio::join!(ControlPlane::start(), Vcenter::start(inventory));
        let proxy = FaultProxy::before(vcenter.address()).await;
        proxy.delay(ONE_WAY);
        let nodes = Nodes::new(plane.client(), LabelFilter::default(), Mandate::unlimited());
        let mut following = JoinSet::new();
        let stream = nodes.watch();
        following.spawn(async move { std::pin::pin!(stream).for_each(async |_| {}).await });
        let workdir = Workdir::new("compare-go").unwrap();
        let environment =
            Self { plane, vcenter, proxy, workdir, nodes, vms, _following: following };
        environment.configuration();
        environment
    }

    fn configuration(&self) -> PathBuf {
        let text = format!(
            "global: {{port: {}, insecureFlag: true}}\nvcenter:\n  one: {{server: 127.0.0.1, user: '{}', \
             password: '{}', datacenters: [DC0]}}\nlabels: {{zone: k8s-zone, region: k8s-region}}\n",
            self.proxy.address().port(),
            self.vcenter.user(),
            self.vcenter.password(),
        );
        self.workdir.write("vsphere.conf", text).unwrap()
    }

    async fn ours(&self) -> Process {
        self.with_leader_election().await.run(&PROGRAM, "ours", &self.plane, &self.workdir).unwrap()
    }

    /// With leader election, as in a cluster. Deletes the lease of the killed predecessor.
    async fn with_leader_election(&self) -> CloudController {
        let leases = Api::<Lease>::namespaced(self.plane.client(), "kube-system");
        let _ = leases.delete("cloud-controller-manager", &DeleteParams::default()).await;
        CloudController::on(&self.configuration()).set("leader-elect", "true")
    }

    async fn go(&self, more: &[(&str, &str)]) -> Process {
        let go = self.with_leader_election().await;
        let go = more.iter().fold(go, |go, (flag, value)| go.set(flag, value));
        go.upstream("go", &self.plane, &self.workdir).unwrap()
    }

    /// Re-creates every node: Ready and uninitialised.
    async fn fresh_nodes(&self) {
        let api = Api::<KubeNode>::all(self.plane.client());
        let is_fresh = |vm: &&Vm| {
            let node = self.nodes.get(&vm.name);
            node.is_some_and(|node| node.is_uninitialized() && node.provider_id.is_empty())
        };
        let work = self.vms.iter().filter(|vm| !is_fresh(vm)).map(|vm| {
            let api = api.clone();
            async move {
                let node: KubeNode = serde_json::from_value(json!({
                    "metadata": {"name": vm.name, "labels": {"kubernetes.io/hostname": vm.name}},
                    "spec": {"taints": [{"key": UNINITIALIZED, "value": "true", "effect": "NoSchedule"}]},
                    "status": {
                        "addresses": [{"type": "Hostname", "address": vm.name}],
                        "conditions": [{"type": "Ready", "status": "True"}],
                        "nodeInfo": {
                            "systemUUID": vm.uuid, "architecture": "amd64", "bootID": "", "machineID": "",
                            "containerRuntimeVersion": "", "kernelVersion": "", "kubeProxyVersion": "",
                            "kubeletVersion": "v1.36.4", "operatingSystem": "linux", "osImage": "",
                        },
                    },
                }))
                .unwrap();
                let _ = api.delete(&vm.name, &DeleteParams::default()).await;
                api.create(&PostParams::default(), &node).await.unwrap();
            }
        });
        futures::stream::iter(work).buffer_unordered(16).collect::<Vec<()>>().await;
        self.until(Duration::from_mins(2), |node| {
            node.is_uninitialized() && node.provider_id.is_empty()
        })
        .await;
    }

    fn count(&self, is: impl Fn(&cloud_controller::model::Node) -> bool) -> usize {
        self.nodes.all().iter().filter(|node| is(node)).count()
    }

    /// Waits until all nodes match or the time is over. Returns the number of matches and the time.
    async fn until(
        &self,
        within: Duration,
        is: impl Fn(&cloud_controller::model::Node) -> bool,
    ) -> (usize, Duration) {
        let start = Instant::now();
        loop {
            let count = self.count(&is);
            if count >= self.vms.len() || start.elapsed() > within {
                return (count, start.elapsed());
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    async fn initialised(&self, within: Duration) -> (usize, Duration) {
        let done = |node: &cloud_controller::model::Node| {
            !node.is_uninitialized() && !node.provider_id.is_empty() && node.addresses.len() > 1
        };
        self.until(within, done).await
    }

    async fn set_ready(&self, names: &[String], ready: bool) {
        let api = Api::<KubeNode>::all(self.plane.client());
        let status = if ready { "True" } else { "False" };
        let patch = json!({"status": {"conditions": [{"type": "Ready", "status": status}]}});
        let work = names.iter().map(|name| {
            let (api, patch) = (api.clone(), patch.clone());
            async move {
                api.patch_status(name, &PatchParams::default(), &Patch::Strategic(patch))
                    .await
                    .unwrap();
            }
        });
        futures::stream::iter(work).buffer_unordered(16).collect::<Vec<()>>().await;
    }

    async fn set_power(&self, names: &[String], power: &str) {
        for name in names {
            self.vcenter.patch_vm(&format!("/DC0/vm/{name}"), json!({ "power": power })).await;
        }
    }

    /// Waits until vCenter gets no call for three seconds.
    async fn until_quiet(&self, within: Duration) {
        let end = Instant::now() + within;
        let (mut last, mut since) = (0, Instant::now());
        while Instant::now() < end && since.elapsed() < Duration::from_secs(3) {
            let now = self.vcenter.calls().await.sum();
            if now != last {
                (last, since) = (now, Instant::now());
            }
            tokio::time::sleep(Duration::from_millis(200)).await;
        }
    }
}

/// The load average of this computer over 1, 5 and 15 minutes.
fn load() -> String {
    let text = std::fs::read_to_string("/proc/loadavg").unwrap_or_default();
    text.split(' ').take(3).collect::<Vec<_>>().join(", ")
}

#[tokio::main]
async fn main() {
    let options = options();
    LazyLock::force(&PROGRAM);
    let before = load();
    let mut page = Page::default();
    let (mut last, mut calls_per_node) = (None, [None; 2]);
    for size in &options.sizes {
        drop(last.take());
        let environment = Environment::of_size(*size).await;
        let timeouts = if *size <= TO_THE_END { options.go } else { options.go.min(PART) };
        let mut go = Vec::new();
        let variants: [&[(&str, &str)]; 2] = [&[], &RAISED_LIMITS];
        for (flags, calls_per_node) in variants.into_iter().zip(&mut calls_per_node) {
            environment.fresh_nodes().await;
            go.push(measure_go(&environment, *size, flags, timeouts, calls_per_node).await);
        }
        let [go, raised] = <[Measured; 2]>::try_from(go).ok().unwrap();
        environment.fresh_nodes().await;
        environment.vcenter.forget_calls().await;
        let process = environment.ours().await;
        let done = environment.initialised(Duration::from_mins(10)).await;
        let calls = environment.vcenter.calls().await;
        let ours = Measured::new(done, *size, calls.sum(), &process);
        for (name, m) in [("Go", &go), ("Go with raised limits", &raised), ("ours", &ours)] {
            println!("{size} nodes, {name}: {}; {}", m.cell(), m.memory);
        }
        println!("{:?}; load {}", calls.total, load());
        page.sizes.push(Size { nodes: *size, go, raised, ours });
        last = Some((environment, process));
    }
    let Some((environment, process)) = last else { return };
    quiet(&environment, &process, options.quiet, &mut page).await;
    drop(process);
    restart(&environment, &mut page).await;
    go_memory(&environment, &mut page).await;
    drop(environment);
    go_rounds(&mut page).await;
    power_off(&mut page).await;
    page.print((&before, &load()));
}

/// `calls_per_node` is that of the largest size which this variant finished.
async fn measure_go(
    environment: &Environment,
    size: usize,
    flags: &[(&str, &str)],
    within: Duration,
    calls_per_node: &mut Option<f64>,
) -> Measured {
    environment.vcenter.forget_calls().await;
    let process = environment.go(flags).await;
    let done = environment.initialised(within).await;
    let calls = environment.vcenter.calls().await.sum();
    let mut measured = Measured::new(done, size, calls, &process);
    match *calls_per_node {
        Some(per_node) if !measured.mark.is_empty() => {
            (measured.calls, measured.calls_mark) = (per_node * size as f64, "≈ ");
        }
        _ if measured.mark != MORE_THAN => *calls_per_node = Some(measured.calls / size as f64),
        _ => {}
    }
    measured
}

/// Calls and memory of our controller while nothing changes.
async fn quiet(environment: &Environment, process: &Process, time: Duration, page: &mut Page) {
    environment.until_quiet(Duration::from_secs(30)).await;
    environment.vcenter.forget_calls().await;
    tokio::time::sleep(time).await;
    let calls = environment.vcenter.calls().await;
    println!("Quiet, ours, {} s: {:?}", time.as_secs(), calls.total);
    page.note(
        format!("a quiet time with {} nodes", thousands(environment.vms.len() as f64)),
        "see the rounds below",
        format!(
            "{} calls in {} s, {:.0} an hour at that pace; {}",
            calls.sum(),
            time.as_secs(),
            calls.sum() as f64 * 3600.0 / time.as_secs_f64(),
            memory(process),
        ),
    );
}

/// Restarts our controller with initialised nodes.
async fn restart(environment: &Environment, page: &mut Page) {
    let versions = |environment: &Environment| -> BTreeMap<String, String> {
        let all = environment.nodes.all();
        all.iter().map(|n| (n.name.to_string(), n.resource_version.to_string())).collect()
    };
    let before = versions(environment);
    environment.vcenter.forget_calls().await;
    let process = environment.ours().await;
    testkit::eventually("the inventory and all nodes are listed", 60, async || {
        let log = process.log();
        let knows =
            log.contains("the inventory watch is live") && log.contains("all nodes are listed");
        if knows { Ok(()) } else { Err(log) }
    })
    .await;
    environment.until_quiet(Duration::from_secs(30)).await;
    // It syncs each node once before it is idle.
    process.until_idle().await;
    let after = versions(environment);
    let written = after.iter().filter(|(name, version)| before.get(*name) != Some(version)).count();
    page.note(
        format!("a restart over {} initialised nodes", thousands(before.len() as f64)),
        "",
        format!(
            "{written} of them written, {} calls, then {}",
            environment.vcenter.calls().await.sum(),
            memory(&process)
        ),
    );
}

/// Memory of the Go controller with all nodes. Without added latency, which would only delay it.
async fn go_memory(environment: &Environment, page: &mut Page) {
    environment.proxy.heal();
    let process = environment.go(&[]).await;
    // It reads all nodes, then queries vCenter for one after the other.
    tokio::time::sleep(GO_SETTLES).await;
    page.note(
        format!("memory over {} initialised nodes", thousands(environment.vms.len() as f64)),
        format!("after {GO_SETTLES:?}: {}", memory(&process)),
        "see the two lines above",
    );
    drop(process);
    environment.proxy.delay(ONE_WAY);
}

/// Calls of a status update round of the Go controller, every five minutes by default.
async fn go_rounds(page: &mut Page) {
    let environment = Environment::of_size(50).await;
    environment.fresh_nodes().await;
    let ours = environment.ours().await;
    environment.initialised(Duration::from_mins(1)).await;
    drop(ours);
    let _process = environment.go(&[("node-status-update-frequency", "1s")]).await;
    environment.until_quiet(Duration::from_secs(10)).await;
    environment.vcenter.forget_calls().await;
    tokio::time::sleep(Duration::from_secs(45)).await;
    let calls = environment.vcenter.calls().await;
    // The number of rounds follows from the logins: one per node and round.
    let rounds = calls.count("POST /rest/com/vmware/cis/session") as f64 / 50.0;
    let per_node = calls.sum() as f64 / (rounds * 50.0).max(1.0);
    page.note(
        "a round of status updates, every five minutes",
        format!(
            "{per_node:.0} calls a node (measured over {rounds:.1} rounds of 50 nodes): {} an hour with 5,000 \
             nodes, if it could keep up",
            thousands(per_node * 5000.0 * 12.0)
        ),
        "none",
    );
}

/// Powers off many VMs at once. First as vCenter does: a stopped guest reports nothing, which the Go
/// controller treats as an error, so it taints no node. Then with the last guest reports kept, which is the
/// best case for the Go controller.
async fn power_off(page: &mut Page) {
    let environment = Environment::of_size(STOPPED).await;
    environment.fresh_nodes().await;
    let names: Vec<String> = environment.vms.iter().map(|vm| vm.name.clone()).collect();
    let ours = environment.ours().await;
    environment.initialised(Duration::from_mins(1)).await;
    let mut results = Vec::new();
    for reported in [false, true] {
        results.push(stop_all(&environment, &names, reported).await);
    }
    drop(ours);
    let _go = environment.go(&[]).await;
    environment.until_quiet(Duration::from_mins(1)).await;
    for (reported, ours) in [false, true].into_iter().zip(results) {
        let go = stop_all(&environment, &names, reported).await;
        let guests =
            if reported { "everything the guests reported left in place" } else { "guests silent" };
        let what =
            format!("{STOPPED} VMs powered off at once, {guests}, until all nodes are tainted");
        page.note(what, go, ours);
    }
}

async fn stop_all(environment: &Environment, names: &[String], reported: bool) -> String {
    environment.vcenter.forget_calls().await;
    let start = Instant::now();
    environment.set_power(names, "off").await;
    if reported {
        for vm in &environment.vms {
            let guest = json!({"hostName": vm.host_name, "nics": vm.nics, "tools": "running"});
            environment.vcenter.patch_vm(&format!("/DC0/vm/{}", vm.name), guest).await;
        }
    }
    let waiting = environment.until(Duration::from_secs(45), |node| node.has_taint(SHUTDOWN));
    let ((count, _), ()) = tokio::join!(waiting, environment.set_ready(names, false));
    let (time, calls) = (start.elapsed(), environment.vcenter.calls().await.sum());
    environment.set_power(names, "on").await;
    for vm in &environment.vms {
        let guest = json!({"hostName": vm.host_name, "nics": vm.nics, "tools": "running"});
        environment.vcenter.patch_vm(&format!("/DC0/vm/{}", vm.name), guest).await;
    }
    environment.set_ready(names, true).await;
    environment.until(Duration::from_secs(30), |node| !node.has_taint(SHUTDOWN)).await;
    format!("{count} after {}, {calls} calls", seconds(time.as_secs_f64()))
}
