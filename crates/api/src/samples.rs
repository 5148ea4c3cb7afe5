//! Examples of every common case, as values: written to `deploy/samples`, shown in the
//! documentation, and accepted by a real API server in the tests.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::Secret;
use kube::core::ObjectMeta;
use serde_json::Value;

use crate::vdo_config::{
    AcknowledgedFinding, Adoption, CloudProvider, DeletionPolicy, FileVolumes, FsType, Images,
    Implementation, IpFamily, Mirror, Mode, NetPermission, NetworkPlugin, NetworkProvider,
    NodeAddresses, NodeDeletion, Nsx, NsxLoadBalancer, NsxLoadBalancerSize, ReclaimPolicy,
    Remediation, Remedy, Snapshots, StorageClassSpec, StorageProvider, StorageTuning, Topology,
    UpgradePolicy, UpgradeWindow, Upgrades, VDOConfigSpec, Weekday,
};
use crate::vsphere_cloud_config::{CaBundle, KeyRef, VsphereCloudConfigSpec};
use crate::{
    CompatibilityConfig, CompatibilityConfigSpec, NAMESPACE, VDOConfig, VsphereCloudConfig,
};

/// A file of objects for one case.
#[derive(Debug, Clone)]
pub struct Sample {
    /// Name of the file, without ending.
    pub name: &'static str,
    /// What it is for, in a line or two.
    pub about: &'static str,
    /// The objects, in the order they are applied.
    pub objects: Vec<Value>,
}

/// All samples.
pub fn samples() -> Vec<Sample> {
    vec![
        minimal(),
        csi_only(),
        two_vcenters(),
        zones(),
        file_volumes(),
        air_gap(),
        openshift_observe(),
        power_user(),
    ]
}

fn minimal() -> Sample {
    Sample {
        name: "minimal",
        about: "Cloud provider and storage on one vCenter. Everything else is chosen by VDO.",
        objects: vec![
            secret("vcenter-a"),
            vcenter("vcenter-a", "vc-a.example.com"),
            vdo(VDOConfigSpec {
                cloud_provider: Some(CloudProvider {
                    vsphere_cloud_configs: vec!["vcenter-a".into()],
                    ..CloudProvider::default()
                }),
                storage_provider: Some(storage("vcenter-a")),
                ..VDOConfigSpec::default()
            }),
        ],
    }
}

fn csi_only() -> Sample {
    Sample {
        name: "csi-only",
        about: "Storage alone, for clusters whose nodes need no cloud provider.",
        objects: vec![
            secret("vcenter-a"),
            vcenter("vcenter-a", "10.0.0.10"),
            vdo(VDOConfigSpec {
                storage_provider: Some(StorageProvider {
                    storage_classes: vec![StorageClassSpec {
                        name: "vsphere".into(),
                        storage_policy: Some("vSAN Default Storage Policy".into()),
                        default: Some(true),
                        ..StorageClassSpec::default()
                    }],
                    ..storage("vcenter-a")
                }),
                ..VDOConfigSpec::default()
            }),
        ],
    }
}

fn two_vcenters() -> Sample {
    Sample {
        name: "two-vcenters",
        about: "Nodes and volumes on two vCenters. Zones tell which volume belongs where.",
        objects: vec![
            secret("vcenter-a"),
            secret("vcenter-b"),
            vcenter("vcenter-a", "vc-a.example.com"),
            vcenter("vcenter-b", "vc-b.example.com:8443"),
            vdo(VDOConfigSpec {
                cloud_provider: Some(CloudProvider {
                    vsphere_cloud_configs: vec!["vcenter-a".into(), "vcenter-b".into()],
                    topology: Some(topology()),
                    ..CloudProvider::default()
                }),
                storage_provider: Some(StorageProvider {
                    vsphere_cloud_configs: vec!["vcenter-a".into(), "vcenter-b".into()],
                    ..StorageProvider::default()
                }),
                ..VDOConfigSpec::default()
            }),
        ],
    }
}

fn zones() -> Sample {
    Sample {
        name: "zones",
        about: "Zones and regions from vCenter tags; volumes are made in the zone of their pod.",
        objects: vec![
            secret("vcenter-a"),
            vcenter("vcenter-a", "vc-a.example.com"),
            vdo(VDOConfigSpec {
                cloud_provider: Some(CloudProvider {
                    vsphere_cloud_configs: vec!["vcenter-a".into()],
                    topology: Some(topology()),
                    ..CloudProvider::default()
                }),
                storage_provider: Some(StorageProvider {
                    storage_classes: vec![StorageClassSpec {
                        name: "zonal".into(),
                        storage_policy: Some("Gold".into()),
                        binding_mode: Some(crate::vdo_config::BindingMode::WaitForFirstConsumer),
                        ..StorageClassSpec::default()
                    }],
                    ..storage("vcenter-a")
                }),
                ..VDOConfigSpec::default()
            }),
        ],
    }
}

