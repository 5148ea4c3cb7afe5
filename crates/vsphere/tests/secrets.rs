//! No password, session id or guest variable appears in any log, error or `Debug` text.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]

mod common;

use std::io::Write;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use base64::Engine as _;
use common::{client_of, everything, until, watching};
use testkit::{Fault, Inventory, Vcenter, VcenterUser};
use tracing_subscriber::fmt::MakeWriter;
use vsphere::inventory::{Event, Object};
use vsphere::vm::VmChange;
use vsphere::{Client, Credentials};

#[derive(Clone, Default)]
struct Log(Arc<Mutex<Vec<u8>>>);

impl Write for Log {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().unwrap().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

impl MakeWriter<'_> for Log {
    type Writer = Self;

    fn make_writer(&self) -> Self {
        self.clone()
    }
}

const PASSWORD: &str = "Hunter2-geheim";
const WRONG: &str = "Wrong-geheim-too";
const USERDATA: &str = "c3NoX3B3YXV0aDogdHJ1ZQ";

#[tokio::test(flavor = "multi_thread")]
async fn no_secret_is_ever_logged() {
    let log = Log::default();
    tracing_subscriber::fmt()
        .with_max_level(tracing::Level::TRACE)
        .with_span_events(tracing_subscriber::fmt::format::FmtSpan::FULL)
        .with_writer(log.clone())
        .init();
    let mut inventory = Inventory::with_vms(2).category("traced-category", &[]);
    inventory.users = vec![VcenterUser::new("administrator@vsphere.local", PASSWORD)];
    let vcenter = Vcenter::start(inventory).await;
    let mut all = Vec::new();
    let mut show = |thing: &dyn std::fmt::Debug| all.push(format!("{thing:?} {thing:#?}"));

    show(&Credentials::new("user", PASSWORD));
    show(&client_of(&vcenter));
    for address in ["user:PW@vc", "https://user:PW@vc", "http://user:PW@vc/sdk"] {
        let builder = Client::builder(address.replace("PW", PASSWORD));
        show(&builder);
        let error = builder.connect().await.unwrap_err();
        show(&(&error, error.to_string(), error.error_chain()));
    }
    let client = client_of(&vcenter).connect().await.unwrap();
    show(&client);
    let (watch, inventory, mut events) = watching(&client, everything()).await;
    show(&watch);
    client.tags(Duration::ZERO).categories().await.unwrap();
    show(&client);
    let open = vcenter.sessions().await;
    let session_ids: Vec<String> = open
        .as_array()
        .unwrap()
        .iter()
        .filter_map(|s| s["key"].as_str().map(str::to_owned))
        .collect();
    assert_eq!(session_ids.len(), 2, "one session per protocol: {open}");
    let vm = inventory.view().vms()[0].reference.clone();
    for (key, marker) in [("guestinfo.userdata", "first"), ("GuestInfo.VendorData", "second")] {
        let change = VmChange::default().option(key, USERDATA).option("marker", marker);
        show(&change);
        let task = client.reconfigure(&vm, &change).await.unwrap();
        show(&task);
        task.wait(Duration::from_mins(1)).await.unwrap();
        let is_set = |object: &Object| {
            let options = object.as_vm().and_then(|vm| vm.extra_config.as_ref());
            let text = |key: &str| options?.get(key)?.to_text();
            text("marker").as_deref() == Some(marker) && text(key).as_deref() == Some(USERDATA)
        };
        let event = until(
            &mut events,
            |event| matches!(event, Event::Changed { after, .. } if is_set(after)),
        )
        .await;
        show(&event);
        show(&*inventory.view());
        show(&inventory);
    }
    client.sessions().await.unwrap();

    let wrong = client_of(&vcenter).credentials(Credentials::new(vcenter.user(), WRONG));
    let error = wrong.connect().await.unwrap_err();
    show(&error);
    show(&error.error_chain());
    let error = client.set_credentials(Credentials::new(vcenter.user(), WRONG)).await.unwrap_err();
    show(&(&error, error.error_chain()));
    for fault in [
        Fault::on("Login").dropped(),
        Fault::on("Login").truncated(),
        Fault::on("Login").status(500),
    ] {
        vcenter.clear_faults().await;
        vcenter.fault(fault).await;
        let error = client_of(&vcenter).connect().await.unwrap_err();
        show(&(&error, error.error_chain()));
    }
    vcenter.clear_faults().await;
    watch.stop().await;
    client.shut_down().await;

    all.push(String::from_utf8_lossy(&log.0.lock().unwrap()).into_owned());
    let shown = all.join("\n");
    assert!(
        shown.contains("<userName>administrator@vsphere.local</userName>"),
        "the log receives messages"
    );
    assert!(shown.contains("<password>(redacted)</password>"), "bodies are logged, redacted");
    assert!(shown.contains("<WaitForUpdatesExResponse"), "also those read as they arrive");
    assert!(shown.contains("traced-category"), "also those of REST");
    assert!(
        shown.contains("GuestInfo.VendorData") && shown.contains("second"),
        "options are shown"
    );
    let basic = |password: &str| {
        base64::engine::general_purpose::STANDARD.encode(format!("{}:{password}", vcenter.user()))
    };
    let session_secrets: Vec<String> = vcenter_cookies(&shown);
    let secrets =
        [PASSWORD.to_owned(), WRONG.to_owned(), basic(PASSWORD), basic(WRONG), USERDATA.to_owned()];
    // vCenter puts the session key into the names of objects in the session.
    let shown =
        session_ids.iter().fold(shown, |shown, id| shown.replace(&format!("session[{id}]"), ""));
    for secret in secrets.into_iter().chain(session_ids) {
        assert!(!shown.contains(&secret), "{secret} is shown: {}", around(&shown, &secret));
    }
    assert!(session_secrets.is_empty(), "{session_secrets:?}");
}

/// Values of session cookies and session headers in the text.
fn vcenter_cookies(text: &str) -> Vec<String> {
    ["vmware_soap_session=", "vmware-api-session-id: ", "<vcSessionCookie>"]
        .iter()
        .flat_map(|marker| text.match_indices(marker).map(move |(at, _)| (at, *marker)))
        .map(|(at, marker)| text[at..].chars().take(marker.len() + 12).collect::<String>())
        .filter(|found| !found.contains("(redacted)"))
        .collect()
}

fn around(text: &str, secret: &str) -> String {
    let at = text.find(secret).unwrap_or_default();
    let from = (0..=at.saturating_sub(200)).rev().find(|i| text.is_char_boundary(*i)).unwrap_or(0);
    text[from..].chars().take(400).collect()
}
