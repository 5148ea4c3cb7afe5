//! Files of other authors, and common mistakes.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]

use driver_config::ReadError;
use driver_config::cpi::CpiConfig;
use driver_config::credentials::{Credentials, CredentialsError, Format, SecretData};
use driver_config::csi::CsiConfig;

fn unknown_cpi(text: &str) -> String {
    CpiConfig::read(text).unwrap().strict().unwrap_err().to_string()
}

#[test]
fn an_unknown_key_is_named_with_the_right_one() {
    let text = "vcenter:\n  vc-a:\n    server: vc-a\n    ca-file: /ca\n    datacenter: [dc]\nlables:\n  zone: z\n";
    assert_eq!(
        unknown_cpi(text),
        "the driver does not know `vcenter.vc-a.ca-file` (did you mean `caFile`?), \
         `vcenter.vc-a.datacenter` (did you mean `datacenters`?), `lables` (did you mean `labels`?); \
         it would ignore them silently"
    );
    let text = "[Global]\ncluster_id = x\n[VirtualCenter \"a\"]\ndatacenter = x\nsparkles = y\n[Snapshots]\n";
    let read = CsiConfig::read(text);
    assert!(read.is_err(), "an underscore is no part of a key");
    let read = CsiConfig::read(&text.replace("cluster_id", "clusterid")).unwrap();
    let unknown: Vec<String> = read.unknown.iter().map(ToString::to_string).collect();
    assert_eq!(
        unknown,
        [
            "`[Global] clusterid` (did you mean `cluster-id`?)",
            "`[VirtualCenter \"a\"] datacenter` (did you mean `datacenters`?)",
            "`[VirtualCenter \"a\"] sparkles`",
            "`[Snapshots]` (did you mean `Snapshot`?)",
        ]
    );
}

#[test]
fn a_wrong_value_is_named_but_never_repeated() {
    let cases = [
        ("vcenter:\n  a:\n    port: hunter2\n", "`vcenter.a.port` must be a port from 1 to 65535"),
        (
            "vcenter:\n  a:\n    insecureFlag: hunter2\n",
            "`vcenter.a.insecureFlag` must be true or false",
        ),
        (
            "vcenter:\n  a:\n    datacenters: hunter2\n",
            "`vcenter.a.datacenters` must be a list, each item on its own line after `- `",
        ),
        ("global:\n  user: [hunter2]\n", "`global.user` must be a single value"),
        ("[Global]\nport = hunter2\n", "`[Global] port` must be a port from 1 to 65535"),
        ("[Global]\ninsecure-flag = hunter2\n", "`[Global] insecure-flag` must be true or false"),
        ("[Global]\nuser\n", "`[Global] user` must be followed by `=` and a value"),
        (
            "global:\n  password: \"hunter2\n",
            "the configuration is not valid YAML at line 3, column 1: check indentation, colons and quotes there",
        ),
    ];
    for (text, expected) in cases {
        let error = CpiConfig::read(text).unwrap_err();
        assert_eq!(error.to_string(), expected, "{text}");
        assert!(!format!("{error:?}").contains("hunter2"), "{error:?}");
    }
    let error = CsiConfig::read("[Global]\npassword = \"hunter2\n").unwrap_err();
    let ReadError::Gcfg { source } = &error else { panic!("{error:?}") };
    assert!(source.to_string().starts_with("line 2: a double quote is not closed"), "{source}");
    assert!(!format!("{error:?}{source}").contains("hunter2"));
}

