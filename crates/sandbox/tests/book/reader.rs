//! Someone who reads the book from the first page to the last and types what it says.
//!
//! The control plane, kubectl and govc are real, the vCenter is simulated, and so are kubelets: where they
//! would start the operator or the cloud controller, a hand of this test starts the very program as a
//! process, with the rights and the configuration the pod would have.

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

/// Longer than anything in the book takes on a busy machine.
const TIMEOUT: Duration = Duration::from_mins(4);
/// In a checkout things are built first, unless the tests of all crates are run.
const BUILDING: Duration = Duration::from_mins(40);
/// What the pages call the vCenter.
const VCENTER: &str = "vc-a.example.com";
/// The thumbprint the pages show.
const THUMBPRINT: &str = "2F:A4:01:6B:9C:D3:7E:58:10:BB:42:C6:8D:E9:35:F0:7A:11:64:9E";

/// In place of skopeo, where there is no registry: it takes its arguments as the real one does, refuses
/// what that refuses, and notes what it would copy.
const SKOPEO: &str = r#"#!/bin/bash
set -eu
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

/// How often something was typed.
static TYPED: AtomicUsize = AtomicUsize::new(0);

pub(crate) struct Reader {
    /// Where the reader installs VDO, and goes on from page to page.
    pub(crate) cluster: Cluster,
    /// Where VDO never was: for those who want none, or ask before they install it.
    pub(crate) fresh: Cluster,
    pub(crate) vcenter: Vcenter,
    pub(crate) desk: Workdir,
}

/// Reads all pages.
pub(crate) async fn reads(pages: &[Page]) {
    let reader = Reader::sits_down().await;
    let pages = || pages.iter().filter(|page| !page.is_generated());
    let reading = async {
        for page in pages() {
            reader.prepares(&page.path).await;
            for block in page.blocks().iter().filter(|block| !block.in_checkout()) {
                reader.follows(block).await;
            }
            reader.looks_back(&page.path).await;
        }
    };
    // What needs no cluster is typed meanwhile, in another window.
    let beside = async {
        for block in pages().flat_map(Page::blocks).filter(Block::in_checkout) {
            reader.follows(&block).await;
        }
    };
    tokio::select! {
        _ = async { tokio::join!(reading, beside) } => {}
        () = reader.kubelet() => {}
        () = reader.fresh_kubelet() => {}
    }
}

/// A cloud controller and the generation of the DaemonSet it was started for.
type Running = Option<(i64, Process)>;

impl Reader {
    async fn sits_down() -> Self {
        let (vcenter, vms) = site::vcenter().await;
        // The same machines for both: nobody who reads the book changes them for one cluster alone.
        let (cluster, fresh) = tokio::join!(Cluster::of(&vms), Cluster::of(&vms));
        let desk = Workdir::new("book").unwrap();
        let deploy = testkit::repository().join("deploy");
        std::os::unix::fs::symlink(deploy, desk.path().join("deploy")).unwrap();
        desk.write("vcenter-ca.pem", vcenter.ca_pem()).unwrap();
        let skopeo = desk.write("skopeo", SKOPEO).unwrap();
        fs::set_permissions(skopeo, fs::Permissions::from_mode(0o755)).unwrap();
        let reader = Self { cluster, fresh, vcenter, desk };
        reader.has_a_node_at_hand();
        reader.succeeds(site::FOLDERS_AND_TEMPLATE).await;
        reader
    }

    /// Does what a block says.
    async fn follows(&self, block: &Block) {
        match (block.language.as_str(), block.file(), block.not_run()) {
            (_, Some(name), _) => drop(self.desk.write(name, self.own_names(&block.text)).unwrap()),
            (_, _, Some(_)) => {}
            ("yaml", ..) => self.offers(block).await,
            ("sh", ..) if block.of_recipes() => self.asks_for(block).await,
            ("sh", ..) if block.as_a_trial() => self.tries(block).await,
            // Where all is well, and where the remedies are tried.
            ("sh", ..) if block.on_a_terminal() || block.of_logs() => {}
            ("sh", ..) => drop(self.does(block, &block.text).await),
            ("console", ..) => self.compares(block).await,
            _ => {}
        }
    }

