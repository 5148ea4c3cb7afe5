//! What stands ready before a page is read, and what must have come of it when it was.

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

/// Account and role at a place, and whether it holds below.
type Grant<'a> = (&'a str, &'a str, bool);

/// The node of a page that is no machine of vSphere.
const BARE_METAL: &str = "bare-metal-1";

impl Reader {
    /// Brings about what a page takes for granted.
    pub(crate) async fn prepares(&self, page: &str) {
        match page {
            "docs/quick-start-openshift.md" => self.is_openshift().await,
            "docs/howto/machines.md" => {
                // As machines are that nobody prepared.
                let raw = json!({"version": "vmx-13", "diskUuid": false});
                self.vcenter.patch_vm("/Frankfurt/vm/k8s/worker-3", raw.clone()).await;
                self.vcenter.patch_vm("/Frankfurt/vm/k8s-template", raw).await;
            }
            "docs/adopt.md" => self.has_the_go_vdo().await,
            // The only node that is no machine of vSphere.
            "docs/platforms.md" => self.cluster.nodes.add(testkit::Node::named(BARE_METAL)).await,
            _ => {}
        }
    }

    /// Looks whether a page did what it promised.
    pub(crate) async fn looks_back(&self, page: &str) {
        match page {
            "docs/howto/privileges.md" => self.has_few_rights().await,
            "docs/howto/machines.md" => self.has_prepared_machines().await,
            "docs/howto/kubelet.md" => self.has_a_prepared_node(),
            "docs/vdoctl.md" => self.sits_at_a_terminal().await,
            "docs/howto/zones.md" => self.has_zones().await,
            "docs/howto/air-gap.md" => self.has_a_mirror(),
            "docs/adopt.md" => self.has_one_operator().await,
            "docs/manual-install.md" => self.has_drivers_by_hand().await,
            "docs/health.md" => self.has_a_log_of_json(),
            "docs/platforms.md" => self.has_a_node_of_another_kind().await,
            "docs/troubleshooting.md" => {
                self.types_asides().await;
                self.tries_remedies().await;
            }
            _ => {}
        }
    }

