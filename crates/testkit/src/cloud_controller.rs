//! A cloud controller as a process, because the simulated kubelet runs no containers.

use std::{
    path::{Path, PathBuf},
    sync::atomic::{AtomicUsize, Ordering},
};

use k8s_openapi::api::{
    apps::v1::DaemonSet,
    core::v1::{ConfigMap, Container, PodSpec},
};
use kube::Api;
use snafu::ResultExt;

use crate::{
    ControlPlane, Error, Process, User, Workdir,
    error::{FilesSnafu, KubernetesSnafu},
    peers::locate,
};

/// Namespace and name of the DaemonSet of either cloud controller.
const NAME: (&str, &str) = ("kube-system", "vsphere-cloud-controller-manager");

/// The number of the next folder for a pod's files.
static NEXT: AtomicUsize = AtomicUsize::new(0);

/// The arguments and environment of a cloud controller, ours or upstream's.
#[derive(Clone, Debug)]
pub struct CloudController {
    flags: Vec<String>,
    environment: Vec<(String, String)>,
    account: User,
    image: String,
}

impl CloudController {
    /// With a configuration file, cluster admin permissions, and without leader election.
    pub fn on(configuration: &Path) -> Self {
        let flags = vec![
            "--cloud-provider=vsphere".to_owned(),
            format!("--cloud-config={}", configuration.display()),
            "--leader-elect=false".to_owned(),
        ];
        let image = String::new();
        Self { flags, environment: Vec::new(), account: User::admin(), image }.on_loopback()
    }

    /// With the arguments, the environment, the files of the ConfigMap (in `workdir`) and the account of the DaemonSet in
    /// the cluster. `None` if there is no DaemonSet.
    pub async fn rendered(plane: &ControlPlane, workdir: &Workdir) -> Result<Option<Self>, Error> {
        let what = || KubernetesSnafu { what: "reading the cloud controller's objects" };
        let (namespace, name) = NAME;
        let sets = Api::<DaemonSet>::namespaced(plane.client(), namespace);
        let set = sets.get_opt(name).await.with_context(|_| what())?;
        let Some(pod) = set.and_then(|set| set.spec?.template.spec) else { return Ok(None) };
        let maps = Api::<ConfigMap>::namespaced(plane.client(), namespace);
        let map = maps.get_opt(&config_map(&pod)).await.with_context(|_| what())?;
        let (Some(map), Some(container)) = (map, pod.containers.first()) else { return Ok(None) };
        let mounts = container.volume_mounts.iter().flatten();
        let mounted = mounts.map(|mount| mount.mount_path.clone()).next().unwrap_or_default();
        let folder = write(&map, &mounted, workdir)?;
        let args = container.args.iter().flatten();
        let flags = args.map(|flag| flag.replace(&mounted, &folder.display().to_string()));
        let account = pod.service_account_name.clone().unwrap_or_else(|| "default".into());
        let rendered = Self {
            flags: flags.collect(),
            environment: environment(container),
            account: User::service_account(namespace, &account),
            image: container.image.clone().unwrap_or_default(),
        };
        Ok(Some(rendered.on_loopback()))
    }

    /// The image in the DaemonSet.
    pub fn image(&self) -> &str {
        &self.image
    }

    /// Sets a flag, and replaces an earlier value.
    #[must_use]
    pub fn set(mut self, flag: &str, value: &str) -> Self {
        let start = format!("--{flag}=");
        self.flags.retain(|given| !given.starts_with(&start));
        self.flags.push(start + value);
        self
    }

    /// Sets an environment variable.
    #[must_use]
    pub fn environment(mut self, name: &str, value: &str) -> Self {
        self.environment.push((name.to_owned(), value.to_owned()));
        self
    }

    /// Listens on loopback, on ports that no other program has.
    fn on_loopback(self) -> Self {
        self.set("bind-address", "127.0.0.1").set("secure-port", "0")
    }

    /// Runs the upstream cloud controller. Its log is `<label>.log` in `workdir`.
    pub fn upstream(
        &self,
        label: &str,
        plane: &ControlPlane,
        workdir: &Workdir,
    ) -> Result<Process, Error> {
        let kubeconfig = plane.kubeconfig_as(&self.account).display().to_string();
        let process = self
            .clone()
            .set("authentication-kubeconfig", &kubeconfig)
            .set("authorization-kubeconfig", &kubeconfig)
            .set("webhook-secure-port", "0");
        process.run(&locate("vsphere-cloud-controller-manager")?, label, plane, workdir)
    }

    /// Runs this program. Its log is `<label>.log` in `workdir`.
    pub fn run(
        &self,
        program: &Path,
        label: &str,
        plane: &ControlPlane,
        workdir: &Workdir,
    ) -> Result<Process, Error> {
        let kubeconfig = plane.kubeconfig_as(&self.account).display().to_string();
        let flags = self.clone().set("kubeconfig", &kubeconfig).flags;
        let environment: Vec<_> =
            self.environment.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect();
        Process::spawn(program, label, flags, &environment, workdir)
    }
}

fn config_map(pod: &PodSpec) -> String {
    let maps = pod.volumes.iter().flatten().filter_map(|volume| volume.config_map.as_ref());
    maps.map(|map| map.name.clone()).next().unwrap_or_default()
}

/// Writes the files of a ConfigMap, with local paths in them. Each pod gets its own folder: upstream's controller ends
/// when a file that it reads is written again.
fn write(map: &ConfigMap, mounted: &str, workdir: &Workdir) -> Result<PathBuf, Error> {
    let number = NEXT.fetch_add(1, Ordering::Relaxed);
    let folder = workdir.path().join(format!("etc-cloud-{number}"));
    std::fs::create_dir_all(&folder).context(FilesSnafu { path: &folder })?;
    for (name, text) in map.data.iter().flatten() {
        let path = folder.join(name);
        let text = text.replace(mounted, &folder.display().to_string());
        std::fs::write(&path, text).context(FilesSnafu { path })?;
    }
    Ok(folder)
}

/// The plain values; a field reference becomes the pod's name.
fn environment(container: &Container) -> Vec<(String, String)> {
    let all = container.env.iter().flatten();
    all.map(|env| (env.name.clone(), env.value.clone().unwrap_or_else(|| NAME.1.to_owned())))
        .collect()
}
