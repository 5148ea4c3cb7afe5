//! The sandbox from the view of its user: what it shows, how it ends, and that it leaves nothing behind.
//!
//! ```text
//!   lines     the commands of README and the book that start a sandbox
//!   run       a sandbox as a process, its output, and its leftovers
//!   screens   the screens in README match the output
//!   terminal  a pseudo-terminal with a user
//! ```
#![allow(
    clippy::panic,
    clippy::print_stderr,
    clippy::unwrap_used,
    reason = "a failed unwrap fails the test"
)]

mod lines;
mod run;
mod screens;
// Shared with the tests of vdoctl.
#[allow(dead_code, reason = "not everything in it is needed here")]
#[path = "../../../vdoctl/tests/vdoctl/terminal.rs"]
mod terminal;

use run::{Ended, Run};
use rustix::process::{Signal, kill_process};
use terminal::Terminal;
use testkit::Breakage;

/// The exit code of make after Ctrl-C.
const BY_CTRL_C: i32 = 130;

#[tokio::test]
async fn two_sandboxes_at_once_become_ready_with_either_cloud_controller_and_leave_nothing() {
    let ours = Run::with(run::made("make sandbox ARGS=\"--once --simulated\""));
    // Another one stays until Ctrl-C.
    let mut upstream = Terminal::run(&run::made("make sandbox ARGS=\"--cpi upstream\""), 100);
    for part in ["vdoctl deploy", "vdoctl configure", "Healthy", "Ctrl-C ends the sandbox"] {
        upstream.expect(part).await;
    }
    let running = Ended::on_terminal(0, &upstream.shown()).programs();
    for program in ["etcd", "kube-apiserver", "/vdo ", "vsphere-cloud-controller-manager"] {
        assert!(running.iter().any(|line| line.contains(program)), "{program}: {running:#?}");
    }
    // The program built from upstream's sources, not ours with the same name.
    let go = testkit::peer("vsphere-cloud-controller-manager").display().to_string();
    let controllers = || running.iter().filter(|l| l.contains("cloud-controller-manager"));
    assert!(controllers().all(|line| line.starts_with(&go)), "{go}: {running:#?}");
    upstream.interrupt();
    let (status, shown) = upstream.ends().await;
    let (ours, upstream) = (ours.ends().await, Ended::on_terminal(run::code(status), &shown));
    assert_eq!((ours.code, upstream.code), (0, BY_CTRL_C), "{}\n{}", ours.output, upstream.output);
    assert!(!ours.output.contains("\x1b["), "no colours in a pipe: {}", ours.output);
    for ended in [&ours, &upstream] {
        for typed in ["$ vdoctl deploy\n", "$ vdoctl configure -f vdo.yaml\n", "$ vdoctl status"] {
            assert!(ended.output.contains(typed), "{typed}: {}", ended.output);
        }
        assert!(ended.output.contains("● Healthy"), "{}", ended.output);
        for driver in ["  Cloud provider  Ready ", "  Storage         Ready "] {
            let line = ended.output.lines().find(|line| line.starts_with(driver));
            let line = line.unwrap_or_else(|| panic!("{driver}: {}", ended.output));
            assert!(line.contains(" 5/5 "), "the driver must run on every node: {line}");
        }
        assert!(ended.output.contains("What is real and what is simulated"), "{}", ended.output);
    }
    explains_its_versions(&ours, "the only release");
    explains_its_versions(&upstream, "the newest that fits; ");
    assert_ne!(ours.folder(), upstream.folder());
    assert!(upstream.output.contains("implementation: Upstream"), "{}", upstream.output);
    ours.leaves_nothing().await;
    upstream.leaves_nothing().await;
    screens::compare("healthy", &ours.after("$ vdoctl status --wait", "● "));
}

#[tokio::test]
#[ignore = "needs root, namespaces and cgroup v1: make test"]
async fn pods_of_ours_run_on_real_nodes_and_one_writes_to_a_volume() {
    let ended = Run::with(run::made("make sandbox ARGS=--once")).ends().await;
    assert_eq!(ended.code, 0, "{}", ended.output);
    assert!(ended.output.contains("● Healthy"), "{}", ended.output);
    for shown in [
        "worker-1: kubelet and containerd",
        "  Storage         Ready ",
        "The volume keeps this line.",
        "vsphere-csi-node-",
        "vsphere-cloud-controller-manager-",
    ] {
        assert!(ended.output.contains(shown), "{shown}: {}", ended.output);
    }
    let prompt = "\n$ kubectl get pods --all-namespaces --output wide\n";
    let (_, pods) = ended.output.split_once(prompt).unwrap_or_else(|| panic!("{}", ended.output));
    let is_operator = |line: &str| {
        let mut words = line.split_whitespace();
        words.next() == Some("vmware-system-vdo")
            && words.next().is_some_and(|name| name.starts_with("vdo-"))
            && words.take(2).eq(["1/1", "Running"])
    };
    assert!(pods.lines().any(is_operator), "no pod of the operator: {pods}");
    ended.leaves_nothing().await;
}

