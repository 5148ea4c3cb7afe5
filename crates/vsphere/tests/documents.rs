//! Hand-made replies that the simulator cannot send: malicious replies, and a vCenter that breaks
//! its own rules.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]

mod common;

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use common::web::{Asked, WebServer, answer, envelope, fake_vcenter, soap};
use common::{holds, quick};
use vsphere::inventory::{Selection, Status, Vm};
use vsphere::{CallCounter, Client, ClientBuilder, Credentials, Error, Limits, Trust};

fn client_of(server: &WebServer) -> ClientBuilder {
    Client::builder(server.address.to_string())
        .trust(Trust::CaBundle(server.ca_pem.clone()))
        .credentials(Credentials::new("u", "p"))
        .limits(Limits { attempts: 1, ..quick() })
}

fn vms() -> Selection {
    Selection::new().vms(&[Vm::IDENTITY])
}

/// Invalid documents and the expected error messages.
fn malicious() -> Vec<(String, &'static str)> {
    let deep = format!("<e:Envelope>{}", "<a>".repeat(1_000_000));
    let bomb = r#"<!DOCTYPE l [<!ENTITY a "aaaaaaaaaa"><!ENTITY b "&a;&a;&a;&a;">]><e:Envelope><e:Body>&b;</e:Body></e:Envelope>"#;
    vec![
        (deep, "levels deep"),
        (bomb.to_owned(), "document type definition"),
        ("<e:Envelope><e:Body><R><returnval>".to_owned(), "middle of an element"),
        ("<e:Envelope><e:Body></e:Bodyguard></e:Envelope>".to_owned(), "not well-formed"),
    ]
}

