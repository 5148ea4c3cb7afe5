//! Taking over a driver that other hands installed.
//!
//! Adopted is what is known: a release of the catalog, by whatever names, in a namespace VDO may
//! write to, which is one of the usual two or one where an admin lets it. Then nothing is deleted or
//! made anew: the objects are written down as ours under the names they have, and from there on treated
//! like any other. The identity of the cluster in CNS stays what it is. What would change in them is said
//! before it happens.

use std::collections::{BTreeMap, BTreeSet};

use catalog::Driver;
use semver::{BuildMetadata, Prerelease, Version};

use super::{
    configuration::Configuration, desired::DesiredDriver, differences, settings::Look, zones,
};
use crate::{
    facts::{Facts, Task, Workload},
    names,
    object_id::ObjectId,
    record::{Build, Named, Names, Record},
    written_names,
};

/// The parts of a driver that are not ours. A DaemonSet that no node wants, as the one for Windows in
/// a cluster without, does nothing and stands in nobody's way.
pub(super) fn theirs<'a>(
    facts: &'a Facts,
    desired: &DesiredDriver<'_>,
) -> Vec<(&'a ObjectId, &'a Workload)> {
    [Task::Controller, Task::Node]
        .into_iter()
        .flat_map(|task| facts.workloads_of(desired.driver, task))
        .filter(|(id, _)| !facts.is_ours(id))
        .filter(|(_, w)| !(w.task == Task::Node && w.current && w.wanted == 0))
        .collect()
}

/// What adoption would be.
pub(super) struct Adopted {
    /// The record that makes the driver ours.
    pub(super) record: Record,
    /// What VDO would change in it, in words.
    pub(super) changes: Vec<String>,
}

