//! Translates the current state of the watches and the vCenters into facts.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use catalog::Driver as Which;
use health::facts::{
    CatalogState, Claim, ClusterId, Conflict, Drivers, Facts, Known, Node, Operator, Storage,
    StorageClass, Vcenter,
};
use jiff::Timestamp;
use plan::{
    ObjectId,
    facts::{self, CatalogTroubleKind, VcenterState},
    names,
};

use super::{
    super::{
        kubernetes,
        vcenter::Described,
        wanted::{acknowledged, wanted},
    },
    LIST_THRESHOLD, VolumesNow, key,
};
use crate::{
    audit::{Audit, inventory},
    cluster::{
        Stores, crash_logs,
        nodes::{self, Beside},
        releases::Releases,
        site::{self, Place, Plugin, Site},
        volumes::{self, Attachments, Claimed},
        workloads::{self, Around, Part},
    },
    vcenters::Vcenters,
};

/// Collects the facts that do not change object by object.
pub(super) fn frame(
    facts: &facts::Facts,
    stores: &Stores,
    vcenters: &Vcenters,
    audits: &BTreeMap<String, Arc<Audit>>,
    site: &Site,
) -> Facts {
    let platform = facts.cluster.platform;
    let wanted = wanted(&facts.config.spec, platform.kubelet_path());
    let kubelet_path = kubernetes::kubelet_path(platform, &wanted);
    let mut frame = Facts { wanted, ..Facts::default() };
    frame.cluster.platform = platform;
    frame.cluster.version = kubernetes::version(&facts.cluster.version_text);
    frame.cluster.kubelet_path = kubelet_path.into();
    frame.cluster.access = stores.rights();
    frame.cluster.webhooks = site.webhooks();
    frame.cluster.openshift = site.openshift();
    frame.cluster.network = network(facts, stores).into();
    frame.operator = operator(facts);
    frame.storage = Storage {
        classes: stores.classes.read(|all| all.values().cloned().collect::<Vec<StorageClass>>()),
        cluster_id: cluster_id(facts, site),
        list_threshold: list_threshold(facts),
        contested: site.contested(),
        ..Storage::default()
    };
    for (name, vcenter) in &facts.vcenters {
        let seen = vcenter_now(facts, name, vcenter, stores, vcenters, audits.get(name));
        frame.vcenters.insert(name.clone(), seen);
    }
    frame
}

/// The cluster id in the storage driver's configuration, and the one that the driver generated itself.
fn cluster_id(facts: &facts::Facts, site: &Site) -> ClusterId {
    let record = &facts.records.csi;
    let recorded = record.cluster_id.clone().filter(|_| !record.cluster_id_kept_by_driver);
    let in_use = facts.cluster_id.as_ref().ok().and_then(Option::as_ref);
    let in_use = in_use.filter(|id| !id.kept_by_driver).map(|id| id.id.clone());
    let made = site.cluster_ids.get().and_then(|all| all.values().next().cloned());
    let kept = record.cluster_id.clone().filter(|_| record.cluster_id_kept_by_driver);
    ClusterId {
        configured: recorded.or(in_use),
        generated: made.or(kept),
        of_volumes: Known::default(),
        also_used_by: Known::default(),
    }
}

/// The operator's facts about itself.
fn operator(facts: &facts::Facts) -> Operator {
    let trouble = facts.catalog_trouble.as_ref();
    let of = |kind| trouble.filter(|trouble| trouble.kind == kind).map(|t| t.reason.clone());
    let conflict = |(id, conflict): (&ObjectId, &facts::Conflict)| {
        let home =
            if id.namespace.is_empty() { String::new() } else { format!("{}/", id.namespace) };
        Conflict {
            kind: id.kind.clone(),
            object: format!("{home}{}", id.name),
            field: "it".to_owned(),
            manager: conflict.manager.clone(),
            times: conflict.times,
        }
    };
    Operator {
        catalog: CatalogState {
            source: trouble.map(|trouble| trouble.source.clone()).unwrap_or_default(),
            serial: i64::try_from(facts.catalog.serial).unwrap_or(i64::MAX),
            expires: facts.catalog.expires,
            fetch_error: of(CatalogTroubleKind::Unreachable),
            distrusted: of(CatalogTroubleKind::Untrusted),
        }
        .into(),
        conflicts: facts.conflicts.iter().map(conflict).collect::<Vec<_>>().into(),
        acknowledged: acknowledged(&facts.config.spec),
        grace: facts.grace,
    }
}

fn plugins(stores: &Stores) -> Vec<Plugin> {
    let mut plugins: Vec<Plugin> =
        stores.daemon_sets.state().iter().filter_map(|set| Plugin::of(set)).collect();
    plugins.sort_by(|a, b| a.set.cmp(&b.set));
    plugins
}

fn network(facts: &facts::Facts, stores: &Stores) -> health::facts::Network {
    let silent = stores.nodes(|all| nodes::without_network(all.iter()));
    site::network(&plugins(stores), &stores.site.pods.seen(), silent.into_iter(), facts.now)
}

/// Whether a network plugin is incomplete on some node. No watch event announces that it stays incomplete, so
/// VDO looks again after a while.
pub(super) fn network_is_incomplete(stores: &Stores) -> bool {
    plugins(stores).iter().any(|plugin| plugin.incomplete)
}

fn list_threshold(facts: &facts::Facts) -> u32 {
    let tuning = facts.config.spec.storage_provider.as_ref().and_then(|s| s.tuning.as_ref());
    let wished = tuning.and_then(|tuning| tuning.list_volume_threshold);
    wished.and_then(|number| u32::try_from(number).ok()).unwrap_or(LIST_THRESHOLD)
}

