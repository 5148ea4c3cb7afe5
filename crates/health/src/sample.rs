//! Facts of healthy clusters, for tests, benchmarks and demos.
//!
//! ```text
//!   vcenter-a ── DC0 ─┬─ C0 (zone-a)  esx-1  esx-2    ds-a on both
//!     region-a        └─ C1 (zone-b)  esx-3  esx-4    ds-b on both      shared on all four
//! ```

mod platforms;

use std::collections::{BTreeMap, BTreeSet};

use jiff::Timestamp;

use crate::{
    facts::{
        About, CatalogState, Certificate, Cluster, ClusterIds, CnsVolume, Container,
        CredentialState, CsiEntry, Datacenter, Datastore, Drivers, Entity, EntityKind, Facts,
        Grants, Host, InstalledDriver, Inventory, Known, Lease, Login, NetworkPlugin, Nic, Node,
        OpenShift, Operator, Orphans, Platform, Pod, Reach, ScsiController, Service, ServiceState,
        Sessions, Storage, StorageClass, StoragePolicy, Tag, Tags, Tls, Vcenter, Version, Vm,
        Volume, Wanted, WantedCloud, WantedStorage, Webhook, Workload,
    },
    privileges,
};

pub use self::platforms::platforms;

/// A healthy cluster of 3 control plane nodes and 21 workers.
pub fn cluster(platform: Platform) -> Facts {
    sized(platform, 3, 21, 24)
}

/// A healthy cluster of any size.
pub fn sized(platform: Platform, control_plane: u32, workers: u32, volumes: u32) -> Facts {
    let now = Timestamp::constant(1_800_000_000, 0);
    let wanted = wanted(platform);
    let names: Vec<String> = (1..=control_plane)
        .map(|n| format!("control-{n}"))
        .chain((1..=workers).map(|n| format!("worker-{n}")))
        .collect();
    let inventory = inventory(&names, volumes);
    let vcenter = vcenter(inventory, &wanted, now);
    Facts {
        now,
        cluster: kubernetes(platform, &names, now),
        storage: storage(&names, volumes, now),
        vcenters: BTreeMap::from([("vcenter-a".to_owned(), vcenter)]),
        operator: Operator {
            catalog: CatalogState::default().into(),
            conflicts: Vec::new().into(),
            ..Operator::default()
        },
        wanted,
    }
}

/// The uuid of the n-th VM.
pub fn uuid(n: usize) -> String {
    format!("4230{n:04x}-10c1-20c2-30c3-{n:012x}")
}

fn days(now: Timestamp, days: i64) -> Timestamp {
    Timestamp::from_second(now.as_second() + days * 86_400).unwrap_or(now)
}

fn wanted(platform: Platform) -> Wanted {
    let vcenters = BTreeSet::from(["vcenter-a".to_owned()]);
    let cloud = WantedCloud {
        vcenters: vcenters.clone(),
        zone: Some("k8s-zone".into()),
        region: Some("k8s-region".into()),
        ipv4: true,
        ..WantedCloud::default()
    };
    let storage = WantedStorage {
        vcenters,
        categories: vec!["k8s-region".into(), "k8s-zone".into()],
        snapshots: true,
        snapshots_per_volume: 3,
        kubelet_path: platform.kubelet_path().into(),
        ..WantedStorage::default()
    };
    Wanted { read: ().into(), cloud: Some(cloud), storage: Some(storage), sets_disk_uuid: false }
}

/// Which host the n-th VM is on, and its zone.
fn place(n: usize) -> (String, &'static str) {
    let host = n % 4 + 1;
    (format!("host-{host}"), if host <= 2 { "zone-a" } else { "zone-b" })
}

