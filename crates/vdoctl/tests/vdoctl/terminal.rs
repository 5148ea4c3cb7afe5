//! A program on a pseudo-terminal.

use std::{
    fs::File,
    io::{Read as _, Write as _},
    os::fd::OwnedFd,
    process::{Child, Command, ExitStatus, Stdio},
    sync::{Arc, Mutex},
    thread,
    time::Duration,
};

use rustix::{
    fs::{Mode, OFlags, open},
    pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt},
    termios::{Termios, Winsize, tcgetattr, tcsetwinsize},
};
use tokio::time::{Instant, sleep};

/// Much longer than any response takes.
const TIMEOUT: Duration = Duration::from_mins(4);

/// Terminal modes that a program must reset: hidden cursor, bracketed paste.
const SWITCHES: [(&str, &str); 2] = [("\x1b[?25l", "\x1b[?25h"), ("\x1b[?2004h", "\x1b[?2004l")];

pub(crate) struct Terminal {
    child: Child,
    keyboard: File,
    shown: Arc<Mutex<Vec<u8>>>,
    /// Reads the screen until the program ends.
    reader: thread::JoinHandle<()>,
    read: usize,
    /// The initial settings of the terminal.
    before: Termios,
}

impl Terminal {
    /// Runs a command on a controlling terminal of this width. Ctrl-C signals the command and its children.
    pub(crate) fn run(command: &Command, columns: u16) -> Self {
        // Children of other tests must not inherit it, or it would never close.
        let flags = OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC;
        let master = openpt(flags).unwrap();
        grantpt(&master).unwrap();
        unlockpt(&master).unwrap();
        let size = Winsize { ws_row: 40, ws_col: columns, ws_xpixel: 0, ws_ypixel: 0 };
        tcsetwinsize(&master, size).unwrap();
        let before = tcgetattr(&master).unwrap();
        let name = ptsname(&master, Vec::new()).unwrap();
        let flags = OFlags::RDWR | OFlags::NOCTTY | OFlags::CLOEXEC;
        let slave = || -> OwnedFd { open(&name, flags, Mode::empty()).unwrap() };
        let mut command = in_a_session(command);
        let child = command
            .env_remove("COLUMNS")
            .env("TERM", "xterm-256color")
            .stdin(Stdio::from(slave()))
            .stdout(Stdio::from(slave()))
            .stderr(Stdio::from(slave()))
            .spawn()
            .unwrap();
        drop(command);
        let keyboard = File::from(master);
        let mut screen = keyboard.try_clone().unwrap();
        let shown = Arc::new(Mutex::new(Vec::new()));
        let writer = Arc::clone(&shown);
        let reader = thread::spawn(move || {
            let mut buffer = [0; 4096];
            while let Ok(count @ 1..) = screen.read(&mut buffer) {
                writer.lock().unwrap().extend_from_slice(&buffer[..count]);
            }
        });
        Self { child, keyboard, shown, reader, read: 0, before }
    }

    /// The output so far, without an incomplete character.
    pub(crate) fn shown(&self) -> String {
        let shown = self.shown.lock().unwrap();
        let whole = match std::str::from_utf8(&shown) {
            Err(error) if error.error_len().is_none() => error.valid_up_to(),
            _ => shown.len(),
        };
        String::from_utf8_lossy(&shown[..whole]).into_owned()
    }

    /// Waits for this text, after the previous one.
    pub(crate) async fn expect(&mut self, text: &str) {
        self.expect_any(&[text]).await;
    }

    /// Waits for one of these texts, after the previous one, and returns the first.
    pub(crate) async fn expect_any(&mut self, texts: &[&str]) -> usize {
        let end = Instant::now() + TIMEOUT;
        loop {
            let shown = self.shown();
            let new = &shown[self.read..];
            let found = texts.iter().enumerate().filter_map(|(n, text)| Some((new.find(text)?, n)));
            if let Some((at, number)) = found.min() {
                self.read += at + texts[number].len();
                return number;
            }
            assert!(Instant::now() < end, "{texts:?} is not shown:\n{shown}");
            sleep(Duration::from_millis(20)).await;
        }
    }

    pub(crate) fn types(&mut self, text: &str) {
        self.keyboard.write_all(text.as_bytes()).unwrap();
    }

    /// Sends Ctrl-C. Outside of a question, the terminal turns it into a signal.
    pub(crate) fn interrupt(&mut self) {
        self.types("\x03");
    }

    pub(crate) fn id(&self) -> u32 {
        self.child.id()
    }

    /// Whether the terminal is back in its normal mode.
    fn is_restored(&self) {
        let (before, after) = (&self.before, tcgetattr(&self.keyboard).unwrap());
        assert_eq!(after.local_modes, before.local_modes, "{}", self.shown());
        assert_eq!(after.input_modes, before.input_modes, "{}", self.shown());
        assert_eq!(after.output_modes, before.output_modes, "{}", self.shown());
        let shown = self.shown();
        for (on, off) in SWITCHES {
            assert!(shown.rfind(on) <= shown.rfind(off), "{on:?} stays: {shown:?}");
        }
    }

    /// Waits for the end, and checks that the program has restored the terminal.
    pub(crate) async fn ends(mut self) -> (ExitStatus, String) {
        let end = Instant::now() + TIMEOUT;
        loop {
            // The last output may arrive after the process has ended.
            if let Some(status) = self.child.try_wait().unwrap()
                && self.reader.is_finished()
            {
                self.is_restored();
                return (status, self.shown());
            }
            assert!(Instant::now() < end, "it does not end:\n{}", self.shown());
            sleep(Duration::from_millis(20)).await;
        }
    }
}

/// Makes the command the leader of a session with this controlling terminal.
fn in_a_session(command: &Command) -> Command {
    let mut session = Command::new("setsid");
    session.arg("--ctty").arg(command.get_program()).args(command.get_args());
    for (name, value) in command.get_envs() {
        match value {
            Some(value) => session.env(name, value),
            None => session.env_remove(name),
        };
    }
    if let Some(folder) = command.get_current_dir() {
        session.current_dir(folder);
    }
    session
}

impl Drop for Terminal {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
