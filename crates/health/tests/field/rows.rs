//! The 54 symptoms: 45 of the storage driver, 9 of the cloud provider.

use health::{
    facts::{
        Attachment, Claim, Container, CsiEntry, Driver, EntityKind, Facts, Host, Known, Login, Nic,
        Node, Orphans, Pod, Service, ServiceState, Version, Vm, Waiting,
    },
    sample::handle,
};

use crate::shortcuts::Shortcuts;

/// A symptom from the field.
#[derive(Clone, Copy)]
pub(crate) struct Row {
    /// Its number.
    pub(crate) id: &'static str,
    /// What the user sees.
    pub(crate) symptom: &'static str,
    /// What was wrong, as it is produced here.
    pub(crate) fault: &'static str,
    /// The findings that name the cause.
    pub(crate) roots: &'static [&'static str],
    /// Findings that are given too, and marked as consequences.
    pub(crate) derived: &'static [&'static str],
    /// Produces the fault.
    pub(crate) inject: fn(&mut Facts),
    /// Rows it cannot be combined with: the cluster is configured one way or the other.
    pub(crate) clashes: &'static [&'static str],
}

/// Shorthand for rows that can be combined with any other.
const fn row(
    id: &'static str,
    symptom: &'static str,
    fault: &'static str,
    roots: &'static [&'static str],
    derived: &'static [&'static str],
    inject: fn(&mut Facts),
) -> Row {
    Row { id, symptom, fault, roots, derived, inject, clashes: &[] }
}

const fn clashing(row: Row, clashes: &'static [&'static str]) -> Row {
    Row { clashes, ..row }
}

