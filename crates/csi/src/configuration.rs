//! The validated configuration from `csi-vsphere.conf`.

use std::{
    path::{Path, PathBuf},
    sync::Arc,
};

use driver_config::{
    Effect, ReadError, SecretText,
    csi::{CsiConfig, VirtualCenter},
};
use snafu::{ResultExt as _, Snafu};
use vsphere::{Credentials, Trust};

/// The domain of the topology labels, the same as upstream's.
const LABEL_DOMAIN: &str = "topology.csi.vmware.com";
/// Upstream's labels of the deprecated zone and region categories.
const BETA_DOMAIN: &str = "failure-domain.beta.kubernetes.io";
const DEFAULT_MAX_SNAPSHOTS: u32 = 3;

/// Two equal configurations mean that nothing changed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Configuration {
    /// Empty if the driver has to generate one.
    pub cluster_id: String,
    /// Shown in vCenter.
    pub distribution: String,
    pub vcenters: Vec<VcenterSettings>,
    /// The tag categories of the topology; no topology if empty.
    pub categories: Vec<Category>,
    pub max_snapshots: SnapshotLimits,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VcenterSettings {
    /// The server, with the port if it is not 443.
    pub name: Arc<str>,
    pub user: String,
    pub password: SecretText,
    pub trust: Trust,
    /// All datacenters if empty.
    pub datacenters: Vec<String>,
}

impl VcenterSettings {
    pub fn credentials(&self) -> Credentials {
        Credentials::new(self.user.as_str(), self.password.expose().to_owned())
    }
}

/// A tag category and the node label with its value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Category {
    pub name: String,
    pub label: String,
}

/// How many snapshots a volume can have, by the type of its datastore.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SnapshotLimits {
    pub any: u32,
    pub vsan: Option<u32>,
    pub vvol: Option<u32>,
}

impl SnapshotLimits {
    /// `kind` is the datastore's type in vCenter: `VMFS`, `vsan`, `VVOL`.
    pub fn on(&self, kind: &str) -> u32 {
        let own = match kind.to_ascii_lowercase().as_str() {
            "vsan" | "vsand" => self.vsan,
            "vvol" => self.vvol,
            _ => None,
        };
        own.unwrap_or(self.any)
    }
}

#[derive(Debug, Snafu)]
pub enum ConfigurationError {
    #[snafu(display("the configuration {} cannot be opened", path.display()))]
    Open { path: PathBuf, source: std::io::Error },
    #[snafu(display("the configuration {} cannot be read", path.display()))]
    Read { path: PathBuf, source: ReadError },
    #[snafu(display("the configuration {} cannot be used: {key}: {text}", path.display()))]
    Problem { path: PathBuf, key: String, text: String },
    #[snafu(display(
        "no vCenter is configured in {}: add a section [VirtualCenter \"vc.example.com\"]",
        path.display()
    ))]
    NoVcenter { path: PathBuf },
    #[snafu(display("the CA file {} of the vCenter {vcenter} cannot be read", path.display()))]
    CaFile { vcenter: String, path: PathBuf, source: std::io::Error },
    #[snafu(display("the thumbprint of the vCenter {vcenter} is invalid: {why}"))]
    Thumbprint { vcenter: String, why: String },
}

impl Configuration {
    pub fn load(path: &Path) -> Result<Self, ConfigurationError> {
        let text = std::fs::read_to_string(path).context(OpenSnafu { path })?;
        Self::read(&text, path)
    }

    /// `path` is only for messages.
    pub fn read(text: &str, path: &Path) -> Result<Self, ConfigurationError> {
        let read = CsiConfig::read(text).context(ReadSnafu { path })?;
        for unknown in &read.unknown {
            tracing::warn!(key = unknown.path, nearest = ?unknown.nearest, "ignoring an unknown key of the configuration");
        }
        let mut config = read.config;
        let fatal = |effect: &Effect| matches!(effect, Effect::Refused);
        if let Some(problem) = config.problems().into_iter().find(|p| fatal(&p.effect)) {
            return ProblemSnafu { path, key: problem.path, text: problem.text }.fail();
        }
        add_implicit_vcenter(&mut config);
        if config.vcenters.is_empty() {
            return NoVcenterSnafu { path }.fail();
        }
        let vcenters = config.vcenters.iter().map(|(name, own)| vcenter(&config, name, own));
        let limits = &config.snapshot;
        let some = |limit: Option<u32>| limit.filter(|limit| *limit > 0);
        Ok(Self {
            cluster_id: config.global.cluster_id.clone(),
            distribution: config.global.cluster_distribution.clone(),
            vcenters: vcenters.collect::<Result<_, _>>()?,
            categories: categories(&config),
            max_snapshots: SnapshotLimits {
                any: limits.global_max_per_block_volume.unwrap_or(DEFAULT_MAX_SNAPSHOTS),
                vsan: some(limits.granular_max_per_block_volume_vsan),
                vvol: some(limits.granular_max_per_block_volume_vvol),
            },
        })
    }
}

