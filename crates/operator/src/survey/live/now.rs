//! What the watches and the vCenters hold at this moment, as facts.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use catalog::Driver as Which;
use health::facts::{Claim, ClusterId, Drivers, Facts, Known, Storage, StorageClass, Vcenter};
use jiff::Timestamp;

use super::{
    super::{
        audit::Audit,
        cluster, inventory, once,
        vcenter::Described,
        volumes::{self, Attachments},
        wanted::{acknowledged, wanted},
        workloads::{self, Around, Part},
    },
    LIST_THRESHOLD, VolumesNow, key, plain,
};
use crate::{
    facts::{self, VcenterState},
    names,
    observe::Stores,
    vcenters::Vcenters,
};

/// Everything that does not change one by one.
pub(super) fn frame(
    facts: &facts::Facts,
    stores: &Stores,
    vcenters: &Vcenters,
    audits: &BTreeMap<String, Arc<Audit>>,
) -> Facts {
    let platform = facts.cluster.platform;
    let mut frame =
        Facts { wanted: wanted(&facts.config.spec, platform.kubelet_path()), ..Facts::default() };
    frame.cluster.platform = cluster::platform(platform);
    frame.cluster.version = cluster::version(&facts.cluster.version_text);
    frame.cluster.kubelet_path = platform.kubelet_path().to_owned().into();
    frame.cluster.access = stores.rights();
    cluster::leave_out_what_is_not_read_yet(&mut frame.cluster);
    frame.operator.acknowledged = acknowledged(&facts.config.spec);
    frame.storage = Storage {
        classes: stores.classes.read(|all| all.values().cloned().collect::<Vec<StorageClass>>()),
        cluster_id: ClusterId {
            configured: facts
                .records
                .csi
                .cluster_id
                .clone()
                .filter(|_| !facts.records.csi.cluster_id_kept_by_driver),
            generated: facts
                .records
                .csi
                .cluster_id
                .clone()
                .filter(|_| facts.records.csi.cluster_id_kept_by_driver),
            ..ClusterId::default()
        },
        list_threshold: list_threshold(facts),
        ..Storage::default()
    };
    once::compare_volumes(&mut frame.storage, &plain(audits));
    for (name, vcenter) in &facts.vcenters {
        let seen = vcenter_now(facts, name, vcenter, vcenters, audits.get(name));
        frame.vcenters.insert(name.clone(), seen);
    }
    frame
}

fn list_threshold(facts: &facts::Facts) -> u32 {
    let tuning = facts.config.spec.storage_provider.as_ref().and_then(|s| s.tuning.as_ref());
    let wished = tuning.and_then(|tuning| tuning.list_volume_threshold);
    wished.and_then(|number| u32::try_from(number).ok()).unwrap_or(LIST_THRESHOLD)
}

/// A vCenter without its machines.
fn vcenter_now(
    facts: &facts::Facts,
    name: &str,
    vcenter: &facts::Vcenter,
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

pub(super) fn drivers(facts: &facts::Facts, stores: &Stores) -> Drivers {
    let mut parts: Vec<Part> =
        stores.daemon_sets.state().iter().filter_map(|set| Part::of_daemon_set(set)).collect();
    parts.extend(stores.deployments.state().iter().filter_map(|one| Part::of_deployment(one)));
    parts.sort_by(|a, b| a.id.cmp(&b.id));
    let pods = stores.pods.state();
    let warnings = stores.warnings.read(|all| all.values().cloned().collect::<Vec<_>>());
    let warnings = warnings.get().cloned().unwrap_or_default();
    let changing = |which: Which| {
        let record = facts.record(which);
        let since = record.since.map(|since| facts.now.duration_since(since));
        record.version.is_some() && !record.healthy && since.is_some_and(|age| age < facts.patience)
    };
    let around = Around { now: facts.now, pods: &pods, warnings: &warnings, changing: &changing };
    Drivers {
        cloud: Known::Known(workloads::driver(Which::Cpi, &parts, &around)),
        storage: Known::Known(workloads::driver(Which::Csi, &parts, &around)),
        // Whose drivers there are beside VDO's is decided, and said, elsewhere.
        others: Vec::new(),
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

pub(super) fn pending_claims(stores: &Stores) -> Vec<Claim> {
    let classes = stores.classes.read(|all| all.keys().cloned().collect::<BTreeSet<String>>());
    let ours = classes.get().cloned().unwrap_or_default();
    let claims = stores.claims.read(|claims| {
        let waiting = claims.values().filter(|claim| ours.contains(&claim.class));
        waiting.cloned().collect::<Vec<_>>()
    });
    let mut claims = claims.get().cloned().unwrap_or_default();
    for claim in &mut claims {
        claim.message = stores
            .claim_warnings
            .read(|warnings| {
                let mut own = warnings.values().filter(|warning| warning.object == claim.name);
                own.next_back().map(|warning| warning.event.message.clone()).unwrap_or_default()
            })
            .get()
            .cloned()
            .unwrap_or_default();
    }
    claims
}

pub(super) fn volumes_now(stores: &Stores) -> VolumesNow {
    let attachments = stores.attachments.state();
    let attachments = Attachments::of(attachments.iter().map(AsRef::as_ref));
    match stores.volumes.read(|all| volumes::joined(all, attachments)) {
        Known::Known((volumes, attachments)) => (volumes.into(), attachments.into()),
        Known::Unknown { reason } => (Known::unknown(&reason), Known::unknown(&reason)),
    }
}