pub(crate) const ROWS: &[Row] = &[
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
            facts.storage_driver().crds.values_mut().for_each(|exists| *exists = false);
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
            facts.node("worker-1").topology_error = Some("failed to connect to vCenter".into());
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
            let node = Node { topology_error: None, ..node };
            facts.cluster.nodes.get_mut().unwrap().insert("metal-1".into(), node);
            let line = "csiNodeAdd: failed for node metal-1";
            crashing(facts.storage_driver(), 0, "controller-of-row-4", line);
        },
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
        "the account may not read the hosts",
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
    row(
        "18",
        "MountVolume.MountDevice failed: disk not attached to node",
        "disk.EnableUUID is off on one VM",
        &["VDO-1203"],
        &["VDO-1520"],
        |facts| {
            facts.vm("worker-3").disk_uuid = false.into();
            facts.vm("worker-3").disk_uuid_set = false;
            attachment(facts, 3, "worker-3", "disk: 6000c29 not attached to node");
        },
    ),
    row(
        "19",
        "DeviceUnsupportedForVmVersion, vmodl.fault.NotSupported",
        "hardware version 11 on one VM",
        &["VDO-1204"],
        &["VDO-1520"],
        |facts| {
            facts.vm("worker-4").hardware = 11;
            attachment(facts, 4, "worker-4", "DeviceUnsupportedForVmVersion");
        },
    ),
    row(
        "20",
        "CNS: Failed to attach disk because missing SCSI controller",
        "all places on four SCSI controllers are taken",
        &["VDO-1205"],
        &["VDO-1520"],
        |facts| {
            let vm = facts.vm("worker-5");
            vm.scsi = vec![health::facts::ScsiController { paravirtual: true, disks: 64 }; 4];
            attachment(
                facts,
                5,
                "worker-5",
                "CNS: Failed to attach disk because missing SCSI controller",
            );
        },
    ),
    row(
        "21",
        "Multi-Attach error: volume is already exclusively attached",
        "a node is down and keeps its volume",
        &["VDO-1225"],
        &["VDO-1520"],
        |facts| {
            facts.node("worker-6").ready = false;
            let held = volume_on(facts, "worker-6");
            push(
                facts,
                &held,
                "worker-7",
                false,
                "Multi-Attach error for volume x: already exclusively attached",
            );
        },
    ),
    row(
        "22",
        "failed to detach: volumeID not found in QueryVolume, VolumeAttachment stuck",
        "vCenter has forgotten the volume",
        &["VDO-1515"],
        &["VDO-1519"],
        |facts| {
            facts.storage.cns.get_mut().unwrap().remove(&handle(11));
            push(
                facts,
                &handle(11),
                "worker-9",
                true,
                "failed to detach: volumeID not found in QueryVolume",
            );
        },
    ),
    row(
        "23",
        "The operation is not allowed in the current state, vim.fault.InvalidState",
        "a deleted node's VM still holds the disk",
        &["VDO-1518"],
        &["VDO-1520"],
        |facts| {
            let zombie = Vm {
                name: "old-worker".into(),
                path: "/DC0/vm/k8s/old-worker".into(),
                bios_uuid: "zombie".into(),
                volumes: vec![handle(12)],
                ..Vm::default()
            };
            facts.inventory().vms.insert("vm-zombie".into(), zombie);
            let node = facts.storage.volumes.get().unwrap()[&handle(12)].node.clone().unwrap();
            push(
                facts,
                &handle(12),
                &node,
                false,
                "The operation is not allowed in the current state",
            );
        },
    ),
    row(
        "24",
        "Failed to retrieve datastore for vol, vim.fault.NotFound",
        "CNS knows the volume, its disk is gone",
        &["VDO-1517"],
        &["VDO-1520"],
        |facts| {
            facts.storage.cns.get_mut().unwrap().get_mut(&handle(13)).unwrap().backed = false;
            push(
                facts,
                &handle(13),
                "worker-10",
                false,
                "Failed to retrieve datastore for vol x: vim.fault.NotFound",
            );
        },
    ),
    row(
        "25",
        "Invalid configuration for device '0', The resource 'volume' is in use",
        "a backup left a snapshot of the node VM",
        &["VDO-1207"],
        &["VDO-1520"],
        |facts| {
            facts.vm("worker-8").snapshots = vec!["nightly".into()];
            attachment(facts, 8, "worker-8", "Invalid configuration for device '0'.");
        },
    ),
    row(
        "26",
        "volume with existing snapshots cannot be expanded",
        "a snapshot only vCenter knows hinders growth",
        &["VDO-1522", "VDO-1523"],
        &[],
        |facts| {
            let volume = facts.storage.volumes.get_mut().unwrap().get_mut(&handle(14)).unwrap();
            volume.expanding = true;
            volume.snapshots.cns = 1;
        },
    ),
    row(
        "27",
        "the number of snapshots on the source volume reaches the configured maximum (3)",
        "three snapshots, and a fourth is asked for",
        &["VDO-1521"],
        &[],
        |facts| {
            let volume = facts.storage.volumes.get_mut().unwrap().get_mut(&handle(15)).unwrap();
            volume.snapshots =
                health::facts::Snapshots { kubernetes: 3, cns: 3, another_asked: true };
        },
    ),
    row(
        "28",
        "failed calling webhook validation.csi.vsphere.vmware.com: x509: certificate has expired",
        "the webhook's certificate has expired",
        &["VDO-1610"],
        &[],
        |facts| {
            let webhook = &mut facts.cluster.webhooks.get_mut().unwrap()[0];
            webhook.certificate.get_mut().unwrap().expires = jiff::Timestamp::UNIX_EPOCH;
        },
    ),
    row(
        "29",
        "globalmount not pre-created, plugins_registry is not a directory",
        "kubelet's directory is elsewhere",
        &["VDO-1612"],
        &["VDO-1621"],
        |facts| {
            facts.cluster.kubelet_path = "/var/lib/k0s/kubelet".to_owned().into();
            facts.storage_driver().workloads[1].ready = 0;
        },
    ),
    row(
        "30",
        "violates PodSecurity",
        "the namespace does not allow privileged pods",
        &["VDO-1613"],
        &["VDO-1621"],
        |facts| {
            let message =
                "pods \"vsphere-csi-node-x\" is forbidden: violates PodSecurity \"baseline\"";
            facts.storage_driver().workloads[1].refused = Some(message.into());
            facts.storage_driver().workloads[1].ready = 0;
        },
    ),
    row(
        "31",
        "liveness: address already in use :9808",
        "another program has the port on the host",
        &["VDO-1614"],
        &["VDO-1604"],
        |facts| {
            let line = "listen tcp :9808: bind: address already in use";
            crashing(facts.storage_driver(), 1, "node-pod-of-row-31", line);
        },
    ),
    clashing(
        row(
            "32",
            "topology category names not specified in the vsphere config secret",
            "the provisioner passes topology on, no categories are configured",
            &["VDO-1615"],
            &["VDO-1527"],
            |facts| {
                facts.wanted.storage.as_mut().unwrap().categories.clear();
                let message = "topology category names not specified in the vsphere config secret";
                claim(facts, "of-row-32", false, message);
            },
        ),
        &["5", "35"],
    ),
    row(
        "33",
        "nodeVM does not have labels for the following categories",
        "a host outside the tagged clusters",
        &["VDO-1702"],
        &["VDO-1606"],
        |facts| {
            let host = Host {
                name: "esx-5.example.com".into(),
                path: "/DC0/host/esx-5.example.com".into(),
                ancestors: vec!["group-h1".into(), "datacenter-1".into()],
                ..facts.inventory().hosts["host-1"].clone()
            };
            facts.inventory().hosts.insert("host-5".into(), host);
            facts.vm("worker-9").host = "host-5".into();
            facts.node("worker-9").topology_error =
                Some("nodeVM does not have labels for the following categories: k8s-zone".into());
        },
    ),
    row(
        "34",
        "found conflicting topology labels",
        "an old zone label contradicts the new one",
        &["VDO-1706"],
        &[],
        |facts| {
            let labels = &mut facts.node("worker-10").labels;
            labels.insert("failure-domain.beta.kubernetes.io/zone".into(), "zone-x".into());
        },
    ),
    clashing(
        row(
            "35",
            "No compatible datastores found for accessibility requirements",
            "the hosts of one zone share no datastore",
            &["VDO-1502"],
            &["VDO-1527"],
            |facts| {
                facts.inventory().hosts.get_mut("host-4").unwrap().datastores.clear();
                let message = "No compatible datastores found for accessibility requirements";
                claim(facts, "of-row-35", false, message);
            },
        ),
        &["5", "32"],
    ),
    row(
        "36",
        "difference between number of K8s volumes and CNS volumes is greater than threshold",
        "more volumes are missing in vCenter than the driver tolerates",
        &["VDO-1515"],
        &["VDO-1516"],
        |facts| {
            facts.storage.list_threshold = 5;
            for n in 16..23 {
                facts.storage.cns.get_mut().unwrap().remove(&handle(n));
            }
        },
    ),
    row(
        "37",
        "Request missing value for required parameter 'profileIds' to method 'PbmRetrieveContent'",
        "the account lacks StorageProfile.View on the root",
        &["VDO-1401"],
        &["VDO-1527"],
        |facts| {
            withhold(facts, EntityKind::Root, None, "StorageProfile.View");
            let message = "Request missing value for required parameter 'profileIds' to method 'PbmRetrieveContent'";
            claim(facts, "of-row-37", false, message);
        },
    ),
    row(
        "38",
        "no datastores found to create file volume, vSAN file service may be disabled",
        "a claim wants many writers, there is no file service",
        &["VDO-1511"],
        &["VDO-1527"],
        |facts| {
            let message =
                "no datastores found to create file volume, vSAN file service may be disabled";
            claim(facts, "of-row-38", true, message);
        },
    ),
    row(
        "39",
        "POST \"/vsanHealth\": 503 Service Unavailable",
        "vCenter's vsan-health service is down",
        &["VDO-1313"],
        &["VDO-1527"],
        |facts| {
            let reason = "POST \"/vsanHealth\": 503 Service Unavailable";
            let state = ServiceState::Fails { reason: reason.into() };
            facts.vcenter().services.insert(Service::Volumes, state.into());
            claim(facts, "of-row-39", false, reason);
        },
    ),
    row(
        "40",
        "Duplicated entity for each entity type in one cluster is found",
        "doubled metadata in CNS",
        &["VDO-1526"],
        &[],
        |facts| {
            let volumes = facts.storage.cns.get_mut().unwrap();
            volumes.get_mut(&handle(23)).unwrap().duplicate_metadata = true;
        },
    ),
    row(
        "41",
        "503 on REST sessions, vCenter slow",
        "a client leaks sessions",
        &["VDO-1312"],
        &[],
        |facts| {
            let sessions = facts.vcenter().sessions.get_mut().unwrap();
            sessions.total = 1900;
            sessions.by_agent.insert("velero-plugin-for-vsphere".into(), 1850);
        },
    ),
    row(
        "42",
        "/dev/dm-*: no such file or directory, mount busy",
        "multipathd claims VMware disks",
        &["VDO-1224"],
        &[],
        |facts| facts.node("worker-11").multipath = Some(true),
    ),
    row("43", "VMDKs pile up", "disks no volume refers to", &["VDO-1524"], &[], |facts| {
        let disks = (0..40).map(|n| (format!("pvc-old-{n}"), "shared".to_owned())).collect();
        facts.storage.orphans = Orphans { disks }.into();
    }),
    row(
        "44",
        "existing volume not found by cns",
        "the cluster was made anew under another cluster id",
        &["VDO-1514"],
        &["VDO-1515"],
        |facts| {
            facts.storage.cluster_id.of_volumes = Known::Known(Some("prod-0".into()));
            facts.storage.cns.get_mut().unwrap().remove(&handle(0));
        },
    ),
    row(
        "45",
        "nodes report 59 volumes although 255 was set",
        "255 volumes per node are asked for, the CSINodes say 59",
        &["VDO-1226"],
        &[],
        |facts| facts.wanted.storage.as_mut().unwrap().volumes_per_node = Some(255),
    ),
    row(
        "CPI-1",
        "no providerID, the taint was added late or never",
        "kubelet joined without --cloud-provider=external",
        &["VDO-1217"],
        &[],
        |facts| facts.node("worker-12").provider_id = None,
    ),
    row(
        "CPI-2",
        "No VM found, node name mismatch",
        "the guest's host name is fully qualified, the node's name is not",
        &["VDO-1209"],
        &["VDO-1216"],
        |facts| {
            uninitialised(facts, "worker-13");
            facts.vm("worker-13").guest_name = "worker-13.example.com".into();
        },
    ),
    row(
        "CPI-3",
        "Multiple VMs found",
        "an old copy of the VM reports the same host name",
        &["VDO-1210"],
        &["VDO-1216"],
        |facts| {
            uninitialised(facts, "worker-14");
            let mut copy = facts.vm("worker-14").clone();
            copy.name = "worker-14-old".into();
            copy.path = "/DC0/vm/attic/worker-14".into();
            copy.bios_uuid = "a-copy".into();
            copy.volumes.clear();
            facts.inventory().vms.insert("vm-copy".into(), copy);
        },
    ),
    row(
        "CPI-4",
        "wrong InternalIP with several NICs",
        "VMware Tools list a virtual address first",
        &["VDO-1218"],
        &[],
        |facts| {
            let vip = Nic {
                network: "VM Network".into(),
                addresses: vec!["10.0.99.1".into()],
                real: true,
            };
            facts.vm("worker-15").nics.insert(0, vip);
        },
    ),
    row(
        "CPI-5",
        "Node objects are deleted",
        "a node is not ready and its VM is in a datacenter that is not listed",
        &["VDO-1211"],
        &["VDO-1227"],
        |facts| {
            facts.node("worker-16").ready = false;
            facts.vm("worker-16").datacenter = "DC9".into();
        },
    ),
    row(
        "CPI-6",
        "the cloud provider cannot resolve vCenter, CoreDNS is Pending",
        "the cloud provider asks the cluster's DNS",
        &["VDO-1618"],
        &["VDO-1604"],
        |facts| {
            let line = "dial tcp: lookup vc-a.example.com on 10.96.0.10:53: no such host";
            crashing(facts.cloud_driver(), 0, "ccm-of-row-cpi-6", line);
        },
    ),
    row(
        "CPI-7",
        "node updates may not change providerID except from \"\" to valid",
        "k3s has set its own provider id",
        &["VDO-1214"],
        &[],
        |facts| facts.node("worker-17").provider_id = Some("k3s://worker-17".into()),
    ),
    row(
        "CPI-8",
        "no Virtual Center hosts defined",
        "vcenter: is nested under global:",
        &["VDO-1608"],
        &["VDO-1604"],
        |facts| {
            let line = "no Virtual Center hosts defined";
            crashing(facts.cloud_driver(), 0, "ccm-of-row-cpi-8", line);
        },
    ),
    row(
        "CPI-9",
        "CPI image pull fails",
        "the image is of the old registry",
        &["VDO-1602"],
        &["VDO-1621"],
        |facts| {
            let driver = facts.cloud_driver();
            driver.workloads[0].pods[0].containers[0].image =
                "gcr.io/cloud-provider-vsphere/cpi/release/manager:v1.28.1".into();
            driver.workloads[0].ready -= 1;
        },
    ),
];

