//! From the spec to everything that is applied for one release of one driver.

use std::collections::BTreeMap;

use api::{
    VsphereCloudConfigSpec,
    finding::{Finding, codes},
};
use catalog::{
    Driver, Rewrite,
    manifest::{self, Object, Profile, profile},
};
use driver_config::{SecretText, cpi::CpiConfig, csi::CsiConfig};
use semver::Version;
use serde_json::{Value, json};

use super::driver::Wish;
use crate::{
    facts::{Facts, ObjectId, Platform, Vcenter},
    names,
    record::Record,
};

/// What is applied for one release.
pub(super) struct Configuration {
    pub(super) driver: Driver,
    /// Each with the digest of itself.
    pub(super) objects: Vec<Object>,
    pub(super) cluster_id: Option<String>,
}

impl Configuration {
    /// Makes it, or says what is wrong with the wish.
    pub(super) fn make(
        facts: &Facts,
        wish: &Wish<'_>,
        record: &Record,
        version: &Version,
    ) -> Result<Self, Box<Finding>> {
        let implementation = catalog::Implementation::Upstream;
        let refused = |reason: String| {
            Box::new(
                codes::DRIVER_CONFIG_REFUSED
                    .found()
                    .with("driver", wish.driver.to_string())
                    .with("reason", reason)
                    .about(super::myself(facts))
                    .build(),
            )
        };
        let release = facts
            .catalog
            .find(wish.driver, implementation, version)
            .ok_or_else(|| refused(format!("the catalog does not know {version} any more")))?;
        let mut profile = profile(facts);
        let cluster_id = (wish.driver == Driver::Csi).then(|| cluster_id(facts, record));
        let id = cluster_id.as_deref().unwrap_or_default();
        let settings = |profile: &Profile, look: Look| match wish.driver {
            Driver::Cpi => cpi_settings(facts, wish, profile, look),
            Driver::Csi => csi_settings(facts, wish, profile, id, look),
        };
        let masked =
            settings(&profile, Look::Masked).map_err(|error| refused(error.to_string()))?;
        let real = settings(&profile, Look::Real).map_err(|error| refused(error.to_string()))?;
        profile.config_digest = Some(digest(&Value::Array(masked.clone())));
        let rendered =
            manifest::render(release, &profile).map_err(|error| refused(error.to_string()))?;
        let rendered = rendered.objects.into_iter().map(|Object(value)| {
            let digest = digest(&value);
            stamped(value, &digest)
        });
        let settings =
            real.into_iter().zip(&masked).map(|(value, masked)| stamped(value, &digest(masked)));
        let objects = rendered.chain(settings).collect();
        Ok(Self { driver: wish.driver, objects, cluster_id })
    }

    pub(super) fn identities(&self) -> impl Iterator<Item = ObjectId> + '_ {
        self.objects.iter().map(ObjectId::of)
    }

    /// Whether applying it would change anything that runs.
    pub(super) fn differs_from(&self, facts: &Facts) -> bool {
        self.objects.iter().any(|object| {
            let wanted = object.0["metadata"]["annotations"][names::DIGEST].as_str();
            facts.objects.get(&ObjectId::of(object)).and_then(|seen| seen.digest.as_deref())
                != wanted
        })
    }
}

/// The identity of this cluster in CNS: the one on record, else the one in use, else a new one that
/// no other cluster can have.
fn cluster_id(facts: &Facts, record: &Record) -> String {
    let reported = facts.config.status.as_ref().and_then(|status| status.cluster_id.clone());
    let known = record.cluster_id.clone().or(reported);
    known.unwrap_or_else(|| format!("vdo-{}", facts.cluster.uid))
}

/// Whether passwords are shown, or the version of the Secret they come from: digests stand in
/// annotations that many may read, and nobody shall guess a password from one.
#[derive(Clone, Copy)]
enum Look {
    Real,
    Masked,
}

/// Writes a digest, and that the object is ours, into its metadata.
fn stamped(mut value: Value, digest: &str) -> Object {
    let metadata = &mut value["metadata"];
    metadata["labels"][names::MANAGED_BY_LABEL] = json!(names::MANAGED_BY);
    metadata["annotations"][names::DIGEST] = json!(digest);
    Object(value)
}

fn digest(value: &Value) -> String {
    let text = value.to_string();
    let digest = aws_lc_rs::digest::digest(&aws_lc_rs::digest::SHA256, text.as_bytes());
    digest.as_ref()[..16].iter().map(|byte| format!("{byte:02x}")).collect()
}

pub(super) fn has_topology(facts: &Facts) -> bool {
    let spec = &facts.config.spec;
    let zones = spec.cloud_provider.as_ref().and_then(|cpi| cpi.topology.as_ref());
    let categories = spec.storage_provider.as_ref().map(|csi| csi.topology_categories.len());
    zones.is_some_and(|t| !t.zone.is_empty()) || categories.unwrap_or(0) > 0
}

