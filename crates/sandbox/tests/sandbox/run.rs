//! A sandbox as a process.

use std::{
    fs::{self, File},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
};

use rustix::process::{Pid, Signal, kill_process};
use testkit::{Breakage, Workdir, eventually};

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

/// The sandbox as README says to start it. Nothing is left to be built: it has what the tests have.
pub(crate) fn made(arguments: &str) -> Command {
    let mut make = Command::new("make");
    make.arg("sandbox")
        .arg(format!("ARGS={arguments}"))
        .current_dir(testkit::repository())
        .env("COLUMNS", "100")
        // What a make this may run under tells those it starts.
        .env_remove("MAKEFLAGS")
        .env_remove("MFLAGS")
        .env_remove("MAKELEVEL")
        .env_remove("VDO_KEEP")
        .env_remove("VDO_KUBERNETES");
    make
}

/// What can be broken in a sandbox.
pub(crate) fn breakages() -> impl Iterator<Item = &'static Breakage> {
    Breakage::ALL.iter().filter(|breakage| !breakage.settles)
}

/// One that runs.
pub(crate) struct Run {
    child: Child,
    said: PathBuf,
    _desk: Workdir,
}

/// One that ended.
pub(crate) struct Ended {
    pub(crate) code: i32,
    /// Both its streams, in the order in which somebody reads them.
    pub(crate) said: String,
}

impl Run {
    /// Started with these arguments, its output going to a file.
    pub(crate) fn of(arguments: &[&str]) -> Self {
        Self::with(command(arguments))
    }

    /// Started so, its output going to a file.
    pub(crate) fn with(mut command: Command) -> Self {
        let desk = Workdir::new("sandbox-test").unwrap();
        let said = desk.path().join("said");
        let file = File::create(&said).unwrap();
        command.stdin(Stdio::null()).stdout(file.try_clone().unwrap()).stderr(file);
        let child = testkit::spawn_tied_to_us(command).unwrap();
        Self { child, said, _desk: desk }
    }

    fn said(&self) -> String {
        fs::read_to_string(&self.said).unwrap()
    }

    /// Waits until it says each of these; each has its own deadline.
    pub(crate) async fn says(&self, texts: &[&str]) {
        for text in texts {
            eventually(&format!("it says {text}"), 120, async || {
                let said = self.said();
                if said.contains(text) { Ok(()) } else { Err(said) }
            })
            .await;
        }
    }

    /// The programs that run in its folder now.
    pub(crate) fn programs(&self) -> Vec<String> {
        let so_far = Ended { code: 0, said: self.said() };
        processes_that_name(&so_far.folder().display().to_string())
    }

    pub(crate) fn signal(&self, signal: Signal) {
        let pid = Pid::from_child(&self.child);
        kill_process(pid, signal).unwrap();
    }

    /// How the folder of it begins, whether it has told of it or not.
    pub(crate) fn folder_begins(&self) -> PathBuf {
        testkit::cache().join("run").join(format!("{}-", self.child.id()))
    }

    /// Waits until it ends by itself.
    pub(crate) async fn ends(mut self) -> Ended {
        let status = eventually("it ends", 300, async || {
            self.child.try_wait().unwrap().ok_or_else(|| fs::read_to_string(&self.said).unwrap())
        })
        .await;
        Ended { code: status.code().unwrap_or(-1), said: self.said() }
    }
}

impl Drop for Run {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Ended {
    /// The folder it said all of its files are in.
    pub(crate) fn folder(&self) -> PathBuf {
        let line = self.said.lines().find_map(|line| line.trim().strip_prefix("files "));
        PathBuf::from(line.unwrap_or_else(|| panic!("it names its folder: {}", self.said)).trim())
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
        let at = self.said.find(text).unwrap_or_else(|| panic!("{text}: {}", self.said));
        let lines = self.said[at..].lines().skip_while(|line| !line.starts_with(begins));
        let lines = lines.take_while(|line| line.is_empty() || line.starts_with([' ', '●', '▲']));
        lines.collect::<Vec<_>>().join("\n").trim_end().to_owned()
    }
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
