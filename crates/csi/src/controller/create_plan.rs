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
        SourceSnafu, VcenterSnafu,
    },
    create_request::{Source, WantedVolume},
    locate,
    placement::{self, Need, PlacementError},
};
use crate::{site::Site, vcenters::Connection};

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
            let id = connection.policies.id(policy).await.context(PolicySnafu { name })?;
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

/// The datastore of the source: CNS copies within a datastore. The copy has the size of its source and grows afterwards.
async fn next_to_source(
    driver: &Driver,
    wanted: &WantedVolume,
    source: &Source,
) -> Result<(Connection, Vec<MoRef>, i64), CreateError> {
    let name = &wanted.name;
    let found = locate::volume(driver, source.volume()).await;
    let (connection, origin) = found.context(SourceSnafu { name, origin: source.id() })?;
    let has_size = wanted.range.is_some_and(|range| range.required_bytes > 0);
    if has_size && wanted.size_mib < origin.capacity_mib {
        let (wanted_mib, source_mib) = (wanted.size_mib, origin.capacity_mib);
        let origin = source.id();
        return SmallerThanSourceSnafu { name, origin, wanted_mib, source_mib }.fail();
    }
    let datastores = {
        let view = connection.inventory().view();
        let all = view.datastores();
        let own = all.iter().find(|d| d.url.as_deref() == Some(&*origin.datastore_url));
        own.map(|datastore| datastore.reference.clone()).into_iter().collect()
    };
    Ok((connection, datastores, origin.capacity_mib))
}

async fn place(
    driver: &Driver,
    wanted: &WantedVolume,
) -> Result<(Connection, Vec<MoRef>), CreateError> {
    let name = &wanted.name;
    let connections = driver.vcenters.all_live().context(VcenterSnafu { name })?;
    let (settings, nodes) = (driver.settings(), driver.nodes.get());
    let (mut sites, mut compatible) = (Vec::new(), Vec::new());
    for connection in &connections {
        let tags = connection.require_tags().context(VcenterSnafu { name })?;
        let site = Site::with_privileges(connection, &tags, &settings.categories, &nodes).await;
        sites.push(site.context(PrivilegesSnafu { name })?);
        compatible.push(compatible_datastores(connection, wanted).await?);
    }
    let need = Need {
        terms: wanted.terms.clone(),
        datastore_url: wanted.parameters.datastore_url.as_deref(),
        policy: wanted.parameters.policy.as_deref(),
    };
    let placed = placement::place(&sites, &need, &compatible).context(PlacementSnafu { name })?;
    let connection = connections.get(placed.site).cloned();
    let connection = connection.ok_or(PlacementError::NoHost).context(PlacementSnafu { name })?;
    Ok((connection, placed.datastores))
}

/// The datastores that satisfy the policy. With several vCenters, one without the policy has none.
async fn compatible_datastores(
    connection: &Connection,
    wanted: &WantedVolume,
) -> Result<Option<HashSet<MoRef>>, CreateError> {
    let name = &wanted.name;
    let Some(policy) = &wanted.parameters.policy else { return Ok(None) };
    let id = connection.policies.id(policy).await.context(PolicySnafu { name })?;
    let datastores = connection.policies.datastores(&id).await.context(PolicySnafu { name })?;
    Ok(Some(HashSet::clone(&datastores)))
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
