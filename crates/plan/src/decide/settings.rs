//! The ConfigMaps and Secrets that the drivers' pods read. VDO renders them from the spec and from verified
//! credentials.

use std::collections::BTreeMap;

use api::vdo_config::{CloudProvider, IpFamily, StorageProvider};
use catalog::{Driver, manifest::Profile};
use driver_config::{
    SecretText, WriteError,
    cpi::CpiConfig,
    credentials::render_cpi_secret,
    csi::{self, CsiConfig},
};
use k8s_openapi::ByteString;
use serde_json::{Value, json};
use snafu::{ResultExt, Snafu};

use super::{desired::DesiredDriver, shared_vcenters};
use crate::{
    facts::{ClusterId, Facts, VcenterConnection, VcenterState},
    names,
};

/// How to render passwords. Many users can read the annotations that contain digests, and nobody must be able
/// to guess a password from a digest.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum PasswordRendering {
    /// The passwords, as the driver reads them.
    Real,
    /// Versions in place of the passwords, which change with them. Only for digests on the Secrets
    /// themselves.
    Masked,
    /// The users without their passwords.
    Named,
    /// Neither users nor passwords.
    Hidden,
}

#[derive(Debug, Snafu)]
pub(super) enum Error {
    #[snafu(display("{source}"))]
    Write { source: WriteError },
    #[snafu(display("the credentials for {vcenter} are not proven yet"))]
    Unproven { vcenter: String },
}

pub(super) fn render(
    facts: &Facts,
    desired: &DesiredDriver<'_>,
    profile: &Profile,
    cluster_id: Option<&ClusterId>,
    passwords: PasswordRendering,
) -> Result<Vec<Value>, Error> {
    match desired.driver {
        Driver::Cpi => cpi_settings(facts, desired, profile, passwords),
        Driver::Csi => csi_settings(facts, desired, profile, cluster_id, passwords),
    }
}

/// Copies of the image pull Secrets for the namespace of the driver's pods. VDO assumes that a Secret that is
/// not in the operator's namespace is already there.
pub(super) fn pull_secrets(
    facts: &Facts,
    namespace: &str,
    passwords: PasswordRendering,
) -> Vec<Value> {
    if namespace == facts.operator_namespace {
        return Vec::new();
    }
    let copies = facts.pull_secrets.iter().map(|(name, secret)| {
        let data = match passwords {
            PasswordRendering::Real => json!(secret.data),
            _ => json!({"version": secret.version}),
        };
        json!({
            "apiVersion": "v1", "kind": "Secret", "type": secret.kind,
            "metadata": {"name": name, "namespace": namespace},
            "data": data,
        })
    });
    copies.collect()
}

/// One vCenter in the configuration of a driver.
struct VcenterEntry<'a> {
    host: String,
    port: Option<u16>,
    vcenter: &'a VcenterConnection,
    user: String,
    password: SecretText,
}

impl VcenterEntry<'_> {
    /// The key of its certificates, next to the configuration.
    fn ca_key(&self) -> Option<String> {
        let legal = |c: char| if c.is_ascii_alphanumeric() || c == '.' { c } else { '-' };
        let name: String = self.host.chars().map(legal).collect();
        self.vcenter.ca_bundle.is_some().then(|| format!("ca-{name}.pem"))
    }

    fn ca_file(&self) -> String {
        self.ca_key().map(|key| format!("/etc/cloud/{key}")).unwrap_or_default()
    }

    fn datacenters(&self) -> Vec<String> {
        self.vcenter.spec.datacenter_names().into_iter().map(str::to_owned).collect()
    }

    fn thumbprint(&self) -> String {
        let thumbprint = self.vcenter.spec.thumbprint.as_ref();
        thumbprint.map(|t| t.0.as_str().to_owned()).unwrap_or_default()
    }
}

/// The desired vCenters. Every one of them must be verified: VDO renders no unverified credentials.
fn entries<'a>(
    facts: &'a Facts,
    desired: &DesiredDriver<'_>,
    passwords: PasswordRendering,
) -> Result<Vec<VcenterEntry<'a>>, Error> {
    let mut entries = Vec::new();
    for name in &desired.vcenters {
        let unproven = || Error::Unproven { vcenter: (*name).to_owned() };
        let vcenter = facts.vcenters.get(*name).ok_or_else(unproven)?;
        let verified = matches!(vcenter.state, VcenterState::Verified { .. });
        let shown = verified || passwords != PasswordRendering::Real;
        let credential = vcenter.credentials.as_ref().filter(|_| shown).ok_or_else(unproven)?;
        let (host, port) = vcenter.spec.vc_ip.host_and_port();
        entries
            .retain(|entry: &VcenterEntry<'_>| !shared_vcenters::is_same_host(&entry.host, host));
        entries.push(VcenterEntry {
            host: host.to_owned(),
            port: (port != api::text::VcenterAddress::DEFAULT_PORT).then_some(port),
            vcenter,
            user: if passwords == PasswordRendering::Hidden {
                String::new()
            } else {
                credential.username.clone()
            },
            password: match passwords {
                PasswordRendering::Real => credential.password.clone(),
                PasswordRendering::Masked => vcenter.credentials_version.clone().into(),
                PasswordRendering::Named | PasswordRendering::Hidden => SecretText::default(),
            },
        });
    }
    entries.sort_by(|a, b| a.host.cmp(&b.host));
    Ok(entries)
}

