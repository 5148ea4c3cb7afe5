//! Blocks that are typed elsewhere than in a shell beside the cluster: on a terminal, on a node, in a
//! checkout, or only as a trial. A few are not typed at all: each has its reason in a table.

use std::{collections::BTreeMap, fs, os::unix::fs::PermissionsExt as _};

use crate::{
    lines, names,
    pages::{self, Block},
    reader::{Reader, shown},
    remedies,
    terminal::Terminal,
};

/// Blocks that are not typed: the page, why, and how many of the page.
const NOT_RUN: [(&str, &str, usize); 4] = [
    ("docs/cloud-controller.md", "a test of the cloud controller applies it", 1),
    ("docs/cloud-controller.md", "a test of the cloud controller reads it", 1),
    ("docs/contributing.md", "mdbook is needed to look at the book, not to test it", 1),
    ("docs/howto/kubelet.md", "a file for kubeadm, not an object of the cluster", 1),
];

/// What `vdoctl configure` asks where a configuration is there already, and the answers.
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

/// In place of sudo on a node: what is done to files is done to those of a node on the desk, and of
/// services it is noted what would become of them.
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

/// As kubeadm writes it.
const KUBELET: &str =
    "KUBELET_KUBEADM_ARGS=\"--container-runtime-endpoint=unix:///run/containerd.sock\"\n";

/// The lines of a block, without what is said about them.
fn bare(block: &Block) -> Vec<String> {
    let bare = |line: &String| line.split(" #").next().unwrap_or_default().trim().to_owned();
    names::typed(block).iter().map(bare).collect()
}

impl Reader {
    /// What a node has of what the pages tell to type there.
    pub(crate) fn has_a_node_at_hand(&self) {
        let sudo = self.desk.write("sudo", SUDO).unwrap();
        fs::set_permissions(sudo, fs::Permissions::from_mode(0o755)).unwrap();
        fs::create_dir_all(self.desk.path().join("node/kubelet")).unwrap();
        self.desk.write("node/kubelet/kubeadm-flags.env", KUBELET).unwrap();
    }

    /// What was typed on it did what the pages say.
    pub(crate) fn has_a_prepared_node(&self) {
        let read = |name: &str| fs::read_to_string(self.desk.path().join(name)).unwrap();
        let expected = KUBELET.replace("=\"", "=\"--cloud-provider=external ");
        assert_eq!(read("node/kubelet/kubeadm-flags.env"), expected);
        let services = read("node/services.txt");
        let expected = "systemctl enable --now open-vm-tools\nsystemctl restart kubelet\n";
        assert_eq!(services, expected);
    }

    /// Recipes that are what runs this, or measure for minutes: each is there, and make knows how. Those of
    /// the sandbox are made by its own tests.
    pub(crate) async fn asks_for(&self, block: &Block) {
        for line in bare(block) {
            if let ["cargo", "bench", "-p", crate_, "--bench", bench, ..] =
                line.split(' ').collect::<Vec<_>>()[..]
            {
                let benches = testkit::repository().join("crates").join(crate_).join("benches");
                let sources = [format!("{bench}.rs"), format!("{bench}/main.rs")];
                let is_there = sources.iter().any(|source| benches.join(source).exists());
                assert!(is_there, "{}: no bench {bench}", block.place);
                continue;
            }
            assert!(line.starts_with("make "), "{}: no recipe: {line}", block.place);
            let made = !line.starts_with("make sandbox") || lines::MADE.contains(&line.as_str());
            assert!(made, "{}: no test of the sandbox makes {line}", block.place);
            if let Some(crate_) = line.strip_prefix("make bench ARGS=") {
                let benches = testkit::repository().join("crates").join(crate_).join("benches");
                assert!(benches.exists(), "{}: nothing is measured of {crate_}", block.place);
            }
            let asked = line.replacen("make", "make -n", 1);
            let output = self.types_in(testkit::repository(), &self.cluster, &asked).await;
            assert!(output.status.success(), "{}: {line}\n{}", block.place, shown(&output));
        }
    }

    /// Has the cluster try what would cost it something.
    pub(crate) async fn tries(&self, block: &Block) {
        for line in bare(block) {
            let trial = remedies::typed(&line);
            assert!(trial.ends_with(" --dry-run=server"), "{}: no trial: {line}", block.place);
            self.succeeds(&trial).await;
        }
    }

    /// Types the blocks that are for a terminal on one, where a configuration is there already.
    pub(crate) async fn sits_at_a_terminal(&self) {
        let pages = pages::all();
        let blocks = pages.iter().flat_map(pages::Page::blocks).filter(Block::on_a_terminal);
        let blocks: Vec<Block> = blocks.collect();
        assert_eq!(blocks.len(), 2, "README and the page of vdoctl");
        for block in blocks {
            let shell = self.shell(self.desk.path(), &self.cluster, &block.text);
            let mut terminal = Terminal::run(&shell, 100);
            // Some are passed over where nothing is left to ask; none is asked again.
            let mut asked = 0;
            loop {
                let questions = ANSWERS[asked..].iter().map(|(question, _)| *question);
                let awaited: Vec<&str> = questions.chain(["● Healthy"]).collect();
                let which = asked + terminal.expect_any(&awaited).await;
                let Some((_, answer)) = ANSWERS.get(which) else { break };
                terminal.types(answer);
                asked = which + 1;
            }
            let (status, shown) = terminal.ends().await;
            assert!(status.success(), "{}\n{shown}", block.place);
            assert!(shown.contains("Password:"), "{}\n{shown}", block.place);
            assert!(!shown.contains("CHANGE-ME"), "{}\n{shown}", block.place);
        }
    }
}

#[test]
fn what_is_not_typed_has_a_reason_and_every_reason_is_needed() {
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
