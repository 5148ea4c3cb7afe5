//! Failures of clusters, vCenters and disks: one clear error, a failing exit code, nothing half-written.

use std::{fs, process::Command, time::Duration};

use serde_json::{Value, json};
use testkit::FaultProxy;

use crate::{
    cluster::{assert_nothing_written, objects},
    stage::{CommandOutput, PASSWORD, Stage},
    terminal::Terminal,
};

/// A full disk leaves no partial bundle.
pub(crate) fn a_disk_that_is_full(stage: &Stage) {
    let shell = |script: &str| {
        let script = script.replace("vdoctl", env!("CARGO_BIN_EXE_vdoctl"));
        let mut shell = Command::new("bash");
        shell.args(["-c", &script]).env("KUBECONFIG", stage.kubeconfig());
        CommandOutput::from(shell.current_dir(stage.workdir.path()).output().unwrap())
    };
    // A file size limit of one block, with an error instead of a signal.
    let output =
        shell("trap '' XFSZ; ulimit -f 1; exec vdoctl support-bundle --output full.tar.gz");
    assert_eq!(output.code, 1, "{}", output.all());
    assert!(output.err.contains("full.tar.gz cannot be written"), "{}", output.all());
    let left: Vec<String> = fs::read_dir(stage.workdir.path())
        .unwrap()
        .map(|entry| entry.unwrap().file_name().to_string_lossy().into_owned())
        .filter(|name| name.starts_with("full"))
        .collect();
    assert_eq!(left, Vec::<String>::new());

    // A file system of one page, if this computer supports it.
    fs::create_dir(stage.workdir.path().join("disk")).unwrap();
    let disk = "unshare --mount --map-root-user bash -c 'mount -t tmpfs -o size=4k none disk && ";
    if shell(&format!("{disk} true'")).code == 0 {
        let script =
            "vdoctl support-bundle --output disk/full.tar.gz; code=$?; ls -A disk; exit $code";
        let output = shell(&format!("{disk} {{ {script}; }}'"));
        assert_eq!(output.code, 1, "{}", output.all());
        assert!(output.err.contains("disk/full.tar.gz cannot be written"), "{}", output.all());
        assert!(output.err.contains("No space left on device"), "{}", output.all());
        assert_eq!(output.out, "", "nothing half-made: {}", output.all());
    }
    let output = shell("vdoctl support-bundle --output - > /dev/full");
    assert_eq!(output.code, 1, "{}", output.all());
    assert!(output.err.contains("No space left on device"), "{}", output.all());

    let output = shell("vdoctl support-bundle --output /no/such/folder/bundle.tar.gz");
    assert_eq!(output.code, 1, "{}", output.all());
    let output = shell("vdoctl deploy -o yaml > /dev/full");
    assert_eq!(output.code, 1, "{}", output.all());
    assert!(output.err.contains("cannot write the output"), "{}", output.all());
}

/// `KUBECONFIG` with several files, and unknown contexts.
pub(crate) fn contexts_and_files(stage: &Stage) {
    let whole = fs::read_to_string(stage.kubeconfig()).unwrap();
    let parsed: Value = serde_saphyr::from_str(&whole).unwrap();
    let context = parsed["current-context"].as_str().unwrap();
    // One file selects the context, another defines it, a third does not exist.
    let choice = json!({"apiVersion": "v1", "kind": "Config", "current-context": context});
    let choice = stage.workdir.write("choice.yaml", choice.to_string()).unwrap();
    let mut rest = parsed.clone();
    rest["current-context"] = "elsewhere".into();
    let rest = stage.workdir.write("rest.yaml", rest.to_string()).unwrap();
    let list = format!("/no/such/file:{}:{}", choice.display(), rest.display());
    let run = |arguments: &[&str], list: &str| {
        CommandOutput::from(stage.command(arguments).env("KUBECONFIG", list).output().unwrap())
    };
    let output = run(&["version"], &list);
    assert_eq!(output.code, 0, "{}", output.all());
    assert!(output.out.contains("Kubernetes"), "{}", output.all());
    let output = run(&["status"], "/no/such/file:/nor/this");
    assert_eq!(output.code, 1, "{}", output.all());
    assert!(output.err.contains("/no/such/file, /nor/this"), "{}", output.all());

    let near = format!("{context}x");
    for (wrong, words) in [
        (near.as_str(), format!("did you mean {context}?")),
        ("zzzzzzzzzzzzzzzz", format!("has the contexts {context}")),
    ] {
        let output = stage.vdoctl(&["status", "--context", wrong]);
        assert_eq!(output.code, 1, "{}", output.all());
        assert!(output.err.contains(&format!("no context \"{wrong}\"")), "{}", output.all());
        assert!(output.err.contains(&words), "{}", output.all());
        let variable = stage.command(&["status"]).env("VDOCTL_CONTEXT", wrong).output().unwrap();
        assert_eq!(CommandOutput::from(variable).err, output.err, "the same as a variable");
    }
    let named = rest.display().to_string();
    let mut variables = stage.command(&["status"]);
    variables.env("VDOCTL_KUBECONFIG", named).env("VDOCTL_CONTEXT", context);
    let output =
        CommandOutput::from(variables.env("VDOCTL_STATUS_OUTPUT", "json").output().unwrap());
    assert!(output.out.starts_with('{'), "{}", output.all());
}

