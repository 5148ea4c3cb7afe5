//! `vsphere.conf`, the configuration of the cloud controller (CPI), as YAML or in the older gcfg.
//!
//! An empty text or list and a `None` number are keys that are not set: the driver does not tell
//! them apart either, and they are not written.

mod ini;
mod keys;
mod problems;
mod yaml;

use std::collections::BTreeMap;

use crate::keys::{Read, ReadError, WriteError};
use crate::problem::Problem;
use crate::secret::SecretText;

/// The whole file.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct CpiConfig {
    /// Defaults for all vCenters.
    pub global: Global,
    /// The vCenters, each under the name the driver keeps it by (often its address).
    pub vcenters: BTreeMap<String, VirtualCenter>,
    /// Tag categories of zone and region.
    pub labels: Labels,
    /// Which addresses of a VM become addresses of the node.
    pub nodes: Nodes,
    /// Pod routes in NSX.
    pub route: Route,
    /// The NSX manager.
    pub nsxt: Nsxt,
    /// Load balancers in NSX.
    pub load_balancer: LoadBalancer,
    /// Load balancer classes in NSX, by name; `default` is the one a Service gets unasked.
    pub load_balancer_classes: BTreeMap<String, LoadBalancerClass>,
}

/// Defaults for all vCenters.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Global {
    /// User for vCenters that name none.
    pub user: String,
    /// Password for vCenters that name none.
    pub password: SecretText,
    /// Address of a vCenter; deprecated, it makes an entry of its own.
    pub server: String,
    /// Port; the driver's default is 443.
    pub port: Option<u16>,
    /// Do not verify certificates. A vCenter entry cannot turn this off again.
    pub insecure_flag: bool,
    /// Datacenters to look in; all if empty.
    pub datacenters: Vec<String>,
    /// SOAP retries; without effect in current releases.
    pub soap_roundtrip_count: Option<u32>,
    /// Path of a CA bundle inside the container.
    pub ca_file: String,
    /// Thumbprint of the certificate.
    pub thumbprint: String,
    /// Secret with the credentials.
    pub secret_name: String,
    /// Namespace of that Secret.
    pub secret_namespace: String,
    /// Directory with the credentials, instead of a Secret.
    pub secrets_directory: String,
    /// Read and ignored since release 1.24.
    pub api_disable: bool,
    /// Read and ignored since release 1.24.
    pub api_binding: String,
    /// `ipv4`, `ipv6` or both in order of preference; the driver's default is `ipv4`.
    pub ip_family: Vec<String>,
}

/// One vCenter; what is not set comes from [`Global`].
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct VirtualCenter {
    /// Address. Reading always fills it in; when it is empty the name of the entry is written.
    pub server: String,
    /// User.
    pub user: String,
    /// Password.
    pub password: SecretText,
    /// Port.
    pub port: Option<u16>,
    /// Do not verify the certificate.
    pub insecure_flag: bool,
    /// Datacenters to look in; all if empty here and in [`Global`].
    pub datacenters: Vec<String>,
    /// SOAP retries; without effect in current releases.
    pub soap_roundtrip_count: Option<u32>,
    /// Path of a CA bundle inside the container.
    pub ca_file: String,
    /// Thumbprint of the certificate.
    pub thumbprint: String,
    /// Secret with the credentials of this vCenter.
    pub secret_name: String,
    /// Namespace of that Secret.
    pub secret_namespace: String,
    /// `ipv4`, `ipv6` or both in order of preference.
    pub ip_family: Vec<String>,
}

/// Tag categories; zones are on only if both are set.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Labels {
    /// Category of region tags.
    pub region: String,
    /// Category of zone tags.
    pub zone: String,
}

/// Which addresses of a VM become addresses of the node.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Nodes {
    /// Subnets an internal address is taken from.
    pub internal_network_subnet_cidr: Vec<String>,
    /// Subnets an external address is taken from.
    pub external_network_subnet_cidr: Vec<String>,
    /// Network (port group) of the internal address.
    pub internal_vm_network_name: String,
    /// Network (port group) of the external address.
    pub external_vm_network_name: String,
    /// Subnets never used for an internal address.
    pub exclude_internal_network_subnet_cidr: Vec<String>,
    /// Subnets never used for an external address.
    pub exclude_external_network_subnet_cidr: Vec<String>,
}

/// Pod routes in NSX.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Route {
    /// For example `/infra/tier-1s/k8s`; routes are off if empty.
    pub router_path: String,
}

