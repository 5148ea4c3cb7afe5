//! Samples for the common cases. `make generate` writes them to `deploy/samples`; the tests apply them
//! to a real API server.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::Secret;
use kube::core::ObjectMeta;
use serde_json::Value;

use crate::vdo_config::{
    AcknowledgedFinding, Adoption, Amounts, CloudProvider, ContainerOverrides, DeletionPolicy,
    FileVolumes, FsType, Images, Implementation, IpFamily, LogLevel, Mirror, Mode, NetPermission,
    NodeAddresses, NodeDeletion, Nsx, NsxLoadBalancer, NsxLoadBalancerSize, Overrides,
    PodToleration, Proxy, ReclaimPolicy, Remediation, Remedy, Resources, Snapshots,
    StorageClassSpec, StorageProvider, StorageTuning, TaintEffect, Topology, UpgradePolicy,
    UpgradeWindow, Upgrades, VDOConfigSpec, Variable, Weekday, WorkloadOverrides,
};
use crate::vsphere_cloud_config::{CaBundle, KeyRef, VsphereCloudConfigSpec};
use crate::{
    CompatibilityConfig, CompatibilityConfigSpec, NAMESPACE, VDOConfig, VsphereCloudConfig,
};

#[derive(Debug, Clone)]
pub struct Sample {
    /// Name of the file, without its extension.
    pub name: &'static str,
    pub about: &'static str,
    /// Preparations without which the sample cannot work, one sentence each.
    pub needs: &'static [&'static str],
    /// The objects, in the order in which they are applied.
    pub objects: Vec<Value>,
}

impl Sample {
    /// The comment at the top of the file.
    pub fn header(&self) -> String {
        let mut lines =
            vec![format!("# {}", self.about), "#".into(), "# Before you apply it:".into()];
        lines.extend(self.needs.iter().map(|need| format!("# - {need}")));
        lines.join("\n") + "\n"
    }
}

const YOUR_VCENTER: &str = "Replace the address, user and password of the vCenter with your own.";
const TAG_CATEGORIES: &str = "In vCenter, create the tag categories k8s-region and k8s-zone, and tag datacenters, clusters or hosts \
     with your regions and zones.";
