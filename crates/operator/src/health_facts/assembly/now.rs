//! Translates the current state of the sources into facts.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use catalog::Driver as Which;
use health::facts::{
    Claim, Cluster, ClusterIds, CredentialState, Drivers, Facts, Known, NetworkPlugin, Platform,
    Vcenter, Version, Wanted,
};
use jiff::Timestamp;
use k8s_openapi::api::apps::v1::DaemonSet;
use plan::facts::VcenterState;

use super::{
    super::{
        sources::{CollectorSettings, ConfiguredVcenter, Sources},
        vcenter,
    },
    VolumesNow,
};
use crate::{
    audit::{Audit, inventory},
    cluster::{
        Stores, crash_logs,
        driver_permissions::ClusterPermissions,
        nodes,
        releases::Releases,
        site::{self, Place, Plugin, RelatedObjects},
        volumes::{self, Attachments, Claimed},
        workloads::{self, DriverContext, DriverPart},
    },
    observe::{CREDENTIALS_MISSING, CREDENTIALS_UNUSABLE},
    vcenters::ConnectionInputs,
};

/// The reason of the facts about a vCenter that VDO has not tried to connect to yet.
const UNTRIED: &str = "it is being connected to";

/// Collects the facts that do not change object by object.
pub(super) fn frame(
    sources: &Sources<'_>,
    audits: &BTreeMap<String, Arc<Audit>>,
    site: &RelatedObjects,
) -> Facts {
    let settings = sources.settings;
    let mut frame = Facts {
        wanted: settings.wanted.clone(),
        operator: settings.operator.clone(),
        ..Facts::default()
    };
    match sources.stores {
        Some(stores) => {
            frame.cluster = cluster(settings, stores, site);
            frame.storage.classes = stores.classes.read(|all| all.values().cloned().collect());
            frame.storage.contested = site.contested();
        }
        None => leave_out_cluster(&mut frame),
    }
    frame.storage.cluster_id = cluster_id(settings, site);
    frame.storage.list_threshold = settings.list_threshold;
    for (name, vcenter) in &settings.vcenters {
        let audit = audits.get(name).map(AsRef::as_ref);
        frame.vcenters.insert(name.clone(), vcenter_now(sources, name, vcenter, audit));
    }
    frame
}

/// The cluster without nodes, drivers and leases.
fn cluster(settings: &CollectorSettings, stores: &Stores, site: &RelatedObjects) -> Cluster {
    Cluster {
        platform: settings.platform,
        version: settings.version.as_ref().and_then(|text| version(text)),
        kubelet_path: kubelet_path(settings.platform, &settings.wanted).into(),
        access: stores.missing_permissions(),
        webhooks: site.webhooks(),
        openshift: site.openshift(),
        network: network(settings.now, stores),
        ..Cluster::default()
    }
}

/// The directory where the kubelet keeps its files. Some platforms use a fixed directory. Elsewhere the spec
/// names it, because only the kubelet itself knows better. The path in the driver's pods is a separate fact.
fn kubelet_path(platform: Platform, wanted: &Wanted) -> String {
    let usual = platform.kubelet_path();
    let fixed = matches!(platform, Platform::K0s | Platform::MicroK8s);
    match &wanted.storage {
        Some(storage) if !fixed => storage.kubelet_path.clone(),
        _ => usual.to_owned(),
    }
}

/// Parses a version of Kubernetes for the checks.
fn version(text: &str) -> Known<Version> {
    match text.parse() {
        Ok(version) => Known::Known(version),
        Err(reason) => Known::Unknown { reason },
    }
}

/// Nothing is wrong with a cluster that nobody looks at.
fn leave_out_cluster(facts: &mut Facts) {
    let reason = "no cluster was looked at";
    facts.cluster = Cluster {
        version: Known::unknown(reason),
        kubelet_path: Known::unknown(reason),
        webhooks: Vec::new().into(),
        access: Vec::new().into(),
        network: NetworkPlugin::default().into(),
        openshift: None.into(),
        ..Cluster::default()
    };
    facts.storage.classes = Vec::new().into();
    facts.storage.contested = BTreeMap::new().into();
}

/// The cluster id in the storage driver's configuration, and the one that the driver generated itself.
fn cluster_id(settings: &CollectorSettings, site: &RelatedObjects) -> ClusterIds {
    let record = &settings.records.csi;
    let recorded = record.cluster_id.clone().filter(|_| !record.cluster_id_kept_by_driver);
    let made = site.cluster_ids.get().and_then(|all| all.values().next().cloned());
    let kept = record.cluster_id.clone().filter(|_| record.cluster_id_kept_by_driver);
    ClusterIds {
        configured: recorded.or_else(|| settings.cluster_id.clone()),
        generated: made.or(kept),
        of_volumes: Known::default(),
        also_used_by: Known::default(),
    }
}

