//! Runs the commands in sentences and tables, on the cluster of the book, which is healthy and has VDO.
//!
//! A command is inline code that begins with a program, or with a command of one of our programs and more words. A program
//! alone is a name. A table has the form of commands that need placeholders, or would remove what later pages need; an
//! entry that no page needs is an error. Make targets that run these tests or measure for minutes run with `make -n`;
//! the tests of the sandbox run its targets.

use std::{collections::BTreeSet, fmt::Write as _};

use crate::{
    lines, names,
    pages::{self, Page},
    programs,
    reader::{Reader, shown},
};

/// Programs of inline commands.
const PROGRAMS: [&str; 11] = [
    "cargo", "git", "govc", "helm", "kubectl", "make", "oc", "openssl", "sandbox", "source",
    "vdoctl",
];

/// Make targets that run literally.
const LITERAL_TARGETS: [&str; 2] = ["make", "make peers-status"];

/// Commands of the pages, the form that is run, and the exit code.
const RUN_AS: [(&str, &str, i32); 59] = [
    // It asks questions on a terminal: blocks for a terminal run it.
    ("vdoctl configure", "vdoctl configure", 2),
    ("vdoctl configure -f", "vdoctl configure -f vdo.yaml", 0),
    (
        "vdoctl configure --vcenter vc.example.com --user vdo@vsphere.local --password-file pw --thumbprint HEX",
        "echo CHANGE-ME > pw; vdoctl configure --vcenter vc-a.example.com --user vdo@vsphere.local \
         --password-file pw --thumbprint $THUMBPRINT",
        0,
    ),
    ("configure drivers", "vdoctl configure drivers -f vdo.yaml", 0),
    ("configure compatibility-matrix", "vdoctl configure compatibility-matrix built.yaml", 0),
    ("update compatibility-matrix", "vdoctl update compatibility-matrix built.yaml", 0),
    ("vdoctl deploy --host-network always", "vdoctl deploy --host-network always --dry-run", 0),
    ("deploy --spec", "vdoctl deploy --spec deploy/install.yaml --dry-run", 0),
    // Later pages need these objects.
    ("vdoctl remove csi", "vdoctl remove csi --dry-run", 0),
    ("vdoctl remove csi --yes | true", "vdoctl remove csi --dry-run | true", 0),
    ("vdoctl remove vdo", "vdoctl remove vdo --dry-run", 0),
    ("vdoctl delete vdo", "vdoctl delete vdo --dry-run", 0),
    ("delete vdo", "vdoctl delete vdo --dry-run", 0),
    (
        "kubectl delete -f deploy/install.yaml",
        "kubectl delete -f deploy/install.yaml --dry-run=server",
        0,
    ),
    (
        "kubectl apply --force-conflicts",
        "kubectl apply --server-side --force-conflicts -f deploy/install.yaml --dry-run=server",
        0,
    ),
    (
        "kubectl apply",
        "kubectl apply --server-side --force-conflicts -f deploy/install.yaml --dry-run=server",
        0,
    ),
    ("vdoctl deploy --version X.Y.Z", "vdoctl deploy --version 0.7.0 --dry-run", 0),
    // They need a registry: the tests of vdoctl and of real nodes run them.
    ("vdoctl images export", "vdoctl images export --help", 0),
    ("vdoctl images import", "vdoctl images import --help", 0),
    ("vdoctl images verify", "vdoctl images verify --help", 0),
    // It asks a question, and an earlier page has created the StorageClass: the tests of vdoctl run it.
    ("vdoctl storage-class", "vdoctl storage-class --help", 0),
    // Its pods need real nodes: the tests of the storage driver run it.
    ("vdoctl test", "vdoctl test --dry-run", 0),
    // No object is in another namespace, and later pages need all nodes.
    ("vdoctl move", "vdoctl move --help", 0),
    ("kubectl drain", "kubectl drain --help", 0),
    // Placeholders.
    (
        "vdoctl deploy --driver-namespace NAMESPACE",
        "vdoctl deploy --driver-namespace default --dry-run",
        0,
    ),
    ("vdoctl COMMAND --help", "vdoctl versions --help", 0),
    ("kubectl vdo COMMAND", "kubectl vdo versions", 0),
    ("kubectl edit", "EDITOR=true kubectl edit vdoconfig vdo --namespace vmware-system-vdo", 0),
    ("kubectl explain", "kubectl explain vdoconfig.spec.storageProvider", 0),
    (
        "openssl x509 -fingerprint -sha256",
        "openssl x509 -fingerprint -sha256 -noout -in vcenter-ca.pem",
        0,
    ),
    // A command with subcommands: help, and the exit code of a usage error.
    ("vdoctl catalog", "vdoctl catalog", 2),
    ("kubectl vdo", "kubectl vdo", 2),
    ("vdoctl catalog check", "vdoctl catalog check built.yaml", 0),
    ("vdoctl catalog import", "vdoctl catalog import built.yaml", 0),
    ("vdoctl catalog keygen", "rm -f catalog.key; vdoctl catalog keygen catalog.key", 0),
    ("vdoctl catalog sign", "vdoctl catalog sign built.yaml --key signing.key", 0),
    (
        "vdoctl catalog explain",
        "vdoctl catalog explain --driver csi --kubernetes 1.36 --vsphere 8.0",
        0,
    ),
    (
        "vdoctl catalog explain --installed",
        "vdoctl catalog explain --driver csi --kubernetes 1.36 --vsphere 8.0 --installed 3.7.3",
        0,
    ),
    // The table of these commands.
    ("list [--driver D]", "vdoctl catalog list; vdoctl catalog list --driver csi", 0),
    ("show DRIVER VERSION", "vdoctl catalog show csi 3.7.3", 0),
    ("import FILE", "vdoctl catalog import built.yaml", 0),
    (
        "verify FILE [--key KEY]",
        "vdoctl catalog verify built.yaml; vdoctl catalog verify signed.bundle --key \"$KEY\"",
        0,
    ),
    (
        "build FILE [--serial N] [--expires T] [--digest IMAGE=DIGEST]",
        concat!(
            "vdoctl catalog build built.yaml; vdoctl catalog build built.yaml --serial 4711 --expires 2999-01-01T00:00:00Z ",
            "--digest ghcr.io/vmware-tanzu/vdo-csi:",
            env!("CARGO_PKG_VERSION"),
            "=sha256:b845f4bbc34d70bd84e92f8021f47704df1de3dbabbd8289969651360b39d605",
        ),
        0,
    ),
    ("keygen FILE", "rm -f catalog.key; vdoctl catalog keygen catalog.key", 0),
    ("push FILE URL", "vdoctl catalog push --help", 0),
    ("vdoctl catalog push", "vdoctl catalog push --help", 0),
    ("sign FILE --key FILE", "vdoctl catalog sign built.yaml --key signing.key", 0),
    ("diff OLD NEW", "vdoctl catalog diff embedded built.yaml", 0),
    (
        "from-manifest ... FILES",
        "vdoctl catalog render --driver csi --version 3.7.3 --kubernetes 1.36 > published.yaml; \
         vdoctl catalog from-manifest --driver csi --version 3.99.0 --kubernetes-min 1.34 \
         --kubernetes-max 1.36 --vsphere-min 7.0 published.yaml",
        0,
    ),
    (
        "images [--driver D] [--version V]",
        "vdoctl catalog images; vdoctl catalog images --driver csi --version 3.7.3",
        0,
    ),
    (
        "explain --driver D --kubernetes V --vsphere V",
        "vdoctl catalog explain --driver csi --kubernetes 1.36 --vsphere 8.0",
        0,
    ),
    (
        "render --driver D --version V --kubernetes V",
        "vdoctl catalog render --driver csi --version 3.7.3 --kubernetes 1.36",
        0,
    ),
    ("break --list", "sandbox break --list", 0),
    // The row is about a pod that does not answer; other tests read logs.
    ("kubectl logs", "kubectl logs --help", 0),
    // The findings depend on the state.
    ("vdoctl doctor", "vdoctl doctor || [ $? = 3 ]", 0),
    ("vdoctl support-bundle", "vdoctl support-bundle --output inline_commands.tar.gz", 0),
    ("vdoctl upgrade", "vdoctl upgrade", 0),
    ("vdoctl fix VDO-1203", "vdoctl fix VDO-1203", 0),
    ("vdoctl adopt", "vdoctl adopt", 0),
];

