//! Writes `docs/reference/cli.md` in the given directory.

use std::{fs, path::PathBuf};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let root = PathBuf::from(std::env::args().nth(1).ok_or("usage: generate FOLDER")?);
    fs::create_dir_all(root.join("docs/reference"))?;
    fs::write(root.join("docs/reference/cli.md"), vdoctl::reference())?;
    Ok(())
}
