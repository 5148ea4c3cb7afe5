//! The support bundle contains the right files and no secrets.

use std::{
    fs,
    io::Read as _,
    os::unix::fs::{PermissionsExt as _, symlink},
    process::{Command, Stdio},
};

use k8s_openapi::api::{
    core::v1::{ConfigMap, Secret},
    rbac::v1::ClusterRoleBinding,
};
use kube::{Api, api::PostParams};
use serde_json::json;
use testkit::{Fate, User, eventually};

use crate::{
    stage::{CommandOutput, PASSWORD, Stage},
    terminal::Terminal,
};

const KEYTAB: [u8; 26] = *b"\xff\x00\xfe\x80KRB5\xc3\x28\x99\xaa\xbbadmin@EXAMPLE";

/// A registry password inside the JSON of a pull secret.
const PULLS: &str = "pulls-images-with-this-password";
/// A password in a namespace that only a driver's settings mention.
const FAR: &str = "far-away-lies-this-password";

/// The secrets of the cluster in several encodings.
fn notes() -> Vec<String> {
    use base64::{Engine as _, engine::general_purpose::STANDARD};
    let hex = |bytes: &[u8]| bytes.iter().map(|byte| format!("{byte:02x}")).collect::<String>();
    let mut notes = vec![
        PASSWORD.to_owned(),
        serde_json::to_string(PASSWORD).unwrap(),
        hex(PASSWORD.as_bytes()),
        hex(&KEYTAB),
        STANDARD.encode(KEYTAB),
        STANDARD.encode([b"k".as_slice(), &KEYTAB].concat()),
    ];
    notes.extend([PULLS.to_owned(), STANDARD.encode(format!("robot:{PULLS}")), FAR.to_owned()]);
    notes
        .extend(["", "u:", "us:", "usr:"].map(|user| STANDARD.encode(format!("{user}{PASSWORD}"))));
    notes
}

/// The unpacked bundle.
fn bundled(stage: &Stage) -> String {
    let mut all = Vec::new();
    let file = fs::File::open(stage.workdir.path().join("bundle.tar.gz")).unwrap();
    flate2::read::GzDecoder::new(file).read_to_end(&mut all).unwrap();
    let text = String::from_utf8_lossy(&all).into_owned();
    for written in notes() {
        // The first and last characters may encode neighboring bytes.
        let middle: String = written.chars().skip(8).take(20).collect();
        assert!(!text.contains(&middle), "the bundle holds {written}");
    }
    text
}

/// Secrets in a driver's log that no Secret contains.
const UNWRITTEN: [&str; 5] =
    ["in-no-secret-1", "in-no-secret-2", "in-no-secret-3", "in-no-secret-4", "in-no-secret-5"];

/// The log of a driver that prints secrets.
fn log_with_secrets() -> &'static str {
    let [plain, json, flag, address, header] = UNWRITTEN;
    let log = format!(
        "syncer begins\n\
         {}\n\
         logging in with {PASSWORD} fails\n\
         listen tcp :9808: bind: address already in use; password={plain}\n\
         {{\"level\":\"error\",\"password\":\"{json}\",\"msg\":\"it went wrong\"}}\n\
         exec: syncer --password {flag} --port 443\n\
         Post \"https://vdo:{address}@vc.example.com/sdk\": EOF\n\
         Authorization: Bearer {header}\n\
         syncer gives up",
        notes().join("\n"),
    );
    Box::leak(log.into_boxed_str())
}

