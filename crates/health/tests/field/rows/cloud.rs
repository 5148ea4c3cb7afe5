//! The nine symptoms of the cloud provider.

use super::*;

pub(super) const ROWS: &[Row] = &[
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
            facts.node("worker-16").ready_since = facts.now;
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
