//! Locates and builds the real programs.

use std::{
    collections::HashMap,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    sync::{LazyLock, Mutex},
};

use crate::{
    error::{BuildSnafu, Error, must},
    process::spawn_tied_to_us,
};

static FOUND: LazyLock<Mutex<HashMap<String, PathBuf>>> = LazyLock::new(Mutex::default);

/// The root of the checkout.
pub fn repository() -> &'static Path {
    static ROOT: LazyLock<PathBuf> = LazyLock::new(|| {
        Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().nth(2).expect("crates/testkit").into()
    });
    &ROOT
}

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

/// The folder outside the checkout for built programs, reserved ports and files of running tests.
pub fn cache() -> PathBuf {
    let set = |name: &str| std::env::var_os(name).filter(|v| !v.is_empty()).map(PathBuf::from);
    set("VDO_CACHE")
        .or_else(|| set("XDG_CACHE_HOME").map(|c| c.join("vdo")))
        .or_else(|| set("HOME").map(|h| h.join(".cache/vdo")))
        .unwrap_or_else(|| std::env::temp_dir().join("vdo"))
}
