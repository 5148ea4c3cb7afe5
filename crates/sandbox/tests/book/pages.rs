//! Parses the pages of the book: blocks, links, headings and code words.

use std::{
    collections::BTreeSet,
    fs,
    path::{Path, PathBuf},
};

/// A page of the book, or a file in the root that it refers to.
pub(crate) struct Page {
    /// The path in the repository, such as `docs/install.md`.
    pub(crate) path: String,
    pub(crate) text: String,
}

/// A fenced block.
pub(crate) struct Block {
    /// The comment on the line above: `<!-- note -->`.
    note: Option<String>,
    pub(crate) language: String,
    pub(crate) text: String,
    /// The page and line of its start, for messages.
    pub(crate) place: String,
}

impl Block {
    /// The reason why it is not run.
    pub(crate) fn not_run(&self) -> Option<&str> {
        self.note.as_deref()?.strip_prefix("not run: ")
    }

    /// The expected exit code.
    pub(crate) fn exit(&self) -> i32 {
        let code = self.note.as_deref().and_then(|note| note.strip_prefix("exit: "));
        code.map_or(0, |code| code.parse().unwrap_or_else(|_| panic!("{}: no code", self.place)))
    }

    /// It runs in a checkout of this repository.
    pub(crate) fn in_checkout(&self) -> bool {
        self.note.as_deref() == Some("in the checkout")
    }

    /// Its make targets run with `-n`.
    pub(crate) fn is_make_targets(&self) -> bool {
        self.note.as_deref() == Some("recipes")
    }

    /// It runs on a terminal.
    pub(crate) fn on_a_terminal(&self) -> bool {
        self.note.as_deref() == Some("on a terminal")
    }

    /// It runs as a dry run.
    pub(crate) fn as_dry_run(&self) -> bool {
        self.note.as_deref() == Some("as a trial")
    }

    /// It reads logs, which needs kubelets that answer.
    pub(crate) fn of_logs(&self) -> bool {
        self.note.as_deref() == Some("where kubelets answer")
    }

    /// It runs on a cluster without VDO.
    pub(crate) fn on_fresh_cluster(&self) -> bool {
        self.note.as_deref() == Some("on a fresh cluster")
    }

    /// A note without a meaning.
    pub(crate) fn unknown_note(&self) -> Option<&str> {
        // A test compare_transcript `ten_lines.rs` with its file.
        let known = [
            "not run: ",
            "module graph: ",
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

    /// The file name under which the reader saves it.
    pub(crate) fn file(&self) -> Option<&str> {
        self.note.as_deref()?.strip_prefix("file: ")
    }
}

/// Every page under `docs/`, and the pages in the root.
pub(crate) fn all() -> Vec<Page> {
    let root = testkit::repository();
    let mut found = ["README.md", "CONTRIBUTING.md", "SECURITY.md", "CHANGELOG.md"]
        .map(|name| root.join(name))
        .to_vec();
    collect(&root.join("docs"), &mut found);
    found.sort();
    found.iter().map(|path| read(root, path)).collect()
}

pub(crate) fn in_order() -> Vec<Page> {
    let root = testkit::repository();
    let summary = read(root, &root.join("docs/SUMMARY.md"));
    let links = summary.links();
    links.iter().map(|link| read(root, &root.join("docs").join(link))).collect()
}

/// The pages before the book.
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
    /// Whether `make generate` or a bench writes it.
    pub(crate) fn is_generated(&self) -> bool {
        [
            "docs/findings/",
            "docs/reference/",
            "docs/health-benchmark.md",
            "docs/storage-tests.md",
            "docs/diagnosis-score.md",
        ]
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

    /// The inline code of its prose.
    pub(crate) fn code_words(&self) -> Vec<String> {
        code_words(&self.prose())
    }

    /// The inline code outside of headings.
    pub(crate) fn code_words_below_headings(&self) -> Vec<String> {
        let prose = self.prose();
        let lines: Vec<&str> =
            prose.lines().map(|line| if line.starts_with('#') { "" } else { line }).collect();
        code_words(&lines.join("\n"))
    }

    /// The targets of its links.
    pub(crate) fn links(&self) -> Vec<String> {
        let prose = self.prose();
        // Inline code contains no links.
        let bare: String = prose.split("\n\n").fold(String::new(), |mut bare, paragraph| {
            bare.extend(paragraph.split('`').step_by(2));
            bare.push_str("\n\n");
            bare
        });
        let ends = bare.split("](").skip(1);
        ends.filter_map(|rest| Some(rest.split_once(')')?.0.to_owned())).collect()
    }

    /// The anchors of its headings.
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

/// The anchor of a heading on GitHub and in mdBook.
fn slug(heading: &str) -> String {
    let kept = heading.chars().filter_map(|c| match c {
        ' ' => Some('-'),
        c if c.is_alphanumeric() || c == '-' || c == '_' => Some(c.to_ascii_lowercase()),
        _ => None,
    });
    kept.collect()
}
