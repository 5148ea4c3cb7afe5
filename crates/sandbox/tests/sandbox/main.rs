//! The sandbox as somebody runs it: what it shows, how it ends, and that nothing is left of it.
//!
//! ```text
//!   run       a sandbox as a process, what it says, and what is left when it is gone
//!   screens   what README shows is what is shown
//!   terminal  a pseudo-terminal, and somebody who reads and types
//! ```
#![allow(
    clippy::panic,
    clippy::print_stderr,
    clippy::unwrap_used,
    reason = "a failed unwrap fails the test"
)]

mod run;
mod screens;
// The same hand and eye that use vdoctl on a terminal.
#[allow(dead_code, reason = "not all of what it can do is needed here")]
#[path = "../../../vdoctl/tests/vdoctl/terminal.rs"]
mod terminal;

use run::{Ended, Run};
use rustix::process::Signal;
use terminal::Terminal;
use testkit::Breakage;

#[tokio::test]
async fn two_at_once_end_ready_one_with_each_cloud_controller_and_leave_nothing() {
    // As README says it; and one that stays with all it runs, until Ctrl-C.
    let ours = Run::with(run::made("--once"));
    let upstream = Run::of(&["--stay", "--cpi", "upstream"]);
    upstream.says(&["$ vdoctl deploy", "$ vdoctl configure", "● Healthy", "Ctrl-C ends"]).await;
    let running = upstream.programs();
    for program in ["etcd", "kube-apiserver", "/vdo ", "vsphere-cloud-controller-manager"] {
        assert!(running.iter().any(|line| line.contains(program)), "{program}: {running:#?}");
    }
    // The one built of upstream's sources, and not ours, which has the same name.
    let go = testkit::peer("vsphere-cloud-controller-manager").display().to_string();
    let controllers = || running.iter().filter(|l| l.contains("cloud-controller-manager"));
    assert!(controllers().all(|line| line.starts_with(&go)), "{go}: {running:#?}");
    upstream.signal(Signal::INT);
    let (ours, upstream) = (ours.ends().await, upstream.ends().await);
    for ended in [&ours, &upstream] {
        assert_eq!(ended.code, 0, "{}", ended.said);
        for typed in ["$ vdoctl deploy\n", "$ vdoctl configure -f vdo.yaml\n", "$ vdoctl status"] {
            assert!(ended.said.contains(typed), "{typed}: {}", ended.said);
        }
        assert!(ended.said.contains("● Healthy"), "{}", ended.said);
        for driver in ["  Cloud provider  Ready ", "  Storage         Ready "] {
            let line = ended.said.lines().find(|line| line.starts_with(driver));
            let line = line.unwrap_or_else(|| panic!("{driver}: {}", ended.said));
            assert!(line.contains(" 5/5 "), "every node is served: {line}");
        }
        assert!(ended.said.contains("What is real and what is simulated"), "{}", ended.said);
        assert!(!ended.said.contains("\x1b["), "no colours in a pipe: {}", ended.said);
    }
    explains_its_versions(&ours, "there is no other of its kind");
    explains_its_versions(&upstream, "the newest that fits; ");
    assert_ne!(ours.folder(), upstream.folder());
    assert!(upstream.said.contains("implementation: Upstream"), "{}", upstream.said);
    ours.leaves_nothing().await;
    upstream.leaves_nothing().await;
    screens::hold("healthy", &ours.after("$ vdoctl status --wait", "● "));
}

/// Which release of each driver runs, why, and why not others.
fn explains_its_versions(ended: &Ended, cloud: &str) {
    let (_, told) = ended.said.split_once("Versions, and why these").unwrap();
    let line = |name: &str| {
        let mut lines = told.lines().skip_while(|line| !line.starts_with(name));
        let first = lines.next().unwrap_or_else(|| panic!("{name}: {told}"));
        let others = lines.take_while(|line| line.starts_with("                  not "));
        (first.split_whitespace().collect::<Vec<_>>().join(" "), others.count())
    };
    let is_version = |word: &str| word.split('.').filter(|n| n.parse::<u32>().is_ok()).count() == 3;
    let (provider, others) = line("  Cloud provider  ");
    assert!(provider.split(' ').nth(2).is_some_and(is_version), "{provider}");
    assert!(provider.contains(cloud), "{provider}");
    assert_eq!(others, if provider.contains("others were looked at") { 2 } else { 0 }, "{told}");
    let (storage, others) = line("  Storage  ");
    assert!(storage.split(' ').nth(1).is_some_and(is_version), "{storage}");
    assert!(storage.contains("the newest that fits; "), "{storage}");
    assert_eq!(others, 2, "{told}");
    assert!(told.contains("It supports Kubernetes "), "a reason: {told}");
    // What runs is what the screen before says.
    for (shown, told) in [
        ("  Storage  ", storage.split(' ').nth(1)),
        ("  Cloud provider  ", provider.split(' ').nth(2)),
    ] {
        let line = ended.said.lines().find(|line| line.starts_with(shown)).unwrap();
        assert!(line.contains(&format!(" {} ", told.unwrap())), "{line}: {told:?}");
    }
}

