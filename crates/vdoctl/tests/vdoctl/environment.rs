//! Flags from environment variables.

use std::process::{Command, Stdio};

use crate::stage::CommandOutput;

/// Runs vdoctl without a cluster, with these variables.
fn run(arguments: &[&str], variables: &[(&str, &str)]) -> CommandOutput {
    let mut command = Command::new(env!("CARGO_BIN_EXE_vdoctl"));
    command
        .args(arguments)
        .env("KUBECONFIG", "/no/such/file")
        .env("COLUMNS", "100")
        .envs(variables.iter().copied())
        .stdin(Stdio::null());
    command.output().unwrap().into()
}

/// The error after a valid command line.
const NO_CLUSTER: &str = "no Kubernetes cluster is configured";

#[test]
fn a_flag_that_is_typed_wins_over_a_variable_it_conflicts_with() {
    let flags =
        ["configure", "--vcenter", "vc", "--user", "u", "--password-file", "-", "--insecure"];
    let variables = [
        ("VDOCTL_CONFIGURE_FILE", "vdo.yaml"),
        ("VDOCTL_CONFIGURE_PASSWORD", "secret"),
        ("VDOCTL_CONFIGURE_THUMBPRINT", "aa"),
    ];
    let output = run(&flags, &variables);
    assert_eq!(output.code, 1, "{}", output.all());
    assert!(output.err.contains(NO_CLUSTER), "{}", output.all());
    // The reverse, and with a positional argument.
    let output = run(&["fix", "1203"], &[("VDOCTL_FIX_MADE", "true")]);
    assert!(output.err.contains(NO_CLUSTER), "{}", output.all());
    // Two conflicting variables are an error.
    let both = [("VDOCTL_CONFIGURE_FILE", "vdo.yaml"), ("VDOCTL_CONFIGURE_VCENTER", "vc")];
    let output = run(&["configure"], &both);
    assert_eq!(output.code, 2, "{}", output.all());
    assert!(output.err.contains("cannot be used with"), "{}", output.all());
    // Typed flags are always checked.
    let output = run(&["configure", "-f", "x", "--vcenter", "vc"], &[]);
    assert_eq!(output.code, 2, "{}", output.all());
}

#[test]
fn a_variable_is_ignored_without_the_flag_it_requires() {
    for variable in ["PASSWORD", "USER", "THUMBPRINT", "DATACENTER", "NO_CLUSTER"] {
        let name = format!("VDOCTL_DOCTOR_{variable}");
        let output = run(&["doctor"], &[(name.as_str(), "1")]);
        assert_eq!(output.code, 1, "{name}: {}", output.all());
        assert!(output.err.contains(NO_CLUSTER), "{name}: {}", output.all());
    }
    // A chain of requirements fails with its first flag.
    let zones = [("VDOCTL_CONFIGURE_ZONE", "z"), ("VDOCTL_CONFIGURE_REGION", "r")];
    let output = run(&["configure"], &zones);
    assert!(output.err.contains(NO_CLUSTER), "{}", output.all());
    let output = run(&["configure", "compatibility-matrix", "https://example.com/c"], &zones);
    assert!(output.err.contains(NO_CLUSTER), "{}", output.all());
    let output = run(&["doctor", "--password", "x"], &[]);
    assert_eq!(output.code, 2, "typed, it is a mistake: {}", output.all());
    // Together with the flag, the variable counts.
    let whole = [
        ("VDOCTL_DOCTOR_VCENTER", "127.0.0.1:1"),
        ("VDOCTL_DOCTOR_USER", "u"),
        ("VDOCTL_DOCTOR_PASSWORD", "p"),
        ("VDOCTL_DOCTOR_NO_CLUSTER", "true"),
    ];
    let output = run(&["doctor", "--only", "1301"], &whole);
    assert_eq!(output.code, 3, "{}", output.all());
    assert!(output.out.contains("127.0.0.1:1"), "{}", output.all());
}

#[test]
fn a_variable_can_turn_a_switch_off() {
    for no in ["false", "0", "off", ""] {
        let off = [("VDOCTL_CONFIGURE_INSECURE", no), ("VDOCTL_CONFIGURE_THUMBPRINT", "aa")];
        let vcenter = ["configure", "--vcenter", "vc", "--user", "u", "--password", "p"];
        let output = run(&vcenter, &off);
        assert!(output.err.contains(NO_CLUSTER), "{no:?}: {}", output.all());
        let output = run(&["upgrade"], &[("VDOCTL_UPGRADE_BACK", no)]);
        assert!(output.err.contains(NO_CLUSTER), "{no:?}: {}", output.all());
    }
}

#[test]
fn an_unclear_value_of_a_switch_is_an_error() {
    for word in ["maybe", "never", "disabled"] {
        for variable in ["VDOCTL_YES", "VDOCTL_REMOVE_DRY_RUN"] {
            let output = run(&["remove", "csi"], &[(variable, word)]);
            assert_eq!(output.code, 2, "{variable}={word}: {}", output.all());
            assert!(
                output.err.contains("use true or false"),
                "{variable}={word}: {}",
                output.all()
            );
        }
    }
}

#[test]
fn a_variable_is_ignored_without_the_argument_it_requires() {
    for variable in [("VDOCTL_UPGRADE_TO", "3.7.3"), ("VDOCTL_UPGRADE_BACK", "true")] {
        let output = run(&["upgrade"], &[variable]);
        assert!(output.err.contains(NO_CLUSTER), "{variable:?}: {}", output.all());
    }
    // Together with the flag, the variable counts.
    let output = run(&["upgrade", "csi"], &[("VDOCTL_UPGRADE_TO", "three")]);
    assert_eq!(output.code, 2, "{}", output.all());
}

#[test]
fn the_verbosity_is_a_number_or_true() {
    for (value, code) in [("true", 0), ("2", 0), ("off", 0), ("", 0), ("loud", 2), ("-1", 2)] {
        let output = run(&["version", "--client"], &[("VDOCTL_VERBOSE", value)]);
        assert_eq!(output.code, code, "{value}: {}", output.all());
        assert_eq!(
            output.err.contains("use a number, or true"),
            code == 2,
            "{value}: {}",
            output.all()
        );
    }
}

#[test]
fn a_password_can_start_with_a_dash() {
    let door = ["doctor", "--no-cluster", "--vcenter", "127.0.0.1:1", "--user", "u", "--insecure"];
    for password in ["-S3cret", "--S3cret"] {
        let line = [&door[..], &["--only", "1301", "--password", password]].concat();
        let output = run(&line, &[]);
        assert_eq!(output.code, 3, "{}", output.all());
        assert!(!output.all().contains("S3cret"), "{}", output.all());
    }
}
