//! The state that a page requires, and the checks after it.

use std::process::{Command, Stdio};

use api::VDOConfig;
use k8s_openapi::api::core::v1::Node;
use kube::{Api, api::ListParams};
use serde_json::{Value, json};
use testkit::eventually;

use crate::{
    reader::{Reader, shown},
    site::Cluster,
};

/// User, role and whether it propagates.
type Grant<'a> = (&'a str, &'a str, bool);

/// The node of a page that is not a vSphere VM.
const BARE_METAL: &str = "bare-metal-1";

impl Reader {
    /// Sets up the state that a page requires.
    pub(crate) async fn set_up_page(&self, page: &str) {
        match page {
            "docs/quick-start-openshift.md" => self.is_openshift().await,
            "docs/howto/vms.md" => {
                // VMs before their preparation.
                let raw = json!({"version": "vmx-13", "diskUuid": false});
                self.vcenter.patch_vm("/Frankfurt/vm/k8s/worker-3", raw.clone()).await;
                self.vcenter.patch_vm("/Frankfurt/vm/k8s-template", raw).await;
            }
            "docs/adopt.md" => self.has_the_go_vdo().await,
            // The only node that is not a vSphere VM.
            "docs/platforms.md" => self.cluster.nodes.add(testkit::Node::named(BARE_METAL)).await,
            _ => {}
        }
    }

    /// Checks that a page had its effect.
    pub(crate) async fn verify_page(&self, page: &str) {
        match page {
            "docs/howto/privileges.md" => self.has_minimal_privileges().await,
            "docs/howto/vms.md" => self.has_prepared_vms().await,
            "docs/howto/kubelet.md" => self.assert_prepared_node(),
            "docs/vdoctl.md" => self.run_terminal_blocks().await,
            "docs/howto/zones.md" => self.has_zones().await,
            "docs/howto/air-gap.md" => self.has_a_mirror(),
            "docs/adopt.md" => self.has_one_operator().await,
            "docs/manual-install.md" => self.has_drivers_by_hand().await,
            "docs/health.md" => self.has_a_log_of_json(),
            "docs/platforms.md" => self.has_a_node_of_another_kind().await,
            "docs/troubleshooting.md" => {
                self.run_inline_commands().await;
                self.run_finding_commands().await;
            }
            _ => {}
        }
    }

    /// Creates the OpenShift object that VDO reads, in a cluster without VDO.
    async fn is_openshift(&self) {
        let anything = json!({"type": "object", "x-kubernetes-preserve-unknown-fields": true});
        let names = json!({
            "kind": "Infrastructure", "listKind": "InfrastructureList",
            "plural": "infrastructures", "singular": "infrastructure",
        });
        let version = json!({
            "name": "v1", "served": true, "storage": true, "schema": {"openAPIV3Schema": anything},
        });
        let definition = json!({
            "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
            "metadata": {
                "name": "infrastructures.config.openshift.io",
                "annotations": {"api-approved.kubernetes.io": "unapproved, a stand-in"},
            },
            "spec": {
                "group": "config.openshift.io", "scope": "Cluster", "names": names,
                "versions": [version],
            },
        });
        let cluster = json!({
            "apiVersion": "config.openshift.io/v1", "kind": "Infrastructure",
            "metadata": {"name": "cluster"},
            "status": {"platformStatus": {"type": "VSphere"}},
        });
        self.workdir.write("definition.json", definition.to_string()).unwrap();
        self.workdir.write("infrastructure.json", cluster.to_string()).unwrap();
        let script = "
            kubectl create -f definition.json
            kubectl wait --for=condition=Established --timeout=1m -f definition.json
            kubectl create -f infrastructure.json";
        self.run_successfully_on(&self.fresh, script).await;
    }

    /// The Deployment of the Go VDO. Its image is not available; VDO checks only that it exists.
    async fn has_the_go_vdo(&self) {
        let labels = json!({"control-plane": "controller-manager"});
        let containers = json!([{"name": "manager", "image": "vmware.com/vdo:0.2.0"}]);
        let deployment = json!({
            "apiVersion": "apps/v1", "kind": "Deployment",
            "metadata": {"name": "vdo-controller-manager", "namespace": api::NAMESPACE},
            "spec": {
                "selector": {"matchLabels": labels},
                "template": {"metadata": {"labels": labels}, "spec": {"containers": containers}},
            },
        });
        self.workdir.write("go-vdo.json", deployment.to_string()).unwrap();
        self.run_successfully("kubectl create -f go-vdo.json").await;
        eventually("VDO sees the other operator", 60, async || {
            let codes = self.codes().await;
            if codes.iter().any(|code| code == "VDO-1908") { Ok(()) } else { Err(codes.join(" ")) }
        })
        .await;
    }

