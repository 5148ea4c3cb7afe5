//! VDO itself, and what it may do.

mod catalog;
mod fights;
mod network;
mod platform;
mod rights;

use crate::check::Check;

pub(super) const CHECKS: &[&Check] =
    &[&rights::CHECK, &catalog::CHECK, &fights::CHECK, &network::CHECK, &platform::CHECK];
