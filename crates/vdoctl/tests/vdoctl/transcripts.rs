//! Transcripts of commands: `tests/cmd` without a cluster, `tests/cmd/cluster` on a healthy cluster, and other
//! directories for commands that change something or find a problem. `TRYCMD=overwrite` rewrites them; review the
//! result.

use std::{fs, path::Path, process::Command};

use testkit::eventually;

use crate::{
    screens,
    stage::{PASSWORD, Stage},
};

fn transcripts(columns: &str, of: &str) {
    trycmd::TestCases::new()
        .register_bin("kubectl-vdo", Path::new(env!("CARGO_BIN_EXE_kubectl-vdo")))
        .env("NO_COLOR", "1")
        .env("COLUMNS", columns)
        .env("HOME", "/nonexistent")
        .env("KUBECONFIG", "")
        .case(of);
}

#[test]
fn commands_match_their_transcripts() {
    transcripts("100", "tests/cmd/*.trycmd");
}

#[test]
fn transcripts_fit_sixty_columns() {
    transcripts("60", "tests/cmd/narrow/*.trycmd");
}

/// Commands that never talk to a cluster.
const ALONE: [&str; 3] = ["explain", "prepare", "completion"];

#[test]
fn every_command_has_a_transcript_of_its_help_its_errors_and_its_success() {
    let help = Command::new(env!("CARGO_BIN_EXE_vdoctl")).arg("--help").output().unwrap();
    let help = String::from_utf8(help.stdout).unwrap();
    let listed = help.split_once("Commands:\n").unwrap().1.lines().take_while(|l| !l.is_empty());
    // A description that is too long continues on the next line, further to the right.
    let listed = listed.filter(|line| !line.starts_with("   "));
    let commands: Vec<&str> = listed.map(|l| l.split_whitespace().next().unwrap()).collect();
    assert!(commands.contains(&"support-bundle") && commands.len() > 15, "{commands:?}");
    let read = |path: &str| fs::read_to_string(format!("tests/cmd/{path}")).unwrap_or_default();
    let (unreachable, well) = (read("unreachable.trycmd"), read("cluster/healthy.trycmd"));
    // If VDO follows a VDOConfig, there is nothing to move.
    let well = well + &read("moving/moving.trycmd");
    let mut missing = Vec::new();
    for command in commands {
        let own = read(&format!("{command}.trycmd"));
        let line = format!("$ vdoctl {command}");
        let (fails, works) =
            (|text: &str| ends(text, &line, true), |text: &str| ends(text, &line, false));
        let alone = ALONE.contains(&command);
        let there = [
            ("help", own.contains(&format!("{line} -h\n"))),
            ("error", fails(&own)),
            ("error without a cluster", alone || fails(&unreachable)),
            ("success", works(&own) || !alone && works(&well)),
        ];
        missing.extend(there.iter().filter(|(_, is)| !is).map(|(what, _)| (command, *what)));
    }
    assert!(missing.is_empty(), "tests/cmd has none of these: {missing:?}");
}

#[test]
fn every_command_of_catalog_has_a_transcript_too() {
    let help = Command::new(env!("CARGO_BIN_EXE_vdoctl")).args(["catalog", "-h"]).output().unwrap();
    let help = String::from_utf8(help.stdout).unwrap();
    let listed = help.split_once("Commands:\n").unwrap().1.lines().take_while(|l| !l.is_empty());
    // A description that is too long continues on the next line, further to the right.
    let listed = listed.filter(|line| !line.starts_with("   "));
    let commands: Vec<&str> = listed.map(|l| l.split_whitespace().next().unwrap()).collect();
    assert!(commands.contains(&"from-manifest") && commands.len() > 10, "{commands:?}");
    let read = |path: &str| fs::read_to_string(format!("tests/cmd/{path}")).unwrap();
    // Commands that write to a cluster need one.
    let all = read("catalogs.trycmd") + &read("matrix/matrix.trycmd");
    for command in commands {
        let line = format!("$ vdoctl catalog {command}");
        assert!(all.contains(&format!("{line} -h\n")), "{command} -h");
        assert!(ends(&all, &line, true), "{command} that fails");
        // A registry has another port each time: the tests of catalogs push to one.
        assert!(command == "push" || ends(&all, &line, false), "{command} that works");
    }
}

/// Both commands that set the catalog.
pub(crate) fn compatibility_matrix(stage: &Stage) {
    let cases = trycmd::TestCases::new();
    cases
        .env("NO_COLOR", "1")
        .env("COLUMNS", "100")
        .env("KUBECONFIG", stage.kubeconfig().display().to_string())
        .case("tests/cmd/matrix/*.trycmd");
    tokio::task::block_in_place(|| cases.run());
}