#[test]
fn the_files_of_the_go_operator_are_read() {
    let cpi = "vcenter:\n    10.10.10.10:\n        server: 10.10.10.10\n        datacenters:\n            - dc0\n        \
               secretName: cpi-global-secret\n        secretNamespace: kube-system\n        port: 443\n        insecureFlag: true\n\
               labels:\n    region: k8s-region\n    zone: k8s-zone\n";
    let config = CpiConfig::read(cpi).unwrap().strict().unwrap();
    let vcenter = &config.vcenters["10.10.10.10"];
    assert_eq!((vcenter.port, vcenter.insecure_flag), (Some(443), true));
    assert_eq!(vcenter.datacenters, ["dc0"]);
    assert_eq!(config.labels.zone, "k8s-zone");
    assert_eq!(config.problems(), []);

    let csi = "[Global]\ncluster-id = \"10.10.10.10\"\n\n[VirtualCenter \"10.10.10.10\"]\n\
               insecure-flag                    = \"true\"\nuser                             = \"user\"\n\
               password                         = \"pwd\"\ndatacenters                      = \"dc0, dc1\"\n\
               targetvSANFileShareDatastoreURLs = \"ds:///vmfs/volumes/vsan:123/\"\n\n[NetPermissions \"A\"]\n\
               ips         = \"10.10.10.0/24\"\npermissions = \"READ_WRITE\"\nrootsquash  = \"true\"\n";
    let config = CsiConfig::read(csi).unwrap().strict().unwrap();
    let vcenter = &config.vcenters["10.10.10.10"];
    assert_eq!(vcenter.datacenters, ["dc0", "dc1"]);
    assert_eq!(vcenter.target_vsan_file_share_datastore_urls, ["ds:///vmfs/volumes/vsan:123/"]);
    assert!(config.net_permissions["A"].root_squash);
    let problems: Vec<String> = config.problems().iter().map(ToString::to_string).collect();
    assert_eq!(problems.len(), 1, "only the user without a domain: {problems:?}");
    assert!(problems[0].contains("must be fully qualified"), "{problems:?}");
}

fn secret(entries: &[(&str, &str)]) -> SecretData {
    entries.iter().map(|(key, value)| ((*key).to_owned(), value.as_bytes().to_vec())).collect()
}

/// One vCenter's credentials in every common format.
#[test]
fn every_secret_format_gives_the_same_credentials() {
    let rancher_csi = "[Global]\ncluster-id = \"c-m-1\"\nuser = \"admin@corp\"\npassword = \"p\\\"w\"\nport = \"443\"\n\
                       insecure-flag = \"1\"\n\n[VirtualCenter \"vc\"]\ndatacenters = \"dc\"\n";
    let openshift_csi = "[Global]\ncluster-id = \"ocp-x\"\n[VirtualCenter \"vc\"]\ninsecure-flag = true\n\
                         datacenters = dc\npassword = \"p\\\"w\"\nuser = \"admin@corp\"\n";
    let openshift_yaml =
        "vcenter:\n  vc:\n    server: vc\n    user: admin@corp\n    password: 'p\"w'\n";
    let cases: [(&str, SecretData, Format, &str); 9] = [
        (
            "basic-auth",
            secret(&[("username", "admin@corp"), ("password", "p\"w")]),
            Format::BasicAuth,
            "password",
        ),
        (
            "the CPI's, OpenShift's and Rancher's",
            secret(&[("vc.username", "admin@corp"), ("vc.password", "p\"w")]),
            Format::ByAddress,
            "vc.password",
        ),
        (
            "with a line break, as echo leaves it",
            secret(&[("vc.username", "admin@corp\n"), ("vc.password", "p\"w\n")]),
            Format::ByAddress,
            "vc.password",
        ),
        (
            "the CPI's for IPv6",
            secret(&[("server_1", "vc"), ("username_1", "admin@corp"), ("password_1", "p\"w")]),
            Format::Numbered,
            "password_1",
        ),
        (
            "the CSI driver's",
            secret(&[("csi-vsphere.conf", openshift_csi)]),
            Format::Configuration,
            "csi-vsphere.conf",
        ),
        (
            "Rancher's CSI chart",
            secret(&[("csi-vsphere.conf", rancher_csi)]),
            Format::Configuration,
            "csi-vsphere.conf",
        ),
        (
            "OpenShift's CSI operator",
            secret(&[("cloud.conf", openshift_csi)]),
            Format::Configuration,
            "cloud.conf",
        ),
        (
            "a YAML configuration",
            secret(&[("vsphere.conf", openshift_yaml)]),
            Format::Configuration,
            "vsphere.conf",
        ),
        (
            "Rancher's cloud credential",
            secret(&[
                ("vmwarevspherecredentialConfig-vcenter", "vc"),
                ("vmwarevspherecredentialConfig-vcenterPort", "443"),
                ("vmwarevspherecredentialConfig-username", "admin@corp"),
                ("vmwarevspherecredentialConfig-password", "p\"w"),
            ]),
            Format::Rancher,
            "vmwarevspherecredentialConfig-password",
        ),
    ];
    for (what, data, format, key) in cases {
        let credentials = Credentials::read(&data).unwrap_or_else(|e| panic!("{what}: {e}"));
        for server in ["vc", "vc:443", "VC"] {
            let found = credentials.for_server(server).unwrap();
            assert_eq!(
                (found.username.as_str(), found.password.expose()),
                ("admin@corp", "p\"w"),
                "{what}"
            );
            assert_eq!((found.format, found.key.as_str()), (format, key), "{what}");
            assert_eq!(found.trimmed, what.contains("line break"), "{what}");
        }
        assert_eq!(credentials.unknown, Vec::<String>::new(), "{what}");
        assert!(!format!("{credentials:?}").contains("p\"w"), "{what}");
    }
}

