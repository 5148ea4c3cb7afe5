//! The validated configuration from `vsphere.conf` and the environment.

mod environment;

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
    sync::Arc,
};

use driver_config::{
    Effect, ReadError, SecretText,
    cpi::{CpiConfig, Global, LoadBalancer, Route, VirtualCenter},
};
use ipnet::IpNet;
use snafu::{ResultExt as _, Snafu};

use crate::{
    addresses::{AddressRules, Family, SideRules},
    zones::Categories,
};

/// Used if it exists and nothing else is configured.
const DEFAULT_SECRETS_DIRECTORY: &str = "/etc/cloud/secrets";

/// Two equal configurations mean that nothing changed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Configuration {
    /// The vCenters.
    pub vcenters: Vec<Vcenter>,
    pub categories: Categories,
    pub rules: AddressRules,
}

/// One vCenter.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Vcenter {
    /// The server, with the port if it is not 443.
    pub name: Arc<str>,
    /// The server exactly as configured: keys of Secrets contain it.
    pub server: String,
    pub trust: TrustSource,
    /// All datacenters if empty.
    pub datacenters: Vec<String>,
    /// In order of preference.
    pub families: Vec<Family>,
    pub credentials: CredentialSource,
}

/// How the controller verifies the vCenter's certificate.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TrustSource {
    /// With the system's CA certificates.
    System,
    /// With the CA certificates in this file. The content is a part of the settings: if it changes, the
    /// controller connects with the new content before it uses it.
    CaFile(PathBuf, CaBundle),
    Thumbprint(vsphere::Thumbprint),
    /// Not at all.
    Insecure,
}

/// The content of a CA file when it was last read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CaBundle {
    Unread,
    /// The content, not validated.
    Pem(Arc<str>),
    /// The reason.
    Unreadable(String),
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CredentialSource {
    /// User and password in the configuration.
    Inline(String, SecretText),
    /// Namespace and name of the Secret.
    Secret(String, String),
    /// A directory with one file for each key of a Secret.
    Directory(PathBuf),
}

/// No text contains a value that can be secret.
#[derive(Debug, Snafu)]
pub enum ConfigurationError {
    #[snafu(display("{} cannot be read", path.display()))]
    Unreadable { path: PathBuf, source: std::io::Error },
    #[snafu(display("the cloud configuration cannot be used"))]
    Malformed { source: ReadError },
    #[snafu(display("the cloud configuration cannot be used: {problems}"))]
    Refused { problems: String },
    #[snafu(display(
        "`{key}`: {value} is not a subnet; write for example 10.0.0.0/16 or fd00::/64"
    ))]
    Subnet { key: &'static str, value: String },
    #[snafu(display("ip-family of {vcenter}: {value} is neither ipv4 nor ipv6"))]
    Family { vcenter: String, value: String },
    #[snafu(display("the thumbprint of {vcenter} cannot be used: {why}"))]
    Thumbprint { vcenter: String, why: String },
    #[snafu(display(
        "the user of {vcenter} is a certificate, which this controller does not support: set a user and a password"
    ))]
    Certificate { vcenter: String },
    #[snafu(display("{vcenter} is in the configuration twice: list its datacenters in one entry"))]
    DuplicateVcenter { vcenter: String },
    #[snafu(display("the environment variable {name} cannot be used: write {expected}"))]
    Environment { name: String, expected: &'static str },
    #[snafu(display(
        "the configuration asks for {what} in NSX, which this controller does not support: remove the section, \
         or use the upstream cloud controller"
    ))]
    Nsx { what: &'static str },
}

impl Configuration {
    /// Reads the file, if there is one, and the CA files it names; the environment overrides it. A CA
    /// file that cannot be read affects only its vCenter.
    pub fn load(
        path: Option<&Path>,
        environment: &BTreeMap<String, String>,
    ) -> Result<Self, ConfigurationError> {
        let text = match path {
            Some(path) => Some(std::fs::read_to_string(path).context(UnreadableSnafu { path })?),
            None => None,
        };
        let mut read = Self::read(text.as_deref(), environment)?;
        for vcenter in &mut read.vcenters {
            if let TrustSource::CaFile(path, bundle) = &mut vcenter.trust {
                *bundle = CaBundle::read(path);
            }
        }
        Ok(read)
    }

