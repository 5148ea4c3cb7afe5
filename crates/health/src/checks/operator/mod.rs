//! VDO itself, and what it may do.

mod catalog;
mod conflicts;
mod network;
mod platform;
mod rights;

use crate::check::Check;

pub(super) const CHECKS: &[&Check] =
    &[&rights::CHECK, &catalog::CHECK, &conflicts::CHECK, &network::CHECK, &platform::CHECK];
