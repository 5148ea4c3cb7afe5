//! Zones and regions.

mod categories;
mod half;
mod host_groups;
mod labels;
mod tags;

use crate::check::Check;

pub(super) const CHECKS: &[&Check] =
    &[&categories::CHECK, &tags::CHECK, &labels::CHECK, &half::CHECK, &host_groups::CHECK];
