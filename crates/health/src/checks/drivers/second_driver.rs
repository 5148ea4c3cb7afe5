//! There is one driver of each kind.

use crate::checks::prelude::*;

pub(super) const CHECK: Check = Check {
    name: "drivers/second_driver",
    gives: &[codes::TWO_DRIVERS],
    run: CheckScope::Cluster(&[Part::Pods], check),
};

fn check(view: &FactsView<'_>, sink: &mut Sink) {
    super::report_unknown_drivers(view, "whether there is a second vSphere driver", sink);
    let own = view.storage_driver().or(view.cloud_driver());
    let own = own.map_or("the managed driver".to_owned(), |driver| {
        format!("the driver in {}", driver.namespace)
    });
    for other in &view.facts.cluster.drivers.others {
        let hit = Hit::new(codes::TWO_DRIVERS, Subject::kubernetes("Workload", None, other));
        sink.raise(hit.with("other", other).with("own", &own));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_second_driver_is_reported() {
        shows(
            &CHECK,
            &["VDO-1617"],
            |facts| {
                facts.cluster.drivers.others = vec!["kube-system/vsphere-csi-controller".into()];
            },
            |facts| facts.cluster.drivers.storage = Known::unknown("VDO cannot list Deployments"),
        );
    }
}
