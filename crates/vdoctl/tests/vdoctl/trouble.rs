//! Clusters, vCenters and disks that let one down: one tidy error, no zero, nothing half-made.

use std::{fs, process::Command, time::Duration};

use serde_json::{Value, json};
use testkit::FaultProxy;

use crate::{
    cluster::{nothing_is_there, objects},
    stage::{PASSWORD, Said, Stage},
    terminal::Terminal,
};

/// A bundle that does not fit on the disk is not there at all.
pub(crate) fn a_disk_that_is_full(stage: &Stage) {
    let shell = |script: &str| {
        let script = script.replace("vdoctl", env!("CARGO_BIN_EXE_vdoctl"));
        let mut shell = Command::new("bash");
        shell.args(["-c", &script]).env("KUBECONFIG", stage.kubeconfig());
        Said::from(shell.current_dir(stage.workdir.path()).output().unwrap())
    };
    // Files may grow to one block; whoever writes more gets an error instead of a signal.
    let said = shell("trap '' XFSZ; ulimit -f 1; exec vdoctl support-bundle --output full.tar.gz");
    assert_eq!(said.code, 1, "{}", said.all());
    assert!(said.err.contains("full.tar.gz cannot be written"), "{}", said.all());
    let left: Vec<String> = fs::read_dir(stage.workdir.path())
        .unwrap()
        .map(|entry| entry.unwrap().file_name().to_string_lossy().into_owned())
        .filter(|name| name.starts_with("full"))
        .collect();
    assert_eq!(left, Vec::<String>::new());

    // A disk of one page, where this machine lets us have one; elsewhere the limit above stands for it.
    fs::create_dir(stage.workdir.path().join("disk")).unwrap();
    let disk = "unshare --mount --map-root-user bash -c 'mount -t tmpfs -o size=4k none disk && ";
    if shell(&format!("{disk} true'")).code == 0 {
        let script =
            "vdoctl support-bundle --output disk/full.tar.gz; code=$?; ls -A disk; exit $code";
        let said = shell(&format!("{disk} {{ {script}; }}'"));
        assert_eq!(said.code, 1, "{}", said.all());
        assert!(said.err.contains("disk/full.tar.gz cannot be written"), "{}", said.all());
        assert!(said.err.contains("No space left on device"), "{}", said.all());
        assert_eq!(said.out, "", "nothing half-made: {}", said.all());
    }
    let said = shell("vdoctl support-bundle --output - > /dev/full");
    assert_eq!(said.code, 1, "{}", said.all());
    assert!(said.err.contains("No space left on device"), "{}", said.all());

    let said = shell("vdoctl support-bundle --output /no/such/folder/bundle.tar.gz");
    assert_eq!(said.code, 1, "{}", said.all());
    let said = shell("vdoctl deploy -o yaml > /dev/full");
    assert_eq!(said.code, 1, "{}", said.all());
    assert!(said.err.contains("the output cannot be written"), "{}", said.all());
}

