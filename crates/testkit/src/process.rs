//! A peer as a child process with its own log. It never outlives the test run.

use std::{
    ffi::OsString,
    fs::File,
    os::unix::process::CommandExt as _,
    path::{Path, PathBuf},
    process::{Child, Command, ExitStatus, Stdio},
    sync::{
        Arc, LazyLock, Mutex, MutexGuard, PoisonError, Weak,
        atomic::{AtomicBool, Ordering},
        mpsc,
    },
    time::Duration,
};

use rustix::process::{Pid, Signal, kill_process};
use snafu::ResultExt;
use tokio::time::{Instant, sleep};

use crate::{
    error::{DiedSnafu, Error, FilesSnafu, NotReadySnafu, SpawnSnafu},
    eventually::Deadline,
    workdir::Workdir,
};

/// How long no thread of an idle process runs. Shorter than the pauses between its periodic tasks.
const IDLE: Duration = Duration::from_millis(200);

/// A running program, killed when dropped.
#[derive(Debug)]
pub struct Process {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    name: String,
    child: Mutex<Child>,
    log: PathBuf,
    output: PathBuf,
    /// Set when the test stops the program: then its end is not reported.
    dismissed: AtomicBool,
}

impl Process {
    /// Starts a program. Its standard error goes to `<label>.log` in `workdir`, its standard output to `<label>.out`.
    pub fn spawn<I, A>(
        program: &Path,
        label: &str,
        arguments: I,
        environment: &[(&str, &str)],
        workdir: &Workdir,
    ) -> Result<Self, Error>
    where
        I: IntoIterator<Item = A>,
        A: Into<OsString>,
    {
        let (log, output) = (
            workdir.path().join(format!("{label}.log")),
            workdir.path().join(format!("{label}.out")),
        );
        let open = |path: &Path| {
            File::options().create(true).append(true).open(path).context(FilesSnafu { path })
        };
        let mut command = Command::new(program);
        command
            .args(arguments.into_iter().map(Into::into))
            .envs(environment.iter().copied())
            .env("TMPDIR", workdir.path())
            .stdin(Stdio::null())
            .stdout(open(&output)?)
            .stderr(open(&log)?)
            // Ctrl-C on a terminal goes to the test run; this process ends with it.
            .process_group(0);
        let child =
            spawn_tied_to_us(command).context(SpawnSnafu { program: label, path: program })?;
        let (name, child) = (label.to_owned(), Mutex::new(child));
        let dismissed = AtomicBool::new(false);
        Ok(Self { inner: Arc::new(Inner { name, child, log, output, dismissed }) })
    }

    /// Reports if it ends during a test.
    pub(crate) fn watch(&self) {
        PEERS.lock().unwrap_or_else(PoisonError::into_inner).push(Arc::downgrade(&self.inner));
    }

    pub fn pid(&self) -> u32 {
        self.child().id()
    }

    /// Its standard error so far.
    pub fn log(&self) -> String {
        read(&self.inner.log)
    }

    /// Its standard output so far.
    pub fn output(&self) -> String {
        read(&self.inner.output)
    }

    /// Its exit status, if it has ended.
    pub fn ended(&self) -> Option<ExitStatus> {
        self.child().try_wait().ok().flatten()
    }

    /// Kills it (`SIGKILL`) and reaps it.
    pub fn kill(&self) {
        self.inner.dismissed.store(true, Ordering::Relaxed);
        let mut child = self.child();
        let _ = child.kill();
        let _ = child.wait();
    }

    pub fn signal(&self, signal: Signal) {
        self.inner.dismissed.store(true, Ordering::Relaxed);
        if self.ended().is_none() {
            #[expect(clippy::cast_possible_wrap, reason = "a pid is a positive i32")]
            let pid = Pid::from_raw(self.pid() as i32);
            if let Some(pid) = pid {
                let _ = kill_process(pid, signal);
            }
        }
    }

    /// Current and maximum resident memory in bytes.
    pub fn memory(&self) -> (u64, u64) {
        let status = read(Path::new(&format!("/proc/{}/status", self.pid())));
        let field = |name: &str| {
            status
                .lines()
                .find_map(|line| line.strip_prefix(name))
                .and_then(|rest| rest.split_whitespace().next()?.parse::<u64>().ok())
                .unwrap_or(0)
                * 1024
        };
        (field("VmRSS:"), field("VmHWM:"))
    }

