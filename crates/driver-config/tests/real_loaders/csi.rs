//! The CSI driver.

use std::collections::BTreeMap;

use driver_config::csi::{self, CsiConfig};
use serde_json::{Value, json};

use crate::common::{NASTY, csi_config, one_csi_vcenter, sample};
use crate::{ask, port, refused};

/// The upstream CSI driver's view of a configuration.
fn csi_understood(config: &CsiConfig) -> Value {
    let global = &config.global;
    let or = |n: Option<u32>, default: u32| n.filter(|n| *n > 0).unwrap_or(default);
    let mut vcenters = config.vcenters.clone();
    if !global.vcenter_ip.is_empty() {
        vcenters.entry(global.vcenter_ip.clone()).or_default();
    }
    let single =
        vcenters.keys().next().filter(|_| vcenters.len() == 1 && global.vcenter_ip.is_empty());
    let vcenter_ip = single.unwrap_or(&global.vcenter_ip).clone();
    let servers: BTreeMap<&String, Value> =
        vcenters.iter().map(|(name, vc)| (name, csi_vcenter(config, vc))).collect();
    let mut rules: BTreeMap<&str, Value> = config
        .net_permissions
        .iter()
        .map(|(name, rule)| (name.as_str(), net_permission(rule)))
        .collect();
    if rules.is_empty() {
        rules.insert("#", net_permission(&csi::NetPermission::default()));
    }
    let guest = &config.guest_cluster;
    json!({
        "Global": {
            "VCenterIP": vcenter_ip, "ClusterID": global.cluster_id, "SupervisorID": global.supervisor_id,
            "User": global.user, "Password": global.password.expose(), "VCenterPort": port(global.port),
            "InsecureFlag": global.insecure_flag, "CAFile": global.ca_file, "Thumbprint": global.thumbprint,
            "Datacenters": global.datacenters.join(","),
            "CnsRegisterVolumesCleanupIntervalInMin": or(global.cns_register_volumes_cleanup, 720),
            "CnsPVCProtectionCleanupIntervalInMin": or(global.cns_pvc_protection_cleanup, 10),
            "VolumeMigrationCRCleanupIntervalInMin": or(global.volume_migration_cleanup, 120),
            "ClusterDistribution": global.cluster_distribution,
            "CSIAuthCheckIntervalInMin": or(global.csi_auth_check, 5),
            "CnsVolumeOperationRequestCleanupIntervalInMin": or(global.cns_volume_operation_request_cleanup, 15),
            "CSIFetchPreferredDatastoresIntervalInMin": or(global.csi_fetch_preferred_datastores, 5),
            "QueryLimit": or(global.query_limit, 10000),
            "ListVolumeThreshold": or(global.list_volume_threshold, 50),
        },
        "NetPermissions": rules,
        "VirtualCenter": servers,
        "Snapshot": {
            "GlobalMaxSnapshotsPerBlockVolume": or(config.snapshot.global_max_per_block_volume, 3),
            "GranularMaxSnapshotsPerBlockVolumeInVSAN": or(config.snapshot.granular_max_per_block_volume_vsan, 0),
            "GranularMaxSnapshotsPerBlockVolumeInVVOL": or(config.snapshot.granular_max_per_block_volume_vvol, 0),
        },
        "GC": {
            "Endpoint": guest.endpoint, "Port": guest.port.map(|p| p.to_string()).unwrap_or_default(),
            "TanzuKubernetesClusterUID": guest.cluster_uid, "TanzuKubernetesClusterName": guest.cluster_name,
            "ClusterDistribution": guest.cluster_distribution,
            "ClusterAPIVersion": guest.cluster_api_version, "ClusterKind": guest.cluster_kind,
        },
        "Labels": {
            "Zone": config.labels.zone, "Region": config.labels.region,
            "TopologyCategories": config.labels.topology_categories.join(","),
        },
        "TopologyCategory": if config.topology_categories.is_empty() { Value::Null } else {
            config.topology_categories.iter().map(|(name, c)| (name.clone(), json!({ "Label": c.label }))).collect()
        },
    })
}

fn csi_vcenter(config: &CsiConfig, vc: &csi::VirtualCenter) -> Value {
    let global = &config.global;
    let (user, password) = config.login(vc);
    let datacenters = if vc.datacenters.is_empty() { &global.datacenters } else { &vc.datacenters };
    json!({
        "User": user, "Password": password.expose(), "VCenterPort": port(vc.port.or(global.port)),
        "InsecureFlag": vc.insecure_flag || global.insecure_flag,
        "CAFile": vc.ca_file, "Thumbprint": vc.thumbprint, "Datacenters": datacenters.join(","),
        "TargetvSANFileShareClusters": vc.target_vsan_file_share_clusters.join(","),
        "MigrationDataStoreURL": vc.migration_datastore_url, "FileVolumeActivated": false,
    })
}

fn net_permission(rule: &csi::NetPermission) -> Value {
    let or = |text: &str, default: &str| {
        if text.is_empty() { default.to_owned() } else { text.to_owned() }
    };
    json!({
        "Ips": or(&rule.ips, "*"), "Permissions": or(&rule.permissions, "READ_WRITE"),
        "RootSquash": rule.root_squash,
    })
}

fn check_csi(what: &str, config: &CsiConfig, answer: &Value) {
    if refused(&config.problems()) {
        assert!(
            answer["error"].is_string(),
            "{what}: we expect a refusal: {:?}",
            config.problems()
        );
        return;
    }
    assert_eq!(answer["error"], Value::Null, "{what}");
    assert_eq!(answer["config"], csi_understood(config), "{what}");
}