/// Whether a transcript contains this command (without `--help`), and whether it fails: its exit code is on the next
/// line.
fn ends(text: &str, command: &str, failed: bool) -> bool {
    let lines: Vec<&str> = text.lines().collect();
    let typed = |line: &str| {
        let more = line.strip_prefix(command).filter(|more| !more.ends_with(" -h"));
        more.is_some_and(|more| more.is_empty() || more.starts_with(' '))
    };
    lines.windows(2).any(|pair| typed(pair[0]) && pair[1].starts_with("? ") == failed)
}

#[test]
fn a_transcript_counts_for_the_command_that_was_typed() {
    let text = "$ vdoctl version\nvdoctl 0.7.0\n\n$ vdoctl versions --all\n? 1\nno cluster\n";
    assert!(ends(text, "$ vdoctl version", false) && !ends(text, "$ vdoctl version", true));
    assert!(ends(text, "$ vdoctl versions", true) && !ends(text, "$ vdoctl versions", false));
}

/// Runs the transcripts of a directory.
pub(crate) fn on_cluster(stage: &Stage, folder: &str) {
    let in_folder = |name: &str| stage.workdir.path().join(name).display().to_string();
    let cases = trycmd::TestCases::new();
    cases
        .env("NO_COLOR", "1")
        .env("COLUMNS", "100")
        .env("KUBECONFIG", stage.kubeconfig().display().to_string())
        .env("VDOCTL_CONFIGURE_FILE", in_folder("vdo.yaml"))
        .env("VDOCTL_CONFIGURE_DRIVERS_FILE", in_folder("vdo.yaml"))
        .env("VDOCTL_SUPPORT_BUNDLE_OUTPUT", in_folder("transcript.tar.gz"))
        .insert_var("[VCENTER]", stage.vcenter.address().to_string())
        .unwrap()
        .insert_var("[FOLDER]", stage.workdir.path().display().to_string())
        .unwrap()
        .case(format!("tests/cmd/{folder}/*.trycmd"));
    tokio::task::block_in_place(|| cases.run());
}

/// Transcripts of problems and changes.
const DEEDS: [(&str, &str, bool); 12] = [
    ("deploying", "deploy", false),
    ("configuring", "configure drivers", false),
    ("degraded", "status", true),
    ("degraded", "status -o wide", true),
    ("degraded", "doctor", true),
    ("fixing", "fix 1203 --dry-run", false),
    ("fixing", "fix 1203", true),
    ("fixing", "fix 1203 --yes", false),
    ("adopting", "adopt --yes", false),
    ("upgrading", "upgrade --yes", false),
    ("blocked", "remove csi --yes", true),
    ("removing", "delete vdo --yes", false),
];

#[test]
fn commands_that_change_or_find_something_have_a_transcript() {
    for (folder, line, fails) in DEEDS {
        let path = format!("tests/cmd/{folder}/{folder}.trycmd");
        let text = fs::read_to_string(&path).unwrap();
        let typed = format!("$ vdoctl {line}");
        let found = text.lines().zip(text.lines().skip(1)).any(|(command, next)| {
            (command == typed || command.starts_with(&format!("{typed} --timeout")))
                && next.starts_with("? ") == fails
        });
        assert!(found, "{path}: {typed}");
    }
}

/// All read-only commands on a healthy cluster.
pub(crate) async fn on_a_healthy_cluster(stage: &Stage) {
    eventually("VDO checked the account and reports nothing else", 60, async || {
        let output = stage.vdoctl_alongside(&["status"]).await;
        let headline = output.out.lines().next().unwrap_or_default();
        if headline.ends_with("· 1 hint") { Ok(()) } else { Err(output.all()) }
    })
    .await;
    on_cluster(stage, "cluster");
    let shown = fs::read_to_string("tests/cmd/cluster/healthy.trycmd").unwrap();
    assert!(!shown.contains(PASSWORD));
}

/// All commands that show a problem.
pub(crate) async fn on_a_degraded_cluster(stage: &Stage) {
    stage.hide_disk_ids(true).await;
    eventually("the operator reports it", 60, async || {
        let output = stage.vdoctl_alongside(&["status"]).await;
        let headline = output.out.lines().next().unwrap_or_default();
        if headline.ends_with("· 1 error, 1 hint") { Ok(()) } else { Err(output.all()) }
    })
    .await;
    on_cluster(stage, "degraded");
    screens::of_trouble_fit_sixty_columns(stage);
    stage.hide_disk_ids(false).await;
    let output = stage.vdoctl_alongside(&["status", "--wait", "--timeout", "300"]).await;
    assert_eq!(output.code, 0, "{}", output.all());
}