    /// Waits until it is idle: all its threads sleep, and none of them ran for a moment.
    ///
    /// # Panics
    /// If it is busy for a minute.
    pub async fn until_idle(&self) {
        // Counts every time a thread ran, however short: the CPU time of a process has steps of 10 ms.
        let threads = || -> Vec<String> {
            let tasks = std::fs::read_dir(format!("/proc/{}/task", self.pid()));
            let tasks = tasks.into_iter().flatten().flatten();
            let statuses = tasks.map(|task| std::fs::read_to_string(task.path().join("status")));
            let parts = ["State:", "voluntary_ctxt_switches:", "nonvoluntary_ctxt_switches:"];
            let ran = |status: String| -> String {
                let lines = status.lines().filter(|line| parts.iter().any(|p| line.starts_with(p)));
                lines.collect::<Vec<_>>().join(" ")
            };
            statuses.flatten().map(ran).collect()
        };
        let end = Instant::now() + Duration::from_mins(1);
        let (mut before, mut since) = (threads(), Instant::now());
        while since.elapsed() < IDLE {
            assert!(Instant::now() < end, "the process is busy for a minute: {before:#?}");
            sleep(Duration::from_millis(20)).await;
            let now = threads();
            if now != before || !now.iter().all(|thread| thread.starts_with("State:\tS")) {
                (before, since) = (now, Instant::now());
            }
        }
    }

    /// Waits until it ends by itself, with the deadline of [`eventually`](crate::eventually()).
    pub async fn wait(&self, within: impl Into<Deadline>) -> Option<ExitStatus> {
        let end = Instant::now() + within.into().duration();
        loop {
            if let Some(status) = self.ended() {
                return Some(status);
            }
            if Instant::now() > end {
                return None;
            }
            sleep(Duration::from_millis(20)).await;
        }
    }

    /// Waits until `probe` succeeds. If the program dies first, the error has its last log lines.
    pub(crate) async fn ready<T, E: std::fmt::Display>(
        &self,
        within: Duration,
        mut probe: impl AsyncFnMut() -> Result<T, E>,
    ) -> Result<T, Error> {
        let end = Instant::now() + within;
        loop {
            let last = match tokio::time::timeout_at(end, probe()).await {
                Ok(Ok(value)) => return Ok(value),
                Ok(Err(seen)) => seen.to_string(),
                Err(_) => "no answer".to_owned(),
            };
            if let Some(status) = self.ended() {
                self.inner.dismissed.store(true, Ordering::Relaxed);
                let tail = self.tail();
                let remedy = remedy(&self.log());
                return DiedSnafu {
                    program: &self.inner.name,
                    status: status.to_string(),
                    remedy,
                    log: &self.inner.log,
                    tail,
                }
                .fail();
            }
            if Instant::now() > end {
                return NotReadySnafu {
                    program: &self.inner.name,
                    seconds: within.as_secs(),
                    last,
                    log: &self.inner.log,
                    tail: self.tail(),
                }
                .fail();
            }
            sleep(Duration::from_millis(25)).await;
        }
    }

    /// The last lines of its log, for failure messages.
    pub fn tail(&self) -> String {
        self.inner.tail()
    }

    fn child(&self) -> MutexGuard<'_, Child> {
        self.inner.child()
    }
}

impl Inner {
    fn tail(&self) -> String {
        let log = read(&self.log);
        let lines: Vec<&str> = log.lines().collect();
        // A Go program that panics logs the reason first and then pages of stack traces.
        let reason =
            lines.iter().position(|line| line.contains("panic:") || line.contains("fatal"));
        let from = reason.unwrap_or(usize::MAX).min(lines.len().saturating_sub(15));
        lines[from..].iter().take(15).map(|l| format!("  | {l}\n")).collect()
    }

    fn child(&self) -> MutexGuard<'_, Child> {
        self.child.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Reports once that a peer ended unexpectedly: the test itself sees only a refused connection.
    fn report_death(&self) {
        let Ok(Some(status)) = self.child().try_wait() else { return };
        if !self.dismissed.swap(true, Ordering::Relaxed) {
            let tail = self.tail();
            let (name, remedy) = (&self.name, remedy(&read(&self.log)));
            eprintln!("testkit: {name} ended by itself during a test ({status}). {remedy}\n{tail}");
        }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.kill();
    }
}

fn read(path: &Path) -> String {
    std::fs::read(path).map(|b| String::from_utf8_lossy(&b).into_owned()).unwrap_or_default()
}

