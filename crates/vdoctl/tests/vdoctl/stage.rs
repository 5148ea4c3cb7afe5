//! A cluster, a vCenter, and `vdoctl` as a user runs it.

use std::{
    io::Write as _,
    path::PathBuf,
    process::{Command, Output, Stdio},
    sync::OnceLock,
};

use jiff::SignedDuration;
use k8s_openapi::api::{
    rbac::v1::{Role, RoleBinding},
    storage::v1::VolumeAttachment,
};
use kube::{
    Api,
    api::{DeleteParams, PostParams},
};
use operator::{engine::Engine, report::OperatorMetrics};
use runtime::{build::BuildInfo, checks::Checks};
use testkit::{
    ControlPlane, Inventory, Node, Nodes, Permission, User, Vcenter, VcenterUser, Workdir,
};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

pub(crate) const NAMESPACE: &str = "vmware-system-vdo";
/// Contains all special characters.
pub(crate) const PASSWORD: &str = r#"p'"\ <&>%$`#;:=[]{}!@^*()|~?,./+_ü-42"#;

/// The password as it can occur in a log: plain, its end, in XML, in a URL, in base64.
pub(crate) const PASSWORD_ENCODED: [&str; 5] =
    [PASSWORD, "+_ü-42", "&lt;&amp;&gt;%$`#", "%5B%5D%7B%7D", "cCciXCA8Jj4lJGAjOzo9W117"];

const ATTACHMENT: &str = "csi-pv-1";

pub(crate) struct Stage {
    pub(crate) plane: ControlPlane,
    pub(crate) vcenter: Vcenter,
    pub(crate) workdir: Workdir,
    pub(crate) nodes: Nodes,
    kubeconfig: OnceLock<PathBuf>,
}

pub(crate) struct CommandOutput {
    pub(crate) code: i32,
    pub(crate) out: String,
    pub(crate) err: String,
}

impl CommandOutput {
    /// Both streams, for messages of failed tests.
    pub(crate) fn all(&self) -> String {
        format!("exit {}\n--- stdout\n{}\n--- stderr\n{}", self.code, self.out, self.err)
    }
}

impl From<Output> for CommandOutput {
    fn from(output: Output) -> Self {
        Self {
            code: output.status.code().unwrap_or(-1),
            out: String::from_utf8(output.stdout).unwrap(),
            err: String::from_utf8(output.stderr).unwrap(),
        }
    }
}

/// A vCenter with this many VMs, tags and the test user.
pub(crate) fn inventory(vms: usize) -> Inventory {
    let mut inventory =
        Inventory::with_vms(vms).category("k8s-region", &[("region-1", &["/DC0"])]).category(
            "k8s-zone",
            &[("zone-a", &["/DC0/host/cluster-a"]), ("zone-b", &["/DC0/host/cluster-b"])],
        );
    let user = VcenterUser::new("vdo@vsphere.local", PASSWORD);
    let permission = Permission::new(&user.name, "Admin", "/");
    inventory.users.insert(0, user);
    inventory.permissions.push(permission);
    inventory
}

impl Stage {
    /// A control-plane node and two workers without a cloud provider, a VM for each, and nothing installed.
    pub(crate) async fn set() -> Self {
        let plane = ControlPlane::builder().with_controllers().start().await;
        let inventory = inventory(3);
        let vms = inventory.datacenters[0].vms.clone();
        let vcenter = Vcenter::start(inventory).await;
        let nodes = Nodes::start(&plane).await;
        for (number, vm) in vms.iter().enumerate() {
            let node = Node::named(&vm.name)
                .system_uuid(&vm.uuid)
                .provider_id(&format!("vsphere://{}", vm.uuid));
            nodes.add(if number == 0 { node.control_plane() } else { node }).await;
        }
        let workdir = Workdir::new("vdoctl").unwrap();
        Self { plane, vcenter, workdir, nodes, kubeconfig: OnceLock::new() }
    }

    /// Whether the operator has its permissions in a namespace.
    pub(crate) async fn can_adopt_in(&self, namespace: &str) -> bool {
        let roles = Api::<Role>::namespaced(self.plane.client(), namespace);
        let bindings = Api::<RoleBinding>::namespaced(self.plane.client(), namespace);
        let (role, binding) = (roles.get_opt("vdo").await, bindings.get_opt("vdo").await);
        role.unwrap().is_some() && binding.unwrap().is_some()
    }