/// Describes a vCenter without its VMs.
fn vcenter_now(
    facts: &facts::Facts,
    name: &str,
    vcenter: &facts::Vcenter,
    stores: &Stores,
    vcenters: &Vcenters,
    audit: Option<&Arc<Audit>>,
) -> Vcenter {
    let known = vcenters.known(&key(facts, name));
    let wanted = vcenters.wanted(&key(facts, name));
    let listed = vcenter.spec.datacenter_names();
    let mut described = Described {
        name: name.to_owned(),
        address: vcenter.spec.vc_ip.0.clone(),
        secret: format!("{}/{}", names::KUBE_SYSTEM, vcenter.spec.credentials.0),
        user: wanted.map(|wanted| wanted.credential.username.clone()).unwrap_or_default(),
        datacenters: listed.iter().map(|name| (*name).to_owned()).collect(),
        since: vcenter.since,
        password_expires: stores.password_expires(&vcenter.spec.credentials.0),
    };
    if let Some(error) = known.as_ref().and_then(|known| known.error.as_ref()) {
        return described.failed(error);
    }
    let connected = known.and_then(|known| known.client.zip(known.inventory));
    let Some((client, inventory)) = connected else {
        let reason = match &vcenter.state {
            VcenterState::Failed { message, .. } => message.clone(),
            _ => "it is being connected to".to_owned(),
        };
        return described.untried(&reason);
    };
    let tree = inventory.view();
    described.datacenters = inventory::datacenter_names(&tree, &listed);
    described.since = Timestamp::UNIX_EPOCH;
    let inventory = inventory::inventory(&tree, |_| false);
    described.connected(&client, inventory.into(), audit.map(AsRef::as_ref))
}

/// Watches the pods of the drivers and of incomplete network plugins, and the warnings in the drivers'
/// namespaces.
fn follow(stores: &Stores, parts: &[Part]) {
    let mut places = workloads::places(parts);
    places.extend(
        plugins(stores)
            .into_iter()
            .filter(|plugin| plugin.incomplete)
            .map(|plugin| Place { namespace: plugin.namespace, labels: plugin.selector }),
    );
    stores.site.pods.follow(places);
    let allowed_namespaces = parts.iter().map(|part| part.id.namespace.clone());
    let allowed_namespaces =
        allowed_namespaces.map(|namespace| Place { namespace, labels: String::new() });
    stores.site.warnings.follow(allowed_namespaces.collect());
}

pub(super) fn drivers(facts: &facts::Facts, stores: &Stores, site: &Site) -> Drivers {
    let (sets, deployments) = (stores.daemon_sets.state(), stores.deployments.state());
    let all = (sets.iter().map(AsRef::as_ref), deployments.iter().map(AsRef::as_ref));
    let mut parts = workloads::parts(&stores.accounts(), all.0, all.1);
    parts.sort_by(|a, b| a.id.cmp(&b.id));
    for part in &mut parts {
        part.labelled = facts.is_ours(&part.id);
    }
    follow(stores, &parts);
    let mut pods = crate::cluster::pods::unready(stores);
    pods.extend(stores.site.pods.seen().into_iter().map(Arc::new));
    let warnings = stores.site.warnings.seen();
    let ended = workloads::of_drivers(&parts, pods.iter().map(AsRef::as_ref));
    stores.site.words.follow(crash_logs::all_mute(ended));
    let said = stores.site.words.said();
    let changing = |which: Which| {
        let record = facts.record(which);
        let since = record.since.map(|since| facts.now.duration_since(since));
        record.version.is_some() && !record.healthy && since.is_some_and(|age| age < facts.timeouts)
    };
    let kubernetes = Some(facts.cluster.version);
    let around = Around {
        now: facts.now,
        pods: &pods,
        warnings: &warnings,
        changing: &changing,
        site,
        releases: &Releases { catalog: &facts.catalog, kubernetes },
        said: &said,
    };
    Drivers {
        cloud: Known::Known(workloads::driver(Which::Cpi, &parts, &around)),
        storage: Known::Known(workloads::driver(Which::Csi, &parts, &around)),
        others: workloads::others(&parts),
    }
}

pub(super) fn nodes_now(stores: &Stores) -> BTreeMap<String, Node> {
    let beside = Beside::of(stores.csi_nodes.read(Clone::clone), &stores.site.site());
    stores.nodes(|all| {
        let nodes = all.iter();
        nodes.map(|(name, node)| (name.clone(), nodes::node(name, node, &beside))).collect()
    })
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
    let attachments = match stores.attachments.read(Attachments::of) {
        Known::Known(attachments) => attachments,
        Known::Unknown { .. } => Attachments::default(),
    };
    let growing = stores.claims.read(|claims| volumes::growing(claims.values()));
    let growing = match growing {
        Known::Known(names) => stores.volumes.read(|all| volumes::handles_of(&names, all)),
        Known::Unknown { reason } => Known::Unknown { reason },
    };
    let snapshots = stores.site.contents.read(site::tally);
    match stores.volumes.read(|all| volumes::joined(all, attachments)) {
        Known::Known((volumes, attachments)) => VolumesNow {
            volumes: volumes.into(),
            attachments: attachments.into(),
            growing,
            snapshots,
        },
        Known::Unknown { reason } => VolumesNow {
            volumes: Known::unknown(&reason),
            attachments: Known::unknown(&reason),
            growing,
            snapshots,
        },
    }
}