#[tokio::test]
async fn each_fault_is_named_with_its_remedy_and_gone_once_it_is_mended() {
    let ended = Run::of(&["break", "all"]).ends().await;
    assert_eq!(ended.code, 0, "{}", ended.said);
    let mut rest = ended.said.as_str();
    for Breakage { name, code, how, .. } in run::breakages() {
        let part = format!("\n{name}: {how}\n");
        let at = rest.find(&part).unwrap_or_else(|| panic!("{name} comes next: {rest}"));
        rest = &rest[at..];
        let end = rest.find("✔ mended: ").unwrap_or_else(|| panic!("{name} is mended: {rest}"));
        let (shown, after) = rest.split_at(end);
        assert!(shown.contains(&format!("✔ {code} is there: ")), "{shown}");
        assert!(shown.contains("$ vdoctl status\n"), "{shown}");
        assert!(shown.contains(&format!("  {code}  ")), "the screen names it: {shown}");
        assert!(shown.contains(" Mend "), "and says what to do: {shown}");
        assert!(after.starts_with(&format!("✔ mended: {code} is gone")), "{after}");
        // The same screen shows that it is gone.
        let (_, screen) =
            after.split_once("$ vdoctl status --wait").unwrap_or_else(|| panic!("{after}"));
        let screen = screen.split("\n\n$ ").next().unwrap_or_default();
        let end =
            run::breakages().filter_map(|next| screen.find(&format!("\n{}: ", next.name))).min();
        let screen = &screen[..end.unwrap_or(screen.len())];
        assert!(screen.contains("\n● Healthy"), "{name}: {screen}");
        assert!(!screen.contains(&format!("  {code}  ")), "{name} is still named: {screen}");
    }
    ended.leaves_nothing().await;
    screens::hold("degraded", &ended.after("disk-uuid: ", "▲ "));
}

#[tokio::test]
async fn an_upgrade_is_approved_and_goes_through_node_by_node() {
    let ended = Run::of(&["upgrade"]).ends().await;
    assert_eq!(ended.code, 0, "{}", ended.said);
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
        assert!(ended.said.contains(shown), "{shown}: {}", ended.said);
    }
    ended.leaves_nothing().await;
}

#[tokio::test]
async fn drivers_that_do_not_become_ready_are_told_by_the_exit_code() {
    // However quick the machine is: a controller that crashes is never ready.
    let ended = Run::of(&["--once", "--with", "crash", "--timeout", "1"]).ends().await;
    assert_eq!(ended.code, 1, "{}", ended.said);
    assert!(ended.said.contains("✖ "), "{}", ended.said);
    assert!(ended.said.contains("sandbox: `vdoctl status --wait --timeout 1` ended with"));
    ended.leaves_nothing().await;
}

#[tokio::test]
async fn ctrl_c_at_any_time_ends_it_and_leaves_nothing() {
    let early = Run::of(&["--stay"]);
    early.says(&["✔ Control plane"]).await;
    let folder = early.folder_begins();
    assert!(!run::processes_that_name(&folder.display().to_string()).is_empty());
    early.signal(Signal::INT);
    let late = Run::of(&["--stay", "--bare"]);
    late.says(&["Ctrl-C ends the sandbox"]).await;
    assert!(!late.programs().is_empty());
    late.signal(Signal::INT);
    let (early, late) = (early.ends().await, late.ends().await);
    // Unless it was quicker than the hand that stopped it, nothing was shown yet.
    let shown = early.said.contains("Ctrl-C ends the sandbox");
    assert_eq!(early.code, if shown { 0 } else { 130 }, "{}", early.said);
    assert_eq!(late.code, 0, "{}", late.said);
    run::nothing_begins(&folder).await;
    late.leaves_nothing().await;
}

#[tokio::test]
async fn on_a_terminal_it_moves_waits_for_enter_and_stays_and_a_kill_leaves_nothing() {
    let mut narrow = run::command(&["break", "tools"]);
    narrow.env_remove("COLUMNS");
    let mut terminal = Terminal::run(narrow, 60);
    terminal.expect("⠋").await;
    terminal.expect("\x1b[").await;
    // One deadline for each part of the way.
    for part in ["What is real", "vdoctl deploy", "vdoctl configure", "vdoctl status", "Healthy"] {
        terminal.expect(part).await;
    }
    terminal.expect("Enter mends it.").await;
    terminal.types("\n");
    terminal.expect("VDO-1208 is gone").await;
    terminal.expect("What to try next").await;
    terminal.expect("Ctrl-C ends the sandbox").await;
    let shown = Ended { code: 0, said: terminal.shown() };
    let plain = anstream::adapter::strip_str(&shown.said).to_string();
    let steps = plain.split(['\r', '\n']).filter(|line| line.contains(['✔', '⠋', '$']));
    let long: Vec<&str> = steps.filter(|line| line.chars().count() > 60).collect();
    assert_eq!(long, Vec::<&str>::new(), "sixty columns are enough for steps");
    // As hard as can be.
    drop(terminal);
    shown.leaves_nothing().await;
}

#[tokio::test]
async fn what_makes_no_sense_is_answered_with_what_would() {
    let ended = Run::of(&["break", "disk-uid"]).ends().await;
    assert_eq!(ended.code, 2, "{}", ended.said);
    assert!(ended.said.contains("a similar value exists: 'disk-uuid'"), "{}", ended.said);
    let ended = Run::of(&["break"]).ends().await;
    assert_eq!(ended.code, 2, "{}", ended.said);
    let ended = Run::of(&["break", "--list"]).ends().await;
    assert_eq!(ended.code, 0, "{}", ended.said);
    let listed = |b: &Breakage| ended.said.contains(b.name) && ended.said.contains(b.code);
    assert!(run::breakages().count() >= 15 && run::breakages().all(listed), "{}", ended.said);
}
