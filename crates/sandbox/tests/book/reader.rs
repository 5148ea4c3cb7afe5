//! Runs the commands of the book from the first page to the last.
//!
//! The control plane, kubectl and govc are real, vCenter and the kubelets are simulated. This test starts the operator and
//! the cloud controller as processes, with the permissions and the configuration of their pods.

use std::{
    fs::{self, File},
    os::unix::fs::PermissionsExt as _,
    path::Path,
    process::{ExitStatus, Output, Stdio},
    sync::atomic::{AtomicUsize, Ordering},
    time::Duration,
};

use k8s_openapi::api::apps::v1::{DaemonSet, Deployment};
use kube::Api;
use serde_json::Value;
use testkit::{CloudController, ControlPlane, Process, User, Vcenter, Workdir};
use tokio::{process::Command, time};

use crate::{
    names,
    pages::{Block, Page},
    programs,
    site::{self, Cluster},
};

/// Longer than any command of the book takes on a busy computer.
const TIMEOUT: Duration = Duration::from_mins(4);
/// Commands in a checkout build first, unless the tests of all crates are built already.
const BUILDING: Duration = Duration::from_mins(40);
/// The vCenter name in the pages.
const VCENTER: &str = "vc-a.example.com";
/// The thumbprint in the pages.
const THUMBPRINT: &str = "2F:A4:01:6B:9C:D3:7E:58:10:BB:42:C6:8D:E9:35:F0:7A:11:64:9E";

/// A fake skopeo, because there is no registry: it accepts and rejects the same arguments as the real one, and records
/// the copies.
const SKOPEO: &str = r#"#!/bin/bash
set -eu
if [ "$1 $2" = "login --authfile" ]; then
  echo "{\"auths\": {\"$4\": {\"auth\": \"$(printf user:CHANGE-ME | base64)\"}}}" > "$3"
  exit
fi
[ "$1" = copy ] && shift
while [ "${1#--}" != "$1" ]; do
  case $1 in --all | --preserve-digests) shift ;; *) echo "unknown flag: $1" >&2 && exit 1 ;; esac
done
[ $# = 2 ]
for reference in "$@"; do
  case $reference in
    docker://*:*@*) echo "Docker references with both a tag and digest are not supported" >&2 && exit 1 ;;
    docker://*/*) ;;
    *) exit 1 ;;
  esac
done
echo "${1#docker://} ${2#docker://}" >> copied.txt
"#;

/// Counts the scripts, for file names.
static SCRIPTS: AtomicUsize = AtomicUsize::new(0);

pub(crate) struct Reader {
    /// The cluster in which the pages install VDO.
    pub(crate) cluster: Cluster,
    /// A cluster without VDO, for commands before or without an installation.
    pub(crate) fresh: Cluster,
    pub(crate) vcenter: Vcenter,
    pub(crate) workdir: Workdir,
}

/// Runs all pages.
pub(crate) async fn run_all(pages: &[Page]) {
    let reader = Reader::start().await;
    let pages = || pages.iter().filter(|page| !page.is_generated());
    let reading = async {
        for page in pages() {
            reader.set_up_page(&page.path).await;
            for block in page.blocks().iter().filter(|block| !block.in_checkout()) {
                reader.process_block(block).await;
            }
            reader.verify_page(&page.path).await;
        }
    };
    // Commands in the checkout need no cluster and run in parallel.
    let in_checkout = async {
        for block in pages().flat_map(Page::blocks).filter(Block::in_checkout) {
            reader.process_block(&block).await;
        }
    };
    tokio::select! {
        _ = async { tokio::join!(reading, in_checkout) } => {}
        () = reader.kubelet() => {}
        () = reader.fresh_kubelet() => {}
    }
}

/// A cloud controller and the generation of the DaemonSet it was started for.
type Running = Option<(i64, Process)>;

