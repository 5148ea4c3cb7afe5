//! The record of a driver, which VDO writes before it applies anything.
//!
//! Each driver has one record, in a ConfigMap of the operator's namespace. The record makes a crash harmless
//! at any time: VDO prunes only objects that the record lists, and it recognises an upgrade that was in
//! progress.

use std::collections::{BTreeMap, BTreeSet};

use catalog::{Driver, Implementation, Release};
use jiff::Timestamp;
use semver::Version;
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::Value;

use crate::object_id::ObjectId;

/// The name of the ConfigMap with the record of a driver.
pub fn record_name(driver: Driver) -> &'static str {
    match driver {
        Driver::Cpi => "vdo-record-cpi",
        Driver::Csi => "vdo-record-csi",
    }
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Records {
    pub cpi: Record,
    pub csi: Record,
    /// The resource versions of the ConfigMaps; a ConfigMap that does not exist yet has none.
    pub versions: BTreeMap<Driver, String>,
}

/// The record of one driver.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Record {
    /// The release that VDO applies, or applied last.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub version: Option<String>,
    /// The implementation of that release.
    #[serde(skip_serializing_if = "is_upstream")]
    pub implementation: Implementation,
    /// The time at which VDO started to apply it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub since: Option<Timestamp>,
    /// The generation of the VDOConfig that asked for it.
    pub generation: i64,
    /// The progress of the rollout that VDO last recorded. The timeout counts from it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub progress: Option<Progress>,
    /// The digest of the configuration that VDO last rolled out, without secrets.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub configuration: Option<String>,
    /// The origin of that configuration.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub origin: Option<Origin>,
    /// Whether the release became healthy.
    pub healthy: bool,
    /// Whether VDO adopted the driver and has applied nothing yet. VDO applies its own objects when an admin
    /// asks for it.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub untouched: bool,
    /// The previous release, for a rollback.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub previous: Option<String>,
    /// The implementation of the previous release.
    #[serde(skip_serializing_if = "is_upstream")]
    pub previous_implementation: Implementation,
    /// The catalog entries of these two releases. VDO can render them even if no catalog lists them any more.
    #[serde(skip_serializing_if = "Vec::is_empty", deserialize_with = "readable")]
    pub releases: Vec<Release>,
    /// The number of node pods that did not run before the upgrade began. The upgrade is not the cause of
    /// their failure.
    #[serde(skip_serializing_if = "is_zero")]
    pub ailing: i32,
    /// A release that did not become healthy, and the spec that asked for it. VDO does not try it again until
    /// something changes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rejected: Option<Rejected>,
    /// The users of the configuration that the driver last got, by vCenter.
    #[serde(skip_serializing_if = "BTreeSet::is_empty")]
    pub users: BTreeSet<String>,
    /// The tag categories for zones that the driver was last configured with, the widest first. None if VDO
    /// does not know the configuration of an adopted driver.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub zones: Option<Vec<String>>,
    /// Every object that VDO can have applied.
    pub objects: BTreeSet<ObjectId>,
    /// The uid of the cluster in which VDO wrote the record. A backup can restore a record into another
    /// cluster.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cluster: Option<String>,
    /// The cluster id in CNS. It never changes after VDO has recorded it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cluster_id: Option<String>,
    /// Whether the driver created the cluster id and keeps it itself. VDO then does not write it into the
    /// configuration.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub cluster_id_kept_by_driver: bool,
    /// The names that the driver had when VDO adopted it. VDO keeps them.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub names: Option<Names>,
}

/// The names of a driver that VDO adopted and did not install.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Names {
    pub namespace: String,
    /// The Secret or ConfigMap from which the driver reads its configuration.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub settings: Option<String>,
    /// Its workloads, by their names in the release.
    pub workloads: BTreeMap<String, Named>,
}

/// The name and the pod selector of a workload. Neither can change.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Named {
    pub name: String,
    /// The labels of its pod selector.
    pub selector: BTreeMap<String, String>,
}

/// The origin of a configuration.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Origin {
    /// The build of VDO and the serial of the catalog.
    pub build: String,
    /// The digest of the driver's section in the VDOConfig without its version, and of the nodes that the
    /// driver serves.
    #[serde(rename = "wish")]
    pub desired: String,
    /// The digest of the settings whose change restarts the pods, without secrets.
    pub settings: String,
}

/// The progress of a rollout.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Progress {
    /// The number of its running pods.
    pub pods: i32,
    pub at: Timestamp,
}

/// A release that VDO tried and that did not become healthy.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Rejected {
    pub version: String,
    #[serde(default, skip_serializing_if = "is_upstream")]
    pub implementation: Implementation,
    /// The reason of the failure.
    pub why: String,
    /// The generation of the VDOConfig that asked for the release.
    pub generation: i64,
    /// The approval at that time.
    pub circumstances: String,
    /// The digest of its catalog entry at that time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub entry: Option<String>,
}

/// A release of a driver together with its implementation. Each implementation has its own version numbers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Build {
    pub implementation: Implementation,
    pub version: Version,
}

impl Record {
    /// Whether VDO wrote the record in another cluster than this one.
    pub fn is_of_another(&self, cluster: &str) -> bool {
        self.cluster.as_deref().is_some_and(|of| of != cluster)
    }

    /// Whether the cluster id in CNS is on record for this cluster. CNS confirmed before that no other cluster uses the
    /// id, and it never changes again.
    pub fn has_locked_cluster_id(&self, cluster: &str) -> bool {
        self.cluster_id.is_some() && !self.is_of_another(cluster)
    }

    /// The release that VDO applies, or applied last.
    pub fn running(&self) -> Option<Build> {
        build(self.implementation, self.version.as_deref())
    }

    /// The previous release, for a rollback.
    pub fn before(&self) -> Option<Build> {
        build(self.previous_implementation, self.previous.as_deref())
    }

    /// The catalog entry of a release at the time when VDO rolled it out.
    pub fn release(&self, driver: Driver, of: &Build) -> Option<&Release> {
        self.releases.iter().find(|release| {
            release.driver == driver
                && release.implementation == of.implementation
                && release.version == of.version
        })
    }
}

/// The releases that this VDO understands. It drops other entries, for example after a downgrade of VDO, so
/// that they do not make the whole record unreadable.
fn readable<'de, D: Deserializer<'de>>(from: D) -> Result<Vec<Release>, D::Error> {
    let all = Vec::<Value>::deserialize(from)?;
    Ok(all.into_iter().filter_map(|one| serde_json::from_value(one).ok()).collect())
}

impl Rejected {
    pub fn build(&self) -> Option<Build> {
        build(self.implementation, Some(&self.version))
    }
}

fn build(implementation: Implementation, version: Option<&str>) -> Option<Build> {
    let version = Version::parse(version?.trim_start_matches('v')).ok()?;
    Some(Build { implementation, version })
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes a reference")]
fn is_zero(count: &i32) -> bool {
    *count == 0
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes a reference")]
fn is_upstream(implementation: &Implementation) -> bool {
    *implementation == Implementation::Upstream
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn an_unknown_release_does_not_make_the_record_unreadable() {
        let release = &catalog::embedded().releases[0];
        let written = json!({"version": "1.2.3", "releases": [release, {"driver": "from later"}]});
        let record: Record = serde_json::from_value(written).unwrap();
        assert_eq!(record.version.as_deref(), Some("1.2.3"));
        assert_eq!(record.releases, std::slice::from_ref(release));
        let again = serde_json::from_str::<Record>(&serde_json::to_string(&record).unwrap());
        assert_eq!(again.unwrap(), record);
    }
}
