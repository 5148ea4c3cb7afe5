//! Compares this client with govmomi: same simulator, same VMs, same run.
//!
//! Each client works in a process of its own. The same code reads CPU time and memory of both from
//! the kernel. Then measures features that only this client has: a quiet hour, and the latency of a
//! change.
#![allow(
    clippy::print_stdout,
    clippy::unwrap_used,
    reason = "a bench prints its table and fails by panicking"
)]

use std::io::{BufRead as _, BufReader, Write as _};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value as Json, json};
use testkit::{Inventory, Vcenter, Vm as SimulatedVm, peer};
use tokio::time::Instant;
use vsphere::inventory::{Event, Selection};
use vsphere::{BiosUuid, CallCounter, Client, Credentials, Limits, Trust};

const VMS: usize = 5_000;
const LOOKUPS: usize = 1_000;
const RUNS: usize = 5;

/// The VM properties that a cloud controller reads.
const TWELVE: &[&str] = &[
    "name",
    "config.uuid",
    "config.instanceUuid",
    "config.version",
    "config.guestId",
    "config.hardware.numCPU",
    "config.hardware.memoryMB",
    "guest.hostName",
    "guest.net",
    "guest.toolsRunningStatus",
    "runtime.host",
    "runtime.powerState",
];

fn main() {
    let arguments: Vec<String> = std::env::args().collect();
    let runtime = tokio::runtime::Runtime::new().unwrap();
    if let Some(at) = arguments.iter().position(|argument| argument == "--child") {
        runtime.block_on(child(&arguments[at + 1], &arguments[at + 2]));
    } else {
        runtime.block_on(measure());
    }
}

async fn measure() {
    let govmomi = peer("govmomi-inventory");
    let vcenter = Vcenter::start(Inventory::with_vms(VMS)).await;
    println!("{VMS} VMs, {LOOKUPS} lookups; the median by CPU time of {RUNS} runs\n");
    println!("| work | | calls | wall | CPU | peak memory |");
    println!("|---|---|---|---|---|---|");
    let retrieve_go = median(&vcenter, || govmomi_process(&govmomi, &vcenter, "retrieve")).await;
    row("12 properties of every VM", "govmomi 0.56", &retrieve_go);
    let retrieve = median(&vcenter, || own_process(&vcenter, "retrieve")).await;
    row("", "vsphere", &retrieve);
    let find_go = median(&vcenter, || govmomi_process(&govmomi, &vcenter, "find")).await;
    row("lookups by uuid", "govmomi 0.56, FindByUuid", &find_go);
    row("", "vsphere, from cold", &median(&vcenter, || own_process(&vcenter, "find")).await);
    row(
        "",
        "vsphere, from the watch",
        &median(&vcenter, || own_process(&vcenter, "watched")).await,
    );

    println!();
    let ratio = |ours: f64, theirs: f64| format!("{:.2}", ours / theirs);
    println!("| promise | allowed | measured |\n|---|---|---|");
    let cpu = ratio(retrieve.cpu.as_secs_f64(), retrieve_go.cpu.as_secs_f64());
    println!("| CPU to read 12 properties, of govmomi's | 0.50 | {cpu} |");
    #[allow(clippy::cast_precision_loss)]
    let memory = ratio(retrieve.peak as f64, retrieve_go.peak as f64);
    println!("| peak memory for it, of govmomi's | 0.33 | {memory} |");
    let idle = median(&vcenter, || own_process(&vcenter, "idle")).await;
    println!(
        "| memory of an idle process that watches {VMS} VMs | 25 MiB | {} |",
        mib(idle.resident)
    );
    println!(
        "| calls in a quiet hour (run with every interval 120 times shorter) | 60 | {} |",
        quiet_hour(&vcenter).await
    );
    let (median, worst) = change_latency(&vcenter).await;
    println!(
        "| a change reaches the reader, of 50 | 100 ms | median {median:.0?}, worst {worst:.0?} |"
    );
}

/// The resources that a process used.
struct Used {
    calls: u64,
    wall: f64,
    cpu: Duration,
    peak: u64,
    resident: u64,
}