/// `[Global] VCenterIP` is a vCenter without a section.
fn add_implicit_vcenter(config: &mut CsiConfig) {
    let global = &config.global;
    if !global.vcenter_ip.is_empty() && !config.vcenters.contains_key(&global.vcenter_ip) {
        let own = VirtualCenter {
            ca_file: global.ca_file.clone(),
            thumbprint: global.thumbprint.clone(),
            ..VirtualCenter::default()
        };
        config.vcenters.insert(global.vcenter_ip.clone(), own);
    }
}

fn vcenter(
    config: &CsiConfig,
    server: &str,
    own: &VirtualCenter,
) -> Result<VcenterSettings, ConfigurationError> {
    let port = own.port.or(config.global.port).unwrap_or(443);
    let bare = server.trim_start_matches('[').trim_end_matches(']');
    let name: Arc<str> = match (port, bare.contains(':')) {
        (443, _) => bare.into(),
        (port, true) => format!("[{bare}]:{port}").into(),
        (port, false) => format!("{bare}:{port}").into(),
    };
    let (user, password) = config.login(own);
    let datacenters =
        if own.datacenters.is_empty() { &config.global.datacenters } else { &own.datacenters };
    Ok(VcenterSettings {
        trust: trust(config, server, own)?,
        name,
        user: user.to_owned(),
        password: password.clone(),
        datacenters: datacenters.clone(),
    })
}

fn trust(
    config: &CsiConfig,
    vcenter: &str,
    own: &VirtualCenter,
) -> Result<Trust, ConfigurationError> {
    if own.insecure_flag || config.global.insecure_flag {
        return Ok(Trust::Insecure);
    }
    if !own.ca_file.is_empty() {
        let path = Path::new(&own.ca_file);
        let pem = std::fs::read_to_string(path).context(CaFileSnafu { vcenter, path })?;
        return Ok(Trust::CaBundle(pem));
    }
    if own.thumbprint.is_empty() {
        return Ok(Trust::System);
    }
    let parsed = own.thumbprint.parse();
    parsed
        .map(Trust::Thumbprint)
        .map_err(|why: String| ConfigurationError::Thumbprint { vcenter: vcenter.to_owned(), why })
}

/// With `topology-categories` the label is always in our domain. The deprecated zone and region keep the labels that
/// upstream gives them, or those of `[TopologyCategory]`.
fn categories(config: &CsiConfig) -> Vec<Category> {
    let labels = &config.labels;
    let named = labels.topology_categories.iter();
    let mut all: Vec<Category> = named
        .map(|name| Category { name: name.clone(), label: format!("{LABEL_DOMAIN}/{name}") })
        .collect();
    for (name, kind) in [(&labels.zone, "zone"), (&labels.region, "region")] {
        if !name.is_empty() && all.iter().all(|known| known.name != *name) {
            let own = config.topology_categories.get(name).map(|own| own.label.clone());
            let label = own.unwrap_or_else(|| format!("{BETA_DOMAIN}/{kind}"));
            all.push(Category { name: name.clone(), label });
        }
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Result<Configuration, ConfigurationError> {
        Configuration::read(text, Path::new("csi-vsphere.conf"))
    }

    #[test]
    fn a_vcenter_inherits_what_its_section_does_not_set() {
        let configuration = read(
            "[Global]\ncluster-id = c1\nuser = \"a@b\"\npassword = \"p\"\nport = 8443\ninsecure-flag = true\n\
             [VirtualCenter \"vc.example.com\"]\ndatacenters = DC0, DC1\n",
        )
        .unwrap();
        let vcenter = &configuration.vcenters[0];
        assert_eq!(&*vcenter.name, "vc.example.com:8443");
        assert_eq!((vcenter.user.as_str(), vcenter.password.expose()), ("a@b", "p"));
        assert_eq!(vcenter.trust, Trust::Insecure);
        assert_eq!(vcenter.datacenters, ["DC0", "DC1"]);
        assert_eq!(configuration.max_snapshots.on("VMFS"), 3);
    }

    #[test]
    fn categories_become_labels_of_our_domain() {
        let configuration = read(
            "[VirtualCenter \"vc\"]\nuser = \"a@b\"\npassword = p\ninsecure-flag = true\n\
             [Labels]\ntopology-categories = \"k8s-region, k8s-zone\"\n\
             [Snapshot]\ngranular-max-snapshots-per-block-volume-vsan = 7\n",
        )
        .unwrap();
        let labels: Vec<_> = configuration.categories.iter().map(|c| c.label.as_str()).collect();
        assert_eq!(
            labels,
            ["topology.csi.vmware.com/k8s-region", "topology.csi.vmware.com/k8s-zone"]
        );
        assert_eq!(configuration.max_snapshots.on("vsan"), 7);
    }

    #[test]
    fn a_file_without_a_vcenter_names_the_fix() {
        let error = read("[Global]\ncluster-id = c1\n").unwrap_err();
        assert!(error.to_string().contains("[VirtualCenter"), "{error}");
    }
}
