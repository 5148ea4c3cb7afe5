//! The Go controller's 7 cases of its file in both formats. For an invalid file it prints the errors of
//! both parsers; our controller detects the format and prints one error.

use std::collections::BTreeMap;

use cloud_controller::configuration::Configuration;

const GLOBAL: [(&str, &str); 6] = [
    ("port", "443"),
    ("user", "user"),
    ("password", "password"),
    ("insecureFlag", "true"),
    ("datacenters", "us-west"),
    ("caFile", "/some/ca.pem"),
];

/// The section `global` in YAML, with a server or without one.
fn yaml(server: &str) -> String {
    let lines = GLOBAL.iter().map(|(key, value)| match *key {
        "datacenters" => format!("  {key}: [{value}]\n"),
        _ => format!("  {key}: {value}\n"),
    });
    format!("global:\n{server}{}", lines.collect::<String>())
}

/// The same in INI, under this heading.
fn ini(heading: &str, server: &str) -> String {
    let kebab = |key: &str| match key {
        "insecureFlag" => "insecure-flag".to_owned(),
        "caFile" => "ca-file".to_owned(),
        other => other.to_owned(),
    };
    let lines = GLOBAL.iter().map(|(key, value)| format!("{} = {value}\n", kebab(key)));
    format!("{heading}\n{server}{}", lines.collect::<String>())
}

pub(crate) const COUNT: usize = 7;

#[test]
fn every_case_of_the_go_controllers_file_ends_as_it_should() {
    let no_vcenter = "no vCenter is specified";
    let rows = [
        ("YAML", yaml("  server: 0.0.0.0\n"), None),
        (
            "YAML with two keys in one line",
            yaml("  server: 0.0.0.0\n").replace("user: user\n", "user: password: \n"),
            Some("line 4"),
        ),
        ("INI", ini("[Global]", "server = 0.0.0.0\n"), None),
        ("INI with a bracket too many", ini("[Global]]", "server = 0.0.0.0\n"), Some("line 1")),
        ("neither", "This text is neither YAML nor INI\n".to_owned(), Some("line 1")),
        ("YAML that names no vCenter", yaml(""), Some(no_vcenter)),
        ("INI that names no vCenter", ini("[Global]", ""), Some(no_vcenter)),
    ];
    let rows: [_; COUNT] = rows;
    for (case, text, why) in rows {
        match (Configuration::read(Some(&text), &BTreeMap::new()), why) {
            (Ok(configuration), None) => {
                let [vcenter] = &configuration.vcenters[..] else { panic!("{case}") };
                assert_eq!(
                    (&*vcenter.name, &vcenter.datacenters[..]),
                    ("0.0.0.0", &["us-west".to_owned()][..])
                );
            }
            (Err(error), Some(why)) => {
                let text = runtime::error_chain::error_chain(&error);
                assert!(text.contains(why), "{case}: {text}");
            }
            (outcome, _) => panic!("{case}: {outcome:?}"),
        }
    }
}
