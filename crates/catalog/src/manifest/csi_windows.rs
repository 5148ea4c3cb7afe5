//! The node driver on Windows: a HostProcess container, or csi-proxy's pipes before 3.5.

use serde_json::{Value, json};

use super::{
    RenderError,
    common::{
        CSI_DRIVER, CSI_NODE, env, metadata, pod_metadata, pull_secrets, requests, vsphere_nodes,
    },
    csi_controller::feature_flags,
    csi_node::{health, node_env},
    image,
    profile::Profile,
};
use crate::model::{CsiTemplate, Release, WindowsMode};

const NAME: &str = "vsphere-csi-node-windows";

/// The csi-proxy pipes that the driver uses.
const PIPES: [&str; 4] = [
    "csi-proxy-volume-v1",
    "csi-proxy-filesystem-v1",
    "csi-proxy-disk-v1",
    "csi-proxy-system-v1alpha1",
];

/// `None` for releases without Windows support.
pub(super) fn daemon_set(
    release: &Release,
    template: &CsiTemplate,
    profile: &Profile,
) -> Result<Option<Value>, RenderError> {
    let Some(mode) = template.windows else { return Ok(None) };
    let node = Node::new(release, template, profile, mode);
    let selector = json!({ "app": NAME });
    let mut spec = json!({
        "serviceAccountName": CSI_NODE,
        "priorityClassName": "system-node-critical",
        "nodeSelector": { "kubernetes.io/os": "windows" },
        "affinity": vsphere_nodes(),
        "tolerations": [
            { "operator": "Exists", "effect": "NoExecute" },
            { "operator": "Exists", "effect": "NoSchedule" },
        ],
        "containers": [node.registrar()?, node.driver()?, node.liveness()?],
        "volumes": node.volumes(),
    });
    if mode == WindowsMode::HostProcess {
        spec["hostNetwork"] = json!(true);
        spec["dnsPolicy"] = json!("ClusterFirstWithHostNet");
        spec["securityContext"] = json!({ "windowsOptions": { "hostProcess": true, "runAsUserName": r"NT AUTHORITY\SYSTEM" } });
    }
    pull_secrets(&mut spec, profile);
    Ok(Some(json!({
        "apiVersion": "apps/v1",
        "kind": "DaemonSet",
        "metadata": metadata(NAME, &profile.csi.namespace, &release.version),
        "spec": {
            "selector": { "matchLabels": selector },
            "updateStrategy": { "type": "RollingUpdate", "rollingUpdate": { "maxUnavailable": "10%" } },
            "template": {
                "metadata": pod_metadata(&selector, "vsphere-csi-windows", &release.version, profile, "privileged"),
                "spec": spec,
            },
        },
    })))
}

struct Node<'a> {
    release: &'a Release,
    template: &'a CsiTemplate,
    profile: &'a Profile,
    mode: WindowsMode,
    /// The kubelet's directory from the root of the drive, with backslashes.
    kubelet: String,
}