fn inventory(names: &[String], volumes: u32) -> Inventory {
    let cluster_of = |host: usize| if host <= 2 { "domain-c1" } else { "domain-c2" };
    let hosts = (1..=4).map(|n| {
        let own = if n <= 2 { "datastore-2" } else { "datastore-3" };
        let cluster = if n <= 2 { "C0" } else { "C1" };
        let host = Host {
            name: format!("esx-{n}.example.com"),
            path: format!("/DC0/host/{cluster}/esx-{n}.example.com"),
            version: Version::new(8, 0, 3),
            connected: true,
            maintenance: false,
            datastores: ["datastore-1", own].map(str::to_owned).into(),
            unusable: BTreeSet::new(),
            ancestors: [cluster_of(n), "group-h1", "datacenter-1", "group-d1"]
                .map(str::to_owned)
                .into(),
        };
        (format!("host-{n}"), host)
    });
    let datastore = |n: u32, name: &str| {
        let datastore = Datastore {
            name: name.into(),
            path: format!("/DC0/datastore/{name}"),
            url: format!("ds:///vmfs/volumes/65f0c0de-000000{n:02}/"),
            accessible: true,
            maintenance: false,
            capacity: 10 << 40,
            free: 6 << 40,
            storage_pod: None,
        };
        (format!("datastore-{n}"), datastore)
    };
    let mut vms: BTreeMap<String, Vm> =
        names.iter().enumerate().map(|(n, name)| (format!("vm-{n:05}"), vm(n, name))).collect();
    for volume in 0..volumes {
        let node = volume as usize % names.len();
        if let Some(vm) = vms.get_mut(&format!("vm-{node:05}")) {
            vm.volumes.push(handle(volume));
        }
    }
    let tag = |object: &str, category: &str, name: &str| {
        (object.to_owned(), vec![Tag { category: category.into(), name: name.into() }])
    };
    let tags = Tags {
        categories: ["k8s-zone", "k8s-region"].map(str::to_owned).into(),
        attached: BTreeMap::from([
            tag("datacenter-1", "k8s-region", "region-a"),
            tag("domain-c1", "k8s-zone", "zone-a"),
            tag("domain-c2", "k8s-zone", "zone-b"),
        ]),
    };
    let all = ["datastore-1", "datastore-2", "datastore-3"].map(str::to_owned);
    Inventory {
        datacenters: BTreeMap::from([("datacenter-1".into(), Datacenter { name: "DC0".into() })]),
        hosts: hosts.collect(),
        datastores: [datastore(1, "shared"), datastore(2, "ds-a"), datastore(3, "ds-b")].into(),
        vms,
        tags: tags.into(),
        policies: vec![StoragePolicy { name: "Gold".into(), datastores: Known::Known(all.into()) }]
            .into(),
        host_groups: Vec::new().into(),
        file_service: BTreeSet::new().into(),
    }
}

fn vm(n: usize, name: &str) -> Vm {
    Vm {
        name: name.to_owned(),
        path: format!("/DC0/vm/k8s/{name}"),
        datacenter: "DC0".into(),
        bios_uuid: uuid(n),
        guest_name: name.to_owned(),
        accessible: true,
        disk_uuid: true.into(),
        disk_uuid_set: true,
        hardware: 19,
        scsi: vec![
            ScsiController { paravirtual: true, disks: 2 },
            ScsiController { paravirtual: true, disks: 1 },
        ],
        host: place(n).0,
        nics: vec![Nic { network: "VM Network".into(), addresses: vec![address(n)], real: true }],
        cbt: Some(false),
        disk_latency_ms: Some(3),
        ..Vm::default()
    }
}

fn address(n: usize) -> String {
    format!("10.0.{}.{}", n / 200, n % 200 + 10)
}

fn vcenter(inventory: Inventory, wanted: &Wanted, now: Timestamp) -> Vcenter {
    let grants = grants(&inventory, wanted);
    let services = [Service::Volumes, Service::Policies, Service::Tags];
    Vcenter {
        name: "vcenter-a".into(),
        address: "vc-a.example.com".into(),
        secret: "vmware-system-vdo/vcenter-a".into(),
        user: "k8s@vsphere.local".into(),
        reach: Reach::Answers.into(),
        tls: Tls {
            distrusted: None,
            expires: days(now, 400),
            outdated: None,
            thumbprint: "AA:BB:CC:DD".into(),
        }
        .into(),
        login: Login::Accepted.into(),
        about: About { version: Version::new(8, 0, 3), instance_uuid: "vc-a-uuid".into() }.into(),
        clock_ahead: 1.into(),
        sessions: Sessions { total: 40, by_agent: BTreeMap::new() }.into(),
        services: services.map(|s| (s, ServiceState::Answers.into())).into(),
        credentials: CredentialState::Usable.into(),
        password_expires: Known::Known(None),
        datacenters: BTreeSet::from(["DC0".to_owned()]),
        grants: grants.into(),
        tasks: true.into(),
        inventory: inventory.into(),
        ..Vcenter::default()
    }
}

