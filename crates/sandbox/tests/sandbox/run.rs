//! A sandbox as a process.

use std::{
    fs::{self, File},
    os::unix::process::ExitStatusExt as _,
    path::{Path, PathBuf},
    process::{Child, Command, ExitStatus, Stdio},
};

use rustix::process::{Pid, Signal, kill_process};
use testkit::{Breakage, Workdir, eventually};

use crate::lines;

/// The sandbox with these arguments.
pub(crate) fn command(arguments: &[&str]) -> Command {
    let mut command = Command::new(testkit::programs().join("sandbox"));
    command
        .args(arguments)
        .env("COLUMNS", "100")
        .env_remove("VDO_KEEP")
        .env_remove("VDO_KUBERNETES");
    command
}

/// A sandbox started with a command of the documentation. Nothing is left to build: it has the features of the tests.
pub(crate) fn made(line: &str) -> Command {
    assert!(lines::MADE.contains(&line), "{line}");
    // The tests can run with ignored signals, and make would inherit that; this resets them.
    let mut shell = Command::new("env");
    shell
        .args(["--default-signal=HUP,INT,QUIT,TERM", "bash", "-c", &format!("exec {line}")])
        .current_dir(testkit::repository())
        .env("COLUMNS", "100")
        // Variables of the `make test` that runs this test.
        .env_remove("RUSTC_BOOTSTRAP")
        .env_remove("MAKEFLAGS")
        .env_remove("MFLAGS")
        .env_remove("MAKELEVEL")
        .env_remove("VDO_KEEP")
        .env_remove("VDO_KUBERNETES");
    shell
}

pub(crate) fn breakages() -> impl Iterator<Item = &'static Breakage> {
    Breakage::ALL.iter().filter(|breakage| !breakage.settles)
}

/// A running sandbox.
pub(crate) struct Run {
    child: Child,
    output: PathBuf,
    _desk: Workdir,
}

/// An ended sandbox.
pub(crate) struct Ended {
    pub(crate) code: i32,
    /// Both output streams, in order.
    pub(crate) output: String,
}

impl Run {
    /// Starts it with these arguments; its output goes to a file.
    pub(crate) fn new(arguments: &[&str]) -> Self {
        Self::with(command(arguments))
    }

    /// Starts this command; its output goes to a file.
    pub(crate) fn with(mut command: Command) -> Self {
        let desk = Workdir::new("sandbox-test").unwrap();
        let output = desk.path().join("output");
        let file = File::create(&output).unwrap();
        command.stdin(Stdio::null()).stdout(file.try_clone().unwrap()).stderr(file);
        let child = testkit::spawn_tied_to_us(command).unwrap();
        Self { child, output, _desk: desk }
    }

    fn output(&self) -> String {
        fs::read_to_string(&self.output).unwrap()
    }

    /// Waits until the output contains each of these texts; each has its own deadline.
    pub(crate) async fn expect(&self, texts: &[&str]) {
        for text in texts {
            eventually(&format!("the output contains {text}"), 120, async || {
                let output = self.output();
                if output.contains(text) { Ok(()) } else { Err(output) }
            })
            .await;
        }
    }

    /// The programs that run in its folder.
    pub(crate) fn programs(&self) -> Vec<String> {
        Ended { code: 0, output: self.output() }.programs()
    }

    pub(crate) fn signal(&self, signal: Signal) {
        let pid = Pid::from_child(&self.child);
        kill_process(pid, signal).unwrap();
    }

    /// Waits until it ends by itself.
    pub(crate) async fn ends(mut self) -> Ended {
        let status = eventually("the sandbox ends", 300, async || {
            self.child.try_wait().unwrap().ok_or_else(|| fs::read_to_string(&self.output).unwrap())
        })
        .await;
        Ended { code: code(status), output: self.output() }
    }
}

impl Drop for Run {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Ended {
    /// From the output on a terminal: the final state of each line, without colours.
    pub(crate) fn on_terminal(code: i32, shown: &str) -> Self {
        let plain = anstream::adapter::strip_str(shown).to_string().replace("\r\n", "\n");
        let left = plain.lines().map(|line| line.rsplit('\r').next().unwrap_or_default());
        Self { code, output: left.map(|line| format!("{line}\n")).collect() }
    }