const GOLD_POLICY: &str =
    "In vCenter, create the storage policy Gold, or write the name of a policy you have.";

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
        about: "Cloud provider and storage on one vCenter. VDO chooses everything else.",
        needs: &[YOUR_VCENTER],
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
        about: "Storage only, for clusters whose nodes need no cloud provider.",
        needs: &[
            YOUR_VCENTER,
            "Write the name of a storage policy you have; vSAN Default Storage Policy needs vSAN.",
        ],
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
        about: "Nodes and volumes on two vCenters. Zones decide which vCenter a volume is created on.",
        needs: &[
            "Replace the address, user and password of both vCenters with your own.",
            "In both vCenters, create the tag categories k8s-region and k8s-zone, and tag datacenters, clusters or \
             hosts with your regions and zones.",
        ],
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
        about: "Zones and regions from vCenter tags. Each volume is created in the zone of its pod.",
        needs: &[YOUR_VCENTER, TAG_CATEGORIES, GOLD_POLICY],
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
        about: "Volumes that many pods can write (RWX), on vSAN file shares that only the nodes can mount.",
        needs: &[
            YOUR_VCENTER,
            "In vCenter, turn on the vSAN File Service of a cluster, and replace domain-c8 with the id of that cluster.",
            "Replace 10.20.0.0/16 with the subnet of your nodes.",
        ],
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
        about: "No Internet access: images come from a mirror, the catalog of driver releases from a ConfigMap.",
        needs: &[
            YOUR_VCENTER,
            "Copy the images to your registry and replace registry.example.com/vsphere with its name; \
             vdoctl images lists them.",
            "Create the pull Secret registry in namespace vmware-system-vdo.",
            "Create the ConfigMap vdo-catalog in namespace vmware-system-vdo, with a catalog under the key \
             catalog.yaml; without a newer catalog, delete the CompatibilityConfig.",
        ],
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
        about: "OpenShift on vSphere installs both drivers. VDO only observes them and reports findings.",
        needs: &[
            "Replace the address of the vCenter with your own. The Secret vsphere-creds in namespace kube-system is \
             part of OpenShift on vSphere.",
        ],
        objects: vec![
            VsphereSample {
                credentials: "vsphere-creds",
                ..sample_vcenter("vcenter-a", "vc-a.example.com")
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
        about: "The syntax of most fields, in one place. Copy the fields that you need.",
        needs: &[
            "Use Kubernetes 1.35: the two pinned releases have only this version in common.",
            YOUR_VCENTER,
            "Create the ConfigMap vcenter-ca in namespace vmware-system-vdo, with your certificate authority under the \
             key ca.crt.",
            "Sign a catalog with vdoctl catalog sign, publish it at matrixURL, and replace publicKey with your key.",
            TAG_CATEGORIES,
            GOLD_POLICY,
            "Replace the URL of the datastore of StorageClass scratch.",
            "Create the Secret nsx in namespace kube-system, with the keys username and password for nsx.example.com.",
            "Mirror registry.k8s.io to registry.example.com/k8s.",
            "Replace the proxy http://proxy.example.com:3128, or remove it.",
        ],
        objects: vec![
            secret("vcenter-a"),
            VsphereSample { ca: true, ..sample_vcenter("vcenter-a", "vc-a.example.com") }.object(),
            object(&online_catalog()),
            vdo(VDOConfigSpec {
                cloud_provider: Some(power_cloud_provider()),
                storage_provider: Some(power_storage_provider()),
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
                overrides: Some(power_overrides()),
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
                    reason: "the nightly backup takes snapshots".to_owned(),
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
        version: Some("1.35.1".into()),
        nodes: Some(NodeAddresses {
            internal_subnets: vec!["10.0.0.0/16".into(), "fd00:10::/64".into()],
            exclude_internal_subnets: vec!["10.0.0.10/32".into()],
            external_network: Some("dmz".into()),
            ip_families: vec![IpFamily::IPv4, IpFamily::IPv6],
            ..NodeAddresses::default()
        }),
        node_deletion: Some(NodeDeletion::Never),
        host_labels: Some(false),
        refresh_labels: Some(false),
        require_zones: Some(false),
        out_of_service_taint: Some(false),
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
        ..CloudProvider::default()
    }
}

fn power_overrides() -> Overrides {
    let amounts =
        |cpu: &str, memory: &str| Amounts { cpu: Some(cpu.into()), memory: Some(memory.into()) };
    let attacher = ContainerOverrides {
        args: vec!["--worker-threads=20".to_owned()],
        ..ContainerOverrides::default()
    };
    Overrides {
        proxy: Some(Proxy {
            url: "http://proxy.example.com:3128".into(),
            except: vec!["10.0.0.0/8".to_owned()],
        }),
        cloud_controller: Some(WorkloadOverrides {
            tolerations: vec![PodToleration {
                key: "dedicated".to_owned(),
                value: Some("infra".to_owned()),
                effect: Some(TaintEffect::NoSchedule),
            }],
            ..WorkloadOverrides::default()
        }),
        storage_controller: Some(WorkloadOverrides {
            replicas: Some(2),
            resources: Some(Resources {
                requests: Some(amounts("100m", "256Mi")),
                limits: Some(Amounts { cpu: None, memory: Some("1Gi".into()) }),
            }),
            log_level: Some(LogLevel::Debug),
            containers: BTreeMap::from([("csi-attacher".to_owned(), attacher)]),
            ..WorkloadOverrides::default()
        }),
        storage_node: Some(WorkloadOverrides {
            priority_class: Some("system-node-critical".into()),
            env: vec![Variable { name: "GOMAXPROCS".to_owned(), value: "2".to_owned() }],
            ..WorkloadOverrides::default()
        }),
    }
}

fn power_storage_provider() -> StorageProvider {
    StorageProvider {
        version: Some("3.7.3".into()),
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
            // The bytes of the key read "replace-this-with-your-own-key!!".
            public_key: Some("cmVwbGFjZS10aGlzLXdpdGgteW91ci1vd24ta2V5ISE=".into()),
            ..CompatibilityConfigSpec::default()
        },
        status: None,
    }
}

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
        // The type always serialises these two, because tools of the Go VDO expect them. Users can omit them.
        if let Some(spec) = object["spec"].as_object_mut() {
            spec.remove("datacenters");
            spec.remove("insecure");
        }
        object
    }
}

