//! Disks of VMs as real block devices on this computer.
//!
//! ```text
//!   simulator: CnsAttachVolume ──► socket ──► Disks ──► sparse file ──► loop device
//!                                                          │
//!                                     <the VM's /dev>/sdb, disk/by-id/wwn-0x<uuid>
//! ```
//!
//! A disk keeps its file, and so its data, when it is detached and attached to another VM. A snapshot is a copy of the
//! file. The kernel frees the loop devices when this process ends, even by a signal.

mod agent;

use std::{
    collections::BTreeMap,
    fs::File,
    os::unix::fs::{MetadataExt as _, symlink},
    path::{Path, PathBuf},
    process::Command,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use reqwest::Method;
use rustix::fs::{CWD, FileType, Mode, mknodat};
use serde_json::json;
use snafu::ResultExt as _;
use tokio::task::JoinSet;

use crate::{
    error::{DisksSnafu, Error, FilesSnafu, must},
    vcenter::Vcenter,
    workdir::Workdir,
};

/// The disks of a test. Dropping this removes the devices and the data.
pub struct Disks {
    state: Arc<Mutex<State>>,
    agent: JoinSet<()>,
    socket: PathBuf,
}

struct State {
    folder: Workdir,
    /// The `/dev` of each VM.
    vms: BTreeMap<String, PathBuf>,
    /// By uuid.
    attached: BTreeMap<String, Attached>,
    files: BTreeMap<String, PathBuf>,
}

struct Attached {
    vm: String,
    /// The loop device. It is detached when this and all its mounts are closed.
    device: File,
    path: PathBuf,
    node: PathBuf,
    links: Vec<PathBuf>,
}

impl Disks {
    /// Starts the agent, with no VM.
    ///
    /// # Panics
    /// If its files cannot be written.
    pub fn start() -> Self {
        must(Self::launch())
    }

    /// The same with the error.
    pub fn launch() -> Result<Self, Error> {
        let folder = Workdir::new("disks")?;
        let socket = folder.path().join("agent.sock");
        let state = State {
            folder,
            vms: BTreeMap::new(),
            attached: BTreeMap::new(),
            files: BTreeMap::new(),
        };
        let state = Arc::new(Mutex::new(state));
        let mut agent = JoinSet::new();
        agent.spawn(agent::serve(&socket, state.clone())?);
        Ok(Self { state, agent, socket })
    }

    /// Makes a simulated vCenter attach disks of the VMs that this knows. It ignores other VMs.
    ///
    /// # Panics
    /// If the simulator rejects it.
    pub async fn follow(&self, vcenter: &Vcenter) {
        vcenter.lever(Method::PUT, "/disk-agent", Some(json!({ "socket": self.socket }))).await;
    }

    /// Adds a VM. `dev` is the folder of its device nodes: `/proc/<pid>/root/dev` for a process in a mount namespace
    /// of its own, or [`RealNode::dev`](crate::RealNode::dev).
    pub fn add_vm(&self, vm: &str, dev: impl Into<PathBuf>) {
        self.lock().vms.insert(vm.to_owned(), dev.into());
    }

    /// Attaches a disk, with its data if it existed before. Returns the path of its node in the VM.
    ///
    /// # Panics
    /// If it cannot be attached.
    pub fn attach(&self, vm: &str, uuid: &str, bytes: u64) -> PathBuf {
        must(self.lock().attach(vm, uuid, bytes));
        let state = self.lock();
        let name = state.attached[uuid].node.file_name().expect("a node has a name").to_owned();
        Path::new("/dev").join(name)
    }

    /// Detaches a disk. Its data stays.
    pub fn detach(&self, uuid: &str) {
        self.lock().detach(uuid);
    }

    /// Grows a disk.
    ///
    /// # Panics
    /// If it cannot be grown.
    pub fn extend(&self, uuid: &str, bytes: u64) {
        must(self.lock().extend(uuid, bytes));
    }

    /// Creates a disk, `to`, with the data of another, as a snapshot or clone has it.
    ///
    /// # Panics
    /// If it cannot be copied.
    pub fn copy(&self, from: &str, to: &str) {
        must(self.lock().copy(from, to));
    }

    /// The file with the data of a disk. Mounted file systems write to it with delay.
    pub fn file(&self, uuid: &str) -> PathBuf {
        self.lock().file(uuid)
    }

    /// The uuids of the attached disks of a VM.
    pub fn attached_to(&self, vm: &str) -> Vec<String> {
        let state = self.lock();
        let of_vm = state.attached.iter().filter(|(_, disk)| disk.vm == vm);
        of_vm.map(|(uuid, _)| uuid.clone()).collect()
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Disks {
    fn drop(&mut self) {
        self.agent.abort_all();
        let mut state = self.lock();
        let uuids: Vec<String> = state.attached.keys().cloned().collect();
        for uuid in uuids {
            state.detach(&uuid);
        }
    }
}

impl State {
    /// The number comes first: mkfs.btrfs compares the first 63 bytes of the paths of loop devices.
    fn file(&mut self, uuid: &str) -> PathBuf {
        let (number, folder) = (self.files.len(), self.folder.path());
        let path = || folder.join(format!("{number}-{uuid}"));
        self.files.entry(uuid.to_owned()).or_insert_with(path).clone()
    }

    fn attach(&mut self, vm: &str, uuid: &str, bytes: u64) -> Result<(), Error> {
        let Some(dev) = self.vms.get(vm).cloned() else { return Ok(()) };
        if self.attached.get(uuid).is_some_and(|disk| disk.vm == vm) {
            return self.extend(uuid, bytes);
        }
        // A VM that was destroyed has lost its disks without a word.
        self.detach(uuid);
        let path = self.file(uuid);
        let file = File::options().create(true).append(true).open(&path);
        let file = file.context(FilesSnafu { path: &path })?;
        let length = file.metadata().context(FilesSnafu { path: &path })?.len();
        file.set_len(length.max(bytes)).context(FilesSnafu { path: &path })?;
        let (loop_path, device) = attach_loop(&path)?;
        let (node, links) = make_nodes(&dev, uuid, &device)?;
        let disk = Attached { vm: vm.to_owned(), device, path: loop_path, node, links };
        self.attached.insert(uuid.to_owned(), disk);
        Ok(())
    }

    /// A disk that was never attached has no data.
    fn copy(&mut self, from: &str, to: &str) -> Result<(), Error> {
        if let Some(disk) = self.attached.get(from) {
            disk.device.sync_all().context(FilesSnafu { path: &disk.path })?;
        }
        let (from, to) = (self.file(from), self.file(to));
        if !from.exists() {
            return Ok(());
        }
        run("cp", [Path::new("--sparse=always"), &from, &to]).map(drop)
    }

    fn detach(&mut self, uuid: &str) {
        if let Some(disk) = self.attached.remove(uuid) {
            for path in disk.links.iter().chain([&disk.node]) {
                let _ = std::fs::remove_file(path);
            }
            let _ = disk.device.sync_all();
        }
    }

    fn extend(&mut self, uuid: &str, bytes: u64) -> Result<(), Error> {
        let path = self.file(uuid);
        let file = File::options().write(true).open(&path).context(FilesSnafu { path: &path })?;
        let length = file.metadata().context(FilesSnafu { path: &path })?.len();
        if length < bytes {
            file.set_len(bytes).context(FilesSnafu { path: &path })?;
        }
        match self.attached.get(uuid) {
            Some(disk) => run("losetup", [Path::new("-c"), &disk.path]).map(drop),
            None => Ok(()),
        }
    }
}

/// A loop device that the kernel frees when nobody uses it any more: `losetup -d` of a device in use does that.
fn attach_loop(file: &Path) -> Result<(PathBuf, File), Error> {
    let shown = run("losetup", [Path::new("-f"), Path::new("--show"), file])?;
    let path = PathBuf::from(shown.trim());
    let device = File::open(&path);
    run("losetup", [Path::new("-d"), &path])?;
    Ok((path.clone(), device.context(FilesSnafu { path })?))
}

/// The nodes of a disk, as udev and the SCSI layer would name them.
fn make_nodes(dev: &Path, uuid: &str, device: &File) -> Result<(PathBuf, Vec<PathBuf>), Error> {
    let number = device.metadata().context(FilesSnafu { path: dev })?.rdev();
    let names = ('b'..='z').map(|letter| format!("sd{letter}"));
    let longer = ('a'..='z').flat_map(|a| ('a'..='z').map(move |b| format!("sd{a}{b}")));
    let name = names.chain(longer).find(|name| dev.join(name).symlink_metadata().is_err());
    let name = name.unwrap_or_else(|| "sdzz".to_owned());
    let node = dev.join(&name);
    let permissions = Mode::from_raw_mode(0o660);
    let made = mknodat(CWD, &node, FileType::BlockDevice, permissions, number);
    made.map_err(std::io::Error::from).context(FilesSnafu { path: &node })?;
    let by_id = dev.join("disk/by-id");
    std::fs::create_dir_all(&by_id).context(FilesSnafu { path: &by_id })?;
    let links = [format!("wwn-0x{uuid}"), format!("scsi-3{uuid}")].map(|link| by_id.join(link));
    for link in &links {
        let _ = std::fs::remove_file(link);
        symlink(format!("../../{name}"), link).context(FilesSnafu { path: link })?;
    }
    Ok((node, links.into()))
}

fn run<const N: usize>(program: &str, arguments: [&Path; N]) -> Result<String, Error> {
    let command = || format!("{program} {}", arguments.map(|a| a.display().to_string()).join(" "));
    let output = match Command::new(program).args(arguments).output() {
        Ok(output) => output,
        Err(error) => return DisksSnafu { command: command(), text: error.to_string() }.fail(),
    };
    if !output.status.success() {
        let text = String::from_utf8_lossy(&output.stderr).trim().to_owned();
        return DisksSnafu { command: command(), text }.fail();
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}
