//! The images that the suite's pods run, under the names that the suite uses.

use std::process::Command;

use testkit::{Registry, Workdir, repository};

/// The layer of `scripts/e2e-images`, the command of the image, and its names. The suite's nginx only has to be another
/// image with a shell.
const IMAGES: [(&str, &[&str], &[&str]); 3] = [
    ("agnhost", &["--entrypoint=/agnhost", "--cmd=pause"], &["agnhost:2.63.0"]),
    ("busybox", &["--cmd=sh"], &["busybox:1.37.0-1", "nginx:1.15-4", "nginx:1.27-0"]),
    ("glibc", &["--cmd=sh"], &["glibc-dns-testing:2.0.0"]),
];

pub(super) fn push(registry: &Registry, workdir: &Workdir) {
    let script = repository().join("scripts/e2e-images");
    let written = Command::new(script).arg(workdir.path()).output().unwrap();
    assert!(written.status.success(), "{}", String::from_utf8_lossy(&written.stderr));
    for (layer, options, names) in IMAGES {
        let layer = workdir.path().join(format!("{layer}.tar"));
        let options = [options, &["--env=PATH=/bin"]].concat();
        let path = |name: &str| format!("e2e-test-images/{name}");
        let (first, others) = names.split_first().unwrap();
        registry.push_layer(&layer, &path(first), &options).unwrap();
        for other in others {
            registry.copy(&path(first), &path(other)).unwrap();
        }
    }
}
