//! A real container registry, and the images in it.

mod front;

use std::{
    net::SocketAddr,
    path::{Path, PathBuf},
    process::{Command, Output},
    time::Duration,
};

use snafu::ResultExt as _;
use tokio::net::TcpStream;

use self::front::RegistryFront;
use crate::{
    error::{Error, FilesSnafu, ImageSnafu, SpawnSnafu, must},
    paths::repository,
    peers::locate,
    ports::Port,
    process::Process,
    workdir::Workdir,
};

/// The clock of a program with another time than the rest of the world. Its monotonic clock is right.
const CLOCK: &str = r"
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>
int clock_gettime(clockid_t clock, struct timespec *time) {
  int failed = syscall(SYS_clock_gettime, clock, time);
  if (!failed && clock == CLOCK_REALTIME) time->tv_sec += AHEAD;
  return failed;
}
";

const PLATFORM: &str = if cfg!(target_arch = "aarch64") { "linux/arm64" } else { "linux/amd64" };

/// A registry on a loopback port, without TLS. Gone when dropped.
///
/// Nodes reach it through a proxy of ours ([`Self::front`]) that can require an account and have faults; tests push without it.
#[derive(Debug)]
pub struct Registry {
    _process: Process,
    port: Port,
    front: RegistryFront,
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
        let front = RegistryFront::before(address).await?;
        let registry = Self { _process: process, port, front, workdir };
        registry.push_pause()?;
        Ok(registry)
    }

    pub fn address(&self) -> SocketAddr {
        SocketAddr::from(([127, 0, 0, 1], self.port.number))
    }

    /// The address for nodes, and for programs that pull as nodes do: with an account, and with faults.
    pub fn front(&self) -> SocketAddr {
        self.front.address()
    }

    /// From now on nodes need this account (HTTP Basic authentication) for every image but that of pods' namespaces.
    pub fn require_account(&self, user: &str, password: &str) {
        self.front.require_account(user, password);
    }

    /// Closes every connection of a node, also new ones, until [`Self::heal`].
    pub fn cut(&self) {
        self.front.set_cut(true);
    }

    /// Accepts the connections of nodes and answers no request, until [`Self::heal`].
    pub fn fall_silent(&self) {
        self.front.set_silent(true);
    }

    /// Serves nodes again, and the right content.
    pub fn heal(&self) {
        self.front.set_cut(false);
        self.front.set_silent(false);
        self.front.forget_substitutes();
    }

    /// Serves the content of `other` to nodes that ask for `image`, as a manipulated mirror does. Both are references
    /// by digest, from one of the push functions.
    ///
    /// # Panics
    /// If a reference has no digest.
    pub fn manipulate(&self, image: &str, other: &str) {
        let path = |image: &str| {
            let (name, digest) = image.split_once('@').expect("a reference by digest");
            let name = name.trim_start_matches(Self::HOST);
            format!("/v2{name}/manifests/{digest}")
        };
        // A node names itself which registry it asks a mirror for.
        let query = format!("?ns={}", Self::HOST);
        for query in [query.as_str(), ""] {
            self.front.substitute(&(path(image) + query), &path(other));
        }
    }

    /// Pushes an OCI layout as `name:tag` and returns its reference by digest, as a node pulls it.
    pub fn push_layout(&self, layout: &Path, name: &str, tag: &str) -> Result<String, Error> {
        let target = format!("{}/{name}:{tag}", self.address());
        let layout = layout.display().to_string();
        let pushed = crane(&["push", "--insecure", &layout, &target])?;
        let digest = pushed.rsplit('@').next().unwrap_or_default().trim().to_owned();
        Ok(format!("{}/{name}@{digest}", Self::HOST))
    }

    /// The folder of this project's images, one OCI layout for each: `VDO_TEST_IMAGES`, for example those of a release,
    /// or those next to the programs of the tests.
    pub fn own_images() -> PathBuf {
        let given = std::env::var_os("VDO_TEST_IMAGES").map(PathBuf::from);
        given.unwrap_or_else(|| target_folder().join("images").join("test"))
    }

    /// Pushes one of this project's images, for the tests (`make test-images`), under the path and the version of the
    /// catalog. Returns its reference by digest.
    ///
    /// # Panics
    /// If the images are not built.
    pub fn push_own(&self, name: &str) -> String {
        let layout = Self::own_images().join(name);
        assert!(layout.exists(), "{} is missing: run make test-images", layout.display());
        let path = format!("vmware-tanzu/{name}");
        must(self.push_layout(&layout, &path, env!("CARGO_PKG_VERSION")))
    }

    /// Pushes the operator's image with the program of an earlier commit in it, under this tag. The first call builds
    /// that program.
    ///
    /// # Panics
    /// If the operator's image was not pushed, or the program cannot be built.
    pub fn push_earlier_operator(&self, tag: &str) -> EarlierOperator {
        must(self.try_push_earlier_operator(tag))
    }

    fn try_push_earlier_operator(&self, tag: &str) -> Result<EarlierOperator, Error> {
        let script = repository().join("scripts/earlier-operator");
        let built = Command::new(&script).env_remove("RUSTC_BOOTSTRAP").output();
        let built = built.context(SpawnSnafu { program: "earlier-operator", path: &script })?;
        let folder = PathBuf::from(done("earlier-operator", &built)?.trim());
        let program = folder.join("vdo");
        let root = self.workdir.path().join("earlier");
        let bin = root.join("usr/bin");
        let copied = std::fs::create_dir_all(&bin)
            .and_then(|()| std::fs::copy(&program, bin.join("vdo")).map(drop));
        copied.context(FilesSnafu { path: &bin })?;
        let to = self.append("vdo", tag, &root)?;
        let manifest = folder.join("install.yaml");
        let manifest =
            std::fs::read_to_string(&manifest).context(FilesSnafu { path: &manifest })?;
        Ok(EarlierOperator {
            image: Self::by_digest("vdo", &to)?,
            commit: commit_of(&program)?,
            present: commit_of(&target_folder().join("debug/vdo"))?,
            manifest,
        })
    }

    /// Pushes a copy of `name` that differs from it only in a label. Returns its reference by digest.
    ///
    /// # Panics
    /// If `name` was not pushed.
    pub fn push_variant(&self, name: &str, tag: &str) -> String {
        self.mutate(name, tag, &["--label", &format!("release={tag}")])
    }

    /// Pushes a copy of `name` as an image that exists only for another platform. Returns its reference by digest.
    ///
    /// # Panics
    /// If `name` was not pushed.
    pub fn push_for_platform(&self, name: &str, tag: &str, platform: &str) -> String {
        self.mutate(name, tag, &["--set-platform", platform]);
        // A node compares its platform with those in an index, not with that of a single image.
        let image = format!("{}/vmware-tanzu/{name}:{tag}", self.address());
        let index = format!("{image}-index");
        must(crane(&["index", "append", "--insecure", "-m", &image, "-t", &index]));
        let digest = must(crane(&["digest", "--insecure", &index]));
        format!("{}/vmware-tanzu/{name}@{}", Self::HOST, digest.trim())
    }

    /// Pushes a copy of `name` whose program has a clock that is ahead of everybody else's. A library shifts the time,
    /// so the program must not be static. Returns its reference by digest.
    ///
    /// # Panics
    /// If `name` was not pushed, or there is no C compiler.
    pub fn push_with_clock_ahead(&self, name: &str, tag: &str, ahead: Duration) -> String {
        must(self.try_push_with_clock_ahead(name, tag, ahead))
    }

    fn try_push_with_clock_ahead(
        &self,
        name: &str,
        tag: &str,
        ahead: Duration,
    ) -> Result<String, Error> {
        let root = self.workdir.path().join("clock");
        std::fs::create_dir_all(root.join("usr/lib")).context(FilesSnafu { path: &root })?;
        let source = self.workdir.write("clock.c", CLOCK)?;
        let seconds = format!("-DAHEAD={}", ahead.as_secs());
        let mut compile = Command::new("cc");
        compile
            .args(["-shared", "-fPIC", "-O2", &seconds, "-o"])
            .arg(root.join("usr/lib/clock.so"));
        let compiled = compile.arg(&source).output();
        done("cc", &compiled.context(SpawnSnafu { program: "cc", path: "cc" })?)?;
        let to = self.append(name, tag, &root)?;
        let preload = ["mutate", "--insecure", &to, "--env", "LD_PRELOAD=/usr/lib/clock.so"];
        crane(&[&preload[..], &["-t", &to]].concat())?;
        Self::by_digest(name, &to)
    }

    /// Pushes a copy of `name` in which the file with the certificate authorities has only these, as PEM. Returns its
    /// reference by digest.
    ///
    /// # Panics
    /// If `name` was not pushed.
    pub fn push_with_authorities(&self, name: &str, tag: &str, authorities: &str) -> String {
        let root = self.workdir.path().join(format!("authorities-{name}"));
        let folder = root.join("etc/ssl/certs");
        let written = std::fs::create_dir_all(&folder)
            .and_then(|()| std::fs::write(folder.join("ca-certificates.crt"), authorities));
        must(written.context(FilesSnafu { path: &folder }));
        let to = must(self.append(name, tag, &root));
        must(Self::by_digest(name, &to))
    }

    /// Pushes a copy of `name` with the files in a folder on top. Returns its name with the tag.
    fn append(&self, name: &str, tag: &str, root: &Path) -> Result<String, Error> {
        let layer = self.workdir.path().join(format!("{tag}-{name}.tar"));
        let mut tar = Command::new("tar");
        tar.args(["--owner=0", "--group=0", "--mode=0755", "-C"]).arg(root);
        let packed = tar.arg("-cf").arg(&layer).arg(".").output();
        done("tar", &packed.context(SpawnSnafu { program: "tar", path: "tar" })?)?;
        let image = format!("{}/vmware-tanzu/{name}", self.address());
        let from = format!("{image}:{}", env!("CARGO_PKG_VERSION"));
        let (to, layer) = (format!("{image}:{tag}"), layer.display().to_string());
        let flags = ["append", "--insecure", "--platform", PLATFORM];
        crane(&[&flags[..], &["-b", &from, "-f", &layer, "-t", &to]].concat())?;
        Ok(to)
    }

    fn by_digest(name: &str, image: &str) -> Result<String, Error> {
        let digest = crane(&["digest", "--insecure", image])?;
        Ok(format!("{}/vmware-tanzu/{name}@{}", Self::HOST, digest.trim()))
    }

    fn mutate(&self, name: &str, tag: &str, change: &[&str]) -> String {
        let path = format!("vmware-tanzu/{name}");
        let from = format!("{}/{path}:{}", self.address(), env!("CARGO_PKG_VERSION"));
        let to = format!("{}/{path}:{tag}", self.address());
        let options = ["mutate", "--insecure", &from, "--platform", PLATFORM, "-t", &to];
        let printed = must(crane(&[&options, change].concat()));
        let digest = printed.rsplit('@').next().unwrap_or_default().trim();
        format!("{}/{path}@{digest}", Self::HOST)
    }

    /// The image that holds the namespaces of pods. It also has a shell, for pods with a script: no image of ours has one.
    fn push_pause(&self) -> Result<(), Error> {
        let layer = self.workdir.path().join("pause.tar");
        let program = locate("pause")?;
        let folder = program.parent().unwrap_or(Path::new("/"));
        let mut tar = Command::new("tar");
        tar.args(["--owner=0", "--group=0", "--mode=0755", "--dereference", "-cf"]).arg(&layer);
        tar.arg("-C").arg(folder).arg("pause").args(["-C", "/"]).args(shell()?);
        done("tar", &tar.output().context(SpawnSnafu { program: "tar", path: "tar" })?)?;
        self.push_layer(&layer, "pause:1", &["--entrypoint", "/pause"])
    }

    /// Pushes an image of one layer, an archive, as `name:tag`. `options` are those of `crane mutate`.
    pub fn push_layer(&self, layer: &Path, name: &str, options: &[&str]) -> Result<(), Error> {
        let (target, layer) = (format!("{}/{name}", self.address()), layer.display().to_string());
        crane(&["append", "--insecure", "--oci-empty-base", "-f", &layer, "-t", &target])?;
        let platform = ["--set-platform", PLATFORM, "-t", &target];
        crane(&[&["mutate", "--insecure", &target], &platform[..], options].concat()).map(drop)
    }

    /// Gives an image that was pushed as `name:tag` another tag, or another name.
    pub fn copy(&self, from: &str, to: &str) -> Result<(), Error> {
        let name = |name: &str| format!("{}/{name}", self.address());
        crane(&["copy", "--insecure", &name(from), &name(to)]).map(drop)
    }
}

