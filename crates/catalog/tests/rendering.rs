//! Rendered objects are hardened in every release and fit every cluster.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::assigning_clones,
    reason = "a test that cannot set itself up should fall, and reads better plain"
)]

mod support;

use std::collections::BTreeSet;

use catalog::{
    Driver, Implementation, Release, embedded,
    manifest::{Object, Profile, Rendered, Stage, images_to_mirror, render},
};
use serde_json::{Value, json};
use support::{air_gap, full, openshift, plain, profiles, release};

/// Every release for every profile.
fn everything() -> impl Iterator<Item = (String, &'static Release, Profile, Rendered)> {
    embedded().releases.iter().flat_map(|release| {
        profiles().into_iter().map(move |(name, profile)| {
            let at = format!("{} {} for {name}", release.driver, release.version);
            let rendered =
                render(release, &profile).unwrap_or_else(|error| panic!("{at}: {error}"));
            (at, release, profile, rendered)
        })
    })
}

fn containers(object: &Object) -> Vec<Value> {
    let template = object.pod_template();
    let list =
        template.and_then(|template| template.pointer("/spec/containers")?.as_array().cloned());
    list.unwrap_or_default()
}

fn container(rendered: &Rendered, kind: &str, name: &str, container: &str) -> Value {
    let object = rendered.find(kind, name).unwrap();
    containers(object).into_iter().find(|it| it["name"] == container).unwrap()
}

fn has_flag(container: &Value, flag: &str) -> bool {
    container["args"].as_array().unwrap().contains(&json!(flag))
}

#[test]
fn no_rule_of_any_role_has_a_wildcard() {
    for (at, _, _, rendered) in everything() {
        for object in &rendered.objects {
            for rule in object.0["rules"].as_array().into_iter().flatten() {
                for field in ["apiGroups", "resources", "verbs"] {
                    let values = rule[field].as_array().unwrap();
                    assert!(!values.is_empty() && !values.contains(&json!("*")), "{at}: {rule}");
                }
            }
        }
    }
}

#[test]
fn every_bound_account_and_role_exists() {
    for (at, _, _, rendered) in everything() {
        for binding in rendered.objects.iter().filter(|object| object.kind().ends_with("Binding")) {
            for subject in binding.0["subjects"].as_array().unwrap() {
                let name = subject["name"].as_str().unwrap();
                let account = rendered.find("ServiceAccount", name).unwrap();
                assert_eq!(account.namespace(), subject["namespace"], "{at}: {name}");
            }
            let role = &binding.0["roleRef"];
            let name = role["name"].as_str().unwrap();
            if name != "extension-apiserver-authentication-reader" {
                assert!(
                    rendered.find(role["kind"].as_str().unwrap(), name).is_some(),
                    "{at}: {name}"
                );
            }
        }
    }
}

#[test]
fn every_container_has_requests_and_probes() {
    // The registrar on Windows has no health endpoint; liveness-probe probes others, not itself.
    let unwatched = ["liveness-probe"];
    for (at, _, _, rendered) in everything() {
        for object in &rendered.objects {
            let windows = object.name() == "vsphere-csi-node-windows";
            for it in containers(object) {
                let name = it["name"].as_str().unwrap();
                assert!(it.pointer("/resources/requests/cpu").is_some(), "{at}: {name}");
                assert!(it.pointer("/resources/requests/memory").is_some(), "{at}: {name}");
                assert_eq!(it["imagePullPolicy"], "IfNotPresent", "{at}: {name}");
                let watched = it.get("livenessProbe").is_some();
                let excused =
                    unwatched.contains(&name) || windows && name == "node-driver-registrar";
                assert!(watched || excused, "{at}: {name} has no probe");
            }
        }
    }
}

#[test]
fn every_container_that_fails_leaves_its_log_in_the_status_of_its_pod() {
    for (at, _, _, rendered) in everything() {
        for object in &rendered.objects {
            let Some(template) = object.pod_template() else { continue };
            for kind in ["containers", "initContainers"] {
                let all = template["spec"][kind].as_array();
                for container in all.into_iter().flatten() {
                    let policy = &container["terminationMessagePolicy"];
                    assert_eq!(policy, "FallbackToLogsOnError", "{at}: {}", container["name"]);
                }
            }
        }
    }
}

