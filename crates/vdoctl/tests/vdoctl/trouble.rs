//! Clusters, vCenters and disks that let one down: one tidy error, no zero, nothing half-made.

use std::{
    fs,
    process::{Command, Stdio},
    time::Duration,
};

use api::{VDOConfig, VsphereCloudConfig};
use k8s_openapi::api::{
    admissionregistration::v1::{ValidatingAdmissionPolicy, ValidatingAdmissionPolicyBinding},
    core::v1::Secret,
};
use kube::{
    Api,
    api::{DeleteParams, PostParams},
};
use serde_json::{Value, json};
use testkit::{FaultProxy, User, eventually};
use tokio::time::sleep;

use crate::{
    cluster::objects,
    stage::{NAMESPACE, PASSWORD, Said, Stage},
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
    proxy.reset();
    let said = stage.vdoctl_reading(&arguments, PASSWORD);
    assert_eq!(said.code, 3, "{}", said.all());
    assert!(said.out.contains(&address), "{}", said.all());
}

/// Objects that are not in the cluster yet.
fn second(stage: &Stage) -> String {
    objects(stage, |all| {
        for object in all.as_array_mut().unwrap() {
            object["metadata"]["name"] = "second".into();
        }
        all[1]["spec"]["credentials"] = "second".into();
        all[2]["spec"]["storageProvider"]["vsphereCloudConfig"] = "second".into();
    })
}

/// Which of them are there.
async fn written(stage: &Stage) -> Vec<&'static str> {
    let client = stage.plane.client();
    let secrets = Api::<Secret>::namespaced(client.clone(), "kube-system");
    let vcenters = Api::<VsphereCloudConfig>::namespaced(client.clone(), NAMESPACE);
    let configs = Api::<VDOConfig>::namespaced(client, NAMESPACE);
    let there = [
        ("Secret", secrets.get_metadata_opt("second").await.unwrap().is_some()),
        ("VsphereCloudConfig", vcenters.get_metadata_opt("second").await.unwrap().is_some()),
        ("VDOConfig", configs.get_metadata_opt("second").await.unwrap().is_some()),
    ];
    there.into_iter().filter(|(_, there)| *there).map(|(kind, _)| kind).collect()
}

/// The last object is refused although it was accepted on trial: those before it are taken back.
pub(crate) async fn refused_in_the_middle(stage: &Stage) {
    stage.workdir.write("second.yaml", second(stage)).unwrap();
    let client = stage.plane.client();
    let policies = Api::<ValidatingAdmissionPolicy>::all(client.clone());
    let bindings = Api::<ValidatingAdmissionPolicyBinding>::all(client.clone());
    let policy = json!({
        "metadata": {"name": "only-on-trial"},
        "spec": {
            "failurePolicy": "Fail",
            "matchConstraints": {"resourceRules": [{
                "apiGroups": ["vdo.vmware.com"], "apiVersions": ["*"],
                "operations": ["CREATE", "UPDATE"], "resources": ["vdoconfigs"],
            }]},
            "validations": [{"expression": "request.dryRun", "message": "not today"}],
        },
    });
    let binding = json!({
        "metadata": {"name": "only-on-trial"},
        "spec": {"policyName": "only-on-trial", "validationActions": ["Deny"]},
    });
    let now = PostParams::default();
    policies.create(&now, &serde_json::from_value(policy).unwrap()).await.unwrap();
    bindings.create(&now, &serde_json::from_value(binding).unwrap()).await.unwrap();
    let configs = Api::<VDOConfig>::namespaced(client, NAMESPACE);
    let probe = json!({
        "metadata": {"name": "probe", "namespace": NAMESPACE},
        "spec": {"storageProvider": {"vsphereCloudConfig": "vc"}},
    });
    let probe: VDOConfig = serde_json::from_value(probe).unwrap();
    eventually("the policy is heeded", 60, async || match configs.create(&now, &probe).await {
        Err(error) if error.to_string().contains("not today") => Ok(()),
        Err(error) => Err(error.to_string()),
        Ok(_) => {
            configs.delete("probe", &DeleteParams::default()).await.unwrap();
            Err("it was created".to_owned())
        }
    })
    .await;

    let said = stage.vdoctl(&["configure", "-f", "second.yaml"]);
    assert_eq!(said.code, 1, "{}", said.all());
    assert!(said.err.contains("nothing was changed"), "{}", said.all());
    assert!(said.err.contains("not today"), "{}", said.all());
    assert_eq!(written(stage).await, Vec::<&str>::new());

    bindings.delete("only-on-trial", &DeleteParams::default()).await.unwrap();
    policies.delete("only-on-trial", &DeleteParams::default()).await.unwrap();
    eventually("the policy is gone", 60, async || configs.create(&now, &probe).await).await;
    configs.delete("probe", &DeleteParams::default()).await.unwrap();
}