impl Reader {
    async fn start() -> Self {
        let (vcenter, vms) = site::vcenter().await;
        // Both clusters have the same VMs: no page changes them for one cluster alone.
        let (cluster, fresh) = tokio::join!(Cluster::on_vms(&vms), Cluster::on_vms(&vms));
        let workdir = Workdir::new("book").unwrap();
        let deploy = testkit::repository().join("deploy");
        std::os::unix::fs::symlink(deploy, workdir.path().join("deploy")).unwrap();
        workdir.write("vcenter-ca.pem", vcenter.ca_pem()).unwrap();
        let skopeo = workdir.write("skopeo", SKOPEO).unwrap();
        fs::set_permissions(skopeo, fs::Permissions::from_mode(0o755)).unwrap();
        let reader = Self { cluster, fresh, vcenter, workdir };
        reader.add_node_files();
        reader.run_successfully(site::FOLDERS_AND_TEMPLATE).await;
        reader
    }

    /// Runs or checks a block.
    async fn process_block(&self, block: &Block) {
        match (block.language.as_str(), block.file(), block.not_run()) {
            (_, Some(name), _) => {
                drop(self.workdir.write(name, self.own_names(&block.text)).unwrap());
            }
            (_, _, Some(_)) => {}
            ("yaml", ..) => self.dry_run_objects(block).await,
            ("sh", ..) if block.is_make_targets() => self.check_make_targets(block).await,
            ("sh", ..) if block.as_dry_run() => self.dry_run_commands(block).await,
            // Other functions run these.
            ("sh", ..) if block.on_a_terminal() || block.of_logs() => {}
            ("sh", ..) => drop(self.run_block(block, &block.text).await),
            ("console", ..) => self.compare_transcript(block).await,
            _ => {}
        }
    }

    /// Runs the commands of a block and checks the exit code.
    async fn run_block(&self, block: &Block, script: &str) -> Output {
        let root = testkit::repository();
        let folder = if block.in_checkout() { root } else { self.workdir.path() };
        let cluster = if block.on_fresh_cluster() { &self.fresh } else { &self.cluster };
        let output = self.run_script_in(folder, cluster, script).await;
        let code = output.status.code();
        assert_eq!(code, Some(block.exit()), "{}\n{}", block.place, shown(&output));
        output
    }

    /// Replaces the vCenter names of the book with those of the simulator.
    fn own_names(&self, text: &str) -> String {
        let address = self.vcenter.address();
        let text = text.replace(THUMBPRINT, &self.vcenter.thumbprint_sha1());
        // A text with a separate port also has a separate host.
        let ports = ["port: 443", "port = \"443\""];
        if ports.iter().any(|port| text.contains(port)) {
            let text = text.replace(VCENTER, &address.ip().to_string());
            let own = |port: &str| port.replace("443", &address.port().to_string());
            return ports.iter().fold(text, |text, port| text.replace(port, &own(port)));
        }
        let address = address.to_string();
        text.replace(&format!("{VCENTER}:443"), &address).replace(VCENTER, &address)
    }

    pub(crate) async fn run_script(&self, script: &str) -> Output {
        self.run_script_in(self.workdir.path(), &self.cluster, script).await
    }

    /// Runs a script of the test that must succeed.
    pub(crate) async fn run_successfully(&self, script: &str) -> Output {
        self.run_successfully_on(&self.cluster, script).await
    }

    pub(crate) async fn run_successfully_on(&self, cluster: &Cluster, script: &str) -> Output {
        let output = self.run_script_in(self.workdir.path(), cluster, script).await;
        assert!(output.status.success(), "{script}\n{}", shown(&output));
        output
    }

