//! Writes the pages about findings below the given folder: `generate_findings .`, and their entries in
//! the book's table of contents.
#![allow(clippy::print_stderr, reason = "a program's way to speak")]

use std::{fmt::Write as _, fs, io, path::Path, process::ExitCode};

const SUMMARY: &str = "docs/SUMMARY.md";
/// The entry of the book under which the pages are listed.
const CHAPTER: &str = "- [Findings](findings/README.md)\n";
/// How each of them begins there.
const ENTRY: &str = "    - [VDO-";

fn main() -> ExitCode {
    let Some(root) = std::env::args().nth(1) else {
        eprintln!("usage: generate_findings FOLDER");
        return ExitCode::FAILURE;
    };
    let files = health::document::files();
    let pages: Vec<(&str, &str)> =
        files.iter().map(|file| (file.path.as_str(), file.text.as_str())).collect();
    let summary = match summary(&pages) {
        Ok(summary) => summary,
        Err(error) => {
            eprintln!("{SUMMARY}: {error}");
            return ExitCode::FAILURE;
        }
    };
    for (path, text) in pages.into_iter().chain([(SUMMARY, summary.as_str())]) {
        let path = Path::new(&root).join(path);
        let written =
            path.parent().map_or(Ok(()), fs::create_dir_all).and_then(|()| fs::write(&path, text));
        if let Err(error) = written {
            eprintln!("{}: {error}", path.display());
            return ExitCode::FAILURE;
        }
    }
    ExitCode::SUCCESS
}

/// The table of contents as it stands in the checkout, with an entry for each page about a finding.
fn summary(pages: &[(&str, &str)]) -> io::Result<String> {
    let now = fs::read_to_string(SUMMARY)?;
    let mut summary = String::new();
    for line in now.split_inclusive('\n').filter(|line| !line.starts_with(ENTRY)) {
        summary.push_str(line);
        if line == CHAPTER {
            for (path, text) in pages.iter().filter(|(path, _)| path.contains("/VDO-")) {
                let title = text.lines().next().unwrap_or_default().trim_start_matches("# ");
                let page = path.trim_start_matches("docs/");
                let _ = writeln!(summary, "    - [{title}]({page})");
            }
        }
    }
    Ok(summary)
}
