//! Where a new volume goes, and what CNS is asked for.

use std::collections::HashSet;

use snafu::ResultExt as _;
use vsphere::{
    MoRef,
    cns::{
        BackingDetails, CreateSpec, EntityMetadata, EntityReference, PolicyProfile, VolumeMetadata,
    },
};

use super::{
    Driver,
    create_error::{
        CreateError, PlacementSnafu, PolicySnafu, PrivilegesSnafu, SmallerThanSourceSnafu,
        SourcePlacementSnafu, SourceSnafu, VcenterSnafu,
    },
    create_request::{Source, WantedVolume},
    locate,
    placement::{self, Need, PlacementError},
};
use crate::{
    site::Site,
    vcenters::{Connection, Purpose, compatible_with},
};

/// The vCenter and the request to CNS, except for the source.
pub(super) async fn plan(
    driver: &Driver,
    wanted: &WantedVolume,
) -> Result<(Connection, CreateSpec), CreateError> {
    let name = &wanted.name;
    let (connection, datastores, mib) = if let Some(source) = &wanted.source {
        next_to_source(driver, wanted, source).await?
    } else {
        let (connection, datastores) = place(driver, wanted).await?;
        (connection, datastores, wanted.size_mib)
    };
    let policy = match &wanted.parameters.policy {
        Some(policy) => {
            let id = connection
                .policies
                .id(policy, Purpose::Placement)
                .await
                .context(PolicySnafu { name })?;
            Some(PolicyProfile { id })
        }
        None => None,
    };
    let spec = CreateSpec {
        name: wanted.cns_name.clone(),
        id: None,
        datastores,
        metadata: metadata(&connection, wanted),
        backing: BackingDetails::block(mib),
        policy,
        permissions: Vec::new(),
        source: None,
    };
    Ok((connection, spec))
}

/// The datastore of the source, if it meets the request: CNS copies within a datastore. The copy has the size of its
/// source and grows afterwards.
async fn next_to_source(
    driver: &Driver,
    wanted: &WantedVolume,
    source: &Source,
) -> Result<(Connection, Vec<MoRef>, i64), CreateError> {
    let name = &wanted.name;
    let found = locate::current(driver, source.volume()).await;
    let (connection, origin) = found.context(SourceSnafu { name, origin: source.id() })?;
    let has_size = wanted.range.is_some_and(|range| range.required_bytes > 0);
    if has_size && wanted.size_mib < origin.capacity_mib {
        let (wanted_mib, source_mib) = (wanted.size_mib, origin.capacity_mib);
        let origin = source.id();
        return SmallerThanSourceSnafu { name, origin, wanted_mib, source_mib }.fail();
    }
    let (settings, nodes) = (driver.settings(), driver.nodes.get());
    let tags = connection.require_tags().context(VcenterSnafu { name })?;
    let site =
        Site::with_privileges(&connection, &tags, &settings.categories, &nodes, Purpose::Placement)
            .await;
    let site = site.context(PrivilegesSnafu { name })?;
    let compatible = compatible_datastores(std::slice::from_ref(&connection), wanted).await?;
    let compatible = compatible.first().and_then(Option::as_ref);
    let copied = placement::place_copy(&site, &origin.datastore_url, &need(wanted), compatible);
    let datastore = copied.context(SourcePlacementSnafu { name, origin: source.id() })?;
    Ok((connection, vec![datastore], origin.capacity_mib))
}

fn need(wanted: &WantedVolume) -> Need<'_> {
    Need {
        terms: wanted.terms.clone(),
        datastore_url: wanted.parameters.datastore_url.as_deref(),
        policy: wanted.parameters.policy.as_deref(),
    }
}

async fn place(
    driver: &Driver,
    wanted: &WantedVolume,
) -> Result<(Connection, Vec<MoRef>), CreateError> {
    let name = &wanted.name;
    let connections = driver.vcenters.all_live().context(VcenterSnafu { name })?;
    let (settings, nodes) = (driver.settings(), driver.nodes.get());
    let mut sites = Vec::new();
    for connection in &connections {
        let tags = connection.require_tags().context(VcenterSnafu { name })?;
        let site = Site::with_privileges(
            connection,
            &tags,
            &settings.categories,
            &nodes,
            Purpose::Placement,
        )
        .await;
        sites.push(site.context(PrivilegesSnafu { name })?);
    }
    let compatible = compatible_datastores(&connections, wanted).await?;
    let need = need(wanted);
    let placed = placement::place(&sites, &need, &compatible).context(PlacementSnafu { name })?;
    let connection = connections.get(placed.site).cloned();
    let connection = connection.ok_or(PlacementError::NoHost).context(PlacementSnafu { name })?;
    Ok((connection, placed.datastores))
}

async fn compatible_datastores(
    connections: &[Connection],
    wanted: &WantedVolume,
) -> Result<Vec<Option<HashSet<MoRef>>>, CreateError> {
    let compatible =
        compatible_with(connections, wanted.parameters.policy.as_deref(), Purpose::Placement).await;
    compatible.context(PolicySnafu { name: &wanted.name })
}

fn metadata(connection: &Connection, wanted: &WantedVolume) -> VolumeMetadata {
    let cluster_id = connection.cluster_id().to_owned();
    let cluster = connection.container_cluster();
    let entity = |kind: &str, name: &str, namespace: Option<&String>| EntityMetadata {
        name: name.to_owned(),
        labels: Vec::new(),
        delete: None,
        cluster: Some(cluster_id.clone()),
        kind: Some(kind.to_owned()),
        namespace: namespace.cloned(),
        refers: Vec::new(),
    };
    let parameters = &wanted.parameters;
    let mut entities = Vec::new();
    if let Some(pv) = &parameters.pv_name {
        entities.push(entity("PERSISTENT_VOLUME", pv, None));
        if let Some(claim) = &parameters.pvc_name {
            let namespace = parameters.pvc_namespace.as_ref();
            let mut claim = entity("PERSISTENT_VOLUME_CLAIM", claim, namespace);
            claim.refers = vec![EntityReference {
                kind: "PERSISTENT_VOLUME".to_owned(),
                name: pv.clone(),
                namespace: None,
                cluster: Some(cluster_id.clone()),
            }];
            entities.push(claim);
        }
    }
    VolumeMetadata { cluster: Some(cluster.clone()), entities, clusters: vec![cluster] }
}
