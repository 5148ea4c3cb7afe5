//! Writes the pages about findings below the given folder: `generate_findings .`
#![allow(clippy::print_stderr, reason = "a program's way to speak")]

use std::{fs, path::Path, process::ExitCode};

fn main() -> ExitCode {
    let Some(root) = std::env::args().nth(1) else {
        eprintln!("usage: generate_findings FOLDER");
        return ExitCode::FAILURE;
    };
    for file in health::document::files() {
        let path = Path::new(&root).join(&file.path);
        let written = path
            .parent()
            .map_or(Ok(()), fs::create_dir_all)
            .and_then(|()| fs::write(&path, &file.text));
        if let Err(error) = written {
            eprintln!("{}: {error}", path.display());
            return ExitCode::FAILURE;
        }
    }
    ExitCode::SUCCESS
}
