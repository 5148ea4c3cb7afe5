//! VDO, its permissions and its environment.

mod catalog;
mod conflicts;
mod network;
mod permissions;
mod platform;

use crate::check::Check;

pub(super) const CHECKS: &[&Check] =
    &[&permissions::CHECK, &catalog::CHECK, &conflicts::CHECK, &network::CHECK, &platform::CHECK];
