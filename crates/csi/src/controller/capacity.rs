//! GetCapacity: the free space for volumes of a StorageClass in a topology segment.

use snafu::{ResultExt as _, Snafu};
use tonic::Code;

use super::{
    Driver,
    capabilities::{self, CapabilityError},
    failure::code_of,
    parameters::{ParameterError, VolumeParameters},
    placement::{self, Need},
    status_of,
};
use crate::{
    proto::csi::{GetCapacityRequest, GetCapacityResponse},
    site::{Segments, Site},
    vcenters::{Connection, PolicyError, Purpose, Unavailable, compatible_with},
};

#[derive(Debug, Snafu)]
pub(super) enum CapacityError {
    #[snafu(transparent)]
    Parameter { source: ParameterError },
    #[snafu(transparent)]
    Capability { source: CapabilityError },
    #[snafu(display("cannot determine the capacity"))]
    Vcenter { source: Unavailable },
    #[snafu(display("cannot determine the capacity"))]
    Privileges { source: vsphere::Error },
    #[snafu(display("cannot determine the capacity"))]
    Policy { source: PolicyError },
}

impl CapacityError {
    fn code(&self) -> Code {
        match self {
            Self::Parameter { .. }
            | Self::Capability { .. }
            | Self::Policy { source: PolicyError::Unknown { .. } } => Code::InvalidArgument,
            Self::Vcenter { .. } => Code::Unavailable,
            Self::Privileges { source } | Self::Policy { source: PolicyError::Read { source } } => {
                code_of(source)
            }
        }
    }
}
status_of!(CapacityError);

pub(super) async fn capacity(
    driver: &Driver,
    request: &GetCapacityRequest,
) -> Result<GetCapacityResponse, CapacityError> {
    if !request.volume_capabilities.is_empty() {
        capabilities::check(&request.volume_capabilities)?;
    }
    let parameters = VolumeParameters::read(&request.parameters)?;
    let connections = driver.vcenters.all_live().context(VcenterSnafu)?;
    let term: Segments =
        request.accessible_topology.iter().flat_map(|topology| topology.segments.clone()).collect();
    let need = Need {
        terms: if term.is_empty() { Vec::new() } else { vec![term] },
        datastore_url: parameters.datastore_url.as_deref(),
        policy: parameters.policy.as_deref(),
    };
    // No volume is requested where there is no capacity, so only a newer reading notices a fix by an admin.
    let space = match free_space(driver, &connections, &need, Purpose::Estimate).await {
        Ok(FreeSpace { total: 0, .. }) | Err(CapacityError::Policy { .. }) => {
            free_space(driver, &connections, &need, Purpose::Placement).await?
        }
        estimate => estimate?,
    };
    Ok(GetCapacityResponse {
        available_capacity: space.total,
        maximum_volume_size: Some(space.largest),
        minimum_volume_size: Some(super::size::MIB),
    })
}

/// The free space of the suitable datastores, in bytes.
#[derive(Debug, Default)]
struct FreeSpace {
    total: i64,
    /// That of the datastore with the most.
    largest: i64,
}

async fn free_space(
    driver: &Driver,
    connections: &[Connection],
    need: &Need<'_>,
    purpose: Purpose,
) -> Result<FreeSpace, CapacityError> {
    let (settings, nodes) = (driver.settings(), driver.nodes.get());
    let mut space = FreeSpace::default();
    let compatible =
        compatible_with(connections, need.policy, purpose).await.context(PolicySnafu)?;
    for (connection, compatible) in connections.iter().zip(compatible) {
        let tags = connection.require_tags().context(VcenterSnafu)?;
        let site =
            Site::with_privileges(connection, &tags, &settings.categories, &nodes, purpose).await;
        let site = site.context(PrivilegesSnafu)?;
        // No suitable datastore means no capacity, which is an answer.
        let placed = placement::place(std::slice::from_ref(&site), need, &[compatible]);
        let chosen = placed.map(|placed| placed.datastores).unwrap_or_default();
        for datastore in site.datastores.iter().filter(|d| chosen.contains(&d.reference)) {
            space.total = space.total.saturating_add(datastore.free.max(0));
            space.largest = space.largest.max(datastore.free);
        }
    }
    Ok(space)
}
