//! The identity in CNS that the volumes of this cluster were made under, where nothing else tells it.
//!
//! Somebody took the driver and its settings away, and its volumes stayed. A driver with another
//! identity would not find them, so CNS is asked before a new one is made up.

use std::{collections::BTreeSet, time::Duration};

use health::facts::Known;
use tokio::time::Instant;
use vsphere::cns::{QueryFilter, Volume, VolumeId};

use super::Stores;
use crate::{facts::ClusterId, vcenters::Vcenters};

/// How long an answer is taken for granted.
const AGE: Duration = Duration::from_secs(15);
/// How long one vCenter may take to answer.
const PATIENCE: Duration = Duration::from_secs(10);
/// So many volumes are asked about.
const SAMPLE: usize = 50;

/// What was answered last.
#[derive(Debug)]
pub(crate) struct Inherited {
    at: Instant,
    id: Result<Option<ClusterId>, String>,
}

/// The identity of the volumes that are here, in the vCenters of these names; none if there are no
/// volumes, or CNS knows none of them. An error says why it is not known.
pub(super) async fn of(
    stores: &Stores,
    vcenters: &mut Vcenters,
    names: &[String],
) -> Result<Option<ClusterId>, String> {
    let before = vcenters.inherited.as_ref();
    if let Some(known) = before.filter(|known| known.at.elapsed() < AGE) {
        return known.id.clone();
    }
    let handles = match stores.volumes.read(|volumes| {
        // A handle of the in-tree provider is a path, which CNS does not know.
        let handles = volumes.values().map(|volume| &volume.handle);
        let handles = handles.filter(|handle| !handle.is_empty() && !handle.starts_with('['));
        handles.take(SAMPLE).cloned().collect::<Vec<String>>()
    }) {
        Known::Known(handles) if handles.is_empty() => return Ok(None),
        Known::Known(handles) => handles,
        Known::Unknown { reason } => {
            return Err(format!("the PersistentVolumes are not known: {reason}"));
        }
    };
    // Told at once when that changes, so not remembered.
    let away = |name: &&String| vcenters.known(name).and_then(|known| known.client).is_none();
    if let Some(name) = names.iter().find(away) {
        return Err(format!("{name} is not connected"));
    }
    let id = ask(vcenters, names, &handles).await;
    if let Err(why) = &id {
        tracing::warn!(why, "CNS could not be asked which cluster-id the volumes were made under");
    }
    vcenters.inherited = Some(Inherited { at: Instant::now(), id: id.clone() });
    id
}

async fn ask(
    vcenters: &Vcenters,
    names: &[String],
    handles: &[String],
) -> Result<Option<ClusterId>, String> {
    let mut owners = BTreeSet::new();
    for name in names {
        let client = vcenters.known(name).and_then(|known| known.client);
        let client = client.ok_or_else(|| format!("{name} is not connected"))?;
        let ids = handles.iter().map(|id| VolumeId { id: id.clone() }).collect();
        let filter = QueryFilter { ids, ..QueryFilter::default() };
        let volumes = tokio::time::timeout(PATIENCE, client.query_volumes(&filter)).await;
        let volumes = volumes.map_err(|_| format!("CNS of {name} did not answer in time"))?;
        let volumes = volumes.map_err(|error| format!("CNS of {name}: {}", error.story()))?;
        owners.extend(volumes.iter().flat_map(Volume::owners).map(str::to_owned));
    }
    agreed(owners)
}

/// The one identity all of them have.
fn agreed(owners: BTreeSet<String>) -> Result<Option<ClusterId>, String> {
    let all: Vec<String> = owners.into_iter().collect();
    match all.as_slice() {
        [] => Ok(None),
        [id] => Ok(Some(ClusterId { id: id.clone(), kept_by_driver: false })),
        several => Err(format!(
            "the volumes of this cluster were made under {}; put the right one into Secret {}/{}, \
             key csi-vsphere.conf, as cluster-id in its section Global",
            several.join(" and "),
            crate::names::CSI_NAMESPACE,
            crate::names::CSI_SECRET,
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_identity_is_taken_from_volumes_only_if_they_agree() {
        let of = |owners: &[&str]| agreed(owners.iter().map(|id| (*id).to_owned()).collect());
        assert_eq!(of(&[]), Ok(None));
        assert_eq!(of(&["prod-7"]).unwrap().unwrap().id, "prod-7");
        let several = of(&["prod-7", "10.10.10.10"]).unwrap_err();
        assert!(several.contains("10.10.10.10 and prod-7"), "{several}");
        assert!(several.contains("vmware-system-csi/vsphere-config-secret"), "{several}");
    }
}
