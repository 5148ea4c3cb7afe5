//! Zones and regions.

mod categories;
mod host_groups;
mod labels;
mod tags;
mod zone_and_region;

use crate::check::Check;

pub(super) const CHECKS: &[&Check] = &[
    &categories::CHECK,
    &tags::CHECK,
    &labels::CHECK,
    &zone_and_region::CHECK,
    &host_groups::CHECK,
];
