//! The Go controller's 8 cases of credentials in a Secret that is created, changed and deleted.

use std::collections::BTreeMap;

use cloud_controller::{
    addresses::Family,
    configuration::{CredentialSource, TrustSource, Vcenter},
    secrets::{self, CredentialState},
};
use k8s_openapi::{ByteString, api::core::v1::Secret};
use kube::{Api, api::DeleteParams, api::PostParams};
use testkit::eventually;
use tokio::{sync::watch, task::JoinSet};
use vsphere::Credentials;

use super::common::Stage;

const SERVER: &str = "0.0.0.0";
const SECOND: &str = "0.0.1.1";
const V6: &str = "fd01::1";
const NAMESPACE: &str = "kube-system";

/// `user/password`, or a part of the error.
type Expected = Result<&'static str, &'static str>;

pub(crate) const COUNT: usize = 8;

struct Row {
    case: &'static str,
    /// `None` if the Secret does not exist.
    secret: Option<Vec<(&'static str, &'static str)>>,
    known: Vec<(&'static str, Expected)>,
    /// Whether the Secret is deleted then. Credentials that were read stay in use.
    deleted: bool,
}

fn rows() -> Vec<Row> {
    let own = [("0.0.0.0.username", "user"), ("0.0.0.0.password", "password")];
    let and = |more: &[(&'static str, &'static str)]| Some([&own[..], more].concat());
    let row = |case, secret, known| Row { case, secret, known, deleted: false };
    let numbered = vec![
        ("username_0", "user"),
        ("password_0", "password"),
        ("server_0", SERVER),
        ("username_1", "user1"),
        ("password_1", "password1"),
        ("server_1", V6),
    ];
    vec![
        Row {
            case: "a Secret that is deleted",
            secret: and(&[]),
            known: vec![(SERVER, Ok("user/password"))],
            deleted: true,
        },
        row("a Secret", and(&[]), vec![(SERVER, Ok("user/password"))]),
        row("no Secret", None, vec![(SERVER, Err("does not exist"))]),
        row(
            "an empty Secret",
            Some(vec![]),
            vec![(SERVER, Err("contains no vCenter credentials"))],
        ),
        row("another server", and(&[]), vec![("1.1.1.1", Err("none for 1.1.1.1"))]),
        row(
            "two vCenters",
            and(&[("0.0.1.1.username", "user1"), ("0.0.1.1.password", "password1")]),
            vec![(SECOND, Ok("user1/password1"))],
        ),
        // The Go controller uses the session manager; ours does not support it.
        row(
            "two vCenters, one by a session manager",
            and(&[
                ("0.0.1.1.vc-session-manager-url", "https://manager.example/session"),
                ("0.0.1.1.vc-session-manager-token", "token"),
            ]),
            vec![(SECOND, Err("add user and password"))],
        ),
        row(
            "by number, for addresses that cannot be part of a key",
            Some(numbered),
            vec![(SERVER, Ok("user/password")), (V6, Ok("user1/password1"))],
        ),
    ]
}

/// Watches a Secret for one server, as a pooled vCenter does.
fn watch_secret(
    stage: &Stage,
    tasks: &mut JoinSet<()>,
    secret: &str,
    server: &str,
) -> watch::Receiver<CredentialState> {
    let vcenter = Vcenter {
        name: server.into(),
        server: server.into(),
        trust: TrustSource::System,
        datacenters: Vec::new(),
        families: vec![Family::V4],
        credentials: CredentialSource::Secret(NAMESPACE.into(), secret.into()),
    };
    let (known, seen) = watch::channel(CredentialState::default());
    tasks.spawn(secrets::watch_credentials(vcenter, stage.plane.client(), known));
    seen
}

async fn until(case: &str, seen: &watch::Receiver<CredentialState>, expected: Expected) {
    eventually(case, 60, async || {
        let known = seen.borrow().clone();
        let is = match (&known, expected) {
            (CredentialState::Usable(usable), Ok(pair)) => {
                let (user, password) = pair.split_once('/').unwrap();
                *usable == Credentials::new(user, password)
            }
            (CredentialState::Unusable(why), Err(text)) => why.contains(text),
            _ => false,
        };
        if is { Ok(()) } else { Err(format!("{known:?}, not {expected:?}")) }
    })
    .await;
}

/// Checks each row with its own Secret.
pub(crate) async fn check(stage: &Stage) {
    let rows = rows();
    assert_eq!(rows.len(), COUNT);
    let api = Api::<Secret>::namespaced(stage.plane.client(), NAMESPACE);
    let mut tasks = JoinSet::new();
    for (number, row) in rows.into_iter().enumerate() {
        let name = format!("credentials-{number}");
        if let Some(content) = &row.secret {
            let value = |text: &str| ByteString(text.as_bytes().to_vec());
            let data: BTreeMap<_, _> =
                content.iter().map(|(key, text)| ((*key).to_owned(), value(text))).collect();
            let mut secret = Secret { data: Some(data), ..Secret::default() };
            secret.metadata.name = Some(name.clone());
            api.create(&PostParams::default(), &secret).await.unwrap();
        }
        for (server, expected) in row.known {
            let seen = watch_secret(stage, &mut tasks, &name, server);
            until(row.case, &seen, expected).await;
            if row.deleted {
                api.delete(&name, &DeleteParams::default()).await.unwrap();
                // A new watch gets the error; the old one keeps the credentials.
                let late = watch_secret(stage, &mut tasks, &name, server);
                until(row.case, &late, Err("does not exist")).await;
                until(row.case, &seen, expected).await;
            }
        }
    }
}
