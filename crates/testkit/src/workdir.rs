//! Files of a test run that go away with it, however it ends.

use std::{
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    sync::{
        LazyLock, Mutex,
        atomic::{AtomicU32, Ordering},
    },
};

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
static RUN: LazyLock<Mutex<Option<(PathBuf, Child)>>> = LazyLock::new(Mutex::default);
static NEXT: AtomicU32 = AtomicU32::new(0);

/// Peers may still be dying while the janitor removes what they write, hence the second try.
const JANITOR: &str = r#"trap "" INT TERM HUP
cat >/dev/null
for _ in 1 2 3 4 5; do rm -rf "$1" 2>/dev/null && exit 0; sleep 1; done"#;

fn run_folder() -> Result<PathBuf, Error> {
    use std::os::unix::process::CommandExt;
    let mut run = RUN.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    if let Some((path, _)) = &*run {
        return Ok(path.clone());
    }
    let path = cache().join("run").join(std::process::id().to_string());
    let _ = std::fs::remove_dir_all(&path);
    std::fs::create_dir_all(&path).context(FilesSnafu { path: &path })?;
    let janitor = Command::new("sh")
        .args(["-c", JANITOR, "janitor"])
        .arg(&path)
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .process_group(0)
        .spawn()
        .context(FilesSnafu { path: &path })?;
    *run = Some((path.clone(), janitor));
    Ok(path)
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

    /// Writes a file into it and returns its path.
    pub fn write(&self, name: &str, content: impl AsRef<[u8]>) -> Result<PathBuf, Error> {
        let path = self.path.join(name);
        std::fs::write(&path, content).context(FilesSnafu { path: &path })?;
        Ok(path)
    }
}

impl Drop for Workdir {
    fn drop(&mut self) {
        // VDO_KEEP=1 leaves the logs of a finished test for a look; the janitor still takes them
        // when the whole run ends.
        if std::env::var_os("VDO_KEEP").is_none() {
            let _ = std::fs::remove_dir_all(&self.path);
        }
    }
}
