//! The cloud controller.

use std::collections::BTreeMap;

use driver_config::SecretText;
use driver_config::cpi::{self, CpiConfig};
use driver_config::credentials::{Credentials, SecretData, render_cpi_secret};
use serde_json::{Value, json};

use crate::common::{NASTY, cpi_config, one_vcenter, sample};
use crate::{ask, port, refused};

/// The upstream cloud controller's view of a configuration: with its defaults, and with global values for vCenters
/// that do not set their own.
fn cpi_understood(config: &CpiConfig) -> Value {
    let global = &config.global;
    let count = |n: Option<u32>| n.filter(|n| *n > 0);
    let mut vcenters = config.vcenters.clone();
    if !global.server.is_empty() {
        vcenters.entry(global.server.clone()).or_insert_with(|| cpi::VirtualCenter {
            server: global.server.clone(),
            user: global.user.clone(),
            password: global.password.clone(),
            secret_name: global.secret_name.clone(),
            secret_namespace: global.secret_namespace.clone(),
            ..cpi::VirtualCenter::default()
        });
    }
    let vcenters: BTreeMap<&String, Value> =
        vcenters.iter().map(|(name, vc)| (name, cpi_vcenter(global, name, vc))).collect();
    json!({
        "Global": {
            "User": global.user, "Password": global.password.expose(),
            "VCenterIP": global.server, "VCenterPort": port(global.port),
            "InsecureFlag": global.insecure_flag, "Datacenters": global.datacenters.join(","),
            "RoundTripperCount": count(global.soap_roundtrip_count).unwrap_or(3),
            "CAFile": global.ca_file, "Thumbprint": global.thumbprint,
            "SecretName": global.secret_name, "SecretNamespace": global.secret_namespace,
            // The controller clears it if the directory does not exist, as here.
            "SecretsDirectory": "",
        },
        "VirtualCenter": vcenters,
        "Labels": { "Zone": config.labels.zone, "Region": config.labels.region },
        "Nodes": {
            "InternalNetworkSubnetCIDR": config.nodes.internal_network_subnet_cidr.join(","),
            "ExternalNetworkSubnetCIDR": config.nodes.external_network_subnet_cidr.join(","),
            "InternalVMNetworkName": config.nodes.internal_vm_network_name,
            "ExternalVMNetworkName": config.nodes.external_vm_network_name,
            "ExcludeInternalNetworkSubnetCIDR": config.nodes.exclude_internal_network_subnet_cidr.join(","),
            "ExcludeExternalNetworkSubnetCIDR": config.nodes.exclude_external_network_subnet_cidr.join(","),
        },
    })
}

fn cpi_vcenter(global: &cpi::Global, name: &str, vc: &cpi::VirtualCenter) -> Value {
    let or = |own: &String, other: &String| {
        if own.is_empty() { other.clone() } else { own.clone() }
    };
    let both = |a: &str, b: &str| !a.is_empty() && !b.is_empty();
    let own_secret = both(&vc.secret_name, &vc.secret_namespace);
    let shared = both(&global.secret_name, &global.secret_namespace);
    let none = global.secret_name.is_empty() && global.secret_namespace.is_empty();
    let directory = !global.secrets_directory.is_empty();
    let shared = (shared && !directory) || (none && directory);
    let inherit = !own_secret && !shared;
    let password = if inherit && vc.password.is_empty() { &global.password } else { &vc.password };
    // An entry made from the global server starts with the name of the global credentials.
    let born = name == global.server && vc.user == global.user && !shared && !own_secret;
    let secret_ref = match (own_secret, shared) {
        (true, _) => format!("{}/{}", vc.secret_namespace, vc.secret_name),
        (false, true) => "Global".into(),
        (false, false) if born => "Global".into(),
        (false, false) => String::new(),
    };
    let count = |n: Option<u32>| n.filter(|n| *n > 0);
    let list = |own: &Vec<String>, other: &Vec<String>| {
        if own.is_empty() { other.clone() } else { own.clone() }
    };
    let families = list(&vc.ip_family, &list(&global.ip_family, &vec!["ipv4".to_owned()]));
    json!({
        "User": if inherit { or(&vc.user, &global.user) } else { vc.user.clone() },
        "Password": password.expose(),
        "TenantRef": name, "VCenterIP": vc.server, "VCenterPort": port(vc.port.or(global.port)),
        "InsecureFlag": vc.insecure_flag || global.insecure_flag,
        "Datacenters": list(&vc.datacenters, &global.datacenters).join(","),
        "RoundTripperCount": count(vc.soap_roundtrip_count).or(count(global.soap_roundtrip_count)).unwrap_or(3),
        "CAFile": or(&vc.ca_file, &global.ca_file), "Thumbprint": or(&vc.thumbprint, &global.thumbprint),
        "SecretRef": secret_ref, "SecretName": vc.secret_name, "SecretNamespace": vc.secret_namespace,
        "IPFamilyPriority": families,
    })
}