/// The bundle contains the log and the termination message of a crashing driver, without their secrets.
async fn secrets_in_logs_are_redacted(stage: &Stage) {
    stage.nodes.pods("vsphere-csi-node", Fate::CrashesSaying(log_with_secrets()));
    let logs = stage.nodes.serve_logs().await;
    let output = eventually("the status quotes the crash log", 60, async || {
        let output = stage.vdoctl_alongside(&["status"]).await;
        if output.out.contains("VDO-1614") { Ok(output) } else { Err(output.all()) }
    })
    .await;
    let doctor = stage.vdoctl_alongside(&["doctor", "--explain"]).await;
    let bundle = stage.vdoctl_alongside(&["support-bundle", "--output", "bundle.tar.gz"]).await;
    assert_eq!(bundle.code, 0, "{}", bundle.all());
    assert!(bundle.err.contains(" logs"), "{}", bundle.all());
    assert!(logs.asked().iter().any(|path| path.contains("previous=true")), "{:?}", logs.asked());
    let text = bundled(stage);
    let report = text.split_once("vdo-support/doctor.json").map(|(_, report)| report);
    assert!(
        report.is_some_and(|report| report.contains("VDO-1614")),
        "the doctor's report is there"
    );
    for helps in ["line 7 of a long log", "syncer begins", "it went wrong", "syncer gives up"] {
        assert!(text.contains(helps), "{helps}: the log is there");
    }
    for (what, text) in [("status", output.all()), ("doctor", doctor.all()), ("the bundle", text)] {
        assert!(!text.contains(PASSWORD), "{what} holds the password: {text}");
        for secret in UNWRITTEN {
            let at = text.find(secret).map(|at| &text[at.saturating_sub(80)..at + secret.len()]);
            assert_eq!(at, None, "{what} holds {secret}");
        }
    }
    stage.nodes.pods("vsphere-csi-node", Fate::Ready);
    let output = stage.vdoctl_alongside(&["status", "--wait", "--timeout", "300"]).await;
    assert_eq!(output.code, 0, "{}", output.all());
}

/// The number of files that vdoctl could not read.
fn unread(output: &CommandOutput) -> usize {
    let text = output.err.lines().find(|line| line.contains("vdoctl could not read"));
    text.map_or(0, |line| {
        let count = line.split_once(" of ").unwrap().0.rsplit(' ').next();
        count.unwrap().parse().unwrap()
    })
}

/// vdoctl writes to standard output, and replaces only regular files.
fn elsewhere(stage: &Stage) {
    let at = |name: &str| stage.workdir.path().join(name);
    let mut piped = stage.command(&["support-bundle", "-o", "-"]);
    let output = piped.stdin(Stdio::null()).output().unwrap();
    let err = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{err}");
    assert!(err.contains("The archive contains "), "{err}");
    let mut text = Vec::new();
    flate2::read::GzDecoder::new(&output.stdout[..]).read_to_end(&mut text).unwrap();
    assert!(String::from_utf8_lossy(&text).contains("vdo-support/about.json"));
    assert!(!at("-").exists());

    stage.workdir.write("kept", "kept").unwrap();
    symlink(at("kept"), at("link.tar.gz")).unwrap();
    let made = Command::new("mkfifo").arg(at("pipe.tar.gz")).status().unwrap();
    assert!(made.success());
    for (name, words) in [("link.tar.gz", "a symbolic link"), ("pipe.tar.gz", "a pipe")] {
        let before = fs::symlink_metadata(at(name)).unwrap().file_type();
        let output = stage.vdoctl(&["support-bundle", "-o", name]);
        assert_eq!(output.code, 1, "{}", output.all());
        assert!(output.err.contains(&format!("{name} is {words}")), "{}", output.all());
        assert_eq!(fs::symlink_metadata(at(name)).unwrap().file_type(), before);
    }
    assert_eq!(fs::read_to_string(at("kept")).unwrap(), "kept");
}

#[tokio::test]
async fn no_archive_is_written_to_a_terminal() {
    let mut command = Command::new(env!("CARGO_BIN_EXE_vdoctl"));
    command.args(["support-bundle", "-o", "-"]).env("KUBECONFIG", "/no/such/file");
    let (status, shown) = Terminal::run(&command, 80).ends().await;
    assert_eq!(status.code(), Some(2), "{shown}");
    assert!(shown.contains("does not write an archive to a terminal"), "{shown}");
}

