//! The upgrade path from the installed release to the chosen one.
//!
//! Most upgrades are one hop, because upstream allows skipping releases. If a release requires a minimum
//! version to upgrade from, the path stops at as few releases in between as possible. The steps of a hop
//! come from *every* release that it crosses, skipped or not.

use semver::Version;
use serde::Serialize;

use crate::{
    environment::Environment,
    model::{Catalog, Driver, Implementation, Release, UpgradeTask},
};

#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Hop {
    pub to: Version,
    /// Steps to complete, or to verify, before the hop.
    pub before: Vec<UpgradeTask>,
    pub after: Vec<UpgradeTask>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Path {
    pub from: Version,
    /// In order; at least one.
    pub hops: Vec<Hop>,
}

impl Path {
    /// A downgrade in one hop. Only the admin's explicit request leads here.
    pub(crate) fn back(from: Version, to: Version) -> Self {
        Self { from, hops: vec![Hop { to, before: Vec::new(), after: Vec::new() }] }
    }
}

/// The shortest path, if there is one. The path stops only at releases for which `may_stop` is true.
pub(crate) fn find(
    catalog: &Catalog,
    environment: &Environment,
    (driver, implementation): (Driver, Implementation),
    from: &Version,
    to: &Release,
    may_stop: &dyn Fn(&Release) -> bool,
) -> Option<Path> {
    let reach = |release: &Release| release.upgrade_from.clone().unwrap_or(Version::new(0, 0, 0));
    let mut stops = vec![to];
    while let Some(next) = stops.last()
        && reach(next) > *from
    {
        // Every bound means "from this version on". So the stop that accepts the oldest version is never
        // worse than another. Of two equal stops, the newer one leaves fewer steps.
        let bound = reach(next);
        let stop = catalog
            .releases_of(driver, implementation)
            .filter(|stop| {
                stop.version >= bound && stop.version < next.version && stop.version > *from
            })
            .filter(|stop| may_stop(stop))
            .min_by(|a, b| reach(a).cmp(&reach(b)).then_with(|| b.version.cmp(&a.version)))
            .filter(|stop| reach(stop) < bound)?;
        stops.push(stop);
    }
    let mut at = from.clone();
    let mut hops = Vec::new();
    for stop in stops.into_iter().rev() {
        let crossed: Vec<_> = catalog
            .releases_of(driver, implementation)
            .filter(|release| release.version > at && release.version <= stop.version)
            .collect();
        let collect = |steps: fn(&Release) -> &Vec<UpgradeTask>| {
            let mut all: Vec<UpgradeTask> = Vec::new();
            for step in crossed.iter().flat_map(|release| steps(release)) {
                if environment.meets(&step.when) && !all.iter().any(|other| other.id == step.id) {
                    all.push(step.clone());
                }
            }
            all
        };
        let hop = Hop {
            to: stop.version.clone(),
            before: collect(|release| &release.before),
            after: collect(|release| &release.after),
        };
        at = stop.version.clone();
        hops.push(hop);
    }
    Some(Path { from: from.clone(), hops })
}
