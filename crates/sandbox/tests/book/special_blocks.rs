//! Blocks that do not run in a shell next to the cluster: on a terminal, on a node, in a checkout, or as a dry run. A few
//! are not run: each has a reason in a table.

use std::{collections::BTreeMap, fs, os::unix::fs::PermissionsExt as _};

use crate::{
    finding_commands, lines, names,
    pages::{self, Block},
    reader::{Reader, shown},
    terminal::Terminal,
};

/// Blocks that are not run: page, reason and number of blocks.
const NOT_RUN: [(&str, &str, usize); 16] = [
    ("docs/catalog.md", "tests push catalogs into a real registry", 1),
    ("docs/cloud-controller.md", "a part of a pod, not an object of the cluster", 1),
    ("docs/cloud-controller.md", "a test of the cloud controller applies it", 1),
    ("docs/cloud-controller.md", "a test of the cloud controller reads it", 1),
    ("docs/contributing.md", "mdbook is needed to look at the book, not to test it", 1),
    ("docs/install.md", "it needs two releases", 1),
    ("docs/install-gitops.md", "Argo CD and Flux are not part of the tests", 2),
    ("docs/install-helm.md", "a test of the chart runs it", 7),
    ("docs/install-olm.md", "OLM is not part of the tests", 5),
    ("docs/install-olm.md", "a test of the bundle reads it", 1),
    ("docs/install-olm.md", "a test of the bundle runs it", 3),
    ("docs/platforms.md", "the label would move the controllers of the drivers", 1),
    ("docs/releases.md", "a test of the release runs it", 4),
    ("docs/releases.md", "the tests have no Mac", 1),
    ("docs/howto/air-gap.md", "a test of the air gap runs such commands", 3),
    ("docs/howto/kubelet.md", "a file for kubeadm, not an object of the cluster", 1),
];

/// The questions of `vdoctl configure` if a configuration exists, and the answers.
const ANSWERS: [(&str, &str); 8] = [
    ("vCenter:", "\r"),
    ("User:", "vdo@vsphere.local\r"),
    ("Password:", "CHANGE-ME\r"),
    ("use another vCenter?", "\r"),
    ("Install the cloud provider?", "\r"),
    ("for zones:", "\r"),
    ("for regions:", "\r"),
    ("Write this to the cluster?", "y\r"),
];

/// A fake sudo on a node: it changes files of a simulated node, and records the service commands.
const SUDO: &str = r#"#!/bin/bash
set -eu
case $1 in
  systemctl)
    case "$2 ${*: -1}" in
      "enable open-vm-tools" | "restart kubelet") echo "$*" >> node/services.txt ;;
      *) echo "no such service: $*" >&2 && exit 1 ;;
    esac ;;
  *) exec "${@//\/var\/lib\/kubelet/node\/kubelet}" ;;
esac
"#;

/// The file that kubeadm writes.
const KUBELET: &str =
    "KUBELET_KUBEADM_ARGS=\"--container-runtime-endpoint=unix:///run/containerd.sock\"\n";

/// The commands of a block without comments.
fn commands_without_comments(block: &Block) -> Vec<String> {
    let bare = |line: &String| line.split(" #").next().unwrap_or_default().trim().to_owned();
    names::commands_in(block).iter().map(bare).collect()
}

impl Reader {
    /// Adds the sudo and the files of a node.
    pub(crate) fn add_node_files(&self) {
        let sudo = self.workdir.write("sudo", SUDO).unwrap();
        fs::set_permissions(sudo, fs::Permissions::from_mode(0o755)).unwrap();
        fs::create_dir_all(self.workdir.path().join("node/kubelet")).unwrap();
        self.workdir.write("node/kubelet/kubeadm-flags.env", KUBELET).unwrap();
    }

    /// The commands for a node had the documented effect.
    pub(crate) fn assert_prepared_node(&self) {
        let read = |name: &str| fs::read_to_string(self.workdir.path().join(name)).unwrap();
        let expected = KUBELET.replace("=\"", "=\"--cloud-provider=external ");
        assert_eq!(read("node/kubelet/kubeadm-flags.env"), expected);
        let services = read("node/services.txt");
        let expected = "systemctl enable --now open-vm-tools\nsystemctl restart kubelet\n";
        assert_eq!(services, expected);
    }