/// The fix for a known error in the log of a dead peer.
fn remedy(log: &str) -> &'static str {
    const KNOWN: [(&str, &str); 4] = [
        (
            "address already in use",
            "Another program took its port: run again, or stop that program.",
        ),
        (
            "no space left on device",
            "The disk is full: free some space or point VDO_CACHE elsewhere.",
        ),
        ("too many open files", "Raise the limit of open files: `ulimit -n 8192`."),
        ("cannot allocate memory", "The computer is out of memory: run fewer tests at once."),
    ];
    let log = log.to_lowercase();
    KNOWN.iter().find(|(sign, _)| log.contains(sign)).map_or("See its log.", |(_, text)| text)
}

/// The process ids of the living children of `parent`, for tests that check for leftovers.
pub fn processes_started_by(parent: u32) -> Vec<u32> {
    let Ok(entries) = std::fs::read_dir("/proc") else {
        return Vec::new();
    };
    entries
        .flatten()
        .filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok())
        .filter(|pid| {
            let stat = read(Path::new(&format!("/proc/{pid}/stat")));
            // "pid (name) state ppid ...": the name can contain anything, and ends at the last ')'.
            let mut fields = stat.rsplit(')').next().unwrap_or("").split_whitespace();
            let (state, ppid) = (fields.next(), fields.next());
            state != Some("Z") && ppid == Some(parent.to_string().as_str())
        })
        .collect()
}

type Request = (Command, mpsc::SyncSender<std::io::Result<Child>>);

/// One long-lived thread starts all peers: the parent-death signal of the kernel is tied to the *thread* that forked, and
/// test threads end earlier.
static SPAWNER: LazyLock<Mutex<mpsc::Sender<Request>>> = LazyLock::new(|| {
    let (sender, requests) = mpsc::channel::<Request>();
    let serve = move || {
        loop {
            match requests.recv_timeout(Duration::from_millis(250)) {
                Ok((mut command, answer)) => {
                    die_with_parent(&mut command);
                    let _ = answer.send(command.spawn());
                }
                Err(mpsc::RecvTimeoutError::Timeout) => watch_over_peers(),
                Err(mpsc::RecvTimeoutError::Disconnected) => return,
            }
        }
    };
    std::thread::Builder::new().name("peer-spawner".into()).spawn(serve).expect("a thread");
    Mutex::new(sender)
});

/// The running peers, to report one that dies.
static PEERS: Mutex<Vec<Weak<Inner>>> = Mutex::new(Vec::new());

fn watch_over_peers() {
    let mut peers = PEERS.lock().unwrap_or_else(PoisonError::into_inner);
    peers.retain(|peer| peer.upgrade().inspect(|inner| inner.report_death()).is_some());
}

/// Starts a command that dies with this process, however it ends. The command decides about its output.
pub fn spawn_tied_to_us(command: Command) -> std::io::Result<Child> {
    let (answer, answered) = mpsc::sync_channel(1);
    SPAWNER
        .lock()
        .unwrap_or_else(PoisonError::into_inner)
        .send((command, answer))
        .expect("the spawner thread lives as long as the process");
    answered.recv().expect("the spawner thread answers every request")
}

#[expect(unsafe_code, reason = "pre_exec is the only way to set the parent-death signal")]
fn die_with_parent(command: &mut Command) {
    let parent = rustix::process::getpid();
    // SAFETY: between fork and exec only async-signal-safe system calls are made, and nothing is
    // allocated.
    unsafe {
        command.pre_exec(move || {
            rustix::process::set_parent_process_death_signal(Some(Signal::KILL))?;
            // The parent can have died before the call above took effect.
            if rustix::process::getppid() == Some(parent) {
                Ok(())
            } else {
                Err(std::io::Error::from_raw_os_error(3))
            }
        });
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a failed unwrap fails the test")]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_full_disk_is_reported_when_a_peer_dies_before_it_is_ready() {
        let workdir = Workdir::new("full-disk-peer").unwrap();
        // A device that is always full: a real error of the kernel.
        let fill = ["-c", "head -c 1000000 /dev/zero >/dev/full"];
        let peer = Process::spawn(Path::new("/bin/sh"), "filler", fill, &[], &workdir).unwrap();
        let never = async || Err::<(), _>("not ready");
        let error = peer.ready(Duration::from_mins(1), never).await.unwrap_err().to_string();
        assert!(error.starts_with("filler ended before it was ready"), "{error}");
        assert!(error.contains("The disk is full: free some space"), "{error}");
        assert!(error.contains("  | head: "), "its log: {error}");
    }
}
