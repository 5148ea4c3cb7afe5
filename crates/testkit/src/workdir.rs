//! Files of a test run that go away with it, however it ends.

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
    peers::cache,
};

/// A folder that is removed when this value is dropped or the test run ends.
#[derive(Debug)]
pub struct Workdir {
    path: PathBuf,
}

/// The folder of this process. The janitor is a shell that reads a pipe we never write to: when we
/// end, by whatever signal, the pipe closes and the janitor removes the folder. It stands in a
/// process group of its own, so that Ctrl-C, which goes to ours, does not end it first.
static RUN: LazyLock<Mutex<Option<(PathBuf, Child, File)>>> = LazyLock::new(Mutex::default);
static NEXT: AtomicU32 = AtomicU32::new(0);

/// Peers may still be dying while the janitor removes what they write, hence the second try.
const JANITOR: &str = r#"trap "" INT TERM HUP
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
    // Held for as long as this process lives; only who finds it free may sweep the folder.
    let _ = flock(&lock, FlockOperation::NonBlockingLockExclusive);
    if std::env::var_os("VDO_KEEP").is_some() {
        let janitor = Command::new("true").spawn().context(FilesSnafu { path: &path })?;
        *run = Some((path.clone(), janitor, lock));
        return Ok(path);
    }
    let janitor = Command::new("sh")
        .args(["-c", JANITOR, "janitor"])
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

/// Removes what runs left behind whose janitor was killed too.
fn sweep(all: &Path) {
    for folder in std::fs::read_dir(all).into_iter().flatten().flatten() {
        let free = File::open(folder.path().join("lock"))
            .is_ok_and(|lock| flock(&lock, FlockOperation::NonBlockingLockExclusive).is_ok());
        if free && std::env::var_os("VDO_KEEP").is_none() {
            let _ = std::fs::remove_dir_all(folder.path());
        }
    }
}

/// Tells two processes with the same id apart: one after the other, or in two containers.
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

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Writes a file into it and returns its path. Whoever reads it meanwhile finds what was there
    /// before or what is there now, and never an empty or half a file.
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
        // VDO_KEEP=1 leaves everything for a look; the next run without it sweeps it away.
        if std::env::var_os("VDO_KEEP").is_none() {
            let _ = std::fs::remove_dir_all(&self.path);
        }
    }
}
