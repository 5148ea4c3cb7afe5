//! A virtual machine in QEMU, without hardware support: a kernel of its own, for what namespaces cannot show. Disks
//! appear on a VMware SCSI controller and are named by udev, the firmware has the uuid of the VM, and there is only
//! cgroup v2.
//!
//! ```text
//!   the test                                    the guest: Debian's kernel, udev, cgroup v2
//!   attach, extend, detach ──► QMP ──► QEMU ──► pvscsi
//!   run, socket ──► 127.0.0.1:21007 ─────────► 10.0.2.15:9001  the agent: the test program itself
//!   registry, 127.0.0.1:21009 ◄────────────── 10.0.2.2:21009
//! ```
//!
//! The guest's root is that of this computer, read-only, under a layer in memory: it has the same programs at the same
//! paths, and nothing has to be installed in it. It needs root and Debian on x86_64; `scripts/setup vm` installs QEMU.

mod agent;
mod kubelet;

use std::{
    io::{BufRead as _, BufReader, Write as _},
    net::SocketAddr,
    os::unix::net::UnixStream as StdUnixStream,
    path::{Path, PathBuf},
    process::{Command, Stdio},
    sync::Mutex,
    time::Duration,
};

use serde_json::{Value, json};
use snafu::ResultExt as _;
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::{TcpStream, UnixListener},
    task::JoinSet,
};

pub use self::agent::serve as serve_guest_agent;
use crate::{
    error::{Error, FilesSnafu, GuestSnafu, SpawnSnafu, must},
    paths::repository,
    ports::Port,
    process::Process,
    workdir::Workdir,
};

const INIT: &str = include_str!("guest/init.sh");
/// How long it can take to boot: an emulated processor on a busy computer.
const BOOT_TIMEOUT: Duration = Duration::from_mins(5);
const MEMORY_MIB: &str = "3072";

/// A virtual machine. Gone when dropped.
pub struct Guest {
    process: Process,
    /// The control connection of QEMU.
    qmp: Mutex<BufReader<StdUnixStream>>,
    agent: SocketAddr,
    _port: Port,
    relays: Mutex<JoinSet<()>>,
    workdir: Workdir,
}

impl Guest {
    /// The address of this computer in the guest.
    pub const HOST: &str = "10.0.2.2";

    /// Boots a VM with this uuid. The calling program is also the agent in the guest: its `main` must call
    /// [`serve_guest_agent`] if its first argument is `agent`.
    ///
    /// # Panics
    /// If it does not boot, with the reason and what is on its console.
    pub async fn start(uuid: &str) -> Self {
        must(Self::launch(uuid).await)
    }

    async fn launch(uuid: &str) -> Result<Self, Error> {
        let parts = find_parts()?;
        let workdir = Workdir::new("guest")?;
        let port = Port::reserve()?;
        let script = workdir.write("init.sh", INIT)?;
        let program = std::env::current_exe().context(FilesSnafu { path: "/proc/self/exe" })?;
        let folder = workdir.path();
        let kernel = [
            "console=ttyS0 quiet loglevel=4 panic=1 net.ifnames=0 cgroup_no_v1=all".to_owned(),
            // A busy computer delays the emulated clocks.
            "no_timer_check tsc=reliable mitigations=off nokaslr".to_owned(),
            format!("vdo.script={} vdo.folder={}", script.display(), folder.display()),
            format!("vdo.parts={} vdo.agent={} ", parts.display(), program.display()),
        ];
        let arguments = qemu_arguments(&parts, folder, port.number, uuid, &kernel.join(" "));
        let qemu = Path::new("qemu-system-x86_64");
        let process = Process::spawn(qemu, "qemu", arguments, &[], &workdir)?;
        let socket = folder.join("qmp");
        let connect = async || StdUnixStream::connect(&socket).map(BufReader::new);
        let qmp = process.ready(BOOT_TIMEOUT, connect).await?;
        let agent = SocketAddr::from(([127, 0, 0, 1], port.number));
        let (qmp, relays) = (Mutex::new(qmp), Mutex::new(JoinSet::new()));
        let guest = Self { process, qmp, agent, _port: port, relays, workdir };
        // QEMU greets first.
        guest.read_qmp(|line| line.get("QMP").is_some())?;
        guest.qmp("qmp_capabilities", &json!({}))?;
        let answers = async || match guest.try_run("true").await {
            Ok((true, _)) => Ok(()),
            Ok((false, output)) => Err(output),
            Err(error) => Err(format!("{error}; its console: {}", guest.console())),
        };
        guest.process.ready(BOOT_TIMEOUT, answers).await?;
        Ok(guest)
    }