/// Key and value; or server and `user/password`.
type Entry = (&'static str, &'static str);
/// Description, Secret, and the credentials or a part of the error.
type Case<'c> = (&'static str, Vec<Entry>, Result<&'c [Entry], &'static str>);

/// The cases of the CPI's own tests for its Secret, with our result: the credentials, or a part of the error.
#[test]
fn every_upstream_case_of_the_cpi_secret_has_the_expected_result() {
    let (v4, v6) = ("10.20.30.40", "fd00::1");
    let (user, pass) = ("10.20.30.40.username", "10.20.30.40.password");
    let (url, token) =
        ("10.20.30.40.vc-session-manager-url", "10.20.30.40.vc-session-manager-token");
    let numbered = [("server_0", v6), ("username_0", "u"), ("password_0", "p")];
    let and = |more: &[Entry]| [&numbered[..], more].concat();
    let nothing = "contains no vCenter credentials";
    let session = "specifies a session manager";
    let cases: [Case<'_>; 19] = [
        ("user and password", vec![(user, "u"), (pass, "p")], Ok(&[(v4, "u/p")])),
        ("each with a line break", vec![(user, "u\n"), (pass, "p\n")], Ok(&[(v4, "u/p")])),
        (
            "a misspelt key next to a right one",
            vec![("10.20.30.40.usernam", "u"), (pass, "p")],
            Err("no `10.20.30.40.username`"),
        ),
        ("no user", vec![(pass, "p")], Err("no `10.20.30.40.username`")),
        ("no password", vec![(user, "u")], Err("no `10.20.30.40.password`")),
        // The CPI logs in with a session of another program. VDO reports that it does not support it.
        ("a session manager without a token", vec![(url, "https://s")], Err(session)),
        ("a session manager without an address", vec![(token, "t")], Err(session)),
        ("a session manager", vec![(url, "https://s"), (token, "t")], Err(session)),
        ("a key that is only an address", vec![(v4, "u")], Err(nothing)),
        (
            "two by number",
            and(&[("server_foo", v4), ("username_foo", "v"), ("password_foo", "q")]),
            Ok(&[(v6, "u/p"), (v4, "v/q")]),
        ),
        ("a number without a password", numbered[..2].to_vec(), Err("no `password_0`")),
        (
            "a number without a user",
            vec![("server_0", v6), ("password_0", "p")],
            Err("no `username_0`"),
        ),
        ("a password of no server", and(&[("password_1", "p")]), Err("no `server_1`")),
        ("a user of no server", and(&[("username_1", "u")]), Err("no `server_1`")),
        ("no number", vec![("server_", v6), ("username_", "u"), ("password_", "p")], Err(nothing)),
        (
            "one by address and one by number",
            and(&[(user, "v"), (pass, "q")]),
            Ok(&[(v4, "v/q"), (v6, "u/p")]),
        ),
        ("a server without a number", vec![("server_", v6)], Err(nothing)),
        ("a user without a number", vec![("username_", "u")], Err(nothing)),
        ("a password without a number", vec![("password_", "p")], Err(nothing)),
    ];
    for (what, entries, expected) in cases {
        match (Credentials::read(&secret(&entries)), expected) {
            (Ok(read), Ok(all)) => {
                assert_eq!(read.all.len(), all.len(), "{what}");
                for (server, pair) in all {
                    let found = read.for_server(server).unwrap();
                    let shown = format!("{}/{}", found.username, found.password.expose());
                    assert_eq!(shown, *pair, "{what}: {server}");
                }
            }
            (Err(error), Err(text)) => {
                assert!(error.to_string().contains(text), "{what}: {error}");
            }
            (read, _) => panic!("{what}: {read:?}"),
        }
    }
}

