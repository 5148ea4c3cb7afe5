//! What `vsphere.conf` and the environment say, ready to act on.

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
    addresses::{Family, Rules, Side},
    zones::Categories,
};

/// Where credentials are looked for when nothing says otherwise.
const USUAL_DIRECTORY: &str = "/etc/cloud/secrets";

/// Everything the controller is configured with. Equal configurations mean that nothing changed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Configuration {
    /// The vCenters.
    pub vcenters: Vec<Vcenter>,
    /// What zones and regions are read from.
    pub categories: Categories,
    /// Which addresses nodes get.
    pub rules: Rules,
}

/// One vCenter.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Vcenter {
    /// What it is called here: its server, and its port if that is not 443.
    pub name: Arc<str>,
    /// Its server, letter for letter as configured: Secrets are keyed by it.
    pub server: String,
    /// How it proves who it is.
    pub trust: TrustSource,
    /// Where to look; everywhere if empty.
    pub datacenters: Vec<String>,
    /// Which addresses, in order of preference.
    pub families: Vec<Family>,
    /// Where user and password are.
    pub credentials: CredentialSource,
}

/// How a vCenter proves who it is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TrustSource {
    /// By an authority this machine trusts.
    System,
    /// By an authority in this file. What stands in it belongs to the settings: another content, other
    /// settings, which are proven before they are used.
    CaFile(PathBuf, Bundle),
    /// By its thumbprint.
    Thumbprint(vsphere::Thumbprint),
    /// It need not.
    Insecure,
}

/// The content of a file with authorities, as of the last look at it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Bundle {
    /// Nobody looked yet.
    Unread,
    /// PEM, or whatever stands there.
    Pem(Arc<str>),
    /// It cannot be read, and why.
    Unreadable(String),
}

/// Where user and password are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CredentialSource {
    /// In the configuration.
    Here(String, SecretText),
    /// In this Secret: namespace and name.
    Secret(String, String),
    /// In files of this directory, named like the keys of a Secret.
    Directory(PathBuf),
}

/// Why a configuration cannot be used. No text repeats a value that may be secret.
#[derive(Debug, Snafu)]
#[allow(missing_docs, reason = "a field is named as in the text it stands in")]
pub enum ConfigurationError {
    #[snafu(display("{} cannot be read", path.display()))]
    Unreadable { path: PathBuf, source: std::io::Error },
    #[snafu(display("the cloud configuration cannot be used"))]
    Malformed { source: ReadError },
    #[snafu(display("the cloud configuration cannot be used: {problems}"))]
    Refused { problems: String },
    #[snafu(display("`{key}`: {value} is no subnet; write for example 10.0.0.0/16 or fd00::/64"))]
    Subnet { key: &'static str, value: String },
    #[snafu(display("ip-family of {vcenter}: {value} is neither ipv4 nor ipv6"))]
    Family { vcenter: String, value: String },
    #[snafu(display("the thumbprint of {vcenter} cannot be used: {why}"))]
    Thumbprint { vcenter: String, why: String },
    #[snafu(display(
        "the user of {vcenter} is a certificate, which this controller cannot log in with: give it a user and a \
         password"
    ))]
    Certificate { vcenter: String },
    #[snafu(display(
        "{vcenter} stands in the configuration twice: list its datacenters in one entry"
    ))]
    Twice { vcenter: String },
    #[snafu(display("the environment variable {name} cannot be used: write {expected}"))]
    Environment { name: String, expected: &'static str },
    #[snafu(display(
        "the configuration asks for {what} in NSX, which this controller does not serve: remove the section, \
         or use the upstream cloud controller"
    ))]
    Nsx { what: &'static str },
}

