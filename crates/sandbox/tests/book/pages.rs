//! The pages of the book as text: their blocks, links, headings and code words.

use std::{
    collections::BTreeSet,
    fs,
    path::{Path, PathBuf},
};

/// A page, or a file beside the book that readers are sent to.
pub(crate) struct Page {
    /// Its path in the repository, such as `docs/install.md`.
    pub(crate) path: String,
    pub(crate) text: String,
}

/// A fenced block.
pub(crate) struct Block {
    /// What is said in the comment on the line above: `<!-- note -->`.
    note: Option<String>,
    /// Its language.
    pub(crate) language: String,
    pub(crate) text: String,
    /// The page and line it begins at, for messages.
    pub(crate) place: String,
}

impl Block {
    /// Why it cannot be run here, if it cannot.
    pub(crate) fn not_run(&self) -> Option<&str> {
        self.note.as_deref()?.strip_prefix("not run: ")
    }

    /// The exit code its commands end with.
    pub(crate) fn exit(&self) -> i32 {
        let told = self.note.as_deref().and_then(|note| note.strip_prefix("exit: "));
        told.map_or(0, |code| code.parse().unwrap_or_else(|_| panic!("{}: no code", self.place)))
    }

    /// Whether it is typed in a checkout of this repository.
    pub(crate) fn in_checkout(&self) -> bool {
        self.note.as_deref() == Some("in the checkout")
    }

    /// Whether its recipes are only asked for.
    pub(crate) fn of_recipes(&self) -> bool {
        self.note.as_deref() == Some("recipes")
    }

    /// Whether somebody at a terminal types it.
    pub(crate) fn on_a_terminal(&self) -> bool {
        self.note.as_deref() == Some("on a terminal")
    }

    /// Whether it is only tried.
    pub(crate) fn as_a_trial(&self) -> bool {
        self.note.as_deref() == Some("as a trial")
    }

    /// Whether it reads logs, which takes kubelets that answer.
    pub(crate) fn of_logs(&self) -> bool {
        self.note.as_deref() == Some("where kubelets answer")
    }

    /// Whether it is typed on a cluster that VDO was never installed in.
    pub(crate) fn on_fresh_cluster(&self) -> bool {
        self.note.as_deref() == Some("on a fresh cluster")
    }

    /// What its comment asks for, if nobody knows what that is.
    pub(crate) fn unknown_note(&self) -> Option<&str> {
        // Nodes have a sudo of their own. Of the last a test makes sure that it is the file of that name.
        let known = [
            "not run: ",
            "file: ",
            "exit: ",
            "in the checkout",
            "on a fresh cluster",
            "recipes",
            "on a terminal",
            "on a node",
            "as a trial",
            "where kubelets answer",
            "screen: ",
            "ten_lines.rs",
        ];
        let is_known = |note: &str| {
            known.iter().any(|k| note == *k || k.ends_with(": ") && note.starts_with(k))
        };
        self.note.as_deref().filter(|note| !is_known(note))
    }

    /// The name under which the reader is asked to save it.
    pub(crate) fn file(&self) -> Option<&str> {
        self.note.as_deref()?.strip_prefix("file: ")
    }
}

/// Every page under `docs/`, and what stands in the root.
pub(crate) fn all() -> Vec<Page> {
    let root = testkit::repository();
    let mut found = ["README.md", "CONTRIBUTING.md", "SECURITY.md", "CHANGELOG.md"]
        .map(|name| root.join(name))
        .to_vec();
    collect(&root.join("docs"), &mut found);
    found.sort();
    found.iter().map(|path| read(root, path)).collect()
}

/// The pages of the book in the order in which they are read.
pub(crate) fn in_order() -> Vec<Page> {
    let root = testkit::repository();
    let summary = read(root, &root.join("docs/SUMMARY.md"));
    let links = summary.links();
    links.iter().map(|link| read(root, &root.join("docs").join(link))).collect()
}

/// What somebody reads first, before the book.
pub(crate) fn before() -> Vec<Page> {
    let root = testkit::repository();
    ["README.md", "CONTRIBUTING.md", "SECURITY.md"].map(|name| read(root, &root.join(name))).into()
}

