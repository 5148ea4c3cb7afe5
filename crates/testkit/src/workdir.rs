//! Files of a test run that are removed with it, however it ends.

use std::{
    fs::File,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    sync::{
        LazyLock, Mutex,
        atomic::{AtomicU32, Ordering},
    },
};

use rustix::fs::{FlockOperation, flock};
use snafu::ResultExt;

use crate::{
    error::{Error, FilesSnafu},
    paths::cache,
};

/// A folder that is removed when this value is dropped or the test run ends.
#[derive(Debug)]
pub struct Workdir {
    path: PathBuf,
}

/// The folder of this process. The cleanup process is a shell that reads a pipe to which nothing is written: when this
/// process ends, by any signal, the pipe closes and the shell removes the folder. It has its own process group, so that
/// Ctrl-C does not end it first.
static RUN: LazyLock<Mutex<Option<(PathBuf, Child, File)>>> = LazyLock::new(Mutex::default);
static NEXT: AtomicU32 = AtomicU32::new(0);

/// Peers can still be writing while the shell removes their files, hence the retries.
const CLEANUP: &str = r#"trap "" INT TERM HUP
cat >/dev/null
for _ in 1 2 3 4 5; do rm -rf "$1" 2>/dev/null && exit 0; sleep 1; done"#;

fn run_folder() -> Result<PathBuf, Error> {
    use std::os::unix::process::CommandExt;
    let mut run = RUN.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    if let Some((path, ..)) = &*run {
        return Ok(path.clone());
    }
    let all = cache().join("run");
    sweep(&all);
    let path = all.join(format!("{}-{:x}", std::process::id(), started_at()));
    std::fs::create_dir_all(&path).context(FilesSnafu { path: &path })?;
    let lock = path.join("lock");
    let lock = File::create(&lock).context(FilesSnafu { path: &lock })?;
    // Held while this process lives; a process that finds it free can remove the folder.
    let _ = flock(&lock, FlockOperation::NonBlockingLockExclusive);
    if std::env::var_os("VDO_KEEP").is_some() {
        let janitor = Command::new("true").spawn().context(FilesSnafu { path: &path })?;
        *run = Some((path.clone(), janitor, lock));
        return Ok(path);
    }
    let janitor = Command::new("sh")
        .args(["-c", CLEANUP, "janitor"])
        .arg(&path)
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .process_group(0)
        .spawn()
        .context(FilesSnafu { path: &path })?;
    *run = Some((path.clone(), janitor, lock));
    Ok(path)
}

/// Removes folders of runs whose cleanup process was killed too.
fn sweep(all: &Path) {
    for folder in std::fs::read_dir(all).into_iter().flatten().flatten() {
        let free = File::open(folder.path().join("lock"))
            .is_ok_and(|lock| flock(&lock, FlockOperation::NonBlockingLockExclusive).is_ok());
        if free && std::env::var_os("VDO_KEEP").is_none() {
            let _ = std::fs::remove_dir_all(folder.path());
        }
    }
}

/// Distinguishes processes with the same id: one after the other, or in two containers.
fn started_at() -> u128 {
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    since.map(|since| since.as_nanos()).unwrap_or_default()
}

impl Workdir {
    /// A new empty folder whose name starts with `name`.
    pub fn new(name: &str) -> Result<Self, Error> {
        let path = run_folder()?.join(format!("{name}-{}", NEXT.fetch_add(1, Ordering::Relaxed)));
        std::fs::create_dir_all(&path).context(FilesSnafu { path: &path })?;
        Ok(Self { path })
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Writes a file into it and returns the path. The write is atomic: a reader sees the old or the new content, never an
    /// empty or partial file.
    pub fn write(&self, name: &str, content: impl AsRef<[u8]>) -> Result<PathBuf, Error> {
        let path = self.path.join(name);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let new = self.path.join(format!("{name}.new-{number}"));
        std::fs::write(&new, content).context(FilesSnafu { path: &new })?;
        std::fs::rename(&new, &path).context(FilesSnafu { path: &path })?;
        Ok(path)
    }
}

impl Drop for Workdir {
    fn drop(&mut self) {
        // VDO_KEEP=1 keeps all files; the next run without it removes them.
        if std::env::var_os("VDO_KEEP").is_none() {
            let _ = std::fs::remove_dir_all(&self.path);
        }
    }
}