/// `configure` shows what it waits for. It waits for a slow vCenter; a silent one is an error, and nothing is written.
pub(crate) async fn configuring_with_a_slow_vcenter(stage: &Stage) {
    let proxy = FaultProxy::before(stage.vcenter.address()).await;
    let address = proxy.address().to_string();
    let text = objects(stage, |all| all[1]["spec"]["vcIp"] = address.as_str().into());
    stage.workdir.write("slow.yaml", text).unwrap();
    let waits_for = format!("Log in to {address}");
    let line = ["configure", "-f", "slow.yaml"];

    proxy.delay(Duration::from_millis(200));
    let output = stage.vdoctl_alongside(&[&line[..], &["--dry-run"]].concat()).await;
    assert_eq!(output.code, 0, "{}", output.all());
    assert!(output.err.contains(&format!("✔ {waits_for}")), "{}", output.all());

    proxy.black_hole();
    // The step is visible while vdoctl waits.
    let mut terminal = Terminal::run(&stage.command(&line), 100);
    terminal.expect(&waits_for).await;
    let (status, shown) = terminal.ends().await;
    assert_eq!(status.code(), Some(1), "{shown}");
    let plain = anstream::adapter::strip_str(&shown).to_string();
    assert_eq!(plain.matches("cannot be used").count(), 1, "{plain}");
    assert!(!plain.contains(PASSWORD), "{plain}");
    assert_nothing_written(stage, "vCenter did not answer").await;

    proxy.reset();
    let output = stage.vdoctl_alongside(&line).await;
    assert_eq!((output.code, output.out.as_str()), (1, ""), "{}", output.all());
    assert_eq!(output.err.matches("cannot be used").count(), 1, "{}", output.all());
    assert!(output.err.contains(&address), "{}", output.all());
    assert_nothing_written(stage, "it hung up").await;
}

/// vdoctl waits for a slow vCenter, but not forever for a silent one.
pub(crate) async fn a_slow_vcenter(stage: &Stage) {
    let proxy = FaultProxy::before(stage.vcenter.address()).await;
    let (address, thumbprint) = (proxy.address().to_string(), stage.vcenter.thumbprint_sha256());
    let arguments = [
        "doctor",
        "--no-cluster",
        "--vcenter",
        &address,
        "--user",
        "vdo@vsphere.local",
        "--password-file",
        "-",
        "--thumbprint",
        &thumbprint,
        "--only",
        "VDO-1301",
    ];
    proxy.delay(Duration::from_millis(200));
    let output = stage.vdoctl_reading(&arguments, PASSWORD);
    assert_eq!(output.code, 0, "{}", output.all());
    for fault in [FaultProxy::black_hole, FaultProxy::reset] {
        fault(&proxy);
        let output = stage.vdoctl_reading(&arguments, PASSWORD);
        assert_eq!(output.code, 3, "{}", output.all());
        assert!(
            output.out.contains("VDO-1301") && output.out.contains(&address),
            "{}",
            output.all()
        );
    }
}
