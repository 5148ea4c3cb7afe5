//! A kubelet with containerd in a guest, on cgroup v2. It belongs to no cluster: it runs the pod that it finds in a
//! folder, as kubeadm starts a control plane.

use serde_json::Value;

use super::Guest;
use crate::{error::must, eventually::eventually, peers::locate, registry::Registry};

const CONTAINERD: &str = r#"version = 3
root = "/var/lib/containerd"
state = "/run/containerd"
oom_score = 0
disabled_plugins = ["io.containerd.nri.v1.nri"]
[grpc]
  address = "/run/containerd/containerd.sock"
[plugins."io.containerd.cri.v1.runtime"]
  disable_apparmor = true
[plugins."io.containerd.cri.v1.images".pinned_images]
  sandbox = "registry.test/pause:1"
[plugins."io.containerd.cri.v1.images".registry]
  config_path = "/run/mirrors"
"#;

const KUBELET: &str = r#"apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
cgroupDriver: cgroupfs
containerRuntimeEndpoint: unix:///run/containerd/containerd.sock
authentication: {anonymous: {enabled: true}, webhook: {enabled: false}}
authorization: {mode: AlwaysAllow}
readOnlyPort: 10255
staticPodPath: /run/pods
failSwapOn: false
makeIPTablesUtilChains: false
evictionHard: {memory.available: "0%", nodefs.available: "0%", imagefs.available: "0%", nodefs.inodesFree: "0%"}
"#;

impl Guest {
    /// Starts containerd and a kubelet with this pod, whose images come from `registry`. Returns when the pod runs.
    ///
    /// # Panics
    /// If it does not run in time, with the logs of both.
    pub async fn start_kubelet(&self, registry: &Registry, pod: &Value) {
        let programs = [
            ("kubelet", "kubelet"),
            ("containerd", "containerd"),
            ("containerd-shim-runc-v2", "containerd-shim-runc-v2"),
            ("runc", "runc"),
        ];
        let link =
            |(peer, name)| format!("ln -sf {} /run/bin/{name}\n", must(locate(peer)).display());
        let links: String = programs.into_iter().map(link).collect();
        let controllers = "for each in $(</sys/fs/cgroup/cgroup.controllers); do
            echo \"+$each\" >/sys/fs/cgroup/cgroup.subtree_control
        done";
        self.run(&format!("mkdir -p /run/bin /run/pods\n{links}{controllers}")).await;
        let host = format!("http://{}:{}", Self::HOST, registry.address().port());
        let mirror = format!(
            "server = \"{host}\"\n[host.\"{host}\"]\n  capabilities = [\"pull\", \"resolve\"]"
        );
        self.write(&format!("/run/mirrors/{}/hosts.toml", Registry::HOST), &mirror).await;
        self.write("/run/containerd.toml", CONTAINERD).await;
        self.write("/run/kubelet.yaml", KUBELET).await;
        self.write("/run/pods/pod.json", &pod.to_string()).await;
        let path = "env PATH=/run/bin:$PATH";
        self.start_program(
            "containerd",
            &format!("{path} containerd --config /run/containerd.toml"),
        )
        .await;
        eventually("containerd serves in the guest", 60, async || {
            self.succeeds("test -S /run/containerd/containerd.sock", "containerd").await
        })
        .await;
        let kubelet = "kubelet --config=/run/kubelet.yaml --hostname-override=guest --v=2";
        self.start_program("kubelet", &format!("{path} {kubelet}")).await;
        let pods = "exec 3<>/dev/tcp/127.0.0.1/10255
            printf 'GET /pods HTTP/1.0\\r\\n\\r\\n' >&3
            cat <&3 | grep -q '\"phase\":\"Running\"'";
        eventually("the pod runs in the guest", 150, async || self.succeeds(pods, "kubelet").await)
            .await;
    }

    /// Whether a script succeeds; if not, the end of the log of a program.
    async fn succeeds(&self, script: &str, program: &str) -> Result<(), String> {
        if let Ok((true, _)) = self.try_run(script).await {
            return Ok(());
        }
        let log = self.try_run(&format!("tail -n 15 /run/{program}.log")).await;
        Err(log.map_or_else(|error| error.to_string(), |(_, log)| log))
    }
}
