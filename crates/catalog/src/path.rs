//! The way from the release that runs to the one that should.
//!
//! Most upgrades are one hop, because upstream allows releases to be skipped. Where a release says from
//! which version on it can be reached, the way goes over releases that close the gap, as few as
//! possible. What has to be done on the way is collected from *every* release that is crossed, skipped
//! or not.

use semver::Version;
use serde::Serialize;

use crate::{
    choose::{Environment, holds},
    model::{Catalog, Driver, Implementation, Release, Step},
};

/// One change of release.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Hop {
    /// The release it ends at.
    pub to: Version,
    /// To be done, or made sure of, before.
    pub before: Vec<Step>,
    /// To be done afterwards.
    pub after: Vec<Step>,
}

/// The changes that lead from what runs to what should, in order.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Path {
    /// What runs.
    pub from: Version,
    /// At least one.
    pub hops: Vec<Hop>,
}

impl Path {
    /// One step back, which only ever happens because the admin asked for it.
    pub(crate) fn back(from: Version, to: Version) -> Self {
        Self { from, hops: vec![Hop { to, before: Vec::new(), after: Vec::new() }] }
    }
}

/// The shortest way, if there is one. `may_stop` says where the driver can run here; a way never stops
/// elsewhere.
pub(crate) fn find(
    catalog: &Catalog,
    seen: &Environment,
    (driver, whose): (Driver, Implementation),
    from: &Version,
    to: &Release,
    may_stop: &dyn Fn(&Release) -> bool,
) -> Option<Path> {
    let reach = |release: &Release| release.upgrade_from.clone().unwrap_or(Version::new(0, 0, 0));
    let mut stops = vec![to];
    while let Some(next) = stops.last()
        && reach(next) > *from
    {
        // Bounds are all of the form "from this version on", so the stop that reaches back farthest is
        // never worse than another; of two that reach as far the newer has fewer steps left after it.
        let bound = reach(next);
        let stop = catalog
            .of(driver, whose)
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
            .of(driver, whose)
            .filter(|release| release.version > at && release.version <= stop.version)
            .collect();
        let collect = |steps: fn(&Release) -> &Vec<Step>| {
            let mut all: Vec<Step> = Vec::new();
            for step in crossed.iter().flat_map(|release| steps(release)) {
                if holds(&step.when, seen) && !all.iter().any(|other| other.id == step.id) {
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