/// The files that some of them read.
const FILES: &str = r"
vdoctl catalog build embedded > built.yaml
rm -f signing.key
KEY=$(vdoctl catalog keygen signing.key)
vdoctl catalog build embedded --serial 4711 > newer.yaml
vdoctl catalog sign newer.yaml --key signing.key > signed.bundle
";

/// The inline commands of a page, without its headings.
fn inline_commands(page: &Page, verbs: &BTreeSet<String>) -> Vec<String> {
    let words = page.code_words_below_headings();
    let is_command = |word: &&String| {
        let is_variable = |part: &&str| {
            part.split_once('=')
                .is_some_and(|(name, _)| name.chars().all(|c| c.is_ascii_uppercase() || c == '_'))
        };
        let mut parts = word.split_whitespace().skip_while(is_variable);
        let first = parts.next().unwrap_or_default();
        let more = parts.next().is_some();
        first == "make" || more && (PROGRAMS.contains(&first) || verbs.contains(first))
    };
    words.iter().filter(is_command).cloned().collect()
}

/// The commands of our programs.
fn verbs() -> BTreeSet<String> {
    let verbs_of = |program: &str, words: &[&str]| {
        names::verbs(&programs::help(&programs::path(program).unwrap(), words))
    };
    let old = ["delete", "update"].map(str::to_owned);
    [
        verbs_of("vdoctl", &[]),
        verbs_of("vdoctl", &["catalog"]),
        verbs_of("sandbox", &[]),
        old.into(),
    ]
    .concat()
    .into_iter()
    .collect()
}

