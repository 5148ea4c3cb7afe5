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

/// The sandbox, with these arguments.
pub(crate) fn command(arguments: &[&str]) -> Command {
    let mut command = Command::new(testkit::programs().join("sandbox"));
    command
        .args(arguments)
        .env("COLUMNS", "100")
        .env_remove("VDO_KEEP")
        .env_remove("VDO_KUBERNETES");
    command
}

/// A sandbox as a page says to make it, word for word. Nothing is left to be built: it has what the tests
/// have.
pub(crate) fn made(line: &str) -> Command {
    assert!(lines::MADE.contains(&line), "{line}");
    // Whoever runs the tests may ignore signals, and make would too; this one does not.
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

/// What can be broken in a sandbox.
pub(crate) fn breakages() -> impl Iterator<Item = &'static Breakage> {
    Breakage::ALL.iter().filter(|breakage| !breakage.settles)
}

/// One that runs.
pub(crate) struct Run {
    child: Child,
    output: PathBuf,
    _desk: Workdir,
}

/// One that ended.
pub(crate) struct Ended {
    pub(crate) code: i32,
    /// Both its streams, in the order in which somebody reads them.
    pub(crate) output: String,
}

impl Run {
    /// Started with these arguments, its output going to a file.
    pub(crate) fn of(arguments: &[&str]) -> Self {
        Self::with(command(arguments))
    }

    /// Started so, its output going to a file.
    pub(crate) fn with(mut command: Command) -> Self {
        let desk = Workdir::new("sandbox-test").unwrap();
        let output = desk.path().join("said");
        let file = File::create(&output).unwrap();
        command.stdin(Stdio::null()).stdout(file.try_clone().unwrap()).stderr(file);
        let child = testkit::spawn_tied_to_us(command).unwrap();
        Self { child, output, _desk: desk }
    }

    fn output(&self) -> String {
        fs::read_to_string(&self.output).unwrap()
    }

    /// Waits until it says each of these; each has its own deadline.
    pub(crate) async fn says(&self, texts: &[&str]) {
        for text in texts {
            eventually(&format!("it says {text}"), 120, async || {
                let output = self.output();
                if output.contains(text) { Ok(()) } else { Err(output) }
            })
            .await;
        }
    }

    /// The programs that run in its folder now.
    pub(crate) fn programs(&self) -> Vec<String> {
        Ended { code: 0, output: self.output() }.programs()
    }

    pub(crate) fn signal(&self, signal: Signal) {
        let pid = Pid::from_child(&self.child);
        kill_process(pid, signal).unwrap();
    }

    /// Waits until it ends by itself.
    pub(crate) async fn ends(mut self) -> Ended {
        let status = eventually("it ends", 300, async || {
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
    /// What was seen on a terminal so far, or when it ended: what was left of each line in the end,
    /// without colours.
    pub(crate) fn on_terminal(code: i32, shown: &str) -> Self {
        let plain = anstream::adapter::strip_str(shown).to_string().replace("\r\n", "\n");
        let left = plain.lines().map(|line| line.rsplit('\r').next().unwrap_or_default());
        Self { code, output: left.map(|line| format!("{line}\n")).collect() }
    }

    /// The programs that run in its folder now.
    pub(crate) fn programs(&self) -> Vec<String> {
        processes_that_name(&self.folder().display().to_string())
    }

    /// The folder it said all of its files are in.
    pub(crate) fn folder(&self) -> PathBuf {
        let line = self.output.lines().find_map(|line| line.trim().strip_prefix("files "));
        PathBuf::from(line.unwrap_or_else(|| panic!("it names its folder: {}", self.output)).trim())
    }

    /// No file of it is left, and no process that knows of one.
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

    /// From the first line that begins so after this text, up to the next command or part.
    pub(crate) fn after(&self, text: &str, begins: &str) -> String {
        let at = self.output.find(text).unwrap_or_else(|| panic!("{text}: {}", self.output));
        let lines = self.output[at..].lines().skip_while(|line| !line.starts_with(begins));
        let lines =
            lines.take_while(|line| line.is_empty() || line.starts_with([' ', '●', '▲', '◐', '○']));
        lines.collect::<Vec<_>>().join("\n").trim_end().to_owned()
    }
}

/// The exit code as a shell tells it.
pub(crate) fn code(status: ExitStatus) -> i32 {
    status.code().or_else(|| Some(128 + status.signal()?)).unwrap_or(-1)
}

/// The sandbox that a process is, or that was started below it.
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

/// How the folder of a sandbox begins, whether it has told of it or not.
pub(crate) fn folder_of(sandbox: Pid) -> PathBuf {
    testkit::cache().join("run").join(format!("{}-", sandbox.as_raw_nonzero()))
}

/// No file is left of one that ended before it told of its folder, and no process that knows of one.
pub(crate) async fn nothing_begins(with: &Path) {
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

/// The command lines of living processes that name a folder; the janitor's own does not count: it
/// ends once it has removed it.
pub(crate) fn processes_that_name(folder: &str) -> Vec<String> {
    let entries = fs::read_dir("/proc").unwrap().flatten();
    let lines = entries.filter_map(|entry| fs::read(entry.path().join("cmdline")).ok());
    let lines = lines.map(|line| String::from_utf8_lossy(&line).replace('\0', " "));
    lines.filter(|line| line.contains(folder)).collect()
}