pub(super) fn rewrite(facts: &Facts) -> Rewrite {
    let Some(images) = &facts.config.spec.images else { return Rewrite::default() };
    match &images.registry {
        Some(registry) => Rewrite::mirror(registry.0.as_str()),
        None => Rewrite::new(
            images
                .mirrors
                .iter()
                .map(|m| (m.from.0.as_str().to_owned(), m.to.0.as_str().to_owned())),
        ),
    }
}

/// What the cluster looks like to a manifest.
fn profile(facts: &Facts) -> Profile {
    let spec = &facts.config.spec;
    let mut made = Profile::new(facts.cluster.version);
    if matches!(facts.cluster.platform, Platform::OpenShift { .. }) {
        made.distribution = profile::Distribution::OpenShift;
    }
    made.placement = placement(facts);
    made.windows_nodes = facts.cluster.nodes.iter().any(|node| node.windows);
    made.topology = has_topology(facts);
    made.images.rewrite = rewrite(facts);
    if let Some(images) = &spec.images {
        made.images.pull_secrets =
            images.pull_secrets.iter().map(|n| n.0.as_str().into()).collect();
    }
    if let Some(storage) = &spec.storage_provider {
        if let Some(path) = &storage.custom_kubelet_path {
            path.0.as_str().clone_into(&mut made.kubelet_path);
        }
        made.csi.max_volumes_per_node =
            storage.max_volumes_per_node.and_then(|n| u32::try_from(n).ok());
        made.csi.snapshots = storage.snapshots.as_ref().map(|wish| profile::Snapshots {
            crds: wish.install_controller == Some(true),
            controller: wish.install_controller == Some(true),
        });
    }
    if let Some(cloud) = &spec.cloud_provider {
        made.cpi.keep_nodes = cloud.node_deletion == Some(api::vdo_config::NodeDeletion::Never);
    }
    made
}

fn placement(facts: &Facts) -> profile::Placement {
    let nodes = &facts.cluster.nodes;
    let control: Vec<_> = nodes.iter().filter(|node| node.control_plane.is_some()).collect();
    let mut labels: Vec<String> = control.iter().filter_map(|n| n.control_plane.clone()).collect();
    labels.sort();
    labels.dedup();
    let mut taints: Vec<profile::Taint> = control
        .iter()
        .flat_map(|node| &node.taints)
        .filter(|(key, _)| key != names::UNINITIALIZED && !key.starts_with("node.kubernetes.io/"))
        .map(|(key, effect)| profile::Taint { key: key.clone(), effect: effect.clone() })
        .collect();
    taints.sort();
    taints.dedup();
    let count = if control.is_empty() {
        nodes.iter().filter(|node| !node.windows).count()
    } else {
        control.len()
    };
    profile::Placement { nodes: u32::try_from(count).unwrap_or(u32::MAX), labels, taints }
}

/// The vCenters of a wish that have proven credentials, by address.
fn vcenters<'a>(facts: &'a Facts, wish: &Wish<'_>) -> Vec<(String, Option<u16>, &'a Vcenter)> {
    let of = |name: &&str| facts.vcenters.get(*name);
    wish.vcenters
        .iter()
        .filter_map(of)
        .map(|vcenter| {
            let (host, port) = host_and_port(&vcenter.spec);
            (host, port, vcenter)
        })
        .collect()
}

fn host_and_port(spec: &VsphereCloudConfigSpec) -> (String, Option<u16>) {
    let address = spec.vc_ip.0.as_str();
    match address.rsplit_once(':') {
        Some((host, port)) if !host.contains(':') || host.ends_with(']') => {
            (host.trim_matches(['[', ']']).to_owned(), port.parse().ok())
        }
        _ => (address.trim_matches(['[', ']']).to_owned(), None),
    }
}

fn credential(vcenter: &Vcenter, look: Look) -> (String, SecretText) {
    match (&vcenter.credentials, look) {
        (Some(credential), Look::Real) => {
            (credential.username.clone(), credential.password.clone())
        }
        (Some(credential), Look::Masked) => {
            (credential.username.clone(), vcenter.credentials_version.clone().into())
        }
        (None, _) => (String::new(), SecretText::default()),
    }
}

fn datacenters(vcenter: &Vcenter) -> Vec<String> {
    vcenter.spec.datacenter_names().into_iter().map(str::to_owned).collect()
}

fn thumbprint(vcenter: &Vcenter) -> String {
    vcenter.spec.thumbprint.as_ref().map(|t| t.0.as_str().to_owned()).unwrap_or_default()
}