/// Every inline command with its first page, without the pages of the findings, which `finding_commands` runs.
fn all() -> Vec<(String, String)> {
    let verbs = verbs();
    let mut seen = BTreeSet::new();
    let mut found = Vec::new();
    let included =
        |page: &Page| !page.path.starts_with("docs/findings/VDO-") && page.path != "CHANGELOG.md";
    for page in pages::all().iter().filter(|page| included(page)) {
        for inline in inline_commands(page, &verbs) {
            if seen.insert(inline.clone()) {
                found.push((page.path.clone(), inline));
            }
        }
    }
    found
}

fn is_of_the_checkout(inline: &str) -> bool {
    inline.starts_with("make") || inline.starts_with("cargo ")
}

/// The form of a command that is run, and its exit code.
fn typed(inline: &str) -> (String, i32) {
    if let Some((_, typed, code)) = RUN_AS.iter().find(|(written, ..)| *written == inline) {
        return ((*typed).to_owned(), *code);
    }
    if inline.starts_with("make") && !LITERAL_TARGETS.contains(&inline) {
        return (inline.replacen("make", "make -n", 1), 0);
    }
    (inline.to_owned(), 0)
}

impl Reader {
    /// Runs every inline command, and reports all failures.
    pub(crate) async fn run_inline_commands(&self) {
        let all = all();
        assert!(all.len() > 80, "{}", all.len());
        let needless: Vec<&str> = RUN_AS
            .iter()
            .map(|(written, ..)| *written)
            .filter(|written| !all.iter().any(|(_, inline)| inline == written))
            .collect();
        assert_eq!(needless, Vec::<&str>::new(), "no page has it");
        for (page, inline) in all.iter().filter(|(_, inline)| inline.starts_with("make sandbox")) {
            assert!(
                lines::MADE.contains(&inline.as_str()),
                "{page}: no test of the sandbox runs {inline}"
            );
        }
        let (recipes, others): (Vec<_>, Vec<_>) =
            all.iter().partition(|(_, inline)| is_of_the_checkout(inline));
        let checkout = testkit::repository();
        for (folder, commands) in [(checkout, recipes), (self.workdir.path(), others)] {
            let output =
                shown(&self.run_script_in(folder, &self.cluster, &self.script(&commands)).await);
            assert_eq!(output, "all commands ran\n", "an inline command failed");
        }
    }

    /// A script that reports the commands with another exit code, and their output.
    fn script(&self, commands: &[&(String, String)]) -> String {
        let workdir = self.workdir.path().display();
        let mut script = format!("set +e\nTHUMBPRINT={}\n", self.vcenter.thumbprint_sha1());
        if !commands.iter().all(|(_, command)| is_of_the_checkout(command)) {
            script += FILES;
        }
        for (page, command) in commands {
            let (typed, code) = typed(command);
            let label = format!("{page}: {command}").replace('\'', "");
            writeln!(
                script,
                "( set -eo pipefail; {typed}\n) > {workdir}/typed.txt 2>&1\ncode=$?\n\
                 [ $code = {code} ] || {{ echo '{label}' ends with $code; tail -3 {workdir}/typed.txt; }}"
            )
            .unwrap();
        }
        script + "echo 'all commands ran'"
    }
}

#[test]
fn inline_commands_are_distinguished_from_names() {
    let text = "# `vdoctl heading`\n\n`vdoctl` and `kubectl vdo` | `make` | `fix VDO-1203` | `fix` | `make -n\nx` `two words`\n";
    let page = Page { path: "docs/page.md".into(), text: text.into() };
    let verbs = BTreeSet::from(["fix".to_owned()]);
    assert_eq!(
        inline_commands(&page, &verbs),
        ["kubectl vdo", "make", "fix VDO-1203", "make -n x"]
    );
    assert_eq!(typed("make test"), ("make -n test".into(), 0));
    assert_eq!(typed("make"), ("make".into(), 0));
}