pub(super) fn secret(kind: &str, name: &str, namespace: &str, data: &Value) -> Value {
    json!({
        "apiVersion": "v1", "kind": "Secret", "type": kind,
        "metadata": {"name": name, "namespace": namespace},
        "data": data,
    })
}

/// The data of a Secret. VDO writes `data` and not `stringData`, so that an apply also removes keys that are
/// no longer desired.
pub(super) fn secret_data<'a>(
    texts: impl IntoIterator<Item = (String, &'a str)>,
) -> BTreeMap<String, Value> {
    let encoded = texts.into_iter().map(|(key, text)| {
        (key, serde_json::to_value(ByteString(text.as_bytes().to_vec())).unwrap_or_default())
    });
    encoded.collect()
}

/// The ConfigMap and the Secret of the cloud controller.
fn cpi_settings(
    facts: &Facts,
    desired: &DesiredDriver<'_>,
    profile: &Profile,
    passwords: PasswordRendering,
) -> Result<Vec<Value>, Error> {
    let mut config = CpiConfig::default();
    names::CPI_SECRET.clone_into(&mut config.global.secret_name);
    names::KUBE_SYSTEM.clone_into(&mut config.global.secret_namespace);
    let entries = entries(facts, desired, passwords)?;
    let mut files = BTreeMap::new();
    for entry in &entries {
        config.vcenters.insert(
            entry.host.clone(),
            driver_config::cpi::VirtualCenter {
                server: entry.host.clone(),
                port: entry.port,
                insecure_flag: entry.vcenter.spec.insecure,
                datacenters: entry.datacenters(),
                thumbprint: entry.thumbprint(),
                ca_file: entry.ca_file(),
                ..Default::default()
            },
        );
        if let (Some(key), Some(bundle)) = (entry.ca_key(), &entry.vcenter.ca_bundle) {
            files.insert(key, bundle.clone());
        }
    }
    if let Some(cloud) = &facts.config.spec.cloud_provider {
        labels_and_addresses(&mut config, cloud);
        if let Some(nsx) = &cloud.nsx {
            super::nsx::configure(&mut config, nsx);
        }
    }
    let text = config.to_yaml().context(WriteSnafu)?;
    files.insert("vsphere.conf".into(), text.expose().to_owned());
    let logins = entries.iter().map(|e| (e.host.as_str(), e.user.as_str(), &e.password));
    let logins = render_cpi_secret(logins);
    let logins = secret_data(logins.iter().map(|(key, text)| (key.clone(), text.expose())));
    Ok(vec![
        json!({
            "apiVersion": "v1", "kind": "ConfigMap",
            "metadata": {"name": profile.cpi.config_map, "namespace": profile.cpi.namespace},
            "data": files,
        }),
        secret("Opaque", names::CPI_SECRET, names::KUBE_SYSTEM, &json!(logins)),
    ])
}

fn labels_and_addresses(config: &mut CpiConfig, cloud: &CloudProvider) {
    if let Some(topology) = &cloud.topology {
        topology.zone.clone_into(&mut config.labels.zone);
        topology.region.clone_into(&mut config.labels.region);
    }
    let Some(nodes) = &cloud.nodes else { return };
    let texts = |list: &[api::text::Cidr]| list.iter().map(|c| c.0.as_str().to_owned()).collect();
    let into = &mut config.nodes;
    into.internal_network_subnet_cidr = texts(&nodes.internal_subnets);
    into.external_network_subnet_cidr = texts(&nodes.external_subnets);
    into.exclude_internal_network_subnet_cidr = texts(&nodes.exclude_internal_subnets);
    into.exclude_external_network_subnet_cidr = texts(&nodes.exclude_external_subnets);
    into.internal_vm_network_name = nodes.internal_network.clone().unwrap_or_default();
    into.external_vm_network_name = nodes.external_network.clone().unwrap_or_default();
    let families = nodes.ip_families.iter().map(|family| match family {
        IpFamily::IPv4 => "ipv4".to_owned(),
        IpFamily::IPv6 => "ipv6".to_owned(),
    });
    config.global.ip_family = families.collect();
}

