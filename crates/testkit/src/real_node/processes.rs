//! The processes of a node, seen from outside of it.

use std::path::{Path, PathBuf};

use rustix::process::Signal;

use super::RealNode;

impl RealNode {
    /// Kills the kubelet; the node starts it again, as a service manager does.
    ///
    /// # Panics
    /// If no kubelet runs.
    pub fn kill_kubelet(&self) {
        self.kill("kubelet");
    }

    /// Kills containerd; the node starts it again. Its containers go on.
    ///
    /// # Panics
    /// If no containerd runs.
    pub fn kill_containerd(&self) {
        self.kill("containerd");
    }

    /// Kills the processes of a program. A process has another id inside the node than outside: the name finds it.
    ///
    /// # Panics
    /// If no such process runs on the node.
    pub fn kill(&self, program: &str) {
        let mut killed = 0;
        for pid in descendants(self.inner) {
            let name = std::fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
            #[expect(clippy::cast_possible_wrap, reason = "a pid is a positive i32")]
            if let Some(pid) =
                rustix::process::Pid::from_raw(pid as i32).filter(|_| name.trim() == program)
                && rustix::process::kill_process(pid, Signal::KILL).is_ok()
            {
                killed += 1;
            }
        }
        assert!(killed > 0, "{program} does not run on {}", self.name);
    }

    /// The working set of a container in bytes, as the kubelet computes it. The path of its program ends with
    /// `program`.
    pub fn working_set(&self, program: &str) -> Option<u64> {
        self.working_sets(program).into_iter().map(|(_, used)| used).next()
    }

    /// A file in `/proc/<pid>` of each process whose program ends with `program`, for example `status`.
    pub fn proc_files(&self, program: &str, file: &str) -> Vec<String> {
        let processes = descendants(self.inner)
            .into_iter()
            .filter(|pid| command_line(*pid).is_some_and(|line| is_program(&line, program)));
        let read = |pid| std::fs::read_to_string(format!("/proc/{pid}/{file}")).ok();
        processes.filter_map(read).collect()
    }

    /// The command line and the working set of each container with such a program.
    pub fn working_sets(&self, program: &str) -> Vec<(String, u64)> {
        let found = descendants(self.inner).into_iter().filter_map(|pid| {
            let line = command_line(pid).filter(|line| is_program(line, program))?;
            let groups = std::fs::read_to_string(format!("/proc/{pid}/cgroup")).ok()?;
            let group = groups.lines().find_map(|line| line.split_once(":memory:"))?.1;
            let folder = Path::new("/sys/fs/cgroup/memory").join(group.trim_start_matches('/'));
            Some((line, crate::working_set::working_set_of(&folder)?))
        });
        found.collect()
    }

    /// A path as the containers of a pod see it, from outside of the node. `None` while no container has it.
    pub fn in_pod(&self, uid: &str, path: &str) -> Option<PathBuf> {
        let group = format!("/pod{uid}/");
        let of_pod = descendants(self.inner).into_iter().filter(|pid| {
            let groups = std::fs::read_to_string(format!("/proc/{pid}/cgroup")).unwrap_or_default();
            groups.contains(&group)
        });
        let seen =
            |pid| PathBuf::from(format!("/proc/{pid}/root")).join(path.trim_start_matches('/'));
        of_pod.map(seen).find(|path| path.exists())
    }

    /// The mounts of the node, as in `/proc/mounts`.
    pub fn mounts(&self) -> String {
        std::fs::read_to_string(format!("/proc/{}/mounts", self.inner)).unwrap_or_default()
    }
}

fn command_line(pid: u32) -> Option<String> {
    let line = std::fs::read(format!("/proc/{pid}/cmdline")).ok()?;
    Some(String::from_utf8_lossy(&line).trim_end_matches('\0').replace('\0', " "))
}

fn is_program(command_line: &str, program: &str) -> bool {
    command_line.split(' ').next().is_some_and(|path| path.ends_with(program))
}

fn children(parent: u32) -> Vec<u32> {
    let path = format!("/proc/{parent}/task/{parent}/children");
    let text = std::fs::read_to_string(path).unwrap_or_default();
    text.split_whitespace().filter_map(|pid| pid.parse().ok()).collect()
}

pub(super) fn first_child(parent: u32) -> Option<u32> {
    children(parent).first().copied()
}

fn descendants(parent: u32) -> Vec<u32> {
    let mut all = crate::process::processes_started_by(parent);
    let mut next = 0;
    while let Some(pid) = all.get(next).copied() {
        all.extend(crate::process::processes_started_by(pid));
        next += 1;
    }
    all
}