/// The output explains the release of each driver, and why others were not chosen.
fn explains_its_versions(ended: &Ended, cloud: &str) {
    let (_, versions) = ended.output.split_once("Versions, and why").unwrap();
    let line = |name: &str| {
        let mut lines = versions.lines().skip_while(|line| !line.starts_with(name));
        let first = lines.next().unwrap_or_else(|| panic!("{name}: {versions}"));
        let others = lines.take_while(|line| line.starts_with("                  not "));
        (first.split_whitespace().collect::<Vec<_>>().join(" "), others.count())
    };
    let is_version = |word: &str| word.split('.').filter(|n| n.parse::<u32>().is_ok()).count() == 3;
    let (provider, others) = line("  Cloud provider  ");
    assert!(provider.split(' ').nth(2).is_some_and(is_version), "{provider}");
    assert!(provider.contains(cloud), "{provider}");
    assert_eq!(
        others,
        if provider.contains("others were considered") { 2 } else { 0 },
        "{versions}"
    );
    let (storage, others) = line("  Storage  ");
    assert!(storage.split(' ').nth(1).is_some_and(is_version), "{storage}");
    assert!(storage.contains("the newest that fits; "), "{storage}");
    assert_eq!(others, 2, "{versions}");
    assert!(versions.contains("it is not proven yet"), "a reason: {versions}");
    // The versions match the screen before.
    for (driver, version) in [
        ("  Storage  ", storage.split(' ').nth(1)),
        ("  Cloud provider  ", provider.split(' ').nth(2)),
    ] {
        let line = ended.output.lines().find(|line| line.starts_with(driver)).unwrap();
        assert!(line.contains(&format!(" {} ", version.unwrap())), "{line}: {version:?}");
    }
}

// The slowest test comes first: tests start in the order of their names.
#[tokio::test]
async fn all_faults_are_reported_with_a_fix_and_cleared_once_fixed() {
    let ended = Run::with(run::made("make sandbox ARGS=\"break all\"")).ends().await;
    assert_eq!(ended.code, 0, "{}", ended.output);
    let mut rest = ended.output.as_str();
    for Breakage { name, code, how, .. } in run::breakages() {
        let part = format!("\n{name}: {how}\n");
        let at = rest.find(&part).unwrap_or_else(|| panic!("{name} comes next: {rest}"));
        rest = &rest[at..];
        let end = rest.find("✔ fixed: ").unwrap_or_else(|| panic!("{name} is fixed: {rest}"));
        let (shown, after) = rest.split_at(end);
        assert!(shown.contains(&format!("✔ {code} is reported: ")), "{shown}");
        assert!(shown.contains("$ vdoctl status\n"), "{shown}");
        assert!(shown.contains(&format!("  {code}  ")), "the screen shows the finding: {shown}");
        assert!(shown.contains(" Fix "), "the screen shows the fix: {shown}");
        assert!(after.starts_with(&format!("✔ fixed: {code} is cleared")), "{after}");
        // The next screen shows that it is cleared.
        let (_, screen) =
            after.split_once("$ vdoctl status --wait").unwrap_or_else(|| panic!("{after}"));
        let screen = screen.split("\n\n$ ").next().unwrap_or_default();
        let end =
            run::breakages().filter_map(|next| screen.find(&format!("\n{}: ", next.name))).min();
        let screen = &screen[..end.unwrap_or(screen.len())];
        assert!(screen.contains("\n● Healthy"), "{name}: {screen}");
        assert!(!screen.contains(&format!("  {code}  ")), "{name} is still reported: {screen}");
    }
    ended.leaves_nothing().await;
    screens::compare("degraded", &ended.after("disk-uuid: ", "▲ "));
}

#[tokio::test]
async fn an_approved_upgrade_proceeds_node_by_node() {
    let ended = Run::with(run::made("make sandbox ARGS=upgrade")).ends().await;
    assert_eq!(ended.code, 0, "{}", ended.output);
    for shown in [
        "$ vdoctl plan\n",
        "$ vdoctl upgrade --yes --no-wait\n",
        "✔ CPI: Controllers\n",
        "✔ CSI: Controllers\n",
        "storage on nodes, new release: 5 of 5",
        "✔ cloud provider 1.33.0 → 1.33.1\n",
        "✔ storage 3.6.3 → 3.7.3\n",
        "● Healthy",
    ] {
        assert!(ended.output.contains(shown), "{shown}: {}", ended.output);
    }
    ended.leaves_nothing().await;
}

#[tokio::test]
async fn the_exit_code_reports_drivers_that_do_not_become_ready() {
    // A crashing controller never becomes ready, however fast the computer is.
    let line = "make sandbox ARGS=\"--with crash --timeout 20\"";
    let ended = Run::with(run::made(line)).ends().await;
    // Make's own exit code for a failure; it prints that of the sandbox.
    assert_eq!(ended.code, 2, "{}", ended.output);
    assert!(ended.output.contains("sandbox] Error 1\n"), "{}", ended.output);
    assert!(ended.output.contains("✖ "), "{}", ended.output);
    assert!(ended.output.contains("sandbox: `vdoctl status --wait --timeout 20` ended with"));
    ended.leaves_nothing().await;
}

