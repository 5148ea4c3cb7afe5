//! The portions of the suite, several at a time, each as a process of `e2e.test`.

use std::{
    collections::BTreeSet,
    fs::File,
    path::{Path, PathBuf},
    process::{Command, ExitStatus, Stdio},
    time::Duration,
};

use futures::{StreamExt as _, stream};
use testkit::{Workdir, peer, spawn_tied_to_us};
use tokio::{task::spawn_blocking, time::Instant};

use super::{
    limits,
    report::{self, Outcome, Outcomes},
};
use crate::cluster::Cluster;

/// The suite's names of its parts. `other` runs everything else, so that a part that comes with a new release runs too.
const PARTS: [&str; 11] = [
    "subPath",
    "multiVolume",
    "provisioning",
    "volumes",
    "ephemeral",
    "snapshottable",
    "volume-expand",
    "fsgroupchangepolicy",
    "volume-modify",
    "volumeIO",
    "volumeMode",
];
/// The kernel of a test computer grows a mounted ext4 only for a process with CAP_SYS_RESOURCE, which containers of
/// test computers often lack. The specs that grow the default file system grow XFS.
const GROWING: &str = r"volume-expand|should support expansion of pvcs created for ephemeral pvcs";
/// The specs of zones.
const ZONES: &str = r"\] (topology|capacity) ";
/// These have the computer for themselves.
const SERIAL: &str = r"\[Serial\]|\[Disruptive\]";
const WINDOWS: &str = r"\[Feature:Windows\]";

#[derive(Clone, Debug)]
pub(super) struct Portion {
    name: String,
    focus: String,
    skip: Vec<String>,
    definition: &'static str,
    serial: bool,
}

impl Portion {
    pub(super) fn focused(name: &str, focus: &str) -> Self {
        Self {
            name: name.to_owned(),
            focus: format!("External.Storage.*({focus})"),
            skip: limits::names().chain([WINDOWS.to_owned()]).collect(),
            definition: "default",
            serial: false,
        }
    }

    pub(super) fn name(&self) -> &str {
        &self.name
    }

    pub(super) fn is_serial(&self) -> bool {
        self.serial
    }
}

/// Every spec of the suite is in one portion.
pub(super) fn all_portions() -> Vec<Portion> {
    let part = |name: &str| format!(r"\] (\[[^]]*\] )*{name} ");
    let mut portions: Vec<Portion> = PARTS
        .iter()
        .map(|name| {
            let mut portion = Portion::focused(name, &part(name));
            portion.skip.extend([SERIAL.to_owned(), GROWING.to_owned()]);
            portion
        })
        .filter(|portion| portion.name != "volume-expand")
        .collect();
    let mut other = Portion::focused("other", "");
    other.skip.extend(PARTS.map(part));
    other.skip.extend([SERIAL, GROWING, ZONES].map(str::to_owned));
    let mut growing = Portion::focused("growing", GROWING);
    growing.definition = "xfs";
    growing.skip.push(SERIAL.to_owned());
    let mut zones = Portion::focused("zones", ZONES);
    zones.definition = "zones";
    let mut serial = Portion::focused("serial", SERIAL);
    serial.serial = true;
    portions.extend([other, growing, zones, serial]);
    portions
}

/// The names of all specs but those for Windows, without running them.
pub(super) async fn names(workdir: &Workdir) -> BTreeSet<String> {
    let mut portion = Portion::focused("names", "");
    portion.skip = vec![WINDOWS.to_owned()];
    let (mut command, report) = command(workdir, &portion);
    command.arg("--ginkgo.dry-run");
    let ended = wait_for(command).await;
    assert!(report.exists(), "{ended}");
    report::read(&report).into_keys().collect()
}

/// Runs the portions and adds the outcomes of their specs.
pub(super) async fn run(
    cluster: &Cluster,
    workdir: &Workdir,
    portions: Vec<Portion>,
    at_a_time: usize,
    outcomes: &mut Outcomes,
) {
    let runs = portions.iter().map(|portion| run_one(cluster, workdir, portion));
    let ended: Vec<Outcomes> = stream::iter(runs).buffer_unordered(at_a_time).collect().await;
    outcomes.extend(ended.into_iter().flatten());
}

async fn run_one(cluster: &Cluster, workdir: &Workdir, portion: &Portion) -> Outcomes {
    let began = Instant::now();
    let name = &portion.name;
    let (mut command, report) = command(workdir, portion);
    let log = workdir.path().join(format!("{name}.log"));
    command
        .arg(flag("kubeconfig", &cluster.plane.kubeconfig()))
        .arg(flag("kubectl-path", &peer("kubectl")))
        .args(["--provider=skeleton", "--num-nodes=2", "--minStartupPods=0"])
        .args(["--dump-logs-on-failure=false", "--ginkgo.timeout=3h", "--ginkgo.v"])
        .stdout(File::create(&log).unwrap());
    let ended = wait_for(command).await;
    assert!(report.exists(), "{name}: {ended}, {}", last_lines(&log));
    report::keep(&report);
    let outcomes = report::read(&report);
    for (spec, outcome) in &outcomes {
        match outcome {
            Outcome::Passed { took } => println!("passed {:4} s  {spec}", took.as_secs()),
            Outcome::Failed { took, .. } => println!("FAILED {:4} s  {spec}", took.as_secs()),
            Outcome::DoesNotApply { .. } => {}
        }
    }
    println!("{name}: {ended} after {:?}", Duration::from_secs(began.elapsed().as_secs()));
    outcomes
}

/// The command for a portion, and the path of its report.
fn command(workdir: &Workdir, portion: &Portion) -> (Command, PathBuf) {
    let Portion { name, focus, skip, definition, .. } = portion;
    let report = workdir.path().join(format!("{name}.json"));
    let definition = workdir.path().join(format!("driver-{definition}.json"));
    let mut command = Command::new(peer("e2e.test"));
    command
        .arg(flag("storage.testdriver", &definition))
        .arg(flag("ginkgo.json-report", &report))
        .arg(format!("--ginkgo.focus={focus}"))
        .arg(format!("--ginkgo.skip={}", skip.join("|")))
        .args(["--ginkgo.seed=1", "--ginkgo.no-color"])
        .current_dir(workdir.path())
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null());
    (command, report)
}

fn flag(name: &str, path: &Path) -> String {
    format!("--{name}={}", path.display())
}

/// The connections of the nodes go through this process: it must not block.
async fn wait_for(command: Command) -> ExitStatus {
    let wait = || spawn_tied_to_us(command).and_then(|mut child| child.wait());
    spawn_blocking(wait).await.unwrap().unwrap()
}

fn last_lines(path: &Path) -> String {
    let text = std::fs::read_to_string(path).unwrap_or_default();
    let lines: Vec<&str> = text.lines().collect();
    lines[lines.len().saturating_sub(30)..].join("\n")
}
