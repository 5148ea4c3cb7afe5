//! Finds the CNS cluster id that the volumes of this cluster were created under, if nothing else records it.
//!
//! This happens when somebody removed the driver and its configuration, and its volumes stayed. A driver with
//! another cluster id would not find them, so VDO asks CNS before it generates a new one.

use std::{collections::BTreeSet, time::Duration};

use api::VDOConfig;
use health::facts::Known;
use vsphere::cns::{QueryFilter, Volume, VolumeId};

use crate::{
    cluster::Stores,
    vcenters::{
        Vcenters,
        pace::{self, CnsAnswer, Inputs, Pace},
    },
};

/// Timeout for one vCenter to answer.
const TIMEOUT: Duration = Duration::from_secs(10);
/// The number of volumes in one query.
const AT_ONCE: usize = 500;

/// The cluster ids of the existing volumes, in the vCenters of these names; none if there are no volumes, or
/// CNS knows none of them. An error contains the reason why they are unknown.
pub(super) async fn find(
    stores: &Stores,
    vcenters: &mut Vcenters,
    config: &VDOConfig,
    names: &[String],
) -> Result<Vec<String>, String> {
    // Any change of the volumes requires a new query: VDO could generate a new id after an answer for fewer
    // volumes.
    let volumes = stores.volumes.revision();
    let question = pace::question(vcenters, config, names, volumes);
    let inputs = Inputs { question, volumes };
    if let Some(known) = vcenters.inherited.as_ref().filter(|known| known.pace.holds(inputs)) {
        return known.result.clone();
    }
    let handles = match stores.volumes.read(|volumes| {
        // A handle of the in-tree provider is a path, which CNS does not know.
        let handles = volumes.values().map(|volume| &volume.handle);
        let handles = handles.filter(|handle| !handle.is_empty() && !handle.starts_with('['));
        handles.cloned().collect::<Vec<String>>()
    }) {
        Known::Known(handles) if handles.is_empty() => return Ok(Vec::new()),
        Known::Known(handles) => handles,
        Known::Unknown { reason } => {
            return Err(format!("the PersistentVolumes are not known: {reason}"));
        }
    };
    // VDO learns of a new connection at once, so it does not cache this error.
    let unreachable =
        |name: &&String| vcenters.known(name).and_then(|known| known.client).is_none();
    if let Some(name) = names.iter().find(unreachable) {
        return Err(format!("{name} is not connected"));
    }
    let ids = ask(vcenters, names, &handles).await;
    if let Err(why) = &ids {
        tracing::warn!(why, "CNS could not be asked which cluster-id the volumes were made under");
    }
    let blocks = !ids.as_ref().is_ok_and(|ids| ids.len() <= 1);
    let pace = Pace::after(vcenters.inherited.as_ref().map(|known| &known.pace), inputs, blocks);
    vcenters.inherited = Some(CnsAnswer { pace, result: ids.clone() });
    ids
}

async fn ask(
    vcenters: &Vcenters,
    names: &[String],
    handles: &[String],
) -> Result<Vec<String>, String> {
    let mut owners = BTreeSet::new();
    for name in names {
        let client = vcenters.known(name).and_then(|known| known.client);
        let client = client.ok_or_else(|| format!("{name} is not connected"))?;
        for some in handles.chunks(AT_ONCE) {
            let ids = some.iter().map(|id| VolumeId { id: id.clone() }).collect();
            let filter = QueryFilter { ids, ..QueryFilter::default() };
            let volumes = tokio::time::timeout(TIMEOUT, client.query_volumes(&filter)).await;
            let volumes = volumes.map_err(|_| format!("CNS of {name} did not answer in time"))?;
            let volumes =
                volumes.map_err(|error| format!("CNS of {name}: {}", error.error_chain()))?;
            owners.extend(volumes.iter().flat_map(Volume::owners).map(str::to_owned));
        }
    }
    Ok(owners.into_iter().collect())
}
