//! The test cases of the Kubernetes cloud-provider framework for its two node controllers, one row
//! each: 22 of the node controller, 21 of the lifecycle controller. They run on a real API server and a
//! simulated vCenter. Our controller has the same result, or the row describes the difference. The
//! cases of a failing provider run a second time with an unreachable vCenter.
//!
//! On the same cluster run the Go controller's cases of zones (5) and of changing credentials (8). Plain
//! tables are the framework's 14 address cases, and the Go controller's cases of guest addresses (53),
//! uuids (8) and its file (7).
//!
//! The framework queries a provider through two interfaces, so most of its cases come twice. Our
//! controller has one interface but several ways to identify a VM: each row of a pair uses another way.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a failed unwrap fails the test")]

mod address_cases;
#[path = "../common/mod.rs"]
mod common;
mod credential_cases;
mod file_cases;
mod guest_cases;
mod lifecycle_cases;
mod node_cases;
mod own_secret;
mod unreachable_cases;
mod uuid_cases;
mod zone_cases;

use common::*;
use k8s_openapi::api::core::v1::Node as KubeNode;
use testkit::{FaultProxy, Inventory, Permission, Process, eventually};

/// The folder of VMs that are hidden from the controller's user.
const APART: &str = "apart";
const PAGE: &str = include_str!("../../../../docs/testing.md");

/// Labels for every node; those of Kubernetes domains must not be set.
const LABELS: &str = "--node-labels=example.com/rack=r1,example.com/site=lab,node.kubernetes.io/site=x,\
                      topology.k8s.io/region=x,kubernetes.io/region=x,k8s.io/region=x,app.k8snio/a=b";
const ZONES: &str = "labels: {zone: k8s-zone, region: k8s-region}";

#[tokio::test(flavor = "multi_thread")]
async fn every_case_of_the_frameworks_controllers_ends_as_it_should() {
    let (nodes, lifecycles) = (node_cases::all(), lifecycle_cases::all());
    let vms = nodes.iter().filter_map(|row| row.vm.clone());
    let vms = vms.chain(lifecycles.iter().filter_map(lifecycle_cases::Row::vm));
    let mut inventory = Inventory::small()
        .vms(vms)
        .category("k8s-zone", &[("zone-b", &["/DC0/host/cluster-b"])])
        .category("k8s-region", &[("eu", &["/DC0/host/cluster-b"])]);
    inventory.datacenters[0].folders.push(APART.into());
    zone_cases::add_places(&mut inventory);
    let stage = Stage::with(inventory).await;
    for row in nodes.iter().filter(|row| row.is_hidden()) {
        hide(&stage, row.name).await;
    }
    for row in &nodes {
        stage.nodes.add(row.node()).await;
    }
    for row in &lifecycles {
        stage.nodes.add(row.node()).await;
    }
    // The VM of a node that is not Ready would be recorded.
    stage.all_ready().await;
    let flags = [
        LABELS,
        "--leader-elect=false",
        "--node-deletion-delay=100ms",
        "--node-deletion-limit=1000",
        "--node-deletion-share=100",
    ];
    let proxy = FaultProxy::before(stage.vcenter.address()).await;
    let configuration = stage.configuration_at(proxy.address().port(), ZONES);
    let start = || stage.controller_with(&configuration, &flags);
    let ccm = start();
    credential_cases::check(&stage).await;
    node_cases::check(&stage, &nodes, &ccm).await;
    // While a VM without a uuid exists, no Node is deleted: it can be any missing VM.
    for row in nodes.iter().filter(|row| row.is_without_uuid()) {
        stage.vcenter.destroy_vm(&row.path()).await;
    }
    lifecycle_cases::check(&stage, &lifecycles, &ccm).await;
    unreachable_cases::check(&stage, &proxy, ccm, start).await;
    let strict = ["--leader-elect=false", "--require-zones", "--tag-refresh-period=1s"];
    let start = |more: &[&str]| {
        let own = format!("    secretName: vienna\n    secretNamespace: vcenters\n{ZONES}");
        stage.controller(&own, &[&strict[..], more].concat())
    };
    own_secret::check(&stage, || start(&[])).await;
    zone_cases::check(&stage, start).await;
}

#[test]
fn the_documentation_lists_every_row() {
    let nodes: Vec<_> = node_cases::all().iter().map(|row| (row.case, row.result)).collect();
    let lifecycles: Vec<_> =
        lifecycle_cases::all().iter().map(|row| (row.case, row.result)).collect();
    assert_eq!((nodes.len(), lifecycles.len()), (22, 21));
    let unreachable: Vec<_> =
        unreachable_cases::all().iter().map(|row| (row.case, row.result)).collect();
    let zones: Vec<_> = zone_cases::all().iter().map(|row| (row.case, row.result)).collect();
    assert_eq!((zones.len(), zone_cases::UPSTREAM), (7, 5));
    for (case, result) in nodes.into_iter().chain(lifecycles).chain(unreachable).chain(zones) {
        let line = format!("| {case} | {result} |");
        assert_eq!(PAGE.matches(&line).count(), 1, "docs/testing.md should contain once:\n{line}");
    }
}

