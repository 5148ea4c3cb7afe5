//! The registries serve the drivers' images.

use api::finding::quoted;

use crate::{
    checks::{
        meaning::{self, About, Meanings},
        prelude::*,
    },
    facts::{Container, InstalledDriver, Workload},
};

pub(super) const CHECK: Check = Check {
    name: "drivers/images",
    gives: &[codes::IMAGE_MOVED, codes::IMAGE_NOT_PULLED],
    run: CheckScope::Cluster(meaning::PARTS, check),
};

/// The registry that was shut down.
const GONE: &str = "gcr.io/cloud-provider-vsphere/";

fn check(view: &FactsView<'_>, sink: &mut Sink) {
    super::report_unknown_drivers(view, "whether nodes can pull the drivers' images", sink);
    let meanings = Meanings::new(view);
    for driver in view.drivers() {
        for workload in &driver.workloads {
            for pod in &workload.pods {
                for container in &pod.containers {
                    if container.image.starts_with(GONE) {
                        sink.raise(moved(driver, workload, container));
                    } else if let Some(message) = not_pulled(container) {
                        let hit = super::hit(codes::IMAGE_NOT_PULLED, driver, pod);
                        let node = pod.node.as_deref();
                        let about =
                            About { node, writer: Some((driver, workload)), ..About::default() };
                        let known = meanings.explain(message, &about);
                        let meaning = known.map_or(String::new(), |known| known.text());
                        sink.raise(
                            hit.shared("image", &container.image)
                                .shared("message", message)
                                .shared("meaning", meaning),
                        );
                    }
                }
            }
        }
    }
}

fn not_pulled(container: &Container) -> Option<&str> {
    let waiting = container.waiting.as_ref()?;
    let pulling = ["ErrImagePull", "ImagePullBackOff", "InvalidImageName"];
    pulling.contains(&waiting.reason.as_str()).then_some(&waiting.message)
}

fn moved(driver: &InstalledDriver, workload: &Workload, container: &Container) -> Hit {
    let name = workload.argument();
    let subject = Subject::kubernetes(&workload.kind, Some(&driver.namespace), &workload.name);
    let hit = Hit::new(codes::IMAGE_MOVED, subject)
        .with("workload", &name)
        .with("image", &container.image)
        .with("namespace", &driver.namespace)
        .with("container", &container.name)
        .driver(&driver.name);
    match successor(&container.image) {
        Some(image) => {
            let step = format!(
                "kubectl set image --namespace {} {} {}={}",
                quoted(&driver.namespace),
                quoted(&name),
                quoted(&container.name),
                quoted(&image)
            );
            hit.with("step", step)
                .shared("advice", "Or let VDO do it: remediation.imageRegistry: Fix")
        }
        None => hit
            .with("step", "")
            .shared("advice", "This release has no image in the new registry: upgrade the driver; vdoctl plan shows the release"),
    }
}

/// The new location of an image of the old registry; `None` if there is none.
pub(crate) fn successor(image: &str) -> Option<String> {
    let path = image.strip_prefix(GONE)?;
    let (name, tag) = path.split_once(':')?;
    let version: Version = tag.parse().ok()?;
    match name {
        "csi/release/driver" | "csi/release/syncer" => {
            let kept = version >= Version::new(3, 1, 2);
            let name = name.rsplit('/').next()?;
            kept.then(|| format!("registry.k8s.io/csi-vsphere/{name}:{tag}"))
        }
        "cpi/release/manager" => {
            let kept = version >= Version::new(1, 28, 0);
            kept.then(|| format!("registry.k8s.io/cloud-pv-vsphere/cloud-provider-vsphere:{tag}"))
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::facts::Waiting;

    #[test]
    fn an_image_of_the_registry_that_is_gone_is_reported_before_it_is_needed() {
        shows(
            &CHECK,
            &["VDO-1602"],
            |facts| {
                let container = &mut facts.storage_driver().workloads[0].pods[0].containers[0];
                container.image = "gcr.io/cloud-provider-vsphere/csi/release/driver:v3.2.0".into();
            },
            |facts| facts.cluster.drivers.storage = Known::unknown("VDO cannot list pods"),
        );
    }

    #[test]
    fn an_image_without_a_successor_is_not_replaced_by_a_command() {
        let mut facts = healthy();
        let container = &mut facts.storage_driver().workloads[0].pods[0].containers[0];
        container.image = format!("{GONE}csi/release/driver:v2.7.3");
        let findings = crate::Examination::run(facts).report().all();
        let finding = findings.iter().find(|finding| finding.code == "VDO-1602").unwrap();
        let [advice] = &finding.remedy[..] else { panic!("{finding:#?}") };
        assert!(advice.starts_with("# This release has no image in the new registry"), "{advice}");
    }

    #[test]
    fn successors_are_reported_where_there_are_any() {
        for (image, expected) in [
            ("csi/release/driver:v3.3.1", Some("registry.k8s.io/csi-vsphere/driver:v3.3.1")),
            ("csi/release/syncer:v2.7.3", None),
            (
                "cpi/release/manager:v1.28.1",
                Some("registry.k8s.io/cloud-pv-vsphere/cloud-provider-vsphere:v1.28.1"),
            ),
            ("cpi/release/manager:latest", None),
        ] {
            assert_eq!(successor(&format!("{GONE}{image}")).as_deref(), expected, "{image}");
        }
    }

    #[test]
    fn an_image_that_cannot_be_pulled_is_reported_with_the_registrys_message() {
        let mut facts = healthy();
        let container = &mut facts.cloud_driver().workloads[0].pods[0].containers[0];
        container.waiting =
            Some(Waiting { reason: "ErrImagePull".into(), message: "401 Unauthorized".into() });
        assert_eq!(codes_of(&CHECK, &facts), ["VDO-1603"]);
    }
}
