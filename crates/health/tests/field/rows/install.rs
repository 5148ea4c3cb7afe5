//! Symptoms 1 to 17: installing and configuring the storage driver.

use super::*;

pub(super) const ROWS: &[Row] = &[
    row(
        "1",
        "vsphere-csi-node crashes: no matches for kind \"CSINodeTopology\"",
        "the controller is Pending, so the kind was never defined",
        &["VDO-1601"],
        &["VDO-1604", "VDO-1605"],
        |facts| {
            pending(
                facts.storage_driver(),
                "0/24 nodes are available: didn't match Pod's node affinity/selector",
            );
            facts.no_crds();
            let line =
                "no matches for kind \"CSINodeTopology\" in version \"cns.vmware.com/v1alpha1\"";
            crashing(facts.storage_driver(), 1, "node-pod-of-row-1", line);
        },
    ),
    row(
        "2",
        "timed out while waiting for topology labels to be updated in CSINodeTopology",
        "the syncer noted an error for the node",
        &["VDO-1606"],
        &[],
        |facts| {
            facts.node("worker-1").topology_error =
                Some("failed to connect to vCenter".into()).into();
        },
    ),
    row(
        "3",
        "failed to retrieve nodeVM using the node manager: virtual machine wasn't found",
        "no vCenter shows a VM with the node's uuid",
        &["VDO-1201"],
        &[],
        |facts| facts.inventory().vms.retain(|_, vm| vm.name != "worker-2"),
    ),
    clashing(
        row(
            "4",
            "controller and syncer exit: csiNodeAdd: failed for node",
            "a bare-metal node is registered with the storage driver",
            &["VDO-1223"],
            &["VDO-1604"],
            |facts| {
                let node = Node {
                    name: "metal-1".into(),
                    provider_id: Some("metal://rack-7".into()),
                    system_uuid: "rack-7".into(),
                    csi: Known::Known(Some(CsiEntry {
                        node_id: "rack-7".into(),
                        ..CsiEntry::default()
                    })),
                    ..facts.node("worker-1").clone()
                };
                let node = Node { topology_error: None.into(), ..node };
                facts.cluster.nodes.get_mut().unwrap().insert("metal-1".into(), node);
                let line = "csiNodeAdd: failed for node metal-1";
                crashing(facts.storage_driver(), 0, "controller-of-row-4", line);
            },
        ),
        &["29"],
    ),
    clashing(
        row(
            "5",
            "failed to get shared datastores in kubernetes cluster. Error: <nil>",
            "no zones, and one host does not mount the datastore all others share",
            &["VDO-1501"],
            &["VDO-1504", "VDO-1527"],
            |facts| {
                facts.wanted.storage.as_mut().unwrap().categories.clear();
                facts.storage_driver().provisioner_topology = Some(false);
                facts.inventory().hosts.get_mut("host-4").unwrap().datastores.remove("datastore-1");
                claim(
                    facts,
                    "of-row-5",
                    false,
                    "failed to get shared datastores in kubernetes cluster",
                );
            },
        ),
        &["32", "35"],
    ),
    row(
        "6",
        "Datastore specified in the storage class is not accessible to all nodes",
        "the account lacks Datastore.FileManagement on the datastore a StorageClass names",
        &["VDO-1402"],
        &["VDO-1527"],
        |facts| {
            withhold(facts, EntityKind::Datastore, Some("shared"), "Datastore.FileManagement");
            claim(
                facts,
                "of-row-6",
                false,
                "specified in the storage class is not accessible to all nodes",
            );
            let claims = facts.storage.pending.get_mut().unwrap();
            claims.last_mut().unwrap().class = "shared".into();
        },
    ),
    row(
        "7",
        "createSpecs.datastores is empty",
        "the account lacks Datastore.FileManagement everywhere",
        &["VDO-1402"],
        &["VDO-1527"],
        |facts| {
            withhold(facts, EntityKind::Datastore, None, "Datastore.FileManagement");
            claim(facts, "of-row-7", false, "CnsCreateVolume: createSpecs.datastores is empty");
        },
    ),
    row(
        "8",
        "NoPermission on provisioning",
        "the account cannot read the hosts",
        &["VDO-1404"],
        &["VDO-1527"],
        |facts| {
            withhold(facts, EntityKind::Host, None, "System.Read");
            claim(facts, "of-row-8", false, "ServerFaultCode: NoPermission");
        },
    ),
    row(
        "9",
        "CNS volumes vanish: volumeID not found in QueryVolume, not a CNS volume",
        "another cluster has the same cluster id",
        &["VDO-1512"],
        &["VDO-1515"],
        |facts| {
            facts.storage.cluster_id.also_used_by = vec!["staging".to_owned()].into();
            facts.storage.cns.get_mut().unwrap().remove(&handle(10));
        },
    ),
    row(
        "10",
        "Cluster ID is present in vSphere Config Secret as well as in ConfigMap",
        "the id is configured and was generated too",
        &["VDO-1513"],
        &["VDO-1604"],
        |facts| {
            facts.storage.cluster_id.generated = Some("8e2f6f3c".into());
            let line = "Cluster ID is present in vSphere Config Secret as well as in \
                        vsphere-csi-cluster-id ConfigMap. Please remove one";
            crashing(facts.storage_driver(), 0, "controller-of-row-10", line);
        },
    ),
    row(
        "11",
        "username is invalid, make sure it is a fully qualified domain username",
        "the user name has no domain",
        &["VDO-1307"],
        &["VDO-1604"],
        |facts| {
            facts.vcenter().user = "k8s".into();
            let line = "username is invalid, make sure it is a fully qualified domain username";
            crashing(facts.storage_driver(), 0, "controller-of-row-11", line);
        },
    ),
    row(
        "12",
        "unquoted '\\' must be followed by new line or double quote",
        "a backslash in the configuration is not escaped",
        &["VDO-1607"],
        &["VDO-1604"],
        |facts| {
            let line = r"failed to parse config: 5:17: unquoted '\' must be followed by new line or double quote";
            crashing(facts.storage_driver(), 0, "controller-of-row-12", line);
        },
    ),
    row(
        "13",
        "Cannot complete login due to an incorrect user name or password",
        "vCenter refuses the password",
        &["VDO-1305"],
        &["VDO-1604"],
        |facts| {
            let reason = "Cannot complete login due to an incorrect user name or password.";
            facts.vcenter().login = Login::Refused { reason: reason.into() }.into();
            crashing(facts.storage_driver(), 0, "controller-of-row-13", reason);
        },
    ),
    row(
        "14",
        "ErrImagePull: Project cloud-provider-vsphere has been deleted",
        "the storage driver's image is of the old registry",
        &["VDO-1602"],
        &["VDO-1621"],
        |facts| {
            let driver = facts.storage_driver();
            driver.workloads[0].pods[0].containers[0].image =
                "gcr.io/cloud-provider-vsphere/csi/release/driver:v3.3.1".into();
            driver.workloads[0].ready -= 1;
        },
    ),
    row(
        "15",
        "vSAN file service is not supported in one or more vCenter(s)",
        "vCenter 6.7 Update 3 with storage driver 3.7",
        &["VDO-1310"],
        &["VDO-1604"],
        |facts| {
            facts.vcenter().about.get_mut().unwrap().version = Version::new(6, 7, 3);
            let line = "vSAN file service is not supported in one or more vCenter(s)";
            crashing(facts.storage_driver(), 0, "controller-of-row-15", line);
        },
    ),
    row(
        "16",
        "Could not find the multi-vcenter-csi-topology feature state",
        "the feature ConfigMap is of an older release",
        &["VDO-1609"],
        &["VDO-1604"],
        |facts| {
            let name = "multi-vcenter-csi-topology".to_owned();
            facts.storage_driver().release_features.insert(name, "true".into());
            let line = "Could not find the multi-vcenter-csi-topology feature state";
            crashing(facts.storage_driver(), 0, "controller-of-row-16", line);
        },
    ),
    row(
        "17",
        "controller Pending: didn't match Pod's node affinity/selector, anti-affinity",
        "fewer control plane nodes than replicas",
        &["VDO-1601"],
        &["VDO-1621"],
        |facts| {
            pending(
                facts.storage_driver(),
                "0/24 nodes are available: 3 node(s) didn't match pod anti-affinity rules",
            );
            facts.storage_driver().workloads[0].ready -= 1;
        },
    ),
];
