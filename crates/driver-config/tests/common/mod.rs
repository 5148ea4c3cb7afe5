//! Generated configurations for tests.
#![allow(dead_code, unreachable_pub, reason = "each test uses its part")]

use std::collections::BTreeMap;

use driver_config::cpi::{self, CpiConfig};
use driver_config::csi::{self, CsiConfig};
use proptest::collection::{btree_map, vec};
use proptest::option;
use proptest::prelude::*;
use proptest::strategy::ValueTree;
use proptest::test_runner::TestRunner;

/// Texts that have broken configuration files before; tests use each as a password and as a name.
pub const NASTY: [&str; 48] = [
    "plain",
    "two words",
    " leading and trailing ",
    "\ttab\t",
    "quote\"inside",
    "\"quoted\"",
    "'single'",
    "back\\slash",
    "ends with \\",
    "\\",
    "\\\\",
    "\\n is not a line",
    "\\\"",
    "a#b",
    "#begins",
    "a;b",
    ";begins",
    "a # b ; c",
    "a=b",
    "=",
    "[Global]",
    "]",
    "`backticks`",
    "${HOME} $(id) %s %d",
    "100%",
    "yes",
    "true",
    "null",
    "~",
    "0123",
    "0x1F",
    "1e3",
    "12:30:45",
    "2026-11-15",
    "- item",
    "? key",
    "key: value",
    "{a: b}",
    "[a, b]",
    "&anchor *alias",
    "!!binary aGk=",
    "|",
    "> folded",
    "@at",
    "päßwörd",
    "пароль密码🔑",
    "line\nbreak",
    "zero\u{200b}width\u{a0}nbsp\u{2028}sep\u{85}nel\u{7f}del\u{1}soh\u{feff}bom",
];

/// Any text that both formats support.
pub fn text() -> impl Strategy<Value = String> {
    prop_oneof![
        Just(String::new()),
        proptest::sample::select(NASTY.to_vec()).prop_map(str::to_owned),
        "[^\\x00\\r]{0,24}",
        "[ -~]{1,32}",
    ]
}

/// A name in a section header.
pub fn name() -> impl Strategy<Value = String> {
    prop_oneof![
        "[a-z0-9.-]{1,20}",
        "[^\\x00\\r\\n]{1,16}",
        Just("fd00::1".to_owned()),
        Just("10.0.0.1".to_owned()),
    ]
}

pub fn item() -> impl Strategy<Value = String> {
    prop_oneof!["[a-zA-Z0-9/._-]{1,16}", "[^\\x00\\r,]{1,12}"]
        .prop_map(|item| item.trim().to_owned())
        .prop_filter("not empty", |item| !item.is_empty())
}

pub fn items() -> impl Strategy<Value = Vec<String>> {
    vec(item(), 0..4)
}

fn port() -> impl Strategy<Value = Option<u16>> {
    option::of(1..=u16::MAX)
}

fn number() -> impl Strategy<Value = Option<u32>> {
    option::of(0..=i32::MAX.unsigned_abs())
}

fn families() -> impl Strategy<Value = Vec<String>> {
    let families = ["ipv4", "ipv6"].map(str::to_owned).to_vec();
    proptest::sample::subsequence(families, 0..=2)
}

prop_compose! {
    fn cpi_global()(
        (user, password, server, port, insecure_flag) in (text(), text(), text(), port(), any::<bool>()),
        (datacenters, soap_roundtrip_count, ca_file, thumbprint) in (items(), number(), text(), text()),
        (secret_name, secret_namespace, secrets_directory) in (text(), text(), text()),
        (api_disable, api_binding, ip_family) in (any::<bool>(), text(), families()),
    ) -> cpi::Global {
        cpi::Global {
            user, password: password.into(), server: server.replace('\n', ""), port, insecure_flag,
            datacenters, soap_roundtrip_count, ca_file, thumbprint, secret_name, secret_namespace,
            secrets_directory, api_disable, api_binding, ip_family,
        }
    }
}

