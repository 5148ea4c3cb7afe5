//! Maps workloads to drivers.

use std::collections::BTreeMap;

use catalog::{Driver, Implementation};
use k8s_openapi::api::core::v1::{Pod, PodTemplateSpec};
use kube::ResourceExt;
use plan::{facts::WorkloadRole, names};

use super::pods::is_owner;
use crate::allowed_namespaces;

/// Whether a workload looks like part of a driver.
pub(crate) fn is_relevant(
    kind: &str,
    object: &impl ResourceExt,
    template: Option<&PodTemplateSpec>,
) -> bool {
    part(kind, object, template).is_some()
}

/// The driver and the part of it that a workload is, under any name it is installed with: by upstream's
/// manifests and charts, by Rancher or by OpenShift.
pub(crate) fn part(
    kind: &str,
    object: &impl ResourceExt,
    template: Option<&PodTemplateSpec>,
) -> Option<(Driver, WorkloadRole)> {
    let name = object.name_any();
    let spec = template.and_then(|template| template.spec.as_ref());
    let images = spec.into_iter().flat_map(|spec| &spec.containers);
    let images: Vec<&str> = images.filter_map(|c| c.image.as_deref()).map(path).collect();
    let runs = |test: &dyn Fn(&str) -> bool| images.iter().any(|image| test(image));
    let storage = ["vsphere-csi-", "vmware-vsphere-csi-driver-"];
    let is_storage = |task: &str| {
        storage
            .iter()
            .any(|start| name.strip_prefix(start).is_some_and(|rest| rest.starts_with(task)))
    };
    match () {
        () if name == "vsphere-cloud-controller-manager" || runs(&is_cpi) => {
            Some((Driver::Cpi, WorkloadRole::Controller))
        }
        () if is_storage("node") => Some((Driver::Csi, WorkloadRole::Node)),
        () if is_storage("controller") => Some((Driver::Csi, WorkloadRole::Controller)),
        () if runs(&is_csi) && kind == "DaemonSet" => Some((Driver::Csi, WorkloadRole::Node)),
        () if runs(&is_csi) => Some((Driver::Csi, WorkloadRole::Controller)),
        () if is_labelled(object.labels()) => Some((Driver::Csi, WorkloadRole::Helper)),
        () => None,
    }
}

/// Whether an image is the storage driver's.
fn is_csi(image: &str) -> bool {
    image.contains("vsphere") && image.contains("csi") && image.ends_with("driver")
}

/// Whether an image is the cloud controller's.
fn is_cpi(image: &str) -> bool {
    image.contains("cloud-provider-vsphere") && !image.contains("csi")
        || image.ends_with("vsphere-cloud-controller-manager")
        || image.ends_with(Implementation::CLOUD_CONTROLLER_IMAGE)
}

/// The image without tag and digest. A registry port is not a tag, and stays.
fn path(image: &str) -> &str {
    let image = image.split('@').next().unwrap_or(image);
    match image.rsplit_once(':') {
        Some((path, tag)) if !tag.contains('/') => path,
        _ => image,
    }
}

/// Whether a workload carries our label in a namespace where only admins can write it.
pub(crate) fn is_ours_by_label(object: &impl ResourceExt) -> bool {
    allowed_namespaces::has(&object.namespace().unwrap_or_default()) && is_labelled(object.labels())
}

pub(crate) fn is_labelled(labels: &BTreeMap<String, String>) -> bool {
    labels.get(names::MANAGED_BY_LABEL).is_some_and(|value| value == names::MANAGED_BY)
}

/// The driver's version: from our label, otherwise from the tag of the driver's image. Sidecar containers
/// have their own versions. A label that VDO did not write is the version of a chart, which may install an
/// older driver in an older cluster.
pub(crate) fn version(
    labels: &BTreeMap<String, String>,
    template: Option<&PodTemplateSpec>,
) -> Option<String> {
    let own = labels.get(names::VERSION_LABEL).filter(|_| is_labelled(labels));
    own.cloned().or_else(|| {
        let image = driver_image(template?)?;
        let tag = image.split('@').next()?.rsplit_once(':')?.1;
        Some(tag.trim_start_matches('v').to_owned())
    })
}

/// The image of the driver itself, not of a sidecar.
fn driver_image(template: &PodTemplateSpec) -> Option<&str> {
    let containers = &template.spec.as_ref()?.containers;
    let mut images = containers.iter().filter_map(|container| container.image.as_deref());
    images.find(|image| is_csi(path(image)) || is_cpi(path(image)))
}

/// The implementation that the driver's image belongs to.
pub(crate) fn implementation(template: Option<&PodTemplateSpec>) -> Option<Implementation> {
    Some(Implementation::of_image(path(driver_image(template?)?)))
}

