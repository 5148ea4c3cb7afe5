use super::*;

fn read(text: &str) -> Result<Configuration, String> {
    with(Some(text), &[])
}

fn with(text: Option<&str>, environment: &[(&str, &str)]) -> Result<Configuration, String> {
    let environment = environment.iter().map(|(k, v)| ((*k).into(), (*v).into())).collect();
    Configuration::read(text, &environment).map_err(|error| {
        let source = std::error::Error::source(&error).map(ToString::to_string);
        format!("{error}: {}", source.unwrap_or_default())
    })
}

const YAML: &str = "
global: {user: admin, password: pw, port: 8443, datacenters: [DC0], ipFamily: [ipv4]}
vcenter:
  a: {server: vc-a.example, datacenters: ['Datacenter:datacenter-3', /F/DC1], ipFamily: [ipv6, ipv4]}
  b: {server: 10.0.0.1, port: 443, secretName: s, secretNamespace: n, insecureFlag: true}
labels: {zone: k8s-zone, region: k8s-region}
nodes: {internalNetworkSubnetCidr: '10.0.0.0/8, 192.168.0.0/16', excludeExternalNetworkSubnetCidr: 10.1.2.3/16}
";

#[test]
fn a_vcenter_inherits_unset_keys_from_global() {
    let config = read(YAML).unwrap();
    let [a, b] = &config.vcenters[..] else { panic!("{config:?}") };
    assert_eq!((&*a.name, &*b.name), ("vc-a.example:8443", "10.0.0.1"));
    assert_eq!(a.datacenters, ["datacenter-3", "/F/DC1"]);
    assert_eq!(b.datacenters, ["DC0"]);
    assert_eq!(
        (&a.families[..], &b.families[..]),
        (&[Family::V6, Family::V4][..], &[Family::V4][..])
    );
    assert_eq!(a.credentials, CredentialSource::Inline("admin".into(), "pw".into()));
    assert_eq!(b.credentials, CredentialSource::Secret("n".into(), "s".into()));
    assert_eq!((&a.trust, &b.trust), (&TrustSource::System, &TrustSource::Insecure));
    assert_eq!(
        config.categories,
        Categories { zone: "k8s-zone".into(), region: "k8s-region".into() }
    );
    let subnets: Vec<String> =
        config.rules.internal.subnets.iter().map(ToString::to_string).collect();
    assert_eq!(subnets, ["10.0.0.0/8", "192.168.0.0/16"]);
    assert_eq!(config.rules.external.excluded[0].to_string(), "10.1.0.0/16");
}

#[test]
fn the_ini_format_is_equivalent() {
    let ini = "[Global]\nuser = admin\npassword = pw\nport = 8443\ndatacenters = DC0\n\
               [VirtualCenter \"vc-a.example\"]\nip-family = ipv6,ipv4\n\
               [VirtualCenter \"fd00::1\"]\nport = 443\nca-file = /ca.pem\n\
               [Labels]\nzone = k8s-zone\n\
               [Nodes]\ninternal-vm-network-name = net\n";
    let config = read(ini).unwrap();
    let names: Vec<&str> = config.vcenters.iter().map(|v| &*v.name).collect();
    assert_eq!(names, ["fd00::1", "vc-a.example:8443"]);
    assert_eq!(config.vcenters[0].trust, TrustSource::CaFile("/ca.pem".into(), CaBundle::Unread));
    assert_eq!(config.vcenters[1].families, [Family::V6, Family::V4]);
    assert_eq!(config.categories.zone, "k8s-zone", "a zone alone is enough");
    assert_eq!(config.rules.internal.network, "net");
}

#[test]
fn global_server_is_another_vcenter() {
    let config = read("global: {server: vc, secretName: s, secretNamespace: n}").unwrap();
    assert_eq!(&*config.vcenters[0].name, "vc");
    assert_eq!(config.vcenters[0].credentials, CredentialSource::Secret("n".into(), "s".into()));
}

