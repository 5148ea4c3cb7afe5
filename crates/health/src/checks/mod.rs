//! The checks, one per file, by theme.

mod drivers;
mod meaning;
mod nodes;
mod operator;
pub(crate) mod prelude;
mod privileges;
mod storage;
mod vcenter;
mod zones;

use std::sync::LazyLock;

use crate::check::{Check, CheckScope};

pub(crate) use drivers::images::successor as successor_image;

static ALL: LazyLock<Vec<&'static Check>> = LazyLock::new(|| {
    [
        nodes::CHECKS,
        vcenter::CHECKS,
        privileges::CHECKS,
        storage::CHECKS,
        drivers::CHECKS,
        zones::CHECKS,
        operator::CHECKS,
    ]
    .concat()
});

static OF_NODES: LazyLock<Vec<&'static Check>> = LazyLock::new(|| {
    all()
        .iter()
        .copied()
        .filter(|c| matches!(c.run, CheckScope::Node(_) | CheckScope::NodeVm(_)))
        .collect()
});

static OF_VMS: LazyLock<Vec<String>> = LazyLock::new(|| {
    all().iter().filter(|check| check.needs_vm()).map(|check| check.topic()).collect()
});

static OF_VOLUMES: LazyLock<Vec<&'static Check>> = LazyLock::new(|| {
    all().iter().copied().filter(|c| matches!(c.run, CheckScope::Volume(_))).collect()
});

pub(crate) fn node_checks() -> &'static [&'static Check] {
    &OF_NODES
}

/// Topics of the checks that need a node's VM, for the text about an unknown VM.
pub(crate) fn vm_checks() -> &'static [String] {
    &OF_VMS
}

pub(crate) fn volume_checks() -> &'static [&'static Check] {
    &OF_VOLUMES
}

/// In a fixed order.
pub fn all() -> &'static [&'static Check] {
    &ALL
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use api::finding::CATALOGUE;

    use super::*;
    use crate::{
        facts::{Facts, Vcenter},
        testing::codes_of,
    };

    #[test]
    fn every_finding_of_this_crate_is_given_by_a_check_or_by_the_report() {
        let given: BTreeSet<&str> =
            all().iter().flat_map(|check| check.gives).map(|definition| definition.code).collect();
        for definition in CATALOGUE.iter().filter(|d| d.theme.is_checked()) {
            // The report raises the first two, the operator's plan the last.
            let elsewhere = ["VDO-1801", "VDO-1802", "VDO-1316"].contains(&definition.code);
            assert!(elsewhere || given.contains(definition.code), "{}", definition.code);
        }
    }

    #[test]
    fn unknown_facts_raise_no_findings_but_cannot_tell() {
        let healthy = crate::sample::cluster(crate::facts::Platform::Kubernetes);
        let mut blind =
            Facts { now: healthy.now, wanted: healthy.wanted.clone(), ..Facts::default() };
        blind.vcenters = healthy.vcenters.clone();
        for vcenter in blind.vcenters.values_mut() {
            let known = vcenter.clone();
            *vcenter = Vcenter { name: known.name, user: known.user, ..Vcenter::default() };
        }
        for facts in [Facts::default(), blind] {
            for check in all() {
                for code in codes_of(check, &facts) {
                    assert_eq!(code, "VDO-1801", "{} accuses somebody", check.name);
                }
            }
        }
    }

    #[test]
    fn names_are_unique() {
        let names: BTreeSet<&str> = all().iter().map(|check| check.name).collect();
        assert_eq!(names.len(), all().len());
    }
}