fn sample_vcenter(name: &'static str, address: &'static str) -> VsphereSample {
    VsphereSample { name, address, credentials: name, ca: false }
}

fn vcenter(name: &'static str, address: &'static str) -> Value {
    sample_vcenter(name, address).object()
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
            namespace: Some(NAMESPACE.to_owned()),
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

#[cfg(test)]
mod tests {
    use super::*;

    /// Fields whose value must exist outside the sample.
    const EXTERNAL: [&str; 15] = [
        "/spec/bundle/configMap",
        "/spec/caBundle/configMap/name",
        "/spec/cloudProvider/nsx/credentials",
        "/spec/cloudProvider/nsx/host",
        "/spec/cloudProvider/topology/region",
        "/spec/cloudProvider/topology/zone",
        "/spec/images/mirrors/0/from",
        "/spec/images/mirrors/0/to",
        "/spec/images/pullSecrets/0",
        "/spec/images/registry",
        "/spec/overrides/proxy/url",
        "/spec/storageProvider/fileVolumes/netPermissions/0/ips",
        "/spec/storageProvider/fileVolumes/vsanClusters/0",
        "/spec/storageProvider/storageClasses/0/storagePolicy",
        "/spec/storageProvider/storageClasses/1/storagePolicy",
    ];

    #[test]
    fn a_header_names_everything_that_the_sample_does_not_contain() {
        for sample in samples() {
            let header = sample.header();
            let secrets: Vec<&Value> =
                sample.objects.iter().filter(|object| object["kind"] == "Secret").collect();
            for object in &sample.objects {
                for path in &EXTERNAL {
                    let Some(value) = object.pointer(path).and_then(Value::as_str) else {
                        continue;
                    };
                    assert!(header.contains(value), "{}: {path} {value}", sample.name);
                }
                if object["kind"] == "VsphereCloudConfig" {
                    let name = &object["spec"]["credentials"];
                    let contained =
                        secrets.iter().any(|secret| secret["metadata"]["name"] == *name);
                    let named = header.contains(name.as_str().unwrap());
                    assert!(contained || named, "{}: {name}", sample.name);
                }
                let classes = object.pointer("/spec/storageProvider/storageClasses");
                for class in classes.and_then(Value::as_array).into_iter().flatten() {
                    let on_datastore = class.get("datastoreUrl").is_some();
                    let name = class["name"].as_str().unwrap();
                    assert!(!on_datastore || header.contains(name), "{}: {name}", sample.name);
                }
            }
        }
    }

    #[test]
    fn a_catalog_from_the_network_comes_with_a_key() {
        for sample in samples() {
            for object in sample.objects.iter().filter(|o| o["spec"].get("matrixURL").is_some()) {
                assert!(object["spec"]["publicKey"].is_string(), "{}", sample.name);
                assert!(sample.header().contains("publicKey"), "{}", sample.name);
            }
        }
    }

    #[test]
    fn every_vcenter_a_sample_names_is_in_the_sample() {
        for sample in samples() {
            for object in sample.objects.iter().filter(|object| object["kind"] == "VDOConfig") {
                let spec: VDOConfigSpec = serde_json::from_value(object["spec"].clone()).unwrap();
                for name in spec.vcenters() {
                    let here = |o: &Value| {
                        o["kind"] == "VsphereCloudConfig" && o["metadata"]["name"] == *name.0
                    };
                    assert!(sample.objects.iter().any(here), "{}: {name}", sample.name);
                }
            }
        }
    }
}
