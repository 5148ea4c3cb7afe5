//! Accounts, certificate authorities and proxies.

use oci::{Client, ClientOptions, Credentials, Error, Silent};
use testkit::{Registry, Workdir};

use crate::{
    connect_proxy::connect_proxy,
    front::{Behaviour, Front, login},
    images::{push, wanted},
};

/// Exports an image through a front, with these options.
async fn export(front: &Front, workdir: &Workdir, options: ClientOptions) -> Result<(), Error> {
    let wanted = wanted(&["vdo"], &front.address.to_string());
    let path = workdir.path().join("bundle.tar");
    let client = Client::new(options)?;
    oci::export(&client, &wanted, &path, &mut Silent).await.map(drop)
}

fn credentials(workdir: &Workdir, text: &str) -> Credentials {
    Credentials::read(&workdir.write("auth.json", text).unwrap()).unwrap()
}

#[tokio::test]
async fn a_registry_with_accounts_serves_only_the_account() {
    let workdir = Workdir::new("accounts").unwrap();
    let registry = Registry::start().await;
    push(&registry, &workdir, "vdo");
    for (basic, tokens) in [(true, false), (false, true)] {
        let behaviour = Behaviour { basic, tokens, ..Behaviour::default() };
        let front = Front::before(registry.address(), behaviour).await;
        let host = front.address.to_string();
        let plain = |credentials| ClientOptions {
            credentials,
            plain_http: true,
            ..ClientOptions::default()
        };

        let refused = export(&front, &workdir, plain(Credentials::default())).await.unwrap_err();
        assert!(refused.to_string().contains("requires credentials"), "{refused}");
        assert!(refused.help().unwrap().contains(&format!("docker login {host}")));
        let wrong =
            format!(r#"{{"auths": {{"{host}": {{"username": "robot", "password": "not-it"}}}}}}"#);
        let refused =
            export(&front, &workdir, plain(credentials(&workdir, &wrong))).await.unwrap_err();
        let shown = format!("{refused} {refused:?}");
        assert!(refused.help().unwrap().contains("rejects the credentials"), "{shown}");
        assert!(!shown.contains("not-it"), "{shown}");
        // The password of another registry is not sent.
        let other = credentials(&workdir, &login("other.example.com"));
        let refused = export(&front, &workdir, plain(other)).await.unwrap_err();
        assert!(matches!(refused, Error::Unauthorized { anonymous: true, .. }), "{refused}");

        let right = credentials(&workdir, &login(&host));
        export(&front, &workdir, plain(right)).await.unwrap();
    }
}

#[tokio::test]
async fn a_registry_with_tls_cannot_send_the_password_to_a_service_without_tls() {
    let workdir = Workdir::new("realm").unwrap();
    let registry = Registry::start().await;
    push(&registry, &workdir, "vdo");
    let thief = Front::before(registry.address(), Behaviour::default()).await;
    let realm = Some(format!("http://{}/token", thief.address));
    let behaviour = Behaviour { tokens: true, realm, ..Behaviour::default() };
    let front = Front::with_tls(registry.address(), behaviour).await;
    let options = ClientOptions {
        credentials: credentials(&workdir, &login(&front.address.to_string())),
        authorities: front.authority.clone().map(String::into_bytes),
        ..ClientOptions::default()
    };
    let refused = export(&front, &workdir, options).await.unwrap_err();
    assert!(matches!(refused, Error::Realm { .. }), "{refused}");
    assert_eq!(thief.requests(), Vec::<String>::new());
}

#[tokio::test]
async fn only_a_trusted_registry_is_used_and_a_proxy_leads_to_it() {
    let workdir = Workdir::new("proxy").unwrap();
    let registry = Registry::start().await;
    push(&registry, &workdir, "vdo");
    let front = Front::with_tls(registry.address(), Behaviour::default()).await;
    let refused = export(&front, &workdir, ClientOptions::default()).await.unwrap_err();
    assert!(matches!(refused, Error::Unreachable { .. }), "{refused}");
    assert!(refused.help().unwrap().contains("--ca-file"));
    assert_eq!(front.requests(), Vec::<String>::new());

    let authorities = front.authority.clone().map(String::into_bytes);
    let (proxy, targets, _tasks) = connect_proxy().await;
    let options = ClientOptions { authorities, proxy: Some(proxy), ..ClientOptions::default() };
    export(&front, &workdir, options).await.unwrap();
    let targets = targets.lock().unwrap().clone();
    assert!(
        !targets.is_empty() && targets.iter().all(|to| *to == front.address.to_string()),
        "{targets:?}"
    );
}
