//! Wrong addresses, wrong certificates, wrong peers and bad networks: each has its own error, with
//! a text to act on.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]

mod common;

use std::net::TcpListener;
use std::sync::Arc;
use std::time::Duration;

use common::web::{WebServer, answer};
use common::{client_at, client_of, connected, counted, quick, until, watching};
use serde_json::json;
use testkit::{Authority, Fault, FaultProxy, Inventory, Permission, Vcenter, VcenterUser};
use tokio::io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader};
use vsphere::inventory::{Event, Selection, Vm};
use vsphere::vm::VmChange;
use vsphere::{Client, ClientBuilder, Credentials, Error, Limits, Refusal, Trust};

/// The error of a connection that must fail, and its whole text.
async fn refused(builder: ClientBuilder) -> (Error, String) {
    let error = builder.connect().await.expect_err("this must not connect");
    let story = error.story();
    (error, story)
}

fn to(address: &str) -> ClientBuilder {
    Client::builder(address)
        .trust(Trust::Insecure)
        .credentials(Credentials::new("u", "p"))
        .limits(quick())
}

fn vms() -> Selection {
    Selection::new().vms(&[Vm::IDENTITY])
}

#[tokio::test(flavor = "multi_thread")]
async fn a_name_that_does_not_resolve() {
    let (error, story) = refused(to("no-such-vcenter.invalid")).await;
    assert!(matches!(error, Error::Unresolvable { .. }), "{story}");
    assert!(
        story.starts_with("the name of no-such-vcenter.invalid cannot be resolved; check the name"),
        "{story}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_port_where_nobody_listens() {
    let free = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let (error, story) = refused(to(&free.to_string())).await;
    assert!(matches!(error, Error::Unreachable { .. }), "{story}");
    assert!(story.contains("check address and port"), "{story}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_port_that_swallows_everything() {
    let vcenter = Vcenter::start(Inventory::small()).await;
    let proxy = FaultProxy::before(vcenter.address()).await;
    proxy.black_hole();
    let limits = Limits { connect: Duration::from_millis(300), attempts: 1, ..quick() };
    let (error, story) =
        refused(client_at(&vcenter, &proxy.address().to_string()).limits(limits)).await;
    assert!(matches!(error, Error::Unreachable { .. } | Error::Timeout { .. }), "{story}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_port_that_does_not_speak_tls() {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let mut server = tokio::task::JoinSet::new();
    server.spawn(async move {
        while let Ok((mut connection, _)) = listener.accept().await {
            let _ = connection
                .write_all(b"HTTP/1.1 400 Bad Request\r\ncontent-length: 0\r\n\r\n")
                .await;
            let _ = connection.flush().await;
            let mut line = String::new();
            let _ = BufReader::new(connection).read_line(&mut line).await;
        }
    });
    let (error, story) = refused(to(&address)).await;
    assert!(matches!(error, Error::NotTls { .. }), "{story}");
    assert!(story.contains("does not speak TLS"), "{story}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_web_page_a_redirect_and_an_error_page_are_not_a_vcenter() {
    for (said, expected) in [
        (
            answer("200 OK", "text/html", "<!DOCTYPE html><html><body>It works!</body></html>"),
            "a web page",
        ),
        (answer("404 Not Found", "text/html", "<html>"), "HTTP status 404"),
        (
            b"HTTP/1.1 302 Found\r\nlocation: https://login.example/\r\ncontent-length: 0\r\n\r\n"
                .to_vec(),
            "https://login.example/",
        ),
        (answer("200 OK", "text/plain", "hello"), "not as a vCenter does"),
    ] {
        let server = WebServer::start(move |_| said.clone());
        let builder = to(&server.address.to_string()).trust(Trust::CaBundle(server.ca_pem));
        let (error, story) = refused(builder).await;
        assert!(
            matches!(error, Error::NotVcenter { .. }) && story.contains(expected),
            "{expected}: {story}"
        );
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_error_page_of_a_load_balancer_is_a_vcenter_that_is_not_available() {
    let page = answer(
        "503 Service Unavailable",
        "text/html",
        "<html><h1>503 no healthy upstream</h1></html>",
    );
    let server = WebServer::start(move |_| page.clone());
    let limits = Limits { attempts: 2, ..quick() };
    let builder =
        to(&server.address.to_string()).trust(Trust::CaBundle(server.ca_pem)).limits(limits);
    let (error, story) = refused(builder).await;
    assert!(matches!(error, Error::Unavailable { status: 503, .. }), "{story}");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_esxi_host_is_named_as_such() {
    let mut inventory = Inventory::small();
    inventory.about.insert("apiType".to_owned(), "HostAgent".to_owned());
    inventory.about.insert("fullName".to_owned(), "VMware ESXi 8.0.3 build-24022510".to_owned());
    let vcenter = Vcenter::start(inventory).await;
    let (error, story) = refused(client_of(&vcenter)).await;
    assert!(matches!(error, Error::Esxi { .. }), "{story}");
    assert!(story.contains("is the ESXi host VMware ESXi 8.0.3"), "{story}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_vcenter_that_is_too_old_is_told_what_is_needed() {
    let mut inventory = Inventory::small();
    inventory.about.insert("apiVersion".to_owned(), "6.5".to_owned());
    let vcenter = Vcenter::start(inventory).await;
    let (error, story) = refused(client_of(&vcenter)).await;
    assert!(matches!(error, Error::TooOld { .. }) && story.contains("6.7.3"), "{story}");
}

#[tokio::test(flavor = "multi_thread")]
async fn certificates_that_are_expired_foreign_or_for_another_name() {
    let expired = Vcenter::builder(Inventory::small()).with_expired_certificate().start().await;
    let (error, story) = refused(client_of(&expired)).await;
    assert!(
        matches!(&error, Error::Certificate { refused, .. } if refused.reason == Refusal::Expired),
        "{story}"
    );

    let vcenter =
        Vcenter::builder(Inventory::small()).certificate_for(&["vc.example.com"]).start().await;
    let (error, story) = refused(client_of(&vcenter)).await;
    assert!(
        matches!(&error, Error::Certificate { refused, .. } if matches!(refused.reason, Refusal::Name { .. })),
        "{story}"
    );
    assert!(story.contains("it is for vc.example.com"), "{story}");

    let foreign = Authority::new("somebody else").unwrap().certificate();
    for trust in [Trust::CaBundle(foreign), Trust::System] {
        let (error, story) = refused(client_of(&vcenter).trust(trust)).await;
        assert!(
            matches!(&error, Error::Certificate { refused, .. } if refused.reason == Refusal::Untrusted),
            "{story}"
        );
        assert!(
            story.contains(&vcenter.thumbprint_sha256()),
            "the thumbprint seen is told: {story}"
        );
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pinned_thumbprint_is_enough_and_a_wrong_one_shows_the_right_one() {
    let vcenter =
        Vcenter::builder(Inventory::small()).certificate_for(&["vc.example.com"]).start().await;
    for thumbprint in [vcenter.thumbprint_sha1(), vcenter.thumbprint_sha256()] {
        let pinned = client_of(&vcenter).trust(Trust::Thumbprint(thumbprint.parse().unwrap()));
        pinned.connect().await.expect("the thumbprint is right");

        let wrong = thumbprint.replace(|c: char| c.is_ascii_hexdigit(), "0");
        let (error, story) =
            refused(client_of(&vcenter).trust(Trust::Thumbprint(wrong.parse().unwrap()))).await;
        assert!(
            matches!(&error, Error::Certificate { .. }) && error.kind() == "thumbprint",
            "{story}"
        );
        assert!(story.contains(&format!("its thumbprint is {thumbprint}, not {wrong}")), "{story}");
    }
    client_of(&vcenter).trust(Trust::Insecure).connect().await.expect("anything goes");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_bundle_may_hold_the_certificate_itself() {
    let vcenter = Vcenter::start(Inventory::small()).await;
    let leaf = std::fs::read_to_string(vcenter.folder().join("server.crt")).unwrap();
    client_of(&vcenter).trust(Trust::CaBundle(leaf)).connect().await.expect("it is in the bundle");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_certificate_signed_by_itself_is_untrusted_until_it_is_in_the_bundle() {
    let server = WebServer::self_signed(|_| answer("404 Not Found", "text/html", ""));
    let address = server.address.to_string();
    let (error, story) = refused(to(&address).trust(Trust::System)).await;
    assert_eq!(error.kind(), "certificate_untrusted", "{story}");
    let (error, story) = refused(to(&address).trust(Trust::CaBundle(server.ca_pem))).await;
    assert!(matches!(error, Error::NotVcenter { .. }), "the certificate is accepted: {story}");
}

#[tokio::test(flavor = "multi_thread")]
async fn names_and_both_families_of_addresses_are_reached() {
    let vcenter = Vcenter::start(Inventory::small()).await;
    let by_name = format!("localhost:{}", vcenter.address().port());
    client_at(&vcenter, &by_name).connect().await.expect("by name");
    let sixth = Vcenter::builder(Inventory::small()).listen("[::1]:0").start().await;
    client_of(&sixth).connect().await.expect("by IPv6 address");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_restarting_vcenter_is_waited_for_by_reads() {
    let vcenter = Vcenter::start(Inventory::with_vms(2)).await;
    // The pauses of ten attempts add up to well over the time it is away, whatever their jitter.
    let patient = Limits { attempts: 10, ..quick() };
    let client = client_of(&vcenter).limits(patient).connect().await.expect("it is there");
    vcenter.restart(Duration::from_millis(100)).await;
    let tree = client.collect(&vms()).await.expect("it comes back");
    assert_eq!(tree.vms().len(), 2);

    vcenter.fault(Fault::on("RetrievePropertiesEx").status(503)).await;
    let error = client.collect(&vms()).await.unwrap_err();
    assert!(matches!(error, Error::Unavailable { status: 503, .. }), "{}", error.story());
}

#[tokio::test(flavor = "multi_thread")]
async fn reads_survive_dropped_connections_and_half_answers() {
    let vcenter = Vcenter::start(Inventory::with_vms(50)).await;
    let client = connected(&vcenter).await;
    vcenter.fault(Fault::on("RetrievePropertiesEx").dropped().times(1)).await;
    assert_eq!(client.collect(&vms()).await.unwrap().vms().len(), 50);
    vcenter.clear_faults().await;
    vcenter.fault(Fault::on("RetrievePropertiesEx").truncated().times(2)).await;
    assert_eq!(client.collect(&vms()).await.unwrap().vms().len(), 50);
    vcenter.clear_faults().await;

    vcenter.fault(Fault::on("RetrievePropertiesEx").dropped()).await;
    let error = client.collect(&vms()).await.unwrap_err();
    assert!(matches!(error, Error::Dropped { .. }), "{}", error.story());
    assert!(error.to_string().contains("broke during RetrievePropertiesEx"), "{error}");
}

#[tokio::test(flavor = "multi_thread")]
async fn pages_are_put_together() {
    let vcenter = Vcenter::start(Inventory::with_vms(25)).await;
    let (client, counter) = counted(&vcenter).await;
    let tree = client.collect(&vms().paged(10)).await.unwrap();
    assert_eq!(tree.vms().len(), 25);
    assert!(counter.of("ContinueRetrievePropertiesEx") >= 1, "{:?}", counter.all());
    // A page that is lost starts the list anew, and nothing is there twice.
    vcenter.fault(Fault::on("ContinueRetrievePropertiesEx").truncated().times(1)).await;
    assert_eq!(client.collect(&vms().paged(10)).await.unwrap().vms().len(), 25);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_change_is_not_repeated_when_nobody_knows_whether_it_was_done() {
    let vcenter = Vcenter::start(Inventory::with_vms(1)).await;
    let client = connected(&vcenter).await;
    let vm = client.collect(&vms()).await.unwrap().vms()[0].reference.clone();
    vcenter.forget_calls().await;
    vcenter.fault(Fault::on("ReconfigVM_Task").dropped()).await;
    let error =
        client.reconfigure(&vm, &VmChange::default().show_disk_uuids(true)).await.unwrap_err();
    assert!(matches!(error, Error::Dropped { .. }), "{}", error.story());
    assert_eq!(vcenter.calls().await.of("ReconfigVM_Task"), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stall_ends_in_time_and_holds_nobody_else_up() {
    let vcenter = Vcenter::start(Inventory::with_vms(3)).await;
    let limits = Limits { call: Duration::from_millis(700), attempts: 1, ..quick() };
    let client = client_of(&vcenter).limits(limits).connect().await.unwrap();
    vcenter.fault(Fault::on("FetchUserPrivilegeOnEntities").hangs()).await;
    let root = client.root_folder().unwrap();
    let (stalled, others) =
        tokio::join!(client.own_privileges(std::slice::from_ref(&root)), async {
            let vms = vms();
            futures::future::join_all((0..20).map(|_| client.collect(&vms))).await
        });
    let error = stalled.unwrap_err();
    assert!(matches!(error, Error::Timeout { .. }), "{}", error.story());
    assert!(
        error.to_string().contains("did not answer FetchUserPrivilegeOnEntities within"),
        "{error}"
    );
    assert!(others.iter().all(|outcome| outcome.as_ref().is_ok_and(|tree| tree.vms().len() == 3)));
    assert_eq!(vcenter.calls().await.of("Login"), 1, "nobody lost the session");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_slow_network_is_borne() {
    let vcenter = Vcenter::start(Inventory::with_vms(3)).await;
    let proxy = FaultProxy::before(vcenter.address()).await;
    proxy.delay(Duration::from_millis(50));
    let client = client_at(&vcenter, &proxy.address().to_string()).connect().await.unwrap();
    assert_eq!(client.collect(&vms()).await.unwrap().vms().len(), 3);
}

/// What the simulator cannot be made to send, by hand.
#[tokio::test(flavor = "multi_thread")]
async fn malicious_documents_are_refused_and_do_not_hang() {
    let deep = format!("<e:Envelope>{}", "<a>".repeat(1_000_000));
    let bomb = r#"<!DOCTYPE l [<!ENTITY a "aaaaaaaaaa"><!ENTITY b "&a;&a;&a;&a;">]><e:Envelope><e:Body>&b;</e:Body></e:Envelope>"#;
    let versions = r#"<namespaces version="1.0"><namespace><name>urn:vim25</name><version>8.0.3.0</version></namespace></namespaces>"#;
    for (body, words) in [
        (deep.as_str(), "levels deep"),
        (bomb, "document type definition"),
        ("<e:Envelope><e:Body><R><returnval>", "middle of an element"),
        ("<e:Envelope><e:Body></e:Bodyguard></e:Envelope>", "not well-formed"),
        (
            "<e:Envelope><e:Body><R><returnval>&x;</returnval></R></e:Body></e:Envelope>",
            "arrived without",
        ),
    ] {
        let (versions, body) =
            (answer("200 OK", "text/xml", versions), answer("200 OK", "text/xml", body));
        let server =
            WebServer::start(
                move |line| if line.starts_with("GET") { versions.clone() } else { body.clone() },
            );
        let limits = Limits { attempts: 1, ..quick() };
        let builder =
            to(&server.address.to_string()).trust(Trust::CaBundle(server.ca_pem)).limits(limits);
        let (error, story) = refused(builder).await;
        assert!(
            matches!(error, Error::Unreadable { .. }) && story.contains(words),
            "{words}: {story}"
        );
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_reply_without_end_is_cut_off() {
    let versions = "<namespaces>".to_owned() + &"<namespace/>".repeat(100_000);
    let endless = answer("200 OK", "text/xml", &versions);
    let server = WebServer::start(move |_| endless.clone());
    let limits = Limits { reply: 100_000, attempts: 1, ..quick() };
    let builder =
        to(&server.address.to_string()).trust(Trust::CaBundle(server.ca_pem)).limits(limits);
    let (error, story) = refused(builder).await;
    assert!(matches!(error, Error::TooLarge { limit: 100_000, .. }), "{story}");
}

/// The environment of a process cannot be changed safely while it runs: this test runs itself again
/// with another one.
#[tokio::test(flavor = "multi_thread")]
async fn the_proxy_of_the_environment_is_used() {
    const CHILD: &str = "VSPHERE_TEST_BEHIND_PROXY";
    if let Ok(told) = std::env::var(CHILD) {
        let told: serde_json::Value = serde_json::from_str(&told).unwrap();
        let text = |key: &str| told[key].as_str().unwrap().to_owned();
        let client = Client::builder(text("address"))
            .trust(Trust::CaBundle(text("ca")))
            .credentials(Credentials::new(text("user"), text("password")))
            .limits(quick());
        client.connect().await.expect("through the proxy");
        return;
    }
    let vcenter = Vcenter::start(Inventory::small()).await;
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let proxy = listener.local_addr().unwrap();
    let used = Arc::new(std::sync::atomic::AtomicUsize::new(0));
    let (upstream, counter) = (vcenter.address(), Arc::clone(&used));
    let mut server = tokio::task::JoinSet::new();
    server.spawn(async move {
        let mut tunnels = tokio::task::JoinSet::new();
        while let Ok((connection, _)) = listener.accept().await {
            let counter = Arc::clone(&counter);
            tunnels.spawn(async move {
                let mut connection = BufReader::new(connection);
                let mut line = String::new();
                while line != "\r\n" {
                    line.clear();
                    connection.read_line(&mut line).await.unwrap();
                    counter.fetch_add(
                        usize::from(line.starts_with("CONNECT ")),
                        std::sync::atomic::Ordering::Relaxed,
                    );
                }
                connection.write_all(b"HTTP/1.1 200 OK\r\n\r\n").await.unwrap();
                let mut target = tokio::net::TcpStream::connect(upstream).await.unwrap();
                let _ = tokio::io::copy_bidirectional(&mut connection, &mut target).await;
            });
        }
    });
    let told = json!({
        "address": vcenter.address().to_string(), "ca": vcenter.ca_pem(),
        "user": vcenter.user(), "password": vcenter.password(),
    });
    let output = tokio::task::spawn_blocking(move || {
        std::process::Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "the_proxy_of_the_environment_is_used"])
            .env(CHILD, told.to_string())
            .env("HTTPS_PROXY", format!("http://{proxy}"))
            .env_remove("NO_PROXY")
            .env_remove("no_proxy")
            .output()
            .unwrap()
    })
    .await
    .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stdout));
    assert!(used.load(std::sync::atomic::Ordering::Relaxed) > 0, "nobody asked the proxy");
}

#[tokio::test(flavor = "multi_thread")]
async fn another_vcenter_at_the_same_address_proves_nothing_gone() {
    let called = |uuid: &str, vms| {
        let mut inventory = Inventory::with_vms(vms);
        inventory.users = vec![VcenterUser::new("vdo@vsphere.local", "Right-1")];
        inventory.permissions = vec![Permission::new("vdo@vsphere.local", "Admin", "/")];
        inventory.about.insert("instanceUuid".to_owned(), uuid.to_owned());
        inventory
    };
    let first = Vcenter::start(called("11111111-0000-4000-8000-000000000001", 3)).await;
    let address = first.address().to_string();
    let client = client_of(&first).trust(Trust::Insecure).connect().await.unwrap();
    client.tags(Duration::ZERO).categories().await.unwrap();
    let (watch, inventory, mut events) = watching(&client, vms()).await;
    drop(first);

    let second = called("22222222-0000-4000-8000-000000000002", 1);
    let second = Vcenter::builder(second).listen(&address).start().await;
    let other = |error: &Error| matches!(error, Error::OtherVcenter { .. });
    until(&mut events, |event| match event {
        Event::Unreachable(error) => other(error),
        Event::Left(_) | Event::Resynced => panic!("it is believed: {event:?}"),
        _ => false,
    })
    .await;
    assert_eq!(inventory.view().vms().len(), 3, "what was known is kept");
    for error in [
        client.collect(&vms()).await.unwrap_err(),
        client.tags(Duration::ZERO).categories().await.unwrap_err(),
        client.set_credentials(Credentials::new("vdo@vsphere.local", "x")).await.unwrap_err(),
    ] {
        assert!(other(&error) && !error.is_transient(), "{}", error.story());
        let text = error.to_string();
        assert!(text.contains("22222222-0000") && text.contains("restart this program"), "{text}");
    }
    let calls = second.calls().await;
    assert_eq!(calls.of("Login"), 0, "it is told no password");
    assert_eq!(second.users().await[0]["failed"], 0);
    watch.stop().await;
}