impl<'a> Node<'a> {
    fn new(
        release: &'a Release,
        template: &'a CsiTemplate,
        profile: &'a Profile,
        mode: WindowsMode,
    ) -> Self {
        let kubelet = profile.kubelet_path.trim_end_matches('/').replace('/', r"\");
        Self { release, template, profile, mode, kubelet }
    }

    /// The socket on the host's disk. Backslashes are doubled, because the path is parsed as a URL.
    fn host_socket(&self) -> String {
        format!(r"C:{}\plugins\{CSI_DRIVER}\csi.sock", self.kubelet).replace('\\', r"\\")
    }

    /// The socket as the containers see it.
    fn endpoint(&self) -> String {
        match self.mode {
            WindowsMode::HostProcess => format!("unix://{}", self.host_socket()),
            WindowsMode::CsiProxy => r"unix://C:\\csi\\csi.sock".to_owned(),
        }
    }

    /// A HostProcess container does not start in its image root, so the program needs a path.
    fn program(&self, mut container: Value, name: &str) -> Value {
        if self.mode == WindowsMode::HostProcess {
            container["command"] = json!([name]);
        }
        container
    }

    fn registrar(&self) -> Result<Value, RenderError> {
        let mut arguments = vec![
            "--v=5".to_owned(),
            "--csi-address=$(ADDRESS)".to_owned(),
            "--kubelet-registration-path=$(DRIVER_REG_SOCK_PATH)".to_owned(),
        ];
        let mut variables = vec![
            env("ADDRESS", &self.endpoint()),
            env("DRIVER_REG_SOCK_PATH", &self.host_socket()),
        ];
        if self.mode == WindowsMode::HostProcess {
            arguments.push("--plugin-registration-path=$(PLUGIN_REG_DIR)".to_owned());
            let directory = format!(r"C:{}\plugins_registry\", self.kubelet).replace('\\', r"\\");
            variables.push(env("PLUGIN_REG_DIR", &directory));
        }
        let container = json!({
            "name": "node-driver-registrar",
            "image": image(self.release, self.profile, "registrar")?,
            "imagePullPolicy": "IfNotPresent",
            "args": arguments,
            "env": variables,
            "resources": requests("10m", "64Mi"),
            "volumeMounts": [
                { "name": "plugin-dir", "mountPath": "/csi" },
                { "name": "registration-dir", "mountPath": "/registration" },
            ],
        });
        Ok(self.program(container, "csi-node-driver-registrar.exe"))
    }

    fn driver(&self) -> Result<Value, RenderError> {
        let (ports, probe) = health(self.profile);
        let mut mounts = vec![
            json!({ "name": "plugin-dir", "mountPath": r"C:\csi" }),
            json!({ "name": "pods-mount-dir", "mountPath": format!("C:{}", self.kubelet) }),
        ];
        if self.mode == WindowsMode::CsiProxy {
            let pipe =
                |name: &&str| json!({ "name": name, "mountPath": format!(r"\\.\pipe\{name}") });
            mounts.extend(PIPES.iter().map(pipe));
        }
        let container = json!({
            "name": "vsphere-csi-node",
            "image": image(self.release, self.profile, "driver")?,
            "imagePullPolicy": "IfNotPresent",
            "args": feature_flags(),
            "env": node_env(self.template, self.profile, &self.endpoint()),
            "ports": ports,
            "livenessProbe": probe,
            "resources": requests("20m", "128Mi"),
            "volumeMounts": mounts,
        });
        Ok(self.program(container, "csi.exe"))
    }

    fn liveness(&self) -> Result<Value, RenderError> {
        let address = match self.mode {
            WindowsMode::HostProcess => self.endpoint(),
            WindowsMode::CsiProxy => "/csi/csi.sock".to_owned(),
        };
        let container = json!({
            "name": "liveness-probe",
            "image": image(self.release, self.profile, "livenessprobe")?,
            "imagePullPolicy": "IfNotPresent",
            "args": [
                "--v=4",
                format!("--csi-address={address}"),
                format!("--health-port={}", self.profile.csi.health_port),
            ],
            "resources": requests("10m", "64Mi"),
            "volumeMounts": [{ "name": "plugin-dir", "mountPath": "/csi" }],
        });
        Ok(self.program(container, "livenessprobe.exe"))
    }

    fn volumes(&self) -> Value {
        let host = |name: &str, path: String, kind: &str| json!({ "name": name, "hostPath": { "path": path, "type": kind } });
        let kubelet = &self.kubelet;
        let mut volumes = vec![
            host("registration-dir", format!(r"C:{kubelet}\plugins_registry\"), "Directory"),
            host("plugin-dir", format!(r"C:{kubelet}\plugins\{CSI_DRIVER}\"), "DirectoryOrCreate"),
            host("pods-mount-dir", kubelet.clone(), "Directory"),
        ];
        if self.mode == WindowsMode::CsiProxy {
            volumes.extend(PIPES.iter().map(|name| host(name, format!(r"\\.\pipe\{name}"), "")));
        }
        Value::Array(volumes)
    }
}