    /// The same from text, without reading the CA files.
    pub fn read(
        text: Option<&str>,
        environment: &BTreeMap<String, String>,
    ) -> Result<Self, ConfigurationError> {
        let mut config = match text {
            Some(text) => CpiConfig::read(text)
                .and_then(driver_config::Read::strict)
                .context(MalformedSnafu)?,
            None => CpiConfig::default(),
        };
        environment::apply(&mut config, environment)?;
        Self::validate(config)
    }

    fn validate(mut config: CpiConfig) -> Result<Self, ConfigurationError> {
        reject_nsx(&config)?;
        implicit_vcenter(&mut config);
        let default_directory = Path::new(DEFAULT_SECRETS_DIRECTORY);
        if config.global.secret_name.is_empty()
            && config.global.user.is_empty()
            && config.global.secrets_directory.is_empty()
            && default_directory.is_dir()
        {
            DEFAULT_SECRETS_DIRECTORY.clone_into(&mut config.global.secrets_directory);
        }
        let problems = config.problems();
        let refused: Vec<String> = problems
            .iter()
            .filter(|problem| problem.effect == Effect::Refused)
            .map(ToString::to_string)
            .collect();
        if !refused.is_empty() {
            return RefusedSnafu { problems: refused.join("; ") }.fail();
        }
        let mut vcenters: Vec<Vcenter> = Vec::new();
        for entry in config.vcenters.values() {
            let vcenter = vcenter(entry, &config.global)?;
            if vcenters.iter().any(|other| other.name == vcenter.name) {
                return DuplicateVcenterSnafu { vcenter: &*vcenter.name }.fail();
            }
            vcenters.push(vcenter);
        }
        let categories =
            Categories { zone: config.labels.zone.clone(), region: config.labels.region.clone() };
        Ok(Self { vcenters, categories, rules: rules(&config)? })
    }
}

impl CaBundle {
    fn read(path: &Path) -> Self {
        match std::fs::read_to_string(path) {
            Ok(text) => Self::Pem(text.into()),
            Err(why) => Self::Unreadable(why.to_string()),
        }
    }
}

fn reject_nsx(config: &CpiConfig) -> Result<(), ConfigurationError> {
    let CpiConfig { route, load_balancer, load_balancer_classes, .. } = config;
    if *load_balancer != LoadBalancer::default() || !load_balancer_classes.is_empty() {
        return NsxSnafu { what: "load balancers" }.fail();
    }
    if *route != Route::default() {
        return NsxSnafu { what: "pod routes" }.fail();
    }
    Ok(())
}

/// Adds an entry for `global.server`.
fn implicit_vcenter(config: &mut CpiConfig) {
    let server = config.global.server.clone();
    if !server.is_empty() && !config.vcenters.contains_key(&server) {
        let entry = VirtualCenter { server: server.clone(), ..VirtualCenter::default() };
        config.vcenters.insert(server, entry);
    }
}

fn own_or_global<'a>(own: &'a str, global: &'a str) -> &'a str {
    if own.is_empty() { global } else { own }
}

