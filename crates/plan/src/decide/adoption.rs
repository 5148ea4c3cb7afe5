//! The adoption of a driver that VDO did not install.
//!
//! VDO adopts a driver only if it knows the release from the catalog and has permission to write to the
//! namespace. The object names do not matter. The namespace is one of the usual two, or one that an admin
//! allows.
//!
//! Adoption deletes, re-creates and changes nothing. VDO records the objects as its own under their current
//! names. The cluster id in CNS stays the same. VDO applies its own objects only when an admin asks for it, and
//! reports the changes before: see `first_rollout`.

use std::collections::{BTreeMap, BTreeSet};

use catalog::Driver;
use semver::{BuildMetadata, Prerelease, Version};

use super::{
    configuration::RenderedDriver, desired::DesiredDriver, differences, kept_releases,
    settings::PasswordRendering, zones,
};
use crate::{
    facts::{DriverWorkload, Facts, WorkloadRole},
    names,
    object_id::ObjectId,
    record::{Build, Named, Names, Record},
    written_names,
};

/// The workloads of a driver that do not belong to VDO. A DaemonSet with zero desired pods, such as the
/// Windows one in a cluster without Windows nodes, does nothing and does not conflict.
pub(super) fn theirs<'a>(
    facts: &'a Facts,
    desired: &DesiredDriver<'_>,
) -> Vec<(&'a ObjectId, &'a DriverWorkload)> {
    [WorkloadRole::Controller, WorkloadRole::Node]
        .into_iter()
        .flat_map(|task| facts.workloads_of(desired.driver, task))
        .filter(|(id, _)| !facts.is_ours(id))
        .filter(|(_, w)| !(w.role == WorkloadRole::Node && w.current && w.wanted == 0))
        .collect()
}

/// The maximum number of changes that a message lists.
const CHANGES_LISTED: usize = 24;

/// The changes of the first rollout, as the end of a message.
pub(super) fn listed(changes: &[String]) -> String {
    let mut text = String::new();
    let listed = changes.iter().take(CHANGES_LISTED).cloned().collect::<Vec<_>>();
    if !listed.is_empty() {
        text.extend([". This would change: ", &listed.join("; ")]);
    }
    if let Some(more) = changes.len().checked_sub(CHANGES_LISTED).filter(|n| *n > 0) {
        text.extend(["; and ", &more.to_string(), " more"]);
    }
    text
}

/// The result of an adoption.
pub(super) struct Adopted {
    /// The record that makes the driver belong to VDO.
    pub(super) record: Record,
    /// The changes that the first rollout would make, as text.
    pub(super) changes: Vec<String>,
}

/// Whether the Go VDO installed these workloads: its field manager alone wrote them, and its configuration
/// exists. VDO is the successor of the Go VDO.
pub(super) fn are_of_predecessor(
    facts: &Facts,
    desired: &DesiredDriver<'_>,
    theirs: &[(&ObjectId, &DriverWorkload)],
) -> bool {
    let by_it = theirs.iter().all(|(_, workload)| {
        workload.origin.field_managers.iter().eq([names::PREDECESSOR_MANAGER])
            && workload.origin.helm.is_none()
    });
    by_it
        && match desired.driver {
            Driver::Cpi => facts.predecessor.cloud_secret,
            Driver::Csi => {
                let id = facts.cluster_id.as_ref().ok().and_then(Option::as_ref);
                id.is_some_and(|id| !id.kept_by_driver && is_address(facts, &id.id))
            }
        }
}

/// Whether a cluster id in CNS is the address of a vCenter. The Go VDO used such ids.
pub(super) fn is_address(facts: &Facts, id: &str) -> bool {
    facts.vcenters.values().any(|vcenter| {
        let address = vcenter.spec.vc_ip.0.as_str();
        id == address || id == vcenter.spec.vc_ip.host_and_port().0
    })
}