    /// A shell that runs a script.
    pub(crate) fn shell(
        &self,
        folder: &Path,
        cluster: &Cluster,
        script: &str,
    ) -> std::process::Command {
        let script = format!("set -euo pipefail\n{}", self.own_names(script));
        let others = ["kubectl", "govc"].map(testkit::peer);
        let folders = others.iter().filter_map(|program| program.parent());
        let folders = folders.chain([testkit::programs(), self.workdir.path()]).map(Path::to_owned);
        let path = std::env::var_os("PATH").unwrap_or_default();
        let path = folders.chain(std::env::split_paths(&path));
        let home_folder = std::env::var_os("HOME").unwrap_or_default();
        let own = |name: &str, folder: &str| {
            std::env::var_os(name).unwrap_or_else(|| Path::new(&home_folder).join(folder).into())
        };
        let mut shell = std::process::Command::new("bash");
        shell
            .args(["-c", &script])
            .current_dir(folder)
            .env("PATH", std::env::join_paths(path).unwrap())
            .env("KUBECONFIG", cluster.plane.kubeconfig())
            .env("HOME", self.workdir.path())
            .envs(self.administrator())
            // The programs of the tests, regardless of HOME.
            .env("VDO_CACHE", testkit::cache())
            .env("CARGO_HOME", own("CARGO_HOME", ".cargo"))
            .env("RUSTUP_HOME", own("RUSTUP_HOME", ".rustup"))
            // Variables of the `make test` that runs this test.
            .env_remove("RUSTC_BOOTSTRAP")
            .env_remove("MAKEFLAGS")
            .env_remove("MFLAGS")
            .env_remove("MAKELEVEL")
            .env("NO_COLOR", "1");
        shell
    }

    pub(crate) async fn run_script_in(
        &self,
        folder: &Path,
        cluster: &Cluster,
        script: &str,
    ) -> Output {
        let shell = self.shell(folder, cluster, script);
        // Output goes to files, so that it is available after a timeout.
        let number = SCRIPTS.fetch_add(1, Ordering::Relaxed);
        let [out, log] =
            ["out", "log"].map(|kind| self.workdir.path().join(format!("typed-{number}.{kind}")));
        let run = Command::from(shell)
            .stdin(Stdio::null())
            .stdout(File::create(&out).unwrap())
            .stderr(File::create(&log).unwrap())
            .kill_on_drop(true)
            .status();
        let timeout = if folder == testkit::repository() { BUILDING } else { TIMEOUT };
        let ended = time::timeout(timeout, run).await;
        let [stdout, stderr] = [out, log].map(|file| fs::read(file).unwrap());
        let Ok(status) = ended else {
            let output = Output { status: ExitStatus::default(), stdout, stderr };
            let status = std::process::Command::new(programs::path("vdoctl").unwrap())
                .arg("status")
                .env("KUBECONFIG", cluster.plane.kubeconfig())
                .output()
                .unwrap();
            let (output, status) = (shown(&output), shown(&status));
            panic!("still runs after {timeout:?}:\n{script}\n{output}\n{status}");
        };
        Output { status: status.unwrap(), stdout, stderr }
    }

