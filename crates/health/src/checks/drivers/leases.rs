//! Somebody holds each lease.

use crate::checks::prelude::*;

pub(super) const CHECK: Check = Check {
    name: "drivers/leases",
    gives: &[codes::LEASE_STALE],
    run: Run::Cluster(&[Part::Pods], check),
};

/// How long after its end a lease may stay unclaimed.
const PATIENCE: i64 = 120;

/// Whether the driver was taken away: nobody needs to lead then.
fn is_gone(view: &View<'_>, driver: &str) -> bool {
    let drivers = &view.facts.cluster.drivers;
    let drivers = [("CPI", &drivers.cloud), ("CSI", &drivers.storage)];
    drivers.iter().any(|(name, known)| *name == driver && matches!(known, Known::Known(None)))
}

fn check(view: &View<'_>, sink: &mut Sink) {
    let question = "whether somebody holds the drivers' leases";
    let Some(leases) = sink.need(&view.facts.cluster.leases, cluster_subject, question) else {
        return;
    };
    for lease in leases {
        let age = view.seconds_since(lease.renewed);
        if is_gone(view, &lease.driver) {
            continue;
        }
        if age > i64::from(lease.seconds) + PATIENCE {
            sink.raise(
                Hit::new(
                    codes::LEASE_STALE,
                    Subject::kubernetes("Lease", Some(&lease.namespace), &lease.name),
                )
                .with("lease", format!("{}/{}", lease.namespace, lease.name))
                .with("namespace", &lease.namespace)
                .with("holder", &lease.holder)
                .with("age", span(age))
                .driver(&lease.driver),
            );
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lease_nobody_renews_is_named() {
        shows(
            &CHECK,
            &["VDO-1616"],
            |facts| {
                let hour_ago = jiff::Timestamp::from_second(facts.now.as_second() - 3600).unwrap();
                facts.cluster.leases.get_mut().unwrap()[0].renewed = hour_ago;
            },
            |facts| facts.cluster.leases = Known::unknown("VDO may not read leases"),
        );
    }
}
