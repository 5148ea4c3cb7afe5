//! Flags from the environment beside those on the command line.

use std::process::{Command, Stdio};

use crate::stage::Said;

/// Runs it where no cluster is, with these variables.
fn run(arguments: &[&str], variables: &[(&str, &str)]) -> Said {
    let mut command = Command::new(env!("CARGO_BIN_EXE_vdoctl"));
    command
        .args(arguments)
        .env("KUBECONFIG", "/no/such/file")
        .env("COLUMNS", "100")
        .envs(variables.iter().copied())
        .stdin(Stdio::null());
    command.output().unwrap().into()
}

/// How far it comes where the command line makes sense.
const NO_CLUSTER: &str = "no cluster to talk to";

#[test]
fn a_flag_that_is_typed_wins_over_a_variable_it_conflicts_with() {
    let flags =
        ["configure", "--vcenter", "vc", "--user", "u", "--password-file", "-", "--insecure"];
    let variables = [
        ("VDOCTL_CONFIGURE_FILE", "vdo.yaml"),
        ("VDOCTL_CONFIGURE_PASSWORD", "secret"),
        ("VDOCTL_CONFIGURE_THUMBPRINT", "aa"),
    ];
    let said = run(&flags, &variables);
    assert_eq!(said.code, 1, "{}", said.all());
    assert!(said.err.contains(NO_CLUSTER), "{}", said.all());
    // The other way round, and through a positional.
    let said = run(&["fix", "1203"], &[("VDOCTL_FIX_MADE", "true")]);
    assert!(said.err.contains(NO_CLUSTER), "{}", said.all());
    // Two variables are at odds with each other: nobody can know which is meant.
    let both = [("VDOCTL_CONFIGURE_FILE", "vdo.yaml"), ("VDOCTL_CONFIGURE_VCENTER", "vc")];
    let said = run(&["configure"], &both);
    assert_eq!(said.code, 2, "{}", said.all());
    assert!(said.err.contains("cannot be used with"), "{}", said.all());
    // What is typed is judged as strictly as ever.
    let said = run(&["configure", "-f", "x", "--vcenter", "vc"], &[]);
    assert_eq!(said.code, 2, "{}", said.all());
}

#[test]
fn a_variable_says_nothing_without_what_it_belongs_to() {
    for variable in ["PASSWORD", "USER", "THUMBPRINT", "DATACENTER", "NO_CLUSTER"] {
        let name = format!("VDOCTL_DOCTOR_{variable}");
        let said = run(&["doctor"], &[(name.as_str(), "1")]);
        assert_eq!(said.code, 1, "{name}: {}", said.all());
        assert!(said.err.contains(NO_CLUSTER), "{name}: {}", said.all());
    }
    // A chain of them falls with its first.
    let zones = [("VDOCTL_CONFIGURE_ZONE", "z"), ("VDOCTL_CONFIGURE_REGION", "r")];
    let said = run(&["configure"], &zones);
    assert!(said.err.contains(NO_CLUSTER), "{}", said.all());
    let said = run(&["configure", "compatibility-matrix", "https://example.com/c"], &zones);
    assert!(said.err.contains(NO_CLUSTER), "{}", said.all());
    let said = run(&["doctor", "--password", "x"], &[]);
    assert_eq!(said.code, 2, "typed, it is a mistake: {}", said.all());
    // Beside it, it counts.
    let whole = [
        ("VDOCTL_DOCTOR_VCENTER", "127.0.0.1:1"),
        ("VDOCTL_DOCTOR_USER", "u"),
        ("VDOCTL_DOCTOR_PASSWORD", "p"),
        ("VDOCTL_DOCTOR_NO_CLUSTER", "true"),
    ];
    let said = run(&["doctor", "--only", "1301"], &whole);
    assert_eq!(said.code, 3, "{}", said.all());
    assert!(said.out.contains("127.0.0.1:1"), "{}", said.all());
}

#[test]
fn a_switch_that_is_off_is_not_given() {
    for no in ["false", "0", "off", ""] {
        let off = [("VDOCTL_CONFIGURE_INSECURE", no), ("VDOCTL_CONFIGURE_THUMBPRINT", "aa")];
        let vcenter = ["configure", "--vcenter", "vc", "--user", "u", "--password", "p"];
        let said = run(&vcenter, &off);
        assert!(said.err.contains(NO_CLUSTER), "{no:?}: {}", said.all());
        let said = run(&["upgrade"], &[("VDOCTL_UPGRADE_BACK", no)]);
        assert!(said.err.contains(NO_CLUSTER), "{no:?}: {}", said.all());
    }
}

#[test]
fn a_word_that_is_neither_yes_nor_no_is_not_taken_for_yes() {
    for word in ["maybe", "never", "disabled"] {
        for variable in ["VDOCTL_YES", "VDOCTL_REMOVE_DRY_RUN"] {
            let said = run(&["remove", "csi"], &[(variable, word)]);
            assert_eq!(said.code, 2, "{variable}={word}: {}", said.all());
            assert!(said.err.contains("say true or false"), "{variable}={word}: {}", said.all());
        }
    }
}

#[test]
fn a_variable_that_belongs_to_a_word_is_passed_over_without_it() {
    for variable in [("VDOCTL_UPGRADE_TO", "3.7.3"), ("VDOCTL_UPGRADE_BACK", "true")] {
        let said = run(&["upgrade"], &[variable]);
        assert!(said.err.contains(NO_CLUSTER), "{variable:?}: {}", said.all());
    }
    // Beside it, it counts.
    let said = run(&["upgrade", "csi"], &[("VDOCTL_UPGRADE_TO", "three")]);
    assert_eq!(said.code, 2, "{}", said.all());
}

#[test]
fn how_much_is_told_is_a_number_or_a_yes() {
    for (value, code) in [("true", 0), ("2", 0), ("off", 0), ("", 0), ("loud", 2), ("-1", 2)] {
        let said = run(&["version", "--client"], &[("VDOCTL_VERBOSE", value)]);
        assert_eq!(said.code, code, "{value}: {}", said.all());
        assert_eq!(said.err.contains("a number, or true"), code == 2, "{value}: {}", said.all());
    }
}

#[test]
fn a_password_may_begin_with_a_dash() {
    let door = ["doctor", "--no-cluster", "--vcenter", "127.0.0.1:1", "--user", "u", "--insecure"];
    for password in ["-S3cret", "--S3cret"] {
        let line = [&door[..], &["--only", "1301", "--password", password]].concat();
        let said = run(&line, &[]);
        assert_eq!(said.code, 3, "{}", said.all());
        assert!(!said.all().contains("S3cret"), "{}", said.all());
    }
}