#[test]
fn the_documentation_counts_the_cases_of_every_table() {
    let credentials = include_str!("../../src/configuration/upstream_cases.rs");
    let secret = include_str!("../../../driver-config/tests/reading.rs");
    // Tables outside this test check their own count.
    assert!(credentials.contains("assert_eq!(cases.len(), 15);"));
    assert!(secret.contains("let cases: [Case<'_>; 19] ="));
    for (count, table, source) in [
        (
            address_cases::ROWS.len(),
            "every_case_of_the_frameworks_addresses_ends_as_it_should",
            None,
        ),
        (
            guest_cases::ROWS.len(),
            "every_case_of_the_go_controllers_addresses_ends_as_it_should",
            None,
        ),
        (uuid_cases::COUNT, "every_case_of_the_go_controllers_uuids_ends_as_it_should", None),
        (file_cases::COUNT, "every_case_of_the_go_controllers_file_ends_as_it_should", None),
        (15, "every_case_of_the_go_controllers_credentials_ends_as_it_should", Some(credentials)),
        (19, "every_upstream_case_of_the_cpi_secret_has_the_expected_result", Some(secret)),
        (credential_cases::COUNT, "credential_cases", None),
        (zone_cases::UPSTREAM, "zone_cases", None),
    ] {
        let is_row = |line: &&str| {
            line.starts_with(&format!("| {count} | the ")) && line.contains(&format!("| `{table}`"))
        };
        assert_eq!(PAGE.lines().filter(is_row).count(), 1, "docs/testing.md, {table}: {count}");
        let exists = |text: &str| text.contains(&format!("fn {table}()"));
        assert!(source.is_none_or(exists), "{table}");
    }
}

/// Hides a VM from the controller's user.
async fn hide(stage: &Stage, name: &str) {
    let path = format!("/DC0/vm/{APART}/{name}");
    stage.vcenter.permit(&Permission::new(USER, "NoAccess", &path)).await;
}

impl Stage {
    async fn all_ready(&self) {
        eventually("all nodes are Ready", 60, async || {
            let all = self.api().list(&kube::api::ListParams::default()).await;
            let all = all.map_err(|e| e.to_string())?.items;
            let waiting: Vec<_> = all.iter().filter(|node| ready(node) != "True").collect();
            let names = waiting.iter().filter_map(|node| node.metadata.name.as_deref());
            if waiting.is_empty() { Ok(()) } else { Err(names.collect::<Vec<_>>().join(", ")) }
        })
        .await;
    }
}

/// Status of the condition Ready.
fn ready(node: &KubeNode) -> &str {
    let mut all = node.status.iter().flat_map(|status| status.conditions.iter().flatten());
    all.find(|condition| condition.type_ == "Ready").map_or("", |ready| &ready.status)
}

/// Waits until [`describe`] returns `expected` for a node.
async fn until_described(stage: &Stage, case: &str, name: &str, ccm: &Process, expected: &str) {
    eventually(case, 60, async || {
        assert!(ccm.ended().is_none(), "the controller ended:\n{}", ccm.tail());
        let found = stage.api().get_opt(name).await.map_err(|e| e.to_string())?;
        let described = found.as_ref().map_or_else(|| "deleted".to_owned(), describe);
        if described == expected {
            Ok(())
        } else {
            Err(format!("{name}\n  is {described}\n  not {expected}\n{}", ccm.tail()))
        }
    })
    .await;
}

/// The part of a node that a cloud controller decides: whether it was written, its provider id, its taints
/// except those of the API server, zone, region and instance type under both names, and its addresses.
fn describe(node: &KubeNode) -> String {
    let mut parts = vec![if is_written(node) { "written" } else { "untouched" }.to_owned()];
    let id = provider_id(node);
    parts.extend((!id.is_empty()).then(|| id.to_owned()));
    let taints = node.spec.iter().flat_map(|spec| spec.taints.iter().flatten());
    let taints = taints.filter(|taint| !taint.key.starts_with("node.kubernetes.io/"));
    parts.extend(taints.map(|taint| format!("!{}", taint.key.rsplit('/').next().unwrap())));
    for (stable, beta) in [
        ("topology.kubernetes.io/zone", "failure-domain.beta.kubernetes.io/zone"),
        ("topology.kubernetes.io/region", "failure-domain.beta.kubernetes.io/region"),
        ("node.kubernetes.io/instance-type", "beta.kubernetes.io/instance-type"),
    ] {
        match (label(node, stable), label(node, beta)) {
            (None, None) => {}
            (Some(value), Some(same)) if value == same => {
                parts.push(value.split_once(".cpu").map_or(value, |(family, _)| family).to_owned());
            }
            other => parts.push(format!("{other:?}")),
        }
    }
    parts.extend(addresses(node));
    parts.join(" ")
}