fn plugins<'s>(sets: impl Iterator<Item = &'s Arc<DaemonSet>>) -> Vec<Plugin> {
    let mut plugins: Vec<Plugin> = sets.filter_map(|set| Plugin::from_daemon_set(set)).collect();
    plugins.sort_by(|a, b| a.set.cmp(&b.set));
    plugins
}

fn network(now: Timestamp, stores: &Stores) -> Known<NetworkPlugin> {
    stores.workloads().and_then(|(sets, _)| {
        stores.known_nodes(|all| {
            let silent = nodes::without_network(all.iter());
            let pods = stores.site.pods.seen();
            site::network(&plugins(sets.iter()), &pods, silent.into_iter(), now)
        })
    })
}

/// Whether a network plugin is incomplete on some node. No watch event announces that it stays incomplete, so
/// VDO looks again after a while.
pub(super) fn network_is_incomplete(stores: &Stores) -> bool {
    plugins(stores.daemon_sets.state().iter()).iter().any(|plugin| plugin.incomplete)
}

/// Describes a vCenter without its VMs.
fn vcenter_now(
    sources: &Sources<'_>,
    name: &str,
    configured: &ConfiguredVcenter,
    audit: Option<&Audit>,
) -> Vcenter {
    let known = sources.vcenters.known(&sources.key(name));
    let inputs = sources.vcenters.inputs(&sources.key(name));
    let listed = configured.spec.datacenter_names();
    let mut described = Vcenter {
        name: name.to_owned(),
        address: configured.spec.vc_ip.0.clone(),
        secret: configured.secret.clone(),
        user: inputs.map(|inputs| inputs.credential.username.clone()).unwrap_or_default(),
        credentials: credentials(&configured.state, inputs),
        insecure: configured.spec.insecure,
        datacenters: listed.iter().map(|name| (*name).to_owned()).collect(),
        since: configured.since,
        password_expires: match sources.stores {
            Some(stores) if !configured.secret.is_empty() => {
                stores.password_expires(&configured.spec.credentials.0)
            }
            _ => Known::Known(None),
        },
        ..Vcenter::default()
    };
    if let Some(error) = known.as_ref().and_then(|known| known.error.as_ref()) {
        return vcenter::failed(described, error);
    }
    let connected = known.and_then(|known| known.client.zip(known.inventory));
    let Some((client, inventory)) = connected else {
        let reason = match &configured.state {
            VcenterState::Failed { message, .. } => message.clone(),
            _ => UNTRIED.to_owned(),
        };
        return vcenter::untried(described, &reason);
    };
    let tree = inventory.view();
    described.datacenters = inventory::datacenter_names(&tree, &listed);
    described.since = Timestamp::UNIX_EPOCH;
    let inventory = inventory::inventory(&tree, |_| false);
    vcenter::connected(described, &client, inventory.into(), audit)
}

fn credentials(state: &VcenterState, inputs: Option<&ConnectionInputs>) -> Known<CredentialState> {
    if let Some(ConnectionInputs { credential, .. }) = inputs {
        let trimmed = credential.trimmed.then(|| credential.key.clone());
        return trimmed
            .map_or(CredentialState::Usable, |key| CredentialState::Trimmed { key })
            .into();
    }
    match state {
        VcenterState::Failed { reason, .. } if reason == CREDENTIALS_MISSING => {
            CredentialState::Missing.into()
        }
        VcenterState::Failed { reason, message, .. } if reason == CREDENTIALS_UNUSABLE => {
            CredentialState::Unusable { reason: message.clone() }.into()
        }
        VcenterState::Failed { message, .. } => Known::unknown(message),
        _ => Known::unknown(UNTRIED),
    }
}