    /// VDO does not look for the VM of the labelled node. Removes the node.
    async fn has_a_node_of_another_kind(&self) {
        let output = shown(&self.run_script("vdoctl doctor --only VDO-12 -o json").await);
        assert!(!output.contains(BARE_METAL), "{output}");
        self.run_successfully(&format!("kubectl delete node {BARE_METAL}")).await;
    }

    async fn has_one_operator(&self) {
        eventually("VDO is alone", 60, async || {
            let codes = self.codes().await;
            if codes.iter().any(|code| code == "VDO-1908") { Err(codes.join(" ")) } else { Ok(()) }
        })
        .await;
    }

    async fn codes(&self) -> Vec<String> {
        let configs = Api::<VDOConfig>::namespaced(self.cluster.plane.client(), api::NAMESPACE);
        let status = configs.get("vdo").await.unwrap().status.unwrap_or_default();
        status.findings.into_iter().map(|finding| finding.code).collect()
    }

    /// The account has exactly the privileges that the page grants, and they are sufficient.
    async fn has_minimal_privileges(&self) {
        let truth = self.vcenter.truth().await;
        let given = truth["permissions"].as_array().unwrap().iter();
        let mut given: Vec<Grant<'_>> = given
            .filter(|grant| grant["principal"] == "vdo@vsphere.local")
            .map(|grant| {
                let text = |key: &str| grant[key].as_str().unwrap();
                (text("entity"), text("role"), grant["propagate"] == true)
            })
            .collect();
        given.sort_unstable();
        let expected = [
            ("/", "CNS-SEARCH-AND-SPBM", false),
            ("/Frankfurt", "ReadOnly", false),
            ("/Frankfurt/datastore", "ReadOnly", false),
            ("/Frankfurt/datastore/k8s", "CNS-DATASTORE", true),
            ("/Frankfurt/host", "ReadOnly", true),
            ("/Frankfurt/vm", "ReadOnly", false),
            ("/Frankfurt/vm/k8s", "CNS-VM", true),
        ];
        assert_eq!(given, expected);
        eventually("all checks are done with that account, and none complains", 60, async || {
            let output = shown(&self.run_script("vdoctl doctor").await);
            if output.contains("No problems") { Ok(()) } else { Err(output) }
        })
        .await;
    }

    async fn has_prepared_vms(&self) {
        let truth = self.vcenter.truth().await;
        let vm_named = |name: &str| {
            let mut all = truth["datacenters"][0]["vms"].as_array().unwrap().iter();
            all.find(|vm| vm["name"] == name).unwrap().clone()
        };
        for (name, power, template) in [("worker-3", "on", false), ("k8s-template", "off", true)] {
            let vm = vm_named(name);
            assert_eq!(vm["version"], "vmx-15", "{vm}");
            assert_eq!(vm["diskUuid"], true, "{vm}");
            assert_eq!(vm["power"], power, "{vm}");
            assert_eq!(vm["template"] == true, template, "{vm}");
        }
        let nodes = Api::<Node>::all(self.cluster.plane.client());
        let spec = nodes.get("worker-3").await.unwrap().spec.unwrap_or_default();
        assert_ne!(spec.unschedulable, Some(true), "the node must be schedulable");
    }

    /// Every image is copied to its own path and tag, and images with a digest are copied by digest.
    fn has_a_mirror(&self) {
        let read = |name: &str| std::fs::read_to_string(self.workdir.path().join(name)).unwrap();
        let (images, copied) = (read("images.txt"), read("copied.txt"));
        assert!(images.contains("@sha256:"), "{images}");
        let expected: Vec<String> = images
            .lines()
            .map(|image| {
                let (tagged, digest) = image.split_once('@').unwrap_or((image, ""));
                let (name, _) = tagged.rsplit_once(':').unwrap();
                let from = if digest.is_empty() { tagged } else { &format!("{name}@{digest}") };
                let (_, path) = tagged.split_once('/').unwrap();
                format!("{from} registry.example.com/vsphere/{path}")
            })
            .collect();
        assert_eq!(copied.lines().collect::<Vec<_>>(), expected);
    }

