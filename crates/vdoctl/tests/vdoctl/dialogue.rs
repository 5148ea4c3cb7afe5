//! `vdoctl configure` on a terminal, question by question.

use api::{VDOConfig, VsphereCloudConfig};
use k8s_openapi::api::core::v1::Secret;
use kube::{
    Api, ResourceExt as _,
    api::{DeleteParams, ListParams},
};
use testkit::{Datacenter, Vcenter};

use crate::{
    cluster::{assert_nothing_written, objects},
    releases,
    stage::{NAMESPACE, PASSWORD, Stage, inventory},
    terminal::Terminal,
};

/// A unique part of a question, and the answer.
type Answered = (&'static str, String);

fn questions(stage: &Stage) -> Vec<Answered> {
    let mut questions = log_in(&stage.vcenter).to_vec();
    questions.extend([
        ("use another vCenter?", "\r".into()),
        ("Install the cloud provider?", "n\r".into()),
        ("for zones:", "\r".into()),
        ("for regions:", "\r".into()),
        ("Default StorageClass:", "\r".into()),
        ("Write this to the cluster?", "y\r".into()),
    ]);
    questions
}

fn log_in(vcenter: &Vcenter) -> [Answered; 4] {
    [
        ("vCenter:", format!("{}\r", vcenter.address())),
        ("User:", "vdo@vsphere.local\r".into()),
        ("Password:", format!("{PASSWORD}\r")),
        ("Trust this certificate?", "y\r".into()),
    ]
}

/// Answers all but the last of these questions.
async fn asked(stage: &Stage, columns: u16, before: &[Answered], last: &str) -> Terminal {
    let mut terminal = Terminal::run(&stage.command(&["configure"]), columns);
    for (question, answer) in before {
        terminal.expect(question).await;
        terminal.types(answer);
    }
    terminal.expect(last).await;
    terminal
}

/// A path to every question.
fn paths_to_questions(stage: &Stage, other: &Vcenter) -> Vec<Vec<Answered>> {
    let straight = questions(stage);
    let mut refused = straight[..4].to_vec();
    refused[2].1 = "not the password\r".into();
    refused.extend([("User:", "\r".into()), ("Password:", String::new())]);
    let mut elsewhere = straight[..3].to_vec();
    elsewhere[0].1 = "127.0.0.1:1\r".into();
    elsewhere.extend([("Try another address", "y\r".into()), ("vCenter:", String::new())]);
    let mut two = straight[..4].to_vec();
    two.push(("use another vCenter?", "y\r".into()));
    two.extend(log_in(other));
    two.push(("Datacenters with nodes or volumes:", "\r".into()));
    two.push(("use another vCenter?", String::new()));
    // Skips questions that an earlier path has covered.
    let rest = |way: Vec<Answered>, known: usize| {
        (known..way.len()).map(move |last| way[..=last].to_vec()).collect::<Vec<_>>()
    };
    [rest(straight, 0), rest(refused, 4), rest(elsewhere, 3), rest(two, 5)].concat()
}

/// After Ctrl-C at any question, nothing is written.
pub(crate) async fn interrupted_anywhere(stage: &Stage, other: &Vcenter) {
    let paths_to_questions = paths_to_questions(stage, other);
    let asked_at =
        |text: &str| paths_to_questions.iter().filter(|way| way.last().unwrap().0 == text).count();
    assert_eq!((asked_at("User:"), asked_at("Datacenters with nodes or volumes:")), (3, 1));
    for way in &paths_to_questions {
        let (last, before) = way.split_last().unwrap();
        let mut terminal = asked(stage, 80, before, last.0).await;
        terminal.types("\x03");
        let (status, shown) = terminal.ends().await;
        let place = format!("{} after {} questions", last.0, before.len());
        assert_eq!(status.code(), Some(130), "{place}: {shown}");
        assert!(shown.contains("nothing was changed"), "{place}: {shown}");
        assert!(!shown.contains(PASSWORD), "{place}: {shown}");
        assert_nothing_written(stage, &place).await;
    }
}

/// Questions after flags or a file. After Ctrl-C, nothing is written.
pub(crate) async fn interrupted_without_a_dialogue(stage: &Stage) {
    stage.workdir.write("password", PASSWORD).unwrap();
    let untrusted = objects(stage, |all| {
        all[1]["spec"].as_object_mut().unwrap().remove("thumbprint");
    });
    stage.workdir.write("untrusted.yaml", untrusted).unwrap();
    let address = stage.vcenter.address().to_string();
    let flags = ["--vcenter", &address, "--user", "vdo@vsphere.local"];
    let flags = [&["configure"], &flags[..], &["--password-file", "password"]].concat();
    stage.vcenter.forget_calls().await;
    for line in [&flags[..], &["configure", "-f", "untrusted.yaml"]] {
        releases::interrupted_at(stage, line, "Trust this certificate?").await;
        assert_nothing_written(stage, &format!("{line:?}")).await;
    }
    assert_eq!(stage.vcenter.calls().await.count("Login"), 0, "no password was sent");
}

/// The user can correct a wrong address, or give up.
pub(crate) async fn no_vcenter_there(stage: &Stage) {
    let mut before = questions(stage)[..3].to_vec();
    before[0].1 = "127.0.0.1:1\r".into();
    let mut terminal = asked(stage, 80, &before, "Try another address than 127.0.0.1:1?").await;
    terminal.types("n\r");
    let (status, shown) = terminal.ends().await;
    assert_eq!(status.code(), Some(1), "{shown}");
    assert!(shown.contains("vCenter 127.0.0.1:1 cannot be used"), "{shown}");
    assert_nothing_written(stage, "nobody was there").await;
}

/// vdoctl shows the certificate before it sends a password. If the user declines, the command ends.
pub(crate) async fn certificate_declined(stage: &Stage) {
    stage.vcenter.forget_calls().await;
    let questions = questions(stage);
    let mut terminal = asked(stage, 120, &questions[..3], questions[3].0).await;
    let shown = terminal.shown();
    assert!(shown.contains("SHA-256"), "{shown}");
    assert!(shown.contains(&stage.vcenter.thumbprint_sha256()), "{shown}");
    assert_eq!(stage.vcenter.calls().await.count("Login"), 0, "nothing was sent so far");
    terminal.types("n\r");
    let (status, shown) = terminal.ends().await;
    assert_eq!(status.code(), Some(1), "{shown}");
    assert!(shown.contains("nothing was changed"), "{shown}");
    assert_eq!(stage.vcenter.calls().await.count("Login"), 0, "nor was anything later");
    assert_nothing_written(stage, "it was not trusted").await;
}

/// `--quiet` does not hide the certificate.
pub(crate) async fn quiet_shows_the_certificate(stage: &Stage) {
    stage.workdir.write("password", PASSWORD).unwrap();
    let address = stage.vcenter.address().to_string();
    let flags = ["--vcenter", &address, "--user", "vdo@vsphere.local"];
    let more = ["--password-file", "password", "--quiet"];
    let arguments = [&["configure"], &flags[..], &more].concat();
    let mut terminal = Terminal::run(&stage.command(&arguments), 120);
    terminal.expect("Trust this certificate?").await;
    let shown = terminal.shown();
    assert!(shown.contains(&stage.vcenter.thumbprint_sha256()), "{shown}");
    assert!(shown.contains("Compare the thumbprint"), "{shown}");
    terminal.types("n\r");
    let (status, shown) = terminal.ends().await;
    assert_eq!(status.code(), Some(1), "{shown}");
    assert_nothing_written(stage, "it was not trusted").await;
}

/// vdoctl asks again for a wrong password.
pub(crate) async fn corrected_and_finished(stage: &Stage) {
    let questions = questions(stage);
    let mut terminal = asked(stage, 60, &questions[..2], "Password:").await;
    terminal.types("not the password\r");
    terminal.expect("Trust this certificate?").await;
    // A narrow terminal breaks lines but shows everything.
    let shown: String = terminal.shown().split_whitespace().collect();
    assert!(shown.contains("SHA-256"), "{shown}");
    assert!(shown.contains(&stage.vcenter.thumbprint_sha256()), "{shown}");
    terminal.types("y\r");
    terminal.expect("does not let vdo@vsphere.local log in").await;
    for (question, answer) in [
        ("User:", "\r"),
        ("Password:", questions[2].1.as_str()),
        // The certificate is already trusted.
        ("use another vCenter?", "\r"),
    ] {
        terminal.expect(question).await;
        terminal.types(answer);
    }
    let shown = anstream::adapter::strip_str(&terminal.shown()).to_string();
    assert_eq!(shown.matches("Trust this certificate? Yes").count(), 1, "{shown}");
    for (question, answer) in &questions[5..] {
        terminal.expect(question).await;
        terminal.types(answer);
    }
    let (status, shown) = terminal.ends().await;
    assert!(status.success(), "{shown}");
    assert!(!shown.contains(PASSWORD) && !shown.contains("not the password"), "{shown}");

    let client = stage.plane.client();
    let configs = Api::<VDOConfig>::namespaced(client.clone(), NAMESPACE);
    let config = configs.get("vdo").await.unwrap();
    let storage = config.spec.storage_provider.clone().unwrap();
    let categories: Vec<&str> = storage.topology_categories.iter().map(|c| c.0.as_str()).collect();
    assert_eq!(categories, ["k8s-region", "k8s-zone"]);
    assert!(config.spec.cloud_provider.is_none());
    let vcenters = Api::<VsphereCloudConfig>::namespaced(client.clone(), NAMESPACE);
    let vcenter = vcenters.get("vcenter").await.unwrap();
    assert_eq!(vcenter.spec.thumbprint.unwrap().0, stage.vcenter.thumbprint_sha256());
    assert_eq!(vcenter.spec.datacenters, ["DC0"]);
    let secrets = Api::<Secret>::namespaced(client, NAMESPACE);
    let secret = secrets.get("vcenter").await.unwrap();
    assert_eq!(secret.data.unwrap()["password"].0, PASSWORD.as_bytes());

    delete_written_objects(stage).await;
}

/// Deletes the objects of a dialogue.
async fn delete_written_objects(stage: &Stage) {
    let (client, all) = (stage.plane.client(), ListParams::default());
    let now = DeleteParams::default();
    let configs = Api::<VDOConfig>::namespaced(client.clone(), NAMESPACE);
    configs.delete_collection(&now, &all).await.unwrap();
    let vcenters = Api::<VsphereCloudConfig>::namespaced(client.clone(), NAMESPACE);
    for vcenter in vcenters.list(&all).await.unwrap() {
        let secrets = Api::<Secret>::namespaced(client.clone(), NAMESPACE);
        secrets.delete(&vcenter.spec.credentials.0, &now).await.unwrap();
        vcenters.delete(&vcenter.name_any(), &now).await.unwrap();
    }
    assert_nothing_written(stage, "it was taken away").await;
}

pub(crate) async fn another_vcenter() -> Vcenter {
    let mut there = inventory(1);
    there.datacenters.push(Datacenter { name: "DC1".into(), ..Datacenter::default() });
    Vcenter::start(there).await
}

/// A cluster on two vCenters, with the cloud provider and a StorageClass on a discovered datastore.
pub(crate) async fn two_vcenters(stage: &Stage, other: &Vcenter) {
    let mut terminal = Terminal::run(&stage.command(&["configure"]), 100);
    for (question, answer) in log_in(&stage.vcenter) {
        terminal.expect(question).await;
        terminal.types(&answer);
    }
    terminal.expect("use another vCenter?").await;
    terminal.types("y\r");
    for (question, answer) in log_in(other) {
        terminal.expect(question).await;
        terminal.types(&answer);
    }
    // Keeps the first datacenter and deselects the second.
    terminal.expect("Datacenters with nodes or volumes:").await;
    terminal.expect("DC1").await;
    terminal.types("\x1b[B \r");
    terminal.expect("use another vCenter?").await;
    terminal.types("n\r");
    for (question, answer) in [
        ("Install the cloud provider?", "y\r"),
        ("for zones:", "\r"),
        ("for regions:", "\r"),
        // The first datastore, below "none" and "any".
        ("Default StorageClass:", "\x1b[B\x1b[B\r"),
        ("Write this to the cluster?", "y\r"),
    ] {
        terminal.expect(question).await;
        terminal.types(answer);
    }
    let (status, shown) = terminal.ends().await;
    assert!(status.success(), "{shown}");
    assert!(!shown.contains(PASSWORD), "{shown}");

    let client = stage.plane.client();
    let config = Api::<VDOConfig>::namespaced(client.clone(), NAMESPACE).get("vdo").await.unwrap();
    let cloud = config.spec.cloud_provider.clone().unwrap();
    let names: Vec<&str> = cloud.vsphere_cloud_configs.iter().map(|name| name.0.as_str()).collect();
    assert_eq!(names, ["vcenter", "vcenter-2"]);
    let topology = cloud.topology.unwrap();
    assert_eq!((topology.zone.as_str(), topology.region.as_str()), ("k8s-zone", "k8s-region"));
    let storage = config.spec.storage_provider.clone().unwrap();
    assert_eq!(storage.vsphere_cloud_configs.len(), 2, "{storage:?}");
    let class = &storage.storage_classes[0];
    assert_eq!((class.name.0.as_str(), class.default), ("vsphere", Some(true)));
    let url = class.datastore_url.clone().unwrap().0;
    assert!(url.starts_with("ds:///"), "{url}");
    let vcenters = Api::<VsphereCloudConfig>::namespaced(client, NAMESPACE);
    let second = vcenters.get("vcenter-2").await.unwrap();
    assert_eq!(second.spec.vc_ip.0, other.address().to_string());
    assert_eq!(second.spec.datacenters, ["DC0"]);
    flags_keep_other_fields(stage).await;
    delete_written_objects(stage).await;
}

/// Flags for one of two vCenters keep the other vCenter, the zones and other fields.
async fn flags_keep_other_fields(stage: &Stage) {
    let client = stage.plane.client();
    let configs = Api::<VDOConfig>::namespaced(client.clone(), NAMESPACE);
    let vcenters = Api::<VsphereCloudConfig>::namespaced(client, NAMESPACE);
    let address = stage.vcenter.address().to_string();
    let flags = ["--vcenter", &address, "--user", "vdo@vsphere.local", "--password-file", "-"];
    let arguments = [&["configure"], &flags[..]].concat();
    let config = configs.get("vdo").await.unwrap().spec;
    // The certificate authority instead of the thumbprint.
    stage.workdir.write("ca.pem", stage.vcenter.ca_pem()).unwrap();
    let authority = [&arguments[..], &["--ca-file", "ca.pem"]].concat();
    let output = stage.vdoctl_reading(&authority, PASSWORD);
    assert_eq!(output.code, 0, "{}", output.all());
    assert!(vcenters.get("vcenter").await.unwrap().spec.thumbprint.is_none());
    assert_eq!(configs.get("vdo").await.unwrap().spec, config, "{}", output.all());
    let all = ListParams::default();
    let seen = async || {
        let config = configs.get("vdo").await.unwrap().spec;
        let vcenters = vcenters.list(&all).await.unwrap();
        let specs: Vec<_> = vcenters.into_iter().map(|vcenter| vcenter.spec).collect();
        serde_json::to_value((config, specs)).unwrap()
    };
    let before = seen().await;
    assert!(before.to_string().contains("caBundle"), "{before}");
    let output = stage.vdoctl_reading(&arguments, PASSWORD);
    assert_eq!(output.code, 0, "{}", output.all());
    assert_eq!(seen().await, before, "{}", output.all());

    // Given values change.
    let more = ["--thumbprint", &stage.vcenter.thumbprint_sha256(), "--zone", "k8s-region"];
    let arguments = [&arguments[..], &more, &["--region", "k8s-zone"]].concat();
    let output = stage.vdoctl_reading(&arguments, PASSWORD);
    assert_eq!(output.code, 0, "{}", output.all());
    let vcenter = vcenters.get("vcenter").await.unwrap().spec;
    assert_eq!(vcenter.thumbprint.unwrap().0, stage.vcenter.thumbprint_sha256());
    assert!(vcenter.ca_bundle.is_none(), "one way to trust it takes the place of another");
    let cloud = configs.get("vdo").await.unwrap().spec.cloud_provider.unwrap();
    assert_eq!(cloud.topology.unwrap().zone, "k8s-region");
    assert_eq!(cloud.vsphere_cloud_configs.len(), 2);
}

/// The dialogue offers the existing values, shows changes, and keeps other fields.
pub(crate) async fn editing_shows_changes(stage: &Stage) {
    let configs = Api::<VDOConfig>::namespaced(stage.plane.client(), NAMESPACE);
    let before = configs.get("vdo").await.unwrap();
    let edit = async |answer: &str| {
        let mut terminal = Terminal::run(&stage.command(&["configure"]), 100);
        for (question, answer) in [
            ("vCenter:", "\r"),
            ("User:", "vdo@vsphere.local\r"),
            ("Password:", &format!("{PASSWORD}\r")),
            // Its certificate is already trusted.
            ("use another vCenter?", "\r"),
            ("Install the cloud provider?", "\r"),
            ("for zones:", "\r"),
            ("for regions:", "\r"),
            ("Default StorageClass:", "\x1b[B\r"),
            ("Write this to the cluster?", answer),
        ] {
            terminal.expect(question).await;
            terminal.types(answer);
        }
        let (status, shown) = terminal.ends().await;
        (status.code(), anstream::adapter::strip_str(&shown).to_string())
    };
    let (code, shown) = edit("n\r").await;
    assert_eq!(code, Some(1), "{shown}");
    for line in
        ["same Secret", "changed VDOConfig", "+     storageClasses:", "+     topologyCategories:"]
    {
        assert!(shown.contains(line), "{line}: {shown}");
    }
    assert!(shown.contains("nothing was changed"), "{shown}");
    assert_eq!(configs.get("vdo").await.unwrap().spec, before.spec);

    let (code, shown) = edit("y\r").await;
    assert_eq!(code, Some(0), "{shown}");
    let after = configs.get("vdo").await.unwrap();
    assert_eq!(after.spec.upgrades, before.spec.upgrades, "nobody was asked about it");
    assert_eq!(after.spec.storage_provider.unwrap().storage_classes.len(), 1);
}