#[tokio::test(flavor = "multi_thread")]
async fn malicious_documents_are_refused_wherever_they_come_and_do_not_hang() {
    for (document, words) in malicious() {
        let reply = answer("200 OK", "text/xml", &document);
        // As the first reply of a vCenter.
        let (versions, body) = (versions(), reply.clone());
        let server = WebServer::start(move |asked| {
            if asked.line.starts_with("GET") { versions.clone() } else { body.clone() }
        });
        let error = client_of(&server).connect().await.unwrap_err();
        assert_unreadable(&error, words);

        // In a session: as a whole reply, as a streamed reply, and as a reply to a watch.
        let body = reply.clone();
        let server = fake_vcenter(move |_| body.clone());
        let client = client_of(&server).connect().await.unwrap();
        let root = client.root_folder().unwrap();
        assert_unreadable(&client.permissions(&root, false).await.unwrap_err(), words);
        assert_unreadable(&client.collect(&vms()).await.unwrap_err(), words);
        assert_unreadable(&client.storage_policies().await.unwrap_err(), words);
        let body = reply.clone();
        let server = fake_vcenter(move |asked| match watched(asked) {
            Some(answer) => answer,
            None => body.clone(),
        });
        let client = client_of(&server).connect().await.unwrap();
        let watch = client.watch(vms());
        assert_unreadable(&watch.inventory().ready().await.unwrap_err(), words);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn rest_replies_that_are_not_json_too_deep_or_unexpected_are_rejected() {
    let deep = "[".repeat(1_000_000);
    for (document, words) in [
        (deep.as_str(), "not JSON"),
        ("<html>", "not JSON"),
        ("{\"value\":", "not JSON"),
        ("{\"a\": 1}", "unexpected format"),
        ("[1, 2]", "unexpected format"),
    ] {
        let reply = answer("200 OK", "application/json", document);
        let server = fake_vcenter(move |asked| {
            if asked.line.starts_with("POST /api/session") {
                answer("201 Created", "application/json", "\"session-id\"")
            } else {
                reply.clone()
            }
        });
        let client = client_of(&server).connect().await.unwrap();
        let error = client.tags(Duration::ZERO).categories().await.unwrap_err();
        let error_chain = error.error_chain();
        assert!(
            matches!(error, Error::NotVcenter { .. }) && error_chain.contains(words),
            "{error_chain}"
        );
    }
}

fn versions() -> Vec<u8> {
    let versions = r#"<namespaces version="1.0"><namespace><name>urn:vim25</name><version>8.0.3.0</version></namespace></namespaces>"#;
    answer("200 OK", "text/xml", versions)
}

fn assert_unreadable(error: &Error, words: &str) {
    let error_chain = error.error_chain();
    assert!(
        matches!(error, Error::Unreadable { .. }) && error_chain.contains(words),
        "{words}: {error_chain}"
    );
}

/// The replies up to the start of a watch.
fn watched(asked: &Asked) -> Option<Vec<u8>> {
    let made = |kind: &str| {
        let method = asked.method();
        let body = format!(
            "<{method}Response><returnval type=\"{kind}\">{kind}-1</returnval></{method}Response>"
        );
        Some(answer("200 OK", "text/xml", &envelope(&body)))
    };
    match asked.method() {
        "CreatePropertyCollector" => made("PropertyCollector"),
        "CreateContainerView" => made("ContainerView"),
        "CreateFilter" => made("PropertyFilter"),
        "DestroyPropertyCollector" | "DestroyView" => Some(soap(asked.method(), None)),
        _ => None,
    }
}

fn enters(name: &str, number: usize) -> String {
    format!(
        "<filterSet><filter type=\"PropertyFilter\">f</filter><objectSet><kind>enter</kind>\
         <obj type=\"VirtualMachine\">vm-{number}</obj><changeSet><name>name</name><op>assign</op>\
         <val>{name}</val></changeSet></objectSet></filterSet>"
    )
}

#[tokio::test(flavor = "multi_thread")]
async fn changes_without_a_version_do_not_cause_endless_calls() {
    let waits = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&waits);
    let server = fake_vcenter(move |asked| {
        watched(asked).unwrap_or_else(|| {
            counted.fetch_add(1, Ordering::SeqCst);
            let set = format!("{}<truncated>true</truncated>", enters("a", 1));
            soap("WaitForUpdatesEx", Some(&set))
        })
    });
    let client = client_of(&server).connect().await.unwrap();
    let watch = client.watch(vms());
    let error = watch.inventory().ready().await.unwrap_err();
    assert_unreadable(&error, "no version");
    assert!(watch.inventory().view().is_empty(), "a partial snapshot is not a view");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_vcenter_that_does_not_wait_is_called_with_growing_pauses() {
    let server = fake_vcenter(move |asked| {
        watched(asked).unwrap_or_else(|| {
            if asked.body.contains("<version></version>") {
                let set = format!("<version>1</version>{}", enters("a", 1));
                soap("WaitForUpdatesEx", Some(&set))
            } else {
                soap("WaitForUpdatesEx", None)
            }
        })
    });
    let counter = Arc::new(CallCounter::default());
    let client = client_of(&server).observer(counter.clone()).connect().await.unwrap();
    let watch = client.watch(vms());
    watch.inventory().ready().await.unwrap();
    holds("some waits were answered at once", || counter.count("WaitForUpdatesEx") >= 4).await;
    // The pauses double, so there are fewer calls than with a constant first pause. This holds on
    // slow and fast hosts.
    let since = tokio::time::Instant::now();
    let before = counter.count("WaitForUpdatesEx");
    tokio::time::sleep(Duration::from_secs(2)).await;
    let calls = counter.count("WaitForUpdatesEx") - before;
    let most = since.elapsed().as_millis() / 200 + 1;
    assert!(u128::from(calls) <= most, "{calls} calls in {:?}", since.elapsed());
    assert!(matches!(watch.inventory().status(), Status::Live), "the watch continues");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_endless_reply_is_cut_off() {
    let endless = "<namespaces>".to_owned() + &"<namespace/>".repeat(100_000);
    let endless = answer("200 OK", "text/xml", &endless);
    let server = WebServer::start(move |_| endless.clone());
    let error = client_of(&server).connect().await.unwrap_err();
    assert!(matches!(error, Error::TooLarge { limit: 1_048_576, .. }), "{}", error.error_chain());

    // In a session: small replies, whole replies and lists have separate limits.
    let permissions = format!(
        "<R>{}</R>",
        "<returnval><principal>p</principal><group>false</group><roleId>-1</roleId><propagate>true</propagate></returnval>"
            .repeat(20_000)
    );
    let objects: String = (0..20_000)
        .map(|n| format!("<objects><obj type=\"Folder\">f-{n}</obj></objects>"))
        .collect();
    let tags = format!("[{}\"x\"]", "\"category-id\",".repeat(100_000));
    let server = fake_vcenter(move |asked| match asked.method() {
        "RetrieveEntityPermissions" => answer("200 OK", "text/xml", &envelope(&permissions)),
        "RetrievePropertiesEx" => soap("RetrievePropertiesEx", Some(&objects)),
        line if line.starts_with("POST /api/session") => {
            answer("201 Created", "application/json", "\"session-id\"")
        }
        _ => answer("200 OK", "application/json", &tags),
    });
    let limits = Limits { attempts: 1, text: 2_000_000, reply: 500_000, ..quick() };
    let client = client_of(&server).limits(limits.clone()).connect().await.unwrap();
    let root = client.root_folder().unwrap();
    let small = client.tags(Duration::ZERO).categories().await.unwrap_err();
    assert!(matches!(small, Error::TooLarge { limit: 1_048_576, .. }), "{}", small.error_chain());
    let whole = client.permissions(&root, false).await.unwrap_err();
    assert!(matches!(whole, Error::TooLarge { limit: 2_000_000, .. }), "{}", whole.error_chain());
    let list = client.collect(&vms()).await.unwrap_err();
    assert!(matches!(list, Error::TooLarge { limit: 500_000, .. }), "{}", list.error_chain());

    let limits = Limits { text: 4_000_000, reply: 4_000_000, ..limits };
    let client = client_of(&server).limits(limits).connect().await.unwrap();
    assert_eq!(client.permissions(&root, false).await.unwrap().len(), 20_000);
    client.collect(&vms()).await.expect("within its limit");
}
