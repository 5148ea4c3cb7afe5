//! Rules for all screens.

use std::process::{Command, Stdio};

use crate::{
    stage::{CommandOutput, PASSWORD, Stage},
    terminal::Terminal,
};

/// Read-only commands for people, on a healthy cluster.
const SCREENS: [&str; 34] = [
    "--help",
    "move --help",
    "configure --help",
    "catalog explain --help",
    "adopt",
    "catalog diff embedded built.yaml",
    "catalog explain --driver csi --kubernetes 1.36 --vsphere 8.0",
    "catalog keys",
    "catalog list",
    "catalog show csi 3.7.3",
    "catalog verify built.yaml",
    "configure -f vdo.yaml --dry-run",
    "deploy --dry-run",
    "doctor --all",
    "doctor --only VDO-12 --explain",
    "explain",
    "explain 1203",
    "fix",
    "fix 1203",
    "fix --made",
    "plan",
    "plan --all",
    "prepare",
    "remove csi --dry-run",
    "remove vdo --dry-run",
    "status",
    "status -o wide",
    "storage-class extra --dry-run",
    "support-bundle --output narrow.tar.gz",
    "test --clean",
    "upgrade",
    "version",
    "version --client",
    "versions",
];

/// Commands that fail, each with its exit code.
const REFUSALS: [(&str, i32); 21] = [
    ("catalog build no-such-file.yaml", 1),
    (
        "catalog from-manifest --driver csi --version 3.99.0 --kubernetes-min 1.34 --kubernetes-max 1.36 --vsphere-min 7.0 no-such-file.yaml",
        1,
    ),
    ("catalog images --driver csi --version 99.0.0", 2),
    ("catalog import no-such-file.yaml", 1),
    ("catalog keygen built.yaml", 1),
    ("catalog push built.yaml oci://registry.example.com/vdo/catalog:1", 2),
    ("catalog render --driver csi --version 99.0.0 --kubernetes 1.36", 2),
    ("catalog sign built.yaml --key no-such-file.key", 1),
    ("completion", 2),
    ("configure -f no-such-file.yaml", 1),
    ("configure -f mistaken.yaml", 1),
    ("explain 9999", 2),
    ("fix 9999", 2),
    ("images --catalog embedded", 2),
    ("images verify no-such-file.tar", 1),
    ("images --context no-such-context", 1),
    ("remove csi", 2),
    ("status --context no-such-context", 1),
    ("test", 1),
    ("test --size lots", 2),
    ("upgrade csi --back --yes", 1),
];

/// Commands for a cluster in which one VM hides its disk IDs.
const DEGRADED: [(&str, i32); 7] = [
    ("status", 3),
    ("status -o wide", 3),
    ("doctor", 3),
    ("doctor --only 1203 --explain", 3),
    ("fix", 0),
    ("fix 1203", 2),
    ("plan", 0),
];

/// Commands with machine-readable output.
const LISTS: [&str; 10] = [
    "catalog build embedded",
    "catalog images",
    "completion bash",
    "deploy -o yaml",
    "doctor -o json",
    "images",
    "images --all --mirror registry.example.com",
    "plan -o json",
    "status -o json",
    "versions -o yaml",
];

fn words(line: &str) -> Vec<&str> {
    line.split(' ').collect()
}

/// Problems of a command's output in a pipe of sixty columns.
fn narrow(stage: &Stage, line: &str, code: i32) -> Vec<String> {
    let mut command = stage.command(&words(line));
    let output =
        CommandOutput::from(command.env("COLUMNS", "60").stdin(Stdio::null()).output().unwrap());
    let mut wrong = too_long(line, &output.out);
    wrong.extend(too_long(line, &output.err));
    if output.code != code {
        wrong.push(format!("{line} ends with {code}: {}", output.all()));
    }
    if output.all().contains('\x1b') {
        wrong.push(format!("{line}: colours in a pipe: {}", output.all()));
    }
    wrong
}

