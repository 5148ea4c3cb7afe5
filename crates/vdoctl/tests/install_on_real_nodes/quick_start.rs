//! The quick start, typed by a reader whose cluster has real nodes. The reader has what the page lists under "You
//! need", and nothing else. The drivers are those of this project: the images of the upstream ones are not on this
//! computer. The registry requires a login, so the reader also follows the two sentences about it.

#[allow(dead_code, reason = "not everything in it is needed here")]
#[path = "../../../sandbox/tests/book/pages.rs"]
mod pages;

use std::{os::unix::fs::symlink, path::Path, process::Command};

use k8s_openapi::api::core::v1::Pod;
use kube::{
    Api,
    api::{Patch, PatchParams},
};
use serde_json::json;
use testkit::{Inventory, Permission, Registry, VcenterUser, eventually};

use crate::{
    air_gap::{PASSWORD, USER, login_file},
    cluster::{Cluster, text},
    is_ready, taints,
};
use pages::{Block, Page};

const PAGE: &str = "docs/quick-start.md";
const VCENTER: &str = "vc-a.example.com";
const THUMBPRINT: &str = "2F:A4:01:6B:9C:D3:7E:58:10:BB:42:C6:8D:E9:35:F0:7A:11:64:9E";
const REGISTRY: &str = "registry.example.com/vdo";
/// The start of the line that installs the operator.
const DEPLOY: &str = "vdoctl deploy --image ";
/// The start of the sentences that name what a registry with a login needs.
const LOGIN: &str = "If the registry requires a login, add `";

#[tokio::test]
#[ignore = "needs root, namespaces and cgroup v1: make test-nodes"]
async fn the_quick_start_leads_to_a_volume_on_real_nodes() {
    let mut inventory = Inventory::small();
    inventory.users.push(VcenterUser::new("vdo@vsphere.local", "CHANGE-ME"));
    inventory.permissions.push(Permission::new("vdo@vsphere.local", "Admin", "/"));
    let cluster = Cluster::with_inventory(2, inventory).await;
    let page = pages::in_order().into_iter().find(|page| page.path == PAGE).unwrap();
    let blocks = page.blocks();
    let own_drivers = blocks.iter().find(|block| block.text.contains("implementation: Rust"));
    let own_drivers = &own_drivers.expect("the page shows how to install our drivers").text;
    let [flags, pull_secrets] = additions_for_login(&page);
    let own_drivers = &format!("{own_drivers}    {pull_secrets}\n");
    requires_login(&cluster);
    let (mut typed, mut deployed, mut digest) = (0, 0, None);
    for block in &blocks {
        match (block.language.as_str(), block.file()) {
            (_, Some(name)) => {
                // As the page says: the last object is replaced, and later its fields are added.
                let file = match block.text.rsplit_once("---\n") {
                    Some((others, _)) => format!("{others}---\n{own_drivers}"),
                    None => with_own_drivers(&block.text, own_drivers),
                };
                cluster.workdir.write(name, own_names(&cluster, &file)).unwrap();
            }
            ("sh", _) if block.is_make_targets() => digest = Some(pushes(&cluster, block)),
            ("sh", _) => {
                let is_deployed = |line: &str| line.starts_with(DEPLOY);
                let with_flags = |line: &str| {
                    if !is_deployed(line) {
                        return line.to_owned();
                    }
                    // The digest on the page is that of another build.
                    let (image, _) = line.split_once('@').unwrap();
                    format!("{image}@{} {flags}", digest.as_deref().unwrap())
                };
                deployed += block.text.lines().filter(|line| is_deployed(line)).count();
                let script: Vec<String> = block.text.lines().map(with_flags).collect();
                types(&cluster, block, &script.join("\n")).await;
            }
            ("console", _) => {
                let commands = block.text.lines().filter_map(|line| line.strip_prefix("$ "));
                types(&cluster, block, &commands.collect::<Vec<_>>().join("\n")).await;
            }
            _ => continue,
        }
        typed += 1;
    }
    assert!(typed >= 6, "{typed} blocks: the page has another structure");
    assert_eq!(deployed, 1, "{PAGE} installs the operator in another way");
    has_result(&cluster, &page).await;
}

/// The flags of `vdoctl deploy` and the field below `images` that the page names for a registry with a login.
fn additions_for_login(page: &Page) -> [String; 2] {
    let text = page.text.split_whitespace().collect::<Vec<_>>().join(" ");
    let named = text.split(LOGIN).skip(1).map(|rest| rest.split_once('`').unwrap());
    let (named, rests): (Vec<_>, Vec<_>) =
        named.map(|(code, rest)| (code.to_owned(), rest)).unzip();
    let [flags, field]: [String; 2] = named.try_into().unwrap();
    assert!(flags.starts_with("--pull-secret registry --pull-secret-file "), "{flags}");
    assert!(field == "pullSecrets: [registry]", "{field}");
    assert!(rests[1].starts_with(" below `images`"), "{}", rests[1]);
    [flags, field]
}

/// From now on the nodes need the account that the reader has used with `docker login`. The reader's own pod needs none:
/// its image is that of the pods' namespaces.
fn requires_login(cluster: &Cluster) {
    cluster.registry.require_account(USER, PASSWORD);
    std::fs::create_dir(cluster.workdir.path().join(".docker")).unwrap();
    let (host, _) = REGISTRY.split_once('/').unwrap();
    cluster.workdir.write(".docker/config.json", login_file(host, PASSWORD)).unwrap();
}