/// The API server goes away once the first object is written. If it comes back, that one is taken back;
/// if not, it is named.
pub(crate) async fn away_in_the_middle(stage: &Stage) {
    let proxy = FaultProxy::before(stage.plane.address()).await;
    let admin = User::admin();
    let kubeconfig = stage.plane.kubeconfig_via(&admin, proxy.address());
    let kubeconfig = kubeconfig.display().to_string();
    for comes_back in [true, false] {
        let said = cut_off(stage, &proxy, &kubeconfig, comes_back).await;
        let there = written(stage).await;
        assert_eq!(said.code, 1, "{there:?}: {}", said.all());
        assert!(!said.all().contains(PASSWORD), "{}", said.all());
        if comes_back {
            assert_eq!(there, Vec::<&str>::new(), "{}", said.all());
            assert!(said.err.contains("nothing was changed"), "{}", said.all());
        } else {
            let flat = said.err.split_whitespace().collect::<Vec<_>>().join(" ");
            assert!(flat.contains("could not be taken back"), "{}", said.all());
            for kind in &there {
                assert!(flat.contains(&format!("{kind} ")), "{kind}: {}", said.all());
            }
        }
    }
    // The same again, once it answers, goes on from there.
    proxy.heal();
    let said = stage.vdoctl(&["configure", "-f", "second.yaml", "--kubeconfig", &kubeconfig]);
    assert_eq!(said.code, 0, "{}", said.all());
    assert_eq!(written(stage).await.len(), 3);

    // One that is there and says nothing is not waited for for ever.
    proxy.black_hole();
    let silent = ["status", "--kubeconfig", &kubeconfig, "--request-timeout", "1"];
    let said = stage.vdoctl(&silent);
    assert_eq!(said.code, 1, "{}", said.all());
    assert!(said.err.contains("kubectl cluster-info tells"), "{}", said.all());
}

/// Cuts the way to the API server once the first of the objects is written. On a slow way there is time
/// for that; should all be written before, the way gets slower.
async fn cut_off(stage: &Stage, proxy: &FaultProxy, kubeconfig: &str, comes_back: bool) -> Said {
    for slow in [150, 600, 2400] {
        proxy.delay(Duration::from_millis(slow));
        let command = ["configure", "-f", "second.yaml", "--kubeconfig", kubeconfig];
        let mut running = stage.command(&command);
        running.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut running = running.spawn().unwrap();
        while written(stage).await.is_empty() && running.try_wait().unwrap().is_none() {
            sleep(Duration::from_millis(10)).await;
        }
        proxy.cut();
        if comes_back {
            sleep(Duration::from_secs(1)).await;
            proxy.heal();
        }
        let ended = tokio::task::spawn_blocking(|| running.wait_with_output()).await.unwrap();
        let said = Said::from(ended.unwrap());
        if said.code != 0 {
            return said;
        }
        let (client, now) = (stage.plane.client(), DeleteParams::default());
        Api::<VDOConfig>::namespaced(client.clone(), NAMESPACE)
            .delete("second", &now)
            .await
            .unwrap();
        let vcenters = Api::<VsphereCloudConfig>::namespaced(client.clone(), NAMESPACE);
        vcenters.delete("second", &now).await.unwrap();
        Api::<Secret>::namespaced(client, "kube-system").delete("second", &now).await.unwrap();
    }
    panic!("it is always quicker");
}
