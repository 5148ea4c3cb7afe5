//! `vdoctl configure` on a terminal, question by question.

use api::{VDOConfig, VsphereCloudConfig};
use k8s_openapi::api::core::v1::Secret;
use kube::{Api, api::DeleteParams};

use crate::{
    cluster::nothing_is_there,
    stage::{NAMESPACE, PASSWORD, Stage},
    terminal::Terminal,
};

/// The questions in their order, and how they are answered.
fn questions(stage: &Stage) -> Vec<(&'static str, String)> {
    vec![
        ("vCenter:", format!("{}\r", stage.vcenter.address())),
        ("User:", "vdo@vsphere.local\r".into()),
        ("Password:", format!("{PASSWORD}\r")),
        ("Trust this certificate?", "y\r".into()),
        ("another vCenter too?", "\r".into()),
        ("Install the cloud provider?", "n\r".into()),
        ("names zones:", "\r".into()),
        ("names regions:", "\r".into()),
        ("Write this to the cluster?", "y\r".into()),
    ]
}

/// Ctrl-C at each question leaves nothing behind.
pub(crate) async fn interrupted_anywhere(stage: &Stage) {
    let questions = questions(stage);
    for last in 0..questions.len() {
        let mut terminal = Terminal::run(stage.command(&["configure"]), 80);
        for (question, answer) in &questions[..last] {
            terminal.expect(question).await;
            terminal.types(answer);
        }
        terminal.expect(questions[last].0).await;
        terminal.types("\x03");
        let (status, shown) = terminal.ends().await;
        assert_eq!(status.code(), Some(130), "{}: {shown}", questions[last].0);
        assert!(shown.contains("nothing was changed"), "{}: {shown}", questions[last].0);
        assert!(!shown.contains(PASSWORD), "{shown}");
        nothing_is_there(stage, questions[last].0).await;
    }
}

/// A wrong password is asked for again, alone; then all goes well.
pub(crate) async fn corrected_and_finished(stage: &Stage) {
    let mut terminal = Terminal::run(stage.command(&["configure"]), 60);
    for (question, answer) in questions(stage) {
        terminal.expect(question).await;
        if question == "Trust this certificate?" {
            // It was shown before any password was sent.
            assert!(terminal.shown().contains("SHA-256"), "{}", terminal.shown());
            terminal.types(&answer);
            continue;
        }
        if question == "Password:" {
            terminal.types("not the password\r");
            terminal.expect("Trust this certificate?").await;
            terminal.types("y\r");
            terminal.expect("does not let vdo@vsphere.local log in").await;
            terminal.expect("User:").await;
            terminal.types("\r");
            terminal.expect("Password:").await;
            terminal.types(&answer);
            // The certificate is trusted already.
            terminal.expect("another vCenter too?").await;
            terminal.types("\r");
            break;
        }
        terminal.types(&answer);
    }
    for (question, answer) in questions(stage).into_iter().skip(5) {
        terminal.expect(question).await;
        terminal.types(&answer);
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
    let secrets = Api::<Secret>::namespaced(client, "kube-system");
    let secret = secrets.get("vcenter").await.unwrap();
    assert_eq!(secret.data.unwrap()["password"].0, PASSWORD.as_bytes());

    let now = DeleteParams::default();
    configs.delete("vdo", &now).await.unwrap();
    vcenters.delete("vcenter", &now).await.unwrap();
    secrets.delete("vcenter", &now).await.unwrap();
}