#[test]
fn only_the_node_driver_is_privileged() {
    for (at, release, _, rendered) in everything() {
        for object in
            rendered.objects.iter().filter(|object| object.name() != "vsphere-csi-node-windows")
        {
            for it in containers(object) {
                let name = it["name"].as_str().unwrap();
                let context = &it["securityContext"];
                if name == "vsphere-csi-node" {
                    assert_eq!(context["privileged"], true, "{at}");
                    continue;
                }
                assert_eq!(context["allowPrivilegeEscalation"], false, "{at}: {name}");
                assert_eq!(context["readOnlyRootFilesystem"], true, "{at}: {name}");
                assert_eq!(context["capabilities"]["drop"], json!(["ALL"]), "{at}: {name}");
                // Releases before 3.1 run only as root; so do containers with a socket on the node.
                let upstream = release.implementation == Implementation::Upstream;
                let root = release.driver == Driver::Csi && upstream && release.line() < (3, 1);
                let on_node = object.kind() == "DaemonSet" && release.driver == Driver::Csi;
                let snapshots = name == "snapshot-controller";
                assert_eq!(
                    context["runAsNonRoot"] == true,
                    snapshots || !root && !on_node,
                    "{at}: {name}"
                );
            }
        }
    }
}

#[test]
fn the_namespace_of_a_privileged_pod_allows_it() {
    for (at, _, _, rendered) in everything() {
        for object in rendered.objects.iter().filter(|object| object.pod_template().is_some()) {
            if object.namespace() == "kube-system" {
                continue;
            }
            let namespace = rendered.find("Namespace", object.namespace()).unwrap();
            for mode in ["enforce", "audit", "warn"] {
                let label = format!("pod-security.kubernetes.io/{mode}");
                assert_eq!(namespace.0["metadata"]["labels"][label], "privileged", "{at}");
            }
        }
        assert!(rendered.find("Namespace", "kube-system").is_none(), "{at}: not ours to label");
    }
}

#[test]
fn objects_are_ordered_by_their_dependencies() {
    for (at, _, _, rendered) in everything() {
        let stages: Vec<_> = rendered.objects.iter().map(Object::stage).collect();
        assert!(stages.is_sorted(), "{at}: {stages:?}");
    }
    let rendered = render(release(Driver::Csi, "3.8.0"), &full()).unwrap();
    let at = |kind: &str, name: &str| {
        rendered
            .objects
            .iter()
            .position(|object| object.kind() == kind && object.name() == name)
            .unwrap()
    };
    let crd = at("CustomResourceDefinition", "csinodetopologies.cns.vmware.com");
    assert!(crd < at("Deployment", "vsphere-csi-controller"));
    assert!(at("Deployment", "vsphere-csi-controller") < at("DaemonSet", "vsphere-csi-node"));
    assert_eq!(rendered.objects.last().unwrap().stage(), Stage::Admission);
}

#[test]
fn images_that_can_be_pulled_are_pinned_and_rendered_from_the_release() {
    for (at, release, profile, rendered) in everything() {
        let known: BTreeSet<_> = images_to_mirror(release)
            .iter()
            .map(|image| profile.images.rewrite.apply(image).to_string())
            .collect();
        assert!(rendered.images.is_subset(&known), "{at}: {:?}", rendered.images);
        for image in images_to_mirror(release) {
            let young = ["/csi-vsphere/driver:v3.8.0", "/csi-vsphere/syncer:v3.8.0"];
            // Our own image is pulled by its release tag.
            let excused = embedded().why_unavailable(&image).is_some()
                || release.implementation == Implementation::Rust
                || young.iter().any(|name| image.tagged().ends_with(name));
            assert!(image.digest.is_some() || excused, "{at}: {image}");
        }
    }
}

#[test]
fn a_mirror_and_its_secret_reach_every_pod() {
    for release in &embedded().releases {
        let rendered = render(release, &air_gap()).unwrap();
        for image in &rendered.images {
            assert!(image.starts_with("harbor.example.com:8443/vdo/"), "{image}");
        }
        for object in rendered.objects.iter().filter_map(Object::pod_template) {
            assert_eq!(object["spec"]["imagePullSecrets"], json!([{ "name": "harbor" }]));
        }
    }
}

#[test]
fn digests_can_be_omitted_for_mirrors_that_copy_one_platform() {
    let mut profile = plain();
    profile.images.pinned = false;
    let rendered = render(release(Driver::Cpi, "1.36.0"), &profile).unwrap();
    let images: Vec<_> = rendered.images.into_iter().collect();
    assert_eq!(images, ["registry.k8s.io/cloud-pv-vsphere/cloud-provider-vsphere:v1.36.0"]);
}

