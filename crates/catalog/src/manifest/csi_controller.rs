//! The storage controller: the driver, the syncer and the sidecars that call them, in one pod.

use serde_json::{Value, json};

use super::{
    RenderError,
    common::{CSI_CONTROLLER, CSI_FEATURES, Controller, confined, env, own_namespace, requests},
    image,
    profile::{MOST_CONTROLLERS, Profile},
};
use crate::model::{CsiTemplate, Election, Release};

/// The driver's socket inside the pod.
const SOCKET: &str = "/csi/csi.sock";

pub(super) fn deployment(
    release: &Release,
    template: &CsiTemplate,
    profile: &Profile,
) -> Result<Value, RenderError> {
    let sidecars = Sidecars { release, template, profile };
    let mut containers = vec![
        sidecars.attacher()?,
        sidecars.resizer()?,
        driver(release, template, profile)?,
        liveness(release, template, profile)?,
        syncer(release, template, profile)?,
        sidecars.provisioner()?,
    ];
    if profile.csi.snapshots.is_some() {
        containers.push(sidecars.snapshotter()?);
    }
    // Root reads any file; other users read the configuration through their group.
    let mode = if template.run_as_user.is_some() { 0o440 } else { 0o400 };
    let controller = Controller {
        name: CSI_CONTROLLER,
        namespace: &profile.csi.namespace,
        version: &release.version,
        selector: json!({ "app": CSI_CONTROLLER }),
        role: "vsphere-csi",
        account: CSI_CONTROLLER,
        replicas: profile.replicas(MOST_CONTROLLERS),
        priority: "system-cluster-critical",
        user: template.run_as_user,
        reads_config: true,
        containers,
        volumes: json!([
            {
                "name": "vsphere-config-volume",
                "secret": { "secretName": profile.csi.config_secret, "defaultMode": mode },
            },
            { "name": "socket-dir", "emptyDir": {} },
        ]),
    };
    Ok(controller.build(profile))
}

/// The flags that name the ConfigMap with the feature switches.
pub(super) fn feature_flags() -> Vec<String> {
    vec![format!("--fss-name={CSI_FEATURES}"), "--fss-namespace=$(CSI_NAMESPACE)".to_owned()]
}

fn election_flags(election: Option<Election>) -> Vec<String> {
    let mut flags = vec!["--leader-election".to_owned()];
    if let Some(Election { lease, renew, retry }) = election {
        flags.extend([
            format!("--leader-election-lease-duration={lease}s"),
            format!("--leader-election-renew-deadline={renew}s"),
            format!("--leader-election-retry-period={retry}s"),
        ]);
    }
    flags
}

fn socket_mount() -> Value {
    json!({ "name": "socket-dir", "mountPath": "/csi" })
}

fn config_mount() -> Value {
    json!({ "name": "vsphere-config-volume", "mountPath": "/etc/cloud", "readOnly": true })
}

/// The environment of both the driver and the syncer.
fn common_env() -> Vec<Value> {
    vec![
        env("VSPHERE_CSI_CONFIG", "/etc/cloud/csi-vsphere.conf"),
        env("LOGGER_LEVEL", "PRODUCTION"),
        env("INCLUSTER_CLIENT_QPS", "100"),
        env("INCLUSTER_CLIENT_BURST", "100"),
        own_namespace(),
    ]
}

fn driver(
    release: &Release,
    template: &CsiTemplate,
    profile: &Profile,
) -> Result<Value, RenderError> {
    let mut arguments = feature_flags();
    if template.profile_server_flag {
        arguments.push("--enable-profile-server=false".to_owned());
    }
    let mut variables =
        vec![env("CSI_ENDPOINT", &format!("unix://{SOCKET}")), env("X_CSI_MODE", "controller")];
    variables.extend(common_env());
    variables.extend(template.godebug.controller.as_deref().map(|value| env("GODEBUG", value)));
    let timing = template.controller_probe;
    Ok(json!({
        "name": "vsphere-csi-controller",
        "image": image(release, profile, "driver")?,
        "imagePullPolicy": "IfNotPresent",
        "args": arguments,
        "env": variables,
        "ports": [
            { "name": "healthz", "containerPort": profile.csi.health_port, "protocol": "TCP" },
            { "name": "prometheus", "containerPort": 2112, "protocol": "TCP" },
        ],
        "livenessProbe": {
            "httpGet": { "path": "/healthz", "port": "healthz" },
            "initialDelaySeconds": timing.delay,
            "timeoutSeconds": timing.timeout,
            "periodSeconds": timing.period,
            "failureThreshold": 3,
        },
        "resources": requests("50m", "128Mi"),
        "securityContext": confined(template.run_as_user, profile),
        "volumeMounts": [config_mount(), socket_mount()],
    }))
}