    /// Types the commands of a block, which end as it says: well, or with its code.
    async fn does(&self, block: &Block, script: &str) -> Output {
        let root = testkit::repository();
        let folder = if block.in_checkout() { root } else { self.desk.path() };
        let cluster = if block.on_fresh_cluster() { &self.fresh } else { &self.cluster };
        let output = self.types_in(folder, cluster, script).await;
        let code = output.status.code();
        assert_eq!(code, Some(block.exit()), "{}\n{}", block.place, shown(&output));
        output
    }

    /// The names of this vCenter instead of those in the book.
    fn own_names(&self, text: &str) -> String {
        let address = self.vcenter.address();
        let text = text.replace(THUMBPRINT, &self.vcenter.thumbprint_sha1());
        // Where the port stands by itself, so does the host.
        let ports = ["port: 443", "port = \"443\""];
        if ports.iter().any(|port| text.contains(port)) {
            let text = text.replace(VCENTER, &address.ip().to_string());
            let own = |port: &str| port.replace("443", &address.port().to_string());
            return ports.iter().fold(text, |text, port| text.replace(port, &own(port)));
        }
        let address = address.to_string();
        text.replace(&format!("{VCENTER}:443"), &address).replace(VCENTER, &address)
    }

    pub(crate) async fn types(&self, script: &str) -> Output {
        self.types_in(self.desk.path(), &self.cluster, script).await
    }

    /// Types something no page says, which works.
    pub(crate) async fn succeeds(&self, script: &str) -> Output {
        self.succeeds_on(&self.cluster, script).await
    }

    pub(crate) async fn succeeds_on(&self, cluster: &Cluster, script: &str) -> Output {
        let output = self.types_in(self.desk.path(), cluster, script).await;
        assert!(output.status.success(), "{script}\n{}", shown(&output));
        output
    }

    /// A shell in which this is typed.
    pub(crate) fn shell(
        &self,
        folder: &Path,
        cluster: &Cluster,
        script: &str,
    ) -> std::process::Command {
        let script = format!("set -euo pipefail\n{}", self.own_names(script));
        let others = ["kubectl", "govc"].map(testkit::peer);
        let folders = others.iter().filter_map(|program| program.parent());
        let folders = folders.chain([testkit::programs(), self.desk.path()]).map(Path::to_owned);
        let path = std::env::var_os("PATH").unwrap_or_default();
        let path = folders.chain(std::env::split_paths(&path));
        let home = std::env::var_os("HOME").unwrap_or_default();
        let own = |name: &str, folder: &str| {
            std::env::var_os(name).unwrap_or_else(|| Path::new(&home).join(folder).into())
        };
        let mut shell = std::process::Command::new("bash");
        shell
            .args(["-c", &script])
            .current_dir(folder)
            .env("PATH", std::env::join_paths(path).unwrap())
            .env("KUBECONFIG", cluster.plane.kubeconfig())
            .env("HOME", self.desk.path())
            .envs(self.administrator())
            // Where the programs of the tests are, whatever home this is.
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

    pub(crate) async fn types_in(&self, folder: &Path, cluster: &Cluster, script: &str) -> Output {
        let shell = self.shell(folder, cluster, script);
        // Into files: whoever does not come to an end has told something all the same.
        let number = TYPED.fetch_add(1, Ordering::Relaxed);
        let [out, log] =
            ["out", "log"].map(|kind| self.desk.path().join(format!("typed-{number}.{kind}")));
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
            let (said, status) = (shown(&output), shown(&status));
            panic!("still runs after {timeout:?}:\n{script}\n{said}\n{status}");
        };
        Output { status: status.unwrap(), stdout, stderr }
    }