#[test]
fn the_kubelet_path_changes_in_every_object() {
    let mut profile = full();
    profile.kubelet_path = "/opt/rke/var/lib/kubelet".to_owned();
    for version in ["2.7.0", "3.4.0", "3.8.0"] {
        let rendered = render(release(Driver::Csi, version), &profile).unwrap();
        let node = rendered.find("DaemonSet", "vsphere-csi-node").unwrap().0.to_string();
        let moved = node.matches("/opt/rke/var/lib/kubelet").count();
        assert_eq!(moved, node.matches("/var/lib/kubelet").count(), "{version}");
        assert_eq!(moved, 6, "{version}");
    }
}

#[test]
fn topology_flags_follow_the_configuration() {
    let provisioner = |profile: &Profile| {
        let rendered = render(release(Driver::Csi, "3.7.3"), profile).unwrap();
        container(&rendered, "Deployment", "vsphere-csi-controller", "csi-provisioner")
    };
    let with = provisioner(&full());
    assert!(
        has_flag(&with, "--feature-gates=Topology=true") && has_flag(&with, "--strict-topology")
    );
    let without = provisioner(&plain());
    assert!(!without["args"].to_string().contains("opology"), "4.0.1 has it off by itself");

    let mut newer = release(Driver::Csi, "3.7.3").clone();
    newer.manifest.csi.as_mut().unwrap().topology_gate_on_by_default = true;
    let rendered = render(&newer, &plain()).unwrap();
    let off = container(&rendered, "Deployment", "vsphere-csi-controller", "csi-provisioner");
    assert!(has_flag(&off, "--feature-gates=Topology=false"), "5.x enables it by default");
}

#[test]
fn the_provisioner_keeps_its_version() {
    for release in embedded().releases_of(Driver::Csi, Implementation::Upstream) {
        let tag = release.images["provisioner"].tag.clone().unwrap();
        assert!(tag.starts_with("v3.") || tag.starts_with("v4.0."), "{}: {tag}", release.version);
    }
}

#[test]
fn the_volume_limit_reaches_the_driver_as_its_release_expects() {
    let mut profile = plain();
    profile.csi.max_volumes_per_node = Some(200);
    let limits = |version: &str| {
        let rendered = render(release(Driver::Csi, version), &profile).unwrap();
        let node = container(&rendered, "DaemonSet", "vsphere-csi-node", "vsphere-csi-node");
        let env = node["env"].as_array().unwrap();
        let by_env = env
            .iter()
            .find(|it| it["name"] == "MAX_VOLUMES_PER_NODE")
            .map(|it| it["value"].clone());
        let features =
            rendered.find("ConfigMap", "internal-feature-states.csi.vsphere.vmware.com").unwrap();
        (by_env, features.0["data"].get("high-pv-node-density").cloned())
    };
    assert_eq!(limits("3.7.0"), (Some(json!("200")), None));
    assert_eq!(limits("3.7.1"), (None, Some(json!("true"))));
    profile.csi.max_volumes_per_node = None;
    let rendered = render(release(Driver::Csi, "3.7.3"), &profile).unwrap();
    let features =
        rendered.find("ConfigMap", "internal-feature-states.csi.vsphere.vmware.com").unwrap();
    assert_eq!(features.0["data"]["high-pv-node-density"], "false");
}

#[test]
fn an_unknown_feature_switch_is_skipped() {
    let mut profile = plain();
    profile.csi.features =
        [("trigger-csi-fullsync".to_owned(), true), ("made-up".to_owned(), true)].into();
    let rendered = render(release(Driver::Csi, "3.5.1"), &profile).unwrap();
    let features =
        rendered.find("ConfigMap", "internal-feature-states.csi.vsphere.vmware.com").unwrap();
    assert_eq!(
        features.0["data"],
        json!({ "trigger-csi-fullsync": "true", "pv-to-backingdiskobjectid-mapping": "false" })
    );
}

