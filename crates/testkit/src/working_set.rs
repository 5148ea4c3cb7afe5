//! Memory as the kubelet measures it: the working set of a cgroup.

use std::{
    fs,
    os::unix::fs::PermissionsExt as _,
    path::{Path, PathBuf},
    process::Command,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use snafu::ResultExt as _;
use tokio::task::JoinSet;

use crate::{
    error::{Error, FilesSnafu},
    workdir::Workdir,
};

const SAMPLE: Duration = Duration::from_millis(100);

/// A cgroup with a memory limit, for one program. Needs root.
pub struct MemoryGroup {
    folder: PathBuf,
    /// cgroup v2, whose files have other names.
    unified: bool,
    program: PathBuf,
    peak: Arc<AtomicU64>,
    _sampling: JoinSet<()>,
    _workdir: Workdir,
}

impl MemoryGroup {
    /// Creates a cgroup, and a copy of `program` that runs in it. The kernel kills the program if it uses more than `limit`
    /// bytes.
    pub fn new(program: &Path, limit: u64) -> Result<Self, Error> {
        let root = Path::new("/sys/fs/cgroup");
        let unified = root.join("cgroup.controllers").exists();
        let root = if unified { root.to_owned() } else { root.join("memory") };
        let folder = root.join(format!("vdo-{}", std::process::id()));
        let workdir = Workdir::new("memory-group")?;
        let failed = |path: &Path| FilesSnafu { path: path.to_owned() };
        fs::create_dir_all(&folder).context(failed(&folder))?;
        let limit_file = if unified { "memory.max" } else { "memory.limit_in_bytes" };
        fs::write(folder.join(limit_file), limit.to_string()).context(failed(&folder))?;
        // A fresh copy: the kernel charges code pages to the cgroup that reads them first.
        let copy = workdir.path().join("program");
        fs::copy(program, &copy).context(failed(workdir.path()))?;
        let file = fs::File::open(&copy).context(failed(workdir.path()))?;
        file.sync_all().context(failed(workdir.path()))?;
        let forget = [format!("if={}", copy.display()), "iflag=nocache".into(), "count=0".into()];
        Command::new("dd").args(forget).output().context(failed(workdir.path()))?;
        let enter = format!(
            "#!/bin/sh\necho $$ > {}/cgroup.procs && exec {} \"$@\"\n",
            folder.display(),
            copy.display()
        );
        let script = workdir.write("enter", enter)?;
        let executable = fs::Permissions::from_mode(0o755);
        fs::set_permissions(&script, executable).context(failed(workdir.path()))?;
        let peak = Arc::new(AtomicU64::new(0));
        let mut sampling = JoinSet::new();
        let (noted, sampled) = (peak.clone(), folder.clone());
        sampling.spawn(async move {
            loop {
                noted.fetch_max(working_set(&sampled, unified), Ordering::SeqCst);
                tokio::time::sleep(SAMPLE).await;
            }
        });
        Ok(Self { folder, unified, program: script, peak, _sampling: sampling, _workdir: workdir })
    }

    /// The wrapper to start instead of the program.
    pub fn program(&self) -> PathBuf {
        self.program.clone()
    }

    /// Bytes in use now, without reclaimable page cache.
    pub fn working_set(&self) -> u64 {
        working_set(&self.folder, self.unified)
    }

    /// The maximum memory usage.
    pub fn peak(&self) -> u64 {
        self.peak.load(Ordering::SeqCst)
    }

    /// How often the kernel hit the limit.
    pub fn exhausted(&self) -> u64 {
        if self.unified {
            stat(&self.folder.join("memory.events"), "oom")
        } else {
            stat(&self.folder.join("memory.oom_control"), "oom_kill")
        }
    }
}

impl Drop for MemoryGroup {
    fn drop(&mut self) {
        // It can be removed only after its processes have ended; an empty cgroup costs nothing.
        let _ = fs::remove_dir(&self.folder);
    }
}

/// The working set of a cgroup v1 folder; none if it is gone.
pub(crate) fn working_set_of(folder: &Path) -> Option<u64> {
    folder.exists().then(|| working_set(folder, false))
}

fn working_set(folder: &Path, unified: bool) -> u64 {
    let (usage, inactive) = if unified {
        ("memory.current", "inactive_file")
    } else {
        ("memory.usage_in_bytes", "total_inactive_file")
    };
    let usage = fs::read_to_string(folder.join(usage)).unwrap_or_default();
    let usage: u64 = usage.trim().parse().unwrap_or(0);
    usage.saturating_sub(stat(&folder.join("memory.stat"), inactive))
}

/// A value from a file with a name and a number on each line.
fn stat(path: &Path, name: &str) -> u64 {
    let text = fs::read_to_string(path).unwrap_or_default();
    let mut lines = text.lines().filter_map(|line| line.split_once(' '));
    let found = lines.find(|(key, _)| *key == name).map(|(_, value)| value);
    found.and_then(|value| value.trim().parse().ok()).unwrap_or(0)
}
