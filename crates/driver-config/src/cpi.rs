//! `vsphere.conf`, the configuration of the cloud controller (CPI), as YAML or in the older gcfg.
//!
//! An empty text or list and a `None` number mean that a key is not set. The driver does not distinguish the two,
//! and the writer omits such keys.

mod ini;
mod keys;
mod problems;
mod yaml;

use std::collections::BTreeMap;

use crate::keys::{Read, ReadError, WriteError};
use crate::problem::Problem;
use crate::secret::SecretText;

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct CpiConfig {
    /// Defaults for all vCenters.
    pub global: Global,
    /// By the driver's name for each vCenter, often its address.
    pub vcenters: BTreeMap<String, VirtualCenter>,
    /// Tag categories of zone and region.
    pub labels: Labels,
    /// Which addresses of a VM become addresses of the Node.
    pub nodes: Nodes,
    /// Pod routes in NSX.
    pub route: Route,
    /// The NSX manager.
    pub nsxt: Nsxt,
    /// Load balancers in NSX.
    pub load_balancer: LoadBalancer,
    /// NSX load balancer classes by name; a Service without a class gets `default`.
    pub load_balancer_classes: BTreeMap<String, LoadBalancerClass>,
}

/// Defaults for all vCenters.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Global {
    /// For vCenters without a user of their own.
    pub user: String,
    /// For vCenters without a password of their own.
    pub password: SecretText,
    /// The address of a vCenter; deprecated, creates an entry of its own.
    pub server: String,
    /// Port; the driver's default is 443.
    pub port: Option<u16>,
    /// Do not verify certificates. A vCenter entry cannot turn this off again.
    pub insecure_flag: bool,
    /// The datacenters to search; all if empty.
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
    /// Ignored since release 1.24.
    pub api_disable: bool,
    /// Ignored since release 1.24.
    pub api_binding: String,
    /// `ipv4`, `ipv6` or both in order of preference; the driver's default is `ipv4`.
    pub ip_family: Vec<String>,
}

/// One vCenter. Keys that are not set come from [`Global`].
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct VirtualCenter {
    /// The address. The reader always sets it; if it is empty, the writer uses the name of the entry.
    pub server: String,
    pub user: String,
    pub password: SecretText,
    pub port: Option<u16>,
    /// Do not verify the certificate.
    pub insecure_flag: bool,
    /// The datacenters to search; all if empty here and in [`Global`].
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

/// Tag categories; zones are enabled only if both are set.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Labels {
    /// Category of region tags.
    pub region: String,
    /// Category of zone tags.
    pub zone: String,
}

/// Which addresses of a VM become addresses of the Node.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Nodes {
    /// Subnets for the internal address.
    pub internal_network_subnet_cidr: Vec<String>,
    /// Subnets for the external address.
    pub external_network_subnet_cidr: Vec<String>,
    /// The network (port group) of the internal address.
    pub internal_vm_network_name: String,
    /// The network (port group) of the external address.
    pub external_vm_network_name: String,
    /// Subnets never used for an internal address.
    pub exclude_internal_network_subnet_cidr: Vec<String>,
    /// Subnets never used for an external address.
    pub exclude_external_network_subnet_cidr: Vec<String>,
}

/// Pod routes in NSX.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Route {
    /// For example `/infra/tier-1s/k8s`; empty disables routes.
    pub router_path: String,
}

/// The NSX manager.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Nsxt {
    pub user: String,
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
    /// The host that the token is for.
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
    /// The tier-1 gateway of a new service.
    pub tier1_gateway_path: String,
    /// Disables source NAT.
    pub snat_disabled: bool,
    /// Tags on every created object.
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

/// A key of the file in both formats, as an admin would write it.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct KeyName {
    /// `global.user`, `vcenter.<name>.server`.
    pub yaml: String,
    /// `[Global] user`, `[VirtualCenter "<name>"] server`.
    pub ini: String,
}

impl CpiConfig {
    /// Every key except those of NSX, section by section.
    pub fn keys() -> Vec<KeyName> {
        fn key_names<T>(yaml: &str, ini: &str, keys: &[crate::keys::Key<T>]) -> Vec<KeyName> {
            let name = |key: &crate::keys::Key<T>| KeyName {
                yaml: format!("{yaml}.{}", key.yaml),
                ini: format!("[{ini}] {}", key.ini),
            };
            keys.iter().map(name).collect()
        }
        let mut all = key_names("global", "Global", keys::GLOBAL);
        all.extend(key_names("vcenter.<name>", "VirtualCenter \"<name>\"", keys::VCENTER));
        all.extend(key_names("labels", "Labels", keys::LABELS));
        all.extend(key_names("nodes", "Nodes", keys::NODES));
        all
    }

    /// Reads either format. As in the driver, a text that begins with a section in brackets is gcfg.
    pub fn read(text: &str) -> Result<Read<Self>, ReadError> {
        let mut lines = text.lines().map(str::trim_start);
        match lines.find(|line| !line.is_empty() && !line.starts_with(['#', ';'])) {
            None => Err(ReadError::Empty),
            Some(line) if line.starts_with('[') => Self::read_ini(text),
            Some(_) => Self::read_yaml(text),
        }
    }

    pub fn read_yaml(text: &str) -> Result<Read<Self>, ReadError> {
        yaml::read(text)
    }

    pub fn read_ini(text: &str) -> Result<Read<Self>, ReadError> {
        ini::read(text)
    }

    /// Writes the YAML format, which every release since 1.19 reads.
    ///
    /// The text is secret if it contains a password; use a Secret for passwords wherever the driver supports that.
    /// Equal configurations give equal texts.
    pub fn to_yaml(&self) -> Result<SecretText, WriteError> {
        yaml::write(self)
    }

    /// Writes the gcfg format, for old releases.
    pub fn to_ini(&self) -> Result<SecretText, WriteError> {
        ini::write(self)
    }

    /// Everything that the driver would refuse or fail on.
    pub fn problems(&self) -> Vec<Problem> {
        problems::find(self)
    }

    /// Sets the address of vCenters that only have a name.
    fn with_servers(mut self) -> Self {
        for (name, vcenter) in &mut self.vcenters {
            if vcenter.server.is_empty() {
                vcenter.server.clone_from(name);
            }
        }
        self
    }
}
