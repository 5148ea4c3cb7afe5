//! Privileges of the vCenter account.

mod held;
mod superfluous;
mod tasks;

use crate::check::Check;

pub(super) const CHECKS: &[&Check] = &[&held::CHECK, &superfluous::CHECK, &tasks::CHECK];