    /// The text on its console.
    pub fn console(&self) -> String {
        let text = std::fs::read(self.workdir.path().join("console")).unwrap_or_default();
        String::from_utf8_lossy(&text).into_owned()
    }

    /// Runs a script in the guest that must succeed, and returns its output.
    ///
    /// # Panics
    /// If it fails.
    pub async fn run(&self, script: &str) -> String {
        match self.try_run(script).await {
            Ok((true, output)) => output,
            Ok((false, output)) => panic!("this failed in the guest: {script}\n{output}"),
            Err(error) => panic!("the guest does not answer: {error}\n{}", self.console()),
        }
    }

    /// Runs a script in the guest. Returns whether it succeeded, and its output.
    pub async fn try_run(&self, script: &str) -> std::io::Result<(bool, String)> {
        let mut stream = TcpStream::connect(self.agent).await?;
        stream.write_all(format!("run {}\n{script}", script.len()).as_bytes()).await?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await?;
        // The last line has the exit code.
        let (output, code) = answer.rsplit_once('\n').ok_or(std::io::ErrorKind::UnexpectedEof)?;
        Ok((code == "0", output.to_owned()))
    }

    /// Writes a file in the guest.
    pub async fn write(&self, path: &str, text: &str) {
        self.run(&format!("mkdir -p \"$(dirname {path})\"\ncat >{path} <<'EOF'\n{text}\nEOF"))
            .await;
    }

    /// Starts a program in the guest that goes on. Its output goes to `/run/NAME.log`.
    pub async fn start_program(&self, name: &str, command: &str) {
        self.run(&format!("setsid {command} >/run/{name}.log 2>&1 </dev/null &")).await;
    }

    /// A socket on this computer that leads to a socket in the guest.
    ///
    /// # Panics
    /// If it cannot be created.
    pub fn socket(&self, name: &str, path: &str) -> PathBuf {
        let socket = self.workdir.path().join(name);
        let listener = UnixListener::bind(&socket).expect("a socket in a folder of this run");
        let (agent, path) = (self.agent, path.to_owned());
        let relay = async move {
            let mut connections = JoinSet::new();
            while let Ok((mut here, _)) = listener.accept().await {
                let path = path.clone();
                connections.spawn(async move {
                    let Ok(mut there) = TcpStream::connect(agent).await else { return };
                    if there.write_all(format!("connect {path}\n").as_bytes()).await.is_ok() {
                        let _ = tokio::io::copy_bidirectional(&mut here, &mut there).await;
                    }
                });
            }
        };
        self.relays.lock().unwrap_or_else(std::sync::PoisonError::into_inner).spawn(relay);
        socket
    }

    /// Adds a disk to the running VM. `uuid` has 32 hexadecimal digits, as a disk of vSphere.
    ///
    /// # Panics
    /// If QEMU refuses.
    pub fn attach(&self, uuid: &str, bytes: u64) {
        let path = self.disk(uuid);
        let file = std::fs::File::options().create(true).append(true).open(&path);
        let length = file.and_then(|file| file.set_len(bytes));
        must(length.context(FilesSnafu { path: &path }));
        let backend = json!({
            "driver": "raw", "node-name": node_name(uuid), "file": {"driver": "file", "filename": path},
        });
        must(self.qmp("blockdev-add", &backend));
        let device = json!({
            "driver": "scsi-hd", "bus": "scsi0.0", "id": device_name(uuid), "drive": node_name(uuid),
            "serial": uuid, "vendor": "VMware", "product": "Virtual disk",
        });
        must(self.qmp("device_add", &device));
    }

    /// Grows a disk of the running VM.
    ///
    /// # Panics
    /// If QEMU refuses.
    pub fn extend(&self, uuid: &str, bytes: u64) {
        let size = json!({"node-name": node_name(uuid), "size": bytes});
        must(self.qmp("block_resize", &size));
    }

    /// Removes a disk from the running VM. Its data stays.
    ///
    /// # Panics
    /// If QEMU refuses.
    pub fn detach(&self, uuid: &str) {
        must(self.qmp("device_del", &json!({"id": device_name(uuid)})));
        let deleted = |line: &Value| {
            line["event"] == "DEVICE_DELETED" && line["data"]["device"] == device_name(uuid)
        };
        must(self.read_qmp(deleted));
        must(self.qmp("blockdev-del", &json!({"node-name": node_name(uuid)})));
    }

    fn disk(&self, uuid: &str) -> PathBuf {
        self.workdir.path().join(format!("disk-{uuid}"))
    }

