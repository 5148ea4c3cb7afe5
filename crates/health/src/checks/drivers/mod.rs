//! The running drivers.

mod accounts;
mod added_fields;
mod configuration;
mod controller_pending;
mod crash_logs;
mod crashes;
mod definitions;
mod features;
pub(super) mod images;
mod kubelet_path;
mod leases;
mod pod_security;
mod provisioner;
mod release;
mod rollout;
mod second_driver;
mod webhooks;

use api::finding::{Definition, Subject};

use super::prelude::cluster_subject;
use crate::{
    check::{Check, Hit, Sink},
    facts::{InstalledDriver, Pod},
    view::FactsView,
};

pub(super) const CHECKS: &[&Check] = &[
    &controller_pending::CHECK,
    &images::CHECK,
    &crashes::CHECK,
    &definitions::CHECK,
    &crash_logs::CHECK,
    &features::CHECK,
    &webhooks::CHECK,
    &kubelet_path::CHECK,
    &pod_security::CHECK,
    &provisioner::CHECK,
    &leases::CHECK,
    &second_driver::CHECK,
    &configuration::CHECK,
    &release::CHECK,
    &rollout::CHECK,
    &accounts::CHECK,
    &added_fields::CHECK,
];

fn hit(definition: &'static Definition, driver: &InstalledDriver, pod: &Pod) -> Hit {
    Hit::new(definition, Subject::kubernetes("Pod", Some(&driver.namespace), &pod.name))
        .with("pod", &pod.name)
        .with("namespace", &driver.namespace)
        .driver(&driver.name)
}

/// Records a question as unanswered for each driver whose state is unknown.
fn report_unknown_drivers(view: &FactsView<'_>, question: &str, sink: &mut Sink) {
    let drivers = &view.facts.cluster.drivers;
    sink.need(&drivers.cloud, cluster_subject, question);
    sink.need(&drivers.storage, cluster_subject, question);
}