/// The image that [`Registry::push_earlier_operator`] pushed.
#[derive(Clone, Debug)]
pub struct EarlierOperator {
    /// Its reference by digest.
    pub image: String,
    /// The commit that its program names.
    pub commit: String,
    /// The commit that the program of the tests names.
    pub present: String,
    /// The manifest of that commit, as YAML.
    pub manifest: String,
}

/// The commit in the version of a program of ours.
fn commit_of(program: &Path) -> Result<String, Error> {
    let printed = Command::new(program).arg("--version").output();
    let printed = printed.context(SpawnSnafu { program: "vdo", path: program })?;
    let version = done("vdo --version", &printed)?;
    let commit = version.rsplit_once('(').and_then(|(_, rest)| rest.split_once(')'));
    Ok(commit.map(|(commit, _)| commit.to_owned()).unwrap_or_default())
}

/// The shell of this computer and its libraries, below the root folder.
fn shell() -> Result<Vec<String>, Error> {
    let libraries = Command::new("ldd").arg("/bin/sh").output();
    let libraries = libraries.context(SpawnSnafu { program: "ldd", path: "ldd" })?;
    let listed = done("ldd", &libraries)?;
    let paths = listed.split_whitespace().filter_map(|word| word.strip_prefix('/'));
    Ok(std::iter::once("bin/sh").chain(paths).map(str::to_owned).collect())
}

/// Cargo's folder for what it builds.
fn target_folder() -> PathBuf {
    let program = std::env::current_exe().unwrap_or_default();
    let target = program.ancestors().find(|folder| folder.join("CACHEDIR.TAG").exists());
    target.unwrap_or(Path::new("target")).to_owned()
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