/// `KUBECONFIG` as kubectl reads it, and contexts that are not there.
pub(crate) fn contexts_and_files(stage: &Stage) {
    let whole = fs::read_to_string(stage.kubeconfig()).unwrap();
    let parsed: Value = serde_saphyr::from_str(&whole).unwrap();
    let context = parsed["current-context"].as_str().unwrap();
    // One file says which context, another what it is, a third does not exist.
    let choice = json!({"apiVersion": "v1", "kind": "Config", "current-context": context});
    let choice = stage.workdir.write("choice.yaml", choice.to_string()).unwrap();
    let mut rest = parsed.clone();
    rest["current-context"] = "elsewhere".into();
    let rest = stage.workdir.write("rest.yaml", rest.to_string()).unwrap();
    let list = format!("/no/such/file:{}:{}", choice.display(), rest.display());
    let run = |arguments: &[&str], list: &str| {
        Said::from(stage.command(arguments).env("KUBECONFIG", list).output().unwrap())
    };
    let said = run(&["version"], &list);
    assert_eq!(said.code, 0, "{}", said.all());
    assert!(said.out.contains("Kubernetes"), "{}", said.all());
    let said = run(&["status"], "/no/such/file:/nor/this");
    assert_eq!(said.code, 1, "{}", said.all());
    assert!(said.err.contains("/no/such/file, /nor/this"), "{}", said.all());

    let near = format!("{context}x");
    for (wrong, words) in [
        (near.as_str(), format!("did you mean {context}?")),
        ("zzzzzzzzzzzzzzzz", format!("there are {context}")),
    ] {
        let said = stage.vdoctl(&["status", "--context", wrong]);
        assert_eq!(said.code, 1, "{}", said.all());
        assert!(said.err.contains(&format!("no context \"{wrong}\"")), "{}", said.all());
        assert!(said.err.contains(&words), "{}", said.all());
        let variable = stage.command(&["status"]).env("VDOCTL_CONTEXT", wrong).output().unwrap();
        assert_eq!(Said::from(variable).err, said.err, "the same as a variable");
    }
    let named = rest.display().to_string();
    let mut variables = stage.command(&["status"]);
    variables.env("VDOCTL_KUBECONFIG", named).env("VDOCTL_CONTEXT", context);
    let said = Said::from(variables.env("VDOCTL_STATUS_OUTPUT", "json").output().unwrap());
    assert!(said.out.starts_with('{'), "{}", said.all());
}

/// `configure` tells what it waits for; a vCenter that takes its time is waited for, one that says nothing
/// ends it with one error, and nothing is there then.
pub(crate) async fn configuring_with_a_slow_vcenter(stage: &Stage) {
    let proxy = FaultProxy::before(stage.vcenter.address()).await;
    let address = proxy.address().to_string();
    let text = objects(stage, |all| all[1]["spec"]["vcIp"] = address.as_str().into());
    stage.workdir.write("slow.yaml", text).unwrap();
    let waits_for = format!("Log in to {address}");
    let line = ["configure", "-f", "slow.yaml"];

    proxy.delay(Duration::from_millis(200));
    let said = stage.vdoctl_beside(&[&line[..], &["--dry-run"]].concat()).await;
    assert_eq!(said.code, 0, "{}", said.all());
    assert!(said.err.contains(&format!("✔ {waits_for}")), "{}", said.all());

    proxy.black_hole();
    // What is waited for shows while it is.
    let mut terminal = Terminal::run(&stage.command(&line), 100);
    terminal.expect(&waits_for).await;
    let (status, shown) = terminal.ends().await;
    assert_eq!(status.code(), Some(1), "{shown}");
    let plain = anstream::adapter::strip_str(&shown).to_string();
    assert_eq!(plain.matches("cannot be used").count(), 1, "{plain}");
    assert!(!plain.contains(PASSWORD), "{plain}");
    nothing_is_there(stage, "it said nothing").await;

    proxy.reset();
    let said = stage.vdoctl_beside(&line).await;
    assert_eq!((said.code, said.out.as_str()), (1, ""), "{}", said.all());
    assert_eq!(said.err.matches("cannot be used").count(), 1, "{}", said.all());
    assert!(said.err.contains(&address), "{}", said.all());
    nothing_is_there(stage, "it hung up").await;
}

/// A vCenter that takes its time is waited for; one that says nothing is not waited for for ever.
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
    let said = stage.vdoctl_reading(&arguments, PASSWORD);
    assert_eq!(said.code, 0, "{}", said.all());
    for fault in [FaultProxy::black_hole, FaultProxy::reset] {
        fault(&proxy);
        let said = stage.vdoctl_reading(&arguments, PASSWORD);
        assert_eq!(said.code, 3, "{}", said.all());
        assert!(said.out.contains("VDO-1301") && said.out.contains(&address), "{}", said.all());
    }
}