/// A VDOConfig with the implementation and the images of `own_drivers`.
fn with_own_drivers(config: &str, own_drivers: &str) -> String {
    let (_, images) = own_drivers.split_once("  images:\n").unwrap();
    let config = config.replace("[vcenter-a]}", "[vcenter-a], implementation: Rust}");
    let storage = "    vsphereCloudConfig: vcenter-a\n";
    assert!(config.contains(storage) && config.ends_with('\n'), "{config}");
    let config = config.replace(storage, &format!("{storage}    implementation: Rust\n"));
    format!("{config}  images:\n{images}")
}

/// `make build` is done already, with the profile of the tests. `make push` pushes the images of the tests, to the
/// address of the registry on this computer. Returns the digest that it prints for the operator.
fn pushes(cluster: &Cluster, block: &Block) -> String {
    let commands: Vec<&str> = block.text.lines().collect();
    let push = format!("make push REGISTRY={REGISTRY}");
    assert_eq!(commands, ["make build", &push], "{}", block.place);
    let target = cluster.workdir.path().join("target");
    std::fs::create_dir(&target).unwrap();
    symlink(Registry::own_images(), target.join("images")).unwrap();
    let path = REGISTRY.split_once('/').unwrap().1;
    let output = Command::new(testkit::repository().join("scripts/push"))
        .arg(format!("{}/{path}", cluster.registry.address()))
        .env("CARGO_TARGET_DIR", &target)
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", text(&output));
    let printed = String::from_utf8(output.stdout).unwrap();
    let references = printed.lines().filter_map(|line| line.split_once('@'));
    let mut operators = references.filter(|(image, _)| image.ends_with("/vdo"));
    operators.next().unwrap().1.to_owned()
}

async fn types(cluster: &Cluster, block: &Block, script: &str) {
    let vdoctl = Path::new(env!("CARGO_BIN_EXE_vdoctl"));
    let kubectl = testkit::peer("kubectl");
    let folders = [vdoctl, &kubectl].map(|program| program.parent().unwrap().to_owned());
    let path = std::env::var_os("PATH").unwrap_or_default();
    let path = std::env::join_paths(folders.into_iter().chain(std::env::split_paths(&path)));
    let mut shell = Command::new("bash");
    shell
        .args(["-euo", "pipefail", "-c", &own_names(cluster, script)])
        .current_dir(cluster.workdir.path())
        .env("PATH", path.unwrap())
        .env("HOME", cluster.workdir.path())
        .env("KUBECONFIG", cluster.plane.kubeconfig());
    let output = tokio::task::spawn_blocking(move || shell.output()).await.unwrap().unwrap();
    let shown = text(&output);
    assert_eq!(output.status.code(), Some(block.exit()), "{}\n{script}\n{shown}", block.place);
    for line in block.text.lines().filter(|line| line.contains("is not trusted")) {
        let part = line.trim_matches('.').rsplit("... ").next().unwrap();
        assert!(shown.contains(part), "{}: {part} is not shown\n{shown}", block.place);
    }
}

/// The names of this vCenter instead of those in the book.
fn own_names(cluster: &Cluster, text: &str) -> String {
    let text = text.replace(THUMBPRINT, &cluster.vcenter.thumbprint_sha1());
    text.replace(VCENTER, &cluster.vcenter.address().to_string())
}

/// The nodes are initialised, and a claim without a class gets a volume for its pod.
async fn has_result(cluster: &Cluster, page: &Page) {
    assert!(page.text.contains("create PersistentVolumeClaims"), "{PAGE} has another end");
    for node in &cluster.nodes {
        let node = cluster.node(node.name()).await;
        assert!(!taints(&node).iter().any(|taint| taint.ends_with("/uninitialized")), "{node:?}");
    }
    let claim = json!({
        "apiVersion": "v1", "kind": "PersistentVolumeClaim",
        "metadata": {"name": "data", "namespace": "default"},
        "spec": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}},
    });
    let claims = cluster.claims();
    let parameters = PatchParams::apply("reader");
    claims.patch("data", &parameters, &Patch::Apply(&claim)).await.unwrap();
    let mounts = json!([{"name": "data", "mountPath": "/data"}]);
    let pod = json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": {"name": "reader", "namespace": "default"},
        "spec": {
            "terminationGracePeriodSeconds": 0,
            "containers": [
                {"name": "pause", "image": "registry.test/pause:1", "volumeMounts": mounts},
            ],
            "volumes": [{"name": "data", "persistentVolumeClaim": {"claimName": "data"}}],
        },
    });
    let pods = Api::<Pod>::default_namespaced(cluster.plane.client());
    pods.patch("reader", &parameters, &Patch::Apply(&pod)).await.unwrap();
    eventually("a pod has its volume", 90, async || {
        let pod = pods.get("reader").await.unwrap();
        if is_ready(&pod) { Ok(()) } else { Err(format!("{:?}", pod.status)) }
    })
    .await;
    let mounts: String = cluster.nodes.iter().map(testkit::RealNode::mounts).collect();
    assert!(mounts.lines().any(|line| line.starts_with("/dev/sd")), "{mounts}");
}