fn file_volumes() -> Sample {
    Sample {
        name: "file-volumes",
        about: "Volumes many pods can write (RWX), on vSAN file shares only the nodes may mount.",
        objects: vec![
            secret("vcenter-a"),
            vcenter("vcenter-a", "vc-a.example.com"),
            vdo(VDOConfigSpec {
                storage_provider: Some(StorageProvider {
                    file_volumes: Some(FileVolumes {
                        vsan_clusters: vec!["domain-c8".into()],
                        net_permissions: vec![NetPermission {
                            ips: "10.20.0.0/16".into(),
                            permissions: Some("READ_WRITE".into()),
                            root_squash: Some(true),
                        }],
                        ..FileVolumes::default()
                    }),
                    storage_classes: vec![StorageClassSpec {
                        name: "shared".into(),
                        fs_type: Some(FsType::Nfs4),
                        ..StorageClassSpec::default()
                    }],
                    ..storage("vcenter-a")
                }),
                ..VDOConfigSpec::default()
            }),
        ],
    }
}

fn air_gap() -> Sample {
    let catalog = CompatibilityConfig {
        metadata: meta("compat-matrix-config"),
        spec: CompatibilityConfigSpec {
            bundle: Some(crate::compatibility_config::CatalogBundle {
                config_map: "vdo-catalog".into(),
            }),
            ..CompatibilityConfigSpec::default()
        },
        status: None,
    };
    Sample {
        name: "air-gap",
        about: "No way to the internet: images from a mirror, knowledge about releases from a ConfigMap.",
        objects: vec![
            secret("vcenter-a"),
            vcenter("vcenter-a", "vc-a.example.com"),
            object(&catalog),
            vdo(VDOConfigSpec {
                storage_provider: Some(storage("vcenter-a")),
                images: Some(Images {
                    registry: Some("registry.example.com/vsphere".into()),
                    pull_secrets: vec!["registry".into()],
                    ..Images::default()
                }),
                ..VDOConfigSpec::default()
            }),
        ],
    }
}

fn openshift_observe() -> Sample {
    Sample {
        name: "openshift-observe",
        about: "OpenShift on vSphere brings both drivers itself: VDO watches them and says what is wrong.",
        objects: vec![
            VsphereSample {
                credentials: "vsphere-creds",
                ..vcenter_of("vcenter-a", "vc-a.example.com")
            }
            .object(),
            vdo(VDOConfigSpec {
                cloud_provider: Some(CloudProvider {
                    vsphere_cloud_configs: vec!["vcenter-a".into()],
                    mode: Some(Mode::Observe),
                    ..CloudProvider::default()
                }),
                storage_provider: Some(StorageProvider {
                    mode: Some(Mode::Observe),
                    ..storage("vcenter-a")
                }),
                ..VDOConfigSpec::default()
            }),
        ],
    }
}

fn power_user() -> Sample {
    Sample {
        name: "power-user",
        about: "Most of what can be set, in one place. Nobody needs all of it.",
        objects: vec![
            secret("vcenter-a"),
            VsphereSample { ca: true, ..vcenter_of("vcenter-a", "vc-a.example.com") }.object(),
            object(&online_catalog()),
            vdo(VDOConfigSpec {
                cloud_provider: Some(power_cloud_provider()),
                storage_provider: Some(power_storage_provider()),
                network_provider: Some(NetworkProvider {
                    plugin: NetworkPlugin::Antrea,
                    mode: Some(Mode::Observe),
                    version: None,
                }),
                upgrades: Some(Upgrades {
                    policy: Some(UpgradePolicy::Pinned),
                    window: Some(UpgradeWindow {
                        days: vec![Weekday::Saturday, Weekday::Sunday],
                        start: "02:00".into(),
                        duration: "4h".into(),
                        time_zone: Some("Europe/Berlin".into()),
                    }),
                    source: None,
                }),
                images: Some(Images {
                    mirrors: vec![Mirror {
                        from: "registry.k8s.io".into(),
                        to: "registry.example.com/k8s".into(),
                    }],
                    ..Images::default()
                }),
                remediation: Some(Remediation {
                    default: Some(Remedy::Propose),
                    disk_uuid: Some(Remedy::Fix),
                    webhook_certificates: Some(Remedy::Fix),
                    ..Remediation::default()
                }),
                adoption: Some(Adoption::Automatic),
                deletion_policy: Some(DeletionPolicy::Retain),
                acknowledgements: vec![AcknowledgedFinding {
                    code: "VDO-1207".to_owned(),
                    object: None,
                    reason: "the backup makes snapshots at night".to_owned(),
                    until: None,
                }],
                paused: Some(false),
            }),
        ],
    }
}

