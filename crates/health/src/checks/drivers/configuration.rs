//! The Secret with a driver's configuration exists.

use crate::checks::prelude::*;

pub(super) const CHECK: Check = Check {
    name: "drivers/configuration",
    gives: &[codes::CONFIG_SECRET_MISSING],
    run: CheckScope::Cluster(&[Part::Pods], check),
};

fn check(view: &FactsView<'_>, sink: &mut Sink) {
    super::report_unknown_drivers(view, "whether the drivers have their configuration", sink);
    for driver in view.drivers() {
        let question = format!("whether the {} has its configuration", driver.name);
        let found = sink.need(&driver.config_secret, cluster_subject, question);
        let Some(Some((secret, false))) = found else { continue };
        sink.raise(
            Hit::new(
                codes::CONFIG_SECRET_MISSING,
                Subject::kubernetes("Secret", Some(&driver.namespace), secret),
            )
            .with("namespace", &driver.namespace)
            .with("secret", secret)
            .driver(&driver.name),
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missing_secret_is_reported() {
        shows(
            &CHECK,
            &["VDO-1619"],
            |facts| {
                facts.storage_driver().config_secret =
                    Some(("vsphere-config-secret".into(), false)).into();
            },
            |facts| facts.cluster.drivers.cloud = Known::unknown("VDO cannot list DaemonSets"),
        );
    }
}
