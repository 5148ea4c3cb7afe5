//! Accounts, certificate authorities and proxies.

use oci::{Archive, Client, ClientOptions, Credentials, Error, Silent, Target};
use testkit::{Registry, Workdir};

use crate::{
    connect_proxy::connect_proxy,
    front::{Behaviour, Front, login},
    images::{crane, plain, push, wanted},
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

/// Imports an archive through a front with TLS, with the credentials of the front and these authorities.
async fn import(
    front: &Front,
    workdir: &Workdir,
    archive: &Archive,
    authorities: &[&Front],
) -> Result<(), Error> {
    let authorities = authorities.iter().filter_map(|front| front.authority.clone());
    let options = ClientOptions {
        credentials: credentials(workdir, &login(&front.address.to_string())),
        authorities: Some(authorities.collect::<String>().into_bytes()),
        ..ClientOptions::default()
    };
    let target = Target::parse(&format!("{}/team", front.address)).unwrap();
    oci::import(&Client::new(options)?, archive, &target, &mut Silent).await.map(drop)
}

#[tokio::test]
async fn the_place_of_an_upload_gets_credentials_only_if_it_is_the_registry() {
    let workdir = Workdir::new("uploads").unwrap();
    let registry = Registry::start().await;
    let digest = push(&registry, &workdir, "vdo");
    let path = workdir.path().join("bundle.tar");
    let wanted = wanted(&["vdo"], &registry.address().to_string());
    oci::export(&plain(), &wanted, &path, &mut Silent).await.unwrap();
    let archive = Archive::open(&path).unwrap();

    // Without TLS, everybody on the way could read the credentials.
    let site = Registry::start().await;
    let thief = Front::before(site.address(), Behaviour::default()).await;
    let uploads = Some(format!("http://{}", thief.address));
    let behaviour = Behaviour { basic: true, uploads, ..Behaviour::default() };
    let front = Front::with_tls(site.address(), behaviour).await;
    let refused = import(&front, &workdir, &archive, &[&front]).await.unwrap_err();
    assert!(matches!(refused, Error::UploadPlace { .. }), "{refused}");
    let (shown, help) = (refused.to_string(), refused.help().unwrap());
    assert!(shown.contains(&thief.address.to_string()), "{shown}");
    assert!(help.contains("https://"), "{help}");
    assert_eq!(thief.requests(), Vec::<String>::new());

    // A storage service next to the registry knows the client by the address of the upload.
    let storage = Front::with_tls(site.address(), Behaviour::default()).await;
    let uploads = Some(format!("https://{}", storage.address));
    front.set(Behaviour { basic: true, uploads: uploads.clone(), ..Behaviour::default() });
    import(&front, &workdir, &archive, &[&front, &storage]).await.unwrap();
    let uploaded = storage.requests();
    assert!(uploaded.iter().any(|request| request.starts_with("PUT /v2/team/vdo/blobs/uploads/")));
    assert_eq!(storage.authorized(), Vec::<String>::new());
    let image = format!("{}/team/vdo:1", site.address());
    assert_eq!(crane(&["digest", "--insecure", &image]), digest.to_string());

    // It does not get them on demand either.
    let other = Registry::start().await;
    let storage = Behaviour { basic: true, ..Behaviour::default() };
    let storage = Front::with_tls(other.address(), storage).await;
    let uploads = Some(format!("https://{}", storage.address));
    let behaviour = Behaviour { basic: true, uploads, ..Behaviour::default() };
    let front = Front::with_tls(other.address(), behaviour).await;
    let refused = import(&front, &workdir, &archive, &[&front, &storage]).await.unwrap_err();
    assert!(refused.to_string().contains("401 Unauthorized"), "{refused}");
    assert_eq!(storage.authorized(), Vec::<String>::new());
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
