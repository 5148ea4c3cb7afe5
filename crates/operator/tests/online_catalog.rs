//! A signed catalog from a web server and from a real container registry: over TLS with the authority of a site, and
//! through a proxy. The server also does everything that a broken or hostile one does.
#![allow(clippy::unwrap_used, reason = "a failed unwrap fails the test")]

mod common;

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex},
};

use api::CompatibilityConfig;
use base64::{Engine as _, engine::general_purpose::STANDARD};
use catalog::{
    Driver, Implementation,
    trust::{Bundle, MAX_BUNDLE_BYTES, MEDIA_TYPE, SigningKey},
};
use common::{NAMESPACE, Testbed};
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::Secret;
use kube::{
    Api,
    api::{Patch, PatchParams, PostParams},
};
use oci::{Artifact, ClientOptions, Digest};
use rustls::pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject as _};
use serde_json::{Value, json};
use testkit::{Authority, Registry, eventually};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _, copy_bidirectional},
    net::{TcpListener, TcpStream},
    task::JoinSet,
};
use tokio_rustls::{TlsAcceptor, server::TlsStream};

/// Names that only the proxy knows.
const HOST: &str = "catalog.test";
const REGISTRY: &str = "registry.test";
/// A release that the embedded catalog lacks.
const RELEASE: &str = "3.7.99";

/// The embedded catalog with another release.
fn catalog_with_release(serial: u64, expires: Timestamp) -> String {
    let mut catalog = catalog::embedded().clone();
    let model = "3.7.3".parse().unwrap();
    let mut release = catalog.find(Driver::Csi, Implementation::Upstream, &model).unwrap().clone();
    release.version = RELEASE.parse().unwrap();
    release.kubernetes.max = "1.36".parse().unwrap();
    catalog.releases.push(release);
    (catalog.serial, catalog.expires) = (serial, Some(expires));
    catalog.issued = expires - SignedDuration::from_hours(48);
    catalog::write(&catalog)
}

fn signed(serial: u64, keys: &[SigningKey]) -> String {
    let expires = Timestamp::now() + SignedDuration::from_hours(24);
    Bundle::sign(catalog_with_release(serial, expires).as_bytes(), keys).to_json()
}