/// The cloud controller's ConfigMap and Secret.
fn cpi_settings(
    facts: &Facts,
    wish: &Wish<'_>,
    profile: &Profile,
    look: Look,
) -> Result<Vec<Value>, driver_config::WriteError> {
    let mut config = CpiConfig::default();
    names::CPI_SECRET.clone_into(&mut config.global.secret_name);
    names::KUBE_SYSTEM.clone_into(&mut config.global.secret_namespace);
    let mut passwords = BTreeMap::new();
    for (host, port, vcenter) in vcenters(facts, wish) {
        let entry = driver_config::cpi::VirtualCenter {
            server: host.clone(),
            port,
            insecure_flag: vcenter.spec.insecure,
            datacenters: datacenters(vcenter),
            thumbprint: thumbprint(vcenter),
            ..Default::default()
        };
        let (user, password) = credential(vcenter, look);
        passwords.insert(format!("{host}.username"), user);
        passwords.insert(format!("{host}.password"), password.expose().to_owned());
        config.vcenters.insert(host, entry);
    }
    if let Some(cloud) = &facts.config.spec.cloud_provider {
        if let Some(topology) = &cloud.topology {
            topology.zone.clone_into(&mut config.labels.zone);
            topology.region.clone_into(&mut config.labels.region);
        }
        if let Some(nodes) = &cloud.nodes {
            let texts =
                |list: &[api::text::Cidr]| list.iter().map(|c| c.0.as_str().to_owned()).collect();
            config.nodes.internal_network_subnet_cidr = texts(&nodes.internal_subnets);
            config.nodes.external_network_subnet_cidr = texts(&nodes.external_subnets);
            config.nodes.exclude_internal_network_subnet_cidr =
                texts(&nodes.exclude_internal_subnets);
            config.nodes.exclude_external_network_subnet_cidr =
                texts(&nodes.exclude_external_subnets);
            config.nodes.internal_vm_network_name =
                nodes.internal_network.clone().unwrap_or_default();
            config.nodes.external_vm_network_name =
                nodes.external_network.clone().unwrap_or_default();
        }
    }
    let text = config.to_yaml()?;
    Ok(vec![
        json!({
            "apiVersion": "v1", "kind": "ConfigMap",
            "metadata": {"name": profile.cpi.config_map, "namespace": profile.cpi.namespace},
            "data": {"vsphere.conf": text.expose()},
        }),
        json!({
            "apiVersion": "v1", "kind": "Secret", "type": "Opaque",
            "metadata": {"name": names::CPI_SECRET, "namespace": names::KUBE_SYSTEM},
            "stringData": passwords,
        }),
    ])
}

/// The storage driver's Secret.
fn csi_settings(
    facts: &Facts,
    wish: &Wish<'_>,
    profile: &Profile,
    cluster_id: &str,
    look: Look,
) -> Result<Vec<Value>, driver_config::WriteError> {
    let mut config = CsiConfig::default();
    cluster_id.clone_into(&mut config.global.cluster_id);
    let storage = facts.config.spec.storage_provider.as_ref();
    if let Some(distribution) = storage.and_then(|s| s.cluster_distribution.as_ref()) {
        distribution.clone_into(&mut config.global.cluster_distribution);
    }
    for (host, port, vcenter) in vcenters(facts, wish) {
        let (user, password) = credential(vcenter, look);
        let entry = driver_config::csi::VirtualCenter {
            user,
            password,
            port,
            insecure_flag: vcenter.spec.insecure,
            thumbprint: thumbprint(vcenter),
            datacenters: datacenters(vcenter),
            ..Default::default()
        };
        config.vcenters.insert(host, entry);
    }
    config.labels.topology_categories = topology_categories(facts);
    let text = config.render()?;
    Ok(vec![json!({
        "apiVersion": "v1", "kind": "Secret", "type": "Opaque",
        "metadata": {"name": profile.csi.config_secret, "namespace": profile.csi.namespace},
        "stringData": {"csi-vsphere.conf": text.expose()},
    })])
}

/// The storage driver's zones: its own wish, else those of the cloud controller.
fn topology_categories(facts: &Facts) -> Vec<String> {
    let spec = &facts.config.spec;
    let own = spec.storage_provider.as_ref().map(|s| &s.topology_categories);
    let own: Vec<String> =
        own.into_iter().flatten().map(|category| category.0.as_str().to_owned()).collect();
    if !own.is_empty() {
        return own;
    }
    let topology = spec.cloud_provider.as_ref().and_then(|cpi| cpi.topology.as_ref());
    let zones = topology.map(|t| vec![t.region.clone(), t.zone.clone()]).unwrap_or_default();
    zones.into_iter().filter(|category| !category.is_empty()).collect()
}
