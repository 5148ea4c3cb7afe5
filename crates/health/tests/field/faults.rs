//! Faults beyond the 54 symptoms, one for each finding that no symptom causes.

use std::collections::BTreeSet;

use health::facts::{
    AccessReview, Acknowledged, Attachment, CatalogState, CatalogTrouble, CatalogTroubleKind,
    Claim, Conflict, CredentialState, Datastore, DriverAccount, EntityKind, Facts, HostGroup,
    Known, Login, Node, Permission, Platform, Power, Reach, Tag, Tools, Version, Waiting,
};

use crate::{healthy, shortcuts::Shortcuts};

/// A cluster with one fault.
pub(crate) fn with(fault: fn(&mut Facts)) -> Facts {
    let mut facts = healthy();
    fault(&mut facts);
    facts
}

/// The finding that a fault causes, and the fault.
pub(crate) type Fault = (&'static str, fn(&mut Facts));

fn days(facts: &Facts, days: i64) -> jiff::Timestamp {
    jiff::Timestamp::from_second(facts.now.as_second() + days * 86_400).unwrap()
}

fn long_ago() -> jiff::Timestamp {
    jiff::Timestamp::constant(1_799_990_000, 0)
}

fn refuse_catalog(facts: &mut Facts, kind: CatalogTroubleKind, reason: &str) {
    let source = "https://example.com/catalog.json".to_owned();
    catalog(facts).trouble = Some(CatalogTrouble { source, kind, reason: reason.to_owned() });
}

pub(crate) const FAULTS: &[Fault] = &[
    ("VDO-1003", |f| f.vcenter().credentials = CredentialState::Missing.into()),
    ("VDO-1004", |f| {
        let reason = "the Secret has `username` but no `password`".to_owned();
        f.vcenter().credentials = CredentialState::Unusable { reason }.into();
    }),
    ("VDO-1005", |f| {
        f.vcenter().credentials = CredentialState::Trimmed { key: "password".to_owned() }.into();
    }),
    ("VDO-1008", |f| f.vcenter().insecure = true),
    ("VDO-1101", |f| {
        catalog(f).serial = 7;
        refuse_catalog(f, CatalogTroubleKind::Unreachable, "connection timed out");
    }),
    ("VDO-1102", |f| {
        refuse_catalog(f, CatalogTroubleKind::Unreadable, "the catalog is malformed at csi 3.7.0");
    }),
    ("VDO-1103", |f| {
        refuse_catalog(f, CatalogTroubleKind::Untrusted, "it is signed by another key");
    }),
    ("VDO-1104", |f| refuse_catalog(f, CatalogTroubleKind::RolledBack, "the catalog has serial 3")),
    ("VDO-1105", |f| {
        let past = days(f, -3);
        catalog(f).expires = Some(past);
    }),
    ("VDO-1106", |f| {
        let kind = CatalogTroubleKind::TooNew { schema: "2.0".to_owned(), known: "1.x".to_owned() };
        refuse_catalog(f, kind, "the catalog has schema 2.0");
    }),
    ("VDO-1107", |f| {
        let kind = CatalogTroubleKind::TooLarge { limit: "4 MiB".to_owned() };
        refuse_catalog(f, kind, "the catalog is larger than 4 MiB");
    }),
    ("VDO-1202", |f| {
        let mut copy = f.vm("worker-18").clone();
        copy.path = "/DC0/vm/restore/worker-18".into();
        copy.volumes.clear();
        f.inventory().vms.insert("vm-copied".into(), copy);
    }),
    ("VDO-1206", |f| f.vm("worker-1").scsi[1].paravirtual = false),
    ("VDO-1208", |f| f.vm("worker-1").tools = Tools::NotRunning),
    ("VDO-1212", |f| {
        f.inventory().hosts.get_mut("host-1").unwrap().version = Version::new(6, 7, 0);
    }),
    ("VDO-1213", |f| f.inventory().hosts.get_mut("host-1").unwrap().maintenance = true),
    ("VDO-1215", |f| {
        f.node("worker-1").provider_id =
            Some("vsphere://03003042-c110-c220-30c3-000000000003".into());
    }),
    ("VDO-1216", |f| {
        f.node("worker-1").taints = vec![(Node::UNINITIALIZED.into(), "NoSchedule".into())];
        f.cloud_driver().workloads[0].ready = 0;
    }),
    ("VDO-1219", |f| f.vm("worker-20").nics.clear()),
    ("VDO-1220", |f| f.node("worker-1").kubelet = Version::new(1, 31, 4)),
    ("VDO-1221", |f| f.node("worker-21").csi = Known::Known(None)),
    ("VDO-1222", |f| {
        let entry = f.node("worker-1").csi.get_mut().unwrap().as_mut().unwrap();
        entry.node_id = "4230ffff-10c1-20c2-30c3-00000000ffff".into();
    }),
    ("VDO-1228", |f| f.vm("control-1").disk_latency_ms = Some(140)),
    ("VDO-1229", |f| f.vm("worker-1").cbt = Some(true)),
    ("VDO-1230", |f| {
        f.vm("worker-19").power = Power::Off;
        f.node("worker-19").ready = false;
    }),
    ("VDO-1231", |f| f.vm("worker-1").disk_uuid = false.into()),
    ("VDO-1232", |f| f.vm("worker-1").accessible = false),
    ("VDO-1233", |f| {
        f.vm("worker-1").volumes = (0..55).map(|n| format!("volume-x{n}")).collect();
    }),
    ("VDO-1301", |f| {
        f.vcenter().reach = Reach::NoAnswer { reason: "connection timed out".into() }.into();
    }),
    ("VDO-1302", |f| {
        let reason = "it is signed by an unknown authority";
        f.vcenter().tls.get_mut().unwrap().distrusted = Some(reason.into());
    }),
    ("VDO-1303", |f| {
        let soon = days(f, 9);
        f.vcenter().tls.get_mut().unwrap().expires = soon;
    }),
    ("VDO-1304", |f| {
        f.vcenter().tls.get_mut().unwrap().outdated = Some("it is signed with SHA-1".into());
    }),
    ("VDO-1306", |f| {
        let reason = "5 failed attempts within 180 seconds";
        f.vcenter().login = Login::Locked { reason: reason.into() }.into();
    }),
    ("VDO-1308", |f| {
        let soon = days(f, 6);
        f.vcenter().password_expires = Known::Known(Some(soon));
    }),
    ("VDO-1309", |f| f.vcenter().clock_ahead = (-300).into()),
    ("VDO-1311", |f| {
        f.vcenter().about.get_mut().unwrap().version = Version::new(7, 0, 2);
    }),
    ("VDO-1314", |f| {
        let mut other = f.vcenter().clone();
        other.name = "vcenter-b".into();
        other.address = "vc-b.example.com".into();
        other.inventory.get_mut().unwrap().vms.clear();
        f.vcenters.insert("vcenter-b".into(), other);
    }),
    ("VDO-1315", |f| {
        f.vcenter().datacenters.insert("DC1".into());
    }),
    ("VDO-1403", |f| withhold(f, EntityKind::Vm, "VirtualMachine.Config.AddRemoveDevice")),
    ("VDO-1405", |f| f.wanted.storage.as_mut().unwrap().file_volumes = true),
    ("VDO-1406", |f| f.vcenter().tasks = false.into()),
    ("VDO-1410", |f| {
        let entity = &mut f.vcenter().grants.get_mut().unwrap().entities[0];
        entity.privileges.get_mut().unwrap().insert("VirtualMachine.Inventory.Delete".into());
    }),
    ("VDO-1503", |f| {
        set(f, "datastoreurl", "ds:///vmfs/volumes/65f0c0de-00000001");
    }),
    ("VDO-1504", |f| {
        f.wanted.storage.as_mut().unwrap().categories.clear();
        f.storage_driver().provisioner_topology = Some(false);
        set(f, "datastoreurl", "ds:///vmfs/volumes/65f0c0de-00000002/");
    }),
    ("VDO-1505", |f| set(f, "storagepolicyname", "gold")),
    ("VDO-1506", |f| {
        f.inventory().policies.get_mut().unwrap()[0].datastores = BTreeSet::new().into();
    }),
    ("VDO-1507", |f| {
        let class = &mut f.storage.classes.get_mut().unwrap()[0];
        class.parameters.insert("diskformat".into(), "thin".into());
    }),
    ("VDO-1508", |f| datastore(f).accessible = false),
    ("VDO-1509", |f| datastore(f).free = 200 << 30),
    ("VDO-1510", |f| datastore(f).storage_pod = Some("pod-1".into())),
    ("VDO-1519", |f| {
        attach(f, true, "failed to detach: volumeID \"volume-00001\" not found in QueryVolume");
        for vm in f.inventory().vms.values_mut() {
            vm.volumes.retain(|volume| *volume != health::sample::handle(1));
        }
        f.storage.cns.get_mut().unwrap().remove(&health::sample::handle(1));
    }),
    ("VDO-1520", |f| attach(f, false, "rpc error: code = DeadlineExceeded")),
    ("VDO-1525", |f| {
        f.storage.cns_total.get_mut().unwrap().insert("vcenter-a".into(), 9_500);
    }),
    ("VDO-1527", |f| {
        f.storage.pending.get_mut().unwrap().push(Claim {
            name: "shop/uploads".into(),
            class: "gold".into(),
            many_writers: false,
            message: "rpc error: code = DeadlineExceeded".into(),
            since: long_ago(),
        });
    }),
    ("VDO-1528", |f| {
        let volumes = f.storage.cns.get_mut().unwrap();
        volumes.get_mut(&health::sample::handle(1)).unwrap().unreachable = true;
    }),
    ("VDO-1603", |f| {
        let container = &mut f.storage_driver().workloads[0].pods[0].containers[0];
        let message = "401 Unauthorized".into();
        container.waiting = Some(Waiting { reason: "ErrImagePull".into(), message });
    }),
    ("VDO-1604", |f| {
        let container = &mut f.storage_driver().workloads[1].pods[0].containers[0];
        container.restarts = 7;
        container.waiting =
            Some(Waiting { reason: "CrashLoopBackOff".into(), message: String::new() });
        container.last_lines = vec!["panic: runtime error".into()];
    }),
    ("VDO-1605", Shortcuts::no_crds),
    ("VDO-1611", |f| f.cluster.webhooks.get_mut().unwrap()[0].endpoints = 0.into()),
    ("VDO-1616", |f| f.cluster.leases.get_mut().unwrap()[1].renewed = long_ago()),
    ("VDO-1617", |f| {
        f.cluster.drivers.others = vec!["kube-system/vsphere-csi-controller".into()];
    }),
    ("VDO-1619", |f| {
        f.storage_driver().config_secret = Some(("vsphere-config-secret".into(), false)).into();
    }),
    ("VDO-1620", |f| {
        f.storage_driver().unsuitable =
            Some("made for Kubernetes 1.28 to 1.30, this is 1.35".into());
    }),
    ("VDO-1621", |f| {
        let nodes = &mut f.storage_driver().workloads[1];
        nodes.ready = nodes.ready.saturating_sub(2);
    }),
    ("VDO-1622", |f| f.storage_driver().registered = false.into()),
    ("VDO-1623", |f| {
        let lost = Permission {
            verb: "patch".into(),
            group: "storage.k8s.io".into(),
            resource: "volumeattachments".into(),
        };
        let role = "vsphere-csi-controller-role".to_owned();
        f.storage_driver().accounts = vec![DriverAccount {
            workload: "Deployment vsphere-csi-controller".into(),
            namespace: "vmware-system-csi".into(),
            name: "vsphere-csi-controller".into(),
            lacks: vec![lost],
            roles: [(role.clone(), true)].into(),
            release_role: role,
            release_role_exists: true,
        }]
        .into();
    }),
    ("VDO-1624", |f| {
        let workload = &mut f.storage_driver().workloads[0];
        workload.added_fields.insert(("kubectl-edit".into(), "nodeSelector".into()));
        workload.desired = 0;
    }),
    ("VDO-1701", |f| {
        f.inventory().tags.get_mut().unwrap().categories.remove("k8s-zone");
    }),
    ("VDO-1703", |f| tag(f, "host-4", "zone-a")),
    ("VDO-1704", |f| tag(f, "vm-00003", "zone-b")),
    ("VDO-1705", |f| f.vm("worker-1").host = "host-1".into()),
    ("VDO-1707", |f| f.wanted.cloud.as_mut().unwrap().region = None),
    ("VDO-1708", |f| {
        f.inventory().host_groups = vec![HostGroup {
            failure_domain: "east-1".into(),
            name: "rack-1".into(),
            problem: Some("it has no hosts".into()),
        }]
        .into();
    }),
    ("VDO-1709", |f| {
        let entry = f.node("worker-1").csi.get_mut().unwrap().as_mut().unwrap();
        entry.topology_keys.clear();
    }),
    ("VDO-1801", |f| {
        f.cluster.leases = Known::unknown("VDO has no permission to read leases");
    }),
    ("VDO-1803", |f| {
        f.cluster.access = vec![AccessReview {
            group: "storage.k8s.io".into(),
            resource: "csinodes".into(),
            namespace: None,
            verb: "list".into(),
            allowed: false,
            needed_for: "seeing where the storage driver is registered".into(),
        }]
        .into();
    }),
    ("VDO-1917", |f| {
        f.cluster.access = vec![AccessReview {
            group: "storage.k8s.io".into(),
            resource: "csinodes".into(),
            namespace: None,
            verb: "patch".into(),
            allowed: false,
            needed_for: "spec.remediation.csiNodes".into(),
        }]
        .into();
    }),
    ("VDO-1805", |f| {
        f.operator.conflicts = vec![Conflict {
            kind: "Deployment".into(),
            object: "vmware-system-csi/vsphere-csi-controller".into(),
            manager: "argocd".into(),
            times: 12,
            ..Conflict::default()
        }]
        .into();
    }),
    ("VDO-1806", |f| {
        f.cluster.network.get_mut().unwrap().missing_on = vec!["worker-1".into()];
    }),
    ("VDO-1807", |facts| {
        *facts = health::sample::cluster(Platform::OpenShift);
        let openshift = facts.cluster.openshift.get_mut().unwrap().as_mut().unwrap();
        openshift.failure_domain_datacenters.push("vc-a.example.com/DC1".into());
        facts.operator.acknowledged = Vec::<Acknowledged>::new();
    }),
];

fn catalog(facts: &mut Facts) -> &mut CatalogState {
    facts.operator.catalog.get_mut().unwrap()
}

fn withhold(facts: &mut Facts, kind: EntityKind, privilege: &str) {
    let entities = &mut facts.vcenter().grants.get_mut().unwrap().entities;
    for entity in entities.iter_mut().filter(|entity| entity.kind == kind) {
        entity.privileges.get_mut().unwrap().remove(privilege);
    }
}

fn set(facts: &mut Facts, key: &str, value: &str) {
    let classes = facts.storage.classes.get_mut().unwrap();
    let class = classes.iter_mut().find(|class| class.parameter(key).is_some()).unwrap();
    class.parameters.insert(key.into(), value.into());
}

fn datastore(facts: &mut Facts) -> &mut Datastore {
    facts.inventory().datastores.get_mut("datastore-1").unwrap()
}

fn attach(facts: &mut Facts, detaching: bool, message: &str) {
    facts.storage.attachments.get_mut().unwrap().push(Attachment {
        name: "csi-1f2e".into(),
        volume: health::sample::handle(1),
        node: "worker-1".into(),
        detaching,
        message: message.into(),
        since: long_ago(),
    });
}

fn tag(facts: &mut Facts, object: &str, name: &str) {
    let tags = facts.inventory().tags.get_mut().unwrap();
    let tag = Tag { category: "k8s-zone".into(), name: name.into() };
    tags.attached.insert(object.into(), vec![tag]);
}