fn power_cloud_provider() -> CloudProvider {
    CloudProvider {
        vsphere_cloud_configs: vec!["vcenter-a".into()],
        topology: Some(topology()),
        mode: Some(Mode::Managed),
        implementation: Some(Implementation::Upstream),
        version: Some("1.36.0".into()),
        nodes: Some(NodeAddresses {
            internal_subnets: vec!["10.0.0.0/16".into(), "fd00:10::/64".into()],
            exclude_internal_subnets: vec!["10.0.0.10/32".into()],
            external_network: Some("dmz".into()),
            ip_families: vec![IpFamily::IPv4, IpFamily::IPv6],
            ..NodeAddresses::default()
        }),
        node_deletion: Some(NodeDeletion::Never),
        nsx: Some(Nsx {
            host: "nsx.example.com".into(),
            credentials: "nsx".into(),
            load_balancer: Some(NsxLoadBalancer {
                size: Some(NsxLoadBalancerSize::Medium),
                tier1_gateway_path: Some("/infra/tier-1s/k8s".into()),
                ip_pool_name: Some("k8s".into()),
                tags: BTreeMap::from([("team".to_owned(), "platform".to_owned())]),
                ..NsxLoadBalancer::default()
            }),
            ..Nsx::default()
        }),
    }
}

fn power_storage_provider() -> StorageProvider {
    StorageProvider {
        version: Some("3.7.0".into()),
        custom_kubelet_path: Some("/var/data/kubelet".into()),
        snapshots: Some(Snapshots {
            install_controller: Some(true),
            max_per_volume: Some(5),
            max_per_volume_vsan: Some(10),
            max_per_volume_vvol: None,
        }),
        storage_classes: vec![
            StorageClassSpec {
                name: "gold".into(),
                storage_policy: Some("Gold".into()),
                default: Some(true),
                reclaim_policy: Some(ReclaimPolicy::Retain),
                fs_type: Some(FsType::Xfs),
                ..StorageClassSpec::default()
            },
            StorageClassSpec {
                name: "scratch".into(),
                datastore_url: Some(
                    "ds:///vmfs/volumes/5f3e2b1c-0d4a9e5c-8f1a-0050568c1a2b/".into(),
                ),
                allow_expansion: Some(false),
                ..StorageClassSpec::default()
            },
        ],
        max_volumes_per_node: Some(59),
        tuning: Some(StorageTuning { query_limit: Some(5000), ..StorageTuning::default() }),
        ..storage("vcenter-a")
    }
}

fn online_catalog() -> CompatibilityConfig {
    CompatibilityConfig {
        metadata: meta("compat-matrix-config"),
        spec: CompatibilityConfigSpec {
            matrix_url: Some("https://example.com/vdo/catalog.json".into()),
            poll: Some("6h".into()),
            ..CompatibilityConfigSpec::default()
        },
        status: None,
    }
}

/// What differs between the vCenters of the samples.
struct VsphereSample {
    name: &'static str,
    address: &'static str,
    credentials: &'static str,
    ca: bool,
}

impl VsphereSample {
    fn object(self) -> Value {
        let ca_bundle = self.ca.then(|| CaBundle {
            config_map: Some(KeyRef { name: "vcenter-ca".into(), key: None }),
            ..CaBundle::default()
        });
        let mut object = object(&VsphereCloudConfig {
            metadata: meta(self.name),
            spec: VsphereCloudConfigSpec {
                vc_ip: self.address.into(),
                credentials: self.credentials.into(),
                ca_bundle,
                ..VsphereCloudConfigSpec::default()
            },
            status: None,
        });
        // Always stored, for tools of earlier releases; nobody has to write them.
        if let Some(spec) = object["spec"].as_object_mut() {
            spec.remove("datacenters");
            spec.remove("insecure");
        }
        object
    }
}

fn vcenter_of(name: &'static str, address: &'static str) -> VsphereSample {
    VsphereSample { name, address, credentials: name, ca: false }
}

fn vcenter(name: &'static str, address: &'static str) -> Value {
    vcenter_of(name, address).object()
}

fn storage(vcenter: &str) -> StorageProvider {
    StorageProvider { vsphere_cloud_config: Some(vcenter.into()), ..StorageProvider::default() }
}

fn topology() -> Topology {
    Topology { zone: "k8s-zone".into(), region: "k8s-region".into() }
}

fn vdo(spec: VDOConfigSpec) -> Value {
    object(&VDOConfig { metadata: meta("vdo"), spec, status: None })
}

fn secret(name: &str) -> Value {
    let text = |key: &str, value: &str| (key.to_owned(), value.to_owned());
    object(&Secret {
        metadata: ObjectMeta {
            name: Some(name.to_owned()),
            namespace: Some("kube-system".to_owned()),
            ..ObjectMeta::default()
        },
        type_: Some("kubernetes.io/basic-auth".to_owned()),
        string_data: Some(BTreeMap::from([
            text("username", "vdo@vsphere.local"),
            text("password", "CHANGE-ME"),
        ])),
        ..Secret::default()
    })
}

fn meta(name: &str) -> ObjectMeta {
    ObjectMeta {
        name: Some(name.to_owned()),
        namespace: Some(NAMESPACE.to_owned()),
        ..ObjectMeta::default()
    }
}

fn object(object: &impl serde::Serialize) -> Value {
    serde_json::to_value(object).unwrap_or_default()
}