fn row(work: &str, who: &str, used: &Used) {
    let cpu = used.cpu.as_secs_f64();
    println!(
        "| {work} | {who} | {} | {:.3} s | {cpu:.2} s | {} |",
        used.calls,
        used.wall,
        mib(used.peak)
    );
}

fn mib(bytes: u64) -> String {
    #[allow(clippy::cast_precision_loss)]
    let mib = bytes as f64 / f64::from(1 << 20);
    format!("{mib:.1} MiB")
}

/// Runs a program five times. Returns the usage of the run with the median CPU time.
async fn median(vcenter: &Vcenter, start: impl Fn() -> Command) -> Used {
    let mut runs = Vec::new();
    for _ in 0..RUNS {
        runs.push(run(vcenter, start()).await);
    }
    runs.sort_by_key(|used| used.cpu);
    runs.swap_remove(RUNS / 2)
}

/// Runs the workload in a process. The process reports when it is ready, works on request, and
/// stays until its usage was read.
async fn run(vcenter: &Vcenter, mut command: Command) -> Used {
    let mut process = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    let mut output = BufReader::new(process.stdout.take().unwrap());
    line(&mut output);
    let (before, _, _) = accounts(&process);
    vcenter.forget_calls().await;
    process.stdin.as_mut().unwrap().write_all(b"\n").unwrap();
    let report = line(&mut output);
    let (after, peak, resident) = accounts(&process);
    let calls = vcenter.calls().await.sum();
    drop(process.stdin.take());
    assert!(process.wait().unwrap().success());
    assert!(report["found"].as_u64().is_some_and(|found| found >= LOOKUPS as u64), "{report}");
    Used {
        calls,
        wall: report["seconds"].as_f64().unwrap(),
        cpu: after.saturating_sub(before),
        peak,
        resident,
    }
}

fn line(output: &mut BufReader<ChildStdout>) -> Json {
    let mut line = String::new();
    output.read_line(&mut line).unwrap();
    serde_json::from_str(&line).expect("a line of JSON")
}

/// CPU time, peak memory and current memory of a process.
fn accounts(process: &Child) -> (Duration, u64, u64) {
    let stat = std::fs::read_to_string(format!("/proc/{}/stat", process.id())).unwrap();
    let fields: Vec<&str> = stat.rsplit(')').next().unwrap().split_whitespace().collect();
    // The kernel counts in ticks of 10 ms.
    let ticks: u64 = fields[11].parse::<u64>().unwrap() + fields[12].parse::<u64>().unwrap();
    let status = std::fs::read_to_string(format!("/proc/{}/status", process.id())).unwrap();
    let kib = |name: &str| {
        let line = status.lines().find_map(|line| line.strip_prefix(name)).unwrap();
        line.split_whitespace().next().unwrap().parse::<u64>().unwrap() << 10
    };
    (Duration::from_millis(ticks * 10), kib("VmHWM:"), kib("VmRSS:"))
}

fn govmomi_process(program: &std::path::Path, vcenter: &Vcenter, work: &str) -> Command {
    let user = vcenter.user().replace('@', "%40");
    let password = vcenter.password().replace('!', "%21");
    let mut command = Command::new(program);
    command.args([
        format!("-url=https://{user}:{password}@{}/sdk", vcenter.address()),
        work.to_owned(),
    ]);
    command
}

fn own_process(vcenter: &Vcenter, work: &str) -> Command {
    let place = json!({
        "address": vcenter.address().to_string(), "user": vcenter.user(), "password": vcenter.password(),
        "thumbprint": vcenter.thumbprint_sha256(),
    });
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--child", work, &place.to_string()]);
    command
}