    /// Checks that make targets exist which run these tests or measure for minutes. The tests of the sandbox run its targets.
    pub(crate) async fn check_make_targets(&self, block: &Block) {
        for line in commands_without_comments(block) {
            if let ["cargo", "bench", "-p", crate_, "--bench", bench, ..] =
                line.split(' ').collect::<Vec<_>>()[..]
            {
                let benches = testkit::repository().join("crates").join(crate_).join("benches");
                let sources = [format!("{bench}.rs"), format!("{bench}/main.rs")];
                let is_there = sources.iter().any(|source| benches.join(source).exists());
                assert!(is_there, "{}: no bench {bench}", block.place);
                continue;
            }
            assert!(line.starts_with("make "), "{}: not a make target: {line}", block.place);
            let tested = !line.starts_with("make sandbox") || lines::MADE.contains(&line.as_str());
            assert!(tested, "{}: no test of the sandbox runs {line}", block.place);
            if let Some(crate_) = line.strip_prefix("make bench ARGS=") {
                let benches = testkit::repository().join("crates").join(crate_).join("benches");
                // The pods of several crates.
                let is_known = benches.exists() || crate_ == "nodes";
                assert!(is_known, "{}: {crate_} has no benches", block.place);
            }
            let dry_run = line.replacen("make", "make -n", 1);
            let output = self.run_script_in(testkit::repository(), &self.cluster, &dry_run).await;
            assert!(output.status.success(), "{}: {line}\n{}", block.place, shown(&output));
        }
    }

    /// Runs commands that would change the cluster as a server-side dry run.
    pub(crate) async fn dry_run_commands(&self, block: &Block) {
        for line in commands_without_comments(block) {
            let dry_run = finding_commands::typed(&line);
            assert!(
                dry_run.ends_with(" --dry-run=server"),
                "{}: not a dry run: {line}",
                block.place
            );
            self.run_successfully(&dry_run).await;
        }
    }

    /// Runs the blocks for a terminal, on a cluster with a configuration.
    pub(crate) async fn run_terminal_blocks(&self) {
        let pages = pages::all();
        let blocks = pages.iter().flat_map(pages::Page::blocks).filter(Block::on_a_terminal);
        let blocks: Vec<Block> = blocks.collect();
        assert_eq!(blocks.len(), 2, "README and the page of vdoctl");
        for block in blocks {
            let shell = self.shell(self.workdir.path(), &self.cluster, &block.text);
            let mut terminal = Terminal::run(&shell, 100);
            // vdoctl can skip questions, but asks none twice.
            let mut answered = 0;
            loop {
                let questions = ANSWERS[answered..].iter().map(|(question, _)| *question);
                let awaited: Vec<&str> = questions.chain(["● Healthy"]).collect();
                let which = answered + terminal.expect_any(&awaited).await;
                let Some((_, answer)) = ANSWERS.get(which) else { break };
                terminal.types(answer);
                answered = which + 1;
            }
            let (status, shown) = terminal.ends().await;
            assert!(status.success(), "{}\n{shown}", block.place);
            assert!(shown.contains("Password:"), "{}\n{shown}", block.place);
            assert!(!shown.contains("CHANGE-ME"), "{}\n{shown}", block.place);
        }
    }
}

#[test]
fn blocks_that_are_not_run_have_a_reason_and_every_reason_is_needed() {
    let mut found = BTreeMap::<(String, String), usize>::new();
    for page in pages::all().iter().filter(|page| !page.is_generated()) {
        for block in page.blocks() {
            if let Some(why) = block.not_run() {
                *found.entry((page.path.clone(), why.to_owned())).or_default() += 1;
            }
        }
    }
    let known = NOT_RUN.map(|(page, why, count)| ((page.to_owned(), why.to_owned()), count));
    assert_eq!(found, BTreeMap::from(known));
}
