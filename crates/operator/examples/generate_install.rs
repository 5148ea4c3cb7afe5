//! Writes `deploy/install.yaml`, `deploy/uninstall.yaml` and `deploy/alerts.yaml` under the folder given.

use std::{fs, path::PathBuf};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let root = PathBuf::from(std::env::args().nth(1).ok_or("usage: generate FOLDER")?);
    fs::create_dir_all(root.join("deploy"))?;
    fs::write(root.join("deploy/install.yaml"), operator::install::manifest()?)?;
    fs::write(root.join("deploy/alerts.yaml"), operator::alerts::manifest()?)?;
    fs::write(root.join("deploy/uninstall.yaml"), operator::install::uninstall()?)?;
    Ok(())
}