prop_compose! {
    fn cpi_vcenter()(
        (server, user, password, port, insecure_flag) in (name(), text(), text(), port(), any::<bool>()),
        (datacenters, soap_roundtrip_count, ca_file, thumbprint) in (items(), number(), text(), text()),
        (secret_name, secret_namespace, ip_family) in (text(), text(), families()),
    ) -> cpi::VirtualCenter {
        cpi::VirtualCenter {
            server, user, password: password.into(), port, insecure_flag, datacenters,
            soap_roundtrip_count, ca_file, thumbprint, secret_name, secret_namespace, ip_family,
        }
    }
}

prop_compose! {
    fn cpi_class()(t in (text(), text(), text(), text(), text(), text())) -> cpi::LoadBalancerClass {
        cpi::LoadBalancerClass {
            ip_pool_name: t.0, ip_pool_id: t.1, tcp_app_profile_name: t.2,
            tcp_app_profile_path: t.3, udp_app_profile_name: t.4, udp_app_profile_path: t.5,
        }
    }
}

prop_compose! {
    fn cpi_nsxt()(
        (user, password, host, insecure_flag, remote_auth) in (text(), text(), text(), any::<bool>(), any::<bool>()),
        (secret_name, secret_namespace, vmc_access_token, vmc_auth_host) in (text(), text(), text(), text()),
        (client_auth_cert_file, client_auth_key_file, ca_file) in (text(), text(), text()),
    ) -> cpi::Nsxt {
        cpi::Nsxt {
            user, password: password.into(), host, insecure_flag, remote_auth, secret_name,
            secret_namespace, vmc_access_token: vmc_access_token.into(), vmc_auth_host,
            client_auth_cert_file, client_auth_key_file, ca_file,
        }
    }
}

prop_compose! {
    /// Any configuration of the cloud controller.
    pub fn cpi_config()(
        global in cpi_global(),
        vcenters in btree_map(name(), cpi_vcenter(), 0..4),
        (region, zone) in (text(), text()),
        (a, b, c, d) in (items(), items(), items(), items()),
        (internal, external, router_path) in (text(), text(), text()),
        nsxt in cpi_nsxt(),
        (size, service, gateway, snat) in (text(), text(), text(), any::<bool>()),
        tags in btree_map(text(), text(), 0..3),
        class in cpi_class(),
        load_balancer_classes in btree_map(name(), cpi_class(), 0..3),
    ) -> CpiConfig {
        CpiConfig {
            global, vcenters, labels: cpi::Labels { region, zone },
            nodes: cpi::Nodes {
                internal_network_subnet_cidr: a, external_network_subnet_cidr: b,
                internal_vm_network_name: internal, external_vm_network_name: external,
                exclude_internal_network_subnet_cidr: c, exclude_external_network_subnet_cidr: d,
            },
            route: cpi::Route { router_path },
            nsxt,
            load_balancer: cpi::LoadBalancer {
                size, lb_service_id: service, tier1_gateway_path: gateway, snat_disabled: snat,
                tags, class,
            },
            load_balancer_classes,
        }
    }
}

prop_compose! {
    fn csi_global()(
        (cluster_id, supervisor_id, cluster_distribution, vcenter_ip) in (text(), text(), text(), text()),
        (user, password, port, insecure_flag) in (user(), text(), port(), any::<bool>()),
        (ca_file, thumbprint, datacenters) in (text(), text(), items()),
        n in (number(), number(), number(), number(), number(), number(), number(), number()),
    ) -> csi::Global {
        csi::Global {
            cluster_id, supervisor_id, cluster_distribution, vcenter_ip, user,
            password: password.into(), port, insecure_flag, ca_file, thumbprint, datacenters,
            cns_register_volumes_cleanup: n.0, cns_pvc_protection_cleanup: n.1,
            volume_migration_cleanup: n.2, csi_auth_check: n.3,
            cns_volume_operation_request_cleanup: n.4, csi_fetch_preferred_datastores: n.5,
            query_limit: n.6, list_volume_threshold: n.7,
        }
    }
}

