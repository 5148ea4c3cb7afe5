//! The cases in which the Kubernetes cloud-provider framework tests its own two node controllers, one
//! row for each: 22 of the node controller, 21 of the lifecycle controller. Ours has to end each as
//! they do, on a real API server and a simulated vCenter, or the row says what it does and why. Those of
//! a provider that fails come once more with a vCenter that is really away.
//!
//! On the same cluster: the Go controller's cases of zones (5) and of credentials that come and go (8).
//! Beside them, as tables: the framework's 14 cases of addresses, and the Go controller's of a guest's
//! addresses (53), of uuids (8) and of its file (7).
//!
//! The framework asks a provider through two interfaces, so most of its cases come twice. Ours has one
//! way to a machine, but several to recognise it: of a pair, the first row takes one and the second
//! another.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a failed unwrap fails the test")]

mod address_cases;
mod away_cases;
#[path = "../common/mod.rs"]
mod common;
mod credential_cases;
mod file_cases;
mod guest_cases;
mod lifecycle_cases;
mod node_cases;
mod own_secret;
mod uuid_cases;
mod zone_cases;

use common::*;
use k8s_openapi::api::core::v1::Node as KubeNode;
use testkit::{FaultProxy, Inventory, Permission, Process, eventually};

/// Where machines stand that the controller's user will not be allowed to see.
const APART: &str = "apart";
const BOOK: &str = include_str!("../../../../docs/testing.md");

/// Labels every node is to get; those of Kubernetes' own domains are not the admin's to give.
const LABELS: &str = "--node-labels=example.com/rack=r1,example.com/site=lab,node.kubernetes.io/site=x,\
                      topology.k8s.io/region=x,kubernetes.io/region=x,k8s.io/region=x,app.k8snio/a=b";
const ZONES: &str = "labels: {zone: k8s-zone, region: k8s-region}";

#[tokio::test(flavor = "multi_thread")]
async fn every_case_of_the_frameworks_controllers_ends_as_it_should() {
    let (nodes, lives) = (node_cases::all(), lifecycle_cases::all());
    let vms = nodes.iter().filter_map(|row| row.vm.clone());
    let vms = vms.chain(lives.iter().filter_map(lifecycle_cases::Row::vm));
    let mut inventory = Inventory::small()
        .vms(vms)
        .category("k8s-zone", &[("zone-b", &["/DC0/host/cluster-b"])])
        .category("k8s-region", &[("eu", &["/DC0/host/cluster-b"])]);
    inventory.datacenters[0].folders.push(APART.into());
    zone_cases::furnish(&mut inventory);
    let stage = Stage::with(inventory).await;
    for row in nodes.iter().filter(|row| row.is_hidden()) {
        hide(&stage, row.name).await;
    }
    for row in &nodes {
        stage.nodes.add(row.node()).await;
    }
    for row in &lives {
        stage.nodes.add(row.node()).await;
    }
    // A node that was not Ready yet would get its machine on record.
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
    // A machine without a uuid could be any that is missed: while it is there, no Node is deleted.
    for row in nodes.iter().filter(|row| row.is_nameless()) {
        stage.vcenter.destroy_vm(&row.path()).await;
    }
    lifecycle_cases::check(&stage, &lives, &ccm).await;
    away_cases::check(&stage, &proxy, ccm, start).await;
    let strict = ["--leader-elect=false", "--require-zones", "--tag-refresh-period=1s"];
    let start = |more: &[&str]| {
        let own = format!("    secretName: vienna\n    secretNamespace: vcenters\n{ZONES}");
        stage.controller(&own, &[&strict[..], more].concat())
    };
    own_secret::check(&stage, || start(&[])).await;
    zone_cases::check(&stage, start).await;
}