    /// What govc is told of the vCenter: its administrator types there.
    fn administrator(&self) -> [(&'static str, String); 4] {
        [
            ("GOVC_URL", self.vcenter.address().to_string()),
            ("GOVC_USERNAME", self.vcenter.user().to_owned()),
            ("GOVC_PASSWORD", self.vcenter.password().to_owned()),
            ("GOVC_TLS_CA_CERTS", self.desk.path().join("vcenter-ca.pem").display().to_string()),
        ]
    }

    /// Types the commands of a transcript, and looks for what it shows: line by line, where `...` stands
    /// for anything.
    async fn compares(&self, block: &Block) {
        let output = self.does(block, &names::typed(block).join("\n")).await;
        let told = shown(&output);
        let mut lines = told.lines();
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

    /// Asks the API server whether it would take the objects of a block, word for word.
    async fn offers(&self, block: &Block) {
        if !block.text.contains("apiVersion:") {
            return self.checks_catalog(block).await;
        }
        for (number, document) in block.text.split("\n---\n").enumerate() {
            let mut object: Value = serde_saphyr::from_str(document).unwrap();
            // Whatever of that name the reader has by now has no say in this.
            object["metadata"]["name"] = format!("offered-{number}").into();
            let file = self.desk.write("offered.json", object.to_string()).unwrap();
            let script =
                format!("kubectl create --dry-run=server --validate=strict -f {}", file.display());
            let output = self.types(&script).await;
            assert!(output.status.success(), "{}\n{}", block.place, shown(&output));
        }
    }

    async fn checks_catalog(&self, block: &Block) {
        let is_catalog = block.text.starts_with("schema:");
        assert!(
            is_catalog,
            "{}: neither an object nor a catalog: say why it is not run",
            block.place
        );
        self.desk.write("catalog.yaml", &block.text).unwrap();
        let output = self.types("vdoctl catalog check catalog.yaml").await;
        assert!(output.status.success(), "{}\n{}", block.place, shown(&output));
    }

    /// Starts and stops the programs whose pods a kubelet would start and stop.
    async fn kubelet(&self) {
        let deployments =
            Api::<Deployment>::namespaced(self.cluster.plane.client(), api::NAMESPACE);
        let (mut operator, mut controller): (Option<Process>, Running) = (None, None);
        loop {
            let wanted = deployments.get_metadata_opt("vdo").await.unwrap();
            operator = wanted.map(|_| operator.take().unwrap_or_else(|| self.operator()));
            operator.iter().for_each(runs);
            self.keeps(&mut controller, "cloud-controller", &self.cluster.plane).await;
            time::sleep(Duration::from_millis(200)).await;
        }
    }

    /// Where there is no operator, only the cloud controller.
    async fn fresh_kubelet(&self) {
        let mut controller: Running = None;
        loop {
            self.keeps(&mut controller, "fresh-cloud-controller", &self.fresh.plane).await;
            time::sleep(Duration::from_millis(200)).await;
        }
    }

    /// Has the upstream cloud controller run as long as its DaemonSet is there, with the arguments, the
    /// configuration and the rights its pods would have; anew with every change of their template.
    async fn keeps(&self, controller: &mut Running, label: &str, plane: &ControlPlane) {
        let sets = Api::<DaemonSet>::namespaced(plane.client(), "kube-system");
        let wanted = sets.get_metadata_opt("vsphere-cloud-controller-manager").await.unwrap();
        let wanted = wanted.and_then(|set| set.metadata.generation);
        if controller.as_ref().map(|(generation, _)| *generation) != wanted {
            drop(controller.take());
            let rendered = CloudController::rendered(plane, &self.desk).await.unwrap();
            let started = rendered.map(|it| it.upstream(label, plane, &self.desk).unwrap());
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
        Process::spawn(&program, "vdo", arguments, &[], &self.desk).unwrap()
    }
}

fn runs(process: &Process) {
    assert!(process.ended().is_none(), "it ended:\n{}", process.tail());
}

pub(crate) fn shown(output: &Output) -> String {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    format!("{}{}", text(&output.stdout), text(&output.stderr))
}