fn pending(driver: &mut Driver, message: &str) {
    let pod = Pod {
        name: format!("vsphere-csi-controller-{}", driver.workloads[0].pods.len()),
        unschedulable: Some(message.to_owned()),
        ..Pod::default()
    };
    driver.workloads[0].pods.push(pod);
}

fn crashing(driver: &mut Driver, workload: usize, name: &str, line: &str) {
    let container = Container {
        name: "main".into(),
        waiting: Some(Waiting { reason: "CrashLoopBackOff".into(), message: String::new() }),
        restarts: 9,
        last_lines: vec![line.to_owned()],
        ..Container::default()
    };
    let pod = Pod { name: name.to_owned(), containers: vec![container], ..Pod::default() };
    driver.workloads[workload].pods.push(pod);
}

fn claim(facts: &mut Facts, name: &str, many_writers: bool, message: &str) {
    facts.storage.pending.push(Claim {
        name: format!("shop/{name}"),
        class: "gold".into(),
        many_writers,
        message: format!("failed to provision volume: {message}"),
        since: jiff::Timestamp::UNIX_EPOCH,
    });
}

fn withhold(facts: &mut Facts, kind: EntityKind, name: Option<&str>, privilege: &str) {
    for entity in &mut facts.vcenter().grants.get_mut().unwrap().entities {
        if entity.kind == kind && name.is_none_or(|name| name == entity.name) {
            entity.privileges.get_mut().unwrap().remove(privilege);
        }
    }
}

fn push(facts: &mut Facts, volume: &str, node: &str, detaching: bool, message: &str) {
    facts.storage.attachments.get_mut().unwrap().push(Attachment {
        name: format!("csi-{volume}-{node}"),
        volume: volume.to_owned(),
        node: node.to_owned(),
        detaching,
        message: message.to_owned(),
        since: jiff::Timestamp::UNIX_EPOCH,
    });
}

/// An attachment of a new volume that fails.
fn attachment(facts: &mut Facts, n: u32, node: &str, message: &str) {
    let name = format!("new-{n}");
    let known = facts.storage.cns.get().unwrap()[&handle(1)].clone();
    facts.storage.cns.get_mut().unwrap().insert(name.clone(), known);
    push(facts, &name, node, false, message);
}

fn volume_on(facts: &Facts, node: &str) -> String {
    let volumes = facts.storage.volumes.get().unwrap();
    volumes.values().find(|v| v.node.as_deref() == Some(node)).unwrap().handle.clone()
}

fn uninitialised(facts: &mut Facts, name: &str) {
    let node = facts.node(name);
    node.provider_id = None;
    node.taints = vec![Node::UNINITIALIZED.into()];
}
