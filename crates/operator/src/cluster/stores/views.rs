//! Which caches have a complete view, and why the others have none.

use std::sync::Arc;

use api::VDOConfig;
use futures::FutureExt;
use health::facts::{AccessReview, Known};
use k8s_openapi::api::apps::v1::{DaemonSet, Deployment};
use kube::{Resource, runtime::reflector::Store};

use super::Stores;
use crate::cluster::site;

/// DaemonSets and Deployments.
pub(crate) type Workloads = (Vec<Arc<DaemonSet>>, Vec<Arc<Deployment>>);

impl Stores {
    /// Whether every cache has a view or a reason why it has none.
    pub(crate) fn is_tried(&self) -> bool {
        self.is_store_tried(&self.configs)
            && self.is_store_tried(&self.vcenters)
            && self.is_store_tried(&self.compatibility)
            && self.is_store_tried(&self.daemon_sets)
            && self.is_store_tried(&self.deployments)
            && self.is_store_tried(&self.secrets)
            && self.is_store_tried(&self.maps)
            && self.nodes.is_tried()
            && self.pods.is_tried()
            && self.roles.is_tried()
            && self.bindings.is_tried()
            && self.attachments.is_tried()
            && self.csi_nodes.is_tried()
            && self.volumes.is_tried()
            && self.claims.is_tried()
            && self.classes.is_tried()
            && self.claim_warnings.is_tried()
            && self.site.is_tried()
    }

    fn is_store_tried<K: Resource<DynamicType = ()> + Clone + 'static>(
        &self,
        store: &Store<K>,
    ) -> bool {
        is_ready(store) || self.interruptions.last(&K::kind(&())).is_some()
    }

    /// Known if this store has a complete view.
    fn view<K: Resource<DynamicType = ()> + Clone + 'static>(&self, store: &Store<K>) -> Known<()> {
        if is_ready(store) {
            return ().into();
        }
        match self.interruptions.last(&K::kind(&())) {
            Some(error) => Known::unknown(&error.reason),
            None => Known::unknown("it has not been listed yet"),
        }
    }

    /// Known if the VDOConfigs are; a cluster without their CRD has none.
    pub(crate) fn configs_view(&self) -> Known<()> {
        let error = self.interruptions.last(&VDOConfig::kind(&()));
        if error.is_some_and(|error| error.is_undefined) {
            return ().into();
        }
        self.view(&self.configs)
    }

    /// The workloads that can belong to a driver or to a network plugin.
    pub(crate) fn workloads(&self) -> Known<Workloads> {
        let views = [self.view(&self.daemon_sets), self.view(&self.deployments)];
        match views.into_iter().find(|view| view.get().is_none()) {
            Some(Known::Unknown { reason }) => Known::Unknown { reason },
            _ => (self.daemon_sets.state(), self.deployments.state()).into(),
        }
    }

    /// Known if the Secrets in the operator's namespace are.
    pub(crate) fn secrets_view(&self) -> Known<()> {
        self.view(&self.secrets)
    }

    /// The permissions that VDO lacks, according to failed reads.
    pub(crate) fn missing_permissions(&self) -> Known<Vec<AccessReview>> {
        let mut reviews = Vec::new();
        let mut review = |group: &str, resource: &str, purpose: &str, known: Known<()>| {
            let refused = known.reason().is_some_and(|reason| reason.contains("forbidden"));
            if refused {
                reviews.push(AccessReview::to_list(group, resource, purpose));
            }
        };
        let storage = "storage.k8s.io";
        let registered = "checking the registration of the storage driver on the nodes";
        review(storage, "csinodes", registered, self.csi_nodes.read(|_| ()));
        review(storage, "storageclasses", "checking StorageClasses", self.classes.read(|_| ()));
        let compared = "comparing volumes with vCenter";
        review("", "persistentvolumes", compared, self.volumes.read(|_| ()));
        let waiting = "checking pending claims";
        review("", "persistentvolumeclaims", waiting, self.claims.read(|_| ()));
        let reasons = "reporting the reasons of failures";
        review("", "events", reasons, self.claim_warnings.read(|_| ()));
        let leases = site::map(&self.site.leases(), |_| ());
        review("coordination.k8s.io", "leases", "checking the leaders of the drivers", leases);
        let (group, drivers) =
            ("rbac.authorization.k8s.io", "distinguishing drivers from lookalikes");
        review(group, "clusterroles", drivers, self.roles.read(|_| ()));
        review(group, "clusterrolebindings", drivers, self.bindings.read(|_| ()));
        review("", "nodes", "finding the VMs of nodes", self.nodes.read(|_| ()));
        let run = "checking the state of the drivers";
        review("", "pods", run, self.pods.read(|_| ()));
        review("apps", "daemonsets", run, self.view(&self.daemon_sets));
        review("apps", "deployments", run, self.view(&self.deployments));
        let read = "reading the configuration of VDO";
        review(api::GROUP, "vdoconfigs", read, self.view(&self.configs));
        review(api::GROUP, "vspherecloudconfigs", read, self.view(&self.vcenters));
        let stuck = "checking stuck volumes";
        review(storage, "volumeattachments", stuck, self.attachments.read(|_| ()));
        reviews.extend(self.site.missing_permissions());
        Known::Known(reviews)
    }
}

fn is_ready<K: Resource<DynamicType = ()> + Clone + 'static>(store: &Store<K>) -> bool {
    store.wait_until_ready().now_or_never().is_some()
}
