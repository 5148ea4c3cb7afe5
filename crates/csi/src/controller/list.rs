//! ListVolumes and ControllerGetVolume.

use std::sync::Arc;

use snafu::{ResultExt as _, Snafu, ensure};
use tonic::Code;
use vsphere::cns::{QueryFilter, VolumeId};

use super::{
    Driver, capabilities,
    failure::code_of,
    locate::{self, LocateError},
    paging::{self, PageError},
    size::MIB,
};
use crate::{
    proto::csi::{
        ControllerGetVolumeRequest, ControllerGetVolumeResponse, ListVolumesRequest,
        ListVolumesResponse, Volume, VolumeCondition, controller_get_volume_response,
        list_volumes_response::{self, Entry},
    },
    vcenters::{KnownVolume, Unavailable},
};

#[derive(Debug, Snafu)]
pub(super) enum ListError {
    #[snafu(display("the request has no volume id"))]
    NoVolume,
    #[snafu(display("cannot list the volumes"))]
    Vcenter { source: Unavailable },
    #[snafu(display("cannot list the volumes"))]
    Query { source: vsphere::Error },
    #[snafu(transparent)]
    Page { source: PageError },
    #[snafu(transparent)]
    Locate { source: LocateError },
}

impl From<ListError> for tonic::Status {
    fn from(error: ListError) -> Self {
        let code = match &error {
            ListError::NoVolume => Code::InvalidArgument,
            ListError::Vcenter { .. } => Code::Unavailable,
            ListError::Query { source } => code_of(source),
            ListError::Locate { source } => source.code(),
            ListError::Page { source: PageError::Token { .. } } => Code::Aborted,
            ListError::Page { source: PageError::Negative { .. } } => Code::InvalidArgument,
        };
        Self::new(code, runtime::error_chain::error_chain(&error))
    }
}

/// The first page reads the volumes from CNS; the following pages use that list.
pub(super) async fn list(
    driver: &Driver,
    request: &ListVolumesRequest,
) -> Result<ListVolumesResponse, ListError> {
    let connections = driver.vcenters.all_live().context(VcenterSnafu)?;
    let mut all: Vec<(Arc<KnownVolume>, Vec<String>)> = Vec::new();
    for connection in &connections {
        if request.starting_token.is_empty() {
            let cluster = connection.cluster_id();
            connection.volumes.refresh(&connection.client, cluster).await.context(QuerySnafu)?;
        }
        let mut published = locate::published_nodes(connection);
        all.extend(connection.volumes.all().into_iter().map(|volume| {
            let nodes = published.remove(&volume.id).unwrap_or_default();
            (volume, nodes)
        }));
    }
    all.sort_unstable_by(|a, b| a.0.id.cmp(&b.0.id));
    let (page, next_token) =
        paging::page(all, |(volume, _)| &volume.id, &request.starting_token, request.max_entries)?;
    let entries = page.into_iter().map(|(volume, published_node_ids)| Entry {
        volume: Some(described(&volume)),
        status: Some(list_volumes_response::VolumeStatus {
            published_node_ids,
            volume_condition: Some(condition(&volume)),
        }),
    });
    Ok(ListVolumesResponse { entries: entries.collect(), next_token })
}

pub(super) async fn get(
    driver: &Driver,
    request: &ControllerGetVolumeRequest,
) -> Result<ControllerGetVolumeResponse, ListError> {
    let id = &request.volume_id;
    ensure!(!id.is_empty(), NoVolumeSnafu);
    let connection = locate::vcenter_of(driver, id).await?;
    let filter = QueryFilter { ids: vec![VolumeId::from(id.as_str())], ..QueryFilter::default() };
    let found = connection.client.query_volumes(&filter).await.context(QuerySnafu)?;
    let Some(found) = found.into_iter().find(|volume| volume.id.id == *id) else {
        return Err(LocateError::NotFound { volume: id.clone() }.into());
    };
    let volume = KnownVolume::from(found);
    let mut published = locate::published_nodes(&connection);
    Ok(ControllerGetVolumeResponse {
        status: Some(controller_get_volume_response::VolumeStatus {
            published_node_ids: published.remove(&volume.id).unwrap_or_default(),
            volume_condition: Some(condition(&volume)),
        }),
        volume: Some(described(&volume)),
    })
}

fn described(volume: &KnownVolume) -> Volume {
    Volume {
        capacity_bytes: volume.capacity_mib * MIB,
        volume_id: volume.id.to_string(),
        volume_context: capabilities::volume_context(),
        content_source: None,
        accessible_topology: Vec::new(),
    }
}

fn condition(volume: &KnownVolume) -> VolumeCondition {
    match &volume.problem {
        Some(problem) => VolumeCondition { abnormal: true, message: problem.to_string() },
        None => VolumeCondition { abnormal: false, message: "the volume is healthy".to_owned() },
    }
}