/// Exactly the privileges that the drivers need, on every object.
fn grants(inventory: &Inventory, wanted: &Wanted) -> Grants {
    let entity = |kind: EntityKind, name: &str, path: &str| Entity {
        kind,
        name: name.to_owned(),
        path: path.to_owned(),
        privileges: privileges::needed_names(kind, wanted)
            .into_iter()
            .map(str::to_owned)
            .collect::<BTreeSet<_>>()
            .into(),
    };
    let mut entities = vec![
        entity(EntityKind::Root, "vcenter-a", "/"),
        entity(EntityKind::Datacenter, "DC0", "/DC0"),
        entity(EntityKind::Cluster, "C0", "/DC0/host/C0"),
        entity(EntityKind::Cluster, "C1", "/DC0/host/C1"),
        entity(EntityKind::Folder, "k8s", "/DC0/vm/k8s"),
    ];
    entities.extend(inventory.hosts.values().map(|h| entity(EntityKind::Host, &h.name, &h.path)));
    let datastores = inventory.datastores.values();
    entities.extend(datastores.map(|d| entity(EntityKind::Datastore, &d.name, &d.path)));
    entities.extend(inventory.vms.values().map(|vm| entity(EntityKind::Vm, &vm.name, &vm.path)));
    Grants { entities, repairs_denied: BTreeMap::new() }
}

fn kubernetes(platform: Platform, names: &[String], now: Timestamp) -> Cluster {
    let nodes = names.iter().enumerate().map(|(n, name)| (name.clone(), node(n, name, now)));
    let count = u32::try_from(names.len()).unwrap_or(u32::MAX);
    let lease = |namespace: &str, name: &str, driver: &str| Lease {
        namespace: namespace.into(),
        name: name.into(),
        driver: driver.into(),
        holder: format!("{name}-0"),
        renewed: now,
        seconds: 30,
    };
    let webhook = Webhook {
        configuration: "validation.csi.vsphere.vmware.com".into(),
        namespace: "vmware-system-csi".into(),
        secret: "vsphere-webhook-certs".into(),
        fails_closed: true,
        endpoints: 1.into(),
        since: days(now, -30),
        certificate: Certificate { expires: days(now, 170), trusted: true }.into(),
    };
    let openshift = OpenShift {
        infrastructure_vcenters: vec!["vc-a.example.com".into()],
        configured_vcenters: vec!["vc-a.example.com".into()],
        failure_domain_datacenters: vec!["vc-a.example.com/DC0".into()],
        configured_datacenters: vec!["vc-a.example.com/DC0".into()],
        runs_storage: true,
        runs_cloud: true,
    };
    Cluster {
        platform,
        version: Version::new(1, 35, 2).into(),
        kubelet_path: platform.kubelet_path().to_owned().into(),
        nodes: nodes.collect::<BTreeMap<_, _>>().into(),
        drivers: Drivers {
            cloud: Known::Known(Some(cloud_driver())),
            storage: Known::Known(Some(storage_driver(platform, count))),
            others: Vec::new(),
        },
        leases: vec![
            lease("kube-system", "cloud-controller-manager", "CPI"),
            lease("vmware-system-csi", "vsphere-syncer", "CSI"),
        ]
        .into(),
        webhooks: vec![webhook].into(),
        access: Vec::new().into(),
        network: NetworkPlugin { plugin: "Antrea".into(), missing_on: Vec::new() }.into(),
        openshift: (platform == Platform::OpenShift).then_some(openshift).into(),
    }
}

fn node(n: usize, name: &str, now: Timestamp) -> Node {
    let zone = place(n).1;
    let labels =
        [("topology.kubernetes.io/zone", zone), ("topology.kubernetes.io/region", "region-a")];
    Node {
        name: name.to_owned(),
        created: days(now, -30),
        ready: true,
        ready_since: days(now, -30),
        control_plane: name
            .starts_with("control")
            .then(|| "node-role.kubernetes.io/control-plane".to_owned()),
        os: "linux".into(),
        provider_id: Some(format!("vsphere://{}", uuid(n))),
        system_uuid: uuid(n),
        labels: labels.map(|(key, value)| (key.to_owned(), value.to_owned())).into(),
        provided_ip: Some(address(n)),
        kubelet: Version::new(1, 35, 2),
        csi: Known::Known(Some(CsiEntry {
            node_id: uuid(n),
            index: 0,
            limit: Some(59),
            topology_keys: vec!["topology.csi.vmware.com/k8s-zone".into()],
        })),
        topology_error: Known::Known(None),
        mount_failures: Vec::new().into(),
        ..Node::default()
    }
}

fn workload(kind: &str, name: &str, pods: u32, containers: &[(&str, &str)]) -> Workload {
    let container = |(name, image): &(&str, &str)| Container {
        name: (*name).into(),
        image: (*image).into(),
        ..Container::default()
    };
    let pod = Pod {
        name: format!("{name}-0"),
        ready: true,
        containers: containers.iter().map(container).collect(),
        ..Pod::default()
    };
    Workload {
        kind: kind.into(),
        name: name.into(),
        desired: pods,
        ready: pods,
        changing: false,
        refused: None,
        pods: vec![pod],
        added_fields: BTreeSet::new(),
    }
}

