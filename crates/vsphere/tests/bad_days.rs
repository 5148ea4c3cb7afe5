//! Wrong addresses, certificates and servers: each has its own error with a fix.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]

mod common;

use std::time::Duration;

use common::web::{WebServer, answer};
use common::{client_at, client_of, on_every_release, quick, until, watching};
use testkit::{Authority, FaultProxy, Inventory, Permission, Port, Vcenter, VcenterUser};
use tokio::io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader};
use vsphere::inventory::{Event, Selection, Vm};
use vsphere::{Client, ClientBuilder, Credentials, Error, Limits, Refusal, Trust};

/// The error of a connection that must fail, and its error chain.
async fn refused(builder: ClientBuilder) -> (Error, String) {
    let error = builder.connect().await.expect_err("this must not connect");
    let error_chain = error.error_chain();
    (error, error_chain)
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
async fn a_name_that_does_not_resolve_is_reported() {
    let (error, error_chain) = refused(to("no-such-vcenter.invalid")).await;
    assert!(matches!(error, Error::Unresolvable { .. }), "{error_chain}");
    assert!(
        error_chain
            .starts_with("the name of no-such-vcenter.invalid cannot be resolved; check the name"),
        "{error_chain}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_closed_port_is_reported() {
    let free = Port::reserve().unwrap();
    let (error, error_chain) = refused(to(&format!("127.0.0.1:{}", free.number))).await;
    assert!(matches!(error, Error::Unreachable { .. }), "{error_chain}");
    assert!(error_chain.contains("check address and port"), "{error_chain}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_port_that_never_answers_times_out() {
    let vcenter = Vcenter::start(Inventory::small()).await;
    let proxy = FaultProxy::before(vcenter.address()).await;
    proxy.black_hole();
    let limits = Limits { connect: Duration::from_millis(300), ..quick() };
    let (error, error_chain) =
        refused(client_at(&vcenter, &proxy.address().to_string()).limits(limits)).await;
    assert!(matches!(error, Error::Unreachable { .. }), "{error_chain}");
    assert!(error_chain.contains("no firewall blocks the connection"), "{error_chain}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_port_without_tls_is_reported() {
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
    let (error, error_chain) = refused(to(&address)).await;
    assert!(matches!(error, Error::NotTls { .. }), "{error_chain}");
    assert!(error_chain.contains("does not speak TLS"), "{error_chain}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_web_page_a_redirect_and_an_error_page_are_not_a_vcenter() {
    for (reply, expected) in [
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
        let server = WebServer::start(move |_| reply.clone());
        let builder = to(&server.address.to_string()).trust(Trust::CaBundle(server.ca_pem));
        let (error, error_chain) = refused(builder).await;
        assert!(
            matches!(error, Error::NotVcenter { .. }) && error_chain.contains(expected),
            "{expected}: {error_chain}"
        );
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_error_page_of_a_load_balancer_means_unavailable() {
    for (asked, understood) in [
        ("", None),
        ("retry-after: 7\r\n", Some(Duration::from_secs(7))),
        // A date needs synchronized clocks.
        ("retry-after: Wed, 21 Oct 2026 07:28:00 GMT\r\n", None),
    ] {
        let page = "<html><h1>503 no healthy upstream</h1></html>";
        let page = format!(
            "HTTP/1.1 503 Service Unavailable\r\ncontent-type: text/html\r\n{asked}\
             content-length: {}\r\nconnection: close\r\n\r\n{page}",
            page.len()
        );
        let server = WebServer::start(move |_| page.clone().into_bytes());
        let builder = to(&server.address.to_string()).trust(Trust::CaBundle(server.ca_pem));
        let (error, error_chain) = refused(builder).await;
        let Error::Unavailable { status: 503, retry_after, .. } = error else {
            panic!("{error_chain}")
        };
        assert_eq!(retry_after, understood, "{asked}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_esxi_host_is_recognized() {
    let mut inventory = Inventory::small();
    inventory.about.insert("apiType".to_owned(), "HostAgent".to_owned());
    inventory.about.insert("fullName".to_owned(), "VMware ESXi 8.0.3 build-24022510".to_owned());
    let vcenter = Vcenter::start(inventory).await;
    let (error, error_chain) = refused(client_of(&vcenter)).await;
    assert!(matches!(error, Error::Esxi { .. }), "{error_chain}");
    assert!(error_chain.contains("is the ESXi host VMware ESXi 8.0.3"), "{error_chain}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_vcenter_that_is_too_old_is_rejected_with_the_required_version() {
    let mut inventory = Inventory::small();
    inventory.about.insert("apiVersion".to_owned(), "6.5".to_owned());
    let vcenter = Vcenter::start(inventory).await;
    let (error, error_chain) = refused(client_of(&vcenter)).await;
    assert!(
        matches!(error, Error::TooOld { .. }) && error_chain.contains("6.7.3"),
        "{error_chain}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn certificates_that_are_expired_foreign_or_for_another_name() {
    let expired = Vcenter::builder(Inventory::small()).with_expired_certificate().start().await;
    let (error, error_chain) = refused(client_of(&expired)).await;
    assert!(
        matches!(&error, Error::Certificate { refused, .. } if refused.reason == Refusal::Expired),
        "{error_chain}"
    );

    let vcenter =
        Vcenter::builder(Inventory::small()).certificate_for(&["vc.example.com"]).start().await;
    let (error, error_chain) = refused(client_of(&vcenter)).await;
    assert!(
        matches!(&error, Error::Certificate { refused, .. } if matches!(refused.reason, Refusal::Name { .. })),
        "{error_chain}"
    );
    assert!(error_chain.contains("it is valid for vc.example.com"), "{error_chain}");

    let foreign = Authority::new("somebody else").unwrap().certificate();
    for trust in [Trust::CaBundle(foreign), Trust::System] {
        let (error, error_chain) = refused(client_of(&vcenter).trust(trust)).await;
        assert!(
            matches!(&error, Error::Certificate { refused, .. } if refused.reason == Refusal::Untrusted),
            "{error_chain}"
        );
        assert!(
            error_chain.contains(&vcenter.thumbprint_sha256()),
            "the thumbprint is reported: {error_chain}"
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
        let (error, error_chain) =
            refused(client_of(&vcenter).trust(Trust::Thumbprint(wrong.parse().unwrap()))).await;
        assert!(
            matches!(&error, Error::Certificate { .. }) && error.kind() == "thumbprint",
            "{error_chain}"
        );
        assert!(
            error_chain.contains(&format!("its thumbprint is {thumbprint}, not {wrong}")),
            "{error_chain}"
        );
    }
    client_of(&vcenter).trust(Trust::Insecure).connect().await.expect("anything goes");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_bundle_can_contain_the_certificate_itself() {
    let vcenter = Vcenter::start(Inventory::small()).await;
    let leaf = std::fs::read_to_string(vcenter.folder().join("server.crt")).unwrap();
    client_of(&vcenter).trust(Trust::CaBundle(leaf)).connect().await.expect("it is in the bundle");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_self_signed_certificate_is_untrusted_until_it_is_in_the_bundle() {
    let server = WebServer::self_signed(|_| answer("404 Not Found", "text/html", ""));
    let address = server.address.to_string();
    let (error, error_chain) = refused(to(&address).trust(Trust::System)).await;
    assert_eq!(error.kind(), "certificate_untrusted", "{error_chain}");
    let (error, error_chain) = refused(to(&address).trust(Trust::CaBundle(server.ca_pem))).await;
    assert!(
        matches!(error, Error::NotVcenter { .. }),
        "the certificate is accepted: {error_chain}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn names_ipv4_and_ipv6_addresses_are_reachable() {
    on_every_release(async |version| {
        let vcenter = Vcenter::start(Inventory::small().version(version)).await;
        let by_name = format!("localhost:{}", vcenter.address().port());
        client_at(&vcenter, &by_name).connect().await.expect("by name");
        let sixth = Vcenter::builder(Inventory::small()).listen("[::1]:0").start().await;
        client_of(&sixth).connect().await.expect("by IPv6 address");
    })
    .await;
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
    let mut vcenter = Vcenter::start(called("11111111-0000-4000-8000-000000000001", 3)).await;
    let client = client_of(&vcenter).trust(Trust::Insecure).connect().await.unwrap();
    client.tags(Duration::ZERO).categories().await.unwrap();
    let (watch, inventory, mut events) = watching(&client, vms()).await;

    vcenter.replace(called("22222222-0000-4000-8000-000000000002", 1)).await;
    let other = |error: &Error| matches!(error, Error::OtherVcenter { .. });
    until(&mut events, |event| match event {
        Event::Unreachable(error) => other(error),
        Event::Left(_) | Event::Resynced => panic!("it is believed: {event:?}"),
        _ => false,
    })
    .await;
    assert_eq!(inventory.view().vms().len(), 3, "the view is kept");
    for error in [
        client.collect(&vms()).await.unwrap_err(),
        client.tags(Duration::ZERO).categories().await.unwrap_err(),
        client.set_credentials(Credentials::new("vdo@vsphere.local", "x")).await.unwrap_err(),
    ] {
        assert!(other(&error) && !error.is_transient(), "{}", error.error_chain());
        let text = error.to_string();
        assert!(text.contains("22222222-0000") && text.contains("restart this program"), "{text}");
    }
    let calls = vcenter.calls().await;
    assert_eq!(calls.count("Login"), 0, "it receives no password");
    assert_eq!(vcenter.users().await[0]["failed"], 0);
    watch.stop().await;
}