impl Configuration {
    /// Reads the file, if there is one, and lets the environment override it. Reads the authorities that it
    /// names as well; that they cannot be read concerns only their vCenter.
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
                *bundle = Bundle::of(path);
            }
        }
        Ok(read)
    }

    /// The same from text; authorities are left unread.
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
        Self::understand(config)
    }

    fn understand(mut config: CpiConfig) -> Result<Self, ConfigurationError> {
        without_nsx(&config)?;
        implicit_vcenter(&mut config);
        let usual = Path::new(USUAL_DIRECTORY);
        if config.global.secret_name.is_empty()
            && config.global.user.is_empty()
            && config.global.secrets_directory.is_empty()
            && usual.is_dir()
        {
            USUAL_DIRECTORY.clone_into(&mut config.global.secrets_directory);
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
                return TwiceSnafu { vcenter: &*vcenter.name }.fail();
            }
            vcenters.push(vcenter);
        }
        let categories =
            Categories { zone: config.labels.zone.clone(), region: config.labels.region.clone() };
        Ok(Self { vcenters, categories, rules: rules(&config)? })
    }
}

impl Bundle {
    fn of(path: &Path) -> Self {
        match std::fs::read_to_string(path) {
            Ok(text) => Self::Pem(text.into()),
            Err(why) => Self::Unreadable(why.to_string()),
        }
    }
}

/// Load balancers and routes are the upstream controller's.
fn without_nsx(config: &CpiConfig) -> Result<(), ConfigurationError> {
    let CpiConfig { route, load_balancer, load_balancer_classes, .. } = config;
    if *load_balancer != LoadBalancer::default() || !load_balancer_classes.is_empty() {
        return NsxSnafu { what: "load balancers" }.fail();
    }
    if *route != Route::default() {
        return NsxSnafu { what: "pod routes" }.fail();
    }
    Ok(())
}

/// `global.server` is an entry of its own.
fn implicit_vcenter(config: &mut CpiConfig) {
    let server = config.global.server.clone();
    if !server.is_empty() && !config.vcenters.contains_key(&server) {
        let entry = VirtualCenter { server: server.clone(), ..VirtualCenter::default() };
        config.vcenters.insert(server, entry);
    }
}

fn or<'a>(own: &'a str, global: &'a str) -> &'a str {
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
    if matches!(&credentials, CredentialSource::Here(user, _) if user.contains("-----BEGIN ")) {
        return CertificateSnafu { vcenter: &*name }.fail();
    }
    Ok(Vcenter {
        trust: trust(own, global, &name)?,
        server: own.server.clone(),
        datacenters: list(&own.datacenters, &global.datacenters)
            .into_iter()
            // The Go controller's spelling of a reference.
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
    let thumbprint = or(&own.thumbprint, &global.thumbprint);
    let ca_file = or(&own.ca_file, &global.ca_file);
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
        TrustSource::CaFile(ca_file.into(), Bundle::Unread)
    })
}

fn credentials(own: &VirtualCenter, global: &Global) -> CredentialSource {
    let both = |name: &str, namespace: &str| !name.is_empty() && !namespace.is_empty();
    if both(&own.secret_name, &own.secret_namespace) {
        CredentialSource::Secret(own.secret_namespace.clone(), own.secret_name.clone())
    } else if !own.user.is_empty() && !own.password.is_empty() {
        CredentialSource::Here(own.user.clone(), own.password.clone())
    } else if !global.secrets_directory.is_empty() {
        CredentialSource::Directory(global.secrets_directory.clone().into())
    } else if both(&global.secret_name, &global.secret_namespace) {
        CredentialSource::Secret(global.secret_namespace.clone(), global.secret_name.clone())
    } else {
        let password = if own.password.is_empty() { &global.password } else { &own.password };
        CredentialSource::Here(or(&own.user, &global.user).to_owned(), password.clone())
    }
}

fn rules(config: &CpiConfig) -> Result<Rules, ConfigurationError> {
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
    Ok(Rules {
        internal: Side {
            subnets: subnets("internalNetworkSubnetCidr", &nodes.internal_network_subnet_cidr)?,
            excluded: subnets(
                "excludeInternalNetworkSubnetCidr",
                &nodes.exclude_internal_network_subnet_cidr,
            )?,
            network: nodes.internal_vm_network_name.clone(),
        },
        external: Side {
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
mod book;
#[cfg(test)]
mod tests;
#[cfg(test)]
mod upstream_cases;
