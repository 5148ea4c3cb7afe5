//! Writes the packages in which VDO ships under the folder given.

use std::{fs, path::PathBuf};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let root = PathBuf::from(std::env::args().nth(1).ok_or("usage: generate_shipping FOLDER")?);
    for file in shipping::files()? {
        let path = root.join(&file.path);
        if let Some(folder) = path.parent() {
            fs::create_dir_all(folder)?;
        }
        fs::write(path, file.text)?;
    }
    Ok(())
}