fn nsxt_understood(nsxt: &cpi::Nsxt) -> Value {
    json!({
        "User": nsxt.user, "Password": nsxt.password.expose(), "Host": nsxt.host,
        "InsecureFlag": nsxt.insecure_flag, "RemoteAuth": nsxt.remote_auth,
        "SecretName": nsxt.secret_name, "SecretNamespace": nsxt.secret_namespace,
        "VMCAccessToken": nsxt.vmc_access_token.expose(), "VMCAuthHost": nsxt.vmc_auth_host,
        "ClientAuthCertFile": nsxt.client_auth_cert_file,
        "ClientAuthKeyFile": nsxt.client_auth_key_file, "CAFile": nsxt.ca_file,
    })
}

fn class_understood(class: &cpi::LoadBalancerClass) -> serde_json::Map<String, Value> {
    let fields = json!({
        "IPPoolName": class.ip_pool_name, "IPPoolID": class.ip_pool_id,
        "TCPAppProfileName": class.tcp_app_profile_name, "TCPAppProfilePath": class.tcp_app_profile_path,
        "UDPAppProfileName": class.udp_app_profile_name, "UDPAppProfilePath": class.udp_app_profile_path,
    });
    fields.as_object().unwrap().clone()
}

/// Compares the controller's answer with our understanding of the configuration.
fn check_cpi(what: &str, config: &CpiConfig, answer: &Value) {
    if refused(&config.problems()) {
        assert!(
            answer["error"].is_string(),
            "{what}: we expect a refusal\n{config:#?}\n{answer:#}"
        );
        return;
    }
    assert_eq!(answer["error"], Value::Null, "{what}: {:?}", config.problems());
    assert_eq!(answer["config"], cpi_understood(config), "{what}");
    if answer["nsxt"].is_object() {
        assert_eq!(answer["nsxt"], nsxt_understood(&config.nsxt), "{what}");
    }
    if answer["route"].is_object() {
        assert_eq!(answer["route"]["Route"]["RouterPath"], config.route.router_path, "{what}");
    }
    check_load_balancer(what, config, &answer["loadBalancer"]);
}

fn check_load_balancer(what: &str, config: &CpiConfig, answer: &Value) {
    let lb = &config.load_balancer;
    let off = [
        &lb.size,
        &lb.lb_service_id,
        &lb.class.ip_pool_id,
        &lb.class.ip_pool_name,
        &lb.tier1_gateway_path,
    ];
    let off = off.iter().all(|text| text.is_empty()) && config.load_balancer_classes.is_empty();
    if !answer.is_object() || off {
        return;
    }
    let mut expected = class_understood(&lb.class);
    expected.insert("Size".into(), json!(lb.size));
    expected.insert("LBServiceID".into(), json!(lb.lb_service_id));
    expected.insert("Tier1GatewayPath".into(), json!(lb.tier1_gateway_path));
    expected.insert("SnatDisabled".into(), json!(lb.snat_disabled));
    let tags = &answer["LoadBalancer"]["AdditionalTags"];
    expected
        .insert("AdditionalTags".into(), if tags.is_null() { Value::Null } else { json!(lb.tags) });
    assert_eq!(answer["LoadBalancer"], Value::Object(expected), "{what}");
    for (name, class) in &config.load_balancer_classes {
        let mut class = class.clone();
        for (own, shared) in [
            (&mut class.ip_pool_name, &lb.class.ip_pool_name),
            (&mut class.ip_pool_id, &lb.class.ip_pool_id),
        ] {
            if own.is_empty() {
                own.clone_from(shared);
            }
        }
        assert_eq!(
            answer["LoadBalancerClass"][name],
            Value::Object(class_understood(&class)),
            "{what}"
        );
    }
}

/// Checks each configuration in both formats.
fn check_cpi_configs(configs: &[(String, CpiConfig)]) {
    let mut cases = Vec::new();
    for (what, config) in configs {
        for (format, text) in
            [("yaml", config.to_yaml().unwrap()), ("gcfg", config.to_ini().unwrap())]
        {
            cases.push((format!("{what} as {format}"), config, json!({ "text": text.expose() })));
        }
    }
    let questions: Vec<Value> = cases.iter().map(|(_, _, question)| question.clone()).collect();
    let answers = ask("config-loader-cpi", &questions);
    for ((what, config, _), answer) in cases.iter().zip(&answers) {
        check_cpi(what, config, answer);
    }
}