/// The answer to a path.
#[derive(Clone)]
enum Answer {
    Text(String),
    /// A text with a tag: a client that has this tag does not get the text again.
    Tagged(String, &'static str),
    Redirect(&'static str),
    /// More and more of a catalog, without an end.
    Endless,
    /// The head, and then nothing.
    Silent,
}

struct Server {
    answers: Arc<Mutex<BTreeMap<String, Answer>>>,
    /// The tagged texts that were sent, and `304` instead of one that the client has.
    tagged: Arc<Mutex<Vec<u16>>>,
    proxy: String,
    /// The targets that the proxy was asked for.
    targets: Arc<Mutex<Vec<String>>>,
    authority: String,
    registry: Registry,
    _tasks: JoinSet<()>,
}

impl Server {
    /// A web server, a registry, and a proxy that leads to them.
    async fn start() -> Self {
        testkit::install_tls_provider();
        let authority = Authority::new("site").unwrap();
        let identity = authority.server(&[HOST, REGISTRY]).unwrap();
        let chain = CertificateDer::from_pem_slice(identity.certificate.as_bytes()).unwrap();
        let key = PrivateKeyDer::from_pem_slice(identity.key.as_bytes()).unwrap();
        let config = rustls::ServerConfig::builder().with_no_client_auth();
        let config = config.with_single_cert(vec![chain], key).unwrap();
        let acceptor = TlsAcceptor::from(Arc::new(config));
        let answers: Arc<Mutex<BTreeMap<String, Answer>>> = Arc::default();
        let targets: Arc<Mutex<Vec<String>>> = Arc::default();
        let server = TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
        let address = server.local_addr().unwrap();
        let registry = Registry::start().await;
        let registry_behind_tls = TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
        let registry_address = registry_behind_tls.local_addr().unwrap();
        let proxy = TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
        let proxy_address = format!("http://{}", proxy.local_addr().unwrap());
        let mut tasks = JoinSet::new();
        let (behind, tls) = (registry.front(), acceptor.clone());
        tasks.spawn(async move {
            let mut connections = JoinSet::new();
            while let Ok((client, _)) = registry_behind_tls.accept().await {
                let tls = tls.clone();
                connections.spawn(async move {
                    let Ok(mut client) = tls.accept(client).await else { return };
                    let mut registry = TcpStream::connect(behind).await.unwrap();
                    let _ = copy_bidirectional(&mut client, &mut registry).await;
                });
            }
        });
        let tagged: Arc<Mutex<Vec<u16>>> = Arc::default();
        let (known, sent) = (answers.clone(), tagged.clone());
        tasks.spawn(async move {
            let mut connections = JoinSet::new();
            while let Ok((client, _)) = server.accept().await {
                let (acceptor, known, sent) = (acceptor.clone(), known.clone(), sent.clone());
                connections.spawn(async move {
                    if let Ok(client) = acceptor.accept(client).await {
                        serve(client, &known, &sent).await.unwrap_or_default();
                    }
                });
            }
        });
        let seen = targets.clone();
        tasks.spawn(async move {
            let mut connections = JoinSet::new();
            while let Ok((mut client, _)) = proxy.accept().await {
                let seen = seen.clone();
                connections.spawn(async move {
                    let head = read_head(&mut client).await.unwrap_or_default();
                    let target = head.split(' ').nth(1).unwrap_or_default().to_owned();
                    let is_registry = target.starts_with(REGISTRY);
                    seen.lock().unwrap().push(target);
                    let server = if is_registry { registry_address } else { address };
                    let mut server = TcpStream::connect(server).await.unwrap();
                    client.write_all(b"HTTP/1.1 200 OK\r\n\r\n").await.unwrap();
                    let _ = copy_bidirectional(&mut client, &mut server).await;
                });
            }
        });
        let authority = authority.certificate();
        let proxy = proxy_address;
        Self { answers, tagged, proxy, targets, authority, registry, _tasks: tasks }
    }

    fn set(&self, path: &str, answer: Answer) -> String {
        self.answers.lock().unwrap().insert(path.to_owned(), answer);
        format!("https://{HOST}{path}")
    }

    /// Puts a file into the registry, as `vdoctl catalog push` does.
    async fn push(&self, testbed: &Testbed, tag: &str, media_type: &str, content: &str) -> String {
        let file = testbed.workdir.write("catalog.bundle.json", content).unwrap();
        let options = ClientOptions { plain_http: true, ..ClientOptions::default() };
        let client = oci::Client::new(options).unwrap();
        let target = format!("{}/vdo/catalog:{tag}", self.registry.address());
        client.push_artifact(&target.parse().unwrap(), media_type, &file).await.unwrap();
        format!("oci://{REGISTRY}/vdo/catalog:{tag}")
    }
}

async fn read_head(from: &mut (impl tokio::io::AsyncRead + Unpin)) -> std::io::Result<String> {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        head.push(from.read_u8().await?);
    }
    Ok(String::from_utf8_lossy(&head).into_owned())
}

async fn serve(
    mut client: TlsStream<TcpStream>,
    known: &Mutex<BTreeMap<String, Answer>>,
    tagged: &Mutex<Vec<u16>>,
) -> std::io::Result<()> {
    let head = read_head(&mut client).await?;
    let path = head.split(' ').nth(1).unwrap_or_default().to_owned();
    let answer = known.lock().unwrap().get(&path).cloned();
    let close = "Connection: close\r\n";
    match answer {
        None => {
            let text = format!("HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n{close}\r\n");
            client.write_all(text.as_bytes()).await?;
        }
        Some(Answer::Text(text)) => {
            let length = text.len();
            let head = format!("HTTP/1.1 200 OK\r\nContent-Length: {length}\r\n{close}\r\n");
            client.write_all((head + &text).as_bytes()).await?;
        }
        Some(Answer::Tagged(text, tag)) => {
            let has_it = head.to_lowercase().contains(&format!("if-none-match: \"{tag}\"\r\n"));
            let (status, text) = if has_it { ("304 Not Modified", "") } else { ("200 OK", &*text) };
            tagged.lock().unwrap().push(if has_it { 304 } else { 200 });
            let length = text.len();
            let head = format!(
                "HTTP/1.1 {status}\r\nETag: \"{tag}\"\r\nContent-Length: {length}\r\n{close}\r\n"
            );
            client.write_all((head + text).as_bytes()).await?;
        }
        Some(Answer::Redirect(to)) => {
            let head =
                format!("HTTP/1.1 302 Found\r\nLocation: {to}\r\nContent-Length: 0\r\n{close}\r\n");
            client.write_all(head.as_bytes()).await?;
        }
        Some(Answer::Endless) => {
            client.write_all(format!("HTTP/1.1 200 OK\r\n{close}\r\n").as_bytes()).await?;
            loop {
                client.write_all(&[b'#'; 8192]).await?;
            }
        }
        Some(Answer::Silent) => {
            client.write_all(format!("HTTP/1.1 200 OK\r\n{close}\r\n").as_bytes()).await?;
            client.flush().await?;
            std::future::pending::<()>().await;
        }
    }
    client.shutdown().await
}

async fn point_to(configs: &Api<CompatibilityConfig>, spec: Value) {
    let patch = Patch::Merge(json!({ "spec": spec }));
    configs.patch("catalog", &PatchParams::default(), &patch).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_new_driver_release_needs_no_new_vdo_and_no_server_can_force_one() {
    let server = Server::start().await;
    let mut testbed = Testbed::with_nodes(1).await;
    let authority = testbed.workdir.write("authority.pem", &server.authority).unwrap();
    let authority: &'static str = authority.display().to_string().leak();
    let proxy: &'static str = server.proxy.clone().leak();
    // Not HTTPS_PROXY: outside of a pod, the client of the API server refuses to start with that variable.
    testbed.variables =
        vec![("ALL_PROXY", proxy), ("NO_PROXY", "127.0.0.1"), ("SSL_CERT_FILE", authority)];
    let operator = testbed.operator();
    testbed.configure(json!({"storageProvider": {"vsphereCloudConfig": "vc"}})).await;
    testbed.ready(&operator, 120).await;
    let version = async || testbed.config().await.status.unwrap().csi.unwrap().version.unwrap();
    assert_ne!(version().await, RELEASE, "this VDO does not know the release");

    // The publisher has two keys, and publishes a catalog with one more release. It moved to another place.
    let [old, new] = [(); 2].map(|()| SigningKey::generate().unwrap().0);
    let old_id = old.public().to_string();
    let both = [old, new];
    server.set("/v7", Answer::Text(signed(7, &both)));
    let url = server.set("/moved", Answer::Redirect("/v7"));
    let config =
        json!({"metadata": {"name": "catalog"}, "spec": {"matrixURL": url, "publicKey": old_id}});
    let config: CompatibilityConfig = serde_json::from_value(config).unwrap();
    let configs = Api::<CompatibilityConfig>::namespaced(testbed.client(), NAMESPACE);
    configs.create(&PostParams::default(), &config).await.unwrap();
    eventually("the running operator installs the new release", 150, async || {
        let found = version().await;
        if found == RELEASE { Ok(()) } else { Err(format!("{found}\n{}", operator.tail())) }
    })
    .await;
    testbed.ready(&operator, 120).await;
    let targets = server.targets.lock().unwrap().clone();
    assert!(targets.iter().all(|target| *target == format!("{HOST}:443")), "{targets:?}");

    // Whatever the next server does, the catalog in use stays.
    let [_, new] = &both;
    let (unknown, _) = SigningKey::generate().unwrap();
    let expired = Timestamp::now() - SignedDuration::from_hours(1);
    let expired = Bundle::sign(catalog_with_release(9, expired).as_bytes(), &both).to_json();
    let forged = signed(8, &both).replacen("\"payload\":\"", "\"payload\":\"AAAA", 1);
    let cases = [
        ("/unknown-key", Answer::Text(signed(8, &[unknown])), "VDO-1103"),
        ("/forged", Answer::Text(forged), "VDO-1103"),
        ("/unsigned", Answer::Text(catalog::EMBEDDED.to_owned()), "VDO-1103"),
        ("/older", Answer::Text(signed(6, &both)), "VDO-1104"),
        ("/expired", Answer::Text(expired), "VDO-1104"),
        ("/endless", Answer::Endless, "VDO-1107"),
        ("/silent", Answer::Silent, "VDO-1101"),
        ("/loop", Answer::Redirect("/loop"), "VDO-1101"),
        ("/cut", Answer::Text(signed(8, &both)[..5000].to_owned()), "VDO-1102"),
    ];
    for (path, answer, code) in cases {
        let url = server.set(path, answer);
        point_to(&configs, json!({ "matrixURL": url })).await;
        testbed.finding_about(code, 90, &[&url]).await;
        let status = configs.get("catalog").await.unwrap().status.unwrap();
        assert_eq!(status.serial, Some(7), "{path}: {status:?}");
        assert_eq!(version().await, RELEASE, "{path}");
    }
    let missing = format!("https://{HOST}/nothing");
    point_to(&configs, json!({ "matrixURL": missing })).await;
    testbed.finding_about("VDO-1101", 90, &[&missing]).await;

    // The old key is retired: the site trusts the new one, which signed the catalog in use too, then alone.
    unchanged_catalogs_are_not_sent_again(&testbed, &server, &configs, new).await;
    testbed.ready(&operator, 60).await;
    assert_eq!(version().await, RELEASE);

    catalogs_from_a_registry(&testbed, &server, &configs, new).await;
    catalogs_from_a_registry_with_accounts(&testbed, &server, &configs, new).await;
    assert!(!operator.log().contains(PASSWORD), "the log contains a password");
    testbed.ready(&operator, 60).await;
    assert_eq!(version().await, RELEASE);
}

/// Serial 7 is in use, which both keys signed. The next catalogs have only the new key and come from a server that tags
/// them; serial 10 is the last.
async fn unchanged_catalogs_are_not_sent_again(
    testbed: &Testbed,
    server: &Server,
    configs: &Api<CompatibilityConfig>,
    key: &SigningKey,
) {
    let keys = std::slice::from_ref(key);
    let eight = Answer::Tagged(signed(8, keys), "eight");
    let url = server.set("/tagged", eight.clone());
    let spec = json!({"matrixURL": url, "publicKey": key.public().to_string(), "poll": "1s"});
    point_to(configs, spec).await;
    serial_is(configs, 8).await;
    let sent =
        |status: u16| server.tagged.lock().unwrap().iter().filter(|sent| **sent == status).count();
    eventually("the operator asks for a newer catalog only", 60, async || {
        if sent(304) >= 2 { Ok(()) } else { Err(format!("{:?}", server.tagged.lock().unwrap())) }
    })
    .await;

    // After a pause of the server, the answer without a text is a success too.
    server.answers.lock().unwrap().remove("/tagged");
    testbed.finding_about("VDO-1101", 90, &[&url]).await;
    server.set("/tagged", eight);
    testbed
        .status("the catalog is reachable again", 60, |status| {
            status.findings.iter().all(|finding| finding.code != "VDO-1101")
        })
        .await;
    assert_eq!(sent(200), 1, "the catalog was sent once");

    server.set("/tagged", Answer::Tagged(signed(10, keys), "ten"));
    serial_is(configs, 10).await;
    assert_eq!(sent(200), 2);
}

async fn serial_is(configs: &Api<CompatibilityConfig>, serial: i64) {
    eventually(&format!("the catalog with serial {serial} is in use"), 60, async || {
        let status = configs.get("catalog").await.unwrap().status.unwrap_or_default();
        if status.serial == Some(serial) { Ok(()) } else { Err(format!("{status:?}")) }
    })
    .await;
}

/// The publisher moves into a real registry. Serial 10 is in use.
async fn catalogs_from_a_registry(
    testbed: &Testbed,
    server: &Server,
    configs: &Api<CompatibilityConfig>,
    key: &SigningKey,
) {
    let keys = std::slice::from_ref(key);
    // As a release publishes it: a layout, which crane pushes.
    let artifact = Artifact {
        title: "catalog.bundle.json".into(),
        media_type: MEDIA_TYPE.into(),
        content: signed(11, keys).into_bytes(),
    };
    for (path, content) in artifact.layout().unwrap() {
        let path = testbed.workdir.path().join("layout").join(path);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, content).unwrap();
    }
    let layout = testbed.workdir.path().join("layout");
    let pushed = server.registry.push_layout(&layout, "vdo/catalog", "1").unwrap();
    let url = format!("oci://{REGISTRY}/vdo/catalog:1");
    point_to(configs, json!({"matrixURL": url, "poll": "1s"})).await;
    serial_is(configs, 11).await;
    let status = configs.get("catalog").await.unwrap().status.unwrap();
    assert_eq!(status.source.as_deref(), Some(url.as_str()));
    let targets = server.targets.lock().unwrap().clone();
    assert!(targets.contains(&format!("{REGISTRY}:443")), "not through the proxy: {targets:?}");

    // The publisher moves the tag, and the operator follows it. A digest stays what it is.
    server.push(testbed, "1", MEDIA_TYPE, &signed(12, keys)).await;
    serial_is(configs, 12).await;
    let by_digest = format!("oci://{pushed}");
    point_to(configs, json!({"matrixURL": by_digest, "poll": null})).await;
    testbed.finding_about("VDO-1104", 90, &[&by_digest]).await;

    let (unknown, _) = SigningKey::generate().unwrap();
    let expired = Timestamp::now() - SignedDuration::from_hours(1);
    let expired = Bundle::sign(catalog_with_release(14, expired).as_bytes(), keys).to_json();
    let huge = "#".repeat(MAX_BUNDLE_BYTES + 1);
    let next = signed(13, keys);
    let cases = [
        ("unknown-key", MEDIA_TYPE, signed(13, &[unknown]), "VDO-1103"),
        ("unsigned", MEDIA_TYPE, catalog::EMBEDDED.to_owned(), "VDO-1103"),
        ("older", MEDIA_TYPE, signed(9, keys), "VDO-1104"),
        ("expired", MEDIA_TYPE, expired, "VDO-1104"),
        ("huge", MEDIA_TYPE, huge, "VDO-1107"),
        ("another-kind", "application/json", next, "VDO-1102"),
    ];
    for (tag, media_type, content, code) in cases {
        let url = server.push(testbed, tag, media_type, &content).await;
        point_to(configs, json!({ "matrixURL": url })).await;
        testbed.finding_about(code, 90, &[&url]).await;
        let status = configs.get("catalog").await.unwrap().status.unwrap();
        assert_eq!(status.serial, Some(12), "{tag}: {status:?}");
    }
    let missing = [
        format!("oci://{REGISTRY}/vdo/catalog:none"),
        format!("oci://{REGISTRY}/vdo/catalog@{}", Digest::from_bytes(b"none")),
    ];
    for url in missing {
        point_to(configs, json!({ "matrixURL": url })).await;
        testbed.finding_about("VDO-1101", 90, &[&url]).await;
    }
    point_to(configs, json!({ "matrixURL": url })).await;
    testbed
        .status("the catalog is fetched again", 60, |status| {
            status.findings.iter().all(|finding| finding.code != "VDO-1101")
        })
        .await;
}

const USER: &str = "reader";
const PASSWORD: &str = "the password of the reader";

/// The registry requires an account from now on. Serial 12 is in use.
async fn catalogs_from_a_registry_with_accounts(
    testbed: &Testbed,
    server: &Server,
    configs: &Api<CompatibilityConfig>,
    key: &SigningKey,
) {
    let catalog = signed(15, std::slice::from_ref(key));
    let url = server.push(testbed, "private", MEDIA_TYPE, &catalog).await;
    server.registry.require_account(USER, PASSWORD);
    point_to(configs, json!({ "matrixURL": url })).await;
    let anonymous = ["requires credentials", "name a Secret with them in spec.pullSecret"];
    testbed.finding_about("VDO-1101", 90, &[&url, anonymous[0], anonymous[1]]).await;

    point_to(configs, json!({"pullSecret": "registry"})).await;
    let missing = format!("the Secret {NAMESPACE}/registry does not exist");
    testbed.finding_about("VDO-1101", 90, &[&url, &missing]).await;

    // As docker login, podman login and skopeo login write it.
    let secrets = Api::<Secret>::namespaced(testbed.client(), NAMESPACE);
    let login = async |password: &str| {
        let auth = STANDARD.encode(format!("{USER}:{password}"));
        let file = json!({"auths": {REGISTRY: {"auth": auth}}}).to_string();
        let secret = json!({
            "apiVersion": "v1", "kind": "Secret", "type": "kubernetes.io/dockerconfigjson",
            "metadata": {"name": "registry"}, "stringData": {".dockerconfigjson": file},
        });
        let by = PatchParams::apply("admin").force();
        secrets.patch("registry", &by, &Patch::Apply(secret)).await.unwrap();
    };
    login("another password").await;
    let rejects = "rejects those in the Secret of spec.pullSecret";
    let finding = testbed.finding_about("VDO-1101", 90, &[&url, rejects]).await;
    assert!(!format!("{finding:?}").contains("another password"), "{finding:?}");
    let status = configs.get("catalog").await.unwrap().status.unwrap();
    assert_eq!(status.serial, Some(12), "{status:?}");

    // A new version of the Secret is enough.
    login(PASSWORD).await;
    serial_is(configs, 15).await;
    testbed
        .status("the catalog is fetched", 60, |status| {
            status.findings.iter().all(|finding| finding.code != "VDO-1101")
        })
        .await;
}