/// Watches the pods of the drivers and of incomplete network plugins, and the warnings in the drivers'
/// namespaces.
fn follow(stores: &Stores, plugins: Vec<Plugin>, parts: &[DriverPart<'_>]) {
    let mut places = workloads::places(parts);
    places.extend(plugins.into_iter().filter(|plugin| plugin.incomplete).map(|plugin| Place {
        namespace: plugin.namespace,
        labels: plugin.selector,
        ..Place::default()
    }));
    stores.site.pods.follow(places);
    let allowed_namespaces = parts.iter().map(|part| part.id.namespace.clone());
    let allowed_namespaces =
        allowed_namespaces.map(|namespace| Place { namespace, ..Place::default() });
    stores.site.warnings.follow(allowed_namespaces.collect());
}

pub(super) fn drivers(sources: &Sources<'_>, stores: &Stores, site: &RelatedObjects) -> Drivers {
    let settings = sources.settings;
    let sets = match stores.workloads() {
        Known::Known((sets, _)) => sets,
        Known::Unknown { reason } => {
            let unknown = || Known::unknown(&reason);
            return Drivers { cloud: unknown(), storage: unknown(), others: Vec::new() };
        }
    };
    let parts = sources.workloads.iter().map(|(id, workload)| DriverPart {
        id,
        workload,
        ours: workload.labelled || settings.is_recorded(id),
    });
    let parts: Vec<DriverPart<'_>> = parts.collect();
    follow(stores, plugins(sets.iter()), &parts);
    let mut pods = crate::cluster::pods::unready(stores);
    pods.extend(stores.site.pods.seen().into_iter().map(Arc::new));
    let warnings = stores.site.warnings.seen();
    let ended = workloads::unready_pods(&parts, pods.iter().map(AsRef::as_ref));
    stores.site.crash_logs.follow(crash_logs::all_without_message(ended));
    let read_logs = stores.site.crash_logs.read_logs();
    let kubernetes = settings.version.get().and_then(|version| version.parse().ok());
    let context = DriverContext {
        now: settings.now,
        pods: &pods,
        warnings: &warnings,
        changing: &|which| settings.is_changing(which),
        site,
        releases: &Releases { catalog: &settings.catalog, kubernetes },
        crash_logs: &read_logs,
        permissions: &|compare| {
            stores.roles.read(Clone::clone).and_then(|roles| {
                stores
                    .bindings
                    .read(|bindings| compare(&ClusterPermissions { roles: &roles, bindings }))
            })
        },
    };
    Drivers {
        cloud: Known::Known(workloads::driver(Which::Cpi, &parts, &context)),
        storage: Known::Known(workloads::driver(Which::Csi, &parts, &context)),
        others: workloads::others(&parts),
    }
}

pub(super) fn same_releases(before: &Drivers, after: &Drivers) -> bool {
    let releases = |drivers: &Drivers| {
        [&drivers.cloud, &drivers.storage].map(|known| {
            let driver = known.get().and_then(Option::as_ref);
            driver.map(|driver| (driver.version, driver.namespace.clone(), driver.upstream))
        })
    };
    releases(before) == releases(after)
}

pub(super) fn pending_claims(stores: &Stores) -> Known<Vec<Claim>> {
    let classes = stores.classes.read(|all| all.keys().cloned().collect::<BTreeSet<String>>());
    let ours = classes.get().cloned().unwrap_or_default();
    let mut claims = stores.claims.read(|claims| {
        let waiting = claims.values().filter_map(|claimed| match claimed {
            Claimed::Waits(claim) => Some(claim),
            Claimed::Grows(_) => None,
        });
        waiting.filter(|claim| ours.contains(&claim.class)).cloned().collect::<Vec<_>>()
    });
    let waiting = claims.get_mut().map(Vec::as_mut_slice).unwrap_or_default();
    let mut by_name: BTreeMap<String, &mut Claim> =
        waiting.iter_mut().map(|claim| (claim.name.clone(), claim)).collect();
    let _ = stores.claim_warnings.read(|warnings| {
        // The last warning wins. One pass, because there can be tens of thousands of both.
        for warning in warnings.values() {
            if let Some(claim) = by_name.get_mut(&warning.object) {
                claim.message.clone_from(&warning.event.message);
            }
        }
    });
    claims
}

pub(super) fn volumes_now(stores: &Stores) -> VolumesNow {
    let growing = stores.claims.read(|claims| volumes::growing(claims.values()));
    let attached = stores.attachments.read(Attachments::new);
    let unread = attached.as_ref().map(|_| ());
    let attached = attached.ok().unwrap_or_default();
    let joined = stores.volumes.read(|all| volumes::joined(all, attached));
    VolumesNow {
        attachments: joined
            .as_ref()
            .and_then(|(_, unfinished)| unread.map(|()| unfinished.clone())),
        volumes: joined.map(|(volumes, _)| volumes),
        growing: growing
            .and_then(|names| stores.volumes.read(|all| volumes::handles_of(&names, all))),
        snapshots: stores.site.contents.read(site::tally),
    }
}
