//! Locates and builds the real programs.

use std::{
    collections::HashMap,
    ffi::OsString,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    sync::{LazyLock, Mutex},
};

use crate::{
    error::{BuildSnafu, Error, must},
    paths::repository,
    process::{Process, spawn_tied_to_us},
    workdir::Workdir,
};

/// Environment of the programs around the program under test: they run for seconds and need no garbage collection. This
/// saves a fifth of the time of all tests.
const SURROUNDINGS: &[(&str, &str)] = &[("GOGC", "400")];

static FOUND: LazyLock<Mutex<HashMap<String, PathBuf>>> = LazyLock::new(Mutex::default);

/// The folder of our own programs. It builds them first, with the features of the tests: after `make test` has compiled
/// everything, nothing is left to build.
///
/// # Panics
/// If they cannot be built, with the output of the compiler.
pub fn programs() -> &'static Path {
    static FOLDER: LazyLock<PathBuf> = LazyLock::new(|| {
        let built = Command::new(env!("CARGO"))
            .args(["build", "--locked", "--quiet", "--workspace"])
            .args(["--features", "catalog/cli", "--bins", "--examples"])
            .current_dir(repository())
            // `scripts/test` sets it for libtest; with it cargo would build dependencies again.
            .env_remove("RUSTC_BOOTSTRAP")
            .output()
            .expect("cargo, which built this, runs");
        assert!(built.status.success(), "{}", String::from_utf8_lossy(&built.stderr));
        // Cargo puts test programs into a subfolder of this one.
        let test = std::env::current_exe().expect("a program knows where it is");
        test.ancestors().nth(2).expect("target/<profile>/deps").to_owned()
    });
    &FOLDER
}

/// One of our programs in its release build, for benches: the one on the command line (`-- ./path/to/vdoctl`), else a
/// fresh build.
///
/// # Panics
/// If it cannot be built.
pub fn shipped(package: &str, program: &str) -> PathBuf {
    let given = std::env::args().skip(1).map(PathBuf::from);
    let mut given = given.filter(|path| path.file_name().is_some_and(|name| name == program));
    if let Some(path) = given.next() {
        return path;
    }
    let built = Command::new(env!("CARGO"))
        .args(["build", "--release", "--locked", "--package", package, "--bin", program])
        .current_dir(repository())
        .status()
        .expect("cargo, which built this, runs");
    assert!(built.success(), "{program} cannot be built");
    let target = std::env::var_os("CARGO_TARGET_DIR").map(PathBuf::from);
    target.unwrap_or_else(|| repository().join("target")).join("release").join(program)
}

/// The path of a real program; it is built into the cache if it is missing.
///
/// # Panics
/// If it cannot be built; the text is that of `peers/build`, which names the fix.
#[track_caller]
pub fn peer(name: &str) -> PathBuf {
    must(locate(name))
}

pub(crate) fn locate(name: &str) -> Result<PathBuf, Error> {
    locate_of(name, None)
}

/// Like [`locate`], for another minor of Kubernetes than that of the tests.
pub(crate) fn locate_of(name: &str, kubernetes: Option<&str>) -> Result<PathBuf, Error> {
    let key = format!("{name} {}", kubernetes.unwrap_or_default());
    // Held while building: two tests of one process must not build the same program twice.
    let mut found = FOUND.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    if let Some(path) = found.get(&key) {
        return Ok(path.clone());
    }
    let script = repository().join("peers/build");
    let fail = |text: String| BuildSnafu { program: name, text }.fail();
    let mut command = Command::new(&script);
    command.envs(kubernetes.map(|minor| ("VDO_KUBERNETES", minor)));
    command.args(["path", name]).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    // A build ends when the test run is killed.
    let output = spawn_tied_to_us(command).and_then(Child::wait_with_output);
    let output = match output {
        Ok(output) => output,
        Err(error) => return fail(format!("{} does not run: {error}", script.display())),
    };
    if !output.status.success() {
        return fail(String::from_utf8_lossy(&output.stderr).into_owned());
    }
    let path = PathBuf::from(String::from_utf8_lossy(&output.stdout).trim());
    found.insert(key, path.clone());
    Ok(path)
}

impl Process {
    /// Starts a real program from the cache, as [`Self::spawn`] does.
    pub(crate) fn spawn_peer<I, A>(
        name: &str,
        label: &str,
        arguments: I,
        workdir: &Workdir,
    ) -> Result<Self, Error>
    where
        I: IntoIterator<Item = A>,
        A: Into<OsString>,
    {
        Self::spawn_peer_of(None, name, label, arguments, workdir)
    }

    /// Like [`Self::spawn_peer`], for another minor of Kubernetes.
    pub(crate) fn spawn_peer_of<I, A>(
        kubernetes: Option<&str>,
        name: &str,
        label: &str,
        arguments: I,
        workdir: &Workdir,
    ) -> Result<Self, Error>
    where
        I: IntoIterator<Item = A>,
        A: Into<OsString>,
    {
        let program = locate_of(name, kubernetes)?;
        let process = Self::spawn(&program, label, arguments, SURROUNDINGS, workdir)?;
        process.watch();
        Ok(process)
    }
}
