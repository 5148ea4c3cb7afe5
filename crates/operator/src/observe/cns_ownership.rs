//! Asks CNS which cluster owns volumes, before VDO uses a cluster id.
//!
//! Two clusters with one cluster id remove each other's volumes from CNS. Before VDO records an id that it
//! found in use, it asks CNS which volumes exist under it. A volume with a claim whose PersistentVolume is
//! not in this cluster belongs to another cluster.
//!
//! Somebody can have removed the driver and its configuration while its volumes stayed. A driver with another
//! cluster id would not find them, so VDO asks CNS for their id before it generates a new one.

use std::{collections::BTreeSet, time::Duration};

use api::VDOConfig;
use health::facts::Known;
use vsphere::cns::{QueryFilter, Volume, VolumeId};

use crate::{
    cluster::Stores,
    vcenters::{
        Vcenters,
        pace::{self, CnsAnswer, Effect, Inputs, Pace},
    },
};

/// Timeout for one vCenter to answer.
const TIMEOUT: Duration = Duration::from_secs(10);
/// The number of volumes in one query.
const AT_ONCE: usize = 500;

/// An error contains the reason why the names are unknown.
type Names = Result<Vec<String>, String>;

/// Foreign claims with volumes under this cluster id, in the vCenters of these names. `proposal` means that VDO
/// takes the id only after an admin changes something.
pub(super) async fn foreign_claims(
    stores: &Stores,
    vcenters: &mut Vcenters,
    config: &VDOConfig,
    names: &[String],
    id: &str,
    proposal: bool,
) -> Names {
    let question = pace::question(vcenters, config, names, (id, proposal));
    let inputs = Inputs { question, volumes: stores.volumes.revision() };
    if let Some(asked) = vcenters.asked.as_ref().filter(|asked| asked.pace.holds(inputs)) {
        return asked.result.clone();
    }
    are_connected(vcenters, names)?;
    let claims = ask_for_claims(stores, vcenters, names, id).await;
    if let Err(why) = &claims {
        tracing::warn!(why, "CNS could not be asked who uses this cluster-id");
    }
    let effect = match &claims {
        Ok(foreign) if foreign.is_empty() && proposal => Effect::AllowsProposal,
        Ok(foreign) if foreign.is_empty() => Effect::Allows,
        _ => Effect::Blocks,
    };
    answered(&mut vcenters.asked, inputs, claims, effect)
}

/// The cluster ids of the existing volumes, in the vCenters of these names; none if there are no volumes, or
/// CNS knows none of them.
pub(super) async fn inherited_ids(
    stores: &Stores,
    vcenters: &mut Vcenters,
    config: &VDOConfig,
    names: &[String],
) -> Names {
    // Any change of the volumes requires a new query: VDO could generate a new id after an answer for fewer
    // volumes.
    let volumes = stores.volumes.revision();
    let question = pace::question(vcenters, config, names, volumes);
    let inputs = Inputs { question, volumes };
    if let Some(known) = vcenters.inherited.as_ref().filter(|known| known.pace.holds(inputs)) {
        return known.result.clone();
    }
    let mut handles = handles(stores)?;
    // A handle of the in-tree provider is a path, which CNS does not know.
    handles.retain(|handle| !handle.is_empty() && !handle.starts_with('['));
    if handles.is_empty() {
        return Ok(Vec::new());
    }
    are_connected(vcenters, names)?;
    let ids = ask_for_owners(vcenters, names, handles).await;
    if let Err(why) = &ids {
        tracing::warn!(why, "CNS could not be asked which cluster-id the volumes were made under");
    }
    let agree = ids.as_ref().is_ok_and(|ids| ids.len() <= 1);
    let effect = if agree { Effect::Allows } else { Effect::Blocks };
    answered(&mut vcenters.inherited, inputs, ids, effect)
}

/// VDO learns of a new connection at once, so it does not cache this error.
fn are_connected(vcenters: &Vcenters, names: &[String]) -> Result<(), String> {
    names.iter().try_for_each(|name| connected(vcenters, name).map(drop))
}

fn connected(vcenters: &Vcenters, name: &str) -> Result<vsphere::Client, String> {
    let client = vcenters.known(name).and_then(|known| known.client);
    client.ok_or_else(|| format!("{name} is not connected"))
}

/// Keeps an answer until the next query.
fn answered(slot: &mut Option<CnsAnswer>, inputs: Inputs, result: Names, effect: Effect) -> Names {
    let pace = Pace::after(slot.as_ref().map(|before| &before.pace), inputs, effect);
    *slot = Some(CnsAnswer { pace, result: result.clone() });
    result
}

fn handles(stores: &Stores) -> Result<BTreeSet<String>, String> {
    let handles = stores
        .volumes
        .read(|volumes| volumes.values().map(|volume| volume.handle.clone()).collect());
    match handles {
        Known::Known(handles) => Ok(handles),
        Known::Unknown { reason } => Err(format!("the PersistentVolumes are not known: {reason}")),
    }
}

async fn query(
    vcenters: &Vcenters,
    name: &str,
    filter: &QueryFilter,
) -> Result<Vec<Volume>, String> {
    let client = connected(vcenters, name)?;
    let volumes = tokio::time::timeout(TIMEOUT, client.query_volumes(filter)).await;
    let volumes = volumes.map_err(|_| format!("CNS of {name} did not answer in time"))?;
    volumes.map_err(|error| format!("CNS of {name}: {}", error.error_chain()))
}

async fn ask_for_claims(stores: &Stores, vcenters: &Vcenters, names: &[String], id: &str) -> Names {
    let handles = handles(stores)?;
    let filter = QueryFilter { clusters: vec![id.to_owned()], ..QueryFilter::default() };
    let mut claims = Vec::new();
    for name in names {
        let volumes = query(vcenters, name, &filter).await?;
        let others = volumes.iter().filter(|volume| !handles.contains(&volume.id.id));
        claims.extend(others.filter_map(|volume| claim_of(volume, id)));
    }
    claims.sort();
    Ok(claims)
}

/// The claim of a volume. A volume without a claim may be left over from this very cluster.
fn claim_of(volume: &Volume, id: &str) -> Option<String> {
    let metadata = volume.metadata.as_ref()?;
    let claim = metadata.entities.iter().find(|entity| {
        entity.kind.as_deref() == Some("PERSISTENT_VOLUME_CLAIM")
            && entity.cluster.as_deref().is_none_or(|cluster| cluster == id)
    })?;
    Some(format!("{}/{}", claim.namespace.as_deref().unwrap_or_default(), claim.name))
}

async fn ask_for_owners(vcenters: &Vcenters, names: &[String], handles: BTreeSet<String>) -> Names {
    let volumes: Vec<VolumeId> = handles.into_iter().map(|id| VolumeId { id }).collect();
    let mut owners = BTreeSet::new();
    for name in names {
        for some in volumes.chunks(AT_ONCE) {
            let filter = QueryFilter { ids: some.to_vec(), ..QueryFilter::default() };
            let volumes = query(vcenters, name, &filter).await?;
            owners.extend(volumes.iter().flat_map(Volume::owners).map(str::to_owned));
        }
    }
    Ok(owners.into_iter().collect())
}
