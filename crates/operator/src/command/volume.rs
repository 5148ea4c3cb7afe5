//! The commands of the pods of `vdoctl test`: one pod writes a text to a volume, another one reads it.

use std::{
    fs::File,
    io::{self, Read as _, Write as _},
    path::{Path, PathBuf},
};

use clap::{Args, Subcommand};
use snafu::{ResultExt as _, Snafu};

/// A command for a file of a volume.
#[derive(Debug, Subcommand)]
pub(crate) enum VolumeCommand {
    /// Write a text to a new file, and sync it to the disk.
    Write(FileText),
    /// Read a file, and fail unless it contains exactly the text.
    Read(FileText),
}

#[derive(Args, Debug)]
pub(crate) struct FileText {
    /// The path of the file.
    #[arg(long)]
    file: PathBuf,
    /// The text in the file.
    #[arg(long)]
    text: String,
}

#[derive(Debug, Snafu)]
pub(crate) enum Error {
    #[snafu(display("cannot write {}", path.display()))]
    Write { path: PathBuf, source: io::Error },
    #[snafu(display("cannot sync {} to the disk", path.display()))]
    Sync { path: PathBuf, source: io::Error },
    #[snafu(display("cannot read {}", path.display()))]
    Read { path: PathBuf, source: io::Error },
    #[snafu(display(
        "{} does not contain the text that was written: it has {found} bytes, expected {expected}", path.display()
    ))]
    OtherText { path: PathBuf, found: usize, expected: usize },
}

impl VolumeCommand {
    /// Returns a sentence about what it did.
    pub(crate) fn run(&self) -> Result<String, Error> {
        match self {
            Self::Write(FileText { file, text }) => {
                write(file, text)?;
                Ok(format!("wrote and synced {} bytes to {}\n", text.len(), file.display()))
            }
            Self::Read(FileText { file, text }) => {
                read(file, text)?;
                Ok(format!("read {} bytes from {}\n", text.len(), file.display()))
            }
        }
    }
}

/// Never overwrites a file: a new volume has none.
fn write(path: &Path, text: &str) -> Result<(), Error> {
    let mut file = File::create_new(path).context(WriteSnafu { path })?;
    file.write_all(text.as_bytes()).context(WriteSnafu { path })?;
    file.sync_all().context(SyncSnafu { path })?;
    // The directory entry must reach the disk too.
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
    let folder = folder.unwrap_or(Path::new("."));
    let folder_on_disk = File::open(folder).and_then(|folder| folder.sync_all());
    folder_on_disk.context(SyncSnafu { path: folder })
}

fn read(path: &Path, text: &str) -> Result<(), Error> {
    let file = File::open(path).context(ReadSnafu { path })?;
    let mut found = Vec::new();
    // One byte more than expected shows that the file is too long.
    let limit = u64::try_from(text.len()).unwrap_or(u64::MAX).saturating_add(1);
    file.take(limit).read_to_end(&mut found).context(ReadSnafu { path })?;
    if found == text.as_bytes() {
        return Ok(());
    }
    OtherTextSnafu { path, found: found.len(), expected: text.len() }.fail()
}

#[cfg(test)]
mod tests {
    use runtime::error_chain::error_chain;

    use super::*;

    fn file(name: &str) -> PathBuf {
        let folder = std::env::temp_dir().join(format!("vdo-volume-{name}-{}", std::process::id()));
        let _ = std::fs::remove_dir_all(&folder);
        std::fs::create_dir(&folder).unwrap();
        folder.join("file")
    }

    fn run(
        command: fn(FileText) -> VolumeCommand,
        file: &Path,
        text: &str,
    ) -> Result<String, String> {
        let arguments = FileText { file: file.to_owned(), text: text.to_owned() };
        command(arguments).run().map_err(|error| error_chain(&error))
    }

    #[test]
    fn the_text_that_was_written_is_read_and_no_other() {
        let file = file("same");
        run(VolumeCommand::Write, &file, "4711").unwrap();
        assert!(run(VolumeCommand::Read, &file, "4711").is_ok());
        for other in ["4712", "471", "47111", ""] {
            let error = run(VolumeCommand::Read, &file, other).unwrap_err();
            assert!(error.contains("does not contain the text that was written"), "{error}");
        }
        std::fs::remove_dir_all(file.parent().unwrap()).unwrap();
    }

    #[test]
    fn an_existing_file_is_never_overwritten() {
        let file = file("existing");
        std::fs::write(&file, "precious").unwrap();
        let error = run(VolumeCommand::Write, &file, "4711").unwrap_err();
        assert!(error.contains("cannot write") && error.contains("exists"), "{error}");
        assert_eq!(std::fs::read_to_string(&file).unwrap(), "precious");
        std::fs::remove_dir_all(file.parent().unwrap()).unwrap();
    }

    #[test]
    fn a_missing_file_is_named_with_the_reason() {
        let error = run(VolumeCommand::Read, Path::new("/nonexistent/file"), "4711").unwrap_err();
        assert!(error.starts_with("cannot read /nonexistent/file"), "{error}");
        assert!(error.contains("No such file"), "{error}");
    }
}