/// The bundle is complete with all permissions, and omits unsearchable files with few.
pub(crate) async fn bundling(stage: &Stage) {
    let keytab = json!({
        "metadata": {"name": "keytab", "namespace": "kube-system"},
        "data": {"keytab": k8s_openapi::ByteString(KEYTAB.to_vec())},
    });
    let keytab: Secret = serde_json::from_value(keytab).unwrap();
    let secrets = Api::<Secret>::namespaced(stage.plane.client(), "kube-system");
    secrets.create(&PostParams::default(), &keytab).await.unwrap();
    let pulls =
        json!({"auths": {"registry.example.com": {"username": "robot", "password": PULLS}}});
    let pulls = json!({
        "metadata": {"name": "pulls", "namespace": "kube-system"},
        "type": "kubernetes.io/dockerconfigjson",
        "stringData": {".dockerconfigjson": pulls.to_string()},
    });
    let pulls: Secret = serde_json::from_value(pulls).unwrap();
    secrets.create(&PostParams::default(), &pulls).await.unwrap();
    let far =
        json!({"metadata": {"name": "vcenter-b"}, "stringData": {"vc.example.com.password": FAR}});
    let far: Secret = serde_json::from_value(far).unwrap();
    let secrets = Api::<Secret>::namespaced(stage.plane.client(), "default");
    secrets.create(&PostParams::default(), &far).await.unwrap();
    // The secrets also occur outside of Secrets.
    let note = json!({
        "metadata": {"name": "notes", "namespace": "kube-system"},
        "data": {
            "todo": format!("change {PASSWORD} some day"),
            "all": notes().join("\n"),
            "vsphere.yaml": "vcenter: {b: {secretName: vcenter-b, secretNamespace: default}}",
            "vsphere.conf": "[Global]\nuser = \"u\"\npassword = \"in-no-secret\"\nport = \"443\"\n",
        },
    });
    let note: ConfigMap = serde_json::from_value(note).unwrap();
    let maps = Api::<ConfigMap>::namespaced(stage.plane.client(), "kube-system");
    maps.create(&PostParams::default(), &note).await.unwrap();

    // vdoctl replaces a world-readable file, and keeps files of other processes.
    stage.workdir.write("bundle.tar.gz", "old").unwrap();
    stage.workdir.write("bundle.tar.gz.partial", "theirs").unwrap();
    let output = stage.works(&["support-bundle", "--output", "bundle.tar.gz"]);
    assert_eq!(output.out, "bundle.tar.gz\n");
    let at = |name: &str| stage.workdir.path().join(name);
    let mode = fs::metadata(at("bundle.tar.gz")).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600, "its owner alone reads it");
    assert_eq!(fs::read_to_string(at("bundle.tar.gz.partial")).unwrap(), "theirs");
    let summary = output.err.split_whitespace().collect::<Vec<_>>().join(" ");
    let summary = summary.split_once("The archive contains ").unwrap().1;
    for wanted in ["1 vdoconfigs", "3 nodes", "1 vspherecloudconfigs", " pods", " configmaps"] {
        assert!(summary.contains(wanted), "{wanted}: {}", output.all());
    }
    // There is no kubelet, so there are no logs.
    let by_all = unread(&output);
    let text = bundled(stage);
    let wanted = [
        "about.json",
        "doctor.json",
        "vdoconfigs.json",
        "persistentvolumes.json",
        "persistentvolumeclaims.json",
        "secrets-by-name.json",
        "vsphere-csi-node",
        "/metrics/vsphere-csi-controller",
    ];
    for wanted in wanted {
        assert!(text.contains(wanted), "{wanted}");
    }
    assert!(text.contains("some day"), "the note is there, without the password");
    assert!(!text.contains("in-no-secret"), "no Secret needs to hold it");
    assert!(text.contains("port = "), "what helps stays");
    let listed = Command::new("tar")
        .args(["tzf", "bundle.tar.gz"])
        .current_dir(stage.workdir.path())
        .output()
        .unwrap();
    assert!(listed.status.success(), "{}", String::from_utf8_lossy(&listed.stderr));

    elsewhere(stage);
    secrets_in_logs_are_redacted(stage).await;

    // A user who cannot read Secrets cannot redact them.
    let role =
        json!({"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "view"});
    let subject =
        json!({"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": "viewer"});
    let binding = json!({"metadata": {"name": "viewer"}, "roleRef": role, "subjects": [subject]});
    let binding: ClusterRoleBinding = serde_json::from_value(binding).unwrap();
    let bindings = Api::<ClusterRoleBinding>::all(stage.plane.client());
    bindings.create(&PostParams::default(), &binding).await.unwrap();
    let viewer = stage.plane.kubeconfig_as(&User::named("viewer")).display().to_string();
    let flags = ["--kubeconfig", viewer.as_str(), "support-bundle", "--output", "bundle.tar.gz"];
    let output = eventually("the binding holds", 30, async || {
        let output = stage.vdoctl(&flags);
        if output.err.contains("vdoctl cannot redact their values") {
            Ok(output)
        } else {
            Err(output.all())
        }
    })
    .await;
    assert!(unread(&output) > by_all, "nodes, for one: {}", output.all());
    assert!(output.all().contains("lack the permission to read all Secrets"), "{}", output.all());
    assert!(!bundled(stage).contains("some day"), "what could not be searched is left out");
}