#[test]
fn there_is_a_row_for_each_case_and_the_book_lists_it() {
    let nodes: Vec<_> = node_cases::all().iter().map(|row| (row.case, row.means)).collect();
    let lives: Vec<_> = lifecycle_cases::all().iter().map(|row| (row.case, row.means)).collect();
    assert_eq!((nodes.len(), lives.len()), (22, 21));
    let away: Vec<_> = away_cases::all().iter().map(|row| (row.case, row.means)).collect();
    let zones: Vec<_> = zone_cases::all().iter().map(|row| (row.case, row.means)).collect();
    assert_eq!((zones.len(), zone_cases::UPSTREAM), (7, 5));
    for (case, means) in nodes.into_iter().chain(lives).chain(away).chain(zones) {
        let line = format!("| {case} | {means} |");
        assert_eq!(BOOK.matches(&line).count(), 1, "docs/testing.md should say once:\n{line}");
    }
}

#[test]
fn the_book_counts_the_cases_of_every_table() {
    let credentials = include_str!("../../src/configuration/upstream_cases.rs");
    let secret = include_str!("../../../driver-config/tests/reading.rs");
    // Those of other programs say themselves how many they are.
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
        let told = |line: &&str| {
            line.starts_with(&format!("| {count} | the ")) && line.contains(&format!("| `{table}`"))
        };
        assert_eq!(BOOK.lines().filter(told).count(), 1, "docs/testing.md, {table}: {count}");
        let is_there = |text: &str| text.contains(&format!("fn {table}()"));
        assert!(source.is_none_or(is_there), "{table}");
    }
}

/// From here on the controller's user is told that it may not see this machine.
async fn hide(stage: &Stage, name: &str) {
    let path = format!("/DC0/vm/{APART}/{name}");
    stage.vcenter.permit(&Permission::new(USER, "NoAccess", &path)).await;
}

impl Stage {
    /// Waits until the kubelet of every node says that it is Ready.
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

/// The status of the condition Ready.
fn ready(node: &KubeNode) -> &str {
    let mut all = node.status.iter().flat_map(|status| status.conditions.iter().flatten());
    all.find(|condition| condition.type_ == "Ready").map_or("", |ready| &ready.status)
}

/// Waits until a node is as it should be, in words.
async fn until_shown(stage: &Stage, case: &str, name: &str, ccm: &Process, expected: &str) {
    eventually(case, 60, async || {
        assert!(ccm.ended().is_none(), "the controller ended:\n{}", ccm.tail());
        let found = stage.api().get_opt(name).await.map_err(|e| e.to_string())?;
        let shown = found.as_ref().map_or_else(|| "deleted".to_owned(), in_words);
        if shown == expected {
            Ok(())
        } else {
            Err(format!("{name}\n  is {shown}\n  not {expected}\n{}", ccm.tail()))
        }
    })
    .await;
}

/// What a cloud controller decides of a node: whether it was written to at all, its provider id, its
/// taints beside those of the API server, zone, region and type under both names, its addresses.
fn in_words(node: &KubeNode) -> String {
    let mut words = vec![if is_written(node) { "written" } else { "untouched" }.to_owned()];
    let id = provider_id(node);
    words.extend((!id.is_empty()).then(|| id.to_owned()));
    let taints = node.spec.iter().flat_map(|spec| spec.taints.iter().flatten());
    let taints = taints.filter(|taint| !taint.key.starts_with("node.kubernetes.io/"));
    words.extend(taints.map(|taint| format!("!{}", taint.key.rsplit('/').next().unwrap())));
    for (stable, beta) in [
        ("topology.kubernetes.io/zone", "failure-domain.beta.kubernetes.io/zone"),
        ("topology.kubernetes.io/region", "failure-domain.beta.kubernetes.io/region"),
        ("node.kubernetes.io/instance-type", "beta.kubernetes.io/instance-type"),
    ] {
        match (label(node, stable), label(node, beta)) {
            (None, None) => {}
            (Some(value), Some(same)) if value == same => {
                words.push(value.split_once(".cpu").map_or(value, |(family, _)| family).to_owned());
            }
            other => words.push(format!("{other:?}")),
        }
    }
    words.extend(addresses(node));
    words.join(" ")
}
