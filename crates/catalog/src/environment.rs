//! The cluster and the vCenters that a release has to fit.

use std::cmp::Ordering;

use jiff::civil::Date;

use crate::{
    image::Rewrite,
    model::{Condition, KnownBad, Release, Vcenter},
    version::KubernetesVersion,
};

#[derive(Debug, Clone)]
pub struct Environment {
    /// The API server's version.
    pub kubernetes: KubernetesVersion,
    /// Every vCenter that the driver talks to.
    pub vcenters: Vec<Vcenter>,
    /// The name that conditions use: `vanilla`, `openshift`, `rke2`, ...
    pub distribution: String,
    pub windows_nodes: bool,
    /// True if zones are configured.
    pub topology: bool,
    /// The admin's mirrors; an image that a mirror covers counts as available.
    pub rewrite: Rewrite,
    /// The day that ends of support are compared with. `None` skips the comparison.
    pub today: Option<Date>,
}

/// Whether a condition holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Applies {
    No,
    /// It depends on the versions of ESXi hosts, which are unknown.
    Unknown,
    Yes,
}

impl Environment {
    /// The known faults of a release that occur here.
    pub fn known_faults<'a>(&self, release: &'a Release) -> Vec<&'a KnownBad> {
        let all = release.known_bad.iter();
        all.filter(|fault| self.meets(&fault.when)).collect()
    }

    /// True if the condition holds here.
    pub(crate) fn meets(&self, condition: &Condition) -> bool {
        self.applies(condition) == Applies::Yes
    }

    /// Whether the condition holds here. A condition on vSphere holds if at least one vCenter, with its
    /// hosts, meets all of it.
    pub(crate) fn applies(&self, condition: &Condition) -> Applies {
        let Condition {
            vsphere_min,
            vsphere_max,
            hosts_max,
            kubernetes_min,
            kubernetes_max,
            distributions,
            windows,
            topology,
            several_vcenters,
        } = condition;
        let minor = self.kubernetes.as_minor();
        let elsewhere = kubernetes_min.is_some_and(|min| minor < min)
            || kubernetes_max.is_some_and(|max| minor > max)
            || !distributions.is_empty() && !distributions.contains(&self.distribution)
            || windows.is_some_and(|windows| windows != self.windows_nodes)
            || topology.is_some_and(|topology| topology != self.topology)
            || several_vcenters.is_some_and(|several| several != (self.vcenters.len() > 1));
        if elsewhere {
            return Applies::No;
        }
        if vsphere_min.is_none() && vsphere_max.is_none() && hosts_max.is_none() {
            return Applies::Yes;
        }
        let vcenter = |vcenter: &Vcenter| {
            let outside = vsphere_min
                .is_some_and(|min| min.compare(vcenter.version) == Ordering::Less)
                || vsphere_max.is_some_and(|max| max.compare(vcenter.version) == Ordering::Greater);
            match (hosts_max, vcenter.oldest_host) {
                _ if outside => Applies::No,
                (Some(_), None) => Applies::Unknown,
                (Some(max), Some(host)) if max.compare(host) == Ordering::Greater => Applies::No,
                (None, _) | (Some(_), Some(_)) => Applies::Yes,
            }
        };
        self.vcenters.iter().map(vcenter).max().unwrap_or(Applies::No)
    }
}