fn collect(folder: &Path, found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            collect(&path, found);
        } else if path.extension().is_some_and(|e| e == "md") {
            found.push(path);
        }
    }
}

fn read(root: &Path, path: &Path) -> Page {
    let text = fs::read_to_string(path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    let path = path.strip_prefix(root).unwrap().display().to_string();
    Page { path, text }
}

impl Page {
    /// Whether it is written by `make generate` or by a bench, and not by hand.
    pub(crate) fn is_generated(&self) -> bool {
        ["docs/findings/", "docs/reference/", "docs/health-benchmark.md"]
            .iter()
            .any(|start| self.path.starts_with(start))
    }

    pub(crate) fn blocks(&self) -> Vec<Block> {
        let mut blocks = Vec::new();
        let mut above = "";
        let mut open: Option<Block> = None;
        for (number, line) in self.text.lines().enumerate() {
            match (&mut open, line.trim_start().strip_prefix("```")) {
                (None, Some(language)) => {
                    let note = above.strip_prefix("<!-- ").and_then(|n| n.strip_suffix(" -->"));
                    open = Some(Block {
                        note: note.map(str::to_owned),
                        language: language.to_owned(),
                        text: String::new(),
                        place: format!("{}:{}", self.path, number + 1),
                    });
                }
                (Some(_), Some(_)) => blocks.extend(open.take()),
                (Some(block), None) => {
                    block.text.push_str(line);
                    block.text.push('\n');
                }
                (None, None) => above = line.trim(),
            }
        }
        assert!(open.is_none(), "{}: a block is not closed", self.path);
        blocks
    }

    /// Everything outside fenced blocks.
    pub(crate) fn prose(&self) -> String {
        let mut inside = false;
        let mut prose = String::new();
        for line in self.text.lines() {
            if line.trim_start().starts_with("```") {
                inside = !inside;
            } else if !inside {
                prose.push_str(line);
                prose.push('\n');
            }
        }
        prose
    }

    /// The code words of its prose: what stands between backticks.
    pub(crate) fn code_words(&self) -> Vec<String> {
        code_words(&self.prose())
    }

    /// The same, but for those of headings.
    pub(crate) fn code_words_below_headings(&self) -> Vec<String> {
        let prose = self.prose();
        let lines: Vec<&str> =
            prose.lines().map(|line| if line.starts_with('#') { "" } else { line }).collect();
        code_words(&lines.join("\n"))
    }

    /// The targets of its links, as they are written.
    pub(crate) fn links(&self) -> Vec<String> {
        let prose = self.prose();
        // What stands between backticks is no link.
        let bare: String = prose.split("\n\n").fold(String::new(), |mut bare, paragraph| {
            bare.extend(paragraph.split('`').step_by(2));
            bare.push_str("\n\n");
            bare
        });
        let ends = bare.split("](").skip(1);
        ends.filter_map(|rest| Some(rest.split_once(')')?.0.to_owned())).collect()
    }

    /// What a link may put after `#` to land on one of its headings.
    pub(crate) fn anchors(&self) -> BTreeSet<String> {
        let prose = self.prose();
        let mut anchors = BTreeSet::new();
        for line in prose.lines().filter(|line| line.starts_with('#')) {
            let anchor = slug(line.trim_start_matches('#').trim());
            let again = (1..).map(|n| format!("{anchor}-{n}"));
            let mut names = std::iter::once(anchor.clone()).chain(again);
            let free = names.find(|name| !anchors.contains(name));
            anchors.extend(free);
        }
        anchors
    }
}

fn code_words(prose: &str) -> Vec<String> {
    let words = prose.split("\n\n").flat_map(|paragraph| {
        paragraph.split('`').skip(1).step_by(2).map(|word| word.replace('\n', " "))
    });
    words.collect()
}

/// A heading as both GitHub and mdBook name it.
fn slug(heading: &str) -> String {
    let kept = heading.chars().filter_map(|c| match c {
        ' ' => Some('-'),
        c if c.is_alphanumeric() || c == '-' || c == '_' => Some(c.to_ascii_lowercase()),
        _ => None,
    });
    kept.collect()
}