fn vcenter(own: &VirtualCenter, global: &Global) -> Result<Vcenter, ConfigurationError> {
    let port = own.port.or(global.port).unwrap_or(443);
    let bare = own.server.trim_start_matches('[').trim_end_matches(']');
    let name: Arc<str> = match (port, bare.contains(':')) {
        (443, _) => bare.into(),
        (port, true) => format!("[{bare}]:{port}").into(),
        (port, false) => format!("{bare}:{port}").into(),
    };
    let list = |own: &[String], global: &[String]| -> Vec<String> {
        let chosen = if own.is_empty() { global } else { own };
        let parts = chosen.iter().flat_map(|item| item.split(',')).map(str::trim);
        parts.filter(|part| !part.is_empty()).map(str::to_owned).collect()
    };
    let families = list(&own.ip_family, &global.ip_family)
        .iter()
        .map(|text| match text.to_ascii_lowercase().as_str() {
            "ipv4" => Ok(Family::V4),
            "ipv6" => Ok(Family::V6),
            _ => FamilySnafu { vcenter: &*name, value: text }.fail(),
        })
        .collect::<Result<Vec<_>, _>>()?;
    let credentials = credentials(own, global);
    if matches!(&credentials, CredentialSource::Inline(user, _) if user.contains("-----BEGIN ")) {
        return CertificateSnafu { vcenter: &*name }.fail();
    }
    Ok(Vcenter {
        trust: trust(own, global, &name)?,
        server: own.server.clone(),
        datacenters: list(&own.datacenters, &global.datacenters)
            .into_iter()
            // The Go controller's notation for a reference.
            .map(|item| item.strip_prefix("Datacenter:").map(str::to_owned).unwrap_or(item))
            .collect(),
        families: if families.is_empty() { vec![Family::V4] } else { families },
        credentials,
        name,
    })
}

fn trust(
    own: &VirtualCenter,
    global: &Global,
    name: &str,
) -> Result<TrustSource, ConfigurationError> {
    let thumbprint = own_or_global(&own.thumbprint, &global.thumbprint);
    let ca_file = own_or_global(&own.ca_file, &global.ca_file);
    Ok(if own.insecure_flag || global.insecure_flag {
        TrustSource::Insecure
    } else if !thumbprint.is_empty() {
        let parsed = thumbprint.parse();
        TrustSource::Thumbprint(
            parsed.map_err(|why| ThumbprintSnafu { vcenter: name, why }.build())?,
        )
    } else if ca_file.is_empty() {
        TrustSource::System
    } else {
        TrustSource::CaFile(ca_file.into(), CaBundle::Unread)
    })
}

fn credentials(own: &VirtualCenter, global: &Global) -> CredentialSource {
    let both = |name: &str, namespace: &str| !name.is_empty() && !namespace.is_empty();
    if both(&own.secret_name, &own.secret_namespace) {
        CredentialSource::Secret(own.secret_namespace.clone(), own.secret_name.clone())
    } else if !own.user.is_empty() && !own.password.is_empty() {
        CredentialSource::Inline(own.user.clone(), own.password.clone())
    } else if !global.secrets_directory.is_empty() {
        CredentialSource::Directory(global.secrets_directory.clone().into())
    } else if both(&global.secret_name, &global.secret_namespace) {
        CredentialSource::Secret(global.secret_namespace.clone(), global.secret_name.clone())
    } else {
        let password = if own.password.is_empty() { &global.password } else { &own.password };
        CredentialSource::Inline(
            own_or_global(&own.user, &global.user).to_owned(),
            password.clone(),
        )
    }
}

fn rules(config: &CpiConfig) -> Result<AddressRules, ConfigurationError> {
    let nodes = &config.nodes;
    let subnets = |key: &'static str, list: &[String]| {
        let parts = list.iter().flat_map(|item| item.split(',')).map(str::trim);
        parts
            .filter(|part| !part.is_empty())
            .map(|part| {
                let subnet = part.parse::<IpNet>();
                subnet.map(|net| net.trunc()).map_err(|_| SubnetSnafu { key, value: part }.build())
            })
            .collect::<Result<Vec<_>, _>>()
    };
    Ok(AddressRules {
        internal: SideRules {
            subnets: subnets("internalNetworkSubnetCidr", &nodes.internal_network_subnet_cidr)?,
            excluded: subnets(
                "excludeInternalNetworkSubnetCidr",
                &nodes.exclude_internal_network_subnet_cidr,
            )?,
            network: nodes.internal_vm_network_name.clone(),
        },
        external: SideRules {
            subnets: subnets("externalNetworkSubnetCidr", &nodes.external_network_subnet_cidr)?,
            excluded: subnets(
                "excludeExternalNetworkSubnetCidr",
                &nodes.exclude_external_network_subnet_cidr,
            )?,
            network: nodes.external_vm_network_name.clone(),
        },
    })
}

#[cfg(test)]
mod documentation;
#[cfg(test)]
mod tests;
#[cfg(test)]
mod upstream_cases;
