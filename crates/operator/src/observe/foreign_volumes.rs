//! Finds volumes of another cluster under the cluster id that this one is about to use.
//!
//! Two clusters with one cluster id remove each other's volumes from CNS. Before VDO records an id that it
//! found in use, it asks CNS which volumes exist under it. A volume with a claim whose PersistentVolume is
//! not in this cluster belongs to another cluster.

use std::{collections::BTreeSet, time::Duration};

use api::VDOConfig;
use health::facts::Known;
use vsphere::cns::{QueryFilter, Volume};

use crate::{
    cluster::Stores,
    vcenters::{
        Vcenters,
        pace::{self, CnsAnswer, Inputs, Pace},
    },
};

/// Timeout for one vCenter to answer.
const TIMEOUT: Duration = Duration::from_secs(10);

/// Foreign claims with volumes under this cluster id, in the vCenters of these names. An error contains the
/// reason why they are unknown.
pub(super) async fn find(
    stores: &Stores,
    vcenters: &mut Vcenters,
    config: &VDOConfig,
    names: &[String],
    id: &str,
) -> Result<Vec<String>, String> {
    let question = pace::question(vcenters, config, names, id);
    let inputs = Inputs { question, volumes: stores.volumes.revision() };
    if let Some(asked) = vcenters.asked.as_ref().filter(|asked| asked.pace.holds(inputs)) {
        return asked.result.clone();
    }
    // VDO learns of a new connection at once, so it does not cache this error.
    let unreachable =
        |name: &&String| vcenters.known(name).and_then(|known| known.client).is_none();
    if let Some(name) = names.iter().find(unreachable) {
        return Err(format!("{name} is not connected"));
    }
    let claims = ask(stores, vcenters, names, id).await;
    if let Err(why) = &claims {
        tracing::warn!(why, "CNS could not be asked who uses this cluster-id");
    }
    let blocks = !claims.as_ref().is_ok_and(Vec::is_empty);
    let pace = Pace::after(vcenters.asked.as_ref().map(|asked| &asked.pace), inputs, blocks);
    vcenters.asked = Some(CnsAnswer { pace, result: claims.clone() });
    claims
}

async fn ask(
    stores: &Stores,
    vcenters: &Vcenters,
    names: &[String],
    id: &str,
) -> Result<Vec<String>, String> {
    let handles = stores.volumes.read(|volumes| {
        volumes.values().map(|volume| volume.handle.clone()).collect::<BTreeSet<String>>()
    });
    let handles = match handles {
        Known::Known(handles) => handles,
        Known::Unknown { reason } => {
            return Err(format!("the PersistentVolumes are not known: {reason}"));
        }
    };
    let mut claims = Vec::new();
    for name in names {
        let client = vcenters.known(name).and_then(|known| known.client);
        let client = client.ok_or_else(|| format!("{name} is not connected"))?;
        let filter = QueryFilter { clusters: vec![id.to_owned()], ..QueryFilter::default() };
        let volumes = tokio::time::timeout(TIMEOUT, client.query_volumes(&filter)).await;
        let volumes = volumes.map_err(|_| format!("CNS of {name} did not answer in time"))?;
        let volumes = volumes.map_err(|error| format!("CNS of {name}: {}", error.error_chain()))?;
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
