//! The cluster and the vCenters that a release has to fit.

use std::cmp::Ordering;

use jiff::civil::Date;

use crate::{
    image::Rewrite,
    model::{Condition, Vcenter},
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

impl Environment {
    /// True if the condition holds here. A condition on vSphere holds if at least one vCenter meets it.
    pub(crate) fn meets(&self, condition: &Condition) -> bool {
        let Condition {
            vsphere_min,
            vsphere_max,
            kubernetes_min,
            kubernetes_max,
            distributions,
            windows,
            topology,
            several_vcenters,
        } = condition;
        let minor = self.kubernetes.as_minor();
        let vsphere = vsphere_min.is_none() && vsphere_max.is_none()
            || self.vcenters.iter().any(|vcenter| {
                vsphere_min.is_none_or(|min| min.compare(vcenter.version) != Ordering::Less)
                    && vsphere_max
                        .is_none_or(|max| max.compare(vcenter.version) != Ordering::Greater)
            });
        vsphere
            && kubernetes_min.is_none_or(|min| minor >= min)
            && kubernetes_max.is_none_or(|max| minor <= max)
            && (distributions.is_empty() || distributions.contains(&self.distribution))
            && windows.is_none_or(|windows| windows == self.windows_nodes)
            && topology.is_none_or(|topology| topology == self.topology)
            && several_vcenters.is_none_or(|several| several == (self.vcenters.len() > 1))
    }
}
