//! The configuration of kubelet, containerd and CNI.

use std::net::SocketAddr;

use snafu::ResultExt as _;

use super::{API_SERVICE, OUTSIDE, REGISTRY_PORT};
use crate::{
    control_plane::ControlPlane,
    error::{Error, FilesSnafu},
    peers::locate,
    registry::Registry,
    workdir::Workdir,
};

pub(super) fn write_files(
    plane: &ControlPlane,
    workdir: &Workdir,
    name: &str,
    number: u8,
    cgroup: &str,
    evicts: bool,
) -> Result<(), Error> {
    // On a node with a disk of its own, the thresholds are those of Kubernetes; they are never reached elsewhere.
    let [files, images, inodes] = if evicts { ["10%", "15%", "5%"] } else { ["0%"; 3] };
    let folder = workdir.path();
    for part in ["bin", "dev"] {
        let path = folder.join(part);
        std::fs::create_dir_all(&path).context(FilesSnafu { path })?;
    }
    let programs = [
        ("kubelet", "kubelet"),
        ("containerd", "containerd"),
        ("containerd-shim-runc-v2", "containerd-shim-runc-v2"),
        ("runc", "runc"),
        ("cni-bridge", "bridge"),
        ("cni-host-local", "host-local"),
        ("cni-loopback", "loopback"),
    ];
    for (peer, file) in programs {
        let path = folder.join("bin").join(file);
        std::os::unix::fs::symlink(locate(peer)?, &path).context(FilesSnafu { path: &path })?;
    }
    let here = folder.display();
    workdir
        .write("kubeconfig", plane.node_kubeconfig(name, SocketAddr::from((API_SERVICE, 443)))?)?;
    workdir.write("ca.crt", plane.ca_pem())?;
    let host = format!("http://{OUTSIDE}:{REGISTRY_PORT}");
    // The second one is that of the images of Kubernetes' own tests, the third that of the book.
    for mirrored in [Registry::HOST, "registry.k8s.io", "registry.example.com"] {
        let path = folder.join("mirrors").join(mirrored);
        std::fs::create_dir_all(&path).context(FilesSnafu { path })?;
        workdir.write(
            &format!("mirrors/{mirrored}/hosts.toml"),
            format!(
                "server = \"{host}\"\n[host.\"{host}\"]\n  capabilities = [\"pull\", \"resolve\"]\n"
            ),
        )?;
    }
    workdir.write(
        "containerd.toml",
        format!(
            r#"version = 3
root = "/var/lib/containerd"
state = "/run/containerd"
oom_score = 0
disabled_plugins = ["io.containerd.nri.v1.nri"]
[grpc]
  address = "/run/containerd/containerd.sock"
[plugins."io.containerd.cri.v1.runtime"]
  restrict_oom_score_adj = true
  disable_apparmor = true
  [plugins."io.containerd.cri.v1.runtime".containerd]
    default_runtime_name = "runc"
    [plugins."io.containerd.cri.v1.runtime".containerd.runtimes.runc]
      runtime_type = "io.containerd.runc.v2"
      [plugins."io.containerd.cri.v1.runtime".containerd.runtimes.runc.options]
        SystemdCgroup = false
  [plugins."io.containerd.cri.v1.runtime".cni]
    bin_dir = "{here}/bin"
    conf_dir = "/etc/cni/net.d"
[plugins."io.containerd.cri.v1.images"]
  snapshotter = "overlayfs"
  [plugins."io.containerd.cri.v1.images".pinned_images]
    sandbox = "registry.test/pause:1"
  [plugins."io.containerd.cri.v1.images".registry]
    config_path = "{here}/mirrors"
"#
        ),
    )?;
    std::fs::create_dir_all(folder.join("cni")).context(FilesSnafu { path: folder.join("cni") })?;
    workdir.write(
        "cni/10-bridge.conflist",
        format!(
            r#"{{"cniVersion": "1.0.0", "name": "pods", "plugins": [{{
  "type": "bridge", "bridge": "cni0", "isGateway": true, "ipMasq": false, "hairpinMode": true,
  "ipam": {{"type": "host-local", "dataDir": "{here}/ipam",
           "ranges": [[{{"subnet": "10.78.{number}.0/24"}}]], "routes": [{{"dst": "0.0.0.0/0"}}]}}
}}]}}"#
        ),
    )?;
    workdir.write("kubelet.yaml", format!(
        r#"apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
failCgroupV1: false
failSwapOn: false
oomScoreAdj: 0
cgroupDriver: cgroupfs
cgroupRoot: /{cgroup}
enforceNodeAllocatable: ["pods"]
containerRuntimeEndpoint: unix:///run/containerd/containerd.sock
authentication: {{anonymous: {{enabled: false}}, webhook: {{enabled: true}}, x509: {{clientCAFile: {here}/ca.crt}}}}
authorization: {{mode: Webhook}}
evictionHard: {{memory.available: "0%", nodefs.available: "{files}", imagefs.available: "{images}", nodefs.inodesFree: "{inodes}"}}
evictionPressureTransitionPeriod: 5s
imageGCHighThresholdPercent: 100
makeIPTablesUtilChains: false
nodeStatusUpdateFrequency: 5s
maxOpenFiles: 20000
"#
    ))?;
    Ok(())
}
