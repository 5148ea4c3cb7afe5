//! The commands within sentences and tables: each is typed, on the cluster the book is read on, where VDO
//! runs and all is well.
//!
//! A command is what stands in code and begins with a program, or with a command of one of ours and says
//! more than that word. A program alone is a name. One that needs something filled in, or would take away
//! what later pages need, stands in a table with how it is typed here; a line of it that no page needs is
//! a mistake. Recipes of make that run these very tests or measure for minutes are asked for with
//! `make -n`; those of the sandbox are made by its own tests, word for word.

use std::{collections::BTreeSet, fmt::Write as _};

use crate::{
    lines, names,
    pages::{self, Page},
    programs,
    reader::{Reader, shown},
};

/// Programs a sentence may tell to type.
const PROGRAMS: [&str; 11] = [
    "cargo", "git", "govc", "helm", "kubectl", "make", "oc", "openssl", "sandbox", "source",
    "vdoctl",
];

/// Recipes that are typed as they stand.
const RECIPES: [&str; 2] = ["make", "make peers-status"];

/// Commands as pages write them, how they are typed here, and the code they end with.
const TYPED: [(&str, &str, i32); 49] = [
    // On a terminal it asks: blocks that say so are typed on one.
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
    ("deploy --spec", "vdoctl deploy --spec deploy/install.yaml --dry-run", 0),
    // What later pages need stays.
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
    // Nothing here is in another namespace, and no node is drained under later pages.
    ("vdoctl move", "vdoctl move --help", 0),
    ("kubectl drain", "kubectl drain --help", 0),
    // Where something stands for anything.
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
    // A word for all commands below it: help, and the code of a mistake.
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
        "vdoctl catalog verify built.yaml; vdoctl catalog verify signed.bundle --key $KEY",
        0,
    ),
    (
        "build FILE [--serial N] [--expires T]",
        "vdoctl catalog build built.yaml; vdoctl catalog build built.yaml --serial 4711 --expires 2999-01-01T00:00:00Z",
        0,
    ),
    ("keygen FILE", "rm -f catalog.key; vdoctl catalog keygen catalog.key", 0),
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
    // A pod that does not answer is what the row is about; logs are read where kubelets answer.
    ("kubectl logs", "kubectl logs --help", 0),
    // Of what is running, whatever was found.
    ("vdoctl doctor", "vdoctl doctor || [ $? = 3 ]", 0),
    ("vdoctl support-bundle", "vdoctl support-bundle --output asides.tar.gz", 0),
    ("vdoctl upgrade", "vdoctl upgrade", 0),
    ("vdoctl fix VDO-1203", "vdoctl fix VDO-1203", 0),
    ("vdoctl adopt", "vdoctl adopt", 0),
];

/// What some of them read.
const FILES: &str = r"
vdoctl catalog build embedded > built.yaml
rm -f signing.key
KEY=$(vdoctl catalog keygen signing.key | tail -1)
vdoctl catalog build embedded --serial 4711 > newer.yaml
vdoctl catalog sign newer.yaml --key signing.key > signed.bundle
";

/// The commands in the sentences of a page; its headings are names.
fn asides(page: &Page, verbs: &BTreeSet<String>) -> Vec<String> {
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
    let of = |program: &str, words: &[&str]| {
        names::verbs(&programs::help(&programs::path(program).unwrap(), words))
    };
    let old = ["delete", "update"].map(str::to_owned);
    [of("vdoctl", &[]), of("vdoctl", &["catalog"]), of("sandbox", &[]), old.into()]
        .concat()
        .into_iter()
        .collect()
}

/// Every command within a sentence, of every page but those of the findings, which have a reader of
/// their own, each once, with the first page that says it.
fn all() -> Vec<(String, String)> {
    let verbs = verbs();
    let mut seen = BTreeSet::new();
    let mut found = Vec::new();
    let told =
        |page: &Page| !page.path.starts_with("docs/findings/VDO-") && page.path != "CHANGELOG.md";
    for page in pages::all().iter().filter(|page| told(page)) {
        for aside in asides(page, &verbs) {
            if seen.insert(aside.clone()) {
                found.push((page.path.clone(), aside));
            }
        }
    }
    found
}

fn is_of_the_checkout(aside: &str) -> bool {
    aside.starts_with("make") || aside.starts_with("cargo ")
}

/// How a command is typed here, and the code it ends with.
fn typed(aside: &str) -> (String, i32) {
    if let Some((_, typed, code)) = TYPED.iter().find(|(written, ..)| *written == aside) {
        return ((*typed).to_owned(), *code);
    }
    if aside.starts_with("make") && !RECIPES.contains(&aside) {
        return (aside.replacen("make", "make -n", 1), 0);
    }
    (aside.to_owned(), 0)
}

impl Reader {
    /// Types every command that stands within a sentence; all that fail are told.
    pub(crate) async fn types_asides(&self) {
        let all = all();
        assert!(all.len() > 80, "{}", all.len());
        let needless: Vec<&str> = TYPED
            .iter()
            .map(|(written, ..)| *written)
            .filter(|written| !all.iter().any(|(_, aside)| aside == written))
            .collect();
        assert_eq!(needless, Vec::<&str>::new(), "no page says it");
        for (page, aside) in all.iter().filter(|(_, aside)| aside.starts_with("make sandbox")) {
            assert!(
                lines::MADE.contains(&aside.as_str()),
                "{page}: no test of the sandbox makes {aside}"
            );
        }
        let (recipes, others): (Vec<_>, Vec<_>) =
            all.iter().partition(|(_, aside)| is_of_the_checkout(aside));
        let checkout = testkit::repository();
        for (folder, commands) in [(checkout, recipes), (self.desk.path(), others)] {
            let told = shown(&self.types_in(folder, &self.cluster, &self.script(&commands)).await);
            assert_eq!(told, "all of it was typed\n", "what a sentence tells to type fails");
        }
    }

    /// A script that says which of these do not end as they should, and what they said.
    fn script(&self, commands: &[&(String, String)]) -> String {
        let desk = self.desk.path().display();
        let mut script = format!("set +e\nTHUMBPRINT={}\n", self.vcenter.thumbprint_sha1());
        if !commands.iter().all(|(_, command)| is_of_the_checkout(command)) {
            script += FILES;
        }
        for (page, command) in commands {
            let (typed, code) = typed(command);
            let tells = format!("{page}: {command}").replace('\'', "");
            writeln!(
                script,
                "( set -eo pipefail; {typed}\n) > {desk}/typed.txt 2>&1\ncode=$?\n\
                 [ $code = {code} ] || {{ echo '{tells}' ends with $code; tail -3 {desk}/typed.txt; }}"
            )
            .unwrap();
        }
        script + "echo 'all of it was typed'"
    }
}

#[test]
fn the_commands_within_sentences_are_told_from_names() {
    let text = "# `vdoctl heading`\n\n`vdoctl` and `kubectl vdo` | `make` | `fix VDO-1203` | `fix` | `make -n\nx` `two words`\n";
    let page = Page { path: "docs/page.md".into(), text: text.into() };
    let verbs = BTreeSet::from(["fix".to_owned()]);
    assert_eq!(asides(&page, &verbs), ["kubectl vdo", "make", "fix VDO-1203", "make -n x"]);
    assert_eq!(typed("make test"), ("make -n test".into(), 0));
    assert_eq!(typed("make"), ("make".into(), 0));
}