    pub(crate) fn kubeconfig(&self) -> PathBuf {
        self.kubeconfig.get_or_init(|| self.plane.kubeconfig()).clone()
    }

    pub(crate) fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_vdoctl"));
        command
            .args(arguments)
            .env("KUBECONFIG", self.kubeconfig())
            .env_remove("NO_COLOR")
            .env("COLUMNS", "100")
            .current_dir(self.workdir.path());
        command
    }

    pub(crate) fn vdoctl(&self, arguments: &[&str]) -> CommandOutput {
        self.command(arguments).stdin(Stdio::null()).output().unwrap().into()
    }

    /// Runs vdoctl with closed output.
    pub(crate) fn vdoctl_unread(&self, arguments: &[&str]) -> CommandOutput {
        let (reader, writer) = std::io::pipe().unwrap();
        drop(reader);
        let mut command = self.command(arguments);
        let child = command.stdin(Stdio::null()).stdout(writer).stderr(Stdio::piped()).spawn();
        child.unwrap().wait_with_output().unwrap().into()
    }

    /// Runs vdoctl concurrently with the test.
    pub(crate) async fn vdoctl_alongside(&self, arguments: &[&str]) -> CommandOutput {
        let command =
            tokio::process::Command::from(self.command(arguments)).stdin(Stdio::null()).output();
        command.await.unwrap().into()
    }

    /// Runs vdoctl with standard input.
    pub(crate) fn vdoctl_reading(&self, arguments: &[&str], input: &str) -> CommandOutput {
        let mut child = self
            .command(arguments)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        child.stdin.take().unwrap().write_all(input.as_bytes()).unwrap();
        child.wait_with_output().unwrap().into()
    }

    /// Attaches a volume to a node.
    pub(crate) async fn attach_a_volume(&self) {
        let attachment = serde_json::json!({
            "metadata": {"name": ATTACHMENT},
            "spec": {
                "attacher": "csi.vsphere.vmware.com", "nodeName": "node-1",
                "source": {"persistentVolumeName": "pv-1"},
            },
        });
        let attachment: VolumeAttachment = serde_json::from_value(attachment).unwrap();
        let attachments = Api::<VolumeAttachment>::all(self.plane.client());
        attachments.create(&PostParams::default(), &attachment).await.unwrap();
    }

    pub(crate) async fn detach_the_volume(&self) {
        let attachments = Api::<VolumeAttachment>::all(self.plane.client());
        attachments.delete(ATTACHMENT, &DeleteParams::default()).await.unwrap();
    }

    /// Turns `disk.EnableUUID` of a VM off or on.
    pub(crate) async fn hide_disk_ids(&self, hidden: bool) {
        let value = if hidden { "FALSE" } else { "TRUE" };
        let change = serde_json::json!({"extraConfig": {"disk.EnableUUID": value}});
        self.vcenter.patch_vm("/DC0/vm/node-1", change).await;
    }

    /// Runs vdoctl and expects success.
    pub(crate) fn works(&self, arguments: &[&str]) -> CommandOutput {
        let output = self.vdoctl(arguments);
        assert_eq!(output.code, 0, "vdoctl {arguments:?}: {}", output.all());
        output
    }

    /// Runs the operator in this process, with the permissions of its service account. Pods are simulated.
    pub(crate) async fn operator(&self) -> JoinSet<()> {
        self.operator_with(SignedDuration::from_mins(15)).await
    }

    /// Runs the operator with this timeout for a release to become healthy.
    pub(crate) async fn operator_with(&self, timeout: SignedDuration) -> JoinSet<()> {
        let client = self.plane.client_as(&User::service_account(NAMESPACE, "vdo"));
        let build = BuildInfo::new("vdo");
        let metrics = OperatorMetrics::default();
        let engine = Engine::start(client, NAMESPACE, timeout, build, metrics).await.unwrap();
        let working = Checks::default().register("rounds", "none yet");
        let mut tasks = JoinSet::new();
        let run = Box::pin(engine.run(CancellationToken::new(), working));
        tasks.spawn(async move {
            run.await;
        });
        tasks
    }
}