fn check_csi_configs(cases: &[(String, CsiConfig)]) {
    let question = |config: &CsiConfig| json!({ "text": config.render().unwrap().expose() });
    let questions: Vec<Value> = cases.iter().map(|(_, config)| question(config)).collect();
    for ((what, config), answer) in cases.iter().zip(ask("config-loader-csi", &questions)) {
        check_csi(what, config, &answer);
    }
}

#[test]
fn the_csi_driver_understands_every_nasty_configuration() {
    let mut cases = Vec::new();
    for text in NASTY {
        cases.push((
            format!("password {text:?}"),
            one_csi_vcenter("vc", |vc| vc.password = text.into()),
        ));
        if !text.contains('\n') {
            cases.push((format!("name {text:?}"), one_csi_vcenter(text, |_| {})));
        }
    }
    let mut add = |what: &str, config: CsiConfig| cases.push((what.to_owned(), config));
    let users = [
        "CORP\\svc",
        "a@b",
        "svc.k8s-1_x@corp.example.com",
        "plain",
        "a b@c",
        "ü@d",
        "a@b@c",
        "a\\b\\c",
        "a+b@c",
        "a@b_c",
        "\\u",
        "@",
        "",
    ];
    for user in users {
        add(&format!("user {user:?}"), one_csi_vcenter("vc", |vc| vc.user = user.into()));
    }
    add("an IPv6 address", one_csi_vcenter("fd00::10", |_| {}));
    add("another port", one_csi_vcenter("vc", |vc| vc.port = Some(8443)));
    add(
        "datacenters in folders",
        one_csi_vcenter("vc", |vc| {
            vc.datacenters = ["/Europe/DC 1", "DC#2", "DC;3", "DC\"4"].map(String::from).to_vec();
        }),
    );
    add("no datacenters", one_csi_vcenter("vc", |vc| vc.datacenters.clear()));
    for (count, topology) in [(2, false), (2, true), (5, true), (6, true), (0, false)] {
        let mut config = CsiConfig::default();
        for index in 0..count {
            config.vcenters.extend(one_csi_vcenter(&format!("vc-{index}"), |_| {}).vcenters);
        }
        if topology {
            config.labels.topology_categories = vec!["k8s-region".into(), "k8s-zone".into()];
        }
        config.global.cluster_id = "c".into();
        add(&format!("{count} vCenters, topology {topology}"), config);
    }
    for length in [64, 65] {
        let mut config = one_csi_vcenter("vc", |_| {});
        config.global.cluster_id = "ä".repeat(length / 2) + if length % 2 == 1 { "x" } else { "" };
        add(&format!("a cluster id of {length} bytes"), config);
    }
    assert!(cases.len() >= 100, "{}", cases.len());
    check_csi_configs(&cases);
}

#[test]
fn the_csi_driver_understands_random_configurations() {
    let configs = sample(csi_config(), 600);
    let taken = configs.iter().filter(|config| !refused(&config.problems())).count();
    assert!(taken >= 100, "only {taken} would be accepted");
    let named = configs.into_iter().enumerate();
    let cases: Vec<_> = named.map(|(n, config)| (format!("sample {n}"), config)).collect();
    check_csi_configs(&cases);
}

#[test]
fn we_understand_csi_files_as_the_driver_does() {
    let vc = "[VirtualCenter \"vc\"]\nuser = a@b\npassword = p\n";
    let tails = [
        "",
        "port = 8443",
        "insecure-flag = \"1\"",
        "insecure-flag",
        "insecure-flag = nope",
        "datacenter = x",
        "datacenters = \"a,b\"",
        "targetvSANFileShareDatastoreURLs = \"ds:///vmfs/volumes/vsan:1/\"",
        "[Global]\ncluster-id = \"c\" ; unique\nquery-limit = 0x10",
        "[Global]\nquery-limit = ten",
        "[NetPermissions \"A\"]\nips = 10.0.0.0/8\npermissions = READ_ONLY\nrootsquash = true",
        "[NetPermissions \"A\"]\npermissions = read_only",
        "[Labels]\nzone = z\nregion = r",
        "[Labels]\ntopology-categories = \"a,b\"\nzone = z",
        "[Snapshot]\nglobal-max-snapshots-per-block-volume = 7",
        "[TopologyCategory \"k8s-zone\"]\nlabel = example.com/zone",
        "[Unknown]\nkey = value",
        "[Globals \"x\"]\na = b",
        "password = `a#b`",
        "password = \"a`#`b\"",
        "password = 'a b'",
        "password = \"\\t\\n\\\\\\\"\"",
        "password = a\\\n b",
        "password = \"a\\\n b\"",
        "password = \"unclosed",
        "password = tail\\",
        "= x",
        "1 = x",
        "user = a@b # user",
    ];
    let texts: Vec<String> = tails.iter().map(|tail| format!("{vc}{tail}\n")).collect();
    let questions: Vec<Value> = texts.iter().map(|text| json!({ "text": text })).collect();
    for (text, answer) in texts.iter().zip(ask("config-loader-csi", &questions)) {
        match CsiConfig::read(text) {
            Ok(read) => check_csi(text, &read.config, &answer),
            Err(error) => {
                assert!(answer["error"].is_string(), "our error: {error}\n{text}\n{answer:#}");
            }
        }
    }
}