fn nasty_cpi() -> Vec<(String, CpiConfig)> {
    let mut cases = Vec::new();
    for text in NASTY {
        cases.push((
            format!("password {text:?}"),
            one_vcenter("vc", |vc| vc.password = text.into()),
        ));
        if !text.contains('\n') {
            let named = one_vcenter(text, |vc| vc.server = "vc.example.com".into());
            cases.push((format!("name {text:?}"), named));
        }
    }
    let user = |user: &str| one_vcenter("vc", |vc| vc.user = user.into());
    let mut add = |what: &str, config: CpiConfig| cases.push((what.to_owned(), config));
    add("domain\\user", user("CORP\\svc-k8s"));
    add("an IPv6 address", one_vcenter("fd00::10", |_| {}));
    add("an IPv6 address in brackets", one_vcenter("[fd00::10]", |_| {}));
    add("another port", one_vcenter("vc", |vc| vc.port = Some(8443)));
    add("the last port", one_vcenter("vc", |vc| vc.port = Some(65535)));
    add("no datacenters", one_vcenter("vc", |vc| vc.datacenters.clear()));
    add(
        "datacenters in folders",
        one_vcenter("vc", |vc| {
            vc.datacenters =
                ["/Europe/DC 1", "DC#2", "Datacenter:datacenter-3"].map(String::from).to_vec();
        }),
    );
    add(
        "thumbprint and CA",
        one_vcenter("vc", |vc| {
            vc.thumbprint = "AA:BB:CC:DD:EE:FF:00:11:22:33:44:55:66:77:88:99:AA:BB:CC:DD".into();
            vc.ca_file = "/etc/cloud/ca bundle.pem".into();
        }),
    );
    add("both families", one_vcenter("vc", |vc| vc.ip_family = vec!["ipv6".into(), "ipv4".into()]));
    add(
        "nothing at all but a label",
        CpiConfig {
            labels: cpi::Labels { region: "r".into(), zone: "z".into() },
            ..CpiConfig::default()
        },
    );
    add("no password", one_vcenter("vc", |vc| vc.password = SecretText::default()));
    add("no user", one_vcenter("vc", |vc| vc.user.clear()));
    let mut many = one_vcenter("vc-0", |_| {});
    for index in 1..8 {
        many.vcenters.extend(
            one_vcenter(&format!("vc-{index}"), |vc| vc.port = Some(1000 + index)).vcenters,
        );
    }
    add("eight vCenters", many);
    let mut secret = one_vcenter("vc", |vc| {
        vc.user.clear();
        vc.password = SecretText::default();
    });
    secret.global.secret_name = "cpi-global-secret".into();
    secret.global.secret_namespace = "kube-system".into();
    add("credentials in a Secret", secret.clone());
    secret.global.secrets_directory = "/etc/cloud/secrets".into();
    add("Secret and directory", secret);
    cases
}

#[test]
fn the_cloud_controller_understands_every_nasty_configuration() {
    let cases = nasty_cpi();
    assert!(cases.len() >= 80, "{}", cases.len());
    check_cpi_configs(&cases);
}

#[test]
fn the_cloud_controller_understands_random_configurations() {
    let configs = sample(cpi_config(), 400);
    let taken = configs.iter().filter(|config| !refused(&config.problems())).count();
    assert!(taken >= 100, "only {taken} would be accepted");
    let named = configs.into_iter().enumerate();
    let cases: Vec<_> = named.map(|(n, config)| (format!("sample {n}"), config)).collect();
    check_cpi_configs(&cases);
}