/// Whether a pod belongs to this workload.
pub(crate) fn belongs_to(pod: &Pod, kind: &str, name: &str) -> bool {
    pod.owner_references().iter().any(|owner| is_owner(&owner.kind, &owner.name, kind, name))
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::apps::v1::Deployment;
    use serde_json::json;

    use super::*;

    fn part_of(name: &str, kind: &str, image: &str) -> Option<(Driver, WorkloadRole)> {
        let deployment: Deployment = serde_json::from_value(json!({
            "metadata": {"name": name},
            "spec": {"selector": {}, "template": {"spec": {"containers": [{"name": "c", "image": image}]}}},
        }))
        .unwrap();
        part(kind, &deployment, deployment.spec.as_ref().map(|spec| &spec.template))
    }

    #[test]
    fn a_driver_is_known_by_its_image_whatever_it_is_called() {
        let controller = Some((Driver::Csi, WorkloadRole::Controller));
        let node = Some((Driver::Csi, WorkloadRole::Node));
        let cloud = Some((Driver::Cpi, WorkloadRole::Controller));
        let upstream = "registry.k8s.io/csi-vsphere/driver:v3.7.0@sha256:00";
        assert_eq!(part_of("my-storage", "Deployment", upstream), controller);
        assert_eq!(part_of("my-storage", "DaemonSet", upstream), node);
        let rancher =
            "registry:5000/rancher/mirrored-cloud-provider-vsphere-csi-release-driver:v2.6.2";
        assert_eq!(part_of("storage", "Deployment", rancher), controller);
        let rancher = "rancher/mirrored-cloud-provider-vsphere-cpi-release-manager:v1.27.0";
        assert_eq!(part_of("cpi", "DaemonSet", rancher), cloud);
        let chart = "registry.k8s.io/cloud-pv-vsphere/cloud-provider-vsphere:v1.36.0";
        assert_eq!(part_of("release-vsphere-cpi", "DaemonSet", chart), cloud);
    }

    #[test]
    fn a_driver_is_known_by_its_name_whatever_it_runs() {
        let openshift = "quay.io/openshift-release-dev/ocp-v4.0-art-dev@sha256:00";
        let controller = Some((Driver::Csi, WorkloadRole::Controller));
        assert_eq!(
            part_of("vmware-vsphere-csi-driver-controller", "Deployment", openshift),
            controller
        );
        let node = Some((Driver::Csi, WorkloadRole::Node));
        assert_eq!(part_of("vsphere-csi-node-windows", "DaemonSet", openshift), node);
    }

    #[test]
    fn our_label_counts_only_where_admins_write_it() {
        let labelled = |namespace: &str| -> Deployment {
            let labels = json!({names::MANAGED_BY_LABEL: names::MANAGED_BY});
            let metadata = json!({"name": "x", "namespace": namespace, "labels": labels});
            serde_json::from_value(json!({"metadata": metadata})).unwrap()
        };
        assert!(is_ours_by_label(&labelled("kube-system")));
        assert!(!is_ours_by_label(&labelled("tenant")));
    }

    #[test]
    fn the_version_is_that_of_the_driver_and_not_of_a_sidecar() {
        let template: PodTemplateSpec = serde_json::from_value(json!({"spec": {"containers": [
            {"name": "csi-attacher", "image": "registry.k8s.io/sig-storage/csi-attacher:v4.9.0"},
            {"name": "driver", "image": "registry.k8s.io/csi-vsphere/driver:v3.7.0"},
        ]}}))
        .unwrap();
        assert_eq!(version(&BTreeMap::new(), Some(&template)).as_deref(), Some("3.7.0"));
        // A chart's version is not the version of the driver it installs.
        let mut labels = BTreeMap::from([(names::VERSION_LABEL.to_owned(), "3.8.0".to_owned())]);
        assert_eq!(version(&labels, Some(&template)).as_deref(), Some("3.7.0"));
        labels.insert(names::MANAGED_BY_LABEL.into(), names::MANAGED_BY.into());
        assert_eq!(version(&labels, Some(&template)).as_deref(), Some("3.8.0"));
    }

    #[test]
    fn other_workloads_are_no_drivers() {
        assert_eq!(part_of("web", "Deployment", "example.com/web:1"), None);
        assert_eq!(
            part_of(
                "snapshot-controller",
                "Deployment",
                "registry.k8s.io/sig-storage/snapshot-controller:v8"
            ),
            None
        );
        assert_eq!(
            part_of("detector", "Deployment", "example.com/vsphere-problem-detector:1"),
            None
        );
    }
}
