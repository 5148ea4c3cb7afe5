//! Symptoms 18 to 45: attachments, volumes, and the requirements of the storage driver.

use super::*;

pub(super) const ROWS: &[Row] = &[
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
        &[],
        // Kubernetes does not attach the volume elsewhere meanwhile: the error is an event of the new pod.
        |facts| {
            facts.node("worker-6").ready = false;
            let volumes = facts.storage.volumes.get().unwrap().values();
            let held = volumes.clone().find(|v| v.node.as_deref() == Some("worker-6")).unwrap();
            let waits = (held.name.clone(), "shop/web-1".to_owned());
            facts.storage.contested.get_mut().unwrap().extend([waits]);
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
            let_go(facts, &handle(11));
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
            let_go(facts, &handle(12));
            facts.inventory().vms.insert("vm-zombie".into(), zombie);
            push(
                facts,
                &handle(12),
                "worker-12",
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
            let_go(facts, &handle(13));
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
            facts.storage.growing.get_mut().unwrap().insert(handle(14));
            facts.storage.only_in_cns.get_mut().unwrap().insert(handle(14), 1);
        },
    ),
    row(
        "27",
        "the number of snapshots on the source volume reaches the configured maximum (3)",
        "three snapshots, and a fourth is asked for",
        &["VDO-1521"],
        &[],
        |facts| {
            let three = health::facts::VolumeSnapshots { made: 3, another_asked: true };
            facts.storage.snapshots.get_mut().unwrap().insert(handle(15), three);
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
    clashing(
        row(
            "29",
            "globalmount not pre-created, plugins_registry is not a directory",
            "kubelet's directory is elsewhere",
            &["VDO-1612"],
            &["VDO-1221", "VDO-1621"],
            |facts| {
                facts.cluster.kubelet_path = "/var/lib/k0s/kubelet".to_owned().into();
                facts.storage_driver().workloads[1].ready = 0;
                for node in facts.cluster.nodes.get_mut().unwrap().values_mut() {
                    node.csi = Known::Known(None);
                }
            },
        ),
        &["4", "45"],
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
                Some("nodeVM does not have labels for the following categories: k8s-zone".into())
                    .into();
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
        &["VDO-1505", "VDO-1527"],
        |facts| {
            withhold(facts, EntityKind::Root, None, "StorageProfile.View");
            // Without the privilege, vCenter shows no policies.
            facts.inventory().policies = Vec::new().into();
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
        |facts| {
            let message = "MountVolume.MountDevice failed: /dev/dm-3: no such file or directory";
            // The namespace of the volumes on that node.
            let failure =
                health::facts::MountFailure { namespace: "shop".into(), message: message.into() };
            facts.node("worker-7").mount_failures = vec![failure].into();
        },
    ),
    row("43", "VMDKs pile up", "disks no volume refers to", &["VDO-1524"], &[], |facts| {
        let disks = (0..40).map(|n| (format!("pvc-old-{n}"), "shared".to_owned())).collect();
        facts.storage.orphans = Orphans { disks }.into();
    }),
    row(
        "44",
        "existing volume not found by cns",
        "the cluster was re-created under another cluster id",
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
];
