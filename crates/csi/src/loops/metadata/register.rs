//! Static volumes: an admin writes a PersistentVolume for a disk that CNS does not know yet.

use std::time::Duration;

use vsphere::{
    Error as VcenterError, FaultKind,
    cns::{BackingDetails, CreateSpec, EntityMetadata, VolumeMetadata},
};

use crate::{
    loops::{
        model::{Metadata as _, Volume},
        names::PROVISIONER_IDENTITY,
    },
    vcenters::Connection,
};

const MIB: i64 = 1 << 20;

/// Whether an admin wrote the PersistentVolume. A volume of CreateVolume that CNS does not know was removed from CNS by
/// somebody, and stays so.
pub(super) fn is_static(volume: &Volume) -> bool {
    let is_in_use = matches!(volume.status.phase.as_str(), "Available" | "Bound");
    let attributes = volume.spec.csi.as_ref().map(|csi| &csi.volume_attributes);
    is_in_use && attributes.is_some_and(|all| !all.contains_key(PROVISIONER_IDENTITY))
}

/// Registers the disk as a volume of this cluster. Nothing is created: CNS refuses a disk that does not exist.
pub(super) async fn register(
    connection: &Connection,
    volume: &Volume,
    entities: Vec<EntityMetadata>,
    within: Duration,
) -> Result<(), String> {
    let Some(source) = &volume.spec.csi else { return Ok(()) };
    let cluster = connection.container_cluster();
    let capacity = volume.spec.capacity.storage.map_or(0, |bytes| bytes.0);
    let spec = CreateSpec {
        name: volume.name().to_owned(),
        id: None,
        datastores: Vec::new(),
        metadata: VolumeMetadata {
            cluster: Some(cluster.clone()),
            entities,
            clusters: vec![cluster],
        },
        backing: BackingDetails::Block {
            capacity_mib: capacity / MIB,
            disk_id: Some(source.volume_handle.clone()),
            disk_url: None,
        },
        policy: None,
        permissions: Vec::new(),
        source: None,
    };
    let registering = async {
        let task = connection.client.create_volumes(vec![spec]).await?;
        task.wait(within).await
    };
    let outcomes = registering.await.map_err(|error: VcenterError| error.error_chain())?;
    for outcome in outcomes {
        match outcome.result {
            Ok(_) => {}
            Err(fault) if matches!(fault.kind, FaultKind::CnsAlreadyRegistered { .. }) => {}
            Err(fault) => return Err(fault.to_string()),
        }
    }
    Ok(())
}
