//! Someone who reads the book from the first page to the last and types what it says.
//!
//! The control plane and kubectl are real, the vCenter is simulated, and so are kubelets: where they
//! would start the operator or the cloud controller, a hand of this test starts the very program as a
//! process, with the rights and the configuration the pod would have.

use std::{
    fs::{self, File},
    path::Path,
    process::{ExitStatus, Output, Stdio},
    time::Duration,
};

use k8s_openapi::api::apps::v1::{DaemonSet, Deployment};
use kube::Api;
use serde_json::Value;
use testkit::{
    CloudController, ControlPlane, Inventory, Node, Nodes, Permission, Process, User, Vcenter,
    VcenterUser, Workdir,
};
use tokio::{process::Command, time};

use crate::{
    names,
    pages::{Block, Page},
    programs,
};

/// Longer than anything in the book takes on a busy machine.
const PATIENCE: Duration = Duration::from_mins(4);
/// What the pages call the vCenter.
const VCENTER: &str = "vc-a.example.com";
/// The thumbprint the pages show.
const THUMBPRINT: &str = "2F:A4:01:6B:9C:D3:7E:58:10:BB:42:C6:8D:E9:35:F0:7A:11:64:9E";

struct Reader {
    plane: ControlPlane,
    vcenter: Vcenter,
    _nodes: Nodes,
    desk: Workdir,
}

/// Reads all pages.
pub(crate) async fn reads(pages: &[Page]) {
    let reader = Reader::sits_down().await;
    let hand = reader.kubelet();
    let reading = async {
        for block in pages.iter().filter(|page| !page.is_generated()).flat_map(Page::blocks) {
            reader.follows(&block).await;
        }
    };
    tokio::select! {
        () = reading => {}
        () = hand => {}
    }
}

impl Reader {
    /// A fresh cluster whose nodes wait for their cloud controller, and a vCenter with their machines.
    async fn sits_down() -> Self {
        let plane = ControlPlane::builder().with_controllers().start().await;
        let mut inventory =
            Inventory::with_vms(3).category("k8s-region", &[("region-1", &["/DC0"])]).category(
                "k8s-zone",
                &[("zone-a", &["/DC0/host/cluster-a"]), ("zone-b", &["/DC0/host/cluster-b"])],
            );
        // The account of the samples.
        inventory.users.push(VcenterUser::new("vdo@vsphere.local", "CHANGE-ME"));
        inventory.permissions.push(Permission::new("vdo@vsphere.local", "Admin", "/"));
        let machines = inventory.datacenters[0].vms.clone();
        let vcenter = Vcenter::start(inventory).await;
        let nodes = Nodes::start(&plane).await;
        for (number, machine) in machines.iter().enumerate() {
            let node = Node::named(&machine.name).system_uuid(&machine.uuid).uninitialized();
            nodes.add(if number == 0 { node.control_plane() } else { node }).await;
        }
        let desk = Workdir::new("book").unwrap();
        let deploy = testkit::repository().join("deploy");
        std::os::unix::fs::symlink(deploy, desk.path().join("deploy")).unwrap();
        Self { plane, vcenter, _nodes: nodes, desk }
    }

    /// Does what a block says.
    async fn follows(&self, block: &Block) {
        match (block.language.as_str(), block.file(), block.not_run()) {
            (_, Some(name), _) => drop(self.desk.write(name, self.own_names(&block.text)).unwrap()),
            (_, _, Some(_)) => {}
            ("yaml", ..) => self.offers(block).await,
            ("sh", ..) => drop(self.does(block, &block.text).await),
            ("console", ..) => self.compares(block).await,
            _ => {}
        }
    }

    /// Types the commands of a block, which end as it says: well, or with its code.
    async fn does(&self, block: &Block, script: &str) -> Output {
        let root = testkit::repository();
        let folder = if block.in_checkout() { root } else { self.desk.path() };
        let output = self.types_in(folder, script).await;
        let code = output.status.code();
        assert_eq!(code, Some(block.exit()), "{}\n{}", block.place, shown(&output));
        output
    }

