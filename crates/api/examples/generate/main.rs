//! Generates the CRDs, the samples and the API reference from the Rust types. `make generate` runs it; the
//! results are committed.
//!
//! ```text
//! generate ROOT     writes ROOT/deploy/crds, ROOT/deploy/samples, ROOT/docs/reference/api.md
//! ```

mod files;
mod reference;

use std::path::Path;
use std::process::ExitCode;
use std::{env, fs, io};

fn main() -> ExitCode {
    let Some(root) = env::args().nth(1) else {
        report("name the root of the repository: generate ROOT");
        return ExitCode::FAILURE;
    };
    match generate(Path::new(&root)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            report(&format!("cannot write below {root}: {error}"));
            ExitCode::FAILURE
        }
    }
}

#[expect(clippy::print_stderr, reason = "this is a command")]
fn report(text: &str) {
    eprintln!("generate: {text}");
}

fn generate(root: &Path) -> io::Result<()> {
    for folder in ["deploy/crds", "deploy/samples", "docs/reference"] {
        fs::create_dir_all(root.join(folder))?;
    }
    for folder in ["deploy/crds", "deploy/samples"] {
        clear(&root.join(folder))?;
    }
    for (path, text) in files::files()? {
        fs::write(root.join(path), text)?;
    }
    Ok(())
}

/// Removes files of an earlier run.
fn clear(folder: &Path) -> io::Result<()> {
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        if path.extension().is_some_and(|ending| ending == "yaml") {
            fs::remove_file(path)?;
        }
    }
    Ok(())
}
