//! Restarts, stalls, broken connections and proxies: reads survive them, changes are never
//! repeated, and other callers are not blocked.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]

mod common;

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use common::{
    RELEASES, client_at, client_of, connected, connected_within, counted, on_every_release, quick,
};
use testkit::{Fault, FaultProxy, Inventory, Port, Vcenter};
use tokio::io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::task::JoinSet;
use vsphere::authorization::EntityPermission;
use vsphere::cns::VolumeId;
use vsphere::inventory::{Selection, Vm};
use vsphere::vm::VmChange;
use vsphere::{Client, Credentials, Error, Limits, Trust};

fn vms() -> Selection {
    Selection::new().vms(&[Vm::IDENTITY])
}

#[tokio::test(flavor = "multi_thread")]
async fn reads_wait_for_a_restarting_vcenter() {
    let on = async |version| {
        let vcenter = Vcenter::start(Inventory::with_vms(2).version(version)).await;
        // The default pauses outlast the restart, whatever their jitter. Each reply asks for one
        // second with `Retry-After`.
        let client = client_of(&vcenter).limits(Limits::default()).connect().await.unwrap();
        vcenter.restart(Duration::from_millis(2_500)).await;
        let tree = client.collect(&vms()).await.expect("it comes back");
        assert_eq!(tree.vms().len(), 2, "{version}");
    };
    futures::future::join_all(RELEASES.map(on)).await;

    let vcenter = Vcenter::start(Inventory::with_vms(2)).await;
    let client = connected(&vcenter).await;
    vcenter.fault(Fault::on("RetrievePropertiesEx").status(503)).await;
    let error = client.collect(&vms()).await.unwrap_err();
    assert!(matches!(error, Error::Unavailable { status: 503, .. }), "{}", error.error_chain());
}

