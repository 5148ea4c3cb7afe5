//! A controller holds each lease.

use crate::{
    checks::prelude::*,
    facts::{InstalledDriver, Lease},
};

pub(super) const CHECK: Check = Check {
    name: "drivers/leases",
    gives: &[codes::LEASE_STALE],
    run: CheckScope::Cluster(&[Part::Pods], check),
};

/// Seconds that a lease may stay expired before it is a fault.
const GRACE_PERIOD: i64 = 120;

/// Whether the driver was uninstalled, so that no controller needs the lease.
fn is_gone(view: &FactsView<'_>, driver: &str) -> bool {
    let drivers = &view.facts.cluster.drivers;
    let drivers = [("CPI", &drivers.cloud), ("CSI", &drivers.storage)];
    drivers.iter().any(|(name, known)| *name == driver && matches!(known, Known::Known(None)))
}

fn check(view: &FactsView<'_>, sink: &mut Sink) {
    let question = "whether a controller holds each of the drivers' leases";
    let Some(leases) = sink.need(&view.facts.cluster.leases, cluster_subject, question) else {
        return;
    };
    for lease in leases {
        // Nobody renews the leases that an uninstalled driver left behind.
        let Some(driver) = view.drivers().find(|driver| holds(driver, lease)) else { continue };
        let workload = driver.workloads.iter().find(|workload| !workload.name.ends_with("-node"));
        let workload = workload.map_or_else(String::new, |workload| {
            format!("{}/{}", workload.kind.to_ascii_lowercase(), workload.name)
        });
        let age = view.seconds_since(lease.renewed);
        if is_gone(view, &lease.driver) {
            continue;
        }
        sink.recheck(view, lease.renewed, i64::from(lease.seconds) + GRACE_PERIOD);
        if age > i64::from(lease.seconds) + GRACE_PERIOD {
            sink.raise(
                Hit::new(
                    codes::LEASE_STALE,
                    Subject::kubernetes("Lease", Some(&lease.namespace), &lease.name),
                )
                .with("lease", format!("{}/{}", lease.namespace, lease.name))
                .with("namespace", &lease.namespace)
                .with("drivernamespace", &driver.namespace)
                .with("workload", workload)
                .with("holder", &lease.holder)
                .with("renewed", moment(lease.renewed))
                .driver(&lease.driver),
            );
        }
    }
}

/// Whether the lease belongs to this driver. The cloud provider keeps its lease in `kube-system`, wherever
/// it runs.
fn holds(driver: &InstalledDriver, lease: &Lease) -> bool {
    let same_namespace = lease.namespace == driver.namespace;
    driver.name == lease.driver
        && (same_namespace || driver.name == "CPI" && lease.namespace == "kube-system")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn leases_of_an_uninstalled_driver_are_ignored() {
        let mut facts = healthy();
        let mut old = facts.cluster.leases.get().unwrap()[1].clone();
        assert_eq!(old.driver, "CSI");
        old.renewed = jiff::Timestamp::UNIX_EPOCH;
        old.namespace = "old-storage".into();
        facts.cluster.leases.get_mut().unwrap().push(old.clone());
        assert_eq!(codes_of(&CHECK, &facts), [""; 0], "another namespace");
        old.namespace = facts.storage_driver().namespace.clone();
        facts.cluster.leases = vec![old].into();
        assert_eq!(codes_of(&CHECK, &facts), ["VDO-1616"]);
        facts.cluster.drivers.storage = Known::Known(None);
        assert_eq!(codes_of(&CHECK, &facts), [""; 0], "the driver is gone");
    }

    #[test]
    fn a_lease_nobody_renews_is_reported() {
        shows(
            &CHECK,
            &["VDO-1616"],
            |facts| {
                let hour_ago = jiff::Timestamp::from_second(facts.now.as_second() - 3600).unwrap();
                facts.cluster.leases.get_mut().unwrap()[0].renewed = hour_ago;
            },
            |facts| facts.cluster.leases = Known::unknown("VDO cannot read leases"),
        );
    }
}
