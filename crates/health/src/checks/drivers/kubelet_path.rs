//! The storage driver uses the kubelet's directory.

use crate::checks::prelude::*;

pub(super) const CHECK: Check = Check {
    name: "drivers/kubelet_path",
    gives: &[codes::KUBELET_PATH_WRONG],
    run: CheckScope::Cluster(&[Part::Nodes, Part::Pods], check),
};

fn check(view: &FactsView<'_>, sink: &mut Sink) {
    let drivers = &view.facts.cluster.drivers;
    let question = "whether the storage driver uses the right kubelet directory";
    let driver = sink.need(&drivers.storage, cluster_subject, question).and_then(Option::as_ref);
    let used = driver.and_then(|driver| driver.kubelet_path.as_ref());
    let (Some(driver), Some(used)) = (driver, used) else { return };
    let question = "which directory the kubelet uses";
    let Some(actual) = sink.need(&view.facts.cluster.kubelet_path, cluster_subject, question)
    else {
        return;
    };
    // The kubelet registers a driver only if it finds it: one registered node proves the directory,
    // whatever the platform's default. While pods still start, there is no proof.
    let registered = view.nodes().any(|node| node.csi.get().is_none_or(Option::is_some));
    if registered || driver.workloads.iter().any(|workload| workload.changing) {
        return;
    }
    let used = used.trim_end_matches('/');
    if used != actual.trim_end_matches('/') {
        let subject = Subject::kubernetes("DaemonSet", Some(&driver.namespace), "vsphere-csi-node");
        let hit = Hit::new(codes::KUBELET_PATH_WRONG, subject).driver(&driver.name);
        sink.raise(hit.with("used", used).with("actual", actual));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wrong_directory_is_reported_with_the_right_one() {
        shows(
            &CHECK,
            &["VDO-1612"],
            |facts| {
                facts.cluster.kubelet_path = "/var/lib/k0s/kubelet".to_owned().into();
                unregistered(facts);
            },
            |facts| facts.cluster.kubelet_path = Known::unknown("no node was asked"),
        );
    }

    fn unregistered(facts: &mut Facts) {
        let nodes = facts.cluster.nodes.get_mut().unwrap();
        for node in nodes.values_mut() {
            node.csi = Known::Known(None);
        }
    }

    #[test]
    fn a_directory_kubelet_finds_the_driver_in_is_right() {
        let mut facts = healthy();
        facts.storage_driver().kubelet_path = Some("/data/kubelet".into());
        assert_eq!(codes_of(&CHECK, &facts), [""; 0]);
        unregistered(&mut facts);
        facts.storage_driver().workloads[1].changing = true;
        assert_eq!(codes_of(&CHECK, &facts), [""; 0], "not yet");
        facts.storage_driver().workloads[1].changing = false;
        assert_eq!(codes_of(&CHECK, &facts), ["VDO-1612"]);
    }

    #[test]
    fn a_slash_at_the_end_makes_no_difference() {
        let mut facts = healthy();
        facts.storage_driver().kubelet_path.as_mut().unwrap().push('/');
        unregistered(&mut facts);
        assert_eq!(codes_of(&CHECK, &facts), [""; 0]);
    }
}