#[tokio::test]
async fn ctrl_c_at_any_time_ends_the_sandbox_and_leaves_nothing() {
    // As a terminal sends it: to make, to the sandbox and to all its programs. During the start,
    let mut early = Terminal::run(&run::made("make sandbox"), 100);
    early.expect("vCenter 8.0.3: 2 clusters").await;
    let folder = run::folder_of(run::sandbox_below(early.id()).await);
    assert!(!run::processes_that_name(&folder.display().to_string()).is_empty());
    early.interrupt();
    let (status, shown) = early.ends().await;
    assert_eq!(run::code(status), BY_CTRL_C, "{shown}");
    assert!(!shown.contains("sandbox: "), "nothing failed: {shown}");
    run::nothing_is_left_of(&folder).await;

    // during a command,
    let mut typing = Terminal::run(&run::command(&["--with", "crash"]), 100);
    typing.expect("vdoctl status --wait").await;
    typing.expect("Wait for ").await;
    typing.interrupt();
    let (status, shown) = typing.ends().await;
    let typing = Ended::on_terminal(run::code(status), &shown);
    assert_eq!(typing.code, 130, "{}", typing.output);
    assert!(!typing.output.contains("sandbox: "), "nothing failed: {}", typing.output);
    typing.leaves_nothing().await;

    // and after everything was shown.
    let late = Run::new(&["--stay", "--bare"]);
    late.expect(&["Ctrl-C ends the sandbox"]).await;
    assert!(!late.programs().is_empty());
    late.signal(Signal::INT);
    let late = late.ends().await;
    assert_eq!(late.code, 0, "{}", late.output);
    late.leaves_nothing().await;
}

#[tokio::test]
async fn on_a_terminal_the_sandbox_waits_for_enter_and_a_kill_leaves_nothing() {
    let mut terminal = Terminal::run(&run::made("make sandbox ARGS=\"break disk-uuid\""), 60);
    terminal.expect("⠋").await;
    terminal.expect("\x1b[").await;
    // Each part has its own deadline.
    for part in ["What is real", "vdoctl deploy", "vdoctl configure", "vdoctl status", "Healthy"] {
        terminal.expect(part).await;
    }
    terminal.expect("Press Enter to fix it.").await;
    terminal.types("\n");
    terminal.expect("VDO-1203 is cleared").await;
    terminal.expect("What to try next").await;
    terminal.expect("Ctrl-C ends the sandbox").await;
    let shown = terminal.shown();
    let plain = anstream::adapter::strip_str(&shown).to_string();
    let steps = plain.split(['\r', '\n']).filter(|line| line.contains(['✔', '⠋', '$']));
    let long: Vec<&str> = steps.filter(|line| line.chars().count() > 60).collect();
    assert_eq!(long, Vec::<&str>::new(), "sixty columns are enough for steps");
    let commands = plain.split("make sandbox").skip(1).filter_map(|rest| rest.split("   ").next());
    for line in commands.map(|rest| format!("make sandbox{rest}")) {
        assert!(lines::MADE.contains(&line.trim()), "no test runs this suggested command: {line}");
    }
    // SIGKILL.
    kill_process(run::sandbox_below(terminal.id()).await, Signal::KILL).unwrap();
    let (status, shown) = terminal.ends().await;
    assert_eq!(run::code(status), 2, "{shown}");
    Ended::on_terminal(2, &shown).leaves_nothing().await;
}

#[tokio::test]
async fn wrong_arguments_get_a_suggestion() {
    let ended = Run::new(&["break", "disk-uid"]).ends().await;
    assert_eq!(ended.code, 2, "{}", ended.output);
    assert!(ended.output.contains("a similar value exists: 'disk-uuid'"), "{}", ended.output);
    let ended = Run::new(&["break"]).ends().await;
    assert_eq!(ended.code, 2, "{}", ended.output);
    let ended = Run::with(run::made("make sandbox ARGS=\"break --list\"")).ends().await;
    assert_eq!(ended.code, 0, "{}", ended.output);
    let listed = |b: &Breakage| ended.output.contains(b.name) && ended.output.contains(b.code);
    assert!(run::breakages().count() >= 15 && run::breakages().all(listed), "{}", ended.output);
    let ended = Run::with(run::made("make sandbox ARGS=--bare")).ends().await;
    assert_eq!(ended.code, 0, "{}", ended.output);
    ended.leaves_nothing().await;
}

#[test]
fn every_documented_sandbox_command_is_run() {
    let here = include_str!("main.rs");
    for line in lines::MADE {
        let typed = format!("{line:?}");
        assert!(
            here.contains(&format!("made({typed})")) || here.contains(&format!("line = {typed}"))
        );
    }
}