/// The result of an adoption, or the reason why VDO cannot adopt the driver.
pub(super) fn adopted(
    facts: &Facts,
    desired: &DesiredDriver<'_>,
    record: &Record,
    theirs: &[(&ObjectId, &DriverWorkload)],
) -> Result<Adopted, String> {
    is_within_reach(facts, theirs)?;
    settings_are_known(facts, desired)?;
    let build = release(facts, desired, theirs)?;
    let Build { implementation, version } = &build;
    let kept = kept(desired.driver, theirs)?;
    if let Some(settings) = &kept.settings {
        let kind = if desired.driver == Driver::Cpi { "ConfigMap" } else { "Secret" };
        may_write(facts, kind, &kept.namespace, settings)?;
    }
    let record = Record {
        version: Some(version.to_string()),
        implementation: *implementation,
        since: Some(facts.now),
        generation: facts.generation(),
        healthy: true,
        untouched: true,
        objects: theirs.iter().map(|(id, _)| (*id).clone()).collect(),
        names: Some(kept),
        users: users(facts, desired).unwrap_or_default(),
        zones: zones::in_use(facts, desired.driver),
        ..record.clone()
    };
    let configuration =
        RenderedDriver::render(facts, desired, &record, &build, PasswordRendering::Real)
            .map_err(|finding| finding.seen.unwrap_or(finding.title))?;
    for (id, _) in theirs {
        let found = configuration.identities().any(|own| own == **id);
        found.then_some(()).ok_or_else(|| format!("release {version} has no {id}"))?;
    }
    let changes = differences::list(facts, desired, &configuration, theirs);
    let mut record = record;
    record.releases = kept_releases::entries(facts, &record, &configuration);
    if let Some(identity) = configuration.cluster_id.filter(|_| record.cluster_id.is_none()) {
        record.cluster_id = Some(identity.id);
        record.cluster_id_kept_by_driver = identity.kept_by_driver;
    }
    Ok(Adopted { record, changes })
}

/// Outside its namespaces VDO reads and writes nothing unless an admin allows it.
pub(super) fn is_within_reach(
    facts: &Facts,
    theirs: &[(&ObjectId, &DriverWorkload)],
) -> Result<(), String> {
    for (ObjectId { kind, namespace, name, .. }, _) in theirs {
        if !facts.allowed_namespaces.contains(namespace) {
            return Err(format!(
                "it lives in namespace {namespace}, where VDO cannot write; allow it with vdoctl deploy \
                 --driver-namespace {namespace}"
            ));
        }
        may_write(facts, kind, namespace, name)?;
    }
    Ok(())
}

/// In the usual namespaces VDO writes only known names, unless an admin allows others.
pub(super) fn may_write(
    facts: &Facts,
    kind: &str,
    namespace: &str,
    name: &str,
) -> Result<(), String> {
    let limited =
        names::USUAL_NAMESPACES.contains(&namespace) && !facts.open_namespaces.contains(namespace);
    if !limited || written_names::is_known(kind, name) {
        return Ok(());
    }
    Err(format!(
        "it has a {kind} {name}, and in namespace {namespace} VDO writes only names that it knows; allow \
         others with vdoctl deploy --driver-namespace {namespace}"
    ))
}

/// The current user for each VsphereCloudConfig; none if the driver's configuration does not name one for
/// each of them.
fn users(facts: &Facts, desired: &DesiredDriver<'_>) -> Option<BTreeSet<String>> {
    let configured = |address: &str| -> Option<&str> {
        let (own, all) = match desired.driver {
            Driver::Cpi => {
                let config = &facts.in_use.cpi.as_ref()?.as_ref().ok()?.config;
                let mut entries = config.vcenters.iter();
                let entry = entries.find(|(name, v)| *name == address || v.server == address)?;
                (&entry.1.user, &config.global.user)
            }
            Driver::Csi => {
                let config = &facts.in_use.csi.as_ref()?.as_ref().ok()?.config;
                (&config.vcenters.get(address)?.user, &config.global.user)
            }
        };
        [own, all].into_iter().map(String::as_str).find(|user| !user.is_empty())
    };
    let user = |name: &&str| {
        let address = &facts.vcenters.get(*name)?.spec.vc_ip;
        let user =
            configured(address.0.as_str()).or_else(|| configured(address.host_and_port().0))?;
        Some(format!("{name} {user}"))
    };
    desired.vcenters.iter().map(user).collect()
}

/// VDO must know the configuration of a driver before it writes anything. Otherwise the cluster id in CNS,
/// the zones and the choice of addresses would change unnoticed.
fn settings_are_known(facts: &Facts, desired: &DesiredDriver<'_>) -> Result<(), String> {
    let (unreadable, found) = match desired.driver {
        Driver::Cpi => (
            facts.in_use.cpi.as_ref().map(Result::as_ref).and_then(Result::err),
            facts.in_use.cpi.is_some(),
        ),
        Driver::Csi => (
            facts.in_use.csi.as_ref().map(Result::as_ref).and_then(Result::err),
            facts.in_use.csi.is_some(),
        ),
    };
    match unreadable {
        Some(why) => Err(format!("VDO does not understand its configuration: {why}")),
        None if !found => Err("its settings are not found: no Secret or ConfigMap that it mounts \
                               at /etc/cloud has them"
            .into()),
        None => Ok(()),
    }
}

