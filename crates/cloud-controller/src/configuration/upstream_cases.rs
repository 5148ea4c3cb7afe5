//! The Go controller's test cases for credentials and trust in its INI format, with our results.

use super::*;

fn thumbprint(byte: &str) -> String {
    vec![byte; 20].join(":")
}

/// Each vCenter with its credentials and trust, or the error.
fn outcome(text: &str) -> String {
    let config = match Configuration::read(Some(text), &BTreeMap::new()) {
        Ok(config) => config,
        Err(error) => return error.to_string(),
    };
    let apply_vcenter = |vcenter: &Vcenter| {
        let credentials = match &vcenter.credentials {
            CredentialSource::Inline(user, password) => format!("{user}/{}", password.expose()),
            CredentialSource::Secret(namespace, name) => format!("Secret {namespace}/{name}"),
            CredentialSource::Directory(path) => format!("files in {}", path.display()),
        };
        let trust = match &vcenter.trust {
            TrustSource::System => String::new(),
            TrustSource::Insecure => " insecure".into(),
            TrustSource::CaFile(path, _) => format!(" by {}", path.display()),
            TrustSource::Thumbprint(thumbprint) => format!(" {thumbprint}"),
        };
        format!("{}: {credentials}{trust}", vcenter.name)
    };
    config.vcenters.iter().map(apply_vcenter).collect::<Vec<_>>().join(", ")
}

#[test]
fn every_case_of_the_go_controllers_credentials_ends_as_it_should() {
    let pair = "user = user\npassword = password\n";
    let secret = "secret-name = \"vccreds\"\nsecret-namespace = \"kube-system\"\n";
    let nameless = "secret-name = \"vccreds\"\n";
    let global = |more: &str| format!("[Global]\nserver = 0.0.0.0\ndatacenters = us-west\n{more}");
    let entry = |more: &str| format!("[VirtualCenter \"0.0.0.0\"]\n{more}");
    let (a, b) = (thumbprint("AA"), thumbprint("BB"));
    let pair_result = "0.0.0.0: user/password";
    let secret_result = "0.0.0.0: Secret kube-system/vccreds";
    let two = "0.0.0.0: user/password by /ca.pem, 1.1.1.1: user/password by /ca.pem";
    let cases = [
        ("user and password", global(pair), pair_result.to_owned()),
        ("a Secret", global(secret), secret_result.into()),
        (
            "a Secret, user and password: the Secret wins",
            global(&format!("{secret}{pair}")),
            secret_result.into(),
        ),
        (
            "a Secret and half a pair",
            global(&format!("{secret}password = password\n")),
            secret_result.into(),
        ),
        (
            "a Secret without a namespace, and a pair",
            global(&format!("{nameless}{pair}")),
            pair_result.into(),
        ),
        (
            "a Secret without a namespace, no user",
            global(&format!("{nameless}password = password\n")),
            "!vcenter.0.0.0.0.user".into(),
        ),
        (
            "a Secret without a namespace, no password",
            global(&format!("{nameless}user = user\n")),
            "!vcenter.0.0.0.0.password".into(),
        ),
        ("a Secret without a namespace, no pair", global(nameless), "!vcenter.0.0.0.0.user".into()),
        (
            "a separate vCenter, the pair for all",
            format!("[Global]\n{pair}{}", entry("")),
            pair_result.into(),
        ),
        (
            "a vCenter with its own pair",
            global("port = 443\ninsecure-flag = true\n") + &entry(pair),
            format!("{pair_result} insecure"),
        ),
        ("a separate vCenter, a Secret for all", global(secret) + &entry(""), secret_result.into()),
        (
            "a Secret for all, a vCenter with half a pair",
            global(secret) + &entry("password = password\n"),
            secret_result.into(),
        ),
        (
            "a thumbprint for all",
            global(&format!("{pair}thumbprint = \"{a}\"\n")),
            format!("{pair_result} {a}"),
        ),
        (
            "a thumbprint for each, and one without",
            format!(
                "[Global]\n{pair}{}[VirtualCenter \"no-thumbprint\"]\n[VirtualCenter \"1.1.1.1\"]\nthumbprint = \
                 \"{b}\"\n",
                entry(&format!("thumbprint = \"{a}\"\n"))
            ),
            format!("{pair_result} {a}, 1.1.1.1: user/password {b}, no-thumbprint: user/password"),
        ),
        (
            "one CA file for all",
            format!(
                "[Global]\n{pair}ca-file = /ca.pem\n{}[VirtualCenter \"1.1.1.1\"]\n{pair}",
                entry(pair)
            ),
            two.into(),
        ),
    ];
    assert_eq!(cases.len(), 15);
    for (what, text, expected) in cases {
        let outcome = outcome(&text);
        match expected.strip_prefix('!') {
            None => assert_eq!(outcome, expected, "{what}"),
            Some(key) => {
                assert!(
                    outcome.contains(key) && outcome.contains("no credentials"),
                    "{what}: {outcome}"
                );
            }
        }
    }
}

#[test]
fn the_settings_of_a_vcenter_override_global_and_conflicts_are_errors() {
    let secret = "secret-name = s\nsecret-namespace = n\n";
    let own = "secret-name = own\nsecret-namespace = m\n";
    let files = "secrets-directory = /secrets\n";
    let entry = "[VirtualCenter \"vc\"]\n";
    for (what, text, expected) in [
        ("its own Secret", format!("[Global]\n{secret}{entry}{own}"), "vc: Secret m/own"),
        (
            "its own Secret over its own pair",
            format!("[Global]\n{entry}user = u\npassword = p\n{own}"),
            "vc: Secret m/own",
        ),
        (
            "its own pair over the Secret for all",
            format!("[Global]\n{secret}{entry}user = u\npassword = p\n"),
            "vc: u/p",
        ),
        ("files for all", format!("[Global]\n{files}{entry}"), "vc: files in /secrets"),
        ("its own Secret over files", format!("[Global]\n{files}{entry}{own}"), "vc: Secret m/own"),
    ] {
        assert_eq!(outcome(&text), expected, "{what}");
    }
    let both = outcome(&format!("[Global]\n{secret}{files}{entry}"));
    assert!(both.contains("secretName and secretsDirectory are both set"), "{both}");
    let variables = BTreeMap::from([("VSPHERE_SECRETS_DIRECTORY".to_owned(), "/env".to_owned())]);
    let config = Configuration::read(Some("[VirtualCenter \"vc\"]\n"), &variables).unwrap();
    assert_eq!(config.vcenters[0].credentials, CredentialSource::Directory("/env".into()));
}

#[test]
fn families_in_the_ini_format() {
    let read = |value: &str| {
        let text = format!(
            "[Global]\nuser = u\npassword = p\nip-family = \"{value}\"\n[VirtualCenter \"vc\"]\n"
        );
        Configuration::read(Some(&text), &BTreeMap::new())
    };
    for (value, families) in [
        ("ipv4, ", &[Family::V4][..]),
        (" ipv6 ,ipv4", &[Family::V6, Family::V4]),
        ("ipv6,ipv4", &[Family::V6, Family::V4]),
        ("", &[Family::V4]),
    ] {
        assert_eq!(read(value).unwrap().vcenters[0].families, families, "{value:?}");
    }
    let error = read("ipv7").unwrap_err().to_string();
    assert_eq!(error, "ip-family of vc: ipv7 is neither ipv4 nor ipv6");
}