#[test]
fn replicas_and_placement_fit_the_cluster() {
    let shape = |profile: &Profile| {
        let rendered = render(release(Driver::Csi, "3.8.0"), profile).unwrap();
        let controller = rendered.find("Deployment", "vsphere-csi-controller").unwrap().0.clone();
        let terms = controller
            .pointer("/spec/template/spec/affinity/nodeAffinity/requiredDuringSchedulingIgnoredDuringExecution/nodeSelectorTerms")
            .and_then(Value::as_array)
            .map_or(0, Vec::len);
        (controller["spec"]["replicas"].as_u64().unwrap(), terms)
    };
    let mut profile = plain();
    assert_eq!(shape(&profile), (3, 1));
    profile.placement.nodes = 1;
    assert_eq!(shape(&profile), (1, 1));
    profile.placement.nodes = 5;
    profile.placement.labels.push("node-role.kubernetes.io/controlplane".to_owned());
    assert_eq!(shape(&profile), (3, 2));
    profile.placement.labels.clear();
    assert_eq!(shape(&profile), (3, 0), "a control plane without nodes");
}

#[test]
fn windows_nodes_get_a_driver_if_the_release_supports_them() {
    let windows = |version: &str, profile: &Profile| {
        let rendered = render(release(Driver::Csi, version), profile).unwrap();
        rendered.find("DaemonSet", "vsphere-csi-node-windows").map(|object| object.0.clone())
    };
    assert!(windows("3.8.0", &plain()).is_none(), "no Windows nodes");
    assert!(windows("2.7.3", &full()).is_none(), "not yet");
    let proxy = windows("3.4.0", &full()).unwrap();
    assert!(proxy.to_string().contains("csi-proxy-disk-v1"));
    assert!(proxy.pointer("/spec/template/spec/securityContext").is_none());
    let host = windows("3.5.0", &full()).unwrap();
    assert!(!host.to_string().contains("csi-proxy"));
    let options = host.pointer("/spec/template/spec/securityContext/windowsOptions").unwrap();
    assert_eq!(*options, json!({ "hostProcess": true, "runAsUserName": "NT AUTHORITY\\SYSTEM" }));
}

#[test]
fn on_openshift_no_user_ids_are_set_and_constraints_are_bound() {
    for release in embedded()
        .releases
        .iter()
        .filter(|release| release.line() >= (3, 1) || release.driver == Driver::Cpi)
    {
        let rendered = render(release, &openshift()).unwrap();
        for object in &rendered.objects {
            let Some(template) = object.pod_template() else { continue };
            assert!(
                !template.to_string().contains("\"runAsUser\""),
                "{} {}",
                release.version,
                object.name()
            );
            let wanted = match object.name() {
                "vsphere-csi-node" | "vsphere-csi-node-windows" => "privileged",
                "vsphere-cloud-controller-manager" => "hostnetwork-v2",
                _ => "restricted-v2",
            };
            assert_eq!(template["metadata"]["annotations"]["openshift.io/required-scc"], wanted);
        }
        let uses = rendered
            .objects
            .iter()
            .filter(|object| object.0["rules"].to_string().contains("securitycontextconstraints"))
            .count();
        assert_eq!(uses, 1);
    }
}

#[test]
fn required_configuration_objects_are_listed() {
    let rendered = render(release(Driver::Csi, "3.8.0"), &full()).unwrap();
    let expects: Vec<_> = rendered
        .expects
        .iter()
        .map(|it| format!("{} {}/{} {:?}", it.kind, it.namespace, it.name, it.keys))
        .collect();
    assert_eq!(
        expects,
        [
            r#"Secret vmware-system-csi/vsphere-config-secret ["csi-vsphere.conf"]"#,
            r#"Secret vmware-system-csi/vsphere-webhook-certs ["tls.crt", "tls.key", "webhook.config"]"#
        ]
    );
    for (at, _, _, rendered) in everything() {
        assert!(rendered.objects.iter().all(|object| object.kind() != "Secret"), "{at}");
    }
}

#[test]
fn a_cloud_controller_that_watches_one_namespace_can_read_no_other_secrets() {
    let reads_all = |version: &str| {
        let rendered = render(release(Driver::Cpi, version), &plain()).unwrap();
        rendered
            .find("ClusterRole", "system:cloud-controller-manager")
            .unwrap()
            .0
            .to_string()
            .contains("secrets")
    };
    assert!(reads_all("1.31.1"), "it watches the whole cluster");
    assert!(!reads_all("1.32.1") && !reads_all("1.36.0"));
}