#[test]
fn the_environment_overrides_the_file_for_every_vcenter() {
    let config = with(
        Some(YAML),
        &[
            ("VSPHERE_VCENTER_PORT", "9443"),
            ("VSPHERE_USER", "root"),
            ("VSPHERE_PASSWORD", "a=b=c"),
            ("VSPHERE_INSECURE", "true"),
            ("VSPHERE_LABEL_ZONE", "rack"),
        ],
    )
    .unwrap();
    let names: Vec<&str> = config.vcenters.iter().map(|v| &*v.name).collect();
    assert_eq!(names, ["vc-a.example:9443", "10.0.0.1"], "no vCenter called 9443");
    assert_eq!(
        config.vcenters[0].credentials,
        CredentialSource::Inline("root".into(), "a=b=c".into())
    );
    assert!(config.vcenters.iter().all(|v| v.trust == TrustSource::Insecure));
    assert_eq!(config.categories.zone, "rack");
}

#[test]
fn the_environment_alone_is_enough() {
    let config = with(
        None,
        &[
            ("VSPHERE_VCENTER_1", "vc-1"),
            ("VCENTER_1_USERNAME", "u"),
            ("VCENTER_1_PASSWORD", "p"),
            ("VCENTER_1_IP_FAMILY", "ipv6"),
            ("VCENTER_1_INSECURE", "1"),
            ("VCENTER_1_DATACENTERS", "A, B"),
        ],
    )
    .unwrap();
    let vcenter = &config.vcenters[0];
    assert_eq!(vcenter.families, [Family::V6]);
    assert_eq!(vcenter.datacenters, ["A", "B"]);
    assert_eq!(vcenter.trust, TrustSource::Insecure);
}

#[test]
fn errors_name_the_cause() {
    let apply_vcenter = "global: {server: vc, user: u, password: p}\n";
    for (text, why) in [
        ("", "the configuration is empty"),
        ("global: {user: u}", "no vCenter is specified"),
        ("global: {server: vc}", "no credentials"),
        ("global: {server: vc, usr: x}", "`global.usr` (did you mean `user`?)"),
        (
            &format!("{apply_vcenter}nodes: {{internalNetworkSubnetCidr: 10.0.0.300/8}}"),
            "10.0.0.300/8",
        ),
        ("global: {server: vc, user: u, password: p, ipFamily: [ipv7]}", "ipv7 is neither"),
        ("global: {server: vc, user: u, password: p, thumbprint: xx}", "the thumbprint of vc"),
        (
            "global: {user: u, password: p}\nvcenter: {a: {server: vc}, b: {server: vc}}",
            "vc is in the configuration twice",
        ),
        (
            &format!("{apply_vcenter}loadBalancer: {{size: SMALL}}"),
            "asks for load balancers in NSX",
        ),
        (
            &format!("{apply_vcenter}route: {{routerPath: /infra/tier-1s/x}}"),
            "asks for pod routes in NSX",
        ),
    ] {
        let error = read(text).unwrap_err();
        assert!(error.contains(why), "{text}: {error}");
        assert!(!error.contains("password: p"), "{error}");
    }
    let error =
        with(None, &[("VSPHERE_VCENTER", "vc"), ("VSPHERE_INSECURE", "perhaps")]).unwrap_err();
    assert!(error.contains("VSPHERE_INSECURE cannot be used: write true or false"), "{error}");
}

#[test]
fn families_are_case_insensitive_and_trimmed() {
    let config =
        read("global: {server: vc, user: u, password: p, ipFamily: [' IPv6', IPV4]}").unwrap();
    assert_eq!(config.vcenters[0].families, [Family::V6, Family::V4]);
}

#[test]
fn the_content_of_a_ca_file_is_a_part_of_the_configuration() {
    let folder = std::env::temp_dir().join(format!("ccm-bundle-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let (file, ca) = (folder.join("vsphere.conf"), folder.join("ca.pem"));
    let text = format!("global: {{server: vc, user: u, password: p, caFile: {}}}", ca.display());
    std::fs::write(&file, text).unwrap();
    let load = || Configuration::load(Some(&file), &BTreeMap::new()).unwrap();
    let missing = load();
    std::fs::write(&ca, "one").unwrap();
    let (first, again) = (load(), load());
    std::fs::write(&ca, "two").unwrap();
    let second = load();
    std::fs::remove_dir_all(&folder).unwrap();
    assert_eq!(first, again);
    assert!(first != second && first != missing, "{first:?}");
    let TrustSource::CaFile(_, CaBundle::Unreadable(why)) = &missing.vcenters[0].trust else {
        panic!("{missing:?}")
    };
    assert!(why.contains("No such file"), "{why}");
}