    /// The one object of OpenShift's that is asked for, where no VDO sees it.
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
        self.desk.write("definition.json", definition.to_string()).unwrap();
        self.desk.write("infrastructure.json", cluster.to_string()).unwrap();
        let script = "
            kubectl create -f definition.json
            kubectl wait --for=condition=Established --timeout=1m -f definition.json
            kubectl create -f infrastructure.json";
        self.succeeds_on(&self.fresh, script).await;
    }

    /// The Deployment of the Go VDO. Its image cannot be had; that it is there is what VDO looks at.
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
        self.desk.write("go-vdo.json", deployment.to_string()).unwrap();
        self.succeeds("kubectl create -f go-vdo.json").await;
        eventually("VDO sees the other operator", 60, async || {
            let codes = self.codes().await;
            if codes.iter().any(|code| code == "VDO-1908") { Ok(()) } else { Err(codes.join(" ")) }
        })
        .await;
    }

    /// VDO looks for no machine of the node that is told to have none, and it goes again.
    async fn has_a_node_of_another_kind(&self) {
        let output = shown(&self.types("vdoctl doctor --only VDO-12 -o json").await);
        assert!(!output.contains(BARE_METAL), "{output}");
        self.succeeds(&format!("kubectl delete node {BARE_METAL}")).await;
    }

    async fn has_one_operator(&self) {
        eventually("VDO is alone", 60, async || {
            let codes = self.codes().await;
            if codes.iter().any(|code| code == "VDO-1908") { Err(codes.join(" ")) } else { Ok(()) }
        })
        .await;
    }

    /// The findings VDO reports.
    async fn codes(&self) -> Vec<String> {
        let configs = Api::<VDOConfig>::namespaced(self.cluster.plane.client(), api::NAMESPACE);
        let status = configs.get("vdo").await.unwrap().status.unwrap_or_default();
        status.findings.into_iter().map(|finding| finding.code).collect()
    }

    /// The account of the pages has what the page gives it, no more, and it is enough.
    async fn has_few_rights(&self) {
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
            let output = shown(&self.types("vdoctl doctor").await);
            if output.contains("No problems") { Ok(()) } else { Err(output) }
        })
        .await;
    }

    async fn has_prepared_machines(&self) {
        let truth = self.vcenter.truth().await;
        let machine = |name: &str| {
            let mut all = truth["datacenters"][0]["vms"].as_array().unwrap().iter();
            all.find(|vm| vm["name"] == name).unwrap().clone()
        };
        for (name, power, template) in [("worker-3", "on", false), ("k8s-template", "off", true)] {
            let vm = machine(name);
            assert_eq!(vm["version"], "vmx-15", "{vm}");
            assert_eq!(vm["diskUuid"], true, "{vm}");
            assert_eq!(vm["power"], power, "{vm}");
            assert_eq!(vm["template"] == true, template, "{vm}");
        }
        let nodes = Api::<Node>::all(self.cluster.plane.client());
        let spec = nodes.get("worker-3").await.unwrap().spec.unwrap_or_default();
        assert_ne!(spec.unschedulable, Some(true), "pods may come back");
    }

    /// Every image went under its own path and tag, and what has a digest was fetched by it.
    fn has_a_mirror(&self) {
        let read = |name: &str| std::fs::read_to_string(self.desk.path().join(name)).unwrap();
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

    /// Upstream's cloud controller initialised every node, by uuid, with zone and region; upstream's
    /// storage driver understands what it is given. That its pods are ready the simulated kubelet says.
    async fn has_drivers_by_hand(&self) {
        let truth = self.vcenter.truth().await;
        let vms = truth["datacenters"][0]["vms"].as_array().unwrap();
        for node in nodes_of(&self.fresh).await {
            let name = node.metadata.name.unwrap_or_default();
            let machine = vms.iter().find(|vm| vm["name"] == name.as_str()).unwrap();
            let spec = node.spec.unwrap_or_default();
            let id = format!("vsphere://{}", machine["uuid"].as_str().unwrap());
            assert_eq!(spec.provider_id, Some(id), "{name}");
            let mut taints = spec.taints.iter().flatten().map(|taint| taint.key.as_str());
            let waits = taints.any(|key| key == "node.cloudprovider.kubernetes.io/uninitialized");
            assert!(!waits, "{name}");
            let labels = node.metadata.labels.unwrap_or_default();
            let label = |key: &str| labels.get(&format!("topology.kubernetes.io/{key}")).cloned();
            let zone = machine["cluster"].as_str().unwrap().replace("cluster", "zone");
            assert_eq!(label("zone"), Some(zone), "{name}");
            assert_eq!(label("region").as_deref(), Some("frankfurt"), "{name}");
        }
        let read = self.understood_by_the_storage_driver();
        assert_eq!(read["error"], Value::Null, "{read}");
        let address = self.vcenter.address();
        let vcenter = &read["config"]["VirtualCenter"][address.ip().to_string()];
        assert_eq!(vcenter["User"], "vdo@vsphere.local", "{read}");
        assert_eq!(vcenter["Datacenters"], "Frankfurt", "{read}");
        assert_eq!(vcenter["VCenterPort"], address.port().to_string(), "{read}");
        let zones = &read["config"]["Labels"]["TopologyCategories"];
        assert_eq!(zones, "k8s-region,k8s-zone", "{read}");
    }

    /// What upstream's own loader makes of the file on the desk.
    fn understood_by_the_storage_driver(&self) -> Value {
        let text = std::fs::read_to_string(self.desk.path().join("csi-vsphere.conf")).unwrap();
        let question = json!([{ "text": text }]).to_string();
        let file = self.desk.write("question.json", question).unwrap();
        let loader = Command::new(testkit::peer("config-loader-csi"))
            .env_clear()
            .stdin(std::fs::File::open(file).unwrap())
            .stderr(Stdio::null())
            .output()
            .unwrap();
        let answers: Value = serde_json::from_slice(&loader.stdout).unwrap();
        answers[0].clone()
    }

    /// The log nobody can ask a simulated kubelet for is as the page says.
    fn has_a_log_of_json(&self) {
        let log = std::fs::read_to_string(self.desk.path().join("vdo.log")).unwrap();
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