#[tokio::test(flavor = "multi_thread")]
async fn reads_survive_dropped_connections_and_partial_replies() {
    on_every_release(async |version| {
        let vcenter = Vcenter::start(Inventory::with_vms(50).version(version)).await;
        let client = connected(&vcenter).await;
        vcenter.fault(Fault::on("RetrievePropertiesEx").dropped().times(1)).await;
        assert_eq!(client.collect(&vms()).await.unwrap().vms().len(), 50);
        vcenter.clear_faults().await;
        vcenter.fault(Fault::on("RetrievePropertiesEx").truncated().times(2)).await;
        assert_eq!(client.collect(&vms()).await.unwrap().vms().len(), 50);
        vcenter.clear_faults().await;

        vcenter.fault(Fault::on("RetrievePropertiesEx").dropped()).await;
        let error = client.collect(&vms()).await.unwrap_err();
        assert!(matches!(error, Error::Dropped { .. }), "{}", error.error_chain());
        assert!(error.to_string().contains("broke during RetrievePropertiesEx"), "{error}");
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn pages_are_put_together() {
    on_every_release(async |version| {
        let vcenter = Vcenter::start(Inventory::with_vms(25).version(version)).await;
        let (client, counter) = counted(&vcenter).await;
        let tree = client.collect(&vms().paged(10)).await.unwrap();
        assert_eq!(tree.vms().len(), 25);
        assert!(counter.count("ContinueRetrievePropertiesEx") >= 1, "{:?}", counter.all());
        // A lost page restarts the list without duplicates.
        vcenter.fault(Fault::on("ContinueRetrievePropertiesEx").truncated().times(1)).await;
        assert_eq!(client.collect(&vms().paged(10)).await.unwrap().vms().len(), 25);
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_change_is_not_repeated_when_its_outcome_is_unknown() {
    let on = async |version| {
        let vcenter = Vcenter::start(Inventory::with_vms(1).version(version)).await;
        let limits = Limits { call: Duration::from_secs(20), ..quick() };
        let client = connected_within(&vcenter, &limits).await;
        let vm = client.collect(&vms()).await.unwrap().vms()[0].reference.clone();
        let root = client.root_folder().unwrap();
        let permission = EntityPermission {
            entity: None,
            principal: "VSPHERE.LOCAL\\somebody".to_owned(),
            group: false,
            role: -1,
            propagate: true,
        };
        let volume = [VolumeId { id: "1".to_owned() }];
        let disks = VmChange::default().show_disk_uuids(true);
        for method in [
            "ReconfigVM_Task",
            "AddAuthorizationRole",
            "UpdateAuthorizationRole",
            "SetEntityPermissions",
            "CnsDeleteVolume",
            "TerminateSession",
        ] {
            let mut faults = vec![
                Fault::on(method).dropped(),
                Fault::on(method).truncated(),
                Fault::on(method).status(503),
            ];
            if method == "ReconfigVM_Task" {
                faults.push(Fault::on(method).hangs());
            }
            for fault in faults {
                vcenter.forget_calls().await;
                vcenter.fault(fault.clone()).await;
                let outcome = match method {
                    "ReconfigVM_Task" => client.reconfigure(&vm, &disks).await.map(drop),
                    "AddAuthorizationRole" => client.create_role("new", &[]).await.map(drop),
                    "UpdateAuthorizationRole" => client.update_role(-5, "other", &[]).await,
                    "SetEntityPermissions" => {
                        client.set_permissions(&root, std::slice::from_ref(&permission)).await
                    }
                    "CnsDeleteVolume" => client.delete_volumes(&volume, true).await.map(drop),
                    _ => client.end_sessions(&["none".to_owned()]).await,
                };
                let error = outcome.unwrap_err();
                assert!(error.is_transient(), "{fault:?}: {}", error.error_chain());
                assert_eq!(vcenter.calls().await.count(method), 1, "{fault:?}");
                vcenter.clear_faults().await;
            }
        }
    };
    futures::future::join_all(RELEASES.map(on)).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stall_times_out_and_does_not_block_other_calls() {
    let on = async |version| {
        let vcenter = Vcenter::start(Inventory::with_vms(3).version(version)).await;
        let limits = Limits { call: Duration::from_secs(20), attempts: 1, ..quick() };
        let client = connected_within(&vcenter, &limits).await;
        vcenter.forget_calls().await;
        vcenter.fault(Fault::on("FetchUserPrivilegeOnEntities").hangs()).await;
        let root = client.root_folder().unwrap();
        let (stalled, others) =
            tokio::join!(client.own_privileges(std::slice::from_ref(&root)), async {
                let vms = vms();
                futures::future::join_all((0..7).map(|_| client.collect(&vms))).await
            });
        let error = stalled.unwrap_err();
        assert!(matches!(error, Error::Timeout { .. }), "{}", error.error_chain());
        assert!(
            error.to_string().contains("did not answer FetchUserPrivilegeOnEntities within"),
            "{error}"
        );
        assert!(others.iter().all(|o| o.as_ref().is_ok_and(|tree| tree.vms().len() == 3)));
        assert_eq!(vcenter.calls().await.count("Login"), 0, "the session survived");
    };
    futures::future::join_all(RELEASES.map(on)).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_slow_network_is_borne() {
    on_every_release(async |version| {
        let vcenter = Vcenter::start(Inventory::with_vms(3).version(version)).await;
        let proxy = FaultProxy::before(vcenter.address()).await;
        proxy.delay(Duration::from_millis(50));
        let client = client_at(&vcenter, &proxy.address().to_string()).connect().await.unwrap();
        assert_eq!(client.collect(&vms()).await.unwrap().vms().len(), 3);
    })
    .await;
}

/// How a proxy handles a request for a connection.
#[derive(Clone, Copy)]
enum Proxy {
    Leads(SocketAddr),
    Says(&'static str),
}

/// A proxy and the number of requests it received.
async fn proxy(manner: Proxy) -> (SocketAddr, Arc<AtomicUsize>, JoinSet<()>) {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let (address, asked) = (listener.local_addr().unwrap(), Arc::new(AtomicUsize::new(0)));
    let counter = Arc::clone(&asked);
    let mut server = JoinSet::new();
    server.spawn(async move {
        let mut tunnels = JoinSet::new();
        while let Ok((connection, _)) = listener.accept().await {
            let counter = Arc::clone(&counter);
            tunnels.spawn(async move {
                let mut connection = BufReader::new(connection);
                let mut line = String::new();
                while line != "\r\n" {
                    line.clear();
                    connection.read_line(&mut line).await.unwrap();
                    counter.fetch_add(usize::from(line.starts_with("CONNECT ")), Ordering::Relaxed);
                }
                match manner {
                    Proxy::Leads(to) => {
                        connection.write_all(b"HTTP/1.1 200 OK\r\n\r\n").await.unwrap();
                        let mut target = tokio::net::TcpStream::connect(to).await.unwrap();
                        let _ = tokio::io::copy_bidirectional(&mut connection, &mut target).await;
                    }
                    Proxy::Says(status) => {
                        let head = format!("HTTP/1.1 {status}\r\ncontent-length: 0\r\n\r\n");
                        let _ = connection.write_all(head.as_bytes()).await;
                    }
                }
            });
        }
    });
    (address, asked, server)
}

/// A process cannot change its environment safely, so this test runs itself again with another
/// environment.
#[allow(clippy::print_stdout, reason = "the child process reports to its parent")]
#[tokio::test(flavor = "multi_thread")]
async fn the_proxy_of_the_environment_is_used_and_its_errors_are_distinct() {
    const CHILD: &str = "VSPHERE_TEST_BEHIND_PROXY";
    if let Ok(setup) = std::env::var(CHILD) {
        let setup: serde_json::Value = serde_json::from_str(&setup).unwrap();
        let text = |key: &str| setup[key].as_str().unwrap().to_owned();
        let client = Client::builder(text("address"))
            .trust(Trust::CaBundle(text("ca")))
            .credentials(Credentials::new(text("user"), text("password")))
            .limits(quick());
        match client.connect().await {
            Ok(_) => println!("connected"),
            Err(error) => println!("{}: {}", error.kind(), error.error_chain()),
        }
        return;
    }
    let vcenter = Vcenter::start(Inventory::small()).await;
    let setup = serde_json::json!({
        "address": vcenter.address().to_string(), "ca": vcenter.ca_pem(),
        "user": vcenter.user(), "password": vcenter.password(),
    });
    let behind = async |proxy: SocketAddr| {
        let mut child = std::process::Command::new(std::env::current_exe().unwrap());
        child
            .args(["--exact", "--nocapture"])
            .arg("the_proxy_of_the_environment_is_used_and_its_errors_are_distinct")
            .env(CHILD, setup.to_string())
            .env("HTTPS_PROXY", format!("http://{proxy}"))
            .env_remove("NO_PROXY")
            .env_remove("no_proxy");
        let output = tokio::task::spawn_blocking(move || child.output().unwrap()).await.unwrap();
        String::from_utf8_lossy(&output.stdout).into_owned()
    };
    let closed_port = Port::reserve().unwrap();
    for (manner, expected_output) in [
        (Proxy::Leads(vcenter.address()), "connected"),
        (
            Proxy::Says("407 Proxy Authentication Required"),
            "requires a user and a password; set them",
        ),
        (Proxy::Says("403 Forbidden"), "does not allow the connection; allow the address"),
        (Proxy::Says("502 Bad Gateway"), "does not allow the connection; allow the address"),
    ] {
        let (address, asked, _server) = proxy(manner).await;
        let output = behind(address).await;
        assert!(output.contains(expected_output), "{output}");
        let expected =
            if expected_output == "connected" { expected_output } else { "proxy: the proxy for " };
        assert!(output.contains(expected), "{output}");
        assert!(asked.load(Ordering::Relaxed) > 0, "the proxy received no request");
    }
    let output = behind(SocketAddr::from(([127, 0, 0, 1], closed_port.number))).await;
    assert!(output.contains("proxy: the proxy for "), "{output}");
    assert!(output.contains("does not answer; check HTTPS_PROXY"), "{output}");
}
