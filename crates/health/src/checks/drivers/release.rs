//! Each driver's release fits the cluster.

use crate::checks::prelude::*;

pub(super) const CHECK: Check = Check {
    name: "drivers/release",
    gives: &[codes::RELEASE_UNSUITABLE],
    run: CheckScope::Cluster(&[Part::Pods], check),
};

fn check(view: &FactsView<'_>, sink: &mut Sink) {
    super::report_unknown_drivers(view, "whether the drivers' releases fit the cluster", sink);
    for driver in view.drivers() {
        let Some(reason) = &driver.unsuitable else { continue };
        let version = driver.version.map_or("of unknown release".to_owned(), |v| v.to_string());
        let hit =
            Hit::new(codes::RELEASE_UNSUITABLE, Subject::kubernetes("Driver", None, &driver.name));
        sink.raise(
            hit.with("driver", &driver.name)
                .with("version", version)
                .with("reason", reason)
                .driver(&driver.name),
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_release_the_catalog_advises_against_is_reported() {
        shows(
            &CHECK,
            &["VDO-1620"],
            |facts| {
                facts.storage_driver().unsuitable = Some("made for Kubernetes 1.28 to 1.30".into());
            },
            |facts| facts.cluster.drivers.storage = Known::unknown("VDO cannot list Deployments"),
        );
    }
}