    /// The programs that run in its folder.
    pub(crate) fn programs(&self) -> Vec<String> {
        processes_that_name(&self.folder().display().to_string())
    }

    /// The folder in its output.
    pub(crate) fn folder(&self) -> PathBuf {
        let line = self.output.lines().find_map(|line| line.trim().strip_prefix("files "));
        PathBuf::from(
            line.unwrap_or_else(|| panic!("the output names no folder: {}", self.output)).trim(),
        )
    }

    /// Neither files nor processes of it are left.
    pub(crate) async fn leaves_nothing(&self) {
        let folder = self.folder();
        let name = folder.display().to_string();
        eventually("nothing is left", 30, async || {
            let left = processes_that_name(&name);
            match (folder.exists(), left.is_empty()) {
                (false, true) => Ok(()),
                (files, _) => Err(format!("files: {files}, processes: {left:?}")),
            }
        })
        .await;
    }

    /// The lines from the first that starts with `begins` after this text, up to the next command or heading.
    pub(crate) fn after(&self, text: &str, begins: &str) -> String {
        let at = self.output.find(text).unwrap_or_else(|| panic!("{text}: {}", self.output));
        let lines = self.output[at..].lines().skip_while(|line| !line.starts_with(begins));
        let lines =
            lines.take_while(|line| line.is_empty() || line.starts_with([' ', '●', '▲', '◐', '○']));
        lines.collect::<Vec<_>>().join("\n").trim_end().to_owned()
    }
}

/// The exit code as in a shell.
pub(crate) fn code(status: ExitStatus) -> i32 {
    status.code().or_else(|| Some(128 + status.signal()?)).unwrap_or(-1)
}

/// The sandbox among a process and its descendants.
pub(crate) async fn sandbox_below(process: u32) -> Pid {
    let parent = |pid: i32| {
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
        stat.rsplit(')').next()?.split_whitespace().nth(1)?.parse::<i32>().ok()
    };
    let top = i32::try_from(process).unwrap();
    let below = |pid: i32| {
        let mut line = std::iter::successors(Some(pid), |pid| parent(*pid));
        line.any(|pid| pid == top)
    };
    let is_sandbox = |pid: &i32| {
        let program = fs::read_link(format!("/proc/{pid}/exe"));
        program.is_ok_and(|program| program.ends_with("sandbox")) && below(*pid)
    };
    let found = eventually("a sandbox runs", 120, async || {
        let entries = fs::read_dir("/proc").unwrap().flatten();
        let mut pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
        pids.find(is_sandbox).ok_or("none")
    });
    Pid::from_raw(found.await).unwrap()
}

/// The prefix of the folder of a sandbox, even if it has not printed it.
pub(crate) fn folder_of(sandbox: Pid) -> PathBuf {
    testkit::cache().join("run").join(format!("{}-", sandbox.as_raw_nonzero()))
}

/// Neither files nor processes are left of a sandbox that ended before it printed its folder.
pub(crate) async fn nothing_is_left_of(with: &Path) {
    let begins = with.display().to_string();
    eventually("nothing is left", 30, async || {
        let folders = fs::read_dir(with.parent().unwrap()).unwrap().flatten();
        let folders = folders.map(|folder| folder.path().display().to_string());
        let mut left: Vec<String> = folders.filter(|path| path.starts_with(&begins)).collect();
        left.extend(processes_that_name(&begins));
        if left.is_empty() { Ok(()) } else { Err(format!("{left:?}")) }
    })
    .await;
}

/// The command lines of processes that name a folder, without that of the cleanup process, which ends after it has
/// removed the folder.
pub(crate) fn processes_that_name(folder: &str) -> Vec<String> {
    let entries = fs::read_dir("/proc").unwrap().flatten();
    let lines = entries.filter_map(|entry| fs::read(entry.path().join("cmdline")).ok());
    let lines = lines.map(|line| String::from_utf8_lossy(&line).replace('\0', " "));
    lines.filter(|line| line.contains(folder)).collect()
}