/// The NSX manager.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Nsxt {
    /// User.
    pub user: String,
    /// Password.
    pub password: SecretText,
    /// Address of the manager.
    pub host: String,
    /// Do not verify its certificate.
    pub insecure_flag: bool,
    /// Authenticate through vIDM.
    pub remote_auth: bool,
    /// Secret with keys `username` and `password`.
    pub secret_name: String,
    /// Namespace of that Secret.
    pub secret_namespace: String,
    /// Token for VMware Cloud.
    pub vmc_access_token: SecretText,
    /// Host that token is for.
    pub vmc_auth_host: String,
    /// Path of a client certificate inside the container.
    pub client_auth_cert_file: String,
    /// Path of its key.
    pub client_auth_key_file: String,
    /// Path of a CA bundle.
    pub ca_file: String,
}

/// Load balancers in NSX.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct LoadBalancer {
    /// `SMALL`, `MEDIUM`, `LARGE`, `XLARGE` or `DLB`.
    pub size: String,
    /// An existing load balancer service.
    pub lb_service_id: String,
    /// The tier-1 gateway a new service is attached to.
    pub tier1_gateway_path: String,
    /// Turn source NAT off.
    pub snat_disabled: bool,
    /// Tags put on every object made.
    pub tags: BTreeMap<String, String>,
    /// Defaults of every class.
    pub class: LoadBalancerClass,
}

/// One load balancer class in NSX.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct LoadBalancerClass {
    /// Pool of addresses, by name.
    pub ip_pool_name: String,
    /// Pool of addresses, by id.
    pub ip_pool_id: String,
    /// TCP profile, by name.
    pub tcp_app_profile_name: String,
    /// TCP profile, by path.
    pub tcp_app_profile_path: String,
    /// UDP profile, by name.
    pub udp_app_profile_name: String,
    /// UDP profile, by path.
    pub udp_app_profile_path: String,
}

/// A key of the file, by its names in both formats, as an admin would point at it.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct KeyName {
    /// `global.user`, `vcenter.<name>.server`.
    pub yaml: String,
    /// `[Global] user`, `[VirtualCenter "<name>"] server`.
    pub ini: String,
}

impl CpiConfig {
    /// Every key there is, section by section, without those of NSX.
    pub fn keys() -> Vec<KeyName> {
        fn of<T>(yaml: &str, ini: &str, keys: &[crate::keys::Key<T>]) -> Vec<KeyName> {
            let name = |key: &crate::keys::Key<T>| KeyName {
                yaml: format!("{yaml}.{}", key.yaml),
                ini: format!("[{ini}] {}", key.ini),
            };
            keys.iter().map(name).collect()
        }
        let mut all = of("global", "Global", keys::GLOBAL);
        all.extend(of("vcenter.<name>", "VirtualCenter \"<name>\"", keys::VCENTER));
        all.extend(of("labels", "Labels", keys::LABELS));
        all.extend(of("nodes", "Nodes", keys::NODES));
        all
    }

    /// Reads either format, as the driver does: gcfg if the text begins with a section in brackets.
    pub fn read(text: &str) -> Result<Read<Self>, ReadError> {
        let mut lines = text.lines().map(str::trim_start);
        match lines.find(|line| !line.is_empty() && !line.starts_with(['#', ';'])) {
            None => Err(ReadError::Empty),
            Some(line) if line.starts_with('[') => Self::read_ini(text),
            Some(_) => Self::read_yaml(text),
        }
    }

    /// Reads the YAML format.
    pub fn read_yaml(text: &str) -> Result<Read<Self>, ReadError> {
        yaml::read(text)
    }

    /// Reads the gcfg format.
    pub fn read_ini(text: &str) -> Result<Read<Self>, ReadError> {
        ini::read(text)
    }

    /// Writes the YAML format, which every release since 1.19 reads.
    ///
    /// The text is secret if any password is set; keep passwords in a Secret and out of here
    /// wherever the driver allows it. Equal configurations give equal texts.
    pub fn to_yaml(&self) -> Result<SecretText, WriteError> {
        yaml::write(self)
    }

    /// Writes the gcfg format, for old releases.
    pub fn to_ini(&self) -> Result<SecretText, WriteError> {
        ini::write(self)
    }

    /// Everything the driver would object to, now or later; empty if nothing.
    pub fn problems(&self) -> Vec<Problem> {
        problems::of(self)
    }

    /// Fills in the address of vCenters that are only named.
    fn with_servers(mut self) -> Self {
        for (name, vcenter) in &mut self.vcenters {
            if vcenter.server.is_empty() {
                vcenter.server.clone_from(name);
            }
        }
        self
    }
}