/// The Secret of the storage driver.
fn csi_settings(
    facts: &Facts,
    desired: &DesiredDriver<'_>,
    profile: &Profile,
    cluster_id: Option<&ClusterId>,
    passwords: PasswordRendering,
) -> Result<Vec<Value>, Error> {
    let mut config = CsiConfig::default();
    // The driver refuses to start if its configuration contains a cluster id and it has its own.
    if let Some(cluster_id) = cluster_id.filter(|id| !id.kept_by_driver) {
        cluster_id.id.clone_into(&mut config.global.cluster_id);
    }
    let mut files: BTreeMap<String, SecretText> = BTreeMap::new();
    for entry in entries(facts, desired, passwords)? {
        if let (Some(key), Some(bundle)) = (entry.ca_key(), &entry.vcenter.ca_bundle) {
            files.insert(key, bundle.clone().into());
        }
        let vcenter = csi::VirtualCenter {
            port: entry.port,
            insecure_flag: entry.vcenter.spec.insecure,
            thumbprint: entry.thumbprint(),
            ca_file: entry.ca_file(),
            datacenters: entry.datacenters(),
            user: entry.user,
            password: entry.password,
            ..Default::default()
        };
        config.vcenters.insert(entry.host, vcenter);
    }
    let categories = facts.config.spec.topology_categories();
    config.labels.topology_categories = categories.into_iter().map(str::to_owned).collect();
    if let Some(storage) = &facts.config.spec.storage_provider {
        storage_options(&mut config, storage);
    }
    files.insert("csi-vsphere.conf".into(), config.render().context(WriteSnafu)?);
    let data = secret_data(files.iter().map(|(key, text)| (key.clone(), text.expose())));
    let (name, namespace) = (&profile.csi.config_secret, &profile.csi.namespace);
    Ok(vec![secret("Opaque", name, namespace, &json!(data))])
}

/// The options of the spec for volumes, except for their placement.
fn storage_options(config: &mut CsiConfig, storage: &StorageProvider) {
    let number = |value: Option<i32>| value.and_then(|value| u32::try_from(value).ok());
    if let Some(distribution) = &storage.cluster_distribution {
        distribution.clone_into(&mut config.global.cluster_distribution);
    }
    if let Some(tuning) = &storage.tuning {
        let into = &mut config.global;
        into.query_limit = number(tuning.query_limit);
        into.list_volume_threshold = number(tuning.list_volume_threshold);
        into.csi_auth_check = number(tuning.auth_check_minutes);
        into.csi_fetch_preferred_datastores = number(tuning.preferred_datastores_minutes);
        into.cns_register_volumes_cleanup = number(tuning.register_volume_cleanup_minutes);
        into.cns_pvc_protection_cleanup = number(tuning.claim_protection_cleanup_minutes);
        into.volume_migration_cleanup = number(tuning.migration_cleanup_minutes);
        into.cns_volume_operation_request_cleanup = number(tuning.operation_cleanup_minutes);
    }
    if let Some(snapshots) = &storage.snapshots {
        config.snapshot = csi::Snapshot {
            global_max_per_block_volume: number(snapshots.max_per_volume),
            granular_max_per_block_volume_vsan: number(snapshots.max_per_volume_vsan),
            granular_max_per_block_volume_vvol: number(snapshots.max_per_volume_vvol),
        };
    }
    let files = storage.file_volumes.as_ref();
    for vcenter in config.vcenters.values_mut() {
        if let Some(url) = &storage.migration_datastore_url {
            url.0.as_str().clone_into(&mut vcenter.migration_datastore_url);
        }
        if let Some(files) = files {
            vcenter.target_vsan_file_share_clusters.clone_from(&files.vsan_clusters);
            vcenter.target_vsan_file_share_datastore_urls =
                files.vsan_data_store_url.iter().map(|url| url.0.as_str().to_owned()).collect();
        }
    }
    for (number, rule) in files.iter().flat_map(|files| &files.net_permissions).enumerate() {
        let permission = csi::NetPermission {
            ips: rule.ips.0.as_str().to_owned(),
            permissions: rule.permissions.as_ref().map(|p| p.0.clone()).unwrap_or_default(),
            root_squash: rule.root_squash.unwrap_or_default(),
        };
        config.net_permissions.insert(format!("rule-{number:02}"), permission);
    }
}