fn cloud_driver() -> InstalledDriver {
    let image = "registry.k8s.io/cloud-pv-vsphere/cloud-provider-vsphere:v1.35.1";
    let name = "vsphere-cloud-controller-manager";
    InstalledDriver {
        name: "CPI".into(),
        namespace: "kube-system".into(),
        version: Some(Version::new(1, 35, 1)),
        upstream: true,
        workloads: vec![workload("DaemonSet", name, 3, &[(name, image)])],
        config_secret: Some(("cpi-global-secret".into(), true)).into(),
        crds: BTreeMap::new().into(),
        features: BTreeMap::new().into(),
        pod_security: Known::Known(None),
        registered: true.into(),
        accounts: Vec::new().into(),
        ..InstalledDriver::default()
    }
}

fn storage_driver(platform: Platform, nodes: u32) -> InstalledDriver {
    let driver = "registry.k8s.io/csi-vsphere/driver:v3.7.3";
    let syncer = "registry.k8s.io/csi-vsphere/syncer:v3.7.3";
    let provisioner = "registry.k8s.io/sig-storage/csi-provisioner:v4.0.1";
    let features: BTreeMap<String, String> =
        ["trigger-csi-fullsync", "pv-to-backingdiskobjectid-mapping", "high-pv-node-density"]
            .map(|name| (name.to_owned(), "false".to_owned()))
            .into();
    let controller = [
        ("vsphere-csi-controller", driver),
        ("vsphere-syncer", syncer),
        ("csi-provisioner", provisioner),
    ];
    InstalledDriver {
        name: "CSI".into(),
        namespace: "vmware-system-csi".into(),
        version: Some(Version::new(3, 7, 3)),
        upstream: true,
        unsuitable: None,
        workloads: vec![
            workload("Deployment", "vsphere-csi-controller", 3, &controller),
            workload("DaemonSet", "vsphere-csi-node", nodes, &[("vsphere-csi-node", driver)]),
        ],
        config_secret: Some(("vsphere-config-secret".into(), true)).into(),
        crds: BTreeMap::from([("csinodetopologies.cns.vmware.com".into(), true)]).into(),
        features: features.clone().into(),
        release_features: features,
        provisioner_topology: Some(true),
        provisioner: Some(Version::new(4, 0, 1)),
        pod_security: Some("privileged".into()).into(),
        kubelet_path: Some(platform.kubelet_path().into()),
        registered: true.into(),
        accounts: Vec::new().into(),
    }
}

/// The handle of the n-th volume.
pub fn handle(n: u32) -> String {
    format!("volume-{n:05}")
}

fn storage(names: &[String], volumes: u32, now: Timestamp) -> Storage {
    let volume = |n: u32| Volume {
        handle: handle(n),
        name: format!("pvc-{n:05}"),
        claim: Some(format!("shop/data-{n}")),
        node: Some(names[n as usize % names.len()].clone()),
        created: days(now, -20),
    };
    let cns = CnsVolume {
        vcenter: "vcenter-a".into(),
        datastore: "ds:///vmfs/volumes/65f0c0de-00000001/".into(),
        ..CnsVolume::default()
    };
    let classes = [
        ("gold", "storagepolicyname", "Gold"),
        ("shared", "datastoreurl", "ds:///vmfs/volumes/65f0c0de-00000001/"),
    ];
    let class = |(name, key, value): (&str, &str, &str)| StorageClass {
        name: name.into(),
        provisioner: "csi.vsphere.vmware.com".into(),
        parameters: BTreeMap::from([(key.to_owned(), value.to_owned())]),
    };
    Storage {
        classes: classes.into_iter().map(class).collect::<Vec<_>>().into(),
        volumes: (0..volumes).map(|n| (handle(n), volume(n))).collect::<BTreeMap<_, _>>().into(),
        pending: Vec::new().into(),
        growing: BTreeSet::new().into(),
        contested: BTreeMap::new().into(),
        snapshots: BTreeMap::new().into(),
        only_in_cns: BTreeMap::new().into(),
        attachments: Vec::new().into(),
        cns: (0..volumes).map(|n| (handle(n), cns.clone())).collect::<BTreeMap<_, _>>().into(),
        cns_asked: now,
        cluster_id: ClusterIds {
            configured: Some("prod-1".into()),
            generated: None,
            of_volumes: Known::Known(Some("prod-1".into())),
            also_used_by: Vec::new().into(),
        },
        orphans: Orphans::default().into(),
        cns_total: BTreeMap::from([("vcenter-a".into(), volumes)]).into(),
        list_threshold: 50,
    }
}