#[test]
fn we_understand_cloud_controller_files_as_the_controller_does() {
    let texts = [
        "global:\n  user: 0123\n  password: yes\nvcenter:\n  a:\n    server: 10.0.0.1\n",
        "global: {user: u, password: 'it''s', insecureFlag: yes, port: 0x1bb}\nvcenter: {a: {server: b}}\n",
        "global:\n  user: ~\n  password: \"a\\x41\\u00e9\"\nvcenter:\n  a:\n    server: b\n    user: 'null'\n",
        "# comment\nglobal:\n  user: u # comment\n  password: p#q\nvcenter:\n  a:\n    server: b\n    datacenters: [x, y]\nlabels:\n",
        "global:\n  server: vc\n  user: u\n  password: p\n  unknown: 1\nfoo: {bar: [1, 2]}\n",
        "vcenter:\n  a:\n    server: b\n    user: &u name\n    password: *u\n",
        "global:\n  password: |\n    two\n    lines\n  user: >-\n    folded\n    text\nvcenter:\n  a:\n    server: b\n",
        "vcenter:\n  a:\n    user: u\n    password: p\n    server: b\n    datacenters:\n    - one, two\n    - 3\n",
        "; old\n[Global]\nuser = u\npassword = a\\\"b\nport = 8443\ninsecure-flag\n[VirtualCenter \"a\"]\n",
        "[global]\nUSER = \"u\"\nPassword = \"p # q\" ; r\n[virtualcenter \"a\"]\nServer = b\ndatacenters = x, y\n[LABELS]\nZone=z\nregion=r",
        "[Global]\nuser=u\npassword=p\nuser=v\n[VirtualCenter \"a\"]\nport=1\n[VirtualCenter \"a\"]\nca-file=/c\n",
        "[VirtualCenter \"a\"]\nuser = one \\\n two\npassword = \"x\"y\"z\"\ninsecure-flag = off\n",
        "[VirtualCenter \"a\"]\r\nuser = u\r\npassword = \"p\"\r\n",
        "[VirtualCenter]\nuser = u\npassword = p\n",
        "[VirtualCenter \"a\"]\nuser = u\npassword = p\\q\n",
        "[VirtualCenter \"a\"]\nuser = u\npassword = \"p\\q\"\n",
        "[VirtualCenter \"a\"]\nuser\npassword = p\n",
        "[VirtualCenter \"a\"]\nuser = u\npassword = p\ninsecure-flag = maybe\n",
        "[VirtualCenter \"a]\nuser = u\npassword = p\n",
        "\u{feff}[VirtualCenter \"a\"]\nuser = u\npassword = p\n",
        "vcenter:\n  a: {server: b\n",
        "vcenter:\n  a:\n    server: b\n    user: u\n    password: p\n    datacenters: dc\n",
        "vcenter:\n  a:\n    server: b\n    user: u\n    password: p\n    insecureFlag: maybe\n",
        "just text",
        "- a\n- b\n",
        "",
        "\n# nothing\n",
    ];
    let questions: Vec<Value> = texts.iter().map(|text| json!({ "text": text })).collect();
    for (text, answer) in texts.iter().zip(ask("config-loader-cpi", &questions)) {
        match CpiConfig::read(text) {
            Ok(read) => check_cpi(text, &read.config, &trimmed(answer)),
            Err(error) => {
                assert!(answer["error"].is_string(), "our error: {error}\n{text}\n{answer:#}");
            }
        }
    }
}

/// The controller keeps blanks around commas and trims them on use.
fn trimmed(mut answer: Value) -> Value {
    if let Some(datacenters) = answer.pointer_mut("/config/VirtualCenter/a/Datacenters") {
        *datacenters = datacenters.as_str().unwrap().replace(", ", ",").into();
    }
    answer
}

#[test]
fn the_cloud_controller_finds_every_credential_in_the_secret_we_write() {
    let servers = [
        "vc.example.com",
        "10.0.0.1",
        "fd00::10",
        "[fd00::10]:8443",
        "vc.example.com:8443",
        "VC.Example.COM",
        "vc.password.example.com",
        "under_score",
        "..dots",
    ];
    let mut cases = Vec::new();
    for password in NASTY.into_iter().filter(|text| !text.contains('\n')) {
        let passwords: Vec<SecretText> =
            (0..servers.len()).map(|n| format!("{password}{n}").into()).collect();
        let entries = servers.iter().zip(&passwords);
        let data = render_cpi_secret(entries.map(|(server, p)| (*server, "user@domain", p)));
        cases.push((data, passwords));
    }
    let plain = |data: &BTreeMap<String, SecretText>| -> BTreeMap<String, String> {
        data.iter().map(|(key, value)| (key.clone(), value.expose().to_owned())).collect()
    };
    let questions: Vec<Value> = cases
        .iter()
        .map(|(data, _)| json!({ "secret": plain(data), "servers": servers }))
        .collect();
    for ((data, passwords), answer) in cases.iter().zip(ask("config-loader-cpi", &questions)) {
        assert_eq!(answer["error"], Value::Null);
        let bytes: SecretData = plain(data).into_iter().map(|(k, v)| (k, v.into_bytes())).collect();
        assert!(
            bytes.keys().all(|key| {
                key.bytes().all(|b| b.is_ascii_alphanumeric() || b"-._".contains(&b))
            })
        );
        let ours = Credentials::read(&bytes).unwrap();
        for (server, password) in servers.iter().zip(passwords) {
            assert_eq!(answer["credentials"][server]["Password"], password.expose(), "{server}");
            assert_eq!(answer["credentials"][server]["User"], "user@domain", "{server}");
            assert_eq!(&ours.for_server(server).unwrap().password, password, "{server}");
        }
    }
}