    /// The environment of govc: it acts as administrator.
    fn administrator(&self) -> [(&'static str, String); 4] {
        [
            ("GOVC_URL", self.vcenter.address().to_string()),
            ("GOVC_USERNAME", self.vcenter.user().to_owned()),
            ("GOVC_PASSWORD", self.vcenter.password().to_owned()),
            ("GOVC_TLS_CA_CERTS", self.workdir.path().join("vcenter-ca.pem").display().to_string()),
        ]
    }

    /// Runs the commands of a transcript, and compare_transcript the output line by line; `...` matches anything.
    async fn compare_transcript(&self, block: &Block) {
        let output = self.run_block(block, &names::commands_in(block).join("\n")).await;
        let text = shown(&output);
        let mut lines = text.lines();
        for expected in block.text.lines().filter(|l| !l.starts_with("$ ") && !l.trim().is_empty())
        {
            let parts: Vec<&str> = expected.trim_end().split("...").collect();
            let fits = |line: &str| {
                let mut rest = line;
                parts.iter().all(|part| {
                    let found = rest.find(part).map(|at| &rest[at + part.len()..]);
                    found.inspect(|after| rest = after).is_some()
                })
            };
            assert!(lines.any(fits), "{}: not shown: {expected}\n{}", block.place, shown(&output));
        }
    }

    /// Validates the objects of a block with a server-side dry run.
    async fn dry_run_objects(&self, block: &Block) {
        if !block.text.contains("apiVersion:") {
            return self.checks_catalog(block).await;
        }
        for (number, document) in block.text.split("\n---\n").enumerate() {
            let mut object: Value = serde_saphyr::from_str(document).unwrap();
            // An existing object of the same name must not matter.
            object["metadata"]["name"] = format!("offered-{number}").into();
            let file = self.workdir.write("offered.json", object.to_string()).unwrap();
            let script =
                format!("kubectl create --dry-run=server --validate=strict -f {}", file.display());
            let output = self.run_script(&script).await;
            assert!(output.status.success(), "{}\n{}", block.place, shown(&output));
        }
    }

    async fn checks_catalog(&self, block: &Block) {
        let is_catalog = block.text.starts_with("schema:");
        assert!(
            is_catalog,
            "{}: neither an object nor a catalog: give a reason not to run it",
            block.place
        );
        self.workdir.write("catalog.yaml", &block.text).unwrap();
        let output = self.run_script("vdoctl catalog check catalog.yaml").await;
        assert!(output.status.success(), "{}\n{}", block.place, shown(&output));
    }

    /// Starts and stops the programs of simulated pods.
    async fn kubelet(&self) {
        let deployments =
            Api::<Deployment>::namespaced(self.cluster.plane.client(), api::NAMESPACE);
        let (mut operator, mut controller): (Option<Process>, Running) = (None, None);
        loop {
            let wanted = deployments.get_metadata_opt("vdo").await.unwrap();
            operator = wanted.map(|_| operator.take().unwrap_or_else(|| self.operator()));
            operator.iter().for_each(runs);
            self.sync_cloud_controller(&mut controller, "cloud-controller", &self.cluster.plane)
                .await;
            time::sleep(Duration::from_millis(200)).await;
        }
    }

    /// The same for the cluster without an operator.
    async fn fresh_kubelet(&self) {
        let mut controller: Running = None;
        loop {
            self.sync_cloud_controller(
                &mut controller,
                "fresh-cloud-controller",
                &self.fresh.plane,
            )
            .await;
            time::sleep(Duration::from_millis(200)).await;
        }
    }

    /// Runs the upstream cloud controller while its DaemonSet exists, with the arguments, the configuration and the permissions
    /// of its pods. Restarts it when the pod template changes.
    async fn sync_cloud_controller(
        &self,
        controller: &mut Running,
        label: &str,
        plane: &ControlPlane,
    ) {
        let sets = Api::<DaemonSet>::namespaced(plane.client(), "kube-system");
        let wanted = sets.get_metadata_opt("vsphere-cloud-controller-manager").await.unwrap();
        let wanted = wanted.and_then(|set| set.metadata.generation);
        if controller.as_ref().map(|(generation, _)| *generation) != wanted {
            drop(controller.take());
            let rendered = CloudController::rendered(plane, &self.workdir).await.unwrap();
            let started = rendered.map(|it| it.upstream(label, plane, &self.workdir).unwrap());
            *controller = wanted.zip(started);
        }
        if let Some((_, process)) = controller {
            runs(process);
        }
    }

    fn operator(&self) -> Process {
        let identity = User::service_account(api::NAMESPACE, "vdo");
        let kubeconfig = self.cluster.plane.kubeconfig_as(&identity);
        let arguments =
            [format!("--kubeconfig={}", kubeconfig.display()), "--listen=127.0.0.1:0".into()];
        let program = programs::path("vdo").unwrap();
        Process::spawn(&program, "vdo", arguments, &[], &self.workdir).unwrap()
    }
}

fn runs(process: &Process) {
    assert!(process.ended().is_none(), "the process ended:\n{}", process.tail());
}

pub(crate) fn shown(output: &Output) -> String {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    format!("{}{}", text(&output.stdout), text(&output.stderr))
}