/// Lines wider than sixty columns, except a single long word.
fn too_long(line: &str, shown: &str) -> Vec<String> {
    let fits = |line: &&str| line.chars().count() <= 60 || !line.trim().contains(' ');
    let long = shown.split(['\r', '\n']).filter(|line| !fits(line));
    long.map(|long| format!("{line}: too long: {long}")).collect()
}

/// The same rules with a finding.
pub(crate) fn of_trouble_fit_sixty_columns(stage: &Stage) {
    let wrong: Vec<String> =
        DEGRADED.iter().flat_map(|(line, code)| narrow(stage, line, *code)).collect();
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// Every screen fits sixty columns, and a closed pipe is not a failure.
pub(crate) fn fit_sixty_columns_and_accept_a_closed_pipe(stage: &Stage) {
    let mistaken = "metadata:\n  name: a: b\n";
    stage.workdir.write("mistaken.yaml", mistaken).unwrap();
    stage.workdir.write("built.yaml", stage.works(&["catalog", "build", "embedded"]).out).unwrap();
    let well = SCREENS.map(|line| (line, 0));
    let all = well.iter().chain(&REFUSALS);
    let mut wrong: Vec<String> = all.flat_map(|(line, code)| narrow(stage, line, *code)).collect();
    for line in SCREENS.iter().chain(&LISTS) {
        // The output is closed.
        let program = env!("CARGO_BIN_EXE_vdoctl");
        let script = format!("{program} {line} | true; exit ${{PIPESTATUS[0]}}");
        let mut shell = Command::new("bash");
        shell.args(["-c", &script]).env("KUBECONFIG", stage.kubeconfig());
        let output = CommandOutput::from(shell.current_dir(stage.workdir.path()).output().unwrap());
        if output.code != 0 || output.err.contains("cannot write the output") {
            wrong.push(format!("{line} | true: {}", output.all()));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// The same on a terminal, with animation, and without colors if they are off.
pub(crate) async fn fit_a_terminal_of_sixty_columns(stage: &Stage) {
    for line in ["status", "plan", "doctor", "versions"] {
        let (status, shown) = Terminal::run(&stage.command(&words(line)), 60).ends().await;
        assert!(status.success(), "{line}: {shown}");
        let plain = anstream::adapter::strip_str(&shown).to_string();
        let long: Vec<&str> =
            plain.split(['\r', '\n']).filter(|line| line.chars().count() > 60).collect();
        assert_eq!(long, Vec::<&str>::new(), "{line}");
    }
    let well = SCREENS.map(|line| (line, 0));
    // On a terminal, vdoctl asks instead of failing.
    let refused = REFUSALS.iter().filter(|(line, _)| *line != "remove csi");
    let mut wrong = Vec::new();
    for (line, code) in well.iter().chain(refused) {
        let mut command = stage.command(&words(line));
        let (status, shown) = Terminal::run(command.env("NO_COLOR", "1"), 60).ends().await;
        wrong.extend(too_long(line, &shown));
        if status.code() != Some(*code) || shown.contains('\x1b') {
            wrong.push(format!("{line} ends with {code}, without colours: {shown:?}"));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

fn listed(above: &[&str]) -> Vec<String> {
    let help = Command::new(env!("CARGO_BIN_EXE_vdoctl")).args(above).arg("-h").output().unwrap();
    let help = String::from_utf8(help.stdout).unwrap();
    let listed = help.split_once("Commands:\n").unwrap().1.lines().take_while(|l| !l.is_empty());
    let names = listed.filter(|line| line.starts_with("  ") && !line.starts_with("   "));
    names.map(|line| line.split_whitespace().next().unwrap().to_owned()).collect()
}

#[test]
fn every_command_has_a_screen() {
    let below = listed(&["catalog"]).into_iter().map(|name| format!("catalog {name}"));
    let commands: Vec<String> = listed(&[]).into_iter().chain(below).collect();
    assert!(commands.len() > 27, "{commands:?}");
    let lines = || SCREENS.iter().copied().chain(REFUSALS.iter().map(|(line, _)| *line));
    let has = |command: &String| {
        lines().any(|line| line == command || line.starts_with(&format!("{command} ")))
    };
    let missing: Vec<&String> = commands.iter().filter(|command| !has(command)).collect();
    assert_eq!(missing, Vec::<&String>::new(), "add a line to SCREENS, or to REFUSALS");
}

fn is_coloured(shown: &str) -> bool {
    let codes = shown.split("\x1b[").skip(1);
    codes
        .into_iter()
        .any(|code| code.trim_start_matches(|c: char| c.is_numeric() || c == ';').starts_with('m'))
}

/// `--color never` applies to questions, too.
pub(crate) async fn questions_without_colours(stage: &Stage) {
    for (colour, coloured) in [("auto", true), ("never", false)] {
        let mut terminal = Terminal::run(&stage.command(&["configure", "--color", colour]), 80);
        terminal.expect("vCenter:").await;
        terminal.types("\x03");
        let (status, shown) = terminal.ends().await;
        assert_eq!(status.code(), Some(130), "{shown}");
        assert_eq!(is_coloured(&shown), coloured, "{colour}: {shown:?}");
    }
}

#[tokio::test]
async fn help_and_errors_have_colors_if_wanted() {
    let terminal = async |line: &str| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_vdoctl"));
        command.args(words(line)).env_remove("NO_COLOR");
        Terminal::run(&command, 80).ends().await.1
    };
    for line in ["--help", "status --help", "statsu"] {
        assert!(is_coloured(&terminal(line).await), "{line}");
        for never in [format!("{line} --color never"), format!("--color=never {line}")] {
            let shown = terminal(&never).await;
            assert!(!shown.contains('\x1b'), "{never}: {shown:?}");
        }
    }
    let piped = |line: &str, variable: &str| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_vdoctl"));
        command.args(words(line)).env_remove("NO_COLOR").env("VDOCTL_COLOR", variable);
        CommandOutput::from(command.output().unwrap())
    };
    assert!(is_coloured(&piped("--help --color always", "auto").out));
    assert!(is_coloured(&piped("--help", "always").out));
    assert!(!is_coloured(&piped("--help", "auto").out));
}

fn widest(text: &str) -> usize {
    let plain = anstream::adapter::strip_str(text).to_string();
    plain.split(['\r', '\n']).map(|line| line.chars().count()).max().unwrap_or_default()
}

#[tokio::test]
async fn each_stream_has_its_own_width() {
    let folder = testkit::Workdir::new("streams").unwrap();
    let on_terminal = async |line: &str| {
        let script = line.replace("vdoctl", env!("CARGO_BIN_EXE_vdoctl"));
        let mut shell = Command::new("bash");
        shell.args(["-c", &script]).env("KUBECONFIG", "/no/such/file").current_dir(folder.path());
        let shown = Terminal::run(&shell, 60).ends().await.1;
        let file = std::fs::read_to_string(folder.path().join("file")).unwrap();
        (widest(&shown), widest(&file))
    };
    // Standard output and standard error have their own widths.
    let (_, page) = on_terminal("vdoctl explain 1203 > file").await;
    assert!(page > 60, "{page}");
    let (page, _) = on_terminal("vdoctl explain 1203 2> file").await;
    assert!((40..=60).contains(&page), "{page}");
    let (error, _) = on_terminal("vdoctl status > file").await;
    assert!((40..=60).contains(&error), "{error}");
    let (_, error) = on_terminal("vdoctl status 2> file").await;
    assert!(error > 60, "{error}");
}

/// Lines of all help texts that do not fit sixty columns, and the number of commands.
fn narrow_help(above: &[&str], long: &mut Vec<String>) -> usize {
    let mut count = 1;
    for flag in ["-h", "--help"] {
        let mut command = Command::new(env!("CARGO_BIN_EXE_vdoctl"));
        let output = command.args(above).arg(flag).env("COLUMNS", "60").output().unwrap();
        let output = CommandOutput::from(output);
        assert_eq!(output.code, 0, "{above:?}: {}", output.all());
        let wide = output.out.lines().filter(|line| line.chars().count() > 60);
        long.extend(wide.map(|line| format!("{above:?} {flag}: {line}")));
        if let Some((_, listed)) = output.out.split_once("Commands:\n").filter(|_| flag == "-h") {
            let names = listed.lines().take_while(|line| !line.is_empty());
            for name in names.filter(|line| line.starts_with("  ") && !line.starts_with("   ")) {
                let name = name.split_whitespace().next().unwrap();
                count += narrow_help(&[above, &[name]].concat(), long);
            }
        }
    }
    count
}

#[test]
fn the_help_of_every_command_fits_sixty_columns() {
    let mut long = Vec::new();
    let count = narrow_help(&[], &mut long);
    assert!(count > 28, "{count} commands");
    assert_eq!(long, Vec::<String>::new());
}

/// `--quiet` prints only results; `-v` logs more, but no secrets.
pub(crate) fn quiet_and_verbose(stage: &Stage) {
    let (plain, quiet) = (stage.works(&["plan"]), stage.works(&["plan", "--quiet"]));
    assert!(plain.err.contains("Look at the cluster"), "{}", plain.all());
    assert_eq!((quiet.err.as_str(), &quiet.out), ("", &plain.out));
    let variable = stage.command(&["plan"]).env("VDOCTL_QUIET", "1").output().unwrap();
    assert_eq!(CommandOutput::from(variable).err, "", "the same as a variable");

    let verbose = stage.vdoctl(&["doctor", "-vv"]);
    assert!(verbose.err.contains("DEBUG"), "{}", verbose.all());
    assert!(!verbose.all().contains(PASSWORD), "{}", verbose.all());
    let variable = stage.command(&["plan"]).env("VDOCTL_VERBOSE", "2").output().unwrap();
    let variable = CommandOutput::from(variable);
    assert!(variable.err.contains("DEBUG"), "{}", variable.all());
}

/// An error gets its own line. Without control sequences there is no animation.
pub(crate) async fn an_error_gets_its_own_line(stage: &Stage) {
    let waiting = || stage.command(&["status", "--wait"]);
    let (status, shown) = Terminal::run(&waiting(), 80).ends().await;
    assert_eq!(status.code(), Some(5), "{shown}");
    assert!(shown.contains("Wait for the operator"), "{shown:?}");
    let line = shown.lines().find(|line| line.contains("not configured")).unwrap();
    let left = line.rsplit("\r\x1b[K").next().unwrap();
    assert!(!left.contains("Wait for the operator"), "{shown:?}");

    let mut plain = waiting();
    plain.env("NO_COLOR", "1");
    let (status, shown) = Terminal::run(&plain, 80).ends().await;
    assert_eq!(status.code(), Some(5), "{shown}");
    assert!(!shown.replace("\r\n", "\n").contains(['\r', '\x1b']), "{shown:?}");
    let line = shown.lines().find(|line| line.contains("not configured")).unwrap();
    assert!(!line.contains("Wait for the operator"), "{shown:?}");
}

/// `--watch` on a terminal shows a change of the health.
pub(crate) async fn kept_current_until_interrupted(stage: &Stage) {
    let coloured = Terminal::run(&stage.command(&["status"]), 60).ends().await.1;
    assert!(coloured.contains("\x1b["), "{coloured}");
    let mut plain = stage.command(&["status"]);
    plain.env("NO_COLOR", "1");
    let plain = Terminal::run(&plain, 60).ends().await.1;
    assert!(!plain.contains('\x1b'), "{plain}");

    let mut terminal = Terminal::run(&stage.command(&["status", "--watch"]), 60);
    terminal.expect("Healthy").await;
    stage.hide_disk_ids(true).await;
    terminal.expect("Degraded").await;
    terminal.expect("VDO-1203").await;
    stage.hide_disk_ids(false).await;
    terminal.expect("Healthy").await;
    terminal.interrupt();
    let (status, shown) = terminal.ends().await;
    assert_eq!(status.code(), Some(130), "{shown}");
}