fn liveness(
    release: &Release,
    template: &CsiTemplate,
    profile: &Profile,
) -> Result<Value, RenderError> {
    Ok(json!({
        "name": "liveness-probe",
        "image": image(release, profile, "livenessprobe")?,
        "imagePullPolicy": "IfNotPresent",
        "args": [
            "--v=4",
            format!("--csi-address={SOCKET}"),
            format!("--health-port={}", profile.csi.health_port),
        ],
        "resources": requests("10m", "32Mi"),
        "securityContext": confined(template.run_as_user, profile),
        "volumeMounts": [socket_mount()],
    }))
}

fn syncer(
    release: &Release,
    template: &CsiTemplate,
    profile: &Profile,
) -> Result<Value, RenderError> {
    let mut arguments = election_flags(template.syncer_election);
    arguments.extend(feature_flags());
    if template.profile_server_flag {
        arguments.push("--enable-profile-server=false".to_owned());
    }
    let mut variables = vec![env("FULL_SYNC_INTERVAL_MINUTES", "30")];
    variables.extend(common_env());
    variables.extend(template.godebug.syncer.as_deref().map(|value| env("GODEBUG", value)));
    Ok(json!({
        "name": "vsphere-syncer",
        "image": image(release, profile, "syncer")?,
        "imagePullPolicy": "IfNotPresent",
        "args": arguments,
        "env": variables,
        "ports": [{ "name": "prometheus-sync", "containerPort": 2113, "protocol": "TCP" }],
        // It has no health endpoint, but it serves metrics from the start.
        "livenessProbe": {
            "tcpSocket": { "port": "prometheus-sync" },
            "initialDelaySeconds": 30,
            "periodSeconds": 60,
            "timeoutSeconds": 10,
            "failureThreshold": 5,
        },
        "resources": requests("20m", "96Mi"),
        "securityContext": confined(template.run_as_user, profile),
        "volumeMounts": [config_mount()],
    }))
}

struct Sidecars<'a> {
    release: &'a Release,
    template: &'a CsiTemplate,
    profile: &'a Profile,
}

impl Sidecars<'_> {
    fn build(
        &self,
        name: &str,
        part: &'static str,
        diagnostics: u16,
        more: Vec<String>,
    ) -> Result<Value, RenderError> {
        let mut arguments = vec![
            "--v=4".to_owned(),
            "--timeout=300s".to_owned(),
            format!("--csi-address={SOCKET}"),
            "--kube-api-qps=100".to_owned(),
            "--kube-api-burst=100".to_owned(),
            format!("--http-endpoint=:{diagnostics}"),
        ];
        arguments.extend(election_flags(self.template.sidecar_election));
        arguments.extend(more);
        // A port name has at most 15 characters.
        let port_name = format!("diag-{}", &part[..part.len().min(10)]);
        Ok(json!({
            "name": name,
            "image": image(self.release, self.profile, part)?,
            "imagePullPolicy": "IfNotPresent",
            "args": arguments,
            "ports": [{ "name": port_name, "containerPort": diagnostics, "protocol": "TCP" }],
            "livenessProbe": {
                "httpGet": { "path": "/healthz/leader-election", "port": port_name },
                "initialDelaySeconds": 30,
                "periodSeconds": 60,
                "timeoutSeconds": 10,
                "failureThreshold": 3,
            },
            "resources": requests("10m", "48Mi"),
            "securityContext": confined(self.template.run_as_user, self.profile),
            "volumeMounts": [socket_mount()],
        }))
    }

    fn attacher(&self) -> Result<Value, RenderError> {
        let threads =
            self.template.attacher_workers.map(|threads| format!("--worker-threads={threads}"));
        self.build("csi-attacher", "attacher", 8091, threads.into_iter().collect())
    }

    fn resizer(&self) -> Result<Value, RenderError> {
        let mut flags = vec!["--handle-volume-inuse-error=false".to_owned()];
        if !self.template.resizer_gates.is_empty() {
            flags.push(format!("--feature-gates={}", self.template.resizer_gates.join(",")));
        }
        self.build("csi-resizer", "resizer", 8092, flags)
    }

    /// A driver without topology categories refuses topology requests, and a driver with categories requires
    /// them. So the flags follow the configuration, never a default.
    fn provisioner(&self) -> Result<Value, RenderError> {
        let mut flags = vec!["--default-fstype=ext4".to_owned()];
        if self.profile.topology {
            flags.extend([
                "--feature-gates=Topology=true".to_owned(),
                "--strict-topology".to_owned(),
            ]);
        } else if self.template.topology_gate_on_by_default {
            flags.push("--feature-gates=Topology=false".to_owned());
        }
        self.build("csi-provisioner", "provisioner", 8093, flags)
    }

    fn snapshotter(&self) -> Result<Value, RenderError> {
        let metadata =
            self.template.snapshotter_metadata.then(|| "--extra-create-metadata".to_owned());
        self.build("csi-snapshotter", "snapshotter", 8094, metadata.into_iter().collect())
    }
}