#[test]
fn the_error_of_an_unusable_secret_names_the_key() {
    let cases = [
        (
            vec![],
            "the Secret contains no vCenter credentials: add the keys `username` and `password`",
        ),
        (
            vec![("user", "a"), ("pass", "b")],
            "the Secret contains no vCenter credentials: add the keys `username` and `password`",
        ),
        (
            vec![("username", "a")],
            "the Secret has `username` but no `password`: add the key `password`",
        ),
        (
            vec![("vc.password", "a")],
            "the Secret has `vc.password` but no `vc.username`: add the key `vc.username`",
        ),
        (
            vec![("server_a", "vc"), ("username_a", "u")],
            "the Secret has `username_a` but no `password_a`: add the key `password_a`",
        ),
        (
            vec![("username_a", "u"), ("password_a", "p")],
            "the Secret has `username_a` but no `server_a`: add the key `server_a`",
        ),
        (
            vec![("server_a", "vc")],
            "the Secret has `server_a` but no `username_a`: add the key `username_a`",
        ),
        (
            vec![("username", "a"), ("password", "")],
            "the key `password` of the Secret is empty: fill it in",
        ),
        (
            vec![("username", "a"), ("password", "\n")],
            "the key `password` of the Secret is empty: fill it in",
        ),
        (
            vec![("username", "a\nb"), ("password", "p")],
            "the key `username` of the Secret has a line break in the middle: it must be a single line",
        ),
        (
            vec![("csi-vsphere.conf", "nonsense")],
            "the key `csi-vsphere.conf` of the Secret is not a driver configuration",
        ),
        (
            vec![("csi-vsphere.conf", "[VirtualCenter \"vc\"]\nuser = u\n")],
            "the Secret has `csi-vsphere.conf: [VirtualCenter \"vc\"] user` but no `csi-vsphere.conf: [VirtualCenter \"vc\"] password`: \
             add the key `csi-vsphere.conf: [VirtualCenter \"vc\"] password`",
        ),
        (
            vec![("vc.vc-session-manager-url", "https://s"), ("vc.vc-session-manager-token", "t")],
            "the Secret specifies a session manager (`vc.vc-session-manager-url`) instead of a password: \
             add user and password, which VDO needs to check the vCenter",
        ),
    ];
    for (entries, expected) in cases {
        assert_eq!(Credentials::read(&secret(&entries)).unwrap_err().to_string(), expected);
    }
    let binary: SecretData =
        [("username".to_owned(), vec![0xff]), ("password".to_owned(), vec![b'p'])].into();
    assert_eq!(
        Credentials::read(&binary),
        Err(CredentialsError::NotText { key: "username".into() })
    );
}

#[test]
fn a_rancher_credential_that_names_no_vcenter_is_for_any() {
    let data = secret(&[
        ("vmwarevspherecredentialConfig-username", "u"),
        ("vmwarevspherecredentialConfig-password", "p"),
    ]);
    assert_eq!(Credentials::read(&data).unwrap().for_server("vc").unwrap().server, None);
    let alone = secret(&[("vmwarevspherecredentialConfig-vcenter", "vc")]);
    assert_eq!(
        Credentials::read(&alone).unwrap_err().to_string(),
        "the Secret has `vmwarevspherecredentialConfig-vcenter` but no \
         `vmwarevspherecredentialConfig-username`: add the key \
         `vmwarevspherecredentialConfig-username`"
    );
}

#[test]
fn credentials_for_another_vcenter_are_not_used() {
    let data = secret(&[
        ("vc-a.username", "u"),
        ("vc-a.password", "p"),
        ("vc-b.username", "v"),
        ("vc-b.password", "q"),
        ("note", "x"),
    ]);
    let credentials = Credentials::read(&data).unwrap();
    assert_eq!(credentials.for_server("vc-b").unwrap().username, "v");
    assert_eq!(
        credentials.for_server("vc-c").unwrap_err().to_string(),
        "the Secret has credentials for vc-a, vc-b, none for vc-c: add `vc-c.username` and `vc-c.password`, \
         or use a Secret with just `username` and `password`"
    );
    assert_eq!(credentials.unknown, ["note"]);
}

#[test]
fn the_second_line_of_a_broken_password_is_not_in_the_error() {
    let text = "[VirtualCenter \"vc\"]\nuser = u\npassword = first\nSecretTail\n";
    let read = CsiConfig::read(text).unwrap();
    let unknown_keys: Vec<String> = read.unknown.iter().map(ToString::to_string).collect();
    assert_eq!(unknown_keys, ["`[VirtualCenter \"vc\"] line 4, a word without =`"]);
}
