//! A real container registry, and the images in it.

use std::{
    net::SocketAddr,
    path::{Path, PathBuf},
    process::{Command, Output},
    time::Duration,
};

use snafu::ResultExt as _;
use tokio::net::TcpStream;

use crate::{
    error::{Error, ImageSnafu, SpawnSnafu, must},
    peers::locate,
    ports::Port,
    process::Process,
    workdir::Workdir,
};

const PLATFORM: &str = if cfg!(target_arch = "aarch64") { "linux/arm64" } else { "linux/amd64" };

/// A registry on a loopback port, without TLS and without accounts. Gone when dropped.
#[derive(Debug)]
pub struct Registry {
    _process: Process,
    port: Port,
    workdir: Workdir,
}

impl Registry {
    /// The name by which nodes know every registry of a test; they reach it through a mirror configuration.
    pub const HOST: &str = "registry.test";

    /// # Panics
    /// If it cannot be built or does not become ready, with its last log lines.
    pub async fn start() -> Self {
        must(Self::launch().await)
    }

    pub async fn launch() -> Result<Self, Error> {
        let workdir = Workdir::new("registry")?;
        let port = Port::reserve()?;
        let address = SocketAddr::from(([127, 0, 0, 1], port.number));
        let arguments = ["registry", "serve", "--address", &address.to_string()].map(str::to_owned);
        let process = Process::spawn_peer("crane", "registry", arguments, &workdir)?;
        let listens = async || TcpStream::connect(address).await.map(drop);
        process.ready(Duration::from_mins(1), listens).await?;
        let registry = Self { _process: process, port, workdir };
        registry.push_pause()?;
        Ok(registry)
    }

    pub fn address(&self) -> SocketAddr {
        SocketAddr::from(([127, 0, 0, 1], self.port.number))
    }

    /// Pushes an OCI layout as `name:tag` and returns its reference by digest, as a node pulls it.
    pub fn push_layout(&self, layout: &Path, name: &str, tag: &str) -> Result<String, Error> {
        let target = format!("{}/{name}:{tag}", self.address());
        let layout = layout.display().to_string();
        let pushed = crane(&["push", "--insecure", &layout, &target])?;
        let digest = pushed.rsplit('@').next().unwrap_or_default().trim().to_owned();
        Ok(format!("{}/{name}@{digest}", Self::HOST))
    }

    /// Pushes one of this project's images, for the tests (`make test-images`), under the path and the version of the
    /// catalog. Returns its reference by digest.
    ///
    /// # Panics
    /// If the images are not built.
    pub fn push_own(&self, name: &str) -> String {
        let layout = test_images().join(name);
        assert!(layout.exists(), "{} is missing: run make test-images", layout.display());
        let path = format!("vmware-tanzu/{name}");
        must(self.push_layout(&layout, &path, env!("CARGO_PKG_VERSION")))
    }

    /// Pushes a copy of `name` that differs from it only in a label, as another release would differ. Returns its
    /// reference by digest.
    ///
    /// # Panics
    /// If `name` was not pushed.
    pub fn push_variant(&self, name: &str, tag: &str) -> String {
        let path = format!("vmware-tanzu/{name}");
        let from = format!("{}/{path}:{}", self.address(), env!("CARGO_PKG_VERSION"));
        let (to, label) = (format!("{}/{path}:{tag}", self.address()), format!("release={tag}"));
        let platform = ["--platform", PLATFORM, "--label", &label, "-t", &to];
        let printed = must(crane(&[&["mutate", "--insecure", &from], &platform[..]].concat()));
        let digest = printed.rsplit('@').next().unwrap_or_default().trim();
        format!("{}/{path}@{digest}", Self::HOST)
    }

    /// The image that holds the namespaces of pods.
    fn push_pause(&self) -> Result<(), Error> {
        let layer = self.workdir.path().join("pause.tar");
        let program = locate("pause")?;
        let folder = program.parent().unwrap_or(Path::new("/"));
        let mut tar = Command::new("tar");
        tar.args(["--owner=0", "--group=0", "--mode=0755", "-C"])
            .arg(folder)
            .arg("-cf")
            .arg(&layer);
        done(
            "tar",
            &tar.arg("pause").output().context(SpawnSnafu { program: "tar", path: "tar" })?,
        )?;
        let (target, layer) = (format!("{}/pause:1", self.address()), layer.display().to_string());
        crane(&["append", "--insecure", "--oci-empty-base", "-f", &layer, "-t", &target])?;
        let entry = ["--set-platform", PLATFORM, "--entrypoint", "/pause", "-t", &target];
        crane(&[&["mutate", "--insecure", &target], &entry[..]].concat()).map(drop)
    }
}

/// The folder of the images, next to the programs of the tests.
fn test_images() -> PathBuf {
    let program = std::env::current_exe().unwrap_or_default();
    let target = program.ancestors().find(|folder| folder.join("CACHEDIR.TAG").exists());
    target.unwrap_or(Path::new("target")).join("images").join("test")
}

/// Runs crane and returns what it printed.
fn crane(arguments: &[&str]) -> Result<String, Error> {
    let program = locate("crane")?;
    let output = Command::new(&program).args(arguments).output();
    let output = output.context(SpawnSnafu { program: "crane", path: &program })?;
    done(&format!("crane {}", arguments.join(" ")), &output)
}

fn done(command: &str, output: &Output) -> Result<String, Error> {
    if !output.status.success() {
        let text = String::from_utf8_lossy(&output.stderr).into_owned();
        return ImageSnafu { command, text }.fail();
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}