fn user() -> impl Strategy<Value = String> {
    prop_oneof![
        6 => "[a-zA-Z0-9._-]{1,8}@[a-zA-Z0-9.-]{1,8}",
        3 => "[a-zA-Z0-9.-]{1,8}\\\\[a-zA-Z0-9._-]{1,8}",
        1 => text(),
    ]
}

prop_compose! {
    fn csi_vcenter()(
        (user, password, port, insecure_flag) in (user(), text(), port(), any::<bool>()),
        (ca_file, thumbprint, datacenters) in (text(), text(), items()),
        (clusters, urls, migration) in (items(), items(), text()),
    ) -> csi::VirtualCenter {
        csi::VirtualCenter {
            user, password: password.into(), port, insecure_flag, ca_file, thumbprint, datacenters,
            target_vsan_file_share_clusters: clusters, target_vsan_file_share_datastore_urls: urls,
            migration_datastore_url: migration,
        }
    }
}

prop_compose! {
    fn net_permission()(
        ips in text(),
        permissions in proptest::sample::select(vec!["", "READ_WRITE", "READ_ONLY", "NO_ACCESS", "read_write"]),
        root_squash in any::<bool>(),
    ) -> csi::NetPermission {
        csi::NetPermission { ips, permissions: permissions.to_owned(), root_squash }
    }
}

prop_compose! {
    /// Any configuration of the CSI driver.
    pub fn csi_config()(
        global in csi_global(),
        vcenters in btree_map(name(), csi_vcenter(), 0..4),
        n in (number(), number(), number()),
        net_permissions in btree_map(name(), net_permission(), 0..3),
        topology_categories in items(),
        (zone, region) in prop_oneof![Just((String::new(), String::new())), (text(), text())],
        labelled in btree_map(name(), prop_oneof![Just("topology.kubernetes.io/zone".to_owned()), text()], 0..2),
        guest in (text(), port(), text(), text(), text(), text(), text()),
    ) -> CsiConfig {
        CsiConfig {
            global, vcenters,
            snapshot: csi::Snapshot {
                global_max_per_block_volume: n.0,
                granular_max_per_block_volume_vsan: n.1,
                granular_max_per_block_volume_vvol: n.2,
            },
            net_permissions,
            labels: csi::Labels { topology_categories, zone, region },
            topology_categories: labelled
                .into_iter()
                .map(|(name, label)| (name, csi::TopologyCategory { label }))
                .collect(),
            guest_cluster: csi::GuestCluster {
                endpoint: guest.0, port: guest.1, cluster_uid: guest.2, cluster_name: guest.3,
                cluster_distribution: guest.4, cluster_api_version: guest.5, cluster_kind: guest.6,
            },
        }
    }
}

/// Returns the same `count` values on every run.
pub fn sample<T>(strategy: impl Strategy<Value = T>, count: usize) -> Vec<T> {
    let mut runner = TestRunner::deterministic();
    (0..count)
        .map(|_| {
            strategy.new_tree(&mut runner).expect("strategies do not reject everything").current()
        })
        .collect()
}

pub fn one_vcenter(name: &str, change: impl FnOnce(&mut cpi::VirtualCenter)) -> CpiConfig {
    let mut vcenter = cpi::VirtualCenter {
        server: name.to_owned(),
        user: "admin@vsphere.local".into(),
        password: "secret".into(),
        ..cpi::VirtualCenter::default()
    };
    change(&mut vcenter);
    CpiConfig { vcenters: BTreeMap::from([(name.to_owned(), vcenter)]), ..CpiConfig::default() }
}

pub fn one_csi_vcenter(name: &str, change: impl FnOnce(&mut csi::VirtualCenter)) -> CsiConfig {
    let mut vcenter = csi::VirtualCenter {
        user: "admin@vsphere.local".into(),
        password: "secret".into(),
        ..csi::VirtualCenter::default()
    };
    change(&mut vcenter);
    CsiConfig { vcenters: BTreeMap::from([(name.to_owned(), vcenter)]), ..CsiConfig::default() }
}