    fn qmp(&self, command: &str, arguments: &Value) -> Result<Value, Error> {
        let text = json!({"execute": command, "arguments": arguments}).to_string();
        {
            let mut qmp = self.qmp.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
            let written = qmp.get_mut().write_all(text.as_bytes());
            written.context(FilesSnafu { path: self.workdir.path().join("qmp") })?;
        }
        let answer =
            self.read_qmp(|line| line.get("return").is_some() || line.get("error").is_some())?;
        match answer.get("error") {
            None => Ok(answer),
            Some(error) => GuestSnafu { what: command, text: error.to_string() }.fail(),
        }
    }

    /// Reads until the line with the answer; other lines are events.
    fn read_qmp(&self, is_answer: impl Fn(&Value) -> bool) -> Result<Value, Error> {
        let mut qmp = self.qmp.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        loop {
            let mut line = String::new();
            let read = qmp.read_line(&mut line);
            let read = read.context(FilesSnafu { path: self.workdir.path().join("qmp") })?;
            let value: Value = serde_json::from_str(&line).unwrap_or_default();
            if is_answer(&value) {
                return Ok(value);
            }
            if read == 0 {
                return GuestSnafu { what: "QEMU", text: self.process.tail() }.fail();
            }
        }
    }
}

fn node_name(uuid: &str) -> String {
    format!("data-{}", &uuid[uuid.len() - 16..])
}

fn device_name(uuid: &str) -> String {
    format!("disk-{}", &uuid[uuid.len() - 16..])
}

fn qemu_arguments(parts: &Path, folder: &Path, port: u16, uuid: &str, kernel: &str) -> Vec<String> {
    let (parts, folder) = (parts.display(), folder.display());
    let serial = vmware_serial(uuid);
    let values = [
        ("-machine", "pc".to_owned()),
        ("-accel", "tcg,thread=multi".to_owned()),
        ("-cpu", "max".to_owned()),
        ("-smp", "2".to_owned()),
        ("-m", MEMORY_MIB.to_owned()),
        ("-display", "none".to_owned()),
        ("-serial", format!("file:{folder}/console")),
        ("-qmp", format!("unix:{folder}/qmp,server=on,wait=off")),
        ("-kernel", format!("{parts}/vmlinuz")),
        ("-initrd", format!("{parts}/initramfs.gz")),
        ("-append", kernel.to_owned()),
        ("-device", "pvscsi,id=scsi0".to_owned()),
        (
            "-fsdev",
            "local,id=root,path=/,readonly=on,security_model=none,multidevs=remap".to_owned(),
        ),
        ("-device", "virtio-9p-pci,fsdev=root,mount_tag=root".to_owned()),
        ("-netdev", format!("user,id=net0,hostfwd=tcp:127.0.0.1:{port}-:{}", agent::PORT)),
        ("-device", "virtio-net-pci,netdev=net0".to_owned()),
        ("-smbios", format!("type=1,manufacturer=VMware,, Inc.,serial={serial},uuid={uuid}")),
    ];
    let values = values.into_iter().flat_map(|(name, value)| [name.to_owned(), value]);
    ["-nodefaults", "-no-reboot"].map(str::to_owned).into_iter().chain(values).collect()
}

/// The serial number in the firmware of a VM with this uuid.
fn vmware_serial(uuid: &str) -> String {
    let digits: Vec<char> = uuid.chars().filter(char::is_ascii_hexdigit).collect();
    let pairs: Vec<String> = digits.chunks(2).map(|pair| pair.iter().collect()).collect();
    let (first, second) = pairs.split_at(pairs.len() / 2);
    format!("VMware-{}-{}", first.join(" "), second.join(" "))
}

/// The folder with kernel and udev, which is made on first use.
fn find_parts() -> Result<PathBuf, Error> {
    let script = repository().join("scripts/vm-parts");
    let output = Command::new(&script).stdin(Stdio::null()).output();
    let output = output.context(SpawnSnafu { program: "scripts/vm-parts", path: &script })?;
    if !output.status.success() {
        let text = String::from_utf8_lossy(&output.stderr).into_owned();
        return GuestSnafu { what: "scripts/vm-parts", text }.fail();
    }
    Ok(PathBuf::from(String::from_utf8_lossy(&output.stdout).trim()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_serial_number_is_written_as_vmware_does() {
        let serial = vmware_serial("42208c6b-d10d-37d0-156f-435f999d94c1");
        assert_eq!(serial, "VMware-42 20 8c 6b d1 0d 37 d0-15 6f 43 5f 99 9d 94 c1");
    }
}