    async fn has_zones(&self) {
        let truth = self.vcenter.truth().await;
        let attached = |category: &str, tag: &str| {
            let categories = truth["categories"].as_array().unwrap();
            let category = categories.iter().find(|one| one["name"] == category).unwrap();
            let tags = category["tags"].as_array().unwrap();
            tags.iter().find(|one| one["name"] == tag).unwrap()["attached"].clone()
        };
        assert_eq!(attached("k8s-region", "frankfurt"), json!(["/Frankfurt"]));
        assert_eq!(attached("k8s-zone", "zone-a"), json!(["/Frankfurt/host/cluster-a"]));
        assert_eq!(attached("k8s-zone", "zone-b"), json!(["/Frankfurt/host/cluster-b"]));
    }

    /// Upstream's cloud controller initialised every node by uuid, with zone and region, and upstream's storage driver reads
    /// its configuration. The simulated kubelet reports its pods as ready.
    async fn has_drivers_by_hand(&self) {
        let truth = self.vcenter.truth().await;
        let vms = truth["datacenters"][0]["vms"].as_array().unwrap();
        for node in nodes_of(&self.fresh).await {
            let name = node.metadata.name.unwrap_or_default();
            let vm = vms.iter().find(|vm| vm["name"] == name.as_str()).unwrap();
            let spec = node.spec.unwrap_or_default();
            let id = format!("vsphere://{}", vm["uuid"].as_str().unwrap());
            assert_eq!(spec.provider_id, Some(id), "{name}");
            let mut taints = spec.taints.iter().flatten().map(|taint| taint.key.as_str());
            let waits = taints.any(|key| key == "node.cloudprovider.kubernetes.io/uninitialized");
            assert!(!waits, "{name}");
            let labels = node.metadata.labels.unwrap_or_default();
            let label = |key: &str| labels.get(&format!("topology.kubernetes.io/{key}")).cloned();
            let zone = vm["cluster"].as_str().unwrap().replace("cluster", "zone");
            assert_eq!(label("zone"), Some(zone), "{name}");
            assert_eq!(label("region").as_deref(), Some("frankfurt"), "{name}");
        }
        let read = self.storage_configuration();
        assert_eq!(read["error"], Value::Null, "{read}");
        let address = self.vcenter.address();
        let vcenter = &read["config"]["VirtualCenter"][address.ip().to_string()];
        assert_eq!(vcenter["User"], "vdo@vsphere.local", "{read}");
        assert_eq!(vcenter["Datacenters"], "Frankfurt", "{read}");
        assert_eq!(vcenter["VCenterPort"], address.port().to_string(), "{read}");
        let zones = &read["config"]["Labels"]["TopologyCategories"];
        assert_eq!(zones, "k8s-region,k8s-zone", "{read}");
    }

    /// The configuration file as upstream's loader reads it.
    fn storage_configuration(&self) -> Value {
        let text = std::fs::read_to_string(self.workdir.path().join("csi-vsphere.conf")).unwrap();
        let question = json!([{ "text": text }]).to_string();
        let file = self.workdir.write("question.json", question).unwrap();
        let loader = Command::new(testkit::peer("config-loader-csi"))
            .env_clear()
            .stdin(std::fs::File::open(file).unwrap())
            .stderr(Stdio::null())
            .output()
            .unwrap();
        let answers: Value = serde_json::from_slice(&loader.stdout).unwrap();
        answers[0].clone()
    }

    /// The log of the operator is JSON, as the page says; a simulated kubelet cannot serve it.
    fn has_a_log_of_json(&self) {
        let log = std::fs::read_to_string(self.workdir.path().join("vdo.log")).unwrap();
        assert!(!log.is_empty());
        for line in log.lines() {
            assert!(serde_json::from_str::<Value>(line).is_ok(), "not JSON: {line}");
            assert!(!line.contains("CHANGE-ME"), "a password: {line}");
        }
    }
}

async fn nodes_of(cluster: &Cluster) -> Vec<Node> {
    let nodes = Api::<Node>::all(cluster.plane.client());
    let nodes = nodes.list(&ListParams::default()).await.unwrap().items;
    assert!(!nodes.is_empty());
    nodes
}