    /// The names of this vCenter instead of those in the book.
    fn own_names(&self, text: &str) -> String {
        let address = self.vcenter.address().to_string();
        text.replace(&format!("{VCENTER}:443"), &address)
            .replace(VCENTER, &address)
            .replace(THUMBPRINT, &self.vcenter.thumbprint_sha1())
    }

    async fn types(&self, script: &str) -> Output {
        self.types_in(self.desk.path(), script).await
    }

    async fn types_in(&self, folder: &Path, script: &str) -> Output {
        let script = format!("set -euo pipefail\n{}", self.own_names(script));
        let kubectl = testkit::peer("kubectl");
        let folders = [kubectl.parent().unwrap().to_owned(), testkit::programs().to_owned()];
        let path = std::env::var_os("PATH").unwrap_or_default();
        let path = folders.into_iter().chain(std::env::split_paths(&path));
        // Into files: whoever does not come to an end has told something all the same.
        let [out, log] = ["typed.out", "typed.log"].map(|name| self.desk.path().join(name));
        let run = Command::new("bash")
            .args(["-c", &script])
            .current_dir(folder)
            .env("PATH", std::env::join_paths(path).unwrap())
            .env("KUBECONFIG", self.plane.kubeconfig())
            .env("HOME", self.desk.path())
            // Where the programs of the tests are, whatever home this is.
            .env("VDO_CACHE", testkit::cache())
            .env("NO_COLOR", "1")
            .stdin(Stdio::null())
            .stdout(File::create(&out).unwrap())
            .stderr(File::create(&log).unwrap())
            .kill_on_drop(true)
            .status();
        let ended = time::timeout(PATIENCE, run).await;
        let [stdout, stderr] = [out, log].map(|file| fs::read(file).unwrap());
        let Ok(status) = ended else {
            let output = Output { status: ExitStatus::default(), stdout, stderr };
            let status = std::process::Command::new(programs::path("vdoctl").unwrap())
                .arg("status")
                .env("KUBECONFIG", self.plane.kubeconfig())
                .output()
                .unwrap();
            let (said, status) = (shown(&output), shown(&status));
            panic!("still runs after {PATIENCE:?}:\n{script}\n{said}\n{status}");
        };
        Output { status: status.unwrap(), stdout, stderr }
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
        let deployments = Api::<Deployment>::namespaced(self.plane.client(), api::NAMESPACE);
        let sets = Api::<DaemonSet>::namespaced(self.plane.client(), "kube-system");
        let cloud = "vsphere-cloud-controller-manager";
        let (mut operator, mut controller) = (None, None);
        loop {
            let wanted = deployments.get_metadata_opt("vdo").await.unwrap();
            operator = wanted.map(|_| operator.take().unwrap_or_else(|| self.operator()));
            // Its pods are made anew with every change of their template.
            let wanted = sets.get_metadata_opt(cloud).await.unwrap();
            let wanted = wanted.and_then(|set| set.metadata.generation);
            if controller.as_ref().map(|(generation, _)| *generation) != wanted {
                drop(controller.take());
                controller = wanted.zip(self.cloud_controller().await);
            }
            let running = operator.iter().chain(controller.iter().map(|(_, process)| process));
            for process in running {
                assert!(process.ended().is_none(), "it ended:\n{}", process.tail());
            }
            time::sleep(Duration::from_millis(200)).await;
        }
    }

    fn operator(&self) -> Process {
        let identity = User::service_account(api::NAMESPACE, "vdo");
        let kubeconfig = self.plane.kubeconfig_as(&identity);
        let arguments =
            [format!("--kubeconfig={}", kubeconfig.display()), "--listen=127.0.0.1:0".into()];
        let program = programs::path("vdo").unwrap();
        Process::spawn(&program, "vdo", arguments, &[], &self.desk).unwrap()
    }

    /// The upstream controller, with the arguments, the configuration and the rights VDO gives it.
    async fn cloud_controller(&self) -> Option<Process> {
        let rendered = CloudController::rendered(&self.plane, &self.desk).await.unwrap()?;
        Some(rendered.upstream("cloud-controller", &self.plane, &self.desk).unwrap())
    }
}

fn shown(output: &Output) -> String {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    format!("{}{}", text(&output.stdout), text(&output.stderr))
}
