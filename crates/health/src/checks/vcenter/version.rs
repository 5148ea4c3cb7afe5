//! Each vCenter is new enough for the storage driver and the requested features.

use crate::{checks::prelude::*, facts::Platform};

pub(super) const CHECK: Check = Check {
    name: "vcenter/version",
    gives: &[codes::VCENTER_TOO_OLD, codes::VCENTER_TOO_OLD_FOR_FEATURE],
    run: CheckScope::Cluster(&[], check),
};

/// The oldest vCenter with container volumes.
const OLDEST: Version = Version::new(6, 7, 3);

/// Since this release the upstream driver needs vCenter 7.0.
const WANTS_7: Version = Version::new(3, 2, 0);

/// The minimum for OpenShift upgrades.
pub(crate) const FOR_OPENSHIFT: Version = Version::new(7, 0, 2);

fn check(view: &FactsView<'_>, sink: &mut Sink) {
    let Some(storage) = &view.facts.wanted.storage else { return };
    let driver = view.storage_driver().filter(|driver| driver.upstream);
    for vcenter in view.facts.vcenters.values() {
        let question = format!("whether {} is new enough", vcenter.address);
        let Some(about) = sink.need_from_vcenter(&vcenter.about, vcenter, &question) else {
            continue;
        };
        let strict = driver.and_then(|d| d.version).filter(|version| *version >= WANTS_7);
        let needed = if strict.is_some() { Version::new(7, 0, 0) } else { OLDEST };
        if about.version < needed {
            let name =
                strict.map_or("the storage driver".to_owned(), |v| format!("storage driver {v}"));
            let alternative = if about.version >= OLDEST {
                "set storageProvider.version: 3.1.2, the last release that works with it"
            } else {
                "no release supports this vCenter version"
            };
            let hit = super::hit(codes::VCENTER_TOO_OLD, vcenter).with("driver", name);
            sink.raise(
                hit.with("version", about.version)
                    .with("needed", needed)
                    .with("alternative", alternative),
            );
            continue;
        }
        let openshift = view.facts.cluster.platform == Platform::OpenShift;
        if openshift && about.version < FOR_OPENSHIFT {
            let hit = super::hit(codes::VCENTER_TOO_OLD_FOR_FEATURE, vcenter);
            sink.raise(
                hit.with("version", about.version)
                    .shared("feature", "the next release of OpenShift")
                    .shared("otherwise", "OpenShift does not upgrade until then")
                    .shared("needed", FOR_OPENSHIFT),
            );
        }
        let many = storage.volumes_per_node.is_some_and(|volumes| volumes > 59);
        for (asked, feature, field, needed) in [
            (storage.snapshots, "snapshots", "storageProvider.snapshots", Version::new(7, 0, 3)),
            (
                storage.file_volumes,
                "file volumes",
                "storageProvider.fileVolumes",
                Version::new(7, 0, 0),
            ),
            (
                many,
                "more than 59 volumes per node",
                "storageProvider.maxVolumesPerNode",
                Version::new(8, 0, 0),
            ),
        ] {
            if asked && about.version < needed {
                let hit = super::hit(codes::VCENTER_TOO_OLD_FOR_FEATURE, vcenter);
                sink.raise(
                    hit.with("version", about.version)
                        .shared("feature", feature)
                        .shared("otherwise", format!("or remove {field} from the VDOConfig"))
                        .shared("needed", needed),
                );
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn set(facts: &mut Facts, version: Version) {
        facts.vcenter().about.get_mut().unwrap().version = version;
    }

    #[test]
    fn a_6_7_vcenter_with_a_new_driver_is_reported() {
        shows(
            &CHECK,
            &["VDO-1310"],
            |facts| set(facts, Version::new(6, 7, 3)),
            |facts| facts.vcenter().about = Known::unknown("no connection was made"),
        );
    }

    #[test]
    fn the_same_vcenter_suits_an_old_driver() {
        let mut facts = healthy();
        set(&mut facts, Version::new(6, 7, 3));
        facts.wanted.storage.as_mut().unwrap().snapshots = false;
        facts.storage_driver().version = Some(Version::new(3, 1, 2));
        assert_eq!(codes_of(&CHECK, &facts), [""; 0]);
    }

    #[test]
    fn openshift_does_not_upgrade_on_7_0_update_1() {
        for (platform, expected) in
            [(Platform::OpenShift, &["VDO-1311"][..]), (Platform::Kubernetes, &[])]
        {
            let mut facts = crate::sample::cluster(platform);
            facts.wanted.storage.as_mut().unwrap().snapshots = false;
            set(&mut facts, Version::new(7, 0, 1));
            assert_eq!(codes_of(&CHECK, &facts), expected, "{platform:?}");
            set(&mut facts, Version::new(7, 0, 2));
            assert_eq!(codes_of(&CHECK, &facts), [""; 0], "{platform:?}");
        }
    }

    #[test]
    fn snapshots_are_not_supported_on_7_0_update_2() {
        let mut facts = healthy();
        set(&mut facts, Version::new(7, 0, 2));
        assert_eq!(codes_of(&CHECK, &facts), ["VDO-1311"]);
    }
}