/// The release of the catalog that runs, in the implementation that runs; VDO changes the implementation only
/// afterwards. Rebuilt releases carry a suffix in their version. For a version that was never published, as
/// the Go VDO installs, VDO takes the nearest release of the same minor version. A storage driver of the Go VDO
/// that is older than the catalog counts as the oldest release of its major version: adoption changes nothing, and
/// every later release replaces it.
pub(super) fn release(
    facts: &Facts,
    desired: &DesiredDriver<'_>,
    theirs: &[(&ObjectId, &DriverWorkload)],
) -> Result<Build, String> {
    let implementation = theirs.iter().find_map(|(_, workload)| workload.implementation);
    let implementation = implementation.unwrap_or_default();
    let text = theirs.iter().find_map(|(_, workload)| workload.version.as_deref());
    let version_in_image = text.and_then(|text| Version::parse(text).ok());
    let version_in_image = version_in_image.ok_or("its image does not say which release it is")?;
    let plain =
        Version { pre: Prerelease::EMPTY, build: BuildMetadata::EMPTY, ..version_in_image.clone() };
    let known = |version: &Version| facts.catalog.find(desired.driver, implementation, version);
    let minor =
        facts.catalog.releases_of(desired.driver, implementation).map(|release| &release.version);
    let minor = minor.filter(|version| {
        (version.major, version.minor) == (version_in_image.major, version_in_image.minor)
    });
    // The newest release before it; the oldest after it only if there is none before.
    let nearest = minor.min_by_key(|version| {
        (
            **version > version_in_image,
            if **version > version_in_image { version.patch } else { u64::MAX - version.patch },
        )
    });
    let oldest = || {
        let all = facts.catalog.releases_of(desired.driver, implementation);
        let major =
            all.map(|release| &release.version).filter(|v| v.major == version_in_image.major);
        let oldest = major.min().filter(|oldest| version_in_image < **oldest);
        let older = desired.driver == Driver::Csi && are_of_predecessor(facts, desired, theirs);
        oldest.filter(|_| older).cloned()
    };
    [version_in_image.clone(), plain]
        .into_iter()
        .find(|version| known(version).is_some())
        .or_else(|| nearest.cloned())
        .or_else(oldest)
        .map(|version| Build { implementation, version })
        .ok_or_else(|| format!("the catalog has no release near {version_in_image}"))
}

/// The names that the driver keeps.
pub(super) fn kept(
    driver: Driver,
    theirs: &[(&ObjectId, &DriverWorkload)],
) -> Result<Names, String> {
    let namespace = theirs.first().map(|(id, _)| id.namespace.clone()).unwrap_or_default();
    if let Some((id, _)) = theirs.iter().find(|(id, _)| id.namespace != namespace) {
        return Err(format!("its parts live in two namespaces, {namespace} and {}", id.namespace));
    }
    let mut workloads = BTreeMap::new();
    for (id, workload) in theirs {
        let (kind, rendered) = match (driver, workload.role) {
            (Driver::Cpi, _) => ("DaemonSet", "vsphere-cloud-controller-manager"),
            (Driver::Csi, WorkloadRole::Controller) => ("Deployment", "vsphere-csi-controller"),
            (Driver::Csi, _) if workload.origin.windows => {
                ("DaemonSet", "vsphere-csi-node-windows")
            }
            (Driver::Csi, _) => ("DaemonSet", "vsphere-csi-node"),
        };
        if id.kind != kind {
            return Err(format!("{id} would have to be a {kind}, and cannot become one"));
        }
        if workload.selector.is_empty() {
            return Err(format!("{id} does not select its pods by labels alone"));
        }
        let named = Named { name: id.name.clone(), selector: workload.selector.clone() };
        if workloads.insert(rendered.to_owned(), named).is_some() {
            return Err(format!("there is another one next to {id}"));
        }
    }
    let controller = theirs.iter().find(|(_, workload)| workload.role == WorkloadRole::Controller);
    let (_, controller) = controller.ok_or("its controller is not there")?;
    Ok(Names { namespace, settings: controller.origin.settings.clone(), workloads })
}