/// Whether the Go VDO installed them: its field manager alone wrote them, and its configuration is
/// there. To it VDO is the next release of itself.
pub(super) fn are_of_predecessor(
    facts: &Facts,
    desired: &DesiredDriver<'_>,
    theirs: &[(&ObjectId, &Workload)],
) -> bool {
    let by_it = theirs.iter().all(|(_, workload)| {
        workload.make.hands.iter().eq([names::PREDECESSOR_MANAGER]) && workload.make.helm.is_none()
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

/// Whether an identity in CNS is the address of a vCenter, as the Go VDO made it.
pub(super) fn is_address(facts: &Facts, id: &str) -> bool {
    facts.vcenters.values().any(|vcenter| {
        let address = vcenter.spec.vc_ip.0.as_str();
        id == address || id == vcenter.spec.vc_ip.host_and_port().0
    })
}

/// What adoption would be, or why it cannot be.
pub(super) fn adopted(
    facts: &Facts,
    desired: &DesiredDriver<'_>,
    record: &Record,
    theirs: &[(&ObjectId, &Workload)],
) -> Result<Adopted, String> {
    is_within_reach(facts, theirs)?;
    settings_are_known(facts, desired)?;
    let build = release(facts, desired, theirs)?;
    let Build { implementation, version } = &build;
    let kept = kept(desired.driver, theirs)?;
    if let Some(settings) = &kept.settings {
        let kind = if desired.driver == Driver::Cpi { "ConfigMap" } else { "Secret" };
        is_let_write(facts, kind, &kept.namespace, settings)?;
    }
    let record = Record {
        version: Some(version.to_string()),
        implementation: *implementation,
        since: Some(facts.now),
        generation: facts.generation(),
        healthy: true,
        objects: theirs.iter().map(|(id, _)| (*id).clone()).collect(),
        names: Some(kept),
        users: users(facts, desired).unwrap_or_default(),
        zones: zones::in_use(facts, desired.driver),
        ..record.clone()
    };
    let configuration = Configuration::make(facts, desired, &record, &build, Look::Real)
        .map_err(|finding| finding.seen.unwrap_or(finding.title))?;
    for (id, _) in theirs {
        let found = configuration.identities().any(|own| own == **id);
        found.then_some(()).ok_or_else(|| format!("release {version} has no {id}"))?;
    }
    let changes = differences::of(facts, desired, &configuration, theirs);
    Ok(Adopted { record, changes })
}

/// Outside of its namespaces VDO reads and writes nothing unless an admin lets it.
pub(super) fn is_within_reach(
    facts: &Facts,
    theirs: &[(&ObjectId, &Workload)],
) -> Result<(), String> {
    for (ObjectId { kind, namespace, name, .. }, _) in theirs {
        if !facts.allowed_namespaces.contains(namespace) {
            return Err(format!(
                "it lives in namespace {namespace}, where VDO may not write; let it with vdoctl deploy \
                 --driver-namespace {namespace}"
            ));
        }
        is_let_write(facts, kind, namespace, name)?;
    }
    Ok(())
}

/// In the usual namespaces VDO writes only names that it knows, unless an admin lets it write others.
fn is_let_write(facts: &Facts, kind: &str, namespace: &str, name: &str) -> Result<(), String> {
    let limited =
        names::USUAL_NAMESPACES.contains(&namespace) && !facts.open_namespaces.contains(namespace);
    if !limited || written_names::is_known(kind, name) {
        return Ok(());
    }
    Err(format!(
        "it has a {kind} {name}, and in namespace {namespace} VDO may write only names that it knows; let \
         it with vdoctl deploy --driver-namespace {namespace}"
    ))
}

/// Whom it logs in as today, by VsphereCloudConfig; none where that is not told for each of them.
fn users(facts: &Facts, desired: &DesiredDriver<'_>) -> Option<BTreeSet<String>> {
    let told = |address: &str| -> Option<&str> {
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
        let user = told(address.0.as_str()).or_else(|| told(address.host_and_port().0))?;
        Some(format!("{name} {user}"))
    };
    desired.vcenters.iter().map(user).collect()
}

/// What a driver is told has to be known before anything of it is written: its identity in CNS, its
/// zones and its choice of addresses would change unseen.
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
        Some(why) => Err(format!("what it is told is not understood: {why}")),
        None if !found => Err("its settings are not found: no Secret or ConfigMap that it mounts \
                               at /etc/cloud has them"
            .into()),
        None => Ok(()),
    }
}

/// Which release of the catalog it is, by whoever made it: a change to another maker's comes
/// afterwards. Those who build it anew say so behind its version; of one that was never published, as
/// the Go VDO installs, it is the nearest of the same minor.
pub(super) fn release(
    facts: &Facts,
    desired: &DesiredDriver<'_>,
    theirs: &[(&ObjectId, &Workload)],
) -> Result<Build, String> {
    let implementation = theirs.iter().find_map(|(_, workload)| workload.implementation);
    let implementation = implementation.unwrap_or_default();
    let text = theirs.iter().find_map(|(_, workload)| workload.version.as_deref());
    let told = text.and_then(|text| Version::parse(text).ok());
    let told = told.ok_or("its image does not say which release it is")?;
    let plain = Version { pre: Prerelease::EMPTY, build: BuildMetadata::EMPTY, ..told.clone() };
    let known = |version: &Version| facts.catalog.find(desired.driver, implementation, version);
    let minor =
        facts.catalog.releases_of(desired.driver, implementation).map(|release| &release.version);
    let minor = minor.filter(|version| (version.major, version.minor) == (told.major, told.minor));
    // The newest before it; only where there is none, the oldest after it.
    let nearest = minor.min_by_key(|version| {
        (**version > told, if **version > told { version.patch } else { u64::MAX - version.patch })
    });
    [told.clone(), plain]
        .into_iter()
        .find(|version| known(version).is_some())
        .or_else(|| nearest.cloned())
        .map(|version| Build { implementation, version })
        .ok_or_else(|| format!("the catalog has no release near {told}"))
}

/// The names that stay.
pub(super) fn kept(driver: Driver, theirs: &[(&ObjectId, &Workload)]) -> Result<Names, String> {
    let namespace = theirs.first().map(|(id, _)| id.namespace.clone()).unwrap_or_default();
    if let Some((id, _)) = theirs.iter().find(|(id, _)| id.namespace != namespace) {
        return Err(format!("its parts live in two namespaces, {namespace} and {}", id.namespace));
    }
    let mut workloads = BTreeMap::new();
    for (id, workload) in theirs {
        let (kind, rendered) = match (driver, workload.task) {
            (Driver::Cpi, _) => ("DaemonSet", "vsphere-cloud-controller-manager"),
            (Driver::Csi, Task::Controller) => ("Deployment", "vsphere-csi-controller"),
            (Driver::Csi, _) if workload.make.windows => ("DaemonSet", "vsphere-csi-node-windows"),
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
            return Err(format!("there is another one beside {id}"));
        }
    }
    let controller = theirs.iter().find(|(_, workload)| workload.task == Task::Controller);
    let (_, controller) = controller.ok_or("its controller is not there")?;
    Ok(Names { namespace, settings: controller.make.settings.clone(), workloads })
}