#[test]
fn the_webhook_never_blocks_requests() {
    let mut profile = full();
    let webhook = |profile: &Profile, version: &str| {
        let rendered = render(release(Driver::Csi, version), profile).unwrap();
        let object = rendered
            .find("ValidatingWebhookConfiguration", "validation.csi.vsphere.vmware.com")
            .unwrap();
        object.0["webhooks"][0].clone()
    };
    let newest = webhook(&profile, "3.8.0");
    assert_eq!(newest["failurePolicy"], "Ignore");
    assert!(newest["matchConditions"].to_string().contains("csi.vsphere.vmware.com"));
    assert_eq!(newest["rules"].as_array().unwrap().len(), 3);
    assert_eq!(
        webhook(&profile, "3.1.2")["rules"].as_array().unwrap().len(),
        2,
        "volumes since 3.2"
    );
    profile.kubernetes = "1.27.3".parse().unwrap();
    assert!(webhook(&profile, "3.2.0").get("matchConditions").is_none(), "1.27 does not know them");
}

#[test]
fn our_cloud_controller_replaces_upstreams_with_fewer_permissions() {
    let version = env!("CARGO_PKG_VERSION").parse().unwrap();
    let ours = embedded().find(Driver::Cpi, Implementation::Rust, &version).unwrap();
    let theirs = embedded().releases_of(Driver::Cpi, Implementation::Upstream).next_back().unwrap();
    let (ours, theirs) = (render(ours, &plain()).unwrap(), render(theirs, &plain()).unwrap());
    let name = "vsphere-cloud-controller-manager";
    let set = |of: &Rendered| of.find("DaemonSet", name).unwrap().0.clone();
    let (set, other) = (set(&ours), set(&theirs));
    for same in ["/metadata/namespace", "/spec/selector", "/spec/template/spec/tolerations"] {
        assert_eq!(set.pointer(same), other.pointer(same), "{same}");
    }
    let pod = &set["spec"]["template"]["spec"];
    let container = &pod["containers"][0];
    assert_eq!(container["name"], name);
    assert_eq!(container["livenessProbe"]["httpGet"]["path"], "/livez");
    assert_eq!(container["readinessProbe"]["httpGet"]["path"], "/readyz");
    assert_eq!(container["securityContext"]["readOnlyRootFilesystem"], true);
    assert_eq!(container["securityContext"]["runAsUser"], 65532);
    assert!(ours.find("PodDisruptionBudget", name).is_some());
    // The two only share the DaemonSet, so that their permissions stay separate during a change.
    let shared = ours.objects.iter().filter(|o| theirs.find(o.kind(), o.name()).is_some());
    assert_eq!(shared.map(Object::kind).collect::<Vec<_>>(), ["DaemonSet"]);
    let rules = |kind| ours.objects.iter().filter(move |o| o.kind() == kind);
    let cluster: Vec<_> = rules("ClusterRole").map(|o| o.0["rules"].clone()).collect();
    assert_eq!(
        cluster,
        [json!([
            { "apiGroups": [""], "resources": ["nodes"], "verbs": ["get", "list", "watch", "patch", "delete"] },
            { "apiGroups": [""], "resources": ["nodes/status"], "verbs": ["patch"] },
            { "apiGroups": [""], "resources": ["events"], "verbs": ["create"] },
        ])]
    );
    let secrets = rules("Role").flat_map(|o| o.0["rules"].as_array().unwrap().clone());
    let secrets: Vec<_> = secrets.filter(|rule| rule["resources"] == json!(["secrets"])).collect();
    assert_eq!(secrets.len(), 1);
    assert_eq!(secrets[0]["resourceNames"], json!(["cpi-global-secret"]));
}

#[test]
fn one_control_plane_node_has_no_budget_and_nodes_can_be_kept() {
    let version = env!("CARGO_PKG_VERSION").parse().unwrap();
    let ours = embedded().find(Driver::Cpi, Implementation::Rust, &version).unwrap();
    let mut profile = plain();
    profile.placement.nodes = 1;
    profile.cpi.keep_nodes = true;
    profile.cpi.secret = "mine".to_owned();
    profile.cpi.secret_namespaces = vec!["vault".to_owned()];
    let rendered = render(ours, &profile).unwrap();
    assert!(!rendered.objects.iter().any(|o| o.kind() == "PodDisruptionBudget"));
    let text = serde_json::to_string(&rendered.objects).unwrap();
    assert!(text.contains("SKIP_NODE_DELETION"), "{text}");
    let mut roles = rendered.objects.iter().filter(|o| o.kind() == "Role");
    let there = roles.find(|o| o.namespace() == "vault").unwrap();
    assert_eq!(there.0["rules"][0]["resourceNames"], json!(["mine"]));
}
