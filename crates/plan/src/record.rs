//! What we wrote down about what we applied, before we applied it.
//!
//! A record lives in a ConfigMap of the operator's namespace, one for each driver. It is what makes
//! a crash at any instant harmless: what may be pruned is only what stands here, and an upgrade that
//! was under way is known to be one.

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

/// The records of both drivers.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Records {
    /// The cloud controller.
    pub cpi: Record,
    /// The storage driver.
    pub csi: Record,
    /// The resource versions of the objects they were read from; none of one that does not exist yet.
    pub versions: BTreeMap<Driver, String>,
}

/// What is known of one driver.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Record {
    /// The release that is being applied, or was last.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub version: Option<String>,
    /// Whose it is.
    #[serde(skip_serializing_if = "is_upstream")]
    pub implementation: Implementation,
    /// Since when.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub since: Option<Timestamp>,
    /// The generation of the VDOConfig that asked for it.
    pub generation: i64,
    /// How far its pods were when last looked at with patience over.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub progress: Option<Progress>,
    /// The digest of its configuration as it was last rolled out, without secrets.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub configuration: Option<String>,
    /// From what that configuration was made.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub origin: Option<Origin>,
    /// Whether it became healthy.
    pub healthy: bool,
    /// The release before it, to go back to.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub previous: Option<String>,
    /// Whose that was.
    #[serde(skip_serializing_if = "is_upstream")]
    pub previous_implementation: Implementation,
    /// The catalog's entries of these two, so that VDO can render them when no catalog lists them any more.
    #[serde(skip_serializing_if = "Vec::is_empty", deserialize_with = "readable")]
    pub releases: Vec<Release>,
    /// So many pods on nodes did not run before the hop began: what keeps them is no fault of it.
    #[serde(skip_serializing_if = "is_zero")]
    pub ailing: i32,
    /// A release that did not become healthy, and under which wish: it is not tried again until
    /// something changes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rejected: Option<Rejected>,
    /// Whom the driver was last given to log in as, by vCenter.
    #[serde(skip_serializing_if = "BTreeSet::is_empty")]
    pub users: BTreeSet<String>,
    /// The tag categories of zones the driver was last told of, the widest first; not known of what
    /// early releases applied.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub zones: Option<Vec<String>>,
    /// Every object that may have been applied.
    pub objects: BTreeSet<ObjectId>,
    /// The uid of the cluster it was written in. A record may be restored into another one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cluster: Option<String>,
    /// The identity of this cluster in CNS. Once written it never changes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cluster_id: Option<String>,
    /// Whether the driver made that identity and keeps it itself: it is then not written into its
    /// configuration.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub cluster_id_kept_by_driver: bool,
    /// The names it was found under when it was adopted. They stay.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub names: Option<Names>,
}

/// The names of a driver that other hands installed and VDO adopted.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Names {
    /// Where it lives.
    pub namespace: String,
    /// The Secret or ConfigMap it reads its configuration from.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub settings: Option<String>,
    /// Its workloads, by the names releases have for them.
    pub workloads: BTreeMap<String, Named>,
}

/// What a workload is called, and how it knows its pods: neither can be changed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Named {
    /// Its name.
    pub name: String,
    /// The labels it selects its pods by.
    pub selector: BTreeMap<String, String>,
}

/// From what a configuration was made.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Origin {
    /// By which build of VDO, and with which catalog.
    pub build: String,
    /// The digest of what the VDOConfig asks of this driver, its version aside, and of the nodes it is
    /// asked for.
    #[serde(rename = "wish")]
    pub desired: String,
    /// The digest of the settings whose change restarts its pods, without secrets.
    pub settings: String,
}

/// How far a release had come at some time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Progress {
    /// Pods of it that ran.
    pub pods: i32,
    /// When.
    pub at: Timestamp,
}

/// A release that was tried and did not become healthy.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Rejected {
    /// Which.
    pub version: String,
    /// Whose.
    #[serde(default, skip_serializing_if = "is_upstream")]
    pub implementation: Implementation,
    /// What was wrong.
    pub why: String,
    /// The generation of the VDOConfig that wanted it.
    pub generation: i64,
    /// What was approved then; none in records of early releases.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub circumstances: Option<String>,
    /// The digest of what the catalog said of it then.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub entry: Option<String>,
}

/// One release of a driver, by whoever makes it: two makers count their releases each in their own way.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Build {
    /// Whose.
    pub implementation: Implementation,
    /// Which.
    pub version: Version,
}

impl Record {
    /// Whether it was written in another cluster than this.
    pub fn is_of_another(&self, cluster: &str) -> bool {
        self.cluster.as_deref().is_some_and(|of| of != cluster)
    }

    /// The release that is being applied, or was last.
    pub fn running(&self) -> Option<Build> {
        build(self.implementation, self.version.as_deref())
    }

    /// The release before it, to go back to.
    pub fn before(&self) -> Option<Build> {
        build(self.previous_implementation, self.previous.as_deref())
    }

    /// The catalog's entry of a release, as it was when the release was rolled out.
    pub fn release(&self, driver: Driver, of: &Build) -> Option<&Release> {
        self.releases.iter().find(|release| {
            release.driver == driver
                && release.implementation == of.implementation
                && release.version == of.version
        })
    }
}

/// The releases this VDO understands. One it does not, as after a downgrade of VDO, is left out: it
/// must not make the whole record unreadable.
fn readable<'de, D: Deserializer<'de>>(from: D) -> Result<Vec<Release>, D::Error> {
    let all = Vec::<Value>::deserialize(from)?;
    Ok(all.into_iter().filter_map(|one| serde_json::from_value(one).ok()).collect())
}

impl Rejected {
    /// What was tried.
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
    fn a_release_that_is_not_understood_does_not_spoil_the_record() {
        let release = &catalog::embedded().releases[0];
        let written = json!({"version": "1.2.3", "releases": [release, {"driver": "from later"}]});
        let record: Record = serde_json::from_value(written).unwrap();
        assert_eq!(record.version.as_deref(), Some("1.2.3"));
        assert_eq!(record.releases, std::slice::from_ref(release));
        let again = serde_json::from_str::<Record>(&serde_json::to_string(&record).unwrap());
        assert_eq!(again.unwrap(), record);
    }
}