/// The child process of [`run`]: the workload of this client.
async fn child(work: &str, place: &str) {
    let place: Json = serde_json::from_str(place).unwrap();
    let text = |key: &str| place[key].as_str().unwrap().to_owned();
    let client = Client::builder(text("address"))
        .trust(Trust::Thumbprint(text("thumbprint").parse().unwrap()))
        .credentials(Credentials::new(text("user"), text("password")))
        .connect()
        .await
        .unwrap();
    let uuids: Vec<BiosUuid> =
        (1..=LOOKUPS).map(|n| SimulatedVm::numbered("node", n).uuid.parse().unwrap()).collect();
    let selection = Selection::new().vms(&[TWELVE]);
    let watch = if work == "watched" { Some(client.watch(selection.clone())) } else { None };
    if let Some(watch) = &watch {
        watch.inventory().ready().await.unwrap();
    }
    wait_for_line(&json!({"ready": true}));
    let began = Instant::now();
    let mut kept = None;
    let found = match (work, &watch) {
        ("retrieve", _) => {
            let tree = client.collect(&selection).await.unwrap();
            let found = tree.vms().len();
            kept = Some(tree);
            found
        }
        ("find", _) => client.find_by_bios_uuid(&uuids).await.unwrap().iter().flatten().count(),
        ("watched", Some(watch)) => {
            let view = watch.inventory().view();
            uuids.iter().filter(|uuid| view.vm_by_bios_uuid(**uuid).found().is_some()).count()
        }
        _ => {
            let watch = client.watch(selection);
            watch.inventory().ready().await.unwrap();
            // Waits until the first wait of a quiet watch is running.
            tokio::time::sleep(Duration::from_secs(2)).await;
            let found = watch.inventory().view().vms().len();
            wait_for_line(&json!({"found": found, "seconds": 0.0}));
            return;
        }
    };
    wait_for_line(&json!({"found": found, "seconds": began.elapsed().as_secs_f64()}));
    drop(kept);
}

fn wait_for_line(say: &Json) {
    println!("{say}");
    let mut line = String::new();
    std::io::stdin().read_line(&mut line).unwrap();
}

fn client_of(vcenter: &Vcenter) -> vsphere::ClientBuilder {
    Client::builder(vcenter.address().to_string())
        .trust(Trust::CaBundle(vcenter.ca_pem()))
        .credentials(Credentials::new(vcenter.user(), vcenter.password()))
}

/// The number of calls in a quiet hour, with all intervals of the client divided by 120.
async fn quiet_hour(vcenter: &Vcenter) -> u64 {
    let usual = Limits::default();
    let shortened = Limits {
        wait: usual.wait / 120,
        keep_alive: usual.keep_alive / 120,
        rest_keep_alive: usual.rest_keep_alive / 120,
        ..usual
    };
    let counter = Arc::new(CallCounter::default());
    let client =
        client_of(vcenter).limits(shortened).observer(counter.clone()).connect().await.unwrap();
    // A REST session is open too, as in a program that reads tags.
    client.tags(Duration::MAX).categories().await.unwrap();
    let watch = client.watch(Selection::new().vms(&[TWELVE]));
    watch.inventory().ready().await.unwrap();
    let before = counter.total();
    tokio::time::sleep(Duration::from_secs(3600 / 120)).await;
    let calls = counter.total() - before;
    watch.stop().await;
    client.shut_down().await;
    calls
}

/// The latency from a change in the simulator to its event: median and maximum of 50.
async fn change_latency(vcenter: &Vcenter) -> (Duration, Duration) {
    let client = client_of(vcenter).connect().await.unwrap();
    let watch = client.watch(Selection::new().vms(&[TWELVE]));
    watch.inventory().ready().await.unwrap();
    let mut events = watch.inventory().events();
    let mut taken = Vec::new();
    for n in 0..50 {
        let power = if n % 2 == 0 { "off" } else { "on" };
        let began = Instant::now();
        vcenter.patch_vm(&format!("/DC0/vm/node-{}", n / 2 + 1), json!({ "power": power })).await;
        while !matches!(events.next().await, Some(Event::Changed { .. })) {}
        taken.push(began.elapsed());
        // Other properties change with the power state; they belong to the same change.
        while tokio::time::timeout(Duration::from_millis(100), events.next()).await.is_ok() {}
    }
    taken.sort_unstable();
    watch.stop().await;
    client.shut_down().await;
    (taken[taken.len() / 2], taken[taken.len() - 1])
}
